"""A reason, as a person is told it, and what is known of the reasons of a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from r2et.core.arrays import Codes, Floats
from r2et.core.naming import nearest

Verdict = Literal["certified", "broken", "undetermined"]
VERDICTS: tuple[Verdict, ...] = ("certified", "broken", "undetermined")
By = Literal["enumerated", "closed form", "bound", "attack"]
"""What decided a verdict: every move was looked at, or what they can do at most was computed, or
bounded; or one move was found that breaks it."""

Decided = Literal["bound", "cells", "attack", "budget", "tie", "unsearched"]
"""What decided a decision at the tolerance: bounds proved it, or a search over all activation cells
did, or an attack broke it. Or why it is open: that search ran out of time, or was left with two
features that tie, or there was none, as of models without cells."""


Side = Literal["for", "against", "both"]
"""Which contributions to a decided class are its reasons."""
MOST_MOVES = 100_000
"""Moves of one decision that are all looked at."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """An attribute that spoke for or against a decision, in words.

    `value` is the person's, `usual` the median of the reference, or its most frequent word;
    `contribution` is what the value adds to the score of the decided class, in log-odds, compared
    with the reference; `share` is its part of all that speaks the same way; `code` is what a letter
    calls it.
    """

    attribute: str
    value: str
    usual: str
    contribution: float
    share: float
    code: str

    def __str__(self) -> str:
        """One line for readers: "hours: 20 hours (usual: 40 hours), -0.62"."""
        return f"{self.code}: {self.value} (usual: {self.usual}), {self.contribution:+.2f}"


@dataclass(frozen=True, kw_only=True)
class Breaking:
    """The smallest change that gives other reasons: what a person would type, and the reasons then.

    `size` is its share of what may change: 1 is as far as anything may move.
    """

    values: Mapping[str, float | str]
    size: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReasonVerdict:
    """What all admissible moves do to the reasons of one decision.

    `reasons` are those of the person, the first of all first. `core` are those of them that are
    known to stay in every move that keeps the decision, `kept` the share of them that stays at
    least; None where nothing is known. `moves` is how many moves, or cells that moves lead to, were
    there to be looked at, None if beyond counting. No move smaller than `unbroken` breaks them, as
    far as that was proved: the size of `breaking` where no smaller move does, None if not asked.
    """

    verdict: Verdict
    by: By | None
    decision: Any
    reasons: tuple[str, ...]
    moves: int | None
    core: tuple[str, ...] | None = None
    kept: float | None = None
    breaking: Breaking | None = None
    unbroken: float | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of the reasons of decisions.

    The `k` attributes whose contributions to the decided class speak most for it, "against" it, or
    "both". `codes` name what people are told instead of an attribute; those of one code are one
    reason, by what they add together.
    """

    k: int = 3
    side: Side = "against"
    codes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a side that is none."""
        if self.side not in ("for", "against", "both"):
            raise ValueError(f"side must be 'for', 'against' or 'both', got {self.side!r}.")

    def labels(self, names: Sequence[str]) -> list[str]:
        """What people are told, each once, in the order of the attributes."""
        for name in self.codes:
            if name not in names:
                raise ValueError(f"codes name {name!r}, no attribute: {nearest(name, names)}")
        found = list(dict.fromkeys(self.codes.get(name, name) for name in names))
        if len(found) < 2:
            raise ValueError(
                f"reasons are chosen among two attributes or codes at least, got {found}: one "
                "alone is always told."
            )
        if not 1 <= self.k < len(found):
            what = "codes" if self.codes else "attributes"
            raise ValueError(
                f"k must lie in 1..{len(found) - 1} for {len(found)} {what}, got {self.k}."
            )
        return found

    def members(self, names: Sequence[str]) -> Floats:
        """1 where an attribute counts for a label: (m, n)."""
        labels = self.labels(names)
        told = [self.codes.get(name, name) for name in names]
        return np.array([[each == label for label in labels] for each in told], dtype=float)


def shown_as(phi: Floats, side: Side) -> Floats:
    """How much contributions to the decided class are reasons: like them."""
    if side == "both":
        return np.abs(phi)
    return phi if side == "for" else -phi


def decided_by(scores: Floats) -> Codes:
    """The class of the largest score, of two equal ones the second: at a threshold, it is met."""
    if scores.shape[1] == 2:
        return np.asarray(scores[:, 1] >= scores[:, 0], dtype=np.intp)
    return np.asarray(scores.argmax(1), dtype=np.intp)
