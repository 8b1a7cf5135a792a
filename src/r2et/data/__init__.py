"""Data: the sets known by name, the user's own tables and pictures, and how they are divided.

`from_frame`, `read_csv` and `open_dataset` bring pandas with them, and are imported when asked for.
"""

from typing import TYPE_CHECKING, Any

from r2et.data.builtin import DATASETS, DatasetEntry, load, read_items
from r2et.data.dataset import Dataset, Part, Split
from r2et.data.features import Feature, Scale
from r2et.data.graphs import GraphFile, read_graphs
from r2et.data.images import read_folder, read_image
from r2et.data.structure import ItemStructure, TableStructure

if TYPE_CHECKING:
    from r2et.data.frames import from_frame, read_csv
    from r2et.data.opening import open_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetEntry",
    "Feature",
    "GraphFile",
    "ItemStructure",
    "Part",
    "Scale",
    "Split",
    "TableStructure",
    "from_frame",
    "load",
    "open_dataset",
    "read_csv",
    "read_folder",
    "read_graphs",
    "read_image",
    "read_items",
]


def __getattr__(name: str) -> Any:
    """What makes a data set of a table of the user's own."""
    if name in ("from_frame", "read_csv"):
        from r2et.data import frames

        return getattr(frames, name)
    if name == "open_dataset":
        from r2et.data.opening import open_dataset

        return open_dataset
    raise AttributeError(f"module 'r2et.data' has no attribute {name!r}")
