"""The ratio of Prop. 4.5 at x alone, against its definition pair by pair."""

import math

import pytest
import torch

from closed_form import Quadratic, numbers
from r2et.theory.bounds import uncertified_radius_at_x


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_ratio_at_x_is_the_least_of_all_pairs(k: int) -> None:
    # The log-odds of a quadratic have the slope Ax + b and the Hessian A: |g_i| has the slope
    # s_i A_i, with s_i the sign of g_i, as long as no sign changes. Of both classes, since the one
    # explained is predicted, ranking and ratio are the same.
    model, x = Quadratic(d=5, seed=3), numbers(6, 5, seed=4)
    A, b = model.A.detach(), model.b.detach()
    found = uncertified_radius_at_x(model, x, k=k, of="margin")
    for row, radius in zip(x, found.tolist(), strict=True):
        g = A @ row + b
        ranked = sorted(range(5), key=lambda i: -abs(float(g[i])))
        ratios = []
        for i in ranked[:k]:
            for j in ranked[k:]:
                turn = math.copysign(1, g[i]) * A[i] - math.copysign(1, g[j]) * A[j]
                ratios.append(float((g[i].abs() - g[j].abs()) / turn.norm()))
        assert radius == pytest.approx(min(ratios))
        assert k == 4 or max(ratios) > 1.01 * min(ratios)
    assert (found > 0).all()


def test_signs_of_the_gradient_count() -> None:
    # g = (2, -1) with A = [[1, 1], [1, 1]]: both scores |g| move by the same row, one up and one
    # down, so that the gap of 1 closes at 1 / ||A_1 + A_2|| = 1 / sqrt(8). With the rows as they
    # are nothing would move at all.
    A = torch.ones(2, 2, dtype=torch.float64)
    model = Quadratic(A=A, b=torch.tensor([2.0, -1.0], dtype=torch.float64))
    x = torch.zeros(1, 2, dtype=torch.float64)
    found = uncertified_radius_at_x(model, x, torch.tensor([1]), k=1, of="logit")
    assert found.item() == pytest.approx(1 / math.sqrt(8))
