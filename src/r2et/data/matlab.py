"""MATLAB files, read in a process of their own: a damaged one can end the process that reads it.

The process is this file, which therefore imports nothing of the package. It is given limits of
memory and time, and hands back plain arrays of numbers and words as an npz archive.
"""

import json
import math
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

SECONDS = 60
OWN_BYTES = 2**30  # that the process takes for itself, mostly room that it never fills
AGAIN = "it is damaged; save it again, or as an npz from Python."
COPIES = 3  # of an array, on its way through the reader


def archive_of(path: Path, keys: Sequence[str], most: int) -> IO[bytes]:
    """An npz archive of a MATLAB file: `names` of all variables, "array 0" that of the first key.

    The file may unpack to `most` bytes. Whatever else it does, it is refused in one sentence.
    """
    archive = TemporaryFile()  # noqa: SIM115  # the caller reads it
    request = json.dumps({"path": str(path), "keys": list(keys), "most": most})
    command = [sys.executable, "-P", __file__, request]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    places = os.pathsep.join(each for each in sys.path if each)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=archive,
            stderr=subprocess.PIPE,
            env={**os.environ, **threads, "PYTHONPATH": places},
            timeout=2 * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        archive.close()
        raise ValueError(_too_long(path)) from None
    if done.returncode:
        archive.close()
        raise ValueError(_refusal(path, done.returncode, done.stderr))
    archive.seek(0)
    return archive


def _refusal(path: Path, code: int, said: bytes) -> str:
    try:
        return f"{path} {json.loads(said.decode().splitlines()[-1])['refused']}"
    except (ValueError, LookupError, TypeError):
        if code == -signal.SIGXCPU:
            return _too_long(path)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{path} ended the process that read it ({how}): {AGAIN}"


def _too_long(path: Path) -> str:
    return f"{path} took longer than {SECONDS} seconds to read: {AGAIN}"


# --- in the process itself ----------------------------------------------------------------------


def main() -> int:
    """Read the file that the command line names and write its arrays to standard output."""
    asked = json.loads(sys.argv[1])
    limit(asked["most"])
    try:
        write(asked["path"], asked["keys"], asked["most"], sys.stdout.buffer)
    except MemoryError:
        return refuse(
            f"would take more memory than the {asked['most']:,} bytes that are allowed: give less, "
            "or set R2ET_MAX_BYTES to a higher number if you trust it."
        )
    except NotImplementedError:
        return refuse(
            "is a MATLAB 7.3 file (HDF5), which is not read here: save it in MATLAB with "
            "save(..., '-v7'), or as an npz from Python."
        )
    except Refusal as problem:
        return refuse(str(problem))
    except Exception as problem:  # a damaged file breaks its reader in many ways
        said = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
        return refuse(f"must be a MATLAB file, got: {said}.")
    return 0


class Refusal(Exception):
    """What is wrong with a file that was read."""


def limit(most: int) -> None:
    """Bound what this process may take, where the system can."""
    if sys.platform == "win32":
        return
    import resource

    for kind, value in (
        (resource.RLIMIT_AS, OWN_BYTES + COPIES * most),
        (resource.RLIMIT_FSIZE, 2 * most),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (lower, hard))


def refuse(why: str) -> int:
    """The exit code, after saying why."""
    sys.stderr.write(json.dumps({"refused": why}) + "\n")
    return 1


def write(path: str, keys: Sequence[str], most: int, out: IO[bytes]) -> None:
    """Write the arrays of a MATLAB file by those names as an npz archive."""
    from scipy.io import loadmat, whosmat

    with warnings.catch_warnings(action="ignore"):
        names = [name for name, _, _ in whosmat(path, appendmat=False)]
        found = loadmat(path, squeeze_me=True, variable_names=list(keys), appendmat=False)
    arrays: dict[str, Any] = {
        f"array {place}": plain(found[key], key) for place, key in enumerate(keys) if key in found
    }
    if sum(each.nbytes for each in arrays.values()) > most:
        raise MemoryError
    np.savez(out, names=np.array(names, dtype=np.str_), **arrays)


def plain(values: Any, key: str) -> NDArray[Any]:
    """An array of numbers or words, of such or of a cell array of them."""
    whole: NDArray[Any] = np.asarray(values)
    if whole.dtype.kind in "fiubUS":
        return whole
    if whole.dtype.kind != "O":
        raise Refusal(f"must hold real numbers or words as {key!r}, got {whole.dtype}.")
    cells = [np.asarray(cell) for cell in whole.ravel()]
    if not cells or not all(cell.dtype.kind in "fiub" for cell in cells):
        return np.array([word(cell) for cell in cells], dtype=np.str_)
    shapes = sorted({cell.shape for cell in cells})
    if len(shapes) == 1:
        return np.stack(cells)
    if max(cell.size for cell in cells) > 1:
        raise Refusal(
            f"needs equal numbers of nodes in all networks, but cells of {key!r} have shapes "
            f"{' and '.join(map(str, shapes[:3]))}: bring them to common nodes."
        )
    return np.array([word(cell) for cell in cells], dtype=np.str_)


def word(value: object) -> str:
    """A label or name as a word, "" if it is missing.

    >>> word(1.0), word(float("nan")), word(" CONTROL "), word(b"ADHD")
    ('1', '', 'CONTROL', 'ADHD')
    """
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value) if value.is_integer() else value)
    if isinstance(value, np.ndarray):
        return word(value.item()) if value.size == 1 else ""
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()


if __name__ == "__main__":
    sys.exit(main())
