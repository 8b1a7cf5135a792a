"""Leaves of boosted trees as boxes of cells, and exact Shapley values by them.

A leaf asks a few attributes whether their bands are among some. Its Shapley values depend on which
of these questions a person answers with yes, and which each row of a reference does. Of these
patterns few are there: each is looked at once. Leaves that ask alike, as those of a tree do, are
looked at together, so that people are told apart as often as there are trees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import factorial, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from r2et.core.arrays import Codes, Floats, Mask, different_keys

MOST_ASKED = 62
"""Attributes that one leaf asks: the answers to more are not the bits of one number."""
MOST_TOLD_APART = 2**14
"""Cells that leaves which are looked at together tell apart, if they are more than one leaf."""
AT_ONCE = 20_000  # cells that are scored together


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
class Block:
    """Leaves that are looked at together, and what they tell apart of the bands of attributes.

    `kinds` says of each band of each of the `attributes` which of the kinds it is that all leaves
    answer alike; the masks of the `leaves` are over kinds, and their attributes places here.
    """

    attributes: tuple[int, ...]
    kinds: tuple[Codes, ...]
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, leaves: Sequence[Leaf], changes: dict[int, Mask]) -> "Block":
        """A block of leaves, of which some answers change after the bands that `changes` mark."""
        if len(leaves) == 1:
            return cls.alone(leaves[0])
        attributes = tuple(changes)
        kinds = {at: np.concatenate([[0], np.cumsum(each)]) for at, each in changes.items()}
        first = {at: np.flatnonzero(np.append(True, each)) for at, each in changes.items()}
        places = {attribute: place for place, attribute in enumerate(attributes)}
        return cls(
            attributes=attributes,
            kinds=tuple(kinds.values()),
            leaves=tuple(
                Leaf(
                    value=leaf.value,
                    attributes=tuple(places[at] for at in leaf.attributes),
                    masks=tuple(
                        mask[first[at]]
                        for at, mask in zip(leaf.attributes, leaf.masks, strict=True)
                    ),
                )
                for leaf in leaves
            ),
        )

    @classmethod
    def alone(cls, leaf: Leaf) -> "Block":
        """A block of one leaf: bands are of two kinds, however often its answers change."""
        asked = range(len(leaf.attributes))
        own = Leaf(
            value=leaf.value,
            attributes=tuple(asked),
            masks=tuple(np.array([False, True]) for _ in asked),
        )
        kinds = tuple(mask.astype(np.intp) for mask in leaf.masks)
        return cls(attributes=leaf.attributes, kinds=kinds, leaves=(own,))

    def told_apart(self, cells: Codes) -> tuple[Codes, Codes]:
        """The different rows of kinds, (U, a), and which of them cells are: (..., m) -> (...)."""
        sizes = [int(kinds.max()) + 1 for kinds in self.kinds]
        strides = np.cumprod([1, *sizes[:-1]])
        keys = np.zeros(cells.shape[:-1], dtype=np.intp)
        for attribute, kinds, stride in zip(self.attributes, self.kinds, strides, strict=True):
            keys += (kinds * stride)[cells[..., attribute]]
        different, index = different_keys(keys, prod(sizes))
        return different[:, None] // strides % sizes, index.reshape(keys.shape)

    def contributions(self, own: Codes, rest: Codes, shares: Floats) -> Floats:
        """What these leaves add to rows of kinds, (U, a), by attribute: (a, U, D).

        `rest`, (V, a), are those of references, each with its share in each of D of them, (D, V).
        """
        found = np.zeros((len(self.attributes), len(own), len(shares)))
        for leaf in self.leaves:
            asked = len(leaf.attributes)
            here, index = np.unique(leaf.pattern(own), return_inverse=True)
            there, places = np.unique(leaf.pattern(rest), return_inverse=True)
            weights = np.zeros((len(there), len(shares)))
            np.add.at(weights, places.ravel(), leaf.value * shares.T)
            added = pattern_values(bits_of(here, asked), bits_of(there, asked), weights)
            for bit, place in enumerate(leaf.attributes):
                found[place] += added[bit][index.ravel()]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaves:
    """The leaves of an ensemble, whose values add up to its score together with a constant."""

    leaves: Sequence[Leaf]
    constant: float

    def __call__(self, cells: Codes) -> Floats:
        """The score of cells: (N, m) -> (N,)."""
        parts = [
            self._said(cells[first : first + AT_ONCE]) for first in range(0, len(cells), AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _said(self, cells: Codes) -> Floats:
        admitted, sums = self._packed
        within = np.full((len(sums), len(cells)), 255, dtype=np.uint8)
        for attribute, bands in admitted.items():
            within &= bands[:, cells[:, attribute]]
        said = np.full(len(cells), self.constant)
        for own, eight in zip(sums, within, strict=True):
            said += own[eight]
        return said

    @cached_property
    def _packed(self) -> tuple[dict[int, NDArray[np.uint8]], Floats]:
        """Which leaves each band of an attribute admits, and what leaves add, eight in a byte.

        (E, bands) for each attribute, and (E, 256), the sum over the bits of a byte.
        """
        eights = -(-len(self.leaves) // 8)
        open_to: dict[int, Mask] = {}
        values = np.zeros(8 * eights)
        for number, leaf in enumerate(self.leaves):
            values[number] = leaf.value
            for attribute, mask in zip(leaf.attributes, leaf.masks, strict=True):
                everywhere = np.ones((8 * eights, len(mask)), dtype=bool)
                open_to.setdefault(attribute, everywhere)[number] &= mask
        packed = {attribute: np.packbits(each, axis=0) for attribute, each in open_to.items()}
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
        sums = np.zeros((eights, 256))
        for bit in range(8):  # one after another: a product may add them in any order
            sums += values[bit::8, None] * bits[:, bit]
        return packed, sums

    @cached_property
    def blocks(self) -> list[Block]:
        """Neighbouring leaves, as many together as tell few cells apart."""
        found, waiting, changes = [], list[Leaf](), dict[int, Mask]()
        for leaf in self.leaves:
            own = {
                at: mask[1:] != mask[:-1]
                for at, mask in zip(leaf.attributes, leaf.masks, strict=True)
            }
            both = changes | {
                at: each | changes[at] if at in changes else each for at, each in own.items()
            }
            if waiting and prod(int(each.sum()) + 1 for each in both.values()) > MOST_TOLD_APART:
                found.append(Block.of(waiting, changes))
                waiting, both = [], own
            waiting.append(leaf)
            changes = both
        return [*found, Block.of(waiting, changes)] if waiting else found

    def contributions(self, cells: Codes, references: Codes) -> Floats:
        """Shapley values, (D, N, m), each the mean over one of D references, (D, R, m)."""
        draws, rows, attributes = references.shape
        found = np.zeros((attributes, len(cells), draws))
        number = np.arange(draws)[:, None]
        for block in self.blocks:
            own, index = block.told_apart(cells)
            rest, places = block.told_apart(references)
            shares = np.zeros((draws, len(rest)))
            np.add.at(shares, (np.broadcast_to(number, places.shape), places), 1 / rows)
            for attribute, added in zip(
                block.attributes, block.contributions(own, rest, shares), strict=True
            ):
                found[attribute] += added[index]
        return np.ascontiguousarray(found.transpose(2, 1, 0))


def bits_of(patterns: Codes, asked: int) -> Floats:
    """Patterns bit by bit, 1 for yes: (P,) -> (P, asked)."""
    return (patterns[:, None] >> np.arange(asked) & 1).astype(np.float64)


def pattern_values(here: Floats, there: Floats, weights: Floats) -> Floats:
    """What a leaf of value 1 adds for patterns of people against weighted ones of rows.

    `here` (U, asked) and `there` (V, asked) are bits, `weights` (V, D); (asked, U, D) comes back.
    Against one row, with X the questions that only the person answers with yes and R those that
    only the row does, a leaf of value 1 of which each question is answered with yes by one of both
    adds (|X| - 1)! |R|! / (|X| + |R|)! to those of X, and takes |X|! (|R| - 1)! / (|X| + |R|)! from
    those of R.
    """
    own, other = (here @ (1 - there).T).astype(np.intp), ((1 - here) @ there.T).astype(np.intp)
    answered = (1 - here) @ (1 - there).T == 0
    parts = orders(here.shape[1])
    gain, loss = parts[own, other] * answered, parts[other, own] * answered
    # One of both answers each question with yes: what the row does not, only the person does.
    given = gain @ ((1 - there).T[:, :, None] * weights)
    found: Floats = given - (1 - here).T[:, :, None] * (loss @ weights)
    return found


@lru_cache(maxsize=64)
def orders(asked: int) -> Floats:
    """(p - 1)! q! / (p + q)! for p and q from 0 to `asked`, and 0 where p is 0."""
    found = np.zeros((asked + 1, asked + 1))
    for p in range(1, asked + 1):
        for q in range(asked + 1):
            found[p, q] = factorial(p - 1) * factorial(q) / factorial(p + q)
    return found


def leaves_of(
    model: HistGradientBoostingClassifier,
    shown: Sequence[Floats],
    attributes: Sequence[int],
    label: int | None = None,
) -> Leaves | None:
    """The leaves of boosted trees that are shown, in each column, one value for each band.

    `shown` are those values, (bands,), and `attributes` says which one each column is; a column of
    a single value asks nothing. Of several classes they are those of one, the `label`. None if
    trees cannot be read, or if a leaf asks more than `MOST_ASKED` attributes.
    """
    try:
        seen = _seen(model, shown)
        if label is None:
            trees = [tree for (tree,) in model._predictors]
        else:
            trees = [each[label] for each in model._predictors]
        constant = float(np.ravel(model._baseline_prediction)[label or 0])
        leaves = [leaf for tree in trees for leaf in _leaves(tree, seen, attributes)]
    except (AttributeError, TypeError, ValueError, IndexError, KeyError):
        return None
    if any(len(leaf.attributes) > MOST_ASKED for leaf in leaves):
        return None
    asking = [leaf for leaf in leaves if leaf.attributes]
    constant += sum(leaf.value for leaf in leaves if not leaf.attributes)
    return Leaves(leaves=asking, constant=constant)


def mean_of(several: Sequence[Leaves]) -> Leaves:
    """The leaves whose score is the mean of those of several ensembles."""
    share = 1 / len(several)
    leaves = [replace(leaf, value=share * leaf.value) for each in several for leaf in each.leaves]
    return Leaves(leaves=leaves, constant=share * sum(each.constant for each in several))


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
