"""Ensembles over cells: the columns of the user's table, and the scores of the model itself."""

from functools import cache
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from tree_rows import people

from r2et.bands.attribute import NumberBands, WordBands
from r2et.data.cells import as_word
from r2et.trees.cells import CellTrees
from r2et.trees.columns import over_cells
from r2et.trees.pipelines import taken_apart
from r2et.trees.readers import read_trees
from refusals import refusal

NUMBERS, WORDS = ["age", "income", "debt"], ["town", "band"]


def hist() -> Any:
    return HistGradientBoostingClassifier(max_iter=10)


MODELS = {
    "hist": HistGradientBoostingClassifier(max_iter=10, categorical_features="from_dtype"),
    "lightgbm": lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1),
    "xgboost": xgboost.XGBClassifier(n_estimators=10, n_jobs=1, enable_categorical=True),
    "scaled": make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS),
            (OneHotEncoder(handle_unknown="ignore"), WORDS),
            sparse_threshold=0,
        ),
        RandomForestClassifier(n_estimators=5, random_state=0),
    ),
    "ordered": make_pipeline(
        make_column_transformer(
            (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), WORDS),
            remainder="passthrough",
        ),
        hist(),
    ),
}


def over(model: Any, table: pd.DataFrame) -> CellTrees:
    parts = taken_apart(model, table)
    assert parts is not None
    ensemble = read_trees(parts.estimator)
    assert ensemble is not None
    return over_cells(ensemble, parts, table)


@cache
def fitted(name: str) -> tuple[Any, CellTrees]:
    """A model of 300 rows, and its trees over cells of which 200 rows are known."""
    table, y = people(400)
    model = MODELS[name].fit(table[:300], y[:300])
    return model, over(model, table[:200])


def chances(trees: CellTrees, rows: pd.DataFrame) -> Any:
    """The probability of the second class by cells."""
    scores = trees.table.scores(trees.cells(rows))[:, 0]
    return scores if trees.scale == "probability" else 1 / (1 + np.exp(-scores))


@pytest.mark.parametrize("name", MODELS)
def test_scores_over_cells_are_those_of_the_model(name: str) -> None:
    table, (model, trees) = people(400)[0], fitted(name)
    assert trees.names == list(table.columns)
    kinds = [NumberBands if name in NUMBERS else WordBands for name in table.columns]
    assert [type(each) for each in trees.attributes] == kinds
    # The last rows were shown neither to the model nor to the cells.
    expected = model.predict_proba(table)[:, 1]
    np.testing.assert_allclose(chances(trees, table), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_cell_has_one_score(name: str) -> None:
    table, (model, trees) = people(400)[0], fitted(name)
    # Numbers become any other number of their interval, its ends included.
    draw, moved = np.random.default_rng(0), table.copy()
    cells = trees.cells(table)
    for place, each in enumerate(trees.attributes):
        if isinstance(each, NumberBands):
            low, high = np.array([*each.ranges, (np.nan, np.nan)])[cells[:, place]].T
            last = np.nextafter(high, -np.inf).clip(-1e30, 1e30)
            first = low.clip(-1e30, 1e30)
            moved[each.name] = np.where(draw.random(len(table)) < 0.5, first, last)
    assert (trees.cells(moved) == cells).all()
    assert (moved[NUMBERS] != table[NUMBERS]).mean().min() > 0.9
    np.testing.assert_allclose(
        model.predict_proba(moved), model.predict_proba(table), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["hist", "lightgbm", "scaled", "ordered"])
def test_words_that_are_missing_or_new(name: str) -> None:
    table, (model, trees) = people(400)[0], fitted(name)
    rows = table.iloc[:40].astype({"town": object})
    rows["town"] = [None, "nowhere"] * 20
    if name in ("hist", "lightgbm"):
        given = rows.assign(town=pd.Categorical(rows["town"], ["nowhere", *"uvwxyz"]))
    else:
        given = rows
    expected = model.predict_proba(given)[:, 1]
    np.testing.assert_allclose(chances(trees, rows), expected, rtol=0, atol=1e-9)


def test_words_are_called_as_audits_call_them() -> None:
    assert [as_word(each) for each in ("a", 10, 10.0, None, np.nan, True)] == [
        "a",
        "10",
        "10",
        "missing",
        "missing",
        "True",
    ]


def test_below_the_least_number_of_a_logarithm_is_another_cell() -> None:
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"a": draw.normal(1, 1, 400), "b": draw.normal(size=400)})
    y = (table["a"] > 1.5) | (table["a"] < 0)
    with np.errstate(invalid="ignore"):
        model = make_pipeline(
            make_column_transformer((FunctionTransformer(np.log), ["a"]), remainder="passthrough"),
            hist(),
        ).fit(table, y)
        trees = over(model, table)
        expected = model.predict_proba(table)[:, 1]
    assert expected[table["a"] < 0].min() > expected[(table["a"] > 0) & (table["a"] < 1)].max()
    np.testing.assert_allclose(chances(trees, table), expected, rtol=0, atol=1e-9)


def test_numbers_in_single_precision() -> None:
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(300, 3)).astype(np.float32), columns=[*"abc"])
    model = hist().fit(table, table["a"] + table["b"] > 0)
    trees = over(model, table)
    expected = model.predict_proba(table)[:, 1]
    np.testing.assert_allclose(chances(trees, table), expected, rtol=0, atol=1e-9)


def test_a_number_that_features_do_not_follow() -> None:
    table, y = people(300)
    table = table[NUMBERS].fillna(50.0)
    cut = KBinsDiscretizer(4, encode="onehot-dense", quantile_method="averaged_inverted_cdf")
    model = make_pipeline(make_column_transformer((cut, ["age"]), remainder="passthrough"), hist())
    trees = over(model.fit(table, y), table)
    age = trees.attributes[0]
    assert isinstance(age, WordBands)
    assert set(age.labels) == {*table["age"].astype(int).astype(str), "missing"}
    expected = model.predict_proba(table)[:, 1]
    np.testing.assert_allclose(chances(trees, table), expected, rtol=0, atol=1e-9)
    # What the pipeline makes of another number is not known.
    assert "'age' has '20.5'" in refusal(lambda: trees.cells(table.assign(age=20.5)))
