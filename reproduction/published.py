"""The numbers that the papers print, read from published.csv."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from r2et.data.builtin import DATASETS


def published_in(
    table: str, dataset: str, label: str, measure: str, setting: str = ""
) -> float | None:
    """A number as a table of the paper prints it, None where it has none.

    >>> published_in("9", "bank", "SP", "COMP")
    0.31
    """
    wanted = (table, _column(dataset), label, measure, setting)
    return _published().get(tuple(word.casefold() for word in wanted))


def published_labels(table: str, dataset: str) -> list[str]:
    """The methods of a table of the paper for a data set, in its order.

    >>> published_labels("8", "adult")[:3]
    ['Vanilla', 'WD', 'CL']
    """
    found = (line["method"] for line in _lines() if _of(line, table, dataset))
    return list(dict.fromkeys(found))


def _of(line: Mapping[str, str], table: str, dataset: str) -> bool:
    return line["table"] == table and line["dataset"].casefold() == _column(dataset).casefold()


def _column(dataset: str) -> str:
    """What the papers call a data set, or the one that it stands in for."""
    return DATASETS[dataset].published if dataset in DATASETS else dataset


@cache
def _lines() -> tuple[dict[str, str], ...]:
    text = Path(__file__).with_name("published.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def _published() -> dict[tuple[str, ...], float]:
    names = ("table", "dataset", "method", "measure", "setting")
    return {
        tuple(line[name].casefold() for name in names): float(line["value"]) for line in _lines()
    }
