"""The rows of an audit on disk, chunk by chunk: all of a chunk is there, or nothing of it.

Rows are added to their files and reach the disk before a line of the journal says so, with the
length of each file. What a killed process left beyond these lengths is cut off when it goes on.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r2et.auditing.formatting import Row, flat, unescaped
from r2et.core.files import append_rows, read_rows, write_text

ROWS, TOLD, JOURNAL = "decisions.csv", "told.jsonl", "journal.jsonl"
FILES = (ROWS, TOLD)
OTHER = {
    "schema": "of another version",
    "model": "of another model",
    "answers": "of another model, of the same weights but other answers",
    "data": "of other rows",
    "settings": "with other settings",
}


class Ledger:
    """The files of one audit in a folder, begun or gone on with."""

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self.folder, self.plan = folder, dict(plan)
        self.sums = {name: hashlib.sha256() for name in FILES}
        lines = read_rows(folder / JOURNAL)
        if lines and not isinstance(lines[0].get("plan"), dict):
            raise ValueError(f"{folder} holds something else than an audit: choose another folder.")
        if lines:
            self._check_plan(lines[0]["plan"])
        self.digests: list[str] = [line["digest"] for line in lines if "digest" in line]
        self.finished = any(line.get("finished") for line in lines)
        self.record: object = lines[-1].get("record") if self.finished else None
        self._check_last(lines[-1] if self.digests and not self.finished else {})
        self.told: dict[str, int] = lines[-1].get("told so far", {}) if self.digests else {}
        if self.finished:
            return
        if not self.digests:
            write_text(folder / ROWS, "")
            write_text(folder / TOLD, "")
            self.lengths = dict.fromkeys(FILES, 0)
            if not lines:
                append_rows(folder / JOURNAL, [{"plan": self.plan}])
            return
        self.lengths = {name: lines[-1]["lengths"][name] for name in FILES}
        for name in FILES:
            self._cut(name, lines[-1]["sums"][name])

    def _check_plan(self, other: Mapping[str, Any]) -> None:
        for name, value in self.plan.items():
            if other.get(name) != value and name == "version":
                old = other.get(name) or "an earlier version"
                raise ValueError(
                    f"{self.folder} holds an audit by r2et {old}, and this is {value}: results of "
                    f"two versions are not mixed; choose another folder, or go on with {old}."
                )
            if other.get(name) != value:
                raise ValueError(
                    f"{self.folder} holds an audit {OTHER[name]}: choose another folder, or delete "
                    "it."
                )

    def _check_last(self, line: Mapping[str, Any]) -> None:
        """Refuse a last line, if there is one, that does not say how far the audit came."""
        parts: list[Any] = [line.get(key) for key in ("lengths", "sums", "told so far")]
        lengths, sums, told = parts
        whole = all(isinstance(each, dict) for each in parts) and (
            all(type(lengths.get(name)) is int and lengths[name] >= 0 for name in FILES)
            and all(isinstance(sums.get(name), str) for name in FILES)
            and all(type(count) is int for count in told.values())
        )
        if line and not (whole and all(isinstance(each, str) for each in self.digests)):
            raise ValueError(self._changed(JOURNAL))

    def _changed(self, name: str) -> str:
        return f"{self.folder / name} was changed since the audit wrote it: choose another folder."

    def _cut(self, name: str, expected: str) -> None:
        """Take off what the journal knows nothing of; what it knows of must be as it was."""
        path, length = self.folder / name, self.lengths[name]
        try:
            with path.open("r+b") as file:
                if file.seek(0, os.SEEK_END) < length:
                    raise ValueError(
                        f"{path} is shorter than the journal beside it says: it was changed; "
                        "choose another folder."
                    )
                file.truncate(length)
                file.seek(0)
                while part := file.read(2**20):
                    self.sums[name].update(part)
        except OSError as problem:
            raise ValueError(f"cannot go on with {path}: {problem.strerror}.") from problem
        if self.sums[name].hexdigest() != expected:
            raise ValueError(self._changed(name))

    def add(self, digest: str, rows: Sequence[Row], told: Sequence[Row]) -> None:
        """Keep the rows of a chunk; when this returns, they outlive the machine."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        if not self.lengths[ROWS]:
            writer.writerow(rows[0])
        writer.writerows(map(flat, rows))
        lines = "".join(json.dumps(each, allow_nan=False) + "\n" for each in told)
        self._write(ROWS, text.getvalue())
        self._write(TOLD, lines)
        for each in told:
            key = f"{each['model']} {each['verdict']}"
            self.told[key] = self.told.get(key, 0) + 1
        self.digests.append(digest)
        sums = {name: each.hexdigest() for name, each in self.sums.items()}
        line = {"digest": digest, "lengths": self.lengths, "sums": sums, "told so far": self.told}
        append_rows(self.folder / JOURNAL, [{"chunk": len(self.digests) - 1, **line}])

    def _write(self, name: str, text: str) -> None:
        path, content = self.folder / name, text.encode("utf-8", "replace")
        try:
            with path.open("r+b") as file:
                file.seek(self.lengths[name])
                file.write(content)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            reason = problem.strerror or problem
            raise ValueError(
                f"cannot write {path}: {reason}; what is finished is kept."
            ) from problem
        self.lengths[name] += len(content)
        self.sums[name].update(content)

    def rows(self) -> Iterator[dict[str, str]]:
        """All rows kept so far, as text."""
        # The names of several reasons in one cell may be longer than cells of others usually are.
        usual = csv.field_size_limit(2**31 - 1)
        try:
            with (self.folder / ROWS).open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield {name: unescaped(text) for name, text in row.items()}
        finally:
            csv.field_size_limit(usual)

    def told_rows(self) -> Iterator[Row]:
        """All decisions told so far."""
        with (self.folder / TOLD).open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)

    def finish(self, record: str, keep_rows: bool = True) -> None:
        """Say that all is done, and clear away what only the way there needed.

        `record` is what was found, to be known again.
        """
        append_rows(self.folder / JOURNAL, [{"finished": True, "record": sum_of(record.encode())}])
        (self.folder / TOLD).unlink(missing_ok=True)
        if not keep_rows:
            (self.folder / ROWS).unlink(missing_ok=True)


def sum_of(content: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()
