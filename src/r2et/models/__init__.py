"""Networks of the papers, built from a random stream of their own."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from r2et.models.structured import OneFeatureUnits, Structured, undrawn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "leaky-relu": lambda: nn.LeakyReLU(0.01),
    "relu": nn.ReLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


def mlp(
    inputs: int,
    classes: int = 2,
    *,
    hidden: Sequence[int] = (32,),
    activation: str = "leaky-relu",
    generator: torch.Generator,
) -> nn.Sequential:
    """A fully connected network with logits as outputs, weights drawn from `generator`."""
    sizes = [inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [undrawn(before, after), ACTIVATIONS[activation]()]
    network = nn.Sequential(*layers, undrawn(sizes[-1], classes))
    _draw_weights(network, generator)
    return network


def logistic(inputs: int, classes: int = 2, *, generator: torch.Generator) -> nn.Sequential:
    """Logistic regression, the control: of two classes its gradient points one way everywhere."""
    network = nn.Sequential(undrawn(inputs, classes))
    _draw_weights(network, generator)
    return network


def structured(
    inputs: int,
    classes: int = 2,
    *,
    numeric: Sequence[int],
    one_hot: Sequence[Sequence[int]],
    curves: int = 8,
    units: int = 8,
    sharpness: float = 3.0,
    generator: torch.Generator,
) -> Structured:
    """A `Structured` network of a table whose numeric and one-hot columns are known, drawn."""
    network = Structured(
        inputs,
        classes,
        numeric=numeric,
        one_hot=one_hot,
        curves=curves,
        units=units,
        sharpness=sharpness,
    )
    _draw_weights(network, generator)
    return network


def _draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Weights and biases uniform in +-1/sqrt(inputs), as torch draws them, from our own stream.

    Units of one feature in [0, 1] get slopes in +-2, so that their kinks fall among its values.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            bounds = {"weight": layer.in_features**-0.5, "bias": layer.in_features**-0.5}
        elif isinstance(layer, OneFeatureUnits):
            bounds = {"weight": 2.0, "bias": 1.0}
        else:
            continue
        for name, bound in bounds.items():
            values = layer.get_parameter(name)
            drawn = torch.rand(values.shape, generator=generator) * 2 * bound - bound
            values.data.copy_(drawn)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "logistic": logistic,
    "structured": structured,
}
