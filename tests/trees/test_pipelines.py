"""Pipelines taken apart: columns of features, thresholds to the last float, linear models."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    Perceptron,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from r2et import StableBinner
from r2et.bands.attribute import NumberBands
from r2et.bands.values import BandValues
from r2et.core.arrays import Floats
from r2et.trees.pipelines import (
    FOLLOWED,
    FUNCTIONS,
    Parts,
    calibrated,
    linear_parts,
    lowest_number,
    taken_apart,
    thresholds_in,
)
from refusals import refusal

NUMBERS, WORDS = ["age", "income", "debt"], ["job", "town"]
Table = tuple[pd.DataFrame, Any]


def people(rows: int = 240, seed: int = 0) -> Table:
    """Numbers, one whole, one with gaps; words, one with gaps, and rare ones."""
    draw = np.random.default_rng(seed)
    towns = np.array(["Bonn", "Kiel", "Ulm", "Zug"])
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 80, rows),
            "job": draw.choice(["clerk", "cook", "smith"], rows),
            "income": np.round(draw.lognormal(7, 1, rows), 2),
            "debt": draw.normal(size=rows) * 3,
            "town": draw.choice(towns, rows, p=[0.5, 0.46, 0.02, 0.02]),
        }
    )
    score = (table.age - 45) / 10 + (table.job == "cook") + table.debt / 3
    y = np.where(score + draw.logistic(size=rows) > 0, "yes", "no")
    table.loc[draw.random(rows) < 0.1, "debt"] = np.nan
    table.loc[draw.random(rows) < 0.1, "town"] = None
    return table, y


@pytest.fixture(scope="module")
def made() -> Table:
    return people()


@pytest.fixture(scope="module")
def whole(made: Table) -> pd.DataFrame:
    """The numbers, without gaps."""
    table = made[0][NUMBERS].copy()
    table["debt"] = table["debt"].fillna(0.5)
    return table


def apart(model: Any, rows: pd.DataFrame, y: Any) -> Parts:
    """The parts of a model that is fitted first."""
    parts = taken_apart(model.fit(rows, y), rows)
    assert parts is not None
    return parts


def sources(parts: Parts) -> list[str]:
    return [parts.names[place] for place in parts.sources]


def dense(shown: Any) -> Any:
    return shown.toarray() if sparse.issparse(shown) else np.asarray(shown)


# --- where features come from -------------------------------------------------------------------


def test_a_bare_model_is_its_own_part(made: Table) -> None:
    table, y = made[0][NUMBERS], made[1]
    model = HistGradientBoostingClassifier(max_iter=2)
    parts = apart(model, table, y)
    assert parts.estimator is model
    assert parts.names == tuple(NUMBERS)
    assert parts.sources == (0, 1, 2)
    assert parts.rising == (True, True, True)
    assert parts.shown(table) is table
    assert parts.alone(1, [1.5, 2.5]).tolist() == [[1.5], [2.5]]
    assert thresholds_in(parts, 2, [0.1, -3.0]).tolist() == [0.1, -3.0]


def mixed(**settings: Any) -> ColumnTransformer:
    """What most people do to tables."""
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    words = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="none"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=0.05),
    )
    return ColumnTransformer([("n", numbers, NUMBERS), ("w", words, WORDS)], **settings)


@pytest.mark.parametrize("threshold", [0.0, 1.0], ids=["dense", "sparse"])
def test_numbers_words_and_gaps(made: Table, threshold: float) -> None:
    table, y = made
    model = make_pipeline(mixed(sparse_threshold=threshold), LogisticRegression(max_iter=500))
    parts = apart(model, table, y)
    # An indicator of the gaps of debt, three jobs, then Bonn, Kiel, none and the rare ones.
    assert sources(parts) == [*NUMBERS, "debt", *["job"] * 3, *["town"] * 4]
    assert parts.rising == (*[True] * 4, *[False] * 7)
    own, whole = parts.shown(table), model[:-1].transform(table)
    assert type(own) is type(whole)
    assert sparse.issparse(own) == bool(threshold)
    assert np.array_equal(dense(own), dense(whole))


def test_a_column_alone_is_what_the_pipeline_makes_of_it(made: Table) -> None:
    table, y = made
    parts = apart(make_pipeline(mixed(), LogisticRegression(max_iter=500)), table, y)
    shown = dense(parts.shown(table))
    for place, name in enumerate(parts.names):
        values = list(table[name])  # no longer of the column's own type
        assert np.array_equal(parts.alone(place, values), shown[:, parts.features(place)])


def test_nested_pipelines_and_steps_that_do_nothing(made: Table) -> None:
    table, y = made
    model = Pipeline(
        [
            ("nothing", "passthrough"),
            ("inner", Pipeline([("mixed", mixed()), ("nothing", None)])),
            ("last", Pipeline([("again", VarianceThreshold()), ("model", LogisticRegression())])),
        ]
    )
    parts = apart(model, table, y)
    assert type(parts.estimator) is LogisticRegression
    assert set(sources(parts)) == set(table.columns)
    assert np.array_equal(
        dense(parts.shown(table)), dense(model[-1][:-1].transform(model[:-1].transform(table)))
    )


SELECTIONS: dict[str, Any] = {
    "names": ["income", "age"],
    "places": [2, 0],
    "places from the end": [-3, 0],
    "slice": slice(0, 3, 2),
    "slice of names": slice("income", "debt"),
    "mask": [True, False, True, False, False],
    "array": np.array([True, False, True, False, False]),
    "index": pd.Index(["income"]),
    "callable": make_column_selector("age|income"),
    "nothing": [],
}


@pytest.mark.parametrize("asked", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("rest", ["drop", "passthrough", StandardScaler()], ids=str)
def test_columns_are_asked_for_in_every_way(made: Table, asked: Any, rest: Any) -> None:
    table, y = made
    front = ColumnTransformer(
        [
            ("word", OneHotEncoder(drop="if_binary", sparse_output=False), ["job"]),
            ("gone", "drop", ["town"]),
            ("asked", MinMaxScaler(), asked),
            ("same", "passthrough", ["debt"]),
        ],
        remainder=rest,
        transformer_weights={"asked": 2.0},
    )
    front.set_output(transform="pandas")
    parts = apart(make_pipeline(front, HistGradientBoostingClassifier(max_iter=1)), table, y)
    # Names that pandas has been given end in the column, or in its word.
    told = [str(name).split("__")[1].split("_")[0] for name in parts.shown(table).columns]
    assert sources(parts) == told
    assert parts.rising == tuple(name in NUMBERS for name in told)


def test_columns_in_another_order_and_more_of_them(made: Table) -> None:
    table, y = made
    model = make_pipeline(mixed(), LogisticRegression(max_iter=500)).fit(table, y)
    other = table[table.columns[::-1]].assign(more=1.0)
    parts, before = taken_apart(model, other), taken_apart(model, table)
    assert parts is not None
    assert before is not None
    assert parts.names == tuple(table.columns)
    assert parts.sources == before.sources
    assert np.array_equal(dense(parts.shown(other)), dense(before.shown(table)))


def test_a_model_of_arrays(whole: pd.DataFrame, made: Table) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(whole.to_numpy(), made[1])
    parts = taken_apart(model, whole)
    assert parts is not None
    assert parts.names == tuple(NUMBERS)
    assert np.array_equal(parts.shown(whole), model[:-1].transform(whole.to_numpy()))


def log_one(x: Any) -> Any:
    return np.log1p(x)


ONES: dict[str, tuple[Any, bool]] = {
    "standard": (StandardScaler(), True),
    "standard of one": (StandardScaler(with_std=False), True),
    "minmax": (MinMaxScaler((-3, 5), clip=True), True),
    "maxabs": (MaxAbsScaler(), True),
    "robust": (RobustScaler(unit_variance=True), True),
    "quantile": (QuantileTransformer(n_quantiles=20), True),
    "quantile, normal": (QuantileTransformer(n_quantiles=20, output_distribution="normal"), False),
    "power": (PowerTransformer(), True),
    "imputer": (SimpleImputer(strategy="median"), True),
    "imputer of a number": (SimpleImputer(missing_values=40), False),
    "bins": (KBinsDiscretizer(5, encode="ordinal", quantile_method="averaged_inverted_cdf"), True),
    "binarizer": (Binarizer(threshold=30.0), True),
    "ordinal": (OrdinalEncoder(), False),
    "target": (TargetEncoder(), False),
    "same": (FunctionTransformer(), True),
    **{
        each.__name__: (FunctionTransformer(each, feature_names_out="one-to-one"), known.rising)
        for each, known in FUNCTIONS.items()
        if each not in (np.exp, np.exp2, np.expm1)  # of which there is no income
    },
}


@pytest.mark.parametrize(("transformer", "rises"), ONES.values(), ids=ONES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, on logarithms
def test_transformers_of_one_feature_for_each_column(
    whole: pd.DataFrame, made: Table, transformer: Any, rises: bool
) -> None:
    parts = apart(
        make_pipeline(transformer, HistGradientBoostingClassifier(max_iter=1)), whole, made[1]
    )
    assert parts.sources == (0, 1, 2)
    assert parts.rising == (rises,) * 3


def test_powers_of_positive_numbers(whole: pd.DataFrame, made: Table) -> None:
    table = whole[["age", "income"]]
    parts = apart(make_pipeline(PowerTransformer("box-cox"), LogisticRegression()), table, made[1])
    assert parts.rising == (True, True)


SEVERAL: dict[str, tuple[Any, list[str], list[str]]] = {
    "bins": (
        KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"),
        NUMBERS,
        [name for name in NUMBERS for _ in range(3)],
    ),
    "dense bins": (
        KBinsDiscretizer(4, encode="onehot-dense", strategy="uniform"),
        NUMBERS,
        [name for name in NUMBERS for _ in range(4)],
    ),
    "splines": (
        SplineTransformer(n_knots=4, degree=2, include_bias=False),
        NUMBERS,
        [name for name in NUMBERS for _ in range(4)],
    ),
    "one-hot": (OneHotEncoder(), WORDS, [*["job"] * 3, *["town"] * 5]),
    "one-hot, first dropped": (OneHotEncoder(drop="first"), WORDS, [*["job"] * 2, *["town"] * 4]),
    "one-hot, rare": (
        OneHotEncoder(max_categories=3, handle_unknown="infrequent_if_exist"),
        WORDS,
        [*["job"] * 3, *["town"] * 3],
    ),
    "one-hot, rare, dropped": (
        OneHotEncoder(max_categories=3, drop="first", sparse_output=False),
        WORDS,
        [*["job"] * 2, *["town"] * 2],
    ),
    "ordinal": (
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        WORDS,
        WORDS,
    ),
    "target": (TargetEncoder(), WORDS, WORDS),
    "indicator": (MissingIndicator(), ["age", "town", "debt"], ["town", "debt"]),
    "selected": (SelectKBest(k=2), ["age", "income"], ["age", "income"]),
}


@pytest.mark.parametrize(("transformer", "columns", "expected"), SEVERAL.values(), ids=SEVERAL)
def test_transformers_of_several_features(
    made: Table, transformer: Any, columns: list[str], expected: list[str]
) -> None:
    table, y = made[0][columns].copy(), made[1]
    if set(columns) == set(NUMBERS):
        table = table.fillna(0.5)
    parts = apart(make_pipeline(transformer, RandomForestClassifier(2)), table, y)
    assert sources(parts) == expected


def test_a_feature_for_each_class(made: Table) -> None:
    table, three = made[0][WORDS], np.arange(len(made[0])) % 3
    parts = apart(make_pipeline(TargetEncoder(), LogisticRegression()), table, three)
    assert sources(parts) == [*["job"] * 3, *["town"] * 3]


def test_features_that_are_selected(whole: pd.DataFrame, made: Table) -> None:
    table = whole.assign(little=np.arange(len(whole)) % 2 * 1e-3)[["little", *NUMBERS]]
    few = [
        VarianceThreshold(0.1),
        SelectKBest(k=1),
        SelectFromModel(DecisionTreeClassifier(max_depth=1), threshold=0.5),
    ]
    for selector in few:
        model = make_pipeline(selector, DecisionTreeClassifier())
        parts = apart(model, table, made[1])
        assert sources(parts) == list(model[0].get_feature_names_out())
        assert "little" not in sources(parts)


def test_a_union(whole: pd.DataFrame, made: Table) -> None:
    union = FeatureUnion(
        [
            ("same", "passthrough"),
            ("gone", "drop"),
            ("turned", StandardScaler()),
            ("picked", make_pipeline(MaxAbsScaler(), SelectKBest(k=3))),
        ],
        transformer_weights={"turned": -1.0},
    )
    parts = apart(make_pipeline(union, DecisionTreeClassifier()), whole, made[1])
    assert sources(parts) == NUMBERS * 3
    assert parts.rising == (*[True] * 3, *[False] * 3, *[True] * 3)


@pytest.mark.parametrize("encode", ["onehot", "ordinal"])
def test_a_binner(made: Table, encode: Any) -> None:
    table, y = made
    binner = StableBinner(encode=encode, penalty=0.01, special={"age": [40]}, random_state=0)
    model = make_pipeline(binner, RandomForestClassifier(2))
    parts = apart(model, table, y)
    bands = binner.attributes_
    if encode == "onehot":
        assert sources(parts) == [each.name for each in bands for _ in range(each.count)]
        assert not any(parts.rising)
        return
    assert sources(parts) == list(table.columns)
    assert parts.rising == tuple(
        isinstance(each, NumberBands) and each.name != "age" for each in bands
    )
    income = next(each for each in bands if each.name == "income")
    assert isinstance(income, NumberBands)
    codes = np.arange(1, len(income.edges) + 1) - 0.5
    assert thresholds_in(parts, 2, codes).tolist() == list(income.edges)


def test_values_of_bands(whole: pd.DataFrame, made: Table) -> None:
    name, other, *_ = NUMBERS
    edges = np.quantile(whole[name], [0.2, 0.5, 0.9])
    model = make_pipeline(BandValues({name: edges.tolist()}), DecisionTreeClassifier())
    parts = apart(model, whole, made[1])
    assert sources(parts) == NUMBERS
    assert parts.rising == (True, True, True)
    values = model[0].values_[name]
    middles = (values[1:] + values[:-1]) / 2
    assert thresholds_in(parts, 0, middles).tolist() == edges.tolist()
    assert thresholds_in(parts, NUMBERS.index(other), [0.5]).tolist() == [0.5]


def test_every_transformer_has_been_tried() -> None:
    tried = {type(each[0]) for each in (*ONES.values(), *SEVERAL.values())}
    others = {Pipeline, FeatureUnion, ColumnTransformer}
    selectors = {each for each in FOLLOWED if hasattr(each, "get_support")}
    assert tried | others | selectors == set(FOLLOWED)


# --- what cannot be taken apart -----------------------------------------------------------------


class Own(StandardScaler):  # type: ignore[misc]
    """A scaler that does more."""

    def transform(self, X: Any, copy: Any = None) -> Any:
        found = super().transform(X, copy)
        return found + found.sum(1, keepdims=True)


class OwnPipeline(Pipeline):  # type: ignore[misc]
    """A pipeline of its own kind."""


def mixing(x: Any) -> Any:
    return x - np.asarray(x).mean(1, keepdims=True)


UNKNOWN: dict[str, Any] = {
    "components": PCA(),
    "products": PolynomialFeatures(),
    "lengths": Normalizer(),
    "a subclass": Own(),
    "any function": FunctionTransformer(mixing, feature_names_out="one-to-one"),
    "a function that does one thing": FunctionTransformer(log_one, feature_names_out="one-to-one"),
    "a function with settings": FunctionTransformer(np.sqrt, kw_args={"where": True}),
    "in a union": FeatureUnion([("a", StandardScaler()), ("b", PCA())]),
    "among columns": make_column_transformer((PCA(), ["age", "debt"]), remainder="passthrough"),
    "in a pipeline": make_pipeline(StandardScaler(), PCA()),
}


@pytest.mark.parametrize("transformer", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_known_is_not_taken_apart(
    whole: pd.DataFrame, made: Table, transformer: Any
) -> None:
    table = whole + 20
    model = make_pipeline(transformer, DecisionTreeClassifier()).fit(table, made[1])
    assert taken_apart(model, table) is None


def test_pipelines_that_are_none(whole: pd.DataFrame, made: Table) -> None:
    steps = [("scale", StandardScaler()), ("model", LogisticRegression())]
    assert taken_apart(OwnPipeline(steps).fit(whole, made[1]), whole) is None
    nested = Pipeline([("inner", OwnPipeline(steps[:1])), steps[1]])
    assert taken_apart(nested.fit(whole, made[1]), whole) is None
    ends = Pipeline([("scale", StandardScaler()), ("end", "passthrough")])
    assert taken_apart(ends.fit(whole, made[1]), whole) is None


def test_a_transformer_that_lies_is_caught(whole: pd.DataFrame, made: Table) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(whole, made[1])
    true = model[0].transform
    model[0].transform = lambda x: true(x)[:, [1, 0, 2]]
    assert taken_apart(model, whole) is None
    model[0].transform = lambda x: mixing(true(x))
    assert taken_apart(model, whole) is None
    model[0].transform = lambda x: true(x)[:, :2]
    assert taken_apart(model, whole) is None
    model[0].transform = lambda x: true(x) * [1, -1, 1]
    parts = taken_apart(model, whole)
    assert parts is not None
    assert parts.rising == (True, False, True)


def test_columns_that_were_exchanged_are_caught(made: Table) -> None:
    table, y = made
    model = make_pipeline(mixed(), LogisticRegression(max_iter=500)).fit(table, y)
    at = model[0].output_indices_
    at["n"], at["w"] = slice(7, 11), slice(0, 7)
    assert taken_apart(model, table) is None


def test_refusals_are_those_of_the_pipeline(made: Table) -> None:
    table, y = made
    model = make_pipeline(mixed(), LogisticRegression(max_iter=500)).fit(table, y)
    assert "got none" in refusal(partial(taken_apart, model, table[:0]))
    assert "columns are missing" in refusal(partial(taken_apart, model, table[["age"]]))
    words = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(table[["job"]], y)
    assert "unknown categories" in refusal(
        partial(taken_apart, words, pd.DataFrame({"job": ["pope"]}))
    )


# --- thresholds ---------------------------------------------------------------------------------


def limits_of(features: Floats, draw: np.random.Generator) -> Floats:
    """Thresholds among features, on them, next to them, and far from all."""
    among = draw.uniform(features.min(), features.max(), 100)
    on = draw.choice(features, 60)
    near = [np.nextafter(on, -np.inf), np.nextafter(on, np.inf)]
    return np.concatenate([among, on, *near, [-1e300, 1e300, 0.0, -0.0, 5e-324]])


def check_exact(parts: Parts, feature: int, thresholds: Floats) -> Floats:
    """The thresholds found, after a look at both sides of them."""
    place = parts.sources[feature]
    at = list(parts.features(place)).index(feature)
    found = thresholds_in(parts, feature, thresholds)
    for side, value in ((False, np.nextafter(found, -np.inf)), (True, found)):
        inside = np.isfinite(value) & np.isfinite(found)
        if _single(parts, place):
            inside &= np.abs(value) < 1e30
        shown = parts.alone(place, value[inside])[:, at].astype(float)
        assert ((shown >= thresholds[inside]) == side).all()
    return found


def _single(parts: Parts, place: int) -> bool:
    return bool(parts.usual.dtypes.iloc[place] == np.float32)


RISING = {name: each for name, (each, rises) in ONES.items() if rises}


@pytest.mark.parametrize("transformer", RISING.values(), ids=RISING)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_thresholds_are_exact_to_the_last_float(
    whole: pd.DataFrame, made: Table, transformer: Any
) -> None:
    parts = apart(
        make_pipeline(transformer, HistGradientBoostingClassifier(max_iter=1)), whole, made[1]
    )
    draw = np.random.default_rng(1)
    for feature, name in ((0, "age"), (2, "debt")):
        shown = dense(parts.shown(whole))[:, feature].astype(float)
        shown = shown[np.isfinite(shown)]
        limits = limits_of(shown, draw)
        found = check_exact(parts, feature, limits)
        # What the model asks of the feature is what is asked of the column.
        values = whole[name].to_numpy(dtype=float)
        kept = values >= lowest_number(parts, feature)
        asked = parts.alone(parts.sources[feature], values[kept])[:, 0].astype(float)
        assert ((asked[:, None] < limits) == (values[kept, None] < found)).all()


@pytest.mark.parametrize("each", [np.exp, np.exp2, np.expm1], ids=lambda each: each.__name__)
def test_powers_of_e_and_two(whole: pd.DataFrame, made: Table, each: Any) -> None:
    table = whole[["age", "debt"]]
    model = make_pipeline(FunctionTransformer(each), MinMaxScaler(), DecisionTreeClassifier())
    parts = apart(model, table, made[1])
    assert parts.rising == (True, True)
    limits = limits_of(np.asarray(parts.shown(table))[:, 1], np.random.default_rng(2))
    found = check_exact(parts, 1, np.append(limits, np.finfo(float).max))
    assert found[-1] == np.inf  # the scaler refuses what has become infinite
    assert np.isneginf(found).any()


def test_thresholds_behind_several_steps(made: Table) -> None:
    table, y = made
    model = make_pipeline(
        mixed(), QuantileTransformer(n_quantiles=30), HistGradientBoostingClassifier(max_iter=1)
    )
    model[0].set_params(sparse_threshold=0.0)
    parts = apart(model, table, y)
    limits = np.linspace(0.01, 0.99, 120)
    for feature in np.flatnonzero(parts.rising[:3]):
        check_exact(parts, int(feature), limits)
    # Of gaps, an indicator says nothing about numbers.
    assert thresholds_in(parts, 3, [0.5]).tolist() == [np.inf]
    assert thresholds_in(parts, 3, []).tolist() == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "transformer", [StandardScaler(), SimpleImputer(), FunctionTransformer(np.sqrt)], ids=str
)
def test_thresholds_of_single_precision(whole: pd.DataFrame, made: Table, transformer: Any) -> None:
    table = whole.abs().astype(np.float32)
    parts = apart(make_pipeline(transformer, DecisionTreeClassifier()), table, made[1])
    assert parts.rising == (True,) * 3
    shown = dense(parts.shown(table))
    assert shown.dtype == np.float32
    own = shown[:, 2].astype(float)
    limits = limits_of(own, np.random.default_rng(3))
    found = check_exact(parts, 2, limits)
    values = table["debt"].to_numpy()
    assert ((own[:, None] < limits) == (values[:, None] < found)).all()


def test_functions_keep_the_order_of_double_precision_only(
    whole: pd.DataFrame, made: Table
) -> None:
    table = whole.abs().astype(np.float32) + np.float32(1)
    for transformer in (FunctionTransformer(np.log), PowerTransformer()):
        parts = apart(make_pipeline(transformer, DecisionTreeClassifier()), table, made[1])
        assert not any(parts.rising)


def test_short_whole_numbers_are_computed_otherwise(whole: pd.DataFrame, made: Table) -> None:
    # numpy takes the root of a short whole number in single precision.
    table = whole.assign(age=whole["age"].astype(np.int16))
    front = make_column_transformer((FunctionTransformer(np.sqrt), ["age"]))
    parts = apart(make_pipeline(front, DecisionTreeClassifier()), table, made[1])
    assert parts.rising == (False,)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_that_have_no_logarithm(made: Table) -> None:
    table, y = people(seed=3)
    table = table[["debt", "income"]].fillna(0.5)
    table["debt"] = table["debt"].abs()
    first = make_pipeline(FunctionTransformer(np.log1p), HistGradientBoostingClassifier(max_iter=1))
    parts = apart(first, table, y)
    assert parts.rising == (True, True)
    assert lowest_number(parts, 0) == -1
    # Filled by the mean, what has no logarithm is above what has a low one.
    filled = make_pipeline(
        FunctionTransformer(np.log1p), SimpleImputer(add_indicator=True), DecisionTreeClassifier()
    )
    assert apart(filled, table, y).rising == (False, False)


def test_ranks_that_fall_are_not_rising() -> None:
    # The float below a quantile may, as it is computed, be ranked above it: of few tables it is.
    assert {_ranks(seed) for seed in range(150)} == {True, False}


def _ranks(seed: int) -> bool:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame({"x": np.exp(draw.normal(size=400) * 3)})
    model = make_pipeline(QuantileTransformer(n_quantiles=399), DecisionTreeClassifier(max_depth=1))
    parts = apart(model, table, np.arange(400) % 2)
    knots = model[0].quantiles_
    near = np.sort(np.concatenate([knots, np.nextafter(knots, -np.inf)]), axis=0)
    ranks = model[0].transform(pd.DataFrame(near, columns=["x"]))
    # Whatever is said to rise does.
    assert not parts.rising[0] or (np.diff(ranks[:, 0]) >= 0).all()
    return parts.rising[0]


def test_a_feature_that_does_not_rise_has_no_threshold(made: Table) -> None:
    table, y = made
    parts = apart(make_pipeline(mixed(), LogisticRegression(max_iter=500)), table, y)
    assert "does not rise" in refusal(partial(thresholds_in, parts, 5, [0.5]))


# --- calibrated and linear models ---------------------------------------------------------------


def log_odds(model: Any, rows: Any) -> Floats:
    both = model.predict_proba(rows)
    found: Floats = np.log(both[:, 1]) - np.log(both[:, 0])
    return found


BASES: dict[str, Any] = {
    "decision": LogisticRegression(),
    "svm": LinearSVC(),
    "probability": RandomForestClassifier(5, max_depth=3, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LinearSVC()),
}


@pytest.mark.parametrize("method", ["sigmoid", "temperature"])
@pytest.mark.parametrize("name", BASES)
def test_calibrated_log_odds(whole: pd.DataFrame, made: Table, name: str, method: str) -> None:
    table = whole / [10, 1000, 1]
    model = CalibratedClassifierCV(BASES[name], method=method, ensemble=False, cv=3)
    found = calibrated(model.fit(table, made[1]))
    if name == "probability" and method == "temperature":
        assert found is None
        return
    assert found is not None
    assert found.of == ("probability" if name == "probability" else "decision")
    base = found.estimator
    f = base.decision_function(table) if found.of == "decision" else base.predict_proba(table)[:, 1]
    np.testing.assert_allclose(found.slope * f + found.shift, log_odds(model, table), atol=1e-9)


def test_a_frozen_model_that_is_calibrated(whole: pd.DataFrame, made: Table) -> None:
    base = RandomForestClassifier(5, max_depth=3).fit(whole, made[1])
    model = CalibratedClassifierCV(FrozenEstimator(base), ensemble=False).fit(whole, made[1])
    found = calibrated(model)
    assert found is not None
    assert found.estimator is base
    f = base.predict_proba(whole)[:, 1]
    np.testing.assert_allclose(found.slope * f + found.shift, log_odds(model, whole), atol=1e-9)


def test_other_calibrations_are_no_line(whole: pd.DataFrame, made: Table) -> None:
    three = np.arange(len(whole)) % 3
    tree = DecisionTreeClassifier(max_depth=2)
    assert calibrated(tree.fit(whole, made[1])) is None
    assert calibrated(CalibratedClassifierCV(tree, cv=3).fit(whole, made[1])) is None
    for method, y in (("isotonic", made[1]), ("sigmoid", three), ("temperature", three)):
        model = CalibratedClassifierCV(tree, method=method, ensemble=False, cv=3)
        assert calibrated(model.fit(whole, y)) is None


LINEAR: dict[str, tuple[Any, str]] = {
    "logistic": (LogisticRegression(), "log-odds"),
    "logistic, no constant": (LogisticRegression(fit_intercept=False), "log-odds"),
    "logistic, liblinear": (LogisticRegression(solver="liblinear"), "log-odds"),
    "logistic, chosen": (
        LogisticRegressionCV(
            Cs=2, cv=2, l1_ratios=(0.0,), use_legacy_attributes=False, scoring="neg_log_loss"
        ),
        "log-odds",
    ),
    "descent": (SGDClassifier(loss="log_loss", random_state=0), "log-odds"),
    "ridge": (RidgeClassifier(), "score"),
    "svm": (LinearSVC(), "score"),
    "svm, no constant": (LinearSVC(fit_intercept=False), "score"),
    "perceptron": (Perceptron(), "score"),
}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_scores_are_the_decision_function(
    whole: pd.DataFrame, name: str, classes: int
) -> None:
    model, scale = LINEAR[name]
    x = StandardScaler().fit_transform(whole)
    y = np.array(["a", "b", "c"])[np.digitize(x[:, 0] + x[:, 2], [0.0, 1.0][: classes - 1])]
    if classes == 3 and "liblinear" in name:
        return  # which refuses more than two
    found = linear_parts(model.fit(x, y))
    if classes == 3 and name == "descent":
        assert found is None
        return
    assert found is not None
    assert found.scale == scale
    assert found.classes == ("a", "b", "c")[:classes]
    assert found.coefficients.shape == (1 if classes == 2 else 3, 3)
    scores = x @ found.coefficients.T + found.constant
    own = model.decision_function(x).reshape(len(x), -1)
    np.testing.assert_allclose(scores, own, atol=1e-9)
    if scale == "log-odds":
        told = expit(scores[:, 0]) if classes == 2 else softmax(scores, axis=1)[:, -1]
        np.testing.assert_allclose(told, model.predict_proba(x)[:, -1], atol=1e-9)


def test_coefficients_that_are_stored_sparsely(whole: pd.DataFrame, made: Table) -> None:
    model = LogisticRegression().fit(StandardScaler().fit_transform(whole), made[1])
    before = model.coef_.copy()
    found = linear_parts(model.sparsify())
    assert found is not None
    assert np.array_equal(found.coefficients, before)


class OwnLogistic(LogisticRegression):  # type: ignore[misc]
    """A logistic model of its own kind."""


def test_models_that_are_not_linear(whole: pd.DataFrame, made: Table) -> None:
    x, y = StandardScaler().fit_transform(whole), made[1]
    assert linear_parts(OwnLogistic().fit(x, y)) is None
    assert linear_parts(SGDClassifier(loss="modified_huber").fit(x, y)) is None
    assert linear_parts(DecisionTreeClassifier().fit(x, y)) is None
    assert linear_parts(RidgeClassifier().fit(x, np.eye(3, dtype=int)[np.arange(240) % 3])) is None
