"""The papers' tables on the terminal, or as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from r2et.core.files import write_text
from r2et.evaluation.results import Result
from reproduction.figures import pictures
from reproduction.papers import Grid
from reproduction.targets import Target, grids_of


def show_targets(
    targets: Sequence[Target],
    rows: Sequence[Result],
    only: Sequence[str] | None,
    out: Path | None,
    docs: Path | None,
    as_json: bool,
) -> None:
    """Print the targets as JSON and nothing else, or as tables; figures are written beside rows."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 220
    told = []
    for target in targets:
        grids = grids_of(target, rows, only)
        drawn = {
            (out / f"{name}.svg"): svg
            for name, svg in (pictures(target, rows).items() if grids else ())
            if out is not None
        }
        paths = [str(write_text(path, svg)) for path, svg in drawn.items()]
        told.append(
            {
                "target": target.name,
                "line": target.line,
                "tables": [
                    {"title": grid.title, "settings": grid.settings, "values": grid.values}
                    for grid in grids
                ],
                "figures": paths,
            }
        )
        if as_json:
            continue
        console.print(f"{target.title}: {target.line}", style="bold")
        if not grids:
            console.print(f"There are no rows of it: `r2et reproduce {target.name}` makes them.")
        for grid in grids:
            for setting in grid.settings:
                console.print(f"{grid.title}: {setting}", soft_wrap=True)
            for table in grid_tables(grid, console):
                console.print(table)
            for note in (*grid.notes, *([grid.legend] if grid.legend else [])):
                console.print(note, soft_wrap=True)
            for table in [] if grid.below is None else grid_tables(grid.below, console):
                console.print(table)
            console.print()
        for path in paths:
            console.print(f"The figure: {path}", soft_wrap=True)
    if as_json:
        print(json.dumps(told, indent=1, allow_nan=False))
    elif docs is not None:
        console.print(f"The page: {docs}", soft_wrap=True)


def grid_tables(grid: Grid, console: Console) -> list[Table]:
    """A grid as one table, or as several where its columns do not fit side by side.

    The controls are the first to move, then whatever is still too wide; all begin with the methods.
    """
    rest = list(range(1, len(grid.headings)))
    parts = [rest]
    if grid.controls is not None and _width(grid, rest) > console.width:
        parts = [rest[: grid.controls - 1], rest[grid.controls - 1 :]]
    tables: list[list[int]] = []
    for part in parts:
        tables.append([])
        for number in part:
            if tables[-1] and _width(grid, [*tables[-1], number]) > console.width:
                tables.append([])
            tables[-1].append(number)
    return [_grid_table(grid, columns, console.width, at == 0) for at, columns in enumerate(tables)]


def _width(grid: Grid, columns: Sequence[int]) -> int:
    """How many characters the columns need beside the first one."""
    return 1 + sum(_column_width(grid, number) + 3 for number in (0, *columns))


def _column_width(grid: Grid, number: int) -> int:
    words = grid.headings[number].split()
    return max(map(len, [*words, *(line[number] for line in grid.lines)]), default=0)


def _grid_table(grid: Grid, columns: Sequence[int], width: int, first: bool) -> Table:
    title = grid.title if first and not grid.settings else None
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    whole = sum(len(grid.headings[number]) for number in columns) + 3 * len(columns)
    narrow = whole + _width(grid, []) > width
    for number in (0, *columns):
        table.add_column(
            Text(grid.headings[number]),
            justify="right" if number else "left",
            width=_column_width(grid, number) if narrow else None,
            min_width=_column_width(grid, number),
        )
    for at, line in enumerate(grid.lines):
        cells = [
            Text(line[number], "bold" if (at, number) in grid.strong else "")
            for number in (0, *columns)
        ]
        table.add_row(*cells)
    return table
