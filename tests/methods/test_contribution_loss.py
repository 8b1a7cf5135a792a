"""R2ET of contributions, against slow transcriptions of its definition."""

import math
from functools import partial
from itertools import permutations, product
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from r2et.core.rng import stream
from r2et.explainers import gradient
from r2et.methods import (
    METHODS,
    BatchContext,
    contribution_margin,
    corner_moves,
    single_moves,
    whole_moves,
)
from r2et.methods.contribution_loss import ramp, worst_margin, worst_separate_margin
from r2et.models.banded import InBands
from r2et.sklearn import NetworkClassifier
from r2et.training.objective import Objective
from refusals import refusal

GROUPS = [0, 1, 2, 2, 3]
BACKGROUND = numbers(3, 5, seed=7)
STEPS = {0: [-0.4, 0.7], 1: [0.5]}
SETTINGS: dict[str, Any] = {
    "k": 2,
    "thickness": 1.0,
    "groups": GROUPS,
    "background": BACKGROUND.tolist(),
}


class Curved(nn.Module):
    """Log-odds in which columns 0 and 1 add on their own and the others interact."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(numbers(2, seed=3))
        self.rest = tiny_mlp(3, seed=4)

    def forward(self, x: Tensor) -> Tensor:
        score = (torch.sin(2 * x[:, :2]) * self.own).sum(-1)
        return self.rest(x[:, 2:]) + torch.stack([torch.zeros_like(score), score], -1)


def penalty(model: nn.Module, x: Tensor, **settings: Any) -> Tensor:
    method = contribution_margin(**{**SETTINGS, **settings})
    ((name, weight, own),) = method.penalties
    assert (name, weight) == ("margin", 1.0)
    return own(BatchContext(model, x))


def slow_contributions(model: nn.Module, row: list[float], y: int) -> list[float]:
    """Mean over all orders and rows of the background of what an attribute adds to those before."""
    totals = [0.0] * 4

    def score(values: list[float]) -> float:
        logits = model(torch.tensor([values], dtype=torch.float64))[0]
        return float(logits[y] - logits[1 - y])

    orders = list(permutations(range(4)))
    for order, other in product(orders, BACKGROUND.tolist()):
        mixed = list(other)
        for attribute in order:
            before = score(mixed)
            mixed = [
                own if group == attribute else kept
                for own, kept, group in zip(row, mixed, GROUPS, strict=True)
            ]
            totals[attribute] += (score(mixed) - before) / len(orders) / len(BACKGROUND)
    return totals


def slow_margin(model: nn.Module, row: list[float], moves: list[list[float]]) -> float:
    """The lead of the top 2 against the decision at its smallest, move by move."""
    with torch.no_grad():
        y = int(model(torch.tensor([row], dtype=torch.float64)).argmax())
        here = [-each for each in slow_contributions(model, row, y)]
        top = sorted(range(4), key=lambda a: -here[a])[:2]
        worst = math.inf
        for move in [[0.0] * 5, *moves]:
            at = [own + by for own, by in zip(row, move, strict=True)]
            there = [-each for each in slow_contributions(model, at, y)]
            inside = min(there[a] for a in top)
            worst = min(worst, inside - max(there[a] for a in range(4) if a not in top))
    return worst


def test_the_penalty_is_its_definition() -> None:
    model, x = tiny_mlp(5, seed=2), numbers(2, 5, seed=1)
    near, far = whole_moves(5, {0: [-0.2, 0.2]}), whole_moves(5, STEPS)
    found = penalty(model, x, moves=[near, far], room=0.02, temperature=0.1)
    for row, own in zip(x.tolist(), found, strict=True):
        slow = [
            1 / (1 + math.exp((slow_margin(model, row, moves) - 0.02) / 0.1))
            for moves in (near, far)
        ]
        assert own.item() == pytest.approx(sum(slow) / 2, rel=1e-9)


def test_separate_moves_stand_for_all_their_combinations() -> None:
    # What moves adds on its own: each pair of attributes meets its worst place at some combination.
    model, x = Curved().double(), numbers(12, 5, seed=5)
    together = penalty(model, x, moves=[whole_moves(5, STEPS)])
    apart = penalty(model, x, moves=[single_moves(5, STEPS)], separate=True)
    torch.testing.assert_close(apart, together, rtol=1e-10, atol=1e-12)
    alone = penalty(model, x, moves=[single_moves(5, STEPS)])
    assert (alone <= together + 1e-12).all()
    assert (alone < together - 1e-6).any()


def test_margins_of_contributions_by_hand() -> None:
    # Places 0 and 1 of one example; attributes 0 and 2 lead.
    phi = torch.tensor([[[3.0, 1.0, 2.0]], [[1.5, 1.2, 2.5]]], dtype=torch.float64)
    top = torch.tensor([[True, False, True]])
    assert worst_margin(phi, top).tolist() == [pytest.approx(0.3)]
    assert worst_separate_margin(phi, top).tolist() == [pytest.approx(0.3)]
    crossed = torch.tensor([[[3.0, 1.8, 2.0]], [[1.5, 1.0, 2.5]]], dtype=torch.float64)
    assert worst_margin(crossed, top).tolist() == [pytest.approx(0.2)]
    assert worst_separate_margin(crossed, top).tolist() == [pytest.approx(1.5 - 1.8)]
    steep = ramp(torch.tensor([0.05, -9.0, 9.0]), 0.05, 0.15)
    torch.testing.assert_close(steep, torch.tensor([0.5, 1.0, 0.0]))


def test_its_slopes_are_those_of_finite_differences() -> None:
    model, x = tiny_mlp(5, seed=2), numbers(4, 5, seed=1)
    own = partial(penalty, model, x, moves=[whole_moves(5, STEPS)])
    weights = list(model.parameters())
    slopes = torch.autograd.grad(own().sum(), weights)
    for number, (weight, slope) in enumerate(zip(weights, slopes, strict=True)):
        along = numbers(*weight.shape, seed=10 + number)
        with torch.no_grad():
            weight += 1e-6 * along
            above = own().sum()
            weight -= 2e-6 * along
            below = own().sum()
            weight += 1e-6 * along
        assert ((above - below) / 2e-6).item() == pytest.approx(
            (slope * along).sum().item(), rel=1e-5, abs=1e-8
        )


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("orders", [None, 4])
def test_an_example_counts_for_itself_alone(separate: bool, orders: int | None) -> None:
    model, x = tiny_mlp(5), numbers(6, 5)
    own = partial(penalty, model, moves=[whole_moves(5, STEPS)], separate=separate, orders=orders)
    alone = torch.cat([own(x[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(own(x), alone)


def test_a_share_of_a_batch_stands_for_all_of_it() -> None:
    model, x = tiny_mlp(5), numbers(8, 5)
    some = penalty(model, x, share=0.25)
    torch.testing.assert_close(some[:2], 4 * penalty(model, x)[:2])
    assert some[2:].tolist() == [0.0] * 6


def test_moves_are_combinations_or_single_ones() -> None:
    assert whole_moves(3, {0: [1], 2: [-1, 1]}) == [
        [0.0, 0.0, -1.0],
        [0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0],
        [1.0, 0.0, -1.0],
        [1.0, 0.0, 1.0],
    ]
    corners = corner_moves(3, {0: 1.0, 1: 0.0, 2: 2.0})
    assert corners == [[-1.0, 0.0, -2.0], [-1.0, 0.0, 2.0], [1.0, 0.0, -2.0], [1.0, 0.0, 2.0]]
    assert single_moves(2, {1: [2], 0: [-1]}) == [[0.0, 2.0], [-1.0, 0.0]]


def test_training_lowers_it() -> None:
    model, x = tiny_mlp(5, seed=2), numbers(40, 5, seed=1)
    y = model(x).argmax(-1)
    objective = Objective(
        model, contribution_margin(**SETTINGS, moves=[whole_moves(5, STEPS)], orders=2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = objective.parts(x, y).parts["margin"].item()
    for _ in range(30):
        optimizer.zero_grad()
        objective(x, y).backward()
        optimizer.step()
    assert objective.parts(x, y).parts["margin"].item() < first - 0.05


def without_graph(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return gradient(model, x, y).detach()


def test_an_explanation_without_a_graph_is_refused() -> None:
    objective = Objective(tiny_mlp(5), contribution_margin(k=2, explain=without_graph))
    x, y = numbers(4, 5), torch.arange(4) % 2
    assert "must hang on the model's weights" in refusal(lambda: objective(x, y))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "a finite temperature > 0"),
        ({"thickness": -1.0}, "a finite thickness >= 0"),
        ({"share": 1.5}, "at most 1, got 1.5"),
        ({"moves": [[[1.0]], [[1.0, 2.0]]]}, "different lengths, [1, 2]"),
        ({"orders": 3}, "their number is even"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: METHODS["r2et-contributions"].build(k=2, **settings))


def test_moves_of_other_rows_are_refused() -> None:
    model, x = tiny_mlp(5), numbers(2, 5)
    told = refusal(lambda: penalty(model, x, moves=[whole_moves(4, {0: [1.0]})]))
    assert "each of the 5 columns of an encoded row, got 4" in told
    assert "columns 0..2" in refusal(lambda: whole_moves(3, {3: [1.0]}))


def test_without_weight_nothing_is_asked() -> None:
    assert contribution_margin(k=2, thickness=0.0).penalties == ()


def _banded() -> nn.Module:
    first = InBands(5, {0: [-0.3, 0.4], 1: [0.0]})
    return nn.Sequential(first, tiny_mlp(first.outputs)).double()


def test_a_network_on_bands_changes_where_a_move_crosses_an_edge() -> None:
    model, x = _banded(), numbers(30, 5, seed=3)
    within = x.clone()
    within[:, 0] = torch.where(x[:, 0] < -0.3, x[:, 0] - 9, x[:, 0])
    torch.testing.assert_close(model(within), model(x), rtol=0, atol=0)
    rows = InBands(3, {1: [0.0, 1.0]})(torch.tensor([[5.0, 0.0, 6.0], [7.0, -1.0, 8.0]]))
    assert rows.tolist() == [[5.0, 6.0, 0.0, 1.0, 0.0], [7.0, 8.0, 1.0, 0.0, 0.0]]
    found = penalty(model, x, moves=[whole_moves(5, STEPS)])
    still = penalty(model, x)
    crossed = InBands(5, {0: [-0.3, 0.4], 1: [0.0]})(x)[:, 3:]
    reached = torch.zeros(len(x), dtype=torch.bool)
    for move in whole_moves(5, STEPS):
        at = InBands(5, {0: [-0.3, 0.4], 1: [0.0]})(x + torch.tensor(move))[:, 3:]
        reached |= (at != crossed).any(-1)
    torch.testing.assert_close(found[~reached], still[~reached])
    assert (found > still + 1e-9).any()


@pytest.mark.parametrize(
    ("edges", "words"),
    [({5: [0.0]}, "columns 0..4"), ({0: [1.0, 1.0]}, "must rise")],
)
def test_bands_of_no_column_or_in_disorder_are_refused(
    edges: dict[int, list[float]], words: str
) -> None:
    assert words in refusal(lambda: InBands(5, edges))


def test_a_classifier_trains_by_it() -> None:
    draw = stream(0, "people")
    age = torch.randint(20, 60, (120,), generator=draw).numpy()
    job = ["clerk" if at % 3 else "none" for at in range(120)]
    people = pd.DataFrame({"age": age, "job": job, "hours": age[::-1].copy()})
    y = (age > 40).astype(int)
    plain = NetworkClassifier(method="vanilla", epochs=1, random_state=0, device="cpu")
    rows = plain.fit(people, y).encode(people)
    settings = {
        "groups": [0, 1, 2],
        "background": rows[:4].tolist(),
        "moves": [whole_moves(3, {0: [-0.1, 0.1]})],
    }
    model = NetworkClassifier(
        method="r2et-contributions",
        method_settings=settings,
        k=1,
        epochs=2,
        random_state=0,
        device="cpu",
    ).fit(people, y)
    assert model.predict(people).shape == (120,)
