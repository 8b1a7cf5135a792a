"""What small moves do to the reasons of any model of tables: exactly, move by move.

Reasons are the k attributes whose Shapley contributions to the log-odds speak most against the
decided class. A decision is broken if some admissible move gives other reasons and keeps it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from r2et.bands.classifier import StableClassifier
from r2et.bands.contributions import contributions
from r2et.bands.scores import StepScore
from r2et.evaluation.moved import Reasons, UnderMoves
from r2et.trees.explained import explained
from r2et.trees.reading import Told

Floats = NDArray[Any]


class SpokenModel(Protocol):
    """A fitted model of two classes that says what each attribute adds."""

    def score(self, x: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        ...

    def contributions(self, x: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        ...


# --- models -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Additive:
    """A score that is a sum over columns: `terms` gives each, (N, m)."""

    terms: Callable[[pd.DataFrame], Floats]
    constant: float = 0.0

    def score(self, x: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        found: Floats = self.terms(x).sum(1) + self.constant
        return found

    def contributions(self, x: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        own = self.terms(x)
        return np.stack([own - self.terms(each).mean(0) for each in references])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ensemble:
    """Boosted trees of columns in which words are numbers."""

    told: Told
    labels: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, model: Any, x: pd.DataFrame, labels: Mapping[str, Sequence[str]]) -> "Ensemble":
        """A model that was fitted to such columns of these rows, read leaf by leaf."""
        return cls(told=Told(trees=explained(model, _numbered_frame(x, labels))), labels=labels)

    def score(self, x: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        return self.told.score(_numbered_frame(x, self.labels))

    def contributions(self, x: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        own, *rest = (_numbered_frame(each, self.labels) for each in (x, *references))
        return self.told.contributions(own, rest)


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Any model of encoded rows, `encode` taking each column by itself: all mixtures are scored."""

    encode: Callable[[pd.DataFrame], Floats]
    raw: Callable[[Floats], Floats]

    def score(self, x: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        return self.raw(self.encode(x))

    def contributions(self, x: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        frames = [each.reset_index(drop=True) for each in (x, *references)]
        everything = pd.concat(frames, ignore_index=True)
        base = self.encode(everything[:1])[0]
        codes, changes = [], []
        for name in everything:
            index, values = pd.factorize(everything[name])
            moved = everything.loc[np.zeros(len(values), dtype=int)].reset_index(drop=True)
            moved[name] = values
            codes.append(index)
            changes.append(self.encode(moved) - base)
        cells = np.stack(codes, 1)
        own = cells[: len(x)]
        rest = cells[len(x) :].reshape(len(references), -1, cells.shape[1])

        def score(some: Floats) -> Floats:
            rows = base + sum(each[some[:, place]] for place, each in enumerate(changes))
            return self.raw(rows)

        return np.stack([contributions(score, own, each) for each in rest])


@dataclass(frozen=True, kw_only=True, eq=False)
class Stable:
    """A StableClassifier of two classes."""

    model: StableClassifier

    def score(self, x: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        return self.model.decision_function(x)

    def contributions(self, x: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        binner, score = self.model.binner_, self.model.score_
        assert isinstance(score, StepScore)
        against = np.stack([binner.codes(each) for each in references])
        cells, index = np.unique(binner.codes(x), axis=0, return_inverse=True)
        found: Floats = score.contributions_of(cells, against)[:, index.ravel()]
        return found


def labels_of(x: pd.DataFrame) -> dict[str, list[str]]:
    """The words of each column that holds words."""
    words = [str(name) for name in x if not pd.api.types.is_numeric_dtype(x[name])]
    return {name: sorted(x[name].astype(str).unique()) for name in words}


def numbered(x: pd.DataFrame, labels: Mapping[str, Sequence[str]]) -> Floats:
    """Rows as trees are shown them, words by their places: (N, m)."""
    columns = [
        pd.Index(labels[str(name)]).get_indexer(pd.Index(x[name].astype(str))).astype(float)
        if name in labels
        else x[name].to_numpy(dtype=float)
        for name in x
    ]
    return np.stack(columns, 1)


def logistic_regression(
    x: pd.DataFrame, y: Floats, labels: Mapping[str, Sequence[str]]
) -> Additive:
    """Logistic regression on numbers of mean 0 and variance 1 and a column for each word."""
    numbers = [name for name in x if name not in labels]
    means, spreads = x[numbers].mean(), x[numbers].std().replace(0, 1)
    place = {name: at for at, name in enumerate(numbers)}

    def parts(rows: pd.DataFrame) -> list[Floats]:
        scaled = ((rows[numbers] - means) / spreads).fillna(0.0).to_numpy(dtype=float)
        return [
            (rows[name].astype(str).to_numpy()[:, None] == np.array(labels[str(name)])).astype(
                float
            )
            if name in labels
            else scaled[:, [place[name]]]
            for name in rows
        ]

    sizes = [part.shape[1] for part in parts(x[:1])]
    model = LogisticRegression(max_iter=1000).fit(np.concatenate(parts(x), 1), y)
    weights = np.split(model.coef_[0], np.cumsum(sizes)[:-1])

    def terms(rows: pd.DataFrame) -> Floats:
        return np.stack([own @ each for own, each in zip(parts(rows), weights, strict=True)], 1)

    return Additive(terms=terms, constant=float(model.intercept_[0]))


def _numbered_frame(x: pd.DataFrame, labels: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    return pd.DataFrame(numbered(x, labels), columns=x.columns)


def boosted_trees(x: pd.DataFrame, y: Floats, labels: Mapping[str, Sequence[str]]) -> Ensemble:
    """scikit-learn's boosted trees, stopped early where there are rows to stop by."""
    model = HistGradientBoostingClassifier(
        categorical_features=[name in labels for name in x] if labels else None,
        early_stopping=len(y) >= 1000,
        max_leaf_nodes=15,
        random_state=0,
    ).fit(numbered(x, labels), y)
    return Ensemble.of(model, x, labels)


# --- moves --------------------------------------------------------------------------------------


def every_move(people: pd.DataFrame, widths: Mapping[str, float]) -> Iterator[pd.DataFrame]:
    """The people after each move of whole numbers, all making the same."""
    steps = [np.arange(-np.floor(width), np.floor(width) + 1) for width in widths.values()]
    for move in product(*steps):
        yield people.assign(
            **{name: people[name] + by for name, by in zip(widths, move, strict=True)}
        )


def drawn_moves(
    people: pd.DataFrame,
    widths: Mapping[str, float],
    whole: Mapping[str, bool],
    count: int,
    draw: np.random.Generator,
) -> Iterator[pd.DataFrame]:
    """The people after some moves, each making their own: half go as far as they may."""
    for number in range(count):
        changed = {}
        for name, width in widths.items():
            far = draw.choice([-width, 0.0, width], len(people))
            by = far if number % 2 else draw.uniform(-width, width, len(people))
            changed[name] = people[name] + (np.round(by) if whole[name] else by)
        yield people.assign(**changed)


def move_sizes(
    people: pd.DataFrame, moved: Sequence[pd.DataFrame], widths: Mapping[str, float]
) -> Floats:
    """How far each move takes each person, as the largest share of a width: (moves, N)."""
    start = {name: people[name].to_numpy(dtype=float) for name in widths}
    far = [
        [np.abs(each[name].to_numpy(dtype=float) - start[name]) / by for name, by in widths.items()]
        for each in moved
    ]
    found: Floats = np.array(far).max(1)
    return found


# --- what they do -------------------------------------------------------------------------------


def reasons_under_moves(
    model: SpokenModel,
    people: pd.DataFrame,
    moved: Sequence[pd.DataFrame],
    references: Sequence[pd.DataFrame],
    k: int = 3,
) -> Reasons:
    """The reasons of people and of the same people moved, against references of equal size."""
    people = people.reset_index(drop=True)
    first = model.score(people) >= 0
    signs = np.where(first, 1.0, -1.0)
    everybody = pd.concat([people, *moved], ignore_index=True)
    count = len(everybody) // len(people)
    stays = ((model.score(everybody) >= 0) == np.tile(first, count)).reshape(count, -1)
    phi = np.tile(signs, count)[:, None] * model.contributions(everybody, references)
    among = np.zeros(phi.shape, dtype=bool)
    np.put_along_axis(among, np.argsort(phi, -1, kind="stable")[..., :k], True, -1)
    told = among.reshape(len(references), count, len(people), -1)
    return Reasons(among=told, stays=stays, first=first, k=k)


def under_moves(
    model: SpokenModel,
    people: pd.DataFrame,
    moved: Sequence[pd.DataFrame],
    references: Sequence[pd.DataFrame],
    k: int = 3,
) -> UnderMoves:
    """What moves do to the reasons of people, told against each of references of equal size."""
    return reasons_under_moves(model, people, moved, references, k).summary()
