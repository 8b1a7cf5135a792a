"""Exact verdicts where attributes add up: each ranges over the bands within its reach on its own.

Of a score that is a sum over the attributes that can move, any number of them, nothing needs to be
enumerated but pairs: reasons change if one attribute that is no reason can come before one that
is, all others doing what they can for the decision to stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from r2et.core.arrays import Codes, Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """What one attribute can become: for each reachable band, the person's own being the first.

    `value` says how much it is a reason there, `score` what it adds to the score of the decided
    class, `size` how large the change is, as a share of how far it may move.
    """

    band: Codes
    value: Floats
    score: Floats
    size: Floats

    def within(self, size: float) -> "Choices":
        """Those that a change no larger than `size` reaches."""
        near = self.size <= size
        return Choices(
            band=self.band[near],
            value=self.value[near],
            score=self.score[near],
            size=self.size[near],
        )


@dataclass(frozen=True, kw_only=True)
class Apart:
    """What all moves do: the places of the reasons, those that always stay, how many stay at least.

    `change` is the band of each attribute after the smallest move that gives other reasons.
    """

    reasons: tuple[int, ...]
    core: tuple[int, ...]
    kept: int
    change: tuple[int, ...] | None
    size: float | None


def judged_apart(choices: Sequence[Choices], k: int, constant: float, *, closed: bool) -> Apart:
    """The verdict on one decision, which stays while constant + the scores of all is positive.

    With `closed` a sum of 0 is enough. The first of attributes with equal values comes first.
    """
    here = np.array([each.value[0] for each in choices])
    reasons = tuple(np.argsort(-here, kind="stable")[:k].tolist())
    case = _Case(choices=choices, reasons=reasons, constant=constant, closed=closed)
    sizes = np.unique(np.concatenate([each.size for each in choices]))
    if case.pair(float(sizes[-1])) is None:
        return Apart(reasons=reasons, core=reasons, kept=k, change=None, size=None)
    low, high = 0, len(sizes) - 1  # the smallest of the sizes that is enough
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if case.pair(float(sizes[middle])) else (middle + 1, high)
    change = case.pair(float(sizes[low]))
    assert change is not None
    return Apart(
        reasons=reasons,
        core=tuple(each for each in reasons if not case.leaves(each)),
        kept=k - case.most_leaving(),
        change=change,
        size=float(sizes[low]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Case:
    """One decision and what its attributes can become."""

    choices: Sequence[Choices]
    reasons: tuple[int, ...]
    constant: float
    closed: bool

    def _stays(self, score: float) -> bool:
        return score >= 0 if self.closed else score > 0

    def pair(self, size: float) -> tuple[int, ...] | None:
        """The bands after a change no larger than `size` that puts another before a reason."""
        near = [each.within(size) for each in self.choices]
        best = [int(each.score.argmax()) for each in near]
        most = self.constant + sum(each.score[at] for each, at in zip(near, best, strict=True))
        own = self.constant + sum(each.score[0] for each in near)
        for lower in self.reasons:
            for upper in set(range(len(near))) - set(self.reasons):
                a, b = near[lower], near[upper]
                before = (b.value > a.value[:, None]) | (
                    (b.value == a.value[:, None]) & (upper < lower)
                )
                if not before.any():
                    continue
                both = a.score[:, None] + b.score
                rest = most - a.score[best[lower]] - b.score[best[upper]]
                scores = np.where(before, both, -np.inf)
                if not self._stays(float(rest + scores.max())):
                    continue
                # Of those that do, the smallest change of the two; all others stay if they can.
                alone = both + (own - a.score[0] - b.score[0])
                sizes = np.maximum(a.size[:, None], b.size)
                enough = before & ((alone >= 0) if self.closed else (alone > 0))
                still = bool(enough.any())
                if not still:
                    enough = before & ((both + rest >= 0) if self.closed else (both + rest > 0))
                at = np.unravel_index(np.where(enough, sizes, np.inf).argmin(), sizes.shape)
                chosen = [0 if still else place for place in best]
                chosen[lower], chosen[upper] = int(at[0]), int(at[1])
                return tuple(
                    int(each.band[place]) for each, place in zip(near, chosen, strict=True)
                )
        return None

    def leaves(self, reason: int) -> bool:
        """Whether some move leaves a reason out: as many others as there are reasons before it."""
        k, own = len(self.reasons), self.choices[reason]
        others = [place for place in range(len(self.choices)) if place != reason]
        free = sum(float(self.choices[place].score.max()) for place in others)
        for value, score in zip(own.value, own.score, strict=True):
            losses = self._losses(others, reason, value, above=True)[:k]
            left = self.constant + float(score) + free - float(losses.sum())
            if len(losses) == k and self._stays(left):
                return True
        return False

    def most_leaving(self) -> int:
        """How many reasons can be left out at once.

        If t of them can come no earlier than some value and t others before it, at least t are out.
        """
        outside = [place for place in range(len(self.choices)) if place not in self.reasons]
        free = self.constant + sum(float(each.score.max()) for each in self.choices)
        most = 0
        for reason in self.reasons:
            for value in self.choices[reason].value:
                down = np.cumsum(self._losses(self.reasons, reason, value, above=False))
                up = np.cumsum(self._losses(outside, reason, value, above=True))
                enough = min(len(down), len(up))
                left = free - down[:enough] - up[:enough]
                most = max(most, sum(self._stays(float(each)) for each in left))
        return most

    def _losses(self, places: Sequence[int], reason: int, value: float, *, above: bool) -> Floats:
        """What the score loses at least where attributes come before a reason of that value.

        Or, not `above`, where they do not. Those of attributes that can, the least first.
        """
        losses = []
        for place in places:
            each = self.choices[place]
            before = (each.value > value) | ((each.value == value) & (place < reason))
            allowed = each.score[before == above]
            if len(allowed):
                losses.append(float(each.score.max() - allowed.max()))
        return np.sort(np.array(losses))
