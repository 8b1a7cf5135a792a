import copy
import io
import json
import operator
import pickle
import random
import resource
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from r2et.auditing.pt2_operations import OPERATIONS, called, checked
from r2et.auditing.pt2_program import MOST_PER_ROW, Exported, Slot, Step
from r2et.auditing.pt2_reader import MOST_JSON, read_exported
from r2et.auditing.subject import model_digest
from r2et.core.autograd import eval_mode
from r2et.models.smoothing import SoftLeaky, softened
from refusals import refusal

GRAPH = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"

# --- programs and their models ------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.first(x), 0.2)
        return self.last(h + F.gelu(self.second(h), approximate="tanh"))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.given, self.last = nn.Linear(2, 8), nn.Linear(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.given(x.view(x.shape[0], -1, 2))).mean(1))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, 3), nn.Linear(9, 2)
        self.register_buffer("chosen", torch.tensor([1, 3, 5, 7]))

    def forward(self, x: Tensor) -> Tensor:
        kinds = x[:, 0].long().clamp(0, 4)
        halves = torch.cat(x[:, 4:].chunk(2, 1)[::-1], 1)
        return self.last(
            torch.cat([self.table(kinds), x[:, self.chosen], halves[:, [0, 2]]], 1)
        ) + torch.tensor([0.5, -0.5])


class Assorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.groups, self.last = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.groups(self.norm(x)).view(x.size(0), 2, -1)
        h = h.expand(-1, 2, 4).permute(0, 2, 1).flatten(1)
        h = torch.where(h > 0, h, h.exp() - 1) + F.softplus(h, beta=2) * torch.sigmoid(h)
        masked = h.masked_fill(h > 1, float("-inf")).softmax(-1)
        ones = torch.ones(x.shape[0], 2) + torch.zeros_like(x)[:, :2] + torch.arange(2)
        scale = (x.pow(2).sum(1, keepdim=True) + 1).sqrt().clamp(min=1e-3)
        shaped = torch.stack([h, -h, 1 - h], 1).amax(1)[:, :3] / scale + masked[:, 5:]
        return F.log_softmax(self.last(torch.cat([masked, ones, shaped, scale], 1)), -1)


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 4)),
        *(nn.SiLU(), nn.Linear(4, 2)),
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 3, groups=2), nn.LeakyReLU(0.1), nn.Upsample(scale_factor=2)),
        *(nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (8,)),
    "cnn": (cnn, (1, 12, 12)),
    "residual": (Residual, (8,)),
    "attention": (Attention, (8,)),
    "embedded": (Embedded, (8,)),
    "assorted": (Assorted, (8,)),
}


@cache
def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name][0]()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return model.eval()


def rows(name: str, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(count)
    return torch.randn(count, *MODELS[name][1], generator=draw).to(dtype)


def saved(
    model: nn.Module, x: Tensor, *, decomposed: bool = False, free: bool = True
) -> dict[str, bytes]:
    """The files of an exported program by name, without their folder."""
    shapes = ({0: torch.export.Dim("batch")},) if free else None
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch leaves names of its own behind
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
        path = Path(folder) / "net.pt2"
        torch.export.save(program.run_decompositions() if decomposed else program, path)
        with zipfile.ZipFile(path) as archive:
            return {each.split("/", 1)[1]: archive.read(each) for each in archive.namelist()}


@cache
def files_of(name: str, decomposed: bool = False) -> dict[str, bytes]:
    return saved(model_of(name), rows(name, 4), decomposed=decomposed)


@cache
def slim(name: str, decomposed: bool = False) -> dict[str, bytes]:
    """The same program without what is never read, so that changes hit what is."""
    files = dict(files_of(name, decomposed))
    module = json.loads(files[GRAPH])["graph_module"]
    graph = module["graph"]
    for each in graph["nodes"]:
        each.pop("metadata")
    given = {each["as_tensor"]["name"] for each in graph["inputs"]}
    values = {key: each for key, each in graph["tensor_values"].items() if key in given}
    graph = {key: graph[key] for key in ("inputs", "outputs", "nodes")} | {"tensor_values": values}
    found = {"graph_module": {"graph": graph, "signature": module["signature"]}}
    return files | {GRAPH: json.dumps(found).encode()}


def written(path: Path, files: dict[str, bytes], **settings: Any) -> Path:
    with zipfile.ZipFile(path, "w", **settings) as archive:
        for name, content in files.items():
            archive.writestr(f"net/{name}", content)
    return path


def edited(
    path: Path, files: dict[str, bytes], change: Callable[[Any], object], name: str = GRAPH
) -> Path:
    """A program whose graph, or another JSON file, was changed."""
    found = json.loads(files[name])
    change(found["graph_module"]["graph"] if name == GRAPH else found)
    return written(path, files | {name: json.dumps(found).encode()})


def slopes(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Answers, slopes of their squares, and slopes of those."""
    x = x.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        answers = model(x)
        [first] = torch.autograd.grad(answers.square().sum(), x, create_graph=True)
        [second] = torch.autograd.grad(first.square().sum(), x)
    return answers.detach(), first.detach(), second


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_program_computes_what_its_model_does(
    name: str, decomposed: bool, tmp_path: Path
) -> None:
    model = model_of(name)
    read = read_exported(written(tmp_path / "net.pt2", files_of(name, decomposed)))
    for count in (1, 2, 7):
        torch.testing.assert_close(read(rows(name, count)), model(rows(name, count)))
    exact, x = copy.deepcopy(read).double(), rows(name, 5, torch.float64)
    theirs = slopes(copy.deepcopy(model).double(), x)
    for mine, other in zip(slopes(exact, x), theirs, strict=True):
        # Constants of torch's own decompositions are of float32: 1e-3 is not the 1e-3 of float64.
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    assert read.w1.dtype == torch.float32  # the copy was another
    again = pickle.loads(pickle.dumps(read))
    assert torch.equal(again(rows(name, 3)), read(rows(name, 3)))


def test_kinks_are_layers_that_attacks_may_round(tmp_path: Path) -> None:
    read = read_exported(written(tmp_path / "net.pt2", files_of("residual")))
    smooth, theirs = softened(read, 5.0), nn.Sequential(*(nn.LeakyReLU(0.2),))
    assert [type(each) for each in smooth.kinks] == [SoftLeaky]
    assert [type(each) for each in read.kinks] == [nn.LeakyReLU]
    assert smooth.kinks[0].slope == theirs[0].negative_slope
    x, model = rows("residual", 5), copy.deepcopy(model_of("residual"))
    h = SoftLeaky(5.0, 0.2)(model.first(x))
    rounded = model.last(h + F.gelu(model.second(h), approximate="tanh"))
    torch.testing.assert_close(smooth(x), rounded)


def test_a_program_is_an_ordinary_model(tmp_path: Path) -> None:
    read = read_exported(written(tmp_path / "net.pt2", files_of("mlp")))
    x = rows("mlp", 4)
    assert len(list(read.parameters())) == 8
    assert len(list(read.buffers())) == 3
    assert not any(each.requires_grad for each in read.parameters())
    assert not read.training
    read.train()
    with eval_mode(read):
        assert torch.equal(read(x), read.eval()(x))
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: read(row[None])[0]))(x)
    assert jacobian.shape == (4, 2, 8)
    other = copy.deepcopy(read)
    assert model_digest(other) == model_digest(read)
    other.steps = (*other.steps[:-1], Step(operation="x", given=(), results=(9,)))
    assert model_digest(other) != model_digest(read)


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual"])
def test_what_runs_can_be_recorded(name: str, tmp_path: Path) -> None:
    read = read_exported(written(tmp_path / "net.pt2", files_of(name)))

    def recorded(model: nn.Module) -> Any:
        def slope(x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(model(x)[:, 0].sum(), x)[0]

        return make_fx(slope)(rows(name, 3))

    mine, theirs = recorded(read), recorded(model_of(name))
    # Lifted constants aside, operation by operation what the model itself runs.
    kept = [[str(node.target) for node in each.graph.nodes if node.op == "call_function"
             and "lift" not in str(node.target)] for each in (mine, theirs)]  # fmt: skip
    assert kept[0] == kept[1]
    torch.testing.assert_close(mine(rows(name, 3)), theirs(rows(name, 3)))
    assert "meta" not in mine.code


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    read = read_exported(written(tmp_path / "net.pt2", files_of("mlp")))
    for wrong in (torch.zeros(2, 7), torch.zeros(8), torch.zeros(()), torch.zeros(2, 8).long()):
        assert "takes rows of real numbers of shape (8,)" in refusal(lambda x=wrong: read(x))
    assert read(torch.zeros(0, 8)).shape == (0, 2)
    assert read(torch.zeros(8, 3).T).shape == (3, 2)


# --- hostile graphs -----------------------------------------------------------------------------


def node(target: str, out: str, *given: tuple[str, Any], keyword: bool = False) -> dict[str, Any]:
    """A node of a graph, its arguments as (name, {"as_...": value})."""
    kind = 2 if keyword else 1
    inputs = [{"name": name, "arg": each, "kind": kind} for name, each in given]
    return {"target": target, "inputs": inputs, "outputs": [tensor(out)], "metadata": {}}


def tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


X, OUT = tensor("input"), tensor("linear_2")


def ending(*nodes: dict[str, Any]) -> Callable[[Any], None]:
    """The last value added to the answer of a program, so that nothing is left out."""

    def change(graph: Any) -> None:
        last = nodes[-1]["outputs"][0]
        add = node("torch.ops.aten.add.Tensor", "sum_of_both", ("self", OUT), ("other", last))
        graph["nodes"] += [*nodes, add]
        graph["outputs"] = [tensor("sum_of_both")]

    return change


def signed(path: Path, change: Callable[[Any], None]) -> Path:
    """The changed MLP, its signature in agreement with its graph."""
    files = dict(files_of("mlp"))
    found = json.loads(files[GRAPH])
    module = found["graph_module"]
    change(module["graph"])
    module["signature"]["output_specs"] = [
        {"user_output": {"arg": each}} for each in module["graph"]["outputs"]
    ]
    return written(path, files | {GRAPH: json.dumps(found).encode()})


def test_the_frame_of_hostile_graphs_is_read(tmp_path: Path) -> None:
    harmless = node("torch.ops.aten.mean.dim", "m", ("self", X), ("dim", {"as_ints": [1]}),
                    ("keepdim", {"as_bool": True}))  # fmt: skip
    read = read_exported(signed(tmp_path / "net.pt2", ending(harmless)))
    x = rows("mlp", 3)
    torch.testing.assert_close(read(x), model_of("mlp")(x) + x.mean(1, keepdim=True))


STRANGE = (
    *("aten.from_file.default", "aten._reshape_alias.default", "aten.as_strided.default"),
    *("aten.fill_.Scalar", "aten.fill.Scalar_out", "aten.relu_.default", "aten.add_.Tensor"),
    *("aten.add.out", "aten.set_.source_Tensor", "aten.view.dtype", "aten.resize_.default"),
    *("aten.bernoulli.default", "aten.rand.default", "aten.randn_like.default"),
    *("aten.empty.memory_format", "aten.empty_like.default", "aten.item.default"),
    *("aten.native_dropout.default", "aten.copy_.default", "aten.index_put_.default"),
    *("aten._foobar_.default", "aten.__class__.mro", "aten.linear", "aten.linear.default.x"),
    *("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default"),
    *("prim.device.default", "higher_order.cond", "mine.relu.default", "profiler.x.default"),
)


@pytest.mark.parametrize(
    "target",
    [
        *(f"torch.ops.{each}" for each in STRANGE),
        *("os.system", "torch.os.system", "builtins.eval", "_operator.attrgetter", ""),
        *("_operator.getitem", "_operator.truediv", "torch.sym_float", "aten.add.Tensor"),
        *("torch.ops.torch.ops.aten.add.Tensor", "torch.ops._operator.mul", "x\ny" * 200),
        *("\x1b]0;title\x07", "\ud800"),
        *("torch.ops.aten.lift_fresh_copy.default", "torch.ops.aten.detach_.default"),
    ],
)
def test_an_operation_that_is_not_in_the_table_is_refused(target: str, tmp_path: Path) -> None:
    strange = node(target, "made", ("self", OUT))
    said = refusal(lambda: read_exported(signed(tmp_path / "net.pt2", ending(strange))))
    line = " ".join(target.split())[:80]
    assert f"it calls {''.join(each if each.isprintable() else '?' for each in line)}" in said
    assert said.isprintable()
    assert "run_decompositions()" in said
    assert len(said) < 600


def test_the_table_is_of_pure_operations() -> None:
    for name, operation in OPERATIONS.items():
        schema = operation._schema
        assert name == str(operation)
        assert not schema.is_mutable
        # The tags of torch itself: nothing drawn, nothing whose sizes hang on values.
        wrong = {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape}
        if name not in ("aten.dropout.default", "aten.scaled_dot_product_attention.default",
                        "aten.index.Tensor"):  # fmt: skip
            assert not wrong & set(operation.tags), name


def test_names_in_a_file_become_no_code(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    code = f"x=open({str(trace)!r},'w')"

    def keyword(graph: Any) -> None:
        graph["nodes"][0]["inputs"].append({"name": code, "arg": {"as_int": 1}, "kind": 2})

    assert "takes no argument" in refusal(
        lambda: read_exported(edited(tmp_path / "a.pt2", files_of("mlp"), keyword))
    )
    # Names of values are keys and nothing else, whatever they look like.
    files = {name: content.replace(b'"linear_1"', json.dumps(code).encode())
             for name, content in files_of("mlp").items()}  # fmt: skip
    read = read_exported(written(tmp_path / "b.pt2", files))
    assert torch.equal(read(rows("mlp", 3)), model_of("mlp")(rows("mlp", 3)))
    assert code not in repr(read)
    assert not hasattr(read, "code")
    # So are the texts of shapes, sample inputs and everything else that nobody asks for.
    evil = pickle.dumps(Evil(trace))
    files = {
        name: evil if "sample_inputs" in name else content.replace(b"Symbol('s", code.encode())
        for name, content in files_of("mlp").items()
    }
    read_exported(written(tmp_path / "c.pt2", files))(rows("mlp", 3))
    assert not trace.exists()


class Evil:
    """What a pickle may do when it is opened."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.trace), "w"))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    trace, buffer = tmp_path / "ran", io.BytesIO()
    torch.save(Evil(trace), buffer)

    def pickled(config: Any) -> None:
        for each in config["config"].values():
            each["use_pickle"] = True

    files = files_of("mlp") | {"data/weights/weight_0": buffer.getvalue()}
    assert "pickled" in refusal(
        lambda: read_exported(edited(tmp_path / "a.pt2", files, pickled, WEIGHTS))
    )
    assert not trace.exists()


WRONG: tuple[dict[str, Any], ...] = (
    *({"as_int": 2**70}, {"as_int": True}, {"as_int": "1"}, {"as_int": 1.5}, {"as_int": None}),
    *({"as_float": "NaN"}, {"as_float": [1.0]}, {"as_bool": 1}, {"as_string": "/etc/passwd"}),
    *({"as_string": "eval"}, {"as_ints": [[1]]}, {"as_ints": "ab"}, {"as_ints": [1.5]}),
    *({"as_ints": [1] * 5000}, {"as_tensors": [{"name": "nobody"}]}, {"as_graph": {}}),
    *({"as_tensor": {"name": "nobody"}}, {"as_tensor": {"name": 3}}, {"as_tensor": "input"}),
    *({"as_complex": {"real": 0, "imag": 1}}, {"as_custom_obj": {"name": "x"}}, {"as_layout": 2}),
    *({"as_scalar_type": 9}, {"as_scalar_type": 6}, {"as_scalar_type": []}, {"as_operator": "x"}),
    *({"as_memory_format": 9}, {"as_sym_int": {"as_name": "input"}}, {}, {"as_none": 1, "b": 2}),
)  # fmt: skip


def test_each_argument_of_a_wrong_type_is_refused_when_the_file_is_read(tmp_path: Path) -> None:
    files, path = slim("assorted"), tmp_path / "net.pt2"
    nodes = json.loads(files[GRAPH])["graph_module"]["graph"]["nodes"]
    seen = set()
    for place, each in enumerate(nodes):
        for number, given in enumerate(each["inputs"]):
            if "_assert" in each["target"] or (each["target"], given["name"]) in seen:
                continue
            if given["name"] in ("device", "pin_memory", "layout"):
                continue  # which the input decides, whatever they say
            seen.add((each["target"], given["name"]))
            for wrong in random.Random(len(seen)).sample(WRONG, 4):

                def change(
                    graph: Any, place: int = place, number: int = number, wrong: Any = wrong
                ) -> None:
                    graph["nodes"][place]["inputs"][number]["arg"] = wrong

                refusal(lambda change=change: read_exported(edited(path, files, change)))
    assert len(seen) > 60


@pytest.mark.parametrize(
    ("target", "given", "why"),
    [
        ("conv2d.default", {"stride": [0, 0]}, "takes stride between 1 and"),
        ("conv2d.default", {"padding": [-1, 0]}, "takes padding between 0 and"),
        ("conv2d.default", {"padding": [1, 1, 1]}, "takes padding of the type List[int]"),
        ("conv2d.default", {"dilation": [0, 1]}, "takes dilation between"),
        ("conv2d.default", {"groups": 0}, "takes groups between"),
        ("conv2d.default", {"groups": 3}, "cannot be run"),
        ("dropout.default", {"p": 0.5, "train": True}, "call eval() before exporting"),
        ("batch_norm.default", {"training": True}, "call eval() before exporting"),
        ("batch_norm.default", {"eps": 1e400}, "of the type float"),
        ("native_group_norm.default", {"N": 2**20}, "N, C and HxW"),
        ("native_group_norm.default", {"HxW": 4096}, "N, C and HxW"),
        ("native_group_norm.default", {"group": 0}, "takes group between"),
        ("softmax.int", {"dim": 40}, "cannot be run"),
        ("gelu.default", {"approximate": "/etc/passwd"}, "of the type str"),
        ("chunk.default", {"chunks": 2}, "returns 2 results, not 1"),
        ("max.dim", {"dim": 1}, "returns 2 results, not 1"),
    ],
)
def test_arguments_out_of_range_are_refused(
    target: str, given: dict[str, Any], why: str, tmp_path: Path
) -> None:
    kinds = {int: "as_int", float: "as_float", bool: "as_bool", list: "as_ints", str: "as_string"}
    stats = dict.fromkeys(("weight", "bias"))
    usual: dict[str, dict[str, Any]] = {
        "conv2d.default": {"input": "square", "weight": "square"},
        "dropout.default": {"input": "input"},
        "batch_norm.default": {"input": "input", **stats, "running_mean": "row",
                               "running_var": "row", "training": False, "momentum": 0.1,
                               "eps": 1e-5, "cudnn_enabled": False},
        "native_group_norm.default": {"input": "input", **stats, "N": 2, "C": 8, "HxW": 1,
                                      "group": 2, "eps": 1e-5},
    }  # fmt: skip
    asked = usual.get(target, {"self": "input"}) | given

    def argument(value: Any) -> dict[str, Any]:
        if value is None:
            return {"as_none": True}
        if value in ("input", "square", "row"):
            return tensor(value)
        infinite = value == float("inf")
        return {kinds[type(value)]: "Infinity" if infinite else value}

    shape = {"as_ints": [-1, 2, 2, 2]}
    added = [
        node("torch.ops.aten.reshape.default", "square", ("self", X), ("shape", shape)),
        node("torch.ops.aten.mean.dim", "row", ("self", X), ("dim", {"as_ints": [0]})),
        node(f"torch.ops.aten.{target}", "y", *((k, argument(v)) for k, v in asked.items())),
    ]
    said = refusal(lambda: read_exported(signed(tmp_path / "net.pt2", ending(*added))))
    assert why in said


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scaled_dot_product_attention", {"key": meta(2, 5, 4), "value": meta(2, 3, 4)}),
        ("scaled_dot_product_attention", {"key": meta(1, 5, 4), "value": meta(1, 5, 4)}),
        ("scaled_dot_product_attention", {"key": meta(2, 5, 3), "value": meta(2, 5, 3)}),
        ("scaled_dot_product_attention",
         {"key": meta(2, 5, 4), "value": meta(2, 5, 4), "attn_mask": meta(2, 3, 6)}),
        ("scaled_dot_product_attention",
         {"key": meta(2, 5, 4), "value": meta(2, 5, 4), "attn_mask": meta(9, 2, 3, 5)}),
        ("_native_batch_norm_legit_no_training",
         {"running_mean": meta(1), "running_var": meta(3), "momentum": 0.1, "eps": 0.1}),
        ("batch_norm", {"running_mean": None, "running_var": None, "training": False,
                        "momentum": 0.1, "eps": 0.1, "cudnn_enabled": False}),
    ],
)  # fmt: skip
def test_what_kernels_trust_to_fit_is_checked(name: str, given: dict[str, Any]) -> None:
    first = "query" if "attention" in name else "input"
    with pytest.raises(ValueError, match="is given"):
        checked(f"aten.{name}.default", {first: meta(2, 3, 4)} | given)


# --- numbers in a file decide no allocation -------------------------------------------------------


@pytest.fixture
def bounded() -> Iterator[None]:
    """Less memory than the hostile files ask for, so that an allocation would fail loudly."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**31, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def ints(*values: int) -> dict[str, Any]:
    return {"as_ints": list(values)}


def aten(name: str, out: str, **given: dict[str, Any]) -> dict[str, Any]:
    return node(f"torch.ops.aten.{name}", out, *given.items())


BIG = 2**30
BOMBS: dict[str, list[dict[str, Any]]] = {
    "expand": [aten("expand.default", "y", self=X, size=ints(BIG, -1, 8))],
    "repeat": [aten("repeat.default", "y", self=X, repeats=ints(1, BIG))],
    "repeat beyond counting": [
        aten("repeat.default", "y", self=X, repeats=ints(BIG, BIG, BIG, BIG))
    ],
    "zeros": [aten("zeros.default", "y", size=ints(BIG, 8))],
    "full": [aten("full.default", "y", size=ints(2**20, 2**20), fill_value={"as_float": 1.0})],
    "ones beyond counting": [aten("ones.default", "y", size=ints(BIG, BIG, BIG))],
    "new_zeros": [aten("new_zeros.default", "y", self=X, size=ints(BIG))],
    "arange": [aten("arange.default", "y", end={"as_int": BIG})],
    "arange of floats": [aten("arange.default", "y", end={"as_float": 1e18})],
    "pad": [
        aten("constant_pad_nd.default", "y", self=X, pad=ints(2**16, 2**16, 2**16, 2**16))
    ],
    "padding of a convolution": [
        aten("reshape.default", "a", self=X, shape=ints(-1, 2, 2, 2)),
        aten("slice.Tensor", "b", self=tensor("a")),
        aten("conv2d.default", "y", input=tensor("a"), weight=tensor("b"),
             padding=ints(2**15, 2**15)),
    ],
    "upsampling": [
        aten("reshape.default", "a", self=X, shape=ints(-1, 2, 2, 2)),
        aten("upsample_nearest2d.vec", "y", input=tensor("a"), output_size=ints(2**16, 2**16),
             scale_factors={"as_none": True}),
    ],
    "an outer product": [
        aten("zeros.default", "a", size=ints(2**15, 1)),
        aten("zeros.default", "b", size=ints(1, 2**15)),
        aten("add.Tensor", "y", self=tensor("a"), other=tensor("b")),
    ],
    "copies that matmul makes": [
        aten("zeros.default", "a", size=ints(2**10, 1, 1, 2**13)),
        aten("zeros.default", "b", size=ints(2**10, 2**13, 1)),
        aten("matmul.default", "y", self=tensor("a"), other=tensor("b")),
    ],
    "columns of a convolution": [
        aten("zeros.default", "a", size=ints(1, 1, 2**11, 2**11)),
        aten("zeros.default", "b", size=ints(1, 1, 2**10, 2**10)),
        aten("conv2d.default", "y", input=tensor("a"), weight=tensor("b")),
    ],
    "scores of attention": [
        aten("zeros.default", "a", size=ints(1, 1, 2**16, 1)),
        aten("scaled_dot_product_attention.default", "y", query=tensor("a"), key=tensor("a"),
             value=tensor("a")),
    ],
    "a thousand doublings": [
        aten("reshape.default", "d0", self=X, shape=ints(-1)),
        *(aten("cat.default", f"d{i + 1}", tensors={"as_tensors": [{"name": f"d{i}"}] * 2})
          for i in range(1000)),
    ],
    "many tensors": [
        aten("zeros.default", "a", size=ints(2**24)),
        aten("unbind.int", "y", self=tensor("a")),
    ],
    "dimensions": [
        aten("unsqueeze.default", "u0", self=X, dim={"as_int": 0}),
        *(aten("unsqueeze.default", f"u{i + 1}", self=tensor(f"u{i}"), dim={"as_int": 0})
          for i in range(70)),
    ],
}  # fmt: skip


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", BOMBS)
def test_sizes_in_a_file_are_limited_when_it_is_read(name: str, tmp_path: Path) -> None:
    said = refusal(lambda: read_exported(signed(tmp_path / "net.pt2", ending(*BOMBS[name]))))
    expected = {
        "repeat beyond counting": "would make a tensor of the sizes",
        "ones beyond counting": "would make a tensor of the sizes",
        "many tensors": "to take apart along 0",
        "dimensions": "more than 16 dimensions",
    }
    assert expected.get(name, "numbers for 2 rows by aten.") in said


@pytest.mark.usefixtures("bounded")
def test_sizes_that_grow_with_the_rows_are_limited_when_it_runs(tmp_path: Path) -> None:
    size = {"as_sym_int": {"as_name": "n"}}
    several = {"as_sym_ints": [{"as_name": "n2"}, {"as_name": "n2"}, {"as_int": 1}]}
    nodes = [
        aten("sym_size.int", "n", self=X, dim={"as_int": 0}),
        node("_operator.mul", "n2", ("a", size), ("b", size)),
        aten("zeros.default", "z", size=several),
        aten("sum.default", "y", self=tensor("z")),
    ]
    for place, name in ((0, "n"), (1, "n2")):
        nodes[place]["outputs"] = [{"as_sym_int": {"as_name": name}}]
    read = read_exported(signed(tmp_path / "net.pt2", ending(*nodes)))
    x = rows("mlp", 20)
    assert torch.equal(read(x), model_of("mlp")(x))
    assert "numbers for 1000 rows by aten.zeros.default" in refusal(lambda: read(rows("mlp", 1000)))
    # A difference of sizes that is 0 for some numbers of rows only is no stride for those.
    less = {"as_sym_int": {"as_name": "less"}}
    nodes = [
        nodes[0],
        node("_operator.sub", "less", ("a", size), ("b", {"as_int": 7})),
        node("_operator.floordiv", "part", ("a", {"as_int": 6}), ("b", less)),
        aten("slice.Tensor", "y", self=X, step={"as_sym_int": {"as_name": "part"}}),
    ]  # fmt: skip
    nodes[1]["outputs"] = [less]
    nodes[2]["outputs"] = [{"as_sym_int": {"as_name": "part"}}]
    assert "takes step between 1 and" in refusal(
        lambda: read_exported(signed(tmp_path / "net.pt2", ending(*nodes)))
    )


def test_wide_batches_of_ordinary_networks_are_not_too_large() -> None:
    # 2**17 rows of 40 numbers each are more than `most`, and less than each row may make.
    steps = [
        Step(operation="aten.repeat.default", given=(("self", Slot(0)), ("repeats", (1, 10))),
             results=(1,)),
    ]  # fmt: skip
    read = Exported(width=(4,), weights=(), steps=steps, answer=1, most=2**20)
    assert read(torch.zeros(2**17, 4)).shape == (2**17, 40)
    steps[0] = Step(
        operation="aten.repeat.default",
        given=(("self", Slot(0)), ("repeats", (1, MOST_PER_ROW))),
        results=(1,),
    )
    read = Exported(width=(4,), weights=(), steps=steps, answer=1, most=2**20)
    assert "more than the 1048576 allowed" in refusal(lambda: read(torch.zeros(9, 4)))


def test_what_only_running_can_tell_is_refused_then(tmp_path: Path) -> None:
    nodes = [
        aten("to.dtype", "i", self=X, dtype={"as_scalar_type": 5}),
        aten("reshape.default", "flat", self=tensor("i"), shape=ints(-1)),
        aten("index_select.default", "c", self=X, dim={"as_int": 1}, index=tensor("flat")),
        aten("sum.default", "y", self=tensor("c")),
    ]
    read = read_exported(signed(tmp_path / "net.pt2", ending(*nodes)))
    assert read(torch.zeros(2, 8)).shape == (2, 2)
    for wrong in (8.0, -1.0, 1e18, -1e18, float("nan"), float("inf")):
        x = torch.full((2, 8), wrong)
        assert "aten.index_select.default" in refusal(lambda x=x: read(x))


# --- hostile weights and archives -----------------------------------------------------------------


def number(value: Any) -> dict[str, Any]:
    return {"as_int": value}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [number(6), number(-8)]},
        {"sizes": [number(2**31), number(2**31)]},
        {"sizes": [number(2**62), number(4)]},
        {"sizes": [number(6), number(True)]},
        {"sizes": [number(6), number(8.0)]},
        {"sizes": [number(6), {"as_expr": {"expr_str": "open('x')", "hint": None}}]},
        {"sizes": [number(6)]},
        {"sizes": [number(6), number(9)]},
        {"sizes": [number(0), number(2**39)]},
        {"sizes": [number(0), *[number(2**39)] * 8], "strides": [number(1)] * 9},
        {"strides": [number(-8), number(1)]},
        {"strides": [number(0), number(2**60)]},
        {"strides": [number(8), number(2)]},
        {"sizes": [number(2**35), number(8)], "strides": [number(0), number(1)]},
        {"sizes": [number(1)] * 40, "strides": [number(1)] * 40},
        {"storage_offset": number(1)},
        {"storage_offset": number(-1)},
        {"storage_offset": number(2**63)},
        {"dtype": 8},
        {"dtype": 9},
        {"dtype": None},
        {"layout": 1},
    ],
    ids=str,
)
def test_shapes_that_the_weights_do_not_fill_are_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    def changed(config: Any) -> None:
        config["config"]["0.weight"]["tensor_meta"] |= change

    path = edited(tmp_path / "net.pt2", files_of("mlp"), changed, WEIGHTS)
    assert "float('" not in refusal(lambda: read_exported(path))


def test_weights_may_share_numbers_but_not_without_end(tmp_path: Path) -> None:
    def shared(config: Any) -> None:
        every = config["config"]
        every["4.weight"] = every["4.weight"] | {"path_name": every["0.weight"]["path_name"]}

    files = files_of("mlp")
    read = read_exported(edited(tmp_path / "a.pt2", files, shared, WEIGHTS))
    first = model_of("mlp")[0].weight
    assert any(torch.equal(each, first.flatten()[:24].view(4, 6)) for each in read.parameters())
    assert "hold more than the 100 numbers" in refusal(
        lambda: read_exported(tmp_path / "a.pt2", most=100)
    )

    def elsewhere(config: Any) -> None:
        config["config"]["0.weight"]["path_name"] = "../../../../../etc/passwd"

    path = edited(tmp_path / "b.pt2", files, elsewhere, WEIGHTS)
    assert "it holds no data/weights/../" in refusal(lambda: read_exported(path))


def test_truth_values_are_true_or_false(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(self.mask, x, 2 * x)

    files = saved(Chosen(), torch.zeros(4, 3))
    [name] = [each for each in files if each.endswith("weights/weight_0")]
    read = read_exported(written(tmp_path / "net.pt2", files | {name: b"\x07\x00\xff"}))
    assert read.w1.tolist() == [True, False, True]
    assert read.w1.view(torch.uint8).tolist() == [1, 0, 1]
    assert read(torch.ones(1, 3)).tolist() == [[1, 2, 1]]


def test_archives_that_are_none_are_refused(tmp_path: Path) -> None:
    path, files = tmp_path / "net.pt2", files_of("mlp")
    whole = written(path, files).read_bytes()
    for length in (0, 1, 30, 1000, 3000, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        refusal(lambda: read_exported(path))
    path.write_bytes(whole[:-1])
    assert "not a whole exported program" in refusal(lambda: read_exported(path))
    assert "no file" in refusal(lambda: read_exported(tmp_path))
    assert "no file" in refusal(lambda: read_exported(tmp_path / "nowhere.pt2"))

    def said(change: dict[str, bytes], **settings: Any) -> str:
        return refusal(lambda: read_exported(written(path, files | change, **settings)))

    assert "compressed" in said({}, compression=zipfile.ZIP_DEFLATED)
    assert "endian" in said({"byteorder": b"big"})
    assert "nested too deeply" in said({GRAPH: b"[" * 200_000})
    assert "nested too deeply" in said({WEIGHTS: b'{"a":' * 100_000})
    assert "more than" in said({GRAPH: b" " * (MOST_JSON + 1)})
    assert "no JSON" in said({GRAPH: b"\xff\xfe{"})
    assert "holds NaN" in said({GRAPH: b'{"a": NaN}'})
    assert "a name twice" in said({GRAPH: b'{"a": 1, "a": 2}'})
    for content in (b"[]", b"null", b"{}", b"1" * 5000, b'{"graph_module": 3}'):
        assert "not a whole exported program" in said({GRAPH: content})
    without = {name: content for name, content in files.items() if name != "data/weights/weight_0"}
    assert "it holds no data/weights/weight_0" in refusal(
        lambda: read_exported(written(path, without))
    )


def test_files_of_an_archive_hold_what_all_of_it_does(tmp_path: Path) -> None:
    path = written(tmp_path / "net.pt2", files_of("mlp"))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("net/models/model.json", b"{}")
    assert "same name" in refusal(lambda: read_exported(path))
    path = written(tmp_path / "net.pt2", files_of("mlp"))
    whole = path.read_bytes()
    # The same bytes under many names: a bomb without compression.
    place = whole.index(b"PK\x01\x02")
    with zipfile.ZipFile(path) as archive:
        [size] = [each.file_size for each in archive.infolist() if each.filename.endswith(GRAPH)]
    told = size.to_bytes(4, "little") * 2
    assert whole.count(told, place) == 1
    larger = (2**31 - 1).to_bytes(4, "little") * 2
    path.write_bytes(whole[:place] + whole[place:].replace(told, larger))
    assert "claim to hold more" in refusal(lambda: read_exported(path))
    # Files beside the program's own folder are nobody's business.
    written(path, files_of("mlp"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../outside", b"x")
        archive.writestr("elsewhere/models/model.json", b"[")
    assert read_exported(path)(rows("mlp", 2)).shape == (2, 2)
    assert not (tmp_path.parent / "outside").exists()


def test_programs_that_hang_together_badly_are_refused(tmp_path: Path) -> None:
    path, files = tmp_path / "net.pt2", files_of("mlp")

    def said(change: Callable[[Any], object], name: str = GRAPH) -> str:
        return refusal(lambda: read_exported(edited(path, files, change, name)))

    def signature(change: Callable[[Any], object]) -> str:
        found = json.loads(files[GRAPH])
        change(found["graph_module"]["signature"])
        changed = written(path, files | {GRAPH: json.dumps(found).encode()})
        return refusal(lambda: read_exported(changed))

    assert "before saying what it is" in said(lambda graph: graph["nodes"].reverse())
    assert "before saying what it is" in said(lambda graph: graph["nodes"].pop(2))
    assert "have the name linear" in said(lambda graph: graph["nodes"].append(graph["nodes"][0]))
    assert "have the name input" in said(
        lambda graph: graph["nodes"][0]["outputs"].__setitem__(0, X)
    )
    assert "needs its argument 'weight'" in said(lambda graph: graph["nodes"][0]["inputs"].pop(1))
    assert "an argument twice" in said(
        lambda graph: graph["nodes"][0]["inputs"].append(graph["nodes"][0]["inputs"][0])
    )
    assert "more than 20000 operations" in said(lambda graph: graph.update(nodes=[{}] * 20_000))
    assert "returns 2 things" in said(lambda graph: graph["outputs"].append(X))
    assert "logits are one tensor" in said(lambda graph: graph.update(outputs=[number(3)]))
    assert "must return a row of logits" in said(
        lambda graph: (
            graph.update(outputs=[tensor("p_getattr_l__self____0___weight")])
            or graph.update(outputs=[tensor(next(iter(graph["tensor_values"])))])
        )
    )
    assert "holds none of this name" in said(lambda each: each["config"].pop("0.bias"), WEIGHTS)
    assert "takes 0 inputs" in signature(lambda each: each["input_specs"].pop())
    assert "have the name input" in signature(
        lambda each: each["input_specs"].append(each["input_specs"][-1])
    )
    assert "of the kind custom_obj" in signature(
        lambda each: each["input_specs"].append({"custom_obj": {}})
    )
    assert "changes what it was given" in signature(
        lambda each: each["output_specs"].append({"buffer_mutation": {}})
    )


def test_programs_that_an_audit_cannot_use_are_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"

    def said(model: nn.Module, x: Tensor, **settings: Any) -> str:
        return refusal(lambda: read_exported(written(path, saved(model, x, **settings))))

    assert "exactly 4 rows" in said(model_of("mlp"), rows("mlp", 4), free=False)
    assert "Dim('batch')" in said(model_of("mlp"), rows("mlp", 4), free=False)
    for decomposed in (False, True):
        assert "model.eval()" in said(mlp().train(), rows("mlp", 4), decomposed=decomposed)
    half = nn.Sequential(nn.Linear(8, 2), Halved())
    assert "in one precision" in said(half, rows("mlp", 4))
    assert "whole numbers" in said(nn.Embedding(5, 2), torch.ones(4, 3).long())
    inplace = nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    assert "aten.relu_.default, which writes over what it is given; export it again after" in said(
        inplace, rows("mlp", 4)
    )
    read = read_exported(written(path, saved(inplace, rows("mlp", 4), decomposed=True)))
    torch.testing.assert_close(read(rows("mlp", 3)), inplace(rows("mlp", 3)))
    assert len(read.kinks) == 1


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.half().float()


# --- anything at all ------------------------------------------------------------------------------


ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 12, 2**15, 2**31, 2**63, -(2**63), 10**40, 0.5, -1e308),
    *("", "input", "linear", "as_int", "Infinity", "NaN", "tanh", "../x"),
    *([], {}, [1, 2], [[]], {"as_int": 5}, {"as_name": "input"}, {"name": "linear"}),
    *({"as_none": True}, {"as_tensor": {"name": "input"}}, {"as_ints": [2**20, 2**20]}),
]  # fmt: skip


def places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON document, as (its container, the key)."""
    keys = list(found) if isinstance(found, dict) else range(len(found))
    for key in keys:
        yield found, key
        if isinstance(found[key], dict | list):
            yield from places(found[key])


def mutate(found: Any, draw: random.Random) -> None:
    """Change one place: another value, one from elsewhere, none, or an operation of the table."""
    every = [*places(found)] or [({"": 0}, "")]
    container, key = draw.choice(every)
    source, other = draw.choice(every)
    kind = draw.randrange(5)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = copy.deepcopy(source[other])
    elif kind == 2 and (nodes := [each for each, key in every if key == "target"]):
        draw.choice(nodes)["target"] = f"torch.ops.{draw.choice(sorted(OPERATIONS))}"
    elif kind == 3 and isinstance(container[key], int):
        container[key] = operator.add(container[key], draw.choice([-2, -1, 1, 2, 2**20]))
    else:
        container[key] = copy.deepcopy(draw.choice(ODD))


def attacked(name: str, decomposed: bool, seed: int, path: Path) -> str:
    """With which ValueError a mutated program is refused, empty if it is read and run."""
    draw, files = random.Random(seed), slim(name, decomposed)
    file = draw.choice([GRAPH, GRAPH, GRAPH, WEIGHTS])
    found = json.loads(files[file])
    for _ in range(draw.choice([1, 1, 2, 3])):
        mutate(found.get("graph_module", found), draw)
    content = json.dumps(found).encode()
    try:
        read = read_exported(written(path, files | {file: content}), most=2**22)
        x = rows(name, 3).requires_grad_()
        answers = read(x)
    except ValueError as problem:
        return str(problem)
    if answers.requires_grad:
        torch.autograd.grad(answers.double().sum(), x)
    return ""


@pytest.mark.usefixtures("bounded")
@pytest.mark.filterwarnings("default")  # torch warns of what it is given, as it may
def test_mutated_programs_end_in_one_sentence(tmp_path: Path) -> None:
    path, names = tmp_path / "net.pt2", list(MODELS)
    said = [attacked(names[seed % 6], seed % 2 == 1, seed, path) for seed in range(240)]
    assert 10 < said.count("") < 120  # some changes do no harm, most do
    assert all(each.isprintable() and len(each) < 700 for each in said)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_many_mutated_programs_end_in_one_sentence(tmp_path: Path) -> None:
    for seed in range(1000, 6000):
        said = attacked(list(MODELS)[seed % 6], seed % 4 > 1, seed, tmp_path / "net.pt2")
        assert said.isprintable()


def test_operations_are_called_by_their_own_names() -> None:
    x = torch.randn(3, 4)
    given = {"self": x, "dim": 1, "keepdim": True}
    values, _ = called("aten.max.dim", given, x)
    assert torch.equal(values, x.amax(1, keepdim=True))
    made = called("aten.full.default", {"size": [2], "fill_value": 1.5}, x)
    assert made.tolist() == [1.5, 1.5]
