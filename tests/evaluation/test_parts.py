"""The parts of an evaluation one by one, on results made by hand and networks of a moment."""

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget, flippable
from r2et.attacks.radius import Curve
from r2et.attacks.search import AttackResult, prediction
from r2et.core.inputs import Piece
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.data import Dataset, ItemStructure, Split, load
from r2et.evaluation import evaluate as module
from r2et.evaluation.evaluate import (
    Task,
    budget_of,
    curve_of,
    evaluate,
    individuality,
    noise_precision,
    pair_and_singles,
    scatter_of,
    strong_curve,
    task_of,
)
from r2et.evaluation.protocol import EvaluationSettings, Walk
from r2et.evaluation.results import Evaluation
from r2et.explainers import gradient, predicted
from r2et.metrics.thickness import gaussian, thickness
from r2et.perturbations import Box, L2Ball

FEW = EvaluationSettings(
    k=4,
    attacks=("er",),
    examples=12,
    decisions=0,
    epsilons=(),
    record_every=1,
    er=Walk(radius=1.0, step=0.25, steps=2),
    neighbours=2,
)


@cache
def split() -> Split:
    whole = load("compas")
    return replace(whole, name="slice", x=whole.x[:100], y=whole.y[:100]).split(0)


@cache
def judged() -> tuple[nn.Module, Tensor, Tensor, Evaluation]:
    """An untrained network, its examples, and the row of a quick evaluation."""
    model = tiny_mlp(d=16, hidden=8)
    x = split().test.x[:12].double()
    return model, x, predicted(model, x), evaluate(model, split(), FEW)


def test_flippable_predictions_are_those_of_the_small_radius() -> None:
    model, x, y, row = judged()
    shares = [
        float(flippable(model, x, y, perturbation=L2Ball(radius=radius)).double().mean())
        for radius in (FEW.small_radius, FEW.er.radius)
    ]
    assert row.measures["flippable"] == shares[0] < shares[1]


def test_gaussian_neighbours_have_half_the_radius_for_a_deviation() -> None:
    model, x, y, row = judged()
    found = thickness(
        model, x, y, gaussian(0.5), explain=gradient, k=4, variant="probability", samples=2,
        points=8, generator=stream(0, "gaussian thickness"),
    )  # fmt: skip
    assert row.measures["gaussian_thickness"] == pytest.approx(float(found.value.mean()))


def test_everybody_has_an_exchange_to_make() -> None:
    assert judged()[3].measures["without_exchanges"] == 0


def test_kappa_is_beyond_what_one_class_shares() -> None:
    # Two classes that explain by other features: everybody shares all with their own class but for
    # one feature of two, and nothing with the other.
    before = torch.tensor(
        [[9.0, 8.0, 0.0, 0.0, 0.0], [9.0, 0.0, 8.0, 0.0, 0.0]] * 2
        + [[0.0, 0.0, 0.0, 9.0, 8.0]] * 2
    )  # fmt: skip
    y = torch.tensor([0, 0, 0, 0, 1, 1])
    found = individuality(before, y, 2, 0.9)
    # Of four people of class 0 each shares both features with one other and one with two: 4 of 6.
    # Both of class 1 share all. Overall also nothing with the people of the other class.
    within = (4 * (4 / 6) + 2 * 1.0) / 6
    overall = (4 * (4 / 10) + 2 * (2 / 10)) / 6
    assert found["class_overlap"] == pytest.approx(within)
    assert found["overlap"] == pytest.approx(overall)
    assert found["strong_kappa"] == pytest.approx((0.9 - within) / (1 - within))
    assert "strong_kappa" not in individuality(before, y, 2, None)


def pictures(bounds: tuple[float, float] = (0.0, 1.0), *, pairs: bool = False) -> Split:
    """Grey pictures around .4, from which their training mean is taken away."""
    x = 0.4 + 0.1 * torch.rand(24, 1, 3, 3, generator=stream(0, "pictures"))

    def divide(labels: Tensor, seed: int) -> dict[str, Tensor]:
        parts = torch.arange(24).chunk(3)
        rows = [torch.stack([part, part.roll(1)], 1) if pairs else part for part in parts]
        return dict(zip(("train", "valid", "test"), rows, strict=True))

    return Dataset(
        name="grey",
        x=x,
        y=torch.arange(24) // 3 % 2,
        structure=ItemStructure(
            piece=Piece(shape=(1, 3, 3)), bounds=bounds, centred=True, pairs=pairs
        ),
        classes=("a", "b"),
        divide=divide,
        target="kind",
        source="drawn",
    ).split(0)


def test_bounds_are_those_of_what_the_model_sees() -> None:
    # Inputs are pictures minus a mean: a pixel between 0 and 1 is then between -mean and 1 - mean.
    part = pictures()
    settings = replace(FEW, norm="linf", er=Walk(radius=9.0, step=1.0, steps=1))
    within = task_of(part, settings, gradient).perturbation
    assert isinstance(within, Box)
    assert within.radius == 9.0
    x = part.test.x
    shift = part.scale.shift
    assert float(shift.mean()) == pytest.approx(0.45, abs=0.03)
    far = within.project(torch.full_like(x, 9.0), x), within.project(torch.full_like(x, -9.0), x)
    torch.testing.assert_close(far[0], (1 - shift).expand_as(x).to(x))
    torch.testing.assert_close(far[1], (0 - shift).expand_as(x).to(x))


def test_single_items_are_kept_where_they_are_asked_for() -> None:
    part = pictures(pairs=True)
    asked = [task_of(part, replace(FEW, singles=each), gradient).outputs for each in (True, False)]
    assert asked == [pair_and_singles, prediction]


def test_noise_is_as_long_as_the_budget_allows() -> None:
    # Explained is how far an input is from the centre: only places at the whole distance count.
    model, x = tiny_mlp(d=16), numbers(5, 16)
    seen = []

    def explain(model: nn.Module, at: Tensor, y: Tensor) -> Tensor:
        seen.append((at - x).norm(dim=-1))
        return at.abs()

    settings = replace(FEW, noise=3)
    task = Task(explain=explain, perturbation=L2Ball(radius=0.7))
    found = noise_precision(model, x, predicted(model, x), settings, task, 0)
    clean, *drawn = seen
    assert (clean == 0).all()
    assert len(drawn) == 3
    for lengths in drawn:
        torch.testing.assert_close(lengths, torch.full_like(lengths, 0.7))
    moves = task.perturbation.offsets(x[0], 3, stream(0, "noise"), surface=True)
    each = [precision_at_k(x.abs(), (x + move).abs(), 4) for move in moves]
    torch.testing.assert_close(found, torch.stack(each).mean(0))


def test_a_walk_spends_what_the_settings_say() -> None:
    settings = replace(FEW, handler="hedge", record_every=3, er=Walk(radius=2.0, step=0.5, steps=7))
    assert budget_of("er", settings) == budget_of("mse", settings)
    assert budget_of("er", settings) == WalkBudget(
        step=0.5, steps=7, handling="hedge", record_every=3
    )
    assert budget_of("strong", settings) is settings.strong


def test_smaller_radii_take_half_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(module, "attack_curve", lambda *given, **words: asked.update(words))
    effort = EnsembleBudget(rounds=5, pairs=0)
    settings = replace(FEW, epsilons=(0.1, 1.0, 3.0), strong=effort)
    task = Task(explain=gradient, perturbation=L2Ball(radius=1.0))
    strong_curve(*judged()[:3], settings, task=task, others=[], seed=0)
    assert asked["radii"] == [0.1, 1.0]
    assert asked["budget"] == {0.1: replace(effort, rounds=3), 1.0: effort}
    assert (asked["pairs"], asked["walk"]) == (0, 0)


def walked(history: list[list[float]]) -> AttackResult:
    """A made-up walk that was looked at after every second step."""
    kept = torch.tensor(history)
    count = kept.shape[1]
    return AttackResult(
        x=torch.zeros(count, 3),
        before=torch.zeros(count, 3),
        after=torch.zeros(count, 3),
        precision=kept[-1],
        history=kept,
        steps=2 * torch.arange(len(kept)),
        first_flip=torch.zeros(count, dtype=torch.long),
    )


def test_the_scatter_is_of_the_first_step_below() -> None:
    # P@k after 0, 2 and 4 steps: below 1 after 2, 4, 4 and 5 (never), below .8 after 2, 4, 5, 5.
    er = walked([[1.0, 1.0, 1.0, 1.0], [0.5, 1.0, 1.0, 1.0], [0.5, 0.6, 0.9, 1.0]])
    values = {
        name: torch.tensor([0.1, 0.4, 0.2, 0.9], dtype=torch.float64)
        for name in ("er_thickness", *module.CORRELATED)
    }
    for below, steps, never in ((1.0, (2, 4, 4, 5), 1 / 4), (0.8, (2, 4, 5, 5), 2 / 4)):
        found = scatter_of(er, values, below)
        assert found.first_flip == steps
        assert found.last_step == 4
        assert found.never_flipped == never
        expected = stats.spearmanr([0.1, 0.4, 0.2, 0.9], steps).statistic
        assert found.correlation["thickness"] == pytest.approx(expected)


def test_the_curve_reads_the_last_step_within_each_radius() -> None:
    # Steps of .1 looked at after 0, 2 and 4 of them: at .25 that of two steps, at .4 that of four.
    er = walked([[1.0, 1.0], [0.5, 1.0], [0.5, 0.0]])
    held = {each.name: torch.empty(0) for each in fields(Curve)}
    held["epsilons"] = torch.tensor([0.25, 0.4], dtype=torch.float64)
    held["precision"] = torch.tensor([[0.5, 1.0], [0.25, 0.0]])
    settings = replace(FEW, er=Walk(radius=0.4, step=0.1, steps=4))
    found = curve_of(er, Curve(**held), settings)
    assert found.er == pytest.approx((1.0, 0.75, 0.25))
    assert found.broken == (0.0, 0.5, 1.0)
    assert found.strong == pytest.approx((1.0, 0.75, 0.125))
    assert math.isclose(found.epsilon[-1], 0.4)
