"""Tables: what the rows of a run say about its methods. Functions of rows; no model is seen."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from r2et.evaluation.results import COLUMNS, MEASURES, STRONG, Measure, Result
from r2et.methods import METHODS
from r2et.metrics.exchanges import doubt
from r2et.metrics.statistics import Mean, mean_with_interval, paired_test

VANILLA = "vanilla"
LINEAR = "linear"
BEST = "best"

EXCHANGES = "exchange_agreement"
SELECTED_BY = {"er": "ERAttack", "mse": "the MSE attack", "strong": "the strong attack"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mean of a method minus that of another over `count` seeds that both passed.

    One pair has a difference but no p-value; without any pair there is neither.
    """

    method: str
    label: str
    difference: float | None
    p_value: float | None
    count: int


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """A method over its seeds: those measured, those without a model above the AUC floor.

    For each seed measured, `chosen` holds the settings of its model and `trained_with` the label
    of the method that trained it. `against_vanilla` is there in the main table only. A mean over
    fewer seeds than were measured is one of a measure that the others had nothing of.
    """

    method: str
    label: str
    seeds: tuple[int, ...]
    failed: tuple[int, ...]
    means: dict[str, Mean]
    chosen: dict[int, Any]
    trained_with: dict[int, str]
    against_vanilla: Comparison | None = None

    def seeds_behind(self, key: str) -> str:
        """On how many seeds a mean rests, in words, if not on all of them: "3 of 5"."""
        mean = self.means.get(key)
        if mean is None or mean.count == len(self.seeds):
            return ""
        return f"{mean.count} of {len(self.seeds)}"

    def lacks(self, measure: Measure) -> bool:
        """Whether no seed had anything of a measure, though it was looked for."""
        return measure.key not in self.means and measure.beside in self.means


def check_rows(rows: Sequence[Result]) -> None:
    """Refuse rows that do not belong into one table."""
    if not rows:
        raise ValueError("a table takes at least one row of results, got none: run a recipe first.")
    for name in ("dataset", "recipe"):
        found = sorted({str(getattr(row, name)) for row in rows})
        if len(found) > 1:
            raise ValueError(
                f"a table takes the rows of one {name}, got {', '.join(found)}: choose one."
            )
    seen = set()
    for row in rows:
        where = (row.method, row.seed)
        if where in seen:
            raise ValueError(
                f"there are two rows for method {where[0]!r} and seed {where[1]}: "
                f"keep those of one run."
            )
        seen.add(where)


def columns_of(rows: Iterable[Result]) -> tuple[Measure, ...]:
    """The columns for which some row has a number: actionable moves of tables only.

    Where there are categories, that is exchanges always: rows that have no number show that.
    """
    found = {key for row in rows for key in row.numbers}
    shown = found | {EXCHANGES} if "off_data_share" in found else found
    return tuple(column for column in COLUMNS if column.key in shown)


def exchange_doubts(rows: Sequence[Result]) -> list[str]:
    """A sentence for each method whose gradients say nothing about exchanges of categories."""
    found = []
    for summary in summarise(rows, (EXCHANGES, "exchange_size")):
        means = [mean.value for mean in summary.means.values()]
        if len(means) == 2 and (said := doubt(*means)):
            found.append(f"{summary.label}: {said}")
    return found


def passed_rows(rows: Sequence[Result], method: str | None = None) -> list[Result]:
    """The rows that hold measures, those of one method if it is named."""
    return [row for row in rows if row.passed and method in (None, row.method)]


def measures_of(passed: Sequence[Result], keys: Sequence[str] | None = None) -> pd.DataFrame:
    """The measures of the rows of one method, by seed, NaN for those that a row lacks.

    All that some row has, unless `keys` name those wanted.
    """
    return pd.DataFrame(
        [row.numbers for row in passed],
        index=[row.seed for row in passed],
        columns=None if keys is None else list(dict.fromkeys(keys)),
        dtype=float,
    )


def summarise(rows: Sequence[Result], keys: Sequence[str] | None = None) -> list[MethodSummary]:
    """Each method over its seeds, in the order of first appearance; all measures unless named."""
    ordered = sorted(rows, key=lambda row: row.seed)
    return [
        _summary([row for row in ordered if row.method == method], keys)
        for method in dict.fromkeys(row.method for row in rows)
    ]


def _summary(rows: Sequence[Result], keys: Sequence[str] | None) -> MethodSummary:
    passed = passed_rows(rows)
    measures = measures_of(passed, keys)
    # A measure that some seed lacks would be a mean over fewer seeds than the row says, unless
    # there was nothing to measure on it: such a measure would vanish for one seed of many.
    kept = [key for key in measures if measures[key].notna().all() or _had_none(passed, str(key))]
    return MethodSummary(
        method=rows[0].method,
        label=rows[0].label,
        seeds=tuple(row.seed for row in passed),
        failed=tuple(row.seed for row in rows if not row.passed),
        means={
            str(key): mean_with_interval(values.to_numpy())
            for key in kept
            if len(values := measures[key].dropna())
        },
        chosen={row.seed: row.chosen for row in passed},
        trained_with={row.seed: row.variant or row.label for row in passed},
    )


def _had_none(passed: Sequence[Result], key: str) -> bool:
    """Whether rows without a measure had nothing to measure, rather than not measured it."""
    beside = MEASURES[key].beside
    return bool(beside) and all(beside in row.measures for row in passed)


def is_variant(method: str) -> bool:
    """Whether a method is R2ET or one of its variants."""
    return method in METHODS and METHODS[method].family == "r2et"


def is_ours(method: str) -> bool:
    """Whether a method is our own, which the papers do not have."""
    return method in METHODS and METHODS[method].family == "ours"


def is_steady(method: str) -> bool:
    """Whether a method trains networks to keep their reasons: R2ET, a variant of it, or ours."""
    return is_variant(method) or is_ours(method)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best method on validation data, seed by seed, told as if it were one method.

    `among` says of which methods it is one.
    """

    label: str
    among: Callable[[str], bool]
    method: str = BEST

    def methods(self, rows: Sequence[Result]) -> dict[int, str]:
        """For each seed the method with the highest validation P@k.

        Of equals the one with the higher validation AUC, then the first. Seeds on which no method
        kept the AUC floor are missing.
        """
        best: dict[int, Result] = {}
        for row in passed_rows(rows):
            if self.among(row.method):
                rival = best.get(row.seed)
                if rival is None or _validated(row) > _validated(rival):
                    best[row.seed] = row
        return {seed: best[seed].method for seed in sorted(best)}

    def rows(self, rows: Sequence[Result]) -> list[Result]:
        """The row of the best method of each seed under this name, "variant" its own label."""
        return [
            replace(row, method=self.method, label=self.label, variant=row.label)
            for chosen in self.methods(rows).items()
            for row in rows
            if (row.seed, row.method) == chosen
        ]

    def summarise(
        self, rows: Sequence[Result], keys: Sequence[str] | None = None
    ) -> list[MethodSummary]:
        """Those chosen over the seeds; `failed` are seeds tried without a choice.

        A list of one, or of none where there was no choice on any seed.
        """
        tried = {row.seed for row in rows if self.among(row.method)}
        return [
            replace(each, failed=tuple(sorted(tried - {*each.seeds})))
            for each in summarise(self.rows(rows), keys)
        ]


def _validated(row: Result) -> tuple[float, float]:
    assert row.valid is not None
    return row.valid.precision, row.valid.auc


CHOSEN = Choice(label="Best by validation", among=is_steady)
"""What a run chooses: a steady method, R2ET or ours."""


def names_chosen(rows: Sequence[Result]) -> str:
    """Which methods were chosen on which seeds, in words; the name alone if it is always one."""
    names = {row.seed: row.variant for row in CHOSEN.rows(rows)}
    found = dict.fromkeys(names.values())
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(
        f"{name} on {seed_list([seed for seed, chosen in names.items() if chosen == name])}"
        for name in found
    )


def why_missing(rows: Sequence[Result], failed: Sequence[int]) -> str:
    """Why there is no model on the seeds that failed, in words."""
    floorless = {row.seed for row in rows if not row.passed and row.floor is None}
    missed = [seed for seed in failed if seed not in floorless]
    untrained = [seed for seed in failed if seed in floorless]
    said = [f"no model above the AUC floor on {seed_list(missed)}"] if missed else []
    if untrained:
        said.append(f"no AUC to keep on {seed_list(untrained)}, as Vanilla could not be trained")
    return "; ".join(said)


def seed_list(seeds: Sequence[int]) -> str:
    """Seeds in words.

    >>> seed_list([0]), seed_list([0, 1, 4])
    ('seed 0', 'seeds 0, 1 and 4')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {', '.join(map(str, seeds[:-1]))} and {seeds[-1]}" if seeds else "no seed"


def comparisons(rows: Sequence[Result], measure: str, against: str = VANILLA) -> list[Comparison]:
    """Every other method, and the chosen one, against one."""
    every = [*rows, *CHOSEN.rows(rows)]
    others = dict.fromkeys(row.method for row in every if row.method != against)
    return [comparison(every, measure, method, against) for method in others]


def comparison(rows: Sequence[Result], measure: str, method: str, against: str) -> Comparison:
    """One method against another, paired over the seeds that both passed."""
    ours, theirs = (
        measures_of(passed_rows(rows, each), [measure])[measure].dropna()
        for each in (method, against)
    )
    seeds = ours.index.intersection(theirs.index).sort_values()
    difference, p_value = paired(ours[seeds].tolist(), theirs[seeds].tolist())
    return Comparison(
        method=method,
        label=next((row.label for row in rows if row.method == method), method),
        difference=difference,
        p_value=p_value,
        count=len(seeds),
    )


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean difference and p-value of paired values, each None where too few pairs are given."""
    if not first:
        return None, None
    if len(first) == 1:
        return first[0] - second[0], None
    test = paired_test(first, second)
    return test.difference, test.p_value


def main_table(rows: Sequence[Result]) -> list[MethodSummary]:
    """The main table: each method, then those chosen, with what each has over Vanilla."""
    check_rows(rows)
    against = {each.method: each for each in comparisons(rows, STRONG)}
    return [
        replace(each, against_vanilla=against.get(each.method))
        for each in (*summarise(rows), *CHOSEN.summarise(rows))
    ]


def table_rows(rows: Sequence[Result]) -> list[dict[str, Any]]:
    """The main table as plain values, a record for each of its lines.

    Measures without any seed that passed are missing; a spread takes two seeds.
    """
    return [
        {
            "method": line.method,
            "label": line.label,
            "trained with": {str(seed): label for seed, label in line.trained_with.items()},
            "seeds": list(line.seeds),
            "failed": list(line.failed),
            "chosen": {str(seed): settings for seed, settings in line.chosen.items()},
            "measures": {
                column.key: {"mean": mean.value, "sd": mean.spread, "count": mean.count}
                for column in COLUMNS
                if (mean := line.means.get(column.key)) is not None
            },
            "against vanilla": None
            if (found := line.against_vanilla) is None
            else {
                "measure": STRONG,
                "difference": found.difference,
                "p_value": found.p_value,
                "count": found.count,
            },
        }
        for line in main_table(rows)
    ]
