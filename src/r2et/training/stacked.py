"""Many small networks trained as one computation, each to the weights that `fit` gives it alone."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.core.geometry import by_example
from r2et.data.dataset import Part
from r2et.explainers import check_inputs
from r2et.methods.method import Method
from r2et.metrics.statistics import auc
from r2et.models.stack import by_network, in_turn, stacked, trained_together
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
    floor: float | None


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
    floor: Sequence[float] | None = None,
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
    if floor is not None and settings.patience is not None:
        raise ValueError(
            "a floor says which epoch is kept, got patience beside it: leave out one of them."
        )
    members = _members(models, trains, valids, seeds, weights, weight_decay, accept, floor)
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
    floor: Sequence[float] | None,
) -> list[_Member]:
    """The networks of a grid, refused where something is missing or of another size."""
    weights = {} if weights is None else weights
    lists: dict[str, Sequence[object]] = {"trains": trains, "valids": valids, "seeds": seeds}
    lists |= {f"weights[{name!r}]": each for name, each in weights.items()}
    lists |= {"weight_decay": weight_decay} if weight_decay is not None else {}
    lists |= {"accept": accept} if accept is not None else {}
    lists |= {"floor": floor} if floor is not None else {}
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
            floor=None if floor is None else floor[number],
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
            with trained_together(len(self.networks)):
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
                assert self.stack._last_logits is not None
                whole = self.stack._last_logits.isfinite().all(-1)
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
            if improves(record, history, self.settings, self.members[number].floor):
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
