"""How individual explanations are: whether different people are given different reasons."""

import torch
from torch import Tensor

from r2et.core.ranking import top_k_mask

SAME_FOR_ALL = 0.98
"""People who share more of their top k than this have no reasons of their own to be kept."""


def distinct_sets(saliency: Tensor, k: int) -> int:
    """How many different top-k sets a batch of explanations shows.

    >>> distinct_sets(torch.tensor([[3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [1.0, 2.0, 3.0]]), k=2)
    2
    """
    return int(torch.unique(top_k_mask(saliency, k), dim=0).shape[0])


def overlap(saliency: Tensor, k: int, classes: Tensor | None = None) -> float | None:
    """O: the mean share of its top k that an explanation has in common with another person's.

    With `classes` (B,) the others are those of the same class; whoever is alone in a class does not
    count. None where nobody has another to be compared with.

    >>> overlap(torch.tensor([[3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [1.0, 2.0, 3.0]]), k=2)
    0.6666666666666666
    """
    top = top_k_mask(saliency, k).double()
    groups = [top] if classes is None else [top[classes == each] for each in classes.unique()]
    shared, people = 0.0, 0
    for group in groups:
        if len(group) > 1:
            # The sum over all ordered pairs of the features that both have, without oneself.
            common = float(group.sum(0).square().sum()) - k * len(group)
            shared += common / (k * (len(group) - 1))
            people += len(group)
    return shared / people if people else None


def kappa(stability: float, overlap: float) -> float | None:
    """(S - O) / (1 - O): what stays of the reasons beyond what any two people share.

    1 is all of it; at 0 a change does as much to a person's reasons as another person's in their
    place; below 0 it does more. None where O is above SAME_FOR_ALL: no reasons are individual.

    >>> kappa(0.75, 0.5), kappa(0.9, 0.99)
    (0.5, None)
    """
    return None if overlap > SAME_FOR_ALL else (stability - overlap) / (1 - overlap)
