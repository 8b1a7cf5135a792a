"""The value of Prop. 4.5 at a single point: no certificate, and named so."""

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, gradient_of, jacobian
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.ranking import check_k, order
from r2et.explainers import SCORES, Quantity, check_inputs, logits_of, predicted


def uncertified_radius_at_x(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    of: Quantity = "probability",
    one_hot: OneHot | None = None,
) -> Tensor:
    """Min over pairs of h(x, i, j) / ||H_i(x) - H_j(x)||, both taken at x alone: (B,).

    Prop. 4.5 asks for the largest ||H_i - H_j|| of a whole ball. At x alone it may be much smaller,
    and is zero wherever logits are linear around x: this number says how a ranking looks from
    where it stands, and is no radius within which it surely stays. `certify` gives one.
    """
    check_inputs(model, x, y)
    check_k(k, x[0].numel())
    y = predicted(model, x) if y is None else y

    def slope(at: Tensor) -> Tensor:
        with torch.enable_grad(), eval_mode(model):
            found = gradient_of(SCORES[of](logits_of(model, at), y), at, create_graph=True)
        return project_one_hot(found, one_hot).flatten(1)

    with torch.no_grad():
        here, turn = slope(x.detach().requires_grad_()).detach(), jacobian(slope, x)
        signs, ranked = here.sign(), order(here.abs())
        # |g_i| moves with s_i H_i as long as no slope changes its sign.
        turn, ranked_scores = signs[..., None] * turn, here.abs().gather(1, ranked)
        turn = turn.gather(1, ranked[..., None].expand_as(turn))
        least = x.new_full((len(x),), torch.inf)
        for place in range(k):
            gap = ranked_scores[:, place, None] - ranked_scores[:, k:]
            apart = (turn[:, place, None] - turn[:, k:]).norm(dim=-1)
            least = torch.minimum(least, (gap / apart).amin(-1))
    return least.nan_to_num(nan=torch.inf, posinf=torch.inf)
