"""Complete search: certified, or broken by a verified input, or an honest account of what is open.

Best-first branch and bound over the activation cells that a ball meets, for networks of straight
pieces. Each cell has one slope. Bounds close whole sets of cells; what they leave is split by the
sign of one unit, down to single cells, whose nearest points are projections.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from r2et.certification.cell_bounds import (
    INSIDE,
    ROUNDED,
    Cap,
    Decisions,
    Gaps,
    Layer,
    Lines,
    Nodes,
    cell_rows,
    gaps_within,
    grain,
    layers_within,
    nearest_in,
    swapped,
    swaps,
)
from r2et.certification.certificate import check_call
from r2et.certification.pieces import PiecewiseLinear, pieces_of
from r2et.certification.replay import (
    EQUAL,
    RecordedModel,
    check_kept,
    inside,
    logits_and_gradients,
    noise,
    record,
    replay,
)
from r2et.certification.search import Task
from r2et.core.geometry import by_example
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.ranking import check_k, order, precision_at_k
from r2et.explainers import Quantity, check_predicted, predicted
from r2et.perturbations import L2Ball, NormBall

TOGETHER, EACH = 32, 32
"""Decisions that are searched at once, and nodes of each that are looked at in one round."""

NUMBERS_AT_ONCE = 2**23
"""Weights by inputs of all nodes together; of larger networks fewer nodes are looked at."""

EXACT = 1e-6
"""By this share the smallest breaking change may be shorter than the one that was verified."""

HALVINGS = 24

Goal = Literal["verdict", "smallest", "worst"]
"""Whether anything breaks; the shortest change that does; the change that displaces most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CellVerdicts:
    """What a complete search found about each decision within the ball.

    `verdict` is "certified", "broken" or "undetermined", and `decided_by` what decided it: "bound",
    "cells" or "attack"; of what is undetermined the reason, "budget" or "tie": a cell on which two
    features tie, or that has no inside.

    No change shorter than `lower` (B,) breaks; that of `x`, of length `upper` (B,), does, as the
    model itself says. It is infinite, and x the clean input, where none is known. `precision` (B,)
    is P@k at x, and at no input of the ball is P@k below `least_precision` (B,). `nodes` (B,)
    counts sets of cells looked at. `top` (B, k) are the features in order.
    """

    verdict: tuple[str, ...]
    decided_by: tuple[str, ...]
    lower: Tensor
    upper: Tensor
    x: Tensor
    precision: Tensor
    least_precision: Tensor
    nodes: Tensor
    top: Tensor

    @property
    def decided(self) -> Tensor:
        """Which decisions are certified or broken: (B,) booleans."""
        return torch.tensor([each != "undetermined" for each in self.verdict], dtype=torch.bool)


def search_cells(
    model: nn.Module | RecordedModel,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    perturbation: NormBall,
    goal: Goal = "verdict",
    of: Quantity = "probability",
    one_hot: OneHot | None = None,
    known: Sequence[Tensor] = (),
    seconds: float = math.inf,
) -> CellVerdicts:
    """Proof or counter-example for the top-k features of |gradient| of each x, prediction kept.

    `perturbation` is an l2 ball with its radius. With the goal "verdict" a search ends at the first
    breaking input, with "smallest" at the nearest and with "worst" at the one of lowest P@k in the
    ball. `known` are inputs, like x each, that an attack found: they are verified first. After
    about `seconds` for all decisions what is known by then comes back, and all of it holds.

    For networks of linear layers with ReLUs or LeakyReLUs between them, read from what runs;
    others are refused. The proof is about the model in the arithmetic of real numbers, like that of
    `certify`. Counter-examples lie strictly inside of a cell.
    """
    given = model.given if isinstance(model, RecordedModel) else model
    check_call(given, x, y)
    check_k(k, x[0].numel())
    if not seconds >= 0:
        raise ValueError(f"a search takes a number of seconds >= 0, got {seconds}.")
    y = predicted(given, x) if y is None else y
    check_predicted(given, x, y, len(x))
    _check_ball(perturbation, x)
    recorded = model if isinstance(model, RecordedModel) else record(model, x)
    with torch.inference_mode(False), torch.no_grad():
        exact = x.detach().double()
        network = pieces_of(recorded.program, exact)
        replay(recorded, exact)
        task = Task(recorded.program, exact[:1], k, of, one_hot, perturbation)
        decisions = _decisions(network, task, exact, y)
        doubt = torch.maximum(grain(decisions), noise(recorded, x, y, task.gradient))
        weights = max(1, sum(network.units) * exact[0].numel())
        together = max(1, min(TOGETHER, NUMBERS_AT_ONCE // weights))
        each_time = max(1, min(EACH, NUMBERS_AT_ONCE // (weights * TOGETHER)))
        pieces = torch.arange(len(x), device=x.device).split(together)
        begun, found = time.monotonic(), list[CellVerdicts]()
        for number, rows in enumerate(pieces, start=1):
            frontier = Frontier.of(decisions.rows(rows), doubt[rows], perturbation.radius, goal)
            for each in known:
                frontier.try_inputs(each[rows].double().flatten(1))
            frontier.search(begun + seconds * number / len(pieces), each_time)
            found.append(frontier.verdicts(exact[rows]))
        joined = _joined(found)
        return _checked(recorded, network, task, exact, y, joined, perturbation.radius)


def _check_ball(perturbation: NormBall, x: Tensor) -> None:
    """Refuse sets that are no plain l2 balls."""
    if type(perturbation) is not L2Ball or perturbation.bounds is not None:
        kind = type(perturbation).__name__
        what = f"{kind} with bounds" if isinstance(perturbation, L2Ball) else f"a {kind}"
        raise ValueError(f"a search over cells is within an L2Ball without bounds, got {what}.")
    for name in ("scale", "free"):
        given = getattr(perturbation, name)
        if given is not None and given.shape != x.shape[1:]:
            raise ValueError(
                f"the {name} of a perturbation must hold one entry for each feature, shape "
                f"{tuple(x.shape[1:])}, got {tuple(given.shape)}."
            )


def _decisions(network: PiecewiseLinear, task: Task, x: Tensor, y: Tensor) -> Decisions:
    """The decisions about rows of x, refused if their slopes are not those of logits."""
    classes, d = len(network.shift), x[0].numel()
    if task.of != "logit" and classes > 2:
        raise ValueError(
            f"of {classes} classes only a logit has one slope for each cell, not the {task.of}: "
            'ask for of="logit".'
        )
    own = torch.nn.functional.one_hot(y, classes).to(x)
    others = torch.eye(classes, dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    others = others[~own.bool()].view(len(x), classes - 1, classes)
    flat = x.flatten(1)
    scale = torch.ones_like(flat[0]) if task.scale is None else task.scale.to(flat).flatten()
    found = Decisions(
        network=network,
        x=flat,
        scale=scale,
        project=project_one_hot(torch.eye(d, dtype=x.dtype), task.one_hot).to(x),
        signal=own if task.of == "logit" else own - others[:, 0],
        rivals=own[:, None] - others,
        top=y[:, None],
        rest=y[:, None],
    )
    ranked = order(found.scores(flat))
    return replace(found, top=ranked[:, : task.k], rest=ranked[:, task.k :])


@dataclass(eq=False)
class Frontier:
    """What is known of D decisions while they are searched.

    Nodes further than `radius` are not looked at. `gone` (D,) is how many features the best input
    so far displaces, by `move` (D, d) of length `cost` (D,). Of single cells that can be neither
    closed nor verified `unsure` (D,) is the distance of the nearest, and `possible` (D,) how many
    features may be displaced there. Gaps up to `doubt` (D,) are not proved, up to `tie` (D,) they
    are none. `seen` (D,) counts nodes, `attacked` (D,) tells whose best input was given.
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

    @classmethod
    def of(cls, decisions: Decisions, doubt: Tensor, radius: float, goal: Goal) -> "Frontier":
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
        )

    def search(self, until: float, each: int) -> None:
        """Look at `each` nodes at a time until none is left, or for as long as there is time."""
        while len(self.nodes) and time.monotonic() < until:
            self._round(each)

    def try_inputs(self, x: Tensor) -> None:
        """Keep inputs (D, d) that break their decisions within the radius."""
        scale = self.decisions.scale
        moved = torch.where(scale > 0, (x - self.decisions.x) / torch.where(scale > 0, scale, 1), 0)
        before = self.cost.clone()
        row = torch.arange(len(x), device=x.device)
        self._offer(row, moved, torch.ones_like(row, dtype=torch.bool))
        self.attacked |= self.cost < before

    def verdicts(self, x: Tensor) -> CellVerdicts:
        """What is known now, of examples shaped like x."""
        decisions, k = self.decisions, self.decisions.top.shape[1]
        count = len(x)
        left = torch.zeros(count, dtype=torch.bool, device=x.device)
        left[self.nodes.row] = True
        nearest = torch.full_like(self.cost, torch.inf).scatter_reduce(
            0, self.nodes.row, self.nodes.distance, "amin"
        )
        most = self.gone.scatter_reduce(0, self.nodes.row, swaps(self.nodes.open), "amax")
        broken = self.cost <= self.radius
        unknown = torch.minimum(nearest, self.unsure)
        lower = torch.minimum(unknown, self.cost * (1 - EXACT)).clamp_max(self.radius)
        # A search that ended early, or at the first it found, has proved no more than its bounds.
        early = left | (broken & (self.goal != "smallest"))
        if bool(early.any()):
            rows = early.nonzero().squeeze(-1)
            lower[rows] = torch.minimum(
                torch.maximum(torch.where(broken, 0.0, lower)[rows], self._by_bounds(rows)),
                self.cost[rows],
            )
        if self.goal == "verdict":
            most = torch.where(broken, k, most)
        most = torch.maximum(most, torch.where(self.unsure <= self.radius, self.possible, 0))
        if self.goal == "smallest":
            most = torch.where(broken, k, most)
        verdict, decided_by = list[str](), list[str]()
        for row in range(count):
            if broken[row]:
                verdict.append("broken")
                decided_by.append("attack" if self.attacked[row] else "cells")
            elif left[row] or self.unsure[row] <= self.radius:
                verdict.append("undetermined")
                decided_by.append("budget" if left[row] else "tie")
            else:
                verdict.append("certified")
                decided_by.append("bound" if self.seen[row] <= 1 else "cells")
        return CellVerdicts(
            verdict=tuple(verdict),
            decided_by=tuple(decided_by),
            lower=lower,
            upper=self.cost.clone(),
            x=(decisions.x + decisions.scale * self.move).view_as(x),
            precision=1 - self.gone.to(x) / k,
            least_precision=1 - most.to(x) / k,
            nodes=self.seen,
            top=decisions.top,
        )

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
        kept = (nodes.distance <= self.radius) & (swaps(nodes.open) > self._beaten()[row])
        if self.goal == "smallest":
            kept &= nodes.distance < self.cost[row] * (1 - EXACT)
        if self.goal == "verdict":
            kept &= ~(self.cost[row] <= self.radius)
        return kept

    def _round(self, each: int) -> None:
        """Look at the nearest nodes of each decision: close, verify or split them."""
        nodes = self.nodes.at(self._alive(self.nodes))
        chosen = _nearest(nodes, each)
        nodes, self.nodes = nodes.at(chosen), nodes.at(~chosen)
        if not len(nodes):
            return
        self.seen.index_add_(0, nodes.row, torch.ones_like(nodes.row))
        cap = Cap.of(nodes, self._reach()[nodes.row])
        layers, ahead = layers_within(self.decisions, nodes, cap)
        gaps = gaps_within(self.decisions, nodes, layers, self.doubt, self.tie)
        nodes = replace(nodes, open=gaps.open)
        state = [each.state for each in layers]
        free = torch.cat(state, 1) == 0 if state else nodes.signs != 0
        single, beaten = ~free.any(-1), self._beaten()[nodes.row]
        looked = (swaps(gaps.open) > beaten) & ((gaps.gone > beaten) | single)
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
        margin = INSIDE * reach[:, None] * rows.norm(dim=-1)
        _, _, move = nearest_in(rows, floors + margin, wanted)
        strictly = ((rows @ move[..., None]).squeeze(-1) > floors).all(-1)
        lost = self._offer(row, move, strictly)
        # A single cell that bounds leave open is told of where it holds no verified input, or where
        # its nearest input is not nearly as far as the verified one, as in a narrow wedge.
        expected = torch.where(single, swaps(nodes.open), 0)
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
        for sign in (1, -1):
            signs = parents.signs.clone()
            signs[torch.arange(len(at)), unit] = sign
            sides = torch.cat([signs, kept], 1)
            distance, way, _ = nearest_in(*met.sides(sides), sides != 0)
            # Bounds of this node may be looser than those its own distance follows from.
            nearer = distance < parents.distance
            child = replace(
                parents,
                signs=signs,
                distance=torch.where(nearer, parents.distance, distance),
                way=torch.where(nearer[:, None], parents.way, way),
            )
            parts.append(child.at(self._alive(child)))
        self.nodes = Nodes.joined(parts)


def _nearest(nodes: Nodes, each: int) -> Tensor:
    """The `each` nearest nodes of every decision: (N,) booleans."""
    ranked = nodes.distance.argsort(stable=True)
    ranked = ranked[nodes.row[ranked].argsort(stable=True)]
    row = nodes.row[ranked]
    place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    chosen = torch.zeros(len(row), dtype=torch.bool, device=row.device)
    chosen[ranked[place < each]] = True
    return chosen


def _joined(parts: Sequence[CellVerdicts]) -> CellVerdicts:
    """The verdicts of all batches."""

    def together(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    return CellVerdicts(
        verdict=tuple(each for part in parts for each in part.verdict),
        decided_by=tuple(each for part in parts for each in part.decided_by),
        lower=together("lower"),
        upper=together("upper"),
        x=together("x"),
        precision=together("precision"),
        least_precision=together("least_precision"),
        nodes=together("nodes"),
        top=together("top"),
    )


def _checked(
    recorded: RecordedModel,
    network: PiecewiseLinear,
    task: Task,
    x: Tensor,
    y: Tensor,
    found: CellVerdicts,
    radius: float,
) -> CellVerdicts:
    """The verdicts, after the model itself was asked at every counter-example and within proofs."""
    certified = torch.tensor([each == "certified" for each in found.verdict], device=x.device)
    proved = torch.where(certified, radius, found.lower) * (1 - EXACT)
    places, whose = inside(x, proved, "l2", task.scale)
    here, labels = torch.cat([x, found.x, places]), torch.cat([y, y, y[whose]])
    replay(recorded, here)
    signal = torch.nn.functional.one_hot(labels, len(network.shift)).to(x)
    logits, slope = logits_and_gradients(recorded.exact, here, signal)
    read, met = network.pieces(here.flatten(1))
    away = [(each.abs() > EQUAL * (1 + each.abs().amax())).all(-1) for each in met]
    clear = torch.stack(away).all(0) if away else torch.ones_like(labels, dtype=torch.bool)
    same = _near(read, logits) & (_near(network.slope(met, signal), slope.flatten(1)) | ~clear)
    scores = task.gradient(recorded.exact, here, labels).abs()
    if not bool(same.all()):
        raise ValueError(
            "the layers that were read are not what the model computes: logits or gradients "
            "differ, so that nothing is decided about it."
        )
    count = len(x)
    kept = logits[2 * count :].argmax(-1) == y[whose]
    if len(places):
        sets = [set(each) for each in found.top.tolist()]
        check_kept(places[kept], whose[kept], scores[2 * count :][kept], sets)
    broken = torch.tensor([each == "broken" for each in found.verdict], device=x.device)
    precision = precision_at_k(scores[:count], scores[count : 2 * count], task.k)
    really = (precision < 1) & (logits[count : 2 * count].argmax(-1) == y)
    # Where margins are as small as rounding the model itself may see no change.
    lost = broken & ~really
    return replace(
        found,
        verdict=_told(found.verdict, lost, "undetermined"),
        decided_by=_told(found.decided_by, lost, "tie"),
        x=torch.where(by_example(lost, x), x, found.x),
        upper=torch.where(lost, torch.inf, found.upper),
        precision=torch.where(broken, precision, 1.0).masked_fill(lost, 1.0),
    )


def _told(words: tuple[str, ...], rows: Tensor, word: str) -> tuple[str, ...]:
    """The words, another for some rows."""
    both = zip(words, rows.tolist(), strict=True)
    return tuple(word if other else each for each, other in both)


def _near(one: Tensor, other: Tensor) -> Tensor:
    """Whether rows are equal but for rounding: (N,) booleans."""
    scale = other.abs().amax(-1)
    return (one - other).abs().amax(-1) <= EQUAL * torch.maximum(scale, scale.median())
