"""How an attacker keeps the predictions: weighted goals, an early stop, refused steps (B.2.3).

Goal g_0 is to manipulate the explanation; goals g_1..g_S are to keep S predictions, each the KL
divergence between a clean prediction and the attacked one. The attack descends on
L = sum_s w_s g_s [Eq. 57], and a weighting chooses w anew at every step:
(weights (B, m), losses (B, m), gradients (B, m, d)) -> weights (B, m), m = S + 1, non-negative
and of sum 1. All start equal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from r2et.attacks._socp import min_norm_weights
from r2et.core.autograd import gradient_of
from r2et.core.geometry import unit
from r2et.core.naming import nearest
from r2et.explainers import check_logits

Weighting = Callable[[Tensor, Tensor, Tensor], Tensor]
Losses = Callable[[Tensor], Sequence[Tensor]]
Predict = Callable[[Tensor], Sequence[Tensor]]
"""The logits of all predictions that are to be kept."""


def equal(weights: Tensor, losses: Tensor, gradients: Tensor) -> Tensor:
    """The same weight for every goal, w_s = 1 / (S + 1): (B, m). The paper's "no update"."""
    return torch.full_like(weights, 1 / weights.shape[-1])


def gda(weights: Tensor, losses: Tensor, gradients: Tensor, *, rate: float = 0.1) -> Tensor:
    """Gradient descent ascent, w_s <- w_s + r g_s for s >= 1, then all over their sum  [Eq. 58].

    w = `weights`, g = `losses`, r = `rate`. w_0 changes by the division only; no weight falls
    below zero.
    """
    raised = (weights[:, 1:] + rate * losses[:, 1:]).clamp_min(0)
    raised = torch.cat([weights[:, :1], raised], dim=-1)
    total = raised.sum(-1, keepdim=True)
    even = equal(weights, losses, gradients)
    return torch.where(total > 0, raised / torch.where(total > 0, total, 1.0), even)


def hedge(weights: Tensor, losses: Tensor, gradients: Tensor, *, rate: float = 0.1) -> Tensor:
    """Multiplicative weights, w_s <- w_s exp(r g_s) / sum_t w_t exp(r g_t)  [Eq. 59].

    w = `weights`, g = `losses`, r = `rate`.
    """
    # A weight of zero could never grow again, and long walks underflow to it.
    known = weights.clamp_min(torch.finfo(weights.dtype).tiny)
    return torch.softmax(known.log() + rate * losses, dim=-1)


def min_norm(
    weights: Tensor,
    losses: Tensor,
    gradients: Tensor,
    *,
    normalised: bool = True,
    negligible: float | None = None,
) -> Tensor:
    """The weights whose blend of gradients is shortest, min ||sum_s w_s grad g_s||  [Eq. 60].

    By default every gradient is first scaled to length one (the weights returned are still those
    of the gradients as given), or the shortest of them, as a rule that of a KL divergence, would
    take all the weight. With S = 1 that means to follow the bisector of the two. A gradient
    shorter than `negligible` times the longest of its example, by default 100 roundings, has no
    weight: at x every KL divergence is at its minimum, and no blend is shorter than a zero.

    On a linear piece of a network both slopes lie on one line; opposed they cancel, and the walk
    ends there.
    """
    if negligible is None:
        negligible = 100 * torch.finfo(gradients.dtype).eps
    lengths = _lengths(gradients)
    longest = lengths.amax(-1, keepdim=True)
    counted = (lengths > negligible * longest) & (lengths > 0)
    rows = unit(gradients.flatten(0, 1)).view_as(gradients) if normalised else gradients
    # A dropped gradient becomes a copy of one that counts: what two copies weigh, the one does.
    first = counted.int().argmax(-1, keepdim=True)
    copied = rows.gather(1, first[:, :, None].expand(-1, 1, rows.shape[-1]))
    rows = torch.where(counted[:, :, None], rows, copied)
    if rows.shape[1] < rows.shape[2]:
        # Only their inner products matter, which as few numbers as there are goals can have, too.
        rows = torch.linalg.qr(rows.mT, mode="r").R.mT
    found = min_norm_weights(rows)
    dropped = found.masked_fill(counted, 0).sum(-1, keepdim=True)
    found = found.masked_fill(~counted, 0).scatter_add(-1, first, dropped)
    if normalised:
        # longest / length instead of 1 / length, which overflows for the slopes of a sure model.
        found = found * (longest / torch.where(counted, lengths, 1.0))
        found = found / found.sum(-1, keepdim=True)
    return torch.where(counted.any(-1, keepdim=True), found, weights)


def _lengths(gradients: Tensor) -> Tensor:
    """Length of each gradient, without squares that underflow: (B, m)."""
    largest = gradients.abs().amax(-1)
    scaled = gradients / torch.where(largest > 0, largest, 1.0)[:, :, None]
    lengths: Tensor = largest * scaled.norm(dim=-1)
    return lengths


# --- The goals -----------------------------------------------------------------------------------


def divergence(clean: Tensor, logits: Tensor) -> Tensor:
    """KL divergence sum_c p_c log(p_c / q_c) of clean predictions p from attacked ones q: (B,)."""
    was, now = clean.log_softmax(-1), logits.log_softmax(-1)
    return (was.exp() * (was - now)).sum(-1)


def least_divergence(clean: Tensor) -> Tensor:
    """The least KL divergence at which a prediction can be of another class: (B,).

    KL(p || q) is least where the two likeliest classes a, b share their mass evenly and the others
    keep theirs: sum over both of p_c log(p_c / ((p_a + p_b) / 2)).
    """
    two = clean.log_softmax(-1).topk(2, dim=-1).values
    apart = torch.tanh((two[:, 0] - two[:, 1]) / 2)
    likelier = torch.special.xlog1py(1 + apart, apart)
    other = torch.special.xlog1py(1 - apart, -apart)
    least: Tensor = two.exp().sum(-1) / 2 * (likelier + other)
    return least


def scale_of(goal: Callable[[Tensor], Tensor], before: Tensor) -> Tensor:
    """How much a goal changes when the clean explanation fades to nothing: (B,), 1 if it does not.

    For ERAttack that is its value at the start. The MSE attack starts at zero; its scale is
    ||I(x)||^2.
    """
    start: Tensor = (goal(before) - goal(torch.zeros_like(before))).abs()
    # Over a smaller one a slope can overflow.
    return torch.where(start > torch.finfo(start.dtype).tiny ** 0.5, start, 1.0)


def check_outputs(found: object, rows: int) -> None:
    """Refuse outputs that are not logits of one or more predictions of every example."""
    if not isinstance(found, tuple | list) or not found:
        got = "nothing" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
        raise ValueError(
            f"outputs must return the logits of one or more predictions, got {got}: write "
            "(logits,) for one."
        )
    for logits in found:
        check_logits(logits)
        if len(logits) != rows:
            raise ValueError(
                f"outputs must return one row for each of the {rows} examples, got {len(logits)}."
            )


def kept_losses(predict: Predict, x: Tensor, *, scaled: bool) -> Losses:
    """The goals g_1..g_S as functions of x', S KL divergences (B,), in nats.

    `scaled`, in units of the least divergence at which a prediction can change: below 1 it is kept.
    """
    with torch.no_grad():
        clean = predict(x)
        # A prediction may be a tie from the start.
        floor = torch.finfo(x.dtype).eps
        units = [least_divergence(each).clamp_min(floor) if scaled else 1.0 for each in clean]

    def losses(point: Tensor) -> list[Tensor]:
        now = zip(clean, predict(point), units, strict=True)
        return [divergence(was, logits) / one for was, logits, one in now]

    return losses


def weighted(goals: Losses, reweigh: Weighting) -> Callable[[Tensor], Tensor]:
    """One loss for a search, whose slope is the weighted sum of the slopes of all goals: (B,).

    The weights move on with every call. Slopes that cancel up to rounding leave none.
    """
    weights: Tensor | None = None

    def loss(point: Tensor) -> Tensor:
        nonlocal weights
        losses = goals(point)
        slopes = torch.stack(
            [gradient_of(each, point, create_graph=False).flatten(1) for each in losses], dim=1
        )
        values = torch.stack([each.detach() for each in losses], dim=1)
        start = torch.full_like(values, 1 / values.shape[-1]) if weights is None else weights
        weights = reweigh(start, values, slopes)
        parts = weights[:, :, None] * slopes
        blend = parts.sum(1)
        # Opposed slopes, as in a linear piece of a network, would leave rounding errors for a
        # direction, and a step of full length along it.
        sure = torch.finfo(parts.dtype).eps ** 0.4 * _lengths(parts).amax(-1, keepdim=True)
        blend = torch.where(_lengths(blend[:, None]) > sure, blend, 0.0)
        return (point.flatten(1) * blend).sum(-1)

    return loss


# --- The choices by name -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConstraintHandling:
    """A way to keep the predictions during an attack."""

    line: str
    """What it does, in one line."""
    weighting: Weighting | None = None
    """How the goals are weighed; None follows g_0 alone and computes no other."""
    at_change: Literal["walk on", "stop", "back off"] = "walk on"
    """What an example does with a step that would change any of its predictions.

    "stop": it is not taken and the walk ends. "back off": it is not taken, and the next ones are
    half as long, then longer again.
    """
    scaled: bool = True
    """Whether weighed goals are scaled: g_0 by its value at the start (`scale_of`), each KL
    divergence by the least one at which its prediction can change (`least_divergence`)."""


CONSTRAINT_HANDLING: dict[str, ConstraintHandling] = {
    "unconstrained": ConstraintHandling(
        line="follows the goal alone; what keeps the predictions is picked"
    ),
    "equal": ConstraintHandling(line="equal weights, never updated", weighting=equal),
    "gda": ConstraintHandling(
        line="gradient descent ascent on the weights (Eq. 58)", weighting=gda
    ),
    "hedge": ConstraintHandling(line="multiplicative weights (Eq. 59)", weighting=hedge),
    "qp": ConstraintHandling(
        line="weights of the shortest blend of gradients (Eq. 60)", weighting=min_norm
    ),
    "early-stop": ConstraintHandling(
        line="stops before the first changed prediction", at_change="stop"
    ),
    "rejection": ConstraintHandling(
        line="refuses a step that changes a prediction and halves the next", at_change="back off"
    ),
}


def handling_named(name: str | ConstraintHandling) -> ConstraintHandling:
    """The handling of that name, or the one given."""
    if isinstance(name, ConstraintHandling):
        return name
    if name not in CONSTRAINT_HANDLING:
        raise ValueError(
            f"no handling of predictions is called {name!r}: {nearest(name, CONSTRAINT_HANDLING)}"
        )
    return CONSTRAINT_HANDLING[name]


def allowance(
    handling: ConstraintHandling, keeps: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor] | None:
    """Which examples may take a step to the given points, (B,) booleans; None if all may."""
    if handling.at_change == "walk on":
        return None
    if handling.at_change == "back off":
        return keeps
    walking: Tensor | None = None

    def still_walking(points: Tensor) -> Tensor:
        nonlocal walking
        walking = keeps(points) if walking is None else walking & keeps(points)
        return walking

    return still_walking
