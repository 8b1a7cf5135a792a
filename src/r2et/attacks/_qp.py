"""A common direction of descent that keeps limits to first order, for all examples as one batch.

    min over d of  1/2 ||d||^2 + max_l g_l'd   so that   c_s + a_s'd <= 0 for all s

with all c_s <= 0: the limits are kept where the direction begins. Mehrotra's predictor and
corrector lead to a fixed point of the central path, near enough to the minimiser to be taken for
it. It is unique, so that the company of an example does not show in it.
"""

from functools import partial

import torch
from torch import Tensor

from r2et.attacks._socp import times

CENTRE = 1e-13  # product of each slack and its multiplier where the path ends
ROUNDS = 60  # two dozen are usual


def kept_descent(slopes: Tensor, level: Tensor, rows: Tensor) -> Tensor:
    """The direction that lowers the slowest of m goals most within limits [Q Eqs. 7, 12]: (B, d).

    g = `slopes` (B, m, d), c = `level` (B, S) at most 0, a = `rows` (B, S, d). With multipliers w
    of sum one and u >= 0, d = -(sum w_l g_l + sum u_s a_s); since u_s (c_s + a_s'd) = 0, every
    g_l'd <= -||d||^2 + sum u_s c_s <= -||d||^2. It is zero only where the goals cannot fall
    together.
    """
    largest = _or_one(slopes.abs().amax((1, 2)))[:, None, None].double()
    goals = slopes.double() / largest
    longest = _or_one(goals.norm(dim=-1).amax(-1))[:, None, None]
    goals, size = goals / longest, largest * longest
    steep = _or_one(rows.double().norm(dim=-1, keepdim=True))
    limits = rows.double() / steep
    # No direction is longer than 1 now: a limit that is twice as far decides nothing.
    room = (-level.double()[..., None] / (steep * size)).squeeze(-1).clamp(0.0, 2.0)
    room = torch.where(limits.any(-1), room, 2.0)
    known = torch.cat([goals, limits], 1)
    basis = None
    if known.shape[1] < known.shape[2]:
        basis, _ = torch.linalg.qr(known.mT)  # the direction is a sum of gradients
        known = known @ basis
    step = _followed(known, room, goals.shape[1])
    step = step if basis is None else times(basis, step)
    return (size[:, 0] * step).to(slopes.dtype)


def _followed(known: Tensor, room: Tensor, m: int) -> Tensor:
    """The end of the path: d, with `m` rows below a height that counts, the others below `room`."""
    count, total, d = known.shape
    height = known.new_zeros(total, 1)
    height[:m] = -1.0
    matrix = torch.cat([known, height.expand(count, -1, -1)], -1)  # all rows by (d, height)
    side = torch.cat([room.new_zeros(count, m), room], -1)
    bend = torch.ones(d + 1).to(known)
    bend[-1] = 0.0
    x, slack = known.new_zeros(count, d + 1), torch.ones_like(side)
    force = torch.full_like(side, 1 / m)
    done = torch.zeros(count, dtype=torch.bool, device=known.device)
    for _ in range(ROUNDS):
        if done.all():
            break
        pull = bend * x + times(matrix.mT, force)
        pull[:, -1] += 1  # what is minimised is half the square plus the height
        apart = times(matrix, x) + slack - side
        normal = (matrix.mT * (force / slack)[:, None]) @ matrix + torch.diag(bend)
        factor, failed = torch.linalg.cholesky_ex(normal)
        newton = partial(_newton, matrix, factor, pull, apart, slack, force)
        centre = (slack * force).mean(-1, keepdim=True)
        _, ahead, pushed = newton(slack * force)
        reach = _reach(slack, ahead, force, pushed)
        near = centre < 10 * CENTRE
        aim = torch.where(near, CENTRE, ((1 - reach) ** 3 * centre).clamp_min(CENTRE))
        second = torch.where(near, 0.0, ahead * pushed)
        change, ahead, pushed = newton(slack * force + second - aim)
        length = 0.99 * _reach(slack, ahead, force, pushed)
        length = torch.where(length < 0.99, length, 1.0)
        stuck = (failed > 0) | ~change.isfinite().all(-1) | ~(length[:, 0] > 1e-9)
        open_rows = ~(done | stuck)[:, None]
        x = torch.where(open_rows, x + length * change, x)
        slack = torch.where(open_rows, slack + length * ahead, slack)
        force = torch.where(open_rows, force + length * pushed, force)
        settled = near[:, 0] & (length[:, 0] == 1) & (change[:, :-1].norm(dim=-1) < 1e-14)
        done = done | stuck | settled
    return x[:, :-1]


def _newton(
    matrix: Tensor,
    factor: Tensor,
    pull: Tensor,
    apart: Tensor,
    slack: Tensor,
    force: Tensor,
    product: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Changes of x, slacks and multipliers that lower slack * force by `product`, nearly."""
    fixed = (force * apart - product) / slack
    goal = -pull - times(matrix.mT, fixed)
    change = torch.cholesky_solve(goal[..., None], factor).squeeze(-1)
    moved = times(matrix, change)
    return change, -apart - moved, fixed + force / slack * moved


def _reach(slack: Tensor, ahead: Tensor, force: Tensor, pushed: Tensor) -> Tensor:
    """The longest share of a step, at most 1, that leaves slacks and multipliers >= 0: (B, 1)."""
    both = torch.cat([-slack / ahead, -force / pushed], -1)
    falls = torch.cat([ahead, pushed], -1) < 0
    return both.where(falls, torch.inf).amin(-1, keepdim=True).clamp(max=1.0)


def _or_one(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, 1.0)
