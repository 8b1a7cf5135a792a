"""Shapes, directions and segments, for each example of a batch by itself."""

import torch
from torch import Tensor


def by_example(values: Tensor, like: Tensor) -> Tensor:
    """One value for each example, shaped to meet those of `like`: (B, 1, ...)."""
    return values.view(-1, *(1,) * (like.ndim - 1))


def one_of(x: Tensor) -> Tensor:
    """A tensor like one example of x, also where there is none; its numbers mean nothing."""
    return x.new_empty(x.shape[1:])


def repeated(x: Tensor, copies: int) -> Tensor:
    """All examples once, then all of them again, and so on: (copies x B, ...)."""
    return x.repeat(copies, *(1,) * (x.ndim - 1))


def unit(direction: Tensor) -> Tensor:
    """Each example's direction, scaled to length one (zero stays zero): like `direction`."""
    # One norm per example: a norm over the batch would let neighbours shorten each other's steps.
    # The largest entry is divided out first: squares of a saturated model's slopes underflow.
    flat = direction.flatten(1)
    largest = flat.abs().amax(-1, keepdim=True)
    flat = flat / torch.where(largest > 0, largest, 1.0)
    length = flat.norm(dim=-1, keepdim=True)
    return (flat / torch.where(length > 0, length, 1.0)).view_as(direction)


def on_segment(x: Tensor, other: Tensor, points: int, which: range | None = None) -> Tensor:
    """Midpoints x(t) = (1 - t) x + t other of `points` equal parts: (points, *other.shape).

    `which` asks for some of the parts only.
    """
    numbers = range(points) if which is None else which
    t = torch.arange(numbers.start, numbers.stop, dtype=x.dtype, device=x.device)
    return torch.lerp(x, other, ((t + 0.5) / points).view(-1, *(1,) * other.ndim))
