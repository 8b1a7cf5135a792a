"""Collections of pictures and networks, what is drawn of them, and their controls and models."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacking import attacker
from closed_form import numbers
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.search import AttackResult
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.rng import stream
from r2et.data import Dataset, ItemStructure
from r2et.evaluation.decisions import bytes_of, decision_records, numbers_of
from r2et.explainers import Activations, Gradient, gradient, predicted
from r2et.metrics.statistics import auc
from r2et.models import build
from r2et.models.linear import Product, fitted_logistic, fitted_product
from r2et.perturbations import Box, L2Ball
from r2et.training.checkpoint import load, save
from refusals import refusal

PIECE = Piece(shape=(2, 3, 4))
SQUARE = Piece(shape=(4, 4), symmetric=True)


def pictures(**other: Any) -> Dataset:
    """Items made up; what is named changes them, or what they are made of."""
    structure = {"piece": PIECE, "bounds": (0.0, 1.0)} | {
        name: other.pop(name)
        for name in [each.name for each in fields(ItemStructure)]
        if name in other
    }
    chosen: dict[str, Any] = {
        "name": "made",
        "x": numbers(12, *PIECE.shape).sigmoid().float(),
        "y": torch.arange(12) % 2,
        "structure": ItemStructure(**structure),
        "classes": ("round", "square"),
        "divide": alternating,
        "target": "shape",
        "source": "made up",
    }
    return Dataset(**(chosen | other))


def restructured(data: Dataset, **changes: Any) -> Dataset:
    return replace(data, structure=replace(data.structure, **changes))


def alternating(labels: Tensor, seed: int) -> Mapping[str, Tensor]:
    """Six, four and two of twelve items, both classes in each part."""
    order = torch.randperm(6, generator=stream(seed, "test"))
    both = torch.stack([2 * order, 2 * order + 1], 1).flatten()
    return dict(zip(("train", "valid", "test"), both.split([6, 4, 2]), strict=True))


def pairs_of(labels: Tensor, seed: int) -> Mapping[str, Tensor]:
    """All pairs of the items of a part, as 32-bit numbers."""
    return {
        name: torch.cartesian_prod(items, items).int()
        for name, items in alternating(labels, seed).items()
    }


def networks(**other: Any) -> Dataset:
    return pictures(
        **({"x": numbers(12, 6, seed=1).float(), "piece": SQUARE, "bounds": None} | other)
    )


# --- the parts of a data set ---


def test_items_are_divided_as_told() -> None:
    data = pictures()
    split = data.split(3)
    told = alternating(data.y, 3)
    for name in ("train", "valid", "test"):
        part = getattr(split, name)
        assert torch.equal(part.rows, told[name])
        assert torch.equal(part.x, data.x[told[name]])
        assert torch.equal(part.y, data.y[told[name]])
        assert part.x.dtype == torch.float32
    assert (split.seed, split.dataset) == (3, data)
    assert torch.equal(split.scale.undo(split.test.x), split.test.x)
    assert not torch.equal(split.train.rows, data.split(4).train.rows)
    assert (split.classes, data.n) == (("round", "square"), 12)
    assert data.structure.explained == (*range(12), *range(12))
    assert data.structure.inputs == Inputs(pieces=(PIECE,))


@pytest.mark.parametrize("make", [pictures, networks])
def test_pairs_lie_side_by_side(make: Any) -> None:
    data = make(pairs=True, divide=pairs_of)
    split = data.split(0)
    size = data.structure.piece.size
    assert (split.train.x.shape, split.test.x.shape) == ((36, 2 * size), (4, 2 * size))
    for number, (first, second) in enumerate(split.valid.rows.tolist()):
        expected = torch.cat([data.x[first].flatten(), data.x[second].flatten()])
        assert torch.equal(split.valid.x[number], expected)
        same = data.y[first] == data.y[second]
        assert split.valid.y[number] == int(same)
    assert split.valid.rows.dtype == torch.long
    assert split.classes == ("different", "same")
    features = 12 if make is pictures else 6
    assert data.structure.explained == (*data.structure.inputs.explained((0,)),)
    assert data.structure.explained[size:] == (-1,) * size
    assert data.n == features
    # A model sees the items that the packed numbers are.
    first, second = data.structure.inputs.unpack(split.valid.x)
    assert first.shape == second.shape == (16, *data.structure.piece.shape)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_mean_that_is_taken_is_that_of_the_training_items(pairs: bool) -> None:
    divide = pairs_of if pairs else alternating
    data = networks(centred=True, pairs=pairs, divide=divide)
    plain = restructured(data, centred=False)
    split, raw = data.split(1), plain.split(1)
    mean = data.x[alternating(data.y, 1)["train"]].mean(0)
    shift = torch.cat([mean, mean]) if pairs else mean
    for name in ("train", "valid", "test"):
        found, was = getattr(split, name).x, getattr(raw, name).x
        torch.testing.assert_close(found, was - shift)
        torch.testing.assert_close(split.scale.undo(found), was)
        torch.testing.assert_close(split.scale.apply(was), found)
    items, labels = split.training_items
    chosen = alternating(data.y, 1)["train"].unique()
    torch.testing.assert_close(items, data.x[chosen] - mean)
    assert torch.equal(labels, data.y[chosen])
    torch.testing.assert_close(items.mean(0), torch.zeros(6), rtol=0, atol=1e-6)
    items, _ = raw.training_items
    assert torch.equal(items, data.x[chosen])
    assert len(items) == 6


def test_features_have_names() -> None:
    data = pictures()
    assert [data.structure.feature_name(number) for number in (0, 3, 4, 11)] == [
        "row 1, column 1",
        "row 1, column 4",
        "row 2, column 1",
        "row 3, column 4",
    ]
    own = pictures(explained_channels=False)
    assert own.n == 24
    assert own.structure.feature_name(1) == "channel 1, row 1, column 2"
    assert own.structure.feature_name(12 + 5) == "channel 2, row 2, column 2"
    assert len({own.structure.feature_name(number) for number in range(own.n)}) == own.n
    edges = networks()
    assert [edges.structure.feature_name(number) for number in (0, 2, 5)] == [
        "node 1 – node 2",
        "node 1 – node 4",
        "node 3 – node 4",
    ]
    named = networks(nodes=("a", "b", "c", "d"))
    assert named.structure.feature_name(3) == "b – c"
    rows = pictures(x=numbers(12, 5), piece=Piece(shape=(5,)))
    assert rows.structure.feature_name(4) == "number 5"


def test_a_digest_changes_with_every_value_and_name() -> None:
    data = pictures()
    items, labels = data.x.clone(), data.y.clone()
    items[3, 1, 2, 3] += 1e-6
    labels[:2] = 1 - labels[:2]
    others = [
        replace(data, x=items),
        replace(data, y=labels),
        replace(data, name="other"),
        replace(data, target="other"),
        replace(data, classes=("square", "round")),
        replace(data, stand_in="real ones"),
        restructured(data, centred=True),
        restructured(data, pairs=True),
        pictures(x=data.x.flatten(1), piece=Piece(shape=(24,))),
    ]
    digests = [each.digest for each in (data, *others)]
    assert len(set(digests)) == len(digests)
    assert pictures().digest == data.digest
    scattered = data.x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
    assert not scattered.is_contiguous()
    assert replace(data, x=scattered).digest == data.digest
    assert all(len(each) == 12 and int(each, 16) >= 0 for each in digests)


def test_items_that_do_not_fit_are_refused() -> None:
    told = refusal(lambda: pictures(x=numbers(12, 24)))
    assert "floating-point numbers of shape (2, 3, 4) each, got (24,) of torch.float64" in told
    told = refusal(lambda: pictures(x=torch.zeros(12, *PIECE.shape, dtype=torch.uint8)))
    assert "got (2, 3, 4) of torch.uint8" in told
    told = refusal(lambda: networks(x=numbers(12, 4, 4)))
    assert "of shape (6,) each, got (4, 4)" in told
    told = refusal(lambda: pictures(y=torch.arange(11) % 2))
    assert "one class for each of the 12 rows, got shape (11,)" in told
    holed = numbers(12, *PIECE.shape)
    holed[7, 0, 0, 0] = torch.nan
    told = refusal(lambda: pictures(x=holed))
    assert told == ("items must be finite, but item 7 of made is not: correct it or leave it out.")
    assert "class numbers 0..1, got 0..2" in refusal(lambda: pictures(y=torch.arange(12) % 3))
    assert "at least two classes" in refusal(lambda: pictures(y=torch.zeros(12).long()))


def test_parts_without_both_classes_are_refused() -> None:
    def empty(labels: Tensor, seed: int) -> Mapping[str, Tensor]:
        return {**alternating(labels, seed), "valid": torch.zeros(0, dtype=torch.long)}

    def one_sided(labels: Tensor, seed: int) -> Mapping[str, Tensor]:
        return {**pairs_of(labels, seed), "test": torch.tensor([[0, 2], [4, 6]])}

    told = refusal(lambda: pictures(divide=empty).split(0))
    assert "the valid part of made is empty" in told
    told = refusal(lambda: pictures(divide=one_sided, pairs=True).split(0))
    assert "the 2 rows of the test part are all 'same'" in told


def test_pictures_are_no_table() -> None:
    told = refusal(lambda: pictures().features)
    assert "takes a table of named columns, but made holds pictures or networks" in told


# --- decisions to draw ---


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_shares_survive_as_bytes(shares: list[float]) -> None:
    found = numbers_of(bytes_of(shares))
    assert found.tolist() == pytest.approx(shares, abs=0.5 / 255 + 1e-6)
    assert bytes_of(found) == bytes_of(shares)  # once rounded, they are not rounded again
    assert numbers_of(bytes_of([-1.0, 2.0])).tolist() == [0.0, 1.0]


def linear_of(data: Dataset) -> Joined:
    size = data.structure.inputs.size
    plan = {"name": "mlp", "inputs": size, "hidden": [4], "activation": "tanh"}
    model = build(plan, stream(1, "test"))
    return Joined(Flat(model), data.structure.inputs)


class Flat(nn.Module):
    """A network of vectors that takes several tensors of any shape."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *parts: Tensor) -> Tensor:
        logits: Tensor = self.model(torch.cat([part.flatten(1) for part in parts], 1))
        return logits


@pytest.mark.parametrize("pairs", [False, True])
def test_decisions_are_drawn_as_they_were_taken(pairs: bool) -> None:
    data = pictures(pairs=pairs, centred=True, divide=pairs_of if pairs else alternating)
    split = data.split(0)
    model, x = linear_of(data), split.test.x
    y = predicted(model, x)
    cube = Box(radius=0.2)
    attack = attacker(
        "er",
        k=3,
        explainer=Gradient(groups=data.structure.explained),
        radius=0.2,
        step=0.05,
        steps=5,
        perturbation=Box(),
    )
    found = attack(model, x, y)
    drawn = decision_records(model, split, y, found, cube, count=3, k=3)
    assert len(drawn) == min(3, len(x))
    for number, told in enumerate(drawn):
        assert told.kind == "picture"
        assert told.shape == (2, 3, 4)
        assert told.predicted == split.classes[int(y[number])]
        assert told.actual == split.classes[int(split.test.y[number])]
        items = [told.row] if not pairs else told.row
        assert len(told.pieces) == len(items)
        for item, piece in zip(items, told.pieces, strict=True):
            was = data.x[item].flatten()
            assert torch.allclose(numbers_of(piece.before), was, atol=0.51 / 255)
        shift = split.scale.shift.flatten()
        moved = (found.x[number].flatten() + shift).clamp(0, 1)
        after = torch.cat([numbers_of(piece.after) for piece in told.pieces])
        assert torch.allclose(after, moved, atol=0.51 / 255)
        largest = max(found.before[number].max(), found.after[number].max())
        for when, saliency in (("before", found.before), ("after", found.after)):
            shown = numbers_of(told.saliency.at(when))
            assert torch.allclose(shown, saliency[number] / largest, atol=0.51 / 255)
            ranking = saliency[number].argsort(descending=True, stable=True)
            assert told.top.at(when) == tuple(ranking[:3].tolist())
        kept = len({*told.top.before} & {*told.top.after})
        assert told.precision == pytest.approx(kept / 3)
        assert told.cost == pytest.approx(float((found.x[number] - x[number]).abs().max()))
        for place, at in enumerate((x, found.x)):
            sure = model(at[number : number + 1]).softmax(-1)[0, y[number]]
            assert told.probability[place] == pytest.approx(sure.item(), abs=1e-6)
        assert told.names == {}


def test_networks_are_drawn_with_the_names_of_their_edges() -> None:
    data = networks(nodes=("a", "b", "c", "d"))
    split = data.split(0)
    model = build({"name": "gcn", "nodes": 4, "hidden": 3, "embedding": 2}, stream(0, "test"))
    x, y = split.test.x, predicted(model, split.test.x)
    before = gradient(model, x, y).detach()
    found = AttackResult(
        x=x,
        before=before,
        after=before.flip(1),
        precision=torch.ones(2),
        history=torch.ones(1, 2),
        steps=torch.zeros(1),
        first_flip=torch.ones(2),
    )
    for told in decision_records(model, split, y, found, L2Ball(), count=5, k=2):
        assert (told.kind, told.shape, told.cost) == ("network", (4, 4), 0.0)
        shown = {*told.top.before, *told.top.after}
        assert told.names == {
            str(each): data.structure.feature_name(each) for each in sorted(shown)
        }
        low, high = float(data.x.min()), float(data.x.max())
        item = (data.x[told.row] - low) / (high - low)
        assert torch.allclose(numbers_of(told.pieces[0].before), item, atol=0.51 / 255)
    neurons = Activations(layer="0")(model, x, y).detach()
    concepts = replace(found, before=neurons, after=neurons)
    (told,) = decision_records(model, split, y, concepts, L2Ball(), count=1, k=1)
    assert told.kind == "concept"
    nothing = replace(found, before=0 * before, after=0 * before)
    (told,) = decision_records(model, split, y, nothing, L2Ball(), count=1, k=2)
    assert not numbers_of(told.saliency.before).any()


# --- the control of pairs ---


def made_pairs(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Items of two classes that a plane parts but for noise, and all pairs of them."""
    items = numbers(40, 5, seed=2)
    labels = (items @ numbers(5, seed=3) + 0.3 * numbers(40, seed=4) > 0).long()
    places = torch.cartesian_prod(torch.arange(40), torch.arange(40))
    return {
        "items": items.to(dtype),
        "labels": labels,
        "pairs": items[places].flatten(1).to(dtype),
        "same": (labels[places[:, 0]] == labels[places[:, 1]]).long(),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_control_of_pairs_is_two_regressions(dtype: torch.dtype) -> None:
    made = made_pairs(dtype)
    before = torch.random.get_rng_state()
    control = fitted_product(**made, penalty=0.1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {weight.dtype for weight in control.parameters()} == {dtype}
    a, b = made["pairs"].chunk(2, dim=1)
    alone = fitted_logistic(made["items"], made["labels"], penalty=0.1).to(dtype)
    scores = [alone(each).diff() for each in (a, b)]
    products = scores[0] * scores[1]
    expected = fitted_logistic(products.detach(), made["same"]).to(dtype)(products)
    torch.testing.assert_close(control(a, b), expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(control(a, b), control(b, a))
    for single, score in zip(control.outputs(a, b)[1:], scores, strict=True):
        torch.testing.assert_close(single.diff(), score, rtol=1e-3, atol=1e-4)
    pair = Joined(control, Inputs.of((a, b)))
    found = auc(pair, made["pairs"], made["same"])
    by_hand = rank_auc(products.detach().flatten().tolist(), made["same"].tolist())
    assert found == pytest.approx(by_hand, abs=1e-5)
    assert found > 0.9


def rank_auc(scores: list[float], labels: list[int]) -> float:
    """Share of pairs of examples in order, ties half: the AUC by its definition."""
    ones = torch.tensor([score for score, label in zip(scores, labels, strict=True) if label])
    zeros = torch.tensor([score for score, label in zip(scores, labels, strict=True) if not label])
    apart = ones[:, None] - zeros[None]
    return float((apart > 0).double().mean() + (apart == 0).double().mean() / 2)


def test_no_attack_turns_the_gradient_of_the_control() -> None:
    made = made_pairs()
    control = fitted_product(**made, penalty=0.1)
    assert isinstance(control, Product)
    x = made["pairs"][1::97]
    model = Joined(control, Inputs(pieces=(Piece(shape=(5,)),) * 2))
    y = predicted(model, x)
    groups = model.inputs.explained((0,))
    explain = Gradient(groups=groups)
    shares = replace(explain, form="normalised")(model, x, y)
    weight = control.score.weight.detach().abs()
    torch.testing.assert_close(shares, (weight / weight.sum()).expand_as(shares))
    budget = {"radius": 2.0, "step": 0.5, "steps": 10}
    effort = EnsembleBudget(rounds=2, starts=4, steps=5, points=20, moves=5, pairs=2, even=1)
    for attack in (
        attacker("er", k=2, explainer=explain, **budget),
        attacker("mse", k=2, explainer=explain, **budget, perturbation=Box()),
        attacker("strong", k=2, explainer=explain, radius=2.0, budget=effort),
    ):
        assert torch.equal(attack(model, x, y).precision, torch.ones(len(x)).double())
    # Its ranking can be moved where the other item is explained, too: both lengths vary.
    both = attacker("er", k=2, **budget)(model, x, y)
    assert both.flipped.any()


def test_the_control_of_pairs_is_for_two_classes() -> None:
    made = made_pairs() | {"labels": torch.arange(40) % 3}
    told = refusal(lambda: fitted_product(**made, penalty=0.1))
    assert told == "the control of pairs is for items of two classes, got 3."


# --- models by their plan ---


SIAMESE: dict[str, Any] = {
    "name": "siamese-gcn",
    "nodes": 4,
    "hidden": 5,
    "embedding": 3,
    "pieces": [[6], [6]],
}


def test_a_plan_with_pieces_is_joined() -> None:
    bare = {key: value for key, value in SIAMESE.items() if key != "pieces"}
    model, alone = build(SIAMESE, stream(0, "test")), build(bare, stream(0, "test"))
    assert isinstance(model, Joined)
    assert model.inputs == Inputs(pieces=(Piece(shape=(6,)), Piece(shape=(6,))))
    x = numbers(3, 12).float()
    assert torch.equal(model(x), alone(x[:, :6], x[:, 6:]))
    assert not isinstance(alone, Joined)


def test_a_plan_with_softplus_has_no_kinks() -> None:
    smooth = build({**SIAMESE, "softplus": 2.0}, stream(0, "test"))
    kinked = build(SIAMESE, stream(0, "test"))
    bends = [part for part in smooth.modules() if isinstance(part, nn.Softplus)]
    assert [bend.beta for bend in bends] == [2.0]
    assert not any(isinstance(part, nn.ReLU) for part in smooth.modules())
    assert all(
        torch.equal(value, kinked.state_dict()[name]) for name, value in smooth.state_dict().items()
    )
    at = torch.tensor([0.0, 1.0])
    assert bends[0](at).tolist() == pytest.approx([math.log(2) / 2, math.log(1 + math.e**2) / 2])
    told = refusal(lambda: build({**SIAMESE, "activation": "tanh", "softplus": 2.0}, stream(0)))
    assert "the model has none among" in told


def test_a_plan_of_no_network_is_refused() -> None:
    told = refusal(lambda: build({"name": "siamese-gnc"}, stream(0)))
    assert told.startswith("no network is called 'siamese-gnc': did you mean 'siamese-gcn'?")
    assert "no network is called None" in refusal(lambda: build({}, stream(0)))


@pytest.mark.parametrize("rho", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_joined_model_is_saved_and_built_again(
    rho: float | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    plan = SIAMESE if rho is None else {**SIAMESE, "softplus": rho}
    model = build(plan, stream(3, "test")).to(dtype)
    path = save(tmp_path / "model.safetensors", model, {"model": plan, "seed": 3})
    found, recipe = load(path)
    x = numbers(4, 12).to(dtype)
    assert isinstance(found, Joined)
    assert recipe == {"model": plan, "seed": 3}
    assert torch.equal(found(x), model(x))
    assert found.inputs == model.inputs
    other = build({**plan, "nodes": 5, "pieces": [[10], [10]]}, stream(0, "test"))
    assert "weights of another architecture" in refusal(lambda: load(path, other))
