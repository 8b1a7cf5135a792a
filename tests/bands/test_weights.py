"""A row counts as often as its weight says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from made_people import WIDTH, people
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from test_descent import problem, steps

from r2et import StableBinner, StableClassifier
from r2et.actionable.tables import usual_width
from r2et.bands.boosting import Coarse, boosted
from r2et.bands.descent import Wish, descend, standing
from r2et.bands.edges import counted
from r2et.bands.steps import (
    Lines,
    Rows,
    drawn,
    least_people,
    lines_of,
    separate_trees,
    shown,
    teacher_of,
)
from r2et.bands.table import spread_rows
from r2et.bands.teacher import mean_auc
from r2et.core.rng import stream
from refusals import refusal

pytestmark = pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")


def weights(rows: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, rows)


@pytest.mark.parametrize(
    ("classes", "columns"), [(2, ["age"]), (2, ["job"]), (3, ["age", "hours", "job"])]
)
def test_a_weight_is_a_row_repeated(classes: int, columns: list[str]) -> None:
    """As far as nothing is drawn, such as people whose reasons are judged."""
    X, y = people(90, classes=classes)
    X, count = X[columns], weights(90)
    model = StableClassifier(WIDTH if "hours" in columns else None).fit(X, y, count)
    again = clone(model).fit(X.loc[X.index.repeat(count)], y.repeat(count))
    assert model.binner_.edges_ == again.binner_.edges_
    for name, shares in model.binner_.shares_.items():
        np.testing.assert_allclose(shares, again.binner_.shares_[name])
    probed = model.predict_proba(X), again.predict_proba(X)
    np.testing.assert_allclose(*probed, atol=1e-4)
    plain = clone(model).fit(X, y).predict_proba(X)
    assert np.abs(probed[0] - plain).max() > 0.01


def test_bands_of_weighted_rows_are_those_of_repeated_ones() -> None:
    X, y = people(400)
    X, count = X[["age", "hours", "debts"]], weights(400)
    binner = StableBinner(WIDTH, penalty=0.01, teacher=LogisticRegression()).fit(X, y, count)
    again = clone(binner).fit(X.loc[X.index.repeat(count)], y.repeat(count))
    assert binner.bands_ == again.bands_
    assert sum(len(each) for each in binner.edges_.values()) > 3
    assert clone(binner).fit(X, y).bands_ != binner.bands_


def test_weights_of_one_change_nothing() -> None:
    X, y = people(200)
    plain, ones = (StableClassifier(WIDTH).fit(X, y, each) for each in (None, np.ones(200)))
    np.testing.assert_array_equal(plain.decision_function(X), ones.decision_function(X))
    pd.testing.assert_frame_equal(plain.reference_, ones.reference_)


def test_what_counts_more_is_learnt() -> None:
    """Half of the rows have the outcome turned round, and count."""
    X, y = people(2600)
    turned = np.arange(2600) % 2 == 1
    counting = np.where(turned, 1.0, 0.05)
    model = StableClassifier(WIDTH).fit(X, np.where(turned, 1 - y, y), counting)
    assert roc_auc_score(y, model.decision_function(X)) < 0.25
    assert max(each.auc for each in model.search_) > 0.7


# --- parts --------------------------------------------------------------------------------------


def rows_of_people(count: np.ndarray) -> tuple[Rows, Rows]:
    """Weighted rows, and the same repeated."""
    X, y = people(len(count))
    model = StableClassifier(WIDTH)
    model.binner_ = StableBinner(WIDTH)
    rows = model._rows(*model.binner_.begin(X, y))
    repeated = rows.some(np.repeat(np.arange(len(y)), count))
    return replace(rows, weights=count.astype(float)), repeated


def test_lines_of_weighted_rows() -> None:
    count = weights(300)
    weighted, repeated = rows_of_people(count)
    lines, again = Lines.of(weighted), Lines.of(repeated)
    np.testing.assert_allclose(lines.means, again.means)
    np.testing.assert_allclose(lines.spreads, again.spreads)
    one, other = (teacher_of(own, lines_of(own), together=False) for own in (weighted, repeated))
    np.testing.assert_allclose(one(weighted), other(weighted), atol=1e-4)
    for place, curve in one.curves.items():
        np.testing.assert_allclose(curve.people[curve.people > 0], other.curves[place].people)


def test_trees_of_weighted_rows_are_not_those_of_all() -> None:
    count = weights(2600)
    weighted, repeated = rows_of_people(count)
    unweighted = replace(weighted, weights=np.ones(2600))
    taught, plain = (
        separate_trees(own).decision_function(shown(weighted)) for own in (weighted, unweighted)
    )
    aucs = [mean_auc(each, weighted.y, count.astype(float)) for each in (taught, plain)]
    assert aucs[0] > aucs[1]
    assert mean_auc(taught, weighted.y, count.astype(float)) == pytest.approx(
        mean_auc(taught.repeat(count), repeated.y)
    )


def test_the_loss_of_weighted_rows() -> None:
    people_, numbers, _ = problem(0, rows=400)
    count = weights(400).astype(float)
    wish = Wish(k=2, broken=0.0, edge=0.0)
    weighted = replace(people_, weights=count)
    found, reached = descend(weighted, numbers, steps(0), wish)
    score = people_.base + sum(
        each.points[number.bands(each.edges)[number.segments]]
        for number, each in zip(numbers, found, strict=True)
    )
    losses = np.logaddexp(0, score) - people_.y * score
    assert reached.loss == pytest.approx(np.average(losses, weights=count))
    free = descend(people_, numbers, steps(0), wish)[0]
    assert reached.loss < standing(weighted, numbers, free, wish).loss
    demanding = [replace(number, least=150.0) for number in numbers]
    for number, each in zip(
        demanding, descend(weighted, demanding, steps(0), wish)[0], strict=True
    ):
        heavy = np.bincount(number.bands(each.edges)[number.segments], count)
        new = set(each.edges) - {1, 3, 0, 2, 5}
        assert not new or heavy.min() >= 150


def test_coarse_columns_hold_equal_weights_and_are_read_back() -> None:
    draw = np.random.default_rng(0)
    x = np.stack([draw.normal(size=4000), draw.integers(0, 9, 4000), draw.integers(0, 5, 4000)], 1)
    x[::50, 0] = np.nan
    heavy = np.where(x[:, 0] > 0, 9.0, 1.0)
    coarse = Coarse.of(x, [False, False, True], heavy)
    shown = coarse(x)
    assert list(coarse.cuts) == [0]
    np.testing.assert_array_equal(shown[:, 1:], x[:, 1:])
    np.testing.assert_array_equal(np.isnan(shown[:, 0]), np.isnan(x[:, 0]))
    known = ~np.isnan(x[:, 0])
    order = np.argsort(x[known, 0])
    assert (np.diff(shown[known, 0][order]) >= 0).all()
    each = np.bincount(shown[known, 0].astype(int), heavy[known])
    assert len(each) == 255
    assert each.max() < 1.3 * each.mean()
    assert not Coarse.of(x, [False, False, True], np.ones(4000)).cuts
    y = (np.nan_to_num(x[:, 0]) + draw.normal(size=4000) > 0).astype(int)
    ours = boosted(x, y, [False, False, True], [{0, 1, 2}], 0, heavy).decision_function(x)
    trees = HistGradientBoostingClassifier(random_state=0, max_leaf_nodes=8, early_stopping=True)
    theirs = trees.fit(x, y, heavy).decision_function(x)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.98


def test_counts_widths_and_draws() -> None:
    values, count = np.array([3.0, 1.0, 3.0, 7.0]), np.array([1.0, 2.0, 0.5, 4.0])
    different, having = counted(values, count)
    assert different.tolist() == [1.0, 3.0, 7.0]
    assert having.tolist() == [2.0, 1.5, 4.0]
    many, times = np.array([0.5, 10.0, 41.5]), np.array([3, 1, 2])
    assert usual_width(many, times.astype(float)) == pytest.approx(usual_width(many.repeat(times)))
    assert least_people(np.full(100, 50.0)) == 0.004 * 5000
    places = drawn(np.array([1.0, 0.0, 3.0]), (40, 100), stream(0, "test"))
    assert set(np.unique(places)) == {0, 2}
    assert np.mean(places == 2) == pytest.approx(0.75, abs=0.02)


def test_a_reference_stands_for_weighted_rows() -> None:
    y, heavy = np.array([0, 1] * 50), np.tile([1.0, 3.0, 2.0, 0.0], 25)
    chosen = spread_rows(y, heavy, 60, 0)
    counts = dict.fromkeys(product((0, 1), (1.0, 2.0, 3.0)), 0)
    for row in chosen:
        counts[int(y[row]), float(heavy[row])] += 1
    # Of weights 1 + 2 of the first class and 3 of the second: 10, 20 and 30 of 60.
    assert abs(counts[0, 1.0] - 10) <= 5
    assert abs(counts[0, 1.0] + counts[0, 2.0] - 30) <= 1
    assert abs(counts[1, 3.0] - 30) <= 1
    X, labels = people(300)
    found = StableClassifier(WIDTH, reference_rows=30).fit(X, labels, X.job == "cook")
    assert set(found.reference_.job) == {"cook"}


def test_bad_weights_are_refused() -> None:
    X, y = people(60)
    model = StableClassifier()
    assert "Negative values" in refusal(lambda: model.fit(X, y, -np.ones(60)))
    assert "non-zero" in refusal(lambda: model.fit(X, y, np.zeros(60)))
    assert "sample_weight" in refusal(lambda: model.fit(X, y, np.ones(59)))
    assert "one class" in refusal(lambda: model.fit(X, y, y))
    unweighted = StableBinner(teacher=KNeighborsClassifier())
    refused = refusal(lambda: unweighted.fit(X[["age"]], y, 1.0 + y))
    assert "a KNeighborsClassifier, does not take" in refused
