import copy
import math
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn
from torch.autograd import gradcheck

from closed_form import Largest, conv_net, mixing_mlp, numbers, tiny_mlp
from r2et.core.ranking import facing_count, top_k_mask
from r2et.core.rng import stream
from r2et.explainers import (
    Gradient,
    IntegratedGradients,
    SmoothGrad,
    gradient,
    input_gradient,
    predicted,
)
from r2et.methods import METHODS, BatchContext, Method, mean_margin, r2et, unit_length
from r2et.methods.margins import Gap, Pairs
from r2et.models import mlp
from r2et.models.smoothing import SmoothPool2d
from r2et.perturbations import Box, L2Ball
from r2et.training.objective import Objective
from refusals import refusal

ANY_NETWORK = [name for name, entry in METHODS.items() if entry.model == "mlp"]
every_gap = pytest.mark.parametrize("gap", get_args(Gap))
every_pairs = pytest.mark.parametrize("pairs", get_args(Pairs))


def slow_mean_gap(
    saliency: list[float],
    reference: list[float],
    k: int,
    pairs: Pairs,
    gap: Gap,
    facing: int | None = None,
) -> float:
    """The mean over the pairs of one example, gap by gap, ranks counted from 1."""
    n = len(saliency)
    count = facing or min(k, n - k)
    ranking = sorted(range(n), key=lambda feature: (-reference[feature], feature))
    length = math.sqrt(sum(value**2 for value in saliency)) or 1.0
    ranked = [saliency[feature] for feature in ranking]
    if gap == "normalised":
        ranked = [value / length for value in ranked]

    def h(i: int, j: int) -> float:
        return ranked[i - 1] - ranked[j - 1]

    gaps = {
        "all": [h(i, j) for i in range(1, k + 1) for j in range(k + 1, n + 1)],
        "facing": [h(k - i + 1, k + i) for i in range(1, count + 1)],
        "anchor": [h(i, k) for i in range(k - count + 1, k)]
        + [h(k, j) for j in range(k + 1, k + count + 1)],
        "printed-anchor": [h(i, k) for i in range(k - count + 1, k)]
        + [h(k, j) for j in range(k + 1, min(k + count + 1, n) + 1)],
    }[pairs]
    if gap == "exponential":
        gaps = [math.exp(value) for value in gaps]
    return sum(gaps) / len(gaps)


# --- gaps ---


@every_gap
@every_pairs
@settings(max_examples=60, deadline=None)
@given(data=some.data())
def test_mean_gaps_match_their_definitions(pairs: Pairs, gap: Gap, data: some.DataObject) -> None:
    n = data.draw(some.integers(2, 8))
    k = data.draw(some.integers(1, n - 1))
    facing = data.draw(some.none() | some.integers(1, min(k, n - k)))
    scores = some.integers(-2, 2).map(float) | some.floats(-3, 3, width=32)
    rows = data.draw(arrays(np.float64, (2, 3, n), elements=scores))
    saliency, reference = torch.from_numpy(rows).unbind()
    found = mean_margin(saliency, reference, k, pairs=pairs, gap=gap, facing=facing)
    expected = [
        slow_mean_gap(row, by, k, pairs, gap, facing)
        for row, by in zip(saliency.tolist(), reference.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("facing", [1, 2, 4])
def test_anchored_and_facing_gaps_have_one_sum(facing: int) -> None:
    # The k' - 1 gaps above the anchor take it away and the k' below give it back, once more than
    # taken: what is left is the sum of places k-k'+1..k minus that of k+1..k+k', as for facing.
    saliency, reference, k = numbers(6, 9), numbers(6, 9, seed=1), 4
    mean = partial(mean_margin, saliency, reference, k, facing=facing)
    torch.testing.assert_close(
        (2 * facing - 1) * mean(pairs="anchor"), facing * mean(pairs="facing")
    )


@every_gap
@every_pairs
@pytest.mark.parametrize("facing", [None, 1, 2])
def test_gaps_can_be_trained(pairs: Pairs, gap: Gap, facing: int | None) -> None:
    # Finite differences by the saliency; the reference is a constant and gets no gradient.
    saliency, reference = numbers(2, 6).requires_grad_(), numbers(2, 6, seed=1).requires_grad_()
    wide = partial(mean_margin, k=3, pairs=pairs, gap=gap, facing=facing)
    assert gradcheck(lambda saliency: wide(saliency, reference), (saliency,))
    (by_ranking,) = torch.autograd.grad(
        wide(saliency, reference).sum(), reference, allow_unused=True
    )
    assert by_ranking is None


@every_pairs
def test_gaps_do_not_overflow_where_their_differences_are_small(pairs: Pairs) -> None:
    # exp(I_i - I_j) of equal scores is 1, however large the scores; e^100 is none in float32.
    saliency = torch.full((2, 6), 100.0, requires_grad=True)
    found = mean_margin(saliency, numbers(2, 6).float(), 2, pairs=pairs, gap="exponential")
    torch.testing.assert_close(found, torch.ones(2), rtol=1e-4, atol=0)
    (slopes,) = torch.autograd.grad(found.sum(), saliency)
    assert slopes.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e30])
def test_unit_length_does_not_hang_on_scale(scale: float) -> None:
    # In single precision the squares of such numbers underflow or overflow.
    saliency = numbers(3, 6).float()
    expected = (saliency.double() / saliency.double().norm(dim=-1, keepdim=True)).float()
    torch.testing.assert_close(unit_length(saliency * scale), expected)


def test_an_explanation_of_zeros_has_no_direction() -> None:
    saliency = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    found = unit_length(saliency)
    assert torch.equal(found, torch.zeros_like(found))
    (slopes,) = torch.autograd.grad(found.sum(), saliency)
    assert slopes.isfinite().all()


@every_gap
@every_pairs
@pytest.mark.parametrize("k", [0, -1, 5, 9])
def test_a_k_that_splits_nothing_is_refused(pairs: Pairs, gap: Gap, k: int) -> None:
    with pytest.raises(ValueError, match="k must lie"):
        mean_margin(numbers(2, 5), numbers(2, 5), k, pairs=pairs, gap=gap)


@every_gap
@pytest.mark.parametrize("pairs", ["facing", "anchor"])
@pytest.mark.parametrize("facing", [0, 3])
def test_more_facing_pairs_than_features_are_refused(pairs: Pairs, gap: Gap, facing: int) -> None:
    with pytest.raises(ValueError, match="k' must lie"):
        mean_margin(numbers(2, 5), numbers(2, 5), 2, pairs=pairs, gap=gap, facing=facing)


def test_unknown_gaps_and_pairs_are_refused() -> None:
    for unknown in ({"gap": "squared"}, {"pairs": "some"}):
        with pytest.raises(ValueError, match=next(iter(unknown.values()))):
            mean_margin(numbers(2, 5), numbers(2, 5), 2, **unknown)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=next(iter(unknown.values()))):
            r2et(k=2, **unknown)  # type: ignore[arg-type]


@every_gap
@every_pairs
def test_pairs_are_never_formed(pairs: Pairs, gap: Gap) -> None:
    # 4 x 50 x 399,950 pairs would be 80 million numbers; the explanations are 1.6 million.
    saliency = numbers(4, 400_000).float().requires_grad_()
    with Largest() as largest:
        found = mean_margin(saliency, saliency.detach(), 50, pairs=pairs, gap=gap)
        found.sum().backward()
    assert largest.numel <= 2 * saliency.numel()


# --- the objective ---


def classes(count: int) -> Tensor:
    return torch.arange(count) % 2


def slow_parts(
    model: nn.Module, x: Tensor, y: Tensor, k: int, pairs: Pairs, gap: Gap, kappa: float
) -> dict[str, float]:
    """Cross-entropy, negative_margin and curvature example by example, from their definitions."""

    def slope_at(one: Tensor, c: int) -> Tensor:
        at = one.detach().requires_grad_()
        return torch.autograd.grad(model(at[None]).softmax(-1)[0, c], at)[0]

    parts: dict[str, list[float]] = {"classification": [], "margin": [], "curvature": []}
    for one, label in zip(x, y.tolist(), strict=True):
        probabilities = model(one[None]).softmax(-1)[0].tolist()
        c = probabilities.index(max(probabilities))
        here = slope_at(one, c)
        saliency = here.abs().tolist()
        step = here.sign() / here.sign().norm()
        bend = (slope_at(one + kappa * step, c) - here).norm().item() / kappa
        parts["classification"].append(-math.log(probabilities[label]))
        parts["margin"].append(-slow_mean_gap(saliency, saliency, k, pairs, gap))
        parts["curvature"].append(bend)
    return {name: sum(values) / len(values) for name, values in parts.items()}


@every_gap
@every_pairs
@pytest.mark.parametrize("count", [2, 3])
def test_the_objective_is_the_papers_sum(pairs: Pairs, gap: Gap, count: int) -> None:
    # L = L_cls - lambda1 mean h(x, i, j) + lambda2 ||H(x)||, y wrong for some of the examples.
    model, x, y = tiny_mlp(classes=count), numbers(5, 6, seed=1), classes(5)
    assert not torch.equal(predicted(model, x), y)
    method = r2et(k=2, thickness=0.3, curvature=0.7, pairs=pairs, gap=gap, kappa=0.4)
    loss, parts = Objective(model, method).parts(x, y)
    expected = slow_parts(model, x, y, 2, pairs, gap, 0.4)
    assert parts.keys() == expected.keys()
    for name, part in parts.items():
        assert part.item() == pytest.approx(expected[name])
        assert not part.requires_grad
    total = expected["classification"] + 0.3 * expected["margin"] + 0.7 * expected["curvature"]
    assert loss.item() == pytest.approx(total)


@every_gap
@every_pairs
def test_the_sum_over_pairs_is_the_papers_eq_6(pairs: Pairs, gap: Gap) -> None:
    model, x, y = tiny_mlp(), numbers(5, 6, seed=1), classes(5)
    mean, total = (
        Objective(model, r2et(k=2, thickness=0.3, pairs=pairs, gap=gap, over=over)).parts(x, y)
        for over in ("mean", "sum")
    )
    # k = 2 of n = 6: 8 pairs in all, 2 that face each other, (1, 2), (2, 3), (2, 4) and (2, 5).
    count = {"all": 8, "facing": 2, "anchor": 3, "printed-anchor": 4}[pairs]
    assert total.parts["margin"].item() == pytest.approx(count * mean.parts["margin"].item())
    assert "over one of" in refusal(lambda: r2et(k=2, over="product"))  # type: ignore[arg-type]


@every_gap
@every_pairs
def test_the_weight_gradient_is_that_of_finite_differences(pairs: Pairs, gap: Gap) -> None:
    # Ranking, step direction and predicted class are constant near these weights, as they are in
    # the gradient: a gradient that flowed through the sorting would differ.
    model, x, y = tiny_mlp(d=5, hidden=3, classes=3), numbers(3, 5, seed=1), classes(3)
    objective = Objective(model, r2et(k=2, thickness=0.3, curvature=0.7, pairs=pairs, gap=gap))
    assert gradcheck(lambda *weights: objective(x, y), tuple(model.parameters()))


def test_pictures_are_trained_too() -> None:
    model, x, y = conv_net(pool=nn.AvgPool2d), numbers(2, 1, 6, 6), classes(2)
    objective = Objective(model, r2et(k=5, thickness=0.3, curvature=0.7))
    weights = (model[0].bias, model[-1].weight)
    assert gradcheck(lambda *weights: objective(x, y), weights)


def test_another_explanation_can_be_widened() -> None:
    model, x, y = tiny_mlp(), numbers(4, 6, seed=1), classes(4)
    explain = IntegratedGradients(points=5)
    method = r2et(k=2, explain=explain, curvature=0.5)
    _, parts = Objective(model, method).parts(x, y)
    saliency = explain(model, x, predicted(model, x))
    torch.testing.assert_close(parts["margin"], -mean_margin(saliency, saliency, 2).mean().detach())
    _, plain = Objective(model, r2et(k=2, curvature=0.5)).parts(x, y)
    assert parts["curvature"] == plain["curvature"]
    assert parts["margin"] != plain["margin"]


class Wrapped(nn.Module):
    """A module of one's own, whose forward may do anything: nothing of it can be shared."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores


def test_a_shared_forward_pass_changes_nothing() -> None:
    model, x, y = tiny_mlp(classes=3), numbers(4, 6, seed=1), classes(4)
    method = r2et(k=2, thickness=0.3, curvature=0.7)
    passes: list[int] = []
    model.register_forward_hook(lambda *call: passes.append(1))
    found = []
    for network, expected in [(model, 2), (Wrapped(model), 3)]:
        passes.clear()
        loss = Objective(network, method)(x, y)
        # One for the loss, one for the far end of the step, and one for the slope unless shared.
        assert len(passes) == expected
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for shared, apart in zip(*found, strict=True):
        torch.testing.assert_close(shared, apart)


def test_the_objective_can_be_read_without_gradients() -> None:
    model, x, y = tiny_mlp(), numbers(4, 6, seed=1), classes(4)
    objective = Objective(model, r2et(k=2, curvature=0.7))
    loss, parts = objective.parts(x, y)
    with torch.no_grad():
        same_loss, same_parts = objective.parts(x, y)
    assert not same_loss.requires_grad
    torch.testing.assert_close(same_loss, loss.detach())
    torch.testing.assert_close(same_parts, parts)
    assert parts["margin"] < 0 < parts["curvature"]


def test_both_ways_to_use_the_loss() -> None:
    x, y, method = numbers(4, 6), classes(4), r2et(k=2, curvature=0.7)
    first, second = tiny_mlp(), tiny_mlp()
    loss, _ = Objective(first, method).parts(x, y)
    loss.backward()
    Objective(second, method)(x, y).backward()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.abs().sum() > 0
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("method", ANY_NETWORK)
def test_weights_count_examples(method: str) -> None:
    # An example of weight 3 counts as three of its kind; one of weight 0 not at all. What is drawn
    # depends on the row alone, so that three of a kind meet the same.
    model, x, y = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6), classes(4)
    objective = Objective(model, METHODS[method].build(k=2), draw=torch.cos)
    often = torch.tensor([1, 3, 0, 2])
    weighted = objective.parts(x, y, often.double())
    repeated = objective.parts(x.repeat_interleave(often, 0), y.repeat_interleave(often))
    torch.testing.assert_close(weighted.total, repeated.total)
    torch.testing.assert_close(weighted.parts, repeated.parts)
    for found, expected in zip(
        torch.autograd.grad(weighted.total, list(objective.parameters())),
        torch.autograd.grad(repeated.total, list(objective.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


# --- the ranking to keep ---


def test_a_reference_sets_the_ranking() -> None:
    model, reference, x, y = tiny_mlp(), tiny_mlp(seed=7), numbers(5, 6), classes(5)
    saliency = gradient(model, x, predicted(model, x)).detach()
    kept = gradient(reference, x, predicted(model, x)).detach()
    assert not torch.equal(top_k_mask(saliency, 2), top_k_mask(kept, 2))
    _, parts = Objective(model, r2et(k=2, reference=reference)).parts(x, y)
    slow = [
        -slow_mean_gap(row, by, 2, "all", "plain")
        for row, by in zip(saliency.tolist(), kept.tolist(), strict=True)
    ]
    assert parts["margin"].item() == pytest.approx(sum(slow) / 5)
    _, own = Objective(model, r2et(k=2)).parts(x, y)
    assert own["margin"] < parts["margin"]  # no other ranking leads by more than one's own


def test_a_reference_is_neither_trained_nor_touched() -> None:
    reference = mixing_mlp(seed=7)
    before = copy.deepcopy(reference.state_dict())
    model, x, y = tiny_mlp(), numbers(5, 6), classes(5)
    objective = Objective(model, r2et(k=2, reference=reference))
    assert {id(weight) for weight in objective.parameters()} == {
        id(weight) for weight in model.parameters()
    }
    objective(x, y).backward()
    assert all(weight.grad is None and weight.requires_grad for weight in reference.parameters())
    assert all(part.training for part in reference.modules())
    assert all(torch.equal(value, before[name]) for name, value in reference.state_dict().items())
    # It is a snapshot: training the reference on would move the ranking to keep.
    first = objective.parts(x, y).parts["margin"]
    with torch.no_grad():
        reference[0].weight.mul_(-1).add_(numbers(8, 6, seed=3))
    assert objective.parts(x, y).parts["margin"] == first


def test_a_reference_follows_the_number_format() -> None:
    reference, model = tiny_mlp(seed=7), tiny_mlp().float()
    loss = Objective(model, r2et(k=2, reference=reference))(numbers(5, 6).float(), classes(5))
    assert loss.dtype == torch.float32
    assert next(reference.parameters()).dtype == torch.float64


# --- scale ---


def times(model: nn.Sequential, factor: float) -> nn.Sequential:
    with torch.no_grad():
        for values in model[-1].parameters():
            values *= factor
    return model


@every_pairs
@pytest.mark.parametrize("factor", [0.01, 10.0, 1000.0])
def test_only_the_normalised_gap_ignores_the_scale_of_the_logits(
    pairs: Pairs, factor: float
) -> None:
    # grad p = p (1 - p) grad m with two classes: the factor changes its length, not its direction.
    x, y = numbers(6, 6, seed=1).float(), classes(6)

    def negative_margin(gap: Gap, factor: float) -> Tensor:
        objective = Objective(times(tiny_mlp(), factor).float(), r2et(k=2, pairs=pairs, gap=gap))
        return objective.parts(x, y).parts["margin"]

    same = negative_margin("normalised", 1.0)
    torch.testing.assert_close(negative_margin("normalised", factor), same, rtol=1e-4, atol=0)
    assert (negative_margin("plain", factor) / negative_margin("plain", 1.0) - 1).abs() > 0.1


# --- training ---


def test_vanilla_is_plain_training_to_the_last_bit() -> None:
    x, y = numbers(64, 6).float(), classes(64)
    ours, plain = (mixing_mlp().float() for _ in range(2))
    objective = Objective(ours, METHODS["vanilla"].build(k=2))
    for network in (ours, plain):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        for step in range(3):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(step)
                optimizer.zero_grad()
                if network is ours:
                    objective(x, y).backward()
                else:
                    F.cross_entropy(network(x), y).backward()
                optimizer.step()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])


@pytest.mark.parametrize("shape", ["rows", "pictures"])
def test_penalties_see_frozen_statistics_and_the_loss_does_not(shape: str) -> None:
    # The loss is that of a forward pass in training mode, which moves the running statistics once;
    # the penalties are those of prediction mode with the statistics as moved.
    if shape == "rows":
        model: nn.Module = mixing_mlp(classes=3)
        x = numbers(40, 6, seed=1)
        model[3].p = 0.0  # dropout would make the two losses different draws
    else:
        model = conv_net()
        model.insert(1, nn.BatchNorm2d(3).double())
        x = numbers(8, 1, 6, 6, seed=1)
    y, twin = classes(len(x)), copy.deepcopy(model)
    loss, parts = Objective(model, r2et(k=2, thickness=0.3, curvature=0.7)).parts(x, y)
    logits = twin(x)
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name])
    assert all(part.training for part in model.modules())
    twin.eval()
    labels = twin(x).argmax(-1)
    if shape == "rows":  # which class is explained is decided in prediction mode, too
        assert not torch.equal(labels, logits.argmax(-1))
    saliency = gradient(twin, x, labels)
    negative_margin = -mean_margin(saliency, saliency.detach(), 2).mean()
    here = input_gradient(twin, x, labels)
    v = here.sign().flatten(1)
    v = (v / v.norm(dim=-1, keepdim=True)).view_as(x).detach()
    bend = (input_gradient(twin, x + 0.5 * v, labels) - here).flatten(1).norm(dim=-1).mean() / 0.5
    expected = F.cross_entropy(logits, y) + 0.3 * negative_margin + 0.7 * bend
    torch.testing.assert_close(parts["margin"], negative_margin.detach())
    torch.testing.assert_close(loss, expected)
    for found, slow in zip(
        torch.autograd.grad(loss, list(model.parameters())),
        torch.autograd.grad(expected, list(twin.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(found, slow)


@pytest.mark.parametrize("method", ANY_NETWORK)
def test_a_loop_of_ones_own_lowers_the_loss(method: str) -> None:
    model, x, y = tiny_mlp(activation=nn.LeakyReLU), numbers(32, 6), classes(32)
    objective = Objective(model, METHODS[method].build(k=2), draw=torch.cos)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = objective(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[3] < losses[0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: x[:, :, None], "two or more classes"),
        (lambda x: x * torch.nan, "NaN or infinite"),
    ],
)
def test_answers_that_are_no_logits_are_refused(answer: Any, words: str) -> None:
    model = tiny_mlp(activation=nn.LeakyReLU)
    model.register_forward_hook(lambda module, inputs, output: answer(output))
    for method in METHODS.values():
        with pytest.raises(ValueError, match=words):
            Objective(model, method.build(k=2))(numbers(4, 6), classes(4))


# --- methods as data ---


def names(method: Method) -> list[str]:
    return [name for name, _, _ in method.penalties]


def test_methods_are_what_their_names_say() -> None:
    penalties = {name: names(entry.build(k=2)) for name, entry in METHODS.items()}
    assert penalties["vanilla"] == []
    assert penalties["r2et"] == penalties["r2et-mm"] == ["margin", "curvature"]
    assert penalties["r2et-noh"] == penalties["r2et-mm-noh"] == ["margin"]


@pytest.mark.parametrize("method", ["r2et", "r2et-noh", "r2et-mm", "r2et-mm-noh"])
def test_mm_stands_for_facing_pairs(method: str) -> None:
    model, x, y = tiny_mlp(), numbers(5, 6), classes(5)
    _, parts = Objective(model, METHODS[method].build(k=2)).parts(x, y)
    saliency = gradient(model, x, predicted(model, x)).tolist()
    pairs: Pairs = "facing" if "-mm" in method else "all"
    slow = [-slow_mean_gap(row, row, 2, pairs, "plain") for row in saliency]
    assert parts["margin"].item() == pytest.approx(sum(slow) / 5)


def test_a_penalty_of_no_weight_is_left_out() -> None:
    assert names(r2et(k=2, thickness=0.0, curvature=0.0)) == []
    assert names(r2et(k=2, thickness=0.0, curvature=0.5)) == ["curvature"]


def test_slots_are_used() -> None:
    # `prepare` gives the model that is trained, `perturb` the inputs of the loss and its penalties.
    model, x, y = tiny_mlp(), numbers(4, 6), classes(4)
    other = tiny_mlp(seed=5)
    seen: list[Tensor] = []

    def shifted(look: BatchContext) -> Tensor:
        assert look.model is other
        return look.x + 1

    method = Method(
        prepare=lambda network: other,
        perturb=shifted,
        penalties=(("mean", 2.0, lambda look: seen.append(look.x) or look.logits.sum(-1)),),
    )
    objective = Objective(model, method)
    assert objective.model is other
    loss, parts = objective.parts(x, y)
    torch.testing.assert_close(seen[0].detach(), x + 1)
    expected = F.cross_entropy(other(x + 1), y) + 2 * other(x + 1).sum(-1).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(parts["mean"], other(x + 1).sum(-1).mean())


def test_the_inputs_of_the_caller_are_left_alone() -> None:
    model, x, y = tiny_mlp(), numbers(4, 6), classes(4)
    Objective(model, r2et(k=2, curvature=0.7))(x, y).backward()
    assert not x.requires_grad
    assert x.grad is None
    assert torch.equal(x, numbers(4, 6))


def test_all_pairs_and_facing_pairs_agree_when_half_is_shown() -> None:
    # n = 2k: the same objective, to rounding.
    model, x, y = tiny_mlp(d=6), numbers(5, 6), classes(5)
    assert facing_count(3, 6) == 3
    found = [Objective(model, r2et(k=3, pairs=pairs))(x, y) for pairs in get_args(Pairs)[:2]]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "settings",
    [
        {"thickness": -0.1},
        {"curvature": -0.1},
        {"kappa": 0.0},
        {"pairs": "sideways"},
        {"gap": "wide"},
    ],
)
def test_settings_without_a_meaning_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"got .*"):
        r2et(k=2, **settings)


# --- cheaper forms ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"gap": "normalised"},
        {"pairs": "facing", "gap": "exponential"},
        {"explain": Gradient(form="normalised", groups=(0, 0, 1, 2, 3, -1))},
    ],
    ids=["plain", "normalised", "facing", "grouped"],
)
def test_a_gap_along_its_direction_has_the_value_and_the_slope_of_the_gap(
    choices: dict[str, Any],
) -> None:
    model = mlp(6, 2, hidden=(8,), activation="tanh", generator=stream(0, "along")).double()
    x = torch.randn(5, 6, dtype=torch.float64, generator=stream(1, "along"))
    y = torch.arange(5) % 2
    found = []
    for by in ("slope", "direction"):
        loss = Objective(model, r2et(k=2, thickness=1.0, by=by, stride=1e-5, **choices)).parts(x, y)
        slopes = torch.autograd.grad(loss.total, list(model.parameters()))
        found.append((loss.parts["margin"], torch.cat([each.flatten() for each in slopes])))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-5)


def test_a_share_of_the_batch_stands_for_its_curvature() -> None:
    model = mlp(6, 2, hidden=(8,), activation="tanh", generator=stream(0, "share")).double()
    x = torch.randn(8, 6, dtype=torch.float64, generator=stream(1, "share"))
    y = torch.zeros(8, dtype=torch.long)
    whole = Objective(model, METHODS["est-h"].build(k=2)).parts_of(x, y)["curvature"]
    part = Objective(model, METHODS["est-h"].build(k=2, share=0.25)).parts_of(x, y)["curvature"]
    torch.testing.assert_close(part[:2], 4 * whole[:2])
    assert not part[2:].any()


def test_cheaper_forms_that_are_none_are_refused() -> None:
    assert "by one of ('slope', 'direction')" in refusal(lambda: r2et(k=2, by="jvp"))
    assert "share of a batch" in refusal(lambda: r2et(k=2, curvature=0.1, share=0.0))
    smooth = SmoothGrad(samples=2)
    assert "made of the gradient" in refusal(lambda: r2et(k=2, by="direction", explain=smooth))


def test_penalties_count_for_the_share_they_have_risen_to() -> None:
    model = mlp(6, 2, hidden=(8,), generator=stream(0, "ramp")).double()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 2
    objective = Objective(model, r2et(k=2, thickness=0.7))
    parts = objective.parts(x, y).parts
    for share in (0.0, 0.25, 1.0):
        total = objective(x, y, None, share).detach()
        expected = parts["classification"] + share * 0.7 * parts["margin"]
        torch.testing.assert_close(total, expected)


# --- at a neighbour ---------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "shape"), [("l2", L2Ball), ("linf", Box)])
def test_the_gap_at_a_neighbour_is_a_worse_one_of_the_ranking_at_x(norm: str, shape: Any) -> None:
    model = mlp(6, 2, hidden=(16,), activation="tanh", generator=stream(0, "beside")).double()
    x = torch.randn(40, 6, dtype=torch.float64, generator=stream(1, "beside"))
    y = predicted(model, x)
    places: list[Tensor] = []

    def explain(model: nn.Module, at: Tensor, y: Tensor) -> Tensor:
        places.append(at.detach())
        return gradient(model, at, y)

    noise = torch.randn(40, 6, dtype=torch.float64, generator=stream(2, "beside"))
    method = r2et(k=2, thickness=1.0, radius=0.3, norm=norm, steps=3, explain=explain)
    objective = Objective(model, method, draw=lambda x: noise)
    beside = objective.parts_of(x, y)["margin"]
    at_x = Objective(model, r2et(k=2, thickness=1.0)).parts_of(x, y)["margin"]
    assert beside.mean() > at_x.mean()
    last, threat = places[-1], shape(radius=0.3)
    assert (threat.cost(last, x) <= 0.3 + 1e-12).all()
    assert torch.equal(predicted(model, last), y)
    expected = -mean_margin(gradient(model, last, y), gradient(model, x, y), 2)
    torch.testing.assert_close(beside, expected)
    assert any(slopes.any() for slopes in torch.autograd.grad(beside.sum(), model.parameters()))


def test_a_neighbour_that_is_none_is_refused() -> None:
    assert "norm of ('l2', 'linf')" in refusal(lambda: r2et(k=2, radius=0.1, norm="l1"))
    assert "by = 'slope'" in refusal(lambda: r2et(k=2, radius=0.1, by="direction"))


# --- room -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "facing"), [(1, None), (3, None), (3, 2), (5, None)])
@pytest.mark.parametrize("room", [0.05, 0.4, 10.0])
def test_clipped_gaps_match_their_definition(k: int, facing: int | None, room: float) -> None:
    saliency, reference = numbers(6, 7, seed=1).abs(), numbers(6, 7, seed=2).abs()
    found = mean_margin(
        saliency, reference, k, pairs="facing", gap="normalised", facing=facing, room=room
    )
    for value, row, ranks in zip(found, saliency.tolist(), reference.tolist(), strict=True):
        order = sorted(range(7), key=lambda feature: -ranks[feature])
        length = math.sqrt(sum(each**2 for each in row))
        gaps = [
            (row[order[k - i]] - row[order[k + i - 1]]) / length
            for i in range(1, (facing or min(k, 7 - k)) + 1)
        ]
        expected = sum(min(gap, room / math.sqrt(7)) for gap in gaps) / len(gaps)
        assert value.item() == pytest.approx(expected, abs=1e-12)


def test_a_gap_with_room_enough_asks_for_nothing_more() -> None:
    saliency = torch.tensor([[3.0, 2.9, 1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    choices: dict[str, Any] = {"pairs": "facing", "gap": "normalised"}
    (slope,) = torch.autograd.grad(
        mean_margin(saliency, saliency, 2, room=0.1, **choices), saliency
    )
    assert not slope.any()
    (slope,) = torch.autograd.grad(mean_margin(saliency, saliency, 2, **choices), saliency)
    assert slope.all()


@pytest.mark.parametrize("radius", [0.0, 0.3])
def test_gaps_are_clipped_after_the_attack_and_not_before(radius: float) -> None:
    model = mlp(6, 2, hidden=(16,), activation="tanh", generator=stream(0, "beside")).double()
    x = torch.randn(40, 6, dtype=torch.float64, generator=stream(1, "beside"))
    y = predicted(model, x)
    noise = torch.randn(40, 6, dtype=torch.float64, generator=stream(2, "beside"))
    places: dict[float, list[Tensor]] = {}

    def penalty(room: float) -> Tensor:
        def explain(model: nn.Module, at: Tensor, y: Tensor) -> Tensor:
            places.setdefault(room, []).append(at.detach())
            return gradient(model, at, y)

        method = METHODS["steadfast-any"].build(
            k=2, radius=radius, steps=3, thickness=1.0, room=room, explain=explain
        )
        return Objective(model, method, draw=lambda x: noise).parts_of(x, y)["margin"]

    free, clipped = penalty(0.0), penalty(0.2)
    assert all(map(torch.equal, places[0.0], places[0.2]))
    there = gradient(model, places[0.2][-1], y)
    kept = gradient(model, x, y)
    expected = mean_margin(there, kept, 2, pairs="facing", gap="normalised", room=0.2)
    torch.testing.assert_close(clipped, -expected)
    assert (clipped > free).any()


def test_room_that_is_none_is_refused() -> None:
    choices: dict[str, Any] = {"pairs": "facing", "gap": "normalised"}
    assert "room >= 0" in refusal(lambda: r2et(k=2, room=-0.1, **choices))
    assert "'facing' each other" in refusal(lambda: r2et(k=2, room=0.1, gap="normalised"))
    assert "got 'facing', 'plain'" in refusal(lambda: r2et(k=2, room=0.1, pairs="facing"))


# --- smooth pooling ---------------------------------------------------------------------------


def test_pooling_and_units_are_smooth_where_a_method_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    kinds = {
        settings: [type(part) for part in Objective(model, r2et(k=2, **dict(settings))).model]
        for settings in ((), (("pooling", 4.0),), (("pooling", 4.0), ("softplus", 3.0)))
    }
    first, last = nn.Conv2d, nn.Flatten
    assert list(kinds.values()) == [
        [first, nn.ReLU, nn.MaxPool2d, last],
        [first, nn.ReLU, SmoothPool2d, last],
        [first, nn.Softplus, SmoothPool2d, last],
    ]
    assert "must be finite and >= 0" in refusal(lambda: r2et(k=2, pooling=-1.0))
