"""The decisions of an audit on disk, chunk by chunk: all of a chunk is there, or nothing of it.

They are rows of an SQLite file, a transaction for each chunk. A process that is killed leaves whole
chunks, and another one goes on after them.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from r2et.core.reasons import Verdict
from r2et.core.records import from_json, to_json

FILE = "audit.sqlite"
EARLIER = "journal.jsonl"  # of versions that kept their decisions otherwise
OTHER = {
    "schema": "of another version",
    "model": "of another model",
    "answers": "of another model, of the same weights but other answers",
    "data": "of other rows",
    "settings": "with other settings",
}
FINISHED = "finished"
TABLES = {
    "plan": "name TEXT PRIMARY KEY, value TEXT NOT NULL",
    "chunks": "number INTEGER PRIMARY KEY, digest TEXT NOT NULL, sum TEXT NOT NULL",
    "decisions": "chunk INTEGER, place INTEGER, in_full INTEGER NOT NULL, record TEXT NOT NULL, "
    "PRIMARY KEY (chunk, place)",
}


class Kept(Protocol):
    """A record of a decision that can be kept."""

    @property
    def model(self) -> int:
        """The number of its model."""

    @property
    def verdict(self) -> Verdict:
        """What was found."""


Each = TypeVar("Each", bound=Kept)


class Store(Generic[Each]):
    """The decisions of one audit, records of a `kind`, in a folder, begun or gone on with.

    `digests` are those of the rows of each chunk kept so far; `in_full` counts the decisions told
    in full, by model and verdict. `finished` is the digest of what a finished audit found.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], kind: type[Each]) -> None:
        self.kind = kind
        self.folder, self.path, self.plan = folder, folder / FILE, dict(plan)
        self.digests: list[str] = []
        self.in_full: Counter[tuple[int, Verdict]] = Counter()
        if not self.path.exists() and (folder / EARLIER).exists():
            raise ValueError(self._other_version("an earlier version"))
        self.connection = sqlite3.connect(self.path)
        try:
            # When a transaction has ended, it outlives the machine.
            self.connection.execute("PRAGMA synchronous = FULL")
            [new] = self.connection.execute("SELECT COUNT(*) = 0 FROM sqlite_master").fetchone()
        except (sqlite3.DatabaseError, ValueError) as problem:
            raise ValueError(self._something_else()) from problem
        if new:
            self._create()
        try:
            kept = self.connection.execute("SELECT name, value FROM plan")
            known = {name: json.loads(value) for name, value in kept}
        except (sqlite3.DatabaseError, ValueError, TypeError) as problem:
            raise ValueError(self._something_else()) from problem
        self._check_plan(known)
        self.finished: str | None = known.get(FINISHED)
        if self.finished is None:
            self._take_in()

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()

    def _create(self) -> None:
        """Say what decides what a new audit finds."""
        with self._transaction():
            for name, columns in TABLES.items():
                self.connection.execute(f"CREATE TABLE {name} ({columns}) WITHOUT ROWID")
            self.connection.executemany(
                "INSERT INTO plan VALUES (?, ?)",
                [(name, json.dumps(value)) for name, value in self.plan.items()],
            )

    def _something_else(self) -> str:
        return f"{self.folder} holds something else than an audit: choose another folder."

    def _check_plan(self, other: Mapping[str, Any]) -> None:
        for name, value in self.plan.items():
            if other.get(name) != value and name == "version":
                raise ValueError(self._other_version(other.get(name) or "an earlier version"))
            if other.get(name) != value:
                raise ValueError(
                    f"{self.folder} holds an audit {OTHER[name]}: choose another folder, or delete "
                    "it."
                )

    def _other_version(self, old: str) -> str:
        return (
            f"{self.folder} holds an audit by r2et {old}, and this is {self.plan['version']}: "
            f"results of two versions are not mixed; choose another folder, or go on with {old}."
        )

    def _take_in(self) -> None:
        """Read all chunks through: what was kept of each must be as it was."""
        sums: dict[int, Any] = {}
        try:
            if self.connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise ValueError("the file is damaged")
            for chunk, in_full, record in self.connection.execute(
                "SELECT chunk, in_full, record FROM decisions ORDER BY chunk, place"
            ):
                sums.setdefault(chunk, hashlib.sha256()).update(record.encode())
                if in_full:
                    decision = from_json(self.kind, json.loads(record))
                    self.in_full[decision.model, decision.verdict] += 1
            kept = self.connection.execute("SELECT number, sum, digest FROM chunks ORDER BY number")
            chunks = kept.fetchall()
            found = [(chunk, sums[chunk].hexdigest()) for chunk in sorted(sums)]
            if [each[:2] for each in chunks] != found or [*sums] != [*range(len(sums))]:
                raise ValueError("these are not the rows that were written")
        except (sqlite3.DatabaseError, ValueError, AttributeError) as problem:
            raise ValueError(
                f"{self.path} was changed since the audit wrote it: choose another folder."
            ) from problem
        self.digests = [digest for _, _, digest in chunks]

    def add(self, digest: str, decisions: Sequence[tuple[Each, bool]]) -> None:
        """Keep the decisions of a chunk, each with whether it is told in full.

        When this returns, they outlive the machine.
        """
        chunk, summed, rows = len(self.digests), hashlib.sha256(), []
        for place, (decision, in_full) in enumerate(decisions):
            record = json.dumps(to_json(decision), allow_nan=False)
            summed.update(record.encode())
            rows.append((chunk, place, in_full, record))
            self.in_full[decision.model, decision.verdict] += in_full
        with self._transaction():
            self.connection.executemany("INSERT INTO decisions VALUES (?, ?, ?, ?)", rows)
            self.connection.execute(
                "INSERT INTO chunks VALUES (?, ?, ?)", (chunk, digest, summed.hexdigest())
            )
        self.digests.append(digest)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is written within, or nothing of it."""
        try:
            with self.connection:
                self.connection.execute("BEGIN")
                yield
        except sqlite3.DatabaseError as problem:
            raise ValueError(
                f"cannot write {self.path}: {problem}; what is finished is kept."
            ) from problem

    def decisions(self, *, in_full: bool = False) -> Iterator[Each]:
        """All decisions kept so far in their order, or those told in full."""
        only = "WHERE in_full" if in_full else ""
        rows = self.connection.execute(f"SELECT record FROM decisions {only} ORDER BY chunk, place")
        return (from_json(self.kind, json.loads(record)) for (record,) in rows)

    def finish(self, digest: str) -> None:
        """Say that all is done, with the digest of what was found, and let the decisions go."""
        with self._transaction():
            self.connection.execute(
                "INSERT INTO plan VALUES (?, ?)", (FINISHED, json.dumps(digest))
            )
            self.connection.execute("DROP TABLE decisions")
        with suppress(sqlite3.DatabaseError):  # only the disk would be wider
            self.connection.execute("VACUUM")
