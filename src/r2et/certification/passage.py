"""A network read as a graph of layers, along which affine forms travel there and back."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from r2et.certification.activations import (
    ACTIVATIONS,
    Activation,
    leaky,
    mixed,
    slope_line,
    softplus,
    third_range,
    value_line,
)
from r2et.certification.forms import (
    Bow,
    Form,
    LinearMap,
    Region,
    Symbols,
    mapped,
    positive,
    product,
    rearranged,
    scaled,
    total,
    unchanged,
)
from r2et.models.smoothing import SoftLeaky


@dataclass(frozen=True, eq=False)
class Bend:
    """A signal on its way back meets the slope of an activation at the numbers of a form."""

    activation: Activation
    at: Form


Step = tuple[LinearMap | Bend | Form, tuple[int, ...]]
"""A part of the way from one value to the next, and the shape of what enters it."""


@dataclass(frozen=True, eq=False)
class Value:
    """A number of the network that depends on the input: its place on the tape and its form."""

    place: int
    form: Form

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's numbers."""
        return tuple(self.form.centre.shape[1:])


@dataclass(eq=False)
class Passage:
    """One way through a network within a region: forms forwards, a tape to go back by."""

    region: Region
    symbols: Symbols
    tape: list[tuple[int, list[tuple[int, Sequence[Step]]]]] = field(default_factory=list)

    @classmethod
    def through(cls, network: fx.GraphModule, region: Region, most: int) -> tuple["Passage", Value]:
        """The passage of a region through a network, and what comes out."""
        passage = cls(region, region.symbols(most))
        known: dict[fx.Node, Any] = {}
        for node in network.graph.nodes:
            if node.op == "placeholder":
                if any(isinstance(each, Value) for each in known.values()):
                    raise ValueError(
                        "a certificate is of one input, but the model takes several: fix others."
                    )
                known[node] = Value(0, region.form())
                continue
            args = fx.map_arg(node.args, known.__getitem__)
            kwargs = fx.map_arg(node.kwargs, known.__getitem__)
            if node.op == "output":
                found = args[0]
                if isinstance(found, tuple | list) and len(found) == 1:
                    found = found[0]
                return passage, passage.value(found)
            known[node] = passage.call(network, node, args, kwargs)
        raise AssertionError("a graph ends with its output")

    def call(self, network: fx.GraphModule, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """What one node of the graph gives."""
        if node.op == "get_attr":
            return _attribute(network, str(node.target))
        if node.op == "call_module":
            if str(node.target).endswith("_guards_fn"):
                return None  # an exported program's check of its inputs
            layer = network.get_submodule(str(node.target))
            if not any(isinstance(each, Value) for each in args):
                return layer(*args, **kwargs)
            for kind in type(layer).__mro__:
                if kind in LAYERS:
                    return LAYERS[kind](self, layer, *args, **kwargs)
            raise ValueError(
                f"no bound is known for layer {node.target!r}, a {type(layer).__name__}: "
                f"certificates are for networks of {_known()}."
            )
        name = _operation(node.target)
        if not _depends([args, kwargs]):
            if callable(node.target):
                return node.target(*args, **kwargs)
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        if name in OPERATIONS:
            return OPERATIONS[name](self, *args, **kwargs)
        raise ValueError(
            f"no bound is known for {name!r} ({node.name} in the model's forward): certificates "
            f"are for networks of {_known()}."
        )

    @property
    def bends(self) -> list[Bend]:
        """The activations on the way."""
        steps = [step for _, edges in self.tape for _, steps in edges for step in steps]
        return [part for part, _ in steps if isinstance(part, Bend)]

    def value(self, found: Any) -> Value:
        """A value, also of what does not depend on the input."""
        if isinstance(found, Value):
            return found
        if not isinstance(found, Tensor):
            raise ValueError(
                f"the model must return a tensor of logits, got {type(found).__name__}."
            )
        return self.put(Form.constant(found))

    def put(self, form: Form, *sources: tuple[Value, Sequence[Step]]) -> Value:
        """A new value, and how it came from others."""
        place = len(self.tape) + 1
        self.tape.append((place, [(each.place, steps) for each, steps in sources]))
        return Value(place, form)

    def linear(self, value: Value, linear: LinearMap, offset: Tensor | None = None) -> Value:
        """A linear map of a value, plus an offset."""
        found = mapped(self.symbols, value.form, linear, offset)
        return self.put(found, (value, [(linear, value.shape)]))

    def sum(self, values: Sequence[tuple[Value, LinearMap]], offset: Tensor | None = None) -> Value:
        """The sum of linear maps of several values, plus an offset."""
        forms = [mapped(self.symbols, value.form, linear) for value, linear in values]
        if offset is not None:
            forms.append(Form.constant(offset.expand_as(forms[0].centre)))
        return self.put(total(forms), *((value, [(by, value.shape)]) for value, by in values))

    def times(self, one: Value, other: Value) -> Value:
        """The product of two values of one shape, number by number."""
        if one.form.centre.shape != other.form.centre.shape:
            raise ValueError(
                "a product of two parts of a network can be bounded for equal shapes only, got "
                f"{tuple(one.form.centre.shape)} and {tuple(other.form.centre.shape)}."
            )
        found = self._promoted(product(self.symbols, one.form, other.form), self.symbols)
        return self.put(found, (one, [(other.form, one.shape)]), (other, [(one.form, one.shape)]))

    def bend(self, value: Value, activation: Activation) -> Value:
        """An activation of each number."""
        form = value.form
        low, high = self.symbols.range(form)
        line = value_line(activation, form.centre, low, high)
        bent = scaled(self.symbols, form, line.rise)
        bent = replace(bent, centre=line.at)
        found = self.symbols.with_errors(bent, line.low, line.high)
        return self.put(found, (value, [(Bend(activation, form), value.shape)]))

    def back(self, signal: Form, last: Value, how: str) -> tuple[Form, Symbols]:
        """The slope of signal'output by the input, as a form, and the symbols it is in.

        `how` is the way activations' slopes are bounded.
        """
        symbols = self.symbols.copy()
        signals: dict[int, list[Form]] = {last.place: [signal]}
        shape = self.region.x.shape[1:]
        for place, edges in reversed(self.tape):
            if place not in signals:
                continue
            here = total(signals.pop(place))
            for source, steps in edges:
                found = here
                for step in reversed(steps):
                    found = self._pulled(found, step, symbols, how)
                signals.setdefault(source, []).append(found)
        if 0 not in signals:
            return Form.constant(self.region.x.new_zeros(len(self.region.x), *shape)), symbols
        return total(signals[0]), symbols

    def _pulled(self, signal: Form, step: Step, symbols: Symbols, how: str) -> Form:
        part, shape = step
        if isinstance(part, LinearMap):
            return mapped(symbols, signal, part.transposed(shape))
        if isinstance(part, Form):
            return self._promoted(product(symbols, signal, part), symbols)
        low, high = symbols.range(part.at)
        line = slope_line(part.activation, part.at.centre, low, high, how)
        slope = scaled(symbols, part.at, line.rise)
        slope = replace(slope, centre=line.at)
        bow = None
        if how == "tangent" and self._straight(part.at) and not part.activation.kinks:
            least, most = third_range(part.activation, low, high)
            # The rest of z moves its error by no more than this beyond what its moves do.
            reach = (high - low) + part.at.rest
            slack = torch.maximum(-least, most).clamp_min(0) * reach * part.at.rest
            bow = Bow(
                start=0,
                moves=part.at.moves.flatten(2),
                low=least.flatten(1).T,
                high=most.flatten(1).T,
                slack=slack.flatten(1).T,
            )
        slope = symbols.with_errors(slope, line.low, line.high, bow)
        return self._promoted(product(symbols, signal, slope), symbols)

    def _straight(self, form: Form) -> bool:
        """Whether numbers move with the input's symbols alone, but for rounding."""
        if not len(form.moves) == self.symbols.inputs > 0 or self.region.norm != "l2":
            return False
        return bool((form.rest <= 1e-9 * (1 + form.centre.abs())).all())

    def _promoted(self, form: Form, symbols: Symbols) -> Form:
        """The form with its rest as symbols where there is room for them."""
        if (
            not symbols.inputs
            or form.still
            or not (form.rest > 1e-9 * (form.centre.abs() + 1e-30)).any()
        ):
            return form
        bare = Form(form.centre, form.moves, torch.zeros_like(form.rest))
        return symbols.with_errors(bare, -form.rest, form.rest)


def _known() -> str:
    names = sorted({kind.__name__.lstrip("_") for kind in LAYERS})
    return f"{', '.join(names)}, and sums of such parts"


def _depends(found: Any) -> bool:
    if isinstance(found, Value):
        return True
    if isinstance(found, Mapping):
        return any(map(_depends, found.values()))
    return isinstance(found, tuple | list) and any(map(_depends, found))


def _attribute(network: nn.Module, target: str) -> Any:
    found: Any = network
    for name in target.split("."):
        found = getattr(found, name)
    return found.detach() if isinstance(found, Tensor) else found


def _operation(target: Any) -> str:
    """The plain name of a function, method or exported operation: relu, add, linear."""
    if target is torch.batch_norm or target is torch.ops.aten.batch_norm.default:
        return "exported_batch_norm"  # which takes its arguments in another order
    if isinstance(target, torch._ops.OpOverload):
        target = target._schema.name.split("::")[-1]
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.strip("_")


def _linear(passage: Passage, value: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    return passage.linear(value, LinearMap.matrix(weight.T), bias)


def _conv(
    passage: Passage,
    value: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    size, square, rest = weight.abs(), weight.square(), (stride, padding, dilation, groups)
    linear = LinearMap(
        apply=lambda t: F.conv2d(t, weight, None, *rest),
        absolute=lambda t: F.conv2d(t, size, None, *rest),
        squared=lambda t: F.conv2d(t, square, None, *rest),
    )
    return passage.linear(value, linear, None if bias is None else bias.view(-1, 1, 1))


def _normalised(
    passage: Passage,
    value: Value,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Value:
    if mean is None or variance is None:
        raise ValueError(
            "batch normalisation without running statistics mixes the examples of a batch, and no "
            "bound holds for one alone: train it with track_running_stats=True."
        )
    factor = (variance + eps).rsqrt()
    if weight is not None:
        factor = factor * weight
    offset = -mean * factor
    if bias is not None:
        offset = offset + bias
    ends = (-1, *(1,) * (value.form.centre.ndim - 2))
    factor, offset = factor.view(ends), offset.view(ends)
    return passage.linear(value, _times(factor), offset)


def _times(factor: Tensor | float) -> LinearMap:
    size = factor.abs() if isinstance(factor, Tensor) else abs(factor)
    square = size * size
    return LinearMap(
        apply=lambda t: t * factor, absolute=lambda t: t * size, squared=lambda t: t * square
    )


def _shaped(passage: Passage, value: Value, reached: Tensor) -> Value:
    """The same numbers in the shape of what an operation made of the centre."""
    shape = reached.shape[1:]
    if len(reached) != len(value.form.centre):
        raise ValueError(
            "a model must keep its examples apart: reshape all dimensions but the first."
        )
    return passage.linear(value, rearranged(lambda t: t.reshape(len(t), *shape)))


def _reshaping(name: str) -> Callable[..., Value]:
    def reshape(passage: Passage, value: Value, *args: Any, **kwargs: Any) -> Value:
        return _shaped(
            passage, value, getattr(torch.Tensor, name)(value.form.centre, *args, **kwargs)
        )

    return reshape


def _flatten(passage: Passage, value: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    return _shaped(passage, value, value.form.centre.flatten(start_dim, end_dim))


def _positive(function: Callable[..., Tensor]) -> Callable[..., Value]:
    """An operation with weights of zero or more on each example."""

    def apply(passage: Passage, value: Value, *args: Any, **kwargs: Any) -> Value:
        return passage.linear(value, positive(lambda t: function(t, *args, **kwargs)))

    return apply


def _placed(function: Callable[..., Tensor]) -> Callable[..., Value]:
    """torch.cat or torch.stack of values and fixed numbers, along a dimension of the examples."""

    def apply(passage: Passage, parts: Sequence[Any], dim: int = 0, **kwargs: Any) -> Value:
        centres = [each.form.centre if isinstance(each, Value) else each for each in parts]
        sources = []
        for place, each in enumerate(parts):
            if isinstance(each, Value):

                def put(t: Tensor, place: int = place) -> Tensor:
                    others = [torch.zeros_like(c[:1]).expand(len(t), *c.shape[1:]) for c in centres]
                    return function([*others[:place], t, *others[place + 1 :]], dim)

                sources.append((each, positive(put)))
        fixed = [
            torch.zeros_like(c) if isinstance(each, Value) else c
            for c, each in zip(centres, parts, strict=True)
        ]
        return passage.sum(sources, function(fixed, dim))

    return apply


def _added(sign: int) -> Callable[..., Value]:
    def add(passage: Passage, one: Any, other: Any, *, alpha: float = 1) -> Value:
        weight = sign * alpha
        if isinstance(one, Value) and isinstance(other, Value):
            shape = torch.broadcast_shapes(one.form.centre.shape, other.form.centre.shape)
            return passage.sum(
                [(_spread(passage, one, shape), unchanged()),
                 (_spread(passage, other, shape), _times(weight))]
            )  # fmt: skip
        if isinstance(one, Value):
            return passage.linear(one, unchanged(), weight * _tensor(other, one))
        return passage.linear(other, _times(weight), _tensor(one, other))

    return add


def _spread(passage: Passage, value: Value, shape: torch.Size) -> Value:
    if value.form.centre.shape == shape:
        return value
    return passage.linear(value, positive(lambda t: t.expand(len(t), *shape[1:])))


def _tensor(found: Any, like: Value) -> Tensor:
    return torch.as_tensor(found, dtype=like.form.centre.dtype, device=like.form.centre.device)


def _multiplied(passage: Passage, one: Any, other: Any) -> Value:
    if isinstance(one, Value) and isinstance(other, Value):
        shape = torch.broadcast_shapes(one.form.centre.shape, other.form.centre.shape)
        return passage.times(_spread(passage, one, shape), _spread(passage, other, shape))
    value, fixed = (one, other) if isinstance(one, Value) else (other, one)
    factor = _tensor(fixed, value)
    return passage.linear(value, _times(factor))


def _divided(passage: Passage, one: Any, other: Any) -> Value:
    if isinstance(other, Value):
        raise ValueError("no bound is known for a division by what depends on the input.")
    return _multiplied(passage, one, 1 / _tensor(other, one))


def _product_with(passage: Passage, one: Any, other: Any) -> Value:
    """X @ W for a fixed matrix or vector W."""
    if not isinstance(one, Value) or isinstance(other, Value):
        raise ValueError("no bound is known for a matrix product but of the form x @ weights.")
    return passage.linear(one, LinearMap.matrix(other))


def _power(passage: Passage, value: Value, exponent: float) -> Value:
    if exponent != 2:
        raise ValueError(f"no bound is known for powers but squares, got {exponent}.")
    return passage.bend(value, ACTIVATIONS["square"]())


def _activation(name: str) -> Callable[..., Value]:
    def apply(passage: Passage, value: Value, *settings: Any, **named: Any) -> Value:
        named.pop("inplace", None)
        if name == "gelu" and (named.pop("approximate", "none") != "none" or settings):
            raise ValueError("no bound is known for the approximate GELU: use approximate='none'.")
        if name == "relu":
            settings = ()
        if name == "leaky_relu" and not settings and not named:
            settings = (0.01,)
        if name == "leaky_relu":
            settings = settings[:1]
        if name == "softplus":
            return passage.bend(value, softplus(*settings[:1], **_without(named, "threshold")))
        return passage.bend(value, ACTIVATIONS[name](*settings, **named))

    return apply


def _without(named: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name not in names}


def _max_pool(
    passage: Passage,
    value: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    **_: Any,
) -> Value:
    """The largest number of each window: the one at the centre, plus what others may be above it.

    On its way back a signal goes to the largest; where that is not certain, to each candidate with
    an unknown share between nothing and all of it.
    """
    if ceil_mode or padding not in (0, (0, 0)) or dilation not in (1, (1, 1)):
        raise ValueError(
            "bounds of max pooling are known without padding, dilation, ceil_mode only."
        )
    size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    step = size if stride in (None, []) else (stride, stride) if isinstance(stride, int) else stride
    form = value.form
    out = F.max_pool2d(form.centre, size, step).shape[1:]
    channels = out[0]

    def windows(t: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, places, window)."""
        unfolded = F.unfold(t, size, stride=step)
        return unfolded.view(len(t), channels, math.prod(size), -1).transpose(2, 3)

    low, high = (windows(end) for end in passage.symbols.range(form))
    centre = windows(form.centre)
    best = centre.argmax(-1, keepdim=True)
    least = low.gather(-1, best)
    open_to = high >= low.amax(-1, keepdim=True)
    sure = (open_to.sum(-1, keepdim=True) == 1) & open_to.gather(-1, best)
    chosen = torch.zeros_like(centre).scatter(-1, best, 1.0)
    unfold = positive(windows)
    split = mapped(passage.symbols, form, unfold)
    gather = positive(lambda t: t.sum(-1).view(len(t), *out))
    picked = mapped(passage.symbols, scaled(passage.symbols, split, chosen), gather)
    rise = torch.where(sure, 0.0, (high.amax(-1, keepdim=True) - least).clamp_min(0))
    rise = rise.view(len(centre), *out)
    found = passage.symbols.with_errors(picked, torch.zeros_like(rise), rise)
    share = torch.where(sure, chosen, open_to.to(centre) / 2)
    doubt = torch.where(sure, 0.0, open_to.to(centre) / 2)
    shares = Form(share, share.new_zeros(0, *share.shape), doubt)
    inside = tuple(centre.shape[1:])
    return passage.put(found, (value, [(unfold, value.shape), (shares, inside), (gather, inside)]))


def _convolved(passage: Passage, layer: nn.Conv2d, value: Value) -> Value:
    if layer.padding_mode != "zeros":
        raise ValueError(
            f"bounds of convolutions are known for padding with zeros, got {layer.padding_mode!r}."
        )
    bias = None if layer.bias is None else layer.bias.detach()
    settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return _conv(passage, value, layer.weight.detach(), bias, *settings)


def _layer_same(passage: Passage, layer: nn.Module, value: Value) -> Value:
    return value


def _average_pool(passage: Passage, value: Value, *args: Any, **kwargs: Any) -> Value:
    return passage.linear(value, positive(lambda t: F.avg_pool2d(t, *args, **kwargs)))


def _same(passage: Passage, value: Value, *_: Any, **__: Any) -> Value:
    return value


def _dropout(
    passage: Passage, value: Value, p: float = 0.5, training: bool = True, **_: Any
) -> Value:
    if training and p > 0:
        raise ValueError(
            "no bound holds for dropout that draws at random: put the model in eval mode, and give "
            "F.dropout training=self.training."
        )
    return value


def _batch_norm(
    passage: Passage,
    value: Value,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    if training:
        raise ValueError("batch normalisation in training mode mixes examples: use eval mode.")
    return _normalised(passage, value, mean, variance, weight, bias, eps)


def _exported_batch_norm(
    passage: Passage,
    value: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    return _batch_norm(passage, value, mean, variance, weight, bias, training, momentum, eps)


def _fixed(function: Callable[..., Any]) -> Callable[..., Any]:
    """What depends on a value's shape only."""

    def apply(passage: Passage, value: Value, *args: Any, **kwargs: Any) -> Any:
        return function(value.form.centre, *args, **kwargs)

    return apply


def _looked_up(passage: Passage, value: Value, name: str) -> Any:
    if name not in ("shape", "ndim", "dtype", "device"):
        raise ValueError(f"no bound is known for the attribute {name!r} of what depends on x.")
    return getattr(value.form.centre, name)


def _item(passage: Passage, value: Any, at: Any) -> Any:
    if not isinstance(value, Value):
        return value[at]
    first = at[0] if isinstance(at, tuple) else at
    if first not in (slice(None), Ellipsis):
        raise ValueError("a model must keep its examples apart: take parts as x[:, ...].")
    return passage.linear(value, positive(lambda t: t[at]))


def _slice(
    passage: Passage, value: Value, dim: int = 0, start: int = 0, end: int = 2**62, step: int = 1
) -> Value:
    if dim == 0:
        if start or end < len(value.form.centre):
            raise ValueError("a model must keep its examples apart: take parts as x[:, ...].")
        return value
    places = (slice(None),) * dim + (slice(start, end, step),)
    return passage.linear(value, positive(lambda t: t[places]))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "conv2d": _conv,
    "add": _added(1),
    "iadd": _added(1),
    "sub": _added(-1),
    "isub": _added(-1),
    "mul": _multiplied,
    "imul": _multiplied,
    "truediv": _divided,
    "div": _divided,
    "neg": lambda passage, value: passage.linear(value, _times(-1.0)),
    "matmul": _product_with,
    "mm": _product_with,
    "pow": _power,
    "flatten": _flatten,
    "cat": _placed(torch.cat),
    "concat": _placed(torch.cat),
    "stack": _placed(torch.stack),
    "sum": _positive(torch.sum),
    "mean": _positive(torch.mean),
    "max_pool2d": _max_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool2d": _positive(F.adaptive_avg_pool2d),
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "exported_batch_norm": _exported_batch_norm,
    "contiguous": _same,
    "clone": _same,
    "alias": _same,
    "zeros_like": _fixed(torch.zeros_like),
    "ones_like": _fixed(torch.ones_like),
    "size": _fixed(torch.Tensor.size),
    "dim": _fixed(torch.Tensor.dim),
    "getattr": _looked_up,
    "getitem": _item,
    "slice": _slice,
    "select": _positive(torch.select),
    "narrow": _positive(torch.narrow),
    "transpose": _positive(torch.transpose),
    "permute": _positive(torch.permute),
    **{name: _reshaping(name) for name in ("view", "reshape", "squeeze", "unsqueeze")},
    **{name: _activation(name) for name in ACTIVATIONS},
}
"""What is done with forms for each function, method or exported operation, by its plain name."""

LAYERS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: lambda passage, layer, value: _linear(
        passage, value, layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    ),
    nn.Conv2d: lambda passage, layer, value: _convolved(passage, layer, value),
    nn.modules.batchnorm._BatchNorm: lambda passage, layer, value: _normalised(
        passage,
        value,
        layer.running_mean,
        layer.running_var,
        None if layer.weight is None else layer.weight.detach(),
        None if layer.bias is None else layer.bias.detach(),
        layer.eps,
    ),
    nn.Flatten: lambda passage, layer, value: _flatten(
        passage, value, layer.start_dim, layer.end_dim
    ),
    nn.Identity: _layer_same,
    nn.modules.dropout._DropoutNd: _layer_same,
    nn.MaxPool2d: lambda passage, layer, value: _max_pool(
        passage,
        value,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.ceil_mode,
    ),
    nn.AvgPool2d: lambda passage, layer, value: passage.linear(value, positive(layer)),
    nn.AdaptiveAvgPool2d: lambda passage, layer, value: passage.linear(value, positive(layer)),
    nn.ReLU: lambda passage, layer, value: passage.bend(value, leaky()),
    nn.LeakyReLU: lambda passage, layer, value: passage.bend(value, leaky(layer.negative_slope)),
    nn.Softplus: lambda passage, layer, value: passage.bend(value, softplus(layer.beta)),
    nn.Sigmoid: lambda passage, layer, value: passage.bend(value, ACTIVATIONS["sigmoid"]()),
    nn.Tanh: lambda passage, layer, value: passage.bend(value, ACTIVATIONS["tanh"]()),
    nn.SiLU: lambda passage, layer, value: passage.bend(value, ACTIVATIONS["silu"]()),
    nn.GELU: lambda passage, layer, value: _activation("gelu")(
        passage, value, approximate=layer.approximate
    ),
    SoftLeaky: lambda passage, layer, value: passage.bend(
        value, mixed(layer.slope, 1 - layer.slope, softplus(layer.sharpness))
    ),
}
"""What is done with forms for each kind of layer and what is derived from it."""
