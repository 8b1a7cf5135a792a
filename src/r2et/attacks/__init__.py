"""Attacks on explanations: `attack(model, x, k=8, radius=0.5)`, the prediction kept."""

from r2et.attacks.comparison import HandlingPoint, compare_handling
from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING, ConstraintHandling
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.moo import LineSearch, TrustRegion
from r2et.attacks.pgd import WalkBudget, flippable
from r2et.attacks.radius import Curve
from r2et.attacks.registry import ATTACKS, AttackMethod, attack, attack_curve
from r2et.attacks.search import AttackProblem, AttackResult

__all__ = [
    "ATTACKS",
    "CONSTRAINT_HANDLING",
    "AttackMethod",
    "AttackProblem",
    "AttackResult",
    "ConstraintHandling",
    "Curve",
    "EnsembleBudget",
    "HandlingPoint",
    "LineSearch",
    "TrustRegion",
    "WalkBudget",
    "attack",
    "attack_curve",
    "compare_handling",
    "flippable",
]
