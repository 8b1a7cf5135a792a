"""Decisions in the user's words and units: as a flat row for each, and told in full."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from r2et.auditing.auditor import AuditSettings, Explained, Judged, Subject
from r2et.auditing.tables import Chunk, Columns
from r2et.data.dataset import MISSING, SHOWN, Feature, in_words, plain
from r2et.data.writing import NUMBER
from r2et.evaluation.rendering import drawn

MOST_CHANGES = 40
# What begins a formula, behind spaces and behind apostrophes, by which one is told from an escape.
BEGINS = "'*(?:[ \\t\\r\\n]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])"
FORMULA, ESCAPED = re.compile(BEGINS), re.compile(f"'{BEGINS}")
MEASURES = (
    *("thickness", "dffot", "comp", "suff", "flippable"),
    *("exchange agreement", "exchange size"),
)

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Formatter:
    """Puts what was found out about the decisions of one model into rows and words."""

    number: int
    subject: Subject
    columns: Columns
    settings: AuditSettings

    def rows(self, chunk: Chunk, judged: Judged, checked: Sequence[bool]) -> list[Row]:
        """A flat row for each decision, nothing left out but the words."""
        settings, clean = self.settings, judged.clean
        verdicts = judged.verdicts(settings.tolerance)
        tops, others = (each.ranked[:, : settings.k].tolist() for each in (clean, judged.broken_by))
        scores = clean.slopes.gather(1, clean.ranked[:, : settings.k]).tolist()
        odds, probability = clean.log_odds.tolist(), clean.probability.tolist()
        certified, broken = judged.certified.tolist(), judged.broken.tolist()
        kept = judged.certified_precision.tolist()
        left = None if judged.attacked_precision is None else judged.attacked_precision.tolist()
        found = []
        for i, row in enumerate(chunk.rows):
            gone, came = _exchanged(tops[i], others[i])
            found.append(
                {
                    "row": row,
                    "id": chunk.ids[i],
                    "model": self.number,
                    "label": chunk.labels[i],
                    "prediction": self.subject.classes[int(clean.y[i])],
                    "probability": probability[i],
                    "verdict": verdicts[i],
                    "certified radius": _finite(certified[i]),
                    "unbounded": certified[i] == math.inf,
                    "certified order radius": _finite(float(judged.order[i])),
                    "broken radius": _finite(broken[i]),
                    **self._lengths("certified precision", kept[i]),
                    **self._lengths("attacked precision", None if left is None else left[i]),
                    "weakest": self._names(judged.weakest[i].tolist()),
                    "reasons": self._names(tops[i]),
                    "slopes": scores[i],
                    "left": self._names(gone),
                    "entered": self._names(came),
                    "tie": bool(judged.tie[i]),
                    "checked": checked[i],
                    "null share": None
                    if judged.off_data_share is None
                    else float(judged.off_data_share[i]),
                    **{name: _at(judged.measures.get(name), i) for name in MEASURES},
                    **{
                        f"log-odds of {name}": value
                        for name, value in zip(self.subject.classes, odds[i], strict=True)
                    },
                    **{f"subgroup {name}": value for name, value in chunk.subgroups[i].items()},
                }
            )
        return found

    def _lengths(self, what: str, values: Sequence[float] | None) -> Row:
        lengths = self.settings.epsilons
        known = [None] * len(lengths) if values is None else values
        return {f"{what} at {length}": value for length, value in zip(lengths, known, strict=True)}

    def _names(self, numbers: Sequence[int]) -> list[str]:
        return [self.columns.features[number].name for number in numbers]

    def told(self, chunk: Chunk, judged: Judged, i: int, row: Row, drawn: bool = False) -> Row:
        """One decision in full, as `audit.json` holds it; `row` is its flat row.

        If it is `drawn`, also as a picture before and after the change.
        """
        attacked = self.settings.attack != "none"
        return {
            **{name: row[name] for name in ("row", "id", "model", "label")},
            **{name: row[name] for name in ("prediction", "probability", "verdict")},
            "certified radius": row["certified radius"],
            "unbounded": row["unbounded"],
            "certified order radius": row["certified order radius"],
            "broken radius": row["broken radius"],
            "certified precision": self._series("certified precision", row),
            "attacked precision": self._series("attacked precision", row) if attacked else None,
            "weakest": row["weakest"],
            "reasons": self._reasons(judged.clean, i),
            "subgroup": dict(chunk.subgroups[i]),
            "counter-example": None
            if row["broken radius"] is None
            else self._counter_example(judged, i, row, drawn),
            **({"drawing": self._drawing(judged, i, row)} if drawn else {}),
        }

    def _series(self, what: str, row: Row) -> list[float]:
        return [row[f"{what} at {length}"] for length in self.settings.epsilons]

    def _reasons(self, explained: Explained, i: int) -> list[Row]:
        raw = self.columns.values(explained.x[i].cpu())
        slopes = explained.slopes[i].tolist()
        # As shares: where a model is sure, all slopes of its probability are tiny.
        total = sum(map(abs, slopes)) or 1.0
        return [
            {
                "feature": self.columns.features[number].name,
                "value": value_in_words(self.columns.features[number], raw[number]),
                "score": abs(slopes[number]) / total,
                "direction": "for" if slopes[number] > 0 else "against",
            }
            for number in explained.ranked[i, : self.settings.k].tolist()
        ]

    def _counter_example(self, judged: Judged, i: int, row: Row, drawn: bool) -> Row:
        clean, by = judged.clean, judged.broken_by
        k, look = self.settings.k, self.columns.look
        # Thousands of pixels that change a little are seen, not told.
        changes = (
            changes_in_words(self.columns, clean.x[i].cpu(), by.x[i].cpu()) if look is None else []
        )
        return {
            "radius": row["broken radius"],
            "changes": changes[:MOST_CHANGES],
            "changed": len(changes) if look is None else int((by.x[i] != clean.x[i]).sum()),
            "prediction": row["prediction"],
            "probability": float(by.probability[i]),
            "reasons": self._reasons(by, i),
            "left": row["left"],
            "entered": row["entered"],
            "precision": (k - len(row["left"])) / k,
            "input": by.x[i].tolist() if look is None or drawn else None,
        }

    def _drawing(self, judged: Judged, i: int, row: Row) -> Row:
        """A broken decision and the most damaging change within the tolerance, to be drawn."""
        assert self.columns.look is not None
        clean, by, k = judged.clean, judged.worst, self.settings.k
        gone, _ = _exchanged(*(each.ranked[i, :k].tolist() for each in (clean, by)))
        return {
            "row": row["row"],
            "predicted": row["prediction"],
            "probability": [float(each.probability[i]) for each in (clean, by)],
            "cost": float((by.x[i] - clean.x[i]).abs().max()),
            "precision": (k - len(gone)) / k,
            **drawn(
                self.columns.look,
                [self._first(each.x[i].cpu()) for each in (clean, by)],
                [_shares(each.slopes[i].abs().cpu()) for each in (clean, by)],
                k,
            ),
        }

    def _first(self, x: Tensor) -> Tensor:
        """The numbers of an example that are drawn, in original units."""
        assert self.columns.look is not None
        raw = self.columns.scale.undo(x)
        counts = torch.tensor(self.columns.counts)
        look = self.columns.look
        if len(raw) == look.count * look.piece.size:
            return raw
        return raw[counts >= 0]


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


def _at(values: Tensor | None, i: int) -> float | None:
    """One value, None where there is none or it could not be measured."""
    found = float(values[i]) if values is not None and i < len(values) else math.nan
    return None if math.isnan(found) else found


def value_in_words(feature: Feature, value: float) -> str:
    """What a feature's value says: "37 years", or "yes" for the category that applies."""
    if feature.kind != "category":
        return in_words([(feature, value)])
    if abs(value - 1) < SHOWN:
        return "yes"
    return "no" if abs(value) < SHOWN else plain(value)


def changes_in_words(columns: Columns, x: Tensor, other: Tensor) -> list[dict[str, str]]:
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
        told = []
        for group in sorted(moved, key=lambda each: -moved[each]):
            numbers = columns.groups[group]
            said = [
                show([(columns.features[number], values[number]) for number in numbers])
                for values in (before, after)
            ]
            if said[0] != said[1]:
                told.append({"feature": group, "before": said[0], "after": said[1]})
        if told:
            break
    return told


def _in_digits(group: Sequence[tuple[Feature, float]]) -> str:
    """The numbers of a group to the last digit that counts."""
    known = [f"{value:.12g}" for _, value in group if not math.isnan(value)]
    return f"{' + '.join(known)} {group[0][0].unit}".rstrip() if known else MISSING


def flat(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row, lists as JSON and nothing for what is not known.

    Text that a spreadsheet would run as a formula is escaped, see `escaped`; numbers stay numbers.
    """
    return [_cell(value) for value in row.values()]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return escaped(value)
    return repr(value) if isinstance(value, float) else str(value)


def escaped(text: str) -> str:
    """Text with an apostrophe before what would make it a formula, such as =, +, - or @.

    >>> escaped("=1+1"), escaped("-5"), escaped("-x"), escaped("'=1+1"), escaped("a = b")
    ("'=1+1", '-5', "'-x", "''=1+1", 'a = b')
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def unescaped(text: str) -> str:
    """The text that `escaped` was given.

    >>> unescaped("'=1+1"), unescaped("'tis"), unescaped("''=1+1")
    ('=1+1', "'tis", "'=1+1")
    """
    return text[1:] if ESCAPED.match(text) else text
