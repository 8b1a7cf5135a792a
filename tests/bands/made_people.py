"""Made-up people, whose outcome hangs on numbers, words and how both go together."""

from typing import Any

import numpy as np
import pandas as pd

WIDTH = {"age": (1, 2, 5), "hours": (1, 2, 5)}


def people(rows: int = 2600, seed: int = 0, classes: int = 2) -> tuple[pd.DataFrame, Any]:
    """A table, and the class of each row."""
    draw = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 70, rows),
            "hours": np.where(draw.random(rows) < 0.4, 40, draw.integers(20, 60, rows)),
            "job": draw.choice(["clerk", "cook", "smith"], rows),
            "home": draw.choice(["owned", "rented"], rows),
            "debts": draw.integers(0, 4, rows),
        }
    )
    score = (
        0.08 * (table.age - 40)
        + 0.06 * (table.hours - 40)
        + np.where((table.job == "cook") == (table.home == "owned"), 1.5, -1.5)
        - 0.4 * table.debts
    )
    noisy = score + draw.logistic(size=rows)
    return table, np.digitize(noisy, [0.3] if classes == 2 else [-1.0, 1.0])
