"""The numbers of the papers' figures: what is drawn, and the same as text. From rows alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from r2et.attacks.comparison import HandlingPoint, pareto_front
from r2et.evaluation.results import ER, STRONG, Result
from r2et.experiments.tables import LINEAR, VANILLA, passed_rows, summarise
from r2et.metrics.statistics import mean_with_interval
from reproduction.papers import NONE, Grid, label_of, rows_of

CORRELATED = {
    "thickness": "thickness, adversarial",
    "gaussian_thickness": "thickness, Gaussian mean",
    "least_gaussian_thickness": "thickness, Gaussian minimum",
    "hessian_norm": "Hessian norm",
}


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Rank correlation of a measure with the manipulation epoch, over the seeds of a method."""

    dataset: str
    label: str
    measure: str
    mean: float | None
    sd: float | None
    count: int


def correlations(
    rows: Sequence[Result], shown: Sequence[tuple[str, str]], recipe: str = "paper"
) -> list[Correlation]:
    """Four correlations for each (data set, method) shown, None where no seed has one."""
    found = []
    for dataset, method in shown:
        own = rows_of(rows, recipe, dataset)
        label = next((row.label for row in own if row.method == method), method)
        scatters = [row.series.scatter for row in passed_rows(own, method)]
        for measure in CORRELATED:
            values = [each.correlation[measure] for each in scatters if measure in each.correlation]
            mean = mean_with_interval(values) if values else None
            found.append(
                Correlation(
                    dataset=dataset,
                    label=label,
                    measure=measure,
                    mean=None if mean is None else mean.value,
                    sd=None if mean is None else mean.spread,
                    count=len(values),
                )
            )
    return found


def correlation_grid(found: Sequence[Correlation], title: str) -> Grid:
    """Correlations as text, a line for each data set and method."""
    lines = []
    for dataset, label in dict.fromkeys((each.dataset, each.label) for each in found):
        own = [each for each in found if (each.dataset, each.label) == (dataset, label)]
        cells = [NONE if each.mean is None else _signed(each.mean, each.sd) for each in own]
        lines.append((label_of(dataset), label, *cells, str(max(each.count for each in own))))
    return Grid(
        title=title,
        headings=("data set", "method", *(f"{name} ours" for name in CORRELATED.values()), "seeds"),
        lines=tuple(lines),
        values=[asdict(each) for each in found],
        notes=("The paper prints its numbers in the figure only, none of them in a table.",),
    )


def _signed(mean: float, sd: float | None) -> str:
    spread = "" if sd is None else f" ± {sd:.2f}"
    return f"{mean:+.2f}{spread}".replace("-", "−")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A method in the plane of clean AUC and P@k: the mean of its seeds."""

    method: str
    label: str
    auc: float
    kept: float
    seeds: int
    on_front: bool = False


def places(rows: Sequence[Result], dataset: str, key: str, recipe: str = "paper") -> list[Place]:
    """The methods of a recipe in the plane, those on the Pareto front marked.

    The linear control is a place like others, yet the front is that of the trained methods.
    """
    found = [
        Place(
            method=each.method,
            label=each.label,
            auc=each.means["clean_auc"].value,
            kept=each.means[key].value,
            seeds=len(each.seeds),
        )
        for each in summarise(rows_of(rows, recipe, dataset), ["clean_auc", key])
        if key in each.means
    ]
    trained = [each for each in found if each.method != LINEAR]
    front = pareto_front([(-each.auc, -each.kept) for each in trained])
    return [
        *(replace(each, on_front=marked) for each, marked in zip(trained, front, strict=True)),
        *(each for each in found if each.method == LINEAR),
    ]


def places_grid(rows: Sequence[Result], dataset: str, title: str) -> Grid:
    """Accuracy against stability as text, under the weak and the strong attack."""
    both = [{each.label: each for each in places(rows, dataset, key)} for key in (ER, STRONG)]
    lines, values = [], []
    for label in dict.fromkeys([*both[0], *both[1]]):
        known = [found.get(label) for found in both]
        at = next(each for each in known if each is not None)
        cells = [label, f"{at.auc:.4f}"]
        for each in known:
            cells += [NONE if each is None else f"{100 * each.kept:.1f}"]
            cells += ["front" if each is not None and each.on_front else ""]
        lines.append((*cells, str(at.seeds)))
        values.append([None if each is None else asdict(each) for each in known])
    return Grid(
        title=title,
        headings=("method", "AUC ours", "P@k ERAttack ours", "", "P@k strong ours", "", "seeds"),
        lines=tuple(lines),
        values=values,
        notes=(
            "Front: no other trained method is as good in both numbers and better in one. The "
            "paper draws this figure for other data sets.",
        ),
    )


def profile(rows: Sequence[Result], dataset: str, recipe: str = "paper") -> list[float]:
    """Vanilla's median score by place, as shares of the first, averaged over the seeds."""
    found = [
        row.series.profile.median
        for row in passed_rows(rows_of(rows, recipe, dataset), VANILLA)
        if row.series.profile.median
    ]
    return [sum(at) / len(at) for at in zip(*found, strict=True)]


def maps_grid(rows: Sequence[Result], dataset: str, title: str) -> Grid:
    """P@k of the one example whose saliency maps a figure shows, a line for each method."""
    shown = [row for row in rows_of(rows, "paper", dataset) if row.seed == 0 and row.decisions]
    lines = tuple((str(row.label), f"{100 * row.decisions[0].precision:.1f}") for row in shown)
    return Grid(
        title=title,
        headings=("method", "P@k of the example shown, ours"),
        lines=lines,
        values=[{"method": row.method, "precision": row.decisions[0].precision} for row in shown],
    )


def profile_grid(rows: Sequence[Result], datasets: Sequence[str], title: str) -> Grid:
    """How much of the score of place k the next place has, for the k of Table 7."""
    lines, values = [], {}
    for dataset in datasets:
        shares = profile(rows, dataset)
        values[dataset] = shares
        cells = [
            _step_down(shares[k - 1], shares[k]) if len(shares) > k and shares[k - 1] > 0 else NONE
            for k in (2, 5, 8)
        ]
        lines.append((label_of(dataset), *cells))
    return Grid(
        title=title,
        headings=("data set", *(f"place {k} → {k + 1} ours" for k in (2, 5, 8))),
        lines=tuple(lines),
        values=values,
        notes=("Median over the examples as share of the first place, mean over seeds.",),
    )


def _step_down(upper: float, lower: float) -> str:
    return f"{upper:.3f} → {lower:.3f} (−{100 * (1 - lower / upper):.0f} %)"


@dataclass(frozen=True, kw_only=True)
class Paired:
    """P@k of a method that compares k' pairs of features, over its seeds."""

    method: str
    label: str
    facing: int
    ours: float | None
    sd: float | None
    count: int
    failed: int


def facing_of(row: Result) -> int | None:
    """The number k' of pairs that the models of a row were trained with."""
    settings = row.chosen or next((each.settings for each in row.candidates), {})
    found = settings.get("facing")
    return None if found is None else int(found)


def paired_numbers(rows: Sequence[Result], dataset: str, key: str = ER) -> list[Paired]:
    """P@k against k' for each method trained with a number of pairs, by method and k'."""
    found: dict[tuple[str, int], list[Result]] = {}
    for row in rows:
        if row.dataset == dataset and (facing := facing_of(row)) is not None:
            found.setdefault((row.method, facing), []).append(row)
    numbers = []
    for (method, facing), own in sorted(found.items()):
        (summary,) = summarise(own, [key])
        mean = summary.means.get(key)
        numbers.append(
            Paired(
                method=method,
                label=summary.label,
                facing=facing,
                ours=None if mean is None else mean.value,
                sd=None if mean is None else mean.spread,
                count=len(summary.seeds),
                failed=len(summary.failed),
            )
        )
    return numbers


def paired_grid(rows: Sequence[Result], dataset: str, title: str) -> Grid:
    """P@k against the number of pairs as text, under the weak and the strong attack."""
    both = {
        key: {(each.method, each.facing): each for each in paired_numbers(rows, dataset, key)}
        for key in (ER, STRONG)
    }
    named = {each.method: each.label for each in both[ER].values()}
    headings, cells_of = ["k'"], []
    for method, label in named.items():
        headings += [f"{label} ERAttack ours", f"{label} strong ours", "failed seeds"]
        cells_of.append(method)
    lines = []
    for facing in sorted({facing for _, facing in both[ER]}):
        cells = [str(facing)]
        for method in cells_of:
            own = [both[key].get((method, facing)) for key in (ER, STRONG)]
            cells += [NONE if each is None else _kept(each) for each in own]
            cells.append(NONE if own[0] is None else str(own[0].failed))
        lines.append(tuple(cells))
    return Grid(
        title=title,
        headings=tuple(headings),
        lines=tuple(lines),
        values=[asdict(each) for found in both.values() for each in found.values()],
        notes=("The paper prints its numbers in the figure only.",),
    )


def _kept(each: Paired) -> str:
    if each.ours is None:
        return "none passed"
    spread = "" if each.sd is None else f" ± {100 * each.sd:.1f}"
    return f"{100 * each.ours:.1f}{spread}"


def scatter_grid(rows: Sequence[Result], dataset: str, method: str, title: str) -> Grid:
    """How thickness and Hessian norm go with the first flip, a line for each seed."""
    own = passed_rows(rows_of(rows, "paper", dataset), method)
    lines, values = [], []
    for row in sorted(own, key=lambda each: each.seed):
        scatter = row.series.scatter
        known = [scatter.correlation.get(name) for name in ("thickness", "hessian_norm")]
        cells = [NONE if value is None else _signed(value, None) for value in known]
        lines.append((str(row.seed), *cells, f"{100 * (scatter.never_flipped or 0.0):.0f}"))
        values.append(
            {
                "seed": row.seed,
                "correlation": scatter.correlation,
                "never flipped": scatter.never_flipped,
            }
        )
    return Grid(
        title=title,
        headings=("seed", "thickness ours", "Hessian norm ours", "never flipped, %"),
        lines=tuple(lines),
        values=values,
        notes=("Spearman correlation with the ERAttack step of the first flip.",),
    )


def handlers_grid(points: Sequence[HandlingPoint], title: str) -> Grid:
    """The ways to keep predictions that are on the Pareto front, or selected, as text."""
    return Grid(
        title=title,
        headings=(
            "goal",
            "handling",
            "step",
            "P@k ours, %",
            "changed ours, %",
            "P@k kept ours, %",
            "",
        ),
        lines=tuple(
            (
                point.goal,
                point.handler,
                f"{point.step:g}",
                f"{100 * point.precision:.1f}",
                f"{100 * point.sensitivity:.1f}",
                f"{100 * point.kept_precision:.1f}",
                "selected" if point.selected else "front",
            )
            for point in points
            if point.on_front or point.selected
        ),
        values=[asdict(point) for point in points],
        notes=(
            "Only the Pareto front; the figure has all points. The paper draws this figure for "
            "graphs, and reports no changed predictions on tabular data.",
        ),
    )
