"""What an audit finds, as typed records: `audit.json`, the page and `decisions.csv` show the same.

A new column of the table of decisions is one field of `Decision`, with the label it has there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import Field, TypeAdapter

from r2et.auditing.settings import AuditSettings
from r2et.evaluation.decisions import DecisionDrawing

SCHEMA: Literal["r2et-audit/2"] = "r2et-audit/2"

T = TypeVar("T")
Verdict = Literal["certified", "broken", "undetermined"]
VERDICTS: tuple[Verdict, ...] = ("certified", "broken", "undetermined")


def verdict(certified: float, broken: float, tolerance: float) -> Verdict:
    """Whether a decision's reasons are proved to stay within a length, shown to change, or neither.

    >>> verdict(0.2, 0.3, 0.1), verdict(0.05, 0.3, 0.1), verdict(0.05, 0.1, 0.1)
    ('certified', 'undetermined', 'broken')
    """
    if certified >= tolerance:
        return "certified"
    return "broken" if broken <= tolerance else "undetermined"


@dataclass(frozen=True, kw_only=True)
class Reason:
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
    reasons: tuple[Reason, ...]
    input: tuple[float, ...] | None


def features_of(reasons: Sequence[Reason]) -> list[str]:
    """What the reasons are called."""
    return [each.feature for each in reasons]


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
    precisions are the shares of the reasons kept at each of the audit's lengths. `weakest` are the
    shown feature and the other one that limit the proof; `left` and `entered` the features that the
    change of `broken_radius` exchanges. A counter-example and a drawing are there of decisions told
    in full only.
    """

    row: Annotated[int, Label("row")]
    id: Annotated[str | None, Label("id")]
    model: Annotated[int, Label("model")]
    label: Annotated[str | None, Label("label")]
    prediction: Annotated[str, Label("prediction")]
    probability: Annotated[float, Label("probability")]
    verdict: Annotated[Verdict, Label("verdict")]
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
    reasons: Annotated[tuple[Reason, ...], Label("reasons", cell=features_of)]
    slopes: Annotated[tuple[float, ...], Label("slopes", cell=list)]
    left: Annotated[tuple[str, ...], Label("left", cell=list)] = ()
    entered: Annotated[tuple[str, ...], Label("entered", cell=list)] = ()
    tie: Annotated[bool, Label("tie")] = False
    checked: Annotated[bool, Label("checked")] = False
    off_data_share: Annotated[float | None, Label("off-data share")] = None
    thickness: Annotated[float | None, Label("thickness")] = None
    dffot: Annotated[float | None, Label("dffot")] = None
    comp: Annotated[float | None, Label("comp")] = None
    suff: Annotated[float | None, Label("suff")] = None
    flippable: Annotated[float | None, Label("flippable")] = None
    exchange_agreement: Annotated[float | None, Label("exchange agreement")] = None
    exchange_size: Annotated[float | None, Label("exchange size")] = None
    log_odds: Annotated[tuple[float, ...], Label("log-odds of", over="classes")]
    subgroup: Annotated[dict[str, str], Label("subgroup", over="subgroups")]
    counter_example: CounterExample | None = None
    drawing: DecisionDrawing | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table of decisions: its label, the type of its cells, and how one is found.

    Cells of the type `list` are written as JSON.
    """

    label: str
    kind: type
    value: Callable[[Decision], Any]


def table_columns(
    epsilons: Sequence[float], classes: Sequence[str], subgroups: Sequence[str]
) -> list[Column]:
    """The columns of a table of decisions, in their order."""
    entries: dict[str, Sequence[Any]] = {
        "epsilons": epsilons,
        "classes": classes,
        "subgroups": subgroups,
    }
    found = []
    for name, kind in get_type_hints(Decision, include_extras=True).items():
        plain, *labels = get_args(kind)
        for label in (each for each in labels if isinstance(each, Label)):
            if label.over:
                of: type = str if label.over == "subgroups" else float
                found += [
                    Column(label=f"{label.text} {entry}", kind=of, value=_entry(name, at, entry))
                    for at, entry in enumerate(entries[label.over])
                ]
            else:
                of = list if label.cell else _plain(plain)
                found.append(Column(label=label.text, kind=of, value=_value(name, label.cell)))
    return found


def _value(name: str, cell: Callable[[Any], Any] | None) -> Callable[[Decision], Any]:
    def value(decision: Decision) -> Any:
        found = getattr(decision, name)
        return found if cell is None else cell(found)

    return value


def _entry(name: str, at: int, key: Any) -> Callable[[Decision], Any]:
    def value(decision: Decision) -> Any:
        found = getattr(decision, name)
        if found is None:
            return None
        return found[key] if isinstance(found, Mapping) else found[at]

    return value


def _plain(kind: Any) -> type:
    """The type of a cell: that of a value where it is known."""
    return next((each for each in (int, float, bool) if kind in (each, each | None)), str)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Means over all decisions at each length: of the reasons kept, of the decisions that stand.

    None where nobody attacked.
    """

    epsilons: tuple[float, ...]
    certified_precision: tuple[float, ...]
    attacked_precision: tuple[float, ...] | None
    certified_share: tuple[float, ...]
    unbroken_share: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Thickness:
    """How clearly the reasons lead: in the mean, and where they lead least."""

    mean: float
    least: float


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Mean measures of how much the answer depends on the reasons."""

    dffot: float
    comp: float | None
    suff: float | None


@dataclass(frozen=True, kw_only=True)
class Swap:
    """How often one reason gave way to another feature."""

    left: str
    entered: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Subgroup:
    """The verdicts on the decisions of a subgroup, and the reasons kept at the tolerance."""

    group: str
    value: str
    rows: int
    certified: int
    broken: int
    undetermined: int
    certified_precision: float
    attacked_precision: float | None


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was found about a model before the audit, and how it was repaired, None if it was not.

    Each is a sentence without its stop.
    """

    problem: str
    effect: str
    repair: str | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was found about one model as a whole; None stands for what was not measured.

    A median certified radius of None is beyond all bounds.
    """

    name: str
    auc: float | None
    accuracy: float | None
    counts: dict[str, int]
    curve: Curve
    median_certified_radius: float | None
    median_broken_radius: float | None
    thickness: Thickness | None
    faithfulness: Faithfulness | None
    distinct_sets: int
    ties: int
    flippable: float | None
    off_data_share: float | None
    exchange_agreement: float | None
    exchange_size: float | None
    without_exchanges: int | None
    swaps: tuple[Swap, ...]
    subgroups: tuple[Subgroup, ...]
    preflight: tuple[Preflight, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AuditedFeature:
    """A feature of the audited data."""

    name: str
    unit: str
    group: str
    immutable: bool


@dataclass(frozen=True, kw_only=True)
class AuditedData:
    """What was audited: `kind` is "picture" or "network", None for a table.

    `unit_of_eps` says what a length of 1 is, `immutable` which attributes never change.
    """

    name: str
    rows: int
    features: tuple[AuditedFeature, ...]
    classes: tuple[str, ...]
    target: str | None
    kind: str | None
    immutable: tuple[str, ...]
    unit_of_eps: str


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """Twelve hexadecimal digits of each model by its name, of the data and of the settings."""

    model: dict[str, str]
    data: str
    settings: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found, all that `audit.json` holds, and the folder where its files are.

    `models` tells of each model as a whole. `decisions` are those told in full: all of them, or the
    first of each verdict.
    """

    schema: Literal["r2et-audit/2"] = SCHEMA
    created: str
    version: str
    hashes: Hashes
    settings: AuditSettings
    data: AuditedData
    models: tuple[Summary, ...]
    decisions: tuple[Decision, ...]
    folder: Annotated[Path | None, Field(exclude=True)] = None

    @property
    def counts(self) -> dict[str, int]:
        """How many decisions of the first model got each verdict."""
        return dict(self.models[0].counts)

    @property
    def page(self) -> Path | None:
        """Where its page is, None without a folder."""
        return None if self.folder is None else self.folder / "audit.html"

    def to_json(self) -> dict[str, Any]:
        """The content of `audit.json`."""
        found: dict[str, Any] = to_json(self)
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Audit":
        """The audit that an `audit.json` holds."""
        if content.get("schema") != SCHEMA:
            raise ValueError(
                f"expected an audit of schema {SCHEMA}, got {content.get('schema')!r}."
            )
        return from_json(cls, content)


def to_json(record: Any) -> Any:
    """A record as values of JSON."""
    kind: Any = type(record)
    return _adapter(kind).dump_python(record, mode="json")


def from_json(kind: type[T], value: Any) -> T:
    """The record of a kind that values of JSON state; a ValueError if they state none."""
    any_kind: Any = kind
    found: T = _adapter(any_kind).validate_python(value)
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
