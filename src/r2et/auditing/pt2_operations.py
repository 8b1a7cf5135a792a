"""The operations of exported programs that are run, and what each of them may be given.

`OPERATIONS` is the only place where a name in a file gets a meaning. All of them are pure: none
reads a file, writes to what it is given, reinterprets memory or draws at random. What they are
given is held against their schemas in `checked`, and what they make of it is counted before it is
made: see `r2et.auditing.pt2_program`.
"""

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

SIZE = "aten.sym_size.int"
RELU, LEAKY_RELU = "aten.relu.default", "aten.leaky_relu.default"

OPERATIONS: dict[str, torch._ops.OpOverload[..., Any]] = {
    # Layers, as they are written and as `run_decompositions` writes them.
    "aten.linear.default": aten.linear.default,
    "aten.mm.default": aten.mm.default,
    "aten.bmm.default": aten.bmm.default,
    "aten.matmul.default": aten.matmul.default,
    "aten.addmm.default": aten.addmm.default,
    "aten.baddbmm.default": aten.baddbmm.default,
    "aten.conv1d.default": aten.conv1d.default,
    "aten.conv1d.padding": aten.conv1d.padding,
    "aten.conv2d.default": aten.conv2d.default,
    "aten.conv2d.padding": aten.conv2d.padding,
    "aten.convolution.default": aten.convolution.default,
    "aten.batch_norm.default": aten.batch_norm.default,
    "aten._native_batch_norm_legit_no_training.default": (
        aten._native_batch_norm_legit_no_training.default
    ),
    "aten.layer_norm.default": aten.layer_norm.default,
    "aten.native_layer_norm.default": aten.native_layer_norm.default,
    "aten.group_norm.default": aten.group_norm.default,
    "aten.native_group_norm.default": aten.native_group_norm.default,
    "aten.scaled_dot_product_attention.default": aten.scaled_dot_product_attention.default,
    "aten.embedding.default": aten.embedding.default,
    "aten.dropout.default": aten.dropout.default,
    "aten.max_pool1d.default": aten.max_pool1d.default,
    "aten.max_pool2d.default": aten.max_pool2d.default,
    "aten.max_pool2d_with_indices.default": aten.max_pool2d_with_indices.default,
    "aten.avg_pool1d.default": aten.avg_pool1d.default,
    "aten.avg_pool2d.default": aten.avg_pool2d.default,
    "aten.adaptive_avg_pool1d.default": aten.adaptive_avg_pool1d.default,
    "aten.adaptive_avg_pool2d.default": aten.adaptive_avg_pool2d.default,
    "aten._adaptive_avg_pool2d.default": aten._adaptive_avg_pool2d.default,
    "aten.upsample_nearest2d.vec": aten.upsample_nearest2d.vec,
    "aten.upsample_bilinear2d.vec": aten.upsample_bilinear2d.vec,
    "aten.pad.default": aten.pad.default,
    "aten.constant_pad_nd.default": aten.constant_pad_nd.default,
    # Activations.
    RELU: aten.relu.default,
    LEAKY_RELU: aten.leaky_relu.default,
    "aten.relu6.default": aten.relu6.default,
    "aten.prelu.default": aten.prelu.default,
    "aten.threshold.default": aten.threshold.default,
    "aten.hardtanh.default": aten.hardtanh.default,
    "aten.hardsigmoid.default": aten.hardsigmoid.default,
    "aten.hardswish.default": aten.hardswish.default,
    "aten.elu.default": aten.elu.default,
    "aten.celu.default": aten.celu.default,
    "aten.selu.default": aten.selu.default,
    "aten.gelu.default": aten.gelu.default,
    "aten.silu.default": aten.silu.default,
    "aten.mish.default": aten.mish.default,
    "aten.glu.default": aten.glu.default,
    "aten.softplus.default": aten.softplus.default,
    "aten.sigmoid.default": aten.sigmoid.default,
    "aten.log_sigmoid.default": aten.log_sigmoid.default,
    "aten.tanh.default": aten.tanh.default,
    "aten.softmax.int": aten.softmax.int,
    "aten._softmax.default": aten._softmax.default,
    "aten.log_softmax.int": aten.log_softmax.int,
    "aten._log_softmax.default": aten._log_softmax.default,
    # Arithmetic, number by number.
    "aten.add.Tensor": aten.add.Tensor,
    "aten.add.Scalar": aten.add.Scalar,
    "aten.sub.Tensor": aten.sub.Tensor,
    "aten.sub.Scalar": aten.sub.Scalar,
    "aten.rsub.Scalar": aten.rsub.Scalar,
    "aten.mul.Tensor": aten.mul.Tensor,
    "aten.mul.Scalar": aten.mul.Scalar,
    "aten.div.Tensor": aten.div.Tensor,
    "aten.div.Scalar": aten.div.Scalar,
    "aten.fmod.Scalar": aten.fmod.Scalar,
    "aten.addcmul.default": aten.addcmul.default,
    "aten.lerp.Scalar": aten.lerp.Scalar,
    "aten.pow.Tensor_Scalar": aten.pow.Tensor_Scalar,
    "aten.pow.Tensor_Tensor": aten.pow.Tensor_Tensor,
    "aten.pow.Scalar": aten.pow.Scalar,
    "aten.neg.default": aten.neg.default,
    "aten.abs.default": aten.abs.default,
    "aten.sign.default": aten.sign.default,
    "aten.square.default": aten.square.default,
    "aten.sqrt.default": aten.sqrt.default,
    "aten.rsqrt.default": aten.rsqrt.default,
    "aten.reciprocal.default": aten.reciprocal.default,
    "aten.exp.default": aten.exp.default,
    "aten.exp2.default": aten.exp2.default,
    "aten.expm1.default": aten.expm1.default,
    "aten.log.default": aten.log.default,
    "aten.log1p.default": aten.log1p.default,
    "aten.sin.default": aten.sin.default,
    "aten.cos.default": aten.cos.default,
    "aten.atan.default": aten.atan.default,
    "aten.erf.default": aten.erf.default,
    "aten.clamp.default": aten.clamp.default,
    "aten.clamp.Tensor": aten.clamp.Tensor,
    "aten.clamp_min.default": aten.clamp_min.default,
    "aten.clamp_max.default": aten.clamp_max.default,
    "aten.maximum.default": aten.maximum.default,
    "aten.minimum.default": aten.minimum.default,
    "aten.nan_to_num.default": aten.nan_to_num.default,
    "aten.isnan.default": aten.isnan.default,
    # Comparisons and choices.
    "aten.eq.Scalar": aten.eq.Scalar,
    "aten.eq.Tensor": aten.eq.Tensor,
    "aten.ne.Scalar": aten.ne.Scalar,
    "aten.ne.Tensor": aten.ne.Tensor,
    "aten.lt.Scalar": aten.lt.Scalar,
    "aten.lt.Tensor": aten.lt.Tensor,
    "aten.le.Scalar": aten.le.Scalar,
    "aten.le.Tensor": aten.le.Tensor,
    "aten.gt.Scalar": aten.gt.Scalar,
    "aten.gt.Tensor": aten.gt.Tensor,
    "aten.ge.Scalar": aten.ge.Scalar,
    "aten.ge.Tensor": aten.ge.Tensor,
    "aten.logical_not.default": aten.logical_not.default,
    "aten.logical_and.default": aten.logical_and.default,
    "aten.logical_or.default": aten.logical_or.default,
    "aten.bitwise_not.default": aten.bitwise_not.default,
    "aten.bitwise_and.Tensor": aten.bitwise_and.Tensor,
    "aten.bitwise_or.Tensor": aten.bitwise_or.Tensor,
    "aten.any.dim": aten.any.dim,
    "aten.any.dims": aten.any.dims,
    "aten.where.self": aten.where.self,
    "aten.where.ScalarSelf": aten.where.ScalarSelf,
    "aten.where.ScalarOther": aten.where.ScalarOther,
    "aten.masked_fill.Scalar": aten.masked_fill.Scalar,
    "aten.masked_fill.Tensor": aten.masked_fill.Tensor,
    # Sums and the like.
    "aten.sum.default": aten.sum.default,
    "aten.sum.dim_IntList": aten.sum.dim_IntList,
    "aten.mean.default": aten.mean.default,
    "aten.mean.dim": aten.mean.dim,
    "aten.var.dim": aten.var.dim,
    "aten.var.correction": aten.var.correction,
    "aten.std.dim": aten.std.dim,
    "aten.std.correction": aten.std.correction,
    "aten.amax.default": aten.amax.default,
    "aten.amin.default": aten.amin.default,
    "aten.max.dim": aten.max.dim,
    "aten.min.dim": aten.min.dim,
    "aten.logsumexp.default": aten.logsumexp.default,
    "aten.linalg_vector_norm.default": aten.linalg_vector_norm.default,
    "aten.cumsum.default": aten.cumsum.default,
    # The same numbers in another shape or order.
    "aten.view.default": aten.view.default,
    "aten._unsafe_view.default": aten._unsafe_view.default,
    "aten.reshape.default": aten.reshape.default,
    "aten.flatten.using_ints": aten.flatten.using_ints,
    "aten.unflatten.int": aten.unflatten.int,
    "aten.squeeze.default": aten.squeeze.default,
    "aten.squeeze.dim": aten.squeeze.dim,
    "aten.squeeze.dims": aten.squeeze.dims,
    "aten.unsqueeze.default": aten.unsqueeze.default,
    "aten.permute.default": aten.permute.default,
    "aten.transpose.int": aten.transpose.int,
    "aten.movedim.int": aten.movedim.int,
    "aten.t.default": aten.t.default,
    "aten.numpy_T.default": aten.numpy_T.default,
    "aten.mT.default": aten.mT.default,
    "aten.expand.default": aten.expand.default,
    "aten.expand_as.default": aten.expand_as.default,
    "aten.repeat.default": aten.repeat.default,
    "aten.cat.default": aten.cat.default,
    "aten.stack.default": aten.stack.default,
    "aten.chunk.default": aten.chunk.default,
    "aten.split.Tensor": aten.split.Tensor,
    "aten.split_with_sizes.default": aten.split_with_sizes.default,
    "aten.unbind.int": aten.unbind.int,
    "aten.slice.Tensor": aten.slice.Tensor,
    "aten.narrow.default": aten.narrow.default,
    "aten.select.int": aten.select.int,
    "aten.index.Tensor": aten.index.Tensor,
    "aten.index_select.default": aten.index_select.default,
    "aten.flip.default": aten.flip.default,
    "aten.roll.default": aten.roll.default,
    "aten.alias.default": aten.alias.default,
    "aten.detach.default": aten.detach.default,
    "aten.clone.default": aten.clone.default,
    "aten.contiguous.default": aten.contiguous.default,
    "aten.to.dtype": aten.to.dtype,
    "aten.to.dtype_layout": aten.to.dtype_layout,
    "aten._to_copy.default": aten._to_copy.default,
    # Sizes and new numbers.
    SIZE: aten.sym_size.int,
    "aten.zeros.default": aten.zeros.default,
    "aten.ones.default": aten.ones.default,
    "aten.full.default": aten.full.default,
    "aten.arange.default": aten.arange.default,
    "aten.arange.start": aten.arange.start,
    "aten.arange.start_step": aten.arange.start_step,
    "aten.scalar_tensor.default": aten.scalar_tensor.default,
    "aten.zeros_like.default": aten.zeros_like.default,
    "aten.ones_like.default": aten.ones_like.default,
    "aten.full_like.default": aten.full_like.default,
    "aten.new_zeros.default": aten.new_zeros.default,
    "aten.new_ones.default": aten.new_ones.default,
    "aten.new_full.default": aten.new_full.default,
}
"""What each name of an operation means: all there is."""

ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "_operator.add": operator.add,
    "_operator.sub": operator.sub,
    "_operator.mul": operator.mul,
    "_operator.floordiv": operator.floordiv,
}
"""What is done with sizes, which are whole numbers."""

MAKERS = frozenset(
    f"aten.{each}"
    for each in (
        *("zeros.default", "ones.default", "full.default", "scalar_tensor.default"),
        *("arange.default", "arange.start", "arange.start_step"),
    )
)
"""Those that take no tensor, and need to be told where to put their numbers."""

ONLY: dict[str, dict[str, Any]] = {
    "aten.batch_norm.default": {"training": False},
    "aten.dropout.default": {"train": False},
    "aten.scaled_dot_product_attention.default": {"dropout_p": 0.0, "enable_gqa": False},
    "aten.convolution.default": {"transposed": False},
    "aten.embedding.default": {"sparse": False, "scale_grad_by_freq": False},
    "aten._softmax.default": {"half_to_float": False},
    "aten._log_softmax.default": {"half_to_float": False},
}
"""Arguments that may have this value alone: another one changes state or draws at random."""

TRAINING = ("training", "train", "dropout_p")

DROPPED = ("device", "layout", "pin_memory", "non_blocking")
"""Arguments that say where numbers lie, which the input decides."""

WORDS = ("none", "tanh", "constant", "reflect", "replicate", "circular", "valid", "same")
"""Texts that an operation may be given, for GELU and padding: never the name of a file."""

LONGEST = 2**12
"""Entries of a list, tensors of a split, and the size of a dimension that is split."""

DIMENSIONS = 16
"""Of a tensor."""

WIDE = 2**16
SIZES = ("size", "sizes", "repeats")
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("kernel_size", "stride", "dilation", "groups"), (1, WIDE)),
    **dict.fromkeys(("num_groups", "group", "chunks", "split_size"), (1, WIDE)),
    **dict.fromkeys(("padding", "output_padding", "output_size"), (0, WIDE)),
    **dict.fromkeys(("start", "end"), (-(2**63), 2**63 - 1)),
    "pad": (-WIDE, WIDE),
    "step": (1, 2**31),
    "repeats": (0, 2**31),
    "divisor_override": (1, 2**31),
    "scale_factors": (2**-10, 2**10),
}
"""Of whole numbers and of lists of numbers, by the name of the argument."""
USUAL = (-(2**31), 2**31)


def bound(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an operation is given, in its own order: refused if it does not take just that."""
    taken = OPERATIONS[name]._schema.arguments
    if strange := set(given) - {each.name for each in taken}:
        raise ValueError(f"{name} takes no argument {shown(sorted(strange)[0])}")
    for each in taken:
        if each.name not in given and not each.has_default_value():
            raise ValueError(f"{name} needs its argument {each.name!r}")
    return {
        each.name: given[each.name]
        for each in taken
        if each.name in given and each.name not in DROPPED
    }


def called(name: str, given: Mapping[str, Any], like: Tensor) -> Any:
    """What an operation returns; new numbers lie where `like` does."""
    if name in ARITHMETIC:
        return ARITHMETIC[name](given["a"], given["b"])
    if name == SIZE:
        return given["self"].size(given["dim"])  # a plain number, whoever is recording
    rest = dict(given)
    first = [rest.pop(each) for each in takewhile(given.__contains__, _by_place(name))]
    if name in MAKERS:
        rest["device"] = like.device
    return OPERATIONS[name](*first, **rest)


@cache
def _by_place(name: str) -> tuple[str, ...]:
    """The arguments that may be given without their names."""
    return tuple(each.name for each in OPERATIONS[name]._schema.arguments if not each.kwarg_only)


@cache
def is_several(name: str) -> bool:
    """Whether an operation returns a sequence of results."""
    returned = [] if name in ARITHMETIC else OPERATIONS[name]._schema.returns
    return len(returned) > 1 or any(str(each.type).startswith("List") for each in returned)


def checked(name: str, given: Mapping[str, Any]) -> None:
    """Refuse what an operation's schema, or sense, does not allow it to be given."""
    if name in ARITHMETIC:
        _check_arithmetic(name, given)
        return
    for each in OPERATIONS[name]._schema.arguments:
        if each.name in given:
            _check_argument(name, each, given[each.name], binary="other" in given)
    for argument, value in ONLY.get(name, {}).items():
        if given.get(argument, value) != value:
            raise ValueError(
                f"{name} has {argument}={given[argument]}, and is run with {argument}={value} only"
                f"{' (call eval() before exporting)' if argument in TRAINING else ''}"
            )
    if name in FITTING and (problem := FITTING[name](given)):
        raise ValueError(f"{name} is given {problem}")


def _check_arithmetic(name: str, given: Mapping[str, Any]) -> None:
    a, b = given["a"], given["b"]
    if not (_is_int(a) and _is_int(b) and max(abs(a), abs(b)) < 2**31):
        raise ValueError(f"{name} is given {a!r} and {b!r}, no sizes")
    if name == "_operator.floordiv" and b == 0:
        raise ValueError(f"{name} divides a size by 0")


def _check_argument(name: str, argument: Any, value: Any, *, binary: bool) -> None:
    kind = str(argument.real_type)
    if binary and kind == "Tensor" and type(value) in (int, float):
        kind = "number"  # as x + 1 and 1 - x are written
    whole = value if isinstance(value, list) else [value]
    if not _fits(kind, value) or (
        (argument.N or 1) > 1
        and isinstance(value, list)
        and len(value) not in (1, argument.N)
        and value != argument.default_value
    ):
        raise ValueError(f"{name} takes {argument.name} of the type {kind}, not {shown(value)}")
    if "int" in kind or kind == "Optional[List[float]]":
        low, high = RANGES.get(argument.name, USUAL)
        if any(type(each) in (int, float) and not low <= each <= high for each in whole):
            raise ValueError(
                f"{name} takes {argument.name} between {low} and {high}, not {shown(value)}"
            )
    # Larger ones would overflow before they could be counted.
    if argument.name in SIZES and math.prod(max(1, each) for each in whole) > 2**40:
        raise ValueError(f"{name} would make a tensor of the sizes {shown(value)}")


def _fits(kind: str, value: Any) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(kind[len("Optional[") : -1], value)
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        few = isinstance(value, list) and len(value) <= LONGEST
        return few and all(_fits(inner, each) for each in value)
    return kind in KINDS and KINDS[kind](value)


def _is_int(value: Any) -> bool:
    return type(value) is int  # True is none


def _is_number(value: Any) -> bool:
    """Whether an operation may calculate with it; attention masks are written with infinity."""
    if type(value) is float:
        return not math.isnan(value)
    return type(value) is bool or (type(value) is int and -(2**63) <= value < 2**63)


KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda value: isinstance(value, Tensor),
    "int": _is_int,
    "bool": lambda value: type(value) is bool,
    "float": lambda value: (
        type(value) in (int, float) and _is_number(value) and math.isfinite(value)
    ),
    "number": _is_number,
    "str": lambda value: value in WORDS,
    "ScalarType": lambda value: isinstance(value, torch.dtype),
    "MemoryFormat": lambda value: isinstance(value, torch.memory_format),
}
"""What an argument may be, by its type in a schema."""


def shown(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# What schemas leave out. Some kernels trust the following to fit, and read past the end otherwise.


def _statistics(given: Mapping[str, Any]) -> str:
    x = given["input"]
    names = ("weight", "bias", "running_mean", "running_var")
    parts = [given[each] for each in names if given.get(each) is not None]
    if x.ndim < 2 or any(tuple(each.shape) != (x.shape[1],) for each in parts):
        return f"statistics of other sizes than the channels of {shown(x)}"
    if any(given.get(each) is None for each in ("running_mean", "running_var")):
        return "no running statistics, so that rows would depend on one another"
    return ""


def _channel_groups(given: Mapping[str, Any]) -> str:
    x, rows, channels, rest = (given[each] for each in ("input", "N", "C", "HxW"))
    parts = [given[each] for each in ("weight", "bias") if given.get(each) is not None]
    told = (rows, channels, rows * channels * rest)
    if x.ndim < 2 or told != (x.shape[0], x.shape[1], x.numel()) or channels % given["group"]:
        return f"N, C and HxW of {rows}, {channels} and {rest} for {shown(x)}"
    if any(tuple(each.shape) != (channels,) for each in parts):
        return f"weights of other sizes than the channels of {shown(x)}"
    return ""


def _attention(given: Mapping[str, Any]) -> str:
    query, key, value = (given[each] for each in ("query", "key", "value"))
    mask = given.get("attn_mask")
    heads = query.shape[:-2]
    if (
        query.ndim not in (3, 4)
        or not key.ndim == value.ndim == query.ndim
        or not key.shape[:-2] == value.shape[:-2] == heads
        or key.shape[-1] != query.shape[-1]
        or key.shape[-2] != value.shape[-2]
    ):
        return f"keys or values that do not fit a query of shape {tuple(query.shape)}"
    if mask is None:
        return ""
    full = (*heads, query.shape[-2], key.shape[-2])
    fits = 2 <= mask.ndim <= len(full) and all(
        have in (1, want) for have, want in zip(reversed(mask.shape), reversed(full), strict=False)
    )
    return "" if fits else f"{shown(mask)} as a mask of {full}"


def _parts(given: Mapping[str, Any]) -> str:
    x, dim = given["self"], given.get("dim", 0)
    if x.ndim and -x.ndim <= dim < x.ndim and x.shape[dim] <= LONGEST:
        return ""
    return f"{shown(x)} to take apart along {dim}"


FITTING: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "aten.batch_norm.default": _statistics,
    "aten._native_batch_norm_legit_no_training.default": _statistics,
    "aten.native_group_norm.default": _channel_groups,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.chunk.default": _parts,
    "aten.split.Tensor": _parts,
    "aten.split_with_sizes.default": _parts,
    "aten.unbind.int": _parts,
}
"""What is wrong with what an operation is given beyond its schema, empty if nothing."""


# Numbers that an operation makes on its way, of which its result tells nothing.


def _columns(given: Mapping[str, Any], result: Tensor) -> int:
    weight = given["weight"]
    outputs = max(1, weight.shape[0])
    places, patch = result.numel() // outputs, weight.numel() // outputs
    return int(places * patch * given.get("groups", 1))


def _repeated(given: Mapping[str, Any], result: Tensor) -> int:
    a, b = given["self"], given["other"]
    if a.ndim < 2 or b.ndim < 2:
        return int(a.numel() + b.numel())
    matrices = math.prod(a.shape[-2:]) + math.prod(b.shape[-2:])
    return int(math.prod(result.shape[:-2]) * matrices)


def _scores(given: Mapping[str, Any], result: Tensor) -> int:
    return int(math.prod(given["query"].shape[:-1]) * given["key"].shape[-2])


HIDDEN: dict[str, Callable[[Mapping[str, Any], Tensor], int]] = {
    **dict.fromkeys(("aten.conv1d.default", "aten.conv1d.padding"), _columns),
    **dict.fromkeys(("aten.conv2d.default", "aten.conv2d.padding"), _columns),
    "aten.convolution.default": _columns,
    "aten.matmul.default": _repeated,
    "aten.scaled_dot_product_attention.default": _scores,
}
