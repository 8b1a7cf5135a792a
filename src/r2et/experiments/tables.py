"""Tables: what the rows of a run say about its methods. Functions of rows; no model is seen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from r2et.evaluation.results import COLUMNS, STRONG, Measure, Result
from r2et.methods import METHODS
from r2et.metrics.exchanges import doubt
from r2et.metrics.statistics import Mean, mean_with_interval, paired_test

VANILLA = "vanilla"
LINEAR = "linear"
BEST = "best"
CHOSEN_LABEL = "Best by validation"

EXCHANGES = "exchange_agreement"
SELECTED_BY = {"er": "ERAttack", "mse": "the MSE attack", "strong": "the strong attack"}


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """A method over its seeds: those measured, those without a model above the AUC floor."""

    method: str
    label: str
    seeds: tuple[int, ...]
    failed: tuple[int, ...]
    means: dict[str, Mean]
    chosen: dict[int, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mean of a method minus that of another over `count` seeds that both passed."""

    method: str
    label: str
    difference: float | None
    p_value: float | None
    count: int


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
    """The columns for which some row has a number: no applicant for pictures, for tables no noise.

    Where there are categories, that is exchanges always: rows that have no number show that.
    """
    found = {key for row in rows for key in row.numbers}
    shown = found | {EXCHANGES} if "off_data_share" in found else found
    return tuple(column for column in COLUMNS if column.key in shown)


def exchange_doubts(rows: Sequence[Result]) -> list[str]:
    """A sentence for each method whose slopes say nothing about exchanges of categories."""
    found = []
    for summary in summarise(rows, (EXCHANGES, "exchange_size")):
        means = [mean.value for mean in summary.means.values()]
        if len(means) == 2 and (said := doubt(*means)):
            found.append(f"{summary.label}: {said}")
    return found


def passed_rows(rows: Sequence[Result], method: str | None = None) -> list[Result]:
    """The rows that hold measures, those of one method if it is named."""
    return [row for row in rows if row.passed and method in (None, row.method)]


def summarise(rows: Sequence[Result], keys: Sequence[str] | None = None) -> list[MethodSummary]:
    """Each method over its seeds, in the order of first appearance; all measures unless named."""
    found: dict[str, list[Result]] = {}
    for row in rows:
        found.setdefault(row.method, []).append(row)
    return [_summary(of_method, keys=keys) for of_method in found.values()]


def _summary(
    rows: Sequence[Result], failed: Sequence[int] = (), keys: Sequence[str] | None = None
) -> MethodSummary:
    passed = sorted(passed_rows(rows), key=lambda row: int(row.seed))
    measures = [row.numbers for row in passed]
    # A measure that some seed lacks would be a mean over fewer seeds than the row says.
    wanted = [] if not passed else measures[0] if keys is None else keys
    common = [name for name in wanted if all(name in each for each in measures)]
    return MethodSummary(
        method=rows[0].method,
        label=rows[0].label,
        seeds=tuple(row.seed for row in passed),
        failed=tuple(sorted([*failed, *(row.seed for row in rows if not row.passed)])),
        means={name: mean_with_interval([each[name] for each in measures]) for name in common},
        chosen={row.seed: row.chosen for row in passed},
    )


def chosen_methods(rows: Sequence[Result]) -> dict[int, str]:
    """For each seed the steady method, R2ET or ours, that a run chooses."""
    return best_by_validation([row for row in rows if is_steady(row.method)])


def is_variant(method: str) -> bool:
    """Whether a method is R2ET or one of its variants."""
    return method in METHODS and METHODS[method].family == "r2et"


def is_ours(method: str) -> bool:
    """Whether a method is our own, which the papers do not have."""
    return method in METHODS and METHODS[method].family == "ours"


def is_steady(method: str) -> bool:
    """Whether a method trains networks to keep their reasons: R2ET, a variant of it, or ours."""
    return is_variant(method) or is_ours(method)


def best_by_validation(rows: Sequence[Result]) -> dict[int, str]:
    """For each seed the method with the highest validation P@k.

    Of equals the one with the higher validation AUC, then the first. Seeds on which no method kept
    the AUC floor are missing.
    """
    best: dict[int, Result] = {}
    for row in passed_rows(rows):
        rival = best.get(row.seed)
        if rival is None or _validated(row) > _validated(rival):
            best[row.seed] = row
    return {seed: best[seed].method for seed in sorted(best)}


def _validated(row: Result) -> tuple[float, float]:
    assert row.valid is not None
    return row.valid.precision, row.valid.auc


def chosen_rows(rows: Sequence[Result]) -> list[Result]:
    """The row of the steady method chosen on each seed as method "best", "variant" its label."""
    return renamed(rows, chosen_methods(rows), BEST, CHOSEN_LABEL)


def renamed(rows: Sequence[Result], best: Mapping[int, str], name: str, label: str) -> list[Result]:
    """The row of the best method of each seed under another name, "variant" its own label."""
    return [
        replace(row, method=name, label=label, variant=row.label)
        for seed, method in best.items()
        for row in rows
        if (row.seed, row.method) == (seed, method)
    ]


def summary_of_chosen(
    rows: Sequence[Result], keys: Sequence[str] | None = None
) -> MethodSummary | None:
    """The chosen steady methods over the seeds; `failed` are seeds on which none passed."""
    tried = {row.seed for row in rows if is_steady(row.method)}
    return summary_over_seeds(chosen_rows(rows), tried, keys)


def summary_over_seeds(
    chosen: Sequence[Result], tried: set[int], keys: Sequence[str] | None
) -> MethodSummary | None:
    """Rows chosen seed by seed as one method; `failed` are seeds tried without a choice."""
    if not chosen:
        return None
    return _summary(chosen, sorted(tried - {row.seed for row in chosen}), keys)


def names_chosen(rows: Sequence[Result]) -> str:
    """Which methods were chosen on which seeds, in words; the name alone if it is always one."""
    names = {row.seed: str(row.variant) for row in chosen_rows(rows)}
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
    """Every other method, and the chosen one, against one, paired over seeds both passed.

    One pair has a difference but no p-value; without any pair there is neither.
    """
    base = by_seed(rows, against, measure)
    found = []
    every = [*rows, *chosen_rows(rows)]
    for summary in summarise(every):
        if summary.method == against:
            continue
        ours = by_seed(every, summary.method, measure)
        seeds = sorted(base.keys() & ours.keys())
        difference, p_value = paired([ours[s] for s in seeds], [base[s] for s in seeds])
        found.append(
            Comparison(
                method=summary.method,
                label=summary.label,
                difference=difference,
                p_value=p_value,
                count=len(seeds),
            )
        )
    return found


def by_seed(rows: Sequence[Result], method: str, measure: str) -> dict[int, float]:
    """A measure of a method for each seed that passed."""
    return {
        row.seed: measures[measure]
        for row in passed_rows(rows, method)
        if measure in (measures := row.numbers)
    }


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean difference and p-value of paired values, each None where too few pairs are given."""
    if not first:
        return None, None
    if len(first) == 1:
        return first[0] - second[0], None
    test = paired_test(first, second)
    return test.difference, test.p_value


def table_rows(rows: Sequence[Result]) -> list[dict[str, Any]]:
    """The main table as plain values: a record for each method, and one for the chosen ones.

    Measures without any seed that passed are missing; a spread takes two seeds.
    """
    check_rows(rows)
    best = summary_of_chosen(rows)
    names = {str(row.seed): row.variant for row in chosen_rows(rows)}
    key = STRONG
    against = {each.method: each for each in comparisons(rows, key)}
    lines = []
    for summary in [*summarise(rows), *([best] if best else [])]:
        compared = against.get(summary.method)
        lines.append(
            {
                "method": summary.method,
                "label": summary.label,
                "trained with": names
                if summary.method == BEST
                else {str(seed): summary.label for seed in summary.seeds},
                "seeds": list(summary.seeds),
                "failed": list(summary.failed),
                "chosen": {str(seed): settings for seed, settings in summary.chosen.items()},
                "measures": {
                    column.key: {
                        "mean": mean.value,
                        "sd": mean.sd if mean.count > 1 else None,
                    }
                    for column in COLUMNS
                    if (mean := summary.means.get(column.key)) is not None
                },
                "against vanilla": None
                if compared is None
                else {
                    "measure": key,
                    "difference": compared.difference,
                    "p_value": compared.p_value,
                    "count": compared.count,
                },
            }
        )
    return lines
