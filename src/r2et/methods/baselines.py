"""The papers' other defences: less curvature, attacked inputs, ratios of gap to curvature."""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from r2et.attacks.search import check_slopes, projected_descent, ranking_goal
from r2et.core.autograd import gradient_of, hessian_products, piecewise_linear, root
from r2et.core.geometry import by_example, on_segment, unit
from r2et.core.ranking import facing_count, order
from r2et.core.spectral import everywhere, spectral_norm
from r2et.explainers import Explainer, log_odds
from r2et.methods.margins import Gap, Pairs, check_choices, mean_margin
from r2et.methods.method import (
    BatchContext,
    Bend,
    Draw,
    Method,
    Penalty,
    check_numbers,
    estimated_bend,
    ranking_by,
    saliency_at,
)
from r2et.models.smoothing import Smoothing
from r2et.perturbations import L2Ball

ROWS_AT_ONCE = 65_536


def weight_decay(*, k: int, rate: float = 0.01) -> Method:
    """WD: cross-entropy, the weights shrinking by `rate` times the learning rate at every step.

    The decay is AdamW's, apart from the gradient, and the training loop's to apply.
    """
    check_numbers("WD", rate=rate)
    return Method(weight_decay=rate)


def softplus(*, k: int, rho: float = 0.5) -> Method:
    """SP: cross-entropy on a copy of the network, each (Leaky)ReLU replaced by a softplus.

    softplus(x; rho) = ln(1 + e^{rho x}) / rho.
    """
    check_numbers("SP", positive=("rho",), rho=rho)
    return Method(prepare=Smoothing(softplus=rho))


def estimated_hessian(
    *,
    k: int,
    curvature: float = 0.1,
    kappa: float = 0.5,
    bend: Bend = "gradient",
    share: float = 1.0,
    softplus: float = 0.0,
    explain: Explainer | None = None,
) -> Method:
    """Est-H: L_cls + lambda ||H(x)||, lambda = `curvature`, the norm by a finite difference.

    H is the derivative of the gradient, or of the explanation, as `bend` says, on a `share` of each
    batch. With `softplus` = rho kinks are replaced by softplus(x; rho), as SP does.
    """
    check_numbers("Est-H", positive=("kappa",), curvature=curvature, kappa=kappa, softplus=softplus)
    return replace(
        _penalised("curvature", curvature, estimated_bend(kappa, explain, bend, share)),
        prepare=Smoothing(softplus=softplus) if softplus else None,
        by_gradient=True,
    )


def exact_hessian(*, k: int, curvature: float = 0.1) -> Method:
    """Exact-H: L_cls + lambda ||H(x)||_F, lambda = `curvature`, by exact second derivatives."""
    check_numbers("Exact-H", curvature=curvature)
    return _penalised("curvature", curvature, exact_norm)


def spectral(*, k: int, curvature: float = 0.1, steps: int = 8) -> Method:
    """SSR: L_cls + lambda max |eigenvalue of H(x)|, lambda = `curvature`.

    The largest in magnitude, the spectral norm: a Hessian can bend downwards as well as upwards.
    """
    check_numbers("SSR", positive=("steps",), curvature=curvature, steps=steps)
    return _penalised("curvature", curvature, partial(largest_eigenvalue, steps=steps))


def adversarial(
    *,
    k: int,
    radius: float = 1.0,
    steps: int = 1,
    explain: Explainer | None = None,
    reference: nn.Module | None = None,
) -> Method:
    """AT: L_cls at x + delta*, where delta* lowers the margin of the clean top k the most.

    delta* = argmax of - sum h(x + delta, i, j) over ||delta|| <= radius, the pairs those of the
    ranking at x. It is looked for from a random point of the ball by `steps` moves against the
    slope: one of 1.25 radii, as fast AT takes, or several of 2.5 radii / (steps + 1) each. The
    prediction need not be kept, and delta* is a constant in the gradient.
    """
    check_numbers("AT", positive=("steps",), radius=radius, steps=steps)
    explained = explain or saliency_at
    ranking = ranking_by(reference, explained)

    def attacked(batch: BatchContext) -> Tensor:
        x, ball = batch.x.detach(), L2Ball(radius=radius)
        goal = ranking_goal(ranking(batch, None), k)
        return projected_descent(
            lambda at: goal(explained(batch.model, at, batch.y)),
            x,
            start=ball.project(_in_ball(x, radius, batch.draw), x),
            perturbation=ball,
            lengths=[2.5 * radius / (steps + 1)] * steps,
            blind=lambda: check_slopes(explained, batch.model, x, batch.y),
        )

    return Method(perturb=attacked)


def certified_ratio(
    *,
    k: int,
    ratio: float = 0.1,
    radius: float = 1.0,
    facing: int | None = None,
    softness: float = 0.1,
    reference: nn.Module | None = None,
) -> Method:
    """CL: L_cls - lambda min over pairs of h(x, i, j) / ||H_i(x) - H_j(x)||, in a smooth form.

    lambda = `ratio`. With the curvature at its largest over a ball, no perturbation shorter than
    the smallest such ratio flips any pair (Prop. 4.5). Here the curvature is that at x: the
    objective is a heuristic, not a certificate. Three things make it trainable.

    - The ratio r is put as r / (|r| + radius) = h / (|h| + radius ||H_i - H_j||), between -1 and 1
      and rising with r: no curvature is too small to divide by, and a pair that stands moves far
      beyond `radius` no longer matters. It does not hang on the scale of the explanation.
    - Only the k' = `facing` pairs (k-i+1, k+i) are met, all that can face each other unless said
      otherwise. Among them is (k, k+1), which has the smallest h of all pairs; the others follow
      in order of their h. Their least ratio is no smaller than that over all pairs.
    - The minimum is soft: -softness log mean exp(-value / softness).
    """
    check_numbers(
        "CL", positive=("radius", "softness"), ratio=ratio, radius=radius, softness=softness
    )
    ranking = ranking_by(reference)

    def fragility(batch: BatchContext) -> Tensor:
        bent = Bent.of(batch)
        own = bent.gradient.abs()  # ranks as the gradient of the probability does
        reach = facing_reach(bent, ranking(batch, own), k, radius=radius, facing=facing)
        return softness * ((-reach / softness).logsumexp(-1) - math.log(reach.shape[1]))

    return _penalised("fragility", ratio, fragility)


def thick(
    *,
    k: int,
    thickness: float = 0.1,
    samples: int = 2,
    points: int = 4,
    radius: float = 1.0,
    pairs: Pairs = "all",
    gap: Gap = "plain",
    facing: int | None = None,
    explain: Explainer | None = None,
    reference: nn.Module | None = None,
) -> Method:
    """Thickness: L_cls - lambda Theta  (Eq. 4), lambda = `thickness`, what R2ET stands in for.

    Theta is the mean gap over `samples` segments to neighbours x', uniform in the ball of `radius`
    and drawn anew at every step, at the middles of `points` equal parts of each. The ranking is
    that at x. Every point costs what the gap term of R2ET costs.
    """
    check_numbers(
        "Thickness",
        positive=("samples", "points"),
        thickness=thickness,
        samples=samples,
        points=points,
        radius=radius,
    )
    check_choices(pairs, gap)
    explained = explain or saliency_at
    ranking = ranking_by(reference, explained)

    def negative_margin(batch: BatchContext) -> Tensor:
        x, kept = batch.x.detach(), ranking(batch, None)
        gaps = [
            mean_margin(
                explained(batch.model, point, batch.y), kept, k, pairs=pairs, gap=gap, facing=facing
            )
            for _ in range(samples)
            for point in on_segment(x, _in_ball(x, radius, batch.draw), points)
        ]
        return -torch.stack(gaps).mean(0)

    return _penalised("margin", thickness, negative_margin)


class Bent(NamedTuple):
    """The log-odds m of the predicted class and their slopes g, with graphs: (B,), (B, n).

    With p = sigmoid(m): Hess p = p (1 - p) [(1 - 2p) g g' + Hess m], where 1 - 2p = -tanh(m / 2).
    The factor p (1 - p) is kept apart: for a sure model it underflows, and cancels out of ratios.
    """

    x: Tensor
    odds: Tensor
    gradient: Tensor
    lean: Tensor
    """1 - 2p: (B,)."""
    straight: bool
    """Whether Hess m is surely zero: of two classes, of logits that are piecewise linear."""

    @staticmethod
    def of(batch: BatchContext) -> "Bent":
        """What a batch shows."""
        with torch.enable_grad():
            odds = log_odds(batch.logits, batch.y)
            gradient = gradient_of(odds, batch.x, create_graph=True).flatten(1)
        straight = batch.logits.shape[1] == 2 and piecewise_linear(batch.model)
        return Bent(batch.x, odds, gradient, -torch.tanh(odds / 2), straight)

    @property
    def steepness(self) -> Tensor:
        """The factor p (1 - p): (B,)."""
        return torch.sigmoid(self.odds) * torch.sigmoid(-self.odds)

    def products(self, directions: Tensor) -> Tensor:
        """Hess p / (p (1 - p)) times each direction: (m, B, n) -> (m, B, n)."""
        along = (directions * self.gradient).sum(-1) * self.lean
        outer = along[..., None] * self.gradient
        if self.straight:
            return outer
        return outer + hessian_products(self.gradient, self.x, directions).flatten(2)


def exact_norm(batch: BatchContext) -> Tensor:
    """Frobenius norm of the Hessian of the predicted probability: (B,).

    Where Hess m is zero the Hessian has rank one and the norm is p (1 - p) |1 - 2p| ||g||^2.
    Otherwise all n rows are computed, together as far as `ROWS_AT_ONCE` allows; to be trained, they
    need n times the memory of a backward pass.
    """
    bent = Bent.of(batch)
    if bent.straight:
        return _rank_one_norm(bent)
    examples, n = bent.gradient.shape
    steepness = bent.steepness[:, None]
    leaning = steepness * bent.lean[:, None] * bent.gradient
    squared = torch.zeros_like(bent.odds)
    unit_vectors = torch.eye(n, dtype=bent.gradient.dtype, device=bent.gradient.device)
    for some in unit_vectors.split(max(1, ROWS_AT_ONCE // max(1, examples))):
        along = some[:, None].expand(-1, examples, -1)
        rows = steepness * hessian_products(bent.gradient, bent.x, along).flatten(2)
        entries = (some @ bent.gradient.T)[..., None]
        squared = squared + torch.addcmul(rows, entries, leaning).square().sum((0, 2))
    return root(squared)


def largest_eigenvalue(batch: BatchContext, *, steps: int = 8) -> Tensor:
    """Magnitude of the Hessian's eigenvalue of largest magnitude, from below: (B,).

    Where Hess m is zero it is that of the only eigenvector g. Otherwise by `steps` products, from g
    and a fixed direction, so that neither a slope of zero nor a slope that is some other
    eigenvector leads astray.
    """
    bent = Bent.of(batch)
    if bent.straight:
        return _rank_one_norm(bent)
    with torch.no_grad():
        start = unit(bent.gradient) + everywhere(bent.gradient) / 2
    steepness = bent.steepness[:, None]
    return spectral_norm(lambda v: steepness * bent.products(v[None])[0], start, steps)


def facing_reach(
    bent: Bent, ranking: Tensor, k: int, *, radius: float, facing: int | None = None
) -> Tensor:
    """How far each facing pair reaches, h / (|h| + radius ||H_i - H_j||) at x: (B, k').

    With the direction t = sign(g_i) e_i - sign(g_j) e_j, of which h = g't, both h and the change
    H t have the factor p (1 - p), which cancels out. No pair of zero h and zero change reaches
    anywhere: 0.
    """
    n = bent.gradient.shape[1]
    count = facing_count(k, n, facing)
    ranked = order(ranking)
    upper, lower = ranked[:, k - count : k].flip(-1), ranked[:, k : k + count]
    size = bent.gradient.abs()
    gaps = size.gather(-1, upper) - size.gather(-1, lower)
    if bent.straight:
        # H t = (1 - 2p) h g, so that h itself cancels out, but for its sign.
        change = bent.lean.abs() * root(bent.gradient.square().sum(-1))
        return gaps.detach().sign() / (1 + radius * change)[:, None]
    sign = bent.gradient.detach().sign()
    directions = torch.zeros_like(sign).expand(count, -1, -1)
    directions = directions.scatter(-1, upper.T[..., None], sign.gather(-1, upper).T[..., None])
    directions = directions.scatter(-1, lower.T[..., None], -sign.gather(-1, lower).T[..., None])
    changes = root(bent.products(directions).square().sum(-1)).T
    whole = gaps.abs() + radius * changes
    return torch.where(whole > 0, gaps / torch.where(whole > 0, whole, 1.0), 0.0)


def _rank_one_norm(bent: Bent) -> Tensor:
    """Norm and eigenvalue of a Hessian of rank one, p (1 - p) |1 - 2p| ||g||^2: (B,)."""
    return bent.steepness * bent.lean.abs() * bent.gradient.square().sum(-1)


def _in_ball(x: Tensor, radius: float, draw: Draw) -> Tensor:
    """A point for each example, uniform in the l2 ball around it, from two draws: like x."""
    direction = unit(draw(x))
    # The normal distribution function of a normal number is uniform between 0 and 1.
    uniform = torch.special.ndtr(draw(x).flatten(1)[:, :1])
    length = radius * uniform.pow(1 / direction.flatten(1).shape[1])
    offset: Tensor = by_example(length, x) * direction
    return x + offset


def _penalised(name: str, weight: float, penalty: Penalty) -> Method:
    return Method(penalties=((name, weight, penalty),) if weight else ())
