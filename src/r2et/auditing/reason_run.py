"""Run an audit of the reasons of tables: contributions of attributes, decision by decision."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from r2et import __version__
from r2et.actionable.tables import TableMoves
from r2et.auditing.exports import check_format, table_columns, write_table
from r2et.auditing.parts import Hashes
from r2et.auditing.reason_models import ReasonSubject, SubjectOf
from r2et.auditing.reason_records import (
    SCHEMA,
    ReasonAudit,
    ReasonedData,
    ReasonedDecision,
)
from r2et.auditing.reason_settings import ReasonSettings, moves_for, moves_in_words
from r2et.auditing.reason_summary import ReasonTally
from r2et.auditing.store import Store
from r2et.auditing.summary import quotas
from r2et.auditing.tables import Chunk, Source
from r2et.auditing.walk import (
    OnProgress,
    Progress,
    first_of,
    ignore,
    kept_audit,
    limited,
    smaller,
)
from r2et.bands.telling import told_reasons, value_in_words
from r2et.core.reasons import Question, ReasonVerdict, decided_by
from r2et.evaluation.reasons import reason_verdicts

MOST_IN_FULL = 1000
SAMPLE = 5000  # first rows, by which widths and references are told
ANSWERS = 8  # rows by whose answers a model is known again


def run_reasons(
    source: Source,
    subjects: SubjectOf,
    settings: ReasonSettings,
    *,
    out: str | Path | None = None,
    format: str = "csv",
    on_progress: OnProgress = ignore,
) -> ReasonAudit:
    """What was found about the reasons of each decision, all but the page that shows it.

    `subjects` makes models ready, of some rows of the source.
    """
    check_format(format)
    if out is not None:
        return _audited(source, subjects, settings, Path(out), format, on_progress)
    with TemporaryDirectory() as folder:
        found = _audited(source, subjects, settings, Path(folder), "csv", on_progress)
    return replace(found, folder=None)


def _audited(
    source: Source,
    subjects: SubjectOf,
    settings: ReasonSettings,
    folder: Path,
    format: str,
    on_progress: OnProgress,
) -> ReasonAudit:
    total = smaller(source.length, settings.rows)
    chunks = limited(source.chunks(settings.chunk), settings.rows, source)
    first = first_of(chunks, source)
    on_progress(Progress(done=0, total=total, what="looking at the model"))
    sample = _sample(source, first)
    made = subjects(source, sample, settings)
    run = _Run(
        source=source,
        subjects=made,
        sample=sample,
        first=first,
        settings=settings,
        moves=moves_for(settings, made[0].frame(sample), made[0].words, made[0].widths),
    )
    run.check()

    def conclude(store: Store[ReasonedDecision]) -> ReasonAudit:
        classes = run.classes
        tallies = [
            ReasonTally(each.question(settings).k, classes, source.subgroup_values) for each in made
        ]
        columns = table_columns(ReasonedDecision, classes=classes, subgroups=[*first.subgroups[0]])
        write_table(folder, format, columns, _tallied(store.decisions(), tallies))
        return run.found(store, tallies, total)

    found = kept_audit(
        folder,
        run.plan(format),
        ReasonedDecision,
        read=ReasonAudit.from_json,
        begin=lambda: None,
        chunks=itertools.chain([first], chunks),
        add=run.added,
        conclude=conclude,
        total=total,
        on_progress=on_progress,
    )
    return replace(found, folder=folder)


def _sample(source: Source, first: Chunk) -> Chunk:
    """The first rows of a source."""
    if source.length is None:  # rows that come from an iterator come once
        return first
    return next(iter(source.chunks(SAMPLE)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """One audit: its models made ready, its rows, the first of them, and what is asked."""

    source: Source
    subjects: Sequence[ReasonSubject]
    sample: Chunk
    first: Chunk
    settings: ReasonSettings
    moves: TableMoves

    @property
    def classes(self) -> tuple[str, ...]:
        """Those that all models answer for."""
        return tuple(self.subjects[0].model.classes)

    def check(self) -> None:
        """Refuse what cannot be asked of these models."""
        settings, classes = self.settings, self.classes
        for each in self.subjects:
            if tuple(each.model.classes) != classes:
                raise ValueError(
                    "models audited side by side answer for the same classes, but "
                    f"{each.name} has {len(each.model.classes)}."
                )
            each.question(settings).labels(each.model.names)
        if settings.favourable is not None and settings.favourable not in classes:
            raise ValueError(
                f"the favourable class must be one of {', '.join(classes)}, got "
                f"{settings.favourable!r}."
            )
        if len(classes) > 2 and settings.threshold not in (None, 0.5):
            raise ValueError(
                f"a threshold divides two classes, but there are {len(classes)}: leave it out."
            )
        if len(classes) > 2 and settings.only == "declined" and settings.favourable is None:
            raise ValueError(
                f"of {len(classes)} classes none is favourable by itself: name it by favourable."
            )

    @property
    def favourable(self) -> str:
        """The class that is not declined."""
        return self.settings.favourable or self.classes[-1]

    def plan(self, format: str) -> dict[str, Any]:
        """All that decides what an audit finds, to know its folder by."""
        settings = {
            **asdict(self.settings),
            "format": format,
            "moves": moves_in_words(self.moves, {}),
            "reference": [each.reference_digest for each in self.subjects],
        }
        return {
            "schema": SCHEMA,
            "version": __version__,
            "model": {each.name: each.digest for each in self.subjects},
            "data": [self.source.digest, self.first.digest, *self.classes],
            "settings": json.loads(json.dumps(settings)),
            "answers": {each.name: self._answers(each) for each in self.subjects},
        }

    def _answers(self, each: ReasonSubject) -> str:
        """Twelve hexadecimal digits of a model's answers: code can change where no weight does."""
        rows = each.frame(self.first.first(ANSWERS))
        # Fewer digits than differ between machines.
        digits = " ".join(f"{value:.5e}" for value in each.model.scores(rows).ravel())
        return hashlib.sha256(digits.encode()).hexdigest()[:12]

    # --- decisions ------------------------------------------------------------------------------

    def added(
        self, chunk: Chunk, done: int, store: Store[ReasonedDecision]
    ) -> list[tuple[ReasonedDecision, bool]]:
        """What all models show of the rows of a chunk, each with whether it is told in full."""
        found, so_far, share = [], store.in_full.copy(), len(self.subjects)
        for number, each in enumerate(self.subjects):
            for decision in self._decisions(number, each, chunk):
                key = (number, decision.verdict)
                in_full = so_far[key] < MOST_IN_FULL // share
                so_far[key] += in_full
                found.append((decision, in_full))
        return found

    def _decisions(
        self, number: int, each: ReasonSubject, chunk: Chunk
    ) -> Iterator[ReasonedDecision]:
        rows, settings = each.frame(chunk), self.settings
        scores = each.model.scores(rows)
        decided = decided_by(scores)
        chosen = np.arange(len(rows))
        if settings.only == "declined":
            chosen = np.flatnonzero(decided != self.classes.index(self.favourable))
        if not len(chosen):
            return
        people = rows.iloc[chosen].reset_index(drop=True)
        question = each.question(settings)
        verdicts = reason_verdicts(
            each.model,
            people,
            self.moves,
            question,
            most_moves=settings.most_moves,
            attack=settings.attack != "none",
            search=settings.search,
            seed=settings.seed,
        )
        phi = each.model.contributions(people)
        own = np.take_along_axis(phi, decided[chosen][:, None, None], 2)[..., 0]
        reasons = told_reasons(
            own,
            {name: people[name].to_numpy() for name in each.model.names},
            each.usual,
            k=question.k,
            side=question.side,
            codes=question.codes,
            units=each.units,
        )
        odds = each.odds(scores[chosen])
        for at, verdict in enumerate(verdicts):
            place, label = int(chosen[at]), int(decided[chosen[at]])
            yield ReasonedDecision(
                row=chunk.rows[place],
                id=chunk.ids[place],
                model=number,
                label=chunk.labels[place],
                prediction=self.classes[label],
                probability=float(1 / (1 + np.exp(-odds[at, label]))),
                verdict=verdict.verdict,
                by=verdict.by,
                reasons=tuple(reasons[at]),
                core=verdict.core,
                kept=verdict.kept,
                change=None if verdict.breaking is None else dict(verdict.breaking.values),
                size=None if verdict.breaking is None else float(verdict.breaking.size),
                then=None if verdict.breaking is None else verdict.breaking.reasons,
                moves=verdict.moves,
                protected=self._protected(each, verdict, question),
                log_odds=tuple(odds[at].tolist()),
                subgroup=dict(chunk.subgroups[place]),
                words=_in_words(verdict, people.iloc[at], each.units),
            )

    def _protected(
        self, each: ReasonSubject, verdict: ReasonVerdict, question: Question
    ) -> tuple[str, ...]:
        """The protected attributes among those that the reasons stand for."""
        return tuple(
            name
            for name in each.model.names
            if name in self.settings.protected and question.codes.get(name, name) in verdict.reasons
        )

    # --- what it amounts to ---------------------------------------------------------------------

    def found(
        self,
        store: Store[ReasonedDecision],
        tallies: Sequence[ReasonTally],
        total: int | None,
    ) -> ReasonAudit:
        """What the decisions that were kept and tallied amount to."""
        source, first = self.source, self.subjects[0]
        joined = hashlib.sha256("".join(store.digests).encode()).hexdigest()[:12]
        canonical = json.dumps(store.plan["settings"], sort_keys=True)
        audited = [tally.counts.total() for tally in tallies]
        rows = max(total or 0, *audited)
        moving = set(self.moves.moving)
        return ReasonAudit(
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            version=__version__,
            hashes=Hashes(
                model=store.plan["model"],
                data=source.digest or joined,
                settings=hashlib.sha256(canonical.encode()).hexdigest()[:12],
            ),
            settings=replace(
                self.settings,
                k=first.question(self.settings).k,
                side=first.question(self.settings).side,
                threshold=first.threshold,
                codes=dict(first.question(self.settings).codes),
            ),
            data=ReasonedData(
                name=source.name,
                rows=rows,
                attributes=tuple(first.model.names),
                classes=self.classes,
                target=source.target,
                moves=tuple(moves_in_words(self.moves, first.units)),
                fixed=tuple(name for name in first.model.names if name not in moving),
                reference=first.reference_said,
            ),
            models=tuple(
                tally.summary(
                    each.name, rows - count, each.preflight, self._notes(each, tally, rows - count)
                )
                for each, tally, count in zip(self.subjects, tallies, audited, strict=True)
            ),
            decisions=tuple(_chosen(store, tallies)),
        )

    def _notes(self, each: ReasonSubject, tally: ReasonTally, passed_over: int) -> list[str]:
        """What a reader should know about how the numbers came about."""
        found = [*self.source.notes, *each.notes]
        if self.settings.only == "declined":
            found.append(
                f"Declined is who is not decided for {self.favourable!r}; {passed_over:,} rows "
                "that are decided for it were passed over."
            )
        if not self.moves.moving:
            found.append(
                "Nothing moves: no number changes by as little as was asked for, and no word is "
                "exchanged, so that every decision is certified. Ask for larger widths."
            )
        if tally.counts["undetermined"]:
            found.append(
                f"Of {tally.counts['undetermined']:,} decisions there are more than "
                f"{self.settings.most_moves:,} moves, or a number moves continuously: nothing was "
                "found that breaks them, and nothing proves that none is there."
            )
        return found


def _in_words(
    verdict: ReasonVerdict, row: "pd.Series[Any]", units: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """What a person has and what the change makes of it."""
    if verdict.breaking is None:
        return {}
    return {
        name: (
            value_in_words(row[name], units.get(name, "")),
            value_in_words(value, units.get(name, "")),
        )
        for name, value in verdict.breaking.values.items()
    }


def _tallied(
    decisions: Iterable[ReasonedDecision], tallies: Sequence[ReasonTally]
) -> Iterator[ReasonedDecision]:
    """The decisions, each added to what is tallied of its model as it passes."""
    for decision in decisions:
        tallies[decision.model].add(decision)
        yield decision


def _chosen(
    store: Store[ReasonedDecision], tallies: Sequence[ReasonTally]
) -> list[ReasonedDecision]:
    """The decisions told in full: all, or the first of each verdict in proportion."""
    left = [Counter(quotas(tally.counts, MOST_IN_FULL // len(tallies))) for tally in tallies]
    chosen = []
    for decision in store.decisions(in_full=True):
        if left[decision.model][decision.verdict] > 0:
            left[decision.model][decision.verdict] -= 1
            chosen.append(decision)
    return sorted(chosen, key=lambda each: each.model)
