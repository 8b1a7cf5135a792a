"""A run: train the methods of a recipe, choose on validation data, measure once on test data."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import nn

from r2et import __version__
from r2et.data import Dataset, Split
from r2et.evaluation import build_attack, evaluate
from r2et.experiments.recipes import MethodPlan, Recipe
from r2et.explainers import predicted
from r2et.files import append_rows, read_rows
from r2et.metrics.statistics import auc
from r2et.models import MODELS
from r2et.models.linear import fitted_logistic
from r2et.objectives import METHODS
from r2et.randomness import stream
from r2et.training import Candidate, fit, load, save, select

LINEAR = "linear"
LABELS = {LINEAR: "Linear (control)", **{name: entry.label for name, entry in METHODS.items()}}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How much of a run is done, and what was done last."""

    done: int
    total: int
    what: str


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One model to train: a method, its settings, and where the model is kept."""

    seed: int
    method: str
    settings: dict[str, Any]
    path: Path


def fingerprint(*parts: Any) -> str:
    """Twelve hexadecimal digits that change with any of the parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def run(
    dataset: Dataset,
    recipe: Recipe,
    *,
    seeds: int,
    out: Path,
    jobs: int = 1,
    on_progress: OnProgress = lambda progress: None,
) -> list[dict[str, Any]]:
    """The result rows of a recipe, one for each method and seed, also kept in out/results.jsonl.

    What is already there is not done again: neither a trained model nor a finished row.
    """
    if seeds < 1:
        raise ValueError(f"a run needs at least one seed, got {seeds}.")
    results = out / "results.jsonl"
    append_rows(results, [])
    plans = (MethodPlan(name=LINEAR), *recipe.methods)
    wanted = {
        (seed, plan.name): row_key(dataset, recipe, seed, plan)
        for seed in range(seeds)
        for plan in plans
    }
    present = {row["key"] for row in read_rows(results) if "key" in row}
    open_seeds = sorted({seed for (seed, _), key in wanted.items() if key not in present})
    tasks = [
        task
        for seed in open_seeds
        for plan in recipe.methods
        for task in tasks_of(dataset, recipe, seed, plan, out)
    ]
    open_rows = [where for where, key in wanted.items() if key not in present]
    done, total = 0, len(tasks) + len(open_rows)
    trained: dict[tuple[int, str], list[tuple[Task, Candidate]]] = {}
    for task, candidate in _spread(train_one, [(dataset, recipe, task) for task in tasks], jobs):
        trained.setdefault((task.seed, task.method), []).append((task, candidate))
        done += 1
        on_progress(Progress(done=done, total=total, what=f"trained {LABELS[task.method]}"))
    work = []
    for seed, name in open_rows:
        floor = _only(trained[seed, "vanilla"])[1].auc - recipe.gate
        found = trained.get((seed, name), [])
        work.append((dataset, recipe, seed, name, _in_order(found), floor, wanted[seed, name]))
    for row in _spread(measure_one, work, jobs):
        append_rows(results, [row])
        done += 1
        on_progress(Progress(done=done, total=total, what=f"measured {row['label']}"))
    rows = {row.get("key"): row for row in read_rows(results)}
    return [rows[key] for key in wanted.values()]


def row_key(dataset: Dataset, recipe: Recipe, seed: int, plan: MethodPlan) -> str:
    """What identifies a row: data, recipe, seed, method and the settings it was chosen from."""
    return fingerprint(dataset.digest, recipe.digest, seed, plan.name, plan.grid)


def tasks_of(
    dataset: Dataset, recipe: Recipe, seed: int, plan: MethodPlan, out: Path
) -> list[Task]:
    """The models to train for one method and seed."""
    folder = out / "models" / f"{dataset.name}-{recipe.name}-seed-{seed}"
    return [
        Task(
            seed=seed,
            method=plan.name,
            settings=settings,
            path=folder
            / f"{plan.name}-{fingerprint(dataset.digest, recipe.digest, settings)}.safetensors",
        )
        for settings in plan.grid
    ]


def _spread(
    function: Callable[..., Any], work: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Any]:
    """The results of function(*each) in the order in which they are ready."""
    if jobs == 1 or len(work) <= 1:
        return (function(*each) for each in work)
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    return iter(parallel(joblib.delayed(_one_thread)(function, each) for each in work))


def _one_thread(function: Callable[..., Any], each: tuple[Any, ...]) -> Any:
    # Small networks gain nothing from a second thread, and the other process needs the core.
    torch.set_num_threads(1)
    return function(*each)


def _only(found: Sequence[Any]) -> Any:
    assert len(found) == 1, "Vanilla has no settings to choose among"
    return found[0]


def _in_order(found: list[tuple[Task, Candidate]]) -> list[tuple[Task, Candidate]]:
    return sorted(found, key=lambda each: json.dumps(each[0].settings, sort_keys=True))


def train_one(dataset: Dataset, recipe: Recipe, task: Task) -> tuple[Task, Candidate]:
    """A task and how its model does on validation data; a kept model is not trained again."""
    if task.path.exists():
        _, saved = load(task.path)
        return task, Candidate(**saved["candidate"])
    split = dataset.split(task.seed)
    checkpoint = task.path.with_suffix(".checkpoint")
    model, plan, epochs = fitted(split, recipe, task.method, task.settings, checkpoint)
    candidate = judged(model, split, recipe, task)
    save(
        task.path,
        model,
        {
            "model": plan,
            "dataset": dataset.name,
            "data": dataset.digest,
            "recipe": recipe.name,
            "seed": task.seed,
            "method": task.method,
            "epochs": epochs,
            "candidate": asdict(candidate),
        },
    )
    checkpoint.unlink(missing_ok=True)
    return task, candidate


def fitted(
    split: Split,
    recipe: Recipe,
    method: str,
    settings: Mapping[str, Any],
    checkpoint: Path | None = None,
) -> tuple[nn.Module, dict[str, Any], int]:
    """A network trained by the recipe, how it is built again, and its number of epochs."""
    dataset = split.dataset
    plan = {
        "name": "mlp",
        "inputs": dataset.n,
        "classes": len(dataset.classes),
        "hidden": list(recipe.hidden),
        "activation": recipe.activation,
    }
    shape = {name: value for name, value in plan.items() if name != "name"}
    model = MODELS["mlp"](**shape, generator=stream(split.seed, dataset.name, "init"))
    chosen = METHODS[method].build(k=recipe.evaluation.k, **settings)
    batch = min(recipe.fit.batch, max(1, len(split.train) // recipe.least_steps))
    fitting = replace(recipe.fit, seed=split.seed, batch=batch)
    model, history = fit(model, split.train, split.valid, chosen, fitting, checkpoint=checkpoint)
    return model, plan, len(history)


def judged(model: nn.Module, split: Split, recipe: Recipe, task: Task) -> Candidate:
    """Validation AUC and validation P@k under the attack that the recipe selects by."""
    valid = split.valid
    double = copy.deepcopy(model).double().eval()
    x = valid.x[: recipe.valid_examples].double()
    attack = build_attack(recipe.select_by, recipe.evaluation, seed=task.seed)
    attacked = attack(double, x, predicted(double, x))
    return Candidate(
        settings=task.settings,
        auc=auc(double, valid.x.double(), valid.y),
        precision=float(attacked.precision.mean()),
    )


def measure_one(
    dataset: Dataset,
    recipe: Recipe,
    seed: int,
    method: str,
    found: Sequence[tuple[Task, Candidate]],
    floor: float,
    key: str,
) -> dict[str, Any]:
    """The row of one method and seed; without any model above the AUC floor it says so and ends."""
    split = dataset.split(seed)
    row: dict[str, Any] = {
        "key": key,
        "dataset": dataset.name,
        "data": dataset.digest,
        "recipe": recipe.name,
        "seed": seed,
        "method": method,
        "label": LABELS[method],
        "version": __version__,
        "candidates": [asdict(candidate) for _, candidate in found],
        "floor": floor,
        "selected by": recipe.select_by,
    }
    if method == LINEAR:
        model = fitted_logistic(split.train.x, split.train.y)
        chosen = judged(
            model, split, recipe, Task(seed=seed, method=LINEAR, settings={}, path=Path())
        )
        row |= {"passed": True, "chosen": None, "valid": asdict(chosen)}
    else:
        best = select([candidate for _, candidate in found], floor)
        if best is None:
            return row | {"passed": False, "chosen": None, "valid": None, "measures": {}}
        path = next(task.path for task, candidate in found if candidate is best)
        model, _ = load(path)
        row |= {"passed": True, "chosen": best.settings, "valid": asdict(best)}
    return row | evaluate(model, split, recipe.evaluation, seed=seed)
