"""Exact verdicts on the reasons of tree ensembles: bounds close what cannot break, search the rest.

Within reach of a person each attribute meets few cells. Trees that look at the same of these are
put in one table of all combinations; the worst that each table can do to a gap between two reasons
adds up to a sound bound. Where it does not decide, the box is cut at the threshold that moves it
most, the part that is nearer to the person first: what breaks the reasons is found at the smallest
distance, or proved not to be there.
"""

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from r2et.actionable.tables import SLACK, TableMoves
from r2et.bands.attribute import NumberBands
from r2et.bands.verdicts import Way, reachable
from r2et.core.arrays import Codes, Floats, Mask
from r2et.core.reasons import Breaking, Question, ReasonVerdict, shown_as
from r2et.trees.cells import CellTrees
from r2et.trees.leaves import Against

MOST_PARTS = 512
"""Boxes of cells of one table that trees are put together in; one tree may have more."""
LARGEST_TREE = 8192
"""Boxes of cells of one tree; of a tree that has more, leaves are put together as trees are."""
LARGEST_LEAF = 500_000
"""Boxes of cells of a single leaf: a person of whom a leaf has more is not judged."""
ENUMERATED = 4096
"""Cells within reach of a person that are all looked at."""
MOST_BOXES = 10_000
"""Boxes that are cut for one person to decide, and as many to tell what stays."""
TRIED = 100_000
"""Cells of tables that are looked at for a first move that breaks."""
AT_ONCE = 20_000
"""Cells of tables whose values are held together."""
NEAR = 1e-9
"""Gaps smaller than this share of what all trees may add are looked at, not bounded."""
ALONE = 200
"""Changes of single attributes that are looked at where nothing else can be said."""
EVERY = 16
"""In one of so many boxes a move that breaks is looked for by descent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeReasons:
    """What is asked of the reasons of an ensemble: against which rows, and when what is decided.

    Of two classes the second is decided where its score is `cut` or more.
    """

    trees: CellTrees
    against: Against
    cut: float = 0.0

    def decided(self, cells: Codes) -> Codes:
        """The decided class of each row, of several with equal scores the first: (N,)."""
        scores = self.trees.scores(cells)
        if scores.shape[1] == 1:
            return (scores[:, 0] >= self.cut).astype(np.intp)
        return np.asarray(scores.argmax(1), dtype=np.intp)

    def contributions(self, cells: Codes) -> Floats:
        """What each attribute adds to the score of each class: (N, m, C)."""
        found = self.trees.explained(self.against.contributions(cells))
        return np.concatenate([-found, found], 2) if found.shape[2] == 1 else found

    def verdicts(
        self,
        people: pd.DataFrame,
        moves: TableMoves,
        question: Question,
        *,
        most_boxes: int = MOST_BOXES,
        seconds: float | None = None,
        enumerated: int = ENUMERATED,
    ) -> list[ReasonVerdict]:
        """The verdict on each decision.

        A decision for which `most_boxes` do not suffice, or so many `seconds` of the processor, is
        undetermined; where a move was found that breaks it, it may then not be the smallest. Where
        moves lead to no more than `enumerated` cells, all are looked at.
        """
        trees = self.trees
        numbers = [each.name for each in trees.attributes if isinstance(each, NumberBands)]
        moves.check_names(numbers, [name for name in trees.names if name not in numbers])
        members = question.members(trees.names)
        labels = question.labels(trees.names)
        cells, values = trees.cells(people), trees.values(people)
        decided, phi = self.decided(cells), self.contributions(cells)
        found = []
        for row, (cell, label) in enumerate(zip(cells, decided.tolist(), strict=True)):
            own = [each[row] for each in values]
            shown = shown_as(phi[row, :, label] @ members, question.side)
            person = _Person(
                asked=self,
                cell=cell,
                values=own,
                way=reachable(trees.attributes, own, moves),
                label=label,
                moves=moves,
                question=question,
                members=members,
                top=tuple(np.argsort(-shown, kind="stable")[: question.k].tolist()),
                limit=_Limit(boxes=most_boxes, seconds=seconds),
            )
            found.append(person.verdict(labels, trees.classes[label], enumerated))
        return found


class _Limit:
    """What may be spent on one decision."""

    def __init__(self, boxes: int, seconds: float | None) -> None:
        self.boxes, self.start = boxes, time.process_time()
        self.seconds = math.inf if seconds is None else seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is spent."""
        return self.seconds < math.inf and time.process_time() - self.start > self.seconds

    def check(self) -> None:
        """Stop if it is."""
        if self.is_over:
            raise _SpentError


class _SpentError(Exception):
    """More time, or more cells of a single leaf, would be needed than may be spent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Axis:
    """An attribute that moves: its place, the cells it can become, and how large each change is.

    Of cells that no tree tells apart the nearest stands for all; `own` is the person's.
    """

    place: int
    codes: Codes
    sizes: Floats
    own: int
    exchanged: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _Joint:
    """Leaves that look at the same few attributes, all combinations of what these can become.

    `axes` are the numbers of the attributes among those that move, `kinds` which kind each of their
    cells is, (n,), rising, and `told`, (kinds..., labels + margins), what is said: the labels'
    values, and the margins of the decided class.
    """

    axes: tuple[int, ...]
    kinds: tuple[Codes, ...]
    told: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class _Person:
    """A decision: where it stands, what its attributes can become, and its reasons."""

    asked: TreeReasons
    cell: Codes
    values: Sequence[Any]
    way: Way
    label: int
    moves: TableMoves
    question: Question
    members: Floats
    top: tuple[int, ...]
    limit: _Limit
    known: dict[tuple[int, ...], tuple[tuple[int, ...], bool]] = field(default_factory=dict)

    # --- what it can become ---------------------------------------------------------------------

    @cached_property
    def axes(self) -> list[_Axis]:
        """The attributes that reach cells which trees tell apart."""
        found = []
        for place, way in enumerate(self.way):
            codes = np.array(sorted(way), dtype=np.intp)
            asked = self.asked.against.table.admitted[place][:, codes]
            different: dict[bytes, list[int]] = {}
            for at, answers in enumerate(asked.T):
                different.setdefault(answers.tobytes(), []).append(at)
            if len(different) == 1:
                continue
            sizes = np.array([self._size_of(place, code) for code in codes.tolist()])
            nearest = np.array([min(own, key=sizes.__getitem__) for own in different.values()])
            axis = _Axis(
                place=place,
                codes=codes[nearest],
                sizes=sizes[nearest],
                own=int(np.flatnonzero(codes[nearest] == self.cell[place])[0]),
                exchanged=self.asked.trees.names[place] in self.moves.exchange,
            )
            found.append(axis)
        return found

    def _size_of(self, place: int, code: int) -> float:
        """How large the change of an attribute to another cell is."""
        if code == self.cell[place]:
            return 0.0
        name = self.asked.trees.names[place]
        return self.moves.size_of({name: self.values[place]}, {name: self.way[place][code]})

    @cached_property
    def own(self) -> Codes:
        """The places of the person's own cells: (axes,)."""
        return np.array([axis.own for axis in self.axes], dtype=np.intp)

    @cached_property
    def _exchanged(self) -> Mask:
        return np.array([axis.exchanged for axis in self.axes], dtype=bool)

    def total(self, parts: Floats) -> Floats:
        """How large moves are, of the sizes of their parts: (N, axes) -> (N,)."""
        words = np.where(self._exchanged, parts, 0.0).sum(1)
        numbers = np.where(self._exchanged, 0.0, parts).max(1, initial=0.0)
        squares = np.sqrt((parts**2).sum(1))
        found: Floats = squares if self.moves.norm == "l2" else np.maximum(words, numbers)
        return found

    def sizes(self, places: Codes) -> Floats:
        """How large the moves to cells are: (N, axes) -> (N,)."""
        if not self.axes:
            return np.zeros(len(places))
        return self.total(
            np.stack([x.sizes[p] for x, p in zip(self.axes, places.T, strict=True)], 1)
        )

    # --- what trees say of it -------------------------------------------------------------------

    @property
    def labels(self) -> int:
        """How many labels there are to choose reasons among."""
        return int(self.members.shape[1])

    def exactly(self, places: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """The reasons in one cell as they are told there, and whether the decision stays."""
        key = tuple(int(each) for each in places)
        if key not in self.known:
            cell = self.cell[None].copy()
            for axis, place in zip(self.axes, key, strict=True):
                cell[0, axis.place] = axis.codes[place]
            phi = self.asked.contributions(cell)[0, :, self.label] @ self.members
            shown = shown_as(phi, self.question.side)
            top = tuple(np.argsort(-shown, kind="stable")[: self.question.k].tolist())
            self.known[key] = top, int(self.asked.decided(cell)[0]) == self.label
        return self.known[key]

    def _told(self, against: Against, cells: Codes, cut: float) -> Floats:
        """Values of labels and margins of the decided class: (N, labels + margins)."""
        trees = self.asked.trees
        phi = trees.explained(against.contributions(cells))
        scores = trees.deciding(against.table.scores(cells))
        if phi.shape[2] == 1:
            sign = 1.0 if self.label == 1 else -1.0
            own, margins = sign * phi[..., 0], sign * (scores - cut)
        else:
            own = phi[..., self.label]
            margins = scores[:, self.label, None] - np.delete(scores, self.label, 1)
        told = own @ self.members
        if self.question.side == "against":
            told = -told
        return np.concatenate([told, margins], 1)

    @cached_property
    def _active(self) -> list[Mask]:
        """Which leaves of each group say something else in some of the cells within reach."""
        table = self.asked.against.table
        varies = np.zeros(table.starts[-1], dtype=bool)
        for axis in self.axes:
            own = table.admitted[axis.place][:, axis.codes]
            start, end = table.starts[axis.place], table.starts[axis.place + 1]
            varies[start:end] = own.any(1) & ~own.all(1)
        return [np.asarray(varies[group.question].any(1)) for group in table.groups]

    @cached_property
    def constant(self) -> Floats:
        """What is said by all leaves that always say the same: (labels + margins,)."""
        against = self.asked.against
        rest = against.some([~each for each in self._active])
        found: Floats = self._told(rest, self.cell[None], 0.0)[0]
        base = self.asked.trees.deciding(against.table.constant)
        if len(base) == 1:
            margins = (1.0 if self.label == 1 else -1.0) * (base - self.asked.cut)
        else:
            margins = base[self.label] - np.delete(base, self.label)
        found[self.labels :] += margins
        return found

    @cached_property
    def joints(self) -> list[_Joint]:
        """The leaves that can change their mind, put together by what they look at."""
        if not self.axes:
            return []
        table = self.asked.against.table
        starts = np.cumsum([0, *(len(axis.codes) - 1 for axis in self.axes)])
        cuts = np.zeros((table.starts[-1], starts[-1]), dtype=bool)
        for axis, first, last in zip(self.axes, starts, starts[1:], strict=False):
            own = table.admitted[axis.place][:, axis.codes]
            asked = slice(table.starts[axis.place], table.starts[axis.place + 1])
            cuts[asked, first:last] = own[:, 1:] != own[:, :-1]
        leaves, trees = [], []
        for group, active in zip(table.groups, self._active, strict=True):
            leaves.append(cuts[group.question[active]].any(1))
            trees.append(group.tree[active])
        places = np.concatenate([np.flatnonzero(active) for active in self._active])
        groups = np.repeat(np.arange(len(trees)), [len(each) for each in trees])
        told = _put_together(np.concatenate(leaves), np.concatenate(trees), starts, self.limit)
        found = []
        for chosen, looks in told:
            self.limit.check()
            masks = [np.zeros(len(each), dtype=bool) for each in self._active]
            for number in np.unique(groups[chosen]).tolist():
                masks[number][places[chosen][groups[chosen] == number].astype(np.intp)] = True
            kinds = [
                (axis, np.concatenate([[0], np.cumsum(looks[first:last])]))
                for axis, (first, last) in enumerate(itertools.pairwise(starts.tolist()))
                if looks[first:last].any()
            ]
            found.append(self._joint(masks, kinds))
        return found

    def _joint(self, chosen: Sequence[Mask], looks: Sequence[tuple[int, Codes]]) -> _Joint:
        some = self.asked.against.some(chosen)
        first = [
            self.axes[axis].codes[np.flatnonzero(np.diff(kinds, prepend=-1))]
            for axis, kinds in looks
        ]
        grid = np.stack([each.ravel() for each in np.meshgrid(*first, indexing="ij")], 1)
        cells = np.repeat(self.cell[None], len(grid), 0)
        cells[:, [self.axes[axis].place for axis, _ in looks]] = grid
        told = self._told(some, cells, 0.0)
        return _Joint(
            axes=tuple(axis for axis, _ in looks),
            kinds=tuple(kinds for _, kinds in looks),
            told=told.reshape(*(len(each) for each in first), -1),
        )

    @cached_property
    def tolerance(self) -> float:
        """Gaps that may be due to rounding."""
        most = np.abs(self.constant)
        for joint in self.joints:
            most = most + np.abs(joint.told).reshape(-1, len(most)).max(0)
        return NEAR * float(most.max())

    # --- the verdict ----------------------------------------------------------------------------

    def verdict(self, labels: Sequence[str], decision: Any, enumerated: int) -> ReasonVerdict:
        """What all moves do to the reasons of this decision."""
        try:
            if math.prod(len(axis.codes) for axis in self.axes) <= max(1, enumerated):
                told = self._enumerated(labels)
            else:
                told = self._searched(labels)
        except _SpentError:
            told = self._tried_alone(labels)
        return ReasonVerdict(
            decision=decision,
            reasons=tuple(labels[place] for place in self.top),
            moves=math.prod(len(own) for own in self.way),
            **told,
        )

    def _tried_alone(self, labels: Sequence[str]) -> dict[str, Any]:
        """The nearest changes of single attributes, each looked at without any table."""
        steps = sorted(
            (float(size), number, place)
            for number, axis in enumerate(self.axes)
            for place, size in enumerate(axis.sizes.tolist())
            if place != axis.own and size <= 1 + SLACK
        )
        for _, number, place in steps[:ALONE]:
            places = self.own.copy()
            places[number] = place
            top, stays = self.exactly(places.tolist())
            if stays and set(top) != set(self.top):
                return {
                    "verdict": "broken",
                    "by": "attack",
                    "core": (),
                    "kept": 0.0,
                    "breaking": self._breaking(places.tolist(), labels),
                    "unbroken": 0.0,
                }
        return {"verdict": "undetermined", "by": None, "unbroken": 0.0}

    def _breaking(self, places: Sequence[int], labels: Sequence[str]) -> Breaking:
        names = self.asked.trees.names
        moved = {
            names[axis.place]: self.way[axis.place][int(axis.codes[place])]
            for axis, place in zip(self.axes, places, strict=True)
            if place != axis.own
        }
        return Breaking(
            values=moved,
            size=float(self.sizes(np.array(places, dtype=np.intp)[None])[0]),
            reasons=tuple(labels[place] for place in self.exactly(places)[0]),
        )

    def _enumerated(self, labels: Sequence[str]) -> dict[str, Any]:
        """All cells within reach, each looked at."""
        counts = [np.arange(len(axis.codes)) for axis in self.axes]
        grid = np.stack([each.ravel() for each in np.meshgrid(*counts)], 1) if counts else None
        grid = np.zeros((1, 0), dtype=np.intp) if grid is None else grid
        size = self.sizes(grid)
        grid, size = grid[size <= 1 + SLACK], size[size <= 1 + SLACK]
        seen = _Cells(self, (np.zeros_like(self.own), np.array([len(c) - 1 for c in counts], int)))
        kept, stays = seen.kept(grid)
        grid, size, kept = grid[stays], size[stays], kept[stays]
        core = np.asarray(kept.all(0))
        broken = np.flatnonzero(~kept.all(1))
        breaking = None
        if len(broken):
            moved = (grid[broken] != self.own).sum(1)
            breaking = self._breaking(
                grid[broken[np.lexsort((moved, size[broken]))[0]]].tolist(), labels
            )
        return {
            "verdict": "broken" if breaking else "certified",
            "by": "enumerated",
            "core": tuple(labels[p] for p, c in zip(self.top, core.tolist(), strict=True) if c),
            "kept": float(kept.sum(1).min()) / self.question.k,
            "breaking": breaking,
            "unbroken": breaking.size if breaking else 1.0,
        }

    def _searched(self, labels: Sequence[str]) -> dict[str, Any]:
        """Bounds and a search for what they leave open."""
        whole: Box = (
            np.zeros_like(self.own),
            np.array([len(axis.codes) - 1 for axis in self.axes], dtype=np.intp),
        )
        cells = _Cells(self, whole)
        first = _Search(self, cells, self.top)
        smallest = _Outcome(found=None, complete=True, looked=0)
        kept = np.ones((0, self.question.k), dtype=bool)
        if first.can_break:
            tried = cells.near(TRIED)
            kept, stays = cells.kept(tried)
            smallest = first.smallest(tried[stays & ~kept.all(1)])
            kept = kept[stays]
        if smallest.found is None:
            if not smallest.complete:
                return {"verdict": "undetermined", "by": None, "unbroken": smallest.unbroken}
            return {
                "verdict": "certified",
                "by": "bound",
                "core": tuple(labels[place] for place in self.top),
                "kept": 1.0,
                "unbroken": 1.0,
            }
        core, least = self._stays(cells, np.concatenate([kept, cells.kept_at(smallest.found)]))
        return {
            "verdict": "broken",
            "by": "attack",
            "core": tuple(labels[place] for place in core),
            "kept": least / self.question.k,
            "breaking": self._breaking(smallest.found, labels),
            "unbroken": smallest.unbroken,
        }

    def _stays(self, cells: "_Cells", kept: Mask) -> tuple[list[int], int]:
        """The reasons that are known to stay in all moves, and how many stay at least.

        `kept` tells of some moves which of the reasons are left: (N, k).
        """
        left, core = self.limit.boxes, list[int]()
        try:
            for at, place in enumerate(self.top):
                if kept[:, at].all():
                    alone = _Search(self, cells, (place,)).any(left)
                    left -= alone.looked
                    if alone.found is not None:
                        kept = np.concatenate([kept, cells.kept_at(alone.found)])
                    elif alone.complete:
                        core.append(place)
            fewest = int(kept.sum(1).min())
            while fewest > len(core):
                fewer = _Search(self, cells, self.top, self.question.k - fewest + 1).any(left)
                left -= fewer.looked
                if fewer.found is None:
                    return core, fewest if fewer.complete else len(core)
                fewest = int(cells.kept_at(fewer.found).sum())
        except _SpentError:
            pass
        return core, len(core)


def _put_together(
    leaves: Mask, trees: Codes, starts: Codes, limit: _Limit
) -> list[tuple[Codes, Mask]]:
    """Leaves that are put in one table, and what they tell apart: as many as make few boxes.

    `leaves`, (L, cuts), says between which places of which attribute a leaf sees a difference;
    `starts` are the first cuts of each attribute.
    """
    if not len(leaves):
        return []
    units: list[tuple[Codes, Mask]] = []
    for tree in np.unique(trees).tolist():
        own = np.flatnonzero(trees == tree)
        looks = np.asarray(leaves[own].any(0))
        if _boxes(looks[None], starts)[0] <= LARGEST_TREE:
            units.append((own, looks))
        else:
            units += [(own[at : at + 1], leaves[own[at]]) for at in range(len(own))]
    counts = _boxes(np.array([looks for _, looks in units]).reshape(len(units), -1), starts)
    if len(counts) and counts.max() > LARGEST_LEAF:
        raise _SpentError
    members: list[list[Codes]] = []
    united = np.zeros((len(units), leaves.shape[1] if units else 0), dtype=bool)
    size = np.zeros(len(units))
    for at in np.argsort(-counts, kind="stable").tolist():
        limit.check()
        own, looks = units[at]
        there = len(members)
        both = _boxes(united[:there] | looks, starts)
        more = np.where(both <= np.maximum(MOST_PARTS, size[:there]), both - size[:there], np.inf)
        if there and (best := int(more.argmin())) >= 0 and more[best] <= MOST_PARTS:
            members[best].append(own)
            united[best] |= looks
            size[best] = both[best]
        else:
            members.append([own])
            united[there], size[there] = looks, counts[at]
    return [(np.concatenate(own), united[at]) for at, own in enumerate(members)]


def _boxes(looks: Mask, starts: Codes) -> Floats:
    """How many boxes of cells there are, of what is told apart: (N, cuts) -> (N,)."""
    sums = np.concatenate([np.zeros((len(looks), 1)), np.cumsum(looks, 1)], 1)
    kinds = np.diff(sums[:, starts], axis=1) + 1
    found: Floats = (kinds * (kinds + 1) / 2).prod(1)
    return found


# --- cells and boxes ----------------------------------------------------------------------------

Box = tuple[Codes, Codes]
"""For each attribute that moves the first and the last place of what it can become."""


class _Cells:
    """All tables within a box, one after the other, so that many cells are looked up at once.

    A place of an attribute has in `at`, (places, tables), what it adds to the numbers of cells, and
    a range of places in `ranges`, (places, places, tables), what it adds to those of boxes.
    """

    def __init__(self, person: _Person, box: Box) -> None:
        self.person, self.box = person, box
        low, high = box
        counts = (high - low + 1).tolist()
        self.constant = person.constant.copy()
        self.parts: list[Floats] = []
        kinds: list[list[tuple[int, Codes]]] = []
        for joint in person.joints:
            own = [
                (axis, k[low[axis] : high[axis] + 1] - k[low[axis]])
                for axis, k in zip(joint.axes, joint.kinds, strict=True)
            ]
            where = tuple(
                slice(int(k[low[axis]]), int(k[high[axis]]) + 1)
                for axis, k in zip(joint.axes, joint.kinds, strict=True)
            )
            part = joint.told[where]
            own = [(axis, k) for axis, k in own if k[-1] > 0]
            if own:
                kinds.append(own)
                self.parts.append(part.reshape(*(int(k[-1]) + 1 for _, k in own), -1))
            else:
                self.constant += part.ravel()
        tables = len(self.parts)
        self.at = [np.zeros((count, tables), dtype=np.intp) for count in counts]
        self.ranges = [np.zeros((count, count, tables), dtype=np.intp) for count in counts]
        self.starts = np.zeros(tables, dtype=np.intp)
        self.range_starts = np.zeros(tables, dtype=np.intp)
        cells = boxes = 0
        for table, own in enumerate(kinds):
            self.starts[table], self.range_starts[table] = cells, boxes
            step = range_step = 1
            for axis, k in reversed(own):
                count = int(k[-1]) + 1
                self.at[axis][:, table] = step * k
                first, last = k[:, None], k[None, :]
                number = first * count - first * (first - 1) // 2 + last - first
                self.ranges[axis][:, :, table] = range_step * np.where(last >= first, number, 0)
                step, range_step = step * count, range_step * count * (count + 1) // 2
            cells, boxes = cells + step, boxes + range_step
        flat = [part.reshape(-1, part.shape[-1]) for part in self.parts]
        self.flat = np.concatenate([np.zeros((0, len(self.constant))), *flat])

    def told(self, places: Codes) -> Floats:
        """What is said in cells: (N, axes) -> (N, labels + margins)."""
        found = np.empty((len(places), len(self.constant)))
        size = max(1, AT_ONCE // max(1, len(self.starts)))
        for first in range(0, len(places), size):
            some = slice(first, first + size)
            number = np.repeat(self.starts[None], len(places[some]), 0)
            for axis, low in enumerate(self.box[0]):
                number += self.at[axis][places[some, axis] - low]
            found[some] = self.constant + self.flat[number].sum(1)
        return found

    def kept(self, places: Codes) -> tuple[Mask, Mask]:
        """Which of the reasons stay in cells, (N, k), and whether the decision does, (N,)."""
        person, n, k = self.person, self.person.labels, self.person.question.k
        told = self.told(places)
        shown = np.abs(told[:, :n]) if person.question.side == "both" else told[:, :n]
        order = np.argsort(-shown, 1, kind="stable")
        ranked = np.take_along_axis(shown, order, 1)
        stays = np.asarray((told[:, n:] > 0).all(1))
        margin = told[:, n:].min(1)
        near = (ranked[:, k - 1] - ranked[:, k] <= person.tolerance) & (margin >= -person.tolerance)
        near |= np.abs(margin) <= person.tolerance
        tops = order[:, :k]
        for at in np.flatnonzero(near).tolist():
            tops[at], stays[at] = person.exactly(places[at])
        return (tops[:, :, None] == np.array(person.top)).any(1), stays

    def kept_at(self, places: Sequence[int]) -> Mask:
        """Which of the reasons stay in one cell: (1, k)."""
        return self.kept(np.array([places], dtype=np.intp))[0]

    def near(self, most: int) -> Codes:
        """Cells of the box that one change or two lead to, the nearer places first: (N, axes)."""
        person = self.person
        low, high = self.box
        budget = max(64, most // max(1, len(self.starts)))
        few = max(1, int(math.sqrt(2 * budget) / max(1, len(person.axes))))
        steps = []
        for number, axis in enumerate(person.axes):
            places = np.arange(low[number], high[number] + 1)
            places = places[places != axis.own]
            nearer = places[np.argsort(axis.sizes[places], kind="stable")]
            steps += [(number, place) for place in nearer[: 4 * few].tolist()]
        found = [person.own.copy() for _ in steps]
        for row, (number, place) in zip(found, steps, strict=True):
            row[number] = place
        nearest = sorted(steps, key=lambda step: person.axes[step[0]].sizes[step[1]])
        for (one, place), (other, second) in itertools.combinations(nearest, 2):
            if len(found) >= budget:
                break
            if one != other:
                row = person.own.copy()
                row[one], row[other] = place, second
                found.append(row)
        grid = np.array(found, dtype=np.intp).reshape(-1, len(person.axes))
        return grid[person.sizes(grid) <= 1 + SLACK]


# --- search -------------------------------------------------------------------------------------


_Best = tuple[float, tuple[int, ...]]
"""How large the smallest move is that was found, and its places."""


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The places of the move found, if any, and whether all boxes that matter were closed.

    No move smaller than `unbroken` breaks; `looked` is how many boxes were cut.
    """

    found: tuple[int, ...] | None
    complete: bool
    looked: int
    unbroken: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Open:
    """A box that is not closed: the numbers of its boxes of tables, and its pairs' least gaps."""

    low: Codes
    high: Codes
    number: Codes
    gaps: Floats
    within: float


class _Search:
    """A search for a move after which `fewest` of the reasons, of those `watched`, are none.

    A reason is none if k other labels are worth more. Fewest of several are none only if as many
    labels that are no reasons are worth more than each of them.
    """

    def __init__(
        self, person: _Person, cells: _Cells, watched: Sequence[int], fewest: int = 1
    ) -> None:
        self.person, self.cells = person, cells
        self.watched, self.fewest = list(watched), fewest
        self.alone = len(self.watched) == 1
        self.both = person.question.side == "both"
        self.tolerance = person.tolerance
        self.places = [person.top.index(place) for place in self.watched]
        others = [place for place in range(person.labels) if place not in person.top]
        if self.alone:
            others += [place for place in person.top if place != self.watched[0]]
        self.first = np.array([i for i in self.watched for _ in others], dtype=np.intp)
        self.second = np.array([j for _ in self.watched for j in others], dtype=np.intp)
        self._prepare_ties()
        values = self._functions(cells.flat)
        if len(cells.starts):
            least = np.minimum.reduceat(values, cells.starts, 0).sum(0)
        else:
            least = np.zeros(values.shape[1])
        self.base = self._functions(cells.constant[None])[0]
        gaps, stays = self._gaps((least + self.base)[None])
        self.gaps = gaps[0]
        self.can_break = bool(stays[0]) and self._may_break(self.gaps)

    def _prepare_ties(self) -> None:
        """Find pairs whose equal values are no rounding: one of them is 0 throughout."""
        dead = (self.cells.constant == 0) & (self.cells.flat == 0).all(0)
        earlier = self.first < self.second
        self.tied = earlier & (dead[self.first] | dead[self.second])
        # Of what is worth nothing, the earlier is told first.
        self.never = earlier & dead[self.second] & (dead[self.first] | self.both)

    # --- bounds ---------------------------------------------------------------------------------

    def _functions(self, told: Floats) -> Floats:
        """What is bounded from below, of what is said: (N, labels + margins) -> (N, functions).

        The opposite of margins, then gaps: of values of either sign those of both signs.
        """
        n = self.person.labels
        first, second = told[:, self.first], told[:, self.second]
        gaps = [first - second]
        if self.both:
            gaps = [first - second, first + second, -first - second, second - first]
        return np.concatenate([-told[:, n:], *gaps], 1)

    def _gaps(self, least: Floats) -> tuple[Floats, Mask]:
        """Of the least of all functions the pairs' least gaps, and whether a decision may stay."""
        margins = least.shape[1] - len(self.first) * (4 if self.both else 1)
        found = least[:, margins:]
        if self.both:
            parts = found.reshape(len(found), 4, -1)
            found = np.maximum(parts[:, :2].min(1), parts[:, 2:].min(1))
        return found, np.asarray((least[:, :margins] <= self.tolerance).all(1))

    def _is_open(self, gaps: Floats) -> Mask:
        closed = (gaps > self.tolerance) | (self.tied & (gaps >= 0)) | self.never
        found: Mask = ~closed
        return found

    def _may_break(self, gaps: Floats) -> bool:
        """Whether pairs with these least gaps are enough to lose reasons."""
        open_pairs = self._is_open(gaps)
        n, k = self.person.labels, self.person.question.k
        if self.alone:
            return bool(open_pairs[: n - k].any() and open_pairs.sum() >= k)
        table = open_pairs.reshape(len(self.watched), -1)
        return all(int((table.sum(axis) >= self.fewest).sum()) >= self.fewest for axis in (0, 1))

    def _critical(self, gaps: Floats) -> int:
        """The pair that must be closed to close a box."""
        if self.alone:
            open_pairs = np.flatnonzero(self._is_open(gaps))
            return int(open_pairs[np.argsort(gaps[open_pairs])[self.person.question.k - 1]])
        masked = np.where(self._is_open(gaps), gaps, np.inf).reshape(len(self.watched), -1)
        order = np.argsort(masked, 1)[:, self.fewest - 1]
        row = np.argsort(masked[np.arange(len(masked)), order])[self.fewest - 1]
        return int(row * masked.shape[1] + order[row])

    @cached_property
    def _least(self) -> Floats:
        """The least of each function in each box of each table: (functions, boxes)."""
        cells = self.cells
        values = self._functions(cells.flat)
        found, start = [], 0
        for part in cells.parts:
            self.person.limit.check()
            count = math.prod(part.shape[:-1])
            own = values[start : start + count].reshape(*part.shape[:-1], -1)
            start += count
            for axis in range(own.ndim - 1):
                parts = [
                    np.minimum.accumulate(own[(slice(None),) * axis + (slice(low, None),)], axis)
                    for low in range(own.shape[axis])
                ]
                own = np.concatenate(parts, axis)
            found.append(own.reshape(-1, own.shape[-1]))
        return np.ascontiguousarray(np.concatenate(found).T)

    # --- boxes ----------------------------------------------------------------------------------

    def _opened(self, low: Codes, high: Codes, within: float) -> _Open | None:
        """A box, None if nothing breaks in it."""
        number = self.cells.range_starts.copy()
        for own, a, b, start in zip(self.cells.ranges, low, high, self.cells.box[0], strict=True):
            number += own[a - start, b - start]
        gaps, stays = self._gaps(self._summed(number[None]))
        if not stays[0] or not self._may_break(gaps[0]):
            return None
        return _Open(low=low, high=high, number=number, gaps=gaps[0], within=within)

    def _summed(self, numbers: Codes) -> Floats:
        """The least of all functions in boxes: (N, tables) -> (N, functions)."""
        least = self._least[:, numbers.ravel()].reshape(-1, *numbers.shape)
        found: Floats = least.sum(2).T + self.base
        return found

    def _clipped(self, box: _Open, size: float) -> _Open | None:
        """The part of a box in which no attribute alone moves so far as `size`."""
        low, high = box.low.copy(), box.high.copy()
        for number, axis in enumerate(self.person.axes):
            few = np.flatnonzero(axis.sizes[low[number] : high[number] + 1] < size)
            if not len(few):
                return None
            low[number], high[number] = low[number] + few[0], low[number] + few[-1]
        if (low == box.low).all() and (high == box.high).all():
            return box
        return self._opened(low, high, size)

    def _nearest(self, box: _Open) -> tuple[tuple[int, ...], float]:
        """The cell of a box that is nearest to the person, and how large the move to it is."""
        places = [
            low + int(axis.sizes[low : high + 1].argmin())
            for axis, low, high in zip(
                self.person.axes, box.low.tolist(), box.high.tolist(), strict=True
            )
        ]
        return tuple(places), float(self.person.sizes(np.array(places, dtype=np.intp)[None])[0])

    def _halves(self, box: _Open) -> Iterator[_Open]:
        """The parts of a box, cut where that moves the bound most, in which reasons may break."""
        cuts, numbers = [], []
        pair = self._critical(box.gaps)
        for axis, (low, high) in enumerate(zip(box.low.tolist(), box.high.tolist(), strict=True)):
            if low < high:
                own, start = self.cells.ranges[axis], self.cells.box[0][axis]
                a, b = low - start, high - start
                numbers += [own[a, a:b] - own[a, b], own[a + 1 : b + 1, b] - own[a, b]]
                cuts += [(axis, low, cut) for cut in range(low, high)]
        if not cuts:
            return
        left = np.concatenate(numbers[::2]) + box.number
        right = np.concatenate(numbers[1::2]) + box.number
        gains = [self._gap_of(pair, each) - box.gaps[pair] for each in (left, right)]
        worth = np.minimum(*gains) + 0.1 * (gains[0] + gains[1])
        # Of cuts that move nothing one in the middle of many places.
        best = int(worth.argmax())
        if worth[best] <= 0:
            width = box.high - box.low
            axis = int(width.argmax())
            middle = int(box.low[axis]) + int(width[axis] - 1) // 2
            best = cuts.index((axis, int(box.low[axis]), middle))
        axis, _, cut = cuts[best]
        gaps, stays = self._gaps(self._summed(np.stack([left[best], right[best]])))
        for at, number in enumerate((left[best], right[best])):
            if stays[at] and self._may_break(gaps[at]):
                low, high = box.low.copy(), box.high.copy()
                if at:
                    low[axis] = cut + 1
                else:
                    high[axis] = cut
                yield _Open(low=low, high=high, number=number, gaps=gaps[at], within=box.within)

    def _gap_of(self, pair: int, numbers: Codes) -> Floats:
        """The least gap of one pair in boxes: (N, tables) -> (N,)."""
        pairs, functions = len(self.first), len(self.base)
        margins = functions - pairs * (4 if self.both else 1)
        rows = [margins + pair + pairs * at for at in range(4 if self.both else 1)]
        least = [self._least[row].take(numbers).sum(1) + self.base[row] for row in rows]
        found: Floats = least[0]
        if self.both:
            found = np.maximum(np.minimum(least[0], least[1]), np.minimum(least[2], least[3]))
        return found

    # --- moves that may break -------------------------------------------------------------------

    def _breaks(self, places: Codes) -> Mask:
        """Whether enough reasons of those that are watched are lost, and the decision stays."""
        kept, stays = self.cells.kept(places)
        found: Mask = ((~kept[:, self.places]).sum(1) >= self.fewest) & stays
        return found

    def _descended(self, box: _Open) -> tuple[int, ...]:
        """A cell of a box in which reasons are worth little more than others, by single changes."""
        places, before = np.array(self._nearest(box)[0], dtype=np.intp), math.inf
        steps = [
            (axis, place)
            for axis, (low, high) in enumerate(
                zip(box.low.tolist(), box.high.tolist(), strict=True)
            )
            for place in (range(low, high + 1) if low < high else ())
        ]
        while steps:
            tried = np.repeat(places[None], len(steps), 0)
            tried[np.arange(len(steps)), [axis for axis, _ in steps]] = [at for _, at in steps]
            leads = self._leads(tried)
            best = int(leads.argmin())
            if not leads[best] < before:
                break
            places, before = tried[best], float(leads[best])
        return tuple(places.tolist())

    def _leads(self, places: Codes) -> Floats:
        """By how much reasons lead, more where a move changes the decision: (N, axes) -> (N,)."""
        n, k = self.person.labels, self.person.question.k
        told = self.cells.told(places)
        shown = np.abs(told[:, :n]) if self.both else told[:, :n]
        top = shown[:, self.watched]
        if self.alone:
            rest = np.delete(shown, self.watched[0], 1)
            lead = top[:, 0] - np.partition(rest, -k, 1)[:, -k]
        else:
            rest = np.delete(shown, self.person.top, 1)
            own = np.partition(top, self.fewest - 1, 1)[:, self.fewest - 1]
            lead = own - np.partition(rest, -self.fewest, 1)[:, -self.fewest]
        lost = np.minimum(told[:, n:].min(1), 0.0)
        found: Floats = np.where(lost < 0, np.abs(self.gaps).max() + np.abs(lead) - lost, lead)
        return found

    def _polished(self, places: Sequence[int]) -> tuple[int, ...]:
        """A breaking move with attributes put back, one after the other, as far as it breaks."""
        found = np.array(places, dtype=np.intp)
        sizes = [axis.sizes[place] for axis, place in zip(self.person.axes, places, strict=True)]
        for number in np.argsort(sizes)[::-1].tolist():
            axis = self.person.axes[number]
            nearer = np.flatnonzero(axis.sizes < axis.sizes[found[number]])
            low, high = self.cells.box[0][number], self.cells.box[1][number]
            nearer = nearer[(nearer >= low) & (nearer <= high)]
            nearer = nearer[np.argsort(axis.sizes[nearer], kind="stable")]
            if len(nearer):
                tried = np.repeat(found[None], len(nearer), 0)
                tried[:, number] = nearer
                breaks = np.flatnonzero(self._breaks(tried))
                if len(breaks):
                    found = tried[breaks[0]]
        return tuple(found.tolist())

    def _size(self, places: Sequence[int]) -> float:
        return float(self.person.sizes(np.array(places, dtype=np.intp)[None])[0])

    # --- runs -----------------------------------------------------------------------------------

    def smallest(self, broken: Codes) -> _Outcome:
        """The smallest move that breaks; `broken` are cells in which reasons do, (N, axes)."""
        best: _Best = (1 + 2 * SLACK, ())
        if not len(broken):
            return self._told_shortly(self._run(best))
        places = self._polished(broken[self.person.sizes(broken).argmin()].tolist())
        best = (self._size(places), places)
        try:
            # What is farther than a move that breaks does not matter: tables become smaller.
            few = _Cells(self.person, self._within(best[0]))
            near = _Search(self.person, few, self.watched, self.fewest)
            return self._told_shortly(near._run(best))
        except _SpentError:
            return _Outcome(found=places, complete=False, looked=0)

    def _within(self, size: float) -> Box:
        """The box in which no attribute alone moves so far as `size`."""
        few = [np.append(np.flatnonzero(axis.sizes < size), axis.own) for axis in self.person.axes]
        return (
            np.array([own.min() for own in few], dtype=np.intp),
            np.array([own.max() for own in few], dtype=np.intp),
        )

    def _told_shortly(self, outcome: _Outcome) -> _Outcome:
        """The same move without changes that it breaks without."""
        if outcome.found is None:
            return outcome
        return replace(outcome, found=self._polished(outcome.found))

    def _run(self, best: _Best) -> _Outcome:
        looked, number = 0, itertools.count()
        unbroken = 0.0
        last: tuple[int, ...] = ()
        heap: list[tuple[float, int, _Open]] = []
        if self.can_break and len(self.cells.starts):
            start = self._opened(*self.cells.box, best[0])
            if start is not None:
                heap.append((0.0, next(number), start))
        elif self.can_break and self._breaks(self.person.own[None])[0]:
            best = (0.0, tuple(self.person.own.tolist()))
        while heap:
            distance, _, box = heapq.heappop(heap)
            unbroken = min(distance, best[0])
            if distance >= best[0]:
                break
            if looked >= self.person.limit.boxes or self.person.limit.is_over:
                return self._outcome(best, complete=False, looked=looked, unbroken=unbroken)
            looked += 1
            if box.within > best[0]:
                clipped = self._clipped(box, best[0])
                if clipped is None:
                    continue
                box = clipped
            nearest, distance = self._nearest(box)
            if distance >= best[0] or distance > 1 + SLACK:
                continue
            if nearest != last and self._breaks(np.array([nearest], dtype=np.intp))[0]:
                best = (distance, nearest)
                continue
            last = nearest
            if looked % EVERY == 1:
                tried = self._descended(box)
                if self._breaks(np.array([tried], dtype=np.intp))[0]:
                    places = self._polished(tried)
                    if (size := self._size(places)) < best[0] and size <= 1 + SLACK:
                        best = (size, places)
            for part in self._halves(box):
                away = self._nearest(part)[1]
                if away < best[0] and away <= 1 + SLACK:
                    heapq.heappush(heap, (away, next(number), part))
        return self._outcome(best, complete=True, looked=looked, unbroken=min(1.0, best[0]))

    def _outcome(self, best: _Best, *, complete: bool, looked: int, unbroken: float) -> _Outcome:
        found = best[1] if best[0] <= 1 + SLACK else None
        return _Outcome(found=found, complete=complete, looked=looked, unbroken=unbroken)

    def any(self, boxes: int) -> _Outcome:
        """Some move that breaks, the boxes with the least gaps looked at first."""
        looked, number = 0, itertools.count()
        heap: list[tuple[float, int, _Open]] = []
        if self.can_break and len(self.cells.starts):
            start = self._opened(*self.cells.box, math.inf)
            if start is not None:
                heap.append((0.0, next(number), start))
        while heap:
            if looked >= boxes or self.person.limit.is_over:
                return _Outcome(found=None, complete=False, looked=looked)
            _, _, box = heapq.heappop(heap)
            tried = self._descended(box) if looked % EVERY == 0 else self._nearest(box)[0]
            looked += 1
            if self._breaks(np.array([tried], dtype=np.intp))[0] and self._size(tried) <= 1 + SLACK:
                return _Outcome(found=tried, complete=True, looked=looked)
            for part in self._halves(box):
                if self._nearest(part)[1] <= 1 + SLACK:
                    gap = float(part.gaps[self._critical(part.gaps)])
                    heapq.heappush(heap, (gap, next(number), part))
        return _Outcome(found=None, complete=True, looked=looked)
