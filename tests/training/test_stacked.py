import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacking import attacker
from brief import brief
from closed_form import DropoutInForward, Largest, Linear, conv_net, numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.search import AttackResult
from r2et.core.autograd import piecewise_linear
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import EXPLAINERS, check_inputs, gradient, predicted, slopes
from r2et.methods import METHODS, BatchContext, Method, r2et
from r2et.metrics.statistics import auc
from r2et.models import MODELS
from r2et.models.smoothing import softened
from r2et.models.stack import StackedLinear, by_network, in_turn, stacked
from r2et.training.objective import Objective
from r2et.training.settings import EpochRecord, FitSettings
from r2et.training.stacked import NUMBERS_AT_ONCE, Trained, fit_grid
from r2et.training.trainer import fit, keeps_ranking
from refusals import refusal

SHORT = FitSettings(epochs=3, batch=16)
OF_TABLES = ("mlp", "logistic", "structured")
FEATURES = 6


SHAPES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (5,)},
    "structured": {"numeric": [0, 1, 2], "one_hot": [[3, 4], [5]], "curves": 2, "units": 3},
}


def network(seed: int = 0, name: str = "mlp", **shape: Any) -> nn.Module:
    shape = SHAPES.get(name, {}) | shape
    return MODELS[name].build(FEATURES, 2, **shape, generator=stream(seed, "test")).double()


def networks(count: int = 3, **shape: Any) -> list[nn.Module]:
    return [network(seed, **shape) for seed in range(count)]


def rows(count: int, seed: int = 0, noise: float = 1.0) -> Part:
    """Noisy examples on both sides of a plane."""
    x = numbers(count, FEATURES, seed=seed)
    side = x @ numbers(FEATURES, seed=1000) + noise * numbers(count, seed=seed + 1)
    return Part(rows=torch.arange(count), x=x, y=(side > 0).long())


def inputs(count: int, *shape: int, seed: int = 5) -> Tensor:
    """Other rows for each of `count` networks: (G, B, ...)."""
    return numbers(count, *(shape or (7, FEATURES)), seed=seed)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(one: nn.Module, other: nn.Module, atol: float = 1e-9) -> None:
    mine, theirs = weights(one), weights(other)
    assert type(one) is type(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        apart = (value - theirs[name]).abs().max()
        close = torch.allclose(value, theirs[name], rtol=0, atol=atol, equal_nan=True)
        assert close, f"{name}: {apart}"


class Custom(nn.Module):
    """A network that adds up paths, some of them on one column only, and uses a layer twice."""

    def __init__(self, seed: int = 0, columns: Sequence[int] = (0, 3)) -> None:
        super().__init__()
        self.columns = list(columns)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.path = nn.Linear(FEATURES, 2)
            self.units = nn.ModuleList([nn.Linear(1, 3, bias=False) for _ in columns])
            self.back = nn.Linear(3, 2)
            self.square = nn.Linear(2, 2, bias=False)
            nn.init.normal_(self.back.weight, std=3.0)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.path(x)
        for column, unit in zip(self.columns, self.units, strict=True):
            logits = logits + self.back(F.softplus(unit(x[:, column : column + 1])))
        return logits + 0.1 * self.square(torch.tanh(self.square(logits)))


class Shared(nn.Module):
    """A network whose two hidden layers are one."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        first, _, last = tiny_mlp(FEATURES, FEATURES, seed=seed)
        self.layers = nn.Sequential(first, nn.Tanh(), first, nn.Tanh(), last)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def picture_net(seed: int = 0) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *tiny_mlp(9, 5, 3, seed=seed))


BUILDS: dict[str, Callable[[int], nn.Module]] = {
    **{name: partial(network, name=name) for name in OF_TABLES},
    "deep": partial(network, hidden=(5, 4), activation="tanh"),
    "custom": Custom,
    "shared": Shared,
    "bare": lambda seed: tiny_mlp(FEATURES, classes=2, seed=seed)[0],
}


# --- rows that take turns -----------------------------------------------------------------------


def test_rows_take_turns() -> None:
    values = inputs(3, 4, 2)
    batch = in_turn(values)
    for g in range(3):
        for b in range(4):
            assert torch.equal(batch[b * 3 + g], values[g, b])
    assert torch.equal(by_network(batch, 3), values)
    # Whoever repeats the whole batch repeats it for each network.
    assert torch.equal(by_network(batch.repeat(2, 1), 3), values.repeat(1, 2, 1))


@pytest.mark.parametrize("count", [0, 2, 4, 7])
def test_rows_that_do_not_go_round_are_refused(count: int) -> None:
    message = refusal(lambda: by_network(torch.zeros(count, 2), 3))
    assert "multiple of 3 rows" in message
    assert f"got {count}" in message


# --- stacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_stack_answers_as_each_of_its_networks(build: Callable[[int], nn.Module]) -> None:
    models = [build(seed) for seed in range(3)]
    stack = stacked(models)
    x = inputs(3)
    alone = torch.stack([model(part) for model, part in zip(models, x, strict=True)])
    torch.testing.assert_close(by_network(stack(in_turn(x)), 3), alone, rtol=0, atol=1e-13)
    assert isinstance(stack, StackedLinear if type(models[0]) is nn.Linear else type(models[0]))
    for name, whole in stack.state_dict().items():
        own = [model.state_dict()[name] for model in models]
        assert torch.equal(whole, torch.stack(own))


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_stack_shares_nothing_with_its_networks(build: Callable[[int], nn.Module]) -> None:
    models = [build(seed) for seed in range(3)]
    before = [weights(model) for model in models]
    with torch.no_grad():
        for value in stacked(models).parameters():
            value.zero_()
    for model, was in zip(models, before, strict=True):
        assert all(torch.equal(value, was[name]) for name, value in weights(model).items())


def test_pictures_are_rows_too() -> None:
    models, x = [picture_net(seed) for seed in range(2)], inputs(2, 4, 1, 3, 3)
    alone = torch.stack([model(part) for model, part in zip(models, x, strict=True)])
    torch.testing.assert_close(by_network(stacked(models)(in_turn(x)), 2), alone)


def test_a_single_row_is_shown_to_all_networks() -> None:
    models, x = networks(3), inputs(1)[0]
    stack = stacked(models)
    with torch.no_grad():
        shown = stack(x[:1])
        torch.testing.assert_close(shown, torch.cat([model(x[:1]) for model in models]))
    check_inputs(stack, in_turn(inputs(3)))
    assert "multiple of 3 rows" in refusal(lambda: stack(x[:1]))
    assert "multiple of 3 rows" in refusal(lambda: gradient(stack, x[:1], torch.tensor([0])))
    # An attack whose batches are cut in between networks would show rows to the wrong ones.
    rows_of = in_turn(inputs(3, 8, FEATURES))
    attack = attacker("er", k=2, steps=2, rows_at_once=10)
    assert "multiple of 3 rows" in refusal(
        lambda: attack(stack, rows_of, predicted(stack, rows_of))
    )


def test_a_stack_is_piecewise_linear_if_its_networks_are() -> None:
    assert piecewise_linear(stacked(networks(2)))
    assert not piecewise_linear(stacked(networks(2, activation="tanh")))
    # What a network's own forward does, its layers do not tell.
    assert not piecewise_linear(stacked([Bent(), Bent()]))


class Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(F.softplus(self.first(x)))
        return logits


class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x) * self.scale
        return logits


def tied() -> nn.Sequential:
    one, other = nn.Linear(6, 6), nn.Linear(6, 6)
    other.weight = one.weight
    return nn.Sequential(one, other)


def hooked() -> nn.Sequential:
    layer = nn.Linear(6, 2)
    layer.register_forward_hook(lambda module, args, out: 2 * out)
    return nn.Sequential(layer)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), "1 (BatchNorm1d)"),
        (
            lambda: nn.Sequential(
                nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False, track_running_stats=False)
            ),
            "1 (BatchNorm1d)",
        ),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), "1 (Dropout)"),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.RReLU()), "1 (RReLU)"),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU()), "1 (PReLU)"),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Softmax(dim=0)), "1 (Softmax)"),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Flatten(0)), "1 (Flatten)"),
        (conv_net, "0 (Conv2d)"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))), "0 ("),
        (lambda: Linear(6), "the network itself (Linear)"),
        (Weighed, "the network itself (Weighed)"),
        (hooked, "0 (Linear)"),
        (tied, "share no weights, but 1 and 0"),
        (lambda: stacked(networks(2)), "StackedSequential"),
    ],
)
def test_layers_that_cannot_be_stacked_are_named(
    build: Callable[[], nn.Module], named: str
) -> None:
    message = refusal(lambda: stacked([build(), build()]))
    assert named in message
    assert "one by one" in message


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (network(), network(hidden=(4,)), "0"),
        (network(), network(hidden=(5, 5)), "2"),
        (network(), network(activation="relu"), "1"),
        (network(), network().float(), "0"),
        (network(), network().eval(), "itself"),
        (network(), network().requires_grad_(False), "0"),
        (Custom(), Custom(columns=(0, 2)), "itself"),
        (softened(network(), 2.0), softened(network(), 4.0), "1"),
        (Custom(), Shared(), "itself"),
    ],
)
def test_networks_that_are_built_otherwise_are_refused(
    first: nn.Module, second: nn.Module, named: str
) -> None:
    message = refusal(lambda: stacked([first, first, second]))
    assert f"network 2 differs from network 0 in {named}" in message


def test_nothing_to_stack_is_refused() -> None:
    assert "at least one network" in refusal(lambda: stacked([]))
    assert "without a linear layer" in refusal(lambda: stacked([nn.Sequential(nn.ReLU())]))


# --- what the package computes of a stack -------------------------------------------------------


@pytest.mark.parametrize("name", slopes())
@pytest.mark.parametrize("build", [network, Custom], ids=["mlp", "custom"])
def test_each_network_of_a_stack_is_explained_as_alone(
    name: str, build: Callable[[int], nn.Module]
) -> None:
    explain = brief(EXPLAINERS[name], 6)
    models, x = [build(seed) for seed in range(3)], inputs(3)
    stack, batch = stacked(models), in_turn(x)
    labels = predicted(stack, batch)
    found = by_network(explain(stack, batch, labels), 3)
    for model, part, own, y in zip(models, x, found, by_network(labels, 3), strict=True):
        assert torch.equal(y, predicted(model, part))
        torch.testing.assert_close(own, explain(model, part, y), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("build", [network, Custom], ids=["mlp", "custom"])
def test_the_losses_of_a_stack_have_the_slopes_of_each(
    name: str, build: Callable[[int], nn.Module]
) -> None:
    # Penalties are made of first derivatives by x, so these are second ones.
    method = replace(METHODS[name].build(k=2), prepare=None)
    if METHODS[name].model != "mlp":
        build = partial(network, name=METHODS[name].model)
    models, x = [build(seed) for seed in range(3)], inputs(3, 9, FEATURES)
    y = (numbers(3, 9, seed=8) > 0).long()
    noise = numbers(*x.shape, seed=9)

    stack = stacked(models)
    together = Objective(stack, method, draw=lambda like: in_turn(noise))
    parts = together.parts_of(in_turn(x), in_turn(y))
    shares = {part: weight for part, weight, _ in method.penalties} | {"classification": 1.0}
    total = sum(shares[part] * value.sum() / 9 for part, value in parts.items())
    assert isinstance(total, Tensor)
    total.backward()
    for g, model in enumerate(models):
        alone = Objective(model, method, draw=lambda like, g=g: noise[g])
        own = alone.parts_of(x[g], y[g])
        for part, value in own.items():
            torch.testing.assert_close(
                by_network(parts[part], 3)[g], value, rtol=1e-9, atol=1e-12, msg=part
            )
        alone(x[g], y[g]).backward()
        for (which, mine), whole in zip(model.named_parameters(), stack.parameters(), strict=True):
            if mine.grad is None:
                assert whole.grad is None
                continue
            assert whole.grad is not None
            torch.testing.assert_close(
                whole.grad[g], mine.grad, rtol=1e-8, atol=1e-11, msg=f"{name} {which}"
            )


ATTACKS: dict[str, Callable[..., Callable[[nn.Module, Tensor, Tensor], AttackResult]]] = {
    "er": partial(partial(attacker, "er"), budget={"radius": 0.5, "step": 0.05, "steps": 12}),
    "mse": partial(partial(attacker, "mse"), budget={"radius": 0.5, "step": 0.05, "steps": 12}),
    "strong": partial(
        partial(attacker, "strong"),
        radius=0.5,
        budget=EnsembleBudget(rounds=2, starts=4, steps=6, points=20, moves=6, pairs=3),
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("build", [network, Custom], ids=["mlp", "custom"])
def test_each_network_of_a_stack_is_attacked_as_alone(
    attack: Callable[..., Any], build: Callable[[int], nn.Module]
) -> None:
    models, x = [build(seed) for seed in range(3)], inputs(3, 11, FEATURES)
    stack, batch = stacked(models), in_turn(x)
    labels = predicted(stack, batch)
    found = attack(k=2)(stack, batch, labels)
    moved = False
    for g, model in enumerate(models):
        own = attack(k=2)(model, x[g], by_network(labels, 3)[g])
        for name in ("x", "before", "after", "precision", "first_flip"):
            torch.testing.assert_close(
                by_network(getattr(found, name), 3)[g],
                getattr(own, name),
                rtol=1e-7,
                atol=1e-9,
                msg=lambda text, name=name: f"{name}: {text}",
            )
        assert torch.equal(found.history.unflatten(1, (-1, 3))[:, :, g], own.history)
        measured = precision_at_k(found.before, found.after, 2)
        assert torch.equal(by_network(measured, 3)[g], own.precision)
        moved |= bool((own.precision < 1).any())
    assert moved


# --- training: as each network alone ------------------------------------------------------------

Grid = dict[str, Any]


def grid(count: int = 4, **more: Any) -> Grid:
    """Networks of two seeds, each seed with its own data."""
    trains, valids = [rows(70, seed=3), rows(70, seed=4)], [rows(50, seed=5), rows(50, seed=6)]
    seeds = [g % 2 for g in range(count)]
    return {
        "models": networks(count),
        "trains": [trains[seed] for seed in seeds],
        "valids": [valids[seed] for seed in seeds],
        "method": r2et(k=2, thickness=0.2, curvature=0.05),
        "settings": SHORT,
        "seeds": seeds,
        **more,
    }


def one(of: Grid, g: int) -> tuple[nn.Module, list[EpochRecord]]:
    """What `fit` makes of one network of a grid."""
    method = of["method"] if isinstance(of["method"], Method) else of["method"](range(g, g + 1))
    weights = of.get("weights") or {}
    method = replace(
        method,
        penalties=tuple(
            (name, weights[name][g] if name in weights else weight, penalty)
            for name, weight, penalty in method.penalties
        ),
        weight_decay=of["weight_decay"][g] if of.get("weight_decay") else method.weight_decay,
    )
    return fit(
        copy.deepcopy(of["models"][g]),
        of["trains"][g],
        of["valids"][g],
        method,
        replace(of["settings"], seed=of["seeds"][g]),
        accept=of["accept"][g] if of.get("accept") else None,
        floor=of["floor"][g] if of.get("floor") else None,
    )


def assert_like_fit(of: Grid, found: Sequence[Trained], atol: float = 1e-9) -> None:
    assert len(found) == len(of["models"])
    for g, each in enumerate(found):
        model, history = one(of, g)
        assert each.problem is None
        assert_same(each.model, model, atol=atol)
        assert_histories(each.history, history, atol)


def assert_histories(
    ours: Sequence[EpochRecord], theirs: Sequence[EpochRecord], atol: float = 1e-9
) -> None:
    assert [record.epoch for record in ours] == [record.epoch for record in theirs]
    for mine, record in zip(ours, theirs, strict=True):
        assert mine.parts == pytest.approx(record.parts, abs=atol, rel=atol)
        assert mine.valid_auc == pytest.approx(record.valid_auc, abs=1e-12 if atol < 1e-6 else 0.01)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_at_the_weights_of_fit(name: str) -> None:
    of = grid(method=METHODS[name].build(k=2), models=networks(4, name=METHODS[name].model))
    found = fit_grid(**of)
    assert_like_fit(of, found)
    assert any(
        not torch.equal(value, weights(of["models"][0])[key])
        for key, value in weights(found[0].model).items()
    )


@pytest.mark.parametrize("pairs", ["all", "facing", "anchor", "printed-anchor"])
@pytest.mark.parametrize("gap", ["plain", "exponential", "normalised"])
def test_every_form_of_r2et_ends_at_the_weights_of_fit(pairs: Any, gap: Any) -> None:
    method = r2et(k=2, thickness=0.2, curvature=0.1, pairs=pairs, gap=gap)
    lambdas = {"margin": [0.0, 0.1, 0.3, 1.0], "curvature": [0.1, 0.0, 0.2, 0.01]}
    of = grid(method=method, weights=lambdas)
    assert_like_fit(of, fit_grid(**of))


@pytest.mark.parametrize(
    "build", [Custom, Shared, *(partial(network, name=name) for name in OF_TABLES)]
)
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_other_networks_end_at_the_weights_of_fit(
    build: Callable[[int], nn.Module], schedule: str
) -> None:
    of = grid(models=[build(seed) for seed in range(4)], settings=replace(SHORT, schedule=schedule))
    assert_like_fit(of, fit_grid(**of))


def test_each_network_has_its_own_weight_decay() -> None:
    of = grid(method=replace(r2et(k=2), weight_decay=3.0), weight_decay=[0.0, 0.1, 2.0, 0.0])
    assert_like_fit(of, fit_grid(**of))
    of = grid(method=Method(weight_decay=3.0))
    assert_like_fit(of, fit_grid(**of))


def test_single_precision_ends_near_the_weights_of_fit() -> None:
    of = grid(models=[model.float() for model in networks(4)])
    for kind in ("trains", "valids"):
        single = {id(part): replace(part, x=part.x.float()) for part in of[kind]}
        of[kind] = [single[id(part)] for part in of[kind]]
    found = fit_grid(**of)
    assert next(found[0].model.parameters()).dtype == torch.float32
    assert_like_fit(of, found, atol=1e-4)


def test_frozen_weights_stay() -> None:
    of = grid(weight_decay=[0.5] * 4)
    for model in of["models"]:
        model[0].weight.requires_grad_(False)
    found = fit_grid(**of)
    assert_like_fit(of, found)
    assert torch.equal(found[1].model[0].weight, of["models"][1][0].weight)


def drawing(strength: float = 0.3) -> Method:
    """Trained on noisy inputs, and punished for answering noise otherwise: two draws a batch."""

    def perturb(look: BatchContext) -> Tensor:
        return look.x + strength * look.draw(look.x)

    def unsteady(look: BatchContext) -> Tensor:
        many = look.x.repeat(3, 1)
        far = look.model(many + strength * look.draw(many)).view(3, *look.logits.shape)
        return (far - look.logits).square().sum(-1).mean(0)

    return Method(perturb=perturb, penalties=(("unsteady", 0.5, unsteady),))


@pytest.mark.parametrize("batch", [16, 2, 1])
def test_networks_draw_what_they_draw_alone(batch: int) -> None:
    # With 1 or 2 rows of 6 numbers a draw is of fewer than 16, which torch draws in another way.
    of = grid(method=drawing(), settings=replace(SHORT, batch=batch, epochs=2))
    of["seeds"] = [0, 1, 0, 2]
    torch.manual_seed(5)
    dice = torch.get_rng_state()
    found = fit_grid(**of)
    assert torch.equal(torch.get_rng_state(), dice)
    assert_like_fit(of, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5, 3), (1, 15), (16,), (17, 1), (9, 28), (2, 3, 4)])
def test_a_stream_of_its_own_draws_what_the_global_one_does(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        ours = [torch.randn_like(torch.empty(shape, dtype=dtype)) for _ in range(3)]
    generator = torch.Generator().manual_seed(123)
    theirs = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3)]
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_networks_of_one_seed_see_the_same_batches() -> None:
    met: list[Tensor] = []

    def perturb(look: BatchContext) -> Tensor:
        met.append(torch.cat([look.x, look.draw(look.x)], dim=1))
        return look.x

    of = grid(method=Method(perturb=perturb), seeds=[7, 8, 7, 7], settings=replace(SHORT, epochs=1))
    of["trains"] = [of["trains"][0]] * 4
    fit_grid(**of)
    for batch in met:
        first, second, third, fourth = by_network(batch, 4)
        assert torch.equal(first, third)
        assert torch.equal(first, fourth)
        assert not torch.equal(first, second)


def prepare(model: nn.Module) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(model[0], nn.Softplus(), model[2])


def test_each_network_is_prepared_before() -> None:
    of = grid(method=replace(r2et(k=2), prepare=prepare))
    before = [weights(model) for model in of["models"]]
    found = fit_grid(**of)
    assert_like_fit(of, found)
    for model, was in zip(of["models"], before, strict=True):
        assert isinstance(model[1], nn.LeakyReLU)
        assert all(torch.equal(value, was[name]) for name, value in weights(model).items())


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_is_each_network_s_own(patience: int) -> None:
    settings = FitSettings(
        epochs=25, batch=8, learning_rate=0.05, schedule="constant", patience=patience
    )
    of = grid(settings=settings, method=r2et(k=2, thickness=0.05))
    of["trains"] = [rows(40, seed=seed, noise=2.0) for seed in range(4)]
    of["seeds"] = [0, 1, 2, 3]
    found = fit_grid(**of)
    assert_like_fit(of, found, atol=1e-8)
    assert len({len(each.history) for each in found}) > 1
    assert min(len(each.history) for each in found) < 25


def test_a_floor_is_each_network_s_own() -> None:
    settings = FitSettings(epochs=12, batch=8, learning_rate=0.05, schedule="constant")
    of = grid(settings=settings, method=r2et(k=2, thickness=0.05))
    of["trains"] = [rows(40, seed=seed, noise=2.0) for seed in range(4)]
    scores = [[record.valid_auc for record in each.history] for each in fit_grid(**of)]
    of["floor"] = [max(scores[0]), 0.0, 1.1, sorted(scores[3])[-2]]
    assert scores[0].index(max(scores[0])) < 11
    assert_like_fit(of, fit_grid(**of), atol=1e-8)
    message = refusal(lambda: fit_grid(**{**of, "settings": replace(settings, patience=1)}))
    assert "patience" in message


def test_acceptance_is_each_network_s_own() -> None:
    def within(length: float) -> Callable[[nn.Module], bool]:
        def accept(model: nn.Module) -> bool:
            assert isinstance(model, nn.Sequential)
            assert type(model[0]) is nn.Linear
            return bool(model[0].weight.norm() < length)

        return accept

    settings = replace(SHORT, epochs=6, learning_rate=0.05, schedule="constant")
    start = [float(weights(model)["0.weight"].norm()) for model in networks(4)]
    of = grid(settings=settings, method=Method())
    of["accept"] = [within(start[0]), within(math.inf), within(start[2] + 0.2), within(-1)]
    found = fit_grid(**of)
    assert_like_fit(of, found)
    lengths = [len(each.history) for each in found]
    assert lengths[1] == 6
    assert lengths[3] == 0
    assert 0 < lengths[2] < 6
    assert_same(found[3].model, of["models"][3], atol=0)


def test_a_ranking_is_kept_network_by_network() -> None:
    # Retraining from a reference each: the method holds a stack of references.
    of = grid(method=Method(), settings=replace(SHORT, epochs=4))
    references = [each.model for each in fit_grid(**of)]
    of["models"] = references
    of["settings"] = replace(SHORT, epochs=6, learning_rate=0.1, schedule="constant")
    of["accept"] = [
        keeps_ranking(model, valid, k=2, explain=gradient, least_precision=0.8, least_auc=0.5)
        for model, valid in zip(references, of["valids"], strict=True)
    ]

    def build(some: range) -> Method:
        own = [references[g] for g in some]
        return r2et(k=2, thickness=1.0, reference=stacked(own) if len(own) > 1 else own[0])

    of["method"] = build
    for at_once in (None, 2, 3):
        found = fit_grid(**of, at_once=at_once)
        assert_like_fit(of, found)
    assert min(len(each.history) for each in found) < 6
    # Built once for all, it is refused in smaller stacks: their rows are not the references'.
    of["method"] = build(range(4))
    message = refusal(lambda: fit_grid(**of, at_once=2))
    assert "a stack of 2 networks holds a stack of 4" in message
    assert len(fit_grid(**of)) == 4


def size(look: BatchContext) -> Tensor:
    """The sum of the first weights' sizes: one number for each network."""
    return look.model.get_parameter("0.weight")[..., :, :].abs().sum((-1, -2))


def test_a_penalty_on_weights_is_one_number_for_each_network() -> None:
    of = grid(method=Method(penalties=(("size", 0.01, size),)), weights={"size": [0, 0.1, 0.2, 1]})
    assert_like_fit(of, fit_grid(**of))


def test_epochs_are_told_by_the_number_of_the_network() -> None:
    told: list[tuple[int, EpochRecord]] = []
    of = grid(settings=replace(SHORT, epochs=2))
    found = fit_grid(**of, at_once=3, on_epoch=lambda g, record: told.append((g, record)))
    assert [(g, record.epoch) for g, record in told] == [
        *((g, epoch) for epoch in range(2) for g in range(3)),
        (3, 0),
        (3, 1),
    ]
    for g, each in enumerate(found):
        assert [record for number, record in told if number == g] == each.history


# --- training: in any company -------------------------------------------------------------------


def assert_equal(ours: Sequence[Trained], theirs: Sequence[Trained], atol: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.problem == other.problem
        assert_same(mine.model, other.model, atol=atol)
        assert_histories(mine.history, other.history, max(atol, 1e-12))


def test_the_order_of_a_grid_is_only_its_order() -> None:
    of = grid(5, method=drawing(), weights={"unsteady": [0.0, 0.1, 0.2, 0.5, 1.0]})
    found, order = fit_grid(**of), [3, 0, 4, 2, 1]
    turned = of | {
        name: [of[name][g] for g in order] for name in ("models", "trains", "valids", "seeds")
    }
    turned["weights"] = {"unsteady": [of["weights"]["unsteady"][g] for g in order]}
    assert_equal(fit_grid(**turned), [found[g] for g in order], atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 9])
def test_the_size_of_stacks_changes_nothing(at_once: int) -> None:
    of = grid(5, method=drawing(), weights={"unsteady": [0.0, 0.1, 0.2, 0.5, 1.0]})
    assert_equal(fit_grid(**of, at_once=at_once), fit_grid(**of), atol=1e-12)


def burst(beyond: float) -> Method:
    """A penalty that is no number for networks whose first weights have grown beyond a length."""

    def penalty(look: BatchContext) -> Tensor:
        size = look.model.get_parameter("0.weight").flatten(-2).norm(dim=-1)
        return torch.where(size > beyond, torch.nan, 0.0) * size

    return Method(penalties=(("burst", 1.0, penalty),))


def spoiling(network: int, networks: int, step: int) -> Method:
    """From a step on the inputs of one network are no numbers."""
    steps = [0]

    def perturb(look: BatchContext) -> Tensor:
        steps[0] += 1
        spoilt = (torch.arange(len(look.x)) % networks == network) & (steps[0] > step)
        return look.x + torch.where(spoilt, torch.nan, 0.0)[:, None]

    return Method(perturb=perturb)


Sick = tuple[Grid, Grid, Callable[[], Method]]
STEADY = replace(SHORT, schedule="constant")


def grown_within_an_epoch() -> Sick:
    """Network 1 is ill from the sixth step on, the first of the second epoch."""
    of = grid(method=burst(4.0), settings=replace(STEADY, learning_rate=0.05))
    with torch.no_grad():
        start = of["models"][1][0].weight
        start.mul_(3.75 / start.norm())
    healthy = of | {"models": [*of["models"][:1], network(9), *of["models"][2:]]}
    return of, healthy, lambda: burst(4.0)


def grown_at_the_end_of_an_epoch() -> Sick:
    """With one step an epoch the weights are ill before the next batch can be."""
    of, healthy, method = grown_within_an_epoch()
    settings = replace(STEADY, learning_rate=0.05, batch=70, epochs=6)
    return of | {"settings": settings}, healthy | {"settings": settings}, method


def overflowing_at_the_start() -> Sick:
    """Finite weights of network 1 whose logits overflow on all rows but the first."""
    of = grid(method=Method(), settings=STEADY)
    calm = rows(70, seed=4)
    calm.x[0] = 0.0
    of["trains"] = [of["trains"][0], calm, of["trains"][2], of["trains"][3]]
    healthy = dict(of)
    large = network(1)
    with torch.no_grad():
        for value in large.parameters():
            value.mul_(1e200)
    of["models"] = [of["models"][0], large, *of["models"][2:]]
    return of, healthy, Method


def overflowing_on_validation_rows() -> Sick:
    """A row of validation data so large that it overflows once weights have grown."""
    of = grid(method=Method(), settings=replace(STEADY, learning_rate=2.0))
    healthy = dict(of)
    huge = rows(50, seed=6)
    huge.x[7] = 0.0
    huge.x[7, 2] = 1.5e308
    small = network(1)
    with torch.no_grad():
        for value in small.parameters():
            value.mul_(0.01)
    of["models"] = [of["models"][0], small, *of["models"][2:]]
    of["valids"] = [of["valids"][0], huge, of["valids"][2], of["valids"][3]]
    return of, healthy, Method


def spoilt_inputs() -> Sick:
    """From the third epoch on network 1 is shown no numbers, whatever its weights."""
    of = grid(method=spoiling(1, 4, 11), settings=STEADY)
    return of, of | {"method": Method()}, lambda: spoiling(0, 1, 11)


def no_numbers() -> Sick:
    """Network 1 is none to begin with."""
    of = grid(method=Method(), settings=STEADY)
    healthy, ill = dict(of), network(1)
    with torch.no_grad():
        ill.get_parameter("2.bias")[1] = torch.nan
    of["models"] = [of["models"][0], ill, *of["models"][2:]]
    return of, healthy, Method


SICK = [
    grown_within_an_epoch,
    grown_at_the_end_of_an_epoch,
    overflowing_at_the_start,
    overflowing_on_validation_rows,
    spoilt_inputs,
    no_numbers,
]


@pytest.mark.parametrize("case", SICK)
def test_a_network_that_diverges_leaves_the_others_as_they_were(case: Callable[[], Sick]) -> None:
    of, healthy, alone = case()
    found, well = fit_grid(**of), fit_grid(**healthy)
    assert all(each.problem is None for each in well)
    for g in (0, 2, 3):
        assert found[g].problem is None
        assert_same(found[g].model, well[g].model, atol=0)
        assert found[g].history == well[g].history
    history: list[EpochRecord] = []
    settings = replace(of["settings"], seed=of["seeds"][1])
    message = refusal(
        lambda: fit(
            copy.deepcopy(of["models"][1]),
            of["trains"][1],
            of["valids"][1],
            alone(),
            settings,
            on_epoch=history.append,
        )
    )
    assert found[1].problem == message
    assert_histories(found[1].history, history)
    # What it is left with are the weights of its last epoch without a fault.
    expected = of["models"][1]
    if history:
        whole = replace(settings, epochs=len(history))
        data = (of["trains"][1], of["valids"][1])
        expected, _ = fit(copy.deepcopy(expected), *data, alone(), whole)
    assert_same(found[1].model, expected)


def test_the_cases_of_illness_are_different_ones() -> None:
    problems = [fit_grid(**case()[0])[1] for case in SICK]
    told = [each.problem or "" for each in problems]
    assert [each for each, text in enumerate(told) if "diverged in epoch" in text] == [1]
    assert [each for each, text in enumerate(told) if "logits: check its weights" in text] == [3]
    assert [len(each.history) for each in problems] == [1, 5, 0, 0, 2, 0]


def test_a_network_that_ended_stands_still_at_finite_weights() -> None:
    of, _, _ = grown_within_an_epoch()
    seen: list[Tensor] = []

    def strict(look: BatchContext) -> Tensor:
        assert torch.isfinite(look.input_gradient).all()
        seen.append(look.model.get_parameter("0.weight").detach()[1].clone())
        return look.input_gradient.flatten(1).square().sum(-1)

    penalties = (("strict", 0.1, strict), ("size", 0.001, size), *of["method"].penalties)
    of["method"] = Method(penalties=penalties, weight_decay=0.1)
    of["settings"] = replace(of["settings"], epochs=4)
    found = fit_grid(**of)
    assert [each.problem is None for each in found] == [True, False, True, True]
    kept = weights(found[1].model)["0.weight"]
    assert torch.isfinite(kept).all()
    assert sum(torch.equal(each, kept) for each in seen) >= 10


def test_a_grid_all_of_whose_networks_diverge_ends() -> None:
    of = grid(method=burst(0.0), settings=replace(SHORT, epochs=50))
    found = fit_grid(**of)
    for each, model in zip(found, of["models"], strict=True):
        assert "NaN or infinite logits" in (each.problem or "")
        assert each.history == []
        assert_same(each.model, model, atol=0)


def test_what_is_drawn_is_the_same_after_a_network_diverged() -> None:
    # The step in which a network is found ill is done again, with the numbers drawn before.
    def method(network: int, networks: int) -> Method:
        noisy, spoil = drawing(), spoiling(network, networks, 7).perturb
        assert noisy.perturb is not None
        assert spoil is not None

        def perturb(look: BatchContext) -> Tensor:
            return spoil(look) + 0.1 * look.draw(look.x)

        return replace(noisy, perturb=perturb)

    of = grid(method=method(1, 4), settings=STEADY)
    found = fit_grid(**of)
    assert found[1].problem is not None
    of["method"] = method(-1, 1)
    for g in (0, 2, 3):
        model, history = one(of, g)
        assert_same(found[g].model, model)
        assert_histories(found[g].history, history)


def test_the_memory_of_a_stack_is_its_batch_of_inputs() -> None:
    # 6 networks x 16 rows x 40 features; pairs of features or of rows would be far more.
    def wide(count: int, seed: int) -> Part:
        return Part(
            rows=torch.arange(count),
            x=numbers(count, 40, seed=seed),
            y=torch.arange(count) % 2,
        )

    models = [
        MODELS["mlp"].build(40, 2, hidden=(8,), generator=stream(g, "test")).double()
        for g in range(6)
    ]
    train, valid = wide(48, 1), wide(16, 2)
    with Largest() as largest:
        fit_grid(
            models,
            [train] * 6,
            [valid] * 6,
            METHODS["r2et"].build(k=8),
            FitSettings(epochs=1, batch=16),
            seeds=range(6),
            device="cpu",
        )
    assert 6 * 16 * 40 <= largest.numel <= 2 * 6 * 16 * 40


def test_a_large_grid_is_split_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    of, sizes = grid(5), list[int]()

    def build(some: range) -> Method:
        sizes.append(len(some))
        return Method()

    of["method"] = build
    fit_grid(**of)
    monkeypatch.setattr("r2et.training.stacked.NUMBERS_AT_ONCE", 2 * 16 * FEATURES + 5)
    fit_grid(**of)
    monkeypatch.setattr("r2et.training.stacked.NUMBERS_AT_ONCE", 1)
    fit_grid(**of)
    assert sizes == [5, 2, 2, 1, *[1] * 5]
    assert NUMBERS_AT_ONCE >= 32 * 256 * 28


# --- refusals -----------------------------------------------------------------------------------


class Mixing(nn.Module):
    """A network that subtracts the mean of its batch: no layer of it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = tiny_mlp(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x - x.mean(0))
        return logits


def spoilt(part: Part) -> Part:
    x = part.x.clone()
    x[3, 1] = torch.nan
    return replace(part, x=x)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"models": []}, "at least one network"),
        ({"models": [Mixing() for _ in range(4)]}, "differently in a stack than alone"),
        (
            {"models": [DropoutInForward(FEATURES) for _ in range(4)]},
            "differently in a stack than alone",
        ),
        ({"models": [*networks(3), network(hidden=(3,))]}, "network 3 differs"),
        ({"seeds": [0, 1]}, "seeds must have one entry for each of the 4 networks, got 2"),
        ({"trains": [rows(70)]}, "trains must have one entry"),
        ({"valids": [rows(50)] * 5}, "valids must have one entry"),
        ({"weights": {"margin": [1.0]}}, "weights['margin'] must have one entry"),
        (
            {"weights": {"thickness": [1.0] * 4}},
            "['curvature', 'margin'], got 'thickness'",
        ),
        ({"weights": {"margin": [1.0, math.nan, 0, 0]}}, "weights must be finite"),
        ({"weight_decay": [0.1, 0.1, 0.1]}, "weight_decay must have one entry"),
        ({"weight_decay": [0.1, -0.1, 0.1, 0]}, "weight_decay >= 0"),
        ({"accept": []}, "accept must have one entry"),
        ({"trains": [rows(70)] * 3 + [rows(69)]}, "trains must all be of one size"),
        ({"valids": [rows(50)] * 3 + [rows(49)]}, "valids must all be of one size"),
        ({"at_once": 0}, "at_once must be at least one"),
        ({"trains": [rows(70)] * 3 + [spoilt(rows(70))]}, "row 3 has a NaN"),
        ({"valids": [rows(50)] * 3 + [spoilt(rows(50))]}, "row 3 has a NaN"),
        (
            {"valids": [replace(rows(50), y=torch.zeros(50, dtype=torch.long))] * 4},
            "at least two classes",
        ),
        (
            {"method": Method(penalties=(("all", 1.0, lambda look: look.logits.sum()),))},
            "all must be one number for each of 64 rows or of 4 networks, got shape ()",
        ),
        (
            {"method": Method(perturb=lambda look: look.x + look.draw(look.x[:4]).mean())},
            "draws for a whole batch, here 64 rows, or for repetitions of it, got shape (4, 6)",
        ),
        ({"method": r2et(k=FEATURES)}, "k must lie in"),
    ],
)
def test_what_cannot_be_trained_is_refused(more: Grid, told: str) -> None:
    assert told in refusal(lambda: fit_grid(**grid(**more)))


def test_a_score_is_that_of_the_returned_network() -> None:
    of = grid()
    for each, valid in zip(fit_grid(**of), of["valids"], strict=True):
        assert auc(each.model, valid.x, valid.y) == pytest.approx(each.history[-1].valid_auc)
