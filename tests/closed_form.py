"""Models solved by hand, in float64: their saliency and Hessian are known without a derivative."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal float64 numbers that depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class Linear(nn.Module):
    """Logits [0, w'x + b]: the slope of the second is w everywhere, its Hessian zero."""

    def __init__(self, d: int = 4, seed: int = 0, w: Tensor | None = None, b: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(numbers(d, seed=seed) if w is None else w)
        self.b = nn.Parameter(torch.tensor(b, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        score = x @ self.w + self.b
        return torch.stack([torch.zeros_like(score), score], dim=-1)


class Quadratic(nn.Module):
    """Logits [0, x'Ax/2 + b'x], A symmetric: the slope of the second is Ax + b, its Hessian A."""

    def __init__(
        self, d: int = 4, seed: int = 0, A: Tensor | None = None, b: Tensor | None = None
    ) -> None:
        super().__init__()
        drawn = numbers(d, d, seed=seed)
        self.A = nn.Parameter((drawn + drawn.T) / 2 if A is None else A)
        self.b = nn.Parameter(numbers(d, seed=seed + 1) if b is None else b)

    def forward(self, x: Tensor) -> Tensor:
        score = ((x @ self.A) * x).sum(-1) / 2 + x @ self.b
        return torch.stack([torch.zeros_like(score), score], dim=-1)


def tiny_mlp(
    d: int = 6,
    hidden: int = 5,
    classes: int = 2,
    activation: type[nn.Module] = nn.Tanh,
    seed: int = 0,
) -> nn.Sequential:
    """A small network with one hidden layer, the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(d, hidden), activation(), nn.Linear(hidden, classes))
    return layers.double()


def conv_net(
    classes: int = 3, pool: type[nn.Module] = nn.MaxPool2d, seed: int = 0
) -> nn.Sequential:
    """A small network on pictures (B, 1, 6, 6), smooth but for the choice of its pooling."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.Softplus(), pool(2), nn.Flatten(), nn.Linear(12, classes)
        )
    return layers.double()


def mixing_mlp(d: int = 6, classes: int = 2, seed: int = 0) -> nn.Sequential:
    """A network in training mode whose examples meet in batch normalisation and random dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(
            nn.Linear(d, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, classes)
        ).double()
        layers(3 * numbers(16, d, seed=seed) + 1)  # running statistics that are not 0 and 1
    return layers


class DropoutInForward(nn.Module):
    """A network that draws at random in its own forward, where no dropout layer can be found."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.layers = tiny_mlp(d)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(F.dropout(x, 0.5, self.training))
        return scores


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor holds that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor):  # an expanded view takes no memory of its own
                held = part.untyped_storage().nbytes() // part.element_size()
                self.numel = max(self.numel, held)
        return out
