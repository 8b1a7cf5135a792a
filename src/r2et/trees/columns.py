"""An ensemble led back to the columns of a table: its cells, and what trees are shown of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from r2et.bands.attribute import Bands, NumberBands, WordBands
from r2et.core.arrays import Floats
from r2et.data.cells import as_word
from r2et.data.features import MISSING
from r2et.trees.cells import CellTrees
from r2et.trees.form import Column, Ensemble
from r2et.trees.leaves import leaf_table
from r2et.trees.pipelines import Parts, thresholds_in


def over_cells(ensemble: Ensemble, parts: Parts, rows: pd.DataFrame) -> CellTrees:
    """An ensemble over the cells of the columns that `parts` leads its features back to.

    `rows` show what kinds of values each column has. A number that a pipeline turns into features
    which do not rise with it has a cell for each value of `rows`; any other is refused later.
    """
    asked = np.concatenate([np.zeros(0, dtype=np.intp), *(t.feature for t in ensemble.trees)])
    thresholds = np.concatenate([np.zeros(0), *(t.threshold for t in ensemble.trees)])
    limits = [np.unique(thresholds[asked == at]) for at in range(len(parts.sources))]
    features: list[list[int]] = [[] for _ in parts.names]
    for feature, source in enumerate(parts.sources):
        features[source].append(feature)
    columns = [
        _Attribute(
            name=name,
            values=rows[name],
            columns=[ensemble.columns[at] for at in own],
            cuts=_cuts(parts, own, [limits[at] for at in own]),
            alone=partial(parts.alone, place),
        )
        for place, (name, own) in enumerate(zip(parts.names, features, strict=True))
    ]
    known = [each.known() for each in columns]
    shown = [own for _, own in known]
    table = leaf_table(ensemble.trees, shown, parts.sources, ensemble.constant)
    return CellTrees(
        attributes=tuple(bands for bands, _ in known),
        table=table,
        classes=ensemble.classes,
        scale=ensemble.scale,
        source=ensemble.source,
    )


def _cuts(parts: Parts, features: Sequence[int], limits: Sequence[Floats]) -> Floats | None:
    """The thresholds of features in the units of a number; None if they do not rise with it."""
    if not all(parts.rising[at] for at in features):
        return None
    found = [np.zeros(0)]
    for feature, own in zip(features, limits, strict=True):
        finite = own[np.isfinite(own)]
        if _is_shown_as_it_is(parts, feature):
            found.append(finite)
        elif len(own):
            # Below the first number whose feature is one, it is missing: another cell.
            found.append(thresholds_in(parts, feature, np.append(finite, -np.inf)))
    cuts = np.unique(np.concatenate(found))
    return np.asarray(cuts[np.isfinite(cuts)])


def _is_shown_as_it_is(parts: Parts, feature: int) -> bool:
    """Whether trees are shown a number itself, in double precision."""
    kind = parts.usual.dtypes.iloc[parts.sources[feature]]
    return not parts.steps and not (pd.api.types.is_float_dtype(kind) and kind.itemsize < 8)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Attribute:
    """A column of the table, and how trees are shown it."""

    name: str
    values: "pd.Series[Any]"
    columns: Sequence[Column]
    cuts: Floats | None
    alone: Callable[[Any], Any]

    def known(self) -> tuple[Bands, Floats]:
        """Its cells, and what trees are shown of each: (cells, features)."""
        types = pd.api.types
        number = types.is_numeric_dtype(self.values) and not types.is_bool_dtype(self.values)
        if not number or any(each.words is not None for each in self.columns):
            return self._words()
        return self._each_number() if self.cuts is None else self._number(self.cuts)

    def _number(self, cuts: Floats) -> tuple[Bands, Floats]:
        own = self.values.to_numpy(dtype=float, na_value=np.nan)
        there = own[~np.isnan(own)]
        below = np.nextafter(cuts[:1], -np.inf) if len(cuts) else np.zeros(1)
        # Some pipelines refuse missing values, which shall not be asked with others.
        shown = [self._shown(np.concatenate([below, cuts])), self._one(np.nan, float)[None]]
        bands = NumberBands(
            name=self.name,
            edges=tuple(cuts.tolist()),
            missing=True,
            whole=bool(len(there) and (there == np.round(there)).all()),
        )
        return bands, np.concatenate(shown)

    def _each_number(self) -> tuple[Bands, Floats]:
        """Each number of the table by itself, and a missing one; no other is known."""
        own = np.unique(self.values.dropna().to_numpy(dtype=float))
        shown = [self._shown(own), self._one(np.nan, float)[None]]
        labels = [*(as_word(value) for value in own.tolist()), MISSING]
        return WordBands(name=self.name, labels=tuple(labels)), np.concatenate(shown)

    def _words(self) -> tuple[Bands, Floats]:
        """Each word that the table or the model knows, an unknown one, and a missing one."""
        known: dict[str, Any] = {}
        for value in [*(w for each in self.columns for w in each.words or ()), *self.values]:
            if not pd.isna(value):
                known.setdefault(as_word(value), value)
        labels = [*known, MISSING]
        raw = [*known.values(), None]
        try:
            shown = self._shown(pd.Series(raw, dtype=object))
        except ValueError:  # one of them is refused: which, each says by itself
            shown = np.stack([self._one(value) for value in raw])
        unseen = self._one(_unknown(raw))
        bands = WordBands(name=self.name, labels=tuple(labels), other=True)
        return bands, np.concatenate([shown, unseen[None]])

    def _one(self, value: Any, kind: type = object) -> Floats:
        """What trees are shown of one value, all NaN if the pipeline refuses it."""
        try:
            found: Floats = self._shown(pd.Series([value], dtype=kind))[0]
        except ValueError:
            found = np.full(len(self.columns), np.nan)
        return found

    def _shown(self, values: Any) -> Floats:
        with np.errstate(all="ignore"):
            given = self.alone(values)
        parts = [
            column.numbers(given.iloc[:, at] if isinstance(given, pd.DataFrame) else given[:, at])
            for at, column in enumerate(self.columns)
        ]
        return np.stack(parts, 1) if parts else np.zeros((len(values), 0))


def _unknown(known: Sequence[Any]) -> str:
    """A word that is none of the known ones."""
    word = "a word that was not there"
    while word in known:
        word += "."
    return word
