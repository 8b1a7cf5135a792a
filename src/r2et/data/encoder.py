"""Tables of columns that become the inputs of a network, and new rows that become the same.

- A column of numbers is one feature, scaled to [0, 1] by the training rows. Missing numbers are
  replaced by the median of these rows; if they had any, a feature "name: missing" marks them.
- Text whose numbers are written with a decimal comma, set-off thousands, a sign of money or per
  cent, or as dates, is a column of numbers, too (`r2et.data.writing`); so are pandas' dates.
- A column of words is one 0/1 feature "name: value" for each value, of two values that of the
  second alone. A missing word is the value "missing".
- A word that training did not show, "missing" included, is encoded as the average row is: each
  feature of the column holds the share of training rows with its value.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types
from torch import Tensor

from r2et.data.dataset import MISSING
from r2et.data.frames import GROUP, MISSING_WORDS, MOST_WORDS, NUMBER, check_categories, whole
from r2et.data.writing import ORIGIN, Writing, writing_of

OTHER = "other"  # the words of a column that are not among the most frequent

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
Cells = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """A column of numbers as features: filled, then (value - low) / width, and a mark if `marked`.

    `curved` says whether it had more than the two values between which all is linear, `writing` how
    its numbers were written if not plainly.
    """

    name: str
    fill: float
    low: float
    width: float
    marked: bool
    curved: bool
    writing: Writing | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name, f"{self.name}: {MISSING}") if self.marked else (self.name,)

    def encode(self, numbers: Floats) -> Floats:
        """The features of each cell: (N, 1), or (N, 2) if marked."""
        absent = np.isnan(numbers)
        scaled = (np.where(absent, self.fill, numbers) - self.low) / self.width
        return np.stack([scaled, absent] if self.marked else [scaled], axis=1)


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of words as features: 0 or 1 for each label, `shares` for a word that is none.

    If it is `grouped`, a word that is none counts as the label "other".
    """

    name: str
    labels: tuple[str, ...]
    shares: tuple[float, ...]
    grouped: bool = False

    @property
    def binary(self) -> bool:
        """Whether one feature tells all."""
        return len(self.labels) == 2

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        shown = self.labels[1:] if self.binary else self.labels
        return tuple(f"{self.name}: {label}" for label in shown)

    def encode(self, words: Cells) -> Floats:
        """The features of each cell: (N, labels), or (N, 1) if binary."""
        known = pd.Index(self.labels, dtype=object)
        codes = known.get_indexer(pd.Index(words, dtype=object))  # -1: none of them
        if self.grouped:
            codes = np.where(codes < 0, self.labels.index(OTHER), codes)
        rows: Floats = np.vstack([np.eye(len(self.labels)), self.shares])[codes]
        return rows[:, 1:] if self.binary else rows


Column = Numeric | Category


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become the features of a network."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Refuse two features of one name."""
        for feature, times in Counter(self.features).most_common(1):
            if times > 1:
                raise ValueError(
                    f"features must differ in their names, but {times} are called {feature!r}: "
                    "rename a column."
                )

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of all features."""
        return tuple(feature for column in self.columns for feature in column.features)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """For each feature the place of its column."""
        return tuple(place for place, each in enumerate(self.columns) for _ in each.features)

    @property
    def curved(self) -> list[int]:
        """The places of the features in which a network may bend."""
        placed = zip(self.columns, self._firsts, strict=True)
        return [first for each, first in placed if isinstance(each, Numeric) and each.curved]

    @property
    def one_hot(self) -> list[list[int]]:
        """The places of the features of each one-hot group."""
        return [
            list(range(first, first + len(each.labels)))
            for each, first in zip(self.columns, self._firsts, strict=True)
            if isinstance(each, Category) and not each.binary
        ]

    @property
    def _firsts(self) -> list[int]:
        """The place of the first feature of each column."""
        return list(accumulate((len(each.features) for each in self.columns[:-1]), initial=0))

    def cells(self, table: pd.DataFrame) -> list[Cells]:
        """The cells of new rows by column, to be encoded: (N,) each."""
        words = [isinstance(column, Category) for column in self.columns]
        ways = [column.writing if isinstance(column, Numeric) else None for column in self.columns]
        return cells_of(table, [column.name for column in self.columns], words, ways)

    def encode(self, cells: Sequence[Cells]) -> Tensor:
        """The features of rows whose cells are given by column: (N, n) in float64."""
        parts = [each.encode(own) for each, own in zip(self.columns, cells, strict=True)]
        return torch.from_numpy(np.concatenate(parts, axis=1))


def holds_words(cells: "pd.Series[Any]") -> bool:
    """Whether a column is one of categories: text, truth values, pandas' own categories."""
    kind = cells.infer_objects().dtype
    return (
        isinstance(kind, pd.CategoricalDtype)
        or types.is_bool_dtype(kind)
        or types.is_object_dtype(kind)
        or types.is_string_dtype(kind)
    )


def writing_in(name: str, cells: "pd.Series[Any]") -> Writing | None:
    """The way in which the numbers of a column are written, None if plainly or if it has none."""
    if types.is_datetime64_any_dtype(cells.dtype):
        return Writing(order="year first")
    kind = cells.infer_objects().dtype
    if not (types.is_object_dtype(kind) or types.is_string_dtype(kind)):
        return None
    known = [value for value in pd.unique(cells) if not pd.isna(value)]
    if not all(isinstance(value, str) for value in known):
        return None
    return writing_of(
        name,
        [text for each in known if (text := each.strip()).casefold() not in MISSING_WORDS],
        cure="convert the column to numbers or dates yourself, or list it in categorical",
    )


def cells_of(
    table: pd.DataFrame,
    names: Sequence[str],
    words: Sequence[bool],
    ways: Sequence[Writing | None] | None = None,
) -> list[Cells]:
    """The cells of each column, as text where it holds `words`, else as numbers: (N,) each.

    Text that is not of `words` holds numbers written in one of `ways`.
    """
    columns = (table.iloc[:, place] for place in range(len(names)))
    return [
        words_of(column) if as_words else numbers_of(name, column, way)
        for name, column, as_words, way in zip(
            names, columns, words, ways or [None] * len(names), strict=True
        )
    ]


def words_of(cells: "pd.Series[Any]") -> Cells:
    """Each cell as text, whole numbers without a decimal part, "missing" if there is none: (N,)."""
    codes, values = pd.factorize(cells)
    texts = np.array([*(whole(str(value)) for value in values), MISSING], dtype=object)
    return texts[codes]


def numbers_of(name: str, cells: "pd.Series[Any]", way: Writing | None = None) -> Floats:
    """Each cell as a number, of text by the `way` it is written, NaN if there is none: (N,)."""
    cells = cells.infer_objects()
    if way is not None and way.order is not None:
        if types.is_datetime64_any_dtype(cells.dtype):
            return days_of(cells)
        if types.is_numeric_dtype(cells.dtype) and cells.notna().any():
            raise ValueError(
                f"column {name!r} must hold dates, as it did in training, got {cells.dtype}: "
                "convert it by pandas.to_datetime."
            )
    if way is not None and not types.is_numeric_dtype(cells.dtype):
        return _written(name, cells, way)
    if types.is_complex_dtype(cells.dtype):
        raise ValueError(f"Complex data not supported: column {name!r} holds complex numbers.")
    try:
        if not (types.is_numeric_dtype(cells.dtype) or holds_words(cells)):
            raise TypeError(f"got {cells.dtype}")
        numbers = pd.to_numeric(cells).to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"column {name!r} must hold numbers ({problem}): convert it, or name it as a column of "
            "categories."
        ) from problem
    if np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
        raise ValueError(
            f"numbers must be finite or missing, got {numbers[row]} in row {row} of column "
            f"{name!r}: correct it or leave it out."
        )
    return numbers


def days_of(cells: "pd.Series[Any]") -> Floats:
    """Pandas' dates as days since 2000-01-01, NaN if there is none: (N,)."""
    since = (pd.to_datetime(cells, utc=True) - pd.Timestamp(ORIGIN)) / pd.Timedelta(days=1)
    found: Floats = np.asarray(since.to_numpy(), dtype=np.float64)
    return found


def _written(name: str, cells: "pd.Series[Any]", way: Writing) -> Floats:
    codes, values = pd.factorize(cells)
    numbers = [np.nan] * (len(values) + 1)  # the last one for missing cells, whose code is -1
    for place, value in enumerate(values):
        text = str(value).strip()
        number = way.number(text)
        if number is None and text.casefold() not in MISSING_WORDS:
            row = int((codes == place).argmax())
            raise ValueError(
                f"column {name!r} is written {way.words}, got {text!r} in row {row}: correct it, "
                "or list the column in categorical and fit again."
            )
        numbers[place] = np.nan if number is None else number
    return np.array(numbers)[codes]


def merged(cells: Sequence[Cells], y: Codes, weights: Floats) -> tuple[Codes, Floats]:
    """The number of one row of each kind, kinds in an order of their own, and their weights.

    Rows are of one kind if all their cells and their class are equal; rows of weight 0 are none.
    A row of weight 2 is thus exactly two rows, and the order in which rows are given is forgotten.
    """
    counted = np.flatnonzero(weights)
    keys = [y[counted], *(_sortable(own[counted]) for own in cells)]
    ranked = np.lexsort(keys)
    new = np.zeros(len(ranked), dtype=bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[ranked[1:]] != key[ranked[:-1]]
    firsts = np.flatnonzero(new)
    totals: Floats = np.add.reduceat(weights[counted][ranked], firsts)
    return counted[ranked[firsts]], totals


def _sortable(cells: Cells) -> Cells:
    """Numbers that are equal where cells are, in an order that cells alone decide: (N,)."""
    if cells.dtype == object:
        return pd.factorize(cells, sort=True)[0]
    # Infinite numbers are refused, so that missing ones may stand in their place.
    return np.where(np.isnan(cells), np.inf, cells)


def learnt(
    names: Sequence[str],
    cells: Sequence[Cells],
    weights: Floats,
    ways: Sequence[Writing | None] | None = None,
    most: int | None = None,
) -> Encoding:
    """How the columns of training rows, and of all rows to come, are encoded.

    Of words the `most` frequent are kept and the others called "other"; all unless given.
    """
    columns = [
        _category(name, own, weights, most)
        if own.dtype == object
        else replace(_numeric(name, own, weights), writing=way)
        for name, own, way in zip(names, cells, ways or [None] * len(names), strict=True)
    ]
    return Encoding(tuple(columns))


def _numeric(name: str, numbers: Floats, weights: Floats) -> Numeric:
    known = ~np.isnan(numbers)
    marked = not known.all()
    if not known.any():
        return Numeric(name=name, fill=0.0, low=0.0, width=1.0, marked=marked, curved=False)
    ranked = np.argsort(numbers[known], kind="stable")
    values, total = numbers[known][ranked], weights[known][ranked].cumsum()
    # The lower of two middle values, so that a filled value is one that occurs.
    fill = values[np.searchsorted(total, total[-1] / 2)]
    return Numeric(
        name=name,
        fill=float(fill),
        low=float(values[0]),
        width=float(values[-1] - values[0]) or 1.0,
        marked=marked,
        curved=len(np.unique(values)) > 2,
    )


def _category(name: str, words: Cells, weights: Floats, most: int | None) -> Category:
    codes, found = pd.factorize(words)
    if most is None and len(found) > MOST_WORDS and 2 * len(found) > len(words):
        raise ValueError(
            f"column {name!r} has {len(found)} different values in {len(words)} rows: drop it if "
            f"it identifies rows, or set max_categories={MOST_WORDS} to merge rare values."
        )
    if most is None:
        cure = f"set max_categories={MOST_WORDS} to {GROUP}"
        check_categories(name, len(found), cure)
    shares = dict(zip(found, np.bincount(codes, weights) / weights.sum(), strict=True))
    grouped = most is not None and len(shares.keys() - {MISSING}) > most
    if grouped:
        ranked = sorted(shares.keys() - {MISSING}, key=lambda label: (-shares[label], label))
        rest = sum(shares.pop(label) for label in ranked[most:])
        shares[OTHER] = shares.get(OTHER, 0.0) + rest
    labels = sorted(shares, key=_place_of_label)
    return Category(
        name=name,
        labels=tuple(labels),
        shares=tuple(float(shares[label]) for label in labels),
        grouped=grouped,
    )


def _place_of_label(label: str) -> tuple[bool, float, str]:
    """Numbers in their order, then words in theirs, "missing" last."""
    return label == MISSING, float(label) if NUMBER.fullmatch(label) else math.inf, label


def column_from(told: Mapping[str, Any]) -> Column:
    """The column with these fields, which JSON may have made lists of."""
    if "labels" not in told:
        way = told.get("writing")
        return Numeric(**{**told, "writing": None if way is None else Writing(**way)})
    fields = {"labels": tuple(told["labels"]), "shares": tuple(told["shares"])}
    return Category(**{**told, **fields})
