"""What proof and attack leave open, searched over activation cells where a network has them."""

from dataclasses import replace

import torch
from torch import Tensor

from r2et.auditing.settings import AuditSettings
from r2et.certification.cells import CellVerdicts, search_cells
from r2et.certification.pieces import pieces_of
from r2et.certification.replay import RecordedModel
from r2et.core.one_hot import OneHot
from r2et.explainers import Quantity
from r2et.perturbations import L2Ball, NormBall

TWO = 2
"""Classes of which a probability and a margin have one slope on a cell, as a logit always has."""


def has_cells(
    recorded: RecordedModel | None, x: Tensor, of: Quantity, region: NormBall
) -> RecordedModel | None:
    """The model, if decisions like x can be searched over its cells, else None."""
    if recorded is None or type(region) is not L2Ball or region.bounds is not None or not len(x):
        return None
    try:
        with torch.inference_mode(False), torch.no_grad():
            network = pieces_of(recorded.program, x[:1].detach().double())
    except ValueError:
        return None
    return recorded if of == "logit" or len(network.shift) == TWO else None


def searched(
    recorded: RecordedModel,
    x: Tensor,
    y: Tensor,
    known: Tensor,
    settings: AuditSettings,
    *,
    one_hot: OneHot | None,
    region: NormBall,
    radius: float,
) -> CellVerdicts | None:
    """What all cells within a radius say of decisions, the nearest change that breaks each first.

    `known` are inputs that an attack found. None where what was read is not what the model
    computes: then nothing is said.
    """
    try:
        return search_cells(
            recorded,
            x,
            y,
            k=settings.k,
            perturbation=replace(region, radius=radius),
            goal="smallest",
            of=settings.explained,
            one_hot=one_hot,
            known=[known],
            seconds=settings.search * len(x),
        )
    except ValueError:
        return None
