"""Boosted trees whose reasons small changes leave alone, at the accuracy they had.

What breaks the reasons of trees is where their thresholds lie relative to where people stand. The
contributions of a model say what each number does; few edges keep that and lie where few people
are. Behind them the same estimator is fitted again (grades "bands" and "additive"), or, where a
model may not be changed, its reasons are those of the band's median person (grade "reading").
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from itertools import islice, product
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline

from r2et.actionable.tables import usual_width
from r2et.bands.attribute import NumberBands
from r2et.bands.edges import Curve, counted, edges_by_penalty, thinned
from r2et.bands.table import spread_rows
from r2et.bands.values import BandValues
from r2et.core.arrays import Codes, Floats, Mask
from r2et.core.naming import nearest
from r2et.core.reasons import Side, shown_as
from r2et.metrics.individuality import overlap
from r2et.trees.cells import CellTrees
from r2et.trees.columns import over_cells
from r2et.trees.pipelines import taken_apart
from r2et.trees.readers import read_trees
from r2et.trees.reading import Reading, Told, cells_of

Grade = Literal["bands", "additive", "reading"]
GRADES: tuple[Grade, ...] = ("bands", "additive", "reading")

PENALTIES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003)
"""Of people near an edge, against what the score loses: each is tried."""
PEOPLE, MOVES = 300, 40
"""Decisions of each held part that are moved, and how often each by each width."""
DRAWS, REFERENCE = 3, 20
"""References that held decisions are told against, and rows of each."""
TAUGHT, AGAINST = 3000, 100
"""Rows whose contributions make the curves of a model, and rows these are told against."""
FEW, AGAIN = 2500, 4
"""Up to so many rows, curves are the mean over so many models more, of rows drawn again."""
LEAST_SHARE, LEAST_ROWS = 0.005, 20  # of people in a band
LEAST_LEARNT = 250  # rows that a penalty can be chosen on
KINDS = 500  # rows that show what kinds of values each column has
LEAST_OWN = 0.75
"""The share of people's own reasons that a reading keeps."""
NEAR_LIMIT = 0.25
"""What using up a limit on AUC or O counts beside all that was broken."""
STOPPED_BY, PATIENCE = 0.15, 50
"""Share of rows held to stop by, and rounds without a gain where a model does not tell them."""


# --- what comes back ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model on held rows: AUC, O within predicted class, and the share broken by each width.

    Of a reading, `difference` is the mean distance of the band's score from the person's own, in
    log-odds, and `own` the share of the person's own top k that is among the band's.
    """

    auc: float
    overlap: float
    broken: tuple[float, ...]
    difference: float | None = None
    own: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one penalty did on held rows, and whether it kept to the limits.

    `widest` says that people near an edge were those within the largest width, else it is the mean
    over all of them. Of trials within the limits the one of the smallest `worth` is chosen: the
    share of what was broken that still is, and a little for what it takes of the limits.
    """

    penalty: float
    widest: bool
    edges: int
    measured: Measured
    within: bool
    worth: float = math.inf
    chosen: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Stabilized:
    """A model whose reasons are more stable, and what that cost on held rows.

    `model` is a fitted Pipeline of `BandValues` and the estimator, or a `Reading`. `widths` are the
    moves, column by column; `edges` where the bands of each column begin. `held` says whether some
    penalty kept to the limits; if none did, the one that came nearest was taken.
    """

    model: Any
    grade: Grade
    k: int
    side: Side
    widths: tuple[dict[str, float], ...]
    edges: dict[str, tuple[float, ...]]
    before: Measured
    after: Measured
    tried: tuple[Tried, ...]

    @property
    def chosen(self) -> Tried:
        """The trial that was chosen; of several grades the one of smallest `worth` is best."""
        return next(each for each in self.tried if each.chosen)

    @property
    def held(self) -> bool:
        """Whether AUC and O kept to the limits on held rows."""
        return self.chosen.within

    def __str__(self) -> str:
        """What was done, in a few sentences."""
        count = sum(len(each) for each in self.edges.values())
        done = {
            "bands": "The same estimator, fitted behind bands",
            "additive": "The same estimator, fitted behind bands, each moving number by itself",
            "reading": "The model as it was, with the reasons of the band's median person",
        }[self.grade]
        lines = [
            f"{done}: {count} edges in {len(self.edges)} numbers.",
            f"On rows held out, of all decisions {_shares(self.before.broken)} % had other reasons "
            f"after a small move, now {_shares(self.after.broken)} %.",
            f"AUC {self.before.auc:.4f}, now {self.after.auc:.4f}; two people of one predicted "
            f"class shared {self.before.overlap:.0%} of their {self.k} reasons, now "
            f"{self.after.overlap:.0%}.",
        ]
        if self.after.difference is not None and self.after.own is not None:
            lines.append(
                f"The band's score differs from the person's own by {self.after.difference:.2f} "
                f"log-odds on average, and {self.after.own:.0%} of the person's own reasons are "
                "among the band's."
            )
        if not self.held:
            lines.append("No penalty kept to the limits on AUC and O: this one came nearest.")
        return "\n".join(lines)


def _shares(broken: Sequence[float]) -> str:
    return " / ".join(f"{100 * each:.0f}" for each in broken)


# --- what trees say -----------------------------------------------------------------------------


def explained(model: Any, rows: pd.DataFrame) -> CellTrees:
    """The trees of a fitted model of two classes over the columns of these rows."""
    parts = taken_apart(model, rows)
    ensemble = None if parts is None else read_trees(parts.estimator)
    if parts is None or ensemble is None:
        raise ValueError(
            f"stabilize needs trees that can be read, column by column, got a "
            f"{type(model).__name__}: give boosted trees of scikit-learn, XGBoost or LightGBM, or "
            "a pipeline that ends with them and mixes no columns."
        )
    if ensemble.scale != "log-odds" or len(ensemble.constant) != 1:
        raise ValueError(
            f"stabilize takes boosted trees of two classes, got a {type(parts.estimator).__name__} "
            f"of {len(ensemble.classes)} classes that adds up a {ensemble.scale}."
        )
    return over_cells(ensemble, parts, _kinds(rows))


def behind(model: Pipeline, rows: pd.DataFrame) -> Told:
    """What a fitted pipeline of `BandValues` and trees says of rows."""
    front = model.steps[0][1]
    return Told(trees=explained(model.steps[-1][1], front.transform(rows)), front=front)


def _kinds(rows: pd.DataFrame) -> pd.DataFrame:
    """Some rows that hold every word that is there."""
    kept = np.arange(len(rows)) < KINDS
    for name in rows:
        if not pd.api.types.is_numeric_dtype(rows[name]):
            kept |= ~rows[name].duplicated().to_numpy()
    return rows[kept]


# --- the call -----------------------------------------------------------------------------------


def stabilize(
    model: Any,
    X: pd.DataFrame,
    y: Any,
    *,
    width: Mapping[str, float | Sequence[float]] | float | Sequence[float] | None = None,
    k: int = 3,
    side: Side = "against",
    grade: Grade = "bands",
    auc_loss: float = 0.003,
    overlap_gain: float = 0.03,
    random_state: int = 0,
) -> Stabilized:
    """A model like a fitted one whose k reasons small moves change less, and what that cost.

    `model` are boosted trees of two classes (HistGradientBoosting, XGBoost, LightGBM), or a
    pipeline that ends with them, fitted to rows X of classes y. `width` says how far each number
    may move, in its own units: one number or several, for all or by column; numbers that are not
    named move by .05 standard deviations, and those of width 0 are left as they are.

    Grades: "bands" fits the same estimator, with its parameters, behind bands; "additive" also
    keeps each moving number apart from all else, in place of the estimator's own constraints on
    interactions; "reading" leaves the model as it is and tells the reasons of the band's median
    person. Which penalty is put on people near an edge is chosen on held rows: the one that breaks
    least at an AUC no more than `auc_loss` below, and an O, what two people of a predicted class
    share of their reasons, no more than `overlap_gain` above what the model has there.

    Estimators that need an `eval_set` to stop early are given a part of the rows.
    """
    codes = _checked(X, y, k, side, grade)
    own = explained(model, X)
    if k >= len(own.names):
        raise ValueError(f"k must be less than the {len(own.names)} attributes, got {k}.")
    widths = _widths(own, X, width)
    asked = _Asked(model=model, grade=grade, widths=widths, k=k, side=side, seed=random_state)
    trials = [_tried(asked, X, np.asarray(y), codes, held) for held in _parts(codes, random_state)]
    before = _mean([each.before for each in trials])
    tried = _chosen(
        before,
        [
            replace(each[0], measured=_mean([one.measured for one in each]))
            for each in zip(*(each.after for each in trials), strict=True)
        ],
        auc_loss,
        overlap_gain,
    )
    [best] = (each for each in tried if each.chosen)
    [edges] = _edges(asked, own, X, np.asarray(y), [(best.penalty, best.widest)])
    reference = X.iloc[spread_rows(codes, np.ones(len(X)), min(AGAINST, len(X)), random_state)]
    if grade == "reading":
        bands = BandValues(edges).fit(X)
        made: Any = Reading(
            model=model,
            bands=bands,
            reference=reference.reset_index(drop=True),
            told=Told(trees=own, reading=bands),
        )
    else:
        made = _refitted(asked, BandValues(edges).fit(X), X, np.asarray(y))
    return Stabilized(
        model=made,
        grade=grade,
        k=k,
        side=side,
        widths=widths,
        edges=edges,
        before=before,
        after=best.measured,
        tried=tuple(tried),
    )


def _checked(X: Any, y: Any, k: int, side: str, grade: str) -> Codes:
    """The number of each row's class; refused is what nothing can be made of."""
    if not isinstance(X, pd.DataFrame):
        raise ValueError(
            f"stabilize needs rows as a DataFrame, whose columns reasons are about, got a "
            f"{type(X).__name__}."
        )
    if grade not in GRADES:
        raise ValueError(f"grade must be one of {', '.join(GRADES)}, got {grade!r}.")
    if side not in ("for", "against", "both"):
        raise ValueError(f"side must be 'for', 'against' or 'both', got {side!r}.")
    if not (isinstance(k, int) and k >= 1):
        raise ValueError(f"k must be a whole number of reasons, 1 or more, got {k!r}.")
    labels = np.asarray(y)
    if labels.shape != (len(X),):
        raise ValueError(f"y must hold a class for each of {len(X)} rows, got {labels.shape}.")
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) != 2:
        raise ValueError(f"stabilize takes models of two classes, y has {len(classes)}.")
    return codes.ravel()


def _widths(trees: CellTrees, X: pd.DataFrame, width: Any) -> tuple[dict[str, float], ...]:
    """The moves of each width: how far each number goes that does."""
    numbers = [each.name for each in trees.attributes if isinstance(each, NumberBands)]
    stated = width if isinstance(width, Mapping) else dict.fromkeys(numbers, width)
    for name in stated:
        if name not in numbers:
            raise ValueError(
                f"width names the column {name!r}, which is no number that trees look at: "
                f"{nearest(str(name), numbers)}"
            )
    several: dict[str, tuple[float, ...]] = {}
    for name in numbers:
        given = stated.get(name)
        if given is None:
            given = usual_width(_numbers(X[name])[~np.isnan(_numbers(X[name]))])
        own = tuple(float(each) for each in (given if np.iterable(given) else [given]))
        if not own or not all(0 <= each < math.inf for each in own):
            raise ValueError(f"the width of {name!r} must be numbers >= 0, got {given!r}.")
        several[name] = own
    levels = max(len(own) for own in several.values()) if several else 0
    found = [
        {name: own[min(level, len(own) - 1)] for name, own in several.items()}
        for level in range(levels)
    ]
    moving = tuple({name: by for name, by in each.items() if by > 0} for each in found)
    moving = tuple(each for each in moving if each)
    if not moving:
        raise ValueError("no number moves by any width: there is nothing to be stable against.")
    return moving


def _numbers(column: "pd.Series[Any]") -> Floats:
    found: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return found


# --- what penalties do --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """What is to be made stable, how, and against which moves."""

    model: Any
    grade: Grade
    widths: tuple[dict[str, float], ...]
    k: int
    side: Side
    seed: int

    @property
    def moving(self) -> list[str]:
        """The columns that some move changes."""
        return list(dict.fromkeys(name for each in self.widths for name in each))

    @property
    def apart(self) -> list[str]:
        """The columns that each stay by themselves."""
        return self.moving if self.grade == "additive" else []


def _parts(codes: Codes, seed: int) -> list[Mask]:
    """Fifths of the rows that are held one after another: all of few rows, of many three."""
    if len(codes) < LEAST_LEARNT or np.bincount(codes).min() < LEAST_LEARNT // 10:
        raise ValueError(
            f"stabilize chooses on held rows and needs {LEAST_LEARNT}, a tenth of each class, got "
            f"{len(codes)}: bring more, or set bands by hand with BandValues."
        )
    times = 5 if len(codes) <= FEW else 3
    fifths = StratifiedKFold(5, shuffle=True, random_state=seed).split(codes, codes)
    return [np.isin(np.arange(len(codes)), held) for _, held in islice(fifths, times)]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A held part: the model as it is, and after each penalty."""

    before: Measured
    after: list[Tried]


def _tried(asked: _Asked, X: pd.DataFrame, y: Any, codes: Codes, held: Mask) -> _Trial:
    """What each penalty does, on held rows, to a model that was fitted to the others."""
    learnt, judged = X[~held].reset_index(drop=True), X[held].reset_index(drop=True)
    plain = fitted_like(asked.model, learnt, y[~held])
    trees = explained(plain, learnt)
    test = _Test.of(asked, learnt, judged, codes[held])
    before = test(Told(trees=trees))
    choices = list(product(PENALTIES, (False, True) if len(asked.widths) > 1 else (False,)))
    several = _edges(asked, trees, learnt, y[~held], choices)
    known: dict[str, Measured] = {}
    found = []
    for (penalty, widest), edges in zip(choices, several, strict=True):
        if repr(edges) not in known:
            bands = BandValues(edges).fit(learnt)
            if asked.grade == "reading":
                told = Told(trees=trees, reading=bands)
            else:
                told = behind(_refitted(asked, bands, learnt, y[~held]), learnt)
            known[repr(edges)] = test(told)
        found.append(
            Tried(
                penalty=penalty,
                widest=widest,
                edges=sum(len(own) for own in edges.values()),
                measured=known[repr(edges)],
                within=False,
            )
        )
    return _Trial(before=before, after=found)


def _chosen(
    before: Measured, tried: Sequence[Tried], auc_loss: float, overlap_gain: float
) -> list[Tried]:
    """The trials, each with whether it kept to the limits, one of them chosen.

    Of those within, the one that breaks least beside what the model did, at the width that fares
    worst; held rows tell all this roughly only, so that coming near to a limit counts a little,
    too. If there is none, going beyond a limit by as much again weighs as all that was broken.
    """
    found = []
    for each in tried:
        now = each.measured
        kept = [own / max(was, 1e-9) for own, was in zip(now.broken, before.broken, strict=True)]
        spent = [
            max(0.0, before.auc - now.auc) / max(auc_loss, 1e-9),
            max(0.0, now.overlap - before.overlap) / max(overlap_gain, 1e-9),
        ]
        foreign = max(0.0, (LEAST_OWN - (1.0 if now.own is None else now.own)) / (1 - LEAST_OWN))
        beyond = sum(max(0.0, share - 1) for share in spent) + foreign
        found.append(
            replace(each, within=beyond <= 0, worth=max(kept) + NEAR_LIMIT * sum(spent) + beyond)
        )
    best = min(range(len(found)), key=lambda at: (not found[at].within, found[at].worth))
    return [replace(each, chosen=at == best) for at, each in enumerate(found)]


def _mean(several: Sequence[Measured]) -> Measured:
    """The mean over held parts."""
    differences = [each.difference for each in several if each.difference is not None]
    owns = [each.own for each in several if each.own is not None]
    return Measured(
        auc=fmean(each.auc for each in several),
        overlap=fmean(each.overlap for each in several),
        broken=tuple(fmean(own) for own in zip(*(each.broken for each in several), strict=True)),
        difference=fmean(differences) if differences else None,
        own=fmean(owns) if owns else None,
    )


def _edges(
    asked: _Asked, trees: CellTrees, X: pd.DataFrame, y: Any, choices: Sequence[tuple[float, bool]]
) -> list[dict[str, tuple[float, ...]]]:
    """The edges of each number that moves, for each penalty, by what models say of these rows.

    With each penalty comes whether only the largest width counts.

    Trees that keep numbers apart have curves of their own. Of few rows those of one model follow
    chance: the mean over models of rows drawn again follows it less.
    """
    apart = asked.apart
    several = [trees]
    if apart:
        several = [explained(fitted_like(asked.model, X, y, apart), X)]
    if len(X) <= FEW:
        draw = np.random.default_rng(asked.seed)
        for _ in range(AGAIN):
            rows = _drawn_again(y, draw)
            other = fitted_like(asked.model, X.iloc[rows].reset_index(drop=True), y[rows], apart)
            several.append(explained(other, X))
    curves = _curves(several, X, y, asked)
    found: list[dict[str, tuple[float, ...]]] = [{} for _ in choices]
    for name, curve in curves.items():
        people = float(curve.people.sum())
        widths = tuple(each.get(name, 0.0) for each in asked.widths)
        for alone in sorted({widest for _, widest in choices}):
            places = [at for at, (_, widest) in enumerate(choices) if widest == alone]
            several_edges = edges_by_penalty(
                curve,
                (max(widths),) if alone else widths,
                [choices[at][0] for at in places],
                least_people=max(LEAST_SHARE * people, min(LEAST_ROWS, people / 10)),
            )
            for at, edges in zip(places, several_edges, strict=True):
                found[at][name] = tuple(edges.tolist())
    return found


def _drawn_again(y: Any, draw: Any) -> Codes:
    """Rows drawn with replacement, as many of each class as there are."""
    return np.concatenate(
        [draw.choice(np.flatnonzero(y == label), int((y == label).sum())) for label in np.unique(y)]
    )


def _curves(
    several: Sequence[CellTrees], X: pd.DataFrame, y: Any, asked: _Asked
) -> dict[str, Curve]:
    """What each number that moves does to the score: the mean contribution of each value."""
    codes, even = np.unique(y, return_inverse=True)[1].ravel(), np.ones(len(X))
    some = X.iloc[spread_rows(codes, even, min(TAUGHT, len(X)), asked.seed)]
    against = X.iloc[spread_rows(codes, even, min(AGAINST, len(X)), asked.seed + 1)]
    told = [Told(trees=each).contributions(some, [against])[0] for each in several]
    cells = [cells_of(each, some) for each in several]
    found = {}
    for name in asked.moving:
        own = _numbers(X[name])
        values, people = thinned(*counted(own[~np.isnan(own)], even[~np.isnan(own)]))
        place = several[0].names.index(name)
        score = [
            _by_cell(each.attributes[place], cell[:, place], phi[:, place], values)
            for each, cell, phi in zip(several, cells, told, strict=True)
        ]
        found[name] = Curve(values=values, people=people, score=np.mean(score, 0)[:, None])
    return found


def _by_cell(bands: Any, cells: Codes, phi: Floats, values: Floats) -> Floats:
    """The mean contribution in the cell of each value; where nobody is, between neighbours."""
    count = np.bincount(cells, minlength=bands.count)
    total = np.bincount(cells, phi, bands.count)
    seen = np.flatnonzero(count[:-1])  # the last cell is that of missing values
    if not len(seen):
        return np.zeros(len(values))
    found: Floats = np.interp(bands.codes(values), seen, total[seen] / count[seen])
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Test:
    """Held rows, and moves of some of them, that all models are measured by."""

    asked: _Asked
    judged: pd.DataFrame
    codes: Codes
    people: pd.DataFrame
    moved: tuple[pd.DataFrame, ...]
    references: list[pd.DataFrame]

    @classmethod
    def of(cls, asked: _Asked, learnt: pd.DataFrame, judged: pd.DataFrame, codes: Codes) -> "_Test":
        """The moves of all widths, drawn once."""
        draw = np.random.default_rng(asked.seed)
        people = judged[:PEOPLE].reset_index(drop=True)
        return cls(
            asked=asked,
            judged=judged,
            codes=codes,
            people=people,
            moved=tuple(
                pd.concat(list(_moved(people, by, learnt, draw)), ignore_index=True)
                for by in asked.widths
            ),
            references=[
                learnt.iloc[draw.choice(len(learnt), min(REFERENCE, len(learnt)))]
                for _ in range(DRAWS)
            ],
        )

    def __call__(self, told: Told) -> Measured:
        """What is measured of a model."""
        asked, home = self.asked, told.score(self.people)
        first = home >= 0
        top = self._top(told, self.people, first)
        broken = []
        for rows in self.moved:
            times = len(rows) // len(self.people)
            stays = (told.score(rows) >= 0) == np.tile(first, times)
            there = self._top(told, rows, np.tile(first, times))
            other = (there != np.tile(top, (1, times, 1))).any(-1) & stays
            broken.append(float(other.reshape(len(top), times, -1).any(1).mean()))
        classes = torch.from_numpy(first.astype(np.intp))
        shared = [overlap(torch.from_numpy(own.astype(float)), asked.k, classes) for own in top]
        found = Measured(
            auc=float(roc_auc_score(self.codes, told.score(self.judged))),
            overlap=fmean(each or 0.0 for each in shared),
            broken=tuple(broken),
        )
        if told.reading is None:
            return found
        own = self._top(replace(told, reading=None), self.people, first)
        apart = told.score(told.reading.transform(self.people)) - home
        return replace(
            found,
            difference=float(np.abs(apart).mean()),
            own=float((top & own).sum(-1).mean() / asked.k),
        )

    def _top(self, told: Told, rows: pd.DataFrame, first: Mask) -> Mask:
        """Which attributes are among the k reasons: (D, N, m)."""
        phi = np.where(first, 1.0, -1.0)[:, None] * told.contributions(rows, self.references)
        order = np.argsort(-shown_as(phi, self.asked.side), -1, kind="stable")
        found = np.zeros(phi.shape, dtype=bool)
        np.put_along_axis(found, order[..., : self.asked.k], True, -1)
        return found


def _moved(
    people: pd.DataFrame, widths: Mapping[str, float], known: pd.DataFrame, draw: Any
) -> Iterator[pd.DataFrame]:
    """People after moves of their own: half go as far as they may, none beyond what is known."""
    for number in range(MOVES):
        changed = {}
        for name, width in widths.items():
            own = _numbers(known[name])
            whole = bool((own[~np.isnan(own)] == np.round(own[~np.isnan(own)])).all())
            reach = np.floor(width) if whole else width
            far = draw.choice([-reach, 0.0, reach], len(people))
            by = far if number % 2 else draw.uniform(-width, width, len(people))
            moved = _numbers(people[name]) + (np.round(by).clip(-reach, reach) if whole else by)
            changed[name] = moved.clip(np.nanmin(own), np.nanmax(own))
        yield people.assign(**changed)


# --- fitting again ------------------------------------------------------------------------------


def _refitted(asked: _Asked, bands: BandValues, X: pd.DataFrame, y: Any) -> Pipeline:
    """The bands and the same estimator behind them, fitted."""
    model = fitted_like(asked.model, bands.transform(X), y, asked.apart)
    return Pipeline([("bands", bands), ("model", model)])


def fitted_like(model: Any, X: pd.DataFrame, y: Any, apart: Sequence[str] = ()) -> Any:
    """A model of the same class and parameters, fitted to other rows.

    The columns `apart` are each kept by themselves: no tree looks at one of them and at another.
    What needs rows to stop by is given a part of them, each class in equal shares.
    """
    front = [] if not isinstance(model, Pipeline) else [(n, clone(s)) for n, s in model.steps[:-1]]
    last = model.steps[-1][1] if isinstance(model, Pipeline) else model
    library = type(last).__module__.partition(".")[0]
    stopping = STOPPED.get(library, _never)(last)
    learnt = np.ones(len(X), dtype=bool)
    if stopping is not None:
        learnt = ~_stopped_by(y)
    shown = X[learnt]
    for _, step in front:
        shown = step.fit_transform(shown, y[learnt])
    estimator = clone(last)
    if apart:
        whole = Pipeline([*front, ("model", estimator)]) if front else estimator
        groups = _groups(whole, X, apart)
        setting = CONSTRAINTS.get(library)
        if setting is None:
            raise ValueError(
                f"grade 'additive' needs constraints on interactions, which a "
                f"{type(last).__name__} does not take: choose 'bands'."
            )
        estimator.set_params(**setting(estimator, groups, shown, y[learnt]))
    if stopping is None:
        estimator.fit(shown, y[learnt])
    else:
        judged = X[~learnt]
        for _, step in front:
            judged = step.transform(judged)
        estimator.fit(shown, y[learnt], **_judging(estimator, judged, y[~learnt]), **stopping)
    return Pipeline([*front, (model.steps[-1][0], estimator)]) if front else estimator


def _judging(estimator: Any, X: Any, y: Any) -> dict[str, Any]:
    """Rows to stop by, as the library wants them named: LightGBM has changed how."""
    if "eval_X" in signature(estimator.fit).parameters:
        return {"eval_X": X, "eval_y": y}
    return {"eval_set": [(X, y)]}


def _stopped_by(y: Any) -> Mask:
    """Rows that say when to stop, each class in equal shares."""
    found = np.zeros(len(y), dtype=bool)
    draw = np.random.default_rng(0)
    for label in np.unique(y):
        own = draw.permutation(np.flatnonzero(y == label))
        found[own[: max(1, round(STOPPED_BY * len(own)))]] = True
    return found


def _groups(model: Any, X: pd.DataFrame, apart: Sequence[str]) -> list[list[int]]:
    """Features that may be looked at together: those of each column apart, and all others."""
    parts = taken_apart(model, X)
    if parts is None:
        raise ValueError("the steps before the trees mix columns: choose grade 'bands'.")
    places = {name: place for place, name in enumerate(parts.names)}
    alone = [parts.features(places[name]).tolist() for name in apart]
    taken = {feature for own in alone for feature in own}
    rest = [feature for feature in range(len(parts.sources)) if feature not in taken]
    return [own for own in [*alone, rest] if own]


def _never(_: Any) -> None:
    """Estimators that hold rows to stop by themselves, or never stop."""


def _stops_xgboost(estimator: Any) -> dict[str, Any] | None:
    if not estimator.get_params().get("early_stopping_rounds"):
        return None
    return {"verbose": False}


def _stops_lightgbm(estimator: Any) -> dict[str, Any] | None:
    """By its parameters, or by a callback that it was fitted with and does not keep."""
    names = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
    settings = estimator.get_params()
    if any(settings.get(name) for name in names):
        return {}
    if not getattr(estimator, "best_iteration_", 0):
        return None
    return {"callbacks": [import_module("lightgbm").early_stopping(PATIENCE, verbose=False)]}


STOPPED: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "xgboost": _stops_xgboost,
    "lightgbm": _stops_lightgbm,
}
"""By library: what else to fit with if rows are needed to stop by, None if not."""


def _of_scikit(estimator: Any, groups: list[list[int]], X: Any, y: Any) -> dict[str, Any]:
    """Constraints name columns as trees order them, which is categories first."""
    probe = clone(estimator).set_params(max_iter=1, early_stopping=False, interaction_cst=None)
    words = probe.fit(X, y).is_categorical_
    if words is None:
        return {"interaction_cst": groups}
    place = np.argsort(np.argsort(~words, kind="stable"), kind="stable")
    return {"interaction_cst": [[int(place[each]) for each in own] for own in groups]}


CONSTRAINTS: dict[str, Callable[[Any, list[list[int]], Any, Any], dict[str, Any]]] = {
    "sklearn": _of_scikit,
    "xgboost": lambda _, groups, X, y: {"interaction_constraints": str(groups)},
    "lightgbm": lambda _, groups, X, y: {"interaction_constraints": groups},
}
"""By library: the parameters with which trees keep groups of features apart."""
