"""Recipes: what a run does, as records read from TOML."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import torch

from r2et.core.limits import content_of, toml_of
from r2et.core.naming import nearest
from r2et.core.rng import stream
from r2et.core.settings import WORDS, changed, settings_from
from r2et.data.dataset import Dataset
from r2et.evaluation.protocol import EVALUATED, EvaluationSettings
from r2et.explainers import CONCEPTS, Activations, Explainer, InputExplainer, slopes
from r2et.methods import METHODS
from r2et.models import ACTIVATIONS, MODELS
from r2et.models.smoothing import Smoothing
from r2et.training.settings import FitSettings

VANILLA = "vanilla"
OWN = "own"
PLANS = {"explainer", "trained", "network"}  # of something by its name, all else being settings
SCRATCH, RETRAIN, CONTINUE = SCHEMAS = ("scratch", "retrain", "continue")
LAST, LAST_ABLE = EPOCHS = ("last", "last-able")


@dataclass(frozen=True, kw_only=True)
class MethodPlan:
    """A method and the settings to choose among on validation data."""

    name: str
    grid: tuple[dict[str, Any], ...] = ({},)

    def __post_init__(self) -> None:
        """Refuse a method that is never trained."""
        if not self.grid:
            raise ValueError(f"method {self.name!r}: a list of settings is empty.")


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """An entry of MODELS and its settings, besides those that the data decide."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a network that does not exist or does not take these settings."""
        if self.name not in MODELS:
            raise ValueError(f"unknown network {self.name!r}: {nearest(self.name, MODELS)}")
        offered = MODELS[self.name].offered
        for key in self.settings:
            if key not in offered:
                raise ValueError(
                    f"the network {self.name!r} has no setting {key!r}: {nearest(key, offered)}"
                )


@dataclass(frozen=True, kw_only=True)
class ExplainerPlan:
    """What is attacked and measured on test data: an entry of EXPLAINERS and its settings."""

    name: str = "grad"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an explainer that does not exist or does not take these settings."""
        known: dict[str, InputExplainer | Activations] = {**slopes(), **CONCEPTS}
        if self.name not in known:
            raise ValueError(f"unknown explainer {self.name!r}: {nearest(self.name, known)}")
        offered = _numbers_and_texts(known[self.name])
        for key, value in self.settings.items():
            if key not in offered:
                raise ValueError(
                    f"the explainer {self.name!r} has no setting {key!r}: {nearest(key, offered)}"
                )
            if not _fits(value, offered[key]):
                raise ValueError(
                    f"the explainer {self.name!r}: {key!r} must be {WORDS[offered[key]]}, "
                    f"got {value!r}."
                )
        if self.name in CONCEPTS:
            if "layer" not in self.settings:
                raise ValueError(f"the explainer {self.name!r} needs a layer: name one.")
            return
        x = torch.zeros(1, 2)
        self.build()(MODELS["logistic"].build(2, generator=stream(0, "unused")), x, x[:, 0].long())

    def build(self, features: Sequence[int] = ()) -> Explainer:
        """The explainer itself, its scores those of `features`, one for each number, if given."""
        if self.name in CONCEPTS:
            return replace(CONCEPTS[self.name], **self.settings)
        return replace(slopes()[self.name], groups=tuple(features) or None, **self.settings)


def _numbers_and_texts(explain: InputExplainer | Activations) -> dict[str, type]:
    """The settings of an explainer that a recipe can name, and what each must be."""
    found = {each.name: type(each.default) for each in fields(explain)}
    return {name: kind for name, kind in found.items() if kind in (int, float, str)}


def _fits(value: Any, kind: type) -> bool:
    """Whether a value is of a type; whole numbers are numbers, truth values are not."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a run needs besides data and seed."""

    name: str
    line: str
    published: str = ""
    """Of a recipe of the papers, the target of `r2et reproduce` that shows what they print."""
    datasets: tuple[str, ...] = ()
    """What a sweep goes through; a run is given its data."""
    seeds: int = 1
    schema: str = SCRATCH
    """Whether methods start from nothing or go on from the Vanilla model of the same seed: to
    retrain it, pictures and batch statistics as they are, as long as ranking and AUC are kept, or
    to continue its training by a whole fit of `retrain_epochs`."""
    retrain_epochs: int = 10
    retrain_rate: float | None = None
    """The learning rate of retraining, that of the fit unless given."""
    retrain_by: str = VANILLA
    """Whose ranking retraining keeps: that of Vanilla, or the model's own of each step."""
    least_ranking: float = 0.8
    """Retraining ends before the mean P@k with Vanilla's clean explanations falls below this."""
    gate: float = 0.01
    """How far below Vanilla's validation AUC a model may fall and still be chosen."""
    epoch: str = LAST
    """Which epoch's model of a training from nothing is kept: the last, or the last able one, whose
    validation AUC passes the gate."""
    select_by: str = "er"
    """The attack whose validation P@k chooses among the settings of a method."""
    valid_examples: int = 300
    least_steps: int = 1
    """An epoch takes at least so many steps: smaller tables get smaller batches."""
    hidden: tuple[int, ...] = (32,)
    activation: str = "leaky-relu"
    network: NetworkPlan | None = None
    """What pictures and networks are seen by; tables are seen by an MLP of `hidden` units."""
    fit: FitSettings = field(default_factory=FitSettings)
    explainer: ExplainerPlan = field(default_factory=ExplainerPlan)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    trained: ExplainerPlan | None = None
    """What methods widen and keep, where that is neither what is measured, as of pictures and
    networks, nor the absolute gradient, as of tables."""
    methods: tuple[MethodPlan, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names and numbers with which no run can end."""
        names = [plan.name for plan in self.methods]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(
                f"a recipe lists {twice[0]!r} twice: "
                "give one entry lists of settings to choose among."
            )
        for what, known in (
            ("select_by", EVALUATED),
            ("activation", ACTIVATIONS),
            ("schema", SCHEMAS),
            ("epoch", EPOCHS),
            ("retrain_by", (VANILLA, OWN)),
        ):
            if (word := getattr(self, what)) not in known:
                raise ValueError(f"unknown {what} {word!r}: {nearest(word, known)}")
        if min(self.seeds, self.least_steps) < 1 or self.valid_examples < 2:
            raise ValueError(
                f"a recipe needs seeds >= 1, least_steps >= 1 and valid_examples >= 2, "
                f"got {self.seeds}, {self.least_steps} and {self.valid_examples}."
            )
        if min(self.hidden, default=1) < 1:
            raise ValueError(f"a recipe needs layers of units, got {self.hidden}.")
        if self.retrain_rate is not None and self.retrain_rate <= 0:
            raise ValueError(f"a recipe needs a retrain_rate above 0, got {self.retrain_rate}.")
        if self.retrain_epochs < 1 or not 0 <= self.least_ranking <= 1:
            raise ValueError(
                f"a recipe needs retrain_epochs >= 1 and least_ranking in 0..1, got "
                f"{self.retrain_epochs} and {self.least_ranking}."
            )
        if len(set(self.datasets)) < len(self.datasets):
            raise ValueError(f"a recipe names each data set once: {self.datasets}.")

    @property
    def digest(self) -> str:
        """A short fingerprint of all that changes the numbers of one row.

        Neither the number of seeds nor the other data sets and methods of the recipe do, nor how
        often a fit is written down; its own seed is replaced by that of the row. Only values that
        differ from their defaults count, so that a new setting changes no row that exists.
        """
        said = changed(self)
        for name in ("line", "published", "datasets", "seeds", "methods"):
            said.pop(name, None)
        fit = said.pop("fit", {})
        fit = {name: fit[name] for name in fit if name not in ("seed", "checkpoint_every")}
        said |= {"fit": fit} if fit else {}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def expand(settings: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Every combination of the list-valued settings.

    >>> expand({"thickness": [0.1, 0.2], "gap": "plain"})
    ({'thickness': 0.1, 'gap': 'plain'}, {'thickness': 0.2, 'gap': 'plain'})
    """
    choices = [value if isinstance(value, list) else [value] for value in settings.values()]
    return tuple(dict(zip(settings, chosen, strict=True)) for chosen in product(*choices))


def recipe_from(name: str, table: Mapping[str, Any]) -> Recipe:
    """The recipe of a parsed TOML table.

    `thickness_times` multiplies every thickness of its methods, such as those of its base.
    """
    where = f"recipe {name!r}"
    said = {"name": name, **table}
    times = said.pop("thickness_times", 1.0)
    if not _fits(times, float) or times <= 0:
        raise ValueError(f"{where}: 'thickness_times' must be a number above 0, got {times!r}.")
    for key in PLANS & said.keys():
        if isinstance(said[key], Mapping):
            settings = dict(said[key])
            named = {"name": settings.pop("name")} if "name" in settings else {}
            said[key] = {**named, "settings": settings}
    methods = said.pop("methods", [])
    if not (isinstance(methods, list) and all(isinstance(each, Mapping) for each in methods)):
        raise ValueError(f"{where} must list its methods as [[methods]] tables, got {methods!r}.")
    said["methods"] = [_method_plan(each, times) for each in methods]
    recipe = settings_from(Recipe, said, where)
    for plan in recipe.methods:
        if plan.name not in METHODS:
            raise ValueError(
                f"{where}: unknown method {plan.name!r}: {nearest(plan.name, METHODS)}"
            )
    if not recipe.methods or recipe.methods[0].name != VANILLA:
        raise ValueError(f"{where} must list 'vanilla' first: it sets the AUC to keep.")
    _try_methods(recipe)
    return recipe


def _method_plan(table: Mapping[str, Any], times: float) -> dict[str, Any]:
    """The name of a method and every combination of its settings, so many times as thick.

    Settings that go together are listed as `grid` = [{...}, {...}], each combined with the others.
    """
    settings = dict(table)
    name, tied = settings.pop("name", None), settings.pop("grid", [{}])
    if not (isinstance(tied, list) and all(isinstance(each, Mapping) for each in tied)):
        raise ValueError(
            f"method {name!r}: 'grid' must list tables of settings that go together, got {tied!r}."
        )
    grid = tuple({**each, **own} for own in tied for each in expand(settings))
    if times != 1:
        for each in grid:
            each.update({key: times * each[key] for key in ("thickness",) if key in each})
    return {"name": str(name), "grid": grid}


def _try_methods(recipe: Recipe) -> None:
    """Refuse settings that a method does not take before anything is trained."""
    plain = recipe.network is None and recipe.trained is None
    shown = None if plain else (recipe.trained or recipe.explainer).build()
    for plan in recipe.methods:
        entry = METHODS[plan.name]
        explain = shown if entry.takes_explainer else None
        for settings in plan.grid:
            try:
                method = entry.build(k=recipe.evaluation.k, explain=explain, **settings)
            except (TypeError, ValueError) as problem:
                raise ValueError(
                    f"recipe {recipe.name!r}, method {plan.name!r}: {problem}"
                ) from problem
            # A smooth copy of Vanilla's network keeps its weights.
            other = entry.model != METHODS[VANILLA].model or not (
                method.prepare is None or isinstance(method.prepare, Smoothing)
            )
            if recipe.schema != SCRATCH and other:
                raise ValueError(
                    f"recipe {recipe.name!r} retrains, but {entry.label} trains another network "
                    "than Vanilla's and cannot go on from it: leave it out."
                )


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted({name.split(".")[0] for name in _files()})


def line_of(name: str) -> str:
    """The line on a recipe that comes with the package, also of one that is for few data sets."""
    if f"{name}.toml" in _files():
        return load_recipe(name, "adult").line
    dataset = min(each for each in _files() if each.startswith(f"{name}.")).split(".")[1]
    return load_recipe(name, dataset).line


@cache
def _files() -> frozenset[str]:
    """The recipe files that come with the package: NAME.toml, or NAME.DATASET.toml."""
    folder = resources.files("r2et.experiments") / "recipes"
    return frozenset(file.name for file in folder.iterdir() if file.name.endswith(".toml"))


RECIPES = {"table": "converged", "picture": "pictures", "network": "networks"}


def recipe_for(dataset: Dataset) -> str:
    """The name of the recipe that is meant for data of a kind, unless another is asked for."""
    if not dataset.tabular and f"paper.{dataset.name}.toml" in _files():
        return "paper"
    return RECIPES[dataset.structure.kind]


def load_recipe(name: str, dataset: str) -> Recipe:
    """A recipe by name or TOML file, with its own settings for `dataset` if it has any.

    A recipe with a line `base = "NAME"` has the settings of that recipe where it has none itself.
    Pictures and networks have recipes of their own by the same names, in files NAME.DATASET.toml.
    """
    return recipe_from(*_table_of(name, dataset))


def _table_of(name: str, dataset: str, above: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The name of a recipe and its settings for a data set, on top of those of its base."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ValueError(f"there is no recipe file {name}: check the path.")
        content, name = content_of(path), path.stem
    elif name in recipe_names():
        special = f"{name}.{dataset}.toml"
        file = special if special in _files() else f"{name}.toml"
        if file not in _files():
            known = sorted(each.split(".")[1] for each in _files() if each.startswith(f"{name}."))
            raise ValueError(
                f"recipe {name!r} is for {', '.join(known)} only, not for {dataset!r}: choose "
                "another recipe."
            )
        content = (resources.files("r2et.experiments") / "recipes" / file).read_bytes()
    else:
        raise ValueError(f"unknown recipe {name!r}: {nearest(name, recipe_names())}")
    table = toml_of(content, f"recipe {name!r}")
    overrides, base = table.pop("for", {}).get(dataset, {}), table.pop("base", None)
    own = _merged(table, overrides)
    if base is None:
        return name, own
    if not isinstance(base, str) or base in (name, *above):
        raise ValueError(f"recipe {name!r} needs another recipe by name as its base, got {base!r}.")
    below = _table_of(base, dataset, (*above, name))[1]
    below.pop("published", None)
    return name, _merged(below, own)


def _merged(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A table with some of its settings replaced, also those of the tables within it."""
    merged = dict(table)
    for key, value in overrides.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = _merged(inner, value)
        merged[key] = value
    return merged
