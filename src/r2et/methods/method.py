"""A training method as data: what it adds to the loss, and how it is built."""

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from r2et.core.autograd import estimated_curvature, eval_mode, gradient_of
from r2et.core.geometry import by_example
from r2et.core.naming import keyword_defaults, nearest
from r2et.core.rows import RowTrace, row_trace
from r2et.core.second_order import differentiated_twice
from r2et.explainers import (
    Explainer,
    check_logits,
    gradient,
    input_gradient,
    input_gradient_along,
    input_gradient_of,
    log_odds,
    logits_of,
    made_of_gradient,
    predicted,
)
from r2et.models.additive import AdditiveNet
from r2et.perturbations import PerturbationSet

Draw = Callable[[Tensor], Tensor]


class BatchContext:
    """A batch as a model sees it; what several penalties need is computed once for all of them.

    `logits` are computed from x, with a graph, unless given; y is the predicted class, the one
    explained. `draw(x)` gives standard normal numbers shaped like x: all randomness comes from it.
    `way` tells how x passed through a row of layers to given logits, where that is known.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        logits: Tensor | None = None,
        draw: Draw = torch.randn_like,
        way: RowTrace | None = None,
    ) -> None:
        self.model, self.x, self.draw, self.way = model, x, draw, way
        if logits is not None:
            self.logits = logits

    @cached_property
    def logits(self) -> Tensor:
        """One logit for each class, with a graph to x: (B, C)."""
        with torch.enable_grad(), eval_mode(self.model), differentiated_twice():
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
        if self.way is not None:
            return input_gradient_along(self.way, self.y)
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
    `BatchContext` by x say so by `by_input` = False, and training is spared that derivative; those
    that do so only by its `input_gradient` by `by_gradient` = True, which spares it in rows.
    """

    prepare: Callable[[nn.Module], nn.Module] | None = None
    perturb: Callable[[BatchContext], Tensor] | None = None
    penalties: tuple[tuple[str, float, Penalty], ...] = ()
    weight_decay: float = 0.0
    by_input: bool = True
    by_gradient: bool = False


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


# --- what penalties are made of: rankings to keep, curvature, neighbours found by a few steps ---

FIRST_STEP, SHORTER = 0.6, 0.6  # of the radius; each step of the one before
HALVINGS = 3


def saliency_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Absolute gradient of the probability of class y, all rows in one pass: (B, n)."""
    return input_gradient(model, x, y).flatten(1).abs()


def ranking_by(
    reference: nn.Module | None, explain: Explainer = saliency_at
) -> Callable[[BatchContext, Tensor | None], Tensor]:
    """What tells, for a batch, the explanation whose ranking is to be kept, a constant: (B, n).

    That of `reference` as it is now, or the batch's own, computed unless given.
    """
    kept = None if reference is None else copy.deepcopy(reference).requires_grad_(False).eval()

    def ranking(batch: BatchContext, own: Tensor | None) -> Tensor:
        if kept is None and own is not None:
            return own.detach()
        model = batch.model if kept is None else kept.to(device=batch.x.device, dtype=batch.x.dtype)
        with torch.no_grad():
            return explain(model, batch.x, batch.y)

    return ranking


Bend = Literal["gradient", "explanation"]
Some = Callable[[Tensor], Tensor]
"""Some of the rows of a batch, of whichever tensor has one for each example."""


def _gradient_beside(model: nn.Module, at: Tensor, y: Tensor) -> Tensor:
    """What `input_gradient` says, along the way through a row where there is one: like `at`."""
    way = row_trace(model, at)
    return input_gradient(model, at, y) if way is None else input_gradient_along(way, y)


def estimated_bend(
    kappa: float,
    explain: Explainer | None = None,
    bend: Bend = "gradient",
    share: float = 1.0,
) -> Penalty:
    """The curvature of the score by a finite difference of length `kappa`, as a penalty.

    That of the gradient or, for explanations that are none, of what is explained; in both cases
    along the signs of the gradient. A smaller `share` of each batch stands for all of it: its first
    examples, which a shuffle has made random ones, count for as much more.
    """

    def of_gradient(batch: BatchContext, some: Some) -> Tensor:
        y = some(batch.y)
        return estimated_curvature(
            lambda at: _gradient_beside(batch.model, at, y),
            some(batch.x),
            some(batch.input_gradient),
            kappa,
        )

    def of_explanation(batch: BatchContext, some: Some) -> Tensor:
        assert explain is not None
        y = some(batch.y)
        return estimated_curvature(
            lambda at: explain(batch.model, at, y),
            some(batch.x),
            some(batch.saliency(explain)),
            kappa,
            along=some(batch.input_gradient),
        )

    def of_share(batch: BatchContext) -> Tensor:
        whole = len(batch.x)
        few = max(1, round(share * whole))
        if few == whole:
            return of_bend(batch, lambda rows: rows)
        bent = of_bend(batch, lambda rows: rows[:few])
        return torch.cat([bent * (whole / few), bent.new_zeros(whole - few)])

    if not 0 < share <= 1:
        raise ValueError(f"the share of a batch must be above 0 and at most 1, got {share}.")

    if bend not in get_args(Bend) or (bend == "explanation" and explain is None):
        raise ValueError(
            f"the curvature is that of one of {get_args(Bend)}, the latter with a given explainer, "
            f"got {bend!r}."
        )
    of_bend = of_gradient if bend == "gradient" else of_explanation
    return of_share


@torch.no_grad()
def neighbour(
    batch: BatchContext,
    margins: Callable[[Tensor], Tensor],
    perturbation: PerturbationSet,
    steps: int,
) -> Tensor:
    """A neighbour within the set whose `margins`, (B,), are low, of the same prediction: like x.

    From a random place as far away as may be, a few steps down; where the predicted class changed
    on the way, half the way back, and again, at last to x itself.
    """
    x = batch.x.detach()
    place = x + perturbation.radius * perturbation.steepest(batch.draw(x))
    with eval_mode(batch.model):
        for step in range(steps):
            with torch.enable_grad():
                at = place.requires_grad_()
                downhill = gradient_of(margins(at), at, create_graph=False)
            move = (
                perturbation.radius * FIRST_STEP * SHORTER**step * perturbation.steepest(downhill)
            )
            place = perturbation.relax(place.detach() - move, x)
    for halved in range(HALVINGS + 1):
        kept = by_example(predicted(batch.model, place) == batch.y, x)
        if kept.all():
            break
        place = torch.where(kept, place, x + (place - x) / 2 if halved < HALVINGS else x)
    return place


def odds_saliency(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Absolute gradient of the log-odds of class y, which ranks as that of its probability: (B, n).

    Scaled to length one both are the same. But where log-odds are straight, all that a derivative
    of the other finds is rounding, and an attack would follow it.
    """
    if isinstance(model, AdditiveNet):
        return model.log_odds_gradient(x, y).abs()
    recording = torch.is_grad_enabled()
    x = x if recording and x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad(), eval_mode(model):
        with differentiated_twice() if recording else nullcontext():
            logits = model(x)
        slope = gradient_of(log_odds(logits, y), x, create_graph=recording)
    return slope.flatten(1).abs()
