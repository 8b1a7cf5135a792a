"""Trees of LightGBM, read as they are."""

from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from tree_rows import check_cover, check_leaves, check_same, hard_rows, people, read, with_gaps

from r2et.trees.form import UNSEEN
from r2et.trees.readers import read_trees
from r2et.trees.readers.lgbm import ZERO, text_ensemble
from r2et.trees.readers.parts import Admitted

COMMON = {"n_estimators": 8, "num_leaves": 12, "n_jobs": 1, "verbose": -1, "random_state": 0}
BAGGED = {"subsample": 0.6, "subsample_freq": 1}
MODELS: dict[str, dict[str, Any]] = {
    "usual": {},
    "dart": {"boosting_type": "dart", "drop_rate": 0.6, "skip_drop": 0.0},
    "forest": {"boosting_type": "rf", **BAGGED},
    "goss": {"data_sample_strategy": "goss", "learning_rate": 0.5},
    "no missing values": {"use_missing": False},
    "extra": {"extra_trees": True},
    "from zero": {"boost_from_average": False},
    "stumps": {"num_leaves": 2},
    "no splits": {"min_child_samples": 10_000},
}
TWO_CLASSES: dict[str, dict[str, Any]] = {
    "steep": {"sigmoid": 2.5},
    "steep forest": {"sigmoid": 0.7, "boosting_type": "rf", **BAGGED},
    "balanced": {"is_unbalance": True},
    "cross entropy": {"objective": "cross_entropy"},
}
CASES = [
    *((load_breast_cancer, options) for options in (*MODELS.values(), *TWO_CLASSES.values())),
    *((load_iris, options) for options in MODELS.values()),
]
NAMES = [*(f"two, {name}" for name in (*MODELS, *TWO_CLASSES)), *(f"three, {n}" for n in MODELS)]


def fitted(**options: Any) -> Any:
    return lightgbm.LGBMClassifier(**{**COMMON, **options})


def leaves(booster: Any, rows: Any) -> Any:
    """The leaf of each tree that rows come to, as the library says."""
    return booster.predict(rows, pred_leaf=True)


@pytest.mark.parametrize(("load", "options"), CASES, ids=NAMES)
def test_trees_say_what_the_model_says(load: Any, options: dict[str, Any]) -> None:
    x, y = with_gaps(load)
    booster = fitted(**options).fit(x, y).booster_
    ensemble = read(booster)
    rows = hard_rows(ensemble, Admitted(largest=np.inf))
    assert np.isinf(rows).any()
    check_same(ensemble, booster, ensemble.numbers(x))
    check_same(ensemble, booster, rows)
    check_leaves(ensemble, rows, leaves(booster, rows))
    check_cover(ensemble)


def test_names_and_labels_are_those_of_the_table() -> None:
    table, y = load_iris(return_X_y=True, as_frame=True)
    table = table.rename(columns=lambda name: name.partition(" (")[0])
    labels = np.array(["red", "green", "blue"])[y]
    model = fitted().fit(table, labels)
    ensemble = read(model)
    assert ensemble.classes == ("blue", "green", "red")
    assert len(ensemble.constant) == 3
    # The library keeps "sepal_length", and takes "sepal length".
    shuffled = table[table.columns[::-1]]
    found = ensemble.probabilities(ensemble.numbers(shuffled))
    np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-12)


def test_numbers_next_to_zero_are_zero() -> None:
    generator = np.random.default_rng(0)
    x = generator.choice([-1.0, 0.0, 1.0, 1e-36, -1e-36, 1e-34, -1e-34], (600, 2))
    y = (np.sign(np.round(x, 30)) @ [1, 2] + generator.normal(0, 0.1, 600) > 0.5).astype(int)
    booster = fitted(min_data_in_bin=1).fit(x, y).booster_
    ensemble = read(booster)
    thresholds = np.concatenate([tree.threshold for tree in ensemble.trees])
    assert {-ZERO, np.nextafter(ZERO, 1)} <= set(thresholds)
    edges = [0.0, -0.0, 1e-35, ZERO, np.nextafter(ZERO, 1), np.nextafter(ZERO, 0), 5e-324, np.nan]
    values = np.array([*edges, *(-edge for edge in edges)])
    rows = np.stack([each.ravel() for each in np.meshgrid(values, values)], 1)
    check_same(ensemble, booster, rows)
    check_leaves(ensemble, rows, leaves(booster, rows))


def test_missing_values_are_zero_where_the_model_saw_none() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x = x - x.mean(0)  # so that thresholds lie on both sides of zero
    booster = fitted().fit(x, y).booster_
    ensemble = read(booster)
    rows = hard_rows(ensemble, Admitted(largest=np.inf))
    gone = np.where(np.isnan(rows), 0.0, rows)
    assert np.isnan(rows).any()
    assert np.array_equal(ensemble(rows), ensemble(gone))
    check_same(ensemble, booster, rows)


@pytest.mark.parametrize("classes", [1, 3])
def test_early_stopping(classes: int) -> None:
    x, y = (load_iris if classes == 3 else load_breast_cancer)(return_X_y=True)
    kind = {"objective": "multiclass", "num_class": 3} if classes == 3 else {"objective": "binary"}
    data = lightgbm.Dataset(x[::2], y[::2])
    booster = lightgbm.train(
        {**kind, "learning_rate": 0.7, "num_threads": 1, "verbose": -1},
        data,
        num_boost_round=200,
        valid_sets=[data.create_valid(x[1::2], y[1::2])],
        callbacks=[lightgbm.early_stopping(2, verbose=False)],
        keep_training_booster=True,
    )
    ensemble = read(booster)
    assert len(ensemble.trees) == classes * booster.best_iteration
    assert booster.best_iteration < booster.current_iteration()
    rows = hard_rows(ensemble, Admitted())
    check_same(ensemble, booster, rows)
    check_leaves(ensemble, rows, leaves(booster, rows))


def test_a_booster_of_train() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    data = lightgbm.Dataset(x, y, weight=np.linspace(0.1, 3, len(y)))
    booster = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, data, 5)
    ensemble = read(booster)
    assert ensemble.classes == (0, 1)
    check_same(ensemble, booster, hard_rows(ensemble, Admitted()))
    tree = ensemble.trees[0]
    assert tree.cover is not None
    counts = np.bincount(tree.leaf_of(x), minlength=len(tree.feature))
    leaf = tree.feature < 0
    assert np.array_equal(tree.cover[leaf], counts[leaf])  # LightGBM counts rows, not weights


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_by_one", [1, 10])
def test_words_of_a_table(one_by_one: int) -> None:
    table, y = people()
    options = {"max_cat_to_onehot": one_by_one, "min_data_per_group": 5, "cat_smooth": 1}
    model = fitted(**options).fit(table, y)
    ensemble = read(model)
    assert ensemble.columns[1].words == ("u", "v", "w", "x", "y", "z")
    assert ensemble.columns[3].words == (10, 20, 30, 40, 50, 60)
    assert any(tree.words for tree in ensemble.trees)
    check_same(ensemble, model, ensemble.numbers(table))
    rows = hard_rows(ensemble, Admitted())
    assert (rows == UNSEEN).any()
    check_same(ensemble, model, rows)
    other = table.assign(town=pd.Categorical(["new", "u"] * 250))
    found = ensemble.probabilities(ensemble.numbers(other))
    np.testing.assert_allclose(found, model.predict_proba(other), atol=1e-12)


def test_words_of_an_array_are_codes() -> None:
    generator = np.random.default_rng(1)
    codes = generator.choice([0.0, 2.0, 3.0, 7.0, 40.0, np.nan], 500)
    x = np.stack([generator.normal(size=500), codes], 1)
    y = (x[:, 0] + np.isin(codes, [2, 40]) > 0.4).astype(int)
    options = {"max_cat_to_onehot": 1, "min_data_per_group": 5, "cat_smooth": 1}
    booster = fitted(**options).fit(x, y, categorical_feature=[1]).booster_
    ensemble = read(booster)
    assert ensemble.columns[1].words == (0, 2, 3, 7, 40)
    check_same(ensemble, booster, ensemble.numbers(x))
    check_same(ensemble, booster, hard_rows(ensemble, Admitted()))
    other = np.stack([np.zeros(7), [1.0, 5.0, 39.0, 41.0, 100.0, -1.0, np.nan]], 1)
    found = ensemble.probabilities(ensemble.numbers(other))[:, 1]
    np.testing.assert_allclose(found, booster.predict(other), atol=1e-12)
    with pytest.raises(ValueError, match=r"whole numbers.*2\.5"):
        ensemble.numbers(np.array([[0.0, 2.5]]))  # which the library would cut to 2


def test_words_that_no_tree_asks_for() -> None:
    table, y = people()
    table["same"] = pd.Categorical(["one"] * len(table))
    ensemble = read(model := fitted().fit(table, y))
    assert ensemble.columns[-1].words == ("one",)
    check_same(ensemble, model, ensemble.numbers(table))


def test_ordered_categories_are_refused() -> None:
    table, y = people()
    table["band"] = table["band"].cat.as_ordered()
    with pytest.raises(ValueError, match="ordered categories"):
        read_trees(fitted().fit(table, y))


# --- what is refused ----------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "linear": ({"linear_tree": True}, "these are linear"),
    "zeros": ({"zero_as_missing": True}, "zero_as_missing=False"),
    "one against all": ({"objective": "multiclassova", "num_class": 3}, "multiclassova"),
    "squares": ({"objective": "regression"}, "regression"),
    "own": ({"objective": lambda label, score: (score - label, np.ones_like(score))}, "'none'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_in_one_sentence(name: str) -> None:
    options, expected = REFUSED[name]
    x, y = (load_iris if "num_class" in options else load_breast_cancer)(return_X_y=True)
    x = np.where(x < np.median(x, axis=0), 0.0, x)
    with pytest.raises(ValueError, match=expected):
        read_trees(fitted(**options).fit(x, y))


def test_a_model_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="fit it first"):
        read_trees(lightgbm.LGBMClassifier())


class Doubting(lightgbm.LGBMClassifier):  # type: ignore[misc]
    """A classifier that is never sure."""

    def predict_proba(self, X: Any, **options: Any) -> Any:
        return 0.9 * super().predict_proba(X, **options) + 0.05


def test_a_class_that_predicts_otherwise_is_not_read() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    assert read_trees(Doubting(**COMMON).fit(x, y)) is None
    assert read_trees(lightgbm.LGBMRegressor(**COMMON).fit(x, y)) is None


def test_trees_that_are_not_all_are_refused() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    hasty = {"pred_early_stop": True, "pred_early_stop_freq": 1, "pred_early_stop_margin": 0.3}
    with pytest.raises(ValueError, match="not all that it predicts by"):
        read_trees(fitted(**hasty).fit(x, y))
    booster = fitted().fit(x, y).booster_
    text = booster.model_to_string()
    assert len(text_ensemble(text).trees) == 8
    booster.model_to_string = lambda: text.replace("sigmoid:1", "sigmoid:2")
    with pytest.raises(ValueError, match="not all that it predicts by"):
        read_trees(booster)
