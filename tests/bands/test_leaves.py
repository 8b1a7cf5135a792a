"""What is read of trees says what they say, and Shapley values by leaves are those of shap."""

import warnings
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from r2et.bands import leaves as by_leaves
from r2et.bands.contributions import contributions
from r2et.bands.leaves import Leaf, Leaves, leaves_of, mean_of, pattern_values

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
    for here, there, values in [
        ([1, 0], [0, 1], [0.5, -0.5]),
        ([1, 1], [0, 0], [0.5, 0.5]),
        ([1, 1], [0, 1], [1.0, 0.0]),
        ([1, 0], [1, 0], [0.0, 0.0]),
        ([0, 0], [0, 1], [0.0, 0.0]),
    ]:
        found = pattern_values(np.array([here], float), np.array([there], float), np.ones((1, 1)))
        np.testing.assert_allclose(found[:, 0, 0], values)


def made_leaves(count: int, attributes: int, seed: int) -> Leaves:
    """Leaves that ask any of some attributes of six bands whatever they like."""
    draw = np.random.default_rng(seed)
    leaves = [
        Leaf(
            value=float(draw.normal()),
            attributes=tuple(draw.permutation(attributes)[: draw.integers(1, attributes + 1)]),
            masks=tuple(draw.random((attributes, 6)) < 0.7),
        )
        for _ in range(count)
    ]
    leaves = [
        Leaf(value=leaf.value, attributes=leaf.attributes, masks=leaf.masks[: len(leaf.attributes)])
        for leaf in leaves
    ]
    return Leaves(leaves=leaves, constant=0.5)


def test_shapley_values_are_means_over_orders() -> None:
    leaves = made_leaves(7, 4, seed=0)
    draw = np.random.default_rng(1)
    x, references = draw.integers(0, 6, (5, 4)), draw.integers(0, 6, (2, 3, 4))
    slow = np.zeros((2, 5, 4))
    every = list(permutations(range(4)))
    for place in np.ndindex(2, 5, 3):
        mixed, person = references[place[0], place[2]].copy(), x[place[1]]
        for order in every:
            mixed[:] = references[place[0], place[2]]
            for attribute in order:
                before = leaves(mixed[None])[0]
                mixed[attribute] = person[attribute]
                slow[*place[:2], attribute] += (leaves(mixed[None])[0] - before) / (3 * len(every))
    np.testing.assert_allclose(leaves.contributions(x, references), slow, atol=1e-12)


@pytest.mark.parametrize("together", [1, 64, 2**30])
def test_leaves_may_be_looked_at_together(together: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(by_leaves, "MOST_TOLD_APART", together)
    leaves = made_leaves(12, 7, seed=2)
    assert sum(len(block.leaves) for block in leaves.blocks) == 12
    assert (len(leaves.blocks) == 12) == (together == 1)
    draw = np.random.default_rng(3)
    x, references = draw.integers(0, 6, (30, 7)), draw.integers(0, 6, (2, 5, 7))
    found = leaves.contributions(x, references)
    for own, reference in zip(found, references, strict=True):
        np.testing.assert_allclose(own, contributions(leaves, x, reference), atol=1e-12)


def test_deep_trees_of_many_attributes_are_those_of_shap() -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 12, (600, 14)).astype(float)  # shap cuts at other places than trees do
    y = (x.sum(1) + 12 * draw.normal(size=600) > 77).astype(int)
    model = HistGradientBoostingClassifier(max_iter=8, min_samples_leaf=2).fit(x, y)
    rows, reference = x[:40], x[300:320]
    columns = [np.unique(each, return_inverse=True) for each in np.concatenate([rows, reference]).T]
    some = np.stack([index for _, index in columns], 1)
    leaves = leaves_of(model, [values for values, _ in columns], range(14))
    assert leaves is not None
    assert max(len(leaf.attributes) for leaf in leaves.leaves) > 8
    found = leaves.contributions(some[:40], some[None, 40:])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shap's own, at its import
        import shap
    np.testing.assert_allclose(
        found, shap.TreeExplainer(model, reference).shap_values(rows), atol=1e-8
    )


def test_a_leaf_of_many_words_of_many_bands() -> None:
    # 30 answers that change at each of 40 bands: 40^30 cells, of which people are of two kinds.
    leaf = Leaf(
        value=3.0,
        attributes=tuple(range(30)),
        masks=tuple(np.arange(40) % 2 == 1 for _ in range(30)),
    )
    yes, no = np.full((1, 30), 7), np.full((1, 1, 30), 8)
    found = Leaves(leaves=[leaf], constant=0.0).contributions(yes, no)
    np.testing.assert_allclose(found, np.full((1, 1, 30), 0.1))


def test_no_leaves_say_nothing() -> None:
    nothing = Leaves(leaves=[], constant=2.0)
    np.testing.assert_array_equal(
        nothing.contributions(cells(3), cells(4)[None]), np.zeros((1, 3, 5))
    )


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 30])
@pytest.mark.parametrize("at_once", [7, 20_000])
def test_leaves_are_summed_one_by_one(
    count: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(count)
    some = []
    for _ in range(count):
        asked = draw.choice(5, draw.integers(1, 4), replace=False).tolist()
        masks = tuple(draw.random(COUNTS[place]) < 0.6 for place in asked)
        some.append(Leaf(value=float(draw.normal()), attributes=tuple(asked), masks=masks))
    monkeypatch.setattr(by_leaves, "AT_ONCE", at_once)
    x, leaves = cells(60, 8), Leaves(leaves=some, constant=0.5)
    slow = np.full(60, 0.5)
    for leaf in some:
        inside = [mask[x[:, at]] for at, mask in zip(leaf.attributes, leaf.masks, strict=True)]
        slow += np.where(np.all(inside, 0), leaf.value, 0.0)
    np.testing.assert_allclose(leaves(x), slow, atol=1e-12)
    np.testing.assert_array_equal(leaves(x[:9]), leaves(x)[:9])
    assert leaves(x[:0]).shape == (0,)


def test_the_mean_of_several_ensembles() -> None:
    both = [leaves_of(boosted(words), values(), range(5)) for words in (0, 2)]
    x = cells(50, 9)
    told = mean_of([each for each in both if each is not None])
    np.testing.assert_allclose(told(x), (both[0](x) + both[1](x)) / 2, atol=1e-12)
