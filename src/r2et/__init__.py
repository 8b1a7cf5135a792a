"""Stable explanations: measure, attack and train the top-k features of a model's saliency."""

__version__ = "0.1.0"
