"""What the decisions of an audit amount to: totals of a model, and how they came about."""

import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

import numpy as np
import torch

from r2et.auditing.decisions import MEASURES, VERDICTS, Decision, features_of
from r2et.auditing.evidence import Subject
from r2et.auditing.parts import MOST_SUBGROUPS, MOST_SWAPS, Preflight, Swap
from r2et.auditing.records import (
    Curve,
    Faithfulness,
    Subgroup,
    Summary,
    Thickness,
)
from r2et.auditing.settings import LEAST_CHECKED, AuditSettings
from r2et.auditing.tables import Source
from r2et.core.reasons import Decided
from r2et.metrics.exchanges import doubt
from r2et.metrics.statistics import auc_of

MOST_SETS = 2_000_000  # different sets of reasons that are counted one by one


class Mean:
    """The mean of numbers that come one by one, and the least of them."""

    def __init__(self) -> None:
        self.count, self.total, self.least = 0, 0.0, math.inf

    def add(self, value: float) -> None:
        """Count a number in."""
        self.count, self.total = self.count + 1, self.total + value
        self.least = min(self.least, value)

    @property
    def mean(self) -> float:
        """The mean so far, of one number at least."""
        return self.total / self.count

    @property
    def known(self) -> float | None:
        """The mean so far, if any number came."""
        return self.mean if self.count else None


class Tally:
    """Adds up the decisions of one model, in memory that hardly grows with them."""

    def __init__(
        self,
        settings: AuditSettings,
        classes: Sequence[str],
        subgroup_values: Mapping[str, Sequence[str]],
    ) -> None:
        self.settings, self.classes, self.subgroup_values = settings, classes, subgroup_values
        self.counts: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()
        lengths = len(settings.epsilons)
        self.kept, self.left, self.proved_at, self.broken_at = (np.zeros(lengths) for _ in range(4))
        self.certified, self.broken = array("d"), array("d")
        self.right = self.ties = self.proved = self.checked = self.smallest = 0
        self.labels = array("i")
        self.odds = [array("d") for _ in classes]
        self.means = {name: Mean() for name in MEASURES}
        self.swaps: Counter[tuple[str, str]] = Counter()
        self.sets: set[bytes] = set()
        self.subgroups: dict[tuple[str, str], Counter[str]] = {}

    def add(self, decision: Decision) -> None:
        """Count one decision in."""
        self.counts[decision.verdict] += 1
        self.decided[decision.decided] += 1
        self.smallest += decision.smallest and decision.verdict == "broken"
        lengths = np.array(self.settings.epsilons)
        certified = math.inf if decision.unbounded else decision.certified_radius or 0.0
        broken = math.inf if decision.broken_radius is None else decision.broken_radius
        self.certified.append(certified)
        if broken < math.inf:
            self.broken.append(broken)
        self.kept += decision.certified_precision
        if decision.attacked_precision is not None:
            self.left += decision.attacked_precision
        self.proved_at += certified >= lengths
        self.broken_at += broken <= lengths
        self.ties += decision.tie
        self.proved += certified > 0
        self.checked += decision.checked
        for name, mean in self.means.items():
            if (value := getattr(decision, name)) is not None:
                mean.add(value)
        self.swaps.update(zip(decision.left, decision.entered, strict=True))
        if len(self.sets) < MOST_SETS:
            reasons = json.dumps(sorted(features_of(decision.reasons)))
            self.sets.add(hashlib.blake2b(reasons.encode(), digest_size=8).digest())
        self._label(decision)
        self._subgroup(decision)

    def _label(self, decision: Decision) -> None:
        if decision.label not in self.classes:
            return
        self.right += decision.label == decision.prediction
        self.labels.append(self.classes.index(decision.label))
        for value, values in zip(decision.log_odds, self.odds, strict=True):
            values.append(value)

    def _subgroup(self, decision: Decision) -> None:
        at = self.settings.epsilons.index(self.settings.tolerance)
        for key in decision.subgroup.items():
            each = self.subgroups.setdefault(key, Counter())
            each["rows"] += 1
            each[decision.verdict] += 1
            for name in ("certified_precision", "attacked_precision"):
                if (shares := getattr(decision, name)) is not None:
                    # Whole reasons are counted, so that no sum is rounded.
                    each[name] += round(shares[at] * self.settings.k)

    def summary(self, name: str, preflight: Sequence[Preflight], notes: Sequence[str]) -> Summary:
        """All of it as a record."""
        rows = sum(self.counts.values())
        attacked = self.settings.attack != "none"
        means = self.means
        return Summary(
            name=name,
            auc=self._auc(),
            accuracy=self.right / len(self.labels) if self.labels else None,
            counts={verdict: self.counts[verdict] for verdict in VERDICTS},
            decided={each: self.decided[each] for each in get_args(Decided) if self.decided[each]},
            smallest=self.smallest,
            curve=Curve(
                epsilons=self.settings.epsilons,
                certified_precision=_shares(self.kept, rows),
                attacked_precision=_shares(self.left, rows) if attacked else None,
                certified_share=_shares(self.proved_at, rows),
                unbroken_share=_shares(rows - self.broken_at, rows) if attacked else None,
            ),
            median_certified_radius=_median(self.certified),
            median_broken_radius=_median(self.broken),
            thickness=Thickness(mean=means["thickness"].mean, least=means["thickness"].least)
            if means["thickness"].count
            else None,
            faithfulness=Faithfulness(
                dffot=means["dffot"].mean, comp=means["comp"].known, suff=means["suff"].known
            )
            if means["dffot"].count
            else None,
            distinct_sets=len(self.sets),
            ties=self.ties,
            flippable=means["flippable"].known,
            off_data_share=means["off_data_share"].known,
            exchange_agreement=means["exchange_agreement"].known,
            exchange_size=means["exchange_size"].known,
            without_exchanges=self.without_exchanges,
            swaps=tuple(
                Swap(left=left, entered=entered, count=count)
                for (left, entered), count in sorted(
                    self.swaps.items(), key=lambda each: (-each[1], each[0])
                )[:MOST_SWAPS]
            ),
            subgroups=tuple(self._subgroups()),
            preflight=tuple(preflight),
            notes=tuple(notes),
        )

    @property
    def without_exchanges(self) -> int | None:
        """How many decisions had no exchanges to order, None where it was measured of none."""
        measured = self.means["exchange_agreement"].count
        return self.means["thickness"].count - measured if measured else None

    def _auc(self) -> float | None:
        labels = torch.from_numpy(np.array(self.labels))
        if len(labels.unique()) < 2:
            return None
        return auc_of(torch.from_numpy(np.array(self.odds).T), labels)

    def _subgroups(self) -> Iterator[Subgroup]:
        """The largest subgroups by name, their values in the order that the rows' source gives."""
        k, attacked = self.settings.k, self.settings.attack != "none"
        largest = sorted(self.subgroups.items(), key=lambda each: -each[1]["rows"])
        chosen = dict(largest[:MOST_SUBGROUPS])
        ordered = ((group, each) for group, known in self.subgroup_values.items() for each in known)
        places = {key: place for place, key in enumerate(ordered)}
        for key in sorted(chosen, key=lambda key: (key[0], places.get(key, len(places)), key[1])):
            each = chosen[key]
            rows = each["rows"]
            yield Subgroup(
                group=key[0],
                value=key[1],
                rows=rows,
                certified=each["certified"],
                broken=each["broken"],
                undetermined=each["undetermined"],
                certified_precision=each["certified_precision"] / (k * rows),
                attacked_precision=each["attacked_precision"] / (k * rows) if attacked else None,
            )


def _shares(sums: Iterable[float], rows: int) -> tuple[float, ...]:
    return tuple(float(each) / rows if rows else 1.0 for each in sums)


def _median(values: Sequence[float]) -> float | None:
    """The middle one, None if there is none or it is infinite."""
    if not len(values):
        return None
    middle = float(np.median(np.array(values)))
    return middle if np.isfinite(middle) else None


def quotas(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of each to tell so that they are at most `most`, in proportion, none left out.

    >>> quotas({"certified": 90, "broken": 9, "undetermined": 1}, 10)
    {'certified': 8, 'broken': 1, 'undetermined': 1}
    """
    total = sum(counts.values())
    if total <= most:
        return dict(counts)
    found = {key: max(min(count, 1), most * count // total) for key, count in counts.items()}
    largest = max(found, key=lambda key: found[key])
    found[largest] += most - sum(found.values())
    return found


# --- how the numbers came about ------------------------------------------------------------------


def notes_of(
    each: Subject,
    tally: Tally,
    source: Source,
    settings: AuditSettings,
    rows: int,
    most_drawn: int,
) -> Iterator[str]:
    """What a reader should know about how the numbers came about."""
    yield from source.notes
    if each.uncertified is not None:
        yield (
            f"No certificate could be given, so that no decision is called certified: "
            f"{each.uncertified}"
        )
    elif settings.radii == "none":
        yield (
            f"Radii were not sought{_of_table(source)}: each certified radius is the greatest "
            "audited length at which the reasons are proved to stay."
        )
    if not source.columns.tabular:
        yield (
            f"Of {len(source.columns.features):,} features {settings.k} are shown, and one that "
            "changes places breaks a decision: read the share of reasons kept beside the verdicts."
        )
    if not source.columns.tabular and tally.counts["broken"] > most_drawn:
        yield f"The first {most_drawn} broken decisions are drawn."
    if rows > settings.measured:
        yield (
            "Thickness, faithfulness and flippable predictions were measured on the first "
            f"{settings.measured:,} decisions{_and_exchanges(source)}."
        )
    yield from _about_exchanges(tally)
    if len(tally.subgroups) > MOST_SUBGROUPS:
        yield f"Only the {MOST_SUBGROUPS} largest of {len(tally.subgroups):,} subgroups are shown."
    if len(tally.sets) >= MOST_SETS:
        yield f"There are {MOST_SETS:,} different sets of reasons or more; no more were counted."
    if each.uncertified is None:
        yield _self_check(tally, settings)


def _self_check(tally: Tally, settings: AuditSettings) -> str:
    """What was done to catch a false proof, and what came of it."""
    if not settings.checked:
        return "Self-check: none, as asked for; no proof was put to the test."
    return (
        f"Self-check: {tally.checked:,} of the {tally.proved:,} decisions with a proved radius, "
        f"those proved furthest of each {settings.chunk:,} rows first ({100 * settings.checked:g} "
        f"%, at least {LEAST_CHECKED}), were attacked inside it: no reason was replaced."
    )


def _and_exchanges(source: Source) -> str:
    return ", and so was the exchange agreement" if source.columns.exchangeable else ""


def _about_exchanges(tally: Tally) -> Iterator[str]:
    """What slopes do not say about exchanges of categories, and of whom that is not known."""
    agreement, size = tally.means["exchange_agreement"], tally.means["exchange_size"]
    if agreement.count and (said := doubt(agreement.mean, size.mean)):
        yield said
    if without := tally.without_exchanges:
        yield (
            f"{without:,} of the decisions measured offer too few exchanges of categories to be "
            "ordered, or none that does anything: the exchange agreement is that of the others."
        )


def _of_table(source: Source) -> str:
    return " for a table of this size" if source.columns.tabular else ""
