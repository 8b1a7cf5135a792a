"""All data sets by name, and the tables that travel with the package: adult, bank, compas."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from r2et.core.naming import nearest
from r2et.data.dataset import Dataset, TableStructure
from r2et.data.graphs import GRAPH_FILES, STORED, load_graphs, read_graphs
from r2et.data.images import IMAGES, read_folder
from r2et.data.roots import data_root
from r2et.data.schema import Attribute, Category, Numeric, Schema


@dataclass(frozen=True, kw_only=True)
class Table:
    """What the arrays of an embedded file mean; the target is coded by the place in `classes`.

    Numbers stand there as they are, words by their places among the labels of their attribute.
    """

    attributes: tuple[Attribute, ...]
    target: str
    classes: tuple[str, ...]
    source: str


def number(name: str, unit: str = "") -> Attribute:
    """An attribute of numbers, of which the range is told by the file."""
    return Numeric(name=name, low=0.0, high=0.0, unit=unit)


def binary(name: str, zero: str = "no", one: str = "yes") -> Attribute:
    """An attribute of two values in one column."""
    return Category(name=name, labels=(zero, one), binary=True)


def category(name: str, *values: str) -> Attribute:
    """An attribute with one column for each value."""
    return Category(name=name, labels=values)


TABLES: dict[str, Table] = {
    "adult": Table(
        attributes=(
            number("age", "years"),
            number("hours per week", "hours"),
            category("work class", "Government", "Other/Unknown", "Private", "Self-Employed"),
            category(
                "education",
                "Assoc",
                "Bachelors",
                "Doctorate",
                "HS-grad",
                "Masters",
                "Prof-school",
                "School",
                "Some-college",
            ),
            category("marital status", "Divorced", "Married", "Separated", "Single", "Widowed"),
            category(
                "occupation",
                "Blue-Collar",
                "Other/Unknown",
                "Professional",
                "Sales",
                "Service",
                "White-Collar",
            ),
            category("race", "White", "Other"),
            binary("gender", "Female", "Male"),
        ),
        target="income",
        classes=("<=50K", ">50K"),
        source="Becker and Kohavi (1996), Adult, UCI Machine Learning Repository, "
        "doi 10.24432/C5XW20, CC BY 4.0; categories grouped.",
    ),
    "bank": Table(
        attributes=(
            number("age", "years"),
            number("balance", "euros"),
            category(
                "job",
                "White-collar",
                "Technician",
                "Blue-collar/service",
                "Self-employed",
                "Retired/student",
                "Not working/unknown",
            ),
            category("marital status", "divorced", "married", "single"),
            category("education", "primary", "secondary", "tertiary", "unknown"),
            binary("default"),
            binary("housing loan"),
            binary("personal loan"),
        ),
        target="subscribes to a term deposit",
        classes=("no", "yes"),
        source="Moro, Rita and Cortez (2014), Bank Marketing, UCI Machine Learning Repository, "
        "doi 10.24432/C5K306, CC BY 4.0; client attributes only, jobs grouped.",
    ),
    "compas": Table(
        attributes=(
            category("age group", "under 25", "25 to 45", "over 45"),
            category("race", "African-American", "Caucasian", "Hispanic", "Other"),
            binary("sex", "Female", "Male"),
            binary("charge degree", "misdemeanour", "felony"),
            number("priors"),
            number("juvenile felonies"),
            number("juvenile misdemeanours"),
            number("juvenile other offences"),
            number("length of stay", "days"),
            binary("reoffended within two years"),
            binary("violent reoffence"),
        ),
        target="COMPAS risk score",
        classes=("low", "medium or high"),
        source="ProPublica (2016), COMPAS Recidivism Risk Score Data, public records of Broward "
        "County, Florida, no licence stated; ProPublica's filter, no names, dates or case numbers.",
    ),
}


def read(name: str) -> Dataset:
    """The embedded data set of that name."""
    table = TABLES[name]
    path = resources.files("r2et.data") / "files" / f"{name}.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        stored = {key: arrays[key].astype(np.int64) for key in arrays.files}
    schema = Schema(tuple(_ranged(each, stored[each.name]) for each in table.attributes))
    x = np.concatenate(
        [
            each.of_places(stored[each.name])
            if isinstance(each, Category)
            else each.raw(stored[each.name].astype(np.float64))
            for each in schema.attributes
        ],
        axis=1,
    )
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(stored[table.target]),
        structure=TableStructure(features=schema.features),
        classes=table.classes,
        target=table.target,
        source=table.source,
    )


def _ranged(attribute: Attribute, stored: NDArray[np.int64]) -> Attribute:
    if isinstance(attribute, Category):
        return attribute
    return replace(attribute, low=float(stored.min()), high=float(stored.max()))


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
