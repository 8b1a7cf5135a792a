"""The structured network, against its formula, and what it promises of its gradient."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from attacking import attacker
from closed_form import numbers
from r2et.attacks.ensemble import EnsembleBudget
from r2et.core.autograd import piecewise_linear
from r2et.core.one_hot import NARROW
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import log_odds, predicted
from r2et.methods import METHODS, Method
from r2et.metrics.sensitivity import off_data_share
from r2et.models import MODELS
from r2et.models.additive import AdditiveNet, OneFeatureUnits
from r2et.models.smoothing import SoftLeaky, softened, with_softplus
from r2et.models.stack import by_network, in_turn, stacked
from r2et.training.checkpoint import load, save
from r2et.training.objective import Objective
from r2et.training.settings import FitSettings
from r2et.training.stacked import fit_grid
from r2et.training.trainer import fit
from refusals import refusal

FEATURES = 14
NUMERIC = (5, 0)
ONE_HOT = ((1, 2), (3, 4, 6), (10, 9, 8, 7), (11,))  # and 12, 13 neither
PAIR = (1, 2)
PLANS: dict[str, dict[str, Any]] = {
    "whole": {},
    "no numeric columns": {"numeric": ()},
    "no one-hot groups": {"one_hot": ()},
    "neither": {"numeric": (), "one_hot": ()},
    "one unit of each kind": {"curves": 1, "units": 1},
    "wide": {"inputs": NARROW + 5},
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
every_count = pytest.mark.parametrize("classes", [2, 3, 4])


def network(classes: int = 2, seed: int = 0, scale: float = 3.0, **plan: Any) -> AdditiveNet:
    """Weights large enough that units bend within the inputs met here."""
    plan = {"inputs": FEATURES, "numeric": NUMERIC, "one_hot": ONE_HOT} | plan
    built = (
        MODELS["structured"].build(classes=classes, generator=stream(seed, "test"), **plan).double()
    )
    assert isinstance(built, AdditiveNet)
    with torch.no_grad():
        for weight in built.parameters():
            weight *= scale
    return built


def inputs(model: AdditiveNet, count: int = 7, seed: int = 1) -> Tensor:
    return numbers(count, model.linear.in_features, seed=seed)


def real_rows(count: int, seed: int = 0) -> Tensor:
    """Rows that data can have: one column of each group is 1, its others 0."""
    x = numbers(count, FEATURES, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for group in ONE_HOT:
        chosen = torch.randint(len(group), (count,), generator=generator)
        x[:, list(group)] = torch.eye(len(group), dtype=torch.float64)[chosen]
    return x


def kinks(model: nn.Module) -> int:
    return sum(isinstance(part, nn.ReLU | nn.LeakyReLU) for part in model.modules())


# --- the formula ---


def slow_scores(model: AdditiveNet, row: Sequence[float]) -> list[float]:
    """s(x) = A Px + sum_i c_i(x_i) + V softplus(W Px + b; rho) of one example, in loops."""
    centred = list(row)
    for group in model.one_hot:
        mean = sum(row[column] for column in group) / len(group)
        for column in group:
            centred[column] = row[column] - mean

    def affine(layer: nn.Linear, values: Sequence[float]) -> list[float]:
        weight, bias = layer.weight.tolist(), layer.bias.tolist()
        return [
            sum(w * v for w, v in zip(line, values, strict=True)) + b
            for line, b in zip(weight, bias, strict=True)
        ]

    scores = affine(model.linear, centred)
    if model.curves is not None:
        units, _, heights = model.curves
        bent = []
        for place, column in enumerate(model.numeric):
            slopes, shifts = units.weight[place].tolist(), units.bias[place].tolist()  # type: ignore[index]
            for w, b in zip(slopes, shifts, strict=True):
                z = w * row[column] + b
                bent.append(z if z > 0 else 0.01 * z)
        scores = [s + c for s, c in zip(scores, affine(heights, bent), strict=True)]  # type: ignore[arg-type]
    rho = model.bend.beta
    smooth = [math.log1p(math.exp(rho * z)) / rho for z in affine(model.mixing, centred)]
    return [s + m for s, m in zip(scores, affine(model.share, smooth), strict=True)]


@every_plan
@every_count
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_the_logits_match_their_formula(plan: Any, classes: int, sharpness: float) -> None:
    model = network(classes, sharpness=sharpness, **plan)
    x = inputs(model)
    slow = torch.tensor([slow_scores(model, row) for row in x.tolist()], dtype=torch.float64)
    # Of two classes there is one score, their log-odds.
    expected = torch.cat([-slow / 2, slow / 2], dim=-1) if classes == 2 else slow
    # torch's softplus is the identity where rho z > 20, short of e^-20 / rho.
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("networks", [(), (3,)])
def test_units_see_one_feature_each(networks: tuple[int, ...]) -> None:
    units = OneFeatureUnits(4, 5)
    units.weight = nn.Parameter(numbers(*networks, 4, 5, seed=1))
    units.bias = nn.Parameter(numbers(*networks, 4, 5, seed=2))
    x = numbers(*networks, 6, 4, seed=3)
    found = units(x.flatten(0, -2)).view(*networks, 6, 20)
    for place in torch.cartesian_prod(*map(torch.arange, (*networks, 6, 4, 5))).tolist():
        *which, row, feature, unit = place
        w, b = units.weight[(*which, feature, unit)], units.bias[(*which, feature, unit)]
        expected = w * x[(*which, row, feature)] + b
        assert found[(*which, row, feature * 5 + unit)].item() == pytest.approx(expected.item())
    torch.testing.assert_close(units(x), found)
    assert "4 x 5" in repr(units)


def test_the_network_is_drawn_as_it_says() -> None:
    model = network(scale=1.0, curves=200, units=150)
    units = model.curves[0] if model.curves is not None else None
    assert isinstance(units, OneFeatureUnits)
    for values, bound in ((units.weight, 2.0), (units.bias, 1.0), (model.share.weight, 150**-0.5)):
        assert values.abs().max() <= bound
        assert values.abs().max() > 0.95 * bound
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.12)


# --- its gradient ---


def by_autograd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    at = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(log_odds(model(at), y).sum(), at, create_graph=True)
    return found


@every_plan
@every_count
def test_the_slope_is_the_gradient(plan: Any, classes: int) -> None:
    built = network(classes, **plan)
    changed = [softened(built, 4.0), with_softplus(built, 2.0)] if built.numeric else []
    x = inputs(built)
    for model in (built, *changed):
        assert isinstance(model, AdditiveNet)
        weights = list(model.parameters())
        for y in (model(x).argmax(-1), torch.arange(len(x)) % classes):
            expected, found = by_autograd(model, x, y), model.log_odds_gradient(x, y)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-7)
            # And so is its own gradient, by every weight.
            ours, theirs = (
                torch.autograd.grad(
                    (numbers(*x.shape, seed=9) * each).sum(),
                    weights,
                    allow_unused=True,
                    materialize_grads=True,
                )
                for each in (found, expected)
            )
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
            assert sum(bool(mine.abs().sum() > 0) for mine in ours) >= 4


@pytest.mark.parametrize("classes", [2, 3])
def test_the_slope_can_be_attacked(classes: int) -> None:
    model, y = network(classes, scale=1.5), torch.tensor([0, 1, 1])
    x = inputs(model, 3).requires_grad_()
    assert gradcheck(lambda at: model.log_odds_gradient(at, y), x)


def test_the_slope_follows_its_caller() -> None:
    model, y = network(), torch.zeros(7, dtype=torch.long)
    x = inputs(model)
    recorded = model.log_odds_gradient(x, y)
    assert recorded.requires_grad
    with torch.no_grad():
        plain = model.log_odds_gradient(x, y)
    assert not plain.requires_grad
    assert torch.equal(plain, recorded)
    assert model.float().log_odds_gradient(x.float(), y).dtype == torch.float32


@every_count
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_has_no_part_in_one_hot_directions(classes: int, dtype: torch.dtype) -> None:
    model = network(classes).to(dtype)
    x = inputs(model, 200).to(dtype)
    y = torch.arange(200) % classes
    for slope in (by_autograd(model, x, y).detach(), model.log_odds_gradient(x, y).detach()):
        assert off_data_share(slope, ONE_HOT).max() < 50 * torch.finfo(dtype).eps ** 2
        first, second = PAIR
        assert torch.equal(slope[:, first], -slope[:, second])
        assert (slope[:, first] != 0).all()
        assert torch.equal(slope[:, 11], torch.zeros_like(slope[:, 11]))
    # By weights alone it would have.
    assert off_data_share(model.linear.weight.detach(), ONE_HOT).min() > 0.01


@pytest.mark.parametrize("size", range(1, 14))
def test_groups_of_every_size_leave_no_part(size: int) -> None:
    model = network(one_hot=[range(1, 1 + size)], numeric=(0,))
    x = inputs(model, 50)
    slope = model.log_odds_gradient(x, predicted(model, x)).detach()
    assert off_data_share(slope, [range(1, 1 + size)]).max() < 1e-30


def test_a_wide_network_has_no_part_but_rounding() -> None:
    model = network(inputs=NARROW + 5)
    x = inputs(model, 50)
    slope = model.log_odds_gradient(x, predicted(model, x)).detach()
    assert off_data_share(slope, ONE_HOT).max() < 1e-30
    torch.testing.assert_close(slope[:, 1], -slope[:, 2], rtol=1e-12, atol=1e-14)


@every_count
def test_the_projection_changes_nothing_on_real_rows(classes: int) -> None:
    # Px = x - e on real rows, e = 1 / m on the columns of a group of m: A Px + a = A x + (a - A e).
    model, plain = network(classes), network(classes, one_hot=())
    shift = torch.zeros(FEATURES, dtype=torch.float64)
    for group in ONE_HOT:
        shift[list(group)] = 1 / len(group)
    with torch.no_grad():
        for layer in (plain.linear, plain.mixing):
            layer.bias -= layer.weight @ shift
    x = real_rows(40)
    torch.testing.assert_close(model(x), plain(x))
    # Where no data can be, it does change something.
    off = x + numbers(40, FEATURES, seed=4)
    assert (model(off) - plain(off)).abs().min() > 1e-3


# --- how far it can turn ---


def slow_variation(model: AdditiveNet) -> float:
    weight, share = model.mixing.weight.tolist(), model.share.weight.tolist()
    total = 0.0
    for u, line in enumerate(weight):
        centred = list(line)
        for group in model.one_hot:
            for column in group:
                centred[column] = line[column] - sum(line[other] for other in group) / len(group)
        own = [each[u] for each in share]
        reach = abs(own[0]) if len(own) == 1 else max(abs(a - b) for a in own for b in own)
        total += sum(abs(w) for w in centred) * reach
    return total


@every_plan
@every_count
def test_the_variation_matches_its_definition(plan: Any, classes: int) -> None:
    model = network(classes, **plan)
    assert model.variation().shape == ()
    assert model.variation().item() == pytest.approx(slow_variation(model))

    def of_weights(mixing: Tensor, share: Tensor) -> Tensor:
        twin = copy.deepcopy(model)
        del twin.mixing.weight, twin.share.weight
        twin.mixing.weight, twin.share.weight = mixing, share
        return twin.variation()

    if "inputs" not in plan:
        weights = [model.mixing.weight, model.share.weight]
        assert gradcheck(of_weights, [each.detach().requires_grad_() for each in weights])


def differences(model: nn.Module, x: Tensor) -> dict[tuple[int, int], Tensor]:
    """Gradient of the difference of any two logits."""
    at = x if x.requires_grad else x.detach().requires_grad_()
    logits = model(at)
    count = logits.shape[1]
    return {
        (a, b): torch.autograd.grad(
            (logits[:, a] - logits[:, b]).sum(), at, create_graph=True, retain_graph=True
        )[0]
        for a in range(count)
        for b in range(a)
    }


def attacked(turn: Callable[[Tensor], Tensor], x: Tensor, steps: int = 40) -> Tensor:
    """Inputs to which a gradient is turned far, by steps up its change."""
    moved = x + 0.1 * numbers(*x.shape, seed=8)
    for _ in range(steps):
        at = moved.detach().requires_grad_()
        (uphill,) = torch.autograd.grad(turn(at).sum(), at)
        moved = at.detach() + 0.5 * uphill / uphill.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return moved


@every_count
@pytest.mark.parametrize("numeric", [NUMERIC, ()], ids=["curves", "no curves"])
def test_no_change_of_x_turns_the_gradient_further(classes: int, numeric: tuple[int, ...]) -> None:
    # The curves turn their own entries only; all others are the smooth units' to turn.
    model = network(classes, numeric=numeric, scale=2.0)
    others = [column for column in range(FEATURES) if column not in numeric]
    bound = model.variation().item()
    x = inputs(model, 20)
    before = {pair: slope.detach() for pair, slope in differences(model, x).items()}
    farthest = 0.0
    for pair, slope in before.items():

        def turn(at: Tensor, slope: Tensor = slope, pair: tuple[int, int] = pair) -> Tensor:
            return (differences(model, at)[pair] - slope)[:, others].abs().sum(-1)

        tried = [x + 10.0**power * numbers(20, FEATURES, seed=power + 9) for power in range(-2, 4)]
        for moved in (*tried, attacked(turn, x)):
            change = turn(moved)
            assert (change <= bound * (1 + 1e-9)).all()
            farthest = max(farthest, change.max().item())
    assert farthest > 0.3 * bound


@every_count
def test_the_variation_is_attained(classes: int) -> None:
    # One unit, switched off at one end of its own direction and on at the other: of the two
    # classes whose weights differ most the gradient turns by all of it.
    model = network(classes, units=1, numeric=())
    nn.init.zeros_(model.linear.weight)
    direction = next(iter(differences(model, inputs(model, 1)).values())).detach()
    ends = torch.cat([-1e3 * direction, 1e3 * direction]) / direction.norm()
    turned = [
        (slope[0] - slope[1]).abs().sum().item() for slope in differences(model, ends).values()
    ]
    assert max(turned) == pytest.approx(model.variation().item())


def test_curves_turn_their_own_entries_only() -> None:
    model, x = network(), inputs(network(), 30)
    y = torch.ones(30, dtype=torch.long)
    nn.init.zeros_(model.share.weight)
    slope = model.log_odds_gradient(x, y).detach()
    fixed = [column for column in range(FEATURES) if column not in NUMERIC]
    assert model.variation() == 0
    torch.testing.assert_close(slope[:, fixed], slope[:1, fixed].expand(30, -1))
    assert (slope[:, list(NUMERIC)].std(0) > 0.1).all()
    # Each entry depends on its own feature: a change of all others leaves it.
    for column in NUMERIC:
        moved = inputs(model, 30, seed=6)
        moved[:, column] = x[:, column]
        torch.testing.assert_close(model.log_odds_gradient(moved, y)[:, column], slope[:, column])


# --- refusals ---


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"classes": 1}, "two or more classes apart, got 1"),
        ({"numeric": (0, 14)}, "among 0..13, got 0..14"),
        ({"numeric": (-1, 3)}, "among 0..13, got -1..3"),
        ({"numeric": (0, 0)}, "named once each, got [0, 0]"),
        ({"numeric": (0, 2)}, "but [2] are both"),
        ({"one_hot": ((1, 14),)}, "columns 0..13, got 1..14"),
        ({"one_hot": ((1, 2), (2, 3))}, "column 2 is named 2 times"),
        ({"one_hot": ((1, 2), ())}, "group 1 is empty"),
        ({"curves": 0}, "got 0, 8 and 3.0"),
        ({"units": 0}, "got 8, 0 and 3.0"),
        ({"sharpness": 0.0}, "got 8, 8 and 0.0"),
        ({"sharpness": math.inf}, "got 8, 8 and inf"),
    ],
    ids=str,
)
def test_plans_without_a_meaning_are_refused(plan: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: network(**plan))


# --- what the rest of the package makes of it ---


def test_its_plan_and_weights_are_stored(tmp_path: Path) -> None:
    plan = {"inputs": FEATURES, "classes": 3, "numeric": [0, 5], "one_hot": [[1, 2], [3, 4]]}
    model = network(**plan)
    recipe = {"model": {"name": "structured", **plan}}
    again, told = load(save(tmp_path / "model.safetensors", model, recipe))
    assert told == recipe
    assert isinstance(again, AdditiveNet)
    assert torch.equal(again(inputs(model)), model(inputs(model)))
    other = network(inputs=FEATURES, numeric=(0,))
    assert "another architecture" in refusal(lambda: load(tmp_path / "model.safetensors", other))


def test_its_kinks_can_be_rounded_and_it_is_not_piecewise_linear() -> None:
    model, x = network(), inputs(network(), 50)
    smooth = softened(model, 1000.0)
    assert isinstance(smooth, AdditiveNet)
    assert (kinks(model), kinks(smooth)) == (1, 0)
    assert sum(isinstance(part, SoftLeaky) for part in smooth.modules()) == 1
    assert 0 < (smooth(x) - model(x)).abs().max() < 0.05
    assert softened(network(numeric=()), 4.0) is None
    for each in (model, smooth, network(numeric=())):
        assert not piecewise_linear(each)
    assert piecewise_linear(nn.Sequential(OneFeatureUnits(2, 3), nn.LeakyReLU()))


def test_the_strong_attack_can_aim_at_it() -> None:
    model, x = network(), inputs(network(), 12)
    y = predicted(model, x)
    effort = EnsembleBudget(rounds=2, starts=4, steps=6, points=20, moves=6, pairs=3)
    found = attacker("strong", k=4, radius=1.0, budget=effort)(model, x, y)
    assert torch.equal(predicted(model, found.x), y)
    assert ((found.x - x).norm(dim=-1) <= 1.0).all()
    assert found.precision.mean() < 1


# --- stacks ---


@every_count
@every_plan
def test_a_stack_answers_as_each_network(plan: Any, classes: int) -> None:
    models = [network(classes, seed, **plan) for seed in range(3)]
    stack = stacked(models)
    assert isinstance(stack, AdditiveNet)
    x = torch.stack([inputs(models[0], 5, seed=seed) for seed in range(3)])
    y = torch.arange(15).view(3, 5) % classes
    logits = by_network(stack(in_turn(x)), 3)
    slopes = by_network(stack.log_odds_gradient(in_turn(x), in_turn(y)), 3)
    for g, model in enumerate(models):
        torch.testing.assert_close(logits[g], model(x[g]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            slopes[g], model.log_odds_gradient(x[g], y[g]), rtol=1e-9, atol=1e-11
        )
    alone = torch.stack([model.variation() for model in models])
    torch.testing.assert_close(stack.variation(), alone)
    first, second = PAIR
    if plan.get("one_hot", ONE_HOT) and "inputs" not in plan:
        assert torch.equal(slopes[..., first], -slopes[..., second])


def test_networks_of_other_columns_are_not_stacked() -> None:
    differing = [network(), network(numeric=(0, 5)), network(one_hot=ONE_HOT[:2])]
    for other in differing[1:]:
        assert "differs from network 0 in itself" in refusal(
            lambda other=other: stacked([network(), other])
        )


STEADFAST: dict[str, Method] = {
    name: partial(METHODS[name].build, k=5)(thickness=0.4, variation=0.01)
    for name in ("steadfast", "steadfast-quick")
}
every_method = pytest.mark.parametrize("method", STEADFAST.values(), ids=STEADFAST)


@every_method
@every_count
def test_the_loss_of_a_stack_is_that_of_each_network(method: Method, classes: int) -> None:
    models = [network(classes, seed) for seed in range(3)]
    x, noise = numbers(3, 8, FEATURES, seed=5), numbers(3, 8, FEATURES, seed=6)
    y = torch.arange(24).view(3, 8) % classes
    stack = stacked(models)
    together = Objective(stack, method, draw=lambda like: in_turn(noise))
    parts = together.parts_of(in_turn(x), in_turn(y))
    together(in_turn(x), in_turn(y)).backward()
    for g, model in enumerate(models):
        alone = Objective(model, method, draw=lambda like, g=g: noise[g])
        for name, part in alone.parts_of(x[g], y[g]).items():
            torch.testing.assert_close(by_network(parts[name], 3)[g], part, rtol=1e-9, atol=1e-11)
        alone(x[g], y[g]).backward()
        for mine, whole in zip(model.parameters(), stack.parameters(), strict=True):
            assert mine.grad is not None
            assert whole.grad is not None
            torch.testing.assert_close(3 * whole.grad[g], mine.grad, rtol=1e-8, atol=1e-10)


def labelled(count: int, seed: int) -> Part:
    x = real_rows(count, seed)
    side = x @ numbers(FEATURES, seed=1000) + numbers(count, seed=seed + 1)
    return Part(rows=torch.arange(count), x=x, y=(side > 0).long())


@every_method
def test_a_grid_ends_at_the_weights_of_fit(method: Method) -> None:
    settings = FitSettings(epochs=3, batch=16)
    seeds, lambdas = [0, 1, 0], [0.1, 0.4, 0.4]
    trains, valids = [labelled(50, 3), labelled(50, 4)], [labelled(40, 5), labelled(40, 6)]
    models = [network(seed=g, scale=1.0) for g in range(3)]
    found = fit_grid(
        models,
        [trains[seed] for seed in seeds],
        [valids[seed] for seed in seeds],
        method,
        settings,
        seeds=seeds,
        weights={"margin": lambdas},
        device="cpu",
    )
    for g, each in enumerate(found):
        (name, _, negative_margin), variation = method.penalties
        own = replace(method, penalties=((name, lambdas[g], negative_margin), variation))
        alone, history = fit(
            copy.deepcopy(models[g]),
            trains[seeds[g]],
            valids[seeds[g]],
            own,
            replace(settings, seed=seeds[g]),
        )
        assert each.problem is None
        for mine, other in zip(each.history, history, strict=True):
            assert mine.parts == pytest.approx(other.parts, abs=1e-9)
        for (which, value), other in zip(
            each.model.state_dict().items(), alone.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(
                value, other, rtol=0, atol=1e-9, msg=lambda text, which=which: f"{which}: {text}"
            )
            assert not torch.equal(value, models[g].state_dict()[which])


def test_a_stack_of_another_size_is_no_reference() -> None:
    # Its slopes are written out, but its rows take turns as those of its logits do.
    models, rows = [network(seed=g) for g in range(4)], labelled(30, 3)
    method = METHODS["steadfast"].build(k=5, reference=stacked(models))
    message = refusal(
        lambda: fit_grid(
            models,
            [rows] * 4,
            [rows] * 4,
            method,
            FitSettings(epochs=1),
            seeds=range(4),
            device="cpu",
            at_once=2,
        )
    )
    assert "a stack of 2 networks holds a stack of 4" in message


@every_method
def test_others_go_on_when_a_network_diverges(method: Method) -> None:
    models, rows = [network(seed=g, scale=1.0) for g in range(3)], labelled(50, 3)
    nn.init.constant_(models[1].linear.weight, 10.0)
    far = replace(rows, x=rows.x.clone())
    far.x[40, 12] = 1e308
    settings = FitSettings(epochs=2, batch=16)
    trains, valids = [rows, far, rows], [rows] * 3
    found = fit_grid(models, trains, valids, method, settings, seeds=[0, 0, 0], device="cpu")
    assert [each.problem is None for each in found] == [True, False, True]
    assert "NaN or infinite" in str(found[1].problem)
    for g in (0, 2):
        alone, _ = fit(copy.deepcopy(models[g]), rows, rows, method, settings)
        for value, other in zip(found[g].model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(value, other, rtol=0, atol=1e-9)
