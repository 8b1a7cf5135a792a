"""What the explanation at x alone tells: bounds of thickness (Prop. 4.4, Eq. 20), Prop. 4.5."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, gradient_of, jacobian
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.ranking import check_k, order, top_k_mask, top_margin
from r2et.core.rng import in_ball
from r2et.explainers import (
    SCORES,
    Explainer,
    Quantity,
    check_inputs,
    explained,
    logits_of,
    predicted,
)
from r2et.metrics.thickness import check_length, feature_numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class ThicknessBounds:
    """Bounds of Prop. 4.4, (B,) each, and in words what they rest on."""

    lower: Tensor
    upper: Tensor
    assumption: str


def thickness_bounds(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    *,
    explain: Explainer,
    radius: float,
    samples: int = 16,
    generator: torch.Generator | None = None,
    lipschitz: tuple[Tensor, Tensor] | None = None,
) -> ThicknessBounds:
    """Bounds of the thickness of the pair i, j for neighbours in the ball (Prop. 4.4): (B,) each.

    h - eps/2 ||H_i - H_j|| <= Theta(i, j) <= h + eps (L_i + L_j), where h and H are taken at x,
    eps = `radius` and L_i is the maximum of ||H_i|| over the ball. L_i is estimated from x and
    `samples` points of the ball, or given for both features as `lipschitz`. What this makes of
    the bounds is said in `assumption`.
    """
    check_inputs(model, x, y)
    n = explained(model, explain, x[:1], y[:1]).shape[-1]
    pair = torch.stack([feature_numbers(i, x, n), feature_numbers(j, x, n)], dim=-1)

    def field(points: Tensor) -> Tensor:
        return explain(model, points, y).gather(-1, pair)

    values, slopes, steepest, assumption = _slopes_in_ball(
        model, field, x, radius, samples if lipschitz is None else None, generator
    )
    if lipschitz is not None:
        steepest = torch.stack([_constants(constant, x, x.shape[:1]) for constant in lipschitz], -1)
    gap = values[:, 0] - values[:, 1]
    bend = torch.linalg.vector_norm(slopes[:, 0] - slopes[:, 1], dim=-1)
    return ThicknessBounds(
        lower=gap - radius / 2 * bend,
        upper=gap + radius * steepest.sum(-1),
        assumption=assumption,
    )


def top_k_bounds(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    explain: Explainer,
    k: int,
    radius: float,
    samples: int = 16,
    generator: torch.Generator | None = None,
    lipschitz: Tensor | None = None,
) -> ThicknessBounds:
    """Bounds of the top-k thickness for neighbours in the ball (Eq. 20): (B,) each.

    The mean over all pairs of the bounds of Prop. 4.4; `lipschitz` gives L_i for each feature,
    (B, n). Memory grows with the Hessian, B n d: the pairs are met one top feature at a time.
    """
    check_inputs(model, x, y)
    n = explained(model, explain, x[:1], y[:1]).shape[-1]
    check_k(k, n)

    def field(points: Tensor) -> Tensor:
        return explain(model, points, y)

    values, slopes, steepest, assumption = _slopes_in_ball(
        model, field, x, radius, samples if lipschitz is None else None, generator
    )
    if lipschitz is not None:
        steepest = _constants(lipschitz, x, values.shape)
    ranking = order(values)
    ranked = slopes.gather(1, ranking[:, :, None].expand_as(slopes))
    bend = torch.zeros_like(values[:, 0])
    for i in range(k):
        apart = torch.linalg.vector_norm(ranked[:, i : i + 1] - ranked[:, k:], dim=-1)
        bend = bend + apart.mean(-1) / k
    gap = top_margin(values, values, k)
    # The mean over pairs of L_i + L_j falls apart into the mean of the top and that of the rest.
    reach = steepest.gather(-1, ranking)
    return ThicknessBounds(
        lower=gap - radius / 2 * bend,
        upper=gap + radius * (reach[:, :k].mean(-1) + reach[:, k:].mean(-1)),
        assumption=assumption,
    )


def _slopes_in_ball(
    model: nn.Module,
    field: Callable[[Tensor], Tensor],
    x: Tensor,
    radius: float,
    samples: int | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor, str]:
    """Saliency, its slopes at x, the largest slope norms seen in the ball, and the words for it.

    `samples` is None where the caller has its own Lipschitz constants.
    """
    check_length("radius", radius)
    if samples is not None and (generator is None or samples < 1):
        raise ValueError(
            f"sampling the ball takes a generator and at least one sample, got {generator} and "
            f"{samples}: give both, or the constants as lipschitz."
        )
    with torch.no_grad(), eval_mode(model):
        values = field(x).detach()
        slopes = jacobian(field, x)
        steepest = torch.linalg.vector_norm(slopes, dim=-1)
        for _ in range(samples or 0):
            assert generator is not None
            there = jacobian(field, in_ball(x, radius, generator))
            steepest = torch.maximum(steepest, torch.linalg.vector_norm(there, dim=-1))
    lower = (
        "lower: first-order expansion of the explanation at x, exact where the explanation is "
        "linear over the ball and an approximation elsewhere"
    )
    upper = (
        "upper: a bound as far as the given Lipschitz constants hold over the ball"
        if samples is None
        else f"upper: the maximum gradient over the ball is estimated from below by x and "
        f"{samples} sampled points, so the true bound may lie higher"
    )
    return values, slopes, steepest, f"{lower}; {upper}."


def _constants(lipschitz: Tensor, x: Tensor, shape: torch.Size) -> Tensor:
    """Given Lipschitz constants, one for each place of `shape`."""
    if lipschitz.shape != shape or not (lipschitz >= 0).all():
        raise ValueError(
            f"lipschitz must hold non-negative numbers of shape {tuple(shape)}, got shape "
            f"{tuple(lipschitz.shape)} with a minimum of {lipschitz.min():g}."
        )
    return lipschitz.to(x)


def flip_radius(saliency: Tensor, steepest: Tensor, *, k: int, ball: float) -> Tensor:
    """A radius below which no top-k feature changes places with another [Prop. 4.5]: (B,).

    The least h_ij / M_ij over the pairs, but no more than `ball`, the radius of the ball over which
    M_ij = `steepest` (B, n, n) bounds ||H_i - H_j||: with less than that the proposition is false.
    """
    check_length("ball", ball)
    check_k(k, saliency.shape[-1])
    top = top_k_mask(saliency, k)
    pairs = top[:, :, None] & ~top[:, None, :]
    gaps = saliency[:, :, None] - saliency[:, None, :]
    # Where nothing ever moves, no distance is too far.
    reach = torch.where(steepest > 0, gaps / steepest, torch.inf)
    return reach.masked_fill(~pairs, torch.inf).amin((1, 2)).clamp(max=ball)


def uncertified_radius_at_x(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    of: Quantity = "probability",
    one_hot: OneHot | None = None,
) -> Tensor:
    """Min over pairs of h(x, i, j) / ||H_i(x) - H_j(x)||, both taken at x alone: (B,).

    Prop. 4.5 asks for the largest ||H_i - H_j|| of a whole ball. At x alone it may be much smaller,
    and is zero wherever logits are linear around x: this number says how a ranking looks from
    where it stands, and is no radius within which it surely stays. `certify` gives one.
    """
    check_inputs(model, x, y)
    check_k(k, x[0].numel())
    y = predicted(model, x) if y is None else y

    def gradient(at: Tensor) -> Tensor:
        with torch.enable_grad(), eval_mode(model):
            found = gradient_of(SCORES[of](logits_of(model, at), y), at, create_graph=True)
        return project_one_hot(found, one_hot).flatten(1)

    with torch.no_grad():
        here, turn = gradient(x.detach().requires_grad_()).detach(), jacobian(gradient, x)
        signs, ranked = here.sign(), order(here.abs())
        # |g_i| moves with s_i H_i as long as no slope changes its sign.
        turn, ranked_scores = signs[..., None] * turn, here.abs().gather(1, ranked)
        turn = turn.gather(1, ranked[..., None].expand_as(turn))
        least = x.new_full((len(x),), torch.inf)
        for place in range(k):
            gap = ranked_scores[:, place, None] - ranked_scores[:, k:]
            apart = (turn[:, place, None] - turn[:, k:]).norm(dim=-1)
            least = torch.minimum(least, (gap / apart).amin(-1))
    return least.nan_to_num(nan=torch.inf, posinf=torch.inf)
