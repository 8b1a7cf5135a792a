"""`r2et audit`: a verdict on the reasons of every decision of a model."""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from r2et.cli.common import (
    AsJson,
    DataRoot,
    ProjectOneHot,
    Weights,
    bar,
    check_there,
    errors,
    faults,
    going_on,
    say,
)


def audit_command(
    data: Annotated[
        str,
        typer.Argument(
            help="A data set that `r2et list` names, or the path of your own: a CSV file with the "
            "decisions, a folder of pictures, or brain networks (.npz, .mat, .zip)."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="module:factory, a function of yours that returns the network; an exported "
            "program (.pt2); or a model file of this package."
        ),
    ],
    weights: Weights = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="Another model on the same rows; repeat. With weights: module:factory@FILE."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file about the columns: names, units, scale, subgroups, ..."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column of the true classes, if there is one.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k", "--k", help="How many reasons are shown: 8, or 50 pixels or edges, unless given."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="The length of change at which each verdict is given: 0.1, or for pictures 0.02, "
            "about 5 of 255 levels, unless given."
        ),
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help="Lengths of the curves, separated by commas.")
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(
            help="l2 (length over all inputs together) or linf (each input alone). Unless given, "
            "l2 for tables and linf for others."
        ),
    ] = None,
    attack: Annotated[
        str, typer.Option(help="strong, or none: then nothing is looked for that breaks a reason.")
    ] = "strong",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of the strong attack, 2 unless given.")
    ] = None,
    radii: Annotated[
        str | None,
        typer.Option(help="auto (radii for tables up to 20,000 rows), all, or none."),
    ] = None,
    project_one_hot: ProjectOneHot = False,
    rows: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows.")] = None,
    checked: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of the decisions with a proof that are attacked inside it, those proved "
            "furthest first; one that breaks ends the audit with exit code 1.",
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of the attack's random numbers.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for audit.html, audit.json and decisions.csv; runs/audit-DATA unless "
            "given. A stopped audit goes on from there."
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="csv or parquet, for the row of each decision.")
    ] = "csv",
    as_json: AsJson = False,
    data_root: DataRoot = None,
) -> None:
    """Audit the reasons of your own model, decision by decision.

    Each decision gets a verdict: certified (proved that no change up to the tolerance replaces a
    reason), broken (a change that does is shown), or undetermined. Writes one self-contained
    audit.html, audit.json with the same, and a row for every decision.

    For example:

        r2et audit loans.csv --model my_models:build --weights net.safetensors --target default

        r2et audit loans.csv --model net.pt2 --config audit.toml --attack none --rows 10000

        r2et audit adult --model runs/adult-converged/models/MODEL.safetensors

        r2et audit mnist --model runs/mnist-paper/models/MODEL.safetensors --rows 50
    """
    check_there(data, "file")
    for spec in (None if weights else model, *(compare or ())):
        check_there(spec, "model")
    check_there(weights, "file of weights")
    check_there(config, "file of settings")
    from r2et.auditing.config import DataSettings, read_settings
    from r2et.auditing.models import load_model
    from r2et.auditing.sources import source_for, usual_settings
    from r2et.report.audit_page import audit
    from r2et.report.terminal import print_audit

    settings = read_settings(config) if config is not None else DataSettings()
    if target is not None:
        settings = dataclasses.replace(settings, target=target)
    models = [load_model(model, weights), *(load_model(each) for each in compare or ())]
    named: dict[str, Any] = {}
    for each in models:
        named[_free_name(each.name, named)] = each.model
    folder = faults.folder = out or Path("runs") / f"audit-{Path(data).stem}"
    with errors.status("reading the table"):
        source = source_for(data, models, settings)
    budget = usual_settings(source).budget
    if rounds is not None:
        budget = dataclasses.replace(budget, rounds=rounds)
    given = [f"{model}@{weights}" if weights else model, *(compare or ())]
    with going_on(), _stopping(dict(zip(named, given, strict=True))), bar(source.name) as show:
        found = audit(
            named,
            source,
            k=k,
            tolerance=tolerance,
            epsilons=None if epsilons is None else _lengths(epsilons),
            norm=norm,  # type: ignore[arg-type]  # refused there if it is no norm
            attack=attack,
            budget=budget,
            radii=radii,
            project_one_hot=project_one_hot,
            rows=rows,
            checked=checked,
            seed=seed,
            out=folder,
            format=form,
            on_progress=show,
        )
    if as_json:
        print(json.dumps(found.to_json()["models"], indent=1, allow_nan=False))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    print_audit(found, console)
    console.print(f"\nThe report: {found.page}")


@contextmanager
def _stopping(models: dict[str, str]) -> Iterator[None]:
    """A proof that was seen to be false ends with what it is, how to see it again, and code 1."""
    from r2et.auditing.checking import Contradiction

    try:
        yield
    except Contradiction as found:
        path, model = json.dumps(str(found.path)), json.dumps(models[found.record.model])
        code = (
            "from r2et.auditing import load_model, replay; "
            f"print(replay({path}, load_model({model}).model))"
        )
        say(str(found))
        errors.print(Text(f"To see it again: python -c {shlex.quote(code)}"), soft_wrap=True)
        raise typer.Exit(1) from None


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or with a number behind it if another model has it."""
    free = (f"{name} ({number})" if number > 1 else name for number in range(1, len(taken) + 2))
    return next(each for each in free if each not in taken)


def _lengths(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError as problem:
        raise ValueError(f"--epsilons takes numbers such as 0.05,0.1, got {text!r}.") from problem
