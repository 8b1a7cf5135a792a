import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from attacking import attacker
from closed_form import Linear, numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.data import load
from r2et.data.features import Feature, exchangeable
from r2et.explainers import Gradient, SmoothGrad, margin, predicted
from r2et.metrics.exchanges import (
    LEAST_AGREEMENT,
    LEAST_SIZE,
    MeanAgreement,
    doubt,
    exchange_agreement,
)
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.statistics import auc
from refusals import refusal
from trained import adult_network

GROUPS = ((1, 2, 3), (4,), (6, 5, 7, 8))
"""Of nine columns: two categories, a 0/1 column by itself, and a number."""


def people(count: int, seed: int = 0) -> Tensor:
    """Rows whose categories have one value each."""
    generator = torch.Generator().manual_seed(seed)
    x = numbers(count, 9, seed=seed)
    for group in GROUPS:
        drawn = torch.randint(len(group) if len(group) > 1 else 2, (count,), generator=generator)
        x[:, list(group)] = 0.0
        if len(group) == 1:
            x[:, group[0]] = drawn.double()
        else:
            x[torch.arange(count), torch.tensor(group)[drawn]] = 1.0
    return x


def slow_exchanges(model: nn.Module, x: Tensor, y: int) -> tuple[list[float], list[float]]:
    """What the slopes of the margin say about each exchange of one row, and what it does."""

    def score(row: Tensor) -> Tensor:
        return margin(model(row[None]), torch.tensor([y]))[0]

    slope = torch.autograd.functional.jacobian(score, x).tolist()
    before = score(x).item()
    said, done = [], []
    for group in GROUPS:
        for new in group:
            changed = x.clone()
            if len(group) == 1:
                changed[new] = 1 - x[new]
                said.append(slope[new] * float(changed[new] - x[new]))
            else:
                (old,) = [column for column in group if x[column] == 1]
                if new == old:
                    continue
                changed[old], changed[new] = 0.0, 1.0
                said.append(slope[new] - slope[old])
            done.append(score(changed).item() - before)
    return said, done


@pytest.mark.parametrize("classes", [2, 3])
def test_agreement_is_that_of_its_definition(classes: int) -> None:
    model = tiny_mlp(d=9, hidden=8, classes=classes)
    with torch.no_grad():
        model[0].weight *= 4  # type: ignore[operator]  # so that slopes and exchanges differ
    x = people(12)
    y = predicted(model, x)
    found = exchange_agreement(model, x, y, GROUPS)
    for row, label, order, size in zip(x, y.tolist(), found.order, found.size, strict=True):
        said, done = slow_exchanges(model, row, label)
        assert len(said) == 2 + 1 + 3
        assert float(order) == pytest.approx(stats.spearmanr(said, done).statistic, abs=1e-12)
        both = sorted([math.hypot(*said), math.hypot(*done)])
        assert float(size) == pytest.approx(both[0] / both[1])
    assert 0.2 < found.order.mean() < 0.95
    assert found.size.min() < 0.9


def test_a_linear_model_agrees_exactly() -> None:
    # s(x) = w'x: an exchange adds w_new - w_old, which is what the slopes say. With
    # equal weights there are ties, whose order would otherwise be one of rounding.
    weights = numbers(9)
    weights[[2, 5, 8]] = 0.3
    for w in (numbers(9), weights, 1e-9 * weights, 1e9 * weights):
        x = people(20)
        found = exchange_agreement(Linear(w=w), x, torch.ones(20).long(), GROUPS)
        torch.testing.assert_close(found.order, torch.ones(20).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(found.size, torch.ones(20).double())


class Gauged(nn.Module):
    """A network and c (sum of a group - 1), which is zero on every real row."""

    def __init__(self, model: nn.Module, group: tuple[int, ...], c: float) -> None:
        super().__init__()
        self.model, self.group, self.c = model, list(group), c

    def forward(self, x: Tensor) -> Tensor:
        extra = self.c * (x[:, self.group].sum(-1) - 1)
        logits: Tensor = self.model(x) + torch.stack([torch.zeros_like(extra), extra], dim=-1)
        return logits


def test_a_gauge_changes_nothing() -> None:
    model, x = tiny_mlp(d=9), people(20)
    y = predicted(model, x)
    plain = exchange_agreement(model, x, y, GROUPS)
    for c in (-30.0, 16.0, 1e4):
        moved = exchange_agreement(Gauged(model, GROUPS[2], c), x, y, GROUPS)
        torch.testing.assert_close(moved.order, plain.order)
        torch.testing.assert_close(moved.size, plain.size)


class Tent(nn.Module):
    """A network whose margin gains sum_i w_i min(x_i, 1 - x_i), zero wherever x_i is 0 or 1."""

    def __init__(self, model: nn.Module, heights: Tensor) -> None:
        super().__init__()
        self.model, self.heights = model, heights

    def forward(self, x: Tensor) -> Tensor:
        extra = torch.minimum(x, 1 - x) @ self.heights
        logits: Tensor = self.model(x) + torch.stack([torch.zeros_like(extra), extra], dim=-1)
        return logits


def adult_tent(on: list[int], high: float, low: float) -> tuple[nn.Module, Tensor]:
    """A tent over the trained network, `high` over eight columns and `low` over the others."""
    model, _, _ = network()
    columns = [number for group in load("adult").structure.exchangeable for number in group]
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(len(columns), generator=generator, dtype=torch.float64)
    heights = torch.zeros(28).double()
    heights[columns] = low * torch.where(drawn < 0.5, -1.0, 1.0) * (1 + drawn)
    heights[on] = high * (1 + torch.arange(8) / 8) * torch.tensor([1.0, -1.0] * 4).double()
    return Tent(model, heights), heights


def network() -> tuple[nn.Module, Tensor, Tensor]:
    return adult_network(rows=4000, epochs=5, least_auc=0.8, examples=40)


def test_a_tent_that_nothing_else_sees_agrees_with_no_exchange() -> None:
    # Measured: agreement .99 -> .05, P@8 at a radius of .5 from 87 to 100 %.
    model, x, y = network()
    split = load("adult").split(0)
    groups = split.dataset.structure.exchangeable
    tent, _ = adult_tent([2, 6, 8, 12, 16, 19, 24, 27], high=300.0, low=20.0)
    whole = split.test.x.double()
    with torch.no_grad():
        assert torch.equal(tent(whole), model(whole))
    assert auc(tent, whole, split.test.y) == auc(model, whole, split.test.y)

    effort = EnsembleBudget(rounds=1)
    for radius in (0.1, 0.5):
        assert (
            attacker("strong", k=8, radius=radius, budget=effort)(tent, x, y).precision.mean() == 1
        )
    assert attacker("strong", k=8, radius=0.5, budget=effort)(model, x, y).precision.mean() < 0.95

    def share(network: nn.Module) -> float:
        slope = Gradient(of="margin", form="signed")(network, x, y).detach()
        return float(off_data_share(slope, split.dataset.structure.one_hot).mean())

    assert share(tent) < 0.5

    honest, fake = (exchange_agreement(each, x, y, groups).mean() for each in (model, tent))
    assert honest is not None
    assert fake is not None
    assert honest.order > 0.9
    assert honest.size > 0.7
    assert doubt(honest.order, honest.size) == ""
    assert abs(fake.order) < 0.2
    assert "say nothing about exchanges" in doubt(fake.order, fake.size)


def test_a_tent_over_one_attribute_is_seen_by_its_size() -> None:
    # Within the attribute and among all others the order stays: ranks alone are not enough.
    model, x, y = network()
    split = load("adult").split(0)
    education = split.dataset.structure.one_hot[1]
    assert len(education) == 8
    heights = torch.zeros(28).double()
    heights[list(education)] = 50.0
    tent = Tent(model, heights)
    assert (
        attacker("strong", k=8, radius=0.5, budget=EnsembleBudget(rounds=1))(
            tent, x, y
        ).precision.min()
        == 1
    )
    found = exchange_agreement(tent, x, y, split.dataset.structure.exchangeable).mean()
    assert found is not None
    assert found.order > LEAST_AGREEMENT
    assert found.size < LEAST_SIZE
    assert "differ in size" in doubt(found.order, found.size)


def test_smooth_grad_is_judged_by_its_own_slopes() -> None:
    model, x = tiny_mlp(d=9), people(6)
    y = predicted(model, x)
    explain = SmoothGrad(samples=4, variance=4.0, one_hot=GROUPS[2:])
    found = exchange_agreement(model, x, y, GROUPS, explain=explain)
    assert not torch.allclose(found.size, exchange_agreement(model, x, y, GROUPS).size)
    linear = exchange_agreement(Linear(9), x, y, GROUPS, explain=explain)
    torch.testing.assert_close(linear.size, torch.ones(6).double())
    plain = exchange_agreement(model, x, y, GROUPS, explain=Gradient(one_hot=GROUPS[2:]))
    torch.testing.assert_close(plain.size, exchange_agreement(model, x, y, GROUPS).size)


def test_what_cannot_be_compared_is_left_out_and_counted() -> None:
    model = Linear(w=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).double())
    x, y = people(4), torch.ones(4).long()
    x[1, [1, 2, 3]] = 0.0  # no value, four exchanges left
    x[2, [1, 2, 3]] = torch.tensor([0.5, 0.5, 0.0]).double()  # a mixture
    x[2, [5, 6, 7, 8]] = 1.0  # every value at once: one exchange left
    x[3] = 0.7  # no exchange at all
    found = exchange_agreement(model, x, y, GROUPS)
    assert found.order.isnan().tolist() == found.size.isnan().tolist() == [False, False, True, True]
    torch.testing.assert_close(found.order[:2], torch.ones(2).double())
    assert found.mean() == MeanAgreement(
        order=pytest.approx(1.0), size=pytest.approx(1.0), without=2
    )
    assert exchange_agreement(model, x[2:], y[2:], GROUPS).mean() is None
    assert exchange_agreement(model, x, y, ()).mean() is None
    assert exchange_agreement(model, x[:0], y[:0], GROUPS).order.shape == (0,)


def test_slopes_that_differ_where_exchanges_do_nothing_agree_with_nothing() -> None:
    deaf = Linear(w=torch.zeros(9).double())
    x, y = people(5), torch.ones(5).long()
    assert exchange_agreement(deaf, x, y, GROUPS).mean() is None
    found = exchange_agreement(Tent(deaf, numbers(9)), x, y, GROUPS)
    assert found.order.tolist() == found.size.tolist() == [0.0] * 5

    class Steps(nn.Module):
        """Exchanges that matter, on a staircase whose slopes are zero."""

        def forward(self, x: Tensor) -> Tensor:
            score = ((x > 0.5).double() + 0 * x) @ torch.arange(9).double()
            return torch.stack([torch.zeros_like(score), score], dim=-1)

    found = exchange_agreement(Steps(), x, y, GROUPS)
    assert found.order.tolist() == found.size.tolist() == [0.0] * 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_example_is_measured_alone_as_in_company(dtype: torch.dtype) -> None:
    model, x = tiny_mlp(d=9).to(dtype), people(15).to(dtype)
    x[3, 1:4] = 0.0
    y = predicted(model, x)
    kept = x.clone()
    together = exchange_agreement(model, x, y, GROUPS)
    assert together.order.dtype == together.size.dtype == dtype
    alone = [exchange_agreement(model, x[i : i + 1], y[i : i + 1], GROUPS) for i in range(15)]
    torch.testing.assert_close(together.order, torch.cat([each.order for each in alone]))
    torch.testing.assert_close(together.size, torch.cat([each.size for each in alone]))
    torch.testing.assert_close(
        exchange_agreement(model, x, y, GROUPS, numbers_at_once=20).order, together.order
    )
    assert torch.equal(x, kept)


def test_no_more_rows_pass_through_the_model_than_memory_allows() -> None:
    seen: list[int] = []

    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            score = x @ numbers(9)
            return torch.stack([torch.zeros_like(score), score], dim=-1)

    x = people(50)
    exchange_agreement(Counted(), x, torch.ones(50).long(), GROUPS, numbers_at_once=70)
    assert max(seen) == 7


def test_large_categories_take_a_sample_in_which_small_ones_are() -> None:
    values = 3000
    groups = (tuple(range(values)), (values, values + 1, values + 2))
    asked: set[int] = set()

    class Noting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            asked.update(x.detach().nonzero()[:, 1].tolist())
            score = x @ numbers(values + 3)
            return torch.stack([torch.zeros_like(score), score], dim=-1)

    x = torch.zeros(4, values + 3).double()
    x[torch.arange(4), torch.tensor([0, 10, 20, 30])] = 1.0
    x[:, values] = 1.0
    found = exchange_agreement(Noting(), x, torch.ones(4).long(), groups)
    torch.testing.assert_close(found.order, torch.ones(4).double())
    assert {values + 1, values + 2} <= asked
    assert len(asked) <= 256 + 4


def test_scaled_columns_are_exchanged_in_their_own_units() -> None:
    # Inputs z = (x - shift) / width of a linear model: slopes of z are width times those of x.
    shift, width = numbers(9, seed=1), numbers(9, seed=2).abs() + 0.1
    x, y = people(10), torch.ones(10).long()
    scaled = (x - shift) / width
    off, on = -shift / width, (1 - shift) / width
    inner = tiny_mlp(d=9)

    class Outside(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            logits: Tensor = inner(z * width + shift)
            return logits

    found = exchange_agreement(Outside(), scaled, y, GROUPS, off=off, on=on)
    plain = exchange_agreement(inner, x, y, GROUPS)
    torch.testing.assert_close(found.order, plain.order)
    torch.testing.assert_close(found.size, plain.size)
    assert exchange_agreement(Outside(), scaled, y, GROUPS).mean() is None


def feature(name: str, group: str, kind: Any) -> Feature:
    return Feature(name=name, group=group, kind=kind, low=0.0, high=1.0)


def test_categories_and_binaries_are_exchanged_and_missing_marks_are_not() -> None:
    features = [
        feature("age", "age", "numeric"),
        feature("age: missing", "age", "binary"),
        feature("job: a", "job", "category"),
        feature("sex", "sex", "binary"),
        feature("job: b", "job", "category"),
        feature("one: only", "one", "category"),
    ]
    assert exchangeable(features) == ((2, 4), (3,))
    adult = load("adult")
    assert adult.structure.exchangeable == (*adult.structure.one_hot, (27,))


class FirstTwo(nn.Module):
    """A model that takes inputs of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groups": [(0, 1), (1, 2)]}, "belongs to one one-hot group"),
        ({"groups": [(0, 9)]}, "must name columns"),
        ({"most": 2}, "3 exchanges or more"),
        ({"numbers_at_once": 0}, "numbers_at_once >= 1"),
        ({"x": people(3)[:, None]}, "rows of columns"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], words: str) -> None:
    good = {"model": FirstTwo(), "x": people(3), "y": torch.ones(3).long(), "groups": GROUPS}
    assert words in refusal(lambda: exchange_agreement(**{**good, **changes}))


def test_levels_lie_between_honest_and_fake() -> None:
    assert doubt(LEAST_AGREEMENT, LEAST_SIZE) == ""
    for agreement, size in ((0.49, 1.0), (0.9, 0.2), (-0.3, 0.0)):
        said = doubt(agreement, size)
        assert said.startswith("These gradients say nothing about exchanges of categories:")
        assert said.count(". ") == 0
        assert said.endswith(".")
