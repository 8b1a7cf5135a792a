"""What the cheaper forms of R2ET cost in stability: P@100 on CIFAR-10 under the strong attack.

Every form goes on from the Vanilla network of table 1, trained first unless the folder `--out` of
`r2et reproduce` holds it. Prints validation AUC, P@100 of 64 validation pictures, and the CPU time
of training. Needs the pictures: `R2ET_DATA=FOLDER make cheaper`, half an hour on two cores.
"""

import argparse
import math
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import torch

from r2et.data import Dataset, load
from r2et.experiments.config import VANILLA, MethodPlan, load_recipe
from r2et.experiments.execution import Plan, kept_unit, model_bytes, unit_of
from r2et.experiments.runner import Outcome, judged, trained
from r2et.training.checkpoint import from_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))

from reproduction.reproduce import reproduce
from reproduction.targets import TARGETS

DATASET, PICTURES = "cifar10", 64
BENT = {"bend": "explanation", "kappa": 0.3, "thickness": 100.0, "curvature": 8.0}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "R2ET\\H": ("r2et-noh", {"thickness": 300.0}),
    "R2ET\\H by direction": ("r2et-noh", {"thickness": 300.0, "by": "direction"}),
    "R2ET": ("r2et", BENT),
    "R2ET, curvature on 1/2": ("r2et", {**BENT, "share": 0.5}),
    "R2ET, curvature on 1/4": ("r2et", {**BENT, "share": 0.25}),
}


def one_form(out: Path, seed: int, form: str) -> tuple[float, float, float]:
    """Validation AUC, P@100 and CPU seconds of training; NaN where no epoch kept the AUC."""
    torch.set_num_threads(1)
    dataset = load(DATASET)
    recipe = replace(load_recipe("paper", DATASET), valid_examples=PICTURES)
    split, vanilla = dataset.split(seed), vanilla_of(dataset, seed, out)
    assert vanilla.model is not None
    began, model = time.process_time(), from_bytes(vanilla.model)
    if form != VANILLA:
        method, settings = FORMS[form]
        (found,) = trained(split, recipe, MethodPlan(name=method, grid=(settings,)), vanilla)
        if found.problem or not found.history:
            return math.nan, math.nan, time.process_time() - began
        model = found.model
    seconds = time.process_time() - began
    ((score, precision),) = judged([model], split, recipe)
    return score, precision, seconds


def vanilla_of(dataset: Dataset, seed: int, out: Path) -> Outcome:
    """The Vanilla network that a reproduction of table 1 left in its folder."""
    recipe = load_recipe("paper", DATASET)
    plan = Plan(dataset=dataset, recipe=recipe, seeds=1)
    unit = unit_of(plan, seed, recipe.methods[0], out)
    kept = kept_unit(unit)
    assert kept is not None
    return replace(kept[0], model=model_bytes(unit, kept[0].settings))


def main() -> None:
    """Print the table of all splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    chosen = parser.parse_args()
    reproduce(
        [TARGETS["table-1"]], chosen.out, seeds=chosen.seeds, only=[DATASET], methods=[], jobs=2
    )
    forms, seeds = (VANILLA, *FORMS), range(chosen.seeds)
    found = joblib.Parallel(n_jobs=2)(
        joblib.delayed(one_form)(chosen.out, seed, form) for form in forms for seed in seeds
    )
    print(f"{'':24} {'AUC':>7} {'P@100':>6} {'seconds':>8}")
    for (form, seed), (score, precision, took) in zip(product(forms, seeds), found, strict=True):
        print(f"{form:24} {score:7.4f} {100 * precision:6.1f} {took:8.0f}   split {seed}")


if __name__ == "__main__":
    main()
