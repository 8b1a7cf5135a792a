"""Neighbours of an input at which its explanation is at its worst, found by a few steps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, gradient_of
from r2et.explainers import log_odds, predicted
from r2et.methods.method import BatchContext
from r2et.models.additive import AdditiveNet
from r2et.perturbations import PerturbationSet

FIRST_STEP, SHORTER = 0.6, 0.6  # of the radius; each step of the one before
HALVINGS = 3


@torch.no_grad()
def neighbour(
    look: BatchContext, leads: Callable[[Tensor], Tensor], threat: PerturbationSet, steps: int
) -> Tensor:
    """A neighbour within the threat whose `leads`, (B,), are low, of the same prediction: like x.

    From a random place as far away as may be, a few steps down; where the predicted class changed
    on the way, half the way back, and again, at last to x itself.
    """
    x = look.x.detach()
    place = x + threat.radius * threat.steepest(look.draw(x))
    with eval_mode(look.model):
        for step in range(steps):
            with torch.enable_grad():
                at = place.requires_grad_()
                downhill = gradient_of(leads(at), at, create_graph=False)
            move = threat.radius * FIRST_STEP * SHORTER**step * threat.steepest(downhill)
            place = threat.relax(place.detach() - move, x)
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
        return model.slope(x, y).abs()
    recording = torch.is_grad_enabled()
    x = x if recording and x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad(), eval_mode(model):
        slope = gradient_of(log_odds(model(x), y), x, create_graph=recording)
    return slope.flatten(1).abs()
