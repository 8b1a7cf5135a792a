"""What the commands share: how one ends, its progress, options that several have."""

import os
import platform
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn, Protocol

import typer
from rich.console import Console
from rich.text import Text

from r2et import __version__

errors = Console(stderr=True)


@dataclass
class Faults:
    """What becomes of a fault: whether its traceback is shown, and the folder for its log."""

    shown: bool = False
    folder: Path | None = None


faults = Faults()


# --- options that several commands have ---------------------------------------------------------


def _use_root(data_root: Path | None) -> Path | None:
    """The folder given, which all that is loaded from now on is looked for in, workers included."""
    if data_root is not None:
        from r2et.data.roots import VARIABLE

        os.environ[VARIABLE] = str(data_root)
    return data_root


DataRoot = Annotated[
    Path | None,
    typer.Option(
        callback=_use_root,
        help="Folder of the data that do not travel with the package: pictures and networks. That "
        "of the environment variable R2ET_DATA unless given.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Processes side by side; one for each core unless given."),
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="How many random splits; the recipe's own number unless given."),
]
Backend = Annotated[
    str, typer.Option(help="joblib (processes of this machine) or dask (a cluster).")
]
Address = Annotated[
    str | None, typer.Option(help="For dask: where the scheduler is, tcp://HOST:PORT.")
]
Only = Annotated[str | None, typer.Option(help="Some of the data sets, such as adult,bank.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print what is found as JSON on standard output, nothing else."),
]
Target = Annotated[str | None, typer.Option(help="For a CSV file: the column to predict.")]
Drop = Annotated[
    list[str] | None,
    typer.Option(help="For a CSV file: a column to leave out, such as an identifier; repeat."),
]
Category = Annotated[
    list[str] | None,
    typer.Option(help="For a CSV file: a column of numbers that are categories; repeat."),
]
Weights = Annotated[
    Path | None, typer.Option(help="Weights for the network of module:factory, safetensors.")
]
ProjectOneHot = Annotated[
    bool,
    typer.Option(
        "--project-one-hot", help="Leave out directions in which one-hot columns cannot vary."
    ),
]


def named_numbers(what: str, given: Sequence[str]) -> dict[str, float]:
    """The number behind each name: ["age=2"] is {"age": 2.0}."""
    found = {}
    for each in given:
        name, _, number = each.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise ValueError(f"--{what} takes a name and a number, such as age=2, got {each!r}.")
    return found


def listed(words: str | None) -> list[str] | None:
    """The words between commas, None if none are given."""
    return None if words is None else [each.strip() for each in words.split(",")]


def check_address(backend: str, address: str | None) -> None:
    """Refuse the address of a scheduler that nobody would ask."""
    if address is not None and backend != "dask":
        raise ValueError("--address is that of a dask scheduler: add --backend dask.")


def check_there(given: str | Path | None, what: str) -> None:
    """Refuse a file that is not there, before anything is imported to read it with.

    A word without an ending may be a name of something, and is left to those who know the names.
    """
    if given is None or ":" in str(given):
        return
    path = Path(given)
    if path.suffix and not path.exists():
        raise ValueError(f"there is no {what} {path}: check the path.")


def check_place(path: Path | None) -> None:
    """Refuse a file that could not be written, before the time for its content is spent."""
    if path is None:
        return
    folder = next(each for each in path.absolute().parents if each.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: give a file in a folder you can write to.")


def size_of(text: str | None) -> tuple[int, int] | None:
    """Height and width of "64x48", or of "64" both."""
    if text is None:
        return None
    numbers = text.lower().split("x")
    if len(numbers) not in (1, 2) or not all(each.isdigit() and int(each) for each in numbers):
        raise ValueError(f"a size is written HEIGHTxWIDTH, such as 64x48, got {text!r}.")
    return int(numbers[0]), int(numbers[-1])


def processes() -> int:
    """How many processes side by side: one for each core, or one for a graphics card."""
    import torch

    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


# --- what was measured --------------------------------------------------------------------------

DAMAGED = (LookupError, TypeError, AttributeError, ArithmeticError, StopIteration)
"""What working with rows ends in of which a part is missing or something else."""


@contextmanager
def rows_of(folder: Path) -> Iterator[None]:
    """Say so if nothing can be made of the rows of a folder because parts of them are not there."""
    from jinja2 import TemplateError

    try:
        yield
    except (*DAMAGED, TemplateError) as problem:
        raise ValueError(
            f"the rows of {folder} are damaged or of another version "
            f"({type(problem).__name__} {problem}): restore them from a copy or run again."
        ) from problem


# --- progress and the end -----------------------------------------------------------------------


class Progress(Protocol):
    """How much is done, of how much if that is known, and what goes on."""

    @property
    def done(self) -> int: ...  # noqa: D102
    @property
    def total(self) -> int | None: ...  # noqa: D102
    @property
    def what(self) -> str: ...  # noqa: D102


@contextmanager
def bar(title: str) -> Iterator[Callable[[Progress], None]]:
    """The function that moves a progress bar on standard error, there from its first call on."""
    from rich import progress as parts

    columns = (
        parts.SpinnerColumn(),
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeElapsedColumn(),
    )
    progress = parts.Progress(*columns, console=errors)
    task = progress.add_task(title, total=None)

    def show(at: Progress) -> None:
        progress.start()
        progress.update(
            task,
            completed=at.done,
            total=at.done if at.total is None else at.total,
            description=f"{title}: {at.what:<26}",
        )

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()


def command_given() -> str:
    """What a user types to give the same command again."""
    return shlex.join(["r2et", *sys.argv[1:]])


@contextmanager
def going_on() -> Iterator[None]:
    """Ctrl-C, or being ended by `kill`, ends with the command that goes on from there."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; what is finished is kept. To go on: {command_given()}")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def say(sentence: str) -> None:
    """A sentence of the program on standard error."""
    errors.print(Text(f"r2et: {sentence}"), soft_wrap=True)


def call(app: typer.Typer) -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2.

    What nobody expected ends in one sentence, a log with its traceback, and exit code 3.
    """
    faults.shown, faults.folder = False, None
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
    if faults.shown:
        errors.print(Text(traceback.format_exc()), soft_wrap=True)
    # What a file says may be quoted there: nothing of it may move a terminal's cursor.
    say("".join(each if each.isprintable() else " " for each in sentence))
    sys.exit(code)


def _write_log(text: str) -> Path:
    """The file that now holds a traceback: in the output folder, else in that for such files."""
    from r2et.core.files import write_text

    torch = metadata.version("torch")
    about = f"r2et {__version__}, Python {platform.python_version()}, torch {torch}"
    name = f"fault-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    places = [Path(state) / "r2et", Path(tempfile.gettempdir())]
    if faults.folder is not None and faults.folder.is_dir():
        places.insert(0, faults.folder)
    for place in places:
        with suppress(OSError, ValueError):
            return write_text(place / name, f"{about}\n{command_given()}\n\n{text}")
    return Path(os.devnull)
