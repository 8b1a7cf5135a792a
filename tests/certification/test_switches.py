"""Numbers pulled back to the input, open kinks as symbols, and symbols of a few directions."""

import pytest
import torch
from torch import Tensor, nn

from certified import NETWORKS, labels, network, signed_gradient
from closed_form import numbers
from r2et.certification import certify, record
from r2et.certification import propagate as propagation
from r2et.certification.affine import Norm, Region
from r2et.certification.backwards import back
from r2et.certification.layers import propagate
from r2et.certification.search import SWITCHES, Task, pair_margins
from r2et.certification.switches import Linked
from r2et.perturbations import Box, L2Ball

KINKED = ("relu", "leaky relu", "two layers of relus", "residual relus", "wide relus",
          "relus and max pooling")  # fmt: skip
NORMS: tuple[Norm, ...] = ("l2", "linf")


def within(x: Tensor, radius: Tensor, norm: Norm, count: int, seed: int = 0) -> Tensor:
    """Inputs of a region, most of them on its border: (count, *x.shape)."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randn(count, *x.shape, generator=generator, dtype=x.dtype)
    flat = moves.flatten(2)
    flat = flat / flat.norm(dim=-1, keepdim=True) if norm == "l2" else flat.sign()
    shrunk = torch.ones(count, 1, 1, dtype=x.dtype)
    shrunk[::3] = torch.rand(len(shrunk[::3]), 1, 1, generator=generator, dtype=x.dtype)
    return x + (flat * shrunk * radius[:, None]).view_as(moves)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [*KINKED, "functional", "max pooling", "residual", "two layers"])
def test_combinations_of_logits_lie_within_their_pulled_ranges(name: str, norm: Norm) -> None:
    model, shape = network(name)
    x, radius = numbers(3, *shape), torch.tensor([0.01, 0.1, 0.5], dtype=torch.float64)
    with torch.no_grad():
        program = record(model, x).program
        propagator, logits = propagate(
            program, Region(x=x, radius=radius, norm=norm, followed=False), 512, True
        )
        rows = torch.tensor([0, 1, 2, 2, 1])
        weights = numbers(5, *logits.shape, seed=3)
        low, high = propagator.pulled(logits.place, weights, rows).range(norm)
        least, most = propagator.range(logits)
        for places in within(x, radius, norm, 100):
            found = model(places)
            deviation = ((found - logits.form.centre)[rows] * weights).sum(1)
            assert (deviation >= low).all()
            assert (deviation <= high).all()
            assert ((found >= least) & (found <= most)).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", KINKED)
def test_gradients_and_gaps_lie_within_what_open_kinks_allow(name: str, norm: Norm) -> None:
    model, shape = network(name, 1)
    x = numbers(4, *shape, seed=5)
    y = labels(model, x)
    ball = L2Ball() if norm == "l2" else Box()
    for size in (0.03, 0.3):
        radius = torch.full((4,), size, dtype=torch.float64)
        with torch.no_grad():
            program = record(model, x).program
            task = Task(program, x[:1], 3, "margin", None, ball)
            assert SWITCHES in task.relaxations
            form, symbols = task.gradients(x, y, radius, SWITCHES)
            low, high = symbols.range(form)
        at_x = signed_gradient(model, x.clone().requires_grad_(), y, "margin").detach()
        n = at_x.shape[1]
        drawn = torch.randint(n, (2, 60), generator=torch.Generator().manual_seed(1))
        example = torch.arange(60) % 4
        signs = at_x[example, drawn[0]].sign()
        known = (low > 0).to(low) - (high < 0).to(low)
        sides = signs, known[example, drawn[1]]
        least = pair_margins(form, symbols, example, drawn[0], drawn[1], *sides, radius)
        for places in within(x, radius, norm, 60, seed=7):
            gradient = signed_gradient(model, places.requires_grad_(), y, "margin").detach()
            assert (gradient >= low).all()
            assert (gradient <= high).all()
            gap = signs * gradient[example, drawn[0]] - gradient[example, drawn[1]].abs()
            assert (gap >= least).all()


def test_what_is_linked_is_never_beyond_any_input_and_gains_something() -> None:
    # sum_u a_u [z_u > 0] over a ball: alone each may be at its worst, together they may not.
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)).double()
    x, gained = torch.randn(6, 4, generator=generator, dtype=torch.float64), 0
    y, radius = labels(model, x), torch.full((6,), 0.4, dtype=torch.float64)
    for norm in NORMS:
        with torch.no_grad():
            ball = L2Ball() if norm == "l2" else Box()
            task = Task(record(model, x).program, x[:1], 2, "margin", None, ball)
            form, symbols = task.gradients(x, y, radius, SWITCHES)
            linked = Linked(symbols, norm == "linf")
            weights = form.moves.permute(1, 2, 0)  # (B, n, M)
            places = within(x, radius, norm, 3000)
        for feature in range(4):
            for side in (1.0, -1.0):
                errors = side * weights[:, feature]
                at = torch.arange(6)
                alone = torch.minimum(errors * symbols.low.T, errors * symbols.high.T).sum(1)
                more = linked.gain(errors, at, torch.full((6,), -1.0, dtype=torch.float64) + 1.0)
                assert (more >= 0).all()
                gained += int((more > 1e-6).sum())
                bound = side * form.centre[:, feature] + alone + more - form.rest[:, feature]
                for one in places.split(1000):
                    slopes = signed_gradient(
                        model,
                        one.flatten(0, 1).requires_grad_(),
                        y.repeat(len(one)),
                        "margin",
                    ).detach()
                    found = side * slopes.view(len(one), 6, 4)[:, :, feature]
                    assert (found.amin(0) >= bound - 1e-12).all()
    assert gained > 10


@pytest.mark.parametrize("name", ["wide relus", "wide softplus"])
def test_symbols_of_a_few_directions_bound_as_those_of_all_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, shape = network(name)
    x = numbers(2, *shape)
    found = []
    for most in (256, 0):
        monkeypatch.setattr(propagation, "NARROW", most)
        region = Region(x=x, radius=torch.tensor([0.05, 0.2], dtype=torch.float64))
        with torch.no_grad():
            propagator, logits = propagate(record(model, x).program, region, 512)
            assert propagator.symbols.inputs == (12 if most else shape[0])
            signal = propagation.AffineForm.constant(torch.eye(2, dtype=torch.float64))
            form, symbols = back(propagator, signal, logits, "secant")
            found.append((*symbols.range(logits.form), *symbols.range(form)))
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=1e-9, atol=1e-9)


def test_a_halved_search_ends_close_to_the_first_radius_that_fails() -> None:
    # One ReLU at distance 1 from x: its gradient (1, 3) + (5, 0) turns the order of two features.
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 3.0], [5.0, 0.0]]))
        model[0].bias.copy_(torch.tensor([50.0, -5.0]))
        model[2].weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        model[2].bias.zero_()
    found = certify(model, torch.zeros(1, 2, dtype=torch.float64), torch.tensor([1]), k=1)
    assert 0.999 <= float(found.radius) <= 1.0


@pytest.mark.parametrize("name", KINKED)
def test_examples_of_kinks_are_certified_alone_as_in_company(name: str) -> None:
    model, shape = network(name)
    x = numbers(3, *shape, seed=2)
    together = certify(model, x, k=3)
    alone = torch.cat([certify(model, row, k=3).radius for row in x.split(1)])
    torch.testing.assert_close(alone, together.radius, rtol=1e-6, atol=0)


def test_all_kinked_networks_are_bounded_by_their_switches() -> None:
    assert set(KINKED) <= NETWORKS.keys()
