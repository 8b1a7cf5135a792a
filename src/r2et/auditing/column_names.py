"""The columns that a model says it takes, matched by name and order with those of a table."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from r2et.auditing.config import DataSettings

ATTRIBUTES = ("feature_names_in_", "feature_names", "columns")
NOTE = "columns"  # of a safetensors file: a JSON list of names

Names = tuple[str, ...]


def named_columns(model: object) -> Names | None:
    """The columns that a model of the user's own names in an attribute, None if it names none."""
    for name in ATTRIBUTES:
        found: Any = getattr(model, name, None)
        listed = isinstance(found, list | tuple | np.ndarray) and len(found)
        if listed and all(isinstance(each, str) for each in found):
            return tuple(map(str, found))
    return None


def columns_in(path: Path) -> Names | None:
    """The columns that the head of a safetensors file names, None if it names none."""
    with safe_open(path, framework="pt") as file:
        note = (file.metadata() or {}).get(NOTE)
    if note is None:
        return None
    try:
        found = json.loads(note)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(
            f"{path} says {note[:80]!r} of its columns: expected a JSON list of their names."
        )
    return tuple(found)


def with_columns(settings: DataSettings, named: Iterable[Names | None]) -> DataSettings:
    """The settings with the columns that the models name, refused where two name different ones."""
    said = {"the settings": settings.columns} if settings.columns else {}
    for number, columns in enumerate(named):
        if columns is not None:
            said["the model" if number == 0 else f"model {number + 1}"] = columns
    for who, columns in [*said.items()][1:]:
        first = next(iter(said))
        if columns != said[first]:
            raise ValueError(
                f"{who} and {first} name different columns: {difference(columns, said[first])}; "
                "audit them one at a time, or correct what is wrong."
            )
    return replace(settings, columns=next(iter(said.values()), ()))


def difference(wanted: Sequence[str], given: Sequence[str]) -> str:
    """How the columns that are given differ from those wanted, in words.

    >>> difference(("a", "b"), ("b", "c"))
    "'a' is missing, 'c' is too many"
    >>> difference(("a", "b"), ("b", "a"))
    "the same in another order, 'b' in the place of 'a'"
    """
    missing = [name for name in wanted if name not in given]
    extra = [name for name in given if name not in wanted]
    if not missing and not extra:
        at = next(i for i, pair in enumerate(zip(wanted, given, strict=True)) if len({*pair}) > 1)
        return f"the same in another order, {given[at]!r} in the place of {wanted[at]!r}"
    faults = [(missing, "missing"), (extra, "too many")]
    return ", ".join(
        f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in faults
        if names
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def check_inputs_named(
    columns: Names, names: Sequence[str], features: Sequence[str], where: str
) -> None:
    """Refuse a table whose columns, and inputs, are not those that a model names."""
    if columns in (tuple(names), tuple(features)):
        return
    nearer = features if set(columns) & set(features) - set(names) else names
    raise ValueError(
        f"the model takes the columns {_listed(columns)}, but {where} has others: "
        f"{difference(columns, nearer)}; correct the table, or name by drop, id or target what is "
        "no input."
    )
