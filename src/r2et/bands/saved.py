"""What a file of a fitted classifier holds: data only, every part of which is checked when read.

A score is saved as the leaves of its trees and the points of its bands, so that nothing of the
library that grew the trees is needed to say the same again.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd

from r2et.bands.attribute import Bands, NumberBands, WordBands
from r2et.bands.edges import Curve
from r2et.bands.guard import Attempt
from r2et.bands.leaves import MOST_ASKED, Leaf, Leaves
from r2et.bands.scores import CardScores, StepScore, Trees, TreeScores
from r2et.bands.table import Table, Values
from r2et.core.arrays import Floats
from r2et.core.limits import check_bytes
from r2et.core.reasons import Side
from r2et.core.settings import settings_from

FORMAT: Literal["r2et-stable-classifier/1"] = "r2et-stable-classifier/1"

KINDS = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|U\d{1,6}|O)")
"""Types of classes that can be saved: truth values, numbers, words."""

Number = int | float
Numbers = Number | tuple[Number, ...]
Label = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What a classifier was made with; of a reference, whether one was given."""

    width: Numbers | dict[str, Numbers] | None
    k: int
    side: Side
    threshold: float
    interactions: bool
    edges: dict[str, tuple[Number, ...]] | None
    special: dict[str, tuple[Number, ...]] | None
    monotone: dict[str, int] | None
    units: dict[str, str] | None
    codes: dict[str, str] | None
    weight: float
    auc_loss: float
    overlap_gain: float
    reference: bool
    reference_rows: int
    random_state: int | None


@dataclass(frozen=True, kw_only=True)
class SavedLeaf:
    """What is added where the band of each attribute asked is one of some."""

    value: float
    asked: dict[int, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class SavedTrees:
    """The leaves of trees of the attributes `among`."""

    among: tuple[int, ...]
    constant: float
    leaves: tuple[SavedLeaf, ...]


@dataclass(frozen=True, kw_only=True)
class SavedSteps:
    """A score of two classes."""

    points: dict[int, tuple[float, ...]]
    constant: float
    rest: SavedTrees | None
    trees: SavedTrees | None
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class SavedCard:
    """Points of all bands for each of several classes."""

    points: tuple[tuple[float, ...], ...]
    constant: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SavedForest:
    """Trees of each of several classes."""

    classes: tuple[SavedTrees, ...]


SavedScore = SavedSteps | SavedCard | SavedForest
Score = StepScore | CardScores | TreeScores


@dataclass(frozen=True, kw_only=True)
class SavedCurve:
    """What a teacher says along one number."""

    values: tuple[float, ...]
    people: tuple[float, ...]
    score: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class SavedClasses:
    """The classes, and the type of an array of them as numpy writes it."""

    kind: str
    labels: tuple[Label, ...]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """All of a fitted classifier.

    `named` says whether rows had names of columns, `shares` those of people in each band,
    `reference` the rows that contributions are told against, column by column, None being a number
    that is missing.
    """

    format: Literal["r2et-stable-classifier/1"] = FORMAT
    parameters: Parameters
    named: bool
    classes: SavedClasses
    bands: tuple[NumberBands | WordBands, ...]
    shares: tuple[tuple[float, ...], ...]
    widths: dict[str, tuple[float, ...]]
    curves: dict[str, SavedCurve]
    score: SavedSteps | SavedCard | SavedForest
    reference: tuple[tuple[float | str | None, ...], ...]
    search: tuple[Attempt, ...]


# --- to a file ----------------------------------------------------------------------------------


def text_of(saved: Saved) -> str:
    """A record as JSON, numbers to their last digit; refused if one is not finite."""
    return json.dumps(asdict(saved), allow_nan=False)


def as_data(name: str, value: Any) -> Any:
    """A parameter as JSON can hold it: mappings, tuples, numbers, words."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_data(name, each) for key, each in value.items()}
    if isinstance(value, Iterable):
        return tuple(as_data(name, each) for each in value)
    raise ValueError(
        f"{name} cannot be saved, since it holds {value!r}: set it to numbers or words first."
    )


def saved_classes(classes: Values) -> SavedClasses:
    """Classes as a file holds them."""
    labels = tuple(as_data("the target", each) for each in classes.tolist())
    return SavedClasses(kind=classes.dtype.str, labels=labels)


def saved_score(score: Score) -> SavedScore:
    """A score as a file holds it, refused if its trees could not be read."""
    if isinstance(score, TreeScores):
        return SavedForest(classes=tuple(_saved_trees(each) for each in score.trees))
    if isinstance(score, CardScores):
        return SavedCard(points=_rows(score.points), constant=_row(score.constant))
    return SavedSteps(
        points={place: _row(points) for place, points in score.points.items()},
        constant=float(score.constant),
        rest=None if score.rest is None else _saved_trees(score.rest),
        trees=None if score.trees is None else _saved_trees(score.trees),
        share=float(score.share),
    )


def _saved_trees(trees: Trees) -> SavedTrees:
    if trees.leaves is None:
        raise ValueError(
            "trees of this score cannot be read leaf by leaf, and nothing else of them is saved: "
            "train with interactions=False, or with the version of scikit-learn that r2et names."
        )
    return SavedTrees(
        among=tuple(int(place) for place in trees.among),
        constant=float(trees.leaves.constant),
        leaves=tuple(
            SavedLeaf(
                value=float(leaf.value),
                asked={
                    int(attribute): tuple(np.flatnonzero(mask).tolist())
                    for attribute, mask in zip(leaf.attributes, leaf.masks, strict=True)
                },
            )
            for leaf in trees.leaves.leaves
        ),
    )


def saved_curve(curve: Curve) -> SavedCurve:
    """A curve as a file holds it."""
    return SavedCurve(
        values=_row(curve.values), people=_row(curve.people), score=_rows(curve.score)
    )


def saved_column(values: Values) -> tuple[float | str | None, ...]:
    """A column of a reference: words, or numbers, None where one is missing."""
    if values.dtype == object:
        return tuple(str(word) for word in values)
    return tuple(None if math.isnan(number) else float(number) for number in values)


def _row(values: Floats) -> tuple[float, ...]:
    return tuple(np.asarray(values, dtype=np.float64).tolist())


def _rows(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(_row(each) for each in values)


# --- from a file --------------------------------------------------------------------------------


def read_saved(content: Any) -> Saved:
    """The record that values of JSON state, each of the right kind and within its range."""
    _check(_finite(content), "a number is not finite")
    saved = settings_from(Saved, content, "the file")
    _check_bands(saved)
    counts = [each.count for each in saved.bands]
    _check_score(saved.score, counts, len(saved.classes.labels))
    for own, count in zip(saved.shares, counts, strict=True):
        _check(len(own) == count and min(own) >= 0, "a band has no share of people")
    numbers = {each.name for each in saved.bands if isinstance(each, NumberBands)}
    _check(set(saved.widths) == numbers, "the numbers that have a width are others")
    for widths in saved.widths.values():
        _check(bool(widths) and min(widths) >= 0, "a width is below 0")
    for name, curve in saved.curves.items():
        _check(name in numbers, f"{name!r} has a curve and is no number")
        _check_curve(curve)
    _check(len(saved.reference) == len(counts), "the reference has other columns")
    rows = {len(own) for own in saved.reference}
    _check(len(rows) == 1 and rows != {0}, "the columns of the reference differ in length")
    for each in saved.search:
        shares = [each.auc, each.trees_auc, each.lines_auc, *(each.broken or ())]
        within = all(0 <= share <= 1 for share in (*shares, each.overlap or 0.0))
        _check(within and each.weight >= 0, "an attempt came to no share")
    return saved


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _finite(content: Any) -> bool:
    """Whether all numbers within values of JSON are finite."""
    if isinstance(content, dict | list):
        return all(map(_finite, content.values() if isinstance(content, dict) else content))
    return not isinstance(content, float) or math.isfinite(content)


def _check_bands(saved: Saved) -> None:
    names = [each.name for each in saved.bands]
    _check(bool(names) and len(set(names)) == len(names), "two attributes have one name, or none")
    for each in saved.bands:
        if isinstance(each, NumberBands):
            for some in (each.edges, each.special):
                rising = all(low < high for low, high in pairwise(some))
                _check(rising, f"the edges of {each.name!r} do not rise")
        else:
            distinct = len(set(each.labels)) == len(each.labels)
            _check(distinct and each.count > 0, f"words of {each.name!r} are told twice, or none")


def _check_score(score: SavedScore, counts: Sequence[int], classes: int) -> None:
    if isinstance(score, SavedForest):
        _check(len(score.classes) == classes > 2, "a class has no trees")
        for trees in score.classes:
            _check_trees(trees, counts)
        return
    if isinstance(score, SavedCard):
        lengths = [len(each) for each in score.points]
        _check(lengths == [sum(counts)] * classes, "a band has no points")
        _check(len(score.constant) == classes > 2, "a class has no points")
        return
    _check(classes == 2, "the score is one of two classes")
    for place, points in score.points.items():
        _check(0 <= place < len(counts), "points are those of no attribute")
        _check(len(points) == counts[place], "a band has no points")
    _check(0 <= score.share <= 1, "trees count as no share of the score")
    for some in (score.rest, score.trees):
        if some is not None:
            _check_trees(some, counts)


def _check_trees(trees: SavedTrees, counts: Sequence[int]) -> None:
    among = set(trees.among)
    _check(among <= set(range(len(counts))), "trees look at no attribute")
    for leaf in trees.leaves:
        _check(among >= set(leaf.asked), "a leaf asks what its tree does not look at")
        _check(1 <= len(leaf.asked) <= MOST_ASKED, "a leaf asks none, or too many attributes")
        for place, bands in leaf.asked.items():
            within = all(0 <= band < counts[place] for band in bands)
            _check(within and bool(bands), "a leaf asks for no band")


def _check_curve(curve: SavedCurve) -> None:
    _check(len(curve.values) == len(curve.people) == len(curve.score), "a curve has gaps")
    _check(len({len(each) for each in curve.score}) <= 1, "a curve has gaps")
    _check(min(curve.people, default=0) >= 0, "fewer than no people have a value")


def restored_classes(saved: SavedClasses) -> Values:
    """The classes that were saved: distinct, rising, of a type that holds data only."""
    _check(KINDS.fullmatch(saved.kind) is not None, f"classes cannot be of type {saved.kind!r}")
    kind = np.dtype(saved.kind)
    check_bytes(len(saved.labels) * kind.itemsize, "its classes")
    found = np.array(saved.labels, dtype=kind)
    _check(found.tolist() == list(saved.labels), f"a class is not of type {saved.kind!r}")
    different = np.unique(found)
    _check(len(found) > 1 and np.array_equal(found, different), "classes do not rise")
    return found


def restored_score(saved: SavedScore, bands: Sequence[Bands]) -> Score:
    """The score that was saved, of these bands."""
    if isinstance(saved, SavedCard):
        points, constant = np.array(saved.points), np.array(saved.constant)
        return CardScores(bands=tuple(bands), points=points, constant=constant)
    counts = [each.count for each in bands]
    if isinstance(saved, SavedForest):
        return TreeScores(trees=tuple(_restored_trees(each, counts) for each in saved.classes))
    return StepScore(
        points={place: np.array(points) for place, points in saved.points.items()},
        constant=saved.constant,
        rest=None if saved.rest is None else _restored_trees(saved.rest, counts),
        trees=None if saved.trees is None else _restored_trees(saved.trees, counts),
        share=saved.share,
    )


def _restored_trees(saved: SavedTrees, counts: Sequence[int]) -> Trees:
    leaves = [
        Leaf(
            value=each.value,
            attributes=tuple(each.asked),
            masks=tuple(
                np.isin(np.arange(counts[place]), bands) for place, bands in each.asked.items()
            ),
        )
        for each in saved.leaves
    ]
    return Trees(among=saved.among, leaves=Leaves(leaves=leaves, constant=saved.constant))


def restored_curve(saved: SavedCurve) -> Curve:
    """The curve that was saved."""
    score = np.array(saved.score).reshape(len(saved.values), -1)
    return Curve(values=np.array(saved.values), people=np.array(saved.people), score=score)


def restored_reference(saved: Saved) -> Table:
    """The rows that contributions are told against."""
    columns: list[Values] = []
    for each, own in zip(saved.bands, saved.reference, strict=True):
        if isinstance(each, WordBands):
            _check(all(isinstance(word, str) for word in own), f"{each.name!r} holds no words")
            columns.append(np.array(own, dtype=object))
            continue
        _check(not any(isinstance(number, str) for number in own), f"{each.name!r} holds words")
        columns.append(np.array([math.nan if n is None else n for n in own], dtype=np.float64))
        _check(not np.isinf(columns[-1]).any(), f"{each.name!r} is without end")
    return Table([each.name for each in saved.bands], columns)


def frame_of(table: Table) -> pd.DataFrame:
    """The rows of a table as users have them."""
    return pd.DataFrame(dict(zip(*table, strict=True)))
