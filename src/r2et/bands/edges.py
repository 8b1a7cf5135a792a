"""Where the edges of bands lie: exactly, by dynamic programming, one attribute at a time.

Few edges that keep what a score says and lie where few people are: over all sets of edges the
smallest sum of two things, the mean squared distance of the score's curve from its mean in each
band, and a penalty times, for each edge, the share of people who could cross it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_CUTS = 256
"""How many places for an edge are looked at for one attribute."""
MOST_VALUES = 512
"""Of a number, at which a teacher's curve is read: twice the bins of its trees."""
EDGE = 0.01
"""What an edge costs besides, as a share of people: of two that nobody could cross, one is less."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """What a score says along one attribute.

    `values` are its different values, rising, `people` how many have each, `score` the mean
    contribution to the score there: (u,), (u,) and (u, C), C being 1 for two classes.
    """

    values: Floats
    people: Floats
    score: Floats

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return bool((self.values == np.round(self.values)).all())

    @cached_property
    def cuts(self) -> Floats:
        """The places at which an edge may lie: those of `cuts`."""
        return cuts(self)

    def crossing(self, edges: Floats, widths: tuple[float, ...]) -> Floats:
        """The share of people who can cross each edge by a move, the mean over widths: (E,)."""
        below = np.concatenate([[0.0], np.cumsum(self.people)])
        shares = [
            below[np.searchsorted(self.values, edges + width, side="right")]
            - below[np.searchsorted(self.values, edges - width, side="left")]
            for width in widths
        ]
        found: Floats = np.mean(shares, 0) / below[-1]
        return found


def cuts(curve: Curve, most: int = MOST_CUTS) -> Floats:
    """Places between neighbouring values at which an edge may lie, at numbers people would use.

    Each is the roundest number in the middle half between two neighbours, so that no value lies
    on an edge; between whole numbers one apart it is half-way. Of more than `most` places half are
    such that as many people stand between them, half evenly spaced.
    """
    values = curve.values
    places = np.arange(len(values) - 1)
    if len(places) > most:
        below = np.cumsum(curve.people)[:-1] / curve.people.sum()
        shares = np.linspace(0, 1, most // 2 + 2)[1:-1]
        spaced = np.linspace(values[0], values[-1], most // 2 + 2)[1:-1]
        chosen = [np.searchsorted(below, shares), np.searchsorted(values[1:], spaced)]
        places = np.unique(np.concatenate(chosen).clip(0, len(values) - 2))
    return np.array([_between(values[i], values[i + 1]) for i in places])


def _between(low: float, high: float) -> float:
    """The roundest number in the middle half between two, the nearest to the middle of those."""
    middle, quarter = low / 2 + high / 2, high / 4 - low / 4
    if not quarter > 0:  # neighbours that nothing lies between
        return high
    power = math.ceil(math.log10(quarter)) + 1
    for exponent in range(power, power - 3, -1):
        for first in (5.0, 2.0, 1.0):
            step = first * 10.0**exponent
            found = round(middle / step) * step
            found = round(found, max(0, -exponent)) if exponent > -300 else found
            if abs(found - middle) <= quarter and low < found < high:
                return float(found)
    return middle


def stable_edges(
    curve: Curve,
    widths: tuple[float, ...],
    penalty: float,
    *,
    least_people: float = 1.0,
    given: tuple[float, ...] = (),
    monotone: int = 0,
    least_edges: int = 0,
) -> Floats:
    """The edges of the bands of one attribute, rising: (E,).

    The set of edges at which mean (score - its mean in the band)^2 + penalty * sum over edges of
    (the share of people who can cross it + EDGE) is smallest. Bands hold `least_people` or more;
    `given` edges are among the set, whatever they cost. With `monotone` 1 the means of the bands
    rise, with -1 they fall. With `least_edges` 1 there is an edge if there is a place for one.
    """
    [found] = edges_by_penalty(
        curve,
        widths,
        (penalty,),
        least_people=least_people,
        given=given,
        monotone=monotone,
        least_edges=least_edges,
    )
    return found


def edges_by_penalty(
    curve: Curve,
    widths: tuple[float, ...],
    penalties: Sequence[float],
    *,
    least_people: float = 1.0,
    given: tuple[float, ...] = (),
    monotone: int = 0,
    least_edges: int = 0,
) -> list[Floats]:
    """The edges of `stable_edges` for each of several penalties."""
    if len(curve.values) < 2:
        return [np.array(sorted(given)) for _ in penalties]
    inner = [edge for edge in given if curve.values[0] < edge <= curve.values[-1]]
    outer = [edge for edge in given if edge not in inner]
    places = np.unique(np.concatenate([curve.cuts, inner]))
    crossing = curve.crossing(places, widths) + EDGE
    free = _problem(curve, places, np.isin(places, inner), least_people)
    found = []
    for penalty in penalties:
        cost = free.cost.copy()
        cost[:, 1:-1] += penalty * crossing
        problem = replace(free, cost=cost)
        chosen = problem.cheapest_rising(monotone) if monotone else problem.cheapest()
        if not chosen and least_edges:
            chosen = problem.single(monotone)
        edges = [*(float(places[place - 1]) for place in chosen), *outer]
        found.append(np.array(sorted(edges)))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problem:
    """Bands between places 0, the lower end, 1..m, where edges may be, and m + 1, the upper end.

    `cost[i, j]` is that of the band between places i and j and of the edge at j, infinite where
    there may be no such band; `mean[i, j]` the mean score there.
    """

    cost: Floats
    mean: Floats

    def cheapest(self) -> list[int]:
        """The places of the edges on the cheapest way from the lower end to the upper one."""
        ends = len(self.cost)
        best, before = np.zeros(ends), np.zeros(ends, dtype=int)
        for j in range(1, ends):
            ways = best[:j] + self.cost[:j, j]
            before[j] = ways.argmin()
            best[j] = ways[before[j]]
        found, j = [], int(before[-1])
        while j:
            found.append(j)
            j = int(before[j])
        return found[::-1]

    def cheapest_rising(self, direction: int) -> list[int]:
        """The same where the means of bands rise, or fall: the last band is part of the state."""
        ends, mean = len(self.cost), direction * self.mean
        best = np.full((ends, ends), np.inf)  # of the ways that end with the band (i, j)
        before = np.zeros((ends, ends), dtype=int)
        best[0] = self.cost[0]
        for i in range(1, ends - 1):
            # The bands that end where this one begins, by their means: of those no higher than
            # this one's, the one with the cheapest way to it.
            ranked = np.argsort(mean[:i, i], kind="stable")
            ways = best[ranked, i]
            lowest = np.minimum.accumulate(ways)
            which = np.maximum.accumulate(np.where(ways == lowest, np.arange(i), 0))
            count = np.searchsorted(mean[ranked, i], mean[i, i + 1 :], side="right")
            last = np.maximum(count - 1, 0)
            best[i, i + 1 :] = np.where(count > 0, lowest[last], np.inf) + self.cost[i, i + 1 :]
            before[i, i + 1 :] = ranked[which[last]]
        i, j = int(best[:, -1].argmin()), ends - 1
        if not np.isfinite(best[i, j]):
            raise ValueError(
                "no bands between the given edges have means that go one way only: give other "
                "edges, or leave the attribute free to rise and fall."
            )
        found = []
        while i:
            found.append(i)
            i, j = int(before[i, j]), i
        return found[::-1]

    def single(self, direction: int) -> list[int]:
        """The place of the one edge that costs least, none if there may be no edge."""
        costs = self.cost[0, 1:-1] + self.cost[1:-1, -1]
        if direction:
            goes = direction * (self.mean[1:-1, -1] - self.mean[0, 1:-1])
            costs = np.where(goes >= 0, costs, np.inf)
        return [int(costs.argmin()) + 1] if len(costs) and np.isfinite(costs.min()) else []


def _problem(
    curve: Curve, places: Floats, kept: NDArray[np.bool_], least_people: float
) -> _Problem:
    """The costs of all bands between some places, those `kept` being edges; edges cost nothing."""
    people, score = curve.people[:, None], curve.score
    moments = np.concatenate([people, people * score, people * (score**2).sum(1)[:, None]], 1)
    below = np.searchsorted(curve.values, places, side="left")
    sums = np.concatenate([np.zeros((1, moments.shape[1])), np.cumsum(moments, 0)])
    sums = sums[[0, *below, len(curve.values)]]
    inside = sums[None, :, :] - sums[:, None, :]  # [i, j]: between places i and j
    count = np.where(inside[..., 0] > 0, inside[..., 0], 1.0)  # of empty bands everything is zero
    totals = inside[..., 1:-1]
    spread = np.maximum(inside[..., -1] - (totals**2).sum(-1) / count, 0.0) / curve.people.sum()
    # Neither two places in one, nor over an edge that is kept, nor a band of too few people: but
    # for those that lie between neighbouring ends or kept edges, which there is no choice about.
    fixed = np.concatenate([[True], kept, [True]])
    number = np.cumsum(fixed)
    i, j = np.triu_indices(len(fixed), 1)
    over = number[j] - fixed[j] > number[i]
    between = fixed[i] & fixed[j] & ~over
    cost = np.full(spread.shape, np.inf)
    allowed = ~over & ((inside[i, j, 0] >= least_people) | between)
    cost[i[allowed], j[allowed]] = spread[i[allowed], j[allowed]]
    return _Problem(cost=cost, mean=totals[..., 0] / count)


def counted(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The different values, rising, and how many people have each, a row being its weight."""
    different, index = np.unique(values, return_inverse=True)
    people: Floats = np.bincount(index.ravel(), weights, len(different)).astype(np.float64)
    return different, people


def thinned(values: Floats, people: Floats) -> tuple[Floats, Floats]:
    """No more than MOST_VALUES of the values, each standing for those next to it."""
    if len(values) <= MOST_VALUES:
        return values, people
    spaced = np.linspace(values[0], values[-1], MOST_VALUES // 2)
    ranked = values[np.linspace(0, len(values) - 1, MOST_VALUES // 2).astype(int)]
    kept = np.unique(
        np.concatenate([ranked, values[np.searchsorted(values, spaced).clip(0, len(values) - 1)]])
    )
    nearest_kept = np.searchsorted((kept[1:] + kept[:-1]) / 2, values)
    standing = np.zeros(len(kept))
    np.add.at(standing, nearest_kept, people)
    return kept, standing
