"""A small network for every operation that has a bound, and calls of them that have none.

Whoever adds a bound adds an entry of `CASES` here: all promises of certificates are then tested of
it, in test_certified_operations.py.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload

aten = torch.ops.aten


class Written(nn.Module):
    """A network whose forward is given."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(7, 6), nn.Linear(6, 2)
        self.written = forward
        self.register_buffer("mean", torch.linspace(-1, 1, 6))
        self.register_buffer("variance", torch.linspace(0.5, 2, 6))
        self.double()

    @property
    def statistics(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.variance

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)


Forward = Callable[[Any, Tensor], Any]
Step = Callable[[Any, Tensor, Tensor], Any]


def bent(own: Any, x: Tensor) -> Tensor:
    """Six numbers that bend with the seven of x: (B, 6)."""
    found: Tensor = torch.tanh(own.first(x))
    return found


def then_last(step: Step) -> Forward:
    """A network with `step(own, h, x)` between six numbers that bend and the last layer."""
    return lambda own, x: own.last(step(own, bent(own, x), x))


def picture(own: Any, x: Tensor) -> Tensor:
    """The six numbers as a picture: (B, 1, 2, 3)."""
    return bent(own, x).view(len(x), 1, 2, 3)


def matrix(h: Tensor) -> Tensor:
    """The six numbers as a matrix: (B, 2, 3)."""
    return h.view(len(h), 2, 3)


CASES: dict[OpOverload, Forward] = {
    # sums and products
    aten.add.Tensor: then_last(lambda own, h, x: torch.add(h, x[:, :6], alpha=-2)),
    aten.add.Scalar: then_last(lambda own, h, x: aten.add.Scalar(h, 0.3, 2)),
    aten.sub.Tensor: then_last(lambda own, h, x: torch.sub(h, x[:, :6], alpha=0.3)),
    aten.sub.Scalar: then_last(lambda own, h, x: aten.sub.Scalar(h, 0.3, 2)),
    aten.rsub.Scalar: then_last(lambda own, h, x: 1 - h),
    aten.rsub.Tensor: then_last(lambda own, h, x: aten.rsub.Tensor(h, x[:, :6], alpha=2)),
    aten.mul.Tensor: then_last(lambda own, h, x: h * x[:, 1:]),
    aten.mul.Scalar: then_last(lambda own, h, x: aten.mul.Scalar(h, -1.5)),
    aten.div.Tensor: then_last(lambda own, h, x: h / own.variance),
    aten.div.Scalar: then_last(lambda own, h, x: aten.div.Scalar(h, -1.5)),
    aten.neg.default: then_last(lambda own, h, x: -h),
    aten.addcmul.default: then_last(lambda own, h, x: torch.addcmul(own.mean, h, x[:, :6])),
    aten.pow.Tensor_Scalar: then_last(lambda own, h, x: h**2),
    # linear layers
    aten.mm.default: then_last(lambda own, h, x: h @ own.first.weight[:, :6]),
    aten.mv.default: then_last(lambda own, h, x: h + (h @ own.mean).unsqueeze(1)),
    aten.addmm.default: then_last(lambda own, h, x: h),
    aten.convolution.default: then_last(
        lambda own, h, x: F.conv2d(
            matrix(h)[:, None], own.mean.view(1, 1, 2, 3), own.variance[:1], padding=1
        ).flatten(1)[:, :6]
    ),
    aten.native_batch_norm.default: then_last(lambda own, h, x: F.batch_norm(h, *own.statistics)),
    aten._native_batch_norm_legit_no_training.default: then_last(
        lambda own, h, x: aten._native_batch_norm_legit_no_training.default(
            h, own.last.weight[0], None, *own.statistics, 0.1, 1e-5
        )[0]
    ),
    # activations
    aten.relu.default: lambda own, x: own.last(F.relu(own.first(x))),
    aten.leaky_relu.default: lambda own, x: own.last(F.leaky_relu(own.first(x), 0.2)),
    aten.softplus.default: lambda own, x: own.last(F.softplus(own.first(x), beta=2)),
    aten.gelu.default: lambda own, x: own.last(F.gelu(own.first(x))),
    aten.sigmoid.default: lambda own, x: own.last(torch.sigmoid(own.first(x))),
    aten.tanh.default: lambda own, x: own.last(torch.tanh(own.first(x))),
    aten.silu.default: lambda own, x: own.last(F.silu(own.first(x))),
    # sums, means and pools over parts of an example
    aten.sum.dim_IntList: then_last(lambda own, h, x: h * h.sum(1, keepdim=True)),
    aten.mean.dim: then_last(lambda own, h, x: h - h.mean(1, keepdim=True)),
    aten.avg_pool2d.default: lambda own, x: F.avg_pool2d(picture(own, x), (1, 3)).flatten(1),
    aten._adaptive_avg_pool2d.default: lambda own, x: F.adaptive_avg_pool2d(
        picture(own, x), (2, 1)
    ).flatten(1),
    aten.max_pool2d_with_indices.default: lambda own, x: F.max_pool2d(
        picture(own, x), (1, 3)
    ).flatten(1),
    # the same numbers in another shape or place
    aten.view.default: then_last(lambda own, h, x: matrix(h).flatten(1)),
    aten._unsafe_view.default: then_last(
        lambda own, h, x: matrix(h).transpose(1, 2).reshape(len(x), 6)
    ),
    aten.expand.default: then_last(lambda own, h, x: h[:, :1].expand(-1, 6) * h),
    aten.permute.default: then_last(lambda own, h, x: matrix(h).permute(0, 2, 1).flatten(1)),
    aten.transpose.int: then_last(lambda own, h, x: matrix(h).transpose(1, 2).flatten(1)),
    aten.unsqueeze.default: then_last(lambda own, h, x: h.unsqueeze(1).flatten(1)),
    aten.squeeze.dim: then_last(lambda own, h, x: h[:, None].squeeze(1)),
    aten.squeeze.dims: then_last(lambda own, h, x: h[:, None, :, None].squeeze((1, 3))),
    aten.select.int: then_last(
        lambda own, h, x: torch.cat([matrix(h).select(1, 1), matrix(h).select(1, 0)], 1)
    ),
    aten.slice.Tensor: then_last(lambda own, h, x: h * x[:, :6]),
    aten.split.Tensor: then_last(lambda own, h, x: torch.cat(h.split(4, 1)[::-1], 1)),
    aten.split_with_sizes.default: then_last(
        lambda own, h, x: torch.cat(h.split([1, 5], dim=1)[::-1], 1)
    ),
    aten.unbind.int: then_last(lambda own, h, x: torch.cat(matrix(h).unbind(1)[::-1], 1)),
    aten.index_select.default: then_last(
        lambda own, h, x: h.index_select(1, torch.tensor([5, 0, 1, 0, 4, 3]))
    ),
    aten.index.Tensor: then_last(lambda own, h, x: h[:, [1, 0, 2, 3, 5, 4]]),
    aten.index_add.default: then_last(
        lambda own, h, x: h.index_add(1, torch.tensor([0, 2, 2]), x[:, :3], alpha=-2)
    ),
    aten.cat.default: then_last(lambda own, h, x: torch.cat([h[:, 2:], x[:, :2]], 1)),
    aten.stack.default: then_last(lambda own, h, x: torch.stack([h, x[:, :6]], 1).sum(1)),
    aten.constant_pad_nd.default: then_last(lambda own, h, x: F.pad(h[:, 1:], (0, 1), value=0.5)),
    aten.clone.default: then_last(lambda own, h, x: h.clone()),
    aten.alias.default: then_last(lambda own, h, x: aten.alias.default(h)),
    aten.detach.default: then_last(lambda own, h, x: h + torch.ones_like(h).detach()),
    # numbers that do not move
    aten.zeros_like.default: then_last(lambda own, h, x: h + torch.zeros_like(x[:, :6])),
    aten.ones_like.default: then_last(lambda own, h, x: h * torch.ones_like(x[:, :6])),
    aten.full_like.default: then_last(lambda own, h, x: h - torch.full_like(x[:, :6], 2.0)),
    aten.new_zeros.default: then_last(
        lambda own, h, x: torch.cat([h[:, 2:], x.new_zeros(len(x), 2)], 1)
    ),
    aten.new_ones.default: then_last(lambda own, h, x: h * x.new_ones(len(x), 6)),
    aten.new_full.default: then_last(lambda own, h, x: h + x.new_full((len(x), 1), 3.0)),
    aten.zeros.default: then_last(lambda own, h, x: h + torch.zeros(len(x), 6, dtype=x.dtype)),
    aten.ones.default: then_last(lambda own, h, x: h * torch.ones(len(x), 6, dtype=x.dtype)),
    aten.full.default: then_last(lambda own, h, x: h * torch.full((len(x), 6), 2.0, dtype=x.dtype)),
}
"""Of each operation that has a bound, a network that uses it."""

UNCOVERED: dict[str, tuple[Forward, str]] = {
    "divided by what moves": (then_last(lambda own, h, x: h / (2 + h)), "divides by what moves"),
    "a cube": (then_last(lambda own, h, x: h**3), "of powers only squares"),
    "a product of what moves": (
        then_last(lambda own, h, x: (matrix(h) @ matrix(h).mT).flatten(1).repeat(1, 2)[:, :6]),
        "no bound is known for aten.",
    ),
    "weights that move": (
        lambda own, x: own.last(F.linear(x, own.first.weight * x.mean())),
        "rows|no bound is known",
    ),
    "GELU by tanh": (then_last(lambda own, h, x: F.gelu(h, approximate="tanh")), "approximate"),
    "softplus turned round": (
        then_last(lambda own, h, x: F.softplus(h, beta=-1.0)),
        "beta above 0",
    ),
    "max pooling with padding": (
        lambda own, x: F.max_pool2d(picture(own, x), 2, padding=1).flatten(1),
        "without padding",
    ),
    "statistics of the batch": (
        then_last(
            lambda own, h, x: F.batch_norm(matrix(h)[:, None], None, None, training=True).flatten(1)
        ),
        "rows|mixes its examples",
    ),
    "a sum over rows": (then_last(lambda own, h, x: h - h.sum(0)), "rows|examples are mixed"),
    "a mean over rows": (then_last(lambda own, h, x: h - h.mean(0)), "rows|examples are mixed"),
    "rows turned round": (then_last(lambda own, h, x: h + h.flip(0)), "rows|no bound is known"),
    "one row for all": (then_last(lambda own, h, x: h + h[:1]), "rows|examples are mixed"),
    "a slope that is stopped": (
        then_last(lambda own, h, x: h * h.detach()),
        "its gradient stopped|not the gradient",
    ),
    "numbers of another type": (
        then_last(lambda own, h, x: h * torch.ones(len(x), 6, dtype=torch.float32)),
        "float64|no bound is known",
    ),
}
"""Calls that no bound covers, and what their refusals say."""
