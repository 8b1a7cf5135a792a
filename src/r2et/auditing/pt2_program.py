"""Programs of known operations, run step by step; no code is made of them.

Every number of rows is walked through once without numbers, on torch's device "meta", before it is
run: what each operation is given is held against its schema there, and what it would make is
counted. So nothing is made that is larger than allowed, whatever numbers a file holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from r2et.auditing.pt2_operations import (
    DIMENSIONS,
    HIDDEN,
    LEAKY_RELU,
    called,
    checked,
    is_several,
    shown,
)

MOST = 2**28
"""Numbers that one run of a program may make: 2 GB in float64. Wide batches may make more."""
MOST_PER_ROW = 2**15


@dataclass(frozen=True)
class Slot:
    """Where a value is found while a program runs: 0 is the input, then weights, then results."""

    place: int

    def __repr__(self) -> str:
        """As in the text of a program: %3."""
        return f"%{self.place}"


@dataclass(frozen=True)
class Working:
    """The precision that a program works in: that of its input, whichever it was written in."""

    def __repr__(self) -> str:
        """As in the text of a program."""
        return "working"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation, what it is `given` by the names of its schema, and where its results go.

    `kink` is the place of a (Leaky)ReLU among the program's layers; values `spent` are needed no
    more after this step.
    """

    operation: str
    given: tuple[tuple[str, Any], ...]
    results: tuple[int, ...]
    kink: int | None = None
    spent: tuple[int, ...] = ()

    def filled(self, values: Mapping[int, Any], like: Tensor) -> dict[str, Any]:
        """What the operation is given in a run whose input is `like`."""
        return {name: _filled(each, values, like) for name, each in self.given}

    def __str__(self) -> str:
        """The step as a line: %3 = aten.relu.default(self=%2)."""
        given = ", ".join(f"{name}={each}" for name, each in self.given)
        return f"{', '.join(f'%{each}' for each in self.results)} = {self.operation}({given})"


class Exported(nn.Module):
    """A program read from a file, as a model: rows of the shape `width` in, its answer out.

    Its weights are parameters and buffers of its own names; each ReLU and LeakyReLU is a layer, so
    that an attack can follow smooth copies of them.
    """

    def __init__(
        self,
        *,
        width: tuple[int, ...],
        weights: Sequence[tuple[Tensor, bool]],
        steps: Sequence[Step],
        answer: int,
        most: int = MOST,
    ) -> None:
        super().__init__()
        self.width, self.steps, self.answer, self.most = width, tuple(steps), answer, most
        self.names = tuple(f"w{place}" for place in range(1, len(weights) + 1))
        for name, (value, is_parameter) in zip(self.names, weights, strict=True):
            if is_parameter:
                self.register_parameter(name, nn.Parameter(value, requires_grad=False))
            else:
                self.register_buffer(name, value)
        kinks = [step for step in self.steps if step.kink is not None]
        self.kinks = nn.ModuleList(_layer(step) for step in kinks)
        self.admitted: set[tuple[torch.dtype, tuple[int, ...]]] = set()

    def forward(self, x: Tensor) -> Tensor:
        """The program's answer for rows x: (B, ...)."""
        self.admit(x)
        x = x.contiguous()
        values = dict(enumerate((x, *(getattr(self, name) for name in self.names))))
        for step in self.steps:
            given = step.filled(values, x)
            try:
                if step.kink is not None:
                    found = self.kinks[step.kink](given["self"])
                else:
                    found = called(step.operation, given, x)
            except (RuntimeError, IndexError) as problem:
                raise ValueError(_failed(step, problem)) from problem
            _keep(step, found, values)
        answer: Tensor = values[self.answer]
        return answer

    def admit(self, x: Tensor) -> None:
        """Refuse rows that the program does not take, or that would make it too large."""
        shape = tuple(int(size) for size in x.shape)
        if shape[1:] != self.width or x.ndim == 0 or not x.is_floating_point():
            raise ValueError(
                f"the exported program takes rows of real numbers of shape {self.width}, got "
                f"{shape} of {x.dtype}: give the inputs that it was exported for."
            )
        if (x.dtype, shape) not in self.admitted:
            self.rehearse(shape, x.dtype, self.dtypes())
            self.admitted.add((x.dtype, shape))

    def dtypes(self) -> list[torch.dtype]:
        """The precision of each weight."""
        return [getattr(self, name).dtype for name in self.names]

    def rehearse(
        self, shape: tuple[int, ...], dtype: torch.dtype, dtypes: Sequence[torch.dtype]
    ) -> None:
        """Walk through the program without numbers, and refuse what does not fit."""
        # Not to be recorded by whoever records what runs.
        with _disable_current_modes(), torch.no_grad():
            x = torch.empty(shape, dtype=dtype, device="meta")
            values: dict[int, Any] = {0: x}
            for place, (name, own) in enumerate(zip(self.names, dtypes, strict=True), 1):
                weight = getattr(self, name)
                values[place] = torch.empty_strided(
                    weight.shape, weight.stride(), dtype=own, device="meta"
                )
            made, most = 0, max(self.most, MOST_PER_ROW * shape[0])
            for step in self.steps:
                made += self._rehearsed(step, values, x, most)
                if made > most:
                    raise ValueError(_too_large(step, made, shape[0], most))
            answer = values[self.answer]
        if not isinstance(answer, Tensor) or tuple(answer.shape[:1]) != shape[:1]:
            raise ValueError(
                "an exported program must return a row of logits for each row, but this one "
                f"returns {shown(answer)} for {shape[0]} rows: export the network alone."
            )

    def _rehearsed(self, step: Step, values: dict[int, Any], x: Tensor, most: int) -> int:
        """How many numbers a step makes: refused if what it is given does not fit."""
        given = step.filled(values, x)
        try:
            checked(step.operation, given)
        except ValueError as problem:
            raise ValueError(
                f"a step of an exported program does not fit its operation: {problem}."
            ) from problem
        try:
            found = called(step.operation, given, x)
        except Exception as problem:  # such functions of torch, many in Python, raise anything
            raise ValueError(_failed(step, problem)) from problem
        results = _keep(step, found, values)
        if step.operation in HIDDEN:
            on_the_way = HIDDEN[step.operation](given, results[0])
            if on_the_way > most:
                raise ValueError(_too_large(step, on_the_way, x.shape[0], most))
        tensors = [each for each in results if isinstance(each, Tensor)]
        if any(each.ndim > DIMENSIONS or each.is_complex() for each in tensors):
            raise ValueError(
                f"{step.operation} of an exported program makes complex numbers, or more than "
                f"{DIMENSIONS} dimensions: export a network of real numbers."
            )
        return sum(each.numel() for each in tensors)

    def extra_repr(self) -> str:
        """The steps of the program."""
        return "\n".join((f"%0 = rows of {self.width}", *map(str, self.steps), f"%{self.answer}"))


def _filled(value: Any, values: Mapping[int, Any], like: Tensor) -> Any:
    if isinstance(value, Slot):
        return values[value.place]
    if isinstance(value, Working):
        return like.dtype
    return [_filled(each, values, like) for each in value] if isinstance(value, tuple) else value


def _keep(step: Step, found: Any, values: dict[int, Any]) -> list[Any]:
    """Put the results of a step where later steps look for them."""
    expected, several = len(step.results), is_several(step.operation)
    count = len(found) if isinstance(found, list | tuple) else expected if several else 1
    if count != expected:
        raise ValueError(
            f"{step.operation} of an exported program returns {count} results, not {expected} as "
            "the file says: export it again."
        )
    results = [found[place] for place in range(expected)] if several else [found]
    values.update(zip(step.results, results, strict=True))
    for place in step.spent:
        del values[place]
    return results


def _layer(step: Step) -> nn.Module:
    given = dict(step.given)
    if step.operation == LEAKY_RELU:
        return nn.LeakyReLU(given.get("negative_slope", 0.01))
    return nn.ReLU()


def _failed(step: Step, problem: Exception) -> str:
    said = str(problem).strip().splitlines()
    why = said[0].rstrip(".") if said else type(problem).__name__
    return (
        f"{step.operation} of an exported program cannot be run on what it is given ({why}): "
        "export it again, in one precision."
    )


def _too_large(step: Step, made: int, rows: int, most: int) -> str:
    return (
        f"an exported program would make {made} numbers for {rows} rows by {step.operation}, more "
        f"than the {most} allowed: give fewer rows at once, or set R2ET_MAX_BYTES to more."
    )
