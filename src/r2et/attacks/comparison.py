"""Ways to keep the predictions, compared: P@k against changed predictions (B.2.3, figure 6)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING, ConstraintHandling
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import attack
from r2et.attacks.search import AttackResult, Outputs, classes_changed, prediction
from r2et.core.autograd import eval_mode
from r2et.core.inputs import joined, packed
from r2et.core.naming import nearest
from r2et.core.ranking import precision_at_k
from r2et.explainers import Explainer, gradient
from r2et.perturbations import L2Ball, PerturbationSet

STEP_SIZES = (0.005, 0.01, 0.02, 0.05, 0.1)
TOLERABLE = 0.02
GOALS = ("er", "mse")  # the attacks that walk towards one goal


@dataclass(frozen=True, kw_only=True)
class HandlingPoint:
    """What a goal, a way to keep predictions and a step size lead to: one point of figure 6."""

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


def compare_handling(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    k: int,
    explainer: Explainer = gradient,
    perturbation: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    budget: WalkBudget = WalkBudget(steps=100),  # noqa: B008 - a frozen record
    handling: Mapping[str, ConstraintHandling] = CONSTRAINT_HANDLING,
    step_sizes: Iterable[float] = STEP_SIZES,
    goals: Iterable[str] = GOALS,
    outputs: Outputs = prediction,
    tolerable: float = TOLERABLE,
    seed: int = 0,
    rows_at_once: int | None = None,
) -> list[HandlingPoint]:
    """One point for each goal, way to keep predictions and step size, marked by `marked`.

    `handling` and `step_sizes` take the place of those of the budget.
    """
    if not len(x):
        raise ValueError("ways to keep predictions are compared on one example at least, got none.")
    points = []
    for goal, (name, way), step in product(goals, handling.items(), step_sizes):
        if goal not in GOALS:
            raise ValueError(f"no goal is called {goal!r}: {nearest(goal, GOALS)}")
        found = attack(
            model,
            x,
            y,
            k=k,
            method=goal,
            explainer=explainer,
            perturbation=perturbation,
            budget=replace(budget, step=step, handling=way),
            outputs=outputs,
            seed=seed,
            rows_at_once=rows_at_once,
        )
        ends = _end(found, model, x, y, k, explainer, outputs)
        precision, sensitivity, kept = ends.double().mean(0).tolist()
        points.append(
            HandlingPoint(
                goal=goal,
                handler=name,
                step=step,
                precision=precision,
                sensitivity=sensitivity,
                kept_precision=kept,
            )
        )
    return marked(points, tolerable)


def _end(
    found: AttackResult,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    k: int,
    explainer: Explainer,
    outputs: Outputs,
) -> Tensor:
    """P@k and changed predictions of the last input, P@k of the best that keeps all: (B, 3)."""
    assert found.last is not None
    model, x = joined(model, x), packed(x, model)
    with torch.no_grad(), eval_mode(model):
        after = explainer(model, found.last, y)
    changed = classes_changed(outputs, model, x, found.last)
    precision = precision_at_k(found.before, after, k)
    return torch.stack([precision, changed.to(after.dtype), found.precision], dim=-1)


def marked(points: Sequence[HandlingPoint], tolerable: float = TOLERABLE) -> list[HandlingPoint]:
    """The points with the Pareto front and the selected one of each goal marked."""
    found: list[HandlingPoint] = []
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
