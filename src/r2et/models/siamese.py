"""Networks of pairs: one embedding sees both items, and a cosine says how alike they are."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.models.linear import fitted_logistic, undrawn

ROWS_AT_ONCE = 512


class Siamese(nn.Module):
    """Whether two items are of one class, and of which class each of them is.

    Pair logits (B, 2), class 1 = "same class", are a linear layer of the cosine of both embeddings.
    The `single` head gives logits of an item's own class, (B, C), from its embedding (B, e).
    """

    def __init__(self, embed: nn.Module, size: int, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"items must be of two or more classes, got {classes}.")
        self.embed = embed
        self.classifier = undrawn(1, 2)
        self.single = undrawn(size, classes)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Logits of "another class" and of "the same class" for each pair: (B, 2)."""
        return self._pair_logits(self.embed(a), self.embed(b))

    def outputs(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pair logits (B, 2), single logits of a and those of b (B, C), each embedded once."""
        of_a, of_b = self.embed(a), self.embed(b)
        return self._pair_logits(of_a, of_b), self.single(of_a), self.single(of_b)

    def _pair_logits(self, of_a: Tensor, of_b: Tensor) -> Tensor:
        logits: Tensor = self.classifier(cosine(of_a, of_b)[:, None])
        return logits


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between a and b, zero where one of them has no length: (B,).

    Where it is zero for want of a length, so are all its derivatives.

    >>> cosine(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([0.6000, 0.0000])
    """
    return (_direction(a) * _direction(b)).sum(-1)


def _direction(vectors: Tensor) -> Tensor:
    """Each vector scaled to length one, zeros where it is too short to be told apart: (B, e)."""
    # The largest entry is divided out first: squares of small numbers underflow, and their roots
    # have endless slopes. A direction does not depend on it, so that it may count as a constant.
    size = vectors.detach().abs().amax(-1, keepdim=True)
    # Beyond this even the second derivative, about 1 / size^2, is a number of the format.
    seen = size > torch.finfo(vectors.dtype).tiny ** 0.4
    scaled = torch.where(seen, vectors, 1.0) / torch.where(seen, size, 1.0)
    length = scaled.square().sum(-1, keepdim=True).sqrt()
    return torch.where(seen, scaled / length, 0.0)


def fit_single_head(model: Siamese, items: Tensor, labels: Tensor) -> Siamese:
    """A copy of `model` whose single head is the logistic regression of `labels` at its optimum.

    The embeddings of `items` are what it sees, as at prediction time; nothing else is changed.
    """
    head = model.single
    if (found := int(labels.max()) + 1) != head.out_features:
        raise ValueError(
            f"the single head tells {head.out_features} classes apart, but labels are of {found}: "
            "build the model with as many classes."
        )
    with torch.no_grad(), eval_mode(model):
        embeddings = torch.cat([model.embed(part) for part in items.split(ROWS_AT_ONCE)])
    fitted = copy.deepcopy(model)
    fitted.single.load_state_dict(fitted_logistic(embeddings, labels)[0].state_dict())
    return fitted


def picture_embedding(activation: Callable[[], nn.Module]) -> nn.Sequential:
    """The embedding of digits, its weights not drawn yet: (B, 1, 28, 28) -> (B, 10).

    conv 3x3 (8) - pool 2 - conv 3x3 (16) - pool 3 - 144-64-32-10 (B.1.1).
    """
    return nn.Sequential(
        nn.utils.skip_init(nn.Conv2d, 1, 8, 3),
        activation(),
        nn.MaxPool2d(2),
        nn.utils.skip_init(nn.Conv2d, 8, 16, 3),
        activation(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        undrawn(144, 64),
        activation(),
        undrawn(64, 32),
        activation(),
        undrawn(32, 10),
    )
