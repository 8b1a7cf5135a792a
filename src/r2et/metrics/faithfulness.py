"""Faithfulness: how far the model's answer hangs on the features an explanation names (B.1.4).

A removed feature is set to a baseline value, zero unless given. This stands for "absent" only
where the data makes it so, as for one-hot columns, black pixels and scaled means.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.core.ranking import order
from r2et.explainers import check_inputs, check_predicted, logits_of

ROWS_AT_ONCE = 1024
NEVER = 2**62  # the rank of what is not explained
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


def shares_of(n: int, shares: Sequence[float] = SHARES) -> tuple[int, ...]:
    """Sizes that are shares of n features, each at least one: the K of images and graphs.

    >>> shares_of(784)
    (8, 39, 78, 157, 392)
    """
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares must be larger than 0 and at most 1, got {tuple(shares)}.")
    return tuple(sorted({max(1, round(share * n)) for share in shares}))


def dffot(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    saliency: Tensor,
    *,
    baseline: float | Tensor = 0.0,
    sizes: Sequence[int] | None = None,
    groups: Sequence[int] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Tensor:
    """Smallest share k/n of top features whose removal changes the predicted class y: (B,).

    DFFOT = min_k k/n with argmax f(x) != argmax f(x without its top k), and 1 where no removal
    does it. The minimum is over k = 1..n; over fewer `sizes` the result can only be larger.
    `saliency` is (B, n); where several input numbers make one feature, `groups` names the feature
    of each number of a flattened example, -1 for those that are not explained and never removed.
    """
    return flipping_share(
        model,
        x,
        y,
        saliency,
        baseline=baseline,
        sizes=sizes,
        groups=groups,
        rows_at_once=rows_at_once,
    ).clamp(max=1)


def flipping_share(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    saliency: Tensor,
    *,
    baseline: float | Tensor = 0.0,
    sizes: Sequence[int] | None = None,
    groups: Sequence[int] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Tensor:
    """What `dffot` tells, but infinity where no removal changes the predicted class: (B,)."""
    place = _places(model, x, y, saliency, groups, rows_at_once)
    check_predicted(model, x, y, rows_at_once)
    n = saliency.shape[1]
    all_sizes = _sizes(sizes, n).to(x.device)
    share = torch.full_like(saliency[:, 0], torch.inf)
    for waiting in torch.arange(len(x), device=x.device).split(rows_at_once):
        done = 0
        while done < len(all_sizes) and len(waiting):
            now = all_sizes[done : done + max(1, rows_at_once // len(waiting))]
            done += len(now)
            removed = place[waiting] < now[:, None, None]
            changed = _logits(model, x[waiting], removed, baseline).argmax(-1) != y[waiting]
            flipped = changed.any(0)
            smallest = now[changed.int().argmax(0)[flipped]]
            share[waiting[flipped]] = smallest.to(share) / n
            waiting = waiting[~flipped]
    return share


def comp(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    saliency: Tensor,
    *,
    baseline: float | Tensor = 0.0,
    sizes: Sequence[int] | None = None,
    groups: Sequence[int] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Tensor:
    """Comprehensiveness: how much the answer changes without the top features: (B,).

    COMP = mean over k in K of |f_c(x) - f_c(x without its top k)|, c = `y`, K = `sizes`, 1..n
    unless given. For `saliency` and `groups` see `dffot`.
    """
    return _mean_change(model, x, y, saliency, False, baseline, sizes, groups, rows_at_once)


def suff(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    saliency: Tensor,
    *,
    baseline: float | Tensor = 0.0,
    sizes: Sequence[int] | None = None,
    groups: Sequence[int] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Tensor:
    """Sufficiency: how much the answer changes when only the top features are left: (B,).

    SUFF = mean over k in K of |f_c(x) - f_c(only the top k of x)|, c = `y`, K = `sizes`, 1..n
    unless given. For `saliency` and `groups` see `dffot`.
    """
    return _mean_change(model, x, y, saliency, True, baseline, sizes, groups, rows_at_once)


def _mean_change(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    saliency: Tensor,
    keep_top: bool,
    baseline: float | Tensor,
    sizes: Sequence[int] | None,
    groups: Sequence[int] | None,
    rows_at_once: int,
) -> Tensor:
    """Mean over sizes of |f_c(x) - f_c(x thinned)|: (B,)."""
    place = _places(model, x, y, saliency, groups, rows_at_once)
    every_size = _sizes(sizes, saliency.shape[1]).to(x.device)
    together = max(1, rows_at_once // max(1, min(len(x), rows_at_once)))
    means = [x.new_zeros(0)]
    for rows in torch.arange(len(x), device=x.device).split(rows_at_once):
        part, labels, ranks = x[rows], y[rows], place[rows]
        counted = ranks < NEVER
        nothing = torch.zeros_like(ranks, dtype=torch.bool)[None]
        whole = _confidence(_logits(model, part, nothing, baseline), labels)
        total = torch.zeros_like(whole[0])
        for now in every_size.split(together):
            in_top = ranks < now[:, None, None]
            removed = counted & ~in_top if keep_top else in_top
            left = _confidence(_logits(model, part, removed, baseline), labels)
            total += (whole - left).abs().sum(0)
        means.append(total / len(every_size))
    return torch.cat(means)


def _places(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    saliency: Tensor,
    groups: Sequence[int] | None,
    rows_at_once: int,
) -> Tensor:
    """Rank, from 0, of the feature each input number belongs to, `NEVER` if to none: (B, d)."""
    check_inputs(model, x, y)
    d = x.flatten(1).shape[1]
    n = saliency.shape[-1]
    if rows_at_once < 1:
        raise ValueError(f"rows_at_once must be at least 1, got {rows_at_once}.")
    if saliency.ndim != 2 or len(saliency) != len(x) or (groups is None and n != d):
        raise ValueError(
            f"the saliency must have shape ({len(x)}, {d}), one score for each input number, got "
            f"{tuple(saliency.shape)}: give groups where several numbers make one feature."
        )
    ranking = order(saliency.detach())
    ranks = torch.arange(n, device=x.device).expand_as(ranking)
    place = torch.empty_like(ranking).scatter(-1, ranking, ranks)
    if groups is None:
        return place
    index = torch.as_tensor(groups, device=x.device)
    if index.shape != (d,) or not -1 <= int(index.min()) <= int(index.max()) < n:
        raise ValueError(
            f"groups must name a feature 0..{n - 1}, or -1, for each of {d} input numbers, got "
            f"{len(groups)} numbers."
        )
    return place[:, index].masked_fill(index < 0, NEVER)


def _sizes(sizes: Sequence[int] | None, n: int) -> Tensor:
    """The set K in rising order: (|K|,)."""
    if sizes is None:
        return torch.arange(1, n + 1)
    if not sizes or not all(1 <= size <= n for size in sizes):
        raise ValueError(f"sizes must be one or more numbers in 1..{n}, got {tuple(sizes)}.")
    return torch.tensor(sorted(set(sizes)))


def _logits(model: nn.Module, x: Tensor, removed: Tensor, baseline: float | Tensor) -> Tensor:
    """Logits of x with the `removed` numbers (m, B, d) at the baseline: (m, B, C)."""
    absent = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
    if absent.ndim and absent.numel() != x[0].numel():
        raise ValueError(
            f"the baseline must be one number or one for each of the {x[0].numel()} input numbers, "
            f"got shape {tuple(absent.shape)}."
        )
    thinned = torch.where(removed, absent.flatten(), x.flatten(1))
    with torch.no_grad(), eval_mode(model):
        logits = logits_of(model, thinned.view(-1, *x.shape[1:]))
    return logits.view(*removed.shape[:2], -1)


def _confidence(logits: Tensor, y: Tensor) -> Tensor:
    """Probability of class y, f_c: (m, B) from logits (m, B, C)."""
    index = y[:, None].expand(*logits.shape[:-1], 1)
    return logits.softmax(-1).gather(-1, index).squeeze(-1)
