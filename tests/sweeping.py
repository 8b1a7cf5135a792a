"""A sweep as small as can be, also as a process of its own: sweeping.py OUT JOBS SEEDS."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2et.data import Dataset, load
from r2et.evaluation.results import Result
from r2et.experiments.config import Recipe, recipe_from
from r2et.experiments.execution import Progress, sweep

TINY: dict[str, Any] = {
    "line": "as little as possible",
    "datasets": ["left", "right"],
    "seeds": 1,
    "gate": 0.5,
    "valid_examples": 20,
    "hidden": [4],
    "fit": {"epochs": 2, "batch": 64},
    "evaluation": {
        "k": 4,
        "attacks": ["er", "strong"],
        "examples": 30,
        "epsilons": [],
        "er": {"step": 0.2, "steps": 3},
        "strong": {"rounds": 1, "starts": 2, "steps": 2, "points": 4, "moves": 2, "pairs": 1},
    },
    "methods": [{"name": "vanilla"}, {"name": "r2et-noh", "thickness": [0.05, 0.1]}],
}
FIRST = {"left": 0, "right": 300}


def tiny(**changes: Any) -> Recipe:
    return recipe_from("tiny", {**TINY, **changes})


def load_slice(name: str) -> Dataset:
    """Three hundred rows of compas."""
    whole, first = load("compas"), FIRST[name]
    return replace(whole, name=name, x=whole.x[first : first + 300], y=whole.y[first : first + 300])


def timeless(rows: list[Result]) -> list[Result]:
    """The rows without their timings, in the order of their keys."""
    return sorted((replace(row, seconds=0.0) for row in rows), key=lambda row: row.key)


def told(progress: Progress) -> None:
    sys.stdout.write(f"{progress.done}/{progress.total} {progress.what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    jobs, seeds = map(int, sys.argv[2:])
    out = Path(sys.argv[1])
    sweep(tiny(), out, jobs=jobs, seeds=seeds, load=load_slice, on_progress=told)
