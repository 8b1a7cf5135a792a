"""The classifier says what it promises: reasons that add up, exact verdicts, accuracy kept."""

import copy
import json
import sqlite3
import warnings
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_people import WIDTH, people
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import check_estimator

from r2et import StableBinner, StableClassifier
from r2et.bands import classifier
from r2et.bands.boosting import boosted
from r2et.bands.classifier import LostAccuracy
from r2et.bands.contributions import contributions
from r2et.bands.descent import Wish
from r2et.bands.scores import StepScore
from r2et.bands.steps import Rows, separate_trees, steps_of, teacher_of
from r2et.bands.verdicts import cell_verdicts
from refusals import refusal


@pytest.fixture(scope="module")
def together() -> StableClassifier:
    """One in which what cannot move speaks together."""
    found = StableClassifier(WIDTH, units={"age": "years"}).fit(*people())
    assert found.score_.rest is not None
    assert found.score_.rest.leaves is not None
    assert found.score_.trees is None
    return found


@pytest.fixture(scope="module")
def blended() -> StableClassifier:
    """One in which trees look at everything, whether they pay or not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(classifier, "GAIN", -1.0)
        found = StableClassifier(WIDTH).fit(*people())
    assert found.score_.trees is not None
    return found


@pytest.fixture(scope="module")
def card() -> StableClassifier:
    return StableClassifier(WIDTH, interactions=False).fit(*people())


pytestmark = pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
BOTH = ["together", "card", pytest.param("blended", marks=pytest.mark.slow)]


@pytest.fixture
def model(request: Any) -> StableClassifier:
    found: StableClassifier = request.getfixturevalue(request.param)
    return found


def rows(count: int = 60) -> pd.DataFrame:
    return people(count, seed=9)[0]


def slow_contributions(model: StableClassifier, X: pd.DataFrame) -> np.ndarray:
    """Shapley values of the log-odds of the second class, by all mixtures with the reference."""

    def score(cells: np.ndarray) -> np.ndarray:
        return model.score_(cells)

    against = model.binner_.codes(model.reference_)
    return contributions(score, model.binner_.codes(X), against)


@pytest.mark.parametrize("model", BOTH, indirect=True)
def test_contributions_are_shapley_values_and_add_up(model: StableClassifier) -> None:
    X = rows(25)
    signs = np.where(model.predict(X) == 1, 1.0, -1.0)
    phi = model.contributions(X)
    np.testing.assert_allclose(phi, signs[:, None] * slow_contributions(model, X), atol=1e-9)
    score, usual = model.decision_function(X), model.decision_function(model.reference_)
    np.testing.assert_allclose(phi.sum(1), signs * (score - usual.mean()), atol=1e-9)


@pytest.mark.parametrize("model", BOTH, indirect=True)
@pytest.mark.parametrize("width", [1, 3])
def test_verdicts_are_those_of_every_move(model: StableClassifier, width: int) -> None:
    X, k = rows(), model.k_
    found = model.certify(X, {"age": width, "hours": width})
    first, decided = model.contributions(X), model.predict(X)

    def top(phi: np.ndarray) -> np.ndarray:
        return np.sort(np.argsort(phi, 1, kind="stable")[:, :k], 1)

    broken, least = np.zeros(len(X), dtype=bool), np.full(len(X), k)
    for age, hours in product(range(-width, width + 1), repeat=2):
        moved = X.assign(age=X.age + age, hours=X.hours + hours)
        stays = model.predict(moved) == decided
        now = top(model.contributions(moved))
        same = [len(set(a) & set(b)) for a, b in zip(now, top(first), strict=True)]
        least = np.where(stays, np.minimum(least, same), least)
        broken |= stays & (now != top(first)).any(1)
    assert [each.verdict == "broken" for each in found] == broken.tolist()
    assert [round(each.kept * k) for each in found] == least.tolist()
    assert broken.any() or width == 1  # by so little perhaps nothing breaks
    assert not broken.all()


@pytest.mark.parametrize("model", BOTH, indirect=True)
def test_a_counter_example_typed_back_gives_other_reasons(model: StableClassifier) -> None:
    X = rows(200)
    broken = [(row, each) for row, each in enumerate(model.certify(X)) if each.breaking]
    assert broken
    for row, each in broken:
        typed = X.iloc[[row]].assign(**{n: [int(v)] for n, v in each.breaking.values.items()})
        assert all(value == int(value) for value in each.breaking.values.values())
        assert model.predict(typed)[0] == each.decision
        told = {reason.attribute for reason in model.reasons(typed)[0]}
        assert told == set(each.breaking.reasons)
        assert told != set(each.reasons)


@pytest.mark.slow
def test_many_numbers_need_no_enumeration() -> None:
    draw = np.random.default_rng(0)
    X = pd.DataFrame(draw.integers(0, 100, (2600, 14)), columns=[f"n{i}" for i in range(14)])
    slopes = draw.normal(size=14) / 30
    y = (X @ slopes - (X @ slopes).mean() + draw.logistic(size=2600) > 0).astype(int)
    model = StableClassifier(4.0, interactions=False).fit(X, y)
    found = model.certify(X[:40], dict.fromkeys(X, 6.0))
    assert {each.verdict for each in found} <= {"certified", "broken"}
    assert max(each.moves for each in found) > 4096
    for row, each in enumerate(found):
        start = X.iloc[[row]]
        if each.breaking is not None:
            typed = start.assign(**{name: [value] for name, value in each.breaking.values.items()})
            told = {reason.attribute for reason in model.reasons(typed)[0]}
            assert told == set(each.breaking.reasons) != set(each.reasons)
            assert model.predict(typed)[0] == each.decision
            continue
        moved = pd.concat([start] * 200, ignore_index=True) + draw.integers(-6, 7, (200, 14))
        stays = model.predict(moved) == each.decision
        for reasons in np.array(model.reasons(moved), dtype=object)[stays]:
            assert {reason.attribute for reason in reasons} == set(each.reasons)


def test_what_speaks_together_is_not_taken_for_a_sum(together: StableClassifier) -> None:
    """A move of a number that was not to move is enumerated, or nothing is said of it."""
    X, width = rows(20), {"age": 3.0, "debts": 1.0}
    slow = cell_verdicts(together.binner_, together.cell_model(), X, width=width)
    few = cell_verdicts(together.binner_, together.cell_model(), X, width=width, most_cells=1)
    assert {each.verdict for each in slow} == {"certified", "broken"}
    for enumerated, each in zip(slow, few, strict=True):
        assert each.verdict in ("undetermined", enumerated.verdict)
    assert "undetermined" in {each.verdict for each in few}
    apart = cell_verdicts(
        together.binner_, together.cell_model(), X, width={"age": 3.0}, most_cells=1
    )
    every = cell_verdicts(together.binner_, together.cell_model(), X, width={"age": 3.0})
    told = [(each.verdict, each.core, each.kept, each.breaking) for each in apart]
    assert told == [(each.verdict, each.core, each.kept, each.breaking) for each in every]


def test_reasons_are_told_in_words(together: StableClassifier) -> None:
    X = rows(5)
    for row, reasons in enumerate(together.reasons(X)):
        assert len(reasons) == 3
        assert [each.contribution for each in reasons] == sorted(
            each.contribution for each in reasons
        )
        for each in reasons:
            if each.attribute == "age":
                assert each.value == f"{X.age[row]} years"
                assert each.usual.endswith("years")
            if each.attribute == "job":
                assert each.value == X.job[row]
            assert 0 <= each.share <= 1
    assert "(usual: " in str(together.reasons(X)[0][0])


@pytest.mark.slow
def test_sides_and_codes() -> None:
    X, y = people()
    speaking = StableClassifier(WIDTH, side="for", codes={"job": "work", "hours": "work"})
    found = speaking.fit(X, y)
    reasons = found.reasons(X[:5])
    for row in reasons:
        assert row[0].contribution == max(each.contribution for each in row)
    assert {each.code for row in found.reasons(X) for each in row} >= {"work"}
    for row, verdict in zip(found.reasons(X[:50]), found.certify(X[:50]), strict=True):
        assert tuple(each.code for each in row) == verdict.reasons
    assert "job" not in {reason for each in found.certify(X[:50]) for reason in each.reasons}
    both = StableClassifier(WIDTH, side="both").fit(X, y)
    for row, phi in zip(both.reasons(X[:9]), both.contributions(X[:9]), strict=True):
        assert abs(row[0].contribution) == pytest.approx(np.abs(phi).max())


def test_a_threshold_moves_the_decision(together: StableClassifier) -> None:
    X, _ = people()
    strict = copy.deepcopy(together).set_params(threshold=0.8)
    np.testing.assert_allclose(strict.predict_proba(X), together.predict_proba(X))
    assert (strict.predict(X) == (strict.predict_proba(X)[:, 1] >= 0.8)).all()


def test_stability_sums_up_the_verdicts(together: StableClassifier) -> None:
    X = rows(100)
    found, verdicts = together.stability(X), together.certify(X)
    assert found.broken == pytest.approx(np.mean([each.verdict == "broken" for each in verdicts]))
    assert found.certified + found.broken + found.undetermined == pytest.approx(1)
    assert found.kept == pytest.approx(np.mean([each.kept for each in verdicts]))
    assert found.core == pytest.approx(np.mean([len(each.core) for each in verdicts]))
    assert found.overlap is not None
    assert found.kappa == pytest.approx((found.kept - found.overlap) / (1 - found.overlap))
    assert found.all_but_one >= found.certified


@pytest.mark.slow
def test_fewer_reasons_break_than_without_weight() -> None:
    """At equal AUC: that is what all this is for."""
    X, y = people()
    test, truth = people(1500, seed=5)
    model = StableClassifier(WIDTH).fit(X, y)
    free = StableClassifier(WIDTH, weight=0.0).fit(X, y)
    aucs = [roc_auc_score(truth, each.decision_function(test)) for each in (model, free)]
    assert aucs[0] > aucs[1] - 0.01
    widths = {"age": 2, "hours": 2}
    shares = [each.stability(test[:300], widths).broken for each in (model, free)]
    assert shares[0] <= shares[1]


# --- accuracy -----------------------------------------------------------------------------------


def rare(rows: int, seed: int) -> tuple[pd.DataFrame, Any]:
    draw = np.random.default_rng(seed)
    X = pd.DataFrame(draw.normal(size=(rows, 3)), columns=list("abc"))
    chance = 1 / (1 + np.exp(-(2 * X.a - 1.5 * X.b - 5.5)))
    return X, (draw.random(rows) < chance).astype(int)


def test_few_positives_of_few_columns_are_found_as_well_as_by_logistic_regression() -> None:
    (X, y), (test, truth) = rare(2600, 0), rare(8000, 1)
    plain = LogisticRegression().fit(X, y).decision_function(test)
    ours = StableClassifier().fit(X, y).decision_function(test)
    assert roc_auc_score(truth, ours) > roc_auc_score(truth, plain) - 0.008


@pytest.mark.slow
def test_what_bends_is_found_as_well_as_by_trees() -> None:
    X, y = make_moons(4000, noise=0.3, random_state=0)
    trees = HistGradientBoostingClassifier(random_state=0).fit(X[:2600], y[:2600])
    ours = StableClassifier(0.02).fit(X[:2600], y[:2600])
    free, own = (
        roc_auc_score(y[2600:], each.decision_function(X[2600:])) for each in (trees, ours)
    )
    assert own > free - 0.01


def test_the_guard_lowers_the_weight_and_says_so() -> None:
    X, y = rare(2600, 3)
    with pytest.warns(LostAccuracy, match="is asked for"):
        model = StableClassifier(0.5, weight=3.0, auc_loss=0.0).fit(X, y)
    kept = next(each for each in model.search_ if each.kept)
    assert kept.weight < 3.0
    assert model.search_[0].weight == 3.0
    assert kept.auc > model.search_[0].auc


# --- what kinds of tables -----------------------------------------------------------------------


def test_scikit_learn_s_own_checks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(StableClassifier(), on_fail=None)
    failed = [each for each in found if each["status"] == "failed"]
    assert not failed, [(each["check_name"], each["exception"]) for each in failed]


@pytest.mark.slow
def test_the_order_of_rows_does_not_matter(together: StableClassifier) -> None:
    X, y = people()
    order = np.random.default_rng(0).permutation(len(y))
    again = clone(together).fit(X.iloc[order], y[order])
    np.testing.assert_array_equal(again.decision_function(X), together.decision_function(X))
    assert again.binner_.bands_ == together.binner_.bands_


def test_missing_and_special_values_are_bands_of_their_own() -> None:
    X, y = people()
    X = X.astype({"age": float, "hours": float})
    X.loc[::9, "age"] = np.nan
    X.loc[1::9, "hours"] = -1.0
    y = np.where(X.age.isna() & (np.arange(len(y)) % 5 > 0), 1, y)
    model = StableClassifier(WIDTH, special={"hours": [-1.0]}).fit(X, y)
    assert "missing" in model.binner_.bands_["age"]
    assert "-1" in model.binner_.bands_["hours"]
    card = model.scorecard_.set_index(["attribute", "band"]).points
    assert card["age", "missing"] > card["age"].drop("missing").mean()
    lacking = X[X.age.isna() & (X.hours == -1.0)]
    assert not len(lacking)
    for each in model.certify(X[X.age.isna()][:20], {"age": 50.0}):
        assert each.verdict == "certified"


@pytest.mark.slow
def test_given_edges_and_directions_are_kept() -> None:
    X, y = people()
    model = StableClassifier(WIDTH, edges={"age": [33.5]}, monotone={"hours": 1}).fit(X, y)
    assert 33.5 in model.binner_.edges_["age"]
    if model.score_.trees is None:
        assert (np.diff(model.score_.points[1]) >= 0).all()
    raised = X.assign(hours=X.hours + 10)
    apart = StableClassifier(WIDTH, monotone={"hours": 1}, interactions=False).fit(X, y)
    assert (apart.decision_function(raised) >= apart.decision_function(X) - 1e-12).all()


def test_trees_that_look_at_everything_do_not_undo_a_direction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = people(900)
    monkeypatch.setattr(classifier, "GAIN", -1.0)  # taken, whether they pay or not
    found = StableClassifier(WIDTH, monotone={"hours": -1}).fit(X, y)
    lower, higher = (found.decision_function(X.assign(hours=each)) for each in (25, 55))
    assert (lower >= higher - 1e-12).all()
    several = StableClassifier(monotone={"hours": 1})
    assert "two classes only" in refusal(lambda: several.fit(*people(900, classes=3)))


def test_several_classes() -> None:
    X, y = people(classes=3)
    model = StableClassifier(WIDTH).fit(X, np.array(["low", "mid", "high"])[y])
    assert model.predict_proba(X[:9]).shape == (9, 3)
    assert (model.predict(X) == model.classes_[model.predict_proba(X).argmax(1)]).all()
    assert model.score(X, np.array(["low", "mid", "high"])[y]) > 0.5
    assert len(model.reasons(X[:2])[0]) == 3
    assert {each.verdict for each in model.certify(X[:30])} <= {"certified", "broken"}


@pytest.mark.parametrize("columns", [["job"], ["age"], ["job", "home"], ["age", "job"]])
def test_tables_of_few_columns(columns: list[str]) -> None:
    X, y = people()
    model = StableClassifier().fit(X[columns], y)
    assert roc_auc_score(y, model.decision_function(X[columns])) > 0.5
    assert len(model.reasons(X[columns][:2])[0]) == model.k_ <= max(1, len(columns) - 1)


def test_a_reference_is_kept_at_a_refit(together: StableClassifier) -> None:
    X, y = people(200, seed=3)
    again = StableClassifier(WIDTH, reference=together.reference_).fit(X, y)
    pd.testing.assert_frame_equal(again.reference_, together.reference_)
    assert len(together.reference_) == 200


# --- leaving ------------------------------------------------------------------------------------


def test_the_card_leaves_as_sql_and_json(card: StableClassifier) -> None:
    X = rows(80)
    with sqlite3.connect(":memory:") as base:
        X.to_sql("people", base, index=False)
        found = [row[0] for row in base.execute(card.to_sql("people"))]
    np.testing.assert_allclose(found, card.decision_function(X), atol=1e-9)
    told = json.loads(card.to_json())
    total = np.full(len(X), told["constant"])
    for each, codes in zip(told["attributes"], card.binner_.codes(X).T, strict=True):
        total += np.array(each["points"])[codes]
    np.testing.assert_allclose(total, card.decision_function(X), atol=1e-9)


def test_points_of_the_card_are_contributions(card: StableClassifier) -> None:
    X = rows(20)
    points = card.scorecard_.set_index(["attribute", "band"]).points
    signs = np.where(card.predict(X) == 1, 1.0, -1.0)
    words = [
        [each.words[code] for code in card.binner_.codes(X)[:, place]]
        for place, each in enumerate(card.binner_.attributes_)
    ]
    for place, each in enumerate(card.binner_.attributes_):
        told = np.array([points[each.name, word] for word in words[place]])
        np.testing.assert_allclose(card.contributions(X)[:, place], signs * told, atol=1e-12)
    assert card.scorecard_.alone.all()


def test_pictures(together: StableClassifier) -> None:
    X = rows(3)
    ax = together.plot_reasons(X, 1)
    assert len(ax.get_yticklabels()) == 5
    assert together.plot_bands("age").get_xlabel() == "age"


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"side": "up"}, "'against', 'for' or 'both'"),
        ({"threshold": 1.0}, "between 0 and 1"),
        ({"weight": -1.0}, "weight must be a number >= 0"),
        ({"k": 0}, "k must be a whole number >= 1"),
        ({"reference_rows": 2.5}, "reference_rows must be a whole number"),
        ({"width": {"agee": 1}}, "age"),
        ({"codes": {"jobb": "work"}}, "job"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    X, y = people(200)
    assert words in refusal(lambda: StableClassifier(**settings).fit(X, y))


def test_one_class_is_refused() -> None:
    X, _ = people(50)
    assert "two classes" in refusal(lambda: StableClassifier().fit(X, np.zeros(50)))


def test_what_speaks_together_is_no_table(together: StableClassifier) -> None:
    assert "interactions=False" in refusal(lambda: together.to_sql("people"))


# --- what the search starts from ----------------------------------------------------------------


def test_attributes_apart_stay_apart_whatever_their_places() -> None:
    """Trees that are told of words put these first: constraints must go with them."""
    X, y = people()
    codes = np.stack([X.age, X.job.astype("category").cat.codes, X.hours, X.debts], 1).astype(float)
    model = boosted(codes, y, [False, True, False, False], [{0}, {1, 3}, {2}], 0)
    low, high = codes.copy(), codes.copy()
    low[:, 0], high[:, 0] = 25, 60
    change = model.decision_function(high) - model.decision_function(low)
    assert np.ptp(change) < 1e-9
    assert abs(change[0]) > 0.1


class Other:
    """Something else that speaks of cells."""

    def __call__(self, cells: np.ndarray) -> np.ndarray:
        return 3.0 * cells[:, 1] * cells[:, 0]

    def contributions(self, cells: np.ndarray, references: np.ndarray) -> np.ndarray:
        return np.stack([contributions(self, cells, each) for each in references])


def test_with_trees_a_score_is_the_mean_of_both() -> None:
    apart = StepScore(points={0: np.array([0.5, -1.0])}, rest=None, constant=0.25)
    both = StepScore(points=apart.points, rest=None, constant=0.25, trees=Other())  # type: ignore[arg-type]
    cells, reference = np.array([[0, 1], [1, 1], [1, 0]]), np.array([[0, 0], [1, 2]])
    np.testing.assert_allclose(apart(cells), [0.75, -0.75, -0.75])
    np.testing.assert_allclose(both(cells), (apart(cells) + Other()(cells)) / 2)
    np.testing.assert_allclose(
        both.contributions(cells, reference), contributions(both, cells, reference), atol=1e-12
    )


def test_a_teacher_is_the_sum_of_its_parts() -> None:
    X, y = people()
    model = StableClassifier(WIDTH)
    model.binner_ = StableBinner(WIDTH)
    rows: Rows = model._rows(*model.binner_.begin(X, y))
    teacher = teacher_of(rows, separate_trees(rows), together=True)
    whole = teacher(rows)
    parts = teacher.score(rows.cells)
    for place, curve in teacher.curves.items():
        parts = parts + np.interp(rows.values[place], curve.values, curve.score[:, 0])
    np.testing.assert_allclose(parts, whole, atol=1e-9)


def test_a_teacher_grown_twice_is_the_mean_of_two() -> None:
    X, y = people()
    model = StableClassifier(WIDTH)
    model.binner_ = StableBinner(WIDTH)
    rows: Rows = model._rows(*model.binner_.begin(X, y))
    one, other, both = (
        teacher_of(rows, separate_trees(rows, seed=seed, times=n), together=True)
        for seed, n in ((0, 1), (1, 1), (0, 2))
    )
    np.testing.assert_allclose(both(rows), (one(rows) + other(rows)) / 2, atol=1e-9)
    assert both.score.rest is not None
    assert both.score.rest.leaves is not None
    for place in rows.values:
        mean = (one.curves[place].score + other.curves[place].score) / 2
        np.testing.assert_allclose(both.curves[place].score, mean, atol=1e-9)


def test_a_descent_begins_where_another_ended() -> None:
    X, y = people()
    model = StableClassifier(WIDTH)
    model.binner_ = StableBinner(WIDTH)
    rows: Rows = model._rows(*model.binner_.begin(X, y))
    teacher = teacher_of(rows, separate_trees(rows), together=True)
    first = steps_of(teacher, Wish())
    again = steps_of(teacher, Wish(), begin=first)
    assert first.reached is not None
    assert again.reached is not None
    assert again.reached.total <= first.reached.total
    # Edges that other rows have no place for are found anew.
    half = rows.some(np.arange(0, len(y), 2))
    fewer = teacher_of(half, separate_trees(half), together=True)
    cold, warm = steps_of(fewer, Wish()), steps_of(fewer, Wish(), begin=first)
    assert cold.reached is not None
    assert warm.reached is not None
    assert warm.reached.total <= cold.reached.total + 0.01


def test_many_numbers_share_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wished of two numbers that can move, if only one had the whole weight."""
    X, y = people(600)
    model = StableClassifier(WIDTH, weight=0.2)
    model.k_, model.binner_ = 3, StableBinner(WIDTH)
    rows: Rows = model._rows(*model.binner_.begin(X, y))
    wishes: list[Any] = []
    monkeypatch.setattr(classifier, "steps_of", lambda _, wish, **more: wishes.append((wish, more)))
    teacher = teacher_of(rows, separate_trees(rows), together=True)
    for few in (3, 1):
        monkeypatch.setattr(classifier, "FEW_MOVING", few)
        model._found(teacher, 0.2)
        model._found(teacher, 0.0)
    (full, usual), (none, cheap), (half, shared), _ = wishes
    assert (full.broken, none.broken, half.broken) == (0.2, 0.0, 0.1)
    assert half.edge == full.edge / 2
    assert none.edge == pytest.approx(full.edge / 100)
    assert shared["start"] == usual["start"] / 2
    assert shared["trust"] == usual["trust"] * 2
    assert cheap["start"] == pytest.approx(usual["start"] / 100)
