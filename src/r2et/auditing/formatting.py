"""Decisions in the user's words and units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from r2et.auditing.decisions import Change, CounterExample, Decision, Slope, verdict
from r2et.auditing.evidence import Evidence, Explained
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Chunk, Columns
from r2et.data.features import MISSING, SHOWN, Feature, in_words, plain
from r2et.evaluation.decisions import AttackedDecision, DecisionDrawing, drawn
from r2et.metrics.statistics import odds_of_classes

MOST_CHANGES = 40
PROVED = 1 - 1e-4  # of a breaking change: nothing shorter breaks


@dataclass(frozen=True, kw_only=True, eq=False)
class Formatter:
    """Puts what was found out about the decisions of one model into records, words and units."""

    number: int
    classes: tuple[str, ...]
    columns: Columns
    settings: AuditSettings

    def decisions(self, chunk: Chunk, evidence: Evidence, checked: Tensor) -> list[Decision]:
        """A record for each decision, without what is kept of those told in full only."""
        settings, clean = self.settings, evidence.clean
        k = settings.k
        tops, others = (each.ranked[:, :k].tolist() for each in (clean, evidence.broken_by))
        slopes = clean.slopes.gather(1, clean.ranked[:, :k]).tolist()
        odds, probability = odds_of_classes(clean.logits).tolist(), clean.probability.tolist()
        certified, broken = evidence.certified.tolist(), evidence.broken.tolist()
        kept = evidence.certified_precision.tolist()
        left = evidence.attacked_precision
        attacked = None if left is None else left.tolist()
        found: list[Decision] = []
        for i, row in enumerate(chunk.rows):
            gone, came = _exchanged(tops[i], others[i])
            first, second = self._names(evidence.weakest[i].tolist())
            measures: dict[str, Any] = {
                name: _at(values, i) for name, values in evidence.measures.items()
            }
            found.append(
                Decision(
                    row=row,
                    id=chunk.ids[i],
                    model=self.number,
                    label=chunk.labels[i],
                    prediction=self.classes[int(clean.y[i])],
                    probability=probability[i],
                    verdict=verdict(certified[i], broken[i], settings.tolerance),
                    decided=evidence.decided[i],
                    certified_radius=_finite(certified[i]),
                    unbounded=certified[i] == math.inf,
                    certified_order_radius=_finite(float(evidence.order[i])),
                    broken_radius=_finite(broken[i]),
                    certified_precision=tuple(kept[i]),
                    attacked_precision=None if attacked is None else tuple(attacked[i]),
                    weakest=(first, second),
                    reasons=self._reasons(clean, i),
                    slopes=tuple(slopes[i]),
                    left=self._names(gone),
                    entered=self._names(came),
                    smallest=PROVED * broken[i] <= certified[i] < math.inf,
                    tie=bool(evidence.tie[i]),
                    checked=bool(checked[i]),
                    **measures,
                    log_odds=tuple(odds[i]),
                    subgroup=dict(chunk.subgroups[i]),
                )
            )
        return found

    def _names(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.columns.features[number].name for number in numbers)

    def in_full(
        self, decision: Decision, evidence: Evidence, i: int, *, to_draw: bool = False
    ) -> Decision:
        """The decision with its counter-example, if there is one, and with what is `to_draw`."""
        if decision.broken_radius is None:
            return decision
        clean, by = evidence.clean, evidence.broken_by
        # Thousands of pixels that change a little are seen, not told.
        tabular = self.columns.tabular
        changes = changes_in_words(self.columns, clean.x[i].cpu(), by.x[i].cpu()) if tabular else []
        example = CounterExample(
            changes=tuple(changes[:MOST_CHANGES]),
            changed=len(changes) if tabular else int((by.x[i] != clean.x[i]).sum()),
            probability=float(by.probability[i]),
            reasons=self._reasons(by, i),
            input=tuple(by.x[i].tolist()) if tabular or to_draw else None,
        )
        drawing = self._drawing(decision, evidence, i) if to_draw else None
        return replace(decision, counter_example=example, drawing=drawing)

    def _reasons(self, explained: Explained, i: int) -> tuple[Slope, ...]:
        raw = self.columns.values(explained.x[i].cpu())
        slopes = explained.slopes[i].tolist()
        # As shares: where a model is sure, all slopes of its probability are tiny.
        total = sum(map(abs, slopes)) or 1.0
        return tuple(
            Slope(
                feature=self.columns.features[number].name,
                value=value_in_words(self.columns.features[number], raw[number]),
                score=abs(slopes[number]) / total,
                direction="for" if slopes[number] > 0 else "against",
            )
            for number in explained.ranked[i, : self.settings.k].tolist()
        )

    def _drawing(self, decision: Decision, evidence: Evidence, i: int) -> DecisionDrawing:
        """A broken decision and the most damaging change within the tolerance, to be drawn."""
        assert self.columns.render_spec is not None
        clean, by, k = evidence.clean, evidence.worst, self.settings.k
        gone, _ = _exchanged(*(each.ranked[i, :k].tolist() for each in (clean, by)))
        about = AttackedDecision(
            row=decision.row,
            predicted=decision.prediction,
            probability=(float(clean.probability[i]), float(by.probability[i])),
            cost=float((by.x[i] - clean.x[i]).abs().max()),
            precision=(k - len(gone)) / k,
        )
        return drawn(
            about,
            self.columns.render_spec,
            [self._first(each.x[i].cpu()) for each in (clean, by)],
            [_shares(each.slopes[i].abs().cpu()) for each in (clean, by)],
            k,
        )

    def _first(self, x: Tensor) -> Tensor:
        """The numbers of an example that are drawn, in original units."""
        spec = self.columns.render_spec
        assert spec is not None
        raw = self.columns.scale.undo(x)
        whole = len(raw) == spec.count * spec.piece.size
        return raw if whole else raw[torch.tensor(self.columns.counts) >= 0]


def _exchanged(before: Sequence[int], after: Sequence[int]) -> tuple[list[int], list[int]]:
    """Features that left the top k, and those that entered it, by rank."""
    old, new = set(before), set(after)
    if old == new:
        return [], []
    return [each for each in before if each not in new], [each for each in after if each not in old]


def _shares(scores: Tensor) -> Tensor:
    """Scores as shares of their sum: where a model becomes sure, all of them grow small."""
    total = scores.sum()
    return scores / total if total > 0 else scores


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _at(values: Tensor, i: int) -> float | None:
    """One value, None where there is none or it could not be measured."""
    found = float(values[i]) if i < len(values) else math.nan
    return None if math.isnan(found) else found


def value_in_words(feature: Feature, value: float) -> str:
    """What a feature's value says: "37 years", or "yes" for the category that applies."""
    if feature.kind != "category":
        return in_words([(feature, value)])
    if abs(value - 1) < SHOWN:
        return "yes"
    return "no" if abs(value) < SHOWN else plain(value)


def changes_in_words(columns: Columns, x: Tensor, other: Tensor) -> list[Change]:
    """What differs between two inputs, the largest change first; what reads the same is left out.

    If all of it would read the same, numbers are shown with more digits.
    """
    before, after = columns.scale.undo(x).tolist(), columns.scale.undo(other).tolist()
    lengths = ((other - x) / columns.reach.clamp_min(1e-300)).where(columns.reach > 0, 0.0).tolist()
    moved = {
        group: math.hypot(*(lengths[number] for number in numbers))
        for group, numbers in columns.groups.items()
    }
    for show in (in_words, _in_digits):
        changes = []
        for group in sorted(moved, key=lambda each: -moved[each]):
            numbers = columns.groups[group]
            said = [
                show([(columns.features[number], values[number]) for number in numbers])
                for values in (before, after)
            ]
            if said[0] != said[1]:
                changes.append(Change(feature=group, before=said[0], after=said[1]))
        if changes:
            break
    return changes


def _in_digits(group: Sequence[tuple[Feature, float]]) -> str:
    """The numbers of a group to the last digit that counts."""
    known = [f"{value:.12g}" for _, value in group if not math.isnan(value)]
    return f"{' + '.join(known)} {group[0][0].unit}".rstrip() if known else MISSING
