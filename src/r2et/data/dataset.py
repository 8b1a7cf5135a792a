"""Examples with their classes and their meaning in words, cut into parts and scaled.

A data set of tables, images, graphs or pairs of them is one `Dataset`; what its examples are made
of, and what follows from it, is the `InputStructure` that it has.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from r2et.core.inputs import Piece
from r2et.core.rng import check_seed
from r2et.data.division import SHARES, Division, Shares, shuffled
from r2et.data.features import Feature, Scale, Scaling
from r2et.data.structure import InputStructure, ItemStructure, TableStructure

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
    def items(self) -> ItemStructure:
        """What pictures, networks or pairs of them are made of; refused for a table."""
        if not isinstance(self.structure, ItemStructure):
            raise ValueError(
                f"this takes pictures or networks, but {self.name} is a table: leave it out."
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

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with any value or name."""
        names = (self.name, self.target, self.classes, *self.structure.identity)
        if self.stand_in or not self.tabular:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderSpec:
    """How examples are drawn: "picture", "network" or, explained by neurons, "concept".

    Each is made of `count` pieces alike, the first of which is explained; its numbers are shown
    between `low` and `high`. `name` says what a feature is called.
    """

    kind: str
    piece: Piece
    count: int
    low: float
    high: float
    name: Callable[[int], str]

    @classmethod
    def of(cls, dataset: Dataset, features: int) -> "RenderSpec":
        """How the items of a data set are drawn, of explanations with so many features."""
        structure = dataset.structure
        low, high = structure.bounds or (float(dataset.x.min()), float(dataset.x.max()))
        return cls(
            kind=structure.kind if features == structure.n else "concept",
            piece=structure.piece,
            count=2 if structure.pairs else 1,
            low=low,
            high=high,
            name=structure.feature_name,
        )
