"""A score of cells whose reasons stay put: points for what can move, trees for what cannot.

Score = what the attributes that no admissible move changes say together, with all their
interactions, + points for each band of each number that can move. How its edges and points are
found is told in `r2et.bands.descent`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from r2et.bands.attribute import Bands, NumberBands, WordBands
from r2et.bands.boosting import LARGE_ROWS, Ordered, boosted, given
from r2et.bands.descent import (
    SWEEPS,
    Movable,
    People,
    Standing,
    Steps,
    Wish,
    descend,
    standing,
)
from r2et.bands.edges import Curve, counted, edges_by_penalty, thinned
from r2et.bands.scores import Grown, StepScore, Trees
from r2et.core.arrays import Codes, Floats
from r2et.core.rng import stream

TRUST = 300.0  # rows of the rarer class as which a teacher's word counts beside the classes
OFFERS = (0.03, 0.1, 0.3, 3.0, 10.0)  # of this penalty, by which other edges are found
START = 0.3  # penalty of the first edges
JUDGED = 3000  # people whose reasons are judged
DRAWS, REFERENCE = 12, 20
"""Against how many draws of how many rows reasons are judged."""
LEAST_SHARE, LEAST_ROWS = 0.004, 10  # of people in a band
TIMES, MANY_TIMES = 2, 3  # that trees are grown, each stopped by other rows, to follow chance less
FEW_MOVING = 3  # numbers that move, of which each breaks reasons rather by points than by trees
TREES_SHARE = 0.7  # of a score, by trees that look at all attributes, where much moves
NEAR = 0.25  # of people, who can cross an edge: of more, such trees do not see it


# --- fitting ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows to learn from: classes 0 and 1, and what is known of each attribute.

    `bands` of the attributes in `values`, numbers that can move by `widths`, have no edges yet but
    those that must stay; `cells`, (N, m), are the bands of each row, which of such a number say
    only whether it is one. Each row counts as often as its weight says.
    """

    bands: Sequence[Bands]
    cells: Codes
    values: Mapping[int, Floats]
    widths: Mapping[int, tuple[float, ...]]
    monotone: Mapping[int, int]
    y: Codes
    weights: Floats

    @property
    def still(self) -> list[int]:
        """The attributes that no move changes."""
        return [place for place in range(len(self.bands)) if place not in self.values]

    def some(self, chosen: NDArray[Any]) -> "Rows":
        """Some of the rows."""
        return replace(
            self,
            cells=self.cells[chosen],
            values={place: values[chosen] for place, values in self.values.items()},
            y=self.y[chosen],
            weights=self.weights[chosen],
        )

    def within(self, bands: Sequence[Bands]) -> Codes:
        """The cells of the rows where movable numbers have these bands: (N, m)."""
        cells = self.cells.copy()
        for place, values in self.values.items():
            own = bands[place]
            assert isinstance(own, NumberBands)
            cells[:, place] = own.codes(values)
        return cells


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """A model in which each movable number stays apart, and how people stand to what it says.

    `score` says what is not of movable numbers; `curves` are those of these, `lacking` what a value
    that is no number adds.
    """

    rows: Rows
    model: "Says"
    score: StepScore
    curves: Mapping[int, Curve]
    lacking: Mapping[int, float]
    people: People
    references: Codes

    def __call__(self, rows: Rows) -> Floats:
        """Its own log-odds of rows: (N,)."""
        return self.model.decision_function(shown(rows))


def shown(rows: Rows) -> Floats:
    """What trees are shown: bands, and movable numbers as they are, NaN where none is: (N, m)."""
    x = rows.cells.astype(np.float64)
    for place, values in rows.values.items():
        x[:, place] = np.where(is_number(rows, place), values, np.nan)
    return x


def is_number(rows: Rows, place: int) -> NDArray[np.bool_]:
    """Whether the value of each row is a number, neither missing nor special: (N,)."""
    bands = rows.bands[place]
    assert isinstance(bands, NumberBands)
    return rows.cells[:, place] <= len(bands.edges)


class Says(Protocol):
    """Whatever gives log-odds of rows as they are shown."""

    def decision_function(self, x: Floats) -> Floats:
        """Log-odds: (N,)."""
        ...


def free_trees(rows: Rows, seed: int = 0) -> Ordered:
    """Boosted trees of all attributes as they are, with all interactions: what can be had."""
    words = [isinstance(each, WordBands) for each in rows.bands]
    everything = [set(range(len(rows.bands)))]
    return boosted(shown(rows), rows.y, words, everything, seed, rows.weights)


def separate_trees(
    rows: Rows, *, interactions: bool = True, seed: int = 0, times: int = 1
) -> Ordered:
    """Boosted trees in which each movable number stays apart, or without `interactions` all do.

    Grown several `times`, each stopped by other rows, they follow chance less.
    """
    still = rows.still
    words = [isinstance(each, WordBands) for each in rows.bands]
    joined = [set(still)] if interactions and still else [{place} for place in still]
    apart = [*joined, *({place} for place in rows.values)]
    return boosted(shown(rows), rows.y, words, apart, seed, rows.weights, times)


def lines_of(rows: Rows) -> "Lines":
    """Logistic regression: lines for numbers, points for words."""
    lines = Lines.of(rows)
    features = lines.features(shown(rows))
    model = LogisticRegression(max_iter=500).fit(features, rows.y, given(rows.weights))
    return replace(lines, slopes=model.coef_[0], constant=model.intercept_[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """Scores that are lines of numbers and points of words and of values that are no numbers.

    Of each attribute `counts` is the number of its words, or of its bands of numbers, if only these
    are shown, 0 where numbers are; `means` and `spreads` are those of numbers; `slopes`, (f,) or of
    several classes (f, C), what each feature adds.
    """

    words: Sequence[bool]
    counts: Sequence[int]
    others: Sequence[int]
    means: Floats
    spreads: Floats
    slopes: Floats
    constant: Any = 0.0

    @classmethod
    def of(cls, rows: Rows) -> "Lines":
        """Lines of these rows, their slopes still to be learnt."""
        x = shown(rows)
        words = [isinstance(each, WordBands) for each in rows.bands]
        others = [
            0 if isinstance(each, WordBands) else each.count - len(each.edges) - 1
            for each in rows.bands
        ]
        counts = [
            each.count if is_word else 0 if place in rows.values else each.count - other
            for place, (each, is_word, other) in enumerate(
                zip(rows.bands, words, others, strict=True)
            )
        ]
        bare = cls(
            words=words,
            counts=counts,
            others=others,
            means=np.zeros(len(words)),
            spreads=np.ones(len(words)),
            slopes=np.zeros(0),
        )
        numbers = np.where(bare._lacking(x), np.nan, x)
        counted = ~np.isnan(numbers) * rows.weights[:, None]
        count = np.where(counted.any(0), counted.sum(0), 1.0)
        means = (np.nan_to_num(numbers) * counted).sum(0) / count
        spreads = np.sqrt((np.nan_to_num(numbers - means) ** 2 * counted).sum(0) / count)
        return replace(bare, means=means, spreads=np.where(spreads > 0, spreads, 1.0))

    def _lacking(self, x: Floats) -> NDArray[np.bool_]:
        """Where a value is no number: (N, m)."""
        most = np.array([count if count else np.inf for count in self.counts])
        found: NDArray[np.bool_] = np.isnan(x) | (~np.array(self.words) & (x >= most))
        return found

    def features(self, x: Floats) -> Floats:
        """What is weighed: numbers of mean 0 and variance 1, ones for words and for no numbers."""
        lacking, columns = self._lacking(x), []
        for place, is_word in enumerate(self.words):
            own = x[:, place]
            if is_word:
                columns += [own == word for word in range(self.counts[place])]
                continue
            scaled = (own - self.means[place]) / self.spreads[place]
            columns.append(np.where(lacking[:, place], 0.0, scaled))
            if self.others[place]:
                columns.append(lacking[:, place])
        return np.stack(columns, 1).astype(np.float64)

    def decision_function(self, x: Floats) -> Floats:
        """Log-odds of two classes, (N,), or a score for each of several, (N, C)."""
        found: Floats = self.features(x) @ self.slopes + self.constant
        return found


def teacher_of(
    rows: Rows, model: Says, *, together: bool, judged: int = JUDGED, seed: int = 0
) -> Teacher:
    """What a model in which movable numbers stay apart says of each, and of `judged` people.

    With `together` the attributes that no move changes interact, as in trees; else all stay apart.
    """
    x, still = shown(rows), rows.still
    together = together and bool(still)
    usual = np.nan_to_num(x[0])
    constant = float(model.decision_function(usual[None])[0])

    def added(values: Mapping[int, Floats]) -> dict[int, Floats]:
        """What values of some attributes add, each of them alone: all are asked at once."""
        parts = []
        for place, own in values.items():
            changed = np.repeat(usual[None], len(own), 0)
            changed[:, place] = own
            parts.append(changed)
        if not parts:
            return {}
        said = model.decision_function(np.concatenate(parts)) - constant
        ends = np.cumsum([len(each) for each in parts])[:-1]
        return dict(zip(values, np.split(said, ends), strict=True))

    if together:
        assert isinstance(model, Ordered)
        shown_as = tuple(
            np.arange(each.count, dtype=np.float64) if place in still else usual[[place]]
            for place, each in enumerate(rows.bands)
        )
        trees = Trees.of(still, Grown(model=model, shown=shown_as))
        score = StepScore(points={}, rest=trees, constant=0.0)
    else:
        points = added({at: np.arange(rows.bands[at].count, dtype=np.float64) for at in still})
        score = StepScore(points=points, rest=None, constant=constant)
    draw = stream(seed, "bands", "judged")
    people = torch.randperm(len(x), generator=draw)[:judged].numpy()
    references = torch.randint(len(x), (DRAWS, REFERENCE), generator=draw).numpy()
    if given(rows.weights) is not None:
        people = drawn(rows.weights, people.shape, draw)
        references = drawn(rows.weights, references.shape, draw)
    speaking = score.contributions_of(rows.cells[people], rows.cells[references])
    flat = {at: curve_of(rows, at, lambda own: np.zeros((len(own), 1))) for at in rows.values}
    # Behind the values of a number stands what is none.
    along = added({place: np.append(curve.values, np.nan) for place, curve in flat.items()})
    return Teacher(
        rows=rows,
        model=model,
        score=score,
        curves={at: replace(curve, score=along[at][:-1, None]) for at, curve in flat.items()},
        lacking={place: float(own[-1]) for place, own in along.items()},
        people=People(
            base=score(rows.cells),
            y=rows.y.astype(np.float64),
            weights=rows.weights,
            judged=people,
            contributions=speaking[..., still],
        ),
        references=references,
    )


def curve_of(rows: Rows, place: int, score: Callable[[Floats], Floats]) -> Curve:
    """What is said along a movable number, at values that stand for those of all rows."""
    number = is_number(rows, place)
    different, people = counted(rows.values[place][number], rows.weights[number])
    different, people = thinned(different, people)
    return Curve(values=different, people=people, score=score(different))


def drawn(weights: Floats, shape: tuple[int, ...], draw: torch.Generator) -> Codes:
    """Numbers of rows, drawn as often as their weights say."""
    heavy = weights.cumsum()
    places = torch.rand(shape, generator=draw, dtype=torch.float64).numpy() * heavy[-1]
    return np.asarray(np.searchsorted(heavy, places, side="right").clip(max=len(weights) - 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """A score of cells, the bands they are made of, and what the teacher and it come to."""

    bands: list[Bands]
    score: StepScore
    taught: Standing | None
    reached: Standing | None


def steps_of(
    teacher: Teacher,
    wish: Wish,
    *,
    start: float = START,
    trust: float = TRUST,
    overlap_gain: float = 0.01,
    begin: Found | None = None,
    sweeps: int = SWEEPS,
    seed: int = 0,
) -> Found:
    """Bands and points of the movable numbers of what a teacher says.

    The first edges are those of a penalty `start`, or those of `begin`, what was found on other
    rows, if less is left to wish for these; `trust` says how far points follow the teacher rather
    than the rows, as so many rows of the rarer class. The limit of what people share is what they
    share of the teacher's reasons + `overlap_gain`. All numbers are gone through `sweeps` times.
    """
    places = sorted(teacher.rows.values)
    bare = [_movable(teacher, place) for place in places]
    offers = [
        _first(teacher, *each, [start * by for by in (1.0, *OFFERS)])
        for each in zip(places, bare, strict=True)
    ]
    numbers = [replace(number, offers=tuple(own)) for number, own in zip(bare, offers, strict=True)]
    first = [
        _means(teacher, place, number, number.offers[0])
        for place, number in zip(places, numbers, strict=True)
    ]
    taught = reached = None
    # With no more attributes than reasons, or none that can move, nothing can change.
    if numbers and len(teacher.rows.bands) > wish.k:
        people = _trusting(teacher, trust)
        curves = [_followed(teacher, *each) for each in zip(places, numbers, strict=True)]
        taught = standing(people, numbers, curves, wish)
        wish = replace(wish, most_overlap=taught.overlap + overlap_gain)
        if begin is not None:
            other = [
                _taken_over(begin, place, *each)
                for place, each in zip(places, zip(numbers, first, strict=True), strict=True)
            ]
            first = min(
                (first, other), key=lambda each: standing(people, numbers, each, wish).total
            )
        first, reached = descend(people, numbers, first, wish, sweeps=sweeps, seed=seed)
    bands, points = list(teacher.rows.bands), dict(teacher.score.points)
    for place, number, steps in zip(places, numbers, first, strict=True):
        known = teacher.rows.bands[place]
        assert isinstance(known, NumberBands)
        bands[place] = replace(known, edges=tuple(number.cuts[list(steps.edges)].tolist()))
        points[place] = steps.points
    score = replace(teacher.score, points=points)
    return Found(bands=bands, score=score, taught=taught, reached=reached)


def _taken_over(found: Found, place: int, number: Movable, otherwise: Steps) -> Steps:
    """Steps of other rows at the nearest places for edges, if these are as many."""
    bands, points = found.bands[place], found.score.points[place]
    assert isinstance(bands, NumberBands)
    if not len(number.cuts):
        return otherwise
    middles = (number.cuts[1:] + number.cuts[:-1]) / 2
    edges = tuple(np.unique(np.searchsorted(middles, bands.edges)).tolist())
    if len(edges) != len(bands.edges) or len(points) != len(edges) + 1 + number.others:
        return otherwise
    return Steps(edges=edges, points=points)


def with_trees(rows: Rows, found: Found, seed: int = 0, *, last: bool = True) -> StepScore:
    """The mean of a score and of trees that look at all attributes of the same bands at once.

    Of many rows in which many numbers move trees count more, and they do not see edges that many
    people stand near: each such edge costs many reasons. Trees that are not the `last` word, but
    only judge a weight, are grown once.
    """
    many = len(rows.y) >= LARGE_ROWS and len(rows.values) > FEW_MOVING
    most, share = (NEAR, TREES_SHARE) if many else (1.0, 0.5)
    shown = tuple(_told_apart(rows, *each, most) for each in enumerate(found.bands))
    cells = rows.within(found.bands)
    x = np.stack([own[codes] for own, codes in zip(shown, cells.T, strict=True)], 1)
    words = [isinstance(each, WordBands) for each in found.bands]
    everything, times = [set(range(len(words)))], (MANY_TIMES if many else TIMES) if last else 1
    model = boosted(x, rows.y, words, everything, seed, rows.weights, times, large=True)
    trees = Trees.of(range(len(words)), Grown(model=model, shown=shown))
    return replace(found.score, trees=trees, share=share)


def _told_apart(rows: Rows, place: int, bands: Bands, most: float) -> Floats:
    """A number for each band, the same beside edges that a larger share of people can cross."""
    if place not in rows.values or most >= 1:
        return np.arange(bands.count, dtype=np.float64)
    assert isinstance(bands, NumberBands)
    number, edges = is_number(rows, place), np.array(bands.edges)
    values, people = counted(rows.values[place][number], rows.weights[number])
    width = max(rows.widths[place])
    width = np.floor(width) if bands.whole else width
    before = np.concatenate([[0.0], people.cumsum()])
    # Who stands at the edge is behind it, and crosses it by any move down.
    first, last = np.searchsorted(values, edges - width), np.searchsorted(values, edges + width)
    near = (before[last] - before[first]) / max(before[-1], 1.0)
    groups = np.concatenate([[0], np.cumsum(near <= most)])
    others = groups[-1] + 1 + np.arange(bands.count - len(groups))
    return np.concatenate([groups, others]).astype(np.float64)


def _trusting(teacher: Teacher, trust: float) -> People:
    """People whose classes are mixed with what a teacher says of them.

    It counts as `trust` rows of the rarer class: of few rows, steps would follow chance.
    """
    y, weights = teacher.people.y, teacher.people.weights
    taught = 1 / (1 + np.exp(-teacher(teacher.rows)))
    rarer = min((weights * y).sum(), (weights * (1 - y)).sum())
    return replace(teacher.people, y=(rarer * y + trust * taught) / (rarer + trust))


def _movable(teacher: Teacher, place: int) -> Movable:
    """One number of the rows as a search for its edges sees it."""
    rows, curve, bands = teacher.rows, teacher.curves[place], teacher.rows.bands[place]
    assert isinstance(bands, NumberBands)
    inside = [edge for edge in bands.edges if curve.values[0] < edge <= curve.values[-1]]
    places = np.unique(np.concatenate([curve.cuts, inside, bands.edges]))
    others = bands.count - len(bands.edges) - 1
    values, number = rows.values[place], is_number(rows, place)
    lacking = len(places) + 1 + (rows.cells[:, place] - len(bands.edges) - 1)
    segments = np.where(number, np.searchsorted(places, values, side="right"), lacking)
    judged = teacher.people.judged
    people, moves = segments[judged], np.array(rows.widths[place])[:, None]
    moves = np.floor(moves) if bands.whole else moves
    low = np.searchsorted(places, values[judged] - moves, side="right")
    high = np.searchsorted(places, values[judged] + moves, side="right")
    return Movable(
        cuts=places,
        segments=segments,
        people=people,
        low=np.where(number[judged], low, people),
        high=np.where(number[judged], high, people),
        reference=segments[teacher.references],
        others=others,
        fixed=frozenset(np.searchsorted(places, bands.edges).tolist()),
        least=least_people(rows.weights),
        monotone=rows.monotone.get(place, 0),
    )


def least_people(weights: Floats) -> float:
    """How many people a band holds at least."""
    people = float(weights.sum())
    return max(LEAST_SHARE * people, min(LEAST_ROWS, people / 10))


def _followed(teacher: Teacher, place: int, number: Movable) -> Steps:
    """A teacher's curve with an edge at every cut."""
    return _means(teacher, place, number, range(len(number.cuts)))


def _first(
    teacher: Teacher, place: int, number: Movable, penalties: Sequence[float]
) -> list[tuple[int, ...]]:
    """Edges to begin with, by dynamic programming, for each penalty."""
    bands = teacher.rows.bands[place]
    assert isinstance(bands, NumberBands)
    found = edges_by_penalty(
        teacher.curves[place],
        teacher.rows.widths[place],
        penalties,
        least_people=number.least,
        given=bands.edges,
        monotone=number.monotone,
    )
    return [tuple(np.searchsorted(number.cuts, edges).tolist()) for edges in found]


def _means(teacher: Teacher, place: int, number: Movable, edges: Sequence[int]) -> Steps:
    """The mean of a teacher's curve between edges, where nobody stands that of the nearest."""
    curve, last = teacher.curves[place], len(edges)
    band = np.searchsorted(number.cuts[list(edges)], curve.values, side="right")
    people = np.bincount(band, curve.people, last + 1)
    total = np.bincount(band, curve.people * curve.score[:, 0], last + 1)
    known = np.flatnonzero(people > 0)
    means = np.interp(np.arange(last + 1), known, total[known] / people[known])
    if number.monotone:
        means = number.monotone * np.maximum.accumulate(number.monotone * means)
    return Steps(
        edges=tuple(edges), points=np.array([*means, *[teacher.lacking[place]] * number.others])
    )
