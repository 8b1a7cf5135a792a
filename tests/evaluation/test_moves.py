"""What moves do is what they do one by one, and every model speaks by Shapley values."""

import warnings

import numpy as np
import pandas as pd
import pytest
from made_people import people
from sklearn.linear_model import LogisticRegression

from r2et import StableClassifier
from r2et.bands.contributions import contributions
from r2et.evaluation.moves import (
    Additive,
    Encoded,
    SpokenModel,
    Stable,
    boosted_trees,
    drawn_moves,
    every_move,
    labels_of,
    logistic_regression,
    move_sizes,
    reasons_under_moves,
    under_moves,
)

WIDTHS = {"age": 1.0, "hours": 2.0}


def encoded(x: pd.DataFrame, y: np.ndarray) -> Encoded:
    """Logistic regression with a product, of encoded rows."""

    def encode(rows: pd.DataFrame) -> np.ndarray:
        jobs = [(rows.job == word).to_numpy(dtype=float) for word in ("clerk", "cook", "smith")]
        home = (rows.home == "owned").to_numpy(dtype=float)
        numbers = [rows[name].to_numpy(dtype=float) / 50 for name in ("age", "hours", "debts")]
        return np.stack([*numbers, *jobs, home], 1)

    def features(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows, rows[:, :1] * rows[:, 3:]], 1)

    model = LogisticRegression().fit(features(encode(x)), y)
    return Encoded(encode=encode, raw=lambda rows: model.decision_function(features(rows)))


def models() -> dict[str, SpokenModel]:
    x, y = people(700)
    labels = labels_of(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stable = StableClassifier(WIDTHS).fit(x, y)
    return {
        "regression": logistic_regression(x, y, labels),
        "trees": boosted_trees(x, y, labels),
        "encoded": encoded(x, y),
        "stable": Stable(model=stable),
    }


MODELS = models()


@pytest.mark.parametrize("name", MODELS)
def test_contributions_are_shapley_values(name: str) -> None:
    model = MODELS[name]
    x, references = people(12, seed=4)[0], [people(6, seed=5)[0], people(6, seed=6)[0]]
    found = model.contributions(x, references)
    for draw, reference in enumerate(references):
        both = pd.concat([x, reference], ignore_index=True)
        codes = [pd.factorize(both[name]) for name in both]
        cells = np.stack([index for index, _ in codes], 1)

        def score(some: np.ndarray, codes: list = codes, both: pd.DataFrame = both) -> np.ndarray:
            pairs = zip(both, codes, some.T, strict=True)
            return model.score(pd.DataFrame({n: known[at] for n, (_, known), at in pairs}))

        slow = contributions(score, cells[: len(x)], cells[len(x) :])
        np.testing.assert_allclose(found[draw], slow, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_broken_shares_are_those_of_moves_made_one_by_one(name: str) -> None:
    model, k = MODELS[name], 2
    x, reference = people(40, seed=7)[0], people(8, seed=8)[0]
    found = under_moves(model, x, list(every_move(x, WIDTHS)), [reference], k)
    signs = np.where(model.score(x) >= 0, 1.0, -1.0)[:, None]

    def top(rows: pd.DataFrame) -> list[set[int]]:
        phi = signs * model.contributions(rows, [reference])[0]
        return [set(each[:k]) for each in np.argsort(phi, 1, kind="stable").tolist()]

    first, worst = top(x), np.ones(len(x))
    core, within = [set(each) for each in first], np.zeros(len(x), dtype=bool)
    for age in (-1, 0, 1):
        for hours in (-2, -1, 0, 1, 2):
            moved = x.assign(age=x.age + age, hours=x.hours + hours)
            stays = (model.score(moved) >= 0) == (model.score(x) >= 0)
            same = [len(a & b) / k for a, b in zip(first, top(moved), strict=True)]
            worst = np.where(stays, np.minimum(worst, same), worst)
            core = [
                kept & now if stay else kept
                for kept, now, stay in zip(core, top(moved), stays, strict=True)
            ]
            if abs(hours) <= 1 and not age:
                within |= stays & (np.array(same) < 1)
    assert found.broken == pytest.approx((worst < 1).mean())
    assert found.kept == pytest.approx(worst.mean())
    assert found.kappa == pytest.approx((found.kept - found.overlap) / (1 - found.overlap))
    assert found.core == pytest.approx(np.mean([len(each) for each in core]))
    assert found.all_but_one == pytest.approx(np.mean([len(each) >= k - 1 for each in core]))
    shared = [len(a & b) / k for at, a in enumerate(first) for b in first[:at]]
    assert found.overlap_of_all == pytest.approx(np.mean(shared))
    moved = list(every_move(x, WIDTHS))
    told = reasons_under_moves(model, x, moved, [reference], k)
    half, whole = told.broken_within(move_sizes(x, moved, WIDTHS), [0.5, 1.0])
    assert half == pytest.approx(within.mean())  # an hour; half a year is none
    assert whole == pytest.approx(found.broken)


def test_all_moves_of_whole_numbers_and_drawn_ones() -> None:
    x = people(9)[0]
    assert len(list(every_move(x, {"age": 1.0, "hours": 2.9}))) == 3 * 5
    draw = np.random.default_rng(0)
    whole = {"age": True, "hours": False}
    for moved in drawn_moves(x, WIDTHS, whole, 20, draw):
        for name, width in WIDTHS.items():
            assert (moved[name] - x[name]).abs().max() <= width
        assert (moved.age == moved.age.round()).all()
        assert (moved.job == x.job).all()


def test_a_constant_list_is_not_individual() -> None:
    always = Additive(terms=lambda rows: np.tile([5.0, 4.0, 3.0, 2.0, 1.0], (len(rows), 1)))
    x = people(20)[0]
    found = under_moves(always, x, list(every_move(x, WIDTHS)), [x[:5]], 2)
    assert (found.broken, found.kept, found.overlap, found.kappa) == (0.0, 1.0, 1.0, None)
