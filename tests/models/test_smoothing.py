"""Blurred pictures, against sums written out, and what smooth copies of networks keep."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from closed_form import numbers
from r2et import attack, certify
from r2et.core.rng import stream
from r2et.explainers import input_gradient, predicted
from r2et.methods import METHODS
from r2et.models import MODELS, build
from r2et.models.smoothing import Blur, Smoothing, with_blur, with_softplus
from r2et.training.checkpoint import load, save
from refusals import refusal

RESNET: dict[str, Any] = {"width": 2, "blocks": [1, 1], "classes": 3, "activation": "softplus"}


def resnet() -> nn.Module:
    return MODELS["resnet18"].build(**RESNET, generator=stream(0, "test")).double().eval()


@pytest.mark.parametrize("sigma", [0.4, 1.0, 1.7])
def test_a_blur_matches_its_sum_pixel_by_pixel(sigma: float) -> None:
    x, reach = numbers(2, 3, 6, 5, seed=1), math.ceil(3 * sigma)
    found = Blur(sigma).double()(x)
    away = range(-reach, reach + 1)
    whole = sum(math.exp(-(i * i + j * j) / (2 * sigma**2)) for i in away for j in away)
    assert found.shape == x.shape
    for b, c, row, column in torch.ones(x.shape).nonzero().tolist():
        slow = sum(
            math.exp(-(i * i + j * j) / (2 * sigma**2))
            / whole
            * float(x[b, c, row + i, column + j])
            for i in away
            for j in away
            if 0 <= row + i < 6 and 0 <= column + j < 5
        )
        # The weights are kept in single precision, as those of any layer.
        assert found[b, c, row, column].item() == pytest.approx(slow, abs=1e-6)


def test_a_blur_is_linear_and_its_own_adjoint() -> None:
    blur = Blur(1.2).double()
    x, other = numbers(2, 3, 8, 8, seed=1).requires_grad_(), numbers(2, 3, 8, 8, seed=2)
    assert gradcheck(blur, x)
    torch.testing.assert_close((blur(x) * other).sum(), (x * blur(other)).sum())
    assert Blur(1.2).weight.sum().item() == pytest.approx(1.0)


def test_the_gradient_of_a_blurred_network_is_the_blurred_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 2)).double()
    x = numbers(3, 1, 8, 8, seed=1)
    blur = Blur(0.8).double()
    seen = blur(x)
    y = predicted(model, seen)
    found = input_gradient(with_blur(model, 0.8), x, y)
    torch.testing.assert_close(found, blur(input_gradient(model, seen, y)))


def test_only_the_first_convolution_is_behind_a_blur_and_the_network_itself_stays() -> None:
    model = resnet()
    x = numbers(2, 3, 8, 8, seed=1)
    before = model(x)
    smooth = with_blur(model, 1.0)
    assert [name for name, part in smooth.named_modules() if isinstance(part, Blur)] == ["body.0.0"]
    assert torch.equal(model(x), before)
    assert not torch.allclose(smooth(x), before)
    assert with_blur(nn.Conv2d(1, 1, 3), 1.0)[0].sigma == 1.0  # type: ignore[index]


class HeadFirst(nn.Module):
    """A network whose stem is nested deeper than its head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3)))
        self.head = nn.Conv2d(2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_the_first_convolution_may_be_nested_deeper_than_others() -> None:
    names = [
        name for name, part in with_blur(HeadFirst(), 1.0).named_modules() if isinstance(part, Blur)
    ]
    assert names == ["body.0.0.0"]


@pytest.mark.parametrize("name", ["resnet18", "siamese-cnn"])
def test_a_blurred_network_is_built_again_from_its_plan(name: str, tmp_path: Path) -> None:
    sizes = RESNET if name == "resnet18" else {"classes": 2, "pieces": [[1, 28, 28]] * 2}
    plan = {"name": name, **sizes}
    smooth = METHODS["steadfast-any"].build(k=2, softplus=3.0, blur=1.5).prepare
    assert isinstance(smooth, Smoothing)
    model = smooth(build(plan, stream(0, "test"))).eval()
    told = {**plan, **smooth.changes}
    assert told == {**plan, "softplus": 3.0, "blur": 1.5}
    again, _ = load(save(tmp_path / "model.safetensors", model, {"model": told}))
    x = torch.rand(2, *((3, 8, 8) if name == "resnet18" else (2 * 784,)))
    assert torch.equal(again.eval()(x), model(x))
    assert not torch.allclose(
        model(x), with_softplus(build(plan, stream(0, "test")), 3.0).eval()(x)
    )


@pytest.mark.parametrize(
    "wrong", [{"blur": -1.0}, {"blur": math.nan}, {"blur": 33.0}, {"softplus": math.inf},
              {"pooling": -0.1}]
)  # fmt: skip
def test_a_smoothing_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    assert "blur in 0..32 pixels" in refusal(lambda: Smoothing(**wrong))


def test_a_model_file_that_asks_for_an_endless_blur_is_refused(tmp_path: Path) -> None:
    plan = {"name": "resnet18", **RESNET, "blur": 1e9}
    path = save(tmp_path / "model.safetensors", resnet().float(), {"model": plan})
    assert "blur" in refusal(lambda: load(path))


def test_a_network_without_a_convolution_cannot_be_blurred() -> None:
    assert "none among its Linear" in refusal(lambda: with_blur(nn.Linear(2, 2), 1.0))


def test_what_is_certified_of_a_blurred_network_no_attack_breaks() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(72, 2)
    ).double().requires_grad_(False)  # fmt: skip
    smooth = with_blur(model, 1.0)
    x = numbers(6, 1, 8, 8, seed=1)
    found = certify(smooth, x, k=4)
    assert (found.radius > 0).any()
    radius = float(found.radius.max())
    kept = attack(smooth, x, k=4, radius=radius).precision
    assert (kept[found.radius >= radius] == 1).all()
