"""Models solved by hand, in float64: their saliency and Hessian are known without a derivative."""

import torch
from torch import Tensor, nn


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
