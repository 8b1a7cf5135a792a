"""What is tried on held rows so that accuracy is kept, and how users are told of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

LADDER = (1.0, 0.3, 0.1, 0.0)
"""Shares of the weight of stability that are tried, one after another, until accuracy is kept."""
LEAST_SHARE = 0.01
"""Of the usual price of an edge, which is left where stability has no weight."""
ABOUT = 0.001
"""Of AUC, by which attempts differ no more than by chance."""
GAIN = 0.002
"""Of AUC on the held part, for which interactions of all attributes are worth having."""
LESS_SHARED = 0.02
"""Of O, by which reasons are more individual beyond chance."""
TREES_AHEAD = 0.005
"""Of AUC, by which trees with all interactions may be ahead."""

TeacherName = Literal["trees", "lines"]


class LostAccuracy(UserWarning):
    """Reasons could not be made as stable as was asked without losing accuracy."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What was tried on the held part, and what came of it.

    `auc` is that of the score, `trees_auc` and `lines_auc` those of boosted trees with all
    interactions and of logistic regression, of which nothing else is asked; `broken` the shares of
    people whose reasons break within each width, `overlap` what two people of one predicted class
    share of their reasons.
    """

    teacher: TeacherName
    weight: float
    interactions: bool
    auc: float
    trees_auc: float
    lines_auc: float
    broken: tuple[float, ...] | None
    overlap: float | None
    kept: bool


def least_auc(attempt: Attempt, auc_loss: float) -> float:
    """The AUC that is to be kept."""
    return max(attempt.trees_auc - TREES_AHEAD, attempt.lines_auc) - auc_loss


def more_individual(attempts: Sequence[Attempt], other: Attempt, auc_loss: float) -> list[Attempt]:
    """The attempts, or another one alone, if it keeps accuracy and people share clearly less.

    Lines tell people more alike than trees do: what logistic regression gains in accuracy must not
    be paid for by reasons that are less their own.
    """
    shared = next((each.overlap for each in attempts if each.overlap is not None), None)
    if shared is None or other.overlap is None or other.overlap > shared - LESS_SHARED:
        return list(attempts)
    return [other] if other.auc >= least_auc(other, auc_loss) else list(attempts)


def with_kept(attempts: Sequence[Attempt], auc_loss: float) -> list[Attempt]:
    """The attempts, one of which is kept.

    It is the last one if that reached what is asked; if none does, the first of those about as
    good as the best.
    """
    best = max(each.auc for each in attempts) - ABOUT
    good = [each.auc >= best for each in attempts]
    enough = attempts[-1].auc >= least_auc(attempts[-1], auc_loss)
    place = len(attempts) - 1 if enough else good.index(True)
    return [replace(each, kept=at == place) for at, each in enumerate(attempts)]


def explained(attempts: Sequence[Attempt], auc_loss: float) -> str:
    """What the guard did, in words."""
    first, kept = attempts[0], next(each for each in attempts if each.kept)
    least = least_auc(first, auc_loss)
    told = (
        f"on held rows AUC was {first.auc:.4f} at weight {first.weight:g}, and {least:.4f} is "
        f"asked for (boosted trees have {first.trees_auc:.4f}, logistic regression "
        f"{first.lines_auc:.4f}): "
    )
    if kept.auc >= least:
        return f"{told}the weight of stability was lowered to {kept.weight:g} (AUC {kept.auc:.4f})."
    return f"{told}no weight reaches it; the best of them, {kept.weight:g}, has {kept.auc:.4f}."
