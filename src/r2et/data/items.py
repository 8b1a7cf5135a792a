"""Images, graphs and pairs of them: what their numbers mean, and how they become examples."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from r2et.core.inputs import Inputs, Piece, upper_triangle
from r2et.data.dataset import Columns, Dataset
from r2et.data.features import Scale, Scaling


@dataclass(frozen=True, kw_only=True)
class ItemStructure:
    """Items of one shape, a picture (C, H, W) or what stands above the diagonal of a network.

    Of pairs an example is two items, the first of which is explained. Numbers lie within `bounds`;
    the channels of a picture count together for its pixel unless `explained_channels` is false.
    `nodes` names the nodes of networks. `centred` takes the training items' mean from all.
    """

    piece: Piece
    pairs: bool = False
    bounds: tuple[float, float] | None = None
    nodes: tuple[str, ...] = ()
    centred: bool = False
    explained_channels: bool = True

    one_hot: ClassVar[tuple[Columns, ...]] = ()
    exchangeable: ClassVar[tuple[Columns, ...]] = ()
    numeric: ClassVar[Columns] = ()

    @classmethod
    def of(cls, dataset: Dataset) -> "ItemStructure":
        """The structure of a data set of items; refused for a table."""
        if not isinstance(dataset.structure, cls):
            raise ValueError(f"{dataset.name} is a table, and not made of pictures or networks.")
        return dataset.structure

    @property
    def kind(self) -> Literal["picture", "network"]:
        """What an item is, as it is drawn."""
        return "network" if self.piece.symmetric else "picture"

    @property
    def inputs(self) -> Inputs:
        """What a model takes of one example."""
        return Inputs(pieces=(self.piece,) * (2 if self.pairs else 1))

    @property
    def explained(self) -> tuple[int, ...]:
        """For each number of an example the feature it counts for, -1 for none."""
        return self.inputs.explained((0,), channels=self.explained_channels)

    @property
    def n(self) -> int:
        """How many features an explanation has: pixels or edges of one item."""
        return self.piece.features if self.explained_channels else self.piece.size

    @property
    def identity(self) -> tuple[object, ...]:
        """What changes examples besides the items themselves."""
        return (self.piece, self.pairs, self.centred)

    def feature_name(self, number: int) -> str:
        """A feature in words: an edge by its nodes, a pixel by its place."""
        if self.piece.symmetric:
            rows, columns = upper_triangle(self.piece.shape[0], torch.device("cpu"))
            ends = (int(rows[number]), int(columns[number]))
            return " \N{EN DASH} ".join(
                self.nodes[end] if self.nodes else f"node {end + 1}" for end in ends
            )
        if len(self.piece.shape) == 3:
            channels, height, width = self.piece.shape
            channel, place = divmod(number, height * width)
            row, column = divmod(place, width)
            pixel = f"row {row + 1}, column {column + 1}"
            apart = channels > 1 and not self.explained_channels
            return f"channel {channel + 1}, {pixel}" if apart else pixel
        return f"number {number + 1}"

    def check(self, x: Tensor, name: str) -> None:
        """Refuse items of another shape or with numbers that are not finite."""
        shape = (self.piece.size,) if self.piece.symmetric else self.piece.shape
        if x.shape[1:] != shape or not x.is_floating_point():
            raise ValueError(
                f"items must be floating-point numbers of shape {shape} each, got "
                f"{tuple(x.shape[1:])} of {x.dtype}."
            )
        bad = ~torch.isfinite(x.flatten(1)).all(-1)
        if bool(bad.any()):
            raise ValueError(
                f"items must be finite, but item {int(bad.nonzero()[0])} of {name} is not: "
                "correct it or leave it out."
            )

    def scale_of(self, x: Tensor, train: Tensor, scaling: Scaling) -> Scale:
        """A scale that takes the mean of the training items away if they are centred."""
        shift = x[train.unique()].mean(0) if self.centred else torch.zeros_like(x[0])
        shift = torch.cat([shift.flatten()] * 2) if self.pairs else shift
        return Scale(fill=torch.zeros_like(shift), shift=shift, width=torch.ones_like(shift))

    def examples(self, raw: Tensor, scale: Scale) -> Tensor:
        """Items in their own shape, or the numbers of two side by side."""
        return ((raw.flatten(1) if self.pairs else raw) - scale.shift).float()
