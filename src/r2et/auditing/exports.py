"""The table of decisions as a file: CSV, or Parquet where pyarrow is installed."""

import csv
import importlib
import importlib.util
import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from r2et.auditing.decisions import Column, Decision
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


def write_table(
    folder: Path, format: str, columns: Sequence[Column], decisions: Iterable[Decision]
) -> Path:
    """The file of a folder that now holds a row for each decision, written row by row."""
    write = _write_csv if format == "csv" else _write_parquet
    path = folder / f"decisions.{format}"
    return write_aside(path, lambda aside: write(aside, columns, decisions))


def _write_csv(path: Path, columns: Sequence[Column], decisions: Iterable[Decision]) -> None:
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([each.label for each in columns])
        for decision in decisions:
            writer.writerow([cell(each.value(decision)) for each in columns])


def _write_parquet(path: Path, columns: Sequence[Column], decisions: Iterable[Decision]) -> None:
    # By name, so that neither this package nor its type checks need it.
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(each.label, kinds.get(each.kind, arrow.string())) for each in columns])
    with parquet.ParquetWriter(path, schema) as file:
        rest = iter(decisions)
        while block := list(islice(rest, BLOCK)):
            values = [[_exact(each, decision) for decision in block] for each in columns]
            file.write_batch(arrow.record_batch(values, schema=schema))


def _exact(column: Column, decision: Decision) -> Any:
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
