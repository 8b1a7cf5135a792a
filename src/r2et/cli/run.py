"""`r2et run` and `r2et report`: train, attack, measure on one data set, and show what came out."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from r2et.cli.common import (
    AsJson,
    Category,
    DataRoot,
    Drop,
    Jobs,
    Seeds,
    Target,
    bar,
    check_there,
    command_given,
    faults,
    going_on,
    processes,
    rows_of,
    size_of,
)

if TYPE_CHECKING:
    from r2et.evaluation.results import Result


def run_command(
    data: Annotated[
        str,
        typer.Argument(
            help="A data set that `r2et list` names, or the path of your own: a CSV file (with "
            "--target), a folder of pictures (one folder for each class), or brain networks "
            "(.npz, .mat, .zip)."
        ),
    ] = "adult",
    recipe: Annotated[
        str | None,
        typer.Option(
            help="converged (networks at full accuracy), first-look (adult, in brief), "
            "paper (the regime of the published numbers), or the path of a TOML file. Unless "
            "given, converged for tables, and for others the one that is made for them."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="For a folder of pictures: make all of them HEIGHTxWIDTH, as 64x64."),
    ] = None,
    seeds: Seeds = None,
    skip: Annotated[
        int,
        typer.Option(min=0, help="Leave out so many splits at the start, such as those tuned on."),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.jsonl, models and report.html; runs/DATA-RECIPE unless "
            "given. What it holds already is not done again."
        ),
    ] = None,
    as_json: AsJson = False,
    jobs: Jobs = None,
    target: Target = None,
    drop: Drop = None,
    category: Category = None,
    k: Annotated[
        int | None, typer.Option("-k", help="How many top features are shown and defended.")
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Train, attack, measure and report on one data set.

    Trains a linear control, an ordinary network (Vanilla), the R2ET family and our own method;
    chooses settings on validation data; attacks each chosen model on test data; prints a table and
    writes one self-contained report.html.

    An interrupted run goes on where it was when the same command is given again.

    For example:

        r2et run adult --recipe first-look

        r2et run adult --recipe paper --seeds 5

        r2et run loans.csv --target default --drop customer_id -k 5 --json
    """
    check_there(data, "file")
    from r2et.core.ranking import check_k
    from r2et.data import open_dataset
    from r2et.experiments.config import load_recipe, recipe_for
    from r2et.experiments.execution import run

    dataset = open_dataset(
        data,
        target=target,
        drop=drop or (),
        categories=category or (),
        size=size_of(size),
    )
    plan = load_recipe(recipe or recipe_for(dataset), dataset.name)
    if k is not None:
        evaluation = dataclasses.replace(plan.evaluation, k=k)
        plan = dataclasses.replace(plan, evaluation=evaluation, published="")
    check_k(plan.evaluation.k, dataset.n)
    if missing := [name for name in ("er", "strong") if name not in plan.evaluation.attacks]:
        raise ValueError(
            f"the report of a run needs the attacks er and strong, but recipe {plan.name!r} leaves "
            f"out {' and '.join(missing)}: name them, or use `r2et sweep`."
        )
    folder = faults.folder = out or Path("runs") / f"{dataset.name}-{plan.name}"
    with going_on(), bar(f"{dataset.name}, recipe {plan.name}") as show:
        rows = run(
            dataset,
            plan,
            seeds=seeds or plan.seeds,
            skip=skip,
            out=folder,
            jobs=jobs or processes(),
            on_progress=show,
        )
    for row in rows:
        if row.floor is None and row.failures:
            raise ValueError(
                f"the Vanilla network of seed {row.seed} could not be trained, so that there is "
                f"no AUC to keep: {row.failures[0].problem}"
            )
    show_run(rows, folder, folder, dataset.source, as_json)


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
        source=source,
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
    if recipe.get("published") and rows[0].dataset in recipe["datasets"]:
        words = ["r2et", "reproduce", recipe["published"], "--only", rows[0].dataset]
        beside = shlex.join([*words, "--rows", str(folder)])
        console.print(f"Published numbers beside these: {beside}", soft_wrap=True, highlight=False)
