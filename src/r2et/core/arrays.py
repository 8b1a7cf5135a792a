"""What arrays of numpy hold, and which of their numbers are different."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
Mask = NDArray[np.bool_]

MOST_MARKED = 20_000_000  # cells that are marked rather than sorted to see which are there


def different_keys(keys: Codes, most: int) -> tuple[Codes, Codes]:
    """The different keys, rising, and the place of each key among them, flat."""
    if most > MOST_MARKED:
        different, places = np.unique(keys, return_inverse=True)
        return different, places.ravel()
    seen = np.zeros(most, dtype=bool)
    seen[keys.ravel()] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[keys.ravel()]
