"""The papers' contest: the best R2ET variant against the best of its rivals, from rows."""

from collections.abc import Sequence
from dataclasses import replace

from r2et.evaluation.results import Result
from r2et.experiments.tables import (
    BEST,
    LINEAR,
    VANILLA,
    Choice,
    Comparison,
    comparison,
    is_steady,
    is_variant,
)

BEST_OTHER = "best-other"
NO_RIVALS = (LINEAR, "thickness")  # a control, and what R2ET approximates


def is_rival(method: str) -> bool:
    """Whether a method is one that the papers compare R2ET with.

    Neither the linear control, nor the thickness itself, nor our own methods are rivals.
    """
    return not (is_steady(method) or method in (BEST, BEST_OTHER, *NO_RIVALS))


BEST_R2ET = Choice(label="Best R2ET by validation", among=is_variant)
BEST_RIVAL = Choice(label="Best other by validation", among=is_rival, method=BEST_OTHER)


def contests(rows: Sequence[Result], measure: str) -> list[Comparison]:
    """The best R2ET against the best rival, SP, the linear control and Vanilla, seed by seed.

    Both sides of the first are chosen on validation data, on each seed for itself. Those whose
    rival has no row are missing.
    """
    every = [*rows, *BEST_R2ET.rows(rows), *BEST_RIVAL.rows(rows)]
    labels = {row.method: row.label for row in every}
    return [
        replace(comparison(every, measure, BEST, rival), method=rival, label=labels[rival])
        for rival in (BEST_OTHER, "sp", LINEAR, VANILLA)
        if rival in labels
    ]
