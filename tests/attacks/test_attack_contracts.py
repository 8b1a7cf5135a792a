"""What every attack promises, over every entry of the table."""

from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacking import Attack, attacker, little
from brief import brief
from closed_form import Linear, numbers, tiny_mlp
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import ATTACKS
from r2et.attacks.search import AttackResult
from r2et.core.ranking import precision_at_k
from r2et.explainers import EXPLAINERS, gradient, predicted
from r2et.perturbations import Bounds, L2Ball

K = 2
every_attack = pytest.mark.parametrize("name", ATTACKS)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def small(name: str, radius: float = 1.0, **choices: Any) -> Attack:
    """An attack of little effort."""
    return attacker(name, **{"k": K, "radius": radius, "budget": little(name, radius), **choices})


def leaky(seed: int = 0) -> nn.Sequential:
    return tiny_mlp(activation=nn.LeakyReLU, seed=seed)


def case(dtype: torch.dtype = torch.float64) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network whose explanations the small attacks do move, and seven examples."""
    model, x = leaky().to(dtype), numbers(7, 6).to(dtype)
    return model, x, predicted(model, x)


def exactly_within(found: Tensor, x: Tensor, radius: float) -> bool:
    """Whether every example lies in its ball, by fractions that round nothing."""
    pairs = zip(found.flatten(1).tolist(), x.flatten(1).tolist(), strict=True)
    return all(
        sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(after, before, strict=True))
        <= Fraction(radius) ** 2
        for after, before in pairs
    )


def tensors(found: AttackResult) -> dict[str, Tensor]:
    """Everything in a result by name."""
    own = {each.name: getattr(found, each.name) for each in fields(AttackResult)}
    found = {**own.pop("members"), **own}
    return {name: value for name, value in found.items() if value is not None}


def assert_same(one: AttackResult, other: AttackResult, atol: float = 0.0) -> None:
    assert tensors(one).keys() == tensors(other).keys()
    for name, value in tensors(one).items():
        torch.testing.assert_close(value, tensors(other)[name], rtol=0, atol=atol, msg=name)


@every_attack
def test_the_small_attack_finds_something(name: str) -> None:
    # Without this the promises below would hold for an attack that does nothing.
    model, x, y = case()
    found = small(name, radius=2.0)(model, x, y)
    assert found.flipped.any()
    assert ((found.x - x).norm(dim=-1) > 0.1).any()


@every_attack
@both_dtypes
@pytest.mark.parametrize(("scale", "radius"), [(1.0, 1.0), (1.0, 1e-3), (300.0, 0.1), (0.0, 0.5)])
def test_the_ball_is_never_left(name: str, dtype: torch.dtype, scale: float, radius: float) -> None:
    # Rounding x + delta is an error of the size of x, not of delta: a small ball far out shows it.
    model, x, _ = case(dtype)
    x = x * scale
    found = small(name, radius)(model, x, predicted(model, x))
    assert exactly_within(found.x, x, radius)


@every_attack
@both_dtypes
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_bounds_are_never_left(name: str, dtype: torch.dtype, as_tensor: bool) -> None:
    # 0.6 is no float32 number: a bound that passes through float32 is a wider one.
    model, x, _ = case(dtype)
    x = x.clamp(-0.6, 0.6)
    low, high = torch.tensor(-0.6, dtype=dtype), torch.tensor(0.6, dtype=dtype)
    bounds: Bounds = (low.expand(6), high.expand(6)) if as_tensor else (-0.6, 0.6)
    y = predicted(model, x)
    free, bound = (
        small(name)(model, x, y),
        small(name, perturbation=L2Ball(bounds=bounds))(model, x, y),
    )
    assert ((free.x < low) | (free.x > high)).any()
    assert (low <= bound.x).all()
    assert (bound.x <= high).all()
    assert exactly_within(bound.x, x, 1.0)
    assert (bound.x != x).any()


@every_attack
def test_each_feature_has_its_own_bounds(name: str) -> None:
    model, x, _ = case()
    low = torch.tensor([-torch.inf, -9.0, -9.0, -9.0, -9.0, 0.0]).double()
    x[:, 5] = 0.0
    found = small(name, perturbation=L2Ball(bounds=(low, -low)))(model, x, predicted(model, x))
    assert (found.x[:, 5] == 0).all()
    assert (found.x[:, :5] != x[:, :5]).any()


@every_attack
def test_a_value_outside_its_bounds_is_its_own_bound(name: str) -> None:
    model, x, y = case()
    assert (x < 0).any()
    assert (x > 0.5).any()
    found = small(name, perturbation=L2Ball(bounds=(0.0, 0.5)))(model, x, y)
    assert (found.x >= x.clamp(max=0.0)).all()
    assert (found.x <= x.clamp(min=0.5)).all()
    assert (found.x != x).any()


@every_attack
@both_dtypes
def test_every_prediction_is_kept(name: str, dtype: torch.dtype) -> None:
    model, x, _ = case(dtype)
    x = x * 0.1  # near the middle many points of the ball are of another class
    y = predicted(model, x)
    assert (predicted(model, x + 2 * numbers(7, 6, seed=1).to(dtype)) != y).any()
    found = small(name, radius=3.0)(model, x, y)
    assert (predicted(model, found.x) == y).all()
    assert found.flipped.any()


@every_attack
def test_a_row_that_is_not_predicted_as_y_is_refused(name: str) -> None:
    model, x = leaky(), 0.3 * numbers(40, 6)
    y = predicted(model, x)
    wrong = torch.arange(40) % 2 == 0
    given = torch.where(wrong, 1 - y, y)
    for rows in (40, 7):  # whatever is attacked at once, all rows are counted
        with pytest.raises(
            ValueError, match="20 of 40 rows are predicted otherwise: give predicted"
        ):
            small(name, radius=3.0, rows_at_once=rows)(model, x, given)


@every_attack
def test_what_rounding_decides_is_not_held_against_the_caller(name: str) -> None:
    # Both logits are equal up to the last digits: which is larger depends on who asks.
    model, x = leaky().float(), numbers(4, 6).float()
    model[-1].weight.data[1] = model[-1].weight.data[0] * (1 + 1e-6)
    model[-1].bias.data[1] = model[-1].bias.data[0]
    found = small(name)(model, x, 1 - predicted(model, x))
    assert torch.equal(found.x, x)


@every_attack
def test_a_seed_decides_everything(name: str) -> None:
    model, x, y = case()
    assert_same(small(name)(model, x, y), small(name)(model, x, y))
    if name in ("mse", "strong"):  # the others draw nothing
        one, other = (small(name, seed=seed)(model, x, y) for seed in (0, 1))
        assert (one.x != other.x).any()


@every_attack
@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch-norm"])
def test_an_example_is_attacked_alone(name: str, batch_norm: bool) -> None:
    # Batch normalisation in training mode would mix the examples.
    model, x, y = case()
    if batch_norm:
        norm = nn.BatchNorm1d(5).double()
        norm.running_mean, norm.running_var = numbers(5), numbers(5).square() + 0.5
        model = nn.Sequential(model[0], norm, *model[1:]).train()
        y = predicted(model, x)
    together = small(name, radius=2.0)(model, x, y)
    assert together.flipped.any()
    assert_same(small(name, radius=2.0, rows_at_once=3)(model, x, y), together, atol=1e-12)
    alone = small(name, radius=2.0)(model, x[4:5], y[4:5])
    torch.testing.assert_close(alone.x[0], together.x[4], rtol=0, atol=1e-12)
    assert alone.first_flip[0] == together.first_flip[4]


@every_attack
def test_nothing_of_the_caller_is_touched(name: str) -> None:
    inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.LeakyReLU())
    model = nn.Sequential(inner, nn.Linear(5, 2)).double().train()
    model[1].eval()
    inner[0].weight.requires_grad_(False)
    x, y = numbers(5, 6).requires_grad_(), predicted(model, numbers(5, 6))
    given_x, given_y = x.detach().clone(), y.clone()
    weights = {key: each.clone() for key, each in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    recorded = [each.requires_grad for each in model.parameters()]
    torch.manual_seed(3)
    dice = torch.get_rng_state()
    found = small(name)(model, x, y)
    assert torch.equal(torch.get_rng_state(), dice)
    assert torch.equal(x.detach(), given_x)
    assert torch.equal(y, given_y)
    assert x.grad is None
    assert x.requires_grad
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(each, weights[key]) for key, each in model.state_dict().items())
    assert [each.requires_grad for each in model.parameters()] == recorded
    assert all(each.grad is None for each in model.parameters())
    assert not any(each.requires_grad for each in tensors(found).values())


@every_attack
def test_it_makes_no_difference_whether_the_caller_records(name: str) -> None:
    model, x, y = case()
    recorded = small(name)(model, x, y)
    with torch.no_grad():
        assert_same(small(name)(model, x, y), recorded)


def assert_true(found: AttackResult, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Refuse a report that differs from what the found inputs do."""
    with torch.no_grad():
        torch.testing.assert_close(found.before, gradient(model, x, y))
        torch.testing.assert_close(found.after, gradient(model, found.x, y))
    assert torch.equal(found.precision, precision_at_k(found.before, found.after, K))
    assert found.history.shape == (len(found.steps), len(x))
    assert (found.history[0] == 1).all()
    assert (found.history[1:] <= found.history[:-1]).all()
    assert torch.equal(found.history[-1], found.precision)
    assert found.steps[0] == 0
    assert (found.steps[1:] > found.steps[:-1]).all()
    for row, flip in enumerate(found.first_flip.tolist()):
        fallen = found.steps[found.history[:, row] < 1].tolist()
        assert flip == (fallen[0] if fallen else int(found.steps[-1]) + 1)


@every_attack
def test_the_report_is_true(name: str) -> None:
    model, x, y = case()
    flips = set()
    for radius in (0.5, 2.0):
        found = small(name, radius)(model, x, y)
        assert_true(found, model, x, y)
        assert found.flipped.tolist() == [each < 1 for each in found.precision.tolist()]
        flips |= set(found.first_flip.tolist())
    assert len(flips) > 1


@pytest.mark.parametrize(
    "name",
    [name for name in ATTACKS if isinstance(ATTACKS[name].budget, WalkBudget)],
)
@pytest.mark.parametrize("every", [2, 4, 50])
def test_a_sparser_record_tells_the_same_story(name: str, every: int) -> None:
    model, x, y = case()
    whole, sparse = (small(name, radius=2.0, record_every=each)(model, x, y) for each in (1, every))
    assert_true(sparse, model, x, y)
    assert whole.steps.tolist() == list(range(10))
    assert sparse.steps.tolist() == [*range(0, 9, every), 9]
    assert (sparse.precision >= whole.precision).all()
    assert (sparse.first_flip >= whole.first_flip).all()


@every_attack
@both_dtypes
def test_without_a_radius_nothing_moves(name: str, dtype: torch.dtype) -> None:
    model, x, y = case(dtype)
    found = small(name, radius=0.0)(model, x, y)
    assert torch.equal(found.x, x)
    assert (found.precision == 1).all()


@every_attack
@both_dtypes
def test_dtype_and_shape_are_kept(name: str, dtype: torch.dtype) -> None:
    # Examples of shape (2, 3), as an image would be.
    model = nn.Sequential(nn.Flatten(), *leaky().to(dtype))
    x = numbers(4, 2, 3).to(dtype)
    y = predicted(model, x)
    found = small(name)(model, x, y)
    flat = small(name)(model, x.flatten(1), y)
    assert found.x.shape == (4, 2, 3)
    assert {each.dtype for each in (found.x, found.before, found.after)} == {dtype}
    assert found.precision.dtype == found.history.dtype == dtype
    assert torch.equal(found.x.flatten(1), flat.x)
    assert found.after.shape == (4, 6)
    assert found.first_flip.dtype == found.steps.dtype == torch.int64


@every_attack
def test_no_examples_give_no_results(name: str) -> None:
    model, x, y = case()
    found = small(name)(model, x[:0], y[:0])
    assert found.x.shape == (0, 6)
    assert found.after.shape == (0, 6)
    assert found.history.shape == (len(found.steps), 0)
    assert found.first_flip.shape == (0,)


@every_attack
def test_a_linear_model_cannot_be_attacked(name: str) -> None:
    # grad p = p (1 - p) w: its ranking is that of w wherever x' lies.
    model, x = Linear(d=6), 0.2 * numbers(9, 6)
    y = predicted(model, x)
    assert len(y.unique()) == 2
    found = small(name, radius=1.0)(model, x, y)
    assert (found.precision == 1).all()
    assert (found.history == 1).all()
    assert not found.flipped.any()
    assert (found.first_flip == found.steps[-1] + 1).all()


@every_attack
@pytest.mark.parametrize("explained", EXPLAINERS)
def test_every_explanation_can_be_attacked(name: str, explained: str) -> None:
    model, x, y = case()
    explain = brief(EXPLAINERS[explained])
    found = small(name, radius=2.0, explainer=explain)(model, x, y)
    assert found.flipped.any()
    assert (predicted(model, found.x) == y).all()
    assert exactly_within(found.x, x, 2.0)
    with torch.no_grad():
        torch.testing.assert_close(found.after, explain(model, found.x, y))


@every_attack
def test_several_classes_can_be_attacked(name: str) -> None:
    model, x = tiny_mlp(classes=4, activation=nn.LeakyReLU), numbers(12, 6)
    y = predicted(model, x)
    assert len(y.unique()) > 2
    found = small(name, radius=2.0)(model, x, y)
    assert found.flipped.any()
    assert (predicted(model, found.x) == y).all()
    assert_true(found, model, x, y)


@every_attack
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model, x, y: (model, x.log(), y), "finite"),
        (lambda model, x, y: (model, x, y[:3]), "one class number"),
        (lambda model, x, y: (model, x, y + 2), "class numbers 0..1"),
        (lambda model, x, y: (model, x[0], y), "a batch"),
        (lambda model, x, y: (nn.Unflatten(1, (3, 2)), x, y), "two or more classes"),
    ],
)
def test_bad_inputs_are_refused(name: str, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(name)(*change(*case()))


@every_attack
@pytest.mark.parametrize("k", [0, 6, 7])
def test_a_k_without_others_is_refused(name: str, k: int) -> None:
    with pytest.raises(ValueError, match=r"k must lie in 1\.\.5"):
        attacker(name, k=k)(*case())


@every_attack
def test_an_entry_says_what_it_does(name: str) -> None:
    line = ATTACKS[name].line
    assert line
    assert "\n" not in line
    assert len(line) < 100


@every_attack
@settings(max_examples=10, deadline=None)
@example(  # gradients so small that their squares vanish
    seed=255,
    d=3,
    classes=2,
    activation=nn.ReLU,
    dtype=torch.float32,
    radius=1.0,
    scale=71.0,
    bounded="not",
)
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(3, 7),
    classes=st.integers(2, 4),
    activation=st.sampled_from([nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Softplus]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    radius=st.floats(1e-4, 10.0),
    scale=st.floats(1e-3, 100.0),
    bounded=st.sampled_from(["not", "float", "tensor"]),
)
def test_the_promises_hold_for_any_network(
    name: str,
    seed: int,
    d: int,
    classes: int,
    activation: type[nn.Module],
    dtype: torch.dtype,
    radius: float,
    scale: float,
    bounded: str,
) -> None:
    model = tiny_mlp(d=d, classes=classes, activation=activation, seed=seed).to(dtype)
    x = (scale * numbers(4, d, seed=seed)).to(dtype)
    y = predicted(model, x)
    edges = torch.stack([numbers(d, seed=seed + 1), numbers(d, seed=seed + 2)]).to(dtype)
    low, high = (scale * edges).sort(dim=0).values
    bounds: Bounds | None = None
    if bounded == "float":
        bounds = (float(low[0]), float(high[0]))
        low, high = low[0].expand(d), high[0].expand(d)
    elif bounded == "tensor":
        bounds = (low, high)
    found = small(name, radius, perturbation=L2Ball(bounds=bounds))(model, x, y)
    assert exactly_within(found.x, x, radius)
    if bounds is not None:
        assert (found.x >= torch.minimum(low, x)).all()
        assert (found.x <= torch.maximum(high, x)).all()
    assert (predicted(model, found.x) == y).all()
    assert_true(found, model, x, y)
