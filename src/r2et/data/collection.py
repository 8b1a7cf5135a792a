"""Examples that are no rows of a table: pictures, networks, and pairs of them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from r2et.core.inputs import Inputs, Piece, upper_triangle
from r2et.core.rng import check_seed
from r2et.data.dataset import Part, Scale, Split, check_part, check_target

PAIR_CLASSES = ("different", "same")

Division = Callable[[Tensor, int], Mapping[str, Tensor]]
"""(labels of all items, seed) -> for "train", "valid" and "test" the items (P,) or pairs (P, 2)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Collection:
    """Items of one shape, their classes, and how they become examples.

    `items` (M, *shape) are pictures (M, C, H, W) in [0, 1] or the upper triangles of networks
    (M, E); `labels` (M,) are places in `item_classes`. `divide` says which items, or which pairs of
    them, make up the parts of a split: of a pair the class is whether its items are of one class,
    and the first of them is explained. `stand_in` says, where the data stand in for others, for
    which. `nodes` names the nodes of networks. `centred` takes the training items' mean from all.
    """

    name: str
    items: Tensor
    labels: Tensor
    item_classes: tuple[str, ...]
    piece: Piece
    divide: Division
    target: str
    source: str
    pairs: bool = False
    stand_in: str = ""
    bounds: tuple[float, float] | None = None
    nodes: tuple[str, ...] = ()
    centred: bool = False
    explained_channels: bool = True

    one_hot: tuple[tuple[int, ...], ...] = ()
    exchangeable: tuple[tuple[int, ...], ...] = ()
    numeric: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse items and classes that do not fit each other."""
        shape = (self.piece.size,) if self.piece.symmetric else self.piece.shape
        if self.items.shape[1:] != shape or not self.items.is_floating_point():
            raise ValueError(
                f"items must be floating-point numbers of shape {shape} each, got "
                f"{tuple(self.items.shape[1:])} of {self.items.dtype}."
            )
        if self.labels.shape != self.items.shape[:1]:
            raise ValueError(
                f"labels must hold one class for each of the {len(self.items)} items, got shape "
                f"{tuple(self.labels.shape)}."
            )
        bad = ~torch.isfinite(self.items.flatten(1)).all(-1)
        if bool(bad.any()):
            raise ValueError(
                f"items must be finite, but item {int(bad.nonzero()[0])} of {self.name} is not: "
                "correct it or leave it out."
            )
        check_target(self.labels, self.item_classes, self.target)

    @property
    def classes(self) -> tuple[str, ...]:
        """What is predicted: the classes of the items, or whether two items are of one class."""
        return PAIR_CLASSES if self.pairs else self.item_classes

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
        """How many features an explanation has."""
        return max(self.explained) + 1

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with any value or name."""
        names = (self.name, self.target, self.item_classes, self.piece, self.pairs, self.centred)
        digest = hashlib.sha256(repr((*names, self.stand_in)).encode("utf-8", "surrogatepass"))
        for values in (self.items, self.labels):
            # A view of the bytes: a copy of the largest items would be 700 MB.
            digest.update(values.contiguous().cpu().numpy().data.cast("B"))
        return digest.hexdigest()[:12]

    def feature_name(self, number: int) -> str:
        """A feature in words: an edge by its nodes, a pixel by its place."""
        if self.piece.symmetric:
            rows, columns = upper_triangle(self.piece.shape[0], self.items.device)
            ends = (int(rows[number]), int(columns[number]))
            return " \N{EN DASH} ".join(
                self.nodes[end] if self.nodes else f"node {end + 1}" for end in ends
            )
        if len(self.piece.shape) == 3:
            channels, height, width = self.piece.shape
            channel, place = divmod(number, height * width)
            row, column = divmod(place, width)
            told = f"row {row + 1}, column {column + 1}"
            own = channels > 1 and not self.explained_channels
            return f"channel {channel + 1}, {told}" if own else told
        return f"number {number + 1}"

    def split(self, seed: int) -> Split:
        """Training, validation and test part that only `seed` and the division decide."""
        check_seed(seed)
        places = {part: index.long() for part, index in self.divide(self.labels, seed).items()}
        shift = torch.zeros(self.items.shape[1:], dtype=self.items.dtype)
        if self.centred:
            shift = self.items[places["train"].unique()].mean(0)
        train, valid, test = (
            self._part(name, places[name], shift) for name in ("train", "valid", "test")
        )
        shift = torch.cat([shift.flatten()] * 2) if self.pairs else shift
        scale = Scale(fill=torch.zeros_like(shift), shift=shift, width=torch.ones_like(shift))
        return Split(train=train, valid=valid, test=test, scale=scale, dataset=self, seed=seed)

    def _part(self, name: str, index: Tensor, shift: Tensor) -> Part:
        if not len(index):
            raise ValueError(f"the {name} part of {self.name} has no examples: add items.")
        labels = self.labels[index]
        y = (labels[:, 0] == labels[:, 1]).long() if self.pairs else labels
        check_part(name, y, self.classes, ())
        x = (self.items[index] - shift).float()
        return Part(rows=index, x=x.flatten(1) if self.pairs else x, y=y)

    def training_items(self, seed: int) -> tuple[Tensor, Tensor]:
        """The items of the training part, scaled as in the split, and their classes."""
        chosen = self.divide(self.labels, seed)["train"].unique()
        items = self.items[chosen]
        items = items - items.mean(0) if self.centred else items
        return items.float(), self.labels[chosen]
