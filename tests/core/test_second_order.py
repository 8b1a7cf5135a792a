"""Layers differentiated twice say what torch says, at every order, by fewer operations."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from r2et.core import second_order
from r2et.core.autograd import PLAIN_ATTENTION
from r2et.core.inputs import Inputs, Piece
from r2et.core.second_order import differentiated_twice
from r2et.explainers import Gradient, gradient
from r2et.methods import METHODS
from r2et.models.resnet import Block, ResNet
from r2et.training.objective import Objective


def numbers(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=drawn)


def drawn(model: nn.Module) -> nn.Module:
    """The network with weights and statistics that are neither zero nor one."""
    model = model.double()
    with torch.no_grad():
        for i, (name, values) in enumerate(model.state_dict().items()):
            if values.is_floating_point():
                values.copy_(numbers(*values.shape, seed=i) / max(1, values[0:1].numel()) ** 0.5)
                if name.endswith("running_var"):
                    values.abs_().add_(0.3)
    return model


def twice(model: Callable[[Tensor], Tensor], weights: list[Tensor], x: Tensor) -> list[Tensor]:
    """A penalty on the slope by x, and its slopes by x and by the weights."""
    x = x.clone().requires_grad_()
    with PLAIN_ATTENTION:
        out = model(x)
    (slope,) = torch.autograd.grad((out * out.detach().cos()).sum(), x, create_graph=True)
    penalty = (slope * numbers(*x.shape, seed=9)).sum() + out.square().mean()
    slopes = torch.autograd.grad(penalty, [x, *weights], materialize_grads=True)
    return [out.detach(), slope.detach(), *slopes]


def check_same(model: nn.Module, x: Tensor) -> None:
    weights = list(model.parameters())
    with_torch = twice(model, weights, x)

    def stood_in(x: Tensor) -> Tensor:
        with differentiated_twice():
            found: Tensor = model(x)
        return found

    torch.testing.assert_close(twice(stood_in, weights, x), with_torch, rtol=1e-10, atol=1e-10)


class Calls(TorchDispatchMode):
    """How often each operation was called, and how many convolutions were computed by them."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.convolutions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count[name] += 1
        if "convolution" in name:
            self.convolutions += sum(args[-1][:2]) if name == "convolution_backward" else 1
        return func(*args, **(kwargs or {}))


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Attentive(nn.Module):
    """Tokens that look at each other, with the choices of a call of it."""

    def __init__(self, layer: nn.MultiheadAttention | None = None, **choices: Any) -> None:
        super().__init__()
        self.layer = layer or nn.MultiheadAttention(8, 2, batch_first=True)
        self.choices = {"need_weights": False, **choices}

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x, x, x, **self.choices)[0]
        return found


class Plainly(nn.Module):
    """Attention by torch's own function, of queries and keys of two sizes."""

    def __init__(self, **choices: Any) -> None:
        super().__init__()
        self.choices = choices

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, 2 * x[:, :4], x[:, :4].sin(), **self.choices)


def convolution(**choices: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 6, 3, **choices), nn.ReLU())


def encoder(**choices: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **choices)


PICTURE, ROWS, TOKENS = (3, 4, 7, 7), (5, 4), (3, 5, 8)

NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "relu": (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), Doubled(6, 3), nn.ReLU()), ROWS),
    "leaky relu": (nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3)), ROWS),
    "in place": (nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(inplace=True), nn.Flatten()), PICTURE),
    "softplus": (nn.Sequential(nn.Conv2d(4, 5, 3), nn.Softplus(), nn.Conv2d(5, 2, 2)), PICTURE),
    "1d": (nn.Sequential(nn.Conv1d(8, 4, 3), nn.GELU(), nn.Conv1d(4, 2, 2)), (2, 8, 6)),
    "3d": (nn.Sequential(nn.Conv3d(2, 3, 2), nn.ReLU()), (2, 2, 3, 4, 3)),
    "plain": (convolution(), PICTURE),
    "strided": (convolution(stride=2, bias=False), PICTURE),
    "grouped": (convolution(groups=2), PICTURE),
    "padded": (convolution(padding=(1, 2)), PICTURE),
    "dilated": (convolution(dilation=2, padding="valid"), PICTURE),
    "same": (convolution(padding="same"), PICTURE),
    "mirrored": (convolution(padding=1, padding_mode="reflect"), PICTURE),
    "one picture": (convolution(), PICTURE[1:]),
    "block": (Block(4, 6, 2, "batch", nn.ReLU), PICTURE),
    "block without": (Block(4, 4, 1, "none", lambda: nn.LeakyReLU(0.1)), PICTURE),
    "norm": (nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.Softplus()), PICTURE),
    "norm of rows": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.GELU()), ROWS),
    "norm unknown": (nn.BatchNorm2d(4, track_running_stats=False), PICTURE),
    "layer norm": (nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), TOKENS),
    "gelu": (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.GELU("tanh")), TOKENS),
    "encoder": (encoder(activation="gelu", norm_first=True), TOKENS),
    "attention": (Attentive(nn.MultiheadAttention(8, 4, bias=False)), TOKENS),
    "one row of tokens": (Attentive(), TOKENS[1:]),
    "attention and shares": (Attentive(need_weights=True), TOKENS),
    "masked": (Attentive(attn_mask=torch.ones(5, 5).triu(1).bool()), TOKENS),
    "biased": (Attentive(nn.MultiheadAttention(8, 2, add_bias_kv=True)), TOKENS),
    "zero": (Attentive(nn.MultiheadAttention(8, 2, add_zero_attn=True)), TOKENS),
    "scaled": (Plainly(scale=0.3), TOKENS),
    "causal": (Plainly(is_causal=True), TOKENS),
    "relu encoder": (encoder(activation="relu"), TOKENS),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("model", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_both_derivatives_are_those_of_torch(
    model: nn.Module, shape: tuple[int, ...], training: bool
) -> None:
    model = drawn(model).train(training)
    check_same(model, numbers(*shape))
    hooked = [part for part in model.modules() if not list(part.children())]
    handles = [part.register_forward_hook(lambda part, given, out: 1.5 * out) for part in hooked]
    handles += [model.register_full_backward_hook(lambda part, slope, out: None)]
    check_same(model, numbers(*shape))
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 2, 3, 4)])
def test_attention_bends_as_torch_s_own_at_every_order(shape: tuple[int, ...]) -> None:
    q, k, v = (numbers(*shape, seed=i).requires_grad_() for i in range(3))

    def bent(attention: Callable[..., Tensor]) -> list[Tensor]:
        """Slopes of slopes of slopes, each weighed by other numbers."""
        slopes: Sequence[Tensor] = [attention(q, k, v).sin()]
        for i in range(3):
            weighed = [(each * numbers(*each.shape, seed=i)).sum() for each in slopes]
            slopes = torch.autograd.grad(sum(weighed), (q, k, v), create_graph=True)
        return list(slopes)

    assert gradgradcheck(second_order._attention, (q, k, v))
    with PLAIN_ATTENTION:
        torch.testing.assert_close(
            bent(second_order._attention),
            bent(F.scaled_dot_product_attention),
        )


def test_values_that_all_examples_share_are_attended_to_as_torch_does() -> None:
    q, k, v = numbers(2, 3, 4, seed=1), numbers(2, 3, 4, seed=2), numbers(1, 3, 4, seed=3)
    assert gradgradcheck(second_order._attention, [each.requires_grad_() for each in (q, k, v)])


# What nn.MultiheadAttention calls is compared above, called as it does.
@pytest.mark.parametrize("name", [f for f in second_order.KNOWN if "multi_head" not in str(f)])
def test_every_stand_in_is_taken_somewhere(name: Callable[..., Any]) -> None:
    calls = {
        F.conv1d: (numbers(2, 3, 5), numbers(4, 3, 2)),
        F.conv2d: (numbers(2, 3, 5, 5), numbers(4, 3, 2, 2)),
        F.conv3d: (numbers(2, 3, 5, 5, 5), numbers(4, 3, 2, 2, 2)),
        F.batch_norm: (numbers(3, 2), numbers(2), numbers(2).square()),
        F.scaled_dot_product_attention: (numbers(2, 3, 4), numbers(2, 3, 4), numbers(2, 3, 4)),
    }
    given = list(calls.get(name, (numbers(3, 4),)))
    given[0].requires_grad_()
    found = second_order.KNOWN[name](*given)
    torch.testing.assert_close(found, name(*given))


def test_stand_ins_are_called_as_torch_is() -> None:
    x, weight = numbers(2, 3, 5, 5).requires_grad_(), numbers(4, 3, 2, 2)
    ones, half = torch.ones_like(x[0, :, 0, 0]), 0.5 * torch.ones_like(x[0, :, 0, 0])
    with differentiated_twice():
        told = [
            F.relu(input=x),
            F.leaky_relu(input=x, negative_slope=0.3),
            F.gelu(input=x),
            F.conv2d(input=x, weight=weight, stride=[2], padding=[1, 0]),
            F.batch_norm(input=x, running_mean=ones, running_var=half, eps=0.1),
        ]
    nodes = [each.grad_fn.name().removesuffix("Backward") for each in told if each.grad_fn]
    assert nodes == ["_Relu", "_LeakyRelu", "_Gelu", "_Convolved", "AddcmulBackward0"]
    torch.testing.assert_close(told[0], x.relu())
    torch.testing.assert_close(told[1], F.leaky_relu(x, 0.3))
    torch.testing.assert_close(told[2], F.gelu(x))
    torch.testing.assert_close(told[3], F.conv2d(x, weight, None, 2, (1, 0)))
    torch.testing.assert_close(told[4], F.batch_norm(x, ones, half, eps=0.1))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.batch_norm(x[:, :1], torch.zeros(3), torch.ones(3)),
        lambda x: F.conv2d(x, torch.ones(4, 2, 2, 2)),
        lambda x: F.conv2d(x[0], torch.ones(4, 5, 2)),
        lambda x: nn.MultiheadAttention(5, 1)(x[0], x[0], x[0], need_weights=False, is_causal=True),
    ],
)
def test_what_torch_refuses_is_refused(call: Callable[[Tensor], Any]) -> None:
    x = torch.rand(2, 3, 5, 5, requires_grad=True)
    with pytest.raises(RuntimeError), differentiated_twice():
        call(x)


class ByRow(nn.Module):
    """A convolution and a kink, mapped over the rows of a batch by torch's own transform."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.vmap(lambda row: torch.relu(self.convolution(row[None]))[0])(x)
        return found.flatten(1)


def test_transformed_networks_are_left_to_torch() -> None:
    check_same(drawn(ByRow()), numbers(2, 1, 5, 5))


def test_compiled_networks_are_left_to_torch() -> None:
    model = drawn(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()))
    check_same(torch.compile(model.eval(), backend="eager"), numbers(2, 1, 5, 5))


def test_checkpoints_find_again_what_they_kept() -> None:
    class Kept(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return found

    layers = drawn(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()))
    layers.eval()
    check_same(Kept(*layers), numbers(2, 2, 4, 4))


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "relu": (second_order._relu, ((3, 4),)),
    "leaky relu": (second_order._leaky_relu, ((3, 4),)),
    "gelu": (second_order._gelu, ((3, 4),)),
    "attention": (second_order._attention, ((2, 3), (4, 3), (4, 3))),
    "convolution": (
        lambda x, w, b: second_order._conv(2, x, w, b, stride=2, padding=1, groups=2),
        ((1, 4, 3, 3), (2, 2, 2, 2), (2,)),
    ),
}


@pytest.mark.parametrize(("function", "shapes"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_derivatives_are_limits_of_differences_at_every_order(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    given = [numbers(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)

    def slopes(*given: Tensor) -> tuple[Tensor, ...]:
        values = function(*given)
        return torch.autograd.grad((values**3).sum(), given, create_graph=True)

    assert gradgradcheck(slopes, given)


@pytest.mark.parametrize("kink", [F.relu, torch.relu, Tensor.relu, F.leaky_relu])
def test_a_kink_has_the_slope_of_its_left_side_and_keeps_what_is_no_number(kink: Any) -> None:
    told = []
    for context in (torch.enable_grad(), differentiated_twice()):
        x = torch.tensor([0.0, -0.0, -torch.inf, torch.inf, torch.nan, 1.0], requires_grad=True)
        with context:
            values = kink(x)
        told.append((values, *torch.autograd.grad(values.sum(), x)))
    torch.testing.assert_close(*told, equal_nan=True)


def test_only_what_is_asked_for_is_computed() -> None:
    # Two layers forward, and the flow back through both. Its slope by the weights of both takes a
    # flow through the first as well; what flew into the second is a constant.
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.ReLU()).double()
    x = numbers(2, 2, 6, 6).requires_grad_()
    with Calls() as forward, differentiated_twice():
        out = model(x)
    with Calls() as slope:
        (found,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with Calls() as second:
        torch.autograd.grad(found.square().sum(), list(model.parameters()), allow_unused=True)
    assert [each.convolutions for each in (forward, slope, second)] == [2, 2, 3]


def convolutional(classes: int = 3) -> nn.Module:
    return drawn(ResNet(2, classes, width=2, blocks=(1, 1)))


def test_a_step_passes_each_convolution_as_often_as_it_must() -> None:
    # At x forward, the loss's flow and weights, the gradient, and its slope by flow and weights; at
    # x + kappa v the same, with the flow of the predicted probability for that of the loss.
    model, x = convolutional().eval(), numbers(3, 2, 8, 8)
    layers = sum(isinstance(part, nn.Conv2d) for part in model.modules())
    explain = Gradient(groups=Inputs(pieces=(Piece(shape=(2, 8, 8)),)).explained())
    objective = Objective(model, METHODS["r2et"].build(k=5, explain=explain))
    objective(x, torch.arange(3)).backward()
    with Calls() as calls:
        objective(x, torch.arange(3)).backward()
    assert calls.convolutions == 12 * layers
    assert not calls.count["native_batch_norm_backward"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["r2et", "r2et-noh", "r2et-mm", "est-h", "cl", "ssr", "exact-h"])
def test_methods_learn_what_torch_would_teach_them(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = numbers(3, 2, 4, 4), torch.arange(3)
    found = []
    for known in (second_order.KNOWN, {}):
        monkeypatch.setattr(second_order, "KNOWN", known)
        model = convolutional().train(training)
        draw = torch.Generator().manual_seed(0)
        objective = Objective(
            model,
            METHODS[name].build(k=2),
            lambda x: torch.randn(x.shape, dtype=x.dtype, generator=draw),  # noqa: B023
        )
        loss = objective(x, y)
        loss.backward()
        found.append((loss.detach(), *(weight.grad for weight in model.parameters())))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_an_explanation_is_differentiated_by_its_input_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, y = convolutional().eval(), torch.tensor([0, 2])
    found = []
    for known in (second_order.KNOWN, {}):
        monkeypatch.setattr(second_order, "KNOWN", known)
        x = numbers(2, 2, 4, 4).requires_grad_()
        found.append(torch.autograd.grad(gradient(model, x, y).square().sum(), x))
    torch.testing.assert_close(*found)


def test_lower_precision_and_what_nobody_records_are_left_to_torch() -> None:
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(1, 2, 4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), differentiated_twice():
        low = layer(x)
    assert low.dtype == torch.bfloat16
    assert "Convolution" in low.grad_fn.name()
    with torch.no_grad(), differentiated_twice():
        assert layer(x).grad_fn is None
    with differentiated_twice(), torch.no_grad():
        assert layer(x).grad_fn is None
    with differentiated_twice():
        assert "Convolved" in layer(x).grad_fn.name()
