"""A data set by whatever it is called: a name that the package knows, or a path of one's own."""

from collections.abc import Sequence
from pathlib import Path

from r2et.core.naming import nearest
from r2et.data.builtin import DATASETS, load, read_items
from r2et.data.dataset import Dataset
from r2et.data.frames import read_csv


def open_dataset(
    data: str | Path,
    *,
    target: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    size: tuple[int, int] | None = None,
) -> Dataset:
    """An entry of DATASETS, or the user's own CSV file, folder of images or file of graphs.

    Of a CSV file `target` is the column to be predicted, `drop` are columns to leave out and
    `categories` those of numbers that are categories; images are made `size`, height and width.
    """
    path = Path(data)
    if str(data) in DATASETS:
        return load(str(data))
    if (items := read_items(path, size)) is not None:
        return items
    if target is not None:
        return read_csv(path, target=target, name=path.stem, drop=drop, categories=categories)
    if path.suffix or path.exists():
        raise ValueError(f"name the column of {path} to be predicted as its target (--target).")
    raise ValueError(
        f"unknown data set {str(data)!r}: {nearest(str(data), DATASETS)} "
        "For a CSV file give its path and its target (--target)."
    )
