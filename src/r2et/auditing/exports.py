"""The table of decisions as a file: CSV, or Parquet where pyarrow is installed."""

import csv
import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, get_args, get_type_hints

from r2et.auditing.decisions import Label
from r2et.core.files import write_aside
from r2et.core.naming import nearest
from r2et.data.writing import NUMBER

FORMATS = ("csv", "parquet")
BLOCK = 4096  # rows of a Parquet file that are written together
# What begins a formula, behind spaces and behind apostrophes, by which one is told from an escape.
FORMULA = re.compile("'*(?:\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])")


def check_format(format: str) -> None:
    """Refuse a format that cannot be written, before the time for its content is spent."""
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: {nearest(format, FORMATS)}")
    if format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("Parquet files need pyarrow: install it, or choose the format csv.")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table: its label, the type of its cells, and what of a field a cell shows.

    Cells of the type `list` are written as JSON.
    """

    label: str
    kind: type
    field: str
    shown: Callable[[Any], Any]

    def value(self, decision: Any) -> Any:
        """What the cell of a decision shows."""
        found = getattr(decision, self.field)
        return None if found is None else self.shown(found)


def table_columns(
    kind: type,
    *,
    epsilons: Sequence[float] = (),
    classes: Sequence[str],
    subgroups: Sequence[str],
) -> list[Column]:
    """The columns of a table: the fields of a kind of record that have labels, in their order."""
    entries: dict[str, Mapping[Any, Any]] = {
        "epsilons": dict(enumerate(epsilons)),
        "classes": dict(enumerate(classes)),
        "subgroups": {name: name for name in subgroups},
    }
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        plain, *marks = get_args(hint) or (hint,)
        for label in (each for each in marks if isinstance(each, Label)):
            if label.over:
                of: type = str if label.over == "subgroups" else float
                found += [
                    Column(label=f"{label.text} {entry}", kind=of, field=name, shown=itemgetter(at))
                    for at, entry in entries[label.over].items()
                ]
            else:
                of, shown = (list, label.cell) if label.cell else (_plain(plain), _whole)
                found.append(Column(label=label.text, kind=of, field=name, shown=shown))
    return found


def _whole(value: Any) -> Any:
    return value


def _plain(kind: Any) -> type:
    """The type of a cell: that of a value where it is known."""
    return next((each for each in (int, float, bool) if kind in (each, each | None)), str)


def write_table(
    folder: Path, format: str, columns: Sequence[Column], decisions: Iterable[Any]
) -> Path:
    """The file of a folder that now holds a row for each decision, written row by row."""
    write = _write_csv if format == "csv" else _write_parquet
    path = folder / f"decisions.{format}"
    return write_aside(path, lambda aside: write(aside, columns, decisions))


def _write_csv(path: Path, columns: Sequence[Column], decisions: Iterable[Any]) -> None:
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([each.label for each in columns])
        for decision in decisions:
            writer.writerow([cell(each.value(decision)) for each in columns])


def _write_parquet(path: Path, columns: Sequence[Column], decisions: Iterable[Any]) -> None:
    # By name, so that neither this package nor its type checks need it.
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(each.label, kinds.get(each.kind, arrow.string())) for each in columns])
    with parquet.ParquetWriter(path, schema) as file:
        rest = iter(decisions)
        while block := list(islice(rest, BLOCK)):
            values = [[_exact(each, decision) for decision in block] for each in columns]
            file.write_batch(arrow.record_batch(values, schema=schema))


def _exact(column: Column, decision: Any) -> Any:
    value = column.value(decision)
    if column.kind is list:
        value = json.dumps(value, ensure_ascii=False)
    # As in a CSV file, a question mark for half a character.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def cell(value: Any) -> str:
    """A value as the text of a cell, a list as JSON and nothing for what is not known.

    Text that a spreadsheet would run as a formula is escaped, see `escaped`; numbers stay numbers.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return escaped(value)
    return repr(value) if isinstance(value, float) else str(value)


def escaped(text: str) -> str:
    """Text with an apostrophe before what would make it a formula, such as =, +, - or @.

    >>> escaped("=1+1"), escaped("-5"), escaped("-x"), escaped("'=1+1"), escaped("a = b")
    ("'=1+1", '-5', "'-x", "''=1+1", 'a = b')
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text
