"""Networks of straight pieces: linear maps with (Leaky)ReLUs between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """Logits V h_L + e of h_0 = x and h_l = act_l(W_l h_(l-1) + b_l), in float64.

    act_l(z) = z above zero and `slopes`[l] z below. `weights` holds W_l (m_l, m_(l-1)), `offsets`
    b_l (m_l), `last` V (C, m_L) and `shift` e (C).
    """

    weights: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    slopes: tuple[float, ...]
    last: Tensor
    shift: Tensor

    @property
    def units(self) -> tuple[int, ...]:
        """How many units each layer has."""
        return tuple(len(each) for each in self.offsets)

    @property
    def inputs(self) -> int:
        """How many numbers an input has."""
        return (self.weights[0] if self.weights else self.last).shape[1]

    def pieces(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, C), and what each layer's activation meets: (B, m_l) each."""
        met, here = list[Tensor](), x.flatten(1)
        for weight, offset, slope in zip(self.weights, self.offsets, self.slopes, strict=True):
            met.append(here @ weight.mT + offset)
            here = torch.where(met[-1] > 0, met[-1], slope * met[-1])
        return here @ self.last.mT + self.shift, met

    def slope(self, met: Sequence[Tensor], signal: Tensor) -> Tensor:
        """The slope by x of signal'logits, (B, C), on the pieces that were met: (B, d)."""
        back = signal @ self.last
        for weight, slope, at in zip(
            reversed(self.weights), reversed(self.slopes), reversed(met), strict=True
        ):
            back = torch.where(at > 0, back, slope * back) @ weight
        return back
