"""Our own method: the top k of today hold at the worst neighbour, in a network that can hold them.

What each part buys, and what failed, is told in docs/theory/steadfast.md.
"""

import math

from torch import Tensor, nn

from r2et.core.ranking import facing_count, order
from r2et.methods.margins import mean_margin, unit_length
from r2et.methods.method import (
    BatchContext,
    Method,
    Penalty,
    check_numbers,
    neighbour,
    odds_saliency,
    ranking_by,
)
from r2et.models.additive import AdditiveNet
from r2et.perturbations import L2Ball


def steadfast(
    *,
    k: int,
    thickness: float = 0.2,
    variation: float = 2e-4,
    radius: float = 1.0,
    steps: int = 2,
    room: float = 0.25,
    reference: nn.Module | None = None,
) -> Method:
    """Steadfast: L_cls - lambda mean_i min(h(x', k-i+1, k+i), r) + mu variation.

    lambda = `thickness`, mu = `variation`. The gaps h are those of the gradient scaled to length
    one, of the pairs that face each other at place k in the ranking at x; r = `room` / sqrt(n), so
    that pairs far enough apart ask for no more. x' is a neighbour within `radius` found by `steps`
    steps of an attack, its prediction kept; without steps it is x itself, at half the cost.
    The variation is `AdditiveNet.variation`: how far any change of x can turn the gradient.
    """
    check_numbers(
        "Steadfast",
        positive=("radius", "room"),
        thickness=thickness,
        variation=variation,
        radius=radius,
        steps=steps,
        room=room,
    )
    if not isinstance(steps, int):
        raise ValueError(f"Steadfast needs a whole number of steps, got {steps}.")
    ranking = ranking_by(reference, odds_saliency)

    def negative_margin(batch: BatchContext) -> Tensor:
        n = batch.x.flatten(1).shape[1]
        count = facing_count(k, n)
        if steps:
            kept = ranking(batch, None)

            def margins(at: Tensor) -> Tensor:
                saliency = odds_saliency(batch.model, at, batch.y)
                return mean_margin(saliency, kept, k, gap="normalised")

            place = neighbour(batch, margins, L2Ball(radius=radius), steps)
            saliency = odds_saliency(batch.model, place, batch.y)
        else:
            saliency = odds_saliency(batch.model, batch.x.detach(), batch.y)
            kept = ranking(batch, saliency)
        ranked = order(kept)
        facing = unit_length(saliency).gather(-1, ranked[:, k - count : k + count])
        gaps = facing[:, :count].flip(-1) - facing[:, count:]
        return -gaps.clamp(max=room / math.sqrt(n)).mean(-1)

    penalties: list[tuple[str, float, Penalty]] = []
    if thickness:
        penalties.append(("margin", thickness, negative_margin))
    if variation:
        penalties.append(("variation", variation, variation_of))
    return Method(penalties=tuple(penalties), by_input=False)


def variation_of(batch: BatchContext) -> Tensor:
    """The variation of the network, or of each row's own network in a stack: (B,)."""
    if not isinstance(batch.model, AdditiveNet):
        raise ValueError(
            "Steadfast caps the variation of a structured network, got "
            f"{type(batch.model).__name__}: build MODELS['structured'], or set variation = 0."
        )
    variation = batch.model.variation().view(1, -1)
    return variation.expand(len(batch.x) // variation.numel(), -1).flatten()
