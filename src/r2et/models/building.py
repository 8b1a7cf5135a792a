"""Networks by their plan: what a model file says of the network whose weights it holds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.naming import nearest
from r2et.models import MODELS
from r2et.models.smoothing import with_softplus


def build(plan: Mapping[str, Any], generator: torch.Generator) -> nn.Module:
    """The network of a plan, its weights drawn from `generator`.

    `name` is an entry of MODELS. With `pieces`, the shapes of several tensors, the network takes
    them packed into one row. With `softplus` its kinks are replaced by softplus(x; rho) of that
    rho. All else are settings of the entry.
    """
    settings = dict(plan)
    name, pieces, rho = (settings.pop(key, None) for key in ("name", "pieces", "softplus"))
    if name not in MODELS:
        raise ValueError(f"no network is called {name!r}: {nearest(str(name), MODELS)}")
    model = MODELS[name].build(**settings, generator=generator)
    if pieces is not None:
        shapes = tuple(Piece(shape=tuple(shape)) for shape in pieces)
        model = Joined(model, Inputs(pieces=shapes))
    return model if rho is None else with_softplus(model, rho)


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
