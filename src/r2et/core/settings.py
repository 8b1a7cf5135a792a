"""Settings: the one way from a table of TOML or JSON to a frozen record."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from r2et.core.naming import nearest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
UNKNOWN = ("unexpected_keyword_argument",)
LEFT_OUT = ("missing", "missing_keyword_only_argument")


def settings_from(kind: type[T], table: object, where: str) -> T:
    """The record of a kind, a dataclass, that a table states; `where` tells users of which table.

    Records within it are tables within the table, and tuples are lists. A key that is not known is
    refused with the nearest that is, and so is a value of another type, in one sentence: a whole
    number is a number, but a text or a truth value is none. What the record itself refuses is told
    with its place.
    """
    from pydantic import ValidationError

    try:
        # As JSON, where being strict is about values: lists are tuples there and tables records.
        text = json.dumps({where: table})
    except TypeError:
        raise ValueError(
            f"{where} holds a date or time, which no setting is: write a text."
        ) from None
    try:
        record: T = _adapter(cast(Any, kind)).validate_json(text)[where]
    except ValidationError as problem:
        # A misspelt key explains a missing one. Each place starts with the key given above.
        first = min(problem.errors(), key=lambda error: error["type"] not in UNKNOWN)
        place = [str(step) for step in first["loc"][1:]]
        raise ValueError(_told(kind, place, where, first)) from None
    return record


def changed(record: Any) -> Any:
    """A record as values for JSON, without fields that are as they would be if left out.

    `settings_from` makes the same record of them again.
    """
    if is_dataclass(record):
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        usual = {field.name: _default(field) for field in fields(record)}
        return {key: changed(value) for key, value in values.items() if value != usual[key]}
    if isinstance(record, Mapping):
        return {key: changed(value) for key, value in record.items()}
    return [changed(value) for value in record] if isinstance(record, list | tuple) else record


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    """What reads records of a kind. Within a table they take its strictness, alone they cannot."""
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    return TypeAdapter(dict[str, kind], config=strict)


def _told(kind: type[Any], place: Sequence[str], where: str, problem: Mapping[str, Any]) -> str:
    """One sentence about what is wrong at a place of a table."""
    expected: Any = kind
    names: list[str] = []
    for step in place:
        if (inner := _within(expected, step)) is None:
            break
        expected, names = inner, [*names, step]
    reason, got, record = problem["type"], problem["input"], _record(expected)
    if record and reason in UNKNOWN:
        known = [field.name for field in fields(record)]
        return f"{_table(names, where)} has no setting {place[-1]!r}: {nearest(place[-1], known)}"
    if reason == "value_error":
        return f"{_table(names if record else names[:-1], where)}: {problem['ctx']['error']}"
    if reason in LEFT_OUT:
        return f"{_table(names[:-1], where)} is incomplete: {names[-1]!r} is missing."
    if record:
        return f"{_table(names, where)} must be a table of settings, got {got!r}."
    return f"{_table(names[:-1], where)}: {names[-1]!r} must be {_in_words(expected)}, got {got!r}."


def _within(expected: Any, step: str) -> Any:
    """The type of what a record or a table of records has by a name, None for anything else."""
    if record := _record(expected):
        return get_type_hints(record).get(step)
    if get_origin(expected) is dict and _record(get_args(expected)[1]):
        return get_args(expected)[1]
    return None


def _record(expected: Any) -> Any:
    """The kind of record that a type is, or is if anything; None for other types."""
    choices = [each for each in get_args(expected) if each is not NoneType]
    if get_origin(expected) in (Union, UnionType) and len(choices) == 1:
        expected = choices[0]
    return expected if isinstance(expected, type) and is_dataclass(expected) else None


def _table(names: Sequence[str], where: str) -> str:
    return f"[{'.'.join(names)}] of {where}" if names else where


def _in_words(expected: Any) -> str:
    """What a value must be."""
    choices = [each for each in get_args(expected) if each is not NoneType]
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(map(_in_words, choices))
    if get_origin(expected) is Literal:
        return " or ".join(map(repr, choices))
    if get_origin(expected) is tuple:
        return f"a list of which each is {_in_words(choices[0])}"
    if get_origin(expected) is dict and choices[1] is not Any:
        return f"a table of which each is {_in_words(choices[1])}"
    return WORDS.get(expected, "a table")
