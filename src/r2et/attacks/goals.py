"""What an attacker lowers: (saliency of x') -> one number for each example."""

from collections.abc import Callable

import torch
from torch import Tensor

from r2et.ranking import facing_weights, lead_weights

Goal = Callable[[Tensor], Tensor]


def ranking_goal(before: Tensor, k: int) -> Goal:
    """Mean gap h(x', i, j) over the pairs of a clean top-k feature i and any other j: ERAttack."""
    weights = lead_weights(before, k)
    return lambda saliency: (saliency * weights).sum(-1)


def facing_goal(before: Tensor, k: int, pairs: int | None = None) -> Goal:
    """Mean gap of the pairs facing each other across the k-th place of the clean ranking."""
    weights = facing_weights(before, k, pairs)
    return lambda saliency: (saliency * weights).sum(-1)


def distance_goal(before: Tensor) -> Goal:
    """Minus the squared distance to the clean explanation, -||I(x) - I(x')||^2: MSE attack."""
    return lambda saliency: -(saliency - before).square().sum(-1)


def relative(goal: Goal) -> Goal:
    """A goal on the explanation scaled to length one, so that shrinking all gaps does not help."""

    def scaled(saliency: Tensor) -> Tensor:
        length = saliency.norm(dim=-1, keepdim=True)
        return goal(saliency / torch.where(length > 0, length, 1.0))

    return scaled
