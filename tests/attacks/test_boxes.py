"""Cubes, balls of which only some numbers are free, and attacks within them."""

import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacking import Attack, attacker, little
from closed_form import Linear, numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import flippable
from r2et.attacks.registry import ATTACKS
from r2et.attacks.search import AttackResult
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.ranking import margin_weights, precision_at_k
from r2et.core.rng import stream
from r2et.explainers import Activations, Gradient, gradient, predicted
from r2et.models import gcn, resnet18
from r2et.models.siamese import Siamese
from r2et.perturbations import Box, L2Ball
from refusals import refusal

THREATS: dict[str, Any] = {"ball": L2Ball, "cube": Box}
every_threat = pytest.mark.parametrize("kind", THREATS.values(), ids=THREATS)


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


# --- attacks within a cube ---


def small(name: str, radius: float, **choices: Any) -> Attack:
    """An attack of little effort; of these settings each takes those that it has."""
    budget = little(name, radius, parts=5)
    if isinstance(budget, EnsembleBudget):
        budget = replace(budget, starts=4, points=8, moves=4, even=2)
    return attacker(name, radius=radius, budget=budget, **choices)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("free", [None, torch.arange(6) != 2], ids=["all", "some"])
def test_an_attack_stays_in_its_cube(name: str, free: Tensor | None) -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(8, 6)
    x[3, 1] = 2.5  # beyond the bounds
    y = predicted(model, x)
    cube = Box(bounds=(-2.0, 2.0), free=free)
    found = small(name, 0.5, k=2, perturbation=cube)(model, x, y)
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
    budget = {"radius": 0.4, "step": 0.07, "steps": 8}
    found = attacker("er", k=2, **budget, perturbation=kind(bounds=(-1.5, 1.5)))(model, x, y)
    assert found.last is not None
    weights = margin_weights(gradient(model, x, y).detach(), 2)
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
    budget = {"radius": 0.4, "step": 0.1, "steps": 4}
    walked = attacker("mse", k=2, **budget, perturbation=Box(), rows_at_once=2)(model, x, y)
    whole = attacker("mse", k=2, **budget, perturbation=Box())(model, x, y)
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
    found = attacker("er", k=2, radius=1.0, step=0.2, steps=10, perturbation=Box())(model, x, y)
    assert found.last is not None
    assert (predicted(model, found.last) != y).any()
    assert torch.equal(predicted(model, found.x), y)


def test_flips_are_looked_for_in_a_cube() -> None:
    # Of a linear score the corner against its weights is the lowest: it falls by radius * |w|_1.
    model, x = Linear(6), numbers(1, 6, seed=1)
    w, y = model.w.detach(), predicted(model, x)
    score = float(x @ w)
    needed = abs(score) / float(w.abs().sum())
    assert flippable(model, x, y, radius=needed * 1.01, perturbation=Box()).all()
    assert not flippable(model, x, y, radius=needed * 0.99, perturbation=Box()).any()
    assert not flippable(model, x, y, radius=needed * 1.01, perturbation=L2Ball()).any()


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
        for weight in model.single.parameters():  # else whatever stood there, be it no number
            nn.init.normal_(weight)
    piece = Piece(shape=(1, 6, 6))
    return Joined(model.double(), Inputs(pieces=(piece, piece)))


def residual() -> nn.Module:
    model = resnet18(1, 3, width=3, blocks=(1, 1), generator=stream(0, "test"))
    model(torch.rand(16, 1, 6, 6, generator=stream(1, "test")))  # statistics that are not 0 and 1
    return model.double()


def graphs() -> nn.Module:
    return gcn(6, 2, hidden=8, embedding=4, generator=stream(2, "test")).double()


NETWORKS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "siamese": (siamese, (72,), Gradient(groups=(*range(36), *(-1,) * 36))),
    "resnet": (residual, (1, 6, 6), gradient),
    "resnet, neurons": (residual, (1, 6, 6), Activations(layer="penultimate")),
    "gcn": (graphs, (15,), gradient),
}
EVEN = EnsembleBudget(
    rounds=2, starts=3, steps=4, points=4, moves=3, pairs=0, sharpness=(4.0,), even=2, itself=True
)


def attack_of(name: str, explain: Any, rounds: int = 2) -> Attack:
    if name == "strong":
        effort = EnsembleBudget(**{**vars(EVEN), "rounds": rounds})
        return attacker(
            "strong", k=4, explainer=explain, radius=0.3, perturbation=Box(), budget=effort
        )
    budget = {"radius": 0.3, "step": 0.05, "steps": 6}
    return attacker(name, k=4, explainer=explain, budget=budget, perturbation=Box())


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
    attacker("strong", k=2, explainer=watched, radius=0.02, perturbation=kind(), budget=effort)(
        model, x, y
    )
    begun, moved = (points.view(3, 4, 6) for points in visited[:2])
    assert torch.equal(begun[0], x)  # the first of them from the clean input, others at random
    assert (threat.cost(begun[1], x) > 0.01).all()
    weights = margin_weights(gradient(model, x, y).detach(), 2)
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
    budget = {"radius": radius, "step": radius / 10, "steps": 20}
    papers = attacker("er", k=20, **budget, perturbation=kind())(model, x, y)
    effort = EnsembleBudget(
        rounds=1, starts=2, steps=20, points=0, moves=0, pairs=0, even=2, itself=True
    )
    strong = attacker("strong", k=20, radius=radius, perturbation=kind(), budget=effort)(
        model, x, y
    )
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
        attacker("strong", k=2, explainer=watched, budget=effort)(model, x, y)
        turns[itself] = list(dict.fromkeys(seen))
    assert turns == {False: [False], True: [True, False]}


def test_neurons_are_attacked_in_every_round() -> None:
    model, x = tiny_mlp(activation=nn.ReLU), numbers(4, 6)
    y = predicted(model, x)
    effort = EnsembleBudget(**{**vars(EVEN), "rounds": 4})
    found = attacker("strong", k=2, explainer=Activations(layer="1"), budget=effort)(model, x, y)
    assert found.flipped.any()
