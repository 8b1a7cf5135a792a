"""The attack laboratory: any attack on any model and data set, as records that can be printed."""

import copy
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2et.attacks import (
    ATTACKS,
    Attack,
    Ball,
    Budget,
    Curve,
    Effort,
    HandlerPoint,
    Threat,
    applicant_threat,
    attack_curve,
    compare_handlers,
    read_rules,
    rule_names,
)
from r2et.attacks.diagnosis import Doubling, alarms, last_doubling
from r2et.data import Dataset, Split
from r2et.evaluation import changes, one_hot_groups, reasons
from r2et.experiments.recipes import load_recipe
from r2et.experiments.runs import fitted
from r2et.explainers import EXPLAINERS, Explainer, check_inputs, predicted, slope
from r2et.metrics.sensitivity import null_share
from r2et.metrics.statistics import auc
from r2et.naming import nearest
from r2et.ranking import distinct_sets, precision_at_k, ties
from r2et.training import load

NOISE = ("shared", "fresh")
DRAWS = 5  # explanations with fresh noise over which P@k is averaged


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """What is attacked, by whom, and how hard."""

    attack: str = "strong"
    k: int = 8
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0)
    examples: int = 300
    explainer: str = "grad"
    of: str = "probability"
    gauge_free: bool = False
    noise: str = "shared"
    threat: str = "ball"
    handler: str | None = None
    rounds: int | None = None
    seconds: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse names that nothing goes by, and numbers with which nothing can be attacked."""
        for word, known in ((self.attack, ATTACKS), (self.explainer, EXPLAINERS)):
            if word not in known:
                raise ValueError(f"unknown name {word!r}: {nearest(word, known)}")
        if self.noise not in NOISE:
            raise ValueError(f"noise is shared or fresh, got {self.noise!r}.")
        if self.noise == "fresh" and self.explainer != "smooth-grad":
            raise ValueError(f"only smooth-grad draws noise, {self.explainer} does not.")
        if self.examples < 1 or not all(0 < each < float("inf") for each in self.epsilons):
            raise ValueError(
                "an attack needs examples >= 1 and positive radii, got "
                f"{self.examples} and {self.epsilons}."
            )


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an attack on the test part of a data set found."""

    settings: LabSettings
    curve: Curve
    clean_auc: float
    attacked_auc: float | None
    null_share: float
    ties: float
    distinct_sets: int
    fresh: Sequence[float] | None
    """With fresh noise: mean P@k without any attack, then at each radius."""
    doubling: Doubling | None
    alarms: Sequence[str]
    threat: Threat

    def table(self) -> list[dict[str, Any]]:
        """A line for each radius: mean P@k, and the share of examples broken."""
        precision = self.curve.precision
        fresh = [{}] * len(precision)  # type: list[dict[str, float]]
        if self.fresh is not None:
            fresh = [{"P@k, fresh noise": each} for each in self.fresh[1:]]
        return [
            {
                "epsilon": radius,
                "P@k": float(row.mean()),
                "broken": float((row < 1).double().mean()),
                **more,
            }
            for radius, row, more in zip(
                self.curve.epsilons.tolist(), precision, fresh, strict=True
            )
        ]

    def members(self) -> dict[str, float]:
        """Mean P@k that each search of an ensemble reached at the largest radius."""
        found = self.curve.attacks[-1].members
        return {name: float(each.mean()) for name, each in found.items() if name}

    def iterations(self) -> list[str]:
        """What the papers bound, the steps to the first flip, in words; of walks only."""
        found = self.curve.attacks[-1]
        if found.members:
            return []
        last = int(found.steps[-1])
        flipped = found.first_flip[found.first_flip <= last]
        if not len(flipped):
            return [f"No pair changed places within {last} steps."]
        return [
            f"The first pair changes places after {int(flipped.median())} steps in the median of "
            f"{len(flipped)} broken examples, {int(flipped.max())} at most."
        ]

    def smallest(self) -> dict[str, float | None]:
        """Quartiles of the smallest breaking radius, None where it is beyond all radii."""
        return {
            name: value if (value := float(_quantile(self.curve.smallest, at))) < 1e300 else None
            for name, at in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75))
        }


def _quantile(values: Tensor, at: float) -> Tensor:
    return values.sort().values[min(len(values) - 1, int(at * len(values)))]


def given_model(
    dataset: Dataset, model: str | None, weights: Path | None, seed: int
) -> tuple[nn.Module, Split]:
    """The model to attack and the split whose test part it has not seen.

    `model` is a file that `r2et run` wrote, or `module:factory` with its `weights`; without it a
    Vanilla network is trained by the recipe `converged`.
    """
    if model is None:
        split = dataset.split(seed)
        recipe = load_recipe("converged", dataset.name)
        return fitted(split, recipe, "vanilla", {})[0], split
    if ":" in model and not Path(model).exists():
        made = _made(model)
        if weights is not None:
            made, _ = load(weights, made)
        return made, dataset.split(seed)
    if weights is not None:
        raise ValueError("--weights belong to a model given as module:factory.")
    if not Path(model).is_file():
        raise ValueError(
            f"there is no model file {model}: give one that `r2et run` wrote, or module:factory."
        )
    found, recipe_of = load(Path(model))
    if recipe_of.get("data", dataset.digest) != dataset.digest:
        raise ValueError(
            f"{model} was trained on {recipe_of.get('dataset')!r} data of another content: give "
            "the data it was trained on."
        )
    return found, dataset.split(int(recipe_of.get("seed", seed)))


def _made(name: str) -> nn.Module:
    """The model that `module:factory` returns; modules of the working folder are found, too."""
    module, _, factory = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, TypeError) as problem:
        raise ValueError(
            f"{name} could not be called: {problem}. Expected module:factory, a function without "
            "arguments that returns an nn.Module."
        ) from problem
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name} returned {type(made).__name__}, expected an nn.Module.")
    return made


def explainer_of(settings: LabSettings, split: Split, seed: int = 0) -> Explainer:
    """The explainer asked for, with its choices."""
    choices: dict[str, Any] = {"of": settings.of}
    if settings.gauge_free:
        choices["one_hot"] = one_hot_groups(split)
    if settings.explainer == "smooth-grad":
        choices["seed"] = seed
    return partial(EXPLAINERS[settings.explainer], **choices)


def threat_of(settings: LabSettings, split: Split) -> Threat:
    """The threat asked for: "ball", "applicant", or a file of rules."""
    if settings.threat == "ball":
        return Ball()
    name = split.dataset.name
    if settings.threat == "applicant":
        return applicant_threat(split, read_rules(name) if name in rule_names() else {})
    if not Path(settings.threat).is_file():
        raise ValueError(
            f"a threat is ball, applicant or the path of a TOML file of rules, got "
            f"{settings.threat!r}."
        )
    return applicant_threat(split, read_rules(Path(settings.threat)))


def attack_at(settings: LabSettings, radius: float, explain: Explainer, threat: Threat) -> Attack:
    """The attack asked for at a radius; a choice that it does not offer is refused."""
    build = ATTACKS[settings.attack].build
    offered = inspect.signature(build).parameters
    asked: dict[str, Any] = {
        "handler": settings.handler,
        "seconds": settings.seconds,
        "effort": None if settings.rounds is None else replace(Effort(), rounds=settings.rounds),
    }
    flags = {"handler": "--handler", "seconds": "--seconds", "effort": "--rounds"}
    choices = {name: value for name, value in asked.items() if value is not None}
    for name in choices:
        if name not in offered:
            raise ValueError(
                f"the attack {settings.attack!r} takes no {flags[name]}: leave it out."
            )
    usual = {
        "radius": radius,
        "budget": Budget(radius=radius),
        "record_every": 10,
        "seed": settings.seed,
    }
    choices |= {name: value for name, value in usual.items() if name in offered}
    return build(k=settings.k, explain=explain, threat=threat, **choices)


def attack_model(model: nn.Module, split: Split, settings: LabSettings) -> Findings:
    """The curve of an attack on the first test examples, with what would expose it as hollow.

    In float64, on a copy, as everything that is measured.
    """
    model = copy.deepcopy(model).double().eval()
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    whole, labels = split.test.x.double().to(device), split.test.y.to(device)
    x, truth = whole[: settings.examples], labels[: settings.examples]
    try:
        check_inputs(model, x[:1])
    except RuntimeError as problem:
        raise ValueError(
            f"the model cannot take rows of {split.dataset.n} columns, those of "
            f"{split.dataset.name}: {problem}."
        ) from problem
    y = predicted(model, x)
    explain, threat = explainer_of(settings, split), threat_of(settings, split)
    curve = attack_curve(
        lambda radius: attack_at(settings, radius, explain, threat),
        settings.epsilons,
        k=settings.k,
        explain=explain,
        threat=threat,
        seed=settings.seed,
    )(model, x, y)
    with torch.no_grad():
        margins = slope(model, x, y, "margin")
    return Findings(
        settings=settings,
        curve=curve,
        clean_auc=auc(model, whole, labels),
        attacked_auc=auc(model, curve.x[-1], truth) if len(truth.unique()) > 1 else None,
        null_share=float(null_share(margins, one_hot_groups(split)).mean()),
        ties=float(ties(curve.before, settings.k).double().mean()),
        distinct_sets=distinct_sets(curve.before, settings.k),
        fresh=_with_fresh_noise(model, split, x, y, curve, settings),
        doubling=_doubled(model, x, y, settings, explain, threat),
        alarms=alarms(model, x, y, curve, settings.k),
        threat=threat,
    )


def _doubled(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: LabSettings,
    explain: Explainer,
    threat: Threat,
) -> Doubling | None:
    """What another doubling of the effort changes at the largest radius, None without an effort."""
    if "effort" not in inspect.signature(ATTACKS[settings.attack].build).parameters:
        return None
    rounds = Effort().rounds if settings.rounds is None else settings.rounds
    longer = replace(settings, rounds=2 * rounds, seconds=None)
    return last_doubling(attack_at(longer, max(settings.epsilons), explain, threat)(model, x, y))


def _with_fresh_noise(
    model: nn.Module, split: Split, x: Tensor, y: Tensor, curve: Curve, settings: LabSettings
) -> list[float] | None:
    """Mean P@k between explanations with noise drawn anew, clean, then attacked at each radius.

    The attack saw other noise. What it did not reach without an attack is the noise alone.
    """
    if settings.noise == "shared":
        return None

    def explained(places: Tensor, seed: int) -> Tensor:
        with torch.no_grad():
            return explainer_of(settings, split, seed)(model, places, y)

    draws = [
        (explained(x, 2 * draw + 1), [explained(each, 2 * draw + 2) for each in (x, *curve.x)])
        for draw in range(DRAWS)
    ]
    return [
        sum(float(precision_at_k(clean, after[at], settings.k).mean()) for clean, after in draws)
        / DRAWS
        for at in range(1 + len(curve.x))
    ]


def compared_handlers(model: nn.Module, split: Split, settings: LabSettings) -> list[HandlerPoint]:
    """Every way to keep predictions at every step size, at the largest radius asked for."""
    model = copy.deepcopy(model).double().eval()
    x = split.test.x[: settings.examples].double()
    return compare_handlers(
        model,
        x,
        predicted(model, x),
        k=settings.k,
        explain=explainer_of(settings, split),
        budget=Budget(radius=max(settings.epsilons), steps=100),
        threat=threat_of(settings, split),
        seed=settings.seed,
    )


def example_rows(split: Split, findings: Findings) -> list[dict[str, Any]]:
    """A row for each example: P@k at each radius, the attacked inputs, the reasons, in words."""
    curve, k = findings.curve, findings.settings.k
    radii = curve.epsilons.tolist()
    x = split.test.x[: curve.x.shape[1]].to(curve.x)
    rows = []
    for number in range(len(x)):
        smallest = float(curve.smallest[number])
        rows.append(
            {
                "row": int(split.test.rows[number]),
                "smallest epsilon": smallest if smallest < float("inf") else None,
                "reasons": reasons(split, curve.before[number], k),
                "nearest": _moved(split, x[number], curve.nearest[number]),
                "attacked": [
                    {
                        "epsilon": radius,
                        "P@k": float(curve.precision[at, number]),
                        "input": split.scale.undo(curve.x[at, number].cpu()).tolist(),
                        "changes": _moved(split, x[number], curve.x[at, number]),
                        "reasons": reasons(split, curve.after[at, number], k),
                    }
                    for at, radius in enumerate(radii)
                ],
            }
        )
    return rows


def _moved(split: Split, x: Tensor, attacked: Tensor) -> list[Mapping[str, Any]]:
    return [each for each in changes(split, x, attacked) if each["before"] != each["after"]]
