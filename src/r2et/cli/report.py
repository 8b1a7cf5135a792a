"""`r2et report`: the table and the page of a finished run again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from r2et.cli.common import AsJson, DataRoot, command_given, faults, rows_of

if TYPE_CHECKING:
    from r2et.evaluation.results import Result


def report_command(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a run.")],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many seeds; all unless given.")
    ] = None,
    skip: Annotated[
        int,
        typer.Option(min=0, help="Leave out so many seeds at the start, such as those tuned on."),
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html; that of the run unless given.")
    ] = None,
    as_json: AsJson = False,
    data_root: DataRoot = None,
) -> None:
    """Print the table and write the report of a finished run again, without any model."""
    faults.folder = out or folder
    from r2et.evaluation.results import read_results

    rows = _latest(read_results(folder / "results.jsonl"))
    if not rows:
        raise ValueError(f"{folder} holds no results.jsonl with rows: run `r2et run` first.")
    rows = [row for row in rows if skip <= row.seed and (seeds is None or row.seed < seeds)]
    if not rows:
        raise ValueError(f"{folder} has no seed left of those asked for: ask for others.")
    from r2et.data.builtin import DATASETS, load
    from r2et.data.roots import MissingDataError

    dataset = rows[0].dataset
    try:
        source = load(dataset).source if dataset in DATASETS else ""
    except MissingDataError:
        source = ""
    with rows_of(folder):
        show_run(rows, folder, out or folder, source, as_json)


def _latest(rows: Sequence["Result"]) -> list["Result"]:
    """The last row of each method and seed, of the recipe and data of the last row."""
    if not rows:
        return []
    last = rows[-1]
    same = [row for row in rows if (row.dataset, row.recipe) == (last.dataset, last.recipe)]
    return list({(row.method, row.seed): row for row in same}.values())


def show_run(rows: Sequence["Result"], folder: Path, out: Path, source: str, as_json: bool) -> None:
    """Write the report of a run, then print its rows as JSON and nothing else, or as tables."""
    from r2et.core.limits import content_of, json_of
    from r2et.experiments.tables import table_rows
    from r2et.report.run_page import alarm_lines, write_report
    from r2et.report.terminal import print_run

    path = folder / "recipe.json"
    recipe = json_of(content_of(path), str(path)) if path.is_file() else {"line": ""}
    page = write_report(
        rows,
        out / "report.html",
        dataset_name=rows[0].dataset,
        source=source,
        recipe_name=rows[0].recipe,
        recipe_line=recipe["line"],
        command=command_given(),
    )
    if as_json:
        print(json.dumps(table_rows(rows), indent=1))
        return
    console = Console()
    print_run(rows, console)
    for line in alarm_lines(rows, "preflight"):
        console.print(f"Preflight: {line}", style="bold red", soft_wrap=True, highlight=False)
    console.print(f"\nThe report: {page}", soft_wrap=True, highlight=False)
