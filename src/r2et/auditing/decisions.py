"""What is known of one decision, field by field, as `audit.json` and `decisions.csv` show it.

A new column of the table of decisions is one field of `Decision`: with the label of its column and,
if it is measured, the function that does so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

from r2et.attacks.pgd import flippable
from r2et.auditing.tables import Columns
from r2et.core.reasons import VERDICTS as VERDICTS
from r2et.core.reasons import Decided, Verdict
from r2et.core.rng import stream
from r2et.evaluation.decisions import DecisionDrawing
from r2et.explainers import Explainer, input_gradient
from r2et.metrics.exchanges import Agreement, exchange_agreement
from r2et.metrics.faithfulness import comp, dffot, shares_of, suff
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.thickness import thickness
from r2et.perturbations import NormBall

AROUND = 8  # neighbours, and points on the way to each, of which thickness is the mean


def verdict(certified: float, broken: float, tolerance: float) -> Verdict:
    """Whether a decision's reasons are proved to stay within a length, shown to change, or neither.

    >>> verdict(0.2, 0.3, 0.1), verdict(0.05, 0.3, 0.1), verdict(0.05, 0.1, 0.1)
    ('certified', 'undetermined', 'broken')
    """
    if certified >= tolerance:
        return "certified"
    return "broken" if broken <= tolerance else "undetermined"


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A feature that is shown, its value in words, and its share of all slopes.

    Raising it speaks "for" or "against" the class that is predicted.
    """

    feature: str
    value: str
    score: float
    direction: Literal["for", "against"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of an attribute, in words."""

    feature: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class CounterExample:
    """The shortest change found that replaces a reason and keeps the prediction.

    `changes` are the largest of the `changed` ones, `input` is where they lead, to the last digit.
    """

    changes: tuple[Change, ...]
    changed: int
    probability: float
    reasons: tuple[Slope, ...]
    input: tuple[float, ...] | None


def features_of(reasons: Sequence[Slope]) -> list[str]:
    """What the features are called."""
    return [each.feature for each in reasons]


# --- measures -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureInput:
    """Decisions of a model to be measured: inputs x (B, d), classes y (B,), slopes (B, n).

    `perturbation` is what an input may become within the tolerance; `explain` gives reasons.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    slopes: Tensor
    columns: Columns
    perturbation: NormBall
    explain: Explainer
    k: int
    seed: int

    def first(self, count: int) -> "MeasureInput":
        """The first decisions alone."""
        return replace(self, x=self.x[:count], y=self.y[:count], slopes=self.slopes[:count])

    @cached_property
    def exchanges(self) -> Agreement | None:
        """What slopes say about exchanges of categories, those that are held fixed included."""
        groups = self.columns.exchangeable
        if not groups:
            return None
        scale, x = self.columns.scale, self.x
        off, on = (scale.apply(torch.full_like(x[0], value)) for value in (0.0, 1.0))
        return exchange_agreement(self.model, x, self.y, groups, off=off, on=on)


def _off_data_share(rows: MeasureInput) -> Tensor | None:
    if not rows.columns.one_hot:
        return None
    with torch.no_grad():
        margins = input_gradient(rows.model, rows.x, rows.y, "margin")
    return off_data_share(margins, rows.columns.one_hot)


def _thickness(rows: MeasureInput) -> Tensor:
    region, x = rows.perturbation, rows.x
    moves = region.offsets(x[0], AROUND, stream(rows.seed, "thickness"))
    return thickness(
        rows.model,
        x,
        rows.y,
        torch.stack([region.confine(x + move, x) for move in moves]),
        explain=rows.explain,
        k=rows.k,
        variant="probability",
        points=AROUND,
    ).value


def _faithful(measure: Callable[..., Tensor], rows: MeasureInput) -> Tensor:
    saliency, columns = rows.slopes.abs(), rows.columns
    return measure(
        rows.model,
        rows.x,
        rows.y,
        saliency,
        baseline=columns.baseline.to(rows.x),
        sizes=None if columns.tabular else shares_of(saliency.shape[1]),
        groups=columns.counts or None,
    )


_dffot, _comp, _suff = (partial(_faithful, measure) for measure in (dffot, comp, suff))


def _flippable(rows: MeasureInput) -> Tensor:
    return flippable(rows.model, rows.x, rows.y, perturbation=rows.perturbation).double()


def _exchange_agreement(rows: MeasureInput) -> Tensor | None:
    return None if rows.exchanges is None else rows.exchanges.order


def _exchange_size(rows: MeasureInput) -> Tensor | None:
    return None if rows.exchanges is None else rows.exchanges.size


@dataclass(frozen=True)
class Measure:
    """How a field is measured, (B,), None where the data have nothing to be measured.

    A `costly` one is taken of the first decisions of an audit only.
    """

    of: Callable[[MeasureInput], Tensor | None]
    costly: bool = True


# --- the record ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Label:
    """What a field is called as a column; or as one `over` each of the audit's entries of a name.

    `cell` says what of its value a cell shows, all of it unless given.
    """

    text: str
    over: Literal["", "epsilons", "classes", "subgroups"] = ""
    cell: Callable[[Any], list[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was found out about one decision of one model.

    None stands for what was not measured, and a certified radius that is `unbounded`. The two
    precisions are the shares of the reasons kept at each of the audit's lengths. `decided` says
    what decided the verdict, or why it is open; a `smallest` broken radius is proved to be that.
    `weakest` are the shown feature and the other one that limit the proof; `left` and `entered` the
    features that the change of `broken_radius` exchanges. A counter-example and a drawing are there
    of decisions told in full only.
    """

    row: Annotated[int, Label("row")]
    id: Annotated[str | None, Label("id")]
    model: Annotated[int, Label("model")]
    label: Annotated[str | None, Label("label")]
    prediction: Annotated[str, Label("prediction")]
    probability: Annotated[float, Label("probability")]
    verdict: Annotated[Verdict, Label("verdict")]
    decided: Annotated[Decided, Label("decided by")]
    certified_radius: Annotated[float | None, Label("certified radius")]
    unbounded: Annotated[bool, Label("unbounded")]
    certified_order_radius: Annotated[float | None, Label("certified order radius")]
    broken_radius: Annotated[float | None, Label("broken radius")]
    certified_precision: Annotated[
        tuple[float, ...], Label("certified precision at", over="epsilons")
    ]
    attacked_precision: Annotated[
        tuple[float, ...] | None, Label("attacked precision at", over="epsilons")
    ]
    weakest: Annotated[tuple[str, str], Label("weakest", cell=list)]
    reasons: Annotated[tuple[Slope, ...], Label("reasons", cell=features_of)]
    slopes: Annotated[tuple[float, ...], Label("slopes", cell=list)]
    left: Annotated[tuple[str, ...], Label("left", cell=list)] = ()
    entered: Annotated[tuple[str, ...], Label("entered", cell=list)] = ()
    smallest: Annotated[bool, Label("smallest change proved")] = False
    tie: Annotated[bool, Label("tie")] = False
    checked: Annotated[bool, Label("checked")] = False
    off_data_share: Annotated[
        float | None, Label("off-data share"), Measure(_off_data_share, costly=False)
    ] = None
    thickness: Annotated[float | None, Label("thickness"), Measure(_thickness)] = None
    dffot: Annotated[float | None, Label("dffot"), Measure(_dffot)] = None
    comp: Annotated[float | None, Label("comp"), Measure(_comp)] = None
    suff: Annotated[float | None, Label("suff"), Measure(_suff)] = None
    flippable: Annotated[float | None, Label("flippable"), Measure(_flippable)] = None
    exchange_agreement: Annotated[
        float | None, Label("exchange agreement"), Measure(_exchange_agreement)
    ] = None
    exchange_size: Annotated[float | None, Label("exchange size"), Measure(_exchange_size)] = None
    log_odds: Annotated[tuple[float, ...], Label("log-odds of", over="classes")]
    subgroup: Annotated[dict[str, str], Label("subgroup", over="subgroups")]
    counter_example: CounterExample | None = None
    drawing: DecisionDrawing | None = None


MEASURES: dict[str, Measure] = {
    name: each
    for name, kind in get_type_hints(Decision, include_extras=True).items()
    for each in get_args(kind)
    if isinstance(each, Measure)
}
"""How each field of `Decision` that is measured is."""


def measured(rows: MeasureInput, costly: int) -> dict[str, Tensor]:
    """What is measured of decisions, of the first `costly` ones where that takes long."""
    first = rows.first(costly)
    found = {
        name: each.of(first if each.costly else rows)
        for name, each in MEASURES.items()
        if costly or not each.costly
    }
    return {name: values for name, values in found.items() if values is not None}
