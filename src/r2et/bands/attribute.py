"""The bands of one attribute: which a value falls in, and what it is called."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from r2et.core.arrays import Codes, Floats
from r2et.data.features import MISSING, plain, with_unit


@dataclass(frozen=True, kw_only=True)
class NumberBands:
    """The bands of a number: from each of the `edges`, rising, up to the next.

    A value on an edge belongs to the band above it. Each of the `special` values is a band of its
    own, and so are missing ones, if there were any (`missing`). `whole` says that the values are
    whole numbers, `unit` what they count.
    """

    name: str
    edges: tuple[float, ...] = ()
    special: tuple[float, ...] = ()
    missing: bool = False
    whole: bool = False
    unit: str = ""

    @property
    def count(self) -> int:
        """How many bands there are."""
        return len(self.edges) + 1 + len(self.special) + self.missing

    def codes(self, numbers: Floats) -> Codes:
        """The number of each value's band: those between edges, then special ones, then missing.

        Refused is a missing value where there was none before.
        """
        codes = np.searchsorted(np.array(self.edges), numbers, side="right")
        for place, value in enumerate(self.special, len(self.edges) + 1):
            codes = np.where(numbers == value, place, codes)
        absent = np.isnan(numbers)
        if absent.any() and not self.missing:
            raise ValueError(
                f"column {self.name!r} has a missing value in row {int(absent.argmax())}, and had "
                "none when bands were made: fill it in, or fit again with rows that lack it."
            )
        return np.where(absent, self.count - 1, codes)

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """Where each band between edges begins, and where the next one does: -inf and inf last."""
        ends = (-np.inf, *self.edges, np.inf)
        return list(pairwise(ends))

    @property
    def words(self) -> list[str]:
        """What each band is called.

        >>> NumberBands(name="hours", edges=(32.5, 42.5), whole=True, unit="hours").words
        ['up to 32 hours', '33 to 42 hours', '43 hours and more']
        >>> NumberBands(name="income", edges=(1200.0,), special=(-9.0,), missing=True).words
        ['below 1,200', '1,200 and more', '-9', 'missing']
        """
        between = [self._words(low, high) for low, high in self.ranges]
        special = [with_unit(value, self.unit) for value in self.special]
        return [*between, *special, *([MISSING] if self.missing else [])]

    def _words(self, low: float, high: float) -> str:
        def told(number: float) -> str:
            return with_unit(number, self.unit)

        if low == -np.inf and high == np.inf:
            return "any value"
        if self.whole:
            first, last = np.ceil(low), np.ceil(high) - 1
            if low == -np.inf:
                return f"up to {told(last)}"
            if high == np.inf:
                return f"{told(first)} and more"
            return told(first) if first == last else f"{plain(first)} to {told(last)}"
        if low == -np.inf:
            return f"below {told(high)}"
        if high == np.inf:
            return f"{told(low)} and more"
        return f"{plain(low)} to below {told(high)}"

    def sql(self, column: str) -> str:
        """The number of a value's band as an expression of SQL."""
        cases = [f"WHEN {column} IS NULL THEN {self.count - 1}"] if self.missing else []
        cases += [
            f"WHEN {column} = {value!r} THEN {place}"
            for place, value in enumerate(self.special, len(self.edges) + 1)
        ]
        cases += [f"WHEN {column} < {edge!r} THEN {place}" for place, edge in enumerate(self.edges)]
        if not self.missing:
            cases.insert(0, f"WHEN {column} IS NULL THEN NULL")
        return f"CASE {' '.join(cases)} ELSE {len(self.edges)} END"


@dataclass(frozen=True, kw_only=True)
class WordBands:
    """The bands of a category: one for each word, the last for all `other` ones, if there is it."""

    name: str
    labels: tuple[str, ...]
    other: bool = False

    @property
    def count(self) -> int:
        """How many bands there are."""
        return len(self.labels) + self.other

    def codes(self, words: NDArray[np.object_]) -> Codes:
        """The number of each word's band; a word of no band is refused."""
        places = {word: place for place, word in enumerate(self.labels)}
        found = np.array([places.get(word, len(self.labels)) for word in words], dtype=np.intp)
        if not self.other and (found == len(self.labels)).any():
            row = int((found == len(self.labels)).argmax())
            raise ValueError(
                f"column {self.name!r} has {words[row]!r} in row {row}, a word that was not there "
                "when bands were made: merge it with another one, or fit again."
            )
        return found

    @property
    def words(self) -> list[str]:
        """What each band is called."""
        return [*self.labels, *(["other"] if self.other else [])]

    def sql(self, column: str) -> str:
        """The number of a word's band as an expression of SQL, a missing word being "missing"."""
        value = f"COALESCE(TRIM({column}), '{MISSING}')"
        cases = [
            f"WHEN {value} IN ({', '.join(quoted(word) for word in written(label))}) THEN {place}"
            for place, label in enumerate(self.labels)
        ]
        rest = str(len(self.labels)) if self.other else "NULL"
        return f"CASE {' '.join(cases)} ELSE {rest} END"


Bands = NumberBands | WordBands


TRUTH = {"True": ("True", "true", "1"), "False": ("False", "false", "0")}


def written(label: str) -> tuple[str, ...]:
    """How a data base may write a word: truth values as numbers, too."""
    return TRUTH.get(label, (label,))


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def one_hot(codes: Codes, bands: Sequence[Bands]) -> tuple[Codes, int]:
    """The column of the 1 of each row and attribute, (N, m), and the number of columns."""
    starts = np.cumsum([0, *(each.count for each in bands)])
    return codes + starts[:-1], int(starts[-1])


def ones_at(ones: Codes, columns: int) -> sparse.csr_matrix:
    """The matrix, (N, columns), whose ones are in these columns of each row, (N, m)."""
    starts = np.arange(0, ones.size + 1, ones.shape[1])
    return sparse.csr_matrix((np.ones(ones.size), ones.ravel(), starts), (len(ones), columns))
