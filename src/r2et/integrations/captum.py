"""Captum's attributions as explainers of ours, and ours as attributions: `pip install captum`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.core.rng import random_state_kept
from r2et.explainers import SCORES, Explainer, Form, Quantity, class_logits, logits_of, shaped
from r2et.integrations.conversion import described, labels_of, needed, shaped_as


def captum_explainer(
    attribution: Any,
    *,
    of: Quantity = "logit",
    form: Form = "absolute",
    groups: Sequence[int] | None = None,
    guide: Explainer | None = None,
    seed: int = 0,
    **settings: Any,
) -> Explainer:
    """An explainer by one of Captum's attributions: (model, x, y) -> (B, n).

    `attribution` is a class such as `IntegratedGradients`, a function that builds one for a model,
    such as `lambda model: NoiseTunnel(Saliency(model))`, or one that was built for the very model
    to be explained; `settings` go to its `attribute`. Explained is the logit, as Captum's users
    expect, unless `of` names another quantity; attributions that set hooks on layers (DeepLift,
    GuidedBackprop, LRP) are meant for logits. Those that draw do so by `seed`, and then explain an
    example in a batch a little differently than alone.

    None of them can be differentiated. Saliency, NoiseTunnel and GradientShap, and all that only
    ask for outputs (FeatureAblation, Occlusion, ShapleyValueSampling, Lime, KernelShap), give
    numbers without a graph; IntegratedGradients, InputXGradient and DeepLift give one that is
    silently wrong. Such an explanation can be measured, and attacked by searches that follow no
    slope: `attack(..., budget=EnsembleBudget(starts=0, pairs=0))`. Whoever asks for its
    slope is refused, unless a `guide`, an explainer of ours, lends its own: attacks then follow the
    slope of the guide and are judged by Captum's numbers.
    """
    name = getattr(attribution, "__name__", type(attribution).__name__)

    def explain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        place = x.detach().clone().requires_grad_()
        with torch.enable_grad(), eval_mode(model), random_state_kept(x.device):
            torch.manual_seed(seed)  # Captum draws from the global streams
            np.random.seed(seed)
            found = _built(attribution, model, of, x).attribute(place, target=y, **settings)
        if not isinstance(found, Tensor) or len(found) != len(x):
            raise ValueError(
                f"an explanation is one tensor of scores for each of {len(x)} examples, but {name} "
                f"gave {described(found)}: leave out what makes it return anything else."
            )
        scores = shaped(found.detach(), form, groups).to(x.dtype)
        if not torch.is_grad_enabled():
            return scores
        if guide is not None:
            followed = guide(model, x, y)
            return scores + (followed - followed.detach())
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        refused: Tensor = _Refused.apply(name, scores, x, *weights)  # type: ignore[no-untyped-call]
        return refused

    return explain


class _Refused(torch.autograd.Function):
    """Scores as they are, and one clear sentence for whoever differentiates them."""

    @staticmethod
    def forward(ctx: Any, name: str, scores: Tensor, *sources: Tensor) -> Tensor:
        ctx.name = name
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> None:
        raise RuntimeError(
            f"Captum's {ctx.name} cannot be differentiated: give captum_explainer a guide, such as "
            "r2et.explainers.gradient, which is followed instead, or search without gradients "
            "by EnsembleBudget(starts=0, pairs=0)."
        )


class _Scored(nn.Module):
    """A model whose outputs are the explained quantity of each class: (B, C)."""

    def __init__(self, model: nn.Module, of: Quantity) -> None:
        super().__init__()
        self.model, self.of = model, of

    def forward(self, x: Tensor) -> Tensor:
        logits = logits_of(self.model, x)
        labels = torch.arange(logits.shape[1], device=x.device)
        scores = [SCORES[self.of](logits, label.expand(len(x))) for label in labels]
        found = torch.stack(scores, dim=1)
        if self.of == "loss":
            return F.softplus(-found)
        return found.sigmoid() if self.of == "probability" else found


def _built(attribution: Any, model: nn.Module, of: Quantity, x: Tensor) -> Any:
    """The attribution for this model and quantity."""
    needed("captum", "attr", "log")
    if of not in SCORES:
        raise ValueError(f"an explanation is of {' or '.join(SCORES)}, got {of!r}.")
    if isinstance(attribution, type) or not hasattr(attribution, "attribute"):
        return attribution(model if of == "logit" and _by_class(model, x) else _Scored(model, of))
    explained = attribution
    while not hasattr(explained, "forward_func") and hasattr(explained, "attribution_method"):
        explained = explained.attribution_method
    function = getattr(explained, "forward_func", model)
    if (
        of != "logit"
        or not _by_class(model, x)
        or (isinstance(function, nn.Module) and function is not model)
    ):
        raise ValueError(
            "this attribution was built for one model and quantity and is asked to explain "
            "another: give its class, or a function that builds it for a model."
        )
    return attribution


def _by_class(model: nn.Module, x: Tensor) -> bool:
    """Whether the model has an output for each class, which Captum can be asked for by number."""
    with torch.no_grad():
        outputs: Tensor = model(x[:1])
    return outputs is class_logits(outputs)


def as_captum(explainer: Explainer, model: nn.Module) -> Any:
    """One of Captum's attributions that scores by our explainer of this model.

    `attribute(inputs, target)` returns scores shaped like the inputs where there is one for each
    number, else (B, n); without a target the predicted class is explained. It can be wrapped by a
    NoiseTunnel and handed to Captum's metrics.
    """
    captum = needed("captum", "attr", "log")

    class Explained(captum.attr.Attribution):  # type: ignore[misc, name-defined]
        @captum.log.log_usage()  # type: ignore[untyped-decorator]
        def attribute(  # as Captum's own, so that a NoiseTunnel can unwrap it
            self, inputs: Any, target: Any = None, additional_forward_args: Any = None
        ) -> Any:
            x = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
            if not isinstance(x, Tensor) or additional_forward_args is not None:
                raise ValueError(
                    "our explainers take one tensor of inputs and no additional_forward_args, got "
                    f"{described(inputs)}."
                )
            scores = explainer(model, x, labels_of(model, x, target))
            found = shaped_as(scores, x)
            return (found,) if isinstance(inputs, tuple) else found

    return Explained(model)
