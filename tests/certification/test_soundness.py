"""The short form of `make soundness`: 10,000 attacked points, and every trap once."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import breaking
import traps
from breaking import Case, Outcome, in_one_sentence, judge
from programs import OPERATIONS, program, small_relu
from r2et.certification import Certificate, certify
from traps import TRAPS, trap

# Few looks, at fewer claims: what is misread is misread at any radius.
QUICKLY: dict[str, Any] = {"steps": 2, "epsilons": (0.3,)}
AT_ONCE: dict[str, Any] = {"steps": 1, "epsilons": ()}
GROUPS = {
    "hooks": traps.HOOKS, "writes": traps.WRITES, "layers": traps.LAYERS, "copies": traps.COPIES,
    "other rows": traps.OTHER_ROWS, "state": traps.STATE, "gradients": traps.GRADIENTS,
    "asked": traps.ASKED, "bends": traps.BENDS, "pictures": traps.PICTURES,
    "numbers": traps.NUMBERS, "calls": traps.CALLS,
}  # fmt: skip


def faults(outcomes: list[Outcome]) -> list[str]:
    """What was broken or raised, a line each."""
    return [f"{each.verdict}: {each.case}: {each.told[:200]}" for each in outcomes if each.fault]


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_not_what_it_looks_like_is_refused_or_holds(group: str) -> None:
    names = [name for name, made in GROUPS[group].items() if not made.slow]
    assert not faults([judge(trap(name, **AT_ONCE), points=50) for name in names])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("group", GROUPS)
def test_no_trap_closes_with_other_weights(group: str, seed: int) -> None:
    assert not faults([judge(trap(name, seed), points=300) for name in GROUPS[group]])


@pytest.mark.parametrize("seed", range(3))
def test_no_random_network_breaks_its_certificate(seed: int) -> None:
    outcomes = [judge(small_relu(seed, **QUICKLY), points=300)]
    for number in range(100 * seed, 100 * seed + 60):
        outcomes.append(judge(program(number, **QUICKLY), points=300))
        if sum(each.points for each in outcomes) >= 2000:
            break
    assert not faults(outcomes)
    assert sum(each.points for each in outcomes) >= 2000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_breaks_a_certificate(name: str) -> None:
    assert not faults([judge(program(seed, name), points=500) for seed in range(3)])


# The proof that the test can see: certificates that are too good, which it must break.


def believing(model: nn.Module, x: Tensor, y: Tensor | None = None, **asked: Any) -> Any:
    """Every top k, certified within any distance."""
    case = Case(name="", model=model, x=x, settings=asked | {"y": y})
    y = breaking._labels(case)[1]
    slope = breaking.true_slope(model, x.detach().clone().requires_grad_(), y, asked).abs()
    ranked = slope.argsort(1, descending=True)
    endless = torch.full((len(x),), torch.inf, dtype=torch.float64)
    return SimpleNamespace(
        radius=endless,
        order_radius=endless,
        precision=endless.new_ones(len(x), 0),
        epsilons=(),
        top=ranked[:, : asked["k"]],
        weakest=ranked[:, [asked["k"] - 1, asked["k"]]],
    )


# Those whose slopes are the same everywhere but for their size, whatever their values do, or that
# have none.
STRAIGHT = {
    "h.data.tanh_()", "h.detach().tanh_()", "h.data set to something else", "its own input written",
    "straight through, old style", "straight through by detach", "all detached", "BatchNorm",
    "AlphaDropout", "Softplus of beta 1e-6", "floor", "fraction", "remainder", "nothing of it",
    "inputs rounded", "a constant", "a scale of infinity", "no rows", "item",
}  # fmt: skip
FIRST_MET = (
    "forward pre-hook on the root", "forward hook on a layer", "overridden __call__",
    "forward of the instance", "h *= g with an alias", "h.tanh_() with its result ignored",
    "F.relu(h, inplace=True) with its result ignored", "in-place ReLU before a residual sum",
    "parametrised weight_norm of a subclass", "parametrised spectral_norm of a subclass",
    "subclass of the structured network", "Softplus of threshold 0",
    "GraphModule with a leaf of a subclass", "wrapped function named square",
    "custom operation named relu", "x times the number of rows",
)  # fmt: skip


@pytest.mark.parametrize("name", FIRST_MET)
def test_a_certificate_without_an_end_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaking, "certify", believing)
    assert judge(trap(name), points=200).verdict == "broken"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAPS if not TRAPS[name].slow])
def test_certificates_without_an_end_are_broken_where_slopes_change(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaking, "certify", believing)
    assert judge(trap(name), points=200).fault == (name not in STRAIGHT)


def test_a_radius_a_little_beyond_the_exact_one_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_far(*given: Any, **asked: Any) -> Certificate:
        found = certify(*given, **asked)
        return replace(found, radius=found.radius * 1.05)

    monkeypatch.setattr(breaking, "certify", too_far)
    outcomes = [judge(small_relu(seed, epsilons=()), points=10) for seed in range(4)]
    assert sum(each.verdict == "broken" for each in outcomes) >= 2


@pytest.mark.parametrize("told", ["", "two\nlines.", "no end"])
def test_a_refusal_is_one_sentence(told: str) -> None:
    assert not in_one_sentence(told)
    assert in_one_sentence("no bound is known for this: use another.")
