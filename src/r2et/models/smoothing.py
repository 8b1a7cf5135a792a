"""Smooth copies of piecewise linear networks."""

import copy
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

KINKED = (nn.ReLU, nn.LeakyReLU)


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
    return _with_units_replaced(
        model, lambda kink: SoftLeaky(sharpness, getattr(kink, "negative_slope", 0.0))
    )


def with_softplus(model: nn.Module, rho: float) -> nn.Module:
    """A copy of `model` with softplus(x; rho) in place of its ReLU and LeakyReLU layers.

    softplus(x; rho) = ln(1 + e^{rho x}) / rho, without any slope where the kinked unit had a
    negative input: not the rounded unit but the papers' other one. Softplus layers of another
    sharpness are replaced, too.
    """
    smooth = _with_units_replaced(model, lambda unit: nn.Softplus(beta=rho), (*KINKED, nn.Softplus))
    if smooth is None:
        kinds = ", ".join(sorted({type(part).__name__ for part in model.modules()}))
        raise ValueError(
            "softplus takes the place of ReLU or LeakyReLU layers, but the model has none among "
            f"its {kinds}: make its activations layers of one of these kinds."
        )
    return smooth


def _with_units_replaced(
    model: nn.Module,
    instead: Callable[[nn.Module], nn.Module],
    kinds: tuple[type[nn.Module], ...] = KINKED,
) -> nn.Module | None:
    """A copy with something `instead` of each layer of these kinds, None if it has none."""
    if not any(isinstance(part, kinds) for part in model.modules()):
        return None
    if isinstance(model, kinds):
        return instead(model)
    smooth = copy.deepcopy(model)
    for parent in list(smooth.modules()):
        # Not named_children(): it names a layer used twice only once.
        for name, part in list(parent._modules.items()):
            if isinstance(part, kinds):
                setattr(parent, name, instead(part))
    return smooth
