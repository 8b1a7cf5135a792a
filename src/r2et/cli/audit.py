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
    listed,
    named_numbers,
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
    explain: Annotated[
        str | None,
        typer.Option(
            help="contributions of attributes, as tables are told unless given, or slopes of "
            "inputs, as pictures and networks are."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--k",
            help="How many reasons are shown: 3 contributions, 8 slopes, or 50 pixels or edges, "
            "unless given.",
        ),
    ] = None,
    width: Annotated[
        list[str] | None,
        typer.Option(
            help="Contributions: how far a number moves, in its own units: `age=2`. As often as "
            "there are numbers that do."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Contributions: numbers move by so many standard deviations, .05 unless given. "
            "Slopes: the length of change at which each verdict is given: 0.1, or for pictures "
            "0.02, about 5 of 255 levels, unless given."
        ),
    ] = None,
    exchange: Annotated[
        list[str] | None,
        typer.Option(
            help="Contributions: the price at which a word becomes another, of 1 in all: `job=1`."
        ),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(
            help="Contributions that speak against the decision (unless given), for it, or both."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="The probability at which the second class is decided, .5 unless given."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="declined: only decisions for another than the favourable.")
    ] = None,
    favourable: Annotated[
        str | None, typer.Option(help="The favourable class, the second of two unless given.")
    ] = None,
    protected: Annotated[
        str | None,
        typer.Option(help="Attributes that are flagged where they are a reason: `sex,race`."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="What contributions are told against: a CSV file, or favourable for rows that are "
            "decided so. Unless given, the model's own, or drawn from the rows."
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
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Slopes: share of the decisions with a proof that are attacked inside it, those "
            "proved furthest first, .1 unless given; one that breaks ends with exit code 1.",
        ),
    ] = None,
    search: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds a decision for the search that follows where proof and attack leave a "
            "verdict open, of slopes over activation cells, of contributions over parts of what "
            "numbers may become; .1 and 1 unless given; 0: none.",
        ),
    ] = None,
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

    Each decision gets a verdict: certified (proved that no change within what may change replaces
    a reason), broken (a change that does is shown), or undetermined. Of tables reasons are
    contributions of attributes. Writes one self-contained audit.html, audit.json with the same, and
    a row for every decision.

    For example:

        r2et audit loans.csv --model my_models:build --weights net.safetensors --target default

        r2et audit loans.csv --model stable.json --target default --width income=500 --width age=1

        r2et audit loans.csv --model net.pt2 --config audit.toml --only declined --threshold .4

        r2et audit loans.csv --model net.pt2 --explain slopes --attack none --rows 10000

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
    from r2et.auditing.records import Audit
    from r2et.report.audit_page import audit
    from r2et.report.terminal import print_audit, print_reasons

    settings = read_settings(config) if config is not None else DataSettings()
    if target is not None:
        settings = dataclasses.replace(settings, target=target)
    models = [load_model(model, weights), *(load_model(each) for each in compare or ())]
    named: dict[str, Any] = {}
    for each in models:
        named[_free_name(each.name, named)] = each
    folder = faults.folder = out or Path("runs") / f"audit-{Path(data).stem}"
    given = [f"{model}@{weights}" if weights else model, *(compare or ())]
    with going_on(), _stopping(dict(zip(named, given, strict=True))), bar(Path(data).name) as show:
        found = audit(
            named,
            data,
            explain=_one_of("explain", explain, ("contributions", "slopes")),
            k=k,
            tolerance=_tolerance(width, tolerance),
            exchange=named_numbers("exchange", exchange) if exchange else None,
            side=_one_of("side", side, ("for", "against", "both")),
            threshold=threshold,
            only=only,
            favourable=favourable,
            protected=listed(protected),
            reference=reference,
            epsilons=None if epsilons is None else _lengths(epsilons),
            norm=norm,  # type: ignore[arg-type]  # refused there if it is no norm
            attack=attack,
            rounds=rounds,
            radii=radii,
            project_one_hot=project_one_hot or None,
            rows=rows,
            checked=checked,
            search=search,
            seed=seed,
            config=settings,
            out=folder,
            format=form,
            on_progress=show,
        )
    if as_json:
        print(json.dumps(found.to_json()["models"], indent=1, allow_nan=False))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if isinstance(found, Audit):
        print_audit(found, console)
    else:
        print_reasons(found, console)
    console.print(f"\nThe report: {found.page}")


def _tolerance(width: list[str] | None, tolerance: float | None) -> float | dict[str, float] | None:
    if width and tolerance is not None:
        raise ValueError("--width and --tolerance say the same: give one of them.")
    return named_numbers("width", width) if width else tolerance


def _one_of(what: str, word: str | None, known: tuple[str, ...]) -> Any:
    if word is not None and word not in known:
        raise ValueError(f"--{what} is one of {', '.join(known)}, got {word!r}.")
    return word


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
