"""Models that look stable and are not, brought to everything that measures stability."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from made_results import row_of
from r2et import NetworkClassifier, load
from r2et.attacks.ensemble import EnsembleBudget
from r2et.data import Split
from r2et.evaluation.evaluate import (
    evaluate,
)
from r2et.evaluation.protocol import (
    EvaluationSettings,
    Walk,
)
from r2et.experiments.attack_records import AttackRunSettings
from r2et.experiments.attack_run import attack_model, compared_handling
from r2et.experiments.runner import entry_of, label_of
from r2et.methods import METHODS
from r2et.report.run_page import alarm_lines
from refusals import refusal

LITTLE = EnsembleBudget(rounds=1, starts=2, steps=2, points=4, moves=2, pairs=2, sharpness=(4.0,))
ASKED = AttackRunSettings(k=3, epsilons=(0.2,), examples=4, attack="er")
MEASURED = EvaluationSettings(
    k=3,
    examples=6,
    attacks=("er", "strong"),
    er=Walk(radius=0.3, step=0.1, steps=3),
    strong=LITTLE,
    epsilons=(0.3,),
    neighbours=2,
)


@cache
def split() -> Split:
    whole = load("compas")
    return replace(whole, name="slice", x=whole.x[:400], y=whole.y[:400]).split(0)


class Fake(nn.Module):
    """A network with something beside it that has the slopes one wishes for."""

    def __init__(self, beside: Callable[[nn.Module, Tensor], Tensor], d: int = 16) -> None:
        super().__init__()
        self.net, self.beside = tiny_mlp(d=d).float(), beside
        self.register_buffer("noise", numbers(8, d, seed=1).float())

    def forward(self, x: Tensor) -> Tensor:
        return self.beside(self, x)


def towards(x: Tensor) -> Tensor:
    return x @ torch.arange(x.shape[1], 0, -1).to(x)


def sawtooth(fake: Fake, x: Tensor) -> Tensor:
    """Teeth too small to change a prediction, whose slope outweighs that of the network."""
    u = 1e5 * towards(x)
    tooth = 1e-3 * (u - u.floor())
    scores: Tensor = fake.net(x) + torch.stack([-tooth, tooth], -1)
    return scores


def detached_ramp(fake: Fake, x: Tensor) -> Tensor:
    """A slope that changes no output: what it adds is taken off behind its back."""
    ramp = 10 * towards(x)
    scores: Tensor = fake.net(x) + (ramp - ramp.detach())[:, None] * torch.tensor([-1.0, 1.0]).to(x)
    return scores


def fixed_noise(fake: Fake, x: Tensor) -> Tensor:
    """A mean over places around x, the same shifts for all."""
    scores: Tensor = fake.net(x + fake.noise.to(x)[:, None]).mean(0)
    return scores


FALSE = {"sawtooth": sawtooth, "detached ramp": detached_ramp}
every_false = pytest.mark.parametrize("beside", FALSE.values(), ids=FALSE)


@every_false
def test_a_false_slope_is_neither_attacked_nor_measured(beside: Callable[..., Tensor]) -> None:
    for ask in (
        lambda: attack_model(Fake(beside), split(), ASKED),
        lambda: compared_handling(Fake(beside), split(), ASKED),
        lambda: evaluate(Fake(beside), split(), MEASURED),
    ):
        told = refusal(ask)
        assert "cannot be explained (false gradient)" in told


def test_fixed_noise_is_told_with_the_numbers() -> None:
    fake = Fake(fixed_noise)
    found = attack_model(fake, split(), ASKED).preflight
    assert [each.kind for each in found] == ["fixed noise"]
    assert "8 fixed shifts" in found[0].problem
    row = evaluate(fake, split(), MEASURED)
    assert [each.split(":")[0] for each in row.preflight] == ["fixed noise"]
    made = replace(row_of("vanilla", 0), label="Fake", preflight=row.preflight)
    (line,) = alarm_lines([made], "preflight")
    assert line.startswith("Fake, seed 0: fixed noise: The same weights")


def test_an_honest_network_is_told_nothing_about() -> None:
    model = tiny_mlp(d=16, activation=nn.LeakyReLU).float()
    assert attack_model(model, split(), ASKED).preflight == ()
    assert evaluate(model, split(), MEASURED).preflight == ()


def test_a_network_without_a_slope_is_measured_all_the_same() -> None:
    # A collapsed network is a result, not a fake: a sweep must not end with it.
    model = tiny_mlp(d=16).float()
    with torch.no_grad():
        model[-1].weight.zero_()
    row = evaluate(model, split(), MEASURED)
    assert row.preflight[0].startswith("no gradient")


@cache
def trained() -> tuple[NetworkClassifier, np.ndarray]:
    X = numbers(80, 4).numpy()
    return NetworkClassifier(epochs=1, k=2, method="vanilla").fit(X, X[:, 0] > 0), X[:6]


@every_false
def test_an_estimator_refuses_a_false_slope(beside: Callable[..., Tensor]) -> None:
    model, X = copy.deepcopy(trained()[0]), trained()[1]
    model.model_ = Fake(beside, d=4).double()
    assert "false gradient" in refusal(lambda: model.stability(X, budget=LITTLE))


def test_an_estimator_tells_of_fixed_noise_and_of_nothing_else() -> None:
    model, X = copy.deepcopy(trained()[0]), trained()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.stability(X, budget=LITTLE)
    model.model_ = Fake(fixed_noise, d=4).double()
    with pytest.warns(UserWarning, match="fixed noise: The same weights are asked at 8"):
        model.stability(X, budget=LITTLE)


TARGETS = {
    "multi-hot": lambda y: np.eye(2, dtype=int)[y],
    "shares": lambda y: y + 0.25,
    "two columns": lambda y: np.stack([y, y], 1),
}


@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
def test_an_estimator_takes_one_class_a_row(targets: Callable[[np.ndarray], np.ndarray]) -> None:
    X = numbers(20, 3).numpy()
    with pytest.raises(ValueError, match=r"1d array|continuous"):
        NetworkClassifier(epochs=1).fit(X, targets((X[:, 0] > 0).astype(int)))


@pytest.mark.parametrize("seed", [True, 0.0, 1.5, "0", None, torch.tensor(0), np.float64(1)])
def test_a_split_takes_whole_numbers_as_seeds(seed: object) -> None:
    with pytest.raises(TypeError, match="a seed must be a whole number, got"):
        split().dataset.split(seed)  # type: ignore[arg-type]


def test_a_split_takes_whole_numbers_of_numpy() -> None:
    dataset = split().dataset
    one, other = dataset.split(np.int64(3)), dataset.split(3)
    assert torch.equal(one.train.rows, other.train.rows)


# --- methods of one's own ---


def test_a_process_without_a_method_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this process knows no method 'mine'" in refusal(lambda: entry_of("mine"))
    monkeypatch.setitem(METHODS, "mine", replace(METHODS["vanilla"], label="Mine"))
    assert label_of("mine") == "Mine"
    assert label_of("r2et") == "R2ET"
