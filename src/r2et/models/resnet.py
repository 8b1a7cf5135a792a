"""Residual networks of pictures, from those of 32 x 32 upwards."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from r2et.models.linear import undrawn

Stem = Literal["small", "large"]
Norm = Literal["batch", "none"]
Activation = Callable[[], nn.Module]


class Block(nn.Module):
    """Two 3x3 convolutions and a way around: (B, before, H, W) -> (B, after, H/s, W/s).

    s = `stride`; `before` and `after` are numbers of channels.
    """

    piecewise_linear = True

    def __init__(
        self, before: int, after: int, stride: int, norm: Norm, activation: Activation
    ) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *_convolution(before, after, 3, stride, norm),
            activation(),
            *_convolution(after, after, 3, 1, norm),
        )
        self.around = (
            nn.Sequential(*_convolution(before, after, 1, stride, norm))
            if (stride, before) != (1, after)
            else nn.Identity()
        )
        self.bend = activation()

    def forward(self, x: Tensor) -> Tensor:
        """What both ways add up to, bent."""
        found: Tensor = self.bend(self.path(x) + self.around(x))
        return found


class ResNet(nn.Module):
    """A residual network of pictures in [0, 1], its weights not drawn yet: (B, c, H, W) -> (B, C).

    Four stages of `blocks`, the first `width` wide, each next one twice as wide and half as high.
    The stem is a 3x3 convolution, or for "large" pictures one of 7x7 and a max pooling, each of
    stride 2. `features` are the means over all places, 8 `width` of them, or as many as
    `penultimate` says, made of these by a layer of their own. Pictures are centred by `mean` and
    divided by `std`, one of each channel or of all, before anything else.
    """

    piecewise_linear = True
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        channels: int = 3,
        classes: int = 10,
        *,
        width: int = 64,
        blocks: Sequence[int] = (2, 2, 2, 2),
        stem: Stem = "small",
        norm: Norm = "batch",
        penultimate: int | None = None,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.25,
        activation: Activation = nn.ReLU,
    ) -> None:
        super().__init__()
        _check_choices(stem, norm, blocks)
        self.register_buffer("mean", _by_channel(mean, channels))
        self.register_buffer("std", _by_channel(std, channels))
        if not bool((self.std > 0).all()):
            raise ValueError(f"the standard deviation of each channel must be above 0, got {std}.")
        layers: list[nn.Module]
        if stem == "large":
            layers = [*_convolution(channels, width, 7, 2, norm), activation()]
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        else:
            layers = [*_convolution(channels, width, 3, 1, norm), activation()]
        before = width
        for stage, count in enumerate(blocks):
            after = width * 2**stage
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(Block(before, after, stride, norm, activation))
                before = after
        self.body = nn.Sequential(*layers)
        self.penultimate = (
            nn.Identity()
            if penultimate is None
            else nn.Sequential(undrawn(before, penultimate), activation())
        )
        self.head = undrawn(penultimate or before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """One logit for each class: (B, C)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Activations of the penultimate neurons, concepts of each picture: (B, n)."""
        seen = self.body((x - self.mean) / self.std)
        found: Tensor = self.penultimate(seen.mean((2, 3)))
        return found


def _convolution(before: int, after: int, size: int, stride: int, norm: Norm) -> list[nn.Module]:
    """A convolution that keeps borders, normalised; without a norm it has a bias instead."""
    layer = nn.utils.skip_init(
        nn.Conv2d, before, after, size, stride=stride, padding=size // 2, bias=norm == "none"
    )
    return [layer] if norm == "none" else [layer, nn.BatchNorm2d(after)]


def _by_channel(values: float | Sequence[float], channels: int) -> Tensor:
    """One number for each channel of a picture: (c, 1, 1)."""
    given = torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, 1, 1)
    if len(given) not in (1, channels):
        raise ValueError(
            f"mean and std must be one number, or one for each of {channels} channels, got "
            f"{len(given)}."
        )
    return given.expand(channels, 1, 1).clone()


def _check_choices(stem: str, norm: str, blocks: Sequence[int]) -> None:
    """Refuse a stem or norm that does not exist, and stages without a block."""
    if stem not in get_args(Stem) or norm not in get_args(Norm):
        raise ValueError(
            f"a stem is one of {get_args(Stem)} and a norm one of {get_args(Norm)}, got {stem!r} "
            f"and {norm!r}."
        )
    if not blocks or min(blocks) < 1:
        raise ValueError(f"every stage needs a block, got {list(blocks)} of them.")
