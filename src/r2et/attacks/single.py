"""The attacks of the papers, each one goal followed by projected descent."""

from collections.abc import Callable
from itertools import repeat

import torch
from torch import Tensor, nn

from r2et.attacks.goals import Goal, distance_goal, ranking_goal
from r2et.attacks.records import Attack, Attacked, Budget, join
from r2et.attacks.searches import (
    BestSoFar,
    keeps,
    margin_loss,
    projected_descent,
)
from r2et.attacks.threats import Ball, Threat, one_of
from r2et.derivatives import frozen_statistics
from r2et.explainers import Explainer, check_inputs, gradient
from r2et.randomness import stream

ROWS_AT_ONCE = 16_384


def in_batches(attack: Attack, rows_at_once: int) -> Attack:
    """The same attack on at most `rows_at_once` examples at a time, the model left as it was."""

    def batched(model: nn.Module, x: Tensor, y: Tensor) -> Attacked:
        check_inputs(model, x, y)
        with frozen_statistics(model):
            pieces = zip(x.detach().split(rows_at_once), y.split(rows_at_once), strict=True)
            return join([attack(model, part, labels) for part, labels in pieces])

    return batched


def er_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    budget: Budget = Budget(),  # noqa: B008 - a frozen record
    threat: Threat = Ball(),  # noqa: B008 - a frozen record
    record_every: int = 1,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Attack:
    """ERAttack: lowers sum h(x', i, j) over the clean top-k pairs, step by step from x."""

    def goal(before: Tensor) -> Goal:
        return ranking_goal(before, k)

    return _descent(goal, k, explain, budget, threat, record_every, rows_at_once, seed=None)


def mse_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    budget: Budget = Budget(),  # noqa: B008 - a frozen record
    threat: Threat = Ball(),  # noqa: B008 - a frozen record
    record_every: int = 1,
    rows_at_once: int = ROWS_AT_ONCE,
    seed: int = 0,
) -> Attack:
    """MSE attack: raises ||I(x) - I(x')||^2, its first step random: at x its slope is zero."""
    return _descent(
        distance_goal, k, explain, budget, threat, record_every, rows_at_once, seed=seed
    )


def _descent(
    goal: Callable[[Tensor], Goal],
    k: int,
    explain: Explainer,
    budget: Budget,
    threat: Threat,
    record_every: int,
    rows_at_once: int,
    seed: int | None,
) -> Attack:
    """One goal lowered along the slope from x; with a `seed` the first step goes anywhere."""
    within = threat.at(budget.radius)

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Attacked:
        best = BestSoFar(model, explain, x, y, k, within)
        lower = goal(best.before)
        start, step = x, 0
        if seed is not None and budget.steps:
            drawn = stream(seed, "kick")
            kick = threat.at(budget.step).offsets(one_of(x), 1, drawn, surface=True)
            start, step = within.relax(x + kick, x), 1

        def loss(point: Tensor) -> Tensor:
            nonlocal step
            saliency = explain(model, point, y)
            if step % record_every == 0:
                best.offer(point.detach(), saliency.detach())
                best.tick(step - best.clock)
            step += 1
            return lower(saliency)

        last = projected_descent(
            loss,
            x,
            start=start,
            threat=within,
            lengths=repeat(budget.step, budget.steps - step),
        )
        best.offer(last)
        best.tick(budget.steps - best.clock)
        return best.result()

    return in_batches(attack, rows_at_once)


def flip_attack(
    *,
    radius: float,
    steps: int = 20,
    threat: Threat = Ball(),  # noqa: B008 - a frozen record
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Whether the prediction y itself can be changed within `radius`: (B,) booleans.

    Not an attack on the explanation: it tells how near the decisions are to flipping.
    """
    within = threat.at(radius)

    def flippable(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        check_inputs(model, x, y)
        flipped = torch.zeros_like(y, dtype=torch.bool)

        def watch(step: int, found: Tensor) -> None:
            flipped.logical_or_(~keeps(model, within.project(found, x.detach()), y))

        with frozen_statistics(model):
            projected_descent(
                margin_loss(model, y),
                x.detach(),
                start=x.detach(),
                threat=within,
                lengths=repeat(radius / 4, steps),
                watch=watch,
            )
        return flipped

    return flippable
