"""A model with its recorded program, and the proof by trial that both are the same function.

Before anything is proved, and again inside of what was proved, logits and slopes by the rules of
bounds are compared with those of the caller's own model through ordinary autograd.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from r2et.certification.affine import AffineForm, Norm, Region
from r2et.certification.backwards import back
from r2et.certification.layers import propagate
from r2et.certification.program import Program
from r2et.certification.recording import program_of
from r2et.core.autograd import eval_mode, gradient_of
from r2et.core.exact import exact_copy
from r2et.core.naming import briefly
from r2et.explainers import check_inputs, class_logits
from r2et.perturbations import NormBall

POINTS = 64
"""Places around the inputs at which program and model are compared."""

EQUAL, NEAR, ROUNDED = 1e-9, 1e-7, 10.0
"""Shares of the largest number: equal in float64; how far a kink may be; equal but for rounding, as
a multiple of the root of what one operation rounds."""

LENGTHS = (0.01, 0.1, 1.0)
ALONE = 4
AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class RecordedModel:
    """A model as it was `given`, an `exact` copy of it in float64, and the program this runs.

    `dtype` is that of the inputs the model is given where it is used.
    """

    given: nn.Module
    exact: nn.Module
    program: Program
    dtype: torch.dtype


def check_call(model: nn.Module, x: Tensor, y: Tensor | None) -> None:
    """Refuse inputs and labels that are none, and a model that fails on them."""
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor) or not len(x):
        got = f"{type(model).__name__} and {tuple(getattr(x, 'shape', ())) or type(x).__name__}"
        raise ValueError(
            f"certificates are of a torch.nn.Module at one row of x or more, got {got}."
        )
    try:
        with torch.no_grad(), eval_mode(model):
            model(x[:1])
    except Exception as problem:  # a model's own code may raise anything
        raise ValueError(
            f"{type(model).__name__} fails on a row of x ({briefly(problem)}): give "
            "inputs of the shape and type it predicts on."
        ) from problem
    check_inputs(model, x, y)


def check_fits(perturbation: NormBall, x: Tensor) -> None:
    """Refuse a set whose scale or free features are not those of inputs like x."""
    for name in ("scale", "free"):
        given = getattr(perturbation, name)
        if given is not None and given.shape != x.shape[1:]:
            raise ValueError(
                f"the {name} of a perturbation must hold one entry for each feature, shape "
                f"{tuple(x.shape[1:])}, got {tuple(given.shape)}."
            )


def record(model: nn.Module, x: Tensor, exact: nn.Module | None = None) -> RecordedModel:
    """The model with the program it runs at inputs like x, (B, ...), after both were compared.

    `exact` is its copy in float64 where one was made before (`r2et.core.exact`).
    Refused with ValueError, in one sentence: what draws at random, depends on other rows or on how
    many there are, keeps something from call to call, or explains itself by anything but the slope
    of what it computes. Bounds are not asked for here: an operation without one is refused by
    `certify`.
    """
    exact = exact_copy(model) if exact is None else exact
    here = x.detach().double()
    before = _state(exact), _state(model)
    with torch.inference_mode(False):
        _call(exact, here[:1])
        program = program_of(exact, here)
    found = RecordedModel(model, exact, program, x.dtype)
    _check_alone(found, here)
    around = [_around(here, length, seed) for seed, length in enumerate(LENGTHS)]
    places = torch.cat([here[:POINTS], *around])
    replay(found, places)
    _check_precision(found, places)
    after = _state(exact), _state(model)
    if (changed := _changed(before[0], after[0]) or _changed(before[1], after[1])) is not None:
        raise ValueError(
            f"calls change the model ({changed} was another after them), so that no two need give "
            "the same: keep nothing from call to call."
        )
    return found


def _call(model: nn.Module, x: Tensor) -> Tensor:
    """What the model returns, whatever it raises told in one sentence."""
    try:
        found = class_logits(model(x))
    except Exception as problem:
        raise ValueError(
            f"{type(model).__name__} fails on {len(x)} rows in float64, in which certificates are "
            f"computed ({briefly(problem)}): take casts to other types and "
            "assumptions about the number of rows out of it."
        ) from problem
    return found


def logits_and_gradients(model: nn.Module, x: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and the slope of signal'logits by x, through ordinary autograd."""
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model):
        leaf = x.detach().clone().requires_grad_()
        logits = _call(model, leaf)
        gradient = gradient_of((logits * signal).sum(-1), leaf, create_graph=False)
    if not (torch.isfinite(logits).all() and torch.isfinite(gradient).all()):
        raise ValueError(
            "the model has logits or gradients that are NaN or infinite near the inputs: no bound "
            "holds for them."
        )
    return logits.detach(), gradient


def replay(recorded: RecordedModel, places: Tensor) -> None:
    """Refuse where the rules of bounds and the model differ at one of the places, (N, ...)."""
    for part in _parts(places):
        _replay(recorded, part)


def _replay(recorded: RecordedModel, places: Tensor) -> None:
    signal = _mixture(len(places), recorded, places)
    logits, gradient = logits_and_gradients(recorded.exact, places, signal)
    with torch.no_grad():
        silent = _call(recorded.exact, places)
    if silent.shape != logits.shape or bool(_outside(logits, logits, silent).any()):
        raise ValueError(
            "the model predicts something else without gradients than with them, so that "
            "explanations are not of its predictions: let it not ask whether they are on."
        )
    apart = _apart(recorded.program, places, signal, logits, gradient, 0.0)
    rows = apart.nonzero().squeeze(-1)
    if len(rows):
        # At a kink, and nowhere else, two ways of rounding may find different slopes.
        near = _apart(
            recorded.program, places[rows], signal[rows], logits[rows], gradient[rows], NEAR
        )
        rows = rows[near]
    if len(rows):
        raise ValueError(
            "what was recorded is not what the model computes: logits or gradients differ at x = "
            f"{_point(places[int(rows[0])])}, so that nothing can be proved of it."
        )


def _mixture(rows: int, recorded: RecordedModel, x: Tensor) -> Tensor:
    """A signal for each row's logits, drawn with a fixed seed: (rows, C)."""
    count, generator = recorded.program.classes, torch.Generator().manual_seed(rows)
    return torch.randn(rows, count, generator=generator, dtype=torch.float64).to(x)


def _apart(
    program: Program, x: Tensor, signal: Tensor, logits: Tensor, gradient: Tensor, radius: float
) -> Tensor:
    """Whether logits or slopes lie outside of what the rules give within the radius: (N,)."""
    with torch.no_grad():
        wide = radius * (1 + x.flatten(1).abs().amax(-1))
        region = Region(x=x, radius=wide, norm="linf", followed=False)
        propagator, value = propagate(program, region, 0)
        form, symbols = back(propagator, AffineForm.constant(signal), value, "flat")
        outside = [
            _outside(*propagator.symbols.range(value.form), logits),
            _outside(*symbols.range(form), gradient),
        ]
    return torch.stack(outside).any(0)


def _outside(low: Tensor, high: Tensor, found: Tensor) -> Tensor:
    """Whether some number of a row is beyond its range by more than rounding: (N,)."""
    low, high, found = (each.flatten(1) for each in (low, high, found))
    largest = found.abs().amax(-1, keepdim=True)
    # Where all units are saturated, what is left of a row's numbers is rounding of larger ones.
    allowed = EQUAL * torch.maximum(largest, largest.median())
    inside = (found >= low - allowed) & (found <= high + allowed)
    return ~inside.all(-1)


def _point(x: Tensor) -> str:
    flat = x.flatten()
    shown = ", ".join(f"{each:.6g}" for each in flat[:8].tolist())
    return f"[{shown}{', ...' if len(flat) > 8 else ''}]"


def _check_alone(recorded: RecordedModel, x: Tensor) -> None:
    """Refuse a model for which an example's answer depends on its company."""
    some = torch.cat([x[:ALONE], _around(x, LENGTHS[-1], 99)[:ALONE]])
    signal = _mixture(len(some), recorded, some)
    together = logits_and_gradients(recorded.exact, some, signal)
    for row in range(len(some)):
        alone = logits_and_gradients(recorded.exact, some[row : row + 1], signal[row : row + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            whole = all_of_them[row : row + 1]
            same = one.shape == whole.shape
            if not same or not torch.allclose(
                one, whole, rtol=EQUAL, atol=EQUAL * float(all_of_them.abs().max())
            ):
                raise ValueError(
                    "the model's answer for an example depends on the other rows of its batch or "
                    "on how many there are: compute each row by itself."
                )


def _check_precision(recorded: RecordedModel, places: Tensor) -> None:
    """Refuse a float64 copy that is another function than the model in its own precision."""
    dtype = recorded.dtype
    signal = _mixture(len(places), recorded, places)
    deployed = logits_and_gradients(recorded.given, places.to(dtype), signal.to(dtype))
    again = logits_and_gradients(recorded.exact, places.to(dtype).double(), signal)
    if torch.finfo(dtype).eps > 1e-6:
        return  # half precision rounds too much to tell
    for what, one, other in zip(("logits", "gradients"), deployed, again, strict=True):
        scale = other.flatten(1).abs().amax(-1)
        # Between two classes logits vanish, and what is left of them is rounding of larger numbers.
        scale = torch.maximum(scale, scale.median()) + 1e-30
        allowed = ROUNDED * torch.finfo(dtype).eps ** 0.5 * scale
        apart = (one.double() - other).flatten(1).abs().amax(-1) > allowed
        # A kink between the two ways of rounding turns slopes; it does so seldom.
        if apart.sum() > (0 if what == "logits" else len(places) // 8):
            row = int(apart.nonzero()[0])
            raise ValueError(
                f"the model computes something else in float64 than in {dtype}: {what} differ at "
                f"x = {_point(places[row])}, so that a proof would be about another model."
            )


def noise(
    recorded: RecordedModel,
    x: Tensor,
    y: Tensor,
    explained: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> Tensor:
    """How far the margin of two features may be off, as the model rounds where it is used: (B,).

    `explained(model, x, y)` gives the signed gradients. Twice the largest difference at x itself
    between the model in its own precision and its copy in float64.
    """
    found = []
    for rows, classes in zip(_parts(x), _parts(y), strict=True):
        rounded = explained(recorded.given, rows.to(recorded.dtype), classes)
        exact = explained(recorded.exact, rows.double(), classes)
        found.append(2 * (rounded.double() - exact).flatten(1).abs().amax(-1))
    return torch.cat(found)


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    """The rows in parts of about one size, so that memory does not grow with them."""
    return rows.chunk(-(-len(rows) // AT_ONCE))


def inside(
    x: Tensor, radius: Tensor, norm: Norm, scale: Tensor | None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """`POINTS` seeded places within the radius of some rows, half of them on the border, and whose.

    Corners and single features of the region are among them.
    """
    rows = (radius > 0).nonzero().squeeze(-1)
    if not len(rows):
        return x[:0], rows
    generator = torch.Generator().manual_seed(seed)
    chosen = rows[torch.randint(len(rows), (POINTS,), generator=generator).to(rows.device)]
    move = torch.randn(POINTS, x[0].numel(), generator=generator, dtype=torch.float64)
    number = torch.arange(POINTS)
    single = torch.zeros_like(move)
    single[number, torch.randint(move.shape[1], (POINTS,), generator=generator)] = 1.0
    move = torch.where((number % 4 == 0)[:, None], single * move.sign(), move)
    move = torch.where((number % 4 == 1)[:, None], move.sign(), move)
    size = move.norm(dim=-1) if norm == "l2" else move.abs().amax(-1)
    share = torch.rand(POINTS, generator=generator, dtype=torch.float64)
    share = torch.where(number % 2 == 0, 1.0, share)
    length = (share / size).to(x) * radius[chosen].clamp_max(1e3)
    move = (move.to(x) * length[:, None]).view(POINTS, *x.shape[1:])
    return x[chosen] + (move if scale is None else move * scale.to(x)), chosen


def _around(x: Tensor, length: float, seed: int) -> Tensor:
    """Places at a distance from some rows: (POINTS // 8, ...)."""
    return inside(x, torch.full_like(x.flatten(1)[:, 0], length), "l2", None, seed)[0][::8]


# --- what a model keeps ---


def _state(model: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and plain attributes of all parts, by name."""
    kept: dict[str, Any] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        kept[name] = tensor.detach().clone()
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            if not name.startswith("_") and _is_plain(value):
                kept[f"{path}.{name}".strip(".")] = copy.deepcopy(value)
    return kept


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set):
        return len(value) < 1000 and all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The name of something that is another, None if nothing is."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            return name
        one, other = before[name], after[name]
        same = torch.equal(one, other) if isinstance(one, Tensor) else one == other
        if not same:
            return name
    return None


def check_kept(places: Tensor, whose: Tensor, scores: Tensor, top: Sequence[set[int]]) -> None:
    """Refuse certificates within which one of the places has another set of top features.

    `scores` (N, n) are those of the model itself at the places, `whose` (N,) their rows.
    """
    for place, row, found in zip(places, whose.tolist(), scores, strict=True):
        shown, k = top[row], len(top[row])
        ranked = found.sort(descending=True)
        clear = ranked.values[k - 1] - ranked.values[k] > EQUAL * ranked.values[0]
        if clear and set(ranked.indices[:k].tolist()) != shown:
            raise ValueError(
                f"the top features of row {row} are others at x = {_point(place)}, inside of what "
                "was proved: the model is not what was recorded, and nothing is certified of it."
            )
