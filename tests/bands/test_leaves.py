"""What is read of trees says what they say, and Shapley values by leaves are those of shap."""

import warnings

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from r2et.bands.contributions import contributions
from r2et.bands.leaves import leaves_of, pattern_weights

COUNTS = (5, 3, 4, 2, 6)


def cells(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, COUNTS, (rows, len(COUNTS)))


def boosted(words: int, **settings: object) -> HistGradientBoostingClassifier:
    """Trees of cells, the first columns being words."""
    x = cells(800)
    logits = x[:, 0] - 2.0 * (x[:, 1] == 1) * (x[:, 2] > 1) + (x[:, 3] == x[:, 4] % 2) - 1
    y = (logits + np.random.default_rng(1).logistic(size=len(x)) > 0).astype(int)
    marks = [place < words for place in range(len(COUNTS))]
    model = HistGradientBoostingClassifier(
        max_iter=20, max_leaf_nodes=8, categorical_features=marks if words else None, **settings
    )
    return model.fit(x.astype(float), y)


def values() -> list[np.ndarray]:
    return [np.arange(count, dtype=float) for count in COUNTS]


@pytest.mark.parametrize("words", [0, 2, 5])
def test_leaves_say_what_trees_say(words: int) -> None:
    model = boosted(words)
    leaves = leaves_of(model, values(), range(5))
    assert leaves is not None
    x = cells(300, 2)
    np.testing.assert_allclose(leaves(x), model.decision_function(x.astype(float)), atol=1e-12)


def test_words_that_were_not_there_and_missing_numbers_go_where_trees_send_them() -> None:
    x = cells(800).astype(float)
    x[x[:, 0] == 3, 0] = 2  # the word 3 is never seen
    x[::7, 4] = np.nan
    y = (np.nan_to_num(x[:, 4], nan=9) + x[:, 0] + np.random.default_rng(0).normal(size=800)) > 5
    model = HistGradientBoostingClassifier(
        max_iter=20, categorical_features=[True, True, False, False, False]
    ).fit(x, y.astype(int))
    shown = [*values()[:4], np.array([0.0, 1, 2, 3, 4, np.nan])]
    leaves = leaves_of(model, shown, range(5))
    assert leaves is not None
    some = cells(300, 3)
    raw = some.astype(float)
    raw[:, 4] = shown[4][some[:, 4]]
    np.testing.assert_allclose(leaves(some), model.decision_function(raw), atol=1e-12)


def test_shapley_values_are_those_of_the_definition_and_of_shap() -> None:
    model = boosted(0)
    leaves = leaves_of(model, values(), range(5))
    assert leaves is not None
    x, references = cells(20, 4), cells(60, 5).reshape(3, 20, 5)
    found = leaves.contributions(x, references)
    for draw, reference in enumerate(references):
        slow = contributions(leaves, x, reference)
        np.testing.assert_allclose(found[draw], slow, atol=1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shap's own, at its import
            import shap
        explained = shap.TreeExplainer(model, reference.astype(float)).shap_values(x.astype(float))
        np.testing.assert_allclose(found[draw], explained, atol=1e-8)
        whole = leaves(x) - leaves(reference).mean()
        np.testing.assert_allclose(found[draw].sum(1), whole, atol=1e-12)


def test_a_column_of_a_single_value_asks_nothing() -> None:
    model = boosted(2)
    shown = values()
    shown[3] = np.array([1.0])
    leaves = leaves_of(model, shown, range(5))
    assert leaves is not None
    assert all(3 not in leaf.attributes for leaf in leaves.leaves)
    x = cells(200, 6)
    fixed = x.copy()
    fixed[:, 3] = 1
    np.testing.assert_allclose(leaves(x), model.decision_function(fixed.astype(float)), atol=1e-12)


def test_a_value_at_a_threshold_goes_left() -> None:
    model = boosted(0)
    nodes = np.concatenate([tree.nodes for (tree,) in model._predictors])
    cut = nodes[(nodes["is_leaf"] == 0) & (nodes["feature_idx"] == 0)]["num_threshold"]
    shown = [np.unique(cut), *values()[1:]]
    leaves = leaves_of(model, shown, range(5))
    assert leaves is not None
    some = cells(300, 7)
    some[:, 0] = np.arange(300) % len(shown[0])
    raw = some.astype(float)
    raw[:, 0] = shown[0][some[:, 0]]
    np.testing.assert_allclose(leaves(some), model.decision_function(raw), atol=1e-12)


def test_what_cannot_be_read_is_none() -> None:
    assert leaves_of(object(), values(), range(5)) is None  # type: ignore[arg-type]
    large = boosted(0)
    assert leaves_of(large, [np.arange(1.0)] * 5, range(5)) is not None


def test_a_leaf_of_two_questions_by_hand() -> None:
    # The person answers the first with yes, the row the second: v (1-1)! 1! / 2! and the reverse.
    np.testing.assert_allclose(pattern_weights(2)[0b01, 0b10], [0.5, -0.5])
    np.testing.assert_allclose(pattern_weights(2)[0b11, 0b00], [0.5, 0.5])
    np.testing.assert_allclose(pattern_weights(2)[0b11, 0b10], [1.0, 0.0])
    np.testing.assert_allclose(pattern_weights(2)[0b01, 0b01], [0.0, 0.0])
    np.testing.assert_allclose(pattern_weights(2)[0b00, 0b10], [0.0, 0.0])
