"""Proof behind bands, for any model: what can be reached is few cells, and all are looked at.

A model that sees bands only is constant on their cells. Within a few steps of a person most
attributes stay in one band and a few reach two: every cell that a move can reach is evaluated,
whatever the model is, and the verdict is exact.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from r2et.bands.apart import Choices, judged_apart
from r2et.bands.attribute import Bands, Codes, Floats, NumberBands
from r2et.bands.binner import StableBinner
from r2et.bands.contributions import Side, shapley_margins, shown_as
from r2et.bands.steps import StepScore
from r2et.core.naming import nearest

Verdict = Literal["certified", "broken", "undetermined"]

MOST_CELLS = 4096
"""How many cells of one person are looked at; of more nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Breaking:
    """The smallest change that gives other reasons: what a person would type, and the reasons then.

    `size` is the largest change of an attribute as a share of how far it may move.
    """

    values: dict[str, float]
    size: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BandVerdict:
    """What all admissible moves do to the reasons of one decision.

    `reasons` are those of the person, the first of all first; `core` those of them that stay in
    every cell in which the decision stays; `kept` is the smallest share of them that stays. Where
    there are too many cells nothing is known, and core and kept are None.
    """

    verdict: Verdict
    decision: Any
    reasons: tuple[str, ...]
    cells: int
    core: tuple[str, ...] | None = None
    kept: float | None = None
    breaking: Breaking | None = None


def band_verdicts(
    pipeline: Pipeline,
    X: pd.DataFrame,
    *,
    reference: pd.DataFrame,
    k: int = 3,
    side: Side = "against",
    width: Mapping[str, float] | None = None,
    threshold: float = 0.5,
    codes: Mapping[str, str] | None = None,
    most_cells: int = MOST_CELLS,
) -> list[BandVerdict]:
    """An exact verdict on the k reasons of each decision about the rows of X.

    `pipeline` is a fitted `StableBinner` and any classifier behind it. Reasons are the attributes
    whose Shapley contributions to the decided class, against the rows of `reference`, speak most
    for it, against it or both (`side`). A move changes each number of `width` by no more than
    that, whole numbers by whole ones; other attributes stay as they are. Of two classes the second
    is decided where its probability is `threshold` or more. A decision that a move changes needs
    other reasons: such cells do not count.

    `codes` name what people are told instead of an attribute, such as a reason code. Where several
    attributes have one code its contribution is their sum, and the reasons judged are codes.
    """
    binner, score = _parts(pipeline, threshold)
    against = binner.codes(reference)
    spoken = CellModel(
        score=score, contributions=lambda cells: shapley_margins(score, cells, against)
    )
    return cell_verdicts(
        binner,
        spoken,
        X,
        k=k,
        side=side,
        width=width,
        threshold=threshold,
        codes=codes,
        most_cells=most_cells,
    )


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


def cell_verdicts(
    binner: StableBinner,
    model: CellModel,
    X: Any,
    *,
    k: int = 3,
    side: Side = "against",
    width: Mapping[str, float] | None = None,
    threshold: float = 0.5,
    codes: Mapping[str, str] | None = None,
    most_cells: int = MOST_CELLS,
) -> list[BandVerdict]:
    """The verdicts of `band_verdicts` on what a model says of the cells of a binner."""
    bands = binner.attributes_
    widths = {name: max(each) for name, each in binner.widths_.items()} if width is None else width
    names = [each.name for each in bands]
    told_as = [(codes or {}).get(name, name) for name in names]
    labels = list(dict.fromkeys(told_as))
    _check(bands, k, side, widths, threshold, codes or {}, labels)
    inquiry = _Inquiry(
        model=model,
        names=names,
        labels=labels,
        members=np.array([[each == label for label in labels] for each in told_as], dtype=float),
        widths=widths,
        k=k,
        side=side,
    )
    values, cells = binner.values(X), binner.codes(X)
    people = [
        _Person(
            cell=cells[row],
            values=[own[row] for own in values],
            way=_reachable(bands, [own[row] for own in values], widths),
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
            if decided[start + at] == label
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
    widths: Mapping[str, float]
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
    ) -> BandVerdict:
        """The verdict on one decision, by what was seen in all cells or by what adds up."""
        if seen:
            found = self._enumerated(person, first, seen)
        elif self._adds_up(person):
            found = self._apart(person, label, first)
        else:
            found = {"verdict": "undetermined"}
        reasons = tuple(self.labels[place] for place in first)
        return BandVerdict(decision=decision, reasons=reasons, cells=person.count, **found)

    def _adds_up(self, person: _Person) -> bool:
        """Whether all that can move is a sum of its own, and told by its own name."""
        steps = self.model.steps
        if steps is None or steps.trees is not None or len(self.labels) < len(self.names):
            return False
        return all(len(each) == 1 or at in steps.points for at, each in enumerate(person.way))

    def _enumerated(self, person: _Person, first: tuple[int, ...], seen: Seen) -> dict[str, Any]:
        core = set(first).intersection(*(reasons for _, reasons in seen))
        broken = [each for each in seen if set(each[1]) != set(first)]
        return {
            "verdict": "broken" if broken else "certified",
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
        moved = abs(person.way[place][band] - float(person.values[place]))
        return moved / self.widths[self.names[place]]

    def _smallest(self, person: _Person, broken: Seen) -> Breaking:
        """The smallest of the changes that break, the one of fewest attributes among equals."""
        found = []
        for cell, reasons in broken:
            moved = [place for place, band in enumerate(cell) if band != person.cell[place]]
            found.append(
                Breaking(
                    values={self.names[at]: person.way[at][int(cell[at])] for at in moved},
                    size=max(self._size(person, at, int(cell[at])) for at in moved),
                    reasons=tuple(self.labels[place] for place in reasons),
                )
            )
        return min(found, key=lambda each: (each.size, len(each.values)))


def _parts(pipeline: Pipeline, threshold: float) -> tuple[StableBinner, Callable[[Codes], Floats]]:
    """The binner in front, and what the rest says of cells."""
    steps = getattr(pipeline, "steps", None)
    if not steps or not isinstance(steps[0][1], StableBinner):
        got = type(pipeline).__name__
        raise ValueError(
            f"a verdict by cells needs a pipeline that begins with a StableBinner, got {got}: put "
            "one in front of the model, and fit both."
        )
    binner, rest = steps[0][1], pipeline[1:]
    if not hasattr(rest, "predict_proba") and threshold != 0.5:
        raise ValueError(
            f"a threshold of {threshold} is one of probabilities, which the model does not give: "
            "leave it at .5, or give a model with predict_proba."
        )
    shift = math.log(threshold / (1 - threshold)) if 0 < threshold < 1 else 0.0
    classes = len(binner.classes_)

    def score(cells: Codes) -> Floats:
        rows = binner.encoded(cells)
        if hasattr(rest, "feature_names_in_"):  # fitted on a frame
            rows = pd.DataFrame(rows, columns=binner.get_feature_names_out())
        found = _log_scores(rest, rows)
        if found.shape not in ((len(cells),), (len(cells), classes)):
            raise ValueError(
                f"a model of {classes} classes must score each of them, got {found.shape[1:]} "
                "scores a row: let it say one for each class."
            )
        if found.ndim == 1:
            # Half of a score for each side: the margin of a class is then its log-odds.
            half = (found - shift) / 2
            found = np.stack([-half, half], 1)
        return found

    return binner, score


def _log_scores(model: Any, rows: Any) -> Floats:
    """Log-odds of two classes, (N,), or a score for each of several, (N, C).

    Those that the model gives, if they say what its probabilities do: other margins, such as those
    of boosted votes, would put a threshold elsewhere.
    """
    margins = None
    if hasattr(model, "decision_function"):
        margins = np.asarray(model.decision_function(rows), dtype=np.float64)
    if not hasattr(model, "predict_proba"):
        assert margins is not None
        return margins
    shares = np.asarray(model.predict_proba(rows), dtype=np.float64)
    if margins is not None and margins.ndim == 1:
        if np.allclose(1 / (1 + np.exp(-np.clip(margins, -700, 700))), shares[:, 1], atol=1e-9):
            return margins
    elif margins is not None and margins.shape == shares.shape:
        raised = np.exp(margins - margins.max(1, keepdims=True))
        if np.allclose(raised / raised.sum(1, keepdims=True), shares, atol=1e-9):
            return margins
    logs = np.log(np.clip(shares, 1e-12, None))
    found: Floats = logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
    return found


def _check(
    bands: Sequence[Bands],
    k: int,
    side: str,
    widths: Mapping[str, float],
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
    for name, width in widths.items():
        if name not in numbers:
            raise ValueError(f"width names {name!r}, no number: {nearest(str(name), numbers)}")
        if not 0 <= width < math.inf:
            raise ValueError(f"the width of {name!r} must be a number >= 0, got {width!r}.")


# --- what can be reached ------------------------------------------------------------------------

Way = list[dict[int, float]]
"""For each attribute its reachable bands, and in each the value that is nearest to the person's."""


def _reachable(bands: Sequence[Bands], values: Sequence[Any], widths: Mapping[str, float]) -> Way:
    return [
        _moves(each, float(value), float(widths[each.name]))
        if isinstance(each, NumberBands) and each.name in widths
        else {int(each.codes(np.array([value]))[0]): math.nan}
        for each, value in zip(bands, values, strict=True)
    ]


def _moves(bands: NumberBands, value: float, width: float) -> dict[int, float]:
    """The bands of a number that a move reaches, each by the value nearest to the person's own."""
    own = int(bands.codes(np.array([value]))[0])
    if own > len(bands.edges):  # missing, or a value that means something else than a number
        return {own: value}
    found = {own: value}
    whole = bands.whole and value == round(value)
    for place, (low, high) in enumerate(bands.ranges):
        if place == own:
            continue
        if place > own:  # up to its lower end, which belongs to it
            nearest_in = value + math.ceil(low - value) if whole else low
        else:  # down to just below its upper end, which does not
            nearest_in = (
                value - (math.floor(value - high) + 1) if whole else math.nextafter(high, -math.inf)
            )
        while nearest_in in bands.special:
            step = 1.0 if place > own else -1.0
            nearest_in = nearest_in + step if whole else math.nextafter(nearest_in, step * math.inf)
        # Within the width, or where adding the width leads to in the same arithmetic.
        near = abs(nearest_in - value) <= width or value - width <= nearest_in <= value + width
        if near and low <= nearest_in < high:
            found[place] = nearest_in
    return found


# --- reasons of cells ---------------------------------------------------------------------------


def decided_by(scores: Floats) -> Codes:
    """The class of the largest score, of two equal ones the second: at a threshold, it is met."""
    if scores.shape[1] == 2:
        return np.asarray(scores[:, 1] >= scores[:, 0], dtype=np.intp)
    return np.asarray(scores.argmax(1), dtype=np.intp)
