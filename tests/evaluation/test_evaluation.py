import copy
import json
import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from closed_form import numbers
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.radius import Curve
from r2et.attacks.search import AttackResult
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.core.settings import changed, settings_from
from r2et.data import Split, load
from r2et.evaluation.decisions import FeatureShare, changes, reasons
from r2et.evaluation.evaluate import (
    Task,
    attacked_by,
    budget_of,
    curve_of,
    evaluate,
    flips_of,
    profile_of,
    strong_curve,
    task_of,
)
from r2et.evaluation.protocol import (
    EVALUATED,
    EvaluationSettings,
    Walk,
)
from r2et.evaluation.results import Evaluation, KeptCurve, Profile, Scatter
from r2et.explainers import Gradient, SmoothGrad, gradient, predicted
from r2et.methods import Method
from r2et.metrics.exchanges import exchange_agreement
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.thickness import gaussian, thickness
from r2et.models import MODELS
from r2et.perturbations import L2Ball
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit

SETTINGS = EvaluationSettings(
    k=4,
    examples=40,
    decisions=3,
    epsilons=(0.1, 0.4, 2.0),
    record_every=2,
    er=Walk(radius=1.0, step=0.1, steps=12),
    strong=EnsembleBudget(
        rounds=2, starts=2, steps=4, points=10, moves=5, pairs=2, sharpness=(4.0,)
    ),
)
TASK = Task(explain=gradient, perturbation=L2Ball(radius=SETTINGS.er.radius))


@cache
def split() -> Split:
    whole = load("compas")
    return replace(whole, name="slice", x=whole.x[:400], y=whole.y[:400]).split(0)


@cache
def network() -> nn.Module:
    part = split()
    untrained = MODELS["mlp"].build(16, 2, generator=stream(0, "test"))
    settings = FitSettings(epochs=30, batch=32, schedule="constant")
    return fit(untrained, part.train, part.valid, Method(), settings)[0]


@cache
def row() -> Evaluation:
    return evaluate(network(), split(), SETTINGS)


def as_json(found: Evaluation) -> str:
    return json.dumps(changed(found), allow_nan=False)


def scaled(factor: float) -> nn.Module:
    """The same network with all logits times a factor."""
    model = copy.deepcopy(network())
    with torch.no_grad():
        for weight in list(model.parameters())[-2:]:
            weight.mul_(factor)
    return model


# --- the row ----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 1000.0, 0.0], ids=["plain", "saturated", "constant"])
def test_a_row_can_be_written_down(factor: float) -> None:
    # A saturated network has slopes of 1e-300, a constant one explains nothing at all.
    found = row() if factor == 1 else evaluate(scaled(factor), split(), SETTINGS)
    assert settings_from(Evaluation, json.loads(as_json(found)), "it") == found
    assert found.examples == 40
    assert found.features == 16
    assert found.k == 4
    if factor == 0:
        assert found.measures["tie"] == 1
        assert found.series.profile == Profile()


UNDER_ATTACK = {
    "precision": (0.0, 1.0),
    "pearson": (-1.0, 1.0),
    "kendall": (-1.0, 1.0),
    "spearman": (-1.0, 1.0),
    "mse": (0.0, math.inf),
    "changed": (0.0, 0.0),  # every attack keeps the prediction
    "thickness": (0.0, 1.0),
    "attacked_auc": (0.0, 1.0),
}
OF_A_MODEL = {
    "clean_auc": (0.0, 1.0),
    "before_auc": (0.0, 1.0),
    "dffot": (1 / 16, 1.0),
    "dffot_of_flipped": (1 / 16, 1.0),
    "dffot_of_class_0": (1 / 16, 1.0),
    "dffot_of_class_1": (1 / 16, 1.0),
    "never_flips": (0.0, 1.0),
    "comp": (0.0, 1.0),
    "suff": (0.0, 1.0),
    "hessian_norm": (0.0, math.inf),
    "saliency_norm": (0.0, math.inf),
    "tie": (0.0, 1.0),
    "flippable": (0.0, 1.0),
    "off_data_share": (0.0, 1.0),
    "exchange_agreement": (0.3, 1.0),
    "exchange_size": (0.3, 1.0),
    "without_exchanges": (0.0, 0.0),
    "gaussian_thickness": (0.0, 1.0),
    "least_gaussian_thickness": (0.0, 1.0),
    "overlap": (0.0, 1.0),
    "class_overlap": (0.0, 1.0),
    "strong_kappa": (-math.inf, 1.0),
    "distinct_sets": (1.0, 40.0),
    "last_doubling": (-1.0, 0.0),
}


def test_every_measure_is_within_its_range() -> None:
    measures = row().measures
    attacks = (*EVALUATED, "applicant")
    ranges = {f"{one}_{name}": within for one in attacks for name, within in UNDER_ATTACK.items()}
    ranges |= OF_A_MODEL
    assert measures.keys() == ranges.keys()
    for name, (low, high) in ranges.items():
        assert low <= measures[name] <= high, name
    assert measures["distinct_sets"] == round(measures["distinct_sets"])
    assert measures["clean_auc"] > 0.6


def test_dffot_is_told_apart_by_who_flips_and_by_class() -> None:
    # Of two people of class 0 one flips at a quarter of the features; of class 1 one never does.
    share = torch.tensor([0.25, 1.0, math.inf, 0.5])
    found = flips_of(share, torch.tensor([0, 0, 1, 1]), two=True)
    assert {name: each.tolist() for name, each in found.items()} == {
        "never_flips": [0.0, 0.0, 1.0, 0.0],
        "dffot_of_flipped": [0.25, 1.0, 0.5],
        "dffot_of_class_0": [0.25, 1.0],
        "dffot_of_class_1": [1.0, 0.5],
    }
    of_many = flips_of(share, torch.tensor([0, 0, 1, 1]), two=False)
    assert of_many.keys() == {"never_flips", "dffot_of_flipped"}


def test_intervals_hold_their_means() -> None:
    found = row()
    attacks = (*EVALUATED, "applicant")
    single = {"clean_auc", "distinct_sets", "last_doubling", "without_exchanges"}
    single |= {"overlap", "class_overlap", "strong_kappa", "before_auc"}
    single |= {f"{name}_attacked_auc" for name in attacks}
    assert found.intervals.keys() == found.measures.keys() - single
    for name, (low, high) in found.intervals.items():
        assert low <= found.measures[name] <= high, name


def test_kappa_is_of_what_the_strong_attack_leaves_and_one_class_shares() -> None:
    measures = row().measures
    kept, shared = measures["strong_precision"], measures["class_overlap"]
    assert measures["strong_kappa"] == pytest.approx((kept - shared) / (1 - shared))


def test_the_strong_attack_is_never_the_weaker_one() -> None:
    measures = row().measures
    assert measures["strong_precision"] <= measures["er_precision"] < 1
    assert measures["strong_precision"] <= measures["mse_precision"]
    assert measures["strong_precision"] < measures["er_precision"]


def test_the_curve_falls_with_the_radius() -> None:
    curve = row().series.curve
    assert curve.epsilon == (0.0, 0.1, 0.4, 1.0)  # 2.0 is beyond the budget
    assert list(curve.broken) == sorted(curve.broken)
    assert 0 < curve.broken[-1] <= 1
    for name, kept in (("strong", curve.strong), ("er", curve.er)):
        assert kept[0] == 1
        assert list(kept) == sorted(kept, reverse=True)
        assert kept[-1] == row().measures[f"{name}_precision"] < 1


def test_the_profile_falls_from_one() -> None:
    profile = row().series.profile
    for shares in (profile.low, profile.median, profile.high):
        assert len(shares) == 16
        assert shares[0] == 1
        assert list(shares) == sorted(shares, reverse=True)
    triples = zip(profile.low, profile.median, profile.high, strict=True)
    assert all(low <= median <= high for low, median, high in triples)


def test_the_scatter_has_a_dot_for_each_example() -> None:
    scatter = row().series.scatter
    assert len(scatter.first_flip) == len(scatter.thickness) == 40
    assert scatter.last_step == 12
    never = sum(step > 12 for step in scatter.first_flip) / 40
    assert scatter.never_flipped == never
    assert 0 < never < 1
    assert all(1 <= step <= 13 for step in scatter.first_flip)
    measured = {"thickness", "gaussian_thickness", "least_gaussian_thickness", "hessian_norm"}
    for kind, independent in (("correlation", stats.spearmanr), ("pearson", stats.pearsonr)):
        assert getattr(scatter, kind).keys() == measured
        for name, found in getattr(scatter, kind).items():
            # Dots have five digits, which may tie what differs: hence not to the last digit.
            expected = independent(getattr(scatter, name), scatter.first_flip).statistic
            assert found == pytest.approx(expected, abs=5e-3), (kind, name)


def test_the_least_thickness_is_that_of_the_worst_sample() -> None:
    # The same eight samples drawn again, each integrated by itself.
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:40].double()
    y = predicted(model, x)
    generator = stream(0, "gaussian thickness")
    neighbours = torch.stack([gaussian(0.5)(x, generator) for _ in range(8)])
    each = torch.stack(
        [
            thickness(
                model, x, y, one[None], explain=gradient, k=4, variant="probability", points=8
            ).value
            for one in neighbours
        ]
    )
    measures = row().measures
    assert measures["least_gaussian_thickness"] == pytest.approx(float(each.amin(0).mean()))
    assert measures["gaussian_thickness"] == pytest.approx(float(each.mean()))
    assert measures["least_gaussian_thickness"] < measures["gaussian_thickness"]
    fewer = evaluate(network(), split(), replace(SETTINGS, attacks=("er",), neighbours=2))
    assert fewer.measures["gaussian_thickness"] == pytest.approx(float(each[:2].mean()))


# --- less than everything ---------------------------------------------------------------------


@pytest.mark.parametrize("attacks", [("er",), ("mse",), ("strong",), ("applicant",)])
def test_only_the_attacks_asked_for_are_run(attacks: tuple[str, ...]) -> None:
    chosen = replace(SETTINGS, attacks=attacks, epsilons=())
    found = evaluate(network(), split(), chosen)
    (name,) = attacks
    assert settings_from(Evaluation, json.loads(as_json(found)), "it") == found
    under = {f"{name}_{measure}" for measure in UNDER_ATTACK}
    of_strong = {"last_doubling", "strong_kappa"}
    single = of_strong if name != "strong" else set()
    assert found.measures.keys() == under | (OF_A_MODEL.keys() - single)
    assert (found.series.scatter != Scatter()) == (name == "er")
    assert (found.series.curve != KeptCurve()) == (name == "strong")
    assert bool(found.decisions) == bool(found.change_buys) == (name == "applicant")
    whole = row().measures
    for measure in OF_A_MODEL.keys() - of_strong:
        assert found.measures[measure] == whole[measure]
    if name != "strong":  # which counts what the others found, and they are not there
        for measure in under:
            assert found.measures[measure] == whole[measure]
    else:
        assert found.series.curve.er == ()
        assert found.series.curve.epsilon == (0.0, 1.0)
        assert whole["strong_precision"] <= found.measures["strong_precision"]


def test_without_radii_the_curve_has_its_two_ends() -> None:
    found = evaluate(network(), split(), replace(SETTINGS, epsilons=(), attacks=("er", "strong")))
    curve = found.series.curve
    assert curve.epsilon == (0.0, 1.0)
    assert curve.strong == (1.0, found.measures["strong_precision"])
    assert curve.er == (1.0, found.measures["er_precision"])


def test_the_projected_explanation_is_attacked_by_itself() -> None:
    chosen = replace(SETTINGS, attacks=("strong",), epsilons=(), project_one_hot=True)
    found = evaluate(network(), split(), chosen).measures
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:40].double()
    y = predicted(model, x)
    free = Gradient(one_hot=((0, 1, 2), (3, 4, 5, 6)))
    attacked = attacked_by("strong", model, x, y, chosen, task=task_of(split(), chosen, free))
    with torch.no_grad():
        kept = precision_at_k(free(model, x, y), free(model, attacked.x, y), 4)
    assert found["strong_project_one_hot_precision"] == pytest.approx(float(kept.mean()))
    plain = attacked_by("strong", model, x, y, chosen, task=task_of(split(), chosen, gradient))
    assert not torch.equal(kept, plain.precision)
    assert "strong_project_one_hot_precision" not in row().measures


def test_a_projected_explanation_needs_an_explainer_that_offers_it() -> None:
    def own(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return gradient(model, x, y)

    chosen = replace(SETTINGS, attacks=("strong",), epsilons=(), project_one_hot=True)
    with pytest.raises(ValueError, match="an explainer with the choice `one_hot`"):
        evaluate(network(), split(), chosen, explain=own)


def test_another_explainer_is_what_is_attacked_and_measured() -> None:
    chosen = replace(SETTINGS, attacks=("er",))
    explain = SmoothGrad(samples=3)
    found = evaluate(network(), split(), chosen, explain=explain).measures
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:40].double()
    y = predicted(model, x)
    attacked = attacked_by("er", model, x, y, chosen, task=task_of(split(), chosen, explain))
    assert found["er_precision"] == pytest.approx(float(attacked.precision.mean()))
    with torch.no_grad():
        size = explain(model, x, y).sum(-1).mean()
    assert found["saliency_norm"] == pytest.approx(float(size))
    assert found["clean_auc"] == row().measures["clean_auc"]


def test_a_row_depends_on_seed_and_model_only() -> None:
    model = copy.deepcopy(network())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    dice = torch.get_rng_state()
    again, other = (evaluate(model, split(), SETTINGS, seed=seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), dice)
    assert model.training
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    assert replace(again, seconds=0.0) == replace(row(), seconds=0.0)
    assert again.measures["mse_precision"] != other.measures["mse_precision"] or (
        again.decisions != other.decisions
    )
    assert again.measures["er_precision"] == other.measures["er_precision"]


def test_a_linear_model_is_stable_by_construction() -> None:
    model = MODELS["logistic"].build(16, 2, generator=stream(0, "test"))
    found = evaluate(model, split(), SETTINGS)
    for attack in EVALUATED:
        assert found.measures[f"{attack}_precision"] == 1
        assert found.measures[f"{attack}_thickness"] == 1
    assert found.measures["distinct_sets"] == 1
    assert found.series.scatter.never_flipped == 1


def test_examples_of_one_class_leave_only_the_attacked_auc_out() -> None:
    part = split()
    test = part.test
    order = test.y.argsort(stable=True)
    sorted_test = replace(test, rows=test.rows[order], x=test.x[order], y=test.y[order])
    assert (sorted_test.y[:10] == 0).all()
    found = evaluate(
        network(), replace(part, test=sorted_test), replace(SETTINGS, examples=10, decisions=0)
    )
    as_json(found)
    left_out = row().measures.keys() - found.measures.keys()
    attacked = {f"{name}_attacked_auc" for name in (*EVALUATED, "applicant")}
    assert left_out == {"before_auc", *attacked}
    assert found.decisions == ()


def test_more_examples_than_there_are_are_all_there_are() -> None:
    few = replace(SETTINGS, examples=9999, decisions=1)
    assert evaluate(network(), split(), few).examples == len(split().test) == 60


@pytest.mark.parametrize(
    "wrong",
    [
        {"examples": 1},
        {"decisions": -1},
        {"record_every": 0},
        {"neighbours": 0},
        {"epsilons": (0.1, 0.0)},
        {"small_radius": -0.1},
        {"decision_radius": math.nan},
        {"attacks": ()},
        {"attacks": ("er", "er")},
        {"attacks": ("er", "starving")},
        {"attacks": ("er",), "project_one_hot": True},
    ],
)
def test_settings_under_which_nothing_is_measured_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"an evaluation"):
        replace(SETTINGS, **wrong)


@pytest.mark.parametrize("k", [0, 16])
def test_a_k_of_no_or_all_features_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=r"k must lie in 1\.\.15"):
        evaluate(network(), split(), replace(SETTINGS, k=k))


# --- attacks put together ---------------------------------------------------------------------


def attacked(precision: list[float], value: float) -> AttackResult:
    """Made-up results that can be told apart by `value`."""
    count = len(precision)
    whole = torch.full((count, 3), value)
    return AttackResult(
        x=whole,
        before=torch.zeros(count, 3),
        after=whole + 0.5,
        precision=torch.tensor(precision),
        history=torch.ones(2, count),
        steps=torch.arange(2),
        first_flip=torch.full((count,), int(value)),
    )


def test_the_strong_curve_counts_what_any_attack_found() -> None:
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:40].double()
    y = predicted(model, x)
    others = [attacked_by(name, model, x, y, SETTINGS, task=TASK) for name in ("er", "mse")]
    curve = strong_curve(model, x, y, SETTINGS, task=TASK, others=others, seed=0)
    for result in others:
        assert (curve.precision[-1] <= result.precision).all()
    assert (curve.precision[1:] <= curve.precision[:-1]).all()
    for radius, found in zip(curve.epsilons.tolist(), curve.x, strict=True):
        assert ((found - x).norm(dim=-1) <= radius).all()
        assert (predicted(model, found) == y).all()


@pytest.mark.parametrize("name", EVALUATED)
def test_an_attack_is_built_by_its_settings(name: str) -> None:
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:10].double()
    y = predicted(model, x)
    found = attacked_by(
        name, model, x, y, SETTINGS, task=replace(TASK, perturbation=L2Ball(radius=0.3))
    )
    assert 0.1 < (found.x - x).norm(dim=-1).max() <= 0.3
    if name != "strong":
        assert found.steps.tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(ValueError, match="an attack is one of er, mse, strong, got 'strnog'"):
        budget_of("strnog", SETTINGS)


def test_the_walk_is_read_where_it_was() -> None:
    # ERAttack is at distance 0.1 after each step: P@k at radius 0.25 is that after two steps.
    walked = replace(
        attacked([0.2, 0.4], 1),
        history=torch.tensor([[1.0, 1.0], [0.8, 1.0], [0.4, 0.6], [0.2, 0.4]]),
        steps=torch.arange(4),
    )
    settings = replace(SETTINGS, er=Walk(radius=0.3, step=0.1, steps=3))

    def reached(radii: list[float], precision: list[list[float]]) -> Curve:
        held = {each.name: torch.empty(0) for each in fields(Curve)}
        held["epsilons"] = torch.tensor(radii, dtype=torch.float64)
        held["precision"] = torch.tensor(precision)
        return Curve(**held)

    curve = curve_of(walked, reached([0.05, 0.25], [[0.5, 1.0], [0.0, 0.5]]), settings)
    assert curve.broken == (0.0, 0.5, 1.0)
    assert curve.epsilon == pytest.approx([0.0, 0.05, 0.25])
    assert curve.strong == (1.0, 0.75, 0.25)
    assert curve.er == pytest.approx([1.0, 1.0, 0.5])
    full = curve_of(walked, reached([0.3], [[0.0, 0.5]]), settings)
    assert full.er == pytest.approx([1.0, 0.3])  # 3 x 0.1 is 0.3 despite rounding


def test_the_profile_is_of_shares_of_the_largest() -> None:
    before = torch.tensor([[4.0, 1.0, 2.0], [0.0, 0.0, 0.0], [1.0, 10.0, 5.0]]).double()
    # The all-zero explanation has no shape; the others are 1, .5, .25 and 1, .5, .1.
    profile = profile_of(before)
    assert profile.median == pytest.approx([1.0, 0.5, 0.175])
    assert profile.low == pytest.approx([1.0, 0.5, 0.1375])
    assert profile.high == pytest.approx([1.0, 0.5, 0.2125])


def test_of_many_features_the_first_places_and_some_others_are_kept() -> None:
    profile = profile_of(torch.arange(1000.0, 0, -1).expand(3, -1))
    assert profile.place[:100] == tuple(range(1, 101))
    assert len(profile.place) == len(set(profile.place)) == len(profile.median) == 200
    assert profile.place[-1] == 1000
    # The score of place p is 1001 - p, the first one 1000.
    assert profile.median == pytest.approx([(1001 - place) / 1000 for place in profile.place])


# --- what data cannot do ----------------------------------------------------------------------


def slow_off_data_share(slope: Tensor, groups: list[list[int]]) -> list[float]:
    """Squared length of the projection on all group directions over that of the slope."""
    basis = torch.zeros(slope.shape[1], len(groups), dtype=torch.float64)
    for place, group in enumerate(groups):
        basis[group, place] = 1.0
    shares = []
    for row in slope:
        fitted = basis @ torch.linalg.lstsq(basis, row[:, None]).solution
        shares.append(float((fitted**2).sum() / (row**2).sum()))
    return shares


def test_the_off_data_share_is_that_of_a_projection() -> None:
    groups = split().dataset.structure.one_hot
    assert groups == ((0, 1, 2), (3, 4, 5, 6))
    for slope in (numbers(6, 16), numbers(6, 16).abs()):
        found = off_data_share(slope, groups)
        torch.testing.assert_close(found, torch.tensor(slow_off_data_share(slope, groups)).double())


def test_the_off_data_share_of_a_model_is_that_of_its_margin() -> None:
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:40].double().requires_grad_()
    logits = model(x)
    (slope,) = torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), x)
    slow = slow_off_data_share(slope, [[0, 1, 2], [3, 4, 5, 6]])
    assert row().measures["off_data_share"] == pytest.approx(sum(slow) / 40)


def test_exchanges_are_those_of_the_attacked_examples() -> None:
    model = copy.deepcopy(network()).double().eval()
    x = split().test.x[:40].double()
    categories = split().dataset.structure.exchangeable
    assert len(categories) == 2 + 4
    found = exchange_agreement(model, x, predicted(model, x), categories)
    measures = row().measures
    assert measures["exchange_agreement"] == pytest.approx(float(found.order.mean()))
    assert measures["exchange_size"] == pytest.approx(float(found.size.mean()))


# --- decisions in words -----------------------------------------------------------------------


def test_a_decision_is_told_in_words() -> None:
    part, dataset = split(), split().dataset
    decisions = row().decisions
    assert len(decisions) == 3
    model = copy.deepcopy(network()).double().eval()
    x = part.test.x[:3].double()
    y = predicted(model, x)
    probability = model(x).detach().softmax(-1).gather(-1, y[:, None])[:, 0]
    with torch.no_grad():
        before = gradient(model, x, y)
    for number, decision in enumerate(decisions):
        assert decision.row == int(part.test.rows[number])
        raw = dataset.x[decision.row]
        assert {each.name: each.before for each in decision.values} == (dataset.describe(raw))
        assert [each.name for each in decision.values] == list(dataset.group_names)
        assert decision.predicted == dataset.classes[int(y[number])]
        assert decision.actual == dataset.classes[int(dataset.y[decision.row])]
        assert decision.probability[0] == pytest.approx(float(probability[number]))
        assert all(0.5 <= each <= 1 for each in decision.probability)
        assert 0 <= decision.cost <= 1 + 1e-9
        assert (decision.cost > 0) == any(each.moved for each in decision.values)
        for each in decision.values:
            assert "+" not in each.after, "a blend of categories is nobody's value"
        order = before[number].argsort(descending=True, stable=True)[:4].tolist()
        assert [each.name for each in decision.before] == [
            dataset.features[place].name for place in order
        ]
        for name in ("before", "after"):
            shares = [each.share for each in getattr(decision, name)]
            assert shares == sorted(shares, reverse=True)
            assert 0 < sum(shares) <= 1
        kept = {each.name for each in decision.before} & {each.name for each in decision.after}
        assert decision.precision == len(kept) / 4
    assert any(decision.precision < 1 for decision in decisions)


def test_small_changes_are_not_told() -> None:
    part = split()
    x = part.test.x[0].double()
    priors = [feature.name for feature in part.dataset.features].index("priors")
    far, near = x.clone(), x.clone()
    far[priors] += 0.5
    near[priors] += 0.004
    told = {each.name: each for each in changes(part, x, far)}
    assert told["priors"].moved == 0.5
    assert told["priors"].after != told["priors"].before
    assert all(
        each.after == each.before and each.moved == 0
        for name, each in told.items()
        if name != "priors"
    )
    told = {each.name: each for each in changes(part, x, near)}
    assert told["priors"].moved == 0.004
    assert told["priors"].after == told["priors"].before


def test_reasons_are_shares_of_all() -> None:
    saliency = torch.zeros(16, dtype=torch.float64)
    saliency[3], saliency[5], saliency[0] = 5.0, 3.0, 2.0
    names = [feature.name for feature in split().dataset.features]
    assert reasons(names, saliency, 2) == (
        FeatureShare(name=names[3], share=0.5),
        FeatureShare(name=names[5], share=0.3),
    )
    assert [each.share for each in reasons(names, 0 * saliency, 2)] == [0.0, 0.0]
