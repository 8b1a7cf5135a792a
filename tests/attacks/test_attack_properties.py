"""No attack ever returns what its threat does not admit: random models, budgets and threats."""

import math
import random

import pytest
import torch
from test_attack_contracts import exactly_within
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import ATTACKS, attack
from r2et.core.ranking import precision_at_k
from r2et.explainers import gradient, predicted
from r2et.perturbations import L2Ball, PerturbationSet
from test_actionable import world_of

CASES = {"er": 3000, "mse": 3000, "strong": 3000}  # the others take longer for one
FEW = 500
EFFORT = EnsembleBudget(rounds=2, starts=2, steps=3, points=6, moves=4, pairs=2, sharpness=(4.0,))


def attacked_case(name: str, seed: int) -> None:
    """One random model, threat and budget: everything that comes back is admissible and true."""
    draw = random.Random(seed)
    dtype = draw.choice([torch.float32, torch.float64])
    world = world_of(seed, dtype) if seed % 2 else None
    if world is not None and world.dataset.n >= 2:
        threat: PerturbationSet = world.threat
        x = world.centre
    else:
        world, x = None, (draw.choice([0.01, 1.0, 30.0]) * numbers(3, 5, seed=seed)).to(dtype)
        threat = drawn_ball(draw, x)
    d, classes = x.shape[1], draw.choice([2, 2, 3])
    activation = draw.choice([nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Softplus])
    model = tiny_mlp(d=d, classes=classes, activation=activation, seed=seed).to(dtype)
    y = predicted(model, x)
    k = draw.randint(1, d - 1)
    steps = draw.randint(1, 5)
    kind = type(ATTACKS[name].budget)
    if kind is WalkBudget:
        handling = draw.choice(["unconstrained", "hedge", "qp", "rejection"])
        budget = WalkBudget(step=threat.radius / steps or 1.0, steps=steps, handling=handling)
    else:
        budget = EFFORT if kind is EnsembleBudget else kind(iterations=steps)
    found = attack(model, x, y, k=k, method=name, perturbation=threat, budget=budget, seed=seed)
    if world is not None:
        assert world.complaints(found.x) == []
    else:
        assert exactly_within(found.x, x, threat.radius)
        assert isinstance(threat, L2Ball)
        if threat.bounds is not None:
            low, high = (torch.as_tensor(each, dtype=dtype) for each in threat.bounds)
            assert (found.x >= torch.minimum(low, x)).all()
            assert (found.x <= torch.maximum(high, x)).all()
    kept = predicted(model, x) == y
    assert torch.equal(predicted(model, found.x)[kept], y[kept])
    assert torch.equal(found.x[~kept], x[~kept])
    with torch.no_grad():
        after = gradient(model, found.x, y)
    torch.testing.assert_close(found.after, after)
    assert torch.equal(found.precision, precision_at_k(found.before, found.after, k))


def drawn_ball(draw: random.Random, x: Tensor) -> L2Ball:
    radius = draw.choice([0.0, 1e-4, 0.1, 1.0, 7.0])
    if draw.random() < 0.5:
        return L2Ball(radius=radius)
    low = draw.choice([-math.inf, float(x.min()), -0.3])
    high = torch.full((x.shape[1],), draw.choice([float(x.max()), 0.5])).to(x)
    return L2Ball(radius=radius, bounds=(low, torch.maximum(high, torch.tensor(low).to(x))))


@pytest.mark.parametrize("name", ATTACKS)
def test_what_comes_back_is_admissible(name: str) -> None:
    for seed in range(30 if name in CASES else 10):
        attacked_case(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_what_comes_back_is_admissible_in_thousands_of_cases(name: str) -> None:
    for seed in range(1000, 1000 + CASES.get(name, FEW)):
        attacked_case(name, seed)
