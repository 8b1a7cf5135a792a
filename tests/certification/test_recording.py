"""What is recorded of a model, and that the rules of bounds are about it."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from certified import network
from certified_operations import Written, bent
from closed_form import numbers
from r2et.certification import certify, record
from r2et.certification.program import Rows
from r2et.models import structured

K = 3


def rows(count: int = 4) -> Tensor:
    return numbers(count, 7, seed=1)


def test_sizes_that_follow_the_rows_are_told_from_other_numbers() -> None:
    def forward(own: Any, x: Tensor) -> Tensor:
        return own.last(own.first(x).view(len(x), 3, 2).transpose(1, 2).reshape(len(x), -1))

    program = record(Written(forward), rows()).program
    sizes = [node.arguments["size"] for node in program.nodes if "size" in node.arguments]
    assert sizes[0] == (Rows(1), 3, 2)


def test_weights_that_are_computed_are_computed_once() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(7, 2))).double()
    program = record(model, rows()).program
    assert len(program.fixed) >= 2
    assert (certify(model, rows(), k=K).radius == torch.inf).all()


def test_rows_and_another_dimension_may_be_one_for_a_while() -> None:
    # A linear layer on (B, T, d) is one product of (B T, d).
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.all = nn.Linear(2, 3), nn.Linear(9, 2)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.all(F.softplus(self.each(x.view(-1, 3, 2))).flatten(1))
            return found

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tokens().double()
    x = numbers(5, 6, seed=0)
    found = certify(model, x, k=2)
    assert (found.radius > 0).all()

    class Kronecker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.kron(torch.eye(3, dtype=torch.float64), model.each.weight.detach())
            self.weight, self.bias = nn.Parameter(weight), nn.Parameter(model.each.bias.repeat(3))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = model.all(F.softplus(F.linear(x, self.weight, self.bias)))
            return found

    torch.testing.assert_close(found.radius, certify(Kronecker(), x, k=2).radius)


def test_the_cost_of_rounding_is_in_the_certificate() -> None:
    model = nn.Sequential(nn.Linear(7, 8), nn.Softplus(2.0), nn.Linear(8, 2))
    x = rows().float()
    found = certify(model, x, k=K)
    assert (found.noise > 0).all()
    assert (found.radius > 0).all()
    # Two slopes that differ by less than what single precision rounds cannot be told apart.
    with torch.no_grad():
        model[0].weight[:, 0] *= 10
        model[0].weight[:, 1] = model[0].weight[:, 0] * (1 + 1e-7)
    alike = certify(model, x, k=1)
    exact, leaf = copy.deepcopy(model).double(), x.double().requires_grad_()
    logits = exact(leaf)
    (slope,) = torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), leaf)
    first, second = slope.abs().topk(2).values.unbind(1)
    assert ((alike.radius > 0) == (first - second > alike.noise)).all()


def test_a_model_recorded_once_serves_several_calls() -> None:
    model, shape = network("softplus")
    x = numbers(6, *shape, seed=0)
    kept = record(model, x)
    torch.testing.assert_close(certify(kept, x, k=K).radius, certify(model, x, k=K).radius)


def test_wide_one_hot_tables_are_followed() -> None:
    model = structured(
        140, 2, numeric=[0, 1], one_hot=[list(range(2, 100)), list(range(100, 140))],
        generator=torch.Generator().manual_seed(0),
    ).double()  # fmt: skip
    found = certify(model, numbers(2, 140, seed=0), k=K)
    assert (found.radius > 0).all()


def test_layers_without_offsets_and_lists_of_columns_are_followed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution = nn.Conv2d(1, 2, 3, bias=False)
        picture = nn.Sequential(
            convolution, nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2, bias=False)
        ).double()
    assert (certify(picture.eval(), numbers(2, 1, 6, 6, seed=0), k=K).radius > 0).all()
    turned = Written(lambda own, x: own.last(torch.tanh(own.first(x)[:, [1, 0, 2, 3, 5, 4]])))
    assert (certify(turned, rows(), k=K).radius > 0).all()


def by_numpy(own: Any, x: Tensor) -> Tensor:
    return own.last(own.first(x) * torch.from_numpy(x.detach().numpy()).sum(1, keepdim=True))


def by_list(own: Any, x: Tensor) -> Tensor:
    return own.last(own.first(x) * torch.tensor(x.detach().tolist(), dtype=x.dtype).sum())


def silenced(own: Any, x: Tensor) -> Tensor:
    try:
        positive = bool(x.sum() > 0)
    except Exception:
        positive = True
    return own.last(own.first(x) * (1 if positive else 2))


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (by_numpy, r"numpy takes numbers that depend on the input out of torch.*test_recording"),
        (by_list, r"tolist takes numbers that depend on the input out of torch"),
        (silenced, r"an if: a certificate needs a forward that takes the same way"),
        (lambda own, x: own.last(torch.sin(own.first(x))), r"no bound is known for aten.sin"),
        (lambda own, x: own.last(own.first(x)).detach(), r"not the gradient of what the model"),
        (lambda own, x: own.last(own.first(x) + own.first(x).detach()), r"its gradient stopped"),
        (
            lambda own, x: own.last(own.first(x)[:, None].squeeze()),
            r"a row of logits for each",
        ),
        (lambda own, x: (own.last(own.first(x)),) * 2, r"one row of logits|one logit"),
        (lambda own, x: own.last(own.first(x) * torch.rand(6, dtype=x.dtype)), r"draws at random"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_sentence(forward: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as refusal:
        certify(Written(forward), rows(), k=K)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


def counted(own: Any, x: Tensor) -> Tensor:
    return own.last(own.first(x) * (1 + len((x.detach() > 0).nonzero()) % 2))


def printed(own: Any, x: Tensor) -> Tensor:
    return own.last(own.first(x) * (2 if "-" in f"{x.detach()}" else 1))


def compared(own: Any, x: Tensor) -> Tensor:
    return own.last(own.first(x) * (2 if torch.equal(x.detach(), x.detach().abs()) else 1))


def picked(own: Any, x: Tensor) -> Tensor:
    return own.last(own.first(x) * (1 + x.detach()[x.detach() > 0].numel() % 2))


@pytest.mark.parametrize("forward", [counted, printed, compared, picked])
def test_python_learns_nothing_of_the_numbers(forward: Any) -> None:
    with pytest.raises(ValueError, match=r"asked for, as by .item\(\)|out of torch"):
        certify(Written(forward), rows(), k=K)


def test_one_output_is_read_as_the_log_odds_of_two_classes() -> None:
    def single(own: Any, x: Tensor) -> Tensor:
        found: Tensor = own.last(bent(own, x))
        return found[:, 1] - found[:, 0]

    both = certify(Written(lambda own, x: own.last(bent(own, x))), rows(), k=K)
    for forward in (single, lambda own, x: single(own, x)[:, None]):
        alone = certify(Written(forward), rows(), k=K)
        torch.testing.assert_close(alone.radius, both.radius, rtol=1e-6, atol=0)
        assert alone.top.tolist() == both.top.tolist()


def test_rows_between_two_classes_are_certified_in_single_precision() -> None:
    # There both logits are nearly zero, and single precision leaves nothing right of them.
    model = Written(lambda own, x: bent(own, x).sum(1)).float()
    x = rows(20).float()
    for _ in range(30):
        leaf = x.clone().requires_grad_()
        value = model(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
        step = value.detach()[:, None] * slope / slope.square().sum(1, keepdim=True)
        x = torch.where((torch.arange(20) < 6)[:, None], x - step, x)
    assert model(x)[:6].abs().max() < 1e-5
    assert (certify(model, x, k=K).radius > 0).all()
