"""Whether StableClassifier keeps the accuracy of ordinary models, tuned on a table or not.

The floor that is asked for is max(LR, HGB - .005) - .005, of the AUC of logistic regression and of
HistGradientBoosting. Of several classes AUC is the mean over classes, each against all others.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from r2et import StableClassifier
from r2et.core import files
from r2et.evaluation.moves import labels_of
from reproduction.reasons.models import widths_of
from reproduction.reasons.rows import like_for_like, parts_of
from reproduction.reasons.tables import TABLES, Floats

GUARD = Path("docs/reasons/guard.jsonl")
BEHIND_TREES = LOST = 0.005


@dataclass(frozen=True, kw_only=True, eq=False)
class Guarded:
    """A table with the widths that StableClassifier is given: None are its own."""

    x: pd.DataFrame
    y: Floats
    width: dict[str, tuple[float, ...]] | None = None


def _of_study(name: str) -> Callable[[], Guarded]:
    def made() -> Guarded:
        case = TABLES[name]()
        return Guarded(x=case.x, y=case.y, width=widths_of(case))

    return made


def _of_sklearn(name: str) -> Callable[[], Guarded]:
    def made() -> Guarded:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
        return Guarded(x=x, y=y.to_numpy())

    return made


def diabetes() -> Guarded:
    """Progress of diabetes after a year: above the median or not."""
    x, y = datasets.load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    return Guarded(x=x, y=(y > y.median()).to_numpy().astype(int))


def digits() -> Guarded:
    """Handwritten digits of 8 x 8 pixels: 3 against 8."""
    x, y = datasets.load_digits(return_X_y=True, as_frame=True)
    some = y.isin([3, 8])
    return Guarded(x=x[some].reset_index(drop=True), y=(y[some] == 8).to_numpy().astype(int))


GUARDED: dict[str, Callable[[], Guarded]] = {
    **{name: _of_study(name) for name in TABLES},
    "breast_cancer": _of_sklearn("breast_cancer"),
    "diabetes": diabetes,
    "digits": digits,
    "iris": _of_sklearn("iris"),
    "wine": _of_sklearn("wine"),
}


def _regression(table: Guarded) -> Any:
    words = list(labels_of(table.x))
    numbers = [name for name in table.x if name not in words]
    encoder = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), words)
    )
    return make_pipeline(encoder, LogisticRegression(max_iter=1000))


def _trees(table: Guarded) -> Any:
    words = list(labels_of(table.x))
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
    encoder = make_column_transformer((OrdinalEncoder(**unknown), words), remainder="passthrough")
    places = [place < len(words) for place in range(table.x.shape[1])]
    model = HistGradientBoostingClassifier(
        categorical_features=places if words else None,
        early_stopping=len(table.y) * 7 // 10 >= 1000,
        max_leaf_nodes=15,
        random_state=0,
    )
    return make_pipeline(encoder, model)


COMPARED: dict[str, Callable[[Guarded], Any]] = {
    "lr": _regression,
    "hgb": _trees,
    "stable": lambda table: StableClassifier(table.width),
}


@dataclass(frozen=True, kw_only=True)
class GuardRow:
    """AUC of a model on the test rows of a split of a table, and CPU seconds of its fit."""

    table: str
    split: int
    model: str
    rows: int
    columns: int
    auc: float
    seconds: float


def guarded(name: str, table: Guarded, split: int, model: str) -> GuardRow:
    """A model fitted to a split, and judged on its test rows."""
    test, learnt = parts_of(name, len(table.y), split)
    fitted = COMPARED[model](table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.process_time()
        fitted.fit(table.x.iloc[learnt].reset_index(drop=True), table.y[learnt])
        seconds = time.process_time() - started
        said = fitted.predict_proba(table.x.iloc[test].reset_index(drop=True))
    two = said.shape[1] == 2
    auc = roc_auc_score(table.y[test], said[:, 1] if two else said, multi_class="ovr")
    return GuardRow(
        table=name,
        split=split,
        model=model,
        rows=len(learnt),
        columns=table.x.shape[1],
        auc=float(auc),
        seconds=seconds,
    )


def read_guard(path: Path = GUARD) -> list[GuardRow]:
    """The rows that are kept."""
    return [GuardRow(**each) for each in files.read_rows(path)]


def floor(regression: float, trees: float) -> float:
    """The AUC that is asked for, given those of logistic regression and of boosted trees.

    >>> floor(0.8, 0.803), floor(0.8, 0.85)
    (0.795, 0.84)
    """
    return round(max(regression, trees - BEHIND_TREES) - LOST, 12)


def guard_table(rows: Sequence[GuardRow]) -> list[str]:
    """The lines of the table of these rows."""
    lines = [
        "| table | rows learnt from | columns | LR | HistGradientBoosting | floor "
        "| StableClassifier | met | fit, CPU s: LR / trees / StableClassifier |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in GUARDED:
        own = like_for_like([row for row in rows if row.table == name])
        by_model = {model: [row for row in own if row.model == model] for model in COMPARED}
        if not by_model["lr"] or not by_model["hgb"]:
            continue
        aucs = {model: fmean(r.auc for r in some) for model, some in by_model.items() if some}
        seconds = [
            f"{fmean(row.seconds for row in some):.1f}" if some else "not run"
            for some in by_model.values()
        ]
        asked = floor(aucs["lr"], aucs["hgb"])
        stable = f"{aucs['stable']:.4f}" if "stable" in aucs else "not run"
        met = ("yes" if aucs["stable"] >= asked else "**no**") if "stable" in aucs else ""
        lines.append(
            f"| {name} | {own[0].rows} | {own[0].columns} | {aucs['lr']:.4f} | {aucs['hgb']:.4f} "
            f"| {asked:.4f} | {stable} | {met} | {' / '.join(seconds)} |"
        )
    return lines
