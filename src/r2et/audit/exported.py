"""Exported programs (.pt2) read as data: a list of known operations and numbers, nothing else.

`torch.export.load` unpickles what an archive holds, evaluates the text of its shapes as Python and
calls whatever function a node names, so that a hostile file runs code. Here only the JSON graph and
the raw numbers of the weights are read, and every node must be an operation of `torch.ops.aten`.
"""

import io
import json
import operator
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

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

ARITHMETIC: dict[str, Callable[..., Any]] = {
    f"_operator.{each.__name__}": each
    for each in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.getitem)
}
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "torch.ops.aten.relu.default": nn.ReLU,
    "torch.ops.aten.leaky_relu.default": nn.LeakyReLU,
}
"""Kinks are made layers, so that an attack can follow smooth copies of them."""

PLAIN = (
    *("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools"),
    *("as_int_lists", "as_float_lists"),
)
WORDS = ("none", "tanh", "floor", "trunc")
"""Texts that an operation may be given, for GELU and divisions: never the name of a file."""


def read_exported(path: Path) -> fx.GraphModule:
    """The network of an archive that `torch.export.save` wrote, nothing in it run or unpickled."""
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            return _Archive(path, archive).network()
    except OSError as problem:
        raise ValueError(f"cannot read {path}: {problem.strerror or problem}.") from problem
    except (zipfile.BadZipFile, KeyError, TypeError, IndexError, AttributeError) as problem:
        raise ValueError(
            f"{path} is not a whole exported program ({type(problem).__name__}: {problem}): write "
            "it by torch.export.save."
        ) from problem


class _Archive:
    """The files of an archive, as far as they are read."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        names = archive.namelist()
        self.root = names[0].split("/")[0]
        if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
            raise self.refusal("its files are compressed, as torch.export.save never does")
        if f"{self.root}/models/model.json" not in names:
            raise self.refusal("it holds no models/model.json; older formats are not read")

    def refusal(self, why: str) -> ValueError:
        """That this file is not read, and why."""
        return ValueError(
            f"{self.path} is not an exported program that can be read safely: {why}; export it "
            "again, or give --model module:factory with --weights."
        )

    def json(self, name: str) -> Any:
        """A JSON file."""
        try:
            return json.loads(self.archive.read(f"{self.root}/{name}"))
        except (json.JSONDecodeError, UnicodeDecodeError) as problem:
            raise self.refusal(f"its {name} is no JSON") from problem

    def tensors(self, kind: str) -> dict[str, tuple[Tensor, bool]]:
        """Weights or constants by name, and whether each is a parameter."""
        config = self.json(f"data/{kind}/model_{kind}_config.json")["config"]
        return {name: self.tensor(kind, name, each) for name, each in config.items()}

    def tensor(self, kind: str, name: str, payload: Mapping[str, Any]) -> tuple[Tensor, bool]:
        """One tensor from its raw numbers."""
        meta = payload["tensor_meta"]
        if payload["use_pickle"] or meta is None:
            raise self.refusal(f"{name} is pickled, and a pickle can run code when it is opened")
        content = self.archive.read(f"{self.root}/data/{kind}/{payload['path_name']}")
        dtype = DTYPES[meta["dtype"]]
        flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0)
        sizes, strides = ([each["as_int"] for each in meta[what]] for what in ("sizes", "strides"))
        try:
            found = flat.as_strided(sizes, strides, meta["storage_offset"]["as_int"]).clone()
        except RuntimeError as problem:
            raise self.refusal(f"{name} has fewer numbers than its shape says") from problem
        return found, bool(payload["is_param"])

    def network(self) -> fx.GraphModule:
        """The graph of the program with its weights in place."""
        program = self.json("models/model.json")["graph_module"]
        graph, signature = program["graph"], program["signature"]
        known = self.tensors("weights") | self.tensors("constants")
        root, built = nn.Module(), fx.Graph()
        nodes: dict[str, Any] = {}
        inputs = 0
        for spec in signature["input_specs"]:
            [(kind, each)] = spec.items()
            if kind == "user_input":
                name = each["arg"]["as_tensor"]["name"]
                nodes[name] = built.placeholder("x")
                inputs += 1
                self.check_batch(name, graph)
                continue
            fields = {"parameter": "parameter_name", "buffer": "buffer_name",
                      "tensor_constant": "tensor_constant_name"}  # fmt: skip
            if kind not in fields:
                raise self.refusal(f"it takes an input of the kind {kind}")
            own, (value, is_parameter) = f"w{len(nodes)}", known[each[fields[kind]]]
            if is_parameter:
                root.register_parameter(own, nn.Parameter(value, requires_grad=False))
            else:
                root.register_buffer(own, value)
            nodes[each["arg"]["name"]] = built.get_attr(own)
        if inputs != 1:
            raise self.refusal(f"it takes {inputs} inputs, and an audit gives one")
        for node in graph["nodes"]:
            self.add(node, built, root, nodes)
        if len(graph["outputs"]) != 1:
            raise self.refusal(f"it returns {len(graph['outputs'])} things, and logits are one")
        built.output(self.argument(graph["outputs"][0], nodes))
        found = fx.GraphModule(root, built)
        found.eval()
        return found

    def check_batch(self, name: str, graph: Mapping[str, Any]) -> None:
        """Refuse a program that was exported for one number of rows only."""
        first = graph["tensor_values"][name]["sizes"][0]
        if "as_int" in first:
            raise ValueError(
                f"{self.path} was exported for batches of exactly {first['as_int']} rows: export "
                "it with dynamic_shapes={'x': {0: torch.export.Dim('batch')}}."
            )

    def add(self, node: Any, built: fx.Graph, root: nn.Module, nodes: dict[str, Any]) -> None:
        """One operation, added to the graph."""
        target = str(node["target"])
        if target.startswith("torch.ops.aten._assert"):
            return  # checks of shapes and types, which another number of rows or float64 would fail
        args, named = [], {}
        for each in node["inputs"]:
            value = self.argument(each["arg"], nodes)
            if each.get("kind") == 2:
                named[str(each["name"])] = value
            else:
                args.append(value)
        if target in LAYERS:
            own = f"layer{len(nodes)}"
            root.add_module(own, LAYERS[target](*args[1:], **named))
            made = built.call_module(own, (args[0],))
        elif target == "torch.ops.aten.sym_size.int":
            made = built.call_method("size", tuple(args), named)
        else:
            made = built.call_function(self.operation(target), tuple(args), named)
        outputs = [self.output_name(each) for each in node["outputs"]]
        if len(outputs) == 1 and isinstance(outputs[0], str):
            nodes[outputs[0]] = made
            return
        [names] = outputs if len(outputs) == 1 else [outputs]
        for place, name in enumerate(names):
            nodes[name] = built.call_function(operator.getitem, (made, place))

    def output_name(self, output: Mapping[str, Any]) -> Any:
        """The name, or the names, under which a result is known to later operations."""
        [(kind, value)] = output.items()
        if kind == "as_tensor":
            return str(value["name"])
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            return str(value["as_name"])
        if kind == "as_tensors":
            return [str(each["name"]) for each in value]
        raise self.refusal(f"an operation returns {kind}")

    def operation(self, target: str) -> Callable[..., Any]:
        """The operation of a name, if it is one of those that only compute."""
        if target in ARITHMETIC:
            return ARITHMETIC[target]
        parts = target.split(".")
        if len(parts) == 5 and parts[:3] == ["torch", "ops", "aten"] and _is_plain(*parts[3:]):
            packet = getattr(torch.ops.aten, parts[3], None)
            found = getattr(packet, parts[4], None)
            if isinstance(found, torch._ops.OpOverload):
                return found
        raise self.refusal(f"it calls {target}, which is no operation of torch.ops.aten")

    def argument(self, argument: Mapping[str, Any], nodes: Mapping[str, Any]) -> Any:
        """What an operation is given."""
        [(kind, value)] = argument.items()
        if kind in PLAIN or (kind == "as_string" and value in WORDS):
            return value
        if kind == "as_none":
            return None
        if kind in ("as_tensor", "as_optional_tensor"):
            return nodes[value["name"]] if "name" in value else self.argument(value, nodes)
        if kind in ("as_tensors", "as_optional_tensors"):
            return [self.argument({"as_optional_tensor": each}, nodes) for each in value]
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            [(what, inner)] = value.items()
            return nodes[inner] if what == "as_name" else inner
        if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
            return [self.argument({kind.removesuffix("s"): each}, nodes) for each in value]
        if kind == "as_scalar_type":
            return DTYPES[value]
        if kind == "as_device":
            return torch.device("cpu")
        if kind == "as_memory_format":
            return torch.contiguous_format
        if kind == "as_layout":
            return torch.strided
        raise self.refusal(f"an operation takes {kind}")


def _is_plain(name: str, overload: str) -> bool:
    return name.isidentifier() and overload.isidentifier() and not overload.endswith("out")
