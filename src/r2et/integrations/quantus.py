"""Quantus' metrics as measures here, our explainers there: `pip install quantus`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.explainers import Explainer, InputExplainer, check_inputs, gradient, logits_of
from r2et.integrations.conversion import labels_of, needed, shaped_as

Measure = Callable[[nn.Module, Tensor, Tensor], Tensor]


def quantus_explain_func(explainer: Explainer) -> Callable[..., NDArray[np.floating]]:
    """A function as Quantus calls it, explain_func(model, inputs, targets, **kwargs) -> array.

    `explain_func_kwargs` reach our explainer as its own settings, but for the device, which is that
    of the model.
    """

    def explain_func(
        model: nn.Module, inputs: Any, targets: Any, device: Any = None, **kwargs: Any
    ) -> NDArray[np.floating]:
        like = next(model.parameters())
        x = torch.as_tensor(np.asarray(inputs)).to(like)
        with torch.no_grad():
            y = labels_of(model, x, targets)
            if isinstance(explainer, InputExplainer):
                scores = replace(explainer, **kwargs)(model, x, y)
            else:
                scores = explainer(model, x, y, **kwargs)
        array: NDArray[np.floating] = shaped_as(scores, x).cpu().numpy()
        return array

    return explain_func


def from_quantus(metric: Any, explainer: Explainer = gradient, **settings: Any) -> Measure:
    """A measure by one of Quantus' metrics, of our explanations: (model, x, y) -> (B,).

    `metric` is an instance, such as `quantus.MaxSensitivity(disable_warnings=True)`; `settings` go
    to its call. Metrics that draw do so from NumPy's global stream, as Quantus does.
    """
    needed("quantus")
    if getattr(metric, "return_aggregate", False):
        raise ValueError(
            "a measure is one number for each example, but this metric returns their aggregate: "
            "build it with return_aggregate=False."
        )

    def measure(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        check_inputs(model, x, y)
        # Some metrics refuse rows of a table, and take them as one channel of so many numbers.
        shown = x[:, None] if x.ndim == 2 else x
        with eval_mode(model):
            values = metric(
                model=_AsQuantusCalls(model, x.shape[1:]),
                x_batch=shown.detach().cpu().numpy(),
                y_batch=y.cpu().numpy(),
                a_batch=None,
                explain_func=quantus_explain_func(explainer),
                channel_first=True,
                device=str(x.device),
                **settings,
            )
        found = np.asarray(values, dtype=object)
        if found.shape != (len(x),) or not all(np.ndim(each) == 0 for each in found):
            raise ValueError(
                f"a measure is one number for each of {len(x)} examples, but "
                f"{type(metric).__name__} gave {found.shape}: choose a metric of single numbers."
            )
        return torch.tensor(found.astype(np.float64), dtype=x.dtype, device=x.device)

    return measure


class _AsQuantusCalls(nn.Module):
    """A model at prediction time that takes inputs of any precision and shape.

    Quantus calls it with numbers in float32, and refuses a model in training mode.
    """

    def __init__(self, model: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.model, self.shape = model, tuple(shape)
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        like = next(self.model.parameters())
        return logits_of(self.model, x.reshape(-1, *self.shape).to(like))
