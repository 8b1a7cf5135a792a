"""All data sets by name, and the tables that travel with the package: adult, bank, compas."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from r2et.core.naming import nearest
from r2et.data.dataset import Dataset
from r2et.data.graphs import GRAPH_FILES, load_graphs, read_graphs
from r2et.data.images import cifar10, mnist, read_folder, retinal_scans
from r2et.data.roots import data_root
from r2et.data.schema import Category, Schema
from r2et.data.structure import TableStructure

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
    about = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return Table(
        schema=Schema.from_json(about["columns"]),
        target=about["target"],
        classes=tuple(about["classes"]),
        source=about["source"],
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
        structure=TableStructure(
            features=table.schema.features, schema=tuple(table.schema.to_json())
        ),
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
    return DATASETS[name].load(data_root(root))


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set by name: how it is read, and what is known of it before it is.

    `load(root)` reads it, from the folder of data `root` if it does not travel with the package.
    `label` is what tables and figures call it, `published` the name that the papers print beside
    its numbers, or those of what it stands in for. `kind` and `pairs` are those of its structure.
    """

    load: Callable[[Path | None], Dataset]
    label: str
    kind: Literal["table", "picture", "network"] = "table"
    pairs: bool = False
    published: str = ""


def _table(name: str, label: str) -> DatasetEntry:
    return DatasetEntry(load=lambda root: read(name), label=label, published=label)


def _graphs(name: str, label: str, published: str = "") -> DatasetEntry:
    load = partial(load_graphs, name=name)
    return DatasetEntry(load=load, label=label, kind="network", pairs=True, published=published)


DATASETS: dict[str, DatasetEntry] = {
    "adult": _table("adult", "Adult"),
    "bank": _table("bank", "Bank"),
    "compas": _table("compas", "COMPAS"),
    "mnist": DatasetEntry(
        load=mnist, label="MNIST 3/8 pairs", kind="picture", pairs=True, published="MNIST"
    ),
    "cifar10": DatasetEntry(load=cifar10, label="CIFAR-10", kind="picture", published="CIFAR-10"),
    "oct": DatasetEntry(
        load=retinal_scans, label="retinal OCT (concepts)", kind="picture", published="ROCT"
    ),
    "abide": _graphs("abide", "ABIDE brain networks, age", "ADHD"),
    "abide-diagnosis": _graphs("abide-diagnosis", "ABIDE brain networks, diagnosis"),
    "cnp": _graphs("cnp", "CNP brain networks", "BP"),
    "kki": _graphs("kki", "ADHD-200 brain networks, KKI"),
    "ohsu": _graphs("ohsu", "ADHD-200 brain networks, OHSU"),
    "peking": _graphs("peking", "ADHD-200 brain networks, Peking"),
}
