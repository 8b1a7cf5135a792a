"""One form for the trees of all libraries: what each node asks, exactly as the library does.

Libraries compare in single or double precision, by `<` or by `<=`. Every such question about a
number is, of numbers in double precision, whether the number is less than one threshold: `below`
and `single_below` give it. A tree of any library then asks one kind of question about numbers, and
one about words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import expit

from r2et.core.arrays import Codes, Floats, Mask
from r2et.core.naming import nearest

UNSEEN = -1.0
"""Stands for a word that the model does not know."""

Scale = Literal["log-odds", "probability", "score"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """A column that trees look at: numbers, or the `words` that it knows, in their order.

    `words` are what a user's table holds; trees ask for their places.
    """

    name: str
    words: tuple[Any, ...] | None = None

    def numbers(self, values: Any) -> Floats:
        """Values as trees compare them, (N,): NaN is missing, of words `UNSEEN` an unknown one.

        Refused is a column of numbers that holds something else, and one of codes, whole numbers
        that stand for words, that holds what is no code: libraries would cut 2.5 to 2.
        """
        if self.words is None:
            try:
                return np.asarray(pd.Series(values).to_numpy(dtype=float, na_value=np.nan))
            except (TypeError, ValueError) as problem:
                raise ValueError(
                    f"column {self.name!r} must hold numbers, as it did when the model learnt: "
                    f"{problem}."
                ) from problem
        series = pd.Series(values, dtype=object)
        places = pd.Index(list(self.words), dtype=object).get_indexer(pd.Index(series))
        found: Floats = places.astype(np.float64)  # -1 where a word is not there
        found[series.isna().to_numpy()] = np.nan
        if self.words and all(_is_whole(word) for word in self.words):
            wrong = [each for each in series[found == UNSEEN] if not _is_whole(each)]
            if wrong:
                raise ValueError(
                    f"column {self.name!r} must hold whole numbers that stand for words, as it did "
                    f"when the model learnt, got {wrong[0]!r}."
                )
        return found


def _is_whole(value: Any) -> bool:
    """Whether something is a whole number, as truth values are."""
    if isinstance(value, float | np.floating):
        return bool(np.isfinite(value) and value == np.floor(value))
    return isinstance(value, int | np.integer | np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """One tree, by its n nodes, the first being the root.

    A node asks about its `feature`, the number of a column, and is a leaf where that is -1. A
    number goes to the `left` if it is less than the `threshold`, as all are than an infinite one,
    else to the `right`; where `words`, by the number of a node, has a set, a word does if its place
    is in it, an unknown one if `UNSEEN` is. Missing values go to the left where `missing_left` says
    so. Leaves add `value` to the score of the class `output`. `cover` is how many training rows, or
    how much of their weight, came through each node, None if the model does not tell.
    """

    feature: Codes
    threshold: Floats
    missing_left: Mask
    left: Codes
    right: Codes
    value: Floats
    words: dict[int, frozenset[float]]
    cover: Floats | None = None
    output: int = 0

    def goes_left(self, node: int, numbers: Floats) -> Mask:
        """Which values a node sends to its left: (N,)."""
        if node in self.words:
            inside = np.isin(numbers, list(self.words[node]))
        else:
            inside = is_below(numbers, self.threshold[node])
        found: Mask = np.where(np.isnan(numbers), self.missing_left[node], inside)
        return found

    def leaf_of(self, numbers: Floats) -> Codes:
        """The number of the leaf that each row comes to: (N, columns) -> (N,)."""
        at = np.zeros(len(numbers), dtype=np.intp)
        asks_words = np.zeros(len(self.feature), dtype=bool)
        asks_words[list(self.words)] = True
        going = np.flatnonzero(self.feature[at] >= 0)
        while len(going):  # all rows go down a level at once
            node = at[going]
            values = numbers[going, self.feature[node]]
            inside = is_below(values, self.threshold[node])
            left = np.where(np.isnan(values), self.missing_left[node], inside)
            for each in np.unique(node[asks_words[node]]).tolist():
                left[node == each] = self.goes_left(each, values[node == each])
            at[going] = np.where(left, self.left[node], self.right[node])
            going = going[self.feature[at[going]] >= 0]
        return at


@dataclass(frozen=True, kw_only=True, eq=False)
class Ensemble:
    """Trees whose leaves add up to scores, together with a constant for each of them.

    Of two classes there is one score, that of the second, of more one for each. On the scale
    "log-odds" it is that of a logistic model, of several classes of a softmax; on the scale
    "probability" scores are the probabilities themselves, as those of forests. `classes` are the
    labels that the model predicts.
    """

    columns: tuple[Column, ...]
    trees: tuple[Tree, ...]
    constant: Floats
    scale: Scale
    classes: tuple[Any, ...]
    source: str

    def numbers(self, rows: Any) -> Floats:
        """Rows of a table, or of an array, as trees compare them: (N, columns)."""
        if isinstance(rows, pd.DataFrame):
            names = [str(name) for name in rows.columns]
            own = [rows.iloc[:, place_of(each.name, names)] for each in self.columns]
        else:
            given = np.asarray(rows)
            if given.ndim != 2 or given.shape[1] != len(self.columns):
                raise ValueError(
                    f"the model takes rows of {len(self.columns)} columns, got an array of shape "
                    f"{given.shape}."
                )
            own = list(given.T)
        parts = [column.numbers(each) for column, each in zip(self.columns, own, strict=True)]
        return np.stack(parts, 1) if parts else np.zeros((len(rows), 0))

    def __call__(self, numbers: Floats) -> Floats:
        """Scores of rows as trees compare them: (N, columns) -> (N, outputs)."""
        found = np.tile(self.constant, (len(numbers), 1))
        for tree in self.trees:
            found[:, tree.output] += tree.value[tree.leaf_of(numbers)]
        return found

    def probabilities(self, numbers: Floats) -> Floats:
        """The probability of each class: (N, C)."""
        scores = self(numbers)
        if scores.shape[1] == 1:
            second = scores[:, 0]
            if self.scale == "log-odds":
                second = expit(second)
            return np.stack([1 - second, second], 1)
        if self.scale == "probability":
            return scores
        raised = np.exp(scores - scores.max(1, keepdims=True))
        found: Floats = raised / raised.sum(1, keepdims=True)
        return found


def place_of(name: str, names: Sequence[str]) -> int:
    """The place among names of the column that a model knows by one of them.

    LightGBM keeps "mean_radius" of a column "mean radius".
    """
    if name in names:
        return names.index(name)
    changed = [each.replace(" ", "_") for each in names]
    if changed.count(name) != 1:
        raise ValueError(f"the model takes a column {name!r}: {nearest(name, names)}")
    return changed.index(name)


# --- thresholds ---------------------------------------------------------------------------------


def is_below(numbers: Floats, threshold: Any) -> Mask:
    """Which numbers are less than thresholds: (N,). An infinite one is above infinity, too.

    Splits of missing values from all others compare with infinity by `<=`.
    """
    found: Mask = (numbers < threshold) | np.isposinf(threshold)
    return found


def below(threshold: Any) -> Floats:
    """Thresholds t' such that x < t' exactly where x <= `threshold`, in double precision."""
    return np.nextafter(np.asarray(threshold, dtype=np.float64), np.inf)


def single_below(threshold: Any, *, equal: bool) -> Floats:
    """Thresholds of a comparison after numbers are rounded to single precision.

    The t' such that, of numbers x in double precision, x < t' exactly where the nearest single
    precision number is less than `threshold`, or with `equal` at most that.
    """
    limit = np.asarray(threshold, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        single = limit.astype(np.float32)
        # The first single precision number that is no longer to the left.
        stays = single.astype(np.float64)
        inside = stays <= limit if equal else stays < limit
        up = np.nextafter(single, np.float32(np.inf))
        first = np.where(inside, up, single).astype(np.float32)
        before = np.nextafter(first, np.float32(-np.inf)).astype(np.float64)
        # Half-way between both, numbers are rounded to the one whose last bit is 0.
        wide = first.astype(np.float64)
        middle = before + (wide - before) / 2
    largest = float(np.finfo(np.float32).max)
    spacing = largest - float(np.nextafter(np.float32(largest), np.float32(0)))
    middle = np.where(np.isposinf(wide), largest + spacing / 2, middle)
    middle = np.where(np.isneginf(before), -(largest + spacing / 2), middle)
    even = first.view(np.uint32) % 2 == 0
    # Rounded up at the middle: the middle itself is no longer to the left.
    found: Floats = np.where(even, middle, np.nextafter(middle, np.inf))
    found = np.where(np.isneginf(wide), -np.inf, found)
    return np.where(np.isposinf(limit) & equal, np.inf, found)


def as_tree(
    *,
    feature: Sequence[int],
    threshold: Any,
    left: Sequence[int],
    right: Sequence[int],
    value: Any,
    missing_left: Any = False,
    words: dict[int, frozenset[float]] | None = None,
    cover: Any = None,
    output: int = 0,
) -> Tree:
    """A tree of lists, its nodes put in an order in which parents come before their children.

    Nodes that no way leads to, as pruning leaves them, are left out. Refused are nodes that more
    than one way leads to, and numbers that are none.
    """
    size = len(feature)
    given = {
        "feature": np.asarray(feature, dtype=np.intp),
        "threshold": np.asarray(threshold, dtype=np.float64),
        "missing_left": np.asarray(missing_left, dtype=bool),
        "left": np.asarray(left, dtype=np.intp),
        "right": np.asarray(right, dtype=np.intp),
        "value": np.asarray(value, dtype=np.float64),
        "cover": np.asarray(0.0 if cover is None else cover, dtype=np.float64),
    }
    for name in ("missing_left", "cover"):  # of which one may stand for all
        if not given[name].ndim:
            given[name] = np.full(size, given[name])
    if any(each.shape != (size,) for each in given.values()) or not size:
        raise ValueError("the nodes of a tree are told by lists of different lengths, or of none.")
    order, waiting = list[int](), [0]
    while waiting:
        node = waiting.pop()
        if not 0 <= node < size or len(order) >= size:
            raise ValueError("a tree has a node that leads nowhere, or back.")
        order.append(node)
        if given["feature"][node] >= 0:
            waiting += [int(given["right"][node]), int(given["left"][node])]
    if len(set(order)) != len(order):
        raise ValueError("a tree has a node that two ways lead to.")
    place = np.full(size, -1, dtype=np.intp)
    place[order] = np.arange(len(order))
    asks = given["feature"][order] >= 0
    is_word = np.array([node in (words or {}) for node in order], dtype=bool)
    if np.isnan(given["threshold"][order][asks & ~is_word]).any():
        raise ValueError("a tree has a threshold that is no number.")
    if not np.isfinite(given["value"][order][~asks]).all():
        raise ValueError("a tree has a leaf whose value is no finite number.")
    came = given["cover"][order]
    if not (np.isfinite(came) & (came >= 0)).all():
        raise ValueError("a tree has a node whose cover is below 0, or no finite number.")
    return Tree(
        feature=given["feature"][order],
        threshold=given["threshold"][order],
        missing_left=given["missing_left"][order],
        left=np.where(asks, place[np.where(asks, given["left"][order], 0)], -1),
        right=np.where(asks, place[np.where(asks, given["right"][order], 0)], -1),
        value=np.where(asks, 0.0, given["value"][order]),
        words={int(place[node]): own for node, own in (words or {}).items() if place[node] >= 0},
        cover=None if cover is None else came,
        output=output,
    )
