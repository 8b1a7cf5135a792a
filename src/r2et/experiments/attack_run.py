"""One attack on one model and data set, as records that can be printed."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2et.actionable.rules import actionable_set, read_rules
from r2et.attacks.comparison import HandlingPoint, compare_handling
from r2et.attacks.diagnostics import Doubling, Optimality, alarms, last_doubling, optimality
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.moo import TrustRegion
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.radius import PAIRS, WALK, Curve
from r2et.attacks.registry import ATTACKS, Budget, attack, attack_curve
from r2et.attacks.search import AttackProblem
from r2et.auditing.models import load_model, needs_network
from r2et.core.exact import exact_copy
from r2et.core.geometry import one_of
from r2et.core.naming import briefly, counted, nearest
from r2et.core.ranking import check_k, precision_at_k, ties
from r2et.core.rng import stream
from r2et.data.dataset import Dataset, Split
from r2et.evaluation.decisions import Change, FeatureShare, changes, reasons
from r2et.evaluation.evaluate import actionable_of, task_of
from r2et.evaluation.protocol import EvaluationSettings
from r2et.experiments.attack_records import (
    ACTIONABLE,
    CONTRIBUTIONS,
    AttackRun,
    AttackRunSettings,
)
from r2et.experiments.config import load_recipe, recipe_for
from r2et.experiments.runner import fitted
from r2et.explainers import (
    Explainer,
    Shapley,
    SmoothGrad,
    check_inputs,
    draw_reference,
    gradient,
    input_gradient,
    predicted,
    slopes,
)
from r2et.metrics.exchanges import exchange_agreement
from r2et.metrics.individuality import distinct_sets
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.statistics import auc
from r2et.perturbations import PERTURBATIONS, Box, L2Ball, PerturbationSet
from r2et.preflight.checks import PROBES
from r2et.preflight.kinds import Finding
from r2et.preflight.validation import cleared
from r2et.theory.complexity import estimated_constants, iteration_bound

WIDE = EnsembleBudget(rounds=2, starts=2, steps=30, points=8, moves=8, pairs=0, even=2, itself=True)
"""The effort on explanations of many features, where random goals spread too thin, and on those
that ask thousands of rows for each: of eight attributes 256 mixtures with every reference row."""
REFERENCE = 20  # rows of the training part that contributions are told against
BESIDE = 0.1  # how far from a picture its network is looked at
DRAWS = 5  # explanations with fresh noise over which P@k is averaged


def given_model(
    dataset: Dataset, model: str | None, weights: Path | None, seed: int
) -> tuple[nn.Module, Split]:
    """The model to attack and the split whose test part it has not seen.

    `model` is a file that `r2et run` wrote, or `module:factory` with its `weights`; without it a
    Vanilla network is trained by the recipe `converged`.
    """
    if model is None:
        if weights is not None:
            raise needs_network(weights)
        split = dataset.split(seed)
        recipe = load_recipe(recipe_for(dataset), dataset.name)
        return fitted(split, recipe, "vanilla", {})[0], split
    loaded = load_model(model, weights)
    recipe_of = loaded.recipe
    if recipe_of.get("data", dataset.digest) != dataset.digest:
        trained_on = recipe_of.get("dataset")
        which = (
            f"other rows or columns of {dataset.name}"
            if trained_on == dataset.name
            else f"{trained_on or 'other data'}, not on {dataset.name}"
        )
        raise ValueError(f"{model} was trained on {which}: give the data it was trained on.")
    return loaded.model, dataset.split(int(recipe_of.get("seed", seed)))


def check_request(settings: AttackRunSettings, dataset: Dataset) -> None:
    """Refuse what cannot be attacked so, before any time is spent on a model."""
    if settings.explainer == CONTRIBUTIONS and not dataset.tabular:
        raise ValueError(
            f"contributions are those of the attributes of tables, but {dataset.name} is none: "
            f"choose {', '.join(slopes())}."
        )
    check_k(settings.k, len(_names(settings, dataset)))
    budget_at(
        settings, max(settings.epsilons), perturbation_of(settings, dataset.split(settings.seed))
    )


def _names(settings: AttackRunSettings, dataset: Dataset) -> Sequence[str]:
    """What the explained features are called: columns, or of contributions their attributes."""
    if settings.explainer == CONTRIBUTIONS:
        return dataset.group_names
    return [dataset.structure.feature_name(number) for number in range(dataset.n)]


def explainer_of(settings: AttackRunSettings, split: Split, seed: int = 0) -> Explainer:
    """The explainer asked for, with its choices."""
    if settings.explainer == CONTRIBUTIONS:
        return _contributions(settings, split)
    choices: dict[str, Any] = {"of": settings.of}
    if split.dataset.structure.explained:
        choices["groups"] = split.dataset.structure.explained
    if settings.project_one_hot:
        choices["one_hot"] = split.dataset.structure.one_hot
    explain = slopes()[settings.explainer]
    if isinstance(explain, SmoothGrad):
        choices["seed"] = seed
    return replace(explain, **choices)


def _contributions(settings: AttackRunSettings, split: Split) -> Shapley:
    train = split.train
    rows = min(REFERENCE, len(train))
    choices: dict[str, Any] = {
        "of": settings.of,
        "groups": split.dataset.table.groups,
        "reference": draw_reference(train.x.double(), train.y, rows=rows, seed=settings.seed),
    }
    return Shapley(**choices)


def perturbation_of(settings: AttackRunSettings, split: Split) -> PerturbationSet:
    """The set asked for: a norm of PERTURBATIONS, "actionable", or a file of rules."""
    asked = settings.perturbation
    if asked in PERTURBATIONS:
        return task_of(split, EvaluationSettings(norm=asked), gradient).perturbation
    if asked == ACTIONABLE:
        return actionable_of(split)
    if not asked.endswith(".toml"):
        raise ValueError(
            f"unknown perturbation set {asked!r}: {nearest(asked, (*PERTURBATIONS, ACTIONABLE))}"
            " For rules of your own give the path of a .toml file."
        )
    return actionable_set(split, read_rules(Path(asked)))


def budget_at(settings: AttackRunSettings, radius: float, perturbation: PerturbationSet) -> Budget:
    """What the attack asked for may spend at a radius; a choice it does not offer is refused."""
    method, box = ATTACKS[settings.attack], isinstance(perturbation, Box)
    dear = box or settings.explainer == CONTRIBUTIONS
    budget = method.budget
    for flag, value, offered in (
        ("--handling", settings.handling, isinstance(budget, WalkBudget)),
        ("--seconds", settings.seconds, method.timed),
        ("--rounds", settings.rounds, isinstance(budget, EnsembleBudget)),
    ):
        if value is not None and not offered:
            raise ValueError(f"the attack {settings.attack!r} takes no {flag}: leave it out.")
    if isinstance(budget, WalkBudget):
        # A box is crossed in about twenty steps, whatever its size.
        budget = replace(budget, step=radius / 20, steps=100) if box else budget
        return replace(budget, handling=settings.handling or budget.handling)
    if isinstance(budget, EnsembleBudget):
        budget = WIDE if dear else budget
        return replace(budget, rounds=settings.rounds or budget.rounds)
    return budget


def attack_model(model: nn.Module, split: Split, settings: AttackRunSettings) -> AttackRun:
    """The curve of an attack on the first test examples, with what would expose it as hollow.

    In float64, on a copy, as everything that is measured.
    """
    model, found = _readied(model, split)
    whole, labels = _test_part(model, split)
    x, truth = whole[: settings.examples], labels[: settings.examples]
    y, structure = predicted(model, x), split.dataset.structure
    explain, perturbation = explainer_of(settings, split), perturbation_of(settings, split)
    dear = isinstance(perturbation, Box) or isinstance(explain, Shapley)
    curve = attack_curve(
        model,
        x,
        y,
        k=settings.k,
        radii=settings.epsilons,
        method=settings.attack,
        explainer=explain,
        perturbation=perturbation.at(max(settings.epsilons)),
        budget={radius: budget_at(settings, radius, perturbation) for radius in settings.epsilons},
        pairs=0 if dear else PAIRS,
        walk=0 if dear else WALK,
        seconds=settings.seconds,
        seed=settings.seed,
    )
    with torch.no_grad():
        margins = input_gradient(model, x, y, "margin")
    return AttackRun(
        settings=settings,
        curve=curve,
        clean_auc=auc(model, whole, labels),
        examples_auc=(auc(model, x, truth), auc(model, curve.x[-1], truth))
        if len(truth.unique()) > 1
        else None,
        off_data_share=float(off_data_share(margins.flatten(1), structure.one_hot).mean()),
        exchanges=None
        if isinstance(explain, Shapley)
        else exchange_agreement(model, x, y, structure.exchangeable, explain=explain).mean(),
        ties=float(ties(curve.before, settings.k).double().mean()),
        distinct_sets=distinct_sets(curve.before, settings.k),
        fresh=_with_fresh_noise(model, split, x, y, curve, settings),
        doubling=_doubled(model, x, y, settings, curve, explain, perturbation),
        optimality=_optimality(model, x, y, settings, curve, explain, perturbation),
        alarms=alarms(model, x, y, curve, settings.k),
        perturbation=perturbation,
        preflight=found,
        bound=_iteration_bound(model, x, y, settings, explain, perturbation),
        contributions=_in_words(explain, split) if isinstance(explain, Shapley) else None,
    )


def _in_words(explain: Shapley, split: Split) -> str:
    """Of what contributions are, and against which rows."""
    assert explain.reference is not None
    attributes = counted(len(split.dataset.group_names), "attribute")
    rows = counted(len(explain.reference), "row")
    return (
        f"Contributions are those of {attributes} to the {explain.of} of the predicted class, told "
        f"against {rows} drawn from the training part; shown are the largest, whatever their sign."
    )


def _iteration_bound(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: AttackRunSettings,
    explain: Explainer,
    perturbation: PerturbationSet,
) -> Tensor | None:
    """What Theorem 5.1 allows the MOO attack at the largest radius, None for other attacks."""
    if settings.attack != "moo":
        return None
    constants = estimated_constants(
        model,
        x,
        y,
        k=settings.k,
        explainer=explain,
        perturbation=perturbation.at(max(settings.epsilons)),
        seed=settings.seed,
    )
    return iteration_bound(constants, TrustRegion())


def _readied(model: nn.Module, split: Split) -> tuple[nn.Module, tuple[Finding, ...]]:
    """A copy in float64 as everything is measured, and what preflight found in the model.

    Refused if it cannot take the data, or if its explanations would be false.
    """
    try:
        model = exact_copy(model)
        x = _test_part(model, split)[0][:PROBES]
        check_inputs(model, x)
        if not split.dataset.tabular:
            moves = L2Ball(radius=BESIDE).offsets(one_of(x), len(x), stream(0, "preflight"))
            x = x + moves
        model, found = cleared(model, x)
    except ValueError:
        raise
    except Exception as problem:  # whatever the user's own model raises
        raise ValueError(
            f"the model fails on a row of the {split.dataset.n} columns of {split.dataset.name} "
            f"({briefly(problem)}): give one that takes inputs (B, {split.dataset.n})."
        ) from problem
    return model, found


def _test_part(model: nn.Module, split: Split) -> tuple[Tensor, Tensor]:
    """Inputs in float64 and classes of the test part, where the model is."""
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    return split.test.x.double().to(device), split.test.y.to(device)


def _doubled(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: AttackRunSettings,
    curve: Curve,
    explain: Explainer,
    perturbation: PerturbationSet,
) -> Doubling | None:
    """What another doubling of the effort changes at the largest radius, None without an effort.

    Under a time limit it is the doubling that the attack had time for, if it had.
    """
    if not isinstance(ATTACKS[settings.attack].budget, EnsembleBudget):
        return None
    if settings.seconds is not None:
        return last_doubling(curve.attacks[-1])
    radius = max(settings.epsilons)
    spent = budget_at(settings, radius, perturbation)
    assert isinstance(spent, EnsembleBudget)
    found = attack(
        model,
        x,
        y,
        k=settings.k,
        method=settings.attack,
        explainer=explain,
        perturbation=perturbation.at(radius),
        budget=replace(spent, rounds=2 * spent.rounds),
        seed=settings.seed,
    )
    return last_doubling(found)


def _optimality(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: AttackRunSettings,
    curve: Curve,
    explain: Explainer,
    perturbation: PerturbationSet,
) -> Optimality | None:
    """How far from the worst there is the attack came at the largest radius, None if unknown."""
    within = perturbation.at(max(settings.epsilons))
    problem = AttackProblem(k=settings.k, explainer=explain, perturbation=within)
    return optimality(model, x, y, problem, curve.x[-1])


def _with_fresh_noise(
    model: nn.Module, split: Split, x: Tensor, y: Tensor, curve: Curve, settings: AttackRunSettings
) -> list[float] | None:
    """Mean P@k between explanations with noise drawn anew, clean, then attacked at each radius.

    The attack knew the noise of seed 0 and sees none of this. What the first number lacks to 1 is
    the doing of the noise alone.
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


def compared_handling(
    model: nn.Module, split: Split, settings: AttackRunSettings
) -> list[HandlingPoint]:
    """Every way to keep predictions at every step size, at the largest radius asked for."""
    model, _ = _readied(model, split)
    x = _test_part(model, split)[0][: settings.examples]
    return compare_handling(
        model,
        x,
        predicted(model, x),
        k=settings.k,
        explainer=explainer_of(settings, split),
        perturbation=perturbation_of(settings, split).at(max(settings.epsilons)),
        seed=settings.seed,
    )


def example_rows(split: Split, findings: AttackRun) -> list[dict[str, Any]]:
    """A row for each example: P@k, attacked input and reasons at each radius, changes in words.

    Inputs are in original units, by the names of their columns. "nearest" is the cheapest input
    found to break the example, None if none was.
    """
    curve, k = findings.curve, findings.settings.k
    names = _names(findings.settings, split.dataset)
    radii = curve.epsilons.tolist()
    x = split.test.x[: findings.examples].to(curve.x)
    rows = []
    for number in range(len(x)):
        smallest = float(curve.smallest[number])
        broken = smallest < math.inf
        rows.append(
            {
                "row": int(split.test.rows[number]),
                "input": _named(split, x[number]),
                "reasons": _plain(reasons(names, curve.before[number], k)),
                "smallest epsilon": smallest if broken else None,
                "nearest": _moved_to(split, x[number], curve.nearest[number]) if broken else None,
                "attacked": [
                    {
                        "epsilon": radius,
                        "P@k": float(curve.precision[at, number]),
                        **_moved_to(split, x[number], curve.x[at, number]),
                        "reasons": _plain(reasons(names, curve.after[at, number], k)),
                    }
                    for at, radius in enumerate(radii)
                ],
            }
        )
    return rows


def _moved_to(split: Split, x: Tensor, attacked: Tensor) -> dict[str, Any]:
    """An attacked input, and in words what was changed enough to be worth a reader's attention."""
    moved = [each for each in changes(split, x, attacked) if each.before != each.after]
    return {"input": _named(split, attacked), "changes": _plain(moved)}


def _plain(records: Sequence[Change | FeatureShare]) -> list[dict[str, Any]]:
    return [asdict(each) for each in records]


def _named(split: Split, x: Tensor) -> dict[str, float]:
    """A model input in original units, by the names of its columns."""
    values = split.scale.undo(x.cpu()).tolist()
    return {
        feature.name: value for feature, value in zip(split.dataset.features, values, strict=True)
    }
