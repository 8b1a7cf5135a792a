"""What a person could change, in original units: a perturbation set, and the rules that say it."""

from r2et.actionable.rules import Rule, actionable_set, read_rules, rule_names
from r2et.actionable.sets import ActionableSet, Choice, Number, what_it_buys

__all__ = [
    "ActionableSet",
    "Choice",
    "Number",
    "Rule",
    "actionable_set",
    "read_rules",
    "rule_names",
    "what_it_buys",
]
