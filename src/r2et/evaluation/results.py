"""Results: one typed record for each model that was measured, and the list of all measures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from r2et.core.files import append_rows, read_rows
from r2et.core.naming import nearest
from r2et.core.settings import changed, settings_from
from r2et.evaluation.decisions import DecisionRecord
from r2et.metrics import METRICS
from r2et.training.settings import Candidate

Style = Literal["auc", "percent", "share", "number", "count"]
R = TypeVar("R", bound="Result")

ACCURACY = "Accuracy"
ATTACKED = "Reasons kept under attack, %"
MARGIN = "Margin"
CONTROLS = "What would expose a hollow number"
CHANGED = "changed_predictions"
ER, MSE, STRONG = "er_precision", "mse_precision", "strong_precision"
OLD_KEYS = ("recipe digest", "selected by")  # of rows of the first edition


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
class Measure:
    """A number of a result: what it is called and means, how it is shown, how it is computed.

    Measures with a `group` are columns of the main table. Those with a `metric`, an entry of
    METRICS, are its mean over the examples, of those with an `attack` on what that attack found.
    All others are computed by `evaluate` itself. A row that has the measure `beside` it and not
    this one had nothing to measure, and `none` says what that means.
    """

    key: str
    heading: str
    line: str
    style: Style
    better: Literal["higher", "lower", "none"]
    group: str = ""
    metric: str = ""
    attack: str = ""
    beside: str = ""
    none: str = ""

    def show(self, value: float) -> str:
        """A value as text.

        >>> MEASURES["clean_auc"].show(0.88158), MEASURES["er_precision"].show(0.66700)
        ('0.8816', '66.7')
        """
        return written(value, self.style)

    def show_sd(self, value: float) -> str:
        """A spread as text; that of a count is not whole."""
        return f"{value:.1f}" if self.style == "count" else self.show(value)


ATTACK_NAMES = {
    "er": "ERAttack",
    "mse": "MSE attack",
    "strong": "strong attack",
    "applicant": "actionable moves",
}
UNDER_ATTACK = {
    "precision": "precision@k",
    "pearson": "pearson",
    "mse": "mse",
    "kendall": "kendall",
    "spearman": "spearman",
    "changed": "sen",
    "thickness": "thickness",
}
"""What is measured of every attack: what follows the attack in a key, and the metric."""

_BY_HAND = (
    Measure(
        key="clean_auc",
        heading="AUC",
        group=ACCURACY,
        line="Area under the ROC curve on the whole test part, without attack.",
        style="auc",
        better="higher",
    ),
    Measure(
        key="accuracy",
        heading="Accuracy",
        group=ACCURACY,
        line="Of three or more classes, the share of the test part that is told right.",
        style="auc",
        better="higher",
    ),
    Measure(
        key="within_class_auc",
        heading="AUC within classes",
        group=ACCURACY,
        line="Of pairs, the mean of the AUCs among pairs whose first item is of one class: to "
        "know the class of the second item alone gives one half.",
        style="auc",
        better="higher",
    ),
    Measure(
        key=ER,
        heading="P@k ERAttack",
        group=ATTACKED,
        line="Share of the top k reasons that survive ERAttack, the attack of the published "
        "numbers; weak on networks made of straight pieces.",
        style="percent",
        better="higher",
        metric="precision@k",
        attack="er",
    ),
    Measure(
        key=MSE,
        heading="P@k MSE",
        group=ATTACKED,
        line="Share of the top k reasons that survive the attack that moves the whole "
        "explanation as far as it can.",
        style="percent",
        better="higher",
        metric="precision@k",
        attack="mse",
    ),
    Measure(
        key=STRONG,
        heading="P@k strong",
        group=ATTACKED,
        line="Share of the top k reasons that survive the worst of all attacks tried: an upper "
        "bound on what a still better attacker would leave.",
        style="percent",
        better="higher",
        metric="precision@k",
        attack="strong",
    ),
    Measure(
        key="applicant_precision",
        heading="P@k actionable",
        group=ATTACKED,
        line="Share of the top k reasons that survive changes a person could make: valid "
        "categories, whole numbers, nothing that is fixed.",
        style="percent",
        better="higher",
        metric="precision@k",
        attack="applicant",
    ),
    Measure(
        key="strong_project_one_hot_precision",
        heading="P@k strong, one-hot projected",
        line="Share of the top k reasons that survive a strong attack on the explanation "
        "without the directions in which one-hot columns cannot vary.",
        style="percent",
        better="higher",
    ),
    Measure(
        key="noise_precision",
        heading="P@k noise",
        group=ATTACKED,
        line="Share of the top k reasons that survive random changes as large as an attack's, "
        "without any attack.",
        style="percent",
        better="higher",
    ),
    Measure(
        key="er_last_precision",
        heading="P@k ERAttack, last",
        group=ATTACKED,
        line="Share of the top k reasons left where ERAttack's walk ended, not at its best "
        "input, whatever is predicted there.",
        style="percent",
        better="higher",
    ),
    Measure(
        key="er_thickness",
        heading=METRICS["thickness"].label,
        group=MARGIN,
        line="Share of pairs of a top k and another feature that stay in order on the way to "
        "the ERAttack input, averaged along the way.",
        style="number",
        better="higher",
        metric="thickness",
        attack="er",
    ),
    Measure(
        key="gaussian_thickness",
        heading="Thickness, Gaussian",
        line="Share of pairs of a top k and another feature that stay in order on the way to "
        "random inputs nearby.",
        style="number",
        better="higher",
    ),
    Measure(
        key="least_gaussian_thickness",
        heading="Least thickness, Gaussian",
        line="The same on the way to the one of the random inputs where it is least.",
        style="number",
        better="higher",
    ),
    Measure(
        key="hessian_norm",
        heading=METRICS["hessian norm"].label,
        line=METRICS["hessian norm"].line,
        style="number",
        better="lower",
        metric="hessian norm",
    ),
    *(
        Measure(
            key=key,
            heading=METRICS[key].label,
            line=METRICS[key].line,
            style="number",
            better=METRICS[key].better,
            metric=key,
        )
        for key in ("dffot", "comp", "suff")
    ),
    Measure(
        key="never_flips",
        heading="Never flips, %",
        line="Share of examples whose predicted class no removal of top features changes: DFFOT "
        "counts them as 1.",
        style="share",
        better="none",
    ),
    Measure(
        key="dffot_of_flipped",
        heading="DFFOT of those that flip",
        line="DFFOT of the examples whose predicted class some removal changes.",
        style="number",
        better="lower",
    ),
    *(
        Measure(
            key=f"dffot_of_class_{number}",
            heading=f"DFFOT, class {number}",
            line=f"Of two classes, DFFOT of the examples that are predicted to be of class "
            f"{number}.",
            style="number",
            better="lower",
        )
        for number in (0, 1)
    ),
    Measure(
        key="before_auc",
        heading="AUC, before",
        line="Area under the ROC curve on the examples that are attacked, before any attack.",
        style="auc",
        better="higher",
    ),
    Measure(
        key="saliency_norm",
        heading=METRICS["saliency norm"].label,
        group=CONTROLS,
        line="Size of the explanations: gaps between scores also grow when all gradients do, "
        "and then decisions flip more easily.",
        style="number",
        better="none",
        metric="saliency norm",
    ),
    Measure(
        key="flippable",
        heading="Flippable, %",
        group=CONTROLS,
        line="Share of decisions whose predicted class a small change can turn over.",
        style="share",
        better="lower",
    ),
    Measure(
        key="off_data_share",
        heading="Off-data share, %",
        group=CONTROLS,
        line="Share of the squared gradient in directions in which real data cannot vary: "
        "stability bought there is worth nothing.",
        style="share",
        better="lower",
    ),
    Measure(
        key="exchange_agreement",
        heading=METRICS["exchange agreement"].label,
        group=CONTROLS,
        line="How far the gradients order the exchanges of categories that a person could make as "
        "the score does: 1 is the same order, 0 none, and then the reasons say nothing about "
        "them.",
        style="number",
        better="higher",
        metric="exchange agreement",
    ),
    Measure(
        key="exchange_size",
        heading=METRICS["exchange size"].label,
        group=CONTROLS,
        line="What the gradients say that exchanges of categories do against what these do, the "
        "smaller over the larger: 1 is equal, and near 0 the gradients are of something else.",
        style="number",
        better="higher",
        metric="exchange size",
    ),
    Measure(
        key="without_exchanges",
        heading="Without exchanges, %",
        line="Share of examples that have no exchanges of categories to order.",
        style="share",
        better="none",
    ),
    Measure(
        key="distinct_sets",
        heading="Distinct sets",
        group=CONTROLS,
        line="How many different top k sets the attacked decisions have before any attack: one "
        "means that everybody is given the same reasons.",
        style="count",
        better="none",
    ),
    Measure(
        key="overlap",
        heading="Shared, %",
        line="Share of the top k that two random people have in common: O over all of them.",
        style="share",
        better="none",
    ),
    Measure(
        key="class_overlap",
        heading="Shared in class, %",
        group=CONTROLS,
        line="Share of the top k that two random people of one predicted class have in common: a "
        "list that is the same for everybody reaches 100.",
        style="share",
        better="none",
    ),
    Measure(
        key="strong_kappa",
        heading="Kappa strong",
        group=CONTROLS,
        line="What the strong attack leaves beyond what people of one class share anyway, (S - O) "
        "/ (1 - O): below 0 it displaces more than another person in one's place would. Missing "
        "where more than 98 % is shared: there are no individual reasons.",
        style="number",
        better="higher",
        beside="class_overlap",
        none="no individual reasons",
    ),
    Measure(
        key="tie",
        heading="Ties, %",
        group=CONTROLS,
        line="Share of explanations whose k-th place is a tie, so that their top k is arbitrary.",
        style="share",
        better="lower",
        metric="tie",
    ),
    Measure(
        key=CHANGED,
        heading="Changed, %",
        group=CONTROLS,
        line="Share of predicted classes that an attack changed, the largest of the three "
        "attacks: zero means that all P@k are about explanations alone.",
        style="share",
        better="lower",
    ),
    Measure(
        key="er_last_changed",
        heading="Changed, last, %",
        group=CONTROLS,
        line="Share of predicted classes that had changed where ERAttack's walk ended: such "
        "inputs count for the P@k of the last step, and for no other.",
        style="share",
        better="lower",
    ),
    Measure(
        key="last_doubling",
        heading="Last doubling",
        line="How much of P@k the last doubling of the strong attack's effort took.",
        style="percent",
        better="none",
    ),
)


def _under_attack() -> Iterable[Measure]:
    """What is measured of every attack; those that a table shows are written out above."""
    for attack, name in ATTACK_NAMES.items():
        for ending, metric in UNDER_ATTACK.items():
            yield Measure(
                key=f"{attack}_{ending}",
                heading=f"{METRICS[metric].label}, {name}",
                line=METRICS[metric].line,
                style="number",
                better=METRICS[metric].better,
                metric=metric,
                attack=attack,
            )
        yield Measure(
            key=f"{attack}_attacked_auc",
            heading=f"AUC, {name}",
            line="Area under the ROC curve on the attacked examples.",
            style="auc",
            better="higher",
        )
    for attack in ("er", "mse"):
        yield Measure(
            key=f"{attack}_last_precision",
            heading=f"P@k {ATTACK_NAMES[attack]}, last",
            line="Share of the top k reasons left where the attack's walk ended.",
            style="percent",
            better="higher",
        )
        yield Measure(
            key=f"{attack}_last_changed",
            heading=f"Changed, last, {ATTACK_NAMES[attack]}, %",
            line="Share of predicted classes that had changed where the attack's walk ended.",
            style="share",
            better="lower",
        )


MEASURES: dict[str, Measure] = {measure.key: measure for measure in (*_under_attack(), *_BY_HAND)}
"""Every number that a result may hold, by its key; a new one is an entry here."""

COLUMNS = tuple(measure for measure in _BY_HAND if measure.group)
"""The measures of the main table."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Settings with which no model could be trained, and why."""

    settings: dict[str, Any]
    problem: str


@dataclass(frozen=True, kw_only=True)
class Radii:
    """How far inputs could change: under attack, in told decisions, to count flippable ones."""

    attack: float = 0.0
    decision: float = 0.0
    flippable: float = 0.0
    norm: str = "l2"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Scores by rank as shares of the largest: median and middle half over the examples.

    `place` are the ranks, counted from 1, that the scores are of; all of them if empty.
    """

    place: tuple[int, ...] = ()
    median: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeptCurve:
    """Mean P@k against the radius, and the share of examples whose top k is broken within it."""

    epsilon: tuple[float, ...] = ()
    strong: tuple[float, ...] = ()
    broken: tuple[float, ...] = ()
    er: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """When ERAttack first displaces a reason, and what foretells it, example by example.

    `correlation` (Spearman's) and `pearson` are those of the first flip with each measure.
    """

    first_flip: tuple[int, ...] = ()
    thickness: tuple[float, ...] = ()
    gaussian_thickness: tuple[float, ...] = ()
    least_gaussian_thickness: tuple[float, ...] = ()
    hessian_norm: tuple[float, ...] = ()
    never_flipped: float | None = None
    last_step: int = 0
    correlation: dict[str, float] = field(default_factory=dict)
    pearson: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Series:
    """What the figures of a result are drawn from; what was not measured is empty."""

    profile: Profile = field(default_factory=Profile)
    curve: KeptCurve = field(default_factory=KeptCurve)
    scatter: Scatter = field(default_factory=Scatter)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What the test part shows of a model: means, intervals, series for figures, told decisions.

    `change_buys` says what a change of length one buys a person; `alarms` are doubts about the
    attacks, `preflight` about the model.
    """

    k: int
    examples: int = 0
    features: int = 0
    radii: Radii = field(default_factory=Radii)
    measures: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    series: Series = field(default_factory=Series)
    decisions: tuple[DecisionRecord, ...] = ()
    change_buys: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a number that no measure stands for: no table would show it."""
        for key in (*self.measures, *self.intervals):
            if key not in MEASURES:
                raise ValueError(f"there is no measure {key!r}: {nearest(key, MEASURES)}")

    @property
    def numbers(self) -> dict[str, float]:
        """Its measures, and the largest share of predictions that any attack changed."""
        changed = [value for key, value in self.measures.items() if MEASURES[key].metric == "sen"]
        return self.measures | ({CHANGED: max(changed)} if changed else {})


@dataclass(frozen=True, kw_only=True)
class Result(Evaluation):
    """A row: what became of one method on one data set and seed, and what the test part shows.

    `recipe_digest`, `data` and `code` are fingerprints of what it was made with, `key` is that of
    the row. Of the `candidates` the one `chosen` had the highest P@k under the attack `selected_by`
    among those whose AUC reached the `floor`, all on validation data; its judgement is `valid`.
    Without one it has not `passed`, and nothing was measured. `stand_in` says for which data these
    stand in. Of a row chosen among several methods, `variant` is the label of its own method.
    """

    key: str
    dataset: str
    data: str
    recipe: str
    recipe_digest: str = ""
    schema: str = "scratch"
    explainer: str = ""
    explainer_settings: dict[str, Any] = field(default_factory=dict)
    seed: int
    method: str
    label: str
    version: str = ""
    code: str = ""
    candidates: tuple[Candidate, ...] = ()
    failures: tuple[Failure, ...] = ()
    floor: float | None = None
    selected_by: str = ""
    stand_in: str = ""
    passed: bool = True
    chosen: dict[str, Any] | None = None
    valid: Candidate | None = None
    variant: str = ""


def read_results(path: Path) -> list[Result]:
    """The results of a JSON-lines file; a line cut short by a crash is passed over."""
    return [
        result_from(Result, row, f"row {number} of {path}")
        for number, row in enumerate(read_rows(path), 1)
    ]


def result_from(kind: type[R], row: Mapping[str, Any], where: str) -> R:
    """The result that a row of a file states, refused if it is one of an earlier version."""
    if any(key in row for key in OLD_KEYS):
        raise ValueError(
            f"{where} was written by an earlier version of r2et, whose rows are not read any more: "
            "use that version, or run again into another folder."
        )
    return settings_from(kind, row, where)


def append_results(path: Path, results: Iterable[Result]) -> None:
    """Add results to a JSON-lines file so that each is there whole or not at all."""
    append_rows(path, [changed(result) for result in results])
