"""What calls of other libraries are turned into, and what of them is refused."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from r2et.explainers import predicted


def labels_of(model: nn.Module, x: Tensor, target: Any) -> Tensor:
    """The class to be explained for each example, the predicted one unless given: (B,)."""
    if target is None:
        return predicted(model, x)
    labels = torch.as_tensor(target, dtype=torch.long, device=x.device)
    if labels.ndim > 1 or labels.numel() not in (1, len(x)):
        raise ValueError(
            f"target must be a class or one for each of {len(x)} examples, got shape "
            f"{tuple(labels.shape)}."
        )
    return labels.expand(len(x))


def shaped_as(scores: Tensor, x: Tensor) -> Tensor:
    """The scores in the shape of the inputs, where there is one for each number of them."""
    return scores.view_as(x) if scores.numel() == x.numel() else scores


def described(value: Any) -> str:
    """A value in a few words."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def needed(package: str, *parts: str) -> Any:
    """An optional package with some of its parts, refused in one sentence if not installed."""
    try:
        for part in parts:
            import_module(f"{package}.{part}")
        return import_module(package)
    except ImportError as problem:
        raise ImportError(
            f"{package} is not installed ({problem}): pip install {package}."
        ) from problem
