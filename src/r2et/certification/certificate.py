"""Certificates: how far an input can move before its top-k features could possibly change."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from r2et.certification.replay import (
    RecordedModel,
    check_call,
    check_fits,
    check_kept,
    inside,
    noise,
    record,
    replay,
)
from r2et.certification.search import UNBOUNDED, RadiusSearch, Task
from r2et.core.one_hot import OneHot
from r2et.core.ranking import check_k, order
from r2et.explainers import Quantity
from r2et.perturbations import Box, L2Ball, NormBall, Unsaid

FIRST_GUESS = 0.1
ANYWHERE = L2Ball()


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """What no change within a region can do to the top-k features of each decision.

    Within `radius` (B,) of x the set of the top k stays the same, within `order_radius` (B,) their
    order too; infinity means within any distance. `precision` (B, E) is the share of the top k that
    surely stay there within each of `epsilons`. `top` (B, k) are the features in order, `weakest`
    (B, 2) the pair that limits the radius: the feature shown and the one that may replace it.

    The proof is about the recorded program in the arithmetic of real numbers. A model rounds where
    it is used: `noise` (B,) is by how much the margin of two features was measured to be off at x,
    and pairs that are no further apart there are not certified.
    """

    radius: Tensor
    order_radius: Tensor
    precision: Tensor
    epsilons: tuple[float, ...]
    top: Tensor
    weakest: Tensor
    noise: Tensor


def certify(
    model: nn.Module | RecordedModel,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    of: Quantity = "probability",
    one_hot: OneHot | None = None,
    perturbation: NormBall = ANYWHERE,
    epsilons: Sequence[float] = (),
    radii: bool = True,
    steps: int | None = None,
    rows_at_once: int | None = None,
) -> Certificate:
    """Sound radii within which the top-k features of |gradient| cannot change, for each x.

    The model is recorded and compared with its recording first: `record` does so once for several
    calls. y is the explained class, the predicted one unless given. `perturbation` is the l2 ball,
    or the Box, in which x may move, with its scale and free numbers; what bounds would forbid is
    not left out, so that proofs hold within them as well. A radius that it says is one more of the
    `epsilons`, the last.

    Ranges of numbers are computed in float64 and rounded outwards. Radii are sought from below, to
    one percent if `steps` looks suffice: 16 unless given, 1 for smooth networks of which more than
    256 numbers of the input matter apart, whose order is bounded in a cheaper way; without `radii`
    they are NaN and only the precisions at `epsilons` are computed. Memory is about that of
    (inputs + units) x features for each of `rows_at_once` examples.
    """
    if isinstance(model, RecordedModel):
        check_call(model.given, x.to(model.dtype), y)
    else:
        check_call(model, x, y)
    check_k(k, x[0].numel())
    epsilons = _checked_epsilons(perturbation, epsilons, x)
    recorded = model if isinstance(model, RecordedModel) else record(model, x)
    with torch.inference_mode(False), torch.no_grad():
        exact = x.detach().double()
        task = Task(recorded.program, exact[:1], k, of, one_hot, perturbation)
        labels = task.program(exact).argmax(-1) if y is None else y
        replay(recorded, exact)
        noisy = noise(recorded, x, labels, task.gradient)
        size = rows_at_once or _rows(exact)
        batches = zip(exact.split(size), labels.split(size), noisy.split(size), strict=True)
        parts = [
            _certified(task, rows, classes, doubt, epsilons, radii, steps)
            for rows, classes, doubt in batches
        ]
        found = _joined(parts)
        _check_inside(recorded, exact, labels, task, found)
    return found


def _joined(parts: Sequence[Certificate]) -> Certificate:
    """The certificate of all batches."""
    tensors: dict[str, Any] = {
        each.name: torch.cat([getattr(part, each.name) for part in parts])
        for each in fields(Certificate)
        if each.name != "epsilons"
    }
    return replace(parts[0], **tensors)


def _checked_epsilons(
    perturbation: NormBall, epsilons: Sequence[float], x: Tensor
) -> tuple[float, ...]:
    """The distances at which precision is asked for; these and the set are refused if unfit."""
    if type(perturbation) not in (L2Ball, Box):  # of another norm nothing is proved
        raise ValueError(
            f"a certificate is for an L2Ball or a Box, got {type(perturbation).__name__}: give one "
            "that holds all changes you mean."
        )
    check_fits(perturbation, x)
    if any(not 0 <= each < torch.inf for each in epsilons):
        raise ValueError(f"epsilons must be finite and >= 0, got {list(epsilons)}.")
    if isinstance(perturbation.radius, Unsaid):
        return tuple(epsilons)
    others = (each for each in epsilons if each != perturbation.radius)
    return (*others, perturbation.radius)


def _rows(x: Tensor) -> int:
    """How many examples at once keep an analysis within some hundred megabytes."""
    return int(max(1, min(256, 2_000_000 // (x[0].numel() * (x[0].numel() + 128)))))


def _check_inside(
    recorded: RecordedModel,
    x: Tensor,
    y: Tensor,
    task: Task,
    found: Certificate,
) -> None:
    """Compare program and model once more, at places inside of what was proved."""
    radius = found.radius.nan_to_num(nan=0.0)
    for at, epsilon in enumerate(found.epsilons):
        radius = torch.where(found.precision[:, at] == 1, radius.clamp_min(epsilon), radius)
    places, whose = inside(x, radius, task.norm, task.scale)
    if not len(places):
        return
    replay(recorded, places)
    scores = task.gradient(recorded.exact, places, y[whose]).abs()
    check_kept(places, whose, scores, [set(each) for each in found.top.tolist()])


def _certified(
    task: Task,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    epsilons: tuple[float, ...],
    radii: bool,
    steps: int | None,
) -> Certificate:
    """The certificate of one batch."""
    gradient = task.gradient(task.program, x, y)
    ranked = order(gradient.abs())
    top = ranked[:, : task.k]
    search = RadiusSearch(task, x, y, gradient, ranked, noise)
    nothing = x.new_full((len(x),), torch.nan)
    weakest = ranked[:, [task.k - 1, task.k]]
    radius, order_radius = nothing, nothing.clone()
    if radii:
        kept, ordered = _pairs_to_keep(task.k, x[0].numel(), x.device)
        many = task.many and not task.switches
        looks = steps if steps is not None else 1 if many else 16
        radius, weakest = search.widest(kept, looks, x.new_full((len(x),), FIRST_GUESS))
        order_radius, _ = search.widest(ordered, 0 if many else looks, radius.clamp_max(UNBOUNDED))
        radius = torch.maximum(radius, order_radius)  # a search may end before it has found all
    precision = x.new_ones(len(x), len(epsilons))
    for column, epsilon in enumerate(epsilons):
        rows = (~(radius >= epsilon)).nonzero().squeeze(-1)
        if len(rows):
            precision[rows, column] = search.precision(rows, x.new_full((len(rows),), epsilon))
    return Certificate(
        radius=radius,
        order_radius=order_radius,
        precision=precision,
        epsilons=epsilons,
        top=top,
        weakest=weakest,
        noise=noise,
    )


def _pairs_to_keep(k: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs by rank that a set must keep apart, and those that an order must: (k, n) each."""
    of_set = torch.zeros(k, n, dtype=torch.bool, device=device)
    of_set[:, k:] = True
    of_order = torch.zeros_like(of_set)
    of_order[k - 1, k:] = True
    of_order[range(k - 1), range(1, k)] = True
    return of_set, of_order
