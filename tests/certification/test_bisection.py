"""Complete search for contributions: against dense grids, random places and closed forms."""

from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from closed_form import numbers
from r2et.certification import (
    ContributionVerdicts,
    bisection,
    certify_contributions,
    record,
    search_contributions,
)
from r2et.core.ranking import order
from r2et.explainers import Shapley
from r2et.perturbations import Box
from refusals import refusal

GROUPS = (0, 1, 2, 2, 3)
ACTIVATIONS = (nn.ReLU, nn.Softplus, nn.GELU, nn.Tanh)


def network(seed: int) -> nn.Module:
    """A random network whose reasons change within short moves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        activation = ACTIVATIONS[seed % len(ACTIVATIONS)]
        made = nn.Sequential(nn.Linear(5, 8), activation(), nn.Linear(8, 2 + seed % 2)).double()
        for weight in made.parameters():
            weight.data *= 2.5
    return made


def told(model: nn.Module, explainer: Shapley, x: Tensor, y: Tensor, k: int) -> list[set[int]]:
    """The sets of reasons of some rows."""
    return [set(each) for each in order(explainer(model, x, y).detach())[:, :k].tolist()]


def grid(low: Tensor, high: Tensor, steps: int) -> Tensor:
    """Places of a box (d,): a grid over the columns that move, and as many at random."""
    moving = (high > low).nonzero().flatten()
    share = torch.linspace(0, 1, steps, dtype=torch.float64)
    shares = torch.cartesian_prod(*[share] * len(moving)).view(-1, len(moving))
    draw = torch.Generator().manual_seed(len(shares))
    shares = torch.cat([shares, torch.rand(shares.shape, generator=draw, dtype=torch.float64)])
    places = low.repeat(len(shares), 1)
    places[:, moving] = low[moving] + (high - low)[moving] * shares
    return places


def check(
    found: ContributionVerdicts,
    model: nn.Module,
    explainer: Shapley,
    x: Tensor,
    box: tuple[Tensor, Tensor],
    steps: int,
) -> None:
    """Fail if a place breaks what was proved, or if one that is told to break does not."""
    k, y = found.top.shape[1], model(x).argmax(-1)
    for row, verdict in enumerate(found.verdict):
        low, high = (each[row] for each in box)
        own = set(found.top[row].tolist())
        label = y[row : row + 1]
        if verdict == "broken":
            at = found.x[row : row + 1]
            assert bool(((at >= low) & (at <= high)).all())
            assert told(model, explainer, at, label, k)[0] != own
            assert model(at).argmax(-1) == label
            assert found.decided_by[row] in ("parts", "attack")
            continue
        assert torch.equal(found.x[row], x[row])
        places = grid(low, high, steps)
        kept = places[model(places).argmax(-1) == label]
        there = told(model, explainer, kept, label.expand(len(kept)), k)
        core = {
            int(each) for each, stays in zip(found.top[row], found.core[row], strict=True) if stays
        }
        assert all(core <= each for each in there)
        assert min(len(each & own) for each in there) / k >= found.precision[row]
        if verdict == "certified":
            assert all(each == own for each in there)
            assert found.proved[row] == 1
            assert bool(found.core[row].all())
            assert found.decided_by[row] == ("bound" if found.parts[row] == 1 else "parts")
        else:
            assert found.decided_by[row] in ("budget", "tie")
            assert 0 <= found.proved[row] < 1
            # What is proved of the box is that no more of its places break than of the rest.
            breaks = sum(each != own for each in there) / len(places)
            assert breaks <= 1 - float(found.proved[row]) + 0.1


def asked(seed: int, rows: int = 6) -> tuple[nn.Module, Tensor, Shapley, tuple[Tensor, Tensor]]:
    """A network, rows, an explainer, and boxes of one column or two."""
    model, x = network(seed), numbers(rows, 5, seed=seed)
    explainer = Shapley(
        of=("margin", "logit")[seed % 2],
        form=("signed", "against", "both")[seed % 3],
        groups=GROUPS,
        reference=numbers(1 + seed % 3, 5, seed=50 + seed),
    )
    moving = torch.zeros(5, dtype=torch.float64)
    moving[[0, 4][: 1 + seed % 2]] = 1.0
    width = (0.1, 0.4, 1.0)[seed % 3] * moving
    return model, x, explainer, (x - width, x + 0.7 * width)


def test_no_place_breaks_what_was_proved_and_what_is_broken_breaks() -> None:
    verdicts = []
    for seed in range(12):
        model, x, explainer, box = asked(seed)
        found = search_contributions(
            model, x, k=1 + seed % 2, explainer=explainer, perturbation=box, parts=512
        )
        check(found, model, explainer, x, box, steps=31)
        verdicts += found.verdict
    assert verdicts.count("certified") > 10
    assert verdicts.count("broken") > 10
    assert verdicts.count("undetermined") <= 2


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_a_search_that_ends_early_keeps_what_it_knows(parts: int) -> None:
    for seed in range(6):
        model, x, explainer, box = asked(seed)
        found = search_contributions(
            model, x, k=1, explainer=explainer, perturbation=box, parts=parts
        )
        check(found, model, explainer, x, box, steps=15)
        assert bool((found.parts <= parts).all())


def test_more_parts_decide_more_than_certificates_do() -> None:
    open_before = open_after = 0
    for seed in range(1, 12, 2):
        model, x, explainer, box = asked(seed)
        before = certify_contributions(
            model, x, k=1, explainer=explainer, perturbation=box, boxes=4
        )
        after = search_contributions(model, x, k=1, explainer=explainer, perturbation=box)
        assert not bool((before.kept & ~after.decided).any())
        for row, verdict in enumerate(after.verdict):
            assert not (before.kept[row] and verdict == "broken")
            assert not (before.broken[row] and verdict == "certified")
        open_before += int((~before.kept & ~before.broken).sum())
        open_after += int((~after.decided).sum())
    assert open_before > 2 * open_after


def test_a_decision_is_searched_alone_as_with_others() -> None:
    model, x, explainer, (low, high) = asked(5)
    together = search_contributions(
        model, x, k=2, explainer=explainer, perturbation=(low, high), parts=64
    )
    for row in range(len(x)):
        one = slice(row, row + 1)
        alone = search_contributions(
            model, x[one], k=2, explainer=explainer, perturbation=(low[one], high[one]), parts=64
        )
        for each in fields(alone):
            mine, theirs = getattr(alone, each.name), getattr(together, each.name)[one]
            if isinstance(mine, tuple):
                assert mine == theirs
            else:
                torch.testing.assert_close(mine, theirs)


def test_nothing_is_claimed_without_a_budget() -> None:
    model, x, explainer, box = asked(3)
    for limits in ({"seconds": 0.0}, {"parts": 0}):
        found = search_contributions(model, x, k=1, explainer=explainer, perturbation=box, **limits)
        assert set(found.verdict) == {"undetermined"}
        assert set(found.decided_by) == {"budget"}
        assert not found.proved.any()
        assert not found.precision.any()
        assert not found.core.any()
        assert not found.parts.any()
        assert torch.equal(found.x, x)


def test_what_an_attack_found_is_verified() -> None:
    model, x, explainer, box = asked(5)
    whole = search_contributions(model, x, k=2, explainer=explainer, perturbation=box)
    broken = torch.tensor([each == "broken" for each in whole.verdict])
    assert bool(broken.any())
    nowhere, outside = torch.full_like(x, torch.nan), box[1] + 1.0
    found = search_contributions(
        model,
        x,
        k=2,
        explainer=explainer,
        perturbation=box,
        known=[nowhere, outside, x, whole.x],
        parts=0,
    )
    for row, verdict in enumerate(found.verdict):
        assert verdict == ("broken" if broken[row] else "undetermined")
        assert found.decided_by[row] == ("attack" if broken[row] else "budget")
    assert torch.equal(found.x, whole.x)


def test_bounds_that_are_not_held_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, explainer, box = asked(5)
    search = partial(
        search_contributions, model, x, k=2, explainer=explainer, perturbation=box, parts=200
    )
    held = search()
    monkeypatch.setattr(bisection, "HELD", 0)
    again = search()
    assert held.verdict == again.verdict
    assert held.decided_by == again.decided_by
    assert torch.equal(held.parts, again.parts)
    torch.testing.assert_close(held.x, again.x)
    torch.testing.assert_close(held.proved, again.proved)


@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_whole_steps_and_thresholds_are_as_enumerated(threshold: float) -> None:
    verdicts = []
    for seed in range(0, 12, 2):  # of two classes
        model, x, explainer, _ = asked(seed, rows=5)
        unit = torch.tensor([0.3, 0.0, 0.0, 0.0, 0.2], dtype=torch.float64)
        reach = torch.tensor([0.9, 0.0, 0.0, 0.0, 0.5], dtype=torch.float64)
        found = search_contributions(
            model,
            x,
            k=1,
            explainer=explainer,
            perturbation=(x - reach, x + reach),
            unit=unit,
            threshold=threshold,
        )
        logits = model(x).detach()
        y = (logits[:, 1] - logits[:, 0] >= threshold).long()
        steps = torch.cartesian_prod(torch.arange(-3, 4), torch.arange(-2, 3)).double()
        for row, verdict in enumerate(found.verdict):
            places = x[row].repeat(len(steps), 1)
            places[:, [0, 4]] += steps * unit[[0, 4]]
            logits = model(places).detach()
            same = (logits[:, 1] - logits[:, 0] >= threshold).long() == y[row]
            there = told(model, explainer, places[same], y[row].expand(int(same.sum())), 1)
            stable = all(each == {int(found.top[row, 0])} for each in there)
            assert verdict == ("certified" if stable else "broken")
            if not stable:
                moved = (found.x[row] - x[row])[[0, 4]] / unit[[0, 4]]
                torch.testing.assert_close(moved, moved.round())
        verdicts += found.verdict
    assert {"certified", "broken"} <= set(verdicts)


def test_far_from_zero_nothing_wrong_is_proved() -> None:
    # At 1e4 four digits of each move are lost; at 1e8 the model is refused, as rounding decides.
    model, x, explainer, (low, high) = asked(1)
    far = torch.tensor([1e4, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    with torch.no_grad():
        model[0].bias -= model[0].weight @ far
    explainer = replace(explainer, reference=explainer.reference + far)
    box = (low + far, high + far)
    x = (x + far).clamp(*box)
    found = search_contributions(model, x, k=1, explainer=explainer, perturbation=box, parts=256)
    check(found, model, explainer, x, box, steps=21)


# --- closed forms --------------------------------------------------------------------------------


def linear() -> tuple[nn.Module, Tensor, Shapley]:
    """The margin of the second class is 2 a + b + 10, and contributions are 2 a and b."""
    weight = torch.tensor([[0.0, 0.0, 0.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(torch.tensor([0.0, 10.0]))
    x = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    return model, x, Shapley(form="signed", reference=torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.parametrize(("reach", "verdict"), [(0.99, "certified"), (1.01, "broken")])
def test_a_line_breaks_where_its_reasons_cross(reach: float, verdict: str) -> None:
    # The first is told while 2 a > b: at b = 1 + t that is t < 1.
    model, x, explainer = linear()
    box = Box(radius=reach, scale=torch.tensor([0.0, 1.0, 0.0]))
    found = search_contributions(model, x, k=1, explainer=explainer, perturbation=box)
    assert found.verdict == (verdict,)


def test_what_is_level_at_the_end_of_a_box_is_a_tie() -> None:
    model, x, explainer = linear()
    box = Box(radius=1.0, scale=torch.tensor([0.0, 1.0, 0.0]))
    found = search_contributions(model, x, k=1, explainer=explainer, perturbation=box)
    assert found.verdict == ("undetermined",)
    assert found.decided_by == ("tie",)
    assert 0.9 < float(found.proved) < 1
    assert int(found.parts) < 200


def test_reasons_that_are_level_everywhere_are_a_tie() -> None:
    model, x, explainer = linear()
    with torch.no_grad():
        model.weight.zero_()
    box = Box(radius=1.0)
    found = search_contributions(model, x, k=1, explainer=explainer, perturbation=box)
    assert found.decided_by == ("tie",)
    assert float(found.proved) == 0
    assert int(found.parts) < 200


def test_where_another_decision_is_made_reasons_may_change() -> None:
    # Reasons cross at b = 2, but from b = 1.5 on the decision is another: -b - 2 a + 3.5 < 0.
    model, x, explainer = linear()
    with torch.no_grad():
        model.weight[1] = torch.tensor([-2.0, -1.0, 0.0])
        model.bias[1] = 3.5
    against = replace(explainer, form="against")
    box = Box(radius=3.0, scale=torch.tensor([0.0, 1.0, 0.0]))
    found = search_contributions(model, x, k=1, explainer=against, perturbation=box)
    assert found.verdict == ("certified",)
    assert float(found.proved) == 1
    with torch.no_grad():
        model.bias[1] = 4.5
    found = search_contributions(model, x, k=1, explainer=against, perturbation=box)
    assert found.verdict == ("broken",)
    assert 2 <= float(found.x[0, 1]) <= 2.5


def test_a_column_with_a_unit_takes_whole_steps() -> None:
    # By whole steps of .7 b gets to 1.7, and no further: continuously it breaks.
    model, x, explainer = linear()
    box = Box(radius=1.3, scale=torch.tensor([0.0, 1.0, 0.0]))
    unit = torch.tensor([0.0, 0.7, 0.0], dtype=torch.float64)
    for steps, verdict in ((None, "broken"), (unit, "certified")):
        found = search_contributions(
            model, x, k=1, explainer=explainer, perturbation=box, unit=steps,
            known=[torch.tensor([[1.0, 2.2, 0.0]]).double()],
        )  # fmt: skip
        assert found.verdict == (verdict,)


def test_a_box_that_is_a_point_is_certified() -> None:
    model, x, explainer = linear()
    found = search_contributions(model, x, k=1, explainer=explainer, perturbation=(x, x))
    assert found.verdict == ("certified",)
    assert found.decided_by == ("bound",)


def test_a_model_in_lower_precision_is_searched_as_it_is_used() -> None:
    model, x, explainer, (low, high) = asked(5)
    model, x = model.float(), x.float()
    explainer = replace(explainer, reference=explainer.reference.float())
    low, high = (torch.lerp(x.double(), each, 0.2) for each in (low, high))
    box = (torch.minimum(low, x.double()), torch.maximum(high, x.double()))
    found = search_contributions(
        record(model, x), x, k=2, explainer=explainer, perturbation=box, parts=512
    )
    assert set(found.verdict) >= {"certified", "broken"}
    y = model(x).argmax(-1)
    for row, verdict in enumerate(found.verdict):
        if verdict == "broken":
            at = found.x[row : row + 1].float()
            label = y[row : row + 1]
            own = set(found.top[row].tolist())
            assert told(model, explainer, at, label, 2)[0] != own


def test_what_cannot_be_searched_is_refused() -> None:
    model, x, explainer = linear()
    for wrong in ({"seconds": -1.0}, {"seconds": float("nan")}, {"parts": -1}):
        message = refusal(
            lambda wrong=wrong: search_contributions(
                model, x, k=1, explainer=explainer, perturbation=(x, x), **wrong
            )
        )
        assert "number of seconds >= 0" in message
    message = refusal(
        lambda: search_contributions(
            model, x, k=1, explainer=explainer, perturbation=(x, x), known=[x[0]]
        )
    )
    assert "known inputs must have the shape of x" in message
