"""Trees of XGBoost, read as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer, load_iris
from tree_rows import check_cover, check_leaves, check_same, hard_rows, people, read, with_gaps

from r2et.trees.form import UNSEEN
from r2et.trees.readers import read_file, read_trees, reader_of
from r2et.trees.readers.parts import LARGEST_SINGLE, Admitted
from r2et.trees.readers.xgb import admitted

COMMON = {"n_estimators": 8, "max_depth": 4, "n_jobs": 1, "random_state": 0}
MODELS: dict[str, dict[str, Any]] = {
    "usual": {},
    "exact": {"tree_method": "exact"},
    "leaf by leaf": {"grow_policy": "lossguide", "max_leaves": 6},
    "pruned": {"tree_method": "exact", "gamma": 3.0},
    "dart": {"booster": "dart", "rate_drop": 0.5, "one_drop": 1},
    "base": {"base_score": 0.2},
    "forests": {"num_parallel_tree": 3, "subsample": 0.5},
    "one round": {"n_estimators": 1},
}
TWO_CLASSES: dict[str, dict[str, Any]] = {
    "raw scores": {"objective": "binary:logitraw"},
    "raw scores, base": {"objective": "binary:logitraw", "base_score": 0.7},
    "regression": {"objective": "reg:logistic"},
    "weighted classes": {"scale_pos_weight": 3.0},
}
CASES = [
    *((load_breast_cancer, options) for options in (*MODELS.values(), *TWO_CLASSES.values())),
    *((load_iris, options) for options in MODELS.values()),
]
NAMES = [*(f"two, {name}" for name in (*MODELS, *TWO_CLASSES)), *(f"three, {n}" for n in MODELS)]


def fitted(**options: Any) -> Any:
    return xgboost.XGBClassifier(**{**COMMON, **options})


@pytest.mark.parametrize(("load", "options"), CASES, ids=NAMES)
def test_trees_say_what_the_model_says(load: Any, options: dict[str, Any]) -> None:
    x, y = with_gaps(load)
    model = fitted(**options).fit(x, y)
    ensemble = read(model)
    rows = hard_rows(ensemble, admitted(model))
    check_same(ensemble, model, ensemble.numbers(x))
    check_same(ensemble, model, rows)
    check_leaves(ensemble, rows, model.apply(rows))
    check_cover(ensemble)
    booster = model.get_booster()
    check_same(read(booster), booster, rows)


def test_a_classifier_of_random_forests() -> None:
    x, y = with_gaps(load_breast_cancer)
    model = xgboost.XGBRFClassifier(n_estimators=5, max_depth=4, n_jobs=1).fit(x, y)
    ensemble = read(model)
    assert len(ensemble.trees) == 5
    check_same(ensemble, model, hard_rows(ensemble, admitted(model)))


def test_two_classes_of_a_softmax_have_one_score() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    options = {"objective": "multi:softprob", "num_class": 2, "max_depth": 3, "nthread": 1}
    booster = xgboost.train(options, xgboost.DMatrix(x, y), num_boost_round=4)
    ensemble = read(booster)
    assert len(ensemble.constant) == 1
    assert len(ensemble.trees) == 8
    check_same(ensemble, booster, hard_rows(ensemble, admitted(booster)))


def test_covers_are_of_weighted_rows() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    weight = np.where(x[:, 0] > 14, 5.0, 0.5)
    model = fitted(n_estimators=1, base_score=0.5).fit(x, y, sample_weight=weight)
    (tree,) = read(model).trees
    check_cover(read(model))
    assert tree.cover is not None
    at = tree.leaf_of(x)
    for leaf in np.unique(at):  # at a half, each row's curvature is a quarter of its weight
        assert tree.cover[leaf] == pytest.approx(weight[at == leaf].sum() / 4, rel=1e-5)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_classifier_stops_at_its_best_round_and_a_booster_does_not(
    parallel: int, tmp_path: Path
) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = fitted(
        n_estimators=60, early_stopping_rounds=2, learning_rate=1.0, num_parallel_tree=parallel
    )
    model.fit(x[:80], y[:80], eval_set=[(x[80:200], y[80:200])], verbose=False)
    ensemble, booster = read(model), model.get_booster()
    rounds = booster.num_boosted_rounds()
    assert len(ensemble.trees) == parallel * (model.best_iteration + 1) < parallel * rounds
    rows = hard_rows(ensemble, admitted(model))
    check_same(ensemble, model, rows)
    check_leaves(ensemble, rows, model.apply(rows))
    assert len(read(booster).trees) == parallel * rounds
    check_same(read(booster), booster, rows)
    # A file says who wrote it, and who loads it then predicts as it did.
    model.save_model(tmp_path / "model.json")
    assert len(read_file(tmp_path / "model.json").trees) == len(ensemble.trees)
    booster.save_model(tmp_path / "booster.json")
    assert len(read_file(tmp_path / "booster.json").trees) == parallel * rounds


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_by_one", [1, 10])
def test_words_of_a_table(one_by_one: int) -> None:
    table, y = people()
    options = {"enable_categorical": True, "max_cat_to_onehot": one_by_one, "max_cat_threshold": 4}
    model = fitted(**options).fit(table, y)
    ensemble = read(model)
    assert ensemble.columns[1].words == ("u", "v", "w", "x", "y", "z")
    assert ensemble.columns[3].words == (10, 20, 30, 40, 50, 60)
    assert any(tree.words for tree in ensemble.trees)
    check_same(ensemble, model, ensemble.numbers(table))
    check_same(ensemble, model, hard_rows(ensemble, admitted(model)))
    # Words in another order, and only some of them, are still the same words.
    some = table.iloc[:50].assign(town=pd.Categorical(["z", "u"] * 25, categories=["z", "v", "u"]))
    found = ensemble.probabilities(ensemble.numbers(some))
    np.testing.assert_allclose(found, model.predict_proba(some), atol=1e-6)


def test_words_of_an_array_are_codes() -> None:
    generator = np.random.default_rng(1)
    codes = generator.choice([0.0, 2.0, 3.0, 7.0, 40.0, np.nan], 500)
    x = np.stack([generator.normal(size=500), codes], 1)
    y = (x[:, 0] + np.isin(codes, [2, 40]) > 0.4).astype(int)
    matrix = xgboost.DMatrix(x, y, feature_types=["float", "c"], enable_categorical=True)
    options = {"objective": "binary:logistic", "max_cat_to_onehot": 1, "nthread": 1}
    booster = xgboost.train(options, matrix, num_boost_round=8)
    ensemble = read(booster)
    assert ensemble.columns[1].words
    check_same(ensemble, booster, ensemble.numbers(x))
    rows = hard_rows(ensemble, Admitted(largest=LARGEST_SINGLE))
    assert (rows[:, 1] == UNSEEN).any()
    check_same(ensemble, booster, rows)
    # Codes that no tree lists, within the range of those it does and beyond.
    other = np.stack([np.zeros(6), [1.0, 5.0, 39.0, 41.0, 100.0, 0.0]], 1)
    shown = xgboost.DMatrix(other, feature_types=["float", "c"], enable_categorical=True)
    found = ensemble.probabilities(ensemble.numbers(other))[:, 1]
    np.testing.assert_allclose(found, booster.predict(shown), atol=1e-6)
    with pytest.raises(ValueError, match=r"whole numbers.*2\.5"):
        ensemble.numbers(np.array([[0.0, 2.5]]))  # which the library would cut to 2


def test_words_of_other_letters_are_refused() -> None:
    table, y = people()
    table["town"] = table["town"].cat.rename_categories({"u": "Zürich"})
    with pytest.raises(ValueError, match="ASCII"):
        read_trees(fitted(enable_categorical=True).fit(table, y))


# --- what is refused ----------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "linear": ({"booster": "gblinear"}, "no trees"),
    "hinge": ({"objective": "binary:hinge"}, "binary:hinge"),
    "squares": ({"objective": "reg:squarederror"}, "reg:squarederror"),
    "counts": ({"objective": "count:poisson"}, "count:poisson"),
    "other gaps": ({"missing": -1.0}, "missing values are NaN"),
}


@pytest.mark.filterwarnings("ignore:.*gblinear.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*gblinear.*:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_in_one_sentence(name: str) -> None:
    options, expected = REFUSED[name]
    x, y = load_breast_cancer(return_X_y=True)
    common = {"n_estimators": 3, "n_jobs": 1, **options}
    with pytest.raises(ValueError, match=expected):
        read_trees(xgboost.XGBClassifier(**common).fit(x, y))


def test_several_numbers_a_leaf_are_refused() -> None:
    x, y = load_iris(return_X_y=True)
    model = fitted(multi_strategy="multi_output_tree", tree_method="hist").fit(x, y)
    with pytest.raises(ValueError, match="one number"):
        read_trees(model)


def test_an_objective_of_ones_own() -> None:
    def squares(label: Any, score: Any) -> tuple[Any, Any]:
        return score - label, np.ones_like(score)

    x, y = load_breast_cancer(return_X_y=True)
    booster = xgboost.train(
        {"nthread": 1}, xgboost.DMatrix(x, y), 3, obj=lambda p, d: squares(d.get_label(), p)
    )
    with pytest.raises(ValueError, match="reg:squarederror"):
        read_trees(booster)
    # The estimator makes probabilities of such scores as of others, so it is read as it is.
    model = fitted(objective=squares).fit(x, y)
    check_same(read(model), model, x)


def test_a_model_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="fit it first"):
        read_trees(xgboost.XGBClassifier())


class Doubting(xgboost.XGBClassifier):  # type: ignore[misc]
    """A classifier that is never sure."""

    def predict_proba(self, X: Any, **options: Any) -> Any:
        return 0.9 * super().predict_proba(X, **options) + 0.05


class Strict(xgboost.XGBClassifier):  # type: ignore[misc]
    """A classifier with a bar of its own."""

    def predict(self, X: Any, **options: Any) -> Any:
        return (self.predict_proba(X)[:, 1] > 0.9).astype(int)


class Renamed(xgboost.XGBClassifier):  # type: ignore[misc]
    """A classifier of another name."""


def test_a_class_that_predicts_otherwise_is_not_read() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    for kind in (Doubting, Strict):
        assert read_trees(kind(**COMMON).fit(x, y)) is None
    model = fitted().fit(x, y)
    model.predict_proba = lambda rows: None
    assert read_trees(model) is None
    assert read_trees(xgboost.XGBRegressor(**COMMON).fit(x, y)) is None
    assert reader_of(Renamed()) is not None
