"""How long and how fast to train, and what every way of training does alike."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from r2et.core.rng import stream


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How long and how fast to train. `patience`: epochs without a better validation AUC."""

    epochs: int = 30
    batch: int = 1024
    learning_rate: float = 0.02
    schedule: str = "cosine"
    patience: int | None = None
    seed: int = 0
    checkpoint_every: int = 5
    augment: str = ""
    """How pictures are varied each time they are met, an entry of AUGMENTATIONS; none if empty."""

    ramp: float = 0.0
    """The share of all epochs in which penalties rise from nothing to their full weight."""

    def __post_init__(self) -> None:
        """Refuse settings under which nothing can be learnt."""
        if not 0 <= self.ramp <= 1:
            raise ValueError(f"ramp must be a share of the epochs in 0..1, got {self.ramp}.")
        if self.augment and self.augment not in AUGMENTATIONS:
            raise ValueError(
                f"augment must be one of {sorted(AUGMENTATIONS)} or empty, got {self.augment!r}."
            )
        if min(self.epochs, self.batch, self.checkpoint_every) < 1 or self.learning_rate <= 0:
            raise ValueError(
                "epochs, batch and checkpoint_every must be at least 1 and learning_rate positive, "
                f"got {self}."
            )
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least one epoch or None, got {self.patience}.")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {sorted(SCHEDULES)}, got {self.schedule!r}.")


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}


def mirrored(x: Tensor) -> Tensor:
    """Pictures (B, C, H, W), half of them left and right exchanged: like x."""
    chosen = torch.rand(len(x), device=x.device) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(-1), x)


def shifted(x: Tensor, most: int = 4) -> Tensor:
    """Pictures moved by at most `most` pixels each way, black where nothing was: like x."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (most,) * 4)
    down, right = torch.randint(0, 2 * most + 1, (2, len(x)), device=x.device)
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = right[:, None] + torch.arange(width, device=x.device)
    each = torch.arange(len(x), device=x.device)
    moved: Tensor = padded.movedim(1, -1)[
        each[:, None, None], rows[:, :, None], columns[:, None, :]
    ].movedim(-1, 1)
    return moved


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mirror": mirrored,
    "mirror-shift": lambda x: shifted(mirrored(x)),
}


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What happened in one epoch: mean loss parts and the validation AUC after it.

    Where an epoch is judged by another score, `valid_auc` holds that.
    """

    epoch: int
    parts: dict[str, float]
    valid_auc: float


def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch meets its rows: (count,)."""
    return torch.randperm(count, generator=stream(seed, "batches", str(epoch)))


def layer_seed(seed: int, epoch: int, process: int = 0) -> int:
    """What torch's stream is seeded with for an epoch: layers and methods draw from it."""
    return stream(seed, "layers", str(epoch), str(process)).initial_seed()


def rate_at(epochs: float, settings: FitSettings) -> float:
    """The learning rate after so many epochs, not necessarily whole ones."""
    return settings.learning_rate * SCHEDULES[settings.schedule](epochs / settings.epochs)


def risen_to(epochs: float, settings: FitSettings) -> float:
    """The share of their full weight that penalties have after so many epochs."""
    rising = settings.ramp * settings.epochs
    return 1.0 if epochs >= rising else epochs / rising


def check_weights(weights: Iterable[Tensor], epoch: int) -> None:
    """Refuse weights that an epoch, counted from zero, has left infinite or NaN."""
    if not all(bool(torch.isfinite(weight).all()) for weight in weights):
        raise ValueError(
            f"training diverged in epoch {epoch + 1}: the weights are no longer finite; lower "
            "the learning rate or the penalty weights."
        )


def _best(history: Sequence[EpochRecord]) -> float:
    return max((record.valid_auc for record in history), default=-math.inf)


def improves(
    record: EpochRecord,
    history: Sequence[EpochRecord],
    settings: FitSettings,
    floor: float | None = None,
) -> bool:
    """Whether an epoch's weights are to be kept, in place of those kept before.

    With patience only the best so far are. With a `floor` it is the last epoch whose validation AUC
    reaches it; as long as none has, the last one.
    """
    if floor is not None:
        return record.valid_auc >= floor or _best(history) < floor
    return settings.patience is None or record.valid_auc > _best(history)


def finished(history: Sequence[EpochRecord], settings: FitSettings) -> bool:
    """Whether the validation AUC has not improved for `patience` epochs."""
    if settings.patience is None or len(history) <= settings.patience:
        return False
    return _best(history[-settings.patience :]) <= _best(history[: -settings.patience])


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A trained model as seen on validation data, and the settings that made it."""

    settings: dict[str, Any]
    auc: float
    precision: float
    thickness: float | None = None
    """Share of pairs in order on the way to random neighbours, None where it was not measured."""
    overlap: float | None = None
    """Share of their top k that people of one predicted class have in common."""
