"""Exact contributions of tree ensembles side by side with shap's C++, and how both grow.

Of 1,000 decisions on UCI credit card default against 20 rows, process time of one thread: medians
of repeats in which both take turns. What counts is telling: ours includes the rows of the
reference, which shap reads with the model. A second ratio counts reading, too. Ends with 1 if shap
is faster on one of the first models, or if both tell something else.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import xgboost

from r2et.core.arrays import Floats
from r2et.trees.cells import CellTrees
from r2et.trees.columns import over_cells
from r2et.trees.pipelines import taken_apart
from r2et.trees.readers import read_trees
from reproduction.reasons.tables import TABLES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import shap

LEARNT, ROWS, REFERENCE, TREES, REPEATS, ALIKE = 10_000, 1_000, 20, 100, 3, 1e-5
Fit = Callable[[pd.DataFrame, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Times:
    """CPU seconds: to read a model, and to explain rows."""

    read: float
    tell: float


def boosted(depth: int, trees: int = TREES) -> Fit:
    """XGBoost of trees of one depth."""
    return xgboost.XGBClassifier(n_estimators=trees, max_depth=depth, n_jobs=1).fit


def leafwise(leaves: int = 31, trees: int = TREES) -> Fit:
    """LightGBM of trees of so many leaves."""
    return lightgbm.LGBMClassifier(n_estimators=trees, num_leaves=leaves, n_jobs=1, verbose=-1).fit


def own(model: Any, rows: pd.DataFrame, reference: pd.DataFrame) -> tuple[Times, Floats]:
    """Contributions by leaves: (N, m)."""
    begun = time.process_time()
    trees = trees_of(model, reference)
    read = time.process_time()
    found = trees.table.against(trees.cells(reference)).contributions(trees.cells(rows))
    return Times(read=read - begun, tell=time.process_time() - read), found[..., 0]


def trees_of(model: Any, rows: pd.DataFrame) -> CellTrees:
    """A model over the cells of its columns."""
    parts, ensemble = taken_apart(model, rows), read_trees(model)
    assert parts is not None
    assert ensemble is not None
    return over_cells(ensemble, parts, rows)


def of_shap(model: Any, rows: pd.DataFrame, reference: pd.DataFrame) -> tuple[Times, Floats]:
    """Contributions by shap: (N, m). It reads the model and the reference together."""
    begun = time.process_time()
    explainer = shap.TreeExplainer(model, reference, feature_perturbation="interventional")
    read = time.process_time()
    found = np.asarray(explainer.shap_values(rows, check_additivity=False))
    return Times(read=read - begun, tell=time.process_time() - read), found


def compared(name: str, fit: Fit, table: pd.DataFrame, y: Any, rows: int, others: int) -> float:
    """Print a line for one model; how many times shap's time ours is."""
    model = fit(table[:LEARNT], y[:LEARNT])
    reference = table.iloc[LEARNT : LEARNT + others]
    asked = table.iloc[LEARNT + others : LEARNT + others + rows]
    ours, theirs, apart = [], [], 0.0
    for _ in range(REPEATS):
        mine, found = own(model, asked, reference)
        other, told = of_shap(model, asked, reference)
        ours.append(mine)
        theirs.append(other)
        apart = max(apart, float(np.abs(found - told).max()))
    tell, read, shap_tell, shap_read = (
        statistics.median(getattr(each, what) for each in several)
        for several in (ours, theirs)
        for what in ("tell", "read")
    )
    whole = (shap_tell + shap_read) / (tell + read)
    print(
        f"{name:<30} {rows:6,d} {others:5d}   {tell:6.3f} {read:6.3f}   {shap_tell:6.3f} "
        f"{shap_read:6.3f}   {shap_tell / tell:5.1f} {whole:5.1f}   {apart:.0e}",
        flush=True,
    )
    return shap_tell / tell if apart <= ALIKE else 0.0


def of_default() -> Iterator[float]:
    """Print all lines, and yield the ratios of those that count."""
    case = TABLES["default"]()
    table = case.x.select_dtypes("number")
    print(
        "                                 rows   ref.   ours         s   shap         s   shap/ours"
    )
    print(
        "                                               telling  read   telling  read   tell   all"
    )
    models = {f"XGBoost, depth {depth}": boosted(depth) for depth in (4, 5, 6)}
    for name, fit in {**models, "LightGBM, 31 leaves": leafwise()}.items():
        yield compared(name, fit, table, case.y, ROWS, REFERENCE)
    print("how both grow, XGBoost of depth 5:")
    for rows in (1, 100, 5_000):
        compared("  rows", boosted(5), table, case.y, rows, REFERENCE)
    for others in (1, 5, 100):
        compared("  reference", boosted(5), table, case.y, ROWS, others)
    for trees in (25, 400):
        compared(f"  {trees} trees", boosted(5, trees), table, case.y, ROWS, REFERENCE)
    for depth in (2, 8, 10):
        compared(f"  depth {depth}", boosted(depth), table, case.y, ROWS, REFERENCE)
    compared("  LightGBM, 127 leaves", leafwise(127), table, case.y, ROWS, REFERENCE)


def main() -> None:
    """Print everything."""
    warnings.simplefilter("ignore")
    ratios = list(of_default())
    print(f"shap takes {min(ratios):.1f} times as long as leaves at least (>= 1)")
    sys.exit(min(ratios) < 1)


if __name__ == "__main__":
    main()
