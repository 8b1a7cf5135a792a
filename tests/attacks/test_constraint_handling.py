"""How attacks keep predictions: Eqs. 57-60 by hand, every handler's promises, figure 6."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import pairwise, repeat
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from test_attack_contracts import assert_same, assert_true, case, exactly_within, small
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from attacking import Attack, attacker
from closed_form import Linear, Quadratic, numbers, tiny_mlp
from r2et.attacks.comparison import HandlingPoint, compare_handling, marked, pareto_front, selection
from r2et.attacks.constraint_handling import (
    CONSTRAINT_HANDLING,
    ConstraintHandling,
    Weighting,
    divergence,
    equal,
    gda,
    hedge,
    kept_losses,
    least_divergence,
    min_norm,
    scale_of,
    weighted,
)
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.search import (
    AttackProblem,
    AttackResult,
    BestSoFar,
    Goal,
    Outputs,
    distance_goal,
    prediction,
    projected_descent,
    ranking_goal,
)
from r2et.core.geometry import one_of
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.explainers import Gradient, gradient, predicted
from r2et.perturbations import L2Ball
from refusals import refusal

every_handler = pytest.mark.parametrize("handler", CONSTRAINT_HANDLING)
both_goals = pytest.mark.parametrize("goal", ["er", "mse"])
WEIGHTINGS: list[Weighting] = [equal, gda, hedge, min_norm]
ATTACK: dict[str, Callable[..., Attack]] = {
    "er": partial(attacker, "er"),
    "mse": partial(attacker, "mse"),
}
signed_logit = Gradient(of="logit", form="signed")


def smooth(dtype: torch.dtype = torch.float64) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network without kinks and seven examples.

    On a linear piece of a network the slopes of all goals lie on one line: they agree or cancel.
    """
    model, x = tiny_mlp().to(dtype), numbers(7, 6).to(dtype)
    return model, x, predicted(model, x)


def two_goals(m: int = 3, d: int = 4, count: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (B, m) of sum one, losses (B, m) and gradients (B, m, d)."""
    weights = numbers(count, m, seed=3).softmax(-1)
    return weights, numbers(count, m, seed=4), numbers(count, m, d, seed=5)


# --- Eqs. 58-60 -----------------------------------------------------------------------------------


def test_gda_matches_its_equation() -> None:
    # Eq. 58: w_s <- w_s + r dL/dw_s = w_s + r g_s for s = 1..S, not below zero; w_0 is "passively
    # updated by the normalization" to sum 1.
    weights, losses, gradients = two_goals()
    assert (weights[:, 1:] + 0.7 * losses[:, 1:] < 0).any()
    found = gda(weights, losses, gradients, rate=0.7)
    for w, g, row in zip(weights.tolist(), losses.tolist(), found.tolist(), strict=True):
        raised = [w[0], *(max(0.0, w[s] + 0.7 * g[s]) for s in (1, 2))]
        assert row == pytest.approx([each / sum(raised) for each in raised], abs=1e-14)


def test_gda_by_hand() -> None:
    # Halves, g = (9, 0.5), r = 2: (1/2, 1/2 + 1) = (1/2, 3/2), over 2 = (1/4, 3/4).
    half, losses = torch.full((1, 2), 0.5), torch.tensor([[9.0, 0.5]])
    slopes = torch.zeros(1, 2, 3)
    assert gda(half, losses, slopes, rate=2.0).tolist() == [[0.25, 0.75]]
    # Where nothing is left to divide, all goals weigh the same.
    assert gda(half, -losses, slopes, rate=2.0).tolist() == [[1.0, 0.0]]
    assert gda(torch.tensor([[0.0, 1.0]]), -losses, slopes, rate=2.0).tolist() == [[0.5, 0.5]]


def test_hedge_matches_its_equation() -> None:
    # Eq. 59: w <- w * exp(r [g_0, ..., g_S]), then normalised.
    weights, losses, gradients = two_goals()
    found = hedge(weights, losses, gradients, rate=0.7)
    for w, g, row in zip(weights.tolist(), losses.tolist(), found.tolist(), strict=True):
        raised = [each * math.exp(0.7 * loss) for each, loss in zip(w, g, strict=True)]
        assert row == pytest.approx([each / sum(raised) for each in raised], abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_of_hedge_comes_back_after_a_long_walk(dtype: torch.dtype) -> None:
    # 400 steps at g = (10, 0) leave exp(-4000) for the second goal, 400 at (0, 10) bring it back.
    weights, slopes = torch.full((1, 2), 0.5, dtype=dtype), torch.zeros(1, 2, 3, dtype=dtype)
    for losses in ([[10.0, 0.0]], [[0.0, 10.0]]):
        for _ in range(400):
            weights = hedge(weights, torch.tensor(losses, dtype=dtype), slopes, rate=1.0)
        assert weights.isfinite().all()
    assert weights[0, 1] > 0.99


def test_the_shortest_blend_of_orthogonal_slopes() -> None:
    # ||sum w_s g_s||^2 = sum w_s^2 l_s^2, least on the simplex at w_s ~ 1 / l_s^2. Scaled to
    # length one all weigh 1/3, which is w_s ~ 1 / l_s for the slopes as they are.
    lengths = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    slopes = torch.diag(lengths)[None]
    w = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    raw = min_norm(w, w, slopes, normalised=False)
    torch.testing.assert_close(raw, torch.tensor([[16.0, 4.0, 1.0]]).double() / 21)
    scaled = min_norm(w, w, slopes)
    torch.testing.assert_close(scaled, torch.tensor([[4.0, 2.0, 1.0]]).double() / 7)


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        # Between (1, 0) and (0, 2): w (1, 0) + (1 - w) (0, 2), w^2 + 4 (1 - w)^2 least at w = 4/5.
        ([1.0, 0.0], [0.0, 2.0], 0.8),
        ([1.0, 0.0], [2.0, 0.0], 1.0),  # the shorter of two that point one way
        ([3.0, 1.0], [1.0, 0.0], 0.0),
        ([1.0, 0.0], [-3.0, 0.0], 0.75),  # opposed slopes cancel: 3/4 - 3/4
        ([1.0, 2.0], [1.0, 2.0], 0.5),
    ],
)
def test_the_shortest_blend_of_two(first: list[float], second: list[float], share: float) -> None:
    half = torch.full((1, 2), 0.5, dtype=torch.float64)
    slopes = torch.tensor([[first, second]], dtype=torch.float64)
    found = min_norm(half, half, slopes, normalised=False)
    torch.testing.assert_close(found, torch.tensor([[share, 1 - share]]).double())
    # Of two slopes scaled to length one the shortest blend is half of each.
    each = min_norm(half, half, slopes)[0, :, None] * slopes[0]
    torch.testing.assert_close(each[0].norm(), each[1].norm())


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_blend_is_as_short_as_another_solver_finds(m: int, normalised: bool) -> None:
    # Eq. 60 by sequential quadratic programming, on slopes that lean to one side.
    slopes = numbers(6, m, 5, seed=m) + 0.5
    w = torch.full((6, m), 1 / m, dtype=torch.float64)
    found = min_norm(w, w, slopes, normalised=normalised)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(6).double())
    assert not torch.allclose(found, w)
    scales = slopes.norm(dim=-1, keepdim=True) if normalised else torch.ones(6, m, 1)
    for row in range(6):
        G = (slopes / scales)[row].numpy()
        slow = minimize(  # type: ignore[call-overload]
            lambda v, G=G: 0.5 * ((v @ G) ** 2).sum(),
            x0=[1 / m] * m,
            jac=lambda v, G=G: G @ (v @ G),
            bounds=[(0, 1)] * m,
            constraints={"type": "eq", "fun": lambda v: v.sum() - 1},
            options={"ftol": 1e-15, "maxiter": 500},
        )
        shares = found[row] * scales[row, :, 0]
        ours = (shares / shares.sum()).numpy()
        assert math.isclose(0.5 * ((ours @ G) ** 2).sum(), slow.fun, rel_tol=1e-6, abs_tol=1e-10)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("size", [0.0, 1e-16])
def test_goals_without_a_slope_have_no_weight(m: int, normalised: bool, size: float) -> None:
    # A zero slope would be the shortest blend, and nothing would move. What is left is weighed as
    # if the dropped goals did not exist; rounding errors are no slopes.
    slopes = numbers(4, m, 5)
    slopes[0, 1:] *= size
    slopes[1, 0] *= size
    slopes[2] = 0
    w = numbers(4, m, seed=1).softmax(-1)
    found = min_norm(w, w, slopes, normalised=normalised)
    assert found[0].tolist() == [1.0] + [0.0] * (m - 1)
    assert found[1, 0] == 0
    assert torch.equal(found[2], w[2]), "without any slope the weights stay"
    alone = min_norm(w[1:2, 1:], w[1:2, 1:], slopes[1:2, 1:], normalised=normalised)
    torch.testing.assert_close(found[1:2, 1:], alone, rtol=0, atol=1e-6)
    assert (found[3] > 0).any()


def test_what_is_negligible_can_be_chosen() -> None:
    slopes = torch.tensor([[[1.0, 0.0], [0.0, 0.01]]], dtype=torch.float64)
    half = torch.full((1, 2), 0.5, dtype=torch.float64)
    assert min_norm(half, half, slopes)[0, 1] > 0.9
    assert min_norm(half, half, slopes, negligible=0.02).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("reweigh", WEIGHTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_weights_are_shares(reweigh: Weighting, dtype: torch.dtype, scale: float) -> None:
    weights, losses, slopes = (each.to(dtype) for each in two_goals(m=4))
    found = reweigh(weights, losses, slopes * scale)
    assert found.dtype == dtype
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(5, dtype=dtype))
    torch.testing.assert_close(reweigh(weights[2:3], losses[2:3], scale * slopes[2:3]), found[2:3])


def test_no_update() -> None:
    weights, losses, slopes = two_goals(m=4)
    assert equal(weights, losses, slopes).tolist() == [[0.25] * 4] * 5


# --- The goals -----------------------------------------------------------------------------------


def test_divergence_is_that_of_torch() -> None:
    clean, now = 3 * numbers(6, 4), 3 * numbers(6, 4, seed=1)
    expected = kl_divergence(Categorical(logits=clean), Categorical(logits=now))
    torch.testing.assert_close(divergence(clean, now), expected)
    assert (divergence(clean, clean) == 0).all()
    sure = torch.tensor([[800.0, -800.0]])
    assert divergence(sure, -sure).tolist() == [1600.0]


@pytest.mark.parametrize("scaled", [False, True])
def test_the_slope_of_a_divergence_is_that_of_differences(scaled: bool) -> None:
    model, x = tiny_mlp(classes=3), numbers(4, 6)
    at = x + 0.3 * numbers(4, 6, seed=1)
    (kept,) = [kept_losses(partial(prediction, model), x, scaled=scaled)]
    point = at.clone().requires_grad_()
    (value,) = kept(point)
    (slope,) = torch.autograd.grad(value.sum(), point)
    for i in range(6):
        small = torch.zeros(6, dtype=torch.float64)
        small[i] = 1e-5
        rise = (kept(at + small)[0] - kept(at - small)[0]) / 2e-5
        torch.testing.assert_close(slope[:, i], rise.detach(), rtol=1e-6, atol=1e-8)
    assert (slope.norm(dim=-1) > 1e-3).all()


def test_at_x_a_divergence_has_neither_value_nor_slope() -> None:
    model, x = tiny_mlp(), numbers(4, 6).requires_grad_()
    (value,) = kept_losses(partial(prediction, model), x, scaled=False)(x)
    assert value.abs().max() < 1e-15
    assert torch.autograd.grad(value.sum(), x)[0].abs().max() < 1e-15


def test_no_other_class_is_nearer_than_the_least_divergence() -> None:
    clean = 2 * numbers(5, 4)
    least = least_divergence(clean)
    for row in range(5):
        other = 2 * numbers(4000, 4, seed=row)
        other = torch.cat([other, clean[row] + 0.1 * other, clean[row] + 0.5 * other])
        other = other[other.argmax(-1) != clean[row].argmax()]
        found = divergence(clean[row : row + 1], other)
        assert least[row] <= found.min() < 1.2 * least[row] + 0.01
        # It is reached where the two likeliest share their mass.
        p = clean[row].softmax(-1)
        top = p.topk(2).indices
        p[top] = p[top].mean()
        torch.testing.assert_close(divergence(clean[row], p.log()), least[row])


def test_the_least_divergence_of_two_classes_by_hand() -> None:
    # p = (3/4, 1/4) against (1/2, 1/2): 3/4 log(3/2) + 1/4 log(1/2). A tie has none, a sure
    # prediction log 2.
    logits = torch.tensor([[math.log(3.0), 0.0], [1.0, 1.0], [500.0, -500.0]], dtype=torch.float64)
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert least_divergence(logits).tolist() == pytest.approx([by_hand, 0.0, math.log(2)])


def test_goals_are_scaled_by_where_they_start() -> None:
    before = numbers(4, 6).abs()
    er, mse = ranking_goal(before, 2), distance_goal(before)
    torch.testing.assert_close(er(before) / scale_of(er, before), torch.ones(4).double())
    torch.testing.assert_close(scale_of(mse, before), before.square().sum(-1))
    nothing = torch.zeros(1, 6)
    assert scale_of(ranking_goal(nothing, 2), nothing).tolist() == [1.0]


def test_a_scaled_prediction_below_one_is_kept() -> None:
    model, x = tiny_mlp(classes=4), numbers(200, 6)
    at = x + 0.6 * numbers(200, 6, seed=1)
    (value,) = kept_losses(partial(prediction, model), x, scaled=True)(at)
    changed = predicted(model, x) != predicted(model, at)
    assert changed.sum() > 20
    assert (value[changed] >= 1).all()
    assert (value < 1).sum() > 100


def test_a_tie_from_the_start_makes_no_nan() -> None:
    model, x = Linear(), torch.zeros(2, 4, dtype=torch.float64)
    assert least_divergence(model(x)).tolist() == [0.0, 0.0]
    kept = kept_losses(partial(prediction, model), x, scaled=True)
    assert kept(x)[0].tolist() == [0.0, 0.0]
    assert kept(x + 1)[0].isfinite().all()


# --- The walk ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reweigh", WEIGHTINGS)
def test_the_weighted_loss_has_the_slope_of_the_lagrangian(reweigh: Weighting) -> None:
    # Eq. 57: L = sum_s w_s g_s with g_s(x) = |x - c_s|^2, so that grad L = 2 sum_s w_s (x - c_s);
    # the weights go on from those of the call before, from equal ones at first.
    centres, x = numbers(3, 4, seed=1), numbers(5, 2, 2)
    calls: list[Tensor] = []

    def spied(weights: Tensor, losses: Tensor, gradients: Tensor) -> Tensor:
        calls.append(weights)
        return reweigh(weights, losses, gradients)

    def goals(at: Tensor) -> list[Tensor]:
        return [(at.flatten(1) - centre).square().sum(-1) for centre in centres]

    loss = weighted(goals, spied)
    w = torch.full((5, 3), 1 / 3, dtype=torch.float64)
    for turn in range(3):
        point = (x + turn).requires_grad_()
        (slope,) = torch.autograd.grad(loss(point).sum(), point)
        assert torch.equal(calls[-1], w)
        slopes = 2 * (point.detach().flatten(1)[:, None] - centres)
        w = reweigh(w, torch.stack(goals(point.detach()), dim=1), slopes)
        torch.testing.assert_close(slope.flatten(1), (w[:, :, None] * slopes).sum(1))


def test_a_goal_without_a_graph_has_no_slope() -> None:
    x = numbers(3, 4).requires_grad_()
    loss = weighted(lambda at: [torch.ones(3).double(), at.square().sum(-1)], equal)
    torch.testing.assert_close(torch.autograd.grad(loss(x).sum(), x)[0], x.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_that_cancel_leave_none(dtype: torch.dtype) -> None:
    # Opposed goals: of their blend only rounding errors remain, and no step may follow these.
    x, v = numbers(9, 5).to(dtype).requires_grad_(), numbers(5, seed=1).to(dtype)
    opposed = weighted(lambda at: [at @ v, -(at @ (v / 3))], min_norm)
    assert (torch.autograd.grad(opposed(x).sum(), x)[0] == 0).all()
    aside = weighted(lambda at: [at @ v, at[:, 0] / 100 - at @ v], equal)
    slope = torch.autograd.grad(aside(x).sum(), x)[0]
    torch.testing.assert_close(slope[:, 0], torch.full_like(slope[:, 0], 0.005))


@both_goals
def test_a_network_of_linear_pieces_is_handled_alone(goal: str) -> None:
    model, x, y = case()
    build = partial(small, goal, radius=2.0, handling="qp")
    together = build()(model, x, y)
    assert (together.x != x).any()
    assert_same(build(rows_at_once=2)(model, x, y), together, atol=1e-9)


def kicked(lower: Callable[[Tensor, int], Goal]) -> int | None:
    """The seed of a random first step, which only the goal of the MSE attack needs."""
    return None if lower is ranking_goal else 0


def mse_goal(before: Tensor, k: int) -> Goal:
    return distance_goal(before)


def last_of(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    handling: ConstraintHandling,
    budget: dict[str, Any],
    lower: Callable[[Tensor, int], Goal] = ranking_goal,
    outputs: Outputs = prediction,
    explainer: Any = gradient,
) -> Tensor:
    """Where an attack ends, whether or not it keeps the predictions."""
    name = "er" if lower is ranking_goal else "mse"
    walked = attacker(
        name, k=2, explainer=explainer, budget=budget, handling=handling, outputs=outputs
    )(model, x, y)
    assert walked.last is not None
    return walked.last


@pytest.mark.parametrize("lower", [ranking_goal, mse_goal])
def test_all_weight_on_the_goal_is_the_unconstrained_walk(lower: Any) -> None:
    def goal_alone(weights: Tensor, losses: Tensor, gradients: Tensor) -> Tensor:
        return torch.eye(weights.shape[1], dtype=weights.dtype)[:1].expand_as(weights)

    model, x = tiny_mlp(), numbers(5, 6)
    budget = {"radius": 2.0, "step": 0.1, "steps": 15}
    plain, weighed = (
        last_of(model, x, predicted(model, x), handling=each, budget=budget, lower=lower)
        for each in (
            CONSTRAINT_HANDLING["unconstrained"],
            ConstraintHandling(line="", weighting=goal_alone),
        )
    )
    torch.testing.assert_close(weighed, plain, rtol=0, atol=1e-9)
    assert ((plain - x).norm(dim=-1) > 1).any()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("reweigh", [equal, gda, hedge])
def test_a_walk_descends_on_the_lagrangian(reweigh: Weighting, scaled: bool) -> None:
    # Slowly, one example after another: g_0 the mean gap over its start value, g_1 the divergence
    # over the least at which the class changes, steps of one length against w_0 g_0 + w_1 g_1.
    model, x = tiny_mlp(), numbers(3, 6)
    y = predicted(model, x)
    handler = ConstraintHandling(line="", weighting=reweigh, scaled=scaled)
    budget = {"radius": 9.0, "step": 0.1, "steps": 6}
    found = last_of(model, x, y, handling=handler, budget=budget)
    for row in range(3):
        at, label = x[row : row + 1], y[row : row + 1]
        before, clean = gradient(model, at, label).detach(), model(at).detach()
        ranked = before[0].argsort(descending=True)
        start = before[0, ranked[:2]].mean() - before[0, ranked[2:]].mean()
        least = least_divergence(clean)[0]
        units = (start, least) if scaled else (1.0, 1.0)
        w = torch.full((1, 2), 0.5, dtype=torch.float64)
        for _ in range(6):
            at = at.detach().requires_grad_()
            saliency = gradient(model, at, label)[0]
            gap = saliency[ranked[:2]].mean() - saliency[ranked[2:]].mean()
            drift = kl_divergence(Categorical(logits=clean), Categorical(logits=model(at)))[0]
            losses = torch.stack([gap / units[0], drift / units[1]])
            w = reweigh(w, losses.detach()[None], torch.zeros(1, 2, 6))
            (slope,) = torch.autograd.grad((w[0] * losses).sum(), at)
            at = at - 0.1 * slope / slope.norm()
        torch.testing.assert_close(found[row], at[0].detach(), rtol=0, atol=1e-9)


def before_handlers(
    lower: Callable[[Tensor, int], Goal],
    k: int,
    budget: dict[str, Any],
    record_every: int,
    *args: Any,
) -> AttackResult:
    """The attacks as they were before there were handlers, word for word."""
    model, x, y = args
    within = L2Ball(radius=budget["radius"])
    problem = AttackProblem(k=k, explainer=gradient, perturbation=within)
    best = BestSoFar(model, x, y, problem)
    goal = lower(best.before, k)
    start, step = x, 0
    if kicked(lower) is not None:
        kick = L2Ball(radius=budget["step"]).offsets(one_of(x), 1, stream(0, "kick"), surface=True)
        start, step = within.relax(x + kick, x), 1

    def loss(point: Tensor) -> Tensor:
        nonlocal step
        saliency = gradient(model, point, y)
        if step % record_every == 0:
            best.offer(point.detach(), saliency.detach())
            best.tick(step - best.clock)
        step += 1
        return goal(saliency)

    lengths = repeat(budget["step"], budget["steps"] - step)
    last = projected_descent(loss, x, start=start, perturbation=within, lengths=lengths)
    best.offer(last)
    best.tick(budget["steps"] - best.clock)
    return best.result()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("build", "lower"),
    [(partial(attacker, "er"), ranking_goal), (partial(attacker, "mse"), mse_goal)],
    ids=["er", "mse"],
)
def test_without_a_handler_attacks_are_what_they_were(
    build: Any, lower: Any, dtype: torch.dtype
) -> None:
    model, x, y = case(dtype)
    budget = {"radius": 2.0, "step": 0.1, "steps": 25}
    found = build(k=2, budget=budget, record_every=3)(model, x, y)
    assert_same(replace(found, last=None), before_handlers(lower, 2, budget, 3, model, x, y))
    assert found.flipped.any()


class Corridor(Quadratic):
    """The score x'Ax/2 + b'x + c: where it falls under zero, the prediction changes."""

    def __init__(self, c: float) -> None:
        super().__init__(d=6)
        self.c = c

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.tensor([0.0, self.c], dtype=x.dtype)

    def path(self, x: Tensor) -> Tensor:
        """The direction of the walk of ERAttack with k = 2, the same at every point: (d,)."""
        A, b = self.A.detach(), self.b.detach()
        ranked = (A @ x + b).argsort(descending=True)
        w = torch.full((6,), -1 / 4, dtype=torch.float64)
        w[ranked[:2]] = 1 / 2
        direction: Tensor = -A @ w / (A @ w).norm()
        return direction

    def kept(self, x: Tensor) -> bool:
        return bool(predicted(self, x[None])[0] == 1)


def corridor() -> tuple[Corridor, Tensor]:
    """A quadratic whose walk is a straight line, and examples of class 1; some walk out of it."""
    model = Corridor(c=1.0)
    x = numbers(40, 6)
    return model, x[predicted(model, x) == 1]


def test_an_early_stop_is_at_the_last_point_before_the_change() -> None:
    # The walk is x + t s v (see test_attacks): count the steps to the first change by hand.
    model, x = corridor()
    budget = {"radius": 9.0, "step": 0.1, "steps": 30}
    y = torch.ones(len(x), dtype=torch.long)
    found = last_of(
        model,
        x,
        y,
        handling=CONSTRAINT_HANDLING["early-stop"],
        budget=budget,
        explainer=signed_logit,
    )
    counts = []
    for row, end in zip(x, found, strict=True):
        points = [row + t * 0.1 * model.path(row) for t in range(31)]
        changed = [t for t, point in enumerate(points) if not model.kept(point)]
        counts.append(changed[0] - 1 if changed else 30)
        torch.testing.assert_close(end, points[counts[-1]], rtol=0, atol=1e-12)
    assert 30 in counts, "some never stop"
    assert len({*counts}) > 4


def test_a_refused_step_is_halved() -> None:
    # By the rule: a step that changes the class is not taken and the next is half as long; a
    # step taken makes the next longer by half again, up to the full length.
    model, x = corridor()
    budget = {"radius": 9.0, "step": 0.1, "steps": 30}
    y = torch.ones(len(x), dtype=torch.long)
    found = last_of(
        model,
        x,
        y,
        handling=CONSTRAINT_HANDLING["rejection"],
        budget=budget,
        explainer=signed_logit,
    )
    stopped = last_of(
        model,
        x,
        y,
        handling=CONSTRAINT_HANDLING["early-stop"],
        budget=budget,
        explainer=signed_logit,
    )
    refused = 0
    for row, end in zip(x, found, strict=True):
        at, pace = row, 1.0
        for _ in range(30):
            moved = at + pace * 0.1 * model.path(row)
            if model.kept(moved):
                at, pace = moved, min(1.0, 1.5 * pace)
            else:
                pace, refused = pace / 2, refused + 1
        torch.testing.assert_close(end, at, rtol=0, atol=1e-12)
    assert refused > 30
    further = (found - x).norm(dim=-1) - (stopped - x).norm(dim=-1)
    assert further.min() > -1e-12
    assert (further > 0.01).sum() > 3


@pytest.mark.parametrize("handler", ["early-stop", "rejection"])
def test_a_random_first_step_does_not_cross_either(handler: str) -> None:
    # Examples nearer to the boundary than the first step of the MSE attack is long.
    model = Linear(d=6)
    w = model.w.detach()
    kick = L2Ball(radius=0.5).offsets(w, 1, stream(0, "kick"), surface=True)[0]
    across = 0.3 * torch.sign(w @ kick) * w / w.norm()
    near = w @ kick / w.norm()
    assert near.abs() > 0.02
    x = torch.stack([-0.02 * torch.sign(near) * w / w.norm(), across])
    y = predicted(model, x)
    assert y[0] != predicted(model, x[:1] + kick)[0]
    budget = {"radius": 9.0, "step": 0.5, "steps": 1}
    found = last_of(
        model, x, y, handling=CONSTRAINT_HANDLING[handler], budget=budget, lower=mse_goal
    )
    assert torch.equal(predicted(model, found), y)
    torch.testing.assert_close(found[1], x[1] + kick)
    length = (found[0] - x[0]).norm()
    halvings = math.ceil(math.log2(near.abs() / 0.02))
    expected = 0.0 if handler == "early-stop" else 0.5 * 0.5**halvings
    assert length.item() == pytest.approx(expected, abs=1e-12)


# --- Several predictions -------------------------------------------------------------------------


class Siamese(nn.Module):
    """Pairs of inputs (B, 2, 3): logits of whether they are alike, and a class for each."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.single = tiny_mlp(seed=2), tiny_mlp(d=3, classes=3, seed=52)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.pair(x.flatten(1))
        return 2 * logits


def all_three(model: nn.Module, x: Tensor) -> Sequence[Tensor]:
    assert isinstance(model, Siamese)
    return model(x), 2 * model.single(x[:, 0]), 2 * model.single(x[:, 1])


def classes(model: nn.Module, x: Tensor) -> Tensor:
    """The classes of the three outputs: (B, 3)."""
    with torch.no_grad():
        return torch.stack([logits.argmax(-1) for logits in all_three(model, x)], dim=-1)


def pairs() -> tuple[Siamese, Tensor, Tensor]:
    model, x = Siamese().double(), 0.7 * numbers(25, 2, 3)
    return model, x, predicted(model, x)


@both_goals
@every_handler
def test_all_predictions_are_kept(goal: str, handler: str) -> None:
    model, x, y = pairs()
    budget = {"radius": 1.5, "step": 0.3, "steps": 5}
    build = partial(ATTACK[goal], k=2, budget=budget, handling=handler)
    one = build()(model, x, y)
    assert (predicted(model, one.x) == y).all()
    assert not torch.equal(classes(model, one.x), classes(model, x)), "another would change"
    found = build(outputs=all_three)(model, x, y)
    assert torch.equal(classes(model, found.x), classes(model, x))
    assert (found.x != x).any()
    assert_true(found, model, x, y)


@both_goals
def test_a_constraint_keeps_more_predictions(goal: str) -> None:
    model, x, y = pairs()
    points = compare_handling(
        model,
        x,
        y,
        k=2,
        perturbation=L2Ball(radius=1.5),
        budget=WalkBudget(steps=12, record_every=5),
        step_sizes=[0.1],
        goals=[goal],
        outputs=all_three,
    )
    changed = {point.handler: point.sensitivity for point in points}
    assert changed["unconstrained"] > 0.2
    assert changed["early-stop"] == changed["rejection"] == 0
    for name in ("equal", "gda", "hedge", "qp"):
        assert changed[name] < 0.7 * changed["unconstrained"], name


def test_the_model_is_free_to_change_what_is_no_output() -> None:
    model, x, y = pairs()
    budget = {"radius": 1.5, "step": 0.1, "steps": 20}

    def first_only(model: nn.Module, x: Tensor) -> Sequence[Tensor]:
        return all_three(model, x)[1:2]

    end = last_of(
        model,
        x,
        y,
        handling=CONSTRAINT_HANDLING["rejection"],
        budget=budget,
        outputs=first_only,
        lower=mse_goal,
    )
    lost = (classes(model, end) != classes(model, x)).any(0)
    assert lost.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (lambda model, x: model(x), "got a Tensor: write"),
        (lambda model, x: (), "got nothing"),
        (lambda model, x: (model(x)[:, :1],), "two or more classes"),
        (lambda model, x: (model(x)[:2],), "each of the 25 examples, got 2"),
    ],
)
def test_outputs_that_are_none_are_refused(outputs: Any, words: str) -> None:
    attack = attacker("er", k=2, outputs=outputs, steps=1)
    assert words in refusal(lambda: attack(*pairs()))


@both_goals
def test_an_unknown_handler_is_refused(goal: str) -> None:
    assert "did you mean 'hedge'?" in refusal(lambda: ATTACK[goal](k=2, handling="Hegde"))


# --- What every handler promises -----------------------------------------------------------------


@both_goals
@every_handler
def test_every_handler_finds_something(goal: str, handler: str) -> None:
    # Without this the promises below would hold for an attack that does nothing.
    model, x, y = smooth()
    found = small(goal, radius=2.0, handling=handler)(model, x, y)
    assert found.flipped.any()
    assert_true(found, model, x, y)


@both_goals
@every_handler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ball_bounds_and_predictions_are_kept(goal: str, handler: str, dtype: torch.dtype) -> None:
    model, x, _ = smooth(dtype)
    low, high = torch.tensor(-0.6, dtype=dtype), torch.tensor(0.6, dtype=dtype)
    for scale, radius in ((0.1, 1.5), (1.0, 1e-3), (30.0, 0.1)):
        rows = (x * scale).clamp(-0.6, 0.6) if scale < 1 else x * scale
        y = predicted(model, rows)
        bounds = (-0.6, 0.6) if scale < 1 else None
        found = small(goal, radius, handling=handler, perturbation=L2Ball(bounds=bounds))(
            model, rows, y
        )
        assert found.x.dtype == found.precision.dtype == dtype
        assert exactly_within(found.x, rows, radius)
        assert (predicted(model, found.x) == y).all()
        if bounds:
            assert (found.x != rows).any()
            assert (low <= found.x).all()
            assert (found.x <= high).all()


@every_handler
@pytest.mark.parametrize(("goal", "several"), [("er", False), ("mse", False), ("er", True)])
def test_an_example_is_handled_alone(goal: str, handler: str, several: bool) -> None:
    model, x, y = pairs()
    outputs = all_three if several else prediction
    budget = {"radius": 1.5, "step": 0.4, "steps": 3}
    build = partial(ATTACK[goal], k=2, budget=budget, handling=handler, outputs=outputs)
    together = build()(model, x, y)
    assert together.flipped.any()
    assert_same(build(rows_at_once=13)(model, x, y), together, atol=1e-9)
    alone = build()(model, x[3:4], y[3:4])
    torch.testing.assert_close(alone.x[0], together.x[3], rtol=0, atol=1e-9)
    assert alone.first_flip[0] == together.first_flip[3]


@both_goals
@every_handler
def test_the_shape_of_an_example_makes_no_difference(goal: str, handler: str) -> None:
    model, x, y = smooth()
    flat = small(goal, handling=handler)(model, x, y)
    shaped = small(goal, handling=handler)(nn.Sequential(nn.Flatten(), *model), x.view(7, 2, 3), y)
    assert shaped.x.shape == (7, 2, 3)
    assert torch.equal(shaped.x.flatten(1), flat.x)
    assert (flat.x != x).any()


@both_goals
@every_handler
def test_no_examples_and_no_steps(goal: str, handler: str) -> None:
    model, x, y = smooth()
    found = small(goal, handling=handler)(model, x[:0], y[:0])
    assert found.x.shape == (0, 6)
    assert found.history.shape == (len(found.steps), 0)
    still = ATTACK[goal](k=2, handling=handler, budget={"steps": 0})(model, x, y)
    assert torch.equal(still.x, x)
    assert torch.equal(small(goal, radius=0.0, handling=handler)(model, x, y).x, x)


@both_goals
@every_handler
def test_nothing_of_the_caller_is_touched(goal: str, handler: str) -> None:
    inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.LeakyReLU())
    model = nn.Sequential(inner, nn.Linear(5, 2)).double().train()
    inner[0].weight.requires_grad_(False)
    x, y = numbers(5, 6).requires_grad_(), predicted(model, numbers(5, 6))
    weights = {key: each.clone() for key, each in model.state_dict().items()}
    recorded = [each.requires_grad for each in model.parameters()]
    dice = torch.get_rng_state()
    attack = small(goal, handling=handler)
    found = attack(model, x, y)
    assert torch.equal(torch.get_rng_state(), dice)
    assert torch.equal(x.detach(), numbers(5, 6))
    assert x.grad is None
    assert all(part.training for part in model.modules())
    assert all(torch.equal(each, weights[key]) for key, each in model.state_dict().items())
    assert [each.requires_grad for each in model.parameters()] == recorded
    assert all(each.grad is None for each in model.parameters())
    held = [getattr(found, field.name) for field in fields(AttackResult)]
    assert not any(each.requires_grad for each in held if isinstance(each, Tensor))
    with torch.no_grad():
        assert_same(attack(model, x, y), found)


@both_goals
@every_handler
def test_a_row_that_is_not_predicted_as_y_is_refused(goal: str, handler: str) -> None:
    model, x = tiny_mlp(), 0.3 * numbers(40, 6)
    y = predicted(model, x)
    wrong = torch.arange(40) % 2 == 0
    with pytest.raises(ValueError, match="20 of 40 rows are predicted otherwise"):
        small(goal, radius=3.0, handling=handler)(model, x, torch.where(wrong, 1 - y, y))


@both_goals
@every_handler
def test_sure_and_undecided_models_make_no_nan(goal: str, handler: str) -> None:
    for scale in (0.0, 1e-12, 1e4):
        model, x, _ = smooth(torch.float32)
        with torch.no_grad():
            for each in model[-1].parameters():
                each.mul_(scale)
        found = small(goal, handling=handler)(model, x, predicted(model, x))
        assert found.x.isfinite().all()
        assert found.after.isfinite().all()


@every_handler
def test_an_entry_says_what_it_does(handler: str) -> None:
    line = CONSTRAINT_HANDLING[handler].line
    assert line
    assert "\n" not in line
    assert len(line) < 80


# --- Figure 6 ------------------------------------------------------------------------------------

grid = st.tuples(st.integers(0, 4).map(float), st.integers(0, 4).map(float))


@settings(max_examples=200, deadline=None)
@given(st.lists(grid, max_size=9))
def test_the_front_is_what_no_other_point_beats(points: list[tuple[float, float]]) -> None:
    def beaten(point: tuple[float, float]) -> bool:
        return any(
            other[0] <= point[0] and other[1] <= point[1] and other != point for other in points
        )

    assert pareto_front(points) == [not beaten(point) for point in points]


@settings(max_examples=200, deadline=None)
@given(st.lists(grid, max_size=9), st.integers(0, 4).map(float))
def test_the_selected_point_has_the_smallest_precision_of_the_tolerable(
    points: list[tuple[float, float]], tolerable: float
) -> None:
    chosen = selection(points, tolerable)
    fair = [point for point in points if point[1] <= tolerable]
    if chosen is None:
        assert not fair
    else:
        assert points[chosen][1] <= tolerable
        assert points[chosen][0] == min(precision for precision, _ in fair)
        assert pareto_front(fair)[fair.index(points[chosen])]
        assert chosen == points.index(points[chosen])


def test_each_goal_has_its_own_front_and_star() -> None:
    def point(goal: str, precision: float, sensitivity: float) -> HandlingPoint:
        return HandlingPoint(
            goal=goal,
            handler="gda",
            step=0.1,
            precision=precision,
            sensitivity=sensitivity,
            kept_precision=1.0,
        )

    points = [point("er", 0.5, 0.01), point("mse", 0.9, 0.0), point("er", 0.1, 0.3)]
    found = marked([*points, point("er", 0.5, 0.2)])
    assert [(each.goal, each.on_front, each.selected) for each in found] == [
        ("er", True, True),
        ("er", True, False),
        ("er", False, False),
        ("mse", True, True),
    ]
    assert [each.selected for each in marked(points, tolerable=0.5)] == [False, True, True]
    assert not marked(points[2:])[0].selected


@cache
def compared() -> list[HandlingPoint]:
    model, x, y = pairs()
    return compare_handling(
        model,
        x,
        y,
        k=2,
        perturbation=L2Ball(radius=1.5),
        budget=WalkBudget(steps=3),
        step_sizes=(0.1, 0.3),
        outputs=all_three,
    )


def test_a_comparison_holds_every_choice_once() -> None:
    expected = [
        (goal, name, step)
        for goal in ("er", "mse")
        for name in CONSTRAINT_HANDLING
        for step in (0.1, 0.3)
    ]
    assert [(each.goal, each.handler, each.step) for each in compared()] == expected
    assert {each.goal for each in compared() if each.selected} == {"er", "mse"}
    assert any(each.on_front for each in compared())


@both_goals
@every_handler
def test_a_point_is_that_of_the_last_inputs(goal: str, handler: str) -> None:
    # Slowly: explain and predict where the walk ended, example by example.
    model, x, y = pairs()
    lower = ranking_goal if goal == "er" else mse_goal
    budget = {"radius": 1.5, "step": 0.3, "steps": 3}
    end = last_of(
        model,
        x,
        y,
        handling=CONSTRAINT_HANDLING[handler],
        budget=budget,
        lower=lower,
        outputs=all_three,
    )
    shares, changed = [], []
    for row in range(25):
        before, after = (
            gradient(model, at[row : row + 1], y[row : row + 1]).detach() for at in (x, end)
        )
        shares.append(precision_at_k(before, after, 2).item())
        one, other = (classes(model, at[row : row + 1]) for at in (x, end))
        changed.append(not torch.equal(one, other))
    (point,) = [
        each for each in compared() if (each.goal, each.handler, each.step) == (goal, handler, 0.3)
    ]
    assert point.precision == pytest.approx(sum(shares) / 25)
    assert point.sensitivity == pytest.approx(sum(changed) / 25)
    attack = ATTACK[goal](k=2, handling=handler, budget=budget, outputs=all_three)
    assert point.kept_precision == pytest.approx(attack(model, x, y).precision.mean().item())


@pytest.mark.parametrize("handler", ["hedge", "qp", "rejection"])
def test_a_comparison_in_parts_is_the_same(handler: str) -> None:
    model, x, y = pairs()
    whole, parts = (
        compare_handling(
            model,
            x,
            y,
            k=2,
            perturbation=L2Ball(radius=1.5),
            budget=WalkBudget(steps=6),
            handling={handler: CONSTRAINT_HANDLING[handler]},
            step_sizes=[0.2],
            rows_at_once=rows,
        )
        for rows in (99, 7)
    )
    assert whole[0].kept_precision < 1
    for one, other in zip(whole, parts, strict=True):
        assert one.precision == pytest.approx(other.precision)
        assert one.sensitivity == pytest.approx(other.sensitivity)
        assert one.kept_precision == pytest.approx(other.kept_precision)


def test_longer_steps_reach_further() -> None:
    # A comparison that forgot the step size would give one point twice.
    by_step = {
        each.step: each.precision
        for each in compared()
        if (each.goal, each.handler) == ("er", "unconstrained")
    }
    assert all(longer < shorter for shorter, longer in pairwise(by_step.values()))


def test_a_comparison_refuses_what_it_does_not_know() -> None:
    model, x, y = pairs()
    assert "did you mean 'mse'?" in refusal(
        lambda: compare_handling(model, x, y, k=2, goals=["mses"])
    )
    assert "at least" in refusal(lambda: compare_handling(model, x[:0], y[:0], k=2))


def test_a_handler_of_ones_own_can_be_compared() -> None:
    model, x, y = pairs()
    own = {
        "eager": replace(CONSTRAINT_HANDLING["gda"], weighting=partial(gda, rate=9.0), scaled=False)
    }
    (point,) = compare_handling(
        model, x, y, k=2, handling=own, step_sizes=[0.1], goals=["er"], budget=WalkBudget(steps=3)
    )
    assert point.handler == "eager"
    assert point.on_front
    attack = attacker("er", k=2, handling=own["eager"], radius=2.0, step=0.1, steps=9)
    named = attacker("er", k=2, handling="gda", radius=2.0, step=0.1, steps=9)
    assert (attack(model, x, y).x != named(model, x, y).x).any()
