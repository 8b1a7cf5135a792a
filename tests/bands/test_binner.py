"""The transformer: promises of scikit-learn, bands in words, exports, and what it is for."""

import json
import sqlite3
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from r2et import StableBinner
from r2et.bands.attribute import NumberBands, WordBands
from refusals import refusal


def people(rows: int = 3000, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    """Half of all people work 40 hours; the score steps where most of them stand."""
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 80, rows)
    hours = np.where(draw.random(rows) < 0.5, 40, draw.integers(5, 80, rows))
    income = np.round(draw.lognormal(7, 1, rows), 2)
    job = draw.choice(["clerk", "cook", "smith"], rows)
    score = 0.08 * (age - 45) + 1.5 * (hours >= 40) - 1 + (job == "smith") + 0.0002 * income
    y = (draw.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
    table = pd.DataFrame({"age": age, "hours": hours, "income": income, "job": job})
    return table, np.where(y, "yes", "no")


@pytest.fixture(scope="module")
def fitted() -> StableBinner:
    X, y = people()
    return StableBinner({"age": (1, 2), "hours": 2}, units={"hours": "hours"}).fit(X, y)


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_finds_nothing_to_complain_about() -> None:
    found = check_estimator(StableBinner(), on_fail=None)
    assert [each["check_name"] for each in found if each["status"] == "failed"] == []


def test_bands_are_told_in_words(fitted: StableBinner) -> None:
    assert fitted.bands_["job"] == ["clerk", "cook", "smith"]
    for name in ("age", "hours", "income"):
        words, edges = fitted.bands_[name], fitted.edges_[name]
        assert len(words) == len(edges) + 1
    first = fitted.bands_["hours"][0]
    assert first.startswith("up to ")
    assert first.endswith(" hours")
    names = fitted.get_feature_names_out()
    assert f"hours: {first}" in names
    assert len(names) == sum(len(each) for each in fitted.bands_.values())


def test_edges_keep_off_the_place_where_half_of_all_people_stand() -> None:
    X, y = people()
    kept = StableBinner({"hours": 2}, penalty=3.0, least_edges=1).fit(X, y)
    assert all(abs(edge - 40) > 2 for edge in kept.edges_["hours"])
    near = StableBinner({"hours": 2}, penalty=0.0).fit(X, y)
    assert any(abs(edge - 40) < 2 for edge in near.edges_["hours"])


def test_each_row_has_one_band_of_each_attribute(fitted: StableBinner) -> None:
    X, _ = people(200, seed=1)
    rows = fitted.transform(X)
    names = [str(name) for name in fitted.get_feature_names_out()]
    for attribute in X.columns:
        own = [place for place, name in enumerate(names) if name.startswith(f"{attribute}: ")]
        assert (rows[:, own].sum(1) == 1).all()
    ages = np.searchsorted(fitted.edges_["age"], X["age"], side="right")
    assert (rows[:, : len(fitted.bands_["age"])].argmax(1) == ages).all()


def test_a_pipeline_takes_any_classifier() -> None:
    X, y = people()
    new, truth = people(2000, seed=5)
    for model in (LogisticRegression(), RandomForestClassifier(20, random_state=0)):
        pipe = make_pipeline(StableBinner({"age": 2, "hours": 2}, penalty=0.03), model).fit(X, y)
        assert roc_auc_score(truth == "yes", pipe.predict_proba(new)[:, 1]) > 0.75
    plain = HistGradientBoostingClassifier(random_state=0)
    plain.fit(X.drop(columns="job"), y)
    pipe = make_pipeline(
        StableBinner({"age": 2, "hours": 2}, penalty=0.03), LogisticRegression()
    ).fit(X, y)
    lost = roc_auc_score(truth == "yes", plain.predict_proba(new.drop(columns="job"))[:, 1])
    assert roc_auc_score(truth == "yes", pipe.predict_proba(new)[:, 1]) > lost - 0.01


def test_the_order_of_rows_changes_nothing(fitted: StableBinner) -> None:
    X, y = people()
    order = np.random.default_rng(3).permutation(len(X))
    again = StableBinner({"age": (1, 2), "hours": 2}).fit(X.iloc[order], y[order])
    assert again.edges_ == fitted.edges_
    assert again.penalty_ == fitted.penalty_


def test_the_penalty_is_chosen_within_its_limits(fitted: StableBinner) -> None:
    trials = fitted.search_
    assert [each.chosen for each in trials].count(True) == 1
    assert [each.edges for each in trials] == sorted(each.edges for each in trials)
    chosen = next(each for each in trials if each.chosen)
    assert fitted.penalty_ == chosen.penalty
    X, y = people()
    loose = StableBinner({"age": (1, 2), "hours": 2}, auc_loss=1.0, overlap_gain=1.0).fit(X, y)
    assert loose.penalty_ == max(each.penalty for each in trials)
    few = StableBinner().fit(X.iloc[:100], y[:100])
    assert few.search_ == []
    assert len(StableBinner().fit(X.iloc[:400], y[:400]).search_) == len(trials)


def test_given_edges_are_always_respected() -> None:
    X, y = people()
    found = StableBinner(edges={"age": [25, 65]}, penalty=1e9).fit(X, y)
    assert found.edges_["age"] == [25.0, 65.0]
    assert found.bands_["age"] == ["up to 24", "25 to 64", "65 and more"]
    assert found.bands_["hours"] == ["any value"]
    assert StableBinner(edges={"age": [25, 65]}, penalty=0.0).fit(X, y).edges_["age"] != [25, 65]


def test_missing_and_special_values_are_bands_of_their_own() -> None:
    X, y = people()
    X = X.astype({"age": float, "hours": float})
    X.loc[:50, "age"] = np.nan
    X.loc[40:90, "hours"] = 999
    found = StableBinner(special={"hours": [999]}, encode="ordinal").fit(X, y)
    assert found.bands_["age"][-1] == "missing"
    assert found.bands_["hours"][-1] == "999"
    assert max(found.edges_["hours"], default=0) < 100
    codes = found.transform(X)
    assert (codes[:51, 0] == len(found.bands_["age"]) - 1).all()
    assert (codes[40:91, 1] == len(found.bands_["hours"]) - 1).all()
    X.loc[0, "income"] = np.nan
    assert "had none when bands were made" in refusal(lambda: found.transform(X))
    X.loc[0, "income"], X.loc[3, "job"] = 1.0, "judge"
    assert "'judge' in row 3" in refusal(lambda: found.transform(X))


def test_a_column_of_nothing_is_one_band() -> None:
    X, y = people(300)
    found = StableBinner().fit(X.assign(nothing=np.nan, same=3.0), y)
    assert found.bands_["nothing"] == ["any value", "missing"]
    assert found.bands_["same"] == ["any value"]


def test_rare_words_are_told_together() -> None:
    X, y = people()
    X["town"] = [f"town {number % 300}" for number in range(len(X))]
    found = StableBinner().fit(X, y)
    assert len(found.bands_["town"]) == 100
    assert found.bands_["town"][-1] == "other"
    X["town"] = "Atlantis"
    assert found.transform(X)[:, -1].sum() == len(X)


def test_what_a_number_adds_may_be_asked_to_go_one_way() -> None:
    X, y = people()
    found = StableBinner({"age": 1}, monotone={"age": 1}, penalty=0.001).fit(X, y)
    curve = found.curves_["age"]
    band = np.searchsorted(found.edges_["age"], curve.values, side="right")
    means = [
        np.average(curve.score[band == each, 0], weights=curve.people[band == each])
        for each in range(band.max() + 1)
    ]
    assert len(means) > 3
    assert (np.diff(means) >= 0).all()


def test_several_classes_and_one_class() -> None:
    X, _ = people()
    three = np.digitize(X["age"] + np.random.default_rng(0).normal(0, 8, len(X)), [35, 60])
    found = StableBinner({"age": 2}).fit(X, three)
    assert len(found.edges_["age"]) >= 2
    assert len(found.curves_["age"].score[0]) == 3
    assert StableBinner().fit(X, np.zeros(len(X))).edges_["age"] == []


def test_a_teacher_may_be_any_classifier() -> None:
    X, y = people()
    forest = RandomForestClassifier(30, min_samples_leaf=20, random_state=0)
    found = StableBinner({"age": 2, "hours": 2}, teacher=forest, penalty=0.03).fit(X.fillna(0), y)
    assert len(found.edges_["age"]) >= 2


# --- output ---


def test_output_is_a_frame_where_asked_for_and_sparse_where_wide() -> None:
    X, y = people(800)
    framed = (
        StableBinner(penalty=0.1).set_output(transform="pandas").fit(X, y).transform(X.iloc[5:9])
    )
    assert list(framed.index) == [5, 6, 7, 8]
    X["town"] = [f"town {number % 150}" for number in range(len(X))]
    wide = StableBinner(penalty=0.1).fit(X, y)
    rows = wide.transform(X)
    assert sparse.issparse(rows)
    dense = StableBinner(penalty=0.1, sparse_output=False).fit(X, y).transform(X)
    assert (rows.toarray() == dense).all()
    assert not sparse.issparse(
        StableBinner(penalty=0.1).set_output(transform="pandas").fit(X, y).transform(X)
    )


def test_sql_says_the_same(fitted: StableBinner) -> None:
    X, y = people()
    X = X.astype({"age": float, "hours": float})
    X.loc[:50, "age"] = np.nan
    X.loc[40:90, "hours"] = 999
    X.loc[7, "job"] = "O'Hara"
    X.loc[9, "job"] = None
    X["insured"] = X["age"] > 40  # a truth value, which data bases write as 0 or 1
    found = StableBinner(special={"hours": [999]}, encode="ordinal").fit(X, y)
    with sqlite3.connect(":memory:") as base:
        X.to_sql("people", base, index=False)
        told = base.execute(found.to_sql("people")).fetchall()
    assert (np.array(told, dtype=float) == found.transform(X)).all()


def test_bands_leave_as_a_table_and_as_json(fitted: StableBinner) -> None:
    table = fitted.to_frame()
    assert table.groupby("attribute")["share"].sum().round(9).tolist() == [1.0] * 4
    assert table.loc[table.attribute == "age", "band"].tolist() == fitted.bands_["age"]
    told = {each["attribute"]: each for each in json.loads(fitted.to_json())}
    assert told["age"]["edges"] == fitted.edges_["age"]
    assert told["job"]["bands"] == ["clerk", "cook", "smith"]


def test_drift_is_the_population_stability_index(fitted: StableBinner) -> None:
    X, _ = people(4000, seed=9)
    same = fitted.drift(X)
    assert (same.to_numpy() < 0.02).all()
    older = X.assign(age=X["age"] + 15)
    by_year = fitted.drift(pd.concat([X, older]), [2024] * 4000 + [2025] * 4000)
    assert by_year.index.tolist() == [2024, 2025]
    assert by_year.loc[2025, "age"] > 0.25
    assert by_year.loc[2025, "hours"] < 0.02
    # By hand: sum of (now - then) ln(now / then).
    codes = np.searchsorted(fitted.edges_["age"], older["age"], side="right")
    now = np.maximum(np.bincount(codes, minlength=len(fitted.bands_["age"])), 0.5) / 4000
    then = fitted.shares_["age"]
    expected = float(((now - then) * np.log(now / then)).sum())
    assert by_year.loc[2025, "age"] == pytest.approx(expected)


def test_a_picture_shows_people_curve_and_edges(fitted: StableBinner) -> None:
    ax = fitted.plot_bands("hours")
    upright = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert [float(line.get_xdata()[0]) for line in upright] == fitted.edges_["hours"]
    assert "hours" in ax.get_xlabel()
    import matplotlib.pyplot as plt

    plt.close(ax.figure)
    assert "no bands" in refusal(lambda: fitted.plot_bands("height"))


# --- words ---


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        (NumberBands(name="a"), ["any value"]),
        (
            NumberBands(name="a", edges=(17.5, 18.5, 65.0), whole=True, unit="years"),
            ["up to 17 years", "18 years", "19 to 64 years", "65 years and more"],
        ),
        (
            NumberBands(name="a", edges=(0.5, 1200.0), unit="euros"),
            ["below 0.5 euros", "0.5 to below 1,200 euros", "1,200 euros and more"],
        ),
    ],
)
def test_bands_of_numbers_in_words(bands: NumberBands, words: list[str]) -> None:
    assert bands.words == words
    assert bands.count == len(words)


def test_a_value_on_an_edge_belongs_above_it() -> None:
    bands = NumberBands(name="a", edges=(10.0, 20.0))
    assert bands.codes(np.array([9.99, 10.0, 19.99, 20.0])).tolist() == [0, 1, 1, 2]
    assert WordBands(name="w", labels=("a", "b"), other=True).words == ["a", "b", "other"]


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"width": {"agee": 1}}, "'age'"),
        ({"width": {"job": 1}}, "holds no numbers"),
        ({"width": {"age": -1}}, "numbers >= 0"),
        ({"width": {"age": "wide"}}, "finite numbers"),
        ({"width": "wide"}, "finite numbers"),
        ({"edges": {"age": [float("nan")]}}, "edges of 'age' must be finite"),
        ({"special": {"age": ["none"]}}, "special of 'age' must be finite"),
        ({"edges": {"hour": [3]}}, "'hours'"),
        ({"monotone": {"age": 3}}, "1, -1 or 0"),
        ({"encode": "dummy"}, "'onehot' or 'ordinal'"),
        ({"penalty": -1.0}, ">= 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    X, y = people(100)
    assert says in refusal(lambda: StableBinner(**settings).fit(X, y))


def test_bad_data_are_refused() -> None:
    X, y = people(100)
    assert "y" in refusal(lambda: StableBinner().fit(X, None))
    assert "each of 100 rows" in refusal(lambda: StableBinner().fit(X, y[:50]))
    X["income"] = X["income"].replace(X["income"][3], np.inf)
    assert "finite" in refusal(lambda: StableBinner().fit(X, y))
