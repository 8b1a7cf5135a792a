"""Data: the embedded sets, the user's own tables, and how both are cut and scaled."""

from r2et.data.dataset import Dataset, Feature, Part, Scale, Split
from r2et.data.embedded import DATASETS, load
from r2et.data.frames import from_frame, read_csv

__all__ = [
    "DATASETS",
    "Dataset",
    "Feature",
    "Part",
    "Scale",
    "Split",
    "from_frame",
    "load",
    "read_csv",
]
