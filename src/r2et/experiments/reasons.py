"""Models of one table beside one another: what small moves do to the reasons of each."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from r2et.actionable.tables import usual_width
from r2et.bands.binner import StableBinner
from r2et.bands.classifier import StableClassifier
from r2et.bands.verdicts import cell_verdicts
from r2et.core.naming import nearest
from r2et.core.reasons import VERDICTS
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
    boosted_trees,
    drawn_moves,
    every_move,
    labels_of,
    logistic_regression,
    move_sizes,
    reasons_under_moves,
)
from r2et.experiments.reason_figures import (
    before_after,
    curves_of,
    largest_individuality,
)
from r2et.experiments.reason_records import NAMES, Compared, Comparison
from r2et.metrics.individuality import kappa
from r2et.sklearn import NetworkClassifier

MOST_MOVES = 200
"""Moves of whole numbers that are all looked at; of more, as many are drawn for each person."""
FEW_MOVES = 50
"""Moves that are drawn besides for each smaller width."""
PARTS = 5
"""Into how many parts of a width what is broken is told."""
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
    lacking = int(x.isna().sum().sum())
    order = torch.randperm(len(y), generator=stream(seed, "reasons")).numpy()
    learnt, test = order[: round(LEARNT * len(y))], order[round(LEARNT * len(y)) :]
    x = x.fillna(x.iloc[learnt].median(numeric_only=True))
    widths = _widths(width, x)
    train, truth = x.iloc[learnt].reset_index(drop=True), y[learnt]
    judged = x.iloc[test].reset_index(drop=True)
    people = judged[:decisions]
    draw = np.random.default_rng(seed)
    reference = train.iloc[draw.choice(len(train), min(REFERENCE, len(train)), replace=False)]
    whole = {name: bool((x[name] == x[name].round()).all()) for name in widths}
    limits = _limits(widths, whole)
    every, moved = _moved(people, widths, whole, limits, draw)
    sizes = move_sizes(people, moved, widths)
    fitted = _models(train, truth, x, widths, network and x.shape[1] <= NETWORK_ATTRIBUTES, k)
    models: dict[str, SpokenModel] = {}
    aucs, reasons = {}, {}
    for done, (name, fit) in enumerate(fitted.items()):
        on_progress(Step(done=done, total=len(fitted), what=NAMES[name]))
        models[name] = model = fit()
        aucs[name] = float(roc_auc_score(y[test], model.score(judged)))
        reasons[name] = reasons_under_moves(model, people, moved, [reference], k)
    on_progress(Step(done=len(fitted), total=len(fitted), what="proof"))
    stable = models["stable"]
    assert isinstance(stable, Stable)
    rows = []
    for name, said in reasons.items():
        within = tuple(said.broken_within(sizes, limits))
        under = said.summary()
        rows.append(
            Compared(
                model=name,
                auc=aucs[name],
                under=under,
                within=within,
                proved=1 - under.broken if every else 0.0,
                exact=every,
            )
        )
    undetermined = 0.0
    if not every:
        rows[-1], undetermined = _judged(rows[-1], stable.model, people, reference, widths, limits)
    shown = {name: models[name] for name in ("trees", "stable")}
    return Comparison(
        data=Path(data).stem,
        classes=tuple(dataset.classes),
        k=k,
        learnt=len(train),
        rows=tuple(rows),
        widths=widths,
        limits=limits,
        decisions=len(people),
        moves=len(moved),
        every=every,
        undetermined=undetermined,
        most=largest_individuality(
            people, {name: math.floor(by) if whole[name] else by for name, by in widths.items()}
        ),
        lot=1 - k / x.shape[1],
        curves=curves_of(shown, stable.model, train, people, reference, widths),
        person=before_after(models, reasons, people, moved, sizes, reference, dataset.classes),
        told=tuple(_one_decision(stable.model, people, widths, dataset)),
        notes=tuple(_notes(stable.model, lacking)),
    )


def _limits(widths: Mapping[str, float], whole: Mapping[str, bool]) -> tuple[float, ...]:
    """Shares of the widths to count moves up to: each whole number of few, else fifths."""
    largest = max(widths.values())
    if all(whole.values()) and 1 <= largest < PARTS + 1:
        return (*(place / largest for place in range(1, math.floor(largest))), 1.0)
    return tuple(place / PARTS for place in range(1, PARTS + 1))


def _moved(
    people: pd.DataFrame,
    widths: Mapping[str, float],
    whole: Mapping[str, bool],
    limits: Sequence[float],
    draw: np.random.Generator,
) -> tuple[bool, list[pd.DataFrame]]:
    """Whether these are all moves there are, and the people after each."""
    count = math.prod(2 * int(by) + 1 for by in widths.values()) if all(whole.values()) else 0
    if 0 < count <= MOST_MOVES:
        return True, list(every_move(people, widths))
    moved = list(drawn_moves(people, widths, whole, MOST_MOVES, draw))
    for limit in limits[:-1]:  # few of those drawn so far are small
        less = {name: limit * by for name, by in widths.items()}
        moved += drawn_moves(people, less, whole, FEW_MOVES, draw)
    return False, moved


def _judged(
    row: Compared,
    model: StableClassifier,
    people: pd.DataFrame,
    reference: pd.DataFrame,
    widths: Mapping[str, float],
    limits: Sequence[float],
) -> tuple[Compared, float]:
    """The row of StableClassifier by verdicts instead of drawn moves, and the share left open."""
    cells = model.cell_model(reference)
    verdicts = [
        cell_verdicts(
            model.binner_,
            cells,
            people,
            k=model.k_,
            width={name: limit * by for name, by in widths.items()},
        )
        for limit in limits
    ]
    share = [
        {kind: float(np.mean([each.verdict == kind for each in said])) for kind in VERDICTS}
        for said in verdicts
    ]
    row = replace(row, proved=share[-1]["certified"])
    if any(each["undetermined"] for each in share):
        return row, share[-1]["undetermined"]
    core = np.array([len(each.core or ()) for each in verdicts[-1]])
    kept = float(np.mean([each.kept for each in verdicts[-1]]))
    under = replace(
        row.under,
        broken=share[-1]["broken"],
        kept=kept,
        core=float(core.mean()),
        all_but_one=float((core >= model.k_ - 1).mean()),
        kappa=kappa(kept, row.under.overlap),
    )
    within = tuple(each["broken"] for each in share)
    return replace(row, under=under, within=within, exact=True), 0.0


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


def _notes(model: StableClassifier, lacking: int) -> Iterator[str]:
    """What a reader would not expect."""
    if lacking:
        yield f"{lacking:,} missing numbers were filled by the median of the rows learnt from."
    kept = next((each for each in model.search_ if each.kept), None)
    if kept is not None and kept.weight < model.weight:
        yield (
            f"StableClassifier gave up stability to keep accuracy: the weight of stability is "
            f"{kept.weight:g} instead of {model.weight:g}."
        )


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
