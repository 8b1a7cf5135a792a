"""Slopes of rows of linear layers and kinks, written out: no derivative of them is a second one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROW = (nn.Linear, nn.ReLU, nn.LeakyReLU)


class Kink(NamedTuple):
    """A layer of kinks on the way back: what it met, (B, n), without a graph; its left slope."""

    met: Tensor
    below: float

    def back(self, flow: Tensor) -> Tensor:
        """The flow times the slopes, at zero that of the left side, as torch has it: (B, n)."""
        found: Tensor = torch.ops.aten.leaky_relu_backward(flow, self.met, self.below, False)
        return found


Factor = Kink | nn.Linear
"""What a slope meets on its way back."""


class RowTrace(NamedTuple):
    """What a row made of x, with a graph, and what it did to it on the way, in order.

    Torch finds the slope by x as a derivative of the logits, and the weights' slope of a penalty on
    it as a second one. Between kinks it is a product, and the latter a first derivative of that.
    """

    logits: Tensor
    factors: Sequence[Factor]

    def back(self, flow: Tensor) -> Tensor:
        """The slope by x of the logits weighed by `flow`, (B, C), as if that were fixed: (B, d)."""
        for factor in reversed(self.factors):
            flow = factor.back(flow) if isinstance(factor, Kink) else flow @ factor.weight
        return flow


def is_row(model: nn.Module, x: Tensor) -> bool:
    """Whether x, (B, d), passes through linear layers and kinks one after another to its logits.

    Hooks and a forward of one's own make it another network. A single output is no logit of a
    class but stands for the log-odds of two.
    """
    return (
        type(model) is nn.Sequential
        and x.ndim == 2
        and len(model) > 0
        and getattr(model[-1], "out_features", 0) >= 2
        and all(type(layer) in ROW and _plain(layer) for layer in model)
        and _plain(model)
    )


def row_trace(model: nn.Module, x: Tensor) -> RowTrace | None:
    """The way of x through a row of linear layers and kinks; None for all other networks."""
    if not is_row(model, x):
        return None
    factors: list[Factor] = []
    assert isinstance(model, nn.Sequential)
    for layer in model:
        if isinstance(layer, nn.Linear):
            x = F.linear(x, layer.weight, layer.bias)
            factors.append(layer)
        else:
            below = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
            factors.append(Kink(x.detach(), below))
            x = F.leaky_relu(x, below) if isinstance(layer, nn.LeakyReLU) else F.relu(x)
    return RowTrace(x, factors)


def _plain(part: nn.Module) -> bool:
    hooks = (part._forward_hooks, part._forward_pre_hooks,
             part._backward_hooks, part._backward_pre_hooks)  # fmt: skip
    return not (any(hooks) or "forward" in vars(part))
