"""Trees of CatBoost, read as they are."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from tree_rows import check_cover, check_leaves, check_same, hard_rows, people, read, with_gaps

from r2et.trees.form import Ensemble
from r2et.trees.readers import read_trees
from r2et.trees.readers.cat import admitted
from r2et.trees.readers.parts import LARGEST_SINGLE

catboost = pytest.importorskip("catboost")

COMMON = {
    "iterations": 6,
    "depth": 4,
    "thread_count": 1,
    "verbose": 0,
    "allow_writing_files": False,
    "random_seed": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "usual": {},
    "missing last": {"nan_mode": "Max"},
    "level by level": {"grow_policy": "Depthwise"},
    "leaf by leaf": {"grow_policy": "Lossguide", "max_leaves": 7, "depth": 9},
    "leaf by leaf, missing last": {"grow_policy": "Lossguide", "nan_mode": "Max"},
    "ordered": {"boosting_type": "Ordered"},
    "few borders": {"border_count": 3, "depth": 6},
    "stumps": {"depth": 1},
}
TWO_CLASSES: dict[str, dict[str, Any]] = {
    "from the mean": {"boost_from_average": True},
    "balanced": {"auto_class_weights": "Balanced"},
    "cross entropy": {"loss_function": "CrossEntropy"},
    "softmax": {"loss_function": "MultiClass"},
}
CASES = [
    *((load_breast_cancer, options) for options in (*MODELS.values(), *TWO_CLASSES.values())),
    *((load_iris, o) for o in MODELS.values() if "boosting_type" not in o),
]
NAMES = [
    *(f"two, {name}" for name in (*MODELS, *TWO_CLASSES)),
    *(f"three, {name}" for name in MODELS if name != "ordered"),
]


def fitted(**options: Any) -> Any:
    return catboost.CatBoostClassifier(**{**COMMON, **options})


def check_leaf_indexes(ensemble: Ensemble, model: Any, rows: Any) -> None:
    """Rows come to the leaves that the library names: each tree is here one for each score."""
    several = len(ensemble.trees) // model.tree_count_
    check_leaves(ensemble, rows, model.calc_leaf_indexes(rows), every=several)


@pytest.mark.parametrize(("load", "options"), CASES, ids=NAMES)
def test_trees_say_what_the_model_says(load: Any, options: dict[str, Any]) -> None:
    x, y = with_gaps(load)
    model = fitted(**options).fit(x, y)
    ensemble = read(model)
    rows = hard_rows(ensemble, admitted(model))
    check_same(ensemble, model, ensemble.numbers(x))
    check_same(ensemble, model, rows)
    check_leaf_indexes(ensemble, model, rows)
    check_cover(ensemble)


def test_numbers_too_large_for_single_precision() -> None:
    x, y = with_gaps(load_breast_cancer)
    model = fitted().fit(x, y)
    ensemble = read(model)
    draw = np.random.default_rng(0)
    values = [np.inf, -np.inf, 1e300, -1e300, LARGEST_SINGLE, 3.4028235677973366e38, np.nan, 10.0]
    check_same(ensemble, model, draw.choice(values, (300, x.shape[1])))


def test_missing_values_where_the_model_saw_none() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = fitted().fit(x, y)
    ensemble = read(model)
    rows = hard_rows(ensemble, admitted(model))
    assert np.isnan(rows).any()
    check_same(ensemble, model, rows)
    check_leaf_indexes(ensemble, model, rows)


@pytest.mark.parametrize("labels", [["no", "yes"], [3, 7], [False, True], ["b", "c", "a"]])
def test_names_and_labels_are_those_of_the_table(labels: list[Any]) -> None:
    load = load_iris if len(labels) == 3 else load_breast_cancer
    table, y = load(return_X_y=True, as_frame=True)
    model = fitted().fit(table, np.array(labels)[y])
    ensemble = read(model)
    assert [column.name for column in ensemble.columns] == list(table.columns)
    assert list(ensemble.classes) == model.classes_.tolist()
    found = ensemble.probabilities(ensemble.numbers(table[table.columns[::-1]]))
    np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-12)


def test_early_stopping() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = fitted(iterations=100, learning_rate=0.9, early_stopping_rounds=2)
    model.fit(x[::2], y[::2], eval_set=(x[1::2], y[1::2]))
    ensemble = read(model)
    assert len(ensemble.trees) == model.get_best_iteration() + 1 < 100
    check_same(ensemble, model, hard_rows(ensemble, admitted(model)))


def test_covers_are_of_weighted_rows() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    weight = np.where(x[:, 0] > 14, 5.0, 0.5)
    model = fitted(iterations=1).fit(x, y, sample_weight=weight)
    (tree,) = read(model).trees
    assert tree.cover is not None
    at = tree.leaf_of(x)
    for leaf in np.unique(at):
        assert tree.cover[leaf] == pytest.approx(weight[at == leaf].sum())


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
def test_a_model_that_is_no_classifier_by_name(load: Any) -> None:
    x, y = with_gaps(load)
    objective = "MultiClass" if load is load_iris else "Logloss"
    model = catboost.CatBoost({**COMMON, "loss_function": objective}).fit(x, y)
    ensemble = read(model)
    assert list(ensemble.classes) == sorted(set(y))
    check_same(ensemble, model, hard_rows(ensemble, admitted(model)))


def test_scores_that_are_scaled() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = fitted().fit(x, y)
    model.set_scale_and_bias(0.5, 0.25)
    ensemble = read(model)
    assert ensemble.constant == pytest.approx(0.25)
    check_same(ensemble, model, x)


# --- what is refused ----------------------------------------------------------------------------


def test_words_are_refused() -> None:
    table, y = people()
    table = table.assign(town=table["town"].astype(object).fillna("none"), band="b")
    model = fitted(cat_features=["town", "band"]).fit(table, y)
    with pytest.raises(ValueError, match="columns of words"):
        read_trees(model)


class Squares:
    """An objective of one's own."""

    def calc_ders_range(self, scores: Any, labels: Any, weights: Any) -> Any:
        return [(labels[at] - scores[at], -1.0) for at in range(len(labels))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loss_function": "MultiClassOneVsAll"}, "MultiClassOneVsAll"),
        ({"loss_function": "Focal:focal_alpha=0.5;focal_gamma=2.0"}, "Focal"),
        ({"loss_function": Squares(), "eval_metric": "Logloss"}, "objectives"),
    ],
    ids=["one against all", "focal", "own"],
)
def test_what_is_not_read_is_refused_in_one_sentence(options: Any, expected: str) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = fitted(**options).fit(x[:100], y[:100])
    with pytest.raises(ValueError, match=expected):
        read_trees(model)


def test_another_bar_is_refused() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = fitted().fit(x, y)
    model.set_probability_threshold(0.7)
    with pytest.raises(ValueError, match=r"at 0\.7: call"):
        read_trees(model)


def test_sums_of_models_are_refused() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    models = [fitted(depth=depth).fit(x, y) for depth in (2, 3)]
    with pytest.raises(ValueError, match="got 'none'"):
        read_trees(catboost.sum_models(models))


def test_a_model_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="fit it first"):
        read_trees(catboost.CatBoostClassifier())


def test_a_class_that_predicts_otherwise_is_not_read() -> None:
    class Doubting(catboost.CatBoostClassifier):  # type: ignore[misc]
        def predict_proba(self, X: Any, **options: Any) -> Any:
            return 0.9 * super().predict_proba(X, **options) + 0.05

    x, y = load_breast_cancer(return_X_y=True)
    assert read_trees(Doubting(**COMMON).fit(x, y)) is None
    assert read_trees(catboost.CatBoostRegressor(**COMMON).fit(x, y)) is None


def test_a_table_of_single_precision() -> None:
    table = pd.DataFrame(load_breast_cancer().data).astype(np.float32)
    table.columns = [f"c{name}" for name in table.columns]
    model = fitted().fit(table, load_breast_cancer().target)
    ensemble = read(model)
    found = ensemble.probabilities(ensemble.numbers(table))
    np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-12)
