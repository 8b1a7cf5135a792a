"""Rows of a table as bands are made of them, in an order that they alone decide."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from r2et.bands.attribute import WordBands
from r2et.core.arrays import Codes, Floats
from r2et.core.rng import stream

Values = NDArray[Any]

HELD = 0.2  # of the rows, on which settings are chosen
LEAST_HELD = 50  # rows of the held part; with fewer nothing is chosen
FEW = 2500  # rows of which every one judges once
MOST_WORDS = 100  # of a category; rarer ones are "other"


class Table(NamedTuple):
    """Columns by name, numbers with NaN or words, rows in an order that they alone decide."""

    names: list[str]
    columns: list[Values]


def rows_of(table: Table, chosen: NDArray[Any]) -> Table:
    """Some of the rows of a table."""
    return Table(table.names, [own[chosen] for own in table.columns])


def sorted_rows(table: Table, y: Codes, weights: Floats) -> tuple[Table, Codes, Floats]:
    """The same rows, classes and weights in an order that they alone decide."""
    keys = [
        pd.factorize(own, sort=True)[0] if own.dtype == object else np.nan_to_num(own, nan=np.inf)
        for own in table.columns
    ]
    order = np.lexsort([weights, y, *keys])
    return rows_of(table, order), y[order], weights[order]


def held_rows(y: Codes, seed: int) -> NDArray[np.bool_] | None:
    """Which rows judge a setting, the same share of each class: None if they are too few."""
    parts = held_parts(y, seed)
    return parts[0] if parts else None


def held_parts(y: Codes, seed: int) -> list[NDArray[np.bool_]]:
    """Parts that judge a setting one after another, each class in equal shares: of many rows one.

    None at all if rows are too few. Every row of few is in one part.
    """
    counts = np.bincount(y)
    if len(y) * HELD < LEAST_HELD or len(counts) < 2 or counts.min() * HELD < 5:
        return []
    shuffled = torch.randperm(len(y), generator=stream(seed, "bands", "held")).numpy()
    parts = [np.zeros(len(y), dtype=bool) for _ in range(1 if len(y) > FEW else round(1 / HELD))]
    for label in range(len(counts)):
        own = shuffled[y[shuffled] == label]
        ends = [round(HELD * len(own) * place) for place in range(len(parts) + 1)]
        for part, first, last in zip(parts, ends, ends[1:], strict=False):
            part[own[first:last]] = True
    return parts


def spread_rows(y: Codes, weights: Floats, rows: int, seed: int) -> Codes:
    """Numbers of rows that stand for all: each class by its weight, within it rows by theirs.

    Rows lie in a line, class by class and shuffled within one, each as long as it is heavy, and are
    picked at equal distances: (rows,).
    """
    draw = stream(seed, "bands", "reference")
    shuffled = torch.randperm(len(y), generator=draw).numpy()
    line = shuffled[np.argsort(y[shuffled], kind="stable")]
    ends = weights[line].cumsum()
    places = (np.arange(rows) + torch.rand((), generator=draw).item()) * (ends[-1] / rows)
    return np.asarray(line[np.searchsorted(ends, places, side="right").clip(max=len(y) - 1)])


def word_bands(name: str, words: Values) -> WordBands:
    """A band for each word of a column, of the most frequent ones only if there are many."""
    labels, counts = np.unique(words.astype(str), return_counts=True)
    if len(labels) <= MOST_WORDS:
        return WordBands(name=name, labels=tuple(labels.tolist()))
    order = np.lexsort([labels, -counts])[: MOST_WORDS - 1]
    return WordBands(name=name, labels=tuple(sorted(labels[order].tolist())), other=True)
