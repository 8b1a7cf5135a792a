"""R2ET: widen the lead of the top k and flatten the score around x."""

import copy

import torch
from torch import Tensor, nn

from r2et.derivatives import estimated_curvature
from r2et.explainers import Explainer, gradient, slope
from r2et.objectives.gaps import Gap, Pairs, check_choices, mean_gap
from r2et.objectives.method import Look, Method, Penalty


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
    check_choices(pairs, gap)
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
