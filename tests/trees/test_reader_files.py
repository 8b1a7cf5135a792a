"""Files of models: read as the model that wrote them, or refused in one sentence."""

import copy
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.datasets import load_iris
from tree_rows import check_same, hard_rows, people, read

from r2et.trees.form import Ensemble
from r2et.trees.readers import read_file
from r2et.trees.readers.parts import Admitted
from r2et.trees.readers.xgb import admitted

Table = tuple[Any, Any]
NUMBERS = ["age", "income", "debt"]


def _xgb(path: Path, table: Table, **options: Any) -> Any:
    common = {"n_estimators": 3, "max_depth": 3, "n_jobs": 1, "enable_categorical": True}
    model = xgboost.XGBClassifier(**common, **options).fit(*table)
    model.save_model(path)
    return model


def _lgbm(path: Path, table: Table, **options: Any) -> Any:
    common = {"n_estimators": 3, "num_leaves": 6, "n_jobs": 1, "verbose": -1, "cat_smooth": 1}
    model = lightgbm.LGBMClassifier(**common, min_data_per_group=5, **options).fit(*table)
    model.booster_.save_model(path)
    return model


def _cat(path: Path, table: Table, **options: Any) -> Any:
    catboost = pytest.importorskip("catboost")
    common = {"iterations": 3, "depth": 3, "thread_count": 1, "allow_writing_files": False}
    x, y = table
    x = x[NUMBERS] if hasattr(x, "columns") else x
    model = catboost.CatBoostClassifier(**common, **options, verbose=0).fit(x, y)
    model.save_model(str(path), format="json")
    return model


KINDS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "xgb": (_xgb, "json", {}),
    "xgb, dart": (_xgb, "json", {"booster": "dart", "rate_drop": 0.5}),
    "xgb, binary": (_xgb, "ubj", {}),
    "lgbm": (_lgbm, "txt", {}),
    "cat": (_cat, "json", {}),
    "cat, by leaf": (_cat, "json", {"grow_policy": "Lossguide"}),
}


@pytest.fixture(params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A model, and the file that it wrote."""
    write, ending, options = KINDS[request.param]
    path = tmp_path / f"model.{ending}"
    return write(path, people(), **options), path


def _same(a: Ensemble, b: Ensemble) -> bool:
    return (
        [(each.name, each.words) for each in a.columns]
        == [(each.name, each.words) for each in b.columns]
        and (a.classes, a.scale, a.source) == (b.classes, b.scale, b.source)
        and np.array_equal(a.constant, b.constant)
        and len(a.trees) == len(b.trees)
        and all(
            np.array_equal(getattr(one, field), getattr(other, field))
            for one, other in zip(a.trees, b.trees, strict=True)
            for field in ("feature", "threshold", "missing_left", "left", "right", "value", "cover")
        )
        and all(
            (one.words, one.output) == (other.words, other.output)
            for one, other in zip(a.trees, b.trees, strict=True)
        )
    )


def test_a_file_is_the_model_that_wrote_it(written: tuple[Any, Path]) -> None:
    model, path = written
    assert _same(read_file(path), read(model))
    assert _same(read_file(str(path)), read(model))


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_three_classes(name: str, tmp_path: Path) -> None:
    write, ending, options = KINDS[name]
    path = tmp_path / f"model.{ending}"
    model = write(path, load_iris(return_X_y=True), **options)
    ensemble = read_file(path)
    assert ensemble.classes == (0, 1, 2)
    rows = hard_rows(ensemble, Admitted())
    assert np.array_equal(ensemble(rows), read(model)(rows))


def test_labels_of_a_file(tmp_path: Path) -> None:
    x, y = load_iris(return_X_y=True)
    _cat(tmp_path / "model.json", (x, np.array(["b", "c", "a"])[y]))
    assert read_file(tmp_path / "model.json").classes == ("a", "b", "c")
    # LightGBM does not write labels: they are numbers.
    _lgbm(tmp_path / "model.txt", (x, np.array(["b", "c", "a"])[y]))
    assert read_file(tmp_path / "model.txt").classes == (0, 1, 2)


def test_models_that_were_loaded_again(written: tuple[Any, Path]) -> None:
    model, path = written
    if isinstance(model, lightgbm.LGBMClassifier):
        loaded: Any = lightgbm.Booster(model_file=path)
    else:
        loaded = type(model)()
        known = {} if isinstance(model, xgboost.XGBClassifier) else {"format": "json"}
        loaded.load_model(str(path), **known)
    ensemble = read_file(path)
    rows = hard_rows(ensemble, Admitted())
    # CatBoost itself reads some of its numbers one bit off.
    np.testing.assert_allclose(read(loaded)(rows), ensemble(rows), rtol=0, atol=1e-14)


@pytest.mark.parametrize("classes", [2, 3])
def test_older_files_of_xgboost(classes: int, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    x, y = load_iris(return_X_y=True)
    _xgb(path, (x, np.minimum(y, classes - 1)))
    document = json.loads(path.read_bytes())
    learner = document["learner"]
    model = learner["gradient_booster"]["model"]
    document["version"] = [1, 7, 6]
    learner["learner_model_param"]["base_score"] = "2E-1"  # once one number for all classes
    for kept, name in ((model, "cats"), (model, "iteration_indptr"), (learner, "feature_types")):
        kept.pop(name, None)
    path.write_text(json.dumps(document))
    ensemble, booster = read_file(path), xgboost.Booster(model_file=path)
    check_same(ensemble, booster, hard_rows(ensemble, admitted(booster)))


def test_raw_scores_of_older_xgboost_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    _xgb(path, people(), objective="binary:logitraw")
    document = {**json.loads(path.read_bytes()), "version": [2, 1, 4]}
    said = refused(path, json.dumps(document).encode())
    assert said is not None
    assert "load and save" in said


# --- damage -------------------------------------------------------------------------------------


def refused(path: Path, content: bytes) -> str | None:
    """What is said of a file of this content, None if it is read; nothing else may come."""
    path.write_bytes(content)
    try:
        ensemble = read_file(path)
    except ValueError as problem:
        said = str(problem)
        assert said.endswith(".")
        assert "\n" not in said
        assert len(said) < 600
        return said
    found = ensemble.probabilities(np.zeros((2, len(ensemble.columns))))
    assert found.shape == (2, len(ensemble.classes))
    return None


def test_a_file_that_ends_early_is_refused(written: tuple[Any, Path]) -> None:
    content = written[1].read_bytes()
    last = content.find(b"end of parameters") if content.startswith(b"tree") else len(content) - 1
    for end in np.random.default_rng(0).integers(0, last, 40):
        assert refused(written[1], content[:end]) is not None


def test_bytes_that_are_others(written: tuple[Any, Path]) -> None:
    draw = np.random.default_rng(1)
    content = np.frombuffer(written[1].read_bytes(), np.uint8)
    digits = np.flatnonzero((content >= ord("0")) & (content <= ord("9")))
    outcomes = set()
    for turn in range(120):
        own, size = content.copy(), int(draw.integers(1, 4))
        if turn % 2:
            own[draw.integers(0, len(own), size)] = draw.integers(0, 256, size)
        else:  # text mostly stays well formed
            own[draw.choice(digits, size)] = draw.choice(list(b"-09.e"), size)
        outcomes.add(refused(written[1], own.tobytes()) is None)
    assert False in outcomes


HOSTILE: list[Any] = [
    *(-1, 0, 10**6, 10**9, 10**18, 2**63, 2**64 - 1, 10**40, 1e308, np.inf, np.nan, None, True),
    *("", "x", "10000000000", "-3", "NaN", "1e400", "\n\x1b[2J", "9" * 5000),
    *([], [[1]], [1, [2]], {}, {"a": 1}, [0] * 5),
]


def _spots(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a document but its long list of parameters."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*way, key)
            if key != "params":
                yield from _spots(value[key], (*way, key))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind[1] == "json"])
def test_values_that_are_hostile(name: str, tmp_path: Path) -> None:
    write, _, options = KINDS[name]
    path = tmp_path / "model.json"
    write(path, people(), **options)
    draw = np.random.default_rng(2)
    document = json.loads(path.read_bytes())
    spots = list(_spots(document))
    for at in draw.integers(0, len(spots), 200):
        changed = copy.deepcopy(document)
        inner = changed
        for key in spots[at][:-1]:
            inner = inner[key]
        inner[spots[at][-1]] = HOSTILE[draw.integers(0, len(HOSTILE))]
        refused(path, json.dumps(changed).encode())


def test_words_of_text_that_are_hostile(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    _lgbm(path, people())
    draw = np.random.default_rng(3)
    lines = path.read_text().split("\n")
    end = lines.index("end of trees")
    for _ in range(200):
        at = int(draw.integers(1, end))
        name, _, told = lines[at].partition("=")
        entries = told.split(" ")
        entries[draw.integers(0, len(entries))] = str(HOSTILE[draw.integers(0, len(HOSTILE))])
        changed = [*lines[:at], f"{name}={' '.join(entries)}", *lines[at + 1 :]]
        refused(path, "\n".join(changed).encode())


def _set(document: Any, *way: Any, to: Any) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = to
    return changed


TREE = ("learner", "gradient_booster", "model", "trees", 0)
ABOUT = ("learner", "learner_model_param")
DAMAGED_XGB: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a cycle": ((*TREE, "left_children", 1), 0, "leads nowhere, or back"),
    "two ways to a node": ((*TREE, "right_children", 0), 1, "two ways|nowhere"),
    "a child that is not there": ((*TREE, "right_children", 0), 10**6, "leads nowhere"),
    "a child below 0": ((*TREE, "right_children", 0), -7, "leads nowhere"),
    "a column that is not there": ((*TREE, "split_indices", 0), 99, "not there"),
    "a column below 0": ((*TREE, "split_indices", 0), -2, "not there"),
    "a threshold that is none": ((*TREE, "split_conditions", 0), np.nan, "no number"),
    "a leaf without end": ((*TREE, "split_conditions", -1), np.inf, "no finite number"),
    "a cover below 0": ((*TREE, "sum_hessian", 0), -1.0, "cover"),
    "a list within a list": ((*TREE, "left_children", 0), [1], "left_children|inhomogeneous"),
    "a number too large": ((*TREE, "left_children", 0), 2**64 - 1, "left_children"),
    "no trees": ((*TREE[:-1],), [], "fewer trees|tree_info"),
    "many classes": ((*ABOUT, "num_class"), "1000000000", "fewer trees than classes"),
    "many columns": ((*ABOUT, "num_feature"), "1000000000", "names are told"),
    "a base that is none": ((*ABOUT, "base_score"), "[NaN]", "between 0 and 1"),
    "bases for more": ((*ABOUT, "base_score"), "[0.5,0.5,0.5]", "damaged"),
    "another objective": (("learner", "objective", "name"), "rank:pairwise", "rank:pairwise"),
    "two columns of one name": (("learner", "feature_names", 1), "age", "two columns of one name"),
    "a name less": (("learner", "feature_names"), ["a"], "names are told"),
}


@pytest.mark.parametrize("name", DAMAGED_XGB)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    way, value, expected = DAMAGED_XGB[name]
    path = tmp_path / "model.json"
    _xgb(path, people())
    document = json.loads(path.read_bytes())
    said = refused(path, json.dumps(_set(document, *way, to=value)).encode())
    with pytest.raises(ValueError, match=expected):
        raise ValueError(said)


def _text(path: Path, name: str, value: str) -> bytes:
    """The text of a model in which the first line of this name says something else."""
    _lgbm(path, people())
    lines = path.read_text().split("\n")
    at = next(place for place, line in enumerate(lines) if line.startswith(f"{name}="))
    return "\n".join([*lines[:at], f"{name}={value}", *lines[at + 1 :]]).encode()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_tree_per_iteration", "1000000000", "fewer trees than classes"),
        ("num_leaves", "1000000000", "entries where"),
        ("num_leaves", "-5", "entries where"),
        ("left_child", "0 2 3 -1 -2", "leads nowhere, or back"),
        ("left_child", "99 2 3 -1 -2", "leads nowhere"),
        ("split_feature", "-4 0 0 0 0", "not there"),
        ("threshold", "nan nan nan nan nan", "no number|words that are not"),
        ("leaf_value", "inf 1 1 1 1 1", "no finite number"),
        ("max_feature_idx", "1000000000", "as many as columns"),
        ("objective", "lambdarank", "lambdarank"),
    ],
)
def test_damaged_text_is_named(name: str, value: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    said = refused(path, _text(path, name, value))
    with pytest.raises(ValueError, match=expected):
        raise ValueError(said)


# --- files that are none ------------------------------------------------------------------------


def _many(letter: bytes) -> bytes:
    """A list of UBJSON that claims to have more entries than any memory holds."""
    return b"{L" + (7).to_bytes(8, "big") + b"learner[" + letter + (2**62).to_bytes(8, "big")


FOREIGN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no model of trees"),
    "text": (b"hello\n", "no model of trees"),
    "a pickle": (pickle.dumps({"learner": 1}), "a pickle, which may run anything"),
    "an old pickle": (pickle.dumps({"learner": 1}, protocol=0), "no model of trees"),
    "catboost's own": (b"CBM1\0\0\0\0", "format='json'"),
    "xgboost's old": (b"binf\0\0\0\0", "old binary format"),
    "another document": (b'{"a": 1}', "no model of trees"),
    "a list": (b"[1, 2]", "no model of trees"),
    "only the first line": (b"tree\n", "does not end"),
    "no text": (b"tree\n\xff\xfe", "damaged"),
    "an empty learner": (b'{"learner": {}}', "damaged"),
    "a learner that is none": (b'{"learner": 7}', "damaged"),
    "lists within lists": (b'{"learner": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    "binary lists within lists": (b"{U\7learner" + b"[" * 100_000, "nested too deeply"),
    "binary tables within tables": (b"{U\1a" * 50_000, "nested too deeply"),
    "a long list of numbers": (_many(b"$L#L"), "damaged"),
    "a long list of anything": (_many(b"#L"), "damaged"),
    "a text of length below 0": (b"{i\xff", "damaged"),
    "a number without end": (b'{"learner": ' + b"9" * 10_000 + b"}", "damaged"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_are_none(name: str, tmp_path: Path) -> None:
    content, expected = FOREIGN[name]
    tracemalloc.start()
    said = refused(tmp_path / "model", content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said is not None
    assert expected in said
    assert most < 2**24


def test_archives_folders_and_files_that_are_not_there(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("model.json", "{}")
    for path, expected in {
        tmp_path / "model.zip": "an archive",
        tmp_path: "cannot read",
        tmp_path / "none.json": "cannot read",
    }.items():
        with pytest.raises(ValueError, match=expected):
            read_file(path)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    _xgb(path, people())
    monkeypatch.setenv("R2ET_MAX_BYTES", "1000")
    with pytest.raises(ValueError, match="R2ET_MAX_BYTES"):
        read_file(path)


def test_many_columns_without_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    _xgb(path, load_iris(return_X_y=True))
    document = json.loads(path.read_bytes())
    said = refused(path, json.dumps(_set(document, *ABOUT, "num_feature", to="10000000")).encode())
    assert said is not None
    assert "bytes of memory" in said
