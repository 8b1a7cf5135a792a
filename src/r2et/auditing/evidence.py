"""A model as it is audited, and what was found out about its decisions, as tensors."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from r2et.certification.replay import RecordedModel
from r2et.core.reasons import Decided
from r2et.explainers import log_odds, logits_of
from r2et.preflight.kinds import Finding


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model as it is audited: repaired where it had to be, in float64, at prediction time."""

    name: str
    model: nn.Module
    digest: str
    classes: tuple[str, ...]
    findings: tuple[Finding, ...]
    """What was found before the audit, and repaired where it was repairable."""
    recorded: RecordedModel | None
    """What it runs, as it is deployed and in float64, None if no certificate can be given."""
    uncertified: str | None
    """Why none can."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next((each.device for each in self.model.parameters()), torch.device("cpu"))

    def logits(self, x: Tensor) -> Tensor:
        """What it answers for inputs, wherever they are: (B, C)."""
        with torch.no_grad():
            return logits_of(self.model, x.to(self.device))


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained:
    """Inputs, the class y explained of each, logits (B, C), and signed slopes (B, n)."""

    x: Tensor
    y: Tensor
    logits: Tensor
    slopes: Tensor
    ranked: Tensor

    @property
    def predicted(self) -> Tensor:
        """The class that the model predicts: (B,)."""
        return self.logits.argmax(-1)

    @cached_property
    def probability(self) -> Tensor:
        """Of the class that is explained: (B,)."""
        return torch.sigmoid(log_odds(self.logits, self.y))


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What was found out about B decisions, for each of E lengths where it depends on them."""

    clean: Explained
    tie: Tensor
    certified: Tensor
    """Radius within which the reasons are proved to stay, infinity if everywhere: (B,)."""
    order: Tensor
    """The same for their order, NaN where it was not sought: (B,)."""
    certified_precision: Tensor
    """(B, E)."""
    weakest: Tensor
    """The shown feature and the one that may replace it: (B, 2)."""
    broken: Tensor
    """Length of the shortest change found that replaces a reason, infinity if none was: (B,)."""
    attacked_precision: Tensor | None
    """(B, E), None without an attack."""
    broken_by: Explained
    """The inputs of those changes, the clean ones where there is none."""
    decided: tuple[Decided, ...]
    """(B,)."""
    worst: Explained
    """The most damaging inputs found within the tolerance, where decisions are drawn."""
    measures: dict[str, Tensor]
    """By the fields of `Decision`; costly ones of the first decisions of the audit only."""
