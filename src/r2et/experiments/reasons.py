"""Models of one table beside one another: what small moves do to the reasons of each."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from r2et.bands.binner import StableBinner, usual_width
from r2et.bands.classifier import Stability, StableClassifier
from r2et.core.naming import nearest
from r2et.core.rng import stream
from r2et.data.builtin import load
from r2et.data.dataset import Dataset
from r2et.data.frames import read_csv, to_frame
from r2et.evaluation.moves import (
    Additive,
    Encoded,
    Floats,
    SpokenModel,
    Stable,
    UnderMoves,
    boosted_trees,
    drawn_moves,
    every_move,
    labels_of,
    logistic_regression,
    under_moves,
)
from r2et.sklearn import NetworkClassifier

NAMES = {
    "regression": "logistic regression",
    "network": "an ordinary network",
    "trees": "boosted trees",
    "card": "scorecard on StableBinner",
    "stable": "StableClassifier",
}
"""What each model is called."""
MOST_MOVES = 200
"""Moves of whole numbers that are all looked at; of more, as many are drawn for each person."""
REFERENCE = 20
LEARNT = 0.7
NETWORK_ATTRIBUTES = 8
"""Of more attributes all mixtures are too many for a network: it is left out."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """How far a comparison has come."""

    done: int
    total: int | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One model: its AUC on test rows, and what moves did."""

    model: str
    auc: float
    under: UnderMoves


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All models of a table, what StableClassifier proves of itself, and one decision in words."""

    rows: tuple[Compared, ...]
    widths: dict[str, float]
    decisions: int
    moves: int
    every: bool
    proved: Stability
    told: tuple[str, ...]


def compare(
    data: str,
    *,
    target: str | None = None,
    width: Sequence[str] = (),
    k: int = 3,
    decisions: int = 150,
    seed: int = 0,
    network: bool = True,
    on_progress: Callable[[Step], None] = lambda step: None,
) -> Comparison:
    """Fit models to 70 % of a table and judge them on the same decisions, moves and reference.

    `width` says how far numbers move: "age=2".
    """
    dataset = _table(data, target)
    x, y = to_frame(dataset)
    if len(np.unique(y)) != 2:
        raise ValueError(f"reasons are compared for two classes, got {len(np.unique(y))}.")
    if not 1 <= k < x.shape[1]:
        raise ValueError(f"k must lie in 1..{x.shape[1] - 1} for {x.shape[1]} attributes, got {k}.")
    x = x.fillna({name: x[name].median() for name in x.select_dtypes("number")})
    widths = _widths(width, x)
    order = torch.randperm(len(y), generator=stream(seed, "reasons")).numpy()
    learnt, test = order[: round(LEARNT * len(y))], order[round(LEARNT * len(y)) :]
    train, truth = x.iloc[learnt].reset_index(drop=True), y[learnt]
    judged = x.iloc[test].reset_index(drop=True)
    people = judged[:decisions]
    draw = np.random.default_rng(seed)
    reference = train.iloc[draw.choice(len(train), min(REFERENCE, len(train)), replace=False)]
    whole = {name: bool((x[name] == x[name].round()).all()) for name in widths}
    count = math.prod(2 * int(by) + 1 for by in widths.values()) if all(whole.values()) else 0
    every = 0 < count <= MOST_MOVES
    moved = list(
        every_move(people, widths)
        if every
        else drawn_moves(people, widths, whole, MOST_MOVES, draw)
    )
    fitted = _models(train, truth, x, widths, network and x.shape[1] <= NETWORK_ATTRIBUTES, k)
    rows, stable = [], None
    for done, (name, fit) in enumerate(fitted.items()):
        on_progress(Step(done=done, total=len(fitted), what=NAMES[name]))
        model = fit()
        stable = model if isinstance(model, Stable) else stable
        auc = float(roc_auc_score(y[test], model.score(judged)))
        under = under_moves(model, people, moved, [reference], k)
        rows.append(Compared(model=name, auc=auc, under=under))
    on_progress(Step(done=len(fitted), total=len(fitted), what="proof"))
    assert stable is not None
    return Comparison(
        rows=tuple(rows),
        widths=widths,
        decisions=len(people),
        moves=len(moved),
        every=every,
        proved=stable.model.stability(people, widths),
        told=tuple(_one_decision(stable.model, people, widths, dataset)),
    )


def _table(data: str, target: str | None) -> Dataset:
    if data.endswith(".csv"):
        if target is None:
            raise ValueError("a CSV file needs a target, the column that holds the two classes.")
        return read_csv(data, target=target, name=Path(data).stem)
    return load(data)


def _widths(given: Sequence[str], x: pd.DataFrame) -> dict[str, float]:
    """How far each number moves; those that do not are left out."""
    numbers = [str(name) for name in x.select_dtypes("number")]
    found = {}
    for each in given:
        name, _, by = each.rpartition("=")
        if name not in numbers:
            raise ValueError(f"width names {name!r}, no number: {nearest(name, numbers)}")
        try:
            found[name] = float(by)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise ValueError(f"the width of {name!r} must be a number > 0, got {by!r}.")
    if not given:
        found = {name: usual_width(x[name].to_numpy(dtype=float)) for name in numbers}
    found = {name: by for name, by in found.items() if by > 0}
    if not found:
        raise ValueError("no number of this table moves: name one, such as --width age=2.")
    return found


def _models(
    train: pd.DataFrame, y: Floats, x: pd.DataFrame, widths: dict[str, float], network: bool, k: int
) -> dict[str, Callable[[], SpokenModel]]:
    """How each model is fitted."""
    labels = labels_of(x)
    numbers = [str(name) for name in x.select_dtypes("number")]
    moving = {name: widths.get(name, 0.0) for name in numbers}

    def card() -> SpokenModel:
        pipe = make_pipeline(StableBinner(moving), LogisticRegression(max_iter=1000)).fit(train, y)
        binner, model = pipe[0], pipe[1]
        starts = np.cumsum([0, *(each.count for each in binner.attributes_[:-1])])
        return Additive(
            terms=lambda rows: model.coef_[0][binner.codes(rows) + starts],
            constant=float(model.intercept_[0]),
        )

    def ordinary() -> SpokenModel:
        model = NetworkClassifier(method="vanilla", random_state=0).fit(train, y)

        def raw(rows: Floats) -> Floats:
            with torch.no_grad():
                logits = model.model_(torch.from_numpy(rows))
            found: Floats = (logits[:, 1] - logits[:, 0]).numpy()
            return found

        return Encoded(encode=lambda rows: model.encode(rows).numpy(), raw=raw)

    def stable() -> SpokenModel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Stable(model=StableClassifier(moving, k=k).fit(train, y))

    return {
        "regression": lambda: logistic_regression(train, y, labels),
        **({"network": ordinary} if network else {}),
        "trees": lambda: boosted_trees(train, y, labels),
        "card": card,
        "stable": stable,
    }


def _one_decision(
    model: StableClassifier, people: pd.DataFrame, widths: dict[str, float], dataset: Dataset
) -> Iterator[str]:
    """The first certified decision, and the first broken one, in words."""
    verdicts = model.certify(people, widths)
    for kind in ("certified", "broken"):
        row = next((at for at, each in enumerate(verdicts) if each.verdict == kind), None)
        if row is None:
            continue
        found = verdicts[row]
        said = "; ".join(str(each) for each in model.reasons(people[row : row + 1])[0])
        yield f"Row {row}, {kind}: {dataset.classes[int(found.decision)]}. {said}."
        if found.breaking is not None:
            typed = ", ".join(f"{name} {value:g}" for name, value in found.breaking.values.items())
            yield f"  With {typed} instead, the reasons are {', '.join(found.breaking.reasons)}."
