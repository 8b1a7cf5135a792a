"""Rows of the study that are missing, its page and its picture.

`python -m reproduction.reasons adult --splits 30-34` adds rows to docs/reasons/rows.jsonl, and
`--guard` those of accuracy to docs/reasons/guard.jsonl; then docs/reasons.md is written from all of
them. Rows that are there are not computed again, unless `--again` says so.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import product

from r2et.core import files
from r2et.report.charts import file_of
from reproduction.reasons.frontier import frontier
from reproduction.reasons.guard import COMPARED, GUARD, GUARDED, guarded, read_guard
from reproduction.reasons.models import MODELS
from reproduction.reasons.networks import NETWORKS
from reproduction.reasons.page import PAGE, PICTURE, page
from reproduction.reasons.repair import read_repairs
from reproduction.reasons.rows import (
    BOUNDS,
    ROWS,
    bound_of,
    forget,
    measured,
    read_bounds,
    read_rows,
)
from reproduction.reasons.tables import TABLES


def main(given: Sequence[str] | None = None) -> None:
    """Compute what is missing, keep it, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m reproduction.reasons")
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(GUARDED)}")
    parser.add_argument("--splits", default="30-34", help="numbers of splits: 30-34")
    parser.add_argument("--models", help=f"of {','.join(MODELS)}: a,b")
    parser.add_argument(
        "--guard", action="store_true", help="accuracy only, on all tables if none is named"
    )
    parser.add_argument("--again", action="store_true", help="forget rows that are asked for first")
    asked = parser.parse_args(given)
    first, last = (int(each) for each in asked.splits.split("-"))
    splits = range(first, last + 1)
    known = COMPARED if asked.guard else MODELS
    usual = [name for name in known if name not in NETWORKS]
    models = asked.models.split(",") if asked.models else usual
    there = GUARDED if asked.guard else TABLES
    tables = asked.tables or (list(there) if asked.guard else [])
    if unknown := [*({*tables} - there.keys()), *({*models} - known.keys())]:
        parser.error(f"{', '.join(unknown)}: expected {', '.join(there)}, or {', '.join(known)}.")
    if asked.again:
        forget(GUARD if asked.guard else ROWS, tables, splits, models)
    (_guard if asked.guard else _study)(tables, splits, models)
    rows, bounds = read_rows(), read_bounds()
    files.write_text(PICTURE, file_of(partial(frontier, rows, bounds)))
    files.write_text(PAGE, page(rows, bounds, read_guard(), read_repairs()))


def _study(tables: Sequence[str], splits: Sequence[int], models: Sequence[str]) -> None:
    """Rows of models under moves, and the bounds of their people."""
    known = {(row.table, row.split, row.model) for row in read_rows()}
    bounded = {(bound.table, bound.split) for bound in read_bounds()}
    for table in tables:
        case = TABLES[table]()
        for split in splits:
            if (table, split) not in bounded:
                files.append_rows(BOUNDS, [asdict(bound_of(table, case, split))])
        for split, name in product(splits, models):
            needs = MODELS[name][2]
            if (table, split, name) in known or (needs and find_spec(needs) is None):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = measured(table, case, split, name)
            files.append_rows(ROWS, [asdict(row)])
            sys.stdout.write(f"{table} {split} {name}: AUC {row.auc:.4f}, broken {row.broken}\n")
            sys.stdout.flush()


def _guard(tables: Sequence[str], splits: Sequence[int], models: Sequence[str]) -> None:
    """Rows of accuracy."""
    known = {(row.table, row.split, row.model) for row in read_guard()}
    for table in tables:
        case = GUARDED[table]()
        for split, name in product(splits, models):
            if (table, split, name) not in known:
                row = guarded(table, case, split, name)
                files.append_rows(GUARD, [asdict(row)])
                sys.stdout.write(f"{table} {split} {name}: AUC {row.auc:.4f}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
