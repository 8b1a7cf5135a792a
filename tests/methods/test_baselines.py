"""The papers' other defences, each against a slow transcription of its definition."""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.autograd import gradcheck

from closed_form import Linear, Quadratic, conv_net, numbers, tiny_mlp
from r2et.core.autograd import eval_mode
from r2et.core.ranking import top_k_mask, top_margin
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import gradient, predicted
from r2et.methods import METHODS, BatchContext, Method, r2et
from r2et.methods.baselines import Bent, exact_norm, facing_reach, largest_eigenvalue
from r2et.metrics.thickness import thickness as measured_thickness
from r2et.models import mlp
from r2et.models.smoothing import with_softplus
from r2et.models.stack import by_network, in_turn, stacked
from r2et.training.objective import Objective
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit
from refusals import refusal

Draw = Callable[[Tensor], Tensor]
CURVED = ("est-h", "exact-h", "ssr", "cl", "thickness")
RANKING = ("at", "cl", "thickness")
ANY_NETWORK = [name for name, entry in METHODS.items() if entry.model == "mlp"]


def classes(count: int) -> Tensor:
    return torch.arange(count) % 2


def seeded(seed: int = 0) -> Draw:
    """Standard normal numbers, the same ones for the same seed whenever it starts anew."""
    generator = torch.Generator().manual_seed(seed)
    return lambda x: torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)


def by_row() -> Draw:
    """Numbers that look normal and depend on nothing but the row and the number of the call."""
    calls: list[int] = []

    def draw(x: Tensor) -> Tensor:
        calls.append(1)
        places = torch.arange(1, x[0].numel() + 1, dtype=x.dtype).view(x.shape[1:])
        return 1.7 * (1e3 * x * (len(calls) + places)).sin()

    return draw


class Wrapped(nn.Module):
    """A module of one's own, whose forward may do anything: no closed form may be taken for it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores


def parts(model: nn.Module, method: Method, x: Tensor, draw: Draw | None = None) -> dict[str, Any]:
    """Every part of the loss of each example, (B,) each."""
    return Objective(model, method, draw or seeded()).parts_of(x, classes(len(x)))


def probability(model: nn.Module, c: int) -> Callable[[Tensor], Tensor]:
    return lambda one: model(one[None]).softmax(-1)[0, c]


def hessians(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The Hessian of the predicted probability of each example, by another library function."""
    found = []
    with eval_mode(model):
        for one, c in zip(x, predicted(model, x).tolist(), strict=True):
            whole = torch.func.jacrev(torch.func.jacrev(probability(model, c)))(one).detach()
            found.append(whole.reshape(one.numel(), one.numel()))
    return found


def slopes(model: nn.Module, x: Tensor) -> list[Tensor]:
    return [
        torch.func.grad(probability(model, c))(one).detach().flatten()
        for one, c in zip(x, predicted(model, x).tolist(), strict=True)
    ]


SMOOTH: dict[str, Callable[[], nn.Module]] = {
    "tanh": tiny_mlp,
    "softplus": lambda: tiny_mlp(activation=nn.Softplus),
    "three classes": lambda: tiny_mlp(classes=3),
    "deep": lambda: mlp(
        6, hidden=(7, 5), activation="softplus", generator=stream(0, "deep")
    ).double(),
}
KINKED: dict[str, Callable[[], nn.Module]] = {
    "leaky": lambda: tiny_mlp(activation=nn.LeakyReLU),
    "leaky, three classes": lambda: tiny_mlp(activation=nn.LeakyReLU, classes=3),
    "relu": lambda: tiny_mlp(activation=nn.ReLU),
    "linear": lambda: nn.Sequential(nn.Linear(6, 2)).double(),
}
every_smooth = pytest.mark.parametrize("network", SMOOTH)
every_network = pytest.mark.parametrize("network", SMOOTH | KINKED)


def built(network: str) -> nn.Module:
    return (SMOOTH | KINKED)[network]()


# --- the table of methods ---


def test_methods_stand_in_the_papers_order() -> None:
    expected = {
        "vanilla": "Vanilla",
        "wd": "WD",
        "sp": "SP",
        "est-h": "Est-H",
        "exact-h": "Exact-H",
        "ssr": "SSR",
        "at": "AT",
        "r2et": "R2ET",
        "r2et-noh": "R2ET\\H",
        "r2et-mm": "R2ET-mm",
        "r2et-mm-noh": "R2ET-mm\\H",
        "cl": "CL",
        "thickness": "Thickness",
    }
    labels = {name: entry.label for name, entry in METHODS.items()}
    assert list(labels.items())[: len(expected)] == list(expected.items())


@pytest.mark.parametrize("method", ANY_NETWORK)
def test_weights_weigh_and_change_nothing_else(method: str) -> None:
    # Networks that differ in such settings only can be trained together.
    entry = METHODS[method]
    low, high = (entry.build(k=2, **dict.fromkeys(entry.weights, w)) for w in (0.25, 0.5))
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6, seed=1)
    for name, value in parts(model, low, x).items():
        torch.testing.assert_close(value, parts(model, high, x)[name], rtol=0, atol=0)
    assert [name for name, _, _ in low.penalties] == [name for name, _, _ in high.penalties]
    weights = [*(weight for _, weight, _ in high.penalties), high.weight_decay]
    assert sum(weight == 0.5 for weight in weights) == len(entry.weights)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_what_its_function_takes(method: str) -> None:
    entry = METHODS[method]
    taken = set(inspect.signature(entry.function).parameters)
    besides = {"reference"} if entry.ranks else set()
    besides |= {"explain"} if entry.takes_explainer else set()
    assert taken == {"k", *entry.settings, *besides}
    assert {*entry.presets, *entry.weights} <= entry.settings.keys()
    told = refusal(lambda: entry.build(k=2, thicknes=0.1))
    assert told.startswith(f"{entry.label} has no setting 'thicknes': ")


@pytest.mark.parametrize("method", ["est-h", "exact-h", "ssr", "cl", "thickness"])
def test_a_penalty_of_no_weight_is_left_out(method: str) -> None:
    entry = METHODS[method]
    assert entry.build(k=2, **dict.fromkeys(entry.weights, 0.0)).penalties == ()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("wd", {"rate": -1e-3}),
        ("wd", {"rate": math.nan}),
        ("sp", {"rho": 0.0}),
        ("est-h", {"curvature": -1.0}),
        ("est-h", {"kappa": 0.0}),
        ("est-h", {"softplus": -1.0}),
        ("exact-h", {"curvature": math.inf}),
        ("ssr", {"curvature": -0.1}),
        ("ssr", {"steps": 0}),
        ("at", {"radius": -1.0}),
        ("at", {"steps": 0}),
        ("cl", {"ratio": -1.0}),
        ("cl", {"radius": 0.0}),
        ("cl", {"softness": 0.0}),
        ("thickness", {"thickness": -1.0}),
        ("thickness", {"samples": 0}),
        ("thickness", {"points": 0}),
        ("thickness", {"radius": -1.0}),
    ],
)
def test_settings_without_a_meaning_are_refused(method: str, settings: dict[str, Any]) -> None:
    message = refusal(lambda: METHODS[method].build(k=2, **settings))
    (name, value) = next(iter(settings.items()))
    assert METHODS[method].label in message
    assert name in message
    assert f"got {value}" in message


@pytest.mark.parametrize("settings", [{"gap": "wide"}, {"pairs": "sideways"}])
def test_unknown_gaps_are_refused(settings: dict[str, Any]) -> None:
    assert next(iter(settings.values())) in refusal(
        lambda: METHODS["thickness"].build(k=2, **settings)
    )


# --- WD ---


def rows(count: int, seed: int = 0) -> Part:
    x = numbers(count, 6, seed=seed)
    return Part(rows=torch.arange(count), x=x, y=(x[:, 0] > x[:, 1]).long())


def test_wd_is_the_decay_of_adamw() -> None:
    # One batch an epoch: the mean over it does not hang on the order of its rows.
    settings = FitSettings(epochs=4, batch=50, learning_rate=0.03, schedule="constant")
    train, rate = rows(50), 0.4
    decayed, _ = fit(tiny_mlp(), train, train, METHODS["wd"].build(k=2, rate=rate), settings)
    plain = tiny_mlp()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.03, weight_decay=rate)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(plain(train.x), train.y).backward()
        optimizer.step()
    for found, expected in zip(decayed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_decay_is_apart_from_the_gradient() -> None:
    # w <- w (1 - rate * learning rate) + Adam's move, and the first move is that of Vanilla.
    settings = FitSettings(epochs=1, batch=50, learning_rate=0.03, schedule="constant")
    train, start, rate = rows(50), tiny_mlp(), 0.4
    decayed, _ = fit(tiny_mlp(), train, train, METHODS["wd"].build(k=2, rate=rate), settings)
    vanilla, _ = fit(tiny_mlp(), train, train, METHODS["vanilla"].build(k=2), settings)
    for before, one, other in zip(
        start.parameters(), decayed.parameters(), vanilla.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other - rate * 0.03 * before)


def test_the_decay_is_not_part_of_the_loss() -> None:
    model, x, y = tiny_mlp(), numbers(4, 6), classes(4)
    loss = Objective(model, METHODS["wd"].build(k=2, rate=9.0))(x, y)
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y), rtol=0, atol=0)


# --- SP ---


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
@pytest.mark.parametrize("rho", [0.5, 1.0, 5.0])
def test_sp_is_plain_softplus(activation: type[nn.Module], rho: float) -> None:
    # ln(1 + e^{rho z}) / rho whatever the slope of the kinked unit was below zero.
    model, x = tiny_mlp(activation=activation), numbers(5, 6, seed=1)
    objective = Objective(model, METHODS["sp"].build(k=2, rho=rho))
    hidden = (1 + (rho * model[0](x)).exp()).log() / rho
    torch.testing.assert_close(objective.model(x), model[2](hidden))


def test_sp_trains_a_copy() -> None:
    model, x, y = tiny_mlp(activation=nn.LeakyReLU), numbers(5, 6, seed=1), classes(5)
    before = copy.deepcopy(model.state_dict())
    objective = Objective(model, METHODS["sp"].build(k=2))
    assert not {id(w) for w in objective.parameters()} & {id(w) for w in model.parameters()}
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.1)
    objective(x, y).backward()
    optimizer.step()
    assert isinstance(model[1], nn.LeakyReLU)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    for name, value in objective.model.state_dict().items():
        assert not torch.equal(value, before[name])


class Nested(nn.Module):
    """Kinks at two depths, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.kink = nn.ReLU()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(self.kink, nn.LeakyReLU(0.3)))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.kink(self.inner(x))
        return scores


def test_every_kink_becomes_a_softplus() -> None:
    smooth = with_softplus(Nested(), 2.0)
    kinds = [type(part) for part in smooth.modules()]
    assert nn.ReLU not in kinds
    assert nn.LeakyReLU not in kinds
    assert sum(isinstance(part, nn.Softplus) and part.beta == 2 for part in smooth.modules()) == 3
    assert isinstance(with_softplus(nn.ReLU(), 2.0), nn.Softplus)
    softer = with_softplus(nn.Sequential(nn.Linear(4, 4), nn.Softplus(beta=8.0)), 2.0)
    assert isinstance(softer, nn.Sequential)
    assert isinstance(softer[1], nn.Softplus)
    assert softer[1].beta == 2


def test_a_network_without_kinks_is_refused() -> None:
    message = refusal(lambda: Objective(tiny_mlp(), METHODS["sp"].build(k=2)))
    assert "ReLU" in message
    assert "Tanh" in message


# --- Est-H, Exact-H, SSR ---


def test_est_h_on_softplus_units_is_est_h_of_the_network_of_sp() -> None:
    model, x, y = tiny_mlp(activation=nn.ReLU), numbers(5, 6, seed=1), classes(5)
    both = Objective(model, METHODS["est-h"].build(k=2, curvature=0.7, softplus=3.0))
    apart = Objective(with_softplus(model, 3.0), METHODS["est-h"].build(k=2, curvature=0.7))
    torch.testing.assert_close(both(x, y), apart(x, y), rtol=0, atol=0)
    assert (both.parts_of(x, y)["curvature"] > 0).all()


@every_network
def test_est_h_matches_its_definition(network: str) -> None:
    model, x, kappa = built(network), numbers(5, 6, seed=1), 0.3
    found = parts(model, METHODS["est-h"].build(k=2, kappa=kappa), x)["curvature"]
    there = []
    for one, c, here in zip(x, predicted(model, x).tolist(), slopes(model, x), strict=True):
        step = here.sign() / here.sign().norm()
        there.append(torch.func.grad(probability(model, c))(one + kappa * step).detach())
    for value, here, far in zip(found, slopes(model, x), there, strict=True):
        assert value.item() == pytest.approx((far - here).norm().item() / kappa, abs=1e-12)


def test_est_h_is_r2et_without_its_gaps() -> None:
    # "R2ET with lambda1 = 0 recovers Hessian norm minimization" (Sec. 4.2).
    model, x = tiny_mlp(), numbers(5, 6, seed=1)
    ours = parts(model, METHODS["est-h"].build(k=2, curvature=0.7, kappa=0.2), x)
    theirs = parts(model, r2et(k=2, thickness=0.0, curvature=0.7, kappa=0.2), x)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name])


@every_network
def test_exact_h_is_the_norm_of_the_hessian(network: str) -> None:
    model, x = built(network), numbers(5, 6, seed=1)
    found = parts(model, METHODS["exact-h"].build(k=2), x)["curvature"]
    for value, whole in zip(found, hessians(model, x), strict=True):
        assert value.item() == pytest.approx(whole.square().sum().sqrt().item(), abs=1e-12)
    assert (found > 0).all()


@every_network
def test_ssr_is_the_largest_eigenvalue_in_magnitude(network: str) -> None:
    model, x = built(network), numbers(5, 6, seed=1)
    found = parts(model, METHODS["ssr"].build(k=2, steps=6), x)["curvature"]
    below = parts(model, METHODS["ssr"].build(k=2, steps=2), x)["curvature"]
    for value, low, whole in zip(found, below, hessians(model, x), strict=True):
        expected = torch.linalg.eigvalsh(whole).abs().max().item()
        assert value.item() == pytest.approx(expected, rel=1e-6)
        assert low.item() <= expected * (1 + 1e-9)


def test_a_hessian_that_bends_downwards_counts_too() -> None:
    # A surely predicted class has p > 1/2: along the slope its probability bends downwards.
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(5, 6, seed=1)
    found = parts(model, METHODS["ssr"].build(k=2), x)["curvature"]
    for value, whole in zip(found, hessians(model, x), strict=True):
        eigenvalues = torch.linalg.eigvalsh(whole)
        assert eigenvalues.max() < 1e-12
        assert value.item() == pytest.approx(-eigenvalues.min().item())


def quadratic_with(eigenvalues: list[float], *, at: Tensor | None = None) -> tuple[Quadratic, Any]:
    """A model whose log-odds at one x are 0, so that the Hessian of p there is A / 4 exactly."""
    d = len(eigenvalues)
    turn = torch.linalg.qr(numbers(d, d, seed=5)).Q
    x = numbers(1, d, seed=6) if at is None else at
    A = turn @ torch.tensor(eigenvalues, dtype=torch.float64).diag() @ turn.T
    # x'Ax/2 + b'x = 0 with b = c x + any direction across x.
    across = numbers(d, seed=7)
    across = across - (across @ x[0]) / x[0].square().sum() * x[0]
    b = -(x[0] @ A @ x[0]) / 2 / x[0].square().sum() * x[0] + across
    return Quadratic(A=A, b=b), x


@pytest.mark.parametrize(
    "eigenvalues",
    [
        [3.0, 2.999999, 1.0, 0.5, -0.2, 0.1],
        [3.0, -3.0, 1.0, 0.5, -0.2, 0.1],
        [3.0, -2.999999, 1.0, 0.5, -0.2, 0.1],
        [3.0, 3.0, 3.0, -3.0, -3.0, -3.0],
        [-3.0, 2.0, 1.9, 1.8, 1.7, 1.6],
        [3.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1e-9, -1e-12, 0.0, 0.0, 0.0, 0.0],
    ],
    ids=str,
)
def test_ssr_withstands_difficult_spectra(eigenvalues: list[float]) -> None:
    model, x = quadratic_with(eigenvalues)
    look = BatchContext(model, x)
    assert look.logits.abs().max() < 1e-12
    (whole,) = hessians(model, x)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(whole).abs().max().item(), max(map(abs, eigenvalues)) / 4
    )
    found = largest_eigenvalue(look).item()
    assert found == pytest.approx(max(map(abs, eigenvalues)) / 4, rel=1e-6)


def test_ssr_is_not_misled_by_a_slope_that_is_another_eigenvector() -> None:
    # Diagonal A, x along its second axis: slope and x lie in an eigenspace of the smaller value.
    A = torch.tensor([5.0, 1.0, 0.5], dtype=torch.float64).diag()
    x = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64)
    model = Quadratic(A=A, b=torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64))
    look = BatchContext(model, x)
    assert look.logits.abs().max() == 0
    assert look.input_gradient[0, [0, 2]].tolist() == [0.0, 0.0]
    assert largest_eigenvalue(look).item() == pytest.approx(5.0 / 4)


def test_the_default_steps_come_near_on_a_network_of_the_papers_size() -> None:
    for activation in ("softplus", "tanh"):
        model = mlp(28, activation=activation, generator=stream(0, "ssr")).double()
        x = torch.rand(40, 28, generator=stream(0, "x"), dtype=torch.float64)
        found = parts(model, METHODS["ssr"].build(k=2), x)["curvature"]
        exact = torch.stack([torch.linalg.eigvalsh(w).abs().max() for w in hessians(model, x)])
        assert (found <= exact * (1 + 1e-9)).all()
        assert (found / exact).mean() > 0.995
        assert (found / exact).min() > 0.9


@pytest.mark.parametrize("wrap", [nn.Sequential, Wrapped])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
def test_two_classes_and_kinks_leave_rank_one(
    wrap: type[nn.Module], activation: type[nn.Module]
) -> None:
    # Hess p = p (1 - p)(1 - 2p) g g' has one eigenvalue: Exact-H equals SSR.
    model, x = wrap(tiny_mlp(activation=activation)), numbers(8, 6, seed=1)
    exact = parts(model, METHODS["exact-h"].build(k=2), x)["curvature"]
    torch.testing.assert_close(parts(model, METHODS["ssr"].build(k=2), x)["curvature"], exact)
    for whole in hessians(model, x):
        assert torch.linalg.matrix_rank(whole, rtol=1e-9) == 1
    curved = tiny_mlp()
    exact = parts(curved, METHODS["exact-h"].build(k=2), x)["curvature"]
    assert (parts(curved, METHODS["ssr"].build(k=2), x)["curvature"] < 0.999 * exact).any()


# --- closed forms ---


CLOSED: dict[str, Callable[[BatchContext], Tensor]] = {
    "exact norm": exact_norm,
    "largest eigenvalue": largest_eigenvalue,
    "reach of facing pairs": lambda look: (
        facing_reach(Bent.of(look), look.input_gradient.flatten(1).abs(), 2, radius=0.7)
        @ torch.tensor([1.0, 3.0], dtype=torch.float64)
    ),
    "reach by another ranking": lambda look: (
        facing_reach(Bent.of(look), numbers(*look.x.flatten(1).shape, seed=8), 2, radius=0.7)
        @ torch.tensor([1.0, 3.0], dtype=torch.float64)
    ),
}
STRAIGHT: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "leaky": lambda: (tiny_mlp(activation=nn.LeakyReLU), numbers(6, 6, seed=1)),
    "relu": lambda: (tiny_mlp(activation=nn.ReLU), numbers(6, 6, seed=1)),
    "deep": lambda: (
        mlp(6, hidden=(7, 5), generator=stream(0, "deep")).double(),
        numbers(6, 6, seed=1),
    ),
    "linear": lambda: (nn.Sequential(nn.Linear(6, 2)).double(), numbers(6, 6, seed=1)),
    "pictures": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
        ).double(),
        numbers(4, 1, 6, 6, seed=1),
    ),
}


@pytest.mark.parametrize("form", CLOSED)
@pytest.mark.parametrize("network", STRAIGHT)
def test_closed_forms_equal_the_general_way(form: str, network: str) -> None:
    torch.manual_seed(0)
    model, x = STRAIGHT[network]()
    found = []
    for way in (model, Wrapped(model)):
        look = BatchContext(way, x.clone().requires_grad_())
        assert Bent.of(look).straight == (way is model)
        values = CLOSED[form](look)
        # Another weight for each example: a sum could hide what one gives and another takes.
        weighted = (values * torch.arange(1, len(x) + 1)).sum()
        by_weights = torch.autograd.grad(
            weighted, list(model.parameters()), allow_unused=True, materialize_grads=True
        )
        found.append([values, *by_weights])
    for closed, general in zip(*found, strict=True):
        torch.testing.assert_close(closed, general, rtol=1e-7, atol=1e-9)
    assert found[0][0].abs().min() > 0
    assert found[0][1].abs().max() > 0


def test_closed_forms_are_taken_where_they_hold_only() -> None:
    x = numbers(3, 6)
    for network, expected in {"leaky": True, "leaky, three classes": False, "tanh": False}.items():
        assert Bent.of(BatchContext(built(network), x)).straight == expected


# --- gradients ---


@pytest.mark.parametrize("method", CURVED)
@pytest.mark.parametrize("count", [2, 3])
def test_the_weight_gradient_is_that_of_finite_differences(method: str, count: int) -> None:
    # Rankings, signs and predicted classes are constant near these weights, as they are in the
    # gradient; the same neighbours are drawn whenever the loss is computed.
    model, x, y = tiny_mlp(d=5, hidden=3, classes=count), numbers(3, 5, seed=1), classes(3)
    entry = METHODS[method]
    built = entry.build(k=2, **dict.fromkeys(entry.weights, 0.7))
    assert built.penalties

    def loss(*weights: Tensor) -> Tensor:
        return Objective(model, built, seeded())(x, y)

    assert gradcheck(loss, tuple(model.parameters()))


@pytest.mark.parametrize("method", ["exact-h", "ssr", "cl"])
def test_pictures_are_trained_too(method: str) -> None:
    model, x, y = conv_net(pool=nn.AvgPool2d), numbers(2, 1, 6, 6), classes(2)
    entry = METHODS[method]
    settings = {"steps": 36} if method == "ssr" else {}
    built = entry.build(k=5, **dict.fromkeys(entry.weights, 0.7), **settings)
    weights = (model[0].bias, model[-1].weight)
    assert gradcheck(lambda *_: Objective(model, built)(x, y), weights)
    if method != "cl":
        (found,) = [value for name, value in parts(model, built, x).items() if name == "curvature"]
        whole = torch.stack(hessians(model, x))
        norms = (
            torch.linalg.eigvalsh(whole).abs().amax(-1)
            if method == "ssr"
            else whole.square().sum((1, 2)).sqrt()
        )
        torch.testing.assert_close(found, norms, rtol=1e-6, atol=0)


def test_chunks_of_the_hessian_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tiny_mlp(), numbers(4, 6, seed=1)
    found = []
    for rows_at_once in (65_536, 8, 1):
        monkeypatch.setattr("r2et.methods.baselines.ROWS_AT_ONCE", rows_at_once)
        values = parts(model, METHODS["exact-h"].build(k=2), x)["curvature"]
        found.append([values, *torch.autograd.grad(values.sum(), list(model.parameters())[:3])])
    for whole, *pieces in zip(*found, strict=True):
        for piece in pieces:
            torch.testing.assert_close(piece, whole)


@pytest.mark.parametrize("method", ANY_NETWORK)
def test_a_loss_can_be_read_without_gradients(method: str) -> None:
    model, x, y = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6, seed=1), classes(4)
    for network in (model, Wrapped(model)):
        recorded = Objective(network, METHODS[method].build(k=2), seeded())(x, y)
        with torch.no_grad():
            read = Objective(network, METHODS[method].build(k=2), seeded())(x, y)
        assert not read.requires_grad
        torch.testing.assert_close(read, recorded.detach())


# --- AT ---


def slow_attack(
    model: nn.Module, x: Tensor, k: int, radius: float, steps: int, draw: Draw, ranking: Tensor
) -> Tensor:
    """One example after another: a random start in the ball, moves, projections."""
    directions, uniform = draw(x), torch.special.ndtr(draw(x)[:, 0])
    found = []
    for b, (one, c) in enumerate(zip(x, predicted(model, x).tolist(), strict=True)):
        top = sorted(range(len(one)), key=lambda i: (-ranking[b, i].item(), i))[:k]
        rest = [i for i in range(len(one)) if i not in top]

        def gaps(at: Tensor, c: int = c, top: Any = top, rest: Any = rest) -> Tensor:
            saliency = torch.func.grad(probability(model, c))(at).abs()
            return sum(saliency[i] - saliency[j] for i in top for j in rest)  # type: ignore[return-value]

        delta = directions[b] / directions[b].norm() * radius * uniform[b] ** (1 / len(one))
        length = 1.25 * radius if steps == 1 else 2.5 * radius / (steps + 1)
        for _ in range(steps):
            uphill = -torch.func.grad(gaps)(one + delta)
            delta = delta + length * uphill / uphill.norm()
            delta = delta * min(1.0, radius / delta.norm().item())
        found.append(one + delta)
    return torch.stack(found).detach()


def attacked(model: nn.Module, x: Tensor, **settings: Any) -> Tensor:
    perturb = METHODS["at"].build(k=2, **settings).perturb
    assert perturb is not None
    return perturb(BatchContext(model, x, draw=seeded()))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("count", [2, 3])
def test_at_matches_its_definition(steps: int, count: int) -> None:
    model, x, y = tiny_mlp(classes=count), numbers(5, 6, seed=1), classes(5)
    ranking = gradient(model, x, predicted(model, x)).detach()
    expected = slow_attack(model, x, 2, 0.8, steps, seeded(), ranking)
    moved = attacked(model, x, radius=0.8, steps=steps)
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)
    loss = Objective(model, METHODS["at"].build(k=2, radius=0.8, steps=steps), seeded())(x, y)
    torch.testing.assert_close(loss, F.cross_entropy(model(expected), y))


@every_network
@pytest.mark.parametrize("steps", [1, 4])
def test_at_stays_in_its_ball(network: str, steps: int) -> None:
    model, x = built(network), numbers(40, 6, seed=1)
    for radius in (0.0, 0.3, 2.0):
        moved = attacked(model, x, radius=radius, steps=steps)
        assert ((moved - x).norm(dim=-1) <= radius).all()
        assert not moved.requires_grad
        assert moved.isfinite().all()


def test_fast_at_raises_what_it_is_to_raise() -> None:
    # The adversary's own loss, minus the lead of the clean top k, against random points and x.
    model, x = tiny_mlp(d=10, hidden=20), numbers(200, 10, seed=1)
    y = predicted(model, x)
    before = gradient(model, x, y).detach()

    def lost(at: Tensor) -> Tensor:
        return -top_margin(gradient(model, at, y), before, 2).detach()

    fast = attacked(model, x, radius=0.5, steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("r2et.methods.baselines.projected_descent", lambda *_, start, **__: start)
        start = attacked(model, x, radius=0.5, steps=1)
    several = attacked(model, x, radius=0.5, steps=8)
    assert (lost(fast) > lost(x)).double().mean() > 0.95
    assert (lost(fast) > lost(start)).double().mean() > 0.95
    assert lost(several).mean() > lost(fast).mean() > lost(start).mean()
    # Nearly the worst that 300 random points of the sphere can do, for nearly every example.
    sphere = numbers(300, 10, seed=3)
    sphere = 0.5 * sphere / sphere.norm(dim=-1, keepdim=True)
    worst = torch.stack([lost(x + offset) for offset in sphere]).amax(0)
    assert (lost(several) >= worst - 0.05 * worst.abs()).double().mean() > 0.9


def test_the_attacked_inputs_are_a_constant() -> None:
    model, x, y = tiny_mlp(), numbers(5, 6, seed=1), classes(5)
    moved = attacked(model, x, radius=0.8)
    loss = Objective(model, METHODS["at"].build(k=2, radius=0.8), seeded())(x, y)
    found = torch.autograd.grad(loss, list(model.parameters()))
    plain = torch.autograd.grad(F.cross_entropy(model(moved), y), list(model.parameters()))
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("d", [1, 3, 12])
def test_random_starts_fill_the_ball_evenly(d: int) -> None:
    # Of points uniform in the ball (length / radius)^d is uniform in 0..1, and so is their angle.
    x = numbers(4000, d, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("r2et.methods.baselines.projected_descent", lambda *_, start, **__: start)
        perturb = METHODS["at"].build(k=1, radius=2.0).perturb
        assert perturb is not None
        wide = torch.cat([x, x], 1) if d == 1 else x
        model = tiny_mlp(d=wide.shape[1])
        offsets = (perturb(BatchContext(model, wide, draw=seeded())) - wide).numpy()
    size = wide.shape[1]
    lengths = (offsets**2).sum(-1) ** 0.5 / 2
    assert stats.kstest(lengths**size, "uniform").pvalue > 0.01
    assert abs(offsets.mean(0)).max() < 5 * offsets.std() / 4000**0.5
    signs = (offsets > 0).mean(0)
    assert abs(signs - 0.5).max() < 5 * 0.5 / 4000**0.5


# --- CL ---


def slow_reach(
    model: nn.Module, x: Tensor, k: int, radius: float, ranking: Tensor, count: int
) -> Tensor:
    """r / (|r| + radius) for r = h / ||H_i - H_j||, pair by pair, on |grad p| itself."""
    found = []
    for here, whole, by in zip(slopes(model, x), hessians(model, x), ranking, strict=True):
        places = sorted(range(len(here)), key=lambda i: (-by[i].item(), i))
        row = []
        for place in range(1, count + 1):
            i, j = places[k - place], places[k + place - 1]
            h = here[i].abs() - here[j].abs()
            bend = (here[i].sign() * whole[i] - here[j].sign() * whole[j]).norm()
            r = (h / bend).item()
            row.append(r / (abs(r) + radius))
        found.append(row)
    return torch.tensor(found, dtype=torch.float64)


@every_network
@pytest.mark.parametrize("own", [True, False])
def test_cl_matches_its_definition(network: str, own: bool) -> None:
    model, x, k, radius, softness = built(network), numbers(5, 6, seed=1), 2, 0.7, 0.2
    other = tiny_mlp(seed=9, classes=3)
    by = model if own else other
    with torch.no_grad():
        ranking = gradient(by, x, predicted(model, x))
    reach = slow_reach(model, x, k, radius, ranking, 2)
    expected = softness * (-reach / softness).exp().mean(-1).log()
    method = METHODS["cl"].build(
        k=k, radius=radius, softness=softness, reference=None if own else other
    )
    torch.testing.assert_close(parts(model, method, x)["fragility"], expected)
    if own:
        assert (reach >= 0).all()
    else:
        assert (reach < 0).any()


def test_the_soft_minimum_lies_between_minimum_and_mean() -> None:
    model, x = tiny_mlp(d=12), numbers(20, 12, seed=1)
    with torch.no_grad():
        ranking = gradient(model, x, predicted(model, x))
    reach = slow_reach(model, x, 4, 1.0, ranking, 4)
    for softness in (1e-3, 0.1, 10.0):
        found = -parts(model, METHODS["cl"].build(k=4, softness=softness), x)["fragility"].detach()
        assert (found >= reach.amin(-1) - 1e-9).all()
        assert (found <= reach.amin(-1) + softness * math.log(4) + 1e-9).all()
        assert (found <= reach.mean(-1) + 1e-9).all()


def test_fewer_pairs_face_each_other_on_request() -> None:
    model, x = tiny_mlp(), numbers(5, 6, seed=1)
    ranking = gradient(model, x, predicted(model, x)).detach()
    one = parts(model, METHODS["cl"].build(k=3, facing=1), x)["fragility"]
    torch.testing.assert_close(-one, slow_reach(model, x, 3, 1.0, ranking, 1)[:, 0])
    assert "k' must lie" in refusal(
        lambda: parts(model, METHODS["cl"].build(k=3, facing=4), x)["fragility"]
    )


def test_kinked_networks_of_two_classes_have_one_ratio_for_all_pairs() -> None:
    # H_i - H_j = (1 - 2p) (|I_i| - |I_j|) g: the ratio is 1 / (|1 - 2p| ||g||) whatever the pair.
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(5, 6, seed=1)
    look = BatchContext(Wrapped(model), x)
    reach = facing_reach(Bent.of(look), look.input_gradient.abs().detach(), 3, radius=2.0).detach()
    p = model(x).softmax(-1).amax(-1)
    g = torch.stack(slopes(model, x)).norm(dim=-1) / (p * (1 - p))
    r = 1 / ((2 * p - 1) * g)
    torch.testing.assert_close(reach, (r / (r + 2.0))[:, None].expand(-1, 3).detach())


def test_cl_does_not_underflow_where_a_model_is_sure() -> None:
    # p (1 - p) of log-odds near 200 is 0 in single precision, and cancels out of the ratio.
    model, x = tiny_mlp(), numbers(5, 6, seed=1)
    with torch.no_grad():
        model[2].bias += torch.tensor([0.0, 200.0])
    double = parts(model, METHODS["cl"].build(k=2), x)["fragility"]
    single = parts(copy.deepcopy(model).float(), METHODS["cl"].build(k=2), x.float())["fragility"]
    assert (double < -0.01).all()
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


# --- thickness ---


def neighbours(x: Tensor, radius: float, samples: int, draw: Draw) -> Tensor:
    found = []
    for _ in range(samples):
        direction, uniform = draw(x), torch.special.ndtr(draw(x)[:, :1])
        direction = direction / direction.norm(dim=-1, keepdim=True)
        found.append(x + radius * uniform ** (1 / x.shape[1]) * direction)
    return torch.stack(found)


@every_network
def test_thickness_is_the_one_that_is_measured(network: str) -> None:
    model, x = built(network), numbers(5, 6, seed=1)
    settings = {"samples": 3, "points": 4, "radius": 0.8}
    found = parts(model, METHODS["thickness"].build(k=2, **settings), x)["margin"]
    measured = measured_thickness(
        model,
        x,
        predicted(model, x),
        neighbours(x, 0.8, 3, seeded()),
        explain=gradient,
        k=2,
        points=4,
    )
    torch.testing.assert_close(-found.detach(), measured.value)


def test_thickness_matches_its_definition() -> None:
    model, x, k = tiny_mlp(classes=3), numbers(4, 6, seed=1), 2
    method = METHODS["thickness"].build(k=k, samples=2, points=3, radius=0.8)
    found = parts(model, method, x)["margin"]
    others = neighbours(x, 0.8, 2, seeded())
    for b, c in enumerate(predicted(model, x).tolist()):
        saliency = torch.func.grad(probability(model, c))(x[b]).abs().tolist()
        top = sorted(range(6), key=lambda i: -saliency[i])[:k]
        gaps = []
        for other in others[:, b]:
            for t in (1 / 6, 3 / 6, 5 / 6):
                at = torch.func.grad(probability(model, c))((1 - t) * x[b] + t * other).abs()
                gaps += [(at[i] - at[j]).item() for i in top for j in range(6) if j not in top]
        assert found[b].item() == pytest.approx(-sum(gaps) / len(gaps))


@pytest.mark.parametrize("settings", [{}, {"gap": "normalised"}, {"pairs": "facing"}])
def test_without_a_radius_thickness_is_the_gap_of_r2et(settings: dict[str, Any]) -> None:
    model, x = tiny_mlp(), numbers(5, 6, seed=1)
    ours = parts(model, METHODS["thickness"].build(k=2, radius=0.0, **settings), x)
    theirs = parts(model, r2et(k=2, **settings), x)
    torch.testing.assert_close(ours["margin"], theirs["margin"])


def test_neighbours_are_drawn_anew_at_every_step() -> None:
    model, x, y = tiny_mlp(), numbers(5, 6, seed=1), classes(5)
    for method in ("at", "thickness"):
        objective = Objective(model, METHODS[method].build(k=2), seeded())
        assert objective(x, y) != objective(x, y)


# --- the ranking to keep ---


@pytest.mark.parametrize("method", RANKING)
def test_a_reference_sets_the_ranking_and_is_left_alone(method: str) -> None:
    model, reference, x = tiny_mlp(), tiny_mlp(seed=7), numbers(5, 6)
    labels = predicted(model, x)
    assert not torch.equal(
        top_k_mask(gradient(model, x, labels), 2), top_k_mask(gradient(reference, x, labels), 2)
    )
    build = METHODS[method].build
    own, same = build(k=2), build(k=2, reference=model)
    other = build(k=2, reference=reference)
    for name, value in parts(model, own, x).items():
        torch.testing.assert_close(parts(model, same, x)[name], value)
    last = list(parts(model, own, x))[-1]
    kept = parts(model, other, x)[last].detach()
    assert not torch.equal(kept, parts(model, own, x)[last].detach())
    before = copy.deepcopy(reference.state_dict())
    objective = Objective(model, other, seeded())
    assert len(list(objective.parameters())) == 4
    objective(x, classes(5)).backward()
    assert all(weight.grad is None for weight in reference.parameters())
    assert all(torch.equal(value, before[name]) for name, value in reference.state_dict().items())
    with torch.no_grad():  # a snapshot: the reference may be trained on
        reference[0].weight.mul_(-1).add_(1)
    torch.testing.assert_close(parts(model, other, x)[last].detach(), kept, rtol=0, atol=0)


def test_at_attacks_the_ranking_of_the_reference() -> None:
    model, reference, x = tiny_mlp(), tiny_mlp(seed=7), numbers(5, 6, seed=1)
    ranking = gradient(reference, x, predicted(model, x)).detach()
    expected = slow_attack(model, x, 2, 0.8, 1, seeded(), ranking)
    found = attacked(model, x, radius=0.8, reference=reference)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


# --- randomness ---


@pytest.mark.parametrize("method", ANY_NETWORK)
def test_all_randomness_is_drawn_like_x(method: str) -> None:
    model, x, y = tiny_mlp(activation=nn.LeakyReLU), numbers(5, 6, seed=1), classes(5)
    shapes: list[tuple[int, ...]] = []
    source = seeded()

    def draw(like: Tensor) -> Tensor:
        shapes.append(tuple(like.shape))
        return source(like)

    state = torch.random.get_rng_state()
    Objective(model, METHODS[method].build(k=2), draw)(x, y).backward()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert set(shapes) <= {(5, 6)}
    assert bool(shapes) == (method in ("at", "thickness", "steadfast-any"))


# --- several networks as one ---


@pytest.mark.parametrize("method", ANY_NETWORK)
@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.Softplus])
def test_networks_are_trained_together_as_alone(method: str, activation: type[nn.Module]) -> None:
    if method == "sp" and activation is nn.Softplus:
        pytest.skip("nothing to replace")
    networks = [tiny_mlp(activation=activation, seed=seed) for seed in range(3)]
    x, y = numbers(3, 4, 6, seed=1), classes(12).view(3, 4)
    # What a method does before training would be done to the stack as a whole.
    built = replace(METHODS[method].build(k=2), prepare=None)
    together = Objective(stacked(networks), built, by_row())
    values = together.parts_of(in_turn(x), in_turn(y))
    alone = [Objective(network, built, by_row()) for network in networks]
    rows = [each.parts_of(x[g], y[g]) for g, each in enumerate(alone)]
    for name, value in values.items():
        torch.testing.assert_close(by_network(value, 3), torch.stack([own[name] for own in rows]))
    sum(value.sum() for value in values.values()).backward()  # type: ignore[union-attr]
    for g, each in enumerate(alone):
        sum(value.sum() for value in rows[g].values()).backward()  # type: ignore[union-attr]
        pairs = zip(together.model.parameters(), each.model.parameters(), strict=True)
        for whole, mine in pairs:
            assert whole.grad is not None
            torch.testing.assert_close(whole.grad[g], mine.grad)


# --- training ---


def flat_at_the_start() -> nn.Sequential:
    """A network whose slopes are exactly zero: no unit of its first layer sees the input."""
    model = tiny_mlp(activation=nn.LeakyReLU)
    with torch.no_grad():
        model[0].weight.zero_()
    return model


def dead() -> nn.Sequential:
    """A network of ReLUs of which none is ever active: no slope, nothing to learn but biases."""
    model = tiny_mlp(activation=nn.ReLU)
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    return model


def saturated(activation: type[nn.Module], factor: float = 1e4) -> nn.Sequential:
    model = tiny_mlp(activation=activation)
    with torch.no_grad():
        for values in model[2].parameters():
            values *= factor
    return model


STARTS: dict[str, Callable[[], nn.Module]] = {
    "fresh": lambda: tiny_mlp(activation=nn.LeakyReLU),
    "of zero slope": flat_at_the_start,
    "of zero slope, unknown inside": lambda: Wrapped(flat_at_the_start()),
    "dead": dead,
    "dead, unknown inside": lambda: Wrapped(dead()),
    "saturated": lambda: saturated(nn.LeakyReLU),
    "saturated, unknown inside": lambda: Wrapped(saturated(nn.LeakyReLU)),
    "saturated and smooth": lambda: saturated(nn.Softplus),
    "saturated beyond the range of single precision": lambda: saturated(nn.Softplus, 1e15),
}


@pytest.mark.parametrize("method", ANY_NETWORK)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_stays_finite(method: str, start: str, dtype: torch.dtype) -> None:
    model = STARTS[start]().to(dtype)
    if method == "sp" and ("smooth" in start or "beyond" in start):
        pytest.skip("nothing to replace")
    train = rows(32)
    x, y = train.x.to(dtype), train.y
    built = METHODS[method].build(k=2)
    objective = Objective(model, built, seeded())
    optimizer = torch.optim.AdamW(objective.parameters(), lr=0.01, weight_decay=built.weight_decay)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = objective(x, y)
        loss.backward()
        for weight in objective.parameters():
            assert weight.grad is not None
            assert weight.grad.isfinite().all()
        optimizer.step()
        losses.append(loss)
        assert loss.isfinite()
    assert all(weight.isfinite().all() for weight in objective.parameters())
    if start == "fresh":
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("method", "settings", "part"),
    [
        ("est-h", {"curvature": 1.0}, "curvature"),
        ("exact-h", {"curvature": 1.0}, "curvature"),
        ("ssr", {"curvature": 1.0}, "curvature"),
        ("cl", {"ratio": 1.0}, "fragility"),
        ("thickness", {"thickness": 1.0, "gap": "normalised", "radius": 0.3}, "margin"),
    ],
)
@pytest.mark.parametrize("network", ["softplus", "leaky"])
def test_a_penalty_is_lowered_by_training(
    method: str, settings: dict[str, Any], part: str, network: str
) -> None:
    # Against Vanilla, both from the same start: what is penalised is less in the end.
    x = numbers(200, 6)
    y = (x.sum(-1) > 0).long()
    ends = []
    for trained_by in (METHODS["vanilla"].build(k=2), METHODS[method].build(k=2, **settings)):
        model = built(network)
        objective = Objective(model, trained_by, seeded())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for _ in range(60):
            optimizer.zero_grad()
            objective(x, y).backward()
            optimizer.step()
        measured = METHODS[method].build(k=2, **settings)
        ends.append(parts(model, measured, x)[part].mean().item())
    assert ends[1] < ends[0] - 0.01


def test_retraining_by_cl_keeps_the_ranking_of_its_reference() -> None:
    train = rows(200)
    vanilla = tiny_mlp(activation=nn.Softplus)
    optimizer = torch.optim.Adam(vanilla.parameters(), lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(vanilla(train.x), train.y).backward()
        optimizer.step()
    model = copy.deepcopy(vanilla)
    objective = Objective(model, METHODS["cl"].build(k=2, ratio=1.0, reference=vanilla))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    history = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = objective.parts(train.x, train.y)
        loss.total.backward()
        optimizer.step()
        history.append(loss.parts["fragility"].item())
    assert history[-1] < history[0] - 0.01
    labels = predicted(vanilla, train.x)
    kept = [top_k_mask(gradient(each, train.x, labels), 2) for each in (vanilla, model)]
    assert (kept[0] & kept[1]).sum() / kept[0].sum() > 0.9


def test_the_linear_control_has_no_curvature_to_lose() -> None:
    # Its log-odds bend nowhere; p bends with them by (1 - 2p) alone, as the closed form says.
    model, x = Linear(d=6), numbers(5, 6, seed=1)
    found = parts(model, METHODS["exact-h"].build(k=2), x)["curvature"]
    p = model(x).softmax(-1).amax(-1)
    torch.testing.assert_close(found, p * (1 - p) * (2 * p - 1) * model.w.square().sum())
