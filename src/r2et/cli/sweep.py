"""`r2et sweep`: all data sets, seeds and methods of a recipe."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from r2et.cli.common import (
    Address,
    Backend,
    DataRoot,
    Jobs,
    Only,
    Seeds,
    bar,
    check_address,
    check_there,
    faults,
    going_on,
    listed,
    processes,
)


def sweep_command(
    recipe: Annotated[
        str,
        typer.Argument(help="The path of a TOML file, or the name of a recipe; it names its data."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.jsonl and models; runs/sweep-RECIPE unless given. What it "
            "holds already is not done again."
        ),
    ] = None,
    seeds: Seeds = None,
    only: Only = None,
    jobs: Jobs = None,
    backend: Backend = "joblib",
    address: Address = None,
    data_root: DataRoot = None,
) -> None:
    """Train, attack and measure over all data sets, seeds and methods of a recipe.

    Every row is on disk as soon as it is measured. An interrupted sweep, however it was ended, goes
    on where it was when the same command is given again.

    For example:

        r2et sweep paper --only adult,bank --jobs 8

        r2et sweep mine.toml --backend dask --address tcp://10.0.0.1:8786
    """
    check_address(backend, address)
    if recipe.endswith(".toml"):
        check_there(recipe, "recipe")
    from r2et.core.naming import counted
    from r2et.experiments.execution import sweep

    name = Path(recipe).stem if recipe.endswith(".toml") else recipe
    folder = faults.folder = out or Path("runs") / f"sweep-{name}"
    with going_on(), bar(f"recipe {name}") as show:
        rows = sweep(
            recipe,
            folder,
            backend=backend,
            address=address,
            jobs=jobs or processes(),
            seeds=seeds,
            only=listed(only),
            on_progress=show,
        )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    failed = [row for row in rows if not row.passed]
    for row in failed:
        floor = row.floor
        why = (
            "Vanilla could not be trained" if floor is None else f"none kept an AUC of {floor:.4f}"
        )
        console.print(f"{row.dataset}, seed {row.seed}: no model of {row.label}, {why}.")
    console.print(
        f"{counted(len(rows), 'row')}, of which {len(failed) or 'none'} failed the gate: "
        f"{folder / 'results.jsonl'}"
    )
