"""Eqs. 17 to 19 on models solved by hand: what they promise, and what is there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from closed_form import Linear, Quadratic, numbers, tiny_mlp
from r2et.core.rng import stream
from r2et.explainers import GradientTimesInput, IntegratedGradients
from r2et.metrics.thickness import pairwise_thickness
from r2et.theory.bounds import thickness_bounds
from r2et.theory.instantiated import (
    gradient_times_input_first_order_bound,
    gradient_times_input_lower_bound,
    integrated_gradients_first_order_bound,
    integrated_gradients_lower_bound,
    smooth_grad_lower_bound,
)
from refusals import refusal

PRODUCT = GradientTimesInput(of="logit", form="signed")
INTEGRATED = IntegratedGradients(of="logit", form="signed", points=200)


def labels(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.long)


def parabola(a: float) -> Quadratic:
    """The score a x_1^2 / 2: one feature that counts, one that does not."""
    A = torch.zeros(2, 2, dtype=torch.float64)
    A[0, 0] = a
    return Quadratic(A=A, b=torch.zeros(2, dtype=torch.float64))


def test_eq_17_is_attained_where_the_gradient_is_linear() -> None:
    # I(x) = A (x + mean beta) + b. Along x + t d the gap changes by t d'(A_i - A_j), whose mean
    # over t is half of it, least for d = -eps (A_i - A_j) / ||A_i - A_j||.
    model, x = Quadratic(d=4), numbers(3, 4, seed=5)
    noise, radius = 0.7 * numbers(9, 4, seed=6), 0.3
    found = smooth_grad_lower_bound(
        model, x, labels(x), 1, 3, radius=radius, noise=noise, of="logit"
    )
    A, b = model.A.detach(), model.b.detach()
    turn = A[1] - A[3]
    middle = x - radius / 2 * turn / turn.norm()
    smooth = torch.stack([(middle + beta) @ A + b for beta in noise]).mean(0)
    torch.testing.assert_close(found, smooth[:, 1] - smooth[:, 3])


def test_noise_of_another_shape_is_refused() -> None:
    model, x = Quadratic(d=4), numbers(3, 4)
    told = refusal(
        lambda: smooth_grad_lower_bound(
            model, x, labels(x), 0, 1, radius=0.1, noise=numbers(5, 3), of="logit"
        )
    )
    assert "shaped like one example" in told


def test_eq_18_leaves_out_that_x_itself_moves() -> None:
    # s = x_1^2 / 2: I_1 = x_1^2 with derivative 2 x_1, where Eq. 18 counts the Hessian, 1.
    model, x = parabola(1.0), torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    printed = gradient_times_input_lower_bound(model, x, labels(x), 0, 1, radius=0.5, of="logit")
    assert printed.item() == pytest.approx(9 - 0.25)
    holds = thickness_bounds(
        model, x, labels(x), 0, 1, explain=PRODUCT, radius=0.5, generator=stream(0, "ball")
    )
    assert holds.lower.item() == pytest.approx(9 - 0.25 * 6)
    # At the end of the radius the mean of (3 - t/2)^2 over t is 9 - 1.5 + 1/12.
    assert worst(model, x, PRODUCT).item() == pytest.approx(9 - 1.5 + 1 / 12, rel=1e-4)


def worst(model: Quadratic, x: Tensor, explain: GradientTimesInput | IntegratedGradients) -> Tensor:
    """The thickness towards one neighbour, the first feature smaller by 0.5: (B,)."""
    neighbour = x - torch.tensor([0.5, 0.0], dtype=torch.float64)
    return pairwise_thickness(
        model, x, labels(x), neighbour[None], 0, 1, explain=explain, points=200
    ).value


def test_eq_19_does_not_hold() -> None:
    # The smallest counter-example: s = x_1^2 / 2 at x_1 = 1. I_1 = x_1^2 / 2 changes by x_1, so
    # that to first order (1 - eps) / 2 is left; Eq. 19 promises (1 - eps/2) / 2.
    model, x = parabola(1.0), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    printed = integrated_gradients_lower_bound(model, x, labels(x), 0, 1, radius=0.5, of="logit")
    assert printed.item() == pytest.approx(0.375)
    holds = thickness_bounds(
        model, x, labels(x), 0, 1, explain=INTEGRATED, radius=0.5, generator=stream(0, "ball")
    )
    assert holds.lower.item() == pytest.approx(0.25, rel=1e-6)
    # (1 - t/2)^2 / 2 has the mean (1 - 1/2 + 1/12) / 2 over t.
    reached = worst(model, x, INTEGRATED).item()
    assert reached == pytest.approx((1 - 0.5 + 1 / 12) / 2, rel=1e-4)
    assert holds.lower.item() <= reached < printed.item()


FIRST_ORDER = [
    pytest.param(gradient_times_input_first_order_bound, PRODUCT, id="grad x input"),
    pytest.param(integrated_gradients_first_order_bound, INTEGRATED, id="integrated gradients"),
]


def test_eqs_18_and_19_as_they_follow_on_a_model_solved_by_hand() -> None:
    # s = x'Ax / 2 + b'x: g = Ax + b and H = A; on the line from 0, m = Ax / 2 + b and K = A / 2.
    model, x, radius = Quadratic(d=3), numbers(4, 3, seed=5), 0.3
    A, b = model.A.detach(), model.b.detach()
    for find, half in (
        (gradient_times_input_first_order_bound, 1.0),
        (integrated_gradients_first_order_bound, 0.5),
    ):
        found = find(model, x, labels(x), 0, 2, radius=radius, of="logit")
        for row, bound in zip(x, found.tolist(), strict=True):
            c = half * A @ row + b
            slope = half * (row[0] * A[0] - row[2] * A[2])
            slope = slope + torch.tensor([float(c[0]), 0.0, -float(c[2])]).double()
            expected = row[0] * c[0] - row[2] * c[2] - radius / 2 * slope.norm()
            assert bound == pytest.approx(float(expected))


@pytest.mark.parametrize(("find", "explain"), FIRST_ORDER)
def test_eqs_18_and_19_as_they_follow_are_attained_where_the_score_is_linear(
    find: Callable[..., Tensor], explain: GradientTimesInput | IntegratedGradients
) -> None:
    # I_i = w_i x_i for both: along x + t d the gap changes by t (w_i d_i - w_j d_j), least for
    # d = -eps (w_i e_i - w_j e_j) / ||.||, and by half of it on average over t.
    model, x, radius = Linear(d=4), numbers(3, 4, seed=5), 0.3
    w = model.w.detach()
    slope = torch.tensor([0.0, float(w[1]), 0.0, -float(w[3])]).double()
    neighbour = x - radius * slope / slope.norm()
    reached = pairwise_thickness(model, x, labels(x), neighbour[None], 1, 3, explain=explain).value
    found = find(model, x, labels(x), 1, 3, radius=radius, of="logit")
    torch.testing.assert_close(found, reached)


@pytest.mark.parametrize(("find", "explain"), FIRST_ORDER)
def test_eqs_18_and_19_as_they_follow_are_prop_4_4_of_the_explainer_itself(
    find: Callable[..., Tensor], explain: GradientTimesInput | IntegratedGradients
) -> None:
    model, x = tiny_mlp(), numbers(5, 6, seed=5)
    i, j = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 4, 0, 1, 2])
    differentiated = thickness_bounds(
        model, x, labels(x), i, j, explain=explain, radius=0.4, lipschitz=(x[:, 0] ** 2,) * 2
    )
    choices = {"points": 200} if explain is INTEGRATED else {}
    found = find(model, x, labels(x), i, j, radius=0.4, of="logit", **choices)
    torch.testing.assert_close(found, differentiated.lower)


def test_eq_19_fails_for_most_quadratics() -> None:
    # Its left side, the first-order bound, is to be no smaller than its right side.
    below = 0
    for seed in range(100):
        model, x = Quadratic(d=4, seed=seed), numbers(1, 4, seed=seed + 500)
        with torch.no_grad():
            model.b.zero_()  # then the gradient is as Eq. 19 takes it, homogeneous
        printed = integrated_gradients_lower_bound(
            model, x, labels(x), 0, 1, radius=0.5, of="logit"
        )
        bound = thickness_bounds(
            model,
            x,
            labels(x),
            0,
            1,
            explain=INTEGRATED,
            radius=0.5,
            generator=stream(0, "ball"),
            samples=1,
        )
        below += bool(bound.lower < printed - 1e-9)
    assert below > 50
