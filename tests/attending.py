"""A network with attention, of whichever kind."""

import torch.nn.functional as F
from torch import Tensor, nn


class Attends(nn.Module):
    """Attention among three numbers each of two halves of x."""

    def __init__(self, attend: nn.Module | None) -> None:
        super().__init__()
        self.attend, self.out = attend, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = x.unflatten(1, (2, 3))
        if self.attend is None:
            z = F.scaled_dot_product_attention(z[:, None], z[:, None], z[:, None])
        elif isinstance(self.attend, nn.MultiheadAttention):
            z = self.attend(z, z, z, need_weights=False)[0]
        else:
            z = self.attend(z)
        scores: Tensor = self.out(z.flatten(1))
        return scores
