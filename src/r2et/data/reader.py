"""Tables of text read block by block: CSV files and pandas tables, each problem with its place.

A CSV file is in UTF-8 with a header line; without a `delimiter` it is found among comma, semicolon,
tab and bar. Lines are counted from 1, as an editor does, also where quoted cells run over several.
"""

import csv
import hashlib
import io
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

import pandas as pd

from r2et.core.naming import nearest

DELIMITERS = ",;\t|"
MOST_COLUMNS = 2**15
MOST_CHARACTERS = 2**22  # of a row
MOST_CELLS = 2**22  # of a block of rows
SNIFFED = 2**18  # bytes from which the delimiter is told
NEWLINE = re.compile(r"\r\n|\r|\n")
UNDECODED = re.compile("[\udc80-\udcff]")

Record = tuple[int, list[str]]
"""The line on which a row of a file begins, and its cells."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows of a table: the cells of each column by its name, and the number of each row.

    Numbers are those of the lines of a `file` on which rows begin; where there is none, rows are
    counted from 0, as `frame.iloc` does.
    """

    lines: Sequence[int]
    columns: Mapping[str, Sequence[str]]
    file: str | None = None

    def where(self, row: int, column: str) -> str:
        """The place of a cell, for a reader."""
        if self.file is None:
            return f"row {self.lines[row]}, column {column!r}"
        before = itertools.takewhile(lambda name: name != column, self.columns)
        line = self.lines[row] + sum(line_breaks(self.columns[name][row]) for name in before)
        return f"{self.file}, line {line}, column {column!r}"


class Reader(Protocol):
    """Columns of text under their names, read block by block as often as asked for."""

    @property
    def name(self) -> str:
        """What the table is called."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the whole content."""

    def blocks(self, size: int) -> Iterator[Block]:
        """All rows, at most `size` at a time."""


def reader_of(data: pd.DataFrame | str | Path) -> "Reader":
    """A reader of a pandas table, or of the CSV file at a path."""
    return FrameReader(frame=data) if isinstance(data, pd.DataFrame) else CsvReader.at(data)


def check_columns(reader: Reader, columns: Iterable[str]) -> None:
    """Refuse the name of a column that a table does not have."""
    for column in columns:
        if column not in reader.names:
            raise ValueError(
                f"{reader.name} has no column {column!r}: {nearest(column, reader.names)}"
            )


def check_header(names: Sequence[str], where: str) -> None:
    """Refuse names that are empty or not distinct, and more of them than a table has."""
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"{where}: expected at most {MOST_COLUMNS:,} columns, got {len(names):,}: leave some "
            "out."
        )
    seen: set[str] = set()
    for place, name in enumerate(names):
        if not name.strip():
            raise ValueError(
                f"{where}: column number {place + 1} has an empty name: name it or remove it."
            )
        if name in seen:
            raise ValueError(
                f"{where}: column names must differ, but {name!r} appears twice: rename one."
            )
        seen.add(name)


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameReader:
    """A pandas table as text, each value as a CSV file would show it."""

    frame: pd.DataFrame
    name: str = "the table"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        names = tuple(str(column) for column in self.frame.columns)
        check_header(names, self.name)
        return names

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of all names and values."""
        found = hashlib.sha256(repr(self.names).encode("utf-8", "replace"))
        for block in self.blocks(4096):
            rows = list(map(list, zip(*block.columns.values(), strict=True)))
            found.update(repr(rows).encode("utf-8", "replace"))
        return found.hexdigest()[:12]

    def blocks(self, size: int) -> Iterator[Block]:
        """All rows, at most `size` at a time."""
        for first in range(0, len(self.frame), size):
            part = self.frame.iloc[first : first + size]
            columns = {name: _texts(part.iloc[:, i]) for i, name in enumerate(self.names)}
            yield Block(lines=range(first, first + len(part)), columns=columns)


def _texts(series: "pd.Series[Any]") -> list[str]:
    absent = series.isna().to_numpy()
    values = series.to_numpy()
    return ["" if gone else str(value) for gone, value in zip(absent, values, strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvReader:
    """A CSV file: its path as it was given, its names, and what separates its cells."""

    name: str
    names: tuple[str, ...]
    delimiter: str
    opened: Callable[[], BinaryIO]

    @classmethod
    def at(
        cls, path: str | Path, *, delimiter: str | None = None, content: bytes | None = None
    ) -> "CsvReader":
        """The file at a path, its header read; its `content` need not be read again if given."""
        _check_delimiter(delimiter)

        def opened() -> BinaryIO:
            return Path(path).open("rb") if content is None else io.BytesIO(content)

        start = _start(path) if content is None else content[:SNIFFED]
        if start.startswith(b"PAR1"):
            raise ValueError(f"{path} is a Parquet file, which is not read: write it as CSV.")
        beginning = start.decode("utf-8-sig", errors="surrogateescape")
        if not beginning.strip():
            raise ValueError(f"{path} is empty: expected a header line and rows below it.")
        delimiter = delimiter or sniffed(beginning)
        found = cls(name=str(path), names=(), delimiter=delimiter, opened=opened)
        line, header = next(found._records(), (1, []))
        if not header:
            raise ValueError(f"{path} has no header line: write the names of its columns there.")
        names = tuple(name.strip() for name in header)
        check_header(names, f"{path}, line {line}")
        return replace(found, names=names)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the whole file."""
        with self.opened() as file:
            digest = hashlib.sha256()
            while part := file.read(2**20):
                digest.update(part)
        return digest.hexdigest()[:12]

    def blocks(self, size: int) -> Iterator[Block]:
        """All rows below the header, at most `size` at a time."""
        # A table of many columns is read in smaller blocks, so that any of them is bounded.
        size = max(1, min(size, MOST_CELLS // len(self.names)))
        records = self._records()
        next(records)
        while some := list(itertools.islice(records, size)):
            lines, rows = zip(*some, strict=True)
            columns = dict(zip(self.names, zip(*rows, strict=True), strict=True))
            yield Block(lines=lines, columns=columns, file=self.name)

    def _records(self) -> Iterator[Record]:
        """Each row, the header first; blank lines are passed over."""
        with io.TextIOWrapper(
            self.opened(), encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as file:
            lines = _Lines(self, file)
            reader = _csv(lines, self.delimiter, strict=True)
            line = 1
            while True:
                lines.begin()
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as problem:
                    raise ValueError(self._quoted(lines.record, line, str(problem))) from None
                if len(row) > 1 or (row and row[0].strip()):
                    self._check_count(row, line)
                    yield line, row
                line = reader.line_num + 1

    def _check_count(self, row: Sequence[str], line: int) -> None:
        """Refuse a row with another number of cells than the header."""
        names = self.names
        if not names or len(row) == len(names):
            return
        expected = f"{self.name}, line {line}: expected {len(names)} cells as in the header, got"
        if len(row) < len(names):
            raise ValueError(
                f"{expected} {len(row)}, nothing for column {names[len(row)]!r}: complete the line."
            )
        raise ValueError(
            f"{expected} {len(row)}, the first after column {names[-1]!r} being "
            f"{row[len(names)]!r}: remove or quote what is too much."
        )

    def column(self, place: int) -> str:
        """The name of a column, or its number in a header that is itself at fault."""
        return repr(self.names[place]) if place < len(self.names) else f"number {place + 1}"

    def _quoted(self, record: Sequence[str], line: int, reason: str) -> str:
        """What is wrong with the quotes of a row that begins on `line`, in one sentence."""
        text, mark = "".join(record), re.escape(self.delimiter)
        cell = re.compile(
            rf' *+(?:"[^"]*(?:""[^"]*)*"|(?!")[^{mark}\r\n]*)' rf"(?=[{mark}\r\n]|\Z)"
        )
        position = place = 0
        while found := cell.match(text, position):
            if found.end() == len(text) or text[found.end()] in "\r\n":
                return f"{self.name}, line {line}: {reason}: correct the line."
            position, place = found.end() + 1, place + 1
        line += line_breaks(text[:position])
        return (
            f"{self.name}, line {line}, column {self.column(place)}: a quote opens this cell and "
            "is not closed at its end: close it, and double quotes inside it."
        )


def _start(path: str | Path) -> bytes:
    """The beginning of a file that can be read more than once."""
    try:
        with Path(path).open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError(f"{path} is no file: write the rows to one.")
            return file.read(SNIFFED)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise ValueError(f"cannot read {path}: {reason}; check the path.") from None


class _Lines:
    """The lines of a file, refused where one is no UTF-8, or so long that it would fill the memory.

    `record` are those of the row that is being read, which may have many.
    """

    def __init__(self, source: CsvReader, file: TextIO) -> None:
        self.source, self.file, self.number = source, file, 0
        self.begin()

    def begin(self) -> None:
        """Begin with a row."""
        self.record: list[str] = []
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        """The lines themselves."""
        return self

    def __next__(self) -> str:
        """The next line."""
        line = self.file.readline(MOST_CHARACTERS + 1)
        if not line:
            raise StopIteration
        self.number, self.characters = self.number + 1, self.characters + len(line)
        self.record.append(line)
        if self.characters > MOST_CHARACTERS:
            raise ValueError(
                f"{self.source.name}, line {self.number}: a row has more than {MOST_CHARACTERS:,} "
                "characters: is a quote not closed, or a line break missing?"
            )
        if not line.isascii() and (bad := UNDECODED.search(line)):
            before = [*self.record[:-1], line[: bad.start()]]
            cells = [*_csv(before, self.source.delimiter)][-1]
            raise ValueError(
                f"{self.source.name}, line {self.number}, column "
                f"{self.source.column(max(len(cells) - 1, 0))}: byte 0x{ord(bad[0]) - 0xDC00:02x} "
                "is not UTF-8: save the file as UTF-8."
            )
        return line


def _csv(lines: Iterable[str], delimiter: str, *, strict: bool = False) -> Any:
    return csv.reader(lines, delimiter=delimiter, strict=strict, skipinitialspace=True)


def line_breaks(text: str) -> int:
    """Number of line breaks."""
    return len(NEWLINE.findall(text))


def _check_delimiter(delimiter: str | None) -> None:
    """Refuse a delimiter that cannot separate cells."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n '):
        raise ValueError(
            f"the delimiter must be one character other than a quote, a space or a line break, "
            f"got {delimiter!r}: choose for example ','."
        )


def sniffed(text: str) -> str:
    r"""The delimiter that cuts the header into most cells, the next line alike if one does so.

    >>> sniffed("a;b,c;d\n1;2;3")
    ';'
    """

    def quality(delimiter: str) -> tuple[bool, int]:
        records = (row for row in _csv(io.StringIO(text, newline=""), delimiter) if row)
        try:
            counts = [len(row) for row in itertools.islice(records, 2)]
        except csv.Error:
            return False, 0
        alike = len(counts) == 2 and counts[0] == counts[1] > 1
        return alike, counts[0]

    return max(DELIMITERS, key=quality)
