"""Linear layers, and logistic regression at its optimum: the control of every stability figure."""

import numpy as np
import torch
from torch import Tensor, nn


def undrawn(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose weights are not drawn yet: torch would draw them from the global stream."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    return layer


def fitted_logistic(x: Tensor, y: Tensor, *, penalty: float = 1e-4) -> nn.Sequential:
    """A logistic regression at its optimum, as a network with one logit for each class.

    Of two classes its gradient points the same way everywhere, so its top k cannot be moved: a
    network that is neither more accurate nor more individual than this one has no use for being a
    network. Of three or more that holds for the logits only: grad p_c = p_c (w_c - sum_j p_j w_j).
    """
    from sklearn.linear_model import LogisticRegression

    classes = int(y.max()) + 1
    if len(missing := set(range(classes)) - set(y.tolist())):
        raise ValueError(f"y must hold every class 0..{classes - 1}, but has no {sorted(missing)}.")
    control = LogisticRegression(C=1 / penalty, max_iter=2000, tol=1e-6)
    values = x.double().cpu().numpy()
    # Biases are free: centred, the optimum is the same, and a third of the steps find it.
    middle = values.mean(0)
    control.fit(values - middle, y.cpu().numpy())
    layer = undrawn(x.shape[1], classes).to(x.dtype)
    weights = np.asarray(control.coef_)
    biases = np.asarray(control.intercept_) - weights @ middle
    if classes == 2:
        weights = np.concatenate([-weights / 2, weights / 2])
        biases = np.concatenate([-biases / 2, biases / 2])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
        layer.bias.copy_(torch.from_numpy(biases))
    return nn.Sequential(layer)


class Product(nn.Module):
    """Whether two items are of one class, by the product of their linear log-odds: (B, 2).

    The control of pairs. Of the gradient by an item only the length depends on the other item, and
    no change of either turns its direction.
    """

    def __init__(self, score: nn.Linear, classifier: nn.Linear) -> None:
        super().__init__()
        self.score, self.classifier = score, classifier

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Logits of "another class" and of "the same class": (B, 2)."""
        return self.outputs(a, b)[0]

    def outputs(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the pair, and those of the class of each item alone: (B, 2) each."""
        first, second = self.score(a.flatten(1)), self.score(b.flatten(1))
        halves = first.new_tensor([-0.5, 0.5])
        return self.classifier(first * second), first * halves, second * halves


def fitted_product(
    items: Tensor, labels: Tensor, pairs: Tensor, same: Tensor, *, penalty: float
) -> Product:
    """The control of pairs of two classes: a logistic regression of items, then one of products.

    `items` (M, d) and their `labels`, packed `pairs` (B, 2 d) and whether they are the `same` (B,).
    """
    if int(labels.max()) != 1:
        raise ValueError(
            f"the control of pairs is for items of two classes, got {int(labels.max()) + 1}."
        )
    both = _layer_of(fitted_logistic(items, labels, penalty=penalty))
    score = undrawn(items.shape[1], 1).to(items)
    with torch.no_grad():
        score.weight.copy_(both.weight[1:] - both.weight[:1])
        score.bias.copy_(both.bias[1:] - both.bias[:1])
        first, second = pairs.chunk(2, dim=1)
        classifier = fitted_logistic(score(first) * score(second), same)
    return Product(score, _layer_of(classifier)).to(items)


def _layer_of(regression: nn.Module) -> nn.Linear:
    return next(part for part in regression.modules() if isinstance(part, nn.Linear))
