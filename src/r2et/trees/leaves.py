"""The leaves of an ensemble as arrays, and exact Shapley values by them.

Each attribute of a row lies in one of finitely many cells that trees tell apart. A leaf asks some
attributes whether their cells are among some, and adds its value if all say yes. What it adds to
the Shapley values of a row depends only on which questions the row answers with yes, a pattern of
bits, and which each row of a reference does. Of leaves that ask few attributes a table says what
they add for every pattern; of others only the patterns that rows have are looked at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from r2et.core.arrays import Codes, Floats, Mask
from r2et.trees.form import Tree, is_below

MOST_ASKED = 31
"""Attributes that one leaf asks: the answers to more are not the bits of one number."""
TABLED = 8
"""Attributes of leaves whose every pattern is put in a table: 2 ** 8 patterns of 8 answers."""
LARGEST_TABLE = 8_000_000
"""Numbers in the table of leaves that ask equally many attributes; without it if there are more."""
LEAVES, ROWS = 128, 1024
"""Leaves and rows that are looked at together: what they say stays near to the processor."""
AT_ONCE = 4_000_000
"""Pairs of patterns, or answers of leaves to rows, that are held together."""

Answers = NDArray[np.uint8]
Patterns = NDArray[Any]
"""Of unsigned numbers, as wide as there are questions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Asking:
    """Leaves that ask equally many attributes.

    Of each leaf `value`, `output` and `tree`, (L,); `attribute` and `question`, (L, q), say what it
    asks, and `reach`, (L, q), which share of the training rows on its way each question let through
    (None if that is not known).
    """

    value: Floats
    output: Codes
    tree: Codes
    attribute: Codes
    question: Codes
    reach: Floats | None

    @property
    def asked(self) -> int:
        """How many attributes each of them asks."""
        return int(self.attribute.shape[1])

    @property
    def tabled(self) -> bool:
        """Whether a table of all patterns is small enough."""
        numbers = len(self.value) * self.asked << self.asked
        return self.asked <= TABLED and numbers <= LARGEST_TABLE

    def some(self, chosen: Mask | slice) -> "Asking":
        """Some of the leaves."""
        return Asking(
            value=self.value[chosen],
            output=self.output[chosen],
            tree=self.tree[chosen],
            attribute=self.attribute[chosen],
            question=self.question[chosen],
            reach=None if self.reach is None else self.reach[chosen],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LeafTable:
    """All leaves, and the questions they ask.

    `admitted` has for each attribute the cells that each question about it lets through, (questions
    of it, cells); questions are numbered through, those of the first attribute first. `constant`,
    (C,), is added to the scores, those of leaves that ask nothing included.
    """

    admitted: tuple[Mask, ...]
    groups: tuple[Asking, ...]
    constant: Floats

    @property
    def attributes(self) -> int:
        """How many attributes there are."""
        return len(self.admitted)

    @cached_property
    def starts(self) -> Codes:
        """The number of the first question about each attribute, and of all of them."""
        return np.cumsum([0, *(len(each) for each in self.admitted)])

    def answers(self, cells: Codes) -> Answers:
        """What rows answer to all questions, 1 for yes: (N, m) -> (questions, N)."""
        found = np.empty((int(self.starts[-1]), len(cells)), dtype=np.uint8)
        for place, own in enumerate(self.admitted):
            start, end = self.starts[place], self.starts[place + 1]
            if start < end:
                found[start:end] = own.view(np.uint8).take(cells[:, place], 1)
        return found

    def scores(self, cells: Codes) -> Floats:
        """The scores of rows: (N, m) -> (N, C)."""
        found = np.tile(self.constant, (len(cells), 1))
        for rows in _parts(len(cells), max(1, sum(len(each.value) for each in self.groups))):
            answers = self.answers(cells[rows])
            for group in self.groups:
                inside = answers[group.question[:, 0]]
                for place in range(1, group.asked):
                    inside &= answers[group.question[:, place]]
                for output in range(found.shape[1]):
                    own = group.output == output
                    found[rows, output] += group.value[own] @ inside[own]
        return found

    def against(self, reference: Codes) -> "Against":
        """The leaves as the rows of a reference, (R, m), answer them."""
        if not len(reference):
            raise ValueError("contributions are against rows of a reference, got none: give some.")
        answers = self.answers(reference)
        return Against(table=self, others=tuple(_others(group, answers) for group in self.groups))

    def path_contributions(self, cells: Codes) -> Floats:
        """Path-dependent Shapley values, by which share of training rows went which way: (N, m, C).

        What an attribute would say that is not known is the mean over the training rows at each
        node that asks it. Refused where the model does not tell how many there were.
        """
        return _added(self, [_Paths.of(group) for group in self.groups], cells)


@dataclass(frozen=True, kw_only=True, eq=False)
class Against:
    """Leaves against a reference: of each group what the rows of the reference answer."""

    table: LeafTable
    others: tuple["_Tabled | _Rows", ...]

    def contributions(self, cells: Codes) -> Floats:
        """Interventional Shapley values, the mean over the rows of the reference: (N, m, C).

        What each attribute adds to each score. They add up to the scores less their mean over the
        reference.
        """
        return _added(self.table, self.others, cells)

    def some(self, chosen: Sequence[Mask]) -> "Against":
        """Some of the leaves of each group, and nothing that is constant."""
        there = [number for number, own in enumerate(chosen) if own.any()]
        groups = tuple(self.table.groups[number].some(chosen[number]) for number in there)
        others = tuple(self.others[number].some(chosen[number]) for number in there)
        bare = replace(self.table, groups=groups, constant=np.zeros_like(self.table.constant))
        return Against(table=bare, others=others)


def _parts(rows: int, leaves: int) -> Iterator[slice]:
    size = max(1, AT_ONCE // leaves)
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


# --- what leaves add to rows --------------------------------------------------------------------


def _added(table: LeafTable, others: Sequence["_Tabled | _Rows | _Paths"], cells: Codes) -> Floats:
    """What attributes add to each score, by what leaves add for the patterns of rows: (N, m, C).

    Leaves come in the same order for each row, so that it is told the same whichever rows are
    asked with it.
    """
    outputs = len(table.constant)
    found = np.zeros((table.attributes * outputs, len(cells)))
    blocks = [
        (group.some(leaves), other.some(leaves))
        for group, other in zip(table.groups, others, strict=True)
        for first in range(0, len(group.value), LEAVES)
        for leaves in [slice(first, first + LEAVES)]
    ]
    keys = [group.attribute.T * outputs + group.output for group, _ in blocks]
    for first in range(0, len(cells), ROWS):
        rows = slice(first, first + ROWS)
        answers = table.answers(cells[rows])
        for (group, other), key in zip(blocks, keys, strict=True):
            other.add(found[:, rows], key, patterns(group, answers))
    return found.reshape(table.attributes, outputs, -1).transpose(2, 0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tabled:
    """What leaves add for every pattern of answers: (q, L, 2 ** q)."""

    adds: Floats

    def some(self, chosen: Mask | slice) -> "_Tabled":
        return _Tabled(adds=self.adds[:, chosen])

    def add(self, found: Floats, key: Codes, own: Patterns) -> None:
        """Add to `found`, (keys, N), what leaves add for patterns, (L, N), to `key`, (q, L)."""
        bits, leaves, count = self.adds.shape
        place = own + np.arange(leaves)[:, None] * count
        each = np.empty((bits, leaves, own.shape[1]))
        for bit in range(bits):
            # Places are within the table: to clip them is to look no further.
            self.adds[bit].ravel().take(place, out=each[bit], mode="clip")
        found += _sums(key.ravel(), len(found)) @ each.reshape(bits * leaves, -1)


def _sums(key: Codes, count: int) -> "sparse.csr_matrix":
    """The matrix that sums rows by their key: (count, keys)."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=count))])
    order = key.argsort(kind="stable")
    return sparse.csr_matrix((np.ones(len(key)), order, starts), (count, len(key)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """The values of leaves, (L,), and the patterns that rows of a reference have: (L, R)."""

    value: Floats
    theirs: Patterns

    def some(self, chosen: Mask | slice) -> "_Rows":
        return _Rows(value=self.value[chosen], theirs=self.theirs[chosen])

    def add(self, found: Floats, key: Codes, own: Patterns) -> None:
        """Add to `found`, (keys, N), what leaves add for patterns, (L, N), to `key`, (q, L)."""
        # What no row of the reference answers with yes, a row must, or the leaf adds nothing.
        needed = ~np.bitwise_or.reduce(self.theirs, 1)[:, None] & _all_bits(len(key), own.dtype)
        _add_met(found, key, own, (own & needed) == needed, self.met)

    def met(self, leaf: Codes, own: Patterns, bits: int) -> Floats:
        """What leaves add for patterns, (U,) each: (q, U).

        With X the questions that only the person answers with yes and R those that only the row
        does, a leaf of which each question is answered with yes by one of both adds its value times
        (|X| - 1)! |R|! / (|X| + |R|)! to those of X, and takes |X|! (|R| - 1)! / (|X| + |R|)! from
        those of R.
        """
        found = np.zeros((bits, len(leaf)))
        every, weight = _all_bits(bits, own.dtype), orders(bits)
        for some in _parts(len(leaf), self.theirs.shape[1]):
            theirs, mine = self.theirs[leaf[some]], own[some]
            pair, row = np.nonzero((theirs | mine[:, None]) == every)
            other, mine = theirs[pair, row], mine[pair]
            # One of both answers each question with yes: what the row does not, the person does.
            of_person, of_row = bits - _count(other), bits - _count(mine)
            gain, loss = weight[of_person, of_row], weight[of_row, of_person]
            size = some.stop - some.start
            for bit in range(bits):
                added = gain * (~other >> bit & 1) - loss * (~mine >> bit & 1)
                found[bit, some] = np.bincount(pair, added, size)
        found *= self.value[leaf] / self.theirs.shape[1]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Paths:
    """The values of leaves, (L,), and which share of training rows each question let through."""

    value: Floats
    reach: Floats

    @staticmethod
    def of(group: Asking) -> "_Tabled | _Paths":
        """What leaves add where unknown attributes go all ways."""
        if group.reach is None:
            raise ValueError(
                "path-dependent contributions need to know how many training rows came through "
                "each node, which this model does not tell: give a reference instead."
            )
        if not group.tabled:
            return _Paths(value=group.value, reach=group.reach)
        # As if against rows that answer each question by itself, so often with yes.
        shares = np.ones((len(group.value), 1))
        for reach in group.reach.T[:, :, None]:
            shares = np.concatenate([shares * (1 - reach), shares * reach], 1)
        return _tabled(group, shares)

    def some(self, chosen: Mask | slice) -> "_Paths":
        return _Paths(value=self.value[chosen], reach=self.reach[chosen])

    def add(self, found: Floats, key: Codes, own: Patterns) -> None:
        """Add to `found`, (keys, N), what leaves add for patterns, (L, N), to `key`, (q, L)."""
        _add_met(found, key, own, np.ones(own.shape, dtype=bool), self.met)

    def met(self, leaf: Codes, own: Patterns, bits: int) -> Floats:
        """What leaves add for patterns, (U,) each: (q, U).

        The Shapley values of a product of q factors, each o where an attribute is known and z where
        it is not, are (o_j - z_j) times the integral over t from 0 to 1 of the product over all
        others of z (1 - t) + o t: a polynomial, which Gauss' rule integrates exactly.
        """
        nodes, weights = np.polynomial.legendre.leggauss(bits // 2 + 1)
        times = (nodes + 1) / 2
        found = np.empty((bits, len(leaf)))
        for some in _parts(len(leaf), bits * len(times)):
            unknown = self.reach[leaf[some]].T
            known = (own[some] >> np.arange(bits, dtype=own.dtype)[:, None] & 1).astype(np.float64)
            factors = unknown[..., None] * (1 - times) + known[..., None] * times  # (q, u, t)
            before, after = np.ones_like(factors), np.ones_like(factors)
            np.cumprod(factors[:-1], 0, out=before[1:])
            np.cumprod(factors[:0:-1], 0, out=after[-2::-1])
            found[:, some] = (known - unknown) * (before * after @ (weights / 2))
        found *= self.value[leaf]
        return found


def _add_met(found: Floats, key: Codes, own: Patterns, inside: Mask, met: Any) -> None:
    """Add to `found` what leaves add for those patterns that are `inside`, each looked at once."""
    bits = len(key)
    leaf, row = np.nonzero(inside)
    pairs = leaf.astype(np.int64) << bits | own[leaf, row].astype(np.int64)
    different, place = np.unique(pairs, return_inverse=True)
    added = met(different >> bits, (different & (1 << bits) - 1).astype(own.dtype), bits)
    count = found.shape[1]
    for bit in range(bits):
        at = key[bit, leaf] * count + row
        found += np.bincount(at, added[bit, place], found.size).reshape(found.shape)


# --- patterns -----------------------------------------------------------------------------------


def patterns(group: Asking, answers: Answers) -> Patterns:
    """Which questions of each leaf rows answer with yes, as bits: (L, N)."""
    kind = np.min_scalar_type((1 << group.asked) - 1)
    found = answers[group.question[:, 0]].astype(kind)
    for bit in range(1, group.asked):
        found |= answers[group.question[:, bit]].astype(kind) << kind.type(bit)
    return found


def _all_bits(bits: int, kind: np.dtype[Any]) -> Any:
    """The pattern of all questions answered with yes."""
    return kind.type((1 << bits) - 1)


def _others(group: Asking, answers: Answers) -> _Tabled | _Rows:
    """The leaves of a group as rows of a reference answer them."""
    theirs = patterns(group, answers)
    if not group.tabled:
        return _Rows(value=group.value, theirs=theirs)
    leaves, rows = theirs.shape
    keys = theirs + (np.arange(leaves)[:, None] << group.asked)
    counted = np.bincount(keys.ravel(), minlength=leaves << group.asked)
    return _tabled(group, counted.reshape(leaves, -1) / rows)


def _tabled(group: Asking, shares: Floats) -> _Tabled:
    """What leaves add for all patterns where others have each with some share: (L, 2 ** q)."""
    adds = np.stack([shares @ each for each in _every_pair(group.asked)])
    return _Tabled(adds=adds * group.value[:, None])


@lru_cache(maxsize=TABLED)
def _every_pair(bits: int) -> Floats:
    """What a leaf of value 1 adds for all patterns of others and a person: (q, 2 ** q, 2 ** q)."""
    every = np.arange(1 << bits, dtype=np.uint16)
    pairs = _Rows(value=np.full(1 << bits, 1.0), theirs=every[:, None])
    theirs, own = (each.ravel() for each in np.meshgrid(every, every, indexing="ij"))
    return pairs.met(theirs.astype(np.intp), own, bits).reshape(bits, 1 << bits, 1 << bits)


@lru_cache(maxsize=64)
def orders(asked: int) -> Floats:
    """(p - 1)! q! / (p + q)! for p and q from 0 to `asked`, and 0 where p is 0."""
    found = np.zeros((asked + 1, asked + 1))
    for p in range(1, asked + 1):
        for q in range(asked + 1):
            found[p, q] = factorial(p - 1) * factorial(q) / factorial(p + q)
    return found


_ONES = np.array([number.bit_count() for number in range(1 << 16)], dtype=np.uint8)


def _count(bits: Patterns) -> Answers:
    """How many bits are set."""
    wide = bits.astype(np.uint32)
    found: Answers = _ONES[wide & 0xFFFF] + _ONES[wide >> 16]
    return found


# --- of trees -----------------------------------------------------------------------------------


def leaf_table(
    trees: Sequence[Tree], shown: Sequence[Floats], sources: Sequence[int], constant: Floats
) -> LeafTable:
    """The leaves of trees over the cells of attributes.

    `shown` has for each attribute what trees are shown of each of its cells, (cells, features of
    it), and `sources` says of each feature which attribute it comes from; the features of one stand
    in their order.
    """
    column = _columns(sources)
    every = [(1 << len(each)) - 1 for each in shown]
    questions: list[dict[int, int]] = [{} for _ in shown]
    leaves: dict[int, list[_Leaf]] = {}
    constant = constant.astype(np.float64).copy()
    for number, tree in enumerate(trees):
        lefts = _lefts(tree, shown, sources, column)
        for value, asked in _leaves(tree, lefts, sources, every):
            # Where all cells pass but not all training rows did, paths still ask.
            few = {at: own for at, own in asked.items() if own[0] != every[at] or own[1] < 1}
            if not few:
                constant[tree.output] += value
                continue
            if len(few) > MOST_ASKED:
                raise ValueError(
                    f"a leaf asks {len(few)} attributes, where {MOST_ASKED} can be explained: "
                    "grow less deep trees."
                )
            own = {
                at: questions[at].setdefault(cells, len(questions[at]))
                for at, (cells, _) in few.items()
            }
            shares = tuple(share for _, share in few.values())
            leaves.setdefault(len(few), []).append((value, tree.output, number, own, shares))
    admitted = tuple(
        _unpacked(list(own), len(each)) for own, each in zip(questions, shown, strict=True)
    )
    starts = np.cumsum([0, *(len(each) for each in admitted)])
    known = all(tree.cover is not None for tree in trees)
    groups = tuple(_group(leaves[asked], starts, known) for asked in sorted(leaves))
    return LeafTable(admitted=admitted, groups=groups, constant=constant)


_Leaf = tuple[float, int, int, dict[int, int], tuple[float, ...]]
"""Value, output, tree, the question about each attribute, the share that each lets through."""


def _columns(sources: Sequence[int]) -> list[int]:
    """The place of each feature among those of its attribute."""
    seen: dict[int, int] = {}
    found = []
    for source in sources:
        found.append(seen.get(source, 0))
        seen[source] = found[-1] + 1
    return found


def _group(leaves: Sequence[_Leaf], starts: Codes, known: bool) -> Asking:
    values, outputs, trees, asked, shares = zip(*leaves, strict=True)
    attribute = np.array([list(each) for each in asked], dtype=np.intp)
    question = np.array([list(each.values()) for each in asked], dtype=np.intp)
    return Asking(
        value=np.array(values),
        output=np.array(outputs, dtype=np.intp),
        tree=np.array(trees, dtype=np.intp),
        attribute=attribute,
        question=question + starts[attribute],
        reach=np.array(shares) if known else None,
    )


def _lefts(
    tree: Tree, shown: Sequence[Floats], sources: Sequence[int], column: Sequence[int]
) -> dict[int, int]:
    """The cells that each node sends to its left, as the bits of one number, by its number."""
    found: dict[int, int] = {}
    for feature in np.unique(tree.feature[tree.feature >= 0]).tolist():
        values = shown[sources[feature]][:, column[feature]]
        nodes = np.flatnonzero(tree.feature == feature)
        below = is_below(values, tree.threshold[nodes][:, None])
        left = np.where(np.isnan(values), tree.missing_left[nodes][:, None], below)
        for place, node in enumerate(nodes.tolist()):
            if node in tree.words:
                left[place] = tree.goes_left(node, values)
        found.update(zip(nodes.tolist(), _packed(left), strict=True))
    return found


def _packed(masks: Mask) -> list[int]:
    """Masks, (n, cells), as the bits of numbers: of these, python takes any length at once."""
    return [int.from_bytes(each, "little") for each in np.packbits(masks, 1, "little")]


def _unpacked(numbers: Sequence[int], cells: int) -> Mask:
    """Masks of the bits of numbers: (n, cells)."""
    size = -(-cells // 8)
    content = b"".join(each.to_bytes(size, "little") for each in numbers)
    packed = np.frombuffer(content, dtype=np.uint8).reshape(len(numbers), size)
    return np.unpackbits(packed, 1, cells, "little").view(bool)


def _leaves(
    tree: Tree, lefts: dict[int, int], sources: Sequence[int], every: Sequence[int]
) -> Iterator[tuple[float, dict[int, tuple[int, float]]]]:
    """The leaves of one tree that some cell reaches: value, and what each attribute must be.

    Of each attribute on the way, the cells that go it, and the share of training rows that did.
    """
    feature, value = tree.feature.tolist(), tree.value.tolist()
    left, right = tree.left.tolist(), tree.right.tolist()
    cover = None if tree.cover is None else tree.cover.tolist()
    waiting: list[tuple[int, dict[int, tuple[int, float]]]] = [(0, {})]
    while waiting:
        at, asked = waiting.pop()
        if feature[at] < 0:
            yield value[at], asked
            continue
        source = sources[feature[at]]
        before, share = asked.get(source, (every[source], 1.0))
        for child, cells in ((left[at], lefts[at]), (right[at], every[source] ^ lefts[at])):
            part = share
            if cover is not None:
                part *= cover[child] / cover[at] if cover[at] else 0.0
            if both := before & cells:
                waiting.append((child, {**asked, source: (both, part)}))
