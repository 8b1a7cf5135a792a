from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from scipy import stats
from torch import Tensor

from closed_form import numbers
from r2et.core import ranking
from r2et.metrics.agreement import kendall, mse, pearson, precision_at_k, spearman

MEASURES: dict[str, Any] = {
    "pearson": pearson,
    "mse": mse,
    "kendall": kendall,
    "spearman": spearman,
}
REFERENCES: dict[str, Any] = {
    "pearson": lambda a, b: stats.pearsonr(a, b).statistic,
    "mse": lambda a, b: np.mean((a - b) ** 2),
    "kendall": lambda a, b: stats.kendalltau(a, b).statistic,
    "spearman": lambda a, b: stats.spearmanr(a, b).statistic,
}
CORRELATIONS = [name for name in MEASURES if name != "mse"]


def tied(*shape: int, seed: int) -> Tensor:
    drawn = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.double()


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("draw", [numbers, tied])
def test_agreement_is_that_of_scipy(name: str, draw: Any) -> None:
    before, after = draw(20, 9, seed=0), draw(20, 9, seed=1)
    expected = [REFERENCES[name](a, b) for a, b in zip(before.numpy(), after.numpy(), strict=True)]
    found = MEASURES[name](before, after)
    torch.testing.assert_close(found, torch.tensor(np.array(expected)))


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (2, 6), elements=some.floats(-1e3, 1e3, width=32)))
def test_correlations_are_finite_bounded_and_symmetric(rows: Any) -> None:
    before, after = torch.from_numpy(rows)[:, None].unbind()
    for name in CORRELATIONS:
        found = MEASURES[name](before, after)
        assert -1 <= found.item() <= 1
        torch.testing.assert_close(found, MEASURES[name](after, before))


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize("n", range(2, 20))
def test_a_constant_saliency_agrees_with_nothing(name: str, n: int) -> None:
    # The mean of many times 0.1 is not always 0.1 in binary: constancy must not hang on rounding.
    constant, other = torch.full((2, n), 0.1, dtype=torch.float64), numbers(2, n)
    assert MEASURES[name](constant, other).tolist() == [0.0, 0.0]
    assert MEASURES[name](other, constant).tolist() == [0.0, 0.0]
    assert MEASURES[name](constant, constant).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_correlation_does_not_hang_on_scale(scale: float) -> None:
    # In single precision the squares of such numbers underflow or overflow.
    before, after = numbers(3, 8).float(), numbers(3, 8, seed=1).float()
    small = pearson(before * scale, after * scale)
    torch.testing.assert_close(small, pearson(before, after))
    assert small.dtype == torch.float32


def test_extremes() -> None:
    row = numbers(1, 7)
    for name in CORRELATIONS:
        assert MEASURES[name](row, 2 * row + 1).item() == pytest.approx(1)
        assert MEASURES[name](row, -row).item() == pytest.approx(-1)
    assert mse(row, row).item() == 0


@pytest.mark.parametrize("name", MEASURES)
def test_an_example_is_compared_alone(name: str) -> None:
    before, after = numbers(5, 6), numbers(5, 6, seed=1)
    alone = [MEASURES[name](before[b : b + 1], after[b : b + 1]) for b in range(5)]
    torch.testing.assert_close(MEASURES[name](before, after), torch.cat(alone))


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((3,), (3,)), ((2, 1), (2, 1))])
def test_shapes_that_do_not_match_are_refused(name: str, shapes: Any) -> None:
    with pytest.raises(ValueError, match="one shape"):
        MEASURES[name](torch.ones(shapes[0]), torch.ones(shapes[1]))


def test_precision_is_that_of_the_ranking() -> None:
    assert precision_at_k is ranking.precision_at_k
