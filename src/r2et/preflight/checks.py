"""What a model is asked before it is explained: one check for each thing that may be wrong."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from r2et.core.autograd import VARYING, eval_mode, gradient_of, piecewise_linear
from r2et.core.ranking import ties
from r2et.core.rng import noise_like, stream
from r2et.explainers import gradient, predicted
from r2et.preflight.kinds import Finding, Severity, finding, writes

PROBES = 16  # examples that are looked at
TIED = 0.05  # share of tied scores that is no longer a coincidence
ALONG, NUMBERS_ALONG = 4, 2**20  # examples whose slopes are added up, and numbers at once
NAMES = 4  # layers that a finding names
RESHAPING = "Alias|Clone|Reshape|Select|Slice|Squeeze|UnsafeView|View"  # as torch names them


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


# --- what the checks ask of a model ---


def answers(model: nn.Module, x: Tensor) -> Any:
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


def sentence(error: Exception) -> str:
    """The first sentence of an error, with its type: no more than a line."""
    first = (str(error).strip() or "without a message").splitlines()[0].split(". ")[0]
    return f"{type(error).__name__}: {first[:200].rstrip('.')}."


def _overwrote(error: Exception | None) -> bool:
    return re.search("in-?place", str(error)) is not None


def differ(one: Any, other: Any) -> bool:
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
    return finding("unfit inputs", f"x must hold finite floating-point rows, got {got}.", "x")


def _inference_inputs(case: Case) -> Finding | None:
    if not case.x.is_inference():
        return None
    return finding("inference input", "x was made in torch.inference_mode().", "x")


def _inference_weights(case: Case) -> Finding | None:
    tensors = [*case.given.named_parameters(), *case.given.named_buffers()]
    names = [name for name, tensor in tensors if tensor.is_inference()]
    problem = f"{len(names)} weights or buffers were made in torch.inference_mode()."
    return finding("inference weights", problem, ", ".join(names[:NAMES])) if names else None


def _is_compiled(part: nn.Module) -> bool:
    return "_orig_mod" in part._modules or getattr(part, "_compiled_call_impl", None) is not None


def _compiled(case: Case) -> Finding | None:
    where = _where(case.given, _is_compiled)
    return finding("compiled", "Layers run through torch.compile.", where) if where else None


def _scripted(case: Case) -> Finding | None:
    where = _where(case.given, lambda part: isinstance(part, torch.jit.ScriptModule))
    outermost = where.split(",")[0]
    return finding("scripted", "Layers are ScriptModules.", outermost) if where else None


def _in_place(case: Case) -> Finding | None:
    if not (where := _where(case.given, writes)):
        return None
    severity: Severity = "error" if _overwrote(_error_of(_curvature, case)) else "warning"
    problem = "Layers write their results over their inputs (inplace=True)."
    return finding("in-place activation", problem, where, severity)


def _recurrent(case: Case) -> Finding | None:
    where = _where(case.given, lambda part: isinstance(part, nn.RNNBase))
    if not where or not case.x.is_cuda:
        return None
    return finding("recurrent on CUDA", "cuDNN runs the recurrent layers.", where)


# --- answers ---


def _answering(case: Case) -> Finding | None:
    x, weights = case.probe(), [*case.model.parameters(), *case.model.buffers()]
    dtypes = {each.dtype for each in weights if each.is_floating_point() or each.is_complex()}
    error = _error_of(answers, case.model, x)
    if error is None:
        short = sorted(str(d) for d in dtypes | {x.dtype} if torch.finfo(d).eps > 1e-6)
        problem = f"The model computes in {' and '.join(short)}."
        return finding("half precision", problem, "weights") if short else None
    if devices := {str(each.device) for each in weights} - {str(x.device)}:
        problem = f"x is on {x.device}, but weights are on {' and '.join(sorted(devices))}."
        return finding("mismatch", problem, "weights")
    if others := dtypes - {x.dtype}:
        widens = all(torch.promote_types(d, x.dtype) == x.dtype for d in others)
        problem = f"x is {x.dtype}, but weights are {' and '.join(sorted(map(str, others)))}."
        return finding("narrow weights" if widens else "mismatch", problem, "weights")
    raise error


def _overwritten(case: Case) -> Finding | None:
    x = case.probe()
    before, version = x.clone(), x._version
    answers(case.model, x)
    if x._version == version and torch.equal(x, before):
        return None
    return finding("overwritten input", "The model writes into the x it is given.", "x")


def _shape(case: Case) -> Finding | None:
    x = case.probe()
    outputs = answers(case.model, x)
    if not isinstance(outputs, Tensor):
        return finding("wrong outputs", f"The model returns a {type(outputs).__name__}.")
    if not outputs.is_floating_point():
        return finding("no gradient", f"The outputs are {outputs.dtype}, not real numbers.")
    got = f"for {len(x)} examples the outputs have shape {tuple(outputs.shape)}."
    if outputs.numel() == len(x) and outputs.shape in ((len(x), 1), (len(x),), ()):
        if _are_probabilities(case):
            return finding("single probability", f"One probability for two classes: {got}")
        return finding("single output", f"One logit for two classes: {got}")
    if outputs.ndim != 2 or len(outputs) != len(x) or outputs.shape[1] < 2:
        return finding("wrong outputs", f"Not one row of two or more logits for each: {got}")
    return None


def _finite(case: Case) -> Finding | None:
    outputs = answers(case.model, case.probe())
    if not isinstance(outputs, Tensor) or torch.isfinite(outputs).all():
        return None
    return finding("not finite", "Some outputs are NaN or infinite.")


def _training(case: Case) -> Finding | None:
    x = case.probe()
    training = [part for part in case.given.modules() if part.training]
    if not training:
        return None
    try:
        with torch.no_grad():
            same = not differ(answers(case.model, x), case.model(x))
    except Exception:
        same = False
    if same:
        return None
    known = [part for part in training if isinstance(part, (*VARYING, nn.RNNBase))]
    own = [part for part in training if not type(part).__module__.startswith("torch.")]
    where = _where(case.given, lambda part: part in (known or own or training))
    problem = "Layers are in training mode, in which the model answers otherwise."
    return finding("training mode", problem, where)


def _repeated(case: Case) -> Finding | None:
    x = case.probe()
    if not differ(answers(case.model, x), answers(case.model, x)):
        return None
    return finding("random outputs", "At prediction time two calls with one x answer differently.")


def _company(case: Case) -> Finding | None:
    x = case.probe()
    x = x if len(x) > 1 else torch.cat([x, -x])
    together = answers(case.model, x)
    for i in range(min(len(x), 3)):
        try:
            if not differ(together[i : i + 1], answers(case.model, x[i : i + 1])):
                continue
            problem = f"At prediction time example {i} is answered otherwise alone than in a batch."
        except Exception as error:
            problem = f"At prediction time an example alone raises {sentence(error)}"
        return finding("mixed examples", problem)
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
        answers(model, x)
    return seen


def _fixed_noise(case: Case) -> Finding | None:
    x = case.probe()
    if differ(answers(case.model, x), answers(case.model, x)):
        return None
    moved = x + (1 + x.abs()) * noise_like(x, stream(0, "preflight", "shifts")) / 10
    here, there = (_watched(case.model, at) for at in (x, moved))
    if here.draws:
        problem = "At prediction time the model draws random numbers, the same in every call."
        return finding("fixed noise", problem)
    for weight, rows in here.asked.items():
        count = _shifts(rows, there.asked.get(weight, []), len(x))
        if count > 1:
            problem = f"The same weights are asked at {count} fixed shifts of x."
            return finding("fixed noise", problem)
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
        if len(before) > 1 and change.any() and not differ(change, change[:1].expand_as(change)):
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
    return finding(kind, f"{what} raises {sentence(error)}")


def _sloping(case: Case) -> Finding | None:
    try:
        slope = _slopes(case.model, case.probe())
    except Exception as error:
        return _underivable(error, "The gradient by x")
    if not slope.any():
        return finding("no gradient", "The gradient by x is missing, or zero for every example.")
    if not torch.isfinite(slope).all():
        return finding("not finite", "The outputs are finite, but not their gradients.")
    return None


def _sloping_twice(case: Case) -> Finding | None:
    error = _error_of(_curvature, case)
    return _underivable(error, "The gradient of a gradient") if error else None


def _truthful(case: Case) -> Finding | None:
    x = case.probe().double()
    for what, field in [("gradient", _mixture), ("gradient of the gradient", _mixed_slope)]:
        try:
            false = _false_share(partial(field, case.model.double()), x)
        except Exception:  # what has no float64 form cannot be compared
            return None
        if false > 0.5:  # kinks lie in the way of some examples, not of most
            problem = f"The {what} that torch computes is not that of the outputs."
            return finding("false gradient", problem)
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
    return finding(
        "false gradient",
        "The gradients that torch computes do not add up to how the outputs change: they jump.",
    )


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
            return differ(here[:1].expand_as(here), _mixed_slope(case.model, at).detach())
        except Exception:  # the data may not be scaled
            return False

    if not any(map(bends, (x, -x, 10 * x))):
        return None  # linear throughout: there is nothing to be blind to
    where = _where(case.given, lambda part: isinstance(part, nn.ReLU | nn.LeakyReLU))
    problem = "The logits are piecewise linear in x: their gradient changes at kinks only."
    return finding("no curvature", problem, where or "outputs")


# --- explanations ---


def _are_probabilities(case: Case) -> bool:
    """Whether outputs lie in 0..1, in rows that sum to 1, also far from the data."""
    x, judged = case.probe(), 0
    if _last_operation(case.model, x).startswith(("Addmm", "Mm")):
        return False
    for scale in (1, -1, 10, -10):  # logits of an untrained model may lie in 0..1 by chance
        try:
            outputs = answers(case.model, scale * x).reshape(len(x), -1)
        except Exception:  # the data may not be scaled
            continue
        p = outputs[torch.isfinite(outputs).all(-1)]
        sums = p.sum(-1)
        if not ((p >= 0) & (p <= 1)).all():
            return False
        if p.shape[1] > 1 and differ(sums, torch.ones_like(sums)):
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
    outputs = answers(case.model, case.probe())
    if ((outputs == 0) | (outputs == 1)).all() or not _are_probabilities(case):
        return None
    return finding("probabilities", "The outputs lie in 0..1 and sum to 1: they are no logits.")


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
    return finding("ties", f"{share:.0%} of {what}.", "explanations") if share > TIED else None


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
