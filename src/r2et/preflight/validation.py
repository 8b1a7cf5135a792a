"""What breaks or falsifies explanations of a model is found, and cured in a copy.

Explanations are slopes, and training or attacking them takes slopes of slopes. Much that predicts
well has none, or others than its own: `validate` looks for it, `repair` cures a copy where it can.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from r2et.core.ranking import check_k, precision_at_k
from r2et.core.rng import random_state_kept
from r2et.explainers import class_logits, gradient, predicted
from r2et.models.smoothing import softened
from r2et.preflight.checks import STAGES, Case, answers, differ, sentence
from r2et.preflight.kinds import KINDS, Finding, finding

REPORTED_ELSEWHERE = ("no curvature", "ties")  # attacks follow smooth copies, and count ties


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How far a smoothed model is from the one it replaces, over all examples given.

    The largest change of a probability, the share of predictions that stay, and, if k was given,
    the mean share of the top k of a gradient explanation that stays.
    """

    largest_change: float
    same_predictions: float
    overlap: float | None


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A repaired copy, what was `done` to it, what is `left` to do, and what smoothing cost."""

    model: nn.Module
    done: tuple[str, ...]
    left: tuple[Finding, ...]
    fidelity: Fidelity | None


def validate(model: nn.Module, x: Tensor, *, k: int | None = None) -> list[Finding]:
    """What would break or falsify explanations of `model` at inputs like x.

    An empty list is no proof: all but the kinds of layers is judged by the first `PROBES` examples
    of x, at prediction time. Later checks see the model with what was found before repaired, and
    none follow an error that is not repairable and leaves them nothing to judge. With k, ties are
    counted at the k-th place. Copies are called, some dozens of times, never the model itself.
    """
    return examined(model, x, k=k)[1]


def repair(
    model: nn.Module, x: Tensor, *, k: int | None = None, smooth: float | None = None
) -> Repaired:
    """A copy of `model` with all that is repairable repaired.

    Answers at x stay what they were at prediction time: a repair that changes one is left out, and
    its finding, no longer repairable, is among those `left` and says what would have changed. Only
    with `smooth` = rho are they changed a little, as ReLU layers are rounded to softplus(x; rho):
    `fidelity` says by how much, unless an error is left. A model that cannot be copied comes back
    as it is.
    """
    if smooth is not None and not 0 < smooth < math.inf:
        raise ValueError(f"smooth must be a positive sharpness or None, got {smooth}.")
    repaired, findings = examined(model, x, k=k)
    done = [f"{each.kind} at {each.where}: {each.cure}" for each in findings if each.repairable]
    rounded = None if smooth is None or repaired is model else softened(repaired, smooth)
    result, fidelity = repaired if rounded is None else rounded, None
    left = tuple(validate(result, x, k=k))
    if rounded is not None:
        done.append(f"no curvature: ReLU layers are rounded to softplus(x; {smooth}).")
        if all(each.severity == "warning" for each in left):
            fidelity = _fidelity(repaired, rounded, x, k)
    return Repaired(model=result, done=tuple(done), left=left, fidelity=fidelity)


def cleared(model: nn.Module, x: Tensor) -> tuple[nn.Module, tuple[Finding, ...]]:
    """The model, repaired where it can be, and what is to be told of it before its numbers.

    Refused, as an audit refuses it, where explanations of it would be false: of a sawtooth or of a
    detached ramp every figure of stability is a figure of something else. A model whose slopes are
    all zero is no fake: that its scores tie is told with them.
    """
    repaired, findings = examined(model, x)
    found = tuple(each for each in findings if each.kind not in REPORTED_ELSEWHERE)
    refuse_incurable(each for each in found if each.kind != "no gradient")
    return repaired if any(each.repairable for each in found) else model, found


def refuse_incurable(findings: Iterable[Finding], name: str = "the model") -> None:
    """Refuse a model with an error that nothing repairs."""
    for each in findings:
        if each.incurable:
            raise ValueError(
                f"{name} cannot be explained ({each.kind}): {each.problem} {each.cure}"
            )


def _fidelity(before: nn.Module, after: nn.Module, x: Tensor, k: int | None) -> Fidelity:
    before, after, overlap = _copied(before), _copied(after), None
    with torch.inference_mode(False), torch.no_grad(), random_state_kept(x.device):
        old, new = (answers(model, x).softmax(-1) for model in (before, after))
        if k is not None:
            y = predicted(before, x)
            kept = precision_at_k(gradient(before, x, y), gradient(after, x, y), k)
            overlap = kept.mean().item()
    return Fidelity(
        largest_change=(old - new).abs().max().item(),
        same_predictions=(old.argmax(-1) == new.argmax(-1)).double().mean().item(),
        overlap=overlap,
    )


def examined(
    model: nn.Module, x: Tensor, *, k: int | None = None
) -> tuple[nn.Module, list[Finding]]:
    """A copy repaired as far as it goes, never called, and all that was found on the way."""
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor):
        raise TypeError(
            "an nn.Module and a tensor of examples are needed, got "
            f"{type(model).__name__} and {type(x).__name__}: wrap a function in an nn.Module."
        )
    if k is not None and x.ndim > 1 and len(x):
        check_k(k, x[0].numel())
    findings: list[Finding] = []
    with torch.inference_mode(False), torch.enable_grad(), random_state_kept(x.device):
        try:
            repaired = _copied(model)
        except Exception as error:
            return model, [finding("model raises", f"Copying raises {sentence(error)}")]
        for stage in STAGES:
            for check in stage:
                try:
                    found = check(Case(model=_copied(repaired), given=model, x=x, k=k))
                    if found and (cure := KINDS[found.kind].repair):
                        cured = cure(_copied(repaired), x)
                        harm = _harm(repaired, cured, x, found.kind)
                        if harm:
                            found = replace(
                                found, problem=f"{found.problem} {harm}", repairable=False
                            )
                        else:
                            repaired = cured
                except Exception as error:
                    found = finding("model raises", f"The model raises {sentence(error)}")
                if found and found not in findings:
                    findings.append(found)
            if any(each.incurable for each in findings):
                break
    return repaired, findings


def _harm(before: nn.Module, after: nn.Module, x: Tensor, kind: str) -> str:
    """What a repair changes in the answers at x, in one sentence; empty if nothing."""
    before, after, read = _copied(before), _copied(after), KINDS[kind].probabilities
    try:
        old, again = (answers(before, x.clone()) for _ in range(2))
    except Exception:  # a model that could not be called before has no answers to keep
        return ""
    new = answers(after, x.clone())
    if read is not None:  # the form of the outputs changes, and what they mean must not
        old, again, new = read(old), read(again), new.softmax(-1)
    if not isinstance(old, Tensor) or differ(old, again) or not differ(old, new):
        return ""
    if not isinstance(new, Tensor) or new.shape != old.shape:
        return "The repair changes the shape of the outputs, and is left out."
    changed = int((class_logits(old).argmax(-1) != class_logits(new).argmax(-1)).sum())
    return (
        f"The repair changes {changed} of {len(x)} predictions and outputs by up to "
        f"{float((old - new).abs().max()):.2g}, and is left out: the model relies on it."
    )


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy; results that the model merely kept are copied without their graph."""
    kept = (value for part in model.modules() for value in vars(part).values())
    memo: dict[int, Any] = {
        id(value): value.detach().clone()
        for value in kept
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, memo)
