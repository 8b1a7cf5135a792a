"""Running what is missing of the papers' tables and figures, and keeping its rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from r2et.attacks.comparison import HandlingPoint, compare_handling
from r2et.attacks.pgd import WalkBudget
from r2et.core.exact import exact_copy
from r2et.core.naming import nearest
from r2et.core.settings import changed
from r2et.data.builtin import load as load_embedded
from r2et.data.dataset import Dataset, Split
from r2et.data.roots import MissingDataError
from r2et.evaluation.evaluate import task_of
from r2et.evaluation.protocol import DTYPES
from r2et.evaluation.results import (
    MEASURES,
    KeptCurve,
    Profile,
    Radii,
    Result,
    Series,
    append_results,
    read_results,
    result_from,
)
from r2et.experiments.attack_records import AttackRunSettings
from r2et.experiments.attack_run import compared_handling
from r2et.experiments.config import Recipe, load_recipe
from r2et.experiments.execution import OnProgress, Plan, Progress, sweep, unit_of
from r2et.experiments.runner import (
    LABELS,
    code_digest,
    controls,
    fingerprint,
    measured_explanation,
    row_key,
)
from r2et.experiments.tables import VANILLA
from r2et.explainers import predicted
from r2et.methods import METHODS
from r2et.training.checkpoint import load as load_model
from reproduction.difference_step import steps_row
from reproduction.figure_numbers import CORRELATED, facing_of
from reproduction.papers import HandlersResult, known_row
from reproduction.targets import (
    HANDLERS_ROWS,
    SALIENCY,
    SCATTERED_MODEL,
    SCATTERED_MODELS,
    TARGETS,
    Target,
    datasets_wanted,
)

HANDLERS_EXAMPLES = 300
STEP_SHARES = (0.05, 0.2, 0.5)  # of the radius, the steps that constraint handling is compared at
FIGURES_FROM = "paper"  # the recipe whose series are drawn
CURVES_FROM = "converged"  # the recipe of whose curves the documents print points
MAPPED = {
    (TARGETS[name].recipe_of(dataset), dataset)
    for name in SALIENCY
    for dataset in TARGETS[name].datasets
}
"""The recipe and the data set of each saliency map that is drawn."""
WITHOUT_DOTS: dict[str, Any] = dict.fromkeys(("first_flip", *CORRELATED), ())
KEPT_MEASURES = {
    key
    for key, measure in MEASURES.items()
    if measure.group or not (measure.metric and measure.attack) or measure.metric == "sen"
}
"""Of the many numbers about an attack only those that a table or a figure shows."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One recipe to run on one data set, and the keys of its rows."""

    name: str
    """By which the recipe is loaded."""
    dataset: str
    recipe: Recipe
    keys: tuple[str, ...]
    whole: bool
    """Whether the recipe is as its file has it, so that it may be swept by its name."""


def reproduce(
    targets: Sequence[Target],
    out: Path,
    *,
    seeds: int | None = None,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    jobs: int = 1,
    backend: str = "joblib",
    address: str | None = None,
    load: Callable[[str], Dataset] = load_embedded,
    on_progress: OnProgress = lambda progress: None,
    on_missing: Callable[[MissingDataError], None] = lambda problem: None,
) -> list[Result]:
    """The rows that the targets are made of, after whatever is missing in `out` has been run.

    Rows of `out` that the targets do not need are left out. Without anything missing no model is
    loaded, let alone trained. Data sets that are not at hand are left out, each told
    `on_missing`, unless they were asked for by `only`. `methods` are those wanted besides Vanilla
    and the control, all that the targets need unless given.
    """
    for method in methods or ():
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}: {nearest(method, METHODS)}")
    wanted = {target.name: datasets_wanted(target, only) for target in targets}
    if not any(wanted.values()):
        about = ", ".join(dict.fromkeys(name for each in targets for name in each.datasets))
        raise ValueError(f"{targets[0].name} is about {about}: ask for one of these with --only.")
    known: dict[str, Dataset] = {}

    def loaded(name: str) -> Dataset:
        if name not in known:
            known[name] = load(name)
        return known[name]

    for name in dict.fromkeys(name for names in wanted.values() for name in names):
        try:
            loaded(name)
        except MissingDataError as problem:
            if only:
                raise
            on_missing(problem)
            for names in wanted.values():
                names[:] = [each for each in names if each != name]
    chosen = None if methods is None else {*methods}
    parts = list(_parts(targets, wanted, seeds, loaded, chosen))
    results = out / "results.jsonl"
    rows = _by_key(read_results(results))
    missing = [part for part in parts if any(key not in rows for key in part.keys)]
    calls = _calls(missing)
    for number, (recipe, only_these) in enumerate(calls, 1):
        name = recipe if isinstance(recipe, str) else recipe.name
        place = f"{name}, {number} of {len(calls)}" if len(calls) > 1 else name
        sweep(
            recipe,
            out,
            backend=backend,
            address=address,
            jobs=jobs,
            seeds=seeds,
            only=only_these,
            load=load,
            on_progress=partial(_tell, on_progress, place),
        )
    if missing:
        rows = _by_key(read_results(results))
    found = [rows[key] for key in dict.fromkeys(key for part in parts for key in part.keys)]
    compared = [
        (each.needs[0].recipe, name)
        for each in targets
        if each.handlers
        for name in wanted[each.name]
    ]
    for number, (recipe, name) in enumerate(compared):
        what = f"ways to keep predictions, {name}"
        tell = partial(on_progress, Progress(done=number, total=len(compared), what=what))
        found.append(handlers_row(loaded(name), recipe, out, on_start=tell))
    stepped = [name for each in targets if each.steps for name in wanted[each.name]]
    for number, name in enumerate(stepped):
        what = f"steps of the finite difference, {name}"
        tell = partial(on_progress, Progress(done=number, total=len(stepped), what=what))
        found.append(steps_row(loaded(name), out, on_start=tell))
    return in_order(found)


def identity(row: Result) -> tuple[Any, ...]:
    """What a row is the only one of in a recipe: data set, seed, method and number of pairs."""
    return row.dataset, row.seed, row.method, facing_of(row) or 0


def in_order(rows: Sequence[Result]) -> list[Result]:
    """The rows by recipe, data set, seed and method, in the order in which methods are listed.

    Of equals the first counts, so that the same rows always make the same table.
    """
    places = {name: number for number, name in enumerate(LABELS)}
    last = len(places)

    def place(row: Result) -> tuple[Any, ...]:
        dataset, seed, method, facing = identity(row)
        return row.recipe, dataset, seed, places.get(method, last), method, facing

    return sorted(rows, key=place)


def _tell(on_progress: OnProgress, place: str, progress: Progress) -> None:
    on_progress(replace(progress, what=f"{place}: {progress.what}"))


def _by_key(rows: Iterable[Result]) -> dict[str, Result]:
    return {row.key: row for row in rows}


def _parts(
    targets: Sequence[Target],
    wanted: Mapping[str, Sequence[str]],
    seeds: int | None,
    load: Callable[[str], Dataset],
    chosen: set[str] | None,
) -> Iterator[Part]:
    """What the targets need of the `chosen` methods: a part for each recipe and data set."""
    needs: dict[tuple[str, str | None, str], set[str] | None] = {}
    for target in targets:
        for need in target.needs:
            for dataset in wanted[target.name]:
                if need.datasets is not None and dataset not in need.datasets:
                    continue
                where = (need.recipe, need.by, dataset)
                before = needs.get(where, set())
                methods = None if need.methods is None or before is None else {*need.methods}
                needs[where] = None if methods is None or before is None else before | methods
    for (name, by, dataset), methods in needs.items():
        recipe = load_recipe(name, dataset)
        for own in [recipe] if by is None else split_by(recipe, by):
            plans = [
                each
                for each in own.methods
                if _is_needed(each.name, methods) and _is_needed(each.name, chosen)
            ]
            own = replace(own, datasets=(dataset,), methods=tuple(plans))
            yield Part(
                name=name,
                dataset=dataset,
                recipe=own,
                keys=tuple(_keys(load(dataset), own, own.seeds if seeds is None else seeds)),
                whole=by is None
                and plans == list(recipe.methods)
                # One that is for this data set alone may have no file without its name.
                and len(recipe.datasets) > 1
                and dataset in load_recipe(name, "").datasets,
            )


def _is_needed(method: str, methods: set[str] | None) -> bool:
    return methods is None or method == VANILLA or method in methods


def _keys(dataset: Dataset, recipe: Recipe, seeds: int) -> Iterator[str]:
    for seed in range(seeds):
        for plan in (*controls(recipe), *recipe.methods):
            yield row_key(dataset, recipe, seed, plan)


def _calls(parts: Sequence[Part]) -> list[tuple[Recipe | str, list[str]]]:
    """The sweeps to run: whole recipes over their data sets at once, others one by one."""
    by_name: dict[str, list[str]] = {}
    for part in parts:
        if part.whole:
            by_name.setdefault(part.name, []).append(part.dataset)
    return [
        *by_name.items(),
        *((part.recipe, [part.dataset]) for part in parts if not part.whole),
    ]


def split_by(recipe: Recipe, setting: str) -> list[Recipe]:
    """A recipe for each value of a setting, in which methods that have it have this value only."""
    values = dict.fromkeys(
        settings[setting]
        for plan in recipe.methods
        for settings in plan.grid
        if setting in settings
    )
    if not values:
        raise ValueError(f"no method of recipe {recipe.name!r} has a setting {setting!r}.")
    return [
        replace(
            recipe,
            methods=tuple(
                replace(plan, grid=grid)
                for plan in recipe.methods
                if (grid := tuple(each for each in plan.grid if each.get(setting, value) == value))
            ),
        )
        for value in values
    ]


def compared_by(
    model: nn.Module, split: Split, recipe: Recipe, examples: int
) -> list[HandlingPoint]:
    """Every way to keep predictions at several step sizes, in the perturbation set of a recipe."""
    evaluation = recipe.evaluation
    task = task_of(split, evaluation, measured_explanation(split.dataset, recipe))
    model = exact_copy(model, DTYPES[evaluation.dtype])
    x = split.test.x[: min(examples, evaluation.examples)].to(DTYPES[evaluation.dtype])
    return compare_handling(
        model,
        x,
        predicted(model, x),
        k=evaluation.k,
        explainer=task.explain,
        perturbation=task.perturbation,
        budget=WalkBudget(steps=evaluation.er.steps, record_every=evaluation.record_every),
        step_sizes=[share * evaluation.er.radius for share in STEP_SHARES],
        outputs=task.outputs,
    )


def handlers_row(
    dataset: Dataset,
    recipe_name: str,
    out: Path,
    on_start: Callable[[], None] = lambda: None,
) -> Result:
    """Every way to keep predictions, compared on a recipe's Vanilla model of the first seed: a row.

    Kept in out/handlers.jsonl and not computed again.
    """
    recipe = load_recipe(recipe_name, dataset.name)
    settings = AttackRunSettings(
        attack="er",
        k=recipe.evaluation.k,
        epsilons=(recipe.evaluation.er.radius,),
        examples=min(HANDLERS_EXAMPLES, recipe.evaluation.examples),
    )
    key = fingerprint(HANDLERS_ROWS, dataset.digest, recipe.digest, asdict(settings))
    path = out / "handlers.jsonl"
    if (known := known_row(HandlersResult, path, key)) is not None:
        return known
    on_start()
    plan = Plan(dataset=dataset, recipe=recipe, seeds=1)
    unit = unit_of(plan, 0, recipe.methods[0], out)
    model, _ = load_model(unit.path(recipe.methods[0].grid[0]))
    split = dataset.split(0)
    points = (
        compared_handling(model, split, settings)
        if dataset.tabular
        else compared_by(model, split, recipe, HANDLERS_EXAMPLES)
    )
    row = HandlersResult(
        key=key,
        recipe=HANDLERS_ROWS,
        recipe_digest=recipe.digest,
        dataset=dataset.name,
        data=dataset.digest,
        seed=0,
        method=VANILLA,
        label="Vanilla",
        code=code_digest(),
        k=settings.k,
        examples=min(settings.examples, len(split.test)),
        radii=Radii(attack=max(settings.epsilons), norm=recipe.evaluation.norm),
        points=tuple(points),
    )
    append_results(path, [row])
    return row


def stripped(row: Result) -> Result:
    """A row without told decisions and long series, numbers to six places; again it stays so.

    What tables and figures show is kept: scores by place of Vanilla, dots of the models of the
    scatter plots, and the decisions whose saliency maps are drawn.
    """
    first, shown = row.seed == 0, row.recipe == FIGURES_FROM
    series = Series()
    if shown and row.method == VANILLA:
        profile = row.series.profile
        series = Series(profile=Profile(place=profile.place, median=profile.median))
    if shown and (scatter := row.series.scatter).correlation:
        dots = first and (row.dataset, row.method) in (SCATTERED_MODEL, *SCATTERED_MODELS)
        series = replace(series, scatter=scatter if dots else replace(scatter, **WITHOUT_DOTS))
    if row.recipe == CURVES_FROM:
        curve = row.series.curve
        series = Series(curve=KeptCurve(epsilon=curve.epsilon, strong=curve.strong))
    mapped = first and (row.recipe, row.dataset) in MAPPED
    kept = replace(
        row,
        measures={key: value for key, value in row.measures.items() if key in KEPT_MEASURES},
        intervals={},
        series=series,
        decisions=row.decisions[:1] if mapped else (),
        failures=() if row.passed else row.failures,
        change_buys=(),
        alarms=(),
        preflight=(),
        seconds=0.0,
    )
    return result_from(type(row), _rounded(changed(kept)), "a row to keep")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
