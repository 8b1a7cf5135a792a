"""Trees of XGBoost: of its models, and of its files of JSON or of UBJSON.

Numbers are rounded to single precision and go to the left by `<`; of words, those that a node
lists go to the right. Files are taken apart here: XGBoost's own loader ends the whole process on
lists that lie too deep within lists.
"""

import importlib
import json
import reprlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from r2et.core.arrays import Codes, Floats
from r2et.core.limits import MOST_LEVELS, check_bytes
from r2et.trees.form import UNSEEN, Ensemble, Tree, as_tree, single_below
from r2et.trees.readers.parts import (
    LARGEST_SINGLE,
    Admitted,
    RefusedError,
    chances_of,
    columns_of,
    ensemble_of,
    objective_refused,
    real,
    shown_array,
    shown_frame,
    whole,
)

LOGISTIC = ("binary:logistic", "reg:logistic", "binary:logitraw")
SOFTMAX = ("multi:softprob", "multi:softmax")
WORD_BYTES, COLUMN_BYTES = 128, 512  # of memory that a word of a set takes, and a column
NUMBERS: dict[bytes, np.dtype[Any]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
"""The numbers of UBJSON, by the letters that announce them."""
CONSTANTS = {b"Z": None, b"T": True, b"F": False}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The words of a column, and the codes that trees have for them."""

    words: list[Any]
    codes: list[int]


def document_ensemble(document: Any, *, best: bool | None = None) -> Ensemble:
    """The trees of a model as XGBoost writes it.

    `best` says whether those after the best round of early stopping are left out, as estimators of
    XGBoost do and boosters do not; if not said, they are where an estimator wrote the document.
    """
    learner = document["learner"]
    about, booster = learner["learner_model_param"], learner["gradient_booster"]
    model, weights = _boosted(booster)
    groups = max(1, int(about["num_class"]))
    if int(about.get("num_target", 1)) > 1:
        raise RefusedError(_one_score_a_tree("predicts several things"))
    trees = model["trees"]
    if groups > max(1, len(trees)):
        raise ValueError("it tells fewer trees than classes")
    kept = _kept_trees(learner, model, groups, best)
    outputs = whole(model["tree_info"], "tree_info", len(trees))
    trees, weights, outputs = trees[:kept], weights[:kept], outputs[:kept]
    sets = [_listed_words(tree) for tree in trees]
    words = _vocabularies(learner, model, trees, sets)
    constant = _constant(document, groups)
    return ensemble_of(
        columns=columns_of(_names(learner), {at: each.words for at, each in words.items()}),
        trees=[
            _tree(tree, listed, words, float(weight), int(output))
            for tree, listed, weight, output in zip(trees, sets, weights, outputs, strict=True)
        ],
        constant=constant,
        scale="log-odds",
        classes=range(max(2, groups)),
        source="XGBoost",
    )


def _boosted(booster: Any) -> tuple[Any, Floats]:
    """The boosted trees, and the weight of each."""
    kind = booster["name"]
    if kind == "gblinear":
        raise RefusedError("boosted trees are read, this is a linear model: it has no trees.")
    if kind not in ("gbtree", "dart"):
        raise RefusedError(
            f"boosters gbtree and dart are read, got {reprlib.repr(kind)}: refit with gbtree."
        )
    model = (booster["gbtree"] if kind == "dart" else booster)["model"]
    count = len(model["trees"])
    weights = booster["weight_drop"] if kind == "dart" else np.ones(count)
    return model, _single(weights, "weight_drop", count)


def _constant(document: Any, groups: int) -> Floats:
    """What is added to the sum of leaves: (groups,)."""
    objective = document["learner"]["objective"]["name"]
    stated = document["learner"]["learner_model_param"]["base_score"]
    given = json.loads(stated) if isinstance(stated, str) else stated
    base = np.broadcast_to(real(np.atleast_1d(given), "base_score"), groups).astype(np.float32)
    if objective == "binary:logitraw" and int(document["version"][0]) < 3:
        # Once its base was a probability, now it is a score: files do not say which is meant.
        raise RefusedError(
            "binary:logitraw of XGBoost before 3.0 is not read: load and save the model with a "
            "current version."
        )
    if objective not in (*LOGISTIC, *SOFTMAX) or (groups > 1) != (objective in SOFTMAX):
        raise objective_refused((*LOGISTIC, *SOFTMAX), objective)
    if objective in SOFTMAX or objective == "binary:logitraw":
        return base.astype(np.float64)
    if not (0 < base[0] < 1):
        raise RefusedError(f"base_score must lie between 0 and 1, got {base[0]}: fit it anew.")
    one = np.float32(1)
    return np.array([-np.log(one / base[0] - one)], dtype=np.float64)


def _kept_trees(learner: Any, model: Any, groups: int, best: bool | None) -> int:
    """How many trees predict: those up to the best round where only they do."""
    attributes = learner.get("attributes", {})
    count = len(model["trees"])
    if best is None:
        best = "scikit_learn" in attributes
    if not best or "best_iteration" not in attributes:
        return count
    parallel = int(model["gbtree_model_param"].get("num_parallel_tree", 1))
    last = int(attributes["best_iteration"])
    if parallel < 1 or last < 0:
        raise ValueError("the best round is none")
    return min(count, groups * parallel * (last + 1))


def _one_score_a_tree(but: str) -> str:
    return f"trees whose leaves hold one number are read, this model {but}: refit it otherwise."


def _names(learner: Any) -> list[Any]:
    count = int(learner["learner_model_param"]["num_feature"])
    names = learner.get("feature_names", [])
    if names and len(names) != count:
        raise ValueError(f"{len(names)} names are told of {count} columns")
    if not names:
        check_bytes(COLUMN_BYTES * count, "the columns of the model")
    return list(names) or [f"x{number}" for number in range(count)]


# --- words --------------------------------------------------------------------------------------


def _listed_words(tree: Any) -> dict[int, Codes]:
    """The codes of words that nodes send to the right, by the number of the node."""
    nodes = whole(tree.get("categories_nodes", []), "categories_nodes")
    if not len(nodes):
        return {}
    first = whole(tree["categories_segments"], "categories_segments", len(nodes))
    sizes = whole(tree["categories_sizes"], "categories_sizes", len(nodes))
    codes = whole(tree["categories"], "categories")
    if (first < 0).any() or (sizes < 0).any() or (first + sizes > len(codes)).any():
        raise ValueError("a node lists words that are not there")
    if codes.min(initial=0) < 0:
        raise ValueError("the code of a word is below 0")
    check_bytes(WORD_BYTES * int(sizes.sum()), "the words of a tree")
    return {
        int(node): codes[start : start + size]
        for node, start, size in zip(nodes, first, sizes, strict=True)
    }


def _vocabularies(
    learner: Any, model: Any, trees: Any, sets: list[dict[int, Codes]]
) -> dict[int, Vocabulary]:
    """The words of columns that hold words: as the model keeps them, else the codes it lists."""
    kinds = learner.get("feature_types", [])
    codes: dict[int, set[int]] = {at: set() for at, kind in enumerate(kinds) if kind == "c"}
    nodes = 0
    for tree, listed in zip(trees, sets, strict=True):
        for node, own in listed.items():
            codes.setdefault(int(tree["split_indices"][node]), set()).update(own.tolist())
            nodes += 1
    found = {at: Vocabulary(words=sorted(own), codes=sorted(own)) for at, own in codes.items()}
    for at, kept in enumerate(model.get("cats", {}).get("enc", [])):
        if at in found and len(kept["values"]):
            words = _decoded(kept)
            found[at] = Vocabulary(words=words, codes=list(range(len(words))))
    most = max((len(each.words) for each in found.values()), default=0)
    check_bytes(WORD_BYTES * nodes * most, "the words of the model")
    return found


def _decoded(kept: Any) -> list[Any]:
    """The words of a column as a model keeps them."""
    if "offsets" not in kept:
        return list(whole(kept["values"], "the words of a column").tolist())
    ends = whole(kept["offsets"], "the words of a column")
    letters = whole(kept["values"], "the words of a column")
    if (letters < 0).any() or (letters > 127).any():
        # The library counts letters where it keeps bytes: such words are cut at wrong places.
        raise RefusedError(
            "words of ASCII letters are read, XGBoost keeps others cut at wrong places: rename "
            "them, and refit."
        )
    text = bytes(letters.astype(np.uint8)).decode("ascii")
    if (np.diff(ends) < 0).any() or ends.min(initial=0) < 0 or ends.max(initial=0) > len(text):
        raise ValueError("the words of a column are cut where there are none")
    return [text[start:end] for start, end in pairwise(ends.tolist())]


# --- trees --------------------------------------------------------------------------------------


def _tree(
    tree: Any, listed: dict[int, Codes], words: dict[int, Vocabulary], weight: float, output: int
) -> Tree:
    if int(tree["tree_param"].get("size_leaf_vector", 0)) > 1:
        raise RefusedError(_one_score_a_tree("has several a leaf (multi_output_tree)"))
    left = whole(tree["left_children"], "left_children")
    size, leaf = len(left), left < 0
    feature = np.where(leaf, -1, whole(tree["split_indices"], "split_indices", size))
    if (feature[~leaf] < 0).any():
        raise ValueError("a tree asks about a column that is not there")
    kinds = whole(tree.get("split_type", np.zeros(size, dtype=int)), "split_type", size)
    if set(np.flatnonzero(~leaf & (kinds == 1)).tolist()) != listed.keys():
        raise ValueError("nodes that ask for words list none, or others do")
    # Leaves keep their value where others keep their threshold.
    stored = _single(tree["split_conditions"], "split_conditions", size)
    return as_tree(
        feature=feature.tolist(),
        threshold=single_below(stored, equal=False),
        left=left.tolist(),
        right=whole(tree["right_children"], "right_children", size).tolist(),
        value=weight * stored,
        missing_left=whole(tree["default_left"], "default_left", size),
        words={node: _left(words[int(feature[node])], own) for node, own in listed.items()},
        cover=_single(tree["sum_hessian"], "sum_hessian", size),
        output=output,
    )


def _single(values: Any, what: str, size: int) -> Floats:
    """Numbers as the library holds them, which files of JSON tell in short: (n,)."""
    with np.errstate(over="ignore"):
        return real(values, what, size).astype(np.float32).astype(np.float64)


def _left(vocabulary: Vocabulary, listed: Codes) -> frozenset[float]:
    """The places of words that a node does not list; unknown ones are not listed."""
    right = set(listed.tolist())
    places = (float(at) for at, code in enumerate(vocabulary.codes) if code not in right)
    return frozenset([*places, UNSEEN])


# --- UBJSON -------------------------------------------------------------------------------------


class _Bytes:
    """The content of a file, taken piece by piece."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if not 0 <= size <= len(self.content) - self.at:
            raise ValueError("it ends before all is said")
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, letter: bytes) -> Any:
        """The next number, of the kind that a letter announces."""
        kind = NUMBERS[letter]
        return np.frombuffer(self.take(kind.itemsize), kind)[0].item()

    def text(self) -> str:
        """The next text, after its length."""
        return self.take(int(self.number(self.take(1)))).decode()


def ubj_of(content: bytes) -> Any:
    """What a file of UBJSON says; lists of numbers of one kind are arrays."""
    source = _Bytes(content)
    return _value(source, source.take(1), 0)


def _value(source: _Bytes, letter: bytes, level: int) -> Any:
    if level > MOST_LEVELS:
        raise ValueError(f"it is nested too deeply: {MOST_LEVELS} levels are read")
    if letter in CONSTANTS:
        return CONSTANTS[letter]
    if letter == b"S":
        return source.text()
    if letter == b"[":
        return _list(source, level + 1)
    if letter == b"{":
        return _table(source, level + 1)
    return source.number(letter)


def _list(source: _Bytes, level: int) -> Any:
    letter = source.take(1)
    if letter == b"$":
        kind = NUMBERS[source.take(1)]
        if source.take(1) != b"#":
            raise ValueError("a list has a kind, but no length")
        content = source.take(int(source.number(source.take(1))) * kind.itemsize)
        return np.frombuffer(content, kind).astype(kind.newbyteorder("="))
    if letter == b"#":
        count = int(source.number(source.take(1)))
        return [_value(source, source.take(1), level) for _ in range(count)]
    found = []
    while letter != b"]":
        found.append(_value(source, letter, level))
        letter = source.take(1)
    return found


def _table(source: _Bytes, level: int) -> dict[str, Any]:
    found = {}
    while (letter := source.take(1)) != b"}":
        name = source.take(int(source.number(letter))).decode()
        found[name] = _value(source, source.take(1), level)
    return found


# --- models -------------------------------------------------------------------------------------


def booster_ensemble(model: Any) -> Ensemble:
    """The trees of a Booster: all of them, as it predicts by all."""
    return document_ensemble(ubj_of(bytes(model.save_raw("ubj"))), best=False)


def classifier_ensemble(model: Any) -> Ensemble:
    """The trees of an XGBClassifier, up to the best round of early stopping."""
    if not model.__sklearn_is_fitted__():
        raise RefusedError(f"this {type(model).__name__} has no trees yet: fit it first.")
    if not (model.missing is None or np.isnan(model.missing)):
        raise RefusedError(
            f"models to which missing values are NaN are read, to this one they are "
            f"{model.missing!r}: refit it with NaN in their stead."
        )
    return document_ensemble(ubj_of(bytes(model.get_booster().save_raw("ubj"))), best=True)


def booster_chances(model: Any, ensemble: Ensemble, numbers: Floats) -> Floats:
    """The probabilities by the scores that a Booster tells: (N, C)."""
    library = importlib.import_module("xgboost")
    rows = library.DMatrix(
        _shown(model, ensemble, numbers),
        feature_names=model.feature_names,
        feature_types=None if _keeps_words(model) else model.feature_types,
        enable_categorical=True,
    )
    return chances_of(model.predict(rows, output_margin=True))


def classifier_chances(model: Any, ensemble: Ensemble, numbers: Floats) -> Floats:
    """The probabilities that an XGBClassifier tells itself: (N, C)."""
    rows = _shown(model.get_booster(), ensemble, numbers)
    if model.objective == "binary:logitraw":  # of which it tells scores as probabilities
        return chances_of(model.predict(rows, output_margin=True))
    found: Floats = np.asarray(model.predict_proba(rows), dtype=np.float64)
    return found


def _shown(booster: Any, ensemble: Ensemble, numbers: Floats) -> Any:
    if _keeps_words(booster):
        return shown_frame(ensemble, numbers)
    return shown_array(ensemble, numbers)


def _keeps_words(booster: Any) -> bool:
    """Whether a model knows words themselves, as from 3.1 on, not only codes for them."""
    return hasattr(booster, "get_categories") and not booster.get_categories().empty()


def admitted(model: Any) -> Admitted:
    """What XGBoost takes: of words that it keeps, none that it does not know."""
    return Admitted(unseen=False, largest=LARGEST_SINGLE)
