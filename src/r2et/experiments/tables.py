"""Tables: what the rows of a run say about its methods. Functions of rows; no model is seen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from r2et.metrics.exchanges import doubt
from r2et.metrics.statistics import Mean, mean_with_interval, paired_test

Row = Mapping[str, Any]
Style = Literal["auc", "percent", "share", "number", "count"]

VANILLA = "vanilla"
LINEAR = "linear"
BEST = "best"
CHOSEN_LABEL = "Best by validation"
VARIANT = "r2et"  # what the names of all R2ET variants start with
OURS = "steadfast"  # what the names of our own methods start with

CHANGED = "changed predictions"
EXCHANGES = "exchange agreement"
SELECTED_BY = {"er": "ERAttack", "mse": "the MSE attack", "strong": "the strong attack"}


def written(value: float, style: Style) -> str:
    """A value as text, in the number of places its style asks for."""
    if style == "auc":
        return f"{value:.4f}"
    if style in ("percent", "share"):
        return f"{100 * value:.1f}"
    if style == "count":
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the main table: which measure it shows, how, and what the measure means."""

    key: str
    heading: str
    group: str
    line: str
    style: Style
    better: Literal["higher", "lower", "none"]

    def show(self, value: float) -> str:
        """A value of this column as text.

        >>> COLUMNS[0].show(0.88158), COLUMNS[3].show(0.66700)
        ('0.8816', '66.7')
        """
        return written(value, self.style)

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
        key="accuracy",
        heading="Accuracy",
        group="Accuracy",
        line="Of three or more classes, the share of the test part that is told right.",
        style="auc",
        better="higher",
    ),
    Column(
        key="within-class AUC",
        heading="AUC within classes",
        group="Accuracy",
        line="Of pairs, the mean of the AUCs among pairs whose first item is of one class: to know "
        "the class of the second item alone gives one half.",
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
        key="noise precision@k",
        heading="P@k noise",
        group=ATTACKED,
        line="Share of the top k reasons that survive random changes as large as an attack's, "
        "without any attack.",
        style="percent",
        better="higher",
    ),
    Column(
        key="er last precision@k",
        heading="P@k ERAttack, last",
        group=ATTACKED,
        line="Share of the top k reasons left where ERAttack's walk ended, not at its best input, "
        "whatever is predicted there.",
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
        line="Share of decisions whose predicted class a small change can turn over.",
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
        key=EXCHANGES,
        heading="Exchanges agree",
        group=CONTROLS,
        line="How far the slopes order the exchanges of categories that a person could make as the "
        "score does: 1 is the same order, 0 none, and then the reasons say nothing about them.",
        style="number",
        better="higher",
    ),
    Column(
        key="exchange size",
        heading="Exchange size",
        group=CONTROLS,
        line="What the slopes say that exchanges of categories do against what these do, the "
        "smaller over the larger: 1 is equal, and near 0 the slopes are of something else.",
        style="number",
        better="higher",
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
    changed = [
        value
        for name, value in measures.items()
        if name.endswith(" sen") and not name.endswith("last sen")
    ]
    return measures | ({CHANGED: max(changed)} if changed else {})


def measures_shown(names: Iterable[str]) -> set[str]:
    """The measures for which a table has a column if its rows hold these.

    Where there are categories, that is exchanges always: rows that have no number show that.
    """
    found = {*names}
    return found | {EXCHANGES} if "null share" in found else found


def exchange_doubts(rows: Sequence[Row]) -> list[str]:
    """A sentence for each method whose slopes say nothing about exchanges of categories."""
    found = []
    for summary in summarise(rows, (EXCHANGES, "exchange size")):
        means = [mean.value for mean in summary.means.values()]
        if len(means) == 2 and (said := doubt(*means)):
            found.append(f"{summary.label}: {said}")
    return found


def passed_rows(rows: Sequence[Row], method: str | None = None) -> list[Row]:
    """The rows that hold measures, those of one method if it is named."""
    return [row for row in rows if row["passed"] and method in (None, row["method"])]


def summarise(rows: Sequence[Row], keys: Sequence[str] | None = None) -> list[MethodSummary]:
    """Each method over its seeds, in the order of first appearance; all measures unless named."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return [_summary(of_method, keys=keys) for of_method in found.values()]


def _summary(
    rows: Sequence[Row], failed: Sequence[int] = (), keys: Sequence[str] | None = None
) -> MethodSummary:
    passed = sorted(passed_rows(rows), key=lambda row: int(row["seed"]))
    measures = [measures_of(row) for row in passed]
    # A measure that some seed lacks would be a mean over fewer seeds than the row says.
    wanted = [] if not passed else measures[0] if keys is None else keys
    common = [name for name in wanted if all(name in each for each in measures)]
    return MethodSummary(
        method=rows[0]["method"],
        label=rows[0]["label"],
        seeds=tuple(row["seed"] for row in passed),
        failed=tuple(sorted([*failed, *(row["seed"] for row in rows if not row["passed"])])),
        means={name: mean_with_interval([each[name] for each in measures]) for name in common},
        chosen={row["seed"]: row["chosen"] for row in passed},
    )


def chosen_methods(rows: Sequence[Row]) -> dict[int, str]:
    """For each seed the steady method, R2ET or ours, that a run chooses."""
    return best_by_validation([row for row in rows if is_steady(row["method"])])


def is_variant(method: str) -> bool:
    """Whether a method is R2ET or one of its variants."""
    return method.startswith(VARIANT)


def is_ours(method: str) -> bool:
    """Whether a method is our own, which the papers do not have."""
    return method.startswith(OURS)


def is_steady(method: str) -> bool:
    """Whether a method trains networks to keep their reasons: R2ET, a variant of it, or ours."""
    return is_variant(method) or is_ours(method)


def best_by_validation(rows: Sequence[Row]) -> dict[int, str]:
    """For each seed the method with the highest validation P@k.

    Of equals the one with the higher validation AUC, then the first. Seeds on which no method kept
    the AUC floor are missing.
    """
    best: dict[int, Row] = {}
    for row in passed_rows(rows):
        rival = best.get(row["seed"])
        if rival is None or _validated(row) > _validated(rival):
            best[row["seed"]] = row
    return {seed: best[seed]["method"] for seed in sorted(best)}


def _validated(row: Row) -> tuple[float, float]:
    return row["valid"]["precision"], row["valid"]["auc"]


def chosen_rows(rows: Sequence[Row]) -> list[Row]:
    """The row of the steady method chosen on each seed as method "best", "variant" its label."""
    return renamed(rows, chosen_methods(rows), BEST, CHOSEN_LABEL)


def renamed(rows: Sequence[Row], best: Mapping[int, str], name: str, label: str) -> list[Row]:
    """The row of the best method of each seed under another name, "variant" its own label."""
    return [
        {**row, "method": name, "label": label, "variant": row["label"]}
        for seed, method in best.items()
        for row in rows
        if (row["seed"], row["method"]) == (seed, method)
    ]


def summary_of_chosen(
    rows: Sequence[Row], keys: Sequence[str] | None = None
) -> MethodSummary | None:
    """The chosen steady methods over the seeds; `failed` are seeds on which none passed."""
    tried = {row["seed"] for row in rows if is_steady(row["method"])}
    return summary_over_seeds(chosen_rows(rows), tried, keys)


def summary_over_seeds(
    chosen: Sequence[Row], tried: set[int], keys: Sequence[str] | None
) -> MethodSummary | None:
    """Rows chosen seed by seed as one method; `failed` are seeds tried without a choice."""
    if not chosen:
        return None
    return _summary(chosen, sorted(tried - {row["seed"] for row in chosen}), keys)


def names_chosen(rows: Sequence[Row]) -> str:
    """Which methods were chosen on which seeds, in words; the name alone if it is always one."""
    names = {row["seed"]: str(row["variant"]) for row in chosen_rows(rows)}
    found = dict.fromkeys(names.values())
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(
        f"{name} on {seed_list([seed for seed, chosen in names.items() if chosen == name])}"
        for name in found
    )


def why_missing(rows: Sequence[Row], failed: Sequence[int]) -> str:
    """Why there is no model on the seeds that failed, in words."""
    floorless = {row["seed"] for row in rows if not row["passed"] and row["floor"] is None}
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


def comparisons(rows: Sequence[Row], measure: str, against: str = VANILLA) -> list[Comparison]:
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


def by_seed(rows: Sequence[Row], method: str, measure: str) -> dict[int, float]:
    """A measure of a method for each seed that passed."""
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


def table_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The main table as plain values: a record for each method, and one for the chosen ones.

    Measures without any seed that passed are missing; a spread takes two seeds.
    """
    check_rows(rows)
    best = summary_of_chosen(rows)
    names = {str(row["seed"]): row["variant"] for row in chosen_rows(rows)}
    key = "strong precision@k"
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
