"""Smooth copies of piecewise linear networks."""

import copy

import torch.nn.functional as F
from torch import Tensor, nn


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
    if not any(isinstance(part, nn.ReLU | nn.LeakyReLU) for part in model.modules()):
        return None
    smooth = copy.deepcopy(model)
    if isinstance(smooth, nn.ReLU | nn.LeakyReLU):
        return SoftLeaky(sharpness, getattr(smooth, "negative_slope", 0.0))
    for parent in list(smooth.modules()):
        # Not named_children(): it names a layer used twice only once.
        for name, part in list(parent._modules.items()):
            if isinstance(part, nn.ReLU | nn.LeakyReLU):
                slope = part.negative_slope if isinstance(part, nn.LeakyReLU) else 0.0
                setattr(parent, name, SoftLeaky(sharpness, slope))
    return smooth
