"""What the inputs of a model mean: numbers with units and categories, and all of it in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["numeric", "binary", "category"]
Scaling = Literal["minmax", "standard"]

MISSING = "missing"  # what a missing word is called
SHOWN = 5e-4  # parts of a category below this are not worth a reader's attention
SINGULAR = {"years": "year", "days": "day", "hours": "hour", "euros": "euro"}


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One input column of a model; the columns of one attribute share a `group`.

    `low` and `high` are the range over all rows in original units; `words` says what the 0 and
    the 1 of a binary column mean.
    """

    name: str
    group: str
    kind: Kind
    low: float
    high: float
    unit: str = ""
    words: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """How raw values become model inputs: missing ones filled, then (value - shift) / width."""

    fill: Tensor
    shift: Tensor
    width: Tensor

    def apply(self, raw: Tensor) -> Tensor:
        """Model inputs for raw rows, free of missing values: like raw."""
        filled = torch.where(raw.isnan(), self.fill.to(raw), raw)
        return (filled - self.shift.to(raw)) / self.width.to(raw)

    def undo(self, x: Tensor) -> Tensor:
        """Raw values of model inputs, in original units: like x."""
        return x * self.width.to(x) + self.shift.to(x)


def members(features: Sequence[Feature]) -> dict[str, list[int]]:
    """The column numbers of each attribute."""
    found: dict[str, list[int]] = {}
    for number, feature in enumerate(features):
        found.setdefault(feature.group, []).append(number)
    return found


def one_hot(features: Sequence[Feature]) -> tuple[tuple[int, ...], ...]:
    """The column numbers of each attribute that has one column for each of its values."""
    return tuple(
        tuple(numbers)
        for numbers in members(features).values()
        if len(numbers) > 1 and features[numbers[0]].kind == "category"
    )


def exchangeable(features: Sequence[Feature]) -> tuple[tuple[int, ...], ...]:
    """The columns of each attribute that has one of several words as its value.

    Those of a category, or a 0/1 column by itself; the mark of a missing number is no such value.
    """
    return tuple(
        tuple(numbers)
        for numbers in members(features).values()
        if {features[number].kind for number in numbers}
        == {"category" if len(numbers) > 1 else "binary"}
    )


def check_names(features: Sequence[Feature]) -> None:
    """Refuse two columns of one name."""
    seen: set[str] = set()
    for feature in features:
        if feature.name in seen:
            raise ValueError(
                f"column names must differ, but two input columns are called {feature.name!r}: "
                f"rename one."
            )
        seen.add(feature.name)


def check_values(x: Tensor, features: Sequence[Feature]) -> None:
    """Refuse infinite values."""
    if x.isinf().any():
        row, column = x.isinf().nonzero()[0].tolist()
        raise ValueError(
            f"values must be finite or missing, got {x[row, column].item()} in row {row}, column "
            f"{features[column].name!r}: correct it or leave it empty."
        )


def fit_scale(raw: Tensor, features: Sequence[Feature], scaling: Scaling = "minmax") -> Scale:
    """The scale of a training part (N, d); a column that does not vary there is refused."""
    if scaling not in ("minmax", "standard"):
        raise ValueError(f"scaling must be 'minmax' or 'standard', got {scaling!r}: choose one.")
    # The lower of two middle values, so that a filled value is one that occurs.
    fill = raw.nanmedian(dim=0).values
    filled = torch.where(raw.isnan(), fill, raw)
    low, high = filled.amin(0), filled.amax(0)
    for feature, least, most in zip(features, low.tolist(), high.tolist(), strict=True):
        if not least < most:
            shown = f"only {least:g}" if least == most else "no value"
            raise ValueError(
                f"every column must vary in the training part, but {feature.name!r} has {shown} in "
                f"its {len(raw)} rows: drop it, merge rare values, or choose another seed."
            )
    if scaling == "minmax":
        shift, width = low, high - low
    else:
        shift, width = filled.mean(0), filled.std(0, correction=0)
    numeric = torch.tensor([feature.kind == "numeric" for feature in features], device=raw.device)
    return Scale(
        fill=fill,
        shift=torch.where(numeric, shift, torch.zeros_like(shift)),
        width=torch.where(numeric, width, torch.ones_like(width)),
    )


# --- in words -----------------------------------------------------------------------------------


def plain(value: float) -> str:
    """A number for readers.

    >>> plain(39.0), plain(102127.0), plain(0.123456)
    ('39', '102,127', '0.1235')
    """
    if abs(value) >= 1e15:
        return f"{value:.4g}"
    if value == round(value) or abs(value) >= 1000:
        return f"{value + 0.0:,.0f}"  # + 0.0 takes the sign from -0
    return f"{value:.4g}"


def with_unit(value: float, unit: str) -> str:
    """A number and its unit: "39 years"."""
    number = plain(value)
    return f"{number} {SINGULAR.get(unit, unit) if number == '1' else unit}".rstrip()


def change_in_words(amount: float, unit: str) -> str:
    """By how much something changes: of a date that is days, wherever its count begins.

    >>> change_in_words(67, "days since 2000-01-01")
    '67 days'
    """
    return with_unit(amount, unit.partition(" since ")[0])


def sum_of_parts(parts: Iterable[tuple[float, str]]) -> str:
    """A mixture of categories, the largest part first, or the one category it is.

    >>> sum_of_parts([(0.3, "Masters"), (0.7, "Bachelors"), (0.0, "School")])
    '0.7 Bachelors + 0.3 Masters'
    """
    shown = sorted((part for part in parts if abs(part[0]) >= SHOWN), key=lambda part: -part[0])
    if not shown:
        return "none"
    if len(shown) == 1 and abs(shown[0][0] - 1) < SHOWN:
        return shown[0][1]
    terms = "".join(
        f" {'-' if share < 0 else '+'} {round(abs(share), 3):g} {word}" for share, word in shown
    )
    return terms.removeprefix(" + ").lstrip()


def in_words(columns: Sequence[tuple[Feature, float]]) -> str:
    """What the columns of one group say together."""
    feature, value = columns[0]
    if any(value != value for _, value in columns):
        return MISSING
    if feature.kind == "category":
        prefix = f"{feature.group}: "
        return sum_of_parts((value, part.name.removeprefix(prefix)) for part, value in columns)
    if feature.kind == "binary":
        if feature.words in (None, ("0", "1")):
            return plain(value)
        return sum_of_parts(zip((1 - value, value), feature.words or (), strict=True))
    absent = columns[1][1] if len(columns) > 1 else 0.0
    if abs(absent - 1) < SHOWN:
        return MISSING
    number = with_unit(value, feature.unit)
    return number if abs(absent) < SHOWN else f"{number}, {round(absent, 3):g} {MISSING}"


def described(features: Sequence[Feature], raw_row: Sequence[float]) -> dict[str, str]:
    """What a row in original units says of each attribute."""
    return {
        group: in_words([(features[number], raw_row[number]) for number in numbers])
        for group, numbers in members(features).items()
    }
