"""What the attributes of a row of a table may become: in their own units, whole numbers whole.

`ActionableSet` says the same of the scaled inputs of a network, with one price for all; here each
number has its half-width, and words are exchanged at a price, so that what is found can be typed
back.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np

from r2et.core.arrays import Floats
from r2et.core.naming import nearest

Way = Literal["up", "down"]
Norm = Literal["box", "l2"]
SLACK = 1e-9  # sizes that add up to 1 but for this are within reach
DEFAULT_WIDTH = 0.05  # standard deviations that a number may move, unless widths are given
LEAST_SPREAD = 4.0  # standard deviation of whole numbers that may move by 1, unless said
MOST_STEPS = 1_000_000  # whole numbers within a width that are still listed

Value = float | str


@dataclass(frozen=True, kw_only=True)
class TableMoves:
    """All rows that a row may become, by the names of its attributes.

    A number of `width` moves by no more than that; those named `whole` by whole steps from a whole
    number, those named `only` in one direction, and none beyond its `bounds`. A word of `exchange`
    becomes another of its `words` at that price. Of size 1 is a number's whole width, and an
    exchange of the price 1; no move is larger than 1. In a "box" every number has its width for
    itself, and prices of exchanges add up; in "l2" squares of all sizes do. What is not named, and
    what is missing, stays.
    """

    width: Mapping[str, float] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    only: Mapping[str, Way] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    exchange: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norm: Norm = "box"

    def __post_init__(self) -> None:
        """Refuse what is no such set."""
        for name, width in self.width.items():
            if not 0 <= width < math.inf:
                raise ValueError(f"the width of {name!r} must be a number >= 0, got {width!r}.")
        for name, price in self.exchange.items():
            if not 0 < price < math.inf:
                raise ValueError(f"the price of {name!r} must be a number > 0, got {price!r}.")
            if not self.words.get(name):
                raise ValueError(f"{name!r} is exchanged, but its words are not said: name them.")
        for name, way in self.only.items():
            if way not in ("up", "down"):
                raise ValueError(f"{name!r} moves only 'up' or 'down', got {way!r}.")
        if both := sorted(set(self.width) & set(self.exchange)):
            raise ValueError(f"{both[0]!r} has a width and a price: it is a number or a word.")
        if self.norm not in ("box", "l2"):
            raise ValueError(f"moves are within a 'box' or 'l2', got {self.norm!r}.")

    def check_names(self, numbers: Sequence[str], words: Sequence[str]) -> None:
        """Refuse the names of attributes that are not there."""
        for what, given, known in (("width", self.width, numbers), ("only", self.only, numbers)):
            for name in given:
                if name not in known:
                    raise ValueError(f"{what} names {name!r}, no number: {nearest(name, known)}")
        for name in self.exchange:
            if name not in words:
                raise ValueError(f"exchange names {name!r}, no words: {nearest(name, words)}")

    @property
    def moving(self) -> list[str]:
        """The attributes that may move at all."""
        numbers = [name for name, width in self.width.items() if width > 0]
        return [*numbers, *(name for name, price in self.exchange.items() if price <= 1 + SLACK)]

    def span(self, name: str, value: float) -> tuple[float, float]:
        """How far down and up a number may move from its value."""
        width = self.width.get(name, 0.0)
        if not math.isfinite(value):
            return value, value
        way, (least, most) = self.only.get(name), self.bounds.get(name, (-math.inf, math.inf))
        low = value if way == "up" else min(value, max(value - width, least))
        high = value if way == "down" else max(value, min(value + width, most))
        return low, high

    def reaches(self, name: str, value: float, other: float) -> bool:
        """Whether a number may become another: within its width by either way to compute it."""
        low, high = self.span(name, value)
        near = abs(other - value) <= self.width.get(name, 0.0)
        way, (least, most) = self.only.get(name), self.bounds.get(name, (-math.inf, math.inf))
        allowed = way is None or (other >= value if way == "up" else other <= value)
        return low <= other <= high or (near and allowed and least <= other <= most)

    def steps(self, name: str, value: Any) -> dict[Any, float] | None:
        """All that an attribute may become, its own value first, and the size of each change.

        None if it is a number that moves continuously, or has too many steps to list.
        """
        if name in self.exchange:
            price = self.exchange[name]
            others = [word for word in self.words[name] if word != value]
            return {value: 0.0, **(dict.fromkeys(others, price) if price <= 1 + SLACK else {})}
        if self.width.get(name, 0.0) == 0 or not math.isfinite(value):
            return {value: 0.0}
        low, high = self.span(name, value)
        if low == high:
            return {value: 0.0}
        if name not in self.whole or value != round(value) or high - low > MOST_STEPS:
            return None
        down, up = range(-math.floor(value - low), 0), range(1, math.floor(high - value) + 1)
        sizes = {value + step: abs(step) / self.width[name] for step in (*down, *up)}
        return {value: 0.0, **sizes}

    def size(self, moved: Mapping[str, float]) -> float:
        """How large a move is, of the sizes of the changes of single attributes."""
        if self.norm == "l2":
            return float(math.hypot(*moved.values()))
        exchanged = sum(size for name, size in moved.items() if name in self.exchange)
        numbers = (size for name, size in moved.items() if name not in self.exchange)
        return float(max(exchanged, *numbers, 0.0))

    def size_of(self, row: Mapping[str, Any], values: Mapping[str, Any]) -> float:
        """How large the change of a row to other values is."""
        sizes = {}
        for name, value in values.items():
            if name in self.exchange:
                sizes[name] = self.exchange[name] if value != row[name] else 0.0
            elif value != row[name]:
                width = self.width.get(name, 0.0)
                sizes[name] = abs(value - row[name]) / width if width > 0 else math.inf
        return self.size(sizes)

    def axes(self, row: Mapping[str, Any]) -> dict[str, dict[Any, float]] | None:
        """What each attribute that moves may become; None if one moves continuously."""
        found = {name: self.steps(name, row[name]) for name in self.moving}
        if any(each is None for each in found.values()):
            return None
        return {name: each for name, each in found.items() if each is not None and len(each) > 1}

    def sizes(self, axes: Mapping[str, Mapping[Any, float]]) -> Floats:
        """The size of each combination of what attributes may become, the last axis fastest."""
        found = np.zeros(1)
        exchanged, numbers = np.zeros(1), np.zeros(1)
        for name, steps in axes.items():
            own = np.array(list(steps.values()))
            found = np.add.outer(found, own**2).ravel()
            words = own if name in self.exchange else np.zeros_like(own)
            exchanged = np.add.outer(exchanged, words).ravel()
            numbers = np.maximum.outer(numbers, own - words).ravel()
        return np.sqrt(found) if self.norm == "l2" else np.maximum(exchanged, numbers)


def combinations(axes: Mapping[str, Mapping[Any, float]]) -> Iterator[dict[str, Any]]:
    """Each combination of what attributes may become, in the order of `TableMoves.sizes`."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def usual_width(numbers: Floats, weights: Floats | None = None) -> float:
    """How far numbers move unless it is said: .05 standard deviations, whole ones by whole ones.

    One more or less is no small step where whole numbers differ by few: these do not move.
    """
    spread = 0.0
    if len(numbers):
        mean = np.average(numbers, weights=weights)
        spread = float(np.sqrt(np.average((numbers - mean) ** 2, weights=weights)))
    if not (numbers == np.round(numbers)).all():
        return DEFAULT_WIDTH * spread
    return max(float(round(DEFAULT_WIDTH * spread)), float(spread >= LEAST_SPREAD))
