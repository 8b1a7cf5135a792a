from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closed_form import Linear, numbers, tiny_mlp
from r2et.explainers import gradient, predicted
from r2et.metrics.faithfulness import comp, dffot, shares_of, suff

MEASURES: dict[str, Any] = {"dffot": dffot, "comp": comp, "suff": suff}


def slow(
    model: nn.Module,
    x: Tensor,
    saliency: Tensor,
    sizes: Sequence[int],
    baseline: Tensor,
) -> dict[str, list[float]]:
    """DFFOT, COMP and SUFF of each example as written in B.1.4, one forward pass at a time."""
    found: dict[str, list[float]] = {"dffot": [], "comp": [], "suff": []}
    n = saliency.shape[1]
    with torch.no_grad():
        for row, scores in zip(x, saliency.tolist(), strict=True):
            ranking = sorted(range(n), key=lambda feature: (-scores[feature], feature))
            whole = model(row[None])[0].softmax(-1)
            c = int(whole.argmax())
            flips, without, only = [], [], []
            for k in sizes:
                removed, kept = row.clone(), baseline.clone()
                for feature in ranking[:k]:
                    removed[feature], kept[feature] = baseline[feature], row[feature]
                after = model(removed[None])[0].softmax(-1)
                if int(after.argmax()) != c:
                    flips.append(k / n)
                without.append(abs(float(whole[c] - after[c])))
                only.append(abs(float(whole[c] - model(kept[None])[0].softmax(-1)[c])))
            found["dffot"].append(min(flips, default=1.0))
            found["comp"].append(sum(without) / len(sizes))
            found["suff"].append(sum(only) / len(sizes))
    return found


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("sizes", [None, (1, 3, 6)])
@pytest.mark.parametrize("rows_at_once", [1, 4, 17, 1024])
@pytest.mark.parametrize("classes", [2, 3])
def test_faithfulness_matches_its_definition(
    name: str, sizes: Any, rows_at_once: int, classes: int
) -> None:
    model, x = tiny_mlp(classes=classes, seed=3), 2 * numbers(12, 6)
    y, baseline = predicted(model, x), numbers(6, seed=7) / 2
    saliency = gradient(model, x, y).detach()
    expected = slow(model, x, saliency, sizes or range(1, 7), baseline)[name]
    found = MEASURES[name](
        model, x, y, saliency, sizes=sizes, baseline=baseline, rows_at_once=rows_at_once
    )
    assert found.tolist() == pytest.approx(expected)
    if name == "dffot":
        assert len(set(expected)) > 1


def test_by_hand() -> None:
    # Logits [0, 2 x1 + x2 - 1 - x3] at (1, 1, 0.5): 1.5. Without x1 it is -0.5: the answer flips at
    # one of three features. Ranked the other way round, x3, x2, x1: 2, 1, -1 flips at the third.
    model = Linear(w=torch.tensor([2.0, 1.0, -1.0]).double(), b=-1.0)
    x, y = torch.tensor([[1.0, 1.0, 0.5]]).double(), torch.tensor([1])
    good, bad = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert dffot(model, x, y, good.double()).item() == pytest.approx(1 / 3)
    assert dffot(model, x, y, bad.double()).item() == pytest.approx(1.0)
    p = torch.sigmoid(torch.tensor([1.5, -0.5, -1.5, -1.0]).double())
    changes = (p[0] - p[1]) + (p[0] - p[2]) + (p[0] - p[3])
    assert comp(model, x, y, good.double()).item() == pytest.approx(changes.item() / 3)
    # Only x1 is left: 1; x1 and x2: 2; all: 1.5.
    q = torch.sigmoid(torch.tensor([1.0, 2.0, 1.5]).double())
    assert suff(model, x, y, good.double()).item() == pytest.approx((q - p[0]).abs().mean().item())


def test_no_removal_flips_a_constant_answer() -> None:
    model, x = Linear(w=torch.zeros(4).double(), b=1.0), numbers(3, 4)
    assert dffot(model, x, torch.ones(3).long(), x).tolist() == [1.0] * 3
    for measure in (comp, suff):
        assert measure(model, x, torch.ones(3).long(), x).tolist() == [0.0] * 3


@pytest.mark.parametrize("name", MEASURES)
def test_pixels_of_several_channels_leave_together(name: str) -> None:
    # Two channels of three pixels: removing pixel i removes numbers i and 3 + i.
    flat = tiny_mlp(seed=3)
    model = nn.Sequential(nn.Flatten(), flat)
    x = 2 * numbers(4, 6)
    y, saliency = predicted(flat, x), numbers(4, 3, seed=5)
    groups = (0, 1, 2, 0, 1, 2)
    found = MEASURES[name](model, x.view(4, 2, 1, 3), y, saliency, groups=groups)
    # Features side by side in the ranking of six numbers, looked at after every second one.
    paired = torch.cat([saliency + 1e-6, saliency], dim=1)
    expected = MEASURES[name](flat, x, y, paired, sizes=(2, 4, 6))
    torch.testing.assert_close(found, expected)


def test_what_is_not_explained_stays() -> None:
    # Numbers of group -1, such as the second picture of a pair, are no feature: they stay both
    # where the top is removed and where only the top is left.
    model, x = tiny_mlp(seed=3), 2 * numbers(4, 6)
    y, saliency = predicted(model, x), numbers(4, 3, seed=5)
    groups = (0, -1, 1, 2, -1, -1)
    found = suff(model, x, y, saliency, groups=groups, baseline=9.0)
    lost = comp(model, x, y, saliency, groups=groups, baseline=9.0)
    with torch.no_grad():
        for row in range(4):
            c, ranking = y[row], saliency[row].argsort(descending=True).tolist()
            whole = model(x[row : row + 1]).softmax(-1)[0, c]
            kept, gone = [], []
            for k in (1, 2, 3):
                for top, changes in ((True, kept), (False, gone)):
                    thinned = x[row].clone()
                    for number, feature in enumerate(groups):
                        if feature >= 0 and (feature in ranking[:k]) != top:
                            thinned[number] = 9.0
                    changes.append((whole - model(thinned[None]).softmax(-1)[0, c]).abs())
            assert found[row].item() == pytest.approx(float(sum(kept)) / 3)
            assert lost[row].item() == pytest.approx(float(sum(gone)) / 3)


def test_shares_are_whole_features() -> None:
    assert shares_of(784) == (8, 39, 78, 157, 392)
    assert shares_of(28) == (1, 3, 6, 14)
    assert shares_of(10, (1.0, 0.25)) == (2, 10)
    with pytest.raises(ValueError, match="larger than 0"):
        shares_of(10, (0.0,))


@pytest.mark.parametrize("name", MEASURES)
def test_nothing_of_the_caller_is_touched(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x, saliency = numbers(3, 6).requires_grad_(), numbers(3, 6, seed=1)
    kept = x.detach().clone()
    found = MEASURES[name](model, x, predicted(model, x), saliency)
    assert not found.requires_grad
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(x, kept)
    assert x.grad is None


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"saliency": numbers(3, 4)}, "give groups"),
        ({"saliency": numbers(2, 6)}, "shape"),
        ({"y": torch.zeros(2).long()}, "one class number"),
        ({"sizes": (0, 1)}, "sizes must be"),
        ({"sizes": (7,)}, "sizes must be"),
        ({"sizes": ()}, "sizes must be"),
        ({"groups": (0, 1)}, "groups must name"),
        ({"groups": (0, 1, 2, 3, 4, 6)}, "groups must name"),
        ({"baseline": torch.zeros(3)}, "the baseline must be"),
        ({"rows_at_once": 0}, "rows_at_once"),
    ],
)
def test_bad_input_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    good: dict[str, Any] = {"model": model, "x": x, "y": predicted(model, x), "saliency": x}
    MEASURES[name](**good)
    with pytest.raises(ValueError, match=message):
        MEASURES[name](**{**good, **changes})
