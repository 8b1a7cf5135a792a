"""What an attacker lowers: (saliency of x') -> one number for each example."""

from collections.abc import Callable

import torch
from torch import Tensor

from r2et.ranking import lead_weights, top_k_mask

Goal = Callable[[Tensor], Tensor]


def ranking_goal(before: Tensor, k: int) -> Goal:
    """Mean gap h(x', i, j) over the pairs of a clean top-k feature i and any other j: ERAttack."""
    weights = lead_weights(before, k)
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


def closest_goal(before: Tensor, k: int) -> Goal:
    """Gap of the pair nearest to changing places: lowest of the top k, highest of the rest."""
    top = top_k_mask(before, k)

    def gap(saliency: Tensor) -> Tensor:
        lowest = saliency.masked_fill(~top, torch.inf).amin(-1)
        return lowest - saliency.masked_fill(top, -torch.inf).amax(-1)

    return gap


def threshold_goal(before: Tensor, k: int, temperature: float) -> Goal:
    """A smooth count of the clean top-k features still above the k-th place, minus the others.

    sum_i w_i tanh((I_i - cut) / (temperature * spread)), w = 1 for the clean top k, -1 elsewhere,
    `cut` halfway between the k-th and the next score, `spread` their root mean square. Features
    near the cut count most: those are the ones that can be made to change places.
    """
    sides = torch.where(top_k_mask(before, k), 1.0, -1.0).to(before)

    def count(saliency: Tensor) -> Tensor:
        held = saliency.detach()
        edge = held.topk(k + 1, dim=-1).values[:, k - 1 :]
        spread = held.square().mean(-1, keepdim=True).sqrt()
        width = temperature * torch.where(spread > 0, spread, 1.0)
        return (sides * torch.tanh((saliency - edge.mean(-1, keepdim=True)) / width)).sum(-1)

    return count


def distance_goal(before: Tensor) -> Goal:
    """Minus the squared distance to the clean explanation, -||I(x) - I(x')||^2: MSE attack."""
    return lambda saliency: -(saliency - before).square().sum(-1)


def relative(goal: Goal) -> Goal:
    """A goal on the explanation scaled to length one, so that shrinking all gaps does not help."""

    def scaled(saliency: Tensor) -> Tensor:
        length = saliency.norm(dim=-1, keepdim=True)
        return goal(saliency / torch.where(length > 0, length, 1.0))

    return scaled
