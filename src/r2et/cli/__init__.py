"""The command line: a file for each command, and the only place that prints.

Whatever is heavy is imported by the command that needs it, when it runs.
"""

import warnings
from importlib import import_module
from typing import Annotated

import typer

from r2et import __version__
from r2et.cli import common

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""**r2et** - are the reasons your model gives stable?

Neural networks are explained by the few input features that mattered most. A tiny change of the
input that leaves the prediction alone can reshuffle those features. r2et measures how easily,
attacks as an adversary would, and trains networks whose top-k features stay put.

`r2et run adult --recipe first-look` shows it on census data in minutes, and ends with a report.
""",
)

COMMANDS = {
    "reasons": "reasons",
    "run": "run",
    "sweep": "sweep",
    "reproduce": "reproduce",
    "attack": "attack",
    "audit": "audit",
    "report": "run",
    "list": "list_names",
}
"""The file of each command, which holds NAME_command."""

for name, file in COMMANDS.items():
    command = getattr(import_module(f"r2et.cli.{file}"), f"{name}_command")
    app.command(name, rich_help_panel="Commands")(command)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of whatever ends a command."),
    ] = False,
) -> None:
    """Options of the whole command."""
    common.faults.shown = debug
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command that the words of the command line ask for."""
    # A process that has grown is replaced between two units: nothing is lost, nothing to be done.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
    common.call(app)
