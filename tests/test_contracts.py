"""One set of promises, kept by every entry of the tables of explainers and training methods."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brief import brief
from closed_form import DropoutInForward, conv_net, mixing_mlp, numbers, tiny_mlp
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.rng import stream
from r2et.explainers import CONCEPTS, EXPLAINERS, Activations, Explainer, InputExplainer
from r2et.methods import METHODS, BatchContext, MethodEntry
from r2et.models import structured
from r2et.models.additive import AdditiveNet
from r2et.models.smoothing import softened
from r2et.training.objective import Objective


def mixing_conv() -> nn.Sequential:
    model = conv_net()
    model.insert(1, nn.BatchNorm2d(3).double())
    model.insert(3, nn.Dropout2d(0.5))
    model(3 * numbers(8, 1, 6, 6, seed=4) + 1)
    return model


def rounded() -> nn.Module:
    smooth = softened(tiny_mlp(activation=nn.LeakyReLU), 3.0)
    assert smooth is not None
    return smooth


def table_net(classes: int = 2) -> nn.Module:
    return structured(
        6, classes, numeric=[0, 3], one_hot=[[1, 2], [4, 5]], generator=stream(0, "test")
    ).double()


class Pair(nn.Module):
    """A network of two tensors whose examples meet in batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mixing_mlp(4, 4), tiny_mlp(4, 5, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        hidden = self.first(a.flatten(1)) * b
        logits: Tensor = self.second(hidden)
        return logits


def joined_pair() -> nn.Module:
    return Joined(Pair(), Inputs(pieces=(Piece(shape=(1, 2, 2)), Piece(shape=(4,)))))


def joined_matrices() -> nn.Module:
    whole = nn.Sequential(nn.Flatten(), *tiny_mlp(16, 5, activation=nn.ReLU, seed=2)).double()
    return Joined(whole, Inputs(pieces=(Piece(shape=(4, 4), symmetric=True),)))


# Every network is in training mode, as a network is while it is being trained.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tanh": (tiny_mlp, (6,)),
    "leaky": (lambda: tiny_mlp(activation=nn.LeakyReLU, classes=3), (6,)),
    "leaky, two classes": (lambda: tiny_mlp(activation=nn.LeakyReLU), (6,)),
    "rounded": (rounded, (6,)),
    "structured": (table_net, (6,)),
    "structured, three classes": (lambda: table_net(3), (6,)),
    "batch norm and dropout": (mixing_mlp, (6,)),
    "dropout in its forward": (DropoutInForward, (6,)),
    "pictures": (conv_net, (1, 6, 6)),
    "pictures with batch norm and dropout": (mixing_conv, (1, 6, 6)),
    "pairs with batch norm and dropout": (joined_pair, (8,)),
    "symmetric matrices": (joined_matrices, (6,)),
}


AS_DEFINED = {name: brief(explain) for name, explain in EXPLAINERS.items()}
PROJECTED = {
    f"{name}, one-hot projected": replace(explain, one_hot=[(0, 2), (5, 3, 4)])
    for name, explain in AS_DEFINED.items()
    if isinstance(explain, InputExplainer)
}
CHOICES: dict[str, Explainer] = {**AS_DEFINED, **PROJECTED}
every_explainer = pytest.mark.parametrize("explain", CHOICES.values(), ids=CHOICES)
every_network = pytest.mark.parametrize("network", NETWORKS)
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
# The default, at which everything passes at once, and chunks of two.
every_size = pytest.mark.parametrize("settings", [{}, {"rows_at_once": 2}], ids=["whole", "chunks"])


def case(network: str, count: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    build, shape = NETWORKS[network]
    return build(), numbers(count, *shape, seed=1), torch.arange(count) % 2


def caller_state(model: nn.Module, *tensors: Tensor) -> list[Any]:
    """Everything of the caller's that a computation could change behind its back."""
    values = {**model.state_dict(), **{str(i): value for i, value in enumerate(tensors)}}
    return [
        copy.deepcopy({name: value.detach().clone() for name, value in values.items()}),
        [part.training for part in model.modules()],
        [value.requires_grad for value in (*model.parameters(), *tensors)],
        [value.grad for value in (*model.parameters(), *tensors) if value.is_leaf],
        [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()],
        torch.random.get_rng_state(),
        torch.is_grad_enabled(),
    ]


def same(before: list[Any], after: list[Any]) -> bool:
    values, others = before[0], before[1:5]
    return (
        all(torch.equal(value, after[0][name]) for name, value in values.items())
        and others == after[1:5]
        and torch.equal(before[5], after[5])
        and before[6] == after[6]
    )


# --- explainers ---


@every_explainer
@every_network
@every_size
def test_an_example_is_explained_alone(explain: Explainer, network: str, settings: Any) -> None:
    model, x, y = case(network)
    alone = [replace(explain, **settings)(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(replace(explain, **settings)(model, x, y), torch.cat(alone))
    # And its slopes stay its own: by another example's input there are none.
    x = x.requires_grad_()
    first = replace(explain, **settings)(model, x, y)[0].sum()
    if first.requires_grad:
        (slopes,) = torch.autograd.grad(first, x, allow_unused=True, materialize_grads=True)
        assert torch.equal(slopes[1:], torch.zeros_like(slopes[1:]))


@every_explainer
@every_network
@every_size
def test_an_explainer_changes_nothing_of_the_callers(
    explain: Explainer, network: str, settings: Any
) -> None:
    for x_learns in (False, True):
        model, x, y = case(network)
        x = x.requires_grad_(x_learns)
        before = caller_state(model, x, y)
        found = replace(explain, **settings)(model, x, y)
        assert same(before, caller_state(model, x, y))
        # Differentiating, too, fills no .grad and moves no running statistics or random stream.
        torch.autograd.grad(found.sum(), list(model.parameters()), allow_unused=True)
        assert same(before, caller_state(model, x, y))


@every_explainer
@every_network
def test_what_the_caller_switched_off_stays_off(explain: Explainer, network: str) -> None:
    model, x, y = case(network)
    list(model.modules())[-1].eval()
    before = caller_state(model, x, y)
    explain(model, x, y)
    assert same(before, caller_state(model, x, y))


@every_explainer
@every_network
def test_an_explanation_is_that_of_prediction_mode(explain: Explainer, network: str) -> None:
    model, x, y = case(network)
    found = explain(model, x, y)
    assert torch.equal(found, explain(model.eval(), x, y))


@every_explainer
@every_network
@every_size
def test_an_explanation_follows_its_caller(explain: Explainer, network: str, settings: Any) -> None:
    model, x, y = case(network)
    recorded = replace(explain, **settings)(model, x, y)
    assert recorded.requires_grad
    with torch.no_grad():
        plain = replace(explain, **settings)(model, x.clone().requires_grad_(), y)
        assert not plain.requires_grad
    torch.testing.assert_close(plain, recorded.detach())


@every_explainer
@every_network
@every_size
def test_frozen_weights_leave_the_inputs_slopes(
    explain: Explainer, network: str, settings: Any
) -> None:
    model, x, y = case(network)

    def slopes_by_x() -> Tensor:
        at = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(
            replace(explain, **settings)(model, at, y).square().sum(), at
        )
        return found

    free = slopes_by_x()
    frozen_model = model.requires_grad_(False)
    torch.testing.assert_close(slopes_by_x(), free)
    assert free.abs().sum() > 0
    assert not any(weight.requires_grad for weight in frozen_model.parameters())


@every_explainer
@every_network
def test_an_explanation_is_the_same_every_time(explain: Explainer, network: str) -> None:
    model, x, y = case(network)
    first = explain(model, x, y)
    torch.rand(3)  # wherever the global stream may be
    assert torch.equal(explain(model, x, y), first)


@every_explainer
@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_explanation_keeps_shape_and_format(
    explain: Explainer, network: str, dtype: torch.dtype
) -> None:
    model, x, y = case(network)
    found = explain(model.to(dtype), x.to(dtype), y)
    assert found.shape == (len(x), x[0].numel())
    assert found.dtype == dtype
    assert (found >= 0).all()


@every_explainer
def test_single_precision_is_enough_for_the_same_explanation(explain: Explainer) -> None:
    # The noise of SmoothGrad, too, is the same in both formats.
    model, x, y = case("tanh")
    double = explain(model, x, y)
    single = explain(model.float(), x.float(), y)
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-6)


LAYERS = {
    "tanh": ("1", 5),
    "batch norm and dropout": ("3", 8),
    "dropout in its forward": ("layers.1", 5),
    "pictures": ("1", 3),
    "pictures with batch norm and dropout": ("3", 3),
    "pairs with batch norm and dropout": ("model.second.1", 5),
    "symmetric matrices": ("model.1", 5),
}


@pytest.mark.parametrize("concept", CONCEPTS.values(), ids=CONCEPTS)
@pytest.mark.parametrize("network", LAYERS)
def test_neurons_keep_the_promises_of_features(concept: Activations, network: str) -> None:
    layer, count = LAYERS[network]
    explain = replace(concept, layer=layer)
    for x_learns in (False, True):
        model, x, y = case(network)
        x = x.requires_grad_(x_learns)
        before = caller_state(model, x, y)
        found = explain(model, x, y)
        assert same(before, caller_state(model, x, y))
        torch.autograd.grad(found.sum(), list(model.parameters()), allow_unused=True)
        assert same(before, caller_state(model, x, y))
        assert found.shape == (3, count)
        alone = [explain(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
        torch.testing.assert_close(found, torch.cat(alone))
        with torch.no_grad():
            plain = explain(model, x, y)
        assert not plain.requires_grad
        assert torch.equal(plain, found.detach())
        assert torch.equal(explain(model.eval(), x, y), found)
    (slopes,) = torch.autograd.grad(explain(model, x, y)[0].sum(), x)
    assert slopes[0].any()
    assert not slopes[1:].any()
    single = explain(model.float(), x.float(), y)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found, rtol=1e-3, atol=1e-5)


# --- training methods ---


def drawn_by_row() -> Callable[[Tensor], Tensor]:
    """Numbers that look normal and depend on the row and the number of the call, not on company."""
    calls: list[int] = []

    def draw(x: Tensor) -> Tensor:
        calls.append(1)
        places = torch.arange(1, x[0].numel() + 1, dtype=x.dtype).view(x.shape[1:])
        return 1.7 * (1e3 * x * (len(calls) + places)).sin()

    return draw


def objective_of(method: MethodEntry, model: nn.Module, k: int = 2) -> Objective:
    """What a method makes of a model; where it changes the model it must find what to change."""
    # Only a structured network knows its variation.
    without = "variation" in method.weights and not isinstance(model, AdditiveNet)
    built = method.build(k=k, **({"variation": 0.0} if without else {}))
    if built.prepare is not None and not any(
        isinstance(part, nn.ReLU | nn.LeakyReLU | nn.Softplus) for part in model.modules()
    ):
        with pytest.raises(ValueError, match="has none"):
            built.prepare(model)
        pytest.skip("this network is refused, as checked")
    return Objective(model, built, drawn_by_row())


@every_method
@every_network
def test_a_method_reaches_every_weight(method: MethodEntry, network: str) -> None:
    model, x, y = case(network)
    objective = objective_of(method, model)
    model = objective.model
    loss, parts = objective.parts(x, y)
    assert loss.ndim == 0
    assert "classification" in parts
    assert all(part.isfinite() and not part.requires_grad for part in parts.values())
    loss.backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all()
    assert sum(weight.grad.abs().sum() for weight in model.parameters()) > 0  # type: ignore[union-attr]


@every_method
@pytest.mark.parametrize(
    "network",
    ["tanh", "leaky", "leaky, two classes", "rounded", "structured", "pictures"],
)
def test_an_example_is_penalised_alone(method: MethodEntry, network: str) -> None:
    model, x, y = case(network)
    together = objective_of(method, model).parts(x, y)
    alone = [objective_of(method, model).parts(x[i : i + 1], y[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(together.total, torch.stack([loss.total for loss in alone]).mean())
    for name, part in together.parts.items():
        torch.testing.assert_close(part, torch.stack([loss.parts[name] for loss in alone]).mean())


@every_method
@every_network
def test_a_method_leaves_inputs_and_modes_alone(method: MethodEntry, network: str) -> None:
    model, x, y = case(network)
    before, modes = [x.clone(), y.clone()], [part.training for part in model.modules()]
    objective_of(method, model)(x, y).backward()
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert not x.requires_grad
    assert x.grad is None
    assert [part.training for part in model.modules()] == modes


@every_method
@every_network
def test_only_the_loss_moves_running_statistics(method: MethodEntry, network: str) -> None:
    # Once for each batch, as plain training does, by the inputs trained on: no other pass, of
    # penalties or of an attack on the inputs, leaves a trace.
    model, x, y = case(network)
    twin = copy.deepcopy(model)
    objective = objective_of(method, model)
    objective(x, y).backward()
    perturb = objective.method.perturb
    twin(x if perturb is None else perturb(BatchContext(twin, x, draw=drawn_by_row())))
    assert all(
        torch.equal(value, other)
        for value, other in zip(objective.model.buffers(), twin.buffers(), strict=True)
    )


@every_method
@pytest.mark.parametrize("network", ["leaky, two classes", "structured"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_method_keeps_the_number_format(
    method: MethodEntry, network: str, dtype: torch.dtype
) -> None:
    model, x, y = case(network)
    loss, parts = objective_of(method, model.to(dtype)).parts(x.to(dtype), y)
    assert {loss.dtype, *(part.dtype for part in parts.values())} == {dtype}


@every_method
@pytest.mark.parametrize("network", ["leaky, two classes", "structured"])
@pytest.mark.parametrize("k", [0, 6])
def test_a_k_that_splits_nothing_is_refused(method: MethodEntry, network: str, k: int) -> None:
    model, x, y = case(network)
    objective = objective_of(method, model, k)
    if method.ranks or method is METHODS["r2et-contributions"]:
        with pytest.raises(ValueError, match="k must lie"):
            objective(x, y)
    else:
        assert objective(x, y).isfinite()


@every_method
def test_a_method_has_words_for_itself(method: MethodEntry) -> None:
    assert method.label
    assert method.line
    labels = [entry.label for entry in METHODS.values()]
    assert labels.count(method.label) == 1
