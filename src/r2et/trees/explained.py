"""The trees of a fitted model of two classes, over the columns that reasons are about."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from r2et.trees.cells import CellTrees
from r2et.trees.columns import over_cells
from r2et.trees.pipelines import taken_apart
from r2et.trees.readers import read_trees
from r2et.trees.reading import Told

KINDS = 500  # rows that show what kinds of values each column has


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
