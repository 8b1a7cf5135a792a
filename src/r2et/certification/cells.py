"""Complete search: certified, or broken by a verified input, or an honest account of what is open.

Best-first branch and bound over the activation cells that a ball meets, for networks of straight
pieces. Each cell has one slope. Bounds close whole sets of cells; what they leave is split by the
sign of one unit, down to single cells, whose nearest points are projections.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from r2et.certification.pieces import pieces_of
from r2et.certification.replay import (
    EQUAL,
    RecordedModel,
    check_call,
    check_fits,
    check_kept,
    inside,
    logits_and_gradients,
    noise,
    record,
    replay,
)
from r2et.certification.search import Task
from r2et.core.cell_bounds import Decisions, PiecewiseLinear, grain
from r2et.core.cell_search import EXACT, Frontier, Goal, together
from r2et.core.geometry import by_example
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.ranking import check_k, order, precision_at_k
from r2et.explainers import Quantity, check_predicted, predicted
from r2et.perturbations import L2Ball, NormBall


class Misread(ValueError):
    """What was read of a model is not what it computes, so that nothing is decided about it."""


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
    as_used = x.to(model.dtype) if isinstance(model, RecordedModel) else x
    check_call(given, as_used, y)
    check_k(k, x[0].numel())
    if not seconds >= 0:
        raise ValueError(f"a search takes a number of seconds >= 0, got {seconds}.")
    y = predicted(given, as_used) if y is None else y
    check_predicted(given, as_used, y, len(x))
    _check_ball(perturbation, x)
    recorded = model if isinstance(model, RecordedModel) else record(model, x)
    with torch.inference_mode(False), torch.no_grad():
        exact = x.detach().double()
        network = pieces_of(recorded.program, exact)
        replay(recorded, exact)
        task = Task(recorded.program, exact[:1], k, of, one_hot, perturbation)
        decisions = _decisions(network, task, exact, y)
        doubt = torch.maximum(grain(decisions), noise(recorded, x, y, task.gradient))
        many, each_time = together(network)
        pieces = torch.arange(len(x), device=x.device).split(many)
        begun, found = time.monotonic(), list[CellVerdicts]()
        for number, rows in enumerate(pieces, start=1):
            frontier = Frontier.of(decisions.rows(rows), doubt[rows], perturbation.radius, goal)
            for each in known:
                frontier.try_inputs(each[rows].double().flatten(1))
            frontier.search(each_time, until=begun + seconds * number / len(pieces))
            found.append(_verdicts(frontier, exact[rows]))
        joined = _joined(found)
        return _checked(recorded, network, task, exact, y, joined, perturbation.radius)


def has_cells(model: RecordedModel | None, x: Tensor, of: Quantity, region: NormBall) -> bool:
    """Whether `search_cells` takes decisions like x within a region of this kind."""
    if model is None or type(region) is not L2Ball or region.bounds is not None or not len(x):
        return False
    try:
        with torch.inference_mode(False), torch.no_grad():
            network = pieces_of(model.program, x[:1].detach().double())
    except ValueError:
        return False
    return of == "logit" or len(network.shift) == 2


def _check_ball(perturbation: NormBall, x: Tensor) -> None:
    """Refuse sets that are no plain l2 balls."""
    if type(perturbation) is not L2Ball or perturbation.bounds is not None:
        kind = type(perturbation).__name__
        what = f"{kind} with bounds" if isinstance(perturbation, L2Ball) else f"a {kind}"
        raise ValueError(f"a search over cells is within an L2Ball without bounds, got {what}.")
    check_fits(perturbation, x)


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


def _verdicts(frontier: Frontier, x: Tensor) -> CellVerdicts:
    """What a search knows when it ends, of examples shaped like x."""
    k, radius = frontier.decisions.top.shape[1], frontier.radius
    broken, left = frontier.cost <= radius, frontier.left()
    unsure = frontier.unsure <= radius
    # One search ends at the first input, one at the nearest: neither knows what else there is.
    most = frontier.most_displaced()
    if frontier.goal != "worst":
        most = torch.where(broken, k, most)
    verdict, decided_by = list[str](), list[str]()
    for row in range(len(x)):
        if broken[row]:
            verdict.append("broken")
            decided_by.append("attack" if frontier.attacked[row] else "cells")
        elif left[row] or unsure[row]:
            verdict.append("undetermined")
            decided_by.append("budget" if left[row] else "tie")
        else:
            verdict.append("certified")
            decided_by.append("bound" if frontier.seen[row] <= 1 else "cells")
    return CellVerdicts(
        verdict=tuple(verdict),
        decided_by=tuple(decided_by),
        lower=frontier.proved(),
        upper=frontier.cost,
        x=frontier.best().view_as(x),
        precision=1 - frontier.gone.to(x) / k,
        least_precision=1 - most.to(x) / k,
        nodes=frontier.seen,
        top=frontier.decisions.top,
    )


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
        raise Misread(
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
