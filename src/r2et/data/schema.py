"""How the columns of a table become the inputs of a model, and what these inputs mean.

- A column of numbers is one feature. Missing numbers are filled, and a second feature
  "name: missing" marks them if there were any.
- A column of words is one 0/1 feature "name: value" for each value, or of two values one feature
  that tells both. A missing word is the value "missing".
- A word that is none of the values is refused, or encoded as the average row is: each feature of
  the column then holds the share of rows with its value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from r2et.data.cells import USUAL, Floats, Missing, word_in
from r2et.data.features import MISSING, Feature, Scale, check_names
from r2et.data.writing import Writing

OTHER = "other"  # the words of a column that are not among the most frequent

Values = NDArray[Any]
"""The cells of a column as its attribute takes them: numbers with NaN, or words (N,)."""


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """A column of numbers as features: (value - shift) / width, filled, and a mark if `marked`.

    `low` and `high` are its range, `writing` how its numbers are written if not plainly, `shown`
    what it is called for readers, and `group` the one-hot group of 0/1 columns that it is one of.
    `curved` says whether it has more than two values, between which all is linear. Without `fills`
    a missing number that no feature marks is refused.
    """

    name: str
    low: float
    high: float
    fill: float = 0.0
    shift: float = 0.0
    width: float = 1.0
    marked: bool = False
    curved: bool = True
    fills: bool = True
    writing: Writing | None = None
    unit: str = ""
    shown: str = ""
    group: str = ""

    @property
    def features(self) -> tuple[Feature, ...]:
        """What its inputs mean."""
        shown = self.shown or self.name
        number = Feature(
            name=shown,
            group=self.group or shown,
            kind="category" if self.group else "numeric",
            low=self.low,
            high=self.high,
            unit=self.unit or ("" if self.writing is None else self.writing.measure),
        )
        mark = Feature(
            name=f"{shown}: {MISSING}",
            group=self.group or shown,
            kind="binary",
            low=0.0,
            high=1.0,
            words=("given", MISSING),
        )
        return (number, mark) if self.marked else (number,)

    @property
    def scales(self) -> list[tuple[float, float, float]]:
        """Fill, shift and width of each feature."""
        return [(self.fill, self.shift, self.width), (0.0, 0.0, 1.0)][: len(self.features)]

    def raw(self, numbers: Values) -> Floats:
        """The features of each cell, NaN for what is to be filled: (N, 1), or (N, 2) if marked."""
        columns = [numbers, np.isnan(numbers)]
        return np.stack(columns if self.marked else columns[:1], axis=1)


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of words as features: 0 or 1 for each label, `shares` for a word that is none.

    Without shares such a word is refused; if the column is `grouped`, it counts as the label
    "other". If it is `binary`, one feature tells both labels, called "name: value" if `valued`.
    With `as_numbers`, labels that are equal numbers are the same. `shown` is what it is called for
    readers, `group` the attribute it belongs to if that is another.
    """

    name: str
    labels: tuple[str, ...]
    shares: tuple[float, ...] = ()
    grouped: bool = False
    binary: bool = False
    valued: bool = False
    as_numbers: bool = False
    shown: str = ""
    group: str = ""

    @property
    def features(self) -> tuple[Feature, ...]:
        """What its inputs mean."""
        shown = self.shown or self.name
        group = self.group or shown
        if self.binary:
            zero, one = self.labels
            name = f"{shown}: {one}" if self.valued else shown
            return (
                Feature(
                    name=name, group=group, kind="binary", low=0.0, high=1.0, words=(zero, one)
                ),
            )
        return tuple(
            Feature(name=f"{shown}: {label}", group=group, kind="category", low=0.0, high=1.0)
            for label in self.labels
        )

    @property
    def scales(self) -> list[tuple[float, float, float]]:
        """Fill, shift and width of each feature."""
        return [(0.0, 0.0, 1.0)] * len(self.features)

    def word(self, text: str, missing: Missing = USUAL) -> str:
        """The label of a cell, or what it is called if it has none."""
        if text in self.labels:
            return text
        text = text.strip()
        return MISSING if missing.holds(text) else word_in(text, as_number=self.as_numbers)

    def raw(self, words: Values) -> Floats:
        """The features of each cell: (N, labels), or (N, 1) if binary."""
        import pandas as pd

        known = pd.Index(self.labels, dtype=object)
        return self.of_places(known.get_indexer(pd.Index(words, dtype=object)))

    def of_places(self, places: NDArray[np.intp]) -> Floats:
        """The features of cells whose places among the labels are given, -1 for none of them."""
        if self.grouped:
            places = np.where(places < 0, self.labels.index(OTHER), places)
        rows: Floats = np.eye(len(self.labels))
        if self.shares:
            rows = np.vstack([rows, self.shares])
        rows = rows[places]
        return rows[:, 1:] if self.binary else rows


Attribute = Numeric | Category


@dataclass(frozen=True)
class Schema:
    """How the columns of a table, in their order, become the inputs of a model."""

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        """Refuse two features of one name."""
        check_names(self.features)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """What each input means."""
        return tuple(feature for each in self.attributes for feature in each.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table."""
        return tuple(each.name for each in self.attributes)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """For each input the place of its column."""
        return tuple(place for place, each in enumerate(self.attributes) for _ in each.features)

    @property
    def firsts(self) -> list[int]:
        """The place of the first input of each column."""
        return list(accumulate((len(each.features) for each in self.attributes[:-1]), initial=0))

    @property
    def curved(self) -> list[int]:
        """The places of the inputs in which a network may bend."""
        placed = zip(self.attributes, self.firsts, strict=True)
        return [first for each, first in placed if isinstance(each, Numeric) and each.curved]

    @property
    def one_hot(self) -> list[list[int]]:
        """The places of the inputs of each column of words that has several."""
        return [
            list(range(first, first + len(each.labels)))
            for each, first in zip(self.attributes, self.firsts, strict=True)
            if isinstance(each, Category) and not each.binary
        ]

    @cached_property
    def scale(self) -> Scale:
        """The way from original units to inputs."""
        ways = [way for each in self.attributes for way in each.scales]
        fill, shift, width = torch.tensor(ways, dtype=torch.float64).unbind(1)
        return Scale(fill=fill, shift=shift, width=width)

    def with_scale(self, scale: Scale) -> "Schema":
        """The same columns with another fill, shift and width of their numbers."""
        ways = torch.stack([scale.fill, scale.shift, scale.width], 1).tolist()
        return Schema(
            tuple(
                replace(each, fill=ways[first][0], shift=ways[first][1], width=ways[first][2])
                if isinstance(each, Numeric)
                else each
                for each, first in zip(self.attributes, self.firsts, strict=True)
            )
        )

    def raw(self, values: Sequence[Values]) -> Tensor:
        """The inputs of rows, given by column, in original units: (N, d) in float64."""
        parts = [each.raw(own) for each, own in zip(self.attributes, values, strict=True)]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def encode(self, values: Sequence[Values]) -> Tensor:
        """The inputs of rows, given by column, as a model takes them: (N, d) in float64."""
        return self.scale.apply(self.raw(values))

    def to_json(self) -> list[dict[str, Any]]:
        """All of it as JSON can hold it."""
        return [asdict(each) for each in self.attributes]

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> "Schema":
        """The schema that such values state, those of an older version, too."""
        return cls(tuple(map(_attribute, columns)))


def _attribute(stated: Mapping[str, Any]) -> Attribute:
    if "labels" in stated:
        labels, shares = tuple(stated["labels"]), tuple(stated.get("shares", ()))
        two = {} if "binary" in stated else {"binary": len(labels) == 2, "valued": True}
        return Category(**{**stated, **two, "labels": labels, "shares": shares})
    way = stated.get("writing")
    stated = {**stated, "writing": None if way is None else Writing(**way)}
    if "high" not in stated:  # as the first edition told it
        stated |= {"shift": stated["low"], "high": stated["low"] + stated["width"]}
    return Numeric(**stated)
