import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from r2et.core.rng import stream
from r2et.explainers import Gradient
from r2et.models import ACTIVATIONS, MODELS, logistic, mlp, structured
from r2et.models.linear import fitted_logistic
from r2et.models.smoothing import SoftLeaky, softened

Build = Callable[..., nn.Module]

BUILDS: dict[str, Build] = {
    **{name: MODELS[name].build for name in ("mlp", "logistic", "structured")},
    "structured": partial(structured, numeric=[0, 3], one_hot=[[1, 2], [4, 5]]),
}
every_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


# --- networks ---


@every_build
def test_weights_come_from_the_stream_alone(build: Build) -> None:
    before = torch.random.get_rng_state()
    once = build(6, 3, generator=stream(0, "init"))
    again = build(6, 3, generator=stream(0, "init"))
    other = build(6, 3, generator=stream(1, "init"))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, value in once.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert not torch.equal(value, other.state_dict()[name])


@every_build
def test_a_network_gives_one_logit_for_each_class(build: Build) -> None:
    network = build(6, 3, generator=stream(0, "init"))
    assert network(torch.zeros(4, 6)).shape == (4, 3)
    assert all(weight.requires_grad for weight in network.parameters())
    assert build(6, generator=stream(0, "init"))(torch.zeros(4, 6)).shape == (4, 2)


@pytest.mark.parametrize("build", [partial(mlp, hidden=(400,)), logistic], ids=["mlp", "logistic"])
def test_weights_are_drawn_as_torch_draws_them(build: Build) -> None:
    # Uniform within +-1 / sqrt(inputs of the layer): torch's own rule for linear layers.
    network = build(100, 50, generator=stream(0, "init"))
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    torchs = [nn.Linear(layer.in_features, layer.out_features) for layer in layers]
    for layer, torchs_own in zip(layers, torchs, strict=True):
        bound = layer.in_features**-0.5
        for drawn, theirs in zip(layer.parameters(), torchs_own.parameters(), strict=True):
            assert drawn.abs().max() <= bound
            uniform = stats.uniform(-bound, 2 * bound).cdf
            assert stats.kstest(drawn.detach().flatten(), uniform).pvalue > 0.01
            assert theirs.abs().max() <= bound


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_is_the_product_of_its_layers(activation: str) -> None:
    network = mlp(6, 3, hidden=(5, 4), activation=activation, generator=stream(0, "init")).double()
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(6, 5), (5, 4), (4, 3)]
    bend: dict[str, Callable[[Tensor], Tensor]] = {
        "leaky-relu": lambda z: torch.where(z > 0, z, 0.01 * z),
        "relu": lambda z: torch.where(z > 0, z, 0 * z),
        "softplus": lambda z: (1 + z.exp()).log(),
        "sharp-softplus": lambda z: (1 + (8 * z).exp()).log() / 8,
        "tanh": lambda z: (z.exp() - (-z).exp()) / (z.exp() + (-z).exp()),
    }
    x = numbers(7, 6)
    z = x
    for layer in layers[:-1]:
        z = bend[activation](z @ layer.weight.T + layer.bias)
    expected = z @ layers[-1].weight.T + layers[-1].bias
    torch.testing.assert_close(network(x), expected)


# --- rounded kinks ---


@pytest.mark.parametrize("sharpness", [0.5, 3.0, 50.0])
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3])
def test_a_rounded_kink_stays_near_the_sharp_one(sharpness: float, slope: float) -> None:
    # softplus(x; rho) - max(x, 0) = ln(1 + e^{-rho |x|}) / rho, at most ln 2 / rho, at x = 0; the
    # part that is rounded has the weight 1 - s.
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    error = SoftLeaky(sharpness, slope)(x) - nn.LeakyReLU(slope)(x)
    expected = (1 - slope) * (1 + (-sharpness * x.abs()).exp()).log() / sharpness
    torch.testing.assert_close(error, expected, rtol=0, atol=1e-8)
    assert error.argmax() == 500
    assert error.max().item() == pytest.approx((1 - slope) * 0.6931471805599453 / sharpness)


class Nested(nn.Module):
    """Kinks at several depths, one layer used twice, and a skip past all of them."""

    def __init__(self) -> None:
        super().__init__()
        kink = nn.ReLU()
        self.inner = nn.Sequential(
            nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.2)), nn.Linear(5, 5), kink
        )
        self.outer = nn.ModuleDict({"first": nn.Linear(5, 5), "second": nn.Linear(6, 5)})
        self.kink = self.again = kink
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(
            self.again(self.outer["first"](self.kink(self.inner(x)))) + self.outer["second"](x)
        )
        return scores


def kinks(model: nn.Module) -> int:
    return sum(isinstance(part, nn.ReLU | nn.LeakyReLU) for part in model.modules())


@pytest.fixture(params=["leaky-relu", "relu", "nested"])
def kinked(request: pytest.FixtureRequest) -> nn.Module:
    if request.param == "nested":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Nested().double()
    return mlp(6, hidden=(5, 5), activation=request.param, generator=stream(0, "init")).double()


def test_a_softened_network_has_no_kinks_and_comes_near(kinked: nn.Module) -> None:
    x = numbers(50, 6)
    errors = []
    for sharpness in (1.0, 10.0, 100.0, 1000.0):
        smooth = softened(kinked, sharpness)
        assert smooth is not None
        assert kinks(smooth) == 0
        errors.append((smooth(x) - kinked(x)).abs().max().item())
    # Each unit errs by at most ln 2 / rho and the rest of the network is Lipschitz: the error falls
    # at least about as fast as 1 / rho.
    assert errors[0] > 1e-3
    assert all(after < before / 5 for before, after in pairwise(errors))


def test_one_hidden_layer_errs_by_no_more_than_its_units() -> None:
    # |f_rho(x) - f(x)| <= sum over units of |output weight| (1 - s) ln 2 / rho.
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(200, 6)
    for sharpness in (0.5, 2.0, 8.0):
        smooth = softened(model, sharpness)
        assert smooth is not None
        bound = model[2].weight.abs().sum(-1) * 0.99 * 0.6931471805599453 / sharpness
        error = (smooth(x) - model(x)).abs()
        assert (error <= bound).all()
        assert error.max() > 0.05 * bound.max()


def test_the_original_is_untouched(kinked: nn.Module) -> None:
    before, count = copy.deepcopy(kinked.state_dict()), kinks(kinked)
    smooth = softened(kinked, 2.0)
    assert smooth is not None
    with torch.no_grad():
        for weight in smooth.parameters():
            weight += 1
    assert kinks(kinked) == count
    assert all(torch.equal(value, before[name]) for name, value in kinked.state_dict().items())


def test_smooth_networks_have_nothing_to_soften() -> None:
    assert softened(tiny_mlp(activation=nn.Tanh), 2.0) is None
    assert softened(nn.Linear(3, 2), 2.0) is None


def test_a_lone_kink_is_softened() -> None:
    smooth = softened(nn.LeakyReLU(0.3), 4.0)
    assert isinstance(smooth, SoftLeaky)
    assert (smooth.sharpness, smooth.slope) == (4.0, 0.3)
    lone = softened(nn.ReLU(), 4.0)
    assert isinstance(lone, SoftLeaky)
    assert lone.slope == 0


# --- the linear control ---


def some_classes(classes: int, rows: int = 300) -> tuple[Tensor, Tensor]:
    """Overlapping classes, so that the optimum is finite."""
    x = numbers(rows, 4)
    scores = x @ numbers(4, classes, seed=1) + 2 * numbers(rows, classes, seed=2)
    return x, scores.argmax(-1)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_control_is_scikit_learns(classes: int) -> None:
    x, y = some_classes(classes)
    theirs = LogisticRegression(C=1e4, max_iter=2000, tol=1e-6).fit(x.numpy(), y.numpy())
    with torch.no_grad():
        logits = fitted_logistic(x, y).double()(x)
    odds = logits[:, 1] - logits[:, 0] if classes == 2 else logits
    decision = torch.from_numpy(theirs.decision_function(x.numpy()))
    torch.testing.assert_close(odds, decision, rtol=1e-5, atol=1e-5)
    probabilities = torch.from_numpy(theirs.predict_proba(x.numpy()))
    torch.testing.assert_close(logits.softmax(-1), probabilities, rtol=1e-4, atol=1e-6)


def test_the_control_is_at_its_optimum_also_where_the_loss_is_flat() -> None:
    # What all columns of a one-hot group share is a constant, which the bias has for nothing: of
    # the penalised optimum none is left in the weights, however little they are penalised.
    group = torch.arange(600) % 3
    x = torch.cat([F.one_hot(group).double(), numbers(600, 2)], dim=1)
    y = (x @ numbers(5, 1, seed=1)[:, 0] + 3 * numbers(600, seed=2) > 1).long()
    (weights, _) = fitted_logistic(x, y, penalty=1e-4).parameters()
    assert weights.detach()[:, :3].sum(1).abs().max() < 1e-6 * weights.detach().abs().max()


def directions(model: nn.Module, x: Tensor, y: int, of: str) -> Tensor:
    labels = torch.full((len(x),), y)
    found = Gradient(of=of, form="signed")(model, x, labels).detach()  # type: ignore[arg-type]
    return found / found.norm(dim=-1, keepdim=True)


def test_the_control_of_two_classes_points_one_way() -> None:
    # grad p = p (1 - p) (w_1 - w_0): the weights' direction, at every x.
    x, y = some_classes(2)
    model = fitted_logistic(x, y).double()
    w = next(model.parameters()).detach()
    expected = (w[1] - w[0]) / (w[1] - w[0]).norm()
    for of in ("probability", "margin"):
        found = directions(model, 5 * numbers(40, 4, seed=3), 1, of)
        torch.testing.assert_close(found, expected.expand(40, 4))


def test_the_control_of_three_classes_points_one_way_in_its_logits_only() -> None:
    # grad z_c = w_c everywhere, but grad p_c = p_c (w_c - sum_j p_j w_j) turns with x.
    x, y = some_classes(3)
    model = fitted_logistic(x, y).double()
    w = next(model.parameters()).detach()
    at = 5 * numbers(40, 4, seed=3)
    expected = w[2] / w[2].norm()
    torch.testing.assert_close(directions(model, at, 2, "logit"), expected.expand(40, 4))
    p = model(at).softmax(-1).detach()
    found = Gradient(form="signed")(model, at, torch.full((40,), 2)).detach()
    torch.testing.assert_close(found, p[:, 2:] * (w[2] - p @ w))
    turned = directions(model, at, 2, "probability")
    assert (turned @ turned.T).min() < 0.9


@pytest.mark.parametrize("y", [[0, 2, 0, 2], [1, 2, 1, 2]])
def test_a_missing_class_is_refused(y: list[int]) -> None:
    with pytest.raises(ValueError, match="every class"):
        fitted_logistic(numbers(4, 3), torch.tensor(y))
