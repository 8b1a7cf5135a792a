"""What happens along a fit: rates, ramps, variations of pictures, weights of rows, step by step."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from r2et.data import Part
from r2et.methods.method import BatchContext, Method
from r2et.training import trainer
from r2et.training.objective import Objective
from r2et.training.settings import (
    EpochRecord,
    FitSettings,
    finished,
    improves,
    mirrored,
    rate_at,
    risen_to,
    shifted,
    shuffled,
)
from r2et.training.trainer import fit


def part(rows: int = 10) -> Part:
    labels = torch.arange(rows) % 2
    return Part(rows=torch.arange(rows), x=numbers(rows, 6).float(), y=labels)


def zero_score(model: nn.Module) -> float:
    return 0.0


# --- settings ---


def test_a_cosine_begins_with_the_whole_rate_and_ends_with_none() -> None:
    settings = FitSettings(epochs=8, learning_rate=0.4, schedule="cosine")
    assert rate_at(0, settings) == pytest.approx(0.4)
    assert rate_at(4, settings) == pytest.approx(0.2)
    assert rate_at(8, settings) == pytest.approx(0.0)
    assert rate_at(7.5, replace(settings, schedule="constant")) == 0.4


def test_penalties_rise_during_their_share_of_all_epochs() -> None:
    settings = FitSettings(epochs=10, ramp=0.4)
    assert [risen_to(each, settings) for each in (0, 1, 3, 4, 9)] == [0.0, 0.25, 0.75, 1.0, 1.0]
    assert risen_to(0, FitSettings(epochs=10)) == 1.0


def test_only_a_better_epoch_is_kept_and_patience_waits_for_one() -> None:
    settings = FitSettings(patience=2)
    history = [EpochRecord(epoch=at, parts={}, valid_auc=auc) for at, auc in enumerate((0.6, 0.7))]
    equal, better = (EpochRecord(epoch=2, parts={}, valid_auc=auc) for auc in (0.7, 0.71))
    assert not improves(equal, history, settings)
    assert improves(better, history, settings)
    assert not finished(history, settings)
    assert not finished([*history, equal], settings), "only one epoch without a better AUC"
    assert finished([*history, equal, equal], settings)
    assert not finished([*history, equal, better], settings)


def test_half_of_all_pictures_are_mirrored_left_and_right() -> None:
    x = torch.rand(60, 2, 3, 5)
    torch.manual_seed(0)
    found = mirrored(x)
    kept = [torch.equal(one, other) for one, other in zip(found, x, strict=True)]
    turned = [torch.equal(one, other.flip(2)) for one, other in zip(found, x, strict=True)]
    assert all(a != b for a, b in zip(kept, turned, strict=True))
    assert 15 < sum(kept) < 45


def test_pictures_move_by_at_most_so_many_pixels_each_way() -> None:
    x = torch.rand(500, 1, 6, 6)
    torch.manual_seed(0)
    found, seen = shifted(x, most=2), set()
    wide = F.pad(x, (2,) * 4)
    for number in range(500):
        places = [
            (down - 2, right - 2)
            for down in range(5)
            for right in range(5)
            if torch.equal(found[number], wide[number, :, down : down + 6, right : right + 6])
        ]
        assert len(places) == 1
        seen.update(places)
    assert seen == {(down, right) for down in range(-2, 3) for right in range(-2, 3)}


# --- the loop ---


def test_rates_and_ramps_follow_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[float]] = {"rate": [], "ramp": []}

    def rate(epochs: float, settings: FitSettings) -> float:
        asked["rate"].append(epochs)
        return 1e-3

    def ramp(epochs: float, settings: FitSettings) -> float:
        asked["ramp"].append(epochs)
        return 1.0

    monkeypatch.setattr(trainer, "rate_at", rate)
    monkeypatch.setattr(trainer, "risen_to", ramp)
    settings = FitSettings(epochs=2, batch=4)
    fit(tiny_mlp().float(), part(), zero_score, Method(), settings)
    thirds = [0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3]  # ten rows are three batches
    assert asked["rate"] == asked["ramp"] == pytest.approx(thirds)


@pytest.mark.parametrize("weighted", [False, True])
def test_steps_are_those_of_plain_descent_by_hand(
    monkeypatch: pytest.MonkeyPatch, weighted: bool
) -> None:
    # Plain descent shows the size of slopes, which AdamW hides. A batch counts by the weights of
    # its rows: its slope is sum w_i dl_i over the mean weight of all rows times its size.
    def plain(weights: Any, lr: float, weight_decay: float) -> Any:
        return torch.optim.SGD(weights, lr=lr, weight_decay=weight_decay)

    monkeypatch.setattr(torch.optim, "AdamW", plain)
    data, model = part(), tiny_mlp().float()
    weights = torch.arange(1.0, 11.0) if weighted else torch.ones(10)
    settings = FitSettings(epochs=2, batch=4, learning_rate=0.5, schedule="constant")
    twin = copy.deepcopy(model)
    trained, history = fit(
        model, data, zero_score, Method(weight_decay=0.1), settings,
        weights=weights if weighted else None,
    )  # fmt: skip
    losses = []
    for epoch in range(2):
        seen = 0.0
        for rows in shuffled(10, 0, epoch).split(4):
            each = F.cross_entropy(twin(data.x[rows]), data.y[rows], reduction="none")
            seen += float((each * weights[rows]).detach().sum() / weights.sum())
            total = (each * weights[rows]).sum() / (weights.mean() * len(rows))
            slopes = torch.autograd.grad(total, list(twin.parameters()))
            with torch.no_grad():
                for weight, slope in zip(twin.parameters(), slopes, strict=True):
                    weight -= 0.5 * (slope + 0.1 * weight)
        losses.append(seen)
    for ours, theirs in zip(trained.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert [record.parts["classification"] for record in history] == pytest.approx(losses)


# --- the objective ---


def square(batch: BatchContext) -> Tensor:
    return batch.logits.square().sum(-1)


def test_penalties_are_weighed_and_shown_without_a_graph() -> None:
    model, data = tiny_mlp().float(), part()
    objective = Objective(model, Method(penalties=(("square", 0.3, square),)))
    weights = torch.arange(1.0, 11.0)
    loss = objective.parts(data.x, data.y, weights, 0.5)
    logits = model(data.x)
    share = weights / weights.sum()
    classified = (share * F.cross_entropy(logits, data.y, reduction="none")).sum()
    penalty = (share * logits.square().sum(-1)).sum()
    torch.testing.assert_close(loss.total, classified + 0.5 * 0.3 * penalty)
    torch.testing.assert_close(loss.parts["square"], penalty.detach())
    assert loss.total.requires_grad
    assert not any(each.requires_grad for each in loss.parts.values())


def test_penalties_see_the_model_as_it_predicts() -> None:
    # Batch statistics mix examples: the penalty is of the logits that a prediction would have.
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = part()
    objective = Objective(model, Method(penalties=(("square", 1.0, square),))).train()
    found = objective.parts_of(data.x, data.y)["square"]  # moves the running statistics on
    with torch.no_grad():
        expected = model.eval()(data.x).square().sum(-1)
        mixed = model.train()(data.x).square().sum(-1)
    torch.testing.assert_close(found.detach(), expected)
    assert not torch.allclose(mixed, expected, rtol=0.05)
