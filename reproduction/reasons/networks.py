"""Networks beside the other models of `reproduction.reasons`: R2ET's idea carried to contributions.

Each is a network of 32 hidden units on numbers or on bands of a StableBinner, trained by
cross-entropy alone or with the ramp on the worst margin of contributions within the moves that it
is judged by. What was chosen, and on which splits, is told in docs/theory/contribution-gap.md.

`python -m reproduction.reasons adult --models network,network-ramp` adds rows of census income, the
table that they are made for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from r2et import StableBinner, StableClassifier
from r2et.core.coalitions import every_coalition
from r2et.core.rng import stream
from r2et.data import Part
from r2et.evaluation.moves import SpokenModel, labels_of
from r2et.methods import METHODS, Method, corner_moves, single_moves
from r2et.models import MODELS
from r2et.models.banded import InBands
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit

if TYPE_CHECKING:
    from reproduction.reasons.tables import Case

Floats = Any  # arrays of numbers
TOP = 3
AT_ONCE = 200_000  # rows that a network scores together
SURVIVED = (2, 5)  # widths that the penalty asks for


# --- rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """Rows as networks see them: numbers of mean 0 and variance 1, then a column for each word."""

    means: dict[str, float]
    spreads: dict[str, float]
    labels: Mapping[str, Sequence[str]]

    @staticmethod
    def of(x: pd.DataFrame, labels: Mapping[str, Sequence[str]]) -> "Encoding":
        """The encoding of the numbers of these rows and of all words that there are."""
        numbers = [str(name) for name in x if name not in labels]
        return Encoding(
            means={name: float(x[name].mean()) for name in numbers},
            spreads={name: float(x[name].std()) for name in numbers},
            labels=labels,
        )

    @property
    def columns(self) -> int:
        """How many columns an encoded row has."""
        return len(self.groups)

    @property
    def groups(self) -> list[int]:
        """The attribute of each column, numbers first."""
        sizes = [1] * len(self.means) + [len(own) for own in self.labels.values()]
        return [place for place, size in enumerate(sizes) for _ in range(size)]

    def scaled(self, name: str, numbers: Any) -> Any:
        """Numbers of a column in units of its encoding."""
        return (np.asarray(numbers, dtype=float) - self.means[name]) / self.spreads[name]

    def __call__(self, x: pd.DataFrame) -> Tensor:
        """Encoded rows: (N, columns)."""
        parts = [self.scaled(name, x[name])[:, None] for name in self.means]
        parts += [
            x[name].astype(str).to_numpy()[:, None] == np.array(own)
            for name, own in self.labels.items()
        ]
        return torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))


# --- networks -----------------------------------------------------------------------------------


class Separate(nn.Module):
    """What moves adds on its own: an MLP of the words beside a linear layer of all bands.

    The columns that never move come first, as `InBands` gives them.
    """

    def __init__(self, still: int, columns: int, generator: torch.Generator) -> None:
        super().__init__()
        self.still = still
        self.words = MODELS["mlp"].build(still, 2, generator=generator)
        self.bands = MODELS["logistic"].build(columns - still, 2, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """One logit for each class: (B, 2)."""
        logits: Tensor = self.words(x[:, : self.still]) + self.bands(x[:, self.still :])
        return logits


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A network and how it is trained: `thickness` 0 is cross-entropy alone."""

    bands: bool = False
    separate: bool = False
    thickness: float = 0.0
    room: float = 0.05
    temperature: float = 0.15
    background: int = 20
    orders: int = 2
    share: float = 1 / 32
    epochs: int = 15
    learning_rate: float = 0.02
    descent: bool = False
    """Whether the edges are those that StableClassifier found by descent, not its first ones."""


def trained(plan: Plan, x: pd.DataFrame, y: Floats, case: "Case") -> SpokenModel:
    """The network of a plan, fitted to these rows."""
    labels = labels_of(case.x)
    encode = Encoding.of(x, labels)
    moving = [str(name) for name in x if name not in labels]
    if len(moving) != 2:
        raise ValueError(
            f"networks are judged by a table of two numbers and some words, got {len(moving)} "
            f"numbers: run them on 'adult'."
        )
    edges = _edges(x, y, case, moving, plan.descent) if plan.bands else {}
    model = _network(plan, encode, edges)
    rows = encode(x)
    with torch.random.fork_rng(devices=[]):
        model, _ = fit(
            model,
            Part(rows=torch.arange(len(rows)), x=rows, y=torch.from_numpy(y).long()),
            lambda model: float("nan"),
            _method(plan, encode, rows, moving),
            FitSettings(epochs=plan.epochs, learning_rate=plan.learning_rate),
        )
    grids = [_grid(case.x[name], edges.get(name)) for name in moving]
    return Tabulated(
        encode=encode,
        raw=lambda rows: _log_odds(model, rows),
        moving=moving,
        grids=grids,
    )


def _edges(
    x: pd.DataFrame, y: Floats, case: "Case", moving: Sequence[str], descent: bool
) -> dict[str, list[float]]:
    """The edges of a StableBinner or StableClassifier that is to survive all widths."""
    widths = {name: tuple(each.get(name, 0.0) for each in case.moves.values()) for name in moving}
    binner = (
        StableClassifier(widths).fit(x, y).binner_ if descent else StableBinner(widths).fit(x, y)
    )
    found = binner.edges_
    return {name: [float(edge) for edge in found[name]] for name in moving}


def _network(plan: Plan, encode: Encoding, edges: Mapping[str, Sequence[float]]) -> nn.Module:
    """A drawn network: an MLP, on bands if there are edges, or what moves apart from the rest."""
    draw = stream(0, "reason networks")
    if not plan.bands:
        return MODELS["mlp"].build(encode.columns, 2, generator=draw)
    places = {
        place: encode.scaled(name, edges[name]).tolist() for place, name in enumerate(encode.means)
    }
    first = InBands(encode.columns, places)
    rest = (
        Separate(len(first.others), first.outputs, draw)
        if plan.separate
        else MODELS["mlp"].build(first.outputs, 2, generator=draw)
    )
    return nn.Sequential(first, rest)


def _method(plan: Plan, encode: Encoding, rows: Tensor, moving: Sequence[str]) -> Method:
    """Cross-entropy, or the ramp on the worst margin within the moves of each width."""
    if not plan.thickness:
        return METHODS["vanilla"].build(k=TOP)

    def set_of(width: int) -> list[list[float]]:
        units = {place: 1 / encode.spreads[name] for place, name in enumerate(moving)}
        if not plan.separate:
            return corner_moves(encode.columns, {at: width * unit for at, unit in units.items()})
        steps = [by for each in SURVIVED for by in (-each, each) if each <= width]
        return single_moves(
            encode.columns, {at: [by * unit for by in steps] for at, unit in units.items()}
        )

    chosen = torch.randperm(len(rows), generator=stream(0, "background"))[: plan.background]
    return METHODS["r2et-contributions"].build(
        k=TOP,
        thickness=plan.thickness,
        room=plan.room,
        temperature=plan.temperature,
        moves=[set_of(width) for width in SURVIVED],
        separate=plan.separate,
        groups=encode.groups,
        background=rows[chosen].tolist(),
        orders=plan.orders,
        share=plan.share,
    )


def _log_odds(model: nn.Module, rows: Tensor) -> Floats:
    with torch.no_grad():
        logits = torch.cat([model(part) for part in rows.split(AT_ONCE)])
    return (logits[:, 1] - logits[:, 0]).numpy()


# --- contributions ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Values of a number that a network can tell apart, and which of them a value is."""

    values: Floats
    codes: Callable[[Floats], Floats]


def _grid(numbers: pd.Series, edges: Sequence[float] | None) -> Grid:
    """All whole numbers that moves can reach, or a value of each band."""
    if edges is None:
        low, high = int(numbers.min()) - max(SURVIVED), int(numbers.max()) + max(SURVIVED)
        return Grid(
            values=np.arange(low, high + 1, dtype=float), codes=lambda x: (x - low).astype(int)
        )
    cuts = np.array(edges)
    return Grid(
        values=np.concatenate([cuts[:1] - 1, cuts]) if len(cuts) else np.zeros(1),
        codes=lambda x: np.searchsorted(cuts, x, side="right"),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Tabulated:
    """A network of two moving numbers and few words: what it says of every cell is looked up."""

    encode: Encoding
    raw: Callable[[Tensor], Floats]
    moving: Sequence[str]
    grids: Sequence[Grid]

    def score(self, x: pd.DataFrame) -> Floats:
        """Log-odds of the second class: (N,)."""
        words, first, second = self._codes(x)
        found: Floats = self._table[words @ self._strides, first, second]
        return found

    def contributions(self, x: pd.DataFrame, references: Sequence[pd.DataFrame]) -> Floats:
        """Shapley values of the columns against each of D references: (D, N, m)."""
        words, first, second = self._codes(x)
        others = [self._codes(each) for each in references]
        names = [*self.moving, *self.encode.labels]
        found = np.empty((len(references), len(x), len(names)))
        keys = words @ self._strides
        for key in np.unique(keys):
            rows = np.flatnonzero(keys == key)
            a, at = np.unique(first[rows], return_inverse=True)
            b, to = np.unique(second[rows], return_inverse=True)
            for place, (theirs, *reference) in enumerate(others):
                phi = self._of_words(words[rows[0]], a, b, theirs, *reference)
                found[place, rows] = phi[at, to]
        return found[..., [names.index(str(name)) for name in x]]

    def _of_words(
        self, own: Floats, a: Floats, b: Floats, words: Floats, first: Floats, second: Floats
    ) -> Floats:
        """Shapley values of cells of these words and all pairs of a and b: (|a|, |b|, m)."""
        coalitions = every_coalition(2 + len(own))
        members, weights = coalitions.members.numpy(), coalitions.weights.numpy()
        table, total = self._table, np.zeros((len(a), len(b), 2 + len(own)))
        for mine in product((False, True), repeat=2):
            chosen = (members[:, 0] == mine[0]) & (members[:, 1] == mine[1])
            mixed = np.where(members[chosen, None, 2:], own, words) @ self._strides  # (K, R)
            at = a if mine[0] else first[:, None]  # (|a|,) or (R, 1)
            to = b if mine[1] else second[:, None]
            said = table[mixed[..., None, None], at[..., :, None], to[..., None, :]].mean(1)
            total += np.einsum("kab,km->abm", said, weights[chosen])
        return total

    def _codes(self, x: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
        labels = self.encode.labels.items()
        words = [pd.Index(own).get_indexer(pd.Index(x[name].astype(str))) for name, own in labels]
        moved = [
            grid.codes(x[name].to_numpy(dtype=float))
            for name, grid in zip(self.moving, self.grids, strict=True)
        ]
        return np.stack(words, 1), moved[0], moved[1]

    @cached_property
    def _strides(self) -> Floats:
        sizes = [len(own) for own in self.encode.labels.values()]
        return np.concatenate([[1], np.cumprod(sizes[:-1])]).astype(int)

    @cached_property
    def _table(self) -> Floats:
        """What the network says of each cell: (words, values of the first, of the second)."""
        labels = list(self.encode.labels.values())
        count = int(np.prod([len(own) for own in labels]))
        pairs = np.array(list(product(*(grid.values for grid in self.grids))))
        scaled = [self.encode.scaled(name, pairs[:, at]) for at, name in enumerate(self.moving)]
        numbers = torch.from_numpy(np.stack(scaled, 1).astype(np.float32))
        found = np.empty((count, *(len(grid.values) for grid in self.grids)), dtype=np.float32)
        for cell in range(count):
            ones = [cell // stride % len(own) for stride, own in
                    zip(self._strides, labels, strict=True)]  # fmt: skip
            starts = np.cumsum([0, *(len(own) for own in labels[:-1])])
            words = torch.zeros(self.encode.columns - len(self.moving))
            words[[int(start + one) for start, one in zip(starts, ones, strict=True)]] = 1
            rows = torch.cat([numbers, words.expand(len(numbers), -1)], 1)
            found[cell] = self.raw(rows).reshape(found.shape[1:])
        return found


# --- rows ---------------------------------------------------------------------------------------

Fit = Callable[[pd.DataFrame, Floats, "Case"], SpokenModel]


def _entry(label: str, **plan: Any) -> tuple[str, Fit, None]:
    return label, partial(trained, Plan(**plan)), None


NETWORKS: dict[str, tuple[str, Fit, None]] = {
    "network": _entry("network"),
    "network-ramp": _entry("network, ramp", thickness=0.1),
    "network-bands": _entry("network on bands", bands=True),
    "network-bands-ramp": _entry("network on bands, ramp", bands=True, thickness=0.1),
    "separate": _entry("network on bands, what moves apart", bands=True, separate=True),
    "separate-ramp": _entry(
        "network on bands, what moves apart, ramp", bands=True, separate=True, thickness=0.1
    ),
}
"""Label, how it is fitted, and that it needs no other package, as `reproduction.reasons` asks."""
