"""Networks of straight pieces, read from what runs: linear maps with (Leaky)ReLUs between them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from r2et.certification.program import Input, Node, Program, Ref, filled, leaves, value_of
from r2et.core.cell_bounds import PiecewiseLinear

aten = torch.ops.aten

KINKS = {aten.relu.default: None, aten.leaky_relu.default: "negative_slope"}
"""Activations of two straight pieces, and the argument that holds their slope below zero."""

SUMS = frozenset(
    {
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.sub.Scalar,
        aten.rsub.Scalar,
        aten.rsub.Tensor,
        aten.neg.default,
        aten.cat.default,
        aten.stack.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.expand.default,
        aten.permute.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.select.int,
        aten.slice.Tensor,
        aten.index_select.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.sum.dim_IntList,
        aten.mean.dim,
    }
)
"""Linear operations, whichever of their arguments move with the input."""

PRODUCTS = {
    aten.mul.Tensor: ("self", "other"),
    aten.mul.Scalar: ("self",),
    aten.div.Tensor: ("self",),
    aten.div.Scalar: ("self",),
    aten.mm.default: ("self", "mat2"),
    aten.mv.default: ("self",),
    aten.addmm.default: ("mat1", "mat2"),
    aten.convolution.default: ("input",),
}
"""Operations that are linear in each of these arguments, of which one may move with the input."""

LARGEST = 4096
"""Numbers of a layer up to which maps are written out."""

EQUAL = 1e-9


def pieces_of(program: Program, x: Tensor) -> PiecewiseLinear:
    """The network that a program is for inputs like x, refused if it is none of straight pieces.

    Whatever stands between two activations is carried out on the unit vectors, which gives its
    weights; that it is linear follows from its operations, and is tried besides.
    """
    moving = _moving(program)
    kinks = [at for at in sorted(moving) if program.nodes[at].operation in KINKS]
    for at in sorted(moving - set(kinks)):
        _check_linear(program.nodes[at], moving)
    shapes = _shapes(program, x)
    ends = [program.nodes[at].arguments["self"] for at in kinks] + [program.logits]
    weights, offsets = list[Tensor](), list[Tensor]()
    for number, end in enumerate(ends):
        source = kinks[number - 1] if number else None
        shape = tuple(x.shape[1:]) if source is None else shapes[source]
        weight, offset = _written_out(program, end, source, kinks[:number], shape, x)
        weights.append(weight)
        offsets.append(offset)
    return PiecewiseLinear(
        weights=tuple(weights[:-1]),
        offsets=tuple(offsets[:-1]),
        slopes=tuple(_slope(program.nodes[at]) for at in kinks),
        last=weights[-1],
        shift=offsets[-1],
    )


def _slope(node: Node) -> float:
    """The slope of an activation below zero."""
    name = KINKS[node.operation]
    return 0.0 if name is None else float(node.arguments[name])


def _moving(program: Program) -> set[int]:
    """The nodes that depend on the input."""
    moving = set[int]()
    for at, node in enumerate(program.nodes):
        if node.literal is None and any(
            isinstance(each, Input) or (isinstance(each, Ref) and each.node in moving)
            for each in leaves([*node.arguments.values()])
        ):
            moving.add(at)
    return moving


def _check_linear(node: Node, moving: set[int]) -> None:
    """Refuse an operation that is not linear in what moves with the input."""
    names = [
        name
        for name, given in node.arguments.items()
        if any(
            isinstance(each, Input) or (isinstance(each, Ref) and each.node in moving)
            for each in leaves([given])
        )
    ]
    if node.operation in SUMS:
        return
    factors = [name for name in names if name in PRODUCTS.get(node.operation, ())]
    others = (
        set(names) - set(factors) - {"bias"} - ({"self"} if "mat1" in node.arguments else set())
    )
    if node.operation in PRODUCTS and len(factors) <= 1 and not others:
        return
    where = f" ({node.where})" if node.where else ""
    raise ValueError(
        f"cells are those of networks of straight pieces, but {node.operation}{where} is neither "
        "linear nor a ReLU or LeakyReLU: use certify instead."
    )


def _shapes(program: Program, x: Tensor) -> dict[int, tuple[int, ...]]:
    """The shape of one example's numbers at each node that gives a tensor."""
    known = _run(program, x[:1], {})
    return {at: tuple(each.shape[1:]) for at, each in known.items() if isinstance(each, Tensor)}


def _run(program: Program, x: Tensor, given: dict[int, Tensor]) -> dict[int, Any]:
    """All results at x, with those `given` in place of what these nodes compute."""
    known: dict[int, Any] = {}
    for at, node in enumerate(program.nodes):
        if at in given:
            known[at] = given[at]
        elif node.literal is not None:
            known[at] = node.literal
        else:
            known[at] = node.operation(**filled(node, known, x, len(x)))
    return known


def _written_out(
    program: Program,
    end: Any,
    source: int | None,
    before: Sequence[int],
    shape: tuple[int, ...],
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    """Weights (m, s) and offset (m) by which `end` follows from the activation `source`, or x."""
    size = int(torch.Size(shape).numel())
    if size > LARGEST:
        raise ValueError(
            f"a search over cells is for layers of at most {LARGEST} numbers, got {size}: use "
            "certify instead."
        )
    tried = torch.randn(3, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probes = torch.cat([torch.zeros(1, size, dtype=torch.float64), torch.eye(size).double(), tried])
    probes = probes.to(x.device)
    reached = _from(program, end, source, before, shape, x)(probes)
    offset = reached[0]
    weight = (reached[1 : size + 1] - offset).mT
    again = tried.to(x.device) @ weight.mT + offset
    scale = 1 + weight.abs().sum() + offset.abs().amax()
    if not bool(((again - reached[size + 1 :]).abs() <= EQUAL * scale).all()):
        raise ValueError(
            "cells are those of plain layers one after another: what stands between two "
            "activations of this network is not linear in the first alone."
        )
    return weight.contiguous(), offset.contiguous()


def _from(
    program: Program,
    end: Any,
    source: int | None,
    before: Sequence[int],
    shape: tuple[int, ...],
    x: Tensor,
) -> Callable[[Tensor], Tensor]:
    """`end` as a function of an activation's numbers; NaN if it depends on anything before."""

    def reached(numbers: Tensor) -> Tensor:
        placed = numbers.view(len(numbers), *shape)
        if source is None:
            inputs, given = placed, dict[int, Tensor]()
        else:
            inputs = torch.full((len(numbers), *x.shape[1:]), torch.nan).to(numbers)
            known = _run(program, inputs, {})
            given = {at: torch.full_like(known[at], torch.nan) for at in before}
            given[source] = placed
        known = _run(program, inputs, given)
        found: Tensor = value_of(end, known, inputs, len(inputs))
        return found.flatten(1)

    return reached
