"""Attacks for tests, their budgets told by single choices."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import ATTACKS, Budget, attack
from r2et.attacks.search import AttackResult

Attack = Callable[..., AttackResult]

OF_ATTACK = (
    "k",
    "radius",
    "explainer",
    "perturbation",
    "outputs",
    "seconds",
    "seed",
    "rows_at_once",
)


def attacker(
    method: str,
    *,
    budget: Budget | Mapping[str, Any] | None = None,
    watch: Callable[[Any], None] | None = None,
    **choices: Any,
) -> Callable[..., AttackResult]:
    """An attack, ready for (model, x, y); choices that `attack` does not take are of its budget,
    which may also be given as a table of choices."""
    way = ATTACKS[method]
    if watch is not None:
        way = replace(way, run=partial(way.run, watch=watch))
    if isinstance(budget, Mapping):
        budget, choices = None, {**budget, **choices}
    asked = {name: choices.pop(name) for name in OF_ATTACK if name in choices}
    return partial(attack, method=way, budget=replace(budget or way.budget, **choices), **asked)


def little(name: str, radius: float, steps: int = 9, parts: int = 6) -> Budget:
    """A small budget of each attack: walks cross the radius in so many parts."""
    if isinstance(ATTACKS[name].budget, WalkBudget):
        return WalkBudget(step=radius / parts or 1.0, steps=steps)
    if isinstance(ATTACKS[name].budget, EnsembleBudget):
        return EnsembleBudget(
            rounds=2, starts=3, steps=4, points=12, moves=6, pairs=3, sharpness=(4.0,)
        )
    return replace(ATTACKS[name].budget, iterations=4, pairs=4)  # type: ignore[type-var, call-arg]
