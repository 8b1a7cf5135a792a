"""What an attacker lowers: (saliency of x') -> one number for each example."""

from collections.abc import Callable

import torch
from torch import Tensor

from r2et.core.ranking import margin_weights, top_k_mask

Goal = Callable[[Tensor], Tensor]


def ranking_goal(before: Tensor, k: int) -> Goal:
    """Mean gap h(x', i, j) over the pairs of a clean top-k feature i and any other j: ERAttack."""
    weights = margin_weights(before, k)
    return lambda saliency: (saliency * weights).sum(-1)


def weighted_goal(before: Tensor, k: int, weights: Tensor) -> Goal:
    """Mean of the clean top k minus mean of the rest, weighted: some pairs count more than others.

    `weights` (B, n) are not negative; a side on which all are zero counts evenly.
    """
    top = top_k_mask(before, k)

    def shares(side: Tensor) -> Tensor:
        chosen = torch.where(side, weights.to(before), 0.0)
        total = chosen.sum(-1, keepdim=True)
        chosen = torch.where(total > 0, chosen, side.to(before))
        return chosen / chosen.sum(-1, keepdim=True)

    sides = shares(top) - shares(~top)
    return lambda saliency: (saliency * sides).sum(-1)


def distance_goal(before: Tensor) -> Goal:
    """Minus the squared distance to the clean explanation, -||I(x) - I(x')||^2: MSE attack."""
    return lambda saliency: -(saliency - before).square().sum(-1)


def relative(goal: Goal) -> Goal:
    """A goal on the explanation scaled to length one, so that shrinking all gaps does not help."""

    def scaled(saliency: Tensor) -> Tensor:
        length = saliency.norm(dim=-1, keepdim=True)
        return goal(saliency / torch.where(length > 0, length, 1.0))

    return scaled
