"""Evaluation: everything that is measured on a trained model, as one row of results."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from r2et.actionable.rules import Rule, actionable_set, read_rules, rule_names
from r2et.actionable.sets import ActionableSet, what_it_buys
from r2et.attacks.diagnostics import alarms, last_doubling
from r2et.attacks.pgd import WalkBudget, flippable
from r2et.attacks.radius import PAIRS, WALK, Curve
from r2et.attacks.registry import Budget, attack, attack_curve
from r2et.attacks.search import AttackResult, Outputs, classes_changed, prediction
from r2et.core.exact import exact_copy
from r2et.core.geometry import one_of
from r2et.core.inputs import Joined
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.data.dataset import Split
from r2et.evaluation.decisions import decision_records
from r2et.evaluation.protocol import APPLICANT, DTYPES, EVALUATED, EvaluationSettings
from r2et.evaluation.results import MEASURES, Evaluation, KeptCurve, Profile, Radii, Scatter, Series
from r2et.explainers import (
    Explainer,
    InputExplainer,
    explained,
    explains_input,
    gradient,
    input_gradient,
    predicted,
)
from r2et.metrics import METRICS, Case
from r2et.metrics.faithfulness import shares_of
from r2et.metrics.individuality import distinct_sets, kappa, overlap
from r2et.metrics.sensitivity import manipulation_step, off_data_share
from r2et.metrics.statistics import accuracy, auc, auc_within, correlation, mean_with_interval
from r2et.metrics.thickness import gaussian, thickness
from r2et.models.linear import Product
from r2et.models.siamese import Siamese
from r2et.perturbations import PERTURBATIONS, UNSAID, PerturbationSet
from r2et.preflight.checks import PROBES
from r2et.preflight.kinds import Finding, in_words
from r2et.preflight.validation import cleared

CORRELATED = ("gaussian_thickness", "least_gaussian_thickness", "hessian_norm")
SCATTERED = 400  # dots of a scatter plot
PROFILED = 200  # places of a curve of scores by rank


def evaluate(
    model: nn.Module,
    split: Split,
    settings: EvaluationSettings,
    *,
    explain: Explainer = gradient,
    rules: Mapping[str, Rule] | None = None,
    seed: int = 0,
) -> Evaluation:
    """What the test part shows of a model: means, intervals, series for figures, told decisions.

    All in float64, on a copy: in float32 a sure model's explanations round to ties. `rules` say
    what a person could change, those that come with the data set unless given.
    """
    started = time.perf_counter()
    model = exact_copy(model, DTYPES[settings.dtype])
    weight = next(model.parameters())
    whole, labels = split.test.x.to(weight), split.test.y.to(weight.device)
    x, truth = whole[: settings.examples], labels[: settings.examples]
    task = task_of(split, settings, explain)
    found = looked_at(model, x, settings, task, seed)
    y = predicted(model, x)

    walks: dict[str, AttackResult] = {
        name: attacked_by(name, model, x, y, settings, task=task, seed=seed)
        for name in ("er", "mse")
        if name in settings.attacks
    }
    attacks = {name: walk.x for name, walk in walks.items()}
    curve, buys = None, list[str]()
    shown: tuple[AttackResult, PerturbationSet] | None = None
    if "strong" in settings.attacks:
        others = list(walks.values())
        curve = strong_curve(model, x, y, settings, task=task, others=others, seed=seed)
        attacks["strong"] = curve.x[-1]
    if APPLICANT in settings.attacks:
        person = actionable_of(split, rules, settings.decision_radius)
        changed = attacked_by(
            "strong", model, x, y, settings, task=replace(task, perturbation=person), seed=seed
        )
        attacks[APPLICANT] = changed.x
        shown, buys = (changed, person), what_it_buys(person)
    elif not split.dataset.tabular and walks:
        shown = next(iter(walks.values())), task.perturbation

    values: dict[str, Tensor] = {}
    for name, attacked in attacks.items():
        case = case_of(model, split, settings, task, x, attacked, y)
        values |= measured(case, "attack", name)
    values |= measured(case, "model")
    if task.features is not None:
        values |= measured(case, "removal") | flips_of(case.flips, y, two=bool(labels.max() < 2))
    for name, walk in walks.items():
        if not split.dataset.tabular and walk.last is not None:
            values |= at_the_end(name, walk, model, x, y, settings.k, task)
    if settings.noise:
        values["noise_precision"] = noise_precision(model, x, y, settings, task, seed)
    if settings.project_one_hot:
        aimed = replace(task, explain=_projected(explain, split))
        found_there = attacked_by("strong", model, x, y, settings, task=aimed, seed=seed)
        values["strong_project_one_hot_precision"] = found_there.precision
    near = task.perturbation.at(settings.small_radius)
    values["flippable"] = flippable(model, x, y, perturbation=near).double()
    if split.dataset.structure.one_hot:
        with torch.no_grad():
            margins = input_gradient(model, x, y, "margin")
        values["off_data_share"] = off_data_share(margins, split.dataset.structure.one_hot)
    if split.dataset.structure.exchangeable:
        # Of a person with hardly any exchange to make, nothing can be ordered.
        values |= {key: each[known] for key, each in measured(case, "exchanges").items()
                   if (known := ~each.isnan()).sum() > 1}  # fmt: skip
    around = thickness(
        model,
        x,
        y,
        gaussian(settings.er.radius / 2),
        explain=explain,
        k=settings.k,
        variant="probability",
        samples=settings.neighbours,
        points=8,
        generator=stream(seed, "gaussian thickness"),
    )
    values["gaussian_thickness"] = around.value
    values["least_gaussian_thickness"] = around.minimum
    before = explained(model, explain, x, y)
    measures = {name: float(each.double().mean()) for name, each in values.items()}
    measures["clean_auc"] = auc(model, whole, labels)
    if labels.max() > 1:
        measures["accuracy"] = accuracy(model, whole, labels)
    if split.dataset.structure.pairs:
        first = split.dataset.y[split.test.rows[:, 0]].to(labels.device)
        measures["within_class_auc"] = auc_within(model, whole, labels, first)
    if "exchange_agreement" in values:
        measures["without_exchanges"] = 1 - len(values["exchange_agreement"]) / len(x)
    measures["distinct_sets"] = float(distinct_sets(before, settings.k))
    measures |= individuality(before, y, settings.k, measures.get("strong_precision"))
    doubling = None if curve is None else last_doubling(curve.attacks[-1])
    if doubling is not None:
        measures["last_doubling"] = doubling.change
    if len(truth.unique()) > 1:  # of a rare class the attacked examples may show none
        measures["before_auc"] = auc(model, x, truth)
        for name, attacked in attacks.items():
            measures[f"{name}_attacked_auc"] = auc(model, attacked, truth)
    return Evaluation(
        k=settings.k,
        examples=len(x),
        features=before.shape[-1],
        radii=Radii(
            attack=settings.er.radius,
            decision=settings.decision_radius,
            flippable=settings.small_radius,
            norm=settings.norm,
        ),
        measures=measures,
        intervals={key: _interval(each) for key, each in values.items()},
        series=Series(
            profile=profile_of(before),
            curve=curve_of(walks.get("er"), curve, settings),
            scatter=scatter_of(walks.get("er"), values, settings.manipulated),
        ),
        decisions=()
        if shown is None
        else decision_records(model, split, y, *shown, count=settings.decisions, k=settings.k),
        change_buys=tuple(buys),
        alarms=() if curve is None else tuple(alarms(model, x, y, curve, settings.k)),
        preflight=tuple(in_words(each) for each in found),
        seconds=round(time.perf_counter() - started, 2),
    )


def flips_of(share: Tensor, y: Tensor, *, two: bool) -> dict[str, Tensor]:
    """DFFOT with those that no removal flips apart, and by predicted class if there are `two`.

    `share` is infinite where no removal changes the class. What nobody is part of is left out.
    """
    never, whole = share.isinf(), share.clamp(max=1)
    found = {"never_flips": never.to(share.dtype), "dffot_of_flipped": share[~never]}
    if two:
        found |= {f"dffot_of_class_{number}": whole[y == number] for number in (0, 1)}
    return {key: each for key, each in found.items() if len(each) > 1}


def individuality(before: Tensor, y: Tensor, k: int, stability: float | None) -> dict[str, float]:
    """What people share of their reasons, within their class and overall, and kappa beyond that."""
    overall, within = overlap(before, k), overlap(before, k, y)
    beyond = None if stability is None or within is None else kappa(stability, within)
    found = {"overlap": overall, "class_overlap": within, "strong_kappa": beyond}
    return {key: value for key, value in found.items() if value is not None}


def measured(case: Case, needs: str, attack: str = "") -> dict[str, Tensor]:
    """The measures of a case that need the same and, if it is an attack, are of this one."""
    return {
        each.key: METRICS[each.metric].measure(case)
        for each in MEASURES.values()
        if each.metric and (METRICS[each.metric].needs, each.attack) == (needs, attack)
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What is attacked: an explanation, by which changes, and which outputs must be kept.

    `features` holds for each number of an example the feature it counts for, () if each is its
    own; None where what is explained are no features of the input.
    """

    explain: Explainer
    perturbation: PerturbationSet
    outputs: Outputs = prediction
    features: tuple[int, ...] | None = ()


def looked_at(
    model: nn.Module, x: Tensor, settings: EvaluationSettings, task: Task, seed: int
) -> tuple[Finding, ...]:
    """What preflight finds in a model that is about to be measured, refused if it is a fake.

    Pictures are looked at a little beside themselves: on a ground all of one shade, every pooling
    layer has a kink.
    """
    some = x[:PROBES]
    if some.ndim > 2:
        moves = task.perturbation.offsets(one_of(some), len(some), stream(seed, "preflight"))
        some = task.perturbation.project(some + moves, some)
    return cleared(model, some)[1]


def task_of(split: Split, settings: EvaluationSettings, explain: Explainer) -> Task:
    """What an evaluation attacks on data of this kind."""
    kind, structure = PERTURBATIONS[settings.norm], split.dataset.structure
    features = structure.explained if explains_input(explain) else None
    radius = settings.er.radius
    shift = split.scale.shift
    bounds = None
    if structure.bounds is not None:
        low, high = (each - shift for each in structure.bounds)
        bounds = (low, high)
    outputs = pair_and_singles if settings.singles else prediction
    ball = kind(radius=radius, bounds=bounds)
    return Task(explain=explain, perturbation=ball, outputs=outputs, features=features)


def pair_and_singles(model: nn.Module, x: Tensor) -> Sequence[Tensor]:
    """Logits of a pair, and of each of its two items alone: (B, 2), (B, C), (B, C)."""
    if not isinstance(model, Joined) or not isinstance(model.model, Siamese | Product):
        raise ValueError(
            "only networks of pairs predict single items: leave out singles, or measure one."
        )
    return model.model.outputs(*model.inputs.unpack(x))


def case_of(
    model: nn.Module,
    split: Split,
    settings: EvaluationSettings,
    task: Task,
    x: Tensor,
    attacked: Tensor,
    y: Tensor,
) -> Case:
    """An attacked batch, ready to be measured."""
    n = explained(model, task.explain, x[:1], y[:1]).shape[-1]
    return Case.of(
        model,
        task.explain,
        x,
        attacked,
        y,
        settings.k,
        sizes=shares_of(n) if settings.shares else None,
        groups=task.features or None,
        probes=settings.probes,
        categories=split.dataset.structure.exchangeable,
    )


def at_the_end(
    name: str, walk: AttackResult, model: nn.Module, x: Tensor, y: Tensor, k: int, task: Task
) -> dict[str, Tensor]:
    """P@k where a walk ended, and whether it had lost a class there, best iterate or not."""
    assert walk.last is not None
    after = explained(model, task.explain, walk.last, y)
    lost = classes_changed(task.outputs, model, x, walk.last)
    return {
        f"{name}_last_precision": precision_at_k(walk.before, after, k),
        f"{name}_last_changed": lost.to(after.dtype),
    }


def noise_precision(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: EvaluationSettings,
    task: Task,
    seed: int,
) -> Tensor:
    """Mean P@k under random changes as large as the budget allows, whatever is predicted: (B,)."""
    before = explained(model, task.explain, x, y)
    within, draw = task.perturbation, stream(seed, "noise")
    moves = within.offsets(one_of(x), settings.noise, draw, surface=True)
    reached = [
        precision_at_k(before, explained(model, task.explain, place, y), settings.k)
        for place in (within.project(x + move, x) for move in moves)
    ]
    return torch.stack(reached).mean(0)


def _projected(explain: Explainer, split: Split) -> Explainer:
    """The same explainer without directions in which the one-hot columns cannot vary."""
    if not isinstance(explain, InputExplainer):
        raise ValueError(
            "project_one_hot takes an explainer with the choice `one_hot`: give one of EXPLAINERS, "
            "or leave it out."
        )
    return replace(explain, one_hot=split.dataset.structure.one_hot)


def attacked_by(
    name: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: EvaluationSettings,
    *,
    task: Task,
    seed: int = 0,
) -> AttackResult:
    """What one of the attacks EVALUATED finds with these settings, within the task's set."""
    return attack(
        model,
        x,
        y,
        k=settings.k,
        method=name,
        explainer=task.explain,
        perturbation=task.perturbation,
        budget=budget_of(name, settings),
        outputs=task.outputs,
        seed=seed,
    )


def budget_of(name: str, settings: EvaluationSettings) -> Budget:
    """What one of the attacks EVALUATED may spend by these settings."""
    if name not in EVALUATED:
        raise ValueError(f"an attack is one of {', '.join(EVALUATED)}, got {name!r}.")
    if name == "strong":
        return settings.strong
    return WalkBudget(
        step=settings.er.step,
        steps=settings.er.steps,
        handling=settings.handler,
        record_every=settings.record_every,
    )


def strong_curve(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: EvaluationSettings,
    *,
    task: Task,
    others: Sequence[AttackResult],
    seed: int,
) -> Curve:
    """The strong attack at all radii up to that of ERAttack, merged with the other attacks.

    Below the largest radius, where less is to be found, it takes half the rounds.
    """
    largest, whole = settings.er.radius, settings.strong
    half = replace(whole, rounds=math.ceil(whole.rounds / 2))
    smaller = [radius for radius in settings.epsilons if radius < largest]
    return attack_curve(
        model,
        x,
        y,
        k=settings.k,
        radii=[*smaller, largest],
        explainer=task.explain,
        perturbation=task.perturbation,
        budget={**dict.fromkeys(smaller, half), largest: whole},
        outputs=task.outputs,
        others=others,
        # Newton's method on single pairs is for explanations of a few features.
        pairs=PAIRS if whole.pairs else 0,
        walk=WALK if whole.pairs else 0,
        seed=seed,
    )


def actionable_of(
    split: Split, rules: Mapping[str, Rule] | None = None, radius: float = UNSAID
) -> ActionableSet:
    """What a person could change, by the rules given or those that come with the data set."""
    name = split.dataset.name
    if rules is None:
        rules = read_rules(name) if name in rule_names() else {}
    return actionable_set(split, rules, radius=radius)


def _interval(values: Tensor) -> tuple[float, float]:
    mean = mean_with_interval(values)
    return mean.low, mean.high


def curve_of(
    er: AttackResult | None, strong: Curve | None, settings: EvaluationSettings
) -> KeptCurve:
    """Mean P@k against the radius: under the strong attack, and along ERAttack's walk if it ran.

    With the share of examples whose smallest breaking radius is within it.
    """
    if strong is None:
        return KeptCurve()
    epsilons = strong.epsilons.tolist()
    found = KeptCurve(
        epsilon=(0.0, *epsilons),
        strong=(1.0, *strong.precision.mean(1).tolist()),
        broken=(0.0, *((strong.precision < 1).double().mean(1).tolist())),
    )
    if er is None:
        return found
    walk = er.history.mean(1)
    steps = er.steps.to(walk.device).double()

    def reached(radius: float) -> float:
        return float(walk[steps * settings.er.step <= radius * (1 + 1e-9)][-1])

    return replace(found, er=(1.0, *(reached(each) for each in epsilons)))


def profile_of(before: Tensor) -> Profile:
    """Scores by rank as shares of the largest: median and middle half over the examples.

    Of many features the first places and some of the others, evenly spread: a curve shows no more.
    """
    ranked = before.sort(dim=-1, descending=True).values
    n = ranked.shape[-1]
    first = min(n, PROFILED // 2)
    spread = torch.linspace(first, n - 1, min(n - first, PROFILED - first)).round().long()
    place = torch.cat([torch.arange(first), spread]).to(ranked.device)
    ranked = ranked[:, place]
    top = ranked[:, :1]
    shares = ranked[top.squeeze(-1) > 0] / top[top.squeeze(-1) > 0]
    if not len(shares):
        return Profile()
    low, median, high = torch.quantile(shares, torch.tensor([0.25, 0.5, 0.75]).to(shares), dim=0)
    shown = () if len(place) == n else tuple((place + 1).tolist())
    return Profile(place=shown, median=_short(median), low=_short(low), high=_short(high))


def scatter_of(
    er: AttackResult | None, values: Mapping[str, Tensor], below: float = 1.0
) -> Scatter:
    """Thickness and Hessian norm against the steps ERAttack needs to get P@k `below` this.

    Each with its Spearman ("correlation") and Pearson correlation with that manipulation epoch.
    """
    if er is None:
        return Scatter()
    last = int(er.steps[-1])
    steps = torch.cat([er.steps, er.steps[-1:] + 1]).to(er.history.device)
    first = steps[manipulation_step(er.history, below)]
    flip = first.double()
    shown = {
        "thickness": values["er_thickness"],
        **{name: values[name] for name in CORRELATED},
    }
    return Scatter(
        first_flip=tuple(first[:SCATTERED].tolist()),
        **{name: _short(each[:SCATTERED]) for name, each in shown.items()},
        never_flipped=float((first > last).double().mean()),
        last_step=last,
        correlation={name: correlation(each, flip) for name, each in shown.items()},
        pearson={name: correlation(each, flip, "pearson") for name, each in shown.items()},
    )


def _short(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values.tolist())
