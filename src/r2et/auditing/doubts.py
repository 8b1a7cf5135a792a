"""What in a table should make a reader doubt the audit: identifiers, copies of the target, order.

All of it is found by the first rows as the model takes them, and said in the terminal and on the
page; nothing is changed and nothing left out.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from r2et.auditing.tables import Chunk, Columns, Source
from r2et.metrics.statistics import auc_of, odds_of_classes

ROWS = 5000  # the first ones, by which tables are examined
ROWS_OF_ORDERS = 1000  # of them by which other orders of the columns are tried
LEAST = 30  # rows of which anything is said
LEAST_OF_CLASS = 5
UNIQUE = 0.95  # share of different values that makes an identifier of whole numbers
COPY = 0.999  # AUC of a single column, or share of each class told by it, that makes a copy
MOST_COLUMNS = 60  # of which all pairs are exchanged on trial
GAIN = 0.05  # of AUC, beside what chance gives, that makes another order more likely than this
ID_NAME = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|key|index|row|nr|no|number)([^a-z]|$)|Id$|ID$")

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The first rows of a table: inputs (N, d), and class numbers (n,) of those with a label."""

    x: Tensor
    labelled: Codes
    y: Codes


def sample_of(source: Source, first: Chunk, classes: Sequence[str]) -> Sample:
    """The first rows of a source that was read up to its first chunk."""
    # Rows that come from an iterator come once.
    chunks = [first] if source.length is None else _first_rows(source)
    x = torch.cat([chunk.x for chunk in chunks])[:ROWS]
    labels = [label for chunk in chunks for label in chunk.labels][:ROWS]
    places = {name: place for place, name in enumerate(classes)}
    codes = np.array([-1 if each is None else places.get(each, -1) for each in labels])
    return Sample(x=x, labelled=np.flatnonzero(codes >= 0), y=codes[codes >= 0])


def _first_rows(source: Source) -> list[Chunk]:
    found: list[Chunk] = []
    for chunk in source.chunks(ROWS):
        found.append(chunk)
        if sum(len(each.rows) for each in found) >= ROWS:
            break
    return found


def doubts(sample: Sample, columns: Columns, target: str | None) -> list[str]:
    """What is to be doubted about the columns, whatever the model does with them."""
    if len(sample.x) < LEAST:
        return []
    raw = columns.scale.undo(sample.x).numpy()
    return [
        *(
            f"Column {group!r} looks like an identifier ({why}), but is an input: if it names rows "
            "instead of describing them, name it by id or drop and train without it."
            for group, numbers in columns.groups.items()
            if (why := _identifies(group, raw[:, numbers], columns, numbers)) is not None
        ),
        *(
            f"Column {group!r} tells the target{f' {target!r}' if target else ''} {how}: if it is "
            "known only after the outcome, or made from it, drop it and train without it."
            for group, numbers in columns.groups.items()
            if (how := _tells(raw[sample.labelled][:, numbers], sample.y)) is not None
        ),
    ]


def _identifies(name: str, values: Floats, columns: Columns, numbers: list[int]) -> str | None:
    """Why an attribute looks like an identifier, None if it does not."""
    rows = len(values)
    if len(numbers) > 1 and columns.features[numbers[0]].kind == "category":
        many = 2 * len(numbers) > rows
        return f"{len(numbers):,} different words in {rows:,} rows" if many else None
    own = values[:, 0]
    whole = np.round(own)
    different = len(np.unique(whole))
    if np.abs(own - whole).max() > 1e-4 or different < UNIQUE * rows:
        return None
    kind = "whole numbers, a different one in "
    kind += "each row" if different == rows else f"{100 * different / rows:.0f} % of the rows"
    steps = np.diff(whole)
    if (steps > 0).all() or (steps < 0).all():
        return f"{kind}, in order"
    if ID_NAME.search(name) or ID_NAME.search(name.lower()):
        return f"{kind}, and its name says so"
    if np.ptp(whole) < 2 * rows:
        return f"{kind}, with hardly a gap between them"
    digits = {len(str(int(abs(value)))) for value in (whole.min(), whole.max())}
    if len(digits) == 1 and digits.pop() >= 6:
        return f"{kind}, all of as many digits"
    return None


def _tells(values: Floats, y: Codes) -> str | None:
    """How an attribute tells the class of every row, None if it does not."""
    from sklearn.metrics import roc_auc_score

    counts = np.unique(y, return_counts=True)[1]
    if len(y) < LEAST or len(counts) < 2 or counts.min() < LEAST_OF_CLASS:
        return None
    different, place = np.unique(values, axis=0, return_inverse=True)
    place = place.ravel()
    if 5 * len(different) <= len(y):
        table = np.zeros((len(different), y.max() + 1))
        np.add.at(table, (place, y), 1)
        right = table.argmax(1)[place] == y
        if all(right[y == label].mean() >= COPY for label in np.unique(y)):
            return "of every row by its values alone"
    if values.shape[1] == 1 and len(counts) == 2:
        area = roc_auc_score(y == y.max(), values[:, 0])
        if max(area, 1 - area) >= COPY:
            return "of every row by a single threshold"
    return None


# --- the order of the columns ---------------------------------------------------------------------


def doubts_of_order(
    sample: Sample, columns: Columns, score: Callable[[Tensor], Tensor], assumed: bool
) -> list[str]:
    """What a model's AUC says about the order of classes and, where it is assumed, of columns."""
    rows = sample.labelled[:ROWS_OF_ORDERS]
    x, y = sample.x[rows], sample.y[:ROWS_OF_ORDERS]
    counts = np.unique(y, return_counts=True)[1]
    if len(rows) < LEAST or len(counts) < 2:
        return []
    chance = 2 / float(np.sqrt(12 * counts.min()))  # two standard errors of an AUC by chance
    area = _area(score(x), y)
    found = []
    if area < 0.5 - chance:
        found.append(
            f"The AUC on the first {len(rows):,} rows is {area:.2f}, worse than chance: the "
            "classes or the columns probably stand in another order than the model has them; state "
            "them by classes = [...] and columns = [...]."
        )
    if assumed:
        tried = ((_area(score(x[:, places]), y), said) for said, places in _orders(columns))
        best, said = max(tried, default=(0.0, ""))
        if best > area + GAIN + chance:
            found.append(
                f"The AUC on the first {len(rows):,} rows is {area:.2f}, but {best:.2f} with "
                f"{said}: the model was probably trained on another order of the columns; state it "
                "by columns = [...]."
            )
    return found


def _area(logits: Tensor, y: Codes) -> float:
    """Mean AUC of the classes that occur, each against all others."""
    return auc_of(odds_of_classes(logits.double()).cpu(), torch.from_numpy(y))


def _orders(columns: Columns) -> Iterator[tuple[str, list[int]]]:
    """Other orders of the attributes, in words and as places of inputs."""
    groups = columns.groups
    names = list(groups)

    def places(order: Sequence[str]) -> list[int]:
        return [number for name in order for number in groups[name]]

    def moved(order: Sequence[str]) -> bool:
        return list(order) != names

    for said, order in (
        ("the columns in alphabetical order", sorted(names)),
        ("the columns in alphabetical order", sorted(names, key=str.casefold)),
        ("the columns in reverse order", names[::-1]),
        ("the first column moved to the end", [*names[1:], names[0]]),
        ("the last column moved to the front", [names[-1], *names[:-1]]),
    ):
        if moved(order):
            yield said, places(order)
    if len(names) > MOST_COLUMNS:
        return
    for i, one in enumerate(names):
        for j in range(i + 1, len(names)):
            order = [*names]
            order[i], order[j] = names[j], one
            yield f"{one!r} and {names[j]!r} exchanged", places(order)
