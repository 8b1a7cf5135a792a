"""Shapley values by leaves: as `shap`, as the libraries, and as the definition has them."""

import warnings
from collections.abc import Callable
from itertools import combinations
from math import factorial
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier
from tree_rows import people

from r2et.core.arrays import Floats
from r2et.trees import leaves
from r2et.trees.cells import CellTrees
from r2et.trees.columns import over_cells
from r2et.trees.form import Ensemble, Tree
from r2et.trees.pipelines import Parts, taken_apart
from r2et.trees.readers import read_trees
from refusals import refusal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries that shap imports
    import shap

REFERENCE, ASKED = slice(0, 15), slice(100, 130)
NUMBERS = ["age", "income", "debt", "score", "years"]


def numbers(*, gaps: bool) -> tuple[pd.DataFrame, Any]:
    """A table of numbers, with gaps or without, and labels of three kinds."""
    draw = np.random.default_rng(5)
    # shap compares in single precision: of 64ths that is the same, thresholds between included.
    table = pd.DataFrame((64 * draw.normal(size=(500, 5))).round() / 64, columns=NUMBERS)
    told = table["age"] * table["debt"] + table["score"] + table["years"].abs()
    if gaps:
        table = table.mask(draw.random(table.shape) < 0.1)
    return table, np.digitize(told, [0.3, 1.6])


def catboost_model() -> Any:
    library = pytest.importorskip("catboost")
    return library.CatBoostClassifier(
        iterations=20, depth=4, verbose=False, thread_count=1, allow_writing_files=False
    )


MODELS: dict[str, Callable[[], Any]] = {
    "hist": lambda: HistGradientBoostingClassifier(max_iter=15),
    "boosted": lambda: GradientBoostingClassifier(n_estimators=15, max_depth=4),
    "forest": lambda: RandomForestClassifier(n_estimators=8, random_state=0),
    "extra": lambda: ExtraTreesClassifier(n_estimators=8, random_state=0),
    "tree": lambda: DecisionTreeClassifier(random_state=0),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=20, n_jobs=1),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=20, verbose=-1, n_jobs=1),
    "catboost": catboost_model,
}
GAPS = MODELS.keys() - {"boosted"}
"""Models that take missing values."""


def read(model: Any, table: pd.DataFrame) -> tuple[Ensemble, Parts, CellTrees]:
    parts = taken_apart(model, table)
    assert parts is not None
    ensemble = read_trees(parts.estimator)
    assert ensemble is not None
    return ensemble, parts, over_cells(ensemble, parts, table)


def of_shap(model: Any, rows: pd.DataFrame, reference: pd.DataFrame | None) -> Floats:
    """What `shap` tells of the last class, or of all of them if there are three: (N, m, C)."""
    form = "tree_path_dependent" if reference is None else "interventional"
    explainer = shap.TreeExplainer(model, reference, feature_perturbation=form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its answers once had another shape
        found = np.asarray(explainer.shap_values(rows, check_additivity=False))
    found = found[..., None] if found.ndim == 2 else found
    return found[..., 1:] if found.shape[2] == 2 else found


@pytest.fixture(scope="module", params=MODELS)
def fitted(request: pytest.FixtureRequest) -> tuple[str, Any, pd.DataFrame, CellTrees]:
    """A model of two classes."""
    table, y = numbers(gaps=request.param in GAPS)
    model = MODELS[request.param]().fit(table, y > 0)
    return request.param, model, table, read(model, table)[2]


Fitted = tuple[str, Any, pd.DataFrame, CellTrees]


# --- as others have them ------------------------------------------------------------------------


def test_interventional_contributions_are_those_of_shap(fitted: Fitted) -> None:
    _, model, table, trees = fitted
    rows, reference = table[ASKED], table[REFERENCE]
    expected = of_shap(model, rows, reference)
    found = trees.table.against(trees.cells(reference)).contributions(trees.cells(rows))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_path_contributions_are_those_of_shap(fitted: Fitted) -> None:
    _, model, table, trees = fitted
    found = trees.table.path_contributions(trees.cells(table[ASKED]))
    np.testing.assert_allclose(found, of_shap(model, table[ASKED], None), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["hist", "boosted", "forest", "xgboost", "lightgbm"])
def test_three_classes_are_as_shap_has_them(name: str) -> None:
    table, y = numbers(gaps=False)
    model = MODELS[name]().fit(table, y)
    trees = read(model, table)[2]
    cells, rows = trees.cells(table[ASKED]), table[ASKED]
    if name == "boosted":  # of which shap takes two classes only
        found = trees.table.against(trees.cells(table[REFERENCE])).contributions(cells[:4])
        np.testing.assert_allclose(found, by_definition(model, rows[:4], table[REFERENCE]))
        return
    found = trees.table.path_contributions(cells)
    np.testing.assert_allclose(found, of_shap(model, rows, None), rtol=0, atol=1e-5)
    found = trees.table.against(trees.cells(table[REFERENCE])).contributions(cells)
    expected = of_shap(model, rows, table[REFERENCE])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_libraries_tell_the_same_of_themselves() -> None:
    table, y = numbers(gaps=True)
    rows = table[ASKED]
    model = MODELS["xgboost"]().fit(table, y)
    theirs = model.get_booster().predict(xgboost.DMatrix(rows), pred_contribs=True)
    trees = read(model, table)[2]
    found = trees.table.path_contributions(trees.cells(rows))
    np.testing.assert_allclose(found.transpose(0, 2, 1), theirs[..., :-1], rtol=0, atol=1e-5)
    model = MODELS["lightgbm"]().fit(table, y > 0)
    trees = read(model, table)[2]
    found = trees.table.path_contributions(trees.cells(rows))
    theirs = model.predict(rows, pred_contrib=True)
    np.testing.assert_allclose(found[..., 0], theirs[:, :-1], rtol=0, atol=1e-9)


# --- as the definition has them -----------------------------------------------------------------


def shapley(worth: Callable[[frozenset[int]], Any], count: int) -> Any:
    """Shapley's definition, over all subsets: (count, ...)."""
    found = []
    for own in range(count):
        others = [each for each in range(count) if each != own]
        added = 0.0
        for size in range(count):
            share = factorial(size) * factorial(count - size - 1) / factorial(count)
            for few in combinations(others, size):
                added = added + share * (worth(frozenset({*few, own})) - worth(frozenset(few)))
        found.append(added)
    return np.array(found)


def scores(model: Any, rows: pd.DataFrame) -> Floats:
    """Scores as a model tells them: (N, C)."""
    if hasattr(model, "decision_function"):
        found = model.decision_function(rows)
    elif "LGBM" in type(model).__name__:
        found = model.predict(rows, raw_score=True)
    else:
        found = model.predict_proba(rows)[:, 1]
    return np.asarray(found).reshape(len(rows), -1)


def by_definition(model: Any, rows: pd.DataFrame, reference: pd.DataFrame) -> Floats:
    """Interventional Shapley values of columns, by what a model says of mixed rows: (N, m, C)."""

    def of(row: int) -> Floats:
        def worth(known: frozenset[int]) -> Floats:
            mixed = reference.copy()
            for place in known:
                own = rows.iloc[np.full(len(mixed), row), place]
                mixed.isetitem(place, own.array)
            return np.asarray(scores(model, mixed).mean(0))

        asked = {few: worth(few) for few in map(frozenset, subsets(rows.shape[1]))}
        return np.asarray(shapley(asked.__getitem__, rows.shape[1]))

    return np.stack([of(row) for row in range(len(rows))])


def subsets(count: int) -> list[tuple[int, ...]]:
    return [few for size in range(count + 1) for few in combinations(range(count), size)]


def by_paths(ensemble: Ensemble, sources: tuple[int, ...], row: Floats, count: int) -> Floats:
    """Path-dependent Shapley values of columns of one row: (m, C)."""

    def expected(tree: Tree, node: int, known: frozenset[int]) -> float:
        feature = int(tree.feature[node])
        if feature < 0:
            return float(tree.value[node])
        ways = (int(tree.left[node]), int(tree.right[node]))
        if sources[feature] in known:
            left = bool(tree.goes_left(node, row[[feature]])[0])
            return expected(tree, ways[not left], known)
        assert tree.cover is not None
        shares = [tree.cover[way] / tree.cover[node] for way in ways]
        return sum(s * expected(tree, way, known) for s, way in zip(shares, ways, strict=True))

    def worth(known: frozenset[int]) -> Floats:
        found = np.zeros(len(ensemble.constant))
        for tree in ensemble.trees:
            found[tree.output] += expected(tree, 0, known)
        return found

    asked = {few: worth(few) for few in map(frozenset, subsets(count))}
    return np.asarray(shapley(asked.__getitem__, count))


def piped(model: Any) -> Any:
    """A model after words are spread over columns of 0 and 1."""
    spread = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    return make_pipeline(
        make_column_transformer((spread, ["town", "band"]), remainder="passthrough"), model
    )


WORDS: dict[str, Callable[[], Any]] = {
    "spread, boosted": lambda: piped(HistGradientBoostingClassifier(max_iter=8)),
    "spread, forest": lambda: piped(RandomForestClassifier(n_estimators=5, random_state=0)),
    "own, hist": lambda: HistGradientBoostingClassifier(
        max_iter=8, categorical_features="from_dtype"
    ),
    "own, lightgbm": lambda: lightgbm.LGBMClassifier(
        n_estimators=8, verbose=-1, n_jobs=1, min_data_per_group=5, cat_smooth=1
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_are_attributes_of_their_own(name: str) -> None:
    table, y = people(300)
    model = WORDS[name]().fit(table, y)
    ensemble, parts, trees = read(model, table)
    assert trees.names == list(table.columns)
    rows, reference = table[ASKED][:3], table[:6]
    cells = trees.cells(rows)
    found = trees.table.against(trees.cells(reference)).contributions(cells)
    np.testing.assert_allclose(found, by_definition(model, rows, reference), rtol=0, atol=1e-9)
    assert np.abs(found[:, [1, 3]]).max() > 0.01  # both columns of words do say something
    shown = ensemble.numbers(parts.shown(rows))
    expected = [by_paths(ensemble, parts.sources, row, table.shape[1]) for row in shown]
    found = trees.table.path_contributions(cells)
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-9)


# --- what holds of all --------------------------------------------------------------------------


def test_contributions_add_up(fitted: Fitted) -> None:
    _, _, table, trees = fitted
    cells, reference = trees.cells(table[ASKED]), trees.cells(table[REFERENCE])
    found = trees.table.against(reference).contributions(cells).sum(1)
    expected = trees.table.scores(cells) - trees.table.scores(reference).mean(0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_a_row_alone_is_told_the_same(fitted: Fitted) -> None:
    _, _, table, trees = fitted
    cells = trees.cells(table)
    against = trees.table.against(trees.cells(table[REFERENCE]))
    for tell in (against.contributions, trees.table.path_contributions):
        together = tell(cells[:60])
        assert all((tell(cells[row : row + 1])[0] == together[row]).all() for row in (0, 17, 59))


@pytest.mark.parametrize("limits", [{"TABLED": 0}, {"LARGEST_TABLE": 500}, {"AT_ONCE": 100}])
def test_tables_and_patterns_tell_the_same(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    table, y = numbers(gaps=True)
    trees = read(MODELS["lightgbm"]().fit(table, y > 0), table)[2]
    cells, reference = trees.cells(table[ASKED]), trees.cells(table[REFERENCE])
    usual = trees.table.against(reference).contributions(cells)
    paths = trees.table.path_contributions(cells)
    for name, value in {**limits, "LEAVES": 3, "ROWS": 7}.items():
        monkeypatch.setattr(leaves, name, value)
    found = trees.table.against(reference).contributions(cells)
    np.testing.assert_allclose(found, usual, rtol=0, atol=1e-12)
    found = trees.table.path_contributions(cells)
    np.testing.assert_allclose(found, paths, rtol=0, atol=1e-12)


def test_some_leaves_add_their_part(fitted: Fitted) -> None:
    _, _, table, trees = fitted
    cells = trees.cells(table[ASKED])
    against = trees.table.against(trees.cells(table[REFERENCE]))
    chosen = [group.tree % 2 == 0 for group in trees.table.groups]
    even = against.some(chosen).contributions(cells)
    odd = against.some([~own for own in chosen]).contributions(cells)
    np.testing.assert_allclose(even + odd, against.contributions(cells), rtol=0, atol=1e-12)


def test_a_leaf_of_two_questions_by_hand() -> None:
    # Value 6 where both are yes. Against a row of two no each adds half, against (yes, no) the
    # second adds all. By paths, of which 1/2 and 1/3 go on, none known is worth 1, the first 2, the
    # second 3, both 6: ((2 - 1) + (6 - 3)) / 2 = 2 and ((3 - 1) + (6 - 2)) / 2 = 3.
    tree = Tree(
        feature=np.array([0, -1, 1, -1, -1]),
        threshold=np.array([1.0, 0.0, 1.0, 0.0, 0.0]),
        missing_left=np.zeros(5, dtype=bool),
        left=np.array([1, -1, 3, -1, -1]),
        right=np.array([2, -1, 4, -1, -1]),
        value=np.array([0.0, 0.0, 0.0, 0.0, 6.0]),
        words={},
        cover=np.array([6.0, 3.0, 3.0, 2.0, 1.0]),
    )
    shown = [np.array([[0.0], [1.0]])] * 2
    table = leaves.leaf_table([tree], shown, [0, 1], np.zeros(1))
    yes = np.array([[1, 1]])
    assert table.against(np.array([[0, 0]])).contributions(yes).ravel().tolist() == [3.0, 3.0]
    assert table.against(np.array([[1, 0]])).contributions(yes).ravel().tolist() == [0.0, 6.0]
    np.testing.assert_allclose(table.path_contributions(yes).ravel(), [2.0, 3.0])


def test_refusals() -> None:
    table, y = numbers(gaps=False)
    trees = read(MODELS["tree"]().fit(table, y > 0), table)[2]
    assert "give some" in refusal(lambda: trees.table.against(trees.cells(table[:0])))
