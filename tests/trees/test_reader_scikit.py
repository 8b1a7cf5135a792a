"""Trees of scikit-learn, read as they are."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier
from tree_rows import check_cover, check_leaves, check_same, hard_rows, people, read

from r2et.trees.form import UNSEEN
from r2et.trees.readers import read_trees, reader_of
from r2et.trees.readers.parts import Admitted

MODELS = {
    "hist": HistGradientBoostingClassifier(max_iter=12),
    "hist, early stopping": HistGradientBoostingClassifier(
        max_iter=60, early_stopping=True, n_iter_no_change=3, random_state=0
    ),
    "boosted": GradientBoostingClassifier(n_estimators=10),
    "boosted from zero": GradientBoostingClassifier(n_estimators=10, init="zero"),
    "boosted from one class": GradientBoostingClassifier(
        n_estimators=10, init=DummyClassifier(strategy="most_frequent")
    ),
    "forest": RandomForestClassifier(n_estimators=10, random_state=0),
    "weighted forest": RandomForestClassifier(
        n_estimators=5, random_state=0, class_weight="balanced", criterion="entropy"
    ),
    "extra trees": ExtraTreesClassifier(n_estimators=10, random_state=0),
    "tree": DecisionTreeClassifier(random_state=0),
    "extra tree": ExtraTreeClassifier(random_state=0),
    "stump": DecisionTreeClassifier(max_depth=1),
}


def admitted_by(model: Any) -> Admitted:
    reader = reader_of(model)
    assert reader is not None
    return reader.admitted(model)


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_trees_say_what_the_model_says(model: Any, load: Any) -> None:
    x, y = load(return_X_y=True)
    model.fit(x, y)
    ensemble = read(model)
    assert [column.name for column in ensemble.columns][:2] == ["x0", "x1"]
    assert len(ensemble.constant) == (1 if len(set(y)) == 2 else len(set(y)))
    check_same(ensemble, model, ensemble.numbers(x))
    check_same(ensemble, model, hard_rows(ensemble, admitted_by(model)))
    check_cover(ensemble)


@pytest.mark.parametrize("name", ["boosted", "forest", "extra trees", "tree"])
def test_rows_come_to_the_leaves_of_the_library(name: str) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = MODELS[name].fit(x, y)
    ensemble = read(model)
    rows = hard_rows(ensemble, admitted_by(model))
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = model.apply(rows)
    check_leaves(ensemble, rows, theirs)


def test_names_and_labels_are_those_of_the_table() -> None:
    table, y = load_breast_cancer(return_X_y=True, as_frame=True)
    labels = np.where(y == 1, "well", "ill")
    model = HistGradientBoostingClassifier(max_iter=5).fit(table, labels)
    ensemble = read(model)
    assert [column.name for column in ensemble.columns] == list(table.columns)
    assert ensemble.classes == ("ill", "well")
    assert ensemble.scale == "log-odds"
    shuffled = table[table.columns[::-1]]
    found = ensemble.probabilities(ensemble.numbers(shuffled))
    np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_words_of_histogram_boosting(seed: int) -> None:
    table, y = people()
    model = HistGradientBoostingClassifier(max_iter=20, random_state=seed).fit(table, y)
    ensemble = read(model)
    assert ensemble.columns[1].words == ("u", "v", "w", "x", "y", "z")
    assert any(tree.words for tree in ensemble.trees)
    check_same(ensemble, model, ensemble.numbers(table))
    rows = hard_rows(ensemble, Admitted())
    assert (rows == UNSEEN).any()
    check_same(ensemble, model, rows)
    other = table.assign(town=pd.Categorical(["new", "u"] * 250))
    found = ensemble.probabilities(ensemble.numbers(other))
    np.testing.assert_allclose(found, model.predict_proba(other), atol=1e-12)


@pytest.mark.parametrize("words", [[3.0, 1.0, 7.5, 8.0], ["p", "q", "r", "s"]])
def test_words_of_an_array(words: list[Any]) -> None:
    generator = np.random.default_rng(0)
    word = np.array(words, dtype=object)[generator.integers(0, 4, 300)]
    x = np.stack([generator.normal(size=300).astype(object), word], 1)
    x = x.astype(float) if isinstance(words[0], float) else x
    y = (x[:, 0].astype(float) + (word == words[0]) > 0.4).astype(int)
    model = HistGradientBoostingClassifier(max_iter=10, categorical_features=[1]).fit(x, y)
    ensemble = read(model)
    assert ensemble.columns[1].words == tuple(sorted(words))
    check_same(ensemble, model, ensemble.numbers(x))
    check_same(ensemble, model, hard_rows(ensemble, Admitted()))


@pytest.mark.parametrize("kind", [RandomForestClassifier, DecisionTreeClassifier])
def test_missing_values_of_forests(kind: Any) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x = x.copy()
    x[::3, :9] = np.nan
    x[y == 1, 20] = np.nan
    model = kind(random_state=0).fit(x, y)
    ensemble = read(model)
    # A split of missing values from all others has an infinite threshold.
    assert kind is RandomForestClassifier or np.isinf(ensemble.trees[0].threshold).any()
    check_same(ensemble, model, hard_rows(ensemble, admitted_by(model)))


def test_infinity_is_a_number_where_missing_values_part_from_numbers() -> None:
    # Missing values decide alone, so the root sends every number to one side.
    x = np.where(np.arange(100)[:, None] % 2, np.nan, np.arange(100.0)[:, None])
    model = HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=5)
    model.fit(x, np.arange(100) % 2)
    ensemble = read(model)
    assert np.isinf(ensemble.trees[0].threshold[0])
    check_same(ensemble, model, np.array([[np.inf], [-np.inf], [np.nan], [1e300]]))


def test_the_exponential_loss_takes_half_the_log_odds() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = GradientBoostingClassifier(n_estimators=5, loss="exponential").fit(x, y)
    ensemble = read(model)
    np.testing.assert_allclose(ensemble(x)[:, 0], 2 * model.decision_function(x))


def test_what_is_not_read_is_refused_in_one_sentence() -> None:
    x, y = load_iris(return_X_y=True)
    several = RandomForestClassifier(n_estimators=2).fit(x, np.stack([y, y], 1))
    started = GradientBoostingClassifier(n_estimators=2, init=LogisticRegression(max_iter=500))
    for model, expected in {
        several: "predict 2",
        started.fit(x, y): "start from a constant",
        DecisionTreeClassifier(): "fit it first",
        DecisionTreeClassifier().fit(x, y * 0): "1 class",
    }.items():
        with pytest.raises(ValueError, match=expected):
            read_trees(model)
