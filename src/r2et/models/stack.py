"""Many small networks as one model, so that they are computed together.

Row r of a batch belongs to network r mod G of a stack. The networks take turns, so that whoever
repeats all rows of a batch, as explainers and attacks do, still shows each row to its own network.
Whatever treats an example in a batch as alone, explainers, penalties, attacks and measures, thus
works on a stack as on each of its networks.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from r2et.core.autograd import piecewise_linear
from r2et.models.additive import OneFeatureUnits

# --- rows that take turns -----------------------------------------------------------------------


def in_turn(values: Tensor) -> Tensor:
    """The rows of G networks as one batch, row b of network g at place b G + g: (B G, ...).

    >>> in_turn(torch.tensor([[1, 2, 3], [10, 20, 30]]))
    tensor([ 1, 10,  2, 20,  3, 30])
    """
    return values.transpose(0, 1).flatten(0, 1)


def by_network(rows: Tensor, networks: int) -> Tensor:
    """The rows of each network together again, the inverse of `in_turn`: (G, B, ...).

    >>> by_network(torch.tensor([1, 10, 2, 20, 3, 30]), 2)
    tensor([[ 1,  2,  3],
            [10, 20, 30]])
    """
    if not len(rows) or len(rows) % networks:
        raise ValueError(
            f"a stack of {networks} networks takes a row for each of them in turn, a multiple of "
            f"{networks} rows, got {len(rows)}: arrange them by in_turn, and where a batch is "
            "split let the pieces be such multiples."
        )
    return rows.view(-1, networks, *rows.shape[1:]).transpose(0, 1)


# --- stacks of networks -------------------------------------------------------------------------


class StackedLinear(nn.Module):
    """G linear layers as one: weight (G, out, in), bias (G, out).

    Inside a stack the rows of a network are adjacent: g B to (g + 1) B - 1 belong to network g.
    """

    piecewise_linear = True

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        first = layers[0]
        self.networks, self.training = len(layers), first.training
        self.in_features, self.out_features = first.in_features, first.out_features
        self.weight = _stacked_weight([layer.weight for layer in layers])
        self.bias = None if first.bias is None else _stacked_weight([each.bias for each in layers])

    def forward(self, x: Tensor) -> Tensor:
        """Each row by the layer of its own network: (G B, ..., in) -> (G B, ..., out)."""
        rows = x.reshape(self.networks, -1, self.in_features)
        turned = self.weight.transpose(1, 2)
        if self.bias is None:
            out = torch.bmm(rows, turned)
        else:
            out = torch.baddbmm(self.bias[:, None], rows, turned)
        return out.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """How many layers there are, and how wide."""
        return f"{self.networks} x ({self.in_features}, {self.out_features})"


def _stacked_weight(weights: Sequence[Tensor]) -> nn.Parameter:
    values = torch.stack([weight.detach() for weight in weights])
    return nn.Parameter(values, requires_grad=weights[0].requires_grad)


class Stack(nn.Module):
    """What a network becomes by being stacked: its rows take turns.

    `_last_logits` are those of the last call. The networks `_silent`, (G,) booleans, return zeros.
    """

    _networks: int
    _last_logits: Tensor | None
    _silent: Tensor | None

    @property
    def in_turn(self) -> int:
        """How many rows make a turn, one of each network."""
        return self._networks

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each row by its own network: (B G, ...) -> (B G, C).

        A single row, on which inputs are checked, is shown to all networks: (G, C).
        """
        if len(x) == 1 and not torch.is_grad_enabled():
            x = x.expand(self._networks, *x.shape[1:])
        logits = self._by_its_own(super().forward, x)
        self._last_logits = logits.detach()
        return logits

    def log_odds_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of each row by its own network, where networks write theirs out: like x."""
        return self._by_its_own(super().log_odds_gradient, x, y)  # type: ignore[misc]

    def _by_its_own(self, network: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        """What each row's own network computes of it: (B G, ...)."""
        trained = _TRAINED.get()
        if trained not in (None, self._networks):
            raise ValueError(
                f"a method for a stack of {trained} networks holds a stack of {self._networks}: "
                "give fit_grid a function that builds the method for the networks of each stack."
            )
        adjacent = (by_network(rows, self._networks).flatten(0, 1) for rows in batch)
        found = in_turn(network(*adjacent).unflatten(0, (self._networks, -1)))
        if self._silent is not None:
            rows = self._silent.repeat(len(found) // self._networks)
            found = found.masked_fill(rows[:, None], 0.0)
        return found


_TRAINED: ContextVar[int | None] = ContextVar("networks of the stack in training", default=None)


@contextmanager
def trained_together(networks: int) -> Iterator[None]:
    """Stacks of another size are refused meanwhile: their rows would go to the wrong networks."""
    token = _TRAINED.set(networks)
    try:
        yield
    finally:
        _TRAINED.reset(token)


def stacked(models: Sequence[nn.Module]) -> Stack:
    """One model of G networks built alike, their weights copied: row r is one of network r mod G.

    It is a copy of the first network, and of its class, with a `StackedLinear` in place of each
    linear layer: its weights have the same names and one more dimension, the first. Everything
    else in the networks must treat each row alone and have no weights, but for the layers
    `FOR_STACKS`.
    """
    _check_alike(models)
    first = models[0]
    # A deep copy takes what it is told here for the copies that it has made already.
    copies: dict[int, Any] = {}
    for path, part in first.named_modules():
        alike = [model.get_submodule(path) for model in models]
        if type(part) is nn.Linear:
            copies[id(part)] = StackedLinear([each for each in alike if type(each) is nn.Linear])
        elif type(part) in FOR_STACKS:
            for name, weight in part.named_parameters(recurse=False):
                each = [other.get_parameter(name) for other in alike]
                copies[id(weight)] = _stacked_weight(each)
    if not copies:
        raise ValueError("networks without a linear layer have nothing to stack: train others.")
    stack = copy.deepcopy(first, copies)
    kind = type(stack)
    own = {"__module__": kind.__module__, "piecewise_linear": piecewise_linear(first)}
    stack.__class__ = type(f"Stacked{type(first).__name__}", (Stack, kind), own)
    assert isinstance(stack, Stack)
    stack._networks, stack._last_logits, stack._silent = len(models), None, None
    return stack


# Layers that are written for stacks: with one more dimension, the first, their weights are those
# of G networks, whose rows are adjacent.
FOR_STACKS = (OneFeatureUnits,)

# What acts on each number or each row alone and has no weights, of torch's own layers.
ROWWISE = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
)


def _check_alike(models: Sequence[nn.Module]) -> None:
    """Refuse networks that cannot be stacked, or not with one another."""
    if not models:
        raise ValueError("a stack takes at least one network, got none.")
    first = models[0]
    owners: dict[int, str] = {}
    for path, part in first.named_modules():
        if isinstance(part, Stack) or not _can_be_stacked(part):
            raise ValueError(
                "a stack takes networks of linear layers and functions of each row alone, but "
                f"{_named(path, part)} may mix rows, draw or have weights of its own: train such "
                "networks one by one."
            )
        for weight in part.parameters(recurse=False):
            if (other := owners.setdefault(id(weight), path)) != path:
                raise ValueError(
                    f"a stack takes networks whose layers share no weights, but {path} and {other} "
                    "do: train such networks one by one."
                )
    plans = [_plan(model) for model in models]
    for number, plan in enumerate(plans):
        if plan != plans[0]:
            differing = next(
                (path for path in plans[0] if plan.get(path) != plans[0][path]), "its layers"
            )
            raise ValueError(
                f"networks of one stack must be built alike, but network {number} differs from "
                f"network 0 in {differing or 'itself'}: stack others apart."
            )


def _can_be_stacked(part: nn.Module) -> bool:
    if type(part) is nn.Linear:
        return not (part._forward_hooks or part._forward_pre_hooks)
    if [*part.buffers(recurse=False)]:
        return False
    if [*part.parameters(recurse=False)]:
        return type(part) in FOR_STACKS
    if isinstance(part, nn.Flatten):
        return part.start_dim >= 1
    return type(part) in ROWWISE or not type(part).__module__.startswith("torch.")


def _named(path: str, part: nn.Module) -> str:
    return f"{path or 'the network itself'} ({type(part).__name__})"


def alike(models: Sequence[nn.Module]) -> list[list[int]]:
    """The numbers of the networks that can be stacked with one another, group by group."""
    plans, groups = list[dict[str, Any]](), list[list[int]]()
    for number, model in enumerate(models):
        plan = _plan(model)
        if plan not in plans:
            plans.append(plan)
            groups.append([])
        groups[plans.index(plan)].append(number)
    return groups


def _plan(model: nn.Module) -> dict[str, Any]:
    """How a network is built, by the paths of its parts: everything but the values of weights."""
    return {
        path: (
            type(part),
            {name: _plain(value) for name, value in vars(part).items() if name[0] != "_"},
            [
                (name, weight.shape, weight.dtype, weight.device, weight.requires_grad)
                for name, weight in part.named_parameters(recurse=False)
            ],
        )
        for path, part in model.named_modules(remove_duplicate=False)
    }


def _plain(value: object) -> object:
    """What can be compared of a setting: its value where that is plain, else its type."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return type(value)
