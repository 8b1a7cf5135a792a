"""Data: the sets known by name, the user's own tables and pictures, and how they are divided."""

from r2et.data.builtin import DATASETS, load
from r2et.data.collection import Collection
from r2et.data.dataset import Dataset, Feature, Part, Scale, Split
from r2et.data.frames import from_frame, read_csv
from r2et.data.graphs import read_networks
from r2et.data.images import read_folder, read_picture

__all__ = [
    "DATASETS",
    "Collection",
    "Dataset",
    "Feature",
    "Part",
    "Scale",
    "Split",
    "from_frame",
    "load",
    "read_csv",
    "read_folder",
    "read_networks",
    "read_picture",
]
