"""What R2ET's penalty has to do with an adversary: Props. 4.6 and 4.7 (P Sec. 4.2, A.3).

Both hold to first order, and exactly where the explanation is linear over the ball. Prop. 4.6 calls
Eq. 6 and a min-max problem equivalent by way of Eq. 25; that equation forgets the signs of the
weights l_i, and with them its term is no multiple of ||H||: it lies between two multiples of it.
Prop. 4.7 turns its constraints into margins that are wider by what each score can lose.
"""

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, jacobian
from r2et.core.ranking import check_k, margin_weights
from r2et.explainers import Explainer, check_inputs, explained
from r2et.metrics.thickness import check_length


def printed_inner_minimum(
    model: nn.Module, x: Tensor, y: Tensor, *, explain: Explainer, k: int, radius: float
) -> Tensor:
    """Eq. 25 as printed, sum l_i I_i - eps max_t l_t ||H_t||, eps = `radius`: (B,)."""
    weights, saliency, slopes = _weighted(model, x, y, explain, k, radius)
    return (weights * saliency).sum(-1) - radius * (weights * slopes).amax(-1)


def inner_minimum(
    model: nn.Module, x: Tensor, y: Tensor, *, explain: Explainer, k: int, radius: float
) -> Tensor:
    """Least sum l_i I_i(x + delta_i) over sum ||delta_i|| <= eps, to first order: (B,).

    Eq. 25 with absolute weights, sum l_i I_i - eps max_t |l_t| ||H_t|| [Prop. 4.6]: all is spent on
    the one feature whose score loses most.
    """
    weights, saliency, slopes = _weighted(model, x, y, explain, k, radius)
    return (weights * saliency).sum(-1) - radius * (weights.abs() * slopes).amax(-1)


def curvature_weights(k: int, n: int, radius: float) -> tuple[float, float]:
    """Two weights of ||H|| between whose terms what the adversary of Eq. 25 takes away lies.

    eps min(k, n - k) / sqrt(n) and eps max(k, n - k), of the Frobenius norm: with the latter as
    lambda_2, and lambda_1 = 1, Eq. 6 is no smaller than the min-max objective [Prop. 4.6].
    """
    check_k(k, n)
    check_length("radius", radius)
    return radius * min(k, n - k) / n**0.5, radius * max(k, n - k)


def least_weighted_scores(
    model: nn.Module, x: Tensor, y: Tensor, *, explain: Explainer, k: int, radius: float
) -> Tensor:
    """Least l_i I_i(x + delta) over ||delta|| <= eps for each feature, to first order: (B, n).

    l_i I_i - eps |l_i| ||H_i||, which Eq. 9 wants to be no smaller than G_i [Prop. 4.7]: Eq. 8 with
    margins that are wider by what each score can lose, and not by one norm of H for all.
    """
    weights, saliency, slopes = _weighted(model, x, y, explain, k, radius)
    return weights * saliency - radius * weights.abs() * slopes


def _weighted(
    model: nn.Module, x: Tensor, y: Tensor, explain: Explainer, k: int, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The l_i, n - k for the top k and -k for the rest, I_i and ||H_i|| at x: (B, n) each."""
    check_inputs(model, x, y)
    check_length("radius", radius)
    saliency = explained(model, explain, x, y)
    n = saliency.shape[-1]
    weights = k * (n - k) * margin_weights(saliency, k)
    with torch.no_grad(), eval_mode(model):
        slopes = jacobian(lambda at: explain(model, at, y), x).norm(dim=-1)
    return weights, saliency, slopes
