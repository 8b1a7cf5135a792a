"""What trees say of rows, behind bands or as they are, and reasons that are those of one's band.

A model that may not be changed can still tell reasons that small changes leave alone: those of the
median person of each band. What it predicts is what it predicted before, so that such reasons are
those of a score that differs a little from the person's own, and by how much is told beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from r2et.bands.attribute import Bands, NumberBands
from r2et.bands.values import BandValues
from r2et.core.arrays import Codes, Floats
from r2et.core.reasons import Side, shown_as
from r2et.data.cells import as_word
from r2et.trees.cells import CellTrees
from r2et.trees.leaves import Asking, LeafTable

LARGEST_KEY = 2**62


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """Trees and where they are asked: behind the bands `front`, if there are any.

    Contributions alone are those of the bands of a `reading`, of people and of a reference.
    """

    trees: CellTrees
    front: BandValues | None = None
    reading: BandValues | None = None

    def score(self, rows: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        cells, index = different_cells(self._cells(rows, self.front))
        found: Floats = self.trees.table.scores(cells)[index, 0]
        return found

    def contributions(self, rows: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        bands = self.reading or self.front
        cells, index = different_cells(self._cells(rows, bands))
        table = self.trees.table
        found = [
            table.against(self._cells(each, bands)).contributions(cells)[index, :, 0]
            for each in references
        ]
        return np.stack(found)

    def _cells(self, rows: pd.DataFrame, bands: BandValues | None) -> Codes:
        return cells_of(self.trees, rows if bands is None else bands.transform(rows))


def cells_of(trees: CellTrees, rows: pd.DataFrame) -> Codes:
    """The cells of rows, each word being looked up once: (N, m)."""
    found = []
    for each in trees.attributes:
        if isinstance(each, NumberBands):
            found.append(each.codes(rows[each.name].to_numpy(dtype=np.float64, na_value=np.nan)))
        else:
            index, different = pd.factorize(rows[each.name], use_na_sentinel=False)
            words = np.array([as_word(value) for value in different], dtype=object)
            found.append(each.codes(words)[index])
    return np.stack(found, 1)


def different_cells(cells: Codes) -> tuple[Codes, Codes]:
    """The different rows of cells, and which of them each row is."""
    keys = np.zeros(len(cells), dtype=np.int64)
    for column in cells.T:
        count = int(column.max(initial=0)) + 1
        if (int(keys.max(initial=0)) + 1) * count > LARGEST_KEY:
            keys = pd.factorize(keys)[0]
        keys = keys * count + column
    index = pd.factorize(keys)[0]
    first = np.zeros(int(index.max(initial=-1)) + 1, dtype=np.intp)
    first[index[::-1]] = np.arange(len(cells))[::-1]
    return cells[first], index


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A model as it is, and reasons that are those of the median person of each band.

    What it predicts is what the model predicts. `reference` are the rows that contributions are
    told against, as the bands show them.
    """

    model: Any
    bands: BandValues
    reference: pd.DataFrame
    told: Told

    @property
    def classes_(self) -> Any:
        """The classes of the model."""
        return self.model.classes_

    @property
    def names(self) -> list[str]:
        """The attributes that contributions are of."""
        return self.told.trees.names

    def predict(self, X: Any) -> Any:
        """What the model predicts."""
        return self.model.predict(X)

    def predict_proba(self, X: Any) -> Any:
        """The model's own probabilities."""
        return self.model.predict_proba(X)

    def scores(self, X: pd.DataFrame) -> Floats:
        """The model's own log-odds of the second class: (N,)."""
        return self.told.score(X)

    def contributions(self, X: pd.DataFrame) -> Floats:
        """What each attribute adds to the log-odds of the second class in one's band: (N, m)."""
        found: Floats = self.told.contributions(X, [self.reference])[0]
        return found

    def difference(self, X: pd.DataFrame) -> Floats:
        """The score of the band's median person less one's own, in log-odds: (N,)."""
        return self.told.score(self.bands.transform(X)) - self.told.score(X)

    def beside(self, X: pd.DataFrame, k: int = 3, side: Side = "against") -> pd.DataFrame:
        """Each person's own score and reasons beside those of the band: a row for each."""
        signs = np.where(self.scores(X) >= 0, 1.0, -1.0)[:, None]

        def reasons(phi: Floats) -> list[tuple[str, ...]]:
            order = np.argsort(-shown_as(signs * phi, side), 1, kind="stable")[:, :k]
            return [tuple(self.names[place] for place in row) for row in order.tolist()]

        own = replace(self.told, reading=None).contributions(X, [self.reference])[0]
        return pd.DataFrame(
            {
                "score": self.scores(X),
                "band's score": self.scores(X) + self.difference(X),
                "reasons": reasons(own),
                "band's reasons": reasons(self.contributions(X)),
            },
            index=X.index,
        )

    @property
    def cells(self) -> CellTrees:
        """The trees over cells, in which bands are explained and the model itself decides."""
        return read_through(self.told.trees, self.bands)


def read_through(trees: CellTrees, bands: BandValues) -> CellTrees:
    """Trees of two classes with two scores: that of the band's median person, and one's own.

    Every leaf is there twice, once as it is asked about the band and once about the person.
    """
    attributes, seen, own = [], list[Codes](), list[Codes]()
    for each in trees.attributes:
        finer, values = _finer(each, bands.edges_.get(each.name))
        attributes.append(finer)
        own.append(np.arange(each.count) if values is None else _code(each, values))
        shown = None if values is None else bands.valued(each.name, values)
        seen.append(own[-1] if shown is None else _code(each, shown))
    table = trees.table
    parts = zip(table.admitted, seen, own, strict=True)
    admitted = tuple(np.concatenate([mask[:, one], mask[:, two]]) for mask, one, two in parts)
    again = max((int(group.tree.max()) + 1 for group in table.groups), default=0)
    starts, counts = table.starts[:-1], np.diff(table.starts)
    groups = []
    for group in table.groups:
        # Questions of an attribute are first those about the band, then those about the person.
        about_band = group.question + starts[group.attribute]
        about_person = about_band + counts[group.attribute]
        groups.append(
            Asking(
                value=np.tile(group.value, 2),
                output=np.concatenate([group.output, group.output + 1]),
                tree=np.concatenate([group.tree, group.tree + again]),
                attribute=np.tile(group.attribute, (2, 1)),
                question=np.concatenate([about_band, about_person]),
                reach=None,
            )
        )
    both = LeafTable(admitted=admitted, groups=tuple(groups), constant=np.repeat(table.constant, 2))
    return replace(
        trees,
        attributes=tuple(attributes),
        table=both,
        reading=True,
        source=f"{trees.source}, read through bands",
    )


def _finer(bands: Bands, edges: Floats | None) -> tuple[Bands, Floats | None]:
    """The cells of an attribute cut at more edges, and a value of each; None if there are none."""
    if edges is None or not isinstance(bands, NumberBands):
        return bands, None
    every = np.unique(np.concatenate([np.array(bands.edges), edges]))
    first = np.nextafter(every[:1], -np.inf) if len(every) else np.zeros(1)
    return replace(bands, edges=tuple(every.tolist())), np.concatenate([first, every, [np.nan]])


def _code(bands: Bands, values: Floats) -> Codes:
    assert isinstance(bands, NumberBands)
    return bands.codes(values)
