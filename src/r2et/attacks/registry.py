"""One way to attack explanations: (model, x) -> AttackResult, the prediction kept.

y is the class explained and kept, the predicted one: other classes, such as true labels, are
refused. An attack has one radius, that of its perturbation set or its own.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from r2et.attacks.ensemble import CELLS, EnsembleBudget, strong_attack
from r2et.attacks.moo import LineSearch, TrustRegion, armijo_attack, moo_attack
from r2et.attacks.pgd import WalkBudget, er_attack, mse_attack
from r2et.attacks.radius import PAIRS, WALK, Cheapest, Curve, most_damaging
from r2et.attacks.search import AttackProblem, AttackResult, Outputs, prediction, ready
from r2et.core.autograd import eval_mode
from r2et.core.geometry import one_of
from r2et.core.inputs import joined, packed
from r2et.core.naming import nearest
from r2et.explainers import Explainer, gradient, predicted
from r2et.perturbations import L2Ball, PerturbationSet, agreed


class Budget(Protocol):
    """What an attack may spend: a record of its own for each kind of attack."""

    def rows_at_once(self, numbers: int) -> int:
        """How many examples of so many numbers are attacked at once."""


@dataclass(frozen=True, kw_only=True)
class AttackMethod:
    """A way to attack: what it runs, the budget it takes, and what it does in one line.

    `run` is given some examples at a time, the model at prediction time, and a budget of the kind
    of `budget`, which is what it spends unless told otherwise. A `timed` one looks at the clock.
    """

    run: Callable[[nn.Module, Tensor, Tensor, AttackProblem, Any], AttackResult]
    budget: Budget
    line: str
    timed: bool = False


ATTACKS: dict[str, AttackMethod] = {
    "er": AttackMethod(
        run=er_attack,
        budget=WalkBudget(),
        line="ERAttack: lowers the gaps between the clean top k and the rest (the papers' attack)",
    ),
    "mse": AttackMethod(
        run=mse_attack,
        budget=WalkBudget(),
        line="MSE attack: moves the explanation as far as possible in l2",
    ),
    "moo": AttackMethod(
        run=moo_attack,
        budget=TrustRegion(),
        line="MOO attack: all gaps at once by a trust region, up to the first flip (Algorithm 2)",
    ),
    "armijo": AttackMethod(
        run=armijo_attack,
        budget=LineSearch(),
        line="common descent direction of all gaps with Armijo's line search (the 2022 paper)",
    ),
    "sqp": AttackMethod(
        run=armijo_attack,
        budget=LineSearch(linearised=True, first_step=1.0),
        line="the same within limits: the direction keeps the prediction to first order",
    ),
    "strong": AttackMethod(
        run=strong_attack,
        budget=EnsembleBudget(cells=CELLS),
        line="ensemble in rounds: smooth copies, random goals, single pairs, kinks, random points",
        timed=True,
    ),
}


def attack(
    model: nn.Module,
    x: Tensor | Sequence[Tensor],
    y: Tensor | None = None,
    *,
    k: int,
    radius: float | None = None,
    method: str | AttackMethod = "strong",
    explainer: Explainer = gradient,
    perturbation: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    budget: Budget | None = None,
    outputs: Outputs = prediction,
    seconds: float | None = None,
    seed: int = 0,
    rows_at_once: int | None = None,
) -> AttackResult:
    """The most damaging admissible inputs found for x, with what they do to its top k features.

    `method` is an entry of ATTACKS, by its name as a rule, and `budget` a record of the kind that
    it takes. The classes of the `outputs` are kept, the prediction's unless given. After `seconds`
    no new search is begun, and the result depends on the machine.
    """
    way, within = method_named(method), agreed(perturbation, radius)
    budget = way.budget if budget is None else budget
    _check(way, budget, seconds)
    y = predicted(joined(model, x), packed(x, model)) if y is None else y
    together = rows_at_once or budget.rows_at_once(one_of(packed(x, model)).numel())
    model, rows = ready(model, x, y, together)
    problem = AttackProblem(
        k=k, explainer=explainer, perturbation=within, outputs=outputs, seed=seed
    )
    pieces = list(zip(rows.split(together), y.split(together), strict=True))
    share = math.inf if seconds is None else seconds / len(pieces)
    begun, found = time.monotonic(), list[AttackResult]()
    with eval_mode(model):
        for number, (part, labels) in enumerate(pieces, start=1):
            timed = replace(problem, until=begun + share * number)
            found.append(way.run(model, part, labels, timed, budget))
    return _joined(found)


def method_named(method: str | AttackMethod) -> AttackMethod:
    """The attack of that name, or the one given."""
    if isinstance(method, AttackMethod):
        return method
    if method not in ATTACKS:
        raise ValueError(f"unknown attack {method!r}: {nearest(method, ATTACKS)}")
    return ATTACKS[method]


def _check(way: AttackMethod, budget: Budget, seconds: float | None) -> None:
    """Refuse a budget of another attack, and a time limit that nobody looks at."""
    if not isinstance(budget, type(way.budget)):
        raise ValueError(
            f"this attack takes the budget {type(way.budget).__name__}, got a "
            f"{type(budget).__name__}: give the one, or choose another attack."
        )
    if seconds is not None and not (way.timed and 0 <= seconds < math.inf):
        raise ValueError(
            f"a time limit is a number of seconds >= 0 for an attack that looks at the clock, "
            f"got {seconds:g}: leave it out, or choose the attack 'strong'."
        )


def _joined(parts: Sequence[AttackResult]) -> AttackResult:
    """The results of several batches of examples as one."""
    # A batch that had the time for fewer rounds is as if the others had found nothing.
    steps = max((part.steps for part in parts), key=len)
    longest = [_as_long_as(steps, part) for part in parts]

    def together(name: str) -> Any:
        values = [getattr(part, name) for part in longest]
        return None if values[0] is None else torch.cat(values)

    by_row = ("x", "before", "after", "precision", "first_flip", "last", "outcome")
    return AttackResult(
        **{name: together(name) for name in by_row},
        history=torch.cat([part.history for part in longest], dim=1),
        steps=steps,
        members={
            name: torch.cat([part.members[name] for part in longest]) for name in parts[0].members
        },
    )


def _as_long_as(steps: Tensor, found: AttackResult) -> AttackResult:
    missing = len(steps) - len(found.steps)
    return replace(
        found,
        history=torch.cat([found.history, found.history[-1:].expand(missing, -1)]),
        first_flip=torch.where(found.flipped, found.first_flip, steps[-1] + 1),
    )


def _walks_cells(
    method: str | AttackMethod, budget: Budget | Mapping[float, Budget] | None
) -> bool:
    """Whether some budget of an attack is spent on cells."""
    spent = method_named(method).budget if budget is None else budget
    each = spent.values() if isinstance(spent, Mapping) else [spent]
    return any(isinstance(one, EnsembleBudget) and one.cells > 0 for one in each)


def attack_curve(
    model: nn.Module,
    x: Tensor | Sequence[Tensor],
    y: Tensor | None = None,
    *,
    k: int,
    radii: Sequence[float],
    method: str | AttackMethod = "strong",
    explainer: Explainer = gradient,
    perturbation: PerturbationSet = L2Ball(),  # noqa: B008 - a frozen record
    budget: Budget | Mapping[float, Budget] | None = None,
    outputs: Outputs = prediction,
    others: Sequence[AttackResult] = (),
    pairs: int = PAIRS,
    walk: int = WALK,
    seconds: float | None = None,
    seed: int = 0,
    rows_at_once: int | None = None,
) -> Curve:
    """What `attack` reaches at each of the `radii`, with one budget or one for each of them.

    The cheapest breaking input is then sought below the smallest radius that succeeded: by Newton's
    method on the `pairs` nearest to changing places, by halving the way back, and by `walk` steps
    along the border. Results of `others` on the same examples count wherever a radius affords them.
    """
    rising = sorted(set(map(float, radii)))
    if not rising or not all(0 < radius < float("inf") for radius in rising):
        raise ValueError(f"a curve needs one or more positive radii, got {list(radii)}.")
    within = agreed(perturbation, rising[-1])
    y = predicted(joined(model, x), packed(x, model)) if y is None else y
    attacks = [
        attack(
            model,
            x,
            y,
            k=k,
            method=method,
            explainer=explainer,
            perturbation=perturbation.at(radius),
            budget=budget[radius] if isinstance(budget, Mapping) else budget,
            outputs=outputs,
            seconds=seconds,
            seed=seed,
            rows_at_once=rows_at_once,
        )
        for radius in rising
    ]
    model, x = joined(model, x), packed(x, model).detach()
    problem = AttackProblem(k=k, explainer=explainer, perturbation=within, outputs=outputs)
    with eval_mode(model):
        near = Cheapest(model, x, y, problem)
        cells = _walks_cells(method, budget)
        near.seek([each.x for each in (*attacks, *others)], pairs, walk, seed, cells=cells)
    found = [
        *((each.x, each.after, within.cost(each.x, x)) for each in (*attacks, *others)),
        (near.x, near.after, near.cost),
    ]
    # What an attack found at a radius is affordable there, whatever rounding makes of its cost.
    for at, radius in enumerate(rising):
        place, after, cost = found[at]
        found[at] = (place, after, cost.clamp(max=radius))
    reached = [most_damaging(found, near.before, x, k, radius) for radius in rising]
    return Curve(
        epsilons=torch.tensor(rising, dtype=x.dtype),
        x=torch.stack([each[0] for each in reached]),
        before=near.before,
        after=torch.stack([each[1] for each in reached]),
        precision=torch.stack([each[2] for each in reached]),
        raw=torch.stack([each.precision for each in attacks]),
        smallest=near.cost,
        nearest=near.x,
        attacks=attacks,
    )
