"""The nearest point to the origin at which linear inequalities hold, for many small problems.

    min |w|  so that  a_u'w >= c_u  for all u

Its dual, max of c'l - |A'l|^2 / 2 over l >= 0, is solved by exchanging blocks of active rows
(Judice and Pires). Any l >= 0 proves that no such w is nearer than c'l / |A'l|, so that a distance
is sound however well the dual was solved.
"""

import torch
from torch import Tensor

RIDGE = 1e-12  # of rows of length one: rows that depend on one another keep a solution
EXCHANGES = 60


def nearest_multipliers(rows: Tensor, floors: Tensor, start: Tensor | None = None) -> Tensor:
    """Multipliers >= 0 that are the best, or nearly, of each dual: a (N, m, d), c (N, m): (N, m).

    Rows of zeros take no part. `start` (N, m) says which rows to begin with as active.
    """
    count, m = floors.shape
    if not count or not m:
        return torch.zeros_like(floors)
    length = rows.norm(dim=-1)
    real = length > 0
    length = torch.where(real, length, 1.0)
    unit, level = rows / length[..., None], torch.where(real, floors / length, 0.0)
    gram = unit @ unit.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
    found = _exchanged(gram, level, real, start if start is not None else level > 0)
    return found.clamp_min(0) / length


def _exchanged(gram: Tensor, level: Tensor, real: Tensor, start: Tensor) -> Tensor:
    """Solutions l >= 0 of G l - c >= 0, of which one of each two is zero: (N, m)."""
    count, m = level.shape
    active = start & real
    found = torch.zeros_like(level)
    fewest = torch.full((count,), m + 1, device=level.device)
    patience = torch.full_like(fewest, 3)
    rows = torch.arange(count, device=level.device)
    tiny = 1e-12 * (1 + level.abs().amax(-1, keepdim=True))
    places = torch.arange(m, device=level.device)
    for _ in range(EXCHANGES):
        now, here, side = gram[rows], active[rows], level[rows]
        both = here[:, :, None] & here[:, None]
        matrix = torch.where(both, now, 0.0)
        matrix.diagonal(dim1=-2, dim2=-1).add_((~here).to(now))
        factor, _ = torch.linalg.cholesky_ex(matrix)
        solved = torch.cholesky_solve(torch.where(here, side, 0.0)[..., None], factor).squeeze(-1)
        solved = torch.where(here, solved, 0.0).nan_to_num(0.0, 0.0, 0.0)
        rest = (now @ solved[..., None]).squeeze(-1) - side
        slack = tiny[rows] * (1 + solved.abs().amax(-1, keepdim=True))
        wrong = (here & (solved < -slack)) | (~here & (rest < -slack) & real[rows])
        found[rows] = solved
        many = wrong.sum(-1)
        # A block is exchanged while that helps; then one row at a time, which surely ends.
        better = many < fewest[rows]
        fewest[rows] = torch.where(better, many, fewest[rows])
        patience[rows] = torch.where(better, 3, patience[rows] - 1)
        last = torch.where(wrong, places, -1).amax(-1, keepdim=True)
        one = wrong & (places == last)
        active[rows] = here ^ torch.where((patience[rows] > 0)[:, None], wrong, one)
        rows = rows[many > 0]
        if not len(rows):
            break
    return found


def proved_distance(rows: Tensor, floors: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """How far every solution is from the origin at least, and in which direction: (N,), (N, d).

    With l = `multipliers` >= 0 and v = A'l all solutions have v'w >= c'l, hence |w| >= c'l / |v|.
    Returned are this number, rounded downwards and at least 0, and v / |v|. Where nothing solves
    the inequalities it can be any large number.
    """
    eps = torch.finfo(rows.dtype).eps
    way = (multipliers[..., None] * rows).sum(1)
    terms = multipliers * floors
    many = rows.shape[1] + rows.shape[2] + 16
    level = terms.sum(-1) - 2 * many * eps * terms.abs().sum(-1)
    doubt = 2 * many * eps * (multipliers * rows.norm(dim=-1)).sum(-1)
    length = way.norm(dim=-1)
    distance = (level / (length * (1 + many * eps) + doubt + 1e-300)).clamp_min(0.0)
    # A direction that is mostly rounding is none.
    sure = length > 1e6 * doubt
    direction = torch.where(sure[:, None], way / length.clamp_min(1e-300)[:, None], 0.0)
    return distance, direction


def nearest_in(rows: Tensor, floors: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Proved distance and direction of {w: rows'w >= floors where wanted}, and its nearest point.

    `rows` (N, m, d), `floors` (N, m), `wanted` (N, m): (N,), (N, d), (N, d).
    """
    most = int(wanted.sum(-1).max()) if len(wanted) else 0
    chosen = wanted.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices[:, :most]
    mask = wanted.gather(1, chosen)
    few = rows.gather(1, chosen[..., None].expand(-1, -1, rows.shape[-1])) * mask[..., None]
    level = torch.where(mask, floors.gather(1, chosen), 0.0)
    multipliers = nearest_multipliers(few, level)
    distance, way = proved_distance(few, level, multipliers)
    return distance, way, (multipliers[..., None] * few).sum(1)
