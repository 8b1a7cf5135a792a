"""Prop. 4.4's lower bound written out for three explainers (P, A.1.2): Eqs. 17, 18 and 19.

Each is a first-order bound of Eq. 13 in which the derivative of the explanation was written out.
For SmoothGrad [Eq. 17] that is exact where the gradient is linear. Eqs. 18 and 19 are here as the
paper prints them and as they follow. For Grad x Input the derivative of g_i x_i is
x_i H_i + g_i e_i: the paper leaves out the factor x_i and then, as small, all that x itself moves.
For Integrated Gradients from 0 it is x_i K_i + m_i e_i, where m is the mean of g(a x) and K that of
a H(a x) over 0 <= a <= 1; the paper halves Eq. 18 instead, and for s = x_1^2 / 2 at x_1 = 1 that
promises more than there is.
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
    gradients, turns, _ = _pair_at(model, x, y, i, j, radius, of)
    turn = turns[:, 0] - turns[:, 1]
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
    gradients, turns, pair = _pair_at(model, x, y, i, j, radius, of)
    products = gradients * x.flatten(1).gather(-1, pair)
    return _lower(products[:, 0] - products[:, 1], turns[:, 0] - turns[:, 1], radius)


def gradient_times_input_first_order_bound(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    *,
    radius: float,
    of: Quantity = "probability",
) -> Tensor:
    """Eq. 18 as it follows: I_i - I_j - eps/2 ||x_i H_i + g_i e_i - x_j H_j - g_j e_j||: (B,).

    I_i = g_i x_i. Exact where the score is linear, and else up to what Grad x Input bends.
    """
    gradients, turns, pair = _pair_at(model, x, y, i, j, radius, of)
    return _lower_of_products(x, pair, gradients, turns, radius)


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


def integrated_gradients_first_order_bound(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    i: int | Tensor,
    j: int | Tensor,
    *,
    radius: float,
    of: Quantity = "probability",
    points: int = 100,
) -> Tensor:
    """Eq. 19 as it follows: I_i - I_j - eps/2 ||x_i K_i + m_i e_i - x_j K_j - m_j e_j||: (B,).

    I_i = m_i x_i; m and K are means over the middles of `points` equal parts of the line from 0 to
    x. Exact where the score is linear, and else up to what Integrated Gradients bend.
    """
    shares = [(number + 0.5) / points for number in range(points)]
    parts = [_pair_at(model, share * x, y, i, j, radius, of) for share in shares]
    mean = torch.stack([gradients for gradients, _, _ in parts]).mean(0)
    turned = torch.stack([a * turns for a, (_, turns, _) in zip(shares, parts, strict=True)])
    return _lower_of_products(x, parts[0][2], mean, turned.mean(0), radius)


def _lower_of_products(
    x: Tensor, pair: Tensor, factors: Tensor, turns: Tensor, radius: float
) -> Tensor:
    """The bound for scores x_i c_i, c = `factors` (B, 2) of derivatives `turns` (B, 2, d): (B,)."""
    values = x.flatten(1).gather(-1, pair)
    products = factors * values
    own = torch.zeros_like(turns).scatter(-1, pair[..., None], factors[..., None])
    slopes = values[..., None] * turns + own
    return _lower(products[:, 0] - products[:, 1], slopes[:, 0] - slopes[:, 1], radius)


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
    """Signed gradients of two features (B, 2), their rows of H (B, 2, d), their numbers (B, 2)."""
    check_inputs(model, x, y)
    check_length("radius", radius)
    numbers = x[0].numel()
    pair = torch.stack([feature_numbers(i, x, numbers), feature_numbers(j, x, numbers)], dim=-1)
    explain = Gradient(of=of, form="signed")

    def field(points: Tensor) -> Tensor:
        return explain(model, points, y).gather(-1, pair)

    with torch.no_grad():
        return field(x), jacobian(field, x), pair
