"""What the rows of an audit amount to: everything that is said about a model as a whole."""

import hashlib
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from r2et.auditing.auditor import VERDICTS, AuditSettings
from r2et.auditing.formatting import MEASURES

MOST_SWAPS = 20
MOST_SUBGROUPS = 60
MOST_SETS = 2_000_000  # different sets of reasons that are counted one by one

TextRow = Mapping[str, str]


class Tally:
    """Adds up the rows of one model, in memory that hardly grows with them."""

    def __init__(self, settings: AuditSettings, classes: Sequence[str]) -> None:
        self.settings, self.classes = settings, classes
        self.counts: Counter[str] = Counter()
        self.kept = {what: np.zeros(len(settings.epsilons)) for what in ("certified", "attacked")}
        self.within = {what: np.zeros(len(settings.epsilons)) for what in ("certified", "broken")}
        self.certified, self.broken = array("d"), array("d")
        self.right = self.labelled = self.ties = self.proved = self.checked = 0
        self.labels = array("i")
        self.odds = [array("d") for _ in classes]
        self.measured: dict[str, tuple[int, float, float]] = {}
        self.swaps: Counter[tuple[str, str]] = Counter()
        self.sets: set[bytes] = set()
        self.subgroups: dict[tuple[str, str], Counter[str]] = {}

    def add(self, row: TextRow) -> None:
        """Count one row in."""
        verdict, lengths = row["verdict"], self.settings.epsilons
        self.counts[verdict] += 1
        certified = float("inf") if row["unbounded"] == "true" else float(row["certified radius"])
        self.certified.append(certified)
        broken = float(row["broken radius"]) if row["broken radius"] else float("inf")
        if broken < float("inf"):
            self.broken.append(broken)
        for at, length in enumerate(lengths):
            self.kept["certified"][at] += float(row[f"certified precision at {length}"])
            if attacked := row[f"attacked precision at {length}"]:
                self.kept["attacked"][at] += float(attacked)
            self.within["certified"][at] += certified >= length
            self.within["broken"][at] += broken <= length
        self.ties += row["tie"] == "true"
        self.proved += certified > 0
        self.checked += row["checked"] == "true"
        self._label(row)
        for name in ("null share", *MEASURES):
            if row[name]:
                value = float(row[name])
                count, total, least = self.measured.get(name, (0, 0.0, float("inf")))
                self.measured[name] = (count + 1, total + value, min(least, value))
        self.swaps.update(zip(json.loads(row["left"]), json.loads(row["entered"]), strict=True))
        if len(self.sets) < MOST_SETS:
            reasons = json.dumps(sorted(json.loads(row["reasons"])))
            self.sets.add(hashlib.blake2b(reasons.encode(), digest_size=8).digest())
        self._subgroup(row, verdict)

    def _label(self, row: TextRow) -> None:
        if not row["label"] or row["label"] not in self.classes:
            return
        self.labelled += 1
        self.right += row["label"] == row["prediction"]
        self.labels.append(self.classes.index(row["label"]))
        for name, values in zip(self.classes, self.odds, strict=True):
            values.append(float(row[f"log-odds of {name}"]))

    def _subgroup(self, row: TextRow, verdict: str) -> None:
        at = f"{float(self.settings.tolerance)}"
        for name, value in row.items():
            if name.startswith("subgroup "):
                each = self.subgroups.setdefault((name.removeprefix("subgroup "), value), Counter())
                each["rows"] += 1
                each[verdict] += 1
                for what in ("certified precision", "attacked precision"):
                    if text := row[f"{what} at {at}"]:
                        # Whole reasons are counted, so that no sum is rounded.
                        each[what] += round(float(text) * self.settings.k)

    def record(self) -> dict[str, Any]:
        """All of it under the names of `audit.json`."""
        rows = sum(self.counts.values())
        attacked = self.settings.attack != "none"
        thick = self.measured.get("thickness")
        return {
            "auc": self._auc(),
            "accuracy": self.right / self.labelled if self.labelled else None,
            "counts": {verdict: self.counts[verdict] for verdict in VERDICTS},
            "curve": {
                "epsilons": list(self.settings.epsilons),
                "certified precision": self._shares(self.kept["certified"], rows),
                "attacked precision": self._shares(self.kept["attacked"], rows)
                if attacked
                else None,
                "certified share": self._shares(self.within["certified"], rows),
                "unbroken share": self._shares(rows - self.within["broken"], rows)
                if attacked
                else None,
            },
            "median certified radius": _median(self.certified),
            "median broken radius": _median(self.broken),
            "thickness": None
            if thick is None
            else {"mean": thick[1] / thick[0], "least": thick[2]},
            "faithfulness": {name: self._mean(name) for name in ("dffot", "comp", "suff")}
            if "dffot" in self.measured
            else None,
            "distinct sets": len(self.sets),
            "ties": self.ties,
            "flippable": self._mean("flippable"),
            "null share": self._mean("null share"),
            **self.exchanges(),
            "swaps": [
                {"left": left, "entered": entered, "count": count}
                for (left, entered), count in sorted(
                    self.swaps.items(), key=lambda each: (-each[1], each[0])
                )[:MOST_SWAPS]
            ],
            "subgroups": [self._told_subgroup(*each) for each in self._largest_subgroups()],
        }

    def _shares(self, sums: Iterable[float], rows: int) -> list[float]:
        return [float(each) / rows if rows else 1.0 for each in sums]

    def _mean(self, name: str) -> float | None:
        if name not in self.measured:
            return None
        count, total, _ = self.measured[name]
        return total / count

    def exchanges(self) -> dict[str, Any]:
        """What slopes say about exchanges of categories, and how many decisions had none to order.

        None where it was measured of no decision.
        """
        known = "exchange agreement" in self.measured
        return {
            **{name: self._mean(name) for name in ("exchange agreement", "exchange size")},
            "without exchanges": self.measured["thickness"][0]
            - self.measured["exchange agreement"][0]
            if known
            else None,
        }

    def _auc(self) -> float | None:
        from sklearn.metrics import roc_auc_score

        labels = np.array(self.labels)
        present = [each for each in range(len(self.classes)) if (labels == each).any()]
        if len(present) < 2:
            return None
        wanted = [1] if len(self.classes) == 2 else present
        areas = [float(roc_auc_score(labels == each, np.array(self.odds[each]))) for each in wanted]
        return sum(areas) / len(areas)

    def _largest_subgroups(self) -> list[tuple[tuple[str, str], Counter[str]]]:
        largest = sorted(self.subgroups.items(), key=lambda each: -each[1]["rows"])
        chosen = dict(largest[:MOST_SUBGROUPS])
        return [(key, chosen[key]) for key in sorted(chosen, key=_natural)]

    def _told_subgroup(self, key: tuple[str, str], each: Counter[str]) -> dict[str, Any]:
        rows, k = each["rows"], self.settings.k
        attacked = self.settings.attack != "none"
        return {
            "group": key[0],
            "value": key[1],
            "rows": rows,
            **{verdict: each[verdict] for verdict in VERDICTS},
            "certified precision": each["certified precision"] / (k * rows),
            "attacked precision": each["attacked precision"] / (k * rows) if attacked else None,
        }


def _natural(key: tuple[str, str]) -> tuple[str, float, bool, str]:
    """Groups by name, their values by the first number in them, quarters from the lowest up."""
    group, value = key
    number = re.search(r"-?\d+(\.\d+)?(e[+-]?\d+)?", value)
    return group, float(number[0]) if number else math.inf, not value.startswith("up to"), value


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
