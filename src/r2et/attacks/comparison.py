"""Ways to keep the predictions, compared: P@k against changed predictions (B.2.3, figure 6)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from r2et.attacks.constraint_handling import HANDLERS, Handler
from r2et.attacks.goals import Goal, distance_goal, ranking_goal
from r2et.attacks.pgd import ROWS_AT_ONCE, Walk, descent
from r2et.attacks.records import Budget
from r2et.attacks.searches import Outputs, prediction, ready
from r2et.core.autograd import eval_mode
from r2et.core.naming import nearest
from r2et.core.ranking import precision_at_k
from r2et.explainers import Explainer, gradient
from r2et.perturbations import L2Ball, PerturbationSet

STEP_SIZES = (0.005, 0.01, 0.02, 0.05, 0.1)
TOLERABLE = 0.02

GOALS: dict[str, tuple[Callable[[Tensor, int], Goal], bool]] = {
    "er": (ranking_goal, False),
    "mse": (lambda before, k: distance_goal(before), True),
}
"""What is lowered, and whether its first step is random because it has no slope at x."""


@dataclass(frozen=True, kw_only=True)
class HandlerPoint:
    """What a goal, a handler and a step size lead to: one point of figure 6."""

    goal: str
    handler: str
    step: float
    precision: float
    """Mean P@k of the last inputs, whether or not they keep their predictions."""
    sensitivity: float
    """Share of the last inputs with any changed prediction."""
    kept_precision: float
    """Mean P@k of the best inputs on the way that keep all predictions: what an attack returns."""
    on_front: bool = False
    """Whether no other point of the goal is as good in both measures and better in one."""
    selected: bool = False
    """Whether the goal's lowest P@k at a tolerable sensitivity."""


def compare_handlers(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    k: int,
    explain: Explainer = gradient,
    budget: Budget = Budget(steps=100),  # noqa: B008 - a frozen record
    threat: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    handlers: Mapping[str, Handler] = HANDLERS,
    step_sizes: Iterable[float] = STEP_SIZES,
    goals: Iterable[str] = tuple(GOALS),
    outputs: Outputs = prediction,
    tolerable: float = TOLERABLE,
    record_every: int = 1,
    seed: int = 0,
    rows_at_once: int = ROWS_AT_ONCE,
) -> list[HandlerPoint]:
    """One point for each goal, handler and step size, in this order, marked by `marked`.

    Every walk takes `budget.steps` steps within `budget.radius`; `step_sizes` take the place of
    `budget.step`.
    """
    model, x = ready(model, x, y, rows_at_once)
    if not len(x):
        raise ValueError("handlers are compared on one example at least, got none.")
    points = []
    for goal, (name, handler), step in product(goals, handlers.items(), step_sizes):
        if goal not in GOALS:
            raise ValueError(f"no goal is called {goal!r}: {nearest(goal, GOALS)}")
        lower, kicked = GOALS[goal]
        walk = descent(
            lower,
            k=k,
            explain=explain,
            budget=replace(budget, step=step),
            threat=threat,
            handler=handler,
            outputs=outputs,
            record_every=record_every,
            seed=seed if kicked else None,
        )
        with torch.no_grad(), eval_mode(model):
            parts = zip(x.split(rows_at_once), y.split(rows_at_once), strict=True)
            ends = torch.cat([_end(walk, model, part, labels) for part, labels in parts])
        precision, sensitivity, kept = ends.double().mean(0).tolist()
        points.append(
            HandlerPoint(
                goal=goal,
                handler=name,
                step=step,
                precision=precision,
                sensitivity=sensitivity,
                kept_precision=kept,
            )
        )
    return marked(points, tolerable)


def _end(walk: Walk, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """P@k and changed predictions of the last input, P@k of the best that keeps all: (B, 3)."""
    best, last = walk(model, x, y)
    after = best.explain(model, last, y)
    changed = (~best.keeps(last)).to(after.dtype)
    return torch.stack(
        [precision_at_k(best.before, after, best.k), changed, best.precision], dim=-1
    )


def marked(points: Sequence[HandlerPoint], tolerable: float = TOLERABLE) -> list[HandlerPoint]:
    """The points with the Pareto front and the selected one of each goal marked."""
    found = []
    for goal in dict.fromkeys(point.goal for point in points):
        own = [point for point in points if point.goal == goal]
        places = [(point.precision, point.sensitivity) for point in own]
        star = selection(places, tolerable)
        found += [
            replace(point, on_front=front, selected=number == star)
            for number, (point, front) in enumerate(zip(own, pareto_front(places), strict=True))
        ]
    return found


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether no other point is at most as large in both numbers and smaller in one.

    Equal points share their place.

    >>> pareto_front([(0.5, 0.0), (0.2, 0.3), (0.5, 0.1), (0.2, 0.3)])
    [True, True, False, True]
    """
    front: dict[tuple[float, float], bool] = {}
    lowest = float("inf")
    # By rising first number, then second, a point is beaten only by one that came before it.
    for point in sorted(set(points)):
        front[point] = point[1] < lowest
        lowest = min(lowest, point[1])
    return [front[point] for point in points]


def selection(points: Sequence[tuple[float, float]], tolerable: float = TOLERABLE) -> int | None:
    """The number of the point with the smallest P@k and at most `tolerable` sensitivity, if any.

    Points are (P@k, sensitivity). Of equal P@k the lower sensitivity counts, then the first point.

    >>> selection([(0.1, 0.5), (0.4, 0.01), (0.3, 0.02)])
    2
    """
    fair = [number for number, (_, changed) in enumerate(points) if changed <= tolerable]
    return min(fair, key=lambda number: points[number], default=None)
