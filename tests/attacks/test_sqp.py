"""The forerunner's attack within limits: sub-problem, direction, rate of convergence."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacking import attacker
from closed_form import Quadratic, numbers, tiny_mlp
from r2et.attacks._qp import kept_descent
from r2et.attacks.moo import Descended, Gaps, LineSearch
from r2et.attacks.registry import ATTACKS
from r2et.attacks.search import AttackProblem, BestSoFar
from r2et.data import load
from r2et.explainers import Gradient, predicted
from r2et.methods import Method
from r2et.perturbations import L2Ball
from r2et.theory.complexity import Constants, descent_bound
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit
from refusals import refusal

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
signed_margin = Gradient(of="margin", form="signed")
SQP = ATTACKS["sqp"].budget


# --- the sub-problem -----------------------------------------------------------------------------


def limited(count: int, m: int, d: int, s: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients that share a direction, and limits of which some are reached already."""
    slopes = numbers(count, m, d, seed=seed) + 0.7 * numbers(count, 1, d, seed=seed + 1)
    level = -0.3 * numbers(count, s, seed=seed + 2).abs()
    level[::3] = 0.0
    return slopes, level, numbers(count, s, d, seed=seed + 3)


def by_clarabel(slopes: Tensor, level: Tensor, rows: Tensor) -> np.ndarray:
    """The direction of one example, by a general solver."""
    d, height = cp.Variable(slopes.shape[-1]), cp.Variable()
    limits = [slopes.numpy() @ d <= height, level.numpy() + rows.numpy() @ d <= 0]
    goal = cp.Minimize(cp.sum_squares(d) / 2 + height)
    cp.Problem(goal, limits).solve(solver=cp.CLARABEL, **TIGHT)
    return np.asarray(d.value)


@pytest.mark.parametrize("shape", [(20, 1, 3, 1), (20, 3, 2, 1), (20, 5, 10, 2), (20, 30, 12, 3)])
def test_the_direction_is_that_of_clarabel(shape: tuple[int, int, int, int]) -> None:
    slopes, level, rows = limited(*shape)
    found = kept_descent(slopes, level, rows)
    for row in range(shape[0]):
        best = by_clarabel(slopes[row], level[row], rows[row])
        np.testing.assert_allclose(found[row].numpy(), best, atol=2e-8)
    after = level + (rows @ found[..., None]).squeeze(-1)
    assert (after <= 1e-9).all()
    assert (after > -1e-6).any(-1).sum() > 5  # limits that do decide something
    falls = (slopes @ found[..., None]).squeeze(-1)
    assert (falls <= -found.square().sum(-1, keepdim=True) + 1e-9).all()
    alone = torch.cat(
        [kept_descent(slopes[i : i + 1], level[i : i + 1], rows[i : i + 1]) for i in range(3)]
    )
    torch.testing.assert_close(found[:3], alone, rtol=0, atol=1e-12)


def test_one_goal_and_one_limit_by_hand() -> None:
    # Without a limit d = -g. Where -g leads across one that is reached, a'g < 0, what is left is
    # -g without its part along a.
    g, a = numbers(8, 1, 4), numbers(8, 1, 4, seed=1)
    zero = torch.zeros(8, 1).double()
    along = (g * a).sum(-1)
    slid = torch.where(along < 0, along / a.square().sum(-1), 0.0)[..., None] * a - g
    assert ((along < 0).any(), (along > 0).any()) == (True, True)
    torch.testing.assert_close(kept_descent(g, zero, a), slid[:, 0], rtol=0, atol=1e-9)
    for far in (-1e9 + zero, zero):  # too far to matter; a limit without a slope
        free = kept_descent(g, far, a if far[0] < 0 else 0 * a)
        torch.testing.assert_close(free, -g[:, 0], rtol=0, atol=1e-9)


def test_goals_that_pull_apart_have_no_direction() -> None:
    g = numbers(6, 1, 4)
    opposed = torch.cat([g, -2 * g], 1)
    found = kept_descent(opposed, -torch.ones(6, 1).double(), numbers(6, 1, 4, seed=1))
    torch.testing.assert_close(found, torch.zeros(6, 4).double(), rtol=0, atol=1e-9)
    # Nor has a goal whose own way is barred by a limit on both sides.
    barred = kept_descent(g, torch.zeros(6, 2).double(), opposed)
    torch.testing.assert_close(barred, torch.zeros(6, 4).double(), rtol=0, atol=1e-6)


def test_a_limit_without_a_slope_decides_nothing_beside_others() -> None:
    # 0'd <= 0 leaves no room on its inside, which a path through the inside would need.
    slopes, level, rows = limited(30, 12, 6, 1)
    flat = torch.cat([rows, 0 * rows], 1)
    reached = torch.cat([level, 0 * level], 1)
    expected = kept_descent(slopes, level, rows)
    torch.testing.assert_close(kept_descent(slopes, reached, flat), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e6])
def test_the_size_of_goals_and_limits_makes_no_difference(size: float) -> None:
    slopes, level, rows = limited(10, 4, 6, 2)
    plain = kept_descent(slopes, level, rows)
    scaled = kept_descent(size * slopes, size * level, rows)
    torch.testing.assert_close(scaled / size, plain, rtol=0, atol=1e-7)
    weighed = kept_descent(slopes, size * level, size * rows)
    torch.testing.assert_close(weighed, plain, rtol=0, atol=1e-7)


def test_the_sum_of_eq_14_may_leave_a_gap_where_it_is() -> None:
    # g_1 = (4, 0), g_2 = (-1, 1). Eq. 14, with H = 1 for both: least 3 d_1 + d_2 + 2 ||d||^2 so
    # that g_1'd <= 0 and g_2'd <= 0. The free minimum, -(3, 1) / 4, raises the second gap by 1/2;
    # on d_1 = d_2, 4 d_1 + 4 d_1^2 is least at d = -(1, 1) / 2, where g_2'd = 0: to first order
    # the second gap stays, and if it bends upwards at all, Armijo's condition fails for every
    # step. The direction of Eq. 7 lowers both.
    slopes = torch.tensor([[[4.0, 0.0], [-1.0, 1.0]]]).double()
    d = cp.Variable(2)
    goal = cp.Minimize(np.array([3.0, 1.0]) @ d + 2 * cp.sum_squares(d))
    cp.Problem(goal, [slopes[0].numpy() @ d <= 0]).solve(solver=cp.CLARABEL, **TIGHT)
    np.testing.assert_allclose(d.value, [-0.5, -0.5], atol=1e-7)
    assert abs(slopes[0, 1].numpy() @ d.value) < 1e-7
    ours = kept_descent(slopes, -torch.ones(1, 1).double(), torch.zeros(1, 1, 2).double())
    assert ((slopes @ ours[..., None]) < -0.1).all()


# --- the attack ----------------------------------------------------------------------------------


def test_the_first_direction_keeps_the_prediction_to_first_order() -> None:
    # Near the boundary the direction of the line search alone leads across it for many examples;
    # this one never does, to first order.
    model, x = tiny_mlp(), 2 * numbers(4000, 6)
    logits = model(x).detach()
    x = x[(logits[:, 1] - logits[:, 0]).abs().argsort()[:60]]
    y, seen = predicted(model, x), dict[str, Descended]()
    for name in ("armijo", "sqp"):
        settings: Any = {"k": 2, "radius": 1.0, "pairs": 2, "iterations": 1}
        attacker(name, watch=lambda now, name=name: seen.setdefault(name, now), **settings)(
            model, x, y
        )
    at = x.clone().requires_grad_()
    logits = model(at)
    margin = (logits[:, 1] - logits[:, 0]) * (2 * y - 1)
    (slope,) = torch.autograd.grad(margin.sum(), at)
    left = {
        name: (margin.detach()[now.rows] + (slope[now.rows] * now.direction).sum(-1))
        for name, now in seen.items()
    }
    assert (left["sqp"] >= -1e-9).all()
    assert (left["armijo"] < 0).sum() > 5


def test_it_slides_along_the_sphere() -> None:
    # I = (2 + x_2, 1 - x_3, ...): the gap 1 + x_2 + x_3 falls fastest along -(e_2 + e_3), and from
    # a point of the sphere that is not the best one only along the sphere.
    A = torch.zeros(4, 4).double()
    A[0, 2] = A[2, 0] = 1.0
    A[1, 3] = A[3, 1] = -1.0
    model = Quadratic(A=A, b=torch.tensor([2.0, 1.0, -9.0, -9.0]).double())
    x = torch.tensor([[9.0, -9.0, 0.0, 0.0]]).double()
    radius = 0.6
    problem = AttackProblem(k=1, explainer=signed_margin, perturbation=L2Ball(radius=radius))
    y = predicted(model, x)
    goals = Gaps.around(
        BestSoFar(model, x, y, problem), LineSearch(pairs=1, scale="plain", guide=None)
    )
    at = x - radius * torch.eye(4).double()[2]
    _, slopes = goals.values_and_slopes(at)
    level, rows = goals.limits(at, problem.perturbation)
    assert level[0, 1].item() == pytest.approx(0.0)
    found = kept_descent(goals.paired(slopes), level, rows)
    # In units of radii and of the gap's steepest fall the gradient is (e_2 + e_3) / sqrt 2.
    expected = -torch.eye(4).double()[3:] / math.sqrt(2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


# --- the rate of convergence ---------------------------------------------------------------------


def softplus_net(d: int, hidden: int, seed: int) -> nn.Sequential:
    net = tiny_mlp(d=d, hidden=hidden, seed=seed)
    return nn.Sequential(net[0], nn.Softplus(beta=2.0), net[2])


@cache
def softplus_adult() -> tuple[nn.Sequential, Tensor]:
    """A small softplus network trained for a moment on Adult, and validation examples."""
    split = load("adult").split(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(28, 8), nn.Softplus(beta=2.0), nn.Linear(8, 2))
    some = replace(
        split.train, rows=split.train.rows[:5000], x=split.train.x[:5000], y=split.train.y[:5000]
    )
    model, history = fit(net, some, split.valid, Method(), FitSettings(epochs=6, batch=256))
    assert history[-1].valid_auc > 0.8
    return model.double().eval(), split.valid.x[:40].double()


@dataclass(frozen=True)
class Run:
    """The lengths of the directions of one example, and the shares of them that were taken."""

    lengths: list[float]
    shares: list[float]


def runs(model: nn.Module, x: Tensor, search: LineSearch, radius: float) -> list[Run]:
    """What the attack did with each example, up to the pass in which gaps were set aside."""
    found = [Run([], []) for _ in x]
    over = set[int]()

    def watch(now: Descended) -> None:
        for row, d, active, share in zip(
            now.rows.tolist(), now.direction, now.active, now.share.tolist(), strict=True
        ):
            if row in over or not active.all():
                over.add(row)
                continue
            found[row].lengths.append(float(d.norm()))
            found[row].shares.append(share)

    attacker("sqp", k=2, explainer=signed_margin, radius=radius, budget=search, watch=watch)(
        model, x, predicted(model, x)
    )
    return found


def constants_of(model: nn.Sequential, x: Tensor, search: LineSearch, radius: float) -> Constants:
    """The constants of a softplus network, by hand, for the gaps of its margin's gradient.

    I_i = sum_u v_u q_u W_ui, q = sigmoid(rho t), t = Wx + b. A gap weighs q_u by v_u (W_ui - W_uj):
    it falls by no more than these times max(q, 1 - q) together, and its Hessian, the sum of them
    times rho^2 q'' W_u W_u', has a norm of no more than rho^2 / (6 sqrt 3) times ||W_u||^2 each.
    """
    y, W, rho = predicted(model, x), model[0].weight.detach(), model[1].beta
    problem = AttackProblem(k=2, explainer=signed_margin, perturbation=L2Ball(radius=radius))
    goals = Gaps.around(BestSoFar(model, x, y, problem), search)
    v = (model[2].weight[1] - model[2].weight[0]).detach() * (2 * y[:, None] - 1)
    top, rest = (goals.features.gather(-1, each) for each in (goals.above, goals.below))
    weights = (v[:, None] * (W.T[top] - W.T[rest])).abs()  # (B, m, hidden)
    q = torch.sigmoid(rho * model[0](x)).detach()
    fall = (weights * torch.maximum(q, 1 - q)[:, None]).sum(-1).amax(-1)
    bend = (weights * W.square().sum(-1)).sum(-1).amax(-1) * rho**2 / (6 * math.sqrt(3))
    unit = goals.unit[:, 0]
    return Constants(
        fall=fall / unit, slope_change=radius**2 * bend / unit, residual_change=0 * unit
    )


def assert_converging(
    model: nn.Sequential, x: Tensor, search: LineSearch, radius: float
) -> list[float]:
    """Check Lemma 4.1 and Theorem 4.2 of Q; the bound over what was reached, at the end of each."""
    constants = constants_of(model, x, search, radius)
    least = ((1 - search.share) / constants.slope_change).clamp(max=search.first_step)
    ratios = list[float]()
    for row, run in enumerate(runs(model, x, search, radius)):
        # A shorter step was shortened for the sake of the ball or the class.
        taken = [share >= least[row] for share in run.shares]
        passed = (*taken, False).index(False)
        bounds = [descent_bound(constants, search, T)[row].item() for T in range(1, passed + 1)]
        shortest = [min(run.lengths[:T]) for T in range(1, passed + 1)]
        for reached, bound in zip(shortest, bounds, strict=True):
            assert reached <= bound
        if passed > 1:
            ratios.append(bounds[-1] / shortest[-1])
    return ratios


@pytest.mark.parametrize("seed", range(3))
def test_the_directions_of_a_smooth_network_become_as_short_as_the_theorem_says(seed: int) -> None:
    model, x = softplus_net(6, 5, seed), 2 * numbers(12, 6, seed=seed)
    search = replace(SQP, share=0.3, pairs=3, scale="plain", guide=None, iterations=60)
    ratios = assert_converging(model, x, search, radius=1.0)
    assert len(ratios) > 5
    assert min(ratios) < 10  # a bound that says something


def test_the_directions_of_a_network_of_adult_become_as_short_as_the_theorem_says() -> None:
    model, x = softplus_adult()
    search = replace(SQP, share=0.3, pairs=4, scale="plain", guide=None, iterations=60)
    ratios = assert_converging(model, x, search, radius=1.0)
    assert len(ratios) > 10
    assert min(ratios) < 20


def test_the_theorem_is_nearly_attained_where_gaps_are_linear() -> None:
    # I = Ax + b: the gradient of the only gap is constant, d = -g every time, and T whole steps
    # lower it by T ||d||^2. Nothing bends, eta = 1: with that fall the bound is
    # ||d|| / sqrt(sigma).
    model = Quadratic(d=4, b=torch.tensor([9.0, 0.0, -9.0, -9.0]).double())
    x = 0.01 * numbers(3, 4)
    search = replace(SQP, share=0.99, pairs=1, scale="plain", guide=None, iterations=3)
    for run in runs(model, x, search, radius=0.1):
        passed = sum(share == 1 for share in run.shares)
        assert passed >= 1
        d = run.lengths[0]
        assert d == pytest.approx(1.0)  # in units of its own fall
        one = torch.ones(1).double()
        constants = Constants(fall=passed * d**2 * one, slope_change=0 * one, residual_change=one)
        bound = descent_bound(constants, search, passed).item()
        assert min(run.lengths[:passed]) <= bound == pytest.approx(d / math.sqrt(0.99))


def test_the_bound_falls_with_the_root_of_the_iterations() -> None:
    # sigma = 1/2, L = 2: eta = 1/4. fall = 8: sqrt(8 / (1/2 * 1/4 * T)) = 8 / sqrt T.
    one = torch.ones(1).double()
    constants = Constants(fall=8 * one, slope_change=2 * one, residual_change=one)
    search = replace(SQP, share=0.5)
    found = [descent_bound(constants, search, T).item() for T in (1, 4, 64)]
    assert found == pytest.approx([8.0, 4.0, 1.0])
    assert "linearised search" in refusal(lambda: descent_bound(constants, LineSearch(), 3))
    assert "got 0" in refusal(lambda: descent_bound(constants, search, 0))
