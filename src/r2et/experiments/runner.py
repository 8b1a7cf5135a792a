"""The units of a run: train all settings of a method on one seed, measure the chosen model once.

A unit is a pure function of data, recipe and seed. It reads and writes no file of the run: models
travel as bytes, so that it may run in another process or on another machine.
"""

import copy
import ctypes
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from r2et import __version__
from r2et.core.autograd import eval_mode
from r2et.core.exact import exact_copy
from r2et.core.geometry import one_of
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.rng import stream
from r2et.data.dataset import Dataset, Split
from r2et.data.schema import Schema
from r2et.evaluation.evaluate import attacked_by, budget_of, evaluate, task_of
from r2et.evaluation.protocol import DTYPES
from r2et.evaluation.results import Failure, Result
from r2et.experiments.config import (
    CONTINUE,
    LAST_ABLE,
    SCRATCH,
    VANILLA,
    MethodPlan,
    Recipe,
)
from r2et.explainers import CONCEPTS, Explainer, explained, gradient, predicted
from r2et.methods import METHODS, Method, MethodEntry
from r2et.metrics.individuality import overlap
from r2et.metrics.statistics import auc
from r2et.metrics.thickness import gaussian, thickness
from r2et.models import MODELS, build
from r2et.models.linear import fitted_logistic, fitted_product
from r2et.models.siamese import Siamese, fit_single_head
from r2et.models.smoothing import Smoothing
from r2et.models.stack import alike, by_network, in_turn, stacked
from r2et.training.checkpoint import from_bytes, to_bytes
from r2et.training.settings import Candidate, FitSettings
from r2et.training.stacked import Trained, fit_grid
from r2et.training.trainer import fit, keeps_ranking

LINEAR = "linear"
NUMBERS_AT_ONCE = 2**20
JUDGED_NEIGHBOURS, JUDGED_POINTS = 4, 4  # of the thickness of a model on validation data
AT_HAND = 2  # data sets, and splits of them, that a process keeps for its next units
PICTURE_PENALTY = 1.0  # with more numbers than items a regression has no optimum without one
LABELS = {LINEAR: "Linear (control)", **{name: entry.label for name, entry in METHODS.items()}}
NETWORKS: dict[str, Callable[[Dataset, Recipe], dict[str, Any]]] = {
    "mlp": lambda dataset, recipe: {
        "hidden": list(recipe.hidden),
        "activation": recipe.activation,
    },
    "structured": lambda dataset, recipe: {
        "numeric": list(dataset.structure.numeric),
        "one_hot": [list(group) for group in dataset.structure.one_hot],
    },
}
"""What a network of MODELS is built with, besides the numbers of inputs and classes."""

_ALONE = threading.Lock()


def fingerprint(*parts: Any) -> str:
    """Twelve hexadecimal digits that change with any of the parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


@cache
def code_digest() -> str:
    """Twelve hexadecimal digits that change with any source file of the package."""
    digest = hashlib.sha256()

    def take(folder: Traversable, where: str) -> None:
        for each in sorted(folder.iterdir(), key=lambda each: each.name):
            if each.is_dir():
                take(each, f"{where}{each.name}/")
            elif each.name.endswith(".py"):
                content = each.read_bytes()
                digest.update(f"{where}{each.name} {len(content)}\n".encode() + content)

    take(resources.files("r2et"), "")
    return digest.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Source:
    """How a process gets a data set, by a name; equal ones are the same to it."""

    load: Callable[[str], Dataset]
    name: str

    def __call__(self) -> Dataset:
        """The data set."""
        return self.load(self.name)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a unit is about, and what a worker must agree on: the data and the source files."""

    source: Callable[[], Dataset]
    data: str
    recipe: Recipe
    seed: int
    code: str

    def split(self) -> Split:
        """The parts of the data, refused if this worker has other data or other source files.

        A worker loads and splits once for the units that follow one another.
        """
        if self.code != code_digest():
            raise _other("source files")
        return _split_of(_loaded(self.source, self.data), self.seed)


@lru_cache(maxsize=AT_HAND)
def _loaded(source: Callable[[], Dataset], data: str) -> Dataset:
    dataset = source()
    if dataset.digest != data:
        raise _other(f"rows of {dataset.name}")
    return dataset


@lru_cache(maxsize=AT_HAND)
def _split_of(dataset: Dataset, seed: int) -> Split:
    return dataset.split(seed)


def _other(what: str) -> ValueError:
    return ValueError(
        f"a worker has other {what} than the process that sent it work: give both the same version "
        "of r2et and of the data, then start again."
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one setting: a judged model, packed, or the reason why there is none."""

    settings: dict[str, Any]
    candidate: Candidate | None = None
    problem: str | None = None
    model: bytes | None = None


def alone(unit: Callable[..., Any], *arguments: Any) -> Any:
    """What a unit returns, computed by one thread, and by one unit of this process at a time.

    Sums split among threads round differently, and dropout layers share one random stream.
    """
    with _ALONE, threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            return unit(*arguments)
        finally:
            _give_back_memory()


def _give_back_memory() -> None:
    """Return freed memory to the system, where the C library keeps it otherwise.

    A pool takes what is kept for a leak, and begins another process with all its imports.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def entry_of(method: str) -> MethodEntry:
    """The entry of METHODS by this name, refused in a process that does not have it."""
    if method not in METHODS:
        raise ValueError(
            f"this process knows no method {method!r}: a method of one's own is known where the "
            "module that puts it into METHODS was imported, which no worker does; use one process."
        )
    return METHODS[method]


def label_of(method: str) -> str:
    """How a method, or the linear control, is called in tables."""
    return LABELS[method] if method in LABELS else entry_of(method).label


def network_plan(dataset: Dataset, recipe: Recipe, method: str) -> dict[str, Any]:
    """The entry of MODELS that a method trains, and its settings: enough to build it again."""
    if not dataset.tabular:
        return _items_plan(dataset, recipe, method)
    name = entry_of(method).model
    sizes = {"inputs": dataset.n, "classes": len(dataset.classes)}
    return {"name": name, **sizes, **NETWORKS[name](dataset, recipe)}


def _items_plan(dataset: Dataset, recipe: Recipe, method: str) -> dict[str, Any]:
    """The plan of a network of pictures, of networks, or of pairs of them."""
    if recipe.network is None:
        raise ValueError(
            f"recipe {recipe.name!r} does not say by which network {dataset.name} is seen: add a "
            "[network] table with its name."
        )
    if entry_of(method).model != METHODS[VANILLA].model:
        raise ValueError(
            f"{label_of(method)} trains a network of tables, and {dataset.name} is none: leave it "
            "out."
        )
    known = {
        "classes": len(dataset.classes),
        "nodes": dataset.structure.piece.shape[0],
        "channels": dataset.structure.piece.shape[0],
        "inputs": dataset.structure.piece.size,
    }
    told = {
        name: value for name, value in known.items() if name in MODELS[recipe.network.name].sizes
    }
    pieces = {"pieces": [list(dataset.x.shape[1:])] * 2} if dataset.structure.pairs else {}
    return {"name": recipe.network.name, **told, **pieces, **recipe.network.settings}


def rebuildable(
    model: nn.Module, plan: Mapping[str, Any], method: Method, x: Tensor
) -> tuple[nn.Module, dict[str, Any]]:
    """A trained network and the plan by which it is built again, refused if there is none."""
    told = dict(plan)
    if isinstance(method.prepare, Smoothing):
        told |= method.prepare.changes
    again = build(told, stream(0, "unused")).to(x)
    again.load_state_dict(model.state_dict())
    few = x[: max(1, NUMBERS_AT_ONCE // x[0].numel())]
    with torch.no_grad(), eval_mode(model), eval_mode(again):
        if not torch.equal(again(few), model(few)):
            raise ValueError(
                f"a network prepared by its method cannot be built again from {told}, so that it "
                "could not be kept: teach `rebuildable` what the method changes."
            )
    return model, told


def network(split: Split, plan: Mapping[str, Any]) -> nn.Module:
    """An untrained network by its plan, its weights drawn for this data set and seed."""
    return build(plan, stream(split.seed, split.dataset.name, "init"))


def unit_print(dataset: Dataset, recipe: Recipe, plan: MethodPlan) -> str:
    """A fingerprint of all that trains and judges the models of a unit.

    How the test part is measured does not change them. The whole grid does: networks trained
    together round together.
    """
    fitting, evaluation = asdict(recipe.fit), recipe.evaluation
    for name in ("seed", "checkpoint_every"):
        del fitting[name]
    explained = asdict(recipe.trained or recipe.explainer)
    trains: list[Any] = [
        dataset.digest,
        network_plan(dataset, recipe, plan.name),
        fitting,
        recipe.least_steps,
        evaluation.k,
        None if dataset.tabular and recipe.trained is None else explained,
    ]
    judges: list[Any] = [
        recipe.select_by,
        recipe.valid_examples,
        asdict(evaluation.er),
        evaluation.record_every,
        [evaluation.norm, evaluation.handler, evaluation.singles],
    ]
    if recipe.select_by == "strong":
        judges.append(asdict(evaluation.strong))
    if retrains(recipe, plan.name):
        trains += [recipe.schema, recipe.retrain_epochs, recipe.least_ranking, recipe.gate]
        trains += [recipe.retrain_rate, recipe.retrain_by]
    elif follows_vanilla(recipe, plan.name):
        trains += [recipe.epoch, recipe.gate]
    return fingerprint(trains, judges, plan.name, plan.grid)


def controls(recipe: Recipe) -> tuple[MethodPlan, ...]:
    """What is measured besides the methods: a linear network, which has no neurons to explain."""
    return () if recipe.explainer.name in CONCEPTS else (MethodPlan(name=LINEAR),)


def retrains(recipe: Recipe, method: str) -> bool:
    """Whether a method goes on from the Vanilla model instead of starting anew."""
    return recipe.schema != SCRATCH and method != VANILLA


def follows_vanilla(recipe: Recipe, method: str) -> bool:
    """Whether a method is trained after Vanilla: to go on from it, or to keep an AUC beside it."""
    return retrains(recipe, method) or (recipe.epoch == LAST_ABLE and method != VANILLA)


def row_key(dataset: Dataset, recipe: Recipe, seed: int, plan: MethodPlan) -> str:
    """What identifies a row: data, recipe, seed, method and the settings it was chosen from."""
    return fingerprint(dataset.digest, recipe.digest, seed, plan.name, plan.grid)


def fit_settings(split: Split, recipe: Recipe) -> FitSettings:
    """How a recipe trains on this seed; small tables get smaller batches."""
    batch = min(recipe.fit.batch, max(1, len(split.train) // recipe.least_steps))
    return replace(recipe.fit, seed=split.seed, batch=batch)


def fitted(
    split: Split, recipe: Recipe, method: str, settings: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any], int]:
    """A network trained by the recipe, how it is built again, and its number of epochs."""
    plan = network_plan(split.dataset, recipe, method)
    chosen = method_of(split, recipe, method, settings)
    model, history = fit(
        network(split, plan), split.train, split.valid, chosen, fit_settings(split, recipe)
    )
    return with_single_head(model, split), plan, len(history)


def method_of(split: Split, recipe: Recipe, name: str, settings: Mapping[str, Any]) -> Method:
    """A method of a recipe with some settings, as it trains a single network from nothing."""
    return _built(entry_of(name), recipe.evaluation.k, trained_explanation(split.dataset, recipe),
                  settings)  # fmt: skip


def _built(
    entry: MethodEntry, k: int, explain: Explainer | None, settings: Mapping[str, Any]
) -> Method:
    """A method, which is told what is explained if it can make use of it."""
    return entry.build(k=k, explain=explain if entry.takes_explainer else None, **settings)


NOT_KEPT = "no epoch of retraining kept both Vanilla's explanations and its AUC."


def train_unit(work: Work, plan: MethodPlan, vanilla: Outcome | None) -> list[Outcome]:
    """What became of each setting of a method, in the order of its grid.

    `vanilla` is the model of the same seed to go on from, where the recipe retrains, or whose AUC
    says which epoch is kept.
    """
    split, recipe = work.split(), work.recipe
    shape, taught = network_plan(split.dataset, recipe, plan.name), encoding_of(split)
    found = [
        replace(each, model=with_single_head(each.model, split))
        for each in trained(split, recipe, plan, vanilla)
    ]
    # Without an epoch that was accepted a retrained network is still Vanilla's.
    problems = [each.problem or (None if each.history else NOT_KEPT) for each in found]
    able = [
        rebuildable(
            each.model,
            shape,
            method_of(split, recipe, plan.name, settings),
            split.valid.x,
        )
        for settings, each, problem in zip(plan.grid, found, problems, strict=True)
        if problem is None
    ]
    scores = judged([model for model, _ in able], split, recipe)
    kept = iter(zip(able, scores, strict=True))
    outcomes = []
    for settings, each, problem in zip(plan.grid, found, problems, strict=True):
        if problem is not None:
            outcomes.append(Outcome(settings=settings, problem=problem))
            continue
        (model, told), judgement = next(kept)
        candidate = replace(judgement, settings=settings)
        header = {
            "model": told,
            "dataset": split.dataset.name,
            "data": work.data,
            "seed": work.seed,
            "method": plan.name,
            "schema": recipe.schema if retrains(recipe, plan.name) else SCRATCH,
            "epochs": len(each.history),
            "candidate": asdict(candidate),
            **taught,
        }
        outcomes.append(
            Outcome(settings=settings, candidate=candidate, model=to_bytes(model, header))
        )
    return outcomes


def encoding_of(split: Split) -> dict[str, Any]:
    """How rows of a table become inputs, and what is predicted, to be kept beside a model."""
    if not (split.dataset.tabular and split.dataset.table.schema):
        return {}
    schema = Schema.from_json(split.dataset.table.schema).with_scale(split.scale)
    return {"columns": schema.to_json(), "classes": list(split.classes)}


def with_single_head(model: nn.Module, split: Split) -> nn.Module:
    """A Siamese network that also tells the class of single items, others as they are."""
    if not (isinstance(model, Joined) and isinstance(model.model, Siamese)):
        return model
    return Joined(fit_single_head(model.model, *split.training_items), model.inputs)


def linear_control(split: Split) -> nn.Module:
    """The network without a bend that a stability figure must be seen beside."""
    dataset, train = split.dataset, split.train
    if dataset.tabular:
        return fitted_logistic(train.x, train.y)
    if not dataset.structure.pairs:
        flat = fitted_logistic(train.x.flatten(1), train.y, penalty=PICTURE_PENALTY)
        return nn.Sequential(nn.Flatten(), *flat)
    items, labels = split.training_items
    product = fitted_product(items.flatten(1), labels, train.x, train.y, penalty=PICTURE_PENALTY)
    return Joined(product, Inputs(pieces=(Piece(shape=(items[0].numel(),)),) * 2))


def trained(
    split: Split, recipe: Recipe, plan: MethodPlan, vanilla: Outcome | None
) -> list[Trained]:
    """What became of the network of each setting of a method, in the order of its grid.

    Settings that differ only in how parts of the loss are weighed are trained as one computation.
    """
    if vanilla is not None and retrains(recipe, plan.name):
        begin = _retrain(split, recipe, vanilla)
    else:
        begin = _scratch(split, recipe, plan, vanilla)
    found: dict[int, Trained] = {}
    apart = not split.dataset.tabular or recipe.fit.ramp > 0
    for places in together(plan, recipe.evaluation.k, apart):
        alike = [plan.grid[place] for place in places]
        found |= zip(places, begin.fit(entry_of(plan.name), alike, split), strict=True)
    return [found[place] for place in range(len(plan.grid))]


def together(plan: MethodPlan, k: int, apart: bool = False) -> list[list[int]]:
    """The places in a grid of settings that one computation trains, stack by stack.

    Networks of other layers than linear ones are trained `apart`.
    """
    if apart:
        return [[place] for place in range(len(plan.grid))]
    entry = entry_of(plan.name)
    stacks: dict[str, list[int]] = {}
    for place, settings in enumerate(plan.grid):
        own = {name: value for name, value in settings.items() if name not in entry.weights}
        # A weight of zero leaves its penalty out, and with it the computation it would share.
        parts = [name for name, _, _ in entry.build(k=k, **settings).penalties]
        stacks.setdefault(json.dumps([own, parts], sort_keys=True), []).append(place)
    return list(stacks.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class Beginning:
    """Where the training of a method begins, how long it may take, and what it must keep."""

    network: nn.Module
    settings: FitSettings
    k: int
    explain: Explainer | None = None
    vanilla: nn.Module | None = None
    accept: Callable[[nn.Module], bool] | None = None
    floor: float | None = None

    def method(self, entry: MethodEntry, settings: Mapping[str, Any], networks: int = 1) -> Method:
        """The method, which keeps Vanilla's ranking where it can, for so many networks at once."""
        if self.vanilla is None or not entry.ranks:
            return _built(entry, self.k, self.explain, settings)
        reference = stacked([self.vanilla] * networks) if networks > 1 else self.vanilla
        return _built(entry, self.k, self.explain, {"reference": reference, **settings})

    def fit(
        self, entry: MethodEntry, alike: Sequence[Mapping[str, Any]], split: Split
    ) -> list[Trained]:
        """What became of the network of each of these settings, which differ in weights only."""
        methods = [self.method(entry, settings) for settings in alike]
        if len(alike) == 1:
            return [self._alone(methods[0], split)]
        count = len(alike)
        return fit_grid(
            [self.network] * count,
            [split.train] * count,
            [split.valid] * count,
            lambda numbers: self.method(entry, alike[0], len(numbers)),
            self.settings,
            seeds=[self.settings.seed] * count,
            weights={
                name: [method.penalties[place][1] for method in methods]
                for place, (name, _, _) in enumerate(methods[0].penalties)
            },
            weight_decay=[method.weight_decay for method in methods],
            accept=None if self.accept is None else [self.accept] * count,
            floor=None if self.floor is None else [self.floor] * count,
        )

    def _alone(self, method: Method, split: Split) -> Trained:
        model = copy.deepcopy(self.network)
        try:
            model, history = fit(
                model,
                split.train,
                split.valid,
                method,
                self.settings,
                accept=self.accept,
                floor=self.floor,
            )
        except ValueError as problem:
            return Trained(model=model, history=[], problem=str(problem))
        return Trained(model=model, history=history)


def _scratch(split: Split, recipe: Recipe, plan: MethodPlan, vanilla: Outcome | None) -> Beginning:
    auc = None if vanilla is None or vanilla.candidate is None else vanilla.candidate.auc
    return Beginning(
        network=network(split, network_plan(split.dataset, recipe, plan.name)),
        settings=fit_settings(split, recipe),
        k=recipe.evaluation.k,
        explain=trained_explanation(split.dataset, recipe),
        floor=None if auc is None else auc - recipe.gate,
    )


def trained_explanation(dataset: Dataset, recipe: Recipe) -> Explainer | None:
    """What methods widen and keep: of tables the absolute gradient, which they take by themselves.

    Of pictures and networks what is measured. A recipe may say otherwise.
    """
    if dataset.tabular and recipe.trained is None:
        return None
    return (recipe.trained or recipe.explainer).build(dataset.structure.explained)


def measured_explanation(dataset: Dataset, recipe: Recipe) -> Explainer:
    """What is attacked and measured."""
    return recipe.explainer.build(dataset.structure.explained)


def _retrain(split: Split, recipe: Recipe, vanilla: Outcome) -> Beginning:
    assert vanilla.model is not None
    assert vanilla.candidate is not None
    start = from_bytes(vanilla.model)
    begin = Beginning(
        network=start,
        settings=_retraining(split, recipe),
        k=recipe.evaluation.k,
        explain=trained_explanation(split.dataset, recipe),
        vanilla=start if recipe.retrain_by == VANILLA else None,
    )
    if recipe.schema == CONTINUE:
        return begin
    # Statistics stay as they are: explanations are formed with them, and in training mode every
    # batch would pass through the network once more.
    start.eval()
    return replace(
        begin,
        accept=keeps_ranking(
            start,
            split.valid,
            k=recipe.evaluation.k,
            explain=trained_explanation(split.dataset, recipe) or gradient,
            least_precision=recipe.least_ranking,
            least_auc=vanilla.candidate.auc - recipe.gate,
        ),
    )


def _retraining(split: Split, recipe: Recipe) -> FitSettings:
    """How a recipe goes on from Vanilla on this seed: shorter, perhaps slower.

    Continued, pictures are varied as before; else they are taken as they are.
    """
    usual = fit_settings(split, recipe)
    rate = recipe.retrain_rate or usual.learning_rate
    augment = usual.augment if recipe.schema == CONTINUE else ""
    return replace(usual, epochs=recipe.retrain_epochs, learning_rate=rate, augment=augment)


def judged(models: Sequence[nn.Module], split: Split, recipe: Recipe) -> list[Candidate]:
    """What validation data show of each model, attacked as the recipe selects by.

    On copies, what is trained explained; models of tables that are built alike are attacked as
    one. Which settings a model has is not known here.
    """
    every = range(len(models))
    groups = alike(models) if split.dataset.tabular else [[number] for number in every]
    if len(groups) != 1:
        found = {
            number: each
            for group in groups
            for number, each in zip(
                group, judged([models[at] for at in group], split, recipe), strict=True
            )
        }
        return [found[number] for number in every]
    valid, count = split.valid, len(models)
    dtype = DTYPES[recipe.evaluation.dtype]
    alone = [exact_copy(model, dtype) for model in models]
    scores = [auc(model, valid.x.to(dtype), valid.y) for model in alone]
    explain = trained_explanation(split.dataset, recipe) or gradient
    task = task_of(split, recipe.evaluation, explain)
    stack = alone[0] if count == 1 else stacked(alone)
    x = valid.x[: recipe.valid_examples].to(dtype)
    # An attack splits what is too much for it; here, between examples and not between networks.
    budget = budget_of(recipe.select_by, recipe.evaluation)
    at_once = max(1, budget.rows_at_once(one_of(x).numel()) // count)
    reached = []
    for part in x.split(at_once):
        rows = in_turn(part.expand(count, *part.shape))
        attacked = attacked_by(
            recipe.select_by,
            stack,
            rows,
            predicted(stack, rows),
            recipe.evaluation,
            task=task,
            seed=split.seed,
        )
        reached.append(by_network(attacked.precision, count))
    precisions = torch.cat(reached, dim=1).mean(1).tolist()
    return [
        Candidate(
            settings={},
            auc=score,
            precision=precision,
            thickness=_thickness_around(model, x, explain, recipe, split.seed),
            overlap=_overlap_in_class(model, x, explain, recipe.evaluation.k),
        )
        for model, score, precision in zip(alone, scores, precisions, strict=True)
    ]


def _overlap_in_class(model: nn.Module, x: Tensor, explain: Explainer, k: int) -> float | None:
    y = predicted(model, x)
    return overlap(explained(model, explain, x, y), k, y)


def _thickness_around(
    model: nn.Module, x: Tensor, explain: Explainer, recipe: Recipe, seed: int
) -> float:
    """Mean thickness on the way to a few random neighbours, which needs no attack."""
    evaluation = recipe.evaluation
    found = thickness(
        model,
        x,
        predicted(model, x),
        gaussian(evaluation.er.radius / 2),
        explain=explain,
        k=evaluation.k,
        variant="probability",
        samples=JUDGED_NEIGHBOURS,
        points=JUDGED_POINTS,
        generator=stream(seed, "validation thickness"),
    )
    return float(found.value.mean())


def row_head(
    dataset: Dataset,
    recipe: Recipe,
    seed: int,
    plan: MethodPlan,
    outcomes: Sequence[Outcome],
    floor: float | None,
    chosen: Candidate | None,
) -> Result:
    """All of a row that is known before anything is measured on test data."""
    return Result(
        key=row_key(dataset, recipe, seed, plan),
        dataset=dataset.name,
        data=dataset.digest,
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        schema=recipe.schema,
        explainer=recipe.explainer.name,
        explainer_settings=recipe.explainer.settings,
        k=recipe.evaluation.k,
        seed=seed,
        method=plan.name,
        label=label_of(plan.name),
        version=__version__,
        code=code_digest(),
        candidates=tuple(each.candidate for each in outcomes if each.candidate is not None),
        failures=tuple(
            Failure(settings=each.settings, problem=each.problem)
            for each in outcomes
            if each.problem is not None
        ),
        floor=floor,
        selected_by=recipe.select_by,
        stand_in=dataset.stand_in,
        passed=plan.name == LINEAR or chosen is not None,
        chosen=None if chosen is None else chosen.settings,
        valid=chosen,
    )


def measure_unit(work: Work, head: Result, model: bytes | None) -> Result:
    """The row that begins with `head`, with what the test part shows of a model.

    Without a model it is the linear control, fitted here.
    """
    split, recipe = work.split(), work.recipe
    if model is None:
        measured = linear_control(split)
        (judgement,) = judged([measured], split, recipe)
        head = replace(head, valid=judgement)
    else:
        measured = from_bytes(model)
    explain = measured_explanation(split.dataset, recipe)
    found = evaluate(measured, split, recipe.evaluation, explain=explain, seed=work.seed)
    return replace(head, **vars(found))
