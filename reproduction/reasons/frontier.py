"""How individual reasons are against how many of them break: one panel a table, one dot a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from r2et.report.charts import WIDTH, Drawing, heading
from r2et.report.pages import Colours
from reproduction.reasons.models import MODELS
from reproduction.reasons.rows import TOP, Bound, Row, bounds_of, like_for_like
from reproduction.reasons.tables import TABLES

BEHIND = 0.01
"""Of AUC, below the best of a table: who loses more has a hollow dot."""
MARKS = {
    "lr": ("muted", "X"),
    "hgb": ("third", "s"),
    "lightgbm": ("warn", "D"),
    "ebm": ("fourth", "^"),
    "optbinning": ("second", "v"),
    "binner-lr": ("faint", "P"),
    "stable-card": ("own", "o"),
    "stable": ("accent", "*"),
    "network": ("ink", "p"),
    "separate-ramp": ("pink", "h"),
}
"""How models are drawn; other networks are left out, as they lie between these two."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A model on a table: percent broken at the middle width, percent of 1 - O, and AUC."""

    model: str
    broken: float
    individual: float
    auc: float


def middle(row: Row) -> str:
    """The width that a picture shows: the middle one, or of two the larger."""
    widths = list(row.broken)
    return widths[len(widths) // 2]


def dots(rows: Sequence[Row]) -> list[Dot]:
    """The models on one table, in the order of MARKS."""
    found = []
    for name in MARKS:
        own = [row for row in rows if row.model == name]
        if own:
            dot = Dot(
                model=name,
                broken=100 * fmean(row.broken[middle(row)] for row in own),
                individual=100 - 100 * fmean(row.overlap for row in own),
                auc=fmean(row.auc for row in own),
            )
            found.append(dot)
    return found


def frontier(rows: Sequence[Row], bounds: Sequence[Bound], colours: Colours) -> Drawing:
    """The picture of these rows."""
    there = {row.table for row in rows}
    tables = [table for table in TABLES if table in there]
    lines = ceil((len(tables) + 1) / 2)
    height = 0.55 + 2.05 * lines
    figure = Figure(figsize=(WIDTH, height))
    panels = figure.subplots(lines, 2, sharey=True).ravel().tolist()
    figure.subplots_adjust(
        left=0.065,
        right=0.985,
        top=1 - 0.32 / height,
        bottom=0.45 / height,
        hspace=0.52,
        wspace=0.07,
    )
    said = []
    for axes, table in zip(panels, tables, strict=False):
        own = like_for_like([row for row in rows if row.table == table])
        said.append(_panel(axes, table, own, bounds_of(own, bounds), colours))
    for axes in panels[len(tables) :]:
        axes.set_axis_off()
    _legend(panels[-1], colours)
    return Drawing(
        figure=figure,
        title="Individual reasons against broken ones, model by model",
        text=" ".join(said),
    )


def _panel(
    axes: Axes, table: str, rows: Sequence[Row], bounds: Sequence[Bound], colours: Colours
) -> str:
    """One table, and what it shows in words."""
    width, shown = middle(rows[0]), dots(rows)
    best = max(dot.auc for dot in shown)
    widest = max(10.0, *(dot.broken for dot in shown))
    axes.set_xlim(-0.04 * widest, 1.05 * widest)
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_xlabel(f"broken at {width}, %", loc="right", labelpad=1)
    heading(axes, f"{table}: individual, 1 − O, %", colours["muted"])
    if bounds:
        most = 100 * fmean(bound.most[width] for bound in bounds)
        lot = 100 - 100 * TOP / bounds[0].attributes
        axes.axhline(most, color=colours["red"], linewidth=1.2)
        axes.axhline(lot, color=colours["muted"], linewidth=1.0, dashes=(2, 2))
    for dot in shown:
        axes.plot([dot.broken], [dot.individual], **_mark(dot.model, colours, dot.auc, best))
    told = [f"{dot.model} {dot.broken:.1f} and {dot.individual:.1f}" for dot in shown]
    return f"{table}, percent broken at {width} and percent individual: {', '.join(told)}."


def _mark(model: str, colours: Colours, auc: float, best: float) -> dict[str, Any]:
    colour, marker = MARKS[model]
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": 9 if marker == "*" else 6,
        "color": "none" if auc < best - BEHIND else colours[colour],
        "markeredgecolor": colours[colour],
        "markeredgewidth": 1.1,
        "clip_on": False,
    }


def _legend(axes: Axes, colours: Colours) -> None:
    """What dots and lines stand for, in a panel of its own."""
    rows: list[tuple[str, dict[str, Any]]] = [
        (
            MODELS[name][0]
            .strip("*")
            .replace("logistic regression behind", "LR behind")
            .replace("network on bands, what moves apart", "network on bands, apart"),
            _mark(name, colours, 1, 1),
        )
        for name in MARKS
    ]
    hollow = _mark("lr", colours, 0, 1) | {"marker": "o"}
    rows += [
        (f"hollow: AUC over {BEHIND:g} below the best", hollow),
        ("bound for 0 % broken", {"color": colours["red"], "linewidth": 1.2}),
        (f"{TOP} reasons drawn by lot", {"color": colours["muted"], "dashes": (2, 2)}),
    ]
    for number, (name, look) in enumerate(rows):
        height = 1.04 - 0.107 * number
        place = [0.045] if "marker" in look else [0.0, 0.09]
        across = axes.transAxes
        axes.plot(place, [height] * len(place), transform=across, **look | {"clip_on": False})
        axes.text(0.13, height, name, transform=across, va="center", fontsize=8.5)
