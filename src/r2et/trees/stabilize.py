"""Boosted trees whose reasons small changes leave alone, at the accuracy they had.

What breaks the reasons of trees is where their thresholds lie relative to where people stand. The
contributions of a model say what each number does; few edges keep that and lie where few people
are. Behind them the same estimator is fitted again (grades "bands" and "additive"), or, where a
model may not be changed, its reasons are those of the band's median person (grade "reading").
Which of the three serves best is told by held rows (grade "best").
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from inspect import signature
from itertools import islice, product
from statistics import fmean, stdev
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
from r2et.core.reasons import Side
from r2et.metrics.individuality import overlap
from r2et.trees.cells import CellTrees
from r2et.trees.descent import STAYING, Aim, Edges, People, reasons_among, settled, taken_of
from r2et.trees.explained import behind, explained
from r2et.trees.pipelines import taken_apart
from r2et.trees.reading import Reading, Told, cells_of

Grade = Literal["bands", "additive", "reading"]
BEST = "best"
"""In place of a grade: the one of them that held rows favour."""
GRADES: tuple[Grade, ...] = ("bands", "additive", "reading")

PENALTIES = (1.0, 0.5, 0.2, 0.1, 0.03, 0.01, 0.003)
"""Of people near an edge, against what the score loses: each is tried."""
STAY = 4
"""So many of the penalties that did best on the first held part are tried on the others."""
SEARCHED, SEARCH_MOVES = 400, 20
"""Decisions learnt from that a descent moves, and how often each by each width."""
SHARING = 1000
"""Decisions that O is measured on: moved ones and others."""
PEOPLE, MOVES = 300, 40
"""Decisions of each held part that are moved, and how often each by each width."""
DRAWS, REFERENCE = 3, 20
"""References that held decisions are told against, and rows of each."""
TAUGHT, AGAINST = 3000, 100
"""Rows whose contributions make the curves of a model, and rows these are told against."""
SEVERAL = 10_000
"""Of up to so many rows all fifths are held one after another, of more three."""
FEW, AGAIN = 2500, 3
"""Up to so many rows, curves are the mean over so many models more, of rows drawn again."""
LEAST_SHARE, LEAST_ROWS = 0.005, 20  # of people in a band
LEAST_LEARNT = 250  # rows that a penalty can be chosen on
LEAST_OWN = 0.75
"""The share of people's own reasons that a reading keeps."""
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
    over all of them; where `penalty` is None, edges were found by descent. The limits are kept if
    AUC and O do so by a margin of one standard error of their changes, which parts of the rows
    tell. Of trials within the limits the one of the smallest `worth` is chosen: what it takes of
    the limits and of the half of what was broken that may stay, whichever it takes most of.
    """

    penalty: float | None
    widest: bool
    edges: int
    measured: Measured
    within: bool
    auc_margin: float = 0.0
    overlap_margin: float = 0.0
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
        return _best_of(self.tried)

    @property
    def held(self) -> bool:
        """Whether AUC and O kept to the limits on held rows, by the margins."""
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


# --- the call -----------------------------------------------------------------------------------


def stabilize(
    model: Any,
    X: pd.DataFrame,
    y: Any,
    *,
    width: Mapping[str, float | Sequence[float]] | float | Sequence[float] | None = None,
    k: int = 3,
    side: Side = "against",
    grade: Grade | Literal["best"] = "bands",
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
    person; "best" tries all three and gives back the one that does best on held rows. Which penalty
    is put on people near an edge is chosen on held rows: the one that breaks least at an AUC no
    more than `auc_loss` below, and an O, what two people of a predicted class share of their
    reasons, no more than `overlap_gain` above what the model has there, each by a margin of one
    standard error. For a reading, edges found by descent are tried, too.

    Estimators that need an `eval_set` to stop early are given a part of the rows.
    """
    if grade not in (*GRADES, BEST):
        raise ValueError(f"grade must be one of {', '.join((*GRADES, BEST))}, got {grade!r}.")
    grades = Grades.of(
        model,
        X,
        y,
        width=width,
        k=k,
        side=side,
        auc_loss=auc_loss,
        overlap_gain=overlap_gain,
        random_state=random_state,
    )
    return grades.made(grades.best if grade == "best" else grade)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grades:
    """What each grade does to a model on held rows; what grades have in common is done once."""

    asked: "_Asked"
    whole: "_Learnt"
    parts: "list[_Part]"
    codes: Codes
    before: Measured
    auc_loss: float
    overlap_gain: float
    known: "dict[Grade, list[Tried]]"

    @classmethod
    def of(
        cls,
        model: Any,
        X: pd.DataFrame,
        y: Any,
        *,
        width: Any = None,
        k: int = 3,
        side: Side = "against",
        auc_loss: float = 0.003,
        overlap_gain: float = 0.03,
        random_state: int = 0,
    ) -> "Grades":
        """The model on held rows, all arguments being those of `stabilize`."""
        codes = _checked(X, y, k, side)
        own = explained(model, X)
        if k >= len(own.names):
            raise ValueError(f"k must be less than the {len(own.names)} attributes, got {k}.")
        asked = _Asked(
            model=model, widths=_widths(own, X, width), k=k, side=side, seed=random_state
        )
        labels = np.asarray(y)
        parts = [_Part.of(asked, X, labels, codes, held) for held in _parts(codes, random_state)]
        return cls(
            asked=asked,
            whole=_Learnt(asked=asked, trees=own, X=X, y=labels),
            parts=parts,
            codes=codes,
            before=_mean([each.before for each in parts]),
            auc_loss=auc_loss,
            overlap_gain=overlap_gain,
            known={},
        )

    def tried(self, grade: Grade) -> list[Tried]:
        """What was tried for a grade, one of it chosen."""
        if grade not in self.known:
            limits = self.auc_loss, self.overlap_gain
            several = _tried(self.parts, grade, *limits)
            self.known[grade] = _chosen(self.before, several, *limits)
        return self.known[grade]

    @property
    def best(self) -> Grade:
        """The grade that held rows favour, of those that there are for the model."""
        asked = self.asked.model
        last = asked.steps[-1][1] if isinstance(asked, Pipeline) else asked
        offered = [each for each in GRADES if each != "additive" or _constraints(last)]
        chosen = {each: _best_of(self.tried(each)) for each in offered}
        return min(chosen, key=lambda each: (not chosen[each].within, chosen[each].worth))

    def made(self, grade: Grade) -> Stabilized:
        """The model that a grade makes of all rows."""
        asked, X = self.asked, self.whole.X
        best = _best_of(self.tried(grade))
        taken = (best.penalty, best.widest)
        [edges] = self.whole.edges(grade, [taken], self.overlap_gain)
        bands = BandValues(edges).fit(X)
        if grade == "reading":
            even = np.ones(len(X))
            rows = spread_rows(self.codes, even, min(AGAINST, len(X)), asked.seed)
            made: Any = Reading(
                model=asked.model,
                bands=bands,
                reference=X.iloc[rows].reset_index(drop=True),
                told=Told(trees=self.whole.trees, reading=bands),
            )
        else:
            made = _refitted(asked, grade, bands, X, self.whole.y)
        return Stabilized(
            model=made,
            grade=grade,
            k=asked.k,
            side=asked.side,
            widths=asked.widths,
            edges=edges,
            before=self.before,
            after=best.measured,
            tried=tuple(self.tried(grade)),
        )


def _best_of(tried: Sequence[Tried]) -> Tried:
    return next(each for each in tried if each.chosen)


def _checked(X: Any, y: Any, k: int, side: str) -> Codes:
    """The number of each row's class; refused is what nothing can be made of."""
    if not isinstance(X, pd.DataFrame):
        raise ValueError(
            f"stabilize needs rows as a DataFrame, whose columns reasons are about, got a "
            f"{type(X).__name__}."
        )
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
    """What is to be made stable, and against which moves."""

    model: Any
    widths: tuple[dict[str, float], ...]
    k: int
    side: Side
    seed: int

    @property
    def moving(self) -> list[str]:
        """The columns that some move changes."""
        return list(dict.fromkeys(name for each in self.widths for name in each))

    def apart(self, grade: Grade) -> list[str]:
        """The columns that each stay by themselves."""
        return self.moving if grade == "additive" else []


def _parts(codes: Codes, seed: int) -> list[Mask]:
    """Fifths of the rows that are held one after another: all of few rows, of many three."""
    if len(codes) < LEAST_LEARNT or np.bincount(codes).min() < LEAST_LEARNT // 10:
        raise ValueError(
            f"stabilize chooses on held rows and needs {LEAST_LEARNT}, a tenth of each class, got "
            f"{len(codes)}: bring more, or set bands by hand with BandValues."
        )
    times = 5 if len(codes) <= SEVERAL else 3
    fifths = StratifiedKFold(5, shuffle=True, random_state=seed).split(codes, codes)
    return [np.isin(np.arange(len(codes)), held) for _, held in islice(fifths, times)]


Choice = tuple[float | None, bool]
"""A penalty, None for a descent, and whether only the largest width counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Learnt:
    """Rows that edges are learnt from, and what the model that was fitted to them says."""

    asked: "_Asked"
    trees: CellTrees
    X: pd.DataFrame
    y: Any

    @cached_property
    def free(self) -> dict[str, Curve]:
        """The curves of the model itself."""
        return self._curves("bands")

    @cached_property
    def additive(self) -> dict[str, Curve]:
        """The curves of trees that keep numbers apart."""
        return self._curves("additive")

    def _curves(self, grade: Grade) -> dict[str, Curve]:
        """What each number that moves does to the score of a model, by these rows.

        Of few rows the curves of one model follow chance: the mean over models of rows drawn again
        follows it less.
        """
        asked, apart = self.asked, self.asked.apart(grade)
        several = [self.trees]
        if apart:
            several = [explained(fitted_like(asked.model, self.X, self.y, apart), self.X)]
        if len(self.X) <= FEW:
            draw = np.random.default_rng(asked.seed)
            for _ in range(AGAIN):
                rows = _drawn_again(self.y, draw)
                again = self.X.iloc[rows].reset_index(drop=True)
                other = fitted_like(asked.model, again, self.y[rows], apart)
                several.append(explained(other, self.X))
        return _curves(several, self.X, self.y, asked)

    def edges(self, grade: Grade, choices: Sequence[Choice], overlap_gain: float) -> list[Edges]:
        """The edges of each number that moves, for each choice."""
        curves = self.additive if grade == "additive" else self.free
        named = [each for each in choices if each[0] is not None]
        penalties = [(penalty, widest) for penalty, widest in named if penalty is not None]
        found = dict(zip(named, _edges(self.asked, curves, penalties), strict=True))
        if DESCENT in choices:
            found[DESCENT] = self._descended(overlap_gain)
        return [found[each] for each in choices]

    def _descended(self, overlap_gain: float) -> Edges:
        """Those that the reading of people learnt from is served best by."""
        asked = self.asked
        draw = np.random.default_rng(asked.seed + 2)
        rows = self.X.iloc[draw.permutation(len(self.X))[:SHARING]].reset_index(drop=True)
        people = People(
            rows=rows,
            moved=_all_moved(rows[:SEARCHED], asked.widths, self.X, SEARCH_MOVES, draw),
            count=min(SEARCHED, len(rows)),
            references=_references(self.X, draw),
        )
        starts = _edges(asked, self.free, [*product(PENALTIES, (False, True)), (math.inf, False)])
        known = {name: np.sort(_numbers(self.X[name])) for name in asked.moving}
        return settled(
            self.trees,
            {name: own[~np.isnan(own)] for name, own in known.items()},
            people,
            {name: curve.cuts for name, curve in self.free.items()},
            starts,
            Aim(k=asked.k, side=asked.side, overlap_gain=overlap_gain),
            least=_least_people(len(self.X)),
            seed=asked.seed,
        )


DESCENT: Choice = (None, False)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """A held part: what is learnt from the other rows, and how the model as it is fares."""

    learnt: _Learnt
    test: "_Test"
    before: Measured

    @classmethod
    def of(cls, asked: "_Asked", X: pd.DataFrame, y: Any, codes: Codes, held: Mask) -> "_Part":
        """The model fitted to the others."""
        rows, judged = X[~held].reset_index(drop=True), X[held].reset_index(drop=True)
        trees = explained(fitted_like(asked.model, rows, y[~held]), rows)
        test = _Test.of(asked, rows, judged, codes[held])
        return cls(
            learnt=_Learnt(asked=asked, trees=trees, X=rows, y=y[~held]),
            test=test,
            before=test(Told(trees=trees)),
        )

    def after(
        self, grade: Grade, choices: Sequence[Choice], overlap_gain: float
    ) -> dict[Choice, tuple[int, Measured]]:
        """How many edges each choice makes, and how the model then fares."""
        own, known = self.learnt, dict[str, Measured]()
        found = {}
        for choice, edges in zip(choices, own.edges(grade, choices, overlap_gain), strict=True):
            if repr(edges) not in known:
                bands = BandValues(edges).fit(own.X)
                if grade == "reading":
                    told = Told(trees=own.trees, reading=bands)
                else:
                    told = behind(_refitted(own.asked, grade, bands, own.X, own.y), own.X)
                known[repr(edges)] = self.test(told)
            found[choice] = sum(len(each) for each in edges.values()), known[repr(edges)]
        return found


def _tried(
    parts: Sequence[_Part], grade: Grade, auc_loss: float, overlap_gain: float
) -> list[Tried]:
    """What penalties do on held parts: those that do best on the first are tried on all."""
    widths = parts[0].learnt.asked.widths
    choices: list[Choice] = list(product(PENALTIES, (False, True) if len(widths) > 1 else (False,)))
    if grade == "reading":
        choices.append(DESCENT)
    found = [parts[0].after(grade, choices, overlap_gain)]
    first = [_told(parts[:1], found, choice) for choice in choices]
    ranked = _ranked(parts[0].before, first, auc_loss, overlap_gain)
    # Of choices that gave the same edges one is enough; a descent is always seen to its end.
    places = [place for place in ranked if choices[place] != DESCENT]
    several = {first[place].measured: place for place in reversed(places)}
    stay = sorted(several.values(), key=places.index)[:STAY]
    choices = [choices[at] for at in range(len(choices)) if at in stay or choices[at] == DESCENT]
    found += [each.after(grade, choices, overlap_gain) for each in parts[1:]]
    return [_told(parts, found, choice) for choice in choices]


def _told(
    parts: Sequence[_Part],
    found: Sequence[Mapping[Choice, tuple[int, Measured]]],
    choice: Choice,
) -> Tried:
    """What a choice did: means over held parts, and how far they may be off."""
    after = [each[choice][1] for each in found]
    pairs = list(zip((each.before for each in parts), after, strict=True))
    return Tried(
        penalty=choice[0],
        widest=choice[1],
        edges=found[0][choice][0],
        measured=_mean(after),
        auc_margin=_standard_error([now.auc - was.auc for was, now in pairs]),
        overlap_margin=_standard_error([now.overlap - was.overlap for was, now in pairs]),
        within=False,
    )


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean of some values; of a single one it is not known, and 0."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _chosen(
    before: Measured, tried: Sequence[Tried], auc_loss: float, overlap_gain: float
) -> list[Tried]:
    """The trials, each with whether it kept to the limits, one of them chosen.

    Of those within, the one that stays farthest from everything: from half of what was broken, at
    the width that fares worst, and from the limits on AUC and O. Held rows tell all this roughly
    only, so that a little less of one is not worth coming near to another. If none is within, going
    beyond a limit by as much again weighs as much as reaching it.
    """
    found = [_weighed(before, each, auc_loss, overlap_gain) for each in tried]
    best = min(range(len(found)), key=lambda at: (not found[at].within, found[at].worth))
    return [replace(each, chosen=at == best) for at, each in enumerate(found)]


def _ranked(
    before: Measured, tried: Sequence[Tried], auc_loss: float, overlap_gain: float
) -> list[int]:
    """The places of trials, the best first: by worth alone, which counts what is beyond limits."""
    worths = [_weighed(before, each, auc_loss, overlap_gain).worth for each in tried]
    return sorted(range(len(worths)), key=lambda at: worths[at])


def _weighed(before: Measured, tried: Tried, auc_loss: float, overlap_gain: float) -> Tried:
    """A trial with its worth, and whether it kept to the limits."""
    now = tried.measured
    kept = [own / max(was, 1e-9) for own, was in zip(now.broken, before.broken, strict=True)]
    spent = [
        max(0.0, before.auc - now.auc + tried.auc_margin) / max(auc_loss, 1e-9),
        max(0.0, now.overlap - before.overlap + tried.overlap_margin) / max(overlap_gain, 1e-9),
    ]
    foreign = max(0.0, (LEAST_OWN - (1.0 if now.own is None else now.own)) / (1 - LEAST_OWN))
    beyond = sum(max(0.0, share - 1) for share in spent) + foreign
    worth = taken_of([max(kept) / STAYING, *spent]) + beyond
    return replace(tried, within=beyond <= 0, worth=worth)


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
    asked: _Asked, curves: Mapping[str, Curve], choices: Sequence[tuple[float, bool]]
) -> list[Edges]:
    """The edges of each number that moves, for each penalty, by what is said along its curve.

    With each penalty comes whether only the largest width counts. Where it is infinite, there is
    one edge of each number, if there is a place for it.
    """
    found: list[Edges] = [{} for _ in choices]
    for name, curve in curves.items():
        widths = tuple(each.get(name, 0.0) for each in asked.widths)
        for alone in sorted({widest for _, widest in choices}):
            places = [at for at, (_, widest) in enumerate(choices) if widest == alone]
            penalties = [choices[at][0] for at in places]
            for single in (False, True):
                several = edges_by_penalty(
                    curve,
                    (max(widths),) if alone else widths,
                    [min(each, 1e9) for each in penalties if math.isinf(each) == single],
                    least_people=_least_people(float(curve.people.sum())),
                    least_edges=int(single),
                )
                own = [at for at in places if math.isinf(choices[at][0]) == single]
                for at, edges in zip(own, several, strict=True):
                    found[at][name] = tuple(edges.tolist())
    return found


def _least_people(people: float) -> float:
    """How many people a band holds at least."""
    return max(LEAST_SHARE * people, min(LEAST_ROWS, people / 10))


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
            moved=_all_moved(people, asked.widths, learnt, MOVES, draw),
            references=_references(learnt, draw),
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
        scores = told.score(self.judged)
        classes = torch.from_numpy((scores[:SHARING] >= 0).astype(np.intp))
        several = self._top(told, self.judged[:SHARING], scores[:SHARING] >= 0)
        shared = [overlap(torch.from_numpy(own.astype(float)), asked.k, classes) for own in several]
        found = Measured(
            auc=float(roc_auc_score(self.codes, scores)),
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
        phi = told.contributions(rows, self.references)
        return reasons_among(phi, first, self.asked.side, self.asked.k)


def _references(known: pd.DataFrame, draw: Any) -> list[pd.DataFrame]:
    """Draws of rows that contributions are told against."""
    return [known.iloc[draw.choice(len(known), min(REFERENCE, len(known)))] for _ in range(DRAWS)]


def _all_moved(
    people: pd.DataFrame,
    widths: Sequence[Mapping[str, float]],
    known: pd.DataFrame,
    moves: int,
    draw: Any,
) -> tuple[pd.DataFrame, ...]:
    """People after moves by each width, again and again in their order."""
    return tuple(
        pd.concat(list(_moved(people, by, known, moves, draw)), ignore_index=True) for by in widths
    )


def _moved(
    people: pd.DataFrame,
    widths: Mapping[str, float],
    known: pd.DataFrame,
    moves: int,
    draw: Any,
) -> Iterator[pd.DataFrame]:
    """People after moves of their own: half go as far as they may, none beyond what is known."""
    for number in range(moves):
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


def _refitted(asked: _Asked, grade: Grade, bands: BandValues, X: pd.DataFrame, y: Any) -> Pipeline:
    """The bands and the same estimator behind them, fitted."""
    model = fitted_like(asked.model, bands.transform(X), y, asked.apart(grade))
    return Pipeline([("bands", bands), ("model", model)])


def fitted_like(model: Any, X: pd.DataFrame, y: Any, apart: Sequence[str] = ()) -> Any:
    """A model of the same class and parameters, fitted to other rows.

    The columns `apart` are each kept by themselves: no tree looks at one of them and at another.
    What needs rows to stop by is given a part of them, each class in equal shares.
    """
    front = [] if not isinstance(model, Pipeline) else [(n, clone(s)) for n, s in model.steps[:-1]]
    last = model.steps[-1][1] if isinstance(model, Pipeline) else model
    library = _library(last)
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
        setting = _constraints(last)
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


def _library(estimator: Any) -> str:
    """What its class comes from."""
    return type(estimator).__module__.partition(".")[0]


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


def _constraints(estimator: Any) -> Callable[[Any, list[list[int]], Any, Any], Any] | None:
    """How an estimator is told to keep features apart, None if it cannot."""
    library = _library(estimator)
    if library == "sklearn" and "interaction_cst" not in estimator.get_params():
        return None
    return CONSTRAINTS.get(library)


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
