"""CPU seconds that a user waits before anything happens: `import r2et`, help, a refusal.

Ends with exit code 1 if one is above its limit.
"""

import os
import resource
import subprocess
import sys
import tempfile

REPEATS = 3


def seconds(*words: str) -> float:
    """The least CPU time of a Python process with these words, of a few."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], capture_output=True, cwd=folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch = seconds("-c", "import torch")
    everything = (
        "import r2et; [getattr(r2et, name) for name in ('Objective', 'load', 'fit', 'certify')]"
    )
    cases = {
        "import r2et": (("-c", "import r2et"), 1.3 * torch),
        "what a training loop uses": (("-c", everything), 1.5 * torch),
        "r2et --help": (("-m", "r2et", "--help"), 1.5),
        "r2et audit --help": (("-m", "r2et", "audit", "--help"), 1.5),
        "r2et audit missing.csv": (("-m", "r2et", "audit", "missing.csv", "--model", "x.pt2"), 1.5),
    }
    print(f"{'import torch':<28}{torch:8.2f} s")
    slow = False
    for name, (words, most) in cases.items():
        taken = seconds(*words)
        slow |= taken > most
        print(f"{name:<28}{taken:8.2f} s, at most {most:.2f}{' EXCEEDED' * (taken > most)}")
    sys.exit(slow)


if __name__ == "__main__":
    main()
