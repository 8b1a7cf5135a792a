"""The papers' tables and figures by name: what each needs, and how its rows are told."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from r2et.core.naming import counted, nearest
from r2et.data.builtin import DATASETS
from r2et.evaluation.results import MSE, Result, Style
from r2et.experiments.config import CONTINUE, RETRAIN, SCRATCH, Recipe, load_recipe, recipe_names
from reproduction.best import best_grid
from reproduction.figure_numbers import (
    correlation_grid,
    correlations,
    facing_of,
    handlers_grid,
    maps_grid,
    paired_grid,
    places_grid,
    profile_grid,
    scatter_grid,
)
from reproduction.papers import (
    Grid,
    HandlersResult,
    Quantity,
    StepsResult,
    datasets_of,
    label_of,
    paper_table,
    rows_of,
    steps_grid,
    table_grid,
    thickness_agreement,
)

ALL = "all"
EVERY = tuple(name for name, entry in DATASETS.items() if entry.published)
TABULAR = tuple(name for name in EVERY if DATASETS[name].kind == "table")
NETWORKS = tuple(name for name in EVERY if DATASETS[name].kind == "network")
PAIRED = tuple(name for name in EVERY if DATASETS[name].pairs)
HANDLERS_ROWS = "handlers"
STEPS_ROWS = "steps"
SALIENCY = ("figure-3", "figure-5")  # the figures made of saliency maps
PAIRS_DATASET = "bank"
SCATTERED_MODEL = ("compas", "r2et")
SCATTERED_MODELS = (
    ("adult", "vanilla"),
    ("adult", "est-h"),
    ("adult", "r2et"),
    ("compas", "r2et"),
    ("mnist", "r2et"),
    ("abide", "r2et"),
    ("cnp", "r2et"),
)
"""The rows of Figure 4 from top to bottom; the last two data sets stand in for ADHD and BP."""
CORRELATED_MODELS = tuple(
    (dataset, method)
    for dataset in dict.fromkeys(dataset for dataset, _ in SCATTERED_MODELS)
    for method in ("vanilla", "est-h", "r2et")
)
"""Those of which the correlations are told, over all seeds."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Rows that a target is made of: a recipe, and which of its methods, all unless named.

    `by` is a setting whose every value is a row of its own, instead of being chosen among.
    """

    recipe: str
    methods: tuple[str, ...] | None = None
    by: str | None = None
    datasets: tuple[str, ...] | None = None
    """The data sets that it is needed for, all of the target unless named."""

    @property
    def name(self) -> str:
        """The name of the recipe, also of one that is a file."""
        return Path(self.recipe).stem if self.recipe.endswith(".toml") else self.recipe


SCHEMA_TOLD = {SCRATCH: "", RETRAIN: " of retraining at most", CONTINUE: " after those of Vanilla"}

Show = Callable[["Target", Sequence[Result], Sequence[str]], list[Grid]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A table or figure of the papers: what it shows, what it needs, and how it is told."""

    name: str
    title: str
    line: str
    needs: tuple[Need, ...]
    show: Show
    datasets: tuple[str, ...] = TABULAR
    quantities: tuple[Quantity, ...] = ()
    others: tuple[Quantity, ...] | None = None
    """The quantities of pictures and networks, where they are not those of tables."""
    handlers: bool = False
    """Whether the ways to keep predictions are compared on the Vanilla models."""
    steps: bool = False
    """Whether steps of the finite difference are compared, by models of their own."""

    @property
    def is_table(self) -> bool:
        """Whether it is a table of numbers, published ones beside ours."""
        return bool(self.quantities)

    def recipe_of(self, dataset: str) -> str:
        """The name of the first recipe that it needs for a data set."""
        needed = (need for need in self.needs if dataset in (need.datasets or self.datasets))
        return next(needed).name

    def quantities_of(self, dataset: str) -> tuple[Quantity, ...]:
        """The quantities of a data set, k in their headings being what it is there."""
        if dataset in TABULAR:
            return self.quantities
        chosen = self.quantities if self.others is None else self.others
        k = _packaged(self.needs[0].recipe, dataset).evaluation.k
        return tuple(
            replace(each, heading=each.heading.replace("P@8", f"P@{k}")) for each in chosen
        )


def targets_named(name: str) -> list[Target]:
    """The target of a name, or all of them in the order of the papers."""
    if name == ALL:
        return list(TARGETS.values())
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}: {nearest(name, [*TARGETS, ALL])}")
    return [TARGETS[name]]


def datasets_wanted(target: Target, only: Sequence[str] | None) -> list[str]:
    """The data sets of a target that are asked for; names it does not know are refused."""
    for name in only or ():
        if name not in EVERY:
            raise ValueError(f"unknown data set {name!r}: {nearest(name, EVERY)}")
    return [name for name in target.datasets if not only or name in only]


def grids_of(
    target: Target, rows: Sequence[Result], only: Sequence[str] | None = None
) -> list[Grid]:
    """A target as tables of text and values, those of the data sets that there are rows of."""
    have = set(datasets_of([row for row in rows if row.recipe in _recipes(target)]))
    datasets = [name for name in datasets_wanted(target, only) if name in have]
    return [grid for grid in target.show(target, rows, datasets) if grid.lines]


def _recipes(target: Target) -> set[str]:
    kept_apart = {HANDLERS_ROWS: target.handlers, STEPS_ROWS: target.steps}
    return {need.name for need in target.needs} | {name for name, has in kept_apart.items() if has}


@cache
def _packaged(name: str, dataset: str) -> Recipe:
    return load_recipe(name, dataset)


def settings_told(rows: Sequence[Result], recipe: str, dataset: str) -> str:
    """Recipe, seeds, k, radius, epochs, examples and explainer of some rows, as one line."""
    own = rows_of(rows, recipe, dataset)
    seeds = len({row.seed for row in own})
    told = [f"recipe {recipe}", counted(seeds, "seed")]
    measured = next((row for row in own if row.examples), None)
    if measured is not None:
        told.append(f"k = {measured.k}")
        told.append(_budget(measured))
    if recipe in recipe_names():
        plan = _packaged(recipe, dataset)
        epochs = plan.fit.epochs if plan.schema == SCRATCH else plan.retrain_epochs
        told.append(f"{epochs} epochs{SCHEMA_TOLD[plan.schema]}")
        told.append(f"{plan.evaluation.er.steps} attack steps")
    if measured is not None:
        told.append(f"{measured.examples} test examples")
        told += [f"explained by {measured.explainer}"] if measured.explainer else []
    if recipe in recipe_names():
        made_with = {row.recipe_digest for row in own if row.recipe_digest}
        if made_with - {plan.digest}:
            told.append("made with an earlier version of this recipe")
    return ", ".join(told)


def _budget(row: Result) -> str:
    """What an attack could spend, as the papers write it."""
    radius, norm = row.radii.attack, row.radii.norm
    if norm == "l2":
        return f"ε = {radius:g}"
    of_pixels = row.dataset in DATASETS and DATASETS[row.dataset].kind == "picture"
    size = f"{255 * radius:.4g}/255" if of_pixels else f"{radius:g}"
    return f"no number changed by more than {size} in total"


def _told(rows: Sequence[Result], dataset: str, recipes: Iterable[str]) -> tuple[str, ...]:
    known = [name for name in recipes if rows_of(rows, name, dataset)]
    return tuple(settings_told(rows, name, dataset) for name in known)


def _title(target: Target, dataset: str) -> str:
    return f"{target.title}: {label_of(dataset)}"


def _show_table(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    grids = []
    for dataset in datasets:
        table = paper_table(target.quantities_of(dataset), rows, dataset)
        told = _told(rows, dataset, table.recipes)
        grid = table_grid(table, _title(target, dataset), told)
        if target.name in ("table-3", "table-5"):
            grid = replace(grid, notes=(*grid.notes, thickness_agreement(table)))
        grids.append(grid)
    return grids


def _show_best(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    recipes = [need.name for need in target.needs]
    return [
        replace(
            best_grid(rows, dataset, recipes, _title(target, dataset)),
            settings=_told(rows, dataset, recipes),
        )
        for dataset in datasets
    ]


def _show_steps(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    return [
        steps_grid(row, _title(target, dataset))
        for dataset in datasets
        for row in rows_of(rows, STEPS_ROWS, dataset)
        if isinstance(row, StepsResult)
    ]


def _show_scatter(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    _, method = SCATTERED_MODEL
    return [
        replace(
            scatter_grid(rows, dataset, method, _title(target, dataset)),
            settings=_told(rows, dataset, ["paper"]),
        )
        for dataset in datasets
    ]


def _show_correlations(
    target: Target, rows: Sequence[Result], datasets: Sequence[str]
) -> list[Grid]:
    found = correlations(rows, [each for each in CORRELATED_MODELS if each[0] in datasets])
    told = tuple(dict.fromkeys(each for name in datasets for each in _told(rows, name, ["paper"])))
    return [replace(correlation_grid(found, target.title), settings=told)] if found else []


def _show_handlers(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    return [
        replace(
            handlers_grid(row.points, _title(target, dataset)),
            settings=(
                f"Vanilla of recipe paper, seed 0, k = {row.k}, {_budget(row)}, "
                f"{row.examples} test examples",
            ),
        )
        for dataset in datasets
        for row in rows_of(rows, HANDLERS_ROWS, dataset)
        if isinstance(row, HandlersResult)
    ]


def _show_places(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    return [
        replace(
            places_grid(rows, dataset, _title(target, dataset)),
            settings=_told(rows, dataset, ["paper"]),
        )
        for dataset in datasets
    ]


def _show_profile(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    told = tuple(dict.fromkeys(each for name in datasets for each in _told(rows, name, ["paper"])))
    grid = profile_grid(rows, datasets, target.title)
    return [replace(grid, settings=told)] if datasets else []


def _show_maps(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    return [
        replace(
            maps_grid(rows, dataset, _title(target, dataset), target.recipe_of(dataset)),
            settings=_told(rows, dataset, [target.recipe_of(dataset)]),
        )
        for dataset in datasets
    ]


def _show_pairs(target: Target, rows: Sequence[Result], datasets: Sequence[str]) -> list[Grid]:
    by_pairs = [need.name for need in target.needs if need.by]
    return [
        replace(
            paired_grid(rows, dataset, _title(target, dataset)),
            settings=_told(rows, dataset, by_pairs),
        )
        for dataset in datasets
        if any(facing_of(row) is not None for row in rows if row.dataset == dataset)
    ]


PAPER = (Need(recipe="paper"),)
AS_PUBLISHED = "as-published"
EACH_STEP = "paper-each-step"
WRITTEN = (*TABULAR, "mnist")  # what the papers' own lambdas were tried on
WRITTEN_ABOUT = (*TABULAR, "mnist", "cifar10")  # the papers' own data, not what stands in for them
OF_TABLE_2 = (
    "vanilla", "wd", "sp", "est-h", "at", "r2et-noh", "r2et-mm-noh", "r2et", "r2et-mm",
)  # fmt: skip
OF_TABLE_7 = tuple(name for name in OF_TABLE_2 if name != "at")
THICKNESS = (
    Quantity(heading="P@8 ERAttack", table="5", setting="ERAttack"),
    Quantity(
        heading="thickness",
        table="5",
        key="er_thickness",
        measure="thickness",
        setting="ERAttack",
        style="auc",
    ),
)

DFFOT_APART: tuple[tuple[str, str, Style], ...] = (
    ("dffot_of_flipped", "of those that flip", "number"),
    ("never_flips", "never flips, %", "share"),
    ("dffot_of_class_0", "predicted class 0", "number"),
    ("dffot_of_class_1", "predicted class 1", "number"),
)

TARGETS: dict[str, Target] = {
    each.name: each
    for each in (
        Target(
            name="table-1",
            title="Table 1",
            line="Share of the top 8 features kept under ERAttack and under the MSE attack, by our "
            "tuned recipe and by the papers to the letter.",
            needs=(
                *PAPER,
                Need(recipe=AS_PUBLISHED, datasets=WRITTEN),
                Need(recipe=EACH_STEP, datasets=("mnist",)),
            ),
            show=_show_table,
            datasets=EVERY,
            quantities=(
                Quantity(heading="P@8 ERAttack", table="1", setting="ERAttack"),
                Quantity(
                    heading="as written",
                    table="1",
                    setting="ERAttack",
                    recipe=AS_PUBLISHED,
                    beside=True,
                ),
                Quantity(heading="P@8 MSE attack", table="1", key=MSE, setting="MSE attack"),
                Quantity(
                    heading="as written, MSE",
                    table="1",
                    key=MSE,
                    setting="MSE attack",
                    recipe=AS_PUBLISHED,
                    beside=True,
                ),
            ),
        ),
        Target(
            name="table-2",
            title="Table 2",
            line="Networks trained with the gradient, their gradient, SmoothGrad and Integrated "
            "Gradients attacked by ERAttack; beside them, ours, networks trained on these.",
            needs=(
                *PAPER,
                Need(recipe="paper-smoothgrad", methods=OF_TABLE_2),
                Need(recipe="paper-ig", methods=OF_TABLE_2),
                Need(recipe="paper-smoothgrad-own", datasets=TABULAR),
                Need(recipe="paper-ig-own", datasets=TABULAR),
            ),
            show=_show_table,
            datasets=(*TABULAR, *PAIRED),
            quantities=(
                Quantity(heading="P@8 Grad", table="2", setting="Grad"),
                Quantity(
                    heading="P@8 SmoothGrad",
                    table="2",
                    recipe="paper-smoothgrad",
                    setting="SmoothGrad",
                ),
                Quantity(
                    heading="trained on SmoothGrad (not in the papers)",
                    table="2",
                    recipe="paper-smoothgrad-own",
                    setting="SmoothGrad",
                    beside=True,
                ),
                Quantity(heading="P@8 IG", table="2", recipe="paper-ig", setting="IG"),
                Quantity(
                    heading="trained on IG (not in the papers)",
                    table="2",
                    recipe="paper-ig-own",
                    setting="IG",
                    beside=True,
                ),
            ),
        ),
        Target(
            name="table-3",
            title="Table 3",
            line="P@8 beside the thickness of the data set, as the main text of the paper "
            "discusses them.",
            needs=PAPER,
            show=_show_table,
            quantities=THICKNESS,
        ),
        Target(
            name="table-5",
            title="Table 5",
            line="P@8 beside the thickness of the data set: share of pairs in order on the way to "
            "the attacked input, averaged over the examples.",
            needs=PAPER,
            show=_show_table,
            datasets=(*TABULAR, *PAIRED),
            quantities=THICKNESS,
        ),
        Target(
            name="table-6",
            title="Table 6",
            line="AUC of the attacked pairs of brain networks, before and after attacks that keep "
            "three predictions: of the pair and of each network.",
            needs=PAPER,
            show=_show_table,
            datasets=NETWORKS,
            quantities=tuple(
                Quantity(
                    heading=f"{measure} {attack}",
                    table="6",
                    key="before_auc" if measure == "cAUC" else f"{name}_attacked_auc",
                    measure=measure,
                    setting=attack,
                    style="auc",
                )
                for name, attack in (("er", "ERAttack"), ("mse", "MSE attack"))
                for measure in ("cAUC", "aAUC")
            ),
        ),
        Target(
            name="table-7",
            title="Table 7",
            line="P@k for k = 2, 5 and 8 (10, 30 and 50 for pictures and networks) under ERAttack, "
            "models trained and selected for each k.",
            needs=(
                *PAPER,
                Need(recipe="paper-k2", datasets=TABULAR),
                Need(recipe="paper-k5", datasets=TABULAR),
                Need(recipe="paper-k10", methods=OF_TABLE_7, datasets=PAIRED),
                Need(recipe="paper-k30", methods=OF_TABLE_7, datasets=PAIRED),
            ),
            show=_show_table,
            datasets=(*TABULAR, *PAIRED),
            quantities=(
                Quantity(heading="P@2", table="7", recipe="paper-k2", setting="k=2"),
                Quantity(heading="P@5", table="7", recipe="paper-k5", setting="k=5"),
                Quantity(heading="P@8", table="7", setting="k=8"),
            ),
            others=(
                Quantity(heading="P@10", table="7", recipe="paper-k10", setting="k=10"),
                Quantity(heading="P@30", table="7", recipe="paper-k30", setting="k=30"),
                Quantity(heading="P@50", table="7", setting="k=50"),
            ),
        ),
        Target(
            name="table-8",
            title="Table 8",
            line="P@8 under ERAttack of networks trained from scratch, and of networks that went "
            "on from the Vanilla model for at most 10 epochs.",
            needs=(*PAPER, Need(recipe="paper-retrain")),
            show=_show_table,
            quantities=(
                Quantity(heading="P@8 from scratch", table="8", setting="from scratch"),
                Quantity(
                    heading="P@8 retrained", table="8", recipe="paper-retrain", setting="retrained"
                ),
            ),
        ),
        Target(
            name="table-9",
            title="Table 9",
            line="Faithfulness of the explanations: DFFOT and SUFF the lower, COMP the higher the "
            "better.",
            needs=PAPER,
            show=_show_table,
            datasets=(*TABULAR, *PAIRED),
            quantities=(
                Quantity(
                    heading="DFFOT",
                    table="9",
                    key="dffot",
                    measure="DFFOT",
                    style="number",
                    better="lower",
                ),
                *(
                    Quantity(
                        heading=heading,
                        table="9",
                        key=key,
                        measure="DFFOT",
                        style=style,
                        better="lower",
                        beside=True,
                    )
                    for key, heading, style in DFFOT_APART
                ),
                Quantity(heading="COMP", table="9", key="comp", measure="COMP", style="number"),
                Quantity(
                    heading="SUFF",
                    table="9",
                    key="suff",
                    measure="SUFF",
                    style="number",
                    better="lower",
                ),
            ),
        ),
        Target(
            name="figure-2",
            title="Figure 2",
            line="ERAttack step of the first flip against thickness and Hessian norm, R2ET on "
            "COMPAS.",
            needs=(Need(recipe="paper", methods=("r2et",)),),
            show=_show_scatter,
            datasets=("compas",),
        ),
        Target(
            name="figure-3",
            title="Figure 3",
            line="Saliency maps of one picture before and after ERAttack, every method, the top k "
            "marked: of MNIST 50, of CIFAR-10 100.",
            needs=(
                Need(recipe="paper", datasets=("mnist",)),
                Need(recipe="paper-k100", datasets=("cifar10",)),
            ),
            show=_show_maps,
            datasets=("mnist", "cifar10"),
        ),
        Target(
            name="figure-4",
            title="Figure 4",
            line="The manipulation epoch against thickness by adversarial samples, Hessian norm, "
            "and thickness by the mean and the minimum of Gaussian samples.",
            needs=(Need(recipe="paper", methods=("est-h", "r2et")),),
            show=_show_correlations,
            datasets=tuple(dict.fromkeys(dataset for dataset, _ in SCATTERED_MODELS)),
        ),
        Target(
            name="figure-5",
            title="Figure 5",
            line="Saliency maps of a pair before and after ERAttack, every method, the top k "
            "marked.",
            needs=PAPER,
            show=_show_maps,
            datasets=PAIRED,
        ),
        Target(
            name="figure-6",
            title="Figure 6",
            line="Ways to keep the predictions during an attack: P@k against changed predictions "
            "on Vanilla.",
            needs=(Need(recipe="paper", methods=()),),
            show=_show_handlers,
            datasets=(*TABULAR, *PAIRED),
            handlers=True,
        ),
        Target(
            name="figure-7",
            title="Figure 7",
            line="P@k against clean and attacked AUC of all methods, with the Pareto front.",
            needs=PAPER,
            show=_show_places,
            datasets=(*TABULAR, *PAIRED),
        ),
        Target(
            name="figure-8",
            title="Figure 8",
            line="Gradient magnitudes of Vanilla in falling order.",
            needs=(Need(recipe="paper", methods=()),),
            show=_show_profile,
            datasets=EVERY,
        ),
        Target(
            name="figure-9",
            title="Figure 9",
            line="P@8 against the number k' of compared pairs, R2ET\\H with its anchor pairs and "
            "R2ET-mm\\H, on Bank.",
            needs=(
                Need(recipe="paper-pairs", by="facing"),
                Need(recipe="paper-pairs-q", by="facing"),
                *PAPER,
            ),
            show=_show_pairs,
            datasets=(PAIRS_DATASET,),
        ),
        Target(
            name="best",
            title="Published best",
            line="The best number of Table 1 under ERAttack beside the best of ours, chosen on "
            "validation data, and what stands against it.",
            needs=(*PAPER, Need(recipe="ours", datasets=(*TABULAR, "cifar10"))),
            show=_show_best,
            datasets=WRITTEN_ABOUT,
        ),
        Target(
            name="difference-step",
            title="Difference step",
            line="The step of the finite difference in the curvature of Est-H and R2ET: how far it "
            "tells the exact norm, and what is trained with it. On validation data.",
            needs=(),
            show=_show_steps,
            datasets=("adult", "compas"),
            steps=True,
        ),
    )
}
