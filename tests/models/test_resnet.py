"""Residual networks, against a transcription of torchvision's and finite differences."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call

from brief import brief
from closed_form import numbers
from r2et.certification import certify
from r2et.core.autograd import piecewise_linear
from r2et.core.rng import stream
from r2et.explainers import Explainer, Gradient, slopes
from r2et.models import MODELS
from r2et.models.resnet import ResNet
from r2et.models.smoothing import softened
from r2et.training.checkpoint import load, save
from refusals import refusal

TINY: dict[str, Any] = {"channels": 2, "classes": 3, "width": 2}
PLANS: dict[str, dict[str, Any]] = {
    "small": {},
    "large": {"stem": "large", "mean": [0.4, 0.6], "std": [0.2, 0.3]},
    "penultimate": {"penultimate": 5, "blocks": [1, 1]},
    "no norm": {"norm": "none", "blocks": [1, 1, 1, 1]},
    "softplus": {"activation": "softplus"},
}
every_plan = pytest.mark.parametrize("plan", PLANS)


def build(plan: str = "small", seed: int = 0, **changes: Any) -> ResNet:
    settings = TINY | PLANS[plan] | changes
    model = MODELS["resnet18"].build(**settings, generator=stream(seed, "test"))
    assert isinstance(model, ResNet)
    return model


def trained(plan: str = "small", **changes: Any) -> ResNet:
    """A network in training mode whose normalisations are not those of the start any more."""
    model = build(plan, **changes).double()
    for number, part in enumerate(model.modules()):
        if isinstance(part, nn.BatchNorm2d):
            part.weight.data += 0.2 * numbers(part.num_features, seed=number)
            part.bias.data += 0.2 * numbers(part.num_features, seed=number + 1)
    for seed in range(10):
        model(pictures(8, seed=seed))
    return model


def pictures(count: int = 3, size: tuple[int, int] = (12, 8), seed: int = 1) -> Tensor:
    return numbers(count, 2, *size, seed=seed).sigmoid()


# --- the network ---


def reference(weights: Iterator[Tensor], x: Tensor, stem: str, blocks: Sequence[int]) -> Tensor:
    """torchvision's ResNet of basic blocks, at prediction time, its weights in its own order."""

    def normalised_conv(x: Tensor, stride: int) -> Tensor:
        kernel = next(weights)
        x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        gamma, beta, mean, variance, _ = (next(weights) for _ in range(5))
        gamma, beta, mean, variance = (v[:, None, None] for v in (gamma, beta, mean, variance))
        return gamma * (x - mean) / (variance + 1e-5).sqrt() + beta

    x = normalised_conv(x, 2 if stem == "large" else 1).relu()
    if stem == "large":
        x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            out = normalised_conv(normalised_conv(x, stride).relu(), 1)
            x = (out + (normalised_conv(x, stride) if stride == 2 else x)).relu()
    return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), next(weights), next(weights))


@pytest.mark.parametrize("plan", ["small", "large"])
def test_a_resnet_is_torchvisions(plan: str) -> None:
    model, x = trained(plan).eval(), pictures(size=(40, 33))
    mean, std, *weights = model.state_dict().values()
    expected = reference(iter(weights), (x - mean) / std, plan, (2, 2, 2, 2))
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"stem": "large", "classes": 1000}, 11_689_512), ({}, 11_173_962)],
    ids=["torchvision", "CIFAR-10"],
)
def test_the_whole_one_has_the_known_number_of_weights(settings: Any, count: int) -> None:
    model = MODELS["resnet18"].build(**settings, generator=stream(0, "test"))
    assert isinstance(model, ResNet)
    assert sum(weight.numel() for weight in model.parameters()) == count
    with torch.no_grad():
        assert model.eval().features(torch.zeros(1, 3, 32, 32)).shape == (1, 512)


@every_plan
def test_logits_are_made_of_the_penultimate_neurons(plan: str) -> None:
    model, x = trained(plan).eval(), pictures()
    features = model.features(x)
    assert features.shape == (3, {"penultimate": 5}.get(plan, 16))
    assert (features >= 0).all()
    torch.testing.assert_close(model(x), features @ model.head.weight.T + model.head.bias)


def test_pictures_are_normalised_inside() -> None:
    model, x = trained("large").eval(), pictures()
    bare = copy.deepcopy(model)
    bare.mean.zero_()
    bare.std.fill_(1.0)
    shift, width = (torch.tensor(v).double()[:, None, None] for v in ([0.4, 0.6], [0.2, 0.3]))
    torch.testing.assert_close(model(x), bare((x - shift) / width), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"stem": "wide"}, "stem"),
        ({"norm": "layer"}, "norm"),
        ({"blocks": ()}, "block"),
        ({"blocks": (2, 0)}, "block"),
        ({"mean": (0.1, 0.2, 0.3)}, "2 channels"),
        ({"std": 0.0}, "above 0"),
    ],
)
def test_unknown_choices_are_refused(settings: Any, word: str) -> None:
    assert word in refusal(lambda: build(**settings))


# --- derivatives ---


def score(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    found: Tensor = functional_call(model, dict(weights), (x,))[:, 1].sum()
    return found


@every_plan
def test_slopes_match_finite_differences(plan: str) -> None:
    model, x, step = trained(plan).eval(), pictures(), 1e-7
    slope = Gradient(of="logit", form="signed")(model, x, torch.ones(3, dtype=torch.long))
    for seed in range(3):
        way = numbers(*x.shape, seed=seed)
        rise = score(model, {}, x + step * way) - score(model, {}, x - step * way)
        torch.testing.assert_close(
            (slope * way.flatten(1)).sum(), rise / (2 * step), rtol=1e-5, atol=1e-7
        )


@every_plan
def test_slopes_by_weights_of_a_slope_match_finite_differences(plan: str) -> None:
    # What training on explanations needs: the derivative by each weight of c'grad_x f(x), and of
    # its square, which has a second derivative by x in it where the network is smooth.
    model, x, step = trained(plan).eval(), pictures(), 1e-6
    c, weights = numbers(*x.shape, seed=9), dict(model.named_parameters())

    def steepness(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.requires_grad_()
        (slope,) = torch.autograd.grad(score(model, weights, x), x, create_graph=True)
        return (c * slope).sum() + slope.square().sum()

    x = x.requires_grad_()
    by = [*weights.values(), x]
    found = torch.autograd.grad(steepness(weights, x), by, allow_unused=True)
    for seed in range(3):
        ways = [numbers(*value.shape, seed=seed + place) for place, value in enumerate(by)]
        ends = []
        for sign in (1, -1):
            *moved, there = ((v + sign * step * w).detach() for v, w in zip(by, ways, strict=True))
            ends.append(steepness(dict(zip(weights, moved, strict=True)), there))
        expected = (ends[0] - ends[1]) / (2 * step)
        along = sum((f * w).sum() for f, w in zip(found, ways, strict=True) if f is not None)
        torch.testing.assert_close(along, expected, rtol=1e-5, atol=1e-6)
        assert expected.abs() > 1e-4


def test_an_even_picture_has_finite_derivatives() -> None:
    model = trained("large").eval()
    x = torch.zeros(3, 2, 12, 8, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(score(model, {}, x), x, create_graph=True)
    again = torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True)
    assert slope.isfinite().all()
    assert all(part.isfinite().all() for part in again if part is not None)


# --- promises ---


@every_plan
@pytest.mark.parametrize("explain", [brief(each, 3) for each in slopes().values()], ids=slopes())
def test_an_example_is_explained_alone(plan: str, explain: Explainer) -> None:
    model, x, y = trained(plan), pictures(), torch.arange(3)
    before = copy.deepcopy(model.state_dict())
    alone = [explain(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(explain(model, x, y), torch.cat(alone))
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@every_plan
def test_weights_come_from_the_stream_alone(plan: str) -> None:
    before = torch.random.get_rng_state()
    once, again, other = (build(plan, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    theirs, others = again.state_dict(), other.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in once.state_dict().items())
    for key, layer in once.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert not torch.equal(layer.weight, others[f"{key}.weight"])
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            assert not layer.bias.any()
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()


def test_convolutions_are_drawn_normal() -> None:
    # Kaiming's rule by outputs: variance 2 / (9 channels out).
    layer = build(width=32).body[0]
    assert isinstance(layer, nn.Conv2d)
    normal = stats.norm(0, (2 / (9 * 32)) ** 0.5).cdf
    assert stats.kstest(layer.weight.detach().flatten(), normal).pvalue > 0.01
    head = build(width=32).head
    assert 0.95 * 256**-0.5 < head.weight.abs().max() <= 256**-0.5


@every_plan
def test_a_saved_model_is_built_again(plan: str, tmp_path: Path) -> None:
    model, x = trained(plan), pictures()
    recipe = {"model": {"name": "resnet18", **TINY, **PLANS[plan]}}
    found, told = load(save(tmp_path / "model.safetensors", model, recipe))
    assert told == recipe
    assert torch.equal(found.eval()(x), model.eval()(x))


def test_kinks_can_be_rounded() -> None:
    model, x = trained().eval(), pictures()
    smooth = softened(model, 1e5)
    assert smooth is not None
    assert not any(isinstance(part, nn.ReLU) for part in smooth.modules())
    torch.testing.assert_close(smooth(x), model(x), rtol=0, atol=1e-2)


def test_only_networks_of_kinks_are_piecewise_linear() -> None:
    assert piecewise_linear(build("no norm"))
    assert not piecewise_linear(build("no norm", activation="softplus"))


@pytest.mark.parametrize("plan", ["penultimate", "no norm"])
def test_a_resnet_can_be_certified(plan: str) -> None:
    model, x = trained(plan), pictures(2, (8, 8))
    found = certify(model, x, k=5, steps=4)
    assert (found.radius > 0).all()
    assert (found.radius < 1).all()


def test_padded_pooling_cannot_be_certified() -> None:
    assert "max pooling" in refusal(lambda: certify(trained("large"), pictures(1), k=5))
