"""Mutated files, tables and options through the command line: what it refuses, runs, or breaks on.

Each case is drawn from the seed and its number, run in a process of its own that is forked from one
where everything is imported, and told by its real exit code. `--only N` runs one case again and
shows what it said.
"""

import argparse
import dataclasses
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import types
import unittest.mock
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[1]
SECONDS, MOST_MEMORY, BATCH = 60, 2 * 10**9, 20
OUTCOMES = (
    "ran",
    "refused",
    "traceback",
    "crash",
    "hung",
    "no memory",
    "stray write",
    "no sentence",
)
FINE = ("ran", "refused")

# --- what is put in place of something else -----------------------------------------------------

NUMBERS = (
    *("1e200", "-1e308", "1e999", "-inf", "nan", "1_000", "0x10", "٣", "1e", "--1", "1,5", "12%"),
    *("-1", "0", "1e-320", "9" * 400, "9" * 5000, "2147483648", "-9223372036854775809"),
)
WORDS = (
    *("", " ", "=1+1", "@x", "-x", "'", '"', '""', "\t", "\x00", "\r", "\n", "\ufeff", "\u2028"),
    *(
        "null",
        "None",
        "true",
        "{}",
        "[]",
        "../../x",
        "/dev/null",
        "a" * 200_000,
        "é",
        "𝕏",
        "\x1b[2J",
    ),
    *("{{ 7 * 7 }}", "<script>", "[bold]", "%s", "row", "model", "subgroup a"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), -0.0, 0.5),
    *("", "x", "=1", [], {}, [[]], [None], {"a": 1}, [1, "a"], "\ud800", 10**15),
)
BYTES = (b"\x00", b"\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x80", b"\n", b'"', b",", b"\r")


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """The bytes with some changed, taken out, put in, doubled or cut off."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at, length = draw.randrange(len(found) + 1), draw.choice((1, 1, 2, 4, 8, 64, 1000))
        match draw.randrange(7):
            case 0 if found:
                found[at % len(found)] ^= 1 << draw.randrange(8)
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = draw.choice(BYTES)
            case 3:
                found[at : at + 4] = draw.choice(BYTES)
            case 4:
                found[at:at] = found[at : at + length]
            case 5:
                found[at:at] = draw.randbytes(length)
            case _ if draw.random() < 0.3:
                del found[at:]
    return bytes(found)


def mutated_text(content: bytes, draw: random.Random, cut: str = ",") -> bytes:
    """Lines of a text with cells or lines exchanged for others."""
    if draw.random() < 0.25:
        return mutated_bytes(content, draw)
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(lines))
        cells = lines[at].split(cut)
        match draw.randrange(6):
            case 0 | 1 | 2:
                cells[draw.randrange(len(cells))] = draw.choice((*NUMBERS, *WORDS))
                lines[at] = cut.join(cells)
            case 3:
                lines.insert(at, lines[draw.randrange(len(lines))])
            case 4:
                del lines[at]
                lines = lines or [""]
            case _:
                draw.shuffle(cells)
                lines[at] = cut.join(cells)
    text = "\n".join(lines)
    if draw.random() < 0.05:
        text = text.replace(cut, draw.choice((";", "\t", "|", " ")))
    return text.encode("utf-8", "surrogateescape")


def mutated_value(value: Any, draw: random.Random) -> Any:
    """A value of JSON with one part of it exchanged, taken away or buried."""
    if isinstance(value, dict | list) and value and draw.random() < 0.85:
        key = draw.choice(sorted(value)) if isinstance(value, dict) else draw.randrange(len(value))
        found = value.copy()
        if draw.random() < 0.2:
            del found[key]
        else:
            found[key] = mutated_value(value[key], draw)
        return found
    if draw.random() < 0.05:
        deep: Any = value
        for _ in range(draw.choice((40, 900))):
            deep = [deep]
        return deep
    return draw.choice(VALUES)


def mutated_rows(content: bytes, draw: random.Random) -> bytes:
    """Lines of JSON with some values exchanged."""
    if draw.random() < 0.2:
        return mutated_bytes(content, draw)
    if draw.random() < 0.03:
        return b"[" * 100_000 + b"\n" + content
    lines = content.splitlines()
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(lines))
        try:
            lines[at] = json.dumps(mutated_value(json.loads(lines[at]), draw)).encode()
        except ValueError:
            lines[at] = mutated_bytes(lines[at], draw)
    return b"\n".join(lines) + b"\n"


def mutated_zip(content: bytes, draw: random.Random, member: Callable[..., bytes]) -> bytes:
    """An archive with its members changed, renamed or doubled, or its own bytes changed."""
    if draw.random() < 0.3:
        return mutated_bytes(content, draw)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = draw.randrange(len(old.namelist()))
        for place, name in enumerate(old.namelist()):
            data = old.read(name)
            if place == chosen:
                data = member(data, draw)
                if draw.random() < 0.2:
                    name = draw.choice(("../../x", "/x", " ", "x" * 300, name + "x", name.upper()))
            if place != chosen or draw.random() < 0.9:
                new.writestr(name, data, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    packed = out.getvalue()
    if draw.random() < 0.2:  # sizes in the directory that are not those of the members
        at = packed.rfind(b"PK\x01\x02")
        size = struct.pack("<I", draw.choice((0, 1, 2**31, 2**32 - 2)))
        packed = packed[: at + 24] + size + packed[at + 28 :]
    return packed


def mutated_npy(content: bytes, draw: random.Random) -> bytes:
    """An array of another shape or kind, told in its header or really so, or other bytes."""
    match draw.randrange(5):
        case 0:
            return mutated_bytes(content, draw)
        case 1 | 2:  # a header that says something else
            shape = draw.choice(
                ("(10**12,)", "(100000, 100000)", "(0, 4611686018427387904)", "(-1,)", "()", "(2,)")
            ).replace("10**12", "1000000000000")
            kind = draw.choice(("<f8", "|O", "<U1000000000", "|S0", "<U0", "|V8", "<f4", "<M8[s]"))
            said = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
            if draw.random() < 0.1:
                said = "(" * 200 + said
            said = said.ljust(118) + "\n"
            head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said.encode()
            return head + content[128:]
        case _:
            array = draw.choice(
                (
                    np.zeros((0, 3)),
                    np.full((6, 3), draw.choice((np.nan, np.inf, 1e300, 0.0))),
                    np.array("x"),
                    np.arange(6),
                    np.array([""] * 6),
                    np.zeros((6, 4, 4), np.complex64),
                    np.ones((2, 2, 2, 2)),
                    np.zeros(6, "M8[s]"),
                    np.array([b"\xff"] * 6),
                )
            )
            out = io.BytesIO()
            np.lib.format.write_array(out, array)
            return out.getvalue()


def mutated_tensors(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file with its header changed as JSON, or its bytes changed."""
    if draw.random() < 0.3:
        return mutated_bytes(content, draw)
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    notes = header.get("__metadata__", {})
    if "r2et" in notes and draw.random() < 0.7:
        notes["r2et"] = json.dumps(mutated_value(json.loads(notes["r2et"]), draw))
    else:
        header = mutated_value(header, draw)
    said = json.dumps(header).encode()
    told = len(said) if draw.random() < 0.9 else draw.choice((0, 2**31, 2**63))
    if draw.random() < 0.1:
        data = draw.choice(
            (data[:-4], data + b"\x00" * 8, struct.pack("<f", np.nan) * (len(data) // 4))
        )
    return told.to_bytes(8, "little") + said + data


# --- the kinds of cases -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a case finds unspoilt files, puts its own, and may write."""

    bases: Path
    given: Path
    out: Path
    draw: random.Random

    def spoilt(self, name: str, mutate: Callable[..., bytes], *rest: Any) -> Path:
        """A mutated copy of a file."""
        path = self.given / Path(name).name
        path.write_bytes(mutate((self.bases / name).read_bytes(), self.draw, *rest))
        return path

    def audit(self, data: Path | str, model: Path | str, *more: str) -> list[str]:
        """The words of a small audit."""
        words = ["audit", str(data), "--model", str(model), "--attack", "none", "--rows", "3"]
        return [
            *words,
            "--explain",
            "slopes",
            "-k",
            "2",
            "--radii",
            "none",
            "--epsilons",
            "0.1",
            "--out",
            str(self.out),
            *more,
        ]


def tables(place: Place) -> list[str]:
    draw = place.draw
    path = place.spoilt("table.csv", mutated_text)
    match draw.randrange(6):
        case 0:
            words = ["attack", str(path), "--target", "default", "--model", "fuzzed:table"]
            return [*words, "--examples", "2", "--eps", "0.1", "-k", "2", "--attack", "er"]
        case 1:
            return place.audit(path, place.bases / "classifier.safetensors", "--target", "default")
        case 2:
            more = ["--config", str(place.bases / "config.toml")]
            return place.audit(path, "fuzzed:table", *more)
        case 3:
            form = ["--format", draw.choice(("parquet", "csv"))]
            return place.audit(path, "fuzzed:table", "--target", "default", *form)
        case 4:
            path.write_bytes(mutated_bytes((place.bases / "table.parquet").read_bytes(), draw))
            return place.audit(path, "fuzzed:table")
        case _:
            return place.audit(path, place.bases / "own.safetensors", "--target", "default")


def configs(place: Place) -> list[str]:
    if place.draw.random() < 0.03:
        path = place.given / "deep.toml"
        path.write_text(f"a = {'[' * 5000}{']' * 5000}")
    else:
        path = place.spoilt("config.toml", mutated_text, place.draw.choice(("=", ",", '"')))
    return place.audit(place.bases / "table.csv", "fuzzed:table", "--config", str(path))


def recipes(place: Place) -> list[str]:
    path = place.spoilt("recipe.toml", mutated_text, place.draw.choice(("=", ",", '"')))
    if place.draw.random() < 0.5:
        path = place.spoilt("rules.toml", mutated_text, place.draw.choice(("=", ",", '"')))
        words = ["attack", "compas", "--model", "fuzzed:compas", "--perturbation", str(path)]
        return [
            *words,
            "--examples",
            "2",
            "--eps",
            "0.1",
            "-k",
            "2",
            "--rounds",
            "1",
            "--seconds",
            "1",
        ]
    return ["sweep", str(path), "--only", "nothing", "--out", str(place.out)]


def models(place: Place) -> list[str]:
    draw = place.draw
    name = draw.choice(("own.safetensors", "classifier.safetensors", "weights.safetensors"))
    path = place.spoilt(name, mutated_tensors)
    table = place.bases / "table.csv"
    if name == "weights.safetensors":
        more = ["--target", "default", "--weights", str(path)]
        return place.audit(table, "fuzzed:table", *more)
    return place.audit(table, path, "--target", "default")


def mutated_member(content: bytes, draw: random.Random) -> bytes:
    if content.startswith(b"{"):
        return json.dumps(mutated_value(json.loads(content), draw)).encode()
    return mutated_bytes(content, draw)


def programs(place: Place) -> list[str]:
    path = place.spoilt("net.pt2", mutated_zip, mutated_member)
    return place.audit(place.bases / "numbers.csv", path)


def networks(place: Place) -> list[str]:
    path = place.spoilt("networks.npz", mutated_zip, mutated_npy)
    return place.audit(path, "fuzzed:graphs")


def archives(place: Place) -> list[str]:
    path = place.spoilt("TU.zip", mutated_zip, mutated_text)
    if place.draw.random() < 0.1:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            count = place.draw.choice((30_000, 300_000))
            archive.writestr("T_A.txt", "1, 2\n")
            archive.writestr("T_graph_indicator.txt", "1\n" * (count - 1) + "2\n")
            archive.writestr("T_graph_labels.txt", "1\n2\n")
            archive.writestr("T_node_labels.txt", "\n".join(map(str, range(count))))
    return place.audit(path, "fuzzed:graphs")


def matlab(place: Place) -> list[str]:
    return place.audit(place.spoilt("networks.mat", mutated_bytes), "fuzzed:graphs")


def pictures(place: Place) -> list[str]:
    draw = place.draw
    shutil.copytree(place.bases / "pictures", place.given / "pictures")
    paths = sorted((place.given / "pictures").glob("*/*"))
    path = draw.choice(paths)
    if draw.random() < 0.1:  # a header of a picture without end
        head = b"P5 " + str(draw.choice((10**5, 10**9, 7000))).encode() + b" 7000 255\n"
        path.with_suffix(".pgm").write_bytes(head + b"\x01" * 100)
        path.unlink()
    else:
        path.write_bytes(mutated_bytes(path.read_bytes(), draw))
    return place.audit(place.given / "pictures", "fuzzed:pictures")


def results(place: Place) -> list[str]:
    draw, folder = place.draw, place.given / "run"
    folder.mkdir()
    shutil.copy(place.bases / "results.jsonl", folder)
    shutil.copy(place.bases / "recipe.json", folder)
    name = draw.choice(("results.jsonl",) * 4 + ("recipe.json",))
    (folder / name).write_bytes(mutated_rows((place.bases / name).read_bytes(), draw))
    form = ["--json"] if draw.random() < 0.3 else []
    if draw.random() < 0.3:
        target = draw.choice(("table-1", "table-2", "figure-2", "all"))
        return ["reproduce", target, "--rows", str(folder), "--out", str(place.out), *form]
    return ["report", str(folder), "--out", str(place.out), *form]


def stores(place: Place) -> list[str]:
    draw = place.draw
    begun = draw.choice(("finished", "begun"))
    shutil.copytree(place.bases / begun, place.out)
    path = draw.choice(sorted(each for each in place.out.iterdir() if each.is_file()))
    kinds = {".csv": mutated_text, ".sqlite": mutated_bytes}
    mutate = kinds.get(path.suffix, mutated_rows)
    path.write_bytes(mutate(path.read_bytes() or b"\n", draw))
    if draw.random() < 0.2:
        draw.choice(sorted(place.out.iterdir())).unlink()
    return place.audit(place.bases / "table.csv", "fuzzed:table", "--target", "default")


def options(place: Place) -> list[str]:
    import typer

    from r2et.cli import app

    draw, commands = place.draw, typer.main.get_command(app).commands
    name = draw.choice(sorted(commands))
    base = place.bases
    first = {
        "audit": place.audit(base / "table.csv", "fuzzed:table", "--target", "default"),
        "attack": f"attack {base}/table.csv --target default --model fuzzed:table".split(),
        "run": ["run", draw.choice((str(base / "table.csv"), "nothing", "x.npz", str(base)))],
        "sweep": ["sweep", draw.choice(("nothing", "no.toml", str(base / "table.csv")))],
        "reproduce": ["reproduce", draw.choice(("table-1", "nothing")), "--rows", str(place.given)],
        "report": ["report", str(draw.choice((place.given, base, "nowhere")))],
        "list": ["list"],
    }.get(name, [name])
    words = [*first]
    leave = {"help", "data_root", "docs", "out", "compare_handlers_to", "rows_from", "jobs"}
    known = [each for each in commands[name].params if each.name not in leave and each.opts]
    for each in draw.sample(known, min(len(known), draw.choice((1, 1, 2, 3)))):
        if each.param_type_name == "argument":
            continue
        words.append(draw.choice(each.opts) if draw.random() < 0.95 else "--nothing")
        if not getattr(each, "is_flag", False) or draw.random() < 0.05:
            words.append(draw.choice((*NUMBERS, *WORDS[:-8], "2", "0.5", "strong", "er", "1,2")))
    last = {
        "audit": ["--attack", "none", "--rows", "2"],
        "attack": ["--examples", "2", "--rounds", "1", "--seconds", "1"],
        "run": ["--recipe", str(base / "table.csv"), "--out", str(place.out)],
        "sweep": ["--only", "nothing", "--out", str(place.out)],
    }.get(name, [])
    words = [*words, *last]
    # Without one of its words any of the others might begin to train for hours.
    if name in ("audit", "attack", "report", "list") and draw.random() < 0.1:
        del words[draw.randrange(len(words))]
    return [each.replace("\x00", "0") for each in words]


KINDS: dict[str, tuple[Callable[[Place], list[str]], int]] = {
    "tables": (tables, 20),
    "settings": (configs, 10),
    "recipes and rules": (recipes, 8),
    "model files": (models, 16),
    "exported programs": (programs, 8),
    "npz": (networks, 10),
    "TUDataset": (archives, 6),
    "MATLAB": (matlab, 2),
    "pictures": (pictures, 6),
    "rows of results": (results, 6),
    "stores": (stores, 8),
    "options": (options, 6),
}


# --- unspoilt files -----------------------------------------------------------------------------


def factories() -> types.ModuleType:
    """A module `fuzzed` of networks, as a user's own would be."""
    from torch import nn

    class Graphs(nn.Module):
        """Two logits of a symmetric matrix."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x.flatten(1))

    made = types.ModuleType("fuzzed")
    made.table = lambda: nn.Sequential(nn.Linear(5, 3), nn.Softplus(), nn.Linear(3, 2))
    made.compas = lambda: nn.Sequential(nn.Linear(16, 3), nn.Softplus(), nn.Linear(3, 2))
    made.graphs = Graphs
    made.pictures = lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    return made


def write_bases(folder: Path) -> None:
    """One whole file of every kind."""
    import pandas as pd
    import torch
    from PIL import Image
    from safetensors.torch import save_file
    from scipy.io import savemat

    from r2et.models import build
    from r2et.sklearn import NetworkClassifier
    from r2et.training.checkpoint import save

    torch.manual_seed(0)
    draw = random.Random(0)
    jobs = ("clerk", "nurse", "farmer")
    rows = [
        (draw.randrange(20, 70), round(draw.gauss(0, 9), 2), draw.choice(jobs)) for _ in range(40)
    ]
    lines = [f"{age},{money},{job},{'yes' if age > 45 else 'no'}" for age, money, job in rows]
    (folder / "table.csv").write_text("\n".join(("age,balance,job,default", *lines)) + "\n")
    numbers = [f"{age},{money},{age % 7},{age % 3},{age % 5}" for age, money, _ in rows]
    (folder / "numbers.csv").write_text("\n".join(("a,b,c,d,e", *numbers)) + "\n")
    (folder / "config.toml").write_text(
        'target = "default"\nclasses = ["no", "yes"]\nsubgroups = ["job"]\nmissing = "mark"\n'
        'scale = "standard"\neps = "scaled"\nmissing_values = ["-9", "none"]\n'
        '[features.age]\nname = "Age"\nunit = "years"\nimmutable = true\n'
        '[features.balance]\nkind = "numeric"\nper_eps = 2.5\n'
    )
    shutil.copy(ROOT / "src/r2et/data/rules/compas.toml", folder / "rules.toml")
    (folder / "recipe.toml").write_text(
        'datasets = ["compas"]\nline = "x"\ngate = 0.01\nseeds = 1\n[fit]\nepochs = 2\n'
        '[evaluation]\nk = 4\nexamples = 8\nattacks = ["er", "strong"]\n[[methods]]\n'
        'name = "vanilla"\n[[methods]]\nname = "r2et-noh"\nthickness = [0.1, 0.2]\n'
    )
    plan = {"name": "mlp", "inputs": 5, "hidden": [3]}
    model = build(plan, torch.Generator().manual_seed(0))
    save(folder / "own.safetensors", model, {"model": plan})
    save_file(factories().table().state_dict(), folder / "weights.safetensors")
    frame = pd.read_csv(folder / "table.csv")
    classifier = NetworkClassifier(method="vanilla", epochs=2, random_state=0)
    classifier.fit(frame[["age", "balance", "job"]], frame["default"])
    classifier.save(folder / "classifier.safetensors")
    frame.to_parquet(folder / "table.parquet")
    rows_of_any_number = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(
        factories().table().eval(), (torch.randn(2, 5),), dynamic_shapes=rows_of_any_number
    )
    torch.export.save(exported, folder / "net.pt2")
    values = np.random.default_rng(0).random((6, 4, 4), dtype=np.float32)
    values = values + values.transpose(0, 2, 1)
    labels = np.array(["well", "ill"] * 3)
    np.savez(folder / "networks.npz", matrices=values, labels=labels, nodes=np.array(list("abcd")))
    savemat(folder / "networks.mat", {"matrices": values, "labels": labels}, do_compression=True)
    with zipfile.ZipFile(folder / "TU.zip", "w") as archive:
        archive.writestr("T/T_A.txt", "1, 2\n2, 3\n3, 4\n5, 6\n7, 8\n")
        archive.writestr("T/T_graph_indicator.txt", "1\n" * 4 + "2\n" * 4)
        archive.writestr("T/T_graph_labels.txt", "-1\n1\n")
        archive.writestr("T/T_node_labels.txt", "1\n2\n3\n4\n" * 2)
    for number, kind in enumerate(("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP")):
        home = folder / "pictures" / ("a", "b")[number % 2]
        home.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(1, 255, (6, 6), dtype=np.uint8)
        Image.fromarray(pixels).convert("L").save(home / f"{number}.{kind.lower()}", kind)
    kept = (ROOT / "docs" / "results" / "paper.jsonl").read_text().splitlines()
    (folder / "results.jsonl").write_text(
        "".join(
            f"{line}\n" for line in kept if '"dataset": "compas"' in line and '"seed": 0' in line
        )
    )
    (folder / "recipe.json").write_text('{"line": "x", "name": "paper"}\n')


def write_stores(folder: Path) -> None:
    """A finished audit and one that was stopped."""
    place = Place(bases=folder, given=folder, out=folder / "finished", draw=random.Random(0))
    words = place.audit(folder / "table.csv", "fuzzed:table", "--target", "default")
    code = command(words)
    assert code == 0, code

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    place = dataclasses.replace(place, out=folder / "begun")
    with unittest.mock.patch("r2et.auditing.run.write_table", stop):
        command(place.audit(folder / "table.csv", "fuzzed:table", "--target", "default"))
    assert (folder / "begun" / "audit.sqlite").exists()


# --- running a case -----------------------------------------------------------------------------


def command(words: list[str]) -> int:
    """The exit code of the command line with these words."""
    from r2et.cli import main

    sys.argv = ["r2et", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a case."""

    number: int
    kind: str
    words: list[str]
    outcome: str
    memory: int
    said: str
    seconds: float


class Watch:
    """An audit hook that notes whatever is written, moved or removed where it should not be."""

    CHANGING: ClassVar = {
        **{"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1},
        **{"os.symlink": 2, "os.link": 2, "os.chmod": 1, "shutil.rmtree": 1},
    }
    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] | None = None
        self.strays: list[str] = []
        sys.addaudithook(self.note)

    def note(self, event: str, given: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        count = self.CHANGING.get(event, 0)
        if event == "open" and isinstance(given[2], int) and given[2] & self.WRITING:
            count = 1
        for path in given[:count]:
            if isinstance(path, str | bytes | os.PathLike):
                where = os.path.realpath(os.fsdecode(path))
                if not any(where == each or where.startswith(f"{each}/") for each in self.allowed):
                    self.strays.append(f"{event} {where}")


def case_of(number: int, seed: int, bases: Path, folder: Path) -> tuple[str, list[str]]:
    """The kind of a case and its words, its files now in their folder."""
    draw = random.Random(f"{seed}/{number}")
    [kind] = draw.choices(list(KINDS), [weight for _, weight in KINDS.values()])
    given = folder / "given"
    given.mkdir(parents=True)
    (folder / "aside").mkdir()
    place = Place(bases=bases, given=given, out=folder / "out", draw=draw)
    return kind, KINDS[kind][0](place)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_case(number: int, words: list[str], folder: Path, watch: Watch) -> dict[str, Any]:
    """How a command ended that was run here, its output in a file."""
    given, said, begun = folder / "given", folder / "said", time.monotonic()
    before = contents(given)
    Path("/proc/self/clear_refs").write_text("5")  # from here on, the most memory is this case's
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 2)
    os.close(file)
    os.chdir(given)
    os.environ.update(
        TMPDIR=str(folder / "aside"),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "aside"),  # torch makes it when it loads its compiler
        XDG_STATE_HOME=str(folder / "out"),
    )
    tempfile.tempdir = None
    places = (folder / "out", folder / "aside", said)
    watch.strays = []
    watch.allowed = (*map(os.path.realpath, places), "/dev/null", "/dev/tty")
    # Of its own time, for a busy machine may leave it little; and, if it waits for ever, of any.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(10 * SECONDS)
    try:
        code = command(words)
    except BaseException:
        traceback.print_exc()
        code = 70
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    watch.allowed = None
    sys.stderr.flush()
    strays = watch.strays + ["the given files were changed"] * (contents(given) != before)
    text = said.read_text(errors="replace")
    return {
        "number": number,
        "outcome": outcome_of(code, text, strays),
        "memory": most_memory(),
        "said": "\n".join(strays) + text[-3000:],
        "seconds": time.monotonic() - begun,
    }


def most_memory() -> int:
    """The most memory that this process took since it was last asked to forget, in bytes."""
    status = Path("/proc/self/status").read_text()
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return 1024 * max(peak, of_children)


def run_cases(numbers: range, seed: int, bases: Path, folder: Path, told: Path) -> None:
    """Run some cases in this process, a line for each that ended; then end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0), os.dup2(nothing, 1)
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + 2 * MOST_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["COLUMNS"] = "200"
    # Torch makes folders when it is imported: commands find all of it imported.
    for part in ("auditing.run", "experiments.execution", "report.audit_page", "report.run_page"):
        importlib.import_module(f"r2et.{part}")
    watch = Watch()
    with told.open("a") as file:
        for number in numbers:
            place = folder / str(number)
            kind, words = case_of(number, seed, bases, place)
            print(
                json.dumps({"number": number, "kind": kind, "words": words}), file=file, flush=True
            )
            print(json.dumps(run_case(number, words, place, watch)), file=file, flush=True)
            shutil.rmtree(place, ignore_errors=True)


def outcome_of(code: int, said: str, strays: list[str]) -> str:
    """What an exit code and what was said amount to."""
    if strays:
        return "stray write"
    if "Traceback" in said or code not in (0, 2):
        return "traceback"
    if "there is not enough memory" in said:
        return "no memory"
    if code == 0:
        return "ran"
    sentences = [line for line in said.splitlines() if line.startswith("r2et: ")]
    usage = "Usage:" in said or "╭─ Error" in said
    whole = len(sentences) == 1 and said.rstrip().splitlines()[-1] == sentences[0]
    return "refused" if usage or whole else "no sentence"


# --- all of them --------------------------------------------------------------------------------


def work(numbers: range, seed: int, bases: Path, folder: Path, told: Path) -> None:
    """Run cases in processes of some each; one that dies is replaced behind the case it died of."""
    left = numbers
    while left:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run_cases(left[:BATCH], seed, bases, folder, told)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        ended = [json.loads(line) for line in told.open()]
        if not os.WIFSIGNALED(status) and status:
            raise RuntimeError("the fuzzer itself failed")
        last = ended[-1]
        if "outcome" not in last:
            hung = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF)
            dead = {"outcome": "hung" if hung else "crash", "memory": 0, "seconds": 0.0}
            with told.open("a") as file:
                signal_told = f"signal {os.WTERMSIG(status)}"
                file.write(
                    json.dumps({"number": last["number"], **dead, "said": signal_told}) + "\n"
                )
        left = left[left.index(last["number"]) + 1 :]


def prepared(folder: Path) -> Path:
    """A folder of unspoilt files, made in processes of their own that leave no threads here."""
    bases = folder / "bases"
    bases.mkdir()
    for write in (write_bases, write_stores):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                write(bases)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"{write.__name__} failed")
    return bases


def warm_up() -> None:
    """Have a command refused here once, so that all it imports is there in every case."""
    shown = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)
    command(["audit", "nowhere.csv", "--model", "fuzzed:table"])
    os.dup2(shown, 2)


def fuzz(cases: int, *, seed: int = 0, jobs: int = 1, first: int = 0) -> list[Result]:
    """What became of so many cases."""
    import matplotlib.font_manager  # noqa: F401  # its cache is not ours to watch
    import torch

    import r2et

    for found in pkgutil.walk_packages(r2et.__path__, "r2et."):
        importlib.import_module(found.name)  # so that no case is slow for that

    torch.set_num_threads(1)
    sys.modules["fuzzed"] = factories()
    warm_up()
    gc.freeze()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bases = prepared(folder)
        pids = []
        for job in range(jobs):
            pid = os.fork()
            if pid == 0:
                try:
                    numbers = range(first + job, first + cases, jobs)
                    work(numbers, seed, bases, folder / f"work {job}", folder / f"told {job}")
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            pids.append(pid)
        broken = [pid for pid in pids if os.waitpid(pid, 0)[1]]
        lines = [line for job in range(jobs) for line in (folder / f"told {job}").open()]
    if broken:
        raise RuntimeError("the fuzzer itself failed")
    joined: dict[int, dict[str, Any]] = {}
    for line in map(json.loads, lines):
        joined.setdefault(line["number"], {}).update(line)
    return [Result(**joined[number]) for number in sorted(joined)]


def show(results: list[Result]) -> None:
    """Print what became of the cases of each kind, and each that should not be."""
    print(
        f"{'kind':<20}{'cases':>7}"
        + "".join(f"{each:>13}" for each in OUTCOMES)
        + f"{'MB':>7}{'s':>7}"
    )
    for kind in (*KINDS, "all"):
        own = [each for each in results if kind in (each.kind, "all")]
        counts = Counter(each.outcome for each in own)
        most = max((each.memory for each in own), default=0) // 10**6
        seconds = sum(each.seconds for each in own)
        cells = "".join(f"{counts[each]:>13}" for each in OUTCOMES)
        print(f"{kind:<20}{len(own):>7}{cells}{most:>7}{seconds:>7.0f}")


def faults(results: list[Result]) -> list[Result]:
    """The cases that should not be."""
    return [each for each in results if each.outcome not in FINE or each.memory > MOST_MEMORY]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--cases", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--only", type=int, help="run this case alone and show what it said")
    given = asked.parse_args()
    if given.only is not None:
        results = fuzz(1, seed=given.seed, first=given.only)
        print(results[0].words, results[0].said, sep="\n")
    else:
        results = fuzz(given.cases, seed=given.seed, jobs=given.jobs)
    show(results)
    found = faults(results)
    for each in found[:50]:
        last = (each.said.strip().splitlines() or [""])[-1]
        about = f"case {each.number}, {each.kind}, {each.outcome}, {each.memory // 10**6} MB"
        print(f"{about}: {last[:300]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
