"""How long the vectors of a network's numbers can be: norms of maps, and lengths of rests."""

import pytest
import torch

from certified import network
from closed_form import numbers
from r2et.certification import record
from r2et.certification.affine import AffineForm, Region, positive
from r2et.certification.backwards import back
from r2et.certification.layers import propagate
from r2et.certification.operators import convolution_norm, matrix_norm


@pytest.mark.parametrize(
    ("outer", "inner", "size", "stride", "padding", "side"),
    [(4, 3, 3, 1, 1, 6), (5, 2, 4, 2, 1, 8), (3, 3, 1, 2, 0, 5), (2, 4, 5, 1, 2, 7)],
)
def test_the_norm_of_a_convolution_is_never_below_that_of_its_matrix(
    outer: int, inner: int, size: int, stride: int, padding: int, side: int
) -> None:
    weight = numbers(outer, inner, size, size)
    eye = torch.eye(inner * side * side, dtype=torch.float64).view(-1, inner, side, side)
    matrix = torch.nn.functional.conv2d(eye, weight, stride=stride, padding=padding).flatten(1)
    exact, bound = (
        float(torch.linalg.matrix_norm(matrix, 2)),
        convolution_norm(weight, (stride, stride)),
    )
    assert exact <= bound
    assert bound <= 1.4 * exact


def test_a_norm_is_that_of_weights_as_they_are_now() -> None:
    weight = numbers(3, 4)
    assert matrix_norm(weight) >= float(torch.linalg.matrix_norm(weight, 2))
    weight *= 3
    assert matrix_norm(weight) >= float(torch.linalg.matrix_norm(weight, 2))


def test_what_is_known_of_no_norm_is_bounded_by_its_rows_and_columns() -> None:
    pool = positive(lambda t: torch.nn.functional.avg_pool2d(t, 3, 1, 1))
    x = numbers(1, 2, 5, 5)
    eye = torch.eye(50, dtype=torch.float64).view(-1, 2, 5, 5)
    exact = float(torch.linalg.matrix_norm(pool.apply(eye).flatten(1), 2))
    assert exact <= pool.stretch(x, x) <= 1.5 * exact


@pytest.mark.parametrize("name", ["wide relus", "wide softplus", "relus and max pooling"])
def test_no_vector_is_longer_than_its_length(name: str) -> None:
    model, shape = network(name)
    x, radius = numbers(3, *shape), torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    region = Region(x=x, radius=radius, followed=False)
    with torch.no_grad():
        propagator, logits = propagate(record(model, x).program, region, 512)
        signal = torch.eye(logits.shape[0], dtype=torch.float64)[:1].expand(3, -1)
        form, symbols = back(propagator, AffineForm.constant(signal), logits, "flat")
        low, high = symbols.range(form)
    assert name == "relus and max pooling" or form.length is not None
    generator = torch.Generator().manual_seed(0)
    for share in (0.3, 1.0, 1.0, 1.0, 1.0):
        move = torch.randn(x.shape, generator=generator, dtype=x.dtype).flatten(1)
        move = share * radius[:, None] * move / move.norm(dim=1, keepdim=True)
        place = (x + move.view_as(x)).requires_grad_()
        found = model(place)
        if logits.form.length is not None:
            away = (found - logits.form.centre).norm(dim=1)
            assert (away <= logits.form.length).all()
        (slope,) = torch.autograd.grad((found * signal).sum(), place)
        if form.length is not None:
            away = (slope - form.centre).flatten(1).norm(dim=1)
            assert (away <= form.length).all()
        assert ((slope >= low) & (slope <= high)).all()
