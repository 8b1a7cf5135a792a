"""Numbers of a network pulled back to its input: what combinations of them can be within a region.

Each value of a network is, number by number, a centre plus a deviation, and its deviation is a
linear map of those of the values it was made of, plus an error between two bounds. A combination of
numbers is carried back along these relations to the input, one map at a time; errors are added up
on the way with the weights that they meet. Convolutions stay convolutions: nothing is written out.
Numbers before an activation that may be on either side of its kink are *open*.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RelationStep = Callable[[Tensor], Tensor] | Tensor
"""What carries weights back through a linear map, or the factors (B, *S) of each example."""

TINY = 1e-300
"""More than what an operation loses of numbers too small for float64."""

MORE = 1 + 1e-9
"""What sums of as many numbers as a network has may be off by rounding, and much more."""


@dataclass(frozen=True, eq=False)
class Relation:
    """Deviations of a value: the sum of maps of those of other values, and an error.

    The error is between `low` <= 0 and `high` >= 0, like the value's numbers. All that rounding
    does, forwards to the centre and backwards to what is pulled through, is part of it.
    """

    edges: Sequence[tuple[int, Sequence[RelationStep]]]
    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False)
class Pulled:
    """Combinations of deviations: slopes (Q, d) times the input's move, plus `low` to `high` (Q,).

    The input's move is a vector in the unit ball or cube.
    """

    slopes: Tensor
    low: Tensor
    high: Tensor

    def range(self, norm: str) -> tuple[Tensor, Tensor]:
        """Least and greatest value in the unit ball or cube, rounded outwards: (Q,) each."""
        reach = length(self.slopes, norm)
        return self.low - reach, self.high + reach


def length(slopes: Tensor, norm: str) -> Tensor:
    """How far a move in the unit ball or cube carries what has these slopes: (Q,)."""
    if norm == "linf":
        return MORE * slopes.abs().sum(-1) + TINY
    reach: Tensor = torch.linalg.vector_norm(slopes, dim=-1)
    return MORE * reach + TINY


def pull(
    relations: Mapping[int, Relation],
    reach: Tensor,
    place: int,
    weights: Tensor,
    rows: Tensor,
) -> Pulled:
    """Combinations (Q, *S) of the deviations at a place, each of the example `rows` (Q,).

    `reach` (B, d) is how far each number of the input can move.
    """
    signals = {place: weights}
    low, high = weights.new_zeros(len(weights)), weights.new_zeros(len(weights))
    for here in range(place, 0, -1):
        if here not in signals:
            continue
        signal, relation = signals.pop(here), relations[here]
        flat = signal.flatten(1)
        up, down = flat.clamp_min(0), flat.clamp_max(0)
        least, most = relation.low.flatten(1)[rows], relation.high.flatten(1)[rows]
        low += MORE * ((up * least).sum(1) + (down * most).sum(1)) - TINY
        high += MORE * ((up * most).sum(1) + (down * least).sum(1)) + TINY
        for source, steps in relation.edges:
            found = signal
            for step in reversed(steps):
                found = found * step[rows] if isinstance(step, Tensor) else step(found)
            signals[source] = found if source not in signals else signals[source] + found
    if 0 not in signals:
        return Pulled(weights.new_zeros(len(weights), reach.shape[1]), low, high)
    return Pulled(signals[0].flatten(1) * reach[rows], low, high)


@dataclass(frozen=True, eq=False)
class OpenNumbers:
    """Open numbers as functions of the input, Q in all: `number` (B, units) tells which, or -1.

    Less the kink, each is `at` + `slopes` (Q, d) times the move of the input + something no larger
    than `slack`.
    """

    number: Tensor
    at: Tensor
    slopes: Tensor
    slack: Tensor


@dataclass(frozen=True, eq=False)
class Open:
    """Ranges of the numbers before an activation, and those that may be on either side."""

    low: Tensor
    high: Tensor
    numbers: OpenNumbers | None


def opened(
    which: Tensor, pulled: Pulled, centre: Tensor, low: Tensor, high: Tensor, kink: float
) -> OpenNumbers | None:
    """What is known of the numbers that are open still; None if there are none."""
    rows, unit = which.unbind(1)
    still = (low[rows, unit] <= kink) & (high[rows, unit] >= kink)
    rows, unit = rows[still], unit[still]
    if not len(rows):
        return None
    number = torch.full(centre.shape, -1, dtype=torch.long, device=centre.device)
    number[rows, unit] = torch.arange(len(rows), device=centre.device)
    middle, half = (pulled.low + pulled.high)[still] / 2, (pulled.high - pulled.low)[still] / 2
    at = centre[rows, unit] - kink
    slack = MORE * half + 1e-15 * (at.abs() + middle.abs() + half) + TINY
    return OpenNumbers(number, at + middle, pulled.slopes[still], slack)


def parts(count: int, each: int, most: int = 4_000_000) -> Iterator[slice]:
    """So many combinations in parts, whose numbers stay within a memory."""
    size = max(1, most // max(1, each))
    for start in range(0, count, size):
        yield slice(start, start + size)


def largest(shape: Sequence[int]) -> int:
    """How many numbers one example of a shape has."""
    return math.prod(shape)
