"""Examples with their classes and their meaning in words, cut into parts and scaled.

A data set of tables, images, graphs or pairs of them is one `Dataset`; what its examples are made
of, and what follows from it, is the `InputStructure` that it has.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from r2et.core.inputs import Piece
from r2et.core.rng import check_seed
from r2et.data.division import SHARES, Division, Shares, shuffled
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

PAIR_CLASSES = ("different", "same")
DIGESTED = 4096  # rows at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some rows of a dataset: their numbers, scaled inputs (float32) and classes."""

    rows: Tensor
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)


class InputStructure(Protocol):
    """What one example is made of, and what follows for whoever trains on it or explains it."""

    @property
    def kind(self) -> Literal["table", "picture", "network"]:
        """Rows of a table, pictures, or symmetric networks over common nodes."""

    @property
    def piece(self) -> Piece:
        """The shape of one row or item."""

    @property
    def pairs(self) -> bool:
        """Whether an example is two items, of which the first is explained."""

    @property
    def n(self) -> int:
        """How many features an explanation has."""

    @property
    def explained(self) -> tuple[int, ...]:
        """For each number of an example the feature it counts for, -1 for none; () for its own."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The range of all numbers in original units, if they have one in common."""

    @property
    def one_hot(self) -> tuple[Columns, ...]:
        """The column numbers of each one-hot group."""

    @property
    def exchangeable(self) -> tuple[Columns, ...]:
        """The column numbers of each attribute whose value is one of several words."""

    @property
    def numeric(self) -> Columns:
        """The column numbers of the numeric features."""

    @property
    def identity(self) -> tuple[object, ...]:
        """All that makes data of other structure other data, for their digest."""

    def feature_name(self, number: int) -> str:
        """An explained feature in words."""

    def check(self, x: Tensor, name: str) -> None:
        """Refuse values from which nothing can be learned."""

    def scale_of(self, x: Tensor, train: Tensor, scaling: Scaling) -> Scale:
        """How raw values become model inputs, by those of the training rows or pairs."""

    def examples(self, raw: Tensor, scale: Scale) -> Tensor:
        """Scaled model inputs, float32, of raw rows (P, ...) or pairs (P, 2, ...)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Three parts that share no row, and the scale fitted on the first of them.

    `classes` are what is predicted: those of rows or items, or whether two items are of one class.
    """

    train: Part
    valid: Part
    test: Part
    scale: Scale
    classes: tuple[str, ...]
    dataset: "Dataset"
    seed: int

    @property
    def training_items(self) -> tuple[Tensor, Tensor]:
        """What the training part is made of, scaled: its items one by one, and their classes."""
        data, chosen = self.dataset, self.train.rows.unique()
        one = data.x[0]
        shift = self.scale.shift.flatten()[: one.numel()].view_as(one)
        return (data.x[chosen] - shift).float(), data.y[chosen]


@dataclass(frozen=True, kw_only=True)
class TableStructure:
    """Rows of a table: each column is a feature of its own."""

    features: tuple[Feature, ...]

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
        """For each column, the place of its group in `group_names`."""
        places = {group: place for place, group in enumerate(self.group_names)}
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Rows or items in original units, x (N, ...), their classes y (N,), and all names.

    A table (N, d) has NaN for what is missing; items are pictures (N, C, H, W) or the upper
    triangles of networks (N, E). `classes` are what the numbers in y mean. `divide` says which
    rows, or which pairs of them, make up the parts of a split, where that is no simple shuffle.
    `source` is the citation and the licence; `stand_in` says, where the data stand in for others,
    for which.
    """

    name: str
    x: Tensor
    y: Tensor
    structure: InputStructure
    classes: tuple[str, ...]
    target: str
    source: str
    stand_in: str = ""
    divide: Division | None = None

    def __post_init__(self) -> None:
        """Refuse values and names from which nothing can be learned."""
        self.structure.check(self.x, self.name)
        if self.y.shape != self.x.shape[:1]:
            raise ValueError(
                f"y must hold one class for each of the {len(self.x)} rows, got shape "
                f"{tuple(self.y.shape)}: give as many classes as rows."
            )
        check_target(self.y, self.classes, self.target)

    @property
    def n(self) -> int:
        """How many features an explanation has."""
        return self.structure.n

    @property
    def tabular(self) -> bool:
        """Whether examples are rows of a table."""
        return isinstance(self.structure, TableStructure)

    @property
    def table(self) -> TableStructure:
        """The columns of a table; refused for pictures and networks."""
        if not isinstance(self.structure, TableStructure):
            raise ValueError(
                f"this takes a table of named columns, but {self.name} holds pictures or networks: "
                "leave it out for them."
            )
        return self.structure

    @property
    def features(self) -> tuple[Feature, ...]:
        """The columns of a table."""
        return self.table.features

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups of columns of a table, in the order of their first column."""
        return self.table.group_names

    def describe(self, raw_row: Tensor) -> dict[str, str]:
        """A row of a table in words: {"age": "39 years", "education": "Masters"}."""
        return self.table.describe(raw_row)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with any value or name."""
        names = (self.name, self.target, self.classes, *self.structure.identity)
        if not self.tabular:  # no embedded table stands in for another
            names = (*names, self.stand_in)
        digest = hashlib.sha256(repr(names).encode("utf-8", "surrogatepass"))
        for rows in self.x.split(DIGESTED):
            # One bit pattern for all NaN, so that equal tables have equal digests.
            digest.update(torch.where(rows.isnan(), torch.nan, rows).cpu().numpy().tobytes())
        digest.update(self.y.cpu().numpy().tobytes())
        return digest.hexdigest()[:12]

    def split(
        self, seed: int = 0, shares: Shares | None = None, scaling: Scaling = "minmax"
    ) -> Split:
        """Training, validation and test part that only `seed` and the name decide.

        A table is shuffled and cut by `shares`, (0.70, 0.15, 0.15) unless given; its numeric
        columns are scaled to [0, 1] ("minmax") or to mean 0 and deviation 1 ("standard") by the
        training part alone, so that other parts may leave that range; 0/1 columns stay.
        """
        check_seed(seed)
        if self.divide is not None and shares is not None:
            raise ValueError(f"{self.name} has a division of its own: leave out shares.")
        divide = self.divide or partial(shuffled, name=self.name, shares=shares or SHARES)
        chosen = {part: rows.long() for part, rows in divide(self.y, seed).items()}
        classes = PAIR_CLASSES if self.structure.pairs else self.classes
        targets = {part: self._targets(rows) for part, rows in chosen.items()}
        for part, y in targets.items():
            check_part(part, y, classes, self.name)
        scale = self.structure.scale_of(self.x, chosen["train"], scaling)
        parts = {
            part: Part(rows=rows, x=self.structure.examples(self.x[rows], scale), y=targets[part])
            for part, rows in chosen.items()
        }
        return Split(
            train=parts["train"],
            valid=parts["valid"],
            test=parts["test"],
            scale=scale,
            classes=classes,
            dataset=self,
            seed=seed,
        )

    def _targets(self, rows: Tensor) -> Tensor:
        y = self.y[rows]
        return (y[:, 0] == y[:, 1]).long() if self.structure.pairs else y


def check_target(y: Tensor, classes: Sequence[str], target: str) -> None:
    """Refuse a target that is missing somewhere, that is no class number, or that never varies."""
    if y.is_floating_point() and y.isnan().any():
        row = int(y.isnan().nonzero()[0])
        raise ValueError(
            f"every row needs its class, but the target {target!r} is missing (NaN) in row {row}: "
            f"fill it in or remove the row."
        )
    if y.dtype != torch.int64:
        raise ValueError(f"y must hold class numbers as int64, got {y.dtype}: convert it.")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(classes):
        raise ValueError(
            f"y must hold class numbers 0..{len(classes) - 1}, got {int(y.min())}..{int(y.max())}: "
            f"name every class."
        )
    present = y.unique().tolist()
    if len(present) < 2:
        shown = f"only {classes[present[0]]!r}" if present else "no rows"
        raise ValueError(
            f"the target {target!r} must show at least two classes, got {shown}: "
            f"choose another target or add rows."
        )


def check_part(part: str, y: Tensor, classes: Sequence[str], name: str) -> None:
    """Refuse a part without examples or with examples of one class only."""
    if not len(y):
        raise ValueError(
            f"every part needs examples, but the {part} part of {name} is empty: add some, or "
            "choose other shares."
        )
    present = y.unique().tolist()
    if len(present) < 2:
        raise ValueError(
            f"every part needs at least two classes, but the {len(y)} rows of the {part} part are "
            f"all {classes[present[0]]!r}: add rows, or choose another seed or other shares."
        )
