import importlib
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from r2et.actionable import read_rules
from r2et.auditing import CsvTable, ItemSource, load_model, read_settings
from r2et.core import limits
from r2et.core.archives import arrays_in, opened
from r2et.core.files import read_rows
from r2et.data import read_csv, read_folder
from r2et.data.graphs import read_file
from r2et.data.images import read_batch
from r2et.data.reader import MOST_CHARACTERS, MOST_COLUMNS, CsvReader
from r2et.models import MODELS, bounded, build
from r2et.sklearn import NetworkClassifier
from r2et.training.checkpoint import load, save
from refusals import refusal

MB = 10**6


def small(monkeypatch: pytest.MonkeyPatch, most: int = MB) -> None:
    monkeypatch.setenv(limits.VARIABLE, str(most))


# --- the setting ------------------------------------------------------------------------------


def test_the_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)
    assert limits.most_bytes() == 2**30
    small(monkeypatch, 5)
    assert limits.most_bytes() == 5
    limits.check_bytes(5, "it")
    message = refusal(lambda: limits.check_bytes(6, "it"))
    assert "it would take 6 bytes" in message
    assert limits.VARIABLE in message


@pytest.mark.parametrize("told", ["1e9", "-1", "0", "1 GB", "٣", "9" * 30])
def test_a_limit_that_is_no_number_is_refused(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, told)
    assert f"{limits.VARIABLE} must be a whole number" in refusal(limits.most_bytes)


def test_a_file_of_text_is_looked_at_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(10**13)  # a hole: nothing on the disk
    for read in (
        limits.content_of,
        read_rows,
        read_settings,
        partial(read_csv, target="y"),
        lambda path: read_rules(path.rename(tmp_path / "huge.toml")),
    ):
        assert "bytes of memory" in refusal(lambda read=read: read(huge))
    small(monkeypatch)
    assert "bytes of memory" in refusal(lambda: limits.content_of(Path("/dev/zero")))


@pytest.mark.parametrize("levels", [40, 900, 100_000])
def test_what_is_nested_too_deeply_is_refused(levels: int, tmp_path: Path) -> None:
    deep = "[" * levels + "]" * levels
    assert "nested too deeply" in refusal(lambda: limits.json_of(deep, "it"))
    assert "nested too deeply" in refusal(lambda: limits.toml_of(f"a = {deep}".encode(), "it"))
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 1}}\n{deep}\n{{"b": {"9" * 5000}}}\n{{"c": 2}}\n')
    assert read_rows(path) == [{"a": 1}, {"c": 2}]


# --- archives of arrays -----------------------------------------------------------------------


def forged(path: Path, shape: str, kind: str = "<f4", data: bytes = b"") -> Path:
    """An npz archive of an array whose header says something."""
    said = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("upper.npy", head + data)
    return path


@pytest.mark.parametrize(
    ("shape", "kind", "says"),
    [
        ("(1000000, 10000)", "<f4", "would take 120,000,000,000 bytes"),
        ("(1,)", "<U400000000", "would take 4,800,000,000 bytes"),
        ("(10,)", "<f4", "should hold 40 bytes, but has 0"),
        ("(0, 4611686018427387904, 8)", "<U0", "no array of plain"),
        ("(-1, -1)", "<f4", "no array of plain"),
        ("(1,)", "|O", "pickled objects"),
        ("(1000000000000,)", "|V0", "no array of plain"),
    ],
)
def test_an_array_that_asks_for_more_than_there_is_is_refused(
    shape: str, kind: str, says: str, tmp_path: Path
) -> None:
    path = forged(tmp_path / "a.npz", shape, kind)
    assert says in refusal(lambda: arrays_in(path, ["upper"]))
    assert says in refusal(lambda: read_file(path))


@pytest.mark.parametrize("code", [0x110000, 0xD800])
def test_words_of_no_characters_are_refused(code: int, tmp_path: Path) -> None:
    path = forged(tmp_path / "a.npz", "(1,)", "<U1", struct.pack("<I", code))
    assert "characters that there are not" in refusal(lambda: arrays_in(path, ["upper"]))
    arrays, _ = arrays_in(forged(path, "(1,)", ">U1", struct.pack(">I", 65)), ["upper"])
    assert arrays["upper"].tolist() == ["A"]


def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, upper=np.zeros((100, 3), np.float32), labels=np.arange(100))
    arrays, names = arrays_in(path, ["upper", "none"])
    assert (list(arrays), names) == (["upper"], ["upper", "labels"])
    small(monkeypatch, 5_999)  # for three times 1,200 and 800 bytes
    assert f"{path}, with the work on it, would take 6,000 bytes" in refusal(
        lambda: read_file(path)
    )


def test_an_archive_of_too_many_members_is_refused_before_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"")
    content = bytearray(path.read_bytes())
    end = content.rfind(b"PK\x05\x06")
    content[end + 12 : end + 16] = struct.pack("<I", 11 * 2**20)
    path.write_bytes(bytes(11 * 2**20) + bytes(content))

    def names() -> list[str]:
        with opened(path) as archive:
            return archive.namelist()

    assert "more than 10,000 members" in refusal(names)


def test_a_graph_archive_of_a_few_bytes_cannot_fill_the_memory(tmp_path: Path) -> None:
    # Two graphs, of nodes that all have another label: 2 x n (n - 1) / 2 numbers.
    path, count = tmp_path / "TU.zip", 40_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("T_A.txt", "1, 2\n")
        archive.writestr("T_graph_indicator.txt", "1\n" * (count - 1) + "2\n")
        archive.writestr("T_graph_labels.txt", "1\n2\n")
        archive.writestr("T_node_labels.txt", "\n".join(map(str, range(count))))
    assert "2 graphs of 40,000 nodes, would take 6,399,840,000" in refusal(lambda: read_file(path))


@pytest.mark.parametrize("content", [b"PK\x05\x06", b"PK\x03\x04" + bytes(30)])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("T_A.txt", "1, 2\n" * 50)
    assert str(path) in refusal(lambda: read_file(path))
    whole = (tmp_path / "whole.zip").read_bytes()
    at = whole.rfind(b"PK\x01\x02")
    path.write_bytes(whole[:at] + whole[at:].replace(b"T_A", b"T_B"))
    assert str(path) in refusal(lambda: read_file(path))


def test_a_stored_batch_that_asks_for_a_far_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".")
    assert "place 2147483647" in refusal(lambda: read_batch(path))


# --- MATLAB files -----------------------------------------------------------------------------


def test_a_matlab_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mat"
    savemat(
        path, {"upper": np.zeros((20_000, 10)), "labels": np.zeros(20_000)}, do_compression=True
    )
    assert path.stat().st_size < 10_000
    small(monkeypatch)
    assert "would take more memory" in refusal(lambda: read_file(path))


def test_a_matlab_file_that_ends_its_reader_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mat"
    savemat(path, {"upper": np.zeros((4, 3)), "labels": np.zeros(4)})
    # Stands for a reader that is ended by the system, as scipy's can be by a damaged file.
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("import os; os.abort()")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        message = refusal(lambda: read_file(path))
    assert "ended the process that read it (signal 6)" in message
    assert len(read_file(path).labels) == 4


def test_words_of_any_name_come_through(tmp_path: Path) -> None:
    from r2et.data.graphs import Keys

    path = tmp_path / "a b.mat"
    labels = np.array(["x", "", "z"], dtype=object)
    labels[1] = 3.0
    savemat(path, {"file": np.ones((3, 3)), "names": labels})
    found = read_file(path, Keys(upper="file", labels="names"))
    assert found.labels == ("x", "3", "z")


# --- pictures ---------------------------------------------------------------------------------


def test_pictures_are_counted_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "all" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (300, 300), 9).save(tmp_path / "all" / name / f"{number}.png")
    small(monkeypatch)
    message = refusal(lambda: read_folder(tmp_path / "all", name="x"))
    assert "6 pictures of 300 x 300 pixels, would take 3,240,000" in message
    assert len(read_folder(tmp_path / "all", name="x", size=(30, 30)).x) == 6


def test_a_picture_of_too_many_features_is_no_row_of_an_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small(monkeypatch)
    x = torch.rand(1, 1, 50, 50)
    assert "2,500 features, would take" in refusal(lambda: ItemSource(x=x))
    assert len(ItemSource(x=x[..., :20, :20]).columns.features) == 400


# --- tables -----------------------------------------------------------------------------------


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    long = tmp_path / "long.csv"
    with long.open("wb") as file:
        file.write(b"a,b\n1,")
        file.truncate(10**12)
    assert f"line 2: a row has more than {MOST_CHARACTERS:,}" in refusal(lambda: CsvTable.at(long))
    cells = '"a\n",' * (MOST_CHARACTERS // 5 + 1)
    quoted = table(tmp_path / "quoted.csv", f"a,b\n{cells}1\n")
    assert "a row has more than" in refusal(lambda: CsvTable.at(quoted))


def test_a_table_of_too_many_columns_is_refused(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(MOST_COLUMNS + 1))
    path = table(tmp_path / "wide.csv", f"{names}\n{names}\n")
    assert "at most 32,768 columns" in refusal(lambda: CsvTable.at(path))
    assert "at most 32,768 columns" in refusal(lambda: read_csv(path, target="c0"))


def test_a_wide_table_is_read_in_smaller_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("r2et.data.reader"), "MOST_CELLS", 6)
    path = table(tmp_path / "t.csv", "a,b\n" + "1,2\n" * 7)
    assert [len(block.lines) for block in CsvReader.at(path).blocks(5)] == [3, 3, 1]


@pytest.mark.parametrize("number", ["1e200", "-1e300", "1e101"])
def test_a_number_that_cannot_be_squared_is_refused(number: str, tmp_path: Path) -> None:
    rows = "".join(f"{place},{place % 2}\n" for place in range(30))
    path = table(tmp_path / "t.csv", f"a,y\n{rows}{number},1\n")
    for read in (CsvTable.at, partial(read_csv, target="y")):
        message = refusal(lambda read=read: read(path))
        assert f"line 32, column 'a': expected a finite number, got '{number}'" in message


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"PAR1\x15\x04", "Parquet file"), (b'""\n""\n', "no header line"), (b"\n\n \n", "is empty")],
)
def test_a_file_that_is_no_table_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert says in refusal(lambda: CsvTable.at(path))


def test_a_device_is_no_table() -> None:
    assert "is no file" in refusal(lambda: CsvTable.at("/dev/zero"))


# --- model files ------------------------------------------------------------------------------


def test_a_network_is_no_larger_than_its_weights(tmp_path: Path) -> None:
    for name, plan in {
        "wide": {"name": "mlp", "inputs": 10**6, "hidden": [10**6], "classes": 2},
        "deep": {"name": "resnet18", "width": 1, "blocks": [10**9, 1, 1, 1]},
    }.items():
        model = build({"name": "logistic", "inputs": 3}, torch.Generator())
        path = save(tmp_path / f"{name}.safetensors", model, {"model": plan})
        assert "more numbers than the weights" in refusal(lambda path=path: load(path))
    with bounded([10]):
        torch.zeros(2**16)
        with pytest.raises(ValueError, match="more numbers"):
            torch.zeros(2**16 + 1)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet18"])
def test_every_network_fits_into_the_bounds_of_its_own_weights(name: str, tmp_path: Path) -> None:
    plans: dict[str, dict[str, Any]] = {
        "mlp": {"inputs": 5},
        "logistic": {"inputs": 5},
        "structured": {"inputs": 5, "numeric": [0, 1], "one_hot": [[2, 3, 4]]},
        "siamese-cnn": {},
        "siamese-gcn": {"nodes": 6},
        "gcn": {"nodes": 6},
    }
    plan = {"name": name, **plans[name]}
    model = build(plan, torch.Generator().manual_seed(0))
    found, _ = load(save(tmp_path / "m.safetensors", model, {"model": plan}))
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(
            model.state_dict().values(), found.state_dict().values(), strict=True
        )
    )


@pytest.mark.parametrize(
    "notes",
    [
        "[]",
        '{"recipe": 3}',
        "[" * 10**5,
        '{"recipe": {"model": 3}}',
        '{"recipe": {"model": {"name": []}}}',
        '{"recipe": {"model": {"name": "mlp", "inputs": "x"}}}',
        '{"recipe": {"estimator": {"format": 1}}}',
    ],
)
def test_a_model_file_that_says_anything_of_itself_is_refused(notes: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "m.safetensors"
    save_file({"w": torch.zeros(2)}, path, metadata={"r2et": notes})
    assert str(path) in refusal(lambda: load_model(str(path)))


def test_a_model_file_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write((2**20).to_bytes(8, "little") + b"{")
        file.truncate(10**13)
    assert "bytes of memory" in refusal(lambda: load_model(str(path)))
    assert "bytes of memory" in refusal(lambda: NetworkClassifier.load(path))
