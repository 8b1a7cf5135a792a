"""Verdicts on any classifier behind a StableBinner, by what it says of cells."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from r2et.actionable.tables import TableMoves
from r2et.bands.binner import StableBinner
from r2et.bands.contributions import shapley_margins
from r2et.bands.verdicts import MOST_CELLS, CellModel, cell_verdicts
from r2et.core.arrays import Codes, Floats
from r2et.core.reasons import ReasonVerdict, Side


def band_verdicts(
    pipeline: Pipeline,
    X: pd.DataFrame,
    *,
    reference: pd.DataFrame,
    k: int = 3,
    side: Side = "against",
    width: Mapping[str, float] | TableMoves | None = None,
    threshold: float = 0.5,
    codes: Mapping[str, str] | None = None,
    most_cells: int = MOST_CELLS,
) -> list[ReasonVerdict]:
    """An exact verdict on the k reasons of each decision about the rows of X.

    `pipeline` is a fitted `StableBinner` and any classifier behind it. Reasons are the attributes
    whose Shapley contributions to the decided class, against the rows of `reference`, speak most
    for it, against it or both (`side`). A move changes each number of `width` by no more than
    that, whole numbers by whole ones; other attributes stay as they are. `TableMoves` instead also
    exchange words, and keep to directions and bounds. Of two classes the second
    is decided where its probability is `threshold` or more. A decision that a move changes needs
    other reasons: such cells do not count.

    `codes` name what people are told instead of an attribute, such as a reason code. Where several
    attributes have one code its contribution is their sum, and the reasons judged are codes.
    """
    spoken = pipeline_model(pipeline, reference, threshold)
    return cell_verdicts(
        pipeline.steps[0][1],
        spoken,
        X,
        k=k,
        side=side,
        width=width,
        threshold=threshold,
        codes=codes,
        most_cells=most_cells,
    )


def pipeline_model(
    pipeline: Pipeline, reference: pd.DataFrame, threshold: float = 0.5
) -> CellModel:
    """What a fitted pipeline that begins with a StableBinner says of its cells."""
    binner, score = _parts(pipeline, threshold)
    against = binner.codes(reference)
    return CellModel(
        score=score, contributions=lambda cells: shapley_margins(score, cells, against)
    )


def _parts(pipeline: Pipeline, threshold: float) -> tuple[StableBinner, Callable[[Codes], Floats]]:
    """The binner in front, and what the rest says of cells."""
    steps = getattr(pipeline, "steps", None)
    if not steps or not isinstance(steps[0][1], StableBinner):
        got = type(pipeline).__name__
        raise ValueError(
            f"a verdict by cells needs a pipeline that begins with a StableBinner, got {got}: put "
            "one in front of the model, and fit both."
        )
    binner, rest = steps[0][1], pipeline[1:]
    if not hasattr(rest, "predict_proba") and threshold != 0.5:
        raise ValueError(
            f"a threshold of {threshold} is one of probabilities, which the model does not give: "
            "leave it at .5, or give a model with predict_proba."
        )
    classes = len(binner.classes_)

    def score(cells: Codes) -> Floats:
        rows = binner.encoded(cells)
        if hasattr(rest, "feature_names_in_"):  # fitted on a frame
            rows = pd.DataFrame(rows, columns=binner.get_feature_names_out())
        return class_scores(rest, rows, threshold, classes)

    return binner, score


def class_scores(model: Any, rows: Any, threshold: float, classes: int) -> Floats:
    """A score for each class of rows that a model takes, the largest of which is decided: (N, C).

    Of two classes the second is decided where its probability is `threshold` or more.
    """
    found = _log_scores(model, rows)
    if found.shape not in ((len(found),), (len(found), classes)):
        raise ValueError(
            f"a model of {classes} classes must score each of them, got {found.shape[1:]} "
            "scores a row: let it say one for each class."
        )
    if found.ndim == 1:
        # Half of a score for each side: the margin of a class is then its log-odds.
        shift = math.log(threshold / (1 - threshold)) if 0 < threshold < 1 else 0.0
        half = (found - shift) / 2
        found = np.stack([-half, half], 1)
    return found


def _log_scores(model: Any, rows: Any) -> Floats:
    """Log-odds of two classes, (N,), or a score for each of several, (N, C).

    Those that the model gives, if they say what its probabilities do: other margins, such as those
    of boosted votes, would put a threshold elsewhere.
    """
    margins = None
    if hasattr(model, "decision_function"):
        margins = np.asarray(model.decision_function(rows), dtype=np.float64)
    if not hasattr(model, "predict_proba"):
        assert margins is not None
        return margins
    shares = np.asarray(model.predict_proba(rows), dtype=np.float64)
    if margins is not None and margins.ndim == 1:
        if np.allclose(1 / (1 + np.exp(-np.clip(margins, -700, 700))), shares[:, 1], atol=1e-9):
            return margins
    elif margins is not None and margins.shape == shares.shape:
        raised = np.exp(margins - margins.max(1, keepdims=True))
        if np.allclose(raised / raised.sum(1, keepdims=True), shares, atol=1e-9):
            return margins
    logs = np.log(np.clip(shares, 1e-12, None))
    found: Floats = logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
    return found
