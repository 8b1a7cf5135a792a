"""A transformer that gives every number of a band the same value, and leaves all else as it is."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from r2et.core.arrays import Floats
from r2et.core.naming import nearest


class BandValues(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The same table, in which numbers of a band are those of its median person.

    `edges`, by column, are where bands begin. Other columns, missing values, the names and the
    types of words stay as they are: whatever a model was told of the table, such as which columns
    hold categories or must rise, holds behind the bands, too.

    `values_` has for each column the value of each band; a band that nobody was in when it was
    fitted has its own middle, or the edge that it ends or begins with.
    """

    def __init__(self, edges: Mapping[str, Sequence[float]] | None = None) -> None:
        self.edges = edges

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the value of each band."""
        frame = self._frame(X, reset=True)
        names = [str(name) for name in frame.columns]
        self.edges_: dict[str, Floats] = {}
        self.values_: dict[str, Floats] = {}
        for name, given in (self.edges or {}).items():
            if name not in names:
                raise ValueError(f"edges name the column {name!r}: {nearest(str(name), names)}")
            edges = np.asarray(list(given), dtype=np.float64)
            if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
                raise ValueError(f"edges of {name!r} must be finite and rising, got {given!r}.")
            self.edges_[name] = edges
            self.values_[name] = medians(_numbers(frame.iloc[:, names.index(name)]), edges)
        return self

    def transform(self, X: Any) -> Any:
        """The table with the value of each number's band, a frame if it was one."""
        check_is_fitted(self)
        frame = self._frame(X, reset=False)
        found = frame.copy()
        for place, name in enumerate(str(each) for each in frame.columns):
            if name in self.edges_:
                found.isetitem(place, self.valued(name, _numbers(frame.iloc[:, place])))
        return found if isinstance(X, pd.DataFrame) else found.to_numpy()

    def valued(self, name: str, numbers: Floats) -> Floats:
        """The values of the bands of some numbers of a column, NaN where one is missing: (N,)."""
        band = np.searchsorted(self.edges_[name], numbers, side="right")
        found: Floats = np.where(
            np.isnan(numbers), np.nan, self.values_[name][band.clip(max=len(self.edges_[name]))]
        )
        return found

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, skip_check_array=True, reset=reset)
            return X
        array = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        return pd.DataFrame(array, columns=[f"x{place}" for place in range(array.shape[1])])

    def __sklearn_tags__(self) -> Any:
        """It takes missing values and words."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


def _numbers(column: "pd.Series[Any]") -> Floats:
    found: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def medians(numbers: Floats, edges: Floats) -> Floats:
    """The value that half of the people of each band have no more than: (E + 1,)."""
    known = np.sort(numbers[~np.isnan(numbers)])
    ends = np.concatenate([[0], np.searchsorted(known, edges, side="left"), [len(known)]])
    found = np.empty(len(edges) + 1)
    for band, (first, last) in enumerate(pairwise(ends)):
        if first < last:
            found[band] = known[(first + last - 1) // 2]
        elif not len(edges):
            found[band] = 0.0
        else:
            inside = edges[max(band - 1, 0) : band + 1]
            # The first band ends below its edge, all others begin with theirs.
            found[band] = inside.mean() if band else np.nextafter(edges[0], -np.inf)
    return found
