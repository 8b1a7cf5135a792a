"""Explainers that visit few places, for tests that are not about how many."""

from dataclasses import replace

from r2et.explainers import InputExplainer, IntegratedGradients, SmoothGrad


def brief(explain: InputExplainer, places: int = 5) -> InputExplainer:
    """The same explainer with fewer places to visit, where it visits any."""
    if isinstance(explain, SmoothGrad):
        return replace(explain, samples=places)
    return replace(explain, points=places) if isinstance(explain, IntegratedGradients) else explain
