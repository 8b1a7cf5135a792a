"""Aimed at single pairs: the moves after which one top-k feature and one other change places.

To first order the pair (i, j) changes places h / ||dh/dx|| away, h = I_i - I_j. The pairs for which
that is least, the thinnest, are worth an attack of their own; one step of Newton's method meets the
place exactly where an explanation is linear in x.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from r2et.core.autograd import gradient_of, jacobian
from r2et.core.geometry import by_example, repeated
from r2et.core.ranking import order
from r2et.explainers import Explainer
from r2et.perturbations import PerturbationSet

Offer = Callable[[Tensor], None]

NEIGHBOURS = 24  # features on either side of the k-th place that are paired
OVERSHOOT = 1e-3  # of the clean gap: exactly on the border nothing has changed places yet


def features_at_the_border(saliency: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The last of the top k and the first of the rest, at most NEIGHBOURS each: (B, a), (B, b)."""
    ranked = order(saliency)
    return ranked[:, max(0, k - NEIGHBOURS) : k], ranked[:, k : k + NEIGHBOURS]


def slopes_at(
    explain: Explainer, model: nn.Module, x: Tensor, y: Tensor, features: Tensor
) -> Tensor:
    """Derivative of some features' scores by x, features (B, F): (B, F, ...)."""
    with torch.no_grad():
        slopes = jacobian(lambda at: explain(model, at, y).gather(1, features), x)
    return slopes.view(*features.shape, *x.shape[1:])


def thinnest(
    saliency: Tensor,
    top: Tensor,
    rest: Tensor,
    slopes: Tensor,
    perturbation: PerturbationSet,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The `count` nearest pairs and the way to each: (B, P, 2) features, (B, P, ...) moves.

    `slopes` are those of the features `top`, then `rest`. A move is of the cost at which the pair
    changes places, to first order.
    """
    a, b = top.shape[1], rest.shape[1]
    left = torch.arange(a, device=top.device).repeat_interleave(b)
    right = torch.arange(b, device=top.device).repeat(a)
    pairs = torch.stack([top[:, left], rest[:, right]], dim=-1)
    gap = (saliency.gather(1, pairs[..., 0]) - saliency.gather(1, pairs[..., 1])).flatten()
    uphill = (slopes[:, left] - slopes[:, a + right]).flatten(0, 1)
    way = perturbation.steepest(uphill)
    rise = (uphill * way).flatten(1).sum(-1)
    distance = torch.where(rise > 0, gap / torch.where(rise > 0, rise, 1.0), torch.inf)
    nearest = distance.view(len(top), a * b).argsort(dim=-1, stable=True)[:, :count]
    length = by_example(torch.where(distance.isfinite(), distance, 0.0), way)
    moves = (-length * way).unflatten(0, (len(top), a * b))
    picked = nearest.view(*nearest.shape, *(1,) * (moves.ndim - 2))
    return (
        pairs.gather(1, nearest[..., None].expand(-1, -1, 2)),
        moves.gather(1, picked.expand(-1, -1, *moves.shape[2:])),
    )


def approach(
    model: nn.Module,
    explain: Explainer,
    x: Tensor,
    y: Tensor,
    pairs: Tensor,
    perturbation: PerturbationSet,
    offer: Offer,
    iterations: int = 4,
) -> None:
    """Newton's method on the gap of each pair (B, P, 2) from x; each place (P, B, ...) is offered.

    The next place is the nearest to x at which the gap, linear as seen from here, is gone.
    """
    count = pairs.shape[1]
    if not count or not len(x):
        return
    centre, labels = repeated(x, count), y.repeat(count)
    aimed = pairs.transpose(0, 1).flatten(0, 1)
    point, beyond = centre, None
    for _ in range(iterations):
        with torch.enable_grad():
            at = point.detach().requires_grad_()
            scores = explain(model, at, labels).gather(1, aimed)
            gap = scores[:, 0] - scores[:, 1]
            if not gap.requires_grad:
                return
            uphill = gradient_of(gap, at, create_graph=False)
        way = perturbation.steepest(uphill)
        rise = (uphill * way).flatten(1).sum(-1)
        along = (uphill * (point - centre)).flatten(1).sum(-1)
        if beyond is None:
            rounding = 16 * torch.finfo(x.dtype).eps * scores.detach().abs().amax(-1)
            beyond = OVERSHOOT * gap.detach() + rounding
        wanted = along - gap.detach() - beyond
        length = torch.where(rise > 0, wanted / torch.where(rise > 0, rise, 1.0), 0.0)
        point = perturbation.relax(centre + by_example(length, x) * way, centre)
        offer(point.unflatten(0, (count, len(x))))


def approach_nearest(
    model: nn.Module,
    explain: Explainer,
    x: Tensor,
    y: Tensor,
    before: Tensor,
    k: int,
    perturbation: PerturbationSet,
    count: int,
    offer: Offer,
) -> None:
    """Newton's method on the `count` pairs nearest to changing places, as `model` sees them.

    The top k are those of the explanation `before`, (B, n), of the attacked model.
    """
    with torch.no_grad():
        seen = explain(model, x, y)
    top, rest = features_at_the_border(before, k)
    slopes = slopes_at(explain, model, x, y, torch.cat([top, rest], dim=1))
    aimed, _ = thinnest(seen, top, rest, slopes, perturbation, count)
    approach(model, explain, x, y, aimed, perturbation, offer)
