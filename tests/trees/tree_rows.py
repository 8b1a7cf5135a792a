"""Rows that readers of trees are tested on, and what is asked of them there."""

from typing import Any

import numpy as np
import pandas as pd

from r2et.core.arrays import Floats
from r2et.trees.form import UNSEEN, Ensemble
from r2et.trees.readers import READERS, difference, read_trees, reader_of
from r2et.trees.readers.parts import Admitted, unseen_word

SINGLE = np.finfo(np.float32)
SPECIAL = np.array(
    [
        *(0.0, -0.0, 5e-324, -5e-324, 1e-45, -1e-45, 1e-40, 1e-36, -1e-36, 1e-35, -1e-35, 2e-35),
        *(1e-30, float(np.float32(1e-35)), -float(np.float32(1e-35)), 1.0, -1.0, 0.5, 1.5, 1e10),
        *(-1e10, SINGLE.tiny, float(SINGLE.max), -float(SINGLE.max), float(np.nextafter(1, 2))),
    ]
)
HUGE = np.array([3.5e38, -3.5e38, 1e300, -1e300, np.inf, -np.inf, np.finfo(np.float64).max])


def people(rows: int = 500) -> tuple[pd.DataFrame, Any]:
    """A small table with numbers, words, codes and missing values, and labels."""
    generator = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "age": generator.integers(18, 90, rows).astype(float),
            "town": pd.Categorical(generator.choice(["u", "v", "w", "x", "y", "z"], rows)),
            "income": generator.lognormal(10, 1, rows).round(2),
            "band": pd.Categorical(generator.choice([10, 20, 30, 40, 50, 60], rows)),
            "debt": generator.choice([0.0, 0.0, 0.25, -1.5, 3.0], rows),
        }
    )
    table.loc[::9, "age"] = np.nan
    table.loc[::11, "town"] = np.nan
    score = table["age"].fillna(60) / 30 + table["town"].isin(["u", "x"]) + table["debt"]
    score += table["band"].isin([20, 50]) + generator.normal(0, 0.3, rows)
    return table, (score > score.median()).astype(int).to_numpy()


def with_gaps(load: Any) -> tuple[Any, Any]:
    """A table of scikit-learn's with missing values in its first columns, and labels."""
    x, y = load(return_X_y=True)
    x = x.copy()
    x[::3, 0] = np.nan
    x[y == 1, 1] = np.nan
    return x, y


def read(model: Any) -> Ensemble:
    """The trees of a model that is read."""
    ensemble = read_trees(model)
    assert ensemble is not None
    return ensemble


def beside(thresholds: Floats) -> Floats:
    """Thresholds and their neighbours in double and in single precision."""
    with np.errstate(over="ignore"):
        single = thresholds.astype(np.float32)
        up, down = (np.nextafter(single, np.float32(end)) for end in (np.inf, -np.inf))
        middles = [(single.astype(float) + each.astype(float)) / 2 for each in (up, down)]
        near = [thresholds, *middles]
        sides = [np.nextafter(each, end) for each in near for end in (1e308, -1e308)]
    return np.concatenate([*near, *sides, single, up, down]).astype(float)


def hard_rows(ensemble: Ensemble, admitted: Admitted, rows: int = 600) -> Floats:
    """Rows of values that are next to thresholds, special, missing or unknown: (rows, columns)."""
    generator = np.random.default_rng(7)
    parts = []
    for at, column in enumerate(ensemble.columns):
        if column.words is None:
            own = [tree.threshold[tree.feature == at] for tree in ensemble.trees]
            pool = np.concatenate([beside(np.unique(np.concatenate(own))), SPECIAL, HUGE])
            pool = pool[np.abs(pool) <= admitted.largest] if admitted.largest < np.inf else pool
        else:
            pool = np.arange(len(column.words), dtype=float)
            known = admitted.unseen and unseen_word(column.words) is not None
            pool = np.append(pool, UNSEEN) if known else pool
        values = generator.choice(pool, rows)
        missing = generator.random(rows) < 0.1 * admitted.missing
        parts.append(np.where(missing, np.nan, values))
    return np.stack(parts, 1)


def check_same(ensemble: Ensemble, model: Any, numbers: Floats) -> None:
    """The model gives the ensemble's probabilities."""
    reader = reader_of(model)
    assert reader is not None
    assert reader in READERS.values()
    assert difference(ensemble, model, numbers) <= reader.tolerance


def check_leaves(ensemble: Ensemble, numbers: Floats, theirs: Any, every: int = 1) -> None:
    """Rows that come to one leaf in the library do here, and others do not: (N, trees)."""
    theirs = np.asarray(theirs).reshape(len(numbers), -1)
    trees = ensemble.trees[::every]
    assert theirs.shape[1] == len(trees)
    for tree, told in zip(trees, theirs.T, strict=True):
        pairs = set(zip(tree.leaf_of(numbers).tolist(), told.tolist(), strict=True))
        assert len({ours for ours, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)


def check_cover(ensemble: Ensemble) -> None:
    """What comes through a node goes on to its children."""
    for tree in ensemble.trees:
        assert tree.cover is not None
        asks = np.flatnonzero(tree.feature >= 0)
        both = tree.cover[tree.left[asks]] + tree.cover[tree.right[asks]]
        np.testing.assert_allclose(tree.cover[asks], both, rtol=1e-4)
