"""Edges and points of the numbers that can move, by descent on what is wanted itself.

A score is what the attributes that no move changes say together, plus points for each band of each
number that can move. A move then leaves the contributions of the former alone, and each of the
latter ranges over the bands within reach on its own: reasons are broken if the largest value that
some attribute outside of them can take exceeds the smallest that one of them can. That is exact
(but for decisions that change as well, which would not count), and cheap enough to descend on:
log-loss + `broken` * share of people whose reasons break, the mean over widths
+ `overlap` * what people share above a limit + `edge` for each edge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from r2et.core.arrays import Codes, Floats
from r2et.core.reasons import Side, shown_as
from r2et.core.rng import stream

SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)
"""How many places an edge is tried to be moved by."""
NUDGES = (-0.1, -0.05, -0.02, 0.02, 0.05, 0.1)
"""What is tried to be added to the points of a band."""
NEW, LEAST_NEW = 60, 6
"""How many new edges are tried in a sweep, of all numbers, and of each at least."""
STRETCHES = (0.5, 0.8, 0.9, 1.1, 1.25)
"""By which the distances of points from their mean are tried to be multiplied."""
RIDGE = 1.0
"""Rows as which what a band was worth before counts beside its own."""
LEAST_GAIN = 1e-7
SWEEPS = 12
MANY_PEOPLE, EVERY = 1500, 6
"""Of so many people, each sixth is asked first: what is no better for them is not tried on all."""
LOWEST, HIGHEST = np.float32(-np.inf), np.float32(np.inf)
"""Values of people are compared in single precision: there are many, and none is near another."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which reasons are to stay, and what that is worth, in log-loss: see the head of this file.

    The second class is decided where log-odds are `threshold` or more.
    """

    k: int = 3
    side: Side = "against"
    threshold: float = 0.0
    broken: float = 0.05
    overlap: float = 1.0
    most_overlap: float | None = None
    edge: float = 2e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class Movable:
    """A number that can move: places for edges, and who can reach which.

    Between `cuts`, (c,), rising, lie c + 1 segments; values that are no numbers, such as missing
    ones, are `others` segments after them. `segments`, (N,), are those of all rows; `low` and
    `high`, (W, n), the lowest and the highest that a move of each width reaches from the people
    whose reasons are judged, in the segments of `people`, (n,), and `reference` that of each row of
    each draw of a reference, (D, R). `fixed` edges stay; `offers` are whole sets of edges
    that are worth a try. Bands hold `least` rows or more. With
    `monotone` 1 points rise from band to band, with -1 they fall.
    """

    cuts: Floats
    segments: Codes
    people: Codes
    low: Codes
    high: Codes
    reference: Codes
    others: int = 0
    fixed: frozenset[int] = frozenset()
    offers: tuple[tuple[int, ...], ...] = ()
    least: float = 1.0
    monotone: int = 0

    @property
    def count(self) -> int:
        """The number of segments."""
        return len(self.cuts) + 1 + self.others

    def bands(self, edges: Sequence[int]) -> Codes:
        """The band of each segment, of bands between these edges, which are numbers of cuts."""
        numbers = np.searchsorted(np.array(edges, dtype=np.intp), np.arange(len(self.cuts) + 1))
        return np.concatenate([numbers, len(edges) + 1 + np.arange(self.others)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """Edges of one number, by the numbers of their cuts, and points of each band, others last."""

    edges: tuple[int, ...]
    points: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """All rows, and some of them whose reasons are judged.

    `base`, (N,), is what the attributes that cannot move say, `y` the class of each row, 0 or 1 or
    the probability of 1, `weights` how often it counts for the loss. `judged`, (n,), are numbers of
    rows, `contributions`, (D, n, q), those of the attributes that cannot move, against each of D
    draws of a reference.
    """

    base: Floats
    y: Floats
    weights: Floats
    judged: Codes
    contributions: Floats


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What steps came to: log-loss, share broken at each width, what people share, the sum."""

    loss: float
    broken: tuple[float, ...]
    overlap: float
    total: float


def descend(
    people: People,
    numbers: Sequence[Movable],
    steps: Sequence[Steps],
    wish: Wish,
    *,
    sweeps: int = SWEEPS,
    seed: int = 0,
) -> tuple[list[Steps], Standing]:
    """Steps for which less is left to wish than for those given, and what they come to.

    Every sweep drops, shifts and adds edges and nudges points, one number after another, and keeps
    what makes the sum smaller; it ends early when nothing does.
    """
    search = _Search(people, numbers, steps, wish)
    draw = stream(seed, "bands", "descent")
    new = max(LEAST_NEW, NEW // len(numbers))
    moving = list(range(len(numbers)))
    for sweep in range(sweeps):
        # A number for which nothing was better is not asked again.
        moving = [place for place in moving if search.improve(place, new, sweep, draw)]
        if not moving:
            break
    return search.steps, search.standing()


def standing(
    people: People, numbers: Sequence[Movable], steps: Sequence[Steps], wish: Wish
) -> Standing:
    """What steps come to."""
    return _Search(people, numbers, steps, wish).standing()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rivals:
    """What all attributes but one come to, ranked by what they are worth where nothing moves.

    `last`, (D, n), is the value at place k: the number is a reason where it is worth more. There,
    reasons break if it can fall below `floor`, (W, D, n), and elsewhere if it can rise above
    `ceiling`; where they break whatever it does, these are infinite, and `broken` is the share of
    people of whom that is so, the mean over widths. In a group are the people of one predicted
    class and one draw: `having` says how many have each attribute among their first k, and `keys`,
    (D, n), are the number of a person's group times the attributes + the attribute at place k.
    """

    last: Floats
    floor: Floats
    ceiling: Floats
    broken: float
    having: Floats
    keys: Codes


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """Some of the people, and their rivals."""

    people: slice
    rivals: _Rivals


EVERYBODY = slice(None)


class _Search:
    """The steps so far and what they say of all rows."""

    def __init__(
        self, people: People, numbers: Sequence[Movable], steps: Sequence[Steps], wish: Wish
    ) -> None:
        self.people, self.numbers, self.steps, self.wish = people, numbers, list(steps), wish
        self._score()
        self.signs = np.zeros(len(people.judged))
        self._decide()

    def _score(self) -> None:
        said = self.people.base.copy()
        for number, steps in zip(self.numbers, self.steps, strict=True):
            said += steps.points[number.bands(steps.edges)[number.segments]]
        share = 1 / (1 + np.exp(-said))
        weights = self.people.weights
        losses = np.logaddexp(0, said) - self.people.y * said
        self.score, self.loss = said, float((weights * losses).sum() / weights.sum())
        self.slopes = weights * (share - self.people.y)
        self.bends = weights * np.maximum(share * (1 - share), 1e-6)

    def _decide(self) -> None:
        """Reasons are those of the class that is decided; each sweep holds on to it."""
        second = self.score[self.people.judged] >= self.wish.threshold
        signs = np.where(second, 1.0, -1.0)
        if not np.array_equal(signs, self.signs):
            self.signs = signs
            self.turns = shown_as(signs, self.wish.side).astype(np.float32)
            said = self.people.contributions
            self.fixed = said.shape[-1]
            self.ranges = [self._range(at, each) for at, each in enumerate(self.steps)]
            still = shown_as(signs[:, None] * said, self.wish.side).astype(np.float32)
            self.here = np.concatenate([still, *(each[0][..., None] for each in self.ranges)], -1)

    def _moved(self, place: int) -> None:
        """Take in other steps of one number."""
        self.ranges[place] = self._range(place, self.steps[place])
        self.here[..., self.fixed + place] = self.ranges[place][0]

    # --- what is judged -------------------------------------------------------------------------

    def standing(self) -> Standing:
        """What the steps come to."""
        asked = _Asked(people=EVERYBODY, rivals=self._rivals(0)[0])
        broken, shared = self._judged(0, self.steps[0], asked)
        return Standing(
            loss=self.loss,
            broken=tuple(broken.tolist()),
            overlap=shared,
            total=self._sum(self.loss, broken, shared, self._edges()),
        )

    def _edges(self) -> int:
        return sum(len(steps.edges) for steps in self.steps)

    def _sum(self, loss: float, broken: Floats, shared: float, edges: int) -> float:
        above = 0.0
        if self.wish.most_overlap is not None:
            above = max(0.0, shared - self.wish.most_overlap)
        wish = self.wish
        return loss + wish.broken * float(broken.mean()) + wish.overlap * above + wish.edge * edges

    def _range(
        self, place: int, steps: Steps, some: slice = EVERYBODY
    ) -> tuple[Floats, Floats, Floats]:
        """How much a number is a reason: where people stand (D, n), least and most (W, D, n)."""
        number, bands = self.numbers[place], self.numbers[place].bands(steps.edges)
        points = steps.points.astype(np.float32)
        usual = points[bands[number.reference]].mean(1)[:, None]
        low, high = bands[number.low[:, some]], bands[number.high[:, some]]
        here = points[bands[number.people[some]]]
        most = int((high - low).max(initial=0))
        reached = [points[np.minimum(low + step, high)] for step in range(most + 1)]
        if self.wish.side == "both":
            said = [np.abs(each[:, None] - usual) for each in reached]
            return np.abs(here - usual), reduce(np.minimum, said), reduce(np.maximum, said)
        # What is usual shifts all alike: least and most are found before it is taken off.
        turn = self.turns[some]
        said, shift = [turn * each for each in reached], turn * usual
        least, most_said = reduce(np.minimum, said), reduce(np.maximum, said)
        return turn * here - shift, least[:, None] - shift, most_said[:, None] - shift

    def _rivals(self, place: int, *parts: slice) -> list[_Rivals]:
        """Those of everybody, and of some parts of the people."""
        k, own = self.wish.k, self.fixed + place
        left = self.here.copy()  # what is not yet ranked
        left[..., own] = -np.inf
        top, last = [], left[..., 0]
        for _ in range(k):
            best = left.argmax(-1)[..., None]
            last = np.take_along_axis(left, best, -1)[..., 0]
            np.put_along_axis(left, best, -np.inf, -1)
            top.append(best[..., 0])
        before, at_k = top[:-1], top[-1]
        # Of the first k - 1 the smallest value that one can take, and of all behind place k the
        # largest; then those of the one at place k.
        values = [np.take_along_axis(self.here, each[..., None], -1)[..., 0] for each in before]
        still = [np.where(e < self.fixed, v, HIGHEST) for e, v in zip(before, values, strict=True)]
        shape = self.ranges[place][1].shape
        inside = np.broadcast_to(np.minimum.reduce([np.full(shape[1:], HIGHEST), *still]), shape)
        outside = np.broadcast_to(left[..., : self.fixed].max(-1, initial=-np.inf), shape)
        falls = rises = np.broadcast_to(last, shape)
        for at, (_, least, most) in enumerate(self.ranges):
            if at == place:
                continue
            name = self.fixed + at
            is_last = at_k == name
            is_before = np.logical_or.reduce(
                [np.zeros_like(is_last), *(each == name for each in before)]
            )
            inside = np.minimum(inside, np.where(is_before, least, HIGHEST))
            outside = np.maximum(outside, np.where(is_before | is_last, LOWEST, most))
            falls, rises = np.where(is_last, least, falls), np.where(is_last, most, rises)
        outside_1, inside_k = np.maximum(outside, rises), np.minimum(inside, falls)
        attributes = self.here.shape[-1]
        groups = (2 * np.arange(len(self.here))[:, None] + (self.signs > 0)) * attributes
        if_reason, if_none = outside_1 > inside, outside > inside_k
        floor = np.where(if_reason, HIGHEST, outside_1)
        ceiling = np.where(if_none, LOWEST, inside_k)

        def of(some: slice) -> _Rivals:
            named = np.stack([(groups + each)[:, some] for each in top])
            counted = np.bincount(named.ravel(), minlength=2 * len(self.here) * attributes)
            return _Rivals(
                last=np.ascontiguousarray(last[:, some]),
                floor=np.ascontiguousarray(floor[..., some]),
                ceiling=np.ascontiguousarray(ceiling[..., some]),
                broken=float((if_reason & if_none)[..., some].mean()),
                having=counted.reshape(-1, attributes).astype(np.float64),
                keys=named[-1],
            )

        return [of(some) for some in (EVERYBODY, *parts)]

    def _judged(self, place: int, steps: Steps, asked: _Asked) -> tuple[Floats, float]:
        """The share of people whose reasons break, for each width, and what people share."""
        rivals = asked.rivals
        here, least, most = self._range(place, steps, asked.people)
        among = here > rivals.last  # whether this number is a reason
        broken = np.where(among, least < rivals.floor, most > rivals.ceiling)
        shares = np.array([np.count_nonzero(each) / each.size for each in broken])
        return shares, self._shared(place, among, rivals)

    def _shared(self, place: int, among: NDArray[np.bool_], rivals: _Rivals) -> float:
        """The mean overlap of the reasons of two people of one predicted class."""
        groups, attributes = rivals.having.shape
        # Where this number is a reason, the last of the others is none.
        last = np.bincount(rivals.keys[among], minlength=groups * attributes)
        having = rivals.having - last.reshape(groups, attributes)
        having[:, self.fixed + place] += last.reshape(groups, attributes).sum(1)
        people = having.sum(1) / self.wish.k
        pairs = np.maximum(people * (people - 1) * self.wish.k, 1)
        shared = (having * (having - 1.0)).sum(1) / pairs
        return float((people * shared).sum() / max(people.sum(), 1))

    # --- what is tried --------------------------------------------------------------------------

    def improve(self, place: int, new: int, sweep: int, draw: torch.Generator) -> int:
        """Try all changes of one number, and say how many were kept."""
        self._decide()
        trial = _Trial(self, place, sweep)
        kept = trial.settle() + trial.jump() + trial.drop() + trial.shift()
        kept += trial.add(new, draw) + trial.stretch() + trial.nudge()
        self._moved(place)
        return kept


class _Trial:
    """Changes of the steps of one number, all else as it is."""

    def __init__(self, search: _Search, place: int, sweep: int) -> None:
        self.search, self.place, self.number = search, place, search.numbers[place]
        # Other people in each sweep: who was asked first has no more to say than all others.
        many = len(search.people.judged) >= MANY_PEOPLE
        parts = [slice(sweep % EVERY, None, EVERY)] if many else []
        rivals = search._rivals(place, *parts)
        self.everybody, *self.first = (
            _Asked(people=some, rivals=own)
            for some, own in zip((EVERYBODY, *parts), rivals, strict=True)
        )
        weights = search.people.weights
        self.rows = np.bincount(self.number.segments, weights, self.number.count)
        self._look()

    def _look(self) -> None:
        """What a change of the points of each segment would do to the loss."""
        search, number = self.search, self.number
        self.steps = search.steps[self.place]
        self.curve = self.steps.points[number.bands(self.steps.edges)]
        self.slopes = np.bincount(number.segments, search.slopes, number.count)
        self.bends = np.bincount(number.segments, search.bends, number.count)
        self.edges_elsewhere = search._edges() - len(self.steps.edges)
        self.total = self._total(search.loss, self.steps, self.everybody)
        self.totals = [self._total(search.loss, self.steps, asked) for asked in self.first]

    def _total(self, loss: float, steps: Steps, asked: _Asked) -> float:
        broken, shared = self.search._judged(self.place, steps, asked)
        return self.search._sum(loss, broken, shared, self.edges_elsewhere + len(steps.edges))

    def _worth(self, steps: Steps) -> float:
        """The sum with other steps, the loss by its first two derivatives."""
        number = self.number
        rising = np.diff(steps.points[: len(steps.edges) + 1])
        if number.monotone and (number.monotone * rising < 0).any():
            return np.inf
        change = steps.points[number.bands(steps.edges)] - self.curve
        by_loss = float((self.slopes * change + self.bends * change**2 / 2).sum())
        loss = self.search.loss + by_loss / float(self.search.people.weights.sum())
        # What is too dear even if no more reasons broke than must need not be judged.
        wish, edges = self.search.wish, self.edges_elsewhere + len(steps.edges)
        least = loss + wish.broken * self.everybody.rivals.broken + wish.edge * edges
        if least > self.total:
            return np.inf
        for asked, total in zip(self.first, self.totals, strict=True):
            if self._total(loss, steps, asked) >= total:
                return np.inf
        return self._total(loss, steps, self.everybody)

    def _with(self, edges: Sequence[int]) -> Steps | None:
        """Steps between other edges: bands that are new get points by a step of Newton's."""
        number, last = self.number, len(self.number.cuts) + 1
        starts = (0, *(edge + 1 for edge in self.steps.edges), last)
        known = dict(zip(pairwise(starts), self.steps.points, strict=False))
        ends = (0, *(edge + 1 for edge in edges), last)
        points = []
        for low, high in pairwise(ends):
            if (low, high) not in known:
                if self.rows[low:high].sum() < number.least:
                    return None
                bends, slopes = self.bends[low:high], self.slopes[low:high]
                before = float((bends * self.curve[low:high]).sum() / bends.sum())
                known[low, high] = before - float(slopes.sum() / (bends.sum() + RIDGE))
            points.append(known[low, high])
        others = self.steps.points[len(self.steps.edges) + 1 :]
        return Steps(edges=tuple(edges), points=np.array([*points, *others]))

    def _keep_best(self, proposals: Iterator[Steps | None]) -> int:
        """Keep the best of some proposals, if it is better than what is there."""
        worths = [(self._worth(steps), steps) for steps in proposals if steps is not None]
        worth, steps = min(worths, key=lambda each: each[0], default=(np.inf, self.steps))
        if worth >= self.total - LEAST_GAIN:
            return 0
        before, total = self.steps, self.total
        self.search.steps[self.place] = steps
        self.search._score()
        self._look()
        if self.total >= total - LEAST_GAIN:  # the loss is not quite what its derivatives say
            self.search.steps[self.place] = before
            self.search._score()
            self._look()
            return 0
        return 1

    def _free(self) -> list[int]:
        return [edge for edge in self.steps.edges if edge not in self.number.fixed]

    def settle(self) -> int:
        """Fit the points of all bands, each by a step of Newton's."""
        bands = self.number.bands(self.steps.edges)
        slopes, bends = np.bincount(bands, self.slopes), np.bincount(bands, self.bends)
        points = self.steps.points - slopes / (bends + RIDGE)
        return self._keep_best(iter([replace(self.steps, points=points)]))

    def jump(self) -> int:
        """Take other edges altogether."""
        return self._keep_best(self._with(edges) for edges in self.number.offers)

    def drop(self) -> int:
        """Leave out each edge."""
        return sum(
            self._keep_best(iter([self._with([e for e in self.steps.edges if e != edge])]))
            for edge in self._free()
        )

    def shift(self) -> int:
        """Move each edge by some places."""

        def moved(edge: int) -> Iterator[Steps | None]:
            rest = {each for each in self.steps.edges if each != edge}
            for shift in SHIFTS:
                if 0 <= edge + shift < len(self.number.cuts) and edge + shift not in rest:
                    yield self._with(sorted({*rest, edge + shift}))

        return sum(self._keep_best(moved(edge)) for edge in self._free())

    def add(self, new: int, draw: torch.Generator) -> int:
        """Try edges at places drawn at random."""
        kept = 0
        for cut in torch.randperm(len(self.number.cuts), generator=draw)[:new].tolist():
            if cut not in self.steps.edges:
                kept += self._keep_best(iter([self._with(sorted({*self.steps.edges, cut}))]))
        return kept

    def stretch(self) -> int:
        """Bring the points of all bands nearer to their mean, or further from it."""
        bands = self.number.bands(self.steps.edges)
        people = np.bincount(bands, self.rows, len(self.steps.points))
        mean = float(people @ self.steps.points / people.sum())
        points = self.steps.points - mean
        return self._keep_best(replace(self.steps, points=mean + by * points) for by in STRETCHES)

    def nudge(self) -> int:
        """Add a little to the points of each band."""

        def nudged(band: int) -> Iterator[Steps]:
            for nudge in NUDGES:
                points = self.steps.points.copy()
                points[band] += nudge
                yield replace(self.steps, points=points)

        return sum(self._keep_best(nudged(band)) for band in range(len(self.steps.points)))
