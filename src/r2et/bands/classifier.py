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
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

from r2et.bands.attribute import Bands, Codes, Floats, NumberBands, WordBands, one_hot, ones_at
from r2et.bands.binner import StableBinner
from r2et.bands.contributions import Side, shapley_margins, shown_as
from r2et.bands.descent import Wish
from r2et.bands.edges import Curve, cuts
from r2et.bands.steps import (
    START,
    TRUST,
    Found,
    Rows,
    StepScore,
    Teacher,
    free_trees,
    linear_teacher_of,
    shown,
    steps_of,
    teacher_of,
    with_trees,
)
from r2et.bands.table import Table, held_parts, rows_of, word_bands
from r2et.bands.teacher import mean_auc
from r2et.bands.verdicts import BandVerdict, CellModel, cell_verdicts, decided_by
from r2et.core.naming import nearest
from r2et.core.reasons import Reason
from r2et.data.features import with_unit
from r2et.explainers import draw_reference
from r2et.metrics.individuality import kappa, overlap

STILL_BANDS = 32
"""Bands of a number that no move changes: nothing is lost by having many."""
LADDER = (1.0, 0.3, 0.1, 0.0)
"""Shares of the weight of stability that are tried, one after another, until accuracy is kept."""
TREES_AHEAD = 0.005
"""Of AUC, by which trees with all interactions may be ahead."""
ABOUT = 0.001
"""Of AUC, by which attempts differ no more than by chance."""
LEAST_SHARE = 0.01
"""Of the usual price of an edge, which is left where stability has no weight."""
MOST_TOGETHER = 8
"""Numbers that can move, of which all interactions are still looked at: cells multiply."""
GAIN = 0.002
"""Of AUC on the held part, for which interactions of all attributes are worth having."""

TeacherName = Literal["trees", "lines"]


class LostAccuracy(UserWarning):
    """Reasons could not be made as stable as was asked without losing accuracy."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What was tried on the held part, and what came of it.

    `auc` is that of the score, `trees_auc` and `lines_auc` those of boosted trees with all
    interactions and of logistic regression, of which nothing else is asked; `broken` the shares of
    people whose reasons break within each width, `overlap` what two people of one predicted class
    share of their reasons.
    """

    teacher: TeacherName
    weight: float
    interactions: bool
    auc: float
    trees_auc: float
    lines_auc: float
    broken: tuple[float, ...] | None
    overlap: float | None
    kept: bool


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

    def fit(self, X: Any, y: Any) -> Self:
        """This classifier, fitted to the rows of X and their classes y."""
        self._check()
        self.binner_ = StableBinner(
            self.width,
            edges=self.edges,
            special=self.special,
            monotone=self.monotone,
            units=self.units,
            k=self.k,
            encode="ordinal",
            random_state=self.random_state,
        )
        table, labels = self.binner_.begin(X, y)
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
        told = {(self.codes or {}).get(name, name) for name in table.names}
        self.k_ = max(1, min(self.k, len(told) - 1))
        self.search_: list[Attempt] = []
        if len(self.classes_) == 2:
            self._fit_two(table, labels)
        else:
            self._fit_several(table, labels)
        usual = self._reference(table, labels)
        self.reference_ = pd.DataFrame(dict(zip(*usual, strict=True)))
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

    def _fit_two(self, table: Table, labels: Codes) -> None:
        rows = self._rows(table, labels)
        weight, trees = self.weight, False
        teacher: TeacherName = "lines"  # where rows are too few to choose on
        parts = [
            (rows.some(~held), rows.some(held)) for held in held_parts(labels, self.random_state)
        ]
        if parts:
            self.search_ = self._tried(parts)
            kept = next(each for each in self.search_ if each.kept)
            weight, teacher, trees = kept.weight, kept.teacher, kept.interactions
            if weight < self.weight or kept.auc < _asked(kept, self.auc_loss):
                warnings.warn(_said(self.search_, self.auc_loss), LostAccuracy, 3)
        taught = self._teacher(rows, teacher)
        found = self._found(taught, weight)
        self.score_: StepScore | CardScores = (
            with_trees(rows, found, self.random_state) if trees else found.score
        )
        curves = {rows.bands[at].name: curve for at, curve in taught.curves.items()}
        self.binner_.take(table, found.bands, curves)

    def _rows(self, table: Table, labels: Codes) -> Rows:
        """Rows as a search sees them: what can move as it is, all else in bands."""
        bands: list[Bands] = []
        values, widths, monotone = {}, {}, {}
        most = max((len(each) for each in self.binner_.widths_.values()), default=1)
        for place, (name, own) in enumerate(zip(*table, strict=True)):
            if own.dtype == object:
                bands.append(word_bands(name, own))
                continue
            bare, known = self.binner_.bare(name, own), self.binner_.plain(name, own)
            own_widths = self.binner_.widths_[name]
            direction = (self.monotone or {}).get(name, 0)
            different, people = np.unique(known, return_counts=True)
            if len(different) > 1 and (max(own_widths) > 0 or direction):
                values[place] = own
                # As many widths for each number: the last one stands for those that are not said.
                widths[place] = own_widths + own_widths[-1:] * (most - len(own_widths))
                monotone[place] = direction
            elif len(different) > 1:
                flat = np.zeros((len(different), 1))
                curve = Curve(values=different, people=people.astype(float), score=flat)
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
        )

    def _teacher(self, rows: Rows, name: TeacherName) -> Teacher:
        if name == "lines":
            return linear_teacher_of(rows, seed=self.random_state)
        return teacher_of(rows, interactions=self.interactions, seed=self.random_state)

    def _found(self, teacher: Teacher, weight: float) -> Found:
        # Where accuracy asks for less weight, edges come cheaper and the teacher is followed.
        share = max(weight / self.weight, LEAST_SHARE) if self.weight else 1.0
        wish = Wish(
            k=self.k_,
            side=self.side,
            threshold=_log_odds(self.threshold),
            broken=weight,
            edge=share * Wish.edge,
        )
        return steps_of(
            teacher,
            wish,
            start=share * START,
            trust=TRUST / share,
            overlap_gain=self.overlap_gain,
            seed=self.random_state,
        )

    def _tried(self, parts: Sequence[tuple[Rows, Rows]]) -> list[Attempt]:
        """What came of each attempt, the mean over parts of rows to learn from and to judge by."""
        names: tuple[TeacherName, ...] = ("trees", "lines")
        taught = {name: [self._teacher(learnt, name) for learnt, _ in parts] for name in names}
        aucs = {
            name: float(
                np.mean(
                    [
                        mean_auc(each(own), own.y)
                        for each, (_, own) in zip(teachers, parts, strict=True)
                    ]
                )
            )
            for name, teachers in taught.items()
        }
        best: TeacherName = max(names, key=lambda name: aucs[name])
        free = [
            mean_auc(free_trees(learnt, self.random_state).decision_function(shown(own)), own.y)
            for learnt, own in parts
        ]
        numbers = parts[0][0]
        # Trees that look at everything keep no direction.
        together = self.interactions and not any(numbers.monotone.values())
        together = together and len(numbers.values) <= MOST_TOGETHER
        attempts: list[Attempt] = []
        for share in LADDER:
            trials = [
                self._trial(teacher, judged, share * self.weight, together)
                for teacher, (_, judged) in zip(taught[best], parts, strict=True)
            ]
            apart, blended = (float(np.mean([each[at] for each in trials])) for at in (1, 2))
            trees = together and blended >= apart + GAIN
            reached = [found.reached for found, _, _ in trials if found.reached is not None]
            attempts.append(
                Attempt(
                    teacher=best,
                    weight=share * self.weight,
                    interactions=trees,
                    auc=blended if trees else apart,
                    trees_auc=float(np.mean(free)),
                    lines_auc=aucs["lines"],
                    broken=tuple(np.mean([each.broken for each in reached], 0))
                    if reached
                    else None,
                    overlap=float(np.mean([each.overlap for each in reached])) if reached else None,
                    kept=False,
                )
            )
            if attempts[-1].auc >= _asked(attempts[-1], self.auc_loss) or not self.weight:
                break
        # The last one reached what is asked; if none does, the first of those about as good.
        reached_auc = max(each.auc for each in attempts) - ABOUT
        good = [each.auc >= reached_auc for each in attempts]
        asked = attempts[-1].auc >= _asked(attempts[-1], self.auc_loss)
        place = len(attempts) - 1 if asked else good.index(True)
        return [replace(each, kept=at == place) for at, each in enumerate(attempts)]

    def _trial(
        self, teacher: Teacher, judged: Rows, weight: float, together: bool
    ) -> tuple[Found, float, float]:
        """Steps, and the AUC on judged rows without and with interactions of all attributes."""
        found = self._found(teacher, weight)
        cells = judged.within(found.bands)
        apart = blended = mean_auc(found.score(cells), judged.y)
        if together:
            score = with_trees(teacher.rows, found, self.random_state)
            blended = mean_auc(score(cells), judged.y)
        return found, apart, blended

    def _fit_several(self, table: Table, labels: Codes) -> None:
        """Bands by what each number does for all classes, and logistic regression on them."""
        if any((self.monotone or {}).values()):
            raise ValueError(
                "monotone is kept for two classes only, got "
                f"{len(self.classes_)}: leave it out, or fit one class against the rest."
            )
        self.binner_.learn(table, labels)
        ones, columns = one_hot(self.binner_.cells(table), self.binner_.attributes_)
        model = LogisticRegression(max_iter=500).fit(ones_at(ones, columns), labels)
        self.score_ = CardScores(
            bands=tuple(self.binner_.attributes_),
            points=np.asarray(model.coef_, dtype=np.float64),
            constant=np.asarray(model.intercept_, dtype=np.float64),
        )

    def _reference(self, table: Table, labels: Codes) -> Table:
        """The rows that contributions are told against: each class has its share of them."""
        if self.reference is not None:
            return Table(table.names, self.binner_.values(self.reference))
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

    def _model(self) -> CellModel:
        """What is said of cells, and what each attribute adds."""
        if isinstance(self.score_, StepScore):
            score, reference = self.score_, self._told_against

            def added(cells: Codes) -> Floats:
                phi = score.contributions(cells, reference)
                return np.stack([-phi, phi], 2)

            return CellModel(
                score=self._scores, contributions=added, steps=score, reference=reference
            )
        return CellModel(
            score=self._scores,
            contributions=lambda cells: shapley_margins(self._scores, cells, self._told_against),
        )

    def contributions(self, X: Any) -> Floats:
        """What each attribute adds to the score of the decided class: (N, m), in log-odds.

        They are Shapley values against `reference_`, and add up to the log-odds of the decided
        class less their mean over the reference; of several classes, to its margin.
        """
        cells = self._cells(X)
        decided = decided_by(self._scores(cells))
        phi = self._model().contributions(cells)
        found: Floats = np.take_along_axis(phi, decided[:, None, None], 2)[..., 0]
        return found

    def reasons(self, X: Any) -> list[list[Reason]]:
        """The k reasons of each decision, the first of all first, in words.

        What several attributes with one code add counts together; the value told is that of the
        one among them that counts most.
        """
        phi = self.contributions(X)
        values, bands = self.binner_.values(X), self.binner_.attributes_
        usual = [_usual(each, own) for each, own in zip(bands, self._usual, strict=True)]
        told_as = [(self.codes or {}).get(each.name, each.name) for each in bands]
        codes = list(dict.fromkeys(told_as))
        members = [[at for at, each in enumerate(told_as) if each == code] for code in codes]
        sums = np.stack([phi[:, some].sum(1) for some in members], 1)
        spoken, each_spoken = shown_as(sums, self.side), shown_as(phi, self.side)
        found = []
        for row in range(len(phi)):
            same_way = np.maximum(spoken[row], 0.0).sum()
            reasons = []
            for code in np.argsort(-spoken[row], kind="stable")[: self.k_]:
                place = max(members[code], key=lambda at: each_spoken[row, at])
                reasons.append(
                    Reason(
                        attribute=bands[place].name,
                        value=_in_words(bands[place], values[place][row]),
                        usual=usual[place],
                        contribution=float(sums[row, code]),
                        share=max(0.0, float(spoken[row, code])) / same_way if same_way else 0.0,
                        code=codes[code],
                    )
                )
            found.append(reasons)
        return found

    # --- proof ----------------------------------------------------------------------------------

    def certify(self, X: Any, width: Mapping[str, float] | None = None) -> list[BandVerdict]:
        """An exact verdict on the reasons of each decision: certified, or broken, and how.

        A move changes each number by no more than its `width`, the largest of those asked for
        unless given, whole numbers by whole ones. Where several attributes have one code, the
        verdict is on codes.
        """
        self._cells(X)
        return cell_verdicts(
            self.binner_,
            self._model(),
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
        named = [f"{bands[p].name}: {_in_words(bands[p], values[p][row])}" for p in order]
        ax.set_yticks(range(len(order)), named)
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlabel(f"what speaks for {self.predict(X)[row]!s}, in log-odds")
        return ax


@dataclass(frozen=True, kw_only=True, eq=False)
class CardScores:
    """Points of each band for each of several classes, (C, columns)."""

    bands: tuple[Bands, ...]
    points: Floats
    constant: Floats

    def __call__(self, cells: Codes) -> Floats:
        """A score for each class: (N, m) -> (N, C)."""
        found: Floats = self.points.T[one_hot(cells, self.bands)[0]].sum(1) + self.constant
        return found


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def _asked(attempt: Attempt, auc_loss: float) -> float:
    """The AUC that is to be kept."""
    return max(attempt.trees_auc - TREES_AHEAD, attempt.lines_auc) - auc_loss


def _said(attempts: Sequence[Attempt], auc_loss: float) -> str:
    """What the guard did, in words."""
    first, kept = attempts[0], next(each for each in attempts if each.kept)
    asked = _asked(first, auc_loss)
    said = (
        f"on held rows AUC was {first.auc:.4f} at weight {first.weight:g}, and {asked:.4f} is "
        f"asked for (boosted trees have {first.trees_auc:.4f}, logistic regression "
        f"{first.lines_auc:.4f}): "
    )
    if kept.auc >= asked:
        return f"{said}the weight of stability was lowered to {kept.weight:g} (AUC {kept.auc:.4f})."
    return f"{said}no weight reaches it; the best of them, {kept.weight:g}, has {kept.auc:.4f}."


def _in_words(bands: Bands, value: Any) -> str:
    if isinstance(bands, WordBands):
        return str(value)
    return "missing" if math.isnan(value) else with_unit(float(value), bands.unit)


def _usual(bands: Bands, values: Any) -> str:
    """The most frequent word of a reference and its share, or the median of numbers."""
    if isinstance(bands, NumberBands):
        known = values[~np.isnan(values)]
        return with_unit(float(np.median(known)), bands.unit) if len(known) else "missing"
    words, counts = np.unique(values.astype(str), return_counts=True)
    return f"{words[counts.argmax()]}, {counts.max() / counts.sum():.0%}".replace("%", " %")
