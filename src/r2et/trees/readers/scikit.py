"""Trees of scikit-learn: boosted by histograms or not, forests, single trees.

All compare by `<=`: trees boosted by histograms in double precision, all others after numbers are
rounded to single precision.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from r2et.core.arrays import Codes, Floats
from r2et.trees.form import UNSEEN, Ensemble, Tree, as_tree, below, single_below
from r2et.trees.readers.parts import (
    LARGEST_SINGLE,
    Admitted,
    RefusedError,
    columns_of,
    ensemble_of,
    shown_array,
    shown_frame,
)


def hist_ensemble(model: Any) -> Ensemble:
    """The trees of a HistGradientBoostingClassifier."""
    _check_fitted(model)
    own, words = _hist_columns(model)
    trees = [
        _hist_tree(tree, own, words, output)
        for several in model._predictors
        for output, tree in enumerate(several)
    ]
    return ensemble_of(
        columns=columns_of(_names(model), words),
        trees=trees,
        constant=np.ravel(model._baseline_prediction),
        scale="log-odds",
        classes=model.classes_.tolist(),
        source="scikit-learn HistGradientBoostingClassifier",
    )


def _hist_columns(model: Any) -> tuple[Codes, dict[int, Sequence[Any]]]:
    """Which column each is that trees see, (d,), as those of words come first; and the words."""
    if model._preprocessor is None:
        return np.arange(model.n_features_in_), {}
    is_word = np.asarray(model.is_categorical_, dtype=bool)
    own = np.concatenate([np.flatnonzero(is_word), np.flatnonzero(~is_word)])
    listed = model._preprocessor.named_transformers_["encoder"].categories_
    # Missing values have a place after all words, which trees see as missing.
    words: dict[int, Sequence[Any]] = {
        int(at): [each for each in several.tolist() if not _is_nan(each)]
        for at, several in zip(own, listed, strict=False)
    }
    return own, words


def _is_nan(word: Any) -> bool:
    return isinstance(word, float) and bool(np.isnan(word))


def _hist_tree(predictor: Any, own: Codes, words: dict[int, Sequence[Any]], output: int) -> Tree:
    nodes = predictor.nodes
    leaf = nodes["is_leaf"].astype(bool)
    feature = np.where(leaf, -1, own[np.where(leaf, 0, nodes["feature_idx"])])
    sets = {
        int(node): _hist_set(predictor, nodes[node], len(words[int(feature[node])]))
        for node in np.flatnonzero(~leaf & nodes["is_categorical"].astype(bool))
    }
    return as_tree(
        feature=feature.tolist(),
        threshold=below(nodes["num_threshold"]),
        left=nodes["left"].tolist(),
        right=nodes["right"].tolist(),
        value=nodes["value"],
        missing_left=nodes["missing_go_to_left"],
        words=sets,
        cover=nodes["count"],
        output=output,
    )


def _hist_set(predictor: Any, node: Any, count: int) -> frozenset[float]:
    """The places of words that a node sends to the left; unknown ones go as missing ones do."""
    bits = predictor.raw_left_cat_bitsets[int(node["bitset_idx"])]
    inside = {float(place) for place in range(count) if bits[place // 32] >> (place % 32) & 1}
    return frozenset(inside | ({UNSEEN} if node["missing_go_to_left"] else set()))


def boosted_ensemble(model: Any) -> Ensemble:
    """The trees of a GradientBoostingClassifier."""
    _check_fitted(model)
    # The exponential loss takes half the log-odds for its score.
    factor = 2.0 if model.loss == "exponential" else 1.0
    trees = [
        _tree(each.tree_, factor * model.learning_rate * each.tree_.value[:, 0, 0], output)
        for several in model.estimators_
        for output, each in enumerate(several)
    ]
    return ensemble_of(
        columns=columns_of(_names(model), {}),
        trees=trees,
        constant=_start(model),
        scale="log-odds",
        classes=model.classes_.tolist(),
        source="scikit-learn GradientBoostingClassifier",
    )


def _start(model: Any) -> Floats:
    """The log-odds that boosting starts from: (outputs,)."""
    start = model.init_
    outputs = 1 if len(model.classes_) == 2 else len(model.classes_)
    if isinstance(start, str) and start == "zero":
        return np.zeros(outputs)
    kind = type(start).__name__
    if kind != "DummyClassifier" or start.strategy not in ("prior", "most_frequent", "constant"):
        raise RefusedError(
            f"boosted trees that start from a constant are read, these from a {kind}: fit them "
            "with init=None or init='zero'."
        )
    tiny = np.finfo(np.float64).eps
    shares = start.predict_proba(np.zeros((1, model.n_features_in_)))[0].clip(tiny, 1 - tiny)
    if outputs == 1:
        return np.array([np.log(shares[1] / (1 - shares[1]))])
    found: Floats = np.log(shares) - np.log(shares).mean()
    return found


def forest_ensemble(model: Any) -> Ensemble:
    """The trees of a RandomForestClassifier or an ExtraTreesClassifier."""
    return _averaged(model, lambda: model.estimators_)


def tree_ensemble(model: Any) -> Ensemble:
    """The one tree of a DecisionTreeClassifier."""
    return _averaged(model, lambda: [model])


def _averaged(model: Any, several: Callable[[], Sequence[Any]]) -> Ensemble:
    _check_fitted(model)
    if model.n_outputs_ != 1:
        raise RefusedError(
            f"trees that predict one thing are read, these predict {model.n_outputs_}: fit a model "
            "for each."
        )
    count = len(model.classes_)
    trees = [tree for each in several() for tree in _trees_of_classes(each.tree_, len(several()))]
    return ensemble_of(
        columns=columns_of(_names(model), {}),
        trees=trees,
        constant=np.zeros(1 if count == 2 else count),
        scale="probability",
        classes=model.classes_.tolist(),
        source=f"scikit-learn {type(model).__name__}",
    )


def _trees_of_classes(tree: Any, trees: int) -> Iterator[Tree]:
    """A tree for each score, of which leaves add their share of the mean over `trees`."""
    shares = tree.value[:, 0, :] / trees
    kept = [1] if shares.shape[1] == 2 else range(shares.shape[1])
    for output, label in enumerate(kept):
        yield _tree(tree, shares[:, label], output)


def _tree(tree: Any, value: Floats, output: int) -> Tree:
    leaf = tree.children_left < 0
    return as_tree(
        feature=np.where(leaf, -1, tree.feature).tolist(),
        threshold=single_below(tree.threshold, equal=True),
        left=tree.children_left.tolist(),
        right=tree.children_right.tolist(),
        value=value,
        missing_left=tree.missing_go_to_left,
        cover=tree.weighted_n_node_samples,
        output=output,
    )


def _check_fitted(model: Any) -> None:
    if not hasattr(model, "classes_"):
        raise RefusedError(f"this {type(model).__name__} has no trees yet: fit it first.")


def _names(model: Any) -> list[str]:
    if hasattr(model, "feature_names_in_"):
        return [str(name) for name in model.feature_names_in_]
    return [f"x{number}" for number in range(model.n_features_in_)]


# --- what models say themselves -----------------------------------------------------------------


def chances(model: Any, ensemble: Ensemble, numbers: Floats) -> Floats:
    """The probabilities that a model tells itself: (N, C)."""
    show = shown_frame if hasattr(model, "feature_names_in_") else shown_array
    with np.errstate(over="ignore", invalid="ignore"):  # the library adds up all numbers it gets
        found: Floats = model.predict_proba(show(ensemble, numbers))
    return found


def admitted_by_hist(model: Any) -> Admitted:
    """What a HistGradientBoostingClassifier takes: anything."""
    return Admitted()


def admitted(model: Any) -> Admitted:
    """What all others take: numbers of single precision, missing ones where they say so."""
    tags = model.__sklearn_tags__().input_tags
    return Admitted(missing=bool(tags.allow_nan), largest=LARGEST_SINGLE)
