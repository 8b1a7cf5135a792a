"""The rows of an audit as a Parquet file, where pyarrow is installed."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r2et.auditing.auditor import AuditSettings
from r2et.auditing.formatting import BEGINS, MEASURES
from r2et.core.files import write_aside
from r2et.core.naming import nearest

FORMATS = ("csv", "parquet")


def check_format(format: str) -> None:
    """Refuse a format that cannot be written, before the time for its content is spent."""
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: {nearest(format, FORMATS)}")
    if format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("Parquet files need pyarrow: install it, or choose the format csv.")


def write_parquet(rows: Path, classes: Sequence[str], settings: AuditSettings) -> Path:
    """The Parquet file beside a CSV file of rows, now holding the same, written block by block."""
    # By name, so that neither this package nor its type checks need it.
    names = ("pyarrow", "pyarrow.csv", "pyarrow.parquet", "pyarrow.compute")
    arrow, csv, parquet, compute = map(importlib.import_module, names)
    lengths = [
        f"{what} precision at {length}"
        for what in ("certified", "attacked")
        for length in settings.epsilons
    ]
    numbers = (
        *("probability", "certified radius", "certified order radius", "broken radius"),
        *lengths,
        *("null share", *MEASURES, *(f"log-odds of {name}" for name in classes)),
    )
    reading = csv.ParseOptions(newlines_in_values=True)
    whole, flags = ("row", "model"), ("unbounded", "tie", "checked")
    with csv.open_csv(rows, parse_options=reading) as opened:
        header = opened.schema.names
    kinds = dict.fromkeys(header, arrow.string())
    kinds |= dict.fromkeys(numbers, arrow.float64()) | dict.fromkeys(whole, arrow.int64())
    kinds |= dict.fromkeys(flags, arrow.bool_())
    options = csv.ConvertOptions(column_types=kinds, strings_can_be_null=True)

    def exact(column: Any) -> Any:
        """Text without the escapes that only spreadsheets need."""
        if column.type != arrow.string():
            return column
        return compute.replace_substring_regex(column, rf"\A'({BEGINS})", r"\1")

    def write(aside: Path) -> None:
        with (
            csv.open_csv(rows, parse_options=reading, convert_options=options) as blocks,
            parquet.ParquetWriter(aside, blocks.schema) as out,
        ):
            for block in blocks:
                columns = [exact(column) for column in block.columns]
                out.write_batch(arrow.record_batch(columns, schema=blocks.schema))

    return write_aside(rows.with_suffix(".parquet"), write)
