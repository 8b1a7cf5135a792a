"""R2ET: widen the margin of the top k and flatten the score around x."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.core.geometry import unit
from r2et.explainers import (
    Explainer,
    InputExplainer,
    input_gradient,
    log_odds,
    made_of_gradient,
)
from r2et.methods.margins import Gap, Over, Pairs, check_choices, mean_margin, pair_count
from r2et.methods.method import (
    BatchContext,
    Bend,
    Method,
    Penalty,
    estimated_bend,
    neighbour,
    odds_saliency,
    ranking_by,
    saliency_at,
)
from r2et.models.smoothing import Smoothing
from r2et.perturbations import PERTURBATIONS

By = Literal["slope", "direction"]


def _margin_along(
    batch: BatchContext,
    explain: InputExplainer,
    margin_of: Callable[[Tensor], Tensor],
    stride: float,
) -> Tensor:
    """The gap, its slope by the weights that of a directional derivative of the score: (B,).

    With v = dG/dg, the derivative of the gap G by the gradient g of the score f, a constant, the
    weights' slope of G is that of v'g = df(x + t v)/dt, here [f(x + t v) - f(x)] / t for a v of
    length one and t = `stride`. All of it is first derivatives.
    """
    with torch.no_grad():
        own = input_gradient(batch.model, batch.x, batch.y)
    with torch.enable_grad():
        own = own.requires_grad_()
        value = margin_of(explain.scores(own, batch.x.detach()))
        (towards,) = torch.autograd.grad(value.sum(), own)
    length = towards.flatten(1).norm(dim=-1)
    way = unit(towards)
    with eval_mode(batch.model):
        there = log_odds(batch.model(batch.x.detach() + stride * way), batch.y)
    here = log_odds(batch.logits, batch.y)
    risen: Tensor = length * (torch.sigmoid(there) - torch.sigmoid(here)) / stride
    return value.detach() + risen - risen.detach()


def r2et(
    *,
    k: int,
    thickness: float = 0.1,
    curvature: float = 0.0,
    pairs: Pairs = "all",
    gap: Gap = "plain",
    over: Over = "mean",
    facing: int | None = None,
    room: float = 0.0,
    kappa: float = 0.5,
    bend: Bend = "gradient",
    share: float = 1.0,
    by: By = "slope",
    stride: float = 0.05,
    radius: float = 0.0,
    norm: str = "linf",
    steps: int = 1,
    softplus: float = 0.0,
    pooling: float = 0.0,
    blur: float = 0.0,
    explain: Explainer | None = None,
    reference: nn.Module | None = None,
) -> Method:
    """R2ET: widen the margin of the top k and flatten the score around x.

    L = L_cls - lambda1 mean h(x, i, j) + lambda2 ||H(x)||  (Eq. 6), lambda1 = `thickness` and
    lambda2 = `curvature`, the norm estimated by a finite difference of length `kappa`. Mean, not
    the paper's sum, unless `over` says so: the sum multiplies lambda1 by k(n - k). The ranking to
    keep is a constant, that of the model at this step or that of `reference`. `explain` is the
    explanation widened, the absolute gradient unless given; the curvature is that of the gradient,
    or of what `bend` says.

    With a `radius` the gap is that at a neighbour: the worst that `steps` steps of an attack find
    within it, in the `norm` "linf" or "l2", the ranking still that at x. Without `explain` it is
    the gradient of the log-odds there, which ranks as that of the probability does.

    With `room` no gap counts for more than room / sqrt(n): `pairs` are then the facing ones, their
    gaps "normalised". The attack on the neighbour's gaps does not see that.

    With `softplus` = rho kinks are replaced by softplus(x; rho), as SP does, with `pooling` max
    poolings by smooth ones, `SmoothPool2d` of that sharpness, and with `blur` pictures are seen
    through a Gaussian of that width.

    Two cheaper forms: the curvature on a `share` of each batch, and `by` = "direction", which takes
    the slope of the gap from a finite difference of length `stride` and needs no second derivative.
    """
    check_choices(pairs, gap, over)
    if min(thickness, curvature) < 0 or kappa <= 0:
        raise ValueError(
            f"R2ET needs thickness >= 0, curvature >= 0 and kappa > 0, got {thickness}, "
            f"{curvature} and {kappa}."
        )
    if room < 0 or (room and (pairs, gap) != ("facing", "normalised")):
        raise ValueError(
            "R2ET clips the gaps of pairs 'facing' each other, 'normalised', at a room >= 0, got "
            f"{pairs!r}, {gap!r} and {room}."
        )
    ranking = ranking_by(reference, explain or saliency_at)

    def margin_of(saliency: Tensor, kept: Tensor, room: float = room) -> Tensor:
        mean = mean_margin(saliency, kept, k, pairs=pairs, gap=gap, facing=facing, room=room)
        return mean if over == "mean" else mean * pair_count(k, saliency.shape[-1], pairs, facing)

    def negative_margin(batch: BatchContext) -> Tensor:
        saliency = batch.saliency(explain)
        return -margin_of(saliency, ranking(batch, saliency))

    def negative_margin_beside(batch: BatchContext) -> Tensor:
        kept = ranking(batch, None)

        def gaps(at: Tensor, room: float = 0.0) -> Tensor:
            return margin_of((explain or odds_saliency)(batch.model, at, batch.y), kept, room)

        # The attack is on the gaps as they are: clipped ones have no slope to follow.
        return -gaps(neighbour(batch, gaps, perturbation, steps), room)

    def negative_margin_along(batch: BatchContext) -> Tensor:
        assert follower is not None
        return -_margin_along(
            batch, follower, lambda own: margin_of(own, ranking(batch, own)), stride
        )

    follower = made_of_gradient(explain)
    if by not in get_args(By) or (by == "direction" and follower is None) or stride <= 0:
        raise ValueError(
            f"the gap is taken by one of {get_args(By)}, the latter for explanations that are made "
            f"of the gradient and a stride > 0, got {by!r} and {stride}."
        )

    if norm not in PERTURBATIONS or radius < 0 or steps < 0 or (radius and by != "slope"):
        raise ValueError(
            f"the gap at a neighbour needs a norm of {tuple(PERTURBATIONS)}, radius >= 0, "
            f"steps >= 0 and by = 'slope', got {norm!r}, {radius}, {steps} and {by!r}."
        )
    perturbation = PERTURBATIONS[norm](radius=radius)
    penalties: list[tuple[str, float, Penalty]] = []
    if thickness:
        at_x = negative_margin if by == "slope" else negative_margin_along
        penalties.append(("margin", thickness, negative_margin_beside if radius else at_x))
    if curvature:
        penalties.append(("curvature", curvature, estimated_bend(kappa, explain, bend, share)))
    smooth = Smoothing(softplus=softplus, pooling=pooling, blur=blur)
    prepare = smooth if smooth.changes else None
    return Method(prepare=prepare, penalties=tuple(penalties), by_gradient=True)
