import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, roc_auc_score

from closed_form import Linear, numbers, tiny_mlp
from r2et.metrics.statistics import (
    accuracy,
    auc,
    auc_of,
    auc_within,
    correlation,
    difference_interval,
    mean_with_interval,
    paired_test,
    share_interval,
)
from refusals import refusal


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("rows_at_once", [7, 4096])
def test_auc_and_accuracy_are_those_of_scikit_learn(classes: int, rows_at_once: int) -> None:
    model, x = tiny_mlp(classes=classes), numbers(60, 6)
    labels = torch.arange(60) % classes
    with torch.no_grad():
        p = model(x).softmax(-1).numpy()
    expected = (
        roc_auc_score(labels.numpy(), p[:, 1])
        if classes == 2
        else roc_auc_score(labels.numpy(), p, multi_class="ovr", average="macro")
    )
    assert auc(model, x, labels, rows_at_once=rows_at_once) == pytest.approx(expected)
    right = accuracy_score(labels.numpy(), p.argmax(-1))
    assert accuracy(model, x, labels, rows_at_once=rows_at_once) == pytest.approx(right)


def test_auc_tells_sure_answers_apart() -> None:
    # All probabilities round to 1 in single and double precision; their order is still perfect.
    model = Linear(w=torch.tensor([1.0]).double()).float()
    x = torch.tensor([[100.0], [200.0], [300.0], [400.0]])
    assert model(x).softmax(-1)[:, 1].unique().numel() == 1
    assert auc(model, x, torch.tensor([0, 0, 1, 1])) == 1.0
    assert auc(model, x, torch.tensor([1, 1, 0, 0])) == 0.0


def test_auc_is_the_mean_over_the_classes_that_occur() -> None:
    model, x, labels = tiny_mlp(classes=3), numbers(30, 6), torch.arange(30) % 2
    with torch.no_grad():
        p = model(x).softmax(-1).numpy()
    both = [roc_auc_score(labels.numpy() == label, p[:, label]) for label in (0, 1)]
    assert auc(model, x, labels) == pytest.approx(np.mean(both))


def test_of_two_classes_the_scores_of_the_second_count() -> None:
    # Scores that are no opposites of one another: those of the second class are in order for three
    # of the four pairs of a 1 and a 0, those of the first for none.
    scores = torch.tensor([[0.0, 0.1], [0.0, 0.4], [5.0, 0.3], [5.0, 0.8]])
    assert auc_of(scores, torch.tensor([0, 0, 1, 1])) == 0.75


def test_the_auc_within_groups_is_their_mean() -> None:
    # Scores 1 2 | 4 3 | 9: the first group is in order, the second is not, the third has one label.
    model = Linear(w=torch.tensor([1.0]).double())
    x = torch.tensor([[1.0], [2.0], [4.0], [3.0], [9.0]]).double()
    labels, of = torch.tensor([0, 1, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 2])
    assert auc_within(model, x, labels, of) == 0.5
    with pytest.raises(ValueError, match="a group of two labels"):
        auc_within(model, x[4:], labels[4:], of[4:])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.ones(5).long(), "at least two classes"),
        (torch.arange(5), "class numbers 0..1"),
        (torch.arange(4) % 2, "one class number"),
    ],
)
def test_auc_refuses_labels_that_do_not_fit(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        auc(tiny_mlp(), numbers(5, 6), labels)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_is_student_s(level: float) -> None:
    values = numbers(9).numpy()
    found = mean_with_interval(values, level)
    low, high = stats.t.interval(level, 8, loc=values.mean(), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert (found.sd, found.count) == (pytest.approx(values.std(ddof=1)), 9)


def test_lists_arrays_and_tensors_are_alike() -> None:
    values = numbers(5).requires_grad_()
    as_array = values.detach().numpy()
    assert mean_with_interval(values) == mean_with_interval(as_array)
    assert mean_with_interval(values) == mean_with_interval(as_array.tolist())


def test_one_value_has_an_open_interval() -> None:
    found = mean_with_interval([2.0])
    assert (found.value, found.low, found.high) == (2.0, -math.inf, math.inf)
    assert (found.sd, found.count) == (0.0, 1)


def test_equal_values_have_no_width() -> None:
    found = mean_with_interval([0.5] * 4)
    assert (found.low, found.value, found.high, found.sd) == (0.5, 0.5, 0.5, 0.0)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf], [[1.0, 2.0]]])
def test_values_without_a_mean_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="value"):
        mean_with_interval(values)


def test_a_level_lies_between_zero_and_one() -> None:
    with pytest.raises(ValueError, match="level"):
        mean_with_interval([1.0, 2.0], level=95)


def test_paired_test_is_that_of_scipy() -> None:
    first, second = numbers(12), numbers(12, seed=1) + 0.3
    found = paired_test(first, second)
    expected = stats.ttest_rel(first.numpy(), second.numpy())
    assert found.statistic == pytest.approx(float(expected.statistic))
    assert found.p_value == pytest.approx(float(expected.pvalue))
    assert found.difference == pytest.approx((first - second).mean().item())
    assert found.count == 12
    back = paired_test(second, first)
    assert (back.statistic, back.p_value) == pytest.approx((-found.statistic, found.p_value))


def test_pairs_without_difference_prove_nothing() -> None:
    found = paired_test([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (found.difference, found.statistic, found.p_value) == (0.0, 0.0, 1.0)


def test_pairs_of_one_difference_leave_no_doubt() -> None:
    found = paired_test([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert (found.difference, found.statistic, found.p_value) == (-1.0, -math.inf, 0.0)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_correlation_is_that_of_scipy(kind: Any) -> None:
    a, b = numbers(15), numbers(15, seed=1).round()
    reference: Any = stats.spearmanr if kind == "spearman" else stats.pearsonr
    expected = float(reference(a.numpy(), b.numpy()).statistic)
    assert correlation(a, b, kind) == pytest.approx(expected)
    assert correlation([0.1] * 3, [1.0, 2.0, 3.0], kind) == 0.0


def test_the_kind_of_correlation_matters() -> None:
    a = [1.0, 2.0, 3.0, 4.0]
    curve = [math.exp(3 * value) for value in a]
    assert correlation(a, curve) == pytest.approx(1)
    assert correlation(a, curve, "pearson") < 0.9


@pytest.mark.parametrize("measure", [paired_test, correlation])
@pytest.mark.parametrize(
    "pair", [([1.0, 2.0], [1.0]), ([1.0], [2.0]), ([1.0, math.nan], [1.0, 2.0])]
)
def test_pairs_that_do_not_fit_are_refused(measure: Any, pair: Any) -> None:
    with pytest.raises(ValueError, match="values must be"):
        measure(*pair)


def test_an_unknown_correlation_is_refused() -> None:
    with pytest.raises(ValueError, match="spearman or pearson"):
        correlation([1.0, 2.0], [1.0, 2.0], "cosine")  # type: ignore[arg-type]


def test_intervals_of_shares_are_wilson_s_and_newcombe_s() -> None:
    # Wilson: (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n).
    z, count, total = 1.959963984540054, 7, 30
    p = count / total
    half = z * math.sqrt(p * (1 - p) / total + z**2 / (4 * total**2))
    centre, scale = p + z**2 / (2 * total), 1 + z**2 / total
    expected = (centre - half) / scale, (centre + half) / scale
    assert share_interval(count, total) == pytest.approx(expected)
    # 56 of 70 against 48 of 80, the example of Newcombe (1998), his method 10.
    assert difference_interval(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert difference_interval(48, 80, 56, 70) == pytest.approx((-0.3339, -0.0524), abs=5e-5)
    assert "count of 0..total" in refusal(lambda: share_interval(5, 4))
