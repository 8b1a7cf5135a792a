import json

import numpy as np
import pandas as pd
import pytest
import torch

from r2et.data.encoder import holds_words, numbers_of, values_of, words_of
from r2et.data.fitting import learnt
from r2et.data.schema import Category, Numeric, Schema, Values
from r2et.sklearn import merged
from refusals import refusal


def schema_of(table: pd.DataFrame) -> Schema:
    names = [str(name) for name in table.columns]
    columns: list[Values] = [
        words_of(table[name]) if holds_words(table[name]) else numbers_of(name, table[name])
        for name in names
    ]
    return learnt(names, columns, np.ones(len(table)))


def encoded(schema: Schema, table: pd.DataFrame) -> list[list[float]]:
    rows: list[list[float]] = schema.encode(values_of(schema, table)).tolist()
    return rows


def names_in(schema: Schema) -> tuple[str, ...]:
    return tuple(feature.name for feature in schema.features)


TABLE = pd.DataFrame(
    {
        "age": [20.0, 30.0, np.nan, 60.0],
        "job": ["clerk", "smith", "clerk", "none"],
        "owner": [True, False, False, True],
        "size": [1, 2, 2, 1],
        "town": ["A", None, "A", "B"],
    }
)


def test_a_table_is_encoded_as_the_rules_say() -> None:
    schema = schema_of(TABLE)
    assert names_in(schema) == (
        *("age", "age: missing"),
        *("job: clerk", "job: none", "job: smith"),
        "owner: True",
        "size",
        *("town: A", "town: B", "town: missing"),
    )
    # Age from 20 to 60, its lower median 30.
    assert encoded(schema, TABLE) == [
        [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        [0.25, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0],
        [0.25, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0],
        [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0],
    ]
    assert schema.groups == (0, 0, 1, 1, 1, 2, 3, 4, 4, 4)
    assert schema.one_hot == [[2, 3, 4], [7, 8, 9]]
    assert schema.curved == [0]


def test_new_rows_are_encoded_by_what_training_showed() -> None:
    schema = schema_of(TABLE)
    new = pd.DataFrame(
        {
            "age": [100, 0],
            "job": ["pilot", None],
            "owner": [None, "maybe"],
            "size": [np.nan, 3],
            "town": ["A", "C"],
        }
    )
    # Numbers beyond the range leave [0, 1]; size, never missing in training, is filled by 1, its
    # lower median; unknown words, and words that were never missing, are the average row.
    assert encoded(schema, new) == [
        [2.0, 0.0, 0.5, 0.25, 0.25, 0.5, 0.0, 1.0, 0.0, 0.0],
        [-0.5, 0.0, 0.5, 0.25, 0.25, 0.5, 2.0, 0.5, 0.25, 0.25],
    ]


def test_words_are_the_same_in_whatever_type_they_come() -> None:
    schema = schema_of(TABLE.astype({"size": "category", "owner": object}))
    shown = ["size: 2", "owner: True"]
    places = [names_in(schema).index(name) for name in shown]
    for size, owner in (([2, 1], [True, False]), ([2.0, 1.0], ["True", "False"])):
        new = TABLE.iloc[:2].assign(size=size, owner=owner)
        rows = torch.tensor(encoded(schema, new))[:, places]
        assert rows.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, 2, 3], False),
        ([1.5, None, 2.0], False),
        (pd.array([1, None, 3], dtype="Int64"), False),
        (np.array([1, 2, 3], dtype=object), False),
        ([True, False, True], True),
        (pd.array([True, None, False], dtype="boolean"), True),
        (["a", "b", None], True),
        (pd.Categorical([1, 2, 1]), True),
        (pd.array(["a", "b", None], dtype="string"), True),
        ([None, None, None], True),
    ],
)
def test_columns_of_words_are_told_from_columns_of_numbers(values: object, words: bool) -> None:
    table = pd.DataFrame({"a": values, "b": [1.0, 2.0, 3.0]})
    schema = schema_of(table)
    assert isinstance(schema.attributes[0], Category) == words
    assert np.isfinite(encoded(schema, table)).all()


def test_labels_are_ordered_as_numbers_then_words_then_missing() -> None:
    table = pd.DataFrame({"a": pd.Categorical(["10", "9", "missing", "b", None, "a"])})
    (column,) = schema_of(table).attributes
    assert isinstance(column, Category)
    assert column.labels == ("9", "10", "a", "b", "missing")
    assert column.shares == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 6, 2 / 6])


def test_columns_that_tell_nothing_are_harmless() -> None:
    table = pd.DataFrame({"same": [5, 5], "gone": [np.nan, np.nan], "word": ["a", "a"]})
    schema = schema_of(table)
    assert names_in(schema) == ("same", "gone", "gone: missing", "word: a")
    assert encoded(schema, table) == [[0.0, 0.0, 1.0, 1.0]] * 2
    assert schema.curved == []


def test_weights_count_as_rows_do() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    words = np.array(["a", "b", "b", "c", "a"], dtype=object)
    weights = np.array([1.0, 1.0, 1.0, 4.0, 1.0])
    times = weights.astype(int)
    whole = learnt(["v", "w"], [values.repeat(times), words.repeat(times)], np.ones(times.sum()))
    assert learnt(["v", "w"], [values, words], weights) == whole
    assert isinstance(whole.attributes[0], Numeric)
    assert whole.attributes[0].fill == 4.0  # 1, 2, 3, then 4 four times


# --- rows that are equal ------------------------------------------------------------------------


def test_equal_rows_become_one_in_an_order_of_their_own() -> None:
    generator = np.random.default_rng(0)
    values = generator.choice([0.0, 1.0, np.nan], 60)
    words = generator.choice(np.array(["a", "b"], dtype=object), 60)
    y, weights = generator.integers(0, 2, 60), generator.integers(0, 3, 60).astype(float)
    expected: dict[tuple[str, str, int], float] = {}
    for value, word, label, weight in zip(values, words, y, weights, strict=True):
        key = (str(value), word, int(label))
        expected[key] = expected.get(key, 0.0) + weight

    def kinds(chosen: np.ndarray) -> list[tuple[tuple[str, str, int], float]]:
        rows, totals = merged([values[chosen], words[chosen]], y[chosen], weights[chosen])
        at = chosen[rows]
        found = zip(values[at], words[at], y[at], totals, strict=True)
        return [((str(v), w, int(label)), total) for v, w, label, total in found]

    first = kinds(np.arange(60))
    assert dict(first) == {kind: total for kind, total in expected.items() if total}
    assert len(dict(first)) == len(first)
    assert kinds(generator.permutation(60)) == first


# --- what is refused ----------------------------------------------------------------------------


def test_columns_that_cannot_be_read_are_refused() -> None:
    def asked(values: object) -> str:
        return refusal(lambda: numbers_of("a", pd.DataFrame({"a": values})["a"]))

    assert "inf in row 1 of column 'a'" in asked([1.0, np.inf])
    assert "column 'a' must hold numbers" in asked(["1", "two"])
    assert "datetime64" in asked(pd.to_datetime(["2020-01-01", "2020-01-02"]))
    assert "Complex data not supported" in asked([1j, 2.0])


def test_a_column_that_identifies_rows_is_refused() -> None:
    table = pd.DataFrame({"id": [f"row {i}" for i in range(80)]})
    assert "identifies rows" in refusal(lambda: schema_of(table))
    few = pd.DataFrame({"id": [f"row {i}" for i in range(20)]})
    assert len(schema_of(few).features) == 20


def test_features_of_one_name_are_refused() -> None:
    table = pd.DataFrame({"a": ["x", "y", "z"], "a: x": [1, 2, 3]})
    assert "'a: x'" in refusal(lambda: schema_of(table))


def test_a_schema_is_made_again_from_what_is_told_of_it() -> None:
    schema = schema_of(TABLE)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    # As the first edition told it.
    numbers = {"fill": 30.0, "low": 20.0, "width": 40.0, "marked": True, "curved": True}
    words = {"labels": ["False", "True"], "shares": [0.5, 0.5]}
    old = Schema.from_json([{"name": "age", **numbers}, {"name": "owner", **words}])
    assert old.attributes == (schema.attributes[0], schema.attributes[2])
