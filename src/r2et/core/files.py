"""Files that are never half written, in folders that one process at a time writes to."""

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from r2et.core.limits import content_of, json_of

ASIDE = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def write_aside(path: Path, write: Callable[[Path], object]) -> Path:
    """The path, now holding all that `write` put into a file beside it, or unchanged on failure."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.touch()
        write(aside)
        _reach_the_disk(aside)
        os.replace(aside, path)
    except OSError as problem:
        raise _refusal(path, problem) from problem
    finally:
        with suppress(OSError):
            aside.unlink()
    return path


def _reach_the_disk(path: Path) -> None:
    # A rename may outrun the content: after a power cut the file would be there, and empty.
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def clear_aside(folder: Path) -> None:
    """Remove what killed processes left half written directly in a folder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if ASIDE.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone, refused while another one holds it.

    The hold ends with the process, however that ends.
    """
    holder = folder / ".holder"
    lock = FileLock(folder / ".lock", timeout=0, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as problem:
        with suppress(OSError):
            raise ValueError(_in_use(folder, holder.read_text(encoding="utf-8"))) from problem
        raise ValueError(_in_use(folder, "another process")) from problem
    except OSError as problem:
        raise _refusal(folder, problem) from problem
    try:
        write_text(holder, f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with suppress(OSError):
            holder.unlink()
        lock.release()


def _in_use(folder: Path, who: str) -> str:
    return f"{folder} is in use by {who}: wait for it to end, or choose another folder."


def _refusal(path: Path, problem: OSError) -> ValueError:
    reason = problem.strerror or problem
    return ValueError(f"cannot write {path}: {reason}; choose a folder you can write to.")


def write_text(path: Path, text: str) -> Path:
    """The path, now holding `text`."""
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> Path:
    """The path, now holding these bytes."""
    return write_aside(path, lambda aside: aside.write_bytes(content))


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
    for number, line in enumerate(content_of(path).splitlines(), start=1):
        try:
            row = json_of(line, f"{path}, line {number}")
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
