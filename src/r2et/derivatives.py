"""Slopes and curvature of one score per example, differentiable iff the caller records."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """The model as at prediction time: the layers that may differ in training, then restored.

    In training mode batch normalisation mixes the examples of a batch and dropout draws at random:
    a slope explains nobody.
    """
    switched = [part for part in model.modules() if part.training and _may_differ(part)]
    for part in switched:
        part.training = False
    try:
        yield switched
    finally:
        for part in switched:
            part.training = True


# What computes or learns something else in training, of torch's own layers.
VARYING = (
    nn.modules.batchnorm._NormBase,
    nn.modules.dropout._DropoutNd,
    nn.MultiheadAttention,
    nn.RReLU,
)


def _may_differ(part: nn.Module) -> bool:
    """Whether a layer may compute something else in training: those known to, and all unknown."""
    if isinstance(part, nn.RNNBase):
        return part.dropout > 0  # cuDNN differentiates the others in training mode only
    known = type(part).__module__.startswith(("torch.nn.modules.", "r2et."))
    return not known or isinstance(part, VARYING)


def gradient_of(values: Tensor, x: Tensor, *, create_graph: bool) -> Tensor:
    """Gradient by x of the sum of `values`, zero where they do not depend on it: like x."""
    if not values.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(
        values.sum(),
        x,
        create_graph=create_graph,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return gradient


def jacobian(field: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Derivative of each explained feature by each input number: (B, n, d).

    For the gradient this is the Hessian. One backward pass for each feature, all examples at once.
    """
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x if recording and x.requires_grad else x.detach().requires_grad_()
        values = field(x)
        if not values.requires_grad:
            return x.new_zeros(*values.shape, *x.shape[1:]).flatten(2)
        rows = [
            gradient_of(values[:, i], x, create_graph=recording).flatten(1)
            for i in range(values.shape[1])
        ]
    return torch.stack(rows, dim=1)


def hessian_norm(field: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Frobenius norm of the derivative of an explanation, exactly: (B,)."""
    norm: Tensor = torch.linalg.vector_norm(jacobian(field, x), dim=(1, 2))
    return norm


def estimated_curvature(
    field: Callable[[Tensor], Tensor], x: Tensor, at_x: Tensor, kappa: float
) -> Tensor:
    """Change of an explanation along a short step, per unit length: (B,).

    ||I(x + kappa v) - I(x)|| / kappa with v = sign(I) / ||sign(I)||, where `at_x` = I(x). The step
    direction is a constant. A network of (Leaky)ReLUs shows its kinks only to a step long enough
    to cross them.
    """
    direction = at_x.detach().sign().flatten(1)
    length = direction.norm(dim=-1, keepdim=True)
    direction = torch.where(length > 0, direction / length.clamp_min(1), direction).view_as(x)
    change = (field(x + kappa * direction) - at_x).flatten(1)
    # The norm has no slope at zero; its root is taken only where something changed.
    squared = change.square().sum(-1)
    changed = squared > 0
    return torch.where(changed, torch.where(changed, squared, 1.0).sqrt(), 0.0) / kappa
