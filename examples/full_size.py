"""One picture at its full size, explained, attacked and measured by its pixels and by concepts.

A residual network takes pictures of any size: its last features are means over all places.
Usage: full_size.py [PICTURE] [MODEL], a model file that `r2et run oct` wrote. Without a picture one
of 496 x 1536 is drawn, without a model an untrained one is taken.
"""

import resource
import sys
import time
from pathlib import Path

import torch

from r2et import Box, attack, precision_at_k, read_image
from r2et.attacks import WalkBudget
from r2et.core.rng import stream
from r2et.explainers import Activations, gradient, predicted
from r2et.models import MODELS
from r2et.training.checkpoint import load

ADMISSIBLE = Box(radius=1 / 255, bounds=(0.0, 1.0))
BUDGET = WalkBudget(step=0.2 / 255, steps=10, record_every=2)


def main(arguments: list[str], size: tuple[int, int] = (496, 1536)) -> None:
    began = time.perf_counter()
    picture, model_file = (*arguments, "", "")[:2]
    x = (
        read_image(Path(picture), channels=1)
        if picture
        else torch.rand(1, *size, generator=stream(0, "picture"))
    )[None]
    model = (
        load(Path(model_file))[0]
        if model_file
        else MODELS["resnet18"].build(
            channels=1,
            classes=4,
            width=16,
            blocks=(1, 1, 1, 1),
            stem="large",
            penultimate=512,
            generator=stream(0, "full size"),
        )
    ).eval()
    y = predicted(model, x)
    print(f"{picture or 'a drawn picture'}: {tuple(x.shape[1:])}, class {int(y)}")
    for name, explain, k in (
        ("pixels", gradient, x.numel() // 10),
        ("concepts", Activations(layer="penultimate"), 50),
    ):
        found = attack(
            model,
            x,
            y,
            k=k,
            method="er",
            explainer=explain,
            perturbation=ADMISSIBLE,
            budget=BUDGET,
        )
        move = ADMISSIBLE.offsets(x[0], 1, stream(0, "noise"), surface=True)
        with torch.no_grad():
            noisy = explain(model, (x + move).clamp(0, 1), y)
        print(
            f"{name}: P@{k} of {found.before.shape[1]} is {float(found.precision):.3f} after "
            f"{BUDGET.steps} steps of ERAttack, "
            f"{float(precision_at_k(found.before, noisy, k)):.3f} after random noise of that size"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{time.perf_counter() - began:.1f} s, at most {peak:.2f} GB")


if __name__ == "__main__":
    main(sys.argv[1:])
