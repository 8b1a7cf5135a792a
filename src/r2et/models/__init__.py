"""Networks of the papers, built from a random stream of their own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.naming import keyword_defaults, nearest
from r2et.models.additive import AdditiveNet, OneFeatureUnits
from r2et.models.gcn import DenseGCN, GCNEmbedding, NodeFeatures, Normalise
from r2et.models.linear import undrawn
from r2et.models.resnet import Norm, ResNet, Stem
from r2et.models.siamese import Siamese, picture_embedding
from r2et.models.smoothing import SMOOTHERS, Smoothing

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "leaky-relu": lambda: nn.LeakyReLU(0.01),
    "relu": nn.ReLU,
    "softplus": nn.Softplus,
    "sharp-softplus": lambda: nn.Softplus(beta=8.0),
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
    return _drawn(nn.Sequential(*layers, undrawn(sizes[-1], classes)), generator)


def logistic(inputs: int, classes: int = 2, *, generator: torch.Generator) -> nn.Sequential:
    """Logistic regression, the control: of two classes its gradient points one way everywhere."""
    return _drawn(nn.Sequential(undrawn(inputs, classes)), generator)


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
) -> AdditiveNet:
    """A `AdditiveNet` network of a table whose numeric and one-hot columns are known, drawn."""
    network = AdditiveNet(
        inputs,
        classes,
        numeric=numeric,
        one_hot=one_hot,
        curves=curves,
        units=units,
        sharpness=sharpness,
    )
    return _drawn(network, generator)


def siamese_cnn(
    classes: int = 2, *, activation: str = "relu", generator: torch.Generator
) -> Siamese:
    """A Siamese network of digits (B, 1, 28, 28) of `classes` kinds, drawn."""
    return _drawn(Siamese(picture_embedding(ACTIVATIONS[activation]), 10, classes), generator)


def siamese_gcn(
    nodes: int,
    classes: int = 2,
    *,
    hidden: int = 256,
    embedding: int = 128,
    node_features: NodeFeatures = "identity",
    normalise: Normalise = "clamped",
    activation: str = "relu",
    generator: torch.Generator,
) -> Siamese:
    """A Siamese network of symmetric matrices of `classes` kinds, (B, m(m-1)/2) each, drawn."""
    embed = GCNEmbedding(
        nodes,
        hidden,
        embedding,
        node_features=node_features,
        normalise=normalise,
        activation=ACTIVATIONS[activation],
    )
    return _drawn(Siamese(embed, embedding, classes), generator)


def gcn(
    nodes: int,
    classes: int = 2,
    *,
    hidden: int = 256,
    embedding: int = 128,
    node_features: NodeFeatures = "identity",
    normalise: Normalise = "clamped",
    activation: str = "relu",
    generator: torch.Generator,
) -> nn.Sequential:
    """A classifier of symmetric matrices, (B, m(m-1)/2), drawn: an embedding and a linear layer."""
    embed = GCNEmbedding(
        nodes,
        hidden,
        embedding,
        node_features=node_features,
        normalise=normalise,
        activation=ACTIVATIONS[activation],
    )
    return _drawn(nn.Sequential(embed, undrawn(embedding, classes)), generator)


def resnet18(
    channels: int = 3,
    classes: int = 10,
    *,
    width: int = 64,
    blocks: Sequence[int] = (2, 2, 2, 2),
    stem: Stem = "small",
    norm: Norm = "batch",
    penultimate: int | None = None,
    mean: float | Sequence[float] = 0.5,
    std: float | Sequence[float] = 0.25,
    activation: str = "relu",
    generator: torch.Generator,
) -> ResNet:
    """A `ResNet` of 18 layers unless `blocks` says otherwise, drawn."""
    network = ResNet(
        channels,
        classes,
        width=width,
        blocks=blocks,
        stem=stem,
        norm=norm,
        penultimate=penultimate,
        mean=mean,
        std=std,
        activation=ACTIVATIONS[activation],
    )
    return _drawn(network, generator)


Network = TypeVar("Network", bound=nn.Module)


def _drawn(network: Network, generator: torch.Generator) -> Network:
    """The network, its weights from our own stream, as the library each layer is of draws them.

    Linear layers and convolutions uniform in +-1/sqrt(inputs), as torch; graph convolutions uniform
    in +-sqrt(6 / (inputs + outputs)) without bias, as PyTorch Geometric; convolutions of a ResNet
    normal of variance 2 / outputs, without bias, as torchvision. Units of one feature in [0, 1] get
    slopes in +-2, so that their kinks fall among its values. Batch normalisation needs no draw.

    A Siamese network begins with the belief that alike means the same: the weights of its cosine
    are not drawn but -1 and 1. Drawn with the other sign it learns nothing, for of two classes all
    items can be alike, but not all different.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and isinstance(network, ResNet):
            _draw_normal(layer, generator)
            continue
        if isinstance(layer, nn.Linear | nn.Conv2d):
            inputs = layer.weight[0].numel()
            bounds = {"weight": inputs**-0.5, "bias": inputs**-0.5}
        elif isinstance(layer, DenseGCN):
            bounds = {"weight": (6 / sum(layer.weight.shape)) ** 0.5, "bias": 0.0}
        elif isinstance(layer, OneFeatureUnits):
            bounds = {"weight": 2.0, "bias": 1.0}
        else:
            continue
        for name, bound in bounds.items():
            values = layer.get_parameter(name)
            drawn = torch.rand(values.shape, generator=generator) * 2 * bound - bound
            values.data.copy_(drawn)
    if isinstance(network, Siamese):
        network.classifier.weight.data.copy_(torch.tensor([[-1.0], [1.0]]))
        network.classifier.bias.data.zero_()
    return network


def _draw_normal(layer: nn.Conv2d, generator: torch.Generator) -> None:
    """Weights that keep the size of signals on their way back through (Leaky)ReLUs; no bias."""
    outputs = layer.out_channels * layer.weight[0, 0].numel()
    drawn = torch.randn(layer.weight.shape, generator=generator) * (2 / outputs) ** 0.5
    layer.weight.data.copy_(drawn)
    if layer.bias is not None:
        layer.bias.data.zero_()


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A network by name: `build(..., generator=...)` draws it.

    `sizes` names those of its arguments that follow from the data; the others have a value unless
    given.
    """

    build: Callable[..., nn.Module]
    sizes: tuple[str, ...]

    @property
    def offered(self) -> tuple[str, ...]:
        """All that it can be built with, but for the generator."""
        return (*self.sizes, *keyword_defaults(self.build))


MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry(build=mlp, sizes=("inputs", "classes")),
    "logistic": ModelEntry(build=logistic, sizes=("inputs", "classes")),
    "structured": ModelEntry(build=structured, sizes=("inputs", "classes", "numeric", "one_hot")),
    "siamese-cnn": ModelEntry(build=siamese_cnn, sizes=("classes",)),
    "siamese-gcn": ModelEntry(build=siamese_gcn, sizes=("nodes", "classes")),
    "gcn": ModelEntry(build=gcn, sizes=("nodes", "classes")),
    "resnet18": ModelEntry(build=resnet18, sizes=("channels", "classes")),
}


# --- networks by their plan: what a model file says of the network whose weights it holds ---


def build(plan: Mapping[str, Any], generator: torch.Generator) -> nn.Module:
    """The network of a plan, its weights drawn from `generator`.

    `name` is an entry of MODELS. With `pieces`, the shapes of several tensors, the network takes
    them packed into one row. `softplus`, `pooling` and `blur` are those of a `Smoothing` of it. All
    else are settings of the entry.
    """
    settings = dict(plan)
    name, pieces = (settings.pop(key, None) for key in ("name", "pieces"))
    smooth = Smoothing(**{key: settings.pop(key) for key in SMOOTHERS if key in settings})
    if name not in MODELS:
        raise ValueError(f"no network is called {name!r}: {nearest(str(name), MODELS)}")
    model = MODELS[name].build(**settings, generator=generator)
    if pieces is not None:
        shapes = tuple(Piece(shape=tuple(shape)) for shape in pieces)
        model = Joined(model, Inputs(pieces=shapes))
    return smooth(model)


@contextmanager
def bounded(sizes: Sequence[int]) -> Iterator[None]:
    """Refuse to make a network whose tensors could not be those of these many numbers each.

    A plan in a file of weights may ask for any network, and would have it before the first shape is
    compared.
    """
    with _Bounded(max([SMALL, *sizes]), OPERATIONS * (len(sizes) + 10)):
        yield


SMALL = 2**16  # numbers that may always be made at once
OPERATIONS = 100  # for each tensor: it is made, drawn, copied, converted


class _Bounded(TorchDispatchMode):
    """Looks at what each operation asks for before it is run, and counts them."""

    def __init__(self, most: int, left: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.left = most, left

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation unless what it asks for is too much."""
        given = args[0] if args else None
        if isinstance(given, Tensor):
            asked = given.numel()
        else:
            sizes = given if isinstance(given, list | tuple) else ()
            asked = math.prod(each for each in sizes if isinstance(each, int))
        self.left -= 1
        if asked > self.most or self.left < 0:
            raise ValueError("it asks for more numbers than the weights beside it have")
        return func(*args, **(kwargs or {}))
