"""The models of the study: each is fitted to a table, and says what each attribute adds.

LightGBM, EBM (interpret-core) and optimal binning (optbinning) are compared with if they are there.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from r2et import StableBinner, StableClassifier
from r2et.core.rng import stream
from r2et.evaluation.moves import (
    Additive,
    Ensemble,
    SpokenModel,
    Stable,
    boosted_trees,
    labels_of,
    logistic_regression,
    numbered,
)
from reproduction.reasons.networks import NETWORKS
from reproduction.reasons.tables import Case, Floats, numbers_of


def regression(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """Logistic regression."""
    return logistic_regression(x, y, labels_of(case.x))


def trees(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """scikit-learn's boosted trees."""
    return boosted_trees(x, y, labels_of(case.x))


def light_gbm(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """LightGBM, stopped early on a part of the rows."""
    import lightgbm

    labels = labels_of(case.x)
    rows = numbered(x, labels)
    order = torch.randperm(len(y), generator=stream(0, "lightgbm")).numpy()
    held, learnt = order[: len(y) * 15 // 100], order[len(y) * 15 // 100 :]
    model = lightgbm.LGBMClassifier(
        n_estimators=2000, learning_rate=0.05, num_leaves=15, verbose=-1, random_state=0, n_jobs=1
    ).fit(
        rows[learnt],
        y[learnt],
        eval_set=[(rows[held], y[held])],
        categorical_feature=[i for i, name in enumerate(x) if name in labels],
        callbacks=[lightgbm.early_stopping(30, verbose=False)],
    )
    return Ensemble.of(model, x, labels)


def boosting_machine(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """An explainable boosting machine without interactions."""
    from interpret.glassbox import ExplainableBoostingClassifier

    model = ExplainableBoostingClassifier(interactions=0, random_state=0, n_jobs=1).fit(x, y)
    return Additive(terms=model.eval_terms, constant=float(model.intercept_[0]))


def optimal_binning(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """A scorecard: logistic regression on the weights of evidence of optimal bins."""
    from optbinning import BinningProcess

    words = list(labels_of(case.x))
    process = BinningProcess(list(x), categorical_variables=words).fit(x, y)

    def evidence(rows: pd.DataFrame) -> Floats:
        return np.asarray(process.transform(rows, metric="woe"), dtype=float)

    model = LogisticRegression(max_iter=1000).fit(evidence(x), y)
    return Additive(
        terms=lambda rows: evidence(rows) * model.coef_[0], constant=float(model.intercept_[0])
    )


def binner_regression(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """Logistic regression behind a StableBinner."""
    pipe = make_pipeline(StableBinner(widths_of(case)), LogisticRegression(max_iter=1000)).fit(x, y)
    binner, model = pipe[0], pipe[1]
    counts = [each.count for each in binner.attributes_]
    starts = np.cumsum([0, *counts[:-1]])

    def terms(rows: pd.DataFrame) -> Floats:
        found: Floats = model.coef_[0][binner.codes(rows) + starts]
        return found

    return Additive(terms=terms, constant=float(model.intercept_[0]))


def stable(x: pd.DataFrame, y: Floats, case: Case, **settings: Any) -> SpokenModel:
    """StableClassifier as it comes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Stable(model=StableClassifier(widths_of(case), **settings).fit(x, y))


def stable_card(x: pd.DataFrame, y: Floats, case: Case) -> SpokenModel:
    """StableClassifier as a scorecard throughout."""
    return stable(x, y, case, interactions=False)


def widths_of(case: Case) -> dict[str, tuple[float, ...]]:
    """All widths of each number; numbers that move by none of them have 0."""
    moves = case.moves.values()
    return {name: tuple(each.get(name, 0.0) for each in moves) for name, _ in numbers_of(case)}


MODELS: dict[str, tuple[str, Callable[[pd.DataFrame, Floats, Case], SpokenModel], str | None]] = {
    "lr": ("logistic regression", regression, None),
    "hgb": ("HistGradientBoosting", trees, None),
    "lightgbm": ("LightGBM, early stopping", light_gbm, "lightgbm"),
    "ebm": ("EBM without interactions", boosting_machine, "interpret"),
    "optbinning": ("scorecard on optimal bins", optimal_binning, "optbinning"),
    "binner-lr": ("logistic regression behind StableBinner", binner_regression, None),
    "stable-card": ("StableClassifier, interactions=False", stable_card, None),
    "stable": ("**StableClassifier**", stable, None),
    **NETWORKS,
}
"""Label, how it is fitted, and the package it needs besides."""
