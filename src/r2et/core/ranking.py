"""Who outranks whom: order, margins, rank weights, top-k sets and ties.

The margin of a pair of features (i, j) is the score of i minus that of j, h(x, i, j) of the paper.
"""

import numpy as np
import torch
from torch import Tensor


def check_k(k: int, n: int) -> None:
    """Refuse a k that leaves no feature to defend the top against."""
    if not 1 <= k < n:
        raise ValueError(f"k must lie in 1..{n - 1} for {n} features, got {k}: choose another k.")


def facing_count(k: int, n: int, pairs: int | None = None) -> int:
    """How many pairs face each other across the k-th place, k' <= min(k, n - k)."""
    check_k(k, n)
    most = min(k, n - k)
    if pairs is None:
        return most
    if not 1 <= pairs <= most:
        raise ValueError(
            f"k' must lie in 1..{most} for k = {k} of {n} features, got {pairs}: choose another k'."
        )
    return pairs


def order(saliency: Tensor) -> Tensor:
    """Feature numbers from most to least salient, ties by feature number: (B, n)."""
    if on_cpu(saliency):
        # NumPy sorts several times faster where it need not keep ties in order: so try that first.
        falling = -saliency.detach().numpy()
        places = falling.argsort(axis=-1)
        ranked = np.take_along_axis(falling, places, axis=-1)
        if bool((ranked[..., 1:] > ranked[..., :-1]).all()):
            return torch.from_numpy(places)
    return saliency.argsort(dim=-1, descending=True, stable=True)


def on_cpu(saliency: Tensor) -> bool:
    """Whether NumPy can read the numbers where they are."""
    return saliency.device.type == "cpu" and saliency.dtype in (torch.float32, torch.float64)


def margin_weights(reference: Tensor, k: int) -> Tensor:
    """Weights whose sum with a saliency is `top_margin`, 1/k or -1/(n - k) each: (B, n).

    The mean over all k(n - k) pairs is the mean of the top minus the mean of the rest, so the
    pairs are never formed. Up to the factor k(n - k) these are the l_i of the paper.
    """
    n = reference.shape[-1]
    check_k(k, n)
    return torch.full_like(reference, -1 / (n - k)).masked_fill_(top_k_mask(reference, k), 1 / k)


def facing_weights(reference: Tensor, k: int, pairs: int | None = None) -> Tensor:
    """Weights whose sum with a saliency is `facing_margin`: (B, n)."""
    facing = facing_count(k, reference.shape[-1], pairs)
    by_rank = torch.zeros_like(reference)
    by_rank[..., k - facing : k] = 1 / facing
    by_rank[..., k : k + facing] = -1 / facing
    return torch.zeros_like(reference).scatter(-1, order(reference), by_rank)


def top_margin(saliency: Tensor, reference: Tensor, k: int) -> Tensor:
    """Mean margin of a top-k feature of `reference` over any other: (B,).

    >>> top_margin(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 2.0, 1.0]]), k=1)
    tensor([1.5000])
    """
    return (saliency * margin_weights(reference, k)).sum(-1)


def facing_margin(saliency: Tensor, reference: Tensor, k: int, pairs: int | None = None) -> Tensor:
    """Mean margin of the k' pairs facing each other across the k-th place: (B,).

    The pairs are (k, k+1), (k-1, k+2), ...: the last of the top against the first of the rest.
    The anchor form of the 2022 paper, every one of them against the k-th feature, has the same sum.
    """
    return (saliency * facing_weights(reference, k, pairs)).sum(-1)


def top_k_mask(saliency: Tensor, k: int) -> Tensor:
    """Which features are among the k most salient, ties by feature number: (B, n) booleans."""
    check_k(k, saliency.shape[-1])
    # To know the k-th value takes less than to sort; only where others equal it, or where values
    # are no numbers, does it take the order to tell which are in.
    if on_cpu(saliency):
        # NumPy finds it at a cost that does not grow with k, several times faster than torch.
        scores, place = saliency.detach().numpy(), saliency.shape[-1] - k
        within = scores >= np.partition(scores, place, axis=-1)[..., place : place + 1]
        # Of numbers no row has fewer than k within: together they have as many iff each has k.
        certain = np.count_nonzero(within) * scores.shape[-1] == k * scores.size
        if certain and not np.isnan(scores.max(initial=-np.inf)):
            return torch.from_numpy(within)
    else:
        top = saliency >= saliency.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        if bool((top.sum(-1) == k).all()):
            return top
    mask = torch.zeros_like(saliency, dtype=torch.bool)
    return mask.scatter(-1, order(saliency)[..., :k], True)


def precision_at_k(before: Tensor, after: Tensor, k: int) -> Tensor:
    """Share of the top k of `before` that are still in the top k of `after`: (B,).

    >>> precision_at_k(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 2.0]]), k=2)
    tensor([0.5000])
    """
    if before.shape != after.shape:
        raise ValueError(
            f"two explanations to compare must have one shape, got {tuple(before.shape)} and "
            f"{tuple(after.shape)}."
        )
    kept = top_k_mask(before, k) & top_k_mask(after, k)
    return kept.sum(-1).to(before.dtype) / k


def ties(saliency: Tensor, k: int) -> Tensor:
    """Whether the k-th and the next feature are equal, so that the top k is arbitrary: (B,)."""
    check_k(k, saliency.shape[-1])
    values = saliency.sort(dim=-1, descending=True).values
    return values[..., k - 1] == values[..., k]
