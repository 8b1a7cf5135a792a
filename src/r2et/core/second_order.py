"""Layers that cost less to differentiate twice: torch's own numbers, by fewer operations."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
Size = tuple[int, ...]
PLAIN = frozenset((Tensor, nn.Parameter))
# What a network keeps for its slopes may be somebody else's to keep: checkpoints compute it again,
# later and by torch's own layers, and must find the same.
kept_elsewhere: Callable[[bool], object] | None = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", None
)
# Transforms of functions, vmap among them, and what is being compiled see torch's own layers.
transformed: Callable[[], bool] | None = getattr(torch._C, "_are_functorch_transforms_active", None)


_by_torch = ContextVar("_by_torch", default=False)


@contextmanager
def torch_layers() -> Iterator[None]:
    """A context in which layers stay torch's own, whose slopes are zeros where there is none."""
    token = _by_torch.set(True)
    try:
        yield
    finally:
        _by_torch.reset(token)


def differentiated_twice() -> AbstractContextManager[object]:
    """A context in which networks are passed whose slopes are going to be differentiated.

    The layers of `KNOWN` are then computed so that nothing known to be zero travels backwards and
    each product is one of torch's fast kernels; all other operations stay torch's own. Derivatives
    of every order are right. Where the caller does not record, nothing changes.
    """
    if kept_elsewhere is None or transformed is None:
        return nullcontext()
    if _by_torch.get() or not torch.is_grad_enabled():
        return nullcontext()
    return _Twice(kept_elsewhere, transformed)


class _Twice(TorchFunctionMode):
    """Calls of known layers answered by what stands for them, all others by torch."""

    def __init__(
        self, kept_elsewhere: Callable[[bool], object], transformed: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.kept_elsewhere, self.transformed = kept_elsewhere, transformed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What the function says, of tensors as torch makes them and without lower precision."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        stand_in, found = KNOWN.get(func), None
        if stand_in and torch.is_grad_enabled() and not self._is_apart():
            found = stand_in(*args, **kwargs) if PLAIN.issuperset(types) else None
        return func(*args, **kwargs) if found is None else found

    def _is_apart(self) -> bool:
        """Whether somebody else decides how layers are passed just now."""
        return self.transformed() or bool(self.kept_elsewhere(True))


def _differentiable(*tensors: object) -> bool:
    """Whether all are tensors of one real type, some with a graph, outside of autocast."""
    given = [each for each in tensors if isinstance(each, Tensor)]
    return (
        len(given) == len(tensors)
        and any(each.requires_grad for each in given)
        and len({each.dtype for each in given}) == 1
        and given[0].is_floating_point()
        and not torch.is_autocast_enabled(given[0].device.type)
    )


def _applied(function: Any, *given: Any) -> Tensor:
    found: Tensor = function.apply(*given)
    return found


# --- kinks: torch's own slope of a slope sends zeros to where the kink is ---


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = torch.relu(x)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        back: Tensor = aten.threshold_backward(flow, found.detach(), 0)
        return back


class _LeakyRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, below: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.below = below
        return F.leaky_relu(x, below)

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return aten.leaky_relu_backward(flow, x.detach(), ctx.below, False), None


def _relu(input: Tensor, inplace: bool = False) -> Tensor | None:
    return None if inplace or not _differentiable(input) else _applied(_Relu, input)


def _leaky_relu(
    input: Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> Tensor | None:
    if inplace or not _differentiable(input):
        return None
    return _applied(_LeakyRelu, input, negative_slope)


# --- convolutions: the slope by the input is one, too, transposed, and has fast slopes itself ---


class _Convolution(NamedTuple):
    """A convolution of x by its weights, with their graphs.

    No tensors that a function of torch is given, so that none is a way to them but as it says.
    """

    x: Tensor
    weight: Tensor
    sides: tuple[Size, Size, Size]
    groups: int

    def value(self, bias: Tensor | None) -> Tensor:
        """What it makes of x."""
        found: Tensor = aten.convolution(
            self.x, self.weight, bias, *self.sides, False, self._none(), self.groups
        )
        return found

    def by_x(self, flow: Tensor) -> Tensor:
        """The slope by x of its value weighed by `flow`, both differentiable: like x."""
        shapes = (each.shape[2:] for each in (self.x, flow, self.weight))
        rest = [
            size - (steps - 1) * stride + 2 * padding - dilation * (width - 1) - 1
            for size, steps, width, stride, padding, dilation in zip(
                *shapes, *self.sides, strict=True
            )
        ]
        found: Tensor = aten.convolution(
            flow, self.weight, None, *self.sides, True, rest, self.groups
        )
        return found

    def by_weight(self, flow: Tensor) -> Tensor:
        """The slope by the weights of its value weighed by `flow`: like them."""
        only = False, True, False
        found: tuple[Tensor, ...] = aten.convolution_backward(
            flow, self.x, self.weight, None, *self.sides, False, self._none(), self.groups, only
        )
        return found[1]

    def _none(self) -> Size:
        return (0,) * len(self.sides[0])


class _Share(torch.autograd.Function):
    """Zeros that pass the flow through a convolution on to its weights, where that is asked for.

    Torch does not tell a function of several tensors which of their slopes are asked for, but
    passes a node of its own for one of them only if it is.
    """

    @staticmethod
    def forward(
        ctx: Any, layer: _Convolution, shape: Size, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        _keep(ctx, layer)
        return weight.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> tuple[Tensor | None, ...]:
        by_weight = _kept(ctx).by_weight(flow) if ctx.needs_input_grad[2] else None
        by_bias = flow.sum((0, *range(2, flow.ndim))) if ctx.needs_input_grad[3] else None
        return None, None, by_weight, by_bias


class _Convolved(torch.autograd.Function):
    """The value of a convolution, known already, whose flow passes on to x and to a share."""

    @staticmethod
    def forward(
        ctx: Any, layer: _Convolution, known: list[Tensor], x: Tensor, share: Tensor
    ) -> Tensor:
        _keep(ctx, layer)
        return known.pop()

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> tuple[Any, ...]:
        return None, None, _kept(ctx).by_x(flow) if ctx.needs_input_grad[2] else None, flow


def _keep(ctx: Any, layer: _Convolution) -> None:
    ctx.save_for_backward(layer.x, layer.weight)
    ctx.rest = layer.sides, layer.groups


def _kept(ctx: Any) -> _Convolution:
    return _Convolution(*ctx.saved_tensors, *ctx.rest)


def _conv(
    places: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Size = 1,
    padding: int | Size | str = 0,
    dilation: int | Size = 1,
    groups: int = 1,
) -> Tensor | None:
    if isinstance(padding, str) or not _differentiable(input, weight, *_given(bias)):
        return None
    if not input.ndim == weight.ndim == places + 2:
        return None

    def each(size: int | Size) -> Size:
        sizes = (size,) if isinstance(size, int) else tuple(size)
        return sizes * places if len(sizes) == 1 else sizes

    layer = _Convolution(input, weight, (each(stride), each(padding), each(dilation)), groups)
    with torch.no_grad():
        value = layer.value(bias)
    share = _applied(_Share, layer, value.shape, weight, bias)
    return _applied(_Convolved, layer, [value], input, share)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [each for each in tensors if each is not None]


# --- normalisation by statistics that are known: a multiple and a shift of each channel ---


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if training or running_mean is None or running_var is None:
        return None
    if input.ndim < 2 or not input.shape[1] == len(running_mean) == len(running_var):
        return None  # torch's to refuse
    if not _differentiable(input, running_mean, running_var, *_given(weight, bias)):
        return None
    scale = (running_var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale
    shift = shift if bias is None else shift + bias
    by_channel = (-1, *(1,) * (input.ndim - 2))
    return torch.addcmul(shift.view(by_channel), input, scale.view(by_channel))


# --- GELU and attention: their slopes are kept, and what bends them takes few operations ---


class _GeluSlope(torch.autograd.Function):
    """With the density f of standard normal numbers and their distribution function F: F + x f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        slope: Tensor = aten.gelu_backward(x.new_ones(()).expand_as(x), x)
        return slope

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> Tensor:
        # (x F)'' = (2 - x^2) f.
        (x,) = ctx.saved_tensors
        density = torch.addcmul(x.new_tensor(-math.log(2 * math.pi) / 2), x, x, value=-0.5).exp_()
        return torch.addcmul(x.new_tensor(2.0), x, x, value=-1).mul_(density).mul_(flow)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: list[Tensor]) -> Tensor:
        ctx.save_for_backward(*slope)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> tuple[Tensor, None]:
        return flow * ctx.saved_tensors[0], None


def _gelu(input: Tensor, approximate: str = "none") -> Tensor | None:
    if approximate != "none" or not _differentiable(input):
        return None
    return _applied(_Gelu, input, [_applied(_GeluSlope, input)])


class _AttentionSlopes(torch.autograd.Function):
    """Slopes by q, k and v of softmax(q k') v weighed by a flow, its shares p being known.

    With s the slopes by the scores q k' and `moved` how far a move of q, k and v moves a score
    above the mean of its row: shares move by p moved, and s by s moved + p (flow dv'), less what
    keeps the sum of each row of s at 0.
    """

    @staticmethod
    def forward(
        ctx: Any, shares: list[Tensor], q: Tensor, k: Tensor, v: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (p,) = shares
        s = _softmax_slope(flow @ v.mT, p)
        ctx.save_for_backward(p, s, q, k, v, flow)
        return s @ k, s.mT @ q, p.mT @ flow

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        p, s, q, k, v, flow = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Asked for once more: shares and slopes again, by operations that are recorded.
            p = (q @ k.mT).softmax(-1)
            s = _softmax_slope(flow @ v.mT, p)
        # In place: these are the largest tensors of a network, and a fresh one costs most.
        moved = _plus(dq @ k.mT, q, dk.mT)
        moved = _own(moved).sub_((p * moved).sum(-1, keepdim=True))
        p_moved = p * moved
        s_moved = _own(moved).mul_(s).addcmul_(p, flow @ dv.mT)
        s_moved = s_moved.addcmul_(p, s_moved.sum(-1, keepdim=True), value=-1)
        by_q, by_k = _plus(s_moved @ k, s, dk), _plus(s_moved.mT @ q, s.mT, dq)
        return None, by_q, by_k, p_moved.mT @ flow, _plus(p_moved @ v, p, dv)


def _softmax_slope(flow: Tensor, shares: Tensor) -> Tensor:
    slope: Tensor = aten._softmax_backward_data(flow, shares, -1, shares.dtype)
    return slope


def _plus(known: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """What is known, of nobody else, and left @ right added to it, of matrices (..., a, b)."""
    into = known.flatten(0, -3)
    into.baddbmm_(left.flatten(0, -3), right.flatten(0, -3))
    return into.view_as(known)


def _own(values: Tensor) -> Tensor:
    """The values to write into: themselves, or a copy while others are recorded to need them."""
    return values.clone() if torch.is_grad_enabled() else values


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shares = (q @ k.mT).softmax(-1)
        ctx.save_for_backward(shares, q, k, v)
        return shares @ v

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> Any:
        shares, *qkv = ctx.saved_tensors
        slopes: Any = _AttentionSlopes
        return slopes.apply([shares], *qkv, flow)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        return None
    if not _differentiable(query, key, value):
        return None
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if query.ndim < 3 or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return (query * scale @ key.transpose(-2, -1)).softmax(-1) @ value
    return _applied(_Attention, query * scale, key, value)


def _multi_head(*args: Any, **kwargs: Any) -> tuple[Tensor, None] | None:
    """Attention of tokens, (t, B, d), among themselves by weights held together, none left out."""
    given = MULTI_HEAD.bind(*args, **kwargs)
    given.apply_defaults()
    call = given.arguments
    x, heads = call["query"], call["num_heads"]
    weights = [call[name] for name in ("in_proj_weight", "out_proj_weight")]
    if any(call[name] for name in UNKNOWN):
        return None
    if any(call[name] is not None for name in LEFT_OUT) or (call["training"] and call["dropout_p"]):
        return None
    if x.ndim != 3 or not x is call["key"] is call["value"] or not _differentiable(x, *weights):
        return None
    tokens, batch, width = x.shape
    parts = F.linear(x, call["in_proj_weight"], call["in_proj_bias"])
    parts = parts.view(tokens, batch, 3, heads, width // heads).permute(2, 1, 3, 0, 4)
    query, key, value = parts.contiguous().unbind()
    seen = _attention(query, key, value)
    assert seen is not None
    joined = seen.permute(2, 0, 1, 3).reshape(tokens, batch, width)
    return F.linear(joined, call["out_proj_weight"], call["out_proj_bias"]), None


MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
UNKNOWN = ("need_weights", "use_separate_proj_weight", "add_zero_attn", "is_causal")
LEFT_OUT = ("key_padding_mask", "attn_mask", "bias_k", "bias_v", "static_k", "static_v")

KNOWN: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), _relu),
    F.leaky_relu: _leaky_relu,
    F.conv1d: partial(_conv, 1),
    F.conv2d: partial(_conv, 2),
    F.conv3d: partial(_conv, 3),
    F.batch_norm: _batch_norm,
    F.gelu: _gelu,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
}
"""What stands for a function of torch, called as it is; it gives None where it does not."""
