import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from captum import attr
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from closed_form import Largest, Linear, Quadratic, conv_net, mixing_mlp, numbers, tiny_mlp
from r2et.core.one_hot import NARROW, project_one_hot
from r2et.core.ranking import order, ties
from r2et.core.rng import stream
from r2et.explainers import (
    BYTES_AT_ONCE,
    EXPLAINERS,
    Activations,
    Form,
    Gradient,
    GradientTimesInput,
    InputExplainer,
    IntegratedGradients,
    Quantity,
    SmoothGrad,
    check_inputs,
    check_predicted,
    gradient,
    input_gradient,
    log_odds,
    margin,
    predicted,
    two_logits,
)
from r2et.metrics.sensitivity import off_data_share
from refusals import refusal

QUANTITIES = get_args(Quantity)
FORMS = get_args(Form)
# Few enough places that finite differences stay cheap, enough that chunks have to share them.
SMALL: dict[str, InputExplainer] = {
    "grad": gradient,
    "grad-x-input": GradientTimesInput(),
    "smooth-grad": SmoothGrad(samples=7),
    "integrated-gradients": IntegratedGradients(points=7),
}
every_explainer = pytest.mark.parametrize("explain", SMALL.values(), ids=SMALL)
every_quantity = pytest.mark.parametrize("of", QUANTITIES)


def test_every_explainer_made_of_gradients_is_tested_here() -> None:
    made = {name for name, each in EXPLAINERS.items() if isinstance(each, InputExplainer)}
    assert SMALL.keys() == made
    assert EXPLAINERS.keys() - made == {"shapley"}  # in test_shapley.py


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.long)


# --- closed forms ---

signed_logit: Any = {"of": "logit", "form": "signed"}


def test_a_linear_model_is_explained_by_its_weights() -> None:
    # The logit is w'x + b: its slope is w at every place, on every line and under any noise.
    model, x = Linear(d=5), numbers(4, 5, seed=3)
    w = model.w.detach().expand(4, 5)
    for explain, expected in [
        (gradient, w),
        (GradientTimesInput(), w * x),
        (SmoothGrad(), w),
        (IntegratedGradients(), w * x),
    ]:
        torch.testing.assert_close(
            replace(explain, **signed_logit)(model, x, ones(4)).detach(), expected
        )


def test_a_quadratic_is_explained_by_hand() -> None:
    # The slope at z is Az + b. The mean over places z is the slope at their mean, which is
    # (x + x0) / 2 on the line from x0, and x plus the mean of the noise around x.
    model, x = Quadratic(d=5), numbers(4, 5, seed=3)
    A, b, x0 = model.A.detach(), model.b.detach(), numbers(5, seed=4)
    drawn = torch.randn(9, 5, generator=stream(2, "smooth-grad"), dtype=torch.float64)
    noisy = x + 0.3**0.5 * drawn.mean(0)
    for explain, expected in [
        (gradient, x @ A + b),
        (GradientTimesInput(), x * (x @ A + b)),
        (SmoothGrad(samples=9, variance=0.3, seed=2), noisy @ A + b),
        (IntegratedGradients(), x * (x / 2 @ A + b)),
        (IntegratedGradients(baseline=x0), (x - x0) * ((x + x0) / 2 @ A + b)),
        (IntegratedGradients(points=1), x * (x / 2 @ A + b)),
    ]:
        torch.testing.assert_close(
            replace(explain, **signed_logit)(model, x, ones(4)).detach(), expected
        )


@every_quantity
def test_integrated_gradients_add_up_to_the_change_of_the_score(of: Quantity) -> None:
    # By the fundamental theorem the sum over features is f(x) - f(x0); the midpoint rule comes
    # within O(1 / points^2), so four times as many points leave a sixteenth of the error.
    model, x, x0 = tiny_mlp(classes=3), 2 * numbers(4, 6, seed=3), numbers(6, seed=4)
    y = predicted(model, x)

    def score(at: Tensor) -> Tensor:
        return by_hand(model, of)(at).gather(-1, y[:, None]).squeeze(-1)

    def error(points: int) -> Tensor:
        parts = IntegratedGradients(of=of, form="signed", points=points, baseline=x0)(model, x, y)
        return (parts.sum(-1) - (score(x) - score(x0.expand_as(x)))).abs().detach()

    if of == "margin":  # its runner-up changes on the way: one kink, an error of O(1 / points)
        assert error(4000).max() < 1e-3
    else:
        torch.testing.assert_close(
            error(200) / error(50), torch.full((4,), 1 / 16).double(), rtol=0.05, atol=0
        )
        assert error(200).max() < 1e-5


# --- Captum ---


def by_hand(model: nn.Module, of: Quantity) -> Callable[[Tensor], Tensor]:
    """What is explained, for every class, written from its definition: (B, C)."""

    def scores(x: Tensor) -> Tensor:
        logits = model(x)
        if of == "probability":
            return logits.softmax(-1)
        if of == "logit":
            return logits
        if of == "loss":
            return -logits.softmax(-1).log()
        classes = range(logits.shape[1])
        return torch.stack(
            [
                logits[:, c] - torch.stack([logits[:, j] for j in classes if j != c]).amax(0)
                for c in classes
            ],
            dim=-1,
        )

    return scores


@pytest.fixture
def _quiet_captum() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def captum_value(name: str, scores: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    if name == "grad":
        found = attr.Saliency(scores).attribute(x, target=y, abs=False)
    elif name == "grad-x-input":
        found = attr.InputXGradient(scores).attribute(x, target=y)
    elif name == "integrated-gradients":
        found = attr.IntegratedGradients(scores).attribute(
            x, target=y, n_steps=100, method="riemann_middle"
        )
    else:  # Captum's NoiseTunnel draws its own noise: the mean it would take, of ours
        drawn = torch.randn(
            50, *x.shape[1:], generator=stream(0, "smooth-grad"), dtype=torch.float64
        )
        places = [x.detach() + 0.5**0.5 * noise for noise in drawn]
        slopes = [
            attr.Saliency(scores).attribute(place.requires_grad_(), target=y, abs=False)
            for place in places
        ]
        found = torch.stack(slopes).mean(0)
    return found.detach().flatten(1)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tanh, 2 classes": (tiny_mlp, (6,)),
    "tanh, 3 classes": (partial(tiny_mlp, classes=3), (6,)),
    "leaky, 2 classes": (partial(tiny_mlp, activation=nn.LeakyReLU), (6,)),
    "leaky, 3 classes": (partial(tiny_mlp, activation=nn.LeakyReLU, classes=3), (6,)),
    "pictures, largest": (conv_net, (1, 6, 6)),
    "pictures, mean": (partial(conv_net, pool=nn.AvgPool2d), (1, 6, 6)),
}


@pytest.mark.usefixtures("_quiet_captum")
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("model", MODELS)
@every_quantity
def test_explanations_are_those_of_captum(model: str, name: str, of: Quantity) -> None:
    build, shape = MODELS[model]
    network = build()
    x = numbers(4, *shape, seed=5)
    y = torch.arange(4) % network[-1].out_features
    expected = captum_value(name, by_hand(network, of), x, y)

    def found(form: Form) -> Tensor:
        return replace(EXPLAINERS[name], of=of, form=form)(network, x, y).detach()

    tolerance: Any = {"rtol": 0, "atol": 1e-6 * expected.abs().max().item()}
    torch.testing.assert_close(found("signed"), expected, **tolerance)
    torch.testing.assert_close(found("absolute"), expected.abs(), **tolerance)
    shares = expected.abs() / expected.abs().sum(-1, keepdim=True)
    torch.testing.assert_close(found("normalised"), shares)


# --- derivatives of explanations ---


@every_explainer
@every_quantity
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [None, (0, 1, 1, 2)])
def test_explanations_can_be_attacked_and_trained(
    explain: InputExplainer, of: Quantity, form: Form, groups: tuple[int, ...] | None
) -> None:
    # Central differences by every input number and every weight.
    model, x = tiny_mlp(d=4, hidden=2, classes=3), numbers(2, 4, seed=5).requires_grad_()
    y = torch.tensor([0, 2])
    assert gradcheck(
        lambda x, *weights: replace(explain, of=of, form=form, groups=groups)(model, x, y),
        (x, *model.parameters()),
    )


@pytest.mark.parametrize("rows_at_once", [1, 100])
def test_derivatives_of_explanations_can_be_trained(rows_at_once: int) -> None:
    model, x = tiny_mlp(d=3, hidden=2, classes=3), numbers(2, 3, seed=5).requires_grad_()
    assert gradgradcheck(
        lambda x, *weights: Gradient(rows_at_once=rows_at_once)(model, x, torch.tensor([0, 2])),
        (x, *model.parameters()),
    )


def test_pictures_can_be_attacked_and_trained() -> None:
    model, x = conv_net(pool=nn.AvgPool2d), numbers(1, 1, 6, 6, seed=5).requires_grad_()
    weights = [model[0].bias, model[-1].weight]
    assert gradcheck(lambda x, *weights: gradient(model, x, ones(1)), (x, *weights))


# --- chunks ---


def derivatives_of(values: Tensor, by: list[Tensor], **options: Any) -> list[Tensor]:
    """Slopes of one fixed mixture of the values."""
    mixture = (values * numbers(*values.shape, seed=9)).sum()
    return list(
        torch.autograd.grad(mixture, by, allow_unused=True, materialize_grads=True, **options)
    )


@every_explainer
@every_quantity
@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 5, 11, 34])
def test_chunks_change_nothing(explain: InputExplainer, of: Quantity, rows_at_once: int) -> None:
    model, x, y = tiny_mlp(classes=3), numbers(5, 6).requires_grad_(), torch.arange(5) % 3
    by = [x, *model.parameters()]
    whole = replace(explain, of=of)(model, x, y)
    parts = replace(explain, of=of, rows_at_once=rows_at_once)(model, x, y)
    torch.testing.assert_close(parts, whole)
    for found, expected in zip(derivatives_of(parts, by), derivatives_of(whole, by), strict=True):
        torch.testing.assert_close(found, expected)


@every_explainer
def test_chunks_change_no_second_derivative(explain: InputExplainer) -> None:
    # The gradient of a gradient's length. The inputs hang on the weights, as those of an attack
    # that is itself differentiated do: the weights' two ways to the result are counted once each.
    model, x, y = tiny_mlp(), numbers(5, 6).requires_grad_(), torch.arange(5) % 2

    def twice(rows_at_once: int) -> list[Tensor]:
        moved = x * model[0].weight.sum()
        values = replace(explain, rows_at_once=rows_at_once)(model, moved, y)
        by = [x, *model.parameters()]
        once = derivatives_of(values, by, create_graph=True)
        length = torch.stack([part.square().sum() for part in once]).sum()
        again = torch.autograd.grad(length, by, allow_unused=True, materialize_grads=True)
        return [*(part.detach() for part in once), *again]

    for found, expected in zip(twice(3), twice(10**6), strict=True):
        torch.testing.assert_close(found, expected)


@every_explainer
def test_chunks_serve_inputs_or_weights_alone(explain: InputExplainer) -> None:
    y = torch.arange(5) % 2
    for weights_learn, x_learns in [(True, False), (False, True)]:
        model = tiny_mlp().requires_grad_(weights_learn)
        x = numbers(5, 6).requires_grad_(x_learns)
        by = [value for value in (x, *model.parameters()) if value.requires_grad]
        parts, whole = (
            derivatives_of(replace(explain, rows_at_once=rows)(model, x, y), by)
            for rows in (2, 10**6)
        )
        for found, expected in zip(parts, whole, strict=True):
            torch.testing.assert_close(found, expected)


@every_explainer
def test_chunks_refuse_other_weights_than_those_explained(explain: InputExplainer) -> None:
    # A chunk is computed again when it is differentiated. With the weights exchanged (as
    # functional calls do for the time of one call) or frozen by then, it would be another's.
    model, x, y = tiny_mlp(), numbers(5, 6), torch.arange(5) % 2
    frozen = replace(explain, rows_at_once=2)(model, x, y).sum()
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="exchanged or frozen"):
        frozen.backward()
    model[0].requires_grad_(True)
    exchanged = replace(explain, rows_at_once=2)(model, x, y).sum()
    model[0].weight = nn.Parameter(numbers(5, 6, seed=8))
    with pytest.raises(RuntimeError, match="exchanged or frozen"):
        exchanged.backward()


@every_explainer
@pytest.mark.parametrize("rows_at_once", [1, 3, 8, 20])
def test_no_more_rows_than_allowed_pass_together(
    explain: InputExplainer, rows_at_once: int
) -> None:
    model, x, y = tiny_mlp(), numbers(9, 6).requires_grad_(), torch.arange(9) % 2
    rows: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    found = replace(explain, rows_at_once=rows_at_once)(model, x, y)
    forward = len(rows)
    assert max(rows) <= rows_at_once
    found.sum().backward()
    assert max(rows) <= rows_at_once
    # Each chunk passes once more when it is differentiated, unless there was but one.
    assert len(rows) == (forward if forward == 1 else 2 * forward)


def test_a_constant_explanation_has_no_derivative_in_chunks_either() -> None:
    # The margin of a linear model has the same gradient everywhere, and frozen weights add nothing.
    model = nn.Linear(4, 2).double().requires_grad_(False)
    x = numbers(5, 4).requires_grad_()
    found = Gradient(of="margin", rows_at_once=2)(model, x, ones(5))
    (slope,) = torch.autograd.grad(found.sum(), x, allow_unused=True)
    assert slope is None


@every_quantity
def test_many_small_rows_are_not_computed_twice(of: Quantity) -> None:
    # What a row keeps is what counts, not the company that its label is a view of.
    model, count = tiny_mlp(), 2**15
    rows: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    Gradient(of=of)(model, numbers(count, 6).requires_grad_(), ones(count)).sum().backward()
    assert rows == [1, count]


class Held:
    """A tensor that a graph keeps for its backward pass, counted for as long as it does."""

    now = most = 0

    def __init__(self, value: Tensor, free: set[int]) -> None:
        self.value = value.detach()  # with its graph it would keep itself alive
        self.size = 0 if value.untyped_storage().data_ptr() in free else value.numel()
        Held.now += self.size
        Held.most = max(Held.most, Held.now)

    def __del__(self) -> None:
        Held.now -= self.size


@pytest.mark.parametrize("learns", ["weights", "nothing"])
def test_chunks_bound_what_is_kept(learns: str) -> None:
    # Eight times the points make eight times the graph, unless chunks are computed again.
    def kept(points: int, rows_at_once: int) -> int:
        model, x, y = tiny_mlp(), numbers(4, 6), torch.arange(4) % 2
        if learns == "nothing":
            model.requires_grad_(False)
        free = {value.untyped_storage().data_ptr() for value in (x, *model.parameters())}
        Held.now = Held.most = 0
        with torch.autograd.graph.saved_tensors_hooks(
            lambda value: Held(value, free), lambda held: held.value
        ):
            found = IntegratedGradients(points=points, rows_at_once=rows_at_once)(model, x, y)
            if learns == "weights":
                found.sum().backward()
        return Held.most

    assert kept(80, 10**6) > 6 * kept(10, 10**6)
    assert kept(80, 8) < 1.5 * kept(10, 8)


def wide_net() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network whose layers take far more memory than its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 500), nn.Tanh(), nn.Linear(500, 2)).double()
    return model, numbers(12, 40), torch.arange(12) % 2


@pytest.mark.parametrize("most", [2**18, 2**22])
@pytest.mark.parametrize(
    "explain",
    [
        IntegratedGradients(points=200),
        SmoothGrad(samples=200),
        Gradient(groups=None),
    ],
    ids=["integrated", "smooth", "plain"],
)
def test_work_is_split_by_the_memory_it_takes(
    explain: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody asked for chunks: values and slopes by x and by the weights are those of one piece.
    model, x, y = wide_net()
    if isinstance(explain, Gradient):
        x, y = x.repeat(200, 1), y.repeat(200)
    rows = list[int]()
    model.register_forward_hook(lambda part, given, result: rows.append(len(given[0])))

    def twice(**choices: Any) -> list[Tensor]:
        at = x.clone().requires_grad_()
        found = replace(explain, **choices)(model, at, y)
        by = [at, *model.parameters()]
        return [found.detach(), *torch.autograd.grad(found.square().sum(), by)]

    whole = twice(rows_at_once=10**6)
    assert max(rows) == 2400
    rows.clear()
    free = {value.untyped_storage().data_ptr() for value in (x, *model.parameters())}
    monkeypatch.setattr("r2et.explainers.BYTES_AT_ONCE", most)
    split = twice()
    for one, other in zip(split, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * float(other.abs().max()))
    assert 1 <= max(rows) < 2400
    Held.now = Held.most = 0
    with torch.autograd.graph.saved_tensors_hooks(
        lambda value: Held(value, free), lambda held: held.value
    ):
        explain(model, x, y).sum().backward()
    kept_besides = 8 * x.numel() * 4  # the inputs themselves, and sums shaped like them
    assert 8 * Held.most < most + kept_besides


def test_small_work_is_not_split() -> None:
    model, x, y = tiny_mlp(), numbers(4, 6), torch.arange(4) % 2
    rows = list[int]()
    model.register_forward_hook(lambda part, given, result: rows.append(len(given[0])))
    IntegratedGradients()(model, x, y)
    assert rows == [400]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["IntegratedGradients(points=32)", "SmoothGrad(samples=32)"])
def test_training_on_large_pictures_stays_within_its_memory(name: str) -> None:
    # 64 rows of 224 x 224 take 1.8 GB in one piece, here and by this network.
    work = f"""
import resource, torch, r2et
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.Softplus(), nn.Conv2d(16, 16, 3, padding=1), nn.Softplus(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2),
)
x, y = torch.rand(2, 3, 224, 224), torch.tensor([0, 1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
r2et.Objective(net, r2et.methods.r2et(k=8, explain=r2et.explainers.{name}))(x, y).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", work], capture_output=True, text=True, check=True, timeout=600
    )
    assert int(done.stdout) < 1.25 * BYTES_AT_ONCE


def test_what_was_weighed_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    # Inputs as large as these are weighed by a pass of one row, at every call.
    model, x = tiny_mlp(d=700), numbers(100, 700)
    labels = predicted(model, x)
    seen: list[weakref.ref[Tensor]] = []
    weighed = input_gradient

    def watched(model: nn.Module, x: Tensor, y: Tensor, of: Quantity) -> Tensor:
        seen.append(weakref.ref(x))
        return weighed(model, x, y, of)

    monkeypatch.setattr("r2et.explainers.input_gradient", watched)
    gradient(model, x, labels)
    gc.collect()
    assert len(seen) == 2
    assert seen[0]() is None


# --- sure models ---


def times(model: nn.Sequential, factor: float) -> nn.Sequential:
    """The same network with its logits multiplied."""
    with torch.no_grad():
        for values in model[-1].parameters():
            values *= factor
    return model


def naive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    chosen = model(x).softmax(-1).gather(-1, y[:, None])
    return torch.autograd.grad(chosen.sum(), x)[0].abs()


@pytest.mark.parametrize("factor", [30, 300, 1000, 30_000])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_sure_model_keeps_its_ranking(classes: int, factor: float) -> None:
    # grad p = p (1 - p) grad m. Far from a decision 1 - p is below what single precision can tell
    # from zero, and all but the leading rival are out of the race: m is the margin there.
    model = times(tiny_mlp(classes=classes, activation=nn.LeakyReLU), factor).float()
    x = 6 * numbers(60, 6, seed=2).float()
    y = predicted(model, x)
    far = by_hand(model, "margin")(x).gather(-1, y[:, None]).squeeze(-1) > 20
    rivals = model(x).topk(classes).values
    if classes == 3:
        far &= rivals[:, 1] - rivals[:, 2] > 20
    x, y = x[far], y[far]
    assert len(x) >= 10
    lost = (naive(model, x, y) == 0).all(-1)
    if factor >= 300:
        assert lost.sum() >= 5
    for k in range(1, 6):
        assert not ties(gradient(model, x, y), k).any()
        assert ties(naive(model, x, y), k)[lost].all()
    sure, by_margin = gradient(model, x, y), Gradient(of="margin")(model, x, y)
    assert torch.equal(order(sure), order(by_margin))
    # The softmax rounds p to 1 first and forgets the own class, then rounds the others to 0.
    assert not torch.equal(order(naive(model, x, y)), order(by_margin))
    shares = [part / part.sum(-1, keepdim=True) for part in (sure, by_margin)]
    torch.testing.assert_close(*shares, rtol=1e-4, atol=1e-6)


def test_the_floor_is_out_of_sight_of_ordinary_models() -> None:
    # Up to odds of e^60 the single precision slope is that of double precision, feature by feature.
    model, x = times(tiny_mlp(), 30), numbers(20, 6, seed=2)
    y = predicted(model, x)
    odds = log_odds(model(x), y)
    assert 50 < odds.max() < 60
    expected = gradient(model, x, y)
    found = gradient(model.float(), x.float(), y)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=0)


def test_a_sure_models_explanation_has_finite_slopes() -> None:
    model, x = times(tiny_mlp(classes=3), 1000).float(), numbers(5, 6).float().requires_grad_()
    for form in FORMS:
        found = Gradient(form=form)(model, x, predicted(model, x))
        slopes = torch.autograd.grad(found.sum(), [x, *model.parameters()], allow_unused=True)
        assert all(part.isfinite().all() for part in slopes if part is not None)


def test_chunks_count_inputs_that_hang_on_the_weights_once() -> None:
    # x is made of the weights themselves: their gradient has a share through x, which must not be
    # added once more by each chunk that is computed again.
    model, y = tiny_mlp(), ones(3)
    weights = list(model.parameters())
    found = []
    for rows_at_once in (100, 1):
        x = numbers(3, 6) * weights[0].square().sum()
        explain = SmoothGrad(samples=3, rows_at_once=rows_at_once)
        total = explain(model, x, y).square().sum()
        found.append(torch.autograd.grad(total, weights, create_graph=True))
    for whole, chunks in zip(*found, strict=True):
        torch.testing.assert_close(chunks, whole)


def test_one_output_is_shared_by_two_classes() -> None:
    # Log-odds z are the logits -z/2 and z/2: z apart, and neither of them without a slope.
    z = torch.tensor([3.0, -1.0], dtype=torch.float64)
    for shape in (z, z[:, None]):
        assert two_logits(shape).tolist() == [[-1.5, 1.5], [0.5, -0.5]]
        assert log_odds(shape, ones(2)).tolist() == [3.0, -1.0]
        assert log_odds(shape, 1 - ones(2)).tolist() == [-3.0, 1.0]
        assert margin(shape, ones(2)).tolist() == [3.0, -1.0]


def test_a_margin_is_over_the_largest_other() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0], [4.0, 1.0, 3.0]], dtype=torch.float64)
    assert margin(logits, torch.tensor([1, 1])).tolist() == [3.0, -3.0]
    assert margin(logits, torch.tensor([2, 0])).tolist() == [-3.0, 1.0]


def test_classes_that_rounding_alone_could_decide_are_accepted() -> None:
    # Logits 1 and 1 + d: y = 0 is not what is predicted, but d is within the square root of what a
    # number can tell apart; a larger one is refused.
    x = torch.ones(2, 1, dtype=torch.float64)
    for apart, accepted in ((0.0, True), (1e-9, True), (1e-6, False)):
        model = nn.Linear(1, 2, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0], [1.0 + apart]]))
        if accepted:
            check_predicted(model, x, torch.zeros(2).long(), 1)
        else:
            words = refusal(lambda model=model: check_predicted(model, x, torch.zeros(2).long(), 1))
            assert "2 of 2 rows are predicted otherwise" in words


def test_a_neuron_with_a_map_responds_by_its_mean() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(12, 2)).double()
    x = numbers(2, 1, 3, 3)
    found = Activations(layer="0")(model, x, ones(2))
    torch.testing.assert_close(found, model[0](x).mean((2, 3)))


def test_log_odds_are_exact_however_sure_the_model_is() -> None:
    # Two classes: m = z_1 - z_0. Three: z_0 - ln(e^{z_1} + e^{z_2}), with e^{-800} gone beside 1.
    sure = torch.tensor([[0.0, 800.0], [800.0, 0.0]], dtype=torch.float64)
    assert log_odds(sure, ones(2)).tolist() == [800.0, -800.0]
    three = torch.tensor([[900.0, 100.0, -700.0]], dtype=torch.float64)
    assert log_odds(three, torch.tensor([0])).item() == pytest.approx(800)
    logits, y = numbers(50, 4), torch.arange(50) % 4
    p = logits.softmax(-1).gather(-1, y[:, None]).squeeze(-1)
    torch.testing.assert_close(log_odds(logits, y), (p / (1 - p)).log())
    two, y = logits[:, :2], torch.arange(50) % 2
    torch.testing.assert_close(log_odds(two, y), margin(two, y))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.LeakyReLU])
def test_two_classes_rank_alike_by_probability_margin_and_loss(
    activation: type[nn.Module],
) -> None:
    # grad p = p (1 - p) grad m and grad(-ln p) = -(1 - p) grad m: one direction, three lengths.
    model, x = tiny_mlp(activation=activation), numbers(20, 6, seed=1).requires_grad_()
    y = torch.arange(20) % 2
    (of_loss,) = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), x)
    torch.testing.assert_close(Gradient(of="loss", form="signed")(model, x, y).detach(), of_loss)
    shares = [
        part / part.norm(dim=-1, keepdim=True)
        for part in (gradient(model, x, y), Gradient(of="margin")(model, x, y), of_loss.abs())
    ]
    torch.testing.assert_close(shares[0], shares[1])
    torch.testing.assert_close(shares[0].detach(), shares[2])
    assert torch.equal(order(shares[0]), order(shares[2]))


def test_any_number_of_classes_ranks_alike_by_probability_and_loss() -> None:
    # -ln p falls as p rises, whatever p is made of; logits that are 400 apart leave no p to see.
    for scale in (1, 400):
        model, x = times(tiny_mlp(classes=4), scale), numbers(20, 6, seed=1)
        y = predicted(model, x)
        by_loss = Gradient(of="loss")(model, x, y)
        assert torch.equal(order(by_loss), order(gradient(model, x, y)))
        assert not ties(by_loss, 3).any()


# --- forms and groups ---


@every_explainer
@pytest.mark.parametrize("form", FORMS)
def test_groups_are_totals(explain: InputExplainer, form: Form) -> None:
    model, x, y, groups = tiny_mlp(), numbers(3, 6), ones(3), (2, 0, 0, 1, 2, 2)
    with torch.no_grad():
        single = replace(explain, form="signed")(model, x, y)
        found = replace(explain, form=form, groups=groups)(model, x, y)
    assert found.shape == (3, 3)
    for row, totals in zip(single.tolist(), found.tolist(), strict=True):
        magnitudes = form in ("absolute", "normalised")
        values = [abs(value) for value in row] if magnitudes else row
        slow = [
            sum(v for v, g in zip(values, groups, strict=True) if g == group) for group in range(3)
        ]
        if form == "normalised":
            slow = [total / sum(slow) for total in slow]
        if form in ("against", "both"):
            slow = [-total if form == "against" else abs(total) for total in slow]
        assert totals == pytest.approx(slow)


@every_explainer
def test_normalised_explanations_sum_to_one(explain: InputExplainer) -> None:
    for shape, model in [((6,), tiny_mlp()), ((1, 6, 6), conv_net())]:
        found = replace(explain, form="normalised")(model, numbers(3, *shape), ones(3))
        torch.testing.assert_close(found.sum(-1), torch.ones(3).double())
        assert (found >= 0).all()


@every_explainer
@pytest.mark.parametrize("form", FORMS)
def test_an_explanation_of_nothing_is_zero(explain: InputExplainer, form: Form) -> None:
    # Without output weights the logits are constant: no feature has a share in them.
    model, x = times(tiny_mlp(), 0), numbers(3, 6).requires_grad_()
    found = replace(explain, form=form)(model, x, ones(3))
    assert torch.equal(found, torch.zeros_like(found))
    slopes = torch.autograd.grad(
        (found * numbers(3, 6, seed=1)).sum(), [x, *model.parameters()], allow_unused=True
    )
    assert all(part.isfinite().all() for part in slopes if part is not None)


@every_explainer
def test_an_empty_batch_has_no_explanations(explain: InputExplainer) -> None:
    assert explain(tiny_mlp(), numbers(0, 6), ones(0)).shape == (0, 6)


# --- projected explanations ---

# Six columns: the first a number of its own, the others one-hot groups, not side by side.
ONE_HOT = [(1, 4), (5, 2, 3)]
WIDE = 2 * NARROW
# Two ways to the same projection: by its matrix, and without it.
every_width = pytest.mark.parametrize("d", [6, WIDE], ids=["narrow", "wide"])


def real_inputs(count: int) -> Tensor:
    """Rows whose groups are truly one-hot."""
    x = torch.zeros(count, 6, dtype=torch.float64)
    x[:, 0] = numbers(count, seed=2)
    for group in ONE_HOT:
        x[torch.arange(count), [group[row % len(group)] for row in range(count)]] = 1
    return x


class Gauged(nn.Module):
    """A model with c_g (sum of group g - 1) added, each class's c_g = `c` (C, groups)."""

    def __init__(self, model: nn.Module, c: Tensor) -> None:
        super().__init__()
        self.model, self.c = model, c

    def forward(self, x: Tensor) -> Tensor:
        excess = torch.stack([x[:, list(group)].sum(-1) - 1 for group in ONE_HOT], dim=-1)
        logits: Tensor = self.model(x) + excess @ self.c.T
        return logits


def moved_by_the_gauge(explain: InputExplainer, x: Tensor, of: Quantity, classes: int = 2) -> float:
    """Largest change of an explanation, relative to its largest score."""
    model = tiny_mlp(classes=classes)
    gauged = Gauged(model, 3 * numbers(classes, len(ONE_HOT), seed=6))
    y = torch.arange(len(x)) % classes
    with torch.no_grad():
        before, after = replace(explain, of=of)(model, x, y), replace(explain, of=of)(gauged, x, y)
    return float((after - before).abs().max() / before.abs().max())


ROUNDING, PLAIN_TO_SEE = 1e-12, 1e-2


@every_width
def test_a_projected_gradient_is_the_projection_of_its_definition(d: int) -> None:
    slopes, P = numbers(4, d), torch.eye(d, dtype=torch.float64)
    for group in ONE_HOT:
        ones_in_group = torch.zeros(d, dtype=torch.float64)
        ones_in_group[list(group)] = 1
        P -= torch.outer(ones_in_group, ones_in_group) / len(group)
    found = project_one_hot(slopes, ONE_HOT)
    torch.testing.assert_close(found, slopes @ P, rtol=0, atol=1e-14)
    torch.testing.assert_close(found, project_one_hot(found, ONE_HOT), rtol=0, atol=1e-14)
    others = sorted({*range(d)} - {column for group in ONE_HOT for column in group})
    assert torch.equal(found[:, others], slopes[:, others])
    assert (found - slopes).abs().max() > 0.1


@every_width
def test_a_projected_gradient_has_no_off_data_share(d: int) -> None:
    slopes = numbers(4, d) + 5
    assert off_data_share(slopes, ONE_HOT).min() > 0.01
    assert off_data_share(project_one_hot(slopes, ONE_HOT), ONE_HOT).max() < 1e-28


@every_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_projected_gradient_keeps_shape_and_format(d: int, dtype: torch.dtype) -> None:
    flat = numbers(4, d).to(dtype)
    picture = flat.view(4, 2, d // 2)
    found = project_one_hot(picture, ONE_HOT)
    assert found.dtype == dtype
    assert found.shape == picture.shape
    assert torch.equal(found.flatten(1), project_one_hot(flat, ONE_HOT))
    assert torch.equal(project_one_hot(flat[:0], ONE_HOT), flat[:0])
    assert project_one_hot(flat, []) is project_one_hot(flat, None) is flat


@every_width
def test_a_projected_gradient_can_be_differentiated_twice(d: int) -> None:
    first, rest = numbers(2, 6).requires_grad_(), numbers(2, d - 6)

    def cubes(first: Tensor) -> Tensor:
        return project_one_hot(torch.cat([first, rest], dim=-1), ONE_HOT)[:, :6].pow(3)

    assert gradcheck(cubes, first)
    assert gradgradcheck(cubes, first)


def test_the_two_columns_of_a_group_tie() -> None:
    # (a - b) / 2 and (b - a) / 2. Were they apart by rounding, it would rank them by chance.
    found = project_one_hot(numbers(500, 6) * 10 ** numbers(500, 6, seed=1), ONE_HOT)
    assert torch.equal(found[:, 1], -found[:, 4])


def test_wide_slopes_need_no_square_matrix() -> None:
    slopes, groups = torch.ones(3, 20_000), [(2 * i, 2 * i + 1) for i in range(10_000)]
    with Largest() as largest:
        found = project_one_hot(slopes, groups)
    assert largest.numel < 2 * slopes.numel()
    assert torch.equal(found, torch.zeros_like(found))


def test_a_projection_first_met_in_inference_serves_training() -> None:
    groups = [(0, 3), (1, 2)]  # of no other test
    with torch.inference_mode():
        project_one_hot(numbers(2, 6), groups)
    slopes = numbers(2, 6).requires_grad_()
    assert gradcheck(lambda slopes: project_one_hot(slopes, groups), slopes)


@every_explainer
@every_quantity
def test_projected_explanations_can_be_attacked_and_trained(
    explain: InputExplainer, of: Quantity
) -> None:
    # Central differences by every input number and every weight.
    model, x = tiny_mlp(hidden=2, classes=3), real_inputs(2).add(0.1).requires_grad_()
    y = torch.tensor([0, 2])
    settings: Any = {"of": of, "one_hot": ONE_HOT}
    assert gradcheck(
        lambda x, *weights: replace(explain, **settings)(model, x, y), (x, *model.parameters())
    )


@every_explainer
@pytest.mark.parametrize("rows_at_once", [1, 3, 11])
def test_chunks_change_nothing_of_projected_explanations(
    explain: InputExplainer, rows_at_once: int
) -> None:
    model, x, y = tiny_mlp(classes=3), real_inputs(5).requires_grad_(), torch.arange(5) % 3
    by = [x, *model.parameters()]
    whole = replace(explain, one_hot=ONE_HOT)(model, x, y)
    parts = replace(explain, one_hot=ONE_HOT, rows_at_once=rows_at_once)(model, x, y)
    torch.testing.assert_close(parts, whole)
    for found, expected in zip(derivatives_of(parts, by), derivatives_of(whole, by), strict=True):
        torch.testing.assert_close(found, expected)


def test_projected_explanations_of_a_quadratic_by_hand() -> None:
    # The mean slope m, Az + b at the mean place z, gives P m first, and only then the product.
    model, x, x0 = Quadratic(d=6), numbers(4, 6, seed=3), numbers(6, seed=4)
    A, b = model.A.detach(), model.b.detach()
    drawn = torch.randn(9, 6, generator=stream(2, "smooth-grad"), dtype=torch.float64)
    noisy = x + 0.3**0.5 * drawn.mean(0)
    for explain, mean_place, factor in [
        (gradient, x, torch.ones_like(x)),
        (GradientTimesInput(), x, x),
        (SmoothGrad(samples=9, variance=0.3, seed=2), noisy, torch.ones_like(x)),
        (IntegratedGradients(baseline=x0), (x + x0) / 2, x - x0),
    ]:
        signed = project_one_hot(mean_place @ A + b, ONE_HOT) * factor
        found = replace(explain, one_hot=ONE_HOT, **signed_logit)(model, x, ones(4)).detach()
        torch.testing.assert_close(found, signed)
        absolute = replace(explain, one_hot=ONE_HOT, of="logit")(model, x, ones(4)).detach()
        torch.testing.assert_close(absolute, signed.abs())


@every_explainer
@pytest.mark.parametrize(("of", "classes"), [("logit", 2), ("logit", 3), ("margin", 2)])
def test_no_gauge_moves_the_projected_explanation_of_a_logit(
    explain: InputExplainer, of: Quantity, classes: int
) -> None:
    # The slope of c (sum of the group - 1) is c in each of its columns, anywhere: P removes it. Of
    # three classes it could make another one the runner-up, of which a margin is taken, though.
    for x in (real_inputs(6), numbers(6, 6, seed=1)):
        free = replace(explain, one_hot=ONE_HOT)
        assert moved_by_the_gauge(free, x, of, classes) < ROUNDING
        assert moved_by_the_gauge(explain, x, of, classes) > PLAIN_TO_SEE


@pytest.mark.parametrize("name", ["grad", "grad-x-input"])
@every_quantity
@pytest.mark.parametrize("classes", [2, 3])
def test_no_gauge_moves_the_projected_explanation_of_a_real_input(
    name: str, of: Quantity, classes: int
) -> None:
    # There sum - 1 = 0: probabilities and runners-up are those of the model without it.
    free = replace(SMALL[name], one_hot=ONE_HOT)
    assert moved_by_the_gauge(free, real_inputs(6), of, classes) < ROUNDING
    assert moved_by_the_gauge(SMALL[name], real_inputs(6), of, classes) > PLAIN_TO_SEE


@pytest.mark.parametrize("name", ["grad", "grad-x-input"])
def test_beside_real_inputs_a_gauge_moves_no_share_of_two_classes(name: str) -> None:
    # grad p = p (1 - p) grad m: p is another one there, a factor that the shares do not see.
    x, free = numbers(6, 6, seed=1), replace(SMALL[name], one_hot=ONE_HOT)
    shares = replace(free, form="normalised")
    assert moved_by_the_gauge(shares, x, "probability") < ROUNDING
    assert moved_by_the_gauge(free, x, "probability") > PLAIN_TO_SEE
    assert moved_by_the_gauge(shares, x, "probability", classes=3) > PLAIN_TO_SEE


@every_quantity
def test_a_line_between_real_inputs_meets_no_gauge(of: Quantity) -> None:
    # From 0 the sum of a group grows from 0 to 1, from a real x0 it is 1 all the way.
    x, x0 = real_inputs(6), real_inputs(4).mean(0)
    free = IntegratedGradients(points=7, one_hot=ONE_HOT)
    assert moved_by_the_gauge(replace(free, baseline=x0), x, of, classes=3) < ROUNDING
    if of != "logit":
        assert moved_by_the_gauge(free, x, of, classes=3) > PLAIN_TO_SEE
    # SmoothGrad's places are never real ones.
    smooth = replace(SMALL["smooth-grad"], one_hot=ONE_HOT)
    if of == "probability":
        assert moved_by_the_gauge(smooth, x, of) > PLAIN_TO_SEE


def test_projected_integrated_gradients_between_real_inputs_add_up() -> None:
    # x - x0 sums to 0 in each group, so P (x - x0) = x - x0: nothing of f(x) - f(x0) is lost.
    model, x, x0 = tiny_mlp(), real_inputs(6), real_inputs(4).mean(0)
    settings: Any = {"of": "logit", "form": "signed", "one_hot": ONE_HOT}
    with torch.no_grad():
        rise = model(x)[:, 1] - model(x0[None])[:, 1]
        found = IntegratedGradients(baseline=x0, **settings)(model, x, ones(6))
        from_zero = IntegratedGradients(**settings)(model, x, ones(6))
        rise_from_zero = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    torch.testing.assert_close(found.sum(-1), rise, rtol=0, atol=1e-5)
    assert (from_zero.sum(-1) - rise_from_zero).abs().max() > PLAIN_TO_SEE


@every_width
@pytest.mark.parametrize(
    ("one_hot", "words"),
    [
        ([(0, 1), (2, WIDE)], rf"got 0..{WIDE}"),
        ([(0, 1), (-1, 2)], "got -1..2"),
        ([(0, 1), (1, 2)], "column 1 is named 2 times"),
        ([(0, 1), (3, 2, 3)], "column 3 is named 2 times"),
        ([(0, 1), ()], "group 1 is empty"),
        ([()], "group 0 is empty"),
    ],
)
def test_groups_that_cannot_be_one_hot_are_refused(d: int, one_hot: Any, words: str) -> None:
    for _ in range(2):  # a projection that was refused is not remembered
        assert words in refusal(lambda: project_one_hot(numbers(3, d), one_hot))


# --- noise ---


def test_noise_depends_on_the_seed_only() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), ones(3)
    assert torch.equal(SmoothGrad()(model, x, y), SmoothGrad(seed=0)(model, x, y))
    assert not torch.equal(SmoothGrad()(model, x, y), SmoothGrad(seed=1)(model, x, y))
    torch.testing.assert_close(SmoothGrad(variance=0.0)(model, x, y), gradient(model, x, y))


def test_fresh_noise_follows_its_generator_only() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), ones(3)

    def fresh(generator: torch.Generator, seed: int = 0) -> Tensor:
        return SmoothGrad(generator=generator, seed=seed)(model, x, y)

    generator, everyones = stream(1, "test"), torch.random.get_rng_state()
    first, second = fresh(generator), fresh(generator)
    assert not torch.equal(first, second)
    generator = stream(1, "test")
    assert torch.equal(fresh(generator, seed=5), first)
    assert torch.equal(fresh(generator, seed=6), second)
    assert torch.equal(torch.random.get_rng_state(), everyones)


def test_fresh_noise_is_shared_by_all_examples_of_a_call() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), torch.tensor([0, 1, 1])
    together = SmoothGrad(generator=stream(1, "test"))(model, x, y)
    for i in range(3):
        alone = SmoothGrad(generator=stream(1, "test"))(model, x[i : i + 1], y[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone)


def test_the_mean_over_fresh_noise_is_the_expectation() -> None:
    # The slope at x + s is A (x + s) + b, E[s] = 0: its mean over N draws of variance v is normal
    # around Ax + b, feature i with variance v ||A_i||^2 / N.
    model, x, generator = Quadratic(d=5), numbers(4, 5, seed=3), stream(0, "test")
    A, b, calls, samples, variance = model.A.detach(), model.b.detach(), 500, 10, 0.3
    with torch.no_grad():
        found = torch.stack(
            [
                SmoothGrad(
                    samples=samples,
                    variance=variance,
                    generator=generator,
                    of="logit",
                    form="signed",
                )(model, x, ones(4))
                for _ in range(calls)
            ]
        )
    deviation = (variance / samples) ** 0.5 * A.norm(dim=0)
    errors = (found.mean(0) - (x @ A + b)) / (deviation / calls**0.5)
    assert errors.abs().max() < 4
    spread = found.std(0) / deviation
    torch.testing.assert_close(spread, torch.ones_like(spread), rtol=0.1, atol=0)


@pytest.mark.parametrize("rows_at_once", [1, 3, 11])
def test_chunks_are_computed_again_with_the_noise_first_drawn(rows_at_once: int) -> None:
    model, x, y = tiny_mlp(), numbers(5, 6).requires_grad_(), torch.arange(5) % 2
    by = [x, *model.parameters()]

    def twice(rows_at_once: int) -> list[Tensor]:
        generator = stream(3, "test")
        values = SmoothGrad(samples=7, generator=generator, rows_at_once=rows_at_once)(model, x, y)
        after_the_call = generator.get_state()
        once = derivatives_of(values, by, create_graph=True)
        length = torch.stack([part.square().sum() for part in once]).sum()
        again = torch.autograd.grad(length, by, allow_unused=True, materialize_grads=True)
        assert torch.equal(generator.get_state(), after_the_call)
        return [values.detach(), *(part.detach() for part in once), *again]

    for found, expected in zip(twice(rows_at_once), twice(10**6), strict=True):
        torch.testing.assert_close(found, expected)


# --- refusals ---


class Returns(nn.Module):
    """A model that answers as it is told."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


def with_value(value: float) -> Tensor:
    x = numbers(3, 6)
    x[1, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (with_value(torch.nan), "row 1 has a NaN"),
        (with_value(torch.inf), "row 1 has a NaN or infinite"),
        (with_value(-torch.inf), "row 1 has a NaN or infinite"),
        (numbers(6), "one row for each example"),
        (torch.ones(3, 6, dtype=torch.long), "floating-point"),
    ],
)
def test_inputs_that_cannot_be_explained_are_refused(x: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_inputs(tiny_mlp(), x)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.tensor([0, 1]), "each of the 3 examples"),
        (torch.tensor([[0], [1], [0]]), "each of the 3 examples"),
        (torch.tensor([0.0, 1.0, 0.0]), "float32"),
        (torch.tensor([0, 1, 0], dtype=torch.int32), "int32"),
        (torch.tensor([False, True, False]), "bool"),
        (torch.tensor([0, 1, 2]), r"0\.\.1, got 0\.\.2"),
        (torch.tensor([0, 1, -1]), r"0\.\.1, got -1\.\.1"),
    ],
)
def test_labels_that_name_no_class_are_refused(y: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_inputs(tiny_mlp(), numbers(3, 6), y)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: x[:, :0], r"two or more classes.*\(1, 0\)"),
        (lambda x: x[0], r"a row of logits for each of 1 examples.*\(6,\)"),
        (lambda x: x[:, :, None], r"two or more classes.*\(1, 6, 1\)"),
        (lambda x: (x, x), "tuple"),
        (lambda x: x * torch.nan, "NaN or infinite logits"),
        (lambda x: x / 0, "NaN or infinite logits"),
    ],
)
def test_models_without_class_scores_are_refused(answer: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_inputs(Returns(answer), numbers(3, 6))


def test_a_sound_case_passes_and_is_left_alone() -> None:
    model, x, y = mixing_mlp(), numbers(3, 6), torch.tensor([0, 1, 1])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_inputs(model, x, y)
    check_inputs(model, x[:0], y[:0])
    check_inputs(conv_net(), numbers(2, 1, 6, 6), torch.tensor([0, 2]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.training for part in model.modules())


@every_explainer
def test_settings_without_a_meaning_are_refused(explain: InputExplainer) -> None:
    case: Any = (tiny_mlp(), numbers(3, 6), ones(3))
    for settings, words in [
        ({"of": "entropy"}, "'entropy'"),
        ({"form": "squared"}, "'squared'"),
        ({"groups": (0, 1)}, "6 columns, got 2"),
        ({"one_hot": [(0, 6)]}, r"columns 0\.\.5, got 0\.\.6"),
        ({"rows_at_once": 0}, "at least 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            replace(explain, **settings)(*case)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1])
def test_no_points_no_explanation(count: int) -> None:
    case: Any = (tiny_mlp(), numbers(3, 6), ones(3))
    with pytest.raises(ValueError, match="at least 1"):
        IntegratedGradients(points=count)(*case)
    with pytest.raises(ValueError, match="samples >= 1"):
        SmoothGrad(samples=count)(*case)


def test_negative_variance_is_refused() -> None:
    with pytest.raises(ValueError, match="variance >= 0"):
        SmoothGrad(variance=-0.1)(tiny_mlp(), numbers(3, 6), ones(3))


# --- predictions ---


def test_predictions_are_those_of_prediction_mode() -> None:
    model, x = mixing_mlp(classes=3), numbers(30, 6)
    found = predicted(model, x)
    assert all(part.training for part in model.modules())
    assert torch.equal(found, model.eval()(x).argmax(-1))
    assert found.unique().numel() > 1


def test_a_slope_follows_its_caller() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    assert input_gradient(model, x, ones(3)).requires_grad
    with torch.no_grad():
        assert not input_gradient(model, x.clone().requires_grad_(), ones(3)).requires_grad
