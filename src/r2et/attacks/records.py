"""What an attacker may spend, and what comes back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from r2et.perturbations import UNSAID


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What an attacker may spend: steps of a given length within a radius.

    The radius is that of the threat unless given.
    """

    radius: float = UNSAID
    step: float = 1e-3
    steps: int = 1000

    def __post_init__(self) -> None:
        """Refuse a budget that allows nothing."""
        if not (0 <= self.radius < float("inf") and self.step > 0 and self.steps >= 0):
            raise ValueError(
                f"a budget needs radius >= 0, step > 0 and steps >= 0, got {self.radius}, "
                f"{self.step}, {self.steps}."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackResult:
    """Attacked inputs with what they did to the explanations, one row for each example."""

    x: Tensor
    """The most damaging input found that keeps the prediction: like the clean x."""
    before: Tensor
    """Explanation of the clean input: (B, n)."""
    after: Tensor
    """Explanation of the attacked input: (B, n)."""
    precision: Tensor
    """P@k between the two: (B,)."""
    history: Tensor
    """Lowest P@k so far at each recorded step: (T, B)."""
    steps: Tensor
    """The step numbers of `history`: (T,)."""
    first_flip: Tensor
    """First recorded step at which a top-k feature was gone, last step + 1 if none: (B,)."""
    members: Mapping[str, Tensor] = field(default_factory=dict)
    """The lowest P@k that each search of an ensemble reached by itself: (B,) each."""
    last: Tensor | None = None
    """Where a walk ended, which may have lost the prediction: like the clean x. None of others."""

    @property
    def flipped(self) -> Tensor:
        """Whether any top-k feature was displaced: (B,) booleans."""
        return self.precision < 1


Attack = Callable[[nn.Module, Tensor, Tensor], AttackResult]


def join(parts: list[AttackResult]) -> AttackResult:
    """The results of several batches of examples as one."""
    return AttackResult(
        x=torch.cat([part.x for part in parts]),
        before=torch.cat([part.before for part in parts]),
        after=torch.cat([part.after for part in parts]),
        precision=torch.cat([part.precision for part in parts]),
        history=torch.cat([part.history for part in parts], dim=1),
        steps=parts[0].steps,
        first_flip=torch.cat([part.first_flip for part in parts]),
        members={
            name: torch.cat([part.members[name] for part in parts]) for name in parts[0].members
        },
        last=_joined([part.last for part in parts if part.last is not None], len(parts)),
    )


def _joined(ends: list[Tensor], parts: int) -> Tensor | None:
    return torch.cat(ends) if len(ends) == parts else None
