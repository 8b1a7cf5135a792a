"""What the attacks find, on models whose answer is known and on a small trained network."""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacking import Attack, attacker
from closed_form import Linear, Quadratic, numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import flippable
from r2et.attacks.search import distance_goal, projected_descent, ranking_goal, relative
from r2et.core.geometry import unit
from r2et.core.ranking import precision_at_k
from r2et.evaluation.protocol import (
    Walk,
)
from r2et.explainers import Explainer, Gradient, gradient, predicted
from r2et.perturbations import L2Ball
from trained import adult_network

signed_logit = Gradient(of="logit", form="signed")


class Sure(Quadratic):
    """Logits [0, x'Ax/2 + b'x + 1e9]: class 1 wherever these tests go, the slope still Ax + b."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.tensor([0.0, 1e9])


def ones(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.long)


def walk(
    build: Callable[..., Attack],
    look: Explainer,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    **choices: Any,
) -> Tensor:
    """The inputs that an attack explained, one after another, without repetitions: (T, B, d)."""
    seen: list[Tensor] = []

    def explain(model: nn.Module, at: Tensor, y: Tensor) -> Tensor:
        if not seen or not torch.equal(seen[-1], at):
            seen.append(at.detach().clone())
        return look(model, at, y)

    build(explainer=explain, **choices)(model, x, y)
    return torch.stack(seen)


def slow_gap(before: Tensor, after: Tensor, k: int) -> float:
    """Mean of h(x', i, j) = I_i(x') - I_j(x') over the clean top-k features i and all others j."""
    ranked = sorted(range(len(before)), key=lambda i: -float(before[i]))
    gaps = [float(after[i] - after[j]) for i in ranked[:k] for j in ranked[k:]]
    return sum(gaps) / len(gaps)


# --- ERAttack and the MSE attack --------------------------------------------------------------


def test_the_first_step_goes_against_the_slope_of_the_mean_gap() -> None:
    # The slope by central differences of the gap as it is defined, example by example.
    model, x, k, length = tiny_mlp(), numbers(3, 6), 2, 0.02
    y = predicted(model, x)
    before = gradient(model, x, y).detach()
    budget = {"radius": 1.0, "step": length, "steps": 1}
    start, end = walk(partial(attacker, "er"), gradient, model, x, y, k=k, budget=budget)
    assert torch.equal(start, x)
    for row in range(3):

        def gap(at: Tensor, row: int = row) -> float:
            after = gradient(model, at[None], y[row : row + 1]).detach()[0]
            return slow_gap(before[row], after, k)

        slope = torch.zeros(6, dtype=torch.float64)
        for i in range(6):
            small = torch.zeros(6, dtype=torch.float64)
            small[i] = 1e-5
            slope[i] = (gap(x[row] + small) - gap(x[row] - small)) / 2e-5
        step = (end - start)[row]
        torch.testing.assert_close(step, -length * slope / slope.norm(), rtol=0, atol=1e-8)


def test_the_mean_gap_falls_at_every_step_on_a_smooth_network() -> None:
    model, x, k = tiny_mlp(), numbers(4, 6), 2
    y = predicted(model, x)
    budget = {"radius": 1.0, "step": 2e-3, "steps": 40}
    path = walk(partial(attacker, "er"), gradient, model, x, y, k=k, budget=budget)
    assert len(path) == 41
    before = gradient(model, x, y).detach()
    for row in range(4):
        goal = [slow_gap(before[row], gradient(model, at, y).detach()[row], k) for at in path]
        assert all(later < earlier for earlier, later in pairwise(goal))


def test_the_walk_on_a_quadratic_is_a_straight_line() -> None:
    # I(x) = Ax + b, so the mean gap is w'(Ax + b), w = 1/k on the clean top k and -1/(n - k)
    # elsewhere. Its slope A'w = Aw does not depend on x: step t is at x - t s Aw / ||Aw||, and
    # beyond the radius the walk stays where it left the ball.
    model, x, k, length, radius = Sure(d=6), numbers(5, 6), 2, 0.1, 0.75
    budget = {"radius": radius, "step": length, "steps": 12}
    path = walk(partial(attacker, "er"), signed_logit, model, x, ones(x), k=k, budget=budget)
    A, b = model.A.detach(), model.b.detach()
    for row in range(5):
        ranked = (A @ x[row] + b).argsort(descending=True)
        w = torch.full((6,), -1 / 4, dtype=torch.float64)
        w[ranked[:k]] = 1 / 2
        direction = -A @ w / (A @ w).norm()
        for t, at in enumerate(path[:, row]):
            expected = x[row] + min(t * length, radius) * direction
            torch.testing.assert_close(at, expected, rtol=0, atol=1e-12)
        assert (path[-1, row] - x[row]).norm() == pytest.approx(radius, abs=1e-12)


@pytest.mark.parametrize("build", [partial(attacker, "er"), partial(attacker, "mse")])
def test_t_steps_reach_no_further_than_t_lengths(build: Callable[..., Attack]) -> None:
    model, x, length = tiny_mlp(), numbers(4, 6), 0.05
    y = predicted(model, x)
    budget = {"radius": 9.0, "step": length, "steps": 30}
    path = walk(build, gradient, model, x, y, k=2, budget=budget)
    steps = torch.arange(len(path))
    assert len(path) == 31
    distance = (path - x).norm(dim=-1)
    assert (distance <= steps[:, None] * length + 1e-12).all()
    moves = (path[1:] - path[:-1]).norm(dim=-1)
    torch.testing.assert_close(moves, torch.full_like(moves, length))


def test_the_mse_attack_needs_its_random_first_step() -> None:
    # ||I(x) - I(x')||^2 has its minimum, hence no slope, at x' = x.
    model, x = tiny_mlp(), numbers(4, 6)
    y = predicted(model, x)
    lower = distance_goal(gradient(model, x, y).detach())
    stuck = projected_descent(
        lambda at: lower(gradient(model, at, y)),
        x,
        start=x,
        perturbation=L2Ball(),
        lengths=[0.1] * 10,
    )
    assert torch.equal(stuck, x)
    budget = {"radius": 1.0, "step": 0.1, "steps": 10}
    path = walk(partial(attacker, "mse"), gradient, model, x, y, k=2, budget=budget)
    assert ((path[-1] - x).norm(dim=-1) > 0.5).all()
    far = [-lower(gradient(model, at, y)).detach() for at in path]
    assert (far[-1] > 2 * far[1]).all()


def test_the_mse_attack_finds_the_sharpest_direction_of_a_quadratic() -> None:
    # I(x + d) - I(x) = Ad is longest along the eigenvector of the largest |eigenvalue|.
    model, x, radius = Sure(d=6), numbers(3, 6), 0.5
    budget = {"radius": radius, "step": 0.1, "steps": 300}
    path = walk(partial(attacker, "mse"), signed_logit, model, x, ones(x), k=2, budget=budget)
    change = ((path[-1] - x) @ model.A.detach()).norm(dim=-1)
    largest = torch.linalg.eigvalsh(model.A.detach()).abs().max()
    torch.testing.assert_close(change, (radius * largest).expand(3), rtol=1e-3, atol=0)


def test_bounds_bend_the_walk() -> None:
    # On the straight line of a quadratic, a coordinate that reaches its bound stays there.
    model, x = Sure(d=6), numbers(1, 6)
    budget = {"radius": 5.0, "step": 0.1, "steps": 20}
    free = walk(partial(attacker, "er"), signed_logit, model, x, ones(x), k=2, budget=budget)[-1, 0]
    widest = int((free - x[0]).abs().argmax())
    low, high = torch.full((6,), -99.0).double(), torch.full((6,), 99.0).double()
    low[widest], high[widest] = x[0, widest] - 0.1, x[0, widest] + 0.1
    path = walk(
        partial(attacker, "er"),
        signed_logit,
        model,
        x,
        ones(x),
        k=2,
        budget=budget,
        perturbation=L2Ball(bounds=(low, high)),
    )
    end = path[-1, 0]
    assert float((end - x[0])[widest].abs()) == pytest.approx(0.1, abs=1e-12)
    others = [i for i in range(6) if i != widest]
    torch.testing.assert_close(end[others], free[others])


# --- the parts of an attack -------------------------------------------------------------------


def test_goals_match_their_definitions() -> None:
    before, after, k = numbers(3, 7).abs(), numbers(3, 7, seed=1).abs(), 3
    for row in range(3):
        one, other = before[row], after[row]
        far = -sum((float(a) - float(b)) ** 2 for a, b in zip(one, other, strict=True))
        assert float(ranking_goal(before, k)(after)[row]) == pytest.approx(slow_gap(one, other, k))
        assert float(distance_goal(before)(after)[row]) == pytest.approx(far)
        scaled = relative(ranking_goal(before, k))
        length = float(other.norm())
        assert float(scaled(after)[row]) == pytest.approx(slow_gap(one, other, k) / length)
    torch.testing.assert_close(scaled(1e-3 * after), scaled(after))
    assert torch.equal(scaled(0 * after), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_a_direction_keeps_its_length_of_one(size: float) -> None:
    # Squares of slopes of 1e-200, as a saturated model has them, are zero in float64.
    direction = numbers(4, 2, 3)
    direction[3] = 0.0
    found = unit(size * direction)
    plain = direction[:3] / direction[:3].flatten(1).norm(dim=-1)[:, None, None]
    torch.testing.assert_close(found[:3], plain)
    assert (found[3] == 0).all()


def test_a_point_inside_is_left_where_it_is() -> None:
    centre = numbers(5, 3)
    near = centre + 0.1 * unit(numbers(5, 3, seed=1))
    assert torch.equal(L2Ball(radius=0.2).project(near, centre), near)
    moved = L2Ball(radius=0.05).project(near, centre)
    torch.testing.assert_close(moved, (centre + near) / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"radius": -1.0},
        {"radius": float("inf")},
        {"radius": float("nan")},
        {"step": 0.0},
        {"steps": -1},
    ],
)
def test_a_budget_that_allows_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a budget needs"):
        Walk(**wrong)
    model, x = tiny_mlp(), numbers(3, 6)
    with pytest.raises(ValueError, match=r"the budget of a walk needs|the radius of an l2 ball"):
        attacker("er", k=2, **wrong)(model, x, predicted(model, x))


def test_without_steps_x_comes_back() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    for build in (partial(attacker, "er"), partial(attacker, "mse")):
        found = build(k=2, budget={"steps": 0})(model, x, predicted(model, x))
        assert torch.equal(found.x, x)
        assert found.steps.tolist() == [0]
        assert found.first_flip.tolist() == [1, 1, 1]


# --- whether a prediction can be flipped ------------------------------------------------------


@pytest.mark.parametrize("radius", [0.05, 0.3, 1.0])
def test_a_linear_answer_flips_within_its_distance_to_the_boundary(radius: float) -> None:
    # The nearest point of other class is |w'x + b| / ||w|| away.
    model, x = Linear(d=5, b=0.3), 0.5 * numbers(60, 5)
    distance = (x @ model.w + model.b).detach().abs() / model.w.detach().norm()
    found = flippable(model, x, predicted(model, x), radius=radius)
    assert found.dtype == torch.bool
    assert found.any()
    assert not found.all()
    assert (distance - radius).abs().min() > 1e-6
    assert torch.equal(found, distance < radius)


def test_a_flip_may_need_a_way_that_bounds_forbid() -> None:
    # Logits [0, x1 - 0.5]: only a larger x1 flips the answer.
    model = Linear(w=torch.tensor([1.0, 0.0]).double(), b=-0.5)
    x = torch.tensor([[0.3, 0.0]]).double()
    y = predicted(model, x)
    assert flippable(model, x, y, radius=0.25).tolist() == [True]
    assert flippable(model, x, y, radius=0.25, perturbation=L2Ball(bounds=(0.0, 0.4))).tolist() == [
        False
    ]
    assert flippable(model, x, y, radius=0.0).tolist() == [False]


# --- the strong attack ------------------------------------------------------------------------


def flip_distance(model: Quadratic, x: Tensor, k: int) -> Tensor:
    """Distance from x to the nearest input with another top k, of the signed slope Ax + b: (B,).

    The gap of features i and j is h = (A_i - A_j)'x + b_i - b_j, zero on a plane at distance
    h / ||A_i - A_j||. The top k changes on the nearest plane of a top-k feature i and another j.
    """
    A, b = model.A.detach(), model.b.detach()
    found = []
    for row in x:
        saliency = A @ row + b
        ranked = saliency.argsort(descending=True).tolist()
        planes = [
            float((saliency[i] - saliency[j]) / (A[i] - A[j]).norm())
            for i in ranked[:k]
            for j in ranked[k:]
        ]
        found.append(min(planes))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_smallest_breaking_radius_of_a_quadratic_is_found(seed: int) -> None:
    # With b = 0 distances grow with x, so that one radius fits all: x / distance(x) breaks at 1.
    model, k = Sure(d=8, seed=seed, b=torch.zeros(8).double()), 3
    x = numbers(40, 8, seed=seed + 10)
    x = x / flip_distance(model, x, k)[:, None]
    torch.testing.assert_close(flip_distance(model, x, k), torch.ones(40).double())
    inside, beyond = (
        attacker("strong", k=k, explainer=signed_logit, radius=radius)(model, x, ones(x))
        for radius in (0.99, 1.05)
    )
    assert not inside.flipped.any()
    assert beyond.flipped.double().mean() >= 0.9


def best_of_random_points(
    model: nn.Module, x: Tensor, y: Tensor, *, k: int, radius: float, points: int
) -> Tensor:
    """Lowest P@k over random points on the sphere that keep the prediction, plainly: (B,)."""
    direction = numbers(points, x.shape[1], seed=99)
    offsets = radius * direction / direction.norm(dim=-1, keepdim=True)
    found = []
    for row, label in zip(x, y, strict=True):
        there, labels = row + offsets, label.expand(points)
        with torch.no_grad():
            after = gradient(model, there, labels)
            before = gradient(model, row[None], label[None]).expand_as(after)
        kept = predicted(model, there) == label
        found.append(precision_at_k(before, after, k)[kept].min() if kept.any() else torch.ones(()))
    return torch.stack(found)


trained_network = partial(adult_network, rows=4000, epochs=15, least_auc=0.85, examples=60)


@cache
def strong_precision() -> Tensor:
    """P@8 of these examples under the strong attack as it comes, within 0.5."""
    return attacker("strong", k=8, radius=0.5)(*trained_network()).precision


def test_the_strong_attack_is_strong_where_the_papers_attack_is_not() -> None:
    model, x, y = trained_network()
    k, radius, strong = 8, 0.5, strong_precision()
    er = attacker("er", k=k, radius=radius, step=0.01, steps=60)(model, x, y).precision
    random = best_of_random_points(model, x, y, k=k, radius=radius, points=2000)
    assert random.mean() < er.mean()  # as is known of (Leaky)ReLU networks
    assert strong.mean() < random.mean()
    assert (strong <= random).double().mean() >= 0.9
    assert strong.mean() < er.mean() - 0.1


def test_more_effort_of_the_strong_attack_finds_more() -> None:
    model, x, y = trained_network()
    weak = attacker(
        "strong",
        k=8,
        radius=0.5,
        budget=EnsembleBudget(rounds=1, starts=2, steps=4, points=10, moves=4, pairs=0),
    )
    assert strong_precision().mean() < weak(model, x, y).precision.mean() - 0.05


def test_without_any_effort_the_strong_attack_finds_nothing() -> None:
    model, x, y = trained_network()
    nothing = EnsembleBudget(starts=0, points=0, moves=0, pairs=0)
    none = attacker("strong", k=8, budget=nothing)
    found = none(model, x[:5], y[:5])
    assert torch.equal(found.x, x[:5])
    assert (found.precision == 1).all()
