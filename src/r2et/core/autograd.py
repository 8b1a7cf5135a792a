"""Slopes and curvature of one score per example, differentiable iff the caller records."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor, nn
from torch.backends import cuda as kernels


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """The model as at prediction time: the layers that may differ in training, then restored.

    In training mode batch normalisation mixes the examples of a batch and dropout draws at random:
    a slope explains nobody. Attention is computed so that it can be differentiated twice.
    """
    switched = varying(model)
    for part in switched:
        part.training = False
    try:
        with PLAIN_ATTENTION:
            yield switched
    finally:
        for part in switched:
            part.training = True


def varying(model: nn.Module) -> list[nn.Module]:
    """The layers that are in training and may compute something else then."""
    return [part for part in model.modules() if part.training and _may_differ(part)]


class _PlainAttention:
    """A context in which attention is made of operations that can be differentiated twice.

    Torch's own choice of a kernel is one for the whole process, and each of its contexts puts back
    what it met: of two that overlap in two threads, the later one would put back the choice of the
    earlier. So all of ours count as one, from the first to begin to the last to end.
    """

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._chosen: tuple[bool, ...] = ()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._chosen = tuple(chosen() for chosen, _ in ATTENTION.values())
                for kernel, (_, choose) in ATTENTION.items():
                    choose(kernel == "math")
            self._inside += 1

    def __exit__(self, *problem: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for (_, choose), chosen in zip(ATTENTION.values(), self._chosen, strict=True):
                    choose(chosen)


# Whether torch may choose a kernel, and how to tell it so: what its own context asks and tells, at
# a fraction of its cost, which small networks would feel at every step.
ATTENTION: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "math": (kernels.math_sdp_enabled, kernels.enable_math_sdp),
    "flash": (kernels.flash_sdp_enabled, kernels.enable_flash_sdp),
    "efficient": (kernels.mem_efficient_sdp_enabled, kernels.enable_mem_efficient_sdp),
    "cudnn": (kernels.cudnn_sdp_enabled, kernels.enable_cudnn_sdp),
}


PLAIN_ATTENTION = _PlainAttention()


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
    if type(part) is nn.MultiheadAttention:
        return bool(part.dropout > 0)
    known = type(part).__module__.startswith(("torch.nn.modules.", "r2et."))
    return not known or isinstance(part, VARYING)


# What is piecewise linear in its input when nothing is drawn: a row of such layers has no second
# derivative but at its kinks.
PIECEWISE_LINEAR = (
    nn.Sequential,
    nn.Identity,
    nn.Flatten,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ReLU,
    nn.LeakyReLU,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.Dropout,
)


def piecewise_linear(model: nn.Module) -> bool:
    """Whether the logits at prediction time are surely linear between kinks.

    Nothing but layers of `PIECEWISE_LINEAR` themselves, in rows, or of classes that say so by an
    attribute `piecewise_linear = True`; what hooks or a forward of one's own do is not known.
    """
    return all(
        (type(part) in PIECEWISE_LINEAR or getattr(type(part), "piecewise_linear", False) is True)
        and not part._forward_hooks
        and not part._forward_pre_hooks
        and "forward" not in vars(part)
        for part in model.modules()
    )


def gradient_of(values: Tensor, x: Tensor, *, create_graph: bool) -> Tensor:
    """Gradient by x of the sum of `values`, zero where they do not depend on it: like x."""
    if not values.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(
        values,
        x,
        torch.ones_like(values),
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


def hessian_products(gradient: Tensor, x: Tensor, directions: Tensor) -> Tensor:
    """Hessian times each direction, `gradient` computed from x with a graph: (m, *x.shape).

    `directions` (m, *gradient.shape) go backwards through its graph together, so that the model
    itself is not called. Differentiable iff the caller records.
    """
    nothing = x.new_zeros(x.shape)
    if not gradient.requires_grad or not len(directions):
        return nothing.expand(len(directions), *x.shape)

    def product(direction: Tensor, *, together: bool) -> Tensor:
        (found,) = torch.autograd.grad(
            gradient,
            x,
            direction,
            create_graph=torch.is_grad_enabled(),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=together,
        )
        if found is None:
            return nothing.expand(len(direction), *x.shape) if together else nothing
        return found

    if len(directions) == 1:
        return product(directions[0], together=False)[None]
    try:
        return product(directions, together=True)
    except RuntimeError:
        # Not every layer can be differentiated for many directions together, nor every batch held.
        return torch.stack([product(each, together=False) for each in directions])


def root(squared: Tensor) -> Tensor:
    """Square roots whose slope at zero is zero: like `squared`."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)


def hessian_norm(field: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Frobenius norm of the derivative of an explanation, exactly: (B,)."""
    norm: Tensor = torch.linalg.vector_norm(jacobian(field, x), dim=(1, 2))
    return norm


def estimated_hessian_norm(
    field: Callable[[Tensor], Tensor], x: Tensor, directions: Tensor
) -> Tensor:
    """Frobenius norm of the derivative J of an explanation from random directions: (B,).

    The root of the mean of ||J'u||^2 over the rows u of `directions` (m, n): for standard normal u
    its square has the mean ||J||^2.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        values = field(x)
        total = torch.zeros_like(x.flatten(1)[:, 0])
        for direction in directions:
            slopes = gradient_of((values * direction).sum(-1), x, create_graph=False)
            total = total + slopes.flatten(1).square().sum(-1)
    return (total / len(directions)).sqrt()


def estimated_curvature(
    field: Callable[[Tensor], Tensor],
    x: Tensor,
    at_x: Tensor,
    kappa: float,
    along: Tensor | None = None,
) -> Tensor:
    """Change of an explanation along a short step, per unit length: (B,).

    ||I(x + kappa v) - I(x)|| / kappa with v = sign(I) / ||sign(I)||, where `at_x` = I(x), or that
    of `along`, shaped like x, in its place. The step direction is a constant. A network of
    (Leaky)ReLUs shows its kinks only to a step long enough to cross them.
    """
    direction = (at_x if along is None else along).detach().sign().flatten(1)
    # Signs that are not all zero have a length of at least one.
    direction = (direction / direction.norm(dim=-1, keepdim=True).clamp_min(1)).view_as(x)
    change = (field(torch.add(x, direction, alpha=kappa)) - at_x).flatten(1)
    # The slope of this norm is zero at zero, as that of `root` is, at a third of its operations.
    norm: Tensor = torch.linalg.vector_norm(change, dim=-1)
    return norm / kappa
