"""A training method as data: what it adds to the loss, and how it is built."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.core.naming import keyword_defaults, nearest
from r2et.explainers import (
    Explainer,
    check_logits,
    gradient,
    input_gradient_of,
    logits_of,
    made_of_gradient,
)
from r2et.models.smoothing import with_softplus

Draw = Callable[[Tensor], Tensor]


class BatchContext:
    """A batch as a model sees it; what several penalties need is computed once for all of them.

    `logits` are computed from x, with a graph, unless given; y is the predicted class, the one
    explained. `draw(x)` gives standard normal numbers shaped like x: all randomness comes from it.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        logits: Tensor | None = None,
        draw: Draw = torch.randn_like,
    ) -> None:
        self.model, self.x, self.draw = model, x, draw
        if logits is not None:
            self.logits = logits

    @cached_property
    def logits(self) -> Tensor:
        """One logit for each class, with a graph to x: (B, C)."""
        with torch.enable_grad(), eval_mode(self.model):
            if not self.x.requires_grad:
                self.x = self.x.detach().requires_grad_()
            logits = logits_of(self.model, self.x)
        check_logits(logits)
        return logits

    @cached_property
    def y(self) -> Tensor:
        """The predicted class of each example: (B,)."""
        return self.logits.detach().argmax(-1)

    @cached_property
    def input_gradient(self) -> Tensor:
        """Gradient of the predicted probability, differentiable: like x."""
        return input_gradient_of(self.logits, self.x, self.y)

    def saliency(self, explain: Explainer | None) -> Tensor:
        """An explanation, the absolute gradient unless given, not computed twice: (B, n)."""
        if follower := made_of_gradient(explain):
            return follower.scores(self.input_gradient, self.x)
        with eval_mode(self.model):
            return (explain or gradient)(self.model, self.x, self.y)


Penalty = Callable[[BatchContext], Tensor]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train, as four optional slots; with none of them filled it is Vanilla.

    `prepare` changes the model before training, `perturb` gives the inputs that each batch is
    trained on instead of its own, `penalties` are added to the loss as (name, weight, penalty),
    each penalty one number for each example. Penalties that never differentiate the logits of a
    `BatchContext` by x say so by `by_input` = False, and training is spared that derivative.
    """

    prepare: Callable[[nn.Module], nn.Module] | None = None
    perturb: Callable[[BatchContext], Tensor] | None = None
    penalties: tuple[tuple[str, float, Penalty], ...] = ()
    weight_decay: float = 0.0
    by_input: bool = True


@dataclass(frozen=True, kw_only=True)
class SoftplusUnits:
    """For `prepare`: a copy of a network whose kinks are replaced by softplus(x; rho)."""

    rho: float

    def __call__(self, model: nn.Module) -> nn.Module:
        """The network without kinks."""
        return with_softplus(model, self.rho)


Family = Literal["baseline", "r2et", "ours"]


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A training method by name: how it is built, how the papers write it, and one line.

    `function(*, k, ...)` gives the Method; its keyword arguments are its settings, `presets` those
    that this entry gives other values. Settings named in `weights` only weigh parts of the loss, so
    that networks that differ in nothing else can be trained together. `family` is whose method it
    is, `model` the entry of MODELS it is meant for.
    """

    function: Callable[..., Method]
    label: str
    line: str
    presets: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    family: Family = "baseline"
    model: str = "mlp"

    @property
    def settings(self) -> dict[str, Any]:
        """What can be chosen besides k, explanation and reference, and its value unless it is."""
        offered = {**keyword_defaults(self.function), **self.presets}
        return {name: offered[name] for name in offered if name not in ("explain", "reference")}

    @property
    def takes_explainer(self) -> bool:
        """Whether it can be told by `explain` what explanation it is about."""
        return "explain" in keyword_defaults(self.function)

    @property
    def ranks(self) -> bool:
        """Whether it can be given a `reference`, a model whose ranking is kept, not its own."""
        return "reference" in keyword_defaults(self.function)

    def build(
        self,
        *,
        k: int,
        explain: Explainer | None = None,
        reference: nn.Module | None = None,
        **settings: Any,
    ) -> Method:
        """The method with these settings, refused if it has no such setting."""
        for name in settings:
            if name not in self.settings:
                raise ValueError(
                    f"{self.label} has no setting {name!r}: {nearest(name, self.settings)}"
                )
        given = {"explain": explain, "reference": reference}
        given = {name: value for name, value in given.items() if value is not None}
        return self.function(k=k, **{**self.presets, **settings, **given})


def check_numbers(method: str, positive: tuple[str, ...] = (), **settings: float) -> None:
    """Refuse settings below zero or, where they must be positive, at zero."""
    for name, value in settings.items():
        least = "> 0" if name in positive else ">= 0"
        if not (0 < value < math.inf or (value == 0 and name not in positive)):
            raise ValueError(f"{method} needs a finite {name} {least}, got {value}.")
