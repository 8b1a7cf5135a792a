"""Many small networks trained as one computation, each to the weights that `fit` gives it alone.

A stack of G networks is itself a model: row r of a batch belongs to network r mod G. The networks
take turns, so that whoever repeats all rows of a batch, as explainers and attacks do, still shows
each row to its own network. Whatever treats an example in a batch as alone, explainers, penalties,
attacks and measures, thus works on a stack as on each of its networks.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, piecewise_linear
from r2et.core.geometry import by_example
from r2et.data.dataset import Part
from r2et.explainers import check_inputs
from r2et.methods.method import Method
from r2et.metrics.statistics import auc
from r2et.models.additive import OneFeatureUnits
from r2et.training.objective import CLASSIFICATION, Objective
from r2et.training.settings import (
    EpochRecord,
    FitSettings,
    check_weights,
    finished,
    improves,
    layer_seed,
    rate_at,
    shuffled,
)

NUMBERS_AT_ONCE = 2**20  # of a batch of inputs, over all networks of a stack
PROBED = 8  # rows of each network on which a stack is compared with its networks

Accept = Callable[[nn.Module], bool]
Build = Callable[[range], Method]
OnNetworkEpoch = Callable[[int, EpochRecord], None]


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


class _Stack(nn.Module):
    """What a network becomes by being stacked: its rows take turns.

    `_seen` are the logits of the last call. The networks `_silent`, (G,) booleans, return zeros.
    """

    _networks: int
    _seen: Tensor | None
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
        self._seen = logits.detach()
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
def _training(networks: int) -> Iterator[None]:
    """Stacks of another size are refused meanwhile: their rows would go to the wrong networks."""
    token = _TRAINED.set(networks)
    try:
        yield
    finally:
        _TRAINED.reset(token)


def stacked(models: Sequence[nn.Module]) -> nn.Module:
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
    stack.__class__ = type(f"Stacked{type(first).__name__}", (_Stack, kind), own)
    assert isinstance(stack, _Stack)
    stack._networks, stack._seen, stack._silent = len(models), None, None
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
        if isinstance(part, _Stack) or not _can_be_stacked(part):
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


# --- training -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What became of one network of a grid.

    With a `problem`, the sentence with which `fit` refuses to go on, its history ends before the
    epoch in which it arose, and the model has the weights kept by then.
    """

    model: nn.Module
    history: list[EpochRecord]
    problem: str | None = None


def ignore(network: int, record: EpochRecord) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Member:
    """One network of a grid and everything that is its own."""

    model: nn.Module
    train: Part
    valid: Part
    seed: int
    weights: Mapping[str, float]
    weight_decay: float | None
    accept: Accept | None


def fit_grid(
    models: Sequence[nn.Module],
    trains: Sequence[Part],
    valids: Sequence[Part],
    method: Method | Build,
    settings: FitSettings,
    *,
    seeds: Sequence[int],
    weights: Mapping[str, Sequence[float]] | None = None,
    weight_decay: Sequence[float] | None = None,
    accept: Sequence[Accept] | None = None,
    device: torch.device | str | None = None,
    at_once: int | None = None,
    on_epoch: OnNetworkEpoch = ignore,
) -> list[Trained]:
    """G networks trained together, each as `fit` would train it alone with its own seed.

    Every sequence has one entry for each network. `weights` by the names of penalties and
    `weight_decay` take the place of the method's own, `seeds` that of the settings'. The models
    themselves are left as they were. Stacks hold `at_once` networks each, unless given as many as
    keep a batch within NUMBERS_AT_ONCE numbers, and are trained one after the other.

    The penalties meet stacks. A method that holds something of each network, such as a stacked
    reference, is given as a function that builds it for a stack from the numbers of its networks.
    A network that diverges ends with a `problem`; the others go on as if it were not there.
    `on_epoch` is told the number of a network and the record of its epoch.
    """
    if settings.ramp or settings.augment:
        raise ValueError(
            "networks trained together are neither ramped nor augmented: train each by `fit`."
        )
    members = _members(models, trains, valids, seeds, weights, weight_decay, accept)
    if at_once is None:
        numbers = trains[0].x[: settings.batch].numel()
        at_once = max(1, NUMBERS_AT_ONCE // max(1, numbers))
    if at_once < 1:
        raise ValueError(f"at_once must be at least one network, got {at_once}.")
    place = torch.device(device) if device is not None else _best_device()
    results: list[Trained] = []
    for first in range(0, len(members), at_once):
        some = range(first, min(first + at_once, len(members)))
        chosen = method if isinstance(method, Method) else method(some)
        together = _Together(members[some.start : some.stop], chosen, settings, place)
        results += together.fit(some, on_epoch)
    return results


def _best_device() -> torch.device:
    from lightning_fabric import Fabric

    return Fabric(accelerator="auto", devices=1).device


def _members(
    models: Sequence[nn.Module],
    trains: Sequence[Part],
    valids: Sequence[Part],
    seeds: Sequence[int],
    weights: Mapping[str, Sequence[float]] | None,
    weight_decay: Sequence[float] | None,
    accept: Sequence[Accept] | None,
) -> list[_Member]:
    """The networks of a grid, refused where something is missing or of another size."""
    weights = {} if weights is None else weights
    lists: dict[str, Sequence[object]] = {"trains": trains, "valids": valids, "seeds": seeds}
    lists |= {f"weights[{name!r}]": each for name, each in weights.items()}
    lists |= {"weight_decay": weight_decay} if weight_decay is not None else {}
    lists |= {"accept": accept} if accept is not None else {}
    if not models:
        raise ValueError("a grid takes at least one network, got none.")
    for name, each in lists.items():
        if len(each) != len(models):
            raise ValueError(
                f"{name} must have one entry for each of the {len(models)} networks, got "
                f"{len(each)}."
            )
    for name, parts in {"trains": trains, "valids": valids}.items():
        shapes = sorted({(tuple(part.x.shape), str(part.x.dtype)) for part in parts})
        if len(shapes) > 1:
            raise ValueError(
                f"{name} must all be of one size, got {shapes}: train networks on parts of "
                "another size in a grid of their own."
            )
    numbers = [number for each in weights.values() for number in each] + list(weight_decay or ())
    if not all(map(math.isfinite, numbers)) or min(weight_decay or [0.0]) < 0:
        raise ValueError(
            f"weights must be finite and weight_decay >= 0, got {dict(weights)} and {weight_decay}."
        )
    return [
        _Member(
            model=model,
            train=trains[number],
            valid=valids[number],
            seed=seeds[number],
            weights={name: float(each[number]) for name, each in weights.items()},
            weight_decay=None if weight_decay is None else float(weight_decay[number]),
            accept=None if accept is None else accept[number],
        )
        for number, model in enumerate(models)
    ]


class _Draws:
    """Standard normal numbers for the rows of a stack, those that each network draws alone.

    Networks of one seed draw the same. What a step has drawn can be told once more.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self.device = list(dict.fromkeys(seeds)), device
        self.source = torch.tensor([self.seeds.index(seed) for seed in seeds], device=device)
        self.streams: list[torch.Generator] = []
        self.begin_step(0)

    def begin_epoch(self, epoch: int) -> None:
        """Seed the streams as `fit` does at the beginning of an epoch."""
        self.streams = [
            torch.Generator(self.device).manual_seed(layer_seed(seed, epoch)) for seed in self.seeds
        ]

    def begin_step(self, rows: int) -> None:
        """Forget what was drawn; a batch of `rows` follows."""
        self.rows, self.drawn, self.position = rows, list[Tensor](), 0

    def __call__(self, like: Tensor) -> Tensor:
        """Normal numbers for the rows of all networks in turn: like `like`."""
        if self.position == len(self.drawn):
            self.drawn.append(self._new(like))
        self.position += 1
        return self.drawn[self.position - 1]

    def _new(self, like: Tensor) -> Tensor:
        if not like.ndim or not len(like) or len(like) % self.rows:
            raise ValueError(
                f"in a grid a method draws for a whole batch, here {self.rows} rows, or for "
                f"repetitions of it, got shape {tuple(like.shape)}."
            )
        shape = by_network(like, len(self.source)).shape[1:]
        found = [
            torch.randn(shape, generator=each, dtype=like.dtype, device=like.device)
            for each in self.streams
        ]
        return in_turn(torch.stack(found)[self.source])


class _Rows:
    """The parts of all networks, one that several share held once, as batches in turn."""

    def __init__(self, parts: Sequence[Part], device: torch.device) -> None:
        held = {id(part): part for part in parts}
        self.count = len(parts[0].x)
        self.x = torch.cat([part.x.to(device) for part in held.values()])
        self.y = torch.cat([part.y.to(device) for part in held.values()])
        places = {key: number * self.count for number, key in enumerate(held)}
        self.begin = torch.tensor([places[id(part)] for part in parts], device=device)

    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and classes of successive batches, by row numbers of the parts (count, G or 1)."""
        for rows in (order + self.begin).split(size):
            numbers = rows.flatten()
            yield self.x.index_select(0, numbers), self.y.index_select(0, numbers)


class _Together:
    """One stack in training, and what has become of each of its networks."""

    def __init__(
        self,
        members: Sequence[_Member],
        method: Method,
        settings: FitSettings,
        device: torch.device,
    ) -> None:
        self.members, self.settings, self.device = members, settings, device
        self.networks = [_prepared(member.model, method).to(device) for member in members]
        self.stack = stacked(self.networks)
        self.weights = [each for each in self.stack.parameters() if each.requires_grad]
        self.train = _Rows([member.train for member in members], device)
        self.valid = _Rows([member.valid for member in members], device)
        self.draws = _Draws([member.seed for member in members], device)
        self.objective = Objective(self.stack, replace(method, prepare=None), self.draws)
        self.shares = {
            name: self._each([member.weights.get(name, weight) for member in members])
            for name, weight, _ in method.penalties
        }
        self.names = (CLASSIFICATION, *self.shares)
        decays = [
            method.weight_decay if member.weight_decay is None else member.weight_decay
            for member in members
        ]
        self.decay = self._each(decays) if any(decays) else None
        self.optimizer = torch.optim.AdamW(
            self.weights, weight_decay=0.0, fused=device.type in ("cpu", "cuda")
        )
        self.going = list(range(len(members)))
        self.stopped: Tensor | None = None
        self.kept = [self._weights_of(number) for number in self.going]
        self.histories: list[list[EpochRecord]] = [[] for _ in members]
        self.problems: list[str | None] = [None for _ in members]
        self._check()

    def _each(self, values: Sequence[float]) -> Tensor:
        """One number for each network: (G,)."""
        return torch.tensor(values, dtype=torch.float64, device=self.device)

    def _check(self) -> None:
        """Refuse what `fit` would refuse of the data, and networks that cannot be stacked."""
        for name in sorted({name for member in self.members for name in member.weights}):
            if name not in self.shares:
                raise ValueError(
                    f"weights must be of penalties of the method, {sorted(self.shares)}, got "
                    f"{name!r}."
                )
        # Of a network whose answers are all zero only the data can be wrong.
        plain = copy.deepcopy(self.networks[0])
        for weight in plain.parameters():
            weight.data.zero_()
        for part in {id(member.train): member.train for member in self.members}.values():
            check_inputs(plain, part.x.to(self.device), part.y.to(self.device))
        for part in {id(member.valid): member.valid for member in self.members}.values():
            auc(plain, part.x.to(self.device), part.y.to(self.device))
        self._check_answers()
        for number, (member, network) in enumerate(zip(self.members, self.networks, strict=True)):
            try:
                check_inputs(network, member.train.x[:1].to(self.device))
            except ValueError as problem:
                self._end(number, str(problem))

    def _check_answers(self) -> None:
        """Refuse networks of which a stack makes others: some layer of theirs mixes rows."""
        count = min(PROBED, self.train.count)
        x, _ = next(self.train.batches(torch.arange(count, device=self.device)[:, None], count))
        with torch.no_grad():
            together = by_network(self.stack(x), len(self.networks))
            own = zip(self.networks, by_network(x, len(self.networks)), strict=True)
            alone = torch.stack([network(rows) for network, rows in own])
        apart = (together - alone)[alone.isfinite()].abs()
        size = alone[alone.isfinite()].abs()
        if bool((apart > torch.finfo(apart.dtype).eps ** 0.5 * (1 + size)).any()):
            raise ValueError(
                "networks answer differently in a stack than alone: they must treat each row "
                "alone, draw nothing and differ in the weights of their layers only; train such "
                "networks one by one."
            )

    def fit(self, numbers: range, on_epoch: OnNetworkEpoch) -> list[Trained]:
        """What became of each network; `numbers` are those they are reported by."""
        for epoch in range(self.settings.epochs):
            if self.going:
                parts = self._train_epoch(epoch)
                self._judge(epoch, parts, numbers, on_epoch)
        results = []
        for number, network in enumerate(self.networks):
            network.load_state_dict(self.kept[number])
            home = next(self.members[number].model.parameters()).device
            results.append(
                Trained(
                    model=network.to(home),
                    history=self.histories[number],
                    problem=self.problems[number],
                )
            )
        return results

    def _train_epoch(self, epoch: int) -> dict[str, Tensor]:
        """The mean of each part of each network's loss over one pass through its data: (G,)."""
        self.draws.begin_epoch(epoch)
        count, size = self.train.count, self.settings.batch
        order = torch.stack([shuffled(count, seed, epoch) for seed in self.draws.seeds], dim=1)
        order = order.to(self.device)[:, self.draws.source]
        totals = {name: self._each([0.0] * len(self.members)) for name in self.names}
        for number, (x, y) in enumerate(self.train.batches(order, size)):
            rate = rate_at(epoch + number / math.ceil(count / size), self.settings)
            with _training(len(self.networks)):
                means = self._step(x, y, rate)
            if not self.going:
                break
            for name, mean in means.items():
                totals[name] += mean.detach() * (len(x) / order.numel())
        return totals

    def _step(self, x: Tensor, y: Tensor, rate: float) -> dict[str, Tensor]:
        """The mean of each part of each network's loss, (G,), weights moved on by it."""
        parts = self._parts_of(x, y)
        if not self.going:
            return {}
        means = {name: self._means(name, part, len(x)) for name, part in parts.items()}
        total = means[CLASSIFICATION]
        for name, share in self.shares.items():
            total = total + share.to(means[name]) * means[name]
        # No network's loss hangs on another's weights: the slope of the sum is that of each.
        gradients = torch.autograd.grad(total.sum(), self.weights, allow_unused=True)
        self._move(gradients, rate)
        return means

    def _means(self, name: str, part: Tensor, rows: int) -> Tensor:
        """The mean over the rows of each network, or what is one number for each anyway: (G,)."""
        if part.shape not in ((rows,), (len(self.networks),)):
            raise ValueError(
                f"in a grid {name} must be one number for each of {rows} rows or of "
                f"{len(self.networks)} networks, got shape {tuple(part.shape)}."
            )
        return by_network(part, len(self.networks)).mean(1)

    def _parts_of(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Each part of the loss of each row; networks whose logits are not finite are ended."""
        self.draws.begin_step(len(x))
        while self.going:
            try:
                return self.objective.parts_of(x, y)
            except ValueError as problem:
                assert isinstance(self.stack, _Stack)
                assert self.stack._seen is not None
                whole = self.stack._seen.isfinite().all(-1)
                fine = by_network(whole, len(self.networks)).all(-1).tolist()
                diverged = [number for number in self.going if not fine[number]]
                if not diverged:
                    raise
                for number in diverged:
                    self._end(number, str(problem))
                self.draws.position = 0
        return {}

    def _move(self, gradients: Sequence[Tensor | None], rate: float) -> None:
        """One step of AdamW, of the learning rate `rate`, for all networks that go on."""
        shrink = None if self.decay is None else 1 - rate * self.decay
        with torch.no_grad():
            for weight, gradient in zip(self.weights, gradients, strict=True):
                if gradient is not None and self.stopped is not None:
                    gradient = gradient.masked_fill(by_example(self.stopped, gradient), 0.0)
                if gradient is not None and shrink is not None:
                    weight.mul_(by_example(shrink, weight).to(weight))
                # The fused optimiser reads memory as it lies, and slopes may lie transposed.
                weight.grad = None if gradient is None else gradient.contiguous()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _judge(
        self, epoch: int, parts: Mapping[str, Tensor], numbers: range, on_epoch: OnNetworkEpoch
    ) -> None:
        """Note what an epoch did to each network, keep its weights or end it, as `fit` does."""
        if not self.going:
            return
        logits = self._valid_logits()
        for number in list(self.going):
            weights = self._weights_of(number)
            try:
                check_weights(weights.values(), epoch)
                score = self._valid_auc(number, logits[number])
            except ValueError as problem:
                self._end(number, str(problem))
                continue
            record = EpochRecord(
                epoch=epoch,
                parts={name: float(part[number]) for name, part in parts.items()},
                valid_auc=score,
            )
            accept, history = self.members[number].accept, self.histories[number]
            if accept is not None and not accept(self._network(number)):
                self._end(number)
                continue
            if improves(record, history, self.settings):
                self.kept[number] = weights
            history.append(record)
            on_epoch(numbers[number], record)
            if finished(history, self.settings):
                self._end(number)

    def _valid_logits(self) -> Tensor:
        """Logits of each network on its validation part: (G, V, C)."""
        rows = torch.arange(self.valid.count, device=self.device)[:, None]
        size = max(1, NUMBERS_AT_ONCE // (len(self.networks) * self.valid.x[0].numel()))
        with torch.no_grad(), eval_mode(self.stack):
            found = [self.stack(x) for x, _ in self.valid.batches(rows, size)]
        return by_network(torch.cat(found), len(self.networks))

    def _valid_auc(self, number: int, logits: Tensor) -> float:
        valid = self.members[number].valid
        if torch.isfinite(logits).all():
            return auc(nn.Identity(), logits, valid.y.to(self.device))
        # Refused, in the words in which a network alone is.
        return auc(self._network(number), valid.x.to(self.device), valid.y.to(self.device))

    def _weights_of(self, number: int) -> dict[str, Tensor]:
        """The weights of one network now, under the names that they have in it alone."""
        return {name: whole[number].clone() for name, whole in self.stack.state_dict().items()}

    def _network(self, number: int) -> nn.Module:
        """One network with its weights of now."""
        network = self.networks[number]
        network.load_state_dict(self._weights_of(number))
        return network

    def _end(self, number: int, problem: str | None = None) -> None:
        """Let a network stand still, with the weights that were kept, and silence it."""
        self.going.remove(number)
        self.problems[number] = problem
        stopped = [each not in self.going for each in range(len(self.members))]
        self.stopped = torch.tensor(stopped, device=self.device)
        # Even kept weights may give infinite logits, on inputs that a method has changed.
        assert isinstance(self.stack, _Stack)
        self.stack._silent = self.stopped
        for name, whole in self.stack.state_dict().items():
            whole[number] = self.kept[number][name]
        for state in self.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name][number] = 0.0
        if self.decay is not None:
            self.decay[number] = 0.0


def _prepared(model: nn.Module, method: Method) -> nn.Module:
    """The network that is trained, a copy."""
    model = copy.deepcopy(model)
    return model if method.prepare is None else method.prepare(model)
