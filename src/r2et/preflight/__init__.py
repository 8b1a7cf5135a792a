"""Preflight: what in a model breaks or falsifies explanations, and the cure."""

from r2et.preflight.checks import PROBES
from r2et.preflight.kinds import KINDS, Finding, in_words
from r2et.preflight.validation import Fidelity, Repaired, cleared, repair, validate

__all__ = [
    "KINDS",
    "PROBES",
    "Fidelity",
    "Finding",
    "Repaired",
    "cleared",
    "in_words",
    "repair",
    "validate",
]
