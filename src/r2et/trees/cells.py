"""Tree ensembles over the cells that they tell apart, attribute by attribute.

An attribute is a column of the user's table, whatever a pipeline makes of it before trees see it.
Trees tell finitely many cells of it apart: of a number the intervals between all thresholds, of
words each by itself. In a cell nothing changes, so that what is said of one of its values is said
of all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from r2et.bands.attribute import Bands, NumberBands
from r2et.core.arrays import Codes, Floats
from r2et.data.cells import as_word
from r2et.trees.form import Scale
from r2et.trees.leaves import LeafTable


@dataclass(frozen=True, kw_only=True, eq=False)
class CellTrees:
    """An ensemble as a table of leaves over the cells of `attributes`.

    `classes` are called as the model calls them; of two there is one score, that of the second. Of
    a `reading` the first score is the one that is explained, and the second the one that decides.
    """

    attributes: tuple[Bands, ...]
    table: LeafTable
    classes: tuple[Any, ...]
    scale: Scale
    source: str
    reading: bool = False

    @property
    def names(self) -> list[str]:
        """The attributes."""
        return [each.name for each in self.attributes]

    def explained(self, phi: Floats) -> Floats:
        """Of contributions to all scores those that are told: (N, m, C)."""
        return phi[..., :1] if self.reading else phi

    def deciding(self, scores: Floats) -> Floats:
        """Of all scores those that decide: (..., C)."""
        return scores[..., 1:] if self.reading else scores

    def scores(self, cells: Codes) -> Floats:
        """The scores of cells that decide: (N, m) -> (N, C)."""
        return self.deciding(self.table.scores(cells))

    def values(self, rows: pd.DataFrame) -> list[Any]:
        """The values of each attribute: numbers, NaN where missing, and words."""
        found: list[Any] = []
        for each in self.attributes:
            own = rows[each.name]
            if isinstance(each, NumberBands):
                found.append(np.asarray(own.to_numpy(dtype=float, na_value=np.nan)))
            else:
                found.append(np.array([as_word(value) for value in own], dtype=object))
        return found

    def cells(self, rows: pd.DataFrame) -> Codes:
        """The cells of rows: (N, m)."""
        parts = [
            each.codes(own) for each, own in zip(self.attributes, self.values(rows), strict=True)
        ]
        return np.stack(parts, 1)
