"""Whether gradients say what an exchange of categories does: methods and fakes side by side.

Networks trained to convergence on each split, measured on 200 validation rows; two fakes of Vanilla
that give the same answer on every real row. Prints means over the splits so far. `python
benchmarks/exchanges.py` takes about two minutes of one core for Adult.
"""

import argparse

import torch
from torch import Tensor, nn

import r2et
from r2et.attacks import EnsembleBudget, attack
from r2et.core.rng import stream
from r2et.data import Split
from r2et.experiments.config import load_recipe
from r2et.experiments.runner import fitted, linear_control
from r2et.explainers import input_gradient, predicted
from r2et.metrics.exchanges import doubt, exchange_agreement
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.statistics import auc

K, RADIUS, EXAMPLES = 8, 0.5, 200
METHODS = {
    "Vanilla": ("vanilla", {}),
    "R2ET\\H": ("r2et-noh", {"gap": "normalised", "thickness": 0.15}),
    "R2ET": ("r2et", {"gap": "normalised", "thickness": 0.15, "curvature": 0.003}),
    "structured, plain loss": ("steadfast-quick", {"thickness": 0.0, "variation": 0.0}),
    "Steadfast (quick)": ("steadfast-quick", {}),
}


class Tent(nn.Module):
    """A network plus sum_i w_i min(x_i, 1 - x_i): the same answers wherever x_i is 0 or 1."""

    def __init__(self, model: nn.Module, heights: Tensor) -> None:
        super().__init__()
        self.model, self.heights = model, heights

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        added = torch.minimum(x, 1 - x) @ self.heights
        return torch.stack([logits[:, 0], logits[:, 1] + added], dim=-1)


def tents(model: nn.Module, split: Split) -> dict[str, nn.Module]:
    """Two fakes: over every category, eight columns of it highest; over the largest ones alone."""
    groups = sorted(split.dataset.structure.exchangeable, key=len, reverse=True)
    columns = [number for group in groups for number in group]
    generator = stream(split.seed, "tents")
    drawn = 1 + torch.rand(len(columns), generator=generator, dtype=torch.float64)
    drawn *= torch.randint(2, (len(columns),), generator=generator) * 2 - 1
    everywhere, single = torch.zeros(2, split.dataset.n, dtype=torch.float64)
    everywhere[columns] = 20 * drawn
    everywhere[torch.tensor(columns)[torch.randperm(len(columns), generator=generator)[:K]]] *= 15
    single[columns[:K]] = 50.0
    return {
        "Vanilla + tent over all": Tent(model, everywhere),
        f"Vanilla + tent over {K} columns": Tent(model, single),
    }


def measured(model: nn.Module, split: Split) -> list[float]:
    """AUC, P@8 under the strong attack, off-data share, agreement of exchanges and their size."""
    model = model.double().eval()
    whole = split.valid.x.double()
    x = whole[:EXAMPLES]
    y = predicted(model, x)
    with torch.no_grad():
        share = off_data_share(
            input_gradient(model, x, y, "margin"), split.dataset.structure.one_hot
        ).mean()
    found = exchange_agreement(model, x, y, split.dataset.structure.exchangeable).mean()
    assert found is not None
    found_by = attack(model, x, y, k=K, radius=RADIUS, budget=EnsembleBudget(rounds=2))
    kept = found_by.precision.mean()
    area = auc(model, whole, split.valid.y)
    return [area, 100 * float(kept), 100 * float(share), found.order, found.size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="adult", help="adult, bank or compas")
    parser.add_argument("--seeds", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe("converged", chosen.data)
    found: dict[str, list[list[float]]] = {}
    for seed in range(chosen.seeds):
        split = r2et.load(chosen.data).split(seed)
        models = {"linear control": linear_control(split)}
        models |= {name: fitted(split, recipe, *each)[0] for name, each in METHODS.items()}
        models |= tents(models["Vanilla"], split)
        for name, model in models.items():
            found.setdefault(name, []).append(measured(model, split))
        show(f"\n{chosen.data}, mean of {seed + 1} splits, validation rows", found)


def show(title: str, found: dict[str, list[list[float]]]) -> None:
    """Print the means so far, a line for each network."""
    headings = ("AUC", f"P@{K}, eps {RADIUS:g}", "off-data share", "agreement", "size", "believed")
    print(f"{title}\n{'':<30}" + "".join(f"{heading:>13}" for heading in headings))
    for name, rows in found.items():
        means = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
        shown = [f"{means[0]:.4f}", *(f"{each:.1f}" for each in means[1:3])]
        shown += [*(f"{each:.2f}" for each in means[3:]), "no" if doubt(*means[3:]) else "yes"]
        print(f"{name:<30}" + "".join(f"{each:>13}" for each in shown), flush=True)


if __name__ == "__main__":
    main()
