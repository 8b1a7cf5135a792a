"""What figures of a comparison of models show: curves of numbers, one decision, and a bound."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from r2et.bands.classifier import StableClassifier
from r2et.data.features import plain
from r2et.evaluation.moved import Reasons
from r2et.evaluation.moves import Floats, SpokenModel
from r2et.experiments.reason_records import BeforeAfter, NumberCurve, Spoken
from r2et.metrics.individuality import most_individual

CURVE_PEOPLE, MOST_CURVES, MOST_PLACES = 40, 4, 120
"""Over how many people curves are means, how many are shown, and at how many values."""


def largest_individuality(people: pd.DataFrame, widths: Mapping[str, float]) -> float:
    """The largest 1 - O of these people that any model can have whose reasons no move changes."""
    points = [
        people[name] if pd.api.types.is_numeric_dtype(people[name]) else codes
        for name, codes in ((each, pd.factorize(people[each])[0]) for each in people)
    ]
    columns = torch.from_numpy(np.stack([np.asarray(own, float) for own in points], 1))
    reach = torch.tensor([widths.get(str(name), 0.0) for name in people], dtype=torch.float64)
    return most_individual(columns, reach)


def curves_of(
    models: Mapping[str, SpokenModel],
    stable: StableClassifier,
    train: pd.DataFrame,
    people: pd.DataFrame,
    reference: pd.DataFrame,
    widths: Mapping[str, float],
) -> tuple[NumberCurve, ...]:
    """The curves of the numbers that move, those first of which StableClassifier says most."""
    some = people[:CURVE_PEOPLE]
    found = []
    for name in widths:
        values, shares = _places(train[name].to_numpy(dtype=float))
        rows = pd.concat([some.assign(**{name: value}) for value in values], ignore_index=True)
        column = list(people.columns).index(name)
        adds = {
            each: model.contributions(rows, [reference])[0, :, column]
            .reshape(len(values), -1)
            .mean(1)
            for each, model in models.items()
        }
        found.append(
            NumberCurve(
                name=name,
                values=tuple(values.tolist()),
                people=tuple(shares.tolist()),
                edges=tuple(stable.binner_.edges_[name]),
                adds={each: tuple(own.tolist()) for each, own in adds.items()},
            )
        )
    found.sort(key=lambda each: min(each.adds["stable"]) - max(each.adds["stable"]))
    return tuple(found[:MOST_CURVES])


def _places(numbers: Floats) -> tuple[Floats, Floats]:
    """Values to draw a number at, and the share of people who are nearest to each."""
    low, high = np.quantile(numbers, [0.005, 0.995])
    whole = bool((numbers == numbers.round()).all()) and high - low < MOST_PLACES
    values = np.arange(low, high + 1) if whole else np.linspace(low, high, MOST_PLACES)
    if len(values) < 2 or values[0] == values[-1]:
        values = np.unique(numbers)[:MOST_PLACES]
    inside = numbers[(numbers >= values[0]) & (numbers <= values[-1])]
    nearest_to = np.searchsorted((values[1:] + values[:-1]) / 2, inside)
    shares: Floats = np.bincount(nearest_to, minlength=len(values)) / len(numbers)
    return values, shares


def before_after(
    models: Mapping[str, SpokenModel],
    reasons: Mapping[str, Reasons],
    people: pd.DataFrame,
    moved: Sequence[pd.DataFrame],
    sizes: Floats,
    reference: pd.DataFrame,
    classes: Sequence[str],
) -> BeforeAfter | None:
    """A person whose reasons of boosted trees a move breaks, by the smallest of such moves.

    The first of all whom StableClassifier decides alike and gives the same decision and reasons
    after every move; the first of all if there is none, and None where no decision breaks.
    """
    breaks = (reasons["trees"].same[0, 1:] < 1).T
    rows = np.flatnonzero(breaks.any(1))
    if not len(rows):
        return None
    steady = reasons["stable"]
    alike = (steady.same[0] == 1).all(0) & steady.stays.all(0)
    alike &= steady.first == reasons["trees"].first
    row = int(next((each for each in rows if alike[each]), rows[0]))
    changes = [int((each.iloc[row] != people.iloc[row]).sum()) for each in moved]
    move = min(np.flatnonzero(breaks[row]).tolist(), key=lambda at: (sizes[at, row], changes[at]))
    both = pd.concat([people[row : row + 1], moved[move][row : row + 1]], ignore_index=True)
    changed = {
        str(name): (float(both[name][0]), float(both[name][1]))
        for name in both.select_dtypes("number")
        if both[name][0] != both[name][1]
    }

    def spoken(name: str) -> tuple[Spoken, Spoken]:
        said = reasons[name]
        first = bool(said.first[row])
        decided = first, first == bool(said.stays[1 + move, row])
        phi = (1.0 if first else -1.0) * models[name].contributions(both, [reference])[0]
        before, after = (
            Spoken(
                decision=str(classes[int(favourable)]),
                adds=dict(zip(map(str, both), each.tolist(), strict=True)),
                reasons=tuple(
                    str(both.columns[at]) for at in np.argsort(each, kind="stable")[: said.k]
                ),
            )
            for favourable, each in zip(decided, phi, strict=True)
        )
        return before, after

    return BeforeAfter(
        row=row,
        steady=bool(alike[row]),
        values={str(name): _written(both[name][0]) for name in both},
        move=changed,
        said={name: spoken(name) for name in ("trees", "stable")},
    )


def _written(value: object) -> str:
    """A value of a table as people write it."""
    return plain(float(value)) if isinstance(value, (int, float, np.number)) else str(value)
