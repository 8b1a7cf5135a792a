"""What an attack does unless it is told otherwise: the papers' numbers, seen in what it does."""

import inspect
from dataclasses import replace

import pytest
import torch

from attacking import attacker
from closed_form import Quadratic, numbers, tiny_mlp
from r2et.attacks.constraint_handling import (
    CONSTRAINT_HANDLING,
    ConstraintHandling,
    equal,
    gda,
    hedge,
    min_norm,
)
from r2et.attacks.ensemble import CELLS
from r2et.attacks.moo import Iteration, LineSearch, TrustRegion
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import ATTACKS, attack
from r2et.evaluation.protocol import EvaluationSettings, Walk
from r2et.explainers import Gradient, predicted
from r2et.perturbations import L2Ball


def test_a_walk_is_of_a_thousand_steps_of_a_thousandth() -> None:
    # The papers' tables: "up to 1000 steps of length 1e-3 (eps = 1 in all)". The signed gradient of
    # a quadratic is linear: the walk is a straight line, and ends as far away as its steps add up.
    model, x = Quadratic(d=4, b=torch.full((4,), 50.0, dtype=torch.float64)), numbers(1, 4).abs()
    explain = Gradient(of="logit", form="signed")
    for steps, length in ((None, 1.0), (1, 1e-3)):
        budget = WalkBudget() if steps is None else WalkBudget(steps=steps)
        found = attack(
            model, x, k=2, method="er", explainer=explain, perturbation=L2Ball(radius=9.0),
            budget=budget,
        )  # fmt: skip
        assert found.last is not None
        assert float((found.last - x).norm()) == pytest.approx(length, rel=1e-9)
    assert ATTACKS["er"].budget == ATTACKS["mse"].budget == WalkBudget()


def test_an_evaluation_walks_as_the_papers_do() -> None:
    # k = 8 for tables, eps = 1, 1000 steps of 1e-3, the class only picked for.
    settings = EvaluationSettings()
    assert settings.k == 8
    assert settings.er == Walk(radius=1.0, step=1e-3, steps=1000)
    assert settings.handler == "unconstrained"
    assert (WalkBudget().step, WalkBudget().steps) == (settings.er.step, settings.er.steps)
    assert settings.manipulated == 1.0  # tables: the first feature that leaves the top k


def test_every_handling_is_that_of_its_name() -> None:
    # P B.2.3: unconstrained, no update, GDA (Eq. 58), Hedge (Eq. 59), QP (Eq. 60), early stop; and
    # refused steps. All that weigh goals do so in units of where these start.
    expected = {
        "unconstrained": (None, "walk on"),
        "equal": (equal, "walk on"),
        "gda": (gda, "walk on"),
        "hedge": (hedge, "walk on"),
        "qp": (min_norm, "walk on"),
        "early-stop": (None, "stop"),
        "rejection": (None, "back off"),
    }
    found = {name: (way.weighting, way.at_change) for name, way in CONSTRAINT_HANDLING.items()}
    assert found == expected
    assert all(way.scaled for way in CONSTRAINT_HANDLING.values())


@pytest.mark.parametrize("name", ["equal", "gda", "hedge"])
def test_goals_are_scaled_unless_that_is_denied(name: str) -> None:
    model, x = tiny_mlp(), numbers(7, 6)
    y, weighting = predicted(model, x), CONSTRAINT_HANDLING[name].weighting
    ends = {}
    for scaled in (None, True, False):
        told = {} if scaled is None else {"scaled": scaled}
        way = ConstraintHandling(line="ours", weighting=weighting, **told)
        budget = WalkBudget(step=0.1, steps=6, handling=way)
        found = attack(
            model, x, y, k=2, method="er", perturbation=L2Ball(radius=1.0), budget=budget
        )
        ends[scaled] = found.last
    assert torch.equal(ends[None], ends[True])
    assert not torch.allclose(ends[True], ends[False], atol=1e-3)


@pytest.mark.parametrize("method", ["er", "mse"])
def test_without_a_word_a_walk_neither_stops_nor_backs_off(method: str) -> None:
    model, x = tiny_mlp(), 2 * numbers(40, 6)
    y = predicted(model, x)
    budget = WalkBudget(step=0.3, steps=6)
    run = attacker(method, k=2, perturbation=L2Ball(radius=2.0), budget=budget)
    plain = run(model, x, y)
    said = ConstraintHandling(line="ours")
    own = attacker(
        method, k=2, perturbation=L2Ball(radius=2.0), budget=replace(budget, handling=said)
    )(model, x, y)
    assert plain.last is not None
    assert own.last is not None
    assert torch.equal(plain.last, own.last)
    assert (predicted(model, plain.last) != y).any(), "the walk goes on beyond the border"
    assert torch.equal(predicted(model, plain.x), y), "what comes back lies before it"


def test_rates_unless_given() -> None:
    # r = 0.1 in Eqs. 58 and 59. Weights (.5, .5) and losses (1, 2): GDA gives (.5, .5 + .2) / 1.2,
    # Hedge exp(.1) : exp(.2).
    weights = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    losses = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    slopes = torch.tensor([[[1.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    torch.testing.assert_close(
        gda(weights, losses, slopes), torch.tensor([[0.5 / 1.2, 0.7 / 1.2]], dtype=torch.float64)
    )
    ratio = torch.tensor([0.1, 0.2], dtype=torch.float64).exp()
    torch.testing.assert_close(hedge(weights, losses, slopes), (ratio / ratio.sum())[None])
    # Slopes of lengths 1 and 4 at a right angle: scaled to length one they count alike, w_0 : w_1 =
    # 4 : 1, so that the blend is the bisector; as they are it would be 16 : 1.
    torch.testing.assert_close(
        min_norm(weights, losses, slopes), torch.tensor([[0.8, 0.2]], dtype=torch.float64)
    )


def test_a_trust_region_begins_with_half_a_radius() -> None:
    # A step is taken for a tenth of what it promises, and the region is halved after one that was
    # not: `test_moo.py` follows both for any numbers.
    seen: list[Iteration] = []
    model, x = tiny_mlp(), numbers(12, 6)
    run = attacker(
        "moo", k=2, perturbation=L2Ball(radius=0.2), iterations=2, pairs=4, watch=seen.append
    )
    run(model, x, predicted(model, x))
    assert (seen[0].delta == 0.5).all()
    assert TrustRegion() == TrustRegion(eta=0.1, gamma=0.5, trust_radius=0.5)


def test_a_line_search_begins_with_half_a_radius() -> None:
    # Armijo's condition with the usual share of 1e-4; half of it twelve times is a step of 1e-4.
    assert LineSearch() == LineSearch(first_step=0.5, share=1e-4, halvings=12)
    model, x = tiny_mlp(), numbers(12, 6)
    run = attacker("armijo", k=2, perturbation=L2Ball(radius=0.2), iterations=1, guide=None)
    moves = (run(model, x, predicted(model, x)).x - x).norm(dim=-1) / 0.2
    taken = moves[moves > 0]
    assert float(taken.max()) <= 0.5 + 1e-9
    halvings = (0.5 / taken).log2()
    torch.testing.assert_close(halvings, halvings.round(), atol=1e-6, rtol=0)


def test_defaults_are_said_once() -> None:
    """The attack of a name spends the budget that its record says."""
    for name, way in ATTACKS.items():
        plain = type(way.budget)()
        # The forerunner's attack within limits is its line search with them, from a whole step.
        if name == "sqp":
            assert way.budget == replace(plain, linearised=True, first_step=1.0)
        elif name == "strong":
            # Where methods are compared nothing walks cells, as not all networks have them.
            assert way.budget == replace(plain, cells=CELLS)
        else:
            assert way.budget == plain, name
    assert inspect.signature(attack).parameters["method"].default == "strong"
