"""Contributions of attributes: against closed forms, the definition, `shap`, and what misleads."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from closed_form import Largest, Linear, Quadratic, mixing_mlp, numbers, tiny_mlp
from r2et.explainers import (
    EXPLAINERS,
    MOST_EXACT,
    IntegratedGradients,
    Quantity,
    Shapley,
    draw_reference,
    predicted,
    quantity_of,
)
from refusals import refusal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import sets colours as matplotlib would rather not
    import shap

GROUPS = (0, 1, 1, 1, 2, 2)  # a number and two categories, of three values and of two
WORDS = ((0,), (1, 2, 3), (4, 5))


def rows_of(count: int, seed: int = 0) -> Tensor:
    """Real rows: a number, and one 1 in the columns of each category."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.zeros(count, 6, dtype=torch.float64)
    x[:, 0] = torch.rand(count, generator=draw, dtype=torch.float64)
    for columns in WORDS[1:]:
        place = torch.randint(len(columns), (count,), generator=draw)
        x[torch.arange(count), torch.tensor(columns)[place]] = 1.0
    return x


def by_definition(
    score: Callable[[Tensor], Tensor], x: Tensor, reference: Tensor, groups: tuple[int, ...]
) -> Tensor:
    """The mean over all orders and all rows of the reference, one evaluation at a time: (B, m)."""
    m = max(groups) + 1
    orders = list(permutations(range(m)))
    found = torch.zeros(len(x), m, dtype=torch.float64)
    for i, row in enumerate(x):
        for other in reference:
            for order in orders:
                mixed = other.clone()
                before = float(score(mixed[None]).detach())
                for a in order:
                    own = torch.tensor([group == a for group in groups])
                    mixed = torch.where(own, row, mixed)
                    after = float(score(mixed[None]).detach())
                    found[i, a] += after - before
                    before = after
    return found / (len(orders) * len(reference))


def test_a_linear_score_is_told_by_weight_times_difference() -> None:
    # s = w'x + b: every order gives w_a (x_a - r_a), and its mean over the reference follows.
    model, x, reference = Linear(d=5), numbers(4, 5, seed=1), numbers(7, 5, seed=2)
    expected = model.w.detach() * (x - reference.mean(0))
    for orders in (None, 2):
        explain = Shapley(reference=reference, orders=orders)
        found = explain.contributions(model, x, torch.ones(4, dtype=torch.long))
        torch.testing.assert_close(found.detach(), expected)


def test_a_quadratic_is_told_by_hand() -> None:
    # s = x'Ax/2 + b'x against r: of each product A_ij (x_i x_j - r_i r_j) both get what they add on
    # average over "first" and "second": A_ij [(x_i - r_i) (x_j + r_j) / 2] for i. With i = j the
    # same formula holds, hence phi = (x - r) * (A (x + r) / 2 + b).
    model, x, r = Quadratic(d=5), numbers(4, 5, seed=1), numbers(5, seed=2)
    expected = (x - r) * ((x + r) / 2 @ model.A.detach() + model.b.detach())
    found = Shapley(reference=r).contributions(model, x, torch.ones(4, dtype=torch.long))
    torch.testing.assert_close(found.detach(), expected)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("of", get_args(Quantity))
def test_contributions_are_what_the_definition_says(of: Quantity, classes: int) -> None:
    model, x, reference = tiny_mlp(classes=classes), rows_of(3), rows_of(4, seed=1)
    y = predicted(model, x)
    explain = Shapley(of=of, groups=GROUPS, reference=reference)
    found = explain.contributions(model, x, y).detach()
    for i in range(len(x)):
        slow = by_definition(
            lambda row, i=i: quantity_of(model(row), y[i : i + 1], of),  # type: ignore[misc]
            x[i : i + 1],
            reference,
            GROUPS,
        )
        torch.testing.assert_close(found[i : i + 1], slow)


@pytest.mark.parametrize("orders", [None, 6])
@pytest.mark.parametrize("of", get_args(Quantity))
def test_contributions_add_up_to_the_score_less_that_of_the_reference(
    of: Quantity, orders: int | None
) -> None:
    model, x, reference = tiny_mlp(classes=3), rows_of(5), rows_of(6, seed=1)
    y = predicted(model, x)
    found = Shapley(of=of, groups=GROUPS, reference=reference, orders=orders)(model, x, y)
    signed = Shapley(of=of, groups=GROUPS, reference=reference, orders=orders, form="signed")
    mean = torch.stack([quantity_of(model(reference), label.expand(6), of).mean() for label in y])
    torch.testing.assert_close(signed(model, x, y).sum(-1), quantity_of(model(x), y, of) - mean)
    torch.testing.assert_close(found, signed(model, x, y).abs())


def test_forms_speak_for_against_or_both() -> None:
    model, x = tiny_mlp(), rows_of(4)
    y = predicted(model, x)
    for explain in (
        Shapley(groups=GROUPS, reference=rows_of(3, seed=1)),
        IntegratedGradients(of="margin", groups=GROUPS, baseline=rows_of(1, seed=1)[0]),
    ):
        found = {
            form: replace(explain, form=form)(model, x, y).detach()
            for form in ("signed", "against", "both")
        }
        assert bool((found["signed"] < 0).any())
        torch.testing.assert_close(found["against"], -found["signed"])
        torch.testing.assert_close(found["both"], found["signed"].abs())


def test_integrated_gradients_are_summed_by_attribute_with_their_signs() -> None:
    model, x, r = tiny_mlp(), rows_of(4), rows_of(1, seed=1)[0]
    y = predicted(model, x)
    columns = IntegratedGradients(of="margin", form="signed", baseline=r)(model, x, y)
    found = IntegratedGradients(of="margin", form="signed", baseline=r, groups=GROUPS)(model, x, y)
    expected = torch.stack([columns[:, list(own)].sum(1) for own in WORDS], 1)
    torch.testing.assert_close(found, expected)


# --- shap ---


def coded(x: Tensor) -> np.ndarray[Any, Any]:
    """A column for each attribute: the number, and the number of its word for a category."""
    return np.stack([x[:, 0], *(x[:, list(own)].argmax(1) for own in WORDS[1:])], 1)


def decoded(codes: np.ndarray[Any, Any]) -> Tensor:
    x = torch.zeros(len(codes), 6, dtype=torch.float64)
    x[:, 0] = torch.from_numpy(codes[:, 0])
    for place, columns in enumerate(WORDS[1:], 1):
        chosen = torch.from_numpy(codes[:, place]).long()
        x[torch.arange(len(x)), torch.tensor(columns)[chosen]] = 1.0
    return x


@pytest.mark.slow
@pytest.mark.parametrize("kind", [shap.explainers.Exact, shap.explainers.Permutation])
def test_shap_says_the_same_of_the_same_background(kind: Any) -> None:
    # Of three attributes an order and its reverse leave out four of six: shap's permutations go
    # through as many as it is allowed to, and meet all of them often enough to be near.
    model, x, reference = tiny_mlp(), rows_of(6), rows_of(8, seed=1)
    y = torch.ones(6, dtype=torch.long)

    def score(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            logits = model(decoded(codes))
        found: np.ndarray[Any, Any] = (logits[:, 1] - logits[:, 0]).numpy()
        return found

    masker = shap.maskers.Independent(coded(reference), max_samples=100)
    exact = kind is shap.explainers.Exact
    explainer = kind(score, masker) if exact else kind(score, masker, seed=0)
    told = explainer(coded(x)) if exact else explainer(coded(x), max_evals=7 * 600, silent=True)
    found = Shapley(groups=GROUPS, reference=reference).contributions(model, x, y)
    theirs = torch.from_numpy(np.asarray(told.values))
    size = float(theirs.abs().max())
    torch.testing.assert_close(
        found.detach(), theirs, atol=(1e-9 if exact else 0.02) * size, rtol=0
    )


@pytest.mark.slow
def test_shap_by_permutations_says_the_same_where_only_pairs_interact() -> None:
    # Then an order and its reverse are exact, theirs as ours, with 15 attributes as well.
    d = MOST_EXACT + 3
    model, x, reference = Quadratic(d=d), numbers(4, d, seed=1), numbers(5, d, seed=2)

    def score(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            found: np.ndarray[Any, Any] = model(torch.from_numpy(rows))[:, 1].numpy()
        return found

    masker = shap.maskers.Independent(reference.numpy(), max_samples=100)
    told = shap.explainers.Permutation(score, masker, seed=3)(x.numpy(), silent=True)
    found = Shapley(reference=reference).contributions(model, x, torch.ones(4, dtype=torch.long))
    torch.testing.assert_close(found.detach(), torch.from_numpy(np.asarray(told.values)))


# --- what misleads slopes ---


class Gauged(nn.Module):
    """A model plus c (sum of each category's columns - 1): the same on every real row."""

    def __init__(self, model: nn.Module, c: float = 50.0) -> None:
        super().__init__()
        self.model, self.c = model, c

    def forward(self, x: Tensor) -> Tensor:
        """Logits of both classes."""
        off = sum((x[:, list(own)].sum(1) - 1 for own in WORDS[1:]), torch.zeros(len(x)))
        return self.model(x) + self.c * torch.stack([-off, off], 1)


class Tented(nn.Module):
    """A model plus sum w_i h(x_i), h(0) = h(1) = 0: the same on every real row, steep between."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Logits of both classes."""
        words = x[:, 1:]
        tents = (words * (1 - words) * torch.tensor([900.0, -800, 700, -600, 500])).sum(1)
        return self.model(x) + torch.stack([-tents, tents], 1)


@pytest.mark.parametrize("changed", [Gauged, Tented])
def test_what_a_model_does_between_categories_changes_nothing(
    changed: Callable[[nn.Module], nn.Module],
) -> None:
    model, x = tiny_mlp(), rows_of(5)
    y = predicted(model, x)
    explain = Shapley(groups=GROUPS, reference=rows_of(4, seed=1))
    # Slopes are misled: that is what the control shows.
    slopes = EXPLAINERS["grad"]
    assert not torch.allclose(slopes(model, x, y), slopes(changed(model), x, y), rtol=0.5)
    torch.testing.assert_close(explain(changed(model), x, y), explain(model, x, y))


# --- promises ---


def test_an_example_is_told_alone_as_in_company_and_in_pieces() -> None:
    model, x, reference = tiny_mlp(), rows_of(5), rows_of(4, seed=1)
    y = predicted(model, x)
    explain = Shapley(groups=GROUPS, reference=reference)
    whole = explain(model, x, y).detach()
    alone = [explain(model, x[i : i + 1], y[i : i + 1]).detach() for i in range(5)]
    torch.testing.assert_close(torch.cat(alone), whole)
    for rows in (1, 3, 7, 50):
        apart = replace(explain, rows_at_once=rows)(model, x, y).detach()
        torch.testing.assert_close(apart, whole)


def test_no_more_rows_than_asked_for_pass_at_once() -> None:
    model, x, reference = tiny_mlp(), rows_of(9), rows_of(4, seed=1)
    seen: list[int] = []
    model.register_forward_hook(lambda part, given, result: seen.append(len(given[0])))
    explain = Shapley(groups=GROUPS, reference=reference, rows_at_once=10)
    explain(model, x, torch.ones(9, dtype=torch.long))
    assert max(seen) <= 10
    assert sum(seen) == 9 * 4 * 8


def test_memory_is_bounded_unless_rows_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2et.explainers.BYTES_AT_ONCE", 2**20)
    model, x = tiny_mlp(d=10), numbers(40, 10)
    explain = Shapley(reference=numbers(30, 10, seed=1))  # 1.2 million rows of 10 numbers
    with torch.no_grad(), Largest() as largest:
        explain(model, x, torch.ones(40, dtype=torch.long))
    assert largest.numel * 8 <= 2**20


@pytest.mark.parametrize("rows", [None, 5])
def test_contributions_can_be_differentiated_by_input_and_weights(rows: int | None) -> None:
    class Smooth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(numbers(2, 3, seed=5))

        def forward(self, x: Tensor) -> Tensor:
            """Logits of both classes."""
            return torch.tanh(x) @ self.w.T + (x[:, :1] * x[:, 1:2]).expand(-1, 2) * self.w[:, 0]

    model, x, y = Smooth(), numbers(2, 3, seed=6), torch.tensor([0, 1])
    explain = Shapley(reference=numbers(2, 3, seed=7), rows_at_once=rows, form="signed")

    def by_both(x: Tensor, w: Tensor) -> Tensor:
        model.w.data = w.detach()
        return explain(model, x, y)

    assert gradcheck(lambda x: explain(model, x, y), (x.requires_grad_(),))
    assert gradgradcheck(lambda x: explain(model, x, y), (x,))
    flow = numbers(2, 3, seed=8)
    (found,) = torch.autograd.grad((explain(model, x, y) * flow).sum(), model.w)
    w, step, slow = model.w.detach().clone(), 1e-6, torch.zeros(2, 3, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            ends = []
            for sign in (1, -1):
                moved = w.clone()
                moved[i, j] += sign * step
                ends.append(float((by_both(x, moved) * flow).sum().detach()))
            slow[i, j] = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close(found, slow, atol=1e-6, rtol=1e-5)


def test_batch_statistics_do_not_mix_people() -> None:
    model, x, reference = mixing_mlp(), rows_of(5).float(), rows_of(3, seed=1).float()
    model = model.float().train()
    y = torch.ones(5, dtype=torch.long)
    explain = Shapley(groups=GROUPS, reference=reference)
    whole = explain(model, x, y)
    torch.testing.assert_close(explain(model, x[:1], y[:1]), whole[:1], atol=1e-5, rtol=1e-4)
    assert model.training


def test_columns_of_no_attribute_always_stay_the_example_s_own() -> None:
    model, x, reference = Linear(d=4), numbers(3, 4, seed=1), numbers(2, 4, seed=2)
    explain = Shapley(groups=(0, -1, 1, 1), reference=reference, form="signed")
    found = explain(model, x, torch.ones(3, dtype=torch.long)).detach()
    apart = model.w.detach() * (x - reference.mean(0))
    torch.testing.assert_close(found, torch.stack([apart[:, 0], apart[:, 2:].sum(1)], 1))


# --- many attributes, and sums ---


def test_orders_come_as_near_as_their_standard_error_says() -> None:
    # Of a normal estimate about 95 % of the errors are within two standard errors; of an average
    # over 32 parts, a little more than that is left outside.
    model, x = tiny_mlp(d=8, seed=3), numbers(60, 8, seed=1)
    y, reference = predicted(model, x), numbers(3, 8, seed=2)
    exact = Shapley(reference=reference).contributions(model, x, y)
    drawn = Shapley(reference=reference, orders=64)
    error = (drawn.contributions(model, x, y) - exact).abs()
    said = drawn.standard_error(model, x, y)
    settled = said > 1e-9
    assert float((error <= 2 * said + 1e-12)[settled].double().mean()) > 0.85
    assert float((error >= 0.2 * said)[settled].double().mean()) > 0.5
    few = Shapley(reference=reference, orders=8).standard_error(model, x, y)
    assert float(few.mean() / said.mean()) == pytest.approx(8**0.5, rel=0.3)
    assert not Shapley(reference=reference).standard_error(model, x, y).any()


def test_orders_are_fixed_by_their_seed() -> None:
    model, x, y = tiny_mlp(d=8), numbers(3, 8), torch.ones(3, dtype=torch.long)
    first, again, other = (Shapley(orders=4, seed=seed)(model, x, y) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_beyond_twelve_attributes_orders_stand_in() -> None:
    seen: list[int] = []
    for d in (MOST_EXACT, MOST_EXACT + 1):
        model = tiny_mlp(d=d)
        model.register_forward_hook(lambda part, given, result: seen.append(len(given[0])))
        Shapley(reference=numbers(d, seed=1))(model, numbers(1, d), torch.tensor([1]))
    assert seen[0] == 2**MOST_EXACT
    assert sum(seen[1:]) < 64 * (MOST_EXACT + 1)


class Sum(nn.Module):
    """Log-odds that are a sum over attributes, and say so."""

    additive = True

    def __init__(self, crossed: float = 0.0) -> None:
        super().__init__()
        self.crossed = crossed

    def forward(self, x: Tensor) -> Tensor:
        """The log-odds of the second class."""
        return (
            x[:, 0].sin()
            + x[:, 1:4] @ torch.arange(3.0).double()
            + self.crossed * x[:, 0] * x[:, 4]
        )


def test_a_sum_takes_one_score_for_each_attribute() -> None:
    model, x, reference = Sum(), rows_of(4), rows_of(5, seed=1)
    seen: list[int] = []
    model.register_forward_hook(lambda part, given, result: seen.append(len(given[0])))
    y = torch.ones(4, dtype=torch.long)
    explain = Shapley(groups=GROUPS, reference=reference)
    found = explain.contributions(model, x, y)
    assert sum(seen) - 1 == 4 * 5 * (3 + 2)  # one row was asked how many classes there are
    exact = replace(explain, orders=6).contributions(model, x, y)
    torch.testing.assert_close(found, exact)


def test_a_sum_that_is_none_is_refused() -> None:
    explain = Shapley(groups=GROUPS, reference=rows_of(5, seed=1))
    y = torch.ones(4, dtype=torch.long)
    assert "says that it is additive" in refusal(lambda: explain(Sum(0.3), rows_of(4), y))


def test_the_margin_of_several_classes_is_no_sum_though_logits_are() -> None:
    model, x = nn.Linear(6, 3).double(), rows_of(4)
    y, reference = predicted(model, x), rows_of(3, seed=1)
    found = Shapley(groups=GROUPS, reference=reference).contributions(model, x, y)
    again = Shapley(groups=GROUPS, reference=reference).contributions(
        nn.Sequential(nn.Identity(), model), x, y
    )
    torch.testing.assert_close(found, again)


# --- the reference ---


def test_a_reference_holds_each_class_by_its_share() -> None:
    x, y = torch.arange(1000.0)[:, None], (torch.arange(1000) < 240).long()
    drawn = draw_reference(x, y, rows=50, seed=3)
    assert len(drawn.unique()) == 50
    assert int((drawn < 240).sum()) == 12  # 24 %
    assert torch.equal(drawn, draw_reference(x, y, rows=50, seed=3))
    assert not torch.equal(drawn, draw_reference(x, y, rows=50, seed=4))
    assert len(draw_reference(x, rows=1000).unique()) == 1000


def test_what_cannot_be_told_is_refused() -> None:
    model, x, y = tiny_mlp(), rows_of(2), torch.ones(2, dtype=torch.long)
    for orders in (0, 1, 5):
        assert "even" in refusal(lambda orders=orders: Shapley(orders=orders))
    assert "at least 1" in refusal(lambda: Shapley(rows_at_once=0))
    for bad in (numbers(3, 5), torch.full((2, 6), torch.nan), torch.zeros(0, 6)):
        assert "like the examples" in refusal(lambda bad=bad: Shapley(reference=bad)(model, x, y))
    for groups in ((0, 1), (0, 0, 2, 2, 2, 2), (-1,) * 6, (1,) * 6):
        explain = Shapley(reference=x, groups=groups)
        assert "from 0 on" in refusal(lambda explain=explain: explain(model, x, y))
    assert "1..2 rows" in refusal(lambda: draw_reference(x, rows=3))
    assert "y must hold" in refusal(lambda: Shapley(reference=x)(model, x, torch.tensor([0, 5])))
