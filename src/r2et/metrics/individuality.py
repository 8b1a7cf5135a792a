"""How individual explanations are: whether different people are given different reasons."""

import torch
from torch import Tensor

from r2et.core.ranking import top_k_mask


def distinct_sets(saliency: Tensor, k: int) -> int:
    """How many different top-k sets a batch of explanations shows.

    >>> distinct_sets(torch.tensor([[3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [1.0, 2.0, 3.0]]), k=2)
    2
    """
    return int(torch.unique(top_k_mask(saliency, k), dim=0).shape[0])
