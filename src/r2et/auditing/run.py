"""Run an audit: rows in chunks, each decision judged, kept, and added up at the end."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from r2et import __version__
from r2et.auditing import checking
from r2et.auditing.auditor import MANY, Auditor
from r2et.auditing.checking import Contradiction, check
from r2et.auditing.csvs import CsvTable
from r2et.auditing.decisions import Decision
from r2et.auditing.doubts import doubts, doubts_of_order, sample_of
from r2et.auditing.evidence import Subject
from r2et.auditing.exports import check_format, table_columns, write_table
from r2et.auditing.formatting import Formatter
from r2et.auditing.parts import Hashes, preflight_of
from r2et.auditing.records import (
    SCHEMA,
    Audit,
    AuditedData,
    AuditedFeature,
)
from r2et.auditing.settings import AuditSettings
from r2et.auditing.store import Store
from r2et.auditing.subject import subject
from r2et.auditing.summary import Tally, notes_of, quotas
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

MOST_IN_FULL = 5000
MOST_REASONS = 40_000  # of pictures and networks that are told in full, which have many each
MOST_DRAWN = 50
ANSWERS = 8  # rows by whose answers a model is known again


def run_audit(
    models: Mapping[str, nn.Module],
    source: Source,
    settings: AuditSettings,
    *,
    out: str | Path | None = None,
    format: str = "csv",
    on_progress: OnProgress = ignore,
) -> Audit:
    """What was found about each decision of the models, all but the page that shows it.

    Kept in the folder `out` as `r2et.audit` says, or nowhere.
    """
    check_format(format)
    if out is not None:
        return _audited(models, source, settings, Path(out), format, on_progress)
    with TemporaryDirectory() as folder:
        try:
            found = _audited(models, source, settings, Path(folder), "csv", on_progress)
        except Contradiction as wrong:
            raise Contradiction(wrong.record, wrong.where) from None  # its folder will be gone
    return replace(found, folder=None)


def _audited(
    models: Mapping[str, nn.Module],
    source: Source,
    settings: AuditSettings,
    folder: Path,
    format: str,
    on_progress: OnProgress,
) -> Audit:
    assert settings.chunk is not None
    total = smaller(source.length, settings.rows)
    chunks = limited(source.chunks(settings.chunk), settings.rows, source)
    first = first_of(chunks, source)
    if settings.radii == "auto":
        few = total is not None and total <= MANY
        settings = replace(settings, radii="all" if few else "none")
    on_progress(Progress(done=0, total=total, what="looking at the model"))
    run = _Run(
        subjects=[
            subject(name, model, first.x, source.columns, settings, source.classes)
            for name, model in models.items()
        ],
        source=source,
        first=first,
        settings=settings,
    )
    doubted: list[list[str]] = []

    def begin() -> None:
        doubted.extend(run.doubted())
        (folder / checking.FILE).unlink(missing_ok=True)  # of an attempt before this one

    def conclude(store: Store[Decision]) -> Audit:
        tallies = [Tally(settings, run.classes, source.subgroup_values) for _ in models]
        columns = table_columns(
            Decision,
            epsilons=settings.epsilons,
            classes=run.classes,
            subgroups=[*first.subgroups[0]],
        )
        write_table(folder, format, columns, _tallied(store.decisions(), tallies))
        return run.found(store, tallies, doubted)

    found = kept_audit(
        folder,
        run.plan(format),
        Decision,
        read=Audit.from_json,
        begin=begin,
        chunks=itertools.chain([first], chunks),
        add=run.added,
        conclude=conclude,
        total=total,
        on_progress=on_progress,
    )
    return replace(found, folder=folder)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """One audit: its models made ready, its rows, the first of them, and what is asked."""

    subjects: Sequence[Subject]
    source: Source
    first: Chunk
    settings: AuditSettings

    def __post_init__(self) -> None:
        """Refuse models that do not answer for the same classes."""
        for each in self.subjects:
            if each.classes != self.classes:
                raise ValueError(
                    f"models audited side by side answer for the same classes, but {each.name} has "
                    f"{len(each.classes)} and {self.subjects[0].name} {len(self.classes)}."
                )

    @property
    def classes(self) -> tuple[str, ...]:
        """Those that all models answer for."""
        return self.subjects[0].classes

    @property
    def most_in_full(self) -> int:
        """How many decisions are told in full."""
        plain = self.source.columns.tabular
        return MOST_IN_FULL if plain else min(MOST_IN_FULL, MOST_REASONS // self.settings.k)

    def plan(self, format: str) -> dict[str, Any]:
        """All that decides what an audit finds, to know its folder by."""
        columns = self.source.columns.digest
        settings = {**asdict(self.settings), "format": format, "columns": columns}
        return {
            "schema": SCHEMA,
            "version": __version__,
            "model": {each.name: each.digest for each in self.subjects},
            # The first rows show labels, names and subgroups, too, which a file's digest does not.
            "data": [self.source.digest, self.first.digest, *self.classes],
            "settings": json.loads(json.dumps(settings)),
            "answers": {each.name: self._answers(each) for each in self.subjects},
        }

    def _answers(self, each: Subject) -> str:
        """Twelve hexadecimal digits of a model's answers: code can change where no weight does."""
        logits = each.logits(self.first.x[:ANSWERS]).flatten().tolist()
        # Fewer digits than differ between machines.
        digits = " ".join(f"{value:.5e}" for value in logits)
        return hashlib.sha256(digits.encode()).hexdigest()[:12]

    def doubted(self) -> list[list[str]]:
        """For each model what should make a reader doubt its audit."""
        source = self.source
        if not source.columns.tabular:
            return [[] for _ in self.subjects]
        seen = sample_of(source, self.first, self.classes)
        of_table = doubts(seen, source.columns, source.target)
        assumed = isinstance(source, CsvTable) and source.assumed
        return [
            [*of_table, *doubts_of_order(seen, source.columns, each.logits, assumed)]
            for each in self.subjects
        ]

    @cached_property
    def work(self) -> list[tuple[Auditor, Formatter]]:
        """Who finds out about the decisions of each model, and who puts it into words."""
        columns, settings = self.source.columns, self.settings
        return [
            (
                Auditor(each, columns, settings),
                Formatter(number=i, classes=self.classes, columns=columns, settings=settings),
            )
            for i, each in enumerate(self.subjects)
        ]

    def added(self, chunk: Chunk, done: int, store: Store[Decision]) -> list[tuple[Decision, bool]]:
        """What all models show of the rows of a chunk, each with whether it is told in full."""
        costly = max(0, min(len(chunk.rows), self.settings.measured - done))
        drawn, share = not self.source.columns.tabular, len(self.work)
        found = []
        so_far = store.in_full.copy()
        for auditor, formatter in self.work:
            evidence = auditor.evidence(chunk.x, costly)
            try:
                checked = check(auditor, evidence, chunk, self.source.name, first=done == 0)
            except Contradiction as contradiction:
                raise contradiction.kept_in(store.folder) from None
            for i, decision in enumerate(formatter.decisions(chunk, evidence, checked)):
                key = (decision.model, decision.verdict)
                in_full = so_far[key] < self.most_in_full // share
                if in_full:
                    few = so_far[key] < MOST_DRAWN // share
                    to_draw = few and decision.verdict == "broken" and drawn
                    decision = formatter.in_full(decision, evidence, i, to_draw=to_draw)
                so_far[key] += in_full
                found.append((decision, in_full))
        return found

    def found(
        self, store: Store[Decision], tallies: Sequence[Tally], doubted: Sequence[Sequence[str]]
    ) -> Audit:
        """What the decisions that were kept and tallied amount to."""
        source, settings, columns = self.source, self.settings, self.source.columns
        rows = sum(tallies[0].counts.values())
        joined = hashlib.sha256("".join(store.digests).encode()).hexdigest()[:12]
        canonical = json.dumps(store.plan["settings"], sort_keys=True)
        return Audit(
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            version=__version__,
            hashes=Hashes(
                model=store.plan["model"],
                data=source.digest or joined,
                settings=hashlib.sha256(canonical.encode()).hexdigest()[:12],
            ),
            settings=settings,
            data=AuditedData(
                name=source.name,
                rows=rows,
                features=tuple(
                    AuditedFeature(
                        name=feature.name, unit=feature.unit, group=feature.group, immutable=still
                    )
                    for feature, still in zip(columns.features, columns.still, strict=True)
                ),
                classes=self.classes,
                target=source.target,
                kind=columns.render_spec.kind if columns.render_spec else None,
                immutable=tuple(columns.immutable),
                unit_of_eps=columns.unit_of_eps,
            ),
            models=tuple(
                tally.summary(
                    each.name,
                    [preflight_of(finding) for finding in each.findings],
                    [*doubts, *notes_of(each, tally, source, settings, rows, MOST_DRAWN)],
                )
                for each, tally, doubts in zip(self.subjects, tallies, doubted, strict=True)
            ),
            decisions=tuple(_chosen(store, tallies, self.most_in_full)),
        )


def _tallied(decisions: Iterable[Decision], tallies: Sequence[Tally]) -> Iterator[Decision]:
    """The decisions, each added to what is tallied of its model as it passes."""
    for decision in decisions:
        tallies[decision.model].add(decision)
        yield decision


def _chosen(store: Store[Decision], tallies: Sequence[Tally], most: int) -> list[Decision]:
    """The decisions told in full: all, or the first of each verdict in proportion."""
    left = [Counter(quotas(tally.counts, most // len(tallies))) for tally in tallies]
    chosen = []
    for decision in store.decisions(in_full=True):
        if left[decision.model][decision.verdict] > 0:
            left[decision.model][decision.verdict] -= 1
            chosen.append(decision)
    return sorted(chosen, key=lambda each: each.model)
