"""What a network of straight pieces can do within a part of a ball: bounds, and single cells.

The inputs x + s w around x (s the scale of each number) on which some units' signs are chosen lie
in a polyhedron. Of it the search keeps one supporting half-space: |w| <= R and v'w >= t, where t is
a proved distance. Over such a cap linear functions have closed extremes, and these decide units,
bound slopes and tell which pairs of features could change places.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

OUTWARDS = 1e-9
"""By this share radii are widened before anything is proved of them."""

Range = tuple[Tensor, Tensor]
"""Least and greatest value of some numbers; one tensor twice where they are known."""

TINY = 1e-290

NUMBERS_OF_PAIRS = 2**18
"""Weights in the directions of all pairs of a decision, up to which they are written out."""

GRAIN = 1e-11
"""Of the largest slope there can be: gaps of no more are ties."""

ROUNDED = 1e-12
"""Of the terms of a sum: more than a float64 sum of some thousand of them is off by."""

INSIDE = 1e-9
"""Radii by which a counter-example stays away from the borders of its cell."""


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """Logits V h_L + e of h_0 = x and h_l = act_l(W_l h_(l-1) + b_l), in float64.

    act_l(z) = z above zero and `slopes`[l] z below. `weights` holds W_l (m_l, m_(l-1)), `offsets`
    b_l (m_l), `last` V (C, m_L) and `shift` e (C).
    """

    weights: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    slopes: tuple[float, ...]
    last: Tensor
    shift: Tensor

    @property
    def units(self) -> tuple[int, ...]:
        """How many units each layer has."""
        return tuple(len(each) for each in self.offsets)

    @property
    def inputs(self) -> int:
        """How many numbers an input has."""
        return (self.weights[0] if self.weights else self.last).shape[1]

    def pieces(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, C), and what each layer's activation meets: (B, m_l) each."""
        met, here = list[Tensor](), x.flatten(1)
        for weight, offset, slope in zip(self.weights, self.offsets, self.slopes, strict=True):
            met.append(here @ weight.mT + offset)
            here = torch.where(met[-1] > 0, met[-1], slope * met[-1])
        return here @ self.last.mT + self.shift, met

    def slope(self, met: Sequence[Tensor], signal: Tensor) -> Tensor:
        """The slope by x of signal'logits, (B, C), on the pieces that were met: (B, d)."""
        back = signal @ self.last
        for weight, slope, at in zip(
            reversed(self.weights), reversed(self.slopes), reversed(met), strict=True
        ):
            back = torch.where(at > 0, back, slope * back) @ weight
        return back


@dataclass(frozen=True, eq=False)
class Decisions:
    """Some decisions about one network: D inputs, what is explained of each, its top k.

    `signal` (D, C) weighs the logits that are explained, `rivals` (D, C - 1, C) the differences
    that must stay >= 0. `scale` (d) is what a length of 1 is for each number. Scores are the
    absolute numbers of slope'`project`, (d, n). `top` (D, k), `rest` (D, n - k) number features.
    """

    network: PiecewiseLinear
    x: Tensor
    scale: Tensor
    project: Tensor
    signal: Tensor
    rivals: Tensor
    top: Tensor
    rest: Tensor

    @cached_property
    def first(self) -> Tensor:
        """Weights of the first layer by explained features, (m_1, n); of the slope without one."""
        weights = self.network.weights
        return weights[0] @ self.project if weights else self.project

    @property
    def few_pairs(self) -> bool:
        """Whether directions of all pairs can be written out."""
        pairs = self.top.shape[1] * self.rest.shape[1]
        return 2 * pairs * len(self.first) <= NUMBERS_OF_PAIRS

    @cached_property
    def pair_rows(self) -> Tensor:
        """Differences and sums of a top feature's weights and another's: (D, 2 k (n - k), m_1)."""
        ours, theirs = self.first.mT[self.top][:, :, None], self.first.mT[self.rest][:, None]
        return torch.stack([ours - theirs, ours + theirs], 1).flatten(1, 3)

    def rows(self, chosen: Tensor) -> "Decisions":
        """Some of them."""
        return replace(
            self,
            **{
                name: getattr(self, name)[chosen]
                for name in ("x", "signal", "rivals", "top", "rest")
            },
        )

    def scores(self, x: Tensor) -> Tensor:
        """Scores at inputs of these decisions, by the pieces they lie on: (D, n)."""
        _, met = self.network.pieces(x)
        return (self.network.slope(met, self.signal) @ self.project).abs()

    def keeps(self, x: Tensor) -> Tensor:
        """Whether no rival is ahead at inputs of these decisions: (D,) booleans."""
        logits, _ = self.network.pieces(x)
        ahead: Tensor = (self.rivals @ logits[..., None]).squeeze(-1) > 0
        return ahead.all(-1)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Parts of balls: N sets of cells on which some units' signs are chosen.

    `row` (N,) numbers the decision, `signs` (N, U) are the chosen signs, 0 for none. All its inputs
    have |w| >= `distance` (N,), and `way`'w >= that, unless `way` (N, d) is zero. `open` (N, k,
    n - k) are the pairs, by place in top and rest, that are not yet known to keep their order, and
    `most` (N,) how many features they can displace. The node of the least `turn` (N,) is looked at
    first.
    """

    row: Tensor
    signs: Tensor
    distance: Tensor
    way: Tensor
    open: Tensor
    most: Tensor
    turn: Tensor

    def __len__(self) -> int:
        """How many there are."""
        return len(self.row)

    def at(self, chosen: Tensor) -> "Nodes":
        """Some of them."""
        return Nodes(*(getattr(self, name)[chosen] for name in NODE))

    @classmethod
    def joined(cls, parts: Sequence["Nodes"]) -> "Nodes":
        """All of several."""
        return cls(*(torch.cat([getattr(each, name) for each in parts]) for name in NODE))

    @classmethod
    def roots(cls, decisions: Decisions) -> "Nodes":
        """The whole ball of each decision."""
        x, units = decisions.x, sum(decisions.network.units)
        shape = len(x), decisions.top.shape[1], decisions.rest.shape[1]
        return cls(
            row=torch.arange(len(x), device=x.device),
            signs=torch.zeros(len(x), units, dtype=torch.int8, device=x.device),
            distance=x.new_zeros(len(x)),
            way=torch.zeros_like(x),
            open=torch.ones(shape, dtype=torch.bool, device=x.device),
            most=torch.full((len(x),), min(shape[1:]), device=x.device),
            turn=x.new_zeros(len(x)),
        )


NODE = tuple(each.name for each in fields(Nodes))


@dataclass(frozen=True, eq=False)
class Lines:
    """Linear functions of w below and above some numbers: rows (N, m, d), offsets (N, m).

    `size` (N, m) bounds the sums of absolute terms of which they were computed.
    """

    low: Tensor
    low_at: Tensor
    high: Tensor
    high_at: Tensor
    size: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Lines"]) -> "Lines":
        """Those of several layers as of one."""
        names = ("low", "low_at", "high", "high_at", "size")
        return cls(*(torch.cat([getattr(each, name) for each in parts], 1) for name in names))

    def at(self, chosen: Tensor) -> "Lines":
        """Those of some nodes."""
        names = ("low", "low_at", "high", "high_at", "size")
        return Lines(*(getattr(self, name)[chosen] for name in names))

    def sides(self, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Inequalities rows'w >= floors that hold where the numbers have these signs, (N, m)."""
        up = signs > 0
        rows = torch.where(up[..., None], self.high, -self.low)
        return rows, torch.where(up, -self.high_at, self.low_at) - self.doubt

    @property
    def doubt(self) -> Tensor:
        """By how much rounding can have moved them, by far: (N, m)."""
        return ROUNDED * self.size


@dataclass(frozen=True, eq=False)
class Layer:
    """What is known of the units of a layer within a cap.

    `met` are lines around what each unit meets, `state` (N, m) its sign where there is one, `least`
    and `most` (N, m) the range of its slope, `here` (N, m) the slope at the cap's nearest point.
    """

    met: Lines
    state: Tensor
    least: Tensor
    most: Tensor
    here: Tensor
    pattern: Tensor

    def at(self, chosen: Tensor) -> "Layer":
        """That of some nodes."""
        names = ("state", "least", "most", "here", "pattern")
        rest = (getattr(self, name)[chosen] for name in names)
        return Layer(self.met.at(chosen), *rest)


@dataclass(frozen=True, eq=False)
class Cap:
    """|w| <= `radius` and `way`'w >= `depth`, (N,): what is left of a ball."""

    radius: Tensor
    depth: Tensor
    way: Tensor

    @classmethod
    def of(cls, nodes: Nodes, radius: Tensor) -> "Cap":
        """The cap in which a node's inputs within a radius lie."""
        sure = (nodes.way != 0).any(-1)
        depth = torch.where(sure, nodes.distance, 0.0)
        wide = radius * (1 + OUTWARDS)
        return cls(wide, torch.minimum(depth, wide), nodes.way)

    def most(self, rows: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """The greatest of rows'w and of -rows'w, for rows (N, m, d) or (m, d): (N, m) each."""
        along = (rows @ self.way[..., None]).squeeze(-1) if rows.ndim == 3 else self.way @ rows.mT
        R, t = self.radius[:, None], self.depth[:, None]
        rest = (R.square() - t.square()).clamp_min(0).sqrt()
        aside = (length.square() - along.square()).clamp_min(0).sqrt() * rest
        up = torch.where(along * R >= t * length, R * length, along * t + aside)
        down = torch.where(-along * R >= t * length, R * length, aside - along * t)
        return up, down


def layers_within(decisions: Decisions, nodes: Nodes, cap: Cap) -> tuple[list[Layer], Lines]:
    """What is known of each layer within the caps, and lines around each rival's distance."""
    network, row = decisions.network, nodes.row
    x = decisions.x[row]
    signs = nodes.signs.split(network.units, dim=1)
    point = x + decisions.scale * nodes.way * cap.depth[:, None]
    reached, found = point, list[Layer]()
    rows = network.weights[0] * decisions.scale if network.weights else None
    lines: Lines | None = None
    for number, slope in enumerate(network.slopes):
        weight, offset = network.weights[number], network.offsets[number]
        if lines is None:
            assert rows is not None
            at = x @ weight.mT + offset
            wide = rows.expand(len(row), *rows.shape)
            length = rows.norm(dim=-1)
            size = x.abs() @ weight.abs().mT + offset.abs() + cap.radius[:, None] * length
            met = Lines(wide, at, wide, at, size)
            up, down = cap.most(rows, length)
        else:
            met = _through(weight, offset, lines)
            up, _ = cap.most(met.high, met.high.norm(dim=-1))
            _, down = cap.most(met.low, met.low.norm(dim=-1))
        low, high = met.low_at - down - met.doubt, met.high_at + up + met.doubt
        chosen = signs[number].to(low)
        state = (low > 0).to(low) - (high < 0).to(low)
        state = torch.where(chosen != 0, chosen, state)
        meets = reached @ weight.mT + offset
        pattern = torch.where(state != 0, state, 2 * (meets > 0).to(low) - 1)
        here = _piece(pattern, slope)
        free = state == 0
        least = torch.where(free, min(slope, 1.0), here)
        most = torch.where(free, max(slope, 1.0), here)
        found.append(Layer(met, state, least, most, here, pattern))
        reached = here * meets
        if number + 1 < len(network.slopes) or decisions.rivals.shape[1]:
            lines = _bent(met, slope, low, high, state, here)
    rivals = decisions.rivals @ network.last
    shift = (decisions.rivals @ network.shift)[row]
    if lines is None:
        start = decisions.scale * rivals[row]
        at = (rivals[row] @ x[..., None]).squeeze(-1) + shift
        size = (rivals[row].abs() @ x.abs()[..., None]).squeeze(-1) + shift.abs()
        size = size + cap.radius[:, None] * start.norm(dim=-1)
        return found, Lines(start, at, start, at, size)
    return found, _through(rivals[row], shift, lines)


def _piece(numbers: Tensor, slope: float) -> Tensor:
    """The slope of an activation at numbers: like them."""
    # Of two numbers of Python's torch makes a tensor in single precision.
    return torch.where(numbers > 0, torch.ones_like(numbers), slope)


def _through(weight: Tensor, offset: Tensor, lines: Lines) -> Lines:
    """Lines around weight @ h + offset for numbers h between lines."""
    up, down = weight.clamp_min(0), weight.clamp_max(0)

    def mixed(plus: Tensor, minus: Tensor) -> Tensor:
        return up @ plus + down @ minus

    def placed(plus: Tensor, minus: Tensor) -> Tensor:
        return mixed(plus[..., None], minus[..., None]).squeeze(-1) + offset

    return Lines(
        mixed(lines.low, lines.high),
        placed(lines.low_at, lines.high_at),
        mixed(lines.high, lines.low),
        placed(lines.high_at, lines.low_at),
        (weight.abs() @ lines.size[..., None]).squeeze(-1) + offset.abs(),
    )


def _bent(
    met: Lines, slope: float, low: Tensor, high: Tensor, state: Tensor, here: Tensor
) -> Lines:
    """Lines around an activation of numbers between lines, and within a range.

    Where a unit's sign is open one line is the chord, the other a tangent at the kink.
    """
    free = state == 0
    width = torch.where(free, high - low, 1.0)
    chord = torch.where(free, (high - slope * low) / width, here)
    start = torch.where(free, low * (slope - chord), 0.0)
    tangent = torch.where(free, _piece(high + low, slope), here)
    zero = torch.zeros_like(start)
    # ReLUs are below their chord and above their tangents; where the slope is above 1, the reverse.
    convex = slope <= 1
    over, over_at = (chord, start) if convex else (tangent, zero)
    under, under_at = (tangent, zero) if convex else (chord, start)

    def line(rise: Tensor, at: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        # A line that falls turns what is above into what is below.
        turned = (rise >= 0) == upper
        one = met.high is met.low  # the first layer's numbers are known
        rows = met.high if one else torch.where(turned[..., None], met.high, met.low)
        return rise[..., None] * rows, rise * torch.where(turned, met.high_at, met.low_at) + at

    low_rows, low_at = line(under, under_at, False)
    high_rows, high_at = line(over, over_at, True)
    size = 2 * max(1.0, abs(slope)) * met.size
    return Lines(low_rows, low_at, high_rows, high_at, size)


# --- which pairs may change places ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gaps:
    """What slopes allow within a cap.

    `open` (N, k, n - k): pairs that may change places. `blame` (N, U): by how much each unit whose
    sign is open lowers their gaps. `gone` (N,): how many features leave the top k on the pieces at
    the cap's nearest point.
    """

    open: Tensor
    blame: Tensor
    gone: Tensor


def grain(decisions: Decisions) -> Tensor:
    """The gap of two scores up to which they count as equal: (D,)."""
    network = decisions.network
    size = (decisions.signal @ network.last).abs()
    for weight, slope in zip(reversed(network.weights), reversed(network.slopes), strict=True):
        size = max(1.0, abs(slope)) * (size @ weight.abs())
    return GRAIN * (size @ decisions.project.abs()).amax(-1) + TINY


def gaps_within(
    decisions: Decisions, nodes: Nodes, layers: Sequence[Layer], doubt: Tensor, tie: Tensor
) -> Gaps:
    """Bounds of all pairs of a top feature and another, within the caps.

    Gaps of no more than `doubt` (D,) do not keep a pair apart, and pairs that are no more than
    `tie` (D,) apart have not changed places.
    """
    network, row = decisions.network, nodes.row
    top, rest = decisions.top[row], decisions.rest[row]
    here = (decisions.signal @ network.last)[row]
    # Signals on their way back, as ranges; and on the pieces at the cap's nearest point.
    signal: Range = (here, here)
    above = list[Range]()
    for number in range(len(layers) - 1, -1, -1):
        layer = layers[number]
        above.insert(0, signal)
        signal = _product(signal, (layer.least, layer.most))
        here = here * layer.here
        if number:
            signal = _times(signal, network.weights[number])
            here = here @ network.weights[number]
    first = decisions.first
    blame = here.new_zeros(len(row), sum(network.units))
    if decisions.few_pairs:
        pairs, blame_of_first = _by_first_layer(decisions, nodes, signal, here, doubt)
        if len(layers) == 1:
            blame = blame_of_first
    else:
        low, high = _times(signal, first)
        least = torch.maximum(low, -high).clamp_min(0).gather(1, top)
        most = torch.maximum(high, -low).gather(1, rest)
        pairs = nodes.open & ~(least[:, :, None] - most[:, None] > doubt[row, None, None])
    node, i, j = pairs.nonzero(as_tuple=True)
    if len(node) and layers and not (decisions.few_pairs and len(layers) == 1):
        one, other = first.mT[top[node, i]], first.mT[rest[node, j]]
        minus, minus_blame = _directions(network, layers, above, node, one - other)
        plus, plus_blame = _directions(network, layers, above, node, one + other)
        # |a| > |b| where a - b and a + b are of one sign.
        slack = doubt[row[node]]
        apart = ((minus[0] > slack) & (plus[0] > slack)) | (
            (minus[1] < -slack) & (plus[1] < -slack)
        )
        pairs[node[apart], i[apart], j[apart]] = False
        # Of the two that which is nearer to another sign is to blame.
        weak = torch.maximum(minus[0], -minus[1]) < torch.maximum(plus[0], -plus[1])
        share = torch.where(weak[:, None], minus_blame, plus_blame)
        blame.index_add_(0, node, torch.where(apart[:, None], 0.0, share))
    gone = swaps(swapped((here @ first).abs(), top, rest, tie[row]))
    return Gaps(pairs, blame, gone)


def displaced(decisions: Decisions, nodes: Nodes, tie: Tensor) -> Tensor:
    """How many features leave the top k on the pieces at each node's nearest point: (N,)."""
    network, row = decisions.network, nodes.row
    at = decisions.x[row] + decisions.scale * nodes.way * nodes.distance[:, None]
    slopes = list[Tensor]()
    signs = nodes.signs.split(network.units, dim=1)
    for number, slope in enumerate(network.slopes):
        met = at @ network.weights[number].mT + network.offsets[number]
        slopes.append(_piece(torch.where(signs[number] != 0, signs[number].to(met), met), slope))
        at = slopes[-1] * met
    back = (decisions.signal @ network.last)[row]
    for number in range(len(slopes) - 1, -1, -1):
        back = (back * slopes[number]) @ (network.weights[number] if number else decisions.first)
    scores = back.abs() if slopes else (back @ decisions.first).abs()
    return swaps(swapped(scores, decisions.top[row], decisions.rest[row], tie[row]))


def _by_first_layer(
    decisions: Decisions, nodes: Nodes, signal: Range, here: Tensor, doubt: Tensor
) -> tuple[Tensor, Tensor]:
    """Pairs that stay open, and who of the first layer is to blame: (N, k, n - k), (N, m_1).

    Where the signals p that reach the first layer lie between two numbers each, the slope along a
    direction a is a'p, between a'c - |a|'r and a'c + |a|'r, c the middles and r half the widths:
    for all directions of all pairs a product of matrices. At the nearest point p is `here`.
    """
    low, high = signal
    middle, half = (low + high) / 2, (high - low) / 2
    count, (k, others) = len(nodes), nodes.open.shape[1:]
    used, row = nodes.row.unique(return_inverse=True)
    ways = decisions.pair_rows[used]  # (D, 2 k (n - k), m_1)
    ranked = row.argsort(stable=True)
    place = torch.empty_like(ranked)
    begins = torch.searchsorted(row[ranked], row[ranked])
    place[ranked] = torch.arange(count, device=row.device) - begins
    width = int(place.max()) + 1 if count else 0

    def placed(numbers: Tensor) -> Tensor:
        out = numbers.new_zeros(len(used), width, numbers.shape[-1])
        out[row, place] = numbers
        return out

    size = ways.abs()
    centre = (placed(middle) @ ways.mT)[row, place].unflatten(1, (2, k, others))
    spread = (placed(half) @ size.mT)[row, place].unflatten(1, (2, k, others))
    slack = doubt[nodes.row, None, None, None]
    # |a| > |b| where a - b and a + b are of one sign.
    apart = (centre - spread > slack).all(1) | (centre + spread < -slack).all(1)
    pairs = nodes.open & ~apart
    # Of the two that which is nearer to another sign is to blame.
    sure = centre.abs() - spread
    weak = torch.stack([sure[:, 0] < sure[:, 1], sure[:, 0] >= sure[:, 1]], 1)
    weight = (pairs[:, None] & weak).to(half).flatten(1)
    side = centre.sign().flatten(1) * weight
    # A unit's other slope moves a'p by 2 r a towards or away from another sign of the gap.
    towards = torch.where(here > middle, -1.0, 1.0).to(half)
    blame = (placed(weight) @ size)[row, place] - towards * (placed(side) @ ways)[row, place]
    return pairs, half * blame


def swapped(scores: Tensor, top: Tensor, rest: Tensor, tie: Tensor) -> Tensor:
    """Which pairs have changed places by more than a tie: (N, k, n - k) booleans."""
    ours, theirs = scores.gather(1, top), scores.gather(1, rest)
    return theirs[:, None] - ours[:, :, None] > tie[:, None, None]


def swaps(pairs: Tensor) -> Tensor:
    """The most features that can have left the top k if only these pairs can swap: (N,).

    Each of r features that left is below each of r that came in: r of the top are in r pairs or
    more, and r of the rest.
    """
    top = pairs.sum(2).sort(dim=-1, descending=True).values
    rest = pairs.sum(1).sort(dim=-1, descending=True).values
    most = min(top.shape[1], rest.shape[1])
    number = torch.arange(1, most + 1, device=pairs.device)
    both = (top[:, :most] >= number) & (rest[:, :most] >= number)
    return both.sum(-1)


def _product(one: Range, other: Range) -> Range:
    """The range of products of numbers in two ranges."""
    known, unknown = (one, other) if one[0] is one[1] else (other, one)
    if known[0] is not known[1]:
        corners = torch.stack([a * b for a in one for b in other])
        return corners.amin(0), corners.amax(0)
    low = known[0] * unknown[0]
    if unknown[0] is unknown[1]:
        return low, low
    high = known[0] * unknown[1]
    return torch.minimum(low, high), torch.maximum(low, high)


def _times(numbers: Range, matrix: Tensor) -> Range:
    """The range of numbers @ matrix."""
    low, high = numbers
    if low is high:
        found = low @ matrix
        return found, found
    middle, half = ((low + high) / 2) @ matrix, ((high - low) / 2) @ matrix.abs()
    return middle - half, middle + half


def _of(numbers: Range, chosen: Tensor) -> Range:
    """Some rows of both."""
    low = numbers[0][chosen]
    return low, low if numbers[1] is numbers[0] else numbers[1][chosen]


def _directions(
    network: PiecewiseLinear,
    layers: Sequence[Layer],
    above: Sequence[Range],
    node: Tensor,
    rows: Tensor,
) -> tuple[Range, Tensor]:
    """Range of the slope along directions, rows (P, m_1) of the first layer; who is to blame.

    It is the sum over a layer's units of what comes from below, the unit's slope and the signal
    from above: each layer gives a range, the narrowest is taken.
    """
    least = torch.full_like(rows[:, 0], -torch.inf)
    most, blames, below = -least, list[Tensor](), (rows, rows)
    for number, layer in enumerate(layers):
        slopes = layer.least[node], layer.most[node]
        here = layer.here[node]
        terms = _product(below, _of(above[number], node))
        low, high = _product(terms, slopes)
        fixed_low, fixed_high = _product(terms, (here, here))
        low_sum, high_sum = low.sum(-1), high.sum(-1)
        least, most = torch.maximum(least, low_sum), torch.minimum(most, high_sum)
        # A gap's sign is changed by what lowers it if it is positive, and raises it otherwise.
        falls = ((low_sum + high_sum) > 0)[:, None]
        blames.append(torch.where(falls, fixed_low - low, high - fixed_high))
        if number + 1 < len(layers):
            below = _times(_product(below, slopes), network.weights[number + 1].mT)
    return (least, most), torch.cat(blames, -1)


# --- single cells ---------------------------------------------------------------------------------


def cell_rows(decisions: Decisions, row: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    """Inequalities rows'w >= floors of the cells of patterns, then of kept predictions.

    (N, U + C - 1, d) and (N, U + C - 1). Exact: within a cell what each unit meets is linear.
    """
    network, x = decisions.network, decisions.x[row]
    rows, at = torch.diag_embed(decisions.scale).expand(len(row), -1, -1), x
    parts, floors = list[Tensor](), list[Tensor]()
    for weight, offset, layer in zip(network.weights, network.offsets, layers, strict=True):
        rows, at = weight @ rows, at @ weight.mT + offset
        parts.append(layer.pattern[..., None] * rows)
        floors.append(-layer.pattern * at)
        rows, at = layer.here[..., None] * rows, layer.here * at
    rivals = (decisions.rivals @ network.last)[row]
    ahead = (rivals @ at[..., None]).squeeze(-1) + (decisions.rivals @ network.shift)[row]
    return torch.cat([*parts, rivals @ rows], 1), torch.cat([*floors, -ahead], 1)
