"""A transformer that shows a model bands instead of numbers, so that small changes change nothing.

What breaks reasons is where a score's edges lie relative to where people stand. Here each number
gets few edges, where few people are, at numbers that people use. A model behind them sees bands
only: within one it cannot tell two people apart, and everything it could say within a few steps of
anybody can be enumerated.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from r2et.actionable.tables import usual_width
from r2et.bands.attribute import Bands, NumberBands, WordBands, one_hot, ones_at
from r2et.bands.boosting import given
from r2et.bands.edges import Curve, counted, stable_edges, thinned
from r2et.bands.table import Table, Values, held_rows, rows_of, sorted_rows, word_bands
from r2et.bands.teacher import Teacher, mean_auc, scorecard
from r2et.core.arrays import Codes, Floats
from r2et.core.naming import nearest
from r2et.data.encoder import holds_words, numbers_of, words_of
from r2et.metrics.individuality import overlap

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
USUAL_PENALTY = 0.01  # where there are too few rows to choose on
LEAST_SHARE, LEAST_ROWS = 0.005, 20  # of people in a band
COMPARED = 2000  # people whose reasons are compared
WIDE = 100  # columns, from which on most of them are not worth storing


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a penalty did on the held part: AUC, O within predicted class, and how many edges."""

    penalty: float
    auc: float
    overlap: float | None
    edges: int
    chosen: bool = False


class StableBinner(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Numbers in few bands whose edges lie where few people stand; words as they are.

    `width` says how far each number may move without changing anything for most people, in its own
    units: one number, or several that are to be survived at once, for each column by name; other
    columns get .05 standard deviations, whole numbers 1 at least if that is a small step for them
    (a quarter of a standard deviation or less) and 0 if not. Given `edges`, by column, are
    always respected; `special` values are bands of their own, as missing ones are. `monotone` says
    of a column that what it adds rises (1) or falls (-1) from band to band. `least_edges` 1 asks
    for an edge in each. `units` are for readers only.

    A `teacher`, any classifier, says what each number does to the score; unless given, boosted
    trees without interactions. `penalty` weighs people near an edge against what the score loses;
    unless given, it is the largest of a few that on a held part costs no more than `auc_loss` of
    the teacher's AUC and lets people share no more than `overlap_gain` more of their top `k`
    reasons.

    The same rows give the same bands, in whatever order.
    """

    def __init__(
        self,
        width: Mapping[str, float | Sequence[float]] | float | Sequence[float] | None = None,
        *,
        edges: Mapping[str, Sequence[float]] | None = None,
        special: Mapping[str, Sequence[float]] | None = None,
        monotone: Mapping[str, int] | None = None,
        least_edges: int = 0,
        units: Mapping[str, str] | None = None,
        teacher: Any = None,
        penalty: float | None = None,
        auc_loss: float = 0.001,
        overlap_gain: float = 0.03,
        k: int = 3,
        encode: Literal["onehot", "ordinal"] = "onehot",
        sparse_output: bool | Literal["auto"] = "auto",
        random_state: int = 0,
    ) -> None:
        self.width = width
        self.edges = edges
        self.special = special
        self.monotone = monotone
        self.least_edges = least_edges
        self.units = units
        self.teacher = teacher
        self.penalty = penalty
        self.auc_loss = auc_loss
        self.overlap_gain = overlap_gain
        self.k = k
        self.encode = encode
        self.sparse_output = sparse_output
        self.random_state = random_state

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Bands of all columns of X, by what they do for the classes y.

        A row counts as often as its `sample_weight` says, once unless given.
        """
        return self.learn(*self.begin(X, y, sample_weight))

    def learn(self, table: Table, codes: Codes, weights: Floats) -> Self:
        """Bands of rows that `begin` gave, by what they do for their classes."""
        self.search_: list[Trial] = []
        self.penalty_ = USUAL_PENALTY if self.penalty is None else float(self.penalty)
        if self.penalty is None and (held := held_rows(codes, self.random_state)) is not None:
            self.search_ = self._tried(table, codes, weights, held)
            self.penalty_ = next(each.penalty for each in self.search_ if each.chosen)
        curves = self._taught(table, codes, weights)[1]
        return self.take(table, self._bands(table, curves, self.penalty_), curves, weights)

    def begin(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Table, Codes, Floats]:
        """Rows to make bands of, in an order of their own, their classes' numbers and weights.

        Sets what holds of all bands: classes, and how far each number may move. A row of weight 0
        is none.
        """
        if y is None:
            raise ValueError(
                "bands keep what a score says of classes: fit needs y, one class for each row; "
                "requires y to be passed, but the target y is None."
            )
        table = self._table(X, reset=True)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        if len(labels) != len(table.columns[0]):
            raise ValueError(
                f"y must hold a class for each of {len(table.columns[0])} rows, got {len(labels)}."
            )
        weights = weights_of(sample_weight, len(labels))
        if (weights == 0).any():
            table, labels = rows_of(table, weights > 0), labels[weights > 0]
            weights = weights[weights > 0]
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self._check(table)
        table, codes, weights = sorted_rows(table, codes, weights)
        self.widths_ = {
            name: self._widths(name, own, weights)
            for name, own in zip(*table, strict=True)
            if own.dtype != object
        }
        return table, codes, weights

    def take(
        self, table: Table, bands: list[Bands], curves: Mapping[str, Curve], weights: Floats
    ) -> Self:
        """This binner with these bands, of the rows that they were found on."""
        counted = zip(bands, table.columns, strict=True)
        codes = {each.name: (each.codes(own), each.count) for each, own in counted}
        shares = {
            name: np.bincount(own, weights, count) / weights.sum()
            for name, (own, count) in codes.items()
        }
        return self.hold(bands, curves, shares)

    def hold(
        self, bands: list[Bands], curves: Mapping[str, Curve], shares: Mapping[str, Floats]
    ) -> Self:
        """This binner with these bands and the shares of people in each."""
        self.curves_, self.attributes_, self.shares_ = dict(curves), bands, dict(shares)
        self.edges_ = {
            each.name: list(each.edges)
            for each in self.attributes_
            if isinstance(each, NumberBands)
        }
        self.bands_ = {each.name: each.words for each in self.attributes_}
        return self

    def _table(self, X: Any, *, reset: bool) -> Table:
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, skip_check_array=True, reset=reset)
            if not len(X):
                raise ValueError(f"0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
            if X.shape[1] == 0:
                raise ValueError(
                    f"0 feature(s) (shape={X.shape}) while a minimum of 1 is required."
                )
            frame = X
        else:
            array = validate_data(
                self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset, accept_sparse=False
            )
            frame = pd.DataFrame(array, columns=[f"x{place}" for place in range(array.shape[1])])
        names = [str(name) for name in frame.columns]
        known = None if reset else {each.name: each for each in self.attributes_}
        columns: list[Values] = []
        for place, name in enumerate(names):
            own = frame.iloc[:, place]
            words = holds_words(own) if known is None else isinstance(known[name], WordBands)
            columns.append(words_of(own) if words else numbers_of(name, own))
        return Table(names, columns)

    def _check(self, table: Table) -> None:
        """Refuse settings that name no column, and values that nothing is made of."""
        numbers = [name for name, own in zip(*table, strict=True) if own.dtype != object]
        naming = {"width": self.width, "edges": self.edges, "special": self.special,
                  "monotone": self.monotone}  # fmt: skip
        for setting, value in naming.items():
            for name in value if isinstance(value, Mapping) else ():
                if name not in numbers:
                    raise ValueError(
                        f"{setting} names the column {name!r}, which holds no numbers or is not "
                        f"there: {nearest(str(name), numbers)}"
                    )
        for name, direction in (self.monotone or {}).items():
            if direction not in (-1, 0, 1):
                raise ValueError(f"monotone[{name!r}] must be 1, -1 or 0, got {direction!r}.")
        if self.encode not in ("onehot", "ordinal"):
            raise ValueError(f"encode must be 'onehot' or 'ordinal', got {self.encode!r}.")
        if self.penalty is not None and not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be a number >= 0, got {self.penalty!r}.")

    def _widths(self, name: str, numbers: Floats, weights: Floats) -> tuple[float, ...]:
        """How far a column may move, in its units."""
        stated = self.width.get(name) if isinstance(self.width, Mapping) else self.width
        if stated is None:
            known = self.known(name, numbers)
            return (usual_width(numbers[known], weights[known]),)
        widths = _finite("width", name, stated)
        if not widths or min(widths) < 0:
            raise ValueError(f"the width of {name!r} must be numbers >= 0, got {stated!r}.")
        return widths

    def known(self, name: str, numbers: Floats) -> NDArray[np.bool_]:
        """Which values are neither missing nor special."""
        special = np.array(_finite("special", name, (self.special or {}).get(name, ())))
        found: NDArray[np.bool_] = ~np.isnan(numbers) & ~np.isin(numbers, special)
        return found

    # --- what numbers do ------------------------------------------------------------------------

    def _taught(
        self, table: Table, y: Codes, weights: Floats
    ) -> tuple[Teacher | None, dict[str, Curve]]:
        """A teacher of these rows, None if there is but one class, and the curve of each number."""
        seed = self.random_state
        teacher = Teacher.of(table, y, self.teacher, seed, weights) if y.any() else None
        curves = {}
        for place, (name, own) in enumerate(zip(*table, strict=True)):
            if own.dtype != object:
                known = self.known(name, own)
                values, people = thinned(*counted(own[known], weights[known]))
                score = np.zeros((len(values), 1))
                if teacher is not None and len(values):
                    score = teacher.curve(place, values)
                curves[name] = Curve(values=values, people=people, score=score)
        return teacher, curves

    def _bands(self, table: Table, curves: Mapping[str, Curve], penalty: float) -> list[Bands]:
        """The bands of each column."""
        found: list[Bands] = []
        for name, own in zip(*table, strict=True):
            if own.dtype == object:
                found.append(word_bands(name, own))
                continue
            curve, bare = curves[name], self.bare(name, own)
            rows = float(curve.people.sum())
            edges = stable_edges(
                curve,
                self.widths_[name],
                penalty,
                least_people=max(LEAST_SHARE * rows, min(LEAST_ROWS, rows / 10)),
                given=bare.edges,
                monotone=(self.monotone or {}).get(name, 0),
                least_edges=self.least_edges,
            )
            found.append(replace(bare, edges=tuple(edges.tolist())))
        return found

    def bare(self, name: str, numbers: Floats) -> NumberBands:
        """The bands of a number with no edges but those given."""
        known = numbers[self.known(name, numbers)]
        return NumberBands(
            name=name,
            edges=tuple(sorted(set(_finite("edges", name, (self.edges or {}).get(name, ()))))),
            special=tuple(
                sorted(set(_finite("special", name, (self.special or {}).get(name, ()))))
            ),
            missing=bool(np.isnan(numbers).any()),
            whole=bool(len(known) and (known == np.round(known)).all()),
            unit=(self.units or {}).get(name, ""),
        )

    def _tried(
        self, table: Table, y: Codes, weights: Floats, held: NDArray[np.bool_]
    ) -> list[Trial]:
        """What each penalty does on held rows, and which of them is chosen."""
        learnt, seen = rows_of(table, ~held), y[~held]
        teacher, curves = self._taught(learnt, seen, weights[~held])
        assert teacher is not None
        judged, truth, counting = rows_of(table, held), y[held], given(weights[held])
        few = np.linspace(0, len(truth) - 1, min(len(truth), COMPARED)).astype(int)
        some = rows_of(judged, few)  # who are compared with one another
        scores = teacher.score(judged)
        auc = mean_auc(scores, truth, counting)
        shared = self._overlap(teacher.contributions(some), scores[few])
        trials = []
        for penalty in PENALTIES:
            bands = self._bands(table, curves, penalty)
            card = scorecard(bands, learnt, seen, weights[~held])
            found = card.score(judged)
            trials.append(
                Trial(
                    penalty=penalty,
                    auc=mean_auc(found, truth, counting),
                    overlap=self._overlap(card.contributions(some), found[few]),
                    edges=sum(len(each.edges) for each in bands if isinstance(each, NumberBands)),
                )
            )
        within = [
            each.auc >= auc - self.auc_loss
            and (
                shared is None or each.overlap is None or each.overlap <= shared + self.overlap_gain
            )
            for each in trials
        ]
        # Where none keeps both, the one that keeps most of the AUC.
        place = within.index(True) if any(within) else int(np.argmax([t.auc for t in trials]))
        return [
            Trial(**{**vars(each), "chosen": number == place}) for number, each in enumerate(trials)
        ]

    def _overlap(self, contributions: Floats, scores: Floats) -> float | None:
        """O of the k attributes that speak most against the predicted class, within it."""
        if contributions.shape[1] <= self.k:
            return None
        two = scores.ndim == 1
        classes = (scores > 0).astype(np.intp) if two else scores.argmax(1)
        towards = (
            np.where(classes[:, None] > 0, contributions[..., 0], -contributions[..., 0])
            if two
            else np.take_along_axis(contributions, classes[:, None, None], 2)[..., 0]
        )
        return overlap(torch.from_numpy(-towards), self.k, torch.from_numpy(classes))

    # --- transforming ---------------------------------------------------------------------------

    def transform(self, X: Any) -> Any:
        """The band of each value: a 0/1 column for each band, or (encode "ordinal") its number."""
        return self.encoded(self.codes(X))

    def codes(self, X: Any) -> Codes:
        """The number of the band of each value: (N, m)."""
        check_is_fitted(self)
        return self.cells(self._table(X, reset=False))

    def cells(self, table: Table) -> Codes:
        """The same of rows that were read already: (N, m)."""
        return np.stack(self._codes(table), 1)

    def values(self, X: Any) -> list[Values]:
        """The columns of X as bands are made of them: numbers with NaN, or words, (N,) each."""
        check_is_fitted(self)
        return self._table(X, reset=False).columns

    def encoded(self, codes: Codes) -> Any:
        """What `transform` makes of rows whose bands are known: (N, m) -> (N, columns)."""
        if self.encode == "ordinal":
            return codes.astype(np.float64)
        ones, columns = one_hot(codes, self.attributes_)
        rows = len(ones)
        if self._is_sparse(columns):
            return ones_at(ones, columns)
        found = np.zeros((rows, columns))
        found[np.arange(rows)[:, None], ones] = 1.0
        return found

    def _is_sparse(self, columns: int) -> bool:
        if self.sparse_output != "auto":
            return bool(self.sparse_output)
        asked = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        return columns > WIDE and asked == "default"

    def _codes(self, table: Table) -> list[Codes]:
        return [each.codes(own) for each, own in zip(self.attributes_, table.columns, strict=True)]

    def get_feature_names_out(self, input_features: Any = None) -> Values:
        """Names of the columns that `transform` makes: "age: 25 to 34"."""
        check_is_fitted(self)
        if self.encode == "ordinal":
            return np.array([each.name for each in self.attributes_], dtype=object)
        named = [f"{each.name}: {word}" for each in self.attributes_ for word in each.words]
        return np.array(named, dtype=object)

    def __sklearn_tags__(self) -> Any:
        """It takes missing values and words, and needs classes to learn from."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = True
        return tags

    # --- telling --------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """A row for each band: attribute, band in words, where it begins and ends, its share."""
        check_is_fitted(self)
        rows = []
        for each in self.attributes_:
            ranges = each.ranges if isinstance(each, NumberBands) else []
            for place, (word, share) in enumerate(
                zip(each.words, self.shares_[each.name], strict=True)
            ):
                low, high = ranges[place] if place < len(ranges) else (math.nan, math.nan)
                rows.append((each.name, word, low, high, share))
        return pd.DataFrame(rows, columns=["attribute", "band", "from", "to", "share"])

    def to_json(self) -> str:
        """The bands as JSON: name, edges, special values and words of each attribute."""
        check_is_fitted(self)
        return json.dumps(
            [
                {
                    "attribute": each.name,
                    **(
                        {"edges": list(each.edges), "special": list(each.special)}
                        if isinstance(each, NumberBands)
                        else {}
                    ),
                    "bands": each.words,
                }
                for each in self.attributes_
            ],
            indent=1,
        )

    def to_sql(self, table: str) -> str:
        """A query for the number of each attribute's band, of all rows of a table."""
        check_is_fitted(self)
        named = [(each, '"' + each.name.replace('"', '""') + '"') for each in self.attributes_]
        parts = [f"{each.sql(column)} AS {column}" for each, column in named]
        return f"SELECT {', '.join(parts)} FROM {table}"

    def drift(self, X: Any, period: Any = None) -> pd.DataFrame:
        """The population stability index of each attribute, a row for each period if given.

        sum over bands of (now - then) ln(now / then), shares of rows in each: below .1 little has
        changed, above .25 much. Empty bands count as half a row.
        """
        check_is_fitted(self)
        codes = self._codes(self._table(X, reset=False))
        periods = np.zeros(len(codes[0])) if period is None else column_or_1d(period)
        rows = {}
        for when in pd.unique(periods):
            chosen = periods == when
            rows[when] = {
                each.name: _stability_index(
                    self.shares_[each.name], np.bincount(own[chosen], minlength=each.count)
                )
                for each, own in zip(self.attributes_, codes, strict=True)
            }
        found = pd.DataFrame.from_dict(rows, orient="index")
        return found if period is not None else found.reset_index(drop=True)

    def plot_bands(self, name: str, ax: Any = None) -> Any:
        """A picture of one number: how many people have each value, what the score says, edges."""
        import matplotlib.pyplot as plt

        check_is_fitted(self)
        if name not in self.curves_:
            raise ValueError(f"there are no bands of {name!r}: {nearest(name, self.curves_)}")
        curve = self.curves_[name]
        ax = plt.subplots(figsize=(7, 3.2), layout="constrained")[1] if ax is None else ax
        low, high = curve.values[0], curve.values[-1]
        each = curve.whole and high - low <= 150  # whole numbers few enough to be shown apart
        bins = np.arange(low, high + 2) - 0.5 if each else np.linspace(low, high, 61)
        ax.hist(curve.values, bins=bins, weights=curve.people, color="#c9d6df")
        ax.set_xlabel(name)
        ax.set_ylabel("people")
        score = ax.twinx()
        centred = curve.score - np.average(curve.score, axis=0, weights=curve.people)
        score.plot(curve.values, centred, color="#1f4e79", linewidth=1.5)
        score.set_ylabel("what the score says")
        for edge in self.edges_[name]:
            ax.axvline(edge, color="#b3541e", linewidth=1.2)
        ax.set_title(f"{name}: {', '.join(self.bands_[name])}", fontsize=9, loc="left", wrap=True)
        return ax


def weights_of(sample_weight: Any, rows: int) -> Floats:
    """How often each of some rows counts, once unless it is said: (N,)."""
    found: Floats = _check_sample_weight(
        sample_weight, np.empty((rows, 0)), dtype=np.float64, ensure_non_negative=True
    )
    return found


def _stability_index(then: Floats, now: NDArray[np.intp]) -> float:
    count = int(now.sum())
    before = np.maximum(then, 0.5 / count)
    after = np.maximum(now / count, 0.5 / count)
    return float(((after - before) * np.log(after / before)).sum())


def _finite(setting: str, name: str, given: Any) -> tuple[float, ...]:
    """The numbers of a setting, one or several, refused unless they are finite."""
    several = [given] if isinstance(given, str) or not np.iterable(given) else list(given)
    try:
        numbers = tuple(float(each) for each in several)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if not all(math.isfinite(each) for each in numbers):
        raise ValueError(f"{setting} of {name!r} must be finite numbers, got {given!r}.")
    return numbers
