"""Trees of LightGBM: of its models, and of its files of text.

Numbers are compared in double precision by `<=`, and those within 1e-35 of zero are zero; words
that a node lists go to the left, all others and missing ones to the right.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from r2et.core.arrays import Codes, Floats, Mask
from r2et.core.limits import check_bytes, json_of
from r2et.trees.form import Ensemble, Tree, as_tree, below
from r2et.trees.readers.parts import (
    Admitted,
    RefusedError,
    columns_of,
    ensemble_of,
    objective_refused,
    real,
    shown_array,
    shown_frame,
    whole,
)

ZERO = float(np.float32(1e-35))
"""Numbers of at most this size are zero to LightGBM."""
FIRST_LINE = "tree"
WORDS_KEY = "pandas_categorical:"
ASKS_WORDS, DEFAULT_LEFT, MISSING_SHIFT = 1, 2, 2  # bits of a decision type
MISSING_ZERO, MISSING_NAN = 1, 2
BITS_BYTES = 2048  # of memory that a list of 32 bits takes


@dataclass(frozen=True, kw_only=True)
class Text:
    """A model's text in parts: what comes before its trees, what each tree says, what follows."""

    head: dict[str, str]
    trees: list[dict[str, str]]
    parameters: dict[str, str]
    words: list[Any]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The words of a column, and the place of the word that each code of trees stands for."""

    words: list[Any]
    places: dict[int, int]


def text_ensemble(text: str, classes: Sequence[Any] | None = None) -> Ensemble:
    """The trees of a model as LightGBM writes it, and the classes, which it does not write."""
    parts = parts_of(text)
    groups = int(parts.head["num_tree_per_iteration"])
    if groups > max(1, len(parts.trees)):
        raise ValueError("it tells fewer trees than classes")
    factor = _factor(parts.head, groups)
    names = parts.head["feature_names"].split(" ")
    if len(names) != int(parts.head["max_feature_idx"]) + 1:
        raise ValueError("the names of columns are not as many as columns")
    if "average_output" in parts.head:
        factor *= groups / max(1, len(parts.trees))
    words = _vocabularies(parts)
    return ensemble_of(
        columns=columns_of(names, {at: each.words for at, each in words.items()}),
        trees=[
            _tree(tree, words, factor, number % groups) for number, tree in enumerate(parts.trees)
        ],
        constant=np.zeros(groups),
        scale="log-odds",
        classes=classes or range(max(2, groups)),
        source="LightGBM",
    )


def _factor(head: dict[str, str], groups: int) -> float:
    """What scores are multiplied with to be log-odds."""
    kind, *options = head.get("objective", "none").split()
    expected = {"binary": 1, "cross_entropy": 1, "multiclass": int(head["num_class"])}
    if expected.get(kind) != groups or groups < 1:
        raise objective_refused(expected, kind)
    stated = dict(option.partition(":")[::2] for option in options)
    return float(stated.get("sigmoid", 1)) if kind == "binary" else 1.0


# --- text ---------------------------------------------------------------------------------------


def parts_of(text: str) -> Text:
    """A model's text, taken apart."""
    lines = [line.strip() for line in text.split("\n")]
    if lines[0] != FIRST_LINE or not {"end of trees", "end of parameters"} <= {*lines}:
        raise ValueError("it does not begin with 'tree', or does not end")
    end = lines.index("end of trees")
    starts = [at for at, line in enumerate(lines[:end]) if line.startswith("Tree=")]
    bounds = [*starts, end]
    told = _told(lines[: bounds[0]])
    return Text(
        head=told,
        trees=[_told(lines[a:b]) for a, b in pairwise(bounds)],
        parameters=dict(re.findall(r"^\[([a-z_]+): (.*)\]$", "\n".join(lines[end:]), re.M)),
        words=_stated_words(lines[end:]),
    )


def _told(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition("=") for line in lines if line)
    return {name: value for name, _, value in pairs}


def _stated_words(lines: list[str]) -> list[Any]:
    stated = [line for line in lines if line.startswith(WORDS_KEY)]
    found = json_of(stated[-1].removeprefix(WORDS_KEY), "the list of words") if stated else None
    if not all(isinstance(each, list) for each in found or []):
        raise ValueError("the words of a column are no list")
    return list(found or [])


def _vocabularies(parts: Text) -> dict[int, Vocabulary]:
    """The words of columns that hold words, which a table of pandas named, else codes."""
    told = parts.head["feature_infos"].split()
    codes = {at: _codes(each) for at, each in enumerate(told) if ":" in each and each[0] != "["}
    stated = parts.parameters.get("categorical_feature", "")
    if re.fullmatch(r"\d+(,\d+)*", stated):
        codes = {at: codes.get(at, []) for at in sorted({*map(int, stated.split(","))})}
    if not parts.words:
        return {
            at: Vocabulary(words=own, places={code: place for place, code in enumerate(own)})
            for at, own in codes.items()
        }
    fits = len(codes) == len(parts.words)
    for own, words in zip(codes.values(), parts.words, strict=False):
        fits &= max(own, default=-1) < len(words)
    if not fits:
        raise RefusedError(
            f"the model knows the words of {len(parts.words)} columns and has {len(codes)} columns "
            "of words: give ordered categories as numbers, make all others categories, and refit."
        )
    return {
        at: Vocabulary(words=words, places={place: place for place in range(len(words))})
        for at, words in zip(codes, parts.words, strict=True)
    }


def _codes(told: str) -> list[int]:
    """The codes of a column's words; one below 0 stands for missing values."""
    return sorted({code for code in map(int, told.split(":")) if code >= 0})


# --- trees --------------------------------------------------------------------------------------


def _tree(told: dict[str, str], words: dict[int, Vocabulary], factor: float, output: int) -> Tree:
    leaves = int(told["num_leaves"])
    if int(told.get("is_linear", 0)):
        raise RefusedError("leaves that hold one number are read, these are linear: refit without.")
    asking = _whole(told, "split_feature", leaves - 1)
    if asking.min(initial=0) < 0:
        raise ValueError("a tree asks about a column that is not there")
    kinds = _whole(told, "decision_type", leaves - 1)
    thresholds = _real(told, "threshold", leaves - 1)
    asks_words = (kinds & ASKS_WORDS).astype(bool)
    limits, missing = _numeric(thresholds, kinds, asks_words)
    none = [-1] * leaves
    return as_tree(
        feature=[*asking.tolist(), *none],
        threshold=np.concatenate([limits, np.zeros(leaves)]),
        left=[*_children(told, "left_child", leaves), *none],
        right=[*_children(told, "right_child", leaves), *none],
        value=factor * np.concatenate([np.zeros(len(asking)), _real(told, "leaf_value", leaves)]),
        missing_left=np.concatenate([missing, np.zeros(leaves, dtype=bool)]),
        words=_sets(told, asking, thresholds, asks_words, words),
        cover=_cover(told, leaves),
        output=output,
    )


def _numeric(thresholds: Floats, kinds: Codes, asks_words: Mask) -> tuple[Floats, Mask]:
    """Thresholds of numbers by `<`, and whether missing ones go to the left: (n,) and (n,)."""
    kept = kinds >> MISSING_SHIFT & 3
    if (~asks_words & (kept == MISSING_ZERO)).any():
        raise RefusedError(
            "trees to which zeros are numbers are read, to these they are missing: refit with "
            "zero_as_missing=False."
        )
    # A threshold this close to zero parts zero, all that is as small, from one side only.
    low = (thresholds < 0) & (thresholds >= -ZERO)
    high = (thresholds >= 0) & (thresholds <= ZERO)
    limits = np.where(low, -ZERO, below(np.where(high, ZERO, thresholds)))
    by_default = (kinds & DEFAULT_LEFT).astype(bool)
    missing = np.where(kept == MISSING_NAN, by_default, thresholds >= 0)
    return limits, missing & ~asks_words


def _sets(
    told: dict[str, str],
    asking: Codes,
    thresholds: Floats,
    asks_words: Mask,
    words: dict[int, Vocabulary],
) -> dict[int, frozenset[float]]:
    """The places of words that nodes send to the left."""
    if not asks_words.any():
        return {}
    bounds = _whole(told, "cat_boundaries", int(told["num_cat"]) + 1)
    bits = _whole(told, "cat_threshold", None)
    if (np.diff(bounds) < 0).any() or bounds[0] < 0 or bounds[-1] > len(bits):
        raise ValueError("a node lists words that are not there")
    if bits.min(initial=0) < 0 or bits.max(initial=0) >= 2**32:
        raise ValueError("a list of words is no list of bits")
    nodes = np.flatnonzero(asks_words)
    lists = thresholds[nodes].astype(np.intp)
    if not ((lists >= 0) & (lists < len(bounds) - 1)).all():
        raise ValueError("a node lists words that are not there")
    asked = int((bounds[lists + 1] - bounds[lists]).sum())
    check_bytes(BITS_BYTES * asked, "the words of a tree")
    found = {}
    for node, own in zip(nodes.tolist(), lists.tolist(), strict=True):
        places = words[int(asking[node])].places
        listed = _bits(bits[bounds[own] : bounds[own + 1]])
        found[node] = frozenset(float(places[code]) for code in listed if code in places)
    return found


def _bits(words: Codes) -> list[int]:
    """The numbers of bits that are set: (n,) of 32 bits each."""
    flags = words[:, None] >> np.arange(32) & 1
    return [int(each) for each in np.flatnonzero(flags.ravel())]


def _children(told: dict[str, str], name: str, leaves: int) -> list[int]:
    """Children as nodes, of which leaves come last; they are told as numbers below 0."""
    found = _whole(told, name, leaves - 1)
    if (found >= leaves - 1).any() or (found < -leaves).any():
        raise ValueError("a tree has a node that leads nowhere")
    return [int(each) for each in np.where(found < 0, leaves - 1 + ~found, found)]


def _cover(told: dict[str, str], leaves: int) -> Floats | None:
    if "leaf_count" not in told or (leaves > 1 and "internal_count" not in told):
        return None
    inner, outer = _real(told, "internal_count", leaves - 1), _real(told, "leaf_count", leaves)
    return np.concatenate([inner, outer])


def _whole(told: dict[str, str], name: str, size: int | None) -> Codes:
    return whole([int(each) for each in _entries(told, name, size)], name, size)


def _real(told: dict[str, str], name: str, size: int) -> Floats:
    return real([float(each) for each in _entries(told, name, size)], name, size)


def _entries(told: dict[str, str], name: str, size: int | None) -> list[str]:
    # A tree of one leaf does not tell lists that would be empty.
    return told[name].split() if size != 0 else []


# --- models -------------------------------------------------------------------------------------


def booster_ensemble(model: Any) -> Ensemble:
    """The trees of a Booster, up to the best round of early stopping."""
    return text_ensemble(model.model_to_string())


def classifier_ensemble(model: Any) -> Ensemble:
    """The trees of an LGBMClassifier, up to the best round of early stopping."""
    if not model.__sklearn_is_fitted__():
        raise RefusedError(f"this {type(model).__name__} has no trees yet: fit it first.")
    return text_ensemble(model.booster_.model_to_string(), model.classes_.tolist())


def booster_chances(model: Any, ensemble: Ensemble, numbers: Floats) -> Floats:
    """The probabilities that a Booster tells itself: (N, C)."""
    show = shown_frame if model.pandas_categorical else shown_array
    found = np.asarray(model.predict(show(ensemble, numbers)), dtype=np.float64)
    return found if found.ndim == 2 else np.stack([1 - found, found], 1)


def classifier_chances(model: Any, ensemble: Ensemble, numbers: Floats) -> Floats:
    """The probabilities that an LGBMClassifier tells itself: (N, C)."""
    # The estimator itself, whose options may make it stop before the last of its trees.
    show = shown_frame if model.booster_.pandas_categorical else shown_array
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        found: Floats = np.asarray(model.predict_proba(show(ensemble, numbers)), dtype=np.float64)
    return found


def admitted(model: Any) -> Admitted:
    """What LightGBM takes: anything."""
    return Admitted()
