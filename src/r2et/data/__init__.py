"""Data: the sets known by name, the user's own tables and pictures, and how they are divided."""

from r2et.data.builtin import DATASETS, load, read_items
from r2et.data.dataset import Dataset, Part, Split
from r2et.data.features import Feature, Scale
from r2et.data.frames import from_frame, read_csv
from r2et.data.graphs import GraphFile, read_graphs
from r2et.data.images import read_folder, read_image
from r2et.data.structure import ItemStructure, TableStructure

__all__ = [
    "DATASETS",
    "Dataset",
    "Feature",
    "GraphFile",
    "ItemStructure",
    "Part",
    "Scale",
    "Split",
    "TableStructure",
    "from_frame",
    "load",
    "read_csv",
    "read_folder",
    "read_graphs",
    "read_image",
    "read_items",
]
