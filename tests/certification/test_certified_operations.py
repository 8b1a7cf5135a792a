"""What certificates promise, of every operation that has a bound and of whole networks."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from breaking import in_one_sentence
from certified import NETWORKS, broken, labels, network, signed_gradient
from certified_operations import CASES, UNCOVERED, Written
from closed_form import numbers
from r2et.certification import certify, record
from r2et.certification.affine import AffineForm, Region
from r2et.certification.backwards import back
from r2et.certification.layers import OPERATIONS, propagate

K = 3
OF_OPERATIONS = {str(each): forward for each, forward in CASES.items()}


def subject(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The network of an operation, or a whole one, and the shape of its inputs."""
    return network(name) if name in NETWORKS else (Written(OF_OPERATIONS[name]), (7,))


of_each = pytest.mark.parametrize("name", [*OF_OPERATIONS, *NETWORKS])
of_each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)


def test_every_bound_has_a_case() -> None:
    assert set(CASES) == set(OPERATIONS)


@of_each_operation
def test_a_case_uses_its_operation(operation: Any) -> None:
    program = record(Written(CASES[operation]), numbers(4, 7, seed=1)).program
    assert operation in {node.operation for node in program.nodes}


@of_each_operation
def test_a_rule_takes_every_argument_of_its_operation(operation: Any) -> None:
    # A setting that a rule does not know of would be ignored, and the bound one of something else.
    rule = inspect.signature(OPERATIONS[operation]).parameters
    asked = [each.name for each in operation._schema.arguments]
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in rule.values()):
        settings = {"dtype", "layout", "device", "pin_memory", "memory_format"}
        assert set(asked) - set(rule) <= settings | {"self", "fill_value"}
        return
    assert set(asked) == set(rule) - {"propagator"}


@of_each
def test_the_program_is_the_model_for_any_number_of_rows(name: str) -> None:
    model, shape = subject(name)
    program = record(model, numbers(3, *shape, seed=0)).program
    for count in (1, 2, 5):
        x = numbers(count, *shape, seed=count)
        torch.testing.assert_close(program(x), model(x), rtol=1e-12, atol=1e-12)


def logit_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return signed_gradient(model, x.clone().requires_grad_(), y, of="logit").detach()


def bounds_of(program: Any, region: Region, y: Tensor) -> tuple[Any, list[tuple[Tensor, ...]]]:
    """What propagates bounds, and those of logits and, by each relaxation, of gradients."""
    propagator, logits = propagate(program, region, 256)
    found: list[tuple[Tensor, ...]] = [tuple(propagator.symbols.range(logits.form))]
    signal = nn.functional.one_hot(y, logits.form.centre.shape[1]).double()
    for relaxation in ("tangent", "secant", "flat"):
        form, symbols = back(propagator, AffineForm.constant(signal), logits, relaxation)
        found.append(tuple(end.flatten(1) for end in symbols.range(form)))
    return propagator, found


@of_each
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_bounds_hold_within_the_region_and_are_exact_at_its_centre(name: str, norm: Any) -> None:
    model, shape = subject(name)
    x, radius = numbers(5, *shape, seed=0), torch.tensor([0, 0.01, 0.1, 0.5, 2.0]).double()
    y, program = labels(model, x), record(model, x).program
    propagator, ends = bounds_of(program, Region(x=x, radius=radius, norm=norm), y)
    moves = numbers(60, *x.shape, seed=1)
    size = moves.flatten(2).norm(dim=-1) if norm == "l2" else moves.flatten(2).abs().amax(-1)
    length = (radius / size).view(60, len(x), *(1,) * len(shape))
    places = (x + moves * length).flatten(0, 1)
    gradients = logit_gradient(model, places, y.repeat(60)).unflatten(0, (60, len(x)))
    with torch.no_grad():
        answers = model(places).unflatten(0, (60, len(x)))
    bounded = [
        (found, *each)
        for found, each in zip((answers, gradients, gradients, gradients), ends, strict=True)
    ]
    for found, low, high in bounded:
        assert ((found >= low) & (found <= high)).all()
    kinked = any(node.activation.kinks for node in propagator.activation_nodes)
    for _, low, high in bounded[:1] if kinked else bounded:
        assert (high[0] - low[0]).max() <= 1e-9 * (1 + high[0].abs().max())
    alone = Region(x=x[3:4], radius=radius[3:4], norm=norm)
    for mine, together in zip(bounds_of(program, alone, y[3:4])[1], ends, strict=True):
        for one, other in zip(mine, together, strict=True):
            torch.testing.assert_close(one[0], other[3], rtol=1e-9, atol=1e-9)


@of_each
def test_an_example_is_certified_alone_as_in_company(name: str) -> None:
    model, shape = subject(name)
    x = numbers(4 if name in NETWORKS and len(shape) == 1 else 2, *shape, seed=0)
    before = x.clone()
    # Radii are sought for each row by itself, so that two steps show whether another one matters.
    together = certify(model, x, k=K, epsilons=(0.1,), steps=2)
    assert torch.equal(x, before)
    for row in range(1, len(x), 2):
        alone = certify(model, x[row : row + 1], k=K, epsilons=(0.1,), steps=2)
        torch.testing.assert_close(alone.radius[0], together.radius[row], rtol=0.01, atol=0)
        assert alone.weakest[0].tolist() == together.weakest[row].tolist()
        assert alone.top[0].tolist() == together.top[row].tolist()
        assert alone.precision[0] == together.precision[row]


@of_each_operation
def test_no_attack_breaks_the_certificate_of_an_operation(operation: Any) -> None:
    model, x = Written(CASES[operation]), numbers(6, 7, seed=2)
    found = certify(model, x, k=K)
    assert ((found.radius > 0) & (found.radius < torch.inf)).all()
    assert broken(model, x, labels(model, x), found, k=K, points=10, steps=4)[0] == 0


@of_each_operation
def test_certificates_are_in_float64_whatever_the_model_computes_in(operation: Any) -> None:
    x = numbers(3, 7, seed=3)
    exact = certify(Written(CASES[operation]), x, k=K, radii=False, epsilons=(0.01,))
    single = certify(
        Written(CASES[operation]).float(), x.float(), k=K, radii=False, epsilons=(0.01,)
    )
    assert single.top.device == x.device
    assert single.precision.dtype == single.noise.dtype == torch.float64
    assert single.top.tolist() == exact.top.tolist()


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_no_bound_covers_is_refused_in_one_sentence(name: str) -> None:
    forward, told = UNCOVERED[name]
    with pytest.raises(ValueError, match=told) as refusal:
        certify(Written(forward), numbers(4, 7, seed=1), k=K)
    assert in_one_sentence(str(refusal.value))
