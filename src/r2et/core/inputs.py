"""Inputs that are not one vector: pairs, pictures of several channels, symmetric matrices.

Everything in this package works on one tensor of examples, (B, ...). A model that takes several
tensors, or a symmetric matrix, is `Joined`: it then takes one row of numbers for each example,
those that are free to vary, and makes of them what the model expects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One tensor that a model takes: its shape without the batch, and whether it is symmetric.

    Of a symmetric matrix the numbers above the diagonal are free to vary; its diagonal is zero.
    """

    shape: tuple[int, ...]
    symmetric: bool = False

    def __post_init__(self) -> None:
        """Refuse a shape without numbers, and a symmetric piece that is no square matrix."""
        if not self.shape or min(self.shape) < 1:
            raise ValueError(f"a piece of an input needs numbers in its shape, got {self.shape}.")
        if self.symmetric and (len(self.shape) != 2 or self.shape[0] != self.shape[1]):
            raise ValueError(f"a symmetric piece must be a square matrix, got shape {self.shape}.")

    @property
    def size(self) -> int:
        """How many of its numbers are free to vary."""
        whole = math.prod(self.shape)
        return (whole - self.shape[0]) // 2 if self.symmetric else whole

    @property
    def features(self) -> int:
        """How many features an explanation has: pixels, edges, or numbers."""
        return self.size // self.channels

    @property
    def channels(self) -> int:
        """How many numbers belong to one feature: the channels of a picture, else one."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def flat(self, part: Tensor) -> Tensor:
        """The numbers that are free to vary: (B, size)."""
        if part.shape[1:] != self.shape:
            raise ValueError(
                f"a piece of the input must have shape {self.shape} for each example, got "
                f"{tuple(part.shape[1:])}: give the pieces in the order in which they were stated."
            )
        if not self.symmetric:
            return part.flatten(1)
        check_symmetric(part)
        rows, columns = upper_triangle(self.shape[0], part.device)
        above: Tensor = part[:, rows, columns]
        return above

    def whole(self, flat: Tensor) -> Tensor:
        """What the model takes, from the numbers that are free to vary: (B, *shape)."""
        if not self.symmetric:
            whole: Tensor = flat.unflatten(1, self.shape)
            return whole
        return symmetric(flat, self.shape[0])


def upper_triangle(nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the numbers above the diagonal, row by row: (E,) each."""
    rows, columns = torch.triu_indices(nodes, nodes, offset=1, device=device)
    return rows, columns


def symmetric(flat: Tensor, nodes: int) -> Tensor:
    """Symmetric matrices of zero diagonal from what stands above it: (B, E) -> (B, m, m)."""
    # One place more, for the diagonal: a gather is the cheapest way to write every number twice.
    padded = torch.cat([flat, flat.new_zeros(len(flat), 1)], 1)
    places = _places(nodes, flat.device)
    return padded.index_select(1, places).view(len(flat), nodes, nodes)


@lru_cache(maxsize=16)
def _places(nodes: int, device: torch.device) -> Tensor:
    """Where each entry of a symmetric matrix stands in its upper triangle, the diagonal last."""
    edges = nodes * (nodes - 1) // 2
    with torch.inference_mode(False):
        table = torch.full((nodes, nodes), edges, dtype=torch.long, device=device)
        rows, columns = upper_triangle(nodes, device)
        table[rows, columns] = table[columns, rows] = torch.arange(edges, device=device)
        return table.flatten()


def check_symmetric(matrices: Tensor) -> None:
    """Refuse matrices that are not square, not finite or not symmetric."""
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2]:
        raise ValueError(
            "a connectivity matrix must be square, (m, m) for m nodes, got shape "
            f"{tuple(matrices.shape[1:])}: give the whole matrix."
        )
    apart = (matrices - matrices.transpose(1, 2)).abs().flatten(1).amax(-1)
    size = matrices.abs().flatten(1).amax(-1)
    uneven = ~(apart <= 1e-3 * size)  # NaN is uneven, too
    if bool(uneven.any()):
        number = int(uneven.nonzero()[0])
        raise ValueError(
            f"a connectivity matrix must be finite and symmetric, but matrix {number} differs from "
            f"its transpose by {float(apart[number]):.3g}: symmetrise it, (A + A') / 2, if that is "
            "what it means."
        )


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a model takes: one or more pieces, in the order of its arguments."""

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        """Refuse inputs without a piece."""
        if not self.pieces:
            raise ValueError("an input needs at least one piece, got none.")

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "Inputs":
        """The inputs that such tensors are."""
        return cls(pieces=tuple(Piece(shape=tuple(part.shape[1:])) for part in parts))

    @property
    def size(self) -> int:
        """How many numbers of an example are free to vary."""
        return sum(piece.size for piece in self.pieces)

    def pack(self, *parts: Tensor) -> Tensor:
        """All numbers of each example that are free to vary, piece after piece: (B, size)."""
        if len(parts) != len(self.pieces) or len({len(part) for part in parts}) > 1:
            raise ValueError(
                f"an input of {len(self.pieces)} pieces needs as many tensors, each with all "
                f"examples, got {len(parts)} of {[len(part) for part in parts]} examples."
            )
        return torch.cat(
            [piece.flat(part) for piece, part in zip(self.pieces, parts, strict=True)], 1
        )

    def unpack(self, x: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the model takes, of packed examples (B, size)."""
        sizes = [piece.size for piece in self.pieces]
        flat = x.flatten(1).split(sizes, dim=1)
        return tuple(piece.whole(part) for piece, part in zip(self.pieces, flat, strict=True))

    def explained(
        self, pieces: Sequence[int] | None = None, *, channels: bool = True
    ) -> tuple[int, ...]:
        """For each packed number the feature that it counts for, -1 if it is not explained.

        An explanation is of the `pieces` of these places, all unless given; the `channels` of a
        picture (C, H, W) count together for its pixel, unless they are features of their own.
        """
        chosen = range(len(self.pieces)) if pieces is None else pieces
        if not chosen or not set(chosen) <= set(range(len(self.pieces))):
            raise ValueError(
                f"pieces to explain are some of 0..{len(self.pieces) - 1}, got {list(chosen)}."
            )
        features, found = 0, list[int]()
        for number, piece in enumerate(self.pieces):
            if number not in chosen:
                found += [-1] * piece.size
                continue
            own = piece.features if channels else piece.size
            found += [features + place % own for place in range(piece.size)]
            features += own
        return tuple(found)

    def free(self, pieces: Sequence[int]) -> Tensor:
        """Which packed numbers belong to the pieces of these places: (size,) booleans."""
        ends = list(accumulate(piece.size for piece in self.pieces))
        mask = torch.zeros(self.size, dtype=torch.bool)
        for number in pieces:
            mask[ends[number] - self.pieces[number].size : ends[number]] = True
        return mask


class Joined(nn.Module):
    """A model of several tensors, or of symmetric matrices, as one of packed examples."""

    piecewise_linear = False

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, x: Tensor) -> Tensor:
        """What the model says of packed examples (B, size)."""
        found: Tensor = self.model(*self.inputs.unpack(x))
        return found


def packed(x: Tensor | Sequence[Tensor], model: nn.Module | None = None) -> Tensor:
    """Examples as one tensor: itself, or all numbers of several piece after piece, (B, size).

    Those of a joined `model` are packed as it unpacks them.
    """
    if isinstance(x, Tensor):
        return x
    inputs = model.inputs if isinstance(model, Joined) else Inputs.of(x)
    return inputs.pack(*x)


def joined(model: nn.Module, x: Tensor | Sequence[Tensor]) -> nn.Module:
    """A model of one tensor for the examples x: itself, or joined if x are several tensors."""
    if isinstance(x, Tensor) or isinstance(model, Joined):
        return model
    return Joined(model, Inputs.of(x))
