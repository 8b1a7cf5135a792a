"""The attacks of the papers, each one goal followed by projected descent."""

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor, nn

from r2et.attacks.constraint_handling import (
    Handler,
    allowance,
    check_outputs,
    handler_named,
    kept_losses,
    scale_of,
    weighted,
)
from r2et.attacks.goals import Goal, distance_goal, ranking_goal
from r2et.attacks.records import Attack, AttackResult, Budget, join
from r2et.attacks.searches import (
    BestSoFar,
    Outputs,
    check_slopes,
    keeps,
    margin_loss,
    prediction,
    projected_descent,
    ready,
)
from r2et.core.autograd import eval_mode
from r2et.core.rng import stream
from r2et.explainers import Explainer, gradient
from r2et.perturbations import UNSAID, L2Ball, PerturbationSet, agreed, one_of

ROWS_AT_ONCE = 16_384
HALVINGS = 20

Walk = Callable[[nn.Module, Tensor, Tensor], tuple[BestSoFar, Tensor]]
"""(model, x, y) -> the best input on the way, and the last one, which may have lost a class."""


def in_batches(attack: Attack, rows_at_once: int) -> Attack:
    """The same attack on at most `rows_at_once` examples at a time, the model left as it was."""

    def batched(model: nn.Module, x: Tensor, y: Tensor) -> AttackResult:
        model, x = ready(model, x, y, rows_at_once)
        with eval_mode(model):
            pieces = zip(x.split(rows_at_once), y.split(rows_at_once), strict=True)
            return join([attack(model, part, labels) for part, labels in pieces])

    return batched


def er_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    budget: Budget = Budget(),  # noqa: B008 - a frozen record
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    handler: str | Handler = "unconstrained",
    outputs: Outputs = prediction,
    record_every: int = 1,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Attack:
    """ERAttack: lowers sum h(x', i, j) over the clean top-k pairs, step by step from x.

    `handler` is, as a rule by its name in HANDLERS, what the walk does about the classes of the
    `outputs`. With any of them only an input that keeps all these classes comes back.
    """
    walk = descent(
        ranking_goal,
        k=k,
        explain=explain,
        budget=budget,
        threat=threat,
        handler=handler_named(handler),
        outputs=outputs,
        record_every=record_every,
    )
    return in_batches(_walked(walk), rows_at_once)


def _walked(walk: Walk) -> Attack:
    """The attack that a walk is: its best input, and its last."""

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> AttackResult:
        best, last = walk(model, x, y)
        return replace(best.result(), last=last)

    return attack


def mse_attack(
    *,
    k: int,
    explain: Explainer = gradient,
    budget: Budget = Budget(),  # noqa: B008 - a frozen record
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    handler: str | Handler = "unconstrained",
    outputs: Outputs = prediction,
    record_every: int = 1,
    rows_at_once: int = ROWS_AT_ONCE,
    seed: int = 0,
) -> Attack:
    """MSE attack: raises ||I(x) - I(x')||^2, its first step random: at x its slope is zero.

    `handler` and `outputs` as in `er_attack`.
    """
    walk = descent(
        lambda before, k: distance_goal(before),
        k=k,
        explain=explain,
        budget=budget,
        threat=threat,
        handler=handler_named(handler),
        outputs=outputs,
        record_every=record_every,
        seed=seed,
    )
    return in_batches(_walked(walk), rows_at_once)


def descent(
    goal: Callable[[Tensor, int], Goal],
    *,
    k: int,
    explain: Explainer,
    budget: Budget,
    threat: PerturbationSet,
    handler: Handler,
    outputs: Outputs,
    record_every: int = 1,
    seed: int | None = None,
) -> Walk:
    """A walk along the slope of a goal from x; with a `seed` its first step goes anywhere."""
    within = agreed(threat, budget.radius)

    def walk(model: nn.Module, x: Tensor, y: Tensor) -> tuple[BestSoFar, Tensor]:
        if outputs is not prediction:
            with torch.no_grad():
                check_outputs(outputs(model, x), len(x))
        best = BestSoFar(model, explain, x, y, k, within, outputs)
        lower = goal(best.before, k)
        allowed = allowance(handler, lambda points: best.keeps(within.project(points, x)))
        start, step = x, 0
        if seed is not None and budget.steps:
            drawn = stream(seed, "kick")
            kick = threat.at(budget.step).offsets(one_of(x), 1, drawn, surface=True)
            start, step = within.relax(x + kick, x), 1
            if allowed is not None:
                start = _nearer(start, x, allowed)

        def followed(point: Tensor) -> Tensor:
            nonlocal step
            saliency = explain(model, point, y)
            if step % record_every == 0:
                best.offer(point.detach(), saliency.detach())
                best.tick(step - best.clock)
            step += 1
            return lower(saliency)

        loss: Callable[[Tensor], Tensor] = followed
        if handler.weighting is not None:
            kept = kept_losses(model, x, outputs, scaled=handler.scaled)
            scale = scale_of(lower, best.before) if handler.scaled else 1.0
            loss = weighted(lambda at: [followed(at) / scale, *kept(at)], handler.weighting)
        last = projected_descent(
            loss,
            x,
            start=start,
            threat=within,
            lengths=repeat(budget.step, budget.steps - step),
            allowed=allowed,
            blind=lambda: check_slopes(explain, model, x, y),
        )
        best.offer(last)
        best.tick(budget.steps - best.clock)
        return best, within.project(last, x)

    return walk


def _nearer(start: Tensor, x: Tensor, allowed: Callable[[Tensor], Tensor]) -> Tensor:
    """A random start, halfway back to x again and again where it is not allowed, at last x."""
    for _ in range(HALVINGS):
        free = allowed(start).view(-1, *(1,) * (x.ndim - 1))
        if free.all():
            return start
        start = torch.where(free, start, torch.lerp(x, start, 0.5))
    return torch.where(free, start, x)


def flip_attack(
    *,
    radius: float = UNSAID,
    steps: int = 20,
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Whether the prediction y itself can be changed within the radius: (B,) booleans.

    Not an attack on the explanation: it tells how near the decisions are to flipping.
    """
    within = agreed(threat, radius)

    def flippable(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        model, x = ready(model, x, y, ROWS_AT_ONCE)
        flipped = torch.zeros_like(y, dtype=torch.bool)

        def watch(step: int, found: Tensor) -> None:
            flipped.logical_or_(~keeps(model, within.project(found, x), y))

        with eval_mode(model):
            projected_descent(
                margin_loss(model, y),
                x,
                start=x,
                threat=within,
                lengths=repeat(within.radius / 4, steps),
                watch=watch,
            )
        return flipped

    return flippable
