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

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from r2et.attacks._socp import min_norm_weights, times
from r2et.attacks.gaps import Gaps, Linearised, Region, Scale
from r2et.attacks.pgd import in_batches
from r2et.attacks.records import AttackResult
from r2et.attacks.searches import BestSoFar, Outputs, prediction
from r2et.explainers import Explainer, gradient
from r2et.perturbations import UNSAID, L2Ball, PerturbationSet, agreed

PAIRS = 64
DETOURS = 4  # times that a step is sought again without the inputs that the threat holds back


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
class MooAttacked(AttackResult):
    """Attacked inputs, and how the attack on each of them ended."""

    outcome: Tensor
    """One `Outcome` for each example: (B,)."""


MooAttack = Callable[[nn.Module, Tensor, Tensor], MooAttacked]


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
    reach: Tensor
    """Delta: (b,)."""
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
    *,
    k: int,
    explain: Explainer = gradient,
    radius: float = UNSAID,
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    region: Region = Region(),  # noqa: B008 - a frozen record
    iterations: int = 30,
    pairs: int = PAIRS,
    scale: Scale = "relative",
    guide: float | None = 8.0,
    outputs: Outputs = prediction,
    rows_at_once: int = 1024,
    watch: Callable[[Iteration], None] = ignore,
) -> MooAttack:
    """The MOO attack, Algorithm 2: up to the first displaced feature, or a failure to find one.

    The objectives are the `pairs` smallest clean gaps. Nobody aims at another pair, and failure
    speaks of these only. By `scale` they are gaps of the explanation divided by its mean score
    ("relative", so that shrinking all scores does not help) or as it is ("plain"). The theory needs
    smooth gaps: those of a (Leaky)ReLU network are taken from a copy with softplus of sharpness
    `guide` (None: from itself). Probabilities and success are always the network's own. A step that
    changes a class of the `outputs` is refused like a bad one. Memory grows with
    rows_at_once * pairs * d. `watch` is shown every iteration.
    """
    within = agreed(threat, radius)

    def start(x: Tensor) -> Advance:
        deltas = torch.full((len(x),), region.reach, dtype=torch.float64, device=x.device)

        def advance(number: int, goals: Gaps, rows: Tensor, x: Tensor, active: Tensor) -> _Step:
            reach = deltas[rows]
            gaps, linear = goals.linearised(x, region)
            left, halved, moved = _tried(linear, goals, gaps, active, reach, region, within, x)
            promised = linear.promised(goals.way(x, moved))
            targets = gaps - linear.level[:, None]
            actual = region.tolerance - goals.merits(moved, targets, region)
            enough = (promised > 0) & (actual > region.eta * promised)
            accepted = (enough | ~left).all(-1) & left.any(-1) & goals.kept(moved)
            deltas[rows] = torch.where(accepted, reach, region.gamma * reach)
            watch(
                Iteration(
                    number=number,
                    rows=rows,
                    x=x,
                    gaps=gaps,
                    linear=linear,
                    reach=reach,
                    active=left,
                    moved=moved,
                    promised=promised,
                    actual=actual,
                    accepted=accepted,
                )
            )
            return _Step(moved, accepted, left, halved)

        return advance

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> tuple[AttackResult, Tensor]:
        best = BestSoFar(model, explain, x, y, k, within, outputs)
        return _pursued(best, Gaps.around(best, pairs, scale, guide), start(x), iterations)

    return _with_outcome(attack, rows_at_once)


def _tried(
    linear: Linearised,
    goals: Gaps,
    gaps: Tensor,
    active: Tensor,
    reach: Tensor,
    region: Region,
    within: PerturbationSet,
    x: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Objectives (B, m) left, where some were set aside (B,), and the inputs to try: like x.

    Where the threat holds single inputs back, as bounds do, the step is sought again without them.
    """
    active, moved, halved = active.clone(), x.clone(), torch.zeros_like(active[:, 0])
    free = torch.ones_like(linear.away, dtype=torch.bool)
    rows = torch.arange(len(x), device=x.device)
    for _ in range(1 + DETOURS):
        part, start = linear.of(rows).only(free[rows]), x[rows]
        left, step, apart = _settled(part, gaps[rows], active[rows], reach[rows], region)
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
    linear: Linearised, gaps: Tensor, active: Tensor, reach: Tensor, region: Region
) -> tuple[Tensor, Tensor, Tensor]:
    """Objectives (B, m) left, their common step (B, d), and where some were set aside: (B,).

    Spent objectives are dropped; where the rest does not fall together, its farther half is.
    """
    active, halved = active.clone(), torch.zeros_like(active[:, 0])
    step = torch.zeros_like(linear.away)
    left = active.any(-1).nonzero()[:, 0]
    while len(left):
        part, now, delta = linear.of(left), active[left], reach[left]
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


def armijo_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    radius: float = UNSAID,
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    iterations: int = 30,
    reach: float = 0.5,
    share: float = 1e-4,
    halvings: int = 12,
    criticality: float = 0.05,
    pairs: int = PAIRS,
    scale: Scale = "relative",
    guide: float | None = 8.0,
    outputs: Outputs = prediction,
    rows_at_once: int = 1024,
) -> MooAttack:
    """The unconstrained form of Q: a direction in which all gaps fall, and Armijo's line search.

    The direction is minus the shortest blend of the gaps' gradients. Along it the step, at first of
    `reach` radii, is halved up to `halvings` times until every gap falls by `share` of what its
    gradient promises and all classes of the `outputs` are kept. The threat keeps it admissible, and
    must leave `criticality` of the promise. Where the blend is shorter than that share of the
    longest gradient, or no step will do, the farther half of the gaps is set aside; with the last
    one the attack ends. The other settings are those of `moo_attack`.
    """
    if not (reach > 0 and 0 < share < 1 and halvings >= 0 and 0 <= criticality < 1):
        raise ValueError(
            "a line search needs reach > 0, share between 0 and 1, halvings >= 0 and criticality "
            f">= 0 and < 1, got {reach}, {share}, {halvings}, {criticality}."
        )
    within = agreed(threat, radius)

    def advance(number: int, goals: Gaps, rows: Tensor, x: Tensor, active: Tensor) -> _Step:
        gaps, scores = goals.values_and_slopes(x)
        slopes = goals.paired(scores)
        direction, sound = _common_descent(slopes, active, criticality)
        found, done = x.clone(), ~sound
        for halving in range(halvings + 1):
            open_rows = (~done).nonzero()[:, 0]
            if not len(open_rows):
                break
            here, at = goals.of(open_rows), x[open_rows]
            move = reach / 2**halving * direction[open_rows]
            moved = within.relax(at + within.radius * move.to(x).view_as(at), here.centre)
            fall = -times(slopes[open_rows], here.way(at, moved))
            enough = (fall > -criticality * times(slopes[open_rows], move)) & (fall > 0)
            enough = enough & (here.values(moved) <= gaps[open_rows] - share * fall)
            good = (enough | ~active[open_rows]).all(-1) & here.kept(moved)
            found[open_rows[good]], done[open_rows[good]] = moved[good], True
        accepted = done & sound
        nearer = _nearer_half(gaps, slopes, goals.way(goals.centre, x), active)
        left = torch.where(accepted[:, None], active, nearer)
        return _Step(found, accepted, left, ~accepted & left.any(-1))

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> tuple[AttackResult, Tensor]:
        best = BestSoFar(model, explain, x, y, k, within, outputs)
        return _pursued(best, Gaps.around(best, pairs, scale, guide), advance, iterations)

    return _with_outcome(attack, rows_at_once)


def _common_descent(slopes: Tensor, active: Tensor, criticality: float) -> tuple[Tensor, Tensor]:
    """Directions (B, d) of length one in which all active gaps fall, and who has one: (B,)."""
    # A gradient given twice changes no blend: the first active one stands in for the others.
    first = active.int().argmax(-1)
    stand_in = slopes[torch.arange(len(slopes)), first][:, None]
    slopes = slopes.where(active[..., None], stand_in)
    blend = (min_norm_weights(slopes)[..., None] * slopes).sum(1)
    length = blend.norm(dim=-1)
    sound = length > criticality * slopes.norm(dim=-1).amax(-1)
    return -blend / torch.where(length > 0, length, 1.0)[:, None], sound


def _pursued(
    best: BestSoFar, goals: Gaps, advance: Advance, iterations: int
) -> tuple[AttackResult, Tensor]:
    """The passes of an attack, each example until it is decided; and the outcomes: (B,)."""
    x = best.centre.clone()
    active = torch.ones_like(goals.above, dtype=torch.bool)
    halved = torch.zeros_like(best.attacked)
    outcome = torch.where(best.attacked, int(Outcome.UNFINISHED), int(Outcome.SKIPPED))
    best.offer(x)
    for number in range(1, iterations + 1):
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
    return best.result(), outcome


def _with_outcome(
    attack: Callable[[nn.Module, Tensor, Tensor], tuple[AttackResult, Tensor]], rows_at_once: int
) -> MooAttack:
    """The attack on at most `rows_at_once` examples at a time, outcomes and all."""

    def whole(model: nn.Module, x: Tensor, y: Tensor) -> MooAttacked:
        outcomes = []

        def part(model: nn.Module, x: Tensor, y: Tensor) -> AttackResult:
            found, outcome = attack(model, x, y)
            outcomes.append(outcome)
            return found

        found = in_batches(part, rows_at_once)(model, x, y)
        return MooAttacked(**vars(found), outcome=torch.cat(outcomes))

    return whole
