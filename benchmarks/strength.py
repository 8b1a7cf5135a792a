"""How strong the strong attack is: against its members, random search, and twice its effort.

Four networks trained to convergence on Adult for each seed, 300 test examples each. Prints mean P@8
at a radius of 1. `python benchmarks/strength.py --seeds 5` takes about ten minutes on two cores.
"""

import argparse
import time
from dataclasses import replace

import joblib
import torch
from torch import Tensor, nn

import r2et
from r2et.attacks import EnsembleBudget, WalkBudget, attack
from r2et.attacks.search import AttackProblem, BestSoFar
from r2et.core.rng import stream
from r2et.experiments.config import load_recipe
from r2et.experiments.runner import fitted
from r2et.explainers import Gradient, gradient, input_gradient, predicted
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.statistics import auc
from r2et.perturbations import L2Ball

K, EXAMPLES, POINTS = 8, 300, 20_000
NETWORKS = {
    "Vanilla": ("vanilla", {}, "leaky-relu"),
    "R2ET\\H": ("r2et-noh", {"gap": "normalised", "thickness": 0.15}, "leaky-relu"),
    "R2ET": ("r2et", {"gap": "normalised", "thickness": 0.15, "curvature": 0.003}, "leaky-relu"),
    "softplus": ("vanilla", {}, "softplus"),
}


class WithNullDirection(nn.Module):
    """A network plus c (sum of a one-hot group - 1): the same decisions on all real inputs."""

    def __init__(self, model: nn.Module, columns: list[int], c: float = 16.0) -> None:
        super().__init__()
        self.model, self.columns, self.c = model, columns, c

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        added = self.c * (x[:, self.columns].sum(-1) - 1)
        return torch.stack([logits[:, 0], logits[:, 1] + added], dim=-1)


def random_search(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Lowest P@8 over POINTS random points of the ball, half of them on its surface: (B,)."""
    problem = AttackProblem(k=K, explainer=gradient, perturbation=L2Ball())
    best = BestSoFar(model, x, y, problem)
    generator = stream(0, "random search")
    for surface in (True, False):
        for _ in range(POINTS // 2 // 20):
            offsets = L2Ball().offsets(x[0], 20, generator, surface=surface)
            best.offer_all(x + offsets[:, None])
    return best.precision


def one_seed(seed: int) -> list[dict[str, float | str]]:
    torch.set_num_threads(1)
    split = r2et.load("adult").split(seed)
    recipe = load_recipe("converged", "adult")
    x = split.test.x[:EXAMPLES].double()
    groups = split.dataset.structure.one_hot
    rows: list[dict[str, float | str]] = []
    for label, (method, settings, activation) in NETWORKS.items():
        model, _, _ = fitted(split, replace(recipe, activation=activation), method, settings)
        model = model.double().eval()
        y = predicted(model, x)
        walk = WalkBudget(record_every=10)
        single = {
            "ERAttack": attack(model, x, y, k=K, method="er", budget=walk).precision,
            "MSE": attack(model, x, y, k=K, method="mse", budget=walk).precision,
            "20,000 points": random_search(model, x, y),
        }
        begun = time.process_time()
        # Under which methods are compared: not all networks have cells that could be walked.
        budget = EnsembleBudget()
        strong = attack(model, x, y, k=K, budget=budget)
        seconds = time.process_time() - begun
        doubled = replace(budget, rounds=2 * budget.rounds)
        twice = attack(model, x, y, k=K, budget=doubled)
        found = {**single, **strong.members, "strong": strong.precision, "doubled": twice.precision}
        rows.append(
            {"network": label, "AUC": auc(model, split.test.x.double(), split.test.y)}
            | {name: 100 * float(each.mean()) for name, each in found.items()}
            | {"examples above random": int((strong.precision > single["20,000 points"]).sum())}
            | {"seconds": seconds}
        )
        if label == "Vanilla":
            education = next(g for g in groups if split.dataset.features[g[0]].group == "education")
            for name, each in {
                "Vanilla": model,
                "+ 16 null": WithNullDirection(model, education),
            }.items():
                plain = attack(each, x, y, k=K).precision.mean()
                free = attack(each, x, y, k=K, explainer=Gradient(one_hot=groups))
                with torch.no_grad():
                    share = off_data_share(input_gradient(each, x, y, "margin"), groups).mean()
                rows.append(
                    {
                        "network": f"gauge: {name}",
                        "AUC": auc(each, split.test.x.double(), split.test.y),
                        "plain": 100 * float(plain),
                        "projected": 100 * float(free.precision.mean()),
                        "off-data share": 100 * float(share),
                    }
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(one_seed)(seed) for seed in seeds)
    rows = [row for part in parts for row in part]
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        print(f"\n{network} ({len(mine)} seeds)")
        for name in mine[0]:
            if name != "network":
                values = torch.tensor([float(row[name]) for row in mine])
                each = " ".join(f"{value:.4g}" for value in values.tolist())
                print(f"  {name:<22} {values.mean():8.4g}   {each}")
    split = r2et.load("adult").split(seeds[0])
    model = fitted(split, load_recipe("converged", "adult"), "vanilla", {})[0].double().eval()
    x = split.test.x[:1000].double()
    begun = time.perf_counter()
    attack(model, x, k=K)
    print(f"\nstrong attack on 1,000 examples: {time.perf_counter() - begun:.1f} s of wall clock")


if __name__ == "__main__":
    main()
