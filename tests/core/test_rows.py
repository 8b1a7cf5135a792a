"""Slopes of rows of layers as products, against those that torch finds by going backwards twice."""

import pytest
import torch
from torch import Tensor, nn

from closed_form import numbers
from r2et.core.rows import is_row, row_trace
from r2et.explainers import input_gradient, input_gradient_along
from r2et.methods import METHODS
from r2et.training.objective import Objective


class Wrapped(nn.Module):
    """The same network, which is no row to anyone who looks at its type."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(x)
        return found


def row(classes: int, kink: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    # The same kink twice: a row goes through it as often as it is named.
    layers = [nn.Linear(6, 5), kink, nn.Linear(5, 4, bias=False), kink, nn.Linear(4, classes)]
    return nn.Sequential(*layers).double()


KINKS = [nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(-0.5), nn.LeakyReLU(2.0), nn.ReLU(inplace=True)]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kink", KINKS, ids=repr)
def test_the_product_is_the_slope_by_torch(classes: int, kink: nn.Module) -> None:
    model, x = row(classes, kink), numbers(7, 6)
    way = row_trace(model, x)
    assert way is not None
    torch.testing.assert_close(way.logits, model(x))
    y = way.logits.detach().argmin(-1)
    torch.testing.assert_close(input_gradient_along(way, y), input_gradient(model, x, y))


def test_the_slope_at_a_kink_is_that_of_its_left_side() -> None:
    for kink in (nn.ReLU(), nn.LeakyReLU(0.25)):
        model = nn.Sequential(kink, nn.Linear(2, 2, bias=False)).double()
        x = torch.zeros(1, 2, dtype=torch.float64)
        way = row_trace(model, x)
        assert way is not None
        y = torch.zeros(1, dtype=torch.long)
        torch.testing.assert_close(input_gradient_along(way, y), input_gradient(model, x, y))


@pytest.mark.parametrize("name", ["r2et", "r2et-noh", "r2et-mm", "est-h", "cl", "ssr", "exact-h"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kink", KINKS, ids=repr)
def test_a_row_learns_what_torch_would_teach_it(name: str, classes: int, kink: nn.Module) -> None:
    model, x = row(classes, kink), numbers(9, 6)
    y = torch.arange(9) % classes
    found = []
    for network in (model, Wrapped(model)):
        model.zero_grad()
        loss = Objective(network, METHODS[name].build(k=2))(x, y)
        loss.backward()
        found.append((loss.detach(), *(weight.grad for weight in model.parameters())))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-13)


def test_the_slope_can_be_differentiated_by_x_as_well() -> None:
    model, y = row(3, nn.LeakyReLU()), torch.tensor([0, 2])
    slopes = []
    for by_hand in (True, False):
        x = numbers(2, 6).requires_grad_()
        way = row_trace(model, x)
        assert way is not None
        own = input_gradient_along(way, y) if by_hand else input_gradient(model, x, y)
        slopes.append(torch.autograd.grad(own.square().sum(), x)[0])
    torch.testing.assert_close(*slopes)


def test_what_a_row_does_not_say_is_left_to_torch() -> None:
    x = numbers(2, 6)
    assert is_row(row(2, nn.ReLU()), x)
    hooked, moved = row(2, nn.ReLU()), row(2, nn.ReLU())
    hooked[0].register_forward_hook(lambda part, given, result: 2 * result)
    moved[2].forward = lambda x: x[:, :4]  # type: ignore[method-assign]
    for model in (
        hooked,
        moved,
        row(1, nn.ReLU()),
        row(2, nn.Softplus()),
        row(2, nn.Dropout()),
        Wrapped(row(2, nn.ReLU())),
        nn.Sequential(),
        nn.Sequential(nn.Linear(6, 2), nn.ReLU()),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2))),
    ):
        assert not is_row(model, x)
        assert row_trace(model, x) is None
    assert not is_row(row(2, nn.ReLU()), x[:, None])
