"""Boosted trees made stable: what comes back is an ordinary model, and its reasons break less."""

import pickle
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder

from r2et import audit
from r2et.actionable.tables import TableMoves
from r2et.bands.values import BandValues
from r2et.core.reasons import Question
from r2et.trees import descent
from r2et.trees import stabilize as module
from r2et.trees.explained import behind, explained
from r2et.trees.readers import read_trees
from r2et.trees.reading import Reading, Told
from r2et.trees.search import TreeReasons
from r2et.trees.stabilize import Grades, fitted_like, stabilize

WIDTH = {"age": 2.0, "debt": 0.1, "rooms": 0.0}


def _people(rows: int = 600) -> tuple[pd.DataFrame, Any]:
    """Half are exactly 40 years old, where a steep score puts many thresholds."""
    draw = np.random.default_rng(5)
    age = np.where(draw.random(rows) < 0.5, 40, draw.integers(20, 65, rows)).astype(float)
    table = pd.DataFrame(
        {
            "town": pd.Categorical(draw.choice(["u", "v", "w"], rows)),
            "age": age,
            "debt": draw.normal(0, 1, rows).round(3),
            "rooms": draw.integers(1, 6, rows),
            "job": pd.Categorical(draw.choice(["a", "b", "c", "d"], rows)),
        }
    )
    score = 0.05 * (age - 40) - table["debt"] + 0.3 * (table["rooms"] - 3)
    score += 1.0 * table["town"].eq("u") - 1.0 * (table["job"].eq("b") & (table["debt"] > 0))
    return table, (score + draw.logistic(0, 0.7, rows) > 0).astype(int).to_numpy()


MODELS: dict[str, Any] = {
    "hgb": HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0),
    "xgboost": xgboost.XGBClassifier(
        n_estimators=60, max_depth=3, early_stopping_rounds=5, enable_categorical=True, n_jobs=1
    ),
    "lightgbm": lightgbm.LGBMClassifier(
        n_estimators=30, num_leaves=6, verbose=-1, n_jobs=1, random_state=0
    ),
}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"PENALTIES": (0.5, 0.05), "FEW": 100, "MOVES": 10, "PEOPLE": 100}
    for name, value in (few | {"SHARING": 100, "SEARCHED": 60, "SEARCH_MOVES": 6}).items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(descent, "LOOKS", 20)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("grade", ["bands", "additive"])
def test_a_refit_behind_bands_breaks_less_and_is_the_same_estimator(name: str, grade: Any) -> None:
    x, y = _people()
    model = fitted_like(MODELS[name], x, y)
    found = stabilize(model, x, y, width=WIDTH, k=2, grade=grade, auc_loss=0.2, overlap_gain=0.5)
    assert found.held
    assert found.after.broken[0] < 0.7 * found.before.broken[0]
    assert isinstance(found.model, Pipeline)
    inner = found.model[-1]
    assert type(inner) is type(model)
    kept = {
        key: value
        for key, value in model.get_params().items()
        if not key.startswith("interaction") and value == value
    }
    assert kept == {key: inner.get_params()[key] for key in kept}
    # Nothing that lies in one band is told apart.
    low, high = x.assign(age=41.0), x.assign(age=np.nextafter(41.0, 50))
    assert (found.model.predict_proba(low) == found.model.predict_proba(high)).all()
    assert set(found.edges) == {"age", "debt"}
    assert "of all decisions" in str(found)


@pytest.mark.parametrize("name", MODELS)
def test_numbers_that_move_stay_apart_from_all_else(name: str) -> None:
    x, y = _people()
    free = read_trees(fitted_like(MODELS[name], x, y))
    apart = read_trees(fitted_like(MODELS[name], x, y, ["age", "debt"]))
    assert free is not None
    assert apart is not None

    def mixed(trees: Any) -> set[frozenset[str]]:
        names = [column.name for column in trees.columns]
        asked = [{names[at] for at in tree.feature if at >= 0} for tree in trees.trees]
        return {frozenset(each) for each in asked if each & {"age", "debt"} and len(each) > 1}

    assert mixed(free)
    assert not mixed(apart)
    asked = {apart.columns[at].name for tree in apart.trees for at in tree.feature if at >= 0}
    assert asked == set(x.columns)


def test_a_reading_predicts_as_before_and_tells_the_reasons_of_the_band() -> None:
    x, y = _people()
    model = MODELS["lightgbm"].__class__(**MODELS["lightgbm"].get_params()).fit(x, y)
    found = stabilize(model, x, y, width=WIDTH, k=2, grade="reading", overlap_gain=0.5)
    reading = found.model
    assert found.after.auc == found.before.auc
    assert found.after.broken[0] < found.before.broken[0]
    assert (reading.predict_proba(x) == model.predict_proba(x)).all()
    middle, usual = (reading.bands.transform(rows) for rows in (x, reading.reference))
    own = Told(trees=explained(model, x)).contributions(middle, [usual])[0]
    np.testing.assert_allclose(reading.contributions(x), own)
    # Contributions add up to the score of the band, which is the person's and the difference.
    total = reading.contributions(x).sum(1) + reading.scores(usual).mean()
    np.testing.assert_allclose(total, reading.scores(x) + reading.difference(x))
    assert found.after.own is not None
    assert 0.3 < found.after.own < 1
    assert "log-odds on average" in str(found)


@pytest.mark.slow
def test_verdicts_on_a_reading_are_those_of_every_move() -> None:
    x, y = _people()
    x.loc[5, "age"] = np.nan
    model = clone(MODELS["hgb"]).fit(x, y)
    bands = BandValues({"age": [30.0, 38.5, 45.5], "debt": [-0.5, 0.4]}).fit(x)
    told = Told(trees=explained(model, x), reading=bands)
    reading = Reading(model=model, bands=bands, reference=x[:15], told=told)
    trees = reading.cells
    own = trees.scores(trees.cells(x))[:, 0]
    np.testing.assert_allclose(own, model.decision_function(x), atol=1e-9)
    against = trees.table.against(trees.cells(reading.reference))
    asked = TreeReasons(trees=trees, against=against)
    phi = asked.contributions(trees.cells(x))[:, :, 1]
    np.testing.assert_allclose(phi, reading.contributions(x), atol=1e-9)
    people, width = x[:25], {"age": 5.0, "debt": 0.1}
    question = Question(k=2)

    def top(rows: pd.DataFrame, second: bool) -> list[set[int]]:
        shown = (-1.0 if second else 1.0) * reading.contributions(rows)
        return [set(row) for row in np.argsort(-shown, 1, kind="stable")[:, :2].tolist()]

    found = []
    for enumerated in (10_000, 0):  # all cells one by one, and by bounds and search
        moves = TableMoves(width=width, whole={"age"})
        found.append(asked.verdicts(people, moves, question, enumerated=enumerated))
    for row, told_each in enumerate(zip(*found, strict=True)):
        person = people[row : row + 1]
        second = bool(model.decision_function(person)[0] >= 0)
        steps = [0.0] if person["age"].isna().item() else np.arange(-5.0, 6.0)
        every = [
            person.assign(age=person["age"] + a, debt=person["debt"] + b)
            for a in steps
            for b in np.linspace(-0.1, 0.1, 41)
        ]
        rows = pd.concat(every, ignore_index=True)
        stays = (model.decision_function(rows) >= 0) == second
        expected = top(person, second)[0]
        broken = any(each != expected for each in top(rows[stays], second))
        for each in told_each:
            assert each.verdict != "undetermined"
            assert each.verdict == "broken" or not broken
            if each.breaking is not None:
                moved = person.assign(**each.breaking.values)
                assert (model.decision_function(moved)[0] >= 0) == second
                assert top(moved, second)[0] != expected
        assert told_each[0].verdict == told_each[1].verdict
    assert {each.verdict for each in found[0]} == {"certified", "broken"}


def test_a_reading_is_audited_and_says_how_far_it_is_from_people() -> None:
    x, y = _people()
    model = clone(MODELS["hgb"]).fit(x, y)
    reading = stabilize(model, x, y, width=WIDTH, k=2, grade="reading", overlap_gain=0.5).model
    beside = reading.beside(x[:50], k=2)
    np.testing.assert_allclose(beside["band's score"] - beside["score"], reading.difference(x[:50]))
    tolerance = {"age": 2.0, "debt": 0.1}
    plain = audit(model, x[:50], k=2, tolerance=tolerance, reference=reading.reference)
    found = audit(reading, x[:50], k=2, tolerance=tolerance)
    assert found.counts["undetermined"] == 0
    assert found.counts["broken"] < plain.counts["broken"]
    assert found.page is not None
    page = found.page.read_text(encoding="utf-8")
    assert "median person of each band" in page
    told = [tuple(reason.attribute for reason in each.reasons) for each in found.decisions]
    assert told == beside["band's reasons"].tolist()
    # A model that was fitted again is not the one that bands were made for.
    other = replace(reading, model=clone(model).fit(x, 1 - y))
    with pytest.raises(ValueError, match="make the reading again"):
        audit(other, x[:50], k=2, tolerance=tolerance)


@pytest.mark.slow
def test_what_trees_say_behind_bands_is_what_the_pipeline_says() -> None:
    x, y = _people()
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["town", "job"]), remainder="passthrough"
    )
    model = make_pipeline(encoder, clone(MODELS["hgb"])).fit(x, y)
    found = stabilize(model, x, y, width=WIDTH, k=2, grade="additive", auc_loss=0.2)
    told, chances = behind(found.model, x).score(x), found.model.predict_proba(x)[:, 1]
    np.testing.assert_allclose(1 / (1 + np.exp(-told)), chances, atol=1e-9)
    # The whole pipeline is read by its columns as well, with edges where the bands begin.
    whole = explained(found.model, x)
    assert whole.names == list(x.columns)
    edges = {each.name: getattr(each, "edges", ()) for each in whole.attributes}
    assert set(edges["age"]) <= set(found.edges["age"])
    again = pickle.loads(pickle.dumps(found.model))
    assert (again.predict_proba(x)[:, 1] == chances).all()


def test_a_fit_that_was_stopped_by_a_callback_is_stopped_again() -> None:
    x, y = _people()
    model = lightgbm.LGBMClassifier(n_estimators=400, num_leaves=6, verbose=-1, n_jobs=1)
    stop = lightgbm.early_stopping(5, verbose=False)
    model.fit(x[:500], y[:500], eval_X=x[500:], eval_y=y[500:], callbacks=[stop])
    assert 0 < fitted_like(model, x, y).best_iteration_ < 400
    assert not fitted_like(clone(model).set_params(n_estimators=10).fit(x, y), x, y).best_iteration_


def test_band_values_are_those_of_median_people_and_leave_all_else() -> None:
    x, _ = _people()
    x.loc[3, "age"] = np.nan
    bands = BandValues({"age": [30.0, 41.0, 90.0]}).fit(x)
    shown = bands.transform(x)
    assert bands.values_["age"][1] == 40
    assert set(shown["age"].dropna()) <= set(x["age"].dropna())
    assert np.isnan(shown["age"][3])
    pd.testing.assert_frame_equal(shown.drop(columns="age"), x.drop(columns="age"))
    assert bands.transform(x.assign(age=90.0))["age"].eq(90.0).all()  # nobody was there
    plain = BandValues({"x0": [0.5]}).fit(np.array([[0.0], [1.0], [2.0]]))
    assert plain.transform(np.array([[0.4], [0.5]])).ravel().tolist() == [0.0, 1.0]
    for edges, said in (({"agee": [1.0]}, "age"), ({"age": [2.0, 1.0]}, "rising")):
        with pytest.raises(ValueError, match=said):
            BandValues(edges).fit(x)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"grade": "better"}, "one of bands, additive, reading"),
        ({"side": "left"}, "'for', 'against' or 'both'"),
        ({"k": 5}, "less than the 5 attributes"),
        ({"k": 0}, "1 or more"),
        ({"width": {"agee": 1.0}}, "age"),
        ({"width": {"town": 1.0}}, "no number"),
        ({"width": -1.0}, ">= 0"),
        ({"width": 0.0}, "nothing to be stable against"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    x, y = _people(300)
    model = clone(MODELS["hgb"]).fit(x, y)
    with pytest.raises(ValueError, match=said):
        stabilize(model, x, y, **settings)


def test_models_and_rows_that_nothing_is_made_of_are_refused() -> None:
    x, y = _people(300)
    model = clone(MODELS["hgb"]).fit(x, y)
    numbers = x[["age", "debt", "rooms"]]
    for other, said in (
        (LogisticRegression().fit(numbers, y), "trees that can be read"),
        (RandomForestClassifier(3, random_state=0).fit(numbers, y), "probability"),
    ):
        with pytest.raises(ValueError, match=said):
            stabilize(other, numbers, y, k=2)
    with pytest.raises(ValueError, match="DataFrame"):
        stabilize(model, x.to_numpy(), y)
    with pytest.raises(ValueError, match="two classes"):
        stabilize(model, x, np.arange(300) % 3)
    with pytest.raises(ValueError, match="each of 300 rows"):
        stabilize(model, x, y[:10])
    with pytest.raises(ValueError, match="needs 250"):
        stabilize(model, x[:100], y[:100])


@pytest.mark.slow
def test_the_best_grade_is_the_one_that_held_rows_favour() -> None:
    x, y = _people()
    model = MODELS["lightgbm"].__class__(**MODELS["lightgbm"].get_params()).fit(x, y)
    limits: Any = {"width": WIDTH, "k": 2, "auc_loss": 0.02, "overlap_gain": 0.2}
    grades = Grades.of(model, x, y, **limits)
    several = {each: grades.made(each) for each in module.GRADES}
    order = sorted(several.values(), key=lambda each: (not each.held, each.chosen.worth))
    assert grades.best == order[0].grade
    # What one call finds does not depend on which grades were tried before it.
    alone = stabilize(model, x, y, grade="additive", **limits)
    assert (alone.edges, alone.tried) == (several["additive"].edges, several["additive"].tried)


def test_the_best_grade_of_trees_that_take_no_constraints() -> None:
    x, y = _people(400)
    numbers = x[["age", "debt", "rooms"]]
    model = GradientBoostingClassifier(n_estimators=20, random_state=0).fit(numbers, y)
    width = {"age": 2.0, "debt": 0.1, "rooms": 0.0}
    found = stabilize(model, numbers, y, width=width, k=1, grade="best", overlap_gain=0.5)
    assert found.grade in ("bands", "reading")
    with pytest.raises(ValueError, match="needs constraints on interactions"):
        stabilize(model, numbers, y, width=width, k=1, grade="additive")


def test_a_descent_is_among_what_is_tried_for_a_reading() -> None:
    x, y = _people()
    model = MODELS["hgb"].__class__(**MODELS["hgb"].get_params()).fit(x, y)
    found = stabilize(model, x, y, width=WIDTH, k=2, grade="reading", overlap_gain=0.5)
    assert [each.penalty for each in found.tried].count(None) == 1
    assert all(each.auc_margin == 0 for each in found.tried)  # it predicts as before
    assert sum(each.chosen for each in found.tried) == 1
