import datetime
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from r2et.core.settings import settings_from
from refusals import refusal


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int = 1
    width: float | None = None

    def __post_init__(self) -> None:
        if self.count > 5:
            raise ValueError(f"count must be at most 5, got {self.count}.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    perhaps: Inner | None = None
    several: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    scale: str | dict[str, tuple[float, float]] = "none"
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)
    only: Literal["up", "down"] | None = None
    shown: bool = False


def test_a_table_becomes_a_record() -> None:
    table = {
        "name": "x",
        "inner": {"width": 2},
        "perhaps": {"count": 3},
        "several": [{"count": 4}],
        "by_name": {"a": {"width": 0.1}},
        "lengths": [1, 2],
        "scale": {"a": [0, 1.5]},
        "groups": {"g": ["a", "b"]},
        "anything": {"a": [1, "b"]},
        "only": "up",
    }
    record = settings_from(Outer, table, "it")
    assert record == Outer(
        name="x",
        inner=Inner(width=2.0),
        perhaps=Inner(count=3),
        several=(Inner(count=4),),
        by_name={"a": Inner(width=0.1)},
        lengths=(1, 2),
        scale={"a": (0.0, 1.5)},
        groups={"g": ("a", "b")},
        anything={"a": [1, "b"]},
        only="up",
    )
    assert isinstance(record.inner.width, float)
    assert settings_from(Outer, {"name": "x"}, "it") == Outer(name="x")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (3, "it must be a table of settings, got 3."),
        ({}, "it is incomplete: 'name' is missing."),
        ({"naem": "x"}, "it has no setting 'naem': did you mean 'name'?"),
        ({"name": 3}, "it: 'name' must be a text, got 3."),
        ({"name": "x", "shown": 1}, "it: 'shown' must be true or false, got 1."),
        ({"name": "x", "inner": 7}, "[inner] of it must be a table of settings, got 7."),
        (
            {"name": "x", "inner": {"conut": 2}},
            "[inner] of it has no setting 'conut': did you mean",
        ),
        ({"name": "x", "inner": {"count": True}}, "'count' must be a whole number, got True."),
        ({"name": "x", "inner": {"count": 2.0}}, "'count' must be a whole number, got 2.0."),
        (
            {"name": "x", "inner": {"width": "2"}},
            "[inner] of it: 'width' must be a number, got '2'",
        ),
        ({"name": "x", "inner": {"width": True}}, "[inner] of it: 'width' must be a number, got T"),
        ({"name": "x", "inner": {"count": 9}}, "[inner] of it: count must be at most 5, got 9."),
        ({"name": "x", "perhaps": {"conut": 2}}, "[perhaps] of it has no setting 'conut'"),
        ({"name": "x", "several": [{"count": 9}]}, "it: count must be at most 5, got 9."),
        ({"name": "x", "by_name": 3}, "'by_name' must be a table of which each is a table, got 3."),
        ({"name": "x", "by_name": {"a": {"conut": 2}}}, "[by_name.a] of it has no setting 'conut'"),
        ({"name": "x", "by_name": {"a": 1}}, "[by_name.a] of it must be a table of settings"),
        ({"name": "x", "lengths": 3}, "'lengths' must be a list of which each is a whole number"),
        ({"name": "x", "lengths": [3, "y"]}, "each is a whole number, got 'y'."),
        ({"name": "x", "scale": 3}, "'scale' must be a text or a table of which each is a list"),
        ({"name": "x", "scale": {"a": [1]}}, "'scale' must be a text or a table"),
        ({"name": "x", "groups": {"g": [1]}}, "'groups' must be a table of which each is a list"),
        ({"name": "x", "only": "left"}, "it: 'only' must be 'up' or 'down', got 'left'."),
        ({"name": datetime.date(2020, 1, 1)}, "it holds a date or time"),
    ],
)
def test_a_table_is_read_strictly(table: Any, told: str) -> None:
    message = refusal(lambda: settings_from(Outer, table, "it"))
    assert told in message
    assert "\n" not in message
