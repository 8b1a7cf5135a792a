"""What is measured of a model on a split of a table: a row."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

from r2et.core import files
from r2et.core.arrays import Codes
from r2et.core.rng import stream
from r2et.evaluation.moves import drawn_moves, every_move, under_moves
from r2et.metrics.individuality import most_individual
from reproduction.reasons.models import MODELS
from reproduction.reasons.tables import Case, numbers_of

ROWS = Path("docs/reasons/rows.jsonl")
BOUNDS = Path("docs/reasons/bounds.jsonl")
DECISIONS, DRAWS, REFERENCE, LARGE, TOP = 300, 5, 20, 200, 3
SAMPLED = 240  # moves of tables on which not all can be looked at


class _OfSplit(Protocol):
    @property
    def split(self) -> int: ...

    @property
    def model(self) -> str: ...


OfSplit = TypeVar("OfSplit", bound=_OfSplit)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model on a split of a table.

    `broken` are shares for each width, the mean over draws of 20 rows of a reference, `large` those
    against one reference of 200; `overlap` is O within predicted class, `kept` S at each width.
    """

    table: str
    split: int
    model: str
    auc: float
    overlap: float
    broken: dict[str, float]
    kept: dict[str, float]
    large: dict[str, float]
    seconds: float


def parts_of(table: str, rows: int, split: int) -> tuple[Codes, Codes]:
    """The rows of a table that a split tests on, and those that it learns from."""
    order = torch.randperm(rows, generator=stream(split, "reasons", table)).numpy()
    return order[: rows * 3 // 10], order[rows * 3 // 10 :]


def moves_of(
    case: Case, people: pd.DataFrame, draw: np.random.Generator
) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """The name of each width, and people after moves of it: all of them, or some drawn."""
    limits = {name: (own.min(), own.max()) for name, own in numbers_of(case)}
    whole = {name: bool((own == own.round()).all()) for name, own in numbers_of(case)}
    for width, widths in case.moves.items():
        made = (
            every_move(people, widths)
            if case.every
            else drawn_moves(people, widths, whole, SAMPLED, draw)
        )
        # Nobody is younger than the youngest, and nobody has committed -1 offences.
        yield (
            width,
            [
                each.assign(**{name: each[name].clip(*limits[name]) for name in widths})
                for each in made
            ],
        )


def measured(table: str, case: Case, split: int, name: str) -> Row:
    """A model fitted to a split, and judged on its test rows."""
    test, learnt = parts_of(table, len(case.y), split)
    train_x, train_y = case.x.iloc[learnt].reset_index(drop=True), case.y[learnt]
    started = time.process_time()
    model = MODELS[name][1](train_x, train_y, case)
    seconds = time.process_time() - started
    judged = case.x.iloc[test].reset_index(drop=True)
    draw = np.random.default_rng(split)
    small = [train_x.iloc[draw.choice(len(train_x), REFERENCE)] for _ in range(DRAWS)]
    large = [train_x.iloc[draw.choice(len(train_x), LARGE)]]
    people = judged[:DECISIONS]
    found = {
        width: [under_moves(model, people, moved, each, TOP) for each in (small, large)]
        for width, moved in moves_of(case, people, draw)
    }
    return Row(
        table=table,
        split=split,
        model=name,
        auc=float(roc_auc_score(case.y[test], model.score(judged))),
        overlap=next(iter(found.values()))[0].overlap,
        broken={width: each[0].broken for width, each in found.items()},
        kept={width: each[0].kept for width, each in found.items()},
        large={width: each[1].broken for width, each in found.items()},
        seconds=seconds,
    )


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The largest 1 - O of the judged people of a split whose reasons no move changes, by width.

    Of some `attributes`, k reasons drawn by lot share k / attributes.
    """

    table: str
    split: int
    attributes: int
    most: dict[str, float]


def bound_of(table: str, case: Case, split: int) -> Bound:
    """What nobody can pass on the people of a split that every model is judged on.

    It holds for O within a class, too: people whose moves meet are decided alike if no move changes
    a decision, and there are fewer pairs within classes than in all.
    """
    people = case.x.iloc[parts_of(table, len(case.y), split)[0][:DECISIONS]]
    columns = {
        str(name): people[name] if pd.api.types.is_numeric_dtype(people[name]) else codes
        for name, codes in ((each, pd.factorize(people[each])[0]) for each in people)
    }
    points = torch.from_numpy(np.stack([np.asarray(own, float) for own in columns.values()], 1))
    most = {
        width: most_individual(
            points, torch.tensor([each.get(name, 0.0) for name in columns], dtype=torch.float64)
        )
        for width, each in case.moves.items()
    }
    return Bound(table=table, split=split, attributes=len(columns), most=most)


def read_bounds(path: Path = BOUNDS) -> list[Bound]:
    """The bounds that are kept."""
    return [Bound(**each) for each in files.read_rows(path)]


def read_rows(path: Path = ROWS) -> list[Row]:
    """The rows that are kept."""
    return [Row(**each) for each in files.read_rows(path)]


def like_for_like(rows: Sequence[OfSplit]) -> list[OfSplit]:
    """The rows of one table on the splits that all of its models have."""
    have = [{row.split for row in rows if row.model == name} for name in {r.model for r in rows}]
    return [row for row in rows if row.split in set.intersection(*have)]


def bounds_of(rows: Sequence[Row], bounds: Sequence[Bound]) -> list[Bound]:
    """The bounds of the people that these rows are about."""
    judged = {(row.table, row.split) for row in rows}
    return [bound for bound in bounds if (bound.table, bound.split) in judged]


def forget(path: Path, tables: Sequence[str], splits: Sequence[int], models: Sequence[str]) -> None:
    """Take the rows of these models on these splits of these tables out of a file."""
    kept = [
        row
        for row in files.read_rows(path)
        if not (row["table"] in tables and row["split"] in splits and row["model"] in models)
    ]
    files.write_text(path, "")
    files.append_rows(path, kept)
