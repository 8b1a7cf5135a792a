"""Recorded programs: aten operations on tensors in the order they ran, without any Python."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._ops import OpOverload


@dataclass(frozen=True)
class Ref:
    """An output of an earlier node: the node's number and the output's."""

    node: int
    output: int = 0


@dataclass(frozen=True)
class Input:
    """The input of a recording: "x", or "signal", which is pulled back through the model."""

    name: str


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that was there before the recording: a parameter, a buffer, or kept by the model."""

    tensor: Tensor


@dataclass(frozen=True)
class Rows:
    """A size that is `times` the number of rows."""

    times: int = 1


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: an exact overload, all its arguments by name, and where it was called.

    `literal` holds the tensor of an operation that only hands on numbers of the model's text.
    """

    operation: OpOverload
    arguments: Mapping[str, Any]
    where: str
    literal: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """The operations from x to the logits: what certificates are about.

    `fixed` holds the results of the nodes that depend on neither x nor the number of rows.
    """

    nodes: tuple[Node, ...]
    logits: Any
    classes: int
    fixed: Mapping[int, Any]

    def __call__(self, x: Tensor) -> Tensor:
        """The logits, each operation carried out anew: (B, C)."""
        found: Tensor = run(self.nodes, self.logits, x)
        return found


def leaves(given: Any) -> Iterator[Any]:
    """What stands in an argument, or in lists of them."""
    if isinstance(given, tuple | list):
        for each in given:
            yield from leaves(each)
    else:
        yield given


def with_leaves(given: Any, change: Callable[[Any], Any]) -> Any:
    """The argument with every leaf changed; lists of them are tuples."""
    if isinstance(given, tuple | list):
        return tuple(with_leaves(each, change) for each in given)
    return change(given)


def run(nodes: Sequence[Node], end: Any, x: Tensor) -> Any:
    """What the operations give for x."""
    known: dict[int, Any] = {}
    for number, node in enumerate(nodes):
        known[number] = (
            node.operation(**filled(node, known, x, len(x)))
            if node.literal is None
            else node.literal
        )
    return value_of(end, known, x, len(x))


def filled(node: Node, known: Mapping[int, Any], x: Any, rows: int | None = None) -> dict[str, Any]:
    """The arguments of a node, given the results of those before it."""
    return {name: value_of(each, known, x, rows) for name, each in node.arguments.items()}


def value_of(given: Any, known: Mapping[int, Any], x: Any, rows: int | None = None) -> Any:
    """What stands for an argument; sizes by the number of rows are left open without `rows`."""
    if isinstance(given, Ref):
        found = known[given.node]
        return found[given.output] if isinstance(found, tuple | list) else found
    if isinstance(given, Constant):
        return given.tensor
    if isinstance(given, Input):
        return x
    if isinstance(given, Rows) and rows is not None:
        return given.times * rows
    if isinstance(given, tuple):
        return [value_of(each, known, x, rows) for each in given]
    return given
