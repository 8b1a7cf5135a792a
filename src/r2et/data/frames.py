"""The user's own table as a dataset, from pandas or from a CSV file.

How a column is read:

- Numbers with more than two values are one numeric column. Missing ones stay NaN, to be filled by
  the training median when the dataset is split, and a second column "name: missing" marks them.
- Two values (0 and 1, two words, false and true) are one binary column, in sorted order.
- Anything else is one 0/1 column "name: value" for each value, sorted; a missing value is the
  value "missing", last. So is a column of two values of which some are missing.
- Numbers may be written with a decimal comma, with thousands set off, with a sign of money or per
  cent, or be dates (`r2et.data.writing`); what the dataset says of its source tells which were.
- Missing is an empty cell, NA, NaN, null or ?, in capitals or not.
- `categories` and `numeric` name columns to be read as the one or the other regardless.

Spaces around a cell do not count.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from r2et.core.limits import content_of
from r2et.core.naming import nearest
from r2et.data import writing
from r2et.data.dataset import (
    MISSING,
    Column,
    Dataset,
    assemble,
    binary_columns,
    category_columns,
    numeric_columns,
)

DELIMITERS = ",;\t|"
MISSING_WORDS = frozenset({"", "?", "na", "nan", "null"})
MOST_WORDS = 50
MOST_CATEGORIES = 500  # of one column, each of which becomes a feature
MOST_NUMERIC_CLASSES = 20
NUMBERS_THAT_TELL = writing.NUMBERS_THAT_TELL
SHARE_THAT_TELLS = writing.SHARE_THAT_TELLS
MOST_COLUMNS = 2**15
LARGEST = 1e100  # of numbers that can still be squared and added up

NUMBER = writing.NUMBER
GROUP = (
    "keep the most frequent and call the rest 'other', or group them (the first digits of a code, "
    "a region), and drop the column if it identifies rows"
)
NEWLINE = re.compile(r"\r\n|\r|\n")
UNDECODED = re.compile("[\udc80-\udcff]")

Where = Callable[[int, str], str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """One column of text: the distinct `texts`, and each row's place among them, -1 if missing."""

    name: str
    texts: tuple[str, ...]
    codes: npt.NDArray[np.int64]

    def first(self, code: int) -> int:
        """The first row with that code."""
        return int(np.argmax(self.codes == code))

    @property
    def incomplete(self) -> bool:
        """Whether a value is missing."""
        return bool((self.codes < 0).any())

    @property
    def numbers(self) -> list[float | None]:
        """What each distinct text is as a number."""
        return [float(text) if NUMBER.fullmatch(text) else None for text in self.texts]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the user says about the columns of a table."""

    target: str
    categories: frozenset[str]
    numeric: frozenset[str]
    drop: frozenset[str]
    units: Mapping[str, str]


def from_frame(
    frame: pd.DataFrame,
    *,
    target: str,
    name: str = "table",
    categories: Sequence[str] = (),
    numeric: Sequence[str] = (),
    drop: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
) -> Dataset:
    """The dataset of a pandas table, by the rules at the top of this module.

    Errors count rows from 0, as `frame.iloc` does.
    """
    names = [str(column) for column in frame.columns]
    check_header(names, "the table")
    if frame.empty:
        raise ValueError("expected a table with rows and columns, got none: add rows.")
    return dataset_of(
        [cells_of_series(names[place], frame.iloc[:, place]) for place in range(len(names))],
        reading_of(target, categories, numeric, drop, units, names),
        where=lambda row, column: f"row {row}, column {column!r}",
        name=name,
        source="A table in memory.",
    )


def read_csv(
    path: str | Path,
    *,
    target: str,
    delimiter: str | None = None,
    name: str = "table",
    categories: Sequence[str] = (),
    numeric: Sequence[str] = (),
    drop: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
) -> Dataset:
    """The dataset of a CSV file in UTF-8 with a header line, by the rules of this module.

    Without a `delimiter` it is found among comma, semicolon, tab and bar. Errors count lines from
    1, as an editor does, also where quoted cells run over several lines.
    """
    text = text_of(path)
    check_delimiter(delimiter)
    records = parse(str(path), text, delimiter or sniffed(text))
    header = [column.strip() for column in records.rows[0]]
    check_header(header, f"{path}, line {records.lines[0]}")
    reading = reading_of(target, categories, numeric, drop, units, header)
    body = records.rows[1:]
    if not body:
        raise ValueError(f"{path} has a header but no rows: add rows below it.")
    return dataset_of(
        [cells_of(column, (row[place] for row in body)) for place, column in enumerate(header)],
        reading,
        where=lambda row, column: records.place(row + 1, header.index(column), column),
        name=name,
        source=f"The file {Path(path).name}.",
    )


@dataclass(frozen=True, kw_only=True)
class Records:
    """The rows of a CSV file, header first, and the line on which each begins."""

    path: str
    rows: list[list[str]]
    lines: list[int]

    def place(self, row: int, column: int, name: str) -> str:
        """File, line and column of a cell."""
        line = self.lines[row] + sum(map(line_breaks, self.rows[row][:column]))
        return f"{self.path}, line {line}, column {name!r}"


def line_breaks(text: str) -> int:
    """Number of line breaks."""
    return len(NEWLINE.findall(text))


def text_of(path: str | Path) -> str:
    """The text of a file; bytes that are no UTF-8 survive as marks to be found and named later."""
    text = content_of(path).decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise ValueError(f"{path} is empty: expected a header line and rows below it.")
    return text


def check_delimiter(delimiter: str | None) -> None:
    """Refuse a delimiter that cannot separate cells."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n '):
        raise ValueError(
            f"the delimiter must be one character other than a quote, a space or a line break, "
            f"got {delimiter!r}: choose for example ','."
        )


def records_of(text: str, delimiter: str, strict: bool) -> Iterator[tuple[list[str], int]]:
    """Each record with the line on which it ends, line breaks inside cells left as they are."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=strict, skipinitialspace=True)
    for record in reader:
        yield record, reader.line_num


def sniffed(text: str) -> str:
    r"""The delimiter that cuts the header into most cells, the next line alike if one does so.

    >>> sniffed("a;b,c;d\n1;2;3")
    ';'
    """

    def quality(delimiter: str) -> tuple[bool, int]:
        counts = []
        try:
            for record, _ in records_of(text, delimiter, strict=False):
                counts += [len(record)] if record else []
                if len(counts) == 2:
                    break
        except csv.Error:
            return False, 0
        alike = len(counts) == 2 and counts[0] == counts[1] > 1
        return alike, counts[0]

    return max(DELIMITERS, key=quality)


def parse(path: str, text: str, delimiter: str) -> Records:
    """The records of a CSV text; blank lines are passed over."""
    records = Records(path=path, rows=[], lines=[])
    line = 1
    try:
        for row, last in records_of(text, delimiter, strict=True):
            if len(row) > 1 or (row and row[0].strip()):
                records.rows.append(row)
                records.lines.append(line)
                check_record(records)
            line = last + 1
    except csv.Error as error:
        raise ValueError(quote_trouble(records, text, line, delimiter, str(error))) from None
    return records


def check_record(records: Records) -> None:
    """Refuse a last record with undecodable bytes or another number of cells than the header."""
    header, row, line = records.rows[0], records.rows[-1], records.lines[-1]
    for place, cell in enumerate(row):
        if bad := UNDECODED.search(cell):
            before = sum(map(line_breaks, [*row[:place], cell[: bad.start()]]))
            raise ValueError(
                f"{records.path}, line {line + before}, "
                f"column {column_name(records, place)}: byte 0x{ord(bad[0]) - 0xDC00:02x} is not "
                f"UTF-8: save the file as UTF-8."
            )
    if len(row) < len(header):
        raise ValueError(
            f"{records.path}, line {line}: expected {len(header)} cells as in the header, got "
            f"{len(row)}, nothing for column {header[len(row)].strip()!r}: complete the line."
        )
    if len(row) > len(header):
        raise ValueError(
            f"{records.path}, line {line}: expected {len(header)} cells as in the header, got "
            f"{len(row)}, the first after column {header[-1].strip()!r} being "
            f"{row[len(header)]!r}: remove or quote what is too much."
        )


def column_name(records: Records, place: int) -> str:
    """The name of a column, or its number in a header that is itself at fault."""
    if len(records.rows) > 1 and place < len(records.rows[0]):
        return repr(records.rows[0][place].strip())
    return f"number {place + 1}"


def quote_trouble(records: Records, text: str, line: int, delimiter: str, reason: str) -> str:
    """What is wrong with the record that begins on `line`, in one sentence."""
    cell = re.compile(
        rf' *+(?:"[^"]*(?:""[^"]*)*"|(?!")[^{re.escape(delimiter)}\r\n]*)'
        rf"(?=[{re.escape(delimiter)}\r\n]|\Z)"
    )
    starts = [0, *(found.end() for found in NEWLINE.finditer(text))]
    start = position = starts[line - 1]
    place = 0
    while found := cell.match(text, position):
        if found.end() == len(text) or text[found.end()] in "\r\n":
            return f"{records.path}, line {line}: {reason}: correct the line."
        position, place = found.end() + 1, place + 1
    line += line_breaks(text[start:position])
    named = Records(path=records.path, rows=[*records.rows, []], lines=records.lines)
    return (
        f"{records.path}, line {line}, column {column_name(named, place)}: a quote opens this cell "
        f"and is not closed at its end: close it, and double quotes inside it."
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


def check_known(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuse the name of a column that is not there, with the nearest one that is."""
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} must name a column, but there is no {name!r}: {nearest(name, known)}"
            )


def reading_of(
    target: str,
    categories: Sequence[str],
    numeric: Sequence[str],
    drop: Sequence[str],
    units: Mapping[str, str] | None,
    names: Sequence[str],
) -> Reading:
    """The user's wishes, checked against the names of the columns."""
    listed = {"categories": categories, "numeric": numeric, "drop": drop}
    for what, columns in listed.items():
        if isinstance(columns, str):
            raise ValueError(f"{what} must be a list of names, got {columns!r}: put it in a list.")
    check_known([target], names, "target")
    for what, columns in {**listed, "units": tuple(units or ())}.items():
        check_known(columns, names, what)
    if both := sorted(set(categories) & set(numeric)):
        raise ValueError(f"{both[0]!r} is named in categories and in numeric: choose one.")
    if target in drop:
        raise ValueError(f"the target {target!r} is named in drop: keep it.")
    return Reading(
        target=target,
        categories=frozenset(categories),
        numeric=frozenset(numeric),
        drop=frozenset(drop),
        units=dict(units or {}),
    )


def cells_of(name: str, texts: Iterable[str | None]) -> Cells:
    """A column of text in its compact form."""
    known: dict[str, int] = {}
    codes: list[int] = []
    for text in texts:
        word = "" if text is None else text.strip()
        absent = word.casefold() in MISSING_WORDS
        codes.append(-1 if absent else known.setdefault(word, len(known)))
    return Cells(name=name, texts=tuple(known), codes=np.array(codes, dtype=np.int64))


def cells_of_series(name: str, series: "pd.Series[Any]") -> Cells:
    """A pandas column in its compact form, each value as a CSV file would show it."""
    absent = series.isna().to_numpy()
    values = series.to_numpy()
    return cells_of(
        name,
        (None if gone else str(value) for gone, value in zip(absent, values, strict=True)),
    )


def dataset_of(
    table: Sequence[Cells], reading: Reading, *, where: Where, name: str, source: str
) -> Dataset:
    """The dataset of a table of text."""
    target = next(cells for cells in table if cells.name == reading.target)
    inputs = [cells for cells in table if cells.name not in reading.drop | {target.name}]
    if not inputs:
        raise ValueError(
            f"expected at least one column besides the target {target.name!r}, got none: "
            f"add or keep one."
        )
    y, classes = target_of(target, reading, where)
    columns = [column for cells in inputs for column in columns_of(cells, reading, where)]
    said = [source]
    for cells in inputs:
        if (way := written(cells, reading)) is not None:
            said += way.notes(cells.name, cells.texts)
    source = " ".join(said)
    return assemble(columns, y, name=name, classes=classes, target=reading.target, source=source)


def written(cells: Cells, reading: Reading) -> writing.Writing | None:
    """The way in which the numbers of a column are written, None if plainly or if it has none."""
    if cells.name in reading.categories:
        return None
    return writing.writing_of(
        cells.name,
        cells.texts,
        sure=cells.name in reading.numeric,
        cure="convert the column, or name it in categories",
    )


def check_numbers(cells: Cells, numbers: Sequence[float | None], sure: bool, where: Where) -> None:
    """Refuse a word among numbers, and infinite numbers.

    Most values must be numbers to tell a misprint from a column of words, unless the user is sure.
    """
    counts = np.bincount(cells.codes[cells.codes >= 0], minlength=len(numbers))
    numeric = sum(int(c) for c, number in zip(counts, numbers, strict=True) if number is not None)
    tells = numeric >= NUMBERS_THAT_TELL and numeric >= SHARE_THAT_TELLS * counts.sum()
    if not sure and not tells and None in numbers:
        return
    for code, number in enumerate(numbers):
        if number is None:
            raise ValueError(
                f"{where(cells.first(code), cells.name)}: expected a number as in the rest of the "
                f"column, got {cells.texts[code]!r}: correct it or name the column in categories."
            )
        if abs(number) > LARGEST:
            raise ValueError(
                f"{where(cells.first(code), cells.name)}: expected a finite number, got "
                f"{cells.texts[code]!r}, beyond {LARGEST:g}: correct it or leave it empty."
            )


def whole(text: str) -> str:
    """A number without the decimal part that pandas gives to whole ones.

    >>> whole("1.0"), whole("01234"), whole("v1.0")
    ('1', '01234', 'v1.0')
    """
    return text.removesuffix(".0") if NUMBER.fullmatch(text) else text


def coded(cells: Cells, labels: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Each row's place among the sorted labels, -1 if missing, and the sorted labels.

    Numbers are sorted as numbers.
    """
    if all(NUMBER.fullmatch(label) for label in labels):
        ranked = sorted(set(labels), key=lambda label: (float(label), label))
    else:
        ranked = sorted(set(labels))
    places = {label: place for place, label in enumerate(ranked)}
    lookup = np.array([*(places[label] for label in labels), -1], dtype=np.int64)
    return torch.from_numpy(lookup[cells.codes]), ranked


def labels_of(cells: Cells, as_words: bool) -> list[str]:
    """What each distinct text is called; equal numbers are called the same unless `as_words`."""
    numbers = [number for number in cells.numbers if number is not None]
    if as_words or len(numbers) < len(cells.texts):
        return [whole(text) for text in cells.texts]
    return [whole(str(number + 0.0)) for number in numbers]


def columns_of(cells: Cells, reading: Reading, where: Where) -> list[Column]:
    """The input columns of one column of text."""
    as_words, sure = cells.name in reading.categories, cells.name in reading.numeric
    numbers, way = cells.numbers, written(cells, reading)
    if way is not None:
        numbers, sure = [way.number(text) for text in cells.texts], True
    if not as_words:
        check_numbers(cells, numbers, sure, where)
    values = [number for number in numbers if number is not None]
    if not as_words and len(values) == len(numbers) and (sure or len(set(values)) > 2):
        lookup = np.array([*values, np.nan])
        unit = reading.units.get(cells.name, "" if way is None else way.measure)
        return numeric_columns(cells.name, torch.from_numpy(lookup[cells.codes]), unit)
    codes, labels = coded(cells, labels_of(cells, as_words))
    if len(labels) == 2 and not as_words and not cells.incomplete:
        return binary_columns(cells.name, codes, (labels[0], labels[1]))
    if not as_words:
        check_words(cells, labels)
    check_categories(cells.name, len(labels), GROUP)
    if cells.incomplete:
        return category_columns(cells.name, *with_missing(codes, labels))
    return category_columns(cells.name, codes, labels)


def check_words(cells: Cells, labels: Sequence[str]) -> None:
    """Refuse a column of so many words that it names its rows instead of describing them."""
    if len(labels) > MOST_WORDS or 2 * len(labels) > len(cells.codes):
        raise ValueError(
            f"column {cells.name!r} has {len(labels)} different words in {len(cells.codes)} rows, "
            f"expected at most {MOST_WORDS} and at most half as many as rows: drop it if it "
            f"identifies rows, or name it in categories."
        )


def check_categories(name: str, count: int, cure: str) -> None:
    """Refuse a column of so many words that the features they become can hardly be trained."""
    if count > MOST_CATEGORIES:
        raise ValueError(
            f"column {name!r} has {count:,} different values, each of which would become a feature "
            f"of its own, expected at most {MOST_CATEGORIES}: {cure}."
        )


def with_missing(codes: Tensor, labels: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Codes and labels with the value "missing" last, joined to a word of that spelling."""
    kept = [label for label in labels if label != MISSING]
    places = {label: place for place, label in enumerate(kept)}
    lookup = torch.tensor([*(places.get(label, len(kept)) for label in labels), len(kept)])
    return lookup[codes], [*kept, MISSING]


def target_of(cells: Cells, reading: Reading, where: Where) -> tuple[Tensor, list[str]]:
    """Class numbers and the names of the classes."""
    if cells.incomplete:
        raise ValueError(
            f"{where(cells.first(-1), cells.name)}: every row needs a value of the target, "
            f"got none: fill it in or remove the row."
        )
    as_words = cells.name in reading.categories
    numbers = cells.numbers
    if not as_words:
        check_numbers(cells, numbers, cells.name in reading.numeric, where)
        if None not in numbers and len(set(numbers)) > MOST_NUMERIC_CLASSES:
            raise ValueError(
                f"the target {cells.name!r} has {len(set(numbers))} different numbers, expected at "
                f"most {MOST_NUMERIC_CLASSES} classes: it looks like a quantity to be "
                f"estimated; cut it into classes first."
            )
    codes, labels = coded(cells, labels_of(cells, as_words))
    return codes, labels
