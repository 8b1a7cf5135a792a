"""Best-first branch and bound over the activation cells that balls meet.

Each cell has one slope. Bounds close whole sets of cells; what they leave is split by the sign of
one unit, down to single cells, whose nearest points are projections.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from r2et.core.cell_bounds import (
    INSIDE,
    ROUNDED,
    Cap,
    Decisions,
    Gaps,
    Layer,
    Lines,
    Nodes,
    PiecewiseLinear,
    cell_rows,
    displaced,
    gaps_within,
    grain,
    layers_within,
    swapped,
    swaps,
)
from r2et.core.polyhedra import nearest_in

TOGETHER, EACH = 32, 32
"""Decisions that are searched at once, and nodes of each that are looked at in one round."""

NUMBERS_AT_ONCE = 2**23
"""Weights by inputs of all nodes together; of larger networks fewer nodes are looked at."""

EXACT = 1e-6
"""By this share the smallest breaking change may be shorter than the one that was verified."""

TOUCHING = 1e-10
"""Of the terms of a sum: within this a point on a border is not beyond it."""

HALVINGS = 24

Goal = Literal["verdict", "smallest", "worst"]
"""Whether anything breaks; the shortest change that does; the change that displaces most."""


def together(network: PiecewiseLinear) -> tuple[int, int]:
    """How many decisions are searched at once, and how many nodes of each looked at in a round."""
    numbers = max(1, sum(network.units)) * network.inputs
    many = max(1, min(TOGETHER, NUMBERS_AT_ONCE // numbers))
    return many, max(1, min(EACH, NUMBERS_AT_ONCE // (numbers * TOGETHER)))


@dataclass(eq=False)
class Frontier:
    """What is known of D decisions while they are searched.

    Nodes further than `radius` are not looked at. `gone` (D,) is how many features the best input
    so far displaces, by `move` (D, d) of length `cost` (D,). Of single cells that can be neither
    closed nor verified `unsure` (D,) is the distance of the nearest, and `possible` (D,) how many
    features may be displaced there. Gaps up to `doubt` (D,) are not proved, up to `tie` (D,) they
    are none. `seen` (D,) counts nodes, `attacked` (D,) tells whose best input was given.
    What is verified stays `inside` radii away from the borders of its cell.
    """

    decisions: Decisions
    goal: Goal
    radius: float
    doubt: Tensor
    tie: Tensor
    nodes: Nodes
    cost: Tensor
    gone: Tensor
    move: Tensor
    unsure: Tensor
    possible: Tensor
    seen: Tensor
    attacked: Tensor
    inside: float

    @classmethod
    def of(
        cls,
        decisions: Decisions,
        doubt: Tensor,
        radius: float,
        goal: Goal,
        *,
        inside: float = INSIDE,
    ) -> "Frontier":
        """The beginning: nothing known, whole balls to be searched."""
        x = decisions.x
        none = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return cls(
            decisions=decisions,
            goal=goal,
            radius=float(radius),
            doubt=doubt,
            tie=grain(decisions),
            nodes=Nodes.roots(decisions),
            cost=x.new_full((len(x),), torch.inf),
            gone=none,
            move=torch.zeros_like(x),
            unsure=x.new_full((len(x),), torch.inf),
            possible=none.clone(),
            seen=none.clone(),
            attacked=none.bool(),
            inside=inside,
        )

    def search(self, each: int, *, until: float = math.inf, rounds: int | None = None) -> None:
        """Look at `each` nodes of every decision at a time, until none is left.

        Or until a time of `time.monotonic`, or for so many `rounds`.
        """
        number = 0
        while len(self.nodes) and time.monotonic() < until and number != rounds:
            self._round(each)
            number += 1

    def try_inputs(self, x: Tensor) -> None:
        """Keep inputs (D, d) that break their decisions within the radius."""
        scale = self.decisions.scale
        moved = torch.where(scale > 0, (x - self.decisions.x) / torch.where(scale > 0, scale, 1), 0)
        before = self.cost.clone()
        row = torch.arange(len(x), device=x.device)
        self._offer(row, moved, torch.ones_like(row, dtype=torch.bool))
        self.attacked |= self.cost < before

    def best(self) -> Tensor:
        """The best input so far of each decision, x itself where none is: (D, d)."""
        return self.decisions.x + self.decisions.scale * self.move

    def left(self) -> Tensor:
        """Which decisions have nodes that nobody has looked at: (D,) booleans."""
        left = torch.zeros_like(self.attacked)
        left[self.nodes.row] = True
        return left

    def most_displaced(self) -> Tensor:
        """How many features any input within the radius displaces at most, of a search for that."""
        most = self.gone.scatter_reduce(0, self.nodes.row, self.nodes.most, "amax")
        return torch.maximum(most, torch.where(self.unsure <= self.radius, self.possible, 0))

    def proved(self) -> Tensor:
        """A length that no breaking change is shorter than: (D,)."""
        broken = self.cost <= self.radius
        nearest = torch.full_like(self.cost, torch.inf).scatter_reduce(
            0, self.nodes.row, self.nodes.distance, "amin"
        )
        lower = torch.minimum(torch.minimum(nearest, self.unsure), self.cost * (1 - EXACT))
        lower = lower.clamp_max(self.radius)
        if self.goal != "smallest":
            lower = torch.where(broken, 0.0, lower)  # nearer nodes were left out
        rows = (self.left() | (broken & (self.goal != "smallest"))).nonzero().squeeze(-1)
        if len(rows):
            at_least = torch.maximum(lower[rows], self._by_bounds(rows))
            lower[rows] = torch.minimum(at_least, self.cost[rows])
        return lower

    def _by_bounds(self, rows: Tensor) -> Tensor:
        """The largest radius found within which bounds of the whole ball keep the top k: (R,)."""
        some = self.decisions.rows(rows)
        roots = Nodes.roots(some)
        low = torch.zeros_like(self.cost[rows])
        high = torch.full_like(low, self.radius)
        for _ in range(HALVINGS):
            # Ratios: the radius sought may be a hundredth of the ball's.
            guess = torch.where(low > 0, (low * high).sqrt(), high / 8)
            layers, _ = layers_within(some, roots, Cap.of(roots, guess))
            gaps = gaps_within(some, roots, layers, self.doubt[rows], self.tie[rows])
            held = swaps(gaps.open) == 0
            low, high = torch.where(held, guess, low), torch.where(held, high, guess)
        return low

    def _reach(self) -> Tensor:
        """Within which radius something better may be: (D,)."""
        reach = torch.full_like(self.cost, self.radius)
        return torch.minimum(reach, self.cost) if self.goal == "smallest" else reach

    def _beaten(self) -> Tensor:
        """How many displaced features are not worth looking for any more: (D,)."""
        return self.gone if self.goal == "worst" else torch.zeros_like(self.gone)

    def _alive(self, nodes: Nodes) -> Tensor:
        """Which nodes may hold something better than what is known: (N,) booleans."""
        row = nodes.row
        kept = (nodes.distance <= self.radius) & (nodes.most > self._beaten()[row])
        if self.goal == "smallest":
            kept &= nodes.distance < self.cost[row] * (1 - EXACT)
        if self.goal == "verdict":
            kept &= ~(self.cost[row] <= self.radius)
        return kept

    def _round(self, each: int) -> None:
        """Look at the nearest nodes of each decision: close, verify or split them."""
        nodes = self.nodes.at(self._alive(self.nodes))
        chosen = _next(nodes, each)
        nodes, self.nodes = nodes.at(chosen), nodes.at(~chosen)
        if not len(nodes):
            return
        self.seen.index_add_(0, nodes.row, torch.ones_like(nodes.row))
        cap = Cap.of(nodes, self._reach()[nodes.row])
        layers, ahead = layers_within(self.decisions, nodes, cap)
        gaps = gaps_within(self.decisions, nodes, layers, self.doubt, self.tie)
        nodes = replace(nodes, open=gaps.open, most=swaps(gaps.open))
        state = [each.state for each in layers]
        free = torch.cat(state, 1) == 0 if state else nodes.signs != 0
        single, beaten = ~free.any(-1), self._beaten()[nodes.row]
        looked = (nodes.most > beaten) & ((gaps.gone > beaten) | single)
        self._look(nodes, layers, free, looked.nonzero().squeeze(-1), single)
        again = self._alive(nodes) & ~single
        self._split(nodes, layers, ahead, gaps, free, again.nonzero().squeeze(-1))

    def _look(
        self, nodes: Nodes, layers: Sequence[Layer], free: Tensor, at: Tensor, single: Tensor
    ) -> None:
        """Verify the nearest inputs of the cells on which the nodes' nearest points lie."""
        if not len(at):
            return
        nodes, single, row = nodes.at(at), single[at], nodes.row[at]
        rows, floors = cell_rows(self.decisions, row, [each.at(at) for each in layers])
        # Units that no input of the cap can turn need no inequality.
        kept = torch.ones_like(rows[:, nodes.signs.shape[1] :, 0], dtype=torch.bool)
        wanted = torch.cat([(nodes.signs != 0) | free[at], kept], 1)
        reach = self._reach()[row]
        margin = self.inside * reach[:, None] * rows.norm(dim=-1)
        _, _, move = nearest_in(rows, floors + margin, wanted)
        strictly = ((rows @ move[..., None]).squeeze(-1) > floors).all(-1)
        lost = self._offer(row, move, strictly)
        # A single cell that bounds leave open is told of where it holds no verified input, or where
        # its nearest input is not nearly as far as the verified one, as in a narrow wedge.
        expected = torch.where(single, nodes.most, 0)
        doubtful = expected > lost if self.goal == "worst" else single
        cells = doubtful.nonzero().squeeze(-1)
        if len(cells):
            slack = ROUNDED * (1 + floors[cells].abs())
            near, _, _ = nearest_in(rows[cells], floors[cells] - slack, wanted[cells])
            near = torch.maximum(near, nodes.distance[cells])
            found = move[cells].norm(dim=-1).masked_fill(lost[cells] == 0, torch.inf)
            verified = (near >= found * (1 - EXACT)) | (
                (self.goal == "verdict") & (found < torch.inf)
            )
            within = (near <= reach[cells]) & ~verified
            cells, near = cells[within], near[within]
            self.unsure = self.unsure.scatter_reduce(0, row[cells], near, "amin")
            self.possible = self.possible.scatter_reduce(0, row[cells], expected[cells], "amax")

    def _offer(self, row: Tensor, move: Tensor, valid: Tensor) -> Tensor:
        """How many features each move displaces, 0 unless it counts; the best are kept: (N,)."""
        some, cost = self.decisions.rows(row), move.norm(dim=-1)
        x = some.x + some.scale * move
        valid = valid & (cost <= self.radius) & some.keeps(x)
        lost = swaps(swapped(some.scores(x), some.top, some.rest, self.tie[row]))
        lost = torch.where(valid, lost, 0)
        for at in lost.nonzero().squeeze(-1).tolist():
            r = int(row[at])
            nearer, more = bool(cost[at] < self.cost[r]), int(lost[at] - self.gone[r])
            if (more > 0 or (more == 0 and nearer)) if self.goal == "worst" else nearer:
                self.gone[r], self.cost[r], self.move[r] = lost[at], cost[at], move[at]
                self.attacked[r] = False
        return lost

    def _split(
        self,
        nodes: Nodes,
        layers: Sequence[Layer],
        ahead: Lines,
        gaps: Gaps,
        free: Tensor,
        at: Tensor,
    ) -> None:
        """Split nodes by the sign of the unit that is most to blame for what bounds leave open."""
        if not len(at):
            return
        unit = gaps.blame[at].masked_fill(~free[at], -1.0).argmax(-1)
        parents = nodes.at(at)
        met = Lines.joined([*(each.met for each in layers), ahead]).at(at)
        kept = torch.ones_like(ahead.size[at], dtype=torch.int8)
        parts = [self.nodes]
        point = parents.way * parents.distance[:, None]
        for sign in (1, -1):
            signs = parents.signs.clone()
            signs[torch.arange(len(at)), unit] = sign
            sides = torch.cat([signs, kept], 1)
            rows, floors = met.sides(sides)
            beyond = (rows @ point[..., None]).squeeze(-1) < floors - TOUCHING * met.size
            child = replace(parents, signs=signs)
            # Where the nearest point stays where it is, so does the distance.
            moved = (beyond & (sides != 0)).any(-1).nonzero().squeeze(-1)
            distance, way, _ = nearest_in(rows[moved], floors[moved], sides[moved] != 0)
            # Bounds of this node may be looser than those its own distance follows from.
            further = distance >= parents.distance[moved]
            moved, distance, way = moved[further], distance[further], way[further]
            child = replace(
                child,
                distance=parents.distance.index_copy(0, moved, distance),
                way=parents.way.index_copy(0, moved, way),
            )
            child = replace(child, turn=child.distance)
            child = child.at(self._alive(child))
            if self.goal == "worst":
                gone = displaced(self.decisions, child, self.tie)
                child = replace(child, turn=child.distance / self.radius - gone)
            parts.append(child)
        self.nodes = Nodes.joined(parts)


def _next(nodes: Nodes, each: int) -> Tensor:
    """The `each` nodes of every decision whose turn it is: (N,) booleans."""
    ranked = nodes.turn.argsort(stable=True)
    ranked = ranked[nodes.row[ranked].argsort(stable=True)]
    row = nodes.row[ranked]
    place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    chosen = torch.zeros(len(row), dtype=torch.bool, device=row.device)
    chosen[ranked[place < each]] = True
    return chosen
