"""The numbers that a change of the code alone must leave: `python tests/frozen/keep.py` keeps them.

Three runs and an audit by the command line, an audit of a classifier, and certificates of networks.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from r2et import NetworkClassifier, audit, certify
from r2et.perturbations import PERTURBATIONS

HERE = Path(__file__).parent
NUMBERS = HERE / "numbers.json"
RUNS = {"table": "adult", "pairs": "mnist", "graphs": "abide"}
LONG = 200
PARTS = ("measures", "series")
TIMES = {"seconds", "created", "code", "version"}


def machine() -> dict[str, str]:
    """What the last digits depend on besides the code."""
    kind = {"torch": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}
    # Two processors of one capability round a long sum in other ways.
    known = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^(?:model name|cpu family|model)\s*:.*", known.read_text(), re.MULTILINE)
        if known.exists()
        else []
    )
    return kind | {"model": "; ".join(dict.fromkeys(" ".join(name.split()) for name in names))}


def command(*words: str | Path) -> None:
    """Run the command line, on one thread."""
    subprocess.run(
        [sys.executable, "-c", "from r2et.cli import main; main()", *map(str, words)],
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def of_run(name: str, folder: Path) -> dict[str, Any]:
    """What each row of a run measured, by its method."""
    recipe = HERE / f"{name}.toml"
    command("run", RUNS[name], "--recipe", recipe, "--seeds", "1", "--jobs", "1", "--out", folder)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return {
        row["method"]: flat({each: row[each] for each in ("measures", "series")}) for row in rows
    }


def of_audit(record: dict[str, Any]) -> dict[str, Any]:
    """Whatever an audit says in numbers."""
    return flat({part: record[part] for part in ("models", "decisions")})


def of_network(folder: Path) -> dict[str, Any]:
    """The audit of a network that the run of the table trained."""
    model = next((folder / "table" / "models").rglob("r2et-noh*.safetensors"))
    out = folder / "audit"
    slopes = ("--explain", "slopes")
    command("audit", "adult", "--model", model, "--rows", "20", "-k", "4", *slopes, "--out", out)
    return of_audit(json.loads((out / "audit.json").read_text()))


def of_classifier() -> dict[str, Any]:
    """The audit of a classifier."""
    data = load_breast_cancer(as_frame=True)
    x, y = data.data.iloc[:, :8], data.target
    model = NetworkClassifier(method="r2et", k=3, epochs=2, random_state=0).fit(x[100:], y[100:])
    rows = pd.DataFrame(x[:20])
    return of_audit(audit(model, rows, explain="slopes", k=3, tolerance=0.05).to_json())


def of_certificates() -> dict[str, Any]:
    """Certificates of networks of several kinds, with weights drawn at random."""
    kinds: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "softplus": (lambda: dense(nn.Softplus(2.0)), (28,)),
        "leaky-relu": (lambda: dense(nn.LeakyReLU()), (28,)),
        "tanh": (lambda: dense(nn.Tanh()), (28,)),
        "relu and average pooling": (lambda: pooled(nn.ReLU(), nn.AvgPool2d), (1, 28, 28)),
        "softplus and max pooling": (lambda: pooled(nn.Softplus(5.0), nn.MaxPool2d), (1, 28, 28)),
    }
    found = {}
    for name, (build, shape) in kinds.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build().double()
            x = torch.rand(20 if len(shape) == 1 else 2, *shape, dtype=torch.float64)
        k = 8 if len(shape) == 1 else 50
        for norm in ("l2", "linf"):
            certificate = certify(
                model, x, k=k, perturbation=PERTURBATIONS[norm](), epsilons=(0.001, 0.1)
            )
            values = {part: getattr(certificate, part).tolist() for part in CERTIFIED}
            found[f"{name} {norm}"] = flat(values)
    return found


CERTIFIED = ("radius", "order_radius", "precision", "top", "weakest", "noise")


def dense(activation: nn.Module) -> nn.Module:
    """A network as those of tables are."""
    return nn.Sequential(nn.Linear(28, 32), activation, nn.Linear(32, 2))


def pooled(activation: nn.Module, pool: type[nn.Module]) -> nn.Module:
    """The networks of pictures whose certificates `make certificates` times."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), activation, pool(2), nn.Conv2d(8, 16, 3), activation, pool(3),
        nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The values of a record by where they stand; of a long list the digest is enough."""
    if isinstance(value, dict):
        parts = [flat(each, f"{path}/{key}") for key, each in value.items() if key not in TIMES]
        return {key: each for part in parts for key, each in part.items()}
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return flat({str(place): each for place, each in enumerate(value)}, path)
    if isinstance(value, list) and len(str(value)) > LONG:
        return {
            path: f"{len(value)} values, {hashlib.sha256(str(value).encode()).hexdigest()[:16]}"
        }
    return {path: value}


def numbers() -> dict[str, Any]:
    """All of them, computed now."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found: dict[str, Any] = {name: of_run(name, folder / name) for name in RUNS}
        found["network"] = of_network(folder)
    found["classifier"] = of_classifier()
    found["certificates"] = of_certificates()
    return json.loads(json.dumps(found))


if __name__ == "__main__":
    kept = json.dumps({"machine": machine(), **numbers()}, indent=0, sort_keys=True)
    NUMBERS.write_text(kept + "\n")
