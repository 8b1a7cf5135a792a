"""Charts of a comparison of models by what small moves do to their reasons."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from r2et.data.features import plain
from r2et.experiments.reason_records import NAMES, BeforeAfter, Compared, Comparison, NumberCurve
from r2et.report.charts import WIDTH, Drawing, heading, spread
from r2et.report.pages import Colours

LOOKS = {
    "regression": ("muted", "D"),
    "network": ("second", "s"),
    "trees": ("warn", "X"),
    "card": ("accent", "o"),
    "stable": ("own", "*"),
}
"""Colour and marker of each model."""
MOST_BARS = 9
CHARACTER, BOLD, LINE = 5.6, 6.6, 12.0  # points: of a small word


def _look(model: str, colours: Colours) -> dict[str, Any]:
    colour, marker = LOOKS[model]
    size = 11 if marker == "*" else 7 if marker == "X" else 5.5
    return {
        "color": colours[colour],
        "marker": marker,
        "markersize": size,
        "markeredgewidth": 0,
        "clip_on": False,
    }


def _weight(model: str) -> str:
    return "bold" if model == "stable" else "normal"


# --- frontier -----------------------------------------------------------------------------------


def frontier(found: Comparison, colours: Colours) -> Drawing:
    """How individual reasons are against how many decisions are broken, a marker for each model."""
    places = {
        row.model: (100 * row.under.broken, 100 - 100 * row.under.overlap) for row in found.rows
    }
    most, lot = 100 * found.most, 100 * found.lot
    figure, axes = _canvas(colours, height=3.7, right=0.975)
    widest = max(10.0, 1.12 * max(x for x, _ in places.values()))
    lowest = max(0.0, min(y for _, y in places.values()) - 12)
    axes.set_xlim(-0.02 * widest, widest)
    axes.set_ylim(lowest, 104)
    axes.axhline(most, color=colours["red"], linewidth=1.2)
    axes.axhline(lot, color=colours["muted"], linewidth=1.0, dashes=(2, 2))
    lines = ((most, "nobody whose reasons never break can pass this line"),
             (lot, f"{found.k} reasons drawn by lot"))  # fmt: skip
    for height, words in lines:
        above = (height + 0.8, "bottom") if height < 96 else (height - 1.2, "top")
        axes.text(widest, above[0], words, va=above[1], ha="right", fontsize=9,
                  color=colours["muted"])  # fmt: skip
    for model, (x, y) in places.items():
        axes.plot([x], [y], linestyle="none", **_look(model, colours))
    _name_markers(axes, places, [height for height, _ in lines], colours)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_xlabel("decisions whose reasons a small move breaks, %")
    heading(axes, "How individual reasons are, 1 − O, %  ·  better: up and to the left",
            colours["muted"])  # fmt: skip
    said = [f"{NAMES[model]} {x:.1f} and {y:.1f}" for model, (x, y) in places.items()]
    return Drawing(
        figure=figure,
        title="Individual reasons against broken ones",
        text=f"Percent broken and percent individual: {'; '.join(said)}. Reasons that never break "
        f"can be {most:.1f} percent individual at most, reasons drawn by lot are {lot:.1f}.",
    )


def _name_markers(
    axes: Axes, places: Mapping[str, tuple[float, float]], lines: Sequence[float], colours: Colours
) -> None:
    """Write each name beside its marker, where it covers no marker, no line and no other name."""
    points = {
        model: (axes.transData.transform(place) * 72 / axes.figure.dpi).tolist()
        for model, place in places.items()
    }
    right = float(axes.bbox.x1) * 72 / axes.figure.dpi
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in points.values()]
    for height in lines:
        y = float(axes.transData.transform((0, height))[1]) * 72 / axes.figure.dpi
        taken += [(0.0, y - 1, right, y + 1), (right - 120, y, right, y + LINE)]
    for model, (x, y) in points.items():
        wide = (BOLD if model == "stable" else CHARACTER) * len(NAMES[model])
        ways = [
            (9.0, 0.0, "left", "center", (x + 9, y - LINE / 2)),
            (0.0, 9.0, "center", "bottom", (x - wide / 2, y + 9)),
            (0.0, -9.0, "center", "top", (x - wide / 2, y - 9 - LINE)),
            (-9.0, 0.0, "right", "center", (x - 9 - wide, y - LINE / 2)),
        ]
        for up in (14.0, 26.0, 38.0, 50.0):
            ways += [
                (9.0, up, "left", "bottom", (x + 9, y + up)),
                (9.0, -up, "left", "top", (x + 9, y - up - LINE)),
                (-9.0, up, "right", "bottom", (x - 9 - wide, y + up)),
                (-9.0, -up, "right", "top", (x - 9 - wide, y - up - LINE)),
            ]
        boxes = [(left, low, left + wide, low + LINE) for *_, (left, low) in ways]
        free = [
            at
            for at, box in enumerate(boxes)
            if box[2] <= right and box[0] >= 20 and not any(_meet(box, each) for each in taken)
        ]
        at = free[0] if free else 0
        taken.append(boxes[at])
        across, up, ha, va, _ = ways[at]
        colour = colours[LOOKS[model][0]]
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 4}
        axes.annotate(
            NAMES[model], places[model], (across, up), textcoords="offset points", ha=ha, va=va,
            fontsize=9, color=colour, fontweight=_weight(model),
            arrowprops=leader if abs(up) > 10 else None,
        )  # fmt: skip


Box = tuple[float, float, float, float]


def _meet(one: Box, other: Box) -> bool:
    """Whether two boxes (left, bottom, right, top) overlap."""
    apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return not apart


# --- widths -------------------------------------------------------------------------------------


def broken_over_width(found: Comparison, colours: Colours) -> Drawing:
    """Share of decisions broken by moves up to each width, a line for each model."""
    widths = set(found.widths.values())
    units = len(widths) == 1
    scale = widths.pop() if units else 100.0
    places = [0.0, *(scale * limit for limit in found.limits)]
    longest = max(len(NAMES[row.model]) for row in found.rows)
    figure, axes = _canvas(colours, height=3.7, right=0.97 - 0.0132 * longest)
    ends, said = [], []
    for row in found.rows:
        shares = [0.0, *(100 * each for each in row.within)]
        width = 2.2 if row.model == "stable" else 1.4
        dashes = (None, None) if row.exact else (4, 2)
        axes.plot(
            places,
            shares,
            linewidth=width,
            dashes=dashes,
            markevery=slice(1, None),
            **_look(row.model, colours),
        )
        ends.append((shares[-1], row))
        said.append(f"{NAMES[row.model]} {', '.join(f'{each:.1f}' for each in shares[1:])}")
    axes.set_xlim(0, places[-1])
    axes.set_ylim(0, max(10.0, 1.1 * max(each for each, _ in ends)))
    sign = "±" if units else ""
    axes.set_xticks(places, ["0", *(f"{sign}{each:.3g}" for each in places[1:])])
    axes.set_xlabel(
        f"how far {' and '.join(found.widths)} move" if units and len(found.widths) <= 2
        else "how far numbers move" if units else "how far numbers move, % of their widths"
    )  # fmt: skip
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    _name_ends(axes, ends, colours)
    dashed = "" if all(row.exact for row in found.rows) else "  ·  dashed: at least"
    heading(axes, f"Decisions whose reasons a move breaks, %{dashed}", colours["muted"])
    at = ", ".join(f"{each:.3g}" for each in places[1:])
    return Drawing(
        figure=figure,
        title="Share of decisions broken against how far numbers move",
        text=f"Percent broken at {at}{'' if units else ' percent of the widths'}: "
        f"{'; '.join(said)}.",
    )


def _name_ends(axes: Axes, ends: Sequence[tuple[float, Compared]], colours: Colours) -> None:
    low, high = axes.get_ylim()
    last = axes.get_xlim()[1]
    ordered = sorted(ends, key=lambda end: end[0])
    heights = spread([end[0] for end in ordered], 0.062 * (high - low), low, high)
    for (_, row), height in zip(ordered, heights, strict=True):
        axes.text(1.04 * last, height, NAMES[row.model], va="center", fontsize=9,
                  color=colours[LOOKS[row.model][0]], fontweight=_weight(row.model))  # fmt: skip


# --- curves -------------------------------------------------------------------------------------


def curves(found: Comparison, colours: Colours) -> Drawing:
    """What each number that moves adds, its edges, and where people stand: a panel for each."""
    shown = found.curves
    height = 0.8 + 2.15 * len(shown)
    figure = Figure(figsize=(WIDTH, height))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0].tolist()
    figure.subplots_adjust(
        left=0.085, right=0.975, top=1 - 0.58 / height, bottom=0.3 / height, hspace=0.42
    )
    said = [_curve(axes, curve, colours) for axes, curve in zip(panels, shown, strict=True)]
    legend = (
        (0.085, "StableClassifier, edges dotted", colours[LOOKS["stable"][0]], "bold"),
        (0.55, "boosted trees", colours[LOOKS["trees"][0]], "normal"),
        (0.79, "grey: people", colours["muted"], "normal"),
    )
    for place, words, colour, weight in legend:
        figure.text(place, 1 - 0.06 / height, words, color=colour, fontweight=weight, va="top")
    return Drawing(
        figure=figure,
        title="What the numbers that move add to the score, value by value",
        text=" ".join(said),
    )


def _curve(axes: Axes, curve: NumberCurve, colours: Colours) -> str:
    """One number, and what is shown of it in words."""
    values = curve.values
    step = min(b - a for a, b in pairwise(values)) if len(values) > 1 else 1.0
    people = axes.twinx()
    people.bar(values, curve.people, width=0.86 * step, color=colours["open"], alpha=0.75)
    people.set_ylim(0, 2.2 * max(curve.people))
    people.set_yticks([])
    people.spines[:].set_visible(False)
    people.set_zorder(0)
    axes.set_zorder(1)
    axes.axhline(0, color=colours["rule"], linewidth=0.8)
    for edge in curve.edges:
        if values[0] <= edge <= values[-1]:
            axes.axvline(edge, color=colours["own"], linewidth=1.0, dashes=(1, 2))
    for model, width in (("trees", 1.0), ("stable", 2.0)):
        axes.plot(values, curve.adds[model], color=colours[LOOKS[model][0]], linewidth=width,
                  drawstyle="steps-mid")  # fmt: skip
    axes.set_xlim(values[0] - step, values[-1] + step)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.1 * (high - low), high + 0.15 * (high - low))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    heading(axes, f"{curve.name}: adds to the score, log-odds", colours["muted"])
    edges = ", ".join(plain(edge) for edge in curve.edges) or "none"
    busiest = values[max(range(len(values)), key=lambda at: curve.people[at])]
    return (
        f"{curve.name}: StableClassifier adds from {min(curve.adds['stable']):+.2f} to "
        f"{max(curve.adds['stable']):+.2f}, edges at {edges}; most people are at {plain(busiest)}."
    )


# --- one decision -------------------------------------------------------------------------------


def before_after(person: BeforeAfter, model: str, colours: Colours) -> Drawing:
    """What each attribute adds to one decision before and after a move; the reasons stand out."""
    before, after = person.said[model]
    order = sorted(before.adds, key=lambda name: before.adds[name])
    named = [name for name in order if name in {*before.reasons, *after.reasons, *person.move}]
    rest = [name for name in order if name not in named][: max(0, MOST_BARS - len(named))]
    names = [name for name in order if name in {*named, *rest}]
    height = 0.95 + 0.29 * len(names)
    figure = Figure(figsize=(WIDTH, height))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    longest = max(len(name) for name in names)
    figure.subplots_adjust(
        left=min(0.4, 0.03 + 0.0145 * longest), right=0.985, wspace=0.08,
        top=1 - 0.55 / height, bottom=0.4 / height,
    )  # fmt: skip
    far = 1.12 * max(abs(each) for said in (before, after) for each in said.adds.values())
    moved = ", ".join(f"{name} {plain(then)}" for name, (_, then) in person.move.items())
    for axes, said, words in zip(
        panels, (before, after), ("as it is", f"with {moved}"), strict=True
    ):
        for place, name in enumerate(names):
            reason = name in said.reasons
            changed = reason and name not in before.reasons
            colour = colours["warn" if changed else "accent" if reason else "open"]
            axes.barh(place, said.adds[name], height=0.62, color=colour)
            if reason:
                rank = f"{said.reasons.index(name) + 1}{' new' if changed else ''}"
                side = 1 if said.adds[name] <= 0 else -1
                axes.annotate(rank, (0, place), (4 * side, 0), textcoords="offset points",
                              va="center", ha="left" if side > 0 else "right", fontsize=9,
                              fontweight="bold", color=colour)  # fmt: skip
        axes.axvline(0, color=colours["muted"], linewidth=0.8)
        axes.set_xlim(-far, far)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.spines["left"].set_visible(False)
        axes.set_title(words, loc="left", fontsize=9.5, color=colours["muted"], pad=5)
    panels[0].set_yticks(range(len(names)), names)
    figure.text(0.01, 1 - 0.06 / height, f"{NAMES[model]}: {before.decision}", fontsize=10,
                fontweight="bold", va="top", color=colours[LOOKS[model][0]])  # fmt: skip
    for axes in panels:
        axes.set_xlabel("← against · for →", labelpad=1)
    change = "" if before.decision == after.decision else f"; decided is {after.decision} then"
    return Drawing(
        figure=figure,
        title=f"What speaks for and against one decision, {NAMES[model]}",
        text=f"{before.decision}. As it is, these speak most against it: "
        f"{', '.join(before.reasons)}; with {moved}: {', '.join(after.reasons)}{change}.",
    )


def _canvas(colours: Colours, *, height: float, right: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.075, right=right, top=0.915, bottom=0.47 / height)
    axes.grid(axis="y", color=colours["rule"], linewidth=0.6)
    return figure, axes
