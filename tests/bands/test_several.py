"""Scores of several classes: what they add up to, and that accuracy is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_people import WIDTH, people
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_saved import strange

from r2et import StableBinner, StableClassifier
from r2et.bands import contributions as shapley
from r2et.bands import scores, several
from r2et.bands.attribute import NumberBands, WordBands
from r2et.bands.classifier import LostAccuracy
from r2et.bands.contributions import margins, shapley_margins
from r2et.bands.edges import Curve
from r2et.bands.guard import Attempt, explained, least_auc, with_kept
from r2et.bands.scores import CardScores, Grown, TreeScores
from r2et.bands.several import Told, band_means, card_of, penalty_at, tried
from r2et.bands.steps import Rows, shown
from r2et.bands.table import held_parts
from r2et.bands.teacher import mean_auc

pytestmark = pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")


CROSSED = ["job", "home", "age"]


def rows_of(X: pd.DataFrame, y: Any, **settings: Any) -> Rows:
    width = {name: own for name, own in WIDTH.items() if name in X}
    model = StableClassifier(width, **settings)
    model.binner_ = StableBinner(width, **settings)
    return model._rows(*model.binner_.begin(X, y))


def drawn_card(seed: int) -> tuple[CardScores, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    bands = (
        NumberBands(name="a", edges=(1.0, 2.0)),
        WordBands(name="b", labels=("x", "y")),
        NumberBands(name="c", edges=(0.0,), missing=True),
    )
    cells, reference = (
        np.stack([draw.integers(0, each.count, n) for each in bands], 1) for n in (9, 7)
    )
    points, constant = draw.normal(size=(4, 8)), draw.normal(size=4)
    return CardScores(bands=bands, points=points, constant=constant), cells, reference


# --- what is added ------------------------------------------------------------------------------


def test_margins_are_scores_less_the_best_of_the_others() -> None:
    said = np.array([[1.0, 3.0, 2.0], [4.0, 4.0, -1.0]])
    assert margins(said).tolist() == [[-2.0, 1.0, -1.0], [0.0, 0.0, -5.0]]


@pytest.mark.parametrize("at_once", [1, 4_000_000])
def test_points_add_what_all_mixtures_say(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    card, cells, reference = drawn_card(0)
    monkeypatch.setattr(scores, "MIXED_AT_ONCE", at_once)
    found = card.contributions(cells, reference)
    np.testing.assert_allclose(found, shapley_margins(card, cells, reference), atol=1e-12)
    usual = margins(card(reference)).mean(0)
    np.testing.assert_allclose(found.sum(1), margins(card(cells)) - usual, atol=1e-12)
    assert card.contributions(cells[:0], reference).shape == (0, 3, 4)


@pytest.mark.parametrize("at_once", [1, 50, 4_000_000])
def test_cells_too_many_to_number_are_mixed_one_by_one(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, cells, reference = drawn_card(1)
    numbered = shapley_margins(card, cells, reference)
    monkeypatch.setattr(shapley, "numbering", lambda _: None)
    monkeypatch.setattr(shapley, "MIXED_AT_ONCE", at_once)
    np.testing.assert_allclose(shapley_margins(card, cells, reference), numbered, atol=1e-12)


def test_means_between_edges() -> None:
    values, people_ = np.array([1.0, 2.0, 3.0, 9.0]), np.array([1.0, 3.0, 2.0, 1.0])
    score = np.array([[0.0, 1.0], [4.0, 1.0], [2.0, 0.0], [8.0, -1.0]])
    found = band_means(Curve(values=values, people=people_, score=score), np.array([2.5, 5.0, 6.0]))
    # 3 of 4 people have 4; nobody stands between 5 and 6, where it is half-way to 8.
    np.testing.assert_allclose(found, [[3.0, 1.0], [2.0, 0.0], [5.0, -0.5], [8.0, -1.0]])


@pytest.mark.parametrize("name", ["lines", "trees"])
def test_a_teacher_is_the_sum_of_its_parts(name: Any) -> None:
    X, y = strange(400, classes=3)
    rows = rows_of(X, y, special={"hours": [-1.0]})
    told = Told.of(rows, name, 0)
    total = np.repeat(told.constant[None], len(rows.y), 0)
    for place, points in told.points.items():
        total += points[rows.cells[:, place]]
    for place, curve in told.curves.items():
        lacking = np.isnan(shown(rows)[:, place])
        at = np.searchsorted(curve.values, np.where(lacking, 0.0, rows.values[place]))
        added = curve.score[at.clip(max=len(curve.values) - 1)]
        total += np.where(lacking[:, None], told.lacking[place], added)
    np.testing.assert_allclose(total, told.model.decision_function(shown(rows)), atol=1e-9)


def test_points_are_the_mean_of_what_is_followed_and_what_is_fitted() -> None:
    X, y = people(600, classes=3)
    rows = rows_of(X, y, edges={"age": [33.5]})
    told = Told.of(rows, "lines", 0)
    bands, card = card_of(told, 0.003)
    assert 33.5 in bands[0].edges
    coarse = card_of(told, 3.0)[0]
    assert coarse[0].edges == (33.5,)
    assert len(bands[0].edges) > 3
    np.testing.assert_allclose(card.points.sum(0), 0.0, atol=1e-12)
    ones = np.eye(card.points.shape[1])[
        rows.within(bands) + np.cumsum([0, *(each.count for each in bands[:-1])])
    ].sum(1)
    fitted = LogisticRegression(max_iter=500).fit(ones, rows.y)
    followed = told.points[2] / 2 + fitted.coef_.T[-9:-6] / 2
    own = card.points.T[-9:-6]
    np.testing.assert_allclose(own, followed - followed.mean(1, keepdims=True), atol=1e-3)
    assert penalty_at(0.0) == pytest.approx(penalty_at(1.0) / 100)


# --- accuracy -----------------------------------------------------------------------------------


def test_auc_of_several_is_that_of_probabilities() -> None:
    draw = np.random.default_rng(0)
    said, y = draw.normal(size=(60, 3)), draw.integers(0, 3, 60)
    shares = np.exp(said) / np.exp(said).sum(1, keepdims=True)
    assert mean_auc(said, y) == pytest.approx(roc_auc_score(y, shares, multi_class="ovr"))
    assert mean_auc(said + draw.normal(size=(60, 1)), y) == pytest.approx(mean_auc(said, y))


def aucs(load: Any, seed: int) -> tuple[float, float]:
    """What is asked of a table, and what is reached."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    test, learnt = order[: len(y) // 3], order[len(y) // 3 :]
    models = [
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        HistGradientBoostingClassifier(random_state=0),
        StableClassifier(),
    ]
    said = [each.fit(X[learnt], y[learnt]).predict_proba(X[test]) for each in models]
    lines, trees, ours = (roc_auc_score(y[test], each, multi_class="ovr") for each in said)
    return max(lines, trees - 0.005) - 0.005, ours


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_small_tables_lose_no_accuracy(load: Any) -> None:
    asked, ours = np.mean([aucs(load, seed) for seed in range(3)], 0)
    assert ours >= asked


@pytest.mark.slow
def test_pictures_of_digits_lose_no_accuracy() -> None:
    asked, ours = aucs(load_digits, 0)
    assert ours >= asked


@pytest.fixture(scope="module")
def crossed() -> StableClassifier:
    """One that needs trees: job and home speak only together."""
    X, y = people(1300, classes=3)
    return StableClassifier({"age": 2}).fit(X[CROSSED], y)


def test_trees_are_asked_where_points_lose_accuracy(
    crossed: StableClassifier, tmp_path: Path
) -> None:
    assert isinstance(crossed.score_, TreeScores)
    kept = next(each for each in crossed.search_ if each.kept)
    assert kept.interactions
    X, y = people(900, seed=5, classes=3)
    card = StableClassifier({"age": 2}, interactions=False).fit(X[CROSSED], y)
    assert isinstance(card.score_, CardScores)
    assert not any(each.interactions for each in card.search_)
    said = [each.predict_proba(X[crossed.feature_names_in_]) for each in (crossed, card)]
    ours, points = (roc_auc_score(y, each, multi_class="ovr") for each in said)
    assert ours > points + 0.02
    loaded = StableClassifier.load(crossed.save(tmp_path / "model.json"))
    few = X[crossed.feature_names_in_][:40]
    np.testing.assert_array_equal(loaded.contributions(few), crossed.contributions(few))
    np.testing.assert_array_equal(loaded.decision_function(few), crossed.decision_function(few))
    assert loaded.certify(few) == crossed.certify(few)


def test_trees_speak_as_their_library_does(crossed: StableClassifier) -> None:
    X, y = people(1300, classes=3)
    rows = rows_of(X[CROSSED], y)
    bands = crossed.binner_.attributes_
    model = several._looking(rows, bands, 0)
    cells = crossed.binner_.codes(X[CROSSED])
    read = several.trees_of(rows, bands, 3, 0)
    np.testing.assert_allclose(read(cells), model.decision_function(cells.astype(float)), atol=1e-9)
    assert all(each.leaves is not None for each in read.trees)
    shown = tuple(np.arange(each.count, dtype=float) for each in bands)
    unread = [
        replace(each, leaves=None, grown=Grown(model=model, shown=shown, label=label))
        for label, each in enumerate(read.trees)
    ]
    np.testing.assert_allclose(TreeScores(trees=tuple(unread))(cells), read(cells), atol=1e-9)


def test_the_guard_lowers_the_weight_of_several_classes_and_says_so() -> None:
    X, y = load_iris(return_X_y=True, as_frame=True)
    draw = np.random.default_rng(0)
    X = pd.concat([X + draw.normal(0, 0.3, X.shape) for _ in range(9)], ignore_index=True)
    y = np.tile(y, 9)
    with pytest.warns(LostAccuracy, match="is asked for") as caught:
        model = StableClassifier(1.0, auc_loss=0.0, interactions=False).fit(X, y)
    assert caught[0].filename == __file__
    weights = [each.weight for each in model.search_]
    assert weights == pytest.approx([0.1, 0.03, 0.01, 0.0][: len(weights)])
    assert len(weights) > 1
    assert sum(each.kept for each in model.search_) == 1


def test_without_weight_one_attempt_is_made() -> None:
    X, y = people(900, classes=3)
    rows = rows_of(X, y)
    held = held_parts(rows.y, 0)[0]
    parts = [(rows.some(~held), rows.some(held))]
    found = tried(parts, weight=0.0, auc_loss=0.0, interactions=False, seed=0)
    assert len(found) == 1
    assert found[0].kept


def attempt(auc: float, weight: float) -> Attempt:
    return Attempt(teacher="lines", weight=weight, interactions=False, auc=auc, trees_auc=0.9,
                   lines_auc=0.88, broken=None, overlap=None, kept=False)  # fmt: skip


def test_which_attempt_is_kept() -> None:
    assert least_auc(attempt(0.8, 1.0), 0.004) == pytest.approx(0.891)
    enough = with_kept([attempt(0.85, 1.0), attempt(0.892, 0.3)], 0.004)
    assert [each.kept for each in enough] == [False, True]
    close = with_kept([attempt(0.8905, 1.0), attempt(0.8912, 0.3)], 0.004)
    assert [each.kept for each in close] == [False, True]
    none = with_kept([attempt(0.85, 1.0), attempt(0.8605, 0.3), attempt(0.861, 0.1)], 0.004)
    assert [each.kept for each in none] == [False, True, False]
    assert "lowered to 0.3" in explained(enough, 0.004)
    assert "no weight reaches it" in explained(none, 0.004)
