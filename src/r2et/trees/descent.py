"""Edges of a reading by descent on what is wanted of it: that moves change fewer reasons.

An edge does harm where a move across it exchanges reasons, which no curve of a single attribute
shows: that depends on what all others say of the people who stand there. So edges are dropped,
shifted and added one after another, and what the trees say when they are read through them, of
people and of people after moves, is looked at itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd
import torch

from r2et.bands.attribute import Bands, NumberBands
from r2et.bands.values import medians
from r2et.core.arrays import Codes, Floats, Mask
from r2et.core.reasons import Side, shown_as
from r2et.core.rng import stream
from r2et.metrics.individuality import overlap
from r2et.trees.cells import CellTrees
from r2et.trees.reading import cells_of, different_cells

SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)
"""How many places an edge is tried to be moved by."""
NEW, ALONE = 6, 6
"""How many edges are tried beside those of a number, and how many in place of all of them."""
LOOKS = 160
"""How many sets of edges are tried from each start."""
EVERY = 4
"""Each fourth of the people is asked first: what is no better for them is not tried on all."""
STAYING = 0.5
"""The share of what was broken that may stay."""
OTHERS = 0.25
"""How much all that is taken counts beside what is taken most of."""
FEWER, OWN = 4.0, 0.8
"""What lacks of the share of people's own reasons, and that share: a little above what is asked."""
DISTANCE, EDGE = 1.0, 0.004
"""What scores of bands that say nothing would count beside a limit that is reached; and an edge."""
LEAST_GAIN = 1e-4

Edges = dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Which reasons are to stay, and how much more people may share of them."""

    k: int
    side: Side
    overlap_gain: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Reasons of people: the share that each width's moves break, and O within decided class."""

    broken: tuple[float, ...]
    overlap: float


def reasons_among(phi: Floats, second: Mask, side: Side, k: int) -> Mask:
    """Which attributes are the k reasons, of contributions to the second class: (D, N, m)."""
    signed = np.where(second, 1.0, -1.0)[:, None] * phi
    order = np.argsort(-shown_as(signed, side), -1, kind="stable")
    found = np.zeros(phi.shape, dtype=bool)
    np.put_along_axis(found, order[..., :k], True, -1)
    return found


def taken_of(shares: Sequence[float]) -> float:
    """How much is taken of several limits, each as a share of it: mostly what is taken most of."""
    return max(shares) + OTHERS * fmean(shares)


def left_to_wish(aim: Aim, before: Seen, now: Seen, own: float, distance: float) -> float:
    """What is left to wish, of what is broken at the width that fares worst and of the limit on O.

    Besides count the mean over all widths, what lacks of the share of people's `own` reasons, and
    the mean squared `distance` of the band's score from the person's, as a share of the variance of
    scores.
    """
    kept = [one / max(was, 1e-2) for one, was in zip(now.broken, before.broken, strict=True)]
    spent = max(0.0, now.overlap - before.overlap) / max(aim.overlap_gain, 1e-9)
    taken = taken_of([max(kept) / STAYING, spent])
    lacking = FEWER * max(0.0, OWN - own)
    return taken + OTHERS * fmean(kept) / STAYING + lacking + DISTANCE * distance


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """People, the first `count` of them after moves of each width, and rows of references.

    In a frame of `moved` these come again and again in their order.
    """

    rows: pd.DataFrame
    count: int
    moved: tuple[pd.DataFrame, ...]
    references: list[pd.DataFrame]

    def some(self, every: int) -> "People":
        """Every so-manieth of them."""
        moved = [
            each[np.arange(len(each)) % self.count % every == 0].reset_index(drop=True)
            for each in self.moved
        ]
        return People(
            rows=self.rows[::every].reset_index(drop=True),
            count=len(range(0, self.count, every)),
            moved=tuple(moved),
            references=self.references,
        )


def settled(
    trees: CellTrees,
    known: Mapping[str, Floats],
    people: People,
    cuts: Mapping[str, Floats],
    starts: Sequence[Edges],
    aim: Aim,
    *,
    least: float = 1.0,
    seed: int = 0,
) -> Edges:
    """Edges of each number for which less is left to wish than for any of those to start with.

    `known` are the numbers of all rows, whose median people bands are read by, and of which a band
    holds `least` or more; `cuts` the places where edges may be. Descents begin with the best of
    the starts and with the last, which is to be of few edges.
    """
    judge = Judge(trees, known, people, aim)
    few = Judge(trees, known, people.some(EVERY), aim)
    draw = stream(seed, "trees", "descent")
    # Many edges and few of them lead to different ends.
    begun = [min(starts, key=lambda each: judge(each)), starts[-1]]
    ends = [_descended(judge, few, cuts, each, least, draw) for each in begun]
    return min(ends, key=lambda each: judge(each))


def _count(edges: Edges) -> int:
    return sum(len(each) for each in edges.values())


def _descended(
    judge: "Judge",
    few: "Judge",
    cuts: Mapping[str, Floats],
    edges: Edges,
    least: float,
    draw: torch.Generator,
) -> Edges:
    """Where a descent from some edges ends."""
    best, best_few, looks = judge(edges), few(edges), LOOKS
    moving = [name for name in edges if len(cuts[name])]
    while moving and looks > 0:
        still = []
        for name in moving:
            better = False
            for own in proposals(edges[name], cuts[name], draw):
                if looks <= 0:
                    break
                if _crowded(judge.known[name], own, least):
                    continue
                tried = edges | {name: own}
                looks -= 1
                if few(tried) < best_few and (value := judge(tried)) < best - LEAST_GAIN:
                    edges, best, best_few, better = tried, value, few(tried), True
            if better:
                still.append(name)
        # A number for which nothing was better is not asked again.
        moving = still
    return edges


def proposals(
    edges: tuple[float, ...], cuts: Floats, draw: torch.Generator
) -> Iterator[tuple[float, ...]]:
    """Other sets of edges of a number: one dropped, shifted, or new, or one in place of all."""
    found: list[set[float]] = [set(edges) - {each} for each in edges]
    for each in edges:
        place = int(np.searchsorted(cuts, each))
        rest = set(edges) - {each}
        found += [rest | {float(cuts[place + by])} for by in SHIFTS if 0 <= place + by < len(cuts)]
    order = torch.randperm(len(cuts), generator=draw).tolist()
    found += [set(edges) | {float(cuts[place])} for place in order[:NEW]]
    found += [{float(cuts[place])} for place in order[NEW : NEW + ALONE]]
    for own in found:
        if own != set(edges):
            yield tuple(sorted(own))


def _crowded(numbers: Floats, edges: tuple[float, ...], least: float) -> bool:
    """Whether some band would hold too few; `numbers` are rising."""
    ends = [0, *np.searchsorted(numbers, edges, side="left"), len(numbers)]
    return bool(np.diff(ends).min() < least)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Column:
    """The cells of one number as bands show it: of people and moves, and of each reference."""

    rows: Codes
    references: list[Codes]


class Judge:
    """What is left to wish of trees read through bands of these edges.

    Decisions are those of the trees themselves: bands change what is told, not what is decided.
    """

    def __init__(
        self, trees: CellTrees, known: Mapping[str, Floats], people: People, aim: Aim
    ) -> None:
        self.trees, self.known, self.aim = trees, known, aim
        everything = pd.concat([people.rows, *people.moved], ignore_index=True)
        self.count, self.all = people.count, len(people.rows)
        self.ends = np.cumsum([self.all, *(len(each) for each in people.moved)])
        self.cells = cells_of(trees, everything)
        self.referred = [cells_of(trees, each) for each in people.references]
        self.values = {name: _numbers(everything, name) for name in known}
        self.reference = {
            name: [_numbers(each, name) for each in people.references] for name in known
        }
        cells, index = different_cells(self.cells)
        scores = trees.table.scores(cells)[index, 0]
        self.score, self.second = scores[: self.all], scores[: self.all] >= 0
        home = [np.tile(self.second[: self.count], len(own) // self.count) for own in people.moved]
        parts = zip(self.ends[:-1], self.ends[1:], home, strict=True)
        self.stays = [(scores[first:last] >= 0) == own for first, last, own in parts]
        self.decided = np.concatenate([self.second, *home])
        self.columns: dict[str, dict[tuple[float, ...], _Column]] = {name: {} for name in known}
        tops = self._tops(self.cells, self.referred)
        self.own, self.before = tops[:, : self.all], self._seen(tops)

    def __call__(self, edges: Edges) -> float:
        """What is left to wish, and a little for each edge."""
        now, own, distance = self.read(edges)
        wish = left_to_wish(self.aim, self.before, now, own, distance)
        return wish + EDGE * _count(edges)

    def read(self, edges: Edges) -> tuple[Seen, float, float]:
        """What people see, the share of their own reasons they keep, and the distance of scores."""
        cells, referred = self.cells.copy(), [each.copy() for each in self.referred]
        for name, own in edges.items():
            place, column = self.trees.names.index(name), self._column(name, own)
            cells[:, place] = column.rows
            for each, codes in zip(referred, column.references, strict=True):
                each[:, place] = codes
        tops = self._tops(cells, referred)
        kept = float((tops[:, : self.all] & self.own).sum(-1).mean() / self.aim.k)
        apart = self.trees.table.scores(cells[: self.all])[:, 0] - self.score
        spread = max(float(self.score.var()), 1e-9)
        return self._seen(tops), kept, float((apart**2).mean()) / spread

    def _column(self, name: str, edges: tuple[float, ...]) -> _Column:
        several = self.columns[name]
        if edges not in several:
            if len(several) > 1:  # only what holds now is asked for again
                del several[next(iter(several))]
            bands = self.trees.attributes[self.trees.names.index(name)]
            shown = np.append(medians(self.known[name], np.array(edges)), np.nan)
            codes = _codes(bands, shown)

            def seen(values: Floats) -> Codes:
                band = np.searchsorted(np.array(edges), values, side="right")
                return codes[np.where(np.isnan(values), len(codes) - 1, band)]

            several[edges] = _Column(
                rows=seen(self.values[name]),
                references=[seen(each) for each in self.reference[name]],
            )
        return several[edges]

    def _tops(self, cells: Codes, referred: Sequence[Codes]) -> Mask:
        several, index = different_cells(cells)
        table = self.trees.table
        phi = np.stack(
            [table.against(each).contributions(several)[index, :, 0] for each in referred]
        )
        return reasons_among(phi, self.decided, self.aim.side, self.aim.k)

    def _seen(self, tops: Mask) -> Seen:
        top, broken = tops[:, : self.count], []
        for first, last, stays in zip(self.ends[:-1], self.ends[1:], self.stays, strict=True):
            times = (last - first) // self.count
            other = (tops[:, first:last] != np.tile(top, (1, times, 1))).any(-1) & stays
            broken.append(float(other.reshape(len(top), times, -1).any(1).mean()))
        classes = torch.from_numpy(self.second.astype(np.intp))
        shared = [
            overlap(torch.from_numpy(own.astype(float)), self.aim.k, classes)
            for own in tops[:, : self.all]
        ]
        return Seen(broken=tuple(broken), overlap=fmean(each or 0.0 for each in shared))


def _numbers(rows: pd.DataFrame, name: str) -> Floats:
    found: Floats = rows[name].to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def _codes(bands: Bands, values: Floats) -> Codes:
    assert isinstance(bands, NumberBands)
    return bands.codes(values)
