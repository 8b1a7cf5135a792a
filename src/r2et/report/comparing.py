"""Models side by side: how accurate they are, how individual and how stable their reasons."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from r2et.auditing.reason_records import ReasonAudit
from r2et.auditing.reason_settings import ReasonSettings, moves_for
from r2et.auditing.table_form import TableForm
from r2et.core.files import write_text
from r2et.core.reasons import Side
from r2et.core.rng import stream
from r2et.report.audit_page import audit
from r2et.report.charts import WIDTH, Drawing, file_of, heading
from r2et.report.pages import Colours

REFERENCE = 100
"""Rows that contributions are told against unless others are given."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
INKS = ("accent", "warn", "second", "third", "fourth", "own", "muted", "ink")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One model: its AUC on all rows, and what was found of its reasons.

    `overlap` (O) is what two people of one predicted class share, `kept` (S) the mean share of
    reasons that stays at least, `kappa` (S - O) / (1 - O). `broken`, `certified` and `undetermined`
    are shares of the audited decisions, `seconds` of a processor is what the fit took, None if it
    was not seen. `audit` has all of it.
    """

    model: str
    auc: float
    overlap: float | None
    kept: float | None
    kappa: float | None
    broken: float
    certified: float
    undetermined: float
    seconds: float | None
    audit: ReasonAudit


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Models by what the same moves of the same people do to their reasons."""

    rows: tuple[Compared, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each model: (models, measures)."""
        return pd.DataFrame(
            {
                name: [getattr(row, name) for row in self.rows]
                for name in Compared.__dataclass_fields__
                if name not in ("model", "audit")
            },
            index=pd.Index([row.model for row in self.rows], name="model"),
        )

    def __str__(self) -> str:
        """The table, shares in percent."""
        found = self.frame
        for name in ("overlap", "kept", "broken", "certified", "undetermined"):
            found[name] = 100 * found[name].astype(float)
        digits = {"auc": 4, "kappa": 2, "seconds": 1}
        shown = {str(n): partial(_rounded, digits=digits.get(str(n), 1)) for n in found.columns}
        return found.to_string(na_rep="-", formatters=shown)

    def plot(self, path: str | Path) -> Path:
        """The path of an SVG picture: how individual reasons are against how many break."""
        return write_text(Path(path), file_of(partial(_frontier, self)))


def _rounded(value: Any, digits: int) -> str:
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"


def compare(
    models: Mapping[str, Any],
    X: pd.DataFrame,
    y: Any,
    *,
    train: tuple[pd.DataFrame, Any] | None = None,
    k: int | None = None,
    tolerance: float | Mapping[str, float] | None = None,
    side: Side | None = None,
    threshold: float | None = None,
    reference: pd.DataFrame | None = None,
    rows: int | None = 300,
    seed: int = 0,
) -> Comparison:
    """Models by name on one frontier: accuracy on X and y, and the reasons of its first `rows`.

    All are asked the same: the same people and moves, `tolerance` as `audit` takes it, and the
    same `reference`, by default rows drawn from those of `train`, else from X. With `train`, rows
    and labels, copies of the models are fitted to it first, and what that takes is told; without,
    they are fitted already.
    """
    if not models:
        raise ValueError("a comparison needs one model or more, got none.")
    if len(X) != len(y) or not len(X):
        raise ValueError(f"X and y must be equally many rows, got {len(X)} and {len(y)}.")
    widths = tolerance if isinstance(tolerance, Mapping) else _widths(X, tolerance)
    if reference is None:
        pool = X if train is None else train[0]
        order = torch.randperm(len(pool), generator=stream(seed, "reference")).numpy()
        reference = pool.iloc[order[:REFERENCE]]
    found = []
    for name, model in models.items():
        seconds = None
        if train is not None:
            model, started = clone(model), time.process_time()
            model.fit(*train)
            seconds = time.process_time() - started
        audited = audit(
            {name: model},
            X,
            k=k,
            tolerance=widths,
            side=side,
            threshold=threshold,
            reference=reference,
            rows=rows,
            seed=seed,
        )
        assert isinstance(audited, ReasonAudit)
        found.append(_row(name, audited, _auc(model, X, y), seconds))
    return Comparison(rows=tuple(found))


def _widths(X: pd.DataFrame, tolerance: float | None) -> dict[str, float]:
    """How far each number moves: the same for models with and without bands."""
    told = TableForm.of(X).told(X)
    return dict(moves_for(ReasonSettings(width=tolerance), told, {}).width)


def _auc(model: Any, X: pd.DataFrame, y: Any) -> float:
    shares = np.asarray(model.predict_proba(X))
    if shares.shape[1] == 2:
        return float(roc_auc_score(y, shares[:, 1]))
    return float(roc_auc_score(y, shares, multi_class="ovr"))


def _row(name: str, audited: ReasonAudit, auc: float, seconds: float | None) -> Compared:
    summary = audited.models[0]
    count = max(1, sum(summary.counts.values()))
    return Compared(
        model=name,
        auc=auc,
        overlap=summary.overlap,
        kept=summary.kept,
        kappa=summary.kappa,
        broken=summary.counts["broken"] / count,
        certified=summary.counts["certified"] / count,
        undetermined=summary.counts["undetermined"] / count,
        seconds=seconds,
        audit=audited,
    )


def _frontier(found: Comparison, colours: Colours) -> Drawing:
    """How individual reasons are against how many decisions are broken, a marker for each model."""
    figure = Figure(figsize=(WIDTH, 3.4))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.08, right=0.72, bottom=0.15, top=0.9)
    said = []
    for place, row in enumerate(found.rows):
        x, y = 100 * row.broken, 100 - 100 * (row.overlap or 0.0)
        axes.plot(
            [x],
            [y],
            linestyle="none",
            marker=MARKERS[place % len(MARKERS)],
            markersize=8,
            color=colours[INKS[place % len(INKS)]],
            label=f"{row.model}, AUC {row.auc:.3f}",
            clip_on=False,
        )
        said.append(f"{row.model} {x:.1f} and {y:.1f}, AUC {row.auc:.3f}")
    axes.set_xlim(0, max(10.0, *(105 * row.broken for row in found.rows)))
    axes.set_xlabel("decisions whose reasons a small move breaks, %")
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    heading(
        axes,
        "How individual reasons are, 1 − O, %  ·  better: up and to the left",
        colours["muted"],
    )
    return Drawing(
        figure=figure,
        title="Individual reasons against broken ones",
        text=f"Percent broken and percent individual: {'; '.join(said)}.",
    )
