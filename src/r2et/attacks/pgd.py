"""The attacks of the papers, each one goal followed by projected descent."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import torch
from torch import Tensor, nn

from r2et.attacks.constraint_handling import (
    ConstraintHandling,
    allowance,
    check_outputs,
    handling_named,
    kept_losses,
    scale_of,
    weighted,
)
from r2et.attacks.search import (
    AttackProblem,
    AttackResult,
    BestSoFar,
    Goal,
    check_slopes,
    distance_goal,
    keeps,
    margin_loss,
    prediction,
    projected_descent,
    ranking_goal,
    ready,
)
from r2et.core.autograd import eval_mode
from r2et.core.geometry import by_example, one_of
from r2et.core.rng import stream
from r2et.perturbations import L2Ball, PerturbationSet, agreed

ROWS_AT_ONCE = 16_384
HALVINGS = 20


@dataclass(frozen=True, kw_only=True)
class WalkBudget:
    """What a walk may spend: steps of a given length.

    `handling` is, as a rule by its name in CONSTRAINT_HANDLING, what it does about the classes of
    the outputs. With any of them only an input that keeps all these classes comes back. Inputs on
    the way are looked at after each `record_every` steps.
    """

    step: float = 1e-3
    steps: int = 1000
    handling: str | ConstraintHandling = "unconstrained"
    record_every: int = 1

    def __post_init__(self) -> None:
        """Refuse a budget that allows nothing."""
        if not (self.step > 0 and self.steps >= 0 and self.record_every >= 1):
            raise ValueError(
                "the budget of a walk needs step > 0, steps >= 0 and record_every >= 1, got "
                f"{self.step}, {self.steps} and {self.record_every}."
            )
        handling_named(self.handling)

    def rows_at_once(self, numbers: int) -> int:
        """How many examples of so many numbers are attacked at once."""
        return ROWS_AT_ONCE


def er_attack(
    model: nn.Module, x: Tensor, y: Tensor, problem: AttackProblem, budget: WalkBudget
) -> AttackResult:
    """ERAttack: lowers sum h(x', i, j) over the clean top-k pairs, step by step from x."""
    return _walk(ranking_goal, model, x, y, problem, budget)


def mse_attack(
    model: nn.Module, x: Tensor, y: Tensor, problem: AttackProblem, budget: WalkBudget
) -> AttackResult:
    """MSE attack: raises ||I(x) - I(x')||^2, its first step random: at x its slope is zero."""
    return _walk(lambda before, k: distance_goal(before), model, x, y, problem, budget, kick=True)


def _walk(
    goal: Callable[[Tensor, int], Goal],
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    problem: AttackProblem,
    budget: WalkBudget,
    *,
    kick: bool = False,
) -> AttackResult:
    """Where a walk along the slope of a goal from x leads; with a `kick` it first goes anywhere."""
    within, handling = problem.perturbation, handling_named(budget.handling)
    explain, outputs = problem.explainer, problem.outputs
    if outputs is not prediction:
        with torch.no_grad():
            check_outputs(outputs(model, x), len(x))
    best = BestSoFar(model, x, y, problem)
    lower = goal(best.before, problem.k)
    allowed = allowance(handling, lambda points: best.keeps(within.project(points, x)))
    start, step = x, 0
    if kick and budget.steps:
        drawn = stream(problem.seed, "kick")
        move = within.at(budget.step).offsets(one_of(x), 1, drawn, surface=True)
        start, step = within.relax(x + move, x), 1
        if allowed is not None:
            start = _nearer(start, x, allowed)

    def followed(point: Tensor) -> Tensor:
        nonlocal step
        saliency = explain(model, point, y)
        if step % budget.record_every == 0:
            best.offer(point.detach(), saliency.detach())
            best.tick(step - best.clock)
        step += 1
        return lower(saliency)

    loss: Callable[[Tensor], Tensor] = followed
    if handling.weighting is not None:
        kept = kept_losses(partial(outputs, model), x, scaled=handling.scaled)
        scale = scale_of(lower, best.before) if handling.scaled else 1.0
        loss = weighted(lambda at: [followed(at) / scale, *kept(at)], handling.weighting)
    last = projected_descent(
        loss,
        x,
        start=start,
        perturbation=within,
        lengths=repeat(budget.step, budget.steps - step),
        allowed=allowed,
        blind=lambda: check_slopes(explain, model, x, y),
    )
    best.offer(last)
    best.tick(budget.steps - best.clock)
    return replace(best.result(), last=within.project(last, x))


def _nearer(start: Tensor, x: Tensor, allowed: Callable[[Tensor], Tensor]) -> Tensor:
    """A random start, halfway back to x again and again where it is not allowed, at last x."""
    for _ in range(HALVINGS):
        free = by_example(allowed(start), x)
        if free.all():
            return start
        start = torch.where(free, start, torch.lerp(x, start, 0.5))
    return torch.where(free, start, x)


def flippable(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    perturbation: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    radius: float | None = None,
    steps: int = 20,
) -> Tensor:
    """Whether the prediction y itself can be changed within the radius: (B,) booleans.

    Not an attack on the explanation: it tells how near the decisions are to flipping.
    """
    within = agreed(perturbation, radius)
    model, x = ready(model, x, y, ROWS_AT_ONCE)
    flipped = torch.zeros_like(y, dtype=torch.bool)

    def watch(step: int, found: Tensor) -> None:
        flipped.logical_or_(~keeps(model, within.project(found, x), y))

    with eval_mode(model):
        projected_descent(
            margin_loss(model, y),
            x,
            start=x,
            perturbation=within,
            lengths=repeat(within.radius / 4, steps),
            watch=watch,
        )
    return flipped
