"""Curves over radii and cheapest breaking inputs, against geometry solved by hand."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacking import attacker
from closed_form import Linear, Quadratic, mixing_mlp, numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget, _differences_at
from r2et.attacks.pairs import (
    NEIGHBOURS,
    OVERSHOOT,
    approach,
    features_at_the_border,
    slopes_at,
    thinnest,
)
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.radius import Curve
from r2et.attacks.registry import ATTACKS, attack_curve
from r2et.attacks.search import AttackProblem, BestSoFar, prediction
from r2et.core.autograd import jacobian
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.explainers import (
    Explainer,
    Gradient,
    GradientTimesInput,
    IntegratedGradients,
    SmoothGrad,
    gradient,
    predicted,
)
from r2et.perturbations import L2Ball, PerturbationSet

LITTLE = EnsembleBudget(rounds=1, starts=6, steps=8, points=24, moves=6, pairs=4, sharpness=(4.0,))
NONE = EnsembleBudget(rounds=0)
RADII = [0.3, 0.1, 2.0, 1.0]

every_attack = pytest.mark.parametrize("name", ATTACKS)
of_logit = Gradient(of="logit")
signed_logit = Gradient(of="logit", form="signed")


class Sure(Quadratic):
    """Logits [0, x'Ax/2 + b'x + 1e6]: class 1 wherever these tests go, the slope still Ax + b."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.tensor([0.0, 1e6])


def ones(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.long)


def curver(name: str, radii: Sequence[float], **choices: Any) -> Callable[..., Curve]:
    """The curve of an attack of little effort, ready for (model, x, y)."""
    budget: Any = None
    if isinstance(ATTACKS[name].budget, WalkBudget):
        budget = {radius: WalkBudget(step=radius / 6 or 1.0, steps=9) for radius in radii}
    if isinstance(ATTACKS[name].budget, EnsembleBudget):
        budget = LITTLE
    return partial(attack_curve, **{"method": name, "radii": radii, "budget": budget, **choices})


# --- the smallest breaking radius, by geometry ------------------------------------------------


def smallest_of(saliency: Tensor, slopes: Tensor, k: int) -> float:
    """Distance to the nearest plane |s_i| = |s_j|, i of the top k and j not; s linear in x.

    s_i - s_j and s_i + s_j are zero on planes at distance |s_i -+ s_j| / ||slope_i -+ slope_j||.
    """
    ranked = saliency.abs().argsort(descending=True).tolist()
    return min(
        float((saliency[i] + sign * saliency[j]).abs() / (slopes[i] + sign * slopes[j]).norm())
        for i in ranked[:k]
        for j in ranked[k:]
        for sign in (1, -1)
    )


def assert_sound_and_tight(curve: Curve, exact: Tensor) -> None:
    """Nothing breaks below the exact radius, and nearly everything within 5 % above it."""
    assert (curve.smallest >= exact - 1e-9).all()
    assert (curve.smallest <= 1.05 * exact).double().mean() >= 0.95
    for radius, precision in zip(curve.epsilons, curve.precision, strict=True):
        assert (precision[radius < exact - 1e-9] == 1).all()
        assert (precision[1.05 * exact <= radius] < 1).double().mean() >= 0.95
    assert exact.min() < 0.1  # both sides of most radii were seen
    assert exact.max() > curve.epsilons[1]


@pytest.mark.parametrize(("d", "k", "seed"), [(8, 3, 0), (28, 8, 0), (12, 1, 1), (5, 4, 2)])
def test_the_smallest_radius_of_a_quadratic_is_that_of_its_planes(
    d: int, k: int, seed: int
) -> None:
    # I = |Ax + b|: feature i and j change places on the planes (Ax + b)_i = +-(Ax + b)_j.
    model, x = Sure(d=d, seed=seed), numbers(40, d, seed=seed + 5)
    A, b = model.A.detach(), model.b.detach()
    exact = torch.tensor([smallest_of(A @ row + b, A, k) for row in x], dtype=torch.float64)
    curve = curver("strong", [0.02, 0.1, 0.5, 3.0], k=k, explainer=of_logit)(model, x, ones(x))
    assert_sound_and_tight(curve, exact)


@pytest.mark.parametrize("of", ["logit", "probability"])
@pytest.mark.parametrize(("d", "k"), [(8, 3), (20, 6)])
def test_the_smallest_radius_of_gradient_x_input_is_that_of_its_planes(
    d: int, k: int, of: str
) -> None:
    # I = |w * x|, times p (1 - p) for all features alike: the planes w_i x_i = +-w_j x_j.
    model, x = Linear(d=d, b=40.0), numbers(40, d, seed=3)
    w = model.w.detach()
    exact = torch.tensor([smallest_of(w * row, torch.diag(w), k) for row in x]).double()
    explain = GradientTimesInput(of=of)
    curve = curver("strong", [0.02, 0.1, 0.5, 3.0], k=k, explainer=explain)(model, x, ones(x))
    assert_sound_and_tight(curve, exact)


@every_attack
@pytest.mark.parametrize("of", ["logit", "probability"])
def test_the_gradient_of_a_linear_model_is_never_broken(name: str, of: str) -> None:
    model, x = Linear(d=6), 0.2 * numbers(9, 6)
    y, explain = predicted(model, x), Gradient(of=of)
    curve = curver(name, RADII, k=2, explainer=explain)(model, x, y)
    assert curve.smallest.isposinf().all()
    assert (curve.precision == 1).all()
    assert (curve.raw == 1).all()
    assert torch.equal(curve.nearest, x)


# --- what every curve promises ----------------------------------------------------------------


def exactly_within(found: Tensor, x: Tensor, radius: float) -> bool:
    """Whether every example lies in its ball, by fractions that round nothing."""
    pairs = zip(found.flatten(1).tolist(), x.flatten(1).tolist(), strict=True)
    return all(
        sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(after, before, strict=True))
        <= Fraction(radius) ** 2
        for after, before in pairs
    )


def assert_true(
    curve: Curve,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    k: int,
    *,
    explainer: Explainer = gradient,
    perturbation: PerturbationSet | None = None,
    outputs: Any = prediction,
    radii: list[float] = RADII,
) -> None:
    """Refuse a curve that differs from what its inputs do."""
    perturbation = perturbation or L2Ball()
    radii = sorted(radii)
    examples, features = curve.before.shape
    assert curve.epsilons.tolist() == pytest.approx(radii)
    assert len(curve.attacks) == len(radii)
    assert curve.x.shape == (len(radii), *x.shape)
    assert curve.after.shape == (len(radii), examples, features)
    assert curve.precision.shape == curve.raw.shape == (len(radii), examples)
    assert curve.nearest.shape == x.shape
    classes = [logits.argmax(-1) for logits in outputs(model, x)]
    with torch.no_grad():
        torch.testing.assert_close(curve.before, explainer(model, x, y))
    for at, radius in enumerate(radii):
        found = curve.x[at]
        assert exactly_within(found, x, radius)
        again = perturbation.at(radius).project(found, x)
        torch.testing.assert_close(again, found, rtol=0, atol=16 * torch.finfo(x.dtype).eps)
        with torch.no_grad():
            torch.testing.assert_close(curve.after[at], explainer(model, found, y))
        for logits, was in zip(outputs(model, found), classes, strict=True):
            assert torch.equal(logits.argmax(-1), was)
        same = precision_at_k(curve.before, curve.after[at], k)
        assert torch.equal(curve.precision[at], same)
        assert torch.equal(curve.raw[at], curve.attacks[at].precision)
        assert torch.equal(curve.precision[at] < 1, curve.smallest <= curve.epsilons[at])
    assert (curve.precision[1:] <= curve.precision[:-1]).all()
    assert (curve.raw >= curve.precision).all()
    broken = curve.smallest.isfinite()
    assert torch.equal(perturbation.cost(curve.nearest, x)[broken], curve.smallest[broken])
    assert torch.equal(curve.nearest[~broken], x[~broken])
    with torch.no_grad():
        there = precision_at_k(curve.before, explainer(model, curve.nearest, y), k)
    assert torch.equal(there < 1, broken)
    for logits, was in zip(outputs(model, curve.nearest), classes, strict=True):
        assert torch.equal(logits.argmax(-1), was)


def leaky_case(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    model, x = tiny_mlp(activation=nn.LeakyReLU).to(dtype), 0.5 * numbers(9, 6).to(dtype)
    return model, x, predicted(model, x)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.slow] * (name == "moo"))  # half a minute each
        for name in ATTACKS
        for dtype in (torch.float32, torch.float64)
    ],
)
def test_a_curve_is_true(name: str, dtype: torch.dtype) -> None:
    model, x, y = leaky_case(dtype)
    curve = curver(name, RADII, k=2)(model, x, y)
    assert_true(curve, model, x, y, 2)
    assert {curve.x.dtype, curve.precision.dtype, curve.smallest.dtype} == {dtype}
    assert (curve.precision[-1] < 1).any()
    assert (curve.precision[0] == 1).any()


@pytest.mark.parametrize(
    "explain",
    [
        SmoothGrad(samples=4),
        IntegratedGradients(points=4),
        GradientTimesInput(),
        Gradient(form="signed", of="margin"),
        Gradient(one_hot=[(0, 1, 2), (3, 4)]),
    ],
    ids=["smooth", "integrated", "input", "signed", "projected"],
)
def test_a_curve_of_any_explanation_is_true(explain: Explainer) -> None:
    model, x, y = leaky_case()
    curve = curver("strong", RADII, k=2, explainer=explain)(model, x, y)
    assert_true(curve, model, x, y, 2, explainer=explain)
    assert (curve.precision[-1] < 1).any()


def test_bounds_are_kept_by_the_whole_curve() -> None:
    model, x, _ = leaky_case()
    x = x.clamp(-0.6, 0.6)
    y, perturbation = predicted(model, x), L2Ball(bounds=(-0.6, 0.6))
    curve = curver("strong", RADII, k=2, perturbation=perturbation)(model, x, y)
    assert_true(curve, model, x, y, 2, perturbation=perturbation)
    free = curver("strong", RADII, k=2)(model, x, y)
    for found in (curve.x, curve.nearest):
        assert (found.abs() <= 0.6).all()
    assert (free.x.abs() > 0.6).any()
    assert curve.smallest.isfinite().any()


def test_every_output_keeps_its_class() -> None:
    model, x, y = leaky_case()
    second = Linear(d=6, seed=4)

    def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        return model(x), second(x)

    curve = curver("strong", RADII, k=2, outputs=outputs)(model, x, y)
    assert_true(curve, model, x, y, 2, outputs=outputs)
    assert (curve.precision[-1] < 1).any()
    free = curver("strong", RADII, k=2)(model, x, y)
    assert (predicted(second, free.x[-1]) != predicted(second, x)).any()


def test_the_nearest_input_of_another_class_does_not_count() -> None:
    # Of inputs 0.001 from the boundary the nearest plane often lies beyond it; a model that is
    # sure, of the same slopes, is broken there.
    explain, radii = Gradient(of="margin"), [0.1, 0.5, 2.0]
    curves, x, scored = [], numbers(40, 6), Quadratic(d=6)
    for _ in range(6):
        with torch.no_grad():
            slope, score = x @ scored.A + scored.b, scored(x)[:, 1]
        x = x + ((1e-3 * slope.norm(dim=-1) - score) / slope.square().sum(-1))[:, None] * slope
    for model in (Quadratic(d=6), Sure(d=6)):
        y = predicted(model, x)
        curves.append(curver("strong", radii, k=2, explainer=explain)(model, x, y))
        assert_true(curves[-1], model, x, y, 2, explainer=explain, radii=radii)
    kept, free = (curve.smallest for curve in curves)
    assert (kept >= free - 1e-9).all()
    assert (kept > 1.1 * free).double().mean() > 0.1


def test_pictures_are_attacked_as_their_numbers_are() -> None:
    flat = tiny_mlp(activation=nn.Softplus)
    x = 0.5 * numbers(9, 6)
    y = predicted(flat, x)
    model = nn.Sequential(nn.Flatten(), *flat)
    curve = curver("strong", RADII, k=2)(model, x.view(-1, 2, 3), y)
    assert_true(curve, model, x.view(-1, 2, 3), y, 2)
    plain = curver("strong", RADII, k=2)(flat, x, y)
    assert torch.equal(curve.x.flatten(2), plain.x)
    assert torch.equal(curve.smallest, plain.smallest)


def test_a_row_that_is_not_predicted_as_y_is_refused() -> None:
    model, x, y = leaky_case()
    wrong = torch.arange(9) % 2 == 0
    attack = curver("strong", [3.0], k=2)
    with pytest.raises(ValueError, match="5 of 9 rows are predicted otherwise"):
        attack(model, x, torch.where(wrong, 1 - y, y))


def test_radii_come_sorted_and_once() -> None:
    model, x, y = leaky_case()
    one = curver("strong", [1.0, 0.1, 1.0, 0.3, 0.1], k=2)(model, x, y)
    other = curver("strong", [0.1, 0.3, 1.0], k=2)(model, x, y)
    assert one.epsilons.tolist() == [0.1, 0.3, 1.0]
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.smallest, other.smallest)


@pytest.mark.parametrize(
    "epsilons",
    [
        [],
        [0.0, 1.0],
        [-1.0],
        [1.0, float("inf")],
        [float("nan")],
        [0.1, 0.2, float("nan"), 0.3, 0.4],
    ],
)
def test_radii_that_are_none_are_refused(epsilons: list[float]) -> None:
    with pytest.raises(ValueError, match="positive radii"):
        curver("strong", epsilons, k=2)(*leaky_case())


@every_attack
def test_no_examples_give_an_empty_curve(name: str) -> None:
    model, x, y = leaky_case()
    curve = curver(name, RADII, k=2)(model, x[:0], y[:0])
    assert curve.x.shape == (4, 0, 6)
    assert curve.precision.shape == (4, 0)
    assert curve.smallest.shape == (0,)


def test_nothing_of_the_caller_is_touched() -> None:
    model = mixing_mlp()
    x = numbers(5, 6).requires_grad_()
    y = predicted(model, x)
    modes = [part.training for part in model.modules()]
    weights = {key: each.clone() for key, each in model.state_dict().items()}
    assert all(modes)
    torch.manual_seed(3)
    dice = torch.get_rng_state()
    curve = curver("strong", RADII, k=2)(model, x, y)
    assert torch.equal(torch.get_rng_state(), dice)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(each, weights[key]) for key, each in model.state_dict().items())
    assert x.grad is None
    for each in (curve.x, curve.after, curve.smallest, curve.nearest):
        assert not each.requires_grad
    model.eval()
    assert_true(curve, model, x.detach(), y, 2)
    assert (curve.precision[-1] < 1).any()


def test_a_seed_decides_everything() -> None:
    model, x, y = leaky_case()
    one, same, other = (curver("strong", RADII, k=2, seed=seed)(model, x, y) for seed in (0, 0, 1))
    assert torch.equal(one.x, same.x)
    assert torch.equal(one.nearest, same.nearest)
    assert (one.nearest != other.nearest).any()


def test_results_of_others_count_where_a_radius_affords_them() -> None:
    # The attack of the curve itself does nothing. What is known was found at cost 0.7 or less.
    model, x, y = leaky_case()
    known = attacker("strong", k=2, radius=0.7)(model, x, y)
    radii = [0.05, 0.4, 0.7, 1.0]
    merge = partial(attack_curve, model, x, y, k=2, radii=radii, budget=NONE, pairs=0)
    alone = merge(walk=0)
    assert (alone.precision == 1).all()
    assert alone.smallest.isposinf().all()
    curve = merge(walk=0, others=[known])
    assert_true(curve, model, x, y, 2, radii=radii)
    cost = L2Ball().cost(known.x, x)
    assert known.flipped.any()
    assert (cost[known.flipped] > 0.4).any()
    for radius, precision, found in zip(radii, curve.precision, curve.x, strict=True):
        affordable = cost <= radius
        assert (precision[affordable] <= known.precision[affordable]).all()
        dear = ~affordable & known.flipped
        assert (found[dear] != known.x[dear]).any(-1).all()
    assert (curve.raw == 1).all()
    # Halfway back is cheaper, and still broken; along the border it is cheaper still.
    assert (curve.smallest[known.flipped] < cost[known.flipped]).all()
    nearer = merge(walk=40, others=[known])
    assert (nearer.smallest <= curve.smallest).all()
    assert (nearer.smallest < curve.smallest)[known.flipped].double().mean() > 0.5


# --- single pairs -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_slopes_are_rows_of_the_jacobian(shape: tuple[int, ...]) -> None:
    model, x = nn.Sequential(nn.Flatten(), *tiny_mlp()), numbers(4, *shape)
    y = predicted(model, x)
    features = torch.tensor([[0, 3, 5], [1, 2, 0], [4, 4, 1], [5, 0, 2]])
    whole = jacobian(lambda at: gradient(model, at, y), x).detach()
    found = slopes_at(gradient, model, x, y, features)
    assert found.shape == (4, 3, *shape)
    for row in range(4):
        torch.testing.assert_close(found[row].flatten(1), whole[row, features[row]])
    assert (whole.abs() > 1e-3).any()


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_differences_of_a_quadratic_are_its_hessian(shape: tuple[int, ...]) -> None:
    # I(x) = Ax + b: (I(x + cu) - I(x - cu)) / 2c = Au, and sum_u (Au)_i u = A_i, for any c.
    inner = Sure(d=6)
    model, x = nn.Sequential(nn.Flatten(), inner), numbers(4, *shape)
    best = BestSoFar(
        model,
        x,
        ones(x),
        AttackProblem(k=2, explainer=signed_logit, perturbation=L2Ball(radius=9.0)),
    )
    features = torch.tensor([[0, 3, 5], [1, 2, 0], [4, 4, 1], [5, 0, 2]])
    for reach in (0.01, 2.0):
        found = _differences_at(best, x, features, reach, stream(0, "test"))
        assert found.shape == (4, 3, *shape)
        torch.testing.assert_close(found.flatten(2), inner.A.detach()[features])
    assert best.precision.min() < 1  # the places tried were offered


def test_differences_see_the_kinks_that_a_derivative_does_not() -> None:
    # Between its kinks a LeakyReLU network has a constant slope.
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(5, 6)
    y = predicted(model, x)
    kinks = (model[0](x) / model[0].weight.norm(dim=-1)).detach().abs().amin(-1)
    features = torch.arange(6).expand(5, 6)
    assert (slopes_at(of_logit, model, x, y, features) == 0).all()
    best = BestSoFar(
        model, x, y, AttackProblem(k=2, explainer=of_logit, perturbation=L2Ball(radius=9.0))
    )
    short, long = (
        _differences_at(best, x, features, reach, stream(0, "test"))
        for reach in (0.9 * float(kinks.min()), 2.0)
    )
    assert short.abs().max() < 1e-9
    assert (long.flatten(1).norm(dim=-1) > 1e-3).all()


def test_the_border_is_around_the_k_th_place() -> None:
    saliency = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    top, rest = features_at_the_border(saliency, 2)
    assert top.tolist() == [[0, 2], [4, 3]]
    assert rest.tolist() == [[4, 3, 1], [2, 1, 0]]
    many = torch.arange(100.0).flip(0)[None]  # feature i is the i-th of the ranking
    top, rest = features_at_the_border(many, 50)
    assert top.tolist() == [list(range(50 - NEIGHBOURS, 50))]
    assert rest.tolist() == [list(range(50, 50 + NEIGHBOURS))]


def test_the_thinnest_pairs_match_a_double_loop() -> None:
    saliency, k, count = numbers(4, 7).abs(), 3, 5
    by_feature = numbers(4, 7, 2, 2, seed=1)
    by_feature[3] = by_feature[3, :1]  # all slopes alike: nothing changes places to first order
    top, rest = features_at_the_border(saliency, k)
    features = torch.cat([top, rest], dim=1)
    slopes = torch.stack([each[own] for each, own in zip(by_feature, features, strict=True)])
    pairs, moves = thinnest(saliency, top, rest, slopes, L2Ball(), count)
    assert pairs.shape == (4, count, 2)
    assert moves.shape == (4, count, 2, 2)
    assert (moves[3] == 0).all()
    for row in range(3):
        slow = []
        for i in top[row].tolist():
            for j in rest[row].tolist():
                uphill = by_feature[row, i] - by_feature[row, j]
                gap = float(saliency[row, i] - saliency[row, j])
                slow.append(
                    (gap / float(uphill.norm()), [i, j], -gap * uphill / uphill.norm() ** 2)
                )
        slow.sort(key=lambda each: each[0])
        assert pairs[row].tolist() == [pair for _, pair, _ in slow[:count]]
        torch.testing.assert_close(moves[row], torch.stack([move for _, _, move in slow[:count]]))
    assert thinnest(saliency, top, rest, slopes, L2Ball(), 99)[0].shape == (4, 12, 2)


def test_one_step_of_newton_meets_the_plane_of_a_quadratic() -> None:
    # The gap h of a pair is zero h / ||A_i - A_j|| away; the step goes OVERSHOOT beyond it.
    model, x, k = Sure(d=6), numbers(5, 6), 2
    A, b = model.A.detach(), model.b.detach()
    saliency = x @ A + b
    top, rest = features_at_the_border(saliency, k)
    slopes = slopes_at(signed_logit, model, x, ones(x), torch.cat([top, rest], dim=1))
    pairs, _ = thinnest(saliency, top, rest, slopes, L2Ball(), 3)
    places: list[Tensor] = []
    approach(
        model, signed_logit, x, ones(x), pairs, L2Ball(radius=99.0), places.append, iterations=3
    )
    assert len(places) == 3
    for number in range(3):
        for row in range(5):
            i, j = pairs[row, number].tolist()
            gap, far = saliency[row, i] - saliency[row, j], (A[i] - A[j]).norm()
            for found in places:  # from there on the steps stay
                there = found[number, row]
                reached = A @ there + b
                left = float(reached[i] - reached[j])
                assert left == pytest.approx(-OVERSHOOT * float(gap), abs=1e-10)
                assert left < 0
                distance = float((there - x[row]).norm())
                assert distance == pytest.approx(float(gap / far) * (1 + OVERSHOOT), rel=1e-9)


def test_newton_stays_in_its_ball_and_leaves_flat_gaps_alone() -> None:
    model, x = Sure(d=6), numbers(5, 6)
    pairs = torch.tensor([[0, 1], [2, 3]]).expand(5, 2, 2)
    places: list[Tensor] = []
    approach(model, signed_logit, x, ones(x), pairs, L2Ball(radius=1e-3), places.append)
    for found in places:
        assert ((found - x).norm(dim=-1) <= 1e-3).all()
    flat: list[Tensor] = []
    approach(Linear(d=6), signed_logit, x, ones(x), pairs, L2Ball(), flat.append)
    assert all(torch.equal(found, x.expand_as(found)) for found in flat)
