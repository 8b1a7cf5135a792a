"""A training method as data, and the objective that any training loop can minimise."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.derivatives import frozen_statistics
from r2et.explainers import Explainer, check_logits, from_slope, slope_of
from r2et.inputs import Joined

Draw = Callable[[Tensor], Tensor]


class Look:
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
        with torch.enable_grad(), frozen_statistics(self.model):
            if not self.x.requires_grad:
                self.x = self.x.detach().requires_grad_()
            logits: Tensor = self.model(self.x)
            return logits

    @cached_property
    def y(self) -> Tensor:
        """The predicted class of each example: (B,)."""
        return self.logits.detach().argmax(-1)

    @cached_property
    def slope(self) -> Tensor:
        """Gradient of the predicted probability, differentiable: like x."""
        return slope_of(self.logits, self.x, self.y)

    def saliency(self, explain: Explainer | None) -> Tensor:
        """An explanation, the absolute gradient unless given; from the slope, if it can: (B, n)."""
        if explain is None:
            return self.slope.flatten(1).abs()
        made = from_slope(explain)
        if made is not None:
            return made(self.slope, self.x)
        with frozen_statistics(self.model):
            return explain(self.model, self.x, self.y)


Penalty = Callable[[Look], Tensor]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train, as four optional slots; with none of them filled it is Vanilla.

    `prepare` changes the model before training, `perturb` gives the inputs that each batch is
    trained on instead of its own, `penalties` are added to the loss as (name, weight, penalty),
    each penalty one number for each example. Penalties that never differentiate the logits of a
    `Look` by x say so by `by_input` = False, and training is spared that derivative.
    """

    prepare: Callable[[nn.Module], nn.Module] | None = None
    perturb: Callable[[Look], Tensor] | None = None
    penalties: tuple[tuple[str, float, Penalty], ...] = ()
    weight_decay: float = 0.0
    by_input: bool = True


CLASSIFICATION = "classification"


class Loss(NamedTuple):
    """The number to minimise and, detached, what it is made of."""

    total: Tensor
    parts: dict[str, Tensor]

    def backward(self) -> None:
        """Add the slope of the total to the weights' gradients."""
        self.total.backward()


class Objective(nn.Module):
    """Cross-entropy plus a method's penalties: `objective(x, y).backward()` in any loop.

    Everything happens in one forward, so that it can be wrapped for several processes. Methods
    that need random numbers take them from `draw`, torch's global stream unless given.
    """

    def __init__(self, model: nn.Module, method: Method, draw: Draw = torch.randn_like) -> None:
        super().__init__()
        self.model = method.prepare(model) if method.prepare else model
        self.method, self.draw = method, draw

    def forward(
        self, x: Tensor, y: Tensor, weights: Tensor | None = None, penalised: float = 1.0
    ) -> Loss:
        """The mean loss over a batch, or the mean by `weights` (B,), and its parts.

        Penalties count for a share `penalised` of their weights.
        """
        if not isinstance(x, Tensor):
            if not isinstance(self.model, Joined):
                raise ValueError(
                    "an objective of examples that are several tensors needs a model that is "
                    "joined: give Joined(model, inputs)."
                )
            x = self.model.inputs.pack(*x)
        parts = {name: _mean(part, weights) for name, part in self.parts_of(x, y).items()}
        total = parts[CLASSIFICATION]
        for name, weight, _ in self.method.penalties:
            total = total + penalised * weight * parts[name]
        return Loss(total, {name: part.detach() for name, part in parts.items()})

    def parts_of(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Cross-entropy and each penalty, not yet weighted, of each example: (B,) each."""
        if self.method.perturb is not None:
            x = self.method.perturb(Look(self.model, x, draw=self.draw)).detach()
        if self.method.penalties and self.method.by_input and not x.requires_grad:
            x = x.detach().requires_grad_()
        logits = self.model(x)
        check_logits(logits)
        parts = {CLASSIFICATION: F.cross_entropy(logits, y, reduction="none")}
        if self.method.penalties:
            with frozen_statistics(self.model) as switched:
                if switched or not torch.is_grad_enabled():
                    # Logits of batch statistics are good for the loss only: examples mix in them,
                    # and the class they favour need not be the one the model will predict.
                    with torch.enable_grad():
                        logits = self.model(x)
                look = Look(self.model, x, logits, self.draw)
                for name, _, penalty in self.method.penalties:
                    parts[name] = penalty(look)
        return parts


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else (values * weights).sum() / weights.sum()


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A training method by name: how it is built, how the papers write it, and one line.

    `build(k=..., **settings)` gives the Method; those settings that are named in `weights` only
    weigh its parts, so that networks that differ in nothing else can be trained together. `model`
    is the entry of MODELS it is meant for. A method that `ranks` also takes `reference=`, a model
    whose ranking is to be kept instead of the trained one's own.
    """

    build: Callable[..., Method]
    label: str
    line: str
    weights: tuple[str, ...] = ()
    model: str = "mlp"
    ranks: bool = False
