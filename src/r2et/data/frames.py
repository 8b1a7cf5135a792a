"""The user's own table as a dataset, from pandas or from a CSV file.

How a column is read is told in `r2et.data.fitting`, which cells are missing in `r2et.data.cells`.
Missing numbers stay NaN, to be filled by the training median when the dataset is split. What the
dataset says of its source tells which numbers were not written plainly. `categories` and `numeric`
name columns to be read as the one or the other regardless.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from r2et.core.limits import content_of
from r2et.core.naming import nearest
from r2et.data.cells import USUAL, Floats, Survey
from r2et.data.dataset import Dataset
from r2et.data.encoder import values_in
from r2et.data.fitting import (
    BLOCK,
    Advice,
    Target,
    Wish,
    attribute_of,
    check_numbers,
    surveyed,
    target_of,
    written_notes,
)
from r2et.data.reader import CsvReader, FrameReader, Reader
from r2et.data.schema import Schema
from r2et.data.structure import TableStructure

ADVICE = Advice(
    category="name the column in categories",
    writing="convert the column, or name it in categories",
)


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
    reader = FrameReader(frame=frame)
    wishes = wishes_of(reader.names, target, categories, numeric, drop, units or {})
    if frame.empty:
        raise ValueError("expected a table with rows and columns, got none: add rows.")
    return _dataset(reader, wishes, target, name, "A table in memory.")


def to_frame(dataset: Dataset) -> tuple[pd.DataFrame, Floats]:
    """A table in words, a column for each attribute, and the class of each row: (N,)."""
    structure = dataset.structure
    if not isinstance(structure, TableStructure):
        raise ValueError(f"{dataset.name} is no table: give one that has attributes.")
    columns: dict[str, Any] = {}
    for group in structure.group_names:
        places = [at for at, each in enumerate(structure.features) if each.group == group]
        values, feature = dataset.x[:, places], structure.features[places[0]]
        if feature.kind == "numeric":  # a second column marks what is missing, which is NaN here
            columns[group] = values[:, 0].numpy()
        elif len(places) > 1:
            words = [structure.features[at].name.removeprefix(f"{group}: ") for at in places]
            columns[group] = np.array(words, dtype=object)[values.argmax(1).numpy()]
        else:
            words = list(feature.words or ("0", "1"))
            columns[group] = np.array(words, dtype=object)[values[:, 0].long().numpy()]
    return pd.DataFrame(columns), dataset.y.numpy()


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
    reader = CsvReader.at(path, delimiter=delimiter, content=content_of(path))
    wishes = wishes_of(reader.names, target, categories, numeric, drop, units or {})
    return _dataset(reader, wishes, target, name, f"The file {Path(path).name}.")


def wishes_of(
    names: Sequence[str],
    target: str,
    categories: Sequence[str],
    numeric: Sequence[str],
    drop: Sequence[str],
    units: Mapping[str, str],
) -> dict[str, Wish]:
    """What the user says of the target and of each input, checked against the columns there are."""
    listed = {"categories": categories, "numeric": numeric, "drop": drop}
    for what, columns in listed.items():
        if isinstance(columns, str):
            raise ValueError(f"{what} must be a list of names, got {columns!r}: put it in a list.")
    for what, columns in {"target": (target,), **listed, "units": tuple(units)}.items():
        _check_known(columns, names, what)
    if both := sorted(set(categories) & set(numeric)):
        raise ValueError(f"{both[0]!r} is named in categories and in numeric: choose one.")
    if target in drop:
        raise ValueError(f"the target {target!r} is named in drop: keep it.")
    if not {*names} - {*drop, target}:
        raise ValueError(
            f"expected at least one column besides the target {target!r}, got none: add or keep "
            "one."
        )
    kinds = dict.fromkeys(categories, "category") | dict.fromkeys(numeric, "numeric")
    return {
        column: Wish(kind=kinds.get(column), unit=units.get(column, ""))
        for column in names
        if column not in drop
    }


def _check_known(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuse the name of a column that is not there, with the nearest one that is."""
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} must name a column, but there is no {name!r}: {nearest(name, known)}"
            )


def _dataset(
    reader: Reader, wishes: Mapping[str, Wish], target: str, name: str, source: str
) -> Dataset:
    surveys = surveyed(reader, wishes, USUAL, ADVICE, target=target)
    goal = _classes(surveys[target], wishes[target].kind)
    inputs = [each for each in surveys.values() if each.name != target]
    schema = Schema(tuple(attribute_of(each, wishes[each.name], ADVICE) for each in inputs))
    numbers = {label: number for number, label in enumerate(goal.classes)}
    x, y = [], []
    for block in reader.blocks(BLOCK):
        x.append(schema.raw(values_in(schema, block, USUAL)))
        y += [numbers[goal.label(text.strip())] for text in block.columns[target]]
    return Dataset(
        name=name,
        x=torch.cat(x),
        y=torch.tensor(y),
        structure=TableStructure(features=schema.features, schema=tuple(schema.to_json())),
        classes=goal.classes,
        target=target,
        source=" ".join([source, *written_notes(inputs)]),
    )


def _classes(column: Survey, kind: str | None) -> Target:
    """The classes of a target, refused where a row has none or a word stands among numbers."""
    if column.absent:
        raise ValueError(
            f"{column.first_absent}: every row needs a value of the target, got none: fill it in "
            "or remove the row."
        )
    if kind != "category":
        check_numbers(column, kind == "numeric", ADVICE)
    return target_of(column, as_words=kind == "category")
