"""How individual explanations are: whether different people are given different reasons."""

import numpy as np
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


def most_individual(x: Tensor, widths: Tensor) -> float:
    """The largest 1 - O that decisions can have whose reasons no move changes: a bound for anybody.

    A move changes each column of x, (N, d), by no more than its width, (d,). Two people whose moves
    meet, no column further apart than twice its width, share one set of reasons if both are
    certified, and so do all in a chain of such pairs. Of n_c people in chain c and N in all,
    1 - O <= 1 - sum over c of n_c (n_c - 1) / (N (N - 1)), the share of pairs in different chains.

    >>> most_individual(torch.tensor([[0.0], [1.9], [3.8], [9.0]]), torch.tensor([1.0]))
    0.5
    """
    if widths.shape != x.shape[1:] or not bool((widths >= 0).all()):
        raise ValueError(
            f"widths must be a number >= 0 for each of {x.shape[1]} columns, got {widths.tolist()}."
        )
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import KDTree

    points, reach = x.double().cpu().numpy(), 2 * widths.double().cpu().numpy()
    moves = reach > 0
    # People who differ in what nobody can change are never in one chain.
    _, chain = np.unique(points[:, ~moves], axis=0, return_inverse=True)
    chain = chain.ravel()
    if moves.any():
        scaled, ends = points[:, moves] / reach[moves], [np.empty((0, 2), dtype=np.intp)]
        for each in np.unique(chain):
            own = np.flatnonzero(chain == each)
            near = KDTree(scaled[own]).query_pairs(1.0, p=np.inf, output_type="ndarray")
            ends.append(own[near])
        pairs = np.concatenate(ends)
        shape = len(points), len(points)
        graph = coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=shape)
        chain = connected_components(graph, directed=False)[1].astype(np.intp)
    counts = np.bincount(chain)
    return float(1 - (counts * (counts - 1)).sum() / max(1, len(points) * (len(points) - 1)))
