"""What one example is made of, and what follows for whoever trains on it or explains it.

The records answer the same questions: of which `kind` and shape an example is, what is explained of
it and what that is called, within which bounds it lies, which columns are one attribute's, and how
raw values are checked, scaled and become examples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from r2et.core.inputs import Inputs, Piece, upper_triangle
from r2et.data.features import (
    Feature,
    Scale,
    Scaling,
    check_names,
    check_values,
    described,
    exchangeable,
    fit_scale,
    one_hot,
)

Columns = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TableStructure:
    """Rows of a table: each column is a feature of its own.

    `schema` says how they were encoded, as `Schema.to_json` does, if it is known.
    """

    features: tuple[Feature, ...]
    schema: tuple[Mapping[str, Any], ...] = ()

    kind: ClassVar[Literal["table"]] = "table"
    pairs: ClassVar[bool] = False
    bounds: ClassVar[None] = None
    explained: ClassVar[tuple[int, ...]] = ()

    @property
    def piece(self) -> Piece:
        """One row of numbers."""
        return Piece(shape=(self.n,))

    @property
    def n(self) -> int:
        """Number of columns."""
        return len(self.features)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups, in the order of their first column."""
        return tuple(dict.fromkeys(feature.group for feature in self.features))

    @property
    def groups(self) -> tuple[int, ...]:
        """For each column the number of its attribute, in the order of `group_names`."""
        places = {name: place for place, name in enumerate(self.group_names)}
        return tuple(places[feature.group] for feature in self.features)

    @property
    def one_hot(self) -> tuple[Columns, ...]:
        """The column numbers of each one-hot group."""
        return one_hot(self.features)

    @property
    def exchangeable(self) -> tuple[Columns, ...]:
        """The column numbers of each attribute whose value is one of several words."""
        return exchangeable(self.features)

    @property
    def numeric(self) -> Columns:
        """The column numbers of the numeric features."""
        return tuple(i for i, feature in enumerate(self.features) if feature.kind == "numeric")

    @property
    def identity(self) -> tuple[object, ...]:
        """All that is known of the columns."""
        return (self.features,)

    def feature_name(self, number: int) -> str:
        """The name of a column."""
        return self.features[number].name

    def check(self, x: Tensor, name: str) -> None:
        """Refuse values that do not fit the columns or are infinite, and columns of one name."""
        if x.ndim != 2 or x.shape[1] != self.n or self.n == 0 or x.dtype != torch.float64:
            raise ValueError(
                f"x must be float64 with one column for each of the {self.n} features (at least "
                f"one), got shape {tuple(x.shape)} of {x.dtype}: make values and names agree."
            )
        check_names(self.features)
        check_values(x, self.features)

    def scale_of(self, x: Tensor, train: Tensor, scaling: Scaling) -> Scale:
        """The scale of the training rows, which leaves columns of 0 and 1 as they are."""
        return fit_scale(x[train], self.features, scaling)

    def examples(self, raw: Tensor, scale: Scale) -> Tensor:
        """Scaled rows: (P, d)."""
        return scale.apply(raw).float()

    def describe(self, raw_row: Tensor) -> dict[str, str]:
        """The row's value for each group in words: {"age": "39 years", "education": "Masters"}.

        A group that shows no valid category is described by its parts, "0.7 Masters + 0.3 School".
        """
        if raw_row.shape != (self.n,):
            raise ValueError(
                f"expected one row of {self.n} values, got shape {tuple(raw_row.shape)}: "
                f"give x[i], in original units."
            )
        return described(self.features, raw_row.tolist())


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
            ends = [int(each[number]) for each in self._ends]
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

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        return upper_triangle(self.piece.shape[0], torch.device("cpu"))


InputStructure = TableStructure | ItemStructure
