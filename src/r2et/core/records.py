"""Records as values of JSON, and back, each field checked against its type."""

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


def to_json(record: Any) -> Any:
    """A record as values of JSON."""
    kind: Any = type(record)
    return _adapter(kind).dump_python(record, mode="json")


def from_json(kind: type[T], value: Any) -> T:
    """The record of a kind that values of JSON state; a ValueError if they state none."""
    any_kind: Any = kind
    found: T = _adapter(any_kind).validate_python(value)
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
