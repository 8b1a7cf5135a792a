"""CSV files read block by block: in bounded memory, each problem with its line."""

import csv
import hashlib
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from r2et.core.naming import nearest
from r2et.data.frames import (
    LARGEST,
    MISSING_WORDS,
    NUMBER,
    UNDECODED,
    Records,
    check_header,
    check_record,
    sniffed,
)
from r2et.data.writing import Writing

MOST_CHARACTERS = 2**22  # of a row
MOST_CELLS = 2**22  # of a block of rows
SNIFFED = 2**18  # bytes from which the delimiter is told
MOST_TEXTS = 10_000  # distinct cells of a column that are kept; of more only numbers are known
SAMPLE = 100_000  # numbers of a column of which a median is taken, all of them if there are fewer


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows of a file, and the line on which each begins."""

    lines: Sequence[int]
    rows: Sequence[Sequence[str]]


class TextTable(Protocol):
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

    def where(self, line: int | None, column: str) -> str:
        """The place of a cell, for a reader."""

    def blocks(self, size: int) -> Iterator[Block]:
        """All rows, `size` at a time."""


def place_of(table: TextTable, column: str) -> int:
    """The number of a column, refused if there is none of that name."""
    if column not in table.names:
        raise ValueError(f"{table.name} has no column {column!r}: {nearest(column, table.names)}")
    return table.names.index(column)


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameText:
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
            found.update(repr(block.rows).encode("utf-8", "replace"))
        return found.hexdigest()[:12]

    def where(self, line: int | None, column: str) -> str:
        """The place of a cell; rows are counted from 0, as `frame.iloc` does."""
        return f"row {line}, column {column!r}"

    def blocks(self, size: int) -> Iterator[Block]:
        """All rows, `size` at a time."""
        for first in range(0, len(self.frame), size):
            part = self.frame.iloc[first : first + size]
            columns = [_texts(part.iloc[:, place]) for place in range(len(self.names))]
            rows = list(map(list, zip(*columns, strict=True)))
            yield Block(lines=range(first, first + len(rows)), rows=rows)


def _texts(series: "pd.Series[Any]") -> list[str]:
    absent = series.isna().to_numpy()
    values = series.to_numpy()
    return ["" if gone else str(value) for gone, value in zip(absent, values, strict=True)]


@dataclass(frozen=True, kw_only=True)
class CsvFile:
    """A CSV file in UTF-8 with a header line: its names and what separates its cells."""

    path: Path
    names: tuple[str, ...]
    delimiter: str

    @classmethod
    def at(cls, path: str | Path) -> "CsvFile":
        """The file at a path, its header read and its delimiter told."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ValueError(f"{path} is no file: write the rows to one.")
                start = file.read(SNIFFED)
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise ValueError(f"cannot read {path}: {reason}; check the path.") from None
        if start.startswith(b"PAR1"):
            raise ValueError(f"{path} is a Parquet file, which is not read: write it as CSV.")
        beginning = start.decode("utf-8-sig", errors="surrogateescape")
        if not beginning.strip():
            raise ValueError(f"{path} is empty: expected a header line and rows below it.")
        delimiter = sniffed(beginning)
        line, header = next(_records(path, delimiter), (1, []))
        if not header:
            raise ValueError(f"{path} has no header line: write the names of its columns there.")
        names = tuple(name.strip() for name in header)
        check_header(names, f"{path}, line {line}")
        return cls(path=path, names=names, delimiter=delimiter)

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the whole file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:12]

    def where(self, line: int | None, column: str) -> str:
        """File, line and column of a cell."""
        return f"{self.path}, line {line}, column {column!r}"

    def blocks(self, size: int) -> Iterator[Block]:
        """All rows below the header, `size` at a time."""
        # A table of many columns is read in smaller blocks, so that any of them is bounded.
        size = max(1, min(size, MOST_CELLS // len(self.names)))
        records = _records(self.path, self.delimiter)
        header = next(records)
        while block := list(itertools.islice(self._whole(header, records), size)):
            yield Block(lines=[line for line, _ in block], rows=[row for _, row in block])

    def _whole(
        self, header: tuple[int, list[str]], records: Iterator[tuple[int, list[str]]]
    ) -> Iterator[tuple[int, list[str]]]:
        """The records, the first that has other cells than the header refused."""
        for line, row in records:
            if len(row) != len(self.names):
                both = Records(path=str(self.path), rows=[header[1], row], lines=[header[0], line])
                check_record(both)
            yield line, row


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line on which it begins; blank lines are passed over."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(path, file)
        reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
        line = 1
        while True:
            lines.of_record = 0
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as problem:
                raise ValueError(f"{path}, line {line}: {problem}: correct the line.") from None
            if len(row) > 1 or (row and row[0].strip()):
                yield line, row
            line = reader.line_num + 1


class _Lines:
    """The lines of a file, refused where one is no UTF-8, or so long that it would fill the memory.

    `of_record` counts the characters of the record that is being read, which may have many lines.
    """

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.file, self.number, self.of_record = path, file, 0, 0

    def __iter__(self) -> Iterator[str]:
        """The lines themselves."""
        return self

    def __next__(self) -> str:
        """The next line."""
        line, self.number = self.file.readline(MOST_CHARACTERS + 1), self.number + 1
        self.of_record += len(line)
        if self.of_record > MOST_CHARACTERS:
            raise ValueError(
                f"{self.path}, line {self.number}: a row has more than {MOST_CHARACTERS:,} "
                "characters: is a quote not closed, or a line break missing?"
            )
        if not line.isascii() and (bad := UNDECODED.search(line)):
            raise ValueError(
                f"{self.path}, line {self.number}: byte 0x{ord(bad[0]) - 0xDC00:02x} is not UTF-8: "
                "save the file as UTF-8."
            )
        if not line:
            raise StopIteration
        return line


@dataclass(frozen=True, kw_only=True)
class Absent:
    """Which cells stand for a missing value: the usual words, and those the user names."""

    texts: frozenset[str]
    numbers: tuple[float, ...]

    @classmethod
    def named(cls, values: Sequence[str]) -> "Absent":
        """The usual words and these."""
        return cls(
            texts=MISSING_WORDS | {value.strip().casefold() for value in values},
            numbers=tuple(float(value) for value in values if NUMBER.fullmatch(value.strip())),
        )

    def holds(self, text: str) -> bool:
        """Whether a cell without spaces around it is missing."""
        return text.casefold() in self.texts or (
            bool(self.numbers) and bool(NUMBER.fullmatch(text)) and float(text) in self.numbers
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Cells of one column: their numbers, NaN where there is none, missing ones, and words."""

    texts: Sequence[str]
    numbers: NDArray[np.float64]
    missing: NDArray[np.bool_]
    words: NDArray[np.bool_]


def cells_of(texts: Sequence[str], absent: Absent, writing: Writing | None = None) -> Cells:
    """The cells of a column as numbers, plain or of a `writing`, as missing ones or as words."""
    if writing is not None:
        return _written(texts, absent, writing)
    nothing = np.zeros(len(texts), dtype=np.bool_)
    try:
        # Most columns are numbers throughout. What float() reads beyond NUMBER is left to the loop.
        numbers = np.array(texts, dtype=np.float64)
        if "_" not in "".join(texts) and not np.isnan(numbers).any():
            missing = np.isin(numbers, absent.numbers) if absent.numbers else nothing
            numbers = np.where(missing, np.nan, numbers)
            return Cells(texts=texts, numbers=numbers, missing=missing, words=nothing)
    except ValueError:
        pass
    texts = [text.strip() for text in texts]
    missing = np.array([absent.holds(text) for text in texts], dtype=np.bool_)
    numbers = np.array(
        [
            float(text) if not gone and NUMBER.fullmatch(text) else np.nan
            for text, gone in zip(texts, missing.tolist(), strict=True)
        ],
        dtype=np.float64,
    )
    return Cells(texts=texts, numbers=numbers, missing=missing, words=np.isnan(numbers) & ~missing)


def _written(texts: Sequence[str], absent: Absent, writing: Writing) -> Cells:
    texts = [text.strip() for text in texts]
    missing = np.array([absent.holds(text) for text in texts], dtype=np.bool_)
    found = (
        None if gone else writing.number(text)
        for text, gone in zip(texts, missing.tolist(), strict=True)
    )
    numbers = np.array([np.nan if each is None else each for each in found], dtype=np.float64)
    return Cells(texts=texts, numbers=numbers, missing=missing, words=np.isnan(numbers) & ~missing)


class Survey:
    """What the cells of a column are like, learned block by block in bounded memory."""

    def __init__(self, name: str, writing: Writing | None = None) -> None:
        self.name, self.writing = name, writing
        self.rows = self.absent = self.words = 0
        self.first_absent: int | None = None
        self.first_word: tuple[int, str] | None = None
        self.first_infinite: tuple[int, str] | None = None
        self.texts: Counter[str] | None = Counter()
        self.first_texts: tuple[str, ...] = ()  # those that were kept when there were too many
        self.low, self.high = np.inf, -np.inf
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self._sample: list[NDArray[np.float64]] = []
        self._draw = np.random.Generator(np.random.PCG64(0))

    @property
    def seen(self) -> tuple[str, ...]:
        """The distinct cells, or the first of too many."""
        return self.first_texts if self.texts is None else tuple(self.texts)

    def see(self, cells: Cells, lines: Sequence[int]) -> None:
        """Learn from some more cells and the lines they stand on."""
        self.rows += len(cells.texts)
        if (gone := int(cells.missing.sum())) and self.first_absent is None:
            self.first_absent = lines[int(cells.missing.argmax())]
        self.absent += gone
        if (words := int(cells.words.sum())) and self.first_word is None:
            at = int(cells.words.argmax())
            self.first_word = (lines[at], cells.texts[at])
        self.words += words
        if (wild := np.abs(cells.numbers) > LARGEST).any() and self.first_infinite is None:
            at = int(wild.argmax())
            self.first_infinite = (lines[at], cells.texts[at].strip())
        self._see_texts(cells)
        self._see_numbers(cells.numbers[np.abs(cells.numbers) <= LARGEST])

    def _see_texts(self, cells: Cells) -> None:
        if self.texts is None:
            return
        for text, count in Counter(cells.texts).items():
            self.texts[text.strip()] += count
        if len(self.texts) > MOST_TEXTS:
            self.first_texts, self.texts = tuple(self.texts), None

    def _see_numbers(self, numbers: NDArray[np.float64]) -> None:
        if not len(numbers):
            return
        self.low, self.high = min(self.low, numbers.min()), max(self.high, numbers.max())
        # Means and squares of two parts joined, which loses no digit to a large mean.
        count, mean = len(numbers), float(numbers.mean())
        squares = float(((numbers - mean) ** 2).sum())
        total, apart = self.count + count, mean - self.mean
        self.squares += squares + apart**2 * self.count * count / total
        self.mean += apart * count / total
        kept = sum(map(len, self._sample))
        if kept < SAMPLE:
            self._sample.append(numbers[: SAMPLE - kept].copy())
            numbers, kept = numbers[SAMPLE - kept :], min(SAMPLE, kept + count)
        if len(numbers):
            self._exchange(numbers, total - len(numbers))
        self.count = total

    def _exchange(self, numbers: NDArray[np.float64], before: int) -> None:
        """Each further number takes the place of a drawn one as often as keeps the sample fair."""
        if len(self._sample) > 1:
            self._sample = [np.concatenate(self._sample)]
        [whole] = self._sample
        places = self._draw.integers(0, before + 1 + np.arange(len(numbers)))
        taken = places < SAMPLE
        whole[places[taken]] = numbers[taken]

    def quantile(self, at: float) -> float:
        """A number below which about that share of all lie, the lower of two middle ones."""
        if not self.count:
            return 0.0
        ranked = np.sort(np.concatenate(self._sample))
        return float(ranked[int(at * (len(ranked) - 1))])

    def deviation(self, fill: float) -> tuple[float, float]:
        """Mean and standard deviation with missing values filled."""
        rows = self.count + self.absent
        if not rows:
            return 0.0, 0.0
        apart = fill - self.mean
        squares = self.squares + apart**2 * self.count * self.absent / rows
        return self.mean + apart * self.absent / rows, float((squares / rows) ** 0.5)
