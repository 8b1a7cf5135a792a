"""What certificates cost and how close they come to the smallest attack: `make certificates`."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from r2et import attack_curve
from r2et.certification import Certificate, certify
from r2et.core.rng import stream
from r2et.data import Split, load
from r2et.methods import METHODS, Method
from r2et.metrics.statistics import auc
from r2et.models import MODELS
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


def main() -> int:
    """Print all numbers; 1 if one is beyond its limit."""
    limits = []
    for part in (of_adult, of_pictures):
        for limit in part():
            print(limit, flush=True)
            limits.append(limit)
    return 0 if all(limit.holds for limit in limits) else 1


if __name__ == "__main__":
    sys.exit(main())
