"""A member of the strong attack that walks activation cells.

On a row of linear layers and (Leaky)ReLUs an explanation changes at kinks only, where slopes say
nothing. The search over cells goes from one side of a unit's kink to the other, by projections that
keep the prediction, most displaced features first, and leaves out what cannot be better than the
best so far. Ended before it is done it is an attack like others; at its end it is exact.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from r2et.core.cell_bounds import Decisions, PiecewiseLinear, grain
from r2et.core.cell_search import Frontier, Goal, together
from r2et.core.one_hot import project_one_hot
from r2et.core.ranking import order
from r2et.core.rows import is_row
from r2et.explainers import Explainer, Gradient
from r2et.perturbations import L2Ball, PerturbationSet

CELLS_MEMBER = "cells"
EACH = 12  # nodes of every example that are looked at in one round: few, so that it soon goes deep
USUAL = 1024  # weights of a network whose nodes cost as much as a budget has in mind
INSIDE = 8.0  # roundings of a number that an input stays away from a kink


class Attacked(Protocol):
    """What an attack knows of its examples, as `CandidateEvaluator` does."""

    model: nn.Module
    explain: Explainer
    perturbation: PerturbationSet
    centre: Tensor
    y: Tensor
    before: Tensor
    k: int


def walks_cells(
    model: nn.Module, x: Tensor, explain: Explainer, perturbation: PerturbationSet
) -> bool:
    """Whether cells of this model can be walked: a row of layers, its gradient, an l2 ball."""
    return (
        type(perturbation) is L2Ball
        and type(explain) is Gradient
        and explain.form in ("absolute", "normalised")
        and explain.groups is None
        and is_row(model, x)
        and x.is_floating_point()
        and (explain.of == "logit" or model[-1].out_features == 2)  # type: ignore[index]
    )


def row_pieces(model: nn.Sequential) -> PiecewiseLinear:
    """The weights of a row of layers, kinks one after another made one by an identity."""
    weights, offsets, slopes = list[Tensor](), list[Tensor](), list[float]()
    weight: Tensor | None = None
    offset: Tensor | None = None
    for layer in model:
        if isinstance(layer, nn.Linear):
            own = layer.weight.detach().double()
            shift = own.new_zeros(len(own)) if layer.bias is None else layer.bias.detach().double()
            weight, offset = (
                (own, shift)
                if weight is None or offset is None
                else (own @ weight, own @ offset + shift)
            )
        else:
            below = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
            if weight is None or offset is None:
                size = len(weights[-1]) if weights else _inputs(model)
                like = next(model.parameters()).detach().double()
                weight = torch.eye(size, dtype=like.dtype, device=like.device)
                offset = like.new_zeros(size)
            weights.append(weight)
            offsets.append(offset)
            slopes.append(float(below))
            weight, offset = None, None
    assert weight is not None
    assert offset is not None
    return PiecewiseLinear(tuple(weights), tuple(offsets), tuple(slopes), weight, offset)


def _inputs(model: nn.Sequential) -> int:
    return next(layer.in_features for layer in model if isinstance(layer, nn.Linear))


def decisions_about(found: Attacked) -> Decisions:
    """The examples of an attack as decisions about a row of layers."""
    model, explain = found.model, found.explain
    assert isinstance(model, nn.Sequential)
    assert isinstance(explain, Gradient)
    network, x, y = row_pieces(model), found.centre.double(), found.y
    classes, d = len(network.shift), x.shape[1]
    own = torch.nn.functional.one_hot(y, classes).to(x)
    others = torch.eye(classes, dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    others = others[~own.bool()].view(len(x), classes - 1, classes)
    ranked, ball = order(found.before), found.perturbation
    assert isinstance(ball, L2Ball)
    scale = torch.ones_like(x[0]) if ball.scale is None else ball.scale.to(x).flatten()
    if ball.free is not None:
        scale = torch.where(ball.free.to(x.device).flatten(), scale, 0.0)
    return Decisions(
        network=network,
        x=x,
        scale=scale,
        project=project_one_hot(torch.eye(d, dtype=x.dtype, device=x.device), explain.one_hot),
        signal=own if explain.of == "logit" else own - others[:, 0],
        rivals=own[:, None] - others,
        top=ranked[:, : found.k],
        rest=ranked[:, found.k :],
    )


def affordable(model: nn.Module, nodes: int) -> int:
    """How many nodes of a network cost as much as so many of one with 28 inputs and 32 units."""
    return nodes * USUAL // max(USUAL, sum(each.numel() for each in model.parameters()))


def by_cells(
    found: Attacked, radius: float, known: Tensor, goal: Goal, nodes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The best inputs that a search over cells finds, what is left to find, and who is done.

    It begins with the inputs `known` and looks at about so many `nodes` of each example. What is
    left is a lower bound of P@k or, with the goal "smallest", of the length of a breaking change:
    (B, ...), (B,) and (B,) booleans.
    """
    decisions = decisions_about(found)
    many, most = together(decisions.network)
    each = min(EACH, most)
    eps = torch.finfo(found.centre.dtype).eps
    places, floors, done = list[Tensor](), list[Tensor](), list[Tensor]()
    with torch.no_grad():
        for rows in torch.arange(len(known), device=known.device).split(many):
            some = decisions.rows(rows)
            size = 1 + float(some.x.abs().amax())
            # Rounded to the precision of x an input must still be on its side of each kink.
            inside = max(1e-9, INSIDE * eps * size * some.x.shape[1] ** 0.5 / max(radius, eps))
            reach = radius * (1 - 16 * eps) - INSIDE * eps * size
            front = Frontier.of(some, grain(some), max(reach, 0.0), goal, inside=inside)
            front.try_inputs(known[rows].double())
            front.search(each, rounds=None if nodes is None else max(1, nodes // each))
            places.append(front.best().to(known))
            done.append(~front.left() & (front.unsure > front.radius))
            share = 1 - front.most_displaced().to(known) / found.k
            floors.append(front.proved().to(known) if goal == "smallest" else share)
    return torch.cat(places), torch.cat(floors), torch.cat(done)
