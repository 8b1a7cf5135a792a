"""The papers' figures, drawn from rows: one picture for each, the same characters every time."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, MaxNLocator

from r2et.core.naming import counted
from r2et.evaluation.decisions import DrawnDecision
from r2et.evaluation.results import ER, STRONG, Profile, Result, Scatter
from r2et.experiments.tables import LINEAR, is_variant, passed_rows, summarise
from r2et.report.charts import Drawing, constraint_handling, file_of, heading, spread
from r2et.report.maps import saliency_figure
from r2et.report.pages import LIGHT
from reproduction.figure_numbers import (
    CORRELATED,
    PLANES,
    Correlation,
    Paired,
    Place,
    correlations,
    dots_of,
    marked_places,
    paired_numbers,
    places,
    profile,
    share_at,
    signed,
)
from reproduction.papers import HandlersResult, label_of, rows_of
from reproduction.targets import (
    CORRELATED_MODELS,
    EVERY,
    PAIRS_DATASET,
    SALIENCY,
    SCATTERED_MODEL,
    SCATTERED_MODELS,
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
OF_FORMS = {"anchor": ("#003f63", "<")}
"""Colour and shape of a form of pairs that stands beside another one of its method."""
FONTS = "Arial, Helvetica, DejaVu Sans, sans-serif"
LAYERS = 4
MANY_PLACES = 100  # more than these are drawn as a curve, not as bars
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
            f"{label} on {label_of(dataset)}, seed {own[0].seed}: ERAttack step of the first flip, "
            "ρ Spearman's correlation with it",
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
    steps = [0, last / 4, last / 2, 3 * last / 4]
    axes.set_yticks([*steps, 1.09 * last], [*(f"{step:g}" for step in steps), "never"])
    if not values:
        axes.text(0.5, 0.5, "not kept in these rows", transform=axes.transAxes, ha="center")
        return f"There are no values of the {name}."
    dots = list(zip(values, scatter.first_flip, strict=True))
    # The place within the strip means nothing; it only keeps equal values apart.
    heights = [
        step if step <= last else last * (1.04 + 0.1 * (0.618034 * number % 1))
        for number, (_, step) in enumerate(dots)
    ]
    _cloud(axes, [x for x, _ in dots], heights)
    axes.xaxis.set_major_locator(MaxNLocator(5 if len(name) < 14 else 4))
    value = scatter.correlation.get(key)
    told = "no correlation" if value is None else f"Spearman {signed(value)}"
    axes.set_xlabel(name if value is None else f"{name}, ρ = {signed(value)}")
    return f"{name}: {told} with the step of the first flip."


def _cloud(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw many dots in few paths, as round strokes of hardly any length: a third of the file.

    Dots of several layers, so that most of those that overlap are darker there.
    """
    wide = max(x) - min(x)
    if not wide:  # equal numbers are a line of dots in the middle
        wide = 0.1 * (abs(x[0]) or 1.0)
        axes.set_xlim(x[0] - wide / 2, x[0] + wide / 2)
    length = 0.001 * wide  # some programs draw no stroke without one
    for layer in range(LAYERS):
        points = np.repeat(np.column_stack([x[layer::LAYERS], y[layer::LAYERS]]), 2, axis=0)
        if not len(points):
            continue
        points[1::2, 0] += length
        path = Outline(points, [Outline.MOVETO, Outline.LINETO] * (len(points) // 2))
        path.should_simplify = False  # to which so short a stroke is nothing
        axes.add_patch(PathPatch(path, fill=False, edgecolor=ACCENT, linewidth=3.2, alpha=0.45,
                                 capstyle="round", snap=False))  # fmt: skip
    axes.autoscale_view(scaley=False)


def manipulation_figure(rows: Sequence[Result]) -> Drawing:
    """The manipulation epoch against four measures, a line of panels for each model."""
    have = {row.dataset for row in rows}
    shown = [each for each in SCATTERED_MODELS if each[0] in have or not have]
    height = 0.35 + 2.05 * len(shown)
    figure = Figure(figsize=(11.2, height))
    lines = figure.subplots(len(shown), len(CORRELATED), squeeze=False)
    figure.subplots_adjust(left=0.05, right=0.985, top=1 - 0.3 / height, bottom=0.48 / height,
                           wspace=0.16, hspace=0.58)  # fmt: skip
    said = [
        _manipulated(line, rows, dataset, method)
        for line, (dataset, method) in zip(lines, shown, strict=True)
    ]
    return Drawing(
        figure=figure,
        title="The manipulation epoch against thickness and Hessian norm",
        text=" ".join(said),
    )


def _manipulated(panels: Sequence[Axes], rows: Sequence[Result], dataset: str, method: str) -> str:
    """The panels of one model, with dots where its rows have kept them, and what they say."""
    found = correlations(rows, [(dataset, method)])
    dots = dots_of(rows, dataset, method)
    seed = "" if dots is None else f", seed {dots.seed}"
    epoch = "" if dots is None else ": manipulation epoch, ρ Spearman's correlation with it"
    heading(panels[0], f"{found[0].label} on {label_of(dataset)}{seed}{epoch}", MUTED)
    told = []
    for number, (axes, each) in enumerate(zip(panels, found, strict=True)):
        if dots is not None and getattr(dots.scatter, each.measure):
            name = CORRELATED[each.measure]
            told.append(_first_flips(axes, dots.scatter, each.measure, name))
            axes.tick_params(labelleft=number == 0)
        else:
            told.append(_without_dots(axes, each))
    return f"{found[0].label} on {dataset}{seed}: {' '.join(told)}"


def _without_dots(axes: Axes, each: Correlation) -> str:
    """A panel of a row that has no dots: the correlation over the seeds, also in words."""
    name = CORRELATED[each.measure]
    axes.set_xlabel(name)
    axes.set_xticks([])
    axes.set_yticks([])
    if each.mean is None:
        _words(axes, 0.5, NONE_SHOWN, MUTED)
        return f"{name}: {NONE_SHOWN}."
    value, over = signed(each.mean, each.sd), f"over {counted(each.count, 'seed')}"
    _words(axes, 0.62, f"Spearman {value}\n{over}", INK)
    _words(axes, 0.2, NO_DOTS, MUTED)
    return f"{name}: Spearman {value} {over}, {NO_DOTS}."


def _words(axes: Axes, height: float, words: str, colour: str) -> None:
    axes.text(0.5, height, words, transform=axes.transAxes, color=colour, ha="center", va="center",
              fontsize=9)  # fmt: skip


NO_DOTS = "dots not kept in these rows"


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
    """P@k against clean and attacked AUC, a line of panels for each data set.

    Two are the paper's, under ERAttack; the last is ours, under the strong attack.
    """
    datasets = [name for name in EVERY if rows_of(rows, "paper", name)]
    said: list[str] = []
    seen: dict[str, str] = {}
    height = 0.5 + 2.6 * max(1, len(datasets))
    figure = Figure(figsize=(13.2, height))
    panels = figure.subplots(max(1, len(datasets)), len(PLANES), squeeze=False)
    figure.subplots_adjust(left=0.035, right=0.815, top=1 - 0.3 / height, bottom=0.48 / height,
                           wspace=0.14, hspace=0.5)  # fmt: skip
    for line, dataset in zip(panels, datasets, strict=False):
        for axes, plane in zip(line, PLANES, strict=True):
            found = places(rows, dataset, plane.kept, auc=plane.auc)
            seen |= {each.method: each.label for each in found}
            front = [each.label for each in found if each.on_front]
            _plane(axes, found)
            axes.set_xlabel(plane.axis)
            heading(axes, f"{label_of(dataset)}: P@k in %, {plane.attack}", MUTED)
            told = f"on the front {', '.join(front) or 'none'}" if found else NONE_SHOWN
            said.append(f"{dataset}, {plane.axis}, {plane.attack}: {told}.")
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
    handles.append(Line2D([], [], color=MUTED, linewidth=0.9, label="from the AUC of the\nsame "
                          "examples\nbefore the attack"))  # fmt: skip
    figure.legend(handles=handles, loc="center left", bbox_to_anchor=(0.825, 0.5),
                  frameon=False, fontsize=9, labelspacing=0.65)  # fmt: skip
    return Drawing(
        figure=figure,
        title="Stability of explanations against accuracy",
        text=" ".join(said) or "There is nothing to show.",
    )


def mark_of(method: str) -> tuple[str, str]:
    """Colour and shape of a method; R2ET and its variants are triangles."""
    return MARKS.get(method, (MUTED, "^" if is_variant(method) else "o"))


def _plane(axes: Axes, found: Sequence[Place]) -> None:
    if not found:
        axes.set_xticks([])
        axes.set_yticks([])
        _words(axes, 0.5, NONE_SHOWN, MUTED)
        return
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    front = sorted((each.auc, 100 * each.kept) for each in found if each.on_front)
    axes.plot([x for x, _ in front], [y for _, y in front], color=RED, linewidth=1.2)
    for each in found:
        colour, marker = mark_of(each.method)
        size = 7.5 if is_variant(each.method) else 6
        if each.before is not None:
            axes.plot([each.before, each.auc], [100 * each.kept] * 2, color=colour, linewidth=0.9,
                      alpha=0.7)  # fmt: skip
        axes.plot([each.auc], [100 * each.kept], color=colour, marker=marker, markersize=size,
                  clip_on=False, **DOT)  # fmt: skip
    axes.margins(x=0.08, y=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def sorted_scores_figure(rows: Sequence[Result]) -> Drawing:
    """Vanilla's scores in falling order as shares of the first, a panel for each data set."""
    shown = {name: found for name in EVERY if (found := profile(rows, name)).median}
    lines = max(1, -(-len(shown) // 3))
    height = 0.1 + 2.5 * lines
    figure = Figure(figsize=(9.4, height))
    panels = figure.subplots(lines, 3, squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(left=0.075, right=0.99, top=1 - 0.36 / height, bottom=0.52 / height,
                           wspace=0.1, hspace=0.62)  # fmt: skip
    said = [
        _sorted_scores(axes, dataset, scores)
        for axes, (dataset, scores) in zip(panels, shown.items(), strict=False)
    ]
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes in panels[::3]:
        axes.set_ylabel("share of the first")
    return Drawing(
        figure=figure,
        title="Sorted gradient magnitudes of Vanilla",
        text=" ".join(said) or "There is nothing to show.",
    )


def _sorted_scores(axes: Axes, dataset: str, scores: Profile) -> str:
    """One panel, and what it shows in words: bars of few places, a filled curve of many."""
    count = scores.place[-1]
    many = len(scores.place) < count or count > MANY_PLACES
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_xlabel(f"place among {count} features{', log scale' * many}")
    if many:
        # The places marked would be one line at the edge of thousands.
        axes.set_xscale("log")
        axes.fill_between(scores.place, scores.median, color=WARN, linewidth=0)
        axes.set_xlim(1, count)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.bar(scores.place, scores.median, color=WARN, width=0.72, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    gaps = []
    for k in marked_places(dataset):
        if k >= count:
            continue
        axes.axvline(k + 0.5, color=MUTED, linewidth=0.8, dashes=(3, 2))
        axes.annotate(f"{k}", (k + 0.5, 0.97), (2, 0), textcoords="offset points", color=MUTED,
                      fontsize=8.5, va="top")  # fmt: skip
        upper, lower = share_at(scores, k), share_at(scores, k + 1)
        if upper is not None and lower is not None:
            gaps.append(f"{upper - lower:.3f} after place {k}")
    axes.set_ylim(0, 1.02)
    heading(axes, label_of(dataset), MUTED)
    return f"{dataset}: gaps of {', '.join(gaps) or 'no place marked'}."


def pairs_figure(rows: Sequence[Result]) -> Drawing:
    """P@k against the number of compared pairs, with the other methods as level lines."""
    dataset = PAIRS_DATASET
    figure = Figure(figsize=(8.6, 3.9))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.06, right=0.72, top=0.92, bottom=0.13)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    ends, said = _levels(axes, rows_of(rows, "paper", dataset)), []
    for key, style in ((ER, "-"), (STRONG, "--")):
        found = paired_numbers(rows, dataset, key)
        for label in dict.fromkeys(each.label for each in found):
            own = [each for each in found if each.label == label and each.ours is not None]
            if not own:
                continue
            values = _curve(axes, own, style, weak=key == ER)
            if key == ER:
                colour, _ = _mark_of_form(own[0])
                numbers = [each.facing for each in own]
                ends.append((numbers[-1], values[-1], label, colour, True))
                listed = ", ".join(
                    f"{at}: {value:.1f}" for at, value in zip(numbers, values, strict=True)
                )
                said.append(f"{label} by k': {listed}.")
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


def _mark_of_form(each: Paired) -> tuple[str, str]:
    return OF_FORMS.get(each.pairs, mark_of(each.method))


def _curve(axes: Axes, own: Sequence[Paired], style: str, *, weak: bool) -> list[float]:
    """The values of a curve against k', now drawn, that of the weak attack with its spread."""
    colour, marker = _mark_of_form(own[0])
    values = [100 * (each.ours or 0.0) for each in own]
    spreads = [100 * (each.sd or 0.0) for each in own]
    axes.errorbar([each.facing for each in own], values, yerr=spreads if weak else None,
                  color=colour, marker=marker, markersize=6 if weak else 4, linestyle=style,
                  linewidth=1.6 if weak else 1, elinewidth=0.8)  # fmt: skip
    return values


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


def saliency_figures(rows: Sequence[Result], recipes: Mapping[str, str]) -> dict[str, str]:
    """One test example as all methods explain it, a picture for each data set that tells of one.

    `recipes` has, by data set, the recipe whose rows are taken. The example is the first of the
    first seed, not picked; methods that do not tell of it are missing.
    """
    found = {}
    for dataset, recipe in recipes.items():
        own = passed_rows(rows_of(rows, recipe, dataset))
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


Draw = Callable[[Sequence[Result]], Drawing]
DRAWN: dict[str, dict[str, Draw]] = {
    "figure-2": {"figure-2": first_flip_figure},
    "figure-4": {"figure-4": manipulation_figure, "figure-4-seeds": correlations_figure},
    "figure-7": {"figure-7": trade_off_figure},
    "figure-8": {"figure-8": sorted_scores_figure},
    "figure-9": {"figure-9": pairs_figure},
}
"""What draws the pictures of a target, by the names of their files."""


def pictures(target: Target, rows: Sequence[Result]) -> dict[str, str]:
    """The pictures of a target as SVG files by their names without ending; none for a table."""
    rows = [row for row in rows if row.dataset in target.datasets]
    if target.name == "figure-6":
        drawn = handlers_figures(rows)
        return {f"figure-6-{dataset}": svg for dataset, svg in drawn.items()}
    if target.name in SALIENCY:
        recipes = {dataset: target.recipe_of(dataset) for dataset in target.datasets}
        drawn = saliency_figures(rows, recipes)
        return {f"{target.name}-{dataset}": as_file(svg) for dataset, svg in drawn.items()}
    return {name: _file(draw, rows) for name, draw in DRAWN.get(target.name, {}).items()}


def _file(draw: Draw, rows: Sequence[Result]) -> str:
    return file_of(lambda _: draw(rows))


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
