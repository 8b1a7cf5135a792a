"""The papers' figures, drawn from rows: one picture for each, the same characters every time."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from r2et.evaluation.decisions import DrawnDecision
from r2et.evaluation.results import ER, STRONG, Result, Scatter
from r2et.experiments.tables import LINEAR, is_variant, passed_rows, summarise
from r2et.report.charts import Drawing, constraint_handling, file_of, heading, spread
from r2et.report.maps import saliency_figure
from r2et.report.pages import LIGHT
from reproduction.figure_numbers import (
    CORRELATED,
    Correlation,
    correlations,
    paired_numbers,
    places,
    profile,
)
from reproduction.papers import HandlersResult, datasets_of, label_of, rows_of
from reproduction.targets import (
    CORRELATED_MODELS,
    PAIRS_DATASET,
    SCATTERED_MODEL,
    Target,
)

INK, MUTED, RULE, ACCENT, FAINT, WARN, RED = (
    LIGHT[name] for name in ("ink", "muted", "rule", "accent", "faint", "warn", "red")
)
MARKS: dict[str, tuple[str, str]] = {
    "r2et-noh": (ACCENT, "^"),
    "r2et-mm-noh": ("#56b4e9", "v"),
    "r2et": ("#003f63", "<"),
    "r2et-mm": (FAINT, ">"),
    "vanilla": (WARN, "s"),
    "wd": ("#009e73", "o"),
    "sp": ("#cc79a7", "D"),
    "est-h": ("#d98c00", "p"),
    "exact-h": ("#8c6d00", "h"),
    "ssr": ("#7a4fa3", "8"),
    "at": (MUTED, "X"),
    "cl": ("#a83232", "P"),
    LINEAR: (INK, "d"),
}
FONTS = "Arial, Helvetica, DejaVu Sans, sans-serif"
DOT: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0}
BARS = (ACCENT, "#56b4e9", FAINT, WARN)


def first_flip_figure(rows: Sequence[Result]) -> Drawing:
    """The step of the first flip against thickness and Hessian norm, a dot for each example."""
    dataset, method = SCATTERED_MODEL
    own = sorted(passed_rows(rows_of(rows, "paper", dataset), method), key=lambda row: row.seed)
    said = ["There is nothing to show."]
    figure = Figure(figsize=(7.6, 3.1))
    panels = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.08, right=0.985, top=0.88, bottom=0.17, wspace=0.08)
    if own:
        scatter, label = own[0].series.scatter, own[0].label
        names = {"thickness": "thickness", "hessian_norm": "Hessian norm"}
        said = [
            _first_flips(axes, scatter, key, name)
            for axes, (key, name) in zip(panels, names.items(), strict=True)
        ]
        heading(
            panels[0],
            f"{label} on {label_of(dataset)}, seed {own[0].seed}: ERAttack step of the first flip",
            MUTED,
        )
    else:
        for axes in panels:
            axes.set_axis_off()
    return Drawing(
        figure=figure,
        title="Steps to the first flip against thickness and Hessian norm",
        text=" ".join(said),
    )


def _first_flips(axes: Axes, scatter: Scatter, key: str, name: str) -> str:
    """One panel, and what it shows in words."""
    last, values = scatter.last_step, getattr(scatter, key)
    axes.set_xlabel(name)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.axhspan(1.02 * last, 1.16 * last, color=RULE, alpha=0.35, linewidth=0)
    axes.set_ylim(-0.02 * last, 1.17 * last)
    axes.set_yticks([0, last / 4, last / 2, 3 * last / 4, last])
    if not values:
        axes.text(0.5, 0.5, "not kept in these rows", transform=axes.transAxes, ha="center")
        return f"There are no values of the {name}."
    dots = list(zip(values, scatter.first_flip, strict=True))
    # The place within the strip means nothing; it only keeps equal values apart.
    heights = [
        step if step <= last else last * (1.04 + 0.1 * (0.618034 * number % 1))
        for number, (_, step) in enumerate(dots)
    ]
    axes.plot([x for x, _ in dots], heights, color=ACCENT, marker="o", markersize=3.2,
              alpha=0.45, **DOT)  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.text(0.02, 0.885, "never flipped", transform=axes.transAxes, color=MUTED, fontsize=9)
    value = scatter.correlation.get(key)
    told = "no correlation" if value is None else f"Spearman {value:+.2f}".replace("-", "−")
    axes.text(0.98, 0.03, told, transform=axes.transAxes, color=INK, ha="right", fontweight="bold")
    return f"{name}: {told} with the step of the first flip."


def correlations_figure(rows: Sequence[Result]) -> Drawing:
    """Correlation of four measures with the manipulation epoch, a group of bars for each model."""
    have = {row.dataset for row in rows}
    found = correlations(rows, [each for each in CORRELATED_MODELS if each[0] in have or not have])
    groups = list(dict.fromkeys((each.dataset, each.label) for each in found))
    figure = Figure(figsize=(9.4, 0.9 + 0.62 * len(groups)))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.31, right=0.72, top=1 - 0.3 / figure.get_figheight(), bottom=0.09)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    said = [
        _bars(axes, number, [each for each in found if (each.dataset, each.label) == group])
        for number, group in enumerate(groups)
    ]
    axes.set_yticks(
        range(len(groups)),
        [f"{label}, {label_of(dataset)}" for dataset, label in groups],
    )
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(-1, 1)
    axes.spines["left"].set_visible(False)
    heading(axes, "Spearman correlation with the manipulation epoch, mean and sd over seeds", MUTED)
    handles = [
        Patch(color=colour, label=name)
        for name, colour in zip(CORRELATED.values(), BARS, strict=True)
    ]
    figure.legend(handles=handles, loc="center left", bbox_to_anchor=(0.73, 0.5),
                  frameon=False, fontsize=9)  # fmt: skip
    return Drawing(
        figure=figure,
        title="What goes with the manipulation epoch",
        text=" ".join(said),
    )


def _bars(axes: Axes, number: int, own: Sequence[Correlation]) -> str:
    told = []
    for place, (each, colour) in enumerate(zip(own, BARS, strict=True)):
        height = number + 0.19 * (place - 1.5)
        if each.mean is None:
            axes.text(0.02, height, NONE_SHOWN, va="center", color=MUTED, fontsize=8)
            continue
        axes.barh(height, each.mean, height=0.17, color=colour, linewidth=0)
        if each.sd:
            low, high = max(-1.0, each.mean - each.sd), min(1.0, each.mean + each.sd)
            axes.plot([low, high], [height, height], color=INK, linewidth=0.9)
        told.append(f"{CORRELATED[each.measure]} {each.mean:+.2f}")
    return f"{own[0].label} on {own[0].dataset}: {', '.join(told) or 'nothing'}."


NONE_SHOWN = "not in these rows"


def trade_off_figure(rows: Sequence[Result]) -> Drawing:
    """P@k against clean AUC, a row of panels for each data set: weak attack, strong attack."""
    datasets = [name for name in datasets_of(rows) if rows_of(rows, "paper", name)]
    attacks = {ER: "ERAttack", STRONG: "the strong attack"}
    said: list[str] = []
    seen: dict[str, str] = {}
    height = 0.5 + 2.35 * max(1, len(datasets))
    figure = Figure(figsize=(10.6, height))
    panels = figure.subplots(max(1, len(datasets)), 2, squeeze=False)
    figure.subplots_adjust(left=0.045, right=0.79, top=1 - 0.3 / height, bottom=0.48 / height,
                           wspace=0.16, hspace=0.42)  # fmt: skip
    for line, dataset in zip(panels, datasets, strict=False):
        for axes, (key, attack) in zip(line, attacks.items(), strict=True):
            found = places(rows, dataset, key)
            seen |= {each.method: each.label for each in found}
            front = [each.label for each in found if each.on_front]
            _plane(axes, found)
            heading(axes, f"{label_of(dataset)}: P@k under {attack}, %", MUTED)
            said.append(f"{dataset}, {attack}: on the front {', '.join(front) or 'none'}.")
    for axes in panels[-1]:
        axes.set_xlabel("clean AUC")
    if not datasets:
        for axes in panels.flat:
            axes.set_axis_off()
    known = [method for method in MARKS if method in seen]
    extra = [method for method in seen if method not in MARKS]
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=7, label=seen[method], **DOT)
        for method in [*known, *extra]
        for colour, marker in [mark_of(method)]
    ]
    handles.append(Line2D([], [], color=RED, linewidth=1.2, label="Pareto front"))
    figure.legend(handles=handles, loc="center left", bbox_to_anchor=(0.81, 0.5),
                  frameon=False, fontsize=9, labelspacing=0.65)  # fmt: skip
    return Drawing(
        figure=figure,
        title="Stability of explanations against accuracy",
        text=" ".join(said) or "There is nothing to show.",
    )


def mark_of(method: str) -> tuple[str, str]:
    """Colour and shape of a method; R2ET and its variants are triangles."""
    return MARKS.get(method, (MUTED, "^" if is_variant(method) else "o"))


def _plane(axes: Axes, found: Sequence[Any]) -> None:
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    front = sorted((each.auc, 100 * each.kept) for each in found if each.on_front)
    axes.plot([x for x, _ in front], [y for _, y in front], color=RED, linewidth=1.2)
    for each in found:
        colour, marker = mark_of(each.method)
        size = 7.5 if is_variant(each.method) else 6
        axes.plot([each.auc], [100 * each.kept], color=colour, marker=marker, markersize=size,
                  clip_on=False, **DOT)  # fmt: skip
    axes.margins(x=0.08, y=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def sorted_scores_figure(rows: Sequence[Result]) -> Drawing:
    """Vanilla's scores in falling order as shares of the first, a panel for each data set."""
    shown = {name: found for name in datasets_of(rows) if (found := profile(rows, name))}
    said = []
    figure = Figure(figsize=(8.6, 2.6))
    panels = figure.subplots(1, max(1, len(shown)), squeeze=False, sharey=True)[0]
    figure.subplots_adjust(left=0.05, right=0.99, top=0.86, bottom=0.2, wspace=0.1)
    for axes, (dataset, shares) in zip(panels, shown.items(), strict=False):
        axes.grid(axis="y", color=RULE, linewidth=0.6)
        axes.bar(range(1, len(shares) + 1), shares, color=WARN, width=0.72, linewidth=0)
        for k in (2, 5, 8):
            axes.axvline(k + 0.5, color=MUTED, linewidth=0.8, dashes=(3, 2))
            axes.text(k + 0.65, 0.97, f"{k}", color=MUTED, fontsize=9, va="top")
        axes.set_xlabel(f"place among {len(shares)} features")
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        heading(axes, f"{label_of(dataset)}: score as share of the first", MUTED)
        gaps = [f"{shares[k - 1] - shares[k]:.3f} after place {k}" for k in (2, 5, 8)
                if len(shares) > k]  # fmt: skip
        said.append(f"{dataset}: gaps of {', '.join(gaps)}.")
    if not shown:
        panels[0].set_axis_off()
    return Drawing(
        figure=figure,
        title="Sorted gradient magnitudes of Vanilla",
        text=" ".join(said) or "There is nothing to show.",
    )


def pairs_figure(rows: Sequence[Result]) -> Drawing:
    """P@k against the number of compared pairs, with the other methods as level lines."""
    dataset = PAIRS_DATASET
    figure = Figure(figsize=(7.6, 3.7))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.065, right=0.77, top=0.92, bottom=0.13)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    ends, said = _levels(axes, rows_of(rows, "paper", dataset)), []
    for key, style in ((ER, "-"), (STRONG, "--")):
        found = paired_numbers(rows, dataset, key)
        for method in dict.fromkeys(each.method for each in found):
            own = [each for each in found if each.method == method and each.ours is not None]
            if not own:
                continue
            colour, marker = mark_of(method)
            values = [100 * (each.ours or 0.0) for each in own]
            spreads = [100 * (each.sd or 0.0) for each in own]
            numbers = [each.facing for each in own]
            axes.errorbar(numbers, values, yerr=spreads if key == ER else None, color=colour,
                          marker=marker, markersize=6 if key == ER else 4, linestyle=style,
                          linewidth=1.6 if key == ER else 1, elinewidth=0.8)  # fmt: skip
            if key == ER:
                ends.append((numbers[-1], values[-1], own[0].label, colour, True))
                listed = ", ".join(
                    f"{at}: {value:.1f}" for at, value in zip(numbers, values, strict=True)
                )
                said.append(f"{own[0].label} by k': {listed}.")
    axes.set_xlabel("k', number of compared pairs")
    axes.set_xlim(0.7, 8.3)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    name = label_of(dataset)
    heading(axes, f"{name}: P@k, %  ·  solid: ERAttack, mean and sd; dashed: strong attack", MUTED)
    _name(axes, ends)
    return Drawing(
        figure=figure,
        title="Stability against the number of compared pairs",
        text=" ".join(said) or "There is nothing to show.",
    )


def _levels(axes: Axes, rows: Sequence[Result]) -> list[tuple[float, float, str, str, bool]]:
    """Level lines of the methods that do not depend on k', and their ends."""
    ends = []
    for each in summarise(rows, [ER]):
        if ER in each.means and not is_variant(each.method):
            level = 100 * each.means[ER].value
            colour, _ = mark_of(each.method)
            axes.axhline(level, color=colour, linewidth=0.9, alpha=0.6)
            ends.append((8.3, level, each.label, colour, False))
    return ends


def _name(axes: Axes, ends: Sequence[tuple[float, float, str, str, bool]]) -> None:
    """Write each name in the right margin, as near to its line as the others allow."""
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    heights = spread([end[1] for end in ordered], 0.062 * (high - low), low, high)
    left, right = axes.get_xlim()
    wide = right - left
    for (x, y, label, colour, bold), height in zip(ordered, heights, strict=True):
        axes.plot([x, right + 0.035 * wide], [y, height], color=colour, linewidth=0.6, alpha=0.6,
                  clip_on=False, scalex=False, scaley=False)  # fmt: skip
        axes.text(right + 0.045 * wide, height, label, color=MUTED if colour == FAINT else colour,
                  va="center", fontsize=9, fontweight="bold" if bold else "normal")  # fmt: skip


def handlers_figures(rows: Sequence[Result]) -> dict[str, str]:
    """P@k against changed predictions, a picture for each data set."""
    return {
        row.dataset: file_of(partial(constraint_handling, row.points))
        for row in rows
        if isinstance(row, HandlersResult)
    }


def saliency_figures(rows: Sequence[Result], datasets: Sequence[str]) -> dict[str, str]:
    """One test example as all methods explain it, a picture for each data set that tells of one.

    It is the first example of the first seed, not picked; methods that do not tell of it are
    missing.
    """
    found = {}
    for dataset in datasets:
        own = passed_rows(rows_of(rows, "paper", dataset))
        seed = min((row.seed for row in own), default=None)
        told = {
            row.label: each
            for row in own
            for each in row.decisions[:1]
            if row.seed == seed and isinstance(each, DrawnDecision) and each.kind != "concept"
        }
        if told:
            first = next(iter(told.values()))
            alike = {label: each for label, each in told.items() if each.row == first.row}
            title = f"Saliency maps of one example of {label_of(dataset)}"
            found[dataset] = saliency_figure(alike, name=f"saliency-{dataset}", title=title)
    return found


SALIENCY = ("figure-3", "figure-5")
DRAWN: dict[str, Callable[[Sequence[Result]], Drawing]] = {
    "figure-2": first_flip_figure,
    "figure-4": correlations_figure,
    "figure-7": trade_off_figure,
    "figure-8": sorted_scores_figure,
    "figure-9": pairs_figure,
}


def pictures(target: Target, rows: Sequence[Result]) -> dict[str, str]:
    """The pictures of a target as SVG files by their names without ending; none for a table."""
    rows = [row for row in rows if row.dataset in target.datasets]
    if target.name == "figure-6":
        drawn = handlers_figures(rows)
        return {f"figure-6-{dataset}": svg for dataset, svg in drawn.items()}
    if target.name in SALIENCY:
        drawn = saliency_figures(rows, target.datasets)
        return {f"{target.name}-{dataset}": as_file(svg) for dataset, svg in drawn.items()}
    draw = DRAWN.get(target.name)
    return {} if draw is None else {target.name: file_of(lambda _: draw(rows))}


def as_file(svg: str) -> str:
    """A hand-drawn SVG element as a file of its own: with a size, a font and a white ground."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if box is None:
        raise ValueError("a picture needs a viewBox to be given a size, got none.")
    width, height = box.groups()
    size = f'<svg width="{width}" height="{height}" font-family="{FONTS}" '
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    head, end, body = svg.partition("</desc>")
    return f"{head.replace('<svg ', size, 1)}{end}{ground}{body}\n"
