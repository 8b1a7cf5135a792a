"""The one form of trees: thresholds that say what other comparisons do, and trees that hold."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from r2et.core.arrays import Floats
from r2et.trees.form import (
    UNSEEN,
    Column,
    Ensemble,
    Tree,
    as_tree,
    below,
    is_below,
    place_of,
    single_below,
)

SINGLE = np.finfo(np.float32)
LARGEST = float(SINGLE.max)
FIRST_INFINITE = 3.4028235677973366e38  # half-way between the largest and the next power of two
SPECIAL = np.array(
    [
        *(0.0, 5e-324, 7e-46, 1.4e-45, 1e-40, float(SINGLE.tiny), 1.0, 0.1, 1 / 3, 16777217.0),
        *(1e30, LARGEST, np.nextafter(FIRST_INFINITE, 0), FIRST_INFINITE, 1e39, 1e308, np.inf),
    ]
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


def drawn() -> Floats:
    """Doubles of all sizes, numbers of single precision, and middles between two of them."""
    draw = np.random.default_rng(0)
    doubles = draw.integers(-(2**63), 2**63 - 1, 800).view(np.float64)
    usual = draw.normal(size=400) * 10.0 ** draw.integers(-45, 38, 400)
    singles = usual.astype(np.float32)
    middles = (singles.astype(float) + np.nextafter(singles, np.float32(np.inf)).astype(float)) / 2
    found = np.concatenate([doubles, usual, singles.astype(float), middles, SPECIAL])
    return found[~np.isnan(found)]


def near(numbers: Floats) -> Iterator[Floats]:
    """Numbers, and the doubles on both sides of them."""
    yield numbers
    yield np.nextafter(numbers, np.inf)
    yield np.nextafter(numbers, -np.inf)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("equal", [False, True])
def test_single_precision_as_numpy_rounds(equal: bool) -> None:
    thresholds = drawn()
    found = single_below(thresholds, equal=equal)
    single = thresholds.astype(np.float32)
    wide = [single, np.nextafter(single, SINGLE.max), np.nextafter(single, SINGLE.min)]
    middles = [(single.astype(float) + each.astype(float)) / 2 for each in wide[1:]]
    several = [thresholds, found, *(each.astype(float) for each in wide), *middles]
    for own in [*several, *(np.full(len(found), each) for each in SPECIAL)]:
        for numbers in near(own[: len(found)]):
            rounded = numbers.astype(np.float32).astype(float)
            expected = rounded <= thresholds if equal else rounded < thresholds
            known = ~np.isnan(numbers)
            assert np.array_equal(is_below(numbers, found)[known], expected[known])


def test_double_precision() -> None:
    thresholds = drawn()
    found = below(thresholds)
    for own in [thresholds, *(np.full(len(found), each) for each in SPECIAL)]:
        for numbers in near(own):
            assert np.array_equal(is_below(numbers, found), numbers <= thresholds)


def test_thresholds_of_every_shape() -> None:
    assert single_below(0.5, equal=True).shape == ()
    assert single_below([0.5], equal=False).shape == (1,)
    assert single_below([], equal=False).shape == (0,)
    assert below(0.5) > 0.5


# --- trees --------------------------------------------------------------------------------------


def given(**changes: Any) -> Tree:
    """A tree of a root, a node to its left that asks for words, and leaves, in odd order."""
    usual = {
        "feature": [0, -1, -1, 1, -1, -1],
        "threshold": [0.5, 0.0, 0.0, np.nan, 0.0, 0.0],
        "left": [3, -1, -1, 4, -1, -1],
        "right": [1, -1, -1, 2, -1, -1],
        "value": [9.0, 1.0, 2.0, 9.0, 3.0, 4.0],
        "missing_left": [True, False, False, False, False, False],
        "words": {3: frozenset([0.0, UNSEEN])},
        "cover": [10.0, 4.0, 1.0, 6.0, 5.0, 0.0],
        "output": 2,
    }
    return as_tree(**{**usual, **changes})


def test_parents_come_first_and_what_no_way_leads_to_is_left_out() -> None:
    tree = given()
    assert tree.feature.tolist() == [0, 1, -1, -1, -1]
    assert tree.left.tolist() == [1, 2, -1, -1, -1]
    assert tree.right.tolist() == [4, 3, -1, -1, -1]
    assert tree.value.tolist() == [0.0, 0.0, 3.0, 2.0, 1.0]
    assert tree.words == {1: frozenset([0.0, UNSEEN])}
    assert tree.cover is not None
    assert tree.cover.tolist() == [10.0, 6.0, 5.0, 1.0, 4.0]
    assert tree.output == 2


def test_rows_come_to_leaves() -> None:
    tree = given()
    nan = np.nan
    rows = np.array(
        [[0.6, 0], [0.4, 0], [0.4, 1], [0.4, UNSEEN], [nan, nan], [0.5, 0], [-np.inf, 1]]
    )
    assert tree.value[tree.leaf_of(rows)].tolist() == [1, 3, 2, 3, 2, 1, 2]
    assert tree.goes_left(0, rows[:, 0]).tolist() == [0, 1, 1, 1, 1, 0, 1]
    assert tree.goes_left(1, rows[:, 1]).tolist() == [1, 1, 0, 1, 0, 1, 0]


def test_a_leaf_is_a_tree() -> None:
    tree = as_tree(feature=[-1], threshold=[0.0], left=[-1], right=[-1], value=[2.5])
    assert tree.cover is None
    assert tree.leaf_of(np.zeros((3, 0))).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"left": [0, -1, -1, 4, -1, -1]}, "nowhere, or back"),
        ({"left": [3, -1, -1, 0, -1, -1]}, "nowhere, or back"),
        ({"left": [6, -1, -1, 4, -1, -1]}, "nowhere, or back"),
        ({"left": [-1, -1, -1, 4, -1, -1]}, "nowhere, or back"),
        ({"left": [3, -1, -1, 1, -1, -1]}, "two ways"),
        ({"words": {}}, "threshold that is no number"),
        ({"threshold": [np.nan] * 6}, "threshold that is no number"),
        ({"value": [0.0, np.nan, 0.0, 0.0, 0.0, 0.0]}, "no finite number"),
        ({"value": [0.0, np.inf, 0.0, 0.0, 0.0, 0.0]}, "no finite number"),
        ({"cover": [10.0, 4.0, -1.0, 6.0, 5.0, 0.0]}, "cover"),
        ({"cover": [10.0, 4.0, np.nan, 6.0, 5.0, 0.0]}, "cover"),
        ({"cover": [1.0]}, "lengths"),
        ({"value": [1.0]}, "lengths"),
        ({"missing_left": [True, False]}, "lengths"),
    ],
)
def test_trees_that_do_not_hold_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        given(**changes)


def test_no_nodes_are_no_tree() -> None:
    with pytest.raises(ValueError, match="of none"):
        as_tree(feature=[], threshold=[], left=[], right=[], value=[])


# --- rows ---------------------------------------------------------------------------------------


def ensemble(scale: Any = "log-odds") -> Ensemble:
    leaf = as_tree(feature=[-1], threshold=[0.0], left=[-1], right=[-1], value=[0.25])
    columns = (Column(name="age"), Column(name="home_town", words=("u", "v")))
    return Ensemble(
        columns=columns,
        trees=(leaf,),
        constant=np.array([0.5]),
        scale=scale,
        classes=(0, 1),
        source="a test",
    )


def test_rows_of_a_table_and_of_an_array() -> None:
    table = pd.DataFrame({"home_town": ["v", None, "new"], "other": 1, "age": [1, 2, None]})
    expected = [[1, 1], [2, np.nan], [np.nan, UNSEEN]]
    np.testing.assert_array_equal(ensemble().numbers(table), expected)
    array = table[["age", "home_town"]].to_numpy(dtype=object)
    np.testing.assert_array_equal(ensemble().numbers(array), expected)
    spaced = table.rename(columns={"home_town": "home town"})
    np.testing.assert_array_equal(ensemble().numbers(spaced), expected)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"takes a column 'home_town': did you mean 'home_twon'"):
        ensemble().numbers(pd.DataFrame({"age": [1], "home_twon": ["u"]}))
    with pytest.raises(ValueError, match="rows of 2 columns"):
        ensemble().numbers(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="'age' must hold numbers"):
        ensemble().numbers(pd.DataFrame({"age": ["old"], "home_town": ["u"]}))


def test_a_column_of_one_of_two_alike_names_is_not_guessed() -> None:
    assert place_of("a_b_c", ["x", "a b_c"]) == 1
    assert place_of("a_b_c", ["a b_c", "a_b_c"]) == 1
    with pytest.raises(ValueError, match="takes a column 'a_b_c'"):
        place_of("a_b_c", ["a b_c", "a_b c"])


def test_codes_are_whole_numbers() -> None:
    column = Column(name="band", words=(10, 20))
    given = pd.Series([20.0, np.nan, 30, 10, np.int8(20)], dtype=object)
    np.testing.assert_array_equal(column.numbers(given), [1, np.nan, UNSEEN, 0, 1])
    for wrong in ("u", 10.5, np.inf):
        with pytest.raises(ValueError, match=r"'band' must hold whole numbers"):
            column.numbers([10, wrong])
    assert Column(name="share", words=(0.5, 1.0)).numbers([0.7, 1]).tolist() == [UNSEEN, 1.0]


def test_probabilities() -> None:
    rows = np.zeros((2, 2))
    np.testing.assert_allclose(ensemble()(rows), [[0.75], [0.75]])
    np.testing.assert_allclose(ensemble().probabilities(rows)[0, 1], 1 / (1 + np.exp(-0.75)))
    np.testing.assert_allclose(ensemble("probability").probabilities(rows)[0], [0.25, 0.75])
