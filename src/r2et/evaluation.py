"""Evaluation: everything that is measured on a trained model, as one row of results."""

import copy
import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from r2et.attacks import (
    Applicant,
    Attack,
    Attacked,
    Ball,
    Budget,
    Curve,
    Effort,
    Rule,
    Threat,
    applicant_threat,
    attack_curve,
    er_attack,
    flip_attack,
    mse_attack,
    read_rules,
    rule_names,
    strong_attack,
    what_it_buys,
)
from r2et.attacks.diagnosis import alarms, last_doubling
from r2et.attacks.single import ROWS_AT_ONCE as WALKED_AT_ONCE
from r2et.attacks.strong import NUMBERS_AT_ONCE as STRONG_AT_ONCE
from r2et.data import Split
from r2et.explainers import Explainer, gradient, log_odds, predicted, slope
from r2et.metrics import METRICS, Case
from r2et.metrics.sensitivity import null_share
from r2et.metrics.statistics import auc, correlation, mean_with_interval
from r2et.metrics.thickness import explained, gaussian, thickness
from r2et.naming import nearest
from r2et.randomness import stream
from r2et.ranking import distinct_sets, order

EVALUATED = ("er", "mse", "strong")
APPLICANT = "applicant"
PER_ATTACK = ("precision@k", "pearson", "mse", "kendall", "spearman", "sen", "thickness")
PER_MODEL = ("dffot", "comp", "suff", "hessian norm", "saliency norm", "tie")
CORRELATED = ("gaussian thickness", "least gaussian thickness", "hessian norm")
SHOWN_CHANGE = 0.005  # of a scaled feature; less is not worth a reader's attention
SCATTERED = 400  # dots of a scatter plot


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is attacked and how hard.

    `attacks` are those run, of EVALUATED and "applicant", changes that a person could make.
    `examples` of the test part are attacked, the first ones after the split's shuffle; `decisions`
    of them are told in full, changed as a person could for `decision_radius`. `small_radius` is
    where flippable predictions are counted; `epsilons` are the radii of the curve, besides that of
    `er`. `gauge_free` has the strong attack also aimed at the explanation without the directions
    in which one-hot columns cannot vary.
    """

    k: int = 8
    attacks: tuple[str, ...] = (*EVALUATED, APPLICANT)
    gauge_free: bool = False
    examples: int = 300
    decisions: int = 6
    decision_radius: float = 1.0
    small_radius: float = 0.1
    epsilons: tuple[float, ...] = (0.1, 0.25, 0.5)
    record_every: int = 10
    er: Budget = field(default_factory=Budget)
    strong: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        """Refuse settings under which nothing can be measured."""
        if self.examples < 2 or self.decisions < 0 or self.record_every < 1:
            raise ValueError(
                "an evaluation needs examples >= 2, decisions >= 0 and record_every >= 1, "
                f"got {self.examples}, {self.decisions} and {self.record_every}."
            )
        radii = (self.decision_radius, self.small_radius, *self.epsilons)
        if not all(0 < radius < math.inf for radius in radii):
            raise ValueError(f"the radii of an evaluation must be positive, got {radii}.")
        known = (*EVALUATED, APPLICANT)
        for name in self.attacks:
            if name not in known:
                raise ValueError(f"an evaluation has no attack {name!r}: {nearest(name, known)}")
        if not self.attacks or len(set(self.attacks)) < len(self.attacks):
            raise ValueError(
                f"an evaluation needs one or more attacks, each named once, got {self.attacks}."
            )
        if self.gauge_free and "strong" not in self.attacks:
            raise ValueError("an evaluation is gauge_free by the strong attack: name it, too.")


def evaluate(
    model: nn.Module,
    split: Split,
    settings: EvaluationSettings,
    *,
    explain: Explainer = gradient,
    rules: Mapping[str, Rule] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """What the test part shows of a model: means, intervals, series for figures, told decisions.

    All in float64, on a copy: in float32 a sure model's explanations round to ties. `rules` say
    what a person could change, those that come with the data set unless given.
    """
    started = time.perf_counter()
    model = copy.deepcopy(model).double().eval()
    device = next(model.parameters()).device
    whole, labels = split.test.x.double().to(device), split.test.y.to(device)
    x, truth = whole[: settings.examples], labels[: settings.examples]
    y = predicted(model, x)

    walks: dict[str, Attacked] = {
        name: build_attack(name, settings, explain=explain, seed=seed)(model, x, y)
        for name in ("er", "mse")
        if name in settings.attacks
    }
    attacks = {name: walk.x for name, walk in walks.items()}
    curve, decisions, buys = None, [], []
    if "strong" in settings.attacks:
        others = list(walks.values())
        curve = strong_curve(model, x, y, settings, explain=explain, others=others, seed=seed)
        attacks["strong"] = curve.x[-1]
    if APPLICANT in settings.attacks:
        person = applicant(split, rules, settings.decision_radius)
        changed = build_attack(
            "strong", settings, explain=explain, threat=person, radius=person.radius, seed=seed
        )(model, x, y)
        attacks[APPLICANT] = changed.x
        decisions = told_decisions(model, split, y, changed, person, settings)
        buys = what_it_buys(person)

    values: dict[str, Tensor] = {}
    for name, attacked in attacks.items():
        case = Case.of(model, explain, x, attacked, y, settings.k)
        for metric in PER_ATTACK:
            values[f"{name} {metric}"] = METRICS[metric].measure(case)
    for metric in PER_MODEL:
        values[metric] = METRICS[metric].measure(case)
    if settings.gauge_free:
        aimed = build_attack("strong", settings, explain=_gauge_free(explain, split), seed=seed)
        values[f"strong gauge-free {PER_ATTACK[0]}"] = aimed(model, x, y).precision
    flippable = flip_attack(radius=settings.small_radius)(model, x, y)
    values["flippable"] = flippable.double()
    with torch.no_grad():
        margins = slope(model, x, y, "margin")
    values["null share"] = null_share(margins, split.dataset.one_hot)
    around = thickness(
        model,
        x,
        y,
        gaussian(settings.er.radius / 2),
        explain=explain,
        k=settings.k,
        variant="probability",
        samples=8,
        points=8,
        generator=stream(seed, "gaussian thickness"),
    )
    values["gaussian thickness"] = around.value
    values["least gaussian thickness"] = around.minimum
    before = explained(model, explain, x, y)
    measures = {name: float(each.double().mean()) for name, each in values.items()}
    measures["clean AUC"] = auc(model, whole, labels)
    measures["distinct sets"] = float(distinct_sets(before, settings.k))
    doubling = None if curve is None else last_doubling(curve.attacks[-1])
    if doubling is not None:
        measures["last doubling"] = doubling.change
    if len(truth.unique()) > 1:  # of a rare class the attacked examples may show none
        for name, attacked in attacks.items():
            measures[f"{name} attacked AUC"] = auc(model, attacked, truth)
    series: dict[str, Any] = {"profile": profile_of(before)}
    if curve is not None:
        series["curve"] = curve_of(walks.get("er"), curve, settings)
    if "er" in walks:
        series["scatter"] = scatter_of(walks["er"], values)
    return {
        "measures": measures,
        "intervals": {name: _interval(each) for name, each in values.items()},
        "series": series,
        "decisions": decisions,
        "change buys": buys,
        "alarms": [] if curve is None else alarms(model, x, y, curve, settings.k),
        "examples": len(x),
        "features": before.shape[-1],
        "k": settings.k,
        "radii": {
            "attack": settings.er.radius,
            "decision": settings.decision_radius,
            "flippable": settings.small_radius,
        },
        "seconds": round(time.perf_counter() - started, 2),
    }


def _gauge_free(explain: Explainer, split: Split) -> Explainer:
    """The same explainer without directions in which the one-hot columns cannot vary."""
    if "one_hot" not in inspect.signature(explain).parameters:
        raise ValueError(
            "a gauge-free explanation takes an explainer with the choice `one_hot`: give one of "
            "EXPLAINERS, or leave out gauge_free."
        )
    return partial(explain, one_hot=split.dataset.one_hot)  # type: ignore[call-arg]


def build_attack(
    name: str,
    settings: EvaluationSettings,
    *,
    explain: Explainer = gradient,
    threat: Threat = Ball(),  # noqa: B008 - a frozen record
    seed: int = 0,
    radius: float | None = None,
) -> Attack:
    """One of the attacks EVALUATED with these settings, ready for (model, x, y)."""
    if name not in EVALUATED:
        raise ValueError(f"an attack is one of {', '.join(EVALUATED)}, got {name!r}.")
    radius = settings.er.radius if radius is None else radius
    if name == "strong":
        return strong_attack(
            k=settings.k,
            explain=explain,
            radius=radius,
            threat=threat,
            effort=settings.strong,
            seed=seed,
        )
    weak = er_attack if name == "er" else partial(mse_attack, seed=seed)
    return weak(
        k=settings.k,
        explain=explain,
        budget=replace(settings.er, radius=radius),
        threat=threat,
        record_every=settings.record_every,
    )


def rows_at_once(name: str, settings: EvaluationSettings, x: Tensor) -> int:
    """How many rows such as x one of the attacks EVALUATED takes without splitting them."""
    if name != "strong":
        return WALKED_AT_ONCE
    numbers = max(settings.strong.starts, 1) * max(x[:1].numel(), 1)
    return max(1, STRONG_AT_ONCE // numbers)


def strong_curve(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: EvaluationSettings,
    *,
    explain: Explainer,
    others: Sequence[Attacked],
    seed: int,
) -> Curve:
    """The strong attack at all radii up to that of ERAttack, merged with the other attacks.

    Below the largest radius, where less is to be found, it takes half the rounds.
    """
    radii = [*(each for each in settings.epsilons if each < settings.er.radius), settings.er.radius]
    half = replace(settings.strong, rounds=math.ceil(settings.strong.rounds / 2))

    def build(radius: float) -> Attack:
        whole = radius == settings.er.radius
        chosen = settings if whole else replace(settings, strong=half)
        return build_attack("strong", chosen, explain=explain, seed=seed, radius=radius)

    return attack_curve(
        build,
        radii,
        k=settings.k,
        explain=explain,
        others=others,
        seed=seed,
    )(model, x, y)


def applicant(
    split: Split, rules: Mapping[str, Rule] | None = None, radius: float = 1.0
) -> Applicant:
    """What a person could change, by the rules given or those that come with the data set."""
    name = split.dataset.name
    if rules is None:
        rules = read_rules(name) if name in rule_names() else {}
    return applicant_threat(split, rules, radius=radius)


def _interval(values: Tensor) -> list[float]:
    mean = mean_with_interval(values)
    return [mean.low, mean.high]


def curve_of(
    er: Attacked | None, strong: Curve, settings: EvaluationSettings
) -> dict[str, list[float]]:
    """Mean P@k against the radius: under the strong attack, and along ERAttack's walk if it ran.

    With the share of examples whose smallest breaking radius is within it.
    """
    epsilons = strong.epsilons.tolist()
    found = {
        "epsilon": [0.0, *epsilons],
        "strong": [1.0, *strong.precision.mean(1).tolist()],
        "broken": [0.0, *((strong.precision < 1).double().mean(1).tolist())],
    }
    if er is None:
        return found
    walk = er.history.mean(1)
    steps = er.steps.to(walk.device).double()

    def reached(radius: float) -> float:
        return float(walk[steps * settings.er.step <= radius * (1 + 1e-9)][-1])

    return found | {"er": [1.0, *(reached(each) for each in epsilons)]}


def profile_of(before: Tensor) -> dict[str, list[float]]:
    """Scores by rank as shares of the largest: median and middle half over the examples."""
    ranked = before.sort(dim=-1, descending=True).values
    top = ranked[:, :1]
    shares = ranked[top.squeeze(-1) > 0] / top[top.squeeze(-1) > 0]
    if not len(shares):
        return {"median": [], "low": [], "high": []}
    low, median, high = torch.quantile(shares, torch.tensor([0.25, 0.5, 0.75]).to(shares), dim=0)
    return {"median": _short(median), "low": _short(low), "high": _short(high)}


def scatter_of(er: Attacked, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Thickness and Hessian norm against the steps ERAttack needs for its first flip.

    Each with its Spearman ("correlation") and Pearson correlation with that manipulation epoch.
    """
    flip = er.first_flip.double()
    last = int(er.steps[-1])
    measured = {
        "thickness": values["er thickness"],
        **{name: values[name] for name in CORRELATED},
    }
    return {
        "first flip": er.first_flip[:SCATTERED].tolist(),
        **{name: _short(each[:SCATTERED]) for name, each in measured.items()},
        "never flipped": float((er.first_flip > last).double().mean()),
        "last step": last,
        "correlation": {name: correlation(each, flip) for name, each in measured.items()},
        "pearson": {name: correlation(each, flip, "pearson") for name, each in measured.items()},
    }


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def told_decisions(
    model: nn.Module,
    split: Split,
    y: Tensor,
    attacked: Attacked,
    threat: Threat,
    settings: EvaluationSettings,
) -> list[dict[str, Any]]:
    """The first test decisions with their reasons before and after an attack on all of them."""
    count = min(settings.decisions, len(y))
    x, y = split.test.x[:count].to(attacked.x), y[:count]
    with torch.no_grad():
        sure = [torch.sigmoid(log_odds(model(each), y)) for each in (x, attacked.x[:count])]
    return [
        {
            "row": int(split.test.rows[number]),
            "predicted": split.dataset.classes[int(y[number])],
            "actual": split.dataset.classes[int(split.test.y[number])],
            "probability": [float(each[number]) for each in sure],
            "cost": float(threat.cost(attacked.x[number : number + 1], x[number : number + 1])),
            "precision": float(attacked.precision[number]),
            "values": changes(split, x[number], attacked.x[number]),
            "before": reasons(split, attacked.before[number], settings.k),
            "after": reasons(split, attacked.after[number], settings.k),
        }
        for number in range(len(x))
    ]


def changes(split: Split, x: Tensor, attacked: Tensor) -> list[dict[str, Any]]:
    """Each attribute of an applicant in words before and after, and by how much it was moved."""
    dataset = split.dataset
    before, after = (dataset.describe(split.scale.undo(each.cpu())) for each in (x, attacked))
    moved = dict.fromkeys(dataset.group_names, 0.0)
    for feature, change in zip(dataset.features, (attacked - x).tolist(), strict=True):
        moved[feature.group] = math.hypot(moved[feature.group], change)
    return [
        {
            "name": group,
            "before": before[group],
            "after": after[group] if moved[group] >= SHOWN_CHANGE else before[group],
            "moved": round(moved[group], 4),
        }
        for group in dataset.group_names
    ]


def reasons(split: Split, saliency: Tensor, k: int) -> list[dict[str, Any]]:
    """The top-k features of one explanation with their share of its total, first to last."""
    total = float(saliency.sum())
    names = [feature.name for feature in split.dataset.features]
    return [
        {"name": names[number], "share": float(saliency[number]) / total if total else 0.0}
        for number in order(saliency)[:k].tolist()
    ]
