"""Our own method, against slow transcriptions of its definition."""

import copy
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closed_form import Largest, numbers, tiny_mlp
from r2et.core.autograd import piecewise_linear
from r2et.core.ranking import top_margin
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import gradient, predicted
from r2et.methods import METHODS, BatchContext, Method, mean_margin, steadfast, unit_length
from r2et.models import MODELS
from r2et.models.additive import AdditiveNet
from r2et.perturbations import L2Ball
from r2et.training.objective import Objective
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit
from refusals import refusal

# The package's name of the function hides the module of the same name.
module = import_module("r2et.methods.steadfast_loss")

FEATURES, K = 9, 4
PLAN: dict[str, Any] = {"numeric": [0, 4], "one_hot": [[1, 2], [3, 5, 6]]}


def network(classes: int = 2, seed: int = 0, scale: float = 2.0, **plan: Any) -> AdditiveNet:
    built = (
        MODELS["structured"]
        .build(FEATURES, classes, **(PLAN | plan), generator=stream(seed, "test"))
        .double()
    )
    assert isinstance(built, AdditiveNet)
    with torch.no_grad():
        for weight in built.parameters():
            weight *= scale
    return built


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "structured": network,
    "structured, three classes": lambda: network(3),
    "tanh": lambda: tiny_mlp(FEATURES),
    "leaky": lambda: tiny_mlp(FEATURES, activation=nn.LeakyReLU, seed=5),
    "leaky, three classes": lambda: tiny_mlp(FEATURES, classes=3, activation=nn.LeakyReLU),
}
every_network = pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
every_count_of_steps = pytest.mark.parametrize("steps", [0, 2])


def inputs(count: int = 6, seed: int = 1) -> Tensor:
    return numbers(count, FEATURES, seed=seed)


def negative_margin(
    model: nn.Module, x: Tensor, draw: Any = torch.cos, k: int = K, **settings: Any
) -> Tensor:
    """The penalty of each example: (B,)."""
    method = steadfast(k=k, thickness=1.0, variation=0.0, **settings)
    ((name, weight, penalty),) = method.penalties
    assert (name, weight) == ("margin", 1.0)
    return penalty(BatchContext(model, x, draw=draw))


def slow_slope(model: nn.Module, one: Tensor, c: int) -> list[float]:
    """Gradient of the predicted probability of one example."""
    at = one.detach().requires_grad_()
    (found,) = torch.autograd.grad(model(at[None]).softmax(-1)[0, c], at)
    return [float(each) for each in found.flatten()]


def slow_ranking(slope: list[float]) -> list[int]:
    return sorted(range(len(slope)), key=lambda i: -abs(slope[i]))


def normalised(slope: list[float]) -> list[float]:
    length = math.sqrt(sum(each * each for each in slope))
    return [abs(each) / length for each in slope]


def slow_negative_margin(
    model: nn.Module, one: Tensor, there: Tensor, ranker: nn.Module, k: int, room: float
) -> float:
    """- mean_i min(h(x', k-i+1, k+i), r / sqrt(n)), features counted from 1 by the rank at x."""
    c = int(model(one[None]).argmax())
    rank = slow_ranking(slow_slope(ranker, one, c))
    values = normalised(slow_slope(model, there, c))
    n = len(values)
    pairs = [(rank[k - i], rank[k + i - 1]) for i in range(1, min(k, n - k) + 1)]
    gaps = [min(values[a] - values[b], room / math.sqrt(n)) for a, b in pairs]
    return -sum(gaps) / len(gaps)


# --- the penalty ---


@every_network
@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("room", [0.25, 10.0])
def test_the_penalty_matches_its_definition(
    build: Callable[[], nn.Module], k: int, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = build(), inputs()
    there = x + 0.3 * inputs(seed=2)
    found = {0: negative_margin(model, x, k=k, steps=0, room=room)}
    monkeypatch.setattr(module, "neighbour", lambda *given, **settings: there.clone())
    found[2] = negative_margin(model, x, k=k, steps=2, room=room)
    for steps, places in ((0, x), (2, there)):
        for value, one, place in zip(found[steps], x, places, strict=True):
            slow = slow_negative_margin(model, one, place, model, k, room)
            assert value.item() == pytest.approx(slow, abs=1e-9)


@every_network
@every_count_of_steps
def test_a_reference_sets_the_ranking(
    build: Callable[[], nn.Module], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = build(), inputs()
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for weight in reference.parameters():
            weight += numbers(*weight.shape, seed=7)
    there = x + 0.3 * inputs(seed=2)
    own = negative_margin(model, x, steps=0)
    method = steadfast(k=K, variation=0.0, steps=steps, reference=reference)
    kept = copy.deepcopy(reference)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.zero_()  # what is kept is the ranking of the reference as it was given
    monkeypatch.setattr(module, "neighbour", lambda *given, **settings: there.clone())
    found = method.penalties[0][2](BatchContext(model, x))
    for value, one, place in zip(found, x, there if steps else x, strict=True):
        slow = slow_negative_margin(model, one, place, kept, K, 0.25)
        assert value.item() == pytest.approx(slow, abs=1e-9)
    assert (found - own).abs().max() > 0.01
    assert all(weight.grad is None for weight in reference.parameters())


def test_without_a_cap_the_gaps_are_the_facing_ones() -> None:
    model, x = network(), inputs()
    saliency = gradient(model, x, predicted(model, x))
    expected = mean_margin(saliency, saliency, K, pairs="facing", gap="normalised")
    torch.testing.assert_close(negative_margin(model, x, steps=0, room=1e3), -expected)


def test_pairs_with_room_enough_give_no_gradient() -> None:
    # One pair alone faces another at place 8 of 9: no slopes once its gap is as wide as the room.
    model, x = network(one_hot=[[3, 5, 6]]), inputs()
    weights = list(model.parameters())
    wide = -negative_margin(model, x, k=8, steps=0, room=1e3) * math.sqrt(FEATURES)
    for one, gap in zip(x[:, None], wide.tolist(), strict=True):
        sizes = []
        for room in (0.999 * gap, 1.001 * gap):
            value = negative_margin(model, one, k=8, steps=0, room=room)
            found = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
            sizes.append(sum(each.abs().sum().item() for each in found))
        assert sizes[0] == 0
        assert sizes[1] > 1e-3


@every_network
@every_count_of_steps
def test_the_weight_gradient_is_that_of_finite_differences(
    build: Callable[[], nn.Module], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = build(), inputs()
    y = torch.arange(len(x)) % 2
    if steps:
        there = x + 0.3 * inputs(seed=2)
        monkeypatch.setattr(module, "neighbour", lambda *given, **settings: there.clone())
    variation = 0.05 if isinstance(model, AdditiveNet) else 0.0
    objective = Objective(model, steadfast(k=K, thickness=0.7, variation=variation, steps=steps))
    objective(x, y).backward()
    for number, (name, weight) in enumerate(model.named_parameters()):
        direction = numbers(*weight.shape, seed=number)
        values = []
        for move in (-1e-6, 2e-6, -1e-6):
            with torch.no_grad():
                weight += move * direction
            values.append(objective(x, y).item())
        assert weight.grad is not None
        slope = (weight.grad * direction).sum().item()
        assert slope == pytest.approx((values[1] - values[0]) / 2e-6, rel=1e-4, abs=1e-7), name


@every_network
def test_the_neighbour_is_a_constant_in_the_gradient(
    build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = build(), inputs().requires_grad_()
    weights = list(model.parameters())
    found: list[Tensor] = []
    true = module.neighbour

    def spied(*given: Any, **settings: Any) -> Tensor:
        found.append(true(*given, **settings))
        assert not found[-1].requires_grad
        return found[-1].clone()

    def slopes() -> tuple[Tensor, ...]:
        value = negative_margin(model, x).sum()
        (by_x,) = torch.autograd.grad(value, x, retain_graph=True, allow_unused=True)
        assert by_x is None
        return torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)

    monkeypatch.setattr(module, "neighbour", spied)
    free = slopes()
    monkeypatch.setattr(module, "neighbour", lambda *given, **settings: found[0].clone())
    for one, other in zip(free, slopes(), strict=True):
        assert torch.equal(one, other)
    assert (found[0] - x).norm(dim=-1).max() > 0.5


@every_count_of_steps
def test_without_recording_the_values_are_the_same(steps: int) -> None:
    for build in NETWORKS.values():
        model, x = build(), inputs()
        method = steadfast(k=K, variation=0.0, steps=steps)
        objective = Objective(model, method, draw=torch.cos)
        recorded = objective.parts(x, torch.zeros(6, dtype=torch.long))
        with torch.no_grad():
            plain = objective.parts(x, torch.zeros(6, dtype=torch.long))
        torch.testing.assert_close(plain.parts, recorded.parts)
        assert recorded.parts["margin"] != 0
        assert not plain.total.requires_grad


def test_pairs_are_never_formed() -> None:
    # 4 x 500 x 9,500 pairs would be 19 million numbers.
    plan = {"numeric": [0], "one_hot": [[1, 2]], "curves": 1, "units": 1}
    model = MODELS["structured"].build(10_000, **plan, generator=stream(0, "test"))
    x = torch.rand(4, 10_000, generator=stream(0, "x"))
    with Largest() as largest:
        Objective(model, steadfast(k=500))(x, torch.tensor([0, 1, 0, 1])).backward()
    assert largest.numel <= 4 * x.numel()


# --- the neighbour ---


def slow_neighbour(
    model: nn.Module, one: Tensor, noise: Tensor, k: int, radius: float, steps: int
) -> Tensor:
    """The neighbour of one example: down the lead, and back as long as the class has changed."""
    c = int(model(one[None]).argmax())
    rank = slow_ranking(slow_slope(model, one, c))
    place = one + radius * noise / noise.norm()
    for step in range(steps):
        at = place.detach().requires_grad_()
        logits = model(at[None])[0]
        others = [logits[i] for i in range(len(logits)) if i != c]
        odds = logits[c] - torch.stack(others).logsumexp(-1)
        (slope,) = torch.autograd.grad(odds, at, create_graph=True)
        sizes = (slope / slope.norm()).flatten().abs()
        top, rest = [sizes[i] for i in rank[:k]], [sizes[i] for i in rank[k:]]
        gap = sum(a - b for a in top for b in rest) / (len(top) * len(rest))
        (uphill,) = torch.autograd.grad(gap, at)
        length = radius * 0.6 * 0.6**step
        place = place - (length * uphill / uphill.norm() if uphill.norm() > 0 else 0)
        far = (place - one).norm()
        if far > radius:
            place = one + radius * (place - one) / far
    for share in (1, 1 / 2, 1 / 4, 1 / 8):
        back = one + share * (place - one)
        if int(model(back[None]).argmax()) == c:
            return back.detach()
    return one


def near_the_boundary(model: nn.Module, count: int) -> Tensor:
    """Those of many inputs whose two largest logits differ least."""
    x = inputs(20 * count, seed=3)
    best = model(x).topk(2, dim=-1).values
    return x[(best[:, 0] - best[:, 1]).argsort()[:count]].detach()


def found_neighbour(
    model: nn.Module, x: Tensor, noise: Tensor, radius: float = 1.0, steps: int = 2
) -> Tensor:
    batch = BatchContext(model, x, draw=lambda like: noise)
    kept = gradient(model, x, batch.y).detach()

    def margins(at: Tensor) -> Tensor:
        return mean_margin(module.odds_saliency(model, at, batch.y), kept, K, gap="normalised")

    found: Tensor = module.neighbour(batch, margins, L2Ball(radius=radius), steps)
    return found


@every_network
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("radius", [0.3, 1.0])
def test_the_neighbour_matches_its_definition(
    build: Callable[[], nn.Module], steps: int, radius: float
) -> None:
    model = build()
    x = torch.cat([inputs(), near_the_boundary(model, 10)])
    noise = numbers(*x.shape, seed=4)
    found = found_neighbour(model, x, noise, radius, steps)
    slow = [slow_neighbour(model, *each, K, radius, steps) for each in zip(x, noise, strict=True)]
    torch.testing.assert_close(found, torch.stack(slow), rtol=0, atol=1e-7)
    # Some were let go the whole way and others called back.
    far = (found - x).norm(dim=-1)
    assert far.max() > 0.9 * radius
    assert far.min() < 0.6 * radius


@every_network
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_neighbour_is_near_and_keeps_the_answer(
    build: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    model = build()
    x = torch.cat([inputs(100), near_the_boundary(model, 50)]).to(dtype)
    model = model.to(dtype)
    noise = numbers(*x.shape, seed=4).to(dtype)
    y = predicted(model, x)
    found = found_neighbour(model, x, noise, radius=0.7)
    assert found.dtype == dtype
    assert ((found - x).norm(dim=-1) <= 0.7).all()
    assert torch.equal(predicted(model, found), y)

    def margins(places: Tensor) -> Tensor:
        with torch.no_grad():
            before, there = gradient(model, x, y), gradient(model, places, y)
        return top_margin(unit_length(there), before, K)

    start = found_neighbour(model, x, noise, radius=0.7, steps=0)
    assert margins(found).mean() < margins(x).mean() - 0.01
    if piecewise_linear(model) and len(model(x)[0]) == 2:
        # Between kinks nothing turns the gradient: there is no way down, and rounding is none.
        torch.testing.assert_close(found, start)
    else:
        assert margins(found).mean() < margins(start).mean() - 0.003


@every_count_of_steps
def test_without_steps_nothing_is_drawn(steps: int) -> None:
    draws: list[Tensor] = []

    def draw(x: Tensor) -> Tensor:
        draws.append(x)
        return torch.cos(x)

    negative_margin(network(), inputs(), draw, steps=steps)
    assert len(draws) == min(steps, 1)


@every_network
@every_count_of_steps
def test_an_example_is_penalised_alone(build: Callable[[], nn.Module], steps: int) -> None:
    model = build()
    x = torch.cat([inputs(), near_the_boundary(model, 5)])
    together = negative_margin(model, x, steps=steps)
    alone = [negative_margin(model, each[None], steps=steps) for each in x]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-10)


# --- where numbers end ---


def parts_and_slopes(model: nn.Module, x: Tensor, method: Method) -> tuple[Any, list[Tensor]]:
    loss = Objective(model, method, draw=torch.cos).parts(x, torch.arange(len(x)) % 2)
    return loss.parts, list(torch.autograd.grad(loss.total, list(model.parameters())))


@every_count_of_steps
def test_a_network_of_zeros_has_finite_slopes(steps: int) -> None:
    for build in NETWORKS.values():
        model, x = build(), inputs()
        for weight in model.parameters():
            nn.init.zeros_(weight)
        method = steadfast(k=K, steps=steps, variation=1e-4 * isinstance(model, AdditiveNet))
        parts, slopes = parts_and_slopes(model, x, method)
        assert parts["margin"] == 0
        assert all(slope.isfinite().all() for slope in slopes)


@every_count_of_steps
@pytest.mark.parametrize("scale", [1e3, 1e10])
def test_sure_networks_are_ranked_and_trained_as_others(steps: int, scale: float) -> None:
    # Scores times a factor leave the direction of the gradient, and every prediction, as they are.
    model, x = network().float(), inputs().float()
    sure = copy.deepcopy(model)
    assert sure.curves is not None
    with torch.no_grad():
        for layer in (sure.linear, sure.curves[2], sure.share):
            for weight in layer.parameters():
                weight *= scale
    method = steadfast(k=K, steps=steps)
    plain, _ = parts_and_slopes(model, x, method)
    parts, slopes = parts_and_slopes(sure, x, method)
    assert parts["margin"].item() == pytest.approx(plain["margin"].item(), rel=1e-4)
    assert all(slope.isfinite().all() for slope in slopes)
    value = negative_margin(sure, x, steps=steps).sum()
    own = torch.autograd.grad(value, list(sure.parameters()), allow_unused=True)
    assert sum(each.abs().sum().item() for each in own if each is not None) > 0


@every_count_of_steps
def test_saturated_networks_of_other_kinds_have_finite_slopes(steps: int) -> None:
    model, x = tiny_mlp(FEATURES).float(), inputs().float()
    nn.init.constant_(model[2].weight, 0.5)
    with torch.no_grad():
        model[2].weight[1] += 200 * torch.arange(5)
        model[2].weight[0] -= 200
    assert model(x).diff(dim=-1).abs().max() > 200
    parts, slopes = parts_and_slopes(model, x, steadfast(k=K, steps=steps, variation=0.0))
    assert parts["margin"] < 0
    assert all(slope.isfinite().all() for slope in slopes)


# --- variation, settings, entries ---


def test_the_variation_is_one_number_for_all_rows() -> None:
    model, x = network(3), inputs()
    ((name, weight, penalty),) = steadfast(k=K, thickness=0.0, variation=0.3).penalties
    assert (name, weight) == ("variation", 0.3)
    torch.testing.assert_close(penalty(BatchContext(model, x)), model.variation().expand(6))


def test_only_a_structured_network_has_a_variation() -> None:
    for model in (tiny_mlp(FEATURES), nn.Sequential(network())):
        objective = Objective(model, steadfast(k=K))
        message = refusal(lambda: objective(inputs(), torch.zeros(6, dtype=torch.long)))  # noqa: B023
        assert type(model).__name__ in message
        assert "variation = 0" in message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"thickness": -0.1}, "thickness >= 0, got -0.1"),
        ({"thickness": math.nan}, "thickness >= 0, got nan"),
        ({"variation": -1.0}, "variation >= 0, got -1.0"),
        ({"variation": math.inf}, "variation >= 0, got inf"),
        ({"steps": -1}, "steps >= 0, got -1"),
        ({"steps": 1.5}, "whole number of steps, got 1.5"),
        ({"radius": 0.0}, "radius > 0, got 0.0"),
        ({"radius": math.nan}, "radius > 0, got nan"),
        ({"room": 0.0}, "room > 0, got 0.0"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["steadfast", "steadfast-quick"])
def test_settings_without_a_meaning_are_refused(
    name: str, settings: dict[str, Any], words: str
) -> None:
    assert words in refusal(lambda: METHODS[name].build(k=2, **settings))


@pytest.mark.parametrize("name", ["steadfast", "steadfast-quick"])
def test_entries_say_what_they_train(name: str) -> None:
    entry = METHODS[name]
    assert entry.model == "structured"
    assert entry.ranks
    built = entry.build(k=K)
    assert [part for part, _, _ in built.penalties] == ["margin", "variation"]
    assert entry.build(k=K, **dict.fromkeys(entry.weights, 0.0)).penalties == ()
    # Quick is the method without its attack.
    looks = [BatchContext(network(), inputs(), draw=torch.cos) for _ in range(2)]
    first = built.penalties[0][2](looks[0])
    same = steadfast(k=K, steps=0 if "quick" in name else 2).penalties[0][2](looks[1])
    assert torch.equal(first, same)


@pytest.mark.parametrize("name", ["steadfast", "steadfast-quick"])
def test_training_buys_what_it_pays_for(name: str) -> None:
    x = torch.rand(400, FEATURES, generator=stream(0, "x"), dtype=torch.float64)
    side = (3 * x[:, 0] - 2 * x[:, 1] * x[:, 4] + x[:, 7] - 1.5) + 0.3 * numbers(400, seed=5)
    rows = Part(rows=torch.arange(400), x=x, y=(side > 0).long())
    settings = FitSettings(epochs=15, batch=100)
    methods = {"vanilla": Method(), name: METHODS[name].build(k=K, thickness=2.0, variation=1e-3)}
    trained = {
        each: fit(network(scale=1.0), rows, rows, method, settings)[0]
        for each, method in methods.items()
    }
    variations = {each: model.variation().item() for each, model in trained.items()}  # type: ignore[operator]
    assert variations[name] < 0.8 * variations["vanilla"]
    steps = 0 if "quick" in name else 2
    full = 0.25 / math.sqrt(FEATURES)
    missing = {
        each: full + negative_margin(model, x, steps=steps).mean().item()
        for each, model in trained.items()
    }
    assert 0 <= missing[name] < 0.7 * missing["vanilla"]
