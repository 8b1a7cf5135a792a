"""A Siamese network of digits has three predictions to keep (P B.2.3, S = 3): the pair's and both
digits' own. In every handling none of them is changed by what comes back."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING
from r2et.attacks.moo import Gaps, TrustRegion
from r2et.attacks.search import (
    AttackProblem,
    AttackResult,
    BestSoFar,
    Outputs,
    classes_changed,
    prediction,
)
from r2et.core.inputs import Joined
from r2et.core.rng import stream
from r2et.data import Part, load
from r2et.evaluation.evaluate import Task, attacked_by, pair_and_singles, task_of
from r2et.evaluation.protocol import EvaluationSettings, Walk
from r2et.explainers import Gradient, predicted
from r2et.methods import Method
from r2et.models import build
from r2et.models.siamese import Siamese, fit_single_head
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit

every_handler = pytest.mark.parametrize("handler", CONSTRAINT_HANDLING)
both_goals = pytest.mark.parametrize("goal", ["er", "mse"])
# Far enough to change classes: what changes none would keep them all by itself.
WALK = EvaluationSettings(
    k=50, norm="linf", singles=True, er=Walk(radius=0.3, step=0.05, steps=6), record_every=1
)


@cache
def digits() -> tuple[nn.Module, Tensor, Tensor, Task]:
    """A network of pairs trained for a moment, its head for single digits, and 20 pairs."""
    data = load("mnist")
    split = data.split(0)

    def first(part: Part, count: int) -> Part:
        return replace(part, rows=part.rows[:count], x=part.x[:count], y=part.y[:count])

    plan = {"name": "siamese-cnn", "classes": 2, "pieces": [[1, 28, 28]] * 2}
    trained, history = fit(
        build(plan, stream(0, "init")),
        first(split.train, 800),
        first(split.valid, 60),
        Method(),
        FitSettings(epochs=1, batch=40, learning_rate=0.003),
    )
    assert history[-1].valid_auc > 0.85
    assert isinstance(trained, Joined)
    assert isinstance(trained.model, Siamese)
    model = Joined(fit_single_head(trained.model, *split.training_items), trained.inputs).eval()
    explain = Gradient(form="normalised", groups=data.structure.explained)
    x = split.test.x[:20]
    return model, x, predicted(model, x), task_of(split, WALK, explain)


@cache
def attacked(goal: str, handler: str, outputs: Outputs) -> AttackResult:
    model, x, y, task = digits()
    settings = replace(WALK, handler=handler)
    return attacked_by(goal, model, x, y, settings, task=replace(task, outputs=outputs))


def changed(moved: Tensor) -> list[list[bool]]:
    """Of each pair, whether its class and those of its two digits changed, one by one."""
    model, x, _, _ = digits()
    assert isinstance(model, Joined)
    assert isinstance(model.model, Siamese)
    found = []
    with torch.no_grad():
        for before, after in zip(x, moved, strict=True):
            classes = []
            for row in (before, after):
                a, b = row.view(2, 1, 1, 28, 28)
                both, one, other = (
                    model.model(a, b),
                    *(model.model.single(model.model.embed(each)) for each in (a, b)),
                )
                classes.append([int(each.argmax()) for each in (both, one, other)])
            found.append([was != now for was, now in zip(*classes, strict=True)])
    return found


def test_a_task_of_single_items_keeps_three_predictions() -> None:
    model, x, y, task = digits()
    assert task.outputs is pair_and_singles
    pair, first, second = task.outputs(model, x)
    assert pair.shape == first.shape == second.shape == (20, 2)
    assert torch.equal(pair.argmax(-1), y)
    assert len({tuple(each.argmax(-1).tolist()) for each in (pair, first, second)}) == 3


@both_goals
@every_handler
def test_none_of_three_predictions_is_changed(goal: str, handler: str) -> None:
    found = attacked(goal, handler, pair_and_singles)
    assert not any(any(each) for each in changed(found.x))
    assert (found.precision < 1).any(), "an attack that does nothing would keep them, too"
    assert found.last is not None
    if CONSTRAINT_HANDLING[handler].at_change != "walk on":
        assert not any(any(each) for each in changed(found.last)), "nor on the way"


def test_kept_by_the_pair_alone_a_digit_is_changed() -> None:
    # Without this the promises above would hold for an attack that never came near to it.
    lost = [changed(attacked("er", each, prediction).x) for each in CONSTRAINT_HANDLING]
    assert not any(pair for each in lost for pair, _, _ in each)
    assert sum(first or second for each in lost for _, first, second in each) > 2


def test_one_changed_prediction_of_three_counts() -> None:
    model, x, _, _ = digits()
    moved = attacked("er", "unconstrained", pair_and_singles).last
    assert moved is not None
    each = changed(moved)
    assert any(any(one) and not all(one) for one in each), "some lose one class and keep another"
    found = classes_changed(pair_and_singles, model, x, moved)
    assert found.tolist() == [any(one) for one in each]


def test_what_is_judged_and_what_is_pursued_keeps_all_three() -> None:
    model, x, y, task = digits()
    moved = attacked("er", "unconstrained", pair_and_singles).last
    assert moved is not None
    problem = AttackProblem(
        k=50, explainer=task.explain, perturbation=task.perturbation, outputs=pair_and_singles
    )
    best = BestSoFar(model, x, y, problem)
    kept = [not any(one) for one in changed(moved)]
    assert best.keeps(moved).tolist() == kept
    assert best.keeps(torch.cat([x, moved])).tolist() == [True] * len(x) + kept
    some = BestSoFar(model, x[:3], y[:3], problem)
    lost = [number for number, one in enumerate(changed(moved)) if any(one)][:3]
    some = BestSoFar(model, x[lost], y[lost], problem)
    goals = Gaps.around(some, TrustRegion(pairs=1, guide=None))
    assert goals.kept(x[lost]).all()
    assert not goals.kept(moved[lost]).any()
