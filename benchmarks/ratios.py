"""Costs as ratios measured in one run: against Vanilla, against one at a time, against scale.

Ratios travel between machines, seconds do not. `python benchmarks/ratios.py [--json]`
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from r2et.attacks import WalkBudget, attack
from r2et.core.inputs import Inputs, Piece
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import Gradient, gradient, predicted
from r2et.methods import METHODS, Method
from r2et.models import MODELS, mlp, structured
from r2et.training.objective import Objective
from r2et.training.settings import FitSettings
from r2et.training.stacked import fit_grid

BATCH, FEATURES, TOP = 256, 28, 8


@dataclass(frozen=True, kw_only=True)
class Ratio:
    what: str
    value: float
    unit: str
    limit: str
    holds: bool


def seconds(work: Callable[[], object], repeats: int, rounds: int = 7) -> float:
    """Median over rounds of the mean time of one call, after a warm-up.

    Time of this process: what others do meanwhile on the same machine takes none of it.
    """
    for _ in range(max(1, min(3, repeats), repeats // 10)):
        work()
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(repeats):
            work()
        taken.append((time.process_time() - started) / repeats)
    return statistics.median(taken)


def examples(count: int, features: int = FEATURES) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(count, features, generator=stream(0, "bench", "x"))
    return x, torch.randint(0, 2, (count,), generator=stream(0, "bench", "y"))


def step_of(method: str, features: int = FEATURES, k: int = TOP) -> Callable[[], None]:
    """One training step of the 28-32-2 network at batch 256."""
    model = mlp(features, generator=stream(0, "bench", "init"))
    return step_with(model, METHODS[method].build(k=k), features)


def step_with(model: nn.Module, method: Method, features: int = FEATURES) -> Callable[[], None]:
    return step_on(model, method, *examples(BATCH, features))


def step_on(
    model: nn.Module, method: Method, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], None]:
    objective = Objective(model, method)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        objective(x, y).backward()
        optimizer.step()

    return step


def training_ratios() -> list[Ratio]:
    """A step of each method against one of Vanilla, on the network of the papers and others.

    Without kinks no closed form of the Hessian applies: that is what second derivatives cost. Our
    own method trains a structured network, of the columns of Adult; Vanilla stays as it is.
    """

    def smooth_step(method: str) -> Callable[[], None]:
        model = mlp(FEATURES, activation="softplus", generator=stream(0, "bench", "init"))
        return step_with(model, METHODS[method].build(k=TOP))

    def structured_step(method: str, **settings: float) -> Callable[[], None]:
        if METHODS[method].model != "structured":
            return step_of(method)
        return own_step(method, **settings)

    def own_step(method: str, **settings: float) -> Callable[[], None]:
        groups = [range(2, 6), range(6, 14), range(14, 19), range(19, 25), range(25, 27)]
        init = stream(0, "bench", "init")
        model = structured(FEATURES, numeric=range(2), one_hot=groups, generator=init)
        return step_with(model, METHODS[method].build(k=TOP, **settings))

    def variation_step(method: str) -> Callable[[], None]:
        return structured_step(method, thickness=0.0)

    limits = {"r2et-noh": 2.5, "r2et-mm-noh": 2.8, "r2et": 3.5, "r2et-mm": 4.2}
    limits |= {"est-h": 3.6, "exact-h": 12.0, "ssr": 12.0, "at": 8.0, "cl": 5.0, "thickness": 25.0}
    smooth = {"exact-h": 25.0, "ssr": 15.0, "cl": 12.0}
    ours = {"steadfast-quick": 5.5, "steadfast": 13.0}
    networks = (
        ("", step_of, limits),
        (" on a softplus network", smooth_step, smooth),
        ("", structured_step, ours),
        (" of the same network", own_step, {"steadfast-quick": 3.5, "steadfast": 8.0}),
        (", of its variation alone", variation_step, {"steadfast": 3.0}),
    )
    ratios = []
    for where, builder, most in networks:
        steps = {name: builder(name) for name in ("vanilla", *most)}
        # Interleaved, so that a busy moment of the machine falls on all of them alike.
        rounds = [{name: seconds(step, 30, 1) for name, step in steps.items()} for _ in range(9)]
        for name, limit in most.items():
            value = statistics.median(each[name] / each["vanilla"] for each in rounds)
            what = f"{METHODS[name].label} step / Vanilla step{where}"
            ratios.append(
                Ratio(what=what, value=value, unit="x", limit=f"<= {limit:g}", holds=value <= limit)
            )
    return ratios


def picture_ratios() -> list[Ratio]:
    """A step of R2ET on a whole ResNet18 of 32 x 32 pictures against one of Vanilla, batch 32.

    As in retraining, the statistics of its batch normalisation stay as they are; where they are
    learnt as well, every batch passes through the network once more. Of ten classes each layer is
    passed 12 times, 15 where statistics are learnt, and 3 times by Vanilla: no less than 4 and 5.
    """
    x = torch.rand(32, 3, 32, 32, generator=stream(0, "bench", "pictures"))
    y = torch.randint(0, 10, (32,), generator=stream(0, "bench", "classes"))
    pixels = Inputs(pieces=(Piece(shape=(3, 32, 32)),)).explained()
    explain = Gradient(groups=pixels)

    def step_by(method: Method, learning: bool = False) -> Callable[[], None]:
        model = MODELS["resnet18"].build(generator=stream(0, "bench", "init")).train(learning)
        objective = Objective(model, method)

        def step() -> None:
            model.zero_grad()
            objective(x, y).backward()

        return step

    def r2et(name: str, **settings: float | str) -> Method:
        return METHODS[name].build(k=100, explain=explain, **settings)

    steps = {
        "R2ET\\H": (step_by(r2et("r2et-noh")), 2.4),
        "R2ET": (step_by(r2et("r2et")), 4.5),
        "R2ET\\H by a directional derivative": (step_by(r2et("r2et-noh", by="direction")), 2.8),
        "R2ET, curvature on a quarter of the batch": (step_by(r2et("r2et", share=0.25)), 3.4),
        "R2ET\\H, statistics learnt as well": (step_by(r2et("r2et-noh"), True), 3.8),
        "R2ET, statistics learnt as well": (step_by(r2et("r2et"), True), 6.2),
    }
    vanilla = step_by(Method())
    ratios = []
    for name, (step, limit) in steps.items():
        rounds = [seconds(step, 1, 1) / seconds(vanilla, 1, 1) for _ in range(3)]
        value = statistics.median(rounds)
        what = f"{name} / Vanilla step, ResNet18, batch 32"
        ratios.append(
            Ratio(what=what, value=value, unit="x", limit=f"<= {limit:g}", holds=value <= limit)
        )
    return ratios


class Attentive(nn.Module):
    """Two layers of attention among tokens of width 64, (B, t, m) -> (B, C), m numbers each."""

    def __init__(self, tokens: int, numbers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(numbers, 64)
        self.places = nn.Parameter(torch.zeros(tokens, 64))
        layers = [
            nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        ]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One logit for each class: (B, C)."""
        seen: torch.Tensor = self.head(self.layers(self.embed(x) + self.places).mean(1))
        return seen


def attention_ratios() -> list[Ratio]:
    """A step of R2ET on small networks with attention against one of Vanilla, batch 32.

    One of pictures, 32 x 32 in patches of 4 x 4, and one of texts, 32 embedded words of width 64.
    """
    y = torch.randint(0, 2, (32,), generator=stream(0, "bench", "classes"))
    networks = {
        "ViT, 64 patches": (64, 48, {"r2et-noh": 3.2, "r2et": 5.5}),
        "text, 32 embedded words": (32, 64, {"r2et-noh": 2.8, "r2et": 4.5}),
    }
    ratios = []
    for what, (tokens, numbers, limits) in networks.items():
        x = torch.rand(32, tokens, numbers, generator=stream(0, "bench", "tokens"))
        steps = {}
        for name in ("vanilla", *limits):
            model = Attentive(tokens, numbers, 2).eval()
            steps[name] = step_on(model, METHODS[name].build(k=100), x, y)
        rounds = [{name: seconds(step, 2, 1) for name, step in steps.items()} for _ in range(7)]
        for name, limit in limits.items():
            value = statistics.median(each[name] / each["vanilla"] for each in rounds)
            label = f"{METHODS[name].label} step / Vanilla step, {what}, batch 32"
            ratios.append(
                Ratio(
                    what=label, value=value, unit="x", limit=f"<= {limit:g}", holds=value <= limit
                )
            )
    return ratios


def grid_ratios() -> list[Ratio]:
    """A grid of networks trained as one, validation and all, against steps of one after another."""
    networks, rows = 32, 128 * BATCH
    x, y = examples(rows)
    train = Part(rows=torch.arange(rows), x=x, y=y)
    valid = Part(rows=torch.arange(BATCH), x=x[:BATCH], y=y[:BATCH])
    models = [mlp(FEATURES, generator=stream(i, "bench", "init")) for i in range(networks)]
    settings = FitSettings(epochs=1, batch=BATCH, learning_rate=1e-3)

    def one_after_another(method: Method) -> None:
        # Every batch is another one, as in training: a processor learns a small sort by heart.
        model = copy.deepcopy(models[0])
        objective = Objective(model, method)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for batch in torch.randperm(rows, generator=stream(0, "bench", "rows")).split(BATCH):
            optimizer.zero_grad()
            objective(x[batch], y[batch]).backward()
            optimizer.step()

    def together(method: Method) -> None:
        parts = [train] * networks, [valid] * networks
        fit_grid(models, *parts, method, settings, seeds=range(networks), device="cpu")

    ratios = []
    for name in ("vanilla", "r2et-noh"):
        method = METHODS[name].build(k=TOP)
        rounds = []
        for _ in range(5):
            # Interleaved, so that a busy moment of the machine falls on both alike.
            moments = [time.perf_counter()]
            for work in (one_after_another, together, one_after_another):
                work(method)
                moments.append(time.perf_counter())
            before, middle, after = (end - begin for begin, end in pairwise(moments))
            rounds.append(networks * (before + after) / 2 / middle)
        value = statistics.median(rounds)
        what = f"{METHODS[name].label}, {networks} networks as one / one by one, steps per second"
        ratios.append(Ratio(what=what, value=value, unit="x", limit=">= 4", holds=value >= 4))
    return ratios


def attack_ratios() -> list[Ratio]:
    model = mlp(FEATURES, generator=stream(0, "bench", "init")).double()
    budget = WalkBudget(steps=30, record_every=10)
    walked = partial(attack, k=TOP, method="er", budget=budget)
    x, _ = examples(4096)
    x = x.double()
    y = predicted(model, x)
    alone = seconds(lambda: walked(model, x[:1], y[:1]), 2, 5)
    together = seconds(lambda: walked(model, x, y), 1, 5)
    value = alone / (together / len(x))
    what = f"batched ERAttack, {len(x)} examples / one at a time, examples per second"
    return [Ratio(what=what, value=value, unit="x", limit=">= 200", holds=value >= 200)]


MEMORY = """
import pathlib, torch
from r2et.methods import mean_margin
saliency = torch.rand(4, 400_000).requires_grad_()
saliency.sum().backward()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
before = peak()
for gap in ("plain", "exponential", "normalised"):
    for pairs in ("all", "facing", "anchor"):
        mean_margin(saliency, saliency.detach(), 50, pairs=pairs, gap=gap).sum().backward()
print(peak() - before)
"""


def memory_ratios() -> list[Ratio]:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    value = float(done.stdout)
    what = "peak memory of the gap term, n = 400,000, k = 50, batch 4, all forms"
    return [Ratio(what=what, value=value, unit="MB", limit="< 200", holds=value < 200)]


def growth_ratios() -> list[Ratio]:
    """Ten times the examples, features or k: how much more the same work costs."""
    model = mlp(FEATURES, generator=stream(0, "bench", "init"))
    wide = mlp(10 * FEATURES, generator=stream(0, "bench", "init"))
    few, _ = examples(1000)
    many, _ = examples(10_000)
    broad, _ = examples(1000, 10 * FEATURES)

    def explain(network: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
        labels = predicted(network, x)
        return lambda: gradient(network, x, labels)

    base = seconds(explain(model, few), 20)
    pairs = [
        ("examples x 10: explanation", seconds(explain(model, many), 5) / base),
        ("features x 10: explanation", seconds(explain(wide, broad), 5) / base),
        (
            "features x 10: R2ET\\H step",
            seconds(step_of("r2et-noh", 10 * FEATURES), 30) / seconds(step_of("r2et-noh"), 30),
        ),
        (
            "k x 10 at 280 features: R2ET\\H step",
            seconds(step_of("r2et-noh", 280, 80), 30) / seconds(step_of("r2et-noh", 280, 8), 30),
        ),
    ]
    limits = {"k x 10 at 280 features: R2ET\\H step": 1.5}
    return [
        Ratio(
            what=what,
            value=value,
            unit="x",
            limit=f"<= {limits.get(what, 15):g}",
            holds=value <= limits.get(what, 15),
        )
        for what, value in pairs
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratios = training_ratios() + picture_ratios() + attention_ratios()
    ratios += grid_ratios() + attack_ratios() + memory_ratios() + growth_ratios()
    if arguments.json:
        print(json.dumps([asdict(each) for each in ratios], indent=1))
    else:
        for each in ratios:
            mark = "ok" if each.holds else "MISSED"
            print(f"{each.what:<72} {each.value:8.2f} {each.unit:<3} {each.limit:<8} {mark}")
    return 0 if all(each.holds for each in ratios) else 1


if __name__ == "__main__":
    raise SystemExit(main())
