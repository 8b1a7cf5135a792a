"""Contributions as reasons in words: the person's value, what is usual, how much it counts."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from r2et.core.arrays import Floats
from r2et.core.reasons import Reason, Side, shown_as
from r2et.data.features import MISSING, with_unit


def value_in_words(value: Any, unit: str = "") -> str:
    """A number with its unit, or a word.

    >>> value_in_words(20.0, "hours"), value_in_words("clerk"), value_in_words(float("nan"))
    ('20 hours', 'clerk', 'missing')
    """
    if isinstance(value, str):
        return value
    return MISSING if math.isnan(value) else with_unit(float(value), unit)


def usual_in_words(values: Any, unit: str = "") -> str:
    """The most frequent word of a reference and its share, or the median of numbers."""
    if values.dtype != object:
        known = values[~np.isnan(values)]
        return with_unit(float(np.median(known)), unit) if len(known) else MISSING
    words, counts = np.unique(values.astype(str), return_counts=True)
    return f"{words[counts.argmax()]}, {counts.max() / counts.sum():.0%}".replace("%", " %")


def told_reasons(
    phi: Floats,
    values: Mapping[str, Any],
    usual: Mapping[str, str],
    *,
    k: int,
    side: Side,
    codes: Mapping[str, str],
    units: Mapping[str, str],
) -> list[list[Reason]]:
    """The k reasons of each decision, the first of all first, of contributions to it (N, m).

    `values` are those of the attributes, (N,) each, in the order of the contributions, and `usual`
    those of the reference in words. What several attributes with one code add counts together; the
    value told is that of the one among them that counts most.
    """
    names = list(values)
    told_as = [codes.get(name, name) for name in names]
    labels = list(dict.fromkeys(told_as))
    members = [[at for at, each in enumerate(told_as) if each == label] for label in labels]
    sums = np.stack([phi[:, some].sum(1) for some in members], 1)
    spoken, each_spoken = shown_as(sums, side), shown_as(phi, side)
    found = []
    for row in range(len(phi)):
        same_way = np.maximum(spoken[row], 0.0).sum()
        reasons = []
        for label in np.argsort(-spoken[row], kind="stable")[:k]:
            place = max(members[label], key=lambda at: each_spoken[row, at])
            name = names[place]
            reasons.append(
                Reason(
                    attribute=name,
                    value=value_in_words(values[name][row], units.get(name, "")),
                    usual=usual[name],
                    contribution=float(sums[row, label]),
                    share=max(0.0, float(spoken[row, label])) / same_way if same_way else 0.0,
                    code=labels[label],
                )
            )
        found.append(reasons)
    return found
