"""Models that are not what they look like, and calls that ask for trouble.

Each entry of `TRAPS` builds one. What may come of it is a refusal, or a certificate that holds for
what the model does when it is called; an entry that says `refuse` has no function of one example
to certify, for the answer depends on other rows, on chance or on what was asked before. Weights are
drawn by the caller's seed: see `trap`.
"""

import contextlib
import copy
import ctypes
import io
import itertools
import pickle
import struct
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from breaking import Case
from r2et.models import structured
from r2et.models.additive import AdditiveNet

FEATURES, HIDDEN, CLASSES, ROWS = 7, 6, 2, 3
TABLE, PICTURE = (FEATURES,), (2, 4, 4)
K = 3

How = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Trap:
    """How to build a model, what it is called with, and whether it must be refused.

    `inputs` and `places` replace the random inputs and add others to look at; both see the model,
    but must not call it. `around` is entered for the certificate and the attack.
    """

    build: Callable[[], nn.Module]
    refuse: bool = False
    shape: tuple[int, ...] = TABLE
    dtype: torch.dtype = torch.float64
    training: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[nn.Module, Tensor], Tensor] | None = None
    places: Callable[[nn.Module, Tensor], Tensor] | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    slow: bool = False


def trap(name: str, seed: int = 0, **settings: Any) -> Case:
    """The case of a name, its weights and inputs drawn by the seed."""
    made = (TRAPS | BEYOND)[name]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = made.build()
        if not made.training:
            with contextlib.suppress(NotImplementedError):  # an exported program is fixed already
                model.eval()
        x = torch.randn(ROWS, *made.shape, dtype=torch.float64).to(made.dtype)
        x = made.inputs(model, x) if made.inputs else x
        places = made.places(model, x) if made.places else None
    return Case(
        name=name,
        model=model,
        x=x,
        settings={"k": K} | settings | dict(made.settings),
        refuse=made.refuse,
        training=made.training,
        places=places,
        around=made.around,
        parts=(name,),
    )


# Parts to build with. Weights are such that every bend matters and none is at its end.


def wide(inputs: int, outputs: int, kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """A linear layer of normal weights."""
    layer = kind(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.6)
    return layer


def net(bend: nn.Module | None = None, kind: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    """A small network in float64; without a bend a linear one."""
    layers = [wide(FEATURES, HIDDEN, kind), bend or nn.Identity(), wide(HIDDEN, CLASSES)]
    return nn.Sequential(*layers).double()


def picture_net(*layers: nn.Module) -> nn.Sequential:
    """Layers of a picture, then a linear one."""
    inner = nn.Sequential(*layers)
    with torch.no_grad():
        size = inner(torch.zeros(2, *PICTURE)).flatten(1).shape[1]
    return nn.Sequential(inner, nn.Flatten(), wide(size, CLASSES)).double()


class Written(nn.Module):
    """Two linear layers and whatever a function makes of them."""

    def __init__(self, how: How, **numbers: Tensor) -> None:
        super().__init__()
        self.first, self.last = wide(FEATURES, HIDDEN), wide(HIDDEN, CLASSES)
        self.how = how
        for name, value in numbers.items():
            self.register_buffer(name, value)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def inside(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network with a function of the hidden numbers between its two layers."""
    return lambda: Written(lambda own, x: own.last(function(own.first(x))))


def before(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network of tanh with a function of its inputs before it."""
    return lambda: Written(lambda own, x: own.last(torch.tanh(own.first(function(x)))))


def either(chosen: Callable[[Tensor], bool], dtype: torch.dtype = torch.float64) -> nn.Module:
    """A network that is linear where asked in one way, and bends where asked in another."""

    def how(own: Any, x: Tensor) -> Tensor:
        hidden = own.first(x)
        return cast(Tensor, own.last(hidden if chosen(x) else torch.tanh(2 * hidden)))

    return Written(how).to(dtype)


def hooked(register: Callable[[nn.Sequential], object], bend: nn.Module | None = None) -> nn.Module:
    """A network with something registered on it."""
    model = net(bend)
    register(model)
    return model


# What is called in place of what is written.


class Called(nn.Sequential):
    def __call__(self, x: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(torch.tanh(2 * x)))


def with_own_forward() -> nn.Module:
    model = net()
    whole = type(model).forward

    def forward(self: Any, x: Tensor) -> Tensor:
        return cast(Tensor, whole(self, torch.tanh(2 * x)))

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
    return model


def with_a_layers_own_forward() -> nn.Module:
    model = net()
    model[1].forward = torch.tanh  # type: ignore[assignment]
    return model


class Bent(nn.Linear):
    """A linear layer, were it not for its forward."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x))


class Sideways(AdditiveNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.tanh(3 * x))


def small_structured(kind: type[AdditiveNet]) -> nn.Module:
    model = structured(
        FEATURES, 2, numeric=[0, 1], one_hot=[[2, 3, 4]], generator=torch.Generator().manual_seed(1)
    ).double()
    model.__class__ = kind
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


class Twin(nn.Module):
    """Bends, and has a twin that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def straight(self) -> nn.Module:
        return copy.deepcopy(self.inner)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.inner(torch.tanh(2 * x)))


class CopiedAsAnother(Twin):
    def __deepcopy__(self, memo: Any) -> nn.Module:
        return self.straight()


class RestoredAsAnother(Twin):
    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.forward = self.inner.forward  # type: ignore[method-assign]


class DoubledIntoAnother(Twin):
    def double(self) -> Any:
        return self.straight()


class MovedIntoAnother(Twin):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self.straight()


class AppliedAsAnother(Twin):
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.forward = self.inner.forward  # type: ignore[method-assign]
        return super()._apply(fn, recurse)


class EvaluatedAsAnother(Twin):
    def eval(self) -> Any:
        return self.straight()


class AlwaysTraining(nn.Module):
    """Dropout that no call of eval() ends."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net(nn.Dropout(0.5))

    def train(self, mode: bool = True) -> Any:
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.inner(x))


class Reporting(Twin):
    """Tells of other weights than it has."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: torch.zeros_like(value) for name, value in super().state_dict().items()}

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(())

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(())

    def modules(self) -> Iterator[nn.Module]:
        return iter((self,))


# State.


class Counting(nn.Module):
    """Changes with the number of calls, told by a buffer or by an attribute."""

    def __init__(self, bends: Callable[[int], bool], kept: str = "attribute") -> None:
        super().__init__()
        self.inner, self.bends, self.kept = net(), bends, kept
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.count, self.shared = 0, itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kept == "buffer":
            self.calls += 1
            # A sum with it, not a branch on it: nothing stops a recording here.
            return cast(Tensor, self.inner(x)) + torch.tanh(x[:, :1]) * self.calls
        if self.kept == "attribute":
            self.count += 1
        count = next(self.shared) if self.kept == "shared" else self.count
        return cast(Tensor, self.inner(torch.tanh(2 * x) if self.bends(count) else x))


class Drifting(nn.Module):
    """Writes its weights at every call."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = net(nn.Tanh()), how
        self.register_buffer("mean", torch.zeros(FEATURES, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "data":
            self.inner[0].weight.data.mul_(1.1)
        elif self.how == "no_grad":
            with torch.no_grad():
                self.inner[0].bias.add_(0.3)
        else:
            self.mean = 0.5 * self.mean + x.detach().mean(0)
        return cast(Tensor, self.inner(x - self.mean))


SWITCH = {"calls": 0}


def by_a_global(own: Any, x: Tensor) -> Tensor:
    SWITCH["calls"] += 1
    return cast(Tensor, own.last(torch.tanh(own.first(x)) * (1 + SWITCH["calls"] % 5)))


# Gradients that are not those of the forward.


class Rounded(torch.autograd.Function):
    """Straight through, in the old style."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Stepped(torch.autograd.Function):
    """Straight through, in the new style."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return torch.tanh(3 * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(5 * x)


class Passed(torch.autograd.Function):
    """The same forwards, another slope backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(5 * x)


class PassedOnce(Passed):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(5 * x)


class SeesRecording(Passed):
    """Honest while its own backward is recorded, and only then."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient if torch.is_grad_enabled() else gradient * torch.sigmoid(5 * x)


class ByHand(torch.autograd.Function):
    """tanh with its derivative written out: honest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        found = torch.tanh(x)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (found,) = ctx.saved_tensors
        return gradient * (1 - found * found)


MASK = torch.tensor([3.0, 0.1, 1.0, -2.0, 0.3, 1.0], dtype=torch.float64)


def hooked_tensor(h: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    if h.requires_grad:
        h.register_hook(change)
    return h


def saved_otherwise(own: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.round(), lambda t: t):
        hidden = torch.tanh(own.first(x))
    return cast(Tensor, own.last(hidden))


def slopes_as_numbers(own: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        at = x if x.requires_grad else x.detach().requires_grad_()
        potential = F.softplus(own.first(at)).sum()
        (slope,) = torch.autograd.grad(potential, at, create_graph=True)
    return cast(Tensor, own.last(slope[:, :HIDDEN]))


def without_gradient(own: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(3 * own.first(x))
    return cast(Tensor, own.last(own.first(x) * gate))


# Writes.


def aliased_product(own: Any, x: Tensor) -> Tensor:
    hidden = own.first(x)
    kept = hidden
    hidden *= torch.sigmoid(3 * x[:, :1])
    return cast(Tensor, own.last(kept))


def written_through_a_view(own: Any, x: Tensor) -> Tensor:
    hidden = own.first(x)
    part = hidden[:, :3]
    part.tanh_()
    return cast(Tensor, own.last(hidden))


def assigned(own: Any, x: Tensor) -> Tensor:
    hidden = own.first(x)
    hidden[:, 1:3] = torch.tanh(hidden[:, 3:5])
    return cast(Tensor, own.last(hidden))


def ignored(write: Callable[[Tensor], object]) -> Callable[[], nn.Module]:
    """A network that writes its hidden numbers and does not use what the write returns."""

    def how(own: Any, x: Tensor) -> Tensor:
        hidden = own.first(x)
        write(hidden)
        return cast(Tensor, own.last(hidden))

    return lambda: Written(how)


class InPlaceResidual(nn.Module):
    """x + relu(Wx) by the look of it, relu(x) + relu(Wx) by what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bend, self.last = wide(FEATURES, 7), nn.ReLU(inplace=True), wide(7, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return cast(Tensor, self.last(hidden + self.bend(hidden)))


def writes_its_input(own: Any, x: Tensor) -> Tensor:
    x.data.tanh_()
    return cast(Tensor, own.last(own.first(x)))


# What recordings do and calls do not.


def under_a_mode() -> bool:
    return _get_current_dispatch_mode() is not None


def proxied() -> bool:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None


# Names.


def square(x: Tensor) -> Tensor:
    """No square."""
    return torch.tanh(2 * x)


fx.wrap("square")


@torch.library.custom_op("traps::relu", mutates_args=())
def relu(x: Tensor) -> Tensor:
    """No ReLU."""
    return torch.tanh(2 * x)


@relu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


relu.register_autograd(
    lambda ctx, gradient: gradient * 2 * (1 - torch.tanh(2 * ctx.saved_tensors[0]).square()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class _Leaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def graph_with_a_leaf() -> nn.Module:
    model = nn.Sequential(wide(FEATURES, HIDDEN, Bent), wide(HIDDEN, CLASSES)).double()
    return fx.GraphModule(model, _Leaves().trace(model))


def hooked_graph() -> nn.Module:
    model = fx.symbolic_trace(net())
    model.register_forward_pre_hook(lambda _, args: (torch.tanh(2 * args[0]),))
    return model


# Tensors of one's own.


class Tilted(nn.Parameter):
    """Weights that bend what they are applied to."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            return torch.tanh(found) if func is F.linear else found


class Shifted(Tensor):
    """Inputs that bend what is made of them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return torch.Tensor.tanh(found) if func is F.linear else found


def with_tilted_weights() -> nn.Module:
    model = net()
    model[0].weight = Tilted(model[0].weight.detach())
    return model


# What surrounds a call.


@contextlib.contextmanager
def every_layer_hooked() -> Iterator[None]:
    def bend(layer: nn.Module, args: Any, found: Any) -> Any:
        return torch.tanh(found) if isinstance(layer, nn.Identity) else None

    handle = nn.modules.module.register_module_forward_hook(bend)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def a_patched_function() -> Iterator[None]:
    plain = F.relu
    F.relu = lambda x, inplace=False: torch.tanh(2 * x)  # type: ignore[assignment]
    try:
        yield
    finally:
        F.relu = plain


class FunctionsExchanged(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if func is not F.relu else torch.tanh(args[0])


class OperationsExchanged(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.tanh_backward.default:
            return args[0] * torch.sigmoid(5 * args[1])
        return func(*args, **(kwargs or {}))


# Numbers.


def at_a_kink(model: nn.Module, x: Tensor) -> Tensor:
    """Biases such that the first hidden number is zero at the first input."""
    with torch.no_grad():
        model[0].bias[0] = -(model[0].weight[0] * x[0]).sum()
    return x


def spike(own: Any, x: Tensor) -> Tensor:
    """Linear but for a bump two ten-thousandths wide where the first feature is 0.3."""
    z = x[:, :1]
    bump = F.softplus(z - 0.3, beta=1e6) - 2 * F.softplus(z - 0.3001, beta=1e6)
    bump = bump + F.softplus(z - 0.3002, beta=1e6)
    return cast(Tensor, own.last(own.first(x))) + torch.cat([bump, -bump], 1) * 1e3


def on_the_spike(model: nn.Module, x: Tensor) -> Tensor:
    found = x.clone()
    found[:, 0] = 0.30005
    return found


def far_kink(own: Any, x: Tensor) -> Tensor:
    turn = F.relu(x[:, 3:4] - 4) * 100
    return cast(Tensor, own.last(own.first(x))) + torch.cat([turn, -turn], 1)


def behind_the_far_kink(model: nn.Module, x: Tensor) -> Tensor:
    found = x.clone()
    found[:, 3] = 4.5
    return found


def scaled(model: nn.Module, factor: float, layer: int = -1) -> nn.Module:
    with torch.no_grad():
        model[layer].weight.mul_(factor)  # type: ignore[index]
        model[layer].bias.mul_(factor)  # type: ignore[index]
    return model


def tied_features() -> nn.Module:
    model = net(nn.Tanh())
    with torch.no_grad():
        model[0].weight[:, 1] = model[0].weight[:, 0]
        model[0].weight[:, 4] = -model[0].weight[:, 0]
    return model


def nearly_tied_features() -> nn.Module:
    model = tied_features()
    with torch.no_grad():
        model[0].weight[:, 1] *= 1 + 1e-15
    return model


def constant() -> nn.Module:
    return scaled(net(nn.Tanh()), 0.0)


def dead_here(own: Any, x: Tensor) -> Tensor:
    return cast(Tensor, own.last(F.relu(own.first(x) - 8)))


def shared_weights(own: Any, x: Tensor) -> Tensor:
    hidden = torch.tanh(own.first(x))
    again = torch.tanh(F.linear(hidden, own.first.weight[:, :HIDDEN], own.first.bias))
    return cast(Tensor, own.last(again))


class Gated(nn.Module):
    """A layer of its own class in the middle of a network."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader = kind(1, 4, batch_first=True)
            self.last = wide(4, CLASSES)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.last(self.reader(x.unsqueeze(2))[0][:, -1]))

    return Read()


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Linear(1, 4)
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = wide(4, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.spread(x.unsqueeze(2))
        return cast(Tensor, self.last(self.inner(tokens, tokens, tokens)[0].mean(1)))


def half_and_half(own: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.tanh(own.first(x))
        return cast(Tensor, own.last(hidden)).to(x.dtype)


def with_noise(seed: int | None, draws: int = 4) -> How:
    """Smoothed with noise: the same at every call if it has a seed."""

    def how(own: Any, x: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed() if seed is None else generator.manual_seed(seed)
        total = torch.zeros((), dtype=x.dtype)
        for _ in range(draws):
            noise = torch.randn(x.shape[1:], generator=generator, dtype=torch.float64).to(x)
            total = total + own.last(torch.tanh(own.first(x + noise)))
        return total / draws

    return how


def drawing() -> nn.Module:
    generator = torch.Generator().manual_seed(0)

    def how(own: Any, x: Tensor) -> Tensor:
        offset = torch.randn(HIDDEN, generator=generator, dtype=torch.float64)
        return cast(Tensor, own.last(torch.tanh(own.first(x) + offset)))

    return Written(how)


def through_numpy(own: Any, x: Tensor) -> Tensor:
    gate = torch.from_numpy(np.tanh(2 * x.detach().numpy()))
    return cast(Tensor, own.last(own.first(x * gate)))


def a_number_of_x(own: Any, x: Tensor) -> Tensor:
    rows = [own.first(row) * row[0, 0].item() for row in x.split(1)]
    return cast(Tensor, own.last(torch.cat(rows)))


def quietly(read: Callable[[Tensor], float]) -> Callable[[], nn.Module]:
    """A network that is linear but near one value of the first feature, read past the recorder."""

    def how(own: Any, x: Tensor) -> Tensor:
        near = [abs(read(row) - 0.3) < 1e-3 for row in x.split(1)]
        rows = [torch.tanh(9 * r) if n else r for r, n in zip(x.split(1), near, strict=True)]
        # Nothing is taken apart where there is nothing to see.
        return cast(Tensor, own.last(own.first(torch.cat(rows) if any(near) else x)))

    return lambda: Written(how)


def saved_and_read(row: Tensor) -> float:
    file = io.BytesIO()
    torch.save(row.detach().clone(), file)
    return float(torch.load(io.BytesIO(file.getvalue()))[0, 0])


def near_the_place(model: nn.Module, x: Tensor) -> Tensor:
    found = x.clone()
    found[:, 0] = 0.3
    return found


def a_branch(own: Any, x: Tensor) -> Tensor:
    rows = [own.first(row) if row.sum() > 0 else torch.tanh(own.first(row)) for row in x.split(1)]
    return cast(Tensor, own.last(torch.cat(rows)))


def refusing(own: Any, x: Tensor) -> Tensor:
    if bool((x.abs() > 50).any()):
        raise RuntimeError("inputs beyond 50 make no sense")
    return cast(Tensor, own.last(own.first(x)))


def export(model: nn.Module, shape: tuple[int, ...] = TABLE) -> nn.Module:
    x = torch.zeros(2, *shape, dtype=torch.float64)
    rows = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(model, (x,), dynamic_shapes=rows).module()


def doubling(layer: nn.Linear) -> nn.Linear:
    """Weights that are computed from others at every call: honest."""

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(layer, "weight", Twice())
    return layer


def old_weight_norm(layer: nn.Linear) -> nn.Linear:
    return cast(nn.Linear, torch.nn.utils.weight_norm(layer))


def old_spectral_norm(layer: nn.Linear) -> nn.Linear:
    return cast(nn.Linear, torch.nn.utils.spectral_norm(layer))


def pruned(layer: nn.Linear) -> nn.Linear:
    prune.l1_unstructured(layer, "weight", amount=0.4)
    return layer


def with_first(
    change: Callable[[nn.Linear], nn.Module], kind: type[nn.Linear] = nn.Linear
) -> Callable[[], nn.Module]:
    """A network of tanh whose first layer was changed in some way."""
    return lambda: nn.Sequential(
        change(wide(FEATURES, HIDDEN, kind)), nn.Tanh(), wide(HIDDEN, CLASSES)
    ).double()


def batch_statistics() -> nn.Module:
    return net(nn.BatchNorm1d(HIDDEN, track_running_stats=False))


def float32(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: build().float()


HOOKS: dict[str, Trap] = {
    "forward pre-hook on the root": Trap(
        build=lambda: hooked(
            lambda m: m.register_forward_pre_hook(lambda _, args: (torch.tanh(2 * args[0]),))
        )
    ),
    "forward pre-hook with keywords": Trap(
        build=lambda: hooked(
            lambda m: m[1].register_forward_pre_hook(
                lambda _, args, named: ((torch.tanh(2 * args[0]),), named), with_kwargs=True
            )
        )
    ),
    "forward hook on a layer": Trap(
        build=lambda: hooked(
            lambda m: m[0].register_forward_hook(lambda _, args, found: torch.tanh(found))
        )
    ),
    "forward hook on the root": Trap(
        build=lambda: hooked(
            lambda m: m.register_forward_hook(
                lambda _, args, found: found + torch.tanh(3 * args[0][:, :2]) * 3
            )
        )
    ),
    "forward hook that writes in place": Trap(
        build=lambda: hooked(
            lambda m: m[0].register_forward_hook(lambda _, args, found: found.tanh_())
        )
    ),
    "forward hook that only looks": Trap(
        build=lambda: hooked(
            lambda m: m[0].register_forward_hook(lambda _, args, found: None), nn.Tanh()
        )
    ),
    "forward hook that adds noise": Trap(
        build=lambda: hooked(
            lambda m: m[0].register_forward_hook(
                lambda _, args, found: found + torch.randn_like(found)
            ),
            nn.Tanh(),
        ),
        refuse=True,
    ),
    "full backward hook": Trap(
        build=lambda: hooked(
            lambda m: m[1].register_full_backward_hook(lambda _, gi, go: (gi[0] ** 3,)), nn.Tanh()
        )
    ),
    "full backward pre-hook": Trap(
        build=lambda: hooked(
            lambda m: m[1].register_full_backward_pre_hook(lambda _, go: (go[0] * MASK,)), nn.Tanh()
        )
    ),
    "backward hook that only looks": Trap(
        build=lambda: hooked(
            lambda m: m[1].register_full_backward_hook(lambda _, gi, go: None), nn.Tanh()
        )
    ),
    "gradient hook on a hidden tensor": Trap(
        build=inside(lambda h: hooked_tensor(h, lambda g: g * torch.sigmoid(MASK * g)).tanh())
    ),
    "gradient hook on a weight": Trap(
        build=lambda: hooked(lambda m: m[0].weight.register_hook(lambda g: g * 2), nn.Tanh())
    ),
    "gradients clipped on the way": Trap(
        build=inside(lambda h: hooked_tensor(h, lambda g: g.clamp(-0.2, 0.2)).tanh())
    ),
    "hook on every layer of the process": Trap(build=net, around=every_layer_hooked),
    "overridden __call__": Trap(
        build=lambda: Called(wide(FEATURES, HIDDEN), wide(HIDDEN, CLASSES)).double()
    ),
    "forward of the instance": Trap(build=with_own_forward),
    "forward of a layer's instance": Trap(build=with_a_layers_own_forward),
    "patched function": Trap(build=lambda: net(nn.ReLU()), around=a_patched_function),
    "functions exchanged by a mode": Trap(build=lambda: net(nn.ReLU()), around=FunctionsExchanged),
    "operations exchanged by a mode": Trap(
        build=lambda: net(nn.Tanh()), around=OperationsExchanged
    ),
}  # fmt: skip

WRITES: dict[str, Trap] = {
    "h *= g with an alias": Trap(build=lambda: Written(aliased_product)),
    "h.tanh_() with its result ignored": Trap(build=ignored(lambda h: h.tanh_())),
    "F.relu(h, inplace=True) with its result ignored": Trap(
        build=ignored(lambda h: F.relu(h, inplace=True))
    ),
    "F.softplus into its input": Trap(build=ignored(lambda h: h.copy_(F.softplus(h.clone())))),
    "h.clamp_(min=0) with its result ignored": Trap(build=ignored(lambda h: h.clamp_(min=0))),
    "h.square_ by mul_ of itself": Trap(build=ignored(lambda h: h.mul_(h.clone()))),
    "h.data.tanh_()": Trap(build=ignored(lambda h: h.data.tanh_())),
    "h.detach().tanh_()": Trap(build=ignored(lambda h: h.detach().tanh_())),
    "h.data set to something else": Trap(
        build=ignored(lambda h: setattr(h, "data", torch.tanh(h.data)))
    ),
    "masked_fill_ by value": Trap(build=ignored(lambda h: h.masked_fill_(h < 0, 0.0))),
    "in-place ReLU before a residual sum": Trap(build=InPlaceResidual),
    "written through a view": Trap(build=lambda: Written(written_through_a_view)),
    "columns assigned": Trap(build=lambda: Written(assigned)),
    "written in place, honestly": Trap(build=inside(lambda h: h.mul(1).add_(1).mul_(2).tanh_())),
    "written where a derivative needs it": Trap(build=inside(lambda h: h.tanh().mul_(2))),
    "its own input written": Trap(build=lambda: Written(writes_its_input)),
    "its own input bent in place": Trap(
        build=lambda: Written(lambda own, x: own.last(own.first(x.tanh_())))
    ),
}

LAYERS: dict[str, Trap] = {
    "subclass of Linear": Trap(build=lambda: net(kind=Bent)),
    "subclass of Linear under weight_norm": Trap(build=with_first(old_weight_norm, Bent)),
    "subclass of Linear under spectral_norm": Trap(build=with_first(old_spectral_norm, Bent)),
    "weight_norm": Trap(build=with_first(old_weight_norm)),
    "spectral_norm": Trap(build=with_first(old_spectral_norm)),
    "spectral_norm in training": Trap(build=with_first(old_spectral_norm), training=True),
    "parametrised weight_norm": Trap(build=with_first(parametrizations.weight_norm)),
    "parametrised weight_norm of a subclass": Trap(
        build=with_first(parametrizations.weight_norm, Bent)
    ),
    "parametrised spectral_norm of a subclass": Trap(
        build=with_first(parametrizations.spectral_norm, Bent)
    ),
    "parametrised spectral_norm": Trap(build=with_first(parametrizations.spectral_norm)),
    "parametrised spectral_norm in training": Trap(
        build=with_first(parametrizations.spectral_norm), training=True
    ),
    "parametrised by a module of one's own": Trap(build=with_first(doubling)),
    "pruned": Trap(build=with_first(pruned)),
    "subclass of the structured network": Trap(build=lambda: small_structured(Sideways)),
    "structured network": Trap(build=lambda: small_structured(AdditiveNet)),
    "subclass of ReLU": Trap(
        build=lambda: net(type("Odd", (nn.ReLU,), {"forward": lambda _, x: torch.tanh(2 * x)})())
    ),
    "subclass of Sequential": Trap(
        build=lambda: type(
            "Odd", (nn.Sequential,), {"forward": lambda own, x: own[1](torch.tanh(own[0](x)))}
        )(wide(FEATURES, HIDDEN), wide(HIDDEN, CLASSES)).double()
    ),
    "Softplus of threshold 0": Trap(build=lambda: net(nn.Softplus(threshold=0))),
    "Softplus of threshold 1": Trap(build=lambda: net(nn.Softplus(threshold=1))),
    "Softplus of beta 3 and threshold 2": Trap(build=lambda: net(nn.Softplus(3.0, threshold=2))),
    "softplus of threshold -1": Trap(build=inside(lambda h: F.softplus(h, 1.0, -1.0))),
    "Softplus of negative beta": Trap(build=lambda: net(nn.Softplus(-2.0))),
    "GraphModule with a leaf of a subclass": Trap(build=graph_with_a_leaf),
    "GraphModule, honest": Trap(build=lambda: fx.symbolic_trace(net(nn.Tanh()))),
    "GraphModule with a hook": Trap(build=lambda: hooked_graph()),
    "wrapped function named square": Trap(build=inside(lambda h: square(h))),
    "custom operation named relu": Trap(build=inside(lambda h: torch.ops.traps.relu(h))),
    "layer between others": Trap(build=lambda: net(Gated(lambda h: torch.tanh(2 * h)))),
    "weights used twice": Trap(build=lambda: Written(shared_weights)),
    "weights that bend": Trap(build=with_tilted_weights),
    "inputs that bend": Trap(build=net, inputs=lambda _, x: x.as_subclass(Shifted)),
    "Dropout handed over in training": Trap(
        build=lambda: net(nn.Sequential(nn.Tanh(), nn.Dropout(0.5))), training=True
    ),
    "BatchNorm handed over in training": Trap(
        build=lambda: net(nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.Tanh())), training=True
    ),
    "exported": Trap(build=lambda: export(net(nn.Tanh())), slow=True),
    "exported with a leaf of a subclass": Trap(build=lambda: export(net(kind=Bent)), slow=True),
    "compiled": Trap(
        build=lambda: cast(nn.Module, torch.compile(net(nn.Tanh()), backend="eager")), slow=True
    ),
}

COPIES: dict[str, Trap] = {
    "copied as another": Trap(build=CopiedAsAnother),
    "restored as another": Trap(build=RestoredAsAnother),
    "double() gives another": Trap(build=DoubledIntoAnother),
    "to() gives another": Trap(build=MovedIntoAnother),
    "_apply makes another of it": Trap(build=AppliedAsAnother),
    "eval() gives another": Trap(build=EvaluatedAsAnother),
    "eval() ends nothing": Trap(build=AlwaysTraining, refuse=True),
    "tells of other weights": Trap(build=Reporting),
}

OTHER_ROWS: dict[str, Trap] = {
    "x times the number of rows": Trap(
        build=lambda: Written(lambda own, x: own.last(torch.tanh(own.first(x * x.shape[0])))),
        refuse=True,
    ),
    "less the mean of the rows": Trap(
        build=inside(lambda h: torch.tanh(h - h.mean(0))), refuse=True
    ),
    "less the detached mean of the rows": Trap(
        build=inside(lambda h: torch.tanh(h - h.detach().mean(0))), refuse=True
    ),
    "batch statistics": Trap(build=batch_statistics, refuse=True),
    "sorted over rows": Trap(build=inside(lambda h: torch.tanh(h.sort(0).values)), refuse=True),
    "cumulated over rows": Trap(build=inside(lambda h: torch.tanh(h.cumsum(0))), refuse=True),
    "the first row added": Trap(build=inside(lambda h: torch.tanh(h + h[0])), refuse=True),
    "the last row added": Trap(build=inside(lambda h: torch.tanh(h + h[-1:])), refuse=True),
    "rows turned round": Trap(build=inside(lambda h: torch.tanh(h + h.flip(0))), refuse=True),
    "rows shifted": Trap(build=inside(lambda h: torch.tanh(h + h.roll(1, 0))), refuse=True),
    "softmax over rows": Trap(build=inside(lambda h: h.softmax(0)), refuse=True),
    "normalised over rows": Trap(build=inside(lambda h: F.normalize(h, dim=0)), refuse=True),
    "product of all rows": Trap(
        build=inside(lambda h: torch.tanh(h @ (h.T @ h) / 10)), refuse=True
    ),
    "rows mixed by a reshape": Trap(
        build=inside(lambda h: torch.tanh(h.T.reshape(h.shape))), refuse=True
    ),
    "the number of rows by a branch": Trap(
        build=lambda: either(lambda x: len(x) == 1), refuse=True
    ),
    "many rows by a branch": Trap(build=lambda: either(lambda x: len(x) < 8), refuse=True),
    "odd numbers of rows": Trap(build=lambda: either(lambda x: len(x) % 2 == 1), refuse=True),
    "divided by the number of rows": Trap(
        build=inside(lambda h: torch.tanh(h) / len(h) + h), refuse=True
    ),
    "a little of the mean of the rows": Trap(
        build=inside(lambda h: torch.tanh(h + 1e-3 * h.mean(0))), refuse=True
    ),
}

STATE: dict[str, Trap] = {
    "counted in a buffer": Trap(build=lambda: Counting(bool, "buffer"), refuse=True),
    "every other call": Trap(build=lambda: Counting(lambda n: n % 2 == 0), refuse=True),
    "honest for three calls": Trap(build=lambda: Counting(lambda n: n > 3), refuse=True),
    "honest for ten calls": Trap(build=lambda: Counting(lambda n: n > 10), refuse=True),
    "honest for three calls, copies counted too": Trap(
        build=lambda: Counting(lambda n: n > 3, "shared"), refuse=True
    ),
    "every fifth call, copies counted too": Trap(
        build=lambda: Counting(lambda n: n % 5 == 0, "shared"), refuse=True
    ),
    "weights written as data": Trap(build=lambda: Drifting("data"), refuse=True),
    "weights written without gradient": Trap(build=lambda: Drifting("no_grad"), refuse=True),
    "a running mean": Trap(build=lambda: Drifting("mean"), refuse=True),
    "a global variable": Trap(build=lambda: Written(by_a_global), refuse=True),
    "the clock": Trap(
        build=inside(lambda h: torch.tanh(h * (1 + time.perf_counter_ns() % 97))), refuse=True
    ),
    "random numbers": Trap(
        build=inside(lambda h: torch.tanh(h + torch.randn_like(h))), refuse=True
    ),
    "random numbers of numpy": Trap(
        build=inside(lambda h: torch.tanh(h + float(np.random.default_rng().normal()))), refuse=True
    ),
    "random numbers of a generator of its own": Trap(build=drawing, refuse=True),
    "dropout that is never off": Trap(
        build=inside(lambda h: F.dropout(torch.tanh(h), 0.5, training=True)), refuse=True
    ),
    "smoothed with noise": Trap(build=lambda: Written(with_noise(None)), refuse=True),
    "smoothed with the same noise": Trap(build=lambda: Written(with_noise(0))),
}  # fmt: skip


GRADIENTS: dict[str, Trap] = {
    "straight through, old style": Trap(build=inside(Rounded.apply)),
    "straight through, new style": Trap(build=inside(Stepped.apply)),
    "another slope backwards": Trap(build=inside(Passed.apply)),
    "another slope backwards, once": Trap(build=inside(PassedOnce.apply)),
    "another slope unless recorded": Trap(build=inside(SeesRecording.apply)),
    "derivative by hand": Trap(build=inside(ByHand.apply)),
    "straight through by detach": Trap(
        build=inside(lambda h: h + (torch.tanh(3 * h) - h).detach())
    ),
    "detached gate": Trap(build=inside(lambda h: h * torch.sigmoid(3 * h).detach())),
    "detached sum": Trap(build=inside(lambda h: torch.tanh(h) + 3 * torch.tanh(2 * h).detach())),
    "gate without gradient": Trap(build=lambda: Written(without_gradient)),
    "gate of data": Trap(build=inside(lambda h: h * torch.sigmoid(3 * h.data))),
    "all detached": Trap(build=inside(lambda h: torch.tanh(h.detach()))),
    "detached in place": Trap(build=inside(lambda h: torch.tanh(h) + (2 * h).detach_())),
    "what is saved is rounded": Trap(build=lambda: Written(saved_otherwise)),
    "slopes as numbers": Trap(build=lambda: Written(slopes_as_numbers)),
    "checkpointed": Trap(
        build=inside(
            lambda h: cast(
                Tensor,
                checkpoint(torch.tanh, h, use_reentrant=False) if h.requires_grad else h.tanh(),
            )
        )
    ),
    "where by value": Trap(build=inside(lambda h: torch.where(h > 0.3, h * 3, h.tanh()))),
    "product with a comparison": Trap(build=inside(lambda h: h * (h > 0.3).to(h))),
    "branch on a value": Trap(build=lambda: Written(a_branch)),
    "branch on what numpy reads": Trap(
        build=quietly(lambda row: float(row.detach().numpy()[0, 0])), places=near_the_place
    ),
    "branch on what an exchange of memory reads": Trap(
        build=quietly(lambda row: float(np.from_dlpack(row.detach())[0, 0])), places=near_the_place
    ),
    "branch on what a list holds": Trap(
        build=quietly(lambda row: row.detach().tolist()[0][0]), places=near_the_place
    ),
    "branch on what memory holds": Trap(
        build=quietly(
            lambda row: ctypes.cast(row.data_ptr(), ctypes.POINTER(ctypes.c_double))[0]
        ),
        places=near_the_place,
    ),
    "branch on what storage holds": Trap(
        build=quietly(lambda row: struct.unpack("d", bytes(row.untyped_storage()[:8]))[0]),
        places=near_the_place,
    ),
    "branch on what is pickled": Trap(
        build=quietly(lambda row: float(pickle.loads(pickle.dumps(row.detach()))[0, 0])),
        places=near_the_place,
    ),
    "branch on what is saved": Trap(build=quietly(saved_and_read), places=near_the_place),
    "branch on what is printed": Trap(
        build=quietly(lambda row: float(repr(row.detach()).split("[")[2].split(",")[0])),
        places=near_the_place,
    ),
    "item": Trap(build=lambda: Written(a_number_of_x)),
    "through numpy": Trap(build=lambda: Written(through_numpy)),
    "through a list": Trap(
        build=inside(lambda h: h * torch.tensor(torch.tanh(2 * h).tolist(), dtype=h.dtype))
    ),
    "a tensor made of values": Trap(
        build=inside(lambda h: h * torch.as_tensor(h.detach().numpy() > 0).to(h))
    ),
}  # fmt: skip

ASKED: dict[str, Trap] = {
    "symbolic tracing": Trap(
        build=lambda: either(lambda x: torch.fx._symbolic_trace.is_fx_tracing())
    ),
    "proxies": Trap(build=lambda: either(lambda x: isinstance(x, fx.Proxy) or proxied())),
    "fake tensors": Trap(build=lambda: either(lambda x: "Fake" in type(x).__name__)),
    "compilation": Trap(build=lambda: either(lambda x: torch.compiler.is_compiling())),
    "export": Trap(build=lambda: either(lambda x: torch.compiler.is_exporting())),
    "a dispatch mode": Trap(build=lambda: either(lambda x: under_a_mode())),
    "the functional transforms": Trap(
        build=lambda: either(lambda x: torch._C._functorch.peek_interpreter_stack() is not None)
    ),
    "the class of tensors": Trap(build=lambda: either(lambda x: type(x) is not Tensor)),
    "whether x requires a gradient": Trap(build=lambda: either(lambda x: x.requires_grad)),
    "whether x requires none": Trap(build=lambda: either(lambda x: not x.requires_grad)),
    "whether x is a leaf": Trap(build=lambda: either(lambda x: not x.is_leaf)),
    "whether gradients are on": Trap(build=lambda: either(lambda x: not torch.is_grad_enabled())),
    "whether weights require a gradient": Trap(
        build=lambda: Written(
            lambda own, x: own.last(
                torch.tanh(2 * own.first(x)) if own.first.weight.requires_grad else own.first(x)
            )
        )
    ),
    "double precision of x": Trap(
        build=lambda: either(lambda x: x.dtype == torch.float64, torch.float32),
        dtype=torch.float32,
    ),
    "double precision of the weights": Trap(
        build=float32(
            lambda: Written(
                lambda own, x: own.last(
                    own.first(x)
                    if own.first.weight.dtype == torch.float64
                    else torch.tanh(2 * own.first(x))
                )
            )
        ),
        dtype=torch.float32,
    ),
    "training": Trap(
        build=lambda: Written(
            lambda own, x: own.last(own.first(x) if own.training else torch.tanh(2 * own.first(x)))
        ),
        training=True,
    ),
    "the meta device": Trap(build=lambda: either(lambda x: x.device.type == "meta")),
    "the version of x": Trap(build=lambda: either(lambda x: x._version > 0)),
}

BENDS: dict[str, Trap] = {
    **{
        f"{bend}".replace("()", ""): Trap(build=lambda bend=bend: net(copy.deepcopy(bend)))
        for bend in (
            nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(-0.5), nn.LeakyReLU(2.0), nn.ReLU6(),
            nn.ELU(), nn.ELU(alpha=3.0), nn.SELU(), nn.CELU(0.5), nn.GELU(), nn.GELU("tanh"),
            nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.Mish(), nn.SiLU(), nn.Softsign(),
            nn.LogSigmoid(), nn.Tanhshrink(), nn.Softshrink(), nn.Hardshrink(),
            nn.Threshold(0.2, 5), nn.RReLU(), nn.PReLU(), nn.PReLU(HIDDEN, -0.5), nn.Sigmoid(),
            nn.Tanh(), nn.Softplus(), nn.Softmax(1), nn.Softmin(1), nn.LogSoftmax(1),
            nn.LayerNorm(HIDDEN), nn.GroupNorm(2, HIDDEN),
        )
    },
    "BatchNorm": Trap(build=lambda: net(nn.BatchNorm1d(HIDDEN))),
    "AlphaDropout": Trap(build=lambda: net(nn.AlphaDropout(0.5))),
    "Softplus of beta 1e6": Trap(build=lambda: net(nn.Softplus(1e6))),
    "Softplus of beta 1e-6": Trap(build=lambda: net(nn.Softplus(1e-6))),
    **{
        name: Trap(build=inside(function))
        for name, function in {
            "floor": lambda h: h.floor() + h,
            "round": lambda h: h.round() * 2 + h.tanh(),
            "fraction": lambda h: h.frac(),
            "sign": lambda h: h.sign() * h,
            "heaviside": lambda h: torch.heaviside(h, torch.zeros_like(h)) * h,
            "remainder": lambda h: h % 1.0,
            "abs": torch.abs,
            "exp": torch.exp,
            "log of a square": lambda h: (h * h).log(),
            "sqrt, not a number below": lambda h: (h + 3).sqrt(),
            "log, not a number below": lambda h: (h + 3).log(),
            "sqrt of a ReLU": lambda h: h.relu().sqrt(),
            "reciprocal": lambda h: 1 / h,
            "division by what depends on x": lambda h: h / (1 + h.square().sum(1, keepdim=True)),
            "division by itself": lambda h: h / h + h.tanh(),
            "third power": lambda h: h**3,
            "half a power": lambda h: (h + 3) ** 0.5,
            "power of x": lambda h: torch.pow(2.0, h),
            "power with a tensor": lambda h: h ** torch.tensor(2.0, dtype=torch.float64),
            "sine": torch.sin,
            "error function": torch.erf,
            "clamp": lambda h: h.clamp(-1, 0.5),
            "minimum and maximum": lambda h: torch.maximum(h, -h) + torch.minimum(h, h * 2),
            "largest feature": lambda h: h + h.max(1, keepdim=True).values,
            "amax": lambda h: h * h.amax(1, keepdim=True),
            "logsumexp": lambda h: h.tanh() + h.logsumexp(1, keepdim=True),
            "sorted features": lambda h: h.sort(1).values,
            "top features": lambda h: torch.cat([h.topk(3, dim=1).values, h[:, :3]], 1),
            "cumulated features": lambda h: h.tanh().cumsum(1),
            "gathered at the largest": lambda h: h + h.gather(1, h.argmax(1, keepdim=True)),
            "F.normalize": lambda h: F.normalize(h, dim=1),
            "norm": lambda h: h * h.norm(dim=1, keepdim=True),
            "norm of linalg": lambda h: h * torch.linalg.vector_norm(h, dim=1, keepdim=True),
            "solved": lambda h: torch.linalg.solve(
                torch.eye(6, dtype=h.dtype) * (9 + h[:, :1, None].square()), h[:, :, None]
            ).squeeze(2),
            "single precision on the way": lambda h: h.float().tanh().double(),
            "half precision on the way": lambda h: h.half().double().tanh(),
            "whole numbers on the way": lambda h: h.long().to(h) * h,
            "looked up": lambda h: h * torch.arange(9.0, dtype=h.dtype)[h.long().clamp(0, 8)],
            "Fourier": lambda h: torch.fft.rfft(h).abs().sum(1, keepdim=True) + h,
            "complex": lambda h: torch.view_as_real(torch.complex(h, h) ** 2).sum(2),
            "outer product": lambda h: torch.einsum("bi,bj->bi", h, h),
            "batched product": lambda h: torch.bmm(h[:, :, None], h[:, None]).sum(2),
            "distance": lambda h: h * torch.cdist(h[:, None], h[:, None] * 0 + 1).squeeze(1),
            "gated linear unit": lambda h: F.glu(torch.cat([h, h * 2], 1)),
            "a ReLU by hand": lambda h: (h + h.abs()) / 2,
            "a ReLU by clamp": lambda h: h.clamp_min(0),
            "tanh by sigmoid": lambda h: 2 * torch.sigmoid(2 * h) - 1,
            "added with alpha": lambda h: torch.add(h.tanh(), h.sigmoid(), alpha=-3.0),
            "nan_to_num": lambda h: torch.nan_to_num(h.tanh()),
            "nothing of it": lambda h: torch.zeros_like(h) * h,
        }.items()
    },
    "inputs rounded": Trap(build=before(torch.round)),
    "inputs in single precision": Trap(build=before(lambda x: x.float().double())),
    "recurrent": Trap(build=lambda: recurrent(nn.RNN)),
    "LSTM": Trap(build=lambda: recurrent(nn.LSTM)),
    "GRU": Trap(build=lambda: recurrent(nn.GRU)),
    "attention": Trap(build=Attending),
    "bilinear": Trap(
        build=lambda: Written(
            lambda own, x: own.last(F.bilinear(own.first(x), own.first(x), own.third)),
            third=torch.randn(6, 6, 6),
        )
    ),
}  # fmt: skip

PICTURES: dict[str, Trap] = {
    name: Trap(build=lambda layers=layers: picture_net(*copy.deepcopy(layers)), shape=PICTURE)
    for name, layers in {
        "padding in reflection": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Tanh()),
        "padding in circles": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.ReLU()),
        "padding by repetition": (
            nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"),
            nn.ReLU(),
        ),
        "padding to the same size": (nn.Conv2d(2, 2, 2, padding="same"), nn.Tanh()),
        "convolution with holes": (nn.Conv2d(2, 3, 2, dilation=2), nn.ReLU()),
        "convolution by groups": (nn.Conv2d(2, 4, 2, groups=2, stride=2), nn.Softplus()),
        "convolution turned round": (nn.ConvTranspose2d(2, 2, 2), nn.Tanh()),
        "max pooling": (nn.Conv2d(2, 2, 1), nn.MaxPool2d(2)),
        "max pooling with overlap": (nn.MaxPool2d(2, stride=1),),
        "max pooling with padding": (nn.MaxPool2d(2, padding=1),),
        "max pooling with holes": (nn.MaxPool2d(2, dilation=2, stride=1),),
        "max pooling with ceil": (nn.MaxPool2d(3, ceil_mode=True),),
        "adaptive max pooling": (nn.AdaptiveMaxPool2d(2),),
        "average pooling with padding": (nn.Tanh(), nn.AvgPool2d(2, padding=1)),
        "average pooling with padding not counted": (
            nn.Tanh(),
            nn.AvgPool2d(3, padding=1, count_include_pad=False),
        ),
        "average pooling with ceil": (nn.Tanh(), nn.AvgPool2d(3, ceil_mode=True)),
        "average pooling with a divisor": (nn.Tanh(), nn.AvgPool2d(2, divisor_override=3)),
        "power pooling": (nn.LPPool2d(2, 2),),
        "instance normalisation": (nn.InstanceNorm2d(2), nn.Tanh()),
        "instance normalisation with statistics": (
            nn.InstanceNorm2d(2, track_running_stats=True),
            nn.Tanh(),
        ),
        "local response normalisation": (nn.LocalResponseNorm(2, alpha=1.0), nn.Tanh()),
        "dropout of channels": (nn.Dropout2d(0.5), nn.Tanh()),
        "upsampled": (nn.Tanh(), nn.Upsample(scale_factor=2, mode="bilinear")),
        "pixels shuffled": (nn.Tanh(), nn.PixelUnshuffle(2)),
    }.items()
}  # fmt: skip

NUMBERS: dict[str, Trap] = {
    "a kink far out": Trap(build=lambda: Written(far_kink), places=behind_the_far_kink),
    "a narrow spike": Trap(build=lambda: Written(spike), places=on_the_spike),
    "huge weights": Trap(build=lambda: scaled(net(nn.Tanh()), 1e200)),
    "huge weights inside": Trap(build=lambda: scaled(net(nn.Softplus()), 1e200, layer=0)),
    "huge squares": Trap(build=lambda: scaled(net(Gated(lambda h: h * h)), 1e160, layer=0)),
    "tiny weights": Trap(build=lambda: scaled(net(nn.Tanh()), 1e-310)),
    "sure predictions": Trap(build=lambda: scaled(net(nn.Tanh()), 1e4)),
    "sure predictions in single precision": Trap(
        build=float32(lambda: scaled(net(nn.Softplus(2.0)), 1e4)), dtype=torch.float32
    ),
    "saturated in single precision": Trap(
        build=float32(lambda: scaled(net(nn.Sigmoid()), 40.0, layer=0)), dtype=torch.float32
    ),
    "saturated": Trap(build=lambda: scaled(net(nn.Sigmoid()), 1e3, layer=0)),
    "large terms that cancel in single precision": Trap(
        build=float32(inside(lambda h: (torch.tanh(h) + 1e6) - 1e6 + F.softplus(h + 1e6) - 1e6)),
        dtype=torch.float32,
    ),
    "offset beyond single precision": Trap(
        build=float32(inside(lambda h: torch.tanh((h + 1e7) - 1e7))), dtype=torch.float32
    ),
    "single precision": Trap(build=float32(lambda: net(nn.Tanh())), dtype=torch.float32),
    "half precision": Trap(build=lambda: net(nn.Tanh()).half(), dtype=torch.float16),
    "bfloat16": Trap(build=lambda: net(nn.Tanh()).bfloat16(), dtype=torch.bfloat16),
    "autocast inside": Trap(build=lambda: Written(half_and_half).float(), dtype=torch.float32),
    "weights rounded to half precision": Trap(build=lambda: net(nn.Tanh()).half().double()),
    "weights in another precision than x": Trap(build=lambda: net(nn.Tanh()), dtype=torch.float32),
    "equal features": Trap(build=tied_features, settings={"k": 1}),
    "nearly equal features": Trap(build=nearly_tied_features, settings={"k": 1}),
    "a constant": Trap(build=constant),
    "no slope here, some elsewhere": Trap(build=lambda: Written(dead_here)),
    "x on a kink": Trap(build=lambda: net(nn.ReLU()), inputs=at_a_kink),
    "x on a kink of LeakyReLU": Trap(build=lambda: net(nn.LeakyReLU(0.2)), inputs=at_a_kink),
    "x on a tie of max pooling": Trap(
        build=lambda: picture_net(nn.MaxPool2d(2)),
        shape=PICTURE,
        inputs=lambda _, x: x.sign(),
    ),
    "weights not a number": Trap(build=lambda: scaled(net(nn.Tanh()), float("nan"), layer=0)),
    "weights infinite": Trap(build=lambda: scaled(net(nn.Tanh()), float("inf"), layer=0)),
    "a buffer on the way": Trap(
        build=lambda: Written(
            lambda own, x: own.last(torch.tanh(own.first(x)) * own.third), third=torch.randn(6)
        )
    ),
    "a tensor of its own, no buffer": Trap(
        build=lambda: Written(lambda own, x: own.last(torch.tanh(own.first(x)) * MASK))
    ),
}

CALLS: dict[str, Trap] = {
    "one-hot groups of two": Trap(
        build=lambda: net(nn.Tanh()), settings={"one_hot": [[0, 1], [2, 3]], "k": 1}
    ),
    "one-hot group of all": Trap(
        build=lambda: net(nn.Tanh()), settings={"one_hot": [list(range(FEATURES))]}
    ),
    "a scale of infinity": Trap(
        build=lambda: net(nn.Tanh()),
        settings={"scale": torch.tensor([1.0, 1, 1, torch.inf, 1, 1, 1], dtype=torch.float64)},
    ),
    "scales far apart": Trap(
        build=lambda: net(nn.Tanh()),
        settings={"scale": torch.tensor([1e-9, 1, 1, 1e9, 0, 1, 1], dtype=torch.float64)},
    ),
    "the other class": Trap(
        build=lambda: net(nn.Tanh()), settings={"y": torch.arange(ROWS) % 2, "of": "logit"}
    ),
    "no rows": Trap(build=lambda: net(nn.Tanh()), inputs=lambda _, x: x[:0]),
    "one row twice": Trap(build=lambda: net(nn.Tanh()), inputs=lambda _, x: x[[0, 0, 0]]),
    "x out of order in memory": Trap(
        build=lambda: net(nn.Tanh()), inputs=lambda _, x: x.T.contiguous().T
    ),
    "x with a graph": Trap(
        build=lambda: net(nn.Tanh()), inputs=lambda _, x: x.requires_grad_() * 1
    ),
    "one output": Trap(build=lambda: nn.Sequential(*net(nn.Tanh()), wide(2, 1)).double()),
    "a tuple of outputs": Trap(build=lambda: Written(lambda own, x: (own.last(own.first(x)),))),  # type: ignore[arg-type,return-value]
    "a dictionary of outputs": Trap(
        build=lambda: Written(lambda own, x: {"logits": own.last(own.first(x))})  # type: ignore[arg-type,return-value]
    ),
    "whole numbers as outputs": Trap(
        build=lambda: Written(lambda own, x: (100 * own.last(own.first(x))).long())
    ),
    "outputs not a number far away": Trap(
        build=lambda: Written(lambda own, x: own.last(own.first(x)) + (x[:, :1] + 6).log() * 0.1)
    ),
    "raises": Trap(build=inside(lambda h: h.reshape(-1, 4))),
    "raises an error of its own": Trap(build=inside(lambda h: cast(Tensor, {}["nothing"]))),
    "raises far away": Trap(build=lambda: Written(refusing)),
}

TRAPS: dict[str, Trap] = {
    **HOOKS, **WRITES, **LAYERS, **COPIES, **OTHER_ROWS, **STATE, **GRADIENTS, **ASKED, **BENDS,
    **PICTURES, **NUMBERS, **CALLS,
}  # fmt: skip
"""All of them, by name."""


def called_from(part: str) -> bool:
    """Whether a file of such a name is among those that are running."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if part in frame.f_code.co_filename:
            return True
    return False


BEYOND: dict[str, Trap] = {
    "honest for a thousand calls": Trap(
        build=lambda: Counting(lambda n: n > 1000, "shared"), refuse=True
    ),
    "a thousand rows by a branch": Trap(build=lambda: either(lambda x: len(x) < 1000), refuse=True),
    "honest when certificates ask": Trap(
        build=lambda: either(lambda x: called_from("certification"))
    ),
}
"""What nobody who can only call a model can tell from an honest one: said, not counted."""
