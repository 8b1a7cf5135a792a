"""Pipelines taken apart: the column that each feature comes from, and thresholds in its units.

A model at the end of a pipeline asks about features; people know the columns of their table. Where
each feature comes from one column, and is of a number a function that never falls, what the model
asks of the feature is a question about the column, and `thresholds_in` says exactly which.

Columns are told by what each known transformer learnt, then checked by what the pipeline does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import (
    RFE,
    RFECV,
    GenericUnivariateSelect,
    SelectFdr,
    SelectFpr,
    SelectFromModel,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
    SequentialFeatureSelector,
    VarianceThreshold,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    Perceptron,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC

from r2et.bands.attribute import NumberBands
from r2et.core.arrays import Codes, Floats, Mask
from r2et.trees.form import Scale

Values = NDArray[Any]
Steps = NDArray[np.int64]

PROBES = 100  # rows on which it is checked what a pipeline does
NEIGHBOURS = 4  # floats on both sides of a value that must not be in another order


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A pipeline whose every feature comes from one column of the table.

    `estimator` is the fitted model at its end, `names` are the columns in the order of the table
    that it was fitted on. For each feature of the estimator, `sources` has the place of its column,
    and `rising` says whether it never falls as the column, a number, grows, to the last float, from
    its `lowest_number` on. What a missing value becomes is another question; `alone` answers it.
    `steps` are what comes before the estimator, `usual` is one row that they take.
    """

    estimator: Any
    names: tuple[str, ...]
    sources: tuple[int, ...]
    rising: tuple[bool, ...]
    steps: tuple[Any, ...]
    usual: pd.DataFrame

    def shown(self, rows: pd.DataFrame) -> Any:
        """What the estimator is shown of rows, as the pipeline makes it: an array or a frame."""
        return _through(self.steps, rows)

    def features(self, place: int) -> Codes:
        """The features that come from the column of a place."""
        return np.flatnonzero(np.array(self.sources, dtype=np.intp) == place)

    def alone(self, place: int, values: Any) -> Values:
        """The features of one column for other values of it: (N, features of that column).

        All else is taken from a usual row.
        """
        column = pd.Series(values)
        kind = self.usual.dtypes.iloc[place]
        if _is_single(kind):
            # Transformers compute in the precision of the table: more of it would not be theirs.
            column = column.astype(kind)
        if not self.steps:
            return _dense(column.to_frame())
        rows = self.usual.iloc[np.zeros(len(column), dtype=np.intp)].reset_index(drop=True)
        rows.isetitem(place, column.array)
        return _dense(self.shown(rows))[:, self.features(place)]


def taken_apart(model: Any, rows: pd.DataFrame) -> Parts | None:
    """The parts of a fitted pipeline, or of a model without one, that takes rows such as these.

    None if a feature may come from several columns, or from a transformer that is not known.
    """
    if not len(rows):
        raise ValueError("a pipeline is taken apart by what it makes of rows, got none: give some.")
    stages = _stages(model)
    if stages is None:
        return None
    *front, estimator = stages
    if estimator is None:
        return None
    first = front[0] if front else estimator
    table = _as_fitted(first, rows)
    probe = table.iloc[np.unique(np.linspace(0, len(table) - 1, PROBES).astype(np.intp))]
    shown = _dense(_through(front, probe))  # the pipeline refuses rows before anything else does
    traces: list[Trace] | None = [
        Trace(source=place, rising=_is_number(kind), double=_is_double(kind))
        for place, kind in enumerate(table.dtypes)
    ]
    for each in front:
        traces = None if traces is None else _followed(each, traces)
    if traces is None or len(traces) != shown.shape[1] or not table.columns.is_unique:
        return None
    parts = Parts(
        estimator=estimator,
        names=tuple(str(name) for name in table.columns),
        sources=tuple(each.source for each in traces),
        rising=tuple(each.rising for each in traces),
        steps=tuple(front),
        usual=_usual(table),
    )
    if not (_is_what_it_shows(model, front, probe) and _is_apart(parts, probe, shown)):
        return None
    return replace(parts, rising=_seen_rising(parts, probe, shown))


# --- the pipeline as a chain --------------------------------------------------------------------


def _stages(model: Any) -> list[Any] | None:
    """The steps of a pipeline, nested ones among them, and its model; None if it is a kind of own.

    Its model is None if it has none.
    """
    if isinstance(model, Pipeline) and type(model) is not Pipeline:
        return None
    if type(model) is not Pipeline:
        return [None if _is_passed(model) else model]
    found: list[Any] = []
    for _, each in model.steps:
        own = _stages(each)
        if own is None:
            return None
        found = [*(step for step in found if step is not None), *own]
    return found


def _is_passed(step: Any) -> bool:
    """Whether a step leaves everything as it is."""
    return step is None or (isinstance(step, str) and step == "passthrough")


def _is_dropped(step: Any) -> bool:
    return isinstance(step, str) and step == "drop"


def _through(steps: Sequence[Any], rows: pd.DataFrame) -> Any:
    """Rows after all steps."""
    found: Any = rows
    if steps and not hasattr(steps[0], "feature_names_in_"):
        found = rows.to_numpy()  # it was fitted on an array, and would wonder about names
    for each in steps:
        found = each.transform(found)
    return found


def _as_fitted(first: Any, rows: pd.DataFrame) -> pd.DataFrame:
    """The columns of rows in the order in which the first step saw them, if it tells."""
    names = getattr(first, "feature_names_in_", None)
    if names is None or not set(names) <= set(rows.columns):
        return rows
    return rows[list(names)]


def _is_what_it_shows(model: Any, front: Sequence[Any], probe: pd.DataFrame) -> bool:
    """Whether the steps make of rows what the pipeline without its last step does."""
    if not front or type(model.steps[-1][1]) is Pipeline or len(model.steps) < 2:
        return True
    given: Any = probe if hasattr(front[0], "feature_names_in_") else probe.to_numpy()
    own, whole = _through(front, probe), model[:-1].transform(given)
    a, b = _dense(own), _dense(whole)
    alike = type(own) is type(whole) and a.dtype == b.dtype and a.shape == b.shape
    return alike and not _changed(a, b).any()


# --- what is checked by looking -----------------------------------------------------------------


def _is_apart(parts: Parts, probe: pd.DataFrame, shown: Values) -> bool:
    """Whether each column, shuffled, changes no features but its own."""
    if not parts.steps:
        return True
    draw = np.random.default_rng(0)
    sources = np.array(parts.sources, dtype=np.intp)
    for place in range(probe.shape[1]):
        moved = probe.copy()
        moved.isetitem(place, probe.iloc[:, place].array.take(draw.permutation(len(probe))))
        changed = _changed(shown, _dense(parts.shown(moved)))
        if (changed & (sources != place)).any():
            return False
    return True


def _seen_rising(parts: Parts, probe: pd.DataFrame, shown: Values) -> tuple[bool, ...]:
    """Which features that ought to rise do, at the values of rows and floats next to them."""
    found = np.array(parts.rising, dtype=bool)
    for place in range(probe.shape[1]):
        own = parts.features(place)
        if found[own].any():
            found[own] &= _rises(parts, place, probe.iloc[:, place], shown[:, own])
    return tuple(bool(each) for each in found)


def _rises(parts: Parts, place: int, column: "pd.Series[Any]", shown: Values) -> Mask:
    """Which features of one column of numbers rise, and are the same with all else usual."""
    known = column.notna().to_numpy()
    if not known.any():
        return np.ones(shown.shape[1], dtype=bool)
    kind = np.float32 if _is_single(column.dtype) else np.float64
    numbers = column[known].to_numpy(dtype=kind)
    near = np.unique(np.concatenate([numbers, *_around(numbers)]))
    try:
        with np.errstate(all="ignore"):
            features = parts.alone(place, near).astype(np.float64)
            again = parts.alone(place, numbers)
    except ValueError:
        return np.zeros(shown.shape[1], dtype=bool)
    numbered = [own[~np.isnan(own)] for own in features.T]
    ordered = np.array([bool((own[1:] >= own[:-1]).all()) for own in numbered])
    return ordered & ~_changed(shown[known], again)


def _around(numbers: Any) -> Iterable[Any]:
    """The floats below and above numbers, one after the other."""
    below = above = numbers
    for _ in range(NEIGHBOURS):
        below = np.nextafter(below, below.dtype.type(-np.inf))
        above = np.nextafter(above, above.dtype.type(np.inf))
        yield from (below, above)


def _changed(before: Values, after: Values) -> Mask:
    """In which columns two tables differ, missing values being the same."""
    lost, gone = pd.isna(before), pd.isna(after)
    found: Mask = lost != gone
    both = ~lost & ~gone
    found[both] = before[both] != after[both]
    return np.asarray(found.any(0))


def _dense(shown: Any) -> Values:
    """What a model is shown as an array: (N, features)."""
    if isinstance(shown, pd.DataFrame):
        return shown.to_numpy()
    return np.asarray(shown.toarray() if hasattr(shown, "toarray") else shown)


def _usual(table: pd.DataFrame) -> pd.DataFrame:
    """The row with the fewest gaps, filled by the first value of the column: one row."""
    gaps = table.isna().to_numpy()
    best = int(gaps.sum(1).argmin())
    at = np.where(gaps[best], gaps.argmin(0), best)
    cells = {place: table.iloc[[row], place].array for place, row in enumerate(at)}
    return pd.DataFrame(cells).set_axis(table.columns, axis=1)


def _is_number(kind: Any) -> bool:
    """Whether a column of this type holds numbers, truth values being words."""
    types = pd.api.types
    return types.is_integer_dtype(kind) or types.is_float_dtype(kind)


def _is_single(kind: Any) -> bool:
    """Whether a column of this type holds numbers of less than double precision."""
    return bool(pd.api.types.is_float_dtype(kind) and kind.itemsize < 8)


def _is_double(kind: Any) -> bool:
    """Whether numpy computes with numbers of this type in double precision."""
    return _is_number(kind) and kind.itemsize >= (8 if pd.api.types.is_float_dtype(kind) else 4)


# --- thresholds ---------------------------------------------------------------------------------


def thresholds_in(parts: Parts, feature: int, thresholds: Any) -> Floats:
    """Thresholds of a rising feature in the units of its column, exactly: (T,).

    Of finite numbers, those below the one found are those whose feature is below the threshold:
    inf if there is no other, -inf if there is none. It is found by halving all floats in their
    order, each time by what the pipeline does, as it does it.
    """
    if not parts.rising[feature]:
        raise ValueError(
            f"feature {feature} does not rise with its column, which has no threshold for it: ask "
            "`rising` first."
        )
    limits = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    place = parts.sources[feature]
    if not parts.steps and not _is_single(parts.usual.dtypes.iloc[place]):
        return limits  # what is compared is the column itself
    at = int(np.flatnonzero(parts.features(place) == feature)[0])
    with np.errstate(all="ignore"):
        lowest, highest = _accepted(parts, place)
        low = np.full(limits.shape, lowest - 1)
        high = np.full(limits.shape, highest + 1)
        while (wide := high - 1 > low).any():
            # Rounded down, and without their sum, which may be too large.
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            values = _floats(np.clip(middle, lowest, highest))
            reached = parts.alone(place, values)[:, at].astype(np.float64) >= limits
            high = np.where(wide & reached, middle, high)
            low = np.where(wide & ~reached, middle, low)
    found: Floats = np.where(high > highest, np.inf, _floats(np.minimum(high, highest)))
    return np.where(high <= lowest, -np.inf, found)


def lowest_number(parts: Parts, feature: int) -> float:
    """The least number whose rising feature is one, -inf if all are.

    Below it, as below 0 of a logarithm, the model is shown a missing value.
    """
    return float(thresholds_in(parts, feature, [-np.inf])[0])


def _accepted(parts: Parts, place: int) -> tuple[int, int]:
    """The least and the greatest number that the pipeline takes, as steps.

    Scalers refuse what an earlier step made infinite, logarithmic ones what is not positive.
    """
    own = pd.to_numeric(parts.usual.iloc[:, place]).to_numpy(dtype=np.float64, na_value=np.nan)
    taken = int(_steps(np.nan_to_num(own))[0])
    ends = []
    for end in (-_LARGEST, _LARGEST):
        inside, outside = (end, end) if _takes(parts, place, end) else (taken, end)
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            if _takes(parts, place, middle):
                inside = middle
            else:
                outside = middle
        ends.append(inside)
    return ends[0], ends[1]


def _takes(parts: Parts, place: int, step: int) -> bool:
    try:
        parts.alone(place, _floats(np.array([step])))
    except ValueError:
        return False
    return True


def _steps(numbers: Floats) -> Steps:
    """How many floats each number is above 0."""
    bits = numbers.view(np.int64)
    found: Steps = np.where(bits < 0, -(bits & np.iinfo(np.int64).max), bits)
    return found


def _floats(steps: Steps) -> Floats:
    """The number that is so many floats above 0."""
    bits = np.where(steps < 0, -steps | np.iinfo(np.int64).min, steps)
    return bits.view(np.float64)


_LARGEST = int(_steps(np.array([np.finfo(np.float64).max]))[0])


# --- what transformers do to columns ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Where a feature comes from: the place of its column, and how it follows it.

    It is `rising` if it never falls as the column, a number, grows; `total` if every number gives
    one, as negative ones under a logarithm do not; `double` if it is in double precision.
    """

    source: int
    rising: bool
    total: bool = True
    double: bool = True


Follow = Callable[[Any, list[Trace]], list[Trace] | None]


def _followed(transformer: Any, traces: list[Trace]) -> list[Trace] | None:
    """The features that a fitted transformer makes of others, None if it is not known."""
    if _is_passed(transformer):
        return traces
    kind = type(transformer)
    follow = FOLLOWED.get(kind) or OWN.get(f"{kind.__module__}.{kind.__qualname__}")
    if follow is None or getattr(transformer, "n_features_in_", len(traces)) != len(traces):
        return None
    return follow(transformer, traces)


def _still_rising(traces: Iterable[Trace], where: Any) -> list[Trace]:
    """The same features, rising where they also do so here."""
    found = zip(traces, np.asarray(where, dtype=bool).tolist(), strict=True)
    return [replace(each, rising=each.rising and rises) for each, rises in found]


def _spread(traces: list[Trace], widths: Iterable[int]) -> list[Trace]:
    """Several features for each, none of which rises."""
    return [
        replace(each, rising=False)
        for each, width in zip(traces, widths, strict=True)
        for _ in range(width)
    ]


def _of_pipeline(pipeline: Any, traces: list[Trace]) -> list[Trace] | None:
    found: list[Trace] | None = traces
    for _, each in pipeline.steps:
        found = None if found is None else _followed(each, found)
    return found


def _of_union(union: Any, traces: list[Trace]) -> list[Trace] | None:
    found: list[Trace] = []
    for name, each in union.transformer_list:
        if _is_dropped(each):
            continue
        own = _followed(each, traces)
        if own is None:
            return None
        found += _weighed(own, union.transformer_weights, name)
    return found


def _of_columns(transformer: Any, traces: list[Trace]) -> list[Trace] | None:
    names = getattr(transformer, "feature_names_in_", None)
    blocks: list[tuple[int, list[Trace]]] = []
    for name, each, asked in transformer.transformers_:
        places = _places(asked, names, len(traces))
        if _is_dropped(each) or not places:
            continue
        own = _followed(each, [traces[place] for place in places])
        made = transformer.output_indices_[name]
        if own is None or len(own) != made.stop - made.start:
            return None
        blocks.append((made.start, _weighed(own, transformer.transformer_weights, name)))
    return [each for _, own in sorted(blocks, key=lambda block: block[0]) for each in own]


def _places(asked: Any, names: Any, count: int) -> list[int]:
    """The places of columns that are asked for by name, place, slice or mask."""
    every = pd.Series(range(count), index=names)
    if isinstance(asked, slice):
        wanted: Any = asked
        named = isinstance(asked.start, str) or isinstance(asked.stop, str)
    else:
        wanted = [asked] if np.isscalar(asked) else list(asked)
        named = all(isinstance(each, str) for each in wanted)
    return [int(place) for place in (every.loc[wanted] if named else every.iloc[wanted])]


def _weighed(traces: list[Trace], weights: Any, name: str) -> list[Trace]:
    """Features multiplied by the weight of their transformer."""
    weight = (weights or {}).get(name)
    return _still_rising(traces, [weight is None or 0 < weight < np.inf] * len(traces))


def _scaled(scaler: Any, traces: list[Trace]) -> list[Trace]:
    """Shifts and positive factors keep the order of floats: each is rounded, and rounding does."""
    rising = np.ones(len(traces), dtype=bool)
    for shift in ("mean_", "center_", "min_"):
        if (own := getattr(scaler, shift, None)) is not None:
            rising &= np.isfinite(own)
    if (scale := getattr(scaler, "scale_", None)) is not None:
        with np.errstate(all="ignore"):
            # Of sparse tables the reciprocal is the factor.
            rising &= (scale > 0) & np.isfinite(scale) & np.isfinite(1 / scale)
    return _still_rising(traces, rising)


def _ranked(transformer: Any, traces: list[Trace]) -> list[Trace]:
    """Between two neighbouring quantiles ranks are lines, which rise: it may fail at quantiles.

    The quantile function of the normal distribution, as it is computed, falls here and there.
    """
    if transformer.output_distribution != "uniform":
        return _still_rising(traces, [False] * len(traces))
    knots = transformer.quantiles_
    near = [np.nextafter(knots, -np.inf), knots, np.nextafter(knots, np.inf)]
    probes: Any = np.sort(np.concatenate(near), axis=0)
    if (names := getattr(transformer, "feature_names_in_", None)) is not None:
        probes = pd.DataFrame(probes, columns=names)
    ranks = _dense(transformer.transform(probes))
    return _still_rising(traces, (ranks[1:] >= ranks[:-1]).all(0))


def _powered(transformer: Any, traces: list[Trace]) -> list[Trace]:
    """Powers are made of log1p and expm1, which keep the order in double precision only."""
    double = [each.double for each in traces]
    return _still_rising(traces, np.isfinite(transformer.lambdas_) & double)


def _computed(transformer: Any, traces: list[Trace]) -> list[Trace] | None:
    """Functions of numpy that are known to take each number by itself."""
    if transformer.func is None:
        return traces
    if transformer.kw_args or not isinstance(transformer.func, np.ufunc):
        return None
    function = FUNCTIONS.get(transformer.func)
    if function is None:
        return None
    return [
        replace(
            each,
            rising=each.rising and function.rising and (each.double or function.exact),
            total=each.total and function.total,
        )
        for each in traces
    ]


def _filled(imputer: Any, traces: list[Trace]) -> list[Trace]:
    """Numbers stay as they are, unless one of them, or what a logarithm left, is to be filled."""
    kept = imputer.keep_empty_features | ~pd.isna(imputer.statistics_)
    same = _only_gaps(imputer, traces)
    found = [each for each, stays in zip(same, kept, strict=True) if stays]
    return found if imputer.indicator_ is None else [*found, *_marked(imputer.indicator_, traces)]


def _marked(indicator: Any, traces: list[Trace]) -> list[Trace]:
    """Whether values are missing, which no number is: 0 for all of them never falls."""
    same = _only_gaps(indicator, traces)
    return [same[place] for place in indicator.features_]


def _only_gaps(transformer: Any, traces: list[Trace]) -> list[Trace]:
    """The features, rising where no number is missing in the eyes of a transformer."""
    gap = bool(pd.isna(transformer.missing_values))
    return _still_rising(traces, [gap and each.total for each in traces])


def _cut(transformer: Any, traces: list[Trace]) -> list[Trace]:
    if transformer.encode != "ordinal":
        return _spread(traces, transformer.n_bins_)
    return [replace(each, double=False) for each in traces]  # its dtype may be a shorter one


def _one_hot(encoder: Any, traces: list[Trace]) -> list[Trace]:
    widths = [len(each) for each in encoder.categories_]
    for place, rare in enumerate(getattr(encoder, "infrequent_categories_", ())):
        widths[place] -= 0 if rare is None else len(rare) - 1
    if encoder.drop_idx_ is not None:
        widths = [
            width - (dropped is not None)
            for width, dropped in zip(widths, encoder.drop_idx_, strict=True)
        ]
    return _spread(traces, widths)


def _evenly(count: Callable[[Any], int]) -> Follow:
    """As many features for each column, none rising, by how many there are in all."""

    def follow(transformer: Any, traces: list[Trace]) -> list[Trace] | None:
        each, rest = divmod(count(transformer), len(traces))
        return None if rest else _spread(traces, [each] * len(traces))

    return follow


def _banded(binner: Any, traces: list[Trace]) -> list[Trace]:
    if binner.encode != "ordinal":
        return _spread(traces, [each.count for each in binner.attributes_])
    return [
        replace(
            trace,
            rising=trace.rising
            and trace.total
            and isinstance(bands, NumberBands)
            and not bands.special,
        )
        for trace, bands in zip(traces, binner.attributes_, strict=True)
    ]


def _selected(selector: Any, traces: list[Trace]) -> list[Trace]:
    return [each for each, kept in zip(traces, selector.get_support(), strict=True) if kept]


def _same(_: Any, traces: list[Trace]) -> list[Trace]:
    return traces


@dataclass(frozen=True, kw_only=True)
class Function:
    """How a function of numpy follows a number.

    It is `exact` if it is the true result, rounded, which is `rising` in every precision. Others
    are so in double precision only, as far as millions of neighbouring floats can tell, on
    processors with and without wide vectors; of some even that is not so. `total` as of traces.
    """

    rising: bool = True
    exact: bool = False
    total: bool = True


_EXACT = Function(exact=True)
_LOGARITHM = Function(total=False)
_NOT_RISING = Function(rising=False)

FUNCTIONS: dict[np.ufunc, Function] = {
    np.sqrt: Function(exact=True, total=False),
    np.positive: _EXACT,
    np.rint: _EXACT,
    np.floor: _EXACT,
    np.ceil: _EXACT,
    np.trunc: _EXACT,
    np.sign: _EXACT,
    np.log: _LOGARITHM,
    np.log2: _LOGARITHM,
    np.log10: _LOGARITHM,
    np.log1p: _LOGARITHM,
    np.exp: Function(),
    np.exp2: Function(),
    np.expm1: Function(),
    np.arcsinh: Function(),
    np.arctan: Function(),
    # Both ought to rise, but as they are computed do not: tanh falls at 8, cbrt nearly everywhere.
    np.tanh: _NOT_RISING,
    np.cbrt: _NOT_RISING,
    np.absolute: _NOT_RISING,
    np.square: _NOT_RISING,
    np.negative: _NOT_RISING,
}

FOLLOWED: dict[type, Follow] = {
    Pipeline: _of_pipeline,
    FeatureUnion: _of_union,
    ColumnTransformer: _of_columns,
    StandardScaler: _scaled,
    MinMaxScaler: _scaled,
    MaxAbsScaler: _scaled,
    RobustScaler: _scaled,
    QuantileTransformer: _ranked,
    PowerTransformer: _powered,
    FunctionTransformer: _computed,
    SimpleImputer: _filled,
    MissingIndicator: _marked,
    KBinsDiscretizer: _cut,
    Binarizer: _same,
    OneHotEncoder: _one_hot,
    OrdinalEncoder: _evenly(lambda encoder: len(encoder.categories_)),
    TargetEncoder: _evenly(lambda encoder: len(encoder.encodings_)),
    SplineTransformer: _evenly(lambda splines: int(splines.n_features_out_)),
    **dict.fromkeys(
        (
            VarianceThreshold,
            SelectKBest,
            SelectPercentile,
            SelectFpr,
            SelectFdr,
            SelectFwe,
            GenericUnivariateSelect,
            SelectFromModel,
            RFE,
            RFECV,
            SequentialFeatureSelector,
        ),
        _selected,
    ),
}
OWN: dict[str, Follow] = {
    "r2et.bands.binner.StableBinner": _banded,
    "r2et.bands.values.BandValues": _same,
}
"""How those of this package are followed, by name: they are not needed where none is used."""


# --- calibrated and linear models ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibrated:
    """A model of two classes whose log-odds of the second are slope * f + shift.

    Here f is the decision function of the `estimator`, or its probability of the second class. Its
    own classes may be the numbers 0 and 1 instead of their names.
    """

    estimator: Any
    slope: float
    shift: float
    of: Literal["decision", "probability"]


def calibrated(model: Any) -> Calibrated | None:
    """What a calibrated classifier makes of one other, None if its log-odds are no line of it."""
    if type(model) is not CalibratedClassifierCV or len(model.calibrated_classifiers_) != 1:
        return None
    only = model.calibrated_classifiers_[0]
    estimator = only.estimator
    if len(model.classes_) != 2 or len(estimator.classes_) != 2:
        return None
    # Calibrators take the decision function wherever there is one.
    decides = hasattr(estimator, "decision_function")
    while type(estimator) is FrozenEstimator:
        estimator = estimator.estimator
    line = _line(only, decides=decides)
    if line is None:
        return None
    slope, shift = line
    of: Literal["decision", "probability"] = "decision" if decides else "probability"
    return Calibrated(estimator=estimator, slope=slope, shift=shift, of=of)


def _line(only: Any, *, decides: bool) -> tuple[float, float] | None:
    """Slope and shift of the log-odds that a calibrator gives, None if they are no line."""
    calibrator = only.calibrators[0]
    if only.method == "sigmoid":
        return -float(calibrator.a_), -float(calibrator.b_)
    if only.method == "temperature" and decides:
        # Scores of the two classes are -f and f; of probabilities they would be logarithms.
        return 2 * float(calibrator.beta_), 0.0
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """A linear model: scores are constant + coefficients @ features.

    Of two classes there is one output, that of the second, of more one for each: `coefficients`
    (outputs, features), `constant` (outputs,). On the scale "log-odds" they are those of a logistic
    model, of several classes of a softmax; a "score" has no probabilities.
    """

    coefficients: Floats
    constant: Floats
    scale: Scale
    classes: tuple[Any, ...]


def linear_parts(estimator: Any) -> Linear | None:
    """The coefficients of a fitted linear classifier, None if it is not one that is known."""
    scale = LINEAR.get(type(estimator))
    if scale is None or not _is_one_model(estimator, scale):
        return None
    coefficients = np.atleast_2d(_dense(estimator.coef_)).astype(np.float64)
    constant = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(coefficients))
    return Linear(
        coefficients=coefficients,
        constant=constant.copy(),
        scale=scale,
        classes=tuple(np.asarray(estimator.classes_).tolist()),
    )


def _is_one_model(estimator: Any, scale: Scale) -> bool:
    """Whether scores are on their scale together, unlike those of several models side by side."""
    if scale == "score":
        labels = getattr(getattr(estimator, "_label_binarizer", None), "y_type_", "")
        return not str(labels).startswith("multilabel")
    several = len(estimator.classes_) > 2
    if type(estimator) is SGDClassifier:
        return bool(estimator.loss == "log_loss") and not several
    chosen = getattr(estimator, "multi_class", "auto")
    if several:
        return bool(estimator.solver != "liblinear" and chosen != "ovr")
    return bool(chosen != "multinomial")


LINEAR: dict[type, Scale] = {
    LogisticRegression: "log-odds",
    LogisticRegressionCV: "log-odds",
    SGDClassifier: "log-odds",
    RidgeClassifier: "score",
    LinearSVC: "score",
    Perceptron: "score",
}
