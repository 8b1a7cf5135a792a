"""Runs on pictures and networks: the same units, rows and tables as on data of tables."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from r2et.core.inputs import Joined, Piece
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.data import Dataset, ItemStructure
from r2et.evaluation.evaluate import (
    evaluate,
    pair_and_singles,
    task_of,
)
from r2et.evaluation.protocol import (
    EvaluationSettings,
    Walk,
)
from r2et.experiments.config import Recipe, load_recipe, recipe_from
from r2et.experiments.execution import sweep
from r2et.experiments.runner import linear_control, network_plan
from r2et.explainers import Activations, Gradient, gradient
from r2et.metrics.statistics import auc
from r2et.models import MODELS
from r2et.models.siamese import Siamese
from r2et.training import checkpoint
from r2et.training.checkpoint import from_bytes
from refusals import refusal
from reproduction.papers import paper_table
from reproduction.reproduce import compared_by
from reproduction.targets import EVERY, TARGETS

NODES = 6
SMALL = {"radius": 0.05, "step": 0.02, "steps": 4}
EFFORT = {
    "rounds": 1, "starts": 2, "steps": 2, "points": 2, "moves": 2, "pairs": 0, "even": 2,
}  # fmt: skip


def in_thirds(labels: Tensor, seed: int) -> dict[str, Tensor]:
    order = torch.randperm(len(labels), generator=stream(seed, "thirds"))
    return dict(zip(("train", "valid", "test"), order.chunk(3), strict=True))


def pairs_of_thirds(labels: Tensor, seed: int) -> dict[str, Tensor]:
    parts = in_thirds(labels, seed)
    return {name: torch.stack([part, part.roll(1)], 1) for name, part in parts.items()}


@cache
def pictures() -> Dataset:
    drawn = torch.rand(60, 1, 8, 8, generator=stream(0, "pictures"))
    labels = torch.arange(60) % 2
    drawn[labels == 1, :, :4] *= 0.3
    return Dataset(
        name="squares",
        x=drawn,
        y=labels,
        structure=ItemStructure(piece=Piece(shape=(1, 8, 8)), bounds=(0.0, 1.0)),
        classes=("even", "dark above"),
        divide=in_thirds,
        target="kind",
        source="drawn",
        stand_in="drawn squares instead of pictures",
    )


@cache
def networks() -> Dataset:
    edges = NODES * (NODES - 1) // 2
    drawn = 0.5 * torch.rand(90, edges, generator=stream(0, "networks"))
    labels = torch.arange(90) % 2
    drawn[labels == 1, :5] += 0.4
    return Dataset(
        name="brains",
        x=drawn,
        y=labels,
        structure=ItemStructure(
            piece=Piece(shape=(NODES, NODES), symmetric=True),
            pairs=True,
            bounds=(-1.0, 1.0),
            centred=True,
        ),
        classes=("a", "b"),
        divide=pairs_of_thirds,
        target="kind",
        source="drawn",
    )


DATA = {"squares": pictures, "brains": networks}


def drawn(name: str) -> Dataset:
    return DATA[name]()


def recipe_of(name: str, **changes: Any) -> Recipe:
    nets = {
        "squares": {"name": "resnet18", "width": 2, "blocks": [1, 1]},
        "brains": {"name": "siamese-gcn", "hidden": 8, "embedding": 4},
    }
    table = {
        "line": "small",
        "datasets": [name],
        "gate": 1.0,
        "valid_examples": 8,
        "network": nets[name],
        "explainer": {"name": "grad", "form": "normalised"},
        "fit": {"epochs": 2, "batch": 16, "learning_rate": 0.01},
        "evaluation": {
            "k": 5,
            "attacks": ["er", "mse", "strong"],
            "norm": "linf",
            "examples": 10,
            "decisions": 2,
            "small_radius": 0.01,
            "epsilons": [],
            "record_every": 1,
            "noise": 2,
            "probes": 4,
            "shares": True,
            "manipulated": 0.8,
            "dtype": "float32",
            "singles": name == "brains",
            "handler": "rejection" if name == "brains" else "unconstrained",
            "er": SMALL,
            "strong": EFFORT,
        },
        "methods": [
            {"name": "vanilla"},
            {"name": "sp", "rho": 5.0},
            {"name": "r2et", "thickness": [1.0, 2.0], "curvature": 0.1},
        ],
    }
    return recipe_from("small", table | changes)


@pytest.fixture(scope="module", params=DATA)
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name, out = request.param, tmp_path_factory.mktemp(request.param)
    return name, out, sweep(recipe_of(name), out, load=drawn)


def test_a_sweep_measures_the_control_and_every_method(swept: Any) -> None:
    name, _, rows = swept
    assert [row.method for row in rows] == ["linear", "vanilla", "sp", "r2et"]
    for row in rows:
        measures = row.measures
        assert {"noise_precision", "er_last_precision", "er_last_changed"} <= measures.keys()
        assert {"dffot", "comp", "suff", "hessian_norm", "clean_auc"} <= measures.keys()
        assert measures["strong_precision"] <= measures["er_precision"]
        assert measures["er_changed"] == measures["strong_changed"] == 0
        assert ("within_class_auc" in measures) == (name == "brains")
        assert "off_data_share" not in measures
        assert not any("exchange" in name for name in measures)
        assert row.radii.norm == "linf"
        assert row.stand_in == drawn(name).stand_in
        assert len(row.decisions) == 2
        assert {each.kind for each in row.decisions} <= {"picture", "network"}
    assert len(rows[3].candidates) == 2


def test_a_second_sweep_has_nothing_to_do_and_a_new_one_gives_the_same_rows(
    swept: Any, tmp_path: Path
) -> None:
    name, out, rows = swept
    assert sweep(recipe_of(name), out, load=drawn) == rows
    again = sweep(recipe_of(name), tmp_path, load=drawn)
    for row, other in zip(rows, again, strict=True):
        assert row.measures == other.measures


def test_kept_models_are_built_again_with_their_single_heads(swept: Any) -> None:
    name, out, _ = swept
    (path, *_) = sorted(out.rglob("sp-*.safetensors"))
    model = from_bytes(path.read_bytes())
    split = drawn(name).split(0)
    assert model(split.test.x).shape == (len(split.test), 2)
    if name == "brains":
        assert isinstance(model, Joined)
        assert isinstance(model.model, Siamese)
        pair, first, second = pair_and_singles(model, split.test.x)
        assert first.shape == second.shape == pair.shape
        items, labels = networks().split(0).training_items
        guesses = model.model.single(model.model.embed(items)).argmax(-1)
        assert (guesses == labels).double().mean() > 0.6


def test_concepts_are_trained_and_measured_without_a_linear_control(tmp_path: Path) -> None:
    methods = [
        {"name": "vanilla"},
        {"name": "est-h", "curvature": 0.1, "bend": "explanation"},
        {"name": "r2et", "thickness": 0.1, "curvature": 0.1, "bend": "explanation"},
    ]
    network = {"name": "resnet18", "width": 2, "blocks": [1], "penultimate": 12}
    concepts = {"name": "activations", "layer": "penultimate"}
    recipe = recipe_of("squares", network=network, explainer=concepts, methods=methods)
    rows = sweep(recipe, tmp_path, load=drawn)
    assert [row.method for row in rows] == ["vanilla", "est-h", "r2et"]
    assert all(row.features == 12 for row in rows)
    assert not {"dffot", "comp", "suff"} & rows[0].measures.keys()
    assert {each.kind for each in rows[0].decisions} == {"concept"}


def test_retraining_goes_on_from_vanilla_and_keeps_its_ranking(tmp_path: Path) -> None:
    methods = [{"name": "vanilla"}, {"name": "r2et-noh", "thickness": 1.0}]
    recipe = recipe_of(
        "squares", schema="retrain", retrain_epochs=2, least_ranking=0.0, methods=methods
    )
    rows = sweep(recipe, tmp_path, load=drawn)
    assert [row.passed for row in rows] == [True, True, True]


def test_training_is_continued_in_a_smooth_network_to_its_last_epoch(tmp_path: Path) -> None:
    smooth = {"name": "steadfast-any", "thickness": 0.0, "softplus": 2.0, "blur": 1.0}
    recipe = recipe_of(
        "squares",
        network={"name": "resnet18", "width": 2, "blocks": [1], "activation": "relu"},
        schema="continue",
        retrain_epochs=2,
        least_ranking=1.0,  # asked of what is retrained only
        gate=1.0,
        methods=[{"name": "vanilla"}, smooth],
    )
    rows = sweep(recipe, tmp_path, load=drawn)
    assert [row.passed for row in rows] == [True, True, True]
    found = {}
    for path in tmp_path.rglob("*.safetensors"):
        model, header = checkpoint.load(path)
        found[header["method"]] = model.state_dict(), header
    (vanilla, _), (continued, header) = found["vanilla"], found["steadfast-any"]
    assert (header["schema"], header["epochs"]) == ("continue", 2)
    assert {name: header["model"][name] for name in ("softplus", "blur")} == {
        "softplus": 2.0,
        "blur": 1.0,
    }
    # The same layers, moved a little, and statistics of what they see now.
    first, same = vanilla["body.0.weight"], continued["body.0.1.weight"]
    assert 0 < float((same - first).norm()) < float(first.norm())
    assert not torch.equal(vanilla["body.1.running_mean"], continued["body.1.running_mean"])


def test_handlers_are_compared_in_the_threat_of_the_recipe(swept: Any) -> None:
    name, out, _ = swept
    if name != "brains":
        pytest.skip("pictures have one output to keep")
    (path, *_) = sorted(out.rglob("vanilla-*.safetensors"))
    points = compared_by(from_bytes(path.read_bytes()), networks().split(0), recipe_of(name), 6)
    assert {"unconstrained", "equal", "gda", "hedge", "qp"} <= {each.handler for each in points}
    assert all(0 <= each.precision <= 1 and 0 <= each.sensitivity <= 1 for each in points)
    assert all(each.sensitivity == 0 for each in points if each.handler == "rejection")


def test_the_control_of_pairs_cannot_be_moved_by_any_attack() -> None:
    split = networks().split(0)
    model = linear_control(split)
    assert auc(model, split.test.x, split.test.y) > 0.6
    explain = Gradient(form="normalised", groups=networks().structure.explained)
    with torch.no_grad():
        before, after = (
            explain(model, x, split.test.y) for x in (split.test.x, split.test.x.flip(0))
        )
    assert precision_at_k(before, after, 5).min() == 1


def test_a_collection_needs_a_network_and_a_method_of_its_own() -> None:
    recipe = recipe_of("squares")
    bare = recipe_from("bare", {"line": "", "methods": [{"name": "vanilla"}]})
    said = refusal(lambda: network_plan(pictures(), bare, "vanilla"))
    assert "does not say by which network squares is seen" in said
    assert "trains a network of tables" in refusal(
        lambda: network_plan(pictures(), recipe, "steadfast")
    )
    unknown = {"line": "", "network": {"name": "resnet"}, "methods": [{"name": "vanilla"}]}
    assert "unknown network 'resnet'" in refusal(lambda: recipe_from("x", unknown))
    wrong = {"line": "", "network": {"name": "gcn", "widht": 3}, "methods": [{"name": "vanilla"}]}
    assert "has no setting 'widht'" in refusal(lambda: recipe_from("x", wrong))
    layerless = {
        "line": "",
        "explainer": {"name": "activations"},
        "methods": [{"name": "vanilla"}],
    }
    assert "needs a layer" in refusal(lambda: recipe_from("x", layerless))


def test_bounds_are_those_of_the_data_around_the_mean() -> None:
    split = networks().split(0)
    threat = task_of(split, EvaluationSettings(norm="linf"), gradient).perturbation.at(10.0)
    far = threat.project(split.test.x + 10.0, split.test.x)
    torch.testing.assert_close(split.scale.undo(far), torch.ones_like(far))


def test_of_three_classes_the_share_told_right_is_measured() -> None:
    kinds = replace(pictures(), y=torch.arange(60) % 3, classes=("a", "b", "c"))
    split = kinds.split(0)
    model = MODELS["resnet18"].build(
        channels=1, classes=3, width=2, blocks=(1, 1), generator=stream(0, "three")
    )
    settings = EvaluationSettings(k=4, attacks=("er",), examples=2, er=Walk(steps=1), probes=2)
    found = evaluate(model, split, settings)
    assert len(found.decisions) == 2 < settings.decisions, "no more than were attacked"
    with torch.no_grad():
        answers = model.eval()(split.test.x).argmax(-1)
    assert found.measures["accuracy"] == pytest.approx(
        float((answers == split.test.y).double().mean())
    )


def test_concepts_are_no_features_to_remove() -> None:
    split = pictures().split(0)
    explain = Activations(layer="penultimate")
    assert task_of(split, EvaluationSettings(), explain).features is None
    assert task_of(split, EvaluationSettings(), gradient).features == pictures().structure.explained


def test_tables_of_pictures_name_their_own_k_and_the_data_they_stand_for(swept: Any) -> None:
    name, _, rows = swept
    told = [replace(row, recipe="paper", dataset="oct") for row in rows]
    table = paper_table(TARGETS["table-1"].quantities, told, "oct")
    assert table.stand_in == drawn(name).stand_in
    assert {line.label for line in table.lines} >= {"Vanilla", "R2ET"}
    published = [each.published for line in table.lines for each in line.entries]
    assert any(each is not None for each in published)  # the column ROCT


@pytest.mark.parametrize("dataset", [name for name in EVERY if name not in ("adult", "bank")])
def test_every_data_set_of_a_target_has_a_recipe(dataset: str) -> None:
    for target in TARGETS.values():
        if dataset not in target.datasets:
            continue
        for need in target.needs:
            if need.datasets is None or dataset in need.datasets:
                recipe = load_recipe(need.recipe, dataset)
                assert recipe.methods[0].name == "vanilla"
        assert target.quantities_of(dataset) or not target.is_table
