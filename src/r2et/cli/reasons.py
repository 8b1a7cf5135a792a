"""`r2et reasons`: what a year or an hour does to the reasons of models of one's own table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
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
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for reasons.html; runs/reasons-DATA unless given."),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Show what small moves do to the reasons of ordinary models, and of StableClassifier.

    Each model is fitted to 70 % of the rows. Reasons are the attributes whose Shapley contributions
    speak most against a decision; it is broken if some admissible move gives others and keeps it.
    Writes one self-contained reasons.html with the same, and figures.

    For example:

        r2et reasons adult --width age=2 --width "hours per week=2"

        r2et reasons loans.csv --target default --width income=500
    """
    from r2et.experiments.reason_records import NAMES
    from r2et.experiments.reasons import compare
    from r2et.report.story_page import write_story
    from r2et.report.story_words import MEASURES, explained, measures, moves_in_words

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
    title = f"What {moves_in_words(found)} do to the {k} reasons of {found.decisions} decisions"
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("model", vertical="bottom")
    for name in MEASURES:
        # Nine numbers and a name are to fit into 80 columns.
        heading = name.replace(", %", "\n%").replace("but ", "but\n")
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(NAMES[row.model], *measures(row).values())
    console.print(table)
    for line in (*explained(found), *found.notes, *found.told):
        console.print(line)
    path = write_story(found, (out or Path("runs") / f"reasons-{found.data}") / "reasons.html")
    console.print(f"\nThe report: {path}", soft_wrap=True)
