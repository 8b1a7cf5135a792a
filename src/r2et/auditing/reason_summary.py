"""What the verdicts on reasons amount to: totals of a model, groups, and what people share."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from r2et.auditing.parts import MOST_SUBGROUPS, MOST_SWAPS, Preflight, Swap
from r2et.auditing.reason_records import ReasonedDecision, ReasonSubgroup, ReasonSummary
from r2et.core.reasons import VERDICTS
from r2et.metrics.individuality import kappa
from r2et.metrics.statistics import auc_of, difference_interval, share_interval

SIZES = tuple(number / 20 for number in range(1, 21))
"""Shares of what may change, at which broken decisions are counted."""


class ReasonTally:
    """Adds up the decisions of one model, in memory that hardly grows with them."""

    def __init__(
        self, k: int, classes: Sequence[str], subgroup_values: Mapping[str, Sequence[str]]
    ) -> None:
        self.k, self.classes, self.subgroup_values = k, classes, subgroup_values
        self.counts: Counter[str] = Counter()
        self.by: Counter[str] = Counter()
        self.known = self.right = self.kept_cores = 0
        self.kept = self.core = 0.0
        self.sizes, self.labels = array("d"), array("i")
        self.odds = [array("d") for _ in classes]
        self.having: dict[str, Counter[str]] = {}
        self.people: Counter[str] = Counter()
        self.sets: set[tuple[str, ...]] = set()
        self.protected: Counter[str] = Counter()
        self.swaps: Counter[tuple[str, str]] = Counter()
        self.subgroups: dict[tuple[str, str], Counter[str]] = {}

    def add(self, decision: ReasonedDecision) -> None:
        """Count one decision in."""
        self.counts[decision.verdict] += 1
        if decision.by is not None:
            self.by[decision.by] += 1
        if decision.kept is not None and decision.core is not None:
            self.known += 1
            self.kept += decision.kept
            self.core += len(decision.core)
            self.kept_cores += len(decision.core) >= self.k - 1
        if decision.size is not None:
            self.sizes.append(decision.size)
        told = [each.code for each in decision.reasons]
        self.people[decision.prediction] += 1
        self.having.setdefault(decision.prediction, Counter()).update(told)
        self.sets.add(tuple(sorted(told)))
        self.protected.update(decision.protected)
        if decision.then is not None:
            gone = [code for code in told if code not in decision.then]
            came = [code for code in decision.then if code not in told]
            self.swaps.update(zip(gone, came, strict=False))
        if decision.label in self.classes:
            self.right += decision.label == decision.prediction
            self.labels.append(self.classes.index(decision.label))
            for value, values in zip(decision.log_odds, self.odds, strict=True):
                values.append(value)
        for key in decision.subgroup.items():
            self.subgroups.setdefault(key, Counter())[decision.verdict] += 1

    def overlap(self) -> tuple[float | None, float | None]:
        """What two people of one predicted class share of their reasons, and any two people."""
        within = [(count, self.having[name]) for name, count in self.people.items()]
        everybody: Counter[str] = Counter()
        for own in self.having.values():
            everybody.update(own)
        return self._shared(within), self._shared([(self.people.total(), everybody)])

    def _shared(self, groups: Sequence[tuple[int, Mapping[str, int]]]) -> float | None:
        """The mean over people of the share of their reasons that another one of a group has."""
        shared, people = 0.0, 0
        for count, having in groups:
            if count > 1:
                pairs = sum(each * (each - 1) for each in having.values())
                shared += pairs / (self.k * (count - 1))
                people += count
        return shared / people if people else None

    def summary(
        self, name: str, passed_over: int, preflight: Sequence[Preflight], notes: Sequence[str]
    ) -> ReasonSummary:
        """All of it as a record."""
        within, of_all = self.overlap()
        kept = self.kept / self.known if self.known else None
        sizes = np.array(self.sizes)
        # Rounding must not move a change of exactly a size behind it.
        counted = tuple(int((sizes <= size * (1 + 1e-9)).sum()) for size in SIZES)
        labels = torch.from_numpy(np.array(self.labels))
        two = len(labels.unique()) > 1 if len(labels) else False
        return ReasonSummary(
            name=name,
            auc=auc_of(torch.from_numpy(np.array(self.odds).T), labels) if two else None,
            accuracy=self.right / len(self.labels) if self.labels else None,
            counts={verdict: self.counts[verdict] for verdict in VERDICTS},
            by=dict(self.by),
            passed_over=passed_over,
            known=self.known,
            kept=kept,
            overlap=within,
            overlap_of_all=of_all,
            kappa=None if kept is None or within is None else kappa(kept, within),
            core=self.core / self.known if self.known else None,
            all_but_one=self.kept_cores / self.known if self.known else None,
            distinct_sets=len(self.sets),
            median_size=float(np.median(sizes)) if len(sizes) else None,
            sizes=SIZES,
            within=counted,
            protected=dict(self.protected),
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

    def _subgroups(self) -> Iterator[ReasonSubgroup]:
        """The largest subgroups by name, their values in the order that the rows' source gives."""
        largest = sorted(self.subgroups.items(), key=lambda each: -each[1].total())
        chosen = dict(largest[:MOST_SUBGROUPS])
        ordered = ((group, each) for group, known in self.subgroup_values.items() for each in known)
        places = {key: place for place, key in enumerate(ordered)}
        rows, broken = self.counts.total(), self.counts["broken"]
        for key in sorted(chosen, key=lambda key: (key[0], places.get(key, len(places)), key[1])):
            each, own = chosen[key], chosen[key].total()
            low, high = share_interval(each["broken"], own)
            difference = least = most = None
            if rows > own:
                others = rows - own, broken - each["broken"]
                difference = each["broken"] / own - others[1] / others[0]
                least, most = difference_interval(each["broken"], own, others[1], others[0])
            yield ReasonSubgroup(
                group=key[0],
                value=key[1],
                rows=own,
                certified=each["certified"],
                broken=each["broken"],
                undetermined=each["undetermined"],
                low=low,
                high=high,
                difference=difference,
                least=least,
                most=most,
            )
