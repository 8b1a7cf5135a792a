"""Trees of CatBoost: of its models, and of its files of JSON.

Numbers are rounded to single precision and go to the right by `>`. Symmetric trees ask the same of
all nodes of a level; ways that no number can go are left out.
"""

import reprlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from r2et.core.arrays import Floats
from r2et.core.limits import content_of, json_of
from r2et.trees.form import Ensemble, Tree, as_tree, single_below
from r2et.trees.readers.parts import (
    LARGEST_SINGLE,
    Admitted,
    RefusedError,
    columns_of,
    ensemble_of,
    objective_refused,
    real,
    shown_array,
    whole,
)

LOGISTIC, SOFTMAX = ("Logloss", "CrossEntropy"), ("MultiClass",)
MOST_SPLITS = 32  # of a symmetric tree: more leaves than any file holds
MISSING_RIGHT = {"AsIs": False, "AsFalse": False, "AsTrue": True}


class Node(NamedTuple):
    """A node of a tree, or a leaf where `feature` is -1, with a value for each score.

    `cover` is NaN where the model does not tell it.
    """

    feature: int
    border: float
    left: int
    right: int
    value: Floats
    cover: float


@dataclass(frozen=True, kw_only=True)
class Splits:
    """A symmetric tree: what each level asks, the values of leaves, and their weights."""

    features: list[int]
    borders: list[float]
    values: Floats  # (leaves, outputs)
    weights: Floats  # (leaves,)


def document_ensemble(document: Any, classes: Sequence[Any] | None = None) -> Ensemble:
    """The trees of a model as CatBoost writes it, and the classes where they are known better."""
    told = document["model_info"].get("params", {"loss_function": {"type": "none"}})
    objective = told["loss_function"]["type"]  # which sums of models do not tell
    if objective not in (*LOGISTIC, *SOFTMAX):
        raise objective_refused((*LOGISTIC, *SOFTMAX), objective)
    if classes is None:
        classes = document["model_info"].get("class_params", {}).get("class_names", [0, 1])
    outputs = len(classes) if objective in SOFTMAX else 1
    features = _features(document)
    scale, bias = document["scale_and_bias"]
    several = [_nodes(tree, outputs, len(features)) for tree in _told_trees(document)]
    missing_left = np.array([not MISSING_RIGHT[each["nan_value_treatment"]] for each in features])
    return ensemble_of(
        columns=columns_of([each["feature_id"] or f"x{n}" for n, each in enumerate(features)], {}),
        trees=[
            _tree(nodes, float(scale), missing_left, output)
            for nodes in several
            for output in range(outputs)
        ],
        constant=np.broadcast_to(real(bias, "the bias"), outputs),
        scale="log-odds",
        classes=classes,
        source="CatBoost",
    )


def _features(document: Any) -> list[Any]:
    """What is told of each column, in the order of columns."""
    told = document["features_info"]
    for kind in ("categorical", "text", "embedding"):
        if told.get(f"{kind}_features"):
            raise RefusedError(
                f"CatBoost's trees over columns of numbers are read, this model has {kind} "
                "columns, of which it keeps only numbers made from them: encode them, and refit."
            )
    found = sorted(told.get("float_features", []), key=lambda each: int(each["feature_index"]))
    places = [int(each["flat_feature_index"]) for each in found]
    if places != list(range(len(found))):
        raise ValueError("the columns of the model are not told one after another")
    return found


def _told_trees(document: Any) -> list[Any]:
    return list(document["oblivious_trees"] if "oblivious_trees" in document else document["trees"])


# --- trees --------------------------------------------------------------------------------------


def _nodes(told: Any, outputs: int, columns: int) -> list[Node]:
    nodes: list[Node] = []
    if "leaf_values" not in told:
        _add_nested(nodes, told, outputs, columns)
        return nodes
    asked = [_split(each, columns) for each in told["splits"] or []]
    leaves = 2 ** min(len(asked), MOST_SPLITS)
    splits = Splits(
        features=[feature for feature, _ in asked],
        borders=[border for _, border in asked],
        values=real(told["leaf_values"], "leaf_values", leaves * outputs).reshape(-1, outputs),
        weights=real(told.get("leaf_weights") or np.full(leaves, np.nan), "leaf_weights", leaves),
    )
    _add_symmetric(nodes, splits, len(asked) - 1, 0, {})
    return nodes


def _split(told: Any, columns: int) -> tuple[int, float]:
    """The column that a node asks about, and its border."""
    if told["split_type"] != "FloatFeature":
        raise RefusedError(
            f"CatBoost's trees over columns of numbers are read, this one asks "
            f"{reprlib.repr(told['split_type'])}: encode columns of words, and refit."
        )
    (feature,) = whole([told["float_feature_index"]], "float_feature_index").tolist()
    (border,) = real([told["border"]], "border").tolist()
    if not 0 <= feature < columns or np.isnan(border):
        raise ValueError("a tree asks about a column or a border that is not there")
    return feature, border


def _add_symmetric(
    nodes: list[Node], tree: Splits, level: int, leaf: int, known: dict[int, tuple[float, float]]
) -> int:
    """The number of a new node, below which the levels up to `level` are still to be asked.

    `leaf` holds the bits that are answered; `known` says of columns that they are above the first
    of two borders, but not above the second.
    """
    if level < 0:
        return _add_leaf(nodes, tree.values[leaf], float(tree.weights[leaf]))
    feature, border = tree.features[level], tree.borders[level]
    low, high = known.get(feature, (-np.inf, np.inf))
    above = leaf | 1 << level
    if border <= low:
        return _add_symmetric(nodes, tree, level - 1, above, known)
    if border >= high:
        return _add_symmetric(nodes, tree, level - 1, leaf, known)
    at = _add_leaf(nodes, np.zeros(tree.values.shape[1]), 0.0)
    left = _add_symmetric(nodes, tree, level - 1, leaf, {**known, feature: (low, border)})
    right = _add_symmetric(nodes, tree, level - 1, above, {**known, feature: (border, high)})
    return _join(nodes, at, feature, border, left, right)


def _add_nested(nodes: list[Node], told: Any, outputs: int, columns: int) -> int:
    """The number of a new node of a tree that is told as nodes within nodes."""
    if "split" not in told:
        value = real(np.atleast_1d(told["value"]), "value", outputs)
        return _add_leaf(nodes, value, float(told.get("weight", np.nan)))
    feature, border = _split(told["split"], columns)
    at = _add_leaf(nodes, np.zeros(outputs), 0.0)
    left = _add_nested(nodes, told["left"], outputs, columns)
    right = _add_nested(nodes, told["right"], outputs, columns)
    return _join(nodes, at, feature, border, left, right)


def _add_leaf(nodes: list[Node], value: Floats, cover: float) -> int:
    nodes.append(Node(feature=-1, border=0.0, left=-1, right=-1, value=value, cover=cover))
    return len(nodes) - 1


def _join(nodes: list[Node], at: int, feature: int, border: float, left: int, right: int) -> int:
    cover = nodes[left].cover + nodes[right].cover
    nodes[at] = Node(feature, border, left, right, nodes[at].value, cover)
    return at


def _tree(nodes: list[Node], scale: float, missing_left: Any, output: int) -> Tree:
    feature = np.array([node.feature for node in nodes])
    cover = np.array([node.cover for node in nodes])
    return as_tree(
        feature=feature.tolist(),
        threshold=single_below([node.border for node in nodes], equal=True),
        left=[node.left for node in nodes],
        right=[node.right for node in nodes],
        value=[scale * node.value[output] for node in nodes],
        missing_left=np.append(missing_left, False)[feature],
        cover=None if np.isnan(cover).all() else cover,
        output=output,
    )


# --- models -------------------------------------------------------------------------------------


def model_ensemble(model: Any) -> Ensemble:
    """The trees of a CatBoostClassifier, or of a CatBoost that tells classes apart."""
    if not model.is_fitted():
        raise RefusedError(f"this {type(model).__name__} has no trees yet: fit it first.")
    if model.get_cat_feature_indices() or model.get_text_feature_indices():
        raise RefusedError(
            "CatBoost's trees over columns of numbers are read, this model has columns of words: "
            "encode them, and refit."
        )
    _check_bar(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document = json_of(content_of(path), "the model")
    return document_ensemble(document, np.asarray(model.classes_).tolist())


def _check_bar(model: Any) -> None:
    """Refuse a model that decides elsewhere than where its two classes are as probable."""
    told = len(model.classes_) == 2 and hasattr(model, "get_probability_threshold")
    bar = float(model.get_probability_threshold()) if told else 0.5
    if bar != 0.5:
        raise RefusedError(
            f"models that decide at a probability of 0.5 are read, this one does at {bar:g}: call "
            "set_probability_threshold(0.5), and apply the bar to what it tells."
        )


def chances(model: Any, ensemble: Ensemble, numbers: Floats) -> Floats:
    """The probabilities that a model tells itself: (N, C)."""
    rows = shown_array(ensemble, numbers)
    found: Floats = model.predict(rows, prediction_type="Probability")
    return found


def admitted(model: Any) -> Admitted:
    """What CatBoost takes: numbers of single precision."""
    return Admitted(largest=LARGEST_SINGLE)
