import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from certified import NETWORKS, broken, labels, network, signed_gradient
from closed_form import Linear, Quadratic, numbers
from r2et import attack_curve
from r2et.certification import Certificate, backwards, certificate, certify, switches
from r2et.certification import activations as known
from r2et.certification.affine import AffineForm, Symbols
from r2et.certification.pullback import Open
from r2et.core.ranking import precision_at_k, top_k_mask
from r2et.metrics.statistics import auc
from r2et.models import structured
from r2et.perturbations import Box, L2Ball, NormBall
from r2et.theory.bounds import uncertified_radius_at_x
from trained import smooth_adult_network

K = 3


def inputs(shape: tuple[int, ...], count: int = 6, seed: int = 0) -> Tensor:
    return numbers(count, *shape, seed=seed)


def test_a_linear_model_is_certified_within_any_distance() -> None:
    found = certify(Linear(5), inputs((5,)), k=2, epsilons=(1e6,))
    assert (found.radius == torch.inf).all()
    assert (found.order_radius == torch.inf).all()
    assert (found.precision == 1).all()


def radius_by_hand(model: Quadratic, x: Tensor, y: int, k: int) -> float:
    # The slope of the second logit is Ax + b, so a gap s g_i - t g_j is linear in x with slope
    # s A_i - t A_j: it vanishes at distance gap / |s A_i - t A_j|, and at the nearest t.
    slope = ((x @ model.A + model.b) * (2 * y - 1)).detach()
    A = model.A.detach() * (2 * y - 1)
    ranked = slope.abs().argsort(descending=True).tolist()
    reached = []
    for i in ranked[:k]:
        for j in ranked[k:]:
            for t in (1, -1):
                s = slope[i].sign()
                margin, turn = s * slope[i] - t * slope[j], s * A[i] - t * A[j]
                reached.append(float(margin / turn.norm()))
    return min(reached)


def test_a_quadratic_model_is_certified_to_one_percent() -> None:
    model, x = Quadratic(6), inputs((6,), 12)
    found = certify(model, x, k=K)
    for row, y, radius in zip(x, labels(model, x).tolist(), found.radius.tolist(), strict=True):
        exact = radius_by_hand(model, row, y, K)
        assert 0.99 * exact <= radius <= exact


@pytest.mark.parametrize("name", NETWORKS)
def test_no_attack_breaks_a_certificate(name: str) -> None:
    attacked = 0
    for seed in range(2):
        model, shape = network(name, seed)
        x = inputs(shape, 10 if len(shape) == 1 else 3, seed)
        y = labels(model, x)
        found = certify(model, x, k=K)
        assert (found.radius > 0).all()
        failures, tried = broken(model, x, y, found, k=K)
        assert failures == 0
        attacked += tried
    assert attacked >= 1080


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_no_attack_breaks_a_certificate_in_thousands(name: str) -> None:
    attacked = 0
    for seed in range(6):
        model, shape = network(name, seed)
        x = inputs(shape, 16 if len(shape) == 1 else 8, seed + 100)
        y = labels(model, x)
        found = certify(model, x, k=K)
        failures, tried = broken(model, x, y, found, k=K, points=60, steps=12)
        assert failures == 0
        attacked += tried
    assert attacked >= 6 * 8 * 60 * 13


def test_a_radius_is_not_far_from_what_breaks_it() -> None:
    # The same attack finds another top k a little further out: it can see what it looks for.
    model, shape = network("softplus")
    x = inputs(shape, 20)
    y = labels(model, x)
    found = certify(model, x, k=K)
    failures, _ = broken(model, x, y, found, k=K, share=1.5)
    assert failures > 0


@pytest.mark.parametrize(
    ("name", "rising"),
    [("softplus", True), ("relu", True), ("two layers", False), ("max pooling", False)],
)
def test_bounds_that_forget_a_rest_are_caught(
    name: str, rising: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an activation does at x alone, taken for what it does around: as a line or as a value.
    def careless(
        activation: known.Activation, z: Tensor, low: Tensor, high: Tensor, relaxation: str
    ) -> known.Line:
        at, nothing = activation.derivative(z), torch.zeros_like(z)
        rise = activation.curvature(z) if rising else nothing
        return known.Line(at=at, rise=rise, low=nothing, high=nothing)

    def certain(
        symbols: Symbols, signal: AffineForm, bend: known.Activation, at: Open
    ) -> AffineForm:
        middle = (at.low + at.high) / 2
        return switches.switched(symbols, signal, bend, Open(middle, middle, None))

    monkeypatch.setattr(backwards, "derivative_line", careless)
    monkeypatch.setattr(backwards, "switched", certain)
    monkeypatch.setattr(certificate, "_check_inside", lambda *_: None)
    failures = 0
    for seed in range(3):
        model, shape = network(name, seed)
        x = inputs(shape, 10 if len(shape) == 1 else 3, seed)
        y = labels(model, x)
        failures += broken(model, x, y, certify(model, x, k=K), k=K)[0]
    assert failures > 0


def test_what_certifies_tries_to_break_it_before_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, shape = network("softplus")
    honest = certificate._certified

    def boastful(*given: Any) -> Certificate:
        found = honest(*given)
        return replace(found, radius=4 * found.radius)

    monkeypatch.setattr(certificate, "_certified", boastful)
    with pytest.raises(
        ValueError, match=r"row \d+ are others at x = .*, inside of what was proved"
    ):
        certify(model, inputs(shape, 20), k=K)


@pytest.mark.parametrize("name", ["softplus", "relu", "three classes", "structured"])
def test_certified_precision_is_below_what_any_attack_leaves(name: str) -> None:
    model, shape = network(name)
    x, epsilons = inputs(shape, 20), (0.05, 0.2, 1.0)
    y = labels(model, x)
    found = certify(model, x, k=K, epsilons=epsilons)
    before = signed_gradient(model, x.clone().requires_grad_(), y).detach().abs()
    for column, epsilon in enumerate(epsilons):
        for seed in range(50):
            move = numbers(*x.shape, seed=seed)
            place = x + epsilon * move / move.norm(dim=-1, keepdim=True)
            after = signed_gradient(model, place.requires_grad_(), y).detach().abs()
            assert (precision_at_k(before, after, K) >= found.precision[:, column] - 1e-12).all()
    inside = found.radius[:, None] > torch.tensor(epsilons, dtype=torch.float64)
    assert (found.precision[inside] == 1).all()
    assert (found.precision.diff(dim=1) <= 0).all()


def test_the_order_is_no_firmer_than_the_set() -> None:
    model, shape = network("softplus")
    found = certify(model, inputs(shape, 20), k=K)
    assert (found.order_radius <= found.radius).all()
    assert (found.order_radius < found.radius).any()


def test_features_that_cannot_change_enlarge_the_radius() -> None:
    model, shape = network("softplus")
    x, scale = inputs(shape, 10), torch.tensor([1.0, 0, 1, 0, 1, 1, 0], dtype=torch.float64)
    free, held = certify(model, x, k=K), certify(model, x, k=K, perturbation=L2Ball(scale=scale))
    assert (held.radius >= free.radius * 0.99).all()
    assert (held.radius > free.radius * 1.05).any()
    masked = certify(model, x, k=K, perturbation=L2Ball(free=scale > 0))
    assert torch.equal(masked.radius, held.radius)
    nothing = certify(model, x, k=K, perturbation=L2Ball(free=torch.zeros(7, dtype=torch.bool)))
    assert (nothing.radius == torch.inf).all()


def test_a_box_holds_its_corners() -> None:
    model, shape = network("softplus")
    x = inputs(shape, 10)
    y = labels(model, x)
    found = certify(model, x, k=K, perturbation=Box())
    mask = top_k_mask(signed_gradient(model, x.clone().requires_grad_(), y).detach().abs(), K)
    for seed in range(200):
        corner = x + 0.999 * found.radius[:, None] * numbers(*x.shape, seed=seed).sign()
        slope = signed_gradient(model, corner.requires_grad_(), y).detach()
        assert (top_k_mask(slope.abs(), K) == mask).all()
    assert (found.radius <= certify(model, x, k=K).radius * 1.01).all()


def test_the_loss_is_certified_as_the_probability_is() -> None:
    # |grad -ln p| = (1 - p) |grad m| and |grad p| = p (1 - p) |grad m|: one ranking, for every x'.
    model, shape = network("three classes")
    x = inputs(shape)
    by_loss, by_probability, by_logit = (
        certify(model, x, k=K, of=of).radius for of in ("loss", "probability", "logit")
    )
    assert torch.equal(by_loss, by_probability)
    assert not torch.equal(by_loss, by_logit)


def test_projected_explanations_are_certified_as_such() -> None:
    model, shape = network("softplus")
    x, groups = inputs(shape, 10), [[0, 1, 2], [3, 4]]
    y = labels(model, x)
    found = certify(model, x, k=K, one_hot=groups)
    assert broken(model, x, y, found, k=K, one_hot=groups)[0] == 0
    assert (found.top != certify(model, x, k=K).top).any()


def test_a_structured_network_written_out_is_the_same_function() -> None:
    for classes in (2, 3):
        model = structured(
            7, classes, numeric=[0, 5], one_hot=[[1, 2], [3, 4, 6]],
            generator=torch.Generator().manual_seed(0),
        ).double()  # fmt: skip
        x = inputs((7,), 20)
        torch.testing.assert_close(model.plain()(x), model(x))


@pytest.mark.slow
def test_an_exported_program_is_certified_as_its_model() -> None:
    for name in ("softplus", "residual", "max pooling", "leaky relu", "functional"):
        model, shape = network(name)
        x = inputs(shape, 4)
        batch = ({0: torch.export.Dim.DYNAMIC},)
        exported = torch.export.export(model, (x,), dynamic_shapes=batch).module()
        torch.testing.assert_close(certify(exported, x, k=K).radius, certify(model, x, k=K).radius)


def test_the_model_given_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).train()
    before = copy.deepcopy(model.state_dict())
    certify(model, inputs((7,)).float(), k=K)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model[0].weight.dtype == torch.float32
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class OfL1(NormBall):
    norm = "l1"

    def _length(self, moves: Tensor) -> Tensor:
        return moves.abs().sum(-1)

    def _steepest(self, slope: Tensor) -> Tensor:
        return torch.where(slope.abs() == slope.abs().amax(-1, keepdim=True), slope.sign(), 0.0)


class Squashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 4), nn.Softmax(-1), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) if x.sum() > 0 else self.layer(-x)
        return found


@pytest.mark.parametrize(
    ("model", "settings", "told"),
    [
        (
            Squashed(),
            {},
            r"no bound is known for aten._softmax.default \(test_certification.py, line",
        ),
        (
            Branching(),
            {},
            r"an if: a certificate needs .* \(test_certification.py, line \d+: found",
        ),
        (nn.Sequential(nn.Linear(7, 2), nn.GELU("tanh")), {}, r"approximate GELU"),
        (nn.Linear(7, 2), {"perturbation": OfL1()}, r"for an L2Ball or a Box, got OfL1"),
        (nn.Linear(7, 2), {"epsilons": (-1.0,)}, r"epsilons must be finite and >= 0"),
        (
            nn.Linear(7, 2),
            {"perturbation": L2Ball(scale=torch.ones(3))},
            r"scale of a perturb.* one entry",
        ),
        (nn.Linear(7, 2), {"k": 7}, r"k must lie in 1..6"),
    ],
)
def test_what_cannot_be_certified_is_refused_in_one_sentence(
    model: nn.Module, settings: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        certify(model, inputs((7,)).float(), **({"k": K} | settings))  # type: ignore[arg-type]


ACTIVATIONS = {
    name: getattr(known, name)
    for name in ("leaky", "softplus", "sigmoid", "tanh", "silu", "gelu", "square")
}
SMOOTH = [name for name in ACTIVATIONS if name != "leaky"]


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_an_activation_are_those_of_its_value(name: str) -> None:
    activation = ACTIVATIONS[name]()
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64).requires_grad_()
    value, written = (
        activation.value(z),
        (activation.derivative, activation.curvature, activation.third),
    )
    for function in written:
        (value,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        torch.testing.assert_close(value, function(z), rtol=1e-9, atol=1e-11)
        if not value.requires_grad:
            return
    (fourth,) = torch.autograd.grad(value.sum(), z, allow_unused=True, materialize_grads=True)
    reached = [
        activation.curvature(z).abs().max(),
        activation.third(z).abs().max(),
        fourth.abs().max(),
    ]
    for most, limit in zip(reached, activation.limits, strict=True):
        assert most <= limit + 1e-12


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_lines_enclose_an_activation_and_its_slope(name: str) -> None:
    activation = ACTIVATIONS[name]()
    z = torch.tensor([-3.0, -0.4, 0.0, 0.2, 1.0, 4.0], dtype=torch.float64)
    for width in (1e-6, 0.1, 1.0, 5.0, 50.0):
        low, high = z - width, z + 0.7 * width
        t = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
        places = low + t * (high - low)
        lines = [(activation.value, known.value_line(activation, z, low, high))]
        for relaxation in ("tangent", "secant", "flat"):
            lines.append(
                (activation.derivative, known.derivative_line(activation, z, low, high, relaxation))
            )
        for function, line in lines:
            error = function(places) - line.at - line.rise * (places - z)
            assert (error >= line.low).all()
            assert (error <= line.high).all()
        least, most = known.third_range(activation, low, high)
        third = activation.third(places)
        assert (third >= least - 1e-12).all()
        assert (third <= most + 1e-12).all()


def test_a_radius_of_the_set_is_one_of_the_epsilons() -> None:
    model, shape = network("softplus")
    x, ball = inputs(shape), L2Ball(radius=0.1)
    found = certify(model, x, k=K, perturbation=ball, epsilons=(0.1, 0.2), radii=False)
    assert found.epsilons == (0.2, 0.1)
    again = certify(model, x, k=K, epsilons=(0.2, 0.1), radii=False)
    assert torch.equal(found.precision, again.precision)


def test_radii_are_told_or_left_out() -> None:
    model, shape = network("softplus")
    found = certify(model, inputs(shape), k=K, epsilons=(0.1,), radii=False)
    assert found.radius.isnan().all()
    assert found.precision.shape == (6, 1)


def test_the_value_at_x_alone_is_exact_where_slopes_are_straight_and_wrong_elsewhere() -> None:
    # Ax + b is linear, so ||H_i - H_j|| is the same everywhere; only |g_j| may turn its sign.
    model, x = Quadratic(6), inputs((6,), 12)
    assert (uncertified_radius_at_x(model, x, k=K) >= certify(model, x, k=K).radius).all()
    net, shape = network("softplus")
    x = inputs(shape, 40)
    claimed, found = uncertified_radius_at_x(net, x, k=K), certify(net, x, k=K)
    careless = replace(found, radius=claimed)
    assert broken(net, x, labels(net, x), careless, k=K)[0] > 0
    kinked, shape = network("relu")
    assert (uncertified_radius_at_x(kinked, inputs(shape), k=K) == torch.inf).all()


@pytest.mark.slow
def test_radii_of_a_trained_network_are_close_to_the_smallest_attack() -> None:
    split, model = smooth_adult_network()
    x = split.test.x[:60].double()
    y = labels(model, x)
    found = certify(model, x, k=8, epsilons=(0.1,))
    smallest = attack_curve(model, x, y, k=8, radii=(0.1, 0.4)).smallest
    ratio = found.radius / smallest
    assert (ratio <= 1).all()
    assert ratio.median() >= 0.6
    assert auc(model, split.test.x.double(), split.test.y) >= 0.878
    assert found.precision.mean() >= 0.9
    assert broken(model, x, y, found, k=8)[0] == 0
