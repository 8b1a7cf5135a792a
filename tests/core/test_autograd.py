from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from closed_form import DropoutInForward, Linear, Quadratic, conv_net, mixing_mlp, numbers, tiny_mlp
from r2et.core.autograd import (
    estimated_curvature,
    eval_mode,
    gradient_of,
    hessian_norm,
    hessian_products,
    jacobian,
    piecewise_linear,
    root,
)
from r2et.core.spectral import everywhere, spectral_norm
from r2et.explainers import input_gradient
from r2et.models.smoothing import SoftLeaky

Field = Callable[[Tensor], Tensor]


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.long)


def logit_slope(model: nn.Module) -> Field:
    """Slope of the logit of class 1, as a function of the inputs alone."""
    return lambda x: input_gradient(model, x, ones(len(x)), "logit").flatten(1)


def probability_slope(model: nn.Module) -> Field:
    return lambda x: input_gradient(model, x, ones(len(x))).flatten(1)


def probability(model: nn.Module, one: Tensor) -> Tensor:
    """Probability of class 1 of one example, straight from its definition."""
    return model(one[None]).softmax(-1)[0, 1]


def slow_hessian(function: Field, one: Tensor) -> Tensor:
    twice: Tensor = torch.func.jacrev(torch.func.jacrev(function))(one)
    return twice.detach()


# --- slopes ---


def test_slope_of_a_quadratic() -> None:
    # f(x) = x'Ax / 2 + b'x with A symmetric, hence the slope is Ax + b.
    model, x = Quadratic(d=4), numbers(5, 4).requires_grad_()
    found = gradient_of(model(x)[:, 1], x, create_graph=False)
    torch.testing.assert_close(found, x.detach() @ model.A.detach() + model.b.detach())
    assert not found.requires_grad


def test_a_slope_with_a_graph_can_be_differentiated_again() -> None:
    # The sum over examples of w'(Ax + b) has the slope Aw by each x and, by b, B times w.
    model, x, w = Quadratic(d=4), numbers(5, 4).requires_grad_(), numbers(4, seed=7)
    found = gradient_of(model(x)[:, 1], x, create_graph=True) @ w
    by_x, by_b = torch.autograd.grad(found.sum(), [x, model.b])
    torch.testing.assert_close(by_x, (model.A.detach() @ w).expand(5, 4))
    torch.testing.assert_close(by_b, 5 * w)


def test_what_does_not_depend_on_x_has_no_slope() -> None:
    model, x = Linear(d=3), numbers(2, 3).requires_grad_()
    constant = numbers(2)
    weights_only = model.w.sum().expand(2)
    for values in (constant, weights_only):
        found = gradient_of(values, x, create_graph=False)
        assert torch.equal(found, torch.zeros_like(x))


def test_one_graph_serves_several_slopes() -> None:
    model, x = Quadratic(d=4), numbers(5, 4).requires_grad_()
    scores = model(x)[:, 1]
    first, second = (gradient_of(scores, x, create_graph=False) for _ in range(2))
    assert torch.equal(first, second)


# --- second derivatives ---


def test_the_jacobian_of_a_quadratics_slope_is_its_matrix() -> None:
    # I(x) = Ax + b, so dI_i / dx_j = A_ij for every example, and the Frobenius norm is that of A.
    model, x = Quadratic(d=4), numbers(5, 4, seed=3)
    with torch.no_grad():
        torch.testing.assert_close(jacobian(logit_slope(model), x), model.A.expand(5, 4, 4))
        expected = (model.A**2).sum().sqrt().expand(5)
        torch.testing.assert_close(hessian_norm(logit_slope(model), x), expected)


def test_rows_are_features_and_columns_inputs() -> None:
    # Two features of three inputs: I(x) = (x_1 x_2, x_3^2), with different rows and columns.
    def field(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2], dim=1)

    found = jacobian(field, torch.tensor([[2.0, 3.0, 5.0]]))
    assert found.tolist() == [[[3.0, 2.0, 0.0], [0.0, 0.0, 10.0]]]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus, nn.LeakyReLU])
def test_the_jacobian_of_a_networks_slope_is_its_hessian(
    classes: int, activation: type[nn.Module]
) -> None:
    model, x = tiny_mlp(classes=classes, activation=activation), numbers(4, 6, seed=1)
    with torch.no_grad():
        found = jacobian(probability_slope(model), x)
        norms = hessian_norm(probability_slope(model), x)
    for one, hessian, norm in zip(x, found, norms, strict=True):
        expected = slow_hessian(lambda at: probability(model, at), one)
        torch.testing.assert_close(hessian, expected)
        torch.testing.assert_close(norm, (expected**2).sum().sqrt())


def test_the_hessian_of_a_picture_is_flat() -> None:
    model, x = conv_net(pool=nn.AvgPool2d), numbers(2, 1, 6, 6)
    with torch.no_grad():
        found = jacobian(probability_slope(model), x)
    assert found.shape == (2, 36, 36)
    for one, hessian in zip(x, found, strict=True):
        flat = slow_hessian(lambda at: probability(model, at.view(1, 6, 6)), one.flatten())
        torch.testing.assert_close(hessian, flat)


def test_two_classes_and_leaky_relu_leave_a_hessian_of_rank_one() -> None:
    # The log-odds m are piecewise linear, so grad grad p = p (1 - p) (1 - 2p) grad m grad m'.
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6, seed=1)
    with torch.no_grad():
        p = model(x).softmax(-1)[:, 1]
        by_margin = input_gradient(model, x, ones(4), "margin")
        found = jacobian(probability_slope(model), x)
    factor = (p * (1 - p) * (1 - 2 * p))[:, None, None]
    torch.testing.assert_close(found, factor * by_margin[:, :, None] * by_margin[:, None, :])


def test_the_hessian_norm_can_be_trained() -> None:
    model, x = tiny_mlp(d=3, hidden=3), numbers(2, 3).requires_grad_()
    assert gradcheck(
        lambda x, *weights: hessian_norm(probability_slope(model), x), (x, *model.parameters())
    )


def test_no_curvature_no_norm_and_no_undefined_slope() -> None:
    # Linear: the slope is w everywhere. LeakyReLU: the logit bends nowhere but at its kinks.
    for model in (Linear(d=6), tiny_mlp(activation=nn.LeakyReLU)):
        x = numbers(3, 6).requires_grad_()
        norm = hessian_norm(logit_slope(model), x)
        assert norm.tolist() == [0.0] * 3
        if norm.requires_grad:
            slopes = torch.autograd.grad(
                norm.sum(), [x, *model.parameters()], allow_unused=True, materialize_grads=True
            )
            assert all(found.isfinite().all() for found in slopes)


def test_a_constant_field_has_a_zero_jacobian() -> None:
    found = jacobian(lambda x: torch.ones(len(x), 5, dtype=x.dtype), numbers(2, 1, 3, 3))
    assert torch.equal(found, torch.zeros(2, 5, 9, dtype=torch.float64))


# --- products with the Hessian ---


def units(x: Tensor) -> Tensor:
    """Every unit vector, for all examples: (n, B, ...)."""
    n = x[0].numel()
    return torch.eye(n, dtype=x.dtype).view(n, 1, *x.shape[1:]).expand(n, *x.shape)


@pytest.mark.parametrize("count", [1, 3])
def test_products_with_a_quadratics_hessian(count: int) -> None:
    # The slope is Ax + b: the Hessian times v is Av, at every x.
    model, x, v = Quadratic(d=4), numbers(5, 4).requires_grad_(), numbers(count, 5, 4, seed=7)
    slopes = gradient_of(model(x)[:, 1], x, create_graph=True)
    torch.testing.assert_close(hessian_products(slopes, x, v), v @ model.A)


def test_products_with_unit_vectors_are_the_hessian() -> None:
    for model, x in (
        (tiny_mlp(classes=3), numbers(4, 6, seed=1)),
        (conv_net(), numbers(2, 1, 6, 6)),
    ):
        x = x.requires_grad_()
        slopes = input_gradient(model, x, ones(len(x)))
        rows = hessian_products(slopes, x, units(x)).flatten(2)
        whole = jacobian(
            lambda at, model=model: input_gradient(model, at, ones(len(at))).flatten(1), x
        )
        torch.testing.assert_close(rows.transpose(0, 1), whole)


def test_products_can_be_trained() -> None:
    model, x, v = tiny_mlp(d=3, hidden=3), numbers(2, 3).requires_grad_(), numbers(2, 2, 3, seed=4)

    def products(x: Tensor, *weights: Tensor) -> Tensor:
        return hessian_products(input_gradient(model, x, ones(2)), x, v)

    assert gradcheck(products, (x, *model.parameters()))


def test_products_follow_their_caller() -> None:
    model, x = tiny_mlp(), numbers(2, 6).requires_grad_()
    slopes = input_gradient(model, x, ones(2))
    recorded = hessian_products(slopes, x, units(x))
    assert recorded.requires_grad
    with torch.no_grad():
        plain = hessian_products(slopes, x, units(x))
    assert not plain.requires_grad
    torch.testing.assert_close(plain, recorded.detach())


def test_a_slope_that_does_not_bend_has_no_products() -> None:
    x = numbers(2, 6).requires_grad_()
    weight = numbers(6, seed=2).requires_grad_()
    fixed, of_weights_only = numbers(2, 6), weight.expand(2, 6) * 2
    for slopes in (fixed, of_weights_only):
        for directions in (units(x), units(x)[:1], units(x)[:0]):
            found = hessian_products(slopes, x, directions)
            assert found.shape == directions.shape
            assert found.abs().sum() == 0
    kinked = tiny_mlp(activation=nn.LeakyReLU)
    slopes = input_gradient(kinked, x, ones(2), "logit")
    assert hessian_products(slopes, x, units(x)).abs().sum() == 0


class Stubborn(torch.autograd.Function):
    """x^2 / 2 whose slope, x, looks at its numbers: it cannot go backwards for many at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Tensor:
        assert float(flows[0].abs().sum()) >= 0
        return flows[0]


def test_what_cannot_be_done_together_is_done_one_by_one() -> None:
    x = numbers(3, 4).requires_grad_()
    slopes: Tensor = Stubborn.apply(x)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="Batching rule"):
        torch.autograd.grad(slopes, x, units(x), retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(hessian_products(slopes, x, units(x)), units(x))


# --- the largest eigenvalue ---


def with_spectrum(eigenvalues: list[float], seed: int = 0) -> Tensor:
    n = len(eigenvalues)
    turn = torch.linalg.qr(numbers(n, n, seed=seed)).Q
    return turn @ torch.tensor(eigenvalues, dtype=torch.float64).diag() @ turn.T


def times(matrices: Tensor) -> Field:
    return lambda v: (matrices @ v[..., None])[..., 0]


SPECTRA = {
    "apart": [5.0, 1.0, 0.5, 0.1, -0.1, -0.5],
    "negative": [-5.0, 1.0, 0.5, 0.1, -0.1, -0.5],
    "nearly equal": [5.0, 4.9999999, 1.0, 0.5, 0.1, 0.0],
    "opposite": [5.0, -5.0, 1.0, 0.5, 0.1, 0.0],
    "nearly opposite": [5.0, -4.9999999, 1.0, 0.5, 0.1, 0.0],
    "crowded": [5.0, 4.9, 4.8, -4.85, -4.95, 4.7],
    "all alike": [5.0, 5.0, 5.0, 5.0, 5.0, 5.0],
    "rank one": [-5.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "huge": [5e150, -4e150, 1e150, 0.0, 0.0, 0.0],
    "tiny": [5e-150, -4e-150, 1e-150, 0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_norm_is_the_largest_eigenvalue_in_magnitude(spectrum: str) -> None:
    matrices = torch.stack([with_spectrum(SPECTRA[spectrum], seed) for seed in range(20)])
    found = spectral_norm(times(matrices), numbers(20, 6, seed=9), steps=6)
    expected = torch.linalg.eigvalsh(matrices).abs().amax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_norm_is_approached_from_below(spectrum: str) -> None:
    matrices = torch.stack([with_spectrum(SPECTRA[spectrum], seed) for seed in range(20)])
    exact = torch.linalg.eigvalsh(matrices).abs().amax(-1)
    norms = [
        spectral_norm(times(matrices), numbers(20, 6, seed=9), steps) / exact
        for steps in (1, 2, 4, 6, 50)
    ]
    assert all((norm <= 1 + 1e-9).all() for norm in norms)
    means = torch.stack(norms).mean(-1)
    assert (means.diff() >= -1e-9).all()
    assert means[-1] == pytest.approx(1)


def test_eight_steps_are_enough_for_many_eigenvalues() -> None:
    # Evenly spread over -1..1, the largest hardly apart from the rest: the vector is not found in
    # eight steps, the value nearly.
    matrices = torch.stack(
        [with_spectrum(torch.linspace(-1, 0.99, 40).tolist(), seed) for seed in range(20)]
    )
    exact = torch.linalg.eigvalsh(matrices).abs().amax(-1)
    norms = spectral_norm(times(matrices), numbers(20, 40, seed=9)) / exact
    assert norms.min() > 0.9


def test_the_slope_of_the_norm_is_that_of_the_eigenvalue() -> None:
    # d|lambda| = sign(lambda) v' dA v for a single eigenvalue; finite differences confirm it.
    matrix = with_spectrum([-5.0, 2.0, 1.0, 0.5]).requires_grad_()
    start = numbers(1, 4, seed=9)

    def norm(matrix: Tensor) -> Tensor:
        return spectral_norm(times(((matrix + matrix.mT) / 2)[None]), start, steps=4)

    assert gradcheck(norm, (matrix,))
    _, vectors = torch.linalg.eigh(matrix.detach())
    (found,) = torch.autograd.grad(norm(matrix).sum(), matrix)
    torch.testing.assert_close(found, -vectors[:, :1] * vectors[:, :1].T)


def test_the_slope_is_a_subgradient_where_eigenvalues_are_opposite() -> None:
    # ||A + E|| >= ||A|| + <u v', E> for every E, as for any convex function.
    matrix = with_spectrum([5.0, -5.0, 1.0, 0.5]).requires_grad_()
    norm = spectral_norm(times(matrix[None]), numbers(1, 4, seed=9), steps=4).sum()
    (slopes,) = torch.autograd.grad(norm, matrix)
    for seed in range(200):
        change = numbers(4, 4, seed=seed)
        change = change + change.T
        moved = torch.linalg.matrix_norm(matrix.detach() + change, ord=2)
        assert moved >= 5.0 + (slopes * change).sum() - 1e-9


def test_no_matrix_no_norm_and_no_undefined_slope() -> None:
    matrices = torch.stack([torch.zeros(4, 4).double(), with_spectrum([3.0, 1.0, 0.5, 0.0])])
    matrices = matrices.requires_grad_()
    start = torch.ones(2, 4, dtype=torch.float64)
    norms = spectral_norm(times(matrices), start)
    assert norms.tolist() == [0.0, pytest.approx(3.0)]
    (slopes,) = torch.autograd.grad(norms.sum(), matrices)
    assert slopes.isfinite().all()
    from_nowhere = spectral_norm(times(matrices), torch.zeros_like(start))
    assert from_nowhere.tolist() == [0.0, 0.0]


def test_rounding_is_no_direction() -> None:
    # From the second eigenvector nothing but rounding leads elsewhere, another way in each batch:
    # what is found is its own eigenvalue, alone and in company.
    matrices = torch.stack([with_spectrum([5.0, 3.0, 1.0, 0.5], seed) for seed in range(20)])
    start = torch.linalg.eigh(matrices).eigenvectors[..., 2]
    found = spectral_norm(times(matrices), start)
    torch.testing.assert_close(found, torch.full_like(found, 3.0))


def test_a_matrix_is_treated_alone_as_in_company() -> None:
    matrices = torch.stack([with_spectrum(each) for each in list(SPECTRA.values())[:8]])
    start = numbers(8, 6, seed=9)
    together = spectral_norm(times(matrices), start)
    alone = [spectral_norm(times(matrices[i : i + 1]), start[i : i + 1]) for i in range(8)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("n", [1, 2, 30, 1000])
def test_a_direction_with_a_share_of_every_coordinate(n: int) -> None:
    found = everywhere(torch.zeros(3, n))
    assert found.shape == (3, n)
    assert (found.abs() > 0).all()
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(3))


def test_roots_have_no_slope_at_zero() -> None:
    squared = torch.tensor([0.0, 4.0, 1e-300], dtype=torch.float64, requires_grad=True)
    found = root(squared)
    assert found.tolist() == [0.0, 2.0, 1e-150]
    (slopes,) = torch.autograd.grad(found.sum(), squared)
    assert slopes.tolist() == [0.0, 0.25, pytest.approx(0.5e150)]


# --- networks without second derivatives ---


class OfOnesOwn(nn.Sequential):
    """A row of layers with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return scores**2


class Declared(OfOnesOwn):
    piecewise_linear = True


def hooked() -> nn.Module:
    model = tiny_mlp(activation=nn.ReLU)
    model[0].register_forward_hook(lambda module, inputs, output: output**2)
    return model


def peeked() -> nn.Module:
    model = tiny_mlp(activation=nn.ReLU)
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] ** 2,))
    return model


def rewritten() -> nn.Module:
    model = tiny_mlp(activation=nn.ReLU)
    model.forward = lambda x: x**2  # type: ignore[method-assign,assignment]
    return model


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: tiny_mlp(activation=nn.ReLU), True),
        (lambda: tiny_mlp(activation=nn.LeakyReLU, classes=3), True),
        (lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 2)), True),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)), True),
        (tiny_mlp, False),
        (lambda: tiny_mlp(activation=nn.Softplus), False),
        (lambda: nn.Sequential(nn.Linear(4, 2), SoftLeaky(2.0)), False),
        (mixing_mlp, False),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))), False),
        (DropoutInForward, False),
        (lambda: OfOnesOwn(nn.Linear(4, 2)), False),
        (lambda: Declared(nn.Linear(4, 2)), True),
        (lambda: Declared(nn.Linear(4, 2), nn.Tanh()), False),
        (hooked, False),
        (peeked, False),
        (rewritten, False),
    ],
)
def test_piecewise_linear_networks_are_recognised(
    build: Callable[[], nn.Module], expected: bool
) -> None:
    assert piecewise_linear(build()) == expected


# --- curvature by a finite difference ---


@pytest.mark.parametrize("kappa", [0.01, 0.5, 3.0])
def test_estimated_curvature_of_a_quadratic(kappa: float) -> None:
    # I(x + kappa v) - I(x) = kappa A v exactly, for any kappa; v = sign(I) / ||sign(I)||.
    model, x = Quadratic(d=5), numbers(4, 5, seed=3)
    field = logit_slope(model)
    with torch.no_grad():
        at_x = field(x)
        found = estimated_curvature(field, x, at_x, kappa)
        signs = at_x.sign()
        expected = (signs / 5**0.5 @ model.A).norm(dim=-1)
    torch.testing.assert_close(found, expected)


def test_estimated_curvature_matches_its_definition() -> None:
    model, x, kappa = tiny_mlp(classes=3), numbers(4, 6, seed=2), 0.3
    field = probability_slope(model)
    with torch.no_grad():
        found = estimated_curvature(field, x, field(x), kappa)
        for b, one in enumerate(x):
            here = field(one[None])[0].tolist()
            signs = [(value > 0) - (value < 0) for value in here]
            length = sum(sign**2 for sign in signs) ** 0.5
            there = field((one + kappa * torch.tensor(signs) / length)[None])[0].tolist()
            change = sum((b - a) ** 2 for a, b in zip(here, there, strict=True)) ** 0.5
            assert found[b].item() == pytest.approx(change / kappa)


def test_features_without_a_slope_do_not_shorten_the_step() -> None:
    # sign(I) = (1, 0, -1, 0) has length sqrt 2: the step moves two coordinates by kappa / sqrt 2.
    at_x = torch.tensor([[2.0, 0.0, -0.1, 0.0]], dtype=torch.float64)
    moved: list[Tensor] = []

    def field(x: Tensor) -> Tensor:
        moved.append(x)
        return at_x

    estimated_curvature(field, torch.zeros_like(at_x), at_x, kappa=1.0)
    torch.testing.assert_close(moved[0], at_x.sign() / 2**0.5)


def test_estimated_curvature_of_pictures() -> None:
    model, x = conv_net(pool=nn.AvgPool2d), numbers(2, 1, 6, 6)

    def field(at: Tensor) -> Tensor:
        return input_gradient(model, at, ones(2))

    found = estimated_curvature(field, x, field(x), 0.5)
    v = field(x).sign() / 6
    expected = (field(x + 0.5 * v) - field(x)).flatten(1).norm(dim=-1) / 0.5
    torch.testing.assert_close(found, expected)


def test_the_estimated_curvature_can_be_trained() -> None:
    # Compared with finite differences, along which the signs, and so the direction, are constant.
    model, x = tiny_mlp(d=3, hidden=3), numbers(2, 3).requires_grad_()
    field = probability_slope(model)
    assert gradcheck(
        lambda x, *weights: estimated_curvature(field, x, field(x), 0.3), (x, *model.parameters())
    )


def test_no_change_is_no_curvature_and_no_undefined_slope() -> None:
    # The first example's slope is the same wherever it goes (A x stays 0), the second's is not:
    # the square root of the first must not spoil the slopes of the second.
    matrix = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    model = Quadratic(A=matrix, b=torch.zeros(2, dtype=torch.float64))
    field = logit_slope(model)
    x = torch.tensor([[0.0, 1.0], [3.0, 1.0]], dtype=torch.float64, requires_grad=True)
    found = estimated_curvature(field, x, field(x), 0.5)
    # At (0, 1) the slope is (0, 0) and gives no direction; at (3, 1) it is (3, 0), v = (1, 0).
    assert found.tolist() == [0.0, pytest.approx(1.0)]
    slopes = torch.autograd.grad(found.sum(), [x, *model.parameters()])
    assert all(part.isfinite().all() for part in slopes)
    # ||A v|| = |A_11| here, so its slope by A_11 is 1.
    assert slopes[1][0, 0].item() == pytest.approx(1.0)


# --- prediction mode ---


def modes(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def frozen_kinds(model: nn.Module) -> set[str]:
    with eval_mode(model) as switched:
        assert not any(part.training for part in switched)
        return {type(part).__name__ for part in switched}


def test_modes_come_back() -> None:
    model = mixing_mlp()
    model[1].eval()  # what the caller switched off stays off
    before = modes(model)
    with eval_mode(model):
        assert not model[1].training
        assert not model[3].training
        with eval_mode(model) as inner:
            assert len(inner) == 0
        assert not model[3].training
    assert modes(model) == before


def test_modes_come_back_after_an_error() -> None:
    model = mixing_mlp()
    before = modes(model)
    with pytest.raises(RuntimeError, match="on purpose"), eval_mode(model):
        raise RuntimeError("on purpose")
    assert modes(model) == before


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.Dropout(0.5),
        nn.AlphaDropout(0.5),
        nn.RReLU(),
        nn.MultiheadAttention(4, 2, dropout=0.5),
        nn.LSTM(4, 4, num_layers=2, dropout=0.5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_learn_or_draw_are_frozen(layer: nn.Module) -> None:
    assert type(layer).__name__ in frozen_kinds(nn.Sequential(nn.Linear(4, 4), layer))


def test_layers_that_do_neither_are_left_in_their_mode() -> None:
    # Whoever shares a forward pass with the training loss asks which layers had to be switched.
    plain = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(), SoftLeaky(2.0), nn.LSTM(4, 4))
    plain.append(nn.MultiheadAttention(4, 2))
    assert frozen_kinds(plain) == set()
    assert frozen_kinds(mixing_mlp()) == {"BatchNorm1d", "Dropout"}


def test_a_forward_of_ones_own_is_frozen_too() -> None:
    # Dropout may be a call inside a module's forward, so a module that is not torch's is switched.
    model, x = DropoutInForward(), numbers(3, 6)
    assert "DropoutInForward" in frozen_kinds(model)
    assert not torch.equal(model(x), model(x))
    with eval_mode(model):
        assert torch.equal(model(x), model.layers(x))


def test_a_spectral_norm_is_not_moved() -> None:
    # In training mode each forward moves its estimate of the largest singular vectors.
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with eval_mode(model):
        model(torch.ones(1, 4))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
