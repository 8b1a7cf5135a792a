"""The papers' contest: the best R2ET variant against the best of its rivals, from rows."""

from collections.abc import Sequence

from r2et.evaluation.results import Result
from r2et.experiments.tables import (
    BEST,
    LINEAR,
    VANILLA,
    Comparison,
    MethodSummary,
    best_by_validation,
    by_seed,
    is_steady,
    is_variant,
    paired,
    renamed,
    summary_over_seeds,
)

BEST_LABEL = "Best R2ET by validation"
BEST_OTHER = "best-other"
BEST_OTHER_LABEL = "Best other by validation"
NO_RIVALS = (LINEAR, "thickness")  # a control, and what R2ET approximates


def best_variant(rows: Sequence[Result]) -> dict[int, str]:
    """For each seed the R2ET variant with the highest validation P@k, as the papers' tables ask.

    Of equals the one with the higher validation AUC, then the first. Seeds on which no variant
    kept the AUC floor are missing.
    """
    return best_by_validation([row for row in rows if is_variant(row.method)])


def best_other(rows: Sequence[Result]) -> dict[int, str]:
    """For each seed the rival of R2ET with the highest validation P@k, as `best_variant` does."""
    return best_by_validation([row for row in rows if is_rival(row.method)])


def is_rival(method: str) -> bool:
    """Whether a method is one that the papers compare R2ET with.

    Neither the linear control, nor the thickness itself, nor our own methods are rivals.
    """
    return not (is_steady(method) or method in (BEST, BEST_OTHER, *NO_RIVALS))


def best_rows(rows: Sequence[Result]) -> list[Result]:
    """The row of the best R2ET variant of each seed as method "best", "variant" its own label."""
    return renamed(rows, best_variant(rows), BEST, BEST_LABEL)


def best_other_rows(rows: Sequence[Result]) -> list[Result]:
    """The row of the best rival of each seed as method "best-other", as `best_rows` does."""
    return renamed(rows, best_other(rows), BEST_OTHER, BEST_OTHER_LABEL)


def summary_of_best(
    rows: Sequence[Result], keys: Sequence[str] | None = None
) -> MethodSummary | None:
    """The best R2ET variants over the seeds; `failed` are seeds on which no variant passed."""
    tried = {row.seed for row in rows if is_variant(row.method)}
    return summary_over_seeds(best_rows(rows), tried, keys)


def summary_of_best_other(
    rows: Sequence[Result], keys: Sequence[str] | None = None
) -> MethodSummary | None:
    """The best rivals over the seeds; `failed` are seeds on which none passed."""
    tried = {row.seed for row in rows if is_rival(row.method)}
    return summary_over_seeds(best_other_rows(rows), tried, keys)


def contests(rows: Sequence[Result], measure: str) -> list[Comparison]:
    """The best R2ET against the best rival, SP, the linear control and Vanilla, seed by seed.

    Both sides of the first are chosen on validation data, on each seed for itself. Those whose
    rival has no row are missing.
    """
    both = [*rows, *best_rows(rows), *best_other_rows(rows)]
    ours = by_seed(both, BEST, measure)
    found = []
    for rival in (BEST_OTHER, "sp", LINEAR, VANILLA):
        named = [row.label for row in both if row.method == rival]
        if not named:
            continue
        theirs = by_seed(both, rival, measure)
        seeds = sorted(ours.keys() & theirs.keys())
        difference, p_value = paired([ours[s] for s in seeds], [theirs[s] for s in seeds])
        found.append(
            Comparison(
                method=rival,
                label=named[0],
                difference=difference,
                p_value=p_value,
                count=len(seeds),
            )
        )
    return found
