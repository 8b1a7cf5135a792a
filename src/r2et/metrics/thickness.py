"""Thickness: how far the top k stay ahead on the way from x to its neighbours (Sec. 4.1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from r2et.core.geometry import on_segment
from r2et.core.inputs import joined, packed
from r2et.core.ranking import check_k, facing_count, order
from r2et.core.rng import in_ball, noise_like
from r2et.explainers import Explainer, check_inputs, explained

Variant = Literal["mean", "probability", "average-precision", "dcg", "facing"]
Draw = Callable[[Tensor, torch.Generator], Tensor]
Neighbourhood = Draw | Tensor

ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Thickness:
    """Thickness of each example, (B,) each: mean and minimum over its neighbours, with an interval.

    `low` and `high` bound the mean over the whole neighbourhood at the chosen level (Student t),
    and are infinite for one neighbour alone. They tell the error of drawing few neighbours, not
    that of taking few `points` on each segment.
    """

    value: Tensor
    minimum: Tensor
    low: Tensor
    high: Tensor
    neighbours: int
    points: int


def uniform_ball(radius: float) -> Draw:
    """Neighbours uniform in the l2 ball of `radius` around x."""
    check_length("radius", radius)
    return lambda x, generator: in_ball(x, radius, generator)


def gaussian(sd: float) -> Draw:
    """Neighbours x + sd z, with z standard normal."""
    check_length("sd", sd)
    return lambda x, generator: x + sd * noise_like(x, generator)


def rank_weights(variant: Variant, n: int, k: int, pairs: int | None = None) -> Tensor:
    """Weight of each rank, so that ranked saliency times weights is the thickness at a point: (n,).

    A sum of gaps I_i - I_j is linear in I, hence O(n) weights stand for the k(n - k) pairs:
    "mean" of all pairs (Def. 4.2), "average-precision" the mean of the top-1 to top-k thicknesses,
    "dcg" the sum over i <= k < j of h(i, j) / log(j - i + 1), "facing" the sum over i = 1..k' of
    h(k - i + 1, k + i), with k' = `pairs`, min(k, n - k) unless given.

    >>> rank_weights("mean", n=4, k=1)
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333], dtype=torch.float64)
    """
    check_k(k, n)
    _check_variant(variant, pairs)
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    if variant == "mean":
        top = (rank <= k).double()
        return top / k - (1 - top) / (n - k)
    if variant == "facing":
        across = k + 0.5 - rank
        return across.sign() * (across.abs() < facing_count(k, n, pairs))
    if variant == "average-precision":
        # Rank p belongs to the top of sizes p..k and to the rest of sizes 1..p-1.
        sizes = rank[:k]
        gains = _prefix_sums(1 / sizes)
        losses = _prefix_sums(1 / (n - sizes))
        smaller = torch.arange(n).clamp_max(k)
        return (gains[k] - gains[smaller] - losses[smaller]) / k
    if variant == "dcg":
        # discount[m] is the sum of 1 / log(g) over g = 2..m; every rank faces a run of distances.
        discount = _prefix_sums(torch.cat([torch.zeros(1).double(), 1 / rank[1:].log()]))
        place = torch.arange(1, n + 1)
        top, rest = place[:k], place[k:]
        return torch.cat(
            [discount[n - top + 1] - discount[k - top + 1], discount[rest - k] - discount[rest]]
        )
    raise ValueError(
        "the probability variant counts pairs and has no rank weights: use ordered_share."
    )


def ordered_share(ranked: Tensor, k: int) -> Tensor:
    """Share of the k(n - k) pairs in which the top is at least as salient as the rest: (...).

    `ranked` (..., n) is a saliency in the order of the clean ranking. The pairs are counted by
    sorting the rest, never formed.
    """
    n = ranked.shape[-1]
    check_k(k, n)
    rest = ranked[..., k:].sort(dim=-1).values.contiguous()
    beaten = torch.searchsorted(rest, ranked[..., :k].contiguous(), right=True)
    return (beaten.sum(-1).double() / (k * (n - k))).to(ranked.dtype)


def thickness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    neighbourhood: Neighbourhood,
    *,
    explain: Explainer,
    k: int,
    variant: Variant = "mean",
    pairs: int | None = None,
    samples: int = 16,
    points: int = 16,
    generator: torch.Generator | None = None,
    level: float = 0.95,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Thickness:
    """Thickness of the top k around each example (Def. 4.2 and its variants): (B,) each.

    Theta = E over x' in D of the integral over t in 0..1 of the gaps at x(t) = (1 - t) x + t x',
    between the features that are in the top k at the clean x and those that are not. D is
    `neighbourhood`: a way to draw `samples` neighbours, or the neighbours themselves, (S, B, ...);
    an attacked x is the single neighbour `attacked[None]`. The integral is the midpoint rule with
    `points` points. Memory grows with max(rows_at_once, B) times n, whatever S, `points` and k.
    """
    _check_variant(variant, pairs)
    model, x = joined(model, x), packed(x, model)
    check_inputs(model, x, y)
    ranking = order(explained(model, explain, x, y))
    n = ranking.shape[-1]
    check_k(k, n)
    if variant == "probability":

        def measure(saliency: Tensor) -> Tensor:
            return ordered_share(saliency.gather(-1, ranking.expand_as(saliency)), k)

    else:
        weights = rank_weights(variant, n, k, pairs).to(x).expand_as(ranking)
        by_feature = torch.empty_like(weights).scatter(-1, ranking, weights)

        def measure(saliency: Tensor) -> Tensor:
            return (saliency * by_feature).sum(-1)

    return _over_neighbours(
        model,
        x,
        y,
        neighbourhood,
        explain=explain,
        measure=measure,
        samples=samples,
        points=points,
        generator=generator,
        level=level,
        rows_at_once=rows_at_once,
    )


def pairwise_thickness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    neighbourhood: Neighbourhood,
    i: int | Tensor,
    j: int | Tensor,
    *,
    explain: Explainer,
    samples: int = 16,
    points: int = 16,
    generator: torch.Generator | None = None,
    level: float = 0.95,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Thickness:
    """Thickness of the pair of features i, j around each example (Def. 4.1): (B,) each.

    Features are given by number, one for all examples or one for each, (B,). For the rest see
    `thickness`.
    """
    check_inputs(model, x, y)
    n = explained(model, explain, x[:1], y[:1]).shape[-1]
    first, second = feature_numbers(i, x, n), feature_numbers(j, x, n)

    def measure(saliency: Tensor) -> Tensor:
        return _pick(saliency, first) - _pick(saliency, second)

    return _over_neighbours(
        model,
        x,
        y,
        neighbourhood,
        explain=explain,
        measure=measure,
        samples=samples,
        points=points,
        generator=generator,
        level=level,
        rows_at_once=rows_at_once,
    )


def _over_neighbours(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    neighbourhood: Neighbourhood,
    *,
    explain: Explainer,
    measure: Callable[[Tensor], Tensor],
    samples: int,
    points: int,
    generator: torch.Generator | None,
    level: float,
    rows_at_once: int,
) -> Thickness:
    """Mean of `measure`, (..., B, n) to (..., B), on the way to each neighbour, summed up."""
    count = _neighbour_count(neighbourhood, x, samples, generator)
    if points < 1 or rows_at_once < 1 or not 0 < level < 1:
        raise ValueError(
            f"points and rows_at_once must be at least 1 and level between 0 and 1, got {points}, "
            f"{rows_at_once} and {level}."
        )
    together = max(1, rows_at_once // max(1, len(x)))  # places of each example explained at once
    group = max(1, together // points)
    means = []
    for first in range(0, count, group):
        others = _neighbours(neighbourhood, x, range(first, min(first + group, count)), generator)
        total = x.new_zeros(others.shape[:2])
        for start in range(0, points, together):
            which = range(start, min(start + together, points))
            places = on_segment(x, others, points, which)  # (points, neighbours, B, ...)
            rows = places.flatten(0, 2)
            saliency = explained(model, explain, rows, y.repeat(len(which) * len(others)))
            total += measure(saliency.view(*places.shape[:3], -1)).sum(0)
        means.append(total / points)
    return _summary(torch.cat(means), points, level)


def _summary(means: Tensor, points: int, level: float) -> Thickness:
    """Mean, minimum and interval over the neighbours of `means` (S, B)."""
    from scipy import stats

    count, value = len(means), means.mean(0)
    if count > 1:
        quantile = float(stats.t.ppf((1 + level) / 2, count - 1))
        half = quantile * means.std(0) / count**0.5
    else:
        half = torch.full_like(value, torch.inf)
    return Thickness(
        value=value,
        minimum=means.amin(0),
        low=value - half,
        high=value + half,
        neighbours=count,
        points=points,
    )


def _neighbour_count(
    neighbourhood: Neighbourhood, x: Tensor, samples: int, generator: torch.Generator | None
) -> int:
    """How many neighbours there will be; refuse what gives none."""
    if isinstance(neighbourhood, Tensor):
        if neighbourhood.shape[1:] != x.shape or not len(neighbourhood):
            raise ValueError(
                f"given neighbours must have shape (S, {', '.join(map(str, x.shape))}), got "
                f"{tuple(neighbourhood.shape)}: give one attacked x as attacked[None]."
            )
        return len(neighbourhood)
    if generator is None or samples < 1:
        raise ValueError(
            f"drawing neighbours takes a generator and at least one sample, got {generator} and "
            f"{samples}: give generator=stream(seed, purpose)."
        )
    return samples


def _neighbours(
    neighbourhood: Neighbourhood, x: Tensor, which: range, generator: torch.Generator | None
) -> Tensor:
    """The neighbours of these numbers: (len(which), B, ...)."""
    if isinstance(neighbourhood, Tensor):
        return neighbourhood[which.start : which.stop].detach().to(x)
    assert generator is not None
    with torch.no_grad():
        return torch.stack([neighbourhood(x, generator) for _ in which])


def _check_variant(variant: Variant, pairs: int | None) -> None:
    """Refuse an unknown variant, and a number of pairs where no pairs are chosen."""
    if variant not in get_args(Variant):
        raise ValueError(f"the variant is one of {get_args(Variant)}, got {variant!r}.")
    if pairs is not None and variant != "facing":
        raise ValueError(
            f"pairs is the k' of the facing variant, got {pairs} with {variant!r}: leave it out."
        )


def check_length(name: str, length: float) -> None:
    """Refuse a length that is none."""
    if not 0 <= length < float("inf"):
        raise ValueError(f"{name} must be a finite number of at least 0, got {length}.")


def _prefix_sums(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, ..., m values: (m + 1,)."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)])


def feature_numbers(number: int | Tensor, x: Tensor, n: int) -> Tensor:
    """One feature number for each example: (B,)."""
    numbers = torch.as_tensor(number, device=x.device)
    if numbers.is_floating_point() or numbers.ndim > 1 or numbers.shape not in ((), x.shape[:1]):
        raise ValueError(
            f"a feature is one whole number, or one for each of the {len(x)} examples, got shape "
            f"{tuple(numbers.shape)} of {numbers.dtype}."
        )
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < n:
        raise ValueError(f"features are numbered 0..{n - 1}, got {number}.")
    return numbers.long().expand(len(x))


def _pick(saliency: Tensor, feature: Tensor) -> Tensor:
    """Score of one feature for each example of (..., B, n): (..., B)."""
    index = feature[:, None].expand(*saliency.shape[:-1], 1)
    return saliency.gather(-1, index).squeeze(-1)
