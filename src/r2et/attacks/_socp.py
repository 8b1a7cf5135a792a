"""Steps that lower several goals at once, by interior points: one small problem per example.

Every problem here is of the form

    min over ||d|| <= 1 of  ||r + J d|| + max_i (c_i + g_i'd),

where a goal that counts by its absolute value has two rows, c + g'd and -c - g'd. With a vector u
of length <= 1 for the norm and weights w on the simplex for the maximum, every such u and w give a
lower bound of the minimum,

    w'c + u'r - ||J'u + sum_i w_i g_i||,

and the best of them the minimum itself, d being opposed to the vector whose length is taken. As a
problem over cones it is solved by Mehrotra's predictor and corrector in the scaling of Nesterov and
Todd, for all examples as one batch, each ending by itself. What comes back is a fixed point of the
central path. That point is unique and moves smoothly with the data, also where there are many
minimisers: rounding, and with it the company of an example, does not show in it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CENTRE = 1e-11  # product of each slack and its multiplier where the path ends; their sum is the gap
ROUNDS = 60  # two dozen are usual
RIDGE = 4e-15  # on a diagonal of ones: keeps directions solvable in which nothing changes


@dataclass(frozen=True, kw_only=True, eq=False)
class Descent:
    """A common step for several goals, and how near to the best one it is."""

    step: Tensor
    """The step, no longer than its radius: (B, d)."""
    value: Tensor
    """The largest linearised merit after it: (B,)."""
    weights: Tensor
    """How much each goal decided, >= 0 and of sum one: (B, m)."""
    gap: Tensor
    """By so much at most a better step could go below that value: (B,)."""


def tr_moo(
    gaps: Tensor,
    slopes: Tensor,
    residual: Tensor,
    jacobian: Tensor,
    radius: Tensor,
    active: Tensor | None = None,
) -> Descent:
    """The step after which the largest linearised merit is least: TR-MOO of P Sec. 5.

    min over alpha and ||d|| <= Delta of alpha, so that ||f + J d|| + |h_l + g_l'd - t_l| <= alpha
    for l = 1..m. h - t = `gaps` (B, m) of any sign, g = `slopes` (B, m, d), f = `residual` (B, q),
    J = `jacobian` (B, q, d), Delta = `radius` (B,); goals not `active` (B, m) are left out. Work
    is done in float64, to about m 1e-11 of ||f|| + max |h - t| and the rounding of
    Delta (||J|| + max ||g||). In directions in which nothing changes the step means nothing.
    """
    level, rows, rest, slope, reach = (
        each.double() for each in (gaps, slopes, residual, jacobian, radius)
    )
    if active is not None:
        # Zero is never above the largest absolute value: such a row decides nothing.
        level, rows = level.where(active, 0.0), rows.where(active[..., None], 0.0)
    size = rest.norm(dim=-1) + level.abs().amax(-1)
    size = torch.where(size > 0, size, 1.0)
    stretch = (reach / size)[:, None, None]
    size_of = size[:, None]
    problem = _Problem.of(level / size_of, stretch * rows, rest / size_of, stretch * slope, sides=2)
    step, value, weights, gap = _least_worst(problem)
    weights = weights.sum(1)
    if active is not None:
        weights = weights.where(active, 0.0)
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
    kind = gaps.dtype
    return Descent(
        step=(reach[:, None] * step).to(kind),
        value=(size * value).to(kind),
        weights=weights.to(kind),
        gap=(size * gap).to(kind),
    )


def min_norm_weights(gradients: Tensor) -> Tensor:
    """Weights w >= 0 of sum one for which ||sum_l w_l g_l|| is least: (B, m).

    g_l = `gradients` (B, m, d). Minus that sum is the direction along which all m goals fall
    together, and it is zero where there is none. The length is exact to about m 1e-11 of the
    longest gradient; where several weights reach it, they are the same central ones every time.
    """
    if gradients.ndim != 3 or gradients.shape[1] < 1:
        raise ValueError(
            f"gradients must have one row for each of m >= 1 goals, (B, m, d), got shape "
            f"{tuple(gradients.shape)}."
        )
    rows = gradients.double()
    count, m, d = rows.shape
    # Entries first: squares of a saturated model's slopes underflow.
    largest = rows.abs().amax((1, 2), keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    if m == 1:
        return torch.ones_like(gradients[..., 0])
    if m == 2:
        apart = rows[:, 1] - rows[:, 0]
        square = apart.square().sum(-1)
        share = (apart * rows[:, 1]).sum(-1) / torch.where(square > 0, square, 1.0)
        share = torch.where(square > 0, share.clamp(0, 1), 0.5)
        return torch.stack([share, 1 - share], -1).to(gradients.dtype)
    nothing = rows.new_zeros(count, 0), rows.new_zeros(count, 0, d)
    problem = _Problem.of(rows.new_zeros(count, m), rows, *nothing, sides=1)
    _, _, weights, _ = _least_worst(problem)
    return weights.sum(1).to(gradients.dtype)


class _Problem(NamedTuple):
    """min over ||d|| <= 1 of ||rest + J d|| + max of signs * (level + G d), [G; J] = `known`."""

    level: Tensor  # (B, m)
    rest: Tensor  # (B, q)
    known: Tensor  # (B, m + q, p)
    squared: Tensor  # J'J: (B, p, p)
    signs: Tensor  # (S, 1): one or both sides of each row

    @staticmethod
    def of(level: Tensor, rows: Tensor, rest: Tensor, jacobian: Tensor, sides: int) -> "_Problem":
        """The problem with these data, one or two sides of each row."""
        signs = level.new_tensor([[1.0], [-1.0]][:sides])
        known = torch.cat([rows, jacobian], 1)
        return _Problem(level, rest, known, jacobian.mT @ jacobian, signs)

    def some(self, chosen: Tensor) -> "_Problem":
        """The problems of some examples only."""
        level, rest, known, squared = (each[chosen] for each in self[:4])
        return _Problem(level, rest, known, squared, self.signs)

    def slack(self, x: Tensor, constant: float = 1.0) -> "Parts":
        """The room each constraint leaves at x; with constant 0 how it changes along x."""
        step, height = x[:, :-2], x[:, -1:, None]
        changed = times(self.known, step)
        rows, rest = changed.tensor_split([self.level.shape[1]], -1)
        if constant:
            rows, rest = rows + self.level, rest + self.rest
        width = max(rest.shape[1], step.shape[1])
        cones = x.new_zeros(len(x), 2, 1 + width)
        cones[:, 0, 0], cones[:, 1, 0] = x[:, -2], constant
        cones[:, 0, 1 : 1 + rest.shape[1]], cones[:, 1, 1 : 1 + step.shape[1]] = rest, step
        return height - self.signs * rows[:, None], cones

    def gathered(self, parts: "Parts") -> Tensor:
        """The transpose of that change: (B, p + 2)."""
        rows, cones = parts
        q, p = self.rest.shape[1], self.known.shape[2]
        forces = torch.cat([-(self.signs * rows).sum(1), cones[:, 0, 1 : 1 + q]], -1)
        step = times(self.known.mT, forces) + cones[:, 1, 1 : 1 + p]
        return torch.cat([step, cones[:, 0, :1], rows.sum((1, 2))[:, None]], -1)

    def normal_matrix(self, scaling: "_Scaling") -> Tensor:
        """The change, scaled back twice, and gathered again: (B, p + 2, p + 2)."""
        (m, q), p = (self.level.shape[1], self.rest.shape[1]), self.known.shape[2]
        rows, jacobian = self.known[:, :m], self.known[:, m:]
        stiff = scaling.rows.square().reciprocal()
        soft = scaling.factor.square().reciprocal()[..., None]
        turned = _mirror(scaling.cones)
        first = turned[:, 0, :1]
        bent, ball = times(jacobian.mT, turned[:, 0, 1 : 1 + q]), turned[:, 1, 1 : 1 + p]
        matrix = rows.new_empty(len(rows), p + 2, p + 2)
        inner = matrix[:, :p, :p]
        torch.matmul(rows.mT, stiff.sum(1)[..., None] * rows, out=inner)
        inner += soft[:, :1] * (2 * _outer(bent) + self.squared)
        inner += soft[:, 1:] * 2 * _outer(ball)
        inner.diagonal(dim1=1, dim2=2).add_(soft[:, 1])
        matrix[:, p, :p] = matrix[:, :p, p] = 2 * soft[:, 0] * first * bent
        matrix[:, p, p] = (soft[:, 0] * (2 * first.square() - 1)).squeeze(-1)
        pulled = -times(rows.mT, (self.signs * stiff).sum(1))
        matrix[:, p + 1, :p] = matrix[:, :p, p + 1] = pulled
        matrix[:, p + 1, p], matrix[:, p, p + 1] = 0.0, 0.0
        matrix[:, p + 1, p + 1] = stiff.sum((1, 2))
        return matrix


# The rows (B, S, m) below their common height; and two cones (B, 2, 1 + width), the residual below
# its length and the step in the ball, each with its radius first and zeros at the end.
Parts = tuple[Tensor, Tensor]


class _Point(NamedTuple):
    """A strictly feasible point with its multipliers."""

    x: Tensor  # d, a length above ||rest + J d||, a height above all rows: (B, p + 2)
    rows: Tensor
    cones: Tensor

    def some(self, chosen: Tensor) -> "_Point":
        """The points of some examples only."""
        return _Point(*(each[chosen] for each in self))


def _least_worst(problem: _Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Step (B, p), value (B,), weights (B, S, m) and gap (B,) of each problem."""
    basis = _axes(problem.known)
    known = problem.known @ basis
    jacobian = known[:, problem.level.shape[1] :]
    inside = problem._replace(known=known, squared=jacobian.mT @ jacobian)
    step, value, weights, gap = _judged(inside, _followed(inside))
    return times(basis, step), value, weights, gap


def _axes(known: Tensor) -> Tensor:
    """Orthonormal directions in which a step changes something, zero for others: (B, p, p')."""
    basis = torch.eye(known.shape[2]).to(known).expand(len(known), -1, -1)
    if known.shape[1] < known.shape[2]:
        # The best step is a sum of gradients: their products with one another are all that counts.
        basis, _ = torch.linalg.qr(known.mT)
    # Along the axes of all gradients together a long one does not drown a short one in rounding.
    inside = known @ basis
    _, axes = torch.linalg.eigh(inside.mT @ inside)
    lengths = (inside @ axes).norm(dim=1, keepdim=True)
    rounding = lengths < 1e-14 * lengths.amax(-1, keepdim=True)
    spanned: Tensor = basis @ axes.masked_fill(rounding, 0.0)
    return spanned


def _followed(problem: _Problem) -> _Point:
    """The end of each problem's central path."""
    count, device = len(problem.level), problem.level.device
    point, left, rest = _start(problem), torch.arange(count, device=device), problem
    ended: list[tuple[Tensor, _Point]] = []
    for _ in range(ROUNDS):
        if not len(left):
            break
        point, done = _round(rest, point)
        if done.any():
            ended.append((left[done], point.some(done)))
            left, rest, point = left[~done], rest.some(~done), point.some(~done)
    ended.append((left, point))
    order = torch.cat([rows for rows, _ in ended]).argsort()
    columns = zip(*(at for _, at in ended), strict=True)
    return _Point(*(torch.cat(column)[order] for column in columns))


def _judged(problem: _Problem, point: _Point) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a point is worth, from the definitions alone: no error of the search can hide here."""
    level, rest, known, _, signs = problem
    step = point.x[:, :-2]
    rows, residual = times(known, step).tensor_split([level.shape[1]], -1)
    value = (rest + residual).norm(dim=-1) + (signs * (level + rows)[:, None]).amax((1, 2))
    weights = point.rows / point.rows.sum((1, 2), keepdim=True)
    signed = (signs * weights).sum(1)
    pull = -point.cones[:, 0, 1 : 1 + rest.shape[1]] / point.cones[:, 0, :1]
    pull = pull / pull.norm(dim=-1, keepdim=True).clamp_min(1)
    combined = times(known.mT, torch.cat([signed, pull], -1))
    bound = (signed * level).sum(-1) + (pull * rest).sum(-1) - combined.norm(dim=-1)
    return step, value, weights, value - bound


def _start(problem: _Problem) -> _Point:
    """A point with room on all sides: no step, even weights."""
    level, rest, known, _, signs = problem
    (count, m), p = level.shape, known.shape[2]
    weights = torch.full_like(signs * level[:, None], 1 / (len(signs) * m))
    force = times(known[:, :m].mT, (signs * weights).sum(1))
    cones = level.new_zeros(count, 2, 1 + max(p, rest.shape[1]))
    cones[:, 0, 0], cones[:, 1, 0] = 1.0, 1.5 * force.norm(dim=-1) + 1
    cones[:, 1, 1 : 1 + p] = force
    x = level.new_zeros(count, p + 2)
    x[:, p] = rest.norm(dim=-1) + 1
    x[:, p + 1] = (signs * level[:, None]).amax((1, 2)) + 1
    return _Point(x, weights, cones)


def _round(problem: _Problem, point: _Point) -> tuple[_Point, Tensor]:
    """The next point of each example, and whether it is the last: (B,) booleans."""
    slack, multipliers = problem.slack(point.x), (point.rows, point.cones)
    scaling = _Scaling.between(slack, multipliers)
    middle = scaling.shrunk(slack)
    normal = problem.normal_matrix(scaling)
    diagonal = normal.diagonal(dim1=1, dim2=2).rsqrt()
    even = diagonal[:, :, None] * normal * diagonal[:, None, :]
    even.diagonal(dim1=1, dim2=2).add_(RIDGE)
    factor, failed = torch.linalg.cholesky_ex(even)
    missing = -problem.gathered(multipliers)
    missing[:, -2:] += 1  # what is minimised is the length plus the height

    def solved(side: Tensor) -> Tensor:
        return diagonal * torch.cholesky_solve((diagonal * side)[..., None], factor).squeeze(-1)

    def newton(aims: Parts) -> tuple[Tensor, Parts, Parts]:
        """Changes of x, slacks and multipliers, the last two adding up to `aims` when scaled."""
        wanted = scaling.shrunk(aims)
        side = problem.gathered(wanted) - missing
        x = solved(side)
        x = x + solved(side - times(normal, x))
        change = problem.slack(x, 0.0)
        back = scaling.shrunk_twice(change)
        return x, change, (wanted[0] - back[0], wanted[1] - back[1])

    def room(change: Parts, force: Parts) -> Tensor:
        """The longest step that leaves all slacks and multipliers where they belong: (B,)."""
        return torch.minimum(_reach(slack, change), _reach(multipliers, force))

    count = point.rows.shape[1] * point.rows.shape[2] + 2
    height = (slack[0] * point.rows).sum((1, 2)) + (slack[1] * point.cones).sum((1, 2))
    height = height / count
    _, change, force = newton((-middle[0], -middle[1]))
    ahead = room(change, force).clamp(max=1)
    # Far from the end of the path the corrector makes up for the predictor's second-order error;
    # near it plain Newton steps to its end converge quadratically.
    near = height < 10 * CENTRE
    centre = torch.where(near, CENTRE, ((1 - ahead) ** 3 * height).clamp_min(CENTRE))
    second = scaling.shrunk(change), scaling.grown(force)
    x, change, force = newton(_towards(middle, second, centre, ~near))
    length = (0.99 * room(change, force)).clamp(max=1)
    finite = x.isfinite().all(-1) & force[0].isfinite().all(-1).all(-1)
    stuck = (failed > 0) | ~finite | ~(length >= 1e-9)
    done = stuck | (near & (length == 1) & (x[:, :-2].norm(dim=-1) < 1e-13))
    moved = [
        at + length[(..., *(None,) * (at.ndim - 1))] * by
        for at, by in zip(point, (x, *force), strict=True)
    ]
    stays = [
        torch.where(stuck[(..., *(None,) * (at.ndim - 1))], at, to)
        for at, to in zip(point, moved, strict=True)
    ]
    return _Point(*stays), done


class _Scaling(NamedTuple):
    """The scaling of Nesterov and Todd, under which slacks and multipliers become equal."""

    rows: Tensor  # (B, S, m)
    cones: Tensor  # (B, 2, 1 + width), the points to which the axis is taken
    factor: Tensor  # (B, 2)

    @staticmethod
    def between(slack: Parts, force: Parts) -> "_Scaling":
        """The scaling of these slacks and multipliers."""
        one, other = _inner(slack[1]).sqrt(), _inner(force[1]).sqrt()
        near, far = slack[1] / one[..., None], force[1] / other[..., None]
        length = (2 * (1 + (near * far).sum(-1, keepdim=True))).sqrt()
        cones = (near + _mirror(far)) / length
        return _Scaling((slack[0] / force[0]).sqrt(), cones, (one / other).sqrt())

    def grown(self, parts: Parts) -> Parts:
        """Multipliers, or their changes, scaled."""
        return self.rows * parts[0], self.factor[..., None] * _boosted(self.cones, parts[1])

    def shrunk(self, parts: Parts) -> Parts:
        """Slacks, or their changes, scaled; also the way back for multipliers."""
        turned = _boosted(_mirror(self.cones), parts[1])
        return parts[0] / self.rows, turned / self.factor[..., None]

    def shrunk_twice(self, parts: Parts) -> Parts:
        """Slacks, or their changes, taken to multipliers."""
        turned = _mirror(self.cones)
        along = 2 * (turned * parts[1]).sum(-1, keepdim=True)
        cones = (along * turned - _mirror(parts[1])) / self.factor.square()[..., None]
        return parts[0] / self.rows.square(), cones


def _towards(middle: Parts, second: tuple[Parts, Parts], centre: Tensor, curved: Tensor) -> Parts:
    """The scaled changes after which all products are `centre`, to second order if `curved`."""
    centre, curved = centre[:, None, None], curved[:, None, None]
    (by_rows, by_cones), (to_rows, to_cones) = second
    rows = centre - middle[0].square() - torch.where(curved, by_rows * to_rows, 0.0)
    at = middle[1]
    product = -_jordan(at, at) - torch.where(curved, _jordan(by_cones, to_cones), 0.0)
    product[..., :1] += centre
    first = (_mirror(at) * product).sum(-1, keepdim=True) / _inner(at)[..., None]
    return rows / middle[0], torch.cat(
        [first, (product[..., 1:] - first * at[..., 1:]) / at[..., :1]], -1
    )


def _reach(at: Parts, by: Parts) -> Tensor:
    """The longest step that keeps rows positive and cones what they are: (B,)."""
    falls = by[0] < 0
    rows = torch.where(falls, -at[0] / torch.where(falls, by[0], 1.0), torch.inf)
    square = 2 * by[1][..., 0].square() - by[1].square().sum(-1)
    cross = (_mirror(at[1]) * by[1]).sum(-1)
    inside = _inner(at[1])
    under = cross.square() - square * inside
    below = under.clamp_min(0).sqrt() - cross
    leaves = (under >= 0) & (below > 0)
    cones = torch.where(leaves, inside / torch.where(leaves, below, 1.0), torch.inf)
    return torch.minimum(rows.amin((1, 2)), cones.amin(-1))


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Each example's matrix (B, q, p) times its vector (B, p): (B, q)."""
    return (matrix @ vector[..., None]).squeeze(-1)


def _outer(vector: Tensor) -> Tensor:
    return vector[:, :, None] * vector[:, None, :]


def _mirror(cones: Tensor) -> Tensor:
    turned = -cones
    turned[..., 0] = cones[..., 0]
    return turned


def _inner(cones: Tensor) -> Tensor:
    """Square of the first number minus that of the rest's length, positive in a cone."""
    length: Tensor = cones[..., 1:].norm(dim=-1)
    return (cones[..., 0] - length) * (cones[..., 0] + length)


def _jordan(one: Tensor, other: Tensor) -> Tensor:
    product = one[..., :1] * other + other[..., :1] * one
    product[..., 0] = (one * other).sum(-1)
    return product


def _boosted(point: Tensor, vector: Tensor) -> Tensor:
    """The symmetric map that takes the cone to itself and its axis to `point`."""
    first = (point * vector).sum(-1)
    along = (first + vector[..., 0]) / (1 + point[..., 0])
    boosted = vector + along[..., None] * point
    boosted[..., 0] = first
    return boosted
