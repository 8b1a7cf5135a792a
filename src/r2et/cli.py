"""The command line: the only place that prints."""

import dataclasses
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from jinja2 import TemplateError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from r2et import __version__
from r2et.attacks import ATTACKS, HANDLERS, ActionableSet, HandlerPoint, what_it_buys
from r2et.attacks.comparison import TOLERABLE
from r2et.auditing import (
    Audit,
    Contradiction,
    DataSettings,
    audit,
    load_model,
    read_settings,
    usual_settings,
)
from r2et.auditing import Progress as Audited
from r2et.auditing.sources import source_for
from r2et.core.files import read_rows, write_text
from r2et.core.limits import content_of, json_of
from r2et.core.naming import nearest
from r2et.core.ranking import check_k
from r2et.data import (
    DATASETS,
    Collection,
    Dataset,
    Split,
    load,
    read_csv,
    read_folder,
    read_networks,
)
from r2et.data.roots import VARIABLE, MissingDataError
from r2et.experiments.attack_run import (
    Findings,
    LabSettings,
    attack_model,
    check_request,
    compared_handlers,
    example_rows,
    given_model,
)
from r2et.experiments.config import load_recipe, recipe_for, recipe_names
from r2et.experiments.execution import BACKENDS, OnProgress, run, sweep
from r2et.experiments.execution import Progress as Done
from r2et.experiments.tables import (
    CHOSEN_LABEL,
    COLUMNS,
    CONTROLS,
    EXCHANGES,
    Column,
    Row,
    comparisons,
    exchange_doubts,
    measures_of,
    measures_shown,
    names_chosen,
    table_rows,
    why_missing,
)
from r2et.explainers import EXPLAINERS
from r2et.methods import METHODS
from r2et.metrics import METRICS
from r2et.metrics.exchanges import doubt
from r2et.preflight import in_words
from r2et.report import alarm_lines, write_report
from r2et.report.audit_page import write_audit_page
from r2et.report.figures import handlers_figure

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""**r2et** - are the reasons your model gives stable?

Neural networks are explained by the few input features that mattered most. A tiny change of the
input that leaves the prediction alone can reshuffle those features. r2et measures how easily,
attacks as an adversary would, and trains networks whose top-k features stay put.

`r2et run adult` shows all of it on census data in a few minutes and ends with a report.
""",
)

errors = Console(stderr=True)


@dataclasses.dataclass
class _Faults:
    """What becomes of a fault: whether its traceback is shown, and the folder for its log."""

    shown: bool = False
    folder: Path | None = None


_faults = _Faults()


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of whatever ends a command."),
    ] = False,
) -> None:
    """Options of the whole command."""
    _faults.shown = debug
    if version:
        print(__version__)
        raise typer.Exit


def _use_root(data_root: Path | None) -> Path | None:
    """The folder given, which all that is loaded from now on is looked for in, workers included."""
    if data_root is not None:
        os.environ[VARIABLE] = str(data_root)
    return data_root


DataRoot = Annotated[
    Path | None,
    typer.Option(
        callback=_use_root,
        help="Folder of the data that do not travel with the package: pictures and networks. That "
        f"of the environment variable {VARIABLE} unless given.",
    ),
]


@app.command("run", rich_help_panel="Commands")
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
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many random splits; the recipe's own number unless given."),
    ] = None,
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
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the table as JSON on standard output, nothing else."),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes side by side; one for each core unless given."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="For a CSV file: the column to predict.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="For a CSV file: a column to leave out, such as an identifier; repeat."),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(help="For a CSV file: a column of numbers that are categories; repeat."),
    ] = None,
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
    dataset = _data(data, target, drop or (), category or (), size)
    plan = load_recipe(recipe or recipe_for(dataset), dataset.name)
    if k is not None:
        plan = dataclasses.replace(plan, evaluation=dataclasses.replace(plan.evaluation, k=k))
    check_k(plan.evaluation.k, dataset.n)
    if missing := [name for name in ("er", "strong") if name not in plan.evaluation.attacks]:
        raise ValueError(
            f"the report of a run needs the attacks er and strong, but recipe {plan.name!r} leaves "
            f"out {' and '.join(missing)}: name them, or use `r2et sweep`."
        )
    folder = _faults.folder = out or Path("runs") / f"{dataset.name}-{plan.name}"
    with _going_on(), _bar(f"{dataset.name}, recipe {plan.name}") as show:
        rows = run(
            dataset,
            plan,
            seeds=seeds or plan.seeds,
            skip=skip,
            out=folder,
            jobs=jobs or _processes(),
            on_progress=show,
        )
    for row in rows:
        if row["floor"] is None and row["failures"]:
            raise ValueError(
                f"the Vanilla network of seed {row['seed']} could not be trained, so that there is "
                f"no AUC to keep: {row['failures'][0]['problem']}"
            )
    _show(rows, _report(rows, folder, folder, dataset.source), as_json)


def _processes() -> int:
    """How many processes side by side: one for each core, or one for a graphics card."""
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


@contextmanager
def _going_on() -> Iterator[None]:
    """Ctrl-C, or being ended by `kill`, ends with the command that goes on from there."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        again = shlex.join(["r2et", *sys.argv[1:]])
        errors.print(
            Text(f"r2et: stopped; what is finished is kept. To go on: {again}"), soft_wrap=True
        )
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command("sweep", rich_help_panel="Commands")
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
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many random splits; the recipe's own number unless given."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Some of the recipe's data sets, such as adult,bank.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes side by side; one for each core unless given."),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="joblib (processes of this machine) or dask (a cluster).")
    ] = BACKENDS[0],
    address: Annotated[
        str | None, typer.Option(help="For dask: where the scheduler is, tcp://HOST:PORT.")
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Train, attack and measure over all data sets, seeds and methods of a recipe.

    Every row is on disk as soon as it is measured. An interrupted sweep, however it was ended, goes
    on where it was when the same command is given again.

    For example:

        r2et sweep paper --only adult,bank --jobs 8

        r2et sweep mine.toml --backend dask --address tcp://10.0.0.1:8786
    """
    if address is not None and backend != "dask":
        raise ValueError("--address is that of a dask scheduler: add --backend dask.")
    name = Path(recipe).stem if recipe.endswith(".toml") else recipe
    folder = _faults.folder = out or Path("runs") / f"sweep-{name}"
    with _going_on(), _bar(f"recipe {name}") as show:
        rows = sweep(
            recipe,
            folder,
            backend=backend,
            address=address,
            jobs=jobs or _processes(),
            seeds=seeds,
            only=None if only is None else [each.strip() for each in only.split(",")],
            on_progress=show,
        )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    failed = [row for row in rows if not row["passed"]]
    for row in failed:
        floor = row["floor"]
        why = (
            "Vanilla could not be trained" if floor is None else f"none kept an AUC of {floor:.4f}"
        )
        console.print(f"{row['dataset']}, seed {row['seed']}: no model of {row['label']}, {why}.")
    console.print(
        f"{_count(len(rows), 'row')}, of which {len(failed) or 'none'} failed the gate: "
        f"{folder / 'results.jsonl'}"
    )


@app.command("reproduce", rich_help_panel="Commands")
def reproduce_command(
    target: Annotated[
        str, typer.Argument(help="Such as table-1 or figure-4, or all.", metavar="TARGET")
    ],
    only: Annotated[
        str | None, typer.Option(help="Some of the data sets, such as adult,bank.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Some of the methods besides Vanilla and the control: est-h,r2et."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many random splits; the recipes' own number unless given."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for rows, models and figures; what it holds is not done again."),
    ] = Path("runs/reproduce"),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes side by side; one for each core unless given."),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="joblib (processes of this machine) or dask (a cluster).")
    ] = BACKENDS[0],
    address: Annotated[
        str | None, typer.Option(help="For dask: where the scheduler is, tcp://HOST:PORT.")
    ] = None,
    rows_from: Annotated[
        Path | None,
        typer.Option("--rows", help="Take the rows of this folder and run nothing."),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page of all targets, such as docs/results.md; the rows it is made "
            "of are kept in a folder of its name."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print plain values as JSON on standard output only.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Make a table or figure of the papers, the published number beside ours.

    Runs whatever is missing, then prints mean and standard deviation over random splits, splits on
    which a method failed, what would expose a number as hollow, and paired tests. A second call
    finds everything done.

    For example:

        r2et reproduce table-1 --only adult --seeds 3

        r2et reproduce table-1 --only mnist --methods est-h,r2et

        r2et reproduce figure-7

        r2et reproduce all --jobs 8 --docs docs/results.md
    """
    _find_reproduction()
    from reproduction.page import keep_rows, kept_rows, write_page
    from reproduction.reproduce import reproduce
    from reproduction.targets import datasets_wanted, targets_named
    from reproduction.terminal import show_targets

    _faults.folder = out
    targets = targets_named(target)
    names, chosen = (
        None if listed is None else [each.strip() for each in listed.split(",")]
        for listed in (only, methods)
    )
    for each in targets:
        datasets_wanted(each, names)
    if address is not None and backend != "dask":
        raise ValueError("--address is that of a dask scheduler: add --backend dask.")
    _check_place(docs)
    if rows_from is not None:
        with _rows_of(rows_from):
            rows = kept_rows(rows_from)
        _check_rows(rows, rows_from)
        if not rows and docs is None:
            raise ValueError(f"{rows_from} holds no rows in files *.jsonl: name another folder.")
    else:
        with _going_on(), _bar(target) as show:
            rows = reproduce(
                targets,
                out,
                seeds=seeds,
                only=names,
                methods=chosen,
                jobs=jobs or _processes(),
                backend=backend,
                address=address,
                on_progress=show,
                on_missing=lambda problem: errors.print(
                    Text(f"r2et: left out, {problem}"), soft_wrap=True
                ),
            )
    if docs is not None:
        keep_rows(rows, docs.with_suffix(""))
        write_page(kept_rows(docs.with_suffix("")), docs)
    with nullcontext() if rows_from is None else _rows_of(rows_from):
        show_targets(targets, rows, names, out if rows_from is None else None, docs, as_json)


def _find_reproduction() -> None:
    """Let the papers' tables be imported from the clone of the repository that this runs from."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "reproduction" / "targets.py").is_file():
        raise ValueError(
            "r2et reproduce needs a clone of the repository, where the papers' numbers are: clone "
            "it and install it there, by `pip install -e .`."
        )
    if str(clone) not in sys.path:
        sys.path.append(str(clone))


@app.command("attack", rich_help_panel="Commands")
def attack_command(
    data: Annotated[
        str,
        typer.Argument(
            help="adult, bank, compas, or the path of a CSV file of your own (with --target)."
        ),
    ] = "adult",
    model: Annotated[
        str | None,
        typer.Option(
            help="A model file of a run (in FOLDER/models), or module:factory, a function of yours "
            "that returns a network; an ordinary network is trained unless given."
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights for the network of module:factory, safetensors.")
    ] = None,
    attack: Annotated[str, typer.Option(help=f"One of {', '.join(ATTACKS)}.")] = "strong",
    eps: Annotated[
        list[float] | None,
        typer.Option(help="A radius of the curve; repeat. 0.05, 0.1, 0.25, 0.5, 1 unless given."),
    ] = None,
    threat: Annotated[
        str,
        typer.Option(
            help="ball (any number may change), applicant (what a person could change), or the "
            "path of a TOML file of rules."
        ),
    ] = "ball",
    explainer: Annotated[str, typer.Option(help=f"One of {', '.join(EXPLAINERS)}.")] = "grad",
    of: Annotated[str, typer.Option(help="Explain the probability, logit or margin.")] = (
        "probability"
    ),
    gauge_free: Annotated[
        bool,
        typer.Option(
            "--gauge-free", help="Leave out directions in which one-hot columns cannot vary."
        ),
    ] = False,
    noise: Annotated[
        str,
        typer.Option(
            help="For smooth-grad: shared (the attacker knows the noise), or fresh (attacked "
            "explanations are shown with other noise, too)."
        ),
    ] = "shared",
    handler: Annotated[
        str | None,
        typer.Option(help=f"For er and mse, how predictions are kept: {', '.join(HANDLERS)}."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Effort of the strong attack, 4 unless given.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit of the strong attack at each radius.")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="How many test examples.")] = 300,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Of the split and of the attack; a run's model has its own split."
        ),
    ] = 0,
    k: Annotated[int, typer.Option("-k", help="How many top features are shown.")] = 8,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for one line of JSON for each example: attacked inputs, changes in words, "
            "reasons before and after."
        ),
    ] = None,
    compare_handlers_to: Annotated[
        Path | None,
        typer.Option(
            "--compare-handlers",
            help="Instead: P@k against changed predictions for every way to keep predictions, "
            "drawn into this SVG file.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON on standard output only.")
    ] = False,
    target: Annotated[
        str | None, typer.Option(help="For a CSV file: the column to predict.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="For a CSV file: a column to leave out; repeat.")
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(help="For a CSV file: a column of numbers that are categories; repeat."),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Attack the explanations of one model and print P@k at several radii.

    Beside the curve stands what would expose it: whether more effort would find more, signs that
    slopes mislead the attack, ties, the null share, the number of distinct top-k sets, and whether
    slopes say anything about exchanges of categories.

    For example:

        r2et attack adult

        r2et attack adult --threat applicant --out attacked.jsonl

        r2et attack loans.csv --target default --model mine:network --weights mine.safetensors
    """
    settings = LabSettings(
        attack=attack,
        k=k,
        epsilons=tuple(eps) if eps else LabSettings().epsilons,
        examples=examples,
        explainer=explainer,
        of=of,
        gauge_free=gauge_free,
        noise=noise,
        threat=threat,
        handler=handler,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
    )
    dataset = _data(data, target, drop or (), category or ())
    check_request(settings, dataset)
    if compare_handlers_to is not None:
        given = {"out": out, "handler": handler, "rounds": rounds, "seconds": seconds}
        for name in (name for name, value in given.items() if value is not None):
            raise ValueError(f"--compare-handlers takes no --{name}: leave one of them out.")
    for path in (out, compare_handlers_to):
        _check_place(path)
    with errors.status("preparing the model" if model else "training an ordinary network"):
        network, split = given_model(dataset, model, weights, seed)
    if compare_handlers_to is not None:
        with errors.status("comparing the ways to keep predictions"):
            points = compared_handlers(network, split, settings)
        write_text(compare_handlers_to, handlers_figure(points))
        _show_handlers(points, settings, split, compare_handlers_to, as_json)
        return
    with errors.status(f"attacking {min(examples, len(split.test))} explanations"):
        findings = attack_model(network, split, settings)
    if out is not None:
        rows = (json.dumps(row, allow_nan=False) for row in example_rows(split, findings))
        write_text(out, "".join(f"{row}\n" for row in rows))
    _show_findings(findings, dataset.name, out, as_json)


def _check_place(path: Path | None) -> None:
    """Refuse a file that could not be written, before the time for its content is spent."""
    if path is None:
        return
    folder = next(each for each in path.absolute().parents if each.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: give a file in a folder you can write to.")


def _show_findings(findings: Findings, name: str, out: Path | None, as_json: bool) -> None:
    """Print what an attack found as JSON and nothing else, or as a table and sentences."""
    if as_json:
        print(json.dumps(_findings_told(findings, name), indent=1, allow_nan=False))
        return
    settings, lines = findings.settings, findings.table()
    k = settings.k
    console = Console(soft_wrap=True, highlight=False, markup=False)
    kept = "" if settings.handler is None else f" with {settings.handler}"
    console.print(
        f"{name}: {settings.attack} attack{kept} on the top {k} features of "
        f"{_explained(settings)}, {_count(findings.examples, 'test example')}",
        style="bold",
    )
    console.print(_allowed(findings))
    table = Table(box=SIMPLE_HEAD)
    headings = {heading: heading.replace("P@k", f"P@{k}") for heading in lines[0]}
    for heading, shown in headings.items():
        table.add_column(shown if heading == "epsilon" else f"{shown}, %", justify="right")
    for line in lines:
        table.add_row(*(f"{v:g}" if h == "epsilon" else f"{100 * v:.1f}" for h, v in line.items()))
    console.print(table)
    console.print(
        f"P@{k}: of the top {k} before, the mean share that is in the top {k} after. Broken: "
        "examples that lost one or more.\n"
        "Attack alone: without what the search for the smallest change and other radii found.\n"
    )
    for sentence in _findings_in_words(findings):
        console.print(sentence)
    if isinstance(findings.threat, ActionableSet):
        console.print("\nAn epsilon of 1 buys")
        for bought in what_it_buys(findings.threat):
            console.print(f"  {bought}")
    if findings.alarms or findings.preflight:
        console.print()
    for finding in findings.preflight:
        console.print(f"Preflight: {in_words(finding)}", style="bold red")
    for alarm in findings.alarms:
        console.print(f"Alarm: {alarm}", style="bold red")
    if out is not None:
        console.print(f"\nThe attacked examples: {out}")


def _findings_told(findings: Findings, name: str) -> dict[str, Any]:
    """Everything an attack found, ready for JSON."""
    doubling, fresh, both = findings.doubling, findings.fresh, findings.examples_auc
    exchanges = findings.exchanges
    return {
        "data": name,
        "settings": dataclasses.asdict(findings.settings),
        "examples": findings.examples,
        "curve": findings.table(),
        "smallest epsilon": findings.smallest(),
        "fresh noise without attack": None if fresh is None else fresh[0],
        "members": findings.members(),
        "iterations": findings.iterations(),
        "doubling": None
        if doubling is None
        else {**dataclasses.asdict(doubling), "change": doubling.change},
        "alarms": list(findings.alarms),
        "preflight": [in_words(each) for each in findings.preflight],
        "clean AUC": findings.clean_auc,
        "examples' AUC": None if both is None else {"before": both[0], "after": both[1]},
        "null share": findings.off_data_share,
        "exchange agreement": None if exchanges is None else exchanges.order,
        "exchange size": None if exchanges is None else exchanges.size,
        "without exchanges": None if exchanges is None else exchanges.without,
        "ties": findings.ties,
        "distinct sets": findings.distinct_sets,
        "an epsilon of 1 buys": what_it_buys(findings.threat)
        if isinstance(findings.threat, ActionableSet)
        else None,
    }


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _explained(settings: LabSettings) -> str:
    """The explainer in words: "grad (of the probability, gauge-free)"."""
    choices = [f"of the {settings.of}"]
    if settings.gauge_free:
        choices.append("gauge-free")
    if settings.explainer == "smooth-grad":
        choices.append(f"{settings.noise} noise")
    return f"{settings.explainer} ({', '.join(choices)})"


def _allowed(findings: Findings) -> str:
    """Which inputs the attack may use, and what an epsilon measures."""
    if isinstance(findings.threat, ActionableSet):
        return "Only what a person could change, at a price of epsilon; predictions stay."
    return "Every column may move, by an l2 distance of epsilon in scaled units; predictions stay."


def _findings_in_words(findings: Findings) -> Iterator[str]:
    """What would expose a curve as hollow, a sentence each."""
    settings = findings.settings
    k, largest = settings.k, max(settings.epsilons)
    quartiles = ", ".join(
        f"{which} {f'above {largest:g}' if value is None else f'{value:.3g}'}"
        for which, value in findings.smallest().items()
    )
    yield f"Smallest epsilon that breaks an example: {quartiles}."
    if findings.fresh is not None:
        yield (
            f"The attack knew its noise. With noise drawn anew, P@{k} is "
            f"{100 * findings.fresh[0]:.1f} % without any attack."
        )
    if members := findings.members():
        reached = "; ".join(f"{name} {100 * value:.1f}" for name, value in members.items())
        yield f"P@{k} at epsilon {largest:g} by each search: {reached}."
    if findings.doubling is not None:
        yield f"At epsilon {largest:g}, {findings.doubling}."
    yield from findings.iterations()
    auc = f"AUC {findings.clean_auc:.4f} on the whole test part"
    if findings.examples_auc is not None:
        before, after = findings.examples_auc
        auc += f"; on the examples {before:.4f} before and {after:.4f} after the attack"
    yield f"{auc}."
    yield (
        f"{_count(findings.distinct_sets, 'distinct top-k set')} among the examples; the k-th and "
        f"the next score are equal for {100 * findings.ties:.1f} %."
    )
    yield (
        f"Null share {100 * findings.off_data_share:.1f} %: the part of the slopes along which "
        "one-hot columns cannot vary."
    )
    if (exchanges := findings.exchanges) is not None:
        left_out = f"; {_count(exchanges.without, 'example')} with too few of them left out"
        yield (
            f"Exchange agreement {exchanges.order:.2f}: how far the slopes order the exchanges of "
            "categories that a person could make as the score does; 1 is the same order, 0 none"
            f"{left_out * bool(exchanges.without)}."
        )
        yield (
            f"Exchange size {exchanges.size:.2f}: what the slopes say that exchanges do against "
            "what these do, the smaller over the larger."
        )
        if said := doubt(exchanges.order, exchanges.size):
            yield said


def _show_handlers(
    points: Sequence[HandlerPoint], settings: LabSettings, split: Split, path: Path, as_json: bool
) -> None:
    """Print P@k and changed predictions of every handler and step size."""
    if as_json:
        told = [dataclasses.asdict(point) for point in points]
        print(json.dumps(told, indent=1, allow_nan=False))
        return
    k, attacked = settings.k, min(settings.examples, len(split.test))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{split.dataset.name}: ways to keep predictions while the top {k} features of "
        f"{_explained(settings)} are attacked, epsilon {max(settings.epsilons):g}, "
        f"{_count(attacked, 'test example')}",
        style="bold",
    )
    table = Table(box=SIMPLE_HEAD)
    for heading in ("goal", "handler", "step", f"P@{k}, %", "changed, %", f"P@{k} kept, %", ""):
        words = heading in ("goal", "handler", "")
        table.add_column(heading, justify="left" if words else "right", no_wrap=True)
    for goal, handler in dict.fromkeys((point.goal, point.handler) for point in points):
        own = [point for point in points if (point.goal, point.handler) == (goal, handler)]
        for number, point in enumerate(own):
            table.add_row(
                goal if number == 0 else "",
                handler if number == 0 else "",
                f"{point.step:g}",
                f"{100 * point.precision:.1f}",
                f"{100 * point.sensitivity:.1f}",
                f"{100 * point.kept_precision:.1f}",
                "selected" if point.selected else "front" if point.on_front else "",
            )
    console.print(table)
    console.print(
        f"P@{k} and changed predictions of the last input of each walk; kept: P@{k} of the best "
        "input on the way that changes none.\n"
        "Front: no other is as good in both and better in one. Selected: the lowest "
        f"P@{k} with at most {100 * TOLERABLE:g} % changed."
    )
    console.print(f"\nThe figure: {path}")


@app.command("audit", rich_help_panel="Commands")
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
    weights: Annotated[
        Path | None, typer.Option(help="Weights for the network of module:factory, safetensors.")
    ] = None,
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
            help="l2 (length over all inputs together) or box (each input alone). Unless given, l2 "
            "for tables and box for others."
        ),
    ] = None,
    attack: Annotated[
        str, typer.Option(help="strong, or none: then nothing is looked for that breaks a reason.")
    ] = "strong",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Effort of the strong attack, 2 unless given.")
    ] = None,
    radii: Annotated[
        str | None,
        typer.Option(help="auto (radii for tables up to 20,000 rows), all, or none."),
    ] = None,
    gauge_free: Annotated[
        bool,
        typer.Option(
            "--gauge-free", help="Leave out directions in which one-hot columns cannot vary."
        ),
    ] = False,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was found of each model as JSON only.")
    ] = False,
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
    settings = read_settings(config) if config is not None else DataSettings()
    if target is not None:
        settings = dataclasses.replace(settings, target=target)
    models = [load_model(model, weights), *(load_model(each) for each in compare or ())]
    named: dict[str, torch.nn.Module] = {}
    for each in models:
        named[_free_name(each.name, named)] = each.model
    folder = _faults.folder = out or Path("runs") / f"audit-{Path(data).stem}"
    with errors.status("reading the table"):
        source = source_for(data, models, settings)
    effort = usual_settings(source).effort
    if rounds is not None:
        effort = dataclasses.replace(effort, rounds=rounds)
    given = [f"{model}@{weights}" if weights else model, *(compare or ())]
    with _going_on(), _stopping(dict(zip(named, given, strict=True))), _bar(source.name) as show:
        found = audit(
            named,
            source,
            k=k,
            tolerance=tolerance,
            epsilons=None if epsilons is None else _lengths(epsilons),
            norm=norm,  # type: ignore[arg-type]  # refused there if it is no norm
            attack=attack,
            effort=effort,
            radii=radii,
            gauge_free=gauge_free,
            rows=rows,
            checked=checked,
            seed=seed,
            out=folder,
            format=form,
            on_progress=lambda each: show(_done(each)),
        )
    page = write_audit_page(found.record, folder / "audit.html")
    _show_audit(found, page, as_json)


@contextmanager
def _stopping(models: dict[str, str]) -> Iterator[None]:
    """A proof that was seen to be false ends with what it is, how to see it again, and code 1."""
    try:
        yield
    except Contradiction as found:
        path, model = json.dumps(str(found.path)), json.dumps(models[found.record["model"]])
        code = (
            "from r2et.auditing import load_model, replay; "
            f"print(replay({path}, load_model({model}).model))"
        )
        errors.print(Text(f"r2et: {found}"), soft_wrap=True)
        errors.print(Text(f"To see it again: python -c {shlex.quote(code)}"), soft_wrap=True)
        raise typer.Exit(1) from None


def _free_name(name: str, taken: dict[str, torch.nn.Module]) -> str:
    """The name, or with a number behind it if another model has it."""
    free = (f"{name} ({number})" if number > 1 else name for number in range(1, len(taken) + 2))
    return next(each for each in free if each not in taken)


def _lengths(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError as problem:
        raise ValueError(f"--epsilons takes numbers such as 0.05,0.1, got {text!r}.") from problem


def _done(audited: Audited) -> Done:
    total = audited.done if audited.total is None else audited.total
    return Done(done=audited.done, total=total, what=audited.what)


def _show_audit(found: Audit, page: Path, as_json: bool) -> None:
    """Print the verdicts on each model's decisions, and where everything is."""
    if as_json:
        print(json.dumps(found.models, indent=1, allow_nan=False))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    settings = found.record["settings"]
    console.print(
        f"{found.record['data']['name']}: do the {settings['k']} reasons of each of "
        f"{_count(found.record['data']['rows'], 'decision')} hold under changes up to "
        f"{settings['tolerance']:g}?",
        style="bold",
    )
    table = Table(box=SIMPLE_HEAD)
    table.add_column("model")
    for heading in ("certified", "broken", "undetermined"):
        table.add_column(heading, justify="right")
    exchanged = any(each.get("null share") is not None for each in found.models)
    exchanged |= any(each.get(EXCHANGES) is not None for each in found.models)
    if exchanged:
        table.add_column("exchanges agree", justify="right")
    for each in found.models:
        counts = [f"{count:,}" for count in each["counts"].values()]
        agree = each.get(EXCHANGES)
        counts += ["not measured" if agree is None else f"{agree:.2f}"] * exchanged
        table.add_row(Text(each["name"]), *counts)
    console.print(table)
    if exchanged:
        console.print(
            "Exchanges agree: how far the slopes order the exchanges of categories that a person "
            "could make as the score does; 1 is the same order, 0 none."
        )
    for each in found.models:
        for note in each["notes"]:
            console.print(f"{each['name']}: {note}" if len(found.models) > 1 else note)
    assert found.folder is not None
    rows = "decisions.parquet" if not (found.folder / "decisions.csv").exists() else "decisions.csv"
    console.print(f"Every decision: {found.folder / rows}")
    console.print(f"\nThe report: {page}")


@app.command("report", rich_help_panel="Commands")
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON on standard output only.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Print the table and write the report of a finished run again, without any model."""
    _faults.folder = out or folder
    rows = read_rows(folder / "results.jsonl")
    _check_rows(rows, folder)
    rows = _latest(rows)
    if not rows:
        raise ValueError(f"{folder} holds no results.jsonl with rows: run `r2et run` first.")
    rows = [row for row in rows if skip <= row["seed"] and (seeds is None or row["seed"] < seeds)]
    if not rows:
        raise ValueError(f"{folder} has no seed left of those asked for: ask for others.")
    dataset = rows[0]["dataset"]
    try:
        source = load(dataset).source if dataset in DATASETS else ""
    except MissingDataError:
        source = ""
    with _rows_of(folder):
        _show(rows, _report(rows, folder, out or folder, source), as_json)


DAMAGED = (LookupError, TypeError, AttributeError, ArithmeticError, StopIteration, TemplateError)
"""What working with rows ends in of which a part is missing or something else."""


@contextmanager
def _rows_of(folder: Path) -> Iterator[None]:
    """Say so if nothing can be made of the rows of a folder because parts of them are not there."""
    try:
        yield
    except DAMAGED as problem:
        raise ValueError(
            f"the rows of {folder} are damaged or of another version "
            f"({type(problem).__name__} {problem}): restore them from a copy or run again."
        ) from problem


ROW_KEYS: dict[str, type] = {
    **dict.fromkeys(("dataset", "recipe", "method", "label"), str),
    "seed": int,
    "measures": dict,
}


def _check_rows(rows: Sequence[Row], folder: Path) -> None:
    """Refuse rows that do not say what they are of."""
    for number, row in enumerate(rows, 1):
        for key, kind in ROW_KEYS.items():
            if not isinstance(row.get(key), kind):
                raise ValueError(
                    f"row {number} of {folder} must give {key!r} as {kind.__name__}, got "
                    f"{row.get(key)!r}: restore it from a copy or run again."
                )


@app.command("list", rich_help_panel="Commands")
def list_command(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON on standard output only.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Show data sets, recipes, methods, attacks, explainers and measures, one line each."""
    known = _known()
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


def _known() -> dict[str, dict[str, str]]:
    """Everything that can be asked for by name, with one line each."""
    sets = {name: _about(name) for name in DATASETS}
    return {
        "data sets": sets,
        "recipes": {name: load_recipe(name, "adult").line for name in recipe_names()},
        "methods": {name: f"{entry.label}: {entry.line}" for name, entry in METHODS.items()},
        "attacks": {name: entry.line for name, entry in ATTACKS.items()},
        "handlers": {name: entry.line for name, entry in HANDLERS.items()},
        "explainers": {name: _first_line(entry) for name, entry in EXPLAINERS.items()},
        "measures": {name: entry.line for name, entry in METRICS.items()},
    }


def _about(name: str) -> str:
    try:
        dataset = load(name)
    except MissingDataError as problem:
        return f"not at hand: {problem}"
    if isinstance(dataset, Collection):
        what = "networks" if dataset.piece.symmetric else "pictures"
        of = "pairs of " if dataset.pairs else ""
        told = f"{of}{len(dataset.items):,} {what}, {dataset.n} features; {dataset.target}"
        return f"{told} ({dataset.stand_in})" if dataset.stand_in else told
    shares = "/".join(
        f"{(dataset.y == number).double().mean():.0%} {name}"
        for number, name in enumerate(dataset.classes)
    )
    return f"{len(dataset.x):,} rows, {dataset.n} features; {dataset.target}: {shares}"


def _first_line(function: Any) -> str:
    return str(function.__doc__).splitlines()[0]


def _data(
    data: str,
    target: str | None,
    drop: Sequence[str],
    categories: Sequence[str],
    size: str | None = None,
) -> Dataset | Collection:
    """A data set by its name, or the user's own CSV file, folder of pictures or networks."""
    if data in DATASETS:
        return load(data)
    path = Path(data)
    if path.is_dir():
        return read_folder(path, name=path.resolve().name, size=_size(size))
    if path.suffix in (".npz", ".mat", ".zip"):
        return read_networks(path, name=path.stem)
    if target is not None:
        name = Path(data).stem
        return read_csv(data, target=target, name=name, drop=drop, categories=categories)
    if Path(data).suffix or Path(data).exists():
        raise ValueError(f"name the column of {data} to be predicted: --target COLUMN.")
    raise ValueError(
        f"unknown data set {data!r}: {nearest(data, DATASETS)} "
        "For a CSV file give its path and --target."
    )


def _size(text: str | None) -> tuple[int, int] | None:
    """Height and width of "64x48", or of "64" both."""
    if text is None:
        return None
    numbers = text.lower().split("x")
    if len(numbers) not in (1, 2) or not all(each.isdigit() and int(each) for each in numbers):
        raise ValueError(f"a size is written HEIGHTxWIDTH, such as 64x48, got {text!r}.")
    return int(numbers[0]), int(numbers[-1])


def _latest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each method and seed, of the recipe and data of the last row."""
    if not rows:
        return []
    same = [row for row in rows if all(row[at] == rows[-1][at] for at in ("dataset", "recipe"))]
    return list({(row["method"], row["seed"]): row for row in same}.values())


def _report(rows: Sequence[dict[str, Any]], folder: Path, out: Path, source: str) -> Path:
    path = folder / "recipe.json"
    recipe = json_of(content_of(path), str(path)) if path.is_file() else {"line": ""}
    line = recipe["line"]
    return write_report(
        rows,
        out / "report.html",
        dataset_name=rows[0]["dataset"],
        source=source,
        recipe_name=rows[0]["recipe"],
        recipe_line=line,
        command=shlex.join(["r2et", *sys.argv[1:]]),
    )


def _show(rows: Sequence[dict[str, Any]], page: Path, as_json: bool) -> None:
    """Print the rows as JSON and nothing else, or as tables and where the report is."""
    if as_json:
        print(json.dumps(table_rows(rows), indent=1))
        return
    _print_table(rows)
    for line in alarm_lines(rows, "preflight"):
        Console().print(f"Preflight: {line}", style="bold red", soft_wrap=True, highlight=False)
    Console().print(f"\nThe report: {page}", soft_wrap=True, highlight=False)


@contextmanager
def _bar(title: str) -> Iterator[OnProgress]:
    """The function that moves a progress bar on standard error, there from its first call on."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=errors)
    task = progress.add_task(title, total=None)

    def show(done: Done) -> None:
        progress.start()
        progress.update(
            task,
            completed=done.done,
            total=done.total,
            description=f"{title}: {done.what:<26}",
        )

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The measures, then what would expose them as hollow, then the paired tests."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    lines = table_rows(rows)
    k = next((row["k"] for row in rows if "k" in row), "k")
    seeds = len({row["seed"] for row in rows})
    told = f"{rows[0]['dataset']}, recipe {rows[0]['recipe']}, {seeds} seed{'s' * (seeds > 1)}"
    spread = ", mean ± sd over seeds" if seeds > 1 else ""
    measured = [column for column in COLUMNS if column.group != CONTROLS]
    console.print(_table(f"{told}, top {k}{spread}", lines, measured))
    shown = measures_shown(name for row in rows for name in measures_of(row))
    controls = [
        column
        for column in COLUMNS
        if column.group == CONTROLS
        and (column.key in shown or not column.key.startswith("exchange"))
    ]
    console.print(_table(f"{CONTROLS}:", lines, controls))
    for said in exchange_doubts(rows):
        console.print(Text(said), style="bold red")
    if chosen := names_chosen(rows):
        console.print(Text(f"{CHOSEN_LABEL}: {chosen}."))
    for line in lines:
        if line["failed"]:
            console.print(Text(f"{line['label']}: {why_missing(rows, line['failed'])}."))
    for measure, name in (("er precision@k", "ERAttack"), ("strong precision@k", "strong attack")):
        console.print(f"P@{k} under the {name} minus Vanilla's, paired over seeds:", style="bold")
        for each in comparisons(rows, measure):
            if each.difference is not None:
                p = "one seed" if each.p_value is None else f"p = {each.p_value:.2g}"
                console.print(Text(f"  {each.label:<24} {100 * each.difference:+6.1f} points, {p}"))


def _table(title: str, lines: Sequence[dict[str, Any]], columns: Sequence[Column]) -> Table:
    """A table of some columns."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right")
    for line in lines:
        cells = [_cell(line["measures"].get(column.key), column) for column in columns]
        if not line["seeds"]:
            cells = ["no model", *[""] * (len(columns) - 1)]
        table.add_row(Text(line["label"]), *map(Text, cells))
    return table


def _cell(value: dict[str, Any] | None, column: Column) -> str:
    if value is None:
        return "–" if column.key == EXCHANGES else ""
    spread = "" if value["sd"] is None else f" ± {column.show_sd(value['sd'])}"
    return f"{column.show(value['mean'])}{spread}"


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2.

    What nobody expected ends in one sentence, a log with its traceback, and exit code 3.
    """
    # A process that has grown is replaced between two units: nothing is lost, nothing to be done.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
    _faults.shown, _faults.folder = False, None
    try:
        app()
    except ValueError as problem:
        _end(str(problem), 2)
    except OSError as problem:
        where = "" if problem.filename is None else f" {problem.filename}"
        _end(f"cannot use{where}: {problem.strerror or problem}; check the path.", 2)
    except MemoryError:
        _end("there is not enough memory: ask for fewer or smaller inputs.", 2)
    except Exception as problem:  # of any kind: a user should not have to read a traceback
        told = f"{type(problem).__name__}: {problem}".rstrip(": ")
        log = _write_log(traceback.format_exc())
        _end(
            f"a fault of this program ({told}); the traceback is in {log}: please report it, or "
            "look at it by `r2et --debug`.",
            3,
        )


def _end(sentence: str, code: int) -> NoReturn:
    """End with a sentence, on request with the traceback before it."""
    if _faults.shown:
        errors.print(Text(traceback.format_exc()), soft_wrap=True)
    # What a file says may be quoted there: nothing of it may move a terminal's cursor.
    said = "".join(each if each.isprintable() else " " for each in sentence)
    errors.print(Text(f"r2et: {said}"), soft_wrap=True)
    sys.exit(code)


def _write_log(text: str) -> Path:
    """The file that now holds a traceback: in the output folder, else in that for such files."""
    about = f"r2et {__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    command = shlex.join(["r2et", *sys.argv[1:]])
    name = f"fault-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    places = [Path(state) / "r2et", Path(tempfile.gettempdir())]
    if _faults.folder is not None and _faults.folder.is_dir():
        places.insert(0, _faults.folder)
    for place in places:
        with suppress(OSError, ValueError):
            return write_text(place / name, f"{about}\n{command}\n\n{text}")
    return Path(os.devnull)
