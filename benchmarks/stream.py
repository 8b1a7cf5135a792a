"""A stream of rows audited in bounded memory, killed on the way and resumed: `make stream`.

`python benchmarks/stream.py [ROWS]`, a million of 30 numbers unless said.
"""

import csv
import multiprocessing
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor, nn

from r2et import audit
from r2et.auditing import Table
from r2et.auditing.store import FILE
from r2et.core.rng import stream

FEATURES, BLOCK, CHUNK, EPSILON, LIMIT = 30, 10_000, 2_000, 0.1, 1.5


def blocks(rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows drawn block by block, the same ones every time."""
    for number, first in enumerate(range(0, rows, BLOCK)):
        size = min(BLOCK, rows - first)
        x = torch.randn(size, FEATURES, generator=stream(number, "stream"))
        yield x, (x[:, 0] > 0).long()


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 2))


def peak() -> float:
    """The most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def audited(rows: int, out: str, told: "multiprocessing.Queue[tuple[float, float]]") -> None:
    """Audit the stream in a process of its own; tell its memory after a first block and at last."""
    torch.set_num_threads(1)
    settings = {"k": 5, "attack": "none", "radii": "none", "epsilons": (EPSILON,), "chunk": CHUNK}
    settings["checked"] = 0.0  # memory and resuming are the question here
    names, classes = [f"x{i}" for i in range(FEATURES)], ("no", "yes")
    audit(network(), Table(x=blocks(BLOCK), names=names, classes=classes), **settings)
    first = peak()
    audit(network(), Table(x=blocks(rows), names=names, classes=classes), out=out, **settings)
    told.put((first, peak()))


def main(rows: int) -> int:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        told: multiprocessing.Queue[tuple[float, float]] = multiprocessing.Queue()
        table = Path(folder) / "decisions.csv"
        killed = multiprocessing.Process(target=audited, args=(rows, folder, told))
        killed.start()
        while killed.is_alive() and kept(folder) < rows // 3:
            time.sleep(1)
        killed.kill()
        killed.join()
        held = kept(folder)
        resumed = multiprocessing.Process(target=audited, args=(rows, folder, told))
        resumed.start()
        first, last = told.get()
        resumed.join()
        with table.open(newline="") as file:
            numbers = [int(row["row"]) for row in csv.DictReader(file)]
    whole = numbers == list(range(rows))
    print(f"{rows:,} rows of {FEATURES} numbers, killed after {held:,} and resumed: ", end="")
    print("no row lost or doubled" if whole else f"WRONG, {len(numbers):,} rows")
    print(f"memory beyond that of one block: {last - first:.2f} GB (at most {LIMIT:g})")
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes in all")
    return 0 if whole and last - first <= LIMIT else 1


def kept(folder: str) -> int:
    """How many decisions an audit that goes on has kept so far."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/{FILE}?mode=ro", uri=True)) as store:
            found: int = store.execute("SELECT COUNT(*) FROM decisions").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet, or being written to
        return 0
    return found


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
