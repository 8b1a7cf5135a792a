"""What certificates cost and how close they come to the smallest attack: `make certificates`.

Where eight networks with the answers of three tools lie beside the repository, they are compared
with them; `--only` names the parts to run.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from r2et import attack_curve
from r2et.certification import Certificate, certify
from r2et.core.rng import stream
from r2et.data import Split, load
from r2et.methods import METHODS, Method
from r2et.metrics.statistics import auc
from r2et.models import MODELS
from r2et.models.resnet import ResNet
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit

TOP, DECISIONS, ATTACKED, PICTURES = 8, 1000, 100, 10
EPSILONS, RADII = (0.1, 0.25, 0.5, 1.0), (0.1, 0.3, 1.0)
SETTINGS = FitSettings(epochs=30, batch=1024, learning_rate=0.02, schedule="cosine")
GAP = METHODS["r2et-noh"].build(k=TOP, thickness=0.15, gap="normalised")
SOFT = METHODS["sp"].build(k=TOP, rho=2.0)
NETWORKS: dict[str, tuple[str, Method]] = {
    "softplus": ("mlp", SOFT),
    "softplus with wide gaps": ("mlp", replace(GAP, prepare=SOFT.prepare)),
    "LeakyReLU": ("mlp", Method()),
    "Steadfast": ("structured", METHODS["steadfast"].build(k=TOP)),
}


ANSWERS = Path(__file__).parents[2] / "shared" / "certificates"
THEIRS, THEN = "LiRPA CROWN pairs", "r2et"
BENDS = {"relu": nn.ReLU, "leaky-relu": nn.LeakyReLU, "softplus": nn.Softplus, "tanh": nn.Tanh}
ROUNDED = 5e-6  # what radii of the answers may be off by, which have six digits or fewer
NUMBERS = (1000, 2000, 5000)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A number, and what it may be at most or must be at least."""

    what: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the number is within its limits."""
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )

    def __str__(self) -> str:
        """One line."""
        asked = f"  (at most {self.most:g})" if self.most is not None else ""
        asked += f"  (at least {self.least:g})" if self.least is not None else ""
        return f"{'ok ' if self.holds else 'NO '} {self.what:<72} {self.value:8.3f}{asked}"


def trained(split: Split, kind: str, method: Method) -> nn.Module:
    """A network of Adult, in float64."""
    data, structure = split.dataset, split.dataset.structure
    shape = (
        {"numeric": structure.numeric, "one_hot": structure.one_hot} if kind == "structured" else {}
    )
    network = MODELS[kind].build(data.n, 2, generator=stream(0, "init"), **shape)
    return fit(network, split.train, split.valid, method, SETTINGS)[0].double().eval()


def timed(work: Callable[[], Certificate]) -> tuple[Certificate, float]:
    """What some work gave, and how many seconds it took."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def of_adult() -> list[Limit]:
    """Cost and tightness on networks of Adult."""
    split, limits = load("adult").split(0), []
    for name, (kind, method) in NETWORKS.items():
        model = trained(split, kind, method)
        x = split.test.x[:DECISIONS].double()
        _, seconds = timed(partial(certify, model, x, k=TOP))
        found, whole = timed(partial(certify, model, x, k=TOP, epsilons=EPSILONS))
        some = x[:ATTACKED]
        smallest = attack_curve(model, some, k=TOP, radii=(0.1, 0.3, 1)).smallest
        ratio = found.radius[:ATTACKED] / smallest
        ratio = ratio[smallest < torch.inf]
        broken = len(ratio) / ATTACKED
        wide = name == "softplus with wide gaps"
        score = auc(model, split.test.x.double(), split.test.y)
        limits += [
            Limit(what=f"{name}: broken within 1, %", value=100 * broken),
            Limit(what=f"{name}: seconds for {DECISIONS:,} decisions", value=seconds, most=10.0),
            Limit(what=f"{name}: seconds with certified P@8 at {len(EPSILONS)} eps", value=whole),
            Limit(what=f"{name}: clean AUC", value=score, least=0.878 if wide else None),
            Limit(what=f"{name}: median certified radius", value=float(found.radius.median())),
        ]
        if len(ratio):
            least = 0.6 if "softplus" in name else None
            what = f"{name}: median certified radius / smallest attack"
            limits.append(Limit(what=what, value=float(ratio.median()), least=least))
            what = f"{name}: largest of these ratios"
            limits.append(Limit(what=what, value=float(ratio.max()), most=1.0))
        for epsilon, kept in zip(found.epsilons, found.precision.mean(0).tolist(), strict=True):
            least = 90.0 if wide and epsilon == 0.1 else None
            what = f"{name}: certified P@8 at eps {epsilon:g}"
            limits.append(Limit(what=what, value=100 * kept, least=least))
    return limits


def of_pictures() -> list[Limit]:
    """Cost on convolutional networks of pictures of 28 x 28."""
    limits = []
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(PICTURES, 1, 28, 28, generator=generator, dtype=torch.float64)
    for name, bend, pool in (
        ("ReLU and average pooling", nn.ReLU(), nn.AvgPool2d),
        ("softplus and max pooling", nn.Softplus(5.0), nn.MaxPool2d),
    ):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Conv2d(1, 8, 3), bend, pool(2), nn.Conv2d(8, 16, 3), bend, pool(3),
                nn.Flatten(), nn.Linear(144, 10),
            ).double()  # fmt: skip
        _, seconds = timed(partial(certify, model, x, k=50))
        what = f"{name}: seconds for 100 pictures, by {PICTURES} of them"
        limits.append(Limit(what=what, value=seconds * 100 / PICTURES, most=60.0))
    return limits


def given_network(answer: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    """A network of the answers and its inputs."""
    name = answer["network"]
    tensors = load_file(ANSWERS / f"{name}.safetensors")
    x = tensors.pop("x").double()
    if name == "conv-mnist":
        layers: list[nn.Module] = [
            nn.Conv2d(1, 8, 4, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(400, 2),
        ]  # fmt: skip
    else:
        weights = [each for each in sorted(tensors) if each.endswith("weight")]
        bend = BENDS[answer.get("activation", "relu")]
        layers = []
        for each in weights:
            layers += [nn.Linear(*reversed(tensors[each].shape)), bend()]
        layers.pop()
    model = nn.Sequential(*layers).double().eval()
    model.load_state_dict({key.removeprefix("net."): value for key, value in tensors.items()})
    return model, x


def of_answers() -> list[Limit]:
    """Radii and cost beside those of other tools, on networks that all of them were given."""
    if not ANSWERS.is_dir():
        print(f"(the networks of other tools are not at {ANSWERS}: left out)")
        return []
    answers = json.loads((ANSWERS / "answers.json").read_text(encoding="utf-8"))
    certify(nn.Linear(3, 2), torch.rand(1, 3), k=1)  # what is loaded once is not counted
    print(
        f"{'network':<26}{'now':>9}{'then':>9}{'theirs':>9}{'attack':>9}{'now/theirs':>11}"
        f"{'now/then':>9}{'CPU s':>8}{'theirs':>8}"
    )
    limits = []
    for answer in answers:
        name = answer["network"]
        model, x = given_network(answer)
        settings: dict[str, Any] = {"k": answer["k"], "of": answer.get("of", "probability")}
        if settings["of"] == "logit":
            settings["y"] = torch.zeros(len(x), dtype=torch.long)
        start = time.process_time()
        found = certify(model, x, **settings).radius.tolist()
        seconds = (time.process_time() - start) / len(x)
        radii, costs = answer["l2"], answer["l2 cpu seconds an input"]
        then, theirs = median(radii[THEN]), median(radii[THEIRS])
        least = min(now / (was - ROUNDED) for now, was in zip(found, radii[THEN], strict=True))
        attacks = answer.get("l2 smallest attack", [])
        attack = [math.inf if each is None else each for each in attacks]
        nearest = median(attack) if attack else math.nan
        print(
            f"{name:<26}{median(found):>9.5f}{then:>9.5f}{theirs:>9.5f}{nearest:>9.5f}"
            f"{median(found) / theirs:>11.3f}{median(found) / then:>9.3f}{seconds:>8.4f}"
            f"{costs[THEIRS]:>8.4f}"
        )
        ratio, time_ratio = median(found) / theirs, seconds / costs[THEIRS]
        limits += [
            Limit(what=f"{name}: median radius / that of auto_LiRPA", value=ratio, least=1.0),
            Limit(what=f"{name}: CPU s an input / theirs", value=time_ratio, most=1.0),
            Limit(what=f"{name}: least radius / ours of 2026-11-16", value=least, least=1.0),
        ]
        if attack:
            most = max(now / each for now, each in zip(found, attack, strict=True))
            what = f"{name}: largest radius / smallest attack"
            limits.append(Limit(what=what, value=most, most=1.0))
    return limits


def of_widths() -> list[Limit]:
    """How cost grows with the number of features."""
    limits = []
    for name, bend in (("ReLU", nn.ReLU()), ("softplus", nn.Softplus())):
        seconds = []
        for n in (100, *NUMBERS):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = nn.Sequential(
                    nn.Linear(n, 64), bend, nn.Linear(64, 32), bend, nn.Linear(32, 2)
                ).double()
                x = torch.randn(4, n, dtype=torch.float64)
            start = time.process_time()
            certify(model, x, k=20)
            seconds.append((time.process_time() - start) / len(x))
        growth = math.log(seconds[-1] / seconds[1]) / math.log(NUMBERS[-1] / NUMBERS[0])
        for n, each in zip(NUMBERS, seconds[1:], strict=True):
            limits.append(Limit(what=f"n-64-32-2 {name}: CPU s an input at n = {n:,}", value=each))
        what = f"n-64-32-2 {name}: exponent of cost from {NUMBERS[0]:,} to {NUMBERS[-1]:,} features"
        limits.append(Limit(what=what, value=growth, most=1.3))
    return limits


def of_large_pictures() -> list[Limit]:
    """A convolutional network of three layers on pictures of 32 x 32 x 3 and two residual ones."""
    limits = []
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before, after in ((3, 8), (8, 16), (16, 32)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        three = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)).double()
        residual = ResNet(width=16, blocks=(1, 1, 1, 1))
        for part in residual.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                part.reset_parameters()
    for name, model, some in (
        ("three convolutions", three, x),
        ("residual network of ReLUs", residual.double().eval(), x[:1]),
    ):
        start = time.process_time()
        found = certify(model, some, k=50, of="margin").radius
        seconds = (time.process_time() - start) / len(some)
        share = 100 * float((found > 0).double().mean())
        limits += [
            Limit(what=f"{name}: CPU s a picture", value=seconds, most=60.0),
            Limit(what=f"{name}: certified at some radius, %", value=share, least=50.0),
            Limit(what=f"{name}: -log10 of the median radius", value=-math.log10(found.median())),
        ]
    return limits


PARTS: dict[str, Callable[[], list[Limit]]] = {
    "adult": of_adult, "pictures": of_pictures, "answers": of_answers, "widths": of_widths,
    "large": of_large_pictures,
}  # fmt: skip


def main() -> int:
    """Print all numbers; 1 if one is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    limits = []
    for name in parser.parse_args().only:
        for limit in PARTS[name]():
            print(limit, flush=True)
            limits.append(limit)
    return 0 if all(limit.holds for limit in limits) else 1


if __name__ == "__main__":
    sys.exit(main())
