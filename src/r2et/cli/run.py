"""`r2et run`: train, attack, measure and report on one data set."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from r2et.cli.common import (
    AsJson,
    Category,
    DataRoot,
    Drop,
    Jobs,
    Seeds,
    Target,
    bar,
    dataset_of,
    faults,
    going_on,
    processes,
)
from r2et.cli.report import show_run


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
            help="converged (networks at full accuracy), paper (the regime of the published "
            "numbers), or the path of a TOML file. Unless given, converged for tables, and for "
            "others the one that is made for them."
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

        r2et run adult

        r2et run adult --recipe paper --seeds 5

        r2et run loans.csv --target default --drop customer_id -k 5 --json
    """
    dataset = dataset_of(data, target, drop, category, size)
    from r2et.core.ranking import check_k
    from r2et.experiments.config import load_recipe, recipe_for
    from r2et.experiments.execution import run

    plan = load_recipe(recipe or recipe_for(dataset), dataset.name)
    if k is not None:
        plan = dataclasses.replace(plan, evaluation=dataclasses.replace(plan.evaluation, k=k))
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
