"""Pictures, networks and pairs of them as rows of an audit."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from r2et.attacks.ensemble import EnsembleBudget
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Chunk, Columns, check_labels
from r2et.core.inputs import Inputs, Joined
from r2et.core.limits import check_bytes
from r2et.data.dataset import Dataset, RenderSpec, Split
from r2et.data.features import Feature, Scale
from r2et.data.structure import ItemStructure

SHOWN = 50  # reasons, where there are many features
LENGTHS = (0.004, 0.01, 0.02)  # of the range of a picture: about 1, 2.5 and 5 of 255 levels
BUDGET = EnsembleBudget(
    rounds=1, starts=2, steps=20, points=4, moves=4, pairs=0, even=2, itself=True
)
MEASURED = 100  # decisions that get the measures that cost most
PER_NUMBER, PER_FEATURE = 64, 600  # bytes of memory for what is known of each
NUMBERS_AT_ONCE = 2**18  # of the examples of a chunk


class Shaped(nn.Module):
    """Flat examples in their own shape: (B, size) -> (B, *shape)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers in their places."""
        return x.reshape(-1, *self.shape)

    def extra_repr(self) -> str:
        """Which shape."""
        return str(self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemSource:
    """Pictures, symmetric matrices or pairs of them, as a model takes them, with their classes.

    `x` is a batch (B, C, H, W) or (B, m, m), or several batches for a model of several arguments;
    `inputs` says what they are, as `Inputs.of` unless given, and `packed` that the model takes them
    packed already, (B, size). Explained is the `piece` of that place, the `channels` of a picture
    together; those in `changed` may change, all unless given, within `bounds`. `y` holds class
    numbers, `classes` their names in the order of the logits, `nodes` the names of a network's.
    """

    x: Tensor | Sequence[Tensor]
    inputs: Inputs | None = None
    packed: bool = False
    name: str = "items"
    y: Tensor | None = None
    classes: tuple[str, ...] | None = None
    target: str | None = None
    ids: Sequence[str] | None = None
    rows: Sequence[int] | None = None
    piece: int = 0
    changed: Sequence[int] | None = None
    channels: bool = True
    bounds: tuple[float, float] | None = None
    nodes: tuple[str, ...] = ()
    shift: Tensor | None = None
    """What was taken from the items before a model sees them: (size,)."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        count = len(self._packed)
        for what, values in (("y", self.y), ("ids", self.ids), ("rows", self.rows)):
            if values is not None and len(values) != count:
                raise ValueError(
                    f"{what} must hold one value for each of the {count} examples, got "
                    f"{len(values)}."
                )
        if self.classes is not None and self.y is not None:
            check_labels(self.y, self.classes)
        _ = self.columns

    @classmethod
    def of_split(cls, split: Split) -> "ItemSource":
        """The test part of a data set, as the models of this package take it."""
        dataset, test = split.dataset, split.test
        structure = dataset.items
        pairs = test.rows.ndim > 1
        numbers = test.rows.tolist()
        return cls(
            x=test.x.flatten(1),
            inputs=structure.inputs,
            packed=structure.piece.symmetric and not pairs,
            name=dataset.name,
            y=test.y,
            classes=split.classes,
            target=dataset.target,
            ids=[" and ".join(map(str, each)) for each in numbers] if pairs else None,
            rows=None if pairs else numbers,
            channels=structure.explained_channels,
            bounds=structure.bounds,
            nodes=structure.nodes,
            shift=split.scale.shift.flatten(),
            notes=(f"Stand-in data: {dataset.stand_in}",) if dataset.stand_in else (),
        )

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> "ItemSource":
        """All items of a data set, one by one, as a model of the user's own takes them."""
        structure = dataset.items
        return cls(
            x=dataset.x.flatten(1),
            inputs=Inputs(pieces=(structure.piece,)),
            name=dataset.name,
            y=dataset.y,
            classes=dataset.classes,
            target=dataset.target,
            channels=structure.explained_channels,
            bounds=structure.bounds,
            nodes=structure.nodes,
            notes=(f"Stand-in data: {dataset.stand_in}",) if dataset.stand_in else (),
        )

    @cached_property
    def _inputs(self) -> Inputs:
        if self.inputs is not None:
            return self.inputs
        return Inputs.of([self.x] if isinstance(self.x, Tensor) else self.x)

    @cached_property
    def _packed(self) -> Tensor:
        inputs = self._inputs
        parts = [self.x] if isinstance(self.x, Tensor) else list(self.x)
        whole = parts[0]
        if len(parts) > 1 or whole.ndim != 2 or whole.shape[1] != inputs.size:
            whole = inputs.pack(*parts)
        return whole.detach().cpu()

    def prepared(self, model: nn.Module) -> nn.Module:
        """The model as one of packed examples."""
        if self.packed or isinstance(model, Joined):
            return model
        [first, *more] = self._inputs.pieces
        if more or first.symmetric:
            return Joined(model, self._inputs)
        # Layers in a row can be followed by certificates.
        layers = model if type(model) is nn.Sequential else [model]
        return nn.Sequential(Shaped(first.shape), *layers)

    @cached_property
    def columns(self) -> Columns:
        """What the inputs mean, and what is explained."""
        inputs, x = self._inputs, self._packed
        check_bytes(PER_NUMBER * inputs.size, f"{self.name}, {inputs.size:,} numbers each,")
        counts = inputs.explained((self.piece,), channels=self.channels)
        features = max(counts) + 1
        check_bytes(PER_FEATURE * features, f"{self.name}, {features:,} features,")
        shift = torch.zeros(inputs.size) if self.shift is None else self.shift
        shift = shift.double().expand(inputs.size)
        free = inputs.free(range(len(inputs.pieces)) if self.changed is None else self.changed)
        if not free.any():
            raise ValueError("no piece may change, so that no reason could: name one in changed.")
        low, high = self.bounds or (0.0, 0.0)
        return Columns(
            features=tuple(
                Feature(name=name, group=name, kind="numeric", low=0.0, high=1.0)
                for name in map(self._structure.feature_name, range(features))
            ),
            scale=Scale(fill=torch.zeros_like(shift), shift=shift, width=torch.ones_like(shift)),
            reach=free.double(),
            baseline=torch.zeros(inputs.size, dtype=torch.float64),
            unit_of_eps=self._unit,
            counts=counts if counts != tuple(range(inputs.size)) else (),
            bounds=None if self.bounds is None else (low - shift, high - shift),
            render_spec=self._render_spec(x, shift),
        )

    @property
    def _unit(self) -> str:
        if self.bounds is None:
            return "1 in each number of the input, as it enters the model"
        low, high = self.bounds
        if len(self._inputs.pieces[self.piece].shape) != 3 or (low, high) != (0.0, 1.0):
            return f"1 in each number of the input, whose values lie in {low:g} to {high:g}"
        return "the whole way from black, 0, to white, 1; one level of 255 is about 0.004"

    def _render_spec(self, x: Tensor, shift: Tensor) -> RenderSpec:
        """How examples are drawn, the explained piece first, with those of the same shape."""
        pieces = self._inputs.pieces
        own = pieces[self.piece]
        alike = all(each == own for each in pieces) and self.piece == 0
        raw = x + shift.to(x)
        low, high = self.bounds or ((float(raw.min()), float(raw.max())) if len(x) else (0.0, 1.0))
        return RenderSpec(
            kind=self._structure.kind,
            piece=own,
            count=len(pieces) if alike else 1,
            low=low,
            high=high,
            name=self._structure.feature_name,
        )

    @cached_property
    def _structure(self) -> ItemStructure:
        """What is known of the explained piece."""
        return ItemStructure(
            piece=self._inputs.pieces[self.piece],
            nodes=self.nodes,
            explained_channels=self.channels,
        )

    @property
    def usual(self) -> AuditSettings:
        """What is asked of such decisions unless somebody asks otherwise."""
        features = len(self.columns.features)
        width = 0.1 if self.bounds is None else self.bounds[1] - self.bounds[0]
        if self.bounds is None and len(self._packed) > 1:
            # Of numbers without a range, five times the spread counts as one.
            spread = float(self._packed.double().std())
            width = 5 * spread if 0 < spread < math.inf else 1.0
        lengths = [float(f"{length * width:.2g}") for length in LENGTHS]
        return AuditSettings(
            k=max(1, min(SHOWN, features // 4)),
            tolerance=lengths[-1],
            epsilons=tuple(lengths),
            norm="linf",
            budget=BUDGET,
            radii="none",
            measured=MEASURED,
            chunk=max(1, min(256, NUMBERS_AT_ONCE // self._inputs.size)),
        )

    @property
    def subgroup_values(self) -> dict[str, list[str]]:
        """Nothing: such examples have no subgroups."""
        return {}

    @property
    def length(self) -> int:
        """How many examples there are."""
        return len(self._packed)

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of all examples and what is known of them."""
        found = hashlib.sha256()
        for chunk in self.chunks(64):
            found.update(chunk.digest.encode())
        return found.hexdigest()[:12]

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All examples in order, at most `size` at a time."""
        for first in range(0, self.length, size):
            numbers = range(first, min(first + size, self.length))
            yield Chunk(
                rows=numbers if self.rows is None else [int(self.rows[i]) for i in numbers],
                x=self._packed[first : first + size].double(),
                labels=[self._label(i) for i in numbers],
                ids=[None if self.ids is None else str(self.ids[i]) for i in numbers],
                subgroups=[{} for _ in numbers],
            )

    def _label(self, number: int) -> str | None:
        if self.y is None or math.isnan(float(self.y[number])):
            return None
        place = int(self.y[number])
        return str(place) if self.classes is None else self.classes[place]
