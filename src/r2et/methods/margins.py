"""Margins of the top k over the others, as methods widen them, never one by one."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from r2et.core.ranking import check_k, facing_count, facing_margin, order, top_margin

Pairs = Literal["all", "facing", "anchor"]
Gap = Literal["plain", "exponential", "normalised"]
PAIRS, GAPS = get_args(Pairs), get_args(Gap)


def unit_length(saliency: Tensor) -> Tensor:
    """Each explanation scaled to l2 length one (all zeros stay so): (B, n)."""
    # The largest entry is divided out first: squares of a saturated model's slopes underflow.
    largest = saliency.detach().abs().amax(-1, keepdim=True)
    scaled = saliency / torch.where(largest > 0, largest, 1.0)
    squared = scaled.square().sum(-1, keepdim=True)
    return scaled / torch.where(squared > 0, squared, 1.0).sqrt()


def check_choices(pairs: str, gap: str) -> None:
    """Refuse forms of the gap that do not exist."""
    if gap not in GAPS or pairs not in PAIRS:
        raise ValueError(
            f"gap must be one of {GAPS} and pairs one of {PAIRS}, got {gap!r} and {pairs!r}."
        )


def mean_margin(
    saliency: Tensor,
    reference: Tensor,
    k: int,
    *,
    pairs: Pairs = "all",
    gap: Gap = "plain",
    facing: int | None = None,
) -> Tensor:
    """Mean over pairs of h(x, i, j), or of exp(h), by the ranking of `reference`: (B,).

    "all": every top-k feature against every other; "facing": (k-i+1, k+i) for i = 1..k';
    "anchor": (i, k) for i = k-k'+1..k-1 and (k, j) for j = k+1..k+k'. k' = `facing`.
    "normalised" takes the gaps of the explanation scaled to length one: a plain gap also grows
    with the explanation itself, and with it the ease of flipping predictions.
    """
    check_choices(pairs, gap)
    n = saliency.shape[-1]
    check_k(k, n)
    if gap == "normalised":
        saliency = unit_length(saliency)
    if gap != "exponential":
        if pairs == "all":
            return top_margin(saliency, reference, k)
        wide = facing_margin(saliency, reference, k, facing)
        # The anchor's 2k' - 1 gaps have the sum of the k' facing ones.
        count = facing_count(k, n, facing)
        return wide if pairs == "facing" else wide * count / (2 * count - 1)
    ranked = saliency.gather(-1, order(reference))
    if pairs == "all":
        # exp(I_i - I_j) is a product, so the sum over pairs is a product of sums; the product is
        # taken of logarithms, since exp(I_i) alone can overflow where the gap is small.
        logarithm = ranked[:, :k].logsumexp(-1) + (-ranked[:, k:]).logsumexp(-1)
        return (logarithm - math.log(k * (n - k))).exp()
    count = facing_count(k, n, facing)
    upper, lower = ranked[:, k - count : k], ranked[:, k : k + count]
    if pairs == "facing":
        return (upper.flip(-1) - lower).exp().mean(-1)
    anchor = ranked[:, k - 1 : k]
    return torch.cat([upper[:, :-1] - anchor, anchor - lower], dim=-1).exp().mean(-1)
