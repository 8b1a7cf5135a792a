"""What each attribute of a cell adds to a score, against the cells of a reference: Shapley values.

A cell is a row of numbers of bands. Few of them are different: of all mixtures of people and a
reference each is looked at once.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from r2et.core.arrays import Codes, Floats, different_keys
from r2et.core.coalitions import MOST_EXACT, Coalitions, every_coalition, ordered_coalitions
from r2et.core.rng import stream

Score = Callable[[Codes], Floats]
"""Cells, (N, m) numbers of bands, to one number each, (N,), or several, (N, C)."""

ORDERS = 8
"""Of more attributes than all coalitions are worth: as many orders, and their reverses."""
MIXED_AT_ONCE = 4_000_000


def contributions(
    score: Score, cells: Codes, reference: Codes, among: Sequence[int] | None = None
) -> Floats:
    """Shapley values of the attributes of each cell, the mean over a reference: (N, m).

    They are exact up to 12 attributes; of more they are the mean of `ORDERS` seeded orders and
    their reverses. A score that looks at the attributes `among` only leaves all others at 0.
    """
    among = list(range(cells.shape[1])) if among is None else list(among)
    found = np.zeros(cells.shape)
    if among:
        coalitions = coalitions_of(len(among))
        full = np.zeros((len(coalitions.members), cells.shape[1]), dtype=bool)
        full[:, among] = coalitions.members.numpy()
        said = coalition_scores(score, cells, reference, full)
        found[:, among] = said @ coalitions.weights.numpy()
    return found


def shapley_margins(score: Score, cells: Codes, reference: Codes) -> Floats:
    """What each attribute adds to the margin of each class: (N, m, C)."""
    coalitions = coalitions_of(cells.shape[1])
    said = coalition_scores(
        lambda rows: margins(score(rows)), cells, reference, coalitions.members.numpy()
    )
    found: Floats = np.einsum("nkc,km->nmc", said, coalitions.weights.numpy())
    return found


def margins(scores: Floats) -> Floats:
    """The score of each class less the largest of the others: like them."""
    last = np.sort(scores, 1)[:, -2:]
    best = np.arange(scores.shape[1]) == scores.argmax(1)[:, None]
    found: Floats = scores - np.where(best, last[:, :1], last[:, 1:])
    return found


def coalitions_of(attributes: int) -> Coalitions:
    """All sets of attributes, or of too many those of a few orders, always the same."""
    if attributes <= MOST_EXACT:
        return every_coalition(attributes)
    draw = stream(0, "bands", "orders")
    orders = [torch.randperm(attributes, generator=draw).tolist() for _ in range(ORDERS)]
    return ordered_coalitions(tuple(tuple(order) for order in orders))


def coalition_scores(score: Score, cells: Codes, reference: Codes, members: Codes) -> Floats:
    """The mean score over a reference where each set of attributes is a cell's own: (N, K).

    `members`, (K, m), says which attributes are in each set. Of several scores (N, K, C).
    """
    numbered = numbering(np.concatenate([cells, reference]))
    if numbered is None:
        return _each_mixture(score, cells, reference, members.astype(bool))
    sizes, strides = numbered
    different, index = np.unique(cells @ strides, return_inverse=True)
    own = _cells(different, sizes, strides)
    inside = (own * strides) @ members.T.astype(np.int64)  # (n, K)
    outside = (reference * strides) @ (~members.astype(bool)).T.astype(np.int64)  # (R, K)
    at_once = max(1, MIXED_AT_ONCE // outside.size)
    parts = []
    for first in range(0, len(own), at_once):
        mixed = inside[first : first + at_once, None] + outside
        keys, places = different_keys(mixed, int(sizes.prod()))
        said = score(_cells(keys, sizes, strides))[places]
        parts.append(said.reshape(*mixed.shape, *said.shape[1:]).mean(1))
    found: Floats = np.concatenate(parts)[index.ravel()]
    return found


def _each_mixture(score: Score, cells: Codes, reference: Codes, members: Codes) -> Floats:
    """The same of cells that are too many to be numbered, mixture by mixture."""
    different, index = np.unique(cells, axis=0, return_inverse=True)
    at_once = max(1, MIXED_AT_ONCE // reference.size)
    found = []
    for own in different:
        parts = []
        for first in range(0, len(members), at_once):
            some = members[first : first + at_once]
            mixed = np.where(some[:, None], own, reference)
            said = score(mixed.reshape(-1, len(own)))
            parts.append(said.reshape(len(some), len(reference), *said.shape[1:]).mean(1))
        found.append(np.concatenate(parts))
    return np.stack(found)[index.ravel()]


def numbering(cells: Codes) -> tuple[Codes, Codes] | None:
    """How many bands each attribute has, and what each band counts in the number of a cell.

    None if there are more cells than can be numbered.
    """
    sizes = cells.max(0, initial=0) + 1
    if sizes.astype(np.float64).prod() >= 2**62:
        return None
    return sizes, np.concatenate([[1], np.cumprod(sizes[:-1])])


def each_once(score: Score, cells: Codes) -> Floats:
    """A score of cells, each different one looked at once where they can be numbered."""
    numbered = numbering(cells)
    if numbered is None:
        return score(cells)
    different, index = np.unique(cells @ numbered[1], return_inverse=True)
    found: Floats = score(_cells(different, *numbered))[index.ravel()]
    return found


def _cells(keys: Codes, sizes: Codes, strides: Codes) -> Codes:
    found: Codes = keys[:, None] // strides % sizes
    return found
