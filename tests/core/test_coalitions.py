from itertools import combinations, permutations
from math import factorial

import pytest
import torch
from torch import Tensor

from closed_form import numbers
from r2et.core.coalitions import (
    Coalitions,
    every_coalition,
    ordered_coalitions,
    single_coalitions,
)


def scores_of(coalitions: Coalitions, values: Tensor) -> Tensor:
    """The value of each set, `values` holding one for each number whose bits are its members."""
    m = coalitions.members.shape[1]
    return values[(coalitions.members.long() << torch.arange(m)).sum(1)]


def shapley(values: Tensor, m: int) -> list[float]:
    """Shapley values from their definition, set by set."""
    found = []
    for a in range(m):
        others = [b for b in range(m) if b != a]
        total = 0.0
        for size in range(m):
            for chosen in combinations(others, size):
                number = sum(2**b for b in chosen)
                weight = factorial(size) * factorial(m - size - 1) / factorial(m)
                total += weight * float(values[number + 2**a] - values[number])
        found.append(total)
    return found


@pytest.mark.parametrize("m", [1, 2, 5])
def test_all_coalitions_are_weighted_as_the_definition_says(m: int) -> None:
    values, every = numbers(2**m, seed=m), every_coalition(m)
    assert len(every.members.unique(dim=0)) == 2**m
    found = scores_of(every, values) @ every.weights
    torch.testing.assert_close(found.tolist(), shapley(values, m))


def test_the_mean_over_all_orders_is_the_shapley_value() -> None:
    # The definition counts in how many of the m! orders the members of S stand before a.
    m, values = 4, numbers(16, seed=3)
    totals = torch.zeros(m, dtype=torch.float64)
    for order in permutations(range(m)):
        before = 0
        for a in order:
            totals[a] += (values[before + 2**a] - values[before]) / factorial(m)
            before += 2**a
    every = every_coalition(m)
    torch.testing.assert_close(scores_of(every, values) @ every.weights, totals)


def in_turn(order: tuple[int, ...], values: Tensor) -> Tensor:
    """What each attribute adds to those before it."""
    found, before = torch.zeros(len(order), dtype=torch.float64), 0
    for a in order:
        found[a] = values[before + 2**a] - values[before]
        before += 2**a
    return found


def test_orders_are_averaged_with_their_reverses() -> None:
    values, orders = numbers(16, seed=5), ((2, 0, 3, 1), (0, 1, 2, 3), (3, 0, 1, 2))
    drawn = ordered_coalitions(orders)
    scores = scores_of(drawn, values)
    assert drawn.parts is not None
    slow = [(in_turn(o, values) + in_turn(o[::-1], values)) / 2 for o in orders]
    torch.testing.assert_close(torch.einsum("k,pkm->pm", scores, drawn.parts), torch.stack(slow))
    torch.testing.assert_close(scores @ drawn.weights, torch.stack(slow).mean(0))


def test_the_average_of_all_orders_is_exact() -> None:
    values, drawn = numbers(16, seed=6), ordered_coalitions(tuple(permutations(range(4))))
    assert len(drawn.members) == 16  # no set twice
    torch.testing.assert_close(
        (scores_of(drawn, values) @ drawn.weights).tolist(), shapley(values, 4)
    )


def test_orders_add_up_exactly_and_are_exact_for_pairs_that_interact() -> None:
    # v(S) = sum of w_a and w_ab over S: of a pair's w_ab each gets a half, whatever the order of
    # others, as in an order and its reverse each of the two comes last once.
    m = 14
    single, pair = numbers(m, seed=7), numbers(m, m, seed=8).triu(1)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(1)).tolist()
    drawn = ordered_coalitions((tuple(order),))
    sets = drawn.members.double()
    scores = sets @ single + ((sets @ pair) * sets).sum(1)
    expected = single + (pair + pair.T).sum(1) / 2
    torch.testing.assert_close(scores @ drawn.weights, expected)
    torch.testing.assert_close((scores @ drawn.weights).sum(), single.sum() + pair.sum())


def test_attributes_alone_are_enough_for_a_sum() -> None:
    alone, w = single_coalitions(5), numbers(5)
    scores = alone.members.double() @ w + 3.0
    torch.testing.assert_close(scores @ alone.weights, w)
    assert alone.members[0].sum() == 0
    assert bool(alone.members[-1].all())
