"""Models that people have, led back to the columns of their table: trees over cells, or sums.

What stands here has a form of which something can be proved. Any other model is asked, not read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from r2et.bands.attribute import WordBands
from r2et.core.arrays import Floats
from r2et.core.naming import nearest
from r2et.trees.cells import CellTrees
from r2et.trees.columns import over_cells
from r2et.trees.form import Ensemble
from r2et.trees.pipelines import Linear, Parts, calibrated, linear_parts, taken_apart
from r2et.trees.readers import read_trees, reader_of


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSum:
    """A linear model at the end of a pipeline, as a sum over the columns of the table."""

    parts: Parts
    linear: Linear

    def pieces(self, rows: pd.DataFrame) -> Floats:
        """What each column adds to each score: (N, m, outputs), rows as the pipeline takes them."""
        shown = self.parts.shown(rows)
        shown = np.asarray(shown.toarray() if hasattr(shown, "toarray") else shown, dtype=float)
        found = np.zeros((len(rows), len(self.parts.names), len(self.linear.coefficients)))
        for feature, source in enumerate(self.parts.sources):
            found[:, source] += shown[:, feature, None] * self.linear.coefficients[:, feature]
        return found

    def monotone(self, place: int) -> bool:
        """Whether what a column adds only rises, or only falls, as its number grows.

        Its range over an interval is then that of the two ends.
        """
        own = self.parts.features(place)
        rising = all(self.parts.rising[at] for at in own)
        coefficients = self.linear.coefficients[:, own]
        one_way = (coefficients >= 0).all(1) | (coefficients <= 0).all(1)
        return bool(rising and one_way.all())


def known_model(model: Any, rows: pd.DataFrame) -> CellTrees | LinearSum | None:
    """A fitted model whose form is known, over the columns of `rows`, None if it is not.

    Rows are as the model takes them. A calibrated model is the one that it calibrates if its
    log-odds are a line of that one's score.
    """
    parts = taken_apart(model, rows)
    if parts is None:
        return None
    estimator, slope, shift = parts.estimator, 1.0, 0.0
    line = calibrated(estimator)
    if line is not None:
        inner = taken_apart(line.estimator, _as_frame(parts.shown(rows)))
        if inner is None or (parts.steps and inner.steps):
            return None
        estimator, slope, shift = inner.estimator, line.slope, line.shift
        if not parts.steps:
            parts = inner
    linear = linear_parts(estimator)
    if linear is not None:
        if linear.scale != "log-odds":
            return None
        scaled = replace(
            linear,
            coefficients=slope * linear.coefficients,
            constant=slope * linear.constant + shift,
        )
        return LinearSum(parts=parts, linear=scaled)
    ensemble = read_trees(estimator) if reader_of(estimator) is not None else None
    if ensemble is None:
        return None
    if line is not None:
        if (line.of == "decision") != (ensemble.scale == "log-odds"):
            return None  # a line of a probability whose log-odds trees add up is none of theirs
        ensemble = _lined(ensemble, slope, shift)
    return _over_cells(ensemble, parts, rows)


def ensemble_model(ensemble: Ensemble, rows: pd.DataFrame) -> CellTrees:
    """The trees of a file, or of a model without a pipeline, over the columns of `rows`."""
    sources = tuple(range(len(ensemble.columns)))
    parts = Parts(
        estimator=None,
        names=tuple(str(name) for name in rows.columns),
        sources=sources,
        rising=tuple(each.words is None for each in ensemble.columns),
        steps=(),
        usual=rows[:1],
    )
    found = _over_cells(ensemble, parts, rows)
    assert found is not None  # each column is what trees see
    return found


def columns_taken(
    named: Sequence[str] | None, count: int | None, there: Sequence[str]
) -> list[str]:
    """The columns of a table that a model takes, by their names or, if it has none, in order.

    Libraries write some names otherwise: then letters and digits must be the same.
    """
    if named is not None:
        if set(named) <= set(there):
            return list(named)
        plain = {_plain(name): name for name in there}
        if len(plain) == len(there) and {_plain(name) for name in named} <= set(plain):
            return [plain[_plain(name)] for name in named]
        numbered = all(re.fullmatch(r"(x|f|Column_)?\d+", str(name)) for name in named)
        if not numbered:
            missing = next(name for name in named if name not in there)
            raise ValueError(
                f"the model takes a column {missing!r}, which the table lacks: "
                f"{nearest(missing, there)}"
            )
        count = len(named)
    if count is not None and count != len(there):
        raise ValueError(
            f"the model takes {count} columns and does not name them, but the table has "
            f"{len(there)}: leave out what it does not take, by target, id or drop."
        )
    return list(there)


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", str(name))


def _as_frame(shown: Any) -> pd.DataFrame:
    if isinstance(shown, pd.DataFrame):
        return shown
    return pd.DataFrame(shown.toarray() if hasattr(shown, "toarray") else np.asarray(shown))


def _lined(ensemble: Ensemble, slope: float, shift: float) -> Ensemble:
    """Trees whose score is a line of that of others."""
    return replace(
        ensemble,
        trees=tuple(replace(tree, value=slope * tree.value) for tree in ensemble.trees),
        constant=slope * ensemble.constant + shift,
        scale="log-odds",
        source=f"{ensemble.source}, calibrated",
    )


def _over_cells(ensemble: Ensemble, parts: Parts, rows: pd.DataFrame) -> CellTrees | None:
    """Trees over the cells of columns; None if a number has cells that are no intervals."""
    found = over_cells(ensemble, parts, rows[list(parts.names)])
    for each in found.attributes:
        kind = rows[each.name].dtype
        number = pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)
        if number and isinstance(each, WordBands) and not _is_native(ensemble, parts, each.name):
            return None
    return found


def _is_native(ensemble: Ensemble, parts: Parts, name: str) -> bool:
    """Whether trees themselves take the numbers of a column for words."""
    place = parts.names.index(name)
    return any(
        ensemble.columns[at].words is not None
        for at, source in enumerate(parts.sources)
        if source == place
    )
