"""Graph convolutions on dense symmetric networks, such as the connectivity of brain regions."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.core.inputs import symmetric

Normalise = Literal["clamped", "absolute", "none"]
NodeFeatures = Literal["identity", "rows"]


def propagation(adjacency: Tensor, normalise: Normalise = "clamped") -> Tensor:
    """D^-1/2 (A + I) D^-1/2, by which features travel along edges: (B, m, m).

    A = `adjacency`, whose own diagonal is not looked at. The degrees D are sums of A + I, those
    below 1 counting as 1, if "clamped", as PyTorch Geometric does it: where negative weights
    prevail, nothing is normalised, and a degree has no slope there. They are sums of |A + I| if
    "absolute", which are never below 1. With "none" there is no D.
    """
    if normalise not in get_args(Normalise):
        raise ValueError(f"degrees are one of {get_args(Normalise)}, got {normalise!r}.")
    itself = torch.eye(adjacency.shape[-1], dtype=torch.bool, device=adjacency.device)
    looped = torch.where(itself, 1.0, adjacency)
    if normalise == "none":
        return looped
    degrees = looped.abs().sum(-1) if normalise == "absolute" else looped.sum(-1).clamp(min=1)
    scale = degrees.rsqrt()
    return scale[:, :, None] * looped * scale[:, None, :]


class DenseGCN(nn.Module):
    """One graph convolution, S X W + b, its weights not drawn yet: (B, m, f) -> (B, m, g).

    S is a `propagation` (B, m, m); W is held transposed, (g, f), as in torch's linear layers.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, along: Tensor, x: Tensor | None = None) -> Tensor:
        """New features of each node; without x those of the identity, each node its own feature."""
        return F.linear(along if x is None else along @ x, self.weight, self.bias)

    def pooled(self, along: Tensor, x: Tensor) -> Tensor:
        """The mean over nodes of their new features, which are never formed: (B, g)."""
        return F.linear((along.mean(1, keepdim=True) @ x).squeeze(1), self.weight, self.bias)

    def extra_repr(self) -> str:
        """How many features come in, and how many go out."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"


class GCNEmbedding(nn.Module):
    """Two graph convolutions with a bend between, mean pooling: (B, m(m-1)/2) -> (B, out).

    An example is what stands above the diagonal of its symmetric matrix, row by row: the numbers
    that are free to vary. The nodes' features are the identity, or with "rows" their rows of the
    matrix, its diagonal zero.
    """

    def __init__(
        self,
        nodes: int,
        hidden: int = 256,
        out: int = 128,
        *,
        node_features: NodeFeatures = "identity",
        normalise: Normalise = "clamped",
        activation: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        if node_features not in get_args(NodeFeatures):
            raise ValueError(
                f"node features are one of {get_args(NodeFeatures)}, got {node_features!r}."
            )
        if nodes < 2:
            raise ValueError(f"a network needs two nodes or more to have an edge, got {nodes}.")
        self.nodes, self.node_features, self.normalise = nodes, node_features, normalise
        self.first = DenseGCN(nodes, hidden)
        self.bend = activation()
        self.second = DenseGCN(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        """What a network looks like as a whole: (B, out)."""
        adjacency = symmetric(x, self.nodes)
        along = propagation(adjacency, self.normalise)
        rows = adjacency if self.node_features == "rows" else None
        hidden: Tensor = self.bend(self.first(along, rows))
        return self.second.pooled(along, hidden)

    def extra_repr(self) -> str:
        """How many nodes there are, their features, and how degrees are counted."""
        return f"nodes={self.nodes}, features={self.node_features}, normalise={self.normalise}"
