"""Who says what a number does: a teacher whose curves bands keep, and the card that keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import has_fit_parameter

from r2et.bands.attribute import Bands, one_hot, ones_at
from r2et.bands.boosting import Coarse, Ordered, given
from r2et.bands.table import Table, word_bands
from r2et.core.arrays import Codes, Floats
from r2et.explainers import draw_reference

AVERAGED = 200  # rows that the curve of a teacher with interactions is averaged over
ROWS_TO_CHOOSE = 30_000  # as many are enough to choose a penalty on


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """A classifier of numbers and of the places of words, and rows to average its curves over."""

    model: Any
    labels: tuple[tuple[str, ...] | None, ...]
    additive: bool
    background: Floats

    @classmethod
    def of(cls, table: Table, y: Codes, teacher: Any, seed: int, weights: Floats) -> "Teacher":
        """The teacher of these rows, each of which counts as often as its weight says."""
        labels = tuple(
            word_bands("", own).labels if own.dtype == object else None for own in table.columns
        )
        x = encoded_table(table, labels)
        words = [each is not None for each in labels]
        if teacher is None:
            coarse = Coarse.of(x, words, weights)
            trees = HistGradientBoostingClassifier(
                categorical_features=words if any(words) else None,
                interaction_cst="no_interactions",
                early_stopping=len(y) >= 1000,
                random_state=seed,
            ).fit(coarse(x), y, given(weights))
            model: Any = Ordered(models=(trees,), order=np.arange(len(words)), coarse=coarse)
        elif given(weights) is None:
            model = clone(teacher).fit(x, y)
        elif has_fit_parameter(teacher, "sample_weight"):
            model = clone(teacher).fit(x, y, sample_weight=weights)
        else:
            raise ValueError(
                f"rows have weights, which the teacher, a {type(teacher).__name__}, does not take: "
                "give another one, or leave out sample_weight."
            )
        kept = draw_reference(
            torch.from_numpy(x), torch.from_numpy(y), rows=min(AVERAGED, len(y)), seed=seed
        )
        return cls(model=model, labels=labels, additive=teacher is None, background=kept.numpy())

    def curve(self, place: int, values: Floats) -> Floats:
        """What the values of one column add to the score, up to a constant: (u, C)."""
        rows = self.background[:1] if self.additive else self.background
        moved = np.repeat(rows[None], len(values), 0)
        moved[:, :, place] = values[:, None]
        found = log_odds_of(self.model, moved.reshape(-1, moved.shape[-1]))
        mean: Floats = found.reshape(len(values), len(rows), -1).mean(1)
        return mean

    def score(self, table: Table) -> Floats:
        """Log-odds, (N,), or of several classes a score for each, (N, C)."""
        return log_odds_of(self.model, encoded_table(table, self.labels))

    def contributions(self, table: Table) -> Floats:
        """What each column of each row adds, less its mean over the background: (N, m, C)."""
        x = encoded_table(table, self.labels)
        parts = []
        for place in range(x.shape[1]):
            values, codes = np.unique(x[:, place], return_inverse=True)
            curve = self.curve(place, values)
            usual = np.searchsorted(values, np.nan_to_num(self.background[:, place], nan=np.inf))
            parts.append(curve[codes.ravel()] - curve[usual.clip(0, len(values) - 1)].mean(0))
        return np.stack(parts, 1)


def encoded_table(table: Table, labels: Sequence[tuple[str, ...] | None]) -> Floats:
    """Numbers as they are, words as their places, -1 for those that have none: (N, m)."""
    columns = []
    for own, known in zip(table.columns, labels, strict=True):
        if known is None:
            columns.append(np.zeros(len(own)) if np.isnan(own).all() else own)
        else:
            index = pd.Index(known, dtype=object)
            places = index.get_indexer(pd.Index(own, dtype=object)).astype(np.float64)
            columns.append(np.where(places < 0, np.nan, places))
    found: Floats = np.stack(columns, 1)
    return found


def log_odds_of(model: Any, x: Floats) -> Floats:
    """Log-odds of the second of two classes, (N,), or a score for each of several, (N, C)."""
    if hasattr(model, "decision_function"):
        found: Floats = np.asarray(model.decision_function(x), dtype=np.float64)
        return found
    shares = np.clip(model.predict_proba(x), 1e-9, None)
    logs = np.log(shares)
    odds: Floats = logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
    return odds


@dataclass(frozen=True, kw_only=True, eq=False)
class Card:
    """Points for each band, (columns, C), whose sum is the score; the rows it is told against."""

    bands: Sequence[Bands]
    points: Floats
    constant: Floats
    usual: Floats

    def score(self, table: Table) -> Floats:
        """The sum of points: (N,), or (N, C) of several classes."""
        total: Floats = self.points[self._ones(table)].sum(1) + self.constant
        return total[:, 0] if total.shape[1] == 1 else total

    def contributions(self, table: Table) -> Floats:
        """The points of each attribute less their mean over all rows: (N, m, C)."""
        return self.points[self._ones(table)] - self.usual

    def _ones(self, table: Table) -> Codes:
        codes = [each.codes(own) for each, own in zip(self.bands, table.columns, strict=True)]
        return one_hot(np.stack(codes, 1), self.bands)[0]


def scorecard(bands: Sequence[Bands], table: Table, y: Codes, weights: Floats) -> Card:
    """Logistic regression on the bands of some rows."""
    codes = [each.codes(own) for each, own in zip(bands, table.columns, strict=True)]
    ones, columns = one_hot(np.stack(codes, 1), bands)
    x = ones_at(ones, columns)
    few = np.linspace(0, len(y) - 1, min(len(y), ROWS_TO_CHOOSE)).astype(int)
    model = LogisticRegression(C=1.0, max_iter=300).fit(x[few], y[few], given(weights[few]))
    points = np.asarray(model.coef_, dtype=np.float64).T
    return Card(
        bands=bands,
        points=points,
        constant=np.asarray(model.intercept_),
        usual=np.average(points[ones], axis=0, weights=weights),
    )


def mean_auc(scores: Floats, y: Codes, weights: Floats | None = None) -> float:
    """AUC of a score, (N,), or the mean over classes of those of several, (N, C).

    Of several it is that of the probability of each class: a score alone need not rank rows, if
    those of other classes rise with it.
    """
    if scores.ndim == 1:
        return float(roc_auc_score(y, scores, sample_weight=weights))
    shares = log_softmax(scores, 1)
    present = [c for c in range(scores.shape[1]) if 0 < (y == c).sum() < len(y)]
    aucs = [roc_auc_score(y == c, shares[:, c], sample_weight=weights) for c in present]
    return float(np.mean(aucs))
