"""How many iterations attacks can take (P Theorem 5.1; Q), by known or estimated constants."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from r2et.attacks.moo import Gaps, LineSearch, TrustRegion
from r2et.attacks.search import AttackProblem, BestSoFar, Outputs, prediction, ready
from r2et.core.autograd import eval_mode
from r2et.core.geometry import one_of
from r2et.core.rng import stream
from r2et.explainers import Explainer, gradient
from r2et.perturbations import L2Ball, PerturbationSet, agreed


@dataclass(frozen=True, kw_only=True, eq=False)
class Constants:
    """What Theorem 5.1 asks for, in the attack's units: lengths in radii, gaps in `Gaps.unit`."""

    fall: Tensor
    """How far any gap can fall from its clean value, at most h_up - h_low: (B,)."""
    slope_change: Tensor
    """L_g, Lipschitz constant of the gradients of all gaps: (B,)."""
    residual_change: Tensor
    """L_J, Lipschitz constant of the derivative of f: (B,)."""


def iteration_bound(constants: Constants, region: TrustRegion) -> Tensor:
    """At most so many iterations before `moo_attack` ends [Theorem 5.1]: (B,).

    With e = criticality * eps, each step taken lowers every target by eta * min(Delta, 1) * e or
    more [Eqs. 33, 40]; Delta stays above gamma (1 - eta) e / (L_g + L_J / 2), or where it started
    [Eq. 39]; no step shorter than (1 - eta) e / (L_g + L_J / 2) is refused [Eq. 38]. Hence the
    steps taken are at most fall * kappa / e^2 and those refused as many as it takes to shrink
    Delta so far [Lemma A.8]; one more iteration finds nothing left. It holds for smooth gaps,
    without bounds, and while no step changes a class. From estimates it is an estimate.
    """
    bend = constants.slope_change + constants.residual_change / 2
    safe = (1 - region.eta) * region.least / bend
    shortest = (region.gamma * safe).clamp(max=min(region.trust_radius, 1.0))
    taken = (constants.fall / (region.eta * shortest * region.least)).floor()
    refused = (torch.log(region.trust_radius / safe) / -math.log(region.gamma)).clamp(min=0).ceil()
    bound: Tensor = taken + refused + 1
    return bound


def descent_bound(constants: Constants, search: LineSearch, iterations: int) -> Tensor:
    """At most so long is the shortest of T directions of the attack of Q [Theorem 4.2]: (B,).

    min ||d_t|| <= sqrt(fall / (sigma eta T)), T = `iterations`, sigma = `search.share`. Every gap
    has g_l'd <= -||d||^2 [Q Eq. 7; `kept_descent`], so that no step of (1 - sigma) / L_g or less is
    refused and none taken is shorter than eta = min(first step, (1 - sigma) / L_g) [Q Lemma 4.1];
    each lowers every gap by sigma eta ||d||^2 or more, and no gap falls further than `fall`. It
    holds for a `linearised` search of smooth gaps, as long as none is set aside and no step is
    shortened for the sake of a class or of the perturbation set.
    """
    if not search.linearised or iterations < 1:
        raise ValueError(
            "the bound is of one or more iterations of a linearised search, got "
            f"{iterations} and linearised={search.linearised}."
        )
    steps = ((1 - search.share) / constants.slope_change).clamp(max=search.first_step)
    return (constants.fall / (search.share * steps * iterations)).sqrt()


def estimated_constants(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    k: int,
    explainer: Explainer = gradient,
    radius: float | None = None,
    perturbation: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    region: TrustRegion = TrustRegion(),  # noqa: B008 - a frozen record
    outputs: Outputs = prediction,
    points: int = 16,
    seed: int = 0,
) -> Constants:
    """Estimates of the constants from random points: the true ones can only be larger."""
    within = agreed(perturbation, radius)
    problem = AttackProblem(k=k, explainer=explainer, perturbation=within, outputs=outputs)
    model, x = ready(model, x, y, region.rows_at_once(one_of(x).numel()))
    with eval_mode(model):
        best = BestSoFar(model, x, y, problem)
        goals = Gaps.around(best, region)
        first, here = goals.linearised(best.centre, region)
        fall, bend, turn = (torch.zeros_like(here.level) for _ in range(3))
        for offset in within.offsets(one_of(x), points, stream(seed, "constants")):
            gaps, there = goals.linearised(within.relax(best.centre + offset, best.centre), region)
            length = (there.away - here.away).norm(dim=-1)
            length = torch.where(length > 0, length, torch.inf)
            bent = (there.slopes - here.slopes).norm(dim=-1).amax(-1) / length
            turned = torch.linalg.matrix_norm(there.drifts - here.drifts, ord=2) / length
            fall = torch.maximum(fall, (first - gaps).amax(-1))
            bend, turn = torch.maximum(bend, bent), torch.maximum(turn, turned)
            here = there
    return Constants(fall=fall, slope_change=bend, residual_change=turn)
