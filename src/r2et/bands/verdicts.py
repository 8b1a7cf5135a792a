"""Proof behind bands, for any model: what can be reached is few cells, and all are looked at.

A model that sees bands only is constant on their cells. Within a few steps of a person most
attributes stay in one band and a few reach two: every cell that a move can reach is evaluated,
whatever the model is, and the verdict is exact.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np

from r2et.actionable.tables import SLACK, TableMoves
from r2et.bands.apart import Choices, judged_apart
from r2et.bands.attribute import Bands, NumberBands, WordBands
from r2et.bands.scores import StepScore
from r2et.core.arrays import Codes, Floats
from r2et.core.naming import nearest
from r2et.core.reasons import Breaking, ReasonVerdict, Side, decided_by, shown_as

MOST_CELLS = 4096
"""How many cells of one person are looked at; of more nothing is said."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CellModel:
    """What is said of cells, (N, m) numbers of bands.

    `score` gives a score for each class, (N, C), the largest being decided, and `contributions`
    what each attribute adds to the margin of each class, (N, m, C). A score that is a sum over the
    attributes that can move says so by `steps` and `reference`, the cells it is told against.
    """

    score: Callable[[Codes], Floats]
    contributions: Callable[[Codes], Floats]
    steps: StepScore | None = None
    reference: Codes | None = None


class Binned(Protocol):
    """Rows as the bands of their attributes, as a `StableBinner` has them."""

    attributes_: list[Bands]
    widths_: dict[str, tuple[float, ...]]
    classes_: Any

    def values(self, X: Any) -> Sequence[Any]:
        """The values of each column."""

    def codes(self, X: Any) -> Codes:
        """The bands of each row: (N, m)."""


def cell_verdicts(
    binner: Binned,
    model: CellModel,
    X: Any,
    *,
    k: int = 3,
    side: Side = "against",
    width: Mapping[str, float] | TableMoves | None = None,
    threshold: float = 0.5,
    codes: Mapping[str, str] | None = None,
    most_cells: int = MOST_CELLS,
) -> list[ReasonVerdict]:
    """The verdicts of `band_verdicts` on what a model says of the cells of a binner."""
    bands = binner.attributes_
    if width is None:
        width = {name: max(each) for name, each in binner.widths_.items()}
    moves = width if isinstance(width, TableMoves) else TableMoves(width=width)
    names = [each.name for each in bands]
    told_as = [(codes or {}).get(name, name) for name in names]
    labels = list(dict.fromkeys(told_as))
    _check(bands, k, side, moves, threshold, codes or {}, labels)
    inquiry = _Inquiry(
        model=model,
        names=names,
        labels=labels,
        members=np.array([[each == label for label in labels] for each in told_as], dtype=float),
        moves=moves,
        k=k,
        side=side,
    )
    values, cells = binner.values(X), binner.codes(X)
    people = [
        _Person(
            cell=cells[row],
            values=[own[row] for own in values],
            way=reachable(bands, [own[row] for own in values], moves),
        )
        for row in range(len(cells))
    ]
    # All cells of all decisions at once: many are shared, and each is looked at once.
    wanted = [
        each.cells() if each.count <= most_cells else np.empty((0, len(bands)), dtype=np.intp)
        for each in people
    ]
    decided, ranked = inquiry.reasons(np.concatenate([cells, *wanted]))
    found, start = [], len(cells)
    for row, (person, own) in enumerate(zip(people, wanted, strict=True)):
        label = int(decided[row])
        seen = [
            (own[at], ranked(start + at, label))
            for at in range(len(own))
            if decided[start + at] == label and inquiry.size(person, own[at]) <= 1 + SLACK
        ]
        start += len(own)
        found.append(
            inquiry.verdict(person, label, ranked(row, label), seen, binner.classes_[label])
        )
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Person:
    """A row: the cell it lies in, its values, and what each of them can become."""

    cell: Codes
    values: Sequence[Any]
    way: "Way"

    @property
    def count(self) -> int:
        """How many cells moves lead to."""
        return math.prod(len(each) for each in self.way)

    def cells(self) -> Codes:
        """All of them: (count, m)."""
        return np.array(list(product(*(list(each) for each in self.way))), dtype=np.intp)


Seen = Sequence[tuple[Codes, tuple[int, ...]]]
"""Cells in which a decision stays, and the reasons there."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inquiry:
    """What is asked of all: `members`, (m, n), is 1 where an attribute counts for a label."""

    model: CellModel
    names: Sequence[str]
    labels: Sequence[str]
    members: Floats
    moves: TableMoves
    k: int
    side: Side

    def reasons(self, cells: Codes) -> tuple[Codes, Callable[[int, int], tuple[int, ...]]]:
        """The class of each cell, and the top k of (cell, class): labels, the first first."""
        different, place = np.unique(cells, axis=0, return_inverse=True)
        place = place.ravel()
        decided = decided_by(self.model.score(different))
        phi = self.model.contributions(different)
        known: dict[tuple[int, int], tuple[int, ...]] = {}

        def ranked(cell: int, label: int) -> tuple[int, ...]:
            key = int(place[cell]), label
            if key not in known:
                shown = shown_as(phi[key[0], :, label] @ self.members, self.side)
                known[key] = tuple(np.argsort(-shown, kind="stable")[: self.k].tolist())
            return known[key]

        return decided[place], ranked

    def verdict(
        self, person: _Person, label: int, first: tuple[int, ...], seen: Seen, decision: Any
    ) -> ReasonVerdict:
        """The verdict on one decision, by what was seen in all cells or by what adds up."""
        if seen:
            found = self._enumerated(person, first, seen)
        elif self._adds_up(person):
            found = self._apart(person, label, first)
        else:
            found = {"verdict": "undetermined", "by": None}
        reasons = tuple(self.labels[place] for place in first)
        return ReasonVerdict(decision=decision, reasons=reasons, moves=person.count, **found)

    def _adds_up(self, person: _Person) -> bool:
        """Whether all that can move is a sum of its own, told by its own name, within a box."""
        if self.moves.norm != "box" or self.moves.exchange:
            return False
        steps = self.model.steps
        if steps is None or steps.trees is not None or len(self.labels) < len(self.names):
            return False
        return all(len(each) == 1 or at in steps.points for at, each in enumerate(person.way))

    def _enumerated(self, person: _Person, first: tuple[int, ...], seen: Seen) -> dict[str, Any]:
        core = set(first).intersection(*(reasons for _, reasons in seen))
        broken = [each for each in seen if set(each[1]) != set(first)]
        return {
            "verdict": "broken" if broken else "certified",
            "by": "enumerated",
            "core": tuple(self.labels[place] for place in first if place in core),
            "kept": min(len(set(first) & set(reasons)) for _, reasons in seen) / self.k,
            "breaking": self._smallest(person, broken) if broken else None,
        }

    def _apart(self, person: _Person, label: int, first: tuple[int, ...]) -> dict[str, Any]:
        choices = self._choices(person, label)
        said = self.model.score(person.cell[None])[0]
        constant = float(said[label] - said[1 - label]) - sum(float(c.score[0]) for c in choices)
        apart = judged_apart(choices, self.k, constant, closed=label == 1)
        breaking = None
        if apart.change is not None:
            cell = np.array(apart.change)
            breaking = self._smallest(person, [(cell, self.reasons(cell[None])[1](0, label))])
        return {
            "verdict": "certified" if breaking is None else "broken",
            "by": "closed form",
            "core": tuple(self.labels[place] for place in first if place in apart.core),
            "kept": apart.kept / self.k,
            "breaking": breaking,
        }

    def _choices(self, person: _Person, label: int) -> list[Choices]:
        """What each attribute can become, of a score that is a sum over those that can move."""
        steps, reference = self.model.steps, self.model.reference
        assert steps is not None
        assert reference is not None
        sign = 1.0 if label == 1 else -1.0
        still = self.model.contributions(person.cell[None])[0, :, label]
        found = []
        for place, (own, reached) in enumerate(zip(person.cell, person.way, strict=True)):
            bands = np.array([own, *(each for each in reached if each != own)])
            adds, phi = np.zeros(1), still[place : place + 1]
            if place in steps.points:
                points = steps.points[place]
                adds = sign * points[bands]
                phi = adds - sign * points[reference[:, place]].mean()
            sizes = [self._size(person, place, int(band)) for band in bands]
            shown = shown_as(phi, self.side)
            found.append(Choices(band=bands, value=shown, score=adds, size=np.array(sizes)))
        return found

    def _size(self, person: _Person, place: int, band: int) -> float:
        """How large the change to a band is, as a share of how far an attribute may move."""
        if band == person.cell[place]:
            return 0.0
        name = self.names[place]
        return self.moves.size_of({name: person.values[place]}, {name: person.way[place][band]})

    def size(self, person: _Person, cell: Codes) -> float:
        """How large the change to a cell is."""
        moved = [place for place, band in enumerate(cell) if band != person.cell[place]]
        sizes = {self.names[at]: self._size(person, at, int(cell[at])) for at in moved}
        return self.moves.size(sizes)

    def _smallest(self, person: _Person, broken: Seen) -> Breaking:
        """The smallest of the changes that break, the one of fewest attributes among equals."""
        found = []
        for cell, reasons in broken:
            moved = [place for place, band in enumerate(cell) if band != person.cell[place]]
            found.append(
                Breaking(
                    values={self.names[at]: person.way[at][int(cell[at])] for at in moved},
                    size=self.size(person, cell),
                    reasons=tuple(self.labels[place] for place in reasons),
                )
            )
        return min(found, key=lambda each: (each.size, len(each.values)))


def _check(
    bands: Sequence[Bands],
    k: int,
    side: str,
    moves: TableMoves,
    threshold: float,
    codes: Mapping[str, str],
    labels: Sequence[str],
) -> None:
    numbers = [each.name for each in bands if isinstance(each, NumberBands)]
    for name in codes:
        known = [each.name for each in bands]
        if name not in known:
            raise ValueError(f"codes name {name!r}, no attribute: {nearest(str(name), known)}")
    if not 1 <= k < len(labels):
        what = "codes" if codes else "attributes"
        raise ValueError(f"k must lie in 1..{len(labels) - 1} for {len(labels)} {what}, got {k}.")
    if side not in ("for", "against", "both"):
        raise ValueError(f"side must be 'for', 'against' or 'both', got {side!r}.")
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must be a probability between 0 and 1, got {threshold!r}.")
    words = [each.name for each in bands if not isinstance(each, NumberBands)]
    moves.check_names(numbers, words)


# --- what can be reached ------------------------------------------------------------------------

Way = list[dict[int, float | str]]
"""For each attribute its reachable bands, and in each the value that is nearest to the person's."""


def reachable(bands: Sequence[Bands], values: Sequence[Any], moves: TableMoves) -> Way:
    """What each attribute of a row can become."""
    return [
        _numbers(each, float(value), moves)
        if isinstance(each, NumberBands)
        else _words(each, value, moves)
        for each, value in zip(bands, values, strict=True)
    ]


def _words(bands: WordBands, value: str, moves: TableMoves) -> dict[int, float | str]:
    """The bands of words that an exchange leads to, each by one of its words."""
    own = int(bands.codes(np.array([value], dtype=object))[0])
    found: dict[int, float | str] = {own: value}
    for word in moves.steps(bands.name, value) or () if bands.name in moves.exchange else ():
        found.setdefault(int(bands.codes(np.array([word], dtype=object))[0]), word)
    return found


def _numbers(bands: NumberBands, value: float, moves: TableMoves) -> dict[int, float | str]:
    """The bands of a number that a move reaches, each by the value nearest to the person's own."""
    own = int(bands.codes(np.array([value]))[0])
    found: dict[int, float | str] = {own: value}
    if own > len(bands.edges) or not moves.width.get(bands.name, 0.0):
        return found  # missing, or a value that means something else than a number
    whole = (bands.whole or bands.name in moves.whole) and value == round(value)
    least, most = moves.span(bands.name, value)
    edges = (-math.inf, *bands.edges, math.inf)
    # Of many bands few are near: one more to both sides, since ends are rounded.
    first = bisect.bisect_right(bands.edges, least) - 1
    last = bisect.bisect_right(bands.edges, most) + 1
    for place in range(max(0, first), min(len(bands.edges), last) + 1):
        if place == own:
            continue
        low, high = edges[place], edges[place + 1]
        if place > own:  # up to its lower end, which belongs to it
            nearest_in = value + math.ceil(low - value) if whole else low
        else:  # down to just below its upper end, which does not
            nearest_in = (
                value - (math.floor(value - high) + 1) if whole else math.nextafter(high, -math.inf)
            )
        while nearest_in in bands.special:
            step = 1.0 if place > own else -1.0
            nearest_in = nearest_in + step if whole else math.nextafter(nearest_in, step * math.inf)
        if moves.reaches(bands.name, value, nearest_in) and low <= nearest_in < high:
            found[place] = nearest_in
    return found
