"""What is found where models of one table are put beside one another."""

from dataclasses import dataclass

from r2et.evaluation.moved import UnderMoves

NAMES = {
    "regression": "logistic regression",
    "network": "an ordinary network",
    "trees": "boosted trees",
    "card": "scorecard on StableBinner",
    "stable": "StableClassifier",
}
"""What each model is called."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One model: its AUC on test rows, what moves did, and what moves up to each size broke.

    `proved` is the share of decisions whose reasons are proved to stay; `exact` says that all
    others are broken, not only those known to be.
    """

    model: str
    auc: float
    under: UnderMoves
    within: tuple[float, ...]
    proved: float
    exact: bool


@dataclass(frozen=True, kw_only=True)
class NumberCurve:
    """What a number adds to the log-odds of the second class, value by value.

    `people` are the shares of those learnt from who are nearest to each value, `edges` those of
    StableClassifier, and `adds` the mean contribution to each model's score, by model.
    """

    name: str
    values: tuple[float, ...]
    people: tuple[float, ...]
    edges: tuple[float, ...]
    adds: dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """What a model says of a person: what each attribute adds to the decision, and the reasons."""

    decision: str
    adds: dict[str, float]
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """One person at home and after a move, as models see both: by model, before and after.

    `steady` says that StableClassifier decides and gives reasons as at home after every move.
    """

    row: int
    steady: bool
    values: dict[str, str]
    move: dict[str, tuple[float, float]]
    said: dict[str, tuple[Spoken, Spoken]]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All models of a table, what StableClassifier proves of itself, and one decision in words.

    `limits` are shares of the widths that moves were counted up to. `most` is the largest 1 - O of
    reasons that no move changes, of these people and of any model, and `lot` that of reasons drawn
    by lot.
    """

    data: str
    classes: tuple[str, ...]
    k: int
    learnt: int
    rows: tuple[Compared, ...]
    widths: dict[str, float]
    limits: tuple[float, ...]
    decisions: int
    moves: int
    every: bool
    undetermined: float
    most: float
    lot: float
    curves: tuple[NumberCurve, ...]
    person: BeforeAfter | None
    told: tuple[str, ...]
    notes: tuple[str, ...]
