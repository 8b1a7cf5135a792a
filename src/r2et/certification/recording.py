"""What runs when a model explains itself, recorded: aten operations on tensors, without any Python.

The model is called and differentiated once while every operation that torch's dispatcher executes
is written down: after hooks, overridden methods, parametrisations, custom backward functions and
whatever else Python puts between the text of a model and its tensors.
"""

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Number
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from r2et.certification.program import (
    Constant,
    Input,
    Node,
    Program,
    Ref,
    Rows,
    filled,
    leaves,
    run,
    with_leaves,
)
from r2et.core.naming import briefly
from r2et.explainers import class_logits

ROWS = (2, 3)
"""How many rows two recordings are of, so that what depends on their number shows."""

SAME_VALUE = frozenset(
    {
        torch.ops.aten.detach.default,
        torch.ops.aten.alias.default,
        torch.ops.aten.clone.default,
        torch.ops.aten.lift_fresh.default,
    }
)
"""Operations that give the numbers they are given."""

WITHOUT_MEANING = {torch.ops.aten.convolution_backward.default: "bias_sizes"}
"""Arguments that do not enter the slope by the input: the shape of another result."""

OUTSIDE = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.tolist,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.__reduce_ex__,
        torch.Tensor.__repr__,
        torch.Tensor.__format__,
    }
)
"""Functions by which a tensor's numbers leave torch, where nobody sees what becomes of them."""

LITERALS = frozenset(
    {
        torch.tensor,
        torch.as_tensor,
        torch.asarray,
        torch.Tensor.new_tensor,
        torch.Tensor.__getitem__,
    }
)
"""Functions that make a tensor of numbers written in the model's text, indices among them."""

Model = Callable[[Tensor], Any]


class Refused(ValueError):
    """That a model cannot be recorded, and why."""


@dataclass(frozen=True, eq=False)
class Recording:
    """What was executed from x to the logits and, given a signal, back to the slope by x.

    `gradient` is None where nothing led back to x.
    """

    nodes: tuple[Node, ...]
    logits: Any
    gradient: Any
    classes: int


def recorded(model: Model, x: Tensor, signal: Tensor) -> Recording:
    """The recording of one call on x and of the signal's way back: logits and d(signal'logits)/dx.

    What cannot be recorded raises ValueError, also where the model's own code catches it.
    """
    leaf = x.detach().clone().requires_grad_()
    signal = signal.detach().clone()
    recorder = _Recorder({"x": leaf, "signal": signal})
    with torch.enable_grad(), _Watch(recorder), recorder:
        logits = class_logits(model(leaf))
        check_shape(logits, len(x))
        gradient = None
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(
                logits, leaf, signal[:, : logits.shape[1]], allow_unused=True
            )
    if recorder.refusal is not None:
        raise recorder.refusal
    return Recording(
        nodes=tuple(recorder.nodes),
        logits=recorder.named(logits),
        gradient=None if gradient is None else recorder.named(gradient),
        classes=logits.shape[1],
    )


def check_shape(logits: Any, rows: int) -> None:
    """Refuse what is not a row of logits for each of `rows` examples."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != rows:
        came = (
            f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        )
        raise Refused(
            f"a certificate needs one row of logits for each of {rows} examples, got {came}: let "
            "the model return a tensor (B, C)."
        )


class _Watch(TorchFunctionMode):
    """Watches the calls that make tensors of Python's numbers, or numbers of tensors."""

    def __init__(self, recorder: "_Recorder") -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Carry out one function of torch."""
        kwargs, recorder = kwargs or {}, self.recorder
        if func in OUTSIDE and not recorder.inside and recorder.depends(args[0]):
            recorder.refuse(
                f"{func.__name__} takes numbers that depend on the input out of torch, and what "
                "becomes of them cannot be followed: compute with tensors throughout"
            )
        if func not in LITERALS:
            return func(*args, **kwargs)
        before = recorder.literal
        recorder.literal = all(map(_is_literal, (*args, *kwargs.values())))
        try:
            return func(*args, **kwargs)
        finally:
            recorder.literal = before


def _is_literal(given: Any) -> bool:
    """Whether nothing but numbers (or settings of torch) stands there."""
    if isinstance(given, list | tuple):
        return all(map(_is_literal, given))
    settings = torch.dtype | torch.device | str | Tensor | slice
    return given is None or given is ... or isinstance(given, bool | int | float | settings)


class _Recorder(TorchDispatchMode):
    """Writes down every operation; tensors are known by identity, and kept until the end."""

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.refusal: Refused | None = None
        self.literal = self.inside = False
        self.names: dict[int, Any] = {id(each): Input(name) for name, each in inputs.items()}
        self.kept: list[Tensor] = list(inputs.values())
        self.moving: set[int] = {id(each) for each in inputs.values()}
        self.stale: dict[int, str] = {}
        self.sharing: dict[int, list[Tensor]] = {}
        for each in inputs.values():
            self.sharing.setdefault(_memory(each), []).append(each)

    def refuse(self, why: str) -> None:
        """Stop: this model cannot be recorded."""
        where = _where()
        self.refusal = self.refusal or Refused(f"{why}{f' ({where})' if where else ''}.")
        raise self.refusal

    def depends(self, tensor: Any) -> bool:
        """Whether a tensor was computed from the inputs."""
        return id(tensor) in self.moving

    def named(self, tensor: Tensor) -> Any:
        """What a tensor is called in the recording."""
        if id(tensor) in self.stale:
            self.refuse(
                f"numbers are used after {self.stale[id(tensor)]} wrote over part of them or under "
                "another name: write results to tensors of their own"
            )
        if id(tensor) not in self.names:
            if _memory(tensor) in self.sharing:
                self.refuse(
                    "a tensor shares the memory of another by a way that is not recorded: use "
                    "ordinary views"
                )
            self.names[id(tensor)] = Constant(tensor)
            self.kept.append(tensor)
        return self.names[id(tensor)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Carry out one operation and write it down."""
        self.inside = True
        try:
            return self._carry_out(func, args, kwargs or {})
        finally:
            self.inside = False

    def _carry_out(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = _by_name(func, args, kwargs)
        tensors = _tensors([*given.values()])
        moves = any(id(each) in self.moving for each in tensors)
        if func.namespace != "aten":
            self.refuse(f"no bound is known for {func}, an operation of {func.namespace!r}")
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.refuse(f"{func} draws at random, so that no two explanations are the same")
        if moves and _tells_values(func, tensors):
            self.refuse(
                "the value of a tensor that depends on the input is asked for, as by .item() or an "
                "if: a certificate needs a forward that takes the same way for all"
            )
        if func is torch.ops.aten._local_scalar_dense.default:
            return func(*args, **kwargs)
        literal = None
        if func is torch.ops.aten.lift_fresh.default:
            if not self.literal:
                self.refuse(
                    "a tensor is made of numbers that are neither parameters, buffers nor written "
                    "in the forward: register them as a buffer"
                )
            literal = tensors[0].detach().clone()
            given, tensors = {}, []
        operation, written = func, _written(func, given)
        if written:
            operation = self._functional(func, written)
        arguments = {name: with_leaves(each, self._leaf) for name, each in given.items()}
        found = func(*args, **kwargs)
        self.nodes.append(Node(operation, arguments, _where(), literal))
        for each in written:
            self._overwrite(each, func)
        for number, each in enumerate(found if isinstance(found, tuple | list) else [found]):
            if isinstance(each, Tensor):
                self._name(each, Ref(len(self.nodes) - 1, number), moves)
        return found

    def _leaf(self, given: Any) -> Any:
        return self.named(given) if isinstance(given, Tensor) else given

    def _name(self, tensor: Tensor, name: Ref, moves: bool) -> None:
        self.names[id(tensor)] = name
        self.stale.pop(id(tensor), None)
        self.kept.append(tensor)  # an address in use is not given to another tensor
        self.sharing.setdefault(_memory(tensor), []).append(tensor)
        if moves:
            self.moving.add(id(tensor))

    def _functional(self, func: OpOverload, written: Sequence[Tensor]) -> OpOverload:
        """The operation that gives what `func` writes."""
        if any(id(each) not in self.names or each is self.kept[0] for each in written):
            self.refuse(
                f"{func} writes into the input, a parameter, a buffer or another tensor that "
                "outlives the call, so that calls change the model"
            )
        name = func._schema.name.removeprefix("aten::")
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        found = getattr(packet, func._overloadname, None)
        if len(written) > 1 or not name.endswith("_") or not isinstance(found, OpOverload):
            self.refuse(f"{func} writes over its inputs in a way that cannot be followed")
        assert isinstance(found, OpOverload)
        return found

    def _overwrite(self, tensor: Tensor, func: OpOverload) -> None:
        """All other tensors on the same memory no longer hold what they are known by."""
        for each in self.sharing.get(_memory(tensor), ()):
            if each is not tensor:
                self.stale[id(each)] = str(func)


def _tells_values(func: OpOverload, tensors: Sequence[Tensor]) -> bool:
    """Whether Python learns something of the numbers: one of them, or a size they decide."""
    if torch.Tag.data_dependent_output in func.tags:
        return True
    if any(str(each.type) in ("bool", "int", "float", "Scalar") for each in func._schema.returns):
        return True
    by_place = func._schema.name == "aten::index" and all(
        each.dtype not in (torch.bool, torch.uint8) for each in tensors
    )
    return torch.Tag.dynamic_output_shape in func.tags and not by_place


def _memory(tensor: Tensor) -> int:
    """What tells whether two tensors share their memory; each tensor without memory is its own."""
    storage = tensor.untyped_storage()
    return storage._cdata if storage.nbytes() else -id(tensor)


def _by_name(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, those that were left out by their defaults."""
    declared = func._schema.arguments
    given = {each.name: value for each, value in zip(declared, args, strict=False)} | dict(kwargs)
    return {each.name: given.get(each.name, each.default_value) for each in declared}


def _tensors(given: Any) -> list[Tensor]:
    return [each for each in leaves(given) if isinstance(each, Tensor)]


def _written(func: OpOverload, given: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes into."""
    return [
        tensor
        for each in func._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
        for tensor in _tensors(given[each.name])
    ]


_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


def _where() -> str:
    """The line of the model's code that is being run: "model.py, line 7: x = x.round()"."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, "<")):
            line = linecache.getline(file, frame.f_lineno).strip()
            text = f"{Path(file).name}, line {frame.f_lineno}"
            return f"{text}: {line}" if line else text
        if file == __file__ and frame.f_code.co_name == "recorded":
            return ""
        frame = frame.f_back  # type: ignore[assignment]
    return ""


# --- recordings put together ---


def needed(nodes: Sequence[Node], ends: Sequence[Any]) -> list[int]:
    """The nodes that some ends depend on, in order."""
    wanted = _sources(ends)
    for number in range(len(nodes) - 1, -1, -1):
        if number in wanted:
            wanted |= _sources([*nodes[number].arguments.values()])
    return sorted(wanted)


def _sources(given: Any) -> set[int]:
    return {each.node for each in leaves(given) if isinstance(each, Ref)}


def trimmed(recording: Recording) -> Recording:
    """The recording without what neither logits nor slope depend on."""
    ends = (recording.logits, recording.gradient)
    kept = needed(recording.nodes, ends)
    place = {old: new for new, old in enumerate(kept)}

    def moved(given: Any) -> Any:
        return Ref(place[given.node], given.output) if isinstance(given, Ref) else given

    nodes = []
    for number in kept:
        node = recording.nodes[number]
        arguments = {name: with_leaves(each, moved) for name, each in node.arguments.items()}
        nodes.append(replace(node, arguments=arguments))
    return replace(
        recording,
        nodes=tuple(nodes),
        logits=moved(recording.logits),
        gradient=moved(recording.gradient),
    )


def merged(first: Recording, second: Recording, rows: tuple[int, int]) -> Recording:
    """One recording of two at different inputs, of `rows` rows each, that took the same way.

    Sizes that follow the number of rows become `Rows`; whatever else differs is refused.
    """
    if len(first.nodes) != len(second.nodes):
        raise ValueError(
            f"the model takes another way at other inputs or other numbers of rows: "
            f"{len(first.nodes)} operations at one, {len(second.nodes)} at another."
        )
    nodes = []
    for one, other in zip(first.nodes, second.nodes, strict=True):
        same = one.operation is other.operation and _same_literal(one.literal, other.literal)
        if not same:
            raise ValueError(
                f"the model takes another way at other inputs or other numbers of rows: "
                f"{_described(one)}, and {_described(other)}."
            )
        arguments = {
            name: _merged(each, other.arguments[name], rows, one)
            for name, each in one.arguments.items()
        }
        nodes.append(replace(one, arguments=arguments))
    ends = [(first.logits, second.logits), (first.gradient, second.gradient)]
    logits, gradient = (_merged(*pair, rows, nodes[-1] if nodes else None) for pair in ends)
    return Recording(nodes=tuple(nodes), logits=logits, gradient=gradient, classes=first.classes)


def _described(node: Node) -> str:
    return f"{node.operation} ({node.where})" if node.where else str(node.operation)


def _same_literal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def _merged(one: Any, other: Any, rows: tuple[int, int], node: Node | None) -> Any:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(_merged(*pair, rows, node) for pair in zip(one, other, strict=True))
    if isinstance(one, Constant) and isinstance(other, Constant):
        if one.tensor is other.tensor:
            return one
    elif type(one) is type(other):
        if one == other or (_is_nan(one) and _is_nan(other)):
            return one
        if type(one) is int and one % rows[0] == 0 and one * rows[1] == other * rows[0]:
            return Rows(one // rows[0])
    raise ValueError(
        "the model computes with other numbers at other inputs or other numbers of rows"
        f"{f': {_described(node)}' if node else ''}."
    )


def _is_nan(given: Any) -> bool:
    return isinstance(given, Number) and given != given


# --- the program ---


def program_of(model: nn.Module, x: Tensor) -> Program:
    """The program that a model runs at inputs like x, (B, ...), which shows in its slopes too.

    Two recordings, of other inputs and other numbers of rows, must agree. Then the part from x to
    the logits is recorded by itself: if its way back is that of the model, operation by operation,
    explanations are the derivative of this part and of nothing else.
    """
    recordings = []
    for number, rows in enumerate(ROWS):
        here = _some_rows(x, rows, number)
        with _refusing(model):
            recordings.append(trimmed(recorded(model, here, _signal(here))))
    both = merged(recordings[0], recordings[1], ROWS)
    part = trimmed(Recording(nodes=both.nodes, logits=both.logits, gradient=None, classes=0))
    here = _some_rows(x, ROWS[0], 0)
    with _refusing(model):
        again = trimmed(recorded(lambda at: run(part.nodes, part.logits, at), here, _signal(here)))
    _check_same_gradient(recordings[0], again)
    return Program(
        nodes=part.nodes, logits=part.logits, classes=both.classes, fixed=_fixed(part.nodes)
    )


@contextmanager
def _refusing(model: nn.Module) -> Iterator[None]:
    """What a model's own code raises while it is recorded, told in one sentence."""
    try:
        yield
    except Refused:
        raise
    except Exception as problem:
        raise ValueError(
            f"{type(model).__name__} could not be recorded while it computed and differentiated a "
            f"few rows ({briefly(problem)})."
        ) from problem


def _some_rows(x: Tensor, rows: int, seed: int) -> Tensor:
    """Inputs like x, at random places among and around its rows: (rows, ...)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(x), (rows,), generator=generator).tolist()
    noise = torch.randn(rows, *x.shape[1:], generator=generator, dtype=torch.float64)
    return x[chosen] + 0.01 * noise.to(x)


MOST_CLASSES = 1 << 16


def _signal(x: Tensor) -> Tensor:
    """A signal to be pulled back, as wide as any row of logits: (rows, many)."""
    generator = torch.Generator().manual_seed(len(x))
    return torch.randn(len(x), MOST_CLASSES, generator=generator, dtype=torch.float64).to(x)


def _check_same_gradient(given: Recording, again: Recording) -> None:
    """Refuse a model whose way back is not that of its forward part."""
    table: dict[Any, int] = {}
    theirs = _numbered(again, table)
    known = set(theirs)
    ours = _numbered(given, table)
    if given.gradient is None or again.gradient is None:
        if (given.gradient is None) == (again.gradient is None):
            return
        raise ValueError(
            "the explanation is not the gradient of what the model computes: gradients are stopped "
            "or made on the way back."
        )
    if _key(given.gradient, ours, table) == _key(again.gradient, theirs, table):
        return
    strange = [node for node, key in zip(given.nodes, ours, strict=True) if key not in known]
    what = _described(strange[0]) if strange else "an operation"
    raise ValueError(
        "the explanation is not the gradient of what the model computes: its way back has "
        f"{what}, which the derivative of its forward has not (a hook on gradients, a backward of "
        "its own, numbers computed without gradients or written over)."
    )


def _numbered(recording: Recording, table: dict[Any, int]) -> list[int]:
    """The number of each node's result, equal for equal expressions."""
    keys: list[int] = []
    for node in recording.nodes:
        if node.literal is not None:
            keys.append(_key(Constant(node.literal), keys, table))
        elif node.operation in SAME_VALUE:
            keys.append(_key(next(iter(node.arguments.values())), keys, table))
        else:
            parts = tuple(
                (name, _key(each, keys, table))
                for name, each in node.arguments.items()
                if name != WITHOUT_MEANING.get(node.operation)
            )
            keys.append(table.setdefault((node.operation, parts), len(table)))
    return keys


def _key(given: Any, keys: Sequence[int], table: dict[Any, int]) -> int:
    if isinstance(given, Ref):
        own = keys[given.node]
        return table.setdefault(("output", own, given.output), len(table)) if given.output else own
    if isinstance(given, tuple):
        inside = tuple(_key(each, keys, table) for each in given)
        return table.setdefault(("list", inside), len(table))
    if isinstance(given, Constant):
        return table.setdefault(("constant", id(given.tensor)), len(table))
    return table.setdefault((type(given), repr(given)), len(table))


def _fixed(nodes: Sequence[Node]) -> dict[int, Any]:
    """The results of the nodes that depend on neither x nor the number of rows."""
    fixed: dict[int, Any] = {}

    def known(given: Any) -> bool:
        return (
            given.node in fixed if isinstance(given, Ref) else not isinstance(given, Input | Rows)
        )

    with torch.no_grad():
        for number, node in enumerate(nodes):
            if node.literal is not None:
                fixed[number] = node.literal
            elif all(map(known, leaves([*node.arguments.values()]))):
                fixed[number] = node.operation(**filled(node, fixed, None))
    return fixed
