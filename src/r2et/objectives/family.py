"""R2ET: widen the lead of the top k and flatten the score around x."""

import copy
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from r2et.derivatives import estimated_curvature
from r2et.explainers import Explainer, slope
from r2et.objectives.gaps import Gap, Pairs, check_choices, mean_gap
from r2et.objectives.method import Look, Method, Penalty


def saliency_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Absolute gradient of the probability of class y, all rows in one pass: (B, n)."""
    return slope(model, x, y).flatten(1).abs()


def ranking_by(
    reference: nn.Module | None, explain: Explainer = saliency_at
) -> Callable[[Look, Tensor | None], Tensor]:
    """What tells, for a look, the explanation whose ranking is to be kept, a constant: (B, n).

    That of `reference` as it is now, or the look's own, computed unless given.
    """
    kept = None if reference is None else copy.deepcopy(reference).requires_grad_(False).eval()

    def ranking(look: Look, own: Tensor | None) -> Tensor:
        if kept is None and own is not None:
            return own.detach()
        model = look.model if kept is None else kept.to(device=look.x.device, dtype=look.x.dtype)
        with torch.no_grad():
            return explain(model, look.x, look.y)

    return ranking


Bend = Literal["gradient", "explanation"]


def estimated_bend(
    kappa: float, explain: Explainer | None = None, bend: Bend = "gradient"
) -> Penalty:
    """The curvature of the score by a finite difference of length `kappa`, as a penalty.

    That of the gradient or, for explanations that are none, of what is explained; in both cases
    along the signs of the gradient.
    """

    def of_gradient(look: Look) -> Tensor:
        return estimated_curvature(
            lambda at: slope(look.model, at, look.y), look.x, look.slope, kappa
        )

    def of_explanation(look: Look) -> Tensor:
        assert explain is not None
        return estimated_curvature(
            lambda at: Look(look.model, at).saliency(explain),
            look.x,
            look.saliency(explain),
            kappa,
            along=look.slope,
        )

    if bend not in get_args(Bend) or (bend == "explanation" and explain is None):
        raise ValueError(
            f"the curvature is that of one of {get_args(Bend)}, the latter with a given explainer, "
            f"got {bend!r}."
        )
    return of_gradient if bend == "gradient" else of_explanation


def r2et(
    *,
    k: int,
    thickness: float = 0.1,
    curvature: float = 0.0,
    pairs: Pairs = "all",
    gap: Gap = "plain",
    facing: int | None = None,
    kappa: float = 0.5,
    bend: Bend = "gradient",
    explain: Explainer | None = None,
    reference: nn.Module | None = None,
) -> Method:
    """R2ET: widen the lead of the top k and flatten the score around x.

    L = L_cls - lambda1 mean h(x, i, j) + lambda2 ||H(x)||  (Eq. 6), lambda1 = `thickness` and
    lambda2 = `curvature`, the norm estimated by a finite difference of length `kappa`. Mean, not
    sum: the sum would multiply lambda1 by k(n - k). The ranking to keep is a constant, that of the
    model at this step or that of `reference`. `explain` is the explanation widened, the absolute
    gradient unless given; the curvature is that of the gradient, or of what `bend` says.
    """
    check_choices(pairs, gap)
    if min(thickness, curvature) < 0 or kappa <= 0:
        raise ValueError(
            f"R2ET needs thickness >= 0, curvature >= 0 and kappa > 0, got {thickness}, "
            f"{curvature} and {kappa}."
        )
    ranking = ranking_by(reference, explain or saliency_at)

    def thinness(look: Look) -> Tensor:
        saliency = look.saliency(explain)
        kept = ranking(look, saliency)
        return -mean_gap(saliency, kept, k, pairs=pairs, gap=gap, facing=facing)

    penalties: list[tuple[str, float, Penalty]] = []
    if thickness:
        penalties.append(("thinness", thickness, thinness))
    if curvature:
        penalties.append(("curvature", curvature, estimated_bend(kappa, explain, bend)))
    return Method(penalties=tuple(penalties))
