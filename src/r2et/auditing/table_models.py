"""Models that people already have, as audits of reasons take them: trees, sums, and any other.

Trees are judged exactly by their cells, sums by what each attribute can add at most. Of any other
model all is known only where every move can be looked at.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logit

from r2et.actionable.tables import SLACK, TableMoves
from r2et.auditing.table_form import TableForm
from r2et.bands.contributions import ORDERS, coalitions_of, shapley_margins
from r2et.bands.pipelines import class_scores
from r2et.core.arrays import Codes, Floats
from r2et.core.coalitions import MOST_EXACT
from r2et.core.reasons import Question, ReasonVerdict, shown_as
from r2et.evaluation.reasons import Proof
from r2et.trees.cells import CellTrees
from r2et.trees.leaves import Against
from r2et.trees.models import LinearSum
from r2et.trees.search import TreeReasons

SMALLEST = 1e-300
"""A margin that is none but for its sign."""
NEAR = 1e-9  # gaps smaller than this share of the largest contribution are not taken for proved
GRID = 17  # places of each of two numbers between which a move is looked for that breaks
ROUNDED = 1e-12
"""Contributions that are no larger than this share of the largest are rounding."""
EVALUATED = 6000
"""Mixed rows that a model is asked about for the contributions of one row, if they must be many."""


# --- trees --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeTable:
    """Trees over the cells of a table, told against `reference`: its verdicts are exact."""

    trees: CellTrees
    reference: pd.DataFrame
    classes: Sequence[str]
    threshold: float = 0.5

    @property
    def names(self) -> Sequence[str]:
        """The attributes."""
        return self.trees.names

    @cached_property
    def asked(self) -> TreeReasons:
        """What gives contributions and verdicts."""
        against: Against = self.trees.table.against(self.trees.cells(self.reference))
        return TreeReasons(trees=self.trees, against=against, cut=self.cut)

    @property
    def cut(self) -> float:
        """The score from which on the second of two classes is decided."""
        likely = self.trees.scale == "probability"
        return self.threshold if likely else math.log(self.threshold / (1 - self.threshold))

    def scores(self, rows: pd.DataFrame) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        cells = self.trees.cells(rows)
        found = self.trees.scores(cells)
        if found.shape[1] > 1:
            if self.trees.scale == "probability":
                return np.log(np.clip(found, SMALLEST, None))
            return found
        half = (_odds(found[:, 0], self.trees.scale) - math.log(_ratio(self.threshold))) / 2
        # What is decided is decided by the score itself: logarithms are rounded.
        decided = found[:, 0] >= self.cut
        half = np.where(decided, np.maximum(half, 0.0), np.minimum(half, -SMALLEST))
        return np.stack([-half, half], 1)

    def contributions(self, rows: pd.DataFrame) -> Floats:
        """What each attribute adds to the score of each class: (N, m, C)."""
        return self.asked.contributions(self.trees.cells(rows))

    def verdicts(
        self, people: pd.DataFrame, moves: TableMoves, question: Question
    ) -> list[ReasonVerdict]:
        """The verdict on each decision, by what trees can say within reach."""
        return self.asked.verdicts(people, moves, question)


def _odds(scores: Floats, scale: str) -> Floats:
    """Log-odds of scores of one class, finite ones also of probabilities 0 and 1."""
    if scale != "probability":
        return scores
    found: Floats = logit(np.clip(scores, 1e-15, 1 - 1e-15))
    return found


def _ratio(threshold: float) -> float:
    return threshold / (1 - threshold)


# --- sums ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class SumTable:
    """A linear model over the columns of a table: contributions and proofs in closed form."""

    model: LinearSum
    form: TableForm
    reference: pd.DataFrame
    classes: Sequence[str]
    threshold: float = 0.5

    @property
    def names(self) -> Sequence[str]:
        """The attributes."""
        return self.model.parts.names

    @cached_property
    def usual(self) -> Floats:
        """What each attribute adds in the reference on average: (m, outputs)."""
        found: Floats = self._pieces(self.reference).mean(0)
        return found

    def _pieces(self, rows: pd.DataFrame) -> Floats:
        return self.model.pieces(self.form.typed(rows)[list(self.names)])

    def scores(self, rows: pd.DataFrame) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        found: Floats = self._pieces(rows).sum(1) + self.model.linear.constant
        if found.shape[1] > 1:
            return found
        half = (found[:, 0] - math.log(_ratio(self.threshold))) / 2
        return np.stack([-half, half], 1)

    def contributions(self, rows: pd.DataFrame) -> Floats:
        """What each attribute adds to the score of each class: (N, m, C)."""
        return self._by_class(self._pieces(rows) - self.usual)

    def _by_class(self, added: Floats) -> Floats:
        """What is added to one score to that of each of two classes, of several to its excess."""
        if added.shape[-1] == 1:
            return np.concatenate([-added, added], -1)
        # Of scores that only differences matter of, what all classes share says nothing.
        found: Floats = added - added.mean(-1, keepdims=True)
        return found

    def proved(
        self, people: pd.DataFrame, moves: TableMoves, question: Question
    ) -> list[Proof | None]:
        """What is proved of each decision; None where a number that moves has no known range."""
        places = {name: at for at, name in enumerate(self.names)}
        if question.codes or any(not self.model.monotone(places[each]) for each in moves.width):
            return [None] * len(people)
        records = people.to_dict("records")
        return [
            self._proof(
                people[at : at + 1], {str(name): own for name, own in row.items()}, moves, question
            )
            for at, row in enumerate(records)
        ]

    def _proof(
        self, person: pd.DataFrame, row: Mapping[str, Any], moves: TableMoves, question: Question
    ) -> Proof:
        scores = self.scores(person)
        label = int(scores[0, 1] >= scores[0, 0]) if scores.shape[1] == 2 else int(scores.argmax())
        reach = [self._reached(person, row, name, moves, label) for name in self.names]
        own = self.contributions(person)[0, :, label]
        shown = shown_as(own, question.side)
        top = np.argsort(-shown, kind="stable")[: question.k].tolist()
        others = [place for place in range(len(own)) if place not in top]
        low = np.array([phi.min() for _, phi in reach])
        high = np.array([phi.max() for _, phi in reach])
        least, most = _shown_range(low, high, question.side)
        tolerance = NEAR * max(1.0, float(np.abs([low, high]).max()))
        # A reason that stays above all others stays one, and one that all others stay above not.
        stays = [place for place in top if least[place] > most[others].max() + tolerance]
        lost = sum(float(most[place]) >= float(least[top].min()) - tolerance for place in others)
        kept = max(len(stays), question.k - lost)
        hint = None
        if kept < question.k:
            hint = self._hint(person, row, reach, label, (top, others), question)
        return Proof(core=tuple(stays if kept < question.k else top), kept=kept, hint=hint)

    def _reached(
        self,
        person: pd.DataFrame,
        row: Mapping[str, Any],
        name: str,
        moves: TableMoves,
        label: int,
    ) -> tuple[list[Any], Floats]:
        """Values of an attribute between whose contributions all others lie, and these."""
        values: list[Any] = [row[name]]
        if name in moves.width and isinstance(row[name], float | int) and math.isfinite(row[name]):
            low, high = moves.span(name, float(row[name]))
            if name in moves.whole and row[name] == round(row[name]):
                low, high = math.ceil(low), math.floor(high)
                values += sorted({float(round(v)) for v in np.linspace(low, high, GRID)})
            else:
                values += np.linspace(low, high, GRID).tolist()
        elif name in moves.exchange and moves.exchange[name] <= 1 + SLACK:
            values += [word for word in moves.words[name] if word != row[name]]
        if len(values) == 1:
            values = [row[name]]
        rows = person.iloc[np.zeros(len(values), dtype=np.intp)].reset_index(drop=True)
        rows[name] = values
        phi = self.contributions(rows)[:, list(self.names).index(name), label]
        return values, phi

    def _hint(
        self,
        person: pd.DataFrame,
        row: Mapping[str, Any],
        reach: Sequence[tuple[list[Any], Floats]],
        label: int,
        places: tuple[Sequence[int], Sequence[int]],
        question: Question,
    ) -> dict[str, Any] | None:
        """Values of all attributes that break the reasons and keep the decision, if some do."""
        score = self.scores(person)[0]
        margin = 2 * float(score[label]) if len(score) == 2 else math.inf
        own = [float(phi[0]) for _, phi in reach]
        best = [int(phi.argmax()) for _, phi in reach]  # what keeps the decision
        slack = margin + sum(float(phi.max()) - o for (_, phi), o in zip(reach, own, strict=True))
        found: tuple[float, int, int, int, int] | None = None
        for i in places[0]:
            for j in places[1]:
                first, second = reach[i][1], reach[j][1]
                a, b = shown_as(first, question.side), shown_as(second, question.side)
                gap = a[:, None] - b[None, :]
                spent = (first.max() - first)[:, None] + (second.max() - second)[None, :]
                gap = np.where(spent <= slack, gap, np.inf)
                at = np.unravel_index(int(gap.argmin()), gap.shape)
                if found is None or gap[at] < found[0]:
                    found = (float(gap[at]), i, j, int(at[0]), int(at[1]))
        if found is None or found[0] > 0:
            return None
        _, i, j, at_i, at_j = found
        chosen = {**dict(enumerate(best)), i: at_i, j: at_j}
        return {
            name: reach[place][0][chosen[place]]
            for place, name in enumerate(self.names)
            if len(reach[place][0]) > 1
        }


def _shown_range(low: Floats, high: Floats, side: str) -> tuple[Floats, Floats]:
    """Least and most that contributions between two bounds are a reason."""
    if side == "for":
        return low, high
    if side == "against":
        return -high, -low
    inside = (low <= 0) & (high >= 0)
    ends = np.abs([low, high])
    return np.where(inside, 0.0, ends.min(0)), ends.max(0)


# --- any other ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedTable:
    """Any model with probabilities: it is asked about rows, and about mixtures with a reference.

    `chances` gives a score for each class of rows as the model takes them.
    """

    chances: Callable[[Any], Floats]
    form: TableForm
    reference: pd.DataFrame
    classes: Sequence[str]
    most_moves: int = 2000

    @property
    def names(self) -> Sequence[str]:
        """The attributes."""
        return list(self.form.kinds)

    def scores(self, rows: pd.DataFrame) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        return self.chances(self.form.given(rows))

    def contributions(self, rows: pd.DataFrame) -> Floats:
        """What each attribute adds to the margin of each class: (N, m, C)."""
        both = pd.concat([rows[list(self.names)], self.reference], ignore_index=True)
        codes, values = [], []
        for name in self.names:
            numbers, known = pd.factorize(both[name], use_na_sentinel=False)
            codes.append(numbers)
            values.append(known)
        cells = np.stack(codes, 1).astype(np.intp)

        def score(mixed: Codes) -> Floats:
            told = {
                name: own[mixed[:, at]]
                for at, (name, own) in enumerate(zip(self.names, values, strict=True))
            }
            return self.chances(self.form.given(pd.DataFrame(told)))

        found = shapley_margins(score, cells[: len(rows)], cells[len(rows) :])
        # What adds nothing must not be a reason by the way that sums are rounded.
        return np.where(np.abs(found) > ROUNDED * np.abs(found).max(1, keepdims=True), found, 0.0)


def asked_scores(model: Any, threshold: float, classes: int) -> Callable[[Any], Floats]:
    """How a model's own probabilities are asked for."""
    return lambda rows: class_scores(model, rows, threshold, classes)


def reference_worth(attributes: int) -> int:
    """Rows of a reference that the contributions of one row are worth asking about."""
    return max(20, EVALUATED // len(coalitions_of(attributes).members))


def orders_said(attributes: int) -> str | None:
    """How contributions of many attributes are computed where a model is only asked."""
    if attributes <= MOST_EXACT:
        return None
    return (
        f"Of {attributes} attributes not all mixtures can be looked at: contributions are means "
        f"over {2 * ORDERS} orders of the attributes, always the same; verdicts are about these "
        "means."
    )
