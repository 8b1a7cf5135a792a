"""The numbers of the papers' figures: what is drawn, and the same as text. From rows alone."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from r2et.attacks.comparison import HandlingPoint, pareto_front
from r2et.data.builtin import DATASETS
from r2et.evaluation.results import ER, STRONG, Profile, Result, Scatter
from r2et.experiments.tables import LINEAR, VANILLA, passed_rows, summarise
from r2et.methods import METHODS
from r2et.metrics.statistics import mean_with_interval
from reproduction.papers import NONE, Grid, label_of, rows_of

CORRELATED = {
    "thickness": "thickness, adversarial",
    "hessian_norm": "Hessian norm",
    "gaussian_thickness": "thickness, Gaussian mean",
    "least_gaussian_thickness": "thickness, Gaussian minimum",
}
"""What is set against the manipulation epoch, in the order in which the paper names it."""
CLEAN, ATTACKED, BEFORE = "clean_auc", "er_attacked_auc", "before_auc"


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
        label = next((row.label for row in own if row.method == method), METHODS[method].label)
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


@dataclass(frozen=True, kw_only=True)
class Dots:
    """The examples of one model, of a seed whose row has kept them: when each flips, and why."""

    label: str
    seed: int
    scatter: Scatter


def dots_of(
    rows: Sequence[Result], dataset: str, method: str, recipe: str = "paper"
) -> Dots | None:
    """The dots of the first seed that has kept any, None where no row has."""
    own = passed_rows(rows_of(rows, recipe, dataset), method)
    kept = [row for row in own if row.series.scatter.first_flip]
    first = min(kept, key=lambda row: row.seed, default=None)
    if first is None:
        return None
    return Dots(label=first.label, seed=first.seed, scatter=first.series.scatter)


def correlation_grid(found: Sequence[Correlation], title: str) -> Grid:
    """Correlations as text, a line for each data set and method."""
    lines = []
    for dataset, label in dict.fromkeys((each.dataset, each.label) for each in found):
        own = [each for each in found if (each.dataset, each.label) == (dataset, label)]
        cells = [NONE if each.mean is None else signed(each.mean, each.sd) for each in own]
        lines.append((label_of(dataset), label, *cells, str(max(each.count for each in own))))
    return Grid(
        title=title,
        headings=("data set", "method", *(f"{name} ours" for name in CORRELATED.values()), "seeds"),
        lines=tuple(lines),
        values=[asdict(each) for each in found],
        notes=(
            "Spearman's correlation, mean and standard deviation over the seeds; 0 where all "
            "examples flip at one step, or none does.",
            "The paper prints its numbers in the figure only, none of them in a table.",
        ),
    )


def signed(mean: float, sd: float | None = None) -> str:
    """A correlation with its sign, and its spread if there is one.

    >>> signed(-0.25), signed(0.5, 0.1)
    ('−0.25', '+0.50 ± 0.10')
    """
    spread = "" if sd is None else f" ± {sd:.2f}"
    return f"{mean:+.2f}{spread}".replace("-", "−")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A method in the plane of an AUC and P@k: the mean of its seeds.

    Where the AUC is that of attacked examples, `before` is their own without an attack.
    """

    method: str
    label: str
    auc: float
    kept: float
    seeds: int
    before: float | None = None
    on_front: bool = False


def places(
    rows: Sequence[Result], dataset: str, key: str, *, auc: str = CLEAN, recipe: str = "paper"
) -> list[Place]:
    """The methods of a recipe in the plane of `auc` and `key`, those on the Pareto front marked.

    The linear control is a place like others, yet the front is that of the trained methods.
    """
    beside = [BEFORE] if auc != CLEAN else []
    found = [
        Place(
            method=each.method,
            label=each.label,
            auc=each.means[auc].value,
            kept=each.means[key].value,
            seeds=len(each.seeds),
            before=each.means[BEFORE].value if beside and BEFORE in each.means else None,
        )
        for each in summarise(rows_of(rows, recipe, dataset), [auc, key, *beside])
        if {auc, key} <= each.means.keys()
    ]
    trained = [each for each in found if each.method != LINEAR]
    front = pareto_front([(-each.auc, -each.kept) for each in trained])
    return [
        *(replace(each, on_front=marked) for each, marked in zip(trained, front, strict=True)),
        *(each for each in found if each.method == LINEAR),
    ]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Which AUC and which P@k a panel sets against each other, and what they are called."""

    auc: str
    kept: str
    axis: str
    attack: str


PLANES = (
    Plane(auc=CLEAN, kept=ER, axis="cAUC", attack="ERAttack"),
    Plane(auc=ATTACKED, kept=ER, axis="aAUC", attack="ERAttack"),
    Plane(auc=CLEAN, kept=STRONG, axis="cAUC", attack="our strong attack"),
)
"""The two of the paper, and one of ours."""


def places_grid(rows: Sequence[Result], dataset: str, title: str) -> Grid:
    """Accuracy against stability as text: the clean and the attacked AUC, both attacks."""
    by_plane = [
        {each.label: each for each in places(rows, dataset, plane.kept, auc=plane.auc)}
        for plane in PLANES
    ]
    of_pairs = dataset in DATASETS and DATASETS[dataset].pairs
    lines, values = [], []
    for label in dict.fromkeys(label for found in by_plane for label in found):
        known = [found.get(label) for found in by_plane]
        clean, attacked, strong = known
        at = next(each for each in known if each is not None)
        weak = clean or attacked
        lines.append(
            (
                label,
                NONE if weak is None else f"{100 * weak.kept:.1f}",
                _auc(clean or strong),
                _front(clean),
                _auc(attacked),
                _auc(attacked, before=True),
                _front(attacked),
                NONE if strong is None else f"{100 * strong.kept:.1f}",
                _front(strong),
                str(at.seeds),
            )
        )
        values.append([None if each is None else asdict(each) for each in known])
    return Grid(
        title=title,
        headings=(
            "method",
            "P@k ERAttack ours",
            "cAUC ours",
            "",
            "aAUC ours",
            "before the attack",
            "",
            "P@k strong ours",
            "",
            "seeds",
        ),
        lines=tuple(lines),
        values=values,
        notes=(
            "cAUC is that of the whole test part, aAUC that of the attacked examples, and beside "
            "it stands the AUC of these same examples before the attack.",
            "Front: no other trained method is as good in both numbers and better in one; behind "
            "the AUC it is set against, for the strong attack the cAUC.",
            *(() if by_plane[1] else ("These rows have kept no AUC of attacked examples.",)),
            *(() if of_pairs else ("The paper draws this figure for other data sets.",)),
        ),
    )


def _auc(each: Place | None, *, before: bool = False) -> str:
    value = None if each is None else each.before if before else each.auc
    return NONE if value is None else f"{value:.4f}"


def _front(each: Place | None) -> str:
    return "front" if each is not None and each.on_front else ""


def marked_places(dataset: str) -> tuple[int, int, int]:
    """The values of k in Table 7, at which the sorted scores of a data set are looked at."""
    tabular = dataset not in DATASETS or DATASETS[dataset].kind == "table"
    return (2, 5, 8) if tabular else (10, 30, 50)


def profile(rows: Sequence[Result], dataset: str, recipe: str = "paper") -> Profile:
    """Vanilla's median score by place, as shares of the first, averaged over the seeds.

    All places are named, and there are none where no row has kept the scores.
    """
    found = [
        row.series.profile
        for row in passed_rows(rows_of(rows, recipe, dataset), VANILLA)
        if row.series.profile.median
    ]
    if not found:
        return Profile()
    shares = zip(*(each.median for each in found), strict=True)
    place = found[0].place or tuple(range(1, len(found[0].median) + 1))
    return Profile(place=place, median=tuple(sum(at) / len(at) for at in shares))


def share_at(scores: Profile, place: int) -> float | None:
    """The score of a place as share of the first, between near kept places on a straight line.

    None beyond the last place, and where the places kept are farther apart than half of this one:
    scores fall fast at the top.

    >>> share_at(Profile(place=(1, 5, 9, 13), median=(1.0, 0.8, 0.6, 0.4)), 11)
    0.5
    """
    if place in scores.place:
        return scores.median[scores.place.index(place)]
    above = bisect(scores.place, place)
    if not 0 < above < len(scores.place):
        return None
    if scores.place[above] - scores.place[above - 1] > place / 2:
        return None
    return float(np.interp(place, scores.place, scores.median))


def maps_grid(rows: Sequence[Result], dataset: str, title: str, recipe: str = "paper") -> Grid:
    """P@k of the one example whose saliency maps a figure shows, a line for each method."""
    shown = [row for row in rows_of(rows, recipe, dataset) if row.seed == 0 and row.decisions]
    lines = tuple((str(row.label), f"{100 * row.decisions[0].precision:.1f}") for row in shown)
    return Grid(
        title=title,
        headings=("method", "P@k of the example shown, ours"),
        lines=lines,
        values=[{"method": row.method, "precision": row.decisions[0].precision} for row in shown],
    )


def profile_grid(rows: Sequence[Result], datasets: Sequence[str], title: str) -> Grid:
    """How much of the score of place k the next place has, for the k of Table 7."""
    lines, values, without = [], {}, []
    for dataset in datasets:
        scores = profile(rows, dataset)
        if not scores.median:
            without.append(label_of(dataset))
            continue
        values[dataset] = {"place": scores.place, "median": scores.median}
        cells = [_step_down(scores, k) for k in marked_places(dataset)]
        lines.append((label_of(dataset), str(scores.place[-1]), *cells))
    missing = f"The rows of {', '.join(without)} have kept no scores by place."
    return Grid(
        title=title,
        headings=("data set", "features", *(f"place k → k + 1, {name} k ours" for name in WHICH)),
        lines=tuple(lines),
        values=values,
        notes=(
            "k is 2, 5 and 8 for tables, 10, 30 and 50 for others. Median over the examples as "
            "share of the first place, mean over seeds; of more than 200 features so many places "
            "are kept, and what lies between near ones is interpolated.",
            *((missing,) if without else ()),
        ),
    )


WHICH = ("first", "second", "third")


def _step_down(scores: Profile, k: int) -> str:
    upper, lower = share_at(scores, k), share_at(scores, k + 1)
    if not upper or lower is None:
        return NONE
    return f"{upper:.3f} → {lower:.3f} (−{100 * (1 - lower / upper):.0f} %)"


@dataclass(frozen=True, kw_only=True)
class Paired:
    """P@k of a method that compares k' pairs of features, over its seeds.

    `pairs` is the form of the pairs, and `label` names the method with it.
    """

    method: str
    pairs: str
    label: str
    facing: int
    ours: float | None
    sd: float | None
    count: int
    failed: int


FORMS = {"printed-anchor": "anchor pairs of P", "anchor": "anchor pairs of Q"}
"""What forms of pairs are called, where a method does not have one of its own."""


def facing_of(row: Result) -> int | None:
    """The number k' of pairs that the models of a row were trained with."""
    found = _settings(row).get("facing")
    return None if found is None else int(found)


def form_of(row: Result) -> str:
    """The form of the pairs that the models of a row were trained with, "" if it is not said."""
    return str(_settings(row).get("pairs", ""))


def _settings(row: Result) -> Mapping[str, Any]:
    return row.chosen or next((each.settings for each in row.candidates), {})


def paired_numbers(rows: Sequence[Result], dataset: str, key: str = ER) -> list[Paired]:
    """P@k against k' for each method trained with a number of pairs, by method, form and k'."""
    found: dict[tuple[str, str, int], list[Result]] = {}
    for row in rows:
        if row.dataset == dataset and (facing := facing_of(row)) is not None:
            found.setdefault((row.method, form_of(row), facing), []).append(row)
    numbers = []
    for (method, form, facing), own in sorted(found.items()):
        (summary,) = summarise(own, [key])
        mean = summary.means.get(key)
        numbers.append(
            Paired(
                method=method,
                pairs=form,
                label=f"{summary.label}, {FORMS.get(form, form)}" if form else summary.label,
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
        key: {(each.label, each.facing): each for each in paired_numbers(rows, dataset, key)}
        for key in (ER, STRONG)
    }
    labels = list(dict.fromkeys(label for label, _ in both[ER]))
    headings = ["k'"]
    for label in labels:
        headings += [f"{label}: ERAttack ours", "strong ours", "failed seeds"]
    lines = []
    for facing in sorted({facing for _, facing in both[ER]}):
        cells = [str(facing)]
        for label in labels:
            own = [both[key].get((label, facing)) for key in (ER, STRONG)]
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
        cells = [NONE if value is None else signed(value, None) for value in known]
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
            "graphs, and reports no changed predictions on tabular data and MNIST.",
        ),
    )
