"""How exact a search over cells is, and what it costs: `make cells`.

Networks of Adult, Bank and COMPAS (LeakyReLU, one hidden layer of 32 units) and of scikit-learn's
breast cancer data (ReLU, 64 and 32 units), test decisions, k = 8. Prints how many decisions are
decided at each radius and by what, the exact smallest breaking change beside the certificate and
the attack, the exact mean P@8 beside the attack, and how cost grows. Seconds are CPU seconds.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from r2et import load
from r2et.attacks import EnsembleBudget, attack, attack_curve
from r2et.certification import CellVerdicts, certify, search_cells
from r2et.core.rng import stream
from r2et.experiments.config import load_recipe
from r2et.experiments.runner import fitted
from r2et.models import MODELS
from r2et.perturbations import L2Ball

T = TypeVar("T")
K, DECISIONS, SOME, FEW = 8, 300, 100, 20
EPSILONS, WIDE = (0.1, 0.25, 0.5), (0.25, 0.5, 1.0)
SETTINGS = {
    "Vanilla": ("vanilla", {}),
    "R2ET": ("r2et", {"gap": "normalised", "thickness": 0.15, "curvature": 0.003}),
}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What some work gave, and its CPU seconds."""
    begun = time.process_time()
    return work(), time.process_time() - begun


def of_tables(names: Sequence[str]) -> dict[str, tuple[nn.Module, Tensor]]:
    """Networks of the tables, trained to convergence, and test decisions."""
    found: dict[str, tuple[nn.Module, Tensor]] = {}
    for name in names:
        split = load(name).split(0)
        recipe = replace(load_recipe("converged", name), activation="leaky-relu")
        for label, (method, settings) in SETTINGS.items():
            model, _, _ = fitted(split, recipe, method, settings)
            found[f"{name} {label}"] = model.double().eval(), split.test.x[:DECISIONS].double()
    return found


def trained(
    x: Tensor, y: Tensor, hidden: Sequence[int], activation: str, epochs: int = 60
) -> nn.Module:
    """A network by plain descent, in float64."""
    generator = stream(0, "cells", str(hidden), str(x.shape[1]))
    model = (
        MODELS["mlp"]
        .build(x.shape[1], 2, hidden=hidden, activation=activation, generator=generator)
        .double()
    )
    steps = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(128):
            steps.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            steps.step()
    return model.eval().requires_grad_(False)


def of_two_layers() -> tuple[nn.Module, Tensor]:
    """A network of 64 and 32 units for 30 numbers, and decisions that it was not trained on."""
    data = load_breast_cancer()
    x, y = torch.from_numpy(data.data).double(), torch.from_numpy(data.target).long()
    x = (x - x.mean(0)) / x.std(0)
    mixed = torch.randperm(len(x), generator=stream(0, "cells", "rows"))
    train, test = mixed[:-DECISIONS], mixed[-DECISIONS:]
    return trained(x[train], y[train], (64, 32), "relu"), x[test]


def share(found: CellVerdicts, word: str) -> float:
    """How many decisions have this verdict, in percent."""
    return 100 * found.verdict.count(word) / len(found.verdict)


def print_verdicts(networks: dict[str, tuple[nn.Module, Tensor]]) -> None:
    """How many decisions are decided, at each radius."""
    print(f"Verdicts, k = {K}, {DECISIONS} decisions, up to 2 s each")
    head = f"{'network':<24}{'eps':>6}{'decided %':>11}{'broken %':>10}{'certified %':>13}"
    print(f"{head}{'s each':>10}{'nodes':>8}{'most':>8}  by")
    for name, (model, x) in networks.items():
        for epsilon in EPSILONS:
            ball = L2Ball(radius=epsilon)
            found, seconds = timed(
                lambda m=model, x=x, b=ball: search_cells(
                    m, x, k=K, perturbation=b, seconds=2.0 * len(x)
                )
            )
            decided = 100 * float(found.decided.double().mean())
            by = ", ".join(f"{word} {count}" for word, count in Counter(found.decided_by).items())
            nodes = found.nodes.double()
            print(
                f"{name:<24}{epsilon:>6g}{decided:>11.1f}{share(found, 'broken'):>10.1f}"
                f"{share(found, 'certified'):>13.1f}{seconds / len(x):>10.4f}"
                f"{float(nodes.median()):>8.0f}{float(nodes.max()):>8.0f}  {by}",
                flush=True,
            )


def print_smallest(networks: dict[str, tuple[nn.Module, Tensor]]) -> None:
    """The exact smallest change between certificate and attack."""
    print(f"\nSmallest breaking change up to 1, {SOME} decisions: medians, and ratios to the exact")
    head = f"{'network':<24}{'certified':>11}{'exact':>10}{'attack':>10}{'certified / exact':>19}"
    print(f"{head}{'attack / exact':>16}{'most':>8}{'s each':>9}")
    for name, (model, x) in networks.items():
        x = x[:SOME]
        found, seconds = timed(
            lambda m=model, x=x: search_cells(
                m, x, k=K, perturbation=L2Ball(radius=1.0), goal="smallest", seconds=2.0 * len(x)
            )
        )
        proved = certify(model, x, k=K).radius
        seen = attack_curve(model, x, k=K, radii=(0.1, 0.3, 1.0)).smallest
        broken = found.upper.isfinite()
        low, high = (each[broken] / found.upper[broken] for each in (proved, seen))
        print(
            f"{name:<24}{float(proved.median()):>11.4f}{float(found.upper.median()):>10.4f}"
            f"{float(seen.median()):>10.4f}{float(low.median()):>19.3f}{float(high.median()):>16.4f}"
            f"{float(high.max()):>8.3f}{seconds / len(x):>9.4f}",
            flush=True,
        )


def print_worst(networks: dict[str, tuple[nn.Module, Tensor]]) -> None:
    """The exact mean P@k beside the attack with and without cells."""
    print(f"\nMean P@{K} at the worst input, {SOME} decisions; seconds for all of them")
    head = f"{'network':<24}{'eps':>6}{'exact':>9}{'done %':>8}{'s':>8}"
    print(f"{head}{'attack':>9}{'s':>8}{'without cells':>15}{'s':>8}")
    for name, (model, x) in networks.items():
        x = x[:SOME]
        for epsilon in WIDE:
            old, before = timed(
                lambda m=model, x=x, e=epsilon: attack(m, x, k=K, radius=e, budget=EnsembleBudget())
            )
            new, now = timed(lambda m=model, x=x, e=epsilon: attack(m, x, k=K, radius=e))
            found, seconds = timed(
                lambda m=model, x=x, e=epsilon: search_cells(
                    m, x, k=K, perturbation=L2Ball(radius=e), goal="worst", seconds=1.0 * len(x)
                )
            )
            done = 100 * float((found.precision <= found.least_precision + 1e-9).double().mean())
            least = 100 * float(found.least_precision.mean())
            print(
                f"{name:<24}{epsilon:>6g}{least:>9.2f}{done:>8.0f}{seconds:>8.2f}"
                f"{100 * float(new.precision.mean()):>9.2f}{now:>8.2f}"
                f"{100 * float(old.precision.mean()):>15.2f}{before:>8.2f}",
                flush=True,
            )


def grown(what: str, number: float, model: nn.Module, x: Tensor, epsilon: float) -> None:
    """A line of the table of growth."""
    ball = L2Ball(radius=epsilon)
    limit = 5.0 * len(x)
    some, seconds = timed(lambda: search_cells(model, x, k=K, perturbation=ball, seconds=limit))
    exact, whole = timed(
        lambda: search_cells(model, x, k=K, perturbation=ball, goal="smallest", seconds=limit)
    )
    decided = 100 * float(some.decided.double().mean())
    finished = 100 * float(
        (exact.lower >= exact.upper.clamp_max(epsilon) * (1 - 2e-6)).double().mean()
    )
    print(
        f"{what:<24}{number:>8g}{decided:>11.0f}{share(some, 'broken'):>10.0f}"
        f"{seconds / len(x):>10.4f}{float(some.nodes.double().mean()):>9.0f}{finished:>14.0f}"
        f"{whole / len(x):>10.4f}{float(exact.nodes.double().mean()):>9.0f}",
        flush=True,
    )


def made_up(n: int, rows: int = 2000) -> tuple[Tensor, Tensor]:
    """Gaussian numbers and the sign of a smooth function of them."""
    generator = stream(0, "cells", "made up", str(n))
    x = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    ways = torch.randn(n, 4, generator=generator, dtype=torch.float64) / math.sqrt(n)
    return x, ((x @ ways).tanh() @ torch.tensor([1.0, -1.5, 1.0, 0.7]).double() > 0).long()


def print_growth(quick: bool) -> None:
    """How cost grows with width, depth, radius and the number of features."""
    print(f"\nGrowth: {FEW} decisions, up to 5 s each; verdict, then the exact smallest change")
    head = f"{'what':<24}{'':>8}{'decided %':>11}{'broken %':>10}{'s each':>10}{'nodes':>9}"
    print(f"{head}{'exact done %':>14}{'s each':>10}{'nodes':>9}")
    split = load("adult").split(0)
    x, y = split.train.x[:8000].double(), split.train.y[:8000]
    test = split.test.x[:FEW].double()
    for width in (16, 64) if quick else (16, 32, 64, 128, 256, 512):
        grown("width, eps 0.1", width, trained(x, y, (width,), "leaky-relu", 10), test, 0.1)
    for depth in (1, 2) if quick else (1, 2, 3, 4):
        model = trained(x, y, (32,) * depth, "relu", 10)
        grown("depth, 32 each, eps 0.1", depth, model, test, 0.1)
    model = trained(x, y, (32,), "leaky-relu", 10)
    for epsilon in (0.1, 1.0) if quick else (0.05, 0.1, 0.25, 0.5, 1.0, 2.0):
        grown("eps, 32 units", epsilon, model, test, epsilon)
    for n in (10, 30) if quick else (10, 30, 100, 300, 1000):
        drawn, labels = made_up(n)
        model = trained(drawn, labels, (32,), "leaky-relu", 10)
        grown("n, 32 units, eps 0.25", n, model, drawn[:FEW], 0.25)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Adult only, and less growth.")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    networks = of_tables(("adult",) if quick else ("adult", "bank", "compas"))
    both = networks | {"30-64-32-2": of_two_layers()}
    print_verdicts(both)
    print_smallest(both)
    print_worst(both)
    print_growth(quick)


if __name__ == "__main__":
    main()
