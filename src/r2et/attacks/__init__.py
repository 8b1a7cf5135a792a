"""Attacks on explanations: (model, x, y) -> AttackResult, the prediction kept.

y is the class explained and kept, the predicted one: other classes, such as true labels, are
refused. An attack has one radius, that of its threat or its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from r2et.actionable import (
    ActionableSet,
    Rule,
    applicant_threat,
    read_rules,
    rule_names,
    what_it_buys,
)
from r2et.attacks.comparison import HandlerPoint, compare_handlers
from r2et.attacks.constraint_handling import HANDLERS, Handler
from r2et.attacks.ensemble import EnsembleBudget, strong_attack
from r2et.attacks.moo import armijo_attack, moo_attack
from r2et.attacks.pgd import er_attack, flip_attack, mse_attack
from r2et.attacks.radius import Curve, attack_curve
from r2et.attacks.records import Attack, AttackResult, Budget
from r2et.perturbations import Bounds, Box, L2Ball, PerturbationSet

__all__ = [
    "ATTACKS",
    "HANDLERS",
    "ActionableSet",
    "Attack",
    "AttackEntry",
    "AttackResult",
    "Bounds",
    "Box",
    "Budget",
    "Curve",
    "EnsembleBudget",
    "Handler",
    "HandlerPoint",
    "L2Ball",
    "PerturbationSet",
    "Rule",
    "applicant_threat",
    "armijo_attack",
    "attack_curve",
    "compare_handlers",
    "er_attack",
    "flip_attack",
    "moo_attack",
    "mse_attack",
    "read_rules",
    "rule_names",
    "strong_attack",
    "what_it_buys",
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
    "moo": AttackEntry(
        build=moo_attack,
        line="MOO attack: all gaps at once by a trust region, up to the first flip (Algorithm 2)",
    ),
    "armijo": AttackEntry(
        build=armijo_attack,
        line="common descent direction of all gaps with Armijo's line search (the 2022 paper)",
    ),
    "strong": AttackEntry(
        build=strong_attack,
        line="ensemble in rounds: smooth copies, random goals, single pairs, kinks, random points",
    ),
}
