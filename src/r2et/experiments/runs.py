"""The units of a run: train all settings of a method on one seed, measure the chosen model once.

A unit is a pure function of data, recipe and seed. It reads and writes no file of the run: models
travel as bytes, so that it may run in another process or on another machine.
"""

import copy
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from r2et import __version__
from r2et.data import Dataset, Split
from r2et.evaluation import build_attack, evaluate, rows_at_once
from r2et.experiments.recipes import RETRAIN, SCRATCH, VANILLA, MethodPlan, Recipe
from r2et.explainers import gradient, predicted
from r2et.grid import Trained, by_network, fit_grid, in_turn, stacked
from r2et.metrics.statistics import auc
from r2et.models import MODELS
from r2et.models.linear import fitted_logistic
from r2et.objectives import METHODS, Method, MethodEntry
from r2et.randomness import stream
from r2et.training import Candidate, FitSettings, fit, keeps_ranking, load, save

LINEAR = "linear"
LABELS = {LINEAR: "Linear (control)", **{name: entry.label for name, entry in METHODS.items()}}
NETWORKS: dict[str, Callable[[Dataset, Recipe], dict[str, Any]]] = {
    "mlp": lambda dataset, recipe: {
        "hidden": list(recipe.hidden),
        "activation": recipe.activation,
    },
    "structured": lambda dataset, recipe: {
        "numeric": list(dataset.numeric),
        "one_hot": [list(group) for group in dataset.one_hot],
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


@lru_cache(maxsize=16)
def data_digest(dataset: Dataset) -> str:
    """The digest of a data set, computed once."""
    return dataset.digest


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a unit is about, and what a worker must agree on: the data and the source files."""

    source: Callable[[], Dataset]
    data: str
    recipe: Recipe
    seed: int
    code: str

    def split(self) -> Split:
        """The parts of the data, refused if this worker has other data or other source files."""
        dataset = self.source()
        for what, ours, theirs in (
            ("source files", self.code, code_digest()),
            (f"rows of {dataset.name}", self.data, dataset.digest),
        ):
            if ours != theirs:
                raise ValueError(
                    f"a worker has other {what} than the process that sent it work: give both the "
                    "same version of r2et and of the data, then start again."
                )
        return dataset.split(self.seed)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one setting: a judged model, packed, or the reason why there is none."""

    settings: dict[str, Any]
    candidate: Candidate | None
    model: bytes | None
    problem: str | None = None


def alone(unit: Callable[..., Any], *arguments: Any) -> Any:
    """What a unit returns, computed by one thread, and by one unit of this process at a time.

    Sums split among threads round differently, and dropout layers share one random stream.
    """
    with _ALONE, threadpool_limits(1):
        torch.set_num_threads(1)
        return unit(*arguments)


def packed(model: nn.Module, header: Mapping[str, Any]) -> bytes:
    """A model file as bytes."""
    with TemporaryDirectory() as folder:
        return save(Path(folder) / "model", model, header).read_bytes()


def unpacked(content: bytes) -> nn.Module:
    """The model of such bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(content)
        return load(path)[0]


def network_plan(dataset: Dataset, recipe: Recipe, method: str) -> dict[str, Any]:
    """The entry of MODELS that a method trains, and its settings: enough to build it again."""
    name = METHODS[method].model
    sizes = {"inputs": dataset.n, "classes": len(dataset.classes)}
    return {"name": name, **sizes, **NETWORKS[name](dataset, recipe)}


def plain_softplus(model: nn.Module) -> nn.Module:
    """The same function with softplus layers of sharpness 1: one that its plan can name.

    softplus(z; rho) = softplus(rho z; 1) / rho: what enters such a layer is multiplied by rho, and
    what leaves it by 1 / rho in the weights of the next one.
    """
    same = copy.deepcopy(model)
    if not isinstance(same, nn.Sequential):
        return same
    parts, before = list(same), 1.0
    for part, follower in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, nn.Linear):
            after = follower.beta if isinstance(follower, nn.Softplus) else 1.0
            part.weight.data.mul_(after / before)
            part.bias.data.mul_(after)
            before = after
        elif isinstance(part, nn.Softplus):
            part.beta = 1.0
    return same


def rebuildable(
    model: nn.Module, plan: Mapping[str, Any], method: Method, x: Tensor
) -> tuple[nn.Module, dict[str, Any]]:
    """A trained network and the plan by which it is built again, refused if there is none."""
    told = dict(plan)
    if method.prepare is not None:
        model, told["activation"] = plain_softplus(model), "softplus"
    again = MODELS[told["name"]](**_shape(told), generator=stream(0, "unused")).to(x)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        if not torch.equal(again(x), model(x)):
            raise ValueError(
                f"a network prepared by its method cannot be built again from {told}, so that it "
                "could not be kept: teach `plain_softplus` what the method changes."
            )
    return model, told


def network(split: Split, plan: Mapping[str, Any]) -> nn.Module:
    """An untrained network by its plan, its weights drawn for this data set and seed."""
    generator = stream(split.seed, split.dataset.name, "init")
    return MODELS[plan["name"]](**_shape(plan), generator=generator)


def _shape(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plan.items() if name != "name"}


def unit_print(dataset: Dataset, recipe: Recipe, plan: MethodPlan) -> str:
    """A fingerprint of all that trains and judges the models of a unit.

    How the test part is measured does not change them. The whole grid does: networks trained
    together round together.
    """
    fitting, evaluation = asdict(recipe.fit), recipe.evaluation
    for name in ("seed", "checkpoint_every"):
        del fitting[name]
    trains: list[Any] = [
        data_digest(dataset),
        network_plan(dataset, recipe, plan.name),
        fitting,
        recipe.least_steps,
        evaluation.k,
    ]
    judges: list[Any] = [
        recipe.select_by,
        recipe.valid_examples,
        asdict(evaluation.er),
        evaluation.record_every,
    ]
    if recipe.select_by == "strong":
        judges.append(asdict(evaluation.strong))
    if retrains(recipe, plan.name):
        trains += [recipe.schema, recipe.retrain_epochs, recipe.least_ranking, recipe.gate]
    return fingerprint(trains, judges, plan.name, plan.grid)


def retrains(recipe: Recipe, method: str) -> bool:
    """Whether a method goes on from the Vanilla model instead of starting anew."""
    return recipe.schema == RETRAIN and method != VANILLA


def row_key(dataset: Dataset, recipe: Recipe, seed: int, plan: MethodPlan) -> str:
    """What identifies a row: data, recipe, seed, method and the settings it was chosen from."""
    return fingerprint(data_digest(dataset), recipe.digest, seed, plan.name, plan.grid)


def fit_settings(split: Split, recipe: Recipe) -> FitSettings:
    """How a recipe trains on this seed; small tables get smaller batches."""
    batch = min(recipe.fit.batch, max(1, len(split.train) // recipe.least_steps))
    return replace(recipe.fit, seed=split.seed, batch=batch)


def fitted(
    split: Split, recipe: Recipe, method: str, settings: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any], int]:
    """A network trained by the recipe, how it is built again, and its number of epochs."""
    plan = network_plan(split.dataset, recipe, method)
    chosen = METHODS[method].build(k=recipe.evaluation.k, **settings)
    model, history = fit(
        network(split, plan), split.train, split.valid, chosen, fit_settings(split, recipe)
    )
    return model, plan, len(history)


NOT_KEPT = "no epoch of retraining kept both Vanilla's explanations and its AUC."


def train_unit(work: Work, plan: MethodPlan, vanilla: Outcome | None) -> list[Outcome]:
    """What became of each setting of a method, in the order of its grid.

    `vanilla` is the model of the same seed to go on from, where the recipe retrains.
    """
    split, recipe = work.split(), work.recipe
    shape = network_plan(split.dataset, recipe, plan.name)
    found = trained(split, recipe, plan, vanilla)
    # Without an epoch that was accepted a retrained network is still Vanilla's.
    problems = [each.problem or (None if each.history else NOT_KEPT) for each in found]
    able = [
        rebuildable(
            each.model,
            shape,
            METHODS[plan.name].build(k=recipe.evaluation.k, **settings),
            split.valid.x,
        )
        for settings, each, problem in zip(plan.grid, found, problems, strict=True)
        if problem is None
    ]
    judgements = iter(judged([model for model, _ in able], split, recipe))
    kept = iter(able)
    outcomes = []
    for settings, each, problem in zip(plan.grid, found, problems, strict=True):
        if problem is not None:
            outcomes.append(Outcome(settings=settings, candidate=None, model=None, problem=problem))
            continue
        (score, precision), (model, told) = next(judgements), next(kept)
        candidate = Candidate(settings=settings, auc=score, precision=precision)
        header = {
            "model": told,
            "dataset": split.dataset.name,
            "data": work.data,
            "seed": work.seed,
            "method": plan.name,
            "schema": SCRATCH if vanilla is None else RETRAIN,
            "epochs": len(each.history),
            "candidate": asdict(candidate),
        }
        outcomes.append(
            Outcome(settings=settings, candidate=candidate, model=packed(model, header))
        )
    return outcomes


def trained(
    split: Split, recipe: Recipe, plan: MethodPlan, vanilla: Outcome | None
) -> list[Trained]:
    """What became of the network of each setting of a method, in the order of its grid.

    Settings that differ only in how parts of the loss are weighed are trained as one computation.
    """
    begin = _scratch(split, recipe, plan) if vanilla is None else _retrain(split, recipe, vanilla)
    found: dict[int, Trained] = {}
    for places in together(plan, recipe.evaluation.k):
        alike = [plan.grid[place] for place in places]
        found |= zip(places, begin.fit(METHODS[plan.name], alike, split), strict=True)
    return [found[place] for place in range(len(plan.grid))]


def together(plan: MethodPlan, k: int) -> list[list[int]]:
    """The places in a grid of settings that one computation trains, stack by stack."""
    entry = METHODS[plan.name]
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
    vanilla: nn.Module | None = None
    accept: Callable[[nn.Module], bool] | None = None

    def method(self, entry: MethodEntry, settings: Mapping[str, Any], networks: int = 1) -> Method:
        """The method, which keeps Vanilla's ranking where it can, for so many networks at once."""
        if self.vanilla is None or not entry.ranks:
            return entry.build(k=self.k, **settings)
        reference = stacked([self.vanilla] * networks) if networks > 1 else self.vanilla
        return entry.build(k=self.k, reference=reference, **settings)

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
        )

    def _alone(self, method: Method, split: Split) -> Trained:
        model = copy.deepcopy(self.network)
        try:
            model, history = fit(
                model, split.train, split.valid, method, self.settings, accept=self.accept
            )
        except ValueError as problem:
            return Trained(model=model, history=[], problem=str(problem))
        return Trained(model=model, history=history)


def _scratch(split: Split, recipe: Recipe, plan: MethodPlan) -> Beginning:
    return Beginning(
        network=network(split, network_plan(split.dataset, recipe, plan.name)),
        settings=fit_settings(split, recipe),
        k=recipe.evaluation.k,
    )


def _retrain(split: Split, recipe: Recipe, vanilla: Outcome) -> Beginning:
    assert vanilla.model is not None
    assert vanilla.candidate is not None
    start = unpacked(vanilla.model)
    return Beginning(
        network=start,
        settings=replace(fit_settings(split, recipe), epochs=recipe.retrain_epochs),
        k=recipe.evaluation.k,
        vanilla=start,
        accept=keeps_ranking(
            start,
            split.valid,
            k=recipe.evaluation.k,
            explain=gradient,
            least_precision=recipe.least_ranking,
            least_auc=vanilla.candidate.auc - recipe.gate,
        ),
    )


def judged(models: Sequence[nn.Module], split: Split, recipe: Recipe) -> list[tuple[float, float]]:
    """Validation AUC and validation P@k of each model, attacked as the recipe selects by.

    In float64, on copies, the gradient explained; all models are attacked as one.
    """
    if not models:
        return []
    valid, count = split.valid, len(models)
    alone = [copy.deepcopy(model).double().eval() for model in models]
    scores = [auc(model, valid.x.double(), valid.y) for model in alone]
    attack = build_attack(recipe.select_by, recipe.evaluation, seed=split.seed)
    stack = alone[0] if count == 1 else stacked(alone)
    x = valid.x[: recipe.valid_examples].double()
    # An attack splits what is too much for it; here, between examples and not between networks.
    at_once = max(1, rows_at_once(recipe.select_by, recipe.evaluation, x) // count)
    reached = []
    for part in x.split(at_once):
        rows = in_turn(part.expand(count, *part.shape))
        attacked = attack(stack, rows, predicted(stack, rows))
        reached.append(by_network(attacked.precision, count))
    precisions = torch.cat(reached, dim=1).mean(1).tolist()
    return list(zip(scores, precisions, strict=True))


def row_head(
    dataset: Dataset,
    recipe: Recipe,
    seed: int,
    plan: MethodPlan,
    outcomes: Sequence[Outcome],
    floor: float | None,
    chosen: Candidate | None,
) -> dict[str, Any]:
    """All of a row that is known before anything is measured on test data."""
    judgements = [each.candidate for each in outcomes if each.candidate is not None]
    failures = [each for each in outcomes if each.candidate is None]
    return {
        "key": row_key(dataset, recipe, seed, plan),
        "dataset": dataset.name,
        "data": data_digest(dataset),
        "recipe": recipe.name,
        "recipe digest": recipe.digest,
        "schema": recipe.schema,
        "explainer": asdict(recipe.explainer),
        "k": recipe.evaluation.k,
        "seed": seed,
        "method": plan.name,
        "label": LABELS[plan.name],
        "version": __version__,
        "code": code_digest(),
        "candidates": [asdict(each) for each in judgements],
        "failures": [{"settings": each.settings, "problem": each.problem} for each in failures],
        "floor": floor,
        "selected by": recipe.select_by,
        "passed": plan.name == LINEAR or chosen is not None,
        "chosen": None if chosen is None else chosen.settings,
        "valid": None if chosen is None else asdict(chosen),
    }


def measure_unit(work: Work, head: Mapping[str, Any], model: bytes | None) -> dict[str, Any]:
    """The row that begins with `head`, with what the test part shows of a model.

    Without a model it is the linear control, fitted here.
    """
    split, recipe = work.split(), work.recipe
    row = dict(head)
    if model is None:
        measured = fitted_logistic(split.train.x, split.train.y)
        ((score, precision),) = judged([measured], split, recipe)
        row["valid"] = asdict(Candidate(settings={}, auc=score, precision=precision))
    else:
        measured = unpacked(model)
    explain = recipe.explainer.build()
    return row | evaluate(measured, split, recipe.evaluation, explain=explain, seed=work.seed)
