"""Single decisions before and after an attack: those about tables in words, others to be drawn."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from r2et.attacks.search import AttackResult
from r2et.core.ranking import order
from r2et.data.dataset import RenderSpec, Split
from r2et.explainers import log_odds
from r2et.perturbations import PerturbationSet

T = TypeVar("T")
When = Literal["before", "after"]

SHOWN_CHANGE = 0.005  # of a scaled feature; less is not worth a reader's attention


@dataclass(frozen=True, kw_only=True)
class Both(Generic[T]):
    """Something before and after an attack."""

    before: T
    after: T

    def at(self, when: When) -> T:
        """What it was "before", or is "after"."""
        return self.before if when == "before" else self.after


@dataclass(frozen=True, kw_only=True)
class FeatureShare:
    """A feature of the top k, and its share of all scores."""

    name: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """An attribute in words before and after an attack, and how far it was `moved`."""

    name: str
    before: str
    after: str
    moved: float


@dataclass(frozen=True, kw_only=True)
class AttackedDecision:
    """A decision about a row, or a pair of rows, and what an attack did to it.

    `probability` is that of the predicted class before and after.
    """

    row: int | tuple[int, int]
    predicted: str
    probability: tuple[float, float]
    cost: float
    precision: float


@dataclass(frozen=True, kw_only=True)
class TableDecision(AttackedDecision):
    """A decision about a row of a table in words, with the reasons `before` and `after`."""

    kind: ClassVar[str] = "table"
    actual: str
    values: tuple[Change, ...]
    before: tuple[FeatureShare, ...]
    after: tuple[FeatureShare, ...]


@dataclass(frozen=True, kw_only=True)
class DecisionDrawing(AttackedDecision):
    """A decision about pictures or networks with both explanations, to be drawn.

    `pieces` are the items of an example, `saliency` the scores of all features as shares of the
    largest of both; all as bytes of one number each, base64: `bytes_of`. `top` lists the k most
    salient features, first to last; `names` says what those of a network are called.
    """

    kind: str
    shape: tuple[int, ...]
    pieces: tuple[Both[str], ...]
    saliency: Both[str]
    top: Both[tuple[int, ...]]
    names: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class DrawnDecision(DecisionDrawing):
    """A drawing of a decision whose true class is known."""

    actual: str


DecisionRecord = TableDecision | DrawnDecision


def decision_records(
    model: nn.Module,
    split: Split,
    y: Tensor,
    attacked: AttackResult,
    perturbation: PerturbationSet,
    *,
    count: int,
    k: int,
) -> tuple[DecisionRecord, ...]:
    """The first decisions of the test part before and after an attack on all of them."""
    count = min(count, len(y))
    x, moved, y = split.test.x[:count].to(attacked.x), attacked.x[:count], y[:count]
    cost = perturbation.cost(moved, x)
    with torch.no_grad():
        was, now = (torch.sigmoid(log_odds(model(each), y)) for each in (x, moved))
    data, features = split.dataset, attacked.before.shape[-1]
    look = None if data.tabular else RenderSpec.of(data, features)
    names = [feature.name for feature in data.features] if data.tabular else []
    found: list[DecisionRecord] = []
    for i in range(count):
        row = split.test.rows[i].tolist()
        about = AttackedDecision(
            row=tuple(row) if isinstance(row, list) else row,
            predicted=split.classes[int(y[i])],
            probability=(float(was[i]), float(now[i])),
            cost=float(cost[i]),
            precision=float(attacked.precision[i]),
        )
        actual = split.classes[int(split.test.y[i])]
        before, after = attacked.before[i].cpu(), attacked.after[i].cpu()
        if look is None:
            decision: DecisionRecord = TableDecision(
                **vars(about),
                actual=actual,
                values=changes(split, x[i], moved[i]),
                before=reasons(names, before, k),
                after=reasons(names, after, k),
            )
        else:
            raw = [split.scale.undo(each[i].cpu()) for each in (x, moved)]
            decision = DrawnDecision(
                **vars(drawn(about, look, raw, [before, after], k)), actual=actual
            )
        found.append(decision)
    return tuple(found)


def changes(split: Split, x: Tensor, attacked: Tensor) -> tuple[Change, ...]:
    """Each attribute of a row in words before and after, and by how much it was moved."""
    dataset = split.dataset
    before, after = (dataset.describe(split.scale.undo(each.cpu())) for each in (x, attacked))
    moved = dict.fromkeys(dataset.group_names, 0.0)
    for feature, change in zip(dataset.features, (attacked - x).tolist(), strict=True):
        moved[feature.group] = math.hypot(moved[feature.group], change)
    return tuple(
        Change(
            name=group,
            before=before[group],
            after=after[group] if moved[group] >= SHOWN_CHANGE else before[group],
            moved=round(moved[group], 4),
        )
        for group in dataset.group_names
    )


def reasons(names: Sequence[str], saliency: Tensor, k: int) -> tuple[FeatureShare, ...]:
    """The top-k features of one explanation with their share of its total, first to last."""
    total = float(saliency.sum())
    return tuple(
        FeatureShare(name=names[number], share=float(saliency[number]) / total if total else 0.0)
        for number in order(saliency)[:k].tolist()
    )


def drawn(
    about: AttackedDecision,
    look: RenderSpec,
    examples: Sequence[Tensor],
    saliencies: Sequence[Tensor],
    k: int,
) -> DecisionDrawing:
    """A decision with its example and explanation before and after, to be drawn.

    `examples` are flat numbers in original units.
    """
    width = look.high - look.low or 1.0
    parts = [((each.flatten() - look.low) / width).chunk(look.count) for each in examples]
    largest = max(0.0, *(float(each.max()) for each in saliencies)) or 1.0
    top = [tuple(order(each)[:k].tolist()) for each in saliencies]
    named = sorted({*top[0], *top[1]}) if look.kind == "network" else []
    shares = [bytes_of(each / largest) for each in saliencies]
    return DecisionDrawing(
        **vars(about),
        kind=look.kind,
        shape=tuple(look.piece.shape),
        pieces=tuple(
            Both(before=bytes_of(was), after=bytes_of(now)) for was, now in zip(*parts, strict=True)
        ),
        saliency=Both(before=shares[0], after=shares[1]),
        top=Both(before=top[0], after=top[1]),
        names={str(each): look.name(each) for each in named},
    )


def bytes_of(shares: Tensor | Sequence[float]) -> str:
    """Numbers in [0, 1] as one byte each, 0 to 255, in base64."""
    values = torch.as_tensor(shares, dtype=torch.float64).clamp(0, 1)
    return base64.b64encode((values * 255).round().to(torch.uint8).numpy().tobytes()).decode()


def numbers_of(encoded: str) -> Tensor:
    """The numbers in [0, 1] that `bytes_of` wrote, to 1/255: (N,)."""
    return torch.frombuffer(bytearray(base64.b64decode(encoded)), dtype=torch.uint8) / 255
