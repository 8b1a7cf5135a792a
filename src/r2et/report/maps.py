"""Decisions about pictures, networks and concepts, drawn before and after an attack.

All drawings are made from the records of `r2et.evaluation.decisions` alone: SVG that embeds what it
shows, with words for those who cannot see it. Shapes say the same as colours, for the
colour-blind and for print. They carry no style of their own, so that
a page may forbid styles within elements.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from r2et.core.inputs import Piece
from r2et.evaluation.decisions import DecisionDrawing, When, numbers_of
from r2et.report.pages import data_address, percent

__all__ = [
    "concept_map",
    "decision_map",
    "feature_name",
    "network_map",
    "picture_map",
    "saliency_figure",
    "strongest",
]

Numbers = NDArray[np.float64]

COLOURS = {"kept": "#00795a", "lost": "#d55e00", "gained": "#8a3ea8"}
SIGNS = {"kept": "", "lost": "M.1.1l.8.8m0-.8l-.8.8", "gained": "M.5.1v.8m-.4-.4h.8"}
GREYS = [(round(255 - 17 * level * 0.92),) * 3 for level in range(16)]
FELL, ROSE = (179, 88, 6), (84, 39, 136)  # orange to purple, told apart by everybody
TILE, GAP, LINE = 112, 10, 15  # of a small picture, between two, and of a line of words
MATRIX = 3 * TILE + 2 * GAP
BARS = 10
SMALLEST = 1 / 255  # what one byte can tell


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A small picture under its caption: an address to embed, cells high and wide, and marks."""

    caption: str
    picture: str
    cells: tuple[int, int]
    marks: Mapping[str, Sequence[int]] | None = None


def decision_map(decision: DecisionDrawing) -> str:
    """A decision as SVG, drawn as its kind asks."""
    kinds = {"picture": picture_map, "network": network_map, "concept": concept_map}
    if decision.kind not in kinds:
        raise ValueError(
            f"a decision to be drawn is of kind {', '.join(kinds)}, got {decision.kind!r}."
        )
    return kinds[decision.kind](decision)


def picture_map(decision: DecisionDrawing) -> str:
    """Pictures before and after with what changed, and their saliency with the top k marked."""
    lines = [*_picture_lines(decision), _saliency_line(decision)]
    body, width, height = _grid(lines)
    legend, low = _legend(decision, height + 4)
    return _svg(width, low, "Saliency before and after the attack", told(decision), body + legend)


def network_map(decision: DecisionDrawing) -> str:
    """Saliency of all edges as a matrix: above the diagonal before, below it after the attack."""
    nodes = int(decision.shape[0])
    before, after = (_symmetric(_saliency(decision, when), nodes) for when in ("before", "after"))
    whole = np.triu(before, 1) + np.tril(after, -1)
    states = states_of(decision)
    rows, columns = np.triu_indices(nodes, 1)
    size, top = MATRIX / nodes, LINE + 2
    body = [
        _text("above the diagonal: before", MATRIX, 11, anchor="end"),
        _image(_greys(whole), 0, top, MATRIX, MATRIX),
        _text("below: after the attack", 0, top + MATRIX + 13),
    ]
    for state, numbers in states.items():
        shown = [(rows[i], columns[i]) for i in numbers]
        sides = [] if state == "gained" else shown
        sides = sides + ([] if state == "lost" else [(column, row) for row, column in shown])
        # A cell is too small to be seen: the marks around it are not.
        places = [((column + 0.5) * size - 3, (row + 0.5) * size - 3) for row, column in sides]
        body.append(_marks(state, places, 0, top, 6.0))
    legend, low = _legend(decision, top + MATRIX + LINE + 6)
    return _svg(MATRIX, low, "Saliency of all edges before and after the attack", told(decision),
                "".join(body) + legend)  # fmt: skip


def concept_map(decision: DecisionDrawing) -> str:
    """Bars of the strongest neurons before and after, under the pictures that they see."""
    body, width, top = _grid(_picture_lines(decision))
    before, after = (_saliency(decision, when) for when in ("before", "after"))
    states = {number: state for state, found in states_of(decision).items() for number in found}
    shown = list(dict.fromkeys([*_tops(decision, "before"), *_tops(decision, "after")]))
    shown = sorted(shown, key=lambda number: -float(before[number]))
    heading = _text("response of neurons: grey before, colour after", 0, top + 20)
    left, parts = 84.0, [body, heading]
    top += LINE + 12
    for place, number in enumerate(shown):
        y, state = top + 17 * place, states[number]
        room = width - left
        parts += [
            _text(feature_name(decision, number), left - 22, y + 11, anchor="end"),
            _marks(state, [(left - 16.0, y + 2.5)], 0, 0, 9.0),
            f'<rect x="{left}" y="{y + 1}" width="{room * before[number]:.1f}" height="6" '
            'fill="#9aa4ae"/>',
            f'<rect x="{left}" y="{y + 7.5}" width="{room * after[number]:.1f}" height="6" '
            f'fill="{COLOURS[state]}"/>',
        ]
    legend, low = _legend(decision, top + 17 * len(shown) + 6)
    return _svg(width, low, "Responses of the strongest neurons before and after the attack",
                told(decision), "".join(parts) + legend)  # fmt: skip


def saliency_figure(
    decisions: Mapping[str, DecisionDrawing],
    *,
    name: str = "saliency",
    title: str = "Saliency maps of one decision, method by method",
    across: int = 6,
) -> str:
    """One test example as all methods explain it, before and after the attack: figures 3 and 5.

    `decisions` holds for each method's label what it made of the same example, a record of kind
    "picture" or "network"; the top k are marked, and P@k stands under each pair of maps. `name`
    is that of the figure, `across` how many maps stand side by side.
    """
    found = list(decisions.items())
    if not found or any(each.kind not in ("picture", "network") for _, each in found):
        raise ValueError(
            "a figure of saliency maps takes one told picture or network for each method, got "
            f"{ {label: each.kind for label, each in found} }."
        )
    if len({_identity(each) for _, each in found}) > 1:
        raise ValueError(
            "a figure of saliency maps shows one example, but these methods tell of different ones."
        )
    columns: list[tuple[str, list[Tile], str]] = []
    if found[0][1].kind == "picture":
        worst = min(found, key=lambda each: float(each[1].precision))
        columns.append(("The picture", _clean_tiles(*worst), ""))
    for label, each in found:
        columns.append((label, _pair_of_maps(each), f"P@{_k(each)} {percent(each.precision)}"))
    lines = math.ceil(len(columns) / across)
    across = math.ceil(len(columns) / lines)  # no line much shorter than the others
    body, top = [], 0.0
    for first in range(0, len(columns), across):
        line = columns[first : first + across]
        low = top
        for place, (label, tiles, under) in enumerate(line):
            x, y = place * (TILE + GAP), top + 12
            body.append(_text(label, x, y, bold=True))
            for tile in tiles:
                body.append(_text(tile.caption, x, y + 15))
                y += 20
                drawn, high = _tile(tile, x, y)
                body.append(drawn)
                y += high
            body.append(_text(under, x, y + 15))
            low = max(low, y + 26)
        top = low + GAP
    width = min(across, len(columns)) * (TILE + GAP) - GAP
    legend, top = _legend(found[0][1], top, counted=False)
    said = "; ".join(
        f"{label}: of the top {_k(each)} {percent(each.precision)} kept" for label, each in found
    )
    return _svg(max(width, 330), top, title, f"{said}.", "".join(body) + legend, name=name)


def told(decision: DecisionDrawing) -> str:
    """What a drawn decision shows, in words."""
    states = states_of(decision)
    what = {"picture": "pixels", "network": "edges", "concept": "neurons"}[decision.kind]
    was, now = decision.probability
    return (
        f"Predicted {decision.predicted} with {percent(was)}, {percent(now)} after the "
        f"attack. Of the {_k(decision)} strongest {what}, {len(states['kept'])} are still among "
        f"them afterwards, {len(states['lost'])} are not: {percent(decision.precision)} kept."
    )


def states_of(decision: DecisionDrawing) -> dict[str, list[int]]:
    """The features that were kept in the top k, lost from it and gained by it, by rank."""
    before, after = decision.top.before, decision.top.after
    return {
        "kept": [each for each in before if each in set(after)],
        "lost": [each for each in before if each not in set(after)],
        "gained": [each for each in after if each not in set(before)],
    }


def strongest(decision: DecisionDrawing, count: int = BARS) -> dict[str, list[dict[str, Any]]]:
    """The strongest features "before" and "after" the attack by name, each with its state.

    `share` is the score as a share of the largest; `place` where it stands in the other list, from
    0, None if it is not in that top k.
    """
    top = decision.top
    found: dict[str, list[dict[str, Any]]] = {}
    sides: tuple[tuple[When, When], ...] = (("before", "after"), ("after", "before"))
    for when, other in sides:
        scores = _saliency(decision, when)
        places = {number: place for place, number in enumerate(top.at(other))}
        found[when] = [
            {
                "name": feature_name(decision, number),
                "share": float(scores[number]),
                "place": places.get(number),
            }
            for number in top.at(when)[:count]
        ]
    return found


def feature_name(decision: DecisionDrawing, number: int) -> str:
    """A feature in words: an edge by its nodes, a pixel by its place, a neuron by its number."""
    named = decision.names.get(str(number))
    if named is not None:
        return str(named)
    if decision.kind == "concept":
        return f"neuron {number + 1}"
    if decision.kind == "network":
        rows, columns = np.triu_indices(int(decision.shape[0]), 1)
        return f"node {rows[number] + 1} \N{EN DASH} node {columns[number] + 1}"
    high, wide = _cells(decision)
    row, column = divmod(number % (high * wide), wide)
    return f"row {row + 1}, column {column + 1}"


def _identity(decision: DecisionDrawing) -> str:
    return f"{decision.row} {decision.shape}"


def _k(decision: DecisionDrawing) -> int:
    return len(decision.top.before)


def _tops(decision: DecisionDrawing, when: When) -> list[int]:
    return list(decision.top.at(when)[:BARS])


def _saliency(decision: DecisionDrawing, when: When) -> Numbers:
    return numbers_of(decision.saliency.at(when)).double().numpy()


def _cells(decision: DecisionDrawing) -> tuple[int, int]:
    """How many pixels a picture is high and wide; other numbers stand in one line."""
    shape = [int(each) for each in decision.shape]
    return (shape[-2], shape[-1]) if len(shape) > 1 else (1, shape[0])


def _picture(decision: DecisionDrawing, piece: int, when: When) -> Numbers:
    """A picture in [0, 1]: (H, W, C)."""
    high, wide = _cells(decision)
    values = numbers_of(decision.pieces[piece].at(when)).double().numpy()
    picture: Numbers = values.reshape(-1, high, wide).transpose(1, 2, 0)
    return picture if picture.shape[2] in (1, 3) else picture.mean(2, keepdims=True)


def _map(decision: DecisionDrawing, when: When) -> Numbers:
    """Saliency of each pixel, of several features of a pixel the largest: (H, W)."""
    found: Numbers = _saliency(decision, when).reshape(-1, *_cells(decision)).max(0)
    return found


def _pixels(decision: DecisionDrawing) -> dict[str, list[int]]:
    """The pixels in each state; one that has several features is kept if any of them is."""
    high, wide = _cells(decision)
    seen: set[int] = set()
    found = {}
    for state, numbers in states_of(decision).items():
        places = dict.fromkeys(number % (high * wide) for number in numbers)
        found[state] = [place for place in places if place not in seen]
        seen |= {*places} if state == "kept" else set()
    return found


def _picture_lines(decision: DecisionDrawing) -> list[list[Tile]]:
    """For each picture of an example: before, after, and the change, as large as can be shown."""
    lines = []
    for piece in range(len(decision.pieces)):
        before, after = (_picture(decision, piece, when) for when in ("before", "after"))
        change = after - before
        largest = float(np.abs(change).max())
        times = _times(largest)
        caption = _enlarged("change", largest)
        first = "Picture" if len(decision.pieces) == 1 else ("Picture", "Its partner")[piece]
        pictures = (before, after, 0.5 + times * change / 2)
        captions = (first, "attacked", caption)
        lines.append(
            [
                Tile(caption=words, picture=_png(picture), cells=_cells(decision))
                for words, picture in zip(captions, pictures, strict=True)
            ]
        )
    return lines


def _times(largest: float) -> int:
    """How many times a change is enlarged so that the largest fills the range."""
    return max(1, round(1 / max(largest, SMALLEST)))


def _enlarged(what: str, largest: float) -> str:
    return f"{what} × {_times(largest)}" if largest else f"no {what}"


def _saliency_line(decision: DecisionDrawing) -> list[Tile]:
    tiles, cells = _pair_of_maps(decision), _cells(decision)
    change = _map(decision, "after") - _map(decision, "before")
    caption = _enlarged("difference", float(np.abs(change).max()))
    return [*tiles, Tile(caption=caption, picture=_diverging(change), cells=cells)]


def _pair_of_maps(decision: DecisionDrawing) -> list[Tile]:
    """The saliency before and after, the top k marked."""
    network = decision.kind == "network"
    nodes = int(decision.shape[0])
    pixels = {} if network else _pixels(decision)
    tiles = []
    sides: tuple[tuple[When, str, tuple[str, str]], ...] = (
        ("before", "saliency", ("kept", "lost")),
        ("after", "attacked", ("kept", "gained")),
    )
    for when, caption, states in sides:
        if network:
            scores = _symmetric(_saliency(decision, when), nodes)
            marks = _edges({state: states_of(decision)[state] for state in states}, nodes)
            tiles.append(Tile(caption=caption, picture=_greys(scores), cells=(nodes, nodes),
                              marks=marks))  # fmt: skip
        else:
            tiles.append(
                Tile(
                    caption=caption,
                    picture=_greys(_map(decision, when)),
                    cells=_cells(decision),
                    marks={state: pixels[state] for state in states},
                )
            )
    return tiles


def _clean_tiles(label: str, decision: DecisionDrawing) -> list[Tile]:
    """A picture, and what the attack on a method made of it."""
    short = label.split(" (")[0]  # no wider than a tile
    captions: dict[When, str] = {"before": "as it was", "after": f"attacked: {short}"}
    return [
        Tile(caption=caption, picture=_png(_picture(decision, 0, when)), cells=_cells(decision))
        for when, caption in captions.items()
    ]


def _edges(states: Mapping[str, Sequence[int]], nodes: int) -> dict[str, list[int]]:
    """Places in a matrix, both above and below the diagonal, of edges in their states."""
    rows, columns = np.triu_indices(nodes, 1)
    return {
        state: [
            int(place)
            for number in numbers
            for place in (
                rows[number] * nodes + columns[number],
                columns[number] * nodes + rows[number],
            )
        ]
        for state, numbers in states.items()
    }


def _symmetric(values: Numbers, nodes: int) -> Numbers:
    matrix = np.zeros((nodes, nodes))
    matrix[np.triu_indices(nodes, 1)] = values[: Piece(shape=(nodes, nodes), symmetric=True).size]
    found: Numbers = matrix + matrix.T
    return found


def _png(picture: Numbers) -> str:
    """A picture in [0, 1], (H, W, C), as an address that holds it."""
    values = (picture.clip(0, 1) * 255).round().astype(np.uint8)
    return _address(Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values))


def _greys(shares: Numbers) -> str:
    """Shares of the largest as greys, dark for large; roots, or most would look like nothing."""
    return _palette((15 * np.sqrt(shares.clip(0, 1))).round(), GREYS)


def _diverging(change: Numbers) -> str:
    """What fell and what rose, the largest of both at full colour."""
    largest = max(float(np.abs(change).max()), SMALLEST)
    levels = 7 + (7 * np.sign(change) * np.sqrt(np.abs(change) / largest)).round()
    colours = [
        tuple(round(255 + (end - 255) * abs(level - 7) / 7) for end in (FELL, ROSE)[level > 7])
        for level in range(15)
    ]
    return _palette(levels, colours)


def _palette(levels: Numbers, colours: Sequence[tuple[int, ...]]) -> str:
    image = Image.fromarray(levels.astype(np.uint8), mode="P")
    image.putpalette([part for colour in colours for part in colour])
    return _address(image, bits=4)


def _address(image: Image.Image, **settings: Any) -> str:
    content = io.BytesIO()
    image.save(content, format="PNG", optimize="bits" not in settings, **settings)
    return data_address("image/png", content.getvalue())


def _grid(lines: Sequence[Sequence[Tile]]) -> tuple[str, float, float]:
    """Lines of tiles, how wide they are and where they end."""
    parts, top = [], 0.0
    for line in lines:
        below = top
        for place, tile in enumerate(line):
            x = place * (TILE + GAP)
            parts.append(_text(tile.caption, x, top + 12))
            drawn, high = _tile(tile, x, top + LINE + 2)
            parts.append(drawn)
            below = max(below, top + LINE + 2 + high)
        top = below + GAP
    return "".join(parts), max(map(len, lines)) * (TILE + GAP) - GAP, top - GAP


def _tile(tile: Tile, x: float, y: float) -> tuple[str, float]:
    """A tile drawn, and how high it is."""
    rows, columns = tile.cells
    size = TILE / max(columns, rows)
    wide, high = TILE, max(16.0, size * rows)
    if rows > columns:
        wide = round(size * columns)
    drawn = _image(tile.picture, x, y, wide, high)
    for state, numbers in (tile.marks or {}).items():
        # Around cells that are too small to be marked themselves, a mark that can be seen.
        mark = max(size, 3.4)
        places = [
            (
                (number % columns + 0.5) * wide / columns - mark / 2,
                (number // columns + 0.5) * high / rows - mark / 2,
            )
            for number in numbers
        ]
        drawn += _marks(state, places, x, y, mark)
    return drawn, high


def _image(picture: str, x: float, y: float, wide: float, high: float) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"'
    return (
        f'<image {place} preserveAspectRatio="none" image-rendering="pixelated" href="{picture}"/>'
        f'<rect {place} fill="none" stroke="#9aa4ae" stroke-width=".6"/>'
    )


def _marks(
    state: str, places: Iterable[tuple[float, float]], x: float, y: float, size: float
) -> str:
    """Squares of a side, at places of their upper left corners, with the sign of their state."""
    signs = "".join(
        f"M{left / size:.2f} {top / size:.2f}h1v1h-1z"
        + SIGNS[state].replace("M", f"M{left / size:.2f} {top / size:.2f}m", 1)
        for left, top in places
    )
    if not signs:
        return ""
    return (
        f'<path transform="translate({x:g} {y:g}) scale({size:g})" d="{signs}" fill="none" '
        f'stroke="{COLOURS[state]}" stroke-width="1.1" vector-effect="non-scaling-stroke"/>'
    )


def _legend(decision: DecisionDrawing, top: float, *, counted: bool = True) -> tuple[str, float]:
    """What the marks mean, with P@k, and where it ends."""
    states = states_of(decision)
    parts, left = [], 0.0
    for state, numbers in states.items():
        words = f"{state} {len(numbers)}" if counted else {
            "kept": "kept in the top k", "lost": "lost from it", "gained": "gained"
        }[state]  # fmt: skip
        parts += [_marks(state, [(left, top + 3.0)], 0, 0, 9.0), _text(words, left + 14, top + 12)]
        left += 26 + 6.3 * len(words)
    if counted:
        kept = f"P@{_k(decision)} {percent(decision.precision)}"
        parts.append(_text(kept, left + 6, top + 12, bold=True))
    return "".join(parts), top + LINE + 4


def _text(words: str, x: float, y: float, *, anchor: str = "", bold: bool = False) -> str:
    if not words:
        return ""
    look = (f' text-anchor="{anchor}"' if anchor else "") + (' font-weight="600"' if bold else "")
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'


def _svg(
    width: float, height: float, title: str, text: str, body: str, *, name: str = "map"
) -> str:
    """The drawing as an element of a page, or with `as_file` as a file."""
    both = escape(f"{title}. {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="figure {escape(name)}" role="img" '
        f'aria-label="{both}" viewBox="0 0 {width + 2:g} {math.ceil(height) + 1:g}" '
        f'font-size="11.5" fill="currentColor"><title>{escape(title)}</title>'
        f'<desc>{escape(text)}</desc><g transform="translate(1 1)">{body}</g></svg>'
    )
