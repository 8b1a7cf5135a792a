"""Cells as the attributes of a schema take them: of blocks of text, and of pandas tables."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from r2et.data.cells import USUAL, Floats, Missing, Where, cells_of, word_in
from r2et.data.features import MISSING
from r2et.data.reader import Block
from r2et.data.schema import Category, Numeric, Schema, Values
from r2et.data.writing import ORIGIN, Writing, writing_of


def values_in(schema: Schema, block: Block, missing: Missing) -> list[Values]:
    """The cells of a block of text by column, as the schema takes them.

    Refused where an attribute knows no such value.
    """
    return [
        _words_in(each, block.columns[each.name], missing, block.where)
        if isinstance(each, Category)
        else _numbers_in(each, block.columns[each.name], missing, block.where)
        for each in schema.attributes
    ]


def _numbers_in(attribute: Numeric, texts: Sequence[str], missing: Missing, where: Where) -> Values:
    name, writing = attribute.name, attribute.writing
    cells = cells_of(texts, missing, writing)
    if cells.words.any():
        at = int(cells.words.argmax())
        written = "" if writing is None else f", written {writing.words}"
        raise ValueError(
            f"{where(at, name)}: expected a number as in the rest of the column{written}, got "
            f"{cells.texts[at]!r}: correct it."
        )
    if cells.missing.any() and not attribute.marked and not attribute.fills:
        raise ValueError(
            f"{where(int(cells.missing.argmax()), name)}: the value is missing, which the table "
            "the encoding was fitted on never shows: fill it in, or say missing = 'median'."
        )
    return cells.numbers


def _words_in(attribute: Category, texts: Sequence[str], missing: Missing, where: Where) -> Values:
    words: dict[str, str] = {}
    refuses = not attribute.shares
    for at, text in enumerate(texts):
        if text in words:
            continue
        words[text] = attribute.word(text, missing)
        if refuses and words[text] not in attribute.labels:
            raise ValueError(
                f"{where(at, attribute.name)}: got {text.strip() or 'nothing'!r}, which the table "
                "the encoding was fitted on never shows: merge it with another value, or fit on a "
                "table that has it."
            )
    return np.array([words[text] for text in texts], dtype=object)


# --- pandas tables ------------------------------------------------------------------------------


def values_of(schema: Schema, table: pd.DataFrame) -> list[Values]:
    """The cells of new rows by column, as a schema learnt of a pandas table takes them."""
    columns = (table.iloc[:, place] for place in range(len(schema.attributes)))
    return [
        numbers_of(each.name, own, each.writing)
        if isinstance(each, Numeric)
        else words_of(own, each.word)
        for each, own in zip(schema.attributes, columns, strict=True)
    ]


def holds_words(cells: "pd.Series[Any]") -> bool:
    """Whether a column is one of categories: text, truth values, pandas' own categories."""
    kind = cells.infer_objects().dtype
    return isinstance(kind, pd.CategoricalDtype) or types.is_bool_dtype(kind) or _is_text(kind)


def _is_text(kind: Any) -> bool:
    return types.is_object_dtype(kind) or types.is_string_dtype(kind)


def written_as(name: str, cells: "pd.Series[Any]") -> Writing | None:
    """The way in which the numbers of a column are written, None if plainly or if it has none."""
    if types.is_datetime64_any_dtype(cells.dtype):
        return Writing(order="year first")
    if not _is_text(cells.infer_objects().dtype):
        return None
    known = [value for value in pd.unique(cells) if not pd.isna(value)]
    if not all(isinstance(value, str) for value in known):
        return None
    return writing_of(
        name,
        [text for each in known if not USUAL.holds(text := each.strip())],
        cure="convert the column to numbers or dates yourself, or list it in categorical",
    )


def usual_word(text: str) -> str:
    """What a cell is called as a word, "missing" if it stands for none."""
    text = text.strip()
    return MISSING if USUAL.holds(text) else word_in(text)


def words_of(cells: "pd.Series[Any]", word: Callable[[str], str] = usual_word) -> Values:
    """Each cell as a word, "missing" if there is none: (N,)."""
    codes, values = pd.factorize(cells)
    return np.array([*(word(str(value)) for value in values), MISSING], dtype=object)[codes]


def numbers_of(name: str, cells: "pd.Series[Any]", way: Writing | None = None) -> Floats:
    """Each cell as a number, of text by the `way` it is written, NaN if there is none: (N,)."""
    cells = cells.infer_objects()
    if way is not None and way.order is not None:
        if types.is_datetime64_any_dtype(cells.dtype):
            since = (pd.to_datetime(cells, utc=True) - pd.Timestamp(ORIGIN)) / pd.Timedelta(days=1)
            days: Floats = np.asarray(since.to_numpy(), dtype=np.float64)
            return days
        if types.is_numeric_dtype(cells.dtype) and cells.notna().any():
            raise ValueError(
                f"column {name!r} must hold dates, as it did in training, got {cells.dtype}: "
                "convert it by pandas.to_datetime."
            )
    if way is not None and not types.is_numeric_dtype(cells.dtype):
        return _written(name, cells, way)
    if types.is_complex_dtype(cells.dtype):
        raise ValueError(f"Complex data not supported: column {name!r} holds complex numbers.")
    try:
        if not (types.is_numeric_dtype(cells.dtype) or holds_words(cells)):
            raise TypeError(f"got {cells.dtype}")
        numbers = pd.to_numeric(cells).to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"column {name!r} must hold numbers ({problem}): convert it, or name it as a column of "
            "categories."
        ) from problem
    if np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
        raise ValueError(
            f"numbers must be finite or missing, got {numbers[row]} in row {row} of column "
            f"{name!r}: correct it or leave it out."
        )
    return numbers


def _written(name: str, cells: "pd.Series[Any]", way: Writing) -> Floats:
    codes, values = pd.factorize(cells)
    different = cells_of([str(value) for value in values], USUAL, way)
    if different.words.any():
        place = int(different.words.argmax())
        raise ValueError(
            f"column {name!r} is written {way.words}, got {different.texts[place]!r} in row "
            f"{int((codes == place).argmax())}: correct it, or list the column in categorical and "
            "fit again."
        )
    return np.append(different.numbers, np.nan)[codes]  # the last for missing cells, of code -1
