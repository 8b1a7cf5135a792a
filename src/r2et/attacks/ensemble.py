"""A strong attack: many searches in rounds, the most damaging input of each example kept.

ERAttack alone is half blind on (Leaky)ReLU networks, whose logit has no second derivative. The
ensemble follows the slopes of smooth copies of the network, from many starts at once and towards
many goals at once: each start weighs the pairs of features by its own random numbers, so that some
starts find the pairs that do change places. Later rounds start near the best input so far. Beside
the slopes it uses differences over a distance, which see the kinks, pairs taken one by one, random
points and random moves. Its result is still only an upper bound on the P@k of the worst input.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from r2et.attacks.goals import Goal, relative, weighted_goal
from r2et.attacks.pairs import approach, differences_at, features_at_the_border, slopes_at, thinnest
from r2et.attacks.records import Attack, AttackResult, join
from r2et.attacks.searches import (
    BestSoFar,
    Outputs,
    check_slopes,
    prediction,
    projected_descent,
    ready,
    repeated,
)
from r2et.core.autograd import eval_mode
from r2et.core.inputs import packed
from r2et.core.rng import stream
from r2et.explainers import (
    Explainer,
    Gradient,
    InputExplainer,
    Quantity,
    gradient,
    logits_of,
    of_quantity,
)
from r2et.models.smoothing import softened
from r2et.perturbations import UNSAID, L2Ball, PerturbationSet, agreed, one_of

NUMBERS_AT_ONCE = 2**20
TOGETHER = 16  # random points of each example that are tried at once
HOP = 0.3  # radii from the best input so far to a new start
FRACTIONS = (0.25, 0.5, 0.75, 1.0)  # of the radius, tried along a direction

PAIRS_MEMBER, RANDOM_MEMBER = "pairs", "random points"
GRADIENT_MEMBERS = ("descent, relative", "descent, plain", PAIRS_MEMBER)

Guide = tuple[nn.Module, Explainer]


@dataclass(frozen=True, kw_only=True)
class EnsembleBudget:
    """What a round of the strong attack tries for each example; effort grows with `rounds`.

    `starts` descents of `steps` steps for each of two kinds of goal, `points` random points,
    `moves` random moves; in the first round the `pairs` nearest to changing places one by one.
    `sharpness` are those of the smooth copies that take turns as guides, for a radius of 1: in a
    smaller ball kinks are rounded as much more narrowly. Where features are many, random goals
    spread too thin: `even` of the starts follow the goal of ERAttack, the first of them from the
    clean input and later from the best so far. `itself` gives the model a turn as its own guide,
    before its copies.
    """

    rounds: int = 4
    starts: int = 32
    steps: int = 20
    points: int = 96
    moves: int = 48
    pairs: int = 12
    sharpness: tuple[float, ...] = (8.0, 4.0, 16.0)
    even: int = 0
    itself: bool = False

    def __post_init__(self) -> None:
        """Refuse an effort that is none."""
        counts = (self.rounds, self.starts, self.steps, self.points, self.moves, self.pairs)
        if min(counts) < 0 or not all(0 < rho < math.inf for rho in self.sharpness):
            raise ValueError(
                "the effort of a strong attack needs counts >= 0 and sharpness > 0, got "
                f"{counts} and {self.sharpness}."
            )
        if self.even not in range(self.starts + 1):
            raise ValueError(
                f"of {self.starts} starts at most as many can be even, got {self.even}."
            )


def strong_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    radius: float = UNSAID,
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    outputs: Outputs = prediction,
    effort: EnsembleBudget = EnsembleBudget(),  # noqa: B008 - a frozen record
    seconds: float | None = None,
    seed: int = 0,
    numbers_at_once: int = NUMBERS_AT_ONCE,
) -> Attack:
    """The ensemble. Its history is that of P@k after each round.

    Every member is judged by `explain` on the attacked model itself; what guides it need not be.
    After `seconds` no new search is begun: what was found by then comes back, and the history has
    fewer rounds than asked for. With such a limit the result depends on the machine.
    """
    within = agreed(threat, radius)

    def attack(model: nn.Module, x: Tensor, y: Tensor, until: float) -> AttackResult:
        best = BestSoFar(model, explain, x, y, k, within, outputs)
        sharpness = [rho / (within.longest_move(one_of(x)) or 1.0) for rho in effort.sharpness]
        guides = {
            scaled: _guides(model, explain, x, sharpness, scaled, itself=effort.itself)
            for scaled in (True, False)
        }
        for number in range(effort.rounds):
            searches = _searches(best, x, guides, number, effort, seed)
            for name, search in searches.items():
                if time.monotonic() < until:
                    best.member = name
                    search()
                best.reached.setdefault(name, torch.ones_like(best.precision))
            best.tick(1)
            if time.monotonic() >= until:
                break
        return best.result()

    def timed(model: nn.Module, x: Tensor, y: Tensor) -> AttackResult:
        numbers = max(effort.starts, 1) * max(one_of(packed(x, model)).numel(), 1)
        together = max(1, numbers_at_once // numbers)
        model, x = ready(model, x, y, together)
        pieces = list(zip(x.split(together), y.split(together), strict=True))
        share = math.inf if seconds is None else seconds / len(pieces)
        begun, found = time.monotonic(), list[AttackResult]()
        with eval_mode(model):
            for number, (part, labels) in enumerate(pieces, start=1):
                found.append(attack(model, part, labels, begun + share * number))
        steps = max((each.steps for each in found), key=len)
        return join([_as_long_as(steps, each) for each in found])

    return timed


def _as_long_as(steps: Tensor, found: AttackResult) -> AttackResult:
    """The result of a batch that had the time for fewer rounds, as if the others found nothing."""
    missing = len(steps) - len(found.steps)
    return replace(
        found,
        history=torch.cat([found.history, found.history[-1:].expand(missing, -1)]),
        steps=steps,
        first_flip=torch.where(found.flipped, found.first_flip, steps[-1] + 1),
    )


def _searches(
    best: BestSoFar,
    x: Tensor,
    guides: Mapping[bool, Sequence[Guide]],
    number: int,
    effort: EnsembleBudget,
    seed: int,
) -> dict[str, Callable[[], None]]:
    """The members of one round by name, in their order."""
    turn = {scaled: each[number % len(each)] for scaled, each in guides.items()}
    generator = partial(stream, seed, f"round {number}")
    searches: dict[str, Callable[[], None]] = {
        RANDOM_MEMBER: partial(_random_points, best, x, effort.points, generator("points"))
    }
    if number == 0 and effort.pairs:
        searches[PAIRS_MEMBER] = partial(_single_pairs, best, x, turn[False], effort.pairs)
        searches["differences"] = partial(
            _differences, best, x, effort.pairs, generator("differences")
        )
    if effort.starts and effort.steps:
        for scaled, guide in turn.items():
            name = f"descent, {'relative' if scaled else 'plain'}"
            searches[name] = partial(
                _descend, best, x, guide, scaled, number, effort, generator(name)
            )
    searches["random moves"] = partial(_random_moves, best, x, effort.moves, generator("moves"))
    return searches


def _guides(
    model: nn.Module,
    explain: Explainer,
    x: Tensor,
    sharpness: Sequence[float],
    scaled: bool,
    *,
    itself: bool = False,
) -> list[Guide]:
    """The networks and explanations whose slopes are followed, in turn.

    Of a network with kinks its smooth copies. A goal on scaled explanations follows that of the
    quantity explained; one on plain gaps that of the margin and, with three or more classes, the
    logit: a probability's gaps shrink wherever the model is sure, and no feature has moved. An
    explanation that is a mean of gradients is followed in turn by the plain gradient, which costs
    one of its many: what misleads the one may mislead the other.
    """
    smooth = [soft for rho in sharpness if (soft := softened(model, rho)) is not None]
    smooth = [model, *smooth] if itself or not smooth else smooth
    with torch.no_grad():
        several = logits_of(model, x[:1]).shape[-1] > 2
    unscaled: list[Quantity] = ["margin", "logit"] if several else ["margin"]
    looks = [explain] if scaled else [of_quantity(explain, each) for each in unscaled]
    looks = [each for own in looks for each in (own, *_plain(own))]
    turns = math.lcm(len(smooth), len(looks))
    return [(smooth[turn % len(smooth)], looks[turn % len(looks)]) for turn in range(turns)]


def _plain(explain: Explainer) -> tuple[Explainer, ...]:
    """The gradient with the choices of a dearer explainer of this package, nothing for others."""
    if isinstance(explain, InputExplainer) and not isinstance(explain, Gradient):
        return (explain.plain,)
    return ()


def _descend(
    best: BestSoFar,
    x: Tensor,
    guide: Guide,
    scaled: bool,
    number: int,
    effort: EnsembleBudget,
    generator: torch.Generator,
) -> None:
    """Lower one random goal from each start along a guide's slope, all of them as one batch.

    Steps shrink; every second input is offered to the judge.
    """
    copies, steps = effort.starts, effort.steps
    network, look = guide
    begin = _starts(best, x, copies, effort.even, number, generator)
    goal = _random_goals(best, copies, effort.even, scaled, generator)
    labels = best.y.repeat(copies)
    first = 1.0 if number % 2 == 0 else HOP

    def watch(step: int, found: Tensor) -> None:
        if step % 2 == 0 or step == steps:
            best.offer_all(found.view(copies, *x.shape))

    projected_descent(
        lambda points: goal(look(network, points, labels)),
        repeated(x, copies),
        start=begin,
        threat=best.threat,
        lengths=[best.threat.radius * shrinking(step / steps, first) for step in range(steps)],
        allowed=best.keeps,
        watch=watch,
        blind=lambda: check_slopes(look, network, x, best.y),
    )


def _starts(
    best: BestSoFar, x: Tensor, copies: int, even: int, number: int, generator: torch.Generator
) -> Tensor:
    """Where descents begin, at random or near the best so far, classes kept: (S x B, ...)."""
    share, middle = (1.0, x) if number == 0 else (HOP, best.x)
    moves = best.threat.offsets(one_of(x), copies, generator, share=share, surface=True)
    moves[: min(even, 1)] = 0
    centre = repeated(x, copies)
    begin = best.threat.relax((middle + moves[:, None]).flatten(0, 1), centre)
    kept = best.keeps(begin).view(-1, *(1,) * (x.ndim - 1))
    return torch.where(kept, begin, repeated(middle, copies))


def _random_goals(
    best: BestSoFar, copies: int, even: int, scaled: bool, generator: torch.Generator
) -> Goal:
    """A goal for each start that weighs the features at random and leaves out half of them.

    The first `even` of them weigh all features alike. The weights are shared by all examples: one
    meets the same goals alone as in company.
    """
    n = best.before.shape[-1]
    drawn, counted = torch.rand((2, copies, n), generator=generator, dtype=torch.float64)
    weights = torch.where(counted < 0.5, -drawn.clamp_min(1e-12).log(), 0.0)
    weights[:even] = 1
    weights = weights.to(best.before).repeat_interleave(len(best.y), 0)
    goal = weighted_goal(best.before.repeat(copies, 1), best.k, weights)
    return relative(goal) if scaled else goal


def shrinking(progress: float, first: float, last: float = 0.01) -> float:
    """A step length, in radii, falling from `first` to `last` along half a cosine."""
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * progress))


def _single_pairs(best: BestSoFar, x: Tensor, guide: Guide, pairs: int) -> None:
    """Newton's method on the pairs nearest to changing places, as the guide sees them."""
    network, look = guide
    with torch.no_grad():
        seen = look(network, x, best.y)
    top, rest = features_at_the_border(best.before, best.k)
    slopes = slopes_at(look, network, x, best.y, torch.cat([top, rest], dim=1))
    aimed, _ = thinnest(seen, top, rest, slopes, best.threat, pairs)
    approach(network, look, x, best.y, aimed, best.threat, best.offer_all)


def _differences(best: BestSoFar, x: Tensor, pairs: int, generator: torch.Generator) -> None:
    """Straight moves that close single gaps, as differences over half the radius see them."""
    if not len(x) or not best.threat.radius:
        return
    top, rest = features_at_the_border(best.before, best.k)
    features = torch.cat([top, rest], dim=1)
    slopes = differences_at(best, x, features, best.threat.radius / 2, generator)
    _, moves = thinnest(best.before, top, rest, slopes, best.threat, pairs)
    ways = best.threat.steepest(moves.flatten(0, 1)).view_as(moves).transpose(0, 1)
    for fraction in FRACTIONS:
        best.offer_all(x + fraction * best.threat.radius * ways)


def _random_points(best: BestSoFar, x: Tensor, points: int, generator: torch.Generator) -> None:
    """Points that cost the whole radius, and points within it, no slope used."""
    half = points // 2
    offsets = torch.cat(
        [
            best.threat.offsets(one_of(x), half, generator, surface=True),
            best.threat.offsets(one_of(x), points - half, generator),
        ]
    )
    for some in offsets.split(TOGETHER):
        best.offer_all(x + some[:, None])


def _random_moves(best: BestSoFar, x: Tensor, moves: int, generator: torch.Generator) -> None:
    """Random moves from the best input so far, shorter and shorter."""
    for number in range(moves):
        share = shrinking(number / moves, first=0.5, last=0.02)
        best.offer(best.x + best.threat.offsets(one_of(x), 1, generator, share=share, surface=True))
