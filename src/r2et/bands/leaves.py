"""Leaves of boosted trees as boxes of cells, and exact Shapley values by them.

A leaf asks a few attributes whether their bands are among some. Its Shapley values depend on which
of these questions a person answers with yes, and which each row of a reference does: of so few
patterns all are known, however many attributes, people and rows of a reference there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from r2et.bands.attribute import Codes, Floats

Mask = NDArray[np.bool_]

MOST_ASKED = 8
"""Attributes that one leaf asks: of more, the patterns are too many to be tabulated."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaf:
    """What is added where the band of each of some attributes is one that its mask marks."""

    value: float
    attributes: tuple[int, ...]
    masks: tuple[Mask, ...]

    def pattern(self, cells: Codes) -> Codes:
        """Which questions cells answer with yes, as bits: (..., m) -> (...)."""
        found = np.zeros(cells.shape[:-1], dtype=np.intp)
        for bit, (attribute, mask) in enumerate(zip(self.attributes, self.masks, strict=True)):
            found |= mask[cells[..., attribute]].astype(np.intp) << bit
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaves:
    """The leaves of an ensemble, whose values add up to its score together with a constant."""

    leaves: Sequence[Leaf]
    constant: float

    def __call__(self, cells: Codes) -> Floats:
        """The score of cells: (N, m) -> (N,)."""
        said = np.full(len(cells), self.constant)
        for leaf in self.leaves:
            said += leaf.value * (leaf.pattern(cells) == 2 ** len(leaf.masks) - 1)
        return said

    def contributions(self, cells: Codes, references: Codes) -> Floats:
        """Shapley values, (D, N, m), each the mean over one of D references, (D, R, m).

        Against one row, with X the questions that only the person answers with yes and R those that
        only the row does, a leaf of value v that one of both answers with yes throughout adds
        v (|X| - 1)! |R|! / (|X| + |R|)! to those of X, and takes v |X|! (|R| - 1)! / (|X| + |R|)!
        from those of R.
        """
        found = np.zeros((len(references), *cells.shape))
        for leaf in self.leaves:
            asked = len(leaf.attributes)
            patterns = 2**asked
            here, there = leaf.pattern(cells), leaf.pattern(references)
            offset = patterns * np.arange(len(references))[:, None]
            counts = np.bincount((there + offset).ravel(), minlength=patterns * len(references))
            shares = counts.reshape(len(references), patterns) / references.shape[1]
            table = leaf.value * np.tensordot(shares, pattern_weights(asked), (1, 1))
            for bit, attribute in enumerate(leaf.attributes):
                found[:, :, attribute] += table[:, here, bit]
        return found


@lru_cache(maxsize=16)
def pattern_weights(asked: int) -> Floats:
    """What a leaf of value 1 adds for each pattern of a person's and of a row's: (P, P, asked)."""
    bits = (np.arange(2**asked)[:, None] >> np.arange(asked)) % 2 == 1
    only_here, only_there = bits[:, None] & ~bits, ~bits[:, None] & bits
    complete = (bits[:, None] | bits).all(-1)
    x, r = only_here.sum(-1), only_there.sum(-1)
    gain, loss = np.zeros(x.shape), np.zeros(x.shape)
    for p in range(asked + 1):
        for q in range(asked + 1 - p):
            some = (x == p) & (r == q) & complete
            if p:
                gain[some] = factorial(p - 1) * factorial(q) / factorial(p + q)
            if q:
                loss[some] = factorial(p) * factorial(q - 1) / factorial(p + q)
    found: Floats = gain[..., None] * only_here - loss[..., None] * only_there
    return found


def leaves_of(
    model: HistGradientBoostingClassifier,
    shown: Sequence[Floats],
    attributes: Sequence[int],
    most_asked: int = MOST_ASKED,
) -> Leaves | None:
    """The leaves of boosted trees that are shown, in each column, one value for each band.

    `shown` are those values, (bands,), and `attributes` says which one each column is; a column of
    a single value asks nothing. None if trees cannot be read, or if one asks more attributes than
    `most_asked` at once.
    """
    try:
        seen = _seen(model, shown)
        trees = [tree for (tree,) in model._predictors]
        constant = float(np.ravel(model._baseline_prediction)[0])
        leaves = [leaf for tree in trees for leaf in _leaves(tree, seen, attributes)]
    except (AttributeError, TypeError, ValueError, IndexError, KeyError):
        return None
    if any(len(leaf.attributes) > most_asked for leaf in leaves):
        return None
    asking = [leaf for leaf in leaves if leaf.attributes]
    constant += sum(leaf.value for leaf in leaves if not leaf.attributes)
    return Leaves(leaves=asking, constant=constant)


def _seen(model: HistGradientBoostingClassifier, shown: Sequence[Floats]) -> list[Floats]:
    """What the trees see of the values of each column: words by numbers of their own."""
    most = max(len(values) for values in shown)
    rows = np.stack([np.resize(values, most) for values in shown], 1)
    encoded = np.asarray(model._preprocess_X(rows, reset=False), dtype=np.float64)
    return [encoded[: len(values), column] for column, values in enumerate(shown)]


def _leaves(tree: Any, seen: Sequence[Floats], attributes: Sequence[int]) -> Iterator[Leaf]:
    """The leaves of one tree that some cell reaches."""
    waiting: list[tuple[int, dict[int, Mask]]] = [(0, {})]
    while waiting:
        at, asked = waiting.pop()
        node = tree.nodes[at]
        if node["is_leaf"]:
            open_ended = {column: mask for column, mask in asked.items() if not mask.all()}
            yield Leaf(
                value=float(node["value"]),
                attributes=tuple(attributes[column] for column in open_ended),
                masks=tuple(open_ended.values()),
            )
            continue
        column = int(node["feature_idx"])
        left = _goes_left(tree, node, seen[column])
        for child, mask in ((node["left"], left), (node["right"], ~left)):
            both = asked.get(column, np.ones_like(mask)) & mask
            if both.any():
                waiting.append((int(child), {**asked, column: both}))


def _goes_left(tree: Any, node: Any, values: Floats) -> Mask:
    """Which values a node sends to its left: (bands,)."""
    missing = np.isnan(values)  # a word that was not there is missing, too
    if node["is_categorical"]:
        bits = np.asarray(tree.raw_left_cat_bitsets[int(node["bitset_idx"])])
        words = np.where(missing, 0, values).astype(np.int64)
        inside = (bits[words // 32] >> (words % 32).astype(np.uint32)) % 2 == 1
    else:
        inside = values <= node["num_threshold"]
    found: Mask = np.where(missing, bool(node["missing_go_to_left"]), inside)
    return found
