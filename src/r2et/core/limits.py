"""How much memory a file may ask for: told by its size and headers before any of it is taken."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

VARIABLE = "R2ET_MAX_BYTES"
USUAL = 2**30
TEXT = 8  # bytes of memory that a byte of text becomes when it is taken apart
MOST_LEVELS = 32  # of lists within lists


class TooLargeError(ValueError):
    """A file asks for more memory than it may."""


def most_bytes() -> int:
    """The memory that one file may ask for: what R2ET_MAX_BYTES says, else 1 GiB."""
    stated = os.environ.get(VARIABLE, "").strip()
    if not stated:
        return USUAL
    if not (stated.isascii() and stated.isdecimal() and len(stated) < 19 and int(stated)):
        raise ValueError(f"{VARIABLE} must be a whole number of bytes above 0, got {stated!r}.")
    return int(stated)


def check_bytes(asked: int, what: str) -> None:
    """Refuse what would take more memory than is allowed."""
    if asked > (most := most_bytes()):
        raise TooLargeError(
            f"{what} would take {asked:,} bytes of memory, where {most:,} are allowed: give less, "
            f"or set {VARIABLE} to a higher number if you trust it."
        )


def content_of(path: str | Path) -> bytes:
    """All of a file of text, refused before it is read if taken apart it would be too large."""
    try:
        with Path(path).open("rb") as file:
            about = os.fstat(file.fileno())
            check_bytes(TEXT * about.st_size, str(path))
            # A pipe or device has no size, but may never end.
            most = about.st_size if stat.S_ISREG(about.st_mode) else most_bytes() // TEXT
            content = file.read(most + 1)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise ValueError(f"cannot read {path}: {reason}; check the path.") from None
    check_bytes(TEXT * len(content), str(path))
    return content


def json_of(text: str | bytes, what: str) -> Any:
    """What a text of JSON says, refused if it is none or lists lie too deep within lists."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply: {MOST_LEVELS} levels are read.") from None
    except ValueError as problem:
        raise ValueError(f"{what} is not valid JSON ({problem}).") from problem
    check_levels(found, what)
    return found


def toml_of(content: bytes, what: str) -> dict[str, Any]:
    """What a text of TOML says, refused if it is none or tables lie too deep within tables."""
    check_bytes(TEXT * len(content), what)
    try:
        found = tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply: {MOST_LEVELS} levels are read.") from None
    except ValueError as problem:  # bytes that are no text and numbers without end included
        raise ValueError(f"{what} is not valid TOML: {problem}.") from problem
    check_levels(found, what)
    return found


def check_levels(value: Any, what: str) -> None:
    """Refuse lists and tables so deep within others that a walk through them would not end well.

    >>> check_levels({"a": [1, [2]]}, "it")
    """
    here = [value]
    for _ in range(MOST_LEVELS):
        here = [
            inner
            for each in here
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not here:
            return
    raise ValueError(f"{what} is nested too deeply: {MOST_LEVELS} levels are read.")
