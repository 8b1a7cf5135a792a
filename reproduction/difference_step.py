"""The step of the finite difference that stands for the curvature: what other steps would do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from r2et.core.autograd import estimated_curvature, hessian_norm
from r2et.core.exact import exact_copy
from r2et.data.dataset import Dataset, Split
from r2et.evaluation.results import append_results
from r2et.experiments.config import MethodPlan, Recipe, load_recipe
from r2et.experiments.runner import Outcome, Work, alone, code_digest, fingerprint, train_unit
from r2et.explainers import input_gradient, predicted
from r2et.metrics.statistics import correlation
from r2et.training.checkpoint import from_bytes
from r2et.training.trainer import select
from reproduction.papers import StepPoint, StepsResult, known_row
from reproduction.targets import AS_PUBLISHED, STEPS_ROWS

STEPS = (0.001, 0.01, 0.1, 0.5)
BENT = ("est-h", "r2et", "r2et-mm")  # the methods with a finite difference in their loss


def steps_row(
    dataset: Dataset, out: Path, on_start: Callable[[], None] = lambda: None
) -> StepsResult:
    """Every step compared on the first seed of recipe as-published, validation data alone: a row.

    Kept in out/steps.jsonl and not computed again.
    """
    recipe = load_recipe(AS_PUBLISHED, dataset.name)
    plans = [plan for plan in recipe.methods if plan.name in BENT]
    grids = [plan.grid for plan in plans]
    key = fingerprint(STEPS_ROWS, dataset.digest, recipe.digest, STEPS, grids)
    path = out / "steps.jsonl"
    if (known := known_row(StepsResult, path, key)) is not None:
        return known
    on_start()
    row = StepsResult(
        key=key,
        recipe=STEPS_ROWS,
        recipe_digest=recipe.digest,
        dataset=dataset.name,
        data=dataset.digest,
        seed=0,
        method=recipe.methods[0].name,
        label="Vanilla",
        code=code_digest(),
        k=recipe.evaluation.k,
        examples=recipe.valid_examples,
        points=tuple(step_points(dataset, recipe, plans, STEPS)),
    )
    append_results(path, [row])
    return row


def step_points(
    dataset: Dataset, recipe: Recipe, plans: Sequence[MethodPlan], steps: Sequence[float]
) -> list[StepPoint]:
    """What each step tells of Vanilla's curvature, and what methods make of it: one point each."""
    source = partial(_itself, dataset)
    work = Work(source=source, data=dataset.digest, recipe=recipe, seed=0, code=code_digest())
    (vanilla,) = alone(train_unit, work, recipe.methods[0], None)
    points = []
    for step in steps:
        chosen = {
            plan.name: _chosen(work, replace(plan, grid=_with_step(plan, step)), vanilla)
            for plan in plans
        }
        points.append(
            StepPoint(
                step=step,
                correlation=told_of_the_norm(vanilla, work.split(), recipe, step),
                auc={name: None if each is None else each[0] for name, each in chosen.items()},
                precision={
                    name: None if each is None else each[1] for name, each in chosen.items()
                },
            )
        )
    return points


def told_of_the_norm(vanilla: Outcome, split: Split, recipe: Recipe, step: float) -> float:
    """Rank correlation over validation examples of the difference with the exact Hessian norm."""
    assert vanilla.model is not None
    model = exact_copy(from_bytes(vanilla.model), torch.float64)
    x = split.valid.x[: recipe.valid_examples].double()
    y = predicted(model, x)
    field = partial(_gradient_at, model, y)
    with torch.no_grad():
        estimated = estimated_curvature(field, x, field(x), step)
        return correlation(estimated, hessian_norm(field, x))


def _gradient_at(model: torch.nn.Module, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return input_gradient(model, x, y).flatten(1)


def _with_step(plan: MethodPlan, step: float) -> tuple[dict[str, object], ...]:
    return tuple({**settings, "kappa": step} for settings in plan.grid)


def _chosen(work: Work, plan: MethodPlan, vanilla: Outcome) -> tuple[float, float] | None:
    """Validation AUC and P@k of the setting that is chosen, None if none keeps the AUC."""
    assert vanilla.candidate is not None
    outcomes = alone(train_unit, work, plan, vanilla)
    candidates = [each.candidate for each in outcomes if each.candidate is not None]
    best = select(candidates, vanilla.candidate.auc - work.recipe.gate)
    return None if best is None else (best.auc, best.precision)


def _itself(dataset: Dataset) -> Dataset:
    return dataset
