"""What the cheaper forms of R2ET cost in stability: P@100 on CIFAR-10 under the strong attack.

Every form goes on from the same Vanilla network as the recipe of table 1 does. Prints validation
AUC, P@100 of 64 validation pictures, and the CPU time of training, for each split. Needs the
pictures: `R2ET_DATA=FOLDER python benchmarks/cheaper.py`, 20 minutes on two cores.
"""

import argparse
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import joblib
import torch

from r2et.data import load
from r2et.experiments.recipes import VANILLA, MethodPlan, load_recipe
from r2et.experiments.runs import Work, code_digest, data_digest, judged, train_unit, trained

DATASET, PICTURES = "cifar10", 64
BENT = {"bend": "explanation", "kappa": 0.3, "thickness": 100.0, "curvature": 8.0}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "R2ET\\H": ("r2et-noh", {"thickness": 300.0}),
    "R2ET\\H by direction": ("r2et-noh", {"thickness": 300.0, "by": "direction"}),
    "R2ET": ("r2et", BENT),
    "R2ET, curvature on 1/2": ("r2et", {**BENT, "share": 0.5}),
    "R2ET, curvature on 1/4": ("r2et", {**BENT, "share": 0.25}),
    "R2ET, 1/4, by direction": ("r2et", {**BENT, "share": 0.25, "by": "direction"}),
}


def one_split(seed: int) -> list[tuple[str, float, float, float]]:
    """Form, validation AUC, P@100 and CPU seconds of training, Vanilla's first."""
    torch.set_num_threads(1)
    recipe = replace(load_recipe("paper", DATASET), valid_examples=PICTURES)
    work = Work(
        source=partial(load, DATASET),
        data=data_digest(load(DATASET)),
        recipe=recipe,
        seed=seed,
        code=code_digest(),
    )
    split = work.split()
    began = time.process_time()
    (vanilla,) = train_unit(work, MethodPlan(name=VANILLA), None)
    assert vanilla.candidate is not None
    first = asdict(vanilla.candidate)
    told = [("Vanilla", first["auc"], first["precision"], time.process_time() - began)]
    for form, (method, settings) in FORMS.items():
        began = time.process_time()
        (found,) = trained(split, recipe, MethodPlan(name=method, grid=(settings,)), vanilla)
        seconds = time.process_time() - began
        if found.problem or not found.history:
            told.append((f"{form}: no epoch was accepted", float("nan"), float("nan"), seconds))
            continue
        ((score, precision),) = judged([found.model], split, recipe)
        told.append((form, score, precision, seconds))
        print(seed, told[-1], flush=True)
    return told


def main() -> None:
    """Print the table of all splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(parser.parse_args().seeds)
    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(one_split)(seed) for seed in seeds)
    print(f"{'':26} {'AUC':>7} {'P@100':>6} {'seconds':>8}   each split")
    for told in zip(*parts, strict=True):
        scores, kept, seconds = (torch.tensor(each) for each in list(zip(*told, strict=True))[1:])
        each = " ".join(f"{100 * value:.1f}" for value in kept.tolist())
        print(
            f"{told[0][0]:26} {scores.mean():7.4f} {100 * kept.mean():6.1f} {seconds.mean():8.0f}"
            f"   {each}"
        )


if __name__ == "__main__":
    main()
