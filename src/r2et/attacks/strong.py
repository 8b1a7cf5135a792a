"""A strong attack: many weaker ones, the most damaging input of each example kept.

ERAttack alone is half blind on (Leaky)ReLU networks, whose logit has no second derivative. The
ensemble also descends on smooth copies of the network, explains the margin instead of the
probability, restarts from random points, and tries random points and random moves without any
slope. Its result is still only an upper bound on the P@k of the worst input.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from r2et.attacks.goals import Goal, closest_goal, ranking_goal, relative, threshold_goal
from r2et.attacks.records import Attack, Attacked
from r2et.attacks.searches import BestSoFar, projected_descent, repeated
from r2et.attacks.single import in_batches
from r2et.attacks.threats import Ball, Threat, one_of
from r2et.explainers import Explainer, Quantity, gradient
from r2et.models.smoothing import softened
from r2et.randomness import stream

TOGETHER = 10  # random points of each example that are tried at once


def strong_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    radius: float = 1.0,
    threat: Threat = Ball(),  # noqa: B008 - a frozen record
    restarts: int = 2,
    steps: int = 40,
    sharpness: Sequence[float] = (2.0, 8.0),
    points: int = 400,
    refinements: int = 200,
    seed: int = 0,
    rows_at_once: int = 4096,
) -> Attack:
    """The ensemble; effort grows with `restarts`, `steps`, `points` and `refinements`.

    Every member is judged by `explain` on the attacked model itself; surrogates only guide it.
    """
    within = threat.at(radius)

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Attacked:
        best = BestSoFar(model, explain, x, y, k, within)
        _random_points(best, x, points, seed)
        best.tick(1)
        for guide, look in _guides(model, explain, sharpness):
            starts = _starts(best, x, restarts, seed)
            _descend(best, guide, look, x, starts, steps)
            best.tick(1)
        _random_moves(best, x, refinements, seed)
        best.tick(1)
        return best.result()

    return in_batches(attack, rows_at_once)


def _goals(before: Tensor, k: int) -> list[Goal]:
    """What the descents lower, each on its own copies of the examples."""
    return [
        relative(ranking_goal(before, k)),
        relative(closest_goal(before, k)),
        threshold_goal(before, k, temperature=0.3),
    ]


def _guides(
    model: nn.Module, explain: Explainer, sharpness: Sequence[float]
) -> Iterator[tuple[nn.Module, Explainer]]:
    """The networks and explanations whose slopes are followed."""
    yield model, explain
    surrogates = [soft for rho in sharpness if (soft := softened(model, rho)) is not None]
    for guide in surrogates or [model]:
        yield guide, _of(explain, "margin")
    for guide in surrogates:
        yield guide, explain


def _of(explain: Explainer, quantity: Quantity) -> Explainer:
    """The same explainer of another quantity, if it offers the choice."""
    if "of" in inspect.signature(explain).parameters:
        return partial(explain, of=quantity)  # type: ignore[call-arg]
    return explain


def _starts(best: BestSoFar, x: Tensor, restarts: int, seed: int) -> Tensor:
    """The best input so far and random points of the ball that keep the prediction: (S, B, ...)."""
    starts = [best.x]
    for offset in best.threat.offsets(one_of(x), restarts, stream(seed, "restarts")):
        start = best.threat.project(x + offset, x)
        kept = best.keeps(start).view(-1, *(1,) * (x.ndim - 1))
        starts.append(torch.where(kept, start, x))
    return torch.stack(starts)


def _descend(
    best: BestSoFar,
    guide: nn.Module,
    look: Explainer,
    x: Tensor,
    starts: Tensor,
    steps: int,
) -> None:
    """Lower every goal from every start along a guide's slope, all of them as one batch.

    Steps shrink; every second input is offered to the judge.
    """
    goals = _goals(best.before.repeat(len(starts), 1), best.k)
    copies = len(goals) * len(starts)
    labels = best.y.repeat(copies)

    def loss(points: Tensor) -> Tensor:
        saliency = look(guide, points, labels).tensor_split(len(goals))
        return torch.cat([goal(part) for goal, part in zip(goals, saliency, strict=True)])

    def watch(step: int, found: Tensor) -> None:
        if step % 2 == 0 or step == steps:
            best.offer_all(found.view(copies, *x.shape))

    projected_descent(
        loss,
        repeated(x, copies),
        start=repeated(starts.flatten(0, 1), len(goals)),
        threat=best.threat,
        lengths=[best.threat.radius * shrinking(step / steps) for step in range(steps)],
        allowed=best.keeps,
        watch=watch,
    )


def shrinking(progress: float, first: float = 0.25, last: float = 0.01) -> float:
    """A step length, in radii, falling from `first` to `last` along half a cosine."""
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * progress))


def _random_points(best: BestSoFar, x: Tensor, points: int, seed: int) -> None:
    """Points on the surface of the ball and within it, no slope used."""
    half = points // 2
    generator = stream(seed, "points")
    offsets = torch.cat(
        [
            best.threat.offsets(one_of(x), half, generator, surface=True),
            best.threat.offsets(one_of(x), points - half, generator),
        ]
    )
    for some in offsets.split(TOGETHER):
        best.offer_all(x + some[:, None])


def _random_moves(best: BestSoFar, x: Tensor, moves: int, seed: int) -> None:
    """Random moves from the best input so far, shorter and shorter."""
    generator = stream(seed, "moves")
    for number in range(moves):
        reach = shrinking(number / moves, first=0.5, last=0.02)
        best.offer(best.x + best.threat.offsets(one_of(x), 1, generator, reach=reach, surface=True))
