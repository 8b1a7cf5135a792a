"""Files that are never half written."""

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_aside(path: Path, write: Callable[[Path], None]) -> Path:
    """The path, now holding all that `write` put into a file beside it, or unchanged on failure."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.touch()
        write(aside)
        os.replace(aside, path)
    except OSError as problem:
        raise _refusal(path, problem) from problem
    finally:
        with suppress(OSError):
            aside.unlink()
    return path


def _refusal(path: Path, problem: OSError) -> ValueError:
    reason = problem.strerror or problem
    return ValueError(f"cannot write {path}: {reason}; choose a folder you can write to.")


def write_text(path: Path, text: str) -> Path:
    """The path, now holding `text`."""
    return write_aside(path, lambda aside: _put(aside, text))


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def append_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a JSON-lines file so that each is there whole or not at all."""
    lines = "".join(json.dumps(row, sort_keys=True, allow_nan=False) + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            # A line cut short by a crash is closed off, so that the next one starts afresh.
            if file.tell() and not _ends_with_newline(path):
                file.write(b"\n")
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise _refusal(path, problem) from problem


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a JSON-lines file; a line cut short by a crash is passed over."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
