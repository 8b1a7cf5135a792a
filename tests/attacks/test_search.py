"""What searches are made of, by hand: inputs whose explanation is the input itself."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closed_form import Linear, numbers, tiny_mlp
from r2et.attacks import ensemble
from r2et.attacks.ensemble import EnsembleBudget, _guides, _random_goals, _starts, shrinking
from r2et.attacks.radius import Cheapest, most_damaging
from r2et.attacks.registry import attack
from r2et.attacks.search import (
    AttackProblem,
    BestSoFar,
    projected_descent,
    ranking_goal,
    relative,
)
from r2et.core.rng import stream
from r2et.explainers import gradient, predicted
from r2et.perturbations import L2Ball


def itself(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """An explanation whose ranking is that of the input's numbers."""
    return x


# Class 1 as long as the first number is above zero; its top two are the numbers 0 and 1.
FIRST = Linear(w=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
CLEAN = torch.tensor([[8.0, 6.0, 4.0, 2.0]], dtype=torch.float64)


def problem(radius: float = 100.0) -> AttackProblem:
    return AttackProblem(k=2, explainer=itself, perturbation=L2Ball(radius=radius))


def best() -> BestSoFar:
    return BestSoFar(FIRST, CLEAN, torch.tensor([1]), problem())


def rows(*values: Sequence[float]) -> Tensor:
    """Places for the only example: (S, 1, 4)."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


# --- the best so far ---


def test_a_lower_precision_wins_and_a_changed_class_never_does() -> None:
    found = best()
    # One of two displaced; both displaced, but of another class; of the clean class again.
    found.offer_all(rows([8, 1, 4, 2]))
    assert found.precision.tolist() == [0.5]
    found.offer_all(rows([-1, 0, 4, 2]))
    assert found.precision.tolist() == [0.5]
    assert found.x.tolist() == [[8.0, 1.0, 4.0, 2.0]]
    found.offer_all(rows([1, 0, 4, 2]))
    assert found.precision.tolist() == [0.0]


def test_an_input_of_another_class_is_no_nearer_miss() -> None:
    # Nothing is displaced, and across place 2 the gap is all but closed: it would win if its class
    # did not count.
    found = best()
    found.offer_all(rows([-8, 6, 5.9, -9]))
    assert torch.equal(found.x, CLEAN)
    assert found.gap.tolist() == [math.inf]


def test_among_equals_the_smaller_gap_wins() -> None:
    # The facing gaps of k = 2: (6 - 4) + (8 - 2) over 2, relative to the sum of all scores.
    found = best()
    for place, taken in (
        ([8, 6, 5, 2], True),
        ([8, 6, 4.5, 2], False),
        ([8, 6, 5.5, 2], True),
        ([8, 6, 5, 2], False),
        ([16, 12, 11, 4], False),  # twice the second: relative to its size the same
    ):
        before = found.x
        found.offer_all(rows(place))
        assert torch.equal(found.x, rows(place)[0] if taken else before), place
        assert found.precision.tolist() == [1.0]


def test_of_several_places_the_best_is_taken() -> None:
    found = best()
    found.offer_all(rows([8, 6, 5, 2], [8, 3, 4, 2], [8, 2, 5, 2], [-8, 2, 7, 2], [8, 3.5, 4, 2]))
    # Three displace one feature; the third of all has the smallest gap left.
    assert found.x.tolist() == [[8.0, 2.0, 5.0, 2.0]]


def test_the_first_flip_is_noted_and_one_beyond_the_end_if_there_is_none() -> None:
    found, never = best(), best()
    for each in (found, never):
        each.tick(2)
        each.offer_all(rows([8, 6, 5, 2]))
        each.tick(2)
    found.offer_all(rows([8, 1, 4, 2]))
    for each in (found, never):
        each.tick(2)
        each.tick(2)
    assert found.result().first_flip.tolist() == [6]
    assert never.result().first_flip.tolist() == [9]
    assert found.result().steps.tolist() == [0, 2, 4, 6, 8]
    assert found.result().history.flatten().tolist() == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert found.result().flipped.tolist() == [True]
    assert never.result().flipped.tolist() == [False]


def test_a_member_keeps_the_lowest_it_reached() -> None:
    found = best()
    found.member = "ours"
    for place in ([8, 1, 4, 2], [8, 6, 4, 2]):
        found.offer_all(rows(place))
    found.member = "theirs"
    found.offer_all(rows([8, 6, 4, 2]))
    assert {name: each.tolist() for name, each in found.reached.items()} == {
        "ours": [0.5],
        "theirs": [1.0],
    }


# --- goals and descent ---


def test_a_relative_goal_does_not_hang_on_scale() -> None:
    before = numbers(5, 6).abs()
    goal, moved = ranking_goal(before, 2), numbers(5, 6, seed=1).abs()
    torch.testing.assert_close(relative(goal)(moved), goal(moved) / moved.norm(dim=-1))
    torch.testing.assert_close(relative(goal)(100 * moved), relative(goal)(moved))
    assert relative(goal)(0 * moved).tolist() == [0.0] * 5


def test_a_step_that_is_not_allowed_is_halved_and_then_longer_again() -> None:
    # Down a slope in steps of 1, allowed down to -2.6: refused steps halve the pace, taken ones
    # make it half as long again, at most 1.
    x = torch.zeros(1, 1, dtype=torch.float64)
    seen: list[float] = []
    projected_descent(
        lambda at: at[:, 0],
        x,
        start=x,
        perturbation=L2Ball(radius=50.0),
        lengths=[1.0] * 12,
        allowed=lambda at: at[:, 0] >= -2.6,
        watch=lambda step, found: seen.append(found.item()),
    )
    place, pace, expected = 0.0, 1.0, []
    for _ in range(12):
        if place - pace >= -2.6:
            place, pace = place - pace, min(1.0, 1.5 * pace)
        else:
            pace = pace / 2
        expected.append(place)
    assert seen == pytest.approx(expected)
    assert expected[:4] == [-1.0, -2.0, -2.0, -2.5]
    assert expected[-1] == -2.59375, "had the pace not recovered after -2.5, -2.5625"


# --- the cheapest change ---


def test_what_a_radius_affords_by_hand() -> None:
    x = CLEAN
    one, both = torch.tensor([[8.0, 1.0, 4.0, 2.0]]).double(), torch.tensor([[1.0, 0.0, 4.0, 2.0]])
    found = [(each.double(), each.double(), torch.tensor([cost])) for each, cost in
             ((one, 1.0), (both, 3.0))]  # fmt: skip
    for radius, precision in ((0.9, 1.0), (1.0, 0.5), (2.9, 0.5), (3.0, 0.0), (9.0, 0.0)):
        place, after, reached = most_damaging(found, CLEAN, x, 2, radius)
        assert reached.tolist() == [precision]
        expected = {1.0: CLEAN, 0.5: one, 0.0: both.double()}[precision]
        assert torch.equal(place, expected)
        assert torch.equal(after, expected)


def test_one_displaced_feature_is_a_break_and_the_cheapest_counts() -> None:
    near = Cheapest(FIRST, CLEAN, torch.tensor([1]), problem())
    # Breaks at a cost of 5; at a cost of 4; another class at 10; nothing displaced at 1.
    near.offer_all(rows([8, 1, 4, 2], [8, 2, 4, 2], [-2, 6, 4, 2], [8, 5, 4, 2]))
    assert near.cost.tolist() == [4.0]
    assert near.x.tolist() == [[8.0, 2.0, 4.0, 2.0]]


def test_the_nearest_of_another_class_does_not_count() -> None:
    near = Cheapest(FIRST, CLEAN, torch.tensor([1]), problem())
    near.offer_all(rows([-0.1, 6, 4, 2]))
    assert near.cost.tolist() == [math.inf]


def test_halving_ends_at_the_border() -> None:
    # On the way from (8, 6, 4, 2) to (8, 1, 4, 2) the second falls behind the third at a cost of 2.
    near = Cheapest(FIRST, CLEAN, torch.tensor([1]), problem())
    near.offer_all(rows([8, 1, 4, 2]))
    near._halve()
    assert near.cost.item() == pytest.approx(2.0, abs=1e-3)
    assert near.cost.item() > 2.0


# --- the ensemble ---


def test_steps_shrink_along_half_a_cosine() -> None:
    assert shrinking(0.0, 1.0) == 1.0
    assert shrinking(0.5, 1.0, last=0.2) == pytest.approx(0.6)
    assert shrinking(1.0, 1.0) == pytest.approx(0.01)
    assert shrinking(0.25, 1.0, last=0.0) == pytest.approx((1 + math.sqrt(0.5)) / 2)


def test_kinks_are_rounded_as_narrowly_as_the_radius_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    own = ensemble.softened
    monkeypatch.setattr(
        ensemble, "softened", lambda model, rho: asked.append(rho) or own(model, rho)
    )
    model, x = tiny_mlp(activation=nn.ReLU), numbers(2, 6)
    budget = EnsembleBudget(rounds=1, starts=0, points=2, moves=0, pairs=0, sharpness=(8.0, 4.0))
    attack(model, x, k=2, radius=0.25, budget=budget)
    assert sorted(set(asked)) == [16.0, 32.0]


def test_even_goals_are_those_of_erattack() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    asked = AttackProblem(k=2, explainer=gradient, perturbation=L2Ball(radius=1.0))
    found = BestSoFar(model, x, predicted(model, x), asked)
    goal = _random_goals(found, 4, 2, False, stream(0, "goals"))
    saliency = numbers(3, 6, seed=5).abs()
    values = goal(saliency.repeat(4, 1)).view(4, 3)
    plain = ranking_goal(found.before, 2)(saliency)
    for start in range(4):
        assert torch.allclose(values[start], plain) == (start < 2)


def test_only_the_first_even_start_is_where_the_search_begins() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    found = BestSoFar(
        model, x, predicted(model, x),
        AttackProblem(k=2, explainer=gradient, perturbation=L2Ball(radius=1e-3)),
    )  # fmt: skip
    for even in (0, 2):
        begin = _starts(found, x, 4, even, 0, stream(0, "starts")).view(4, 3, 6)
        lengths = (begin - x).norm(dim=-1)
        for start in range(4):
            expected = 0.0 if even and start == 0 else 1e-3
            torch.testing.assert_close(lengths[start], torch.full_like(lengths[start], expected))


@pytest.mark.parametrize("classes", [2, 3])
def test_of_two_classes_the_margin_is_enough(classes: int) -> None:
    model, x = tiny_mlp(classes=classes), numbers(2, 6)
    guides: Any = _guides(model, gradient, x, (), False)
    assert [explain.of for _, explain in guides] == ["margin", "logit"][: classes - 1]


def test_guides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[nn.Module] = []
    monkeypatch.setattr(ensemble, "_descend", lambda best, x, guide, *rest: seen.append(guide[0]))
    model, x = tiny_mlp(activation=nn.ReLU), numbers(2, 6)
    budget = EnsembleBudget(
        rounds=4, starts=1, steps=1, points=2, moves=0, pairs=0, sharpness=(8.0, 4.0), itself=True
    )
    attack(model, x, k=2, radius=0.5, budget=budget)
    relative_goals = seen[::2]
    assert relative_goals[0] is relative_goals[3]
    assert len({id(each) for each in relative_goals[:3]}) == 3
