"""Charts: one style for all of them, in the colours of a light page and of a dark one.

A function that draws takes the colours and returns a `Drawing`. `html_of` puts it into a page, as a
picture that follows the reader's choice of light or dark, and `file_of` into a file of its own.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from r2et.attacks.comparison import TOLERABLE, HandlingPoint
from r2et.auditing.reason_records import ReasonSummary
from r2et.auditing.records import Curve
from r2et.evaluation.results import Result, Scatter
from r2et.experiments.tables import (
    BEST,
    CHOSEN,
    LINEAR,
    VANILLA,
    is_ours,
    is_steady,
    passed_rows,
)
from r2et.report.pages import DARK, LIGHT, Colours, data_address


def style(colours: Colours) -> dict[Any, Any]:
    """The settings of matplotlib for all charts; always the same characters for the same chart."""
    ink, muted, rule = colours["ink"], colours["muted"], colours["rule"]
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "r2et",
        "path.simplify": True,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.5,
        "text.color": ink,
        "text.parse_math": False,
        "axes.facecolor": "none",
        "axes.edgecolor": rule,
        "axes.labelcolor": muted,
        "axes.labelsize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "xtick.color": rule,
        "ytick.color": rule,
        "xtick.labelcolor": muted,
        "ytick.labelcolor": muted,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
    }


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure with a title, and words for those who cannot see it."""

    figure: Figure
    title: str
    text: str


Draw = Callable[[Colours], Drawing]


def html_of(draw: Draw) -> Markup:
    """A chart as an element of a page that asks for no other file.

    A picture is a document of its own: its names and styles do not reach the page around it.
    """
    light, alt = _svg(draw, LIGHT)
    dark, _ = _svg(draw, DARK)
    return Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}">'
        '<img class="chart" src="{}" alt="{}"></picture>'
    ).format(*(data_address("image/svg+xml", each.encode()) for each in (dark, light)), alt)


def file_of(draw: Draw) -> str:
    """A chart as an SVG file of its own, on white ground."""
    return _svg(draw, LIGHT, ground="white")[0]


def _svg(draw: Draw, colours: Colours, ground: str = "none") -> tuple[str, str]:
    """A chart as SVG, and what it shows in words."""
    with mpl.rc_context(style(colours)):
        drawing, buffer = draw(colours), io.StringIO()
        about = {"Title": drawing.title, "Description": drawing.text}
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawing.figure.savefig(buffer, format="svg", facecolor=ground, metadata=about | nothing)
    return buffer.getvalue(), f"{drawing.title}. {drawing.text}"


# --- charts of a run ----------------------------------------------------------------------------

MARKS = {
    "unconstrained": ("muted", "X"),
    "equal": ("orange", "s"),
    "gda": ("accent", "o"),
    "hedge": ("green", "^"),
    "qp": ("pink", "D"),
    "early-stop": ("faint", "v"),
    "rejection": ("ink", "P"),
}
MANY_PLACES = 100
WIDTH = 5.7  # inches: small enough for a telephone to show the words at a readable size


RunChart = Callable[[Sequence[Result], Colours], Drawing]


@dataclass(frozen=True, kw_only=True)
class Series:
    """The rows of one method and how it is drawn; the colour is a name."""

    method: str
    label: str
    rows: list[Result]
    colour: str
    width: float
    marker: str


def methods_shown(rows: Sequence[Result]) -> list[Series]:
    """The methods in drawing order: steady ones not chosen, the control, Vanilla, the chosen one.

    A method that is chosen on every seed is drawn once, as the chosen one. Ours have a colour of
    their own, chosen or not.
    """
    best = CHOSEN.rows(rows)
    always = _always_chosen(rows)
    found = []
    for method in dict.fromkeys(row.method for row in rows):
        own = passed_rows(rows, method)
        if not own or (method == always and len(best) == len(own)):
            continue
        colour, width, marker = _look(method)
        label = own[0].label
        found.append(
            Series(method=method, label=label, rows=own, colour=colour, width=width, marker=marker)
        )
    if best:
        label = CHOSEN.label if always is None else _called_chosen(best[0].variant)
        colour = "own" if is_ours_throughout(rows) else "accent"
        found.append(
            Series(method=BEST, label=label, rows=best, colour=colour, width=2.2, marker="o")
        )
    return sorted(found, key=lambda series: series.width)


def _called_chosen(label: str) -> str:
    """The label of a method that was chosen, which may have brackets already.

    >>> _called_chosen("R2ET"), _called_chosen("Steadfast (quick)")
    ('R2ET (chosen)', 'Steadfast (quick, chosen)')
    """
    return f"{label[:-1]}, chosen)" if label.endswith(")") else f"{label} (chosen)"


def _look(method: str) -> tuple[str, float, str]:
    """Colour, line width and marker of a method that is not the chosen one."""
    if method == VANILLA:
        return "warn", 2.0, "s"
    if is_ours(method):
        return "own", 1.2, "^"
    return ("faint", 1.0, "o") if is_steady(method) else ("muted", 1.3, "D")


def _always_chosen(rows: Sequence[Result]) -> str | None:
    """The method chosen on every seed that has a choice, None if they differ."""
    chosen = {*CHOSEN.methods(rows).values()}
    return next(iter(chosen)) if len(chosen) == 1 else None


def is_ours_throughout(rows: Sequence[Result]) -> bool:
    """Whether one method of ours is chosen on every seed."""
    always = _always_chosen(rows)
    return always is not None and is_ours(always)


def pair_shown(rows: Sequence[Result]) -> list[Series]:
    """Vanilla and the chosen network, as far as there are any."""
    return [series for series in methods_shown(rows) if series.method in (VANILLA, BEST)]


def can_draw(chart: RunChart, row: Result) -> bool:
    """Whether a measured row holds what a figure of a report draws; attacks can be left out."""
    series, measures = row.series, row.measures
    needs: dict[RunChart, bool] = {
        curve: bool(series.curve.er),
        scatter: bool(series.scatter.correlation),
        profile: bool(series.profile.median),
        plane: "strong_precision" in measures,
    }
    return needs[chart]


def curve(rows: Sequence[Result], colours: Colours) -> Drawing:
    """P@k against the radius: strong attack as lines, ERAttack dashed; min to max over seeds."""
    shown = methods_shown(rows)
    figure, axes = _canvas(colours, height=3.7, right=_room_for_names(shown))
    ends, said = [], []
    for series in shown:
        curves = [row.series.curve for row in series.rows]
        radii = curves[0].epsilon
        strong = [[100 * value for value in curve.strong] for curve in curves]
        weak = _means([[100 * value for value in curve.er] for curve in curves])
        mean = _means(strong)
        if len(strong) > 1:
            axes.fill_between(
                radii,
                [min(at) for at in zip(*strong, strict=True)],
                [max(at) for at in zip(*strong, strict=True)],
                color=colours[series.colour],
                alpha=0.13,
                linewidth=0,
            )
        axes.plot(radii, weak, color=colours[series.colour], linewidth=0.9, dashes=(3, 2))
        axes.plot(
            radii,
            mean,
            color=colours[series.colour],
            linewidth=series.width,
            marker=series.marker,
            markersize=2.4 + series.width / 2,
            clip_on=False,
        )
        ends.append((radii[-1], mean[-1], series))
        said.append(f"{series.label} {mean[-1]:.1f}")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    axes.set_xlabel(
        "ε, greatest change of one number"
        if any(row.radii.norm == "linf" for row in rows)
        else "ε, greatest length of the change (scaled units)"
    )
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _name_ends(axes, ends, colours)
    heading(
        axes,
        f"Reasons kept in the top {rows[0].k}, %  ·  solid: strong, dashed: ERAttack",
        colours["muted"],
    )
    return Drawing(
        figure=figure,
        title="Reasons kept against the length of the change",
        text=f"At the largest length, kept under the strong attack in percent: {'; '.join(said)}.",
    )


def scatter(rows: Sequence[Result], colours: Colours) -> Drawing:
    """Thickness against the steps to the first flip, one panel for each of the shown pair."""
    shown = pair_shown(rows)
    figure, panels, _ = _panels(len(shown), each=1.95, share=True)
    figure.subplots_adjust(left=0.1, right=0.98, top=0.93, bottom=0.13, hspace=0.32)
    data = [series.rows[0].series.scatter for series in shown]
    said = [
        _scatter(axes, series, each, colours)
        for axes, series, each in zip(panels, shown, data, strict=False)
    ]
    # One scale for both panels, or a narrow spread would look like a wide one.
    depth = 1 - min((value for each in data for value in each.thickness), default=0.0)
    panels[0].set_ylim(1 - 1.22 * max(depth, 0.01), 1 + 0.06 * max(depth, 0.01))
    panels[-1].set_xlabel("ERAttack steps until the first reason is displaced")
    return Drawing(
        figure=figure,
        title="Thickness against the steps to the first flip",
        text=" ".join(said) or "There is nothing to show.",
    )


def _scatter(axes: Axes, series: Series, data: Scatter, colours: Colours) -> str:
    """One panel, and what it shows in words."""
    last, kept = data.last_step, 100 * (data.never_flipped or 0.0)
    flips, thickness = data.first_flip, data.thickness
    reached = [(x, y) for x, y in zip(flips, thickness, strict=True) if x <= last]
    never = [y for x, y in zip(flips, thickness, strict=True) if x > last]
    style: dict[str, Any] = {
        "linestyle": "none",
        "marker": series.marker,
        "markersize": 3.2,
        "color": colours[series.colour],
        "alpha": 0.45,
        "markeredgewidth": 0,
    }
    axes.axvspan(1.02 * last, 1.24 * last, color=colours["rule"], alpha=0.35, linewidth=0)
    if reached:
        axes.plot([x for x, _ in reached], [y for _, y in reached], **style)
    # The place within the strip means nothing; it only keeps equal values apart.
    places = [last * (1.04 + 0.18 * (0.618034 * number % 1)) for number in range(len(never))]
    axes.plot(places, never, **style)
    axes.set_xlim(0, 1.25 * last)
    axes.set_xticks([0, last / 4, last / 2, 3 * last / 4, last])
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    _note(axes, 1.13 * last, 0.03, f"never: {kept:.0f} %", colours, ha="center")
    names = {"thickness": "thickness", "hessian_norm": "Hessian norm"}
    found = {name: _mean_correlation(series.rows, name) for name in names}
    numbers = ", ".join(f"{names[name]} {value:+.2f}" for name, value in found.items())
    words = f"Spearman with steps: {numbers}".replace("-", "−")
    _note(axes, 0.985 * last, 0.03, words, colours, ha="right")
    heading(axes, f"{series.label}: thickness", colours[series.colour])
    return (
        f"{series.label}: Spearman correlation with the steps to the first flip: {numbers}; "
        f"{kept:.0f} percent never flipped."
    )


def _mean_correlation(rows: Sequence[Result], name: str) -> float:
    return fmean([row.series.scatter.correlation[name] for row in rows])


def profile(rows: Sequence[Result], colours: Colours) -> Drawing:
    """Scores by rank as shares of the top one: median and middle half for the shown pair."""
    k, said = rows[0].k, []
    figure, axes = _canvas(colours, height=3.3, right=0.97)
    axes.axvspan(k + 0.04, k + 0.96, color=colours["rule"], alpha=0.45, linewidth=0)
    places = []
    for series in pair_shown(rows):
        profiles = [row.series.profile for row in series.rows if row.series.profile.median]
        if not profiles:
            continue
        # Of thousands of pixels those near place k are what the figure is about.
        few = slice(None if len(profiles[0].median) <= MANY_PLACES else 4 * k)
        median, low, high = (
            _means([getattr(profile, name)[few] for profile in profiles])
            for name in ("median", "low", "high")
        )
        ranks = range(1, len(median) + 1)
        axes.fill_between(ranks, low, high, color=colours[series.colour], alpha=0.14, linewidth=0)
        axes.plot(
            ranks,
            median,
            color=colours[series.colour],
            linewidth=1.8,
            marker=series.marker if len(median) <= MANY_PLACES else "",
            markersize=3,
        )
        places.append((median, series))
        if len(median) > k:
            said.append(
                f"{series.label}: place {k} scores {median[k - 1]:.2f} of the first, "
                f"place {k + 1} scores {median[k]:.2f}."
            )
    axes.set_ylim(0, 1.03)
    axes.set_xlim(left=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("place in the ranking of the unattacked explanation")
    top = 0.93
    for _, series in places:
        axes.text(0.97, top, series.label, color=colours[series.colour], transform=axes.transAxes,
                  ha="right", fontweight="bold")  # fmt: skip
        top -= 0.09
    _note(axes, k + 0.5, 0.94, f"top {k} ends here", colours, ha="left")
    heading(
        axes, "Score as share of the top one  ·  line: median, band: middle half", colours["muted"]
    )
    return Drawing(
        figure=figure,
        title="Scores by place in the ranking",
        text=" ".join(said) or "There is nothing to show.",
    )


def plane(rows: Sequence[Result], colours: Colours) -> Drawing:
    """Clean AUC against P@k under the strong attack, one dot for each method and seed."""
    ends, said = [], []
    shown = methods_shown(rows)
    figure, axes = _canvas(colours, height=3.7, right=_room_for_names(shown))
    for series in shown:
        aucs = [row.measures["clean_auc"] for row in series.rows]
        kept = [100 * row.measures["strong_precision"] for row in series.rows]
        axes.plot(
            aucs,
            kept,
            linestyle="none",
            marker=series.marker,
            markersize=6.5 if series.method == BEST else 5.5,
            color=colours[series.colour],
            alpha=0.85,
            markeredgewidth=0,
            clip_on=False,
        )
        if series.method == LINEAR:
            # A name in the margin would need a line across the figure. The least accurate dot
            # of the control is the one farthest from those of the networks.
            axes.annotate(
                series.label,
                (min(aucs), kept[aucs.index(min(aucs))]),
                (0, -11),
                textcoords="offset points",
                color=colours[series.colour],
                fontsize=9,
                ha="center",
                va="center",
            )
        else:
            ends.append((max(aucs), kept[aucs.index(max(aucs))], series))
        said.append(f"{series.label}: AUC {fmean(aucs):.4f}, kept {fmean(kept):.1f} percent")
    axes.margins(x=0.22)
    axes.set_ylim(0, 102)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.set_xlabel("clean AUC")
    _name_ends(axes, ends, colours)
    heading(
        axes, f"Reasons kept in the top {rows[0].k} under the strong attack, %", colours["muted"]
    )
    return Drawing(
        figure=figure,
        title="Accuracy against stability",
        text="; ".join(said) + ".",
    )


def constraint_handling(
    points: Sequence[HandlingPoint], colours: Colours, *, tolerable: float = TOLERABLE
) -> Drawing:
    """P@k against changed predictions, a panel for each goal: figure 6 of the paper.

    Colour and shape tell the handling, of which every step size has a dot; those at one place stand
    side by side. The line is the Pareto front, the star the setting selected, the strip the
    sensitivity that it may have.
    """
    goals = list(dict.fromkeys(point.goal for point in points))
    marks = _marks(points)
    figure, panels, height = _panels(len(goals), each=2.45)
    figure.subplots_adjust(
        left=0.075, right=0.72, top=1 - 0.3 / height, bottom=0.5 / height, hspace=0.38
    )
    said = []
    for axes, goal in zip(panels, goals, strict=False):
        own = [point for point in points if point.goal == goal]
        axes.axvspan(-100, 100 * tolerable, color=colours["rule"], alpha=0.35, linewidth=0)
        said.append(_handling(axes, goal, own, marks, colours))
    panels[-1].set_xlabel("inputs with a changed prediction, %")
    if points:
        _name_marks(panels[0], marks, tolerable, colours)
    return Drawing(
        figure=figure,
        title="Reasons kept against changed predictions",
        text=" ".join(said) or "There is nothing to show.",
    )


def _star(colours: Colours) -> dict[str, Any]:
    edge = {"markeredgecolor": colours["red"]}
    return {"linestyle": "none", "marker": "*", "color": "none", **edge}


def _marks(points: Sequence[HandlingPoint]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each handling shown; one without its own takes one that is free."""
    names = list(dict.fromkeys(point.handler for point in points))
    free = [mark for name, mark in MARKS.items() if name not in names] or [("muted", "o")]
    others = [name for name in names if name not in MARKS]
    lent = {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: (MARKS | lent)[name] for name in names}


def _handling(
    axes: Axes,
    goal: str,
    points: Sequence[HandlingPoint],
    marks: Mapping[str, tuple[str, str]],
    colours: Colours,
) -> str:
    """One panel, and what it shows in words."""
    widest = max(5.0, *(100 * point.sensitivity for point in points))
    deepest = max(5.0, *(100 - 100 * point.precision for point in points))
    axes.set_xlim(-0.06 * widest, 1.04 * widest)
    axes.set_ylim(100 - 1.1 * deepest, 100 + 0.05 * deepest)
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    front = sorted((point.sensitivity, point.precision) for point in points if point.on_front)
    axes.plot(
        [100 * sensitivity for sensitivity, _ in front],
        [100 * precision for _, precision in front],
        color=colours["red"],
        linewidth=1.2,
    )
    style: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0, "clip_on": False}
    for (x, y), names in _side_by_side(points, 0.02 * widest, 0.03 * deepest).items():
        for number, name in enumerate(names):
            shifted = x + 0.022 * widest * (number - (len(names) - 1) / 2)
            colour, marker = marks[name]
            axes.plot([shifted], [y], color=colours[colour], marker=marker, markersize=4.8, **style)
    title = {"er": "ERAttack", "mse": "MSE attack"}.get(goal, goal)
    heading(axes, f"{title}: reasons kept in the top k, %", colours["muted"])
    for point in points:
        if point.selected:
            place = [100 * point.sensitivity], [100 * point.precision]
            axes.plot(*place, **_star(colours) | {"markersize": 15}, clip_on=False)
            return (
                f"{title}: selected is {point.handler} with steps of {point.step:g}, "
                f"{100 * point.precision:.1f} percent kept and "
                f"{100 * point.sensitivity:.1f} percent changed."
            )
    return f"{title}: none is selected."


def _side_by_side(
    points: Sequence[HandlingPoint], wide: float, high: float
) -> dict[tuple[float, float], list[str]]:
    """The handlings at each place in percent, dots nearer than a cell of that size as one place."""
    cells: dict[tuple[int, int], list[HandlingPoint]] = {}
    for point in points:
        cell = round(100 * point.sensitivity / wide), round(100 * point.precision / high)
        cells.setdefault(cell, []).append(point)
    found = {}
    for group in cells.values():
        place = (
            fmean([100 * point.sensitivity for point in group]),
            fmean([100 * point.precision for point in group]),
        )
        found[place] = list(dict.fromkeys(point.handler for point in group))
    return found


def _name_marks(
    axes: Axes, marks: Mapping[str, tuple[str, str]], tolerable: float, colours: Colours
) -> None:
    """What the colours and shapes stand for, in the right margin."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 5.5, "markeredgewidth": 0}
    rows: list[tuple[str, dict[str, Any]]] = [
        (name, plain | {"color": colours[colour], "marker": marker})
        for name, (colour, marker) in marks.items()
    ]
    rows += [
        ("selected", _star(colours) | {"markersize": 10}),
        ("Pareto front", {"color": colours["red"], "linewidth": 1.2}),
        (
            f"≤ {100 * tolerable:g} % changed",
            plain | {"color": colours["rule"], "marker": "s", "markersize": 9},
        ),
    ]
    for number, (name, style) in enumerate(rows):
        height = 0.97 - 0.1 * number
        place = [1.06, 1.08, 1.1] if "linewidth" in style else [1.08]
        axes.plot(place, [height] * len(place), transform=axes.transAxes, clip_on=False, **style)
        axes.text(1.13, height, name, transform=axes.transAxes, va="center", fontsize=9)


def _canvas(colours: Colours, *, height: float, right: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.075, right=right, top=0.915, bottom=0.47 / height)
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    return figure, axes


def _panels(count: int, *, each: float, share: bool = False) -> tuple[Figure, list[Axes], float]:
    """A figure of panels one below the other, `each` inches high; none is shown as an empty one."""
    height = 0.75 + each * max(1, count)
    figure = Figure(figsize=(WIDTH, height))
    panels = figure.subplots(max(1, count), 1, sharex=share, sharey=share, squeeze=False)[:, 0]
    if not count:
        panels[0].set_axis_off()
    return figure, list(panels), height


def _note(axes: Axes, x: float, y: float, words: str, colours: Colours, *, ha: str) -> None:
    """Small words at a place of the horizontal axis, as high as a share of the vertical one."""
    place = axes.get_xaxis_transform()
    axes.text(x, y, words, transform=place, ha=ha, color=colours["muted"], fontsize=9)


def _room_for_names(shown: Sequence[Series]) -> float:
    """Where the axes end, as a share of the width, so that the names beside them have room."""
    longest = max((len(series.label) for series in shown), default=0)
    return max(0.5, min(0.76, 0.955 - 0.0132 * longest))


def heading(axes: Axes, text: str, colour: str) -> None:
    """What the vertical axis shows, written where reading starts."""
    axes.set_title(text, loc="left", fontsize=9.5, color=colour, pad=7)


def _name_ends(
    axes: Axes, ends: Sequence[tuple[float, float, Series]], colours: Colours, gap: float = 6.6
) -> None:
    """Write each method's name in the right margin, as near to its point as the others allow."""
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    heights = spread([end[1] for end in ordered], gap, low, high - 1)
    edge = axes.get_xlim()[1]
    left, right = axes.get_xlim()
    margin = edge + 0.05 * (right - left)
    for (x, y, series), height in zip(ordered, heights, strict=True):
        axes.plot(
            [x, edge + 0.035 * (right - left)],
            [y, height],
            color=colours[series.colour],
            linewidth=0.6,
            alpha=0.6,
            clip_on=False,
            scalex=False,
            scaley=False,
        )
        axes.text(
            margin,
            height,
            series.label,
            # The faint colour is good enough for a line, not for words.
            color=colours["muted" if series.colour == "faint" else series.colour],
            va="center",
            fontweight="bold" if series.method in (VANILLA, BEST) else "normal",
            fontsize=9,
        )
    axes.set_xlim(left, right)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Rising places moved as little as needed to lie `gap` apart, from `high` downwards.

    >>> spread([10.0, 11.0, 50.0], 5.0, 0.0, 100.0)
    [6.0, 11.0, 50.0]
    """
    moved: list[float] = []
    ceiling = high
    for place in reversed(places):
        moved.append(min(place, ceiling))
        ceiling = moved[-1] - gap
    moved.reverse()
    floor = low
    for number, place in enumerate(moved):
        moved[number] = max(place, floor)
        floor = moved[number] + gap
    return moved


def _means(lists: Iterable[Sequence[float]]) -> list[float]:
    """Mean of the lists, place by place."""
    return [fmean(at) for at in zip(*lists, strict=True)]


# --- charts of an audit -------------------------------------------------------------------------

FRAME = {"left": 0.1, "right": 0.977, "bottom": 0.175, "top": 0.96}
"""Where the axes of an audit's charts are, as shares of the whole, for what a page lays over."""
OF_MODELS = (("accent", "o"), ("second", "s"), ("third", "D"), ("fourth", "^"))


def kept_within(curves: Sequence[Curve], longest: float, colours: Colours) -> Drawing:
    """Share of the reasons kept against the length: for each model a band from proved to found.

    Where both are one at every length, it is one bold line.
    """
    figure, axes = _lengths(curves, longest, colours)
    for number, curve in enumerate(curves):
        name, marker = OF_MODELS[number % len(OF_MODELS)]
        lengths, lower, upper = _from_nothing(
            curve.epsilons, curve.certified_precision, curve.attacked_precision
        )
        colour = colours[name]
        axes.fill_between(lengths, lower, upper, color=colour, alpha=0.15, linewidth=0)
        axes.plot(lengths, lower, color=colour, linewidth=2.6 if curve.is_exact else 1.6)
        axes.plot(
            lengths[1:],
            lower[1:],
            color=colour,
            linestyle="none",
            marker=marker,
            markersize=4.5,
            clip_on=False,
        )
        if curve.attacked_precision and not curve.is_exact:
            axes.plot(lengths, upper, color=colour, linewidth=1.6, dashes=(4, 2))
    return Drawing(
        figure=figure,
        title="Share of the reasons kept against the longest change allowed",
        text="The numbers are in the table below.",
    )


def verdicts_within(curve: Curve, longest: float, colours: Colours) -> Drawing:
    """Shares of decisions certified, undetermined and broken against the length."""
    figure, axes = _lengths([curve], longest, colours)
    lengths, proved, standing = _from_nothing(
        curve.epsilons, curve.certified_share, curve.unbroken_share
    )
    none, whole = [0.0] * len(lengths), [100.0] * len(lengths)
    for low, high, name in (
        (none, proved, "own"),
        (proved, standing, "open"),
        (standing, whole, "warn"),
    ):
        axes.fill_between(lengths, low, high, color=colours[name], alpha=0.8, linewidth=0)
    return Drawing(
        figure=figure,
        title="Shares of decisions certified, undetermined and broken against the longest change "
        "allowed",
        text="The numbers are in the table below.",
    )


def broken_within(models: Sequence[ReasonSummary], colours: Colours) -> Drawing:
    """Share of decisions that changes of each size break, a line for each model."""
    figure = Figure(figsize=(5.0, 2.95))
    axes = figure.subplots()
    figure.subplots_adjust(**FRAME)
    axes.set_xlim(0, 1)
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    said = []
    for number, model in enumerate(models):
        name, marker = OF_MODELS[number % len(OF_MODELS)]
        total = max(1, sum(model.counts.values()))
        shares = [0.0, *(100 * count / total for count in model.within)]
        sizes = [0.0, *model.sizes]
        axes.plot(sizes, shares, color=colours[name], linewidth=1.6, drawstyle="steps-post")
        axes.plot(sizes[-1:], shares[-1:], color=colours[name], marker=marker, clip_on=False)
        said.append(f"{model.name}: {shares[10]:.0f} % at half the size, {shares[-1]:.0f} % at 1")
    axes.set_ylim(0, min(100.0, 1.25 * max(10.0, axes.get_ylim()[1])))
    axes.set_xlabel("size of the change: 1 is as far as anything may move")
    axes.set_ylabel("broken, %", labelpad=1)
    return Drawing(
        figure=figure,
        title="Share of decisions broken by changes up to a size",
        text="; ".join(said) + ".",
    )


def _lengths(curves: Sequence[Curve], longest: float, colours: Colours) -> tuple[Figure, Axes]:
    """Axes from no change to the longest, with a tick at each length that was audited."""
    figure = Figure(figsize=(5.0, 2.95))
    axes = figure.subplots()
    figure.subplots_adjust(**FRAME)
    axes.set_xlim(0, longest)
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    axes.set_axisbelow(False)
    ticks = [0.0]
    for length in sorted({each for curve in curves for each in curve.epsilons}):
        if length - ticks[-1] >= 0.062 * longest:
            ticks.append(length)
    axes.set_xticks(ticks, [f"{length:g}" for length in ticks])
    axes.set_yticks([0, 25, 50, 75, 100], [f"{value} %" for value in (0, 25, 50, 75, 100)])
    axes.set_xlabel("longest change allowed", loc="right")
    return figure, axes


def _from_nothing(
    lengths: Sequence[float], lower: Sequence[float], upper: Sequence[float] | None
) -> tuple[list[float], list[float], list[float]]:
    """The lengths from no change on and both shares in percent; everything where one is unknown."""
    high = [1.0] * len(lengths) if upper is None else upper
    # Without any change every reason stays, whatever the model.
    start = [] if lengths and lengths[0] == 0 else [1.0]
    low, high = ([100 * value for value in (*start, *shares)] for shares in (lower, high))
    return [0.0 for _ in start] + list(lengths), low, high
