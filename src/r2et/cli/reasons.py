"""`r2et reasons`: what a year or an hour does to the reasons of models of one's own table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from r2et.cli.common import DataRoot, bar, check_there


def reasons_command(
    data: Annotated[
        str,
        typer.Argument(help="The name of a data set that is a table, or the path of a CSV file."),
    ],
    target: Annotated[
        str | None, typer.Option(help="The column of a CSV file that holds the two classes.")
    ] = None,
    width: Annotated[
        list[str] | None,
        typer.Option(
            help="How far a number moves, in its own units: `age=2`. As often as there are numbers "
            "that do; unless given, all by .05 standard deviations."
        ),
    ] = None,
    k: Annotated[int, typer.Option(help="How many reasons are given.", min=1)] = 3,
    decisions: Annotated[int, typer.Option(help="How many test rows are judged.", min=2)] = 150,
    seed: Annotated[int, typer.Option(help="Of the split and of the reference.")] = 0,
    network: Annotated[bool, typer.Option(help="Whether an ordinary network is shown.")] = True,
    data_root: DataRoot = None,
) -> None:
    """Show what small moves do to the reasons of ordinary models, and of StableClassifier.

    Each model is fitted to 70 % of the rows. Reasons are the attributes whose Shapley contributions
    speak most against a decision; it is broken if some admissible move gives others and keeps it.

    For example:

        r2et reasons adult --width age=2 --width "hours per week=2"

        r2et reasons loans.csv --target default --width income=500
    """
    from r2et.experiments.reasons import NAMES, compare

    if data.endswith(".csv"):
        check_there(data, "table")
    console = Console(highlight=False)
    with bar(f"reasons of {Path(data).stem}") as show:
        found = compare(
            data,
            target=target,
            width=width or (),
            k=k,
            decisions=decisions,
            seed=seed,
            network=network,
            on_progress=show,
        )
    moves = ", ".join(f"{name} ±{by:g}" for name, by in found.widths.items())
    table = Table(title=f"What {moves} do to the {k} reasons of {found.decisions} decisions")
    for name in ("model", "AUC", "broken, %", "kept, %", "shared, %", "kappa"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in found.rows:
        told = row.under
        table.add_row(
            NAMES[row.model],
            f"{row.auc:.4f}",
            f"{100 * told.broken:.1f}",
            f"{100 * told.kept:.1f}",
            f"{100 * told.overlap:.1f}",
            "none" if told.kappa is None else f"{told.kappa:.2f}",
        )
    console.print(table)
    looked = "every move was" if found.every else f"{found.moves} moves a person were"
    console.print(
        f"Broken: {looked} looked at; some move gives other reasons and keeps the decision. Kept: "
        "the share of reasons that stays in the worst of them. Shared: what two people of one "
        "predicted class have in common anyway; kappa, (kept - shared) / (1 - shared), is what "
        "stays beyond that."
    )
    proved = found.proved
    console.print(
        f"StableClassifier, exactly: {100 * proved.certified:.1f} % certified, "
        f"{100 * proved.broken:.1f} % broken with a counter-example, "
        f"{100 * proved.undetermined:.1f} % undetermined."
    )
    for line in found.told:
        console.print(line)
