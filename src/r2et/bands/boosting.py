"""Boosted trees of scikit-learn's: in which some attributes stay apart, and rows have weights."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from r2et.core.arrays import Codes, Floats

TREES = {"learning_rate": 0.15, "max_iter": 300, "max_leaf_nodes": 8}
"""Small trees: where few attributes may interact, larger ones gain nothing and fit worse."""
LARGE_TREES = {"learning_rate": 0.15, "max_leaf_nodes": 31, "l2_regularization": 30.0}
"""Trees that look at all attributes at once gain by more leaves, held back, of many rows."""
LARGE_ROWS = 10_000
"""As many as that; they are grown once, as more of them gain little."""
FEW_ROWS = 1000
"""Below, no rows are held to say when to stop, and there are as many trees as learn a little."""
FEW_TREES = 60
MANY_ROWS = 200_000
MOST_BINS = 255  # of a column, which trees sort its values into


def given(weights: Floats) -> Floats | None:
    """Weights of rows as libraries want them: none where every row counts once."""
    return None if (weights == 1).all() else weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Coarse:
    """Columns whose many values are shown by the number of their bin, between `cuts` of each.

    Trees make such bins themselves, but of weighted rows so slowly that this takes most of the
    time.
    """

    cuts: Mapping[int, Floats]

    @classmethod
    def of(cls, x: Floats, words: Sequence[bool], weights: Floats) -> "Coarse":
        """Bins of about equal weight, for columns of numbers with more values than bins."""
        cuts: dict[int, Floats] = {}
        if given(weights) is None:
            return cls(cuts=cuts)
        for place in np.flatnonzero(~np.array(words, dtype=bool)):
            known = ~np.isnan(x[:, place])
            values, index = np.unique(x[known, place], return_inverse=True)
            if len(values) <= MOST_BINS:
                continue
            heavy = np.bincount(index, weights[known]).cumsum()
            shares = np.linspace(0, heavy[-1], MOST_BINS + 1)[1:-1]
            cuts[int(place)] = np.unique(values[np.searchsorted(heavy, shares)])
        return cls(cuts=cuts)

    def __call__(self, x: Floats) -> Floats:
        """What trees are shown: (N, m)."""
        found = x.copy() if self.cuts else x
        for place, cuts in self.cuts.items():
            bins = np.searchsorted(cuts, x[:, place]).astype(np.float64)
            found[:, place] = np.where(np.isnan(x[:, place]), np.nan, bins)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Ordered:
    """Boosted trees that are shown columns in an order of their own: those of words first.

    Trees that are told of categories put these first themselves, and then take constraints on
    interactions for those of other columns.
    """

    models: tuple[HistGradientBoostingClassifier, ...]
    order: Codes
    coarse: Coarse

    def decision_function(self, x: Floats) -> Floats:
        """Log-odds of two classes, (N,), or a score for each of several, (N, C): their mean."""
        seen = self.coarse(x)[:, self.order]
        with threads(len(x)):
            found: Floats = sum(each.decision_function(seen) for each in self.models)
        return found / len(self.models)


def threads(rows: int) -> AbstractContextManager[object]:
    """Few rows are gone through by one thread: others would only wait for it."""
    return threadpool_limits(1, "openmp") if rows < MANY_ROWS else nullcontext()


def boosted(
    x: Floats,
    y: Codes,
    words: Sequence[bool],
    apart: Sequence[set[int]],
    seed: int,
    weights: Floats | None = None,
    times: int = 1,
    *,
    large: bool = False,
) -> Ordered:
    """Boosted trees of which no tree looks at attributes of two of the sets `apart`.

    Grown several `times`, each stopped by other rows, they follow chance less. If they may be
    `large`, they are where rows are many.
    """
    order = np.argsort(~np.array(words, dtype=bool), kind="stable")
    place = np.argsort(order)
    many = len(y) >= FEW_ROWS
    large = large and len(y) >= LARGE_ROWS
    settings = {**TREES, **(LARGE_TREES if large else {})}
    weights = np.ones(len(y)) if weights is None else weights
    coarse = Coarse.of(x, words, weights)
    seen, models = coarse(x)[:, order], []
    for number in range(times if many else 1):
        model = HistGradientBoostingClassifier(
            **(settings if many else {**settings, "max_iter": FEW_TREES}),
            categorical_features=np.array(words, dtype=bool)[order] if any(words) else None,
            interaction_cst=[{int(place[each]) for each in some} for some in apart],
            early_stopping=many,
            random_state=seed + number,
        )
        with threads(len(y)):
            models.append(model.fit(seen, y, sample_weight=given(weights)))
    return Ordered(models=tuple(models), order=order, coarse=coarse)
