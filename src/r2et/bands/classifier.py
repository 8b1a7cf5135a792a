"""A classifier of tables whose reasons are individual and stay put, with proof.

Its score is a sum: points for each band of every number that can move, and what all other
attributes say together. Bands lie where few people stand, and points are such that few reasons
break, by descent on exactly that; how, is told in `r2et.bands.steps` and `r2et.bands.descent`.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from r2et.bands.attribute import Bands, NumberBands
from r2et.bands.binner import StableBinner
from r2et.bands.boosting import Ordered, given
from r2et.bands.descent import SWEEPS, Wish
from r2et.bands.edges import Curve, counted, cuts
from r2et.bands.guard import (
    ABOUT,
    GAIN,
    LADDER,
    LEAST_SHARE,
    Attempt,
    LostAccuracy,
    TeacherName,
    explained,
    least_auc,
    more_individual,
    with_kept,
)
from r2et.bands.saved import (
    FORMAT,
    Parameters,
    Saved,
    as_data,
    frame_of,
    read_saved,
    restored_classes,
    restored_curve,
    restored_reference,
    restored_score,
    saved_classes,
    saved_column,
    saved_curve,
    saved_score,
    text_of,
)
from r2et.bands.scores import CardScores, StepScore, TreeScores
from r2et.bands.several import (
    Told,
    card_of,
    penalty_at,
    trees_of,
    tried,
)
from r2et.bands.steps import (
    FEW_MOVING,
    JUDGED,
    START,
    TIMES,
    TRUST,
    Found,
    Lines,
    Rows,
    Teacher,
    free_trees,
    lines_of,
    separate_trees,
    shown,
    steps_of,
    teacher_of,
    with_trees,
)
from r2et.bands.table import Table, held_parts, rows_of, spread_rows, word_bands
from r2et.bands.teacher import mean_auc
from r2et.bands.telling import told_reasons, usual_in_words, value_in_words
from r2et.bands.verdicts import CellModel, cell_verdicts
from r2et.core.arrays import Codes, Floats, Mask
from r2et.core.files import write_text
from r2et.core.limits import content_of, json_of
from r2et.core.naming import nearest
from r2et.core.reasons import Reason, ReasonVerdict, Side, decided_by
from r2et.core.rng import stream
from r2et.explainers import draw_reference
from r2et.metrics.individuality import kappa, overlap

if TYPE_CHECKING:
    from r2et import ReasonAudit

STILL_BANDS = 32
"""Bands of a number that no move changes: nothing is lost by having many."""
ROWS_TO_TRY = 12_000
"""Rows that a weight is chosen on: of more, some."""
TURNS, FEW_TURNS = 160, 40
"""How often some number is gone through while one weight is tried, and on several parts of few
rows, if sweeps are not fewer."""
FEW_JUDGED = 1000
"""People whose reasons are judged while a weight is chosen."""
MOST_TOGETHER = 16
"""Numbers that can move, of which all interactions are still looked at: cells multiply."""


Parts = Sequence[tuple[Rows, Rows]]
"""Rows to learn from and rows to judge by."""


@dataclass(frozen=True, kw_only=True)
class Stability:
    """How stable and how individual the reasons of some decisions are.

    `certified` is the share of decisions whose reasons no admissible move changes, `broken` of
    those with a counter-example; the rest, `undetermined`, have too many cells to be looked at.
    Of those that are determined, `kept` (S) is the mean of the smallest share of reasons that
    stays, `core` the mean number of reasons that stay in every move, and `all_but_one` the share of
    decisions in which all but one do. `overlap` (O) is what two people of one predicted class share
    and `kappa` (S - O) / (1 - O), None where all people are told the same.
    """

    decisions: int
    certified: float
    broken: float
    undetermined: float
    kept: float | None
    overlap: float | None
    kappa: float | None
    core: float | None
    all_but_one: float | None


class StableClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose reasons, contributions of attributes, stay put within small moves.

    `width` says how far each number may move without changing the reasons of most people, in its
    own units: one number, or several that count alike, for each column by name; a width of 0 says
    that a number does not move. Other numbers get .05 standard deviations. `k` reasons are told:
    those that speak most "against" the decision, "for" it, or "both" (`side`). Of two classes the
    second is decided where its probability is `threshold` or more.

    Without `interactions` the score is a scorecard throughout, points for each band of each
    attribute. `edges`, `special`, `monotone` and `units` are those of `StableBinner`. `codes` name
    what a letter calls an attribute; those with one code are one reason, by what they add together.

    `weight` is what the share of people with broken reasons counts against log-loss. A **guard**
    keeps accuracy: where on held rows AUC is more than `auc_loss` below that of logistic
    regression, or more than `auc_loss` + .005 below that of boosted trees, the weight is lowered,
    and `search_` and a warning say so.

    Contributions are told against `reference_rows` of the rows, drawn once and part of the model.
    `reference` gives them instead, such as the reference of the model that this one replaces.

    Fitted, it has `classes_`, `binner_`, `score_`, `reference_`, `search_`, `k_`, `scorecard_`.

    >>> X = pd.DataFrame({"age": [20, 30, 40, 50] * 9, "job": ["none", "clerk", "clerk"] * 12})
    >>> model = StableClassifier({"age": 2}).fit(X, ["no", "no", "yes", "yes"] * 9)
    >>> model.predict(X[:4]).tolist()
    ['no', 'no', 'yes', 'yes']
    """

    def __init__(
        self,
        width: Mapping[str, float | Sequence[float]] | float | Sequence[float] | None = None,
        *,
        k: int = 3,
        side: Side = "against",
        threshold: float = 0.5,
        interactions: bool = True,
        edges: Mapping[str, Sequence[float]] | None = None,
        special: Mapping[str, Sequence[float]] | None = None,
        monotone: Mapping[str, int] | None = None,
        units: Mapping[str, str] | None = None,
        codes: Mapping[str, str] | None = None,
        weight: float = 0.1,
        auc_loss: float = 0.004,
        overlap_gain: float = 0.01,
        reference: pd.DataFrame | None = None,
        reference_rows: int = 200,
        random_state: int = 0,
    ) -> None:
        self.width = width
        self.k = k
        self.side = side
        self.threshold = threshold
        self.interactions = interactions
        self.edges = edges
        self.special = special
        self.monotone = monotone
        self.units = units
        self.codes = codes
        self.weight = weight
        self.auc_loss = auc_loss
        self.overlap_gain = overlap_gain
        self.reference = reference
        self.reference_rows = reference_rows
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """It takes missing values and words."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """This classifier, fitted to the rows of X and their classes y.

        A row counts as often as its `sample_weight` says, once unless given.
        """
        self._check()
        self.binner_ = self._binner()
        table, labels, weights = self.binner_.begin(X, y, sample_weight)
        self.n_features_in_, self.classes_ = len(table.names), self.binner_.classes_
        if hasattr(self.binner_, "feature_names_in_"):
            self.feature_names_in_ = self.binner_.feature_names_in_
        if len(self.classes_) < 2:
            raise ValueError(
                f"the target must show at least two classes, got one class: {self.classes_[0]!r}."
            )
        for name in self.codes or {}:
            if name not in table.names:
                raise ValueError(f"codes name {name!r}, no attribute: {nearest(name, table.names)}")
        self.k_ = self._told(table.names)
        self.search_: list[Attempt] = []
        rows = self._rows(table, labels, weights)
        parts = [
            (rows.some(self._tried_on(~held)), rows.some(held))
            for held in held_parts(labels, self.random_state)
        ]
        if len(self.classes_) == 2:
            self._fit_two(table, rows, parts)
        else:
            self._fit_several(table, rows, parts)
        return self._refer_to(self._reference(table, labels, weights))

    def _tried_on(self, learnt: Mask) -> Codes:
        """The rows that a weight is tried on: no more than are enough to choose it."""
        order = torch.randperm(len(learnt), generator=stream(self.random_state, "bands", "tried"))
        shuffled = order.numpy()
        return np.sort(shuffled[learnt[shuffled]][:ROWS_TO_TRY])

    def _binner(self) -> StableBinner:
        return StableBinner(
            self.width,
            edges=self.edges,
            special=self.special,
            monotone=self.monotone,
            units=self.units,
            k=self.k,
            encode="ordinal",
            random_state=self.random_state,
        )

    def _told(self, names: Sequence[str]) -> int:
        """How many reasons are told: no more than leave one that is not."""
        told = {(self.codes or {}).get(name, name) for name in names}
        return int(max(1, min(self.k, len(told) - 1)))

    def _refer_to(self, usual: Table) -> Self:
        self.reference_ = frame_of(usual)
        self._usual, self._told_against = usual.columns, self.binner_.cells(usual)
        return self

    def _check(self) -> None:
        if self.side not in ("against", "for", "both"):
            raise ValueError(f"side must be 'against', 'for' or 'both', got {self.side!r}.")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {self.threshold!r}.")
        for name in ("weight", "auc_loss", "overlap_gain"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number >= 0, got {value!r}.")
        for name in ("k", "reference_rows"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")

    def _fit_two(self, table: Table, rows: Rows, parts: Parts) -> None:
        weight, trees, begin = self.weight, False, None
        teacher: TeacherName = "lines"  # where rows are too few to choose on
        if parts:
            attempts, found_by = self._tried(parts)
            kept = self._kept(attempts)
            weight, teacher, trees = kept.weight, kept.teacher, kept.interactions
            begin = found_by[teacher, weight]
        taught = self._teacher(rows, self._model(rows, teacher, TIMES), JUDGED)
        found = self._found(taught, weight, begin)
        self.score_: StepScore | CardScores | TreeScores = (
            with_trees(rows, found, self.random_state) if trees else found.score
        )
        curves = {rows.bands[at].name: curve for at, curve in taught.curves.items()}
        self.binner_.take(table, found.bands, curves, rows.weights)

    def _kept(self, attempts: list[Attempt]) -> Attempt:
        """Which attempt is kept, said to users if it is not what they asked for."""
        self.search_ = attempts
        kept = next(each for each in attempts if each.kept)
        if kept.weight < self.weight or kept.auc < least_auc(kept, self.auc_loss):
            warnings.warn(explained(attempts, self.auc_loss), LostAccuracy, 4)
        return kept

    def _rows(self, table: Table, labels: Codes, weights: Floats) -> Rows:
        """Rows as a search sees them: what can move as it is, all else in bands."""
        bands: list[Bands] = []
        values, widths, monotone = {}, {}, {}
        most = max((len(each) for each in self.binner_.widths_.values()), default=1)
        for place, (name, own) in enumerate(zip(*table, strict=True)):
            if own.dtype == object:
                bands.append(word_bands(name, own))
                continue
            bare, known = self.binner_.bare(name, own), self.binner_.known(name, own)
            own_widths = self.binner_.widths_[name]
            direction = (self.monotone or {}).get(name, 0)
            different, people = counted(own[known], weights[known])
            if len(different) > 1 and (max(own_widths) > 0 or direction):
                values[place] = own
                # As many widths for each number: the last one stands for those that are not said.
                widths[place] = own_widths + own_widths[-1:] * (most - len(own_widths))
                monotone[place] = direction
            elif len(different) > 1:
                flat = np.zeros((len(different), 1))
                curve = Curve(values=different, people=people, score=flat)
                edges = np.unique([*cuts(curve, STILL_BANDS), *bare.edges])
                bare = replace(bare, edges=tuple(edges.tolist()))
            bands.append(bare)
        cells = [each.codes(own) for each, own in zip(bands, table.columns, strict=True)]
        return Rows(
            bands=bands,
            cells=np.stack(cells, 1),
            values=values,
            widths=widths,
            monotone=monotone,
            y=labels,
            weights=weights,
        )

    def _model(self, rows: Rows, name: TeacherName, times: int = 1) -> Ordered | Lines:
        if name == "lines":
            return lines_of(rows)
        return separate_trees(
            rows, interactions=self.interactions, seed=self.random_state, times=times
        )

    def _teacher(self, rows: Rows, model: Ordered | Lines, judged: int) -> Teacher:
        together = self.interactions and not isinstance(model, Lines)
        return teacher_of(rows, model, together=together, judged=judged, seed=self.random_state)

    def _found(
        self, teacher: Teacher, weight: float, begin: Found | None = None, *, parts: int = 1
    ) -> Found:
        # Of many numbers that can move, some reason breaks for nearly everybody: the same weight
        # would ask for more accuracy than of few.
        crowd = _crowd(teacher.rows)
        # Where accuracy asks for less weight, edges come cheaper and the teacher is followed.
        share = crowd * (max(weight / self.weight, LEAST_SHARE) if self.weight else 1.0)
        turns = TURNS if parts == 1 else FEW_TURNS
        wish = Wish(
            k=self.k_,
            side=self.side,
            threshold=_log_odds(self.threshold),
            broken=crowd * weight,
            edge=share * Wish.edge,
        )
        return steps_of(
            teacher,
            wish,
            start=share * START,
            trust=TRUST / share,
            overlap_gain=self.overlap_gain,
            begin=begin,
            # Of many numbers, and on each of several parts, fewer sweeps must do.
            sweeps=min(SWEEPS, max(2, turns // (parts * max(1, len(teacher.rows.values))))),
            seed=self.random_state,
        )

    def _tried(self, parts: Parts) -> tuple[list[Attempt], dict[tuple[TeacherName, float], Found]]:
        """What came of each attempt, the mean over parts of rows to learn from and to judge by.

        Beside them, what was found on the first part, by teacher and weight.
        """
        names: tuple[TeacherName, ...] = ("trees", "lines")
        models = {name: [self._model(learnt, name) for learnt, _ in parts] for name in names}

        def auc_of(several: Sequence[Ordered | Lines]) -> float:
            aucs = [
                mean_auc(model.decision_function(shown(own)), own.y, given(own.weights))
                for model, (_, own) in zip(several, parts, strict=True)
            ]
            return float(np.mean(aucs))

        aucs = {name: auc_of(several) for name, several in models.items()}
        best: TeacherName = max(names, key=lambda name: aucs[name])
        free = auc_of([free_trees(learnt, self.random_state) for learnt, _ in parts])
        numbers = parts[0][0]
        # Trees that look at everything keep no direction.
        together = self.interactions and not any(numbers.monotone.values())
        together = together and len(numbers.values) <= MOST_TOGETHER

        taught: dict[TeacherName, list[Teacher]] = {}
        found_by: dict[tuple[TeacherName, float], Found] = {}

        def attempt(name: TeacherName, share: float) -> Attempt:
            taught[name] = taught.get(name) or [
                self._teacher(learnt, model, FEW_JUDGED)
                for model, (learnt, _) in zip(models[name], parts, strict=True)
            ]
            trials = [
                self._trial(teacher, judged, share * self.weight, together, len(parts))
                for teacher, (_, judged) in zip(taught[name], parts, strict=True)
            ]
            found_by[name, share * self.weight] = trials[0][0]
            apart, blended = (float(np.mean([each[at] for each in trials])) for at in (1, 2))
            # Of few numbers, more reasons break by trees, and of few rows they follow chance: they
            # must be worth it. Else they are taken unless they are clearly worse.
            many = len(numbers.values) > FEW_MOVING and len(parts) == 1
            gain = -ABOUT if many else GAIN
            trees = together and blended >= apart + gain
            reached = [found.reached for found, _, _ in trials if found.reached is not None]
            return Attempt(
                teacher=name,
                weight=share * self.weight,
                interactions=trees,
                auc=blended if trees else apart,
                trees_auc=free,
                lines_auc=aucs["lines"],
                broken=tuple(np.mean([each.broken for each in reached], 0)) if reached else None,
                overlap=float(np.mean([each.overlap for each in reached])) if reached else None,
                kept=False,
            )

        attempts: list[Attempt] = []
        for share in LADDER:
            attempts.append(attempt(best, share))
            if attempts[-1].auc >= least_auc(attempts[-1], self.auc_loss) or not self.weight:
                break
        if best == "lines" and self.weight:
            attempts = more_individual(attempts, attempt("trees", LADDER[0]), self.auc_loss)
        return with_kept(attempts, self.auc_loss), found_by

    def _trial(
        self, teacher: Teacher, judged: Rows, weight: float, together: bool, parts: int
    ) -> tuple[Found, float, float]:
        """Steps, and the AUC on judged rows without and with interactions of all attributes."""
        found = self._found(teacher, weight, parts=parts)
        cells, weights = judged.within(found.bands), given(judged.weights)
        apart = blended = mean_auc(found.score(cells), judged.y, weights)
        if together:
            score = with_trees(teacher.rows, found, self.random_state, last=False)
            blended = mean_auc(score(cells), judged.y, weights)
        return found, apart, blended

    def _fit_several(self, table: Table, rows: Rows, parts: Parts) -> None:
        """Bands by what each number does for all classes, and points or trees on them."""
        if any((self.monotone or {}).values()):
            raise ValueError(
                "monotone is kept for two classes only, got "
                f"{len(self.classes_)}: leave it out, or fit one class against the rest."
            )
        weight, trees = self.weight, False
        teacher: TeacherName = "lines"  # where rows are too few to choose on
        if parts:
            attempts = tried(
                parts,
                weight=self.weight,
                auc_loss=self.auc_loss,
                interactions=self.interactions,
                seed=self.random_state,
            )
            kept = self._kept(attempts)
            weight, teacher, trees = kept.weight, kept.teacher, kept.interactions
        told = Told.of(rows, teacher, self.random_state)
        bands, card = card_of(told, penalty_at(weight / self.weight if self.weight else 1.0))
        self.score_ = card
        if trees:
            self.score_ = trees_of(rows, bands, len(self.classes_), self.random_state)
        curves = {rows.bands[at].name: curve for at, curve in told.curves.items()}
        self.binner_.take(table, bands, curves, rows.weights)

    def _reference(self, table: Table, labels: Codes, weights: Floats) -> Table:
        """The rows that contributions are told against: each class has its share of them."""
        if self.reference is not None:
            return Table(table.names, self.binner_.values(self.reference))
        if given(weights) is not None:
            rows = min(self.reference_rows, len(labels))
            return rows_of(table, spread_rows(labels, weights, rows, self.random_state))
        chosen = draw_reference(
            torch.arange(len(labels)),
            torch.from_numpy(labels),
            rows=min(self.reference_rows, len(labels)),
            seed=self.random_state,
        )
        return rows_of(table, chosen.numpy())

    # --- predicting -----------------------------------------------------------------------------

    def _cells(self, X: Any) -> Codes:
        check_is_fitted(self)
        return self.binner_.codes(X)

    def decision_function(self, X: Any) -> Floats:
        """Log-odds of the second of two classes, (N,), or a score for each of several, (N, C)."""
        cells = self._cells(X)
        return self.score_(cells)

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class: (N, C)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            second = 1 / (1 + np.exp(-scores))
            return np.stack([1 - second, second], 1)
        raised = np.exp(scores - scores.max(1, keepdims=True))
        shares: Floats = raised / raised.sum(1, keepdims=True)
        return shares

    def predict(self, X: Any) -> Any:
        """The decided class of each row: (N,)."""
        cells = self._cells(X)
        return self.classes_[decided_by(self._scores(cells))]

    def _scores(self, cells: Codes) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        said = self.score_(cells)
        if said.ndim > 1:
            return said
        # Half of the log-odds for each side: the margin of a class is then its log-odds.
        half = (said - _log_odds(self.threshold)) / 2
        return np.stack([-half, half], 1)

    # --- reasons --------------------------------------------------------------------------------

    def cell_model(self, reference: pd.DataFrame | None = None) -> CellModel:
        """What is said of cells and what attributes add, against `reference_` or other rows."""
        check_is_fitted(self)
        against = self._told_against if reference is None else self.binner_.codes(reference)
        if isinstance(self.score_, StepScore):
            score = self.score_

            def added(cells: Codes) -> Floats:
                phi = score.contributions(cells, against)
                return np.stack([-phi, phi], 2)

            return CellModel(
                score=self._scores, contributions=added, steps=score, reference=against
            )
        several = self.score_
        return CellModel(
            score=self._scores,
            contributions=lambda cells: several.contributions(cells, against),
        )

    def contributions(self, X: Any) -> Floats:
        """What each attribute adds to the score of the decided class: (N, m), in log-odds.

        They are Shapley values against `reference_`, and add up to the log-odds of the decided
        class less their mean over the reference; of several classes, to its margin.
        """
        cells = self._cells(X)
        decided = decided_by(self._scores(cells))
        phi = self.cell_model().contributions(cells)
        found: Floats = np.take_along_axis(phi, decided[:, None, None], 2)[..., 0]
        return found

    def reasons(self, X: Any) -> list[list[Reason]]:
        """The k reasons of each decision, the first of all first, in words.

        What several attributes with one code add counts together; the value told is that of the
        one among them that counts most.
        """
        phi, bands = self.contributions(X), self.binner_.attributes_
        units = {each.name: each.unit for each in bands if isinstance(each, NumberBands)}
        names = [each.name for each in bands]
        return told_reasons(
            phi,
            dict(zip(names, self.binner_.values(X), strict=True)),
            {
                name: usual_in_words(own, units.get(name, ""))
                for name, own in zip(names, self._usual, strict=True)
            },
            k=self.k_,
            side=self.side,
            codes=self.codes or {},
            units=units,
        )

    # --- proof ----------------------------------------------------------------------------------

    def certify(self, X: Any, width: Mapping[str, float] | None = None) -> list[ReasonVerdict]:
        """An exact verdict on the reasons of each decision: certified, or broken, and how.

        A move changes each number by no more than its `width`, the largest of those asked for
        unless given, whole numbers by whole ones. Where several attributes have one code, the
        verdict is on codes.
        """
        self._cells(X)
        return cell_verdicts(
            self.binner_,
            self.cell_model(),
            X,
            k=self.k_,
            side=self.side,
            width=width,
            threshold=self.threshold,
            codes=self.codes,
        )

    def stability(self, X: Any, width: Mapping[str, float] | None = None) -> Stability:
        """How stable and how individual the reasons of these decisions are."""
        verdicts = self.certify(X, width)
        counts = dict.fromkeys(("certified", "broken", "undetermined"), 0)
        for each in verdicts:
            counts[each.verdict] += 1
        labels = sorted({reason for each in verdicts for reason in each.reasons})
        told = np.array([[name in each.reasons for name in labels] for each in verdicts], float)
        classes = np.unique([str(each.decision) for each in verdicts], return_inverse=True)[1]
        shared = overlap(torch.from_numpy(told), self.k_, torch.from_numpy(classes))
        known = [each for each in verdicts if each.kept is not None and each.core is not None]
        kept = float(np.mean([each.kept for each in known])) if known else None
        core = [len(each.core or ()) for each in known]
        return Stability(
            decisions=len(verdicts),
            **{name: count / len(verdicts) for name, count in counts.items()},
            kept=kept,
            overlap=shared,
            kappa=None if kept is None or shared is None else kappa(kept, shared),
            core=float(np.mean(core)) if known else None,
            all_but_one=float(np.mean([n >= self.k_ - 1 for n in core])) if known else None,
        )

    def audit(self, X: Any, **settings: Any) -> "ReasonAudit":
        """An audit of the reasons of these decisions, as `r2et.audit` gives it.

        `settings` are those of `r2et.audit`, such as out="folder" for a page.
        """
        from r2et import audit

        rows = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))
        if not isinstance(X, pd.DataFrame):
            rows.columns = [each.name for each in self.binner_.attributes_]
        return cast("ReasonAudit", audit(self, rows, **settings))

    # --- telling --------------------------------------------------------------------------------

    @property
    def scorecard_(self) -> pd.DataFrame:
        """A row for each band: attribute, band in words, points, share of people.

        Points are what a band adds to the log-odds of the second of two classes, 0 being what the
        reference has on average. Attributes that speak together have none of their own: theirs are
        the mean contribution of the reference's people in the band, and `alone` is False.
        """
        check_is_fitted(self)
        bands, score = self.binner_.attributes_, self.score_
        if not isinstance(score, StepScore):
            return self.binner_.to_frame()[["attribute", "band", "share"]]
        cells, mean = (
            self._told_against,
            score.contributions(self._told_against, self._told_against),
        )
        rows = []
        for place, each in enumerate(bands):
            alone = place in score.points and score.trees is None
            for band, (word, share) in enumerate(
                zip(each.words, self.binner_.shares_[each.name], strict=True)
            ):
                if alone:
                    own = score.points[place]
                    points = float(own[band] - own[cells[:, place]].mean())
                else:
                    here = mean[cells[:, place] == band, place]
                    points = float(here.mean()) if len(here) else math.nan
                rows.append((each.name, word, points, share, alone))
        return pd.DataFrame(rows, columns=["attribute", "band", "points", "share", "alone"])

    def to_json(self) -> str:
        """The scorecard as JSON, with what is added to the points of all attributes.

        Refused where attributes speak together: their trees are no table.
        """
        score = self._card()
        attributes = [
            {"attribute": each.name, "bands": each.words, "points": score.points[at].tolist()}
            for at, each in enumerate(self.binner_.attributes_)
        ]
        classes = [str(label) for label in self.classes_]
        told = {"classes": classes, "constant": score.constant, "attributes": attributes}
        return json.dumps(told, indent=1)

    def to_sql(self, table: str) -> str:
        """A query for the log-odds of the second class, of all rows of a table.

        Refused where attributes speak together: train with `interactions=False`.
        """
        score = self._card()
        parts = [repr(score.constant)]
        for at, each in enumerate(self.binner_.attributes_):
            column = '"' + each.name.replace('"', '""') + '"'
            cases = [
                f"WHEN {band} THEN {value!r}"
                for band, value in enumerate(score.points[at].tolist())
            ]
            parts.append(f"CASE {each.sql(column)} {' '.join(cases)} END")
        return f"SELECT {' + '.join(parts)} AS score FROM {table}"

    def _card(self) -> StepScore:
        check_is_fitted(self)
        score = self.score_
        if not isinstance(score, StepScore) or score.rest is not None or score.trees is not None:
            raise ValueError(
                "only a scorecard leaves as a table, but some attributes of this score speak "
                "together: train with interactions=False, on two classes."
            )
        return score

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """The path, now holding the fitted classifier as one JSON file of data.

        Refused where trees cannot be read as leaves.
        """
        check_is_fitted(self)
        binner = self.binner_
        settings = {name: each for name, each in self.get_params().items() if name != "reference"}
        try:
            parameters = {name: as_data(name, each) for name, each in settings.items()}
            text = text_of(
                Saved(
                    parameters=Parameters(**parameters, reference=self.reference is not None),
                    named=hasattr(self, "feature_names_in_"),
                    classes=saved_classes(self.classes_),
                    bands=tuple(binner.attributes_),
                    shares=tuple(
                        tuple(binner.shares_[each.name].tolist()) for each in binner.attributes_
                    ),
                    widths=dict(binner.widths_),
                    curves={name: saved_curve(each) for name, each in binner.curves_.items()},
                    score=saved_score(self.score_),
                    reference=tuple(saved_column(own) for own in self._usual),
                    search=tuple(self.search_),
                )
            )
            self._restored(json.loads(text))  # what cannot be read again is not worth a file
        except (TypeError, ValueError) as problem:
            raise ValueError(f"this StableClassifier cannot be saved: {problem}") from problem
        return write_text(Path(path), text)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The classifier that `save` put there, which answers bit for bit as before.

        A file is read as data, each part of which is checked: one of doubtful origin runs no code.
        """
        content = json_of(content_of(path), str(path))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(
                f"{path} holds no StableClassifier that this version can read: give a file that "
                "save() wrote."
            )
        try:
            return cls._restored(content)
        except Exception as problem:  # of a file whose parts may be anything
            raise ValueError(
                f"{path} holds a StableClassifier with parts missing or changed "
                f"({' '.join(str(problem).split())}): restore it from a copy or train again."
            ) from problem

    @classmethod
    def _restored(cls, content: Mapping[str, Any]) -> Self:
        saved = read_saved(content)
        found = cls(**{**vars(saved.parameters), "reference": None})
        found._check()
        names = [each.name for each in saved.bands]
        found.classes_, found.n_features_in_ = restored_classes(saved.classes), len(names)
        found.k_, found.search_ = found._told(names), list(saved.search)
        found.binner_ = binner = found._binner()
        binner.classes_, binner.n_features_in_ = found.classes_, len(names)
        if saved.named:
            found.feature_names_in_ = binner.feature_names_in_ = np.array(names, dtype=object)
        binner.widths_ = dict(saved.widths)
        curves = {name: restored_curve(each) for name, each in saved.curves.items()}
        shares = [np.array(each) for each in saved.shares]
        binner.hold(list(saved.bands), curves, dict(zip(names, shares, strict=True)))
        found.score_ = restored_score(saved.score, saved.bands)
        found._refer_to(restored_reference(saved))
        if saved.parameters.reference:
            found.reference = found.reference_.copy()
        return found

    # --- pictures -------------------------------------------------------------------------------

    def plot_bands(self, name: str, ax: Any = None) -> Any:
        """A picture of one number: how many people have each value, what was learnt, edges."""
        check_is_fitted(self)
        return self.binner_.plot_bands(name, ax)

    def plot_reasons(self, X: Any, row: int = 0, ax: Any = None) -> Any:
        """A waterfall of one decision: from the reference's mean score to the row's, in steps."""
        import matplotlib.pyplot as plt

        phi = self.contributions(X)[row]
        bands, values = self.binner_.attributes_, self.binner_.values(X)
        order = np.argsort(-np.abs(phi), kind="stable")
        ends = np.concatenate([[0.0], np.cumsum(phi[order])])
        if ax is None:
            ax = plt.subplots(figsize=(7, 0.5 + 0.4 * len(phi)), layout="constrained")[1]
        for step, place in enumerate(order):
            towards = phi[place] >= 0
            ax.barh(step, phi[place], left=ends[step], color="#1f4e79" if towards else "#b3541e")
            ax.plot([ends[step + 1]] * 2, [step - 0.4, step + 1.4], color="#999999", linewidth=0.8)
            ax.annotate(
                f"{phi[place]:+.2f}",
                (max(ends[step], ends[step + 1]), step),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        named = [
            f"{bands[p].name}: {value_in_words(values[p][row], getattr(bands[p], 'unit', ''))}"
            for p in order
        ]
        ax.set_yticks(range(len(order)), named)
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlabel(f"what speaks for {self.predict(X)[row]!s}, in log-odds")
        return ax


def _crowd(rows: Rows) -> float:
    """The share of a weight that is left to each where many numbers can move."""
    return min(1.0, FEW_MOVING / max(1, len(rows.values)))


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))
