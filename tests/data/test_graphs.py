import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from torch import Tensor

from r2et.core.inputs import symmetric
from r2et.core.rng import stream
from r2et.data.builtin import DATASETS
from r2et.data.dataset import Dataset
from r2et.data.division import Pairing, folded_pairs, folds_of
from r2et.data.graphs import (
    AAL,
    STORED,
    GraphFile,
    Graphs,
    Keys,
    read_file,
    read_graphs,
    upper_of,
)
from r2et.data.roots import VARIABLE
from refusals import refusal

SHARED = Path(os.environ.get(VARIABLE, Path(__file__).parents[3] / "shared" / "data"))
N, M = 20, 5
NAMES = ("a", "b", "c", "d", "e")


def made_matrices() -> np.ndarray:
    """Random correlations of N networks of M nodes, with a diagonal of infinities: (N, M, M)."""
    upper = 2 * torch.rand((N, M * (M - 1) // 2), generator=stream(0, "networks")) - 1
    matrices = symmetric(upper, M).numpy()
    matrices[:, range(M), range(M)] = np.inf
    return matrices


MATRICES = made_matrices()
UPPER = MATRICES[:, *np.triu_indices(M, 1)]
LABELS = np.array(["well", "ill"] * (N // 2))


def cells(values: Any) -> np.ndarray:
    """What MATLAB calls a cell array: (N,)."""
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "made.npz", **arrays)
    return folder / "made.npz"


def mat(folder: Path, **arrays: Any) -> Path:
    savemat(folder / "made.mat", arrays)
    return folder / "made.mat"


GRAPHS = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n4, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "-1\n1\n",
    "node_labels": "7\n3\n5\n5\n7\n",
}


def tu(folder: Path, **changes: str | None) -> Path:
    """A TUDataset archive of two graphs, some of its files changed or left out."""
    path = folder / "MADE.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/MADE/._MADE_A.txt", b"\x00")
        for name, text in (GRAPHS | changes).items():
            if text is not None:
                archive.writestr(f"MADE/MADE_{name}.txt", text)
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "npz of matrices": lambda to: npz(to, matrices=MATRICES, labels=LABELS, nodes=NAMES),
    "npz of triangles": lambda to: npz(to, upper=UPPER, labels=LABELS.astype("S"), nodes=NAMES),
    "mat, stacked first": lambda to: mat(to, matrices=MATRICES, labels=LABELS, nodes=NAMES),
    "mat, stacked last": lambda to: mat(
        to, matrices=np.moveaxis(MATRICES, 0, 2), labels=cells(LABELS), nodes=cells(NAMES)
    ),
    "mat of cells": lambda to: mat(
        to, matrices=cells(MATRICES), labels=cells(LABELS), nodes=cells(NAMES)
    ),
    "mat of triangles": lambda to: mat(to, upper=UPPER, labels=LABELS, nodes=cells(NAMES)),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_every_kind_of_file_gives_the_same_networks(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    found = read_file(make(tmp_path))
    torch.testing.assert_close(found.upper, torch.from_numpy(UPPER))
    assert found.upper.dtype == torch.float32
    assert found.labels == tuple(LABELS)
    assert found.nodes == NAMES


def test_graphs_are_aligned_by_their_node_labels(tmp_path: Path) -> None:
    # Regions 3, 5, 7. Graph 1 joins 7 to 3 and 3 to 5; graph 2 joins 5 to 7, and 5 to itself.
    found = read_file(tu(tmp_path))
    assert found.nodes == ("region 3", "region 5", "region 7")
    assert found.upper.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert found.labels == ("-1", "1")


def test_graphs_without_node_labels_go_by_their_order(tmp_path: Path) -> None:
    edges = "1, 2\n3, 4\n3, 5\n1, 6\n"
    found = read_file(tu(tmp_path, A=edges, graph_indicator="1\n1\n2\n2\n2\n1", node_labels=None))
    assert found.upper.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]


def test_labels_are_put_into_classes_and_others_left_out(tmp_path: Path) -> None:
    dx = np.array(["BIPOLAR", "CONTROL", "SCHZ", "ADHD"] * 5)
    path = npz(tmp_path, fc=MATRICES, dx=dx, roi=NAMES, age=np.arange(N))
    found = read_graphs(
        path,
        name="mine",
        about=GraphFile(
            keys=Keys(matrices="fc", labels="dx", nodes="roi"),
            classes={"CONTROL": "control", "BIPOLAR": "mood", "SCHZ": "mood"},
            bounds=(-1.0, 1.0),
        ),
    )
    assert found.classes == ("control", "mood")
    assert found.y.tolist() == [1, 0, 1] * 5
    kept = [place for place in range(N) if place % 4 != 3]
    torch.testing.assert_close(found.x, torch.from_numpy(UPPER[kept]))
    assert found.structure.feature_name(0) == "a \N{EN DASH} b"
    assert found.structure.inputs.unpack(found.split(0).train.x)[0].shape[1:] == (M, M)


def test_without_classes_every_label_is_one_numbers_in_order(tmp_path: Path) -> None:
    labels = np.array([10.0, -1.0, 2.0, 1000001.0] * 5)
    found = read_graphs(npz(tmp_path, upper=UPPER, labels=labels), name="mine")
    assert found.classes == ("-1", "2", "10", "1000001")
    assert found.y.bincount().tolist() == [5, 5, 5, 5]


def spoilt(place: tuple[int, ...], value: float) -> np.ndarray:
    matrices = MATRICES.copy()
    matrices[place] = value
    return matrices


def blank(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


HDF5 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n"
GOOD = {"upper": UPPER, "labels": LABELS}

REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no file": (lambda to: to / "none.npz", "there is no file"),
    "unknown kind": (lambda to: blank(to / "a.csv", b"1"), ".npz, .mat or .zip"),
    "no archive": (lambda to: blank(to / "a.npz", b"1"), "numpy.savez"),
    "no zip": (lambda to: blank(to / "a.zip", b"1"), "zip archive of the TUDataset"),
    "no MATLAB file": (lambda to: blank(to / "a.mat", b"\x01" * 300), "must be a MATLAB file"),
    "MATLAB 7.3": (lambda to: blank(to / "a.mat", HDF5), "'-v7'"),
    "not square": (lambda to: npz(to, matrices=MATRICES[:, :4], labels=LABELS), "square"),
    "one matrix": (lambda to: npz(to, matrices=MATRICES[0], labels=LABELS), "(N, m, m)"),
    "asymmetric": (
        lambda to: npz(to, matrices=spoilt((3, 1, 2), 5.0), labels=LABELS),
        "symmetric, but matrix 3",
    ),
    "NaN above": (
        lambda to: npz(to, matrices=spoilt((3, 1, 2), np.nan), labels=LABELS),
        "network 3 has nan in row 1, column 2",
    ),
    "NaN below": (
        lambda to: npz(to, matrices=spoilt((3, 2, 1), np.nan), labels=LABELS),
        "network 3 has nan in row 2, column 1",
    ),
    "NaN in a triangle": (
        lambda to: npz(to, upper=np.where(np.arange(10) == 4, np.nan, UPPER), labels=LABELS),
        "network 0 has nan at place 4",
    ),
    "unequal nodes, npz": (
        lambda to: npz(to, matrices=cells([MATRICES[0], np.eye(3)]), labels=LABELS[:2]),
        "equally many nodes",
    ),
    "unequal nodes, mat": (
        lambda to: mat(to, matrices=cells([MATRICES[0], np.eye(3)]), labels=LABELS[:2]),
        "shapes (3, 3) and (5, 5)",
    ),
    "no triangle": (lambda to: npz(to, upper=UPPER[:, :9], labels=LABELS), "m (m - 1) / 2"),
    "words for numbers": (lambda to: npz(to, upper=LABELS, labels=LABELS), "real numbers"),
    "unknown key": (lambda to: npz(to, upper=UPPER, label=LABELS), "did you mean 'label'"),
    "no networks": (lambda to: npz(to, matrix=MATRICES, labels=LABELS), "got neither"),
    "both": (lambda to: npz(to, matrices=MATRICES, **GOOD), "got both"),
    "too few labels": (lambda to: npz(to, upper=UPPER, labels=LABELS[1:]), "19 labels"),
    "missing label": (
        lambda to: npz(to, upper=UPPER, labels=np.where(np.arange(N) == 2, np.nan, 1.0)),
        "label of network 2 is missing",
    ),
    "missing cell": (
        lambda to: mat(to, upper=UPPER, labels=cells([[], *LABELS[1:]])),
        "label of network 0 is missing",
    ),
    "names short": (lambda to: npz(to, nodes=NAMES[1:], **GOOD), "5 nodes have 4 names"),
    "names twice": (lambda to: npz(to, nodes=list("abcda"), **GOOD), "called 'a'"),
    "label twice": (lambda to: tu(to, node_labels="7\n3\n7\n5\n7\n"), "graph 1 of"),
    "unequal nodes, zip": (lambda to: tu(to, node_labels=None), "have 2 to 3"),
    "no edges": (lambda to: tu(to, A=None), "_A.txt"),
    "no graph labels": (lambda to: tu(to, graph_labels=None), "MADE_graph_labels.txt"),
    "no numbers": (lambda to: tu(to, graph_labels="-1\nx\n"), "whole numbers"),
    "too many columns": (lambda to: tu(to, A="1, 2, 3\n"), "must hold 2 whole numbers"),
    "foreign graph": (lambda to: tu(to, graph_indicator="1\n1\n1\n2\n3\n"), "graphs 1..3"),
    "foreign node": (lambda to: tu(to, A="1, 9\n"), "nodes 1..5"),
    "edge across": (lambda to: tu(to, A="3, 4\n"), "node 3 to node 4"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_bad_file_is_refused_in_one_sentence(
    make: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    assert reason in refusal(lambda: read_file(path))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    for path in (npz(tmp_path, **GOOD), mat(tmp_path, **GOOD), tu(tmp_path)):
        whole = path.read_bytes()
        half = len(whole) // 2
        path.write_bytes(whole[:half])
        assert str(path) in refusal(lambda path=path: read_file(path))
        if path.suffix != ".mat":
            path.write_bytes(whole[:half] + b"?" * 20 + whole[half + 20 :])
            assert str(path) in refusal(lambda path=path: read_file(path))


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    path = npz(tmp_path, **GOOD)

    def wish(**options: Any) -> str:
        return refusal(lambda: read_graphs(path, name="mine", about=GraphFile(**options)))

    assert "did you mean 'well'" in wish(classes={"wel": "0", "ill": "1"})
    assert "at least two classes" in wish(classes={"well": "0"})
    assert "at least two classes" in wish(classes={})
    assert "0..1" in wish(bounds=(0.0, 1.0))
    assert "'roi'" in wish(keys=Keys(nodes="roi"))
    assert "per_class" in refusal(lambda: Pairing(per_class=0))
    few = read_graphs(path, name="mine", about=GraphFile(pairing=Pairing(per_class=9)))
    assert "at least 9 training items" in refusal(lambda: few.split(0))


def test_a_missing_file_names_its_source(tmp_path: Path) -> None:
    for name in STORED:
        message = refusal(lambda name=name: DATASETS[name].load(tmp_path))
        assert STORED[name].file in message
        assert "et al." in message


def test_the_diagonal_is_not_read() -> None:
    matrices = torch.from_numpy(MATRICES).clone()
    matrices[:, range(M), range(M)] = torch.nan
    torch.testing.assert_close(upper_of(matrices), torch.from_numpy(UPPER))


def labels_of(sizes: list[int], seed: int) -> Tensor:
    """So many items of each class, in random order: (M,)."""
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=stream(seed, "labels"))]


SIZES = st.lists(st.integers(9, 30), min_size=2, max_size=3)
SEEDS = st.integers(0, 10**6)


def held_out(parts: Mapping[str, Tensor], part: str) -> set[int]:
    return set(parts[part][:, 0].tolist())


@settings(max_examples=30, deadline=None)
@given(SIZES, SEEDS, st.integers(2, 200), st.integers(1, 3))
def test_what_a_division_promises(
    sizes: list[int], seed: int, train_pairs: int, per_class: int
) -> None:
    labels = labels_of(sizes, seed)
    pairing = Pairing(train_pairs=train_pairs, per_class=per_class)
    parts = folded_pairs(labels, seed, name="made", pairing=pairing)
    valid, test = held_out(parts, "valid"), held_out(parts, "test")
    training = set(range(len(labels))) - valid - test
    assert not valid & test
    assert len(valid) == -(-(len(labels) - len(test)) // 8)
    assert set(parts["train"].flatten().tolist()) <= training

    pairs = [frozenset(pair) for pair in parts["train"].tolist()]
    assert len(set(pairs)) == len(pairs)
    assert {len(pair) for pair in pairs} == {2}
    same = labels[parts["train"][:, 0]] == labels[parts["train"][:, 1]]
    assert 2 * int(same.sum()) == len(pairs) <= train_pairs

    for part in ("valid", "test"):
        assert set(parts[part][:, 1].tolist()) <= training
        for item in held_out(parts, part):
            partners = parts[part][parts[part][:, 0] == item][:, 1]
            assert len(partners.unique()) == len(partners)
            assert labels[partners].bincount().tolist() == [per_class] * len(sizes)


@settings(max_examples=20, deadline=None)
@given(SIZES, st.integers(0, 10**5), st.integers(2, 6))
def test_consecutive_seeds_test_the_folds_of_one_division(
    sizes: list[int], number: int, folds: int
) -> None:
    labels = labels_of(sizes, number)
    pairing = Pairing(folds=folds, per_class=1)
    tests = [
        held_out(folded_pairs(labels, seed, name="made", pairing=pairing), "test")
        for seed in range(folds * number, folds * (number + 1))
    ]
    assert sorted(item for test in tests for item in test) == list(range(len(labels)))
    for test in tests:
        for each, size in enumerate(sizes):
            assert abs(int((labels[sorted(test)] == each).sum()) - size / folds) < 1


def test_pairs_come_in_both_orders_and_are_as_many_as_wished() -> None:
    labels = labels_of([100, 60], 0)
    train = folded_pairs(labels, 3, name="made")["train"]
    assert len(train) == 4000
    assert 0.4 < (train[:, 0] < train[:, 1]).double().mean() < 0.6
    few = folded_pairs(labels_of([9, 9], 0), 3, name="made")["train"]
    # 18 items: 3 in the tested fold, 2 of the other 15 validate; 42 of 78 pairs are of two classes.
    assert len(few.unique()) == 13
    assert len(few) == 2 * 36


def test_seed_and_name_decide_a_division() -> None:
    labels = labels_of([20, 30], 1)
    first, again, other = (
        folded_pairs(labels, 7, name=name) for name in ("made", "made", "another")
    )
    assert all(torch.equal(first[part], again[part]) for part in first)
    assert held_out(first, "test") != held_out(other, "test")
    folds = [folds_of(labels, 5, stream(number, "made", "folds")) for number in (0, 1)]
    assert not torch.equal(*folds)


def test_a_division_can_be_sent_to_another_process(tmp_path: Path) -> None:
    found = read_graphs(
        npz(tmp_path, **GOOD), name="mine", about=GraphFile(pairing=Pairing(train_pairs=10))
    )
    sent = pickle.loads(pickle.dumps(found))
    assert torch.equal(sent.split(2).test.x, found.split(2).test.x)
    assert len(sent.split(2).train) == 10


def test_networks_are_checked_when_made() -> None:
    assert "m (m - 1) / 2" in refusal(lambda: Graphs(upper=torch.ones(3), labels=("a",) * 3))
    found = Graphs(upper=torch.ones(3, 6670), labels=("a", "b", "a"), nodes=AAL)
    assert found.size == 116


@cache
def real(name: str) -> Dataset:
    """A real collection, where its file is."""
    path = SHARED / "brain" / STORED[name].file
    if not path.is_file():
        pytest.skip(f"{path} is not on this machine")
    return DATASETS[name].load(SHARED)


COUNTS = {
    "abide": (116, [684, 305]),
    "abide-diagnosis": (116, [534, 455]),
    "cnp": (125, [110, 40]),
    "kki": (190, [37, 46]),
    "ohsu": (190, [35, 44]),
    "peking": (190, [49, 36]),
}


@pytest.mark.parametrize("name", STORED)
def test_the_stored_networks_are_as_documented(name: str) -> None:
    found = real(name)
    nodes, counts = COUNTS[name]
    assert found.structure.piece.shape == (nodes, nodes)
    assert found.y.bincount().tolist() == counts
    assert len(set(found.structure.nodes)) == nodes
    assert (DATASETS[name].kind, DATASETS[name].pairs) == ("network", found.structure.pairs)
    assert found.structure.kind == "network"
    assert found.structure.pairs
    assert found.stand_in
    assert found.structure.centred == (found.structure.bounds == (-1.0, 1.0))
    parts = found.divide(found.y, 1)
    assert not held_out(parts, "test") & set(parts["train"].flatten().tolist())
    assert len(parts["test"]) == 4 * len(held_out(parts, "test"))


def test_the_regions_of_abide_are_in_the_order_of_the_atlas() -> None:
    # The file has no names: a region moves with its mirror image, or else with its neighbour.
    mean = symmetric(real("abide").x.mean(0, keepdim=True), 116)[0]
    mirrored = mean[range(0, 108, 2), range(1, 108, 2)]
    assert (mean[:108:2] > mirrored[:, None]).sum(-1).double().mean() < 1
    nearest = {
        "Precentral_L": "Postcentral_L",
        "Frontal_Sup_R": "Frontal_Mid_R",
        "Frontal_Inf_Oper_L": "Frontal_Inf_Tri_L",
        "Occipital_Sup_L": "Cuneus_L",
        "Pallidum_R": "Putamen_R",
        "Heschl_L": "Rolandic_Oper_L",
        "Cerebelum_7b_R": "Cerebelum_8_R",
        "Vermis_6": "Cerebelum_6_L",
    }
    assert {name: AAL[int(mean[AAL.index(name)].argmax())] for name in nearest} == nearest


def test_real_graphs_match_a_slow_reading() -> None:
    found = real("kki")
    with zipfile.ZipFile(SHARED / "brain" / "KKI.zip") as archive:
        edges, graph, labels = (
            archive.read(f"KKI/KKI_{name}.txt").decode().split("\n")
            for name in ("A", "graph_indicator", "node_labels")
        )
    slow = torch.zeros(83, 190, 190)
    for one, other in (map(int, edge.split(",")) for edge in edges if edge):
        slow[int(graph[one - 1]) - 1, int(labels[one - 1]), int(labels[other - 1])] = 1
    assert torch.equal(symmetric(found.x, 190), slow)
