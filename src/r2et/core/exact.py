"""Copies of models, of one precision and as at prediction time, that are measured and proved."""

import contextlib
import copy
import warnings

import torch
from torch import nn

from r2et.core.naming import briefly


def exact_copy(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A copy of the model in `dtype` and at prediction time, whose weights ask for no gradients."""
    try:
        with warnings.catch_warnings():
            # Copies of exported programs go through names that torch itself is leaving behind.
            warnings.simplefilter("ignore", FutureWarning)
            exact = copy.deepcopy(model).to(dtype)
    except Exception as problem:  # a model's own code may raise anything
        raise ValueError(
            f"{type(model).__name__} cannot be copied into {dtype}, in which it would be "
            f"measured and proved ({briefly(problem)})."
        ) from problem
    with contextlib.suppress(NotImplementedError):  # of exported programs, which are fixed already
        exact.eval()
        training = [name for name, part in exact.named_modules() if part.training]
        if training:
            raise ValueError(
                f"eval() leaves {training[0] or 'the model'} in training mode, so that what it "
                "predicts is not settled: let it pass on eval()."
            )
    for part in exact.modules():
        part.training = False
    for parameter in exact.parameters():
        parameter.requires_grad_(False)
    return exact
