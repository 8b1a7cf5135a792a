"""The attack laboratory: what is asked for is what is built, attacked and told."""

import copy
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacking import attacker
from r2et.actionable import ActionableSet
from r2et.attacks.ensemble import CELLS, EnsembleBudget
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.radius import Curve
from r2et.attacks.registry import ATTACKS, attack
from r2et.attacks.search import AttackResult
from r2et.core.ranking import precision_at_k
from r2et.data import Split, load
from r2et.evaluation.evaluate import actionable_of
from r2et.experiments import attack_run as laboratory
from r2et.experiments.attack_records import AttackRun, AttackRunSettings
from r2et.experiments.attack_run import (
    DRAWS,
    WIDE,
    attack_model,
    budget_at,
    check_request,
    compared_handling,
    example_rows,
    explainer_of,
    given_model,
    perturbation_of,
)
from r2et.experiments.config import Recipe, recipe_from
from r2et.experiments.runner import fitted
from r2et.explainers import EXPLAINERS, Shapley, SmoothGrad, gradient, predicted, slopes
from r2et.metrics.statistics import auc
from r2et.perturbations import Box, L2Ball
from r2et.training.checkpoint import save
from refusals import refusal

TINY: dict[str, Any] = {
    "line": "as little as possible",
    "hidden": [8],
    "fit": {"epochs": 2, "batch": 64},
    "methods": [{"name": "vanilla"}],
}
K = 8
LITTLE = AttackRunSettings(k=K, epsilons=(0.3,), examples=4, rounds=1)
COUNT = 4


def tiny_recipe(*_: object) -> Recipe:
    return recipe_from("tiny", TINY)


@pytest.fixture(scope="module")
def split() -> Split:
    return load("compas").split(0)


@pytest.fixture(scope="module")
def trained(split: Split) -> tuple[nn.Module, dict[str, Any]]:
    model, plan, _ = fitted(split, tiny_recipe(), "vanilla", {})
    return model.eval(), plan


@pytest.fixture(scope="module")
def model(trained: tuple[nn.Module, dict[str, Any]]) -> nn.Module:
    return trained[0]


@pytest.fixture(scope="module")
def file(
    trained: tuple[nn.Module, dict[str, Any]],
    split: Split,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    notes = {"model": trained[1], "dataset": "compas", "data": split.dataset.digest, "seed": 0}
    return save(tmp_path_factory.mktemp("models") / "own.safetensors", trained[0], notes)


@pytest.fixture(scope="module")
def strong(model: nn.Module, split: Split) -> AttackRun:
    """The strong attack at two radii, of which the larger is given first."""
    return attack_model(model, split, replace(LITTLE, epsilons=(0.5, 0.02)))


@pytest.fixture(scope="module")
def by_applicants(model: nn.Module, split: Split) -> AttackRun:
    choices = replace(LITTLE, perturbation="actionable", epsilons=(3.0,), examples=12)
    return attack_model(model, split, choices)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks of 30 steps instead of 1000."""
    for name in ("er", "mse"):
        short = replace(ATTACKS[name], budget=WalkBudget(steps=30, step=0.04))
        monkeypatch.setitem(ATTACKS, name, short)


def rows(model: nn.Module, split: Split, count: int = COUNT) -> tuple[nn.Module, Tensor, Tensor]:
    """The model and the first test rows in float64, with the predicted classes."""
    model = copy.deepcopy(model).double()
    x = split.test.x[:count].double()
    with torch.no_grad():
        return model, x, model(x).argmax(-1)


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attack": "stong"}, "did you mean 'strong'"),
        ({"explainer": "smoothgrad"}, "did you mean 'smooth-grad'"),
        ({"of": "margn"}, "did you mean 'margin'"),
        ({"noise": "fesh"}, "did you mean 'fresh'"),
        ({"noise": "fresh"}, "only smooth-grad draws noise"),
        ({"epsilons": ()}, "got none"),
        ({"epsilons": (0.1, 0.0)}, "positive and finite, got 0.1, 0"),
        ({"epsilons": (-1.0,)}, "positive and finite, got -1"),
        ({"epsilons": (float("nan"),)}, "got nan"),
        ({"epsilons": (float("inf"),)}, "got inf"),
        ({"examples": 0}, "examples >= 1, got 0"),
        ({"rounds": 0}, "rounds >= 1, got 0"),
        ({"explainer": "shapley", "project_one_hot": True}, "nothing to project"),
        ({"seconds": 0.0}, "positive number of seconds, got 0"),
        ({"seconds": float("nan")}, "positive number of seconds"),
    ],
)
def test_settings_with_which_nothing_can_be_attacked_are_refused(
    changes: dict[str, Any], says: str
) -> None:
    assert says in refusal(lambda: AttackRunSettings(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"k": 16}, "k must lie in 1..15"),
        ({"k": 0}, "k must lie in 1..15"),
        ({"explainer": "shapley", "k": 11}, "k must lie in 1..10 for 11 features"),
        ({"perturbation": "actionble"}, "did you mean 'actionable'"),
        ({"perturbation": "rules.txt"}, ".toml file"),
        ({"perturbation": "nowhere.toml"}, "no file of rules 'nowhere.toml'"),
        ({"handling": "hedge"}, "'strong' takes no --handling"),
        ({"attack": "er", "rounds": None, "handling": "hegde"}, "did you mean 'hedge'"),
        ({"attack": "er"}, "'er' takes no --rounds"),
        ({"attack": "mse", "rounds": None, "seconds": 1.0}, "'mse' takes no --seconds"),
    ],
)
def test_a_request_is_refused_before_a_model_is_made(
    split: Split, changes: dict[str, Any], says: str
) -> None:
    assert says in refusal(lambda: check_request(replace(LITTLE, **changes), split.dataset))
    check_request(LITTLE, split.dataset)


# --- what is built ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", slopes())
@pytest.mark.parametrize("of", ["probability", "logit", "margin"])
def test_the_explainer_asked_for_explains(
    model: nn.Module, split: Split, name: str, of: str
) -> None:
    model, x, y = rows(model, split)
    one_hot = split.dataset.structure.one_hot
    for project_one_hot in (False, True):
        choices = AttackRunSettings(explainer=name, of=of, project_one_hot=project_one_hot)
        found = explainer_of(choices, split)(model, x, y)
        own = {"one_hot": one_hot} if project_one_hot else {}
        assert torch.equal(found, replace(EXPLAINERS[name], of=of, **own)(model, x, y))


def test_noise_follows_the_seed_of_smooth_grad_alone(model: nn.Module, split: Split) -> None:
    model, x, y = rows(model, split)
    smooth = AttackRunSettings(explainer="smooth-grad")
    found = explainer_of(smooth, split, 3)(model, x, y)
    assert torch.equal(found, SmoothGrad(seed=3)(model, x, y))
    assert not torch.equal(found, explainer_of(smooth, split)(model, x, y))
    plain = explainer_of(AttackRunSettings(), split, 3)(model, x, y)
    assert torch.equal(plain, gradient(model, x, y))


def test_the_threat_asked_for_is_built(split: Split, tmp_path: Path) -> None:
    assert isinstance(perturbation_of(AttackRunSettings(), split), L2Ball)
    packaged = perturbation_of(AttackRunSettings(perturbation="actionable"), split)
    assert isinstance(packaged, ActionableSet)
    assert "race" in packaged.fixed
    own = tmp_path / "own.toml"
    own.write_text("[priors]\nfixed = true\n")
    given = perturbation_of(AttackRunSettings(perturbation=str(own)), split)
    assert isinstance(given, ActionableSet)
    assert given.fixed == ("priors",)
    own.write_text("[prior]\nfixed = true\n")
    says = refusal(lambda: perturbation_of(AttackRunSettings(perturbation=str(own)), split))
    assert "did you mean 'priors'" in says


def least(attack: str, **changes: Any) -> AttackRunSettings:
    """Settings of a small effort, for attacks that offer the choice."""
    rounds = 1 if attack == "strong" else None
    return replace(LITTLE, attack=attack, rounds=rounds, **changes)


@pytest.mark.parametrize("perturbation", ["l2", "actionable"])
@pytest.mark.parametrize("name", ATTACKS)
def test_every_registered_attack_can_be_asked_for(
    model: nn.Module, split: Split, name: str, perturbation: str
) -> None:
    settings = least(name, perturbation=perturbation)
    admissible = perturbation_of(settings, split)
    model, x, y = rows(model, split)

    def attacked(radius: float) -> AttackResult:
        budget = budget_at(settings, radius, admissible)
        return attack(
            model, x, y, k=K, method=name, perturbation=admissible.at(radius), budget=budget
        )

    found = attacked(1.2)
    assert found.x.shape == x.shape
    with torch.no_grad():
        assert torch.equal(model(found.x).argmax(-1), y)
    assert (admissible.cost(found.x, x) <= 1.2 + 1e-9).all()
    assert found.before.shape == x.shape
    assert found.precision.min() >= 0
    near = attacked(1e-7)
    assert (admissible.cost(near.x, x) <= 2e-7).all()


def test_a_budget_is_that_of_its_attack_with_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    settings = AttackRunSettings(attack="strong", k=3, rounds=5, seed=9)
    assert budget_at(settings, 0.25, L2Ball()) == EnsembleBudget(rounds=5, cells=CELLS)
    walk = budget_at(AttackRunSettings(attack="er"), 0.2, Box())
    assert walk == WalkBudget(step=0.01, steps=100)
    for name in ("er", "moo"):
        with pytest.raises(ValueError, match="takes no --rounds"):
            budget_at(replace(settings, attack=name), 0.25, L2Ball())


@pytest.mark.parametrize("handling", ["unconstrained", "hedge", "rejection"])
def test_handlings_reach_the_attack(model: nn.Module, split: Split, handling: str) -> None:
    budget = budget_at(least("er", handling=handling), 0.3, L2Ball())
    assert budget == WalkBudget(steps=30, step=0.04, handling=handling)


# --- findings ---------------------------------------------------------------------------------


def made(precision: Tensor, **changes: Any) -> AttackRun:
    """Findings of an invented curve with these P@k: (E, B)."""
    E, B = precision.shape
    members = changes.pop("members", {})
    steps = changes.pop("first_flip", torch.full((B,), 101))
    last = AttackResult(
        x=torch.zeros(B, 3),
        before=torch.zeros(B, 3),
        after=torch.zeros(B, 3),
        precision=precision[-1],
        history=precision[-1][None],
        steps=torch.tensor([100]),
        first_flip=steps,
        members=members,
    )
    curve = Curve(
        epsilons=torch.tensor([0.1, 0.2, 0.4][:E]).double(),
        x=torch.zeros(E, B, 3),
        before=torch.zeros(B, 3),
        after=torch.zeros(E, B, 3),
        precision=precision,
        raw=changes.pop("raw", precision),
        smallest=changes.pop("smallest", torch.full((B,), torch.inf)),
        nearest=torch.zeros(B, 3),
        attacks=[last],
    )
    usual: dict[str, Any] = {
        "settings": LITTLE,
        "clean_auc": 0.9,
        "examples_auc": None,
        "off_data_share": 0.0,
        "exchanges": None,
        "ties": 0.0,
        "distinct_sets": 1,
        "fresh": None,
        "doubling": None,
        "alarms": (),
        "perturbation": L2Ball(),
    }
    return AttackRun(curve=curve, **usual | changes)


def test_the_table_tells_each_radius() -> None:
    merged = torch.tensor([[1.0, 0.5, 1.0, 0.75], [0.5, 0.25, 1.0, 0.25]]).double()
    alone = torch.tensor([[1.0, 1.0, 1.0, 0.75], [0.5, 0.25, 1.0, 0.25]]).double()
    lines = made(merged, raw=alone).table()
    assert [list(line.values()) for line in lines] == [
        [pytest.approx(0.1), 0.8125, 0.5, 0.9375],
        [pytest.approx(0.2), 0.5, 0.75, 0.5],
    ]
    assert list(lines[0]) == ["epsilon", "P@k", "broken", "P@k, attack alone"]
    lines = made(merged, fresh=[0.9, 0.8, 0.7]).table()
    assert [line["P@k, fresh noise"] for line in lines] == [0.8, 0.7]


def test_quartiles_of_the_smallest_radius_may_lie_beyond_all() -> None:
    smallest = torch.tensor([0.3, 0.1, torch.inf, 0.2])
    found = made(torch.ones(1, 4), smallest=smallest).smallest()
    assert found == {
        "lower quartile": pytest.approx(0.2),
        "median": pytest.approx(0.3),
        "upper quartile": None,
    }
    assert set(made(torch.ones(1, 1)).smallest().values()) == {None}


def test_members_are_means_and_have_no_steps() -> None:
    members = {"pairs": torch.tensor([1.0, 0.5]), "random points": torch.tensor([0.25, 0.25])}
    found = made(torch.ones(1, 2), members=members)
    assert found.members() == {"pairs": 0.75, "random points": 0.25}
    assert found.iterations() == []


def test_steps_to_the_first_flip_are_told_of_walks() -> None:
    (never,) = made(torch.ones(1, 3)).iterations()
    assert never == "The attack alone broke no example in 100 steps."
    (some,) = made(torch.ones(1, 4), first_flip=torch.tensor([7, 101, 100, 30])).iterations()
    assert "3 of 4 examples" in some
    assert "step 30 in the median" in some
    assert "by step 100 all" in some


# --- attacks on a model -----------------------------------------------------------------------


def test_an_attack_on_a_model_is_told_whole(
    model: nn.Module, split: Split, strong: AttackRun
) -> None:
    curve = strong.curve
    assert curve.epsilons.tolist() == [0.02, 0.5]
    assert strong.examples == 4
    assert (curve.precision[1] <= curve.precision[0]).all()
    assert (curve.precision <= curve.raw).all()
    assert (curve.precision[1] < 1).any()
    assert set(strong.members()) >= {"random points", "pairs"}
    assert 1 <= strong.distinct_sets <= 4
    assert 0 <= strong.off_data_share <= 1
    assert strong.exchanges is not None
    assert 0.3 < strong.exchanges.order <= 1
    assert strong.exchanges.without == 0
    double, x, _ = rows(model, split)
    assert strong.clean_auc == auc(double, split.test.x.double(), split.test.y)
    truth = split.test.y[:COUNT]
    if len(truth.unique()) > 1:
        assert strong.examples_auc == (auc(double, x, truth), auc(double, curve.x[-1], truth))
    assert next(model.parameters()).dtype == torch.float32  # the caller's model is left alone


def test_doubling_is_what_twice_the_rounds_change(
    model: nn.Module, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = EnsembleBudget(starts=0, steps=0, points=1, moves=1, pairs=0)
    strong = replace(laboratory.ATTACKS["strong"], budget=weak)
    monkeypatch.setitem(laboratory.ATTACKS, "strong", strong)
    asked = replace(LITTLE, epsilons=(0.5, 0.1), examples=20)
    found = attack_model(model, split, asked)
    model, x, y = rows(model, split, 20)
    once, twice = (
        attacker("strong", k=K, radius=0.5, budget=replace(weak, rounds=rounds))(model, x, y)
        for rounds in (1, 2)
    )
    assert found.doubling is not None
    assert found.doubling.rounds == 1
    assert found.doubling.before == float(once.precision.mean())
    assert found.doubling.after == float(twice.precision.mean())
    assert found.doubling.change < 0  # else nothing was tested
    assert found.doubling.before == float(found.curve.raw[-1].mean())


FAST = replace(WIDE, rounds=1, steps=4, points=4, moves=4, sharpness=(8.0,))


def test_contributions_of_attributes_are_attacked(
    model: nn.Module, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laboratory, "WIDE", FAST)
    monkeypatch.setattr(laboratory, "REFERENCE", 4)
    asked = replace(LITTLE, explainer="shapley", of="margin", k=3, perturbation="actionable")
    found = attack_model(model, split, replace(asked, epsilons=(1.0,), examples=1))
    network, x, y = rows(model, split, 1)
    table, reference = split.dataset.table, explainer_of(asked, split).reference
    assert float(torch.cdist(reference, split.train.x.double()).amin(1).max()) < 1e-6
    names, columns = table.group_names, torch.tensor(table.groups)
    n, signs = len(names), torch.tensor([-1.0, 1.0]).double() * (2 * int(y[0]) - 1)

    def score(chosen: tuple[int, ...]) -> float:
        mine = torch.isin(columns, torch.tensor(chosen, dtype=torch.long))
        with torch.no_grad():
            return float((network(torch.where(mine, x, reference)) @ signs).mean())

    # The definition: what each attribute adds to every set of others, by the weight of its size.
    scores = {
        chosen: score(chosen) for size in range(n + 1) for chosen in combinations(range(n), size)
    }
    expected = torch.zeros(n, dtype=torch.float64)
    for chosen, value in scores.items():
        weight = math.factorial(len(chosen)) * math.factorial(max(0, n - len(chosen) - 1))
        for each in set(range(n)) - set(chosen):
            joined = tuple(sorted((*chosen, each)))
            expected[each] += weight / math.factorial(n) * (scores[joined] - value)
    torch.testing.assert_close(found.curve.before[0], expected.abs())
    assert found.exchanges is None
    told = found.contributions
    assert told is not None
    assert "11 attributes to the margin" in told
    assert "4 rows drawn from the training part" in told
    assert found.record()["contributions"] == told
    lines = example_rows(split, found)
    top = expected.abs().argsort(descending=True)[:3].tolist()
    assert [each["name"] for each in lines[0]["reasons"]] == [names[place] for place in top]
    json.dumps(lines, allow_nan=False)


def test_the_strong_attack_takes_contributions_and_actions(model: nn.Module, split: Split) -> None:
    network, x, y = rows(model, split, 3)
    explain = Shapley(groups=split.dataset.table.groups, reference=split.train.x[:2].double())
    allowed = actionable_of(split).at(1.0)
    found = attack(network, x, y, k=3, explainer=explain, perturbation=allowed, budget=FAST)
    assert (allowed.cost(found.x, x) <= 1.0 + 1e-9).all()
    assert torch.equal(predicted(network, found.x), y)
    kept = precision_at_k(explain(network, x, y), explain(network, found.x, y), 3)
    assert torch.equal(found.precision, kept)
    assert (kept < 1).any()


def test_contributions_are_those_of_tables() -> None:
    pictures = load("mnist")
    asked = AttackRunSettings(explainer="shapley", k=3)
    assert "attributes of tables" in refusal(lambda: check_request(asked, pictures))


def test_a_time_limit_holds_for_all_that_is_told(model: nn.Module, split: Split) -> None:
    hurried = replace(LITTLE, rounds=10_000, seconds=0.3, examples=2)
    found = attack_model(model, split, hurried)  # with no limit it would take an hour
    history = found.curve.attacks[-1].history
    if len(history) > 2:
        assert found.doubling is not None
        assert found.doubling.after == float(history[2 * found.doubling.rounds].mean())
    else:
        assert found.doubling is None


def test_no_more_examples_than_there_are(model: nn.Module, split: Split) -> None:
    few = replace(split, test=replace(split.test, **first_of(split, 30)))
    settings = least("er", examples=10_000)
    found = attack_model(model, few, settings)
    assert found.examples == 30
    assert found.doubling is None
    assert found.members() == {}
    assert len(found.iterations()) == 1


def first_of(split: Split, count: int) -> dict[str, Tensor]:
    return {name: getattr(split.test, name)[:count] for name in ("rows", "x", "y")}


def test_fresh_noise_is_what_new_explanations_say(model: nn.Module, split: Split) -> None:
    settings = replace(LITTLE, explainer="smooth-grad", noise="fresh", rounds=None, attack="mse")
    settings = replace(settings, epsilons=(0.2, 0.4), examples=3)
    double, x, y = rows(model, split)
    x, y = x[:3], y[:3]
    # Any inputs will do: those of a curve are neither made nor judged here.
    attacked = torch.stack([x + 0.2 * torch.sign(x - 0.5), x - 0.3])
    curve = replace(made(torch.ones(2, 3)).curve, x=attacked)
    found = laboratory._with_fresh_noise(double, split, x, y, curve, settings)

    def top(places: Tensor, seed: int) -> list[set[int]]:
        scores = SmoothGrad(seed=seed)(double, places, y).detach()
        return [set(row.argsort(descending=True)[:K].tolist()) for row in scores]

    expected = []
    for places in (x, *attacked):
        shares = [
            len(before & after) / K
            for draw in range(DRAWS)
            for before, after in zip(top(x, 2 * draw + 1), top(places, 2 * draw + 2), strict=True)
        ]
        expected.append(sum(shares) / len(shares))
    assert found == pytest.approx(expected, abs=1e-12)
    assert (
        laboratory._with_fresh_noise(double, split, x, y, curve, replace(settings, noise="shared"))
        is None
    )


def test_handlers_are_compared_at_the_largest_radius(
    model: nn.Module, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def compare(model: nn.Module, x: Tensor, y: Tensor, **choices: Any) -> list[Any]:
        asked.update(choices, x=x, y=y, dtype=next(model.parameters()).dtype)
        return []

    monkeypatch.setattr(laboratory, "compare_handling", compare)
    compared_handling(model, split, replace(LITTLE, epsilons=(0.3, 0.1), perturbation="actionable"))
    assert asked["perturbation"].radius == 0.3
    assert asked["k"] == K
    assert isinstance(asked["perturbation"], ActionableSet)
    assert asked["x"].shape == (4, 16)
    assert asked["dtype"] == torch.float64


@pytest.mark.parametrize("ask", [attack_model, compared_handling])
@pytest.mark.parametrize(
    ("build", "says"),
    [
        (partial(nn.Linear, 7, 2), "(B, 16)"),
        (partial(nn.Unflatten, 1, (4, 4)), "two or more classes"),
        (partial(nn.Embedding, 3, 2), "(B, 16)"),
    ],
)
def test_a_model_of_other_inputs_or_outputs_is_refused(
    split: Split,
    ask: Callable[[nn.Module, Split, AttackRunSettings], object],
    build: Callable[[], nn.Module],
    says: str,
) -> None:
    assert says in refusal(lambda: ask(build(), split, LITTLE))


# --- rows of examples -------------------------------------------------------------------------


def test_rows_tell_inputs_in_original_units(split: Split, strong: AttackRun) -> None:
    told = json.loads(json.dumps(example_rows(split, strong), allow_nan=False))
    dataset = split.dataset
    names = [feature.name for feature in dataset.features]
    assert len(told) == 4
    for number, row in enumerate(told):
        assert row["row"] == int(split.test.rows[number])
        original = dataset.x[row["row"]]
        assert list(row["input"]) == names
        assert list(row["input"].values()) == pytest.approx(original.tolist(), abs=1e-4)
        assert len(row["reasons"]) == K
        assert [each["epsilon"] for each in row["attacked"]] == [0.02, 0.5]
        for at, each in enumerate(row["attacked"]):
            attacked = torch.tensor(list(each["input"].values()), dtype=torch.float64)
            scaled = split.scale.apply(attacked)
            assert torch.allclose(scaled, strong.curve.x[at, number], atol=1e-9)
            before = {reason["name"] for reason in row["reasons"]}
            after = {reason["name"] for reason in each["reasons"]}
            assert each["P@k"] == len(before & after) / K
            for change in each["changes"]:
                assert change["before"] != change["after"]
                assert change["name"] in dataset.group_names
        smallest = row["smallest epsilon"]
        if smallest is None:
            assert row["nearest"] is None
        else:
            nearest = torch.tensor(list(row["nearest"]["input"].values()), dtype=torch.float64)
            x = split.test.x[number].double()
            assert float((split.scale.apply(nearest) - x).norm()) == pytest.approx(smallest)


def test_rows_of_applicants_show_people_who_could_exist(
    split: Split, by_applicants: AttackRun
) -> None:
    told = json.loads(json.dumps(example_rows(split, by_applicants), allow_nan=False))
    fixed = by_applicants.perturbation.fixed  # type: ignore[attr-defined]
    assert any(row["attacked"][0]["changes"] for row in told)
    for row in told:
        attacked = row["attacked"][0]
        for group in split.dataset.structure.one_hot:
            names = [split.dataset.features[column].name for column in group]
            assert sorted(attacked["input"][name] for name in names) == [0.0] * (len(group) - 1) + [
                1.0
            ]
        priors = attacked["input"]["priors"]
        assert priors == pytest.approx(round(priors), abs=1e-4)
        assert not {change["name"] for change in attacked["changes"]} & set(fixed)
        assert all(" + " not in change["after"] for change in attacked["changes"])


# --- models -----------------------------------------------------------------------------------


def test_without_a_model_one_is_trained(
    split: Split, monkeypatch: pytest.MonkeyPatch, model: nn.Module
) -> None:
    monkeypatch.setattr(laboratory, "load_recipe", tiny_recipe)
    found, of = given_model(split.dataset, None, None, 0)
    assert same(found, model)
    assert torch.equal(of.test.rows, split.test.rows)
    _, other = given_model(split.dataset, None, None, 1)
    assert other.seed == 1


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[at], theirs[at]) for at in mine)


def test_a_file_of_a_run_keeps_its_own_split(split: Split, model: nn.Module, file: Path) -> None:
    found, of = given_model(split.dataset, str(file), None, 7)
    assert same(found, model)
    assert of.seed == 0
    says = refusal(lambda: given_model(load("bank"), str(file), None, 0))
    assert "trained on compas, not on bank" in says
    changed = replace(split.dataset, x=split.dataset.x[:500], y=split.dataset.y[:500])
    says = refusal(lambda: given_model(changed, str(file), None, 0))
    assert "other rows or columns of compas" in says
    says = refusal(lambda: given_model(split.dataset, str(file), file, 0))
    assert "--model module:factory" in says


MINE = """
import sys
from torch import nn
def net(): return nn.Sequential(nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 2))
def three(): return 3
def fails(): raise RuntimeError("first line\\nsecond line")
def takes(x): return x
def silent(): raise AssertionError
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of the user's, forgotten afterwards."""
    (tmp_path / "users_own.py").write_text(MINE)
    (tmp_path / "users_typo.py").write_text("def net(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("users_own", "users_typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_factory_with_and_without_weights(split: Split, folder: Path) -> None:
    found, of = given_model(split.dataset, "users_own:net", None, 2)
    assert of.seed == 2
    weights = save(folder / "mine.safetensors", found, {})
    again, _ = given_model(split.dataset, "users_own:net", weights, 2)
    assert same(again, found)
    other, _ = given_model(split.dataset, "users_own:net", None, 2)
    assert not same(other, found)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("users_own:three", "returned int"),
        ("users_own:fails", "RuntimeError: first line)"),
        ("users_own:silent", "(AssertionError)"),
        ("users_own:takes", "TypeError"),
        ("users_own:nett", "no attribute 'nett'"),
        ("users_own:", "AttributeError"),
        (":net", "Empty module name"),
        ("users_owm:net", "No module named 'users_owm'"),
        ("users_typo:net", "SyntaxError"),
        ("nowhere.safetensors", "there is no model file nowhere.safetensors"),
        ("users_own.py", "is no model that can be read"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_gives_no_model_is_refused(split: Split, name: str, says: str) -> None:
    assert says in refusal(lambda: given_model(split.dataset, name, None, 0))


@pytest.mark.usefixtures("folder")
def test_weights_of_another_network_or_of_none_are_refused(split: Split, file: Path) -> None:
    says = refusal(lambda: given_model(split.dataset, "users_own:net", file, 0))
    assert "another architecture" in says
    says = refusal(lambda: given_model(split.dataset, "users_own:net", Path("no"), 0))
    assert "there is no checkpoint no" in says
    says = refusal(lambda: given_model(split.dataset, None, file, 0))
    assert "need the network they belong to" in says
