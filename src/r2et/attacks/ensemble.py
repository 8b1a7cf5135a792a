"""A strong attack: many searches in rounds, the most damaging input of each example kept.

ERAttack alone is half blind on (Leaky)ReLU networks, whose logit has no second derivative. The
ensemble follows the slopes of smooth copies of the network, from many starts at once and towards
many goals at once: each start weighs the pairs of features by its own random numbers, so that some
starts find the pairs that do change places. Later rounds start near the best input so far. Beside
the slopes it uses differences over a distance, which see the kinks, pairs taken one by one, random
points and random moves. Rows of linear layers and (Leaky)ReLUs are searched cell by cell, too. Its
result is still only an upper bound on the P@k of the worst input.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from r2et.attacks.cells import CELLS_MEMBER, affordable, by_cells, walks_cells
from r2et.attacks.pairs import approach_nearest, features_at_the_border, thinnest
from r2et.attacks.search import (
    AttackProblem,
    AttackResult,
    BestSoFar,
    Goal,
    check_slopes,
    projected_descent,
    relative,
    weighted_goal,
)
from r2et.core.geometry import by_example, one_of, repeated
from r2et.core.rng import stream
from r2et.explainers import (
    Explainer,
    Gradient,
    InputExplainer,
    Quantity,
    logits_of,
    of_quantity,
)
from r2et.models.smoothing import softened

NUMBERS_AT_ONCE = 2**20
DIRECTIONS = 64  # along which differences are taken
TOGETHER = 16  # random points of each example that are tried at once
HOP = 0.3  # radii from the best input so far to a new start
FRACTIONS = (0.25, 0.5, 0.75, 1.0)  # of the radius, tried along a direction

CELLS = 480
"""How many cells of an example are looked at by an attack of which nothing else is asked."""
PAIRS_MEMBER, RANDOM_MEMBER = "pairs", "random points"
GRADIENT_MEMBERS = ("descent, relative", "descent, plain", PAIRS_MEMBER)

Guide = tuple[nn.Module, Explainer]


@dataclass(frozen=True, kw_only=True)
class EnsembleBudget:
    """What a round of the strong attack tries for each example; it grows with `rounds`.

    `starts` descents of `steps` steps for each of two kinds of goal, `points` random points,
    `moves` random moves; in the first round the `pairs` nearest to changing places one by one.
    `sharpness` are those of the smooth copies that take turns as guides, for a radius of 1: in a
    smaller ball kinks are rounded as much more narrowly. Where features are many, random goals
    spread too thin: `even` of the starts follow the goal of ERAttack, the first of them from the
    clean input and later from the best so far. `itself` gives the model a turn as its own guide,
    before its copies. After the first round a row of linear layers and (Leaky)ReLUs is searched
    cell by cell: so many `cells` are looked at, fewer of larger networks, whose cells cost more.
    `attack` and audits look at `CELLS` unless told otherwise. Where methods are compared none are,
    as other networks have no such walk.
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
    cells: int = 0

    def __post_init__(self) -> None:
        """Refuse a budget that is none."""
        searches = (self.starts, self.steps, self.points, self.moves, self.pairs, self.cells)
        counts = (self.rounds, *searches)
        if min(counts) < 0 or not all(0 < rho < math.inf for rho in self.sharpness):
            raise ValueError(
                "the budget of a strong attack needs counts >= 0 and sharpness > 0, got "
                f"{counts} and {self.sharpness}."
            )
        if self.even not in range(self.starts + 1):
            raise ValueError(
                f"of {self.starts} starts at most as many can be even, got {self.even}."
            )

    def rows_at_once(self, numbers: int) -> int:
        """How many examples of so many numbers are attacked at once."""
        return max(1, NUMBERS_AT_ONCE // (max(self.starts, 1) * max(numbers, 1)))


def strong_attack(
    model: nn.Module, x: Tensor, y: Tensor, problem: AttackProblem, budget: EnsembleBudget
) -> AttackResult:
    """The ensemble. Its history is that of P@k after each round.

    Every member is judged by the explainer on the attacked model itself; what guides it need not
    be. After `problem.until` no new search is begun: what was found by then comes back, and the
    history has fewer rounds than asked for.
    """
    best = BestSoFar(model, x, y, problem)
    length = problem.perturbation.longest_move(one_of(x)) or 1.0
    sharpness = [rho / length for rho in budget.sharpness]
    guides = {
        scaled: _guides(model, problem.explainer, x, sharpness, scaled, itself=budget.itself)
        for scaled in (True, False)
    }
    for number in range(budget.rounds):
        searches = _searches(best, x, guides, number, budget, problem.seed)
        for name, search in searches.items():
            if time.monotonic() < problem.until:
                best.member = name
                search()
            best.reached.setdefault(name, torch.ones_like(best.precision))
        best.tick(1)
        if time.monotonic() >= problem.until:
            break
    return best.result()


def _searches(
    best: BestSoFar,
    x: Tensor,
    guides: Mapping[bool, Sequence[Guide]],
    number: int,
    budget: EnsembleBudget,
    seed: int,
) -> dict[str, Callable[[], None]]:
    """The members of one round by name, in their order."""
    turn = {scaled: each[number % len(each)] for scaled, each in guides.items()}
    generator = partial(stream, seed, f"round {number}")
    searches: dict[str, Callable[[], None]] = {
        RANDOM_MEMBER: partial(_random_points, best, x, budget.points, generator("points"))
    }
    if number == 0 and budget.pairs:
        searches[PAIRS_MEMBER] = partial(_single_pairs, best, x, turn[False], budget.pairs)
        searches["differences"] = partial(
            _differences, best, x, budget.pairs, generator("differences")
        )
    if budget.starts and budget.steps:
        for scaled, guide in turn.items():
            name = f"descent, {'relative' if scaled else 'plain'}"
            searches[name] = partial(
                _descend, best, x, guide, scaled, number, budget, generator(name)
            )
    searches["random moves"] = partial(_random_moves, best, x, budget.moves, generator("moves"))
    ball = best.perturbation
    if number == 0 and budget.cells and walks_cells(best.model, x, best.explain, ball):
        searches[CELLS_MEMBER] = partial(_cells, best, budget.cells)
    return searches


def _cells(best: BestSoFar, nodes: int) -> None:
    """The search over cells, from the best so far."""
    if len(best.y) and best.perturbation.radius:
        many = affordable(best.model, nodes)
        best.offer(by_cells(best, best.perturbation.radius, best.x, "worst", many)[0])


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
    explainers = [explain] if scaled else [of_quantity(explain, each) for each in unscaled]
    explainers = [each for own in explainers for each in (own, *_plain(own))]
    turns = math.lcm(len(smooth), len(explainers))
    return [
        (smooth[turn % len(smooth)], explainers[turn % len(explainers)]) for turn in range(turns)
    ]


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
    budget: EnsembleBudget,
    generator: torch.Generator,
) -> None:
    """Lower one random goal from each start along a guide's slope, all of them as one batch.

    Steps shrink; every second input is offered to the judge.
    """
    copies, steps = budget.starts, budget.steps
    network, explain = guide
    begin = _starts(best, x, copies, budget.even, number, generator)
    goal = _random_goals(best, copies, budget.even, scaled, generator)
    labels = best.y.repeat(copies)
    first = 1.0 if number % 2 == 0 else HOP

    def watch(step: int, found: Tensor) -> None:
        if step % 2 == 0 or step == steps:
            best.offer_all(found.view(copies, *x.shape))

    projected_descent(
        lambda points: goal(explain(network, points, labels)),
        repeated(x, copies),
        start=begin,
        perturbation=best.perturbation,
        lengths=[
            best.perturbation.radius * shrinking(step / steps, first) for step in range(steps)
        ],
        allowed=best.keeps,
        watch=watch,
        blind=lambda: check_slopes(explain, network, x, best.y),
    )


def _starts(
    best: BestSoFar, x: Tensor, copies: int, even: int, number: int, generator: torch.Generator
) -> Tensor:
    """Where descents begin, at random or near the best so far, classes kept: (S x B, ...)."""
    share, middle = (1.0, x) if number == 0 else (HOP, best.x)
    moves = best.perturbation.offsets(one_of(x), copies, generator, share=share, surface=True)
    moves[: min(even, 1)] = 0
    centre = repeated(x, copies)
    begin = best.perturbation.relax((middle + moves[:, None]).flatten(0, 1), centre)
    kept = by_example(best.keeps(begin), x)
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
    network, explain = guide
    approach_nearest(
        network, explain, x, best.y, best.before, best.k, best.perturbation, pairs, best.offer_all
    )


def _differences(best: BestSoFar, x: Tensor, pairs: int, generator: torch.Generator) -> None:
    """Straight moves that close single gaps, as differences over half the radius see them."""
    if not len(x) or not best.perturbation.radius:
        return
    top, rest = features_at_the_border(best.before, best.k)
    features = torch.cat([top, rest], dim=1)
    slopes = _differences_at(best, x, features, best.perturbation.radius / 2, generator)
    _, moves = thinnest(best.before, top, rest, slopes, best.perturbation, pairs)
    ways = best.perturbation.steepest(moves.flatten(0, 1)).view_as(moves).transpose(0, 1)
    for fraction in FRACTIONS:
        best.offer_all(x + fraction * best.perturbation.radius * ways)


def _differences_at(
    best: BestSoFar, x: Tensor, features: Tensor, distance: float, generator: torch.Generator
) -> Tensor:
    """Slopes of some features' scores over a distance, features (B, F): (B, F, ...).

    sum_u (I(x + c u) - I(x - c u)) / 2c u over orthonormal moves u, c = `distance`: a network of
    (Leaky)ReLUs, flat to a derivative, shows its kinks to such a step. Of inputs with more than
    DIRECTIONS numbers only that many directions are seen. The places tried are offered, too.
    """
    d = one_of(x).numel()
    drawn = torch.randn((d, min(d, DIRECTIONS)), generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q.T.to(x)
    slopes = x.new_zeros(*features.shape, d)
    for direction in basis:
        move = distance * direction.view(x.shape[1:])
        places = best.perturbation.relax(torch.cat([x + move, x - move]), repeated(x, 2))
        with torch.no_grad():
            scores = best.explain(best.model, places, best.y.repeat(2))
        best.offer_all(places.unflatten(0, (2, len(x))), scores.unflatten(0, (2, len(x))))
        up, down = (part.gather(1, features) for part in scores.chunk(2))
        slopes += ((up - down) / (2 * distance))[..., None] * direction
    return slopes.view(*features.shape, *x.shape[1:])


def _random_points(best: BestSoFar, x: Tensor, points: int, generator: torch.Generator) -> None:
    """Points that cost the whole radius, and points within it, no slope used."""
    half = points // 2
    offsets = torch.cat(
        [
            best.perturbation.offsets(one_of(x), half, generator, surface=True),
            best.perturbation.offsets(one_of(x), points - half, generator),
        ]
    )
    for some in offsets.split(TOGETHER):
        best.offer_all(x + some[:, None])


def _random_moves(best: BestSoFar, x: Tensor, moves: int, generator: torch.Generator) -> None:
    """Random moves from the best input so far, shorter and shorter."""
    for number in range(moves):
        share = shrinking(number / moves, first=0.5, last=0.02)
        best.offer(
            best.x + best.perturbation.offsets(one_of(x), 1, generator, share=share, surface=True)
        )
