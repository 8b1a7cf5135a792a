"""What a user says about the columns of a table, in a small TOML file."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2et.core.limits import content_of, toml_of
from r2et.core.naming import nearest
from r2et.core.settings import settings_from
from r2et.data.writing import Order

KINDS = ("numeric", "category")
SCALES = ("none", "standard", "minmax")
MISSING_WAYS = ("mark", "median", "refuse")
LENGTHS = ("scaled", "standard", "range")
DECIMALS = (".", ",")
ORDERS: tuple[Order, ...] = ("year first", "day first", "month first")


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """What is said about one column of a table.

    `name` and `unit` are for the reader; an `immutable` one never changes. `kind` has it read as
    "numeric" or "category" whatever it looks like. `per_eps` is the change, in original units, that
    counts as a length of 1. `decimal`, "," or ".", and `dates`, "day first" or "month first", say
    how numbers are written where no cell tells.

    For contributions: a number moves by `width`, in original units, and perhaps `only` "up" or
    "down"; a word becomes another at the price `exchange`; `code` is what a letter calls the
    column, and `protected` has it flagged where it is a reason.
    """

    name: str | None = None
    unit: str = ""
    immutable: bool = False
    kind: str | None = None
    per_eps: float | None = None
    decimal: str | None = None
    dates: Order | None = None
    width: float | None = None
    only: str | None = None
    exchange: float | None = None
    code: str | None = None
    protected: bool = False

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.kind is not None:
            _check_word("kind", self.kind, KINDS)
        if self.decimal is not None:
            _check_word("decimal", self.decimal, DECIMALS)
        if self.dates is not None:
            _check_word("dates", self.dates, ORDERS)
        if self.only is not None:
            _check_word("only", self.only, ("up", "down"))
        for name in ("width", "exchange"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number >= 0, got {value}.")
        if self.per_eps is not None and not 0 < self.per_eps < math.inf:
            raise ValueError(f"per_eps must be a number above 0, got {self.per_eps}.")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What is said about a table and its columns.

    `scale` leads from the table's numbers to the model's inputs: "none", "standard", "minmax", or
    [shift, width] by column. `eps` says what a length of 1 is: the model's "scaled" input, one
    "standard" deviation, or the "range". Categories, fills and scales are those of the table
    `fit_on`, or of the audited one. `groups` are one-hot groups of 0/1 columns by their names.
    `columns` are the inputs in the order in which the model takes them; they are found by name.
    """

    target: str | None = None
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    id: str | None = None
    drop: tuple[str, ...] = ()
    subgroups: tuple[str, ...] = ()
    missing: str = "mark"
    missing_values: tuple[str, ...] = ()
    scale: str | dict[str, Any] = "none"
    eps: str | None = None
    fit_on: str | None = None
    features: dict[str, FeatureSettings] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        _check_word("missing", self.missing, MISSING_WAYS)
        if isinstance(self.scale, str):
            _check_word("scale", self.scale, SCALES)
        else:
            for column, pair in self.scale.items():
                _check_pair(column, pair)
        if self.eps is not None:
            _check_word("eps", self.eps, LENGTHS)
        listed = [column for members in self.groups.values() for column in members]
        if twice := sorted({column for column in listed if listed.count(column) > 1}):
            raise ValueError(f"a column belongs to one group, but {twice[0]!r} is in two.")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("columns must name each input once, but one is named twice.")

    def of(self, column: str) -> FeatureSettings:
        """What is said about a column."""
        return self.features.get(column, FeatureSettings())

    def check_names(self, known: Sequence[str], where: str) -> None:
        """Refuse the name of a column that a table does not have."""
        said: dict[str, Sequence[str]] = {
            "target": [self.target] if self.target else [],
            "id": [self.id] if self.id else [],
            "drop": self.drop,
            "subgroups": self.subgroups,
            "[features]": list(self.features),
            "[scale]": [] if isinstance(self.scale, str) else list(self.scale),
            **{f"[groups] {name}": members for name, members in self.groups.items()},
        }
        for what, columns in said.items():
            for column in columns:
                if column not in known:
                    raise ValueError(
                        f"{what} names a column {column!r} that {where} does not have: "
                        f"{nearest(column, known)}"
                    )


def _check_word(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        shown = ", ".join(known) if "," not in known else " and ".join(map(repr, known))
        raise ValueError(f"{what} is one of {shown}, got {word!r}.")


def _check_pair(column: str, pair: object) -> None:
    two = isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_number, pair))
    if not two or not isinstance(pair, list | tuple) or not 0 < pair[1] < math.inf:
        raise ValueError(
            f"[scale] {column} must be [shift, width] with a width above 0, got {pair!r}."
        )


def _is_number(value: object) -> bool:
    # A whole number of TOML can be larger than any float.
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def read_settings(path: str | Path) -> DataSettings:
    """The settings of a TOML file; a misspelt key is refused with the nearest known one."""
    return settings_of(toml_of(content_of(path), str(path)), str(path))


def settings_of(table: Mapping[str, Any], where: str) -> DataSettings:
    """The settings that a table of TOML states."""
    if isinstance(values := table.get("missing_values"), list | tuple):
        table = {**table, "missing_values": list(map(str, values))}
    return settings_from(DataSettings, table, where)
