"""How far linear maps can stretch a vector: upper bounds of their l2 norms."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

FREQUENCIES = 8
KNOWN = WeakTensorKeyDictionary()
"""Norms of weights that were asked for before."""


def matrix_norm(weight: Tensor) -> float:
    """The largest singular value of a matrix, rounded up."""
    return _once(weight, None, lambda: float(torch.linalg.matrix_norm(weight, 2)))


def convolution_norm(weight: Tensor, stride: tuple[int, int] = (1, 1)) -> float:
    """An upper bound of the l2 norm of a convolution with zeros beyond the border.

    It is no more than that of the convolution of the whole plane, which is the largest singular
    value of its Fourier transform at any frequency. With a stride, frequencies that become one are
    beside one another in one matrix. The square is a trigonometric polynomial of a degree below the
    kernel's size: between N frequencies of each dimension that is at most its largest value there,
    over cos(pi degree / N) for each dimension [Ehlich and Zeller 1964].
    """

    def bound() -> float:
        sizes = weight.shape[2:]
        steps = zip(sizes, stride, strict=True)
        count = [step * max(FREQUENCIES, 8 * size) for size, step in steps]
        transform = torch.fft.fftn(weight, s=count, dim=(2, 3)).permute(2, 3, 0, 1)
        high, wide = (each // step for each, step in zip(count, stride, strict=True))
        apart = transform.view(stride[0], high, stride[1], wide, *weight.shape[:2])
        joined = apart.permute(1, 3, 4, 0, 2, 5).flatten(3)
        half = joined[:, : wide // 2 + 1]  # the rest are conjugates of these
        if half.shape[2] > half.shape[3]:
            half = half.mT
        squared = float(torch.linalg.eigvalsh(half @ half.mH).max()) / math.prod(stride)
        for size, each in zip(sizes, count, strict=True):
            squared /= math.cos(math.pi * (size - 1) / each)
        return math.sqrt(max(squared, 0.0))

    return _once(weight, stride, bound)


def _once(weight: Tensor, stride: tuple[int, int] | None, bound: Callable[[], float]) -> float:
    found = KNOWN.get(weight)
    if found is None or found[:2] != (weight._version, stride):
        found = weight._version, stride, (1 + 1e-9) * bound()
        KNOWN[weight] = found
    value: float = found[2]
    return value
