"""Attacks on many gaps at once: the sub-problem, the promises of the theory, the two searches."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacking import attacker
from closed_form import Linear, Quadratic, numbers, tiny_mlp
from r2et.attacks import _socp, moo
from r2et.attacks._socp import min_norm_weights, tr_moo
from r2et.attacks.moo import Iteration, Linearised, Outcome, TrustRegion, thinnest_pairs
from r2et.explainers import Gradient, predicted
from r2et.perturbations import L2Ball
from r2et.theory.complexity import Constants, estimated_constants, iteration_bound
from refusals import refusal

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
signed_logit = Gradient(of="logit", form="signed")


# --- the sub-problem ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A batch of sub-problems."""

    gaps: Tensor
    slopes: Tensor
    residual: Tensor
    jacobian: Tensor
    radius: Tensor

    def solve(self) -> _socp.Descent:
        return tr_moo(self.gaps, self.slopes, self.residual, self.jacobian, self.radius)

    def scale(self) -> Tensor:
        return self.residual.norm(dim=-1) + self.gaps.abs().amax(-1)

    def value(self, step: Tensor) -> Tensor:
        """The largest linearised merit after a step, by its definition."""
        fixed = (self.residual + (self.jacobian @ step[..., None])[..., 0]).norm(dim=-1)
        return fixed + (self.gaps + (self.slopes @ step[..., None])[..., 0]).abs().amax(-1)


def drawn(count: int, m: int, d: int, q: int, seed: int = 0) -> Case:
    return Case(
        numbers(count, m, seed=seed),
        numbers(count, m, d, seed=seed + 1),
        numbers(count, q, seed=seed + 2),
        numbers(count, q, d, seed=seed + 3),
        numbers(count, seed=seed + 4).abs() + 0.05,
    )


@cache
def conic_program(m: int, d: int, q: int) -> tuple[cp.Problem, cp.Variable, list[cp.Parameter]]:
    """The sub-problem written down for a general solver, its data to be filled in."""
    step, alpha = cp.Variable(d), cp.Variable()
    data = [cp.Parameter(m), cp.Parameter((m, d)), cp.Parameter(q), cp.Parameter((q, d))]
    reach = cp.Parameter(nonneg=True)
    fixed = cp.norm(data[2] + data[3] @ step)
    limits = [fixed + cp.abs(data[0] + data[1] @ step) <= alpha, cp.norm(step) <= reach]
    return cp.Problem(cp.Minimize(alpha), limits), step, [*data, reach]


def by_clarabel(case: Case, row: int) -> tuple[float, np.ndarray]:
    """Value and step of one sub-problem, solved in units of its scale and radius."""
    (m, d), q = case.slopes.shape[1:], case.residual.shape[1]
    program, step, parameters = conic_program(m, d, q)
    radius, scale = float(case.radius[row]), float(case.scale()[row])
    data = (case.gaps, radius * case.slopes, case.residual, radius * case.jacobian)
    for parameter, each in zip(parameters, data, strict=False):
        parameter.value = each[row].numpy() / scale
    parameters[-1].value = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where 1e-12 is out of its reach
        program.solve(solver=cp.CLARABEL, **TIGHT)
    return scale * float(program.value), radius * step.value


SHAPES = [(50, 1, 3, 2), (50, 3, 2, 1), (50, 5, 10, 3), (50, 12, 6, 8), (25, 30, 12, 14)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_common_step_is_as_good_as_that_of_clarabel(shape: tuple[int, int, int, int]) -> None:
    case = drawn(*shape)
    found = case.solve()
    best = torch.tensor([by_clarabel(case, row)[0] for row in range(shape[0])], dtype=torch.float64)
    torch.testing.assert_close(found.value / case.scale(), best / case.scale(), rtol=0, atol=1e-8)
    torch.testing.assert_close(found.value, case.value(found.step))
    assert (found.step.norm(dim=-1) <= case.radius).all()
    assert (found.gap >= 0).all()
    assert (found.gap < 1e-8 * case.scale()).all()


def test_an_unfinished_answer_says_how_far_it_may_be_from_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = drawn(20, 6, 5, 4)
    best = case.solve().value
    monkeypatch.setattr(_socp, "ROUNDS", 3)
    found = case.solve()
    assert (found.value - best > 1e-3).any()
    assert (found.value - found.gap <= best + 1e-9).all()
    assert (found.step.norm(dim=-1) <= case.radius).all()


@pytest.mark.parametrize("factor", [1e2, 1e5, 1e8])
def test_a_radius_beyond_the_minimiser_changes_nothing(factor: float) -> None:
    # The certificate then widens with the rounding of Delta ||g||; the value itself stays exact.
    case = replace(drawn(20, 12, 4, 8), radius=torch.full((20,), 2.0).double())
    near, far = case.solve(), replace(case, radius=factor * case.radius).solve()
    assert (near.step.norm(dim=-1) < 1.9).all()
    torch.testing.assert_close(far.value, near.value, rtol=0, atol=1e-9)


def dependent(case: Case) -> Case:
    return replace(case, slopes=case.slopes[:, :1] * case.gaps[..., None])


DEGENERATE: dict[str, Callable[[Case], Case]] = {
    "positive": lambda case: replace(case, gaps=case.gaps.abs()),
    "equal": lambda case: replace(case, gaps=torch.full_like(case.gaps, 0.3)),
    "dependent": dependent,
    "opposed": lambda case: replace(
        case, slopes=torch.cat([case.slopes[:, :2], -case.slopes[:, :2]], 1), gaps=case.gaps[:, :4]
    ),
    "twice": lambda case: replace(case, slopes=case.slopes[:, [0, 0, 1, 1, 2]]),
    "no slopes": lambda case: replace(case, slopes=torch.zeros_like(case.slopes)),
    "some slopes": lambda case: replace(case, slopes=case.slopes * (case.gaps > 0)[..., None]),
    "J = 0": lambda case: replace(case, jacobian=torch.zeros_like(case.jacobian)),
    "f = 0": lambda case: replace(case, residual=torch.zeros_like(case.residual)),
    "no f": lambda case: replace(
        case, residual=case.residual[:, :0], jacobian=case.jacobian[:, :0]
    ),
    "nothing moves": lambda case: replace(
        case, slopes=torch.zeros_like(case.slopes), jacobian=torch.zeros_like(case.jacobian)
    ),
    "tiny radius": lambda case: replace(case, radius=1e-7 * case.radius),
    "large radius": lambda case: replace(case, radius=1e3 * case.radius),
    "huge radius": lambda case: replace(case, radius=1e6 * case.radius),
    "small numbers": lambda case: Case(
        *(1e-9 * each for each in (case.gaps, case.slopes, case.residual, case.jacobian)),
        case.radius,
    ),
    "mixed": lambda case: replace(case, slopes=case.slopes * 10 ** (2 * case.gaps[..., None])),
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_sub_problems_are_solved_too(kind: str) -> None:
    case = DEGENERATE[kind](drawn(12, 5, 4, 3, seed=7))
    found = case.solve()
    for row in range(12):
        best, _ = by_clarabel(case, row)
        assert float(found.value[row]) == pytest.approx(best, abs=1e-6 * float(case.scale()[row]))
    torch.testing.assert_close(found.value, case.value(found.step))
    assert (found.step.norm(dim=-1) <= case.radius).all()
    assert (found.gap < 1e-6 * case.scale()).all()


def test_a_sub_problem_without_anything_to_lower_is_left_alone() -> None:
    case = drawn(3, 4, 5, 2)
    case = replace(case, gaps=0 * case.gaps, residual=0 * case.residual)
    found = case.solve()
    assert found.value.abs().max() < 1e-9
    assert found.step.abs().max() < 1e-6


def test_one_goal_alone_falls_by_its_slope_times_the_radius() -> None:
    # min |c + g'd| over ||d|| <= Delta is max(0, |c| - Delta ||g||).
    case = drawn(40, 1, 6, 0)
    best = (case.gaps.abs()[:, 0] - case.radius * case.slopes.norm(dim=-1)[:, 0]).clamp_min(0)
    assert 0 < (best == 0).sum() < 40
    torch.testing.assert_close(case.solve().value, best, rtol=0, atol=1e-9)


def test_goals_that_pull_apart_do_not_fall_at_all() -> None:
    # g_1 = -g_2 and equal gaps: whatever one wins, the other loses.
    slope = numbers(5, 1, 4)
    ones = torch.ones(5, 2).double()
    nothing = torch.zeros(5, 0).double(), torch.zeros(5, 0, 4).double()
    found = tr_moo(ones, torch.cat([slope, -slope], 1), *nothing, ones[:, 0])
    torch.testing.assert_close(found.value, ones[:, 0], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.weights, ones / 2, rtol=0, atol=1e-6)


def test_every_choice_of_weights_bounds_the_value_from_below() -> None:
    # w'(h - t) + u'f - Delta ||J'u + sum w g|| <= alpha for ||u|| <= 1, |w_1| + ... + |w_m| <= 1.
    case = drawn(20, 4, 5, 3)
    value = case.solve().value
    closest = torch.full_like(value, -torch.inf)
    for seed in range(300):
        u, w = numbers(20, 3, seed=seed), numbers(20, 4, seed=seed + 1000)
        u, w = u / u.norm(dim=-1, keepdim=True), w / w.abs().sum(-1, keepdim=True)
        pull = (case.jacobian * u[..., None]).sum(1) + (case.slopes * w[..., None]).sum(1)
        bound = (w * case.gaps).sum(-1) + (u * case.residual).sum(-1)
        bound = bound - case.radius * pull.norm(dim=-1)
        assert (bound <= value + 1e-12).all()
        closest = torch.maximum(closest, bound)
    assert (value - closest).min() < 0.2  # some of these bounds are worth something


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 9),
    d=st.integers(1, 9),
    q=st.integers(0, 9),
    powers=st.tuples(*[st.integers(-4, 4)] * 5),
)
def test_any_sub_problem_is_solved(
    seed: int, m: int, d: int, q: int, powers: tuple[int, int, int, int, int]
) -> None:
    base = drawn(3, m, d, q, seed=seed)
    parts = (base.gaps, base.slopes, base.residual, base.jacobian, base.radius)
    case = Case(*(each * 10.0**power for each, power in zip(parts, powers, strict=True)))
    found = case.solve()
    assert ((found.value - case.value(found.step)).abs() <= 1e-9 * case.scale()).all()
    assert (found.step.norm(dim=-1) <= case.radius).all()
    assert (found.value <= case.value(torch.zeros_like(found.step)) + 1e-8 * case.scale()).all()
    rounding = case.radius * (
        case.jacobian.flatten(1).norm(dim=-1) + case.slopes.norm(dim=-1).amax(-1)
    )
    assert (found.gap <= 1e-8 * case.scale() + 1e-10 * rounding).all()
    assert (found.weights >= 0).all()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(3).double())


def test_goals_that_are_not_active_do_not_count() -> None:
    case = drawn(8, 5, 4, 3)
    active = torch.tensor([True, False, True, False, False]).expand(8, 5)
    parts = (case.gaps, case.slopes, case.residual, case.jacobian, case.radius)
    some = tr_moo(*parts, active)
    few = tr_moo(case.gaps[:, [0, 2]], case.slopes[:, [0, 2]], *parts[2:])
    torch.testing.assert_close(some.value, few.value, rtol=0, atol=1e-8)
    assert (some.weights[:, [1, 3, 4]] == 0).all()
    assert (case.solve().value - some.value > 1e-3).any()


def test_float32_problems_are_solved_as_well_as_they_are_given() -> None:
    case = drawn(30, 6, 5, 4)
    narrow = Case(*(each.float() for each in vars(case).values()))
    found = narrow.solve()
    assert found.step.dtype == found.value.dtype == found.weights.dtype == torch.float32
    torch.testing.assert_close(found.value.double(), case.solve().value, rtol=0, atol=1e-5)


def test_a_sub_problem_is_solved_alone_as_in_company() -> None:
    case = drawn(20, 7, 5, 6)
    together = case.solve()
    for row in (0, 7, 19):
        alone = Case(*(each[row : row + 1] for each in vars(case).values())).solve()
        torch.testing.assert_close(alone.step[0], together.step[row], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("m", "d"), [(1, 3), (2, 5), (3, 2), (5, 20), (12, 4)])
def test_the_shortest_blend_is_that_of_clarabel(m: int, d: int) -> None:
    gradients = numbers(12, m, d) + numbers(12, 1, d, seed=1)
    gradients[0, 0] = 0
    gradients[1, -1] = gradients[1, 0]
    gradients[2] *= 10.0 ** torch.arange(m)[:, None]
    weights = min_norm_weights(gradients)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(12).double())
    blend = (weights[..., None] * gradients).sum(1).norm(dim=-1)
    largest = gradients.norm(dim=-1).amax(-1)
    for row in range(12):
        w = cp.Variable(m, nonneg=True)
        goal = cp.norm(gradients[row].numpy().T @ w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            best = cp.Problem(cp.Minimize(goal), [cp.sum(w) == 1]).solve(
                solver=cp.CLARABEL, **TIGHT
            )
        assert float(blend[row]) == pytest.approx(best, abs=1e-7 * float(largest[row]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), m=st.integers(2, 8), d=st.integers(1, 8), twice=st.booleans())
def test_no_gradient_is_shorter_along_the_shortest_blend(
    seed: int, m: int, d: int, twice: bool
) -> None:
    # v = sum w g is the point of the hull nearest to zero iff g_l'v >= v'v for all l.
    gradients = numbers(3, m, d, seed=seed)
    if twice:
        gradients = torch.cat([gradients, gradients[:, :1]], 1)
    blend = (min_norm_weights(gradients)[..., None] * gradients).sum(1)
    along = (gradients * blend[:, None]).sum(-1).amin(-1)
    assert (along >= blend.square().sum(-1) - 1e-6).all()


def test_weights_keep_their_dtype_and_underflow_nowhere() -> None:
    gradients = numbers(4, 3, 5)
    torch.testing.assert_close(
        min_norm_weights(1e-180 * gradients), min_norm_weights(gradients), rtol=0, atol=1e-9
    )
    assert min_norm_weights(gradients.float()).dtype == torch.float32
    assert min_norm_weights(torch.zeros(2, 3, 5)).isfinite().all()
    assert min_norm_weights(gradients[:0]).shape == (0, 3)
    assert "m >= 1 goals" in refusal(lambda: min_norm_weights(gradients[0]))


# --- merits to first order -----------------------------------------------------------------------


def merits(count: int, m: int, d: int, classes: int = 2, seed: int = 0) -> Linearised:
    """Merits somewhere on the way, as the attack meets them: all of them eps."""
    eps = 0.2
    away = 0.3 * numbers(count, d, seed=seed) / d**0.5
    fixed = 0.02 * numbers(count, classes, seed=seed + 1)
    length = torch.cat([fixed, eps * away], -1).norm(dim=-1)
    return Linearised(
        level=eps - length,
        slopes=0.5 * numbers(count, m, d, seed=seed + 2),
        fixed=fixed,
        drifts=0.1 * numbers(count, classes, d, seed=seed + 3),
        away=away,
        tolerance=eps,
    )


def test_chi_is_the_largest_fall_of_one_merit_within_radius_one() -> None:
    # Eq. 12, radius one as in Lemma A.5.
    linear, lengths = merits(4, 3, 5), []
    gentle = linear.slopes * torch.tensor([1.0, 0.25, 0.2, 0.15]).double()[:, None, None]
    linear = replace(linear, slopes=gentle, drifts=0 * linear.drifts)
    chi = linear.chi()
    for row in range(4):
        for goal in range(3):
            d = cp.Variable(5)
            f = cp.hstack(
                [
                    linear.fixed[row].numpy() + linear.drifts[row].numpy() @ d,
                    linear.tolerance * (linear.away[row].numpy() + d),
                ]
            )
            slope = linear.slopes[row, goal].numpy()
            merit = cp.norm(f) + cp.abs(float(linear.level[row]) + slope @ d)
            least = cp.Problem(cp.Minimize(merit), [cp.norm(d) <= 1]).solve(solver=cp.CLARABEL)
            assert float(chi[row, goal]) == pytest.approx(linear.tolerance - least, abs=1e-7)
            lengths.append(np.linalg.norm(d.value))
    assert max(lengths) > 0.6  # so that a smaller radius would show
    assert (chi <= linear.tolerance).all()  # why "chi >= eps" cannot be the loop's condition
    wanted = torch.arange(3) == 1
    only = linear.chi(wanted.expand(4, 3))
    torch.testing.assert_close(only[:, 1], chi[:, 1])
    assert only[:, [0, 2]].isinf().all()


@pytest.mark.parametrize("reach", [0.01, 0.3, 1.0, 4.0])
def test_one_objective_falls_as_far_as_lemma_a5_says(reach: float) -> None:
    linear = merits(50, 1, 6)
    step = linear.descent(torch.full((50,), reach, dtype=torch.float64)).step
    fall = linear.promised(step)
    assert (fall >= min(reach, 1) * linear.chi() - 1e-8).all()


def test_lemma_a5_fails_for_two_objectives() -> None:
    # Each falls alone, none with the other: the lemma would have both fall by Delta chi.
    slope = torch.tensor([[[0.5, 0.0], [-0.5, 0.0]]]).double()
    linear = replace(merits(1, 2, 2), slopes=slope)
    linear = replace(
        linear,
        fixed=0 * linear.fixed,
        away=0 * linear.away,
        level=torch.full_like(linear.level, 0.2),
    )
    assert (linear.chi() > 0.05).all()
    step = linear.descent(torch.ones(1).double()).step
    assert linear.promised(step).amin() < 1e-8


def test_many_inputs_are_reduced_to_the_space_of_all_gradients() -> None:
    linear = merits(6, 4, 40, classes=3)
    reach = torch.linspace(0.1, 2, 6).double()
    found = linear.descent(reach)
    whole = tr_moo(
        linear.level[:, None].expand(6, 4),
        linear.slopes,
        torch.cat([linear.fixed, 0.2 * linear.away], -1),
        torch.cat([linear.drifts, 0.2 * torch.eye(40).double().expand(6, 40, 40)], 1),
        reach,
    )
    torch.testing.assert_close(found.value, whole.value, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.step, whole.step, rtol=0, atol=1e-5)
    torch.testing.assert_close(linear.promised(found.step).amin(-1), 0.2 - found.value)


@pytest.mark.parametrize("pairs", [1, 5, 12, 100])
def test_the_thinnest_pairs_are_those_of_the_smallest_gaps(pairs: int) -> None:
    saliency, k = numbers(6, 9).abs(), 3
    features, above, below = thinnest_pairs(saliency, k, pairs)
    for row in range(6):
        ranked = saliency[row].argsort(descending=True).tolist()
        every = sorted(
            float(saliency[row, i] - saliency[row, j]) for i in ranked[:k] for j in ranked[k:]
        )
        chosen = [
            float(saliency[row, features[row, a]] - saliency[row, features[row, b]])
            for a, b in zip(above[row], below[row], strict=True)
        ]
        assert chosen == pytest.approx(every[:pairs])


# --- the trust region ----------------------------------------------------------------------------


class Cubic(nn.Module):
    """Logits [0, sum_i a_i x_i^3 / 6 + b'x + c]: the slope of the second is a x^2 / 2 + b."""

    def __init__(self, d: int = 5, seed: int = 0, offset: float = 3.0) -> None:
        super().__init__()
        self.a = nn.Parameter(numbers(d, seed=seed))
        self.b = nn.Parameter(numbers(d, seed=seed + 1))
        self.c = nn.Parameter(torch.tensor(offset, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        score = (self.a * x**3).sum(-1) / 6 + x @ self.b + self.c
        return torch.stack([torch.zeros_like(score), score], dim=-1)


SMOOTH: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: tiny_mlp(activation=nn.Tanh, seed=3),
    "softplus": lambda: tiny_mlp(activation=nn.Softplus, seed=1),
    "quadratic": lambda: Quadratic(d=6),
    "cubic": lambda: Cubic(d=6),
}


def traced(model: nn.Module, x: Tensor, **settings: object) -> list[Iteration]:
    trace: list[Iteration] = []
    attacker("moo", k=2, watch=trace.append, **settings)(model, x, predicted(model, x))
    return trace


@cache
def smooth_case(name: str) -> tuple[nn.Module, Tensor, TrustRegion, list[Iteration]]:
    """A model, its examples and all iterations of the attack on them within radius 0.8."""
    model, x, region = SMOOTH[name](), numbers(8, 6), TrustRegion(tolerance=0.3)
    return model, x, region, traced(model, x, radius=0.8, budget=region, iterations=16)


@pytest.mark.parametrize("name", SMOOTH)
def test_the_invariants_of_lemma_a6_hold_at_every_iteration(name: str) -> None:
    # The targets are carried along as Algorithm 2 has it, both of its cases written out; f and
    # phi are computed anew from the model's probabilities.
    model, x, region, trace = smooth_case(name)
    before = model(x).softmax(-1).detach()
    targets: dict[int, Tensor] = {}
    cases, steps = set(), 0
    for now, later in zip(trace, [*trace[1:], None], strict=True):
        for place, row in enumerate(now.rows.tolist()):
            drift = (model(now.x[place]).softmax(-1) - before[row]).detach() / region.drift
            away = (now.x[place] - x[row]) / 0.8
            fixed = 0.3 * float(torch.cat([drift, away]).norm())
            if row not in targets:
                targets[row] = fixed + now.gaps[place] - 0.3
            t, active = targets[row], now.active[place]
            gaps = now.gaps[place]
            merit = fixed + (gaps - t).abs()
            assert (gaps - t > 0)[active].all()  # Eq. 34
            torch.testing.assert_close(merit, torch.full_like(merit, 0.3))  # Eq. 35
            assert ((gaps - t).abs() <= 0.3 + 1e-12).all()  # Eq. 36
            assert fixed <= 0.3 + 1e-12  # Eq. 37
            if not now.accepted[place] or later is None or row not in later.rows:
                continue
            steps += 1
            after = later.rows.tolist().index(row)
            new = later.gaps[after]
            ahead = merit - now.actual[place]
            cases |= set((new >= t)[active].tolist())
            targets[row] = torch.where(new >= t, t - merit + ahead, 2 * new - t - merit + ahead)
    assert steps > 4
    if name == "cubic":
        assert cases == {True, False}  # some step overshoots its target


@pytest.mark.parametrize("name", SMOOTH)
def test_every_iteration_keeps_the_rules_of_algorithm_2(name: str) -> None:
    model, x, region, trace = smooth_case(name)
    seen: dict[int, tuple[Tensor, float, Tensor]] = {}
    for now in trace:
        chi = now.linear.chi()
        for place, row in enumerate(now.rows.tolist()):
            active, delta = now.active[place], float(now.delta[place])
            promised, actual = now.promised[place][active], now.actual[place][active]
            if row in seen:
                assert torch.equal(now.x[place], seen[row][0])
                assert delta == pytest.approx(seen[row][1])
                assert (seen[row][2] | ~active).all()  # what is dropped stays so
            if active.any():
                assert (chi[place][active] >= region.least - 1e-9).all()
                assert (promised >= min(delta, 1) * region.least - 1e-9).all()
                length = (now.moved[place] - now.x[place]).norm() / 0.8
                assert length <= delta + 1e-9
            good = bool(active.any()) and bool((actual > region.eta * promised).all())
            kept = predicted(model, now.moved[place : place + 1]) == predicted(
                model, x[row : row + 1]
            )
            assert bool(now.accepted[place]) == (good and bool(kept))
            after = now.moved[place] if now.accepted[place] else now.x[place]
            shrunk = delta if now.accepted[place] else region.gamma * delta
            seen[row] = after, shrunk, active


def test_steps_were_refused_and_objectives_dropped_on_the_way() -> None:
    # Without this the two tests above could hold for an attack that never comes to it.
    trace = [now for name in SMOOTH for now in smooth_case(name)[3]]
    assert any((~now.accepted & now.active.any(-1)).any() for now in trace)
    assert any(((now.active.sum(-1) > 0) & (now.active.sum(-1) < 8)).any() for now in trace)
    assert any((now.linear.chi() < now.linear.tolerance * 0.05).any() for now in trace)


def test_a_linear_model_is_given_up_at_once() -> None:
    # Its relative gaps are the same everywhere: chi = 0 for all of them, at the clean input.
    model, x = Linear(d=6), 0.3 * numbers(9, 6)
    found = attacker("moo", k=2)(model, x, predicted(model, x))
    assert (found.outcome == Outcome.EXHAUSTED).all()
    assert torch.equal(found.x, x)
    trace = traced(model, x)
    assert len(trace) == 1
    assert not trace[0].active.any()


def test_the_outcomes_are_told_apart() -> None:
    model, x = Cubic(d=6, offset=0.5), numbers(20, 6)
    y = predicted(model, x)
    attack = partial(partial(attacker, "moo"), k=2, radius=0.5, iterations=25)
    found = attack()(model, x, y)
    assert (found.flipped == (found.outcome == Outcome.FLIPPED)).all()
    for outcome in (Outcome.FLIPPED, Outcome.CONFLICTING):
        assert (found.outcome == outcome).any()
    assert (found.first_flip[found.flipped] <= 25).all()
    assert (found.first_flip[~found.flipped] == 26).all()
    short = attack(iterations=2)(model, x, y)
    assert (short.outcome == Outcome.UNFINISHED).any()
    assert torch.equal(short.flipped, found.first_flip <= 2)
    alone = attack(pairs=1)(model, x, y)
    assert (alone.outcome == Outcome.EXHAUSTED).any()
    assert not (alone.outcome == Outcome.CONFLICTING).any()


@pytest.mark.parametrize("build", [partial(attacker, "moo"), partial(attacker, "armijo")])
def test_the_nearest_pair_of_a_quadratic_is_flipped(build: Callable) -> None:
    # I = Ax + b, hence the pair (i, j) changes places h / ||A_i - A_j|| away, and none within the
    # least of these distances.
    model, x = Quadratic(d=5, b=8 * torch.ones(5).double()), 1 + 0.1 * numbers(2, 5)
    A, y = model.A.detach(), predicted(model, x)
    with torch.no_grad():
        saliency = signed_logit(model, x, y)
    ranked = saliency.argsort(-1, descending=True)
    for row in range(len(x)):
        nearest = min(
            float((saliency[row, i] - saliency[row, j]) / (A[i] - A[j]).norm())
            for i in ranked[row, :2]
            for j in ranked[row, 2:]
        )
        found = {
            share: build(
                k=2, explainer=signed_logit, scale="plain", radius=share * nearest, iterations=20
            )(model, x[row : row + 1], y[row : row + 1])
            for share in (1.15, 0.999)
        }
        assert found[1.15].outcome == Outcome.FLIPPED
        assert found[0.999].outcome != Outcome.FLIPPED
        assert not found[0.999].flipped


def test_objectives_that_pull_apart_are_set_aside_until_one_falls() -> None:
    model, x = Cubic(d=6), numbers(20, 6)
    trace = traced(model, x, radius=0.5, iterations=1)
    assert ((trace[0].active.sum(-1) > 0) & (trace[0].active.sum(-1) < 8)).any()
    distance = trace[0].gaps / trace[0].linear.slopes.norm(dim=-1)
    chi, seen = trace[0].linear.chi(), 0
    for place in range(len(trace[0].rows)):
        kept = trace[0].active[place]
        aside = ~kept & (chi[place] >= TrustRegion().least)
        if kept.any() and aside.any():
            seen += 1
            assert distance[place][kept].max() <= distance[place][aside].min()
    assert seen > 1


def in_loops(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    k: int,
    radius: float,
    region: TrustRegion,
    iterations: int,
) -> list[np.ndarray]:
    """The iterates of Algorithm 2 for one example, in loops and by a general solver."""
    eps, least = region.tolerance, region.criticality * region.tolerance

    def saliency(point: Tensor) -> Tensor:
        slope = torch.func.grad(lambda at: model(at).softmax(-1)[y])(point).abs()
        return slope / slope.mean()

    ranked = saliency(x).argsort(descending=True).tolist()
    pairs = [(i, j) for i in ranked[:k] for j in ranked[k:]]
    unit = 1.0

    def gaps(point: Tensor) -> Tensor:
        score = saliency(point)
        return torch.stack([score[i] - score[j] for i, j in pairs]) / unit

    def fixed(point: Tensor) -> Tensor:
        drift = (model(point).softmax(-1) - model(x).softmax(-1)) / region.drift
        return eps * torch.cat([drift, (point - x) / radius])

    def numpy_of(value: Tensor) -> np.ndarray:
        return value.detach().numpy()

    slopes = torch.func.jacrev(gaps)(x) * radius
    unit = float(slopes.detach().norm(dim=-1).max())
    here, reach, active = x, region.trust_radius, list(range(len(pairs)))
    t = numpy_of(gaps(x)) - eps + float(numpy_of(fixed(x).norm()))
    path = [numpy_of(here)]
    for _ in range(iterations):
        h, f = numpy_of(gaps(here)), numpy_of(fixed(here))
        g = numpy_of(torch.func.jacrev(gaps)(here)) * radius
        J = numpy_of(torch.func.jacrev(fixed)(here)) * radius

        def merit(
            d: np.ndarray, goal: int, h=h, f=f, g=g, J=J, t=t
        ) -> float:  # the linearised phi_l
            return float(np.linalg.norm(f + J @ d) + abs(h[goal] + g[goal] @ d - t[goal]))

        def least_worst(goals: list[int], reach: float, h=h, f=f, g=g, J=J, t=t) -> np.ndarray:
            case = Case(
                torch.tensor((h - t)[goals])[None],
                torch.tensor(g[goals])[None],
                torch.tensor(f)[None],
                torch.tensor(J)[None],
                torch.tensor([reach], dtype=torch.float64),
            )
            return by_clarabel(case, 0)[1]

        nought = np.zeros(len(x))
        while active:
            spent = [
                goal
                for goal in active
                if merit(nought, goal) - merit(least_worst([goal], 1.0), goal) < least
            ]
            if spent:
                active = [goal for goal in active if goal not in spent]
                continue
            d = least_worst(active, reach)
            falls = [merit(nought, goal) - merit(d, goal) for goal in active]
            if len(active) > 1 and min(falls) < min(reach, 1) * least:
                away = numpy_of(here - x) / radius
                far = {
                    goal: (h[goal] - g[goal] @ away) / np.linalg.norm(g[goal]) for goal in active
                }
                active = sorted(sorted(active, key=far.__getitem__)[: len(active) // 2])
                continue
            break
        if not active:
            break
        moved = here + radius * torch.tensor(d)
        new, fixed_new = numpy_of(gaps(moved)), float(numpy_of(fixed(moved).norm()))
        phi, ahead = np.linalg.norm(f) + np.abs(h - t), fixed_new + np.abs(new - t)
        ratios = [
            (phi[goal] - ahead[goal]) / (merit(nought, goal) - merit(d, goal)) for goal in active
        ]
        if min(ratios) > region.eta and int(model(moved).argmax()) == y:
            here = moved
            t = np.where(new >= t, t - phi + ahead, 2 * new - t - phi + ahead)
        else:
            reach = region.gamma * reach
        path.append(numpy_of(here))
        if (
            saliency(here).argsort(descending=True)[:k].sort().values
            != torch.tensor(sorted(ranked[:k]))
        ).any():
            break
    return path


@pytest.mark.parametrize("seed", range(3))
def test_the_batch_takes_the_steps_of_loops_transcribed_from_the_paper(seed: int) -> None:
    model, x, region = (
        tiny_mlp(d=5, seed=seed),
        numbers(3, 5, seed=seed),
        TrustRegion(criticality=0.1),
    )
    y, radius, iterations = predicted(model, x), 1.0, 5
    trace: list[Iteration] = []
    attacker("moo", k=2, radius=radius, budget=region, iterations=iterations, watch=trace.append)(
        model, x, y
    )
    for row in range(3):
        slow = in_loops(model, x[row], int(y[row]), 2, radius, region, iterations)
        fast = [x[row]]
        for now in trace:
            for place, number in enumerate(now.rows.tolist()):
                if number == row and now.active[place].any():
                    taken = bool(now.accepted[place])
                    fast.append(now.moved[place] if taken else now.x[place])
        assert len(slow) == len(fast)
        for one, other in zip(slow, fast, strict=True):
            np.testing.assert_allclose(one, other.numpy(), atol=2e-5)
        assert len(fast) > 1


# --- the bound of Theorem 5.1 --------------------------------------------------------------------


def constants_of(model: Cubic, x: Tensor, k: int, radius: float, region: TrustRegion) -> Constants:
    """The constants of a cubic model, by hand, for the gaps of its logit's slope.

    I_i = a_i x_i^2 / 2 + b_i: a gap's gradient is (a_i x_i, -a_j x_j) and changes by max |a| per
    length, I_i itself by |a_i| (|x_i| r + r^2 / 2) over a radius r. With s the probability and z
    the logit, the Hessian of s is s'' dz dz' + s' ddz, |s''| <= 1 / (6 sqrt 3), s' <= 1/4; the two
    probabilities change together, hence the root of two.
    """
    a, b, far = model.a.detach(), model.b.detach(), x.abs() + radius
    score = a * x.square() / 2 + b
    ranked = score.argsort(-1, descending=True)
    tilt = (a * x).gather(-1, ranked)
    unit = torch.hypot(tilt[:, :k, None], tilt[:, None, k:]).flatten(1).amax(-1) * radius
    change = (a.abs() * (x.abs() * radius + radius**2 / 2)).topk(2, dim=-1).values.sum(-1)
    steep = (a.abs() * far.square() / 2 + b.abs()).norm(dim=-1)
    curved = steep.square() / (6 * math.sqrt(3)) + (a.abs() * far).amax(-1) / 4
    return Constants(
        fall=change / unit,
        slope_change=radius**2 * a.abs().max() / unit,
        residual_change=radius**2 * region.tolerance / region.drift * math.sqrt(2) * curved,
    )


@pytest.mark.parametrize(("seed", "radius"), [(0, 0.8), (1, 0.3), (2, 0.8)])
def test_the_attack_ends_within_the_bound_of_theorem_5_1(seed: int, radius: float) -> None:
    model, x = Cubic(d=6, seed=seed, offset=9.0), numbers(10, 6, seed=seed)
    x = x[(model(x)[:, 1] > 6)]
    y, region = predicted(model, x), TrustRegion(criticality=0.3, eta=0.3, drift=0.5, scale="plain")
    settings = {"k": 2, "explainer": signed_logit, "radius": radius}
    trace: list[Iteration] = []
    attack = attacker("moo", budget=region, iterations=400, watch=trace.append, **settings)
    found = attack(model, x, y)
    constants = constants_of(model, x, 2, radius, region)
    bound = iteration_bound(constants, region)
    assert (found.outcome != Outcome.UNFINISHED).all()
    last = torch.zeros(len(x))
    for now in trace:
        last[now.rows] = float(now.number)
        least = region.eta * now.delta.clamp(max=1)[:, None] * region.least
        fallen = now.accepted[:, None] & now.active
        assert (now.actual >= least - 1e-9)[fallen].all()  # Lemma A.9
    assert (last <= bound).all()
    assert bound.min() < 10_000
    assert last.max() > 3
    guessed = estimated_constants(model, x, y, region=region, **settings)
    for name, value in vars(constants).items():
        assert (getattr(guessed, name) <= value + 1e-9).all(), name
        assert (getattr(guessed, name) > 0).all(), name
    assert (iteration_bound(guessed, region) <= bound).all()


def test_the_bound_counts_steps_taken_and_refused() -> None:
    # e = 0.1, L_g + L_J / 2 = 1: steps of 0.045 and less are never refused, none is shorter than
    # half of that or lowers a gap by less than 0.5 * 0.0225 * 0.1; from 0.5 four halvings lead to
    # 0.03125 < 0.045.
    region = TrustRegion(tolerance=0.2, criticality=0.5, eta=0.55, gamma=0.5, trust_radius=0.5)
    one = torch.ones(1).double()
    bent = Constants(fall=one, slope_change=0.5 * one, residual_change=one)
    assert iteration_bound(bent, region).item() == 1 // (0.55 * 0.0225 * 0.1) + 4 + 1
    # Where nothing bends, no step is refused and none shortened.
    straight = Constants(fall=one, slope_change=0 * one, residual_change=0 * one)
    assert iteration_bound(straight, region).item() == 1 // (0.55 * 0.5 * 0.1) + 1


# --- bounds, smooth copies, line search ----------------------------------------------------------


def test_a_step_is_sought_again_without_the_inputs_that_bounds_hold_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # I = (2 + x_4 + 3 x_5, 1.7, ...), the others far below. The only gap falls with x_4, and three
    # times as fast with x_5, which already stands at its lower bound.
    A = torch.zeros(5, 5).double()
    A[0, 3] = A[3, 0] = 1.0
    A[0, 4] = A[4, 0] = 3.0
    b = torch.tensor([2.0, 1.7, -9.0, -9.0, -9.0]).double()
    model, x = Quadratic(d=5, A=A, b=b), torch.tensor([[2.0, 1.0, 0.0, 0.0, 0.0]]).double()
    low = torch.tensor([-9.0, -9.0, -9.0, -9.0, 0.0]).double()
    attack = attacker(
        "moo",
        k=1,
        explainer=signed_logit,
        scale="plain",
        pairs=1,
        budget=TrustRegion(tolerance=0.05),
        perturbation=L2Ball(bounds=(low, -low + 9)),
    )
    assert attack(model, x, predicted(model, x)).flipped
    monkeypatch.setattr(moo, "DETOURS", 0)
    assert not attack(model, x, predicted(model, x)).flipped


def test_a_smooth_copy_guides_the_attack_on_kinked_networks() -> None:
    # Between its kinks the relative explanation of such a network is constant.
    model, x = tiny_mlp(activation=nn.ReLU, seed=2), numbers(24, 6)
    y = predicted(model, x)
    blind, guided = (
        attacker("moo", k=2, radius=1.5, iterations=6, guide=guide)(model, x, y)
        for guide in (None, 8.0)
    )
    assert (blind.outcome == Outcome.EXHAUSTED).all()
    assert guided.flipped.sum() > 5


def test_the_first_step_of_the_line_search_goes_against_the_only_gap() -> None:
    model, x = Quadratic(d=4, b=9 * torch.ones(4).double()), 1 + 0.1 * numbers(6, 4)
    y = predicted(model, x)
    settings = {"k": 1, "explainer": signed_logit, "scale": "plain", "pairs": 1, "radius": 0.01}
    found = attacker("armijo", iterations=1, **settings)(model, x, y)
    ranked = found.before.argsort(-1, descending=True)
    slope = model.A[ranked[:, 0]] - model.A[ranked[:, 1]]
    torch.testing.assert_close(
        found.x, x - 0.5 * 0.01 * slope.detach() / slope.detach().norm(dim=-1, keepdim=True)
    )


def test_the_line_search_backs_off_until_all_gaps_fall() -> None:
    # I_1 - I_2 = 0.2 + (x_1 - 0.1)^2 falls along x_1 only for steps shorter than 0.2 from zero:
    # of 0.8, 0.4, 0.2, 0.1 the last.
    class Valley(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            score = x[:, 0] * 0 + ((x[:, 2] - 0.1) ** 2 + 1.2) * x[:, 0] + x[:, 1] + 9
            return torch.stack([torch.zeros_like(score), score], -1)

    x = torch.zeros(1, 3).double()
    found = attacker(
        "armijo", k=1, explainer=signed_logit, scale="plain", pairs=1, first_step=0.8, iterations=1
    )(Valley(), x, torch.ones(1, dtype=torch.long))
    torch.testing.assert_close(found.x[:, 2], torch.tensor([0.1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrustRegion(eta=1.0), "eta and gamma between 0 and 1"),
        (lambda: TrustRegion(tolerance=0.0), "tolerance, drift and trust_radius > 0"),
        (lambda: TrustRegion(criticality=0.0), "criticality"),
        (lambda: attacker("armijo", k=1, share=0.0), "share between 0 and 1"),
        (lambda: attacked(attacker("moo", k=1, pairs=0)), "pairs >= 1"),
        (lambda: attacked(attacker("moo", k=1, scale="own")), "a scale of"),
        (lambda: attacked(attacker("armijo", k=1, guide=-1.0)), "guide > 0"),
    ],
)
def test_meaningless_settings_are_refused(call: Callable[[], object], message: str) -> None:
    assert message in refusal(call)


def attacked(attack: Callable) -> object:
    model, x = tiny_mlp(), numbers(2, 6)
    return attack(model, x, predicted(model, x))
