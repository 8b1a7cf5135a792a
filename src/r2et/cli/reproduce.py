"""`r2et reproduce`: a table or figure of the papers, the published number beside ours."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from r2et.cli.common import (
    Address,
    AsJson,
    Backend,
    DataRoot,
    Jobs,
    Only,
    Seeds,
    bar,
    check_address,
    check_place,
    faults,
    going_on,
    listed,
    processes,
    rows_of,
    say,
)


def reproduce_command(
    target: Annotated[
        str,
        typer.Argument(
            help="A table or figure of the papers, such as table-1 or figure-4, or all.",
            metavar="TARGET",
        ),
    ],
    only: Only = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Some of the methods besides Vanilla and the control: est-h,r2et."),
    ] = None,
    seeds: Seeds = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for rows, models and figures; what it holds is not done again."),
    ] = Path("runs/reproduce"),
    jobs: Jobs = None,
    backend: Backend = "joblib",
    address: Address = None,
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
    as_json: AsJson = False,
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
    faults.folder = out
    check_address(backend, address)
    check_place(docs)
    _find_reproduction()
    from reproduction.page import keep_rows, kept_rows, write_page
    from reproduction.reproduce import reproduce
    from reproduction.targets import datasets_wanted, targets_named
    from reproduction.terminal import show_targets

    targets = targets_named(target)
    names = listed(only)
    for each in targets:
        datasets_wanted(each, names)
    if rows_from is not None:
        with rows_of(rows_from):
            rows = kept_rows(rows_from)
        if not rows and docs is None:
            raise ValueError(f"{rows_from} holds no rows in files *.jsonl: name another folder.")
    else:
        with going_on(), bar(target) as show:
            rows = reproduce(
                targets,
                out,
                seeds=seeds,
                only=names,
                methods=listed(methods),
                jobs=jobs or processes(),
                backend=backend,
                address=address,
                on_progress=show,
                on_missing=lambda problem: say(f"left out, {problem}"),
            )
    if docs is not None:
        keep_rows(rows, docs.with_suffix(""))
        write_page(kept_rows(docs.with_suffix("")), docs)
    with nullcontext() if rows_from is None else rows_of(rows_from):
        show_targets(targets, rows, names, out if rows_from is None else None, docs, as_json)


def _find_reproduction() -> None:
    """Let the papers' tables be imported from the clone of the repository that this runs from."""
    clone = Path(__file__).resolve().parents[3]
    if not (clone / "reproduction" / "targets.py").is_file():
        raise ValueError(
            "r2et reproduce needs a clone of the repository, where the papers' numbers are: clone "
            "it and install it there, by `pip install -e .`."
        )
    if str(clone) not in sys.path:
        sys.path.append(str(clone))
