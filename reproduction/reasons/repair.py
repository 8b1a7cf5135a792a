"""What `r2et.trees.stabilize` does to boosted trees: rows of each grade beside the model as it was.

`python -m reproduction.reasons.repair german churn --splits 71-74` adds rows that are missing to
docs/reasons/repair.jsonl, and prints what all rows say. A penalty is chosen on a part of the rows
learnt from; test rows are looked at once, by the moves and references of the study.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from r2et.core import files
from r2et.evaluation.moves import labels_of, under_moves
from r2et.trees.explained import behind, explained
from r2et.trees.reading import Told
from r2et.trees.stabilize import GRADES, Grades, fitted_like
from reproduction.reasons.models import widths_of
from reproduction.reasons.rows import DECISIONS, DRAWS, REFERENCE, TOP, moves_of, parts_of
from reproduction.reasons.tables import TABLES, Case, Floats

REPAIRS = Path("docs/reasons/repair.jsonl")
PLAIN = "plain"
EARLIER = range(55, 58)
"""Splits whose rows are those of the version before: they are told apart from all others."""
AUC_LOSS, OVERLAP_GAIN, BROKEN = 0.003, 0.03, 0.5
"""What is asked for: limits on AUC and O, and the share of the broken decisions that may stay."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A model on a split of a table, as it was (grade "plain") or after a grade of repair.

    `broken` are shares for each width and `kept` S, means over references; `overlap` is O within
    predicted class. Of a reading, `difference` is the mean distance of the band's score from the
    person's own, and `own` the share of the person's own reasons among the band's. `held` says
    whether the limits were kept on the rows that the penalty was chosen on, and `worth` what was
    left to wish there: of several grades the one with the least is taken. `seconds` are those of
    the processor; what grades have in common is done once, and counted with the first.
    """

    table: str
    split: int
    model: str
    grade: str
    auc: float
    overlap: float
    broken: dict[str, float]
    kept: dict[str, float]
    penalty: float | None
    edges: int
    held: bool
    worth: float
    difference: float | None
    own: float | None
    seconds: float


def _scikit(rows: int) -> Any:
    return HistGradientBoostingClassifier(
        early_stopping=rows >= 1000, max_leaf_nodes=15, random_state=0
    )


def _xgboost(rows: int) -> Any:
    return import_module("xgboost").XGBClassifier(
        n_estimators=1000,
        learning_rate=0.1,
        max_depth=4,
        early_stopping_rounds=30,
        enable_categorical=True,
        n_jobs=1,
        random_state=0,
    )


def _lightgbm(rows: int) -> Any:
    return import_module("lightgbm").LGBMClassifier(
        n_estimators=2000,
        learning_rate=0.05,
        num_leaves=15,
        early_stopping_round=30,
        verbose=-1,
        n_jobs=1,
        random_state=0,
    )


REPAIRED: dict[str, Callable[[int], Any]] = {
    "hgb": _scikit,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
}
"""Estimators by the number of rows that they learn from."""


def with_categories(x: pd.DataFrame) -> pd.DataFrame:
    """The table with its words as categories, which all three libraries know."""
    return x.assign(
        **{name: pd.Categorical(x[name].astype(str), own) for name, own in labels_of(x).items()}
    )


def repaired(table: str, case: Case, split: int, model: str, grades: Sequence[str]) -> list[Repair]:
    """A model fitted to a split, after each of the grades, judged on its test rows."""
    test, learnt = parts_of(table, len(case.y), split)
    everything, y = with_categories(case.x), np.asarray(case.y).astype(int)
    x = everything.iloc[learnt].reset_index(drop=True)
    judge = _Judge.of(case, everything, x, test, split)
    started = time.process_time()
    plain = fitted_like(REPAIRED[model](len(x)), x, y[learnt])
    fitting = time.process_time() - started
    trees = explained(plain, x)
    found = []
    several: Grades | None = None
    for grade in grades:
        about: dict[str, Any] = {"table": table, "split": split, "model": model, "grade": grade}
        if grade == PLAIN:
            told, done = Told(trees=trees), None
        else:
            started = time.process_time()
            if several is None:
                several = Grades.of(
                    plain,
                    x,
                    y[learnt],
                    width=widths_of(case),
                    k=TOP,
                    auc_loss=AUC_LOSS,
                    overlap_gain=OVERLAP_GAIN,
                )
            done = several.made(grade)  # type: ignore[arg-type]
            told = done.model.told if grade == "reading" else behind(done.model, x)
        seconds = fitting if done is None else time.process_time() - started
        found.append(
            Repair(
                **about,
                **judge(told, y[test]),
                penalty=None if done is None else done.chosen.penalty,
                edges=0 if done is None else sum(len(own) for own in done.edges.values()),
                held=done is None or done.held,
                worth=1.0 if done is None else done.chosen.worth,
                seconds=seconds,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Judge:
    """Test rows, moves of the first of them and references, which all models have in common."""

    judged: pd.DataFrame
    people: pd.DataFrame
    moved: dict[str, list[pd.DataFrame]]
    references: list[pd.DataFrame]

    @classmethod
    def of(
        cls, case: Case, everything: pd.DataFrame, x: pd.DataFrame, test: Any, split: int
    ) -> "_Judge":
        """The moves and references of the study on a split."""
        draw = np.random.default_rng(split)
        judged = everything.iloc[test].reset_index(drop=True)
        people = judged[:DECISIONS]
        references = [x.iloc[draw.choice(len(x), REFERENCE)] for _ in range(DRAWS)]
        moved = dict(moves_of(case, people, draw))
        return cls(judged=judged, people=people, moved=moved, references=references)

    def __call__(self, told: Told, y: Floats) -> dict[str, Any]:
        """What is measured of a model, by the names of a row."""
        found = {
            width: under_moves(told, self.people, moved, self.references, TOP)
            for width, moved in self.moved.items()
        }
        difference = own = None
        if told.reading is not None:
            home = told.score(self.people)
            apart = told.score(told.reading.transform(self.people)) - home
            difference = float(np.abs(apart).mean())
            own = self._own(told, np.where(home >= 0, 1.0, -1.0))
        return {
            "auc": float(roc_auc_score(y, told.score(self.judged))),
            "overlap": next(iter(found.values())).overlap,
            "broken": {width: each.broken for width, each in found.items()},
            "kept": {width: each.kept for width, each in found.items()},
            "difference": difference,
            "own": own,
        }

    def _own(self, told: Told, signs: Floats) -> float:
        """The share of people's own reasons that are among those of their bands."""
        tops = []
        for each in (told, Told(trees=told.trees)):
            phi = signs[:, None] * each.contributions(self.people, self.references)
            among = np.zeros(phi.shape, dtype=bool)
            np.put_along_axis(among, np.argsort(phi, -1, kind="stable")[..., :TOP], True, -1)
            tops.append(among)
        return float((tops[0] & tops[1]).sum(-1).mean() / TOP)


# --- what rows say ------------------------------------------------------------------------------


def read_repairs(path: Path = REPAIRS) -> list[Repair]:
    """The rows that are kept."""
    return [Repair(**each) for each in files.read_rows(path)] if path.exists() else []


BEST = "best"
"""The grade that held rows favour, split by split."""
HEADS = "model | grade | splits | AUC | change | O, % | change | broken, % | was | asked |"


def repairs_table(rows: Sequence[Repair]) -> list[str]:
    """A line for each table, model and grade: the means over the splits that have all grades."""
    pairs = _pairs(rows)
    lines = [f"| table | {HEADS}", "|---|---|---|---|---|---|---|---|---|---|---|"]
    lines += [_line(table, model, grade, own) for (table, model, grade), own in pairs.items()]
    return lines


def repairs_told(rows: Sequence[Repair]) -> list[str]:
    """On how many tables each model keeps to what is asked for, by the grade held rows favour."""
    lines = []
    pairs = _pairs(rows)
    for model in REPAIRED:
        own = {at[0]: each for at, each in pairs.items() if at[1:] == (model, BEST)}
        kept = [table for table, each in own.items() if _is_met(each)]
        if own:
            lines.append(f"- {model}: {len(kept)} of {len(own)} tables ({', '.join(kept)})")
    return lines


def readings_told(rows: Sequence[Repair]) -> str:
    """How often the best grade is a reading, and how far that is from the person's own."""
    best = [after for at, each in _pairs(rows).items() if at[2] == BEST for _, after in each]
    read = [row for row in best if row.difference is not None and row.own is not None]
    if not read:
        return f"None of the {len(best)} best is a reading."
    apart = [row.difference for row in read if row.difference is not None]
    own = [row.own for row in read if row.own is not None]
    return (
        f"Of the {len(best)} best, {len(read)} are readings, which predict what the model did. "
        f"Their\nband's score differs from the person's own by {fmean(apart):.2f} log-odds on "
        f"average ({min(apart):.2f} to {max(apart):.2f}),\n"
        f"and {100 * fmean(own):.0f} % of the person's own reasons are among the band's "
        f"({100 * min(own):.0f} to {100 * max(own):.0f} %)."
    )


def _pairs(
    rows: Sequence[Repair],
) -> dict[tuple[str, str, str], list[tuple[Repair, Repair]]]:
    """By table, model and grade: the model as it was and after it, split by split."""
    by: dict[tuple[str, str, int], dict[str, Repair]] = {}
    for row in rows:
        by.setdefault((row.table, row.model, row.split), {})[row.grade] = row
    found: dict[tuple[str, str, str], list[tuple[Repair, Repair]]] = {}
    for table, model in product(TABLES, REPAIRED):
        for (*where, _), own in sorted(by.items()):
            if where == [table, model] and {PLAIN, *GRADES} <= own.keys():
                best = min((own[g] for g in GRADES), key=lambda row: (not row.held, row.worth))
                for grade, row in [(BEST, best), *((g, own[g]) for g in GRADES)]:
                    found.setdefault((table, model, grade), []).append((own[PLAIN], row))
    return found


def _line(table: str, model: str, grade: str, pairs: Sequence[tuple[Repair, Repair]]) -> str:
    auc, shared, now = _means([after for _, after in pairs])
    was_auc, was_shared, were = _means([before for before, _ in pairs])
    name = f"**{grade}**" if grade == BEST else grade
    splits = _ranges([before.split for before, _ in pairs])
    return (
        f"| {table} | {model} | {name} | {splits} | {auc:.4f} | {auc - was_auc:+.4f} "
        f"| {100 * shared:.1f} | {100 * (shared - was_shared):+.1f} | {_told(now)} | {_told(were)} "
        f"| {'met' if _is_met(pairs) else 'missed'} |"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in few words: 70-72, 75."""
    rising = sorted(set(numbers))
    starts = [each for each in rising if each - 1 not in rising]
    ends = [each for each in rising if each + 1 not in rising]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(f"{one}" if one == two else f"{one}-{two}" for one, two in pairs)


def _is_met(pairs: Sequence[tuple[Repair, Repair]]) -> bool:
    auc, shared, now = _means([after for _, after in pairs])
    was_auc, was_shared, were = _means([before for before, _ in pairs])
    return (
        auc - was_auc >= -AUC_LOSS
        and shared - was_shared <= OVERLAP_GAIN
        and all(now[width] <= BROKEN * were[width] for width in were)
    )


def _means(rows: Sequence[Repair]) -> tuple[float, float, dict[str, float]]:
    """AUC, O and the shares broken."""
    return fmean(row.auc for row in rows), fmean(row.overlap for row in rows), _broken(rows)


def _broken(rows: Sequence[Repair]) -> dict[str, float]:
    return {width: fmean(row.broken[width] for row in rows) for width in rows[0].broken}


def _told(broken: Mapping[str, float]) -> str:
    return " / ".join(f"{100 * each:.1f}" for each in broken.values())


def main(given: Sequence[str] | None = None) -> None:
    """Compute what is missing, keep it, and print what all rows say."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m reproduction.reasons.repair"
    )
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all unless named")
    parser.add_argument("--splits", default="71-74", help="numbers of splits: 71-74")
    parser.add_argument("--models", default=",".join(REPAIRED), help="a,b")
    parser.add_argument("--grades", default=",".join(GRADES), help="a,b")
    parser.add_argument("--rows", type=Path, default=REPAIRS, help="the file of rows")
    asked = parser.parse_args(given)
    first, last = (int(each) for each in asked.splits.split("-"))
    tables, models = asked.tables or list(TABLES), asked.models.split(",")
    grades = [PLAIN, *asked.grades.split(",")]
    known = {*TABLES, *REPAIRED, *GRADES, PLAIN}
    if unknown := [each for each in [*tables, *models, *grades] if each not in known]:
        parser.error(
            f"{', '.join(unknown)}: expected tables of {', '.join(TABLES)}, models of "
            f"{', '.join(REPAIRED)}, grades of {', '.join(GRADES)}."
        )
    cases = {table: TABLES[table]() for table in tables}
    for split, table, model in product(range(first, last + 1), tables, models):
        there = {
            row.grade
            for row in read_repairs(asked.rows)
            if (row.table, row.split, row.model) == (table, split, model)
        }
        missing = [grade for grade in grades if grade not in there]
        if missing:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = repaired(table, cases[table], split, model, missing)
            files.append_rows(asked.rows, [asdict(row) for row in found])
            for row in found:
                sys.stdout.write(
                    f"{table} {split} {model} {row.grade}: AUC {row.auc:.4f}, O "
                    f"{row.overlap:.3f}, broken {_told(row.broken)}, {row.seconds:.0f} s\n"
                )
            sys.stdout.flush()
    rows = [row for row in read_repairs(asked.rows) if row.split not in EARLIER]
    sys.stdout.write(
        "\n".join([*repairs_table(rows), "", *repairs_told(rows), "", readings_told(rows), ""])
    )


if __name__ == "__main__":
    main()
