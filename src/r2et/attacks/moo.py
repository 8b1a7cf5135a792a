"""Attacks that lower many gaps at once: the papers' trust region (P A.4), and a line search.

Every gap h_l between a clean top-k feature and another one is an objective of its own, since
nobody knows beforehand which pair is the first to change places. The trust region walks by the
merits phi_l(x) = ||f(x)|| + |h_l(x) - t_l|, where f holds what must not change. Four statements of
the paper cannot be taken as printed; the code departs from them in the open:

- Eq. 12 gives chi_l the radius Delta, but Lemma A.5 needs the radius one of the work that it adapts
  (Cartis, Gould and Toint, Math. Program. 2014). One is the attacker's whole radius here.
- phi_l = eps at every iterate [Eq. 35], so that chi_l <= eps: "while chi_l >= eps" ends where the
  linearised merit cannot be brought to zero, with Eq. 28 after the first step. An objective is
  dropped at chi_l < `criticality` * eps.
- Lemma A.5 fails for two or more objectives: each may fall alone, and none with the others. Where
  the common step promises one of them less than min(Delta, 1) * criticality * eps, the half that
  flips farther from the clean input, to first order, is set aside. With that promise kept,
  Lemma A.9 and Theorem 5.1 hold again.
- The target is updated by where h_l of the *new* x lies: the old one is always above its target
  [Eq. 34] and would leave one case only. Either case gives t_l = h_l + ||f|| - eps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn

from r2et.attacks._qp import kept_descent
from r2et.attacks._socp import Descent, min_norm_weights, times, tr_moo
from r2et.attacks.search import AttackProblem, AttackResult, BestSoFar, Outputs, check_slopes
from r2et.core.autograd import jacobian
from r2et.core.ranking import order
from r2et.explainers import Explainer, margin
from r2et.models.smoothing import softened
from r2et.perturbations import PerturbationSet

Scale = Literal["relative", "plain"]
CHI_AT_ONCE = 8192  # problems of one objective each
ROWS_AT_ONCE = 1024
DETOURS = 4  # times that a step is sought again without the inputs that the set holds back


@dataclass(frozen=True, kw_only=True)
class GapBudget:
    """Which gaps are objectives, and how often they are pursued: at most `iterations` times.

    The `pairs` smallest clean gaps. By `scale` they are gaps of the explanation divided by its mean
    score ("relative", so that shrinking all scores does not help) or as it is ("plain"). The theory
    needs smooth gaps: those of a (Leaky)ReLU network are taken from a copy with softplus of
    sharpness `guide` (None: from itself). Memory grows with examples x pairs x numbers.
    """

    iterations: int = 30
    pairs: int = 64
    scale: Scale = "relative"
    guide: float | None = 8.0

    def __post_init__(self) -> None:
        """Refuse gaps that are none."""
        smooth = self.guide is None or self.guide > 0
        if self.scale not in get_args(Scale) or self.pairs < 1 or not smooth:
            raise ValueError(
                f"gaps need a scale of {get_args(Scale)}, pairs >= 1 and a guide > 0 or None, got "
                f"{self.scale!r}, {self.pairs} and {self.guide}."
            )

    def rows_at_once(self, numbers: int) -> int:
        """How many examples of so many numbers are attacked at once."""
        return ROWS_AT_ONCE


@dataclass(frozen=True, kw_only=True)
class TrustRegion(GapBudget):
    """The settings of Algorithm 2 (P A.4), all lengths in radii of the perturbation set.

    f = eps [(p - p0) / drift, (x - x0) / radius] with p the class probabilities: ||f|| <= eps keeps
    both limits of Eq. 27 by the one number eps = `tolerance` of Eq. 28. Gaps are measured by it
    too, in units of what the steepest falls over a radius at the clean input: probabilities near
    one make all gaps small, but not their unit. No gap falls by more than eps in one iteration, and
    none is pursued that falls by less than eps over a radius. Delta starts at `trust_radius`.
    """

    tolerance: float = 0.2
    drift: float = 0.3
    criticality: float = 0.05
    eta: float = 0.1
    gamma: float = 0.5
    trust_radius: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings with which no step could be taken or none refused."""
        super().__post_init__()
        positive = min(self.tolerance, self.drift, self.trust_radius) > 0
        shares = all(0 < share < 1 for share in (self.eta, self.gamma))
        if not (positive and shares and 0 < self.criticality <= 1):
            raise ValueError(
                "a trust region needs tolerance, drift and trust_radius > 0, eta and gamma between "
                f"0 and 1, and criticality > 0 and <= 1, got {self}."
            )

    @property
    def least(self) -> float:
        """The fall of a merit within a radius below which an objective is spent."""
        return self.criticality * self.tolerance


@dataclass(frozen=True, kw_only=True)
class LineSearch(GapBudget):
    """The settings of Armijo's line search.

    A step, at first of `first_step` radii, is halved up to `halvings` times until every gap falls
    by `share` of what its gradient promises. The perturbation set must leave `criticality` of the
    promise. With `linearised` the direction keeps classes and set to first order, and has the
    length that the forerunner gives it: the first step is then `first_step` times as long.
    """

    first_step: float = 0.5
    share: float = 1e-4
    halvings: int = 12
    criticality: float = 0.05
    linearised: bool = False

    def __post_init__(self) -> None:
        """Refuse a search that could not begin or not end."""
        super().__post_init__()
        shares = 0 < self.share < 1 and 0 <= self.criticality < 1
        if not (self.first_step > 0 and shares and self.halvings >= 0):
            raise ValueError(
                "a line search needs first_step > 0, share between 0 and 1, halvings >= 0 and "
                f"criticality >= 0 and < 1, got {self}."
            )


# --- the gaps of single pairs as objectives -------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _ByExample:
    """A record whose tensors have one row for each example."""

    def of(self, rows: Tensor) -> Self:
        """The same of some examples only."""
        chosen: dict[str, Any] = {
            name: each[rows] for name, each in vars(self).items() if isinstance(each, Tensor)
        }
        return replace(self, **chosen)


@dataclass(frozen=True, kw_only=True, eq=False)
class Linearised(_ByExample):
    """The merits phi_l = ||f|| + |h_l - t_l| around an input, to first order, moves in radii."""

    level: Tensor
    """h_l - t_l, for all l the same eps - ||f||: (B,)."""
    slopes: Tensor
    """Gradients g_l of the gaps: (B, m, d)."""
    fixed: Tensor
    """The first part of f, eps (p - p0) / drift: (B, C)."""
    drifts: Tensor
    """Its derivative: (B, C, d)."""
    away: Tensor
    """The way from the clean input; the second part of f is eps times it: (B, d)."""
    tolerance: float
    """eps."""

    def promised(self, move: Tensor) -> Tensor:
        """By how much a move lowers each linearised merit: (B, m)."""
        changed = self.fixed + times(self.drifts, move), self.tolerance * (self.away + move)
        residual: Tensor = torch.cat(changed, -1).norm(dim=-1, keepdim=True)
        distance = (self.level[:, None] + times(self.slopes, move)).abs()
        return self.tolerance - residual - distance

    def only(self, free: Tensor) -> "Linearised":
        """The same where only `free` inputs (B, d) change the gaps and the probabilities."""
        kept = free[:, None]
        return replace(
            self, slopes=self.slopes.where(kept, 0.0), drifts=self.drifts.where(kept, 0.0)
        )

    def descent(self, delta: Tensor, active: Tensor | None = None) -> Descent:
        """TR-MOO of the active objectives (B, m) within the trust radius `delta` (B,)."""
        known = torch.cat([self.slopes, self.drifts, self.away[:, None]], 1)
        if known.shape[1] < known.shape[2]:
            # To leave the space of all gradients and the way back changes no gap and helps nothing.
            basis, _ = torch.linalg.qr(known.mT)
            inside = replace(
                self,
                slopes=self.slopes @ basis,
                drifts=self.drifts @ basis,
                away=times(basis.mT, self.away),
            ).descent(delta, active)
            return replace(inside, step=times(basis, inside.step))
        straight = torch.eye(known.shape[2]).to(known).expand(len(known), -1, -1)
        return tr_moo(
            self.level[:, None].expand(self.slopes.shape[:2]),
            self.slopes,
            torch.cat([self.fixed, self.tolerance * self.away], -1),
            torch.cat([self.drifts, self.tolerance * straight], 1),
            delta,
            active,
        )

    def chi(self, wanted: Tensor | None = None) -> Tensor:
        """The largest fall of each linearised merit alone within a radius [Eq. 12]: (B, m).

        Infinite for objectives that are not `wanted` (B, m).
        """
        found = torch.full_like(self.slopes[..., 0], torch.inf)
        if wanted is None:
            wanted = torch.ones_like(found, dtype=torch.bool)
        shared = replace(self, slopes=self.slopes[:, :1])
        for some in wanted.nonzero().split(CHI_AT_ONCE):
            rows, goals = some.T
            alone = replace(shared.of(rows), slopes=self.slopes[rows, goals][:, None])
            best = alone.descent(torch.ones_like(alone.level))
            found[rows, goals] = self.tolerance - best.value
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaps(_ByExample):
    """The m smallest clean gaps of each example, as functions of the input."""

    model: nn.Module
    guide: nn.Module
    """The network whose explanation is followed: the model or a smooth copy."""
    explain: Explainer
    outputs: Outputs
    scale: Scale
    radius: float
    y: Tensor
    centre: Tensor
    unit: Tensor
    """The fall of the steepest gap over a radius at the clean input, what gaps count in: (B, 1)."""
    clean: Tensor
    """Probabilities of all outputs at the clean input: (B, C)."""
    classes: Tensor
    """Their classes: (B, S)."""
    features: Tensor
    """The features that occur in the pairs: (B, F)."""
    above: Tensor
    """Places in `features` of the pairs' top-k features: (B, m)."""
    below: Tensor
    """Places in `features` of their others: (B, m)."""

    @staticmethod
    def around(best: BestSoFar, budget: GapBudget) -> "Gaps":
        """The gaps of the pairs nearest to changing places."""
        soft = None if budget.guide is None else softened(best.model, budget.guide)
        with torch.no_grad():
            logits = best.outputs(best.model, best.centre)
        features, above, below = thinnest_pairs(best.before, best.k, budget.pairs)
        gaps = Gaps(
            model=best.model,
            guide=best.model if soft is None else soft,
            explain=best.explain,
            outputs=best.outputs,
            scale=budget.scale,
            radius=best.perturbation.radius,
            y=best.y,
            centre=best.centre,
            unit=torch.ones_like(best.before[:, :1]),
            clean=_probabilities(logits),
            classes=_classes(logits),
            features=features,
            above=above,
            below=below,
        )
        _, slopes = gaps.values_and_slopes(best.centre)
        if not slopes.any():
            check_slopes(best.explain, gaps.guide, best.centre, best.y)
        steepest = gaps.paired(slopes).norm(dim=-1).amax(-1, keepdim=True).to(gaps.unit)
        with torch.no_grad():
            size = gaps.scores(best.centre).abs().amax(-1, keepdim=True)
        # Slopes that are nothing but rounding shall not become the measure of all gaps.
        grain = torch.finfo(size.dtype).eps ** 0.75 * size
        return replace(gaps, unit=_or_one(torch.maximum(steepest, grain)))

    def scores(self, x: Tensor) -> Tensor:
        """The explanation of the features in question, in its unit: (B, F)."""
        saliency = self.explain(self.guide, x, self.y)
        if self.scale == "relative":
            saliency = saliency / _or_one(saliency.abs().mean(-1, keepdim=True))
        return saliency.gather(-1, self.features) / self.unit

    def values(self, x: Tensor) -> Tensor:
        """The gaps h_l: (B, m)."""
        with torch.no_grad():
            scores = self.scores(x).double()
        return scores.gather(-1, self.above) - scores.gather(-1, self.below)

    def values_and_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gaps (B, m) and the gradients by a move in radii of all F scores: (B, F, d)."""
        with torch.no_grad():
            slopes = self.radius * jacobian(self.scores, x).double()
        return self.values(x), slopes

    def paired(self, slopes: Tensor) -> Tensor:
        """The gradients of the gaps from those of the scores: (B, m, d)."""
        picked = [
            slopes.gather(1, each[..., None].expand(-1, -1, slopes.shape[-1]))
            for each in (self.above, self.below)
        ]
        return picked[0] - picked[1]

    def way(self, start: Tensor, end: Tensor) -> Tensor:
        """The way from one input to another in radii: (B, d)."""
        return (end - start).flatten(1).double() / (self.radius or 1.0)

    def kept(self, x: Tensor) -> Tensor:
        """Whether all outputs are of their clean classes: (B,) booleans."""
        with torch.no_grad():
            classes = _classes(self.outputs(self.model, x))
        return (classes == self.classes).all(-1)

    def limits(self, x: Tensor, within: PerturbationSet) -> tuple[Tensor, Tensor]:
        """What must stay at most 0 (B, S + 1), and its gradients by a move in radii: (B, S + 1, d).

        Minus the margin of each output's class; and the cost of the move, in radii, less 1.
        """

        def level(point: Tensor) -> Tensor:
            logits = self.outputs(self.model, point)
            lost = [-margin(each, y) for each, y in zip(logits, self.classes.T, strict=True)]
            cost = within.cost(point, self.centre) / (within.radius or 1.0)
            return torch.stack([*lost, cost - 1], -1)

        with torch.no_grad():
            # A length has no slope where nothing has moved: no limit is near there.
            return level(x).double(), self.radius * jacobian(level, x).double().nan_to_num(0.0)

    def residual(self, x: Tensor, region: TrustRegion) -> Tensor:
        """What must not change, f = eps [(p - p0) / drift, (x - x0) / radius]: (B, C + d)."""
        with torch.no_grad():
            drift = _probabilities(self.outputs(self.model, x)) - self.clean
        away = self.way(self.centre, x)
        return region.tolerance * torch.cat([drift.double() / region.drift, away], -1)

    def merits(self, x: Tensor, targets: Tensor, region: TrustRegion) -> Tensor:
        """phi_l = ||f|| + |h_l - t_l| [Eq. 11], t = `targets` (B, m): (B, m)."""
        fixed: Tensor = self.residual(x, region).norm(dim=-1, keepdim=True)
        return fixed + (self.values(x) - targets).abs()

    def linearised(self, x: Tensor, region: TrustRegion) -> tuple[Tensor, Linearised]:
        """The gaps (B, m), and the merits around x whose targets make them all eps."""
        values, slopes = self.values_and_slopes(x)
        with torch.no_grad():
            drifts = jacobian(lambda point: _probabilities(self.outputs(self.model, point)), x)
        residual = self.residual(x, region)
        return values, Linearised(
            level=region.tolerance - residual.norm(dim=-1),
            slopes=self.paired(slopes),
            fixed=residual[:, : drifts.shape[1]],
            drifts=self.radius * region.tolerance / region.drift * drifts.double(),
            away=self.way(self.centre, x),
            tolerance=region.tolerance,
        )


def thinnest_pairs(saliency: Tensor, k: int, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """The features (B, F) of the smallest gaps, and where in them each pair's stand: twice (B, m).

    At most `pairs` of the k (n - k) pairs. A pair a places above the k-th and b places below it has
    a * b - 1 others of no larger gap within, so that F <= 2 pairs.
    """
    ranked = order(saliency)
    n = saliency.shape[-1]
    tops, others = min(k, pairs), min(n - k, pairs)
    features = ranked[:, k - tops : k + others]
    scores = saliency.gather(-1, features)
    # Nearest pairs first, so that of equal gaps those are taken: no matter how many are equal.
    gaps = scores[:, :tops].flip(-1)[:, :, None] - scores[:, None, tops:]
    chosen = gaps.flatten(1).argsort(dim=-1, stable=True)[:, :pairs]
    return features, tops - 1 - chosen // others, tops + chosen % others


def _or_one(size: Tensor) -> Tensor:
    """A size to divide by, 1 where it is none: like size.

    One whose square vanishes is none either: what is divided by it has a slope beyond all numbers.
    """
    return torch.where(size > torch.finfo(size.dtype).tiny ** 0.5, size, 1.0)


def _probabilities(logits: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.softmax(-1) for each in logits], -1)


def _classes(logits: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.argmax(-1) for each in logits], -1)


# --- the attacks ----------------------------------------------------------------------------------


class Outcome(IntEnum):
    """How the attack on one example ended."""

    FLIPPED = 0
    """A top-k feature was displaced."""
    EXHAUSTED = 1
    """Every objective came to a point where its own merit hardly falls any more."""
    CONFLICTING = 2
    """The same, but for objectives set aside since the others could not fall with them."""
    UNFINISHED = 3
    """The iterations were used up."""
    SKIPPED = 4
    """The clean prediction is, by rounding, not y."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Iteration:
    """What one pass of the loop saw and did, for the b examples still under attack."""

    number: int
    rows: Tensor
    """Which examples of the batch: (b,)."""
    x: Tensor
    """Their inputs: (b, ...)."""
    gaps: Tensor
    """h_l there: (b, m)."""
    linear: Linearised
    delta: Tensor
    """The trust radius: (b,)."""
    active: Tensor
    """Objectives that are left, none where the attack ends: (b, m) booleans."""
    moved: Tensor
    """The inputs tried: (b, ...)."""
    promised: Tensor
    """The fall of each linearised merit: (b, m)."""
    actual: Tensor
    """The fall of each merit: (b, m)."""
    accepted: Tensor
    """Whether the step was taken: (b,) booleans."""


def ignore(iteration: Iteration) -> None:
    """Watch nothing."""


class _Step(NamedTuple):
    """What one pass did with b examples."""

    moved: Tensor
    accepted: Tensor
    active: Tensor
    halved: Tensor  # (b,): whether objectives were set aside


# (pass number, gaps of the b examples, their numbers in the batch, inputs, active objectives)
Advance = Callable[[int, Gaps, Tensor, Tensor, Tensor], _Step]


def moo_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    problem: AttackProblem,
    region: TrustRegion,
    watch: Callable[[Iteration], None] = ignore,
) -> AttackResult:
    """The MOO attack, Algorithm 2: up to the first displaced feature, or a failure to find one.

    Nobody aims at other pairs than those of the budget, and failure speaks of these only.
    Probabilities and success are always the network's own, whatever guides it. A step that changes
    a class of the outputs is refused like a bad one. `watch` is shown every iteration.
    """
    deltas = torch.full((len(x),), region.trust_radius, dtype=torch.float64, device=x.device)

    def advance(number: int, goals: Gaps, rows: Tensor, x: Tensor, active: Tensor) -> _Step:
        delta = deltas[rows]
        gaps, linear = goals.linearised(x, region)
        left, halved, moved = _tried(
            linear, goals, gaps, active, delta, region, problem.perturbation, x
        )
        promised = linear.promised(goals.way(x, moved))
        targets = gaps - linear.level[:, None]
        actual = region.tolerance - goals.merits(moved, targets, region)
        enough = (promised > 0) & (actual > region.eta * promised)
        accepted = (enough | ~left).all(-1) & left.any(-1) & goals.kept(moved)
        deltas[rows] = torch.where(accepted, delta, region.gamma * delta)
        watch(
            Iteration(
                number=number,
                rows=rows,
                x=x,
                gaps=gaps,
                linear=linear,
                delta=delta,
                active=left,
                moved=moved,
                promised=promised,
                actual=actual,
                accepted=accepted,
            )
        )
        return _Step(moved, accepted, left, halved)

    return _pursued(BestSoFar(model, x, y, problem), region, advance)


def _tried(
    linear: Linearised,
    goals: Gaps,
    gaps: Tensor,
    active: Tensor,
    delta: Tensor,
    region: TrustRegion,
    within: PerturbationSet,
    x: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Objectives (B, m) left, where some were set aside (B,), and the inputs to try: like x.

    Where the set holds single inputs back, as bounds do, the step is sought again without them.
    """
    active, moved, halved = active.clone(), x.clone(), torch.zeros_like(active[:, 0])
    free = torch.ones_like(linear.away, dtype=torch.bool)
    rows = torch.arange(len(x), device=x.device)
    for _ in range(1 + DETOURS):
        part, start = linear.of(rows).only(free[rows]), x[rows]
        left, step, apart = _settled(part, gaps[rows], active[rows], delta[rows], region)
        end = start + goals.radius * step.to(x).view_as(start)
        end = within.relax(end, goals.centre[rows])
        active[rows], moved[rows] = left, end
        halved[rows] |= apart
        asked, got = step.abs(), goals.way(start, end).abs()
        held = (got < asked / 2) & (asked > 1e-6 * asked.amax(-1, keepdim=True))
        held = held & left.any(-1, keepdim=True)
        free[rows] &= ~held
        rows = rows[held.any(-1)]
        if not len(rows):
            break
    return active, halved, moved


def _settled(
    linear: Linearised, gaps: Tensor, active: Tensor, deltas: Tensor, region: TrustRegion
) -> tuple[Tensor, Tensor, Tensor]:
    """Objectives (B, m) left, their common step (B, d), and where some were set aside: (B,).

    Spent objectives are dropped; where the rest does not fall together, its farther half is.
    """
    active, halved = active.clone(), torch.zeros_like(active[:, 0])
    step = torch.zeros_like(linear.away)
    left = active.any(-1).nonzero()[:, 0]
    while len(left):
        part, now, delta = linear.of(left), active[left], deltas[left]
        common = part.descent(delta, now).step
        spent = part.chi(now & (_fall_within_one(part, common) < region.least)) < region.least
        weakest = part.promised(common).where(now, torch.inf).amin(-1)
        apart = (weakest < delta.clamp(max=1) * region.least) & ~spent.any(-1) & (now.sum(-1) > 1)
        nearer = _nearer_half(gaps[left], part.slopes, part.away, now)
        kept = torch.where(apart[:, None], nearer, now & ~spent)
        active[left], step[left] = kept, common
        halved[left] |= apart
        left = left[(kept != now).any(-1) & kept.any(-1)]
    return active, step, halved


def _fall_within_one(linear: Linearised, step: Tensor) -> Tensor:
    """A lower bound of chi_l, the largest fall at three points along a step: (B, m)."""
    length = step.norm(dim=-1, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    ways = (1 / length, (1 / length).clamp(max=1), torch.minimum(1 / length, length.rsqrt()))
    return torch.stack([linear.promised(way * step) for way in ways]).amax(0)


def _nearer_half(gaps: Tensor, slopes: Tensor, away: Tensor, active: Tensor) -> Tensor:
    """The half of the active objectives that flip nearest to the clean input: (B, m).

    To first order that is (h - g'(x - x0)) / ||g|| radii from it, x - x0 = `away` (B, d).
    """
    distance = (gaps - times(slopes, away)) / slopes.norm(dim=-1)
    ranks = distance.masked_fill(~active, torch.inf).argsort(dim=-1, stable=True).argsort(-1)
    nearer: Tensor = active & (ranks < active.sum(-1, keepdim=True) // 2)
    return nearer


@dataclass(frozen=True, kw_only=True, eq=False)
class Descended:
    """What one pass of the line search saw and did, for the b examples still under attack."""

    rows: Tensor
    """Which examples of the batch: (b,)."""
    direction: Tensor
    """Where it looked, in radii; with `linearised` its length says how critical x is: (b, d)."""
    active: Tensor
    """The objectives that were to fall: (b, m) booleans."""
    share: Tensor
    """How much of the direction the step was, 0 where none was taken: (b,)."""


def unwatched(descended: Descended) -> None:
    """Watch nothing."""


def armijo_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    problem: AttackProblem,
    budget: LineSearch,
    watch: Callable[[Descended], None] = unwatched,
) -> AttackResult:
    """The attack of Q: a direction in which all gaps fall, and Armijo's line search.

    The direction is minus the shortest blend of the gaps' gradients [Q Eq. 7] or, where the budget
    says `linearised`, the one that also keeps classes and set to first order [Q Eqs. 11-14]. Along
    it the step is halved until every gap falls enough [Q Eq. 8] and all classes of the outputs are
    kept. Where it is shorter than `criticality` of the longest gradient, or no step will do, the
    farther half of the gaps is set aside; with the last one the attack ends. `watch` is shown
    every pass.

    Q's Eq. 11 has a class number for its constraint, whose slope is zero: the margin stands for it.
    Its Eq. 14 lowers the sum of all gaps so that none rises; a gap that is only kept can rise by
    what it bends, and then no step will do. Here, as in Eq. 7, the slowest gap is lowered most.
    """
    within = problem.perturbation

    def advance(number: int, goals: Gaps, rows: Tensor, x: Tensor, active: Tensor) -> _Step:
        gaps, scores = goals.values_and_slopes(x)
        slopes = goals.paired(scores)
        limits = goals.limits(x, within) if budget.linearised else None
        direction, sound = _common_descent(slopes, active, budget.criticality, limits)
        taken = torch.zeros_like(direction[:, 0])
        found, done = x.clone(), ~sound
        for halving in range(budget.halvings + 1):
            open_rows = (~done).nonzero()[:, 0]
            if not len(open_rows):
                break
            here, at = goals.of(open_rows), x[open_rows]
            move = budget.first_step / 2**halving * direction[open_rows]
            moved = within.relax(at + within.radius * move.to(x).view_as(at), here.centre)
            fall = -times(slopes[open_rows], here.way(at, moved))
            enough = (fall > -budget.criticality * times(slopes[open_rows], move)) & (fall > 0)
            enough = enough & (here.values(moved) <= gaps[open_rows] - budget.share * fall)
            good = (enough | ~active[open_rows]).all(-1) & here.kept(moved)
            found[open_rows[good]], done[open_rows[good]] = moved[good], True
            taken[open_rows[good]] = budget.first_step / 2**halving
        watch(Descended(rows=rows, direction=direction, active=active, share=taken))
        accepted = done & sound
        nearer = _nearer_half(gaps, slopes, goals.way(goals.centre, x), active)
        left = torch.where(accepted[:, None], active, nearer)
        return _Step(found, accepted, left, ~accepted & left.any(-1))

    return _pursued(BestSoFar(model, x, y, problem), budget, advance)


def _common_descent(
    slopes: Tensor,
    active: Tensor,
    criticality: float,
    limits: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Directions (B, d) in which all active gaps fall, and who has one: (B,).

    Of length one, or as long as within `limits` they are.
    """
    # A gradient given twice changes no blend: the first active one stands in for the others.
    first = active.int().argmax(-1)
    stand_in = slopes[torch.arange(len(slopes)), first][:, None]
    slopes = slopes.where(active[..., None], stand_in)
    if limits is None:
        blend = (min_norm_weights(slopes)[..., None] * slopes).sum(1)
        length = blend.norm(dim=-1)
        direction = -blend / torch.where(length > 0, length, 1.0)[:, None]
    else:
        direction = kept_descent(slopes, *limits)
        length = direction.norm(dim=-1)
    return direction, length > criticality * slopes.norm(dim=-1).amax(-1)


def _pursued(best: BestSoFar, budget: GapBudget, advance: Advance) -> AttackResult:
    """The passes of an attack, each example until it is decided, and how that ended."""
    goals = Gaps.around(best, budget)
    x = best.centre.clone()
    active = torch.ones_like(goals.above, dtype=torch.bool)
    halved = torch.zeros_like(best.attacked)
    outcome = torch.where(best.attacked, int(Outcome.UNFINISHED), int(Outcome.SKIPPED))
    best.offer(x)
    for number in range(1, budget.iterations + 1):
        rows = (outcome == Outcome.UNFINISHED).nonzero()[:, 0]
        if len(rows):
            step = advance(number, goals.of(rows), rows, x[rows], active[rows])
            x[rows[step.accepted]] = step.moved[step.accepted]
            active[rows] = step.active
            halved[rows] |= step.halved
            best.offer(x)
            ended = rows[~step.active.any(-1)]
            outcome[ended] = torch.where(
                halved[ended], int(Outcome.CONFLICTING), int(Outcome.EXHAUSTED)
            )
        best.tick(1)
        outcome[(outcome == Outcome.UNFINISHED) & (best.precision < 1)] = int(Outcome.FLIPPED)
    return replace(best.result(), outcome=outcome)
