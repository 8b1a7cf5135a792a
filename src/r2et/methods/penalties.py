"""What methods are made of: rankings to keep, curvature, and neighbours found by a few steps."""

import copy
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from r2et.core.autograd import estimated_curvature, eval_mode, gradient_of
from r2et.explainers import Explainer, input_gradient, log_odds, predicted
from r2et.methods.method import BatchContext, Penalty
from r2et.models.additive import AdditiveNet
from r2et.perturbations import PerturbationSet

FIRST_STEP, SHORTER = 0.6, 0.6  # of the radius; each step of the one before
HALVINGS = 3


def saliency_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Absolute gradient of the probability of class y, all rows in one pass: (B, n)."""
    return input_gradient(model, x, y).flatten(1).abs()


def ranking_by(
    reference: nn.Module | None, explain: Explainer = saliency_at
) -> Callable[[BatchContext, Tensor | None], Tensor]:
    """What tells, for a look, the explanation whose ranking is to be kept, a constant: (B, n).

    That of `reference` as it is now, or the look's own, computed unless given.
    """
    kept = None if reference is None else copy.deepcopy(reference).requires_grad_(False).eval()

    def ranking(look: BatchContext, own: Tensor | None) -> Tensor:
        if kept is None and own is not None:
            return own.detach()
        model = look.model if kept is None else kept.to(device=look.x.device, dtype=look.x.dtype)
        with torch.no_grad():
            return explain(model, look.x, look.y)

    return ranking


Bend = Literal["gradient", "explanation"]


def estimated_bend(
    kappa: float,
    explain: Explainer | None = None,
    bend: Bend = "gradient",
    share: float = 1.0,
) -> Penalty:
    """The curvature of the score by a finite difference of length `kappa`, as a penalty.

    That of the gradient or, for explanations that are none, of what is explained; in both cases
    along the signs of the gradient. A smaller `share` of each batch stands for all of it: its first
    examples, which a shuffle has made random ones, count for as much more.
    """

    def of_gradient(look: BatchContext, some: slice) -> Tensor:
        y = look.y[some]
        return estimated_curvature(
            lambda at: input_gradient(look.model, at, y),
            look.x[some],
            look.input_gradient[some],
            kappa,
        )

    def of_explanation(look: BatchContext, some: slice) -> Tensor:
        assert explain is not None
        y = look.y[some]
        return estimated_curvature(
            lambda at: explain(look.model, at, y),
            look.x[some],
            look.saliency(explain)[some],
            kappa,
            along=look.input_gradient[some],
        )

    def of_share(look: BatchContext) -> Tensor:
        whole = len(look.x)
        few = max(1, round(share * whole))
        bent = of_bend(look, slice(few))
        return torch.cat([bent * (whole / few), bent.new_zeros(whole - few)])

    if not 0 < share <= 1:
        raise ValueError(f"the share of a batch must be above 0 and at most 1, got {share}.")

    if bend not in get_args(Bend) or (bend == "explanation" and explain is None):
        raise ValueError(
            f"the curvature is that of one of {get_args(Bend)}, the latter with a given explainer, "
            f"got {bend!r}."
        )
    of_bend = of_gradient if bend == "gradient" else of_explanation
    return of_share


@torch.no_grad()
def neighbour(
    look: BatchContext,
    margins: Callable[[Tensor], Tensor],
    perturbation: PerturbationSet,
    steps: int,
) -> Tensor:
    """A neighbour within the set whose `margins`, (B,), are low, of the same prediction: like x.

    From a random place as far away as may be, a few steps down; where the predicted class changed
    on the way, half the way back, and again, at last to x itself.
    """
    x = look.x.detach()
    place = x + perturbation.radius * perturbation.steepest(look.draw(x))
    with eval_mode(look.model):
        for step in range(steps):
            with torch.enable_grad():
                at = place.requires_grad_()
                downhill = gradient_of(margins(at), at, create_graph=False)
            move = (
                perturbation.radius * FIRST_STEP * SHORTER**step * perturbation.steepest(downhill)
            )
            place = perturbation.relax(place.detach() - move, x)
    for halved in range(HALVINGS + 1):
        kept = (predicted(look.model, place) == look.y).view(-1, *(1,) * (x.ndim - 1))
        if kept.all():
            break
        place = torch.where(kept, place, x + (place - x) / 2 if halved < HALVINGS else x)
    return place


def odds_saliency(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Absolute gradient of the log-odds of class y, which ranks as that of its probability: (B, n).

    Scaled to length one both are the same. But where log-odds are straight, all that a derivative
    of the other finds is rounding, and an attack would follow it.
    """
    if isinstance(model, AdditiveNet):
        return model.log_odds_gradient(x, y).abs()
    recording = torch.is_grad_enabled()
    x = x if recording and x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad(), eval_mode(model):
        slope = gradient_of(log_odds(model(x), y), x, create_graph=recording)
    return slope.flatten(1).abs()
