"""Tables: what the rows of a run say about its methods. Functions of rows; no model is seen."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from r2et.metrics.statistics import Mean, mean_with_interval, paired_test

Row = Mapping[str, Any]

VANILLA = "vanilla"
LINEAR = "linear"
BEST = "best"
BEST_LABEL = "Best R2ET by validation"
VARIANT = "r2et"  # what the names of all R2ET variants start with

CHANGED = "changed predictions"
PUBLISHED_ATTACKS = {"er": "ERAttack", "mse": "MSE attack"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the main table: which measure it shows, how, and what the measure means."""

    key: str
    heading: str
    group: str
    line: str
    style: Literal["auc", "percent", "share", "number", "count"]
    better: Literal["higher", "lower", "none"]

    def show(self, value: float) -> str:
        """A value of this column as text.

        >>> COLUMNS[0].show(0.88158), COLUMNS[1].show(0.66700)
        ('0.8816', '66.7')
        """
        if self.style == "auc":
            return f"{value:.4f}"
        if self.style in ("percent", "share"):
            return f"{100 * value:.1f}"
        if self.style == "count":
            return f"{value:.1f}".removesuffix(".0")
        return f"{value:.2f}"

    def show_sd(self, value: float) -> str:
        """A spread of this column as text; that of a count is not whole."""
        return f"{value:.1f}" if self.style == "count" else self.show(value)


ATTACKED = "Reasons kept under attack, %"
CONTROLS = "What would expose a hollow number"

COLUMNS: tuple[Column, ...] = (
    Column(
        key="clean AUC",
        heading="AUC",
        group="Accuracy",
        line="Area under the ROC curve on the whole test part, without attack.",
        style="auc",
        better="higher",
    ),
    Column(
        key="er precision@k",
        heading="P@k ERAttack",
        group=ATTACKED,
        line="Share of the top k reasons that survive ERAttack, the attack of the published "
        "numbers; weak on networks made of straight pieces.",
        style="percent",
        better="higher",
    ),
    Column(
        key="mse precision@k",
        heading="P@k MSE",
        group=ATTACKED,
        line="Share of the top k reasons that survive the attack that moves the whole explanation "
        "as far as it can.",
        style="percent",
        better="higher",
    ),
    Column(
        key="strong precision@k",
        heading="P@k strong",
        group=ATTACKED,
        line="Share of the top k reasons that survive the worst of all attacks tried: an upper "
        "bound on what a still better attacker would leave.",
        style="percent",
        better="higher",
    ),
    Column(
        key="applicant precision@k",
        heading="P@k applicant",
        group=ATTACKED,
        line="Share of the top k reasons that survive changes a person could make: valid "
        "categories, whole numbers, nothing that is fixed.",
        style="percent",
        better="higher",
    ),
    Column(
        key="er thickness",
        heading="Thickness",
        group="Margin",
        line="Share of pairs of a top k and another feature that stay in order on the way to the "
        "ERAttack input, averaged along the way.",
        style="number",
        better="higher",
    ),
    Column(
        key="saliency norm",
        heading="Sum |I|",
        group=CONTROLS,
        line="Size of the explanations: gaps between scores also grow when all gradients do, and "
        "then decisions flip more easily.",
        style="number",
        better="none",
    ),
    Column(
        key="flippable",
        heading="Flippable, %",
        group=CONTROLS,
        line="Share of decisions whose predicted class a much smaller change can turn over.",
        style="share",
        better="lower",
    ),
    Column(
        key="null share",
        heading="Null share, %",
        group=CONTROLS,
        line="Share of the squared slope in directions in which real data cannot vary: stability "
        "bought there is worth nothing.",
        style="share",
        better="lower",
    ),
    Column(
        key="distinct sets",
        heading="Distinct sets",
        group=CONTROLS,
        line="How many different top k sets the attacked decisions have before any attack: one "
        "means that everybody is given the same reasons.",
        style="count",
        better="none",
    ),
    Column(
        key="tie",
        heading="Ties, %",
        group=CONTROLS,
        line="Share of explanations whose k-th place is a tie, so that their top k is arbitrary.",
        style="share",
        better="lower",
    ),
    Column(
        key=CHANGED,
        heading="Changed, %",
        group=CONTROLS,
        line="Share of predicted classes that an attack changed, the largest of the three attacks: "
        "zero means that all P@k are about explanations alone.",
        style="share",
        better="lower",
    ),
)


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


def check_rows(rows: Sequence[Row]) -> None:
    """Refuse rows that do not belong into one table."""
    if not rows:
        raise ValueError("a table takes at least one row of results, got none: run a recipe first.")
    for name in ("dataset", "recipe"):
        found = sorted({str(row.get(name)) for row in rows})
        if len(found) > 1:
            raise ValueError(
                f"a table takes the rows of one {name}, got {', '.join(found)}: choose one."
            )
    seen = set()
    for row in rows:
        where = (row["method"], row["seed"])
        if where in seen:
            raise ValueError(
                f"there are two rows for method {where[0]!r} and seed {where[1]}: "
                f"keep those of one run."
            )
        seen.add(where)


def measures_of(row: Row) -> dict[str, float]:
    """The measures of a row, and the largest share of predictions that any attack changed."""
    measures = dict(row.get("measures") or {})
    changed = [value for name, value in measures.items() if name.endswith(" sen")]
    return measures | ({CHANGED: max(changed)} if changed else {})


def passed_rows(rows: Sequence[Row], method: str | None = None) -> list[Row]:
    """The rows that hold measures, those of one method if it is named."""
    return [row for row in rows if row["passed"] and method in (None, row["method"])]


def summarise(rows: Sequence[Row]) -> list[MethodSummary]:
    """Each method over its seeds, in the order of first appearance."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return [_summary(of_method) for of_method in found.values()]


def _summary(rows: Sequence[Row], failed: Sequence[int] = ()) -> MethodSummary:
    passed = sorted(passed_rows(rows), key=lambda row: int(row["seed"]))
    measures = [measures_of(row) for row in passed]
    # A measure that some seed lacks would be a mean over fewer seeds than the row says.
    common = (
        [name for name in measures[0] if all(name in each for each in measures)] if passed else []
    )
    return MethodSummary(
        method=rows[0]["method"],
        label=rows[0]["label"],
        seeds=tuple(row["seed"] for row in passed),
        failed=tuple(sorted([*failed, *(row["seed"] for row in rows if not row["passed"])])),
        means={name: mean_with_interval([each[name] for each in measures]) for name in common},
        chosen={row["seed"]: row["chosen"] for row in passed},
    )


def best_variant(rows: Sequence[Row]) -> dict[int, str]:
    """For each seed the R2ET variant with the highest validation P@k, the first of equals.

    Seeds on which no variant kept the AUC floor are missing.
    """
    best: dict[int, Row] = {}
    for row in passed_rows(rows):
        if row["method"].startswith(VARIANT):
            rival = best.get(row["seed"])
            if rival is None or row["valid"]["precision"] > rival["valid"]["precision"]:
                best[row["seed"]] = row
    return {seed: best[seed]["method"] for seed in sorted(best)}


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """The row of the best variant of each seed as method "best"; "variant" is its own label."""
    best = best_variant(rows)
    return [
        {**row, "method": BEST, "label": BEST_LABEL, "variant": row["label"]}
        for seed, method in best.items()
        for row in rows
        if (row["seed"], row["method"]) == (seed, method)
    ]


def summary_of_best(rows: Sequence[Row]) -> MethodSummary | None:
    """The best variants over the seeds; `failed` are seeds on which no variant passed."""
    best = best_rows(rows)
    if not best:
        return None
    tried = {row["seed"] for row in rows if row["method"].startswith(VARIANT)}
    return _summary(best, failed=sorted(tried - {row["seed"] for row in best}))


def comparisons(rows: Sequence[Row], measure: str, against: str = VANILLA) -> list[Comparison]:
    """Every other method, and the best variant, against one, paired over seeds both passed.

    One pair has a difference but no p-value; without any pair there is neither.
    """
    base = _by_seed(rows, against, measure)
    found = []
    for summary in summarise([*rows, *best_rows(rows)]):
        if summary.method == against:
            continue
        ours = _by_seed([*rows, *best_rows(rows)], summary.method, measure)
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


def _by_seed(rows: Sequence[Row], method: str, measure: str) -> dict[int, float]:
    return {
        row["seed"]: measures[measure]
        for row in passed_rows(rows, method)
        if measure in (measures := measures_of(row))
    }


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean difference and p-value of paired values, each None where too few pairs are given."""
    if not first:
        return None, None
    if len(first) == 1:
        return first[0] - second[0], None
    test = paired_test(first, second)
    return test.difference, test.p_value


def published(dataset: str, label: str, attack: str) -> float | None:
    r"""The P@k in percent of the paper's Table 1, if it has one.

    Names are matched without regard to case, and "er" and "mse" name their attacks.

    >>> published("adult", "R2ET\\H", "er")
    97.5
    """
    wanted = (dataset, label, PUBLISHED_ATTACKS.get(attack, attack))
    return _table_1().get(tuple(word.casefold() for word in wanted))


@cache
def _table_1() -> dict[tuple[str, ...], float]:
    text = (resources.files("r2et.experiments") / "published.csv").read_text(encoding="utf-8")
    return {
        tuple(line[name].casefold() for name in ("dataset", "method", "setting")): float(
            line["value"]
        )
        for line in csv.DictReader(text.splitlines())
        if (line["table"], line["measure"]) == ("1", "P@k")
    }


def table_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The main table as plain values: a record for each method, and one for the best variant.

    Measures without any seed that passed are missing; a spread takes two seeds.
    """
    check_rows(rows)
    best = summary_of_best(rows)
    key = "strong precision@k"
    against = {each.method: each for each in comparisons(rows, key)}
    dataset, recipe = str(rows[0].get("dataset")), rows[0].get("recipe")
    lines = []
    for summary in [*summarise(rows), *([best] if best else [])]:
        compared = against.get(summary.method)
        lines.append(
            {
                "method": summary.method,
                "label": summary.label,
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
                "published": {
                    name: published(dataset, summary.label, name) for name in PUBLISHED_ATTACKS
                }
                if recipe == "paper"
                else {},
            }
        )
    return lines
