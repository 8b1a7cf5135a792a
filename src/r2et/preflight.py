"""What in a model breaks or falsifies explanations and their derivatives, and the cure.

Explanations are slopes, and training or attacking them takes slopes of slopes. Much that predicts
well has none, or others than its own: `validate` looks for it, `repair` cures a copy where it can.
"""

import copy
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from r2et.core.autograd import VARYING, eval_mode, gradient_of, piecewise_linear
from r2et.core.ranking import check_k, precision_at_k, ties
from r2et.core.rng import noise_like, stream
from r2et.explainers import class_logits, gradient, predicted, two_logits
from r2et.models.smoothing import softened

PROBES = 16  # examples that are looked at
TIED = 0.05  # share of tied scores that is no longer a coincidence
ALONG, NUMBERS_ALONG = 4, 2**20  # examples whose slopes are added up, and numbers at once
NAMES = 4  # layers that a finding names
RESHAPING = "Alias|Clone|Reshape|Select|Slice|Squeeze|UnsafeView|View"  # as torch names them

Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing in a model that breaks or falsifies explanations, each field in one sentence.

    An "error" stops explanations or their derivatives, or makes them wrong; a "warning" limits
    what they can be used for. `repairable`: `repair` follows the `cure` by itself.
    """

    kind: str
    where: str
    problem: str
    effect: str
    cure: str
    severity: Severity
    repairable: bool


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


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a check sees: a copy it may call freely, and the caller's `given` model to look at."""

    model: nn.Module
    given: nn.Module
    x: Tensor
    k: int | None

    def probe(self) -> Tensor:
        """Some of the examples, for this check alone: (at most PROBES, ...)."""
        return self.x[:PROBES].detach().clone()


def validate(model: nn.Module, x: Tensor, *, k: int | None = None) -> list[Finding]:
    """What would break or falsify explanations of `model` at inputs like x.

    An empty list is no proof: all but the kinds of layers is judged by the first `PROBES` examples
    of x, at prediction time. Later checks see the model with what was found before repaired, and
    none follow an error that is not repairable and leaves them nothing to judge. With k, ties are
    counted at the k-th place. Copies are called, some dozens of times, never the model itself.
    """
    return _examined(model, x, k)[1]


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
    repaired, findings = _examined(model, x, k)
    done = [f"{each.kind} at {each.where}: {each.cure}" for each in findings if each.repairable]
    rounded = None if smooth is None or repaired is model else softened(repaired, smooth)
    result, fidelity = repaired if rounded is None else rounded, None
    left = tuple(validate(result, x, k=k))
    if rounded is not None:
        done.append(f"no curvature: ReLU layers are rounded to softplus(x; {smooth}).")
        if all(each.severity == "warning" for each in left):
            fidelity = _fidelity(repaired, rounded, x, k)
    return Repaired(model=result, done=tuple(done), left=left, fidelity=fidelity)


TOLD_ELSEWHERE = ("no curvature", "ties")  # attacks follow smooth copies, and count ties


def cleared(model: nn.Module, x: Tensor) -> tuple[nn.Module, tuple[Finding, ...]]:
    """The model, repaired where it can be, and what is to be told of it before its numbers.

    Refused, as an audit refuses it, where explanations of it would be false: of a sawtooth or of a
    detached ramp every figure of stability is a figure of something else. A model whose slopes are
    all zero is no fake: that its scores tie is told with them.
    """
    found = tuple(each for each in validate(model, x) if each.kind not in TOLD_ELSEWHERE)
    for each in found:
        if each.severity == "error" and not each.repairable and each.kind != "no slope":
            raise ValueError(
                f"the model cannot be explained ({each.kind}): {each.problem} {each.cure}"
            )
    if any(each.repairable for each in found):
        model = repair(model, x).model
    return model, found


def in_words(finding: Finding) -> str:
    """What was found, where, and what follows from it: two or three sentences."""
    where = "" if finding.where == "outputs" else f" ({finding.where})"
    return f"{finding.kind}{where}: {finding.problem} {finding.effect}"


def _fidelity(before: nn.Module, after: nn.Module, x: Tensor, k: int | None) -> Fidelity:
    before, after, overlap = _copied(before), _copied(after), None
    with torch.inference_mode(False), torch.no_grad(), _random_state_kept(x):
        old, new = (_answers(model, x).softmax(-1) for model in (before, after))
        if k is not None:
            y = predicted(before, x)
            kept = precision_at_k(gradient(before, x, y), gradient(after, x, y), k)
            overlap = kept.mean().item()
    return Fidelity(
        largest_change=(old - new).abs().max().item(),
        same_predictions=(old.argmax(-1) == new.argmax(-1)).double().mean().item(),
        overlap=overlap,
    )


def _examined(model: nn.Module, x: Tensor, k: int | None) -> tuple[nn.Module, list[Finding]]:
    """A copy repaired as far as it goes, never called, and all that was found on the way."""
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor):
        raise TypeError(
            "an nn.Module and a tensor of examples are needed, got "
            f"{type(model).__name__} and {type(x).__name__}: wrap a function in an nn.Module."
        )
    if k is not None and x.ndim > 1 and len(x):
        check_k(k, x[0].numel())
    findings: list[Finding] = []
    with torch.inference_mode(False), torch.enable_grad(), _random_state_kept(x):
        try:
            repaired = _copied(model)
        except Exception as error:
            return model, [_finding("model raises", f"Copying raises {_sentence(error)}")]
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
                    found = _finding("model raises", f"The model raises {_sentence(error)}")
                if found and found not in findings:
                    findings.append(found)
            if any(each.severity == "error" and not each.repairable for each in findings):
                break
    return repaired, findings


def _finding(
    kind: str, problem: str, where: str = "outputs", severity: Severity | None = None
) -> Finding:
    known = KINDS[kind]
    return Finding(
        kind=kind,
        where=where,
        problem=problem,
        effect=known.effect,
        cure=known.cure,
        severity=severity or known.severity,
        repairable=known.repair is not None,
    )


def _harm(before: nn.Module, after: nn.Module, x: Tensor, kind: str) -> str:
    """What a repair changes in the answers at x, in one sentence; empty if nothing."""
    before, after = _copied(before), _copied(after)
    try:
        old, again = (_chances(_answers(before, x.clone()), kind) for _ in range(2))
    except Exception:  # a model that could not be called before has no answers to keep
        return ""
    new = _chances(_answers(after, x.clone()), "" if kind not in READINGS else "logits")
    if not isinstance(old, Tensor) or _differ(old, again) or not _differ(old, new):
        return ""
    if not isinstance(new, Tensor) or new.shape != old.shape:
        return "The repair changes the shape of the outputs, and is left out."
    changed = int((class_logits(old).argmax(-1) != class_logits(new).argmax(-1)).sum())
    return (
        f"The repair changes {changed} of {len(x)} predictions and outputs by up to "
        f"{float((old - new).abs().max()):.2g}, and is left out: the model relies on it."
    )


# How the probabilities of all classes follow from outputs that a repair puts into another form.
READINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "single output": lambda z: two_logits(z).softmax(-1),
    "single probability": lambda p: torch.stack([1 - p.reshape(-1), p.reshape(-1)], -1),
    "probabilities": lambda p: p,
    "logits": lambda z: z.softmax(-1),
}


def _chances(outputs: Any, kind: str) -> Any:
    """The outputs in a form that a repair of this kind must leave as it is."""
    return READINGS[kind](outputs) if kind in READINGS and isinstance(outputs, Tensor) else outputs


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy; results that the model merely kept are copied without their graph."""
    kept = (value for part in model.modules() for value in vars(part).values())
    memo: dict[int, Any] = {
        id(value): value.detach().clone()
        for value in kept
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, memo)


@contextmanager
def _random_state_kept(x: Tensor) -> Iterator[None]:
    """Whatever is drawn inside, everyone's random streams go on as if it had not been."""
    plain, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)


# --- what the checks ask of a model ---


def _answers(model: nn.Module, x: Tensor) -> Any:
    """What the model returns at prediction time, without a graph."""
    with torch.no_grad(), eval_mode(model):
        return model(x)


def _mixture(model: nn.Module, x: Tensor) -> Tensor:
    """A fixed random mixture of each example's outputs, with its graph: (B,)."""
    with eval_mode(model):
        outputs: Tensor = model(x)
    return (outputs * noise_like(outputs[0], stream(0, "preflight", "outputs"))).sum(-1)


def _mixed_slope(model: nn.Module, x: Tensor) -> Tensor:
    """A fixed random mixture of the slopes by x of each example's mixture, with its graph: (B,)."""
    x = x if x.requires_grad else x.detach().requires_grad_()
    slope = gradient_of(_mixture(model, x), x, create_graph=True)
    return (slope * noise_like(x[0], stream(0, "preflight", "slopes"))).flatten(1).sum(-1)


def _curvature(case: Case) -> Tensor:
    """Slope by x of the mixed slope, taken by the weights as well, as training would: like x."""
    x = case.probe().requires_grad_()
    mixed = _mixed_slope(case.model, x)
    if not mixed.requires_grad:
        return torch.zeros_like(x)
    by = [x, *(weight for weight in case.model.parameters() if weight.requires_grad)]
    return torch.autograd.grad(mixed.sum(), by, allow_unused=True, materialize_grads=True)[0]


def _error_of(work: Callable[..., object], *given: object) -> Exception | None:
    try:
        work(*given)
    except Exception as error:
        return error
    return None


def _sentence(error: Exception) -> str:
    """The first sentence of an error, with its type: no more than a line."""
    first = (str(error).strip() or "without a message").splitlines()[0].split(". ")[0]
    return f"{type(error).__name__}: {first[:200].rstrip('.')}."


def _overwrote(error: Exception | None) -> bool:
    return re.search("in-?place", str(error)) is not None


def _differ(one: Any, other: Any) -> bool:
    """Whether two answers differ by more than rounding in another order can explain."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    if one.shape != other.shape or not one.is_floating_point() or not one.numel():
        return not torch.equal(one, other)
    allowed = torch.finfo(one.dtype).eps ** 0.5 * one.abs().max()
    return bool((one - other).abs().max() > allowed)


def _where(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> str:
    """Names of the chosen layers, empty if there are none."""
    names = [name for name, part in model.named_modules() if chosen(part)]
    shown = [re.sub(r"_orig_mod\.?", "", name).rstrip(".") for name in names[:NAMES]]
    shown = [name or "the model" for name in shown]
    return ", ".join(shown + [f"{len(names) - NAMES} more"] * (len(names) > NAMES))


# --- inputs and layers ---


def _unfit_inputs(case: Case) -> Finding | None:
    x = case.x
    if x.ndim < 2 or not len(x) or not x.is_floating_point():
        got = f"shape {tuple(x.shape)} of {x.dtype}"
    elif not torch.isfinite(x).all():
        got = "NaN or infinite numbers"
    else:
        return None
    return _finding("unfit inputs", f"x must hold finite floating-point rows, got {got}.", "x")


def _inference_inputs(case: Case) -> Finding | None:
    if not case.x.is_inference():
        return None
    return _finding("inference input", "x was made in torch.inference_mode().", "x")


def _inference_weights(case: Case) -> Finding | None:
    tensors = [*case.given.named_parameters(), *case.given.named_buffers()]
    names = [name for name, tensor in tensors if tensor.is_inference()]
    problem = f"{len(names)} weights or buffers were made in torch.inference_mode()."
    return _finding("inference weights", problem, ", ".join(names[:NAMES])) if names else None


def _is_compiled(part: nn.Module) -> bool:
    return "_orig_mod" in part._modules or getattr(part, "_compiled_call_impl", None) is not None


def _compiled(case: Case) -> Finding | None:
    where = _where(case.given, _is_compiled)
    return _finding("compiled", "Layers run through torch.compile.", where) if where else None


def _scripted(case: Case) -> Finding | None:
    where = _where(case.given, lambda part: isinstance(part, torch.jit.ScriptModule))
    outermost = where.split(",")[0]
    return _finding("scripted", "Layers are ScriptModules.", outermost) if where else None


def _writes(part: nn.Module) -> bool:
    script = isinstance(part, torch.jit.ScriptModule)
    return not script and getattr(part, "inplace", False) is True


def _in_place(case: Case) -> Finding | None:
    if not (where := _where(case.given, _writes)):
        return None
    severity: Severity = "error" if _overwrote(_error_of(_curvature, case)) else "warning"
    problem = "Layers write their results over their inputs (inplace=True)."
    return _finding("in-place activation", problem, where, severity)


def _recurrent(case: Case) -> Finding | None:
    where = _where(case.given, lambda part: isinstance(part, nn.RNNBase))
    if not where or not case.x.is_cuda:
        return None
    return _finding("recurrent on CUDA", "cuDNN runs the recurrent layers.", where)


# --- answers ---


def _answering(case: Case) -> Finding | None:
    x, weights = case.probe(), [*case.model.parameters(), *case.model.buffers()]
    dtypes = {each.dtype for each in weights if each.is_floating_point() or each.is_complex()}
    error = _error_of(_answers, case.model, x)
    if error is None:
        short = sorted(str(d) for d in dtypes | {x.dtype} if torch.finfo(d).eps > 1e-6)
        problem = f"The model computes in {' and '.join(short)}."
        return _finding("half precision", problem, "weights") if short else None
    if devices := {str(each.device) for each in weights} - {str(x.device)}:
        problem = f"x is on {x.device}, but weights are on {' and '.join(sorted(devices))}."
        return _finding("mismatch", problem, "weights")
    if others := dtypes - {x.dtype}:
        widens = all(torch.promote_types(d, x.dtype) == x.dtype for d in others)
        problem = f"x is {x.dtype}, but weights are {' and '.join(sorted(map(str, others)))}."
        return _finding("narrow weights" if widens else "mismatch", problem, "weights")
    raise error


def _overwritten(case: Case) -> Finding | None:
    x = case.probe()
    before, version = x.clone(), x._version
    _answers(case.model, x)
    if x._version == version and torch.equal(x, before):
        return None
    return _finding("overwritten input", "The model writes into the x it is given.", "x")


def _shape(case: Case) -> Finding | None:
    x = case.probe()
    outputs = _answers(case.model, x)
    if not isinstance(outputs, Tensor):
        return _finding("wrong outputs", f"The model returns a {type(outputs).__name__}.")
    if not outputs.is_floating_point():
        return _finding("no slope", f"The outputs are {outputs.dtype}, not real numbers.")
    got = f"for {len(x)} examples the outputs have shape {tuple(outputs.shape)}."
    if outputs.numel() == len(x) and outputs.shape in ((len(x), 1), (len(x),), ()):
        if _are_probabilities(case):
            return _finding("single probability", f"One probability for two classes: {got}")
        return _finding("single output", f"One logit for two classes: {got}")
    if outputs.ndim != 2 or len(outputs) != len(x) or outputs.shape[1] < 2:
        return _finding("wrong outputs", f"Not one row of two or more logits for each: {got}")
    return None


def _finite(case: Case) -> Finding | None:
    outputs = _answers(case.model, case.probe())
    if not isinstance(outputs, Tensor) or torch.isfinite(outputs).all():
        return None
    return _finding("not finite", "Some outputs are NaN or infinite.")


def _training(case: Case) -> Finding | None:
    x = case.probe()
    training = [part for part in case.given.modules() if part.training]
    if not training:
        return None
    try:
        with torch.no_grad():
            same = not _differ(_answers(case.model, x), case.model(x))
    except Exception:
        same = False
    if same:
        return None
    known = [part for part in training if isinstance(part, (*VARYING, nn.RNNBase))]
    own = [part for part in training if not type(part).__module__.startswith("torch.")]
    where = _where(case.given, lambda part: part in (known or own or training))
    problem = "Layers are in training mode, in which the model answers otherwise."
    return _finding("training mode", problem, where)


def _repeated(case: Case) -> Finding | None:
    x = case.probe()
    if not _differ(_answers(case.model, x), _answers(case.model, x)):
        return None
    return _finding("random outputs", "At prediction time two calls with one x answer differently.")


def _company(case: Case) -> Finding | None:
    x = case.probe()
    x = x if len(x) > 1 else torch.cat([x, -x])
    together = _answers(case.model, x)
    for i in range(min(len(x), 3)):
        try:
            if not _differ(together[i : i + 1], _answers(case.model, x[i : i + 1])):
                continue
            problem = f"At prediction time example {i} is answered otherwise alone than in a batch."
        except Exception as error:
            problem = f"At prediction time an example alone raises {_sentence(error)}"
        return _finding("mixed examples", problem)
    return None


class _Watched(TorchDispatchMode):
    """What a model does while it answers: what it draws, and what it multiplies with weights."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = False
        self.asked: dict[int, list[Tensor]] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.draws |= torch.Tag.nondeterministic_seeded in operation.tags
        place = PRODUCTS.get(operation._overloadpacket)
        if place is not None:
            rows, weight = args[place], args[place + 1]
            # The same weights, whatever view of them is taken.
            self.asked.setdefault(weight.untyped_storage().data_ptr(), []).append(rows)
        return operation(*args, **(kwargs or {}))


# Where in the arguments of a product its rows stand, before its weights.
PRODUCTS = {torch.ops.aten.addmm: 1, torch.ops.aten.mm: 0, torch.ops.aten.convolution: 0}


def _watched(model: nn.Module, x: Tensor) -> _Watched:
    seen = _Watched()
    with seen:
        _answers(model, x)
    return seen


def _fixed_noise(case: Case) -> Finding | None:
    x = case.probe()
    if _differ(_answers(case.model, x), _answers(case.model, x)):
        return None
    moved = x + (1 + x.abs()) * noise_like(x, stream(0, "preflight", "shifts")) / 10
    here, there = (_watched(case.model, at) for at in (x, moved))
    if here.draws:
        problem = "At prediction time the model draws random numbers, the same in every call."
        return _finding("fixed noise", problem)
    for weight, rows in here.asked.items():
        count = _shifts(rows, there.asked.get(weight, []), len(x))
        if count > 1:
            problem = f"The same weights are asked at {count} fixed shifts of x."
            return _finding("fixed noise", problem)
    return None


def _shifts(here: Sequence[Tensor], there: Sequence[Tensor], examples: int) -> int:
    """In how many copies, fixed distances apart, weights are given each example; 1 if in one."""
    if [each.shape for each in here] != [each.shape for each in there]:
        return 1
    sizes = {each.shape[1:] for each in here}
    if len(sizes) != 1 or any(len(each) % examples for each in here):
        return 1
    for interleaved in (False, True):
        before, after = (_copies(each, examples, interleaved) for each in (here, there))
        change = after - before
        apart = before - before[:1]
        if len(before) > 1 and change.any() and not _differ(change, change[:1].expand_as(change)):
            scale = before.abs().max() * torch.finfo(before.dtype).eps ** 0.5
            distinct = [place for place in apart if place.abs().max() > scale]
            return 1 + len(distinct)
    return 1


def _copies(rows: Sequence[Tensor], examples: int, interleaved: bool) -> Tensor:
    """Rows (S x B, ...) of all calls, or (B x S, ...) if interleaved, copy by copy: (S, B, n)."""
    parts = [
        each.flatten(1).unflatten(0, (examples, -1)).transpose(0, 1)
        if interleaved
        else each.flatten(1).unflatten(0, (-1, examples))
        for each in rows
    ]
    return torch.cat(parts)


# --- slopes ---


def _underivable(error: Exception, what: str) -> Finding:
    kind = "in-place operation" if _overwrote(error) else "not differentiable"
    return _finding(kind, f"{what} raises {_sentence(error)}")


def _sloping(case: Case) -> Finding | None:
    try:
        slope = _slopes(case.model, case.probe())
    except Exception as error:
        return _underivable(error, "The slope by x")
    if not slope.any():
        return _finding("no slope", "The slope by x is missing, or zero for every example.")
    if not torch.isfinite(slope).all():
        return _finding("not finite", "The outputs are finite, but not their slopes.")
    return None


def _sloping_twice(case: Case) -> Finding | None:
    error = _error_of(_curvature, case)
    return _underivable(error, "The slope of a slope") if error else None


def _truthful(case: Case) -> Finding | None:
    x = case.probe().double()
    for what, field in [("slope", _mixture), ("slope of the slope", _mixed_slope)]:
        try:
            false = _false_share(partial(field, case.model.double()), x)
        except Exception:  # what has no float64 form cannot be compared
            return None
        if false > 0.5:  # kinks lie in the way of some examples, not of most
            problem = f"The {what} that torch computes is not that of the outputs."
            return _finding("false slope", problem)
    return None


def _slopes(model: nn.Module, x: Tensor) -> Tensor:
    """The slope by x of each example's mixture: like x."""
    at = x.detach().requires_grad_()
    return gradient_of(_mixture(model, at), at, create_graph=False)


def _adding_up(case: Case) -> Finding | None:
    """Whether slopes along a way add up to the change of the outputs, as they do but for jumps.

    A sawtooth, however small, has whatever slope one likes almost everywhere, and jumps back.
    """
    x = case.probe()[:ALONG].double()
    points = min(max(NUMBERS_ALONG // x.numel(), 16), 64)
    direction = noise_like(x, stream(0, "preflight", "way")) * (1 + x.abs()) / 4
    drawn = torch.rand(points, len(x), generator=stream(0, "preflight", "places"))
    # A place at random in each of equal parts: no period of a model's own can meet them all.
    t = (torch.arange(points)[:, None] + drawn).to(x) / points
    try:
        model = case.model.double()
        places = x + t.view(points, -1, *(1,) * (x.ndim - 1)) * direction
        parts = places.flatten(0, 1).split(PROBES)
        slopes = torch.cat([_slopes(model, part) for part in parts]).view_as(places)
        said = (slopes * direction).flatten(2).sum(-1)
        seen = (_mixture(model, x + direction) - _mixture(model, x)).detach()
    except Exception:  # what has no float64 form, or not these inputs, cannot be compared
        return None
    # As much as a mean over random places scatters is no sign of anything.
    allowed = said.abs().mean(0) / 4 + 4 * said.std(0) / points**0.5
    if not ((said.mean(0) - seen).abs() > allowed).double().mean() > 0.5:
        return None
    problem = "The slopes that torch computes do not add up to how the outputs change: they jump."
    return _finding("false slope", problem)


def _false_share(field: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Share of examples that do not change along a direction as the slope says, at any step.

    Where the field has a kink just at an example, as every pooling layer has on a ground all of one
    shade, no slope says what both sides do: such an example is judged a little beside itself.
    """
    false, kinked = _false_and_kinked(field, x)
    if kinked.any():
        aside = noise_like(x, stream(0, "preflight", "beside")) * (1 + x.abs())
        false = torch.where(kinked, _false_and_kinked(field, x + 1e-4 * aside)[0], false)
    return false.double().mean().item()


def _false_and_kinked(field: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the slope of each example is false, and whether its two sides differ: (B,) each."""
    direction = noise_like(x, stream(0, "preflight", "direction")) * (1 + x.abs())
    at = x.clone().requires_grad_()
    values = field(at)
    said = (gradient_of(values, at, create_graph=False) * direction).flatten(1).sum(-1)
    values = values.detach()
    false, kinked = torch.ones_like(said, dtype=torch.bool), torch.ones_like(said, dtype=torch.bool)
    # A short step misses most kinks, a long one the rounding of models that use float32 inside.
    for step in (1e-10, 1e-7, 1e-3):
        after = (field(x + step * direction).detach() - values) / step
        before = (values - field(x - step * direction).detach()) / step
        seen = (after + before) / 2
        allowed = 1e-3 * (said.abs() + seen.abs() + values.abs())
        false &= (said - seen).abs() > allowed
        kinked &= (after - before).abs() > allowed
    return false, kinked


def _curved(case: Case) -> Finding | None:
    if not piecewise_linear(case.model) and _curvature(case).any():
        return None
    x = case.probe()
    here = _mixed_slope(case.model, x).detach()

    def bends(at: Tensor) -> bool:
        try:
            return _differ(here[:1].expand_as(here), _mixed_slope(case.model, at).detach())
        except Exception:  # the data may not be scaled
            return False

    if not any(map(bends, (x, -x, 10 * x))):
        return None  # linear throughout: there is nothing to be blind to
    where = _where(case.given, lambda part: isinstance(part, nn.ReLU | nn.LeakyReLU))
    problem = "The logits are piecewise linear in x: their slope changes at kinks only."
    return _finding("no curvature", problem, where or "outputs")


# --- explanations ---


def _are_probabilities(case: Case) -> bool:
    """Whether outputs lie in 0..1, in rows that sum to 1, also far from the data."""
    x, judged = case.probe(), 0
    if _last_operation(case.model, x).startswith(("Addmm", "Mm")):
        return False
    for scale in (1, -1, 10, -10):  # logits of an untrained model may lie in 0..1 by chance
        try:
            outputs = _answers(case.model, scale * x).reshape(len(x), -1)
        except Exception:  # the data may not be scaled
            continue
        p = outputs[torch.isfinite(outputs).all(-1)]
        sums = p.sum(-1)
        if not ((p >= 0) & (p <= 1)).all():
            return False
        if p.shape[1] > 1 and _differ(sums, torch.ones_like(sums)):
            return False
        judged += len(p)
    return judged > 0


def _last_operation(model: nn.Module, x: Tensor) -> str:
    """The name torch gives to what computed the outputs, before it was reshaped; "" if unknown."""
    try:
        with eval_mode(model):
            node = model(x.requires_grad_()).grad_fn
    except Exception:
        return ""
    while node is not None and re.match(RESHAPING, node.name()):
        node = node.next_functions[0][0]
    return "" if node is None else str(node.name())


def _probabilities(case: Case) -> Finding | None:
    outputs = _answers(case.model, case.probe())
    if ((outputs == 0) | (outputs == 1)).all() or not _are_probabilities(case):
        return None
    return _finding("probabilities", "The outputs lie in 0..1 and sum to 1: they are no logits.")


def _tied(case: Case) -> Finding | None:
    x = case.probe()
    with torch.no_grad():
        saliency = gradient(case.model, x, predicted(case.model, x))
    if case.k is not None:
        tied = ties(saliency, case.k)
        what = f"explanations have a tie at place k = {case.k}"
    else:
        ranked = saliency.sort(dim=-1).values
        tied = (ranked[:, :-1] == ranked[:, 1:]) | (ranked[:, :-1] == 0)
        what = "saliencies are zero or equal the next one of their example"
    share = tied.double().mean().item()
    return _finding("ties", f"{share:.0%} of {what}.", "explanations") if share > TIED else None


# --- cures, of copies ---


class Wrapped(nn.Module):
    """A model between two functions: after(model(before(x)))."""

    def __init__(
        self,
        model: nn.Module,
        *,
        before: Callable[[Tensor], Tensor] | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: Tensor) -> Tensor:
        """What comes out: like the model's answer, or as `after` makes it."""
        answer: Tensor = self.model(x if self.before is None else self.before(x))
        return answer if self.after is None else self.after(answer)


def log_probabilities(p: Tensor) -> Tensor:
    """Logits log p of all classes, or of the two of which p, (B,) or (B, 1), is the second: (B, C).

    Their softmax is p. A single p that rounds to 1 has no log-odds left, and no slope.
    """
    if p.ndim < 2 or p.shape[1] == 1:
        p = torch.stack([1 - p.reshape(-1), p.reshape(-1)], dim=-1)
    p = p.clamp_min(torch.finfo(p.dtype).tiny)
    # The same value and slopes as log p, without a 1 / p^2 that overflows in the second.
    return (p / p.detach()).log() + p.detach().log()


def _with_log_odds(model: nn.Module, x: Tensor) -> nn.Module:
    hooked = any(part._forward_hooks for part in model.modules())
    if type(model) is nn.Sequential and type(model[-1]) is nn.Sigmoid and not hooked:
        model[-1] = nn.Identity()  # before the sigmoid nothing was rounded to 1
        return Wrapped(model, after=two_logits)
    return Wrapped(model, after=log_probabilities)


def _out_of_place(model: nn.Module, x: Tensor) -> nn.Module:
    part: Any
    for part in filter(_writes, model.modules()):
        part.inplace = False
    return model


def _uncompiled(model: nn.Module, x: Tensor) -> nn.Module:
    while "_orig_mod" in model._modules:
        model = model.get_submodule("_orig_mod")
    for part in list(model.modules()):
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None
        for name, child in list(part._modules.items()):
            if child is not None and "_orig_mod" in child._modules:
                part._modules[name] = _uncompiled(child, x)
    return model


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a kind of finding does to explanations, what to do, and how `repair` does it."""

    effect: str
    cure: str
    severity: Severity = "error"
    repair: Callable[[nn.Module, Tensor], nn.Module] | None = None


KINDS: dict[str, Kind] = {
    "model raises": Kind(
        effect="Nothing can be explained, or judged further.",
        cure="Make it work on this x, on one row of it, and on a deep copy of the model.",
    ),
    "unfit inputs": Kind(
        effect="A score has no slope by such inputs.",
        cure="Give one row of real numbers for each example; of tokens, explain the embeddings.",
    ),
    "inference input": Kind(
        effect="Torch refuses to differentiate by it.",
        cure="Pass x.clone(), made outside of inference mode.",
    ),
    "inference weights": Kind(
        effect="Torch refuses to differentiate what they compute.",
        cure="Put clones, made outside of inference mode, in their place.",
        repair=lambda model, x: model,  # every copy is made of such clones
    ),
    "compiled": Kind(
        effect="Compiled code has no second derivative: training and attacking explanations "
        "raises.",
        cure="Use the module that was compiled, `_orig_mod`.",
        repair=_uncompiled,
    ),
    "scripted": Kind(
        effect="Its layers can be neither read nor exchanged, and what tracing fixed stays so.",
        cure="Use the module that was scripted or traced.",
        severity="warning",
    ),
    "in-place activation": Kind(
        effect="Differentiating raises where a derivative needs what they overwrite.",
        cure="Set inplace=False.",
        repair=_out_of_place,
    ),
    "recurrent on CUDA": Kind(
        effect="cuDNN has no second derivatives: training and attacking explanations raises.",
        cure="Call everything inside torch.backends.cudnn.flags(enabled=False).",
        severity="warning",
    ),
    "half precision": Kind(
        effect="Two or three digits are left of a saliency: features tie, and small steps of an "
        "attack are rounded away.",
        cure="Explain in float32 or float64, the model and x alike.",
        severity="warning",
    ),
    "narrow weights": Kind(
        effect="The model cannot be called.",
        cure="Convert the weights to the dtype of x, which loses no digit.",
        repair=lambda model, x: model.to(x.dtype),
    ),
    "mismatch": Kind(
        effect="The model cannot be called.",
        cure="Bring the model and x to one device and one dtype, a real one, the wider of the two.",
    ),
    "overwritten input": Kind(
        effect="Differentiating by x raises, and without it the caller's data change.",
        cure="Give the model a clone of x.",
        repair=lambda model, x: Wrapped(model, before=torch.clone),
    ),
    "wrong outputs": Kind(
        effect="There is no class whose score could be explained.",
        cure="Wrap the model in an nn.Module that returns nothing but its logits, (B, C), C >= 2.",
    ),
    "single output": Kind(
        effect="It is read as the log-odds of the second of two classes.",
        cure="Return two logits, [-z / 2, z / 2], if other programs are to read it so.",
        severity="warning",
        repair=lambda model, x: Wrapped(model, after=two_logits),
    ),
    "single probability": Kind(
        effect="Read as log-odds, as a single output is, it would never predict class 0.",
        cure="Return the log-odds from before the sigmoid, or [log(1 - p), log p].",
        repair=_with_log_odds,
    ),
    "not finite": Kind(
        effect="Explanations would not be finite either, or mean nothing.",
        cure="Check weights and the scale of x, mask classes by large numbers instead of inf, and "
        "keep roots, norms and logarithms away from zero.",
    ),
    "training mode": Kind(
        effect="Batch statistics mix the examples of a batch and dropout draws at random, so that "
        "a slope explains nobody; explainers of this package switch to prediction mode.",
        cure="Call model.eval().",
        severity="warning",
        repair=lambda model, x: model.eval(),
    ),
    "random outputs": Kind(
        effect="So do two explanations, without any attack.",
        cure="Draw only in training mode, as in F.dropout(x, p, self.training).",
    ),
    "fixed noise": Kind(
        effect="Explanations are those of an average over noise, steadier than those of the "
        "network inside it: the noise, which is known, is what keeps them still.",
        cure="Explain the network without the noise, or call stable what is deployed: the average.",
        severity="warning",
    ),
    "mixed examples": Kind(
        effect="A slope explains the batch, and changes with the company an example is in.",
        cure="Normalise by fixed statistics (track_running_stats=True), and fix no batch size.",
    ),
    "no slope": Kind(
        effect="Every score of every explanation would be zero.",
        cure="Return what came before the argmax, round, detach, no_grad or numpy that cut it off, "
        "or scale x if units saturate.",
    ),
    "in-place operation": Kind(
        effect="A value that the derivative needs was overwritten.",
        cure="Write out of place what ends in _ (relu_, add_), +=, and assignments to parts.",
    ),
    "not differentiable": Kind(
        effect="Explanations cannot be computed, or cannot be trained and attacked.",
        cure="Replace that operation by one that torch differentiates twice.",
    ),
    "false slope": Kind(
        effect="Explanations, or attacks and training on them, miss a part of what the model does.",
        cure="Find the part that is hidden: by detach, by no_grad, by rounding with a borrowed "
        "slope, by a backward of one's own, by jumps.",
    ),
    "no curvature": Kind(
        effect="The derivative of a logit's explanation is exactly zero: attacks by gradients on "
        "it and exact curvature penalties do nothing, and of a probability of two classes they "
        "reach the scale but not the ranking.",
        cure="Use repair(model, x, smooth=rho), which rounds layers of nn.ReLU and nn.LeakyReLU; "
        "make other kinks such layers first.",
        severity="warning",
    ),
    "probabilities": Kind(
        effect="Their softmax q, never above e / (e + C - 1), is explained: for C = 2 a gradient "
        "is 2 q (1 - q) times that of p, in the same ranking, but averages over places "
        "(SmoothGrad, Integrated Gradients) and curvature are others, and for C > 2 so is the "
        "ranking, unless the other classes are equally likely.",
        cure="Return logits from before the softmax, or log p, which are logits too.",
        repair=lambda model, x: Wrapped(model, after=log_probabilities),
    ),
    "ties": Kind(
        effect="Features are then shown by their numbers, not by what the model does.",
        cure="Use float64 or scale x if units saturate; leave out what the model ignores.",
        severity="warning",
    ),
}

# Each stage needs what the stages before it ask for; within one, what is found is repaired for the
# next check.
Check = Callable[[Case], Finding | None]
STAGES: tuple[tuple[Check, ...], ...] = (
    (_unfit_inputs,),
    (_compiled, _scripted, _inference_weights, _in_place, _recurrent),
    (_answering,),
    (_overwritten, _shape, _finite),
    (_probabilities, _repeated, _fixed_noise),
    (_training, _company),
    (_sloping,),
    (_sloping_twice,),
    (_truthful,),
    (_adding_up,),
    (_curved, _tied, _inference_inputs),
)
