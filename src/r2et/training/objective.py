"""The loss of a method, which any training loop can minimise."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.core.autograd import PLAIN_ATTENTION, eval_mode, varying
from r2et.core.inputs import Joined
from r2et.core.rows import RowTrace, is_row, row_trace
from r2et.core.second_order import differentiated_twice
from r2et.explainers import check_classes, check_logits, check_targets, logits_of
from r2et.methods.method import BatchContext, Draw, Method

CLASSIFICATION = "classification"


class Loss(NamedTuple):
    """The number to minimise and, detached, what it is made of."""

    total: Tensor
    parts: dict[str, Tensor]


class Objective(nn.Module):
    """Cross-entropy plus a method's penalties: `objective(x, y).backward()` in any loop.

    Everything happens in one forward, so that it can be wrapped for several processes. Methods
    that need random numbers take them from `draw`, torch's global stream unless given. The first
    call refuses a penalty that no weight could learn from.
    """

    def __init__(self, model: nn.Module, method: Method, draw: Draw = torch.randn_like) -> None:
        super().__init__()
        self.model = method.prepare(model) if method.prepare else model
        self.method, self.draw = method, draw
        self._followed = False

    def forward(
        self, x: Tensor, y: Tensor, weights: Tensor | None = None, penalised: float = 1.0
    ) -> Tensor:
        """The mean loss over a batch, or the mean by `weights` (B,): a scalar.

        Penalties count for a share `penalised` of their weights.
        """
        return self.parts(x, y, weights, penalised).total

    def parts(
        self, x: Tensor, y: Tensor, weights: Tensor | None = None, penalised: float = 1.0
    ) -> Loss:
        """The same loss with what it is made of, cross-entropy and each penalty, unweighted.

        It costs as much as the call itself, and its `total` can be differentiated as well.
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
        check_targets(y, len(x))
        if not self.method.penalties and self.method.perturb is None:
            return {CLASSIFICATION: self._classified(logits_of(self.model, x), y)}
        with PLAIN_ATTENTION:
            if self.method.perturb is not None:
                x = self.method.perturb(BatchContext(self.model, x, draw=self.draw)).detach()
            if self._differentiates(x):
                x = x.detach().requires_grad_()
            logits, way = self._passed(x)
            parts = {CLASSIFICATION: self._classified(logits, y)}
            if self.method.penalties:
                parts |= self._penalties(x, logits, way)
        return parts

    def _differentiates(self, x: Tensor) -> bool:
        """Whether logits must be recorded from x on, because penalties differentiate them by it."""
        if not self.method.penalties or not self.method.by_input or x.requires_grad:
            return False
        return not (self.method.by_gradient and is_row(self.model, x))

    def _passed(self, x: Tensor) -> tuple[Tensor, RowTrace | None]:
        """One logit for each class, (B, C), and the way there, where it is known."""
        way = row_trace(self.model, x) if self.method.penalties else None
        if way is not None:
            return way.logits, way
        # What is computed in training is good for the loss only, which differentiates it once.
        twice = x.requires_grad and not varying(self.model)
        with differentiated_twice() if twice else nullcontext():
            return logits_of(self.model, x), None

    def _classified(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each example: (B,)."""
        check_logits(logits)
        check_classes(y, logits.shape[1])
        return F.cross_entropy(logits, y, reduction="none")

    def _penalties(self, x: Tensor, logits: Tensor, way: RowTrace | None) -> dict[str, Tensor]:
        """Each penalty of each example, not yet weighted: (B,) each."""
        # Of a row nothing differs in training: it need not be looked through at every step.
        with eval_mode(self.model) if way is None else nullcontext() as switched:
            if switched or not torch.is_grad_enabled():
                # Logits of batch statistics are good for the loss only: examples mix in them,
                # and the class they favour need not be the one the model will predict.
                with torch.enable_grad():
                    logits, way = self._passed(x)
            batch = BatchContext(self.model, x, logits, self.draw, way)
            found = {name: penalty(batch) for name, _, penalty in self.method.penalties}
        if not self._followed and torch.is_grad_enabled():
            for name, weight, _ in self.method.penalties:
                if weight:
                    _check_followed(name, found[name], self.model)
            self._followed = True
        return found


def _check_followed(name: str, penalty: Tensor, model: nn.Module) -> None:
    """Refuse a penalty that reaches no weight, and would train as if it were not there."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights or not penalty.numel():
        return
    gradients: Sequence[Tensor | None] = (None,)
    if penalty.requires_grad:
        gradients = torch.autograd.grad(
            penalty.sum(), weights, retain_graph=True, allow_unused=True
        )
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            f"the penalty {name!r} must hang on the model's weights, but its explanation has no "
            "graph to any of them, so that nothing would be learnt from it: explain by a function "
            "that can be differentiated by the weights, such as those of r2et.explainers."
        )


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else (values * weights).sum() / weights.sum()
