"""Networks of the papers, built from a random stream of their own."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

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
        layers += [_linear(before, after), ACTIVATIONS[activation]()]
    network = nn.Sequential(*layers, _linear(sizes[-1], classes))
    _draw_weights(network, generator)
    return network


def logistic(inputs: int, classes: int = 2, *, generator: torch.Generator) -> nn.Sequential:
    """Logistic regression, the control: of two classes its gradient points one way everywhere."""
    network = nn.Sequential(_linear(inputs, classes))
    _draw_weights(network, generator)
    return network


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose weights are not drawn yet: torch would draw them from the global stream."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    return layer


def _draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Weights and biases uniform in +-1/sqrt(inputs), as torch draws them, from our own stream."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            for values in (layer.weight, layer.bias):
                drawn = torch.rand(values.shape, generator=generator) * 2 * bound - bound
                values.data.copy_(drawn)


MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "logistic": logistic}
