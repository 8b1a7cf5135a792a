"""`r2et list`: everything that can be asked for by name."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from r2et.cli.common import AsJson, DataRoot


def list_command(
    as_json: AsJson = False,
    data_root: DataRoot = None,
) -> None:
    """Show data sets, recipes, methods, attacks, explainers and measures, one line each."""
    known = known_names()
    if as_json:
        print(json.dumps(known, indent=1))
        return
    console = Console()
    for kind, entries in known.items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, line in entries.items():
            table.add_row(Text(f"  {name}"), Text(line))
        console.print(f"[bold underline]{kind}")
        console.print(table)
        console.print()


def known_names() -> dict[str, dict[str, str]]:
    """Everything that can be asked for by name, with one line each."""
    from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING
    from r2et.attacks.registry import ATTACKS
    from r2et.data.builtin import DATASETS
    from r2et.experiments.config import line_of, recipe_names
    from r2et.explainers import EXPLAINERS
    from r2et.methods import METHODS
    from r2et.metrics import METRICS

    sets = {name: _about(name) for name in DATASETS}
    return {
        "data sets": sets,
        "recipes": {name: line_of(name) for name in recipe_names()},
        "methods": {name: f"{entry.label}: {entry.line}" for name, entry in METHODS.items()},
        "attacks": {name: entry.line for name, entry in ATTACKS.items()},
        "constraint handling": {name: entry.line for name, entry in CONSTRAINT_HANDLING.items()},
        "explainers": {name: _first_line(entry) for name, entry in EXPLAINERS.items()},
        "measures": {name: entry.line for name, entry in METRICS.items()},
    }


def _about(name: str) -> str:
    from r2et.data.builtin import load
    from r2et.data.roots import MissingDataError

    try:
        dataset = load(name)
    except MissingDataError as problem:
        return f"not at hand: {problem}"
    if not dataset.tabular:
        what = "networks" if dataset.structure.piece.symmetric else "pictures"
        of = "pairs of " if dataset.structure.pairs else ""
        told = f"{of}{len(dataset.x):,} {what}, {dataset.n} features; {dataset.target}"
        return f"{told} ({dataset.stand_in})" if dataset.stand_in else told
    shares = "/".join(
        f"{(dataset.y == number).double().mean():.0%} {name}"
        for number, name in enumerate(dataset.classes)
    )
    return f"{len(dataset.x):,} rows, {dataset.n} features; {dataset.target}: {shares}"


def _first_line(function: Any) -> str:
    return str(function.__doc__).splitlines()[0]
