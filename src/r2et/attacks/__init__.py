"""Attacks on explanations: (model, x, y) -> Attacked, the prediction kept.

y is the class explained, as a rule the predicted one. Rows whose clean prediction is not y cannot
keep it and come back as they were.
"""

from collections.abc import Callable
from dataclasses import dataclass

from r2et.attacks.records import Attack, Attacked, Budget
from r2et.attacks.single import er_attack, flip_attack, mse_attack
from r2et.attacks.strong import strong_attack
from r2et.attacks.threats import Ball, Bounds, Threat

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackEntry",
    "Attacked",
    "Ball",
    "Bounds",
    "Budget",
    "Threat",
    "er_attack",
    "flip_attack",
    "mse_attack",
    "strong_attack",
]


@dataclass(frozen=True, kw_only=True)
class AttackEntry:
    """An attack by name: how it is built, and what it does in one line."""

    build: Callable[..., Attack]
    line: str


ATTACKS: dict[str, AttackEntry] = {
    "er": AttackEntry(
        build=er_attack,
        line="ERAttack: lowers the gaps between the clean top k and the rest (the papers' attack)",
    ),
    "mse": AttackEntry(
        build=mse_attack, line="MSE attack: moves the explanation as far as possible in l2"
    ),
    "strong": AttackEntry(
        build=strong_attack,
        line="ensemble: restarts, margin target, softplus surrogates, random points, refinement",
    ),
}
