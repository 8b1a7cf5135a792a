"""Verdicts on the reasons of any model of tables: every move, a proof, or a counter-example.

Where what a row may become is finite and not too much, all of it is looked at, and the verdict is
exact. Beyond, moves that break are searched for, and models that can prove that there is none are
asked to. What was found is typed as a person could type it, and looked at again as it was typed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from r2et.actionable.tables import SLACK, TableMoves, combinations
from r2et.core.arrays import Floats, Mask
from r2et.core.reasons import (
    MOST_MOVES,
    Breaking,
    By,
    Question,
    ReasonVerdict,
    decided_by,
    shown_as,
)

AT_ONCE = 20_000  # moved rows whose contributions are computed together
DRAWN, ROUNDS, BEST = 32, 4, 4
"""Random moves of a round of an attack, its rounds, and the best moves that the next begins at."""
HALVINGS = 12  # of the way to a counter-example, in search of a smaller one


@runtime_checkable
class TableModel(Protocol):
    """A model of rows of a table, which it takes as frames: numbers with NaN, and words."""

    @property
    def names(self) -> Sequence[str]:
        """The attributes, which are the columns."""
        ...

    @property
    def classes(self) -> Sequence[str]:
        """What the outcomes are called."""
        ...

    def scores(self, rows: pd.DataFrame) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        ...

    def contributions(self, rows: pd.DataFrame) -> Floats:
        """What each attribute adds to the margin of each class: (N, m, C)."""
        ...


@runtime_checkable
class OfProducts(Protocol):
    """A model that knows a cheaper way where one row becomes every combination of some values."""

    def product(
        self, row: pd.DataFrame, axes: Mapping[str, Sequence[Any]]
    ) -> tuple[Floats, Floats]:
        """Scores (N, C) and contributions (N, m, C) of all combinations, the last axis fastest."""
        ...


@runtime_checkable
class Exact(Protocol):
    """A model that gives exact verdicts by itself."""

    def verdicts(
        self, people: pd.DataFrame, moves: TableMoves, question: Question
    ) -> list[ReasonVerdict]:
        """The verdict on each decision."""
        ...


@runtime_checkable
class Costly(Protocol):
    """A model whose contributions cost so much that fewer moves are all looked at."""

    @property
    def most_moves(self) -> int:
        """How many moves of one decision are."""
        ...


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What is proved of one decision: the places of the labels that stay, how many do at least.

    `hint` is a change that may break the reasons, found on the way.
    """

    core: tuple[int, ...]
    kept: int
    hint: Mapping[str, Any] | None = None


@runtime_checkable
class Prover(Protocol):
    """A model of which it can be proved that no move changes its reasons."""

    def proved(
        self, people: pd.DataFrame, moves: TableMoves, question: Question
    ) -> list[Proof | None]:
        """What is proved of each decision, None if nothing is."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """A prover that can go on, as long as it is given time."""

    def searched(
        self, person: pd.DataFrame, moves: TableMoves, question: Question, seconds: float
    ) -> Proof | None:
        """What is proved of one decision within about so many seconds, None if nothing is."""
        ...


@runtime_checkable
class Climber(Protocol):
    """A model whose contributions have slopes by numbers."""

    def slopes(self, rows: pd.DataFrame, weights: Floats, labels: Sequence[int]) -> pd.DataFrame:
        """Slopes by each number of what attributes, weighted (N, m), add to a class (N,)."""
        ...


def reason_verdicts(
    model: TableModel,
    people: pd.DataFrame,
    moves: TableMoves,
    question: Question,
    *,
    most_moves: int = MOST_MOVES,
    attack: bool = True,
    search: float = 0.0,
    seed: int = 0,
) -> list[ReasonVerdict]:
    """A verdict on the reasons of each decision about the people, rows of a frame.

    Without `attack` nothing is searched for where moves are too many to be looked at. What neither
    proof nor attack decides is proved in parts, for about `search` seconds each.
    """
    people = people.reset_index(drop=True)
    if isinstance(model, Exact):
        return model.verdicts(people, moves, question)
    if isinstance(model, Costly):
        most_moves = min(most_moves, model.most_moves)
    inquiry = _Inquiry(model=model, moves=moves, question=question)
    axes = [moves.axes(row) for row in _records(people)]
    few = [
        each is not None and math.prod(len(steps) for steps in each.values()) <= most_moves
        for each in axes
    ]
    found: dict[int, ReasonVerdict] = {}
    for place, every in enumerate(few):
        own = axes[place]
        if every and own is not None:
            found[place] = inquiry.enumerated(people[place : place + 1], own)
    rest = [place for place, every in enumerate(few) if not every]
    if rest:
        some = people.iloc[rest].reset_index(drop=True)
        counts = [
            None if each is None else math.prod(len(steps) for steps in each.values())
            for each in (axes[place] for place in rest)
        ]
        searched = inquiry.searched(some, counts, attack=attack, search=search, seed=seed)
        found.update(zip(rest, searched, strict=True))
    return [found[place] for place in range(len(people))]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inquiry:
    """A model, what rows may become, and what is asked."""

    model: TableModel
    moves: TableMoves
    question: Question

    def __post_init__(self) -> None:
        """Refuse a question that cannot be asked of these attributes."""
        self.question.labels(self.model.names)

    def _shown(self, phi: Floats) -> Floats:
        """How much each label is a reason, (N, m) -> (N, n)."""
        return shown_as(phi @ self.question.members(self.model.names), self.question.side)

    def _told(self, phi: Floats) -> tuple[NDArray[np.intp], Mask]:
        """The places of the reasons, (N, k), and whether each label is one, (N, n)."""
        shown = self._shown(phi)
        order = np.argsort(-shown, 1, kind="stable")[:, : self.question.k]
        among: Mask = np.zeros(shown.shape, dtype=np.bool_)
        np.put_along_axis(among, order, True, 1)
        return order, among

    def _names(self, places: Sequence[int]) -> tuple[str, ...]:
        labels = self.question.labels(self.model.names)
        return tuple(labels[int(place)] for place in places)

    # --- all moves ------------------------------------------------------------------------------

    def enumerated(
        self, person: pd.DataFrame, axes: Mapping[str, Mapping[Any, float]]
    ) -> ReasonVerdict:
        """The verdict by every combination of what a row, (1, m), may become."""
        sizes = self.moves.sizes(axes)
        scores, phi = self._product(person, axes)
        decided = decided_by(scores)
        label = int(decided[0])  # the first combination is the person
        order, among = self._told(phi[:, :, label])
        counts = (decided == label) & (sizes <= 1 + SLACK)
        kept = (among & among[0]).sum(1)
        core = (among | ~counts[:, None]).all(0)[order[0]]
        broken = counts & (kept < self.question.k)
        breaking = None
        if broken.any():
            changed = _changed(axes)
            at = np.lexsort([changed[broken], sizes[broken]])[0]
            place = int(np.flatnonzero(broken)[at])
            breaking = self._breaking(
                person, _combination(axes, place), float(sizes[place]), order[place]
            )
        return ReasonVerdict(
            verdict="certified" if breaking is None else "broken",
            by="enumerated",
            decision=self.model.classes[label],
            reasons=self._names(order[0]),
            moves=int((sizes <= 1 + SLACK).sum()),
            core=self._names(order[0][core]),
            kept=float(kept[counts].min()) / self.question.k,
            breaking=breaking,
        )

    def _product(
        self, person: pd.DataFrame, axes: Mapping[str, Mapping[Any, float]]
    ) -> tuple[Floats, Floats]:
        if isinstance(self.model, OfProducts):
            return self.model.product(person, {name: list(each) for name, each in axes.items()})
        rows = _rows(person, list(combinations(axes)))
        scores, parts = [], []
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE].reset_index(drop=True)
            scores.append(self.model.scores(some))
            parts.append(self.model.contributions(some))
        return np.concatenate(scores), np.concatenate(parts)

    def _breaking(
        self, person: pd.DataFrame, values: Mapping[str, Any], size: float, order: Any
    ) -> Breaking:
        row = person.iloc[0]
        moved = {name: value for name, value in values.items() if value != row[name]}
        return Breaking(values=moved, size=size, reasons=self._names(order))

    # --- too many moves -------------------------------------------------------------------------

    def searched(
        self,
        people: pd.DataFrame,
        counts: Sequence[int | None],
        *,
        attack: bool,
        search: float,
        seed: int,
    ) -> list[ReasonVerdict]:
        """Verdicts where not every move can be looked at: by proofs, an attack, more proofs."""
        decided = decided_by(self.model.scores(people))
        phi = self.model.contributions(people)
        own = np.take_along_axis(phi, decided[:, None, None], 2)[..., 0]
        orders, among = self._told(own)
        proofs: list[Proof | None] = [None] * len(people)
        if isinstance(self.model, Prover):
            proofs = self.model.proved(people, self.moves, self.question)
        found = []
        for at, (order, proof) in enumerate(zip(orders, proofs, strict=True)):
            label, one = int(decided[at]), None
            whole = proof is not None and proof.kept == self.question.k
            if attack and not whole:
                hint = None if proof is None else proof.hint
                one = self._attacked(people[at : at + 1], label, among[at], seed, hint)
            if search and proof is not None and not whole and one is None:
                proof = self._searched(people[at : at + 1], proof, search)
                whole = proof.kept == self.question.k
                one = self._hinted(people[at : at + 1], label, among[at], proof.hint)
            by: By | None = "bound" if whole else "attack" if one is not None else None
            found.append(
                ReasonVerdict(
                    verdict="certified" if whole else "undetermined" if one is None else "broken",
                    by=by,
                    decision=self.model.classes[label],
                    reasons=self._names(order),
                    moves=counts[at],
                    core=None
                    if proof is None
                    else self._names([place for place in order if place in proof.core]),
                    kept=None if proof is None else proof.kept / self.question.k,
                    breaking=one,
                )
            )
        return found

    def _searched(self, person: pd.DataFrame, known: Proof, seconds: float) -> Proof:
        """What is proved of one decision, after a search that takes about so many seconds."""
        if not isinstance(self.model, Searcher):
            return known
        person = person.reset_index(drop=True)
        found = self.model.searched(person, self.moves, self.question, seconds)
        if found is None:
            return known
        core = tuple(dict.fromkeys((*found.core, *known.core)))
        return Proof(core=core, kept=max(found.kept, known.kept, len(core)), hint=found.hint)

    def _hinted(
        self, person: pd.DataFrame, label: int, among: Mask, hint: Mapping[str, Any] | None
    ) -> Breaking | None:
        """The smallest change on the way to a hint, if that breaks as it would be typed."""
        if hint is None:
            return None
        person = person.reset_index(drop=True)
        typed = self._typed(_records(person)[0])(hint)
        if not typed or not self._breaks(person, typed, label, among):
            return None
        return self._smaller(person, label, among, [typed])

    def _attacked(
        self,
        person: pd.DataFrame,
        label: int,
        among: Mask,
        seed: int,
        hint: Mapping[str, Any] | None = None,
    ) -> Breaking | None:
        """The smallest change found that breaks the reasons of one row, if any was.

        Each round draws moves around the best so far, follows slopes where the model has any, and
        looks at all of them as they would be typed.
        """
        draw = np.random.default_rng(seed)
        person = person.reset_index(drop=True)
        row = _records(person)[0]
        tried = [*_ends(self.moves, row), *_drawn(self.moves, row, DRAWN, draw)]
        tried += [] if hint is None else [dict(hint)]
        best: list[dict[str, Any]] = []
        for _ in range(ROUNDS):
            values = [each for each in map(self._typed(row), tried) if each]
            if not values:
                break
            gaps, among_there, stays = self._gaps(person, values, label, among)
            breaks = stays & (among_there != among).any(1)
            if breaks.any():
                return self._smaller(
                    person, label, among, [values[i] for i in np.flatnonzero(breaks)]
                )
            order = np.argsort(np.where(stays, gaps, np.inf), kind="stable")[:BEST]
            best = [values[i] for i in order]
            tried = [
                *_around(self.moves, row, best, DRAWN, draw),
                *self._climbed(person, best, label, among),
            ]
        return None

    def _gaps(
        self, person: pd.DataFrame, values: Sequence[Mapping[str, Any]], label: int, among: Mask
    ) -> tuple[Floats, Mask, Mask]:
        """How far the last reason is above the first other label, the reasons, and who stays."""
        rows = _rows(person, values)
        stays = decided_by(self.model.scores(rows)) == label
        phi = self.model.contributions(rows)[:, :, label]
        shown = self._shown(phi)
        inside = np.where(among, shown, np.inf).min(1)
        outside = np.where(among, -np.inf, shown).max(1)
        return inside - outside, self._told(phi)[1], stays

    def _climbed(
        self, person: pd.DataFrame, best: Sequence[Mapping[str, Any]], label: int, among: Mask
    ) -> list[dict[str, Any]]:
        """The best moves, each number as far as it may go the way that closes the gap."""
        if not isinstance(self.model, Climber) or not self.moves.moving:
            return []
        rows, row = _rows(person, best), _records(person)[0]
        phi = self.model.contributions(rows)[:, :, label]
        members, shown = self.question.members(self.model.names), self._shown(phi)
        last = np.where(among, shown, np.inf).argmin(1)
        first = np.where(among, -np.inf, shown).argmax(1)
        sides = np.ones(shown.shape)
        if self.question.side != "for":
            sides = -sides if self.question.side == "against" else np.sign(phi @ members)
        picked = np.zeros(shown.shape)
        every = np.arange(len(rows))
        picked[every, first] += sides[every, first]
        picked[every, last] -= sides[every, last]
        slopes = self.model.slopes(rows, picked @ members.T, [label] * len(rows))
        found = []
        for values, slope in zip(best, slopes.to_dict("records"), strict=True):
            for share in (1.0, 0.3, 0.1):
                moved = dict(values)
                for name in self.moves.width:
                    low, high = self.moves.span(name, row[name])
                    if low < high and slope.get(name):
                        now = values.get(name, row[name])
                        by = share * self.moves.width[name] * math.copysign(1.0, slope[name])
                        moved[name] = min(max(now + by, low), high)
                found.append(moved)
        return found

    def _typed(self, row: Mapping[str, Any]) -> Any:
        """Values as they would be typed, if that is a move within reach; nothing if it is not."""

        def typed(values: Mapping[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for name, value in values.items():
                if name in self.moves.width and value != row[name]:
                    value = typed_number(row[name], value, self.moves, name)
                if value != row[name]:
                    found[name] = value
            return found if self.moves.size_of(row, found) <= 1 + SLACK else {}

        return typed

    def _smaller(
        self,
        person: pd.DataFrame,
        label: int,
        among: Mask,
        breaking: Sequence[dict[str, Any]],
    ) -> Breaking:
        """The smallest of some changes that break, and of those between it and the row."""
        row = _records(person)[0]
        best = min(breaking, key=lambda each: (self.moves.size_of(row, each), len(each)))
        for name in list(best):  # what is not needed stays
            fewer = {each: value for each, value in best.items() if each != name}
            if fewer and self._breaks(person, fewer, label, among):
                best = fewer
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            nearer = self._typed(row)(
                {
                    name: row[name] + middle * (value - row[name])
                    if name in self.moves.width
                    else value
                    for name, value in best.items()
                }
            )
            if nearer and self._breaks(person, nearer, label, among):
                best, low, high = nearer, 0.0, 1.0
                continue
            low = middle
        phi = self.model.contributions(_rows(person, [best]))[:, :, label]
        order = self._told(phi)[0][0]
        size = self.moves.size_of(row, best)
        return self._breaking(person, best, size, order)

    def _breaks(
        self, person: pd.DataFrame, values: Mapping[str, Any], label: int, among: Mask
    ) -> bool:
        _, there, stays = self._gaps(person, [values], label, among)
        return bool(stays[0] and (there[0] != among).any())


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Each row by the names of its columns."""
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


# --- rows and moves -----------------------------------------------------------------------------


def _rows(person: pd.DataFrame, values: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The row, (1, m), with other values, one row for each of them."""
    rows = person.loc[person.index.repeat(len(values))].reset_index(drop=True)
    own = person.iloc[0]
    for name in {name: None for each in values for name in each}:
        rows[name] = [each.get(name, own[name]) for each in values]
    return rows


def _combination(axes: Mapping[str, Mapping[Any, float]], place: int) -> dict[str, Any]:
    """The combination of a number, the last axis fastest."""
    found = {}
    for name, steps in reversed(list(axes.items())):
        place, at = divmod(place, len(steps))
        found[name] = list(steps)[at]
    return dict(reversed(list(found.items())))


def _changed(axes: Mapping[str, Mapping[Any, float]]) -> NDArray[np.intp]:
    """How many attributes change in each combination, of which the first value is one's own."""
    found = np.zeros(1, dtype=np.intp)
    for steps in axes.values():
        found = np.add.outer(found, np.arange(len(steps)) > 0).ravel()
    return found


def typed_number(own: float, value: float, moves: TableMoves, name: str) -> float:
    """A number as a person would type it: whole, or of few digits, and still within reach."""
    low, high = moves.span(name, own)
    if name in moves.whole and own == round(own):
        step = round(value - own)
        return float(own + min(max(step, math.ceil(low - own)), math.floor(high - own)))
    width = moves.width[name]
    for digits in range(1, 17):
        # A thousandth of the width is as near as anybody needs.
        found = float(f"{value:.{digits}g}")
        if abs(found - value) <= 1e-3 * width and low <= found <= high:
            return found
    return value


def _ends(moves: TableMoves, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each number alone, and all of them together, as far as they may go."""
    spans = {name: moves.span(name, row[name]) for name in moves.width}
    spans = {name: span for name, span in spans.items() if span[0] < span[1]}
    found: list[dict[str, Any]] = []
    for name, (low, high) in spans.items():
        found += [{name: low}, {name: high}]
    found += [{name: span[side] for name, span in spans.items()} for side in (0, 1)]
    found = [_within(moves, row, each) for each in found]
    for name in moves.exchange:
        found += [{name: word} for word in moves.steps(name, row[name]) or () if word != row[name]]
    return found


def _drawn(
    moves: TableMoves, row: Mapping[str, Any], count: int, draw: np.random.Generator
) -> list[dict[str, Any]]:
    """Random moves: half of them with numbers as far as they may go."""
    found = []
    for number in range(count):
        values: dict[str, Any] = {}
        for name in moves.width:
            low, high = moves.span(name, row[name])
            if low < high and draw.random() < 0.7:
                ends = (low, high)[int(draw.random() < 0.5)]
                values[name] = ends if number % 2 else float(draw.uniform(low, high))
        found.append(_within(moves, row, _exchanged(moves, row, values, draw)))
    return found


def _around(
    moves: TableMoves,
    row: Mapping[str, Any],
    best: Sequence[Mapping[str, Any]],
    count: int,
    draw: np.random.Generator,
) -> list[dict[str, Any]]:
    """Random moves near some others."""
    found = []
    for number in range(count if best else 0):
        values = dict(best[number % len(best)])
        for name in moves.width:
            low, high = moves.span(name, row[name])
            if low < high and draw.random() < 0.5:
                now = values.get(name, row[name]) + draw.normal() * 0.2 * moves.width[name]
                values[name] = float(min(max(now, low), high))
        found.append(_within(moves, row, _exchanged(moves, row, values, draw)))
    return found


def _exchanged(
    moves: TableMoves, row: Mapping[str, Any], values: dict[str, Any], draw: np.random.Generator
) -> dict[str, Any]:
    """The values, some words now others, as many as can be paid for."""
    left = 1 + SLACK - sum(moves.exchange[name] for name in values if name in moves.exchange)
    for name in draw.permutation(list(moves.exchange)) if moves.exchange else ():
        price = moves.exchange[str(name)]
        words = [word for word in moves.words[str(name)] if word != row[str(name)]]
        if str(name) not in values and words and price <= left and draw.random() < 0.5:
            values[str(name)] = str(draw.choice(words))
            left -= price
    return values


def _within(moves: TableMoves, row: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The values, numbers drawn back until all of it is within reach."""
    size = moves.size_of(row, values)
    if size <= 1:
        return values
    exchanged = {name: value for name, value in values.items() if name in moves.exchange}
    spent = moves.size_of(row, exchanged)
    numbers = math.sqrt(max(size**2 - spent**2, 0.0))
    share = math.sqrt(max(1 - spent**2, 0.0)) / numbers if numbers else 0.0
    return {
        name: value if name in exchanged else row[name] + share * (value - row[name])
        for name, value in values.items()
    }
