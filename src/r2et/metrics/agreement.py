"""Agreement of two explanations of the same examples, before and after something happened."""

import torch
from torch import Tensor

from r2et.core.ranking import precision_at_k

__all__ = ["kendall", "mse", "pearson", "precision_at_k", "spearman"]


def check_both(before: Tensor, after: Tensor) -> None:
    """Refuse explanations that do not score the same features of the same examples."""
    if before.shape != after.shape or before.ndim != 2 or before.shape[-1] < 2:
        raise ValueError(
            f"both explanations must have one shape (B, n) with n >= 2, got {tuple(before.shape)} "
            f"and {tuple(after.shape)}."
        )


def pearson(before: Tensor, after: Tensor) -> Tensor:
    """Correlation of the two saliencies of each example: (B,), zero where one is constant.

    >>> pearson(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[6.0, 4.0, 2.0]]))
    tensor([1.])
    """
    check_both(before, after)
    product = (_standardised(before) * _standardised(after)).sum(-1)
    return product.clamp(-1, 1).to(before.dtype)


def mse(before: Tensor, after: Tensor) -> Tensor:
    """Mean squared difference of the two saliencies of each example: (B,)."""
    check_both(before, after)
    return (before - after).square().mean(-1)


def spearman(before: Tensor, after: Tensor) -> Tensor:
    """Correlation of the ranks, ties sharing their mean rank: (B,), zero where one is constant."""
    check_both(before, after)
    return pearson(_ranks(before), _ranks(after)).to(before)


def kendall(before: Tensor, after: Tensor) -> Tensor:
    """Kendall's tau-b, pairs in order minus pairs reversed: (B,), zero where one is constant."""
    from scipy import stats

    check_both(before, after)
    rows = zip(before.detach().cpu().numpy(), after.detach().cpu().numpy(), strict=True)
    taus = [float(stats.kendalltau(first, second).statistic) for first, second in rows]
    constant = _constant(before) | _constant(after)
    return torch.tensor(taus, dtype=torch.float64).to(before).masked_fill(constant, 0.0)


def _constant(saliency: Tensor) -> Tensor:
    """Whether all features of an example score the same: (B,)."""
    return saliency.amax(-1) == saliency.amin(-1)


def _standardised(saliency: Tensor) -> Tensor:
    """Saliency of mean zero and length one, all zeros where it is constant: (B, n), float64."""
    values = saliency.detach().double()
    centred = values - values.mean(-1, keepdim=True)
    # A sure model explains with numbers whose squares are too small to be stored.
    size = centred.abs().amax(-1, keepdim=True)
    centred = centred / torch.where(size > 0, size, 1.0)
    length = centred.norm(dim=-1, keepdim=True)
    centred = centred / torch.where(length > 0, length, 1.0)
    # Rounding of the mean leaves a constant row not quite zero, so constancy is asked of the row.
    return centred.masked_fill(_constant(saliency)[:, None], 0.0)


def _ranks(saliency: Tensor) -> Tensor:
    """Rank of each feature, ties sharing their mean rank: (B, n), float64."""
    from scipy import stats

    return torch.from_numpy(stats.rankdata(saliency.detach().cpu().numpy(), axis=-1)).double()
