"""What an audit of reasons finds, as its `audit.json` and `decisions.csv` show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from r2et.auditing.decisions import Label
from r2et.auditing.parts import Hashes, Preflight, Swap
from r2et.auditing.reason_settings import ReasonSettings
from r2et.core.reasons import By, Reason, Verdict
from r2et.core.records import from_json, to_json

SCHEMA: Literal["r2et-reasons/1"] = "r2et-reasons/1"


def _codes(reasons: Sequence[Reason]) -> list[str]:
    return [each.code for each in reasons]


def _attributes(reasons: Sequence[Reason]) -> list[str]:
    return [each.attribute for each in reasons]


def _values(reasons: Sequence[Reason]) -> list[str]:
    return [each.value for each in reasons]


def _usual(reasons: Sequence[Reason]) -> list[str]:
    return [each.usual for each in reasons]


def _contributions(reasons: Sequence[Reason]) -> list[float]:
    return [each.contribution for each in reasons]


def _shares(reasons: Sequence[Reason]) -> list[float]:
    return [each.share for each in reasons]


def _pairs(values: Mapping[str, float | str]) -> list[list[float | str]]:
    return [[name, value] for name, value in values.items()]


@dataclass(frozen=True, kw_only=True)
class ReasonedDecision:
    """What was found out about the reasons of one decision of one model.

    `by` says what decided the verdict. `core` are the reasons that stay in every move, `kept` the
    share of them that stays at least; None where nothing is known. `change` is the smallest change
    found that gives other reasons and keeps the decision, as a person would type it, `size` its
    share of what may change, `then` the reasons it gives. `moves` is how many moves there are, None
    if beyond counting. `protected` are those among the attributes of the reasons.
    """

    row: Annotated[int, Label("row")]
    id: Annotated[str | None, Label("id")]
    model: Annotated[int, Label("model")]
    label: Annotated[str | None, Label("label")]
    prediction: Annotated[str, Label("prediction")]
    probability: Annotated[float, Label("probability")]
    verdict: Annotated[Verdict, Label("verdict")]
    by: Annotated[By | None, Label("by")]
    reasons: Annotated[
        tuple[Reason, ...],
        Label("reasons", cell=_codes),
        Label("attributes", cell=_attributes),
        Label("values", cell=_values),
        Label("usual", cell=_usual),
        Label("contributions", cell=_contributions),
        Label("shares", cell=_shares),
    ]
    core: Annotated[tuple[str, ...] | None, Label("core", cell=list)]
    kept: Annotated[float | None, Label("kept")]
    change: Annotated[dict[str, float | str] | None, Label("change", cell=_pairs)]
    size: Annotated[float | None, Label("size of change")]
    then: Annotated[tuple[str, ...] | None, Label("reasons then", cell=list)]
    moves: Annotated[int | None, Label("moves")]
    protected: Annotated[tuple[str, ...], Label("protected", cell=list)]
    log_odds: Annotated[tuple[float, ...], Label("log-odds of", over="classes")]
    subgroup: Annotated[dict[str, str], Label("subgroup", over="subgroups")]
    words: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What the person has and what the change makes of it, in words, of decisions in full."""


@dataclass(frozen=True, kw_only=True)
class ReasonSubgroup:
    """The verdicts on the decisions of a subgroup.

    `low` and `high` are a 95 % interval (Wilson's) of the share broken; `difference` is that share
    less the one of all other decisions, within `least` and `most` (Newcombe's interval).
    """

    group: str
    value: str
    rows: int
    certified: int
    broken: int
    undetermined: int
    low: float
    high: float
    difference: float | None
    least: float | None
    most: float | None

    @property
    def stands_out(self) -> bool:
        """Whether it breaks more or less often than the others, beyond what chance does."""
        if self.least is None or self.most is None:
            return False
        return self.least > 0 or self.most < 0


@dataclass(frozen=True, kw_only=True)
class ReasonSummary:
    """What was found about the reasons of one model as a whole; None stands for what is not known.

    `kept` (S) is the mean of the least share of reasons that stays, `core` the mean number that
    stay in every move and `all_but_one` the share of decisions in which at least all but one do,
    of the decisions of which this is known (`known`). `overlap` (O) is what two people of one
    predicted class share, `overlap_of_all` any two people, `kappa` (S - O) / (1 - O). `within`
    counts the decisions broken by changes of each size in `sizes`.
    """

    name: str
    auc: float | None
    accuracy: float | None
    counts: dict[str, int]
    by: dict[str, int]
    passed_over: int
    known: int
    kept: float | None
    overlap: float | None
    overlap_of_all: float | None
    kappa: float | None
    core: float | None
    all_but_one: float | None
    distinct_sets: int
    median_size: float | None
    sizes: tuple[float, ...]
    within: tuple[int, ...]
    protected: dict[str, int]
    swaps: tuple[Swap, ...]
    subgroups: tuple[ReasonSubgroup, ...]
    preflight: tuple[Preflight, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReasonedData:
    """What was audited, and what its rows may become, in words."""

    name: str
    rows: int
    attributes: tuple[str, ...]
    classes: tuple[str, ...]
    target: str | None
    moves: tuple[str, ...]
    fixed: tuple[str, ...]
    reference: str


@dataclass(frozen=True, kw_only=True)
class ReasonAudit:
    """What an audit of reasons found, all that `audit.json` holds, and where its files are.

    `models` tells of each model as a whole; `decisions` are those told in full: all of them, or the
    first of each verdict.
    """

    schema: Literal["r2et-reasons/1"] = SCHEMA
    created: str
    version: str
    hashes: Hashes
    settings: ReasonSettings
    data: ReasonedData
    models: tuple[ReasonSummary, ...]
    decisions: tuple[ReasonedDecision, ...]
    folder: Annotated[Path | None, Field(exclude=True)] = None
    shown: Annotated[Any, Field(exclude=True)] = field(default=None, compare=False, repr=False)
    """What writes the page of an audit that is not kept in a folder."""

    @property
    def counts(self) -> dict[str, int]:
        """How many decisions of the first model got each verdict."""
        return dict(self.models[0].counts)

    @property
    def page(self) -> Path | None:
        """Where its page is: in its folder, or written now among temporary files."""
        if self.folder is not None:
            return self.folder / "audit.html"
        path: Path | None = None if self.shown is None else self.shown(self)
        return path

    def to_json(self) -> dict[str, Any]:
        """The content of `audit.json`."""
        found: dict[str, Any] = to_json(self)
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ReasonAudit":
        """The audit that an `audit.json` holds."""
        if content.get("schema") != SCHEMA:
            raise ValueError(
                f"expected an audit of schema {SCHEMA}, got {content.get('schema')!r}."
            )
        return from_json(cls, content)
