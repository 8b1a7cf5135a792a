"""Cubes, balls of which only some numbers are free, and attacks within them."""

import copy
import inspect
import math
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from closed_form import Linear, numbers, tiny_mlp
from r2et.attacks import (
    ATTACKS,
    Attack,
    AttackResult,
    Box,
    Budget,
    EnsembleBudget,
    L2Ball,
    er_attack,
    flip_attack,
    mse_attack,
    strong_attack,
)
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.ranking import lead_weights, precision_at_k
from r2et.core.rng import stream
from r2et.explainers import activations, gradient, predicted
from r2et.models import gcn, resnet18
from r2et.models.siamese import Siamese
from refusals import refusal

THREATS: dict[str, Any] = {"ball": L2Ball, "cube": Box}
every_threat = pytest.mark.parametrize("kind", THREATS.values(), ids=THREATS)
FREE = torch.tensor([True, False, True, True, False])
masks = pytest.mark.parametrize("free", [None, FREE], ids=["all", "some"])


def moves_of(points: Tensor, centre: Tensor) -> list[list[Fraction]]:
    """How far each number moved, by fractions that round nothing."""
    rows = zip(points.flatten(1).tolist(), centre.flatten(1).tolist(), strict=True)
    return [[Fraction(a) - Fraction(b) for a, b in zip(*row, strict=True)] for row in rows]


def inside(kind: Any, points: Tensor, centre: Tensor, radius: float) -> bool:
    if kind is Box:
        return all(
            abs(move) <= Fraction(radius) for row in moves_of(points, centre) for move in row
        )
    return all(
        sum(move**2 for move in row) <= Fraction(radius) ** 2 for row in moves_of(points, centre)
    )


# --- the threats themselves ---


@every_threat
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_projected_is_admissible(kind: Any, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    # Steps of 1e-3: squares of the smallest numbers underflow, and with them a length.
    number = st.integers(-3000, 3000).map(lambda thousandths: thousandths / 1000)
    rows = st.lists(st.lists(number, min_size=5, max_size=5), min_size=1, max_size=3)
    centre = torch.tensor(data.draw(rows), dtype=dtype)
    points = centre + data.draw(st.sampled_from([1e-3, 1.0, 50.0])) * torch.tensor(
        data.draw(st.lists(st.lists(number, min_size=5, max_size=5), min_size=1, max_size=1))
    ).to(dtype)
    radius = data.draw(st.sampled_from([0.0, 1e-9, 5 / 255, 0.7, 4.0]))
    bounds = data.draw(st.sampled_from([None, (-0.6, 0.6), (torch.zeros(5), 2.0)]))
    free = data.draw(st.sampled_from([None, FREE]))
    threat = kind(radius=radius, bounds=bounds, free=free)
    found = threat.project(points, centre)
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert inside(kind, found, centre, radius)
    # Where the clean number lies outside its bounds, it goes no further.
    given = (-torch.inf, torch.inf) if bounds is None else bounds
    low, high = (torch.as_tensor(each, dtype=dtype) for each in given)
    assert (found >= torch.minimum(low, centre)).all()
    assert (found <= torch.maximum(high, centre)).all()
    if free is not None:
        assert torch.equal(found[:, ~free], centre[:, ~free])
    again = threat.project(found, centre)
    if kind is Box:
        assert torch.equal(again, found)
    else:
        torch.testing.assert_close(again, found)
    assert torch.equal(threat.relax(points, centre), found)
    # A point well inside is left where it is.
    near = centre + 0.3 * (found - centre)
    if bounds is None and radius >= 5 / 255:
        assert torch.equal(threat.project(near, centre), near)


def test_a_cube_is_reached_to_its_sides() -> None:
    centre = torch.tensor([[0.5, 0.95, -0.5, 2.0]], dtype=torch.float64)
    far = centre + torch.tensor([[9.0, 9.0, 0.05, -9.0]], dtype=torch.float64)
    found = Box(radius=0.1, bounds=(0.0, 1.0)).project(far, centre)
    # To its side, to a bound before that, free within a bound that was broken, back from another.
    expected = torch.tensor([[0.6, 1.0, -0.45, 1.9]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@every_threat
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bounds_are_met_in_the_format_of_the_input(kind: Any, dtype: torch.dtype) -> None:
    # Neither is a number of single precision; by way of it 0.6 would become more.
    centre = torch.zeros(1, 2, dtype=dtype)
    for bounds in ((-0.7, 0.6), tuple(torch.tensor([-0.7, 0.6], dtype=torch.float64))):
        far = torch.tensor([[-9.0, 9.0]], dtype=dtype)
        found = kind(radius=3.0, bounds=bounds).project(far, centre)
        assert found.tolist() == torch.tensor([[-0.7, 0.6]], dtype=dtype).tolist()


@every_threat
@masks
def test_the_steepest_move_is_the_best_of_cost_one(kind: Any, free: Tensor | None) -> None:
    threat = kind(radius=1.0, free=free)
    slope = numbers(6, 5)
    slope[1, 0], slope[2] = 0.0, 0.0
    move = threat.steepest(slope)
    counted = slope if free is None else slope * free
    reached = (move * slope).sum(-1)
    dual = counted.abs().sum(-1) if kind is Box else counted.norm(dim=-1)
    torch.testing.assert_close(reached, dual)
    cost = threat.cost(move, torch.zeros_like(move))
    torch.testing.assert_close(cost, (counted != 0).any(-1).double())
    others = threat.offsets(slope[0], 500, stream(0, "test"), surface=True)
    assert (others @ slope.T <= dual + 1e-12).all()
    if free is not None:
        assert not move[:, ~free].any()
    if kind is L2Ball:
        tiny = threat.steepest(slope * 1e-200)  # squares of such slopes underflow
        torch.testing.assert_close(tiny, move)


@every_threat
@masks
@pytest.mark.parametrize("reach", [1.0, 0.3])
def test_random_moves_cost_what_they_may(kind: Any, free: Tensor | None, reach: float) -> None:
    threat, like = kind(radius=0.5, free=free), torch.empty(5, dtype=torch.float64)
    on = threat.offsets(like, 400, stream(0, "test"), reach=reach, surface=True)
    within = threat.offsets(like, 400, stream(0, "test"), reach=reach)
    assert on.shape == within.shape == (400, 5)
    nothing = torch.zeros_like(on)
    torch.testing.assert_close(threat.cost(on, nothing), torch.full((400,), reach / 2).double())
    assert (threat.cost(within, nothing) <= reach / 2).all()
    counted = torch.ones(5, dtype=torch.bool) if free is None else free
    assert on[:, counted].all()
    assert not on[:, ~counted].any()
    assert not within[:, ~counted].any()
    if kind is Box:
        assert set(on[:, counted].abs().unique().tolist()) == {reach / 2}
        assert len(on.unique(dim=0)) == 2 ** int(counted.sum())  # every corner
        drawn = within[:, counted].flatten() / reach + 0.5
    else:
        # The length of a uniform point of a ball of m dimensions, to the power m, is uniform.
        drawn = (2 * within.norm(dim=-1) / reach).pow(int(counted.sum()))
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 0.01
    assert on.mean(0).abs().max() < 0.1 * reach
    # Projecting changes none of them: a random start is where it was drawn.
    centre = numbers(1, 5).expand(400, 5)
    torch.testing.assert_close(threat.project(centre + reach * on, centre), centre + reach * on)


def test_costs_and_lengths_by_hand() -> None:
    centre = torch.tensor([[0.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    points = torch.tensor([[3.0, -3.0], [2.0, 1.5]], dtype=torch.float64)
    assert Box().cost(points, centre).tolist() == [4.0, 0.5]
    assert L2Ball().cost(points, centre).tolist() == [5.0, 0.5]
    like = torch.empty(2, 3)
    assert Box(radius=0.5).length(like) == pytest.approx(0.5 * math.sqrt(6))
    some = Box(radius=0.5, free=torch.tensor([[True, False, True], [True, True, False]]))
    assert some.length(like) == 1.0
    assert L2Ball(radius=0.5, free=some.free).length(like) == 0.5
    smaller = some.at(0.25)
    assert (smaller.radius, smaller.free) == (0.25, some.free)
    bounded = Box(bounds=(0.0, 1.0)).at(2.0)
    assert (bounded.radius, bounded.bounds) == (2.0, (0.0, 1.0))


@pytest.mark.parametrize("radius", [-1.0, float("inf"), float("nan")])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    told = refusal(lambda: Box(radius=radius))
    assert told == f"the radius of a cube must be >= 0 and finite, got {radius}."
    assert "the radius of a ball must be" in refusal(lambda: L2Ball(radius=radius))


# --- attacks within a cube ---


def small(name: str, radius: float, **choices: Any) -> Attack:
    """An attack of little effort; of these settings each takes those that it has."""
    effort = {
        "budget": Budget(radius=radius, step=radius / 5, steps=9),
        "radius": radius,
        "iterations": 4,
        "pairs": 4,
        "effort": EnsembleBudget(rounds=2, starts=4, steps=4, points=8, moves=4, pairs=3, even=2),
    }
    build = ATTACKS[name].build
    taken = inspect.signature(build).parameters
    return build(**{key: each for key, each in effort.items() if key in taken}, **choices)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("free", [None, torch.arange(6) != 2], ids=["all", "some"])
def test_an_attack_stays_in_its_cube(name: str, free: Tensor | None) -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(8, 6)
    x[3, 1] = 2.5  # beyond the bounds
    y = predicted(model, x)
    cube = Box(bounds=(-2.0, 2.0), free=free)
    found = small(name, 0.5, k=2, threat=cube)(model, x, y)
    assert inside(Box, found.x, x, 0.5)
    assert (found.x <= torch.maximum(x, torch.tensor(2.0))).all()
    assert (found.x >= torch.minimum(x, torch.tensor(-2.0))).all()
    if free is not None:
        assert torch.equal(found.x[:, ~free], x[:, ~free])
    assert torch.equal(predicted(model, found.x), y)
    with torch.no_grad():
        after = gradient(model, found.x, y)
    torch.testing.assert_close(found.after, after)
    assert torch.equal(found.precision, precision_at_k(found.before, found.after, 2))
    assert found.flipped.any()
    assert not torch.equal(found.x, x)


@every_threat
def test_a_walk_ends_where_its_steps_lead(kind: Any) -> None:
    model, x = tiny_mlp(), 2 * numbers(5, 6)
    y = predicted(model, x)
    threat = kind(radius=0.4, bounds=(-1.5, 1.5))
    budget = Budget(radius=0.4, step=0.07, steps=8)
    found = er_attack(k=2, budget=budget, threat=kind(bounds=(-1.5, 1.5)))(model, x, y)
    assert found.last is not None
    weights = lead_weights(gradient(model, x, y).detach(), 2)
    for number in range(5):
        clean, label = x[number : number + 1], y[number : number + 1]
        point = clean
        for _ in range(8):
            at = point.detach().requires_grad_()
            lead = (gradient(model, at, label) * weights[number]).sum()
            (downhill,) = torch.autograd.grad(lead, at)
            step = downhill.sign() if kind is Box else downhill / downhill.norm()
            point = threat.project(point - 0.07 * step, clean)
        torch.testing.assert_close(found.last[number], point[0])
    # What is kept is the best on the way, not the end of it.
    assert not torch.equal(found.last, found.x)


def test_only_a_walk_has_an_end() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    y = predicted(model, x)
    budget = Budget(radius=0.4, step=0.1, steps=4)
    walked = mse_attack(k=2, budget=budget, threat=Box(), rows_at_once=2)(model, x, y)
    whole = mse_attack(k=2, budget=budget, threat=Box())(model, x, y)
    assert walked.last is not None
    assert whole.last is not None
    torch.testing.assert_close(walked.last, whole.last)
    assert inside(Box, walked.last, x, 0.4)
    assert small("strong", 0.4, k=2)(model, x, y).last is None


def test_an_end_may_have_lost_its_prediction() -> None:
    # Log-odds near zero: some walks of this length cross the border, what is kept does not.
    model, x = tiny_mlp(), numbers(40, 6)
    odds = model(x).detach()
    x = x[(odds[:, 1] - odds[:, 0]).abs().argsort()[:8]]
    y = predicted(model, x)
    found = er_attack(k=2, budget=Budget(radius=1.0, step=0.2, steps=10), threat=Box())(model, x, y)
    assert found.last is not None
    assert (predicted(model, found.last) != y).any()
    assert torch.equal(predicted(model, found.x), y)


def test_flips_are_looked_for_in_a_cube() -> None:
    # Of a linear score the corner against its weights is the lowest: it falls by radius * |w|_1.
    model, x = Linear(6), numbers(1, 6, seed=1)
    w, y = model.w.detach(), predicted(model, x)
    score = float(x @ w)
    needed = abs(score) / float(w.abs().sum())
    assert flip_attack(radius=needed * 1.01, threat=Box())(model, x, y).all()
    assert not flip_attack(radius=needed * 0.99, threat=Box())(model, x, y).any()
    assert not flip_attack(radius=needed * 1.01, threat=L2Ball())(model, x, y).any()


# --- networks of pairs, pictures and graphs ---


def siamese() -> Joined:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embed = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)
        )
        embed(2 * torch.randn(8, 1, 6, 6) + 1)
        model = Siamese(embed, 5, 2)
        nn.init.normal_(model.classifier.weight)
        nn.init.zeros_(model.classifier.bias)  # then half of all cosines are of each class
    piece = Piece(shape=(1, 6, 6))
    return Joined(model.double(), Inputs(pieces=(piece, piece)))


def residual() -> nn.Module:
    model = resnet18(1, 3, width=3, blocks=(1, 1), generator=stream(0, "test"))
    model(torch.rand(16, 1, 6, 6, generator=stream(1, "test")))  # statistics that are not 0 and 1
    return model.double()


def graphs() -> nn.Module:
    return gcn(6, 2, hidden=8, embedding=4, generator=stream(2, "test")).double()


NETWORKS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "siamese": (siamese, (72,), partial(gradient, groups=(*range(36), *(-1,) * 36))),
    "resnet": (residual, (1, 6, 6), gradient),
    "resnet, neurons": (residual, (1, 6, 6), partial(activations, layer="penultimate")),
    "gcn": (graphs, (15,), gradient),
}
EVEN = EnsembleBudget(
    rounds=2, starts=3, steps=4, points=4, moves=3, pairs=0, sharpness=(4.0,), even=2, itself=True
)


def attack_of(name: str, explain: Any, rounds: int = 2) -> Attack:
    if name == "strong":
        effort = EnsembleBudget(**{**vars(EVEN), "rounds": rounds})
        return strong_attack(k=4, explain=explain, radius=0.3, threat=Box(), effort=effort)
    budget = Budget(radius=0.3, step=0.05, steps=6)
    return {"er": er_attack, "mse": mse_attack}[name](
        k=4, explain=explain, budget=budget, threat=Box()
    )


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["er", "mse", "strong"])
def test_an_example_is_attacked_alone(network: str, name: str) -> None:
    build, shape, explain = NETWORKS[network]
    contrast = torch.tensor([0.5, 1.5, 0.5, 1.5]).double().view(-1, *(1,) * len(shape))
    model, x = build(), contrast * numbers(4, *shape, seed=3) + 0.5
    assert model.training
    y = predicted(model, x)
    assert len(y.unique()) > 1
    before = copy.deepcopy(model.state_dict())
    # The strong attack on neurons is another test's, below.
    attack = attack_of(name, explain, rounds=1 if "neurons" in network else 2)
    together = attack(model, x, y)
    for number in range(4):
        alone = attack(model, x[number : number + 1], y[number : number + 1])
        same(alone, together, number)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(part.training for part in model.modules())
    assert together.flipped.any()
    assert inside(Box, together.x, x, 0.3)
    assert torch.equal(predicted(model, together.x), y)


def same(alone: AttackResult, together: AttackResult, number: int) -> None:
    for one, whole in (
        (alone.x, together.x),
        (alone.after, together.after),
        (alone.history.T, together.history.T),
        (alone.last, together.last),
    ):
        if one is not None and whole is not None:
            torch.testing.assert_close(one[0], whole[number])


# --- a strong attack where features are many ---


@pytest.mark.parametrize("even", [-1, 5, 2.5])
def test_more_even_starts_than_starts_are_refused(even: Any) -> None:
    told = refusal(lambda: EnsembleBudget(starts=4, even=even))
    assert told == f"of 4 starts at most as many can be even, got {even}."


@every_threat
def test_even_starts_follow_the_goal_of_the_papers_attack(kind: Any) -> None:
    model, x = tiny_mlp(), numbers(20, 6)
    x = x[model(x).diff().abs().squeeze(1).argsort()[-4:]]  # sure enough to stay so on the way
    y = predicted(model, x)
    visited = list[Tensor]()

    def watched(network: nn.Module, at: Tensor, labels: Tensor) -> Tensor:
        if at.requires_grad:
            visited.append(at.detach())
        return gradient(network, at, labels)

    effort = EnsembleBudget(rounds=1, starts=3, steps=2, points=0, moves=0, pairs=0, even=2)
    threat = kind(radius=0.02)
    strong_attack(k=2, explain=watched, radius=0.02, threat=kind(), effort=effort)(model, x, y)
    begun, moved = (points.view(3, 4, 6) for points in visited[:2])
    assert torch.equal(begun[0], x)  # the first of them from the clean input, others at random
    assert (threat.cost(begun[1], x) > 0.01).all()
    weights = lead_weights(gradient(model, x, y).detach(), 2)
    for start in range(3):
        at = begun[start].clone().requires_grad_()
        saliency = gradient(model, at, y)
        lead = (saliency / saliency.norm(dim=1, keepdim=True) * weights).sum()
        (slope,) = torch.autograd.grad(lead, at)
        led = threat.project(begun[start] - 0.02 * threat.steepest(slope), x)
        assert torch.allclose(led, moved[start]) == (start < 2)


@every_threat
def test_a_strong_attack_of_many_features_is_no_weaker_than_the_papers(kind: Any) -> None:
    model, x = tiny_mlp(200, 24, seed=0), numbers(12, 200, seed=1)
    y = predicted(model, x)
    radius = 0.1 if kind is Box else 1.0
    budget = Budget(radius=radius, step=radius / 10, steps=20)
    papers = er_attack(k=20, budget=budget, threat=kind())(model, x, y)
    effort = EnsembleBudget(
        rounds=1, starts=2, steps=20, points=0, moves=0, pairs=0, even=2, itself=True
    )
    strong = strong_attack(k=20, radius=radius, threat=kind(), effort=effort)(model, x, y)
    assert strong.precision.mean() <= papers.precision.mean() < 0.95


def test_a_network_takes_its_turn_as_its_own_guide() -> None:
    # In the first round the network itself is followed, not its smooth copy, and both later.
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6)
    y = predicted(model, x)
    seen = list[int]()

    def watched(network: nn.Module, at: Tensor, labels: Tensor) -> Tensor:
        if at.requires_grad:
            seen.append(any(isinstance(part, nn.LeakyReLU) for part in network.modules()))
        return gradient(network, at, labels)

    turns = {}
    for itself in (False, True):
        seen.clear()
        effort = EnsembleBudget(**{**vars(EVEN), "itself": itself})
        strong_attack(k=2, explain=watched, effort=effort)(model, x, y)
        turns[itself] = list(dict.fromkeys(seen))
    assert turns == {False: [False], True: [True, False]}


def test_neurons_are_attacked_in_every_round() -> None:
    model, x = tiny_mlp(activation=nn.ReLU), numbers(4, 6)
    y = predicted(model, x)
    effort = EnsembleBudget(**{**vars(EVEN), "rounds": 4})
    found = strong_attack(k=2, explain=partial(activations, layer="1"), effort=effort)(model, x, y)
    assert found.flipped.any()
