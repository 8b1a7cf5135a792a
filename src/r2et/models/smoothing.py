"""Smooth copies of networks: rounded kinks, smooth poolings, blurred pictures."""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import UnionType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINKED = nn.ReLU | nn.LeakyReLU
WIDEST = 32.0  # pixels; a model file may ask for any blur


class SoftLeaky(nn.Module):
    """s x + (1 - s) softplus(x; rho): a (Leaky)ReLU of negative slope s with a rounded kink.

    softplus(x; rho) = ln(1 + e^{rho x}) / rho, rho = `sharpness`.
    """

    def __init__(self, sharpness: float, slope: float = 0.0) -> None:
        super().__init__()
        self.sharpness, self.slope = sharpness, slope

    def forward(self, x: Tensor) -> Tensor:
        """The rounded activation of each number: like x."""
        return self.slope * x + (1 - self.slope) * F.softplus(x, beta=self.sharpness)


def softened(model: nn.Module, sharpness: float) -> nn.Module | None:
    """A copy of `model` with its ReLU and LeakyReLU layers rounded, None if it has none."""
    return _replaced(
        model, KINKED, lambda kink: SoftLeaky(sharpness, getattr(kink, "negative_slope", 0.0))
    )


def with_softplus(model: nn.Module, rho: float) -> nn.Module:
    """A copy of `model` with softplus(x; rho) in place of its ReLU and LeakyReLU layers.

    softplus(x; rho) = ln(1 + e^{rho x}) / rho, without any slope where the kinked unit had a
    negative input: not the rounded unit but the papers' other one. Softplus layers of another
    sharpness are replaced, too.
    """
    smooth = _replaced(model, KINKED | nn.Softplus, lambda unit: nn.Softplus(beta=rho))
    if smooth is None:
        raise ValueError(
            "softplus takes the place of ReLU or LeakyReLU layers, but the model has none among "
            f"its {_kinds(model)}: make its activations layers of one of these kinds."
        )
    return smooth


class SmoothPool2d(nn.Module):
    """ln(mean e^{rho z}) / rho over each window: (B, c, H, W) -> (B, c, H', W'), rho = `sharpness`.

    Between the mean of a window, which small rho come near to, and its largest number, which a max
    pooling takes: less than that by at most ln(numbers in a window) / rho. A max pooling hands the
    whole slope to one of the numbers, and to another one as soon as that is larger.
    """

    def __init__(self, size: tuple[int, int], stride: tuple[int, int], sharpness: float) -> None:
        super().__init__()
        self.size, self.stride, self.sharpness = size, stride, sharpness

    def forward(self, x: Tensor) -> Tensor:
        """The smooth largest number of each window: (B, c, H', W')."""
        (height, width), (down, right) = self.size, self.stride
        # The first numbers of all windows, then all second ones: half the cost of unfolding them.
        low, far = x.shape[2] - height + 1, x.shape[3] - width + 1
        places = [
            x[:, :, i : i + low : down, j : j + far : right]
            for i in range(height)
            for j in range(width)
        ]
        total: Tensor = (self.sharpness * torch.stack(places)).logsumexp(0)
        return (total - math.log(height * width)) / self.sharpness


def with_smooth_pooling(model: nn.Module, rho: float) -> nn.Module:
    """A copy of `model` with ln(mean e^{rho z}) / rho in place of its max poolings of pictures."""

    def instead(pool: nn.Module) -> nn.Module:
        assert isinstance(pool, nn.MaxPool2d)
        if (
            any(_pair(pool.padding))
            or _pair(pool.dilation) != (1, 1)
            or pool.ceil_mode
            or pool.return_indices
        ):
            raise ValueError(
                f"smooth pooling takes the place of max poolings of whole windows, got {pool}: "
                "leave out padding, dilation, ceil_mode and return_indices."
            )
        return SmoothPool2d(_pair(pool.kernel_size), _pair(pool.stride), rho)

    smooth = _replaced(model, nn.MaxPool2d, instead)
    if smooth is None:
        raise ValueError(
            "smooth pooling takes the place of MaxPool2d layers, but the model has none among its "
            f"{_kinds(model)}: leave it out."
        )
    return smooth


class Blur(nn.Module):
    """Pictures (B, c, H, W) through a Gaussian of standard deviation `sigma`, in pixels: like x.

    Its weights are cut off at three sigma and sum to one; beyond the border there is nothing.
    """

    piecewise_linear = True
    weight: Tensor

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma
        away = torch.arange(-math.ceil(3 * sigma), math.ceil(3 * sigma) + 1)
        along = torch.softmax(-away.square() / (2 * sigma**2), 0)
        # Not among the weights of a model file: sigma says all of it.
        self.register_buffer("weight", torch.outer(along, along)[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each pixel's weighted mean of its surroundings: like x."""
        channels, size = x.shape[1], self.weight.shape[-1]
        weight = self.weight.expand(channels, 1, size, size)
        return F.conv2d(x, weight, padding=size // 2, groups=channels)

    def extra_repr(self) -> str:
        """What tells it from other blurs, where a network is printed."""
        return f"sigma={self.sigma:g}"


def with_blur(model: nn.Module, sigma: float) -> nn.Module:
    """A copy of `model` with a `Blur` in front of its first convolution of pictures.

    The gradient by the pixels is then blurred as well: what tells the class stands out as places,
    not as single pixels, and changes that go up and down from pixel to pixel are hardly seen.
    The first convolution is the first in the order in which the model lists its layers.
    """
    smooth = copy.deepcopy(model)
    first = next((part for part in smooth.modules() if isinstance(part, nn.Conv2d)), None)
    if first is None:
        raise ValueError(
            "a blur stands in front of the first Conv2d layer, but the model has none among its "
            f"{_kinds(model)}: leave it out."
        )
    blur = Blur(sigma).to(first.weight)
    return _put(smooth, lambda part: part is first, lambda part: nn.Sequential(blur, part))


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """What is smooth in a copy of a network; what is zero stays as it is.

    Its kinks become softplus(x; rho) of rho = `softplus`, its max poolings, which are kinks, too,
    ln(mean e^{rho z}) / rho of rho = `pooling`, and pictures are seen through a Gaussian whose
    standard deviation is `blur`, in pixels.
    """

    softplus: float = 0.0
    pooling: float = 0.0
    blur: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no sharpness or no width."""
        finite = all(0 <= value < math.inf for value in asdict(self).values())
        if not finite or self.blur > WIDEST:
            raise ValueError(
                "softplus and pooling, the sharpness of units and poolings, must be finite and >= "
                f"0, and blur in 0..{WIDEST:g} pixels, got {asdict(self)}."
            )

    @property
    def changes(self) -> dict[str, float]:
        """Those of its values that are not zero, by their names."""
        return {name: value for name, value in asdict(self).items() if value}

    def __call__(self, model: nn.Module) -> nn.Module:
        """The copy, or the network itself if all is zero."""
        for name, value in self.changes.items():
            model = SMOOTHERS[name](model, value)
        return model


SMOOTHERS: dict[str, Callable[[nn.Module, float], nn.Module]] = {
    "softplus": with_softplus,
    "pooling": with_smooth_pooling,
    "blur": with_blur,
}


def _pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    """What a layer says of height and width, which may be one number for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _kinds(model: nn.Module) -> str:
    return ", ".join(sorted({type(part).__name__ for part in model.modules()}))


def _replaced(
    model: nn.Module,
    kinds: type[nn.Module] | UnionType,
    instead: Callable[[nn.Module], nn.Module],
) -> nn.Module | None:
    """A copy with something `instead` of each layer of these kinds, None if it has none."""
    if not any(isinstance(part, kinds) for part in model.modules()):
        return None
    return _put(copy.deepcopy(model), lambda part: isinstance(part, kinds), instead)


def _put(
    model: nn.Module,
    chosen: Callable[[nn.Module], bool],
    instead: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """The model itself with something `instead` of each `chosen` layer."""
    if chosen(model):
        return instead(model)
    for parent in list(model.modules()):
        # Not named_children(): it names a layer used twice only once.
        for name, part in list(parent._modules.items()):
            if part is not None and chosen(part):
                setattr(parent, name, instead(part))
    return model
