"""A first layer that shows a network bands instead of numbers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class InBands(nn.Module):
    """Rows in which some numbers are columns of 0 and 1, one for each band: (B, d) -> (B, D).

    `edges` holds, by column, the numbers between its bands, rising; a value at an edge is above it.
    All other columns stay as they are and come first. What follows sees bands only: a move changes
    what it says where it crosses an edge, and nowhere else.
    """

    def __init__(self, columns: int, edges: Mapping[int, Sequence[float]]) -> None:
        super().__init__()
        if not all(0 <= column < columns for column in edges):
            raise ValueError(
                f"bands are those of columns 0..{columns - 1}, got columns {sorted(edges)}."
            )
        for column, own in edges.items():
            if any(left >= right for left, right in pairwise(own)):
                raise ValueError(f"the edges of column {column} must rise, got {list(own)}.")
        self.places = sorted(edges)
        self.others = [column for column in range(columns) if column not in edges]
        for column in self.places:
            known = torch.tensor(list(edges[column]), dtype=torch.float64)
            self.register_buffer(f"edges_{column}", known)
        self.outputs = len(self.others) + sum(len(edges[column]) + 1 for column in self.places)

    def forward(self, x: Tensor) -> Tensor:
        """Other columns, then the bands of each column that has some."""
        parts = [x[:, self.others]]
        for column in self.places:
            edges = self.get_buffer(f"edges_{column}").to(x.dtype)
            band = torch.bucketize(x[:, column].detach().contiguous(), edges, right=True)
            parts.append(nn.functional.one_hot(band, len(edges) + 1).to(x.dtype))
        return torch.cat(parts, 1)
