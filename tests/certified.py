"""Networks of every kind of layer that has a bound, and an attack within certificates."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.certification import Certificate
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.ranking import top_k_mask
from r2et.explainers import SCORES, Quantity
from r2et.models import structured
from r2et.models.smoothing import SoftLeaky

TABLE, PICTURE = (7,), (1, 6, 6)
WIDE, LARGE = (300,), (1, 17, 17)
"""Inputs of so many numbers that linear maps of them are not written out."""


class Residual(nn.Module):
    """A block with a way around it, and a batch normalisation whose statistics are not 0 and 1."""

    def __init__(self, d: int, activation: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm, self.bend = nn.Linear(d, d), nn.BatchNorm1d(d), activation
        self.norm.running_mean = torch.linspace(-0.3, 0.4, d)
        self.norm.running_var = torch.linspace(0.5, 1.5, d)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.bend(self.norm(self.inner(x)))
        return found


class Functional(nn.Module):
    """A network that calls functions instead of layers, scales, slices and puts together."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d, 6), nn.Linear(8, 2)
        self.offset = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.softplus(self.first(x) / 1.5, beta=2)
        hidden = torch.cat([hidden, torch.tanh(x[:, :2]) * 0.5], dim=1)
        found: Tensor = self.second(F.dropout(hidden, 0.5, self.training)) - self.offset
        return found


def table_net(
    activation: nn.Module, hidden: int = 8, layers: int = 1, classes: int = 2
) -> nn.Module:
    sizes, parts = [TABLE[0], *[hidden] * layers], list[nn.Module]()
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), activation]
    return nn.Sequential(*parts, nn.Linear(sizes[-1], classes))


def picture_net(pool: nn.Module, activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), activation, pool, nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 2),
    )  # fmt: skip


def wide_net(activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDE[0], 12), activation, nn.Linear(12, 8), activation, nn.Linear(8, 2)
    )


def large_net(pool: nn.Module, activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), activation, pool,
        nn.Conv2d(3, 4, 2), activation, nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip


NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "relu": (TABLE, lambda: table_net(nn.ReLU())),
    "leaky relu": (TABLE, lambda: table_net(nn.LeakyReLU(0.1))),
    "softplus": (TABLE, lambda: table_net(nn.Softplus(2.0), hidden=16)),
    "sigmoid": (TABLE, lambda: table_net(nn.Sigmoid())),
    "tanh": (TABLE, lambda: table_net(nn.Tanh())),
    "gelu": (TABLE, lambda: table_net(nn.GELU())),
    "silu": (TABLE, lambda: table_net(nn.SiLU())),
    "rounded leaky relu": (TABLE, lambda: table_net(SoftLeaky(4.0, 0.1))),
    "two layers": (TABLE, lambda: table_net(nn.Softplus(2.0), layers=2)),
    "three layers": (TABLE, lambda: table_net(nn.Tanh(), layers=3, hidden=6)),
    "two layers of relus": (TABLE, lambda: table_net(nn.ReLU(), layers=2)),
    "three classes": (TABLE, lambda: table_net(nn.Softplus(), classes=3)),
    "residual": (
        TABLE,
        lambda: nn.Sequential(Residual(7, nn.SiLU()), Residual(7, nn.Softplus()), nn.Linear(7, 2)),
    ),
    "functional": (TABLE, lambda: Functional(7)),
    "structured": (
        TABLE,
        lambda: structured(
            7, 2, numeric=[0, 1], one_hot=[[2, 3, 4]], generator=torch.Generator().manual_seed(1)
        ),
    ),
    "max pooling": (PICTURE, lambda: picture_net(nn.MaxPool2d(2), nn.Softplus())),
    "average pooling": (PICTURE, lambda: picture_net(nn.AvgPool2d(2), nn.GELU())),
    "residual relus": (
        TABLE,
        lambda: nn.Sequential(Residual(7, nn.ReLU()), Residual(7, nn.ReLU()), nn.Linear(7, 3)),
    ),
    "wide relus": (WIDE, lambda: wide_net(nn.LeakyReLU(0.2))),
    "wide softplus": (WIDE, lambda: wide_net(nn.Softplus(2.0))),
    "relus and max pooling": (LARGE, lambda: large_net(nn.MaxPool2d(2), nn.ReLU())),
    "adaptive pooling": (PICTURE, lambda: picture_net(nn.AdaptiveAvgPool2d(3), nn.ReLU())),
}


def network(name: str, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    """A network of a name with weights by the seed, ready to predict in float64, and its inputs."""
    shape, build = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
    return model.double().eval(), shape


def labels(model: nn.Module, x: Tensor) -> Tensor:
    """The predicted classes: (B,)."""
    with torch.no_grad():
        found: Tensor = model(x).argmax(-1)
    return found


def signed_gradient(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    of: Quantity = "probability",
    one_hot: OneHot | None = None,
) -> Tensor:
    """The slope that is certified, with a graph to x: (B, n)."""
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(SCORES[of](model(x), y).sum(), x, create_graph=True)
    return project_one_hot(slope, one_hot).flatten(1)


def broken(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    found: Certificate,
    *,
    k: int,
    points: int = 20,
    steps: int = 8,
    share: float = 0.999,
    one_hot: OneHot | None = None,
) -> tuple[int, int]:
    """How many attacked inputs within the certified radius have another top k, and how many ran.

    From random places of the sphere, steps down the gap of the weakest pair, and of random ones.
    """
    radius = found.radius.clamp_max(1e3) * share
    rows = torch.arange(len(x)).repeat_interleave(points)
    centre, label, length = x[rows], y[rows], radius[rows]
    clean = signed_gradient(model, x.clone().requires_grad_(), y, one_hot=one_hot).detach()
    mask, signs = top_k_mask(clean.abs(), k), clean.sign()
    generator = torch.Generator().manual_seed(0)
    ours, theirs = found.weakest[rows].unbind(-1)
    shown = torch.rand(len(rows), clean.shape[1], generator=generator, dtype=x.dtype)
    other = (rows % 2 == 0) | (torch.arange(len(rows)) % 3 > 0)
    ours = torch.where(other, ours, (shown * mask[rows]).argmax(-1))
    theirs = torch.where(other, theirs, (shown * ~mask[rows]).argmax(-1))
    place = _on_sphere(
        torch.randn(centre.shape, generator=generator, dtype=x.dtype), centre, length
    )
    failures = 0
    for _ in range(steps + 1):
        at = place.detach().requires_grad_()
        slope = signed_gradient(model, at, label, one_hot=one_hot)
        failures += int((top_k_mask(slope.detach().abs(), k) != mask[rows]).any(-1).sum())
        gap = slope.gather(1, ours[:, None]).squeeze(1) * signs[rows, ours]
        gap = gap - slope.gather(1, theirs[:, None]).squeeze(1).abs()
        if gap.requires_grad:
            (downhill,) = torch.autograd.grad(gap.sum(), at, allow_unused=True)
            if downhill is not None:
                move = _unit(downhill) * length.view(-1, *(1,) * (x.ndim - 1))
                place = _on_sphere(place.detach() - centre - move, centre, length)
    return failures, len(rows) * (steps + 1)


def _unit(direction: Tensor) -> Tensor:
    flat = direction.flatten(1)
    return (flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-300)).view_as(direction)


def _on_sphere(direction: Tensor, centre: Tensor, length: Tensor) -> Tensor:
    return (centre + _unit(direction) * length.view(-1, *(1,) * (centre.ndim - 1))).detach()
