"""What is done with affine forms for each operation of torch: the one place that gives it meaning.

A rule is looked up by the exact overload and is given all arguments of a call by name, those that
were left out by their defaults. What a rule does not know of, it refuses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.weak import WeakTensorKeyDictionary

from r2et.certification import activations
from r2et.certification.activations import Activation
from r2et.certification.affine import (
    TINY,
    UNCHANGED,
    AffineForm,
    LinearMap,
    Region,
    mapped,
    positive,
    rearranged,
    scaled,
)
from r2et.certification.operators import convolution_norm, matrix_norm
from r2et.certification.program import Node, Program, Rows, filled, value_of
from r2et.certification.propagate import BoundPropagator, Step, Value, backwards
from r2et.certification.pullback import Relation, RelationStep

Rule = Callable[..., Any]

aten = torch.ops.aten

APART = "a certificate is of one example at a time, but examples are mixed or moved"


def propagate(
    program: Program, region: Region, most: int, pulled: bool = False
) -> tuple[BoundPropagator, Value]:
    """The passage of a region through a program, and the logits."""
    propagator = BoundPropagator.within(region, most, pulled)
    known: dict[int, Any] = dict(program.fixed)
    x = propagator.input()
    for number, node in enumerate(program.nodes):
        if number not in known:
            known[number] = _bounded(propagator, node, filled(node, known, x))
    logits = value_of(program.logits, known, x)
    return propagator, logits if isinstance(logits, Value) else propagator.constant(logits[0])


def _bounded(propagator: BoundPropagator, node: Node, given: dict[str, Any]) -> Any:
    where = f" ({node.where})" if node.where else ""
    if node.operation not in OPERATIONS:
        raise ValueError(
            f"no bound is known for {node.operation}{where}: certificates are for networks of "
            "linear layers, convolutions, pooling, batch normalisation at prediction time, sums, "
            "products and the activations ReLU, LeakyReLU, Softplus, Sigmoid, Tanh, SiLU and GELU."
        )
    try:
        return OPERATIONS[node.operation](propagator, **given)
    except _Refusal as why:
        raise ValueError(f"no bound is known for {node.operation}{where}: {why}.") from None


class _Refusal(Exception):
    """Why a rule does not hold for a call, as the end of a sentence."""


def _check(holds: bool, why: str) -> None:
    if not holds:
        raise _Refusal(why)


def _number(given: Any, what: str) -> float:
    """A finite number of the program's text."""
    _check(
        type(given) in (int, float) and math.isfinite(given),
        f"{what} must be a number that does not depend on how many rows there are",
    )
    return float(given)


def _dims(given: Any, value: Value) -> list[int]:
    """Dimensions of one example, those of the rows excluded, counted from 1."""
    _check(not value.folded, f"{APART}: their dimension was made one with another")
    found = [each % value.dims for each in ([given] if isinstance(given, int) else given)]
    _check(0 not in found and len(found) > 0, APART)
    return found


def _fixed(given: Any, like: Value, what: str = "the other factor") -> Tensor:
    """A tensor or number that does not depend on the input, and fits behind the rows."""
    if not isinstance(given, Tensor):
        given = torch.tensor(_number(given, what), dtype=torch.float64)
    _check(given.dtype != torch.bool and not given.is_complex(), f"{what} must be of real numbers")
    found: Tensor = given.double()
    below = found.ndim < like.dims or (found.ndim == like.dims and found.shape[0] == 1)
    _check(below, APART)
    return found


# --- linear maps ---


def _times(factor: Tensor) -> LinearMap:
    size = factor.abs()
    square = size * size
    back = LinearMap(
        apply=lambda t: t * factor,
        absolute=lambda t: t * size,
        squared=lambda t: t * square,
        terms=1,
        norm=lambda: (1 + 1e-15) * float(size.max()),
    )
    return replace(back, back=back)


def _spread(propagator: BoundPropagator, value: Value, shape: tuple[int, ...]) -> Value:
    """The value in a shape that it is broadcast to."""
    if value.shape == shape:
        return value
    missing = len(shape) - len(value.shape)
    _check(missing == 0, APART)
    found = propagator.linear(value, positive(lambda t: t.expand(len(t), *shape)))
    return _folded_as(found, value)


def _folded_as(value: Value, before: Value) -> Value:
    if value.folded == before.folded:
        return value
    return replace(value, folded=before.folded)


def _together(one: Value, other: Any) -> tuple[int, ...]:
    """The shape of one example where a value meets another or a fixed tensor."""
    theirs = (
        other.shape
        if isinstance(other, Value)
        else other.shape[max(0, other.ndim - one.dims + 1) :]
    )
    if isinstance(other, Value):
        _check(one.dims == other.dims and one.folded == other.folded, APART)
    return tuple(torch.broadcast_shapes(one.shape, theirs))


def _linear(
    propagator: BoundPropagator, value: Value, by: LinearMap, offset: Tensor | None = None
) -> Value:
    return _folded_as(propagator.linear(value, by, offset), value)


def _add(propagator: BoundPropagator, self: Any, other: Any, alpha: Any = 1) -> Value:
    weight = _number(alpha, "alpha")
    if isinstance(self, Value) and isinstance(other, Value):
        shape = _together(self, other)
        ours, theirs = (_spread(propagator, each, shape) for each in (self, other))
        by = _times(torch.tensor(weight, dtype=torch.float64)) if weight != 1 else UNCHANGED
        return _folded_as(propagator.sum([(ours, UNCHANGED), (theirs, by)]), self)
    if isinstance(self, Value):
        fixed = weight * _fixed(other, self, "what is added")
        return _shifted(propagator, self, fixed)
    return _shifted(
        propagator, _scaled(propagator, other, weight), _fixed(self, other, "what is added")
    )


def _shifted(propagator: BoundPropagator, value: Value, offset: Tensor) -> Value:
    shape = _together(value, offset)
    return _linear(
        propagator, _spread(propagator, value, shape), UNCHANGED, offset.expand(1, *shape)[0]
    )


def _scaled(propagator: BoundPropagator, value: Value, factor: float) -> Value:
    if factor == 1:
        return value
    return _linear(propagator, value, _times(torch.tensor(factor, dtype=torch.float64)))


def _subtract(propagator: BoundPropagator, self: Any, other: Any, alpha: Any = 1) -> Value:
    return _add(propagator, self, other, -_number(alpha, "alpha"))


def _reversed_subtract(propagator: BoundPropagator, self: Any, other: Any, alpha: Any = 1) -> Value:
    return _add(propagator, other, self, -_number(alpha, "alpha"))


def _multiply(propagator: BoundPropagator, self: Any, other: Any) -> Value:
    if isinstance(self, Value) and isinstance(other, Value):
        shape = _together(self, other)
        found = propagator.times(
            _spread(propagator, self, shape), _spread(propagator, other, shape)
        )
        return _folded_as(found, self)
    value, given = (self, other) if isinstance(self, Value) else (other, self)
    factor = _fixed(given, value)
    spread = _spread(propagator, value, _together(value, factor))
    return _linear(propagator, spread, _times(factor))


def _divide(propagator: BoundPropagator, self: Any, other: Any) -> Value:
    _check(isinstance(self, Value) and not isinstance(other, Value), "it divides by what moves")
    divisor = _fixed(other, self, "the divisor")
    _check(bool((divisor != 0).all()), "it divides by zero")
    return _multiply(propagator, self, 1 / divisor)


def _negate(propagator: BoundPropagator, self: Value) -> Value:
    return _scaled(propagator, self, -1.0)


def _matrix(propagator: BoundPropagator, self: Any, mat2: Any) -> Value:
    return _layer(propagator, self, mat2, None)


def _layer(propagator: BoundPropagator, self: Any, mat2: Any, offset: Tensor | None) -> Value:
    _check(
        isinstance(self, Value) and isinstance(mat2, Tensor) and self.dims == 2,
        "of products of matrices only x @ weights is bounded",
    )
    if offset is not None:
        offset = offset.expand(1, *self.shape[:-1], mat2.shape[1])[0]
    linear = LinearMap.matrix(mat2, partial(matrix_norm, mat2))
    return _linear(propagator, self, linear, offset)


def _vector(propagator: BoundPropagator, self: Any, vec: Any) -> Value:
    _check(isinstance(self, Value) and isinstance(vec, Tensor), "only x @ weights is bounded")
    _check(not self.folded, APART)
    return propagator.linear(self, LinearMap.matrix(vec))


def _matrix_plus(
    propagator: BoundPropagator, self: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any
) -> Value:
    if isinstance(self, Value) or isinstance(mat1, Tensor) or alpha != 1:
        found = _scaled(propagator, _matrix(propagator, mat1, mat2), _number(alpha, "alpha"))
        return _add(propagator, found, self, beta)
    offset = _number(beta, "beta") * _fixed(self, mat1, "what is added")
    return _layer(propagator, mat1, mat2, offset)


def _add_product(
    propagator: BoundPropagator, self: Any, tensor1: Any, tensor2: Any, value: Any
) -> Value:
    return _add(propagator, self, _multiply(propagator, tensor1, tensor2), value)


def _convolution(
    propagator: BoundPropagator,
    input: Value,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    _check(isinstance(weight, Tensor) and isinstance(input, Value), "its weights must not move")
    _check(bias is None or isinstance(bias, Tensor), "its offsets must not move")
    _check(not input.folded and input.dims == weight.ndim, APART)
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    size, square = weight.abs(), weight.square()

    def by(weights: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda t: aten.convolution.default(t, weights, None, *settings)

    # A number is a sum over a kernel; on the way back, over all kernels that it is part of.
    kernel = math.prod(weight.shape[2:])
    inner, outer = weight.shape[1] * kernel, weight.shape[0] // groups * kernel
    shape = input.shape
    plain = weight.ndim == 4 and groups == 1 and not transposed
    norm = None
    if plain and len(set(dilation)) == 1:
        norm = partial(convolution_norm, weight, (stride[0], stride[-1]))
    back = LinearMap(
        apply=_pulled(weight, shape, settings),
        absolute=_pulled(size, shape, settings),
        squared=_pulled(square, shape, settings),
        terms=outer,
        norm=norm,
    )
    linear = LinearMap(
        apply=by(weight),
        absolute=by(size),
        squared=by(square),
        back=back,
        terms=inner,
        norm=norm,
    )
    if transposed:
        linear = replace(linear, back=None, terms=None)

    def normalised(factor: Tensor, shift: Tensor) -> Value:
        # One map instead of two, whose norm is less than the product of theirs.
        offset = shift if bias is None else bias * factor + shift
        fused = _fused(weight, factor)
        return _convolution(propagator, input, fused, offset, *settings)

    if bias is None:
        found = propagator.linear(input, linear)
    else:
        found = propagator.linear(input, linear, bias.view(-1, *(1,) * (weight.ndim - 2)))
    return replace(found, normalised=normalised) if plain else found


FUSED = WeakTensorKeyDictionary()
"""Weights of convolutions times factors of their channels, so that their norms are known again."""


def _fused(weight: Tensor, factor: Tensor) -> Tensor:
    """The weights of a convolution whose channels are multiplied."""
    version, times, fused = FUSED.get(weight, (None, None, None))
    if version != weight._version or not torch.equal(times, factor):
        fused = weight * factor.view(-1, *(1,) * (weight.ndim - 1))
        FUSED[weight] = weight._version, factor.clone(), fused
    found: Tensor = fused
    return found


def _pulled(
    weight: Tensor, shape: tuple[int, ...], settings: tuple[Any, ...]
) -> Callable[[Tensor], Tensor]:
    """What carries signals back through a convolution to numbers of `shape`."""

    def pulled(signal: Tensor) -> Tensor:
        like = signal.new_zeros(()).expand(len(signal), *shape)
        found: Tensor = aten.convolution_backward.default(
            signal, like, weight, None, *settings, [True, False, False]
        )[0]
        return found

    return pulled


def _batch_norm(
    propagator: BoundPropagator,
    input: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    _check(
        not training and running_mean is not None and running_var is not None,
        "batch normalisation by the statistics of a batch mixes its examples: train it with "
        "track_running_stats=True and predict with eval()",
    )
    assert running_mean is not None
    assert running_var is not None
    _check(not input.folded, APART)
    given = (weight, bias, running_mean, running_var)
    _check(not any(isinstance(each, Value) for each in given), "its weights must not move")
    factor = (running_var + eps).rsqrt()
    if weight is not None:
        factor = factor * weight
    offset = -running_mean * factor
    if bias is not None:
        offset = offset + bias
    if input.normalised is not None:
        return input.normalised(factor, offset), None, None
    ends = (-1, *(1,) * (input.dims - 2))
    factor, offset = factor.view(ends), offset.view(ends)
    found = propagator.linear(input, _times(factor), offset.expand(input.shape))
    return found, None, None


def _batch_norm_at_prediction(
    propagator: BoundPropagator,
    input: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    given = (weight, bias, running_mean, running_var)
    return _batch_norm(propagator, input, *given, False, momentum, eps)


# --- shapes and places ---


def _view(propagator: BoundPropagator, self: Value, size: Sequence[Any]) -> Value:
    count = math.prod(self.shape)
    first, *others = size if size else [None]
    _check(all(type(each) is int for each in others), APART)
    rest = list(others)
    if isinstance(first, Rows):
        times = first.times
        if -1 in rest:
            known = times * math.prod(each for each in rest if each != -1)
            rest[rest.index(-1)] = count // known
    else:
        _check(first == -1 and -1 not in rest, APART)
        times = count // max(1, math.prod(rest))
    _check(times * math.prod(rest) == count, APART)
    shape = tuple(rest) if times == 1 else (times, *rest)
    found = propagator.linear(self, rearranged(lambda t: t.reshape(len(t), *shape)))
    return replace(found, folded=times != 1)


def _rearrange(
    propagator: BoundPropagator, value: Value, function: Callable[[Tensor], Tensor]
) -> Value:
    return propagator.linear(value, rearranged(function))


def _same(propagator: BoundPropagator, self: Value) -> Value:
    return self


def _detach(propagator: BoundPropagator, self: Value) -> Value:
    _check(self.fixed, "what depends on the input has its gradient stopped there (detach or .data)")
    return self


def _clone(propagator: BoundPropagator, self: Value, memory_format: Any) -> Value:
    return self


def _expand(propagator: BoundPropagator, self: Any, size: Sequence[Any], implicit: bool) -> Value:
    first, *rest = size
    _check(isinstance(first, Rows) or (first == -1 and isinstance(self, Value)), APART)
    _check(not isinstance(first, Rows) or first.times == 1, APART)
    _check(all(type(each) is int for each in rest), APART)
    if isinstance(self, Tensor):
        _check(self.ndim <= len(rest) or self.shape[0] == 1, APART)
        return propagator.constant(self.expand(1, *rest)[0])
    _check(not self.folded and self.dims == len(size), APART)
    shape = tuple(s if e == -1 else e for s, e in zip(self.shape, rest, strict=True))
    return _spread(propagator, self, shape)


def _permute(propagator: BoundPropagator, self: Value, dims: Sequence[int]) -> Value:
    places = [each % self.dims for each in dims]
    _check(not self.folded and places[0] == 0, APART)
    return _rearrange(propagator, self, lambda t: t.permute(places))


def _transpose(propagator: BoundPropagator, self: Value, dim0: int, dim1: int) -> Value:
    one, other = _dims([dim0, dim1], self)
    return _rearrange(propagator, self, lambda t: t.transpose(one, other))


def _unsqueeze(propagator: BoundPropagator, self: Value, dim: int) -> Value:
    place = dim % (self.dims + 1)
    _check(not self.folded and place > 0, APART)
    return _rearrange(propagator, self, lambda t: t.unsqueeze(place))


def _squeeze(propagator: BoundPropagator, self: Value, dim: Any) -> Value:
    _check(not self.folded, APART)
    asked = [dim] if isinstance(dim, int) else dim
    places = {each % self.dims for each in asked}
    _check(0 not in places, APART)
    shape = [s for at, s in enumerate(self.shape, start=1) if s != 1 or at not in places]
    return _rearrange(propagator, self, lambda t: t.reshape(len(t), *shape))


def _select(propagator: BoundPropagator, self: Value, dim: int, index: int) -> Value:
    (place,) = _dims(dim, self)
    _number(index, "the index")
    return _rearrange(propagator, self, lambda t: t.select(place, index))


def _slice(
    propagator: BoundPropagator, self: Value, dim: int, start: Any, end: Any, step: int
) -> Value:
    _check(not self.folded, APART)
    place = dim % self.dims
    if place == 0:
        _check(start in (None, 0) and (end is None or end == 2**63 - 1) and step == 1, APART)
        return self
    chosen = (slice(None),) * place + (slice(start, end, step),)
    _check(all(each is None or type(each) is int for each in (start, end)), APART)
    return _rearrange(propagator, self, lambda t: t[chosen])


def _split(propagator: BoundPropagator, self: Value, split_size: int, dim: int) -> list[Value]:
    (place,) = _dims(dim, self)
    _check(type(split_size) is int, APART)
    starts = range(0, self.shape[place - 1], split_size)
    return [_slice(propagator, self, place, at, at + split_size, 1) for at in starts]


def _split_sizes(
    propagator: BoundPropagator, self: Value, split_sizes: Sequence[int], dim: int
) -> list[Value]:
    (place,) = _dims(dim, self)
    _check(all(type(each) is int for each in split_sizes), APART)
    found, start = [], 0
    for size in split_sizes:
        found.append(_slice(propagator, self, place, start, start + size, 1))
        start += size
    return found


def _unbind(propagator: BoundPropagator, self: Value, dim: int) -> list[Value]:
    (place,) = _dims(dim, self)
    return [_select(propagator, self, place, at) for at in range(self.shape[place - 1])]


def _index_select(propagator: BoundPropagator, self: Any, dim: int, index: Any) -> Value:
    _check(isinstance(self, Value) and isinstance(index, Tensor), "its index must not move")
    (place,) = _dims(dim, self)
    return propagator.linear(self, positive(lambda t: t.index_select(place, index)))


def _index(propagator: BoundPropagator, self: Any, indices: Sequence[Any]) -> Value:
    chosen = [each for each in indices if each is not None]
    _check(
        isinstance(self, Value)
        and len(chosen) == 1
        and isinstance(chosen[0], Tensor)
        and chosen[0].dtype == torch.long
        and chosen[0].ndim == 1
        and indices[0] is None,
        "of indices only x[:, places] is bounded",
    )
    return _index_select(
        propagator, self, len(indices) - 1, chosen[0] % self.shape[len(indices) - 2]
    )


def _index_add(
    propagator: BoundPropagator, self: Any, dim: int, index: Any, source: Any, alpha: Any
) -> Value:
    _check(isinstance(self, Value) and isinstance(source, Value), "it must add to what moves")
    _check(isinstance(index, Tensor), "its index must not move")
    (place,) = _dims(dim, self)
    shape, (other,) = self.shape, _dims(dim, source)
    _check(place == other, APART)

    def spread(t: Tensor) -> Tensor:
        return t.new_zeros(len(t), *shape).index_add(place, index, t)

    return _add(propagator, self, propagator.linear(source, positive(spread)), alpha)


def _concatenate(propagator: BoundPropagator, tensors: Sequence[Any], dim: int) -> Value:
    some = next(each for each in tensors if isinstance(each, Value))
    (place,) = _dims(dim, some)
    values = [each if isinstance(each, Value) else _fixed_rows(each) for each in tensors]
    _check(all(each.dims == some.dims and not each.folded for each in values), APART)
    sizes = [each.shape[place - 1] for each in values]
    shape, sources = list(some.shape), []
    shape[place - 1] = sum(sizes)
    for number, each in enumerate(values):

        def put(t: Tensor, start: int = sum(sizes[:number]), size: int = sizes[number]) -> Tensor:
            return F.pad(t, _beside(place, t.ndim, start, shape[place - 1] - start - size))

        sources.append((each, rearranged(put)))
    return propagator.sum(sources)


def _stack(propagator: BoundPropagator, tensors: Sequence[Any], dim: int) -> Value:
    values = [each if isinstance(each, Value) else _fixed_rows(each) for each in tensors]
    place = dim % (values[0].dims + 1)
    return _concatenate(propagator, [_unsqueeze(propagator, each, place) for each in values], place)


def _fixed_rows(given: Any) -> Value:
    raise _Refusal(f"{APART}: a tensor without their dimension is put beside them")


def _beside(place: int, dims: int, before: int, after: int) -> list[int]:
    """What F.pad takes to pad one dimension."""
    return [0, 0] * (dims - 1 - place) + [before, after]


def _pad(propagator: BoundPropagator, self: Value, pad: Sequence[int], value: Any) -> Value:
    _check(not self.folded and len(pad) // 2 < self.dims, APART)
    _check(all(type(each) is int for each in pad), APART)
    number = _number(value, "the padding")
    found = _rearrange(propagator, self, lambda t: F.pad(t, list(pad)))
    if number == 0:
        return found
    inside = torch.ones(1, *self.shape, dtype=torch.float64, device=propagator.region.x.device)
    return propagator.linear(found, UNCHANGED, number * (1 - F.pad(inside, list(pad))[0]))


# --- sums, means, pools ---


def _reduced(by: Callable[[Tensor, list[int], bool], Tensor]) -> Rule:
    """A sum or a mean over some dimensions."""

    def reduce(
        propagator: BoundPropagator, self: Value, dim: Any, keepdim: bool, dtype: Any
    ) -> Value:
        _check(dtype in (None, torch.float64), "it casts to another type")
        _check(dim is not None and len(dim) > 0, APART)
        places = _dims(dim, self)
        return propagator.linear(self, positive(lambda t: by(t, places, keepdim)))

    return reduce


def _average_pool(
    propagator: BoundPropagator,
    self: Value,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: Any,
) -> Value:
    _check(divisor_override is None or divisor_override > 0, "its divisor must be positive")
    _check(not self.folded and self.dims == 4, APART)
    settings = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return propagator.linear(self, positive(lambda t: aten.avg_pool2d.default(t, *settings)))


def _adaptive_average_pool(propagator: BoundPropagator, self: Value, output_size: Any) -> Value:
    _check(not self.folded and self.dims == 4, APART)
    _check(all(type(each) is int for each in output_size), APART)
    return propagator.linear(self, positive(lambda t: F.adaptive_avg_pool2d(t, output_size)))


def _max_pool(
    propagator: BoundPropagator,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Value, None]:
    """The largest number of each window: the one at the centre, plus what others may be above it.

    On its way back a signal goes to the largest; where that is not certain, to each candidate with
    an unknown share between nothing and all of it.
    """
    plain = set(padding) <= {0} and set(dilation) <= {1} and not ceil_mode
    _check(plain, "max pooling is bounded without padding, dilation and ceil_mode only")
    _check(not self.folded and self.dims == 4, APART)
    size = _pair(kernel_size)
    step = _pair(stride) if len(stride) else size
    form = self.form
    out = F.max_pool2d(form.centre, size, step).shape[1:]
    channels = out[0]

    def windows(t: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, places, window)."""
        unfolded = F.unfold(t, size, stride=step)
        return unfolded.view(len(t), channels, math.prod(size), -1).transpose(2, 3)

    low, high = (windows(end) for end in propagator.symbols.range(form))
    centre = windows(form.centre)
    best = centre.argmax(-1, keepdim=True)
    least = low.gather(-1, best)
    open_to = high >= low.amax(-1, keepdim=True)
    sure = (open_to.sum(-1, keepdim=True) == 1) & open_to.gather(-1, best)
    chosen = torch.zeros_like(centre).scatter(-1, best, 1.0)
    unfold = positive(windows)
    split = mapped(propagator.symbols, form, unfold)
    gather = positive(lambda t: t.sum(-1).view(len(t), *out))
    picked = mapped(propagator.symbols, scaled(propagator.symbols, split, chosen), gather)
    rise = torch.where(sure, 0.0, (high.amax(-1, keepdim=True) - least).clamp_min(0))
    rise = rise.view(len(centre), *out)
    found = propagator.symbols.with_errors(picked, torch.zeros_like(rise), rise)
    share = torch.where(sure, chosen, open_to.to(centre) / 2)
    doubt = torch.where(sure, 0.0, open_to.to(centre) / 2)
    shares = AffineForm(share, share.new_zeros(0, *share.shape), doubt)
    inside = tuple(centre.shape[1:])
    steps: list[Step] = [(unfold, self.shape), (shares, inside), (gather, inside)]
    shift = found.centre - picked.centre
    doubt = 64 * torch.finfo(shift.dtype).eps * (found.centre.abs() + found.rest) + TINY
    values: list[RelationStep] = [backwards(unfold, self.shape), chosen, backwards(gather, inside)]
    relation = Relation([(self.place, values)], -shift - doubt, rise - shift + doubt)
    return propagator.put(found, (self, steps), relation=relation), None


def _pair(given: Sequence[int]) -> tuple[int, int]:
    return (given[0], given[-1])


# --- activations ---


def _leaky_relu(propagator: BoundPropagator, self: Value, negative_slope: Any) -> Value:
    return propagator.activate(self, activations.leaky(_number(negative_slope, "its slope")))


def _softplus(propagator: BoundPropagator, self: Value, beta: Any, threshold: Any) -> Value:
    rho, straight = _number(beta, "beta"), _number(threshold, "threshold")
    _check(rho > 0, "softplus is bounded for a beta above 0")
    return propagator.activate(self, activations.softplus(rho, straight))


def _gelu(propagator: BoundPropagator, self: Value, approximate: str) -> Value:
    _check(approximate == "none", "the approximate GELU is not: use approximate='none'")
    return propagator.activate(self, activations.gelu())


def _plain(build: Callable[[], Activation]) -> Rule:
    """An activation without settings."""

    def activate(propagator: BoundPropagator, self: Value) -> Value:
        return propagator.activate(self, build())

    return activate


def _power(propagator: BoundPropagator, self: Any, exponent: Any) -> Value:
    _check(type(exponent) in (int, float) and exponent == 2, "of powers only squares are")
    return propagator.activate(self, activations.square())


# --- numbers that do not move ---


def _filled_like(number: float | None) -> Rule:
    """Numbers of one kind in the shape of a value."""

    def fill(propagator: BoundPropagator, self: Value, **settings: Any) -> Value:
        value = settings.pop("fill_value", number)
        _check(not self.folded, APART)
        return _filled(propagator, self.shape, value, settings)

    return fill


def _filled_rows(number: float | None) -> Rule:
    """Numbers of one kind in a shape that begins with the rows."""

    def fill(propagator: BoundPropagator, size: Sequence[Any], **settings: Any) -> Value:
        settings.pop("self", None)
        value = settings.pop("fill_value", number)
        first, *rest = size
        _check(first == Rows(1) and all(type(each) is int for each in rest), APART)
        return _filled(propagator, rest, value, settings)

    return fill


def _filled(propagator: BoundPropagator, shape: Sequence[int], number: Any, settings: Any) -> Value:
    _check(settings.get("dtype") in (None, torch.float64), "it is not of float64")
    value = _number(number, "the number it holds")
    x = propagator.region.x
    return propagator.constant(torch.full(tuple(shape), value, dtype=x.dtype, device=x.device))


OPERATIONS: dict[OpOverload, Rule] = {
    # sums and products
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _subtract,
    aten.sub.Scalar: _subtract,
    aten.rsub.Scalar: _reversed_subtract,
    aten.rsub.Tensor: _reversed_subtract,
    aten.mul.Tensor: _multiply,
    aten.mul.Scalar: _multiply,
    aten.div.Tensor: _divide,
    aten.div.Scalar: _divide,
    aten.neg.default: _negate,
    aten.addcmul.default: _add_product,
    aten.pow.Tensor_Scalar: _power,
    # linear layers
    aten.mm.default: _matrix,
    aten.mv.default: _vector,
    aten.addmm.default: _matrix_plus,
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_at_prediction,
    # activations
    aten.relu.default: _plain(activations.leaky),
    aten.leaky_relu.default: _leaky_relu,
    aten.softplus.default: _softplus,
    aten.gelu.default: _gelu,
    aten.sigmoid.default: _plain(activations.sigmoid),
    aten.tanh.default: _plain(activations.tanh),
    aten.silu.default: _plain(activations.silu),
    # sums, means and pools over parts of an example
    aten.sum.dim_IntList: _reduced(torch.sum),
    aten.mean.dim: _reduced(torch.mean),
    aten.avg_pool2d.default: _average_pool,
    aten._adaptive_avg_pool2d.default: _adaptive_average_pool,
    aten.max_pool2d_with_indices.default: _max_pool,
    # the same numbers in another shape or place
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.expand.default: _expand,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
    aten.unbind.int: _unbind,
    aten.index_select.default: _index_select,
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.cat.default: _concatenate,
    aten.stack.default: _stack,
    aten.constant_pad_nd.default: _pad,
    aten.clone.default: _clone,
    aten.alias.default: _same,
    aten.detach.default: _detach,
    # numbers that do not move
    aten.zeros_like.default: _filled_like(0.0),
    aten.ones_like.default: _filled_like(1.0),
    aten.full_like.default: _filled_like(None),
    aten.new_zeros.default: _filled_rows(0.0),
    aten.new_ones.default: _filled_rows(1.0),
    aten.new_full.default: _filled_rows(None),
    aten.zeros.default: _filled_rows(0.0),
    aten.ones.default: _filled_rows(1.0),
    aten.full.default: _filled_rows(None),
}
"""The rule of each operation: adding one means one function, one line here and one test case in
tests/certified_operations.py."""
