"""All data sets by name, and the tables that travel with the package: adult, bank, compas."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from r2et.core.naming import nearest
from r2et.data.dataset import Dataset
from r2et.data.graphs import GRAPH_FILES, STORED, load_graphs, read_graphs
from r2et.data.images import IMAGES, read_folder
from r2et.data.roots import data_root
from r2et.data.schema import Category, Schema
from r2et.data.structure import TableStructure

TABLES = ("adult", "bank", "compas")
FILES = resources.files("r2et.data") / "files"


@dataclass(frozen=True, kw_only=True)
class Table:
    """What the arrays of an embedded file mean; the target is coded by the place in `classes`.

    Numbers stand there as they are, words by their places among the labels of their attribute.
    """

    schema: Schema
    target: str
    classes: tuple[str, ...]
    source: str


def table_of(name: str) -> Table:
    """What is told of an embedded file by the one beside it."""
    told = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return Table(
        schema=Schema.from_told(told["columns"]),
        target=told["target"],
        classes=tuple(told["classes"]),
        source=told["source"],
    )


def read(name: str) -> Dataset:
    """The embedded data set of that name."""
    table = table_of(name)
    with (FILES / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        stored = {key: arrays[key].astype(np.int64) for key in arrays.files}
    x = np.concatenate(
        [
            each.of_places(stored[each.name])
            if isinstance(each, Category)
            else each.raw(stored[each.name].astype(np.float64))
            for each in table.schema.attributes
        ],
        axis=1,
    )
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(stored[table.target]),
        structure=TableStructure(features=table.schema.features),
        classes=table.classes,
        target=table.target,
        source=table.source,
    )


def read_items(path: Path, size: tuple[int, int] | None = None) -> Dataset | None:
    """The user's own folder of images or file of graphs, None if it is neither."""
    if path.is_dir():
        return read_folder(path, name=path.resolve().name, size=size)
    return read_graphs(path, name=path.stem) if path.suffix in GRAPH_FILES else None


def load(name: str, root: str | Path | None = None) -> Dataset:
    """The data set of that name, as listed in `DATASETS`.

    What does not travel with the package is read from the folder `root`, else from the one that the
    environment variable R2ET_DATA names.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}: {nearest(name, DATASETS)}")
    return DATASETS[name](data_root(root))


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "adult": lambda root: read("adult"),
    "bank": lambda root: read("bank"),
    "compas": lambda root: read("compas"),
    **IMAGES,
    **{name: partial(load_graphs, name=name) for name in STORED},
}
