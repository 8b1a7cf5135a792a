"""Training methods as data, and the objective that any training loop can minimise."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.derivatives import estimated_curvature, frozen_statistics
from r2et.explainers import Explainer, check_logits, gradient, slope, slope_of
from r2et.ranking import check_k, facing_count, facing_lead, lead, order

Pairs = Literal["all", "facing", "anchor"]
Gap = Literal["plain", "exponential", "normalised"]


class Look:
    """A batch as a model sees it; what several penalties need is computed once for all of them.

    `logits` are computed from x, with a graph; y is the predicted class, the one explained.
    """

    def __init__(self, model: nn.Module, x: Tensor, logits: Tensor) -> None:
        self.model, self.x, self.logits = model, x, logits
        self.y = logits.detach().argmax(-1)

    @cached_property
    def slope(self) -> Tensor:
        """Gradient of the predicted probability, differentiable: like x."""
        return slope_of(self.logits, self.x, self.y)


Penalty = Callable[[Look], Tensor]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train, as four optional slots; with none of them filled it is Vanilla.

    `prepare` changes the model before training, `perturb` the inputs of each batch, `penalties`
    are added to the loss as (name, weight, penalty), each penalty one number for each example.
    """

    prepare: Callable[[nn.Module], nn.Module] | None = None
    perturb: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None
    penalties: tuple[tuple[str, float, Penalty], ...] = ()
    weight_decay: float = 0.0


class Loss(NamedTuple):
    """The number to minimise and, detached, what it is made of."""

    total: Tensor
    parts: dict[str, Tensor]

    def backward(self) -> None:
        """Add the slope of the total to the weights' gradients."""
        self.total.backward()


class Objective(nn.Module):
    """Cross-entropy plus a method's penalties: `objective(x, y).backward()` in any loop.

    Everything happens in one forward, so that it can be wrapped for several processes.
    """

    def __init__(self, model: nn.Module, method: Method) -> None:
        super().__init__()
        self.model = method.prepare(model) if method.prepare else model
        self.method = method

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Loss:
        """The mean loss over a batch, or the mean by `weights` (B,), and its parts."""
        if self.method.perturb is not None:
            x = self.method.perturb(self.model, x, y)
        if self.method.penalties and not x.requires_grad:
            x = x.detach().requires_grad_()
        logits = self.model(x)
        check_logits(logits)
        parts = {"classification": _mean(F.cross_entropy(logits, y, reduction="none"), weights)}
        total = parts["classification"]
        if self.method.penalties:
            with frozen_statistics(self.model) as switched:
                if switched or not torch.is_grad_enabled():
                    # Logits of batch statistics are good for the loss only: examples mix in them,
                    # and the class they favour need not be the one the model will predict.
                    with torch.enable_grad():
                        logits = self.model(x)
                look = Look(self.model, x, logits)
                for name, weight, penalty in self.method.penalties:
                    parts[name] = _mean(penalty(look), weights)
                    total = total + weight * parts[name]
        return Loss(total, {name: part.detach() for name, part in parts.items()})


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else (values * weights).sum() / weights.sum()


def unit_length(saliency: Tensor) -> Tensor:
    """Each explanation scaled to l2 length one (all zeros stay so): (B, n)."""
    # The largest entry is divided out first: squares of a saturated model's slopes underflow.
    largest = saliency.detach().abs().amax(-1, keepdim=True)
    scaled = saliency / torch.where(largest > 0, largest, 1.0)
    squared = scaled.square().sum(-1, keepdim=True)
    return scaled / torch.where(squared > 0, squared, 1.0).sqrt()


def _check_choices(pairs: str, gap: str) -> None:
    if gap not in get_args(Gap) or pairs not in get_args(Pairs):
        raise ValueError(
            f"gap must be one of {get_args(Gap)} and pairs one of {get_args(Pairs)}, "
            f"got {gap!r} and {pairs!r}."
        )


def mean_gap(
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
    _check_choices(pairs, gap)
    n = saliency.shape[-1]
    check_k(k, n)
    if gap == "normalised":
        saliency = unit_length(saliency)
    if gap != "exponential":
        if pairs == "all":
            return lead(saliency, reference, k)
        wide = facing_lead(saliency, reference, k, facing)
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


def r2et(
    *,
    k: int,
    thickness: float = 0.1,
    curvature: float = 0.0,
    pairs: Pairs = "all",
    gap: Gap = "plain",
    facing: int | None = None,
    kappa: float = 0.5,
    explain: Explainer | None = None,
    reference: nn.Module | None = None,
) -> Method:
    """R2ET: widen the lead of the top k and flatten the score around x.

    L = L_cls - lambda1 mean h(x, i, j) + lambda2 ||H(x)||  (Eq. 6), lambda1 = `thickness` and
    lambda2 = `curvature`, the norm estimated by a finite difference of length `kappa`. Mean, not
    sum: the sum would multiply lambda1 by k(n - k). The ranking to keep is a constant, that of the
    model at this step or that of `reference`. `explain` is the explanation widened, the absolute
    gradient unless given; the curvature is that of the gradient in any case.
    """
    _check_choices(pairs, gap)
    if min(thickness, curvature) < 0 or kappa <= 0:
        raise ValueError(
            f"R2ET needs thickness >= 0, curvature >= 0 and kappa > 0, got {thickness}, "
            f"{curvature} and {kappa}."
        )
    kept = None if reference is None else copy.deepcopy(reference).requires_grad_(False).eval()

    def saliency_of(model: nn.Module, look: Look) -> Tensor:
        return (
            gradient(model, look.x, look.y) if explain is None else explain(model, look.x, look.y)
        )

    def thinness(look: Look) -> Tensor:
        saliency = look.slope.flatten(1).abs() if explain is None else saliency_of(look.model, look)
        if kept is None:
            ranking = saliency.detach()
        else:
            with torch.no_grad():
                ranking = saliency_of(kept.to(device=look.x.device, dtype=look.x.dtype), look)
        return -mean_gap(saliency, ranking, k, pairs=pairs, gap=gap, facing=facing)

    def bend(look: Look) -> Tensor:
        return estimated_curvature(
            lambda at: slope(look.model, at, look.y), look.x, look.slope, kappa
        )

    penalties: list[tuple[str, float, Penalty]] = []
    if thickness:
        penalties.append(("thinness", thickness, thinness))
    if curvature:
        penalties.append(("curvature", curvature, bend))
    return Method(penalties=tuple(penalties))


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A training method by name: how it is built, how the papers write it, and one line."""

    build: Callable[..., Method]
    label: str
    line: str


def _vanilla(*, k: int) -> Method:
    """Cross-entropy alone, whatever k."""
    return Method()


METHODS: dict[str, MethodEntry] = {
    "vanilla": MethodEntry(build=_vanilla, label="Vanilla", line="cross-entropy alone"),
    "r2et": MethodEntry(
        build=partial(r2et, curvature=0.1),
        label="R2ET",
        line="wider gaps between the top k and all others, and less curvature",
    ),
    "r2et-noh": MethodEntry(
        build=r2et, label="R2ET\\H", line="wider gaps between the top k and all others"
    ),
    "r2et-mm": MethodEntry(
        build=partial(r2et, curvature=0.1, pairs="facing"),
        label="R2ET-mm",
        line="wider gaps of the pairs facing each other at place k, and less curvature",
    ),
    "r2et-mm-noh": MethodEntry(
        build=partial(r2et, pairs="facing"),
        label="R2ET-mm\\H",
        line="wider gaps of the pairs facing each other at place k",
    ),
}
