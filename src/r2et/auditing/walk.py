"""The way of every audit: chunk by chunk, what is found is kept, a stopped one goes on."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from r2et.auditing.store import Each, Store
from r2et.auditing.tables import Chunk, Source
from r2et.core.files import clear_aside, held, write_text
from r2et.core.limits import content_of

RECORD = "audit.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many decisions have been audited, of how many if that is known, and what goes on."""

    done: int
    total: int | None
    what: str


OnProgress = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Show nothing."""


class Told(Protocol):
    """What an audit found, as JSON can hold it."""

    def to_json(self) -> dict[str, Any]:
        """The content of its record."""


Found = TypeVar("Found", bound=Told)


def kept_audit(
    folder: Path,
    plan: Mapping[str, Any],
    kind: type[Each],
    *,
    read: Callable[[Mapping[str, Any]], Found],
    begin: Callable[[], None],
    chunks: Iterator[Chunk],
    add: Callable[[Chunk, int, Store[Each]], Sequence[tuple[Each, bool]]],
    conclude: Callable[[Store[Each]], Found],
    total: int | None,
    on_progress: OnProgress,
) -> Found:
    """What an audit found, its decisions kept in a folder as records of a `kind`.

    What a finished one found is `read` from its record. Otherwise, after `begin`, `add` gives the
    decisions of a chunk that is not there yet, each with whether it is told in full, and `conclude`
    what all of them amount to.
    """
    with held(folder):
        clear_aside(folder)
        with closing(Store(folder, plan, kind)) as store:
            if store.finished:
                return read(_kept(folder, store.finished))
            begin()
            done = 0
            for number, chunk in enumerate(chunks):
                if number < len(store.digests):
                    _check_same(chunk, store.digests[number], folder)
                else:
                    store.add(chunk.digest, add(chunk, done, store))
                done += len(chunk.rows)
                on_progress(Progress(done=done, total=total, what="auditing decisions"))
            on_progress(Progress(done=done, total=total, what="adding up"))
            found = conclude(store)
            text = json.dumps(found.to_json(), allow_nan=False, ensure_ascii=False)
            write_text(folder / RECORD, text)
            store.finish(_sum_of(text.encode()))
    return found


def _kept(folder: Path, expected: str) -> Mapping[str, Any]:
    """The record of a finished audit."""
    content = content_of(folder / RECORD) if (folder / RECORD).is_file() else b""
    if _sum_of(content) != expected:
        raise ValueError(
            f"{folder} holds a finished audit whose {RECORD} is gone or was changed: delete the "
            "folder, or choose another one."
        )
    found: Mapping[str, Any] = json.loads(content)
    return found


def _sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_same(chunk: Chunk, digest: str, folder: Path) -> None:
    if chunk.digest != digest:
        raise ValueError(
            f"row {chunk.rows[0]} and those after it are not the ones that {folder} began with: "
            "choose another folder."
        )


def smaller(length: int | None, rows: int | None) -> int | None:
    """How many rows there are, of which no more than `rows` are asked for."""
    return length if rows is None else rows if length is None else min(length, rows)


def limited(chunks: Iterator[Chunk], rows: int | None, source: Source) -> Iterator[Chunk]:
    """The chunks up to a number of rows, refused where an input is no finite number."""
    left = math.inf if rows is None else rows
    for chunk in chunks:
        if left <= 0:
            return
        if len(chunk.rows) > left:
            chunk = chunk.first(int(left))
        left -= len(chunk.rows)
        if chunk.rows:
            _check_finite(chunk, source)
            yield chunk


def first_of(chunks: Iterator[Chunk], source: Source) -> Chunk:
    """The first chunk, refused if there is none."""
    first = next(chunks, None)
    if first is None:
        raise ValueError(f"{source.name} has no rows: there is nothing to audit.")
    return first


def _check_finite(chunk: Chunk, source: Source) -> None:
    wrong = ~chunk.x.isfinite()
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"row {chunk.rows[row]} of {source.name} has no finite number for "
            f"{source.columns.input_name(column)!r}: fill it in before the audit."
        )
