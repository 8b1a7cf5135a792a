"""Prop. 4.4's lower bound written out for three explainers (P, A.1.2): Eqs. 17, 18 and 19.

As the paper prints them. Each is a first-order bound of Eq. 13 in which the derivative of the
explanation was replaced by the Hessian. For SmoothGrad that is exact where the gradient is linear.
Grad x Input also changes with x itself, which Eq. 18 leaves out, and Eq. 19 does not hold: for
s = x_1^2 / 2 at x_1 = 1 it promises more than there is. `thickness_bounds` of the explainer itself
is the bound that does hold to first order.
"""

import torch
from torch import Tensor, nn

from r2et.core.autograd import jacobian
from r2et.explainers import Gradient, Quantity, check_inputs
from r2et.metrics.thickness import check_length, feature_numbers


def smooth_grad_lower_bound(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    *,
    radius: float,
    noise: Tensor,
    of: Quantity = "probability",
) -> Tensor:
    """Eq. 17: g_i - g_j - eps/2 ||H_i - H_j|| + mean(beta)'(H_i - H_j): (B,).

    g and H are gradient and Hessian at x, eps = `radius`, beta the M draws of `noise` (M, ...).
    """
    gradients, turn, _ = _pair_at(model, x, y, i, j, radius, of)
    beta = noise.mean(0).to(x).flatten()
    if beta.shape != turn.shape[1:]:
        raise ValueError(
            f"noise must hold draws shaped like one example, {tuple(x.shape[1:])}, got "
            f"{tuple(noise.shape[1:])}."
        )
    return _lower(gradients[:, 0] - gradients[:, 1], turn, radius) + turn @ beta


def gradient_times_input_lower_bound(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    *,
    radius: float,
    of: Quantity = "probability",
) -> Tensor:
    """Eq. 18, its last line: g_i x_i - g_j x_j - eps/2 ||H_i - H_j||: (B,)."""
    gradients, turn, values = _pair_at(model, x, y, i, j, radius, of)
    products = gradients * values
    return _lower(products[:, 0] - products[:, 1], turn, radius)


def integrated_gradients_lower_bound(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    *,
    radius: float,
    of: Quantity = "probability",
) -> Tensor:
    """Eq. 19: half of what Eq. 18 says. No bound, as the example above shows: (B,)."""
    return gradient_times_input_lower_bound(model, x, y, i, j, radius=radius, of=of) / 2


def _lower(gap: Tensor, turn: Tensor, radius: float) -> Tensor:
    """A gap less eps/2 ||H_i - H_j||: (B,)."""
    bend: Tensor = torch.linalg.vector_norm(turn, dim=-1)
    return gap - radius / 2 * bend


def _pair_at(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    radius: float,
    of: Quantity,
) -> tuple[Tensor, Tensor, Tensor]:
    """Signed gradients of two features (B, 2), H_i - H_j (B, d), and the features (B, 2)."""
    check_inputs(model, x, y)
    check_length("radius", radius)
    numbers = x[0].numel()
    pair = torch.stack([feature_numbers(i, x, numbers), feature_numbers(j, x, numbers)], dim=-1)
    explain = Gradient(of=of, form="signed")

    def field(points: Tensor) -> Tensor:
        return explain(model, points, y).gather(-1, pair)

    with torch.no_grad():
        turn = jacobian(field, x)
        return field(x), turn[:, 0] - turn[:, 1], x.flatten(1).gather(-1, pair)
