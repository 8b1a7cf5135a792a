"""The columns of a user's table: as a model takes them, and as numbers and words that are told."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from r2et.core.limits import content_of
from r2et.data.cells import as_word
from r2et.data.features import MISSING

MOST_WORDS = 10_000
"""Different words of one column."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TableForm:
    """How the columns of a table are typed: `kinds` by name, and of words what each stands for.

    Columns of numbers are told as numbers in double precision, NaN where missing, all others as
    words. With `bare` the model takes an array.
    """

    kinds: Mapping[str, Any]
    words: Mapping[str, Mapping[str, Any]]
    bare: bool = False

    @classmethod
    def of(cls, rows: pd.DataFrame, *, bare: bool = False) -> "TableForm":
        """The form of a table."""
        words: dict[str, dict[str, Any]] = {}
        for name in rows:
            if is_number(rows[name].dtype):
                continue
            values = rows[name]
            listed = values.cat.categories if hasattr(values, "cat") else ()
            known = words.setdefault(str(name), {})
            for value in [*listed, *values.unique()]:
                if not pd.isna(value):
                    known.setdefault(as_word(value), value)
            if len(known) > MOST_WORDS:
                raise ValueError(
                    f"column {name!r} has {len(known):,} different words, where {MOST_WORDS:,} can "
                    "be audited: name it by id or drop if it is no attribute of people."
                )
        return cls(kinds={str(n): rows[n].dtype for n in rows}, words=words, bare=bare)

    def told(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows as a model takes them, as numbers and words."""
        found: dict[str, Any] = {}
        for name in self.kinds:
            own = rows[name]
            if name in self.words:
                found[name] = np.array([as_word(value) for value in own], dtype=object)
            else:
                found[name] = own.to_numpy(dtype=np.float64, na_value=np.nan)
        return pd.DataFrame(found)

    def typed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows of numbers and words, as a model takes them; an unknown word stays as it is."""
        return pd.DataFrame({name: self._typed(name, rows[name]) for name in self.kinds})

    def _typed(self, name: str, own: "pd.Series[Any]") -> Any:
        kind = self.kinds[name]
        if name not in self.words:
            numbers = own.to_numpy(dtype=np.float64, na_value=np.nan)
            whole = not np.isnan(numbers).any() and bool((numbers == np.round(numbers)).all())
            if pd.api.types.is_integer_dtype(kind) and not whole:
                return numbers
            return pd.Series(numbers).astype(kind)
        known = {**self.words[name], MISSING: None}
        values = [known.get(word, word) for word in own]
        if isinstance(kind, pd.CategoricalDtype):
            return pd.Categorical(values, dtype=kind)
        lacking = any(value is None for value in values)
        return pd.Series(values, dtype=object if lacking and is_truth(kind) else kind)

    def given(self, rows: pd.DataFrame) -> Any:
        """Rows of numbers and words as the model's own methods are called with."""
        typed = self.typed(rows)
        return typed.to_numpy() if self.bare else typed


def is_truth(kind: Any) -> bool:
    """Whether a column of this type holds truth values and nothing else."""
    return bool(pd.api.types.is_bool_dtype(kind))


def is_number(kind: Any) -> bool:
    """Whether a column of this type holds numbers, truth values being words."""
    return bool(pd.api.types.is_numeric_dtype(kind)) and not is_truth(kind)


def table_of(data: Any, names: Sequence[str] | None) -> pd.DataFrame:
    """A user's rows as a table: a pandas table, an array, or the path of a CSV file.

    An array has the columns that are named, or x0, x1, ...
    """
    if isinstance(data, pd.DataFrame):
        found = data.reset_index(drop=True)
        found.columns = [str(name) for name in found.columns]
        return found
    if isinstance(data, str | Path):
        return pd.read_csv(io.BytesIO(content_of(data)), skipinitialspace=True)
    rows = np.asarray(data.toarray() if hasattr(data, "toarray") else data)
    if rows.ndim != 2 or not len(rows):
        raise ValueError(
            f"rows to audit are a pandas table, an array (rows, columns) or the path of a CSV "
            f"file, got {type(data).__name__} of shape {rows.shape}."
        )
    if names is None or len(names) != rows.shape[1]:
        names = [f"x{place}" for place in range(rows.shape[1])]
    if rows.dtype == object:
        return pd.DataFrame(rows, columns=list(names)).infer_objects()
    return pd.DataFrame(rows, columns=list(names))
