"""The rows of an audit: what the inputs of a model mean, and the inputs themselves in chunks."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from r2et.core.naming import nearest
from r2et.data.dataset import RenderSpec, Split
from r2et.data.features import Feature, Scale, exchangeable, members, one_hot
from r2et.data.schema import Numeric, Schema, Values
from r2et.explainers import shaped

Array = Tensor | NDArray[Any]
Words: TypeAlias = "Sequence[str] | pd.Categorical[Any]"
NUMBER_IN_WORD = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
AS_GIVEN = "one unit of the model's input, as it enters the model"


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """What the inputs of a model mean.

    `scale` leads from original units to inputs. `reach` (d,) is what a length of 1 is in inputs, 0
    for those that never change, `unit_of_eps` the same in words. `baseline` (d,) stands for a
    feature that is taken away. Where features are no inputs by themselves, `counts` holds for each
    input the feature that it counts for, -1 for none. `bounds` are those of inputs, (d,) each.
    Decisions with a `render_spec` are drawn.
    """

    features: tuple[Feature, ...]
    scale: Scale
    reach: Tensor
    baseline: Tensor
    unit_of_eps: str = AS_GIVEN
    counts: tuple[int, ...] = ()
    bounds: tuple[Tensor, Tensor] | None = None
    render_spec: RenderSpec | None = None

    @property
    def tabular(self) -> bool:
        """Whether they are those of a row of a table, which is told in words."""
        return self.render_spec is None

    def values(self, x: Tensor) -> list[float]:
        """What an example (d,) says of each feature in original units; of several inputs a mean."""
        raw = self.scale.undo(x)[None]
        if self.counts:
            one = torch.ones_like(raw)
            raw = shaped(raw, "signed", self.counts) / shaped(one, "signed", self.counts)
        found: list[float] = raw[0].tolist()
        return found

    @property
    def still(self) -> list[bool]:
        """Which features never change."""
        free = (self.reach > 0).tolist()
        if self.counts:
            moved = {feature for feature, each in zip(self.counts, free, strict=True) if each}
            free = [number in moved for number in range(len(self.features))]
        return [not each for each in free]

    def input_name(self, number: int) -> str:
        """What an input is called."""
        return f"number {number + 1}" if self.counts else self.features[number].name

    @property
    def groups(self) -> dict[str, list[int]]:
        """The column numbers of each attribute."""
        return members(self.features)

    @property
    def one_hot(self) -> tuple[tuple[int, ...], ...]:
        """The column numbers of each one-hot group."""
        return one_hot(self.features)

    @property
    def exchangeable(self) -> tuple[tuple[int, ...], ...]:
        """The column numbers of each attribute whose value is one of several words."""
        return () if self.counts else exchangeable(self.features)

    @property
    def immutable(self) -> list[str]:
        """The attributes that never change."""
        still = self.still
        if not self.tabular and all(still):
            return ["what is explained"]
        return [group for group, numbers in self.groups.items() if all(still[i] for i in numbers)]

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with any name, scale or measure of length."""
        found = hashlib.sha256(repr((self.features, self.unit_of_eps)).encode("utf-8", "replace"))
        for each in (self.scale.fill, self.scale.shift, self.scale.width, self.reach):
            found.update(each.double().contiguous().cpu().numpy().tobytes())
        if self.counts:
            found.update(repr(self.counts).encode())
        for bound in self.bounds or ():
            found.update(bound.double().contiguous().cpu().numpy().tobytes())
        return found.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Some rows: their numbers, inputs (B, d) in float64, and what is known of each.

    `values` are the cells of each column as they were read, where rows come from a table of text.
    """

    rows: Sequence[int]
    x: Tensor
    labels: Sequence[str | None]
    ids: Sequence[str | None]
    subgroups: Sequence[Mapping[str, str]]
    values: Sequence[Values] | None = None

    def first(self, count: int) -> "Chunk":
        """The first rows alone."""
        return Chunk(
            rows=self.rows[:count],
            x=self.x[:count],
            labels=self.labels[:count],
            ids=self.ids[:count],
            subgroups=self.subgroups[:count],
            values=None if self.values is None else [own[:count] for own in self.values],
        )

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with any of it."""
        named = (list(self.labels), list(self.ids), list(map(dict, self.subgroups)))
        known = repr((list(self.rows), *named))
        found = hashlib.sha256(known.encode("utf-8", "surrogatepass"))
        found.update(self.x.contiguous().numpy().tobytes())
        return found.hexdigest()[:12]


class Source(Protocol):
    """Rows that can be audited, read from the beginning as often as asked for."""

    @property
    def name(self) -> str:
        """What the rows are called."""

    @property
    def columns(self) -> Columns:
        """What the inputs mean."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of the logits, None if nobody said."""

    @property
    def target(self) -> str | None:
        """What the labels are called, None if there are none."""

    @property
    def length(self) -> int | None:
        """How many rows there are, None if nobody knows before."""

    @property
    def digest(self) -> str | None:
        """Twelve hexadecimal digits of the content, None if it is known at the end only."""

    @property
    def subgroup_values(self) -> Mapping[str, Sequence[str]]:
        """The values of each name of subgroups, in the order in which readers are told of them."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know about how the rows were read."""

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows in order, at most `size` at a time."""


def in_order(words: Iterable[object]) -> list[str]:
    """The different words, those with a number in them by the first one, then by the alphabet.

    >>> in_order(["rent", "26-40", "100+", "9-25", "26-40"])
    ['9-25', '26-40', '100+', 'rent']
    """

    def place(word: str) -> tuple[float, str]:
        number = NUMBER_IN_WORD.search(word)
        return float(number[0]) if number else math.inf, word

    return sorted({*map(str, words)}, key=place)


def features_named(
    names: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    units: Mapping[str, str],
    low: Sequence[float],
    high: Sequence[float],
) -> tuple[Feature, ...]:
    """A feature for each name; those that a group lists are its one-hot columns."""
    for what, listed in (
        ("a one-hot group", [name for columns in groups.values() for name in columns]),
        ("units", units),
    ):
        for name in listed:
            if name not in names:
                raise ValueError(f"{what} names no column by {name!r}: {nearest(name, names)}")
    owner = {name: group for group, columns in groups.items() for name in columns}
    return Schema(
        tuple(
            Numeric(
                name=name,
                low=least,
                high=most,
                unit=units.get(name, ""),
                group=owner.get(name, ""),
            )
            for name, least, most in zip(names, low, high, strict=True)
        )
    ).features


def reach_of(
    features: Sequence[Feature], immutable: Iterable[str], lengths: Tensor | None = None
) -> Tensor:
    """What a length of 1 is for each input, 0 for the immutable attributes or columns: (d,)."""
    known = [*dict.fromkeys(each.group for each in features), *(each.name for each in features)]
    still = set(immutable)
    for name in still:
        if name not in known:
            raise ValueError(f"immutable names no column by {name!r}: {nearest(name, known)}")
    free = [each.name not in still and each.group not in still for each in features]
    reach = torch.ones(len(features), dtype=torch.float64) if lengths is None else lengths
    reach = torch.where(torch.tensor(free), reach.double(), 0.0)
    if not (reach > 0).any():
        raise ValueError("every input is immutable, so that no reason could change: free some.")
    return reach


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Inputs in memory or from an iterator, as the model takes them, with their names.

    `x` is (N, d), or an iterable of such arrays or of pairs (x, y) of them. `groups` are one-hot
    groups by the names of their columns; `immutable` names groups or columns that never change.
    `y` holds class numbers; `classes` names them in the order of the logits. Values of `subgroups`
    are told in the order of a pandas `Categorical`, or of the numbers and letters in them. With a
    `scale` values are told in original units; `features` then say more than `names` can. `lengths`
    (d,) are what a length of 1 is for each input, 1 unless given. Contributions are told against
    rows of `reference`, (R, d).
    """

    x: Array | Iterable[Any]
    names: Sequence[str] = ()
    name: str = "table"
    y: Array | None = None
    classes: tuple[str, ...] | None = None
    target: str | None = None
    ids: Sequence[str] | None = None
    rows: Sequence[int] | None = None
    subgroups: Mapping[str, Words] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    immutable: Sequence[str] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    features: tuple[Feature, ...] = ()
    scale: Scale | None = None
    lengths: Tensor | None = None
    unit_of_eps: str = AS_GIVEN
    notes: tuple[str, ...] = ()
    reference: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if not self.names and not self.features:
            raise ValueError("a table needs the names of its inputs, or its features: give names.")
        d, whole = len(self.features or self.names), self._whole
        if whole is not None and (whole.ndim != 2 or whole.shape[1] != d):
            raise ValueError(
                f"x must have one column for each of the {d} names, got shape "
                f"{tuple(whole.shape)}: make values and names agree."
            )
        if whole is None and (self.y is not None or self.ids or self.rows or self.subgroups):
            raise ValueError(
                "rows from an iterator bring no y, ids or subgroups along: yield pairs (x, y)."
            )
        counted = {"y": self.y, "ids": self.ids, "rows": self.rows, **self.subgroups}
        for what, values in counted.items():
            if values is not None and whole is not None and len(values) != len(whole):
                raise ValueError(
                    f"{what} must hold one value for each of the {len(whole)} rows, got "
                    f"{len(values)}."
                )
        if self.classes is not None and self.y is not None:
            check_labels(torch.as_tensor(self.y), self.classes)
        _ = self.columns

    @classmethod
    def of_split(
        cls,
        split: Split,
        immutable: Sequence[str] = (),
        subgroups: Mapping[str, Words] | None = None,
    ) -> "Table":
        """The rows of the test part of a split data set."""
        part, dataset = split.test, split.dataset
        return cls(
            x=part.x.double(),
            name=dataset.name,
            y=part.y,
            classes=dataset.classes,
            target=dataset.target,
            rows=part.rows.tolist(),
            features=dataset.features,
            scale=split.scale,
            immutable=immutable,
            subgroups=subgroups or {},
            reference=split.train.x,
        )

    @cached_property
    def _whole(self) -> Tensor | None:
        if isinstance(self.x, Tensor | np.ndarray):
            return torch.as_tensor(self.x).detach().cpu()
        return None

    @cached_property
    def columns(self) -> Columns:
        """What the inputs mean."""
        x, d = self._whole, len(self.features or self.names)
        zeros = torch.zeros(d, dtype=torch.float64)
        scale = self.scale or Scale(fill=zeros, shift=zeros, width=torch.ones_like(zeros))
        some = x if x is not None and len(x) else zeros[None]
        low, high, middle = some.amin(0), some.amax(0), some.median(0).values.double()
        features = self.features or features_named(
            self.names, self.groups, self.units, low.tolist(), high.tolist()
        )
        numeric = torch.tensor([each.kind == "numeric" for each in features])
        return Columns(
            features=features,
            scale=scale,
            reach=reach_of(features, self.immutable, self.lengths),
            baseline=torch.where(numeric, middle, 0.0),
            unit_of_eps=self.unit_of_eps,
        )

    @property
    def length(self) -> int | None:
        """How many rows there are, None for an iterator."""
        return None if self._whole is None else len(self._whole)

    @cached_property
    def digest(self) -> str | None:
        """Twelve hexadecimal digits of the inputs, None for an iterator."""
        if self._whole is None:
            return None
        found = hashlib.sha256()
        for chunk in self.chunks(4096):
            found.update(chunk.digest.encode())
        return found.hexdigest()[:12]

    @property
    def subgroup_values(self) -> dict[str, list[str]]:
        """The values of each name of subgroups in order."""
        return {
            group: [*values.categories] if isinstance(values, pd.Categorical) else in_order(values)
            for group, values in self.subgroups.items()
        }

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows in order, at most `size` at a time."""
        first = 0
        for x, y in self._blocks(size):
            rows = range(first, first + len(x))
            first += len(x)
            yield Chunk(
                rows=rows if self.rows is None else [int(self.rows[i]) for i in rows],
                x=x,
                labels=self._labels(y, len(x)),
                ids=[None if self.ids is None else str(self.ids[i]) for i in rows],
                subgroups=[
                    {group: str(values[i]) for group, values in self.subgroups.items()}
                    for i in rows
                ],
            )

    def _blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        given: Iterable[Any]
        if (whole := self._whole) is not None:
            given = [(whole, None if self.y is None else torch.as_tensor(self.y))]
        else:
            given = self.x
        d = len(self.features or self.names)
        for item in given:
            x, y = item if isinstance(item, tuple) else (item, None)
            x = torch.as_tensor(x).detach().cpu().double()
            if x.ndim != 2 or x.shape[1] != d:
                raise ValueError(
                    f"each block of rows must have {d} columns, got shape {tuple(x.shape)}."
                )
            y = None if y is None else torch.as_tensor(y)
            for at in range(0, len(x), size):
                yield x[at : at + size], None if y is None else y[at : at + size]

    def _labels(self, y: Tensor | None, count: int) -> list[str | None]:
        if y is None:
            return [None] * count
        if self.classes is None:
            return [str(each) for each in y.tolist()]
        check_labels(y, self.classes)
        return [self.classes[int(each)] for each in y.tolist()]


def check_labels(y: Tensor, classes: Sequence[str]) -> None:
    """Refuse labels that are no numbers of the classes."""
    numbers = y.tolist()
    if any(not math.isfinite(each) or int(each) not in range(len(classes)) for each in numbers):
        raise ValueError(
            f"y must hold class numbers 0..{len(classes) - 1}, one for each of the classes named, "
            f"got {min(numbers)}..{max(numbers)}."
        )
