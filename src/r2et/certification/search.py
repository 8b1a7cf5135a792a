"""How far pairs of features stay apart: sound lower bounds of their gaps, and a search by them."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.certification.affine import (
    TINY,
    AffineForm,
    LinearMap,
    Norm,
    QuadraticError,
    Region,
    Symbols,
    mapped,
)
from r2et.certification.backwards import back
from r2et.certification.layers import propagate
from r2et.certification.program import Program
from r2et.certification.propagate import BoundPropagator, Hopeless, Value
from r2et.certification.switches import Linked
from r2et.core.autograd import eval_mode, gradient_of
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.explainers import SCORES, Quantity, class_logits
from r2et.perturbations import L2Ball, NormBall

RELAXATIONS = ("tangent", "secant", "flat")
RANGES = "ranges"
"""A cheap way: the input is not followed, and of each number only its range is known."""
SWITCHES = "switches"
"""For straight pieces: numbers are pulled back to the input, and open slopes are the symbols."""
SYMBOLS = 512
UNBOUNDED = 1e100
STEP, FAR, CLOSE, NEARLY, NEAR, AGAIN = 4.0, 1e3, 1.01, 1.004, 1.0002, 1.05
CHEAP_LOOKS, CHEAP_LOOKS_OF_MANY, MANY = 10, 14, 256
PAIRS_AT_ONCE = 16_384
LIKELIEST = 64


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be bounded: a network, what is explained of it, and where it may move."""

    program: Program
    example: Tensor
    k: int
    of: Quantity
    one_hot: OneHot | None
    ball: NormBall

    @property
    def norm(self) -> Norm:
        """The norm of that ball."""
        return "l2" if isinstance(self.ball, L2Ball) else "linf"

    @cached_property
    def scale(self) -> Tensor | None:
        """What a length of 1 is for each number, 0 for those that cannot change."""
        if self.ball.free is None:
            return self.ball.scale
        one = self.example[0]
        scale = torch.ones_like(one) if self.ball.scale is None else self.ball.scale.to(one)
        return torch.where(self.ball.free.to(one.device), scale, 0.0)

    def gradient(self, model: nn.Module | Program, x: Tensor, y: Tensor) -> Tensor:
        """The input gradient of the score of class y at prediction time, with its sign: (B, n)."""
        prediction = eval_mode(model) if isinstance(model, nn.Module) else nullcontext()
        with torch.enable_grad(), prediction:
            leaf = x.detach().clone().requires_grad_()
            score = SCORES[self.of](class_logits(model(leaf)), y)
            gradient = gradient_of(score, leaf, create_graph=False)
        return project_one_hot(gradient, self.one_hot).flatten(1)

    @property
    def switches(self) -> bool:
        """Whether all activations are of two straight pieces."""
        return self.relaxations == (SWITCHES,)

    @cached_property
    def relaxations(self) -> tuple[str, ...]:
        """The ways of bounding slopes that differ for this network."""
        kinks = [len(node.activation.kinks) for node in self._first.activation_nodes]
        if kinks and all(each == 1 for each in kinks):
            return (RELAXATIONS[-1], SWITCHES) if self._first.products else (SWITCHES,)
        if all(kinks):
            return RELAXATIONS[-1:]
        return RELAXATIONS[:1] if self.many else RELAXATIONS

    @cached_property
    def many(self) -> bool:
        """Whether the input has very many symbols."""
        return not self._first.narrow and self.example[0].numel() > MANY

    @cached_property
    def _first(self) -> BoundPropagator:
        """A way through the network at a radius of 0."""
        at_radius_0 = Region(x=self.example, radius=self.example.new_zeros(1), followed=False)
        return propagate(self.program, at_radius_0, 0)[0]

    def gradients(
        self, x: Tensor, y: Tensor, radius: Tensor, relaxation: str
    ) -> tuple[AffineForm, Symbols]:
        """All slopes that occur within the radius, bounded in a way: (B, n)."""
        followed = relaxation not in (RANGES, SWITCHES)
        region = Region(x=x, radius=radius, norm=self.norm, scale=self.scale, followed=followed)
        propagator, logits = propagate(self.program, region, SYMBOLS, relaxation == SWITCHES)
        signal = _signal(propagator, logits, y, self.of)
        gradient, symbols = back(
            propagator, signal, logits, "flat" if relaxation == RANGES else relaxation
        )
        return mapped(symbols, gradient, _projected(self.one_hot, x[0].numel())), symbols


def _projected(one_hot: OneHot | None, d: int) -> LinearMap:
    def flat(t: Tensor) -> Tensor:
        return t.flatten(1)

    if not one_hot:
        return LinearMap(apply=flat, absolute=flat)
    weights = project_one_hot(torch.eye(d, dtype=torch.float64), one_hot)

    def by(matrix: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda t: t.flatten(1) @ matrix.to(t.device)

    return LinearMap(apply=by(weights), absolute=by(weights.abs()))


def _signal(propagator: BoundPropagator, logits: Value, y: Tensor, of: Quantity) -> AffineForm:
    """The slope of the explained score by the logits, for all that occur: (B, C)."""
    count = logits.form.centre.shape[1]
    own = F.one_hot(y, count).to(logits.form.centre)
    if of == "logit":
        return AffineForm.constant(own)
    if count == 2:
        return AffineForm.constant(2 * own - 1)
    low, high = propagator.range(logits)
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
    return AffineForm(
        own - middle, own.new_zeros(0, *own.shape), torch.where(hidden, 0.0, half + slack)
    )


def _softmax_range(low: Tensor, high: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest share of each class in a softmax without the hidden one: (B, C) each."""
    count = low.shape[1]
    others = ~torch.eye(count, dtype=torch.bool, device=low.device) & ~hidden[:, None]
    against_high = high[:, None].masked_fill(~others, -torch.inf).logsumexp(-1)
    against_low = low[:, None].masked_fill(~others, -torch.inf).logsumexp(-1)
    least, most = torch.sigmoid(low - against_high), torch.sigmoid(high - against_low)
    return least.masked_fill(hidden, 0), most.masked_fill(hidden, 0)


@dataclass(frozen=True, eq=False)
class RadiusSearch:
    """Tells for the examples of a batch what holds within a radius.

    Pairs of features that are no further apart at x than `noise` (B,) are never told apart.
    """

    task: Task
    x: Tensor
    y: Tensor
    gradient: Tensor
    ranked: Tensor
    noise: Tensor

    def widest(self, pairs: Tensor, looks: int, first: Tensor) -> tuple[Tensor, Tensor]:
        """The largest radius found at which all `pairs` (k, n) are apart, and who fails beyond it.

        `first` (B,) is where the search begins. The least gap falls with the radius, and about as a
        line minus a square: where a chord between a radius that holds and one that fails comes
        down to zero, the gap does not yet. So a guess there holds, and one a little further fails.
        """
        margin = self._clean_margin(pairs)
        low, at_low = self._cheaply(pairs, margin, first)
        high, at_high = torch.full_like(first, torch.inf), torch.full_like(first, -torch.inf)
        weakest = self.ranked[:, [self.task.k - 1, self.task.k]].clone()
        guess = torch.where(low > 0, (low * STEP).clamp_max(UNBOUNDED), first)
        steps = self.task.switches
        near = (NEAR if self.x[0].numel() <= MANY else NEARLY) if steps else CLOSE
        done, joint = ~(margin > self.noise), torch.full_like(margin, steps, dtype=torch.bool)
        if self.task.many:
            done |= low <= 0  # all symbols of a large network are looked at close to what holds
        best = torch.full(first.shape, -1, device=first.device)
        for look in range(looks):
            # By one way first, the best at the first look; at its limit by all of them together.
            close = high <= low * near
            done |= close & joint
            high = torch.where(close & ~joint, torch.inf, high)
            guess = torch.where(close & ~joint, low * AGAIN, guess)
            joint |= close
            rows = (~done & (guess > 0)).nonzero().squeeze(-1)
            if not len(rows):
                break
            found, pair = self._look(rows, guess[rows], pairs, best, joint[rows])
            held = found > 0
            won, lost = rows[held], rows[~held]
            low[won], at_low[won] = guess[won], found[held]
            high[lost], at_high[lost] = guess[lost], found[~held]
            weakest[lost] = pair[~held]
            # The least gap of straight pieces falls in steps, about which a chord says nothing.
            guess = _middle(low, high) if steps else _next(low, at_low, high, at_high, look)
        return torch.where(low >= UNBOUNDED, torch.inf, low), weakest

    def _look(
        self, rows: Tensor, radius: Tensor, pairs: Tensor, best: Tensor, joint: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The least gap of each row and its pair.

        `joint` rows are bounded in all ways, each pair by the best of them; the others by the way
        that is the best for all pairs of the row, which their first look finds and tells in `best`.
        """
        k, n = pairs.shape
        margins = torch.full(
            (len(rows), k, n), -torch.inf, dtype=radius.dtype, device=radius.device
        )
        least = torch.full_like(radius, -torch.inf)
        first = (best[rows] == -1) & ~joint
        for number, relaxation in enumerate(self.task.relaxations):
            asked = torch.where(joint | first, ~(least > 0), best[rows] == number)
            at = asked.nonzero().squeeze(-1)
            if not len(at):
                continue
            wanted = pairs.expand(len(at), k, n) & ~((margins[at] > 0) & joint[at, None, None])
            found = self.margins(
                rows[at], radius[at], wanted, relaxation, briefly=self.task.switches
            )
            found = torch.where(pairs, found, torch.inf)
            both = torch.maximum(margins[at], torch.where(wanted, found, -torch.inf))
            alone = found.flatten(1).amin(-1)
            better = joint[at] | (alone > least[at]) | (least[at] == -torch.inf)
            margins[at[better]] = torch.where(joint[at, None, None], both, found)[better]
            least[at] = torch.where(pairs, margins[at], torch.inf).flatten(1).amin(-1)
            chosen = at[better & first[at]]
            best[rows[chosen]] = number
        return least, self._closest(rows, margins, pairs)

    def _closest(self, rows: Tensor, margins: Tensor, pairs: Tensor) -> Tensor:
        """The pair of features with the least gap: (B, 2)."""
        closest = torch.where(pairs, margins, torch.inf).flatten(1).argmin(-1)
        ranked, n = self.ranked[rows], pairs.shape[1]
        shown = ranked.gather(1, (closest // n)[:, None])
        return torch.cat([shown, ranked.gather(1, (closest % n)[:, None])], -1)

    def _cheaply(self, pairs: Tensor, margin: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """A radius at which the pairs are apart by ranges alone, and the least gap there: (B,)."""
        low, at_low = torch.zeros_like(margin), margin.clone()
        high, guess = torch.full_like(margin, torch.inf), first.clone()
        # Radii of deep networks of many features may be very small.
        for _ in range(CHEAP_LOOKS if self.x[0].numel() <= MANY else CHEAP_LOOKS_OF_MANY):
            open_rows = (margin > self.noise) & (low < UNBOUNDED) & ~(high < low * 2)
            rows = open_rows.nonzero().squeeze(-1)
            if not len(rows):
                break
            margins = self.margins(rows, guess[rows], pairs.expand(len(rows), *pairs.shape), RANGES)
            found = torch.where(pairs, margins, torch.inf).flatten(1).amin(-1)
            held = found > 0
            low[rows[held]], at_low[rows[held]] = guess[rows[held]], found[held]
            high[rows[~held]] = guess[rows[~held]]
            inside = torch.where(low > 0, (low * high).sqrt(), high / 16)
            beyond = torch.where(low > FAR, UNBOUNDED, low * 16)
            guess = torch.where(high < torch.inf, inside, beyond)
        return low, at_low

    def _clean_margin(self, pairs: Tensor) -> Tensor:
        """The least gap of the pairs at x itself: (B,)."""
        return torch.where(pairs, self._clean_margins(), torch.inf).flatten(1).amin(-1)

    def _clean_margins(self) -> Tensor:
        """The gap of each pair at x itself, by rank: (B, k, n)."""
        ranked = self.gradient.abs().gather(1, self.ranked)
        return ranked[:, : self.task.k, None] - ranked[:, None]

    def precision(self, rows: Tensor, radius: Tensor) -> Tensor:
        """Share of the top k that surely stay there: (B,)."""
        k, n = self.task.k, self.gradient.shape[1]
        wanted = torch.ones(len(rows), k, n, dtype=torch.bool, device=rows.device)
        wanted[:, range(k), range(k)] = False
        wanted &= self._clean_margins()[rows] > self.noise[rows, None, None]
        surely = torch.zeros_like(wanted)
        for relaxation in (RANGES, *self.task.relaxations):
            surely |= self.margins(rows, radius, wanted & ~surely, relaxation) > 0
        # A feature stays if all but k - 1 others are surely below it. And no more can leave than
        # enter: another may enter unless k features are surely above it.
        stays = (surely.sum(-1) >= n - k).sum(-1)
        enters = (surely[:, :, k:].sum(1) < k).sum(-1)
        return torch.maximum(stays, k - enters).clamp_min(0).to(radius) / k

    def margins(
        self,
        rows: Tensor,
        radius: Tensor,
        wanted: Tensor,
        relaxation: str,
        *,
        briefly: bool = False,
    ) -> Tensor:
        """Sound lower bounds of |I_i| - |I_j| by rank, as far as `wanted` (B, k, n): (B, k, n).

        What is not wanted is minus infinity. A pair that the ranges of its two numbers keep apart
        is not looked at as a pair. Asked `briefly` whether all pairs are apart, no other pair of an
        example is looked at once one of the likeliest fails.
        """
        k = self.task.k
        least = torch.full(wanted.shape, -torch.inf, dtype=radius.dtype, device=radius.device)
        some = wanted.flatten(1).any(-1).nonzero().squeeze(-1)
        if not len(some):
            return least
        rows, radius, wanted = rows[some], radius[some], wanted[some]
        ranked, signs = self.ranked[rows], self.gradient[rows].sign()
        try:
            form, symbols = self.task.gradients(self.x[rows], self.y[rows], radius, relaxation)
        except Hopeless:
            return least
        low, high = symbols.range(form)
        leading = torch.where(signs > 0, low, -high).gather(1, ranked[:, :k])
        others = torch.maximum(high, -low).gather(1, ranked)
        apart = (leading[:, :, None] - others[:, None]).nan_to_num(nan=-torch.inf)
        known = (low > 0).to(low) - (high < 0).to(low)
        lost = torch.zeros_like(wanted)
        asked = wanted & ~(apart > 0)
        for likeliest in (True, False):
            if relaxation == RANGES or (likeliest and not briefly):
                continue
            chosen = _closest_few(asked, apart) if likeliest else asked
            example, one, other = chosen.nonzero(as_tuple=True)
            if not len(example):
                continue
            ours, theirs = ranked[example, one], ranked[example, other]
            sides = signs[example, ours], known[example, theirs]
            found = pair_margins(form, symbols, example, ours, theirs, *sides, radius)
            apart[example, one, other] = found.nan_to_num(nan=-torch.inf)
            failed = (chosen & ~(apart > 0)).flatten(1).any(-1)
            asked &= ~chosen
            lost |= asked & failed[:, None, None]
            asked &= ~lost
        # Of what was not looked at it is only known that another pair of the example fails.
        apart = torch.where(lost, torch.inf, apart)
        least[some] = torch.where(wanted, apart, -torch.inf)
        return least


def _closest_few(asked: Tensor, apart: Tensor) -> Tensor:
    """The pairs of each example that are least apart as far as is known: like `asked`."""
    count = min(LIKELIEST, asked[0].numel())
    found = torch.where(asked, apart, torch.inf).flatten(1).topk(count, largest=False).indices
    chosen = torch.zeros_like(asked).flatten(1).scatter(1, found, True)
    return chosen.view_as(asked) & asked


def _next(low: Tensor, at_low: Tensor, high: Tensor, at_high: Tensor, look: int) -> Tensor:
    """Where to look next: between a radius that holds and one that fails, or further out."""
    at_high = at_high.clamp_min(-1e300)
    root = low + (high - low) * at_low / (at_low - at_high)
    root = torch.minimum(root.nan_to_num(0.0), (low + high) / 2)
    # A chord from far away comes down too early; the middle by ratio is better then.
    far = high > 8 * low.clamp_min(1e-30)
    middle = torch.where(low > 0, (low * high).sqrt(), root)
    between = torch.where(far & (low > 0), torch.maximum(root, middle), root)
    between = torch.where((look % 2 == 1) & ~far, torch.maximum(root, low) * CLOSE, between)
    between = between.clamp(low + (high - low) / 64, high - (high - low) / 64)
    beyond = torch.where(low > FAR, UNBOUNDED, low * STEP)
    return torch.where(high < torch.inf, between, beyond)


def _middle(low: Tensor, high: Tensor) -> Tensor:
    """Where to look next between a radius that holds and one that fails, or further out."""
    far = high > 4 * low.clamp_min(1e-30)
    between = torch.where(far & (low > 0), (low * high).sqrt(), (low + high) / 2)
    between = torch.where(low > 0, between, high / STEP**3)
    beyond = torch.where(low > FAR, UNBOUNDED, low * STEP)
    return torch.where(high < torch.inf, between, beyond)


def pair_margins(
    form: AffineForm,
    symbols: Symbols,
    example: Tensor,
    ours: Tensor,
    theirs: Tensor,
    signs: Tensor,
    known: Tensor,
    radius: Tensor,
) -> Tensor:
    """Sound lower bounds of s g_i - |g_j| for pairs of numbers of a form: (P,).

    s = `signs`. Where g_j is of one sign on the whole region, `known` says which (0: of neither),
    and |g_j| is that sign times g_j.
    """
    moves = form.moves.permute(1, 2, 0).contiguous()  # (B, n, M)
    quadratics = [_QuadraticBound(quadratic, radius) for quadratic in symbols.quadratics]
    linked = Linked(symbols, symbols.norm == "linf") if symbols.switches else None

    def least(pairs: Tensor, side: Tensor) -> Tensor:
        at, i, j, s = example[pairs], ours[pairs], theirs[pairs], signs[pairs]
        steps = s[:, None] * moves[at, i] - side[:, None] * moves[at, j]  # (P, M)
        centre = s * form.centre[at, i] - side * form.centre[at, j]
        rest = form.rest[at, i] + form.rest[at, j]
        lowest = _lowest(symbols, quadratics, at, centre, steps, rest)
        if linked is not None:
            short = ((lowest <= 0) & (s * form.centre[at, i] > 0)).nonzero().squeeze(-1)
            more = linked.gain(steps[short, symbols.inputs :], at[short], -lowest[short])
            lowest[short] += more * (1 - 1e-12)
        return lowest

    found = []
    for part in torch.arange(len(example), device=example.device).split(PAIRS_AT_ONCE):
        side = known[part]
        lower = least(part, torch.where(side == 0, 1.0, side))
        either = (side == 0).nonzero().squeeze(-1)
        if len(either):
            lower[either] = torch.minimum(
                lower[either], least(part[either], -torch.ones_like(side[either]))
            )
        found.append(lower)
    return torch.cat(found)


def _lowest(
    symbols: Symbols,
    quadratics: "Sequence[_QuadraticBound]",
    at: Tensor,
    centre: Tensor,
    steps: Tensor,
    rest: Tensor,
) -> Tensor:
    """Least value of single numbers given by centre (P,), moves (P, M) and rest (P,)."""
    inputs = symbols.inputs
    own, errors = steps[:, :inputs], steps[:, inputs:]
    ball = own.abs().sum(-1) if symbols.norm == "linf" else own.norm(dim=-1)
    count = errors.shape[1]
    low, high = symbols.low[:count].T[at], symbols.high[:count].T[at]
    each = torch.minimum(errors * low, errors * high)
    down = each.sum(-1)
    size = centre.abs() + ball - down + rest
    for quadratic in quadratics:
        place = slice(quadratic.start - inputs, quadratic.start - inputs + quadratic.units)
        plain = each[:, place].sum(-1)
        tighter = quadratic.lowest(errors[:, place], at)
        down = down + (torch.maximum(plain, tighter) - plain)
    slack = (steps.shape[1] + 32) * torch.finfo(centre.dtype).eps * size + TINY
    return centre - ball + down - rest - slack


class _QuadraticBound:
    """Errors of activations of the input itself, which cannot all be at their worst at once.

    sum_u C_u error_u >= -1/2 w' (sum_u q_u w_u w_u') w, and the largest eigenvalue of such a sum is
    no more than its Frobenius norm, sqrt(q'Kq) with K_uv = (w_u'w_v)^2.
    """

    def __init__(self, quadratic: QuadraticError, radius: Tensor) -> None:
        self.start, self.units = quadratic.start, quadratic.moves.shape[2]
        # Numbers that move with the input alone do so in proportion to the radius.
        widest = int(radius.argmax())
        per_unit = quadratic.moves[:, widest] / radius[widest].clamp_min(1e-300)
        self.kernel = (per_unit.T @ per_unit).square()
        self.low, self.high, self.slack = quadratic.low, quadratic.high, quadratic.slack
        self.squared = radius.square()

    def lowest(self, weights: Tensor, at: Tensor) -> Tensor:
        """A sound lower bound of the weighted sum of the errors: (P,)."""
        low, high = self.low.T[at], self.high.T[at]
        load = -torch.minimum(weights * low, weights * high).clamp_max(0)
        norm = ((load @ self.kernel) * load).sum(-1).clamp_min(0).sqrt()
        slack = (weights.abs() * self.slack.T[at]).sum(-1)
        return -(1 + 1e-9) * self.squared[at] * norm / 2 - slack
