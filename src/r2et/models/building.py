"""Networks by their plan: what a model file says of the network whose weights it holds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from r2et.inputs import Inputs, Joined, Piece
from r2et.models import MODELS
from r2et.models.smoothing import with_softplus
from r2et.naming import nearest


def build(plan: Mapping[str, Any], generator: torch.Generator) -> nn.Module:
    """The network of a plan, its weights drawn from `generator`.

    `name` is an entry of MODELS. With `pieces`, the shapes of several tensors, the network takes
    them packed into one row. With `softplus` its kinks are replaced by softplus(x; rho) of that
    rho. All else are settings of the entry.
    """
    settings = dict(plan)
    name, pieces, rho = (settings.pop(key, None) for key in ("name", "pieces", "softplus"))
    if name not in MODELS:
        raise ValueError(f"no network is called {name!r}: {nearest(str(name), MODELS)}")
    model = MODELS[name](**settings, generator=generator)
    if pieces is not None:
        shapes = tuple(Piece(shape=tuple(shape)) for shape in pieces)
        model = Joined(model, Inputs(pieces=shapes))
    return model if rho is None else with_softplus(model, rho)
