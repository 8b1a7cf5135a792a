"""Propositions 4.4 to 4.7 of the paper, on models solved by hand: where they hold, where not.

All models have logits [0, s(x)]; what is explained is s, by its gradient, signed. Features are
numbered from 0 here, so that the top k are those before place k.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacking import attacker
from closed_form import Linear, Quadratic, numbers
from r2et.core.autograd import hessian_norm, jacobian
from r2et.core.ranking import margin_weights, order, top_k_mask, top_margin
from r2et.core.rng import stream
from r2et.explainers import Gradient, GradientTimesInput
from r2et.metrics.thickness import pairwise_thickness, uniform_ball
from r2et.theory.adversaries import (
    curvature_weights,
    inner_minimum,
    least_weighted_scores,
    printed_inner_minimum,
)
from r2et.theory.bounds import flip_radius, thickness_bounds

signed_logit = Gradient(of="logit", form="signed")
signed_product = GradientTimesInput(of="logit", form="signed")


def row(*values: float) -> Tensor:
    """One example, or one list of parameters."""
    return torch.tensor(values, dtype=torch.float64)


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.long)


class Scored(nn.Module):
    """Logits [0, s(x)] of a score that is written out below, and high enough to be predicted."""

    def score(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x) + 100
        return torch.stack([torch.zeros_like(score), score], dim=-1)


class Cubic(Scored):
    """s = sum b_i x_i + c_i x_i^2 / 2 - a_i x_i^3 / 3, hence I_i = b_i + c_i x_i - a_i x_i^2.

    H is diagonal, with entries c_i - 2 a_i x_i.
    """

    def __init__(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        super().__init__()
        self.a, self.b, self.c = a, b, c

    def score(self, x: Tensor) -> Tensor:
        return (self.b * x + self.c * x**2 / 2 - self.a * x**3 / 3).sum(-1)

    def slope(self, x: Tensor) -> Tensor:
        return self.b + self.c * x - self.a * x**2

    def hessian(self, x: Tensor) -> Tensor:
        return torch.diag_embed(self.c - 2 * self.a * x)


class Ridge(Scored):
    """s = b'x + v softplus(w'x - t; rho), hence I = b + v q w, q = sigmoid(rho (w'x - t)).

    H = v rho q (1 - q) ww', largest on the ridge, where q = 1/2.
    """

    def __init__(self, b: Tensor, w: Tensor, v: float, t: float, rho: float) -> None:
        super().__init__()
        self.b, self.w, self.v, self.t, self.rho = b, w, v, t, rho

    def score(self, x: Tensor) -> Tensor:
        return x @ self.b + self.v * F.softplus(x @ self.w - self.t, beta=self.rho, threshold=500)

    def slope(self, x: Tensor) -> Tensor:
        q = torch.sigmoid(self.rho * (x @ self.w - self.t))[..., None]
        return self.b + self.v * q * self.w

    def hessian(self, x: Tensor) -> Tensor:
        q = torch.sigmoid(self.rho * (x @ self.w - self.t))[..., None, None]
        return self.v * self.rho * q * (1 - q) * torch.outer(self.w, self.w)


class Kink(Scored):
    """s = b'x + v max(w'x - t, 0), hence I = b before the kink and b + v w behind it; H = 0."""

    def __init__(self, b: Tensor, w: Tensor, v: float, t: float) -> None:
        super().__init__()
        self.b, self.w, self.v, self.t = b, w, v, t

    def score(self, x: Tensor) -> Tensor:
        return x @ self.b + self.v * torch.relu(x @ self.w - self.t)


def explanation(model: nn.Module, x: Tensor) -> Tensor:
    return signed_logit(model, x, ones(len(x))).detach()


def hessians(model: nn.Module, x: Tensor) -> Tensor:
    return jacobian(lambda at: signed_logit(model, at, ones(len(at))), x).detach()


def sphere(count: int, d: int, seed: int = 0) -> Tensor:
    """Directions of length one: (count, d)."""
    drawn = numbers(count, d, seed=seed)
    directions: Tensor = drawn / drawn.norm(dim=-1, keepdim=True)
    return directions


@pytest.mark.parametrize(
    "model",
    [
        Cubic(numbers(3), numbers(3, seed=1), numbers(3, seed=2)),
        Ridge(numbers(3), numbers(3, seed=1), v=1.5, t=0.2, rho=3.0),
    ],
    ids=["cubic", "ridge"],
)
def test_derivatives_by_hand_are_those_of_the_library(model: Any) -> None:
    x = numbers(5, 3, seed=3)
    torch.testing.assert_close(explanation(model, x), model.slope(x))
    torch.testing.assert_close(hessians(model, x), model.hessian(x))


# --- Proposition 4.4: h - eps/2 ||H_i - H_j|| <= Theta(i, j) <= h + eps (L_i + L_j) ---


def between(model: nn.Module, x: Tensor, neighbour: Tensor, **options: Any) -> float:
    """Theta of the pair 0, 1 for the one neighbour, by the library."""
    found = pairwise_thickness(
        model, x[None], ones(1), neighbour[None, None], 0, 1, explain=signed_logit, **options
    )
    return found.value.item()


def bounds_at(
    model: nn.Module, x: Tensor, radius: float, steepest: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Both bounds of Prop. 4.4 for the pair 0, 1, by the library; L_0 and L_1 by hand or drawn."""
    found = thickness_bounds(
        model,
        x[None],
        ones(1),
        0,
        1,
        explain=signed_logit,
        radius=radius,
        lipschitz=None if steepest is None else (row(steepest[0]), row(steepest[1])),
        generator=stream(0, "bounds"),
    )
    return found.lower.item(), found.upper.item()


def test_prop_4_4_is_an_equality_where_the_explanation_is_constant() -> None:
    """Prop. 4.4 for a linear score: both bounds are the gap, and so is the thickness."""
    # I = w everywhere, H = 0: h - 0 <= Theta <= h + 0.
    model, x = Linear(w=row(3.0, 1.0, 2.0)), row(0.3, -0.2, 0.5)
    assert bounds_at(model, x, radius=5.0) == (2.0, 2.0)
    assert between(model, x, x + row(1.0, 2.0, 3.0)) == 2.0


def test_prop_4_4_is_exact_where_the_explanation_is_linear() -> None:
    """Prop. 4.4 for a quadratic score: the lower bound is attained, the upper one is not."""
    # I(x + t delta) = I(x) + t A delta. The mean over t in 0..1 is Theta = h + delta'(A_0 - A_1)/2,
    # which over ||delta|| <= eps reaches h -+ eps/2 ||A_0 - A_1||, by Cauchy and Schwarz. Above
    # stands eps (||A_0|| + ||A_1||), at least twice that far from h.
    model, x, eps = Quadratic(d=4), numbers(4, seed=5), 0.7
    A = model.A.detach()
    apart, saliency = A[0] - A[1], A @ x + model.b.detach()
    gap = (saliency[0] - saliency[1]).item()
    lower, upper = bounds_at(model, x, eps)
    reach = eps / 2 * apart.norm().item()
    assert lower == pytest.approx(gap - reach)
    assert upper == pytest.approx(gap + eps * (A[0].norm() + A[1].norm()).item())
    towards = eps * apart / apart.norm()
    assert between(model, x, x - towards) == pytest.approx(lower)
    assert between(model, x, x + towards) == pytest.approx(gap + reach)
    assert gap + reach <= gap + (upper - gap) / 2
    for direction in sphere(50, 4):
        assert lower <= between(model, x, x + eps * direction) <= upper
    # The bounds speak of neighbours in the ball: a Gaussian D, say, has others.
    assert between(model, x, x - 2 * towards) < lower


def test_the_lower_bound_of_prop_4_4_fails_where_the_explanation_bends() -> None:
    """Prop. 4.4 rests on a first-order expansion at x: here its lower bound is above Theta."""
    # I_0 = 1 - a x_0^2, I_1 = 0. At x = 0, h = 1 and H = 0: the bound is 1 for every eps. Towards
    # eps e_0, Theta is the integral of 1 - a t^2 eps^2 over 0..1, or 1 - a eps^2 / 3. Uniform in
    # the ball of d dimensions, the mean of x_0^2 is eps^2 / (d + 2).
    a, eps, d = 2.0, 0.6, 2
    model, x = Cubic(row(a, 0.0), row(1.0, 0.0), row(0.0, 0.0)), row(0.0, 0.0)
    lower, _ = bounds_at(model, x, eps)
    assert lower == 1.0
    there = between(model, x, row(eps, 0.0), points=200)
    assert there == pytest.approx(1 - a * eps**2 / 3, abs=1e-5)
    assert there < lower
    drawn = pairwise_thickness(
        model,
        x[None],
        ones(1),
        uniform_ball(eps),
        0,
        1,
        explain=signed_logit,
        samples=2000,
        generator=stream(0, "ball"),
    )
    assert drawn.low.item() < 1 - a * eps**2 / (3 * (d + 2)) < drawn.high.item() < lower
    # With the largest slope over the ball, 2 a eps, in place of that at x, the bound is sound:
    # h(x + t delta) >= h - t eps max ||H_0 - H_1||, and the mean of t is 1/2.
    sound = 1 - eps / 2 * (2 * a * eps)
    assert sound <= there


def test_the_upper_bound_of_prop_4_4_needs_the_largest_slope_of_the_ball() -> None:
    """L_i is a maximum over the ball: with the slope at x the upper bound fails too."""
    # I_0 = 1 + a x_0^2, and Theta towards eps e_0 is 1 + a eps^2 / 3. L_0 is 0 at x, and 2 a eps at
    # the edge of the ball.
    a, eps, x = 2.0, 0.6, row(0.0, 0.0)
    model = Cubic(row(-a, 0.0), row(1.0, 0.0), row(0.0, 0.0))
    there = between(model, x, row(eps, 0.0), points=200)
    assert there == pytest.approx(1 + a * eps**2 / 3, abs=1e-5)
    assert bounds_at(model, x, eps, (0.0, 0.0))[1] < there
    assert there < bounds_at(model, x, eps, (2 * a * eps, 0.0))[1]


def test_prop_4_4_is_blind_to_kinks() -> None:
    """A (Leaky)ReLU network's explanation jumps where its derivative is zero: no bound holds."""
    # I = (1, 0) up to x_1 = 0.5 and (1, 2) from there on; H = 0 on both sides. Towards (0, 1) half
    # of the way has h = 1 and half h = -1: Theta = 0.
    model, x = Kink(row(1.0, 0.0), row(0.0, 1.0), v=2.0, t=0.5), row(0.0, 0.0)
    assert bounds_at(model, x, radius=1.0) == (1.0, 1.0)
    assert between(model, x, row(0.0, 1.0)) == pytest.approx(0.0)


def test_the_slope_of_grad_x_input_has_a_factor_that_eq_18_lacks() -> None:
    """Prop. A.1 holds for any explanation; its instance for Grad x Input, Eq. 18, does not."""
    # I_i = x_i g_i. Its derivative by x_l is g_i [i = l] + x_i H_il; Eq. 18 has H_il alone.
    model, x, eps = Quadratic(d=3), row(4.0, 3.0, -5.0), 0.02
    A = model.A.detach()
    g = A @ x + model.b.detach()
    by_hand = torch.diag(g) + x[:, None] * A
    found = jacobian(lambda at: signed_product(model, at, ones(1)), x[None])[0].detach()
    torch.testing.assert_close(found, by_hand)
    gap = (x * g)[0] - (x * g)[1]
    printed = torch.diag(g) + A
    claimed = gap - eps / 2 * (printed[0] - printed[1]).norm()
    apart = by_hand[0] - by_hand[1]
    worst = x - eps * apart / apart.norm()
    options: dict[str, Any] = {"explain": signed_product, "points": 64}
    there = pairwise_thickness(model, x[None], ones(1), worst[None, None], 0, 1, **options).value
    first_order = gap - eps / 2 * apart.norm()
    # Right up to the square of eps, which the printed bound misses by much more.
    assert there.item() == pytest.approx(first_order.item(), abs=10 * eps**2)
    assert there < claimed - 40 * eps**2


# --- Proposition 4.5: no pair flips for ||delta|| <= min h / max ||H_i - H_j|| ---


def test_prop_4_5_is_exact_where_the_explanation_is_linear() -> None:
    """Prop. 4.5 for a quadratic score: no flip up to the radius, and one just behind it."""
    # h(x + delta) = h + delta'(A_i - A_j), zero first at distance h / ||A_i - A_j||.
    model, x, k = Quadratic(d=5), numbers(5, seed=2), 2
    A, saliency = model.A.detach(), explanation(model, x[None])[0]
    ranking = order(saliency[None])[0]
    pairs = [(int(i), int(j)) for i in ranking[:k] for j in ranking[k:]]
    ratios = {(i, j): ((saliency[i] - saliency[j]) / (A[i] - A[j]).norm()).item() for i, j in pairs}
    (first, second), radius = min(ratios.items(), key=lambda each: each[1])
    apart = (A[:, None] - A[None]).norm(dim=-1)[None]
    assert flip_radius(saliency[None], apart, k=k, ball=9.0).item() == pytest.approx(radius)
    assert flip_radius(saliency[None], apart, k=k, ball=radius / 2).item() == radius / 2
    assert flip_radius(saliency[None], 0 * apart, k=k, ball=9.0).item() == 9.0

    def top(at: Tensor) -> Tensor:
        return top_k_mask(explanation(model, at), k)

    worst = -torch.stack([(A[i] - A[j]) / (A[i] - A[j]).norm() for i, j in pairs])
    directions = torch.cat([worst, sphere(2000, 5)])
    assert (top(x + (1 - 1e-9) * radius * directions) == top(x[None])).all()
    towards = -(A[first] - A[second]) / (A[first] - A[second]).norm()
    behind = (x + (1 + 1e-9) * radius * towards)[None]
    assert not torch.equal(top(behind), top(x[None]))


def test_prop_4_5_allows_a_tie_at_the_radius_itself() -> None:
    """Prop. 4.5 says <=, where the order is certain for < only."""
    # I = (1 + x_0, 0) with h = 1 and ||H_0 - H_1|| = 1 everywhere: at delta = (-1, 0), of length
    # h / max = 1, h is 0, and 1[h > 0] has changed. The proof excludes h < 0 only.
    model = Quadratic(A=torch.diag(row(1.0, 0.0)), b=row(1.0, 0.0))
    assert explanation(model, torch.zeros(1, 2).double()).tolist() == [[1.0, 0.0]]
    assert explanation(model, row(-1.0, 0.0)[None]).tolist() == [[0.0, 0.0]]


def test_prop_4_5_needs_the_maximum_over_a_ball_as_large_as_its_radius() -> None:
    """Prop. 4.5 does not say over which x' the maximum is: with too small a ball it is false."""
    # I_0 = 1 - 0.1 x_0 - x_0^2 and I_1 = 0. At x = 0, h = 1 and ||H_0 - H_1|| = 0.1: a ratio of 10.
    # But h = 0 where x_0^2 + 0.1 x_0 = 1, at x_0 = 0.951. Over the ball of radius r the maximum is
    # 0.1 + 2 r, and the ratio is r itself where 2 r^2 + 0.1 r = 1, at r = 0.683.
    model = Cubic(row(1.0, 0.0), row(1.0, 0.0), row(-0.1, 0.0))
    flip = (-0.1 + math.sqrt(0.01 + 4)) / 2
    radius = (-0.1 + math.sqrt(0.01 + 8)) / 4
    assert (round(flip, 3), round(radius, 3)) == (0.951, 0.683)

    def ratio(ball: float) -> float:
        edges = torch.stack([row(-ball, 0.0), row(ball, 0.0)])  # |H_00| is largest at an end
        slopes = hessians(model, edges)
        return 1 / float((slopes[:, 0] - slopes[:, 1]).norm(dim=-1).max())

    def gap(x_0: float) -> float:
        here = explanation(model, row(x_0, 0.0)[None])[0]
        return (here[0] - here[1]).item()

    assert gap(flip - 1e-6) > 0 > gap(flip + 1e-6)
    assert ratio(0.0) == pytest.approx(10)  # at x alone
    assert ratio(0.1) == pytest.approx(1 / 0.3)  # over a ball smaller than the ratio
    assert min(ratio(0.0), ratio(0.1)) > flip  # both would certify what flips
    assert ratio(radius) == pytest.approx(radius)
    # min(ball, ratio over the ball) is certified for every ball, and nothing better than `radius`.
    for ball in (0.0, 0.1, 0.5, radius, 1.0, 3.0):
        assert min(ball, ratio(ball)) <= radius + 1e-12 < flip
        steepest = torch.full((1, 2, 2), 1 / ratio(ball)).double()
        found = flip_radius(row(1.0, 0.0)[None], steepest, k=1, ball=ball)
        assert found.item() == pytest.approx(min(ball, ratio(ball)))


def test_the_ratio_at_x_alone_is_no_certificate() -> None:
    """The value of Prop. 4.5 at x alone: an attack well within that radius flips the ranking."""
    # I = (1, 2 q) with q = sigmoid(4 (x_1 - 2)), which is 1/2 on the ridge at x_1 = 2, where the
    # order turns. At x = 0 the score is almost straight: q = sigmoid(-8) = 0.000335, and the ratio
    # is h / ||H_0 - H_1|| = (1 - 2 q) / (8 q (1 - q)), about 373.
    model = Ridge(row(1.0, 0.0), row(0.0, 1.0), v=2.0, t=2.0, rho=4.0)
    x = torch.zeros(1, 2).double()
    saliency, H = explanation(model, x)[0], hessians(model, x)[0]
    at_x = ((saliency[0] - saliency[1]) / (H[0] - H[1]).norm()).item()
    q = 1 / (1 + math.exp(8))
    assert at_x == pytest.approx((1 - 2 * q) / (8 * q * (1 - q)))
    assert at_x > 370
    attack = attacker("er", k=1, explainer=signed_logit, radius=2.5, step=0.05, steps=60)
    found = attack(model, x, ones(1))
    assert found.flipped.all()
    assert (found.x - x).norm() <= 2.5 < at_x / 100
    assert model(found.x).argmax(-1).tolist() == [1]
    # A bound of the slope that holds everywhere, 2 * 4 / 4 = 2, gives a certificate: 0.4997 < 2.
    sound = (saliency[0] - saliency[1]).item() / 2
    assert sound == pytest.approx(0.5, abs=1e-3)
    around = x + sound * (1 - 1e-9) * sphere(2000, 2)
    assert (explanation(model, around).argmax(-1) == 0).all()


def test_prop_4_5_certifies_everything_where_there_are_kinks() -> None:
    """For a (Leaky)ReLU network the slopes are zero, the ratio is infinite, and pairs flip."""
    model = Kink(row(1.0, 0.0), row(0.0, 1.0), v=2.0, t=0.5)
    points = torch.cat([torch.zeros(1, 2).double(), sphere(50, 2)])
    assert (hessians(model, points) == 0).all()
    assert explanation(model, row(0.0, 0.4)[None]).argmax().item() == 0
    assert explanation(model, row(0.0, 0.6)[None]).argmax().item() == 1


# --- Proposition 4.6 and Eq. 25: R2ET as adversarial training ---


def ranked_quadratic(n: int = 5, seed: int = 4) -> tuple[Quadratic, Tensor]:
    """A quadratic and an x at which the features are in the order of their numbers."""
    model, x = Quadratic(d=n, seed=seed), numbers(n, seed=seed + 2)
    places = order(explanation(model, x[None]))[0]
    A, b = model.A.detach()[places][:, places], model.b.detach()[places]
    return Quadratic(A=A, b=b), x[places]


def l_weights(saliency: Tensor, k: int) -> Tensor:
    """The l_i of the paper: n - k for the top k, -k for the rest."""
    n = saliency.shape[-1]
    return k * (n - k) * margin_weights(saliency[None], k)[0]


def test_the_sum_over_pairs_is_a_sum_over_features() -> None:
    """From Eq. 21 to Eq. 22, without perturbations: sum h(x, i, j) = sum l_i I_i(x)."""
    model, x = ranked_quadratic()
    saliency, k = explanation(model, x[None])[0], 2
    weights = l_weights(saliency, k)
    torch.testing.assert_close(weights, row(3, 3, -2, -2, -2))
    pairs = sum((saliency[i] - saliency[j]).item() for i in range(k) for j in range(k, 5))
    assert (weights @ saliency).item() == pytest.approx(pairs)
    assert k * 3 * top_margin(saliency[None], saliency[None], k).item() == pytest.approx(pairs)


def test_eq_25_is_the_minimum_with_the_weights_absolute() -> None:
    """Eq. 25: min of sum l_i I_i(x + delta_i) is sum l_i I_i - eps max_t |l_t| ||H_t||."""
    # With I(x + delta) = I + A delta the sum falls by -sum l_i A_i'delta_i <= sum |l_i| ||A_i||
    # ||delta_i||, which for sum ||delta_i|| <= eps is at most eps max_t |l_t| ||A_t||, all of it
    # spent on one feature. M- is that with one delta_i other than 0, M+ that with all of them.
    (model, x), k, eps = ranked_quadratic(), 2, 0.5
    A, saliency = model.A.detach(), explanation(model, x[None])[0]
    weights = l_weights(saliency, k)
    strength = weights.abs() * A.norm(dim=-1)
    nu = inner_minimum(model, x[None], ones(1), explain=signed_logit, k=k, radius=eps).item()
    assert nu == pytest.approx((weights @ saliency - eps * strength.max()).item())
    t = int(strength.argmax())
    delta = torch.zeros(5, 5).double()
    delta[t] = -eps * weights[t].sign() * A[t] / A[t].norm()

    def value(deltas: Tensor) -> float:
        """The goal of Eq. 24: feature i is explained at its own x + delta_i."""
        return (weights @ explanation(model, x + deltas).diagonal()).item()

    assert value(delta) == pytest.approx(nu)
    shares = torch.rand(300, 5, generator=stream(0, "shares"), dtype=torch.float64)
    shares = shares / shares.sum(-1, keepdim=True)
    steepest = -weights.sign()[:, None] * A / A.norm(dim=-1, keepdim=True)
    for number, share in enumerate(shares):
        for directions in (sphere(5, 5, seed=number), steepest):
            assert value(eps * share[:, None] * directions) >= nu - 1e-12


def test_eq_25_as_printed_forgets_the_signs_of_the_weights() -> None:
    """Eq. 25 has max_t l_t ||H_t||, where l_t is negative for all but the top k."""
    # n = 3, k = 1: l = (2, -1, -1). H = diag(1, 9, 0): the printed maximum is that of the top
    # feature, 2, but moving x_1 by eps changes -I_1 by 9 eps.
    model, eps = Quadratic(A=torch.diag(row(1.0, 9.0, 0.0)), b=row(3.0, 2.0, 1.0)), 0.1
    x = torch.zeros(1, 3).double()
    saliency = explanation(model, x)[0]
    weights = l_weights(saliency, 1)
    assert weights.tolist() == [2.0, -1.0, -1.0]
    settings: Any = {"explain": signed_logit, "k": 1, "radius": eps}
    printed = printed_inner_minimum(model, x, ones(1), **settings).item()
    assert printed == pytest.approx(3 - 0.2)
    assert inner_minimum(model, x, ones(1), **settings).item() == pytest.approx(3 - 0.9)
    moved = x + eps * row(0.0, 1.0, 0.0)
    reached = (
        weights[0] * saliency[0]
        + weights[1] * explanation(model, moved)[0, 1]
        + weights[2] * saliency[2]
    )
    assert reached.item() == pytest.approx(3 - 0.9)
    assert reached < printed


def test_eq_25_fails_where_the_explanation_bends() -> None:
    """Prop. 4.6 expands I to first order as well: H = 0 at x, and yet the sum falls."""
    # I_0 = 1 - x_0^2, I_1 = 0, l = (1, -1): Eq. 25 says that nothing can be lost from 1; at
    # delta_0 = eps e_0 the sum is 1 - eps^2.
    model, eps = Cubic(row(1.0, 0.0), row(1.0, 0.0), row(0.0, 0.0)), 0.5
    x = torch.zeros(1, 2).double()
    saliency = explanation(model, x)[0]
    weights = l_weights(saliency, 1)
    nu = inner_minimum(model, x, ones(1), explain=signed_logit, k=1, radius=eps).item()
    assert nu == 1.0
    moved = explanation(model, row(eps, 0.0)[None])[0]
    assert (weights[0] * moved[0] + weights[1] * saliency[1]).item() == pytest.approx(1 - eps**2)


def test_a_perturbation_for_each_feature_is_not_one_for_each_pair() -> None:
    """Eq. 21 has a delta for each pair, Eq. 22 one for each feature: their values differ."""
    # H = 11': all scores rise alike with x, no gap ever changes, and Eq. 21 is the sum of the gaps
    # for all perturbations. Eq. 22 lets feature 0 see another x than the others do, and falls by
    # eps max_t |l_t| ||H_t|| = eps (n - k) sqrt(n).
    n, k, eps = 4, 1, 0.5
    model = Quadratic(A=torch.ones(n, n).double(), b=row(3.0, 2.0, 1.0, 0.0))
    saliency = explanation(model, torch.zeros(1, n).double())[0]
    elsewhere = explanation(model, eps * sphere(200, n))
    gaps = top_margin(elsewhere, saliency.expand(200, n), k)
    torch.testing.assert_close(
        gaps, torch.full_like(gaps, top_margin(saliency[None], saliency[None], k).item())
    )
    weights = l_weights(saliency, k)
    first = explanation(model, (-eps / math.sqrt(n) * torch.ones(1, n)).double())[0, 0]
    fall = weights[0] * (saliency[0] - first)
    assert fall.item() == pytest.approx(eps * (n - k) * math.sqrt(n))


def test_eq_25_does_not_bound_the_attacker_of_eq_1() -> None:
    """One delta of length eps for all features, the real threat, can fall below Eq. 25."""
    # H is the identity: moving x by -eps l / ||l|| lowers sum l_i I_i by eps ||l||, where
    # ||l||^2 = k (n - k)^2 + (n - k) k^2 = 30; Eq. 25 allows eps max |l_t| = 3 eps.
    model, eps = Quadratic(A=torch.eye(5).double(), b=row(5.0, 4.0, 3.0, 2.0, 1.0)), 0.1
    x = torch.zeros(1, 5).double()
    saliency = explanation(model, x)[0]
    weights = l_weights(saliency, 2)
    moved = x - eps * weights / weights.norm()
    reached = (weights @ explanation(model, moved)[0]).item()
    assert reached == pytest.approx((weights @ saliency).item() - eps * math.sqrt(30))
    assert reached < (weights @ saliency).item() - eps * 3


def test_the_set_of_prop_4_6_must_bound_the_sum_of_the_lengths() -> None:
    """Prop. 4.6 bounds ||sum delta||, which opposite perturbations of any length satisfy."""
    # delta_0 = -c e, delta_1 = c e with sum 0: l_0 I_0 + l_1 I_1 falls by c (A_0 + A_1)'e without
    # end. The proof needs sum ||delta_i|| <= eps, its M+.
    model = Quadratic(A=torch.eye(2).double() + 1, b=row(1.0, 0.0))
    saliency = explanation(model, torch.zeros(1, 2).double())[0]
    values = []
    for c in (0.0, 10.0, 1000.0):
        first, second = row(-c, 0.0), row(c, 0.0)
        assert (first + second).norm() == 0
        seen = explanation(model, torch.stack([first, second]))
        values.append((seen[0, 0] - seen[1, 1]).item())
    # A = [[2, 1], [1, 2]]: I_0 falls by 2 c, I_1 rises by c.
    assert values == pytest.approx([1.0, 1.0 - 30, 1.0 - 3000])
    assert saliency.tolist() == [1.0, 0.0]


def test_eq_6_bounds_the_adversary_of_eq_25_and_is_not_equal_to_it() -> None:
    """What is left of Prop. 4.6: with lambda_2 = eps max(k, n - k), Eq. 6 is no smaller."""
    # A row of H is no longer than the spectral norm, and that no longer than the Frobenius norm,
    # itself at most sqrt(n) times the longest row. Hence the curvature term of Eq. 6 and that of
    # Eq. 25 bound each other up to constants; they do not order models alike.
    for seed in range(20):
        (model, x), k, eps, n = ranked_quadratic(seed=seed), 2, 0.5, 5
        saliency, H = explanation(model, x[None])[0], hessians(model, x[None])[0]
        adversary = eps * (l_weights(saliency, k).abs() * H.norm(dim=-1)).max()
        spectral = torch.linalg.matrix_norm(H, ord=2)
        frobenius = hessian_norm(partial(signed_logit, model, y=ones(1)), x[None])[0]
        low, high = curvature_weights(k, n, eps)
        assert (low, high) == pytest.approx((0.5 * 2 / math.sqrt(5), 0.5 * 3))
        assert adversary <= high * spectral
        assert spectral <= frobenius
        assert frobenius * low <= adversary
    # n = 2, k = 1: rows of length 1.2 and 0 and norm 1.2, or twice 1.13 and norm 1.6. Eq. 6
    # prefers the first, Eq. 25 the second, and so do the pairs, whose gap never changes there.
    first, second = torch.diag(row(1.2, 0.0)), torch.full((2, 2), 0.8).double()
    norms = [torch.linalg.matrix_norm(H, ord=2).item() for H in (first, second)]
    rows = [H.norm(dim=-1).max().item() for H in (first, second)]
    pairs = [(H[0] - H[1]).norm().item() for H in (first, second)]
    assert norms == pytest.approx([1.2, 1.6])
    assert rows == pytest.approx([1.2, 0.8 * math.sqrt(2)])
    assert pairs == pytest.approx([1.2, 0.0])


# --- Proposition 4.7: Eq. 8 and Eq. 9 ---


def test_the_constraint_of_prop_4_7_is_a_margin_wider_by_the_curvature() -> None:
    """Eq. 9: min over ||delta|| <= eps of l_i I_i(x + delta) >= G_i, for a quadratic."""
    # l_i I_i(x + delta) = l_i I_i + l_i A_i'delta, least at -eps sign(l_i) A_i / ||A_i||. Hence the
    # constraint is l_i I_i(x) >= G_i + eps |l_i| ||A_i||: that of Eq. 8 with a wider margin.
    (model, x), eps = ranked_quadratic(), 0.4
    A, saliency = model.A.detach(), explanation(model, x[None])[0]
    weights = l_weights(saliency, 2)
    settings: Any = {"explain": signed_logit, "k": 2, "radius": eps}
    least = least_weighted_scores(model, x[None], ones(1), **settings)[0]
    torch.testing.assert_close(least, weights * saliency - eps * weights.abs() * A.norm(dim=-1))
    worst = x - eps * weights.sign()[:, None] * A / A.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(weights * explanation(model, worst).diagonal(), least)
    around = weights * explanation(model, x + eps * sphere(2000, 5))
    assert (around >= least - 1e-12).all()
    # What satisfies Eq. 9 satisfies Eq. 8, since x is in the ball, but not the other way round.
    assert (least < weights * saliency).all()


def test_prop_4_7_is_trivial_where_the_explanation_is_constant() -> None:
    """For linear scores Eq. 8 and Eq. 9 are one problem: H = 0, and I is the same all over."""
    model, x = Linear(w=row(3.0, 1.0, -2.0)), numbers(1, 3)
    around = explanation(model, x + 7 * sphere(100, 3))
    torch.testing.assert_close(around, explanation(model, x).expand(100, 3))
    assert hessian_norm(lambda at: signed_logit(model, at, ones(1)), x).tolist() == [0.0]


def curved(a: float, c: float = 0.0, low: float = -1.0) -> Quadratic:
    """s = x_0 + low x_1 + a x_0^2 / 2 + c x_1^2 / 2: at x = 0, I = (1, low), H = diag(a, c)."""
    return Quadratic(A=torch.diag(row(a, c)), b=row(1.0, low))


def test_prop_4_7_holds_for_one_lambda_that_is_not_known() -> None:
    """Eqs. 8 and 9 have one solution for the lambda_2 that is the multiplier of the constraint."""
    # Models of curvature a >= 0, and a loss (a - 1)^2 that would have a = 1; n = 2, k = 1, l =
    # (1, -1), G = 0.8, eps = 0.5. Eq. 8: (a - 1)^2 + lambda a, its constraints 1 >= G met by all
    # models: a = 1 - lambda / 2. Eq. 9: 1 - eps a >= G, that is a <= 0.4: a = 0.4. Both agree for
    # lambda = 1.2, and for no other.
    margin, eps = 0.8, 0.5
    grid = torch.linspace(0, 2, 201).double().tolist()
    x, weights = torch.zeros(1, 2).double(), row(1.0, -1.0)
    norms, leasts = [], []
    for a in grid:
        model = curved(a)
        saliency, H = explanation(model, x)[0], hessians(model, x)[0]
        norms.append(torch.linalg.matrix_norm(H, ord=2).item())
        leasts.append((weights * saliency - eps * weights.abs() * H.norm(dim=-1)).min().item())
        assert (weights * saliency >= margin).all()

    def eq_8(penalty: float) -> float:
        values = [(a - 1) ** 2 + penalty * norm for a, norm in zip(grid, norms, strict=True)]
        return float(grid[values.index(min(values))])

    allowed = [a for a, least in zip(grid, leasts, strict=True) if least >= margin - 1e-12]
    eq_9 = min(allowed, key=lambda a: (a - 1) ** 2)
    assert eq_9 == pytest.approx(0.4)
    assert [eq_8(each) for each in (0.4, 1.2, 1.6)] == pytest.approx([0.8, 0.4, 0.2])


def test_prop_4_7_can_fail_for_every_lambda() -> None:
    """One norm of H cannot stand for a constraint for each feature."""
    # I = (1, -3) at x = 0, H = diag(a, c), loss (a - 1)^2 + (c - 1)^2, G = 0.5, eps = 1. Eq. 9:
    # 1 - a >= 0.5 and 3 - c >= 0.5, solved by a = 0.5, c = 1: feature 1 has room to bend. Eq. 8 is
    # symmetric in a and c and convex, hence a = c at its solution, whatever lambda_2.
    x, weights = torch.zeros(1, 2).double(), row(1.0, -1.0)
    best = curved(0.5, 1.0, low=-3.0)
    saliency, H = explanation(best, x)[0], hessians(best, x)[0]
    least = weights * saliency - weights.abs() * H.norm(dim=-1)
    assert least.tolist() == [0.5, 2.0]  # the first constraint binds, the second does not
    grid = torch.linspace(0, 1.5, 61).double()
    a, c = grid[:, None], grid[None, :]
    loss = (a - 1) ** 2 + (c - 1) ** 2
    norms = {"spectral": torch.maximum(a, c), "Frobenius": (a**2 + c**2).sqrt()}
    for norm in norms.values():
        for penalty in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
            place = int((loss + penalty * norm).argmin())
            assert place // 61 == place % 61
    feasible = loss.masked_fill((a > 0.5) | (c > 2.5), torch.inf)
    place = int(feasible.argmin())
    assert (grid[place // 61].item(), grid[place % 61].item()) == (0.5, 1.0)


def test_the_margins_of_prop_4_7_rule_out_absolute_explanations() -> None:
    """l_i I_i >= G_i >= 0 for i > k asks for I_i <= 0: no absolute value but 0 satisfies it."""
    model, x = ranked_quadratic()
    absolute = Gradient(of="logit", form="absolute")(model, x[None], ones(1))[0].detach()
    rest = ~top_k_mask(absolute[None], 2)[0]
    assert (l_weights(absolute, 2)[rest] * absolute[rest] < 0).all()
