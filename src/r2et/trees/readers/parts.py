"""What all readers share: lists of a file as they must be, ensembles that hold, rows to show."""

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, softmax

from r2et.core.arrays import Codes, Floats
from r2et.core.limits import TooLargeError
from r2et.core.naming import briefly
from r2et.trees.form import Column, Ensemble, Scale, Tree

LARGEST_SINGLE = float(np.finfo(np.float32).max)
MOST_LETTERS = 200  # that are told of a problem


class RefusedError(ValueError):
    """A model that is not read, for the reason that is told."""


def objective_refused(known: Iterable[str], got: Any) -> RefusedError:
    """The refusal of a model that was fitted to something else than classes."""
    return RefusedError(
        f"objectives {', '.join(known)} are read, got {reprlib.repr(got)}: fit a classifier with "
        "one of them."
    )


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """What a model takes besides the words and numbers that it knows."""

    missing: bool = True
    unseen: bool = True
    largest: float = float(np.finfo(np.float64).max)


@contextmanager
def telling(what: str, advice: str) -> Iterator[None]:
    """Turn whatever goes wrong while something is read into one sentence of a ValueError."""
    try:
        with np.errstate(all="ignore"):  # what comes of numbers out of all range is checked
            yield
    except (RefusedError, TooLargeError, MemoryError):
        raise
    except Exception as problem:
        raise RefusedError(f"{what} ({briefly(problem)[:MOST_LETTERS]}): {advice}.") from problem


# --- lists of a file ----------------------------------------------------------------------------


def whole(values: Any, what: str, size: int | None = None) -> Codes:
    """Whole numbers as they must be: (n,)."""
    given = _listed(values, what, "iub", size)
    if given.dtype.kind == "u" and given.max(initial=0) > np.iinfo(np.intp).max:
        raise ValueError(f"{what} has a number that is too large")
    found: Codes = given.astype(np.intp)
    return found


def real(values: Any, what: str, size: int | None = None) -> Floats:
    """Numbers as they must be: (n,)."""
    found: Floats = _listed(values, what, "iuf", size).astype(np.float64)
    return found


def _listed(values: Any, what: str, kinds: str, size: int | None) -> Any:
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in kinds):
        raise ValueError(f"{what} is no list of numbers as it must be")
    if size is not None and len(found) != size:
        raise ValueError(f"{what} has {len(found)} entries where {size} are expected")
    return found


# --- ensembles ----------------------------------------------------------------------------------


def columns_of(names: Sequence[Any], words: Mapping[int, Sequence[Any]]) -> tuple[Column, ...]:
    """Columns by their names, and by the words of those that hold words."""
    found = tuple(
        Column(name=str(name), words=tuple(words[at]) if at in words else None)
        for at, name in enumerate(names)
    )
    if len({column.name for column in found}) < len(found):
        raise RefusedError("the model has two columns of one name: give each its own, and refit.")
    for column in found:
        own = column.words or ()
        if len(set(own)) < len(own) or any(pd.isna(word) for word in own):
            raise RefusedError(
                f"column {column.name!r} has a word twice, or nothing as a word: make each word "
                "different, leave missing ones out, and refit."
            )
    return found


def ensemble_of(
    *,
    columns: tuple[Column, ...],
    trees: Sequence[Tree],
    constant: Any,
    scale: Scale,
    classes: Sequence[Any],
    source: str,
) -> Ensemble:
    """An ensemble whose trees ask about columns that are there, one score for two classes."""
    found = Ensemble(
        columns=columns,
        trees=tuple(trees),
        constant=real(constant, "the constant"),
        scale=scale,
        classes=tuple(classes),
        source=source,
    )
    if len(found.classes) < 2:
        raise RefusedError(f"the model knows {len(found.classes)} class: fit it on two or more.")
    if not np.isfinite(found.constant).all():
        raise ValueError("a constant is no finite number")
    for tree in found.trees:
        _check_asked(tree, columns)
        if not 0 <= tree.output < len(found.constant):
            raise ValueError("a tree adds to the score of a class that is not there")
    if len(found.classes) == len(found.constant) == 2:
        found = _of_two(found)
    expected = 1 if len(found.classes) == 2 else len(found.classes)
    if len(found.constant) != expected:
        raise ValueError(
            f"{len(found.constant)} scores are told where {len(found.classes)} classes need "
            f"{expected}"
        )
    return found


def _check_asked(tree: Tree, columns: tuple[Column, ...]) -> None:
    if tree.feature.max(initial=-1) >= len(columns):
        raise ValueError("a tree asks about a column that is not there")
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        if (node in tree.words) != (columns[tree.feature[node]].words is not None):
            raise ValueError("a tree compares words as numbers, or numbers as words")


def _of_two(ensemble: Ensemble) -> Ensemble:
    """The one score of two that a softmax compares: that of the second less that of the first."""
    signs = np.array([-1.0, 1.0])
    return replace(
        ensemble,
        trees=tuple(
            replace(tree, value=signs[tree.output] * tree.value, output=0)
            for tree in ensemble.trees
        ),
        constant=ensemble.constant[1:] - ensemble.constant[:1],
    )


def chances_of(scores: Any) -> Floats:
    """The probability of each class by log-odds, (N,), or by the scores of a softmax, (N, C)."""
    given = np.asarray(scores, dtype=np.float64)
    if given.ndim == 1:
        second = expit(given)
        return np.stack([1 - second, second], 1)
    found: Floats = softmax(given, axis=1)
    return found


# --- rows to show -------------------------------------------------------------------------------


def unseen_word(words: Sequence[Any]) -> Any:
    """Something that is none of some words, but of their kind; None where no such is known."""
    if words and all(isinstance(word, str) for word in words):
        return max(words) + "?"
    numbers = words and all(isinstance(each, Real) for each in words)
    if numbers and not any(isinstance(each, bool | np.bool_) for each in words):
        return max(words) + 1
    return None


def shown_column(column: Column, numbers: Floats) -> Any:
    """What a user's table holds where trees see `numbers`: (N,)."""
    if column.words is None:
        return numbers
    words = np.empty(len(column.words) + 2, dtype=object)
    words[:-2], words[-2], words[-1] = list(column.words), np.nan, unseen_word(column.words)
    places = np.where(np.isnan(numbers), len(column.words), numbers).astype(np.intp)
    return words[places]


def shown_frame(ensemble: Ensemble, numbers: Floats) -> pd.DataFrame:
    """The table that a user would hold where trees see `numbers`, words as categories."""
    found = {}
    for column, values in zip(ensemble.columns, numbers.T, strict=True):
        own = shown_column(column, values)
        if column.words is not None:
            new = [own[values == -1][0]] if (values == -1).any() else []
            own = pd.Categorical(own, categories=[*column.words, *new])
        found[column.name] = own
    return pd.DataFrame(found, index=range(len(numbers)))


def shown_array(ensemble: Ensemble, numbers: Floats) -> Any:
    """The array that a user would hold where trees see `numbers`, of floats where it can be."""
    parts = [
        shown_column(column, values)
        for column, values in zip(ensemble.columns, numbers.T, strict=True)
    ]
    try:
        return np.stack([np.asarray(each, dtype=np.float64) for each in parts], 1)
    except (TypeError, ValueError):
        return np.stack([np.asarray(each, dtype=object) for each in parts], 1)
