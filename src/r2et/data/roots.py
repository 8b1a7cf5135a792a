"""Where the data are that do not travel with the package."""

import os
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "R2ET_DATA"


class MissingDataError(ValueError):
    """Data that do not travel with the package are not where they were looked for."""


def data_root(root: str | Path | None) -> Path | None:
    """The folder of the data: the one given, else the one that R2ET_DATA names, else none."""
    named = root if root is not None else os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


def find(
    root: str | Path | None, relative_candidates: Sequence[str], *, what: str, source: str
) -> Path:
    """The first of the candidates that is there, a file or folder under the data root.

    A refusal says where a user gets it: `source` is a citation, an address, or both.
    """
    folder = data_root(root)
    places = [] if folder is None else [folder / candidate for candidate in relative_candidates]
    for place in places:
        if place.exists():
            return place
    if folder is None:
        where = "a data root, but none is given"
    else:
        where = f"{folder}, " + ("but it is not there" if folder.is_dir() else "which is no folder")
    raise MissingDataError(
        f"{what}: expected {' or '.join(relative_candidates)} in {where}: get it from {source}, "
        f"and name the folder it is in with --data-root or {VARIABLE}."
    )
