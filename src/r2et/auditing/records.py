"""What an audit finds, as typed records: `audit.json` and the page show the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from r2et.auditing.decisions import Decision
from r2et.auditing.parts import Hashes, Preflight, Swap
from r2et.auditing.settings import AuditSettings
from r2et.core.records import from_json, to_json

EQUAL = 1e-9  # means of the same shares
SCHEMA: Literal["r2et-audit/2"] = "r2et-audit/2"


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

    @property
    def is_exact(self) -> bool:
        """Whether all that is not proved to stay was shown to go, at every length."""
        left = self.attacked_precision
        return left is not None and all(
            most - least <= EQUAL
            for least, most in zip(self.certified_precision, left, strict=True)
        )


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
class Summary:
    """What was found about one model as a whole; None stands for what was not measured.

    `decided` counts what decided, or why a decision is open; `smallest` are the broken decisions
    whose shortest change is proved to be that. A median certified radius of None is beyond all
    bounds.
    """

    name: str
    auc: float | None
    accuracy: float | None
    counts: dict[str, int]
    decided: dict[str, int]
    smallest: int
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
