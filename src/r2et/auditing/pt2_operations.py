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

SIZE = "aten.sym_size.int"
RELU, LEAKY_RELU = "aten.relu.default", "aten.leaky_relu.default"

KNOWN = (
    # Layers, as they are written and as `run_decompositions` writes them.
    """
    linear mm bmm matmul addmm baddbmm conv1d conv1d.padding conv2d conv2d.padding convolution
    batch_norm _native_batch_norm_legit_no_training layer_norm native_layer_norm group_norm
    native_group_norm scaled_dot_product_attention embedding dropout max_pool1d max_pool2d
    max_pool2d_with_indices avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d
    _adaptive_avg_pool2d upsample_nearest2d.vec upsample_bilinear2d.vec pad constant_pad_nd
    """,
    # Activations.
    """
    relu leaky_relu relu6 prelu threshold hardtanh hardsigmoid hardswish elu celu selu gelu silu
    mish glu softplus sigmoid log_sigmoid tanh softmax.int _softmax log_softmax.int _log_softmax
    """,
    # Arithmetic, number by number.
    """
    add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor
    div.Scalar fmod.Scalar addcmul lerp.Scalar pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar neg
    abs sign square sqrt rsqrt reciprocal exp exp2 expm1 log log1p sin cos atan erf clamp
    clamp.Tensor clamp_min clamp_max maximum minimum nan_to_num isnan
    """,
    # Comparisons and choices.
    """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar
    gt.Tensor ge.Scalar ge.Tensor logical_not logical_and logical_or bitwise_not
    bitwise_and.Tensor bitwise_or.Tensor any.dim any.dims where.self where.ScalarSelf
    where.ScalarOther masked_fill.Scalar masked_fill.Tensor
    """,
    # Sums and the like.
    """
    sum sum.dim_IntList mean mean.dim var.dim var.correction std.dim std.correction amax amin
    max.dim min.dim logsumexp linalg_vector_norm cumsum
    """,
    # The same numbers in another shape or order.
    """
    view _unsafe_view reshape flatten.using_ints unflatten.int squeeze squeeze.dim squeeze.dims
    unsqueeze permute transpose.int movedim.int t numpy_T mT expand expand_as repeat cat stack
    chunk split.Tensor split_with_sizes unbind.int slice.Tensor narrow select.int index.Tensor
    index_select flip roll alias detach clone contiguous to.dtype to.dtype_layout _to_copy
    """,
    # Sizes and new numbers.
    """
    sym_size.int zeros ones full arange arange.start arange.start_step scalar_tensor zeros_like
    ones_like full_like new_zeros new_ones new_full
    """,
)
"""Operations of aten with their overloads, the default one where none is named."""


def _overload(name: str) -> tuple[str, torch._ops.OpOverload[..., Any]]:
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return f"aten.{packet}.{overload or 'default'}", found


OPERATIONS: dict[str, torch._ops.OpOverload[..., Any]] = dict(
    _overload(name) for names in KNOWN for name in names.split()
)
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
    sizes = (rows, channels, rows * channels * rest)
    if x.ndim < 2 or sizes != (x.shape[0], x.shape[1], x.numel()) or channels % given["group"]:
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
