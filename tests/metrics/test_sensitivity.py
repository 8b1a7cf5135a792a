from typing import Any

import pytest
import torch
from torch import nn

from closed_form import Linear, Quadratic, numbers, tiny_mlp
from r2et.core.autograd import hessian_norm
from r2et.explainers import Gradient, gradient, predicted
from r2et.metrics import METRICS, Case
from r2et.metrics.sensitivity import changed_prediction, curvature, manipulation_step
from r2et.metrics.thickness import thickness

signed_logit = Gradient(of="logit", form="signed")


def test_a_prediction_changes_across_the_boundary() -> None:
    # The logits are [0, x1]: the answer is the sign of x1.
    model = Linear(w=torch.tensor([1.0, 0.0]).double())
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]).double()
    attacked = torch.tensor([[0.5, 9.0], [-0.5, 0.0], [2.0, 0.0]]).double()
    found = changed_prediction(model, x, attacked)
    assert found.tolist() == [0.0, 1.0, 1.0]
    assert found.dtype == torch.float64
    with pytest.raises(ValueError, match="one shape"):
        changed_prediction(model, x, attacked[:2])


def test_the_curvature_of_a_quadratic_is_the_norm_of_its_matrix() -> None:
    model, x = Quadratic(d=5), numbers(3, 5)
    found = curvature(model, x, torch.ones(3).long(), signed_logit)
    torch.testing.assert_close(found, model.A.detach().norm().expand(3))
    assert not found.requires_grad
    flat = curvature(Linear(d=5), x, torch.ones(3).long(), signed_logit)
    assert flat.tolist() == [0.0] * 3


@pytest.mark.parametrize("numbers_at_once", [1, 36, 80, 10_000])
def test_curvature_in_parts_is_curvature(numbers_at_once: int) -> None:
    model, x, y = tiny_mlp(), numbers(5, 6), torch.arange(5) % 2
    whole = hessian_norm(lambda points: gradient(model, points, y), x).detach()
    assert whole.min() > 0
    found = curvature(model, x, y, gradient, numbers_at_once=numbers_at_once)
    torch.testing.assert_close(found, whole)
    assert curvature(model, x[:0], y[:0], gradient).shape == (0,)


def test_curvature_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    curvature(model, numbers(3, 6), torch.ones(3).long(), gradient)
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


HISTORY = torch.tensor(
    [[1.0, 1.0, 1.0, 0.9], [1.0, 0.9, 1.0, 0.9], [0.8, 1.0, 1.0, 0.9], [0.2, 0.7, 1.0, 0.9]]
)


@pytest.mark.parametrize(
    ("below", "steps"), [(1.0, [2, 1, 4, 0]), (0.8, [3, 3, 4, 4]), (0.1, [4, 4, 4, 4])]
)
def test_the_first_step_below_is_found(below: float, steps: list[int]) -> None:
    assert manipulation_step(HISTORY, below).tolist() == steps


@pytest.mark.parametrize("history", [HISTORY[0], HISTORY[:0], HISTORY / 0 * 0])
def test_a_broken_history_is_refused(history: Any) -> None:
    with pytest.raises(ValueError, match="a history of P@k"):
        manipulation_step(history)


# --- the table of metrics ---


def a_case(**changes: Any) -> Case:
    model, x = tiny_mlp(), 2 * numbers(5, 6)
    good: dict[str, Any] = {
        "model": model,
        "explain": gradient,
        "x": x,
        "attacked": x + numbers(5, 6, seed=1),
        "y": predicted(model, x),
        "k": 2,
    }
    return Case.of(**{**good, **changes})


def part(case: Case, rows: slice) -> Case:
    return Case.of(
        case.model,
        case.explain,
        case.x[rows],
        case.attacked[rows],
        case.y[rows],
        case.k,
        categories=case.categories,
    )


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_gives_each_example_its_own_value(name: str) -> None:
    case, measure = a_case(), METRICS[name].measure
    if name.startswith("exchange"):
        categories = torch.eye(5).double()[torch.arange(5)]
        x = torch.cat([case.x[:, :1], categories], 1)
        case = a_case(x=x, y=predicted(case.model, x), categories=[range(1, 6)])
        assert measure(a_case()).isnan().all(), "without categories nothing is measured"
    together = measure(case)
    assert together.shape == (5,)
    assert together.dtype == torch.float64
    assert not together.requires_grad
    assert torch.isfinite(together).all()
    alone = [measure(part(case, slice(b, b + 1))) for b in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_described(name: str) -> None:
    metric = METRICS[name]
    assert metric.better in ("higher", "lower", "none")
    assert metric.line.endswith(".")
    assert "\n" not in metric.line


def test_an_attack_that_does_nothing_is_measured_as_nothing() -> None:
    case = a_case()
    still = Case.of(case.model, case.explain, case.x, case.x, case.y, case.k)
    for name in ("precision@k", "pearson", "kendall", "spearman", "thickness"):
        torch.testing.assert_close(METRICS[name].measure(still), torch.ones(5).double())
    for name in ("mse", "sen", "tie"):
        assert METRICS[name].measure(still).tolist() == [0.0] * 5


def test_a_case_explains_both_inputs_for_the_clean_class() -> None:
    case = a_case()
    torch.testing.assert_close(case.before, gradient(case.model, case.x, case.y).detach())
    torch.testing.assert_close(case.after, gradient(case.model, case.attacked, case.y).detach())
    assert not case.before.requires_grad
    torch.testing.assert_close(METRICS["saliency norm"].measure(case), case.before.abs().sum(-1))


def test_the_table_measures_thickness_on_the_way_to_the_attacked_input() -> None:
    case = a_case()
    found = thickness(
        case.model,
        case.x,
        case.y,
        case.attacked[None],
        explain=case.explain,
        k=case.k,
        variant="probability",
    )
    torch.testing.assert_close(METRICS["thickness"].measure(case), found.value)
    assert (found.value < 1).any()


def test_ties_are_shown() -> None:
    model = Linear(w=torch.tensor([2.0, 1.0, 1.0, 0.0]).double())
    x = numbers(2, 4).abs()
    for k, tie in ((1, 0.0), (2, 1.0), (3, 0.0)):
        case = a_case(
            model=model, explain=signed_logit, x=x, attacked=x, y=torch.ones(2).long(), k=k
        )
        assert METRICS["tie"].measure(case).tolist() == [tie] * 2


def test_removal_follows_the_case() -> None:
    plain, shifted = a_case(), a_case(baseline=1.0, sizes=(1, 2))
    for name in ("comp", "suff"):
        assert not torch.allclose(METRICS[name].measure(plain), METRICS[name].measure(shifted))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 6}, "k must lie in 1..5"),
        ({"attacked": numbers(4, 6)}, "one shape"),
        ({"attacked": numbers(5, 6) / 0}, "finite"),
        ({"y": torch.zeros(4).long()}, "one class number"),
    ],
)
def test_a_case_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_case(**changes)
