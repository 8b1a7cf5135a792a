"""Explainers that visit few places, for tests that are not about how many."""

from dataclasses import replace

from r2et.explainers import InputExplainer, IntegratedGradients, Shapley, SmoothGrad


def brief(explain: InputExplainer | Shapley, places: int = 5) -> InputExplainer | Shapley:
    """The same explainer with fewer places to visit, where it visits any."""
    if isinstance(explain, SmoothGrad):
        return replace(explain, samples=places)
    if isinstance(explain, Shapley):
        return replace(explain, orders=2)
    return replace(explain, points=places) if isinstance(explain, IntegratedGradients) else explain
