"""How easily an answer or an explanation moves: changed predictions, curvature, attack steps."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from r2et.core.autograd import estimated_hessian_norm, eval_mode, hessian_norm
from r2et.core.rng import noise_like, stream
from r2et.explainers import Explainer, check_inputs, explained, predicted

NUMBERS_AT_ONCE = 2**23


def changed_prediction(model: nn.Module, x: Tensor, attacked: Tensor) -> Tensor:
    """One where the predicted class differs between x and its attacked form, else zero: (B,).

    Its mean is the sensitivity "Sen" of an attacked data set (B.1.4).
    """
    if attacked.shape != x.shape:
        raise ValueError(
            f"x and its attacked form must have one shape, got {tuple(x.shape)} and "
            f"{tuple(attacked.shape)}."
        )
    return (predicted(model, x) != predicted(model, attacked)).to(x.dtype)


def curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    explain: Explainer,
    *,
    probes: int | None = None,
    seed: int = 0,
    numbers_at_once: int = NUMBERS_AT_ONCE,
) -> Tensor:
    """Frobenius norm of the derivative of the explanation, for Grad the Hessian norm: (B,).

    Exact, one backward pass for each feature; or estimated from as many backward passes as there
    are `probes`, whose random directions all examples share. As many examples are taken together
    as keep their derivatives (B, n, d) within `numbers_at_once` numbers.
    """
    check_inputs(model, x, y)
    if probes is not None and probes < 1:
        raise ValueError(f"a Hessian norm is estimated from one probe at least, got {probes}.")
    if not len(x):
        return x.new_zeros(0)
    n = explained(model, explain, x[:1], y[:1]).shape[-1]
    passes = n if probes is None else min(probes, n)
    together = max(1, numbers_at_once // (passes * x[0].numel()))

    def norm(part: Tensor, labels: Tensor) -> Tensor:
        def field(points: Tensor) -> Tensor:
            return explain(model, points, labels)

        if passes == n:
            return hessian_norm(field, part)
        drawn = noise_like(x.new_empty(n), stream(seed, "hessian probes"), copies=passes)
        return estimated_hessian_norm(field, part, drawn)

    with torch.no_grad(), eval_mode(model):
        parts = zip(x.split(together), y.split(together), strict=True)
        return torch.cat([norm(part, labels) for part, labels in parts])


def manipulation_step(history: Tensor, below: float = 1.0) -> Tensor:
    """First attack step at which P@k is smaller than `below`: (B,) whole numbers.

    Row t of `history` (T + 1, B) is P@k after t steps, row 0 that of the clean x. An
    example that never falls so low gets T + 1, one past the last step.

    >>> manipulation_step(torch.tensor([[1.0, 1.0], [0.5, 1.0], [0.0, 1.0]]))
    tensor([1, 3])
    """
    if history.ndim != 2 or not len(history) or history.isnan().any():
        raise ValueError(
            "a history of P@k must have one row without NaN for the clean x and each step, "
            f"(T + 1, B), got shape {tuple(history.shape)} with {int(history.isnan().sum())} NaN."
        )
    fallen = history < below
    return torch.where(fallen.any(0), fallen.int().argmax(0), len(fallen))


def off_data_share(gradient: Tensor, one_hot: Sequence[Sequence[int]]) -> Tensor:
    """Share of a gradient's squared length in directions in which the data cannot vary: (B,).

    The columns of a one-hot group, given by their numbers, sum to 1 on every real input: along
    their common direction a gradient changes no prediction and can be anything. A method that gains
    stability there has gained nothing.

    >>> off_data_share(torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]), [(0, 1)])
    tensor([1., 0.])
    """
    whole = gradient.square().sum(-1)
    empty = torch.zeros_like(whole)
    within = sum((gradient[:, list(g)].sum(-1).square() / len(g) for g in one_hot), start=empty)
    return within / torch.where(whole > 0, whole, 1.0)
