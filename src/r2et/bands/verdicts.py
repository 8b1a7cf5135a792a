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

from r2et.bands.attribute import Bands, Codes, Floats, NumberBands
from r2et.bands.binner import StableBinner
from r2et.core.coalitions import MOST_EXACT, every_coalition
from r2et.core.naming import nearest

Verdict = Literal["certified", "broken", "undetermined"]
Side = Literal["for", "against", "both"]
Score = Callable[[Codes], Floats]
"""Cells, (N, m) numbers of bands, to a score for each class, (N, C)."""

MOST_CELLS = 4096
"""How many cells of one person are looked at; of more nothing is said."""
ROWS_AT_ONCE = 200_000


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
    bands = binner.attributes_
    widths = {name: max(each) for name, each in binner.widths_.items()} if width is None else width
    names = [each.name for each in bands]
    told_as = [(codes or {}).get(name, name) for name in names]
    labels = list(dict.fromkeys(told_as))
    _check(bands, k, side, widths, threshold, codes or {}, labels)
    told = _Reasons(
        score=score,
        members=np.array([[each == label for label in labels] for each in told_as], dtype=float),
        reference=binner.codes(reference),
        k=k,
        side=side,
    )
    values, cells = binner.values(X), binner.codes(X)
    ways = [_reachable(bands, [own[row] for own in values], widths) for row in range(len(cells))]
    counts = [math.prod(len(each) for each in way) for way in ways]
    # All cells of all decisions at once: many are shared, and each is looked at once.
    wanted = [
        np.array(list(product(*(list(each) for each in way))), dtype=np.intp)
        if count <= most_cells
        else cells[row : row + 1]
        for row, (way, count) in enumerate(zip(ways, counts, strict=True))
    ]
    decided, ranked = told.of(np.concatenate([cells, *wanted]))
    found, start = [], len(cells)
    for row, own in enumerate(wanted):
        here = slice(start, start + len(own))
        start += len(own)
        reasons = tuple(labels[place] for place in ranked(row, int(decided[row])))
        decision = binner.classes_[decided[row]]
        if counts[row] > most_cells:
            found.append(
                BandVerdict(
                    verdict="undetermined", decision=decision, reasons=reasons, cells=counts[row]
                )
            )
            continue
        kept = [at for at in range(here.start, here.stop) if decided[at] == decided[row]]
        sets = {at: ranked(at, int(decided[row])) for at in kept}
        first = set(ranked(row, int(decided[row])))
        broken = [at for at in kept if set(sets[at]) != first]
        core = first.intersection(*(sets[at] for at in kept))
        found.append(
            BandVerdict(
                verdict="broken" if broken else "certified",
                decision=decision,
                reasons=reasons,
                cells=len(own),
                core=tuple(each for each in reasons if labels.index(each) in core),
                kept=min((len(first & set(sets[at])) for at in kept), default=k) / k,
                breaking=_smallest(
                    [
                        (ways[row], own[at - here.start], [labels[each] for each in sets[at]])
                        for at in broken
                    ],
                    names,
                    [own[row] for own in values],
                    widths,
                ),
            )
        )
    return found


def _parts(pipeline: Pipeline, threshold: float) -> tuple[StableBinner, Score]:
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
    if len(bands) > MOST_EXACT:
        raise ValueError(
            f"contributions are exact up to {MOST_EXACT} attributes, got {len(bands)}: leave out "
            "those that do not matter, or take several as one."
        )
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


def _smallest(
    broken: Sequence[tuple[Way, Codes, Sequence[str]]],
    names: Sequence[str],
    values: Sequence[Any],
    widths: Mapping[str, float],
) -> Breaking | None:
    """The smallest of the changes that break, the one of fewest attributes among equals."""
    best: Breaking | None = None
    for way, cell, reasons in broken:
        moved = {
            name: reached[int(code)]
            for name, reached, code, value in zip(names, way, cell, values, strict=True)
            if name in widths and reached[int(code)] != value and not math.isnan(reached[int(code)])
        }
        size = max(
            abs(at - float(values[names.index(name)])) / widths[name] for name, at in moved.items()
        )
        if best is None or (size, len(moved)) < (best.size, len(best.values)):
            best = Breaking(values=moved, size=size, reasons=tuple(reasons))
    return best


# --- reasons of cells ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reasons:
    """The reasons of cells, by Shapley contributions against the cells of a reference.

    `members`, (m, n), is 1 where an attribute counts for a reason.
    """

    score: Score
    members: Floats
    reference: Codes
    k: int
    side: Side

    def of(self, cells: Codes) -> tuple[Codes, Callable[[int, int], tuple[int, ...]]]:
        """The class of each cell, and the top k of (cell, class): attributes, the first first."""
        different, place = np.unique(cells, axis=0, return_inverse=True)
        place = place.ravel()
        # The last of equals: a probability at the threshold decides for the second of two classes.
        said = self.score(different)
        decided = said.shape[1] - 1 - said[:, ::-1].argmax(1)
        known: dict[tuple[int, int], tuple[int, ...]] = {}
        margins = self._coalition_margins(different)
        weights = every_coalition(len(self.members)).weights.numpy() @ self.members

        def ranked(cell: int, label: int) -> tuple[int, ...]:
            key = int(place[cell]), label
            if key not in known:
                phi = margins[key[0], :, label] @ weights
                shown = {"for": phi, "against": -phi, "both": np.abs(phi)}[self.side]
                known[key] = tuple(np.argsort(-shown, kind="stable")[: self.k].tolist())
            return known[key]

        return decided[place], ranked

    def _coalition_margins(self, cells: Codes) -> Floats:
        """The mean margin of each class where each set of attributes is a cell's own: (N, K, C)."""
        attributes = len(self.members)
        members = every_coalition(attributes).members.numpy()
        parts = []
        at_once = max(1, ROWS_AT_ONCE // (len(members) * len(self.reference)))
        for first in range(0, len(cells), at_once):
            some = cells[first : first + at_once]
            mixed = np.where(
                members[None, :, None, :], some[:, None, None, :], self.reference[None, None]
            )
            rows, index = np.unique(mixed.reshape(-1, attributes), axis=0, return_inverse=True)
            found = _margins(self.score(rows))[index.ravel()]
            parts.append(found.reshape(*mixed.shape[:3], -1).mean(2))
        return np.concatenate(parts)


def _margins(scores: Floats) -> Floats:
    """The score of each class less the largest of the others: like them."""
    others = [np.delete(scores, label, axis=1).max(1) for label in range(scores.shape[1])]
    margins: Floats = scores - np.stack(others, 1)
    return margins
