"""Mutated files, tables and options: the short form of `make fuzz`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes by /proc")


def fuzz(cases: int, seed: int) -> None:
    words = ["--cases", str(cases), "--seed", str(seed), "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "fuzz.py"), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [last] = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    assert int(last[1]) == cases == int(last[2]) + int(last[3])
    assert int(last[2]), "some cases are harmless"


@pytest.mark.slow
def test_no_file_ends_in_a_traceback() -> None:
    fuzz(60, seed=13)


@pytest.mark.slow
def test_no_file_of_thousands_ends_in_a_traceback() -> None:
    fuzz(2000, seed=14)
