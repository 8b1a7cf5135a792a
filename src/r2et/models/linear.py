"""Logistic regression fitted to its optimum: the control of every stability figure."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from r2et.models import logistic
from r2et.randomness import stream


def fitted_logistic(x: Tensor, y: Tensor) -> nn.Module:
    """A logistic regression at its optimum, as a network with one logit for each class.

    Of two classes its gradient points the same way everywhere, so its top k cannot be moved: a
    network that is neither more accurate nor more individual than this one has no use for being a
    network. Of three or more that holds for the logits only: grad p_c = p_c (w_c - sum_j p_j w_j).
    """
    classes = int(y.max()) + 1
    if len(missing := set(range(classes)) - set(y.tolist())):
        raise ValueError(f"y must hold every class 0..{classes - 1}, but has no {sorted(missing)}.")
    control = LogisticRegression(C=1e4, max_iter=2000, tol=1e-6)
    control.fit(x.double().cpu().numpy(), y.cpu().numpy())
    network = logistic(x.shape[1], classes, generator=stream(0, "unused"))
    weights, biases = np.asarray(control.coef_), np.asarray(control.intercept_)
    if classes == 2:
        weights = np.concatenate([-weights / 2, weights / 2])
        biases = np.concatenate([-biases / 2, biases / 2])
    layer = next(part for part in network.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
        layer.bias.copy_(torch.from_numpy(biases))
    return network
