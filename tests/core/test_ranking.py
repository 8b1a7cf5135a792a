from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from torch import Tensor

from closed_form import numbers
from r2et.core.ranking import (
    facing_count,
    facing_margin,
    facing_weights,
    margin_weights,
    order,
    precision_at_k,
    ties,
    top_k_mask,
    top_margin,
)
from r2et.metrics.individuality import distinct_sets

# Whole numbers tie often, the others hardly ever; -0.0 and 0.0 are equal and must tie.
SCORES = some.integers(-2, 2).map(float) | some.just(-0.0) | some.floats(-9, 9, width=32)


@some.composite
def two_saliencies(draw: Any) -> tuple[Tensor, Tensor, int]:
    """A saliency, the reference that ranks its features, and a k that suits both."""
    n = draw(some.integers(2, 7))
    rows = draw(arrays(np.float64, (2, draw(some.integers(1, 4)), n), elements=SCORES))
    saliency, reference = torch.from_numpy(rows).unbind()
    return saliency, reference, draw(some.integers(1, n - 1))


def slow_order(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda feature: (-row[feature], feature))


def gap(row: list[float], ranking: list[int], i: int, j: int) -> float:
    """h(x, i, j), features numbered from 1 by their rank."""
    return row[ranking[i - 1]] - row[ranking[j - 1]]


@settings(max_examples=150, deadline=None)
@given(two_saliencies())
def test_the_order_breaks_ties_by_feature_number(case: tuple[Tensor, Tensor, int]) -> None:
    saliency, _, k = case
    for row, found, top in zip(saliency, order(saliency), top_k_mask(saliency, k), strict=True):
        expected = slow_order(row.tolist())
        assert found.tolist() == expected
        assert top.nonzero().flatten().tolist() == sorted(expected[:k])


@settings(max_examples=150, deadline=None)
@given(two_saliencies())
def test_lead_matches_its_definition(case: tuple[Tensor, Tensor, int]) -> None:
    # The mean of h(x, i, j) over i <= k < j, features numbered as the reference ranks them.
    saliency, reference, k = case
    n = saliency.shape[1]
    found = top_margin(saliency, reference, k)
    for row, by, fast in zip(saliency.tolist(), reference.tolist(), found, strict=True):
        gaps = [
            gap(row, slow_order(by), i, j) for i, j in product(range(1, k + 1), range(k + 1, n + 1))
        ]
        assert len(gaps) == k * (n - k)
        assert fast.item() == pytest.approx(sum(gaps) / len(gaps), abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(two_saliencies(), some.data())
def test_facing_lead_matches_its_definition(
    case: tuple[Tensor, Tensor, int], data: some.DataObject
) -> None:
    # The mean of h(x, k - i + 1, k + i) over i = 1..k', by default as many as there is room for.
    saliency, reference, k = case
    most = min(k, saliency.shape[1] - k)
    pairs = data.draw(some.none() | some.integers(1, most))
    found = facing_margin(saliency, reference, k, pairs)
    for row, by, fast in zip(saliency.tolist(), reference.tolist(), found, strict=True):
        count = pairs or most
        gaps = [gap(row, slow_order(by), k - i + 1, k + i) for i in range(1, count + 1)]
        assert fast.item() == pytest.approx(sum(gaps) / count, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(two_saliencies())
def test_precision_ties_and_sets_match_their_definitions(
    case: tuple[Tensor, Tensor, int],
) -> None:
    before, after, k = case
    tops = [
        [frozenset(slow_order(row)[:k]) for row in rows]
        for rows in (before.tolist(), after.tolist())
    ]
    shared = [len(old & new) / k for old, new in zip(*tops, strict=True)]
    assert precision_at_k(before, after, k).tolist() == pytest.approx(shared)
    ranked = [sorted(row, reverse=True) for row in before.tolist()]
    assert ties(before, k).tolist() == [row[k - 1] == row[k] for row in ranked]
    assert distinct_sets(before, k) == len(set(tops[0]))


def test_the_sum_over_pairs_is_a_weighted_sum_of_features() -> None:
    # sum_{i <= k < j} h(x, i, j) = sum_i l_i I_i with l_i = n - k for the top k and -k for others:
    # each of the top k stands in n - k pairs with a plus, each of the others in k with a minus.
    saliency, n, k = numbers(5, 9), 9, 4
    weights = k * (n - k) * margin_weights(saliency, k)
    top = top_k_mask(saliency, k)
    torch.testing.assert_close(weights[top], torch.full((5 * k,), n - k, dtype=torch.float64))
    torch.testing.assert_close(weights[~top], torch.full((5 * (n - k),), -k, dtype=torch.float64))
    sums = [
        sum(gap(row, slow_order(row), i, j) for i in range(1, k + 1) for j in range(k + 1, n + 1))
        for row in saliency.tolist()
    ]
    assert (weights * saliency).sum(-1).tolist() == pytest.approx(sums)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_half_of_all_features_faces_the_other_half(k: int) -> None:
    # With n = 2k and k' = k both means are (sum of the top - sum of the rest) / k.
    saliency, reference = numbers(7, 2 * k), numbers(7, 2 * k, seed=1)
    torch.testing.assert_close(
        facing_margin(saliency, reference, k), top_margin(saliency, reference, k)
    )
    torch.testing.assert_close(facing_weights(reference, k), margin_weights(reference, k))


def test_leads_are_linear_in_the_saliency_and_constant_in_the_reference() -> None:
    saliency, reference = numbers(3, 7).requires_grad_(), numbers(3, 7, seed=1).requires_grad_()
    for found, weights in [
        (top_margin(saliency, reference, 2), margin_weights(reference, 2)),
        (facing_margin(saliency, reference, 2, 1), facing_weights(reference, 2, 1)),
    ]:
        by_saliency, by_reference = torch.autograd.grad(
            found.sum(), [saliency, reference], allow_unused=True
        )
        torch.testing.assert_close(by_saliency, weights)
        assert by_reference is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leads_keep_the_number_format(dtype: torch.dtype) -> None:
    saliency = numbers(3, 7).to(dtype)
    for found in (
        top_margin(saliency, saliency, 2),
        facing_margin(saliency, saliency, 2),
        precision_at_k(saliency, saliency, 2),
    ):
        assert found.dtype == dtype


@pytest.mark.parametrize("k", [-1, 0, 5, 6])
def test_a_k_that_splits_nothing_is_refused(k: int) -> None:
    saliency = numbers(2, 5)
    for measure in (top_k_mask, ties, distinct_sets, margin_weights, facing_weights):
        with pytest.raises(ValueError, match=rf"1\.\.4 for 5 features, got {k}"):
            measure(saliency, k)
    for compare in (top_margin, facing_margin, precision_at_k):
        with pytest.raises(ValueError, match=rf"1\.\.4 for 5 features, got {k}"):
            compare(saliency, saliency, k)


@pytest.mark.parametrize(("k", "pairs"), [(2, 0), (2, -1), (2, 3), (4, 2)])
def test_more_facing_pairs_than_features_are_refused(k: int, pairs: int) -> None:
    # k' features are needed on either side of place k, so k' <= min(k, n - k).
    with pytest.raises(ValueError, match="k' must lie"):
        facing_count(k, 5, pairs)
    with pytest.raises(ValueError, match="k' must lie"):
        facing_margin(numbers(2, 5), numbers(2, 5), k, pairs)


def test_explanations_of_different_shapes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="one shape"):
        precision_at_k(numbers(2, 5), numbers(1, 5), 2)


def test_an_empty_batch_has_no_sets() -> None:
    assert distinct_sets(numbers(0, 5), 2) == 0
    assert precision_at_k(numbers(0, 5), numbers(0, 5), 2).shape == (0,)


def test_the_top_k_of_rows_that_are_no_numbers_are_those_of_the_order() -> None:
    # Rows with ties at place k, with infinities and with NaN, together and alone.
    rows = torch.tensor(
        [
            [1.0, 1.0, 1.0, 1.0, 1.0],
            [torch.nan, 2.0, 1.0, 3.0, 0.0],
            [torch.inf, torch.inf, torch.inf, 0.0, 1.0],
            [-torch.inf, 0.0, -torch.inf, 5.0, 5.0],
            [5.0, 4.0, 3.0, 2.0, 1.0],
        ]
    )
    for k in range(1, 5):
        slow = torch.zeros_like(rows, dtype=torch.bool).scatter(-1, order(rows)[:, :k], True)
        assert torch.equal(top_k_mask(rows, k), slow)
        for row, expected in zip(rows, slow, strict=True):
            assert torch.equal(top_k_mask(row, k), expected)


def test_a_row_with_too_few_does_not_make_up_for_one_with_too_many() -> None:
    # At k = 2 NaN leaves one score within the first row, and a tie three within the second.
    rows = torch.tensor([[torch.nan, 3.0, 2.0, 1.0], [3.0, 2.0, 2.0, 1.0]])
    slow = torch.zeros_like(rows, dtype=torch.bool).scatter(-1, order(rows)[:, :2], True)
    assert slow.sum(-1).tolist() == [2, 2]
    assert torch.equal(top_k_mask(rows, 2), slow)
    assert top_k_mask(rows[:0], 2).shape == (0, 4)
