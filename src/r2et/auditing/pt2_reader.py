"""Exported programs (.pt2) read as data: a list of known operations and numbers, nothing else.

`torch.export.load` unpickles what an archive holds, evaluates the text of its shapes as Python and
calls whatever function a node names, so that a hostile file runs code. Here only the JSON graph and
the raw numbers of the weights are read, and sizes are compared with what the file holds before
anything is made. Every node must be one of `r2et.auditing.pt2_operations`, which are run one after
the other by `r2et.auditing.pt2_program`. No name in a file becomes code, an attribute or a path.
"""

import json
import math
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2et.auditing.pt2_operations import (
    ARITHMETIC,
    DIMENSIONS,
    LEAKY_RELU,
    MAKERS,
    OPERATIONS,
    RELU,
    bound,
)
from r2et.auditing.pt2_program import Exported, Slot, Step, Working
from r2et.core.limits import most_bytes

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
"""As the archive numbers them."""

FORMATS = {1: torch.contiguous_format, 2: torch.contiguous_format, 4: torch.preserve_format}
"""The same numbers lie differently in the second, channels last: no program may depend on it."""

PLAIN = {"as_int": (int,), "as_float": (float, int), "as_bool": (bool,), "as_string": (str,)}
STRIDED = 7
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}
ASSERTIONS = frozenset(
    f"torch.ops.aten.{each}"
    for each in ("_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg")
)
"""Checks of shapes and types, which another number of rows or float64 would fail."""
COPIES = frozenset(("aten.lift_fresh_copy.default", "aten.detach_.default"))
"""What is done to constants: nothing, as nothing here is ever changed."""

MOST_JSON = 2**25
"""Bytes of its graph, and four times those of each list of its weights."""
MOST_NODES = 20_000
"""Operations of a program, and its weights."""

CURE = "export it again, or give --model module:factory with --weights"
DECOMPOSE = (
    "export it again after model.eval() and save program.run_decompositions(), or give --model "
    "module:factory"
)


class _Refusal(ValueError):
    """Why a file is not read, and what to do instead."""

    def __init__(self, why: str, cure: str = CURE) -> None:
        super().__init__(why)
        self.cure = cure


def read_exported(path: Path, *, most: int | None = None) -> Exported:
    """The network of an archive that `torch.export.save` wrote, nothing in it run or unpickled.

    Its weights and one run of it hold at most `most` numbers, as many as R2ET_MAX_BYTES hold in
    single precision unless given; a run of many rows may make `MOST_PER_ROW` for each.
    """
    most = most_bytes() // 4 if most is None else most
    try:
        if not path.is_file():
            raise _Refusal("it is no file")
        if (size := path.stat().st_size) > 8 * most + 2 * MOST_JSON:
            raise _Refusal(f"it holds {size} bytes, more than the {most} numbers allowed need")
        with zipfile.ZipFile(path) as archive:
            return _Reader(_Archive(archive, size), most).network()
    except _Refusal as problem:
        raise ValueError(
            f"{path} is not an exported program that can be read safely: {problem}; {problem.cure}."
        ) from problem
    except OSError as problem:
        raise ValueError(f"cannot read {path}: {problem.strerror or problem}.") from problem
    except BROKEN as problem:
        said = _shortly(f"{type(problem).__name__}: {problem}").rstrip(".")
        raise ValueError(
            f"{path} is not a whole exported program ({said}): write it by torch.export.save."
        ) from problem


BROKEN = (
    *(zipfile.BadZipFile, struct.error, EOFError, NotImplementedError, OverflowError),  # archive
    *(KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError),  # JSON
)


class _Archive:
    """The files of an archive, as far as they are read."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self.archive = archive
        members = archive.infolist()
        self.root = members[0].filename.split("/")[0]
        self.members = {each.filename: each for each in members}
        if len(self.members) < len(members):
            raise _Refusal("two of its files have the same name")
        if any(each.compress_type != zipfile.ZIP_STORED for each in members):
            raise _Refusal("its files are compressed, as torch.export.save never does")
        if any(each.flag_bits & 1 for each in members):
            raise _Refusal("its files are encrypted, as torch.export.save never does")
        if sum(each.file_size for each in members) > size:
            raise _Refusal("its files claim to hold more than all of it does")
        if f"{self.root}/models/model.json" not in self.members:
            raise _Refusal("it holds no models/model.json; older formats are not read")
        if self.order() != sys.byteorder.encode():
            raise _Refusal(f"its numbers are not {sys.byteorder}-endian, as those of this machine")

    def order(self) -> bytes:
        """Which end of a number comes first."""
        known = f"{self.root}/byteorder" in self.members
        return self.read("byteorder") if known else sys.byteorder.encode()

    def read(self, name: str) -> bytes:
        """What a file of the archive holds."""
        if f"{self.root}/{name}" not in self.members:
            raise _Refusal(f"it holds no {_shortly(name)}")
        return self.archive.read(self.members[f"{self.root}/{name}"])

    def json(self, name: str, most: int = MOST_JSON) -> Any:
        """A JSON file of at most so many bytes."""
        member = self.members.get(f"{self.root}/{name}")
        if member is not None and member.file_size > most:
            raise _Refusal(f"its {name} holds more than {most} bytes")
        try:
            return json.loads(self.read(name), object_pairs_hook=_unique, parse_constant=_no_number)
        except RecursionError as problem:
            raise _Refusal(f"its {name} is nested too deeply") from problem
        except (json.JSONDecodeError, UnicodeDecodeError) as problem:
            raise _Refusal(f"its {name} is no JSON") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refusal("its JSON gives a name twice")
    return found


def _no_number(text: str) -> float:
    raise _Refusal(f"its JSON holds {text}, which is no number")


class _Weights:
    """The raw numbers of weights and constants, each made when it is asked for."""

    def __init__(self, archive: _Archive, most: int) -> None:
        self.archive, self.most, self.made = archive, most, 0
        self.payloads: dict[str, tuple[str, Any]] = {}
        self.contents: dict[str, bytearray] = {}
        for kind in ("weights", "constants"):
            config = archive.json(f"data/{kind}/model_{kind}_config.json", MOST_JSON // 4)["config"]
            for name, payload in config.items():
                if name in self.payloads:
                    raise _Refusal(f"its weights have the name {_shortly(name)} twice")
                self.payloads[name] = (kind, payload)

    def tensor(self, name: str) -> tuple[Tensor, bool]:
        """One tensor, and whether it is a parameter."""
        if name not in self.payloads:
            raise _Refusal(f"it uses the weights {_shortly(name)}, and holds none of this name")
        kind, payload = self.payloads[name]
        meta = payload["tensor_meta"]
        if payload["use_pickle"] or meta is None:
            raise _Refusal(
                f"{_shortly(name)} is pickled, and a pickle can run code when it is opened"
            )
        if meta["layout"] != STRIDED or meta["dtype"] not in DTYPES:
            raise _Refusal(f"{_shortly(name)} is no plain tensor of real numbers")
        dtype, content = DTYPES[meta["dtype"]], self.content(kind, _text(payload["path_name"]))
        sizes, strides = ([_count(each["as_int"]) for each in meta[what]]
                          for what in ("sizes", "strides"))  # fmt: skip
        offset = _count(meta["storage_offset"]["as_int"])
        held = len(content) // dtype.itemsize
        self.check(name, sizes, strides, offset, held)
        if not math.prod(sizes):
            return torch.empty(sizes, dtype=dtype), False
        # A byte other than 0 and 1 is no truth value, and kernels do not expect one.
        raw = torch.uint8 if dtype == torch.bool else dtype
        found = torch.frombuffer(content, dtype=raw, count=held).as_strided(sizes, strides, offset)
        found = found != 0 if dtype == torch.bool else found.clone()
        return found, bool(payload["is_param"]) and found.is_floating_point()

    def content(self, kind: str, path: str) -> bytearray:
        """The bytes of a file of weights, which several of them may share."""
        name = f"data/{kind}/{path}"
        if name not in self.contents:
            self.contents[name] = bytearray(self.archive.read(name))
        return self.contents[name]

    def check(
        self, name: str, sizes: list[int], strides: list[int], offset: int, held: int
    ) -> None:
        """Refuse a shape that `held` numbers do not fill, or that holds too many."""
        if len(sizes) != len(strides) or len(sizes) > DIMENSIONS:
            raise _Refusal(f"{_shortly(name)} has {len(sizes)} sizes and {len(strides)} strides")
        count = math.prod(sizes)
        steps = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
        if count and offset + sum(steps) >= held:
            raise _Refusal(f"{_shortly(name)} has fewer numbers than its shape says")
        self.made += math.prod(max(1, size) for size in sizes)  # also beside a size of 0
        if self.made > self.most:
            raise _Refusal(f"its weights hold more than the {self.most} numbers allowed")


class _Reader:
    """Builds the program of an archive, step by step."""

    def __init__(self, archive: _Archive, most: int) -> None:
        self.archive, self.most = archive, most
        self.slots: dict[str, Slot] = {}
        self.steps: list[Step] = []
        self.weights: list[tuple[Tensor, bool]] = []
        self.working = torch.float32
        self.count, self.kinks = 1, 0

    def network(self) -> Exported:
        """The program with its weights in place, walked through once in each precision."""
        program = self.archive.json("models/model.json")["graph_module"]
        graph, signature = program["graph"], program["signature"]
        if len(graph["nodes"]) + len(signature["input_specs"]) > MOST_NODES:
            raise _Refusal(f"it has more than {MOST_NODES} operations and weights")
        self.check_outputs(signature["output_specs"])
        width = self.read_inputs(signature["input_specs"], graph["tensor_values"])
        for node in graph["nodes"]:
            self.read_node(node)
        answer = self.read_answer(graph["outputs"])
        found = Exported(
            width=width,
            weights=self.weights,
            steps=_spending(self.steps, answer),
            answer=answer,
            most=self.most,
        )
        own = found.dtypes()
        exact = [torch.float64 if each.is_floating_point else each for each in own]
        try:
            found.rehearse((2, *width), self.working, own)
            found.rehearse((3, *width), torch.float64, exact)
        except ValueError as problem:
            raise _Refusal(str(problem).rstrip(".")) from problem
        found.eval()
        return found

    def read_inputs(self, specs: Sequence[Any], values: Mapping[str, Any]) -> tuple[int, ...]:
        """Take in the weights, and the one input, whose shape of a row comes back."""
        fields = {"parameter": "parameter_name", "buffer": "buffer_name",
                  "tensor_constant": "tensor_constant_name"}  # fmt: skip
        stored, widths = _Weights(self.archive, self.most), []
        for spec in specs:
            kind, each = _only(spec)
            if kind == "user_input":
                name = _text(each["arg"]["as_tensor"]["name"])
                self.name(name, Slot(0))
                widths.append(self.read_width(values[name]))
            elif kind in fields:
                self.weights.append(stored.tensor(_text(each[fields[kind]])))
                self.name(_text(each["arg"]["name"]), self.next_slot())
            else:
                raise _Refusal(f"it takes an input of the kind {_shortly(kind)}")
        if len(widths) != 1:
            raise _Refusal(f"it takes {len(widths)} inputs, and an audit gives one")
        return widths[0]

    def read_width(self, meta: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of one row, refused if the number of rows is not free, or another size is."""
        first, *rest = meta["sizes"]
        if "as_int" in first:
            raise _Refusal(
                f"it was exported for batches of exactly {_count(first['as_int'])} rows",
                "export it with dynamic_shapes={'x': {0: torch.export.Dim('batch')}}",
            )
        if not all("as_int" in each for each in rest):
            raise _Refusal("its rows are of any length, and an audit gives rows of one shape")
        self.working = DTYPES.get(meta["dtype"], torch.complex64)
        if not self.working.is_floating_point:
            raise _Refusal("it takes whole numbers, and an audit gives real ones")
        width = tuple(_count(each["as_int"]) for each in rest)
        if len(width) >= DIMENSIONS or math.prod(max(1, size) for size in width) > self.most:
            raise _Refusal(f"one row of it is of the shape {_shortly(str(width))}")
        return width

    def read_node(self, node: Mapping[str, Any]) -> None:
        """Add one operation to the program."""
        target = _text(node["target"])
        if target in ASSERTIONS:
            return
        operation = target.removeprefix("torch.ops.")
        if operation not in (ARITHMETIC if operation == target else OPERATIONS.keys() | COPIES):
            raise _Refusal(f"it calls {_shortly(target)}, {_why_not(operation)}", DECOMPOSE)
        given = [(_text(each["name"]), self.argument(each["arg"])) for each in node["inputs"]]
        outputs = [name for each in node["outputs"] for name in _names(each)]
        if operation in COPIES:
            [(_, constant)], [name] = given, outputs
            if not self.is_constant(constant):
                raise _Refusal(f"it calls {target} on what it has computed", DECOMPOSE)
            self.name(name, constant)
            return
        step = Step(
            operation=operation,
            given=tuple(self.bound(operation, given).items()),
            results=tuple(self.next_slot().place for _ in outputs),
            kink=self.next_kink(operation, given),
        )
        for name, place in zip(outputs, step.results, strict=True):
            self.name(name, Slot(place))
        self.steps.append(step)

    def bound(self, operation: str, given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """What an operation is given, by its own names."""
        found = dict(given)
        if len(found) < len(given):
            raise _Refusal(f"{operation} is given an argument twice")
        if operation in ARITHMETIC:
            if len(given) != 2:
                raise _Refusal(f"{operation} is given {len(given)} sizes")
            return {"a": given[0][1], "b": given[1][1]}
        try:
            found = bound(operation, found)
        except ValueError as problem:
            raise _Refusal(str(problem)) from problem
        return self.in_working_precision(operation, found)

    def in_working_precision(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """New real numbers made to follow the input, as they do where torch's own default is it."""
        numbers = [each for each in given.values() if type(each) in (int, float, bool)]
        real = not numbers or float in map(type, numbers)
        if operation in MAKERS and given.get("dtype") is None and real:
            given["dtype"] = Working() if self.working == torch.float32 else None
        return given

    def next_slot(self) -> Slot:
        """A place for another value."""
        self.count += 1
        return Slot(self.count - 1)

    def next_kink(self, operation: str, given: Sequence[tuple[str, Any]]) -> int | None:
        """The place of a (Leaky)ReLU among the layers, none for other operations."""
        slope = dict(given).get("negative_slope", 0.0)
        if operation not in (RELU, LEAKY_RELU) or not isinstance(slope, int | float):
            return None
        self.kinks += 1
        return self.kinks - 1

    def name(self, name: str, slot: Slot) -> None:
        """Let later operations find a value under a name."""
        if name in self.slots:
            raise _Refusal(f"two of its values have the name {_shortly(name)}")
        self.slots[name] = slot

    def slot(self, name: Any) -> Slot:
        """Where the value of a name is found."""
        if _text(name) not in self.slots:
            raise _Refusal(f"it uses {_shortly(name)} before saying what it is")
        return self.slots[name]

    def is_constant(self, value: Any) -> bool:
        """Whether a value is a weight or a constant, that is, no result of anything."""
        return isinstance(value, Slot) and 0 < value.place <= len(self.weights)

    def check_outputs(self, specs: Sequence[Any]) -> None:
        """Refuse a program that returns something else than logits, or changes something."""
        kinds = [_only(each)[0] for each in specs]
        if any("mutation" in each for each in kinds):
            raise _Refusal("it changes what it was given", "export it again after model.eval()")
        if kinds != ["user_output"]:
            raise _Refusal(f"it returns {len(kinds)} things, and logits are one")

    def read_answer(self, outputs: Sequence[Any]) -> int:
        """Where the one result of the program is found."""
        found = [self.argument(each) for each in outputs]
        if len(found) != 1 or not isinstance(found[0], Slot):
            raise _Refusal(f"it returns {len(found)} things, and logits are one tensor")
        return found[0].place

    def argument(self, argument: Mapping[str, Any]) -> Any:
        """What an operation is given; whether it may be is seen when all of it is known."""
        kind, value = _only(argument)
        if kind == "as_none":
            return None
        if kind in PLAIN:
            return _plain(kind, value)
        if kind in ("as_ints", "as_floats", "as_bools"):
            return tuple(_plain(kind.removesuffix("s"), each) for each in _items(value))
        if kind in ("as_tensor", "as_optional_tensor"):
            return self.slot(value["name"]) if "name" in value else self.argument(value)
        if kind in ("as_tensors", "as_optional_tensors"):
            return tuple(self.argument({"as_optional_tensor": each}) for each in _items(value))
        if kind == "as_sym_int":
            what, inner = _only(value)
            return self.slot(inner) if what == "as_name" else _plain("as_int", inner)
        if kind == "as_sym_ints":
            return tuple(self.argument({"as_sym_int": each}) for each in _items(value))
        if kind == "as_scalar_type":
            return self.dtype(value)
        if kind == "as_memory_format" and value in FORMATS:
            return FORMATS[value]
        if kind == "as_device" or (kind == "as_layout" and value == STRIDED):
            return None  # numbers lie where the input does
        raise _Refusal(f"an operation takes {_shortly(kind)}")

    def dtype(self, number: Any) -> torch.dtype | Working:
        """A precision, that of the program itself as whatever it is run in."""
        found = DTYPES.get(number)
        if found == self.working:
            return Working()
        if found is None or (found.is_floating_point and found != torch.float64):
            raise _Refusal(
                f"it was exported for {self.working} and changes to {found or 'other numbers'} on "
                "its way",
                "export it in one precision, as by model.float()",
            )
        return found


def _spending(steps: Sequence[Step], answer: int) -> list[Step]:
    """The steps, each knowing the values that none after it needs."""
    needed, found = {answer}, []
    for step in reversed(steps):
        here = {*step.results, *_places(dict(step.given).values())}
        found.append(replace(step, spent=tuple(sorted(here - needed))))
        needed |= here
    return found[::-1]


def _places(values: Any) -> Iterator[int]:
    for each in values:
        if isinstance(each, Slot):
            yield each.place
        elif isinstance(each, tuple):
            yield from _places(each)


def _why_not(operation: str) -> str:
    name = operation.split(".")[1:2]
    if name and name[0].endswith("_") and not name[0].endswith("__"):
        return "which writes over what it is given"
    return "which is not among the operations that are run"


def _names(output: Mapping[str, Any]) -> list[str]:
    """The names under which results are known to later operations."""
    kind, value = _only(output)
    if kind == "as_tensor":
        return [_text(value["name"])]
    if kind == "as_sym_int":
        return [_text(value["as_name"])]
    if kind == "as_tensors":
        return [_text(each["name"]) for each in _items(value)]
    raise _Refusal(f"an operation returns {_shortly(kind)}")


def _only(union: Mapping[str, Any]) -> tuple[str, Any]:
    [(kind, value)] = union.items()
    return kind, value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refusal(f"a name in it is {_shortly(repr(value))}")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Refusal(f"a list in it is {_shortly(repr(value))}")
    return value


def _plain(kind: str, value: Any) -> Any:
    if kind == "as_float" and isinstance(value, str):
        value = INFINITIES.get(value, value)
    if type(value) not in PLAIN[kind]:
        raise _Refusal(f"an argument in it is {_shortly(kind)} and {_shortly(repr(value))}")
    return float(value) if kind == "as_float" else value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**40:
        raise _Refusal(f"a size in it is {_shortly(repr(value))}")
    return value


def _shortly(text: Any) -> str:
    """Text of a file as a message may show it: on one line, not long, nothing that steers."""
    line = " ".join(str(text).split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= 80 else f"{line[:80]}..."
