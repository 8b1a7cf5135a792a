"""Certificates: how far an input can move before its top-k features could possibly change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from r2et.certification.forms import Bow, Form, LinearMap, Norm, Region, Symbols, mapped
from r2et.certification.passage import Passage, Value
from r2et.certification.tracing import graph_of
from r2et.derivatives import gradient_of
from r2et.explainers import SCORES, Quantity, check_inputs
from r2et.gauge import OneHot, gauge_free
from r2et.ranking import check_k, order

WAYS = ("tangent", "secant", "flat")
SYMBOLS = 512
UNBOUNDED = 1e100
FIRST_GUESS, STEP, FAR, CLOSE = 0.1, 4.0, 1e3, 1.01
CHEAP_LOOKS, MANY = 10, 256
PAIRS_AT_ONCE = 16_384


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """What no change within a region can do to the top-k features of each decision.

    Within `radius` (B,) of x the set of the top k stays the same, within `order_radius` (B,) their
    order too; infinity means within any distance. `precision` (B, E) is the share of the top k that
    surely stay there within each of `epsilons`. `top` (B, k) are the features in order, `weakest`
    (B, 2) the pair that limits the radius: the feature shown and the one that may replace it.
    """

    radius: Tensor
    order_radius: Tensor
    precision: Tensor
    epsilons: tuple[float, ...]
    top: Tensor
    weakest: Tensor


def certify(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    of: Quantity = "probability",
    one_hot: OneHot | None = None,
    norm: Norm = "l2",
    scale: Tensor | None = None,
    epsilons: Sequence[float] = (),
    radii: bool = True,
    steps: int | None = None,
    rows_at_once: int | None = None,
) -> Certificate:
    """Sound radii within which the top-k features of |gradient| cannot change, for each x.

    y is the explained class, the predicted one unless given. The region is the l2 ball, or with
    norm "box" the cube, around x, each feature measured in its `scale`: one of scale 0 cannot
    change. Bounds are computed in float64 and rounded outwards; they are about the exact function,
    so that what a float32 model rounds is not in them. Radii are sought from below, to one percent
    if `steps` looks suffice: 16 unless given, 2 for inputs of more than 256 numbers, whose order is
    bounded in a cheaper way; without `radii` they are NaN and only the precisions at
    `epsilons` are computed. Memory is about that of (inputs + units) x features for each of
    `rows_at_once` examples.
    """
    check_inputs(model, x, y)
    check_k(k, x[0].numel())
    _check_settings(epsilons, scale, x, norm)
    task = _Task(graph_of(model), k=k, of=of, one_hot=one_hot, norm=norm, scale=scale)
    with torch.no_grad():
        exact = x.detach().double()
        labels = task.network(exact).argmax(-1) if y is None else y
        parts = [
            _certified(task, rows, classes, tuple(epsilons), radii, steps)
            for rows, classes in _batches(exact, labels, rows_at_once or _rows(exact))
        ]
    return Certificate(
        radius=torch.cat([part.radius for part in parts]),
        order_radius=torch.cat([part.order_radius for part in parts]),
        precision=torch.cat([part.precision for part in parts]),
        epsilons=tuple(epsilons),
        top=torch.cat([part.top for part in parts]),
        weakest=torch.cat([part.weakest for part in parts]),
    )


def _check_settings(epsilons: Sequence[float], scale: Tensor | None, x: Tensor, norm: str) -> None:
    if norm not in ("l2", "box"):
        raise ValueError(f"a region is an l2 ball or a box, got {norm!r}.")
    if any(not 0 <= each < torch.inf for each in epsilons):
        raise ValueError(f"epsilons must be finite and >= 0, got {list(epsilons)}.")
    if scale is not None and (scale.shape != x.shape[1:] or not bool((scale >= 0).all())):
        raise ValueError(
            f"scale must hold one number >= 0 for each feature, shape {tuple(x.shape[1:])}, got "
            f"{tuple(scale.shape)}."
        )


def _rows(x: Tensor) -> int:
    """How many examples at once keep an analysis within some hundred megabytes."""
    return int(max(1, min(512, 2_000_000 // (x[0].numel() * (x[0].numel() + 128)))))


def _batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(x.split(size), y.split(size), strict=True)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is to be bounded: a network, what is explained of it, and where it may move."""

    network: fx.GraphModule
    k: int
    of: Quantity
    one_hot: OneHot | None
    norm: Norm
    scale: Tensor | None

    def saliency(self, x: Tensor, y: Tensor) -> Tensor:
        """The signed slope of the score at x, flattened: (B, n)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            slope = gradient_of(SCORES[self.of](self.network(x), y), x, create_graph=False)
        return gauge_free(slope, self.one_hot).flatten(1)

    def slopes(
        self, x: Tensor, y: Tensor, radius: Tensor, *, followed: bool
    ) -> Iterator[tuple[Form, Symbols]]:
        """All slopes that occur within the radius, once for each way of bounding them: (B, n).

        Unless the input is `followed` by symbols there is one way only, and a cheap one.
        """
        region = Region(x=x, radius=radius, norm=self.norm, scale=self.scale, followed=followed)
        passage, logits = Passage.through(self.network, region, SYMBOLS)
        signal = _signal(passage, logits, y, self.of)
        smooth = any(not bend.activation.kinks for bend in passage.bends)
        ways = WAYS if followed and smooth else WAYS[-1:]
        for way in ways[:1] if x[0].numel() > MANY else ways:
            slope, symbols = passage.back(signal, logits, way)
            flat = mapped(symbols, slope, _projected(self.one_hot, x[0].numel()))
            yield flat, symbols


def _projected(one_hot: OneHot | None, d: int) -> LinearMap:
    def flat(t: Tensor) -> Tensor:
        return t.flatten(1)

    if not one_hot:
        return LinearMap(apply=flat, absolute=flat)
    weights = gauge_free(torch.eye(d, dtype=torch.float64), one_hot)

    def by(matrix: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda t: t.flatten(1) @ matrix.to(t.device)

    return LinearMap(apply=by(weights), absolute=by(weights.abs()))


def _signal(passage: Passage, logits: Value, y: Tensor, of: Quantity) -> Form:
    """The slope of the explained score by the logits, for all that occur: (B, C)."""
    count = logits.form.centre.shape[1]
    own = F.one_hot(y, count).to(logits.form.centre)
    if of == "logit":
        return Form.constant(own)
    if count == 2:
        return Form.constant(2 * own - 1)
    low, high = passage.symbols.range(logits.form)
    hidden = own.bool()
    if of == "margin":
        least = low.masked_fill(hidden, -torch.inf).amax(-1, keepdim=True)
        candidates = (high >= least) & ~hidden
        alone = candidates.sum(-1, keepdim=True) == 1
        share_low = torch.where(alone & candidates, 1.0, torch.zeros_like(own))
        share_high = candidates.to(own)
    else:
        share_low, share_high = _softmax_range(low, high, hidden)
    middle, half = (share_low + share_high) / 2, (share_high - share_low) / 2
    slack = 64 * torch.finfo(middle.dtype).eps
    return Form(own - middle, own.new_zeros(0, *own.shape), torch.where(hidden, 0.0, half + slack))


def _softmax_range(low: Tensor, high: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest share of each class in a softmax without the hidden one: (B, C) each."""
    count = low.shape[1]
    others = ~torch.eye(count, dtype=torch.bool, device=low.device) & ~hidden[:, None]
    against_high = high[:, None].masked_fill(~others, -torch.inf).logsumexp(-1)
    against_low = low[:, None].masked_fill(~others, -torch.inf).logsumexp(-1)
    least, most = torch.sigmoid(low - against_high), torch.sigmoid(high - against_low)
    return least.masked_fill(hidden, 0), most.masked_fill(hidden, 0)


def _certified(
    task: _Task, x: Tensor, y: Tensor, epsilons: tuple[float, ...], radii: bool, steps: int | None
) -> Certificate:
    """The certificate of one batch."""
    slope = task.saliency(x, y)
    ranked = order(slope.abs())
    top = ranked[:, : task.k]
    judge = _Judge(task, x, y, slope, ranked)
    precision = [judge.precision(x.new_full((len(x),), epsilon)) for epsilon in epsilons]
    nothing = x.new_full((len(x),), torch.nan)
    weakest = ranked[:, [task.k - 1, task.k]]
    radius, order_radius = nothing, nothing.clone()
    if radii:
        kept, ordered = _pairs_to_keep(task.k, x[0].numel(), x.device)
        many = x[0].numel() > MANY
        looks = steps if steps is not None else 2 if many else 16
        radius, weakest = judge.widest(kept, looks, x.new_full((len(x),), FIRST_GUESS))
        order_radius, _ = judge.widest(ordered, 0 if many else looks, radius.clamp_max(UNBOUNDED))
        radius = torch.maximum(radius, order_radius)  # a search may end before it has found all
    return Certificate(
        radius=radius,
        order_radius=order_radius,
        precision=torch.stack(precision, -1) if precision else x.new_zeros(len(x), 0),
        epsilons=epsilons,
        top=top,
        weakest=weakest,
    )


def _pairs_to_keep(k: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs by rank that a set must keep apart, and those that an order must: (k, n) each."""
    of_set = torch.zeros(k, n, dtype=torch.bool, device=device)
    of_set[:, k:] = True
    of_order = torch.zeros_like(of_set)
    of_order[k - 1, k:] = True
    of_order[range(k - 1), range(1, k)] = True
    return of_set, of_order


@dataclass(frozen=True, eq=False)
class _Judge:
    """Tells for the examples of a batch what holds within a radius."""

    task: _Task
    x: Tensor
    y: Tensor
    slope: Tensor
    ranked: Tensor

    def widest(self, pairs: Tensor, steps: int, first: Tensor) -> tuple[Tensor, Tensor]:
        """The largest radius found at which all `pairs` (k, n) are apart, and who fails beyond it.

        `first` (B,) is where the search begins. The least gap falls with the radius, and about as a
        line minus a square: where a chord between a radius that holds and one that fails comes
        down to zero, the gap does not yet. So a guess there holds, and one a little further fails.
        """
        gap = self._clean_gap(pairs)
        low, at_low = self._cheaply(pairs, gap, first)
        high, at_high = torch.full_like(first, torch.inf), torch.full_like(first, -torch.inf)
        weakest = self.ranked[:, [self.task.k - 1, self.task.k]].clone()
        guess = torch.where(low > 0, torch.minimum(low * STEP, first.clamp_min(UNBOUNDED)), first)
        for step in range(steps):
            rows = ((gap > 0) & (guess > 0) & ~(high <= low * CLOSE)).nonzero().squeeze(-1)
            if not len(rows):
                break
            found, pair = self.least(rows, guess[rows], pairs)
            held = found > 0
            won, lost = rows[held], rows[~held]
            low[won], at_low[won] = guess[won], found[held]
            high[lost], at_high[lost] = guess[lost], found[~held]
            weakest[lost] = pair[~held]
            guess = self._next(low, at_low, high, at_high, step)
        return torch.where(low >= UNBOUNDED, torch.inf, low), weakest

    def _cheaply(self, pairs: Tensor, gap: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """A radius at which the pairs are apart by ranges alone, and the least gap there: (B,)."""
        low, at_low = torch.zeros_like(gap), gap.clone()
        high, guess = torch.full_like(gap, torch.inf), first.clone()
        for _ in range(CHEAP_LOOKS):
            rows = ((gap > 0) & (low < UNBOUNDED) & ~(high < low * 1.2)).nonzero().squeeze(-1)
            if not len(rows):
                break
            found, _ = self.least(rows, guess[rows], pairs, followed=False)
            held = found > 0
            low[rows[held]], at_low[rows[held]] = guess[rows[held]], found[held]
            high[rows[~held]] = guess[rows[~held]]
            inside = torch.where(low > 0, (low * high).sqrt(), high / 16)
            beyond = torch.where(low > FAR, UNBOUNDED, low * 16)
            guess = torch.where(high < torch.inf, inside, beyond)
        return low, at_low

    def _next(
        self, low: Tensor, at_low: Tensor, high: Tensor, at_high: Tensor, step: int
    ) -> Tensor:
        """Where to look next: between a radius that holds and one that fails, or further out."""
        at_high = at_high.clamp_min(-1e300)
        root = low + (high - low) * at_low / (at_low - at_high)
        root = torch.minimum(root.nan_to_num(0.0), (low + high) / 2)
        # A chord from far away comes down too early; the middle by ratio is better then.
        far = high > 8 * low.clamp_min(1e-30)
        middle = torch.where(low > 0, (low * high).sqrt(), root)
        between = torch.where(far & (low > 0), torch.maximum(root, middle), root)
        between = torch.where((step % 2 == 1) & ~far, torch.maximum(root, low) * CLOSE, between)
        between = between.clamp(low + (high - low) / 64, high - (high - low) / 64)
        beyond = torch.where(low > FAR, UNBOUNDED, low * STEP)
        return torch.where(high < torch.inf, between, beyond)

    def _clean_gap(self, pairs: Tensor) -> Tensor:
        """The least gap of the pairs at x itself: (B,)."""
        ranked = self.slope.abs().gather(1, self.ranked)
        gaps = ranked[:, : self.task.k, None] - ranked[:, None]
        return torch.where(pairs, gaps, torch.inf).flatten(1).amin(-1)

    def least(
        self, rows: Tensor, radius: Tensor, pairs: Tensor, *, followed: bool = True
    ) -> tuple[Tensor, Tensor]:
        """A lower bound of the least gap of the pairs within a radius, and the pair it is of."""
        wanted = pairs.expand(len(rows), *pairs.shape)
        least = torch.where(pairs, self.gaps(rows, radius, wanted, followed), torch.inf).flatten(1)
        found, closest = least.min(-1)
        ranked, n = self.ranked[rows], pairs.shape[1]
        shown = ranked.gather(1, (closest // n)[:, None])
        other = ranked.gather(1, (closest % n)[:, None])
        return found, torch.cat([shown, other], -1)

    def precision(self, radius: Tensor) -> Tensor:
        """Share of the top k that surely stay there: (B,)."""
        k, n = self.task.k, self.slope.shape[1]
        rows = torch.arange(len(self.x), device=self.x.device)
        wanted = torch.ones(len(rows), k, n, dtype=torch.bool, device=rows.device)
        wanted[:, range(k), range(k)] = False
        surely = (self.gaps(rows, radius, wanted) > 0) & wanted
        # A feature stays if all but k - 1 others are surely below it. And no more can leave than
        # enter: another may enter unless k features are surely above it.
        stays = (surely.sum(-1) >= n - k).sum(-1)
        enters = (surely[:, :, k:].sum(1) < k).sum(-1)
        return torch.maximum(stays, k - enters).clamp_min(0).to(radius) / k

    def gaps(self, rows: Tensor, radius: Tensor, wanted: Tensor, followed: bool = True) -> Tensor:
        """Sound lower bounds of |I_i| - |I_j| by rank, as far as `wanted` (B, k, n): (B, k, n).

        Pairs already known to be apart are not looked at again.
        """
        k = self.task.k
        x, y, ranked = self.x[rows], self.y[rows], self.ranked[rows]
        signs = self.slope[rows].sign()
        least = torch.full(wanted.shape, -torch.inf, dtype=x.dtype, device=x.device)
        for form, symbols in self.task.slopes(x, y, radius, followed=followed):
            low, high = symbols.range(form)
            leading = torch.where(signs > 0, low, -high).gather(1, ranked[:, :k])
            others = torch.maximum(high, -low).gather(1, ranked)
            apart = leading[:, :, None] - others[:, None]
            least = torch.maximum(least, torch.nan_to_num(apart, nan=-torch.inf))
            example, one, other = (wanted & ~(least > 0)).nonzero(as_tuple=True)
            if not len(example) or not followed:
                break
            ours, theirs = ranked[example, one], ranked[example, other]
            found = pair_gaps(form, symbols, example, ours, theirs, signs[example, ours], radius)
            found = torch.nan_to_num(found, nan=-torch.inf)
            least[example, one, other] = torch.maximum(least[example, one, other], found)
        return least


def pair_gaps(
    form: Form,
    symbols: Symbols,
    example: Tensor,
    ours: Tensor,
    theirs: Tensor,
    signs: Tensor,
    radius: Tensor,
) -> Tensor:
    """Sound lower bounds of s g_i - |g_j| for pairs of numbers of a form: (P,)."""
    moves = form.moves.permute(1, 2, 0).contiguous()  # (B, n, M)
    bows = [_Bowed(symbols, bow, radius) for bow in symbols.bows]
    found = []
    for part in torch.arange(len(example), device=example.device).split(PAIRS_AT_ONCE):
        at, i, j, s = example[part], ours[part], theirs[part], signs[part]
        lower = None
        for side in (1.0, -1.0):
            steps = s[:, None] * moves[at, i] - side * moves[at, j]  # (P, M)
            centre = s * form.centre[at, i] - side * form.centre[at, j]
            rest = form.rest[at, i] + form.rest[at, j]
            gap = _lowest(symbols, bows, at, centre, steps, rest)
            lower = gap if lower is None else torch.minimum(lower, gap)
        assert lower is not None
        found.append(lower)
    return torch.cat(found)


def _lowest(
    symbols: Symbols,
    bows: "Sequence[_Bowed]",
    at: Tensor,
    centre: Tensor,
    steps: Tensor,
    rest: Tensor,
) -> Tensor:
    """Least value of single numbers given by centre (P,), moves (P, M) and rest (P,)."""
    inputs = symbols.inputs
    own, errors = steps[:, :inputs], steps[:, inputs:]
    ball = own.abs().sum(-1) if symbols.norm == "box" else own.norm(dim=-1)
    count = errors.shape[1]
    low, high = symbols.low[:count].T[at], symbols.high[:count].T[at]
    each = torch.minimum(errors * low, errors * high)
    down = each.sum(-1)
    size = centre.abs() + ball - down + rest
    for bow in bows:
        place = slice(bow.start - inputs, bow.start - inputs + bow.units)
        plain = each[:, place].sum(-1)
        bowed = bow.lowest(errors[:, place], at)
        down = down + (torch.maximum(plain, bowed) - plain)
    slack = (steps.shape[1] + 32) * torch.finfo(centre.dtype).eps * size
    return centre - ball + down - rest - slack


class _Bowed:
    """Errors of activations of the input itself, which cannot all be at their worst at once.

    sum_u C_u error_u >= -1/2 w' (sum_u q_u w_u w_u') w, and the largest eigenvalue of such a sum is
    no more than its Frobenius norm, sqrt(q'Kq) with K_uv = (w_u'w_v)^2.
    """

    def __init__(self, symbols: Symbols, bow: Bow, radius: Tensor) -> None:
        self.start, self.units = bow.start, bow.moves.shape[2]
        # Numbers that move with the input alone do so in proportion to the radius.
        widest = int(radius.argmax())
        per_unit = bow.moves[:, widest] / radius[widest].clamp_min(1e-300)
        self.kernel = (per_unit.T @ per_unit).square()
        self.low, self.high, self.slack = bow.low, bow.high, bow.slack
        self.squared = radius.square()

    def lowest(self, weights: Tensor, at: Tensor) -> Tensor:
        """A sound lower bound of the weighted sum of the errors: (P,)."""
        low, high = self.low.T[at], self.high.T[at]
        load = -torch.minimum(weights * low, weights * high).clamp_max(0)
        norm = ((load @ self.kernel) * load).sum(-1).clamp_min(0).sqrt()
        slack = (weights.abs() * self.slack.T[at]).sum(-1)
        return -(1 + 1e-9) * self.squared[at] * norm / 2 - slack
