"""What the cells of a table say: numbers, words, or nothing; and what a whole column is like.

Spaces around a cell do not count. Missing is an empty cell, NA, NaN, null or ?, in capitals or not,
and whatever else the user says stands for a missing value.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2et.data.features import MISSING
from r2et.data.writing import NUMBER, Writing

MISSING_WORDS = frozenset({"", "?", "na", "nan", "null"})
LARGEST = 1e100  # of numbers that can still be squared and added up
MOST_TEXTS = 10_000  # distinct cells of a column that are kept; of more only numbers are known
SAMPLE = 100_000  # numbers of a column of which a median is taken, all of them if there are fewer

Floats = NDArray[np.float64]
Where = Callable[[int, str], str]
"""(row, column) -> the place of a cell in words."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Which cells stand for a missing value: the usual words, and those the user names."""

    texts: frozenset[str] = MISSING_WORDS
    numbers: tuple[float, ...] = ()

    @classmethod
    def named(cls, values: Sequence[str]) -> "Missing":
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


USUAL = Missing()


def number_in(text: str, writing: Writing | None = None) -> float | None:
    """The number that a cell without spaces around it is, None if it is a word."""
    if writing is not None:
        return writing.number(text)
    return float(text) if NUMBER.fullmatch(text) else None


def word_in(text: str, *, as_number: bool = False) -> str:
    """What a cell is called as a word: a whole number without the decimal part pandas gives it.

    With `as_number` equal numbers are called the same.

    >>> word_in("1.0"), word_in("01234"), word_in("v1.0"), word_in("01.00", as_number=True)
    ('1', '01234', 'v1.0', '1')
    """
    if not NUMBER.fullmatch(text):
        return text
    return (str(float(text) + 0.0) if as_number else text).removesuffix(".0")


def as_word(value: Any) -> str:
    """What any value of a category is called as a word.

    >>> as_word(10.0), as_word(True), as_word(None)
    ('10', 'True', 'missing')
    """
    import pandas as pd  # whoever has such values has loaded it; reading files does not need it

    return MISSING if pd.isna(value) else word_in(str(value))


def ranked(words: Iterable[str]) -> list[str]:
    """The different words in their order; numbers alone are in the order of numbers."""
    different = {*words}
    if all(NUMBER.fullmatch(word) for word in different):
        return sorted(different, key=lambda word: (float(word), word))
    return sorted(different)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Cells of one column: their numbers, NaN where there is none, missing ones, and words."""

    texts: Sequence[str]
    numbers: Floats
    missing: NDArray[np.bool_]
    words: NDArray[np.bool_]


def cells_of(texts: Sequence[str], missing: Missing, writing: Writing | None = None) -> Cells:
    """The cells of a column as numbers, plain or of a `writing`, as missing ones or as words."""
    if writing is None and (plain := _plain(texts, missing)) is not None:
        return plain
    texts = [text.strip() for text in texts]
    gone = np.array([missing.holds(text) for text in texts], dtype=np.bool_)
    found = (
        None if absent else number_in(text, writing)
        for text, absent in zip(texts, gone.tolist(), strict=True)
    )
    numbers = np.array([np.nan if each is None else each for each in found], dtype=np.float64)
    return Cells(texts=texts, numbers=numbers, missing=gone, words=np.isnan(numbers) & ~gone)


def _plain(texts: Sequence[str], missing: Missing) -> Cells | None:
    """The cells of a column that holds plain numbers throughout, as most do, None of others."""
    try:
        numbers = np.array(texts, dtype=np.float64)
    except ValueError:
        return None
    # What float() reads beyond NUMBER is left to the slower way.
    if "_" in "".join(texts) or np.isnan(numbers).any():
        return None
    nothing = np.zeros(len(texts), dtype=np.bool_)
    gone = np.isin(numbers, missing.numbers) if missing.numbers else nothing
    numbers = np.where(gone, np.nan, numbers)
    return Cells(texts=texts, numbers=numbers, missing=gone, words=nothing)


class Survey:
    """What the cells of a column are like, learned block by block in bounded memory.

    Of missing cells, words and numbers beyond all measure the place of the first is kept.
    """

    def __init__(self, name: str, missing: Missing, writing: Writing | None = None) -> None:
        self.name, self.missing, self.writing = name, missing, writing
        self.rows = self.absent = self.words = 0
        self.first_absent = ""
        self.first_word: tuple[str, str] | None = None
        self.first_infinite: tuple[str, str] | None = None
        self.texts: Counter[str] | None = Counter()
        self.first_texts: tuple[str, ...] = ()  # those that were kept when there were too many
        self.low, self.high = np.inf, -np.inf
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self._sample: list[Floats] = []
        self._draw = np.random.Generator(np.random.PCG64(0))

    @property
    def seen(self) -> list[str]:
        """The distinct cells that are not missing, or the first of too many."""
        texts = self.first_texts if self.texts is None else self.texts
        return [text for text in texts if not self.missing.holds(text)]

    @property
    def different(self) -> set[float] | None:
        """The different numbers among the cells, None of too many cells."""
        if self.texts is None:
            return None
        numbers = (number_in(text, self.writing) for text in self.seen)
        return {number for number in numbers if number is not None}

    def see(self, texts: Sequence[str], where: Where) -> None:
        """Learn from some more cells, whose places can be told."""
        cells = cells_of(texts, self.missing, self.writing)
        self.rows += len(cells.texts)
        if (gone := int(cells.missing.sum())) and not self.absent:
            self.first_absent = where(int(cells.missing.argmax()), self.name)
        self.absent += gone
        if (words := int(cells.words.sum())) and self.first_word is None:
            at = int(cells.words.argmax())
            self.first_word = (where(at, self.name), cells.texts[at])
        self.words += words
        if (wild := np.abs(cells.numbers) > LARGEST).any() and self.first_infinite is None:
            at = int(wild.argmax())
            self.first_infinite = (where(at, self.name), cells.texts[at].strip())
        self._see_texts(cells)
        self._see_numbers(cells.numbers[np.abs(cells.numbers) <= LARGEST])

    def _see_texts(self, cells: Cells) -> None:
        if self.texts is None:
            return
        for text, count in Counter(cells.texts).items():
            self.texts[text.strip()] += count
        if len(self.texts) > MOST_TEXTS:
            self.first_texts, self.texts = tuple(self.texts), None

    def _see_numbers(self, numbers: Floats) -> None:
        if not len(numbers):
            return
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
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

    def _exchange(self, numbers: Floats, before: int) -> None:
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
        ordered = np.sort(np.concatenate(self._sample))
        return float(ordered[int(at * (len(ordered) - 1))])

    def deviation(self, fill: float) -> tuple[float, float]:
        """Mean and standard deviation with missing values filled."""
        rows = self.count + self.absent
        if not rows:
            return 0.0, 0.0
        apart = fill - self.mean
        squares = self.squares + apart**2 * self.count * self.absent / rows
        return self.mean + apart * self.absent / rows, float((squares / rows) ** 0.5)
