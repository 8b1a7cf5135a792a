"""A saved classifier says the same to the last bit, and a file that was changed is refused."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_people import WIDTH, people

from r2et import StableClassifier
from r2et.bands import boosting, classifier, steps
from r2et.bands.saved import read_saved, restored_classes
from refusals import refusal

pytestmark = pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
WORDS = {"clerk": 'a "clerk"', "cook": "Köchin ☕", "smith": "o'smith\\"}


def strange(rows: int = 700, classes: int = 2) -> tuple[pd.DataFrame, Any]:
    """People with missing and special values, and words that files must quote."""
    X, y = people(rows, classes=classes)
    X = X.astype({"age": float, "hours": float}).assign(job=X.job.map(WORDS))
    X.loc[::9, "age"] = np.nan
    X.loc[1::7, "hours"] = -1.0
    X.loc[2::11, "home"] = None
    return X, y


def fitted(classes: Any, **settings: Any) -> StableClassifier:
    X, y = strange(classes=len(classes))
    named = np.array(classes)[y]
    return StableClassifier(WIDTH, special={"hours": [-1.0]}, **settings).fit(X, named)


@pytest.fixture(scope="module")
def together() -> StableClassifier:
    """One in which what cannot move speaks together, whatever its AUC on so few rows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(boosting, "FEW_ROWS", 1)
        patched.setattr(classifier, "held_parts", lambda *_: [])
        patched.setattr(classifier, "lines_of", steps.separate_trees)
        found = fitted(["no", "yes"], units={"age": "years"}, codes={"job": "w", "hours": "w"})
    assert found.score_.rest.leaves is not None
    return found


@pytest.fixture(scope="module")
def saved(together: StableClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return together.save(tmp_path_factory.mktemp("saved") / "model.json")


def agree(one: StableClassifier, other: StableClassifier) -> None:
    """Everything that is said is the same."""
    X, _ = strange(120)
    np.testing.assert_array_equal(one.classes_, other.classes_)
    assert one.classes_.dtype == other.classes_.dtype
    for ask in ("decision_function", "predict_proba", "predict", "contributions"):
        np.testing.assert_array_equal(getattr(one, ask)(X), getattr(other, ask)(X))
    assert one.reasons(X) == other.reasons(X)
    assert one.certify(X[:40]) == other.certify(X[:40])
    assert one.stability(X[:40]) == other.stability(X[:40])
    pd.testing.assert_frame_equal(one.scorecard_, other.scorecard_)
    pd.testing.assert_frame_equal(one.reference_, other.reference_)
    assert one.search_ == other.search_
    assert one.k_ == other.k_
    assert one.binner_.bands_ == other.binner_.bands_
    assert one.binner_.edges_ == other.binner_.edges_
    pd.testing.assert_frame_equal(one.binner_.drift(X), other.binner_.drift(X))
    assert one.n_features_in_ == other.n_features_in_
    assert list(one.feature_names_in_) == list(other.feature_names_in_)


def test_what_was_saved_says_the_same(together: StableClassifier, saved: Path) -> None:
    found = StableClassifier.load(saved)
    agree(together, found)
    agree(found, StableClassifier.load(found.save(saved.with_name("again.json"))))
    assert saved.read_text() == saved.with_name("again.json").read_text()
    assert found.plot_bands("age").get_xlabel() == "age"
    ours, theirs = together.get_params(), found.get_params()
    for name in ours.keys() - {"special"}:
        assert ours[name] == theirs[name]
    assert theirs["special"] == {"hours": (-1.0,)}


@pytest.mark.parametrize(
    "classes",
    [[0, 1], [False, True], ["é", "ü"], np.array(["n", "y"], dtype=object), [0.0, 2.0],
     ["high", "low", "mid"], np.array([3, 7, 9], dtype=np.int16)],
)  # fmt: skip
def test_classes_keep_their_type(classes: Any, tmp_path: Path) -> None:
    X, y = strange(180, classes=len(classes))
    model = StableClassifier(WIDTH, interactions=False).fit(X, np.asarray(classes)[y])
    agree(model, StableClassifier.load(model.save(tmp_path / "model.json")))


@pytest.mark.slow
def test_trees_of_everything_are_saved(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(classifier, "GAIN", -1.0)
        model = fitted(["no", "yes"])
    assert model.score_.trees is not None
    assert model.search_
    agree(model, StableClassifier.load(model.save(tmp_path / "model.json")))


def test_settings_of_other_types_are_saved(tmp_path: Path) -> None:
    X, y = people(180)
    model = StableClassifier(
        {"age": np.array([1, 2]), "hours": np.float64(2)},
        k=np.int64(2),
        edges={"age": [33.5]},
        monotone={"hours": 1},
        reference=X[:30],
    ).fit(X, y)
    found = StableClassifier.load(model.save(tmp_path / "model.json"))
    assert found.width == {"age": (1, 2), "hours": 2.0}
    assert found.k == 2
    assert found.edges == {"age": (33.5,)}
    pd.testing.assert_frame_equal(found.reference, model.reference_)
    again = StableClassifier.load(found.fit(X, y).save(tmp_path / "again.json"))
    np.testing.assert_array_equal(again.contributions(X), model.contributions(X))
    array = StableClassifier().fit(X[["age", "hours"]].to_numpy(), y)
    assert not hasattr(StableClassifier.load(array.save(tmp_path / "x.json")), "feature_names_in_")


# --- refusals -----------------------------------------------------------------------------------


def test_a_model_that_cannot_be_saved_is_refused(
    together: StableClassifier, tmp_path: Path
) -> None:
    unread = copy.deepcopy(together)
    object.__setattr__(unread.score_.rest, "leaves", None)
    assert "interactions=False" in refusal(lambda: unread.save(tmp_path / "x"))
    odd = copy.deepcopy(together).set_params(random_state=object())
    assert "random_state cannot be saved" in refusal(lambda: odd.save(tmp_path / "x"))
    torn = copy.deepcopy(together)
    torn.classes_ = np.array(["a", "\ud800"], dtype=object)
    assert "cannot be saved" in refusal(lambda: torn.save(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(saved: Path, tmp_path: Path) -> None:
    def loaded(content: bytes) -> Callable[[], object]:
        path = tmp_path / "other"
        path.write_bytes(content)
        return lambda: StableClassifier.load(path)

    whole = saved.read_bytes()
    for content in (b"", whole[:-1], whole[: len(whole) // 2], b"\x80\x04K\x01.", b"\xff" * 9):
        assert "is not valid JSON" in refusal(loaded(content))
    for content in (b"[]", b"{}", b'{"format": "r2et-stable-classifier/99"}', b"7"):
        assert "holds no StableClassifier" in refusal(loaded(content))
    assert "too deeply" in refusal(loaded(b"[" * 99 + b"]" * 99))
    assert "cannot read" in refusal(lambda: StableClassifier.load(tmp_path / "none"))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    found = copy.deepcopy(content)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return found


NAN = math.nan
DAMAGE: list[tuple[tuple[Any, ...], Any]] = [
    (("parameters",), KeyError),
    (("parameters", "k"), 0),
    (("parameters", "k"), "3"),
    (("parameters", "k"), True),
    (("parameters", "side"), "up"),
    (("parameters", "threshold"), 1.5),
    (("parameters", "weight"), -1.0),
    (("parameters", "width"), {"age": NAN}),
    (("parameters", "surplus"), 1),
    (("surplus",), 1),
    (("named",), 1),
    (("classes", "kind"), "|V8"),
    (("classes", "kind"), "<M8[D]"),
    (("classes", "kind"), "<U999999999"),
    (("classes", "kind"), "<U1"),
    (("classes", "kind"), "<i8"),
    (("classes", "labels"), ["yes", "no"]),
    (("classes", "labels"), ["no"]),
    (("classes", "labels"), ["a", "b", "c"]),
    (("bands", 0, "name"), "hours"),
    (("bands", 0, "edges"), [30.5, 30.5]),
    (("bands", 0, "edges"), [1e999]),
    (("bands", 0, "edges"), []),
    (("bands", 0, "missing"), False),
    (("bands", 1, "special"), [7.0, -1.0]),
    (("bands", 2, "labels"), ["x", "x", "y"]),
    (("bands", 2, "labels"), []),
    (("bands",), []),
    (("shares", 0, 0), -0.5),
    (("shares", 0), []),
    (("shares",), []),
    (("widths", "age"), []),
    (("widths", "age"), [-1.0]),
    (("widths", "age"), KeyError),
    (("widths", "job"), [1.0]),
    (("curves", "job"), {"values": [], "people": [], "score": []}),
    (("curves", "age", "values"), [1.0]),
    (("curves", "age", "score", 0), []),
    (("curves", "age", "people", 0), -1.0),
    (("score", "constant"), NAN),
    (("score", "share"), -0.1),
    (("score", "share"), 1.1),
    (("score", "constant"), "0"),
    (("score", "points", "0"), [1.0]),
    (("score", "points", "17"), [1.0]),
    (("score", "points", "-1"), [0.0] * 4),
    (("score", "points", "x"), [1.0]),
    (("score", "rest", "among"), [99]),
    (("score", "rest", "among"), [2]),
    (("score", "rest", "leaves", 0, "value"), None),
    (("score", "rest", "leaves", 0, "asked"), {}),
    (("score", "rest", "leaves", 0, "asked"), {"2": [9]}),
    (("score", "rest", "leaves", 0, "asked"), {"2": [-1]}),
    (("score", "rest", "leaves", 0, "asked"), {"2": []}),
    (("score", "rest", "leaves", 0, "asked"), {"0": [0]}),
    (("score",), {"points": [[0.0]] * 2, "constant": [0.0] * 2}),
    (("score",), {"points": [[0.0]] * 3, "constant": [0.0] * 3}),
    (("reference",), []),
    (("reference", 0), []),
    (("reference", 0, 0), "word"),
    (("reference", 0, 1), 1e999),
    (("reference", 2, 0), 7.0),
    (("reference", 2, 0), "a word of no band"),
    (("reference", 4, 0), None),
    (("search",), [{"teacher": "trees"}]),
    (("format",), KeyError),
]


def test_a_leaf_asks_few_attributes(saved: Path) -> None:
    """The answers to more are not the bits of one number."""
    content = json.loads(saved.read_text())
    bands = content["bands"][2]
    content["bands"] += [{**bands, "name": f"more {place}"} for place in range(63)]
    content["shares"] += [content["shares"][2]] * 63
    content["reference"] += [content["reference"][2]] * 63
    content["score"]["rest"]["among"] += list(range(5, 68))
    read_saved(content)
    content["score"]["rest"]["leaves"][0]["asked"] = {str(place): [0] for place in range(5, 68)}
    assert "too many attributes" in refusal(lambda: read_saved(content))


@pytest.mark.parametrize(("path", "value"), DAMAGE, ids=lambda each: str(each)[:60])
def test_a_changed_part_is_refused(
    path: tuple[Any, ...], value: Any, saved: Path, tmp_path: Path
) -> None:
    content = changed(json.loads(saved.read_text()), path, value)
    other = tmp_path / "changed.json"
    other.write_text(json.dumps(content))
    message = refusal(lambda: StableClassifier.load(other))
    expected = "holds no" if path == ("format",) else "with parts missing or changed"
    assert expected in message


@pytest.mark.parametrize(
    "wrong", [{"auc": 1.5}, {"weight": -1.0}, {"broken": [2.0]}, {"overlap": -0.1}]
)
def test_attempts_are_shares(wrong: dict[str, Any], saved: Path) -> None:
    attempt = {"teacher": "trees", "weight": 0.1, "interactions": True, "auc": 0.8,
               "trees_auc": 0.8, "lines_auc": 0.7, "broken": [0.1], "overlap": None,
               "kept": True}  # fmt: skip
    content = json.loads(saved.read_text())
    assert read_saved({**content, "search": [attempt]}).search[0].auc == 0.8
    refused = {**content, "search": [{**attempt, **wrong}]}
    assert "an attempt came to no share" in refusal(lambda: read_saved(refused))


def test_classes_that_a_file_states_in_no_order_are_refused(saved: Path) -> None:
    classes = read_saved(json.loads(saved.read_text())).classes
    assert restored_classes(classes).tolist() == ["no", "yes"]
    double = type(classes)(kind=classes.kind, labels=("no", "no"))
    assert "do not rise" in refusal(lambda: restored_classes(double))
