"""Margins of the top k over the others, as methods widen them, never one by one."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from r2et.core.ranking import check_k, facing_count, facing_margin, order, top_margin

Pairs = Literal["all", "facing", "anchor", "printed-anchor"]
Over = Literal["mean", "sum"]
Gap = Literal["plain", "exponential", "normalised"]
PAIRS, GAPS, OVER = get_args(Pairs), get_args(Gap), get_args(Over)


def unit_length(saliency: Tensor) -> Tensor:
    """Each explanation scaled to l2 length one (all zeros stay so): (B, n)."""
    # The largest entry is divided out first: squares of a saturated model's slopes underflow.
    largest = saliency.detach().abs().amax(-1, keepdim=True)
    scaled = saliency / torch.where(largest > 0, largest, 1.0)
    squared = scaled.square().sum(-1, keepdim=True)
    return scaled / torch.where(squared > 0, squared, 1.0).sqrt()


def check_choices(pairs: str, gap: str, over: str = "mean") -> None:
    """Refuse forms of the gap that do not exist."""
    if gap not in GAPS or pairs not in PAIRS or over not in OVER:
        raise ValueError(
            f"gap must be one of {GAPS}, pairs one of {PAIRS} and over one of {OVER}, got {gap!r}, "
            f"{pairs!r} and {over!r}."
        )


def pair_count(k: int, n: int, pairs: Pairs = "all", facing: int | None = None) -> int:
    """How many pairs of features a form of the gap compares.

    >>> pair_count(8, 28), pair_count(8, 28, "facing"), pair_count(8, 28, "anchor", 3)
    (160, 8, 5)
    """
    if pairs == "all":
        return k * (n - k)
    count = facing_count(k, n, facing)
    if pairs == "facing":
        return count
    return count - 1 + (_last(k, n, count, pairs) - k)


def _last(k: int, n: int, count: int, pairs: Pairs) -> int:
    """The last place, counted from 1, that a pair of an anchor form compares with place k."""
    return min(n, k + count + (pairs == "printed-anchor"))


def mean_margin(
    saliency: Tensor,
    reference: Tensor,
    k: int,
    *,
    pairs: Pairs = "all",
    gap: Gap = "plain",
    facing: int | None = None,
    room: float = 0.0,
) -> Tensor:
    """Mean over pairs of h(x, i, j), or of exp(h), by the ranking of `reference`: (B,).

    "all": every top-k feature against every other; "facing": (k-i+1, k+i) for i = 1..k';
    "anchor": (i, k) for i = k-k'+1..k-1 and (k, j) for j = k+1..k+k', as in Q. k' = `facing`.
    "printed-anchor": the same with j up to k+k'+1, or n, as P prints it (B.2.5).
    "normalised" takes the gaps of the explanation scaled to length one: a plain gap also grows
    with the explanation itself, and with it the ease of flipping predictions. With `room` the gaps
    of facing pairs so scaled are clipped at room / sqrt(n): pairs that are far enough apart ask for
    no more.
    """
    check_choices(pairs, gap)
    n = saliency.shape[-1]
    check_k(k, n)
    if gap == "normalised":
        saliency = unit_length(saliency)
    if room:
        count = facing_count(k, n, facing)
        ranked = saliency.gather(-1, order(reference)[:, k - count : k + count])
        gaps = ranked[:, :count].flip(-1) - ranked[:, count:]
        return gaps.clamp(max=room / math.sqrt(n)).mean(-1)
    if gap != "exponential":
        if pairs == "all":
            return top_margin(saliency, reference, k)
        if pairs != "printed-anchor":
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
    upper, lower = ranked[:, k - count : k], ranked[:, k : _last(k, n, count, pairs)]
    if pairs == "facing":
        return (upper.flip(-1) - lower).exp().mean(-1)
    anchor = ranked[:, k - 1 : k]
    gaps = torch.cat([upper[:, :-1] - anchor, anchor - lower], dim=-1)
    return (gaps.exp() if gap == "exponential" else gaps).mean(-1)
