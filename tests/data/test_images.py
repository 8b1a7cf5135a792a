import os
import pickle
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from r2et.core.rng import stream
from r2et.data import DATASETS, Dataset, load, read_folder, read_image
from r2et.data.division import counted_pairs, hold_out, share_out, stratified
from r2et.data.images import CIFAR_CLASSES, read_batch
from r2et.data.roots import VARIABLE, data_root, find
from refusals import refusal

REAL = Path(os.environ.get(VARIABLE, Path(__file__).parents[3] / "shared" / "data"))

Writer = Callable[[Path], object]


@pytest.fixture(autouse=True)
def _no_root_but_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def collection(name: str, root: Path | None = None) -> Dataset:
    found, entry = load(name, root), DATASETS[name]
    assert (found.structure.kind, found.structure.pairs) == (entry.kind, entry.pairs)
    return found


def real(name: str, path: str) -> Dataset:
    if not (REAL / path).exists():
        pytest.skip(f"{path} is not here: set {VARIABLE}")
    return collection(name, REAL)


@cache
def digits() -> Dataset:
    return collection("mnist")


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)


# --- where data are ------------------------------------------------------------------------------


def test_the_root_is_the_argument_else_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert data_root(None) is None
    monkeypatch.setenv(VARIABLE, "")
    assert data_root(None) is None
    monkeypatch.setenv(VARIABLE, "~/data")
    assert data_root(None) == Path.home() / "data"
    assert data_root(tmp_path) == data_root(str(tmp_path)) == tmp_path
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "b").mkdir()
    assert find(None, ("a", "b"), what="letters", source="a book") == tmp_path / "b"
    (tmp_path / "a").touch()
    assert find(None, ("a", "b"), what="letters", source="a book") == tmp_path / "a"


def test_what_is_missing_is_named_with_its_place_and_source(tmp_path: Path) -> None:
    seek = partial(find, relative_candidates=("a/x", "b"), what="letters", source="Cadmus (1500)")
    assert refusal(lambda: seek(None)) == (
        "letters: expected a/x or b in a data root, but none is given: get it from Cadmus (1500), "
        "and name the folder it is in with --data-root or R2ET_DATA."
    )
    assert f"expected a/x or b in {tmp_path}, but it is not there" in refusal(
        lambda: seek(tmp_path)
    )
    assert "nowhere, which is no folder: get it from" in refusal(lambda: seek(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar10", ("CIFAR-10: expected cifar-10-batches-py", "Krizhevsky (2009)", "kriz/cifar")),
        ("oct", ("retinal OCT scans: expected octid", "Gholami", "Kermany", "doi.org/10.17632")),
    ],
)
def test_sets_that_do_not_travel_say_where_they_are_to_be_had(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    for root in (None, tmp_path):
        message = refusal(partial(load, name, root))
        assert all(word in message for word in (*words, "--data-root or R2ET_DATA"))


def test_one_table_lists_all_sets_and_tables_need_no_root(tmp_path: Path) -> None:
    assert list(DATASETS)[:6] == ["adult", "bank", "compas", "mnist", "cifar10", "oct"]
    assert {"abide", "cnp", "kki", "ohsu", "peking"} <= set(DATASETS)
    assert load("compas").digest == load("compas", tmp_path).digest
    assert "did you mean 'mnist'" in refusal(lambda: load("mnits"))


# --- pairs of digits -----------------------------------------------------------------------------


def test_all_threes_and_eights() -> None:
    mnist = digits()
    assert mnist.x.shape == (11982 + 1984, 1, 28, 28)
    assert mnist.x.dtype == torch.float32
    assert [float(end) for end in mnist.x.aminmax()] == [0, 1]
    assert mnist.y.bincount().tolist() == [6131 + 1010, 5851 + 974]
    assert mnist.y[:4].tolist() == [0, 0, 0, 1]
    assert (mnist.classes, mnist.split().classes) == (("3", "8"), ("different", "same"))
    assert (mnist.name, mnist.structure.bounds, mnist.stand_in) == ("mnist", (0, 1), "")
    assert mnist.n == 28 * 28
    assert "CC BY-SA 3.0" in mnist.source


def test_the_parts_are_pairs_of_the_digits_they_are_promised_from() -> None:
    split = digits().split(0)
    parts = (split.train, split.valid, split.test)
    assert [len(part) for part in parts] == [2400, 300, 600]
    assert all(part.x.shape[1:] == (2 * 28 * 28,) for part in parts)
    assert split.train.rows.max() < 11982 <= min(split.valid.rows.min(), split.test.rows.min())
    for part in parts:
        assert 0.4 < part.y.double().mean() < 0.6
        assert 0.4 < digits().y[part.rows].double().mean() < 0.6


@settings(max_examples=60, deadline=None)
@given(
    threes=st.lists(st.integers(4, 12), min_size=2, max_size=2),
    eights=st.lists(st.integers(4, 12), min_size=2, max_size=2),
    seed=st.integers(0, 2**31),
)
def test_promises_of_pairs(threes: list[int], eights: list[int], seed: int) -> None:
    shuffle = torch.Generator().manual_seed(seed)
    training, held_out = (
        torch.tensor([0] * three + [1] * eight)[torch.randperm(three + eight, generator=shuffle)]
        for three, eight in zip(threes, eights, strict=True)
    )
    labels = torch.cat([training, held_out])
    # Half of what is held out to validate, so that either part has at least two of each class.
    divide = partial(counted_pairs, name="d", training=len(training), counts=(50, 20, 20))
    parts = divide(labels, seed)
    assert [tuple(pairs.shape) for pairs in parts.values()] == [(50, 2), (20, 2), (20, 2)]
    for pairs in parts.values():
        assert (pairs[:, 0] != pairs[:, 1]).all()
    valid, test = (set(parts[part].flatten().tolist()) for part in ("valid", "test"))
    assert not valid & test
    assert parts["train"].max() < len(training) <= min(valid | test)
    again = pickle.loads(pickle.dumps(divide))(labels, seed)
    assert all(torch.equal(again[part], pairs) for part, pairs in parts.items())
    assert not torch.equal(divide(labels, seed + 1)["train"], parts["train"])


def test_classes_of_both_sides_and_all_partners_have_equal_chances() -> None:
    # Half of the sides are threes, though only one digit in five is. A quarter of the pairs are two
    # threes, in one of 3 x 2 orders: each of these is one pair in 24.
    labels = torch.tensor([0] * 3 + [1] * 12 + [0] * 4 + [1] * 4)
    divide = partial(counted_pairs, name="d", training=15, counts=(24000, 4, 4))
    pairs = divide(labels, 0)["train"]
    kinds = labels[pairs]
    shares = torch.stack([(kinds == torch.tensor(k)).all(1).double().mean() for k in
                          ([0, 0], [0, 1], [1, 0], [1, 1])])  # fmt: skip
    torch.testing.assert_close(shares, torch.full((4,), 0.25).double(), rtol=0, atol=0.015)
    both = pairs[(kinds == 0).all(1)]
    counts = (3 * both[:, 0] + both[:, 1]).bincount(minlength=9).view(3, 3)
    assert counts.diagonal().sum() == 0
    assert all(850 < counts[i, j] < 1150 for i in range(3) for j in range(3) if i != j)


def test_too_few_items_for_pairs_are_refused() -> None:
    labels = torch.tensor([0, 0, 1, 1, 0, 1, 0, 1])
    message = refusal(lambda: counted_pairs(labels, 0, name="few", training=4, counts=(5, 5, 5)))
    assert message == (
        "pairs of few need at least two items of every class in every part, got [1, 1] in one: "
        "add items."
    )


def test_the_embedded_files_stay_small_and_are_licensed() -> None:
    files = resources.files("r2et.data") / "files"
    assert sum(len(path.read_bytes()) for path in files.iterdir()) < 4_000_000
    licences = (files / "LICENSES.md").read_text("utf-8")
    assert "## mnist_3_8.npz" in licences
    assert "CC BY-SA 3.0" in licences.split("## mnist_3_8.npz")[1]


# --- other divisions -----------------------------------------------------------------------------


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_strata_keep_their_shares_and_lose_nobody(
    labels: list[int], cuts: tuple[float, float]
) -> None:
    total, y = len(labels), torch.tensor(labels)
    low, high = sorted(round(cut * total) for cut in cuts)
    sizes = (low, high - low, total - high)
    parts = stratified(y, sizes, stream(0, "strata"))
    assert [len(part) for part in parts] == list(sizes)
    assert torch.cat(parts).sort().values.tolist() == list(range(total))
    for upto, taken in ((low, parts[0]), (high, torch.cat(parts[:2]))):
        for label in set(labels):
            expected = labels.count(label) * upto / total
            # Shares may be off by half an item of this class, and of each other at the same cut.
            assert abs(int((y[taken] == label).sum()) - expected) <= len(set(labels))


def test_a_share_of_the_training_pictures_is_held_out() -> None:
    labels = torch.tensor([0, 1] * 10 + [1, 0] * 3)
    divide = partial(hold_out, name="h", training=20, share=0.8)
    parts = divide(labels, 3)
    assert sorted(torch.cat([parts["train"], parts["valid"]]).tolist()) == list(range(20))
    assert labels[parts["train"]].bincount().tolist() == [8, 8]
    assert labels[parts["valid"]].bincount().tolist() == [2, 2]
    assert parts["test"].tolist() == list(range(20, 26))
    assert torch.equal(divide(labels, 3)["train"], parts["train"])
    assert not torch.equal(divide(labels, 4)["train"], parts["train"])
    assert not torch.equal(
        hold_out(labels, 3, name="i", training=20, share=0.8)["train"], parts["train"]
    )


@given(patients=st.lists(st.integers(0, 30), min_size=20, max_size=80), seed=st.integers(0, 99))
@settings(deadline=None)
def test_no_patient_is_in_two_parts(patients: list[int], seed: int) -> None:
    owner = torch.tensor(patients)
    labels = owner % 3
    parts = share_out(labels, seed, name="p", patients=owner, shares=(0.6, 0.2, 0.2))
    assert torch.cat(list(parts.values())).sort().values.tolist() == list(range(len(patients)))
    train, valid, test = (set(owner[index].tolist()) for index in parts.values())
    assert not train & valid
    assert not (train | valid) & test
    assert len(train) == round(0.6 * len(set(patients)))


# --- CIFAR-10 ------------------------------------------------------------------------------------


def subset_arrays(**changes: Any) -> dict[str, Any]:
    """A subset of CIFAR-10 of 5 + 2 pictures a class, with changed arrays."""
    return {
        "x_train": noise(50, 32, 32, 3),
        "y_train": np.arange(50, dtype=np.uint8) % 10,
        "x_test": noise(20, 32, 32, 3, seed=1),
        "y_test": np.arange(20, dtype=np.uint8) % 10,
        "classes": np.array(CIFAR_CLASSES),
        **changes,
    }


def subset(root: Path, **changes: Any) -> Path:
    path = root / "cifar10" / "cifar10_10000_2000.npz"
    path.parent.mkdir(exist_ok=True)
    arrays = subset_arrays(**changes)
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return root


def batches(root: Path, per_batch: int = 10) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        data, labels = noise(per_batch, 3072, seed=number), [n % 10 for n in range(per_batch)]
        content = {b"batch_label": b"made", b"labels": labels, b"data": data, b"filenames": [b"x"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=3 + number % 2))
    return root


def text(raw: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    return b"T" + struct.pack("<I", len(raw)) + raw


def python_2_batch(data: NDArray[np.uint8], labels: list[int]) -> bytes:
    """The bytes of a batch as Python 2 wrote the official ones."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
    )
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
    kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K" + bytes([len(data)]) + b"M\x00\x0c\x86" + kind + b"\x89"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    content = text(b"data") + array + state + text(data.tobytes()) + b"tb" + text(b"labels")
    return b"\x80\x02}(" + content + listed + b"u."


def test_a_subset_says_that_it_is_one(tmp_path: Path) -> None:
    cifar = collection("cifar10", subset(tmp_path))
    assert cifar.x.shape == (70, 3, 32, 32)
    assert cifar.x.is_contiguous()
    stored = subset_arrays()["x_test"]
    assert cifar.x[51, 2, 7, 9] == np.float32(stored[1, 7, 9, 2]) / np.float32(255)
    assert (cifar.name, cifar.structure.bounds, cifar.n) == ("cifar10", (0, 1), 32 * 32)
    assert cifar.classes == CIFAR_CLASSES
    assert not cifar.structure.pairs
    assert cifar.stand_in == "a subset of CIFAR-10: 50 + 20 of 60,000 pictures"
    split = cifar.split(0)
    assert [len(part) for part in (split.train, split.valid, split.test)] == [40, 10, 20]
    assert split.test.rows.tolist() == list(range(50, 70))
    assert split.valid.y.sort().values.tolist() == list(range(10))


def test_the_real_subset() -> None:
    cifar = real("cifar10", "cifar10/cifar10_10000_2000.npz")
    assert cifar.stand_in == "a subset of CIFAR-10: 10,000 + 2,000 of 60,000 pictures"
    parts = cifar.divide(cifar.y, 0)
    assert [len(parts[part]) for part in ("train", "valid", "test")] == [8000, 2000, 2000]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": None}, "must be an npz file with x_train, y_train"),
        ({"x_train": noise(50, 28, 28, 3)}, "must hold x_train as uint8 of shape 50 x 32 x 32 x 3"),
        ({"y_train": np.zeros(49, int)}, "y_train as integer of shape 50, got int64 of shape 49"),
        ({"x_test": np.zeros((20, 32, 32, 3))}, "x_test as uint8 of shape 20 x 32 x 32 x 3, got f"),
        ({"classes": np.array(list("abcdefghij"))}, "must name the classes airplane, automobile"),
        ({"y_test": np.array([{}] * 20)}, "holds pickled objects"),
    ],
)
def test_a_subset_with_other_arrays_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    message = refusal(partial(load, "cifar10", subset(tmp_path, **changes)))
    assert words in message
    assert "cifar10_10000_2000.npz must" in message


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = subset(tmp_path) / "cifar10" / "cifar10_10000_2000.npz"
    path.write_bytes(path.read_bytes()[:5000])
    assert "must be an npz file" in refusal(lambda: load("cifar10", tmp_path))


def test_batches_are_preferred_and_read_as_they_are_laid_out(tmp_path: Path) -> None:
    fewer = collection("cifar10", subset(tmp_path))
    cifar = collection("cifar10", batches(tmp_path))
    assert cifar.x.shape == (60, 3, 32, 32)
    assert cifar.y.tolist() == [n % 10 for n in range(10)] * 6
    # Red first, then row after row: pixel (1, 2) of the green layer is number 1024 + 32 + 2.
    assert cifar.x[10, 1, 1, 2] == np.float32(noise(10, 3072, seed=1)[0, 1058]) / np.float32(255)
    assert cifar.stand_in == "a subset of CIFAR-10: 50 + 10 of 60,000 pictures"
    assert cifar.split(1).test.rows.tolist() == list(range(50, 60))
    assert cifar.digest != fewer.digest


def test_all_60000_pictures_are_no_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("r2et.data.images.CIFAR_IMAGES", 60)
    assert collection("cifar10", batches(tmp_path)).stand_in == ""


def test_a_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    data, labels = noise(3, 3072), [7, 0, 9]
    path = tmp_path / "data_batch_1"
    path.write_bytes(python_2_batch(data, labels))
    pixels, read_labels = read_batch(path)
    assert read_labels == labels
    np.testing.assert_array_equal(pixels.reshape(3, 3072), data)


class Calls:
    """What runs a function when it is unpickled without care."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_batch_is_run(protocol: int, tmp_path: Path) -> None:
    proof, path = tmp_path / "proof", tmp_path / "data_batch_1"
    evil = Calls(os.mkdir, str(proof))
    for content in (evil, {b"data": evil}, {b"data": noise(1, 3072), b"labels": [evil]}):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        message = refusal(lambda: read_batch(path))
        assert "must be a batch of the python version of CIFAR-10" in message
        assert "which no batch needs" in message
    assert not proof.exists()
    pickle.loads(path.read_bytes())
    assert proof.exists()


@pytest.mark.parametrize(
    "call",
    [Calls(eval, "1"), Calls(getattr, "", "join"), Calls(np.load, "x"), Calls(np.dtype, "O")],
)
def test_other_names_are_refused_or_stay_dead(call: Calls, tmp_path: Path) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps({b"data": call, b"labels": [0]}))
    assert "must be a batch" in refusal(lambda: read_batch(path))


def test_a_name_cannot_break_the_sentence(tmp_path: Path) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(b"\x80\x04\x8c\x02os\x8c\x0a\n\x1b[31mred.\x93.")
    assert r"'os.\n\x1b[31mred.'" in refusal(lambda: read_batch(path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps({b"data": noise(2, 3072), b"labels": [1, 2]}, protocol=4)[:4000],
        pickle.dumps([1, 2]),
        pickle.dumps({b"labels": [1]}),
        pickle.dumps({b"data": noise(2, 3072), b"labels": [1]}),
        pickle.dumps({b"data": noise(2, 3072), b"labels": [1, 10]}),
        pickle.dumps({b"data": noise(2, 3071), b"labels": [1, 2]}),
        pickle.dumps({b"data": noise(2, 3072).astype(np.int16), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.asfortranarray(noise(2, 3072)), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.dtype("u1"), b"labels": [1, 2]}),
        b"\x80\x02r\xff\xff\xff\x7f.",
    ],
)
def test_what_is_no_batch_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_2"
    path.write_bytes(content)
    message = refusal(lambda: read_batch(path))
    assert message.startswith(f"{path} must be a batch of the python version of CIFAR-10, but")
    assert message.endswith("kriz/cifar.html.")


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    (batches(tmp_path) / "cifar-10-batches-py" / "data_batch_3").unlink()
    assert "data_batch_3 of CIFAR-10: expected data_batch_3 in" in refusal(
        lambda: load("cifar10", tmp_path)
    )


# --- folders of pictures -------------------------------------------------------------------------


def save(path: Path, pixels: NDArray[Any] | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(6, 8) if pixels is None else pixels).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten grey pictures of 6 x 8 pixels in each of two classes."""
    for name in ("sick", "healthy"):
        for number in range(10):
            save(tmp_path / name / f"{number}.png", noise(6, 8, seed=number))
    return tmp_path


def test_a_folder_for_each_class(folder: Path) -> None:
    (folder / "sick" / "notes.txt").write_text("not a picture")
    (folder / "sick" / "._0.png").write_text("what a Mac leaves behind")
    (folder / "readme.md").touch()
    (folder / ".thumbnails").mkdir()
    scans = read_folder(folder, name="scans")
    assert scans.x.shape == (20, 1, 6, 8)
    assert scans.classes == scans.split().classes == ("healthy", "sick")
    assert scans.y.tolist() == [0] * 10 + [1] * 10
    np.testing.assert_array_equal(scans.x[12, 0] * 255, noise(6, 8, seed=2))
    assert scans.source == f"The folder {folder.name}: 20 pictures; 4 other files passed over."
    assert (scans.name, scans.structure.bounds, scans.stand_in) == ("scans", (0, 1), "")
    split = scans.split(0)
    assert [part.y.bincount().tolist() for part in (split.train, split.valid, split.test)] == [
        [7, 7],
        [2, 1],
        [1, 2],
    ]
    assert torch.equal(split.train.rows, read_folder(folder, name="scans").split(0).train.rows)
    assert len(read_folder(folder, name="s", shares=(0.5, 0.25, 0.25)).split(0).train) == 10


def test_sizes_and_colours_meet(folder: Path) -> None:
    save(folder / "sick" / "colour.JPG", noise(9, 5, 3))
    message = refusal(lambda: read_folder(folder, name="scans"))
    assert f"{folder}/healthy/0.png has 6 x 8 pixels and {folder}/sick/colour.JPG 9 x 5" in message
    assert message.endswith("give size=(height, width).")
    scans = read_folder(folder, name="scans", size=(4, 3))
    assert scans.x.shape == (21, 3, 4, 3)
    assert torch.equal(scans.x[0, 0], scans.x[0, 2])
    assert 0 <= scans.x.min() < scans.x.max() <= 1
    assert read_folder(folder, name="scans", size=(4, 3), channels=1).x.shape[1] == 1


def test_one_picture_at_full_size(tmp_path: Path) -> None:
    colour = noise(5, 7, 3)
    path = save(tmp_path / "a.png", colour)
    picture = read_image(path)
    assert (picture.shape, picture.dtype) == ((3, 5, 7), torch.float32)
    np.testing.assert_allclose(picture.permute(1, 2, 0) * 255, colour, rtol=1e-6)
    assert read_image(path, channels=1).shape == (1, 5, 7)
    assert read_image(str(path), size=(10, 3)).shape == (3, 10, 3)


def grey(pixels: NDArray[Any]) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32))[None]


def test_depths_and_orientations(tmp_path: Path) -> None:
    # 16 bits keep more than 256 steps; one bit is black or white; turned pictures become upright.
    deep = np.array([[1, 256, 65535], [0, 30000, 2]], dtype=np.uint16)
    torch.testing.assert_close(read_image(save(tmp_path / "d.png", deep)), grey(deep) / 65535)
    assert read_image(tmp_path / "d.png", channels=3).shape == (3, 2, 3)
    assert read_image(tmp_path / "d.png", size=(4, 6)).max() > 0.9
    flat = np.array([[True, False]])
    assert read_image(save(tmp_path / "b.png", flat)).tolist() == [[[1, 0]]]
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = noise(6, 8)
    turned = read_image(save(tmp_path / "t.png", pixels, exif=exif))
    torch.testing.assert_close(turned * 255, grey(np.rot90(pixels, -1).copy()))
    image = Image.fromarray(noise(4, 4, 4))
    image.quantize(16).save(tmp_path / "p.gif", transparency=0)
    assert read_image(tmp_path / "p.gif").shape == (3, 4, 4)


def test_numbers_without_a_range_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "f.tiff", np.ones((2, 2), np.float32))
    assert "its numbers are not of 8 or 16 bits" in refusal(lambda: read_image(path))
    path = save(tmp_path / "i.tiff", np.full((2, 2), -5, np.int32))
    assert "its numbers are not of 8 or 16 bits" in refusal(lambda: read_image(path))


def with_size(height: int, width: int) -> bytes:
    """A PNG file that claims a size and holds next to nothing."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = zlib.compress(bytes(1000))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def cut_short(path: Path) -> None:
    save(path, noise(60, 80))
    path.write_bytes(path.read_bytes()[:2000])


def postscript(path: Path) -> None:
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 8\n%%EndComments\nshowpage\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut_short, "cannot read"),
        (lambda path: path.write_bytes(b""), "cannot read"),
        (lambda path: path.write_text("no picture"), "cannot read"),
        (postscript, "cannot read"),
        (lambda path: save(path, np.zeros((6, 8), np.uint8)), "are zero"),
        (lambda path: path.write_bytes(with_size(8_000, 8_000)), "at most 50,000,000 pixels"),
        (lambda path: path.write_bytes(with_size(10_000, 10_000)), "at most 50,000,000 pixels"),
        (lambda path: path.write_bytes(with_size(60_000, 60_000)), "at most 50,000,000 pixels"),
    ],
    ids=["cut", "empty", "text", "program", "dark", "large", "larger", "huge"],
)
def test_a_spoilt_picture_is_named(spoil: Writer, words: str, folder: Path) -> None:
    path = folder / "sick" / "11.png"
    spoil(path)
    for read in (partial(read_folder, folder, name="s", size=(6, 8)), partial(read_image, path)):
        message = refusal(read)
        assert words in message
        assert str(path) in message


def test_a_missing_picture_is_refused(tmp_path: Path) -> None:
    message = refusal(lambda: read_image(tmp_path / "none.png"))
    assert f"cannot read {tmp_path}/none.png as a picture (No such file or directory)" in message


def test_folders_that_are_no_classes_are_refused(folder: Path) -> None:
    read = partial(read_folder, name="scans")
    assert f"{folder}/none is none: give the path of one" in refusal(lambda: read(folder / "none"))
    message = refusal(lambda: read(folder / "sick"))
    assert f"for each of at least two classes in {folder}/sick, got none: sort" in message
    (folder / "unknown").mkdir()
    (folder / "unknown" / "list.csv").touch()
    message = refusal(lambda: read(folder))
    assert f"the folder {folder}/unknown holds none: add some or remove it." in message
    assert ".jpeg" in message
    only = folder / "alone" / "one"
    only.mkdir(parents=True)
    assert "got only 'one': sort the pictures" in refusal(lambda: read(only.parent))


def test_requests_that_make_no_sense_are_refused(folder: Path) -> None:
    for size in (8, (8,), (0, 8), (8.5, 8), "68"):
        message = refusal(partial(read_folder, folder, name="s", size=size))  # type: ignore[arg-type]
        assert message == f"size must be (height, width), two whole numbers >= 1, got {size!r}."
    picture = folder / "sick" / "0.png"
    message = refusal(lambda: read_image(picture, channels=4))  # type: ignore[arg-type]
    assert message == "channels must be 1 for grey or 3 for colour, got 4."
    message = refusal(lambda: read_folder(folder, name="s", shares=(0.9, 0.2, 0.1)))
    assert "shares must be three positive numbers" in message


def test_parts_without_pictures_or_with_one_class_are_refused(tmp_path: Path) -> None:
    # Of 3 pictures 70 % are 2 and 15 % none; of 8 the one of class a comes to the first half.
    save(tmp_path / "a" / "0.png")
    for number in range(2):
        save(tmp_path / "b" / f"{number}.png")
    few = read_folder(tmp_path, name="few")
    message = refusal(lambda: few.split(0))
    assert "the valid part of few is empty: add some" in message
    for number in range(2, 7):
        save(tmp_path / "b" / f"{number}.png")
    more = read_folder(tmp_path, name="more", shares=(0.5, 0.25, 0.25))
    assert "the 2 rows of the valid part are all 'b'" in refusal(lambda: more.split(0))


# --- retinal scans -------------------------------------------------------------------------------


def scans(root: Path, **changes: Any) -> Path:
    path = root / "oct" / "oct_gray128.npz"
    path.parent.mkdir()
    arrays = {
        "X": noise(60, 128, 128),
        "y": (np.arange(60) % 40 // 10).astype(np.uint8),
        "patient": np.arange(60) % 40,
        "classes": np.array(["NORMAL", "CNV", "DME", "DRUSEN"]),
        **changes,
    }
    np.savez(path, **arrays)
    return root


def test_scans_that_stand_in_are_divided_by_patient(tmp_path: Path) -> None:
    found = collection("oct", scans(tmp_path))
    assert found.x.shape == (60, 1, 128, 128)
    assert found.stand_in == "retinal OCT scans of Kermany et al. 2018 instead of OCTID"
    assert "Kermany" in found.source
    assert (found.name, found.target, found.structure.bounds) == ("oct", "diagnosis", (0, 1))
    split = found.split(0)
    patients = [set((part.rows % 40).tolist()) for part in (split.train, split.valid, split.test)]
    assert [len(each) for each in patients] == [28, 6, 6]
    assert len(set.union(*patients)) == 40


def test_the_users_own_octid_comes_first(tmp_path: Path) -> None:
    instead = collection("oct", scans(tmp_path))
    for name in ("AMD", "NORMAL"):
        for number in range(4):
            save(tmp_path / "octid" / name / f"{number}.jpeg", noise(50, 75, 3, seed=number))
    own = collection("oct", tmp_path)
    assert own.x.shape == (8, 1, 128, 128)
    assert own.classes == ("AMD", "NORMAL")
    assert (own.name, own.stand_in, own.target) == ("oct", "", "diagnosis")
    assert own.source.startswith("Gholami")
    assert own.source.endswith("The folder octid: 8 pictures.")
    assert own.digest != instead.digest


def test_scans_without_patients_are_refused(tmp_path: Path) -> None:
    message = refusal(partial(load, "oct", scans(tmp_path, patient=np.arange(59))))
    assert "must hold patient as integer of shape 60, got int64 of shape 59" in message


def test_the_real_scans() -> None:
    found = real("oct", "oct/oct_gray128.npz")
    split = found.split(0)
    parts = (split.train, split.valid, split.test)
    assert [len(part) for part in parts] == [700, 150, 150]
    assert all(part.y.bincount().min() >= len(part) // 4 for part in parts)
    folder = REAL / "oct" / "original" / "CNV"
    if folder.is_dir():
        assert all(read_image(path).shape[1] == 496 for path in sorted(folder.iterdir())[:2])
