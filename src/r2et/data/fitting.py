"""What the columns of a table are taken for, learned from all of its cells.

Of a table of text, such as a CSV file:

- Numbers with more than two values are one numeric feature, and a second one marks missing ones.
- Two values (0 and 1, two words, false and true) are one binary feature, in sorted order.
- Anything else is one 0/1 feature for each value, sorted; a missing value is the value "missing",
  last. So is a column of two values of which some are missing.
- Numbers may be written with a decimal comma, with thousands set off, with a sign of money or per
  cent, or be dates (`r2et.data.writing`).

Of training rows whose columns have types already, those of numbers stay numbers; each row counts by
its weight.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from r2et.data.cells import (
    LARGEST,
    MOST_TEXTS,
    Floats,
    Missing,
    Survey,
    ranked,
    word_in,
)
from r2et.data.features import MISSING
from r2et.data.reader import Reader, check_columns
from r2et.data.schema import OTHER, Attribute, Category, Numeric, Schema, Values
from r2et.data.writing import (
    NUMBER,
    NUMBERS_THAT_TELL,
    SHARE_THAT_TELLS,
    Order,
    Writing,
    writing_of,
)

BLOCK = 4096
MOST_WORDS = 50
MOST_CATEGORIES = 500  # of one column, each of which becomes a feature
MOST_NUMERIC_CLASSES = 20
GROUP = (
    "keep the most frequent and call the rest 'other', or group them (the first digits of a code, "
    "a region), and drop the column if it identifies rows"
)

Gaps = Literal["mark", "median", "refuse"]
"""What becomes of missing numbers: a feature marks them, they are filled only, or refused."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What somebody says of a column: what it is, and how readers are told of it.

    `decimal` and `dates` say how its numbers are written where no cell tells; `group` is the
    one-hot group of 0/1 columns that it is one of.
    """

    kind: str | None = None
    unit: str = ""
    shown: str = ""
    group: str = ""
    decimal: str | None = None
    dates: Order | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How a user can say otherwise, for the end of a refusal.

    `category` says how a column is read as words; `writing`, in which {name} is the column, how
    its numbers are written; `many` what to do with too many words.
    """

    category: str
    writing: str
    many: str = GROUP


def survey(reader: Reader, surveys: Mapping[str, Survey]) -> None:
    """Learn what some columns of a table are like."""
    check_columns(reader, surveys)
    rows = 0
    for block in reader.blocks(BLOCK):
        rows += len(block.lines)
        for name, each in surveys.items():
            each.see(block.columns[name], block.where)
    if not rows:
        raise ValueError(f"{reader.name} has a header but no rows: add rows below it.")


def writing_in(column: Survey, wish: Wish, advice: Advice) -> Writing | None:
    """The way in which the numbers of a surveyed column are written, None if plainly."""
    if wish.kind == "category" or not (column.words or wish.decimal == "," or wish.dates):
        return None
    return writing_of(
        column.name,
        column.seen,
        decimal=wish.decimal,
        order=wish.dates,
        sure=wish.kind == "numeric",
        cure=advice.writing.format(name=f'"{column.name}"'),
    )


def surveyed(
    reader: Reader,
    wishes: Mapping[str, Wish],
    missing: Missing,
    advice: Advice,
    *,
    target: str | None = None,
    writings: Mapping[str, Writing] | None = None,
) -> dict[str, Survey]:
    """What the columns of which something is wished are like, numbers read as they are written.

    Some `writings` may be known; the `target` is one of words whatever it looks like.
    """
    known = writings or {}
    found = {name: Survey(name, missing, known.get(name)) for name in wishes}
    survey(reader, found)
    ways = {
        name: way
        for name, each in found.items()
        if name != target
        and name not in known
        and (way := writing_in(each, wishes[name], advice)) is not None
    }
    if ways:  # of these one more look, now that their numbers can be read
        again = {name: Survey(name, missing, way) for name, way in ways.items()}
        survey(reader, again)
        found |= again
    return found


def written_notes(columns: Iterable[Survey]) -> list[str]:
    """A note for each column whose numbers are not written plainly."""
    return [
        note
        for each in columns
        if each.writing is not None
        for note in each.writing.notes(each.name, each.seen)
    ]


def check_numbers(column: Survey, sure: bool, advice: Advice) -> None:
    """Refuse a word among numbers, and infinite numbers.

    Most values must be numbers to tell a misprint from a column of words, unless the user is sure.
    """
    known = column.count + column.words
    tells = column.count >= max(NUMBERS_THAT_TELL, SHARE_THAT_TELLS * known)
    if column.first_word is not None:
        if sure or tells:
            where, text = column.first_word
            raise ValueError(
                f"{where}: expected a number as in the rest of the column, got {text!r}: correct "
                f"it or {advice.category}."
            )
    elif column.first_infinite is not None:
        where, text = column.first_infinite
        raise ValueError(
            f"{where}: expected a finite number, got {text!r}, beyond {LARGEST:g}: correct it or "
            "leave it empty."
        )


def attribute_of(column: Survey, wish: Wish, advice: Advice, gaps: Gaps = "mark") -> Attribute:
    """What a surveyed column is taken for."""
    sure = wish.kind == "numeric" or bool(wish.group) or column.writing is not None
    if column.absent and gaps == "refuse":
        raise ValueError(
            f"{column.first_absent}: the value is missing: fill it in, or say missing = 'mark' or "
            "'median'."
        )
    if wish.kind == "category":
        return _of_words(column, wish, advice)
    check_numbers(column, sure, advice)
    values = column.different
    many = values is None or len(values) > 2
    if column.words or not column.count or not (sure or many):
        return _of_words(column, wish, advice)
    return Numeric(
        name=column.name,
        low=column.low,
        high=column.high,
        marked=bool(column.absent) and gaps == "mark" and not wish.group,
        curved=many,
        fills=bool(column.absent) or gaps == "median",
        writing=column.writing,
        unit=wish.unit,
        shown=wish.shown,
        group=wish.group,
    )


def _of_words(column: Survey, wish: Wish, advice: Advice) -> Category:
    if column.texts is None:
        raise ValueError(
            f"column {column.name!r} has more than {MOST_TEXTS:,} different words: {advice.many}."
        )
    as_words = wish.kind == "category"
    words, as_numbers = _words(column, as_words)
    labels = ranked(words)
    binary = len(labels) == 2 and not as_words and not column.absent
    if not as_words and not binary:
        _check_words(column, len(labels), advice)
    check_categories(column.name, len(labels), advice.many)
    if column.absent:  # joined to a word of that spelling
        labels = [*ranked({*words} - {MISSING}), MISSING]
    return Category(
        name=column.name,
        labels=tuple(labels),
        binary=binary,
        as_numbers=as_numbers,
        shown=wish.shown,
    )


def _words(column: Survey, as_words: bool) -> tuple[list[str], bool]:
    """What the distinct cells are called, and whether equal numbers are called the same."""
    as_numbers = not as_words and all(NUMBER.fullmatch(text) for text in column.seen)
    return [word_in(text, as_number=as_numbers) for text in column.seen], as_numbers


def _check_words(column: Survey, count: int, advice: Advice) -> None:
    """Refuse a column of so many words that it names its rows instead of describing them."""
    if count > MOST_WORDS or 2 * count > column.rows:
        raise ValueError(
            f"column {column.name!r} has {count} different words in {column.rows} rows, expected "
            f"at most {MOST_WORDS} and at most half as many as rows: drop it if it identifies "
            f"rows, or {advice.category}."
        )


def check_categories(name: str, count: int, cure: str) -> None:
    """Refuse a column of so many words that the features they become can hardly be trained."""
    if count > MOST_CATEGORIES:
        raise ValueError(
            f"column {name!r} has {count:,} different values, each of which would become a feature "
            f"of its own, expected at most {MOST_CATEGORIES}: {cure}."
        )


@dataclass(frozen=True, kw_only=True)
class Target:
    """The classes that a column names, in order, and whether equal numbers name the same."""

    name: str
    classes: tuple[str, ...]
    as_numbers: bool

    def label(self, text: str) -> str:
        """What a cell without spaces around it is called."""
        return word_in(text, as_number=self.as_numbers)


def target_of(column: Survey, *, as_words: bool = False) -> Target:
    """The classes of a surveyed target."""
    count = None if column.different is None else len(column.different)
    if count is None or (not as_words and not column.words and count > MOST_NUMERIC_CLASSES):
        many = f"more than {MOST_TEXTS:,}" if count is None else f"{count}"
        raise ValueError(
            f"the target {column.name!r} has {many} different numbers, expected at most "
            f"{MOST_NUMERIC_CLASSES} classes: it looks like a quantity to be estimated; cut it "
            "into classes first."
        )
    words, as_numbers = _words(column, as_words)
    return Target(name=column.name, classes=tuple(ranked(words)), as_numbers=as_numbers)


# --- training rows of columns with types --------------------------------------------------------


def learnt(
    names: Sequence[str],
    columns: Sequence[Values],
    weights: Floats,
    writings: Sequence[Writing | None] | None = None,
    most: int | None = None,
) -> Schema:
    """How the columns of training rows, and of all rows to come, are encoded: numbers in [0, 1].

    Of words the `most` frequent are kept and the others called "other"; all unless given.
    """
    return Schema(
        tuple(
            _weighed_words(name, own, weights, most)
            if own.dtype == object
            else _weighed_numbers(name, own, weights, way)
            for name, own, way in zip(names, columns, writings or [None] * len(names), strict=True)
        )
    )


def _weighed_numbers(
    name: str, numbers: Floats, weights: Floats, writing: Writing | None
) -> Numeric:
    known = ~np.isnan(numbers)
    marked = not known.all()
    if not known.any():
        return Numeric(name=name, low=0.0, high=1.0, marked=marked, curved=False, writing=writing)
    order = np.argsort(numbers[known], kind="stable")
    values, total = numbers[known][order], weights[known][order].cumsum()
    low, width = float(values[0]), float(values[-1] - values[0]) or 1.0
    return Numeric(
        name=name,
        low=low,
        high=low + width,
        # The lower of two middle values, so that a filled value is one that occurs.
        fill=float(values[np.searchsorted(total, total[-1] / 2)]),
        shift=low,
        width=width,
        marked=marked,
        curved=len(np.unique(values)) > 2,
        writing=writing,
    )


def _weighed_words(name: str, words: Values, weights: Floats, most: int | None) -> Category:
    codes, found = pd.factorize(words)
    if most is None and len(found) > MOST_WORDS and 2 * len(found) > len(words):
        raise ValueError(
            f"column {name!r} has {len(found)} different values in {len(words)} rows: drop it if "
            f"it identifies rows, or set max_categories={MOST_WORDS} to merge rare values."
        )
    if most is None:
        check_categories(name, len(found), f"set max_categories={MOST_WORDS} to {GROUP}")
    shares = dict(zip(found, np.bincount(codes, weights) / weights.sum(), strict=True))
    grouped = most is not None and len(shares.keys() - {MISSING}) > most
    if grouped:
        frequent = sorted(shares.keys() - {MISSING}, key=lambda label: (-shares[label], label))
        rest = sum(shares.pop(label) for label in frequent[most:])
        shares[OTHER] = shares.get(OTHER, 0.0) + rest
    labels = sorted(shares, key=_place_of_label)
    return Category(
        name=name,
        labels=tuple(labels),
        shares=tuple(float(shares[label]) for label in labels),
        grouped=grouped,
        binary=len(labels) == 2,
        valued=True,
    )


def _place_of_label(label: str) -> tuple[bool, float, str]:
    """Numbers in their order, then words in theirs, "missing" last."""
    return label == MISSING, float(label) if NUMBER.fullmatch(label) else math.inf, label
