"""Inputs of several tensors, explanations of some of their numbers, and all that takes them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from attacking import attacker
from brief import brief
from closed_form import conv_net, mixing_mlp, numbers, tiny_mlp
from r2et.attacks.comparison import compare_handling
from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget, flippable
from r2et.core.autograd import (
    estimated_curvature,
    estimated_hessian_norm,
    hessian_norm,
    jacobian,
)
from r2et.core.inputs import Inputs, Joined, Piece, check_symmetric, joined, packed, symmetric
from r2et.core.rng import noise_like, stream
from r2et.explainers import (
    EXPLAINERS,
    Activations,
    Explainer,
    Form,
    Gradient,
    GradientTimesInput,
    IntegratedGradients,
    SmoothGrad,
    gradient,
    input_gradient,
    made_of_gradient,
    predicted,
    shaped,
    slopes,
)
from r2et.methods import METHODS, BatchContext, Method, r2et
from r2et.methods.baselines import adversarial, estimated_hessian, thick
from r2et.metrics import METRICS, Case
from r2et.metrics.faithfulness import comp, dffot, suff
from r2et.metrics.sensitivity import curvature
from r2et.metrics.thickness import thickness, uniform_ball
from r2et.perturbations import L2Ball
from r2et.training.objective import Objective
from refusals import refusal

PICTURE, ROW, NETWORK = (
    Piece(shape=(2, 2, 2)),
    Piece(shape=(3,)),
    Piece(shape=(3, 3), symmetric=True),
)


class Both(nn.Module):
    """Smooth logits of two tensors: a hidden layer of all their numbers, which meet in it."""

    def __init__(self, one: int = 8, other: int = 3, classes: int = 2, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.left, self.right = nn.Linear(one, 4), nn.Linear(other, 4)
            self.bend, self.last = nn.Tanh(), nn.Linear(4, classes)
        self.double()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        hidden = self.bend(self.left(a.flatten(1)) + self.right(b.flatten(1)))
        logits: Tensor = self.last(hidden)
        return logits


def pair(count: int = 4, classes: int = 2) -> tuple[Both, tuple[Tensor, Tensor], Tensor]:
    """A network of pictures (2, 2, 2) and rows (3,), examples and their predicted classes."""
    model = Both(classes=classes)
    parts = (numbers(count, 2, 2, 2, seed=1), 2 * numbers(count, 3, seed=2))
    return model, parts, model(*parts).argmax(-1)


def joined_pair(count: int = 4, classes: int = 2) -> tuple[Joined, Tensor, Tensor]:
    """The same as one model of packed examples."""
    model, parts, y = pair(count, classes)
    inputs = Inputs(pieces=(PICTURE, ROW))
    return Joined(model, inputs), inputs.pack(*parts), y


# The pixels of the picture, channels together; the row is not explained.
PIXELS = (0, 1, 2, 3, 0, 1, 2, 3, -1, -1, -1)


# --- pieces ---


@st.composite
def layouts(draw: st.DrawFn) -> Inputs:
    shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
    plain = shapes.map(lambda shape: Piece(shape=shape))
    square = st.integers(2, 4).map(lambda m: Piece(shape=(m, m), symmetric=True))
    return Inputs(pieces=tuple(draw(st.lists(plain | square, min_size=1, max_size=3))))


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 3))
def test_packing_and_unpacking_undo_each_other(inputs: Inputs, count: int) -> None:
    x = numbers(count, inputs.size)
    parts = inputs.unpack(x)
    assert [tuple(part.shape) for part in parts] == [
        (count, *piece.shape) for piece in inputs.pieces
    ]
    for piece, part in zip(inputs.pieces, parts, strict=True):
        if piece.symmetric:
            assert torch.equal(part, part.transpose(1, 2))
            assert not part.diagonal(dim1=1, dim2=2).any()
    assert torch.equal(inputs.pack(*parts), x)
    again = inputs.unpack(inputs.pack(*parts))
    assert all(torch.equal(a, b) for a, b in zip(again, parts, strict=True))


def test_a_symmetric_matrix_is_written_row_by_row() -> None:
    found = symmetric(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), 4)
    expected = [[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]]
    assert found[0].tolist() == expected


def test_a_free_number_has_the_slopes_of_both_entries() -> None:
    weights, flat = numbers(2, 4, 4, seed=1), numbers(2, 6).requires_grad_()
    whole = symmetric(flat.detach(), 4).requires_grad_()
    (by_entry,) = torch.autograd.grad((weights * whole).sin().sum(), whole)
    (found,) = torch.autograd.grad((weights * symmetric(flat, 4)).sin().sum(), flat)
    places = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    expected = torch.stack([by_entry[:, i, j] + by_entry[:, j, i] for i, j in places], 1)
    torch.testing.assert_close(found, expected)
    assert gradgradcheck(lambda at: symmetric(at, 4).sin(), flat)


def test_a_table_of_places_made_without_gradients_serves_those_with() -> None:
    with torch.inference_mode():
        symmetric(numbers(1, 21), 7)
    flat = numbers(1, 21).requires_grad_()
    (found,) = torch.autograd.grad(symmetric(flat, 7).sum(), flat)
    assert torch.equal(found, torch.full_like(found, 2.0))


def test_numbers_are_told_their_features() -> None:
    inputs = Inputs(pieces=(PICTURE, ROW, NETWORK))
    pixels, channels, none = (0, 1, 2, 3) * 2, tuple(range(8)), (-1,)
    assert inputs.size == 8 + 3 + 3
    assert inputs.explained() == (*pixels, 4, 5, 6, 7, 8, 9)
    assert inputs.explained((0,)) == (*pixels, *none * 6)
    assert inputs.explained((1,)) == (*none * 8, 0, 1, 2, *none * 3)
    assert inputs.explained((2, 0)) == (*pixels, *none * 3, 4, 5, 6)
    assert inputs.explained((0,), channels=False) == (*channels, *none * 6)
    assert inputs.explained(channels=False) == tuple(range(14))
    assert [piece.features for piece in inputs.pieces] == [4, 3, 3]
    assert Piece(shape=(5, 4)).features == 20  # of two dimensions none are channels


def test_numbers_are_free_by_their_pieces() -> None:
    inputs = Inputs(pieces=(PICTURE, ROW, NETWORK))
    assert inputs.free((1,)).tolist() == [False] * 8 + [True] * 3 + [False] * 3
    assert inputs.free((2, 0)).tolist() == [True] * 8 + [False] * 3 + [True] * 3
    assert not inputs.free(()).any()


def test_a_joined_model_sees_the_pieces() -> None:
    model, x, y = joined_pair()
    bare, (a, b), _ = pair()
    assert torch.equal(model(x), bare(a, b))
    picture = x[:, :8].view(4, 2, 2, 2)
    assert torch.equal(picture, a)
    matrices = Joined(lambda_of(lambda m: m.sum((1, 2))), Inputs(pieces=(NETWORK,)))
    assert matrices(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [12.0]
    assert joined(model, x) is model
    assert packed(x) is x
    assert torch.equal(packed((a, b)), x)
    assert y.shape == (4,)


def lambda_of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    return Layer()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_a_piece_without_numbers_is_refused(shape: tuple[int, ...]) -> None:
    assert "needs numbers in its shape" in refusal(lambda: Piece(shape=shape))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 3, 3)])
def test_a_symmetric_piece_is_square(shape: tuple[int, ...]) -> None:
    told = refusal(lambda: Piece(shape=shape, symmetric=True))
    assert told == f"a symmetric piece must be a square matrix, got shape {shape}."


def test_inputs_that_do_not_fit_are_refused() -> None:
    inputs, a, b = Inputs(pieces=(PICTURE, ROW)), numbers(4, 2, 2, 2), numbers(4, 3)
    assert refusal(lambda: Inputs(pieces=())) == "an input needs at least one piece, got none."
    assert "at least one piece" in refusal(lambda: packed(()))
    assert "got 1 of [4] examples" in refusal(lambda: inputs.pack(a))
    assert "got 2 of [4, 3] examples" in refusal(lambda: inputs.pack(a, b[:3]))
    told = refusal(lambda: inputs.pack(b, a))
    assert "must have shape (2, 2, 2) for each example, got (3,)" in told
    for wrong in ((), (2,), (-1,), (0, 5)):
        told = refusal(lambda wrong=wrong: inputs.explained(wrong))  # type: ignore[misc]
        assert told == f"pieces to explain are some of 0..1, got {list(wrong)}."


def test_matrices_that_are_not_symmetric_are_refused() -> None:
    inputs = Inputs(pieces=(NETWORK,))
    whole = symmetric(numbers(4, 3), 3)
    uneven, holed, endless = whole.clone(), whole.clone(), whole.clone()
    uneven[2, 0, 1] += 0.5
    holed[1, 0, 1] = holed[1, 1, 0] = torch.nan
    endless[3, 0, 1] = endless[3, 1, 0] = torch.inf
    assert "matrix 2 differs from its transpose by 0.5:" in refusal(lambda: inputs.pack(uneven))
    assert "matrix 1 differs from its transpose by nan" in refusal(lambda: inputs.pack(holed))
    assert "finite and symmetric, but matrix 3" in refusal(lambda: inputs.pack(endless))
    told = refusal(lambda: check_symmetric(numbers(2, 3, 4)))
    assert "must be square, (m, m) for m nodes, got shape (3, 4)" in told
    assert "got shape (3,)" in refusal(lambda: check_symmetric(numbers(3, 3)))
    check_symmetric(torch.zeros(2, 3, 3))
    check_symmetric(whole * (1 + 1e-5 * numbers(4, 3, 3, seed=1)))  # as rounding may leave them


# --- examples of several tensors, wherever examples are taken ---


EVERY: dict[str, Explainer] = {
    **{name: brief(explain) for name, explain in EXPLAINERS.items()},
    "activations": Activations(layer="model.bend"),
}


@pytest.mark.parametrize("explain", EVERY.values(), ids=EVERY)
def test_an_explainer_takes_several_tensors(explain: Any) -> None:
    model, parts, y = pair()
    one, x, _ = joined_pair()
    expected = explain(one, x, y)
    assert torch.equal(explain(model, parts, y), expected)
    assert torch.equal(explain(model, list(parts), y), expected)
    assert torch.equal(explain(one, parts, y), expected)  # a joined model is not joined again


def test_the_slope_by_several_tensors_is_that_by_each() -> None:
    model, (a, b), y = pair()
    a, b = a.requires_grad_(), b.requires_grad_()
    chosen = model(a, b).softmax(-1).gather(1, y[:, None])
    by_a, by_b = torch.autograd.grad(chosen.sum(), (a, b))
    found = Gradient(form="signed")(model, (a, b), y)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.cat([by_a.flatten(1), by_b], 1))


EFFORT = EnsembleBudget(rounds=2, starts=2, steps=3, points=4, moves=2, pairs=2, sharpness=(4.0,))
BUDGET = {"radius": 1.0, "step": 0.2, "steps": 6}


def attack_of(name: str) -> Any:
    if name == "strong":
        return attacker("strong", k=2, budget=EFFORT)
    return {"er": partial(attacker, "er"), "mse": partial(attacker, "mse")}[name](
        k=2, budget=BUDGET
    )


@pytest.mark.parametrize("name", ["er", "mse", "strong"])
@pytest.mark.parametrize("again", [False, True], ids=["bare", "joined"])
def test_an_attack_takes_several_tensors(name: str, again: bool) -> None:
    model, parts, y = pair()
    one, x, _ = joined_pair()
    found = attack_of(name)(one if again else model, parts, y)
    expected = attack_of(name)(one, x, y)
    assert found.x.shape == x.shape
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.history, expected.history)
    assert torch.equal(found.after, expected.after)
    assert found.flipped.any()
    assert not torch.equal(found.x, x)


def test_flips_are_looked_for_in_several_tensors() -> None:
    model, parts, y = pair(count=8)
    one, x, _ = joined_pair(count=8)
    expected = flippable(one, x, y, radius=0.5)
    assert torch.equal(flippable(model, parts, y, radius=0.5), expected)  # type: ignore[arg-type]
    assert expected.any()
    assert not expected.all()


def test_handlers_are_compared_on_several_tensors() -> None:
    model, parts, y = pair()
    one, x, _ = joined_pair()
    chosen: dict[str, Any] = {
        "k": 2,
        "perturbation": L2Ball(radius=BUDGET["radius"]),
        "budget": WalkBudget(steps=BUDGET["steps"]),
        "step_sizes": (0.2,),
        "handling": {name: CONSTRAINT_HANDLING[name] for name in ("unconstrained", "gda")},
    }
    found = compare_handling(model, parts, y, **chosen)  # type: ignore[arg-type]
    assert found == compare_handling(one, x, y, **chosen)
    assert len(found) == 4


def test_metrics_take_several_tensors() -> None:
    model, parts, y = pair()
    one, x, _ = joined_pair()
    moved = tuple(part + 0.1 * numbers(*part.shape, seed=7) for part in parts)
    explain = Gradient(groups=PIXELS)
    chosen: dict[str, Any] = {"sizes": (1, 3), "groups": PIXELS}
    case = Case.of(model, explain, parts, moved, y, 2, **chosen)  # type: ignore[arg-type]
    plain = Case.of(one, explain, x, packed(moved), y, 2, **chosen)
    for name, metric in METRICS.items():
        both = metric.measure(case), metric.measure(plain)
        torch.testing.assert_close(*both, rtol=0, atol=0, equal_nan=True, msg=name)
    near = dict[str, Any](explain=explain, k=2, samples=3, points=3)
    found = thickness(
        model,
        parts,  # type: ignore[arg-type]
        y,
        uniform_ball(0.3),
        generator=stream(0, "test"),
        **near,
    )
    expected = thickness(one, x, y, uniform_ball(0.3), generator=stream(0, "test"), **near)
    assert torch.equal(found.value, expected.value)


def test_an_objective_takes_several_tensors_of_a_joined_model() -> None:
    model, parts, y = pair()
    one, x, _ = joined_pair()
    method = r2et(k=2, curvature=0.1)
    found = Objective(one, method)(parts, y)
    assert torch.equal(found, Objective(one, method)(x, y))
    told = refusal(lambda: Objective(model, method)(parts, y))
    assert "needs a model that is joined: give Joined(model, inputs)" in told


def test_an_objective_takes_symmetric_matrices() -> None:
    inputs = Inputs(pieces=(NETWORK, NETWORK))
    flat, y = numbers(4, 6), torch.arange(4) % 2
    model = Joined(Both(9, 9), inputs)
    expected = Objective(model, r2et(k=2))(flat, y)
    assert torch.equal(Objective(model, r2et(k=2))(inputs.unpack(flat), y), expected)


# --- features told by groups ---


def slow_shaped(scores: Tensor, form: Form, groups: Sequence[int]) -> list[list[float]]:
    """The totals of groups, one number at a time."""
    rows = []
    for row in scores.flatten(1).tolist():
        totals = [0.0] * (max(groups) + 1)
        for score, group in zip(row, groups, strict=True):
            if group >= 0:
                totals[group] += score if form == "signed" else abs(score)
        whole = sum(totals)
        rows.append([each / whole for each in totals] if form == "normalised" and whole else totals)
    return rows


forms = st.sampled_from(["absolute", "signed", "normalised"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=8).filter(lambda groups: max(groups) >= 0),
    forms,
    st.integers(0, 9),
)
def test_scores_are_totals_of_groups(groups: list[int], form: Form, seed: int) -> None:
    scores = numbers(3, len(groups), seed=seed)
    scores[1] = 0.0
    found = shaped(scores, form, groups)
    torch.testing.assert_close(found, torch.tensor(slow_shaped(scores, form, groups)).double())
    if form == "normalised":
        assert found[0].sum().item() == pytest.approx(1)
        assert not found[1].any()


def test_channels_of_a_picture_are_summed() -> None:
    x = numbers(2, 2, 2, 2)
    groups = Inputs(pieces=(PICTURE,)).explained()
    assert torch.allclose(shaped(x, "absolute", groups), x.abs().sum(1).flatten(1))
    assert torch.allclose(shaped(x, "signed", groups), x.sum(1).flatten(1))


def test_groups_that_do_not_fit_are_refused() -> None:
    told = refusal(lambda: shaped(numbers(2, 3), "signed", (0, 1)))
    assert told == "groups must name one group for each of 3 columns, got 2."
    told = refusal(lambda: shaped(numbers(2, 2), "signed", (-1, -1)))
    assert told == "groups must count some column for a feature, got none but -1."
    assert "form of an explanation" in refusal(lambda: shaped(numbers(2, 2), "some", None))  # type: ignore[arg-type]


def test_groups_seen_in_inference_mode_serve_gradients() -> None:
    groups = (2, -1, 0, 1)
    with torch.inference_mode():
        shaped(numbers(1, 4), "signed", groups)
    x = numbers(1, 4).requires_grad_()
    (found,) = torch.autograd.grad((shaped(x, "signed", groups) * torch.arange(3.0)).sum(), x)
    assert found.tolist() == [[2.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("explain", slopes().values(), ids=slopes())
def test_the_explained_numbers_are_those_of_the_whole(explain: Any) -> None:
    model, x, y = joined_pair()
    whole = brief(explain)(model, x, y)
    found = replace(brief(explain), groups=PIXELS)(model, x, y)
    torch.testing.assert_close(found, whole[:, :4] + whole[:, 4:8])


# --- activations ---


def test_activations_are_what_a_layer_returns() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), torch.tensor([0, 1, 0])
    assert torch.equal(Activations(layer="1")(model, x, y), model[:2](x))
    assert torch.equal(Activations(layer="1")(model, x, 1 - y), model[:2](x))
    assert torch.equal(Activations(layer="0", form="absolute")(model, x, y), model[0](x).abs())
    pictures, x = conv_net(), numbers(3, 1, 6, 6)
    torch.testing.assert_close(
        Activations(layer="1")(pictures, x, y), pictures[:2](x).sum((2, 3)) / 16
    )


def test_activations_are_those_of_prediction_mode_and_leave_the_mode() -> None:
    model, x, y = mixing_mlp(), numbers(4, 6), torch.zeros(4, dtype=torch.long)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    found = Activations(layer="2")(model, x, y)
    assert [part.training for part in model.modules()] == modes
    assert not any(part._forward_hooks for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(found, model.eval()[:3](x))
    torch.testing.assert_close(found[1:2], Activations(layer="2")(model, x[1:2], y[1:2]))


def test_activations_have_two_derivatives() -> None:
    model, y = tiny_mlp(), torch.zeros(2, dtype=torch.long)
    x = numbers(2, 6).requires_grad_()
    assert gradcheck(lambda at: Activations(layer="1")(model, at, y), x)
    assert gradgradcheck(lambda at: Activations(layer="1")(model, at, y), x)
    weights = list(model[0].parameters())
    found = torch.autograd.grad(Activations(layer="1")(model, x, y).square().sum(), weights)
    expected = torch.autograd.grad(model[:2](x).square().sum(), weights)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        assert not Activations(layer="1")(model, x, y).requires_grad


class Twice(nn.Module):
    """A network that uses one layer twice, never uses another, and has one of two results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 4).double(), nn.Linear(4, 4)
        self.two = lambda_of(lambda x: (x, x))  # type: ignore[arg-type, return-value]
        self.mixed = lambda_of(lambda x: x.sum(0, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        self.mixed(x)
        first, _ = self.two(self.layer(x))
        logits: Tensor = self.layer(first)
        return logits


def test_layers_that_show_no_neurons_are_refused() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), torch.zeros(3, dtype=torch.long)
    told = refusal(lambda: Activations(layer="11")(model, x, y))
    assert told == "the model has no layer '11': did you mean '1'? Known: 0, 1, 2."
    for layer in ("layer", "unused", "two", "mixed"):
        odd = Twice()
        told = refusal(lambda layer=layer, odd=odd: Activations(layer=layer)(odd, x[:, :4], y))  # type: ignore[misc]
        assert told == (
            f"the layer {layer!r} must be used once and return one row of neurons for each example."
        )
        assert not any(part._forward_hooks for part in odd.modules())


# --- explanations from a slope that is there already ---


SLOPED: dict[str, Any] = {
    f"{kind.__name__}, {form}, {groups}, {one_hot}": kind(form=form, groups=groups, one_hot=one_hot)
    for kind, form, groups, one_hot in product(
        (Gradient, GradientTimesInput),
        get_args(Form),
        (None, (1, 0, -1, 1, 2, 0)),
        (None, [(0, 2), (5, 3)]),
    )
}


@pytest.mark.parametrize("explain", SLOPED.values(), ids=SLOPED)
def test_an_explanation_from_the_slope_is_the_explainers(explain: Any) -> None:
    model, y = tiny_mlp(), torch.tensor([0, 1, 1])
    x = numbers(3, 6).requires_grad_()
    made = made_of_gradient(explain)
    assert made is not None
    found, expected = made.scores(input_gradient(model, x, y), x), explain(model, x, y)
    torch.testing.assert_close(found, expected)
    wrt = [x, *model.parameters()]
    mixture = numbers(*expected.shape, seed=5)
    mine = torch.autograd.grad((found * mixture).sum(), wrt, allow_unused=True)
    theirs = torch.autograd.grad((expected * mixture).sum(), wrt, allow_unused=True)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_what_takes_more_than_the_slope_says_so() -> None:
    for plain in (gradient, GradientTimesInput(), Gradient()):
        assert made_of_gradient(plain) is not None
    dearer: list[Any] = [
        SmoothGrad(),
        IntegratedGradients(),
        SmoothGrad(samples=3),
        Activations(layer="1"),
        Gradient(of="logit"),
        GradientTimesInput(of="margin"),
        lambda model, x, y: gradient(model, x, y),
    ]
    assert [made_of_gradient(explain) for explain in dearer] == [None] * len(dearer)


# --- curvature ---


def test_an_estimated_norm_matches_its_definition() -> None:
    model, y, x = tiny_mlp(), torch.tensor([0, 1, 1]), 2 * numbers(3, 6)
    groups = (0, 1, 2, 3, -1, -1)

    def field(at: Tensor) -> Tensor:
        return Gradient(groups=groups)(model, at, y)

    whole = jacobian(field, x).detach()
    assert whole.shape == (3, 4, 6)
    directions = numbers(5, 4, seed=3)
    products = torch.einsum("bnd,mn->mbd", whole, directions)
    expected = products.square().sum(-1).mean(0).sqrt()
    torch.testing.assert_close(estimated_hessian_norm(field, x, directions), expected)
    # As many directions as features, at right angles and scaled, see all of it.
    right, _ = torch.linalg.qr(numbers(4, 4, seed=4))
    exact = hessian_norm(field, x).detach()
    torch.testing.assert_close(estimated_hessian_norm(field, x, 2 * right), exact)
    # Of normal ones the mean of squares has a deviation of at most sqrt(2 / 600) = 6%.
    drawn = estimated_hessian_norm(field, x, numbers(600, 4, seed=5))
    torch.testing.assert_close(drawn, exact, rtol=0.1, atol=0)
    assert (exact > 1e-3).all()
    assert not estimated_hessian_norm(lambda at: torch.ones(3, 4).double(), x, directions).any()


def test_the_hessian_norm_of_many_features_is_estimated() -> None:
    model, x = tiny_mlp(classes=3), 2 * numbers(5, 6)
    y = predicted(model, x)
    explain = Gradient(groups=(0, 1, 2, 3, 4, -1))
    drawn = noise_like(x.new_empty(5), stream(4, "hessian probes"), copies=2)
    expected = estimated_hessian_norm(lambda at: explain(model, at, y), x, drawn)
    found = curvature(model, x, y, explain, probes=2, seed=4)
    torch.testing.assert_close(found, expected)
    # Examples meet the same directions alone and in company.
    apart = curvature(model, x, y, explain, probes=2, seed=4, numbers_at_once=1)
    torch.testing.assert_close(apart, expected)
    assert not torch.allclose(curvature(model, x, y, explain, probes=2), expected)
    exact = curvature(model, x, y, explain)
    assert not torch.allclose(exact, expected, rtol=1e-3)
    assert torch.equal(curvature(model, x, y, explain, probes=5), exact)
    case = Case.of(model, explain, x, x, y, 2, probes=2)
    found = METRICS["hessian norm"].measure(case)
    assert torch.equal(found, curvature(model, x, y, explain, probes=2))


@pytest.mark.parametrize("probes", [0, -1])
def test_a_norm_from_no_direction_is_refused(probes: int) -> None:
    model, x, y = tiny_mlp(), numbers(2, 6), torch.tensor([0, 1])
    told = refusal(lambda: curvature(model, x, y, gradient, probes=probes))
    assert told == f"a Hessian norm is estimated from one probe at least, got {probes}."


def test_a_step_can_go_along_something_else() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), torch.tensor([0, 1, 1])
    along = numbers(3, 6, seed=3)
    along[1, :3] = 0.0
    along[2] = 0.0

    def field(at: Tensor) -> Tensor:
        return Activations(layer="1")(model, at, y)

    found = estimated_curvature(field, x, field(x), 0.3, along)
    for number in range(3):
        signs = along[number].sign()
        step = signs / max(float(signs.norm()), 1.0)
        change = model[:2](x[number] + 0.3 * step) - model[:2](x[number])
        torch.testing.assert_close(found[number], change.norm() / 0.3)
    assert found[2] == 0


# --- faithfulness of features told by groups ---


def slow_faithfulness(
    model: nn.Module, x: Tensor, saliency: Tensor, groups: Sequence[int], sizes: Sequence[int]
) -> dict[str, list[float]]:
    """DFFOT, COMP and SUFF by their words, one example and one removal at a time."""
    found: dict[str, list[float]] = {"dffot": [], "comp": [], "suff": []}
    n = saliency.shape[1]
    for row, scores in zip(x, saliency.tolist(), strict=True):
        ranking = sorted(range(n), key=lambda feature: (-scores[feature], feature))
        whole = model(row[None])[0].softmax(-1)
        c, share, without, only = int(whole.argmax()), 1.0, 0.0, 0.0
        for size in reversed(sizes):
            removed, kept = row.clone(), row.clone()
            for place, group in enumerate(groups):
                if group in ranking[:size]:
                    removed[place] = 0.25
                elif group >= 0:
                    kept[place] = 0.25
            after, left = (model(each[None])[0].softmax(-1) for each in (removed, kept))
            share = size / n if int(after.argmax()) != c else share
            without += abs(float(whole[c] - after[c])) / len(sizes)
            only += abs(float(whole[c] - left[c])) / len(sizes)
        for name, value in zip(found, (share, without, only), strict=True):
            found[name].append(value)
    return found


@pytest.mark.parametrize("sizes", [None, (1, 3)])
@pytest.mark.parametrize("rows_at_once", [1, 5, 1024])
@torch.no_grad()
def test_unexplained_numbers_are_never_removed(sizes: Any, rows_at_once: int) -> None:
    model, x = tiny_mlp(d=7, seed=3), 2 * numbers(12, 7)
    groups, y = (1, -1, 0, 1, 2, -1, 3), predicted(model, x)
    saliency = Gradient(groups=groups)(model, x, y)
    expected = slow_faithfulness(model, x, saliency, groups, sizes or range(1, 5))
    for name, measure in (("dffot", dffot), ("comp", comp), ("suff", suff)):
        found = measure(
            model,
            x,
            y,
            saliency,
            groups=groups,
            sizes=sizes,
            baseline=0.25,
            rows_at_once=rows_at_once,
        )
        assert found.tolist() == pytest.approx(expected[name])
        assert len(set(expected[name])) > 1


@pytest.mark.parametrize("groups", [(0, 1, 2, 3, 4, -2), (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4)])
def test_groups_of_other_features_are_refused(groups: tuple[int, ...]) -> None:
    model, x, y = tiny_mlp(), numbers(2, 6), torch.tensor([0, 1])
    told = refusal(lambda: dffot(model, x, y, numbers(2, 5), groups=groups))
    assert told == (
        "groups must name a feature 0..4, or -1, for each of 6 input numbers, got "
        f"{len(groups)} numbers."
    )


# --- training methods on some of the numbers, or on neurons ---


EXPLAINED = Gradient(groups=PIXELS)
NEURONS = Activations(layer="model.bend")


def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The absolute gradient of the probability of y, channels of a pixel summed, from scratch."""
    assert isinstance(model, Joined)
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        chosen = model(x).softmax(-1).gather(1, y[:, None])
        (found,) = torch.autograd.grad(chosen.sum(), x, create_graph=True)
    size = found.abs()
    return size[:, :4] + size[:, 4:8]


def bend_by_hand(
    explain: Explainer, model: nn.Module, x: Tensor, y: Tensor, kappa: float
) -> Tensor:
    """||I(x + kappa v) - I(x)|| / kappa along the signs of the gradient, one row at a time."""
    rows = []
    for number in range(len(x)):
        row, label = x[number : number + 1], y[number : number + 1]
        signs = input_gradient(model, row, label).detach().sign()
        there = row + kappa * signs / signs.norm()
        rows.append((explain(model, there, label) - explain(model, row, label)).norm() / kappa)
    return torch.stack(rows).detach()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("bend", ["gradient", "explanation"])
def test_r2et_of_a_pair_matches_its_definition(classes: int, bend: Any) -> None:
    model, x, y = joined_pair(6, classes)
    saliency = by_hand(model, x, y).tolist()
    gaps = []
    for row in saliency:
        ranking = sorted(range(4), key=lambda feature: -row[feature])
        pairs = [row[i] - row[j] for i in ranking[:2] for j in ranking[2:]]
        gaps.append(sum(pairs) / len(pairs))
    bent: Explainer = by_hand if bend == "explanation" else input_gradient
    curved = bend_by_hand(bent, model, x, y, 1.5)
    method = r2et(k=2, thickness=0.3, curvature=0.2, kappa=1.5, bend=bend, explain=EXPLAINED)
    loss = Objective(model, method).parts(x, y)
    parts = loss.parts
    assert parts["margin"].item() == pytest.approx(-sum(gaps) / 6)
    assert parts["curvature"].item() == pytest.approx(curved.mean().item())
    whole = F.cross_entropy(model(x), y) - 0.3 * sum(gaps) / 6 + 0.2 * curved.mean()
    torch.testing.assert_close(loss.total, whole)
    est = Objective(model, estimated_hessian(k=2, kappa=1.5, bend=bend, explain=EXPLAINED)).parts(
        x, y
    )
    torch.testing.assert_close(est.parts["curvature"], parts["curvature"])


def test_the_class_explained_is_that_of_the_clean_input() -> None:
    # Where a long step changes the prediction, the bend is still that of one explanation.
    model, x, _ = joined_pair(8, 3)
    model.model.bend = lambda_of(lambda hidden: (2 * hidden).sin())
    y = predicted(model, x)
    signs = input_gradient(model, x, y).detach().sign()
    there = x + 3.0 * signs / signs.norm(dim=1, keepdim=True)
    assert (predicted(model, there) != y).any()
    method = estimated_hessian(k=2, kappa=3.0, bend="explanation", explain=EXPLAINED)
    ((_, _, penalty),) = method.penalties
    torch.testing.assert_close(
        penalty(BatchContext(model, x)), bend_by_hand(by_hand, model, x, y, 3.0)
    )


def test_the_bend_of_neurons_matches_its_definition() -> None:
    model, x, y = joined_pair(5)
    method = r2et(k=2, curvature=0.2, kappa=0.5, bend="explanation", explain=NEURONS)
    parts = Objective(model, method).parts(x, y).parts
    neurons = Activations(layer="model.bend")(model, x, y)
    ranked = neurons.sort(dim=1, descending=True).values
    lead = (ranked[:, :2].mean(1) - ranked[:, 2:].mean(1)).mean()
    assert parts["margin"].item() == pytest.approx(-lead.item())
    expected = bend_by_hand(NEURONS, model, x, y, 0.5).mean()
    assert parts["curvature"].item() == pytest.approx(expected.item())


def methods(explain: Explainer) -> dict[str, Method]:
    chosen: dict[str, Any] = {"k": 2, "explain": explain}
    return {
        "r2et": r2et(curvature=0.1, gap="normalised", pairs="facing", **chosen),
        "r2et, own bend": r2et(curvature=0.1, bend="explanation", **chosen),
        "est-h": estimated_hessian(bend="explanation", **chosen),
        "at": adversarial(steps=2, **chosen),
        "thickness": thick(samples=2, points=2, **chosen),
    }


@pytest.mark.parametrize("name", methods(EXPLAINED))
def test_a_method_explains_what_it_is_told(name: str) -> None:
    found, expected, whole = (
        objective_and_slopes(methods(explain)[name]) for explain in (EXPLAINED, by_hand, gradient)
    )
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not torch.allclose(found[0], whole[0], rtol=1e-6)


@pytest.mark.parametrize(
    "build", [r2et, adversarial, thick], ids=["r2et", "adversarial", "thickness"]
)
def test_the_ranking_of_a_reference_is_by_what_is_explained(build: Callable[..., Method]) -> None:
    reference = Joined(Both(seed=5), Inputs(pieces=(PICTURE, ROW)))
    found, expected, own = (
        objective_and_slopes(build(k=2, explain=explain, **chosen))
        for explain, chosen in (
            (EXPLAINED, {"reference": reference}),
            (by_hand, {"reference": reference}),
            (EXPLAINED, {}),
        )
    )
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not torch.allclose(found[0], own[0], rtol=1e-6)


def objective_and_slopes(method: Method) -> list[Tensor]:
    model, x, y = joined_pair(6)
    generator = stream(0, "test")
    draw = partial(noise_like, generator=generator)
    loss = Objective(model, method, draw)(x, y)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize(
    "method",
    [
        r2et(k=2, thickness=0.5, curvature=0.5, explain=EXPLAINED),
        r2et(k=2, thickness=0.5, curvature=0.5, bend="explanation", explain=EXPLAINED),
        r2et(k=2, thickness=0.5, curvature=0.5, bend="explanation", explain=NEURONS),
    ],
    ids=["gradient", "pixels", "neurons"],
)
def test_a_loss_of_explanations_has_the_slope_of_differences(method: Method) -> None:
    model, x, y = joined_pair(3)
    objective = Objective(model, method)
    weights = list(model.parameters())
    slopes = torch.autograd.grad(objective(x, y), weights)
    for weight, found in zip(weights, slopes, strict=True):
        flat, step = weight.data.view(-1), 1e-6
        for place in range(flat.numel()):
            kept, sides = float(flat[place]), []
            for side in (step, -step):
                flat[place] = kept + side
                sides.append(objective(x, y).item())
            flat[place] = kept
            assert float(found.view(-1)[place]) == pytest.approx(
                (sides[0] - sides[1]) / (2 * step), abs=1e-7
            )


@pytest.mark.parametrize(
    ("explain", "passes"), [(None, 1), (EXPLAINED, 1), (GradientTimesInput(), 1), (NEURONS, 2)]
)
def test_the_slope_at_hand_is_used(explain: Any, passes: int) -> None:
    model, x, y = joined_pair()
    model.eval()  # in training a network that is not known is asked once more, as if to predict
    calls = list[int]()
    model.register_forward_hook(lambda *_: calls.append(1))
    Objective(model, r2et(k=2, explain=explain))(x, y).backward()
    assert len(calls) == passes


def test_a_bend_of_nothing_is_refused() -> None:
    told = refusal(lambda: r2et(k=2, curvature=0.1, bend="explanation"))
    assert "the latter with a given explainer, got 'explanation'" in told
    assert "got 'some'" in refusal(lambda: estimated_hessian(k=2, bend="some"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["r2et", "est-h", "at", "thickness", "cl"])
def test_methods_of_the_table_train_a_joined_model(name: str) -> None:
    model, x, y = joined_pair()
    objective = Objective(model, METHODS[name].build(k=2))
    objective(x, y).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
