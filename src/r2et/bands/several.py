"""Scores of several classes: points of bands for each, or trees that look at all bands at once.

Points are the mean of two: of what a teacher's curves say of a band, and of what logistic
regression makes of bands. The former do not follow chance, the latter correct what bands lose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from sklearn.linear_model import LogisticRegression

from r2et.bands.attribute import Bands, NumberBands, WordBands, one_hot, ones_at
from r2et.bands.boosting import Ordered, boosted, given
from r2et.bands.edges import Curve, stable_edges
from r2et.bands.guard import (
    GAIN,
    LADDER,
    LEAST_SHARE,
    TREES_AHEAD,
    Attempt,
    TeacherName,
    least_auc,
    with_kept,
)
from r2et.bands.scores import CardScores, Grown, Trees, TreeScores
from r2et.bands.steps import (
    START,
    Lines,
    Rows,
    Says,
    curve_of,
    free_trees,
    least_people,
    shown,
)
from r2et.bands.teacher import mean_auc
from r2et.core.arrays import Floats

SKIPPED = (0.3,)
"""Shares of the weight of stability that are not tried where trees are needed: these take long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """A model of several classes in which attributes stay apart, and what each of them adds.

    `curves` are those of numbers that can move, `lacking` what a value that is no number adds,
    (C,), and `points` what each band of all others does, (bands, C).
    """

    rows: Rows
    model: Says
    constant: Floats
    curves: Mapping[int, Curve]
    lacking: Mapping[int, Floats]
    points: Mapping[int, Floats]

    @classmethod
    def of(cls, rows: Rows, name: TeacherName, seed: int) -> "Told":
        """Logistic regression, or boosted trees without interactions, taken apart."""
        x = shown(rows)
        model: Says
        if name == "lines":
            lines = Lines.of(rows)
            learnt = LogisticRegression(max_iter=500).fit(
                lines.features(x), rows.y, given(rows.weights)
            )
            model = replace(lines, slopes=learnt.coef_.T, constant=learnt.intercept_)
        else:
            apart = [{place} for place in range(len(rows.bands))]
            model = boosted(x, rows.y, _words(rows.bands), apart, seed, rows.weights)
        usual = np.nan_to_num(x[0])
        constant = model.decision_function(usual[None])[0]

        def added(place: int, values: Floats) -> Floats:
            changed = np.repeat(usual[None], len(values), 0)
            changed[:, place] = values
            found: Floats = model.decision_function(changed) - constant
            return found

        return cls(
            rows=rows,
            model=model,
            constant=constant,
            curves={place: curve_of(rows, place, partial(added, place)) for place in rows.values},
            lacking={place: added(place, np.array([np.nan]))[0] for place in rows.values},
            points={
                place: added(place, np.arange(rows.bands[place].count, dtype=np.float64))
                for place in rows.still
            },
        )


def card_of(told: Told, penalty: float) -> tuple[list[Bands], CardScores]:
    """Bands whose edges cost `penalty`, and points for them."""
    rows, bands, followed = told.rows, list(told.rows.bands), []
    for place, known in enumerate(rows.bands):
        if place in told.points:
            followed.append(told.points[place])
            continue
        assert isinstance(known, NumberBands)
        curve = told.curves[place]
        edges = stable_edges(
            curve,
            rows.widths[place],
            penalty,
            least_people=least_people(rows.weights),
            given=known.edges,
        )
        bands[place] = replace(known, edges=tuple(edges.tolist()))
        others = known.count - len(known.edges) - 1
        between = band_means(curve, edges)
        followed.append(np.concatenate([between, np.repeat(told.lacking[place][None], others, 0)]))
    ones, columns = one_hot(rows.within(bands), bands)
    model = LogisticRegression(max_iter=500).fit(
        ones_at(ones, columns), rows.y, given(rows.weights)
    )
    points = (np.concatenate(followed).T + model.coef_) / 2
    constant = (told.constant + model.intercept_) / 2
    return bands, CardScores(
        bands=tuple(bands),
        points=points - points.mean(0),  # what all classes get decides nothing
        constant=constant - constant.mean(),
    )


def band_means(curve: Curve, edges: Floats) -> Floats:
    """The mean of a curve between edges, where nobody stands that of the nearest: (bands, C)."""
    band = np.searchsorted(edges, curve.values, side="right")
    count = len(edges) + 1
    people = np.bincount(band, curve.people, count)
    known = np.flatnonzero(people > 0)
    sums = [np.bincount(band, curve.people * own, count) for own in curve.score.T]
    means = [np.interp(np.arange(count), known, own[known] / people[known]) for own in sums]
    return np.stack(means, 1)


def trees_of(rows: Rows, bands: Sequence[Bands], classes: int, seed: int) -> TreeScores:
    """Trees of all classes that look at all attributes of these bands at once."""
    model, m = _looking(rows, bands, seed), len(bands)
    shown = tuple(np.arange(each.count, dtype=np.float64) for each in bands)
    found = [
        Trees.of(range(m), Grown(model=model, shown=shown, label=label)) for label in range(classes)
    ]
    return TreeScores(trees=tuple(found))


def _looking(rows: Rows, bands: Sequence[Bands], seed: int) -> Ordered:
    cells, everything = rows.within(bands).astype(np.float64), [set(range(len(bands)))]
    return boosted(cells, rows.y, _words(bands), everything, seed, rows.weights)


def _words(bands: Sequence[Bands]) -> list[bool]:
    return [isinstance(each, WordBands) for each in bands]


def tried(
    parts: Sequence[tuple[Rows, Rows]],
    *,
    weight: float,
    auc_loss: float,
    interactions: bool,
    seed: int,
) -> list[Attempt]:
    """What came of each attempt, the mean over parts of rows to learn from and to judge by.

    Edges come cheaper, one attempt after another, until accuracy is kept. Trees that look at
    everything are asked only where points lose it.
    """
    judges = [own for _, own in parts]

    def mean(scores: Sequence[Floats]) -> float:
        judged = zip(scores, judges, strict=True)
        return float(np.mean([mean_auc(each, own.y, given(own.weights)) for each, own in judged]))

    def taught_by(name: TeacherName) -> tuple[list[Told], float]:
        told = [Told.of(learnt, name, seed) for learnt, _ in parts]
        said = zip(told, judges, strict=True)
        return told, mean([each.model.decision_function(shown(own)) for each, own in said])

    free = [free_trees(learnt, seed).decision_function(shown(own)) for learnt, own in parts]
    trees_auc = mean(free)
    best: TeacherName = "lines"
    taught, lines_auc = taught_by("lines")
    if lines_auc < trees_auc - TREES_AHEAD:  # another teacher may keep more
        others, others_auc = taught_by("trees")
        if others_auc > lines_auc:
            best, taught = "trees", others
    attempts: list[Attempt] = []
    for share in LADDER:
        if share in SKIPPED and attempts[0].interactions:
            continue
        cards = [card_of(each, penalty_at(share)) for each in taught]
        auc = mean(
            [card(own.within(bands)) for (bands, card), own in zip(cards, judges, strict=True)]
        )
        attempt = Attempt(
            teacher=best,
            weight=share * weight,
            interactions=False,
            auc=auc,
            trees_auc=trees_auc,
            lines_auc=lines_auc,
            broken=None,
            overlap=None,
            kept=False,
        )
        if interactions and auc < least_auc(attempt, auc_loss):
            looking = [
                _looking(learnt, bands, seed).decision_function(own.within(bands).astype(float))
                for (bands, _), (learnt, own) in zip(cards, parts, strict=True)
            ]
            if (together := mean(looking)) >= auc + GAIN:
                attempt = replace(attempt, interactions=True, auc=together)
        attempts.append(attempt)
        if attempt.auc >= least_auc(attempt, auc_loss) or not weight:
            break
    return with_kept(attempts, auc_loss)


def penalty_at(share: float) -> float:
    """The penalty of edges where a share of the weight of stability is left."""
    return START * max(share, LEAST_SHARE)
