"""Training on Lightning Fabric: fit, resume, select."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from r2et.core.ranking import precision_at_k
from r2et.data.dataset import Part
from r2et.explainers import Explainer, check_inputs, predicted
from r2et.methods.method import Method
from r2et.metrics.statistics import auc
from r2et.training.checkpoint import restore, store, weights_of
from r2et.training.objective import Objective
from r2et.training.settings import (
    AUGMENTATIONS,
    Candidate,
    EpochRecord,
    FitSettings,
    check_weights,
    finished,
    improves,
    layer_seed,
    rate_at,
    risen_to,
    shuffled,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OnEpoch = Callable[[EpochRecord], None]


Score = Callable[[nn.Module], float]


def ignore(record: EpochRecord) -> None:
    """Show nothing."""


def fit(
    model: nn.Module,
    train: Part,
    valid: Part | Score,
    method: Method,
    settings: FitSettings,
    *,
    weights: Tensor | None = None,
    fabric: "Fabric | None" = None,
    checkpoint: Path | None = None,
    accept: Callable[[nn.Module], bool] | None = None,
    floor: float | None = None,
    on_epoch: OnEpoch = ignore,
) -> tuple[nn.Module, list[EpochRecord]]:
    """The model trained (a changed one if the method prepares it) and the record of each epoch.

    An epoch is judged by its AUC on the part `valid`, or by any score of a model, the higher the
    better, in its place. A row of `train` counts as often as its `weights` (N,) say, once unless
    given: only their ratios matter, and all must be positive.

    Training stops early after `patience` epochs without a better validation AUC, keeping the best
    epoch's weights, or at the first epoch whose model `accept` refuses, keeping the last accepted.
    With a `floor` the weights kept are those of the last epoch whose validation AUC reaches it, of
    the last of all if none does.
    With a `checkpoint` file an interrupted fit goes on where it was and ends at the same weights.
    """
    from lightning_fabric import Fabric

    if floor is not None and (checkpoint is not None or settings.patience is not None):
        raise ValueError(
            "a floor says which epoch is kept, got a checkpoint or patience beside it: leave out "
            "one of them."
        )

    fabric = fabric or Fabric(accelerator="auto", devices=1)
    home = next(model.parameters()).device
    objective = Objective(model, method)
    network = objective.model
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.learning_rate, weight_decay=method.weight_decay
    )
    check_inputs(network, train.x.to(home), train.y.to(home))
    check_row_weights(weights, len(train.y))
    wrapped, optimizer = fabric.setup(_InParts(objective), optimizer)
    x, y = train.x.to(fabric.device), train.y.to(fabric.device)
    counts = None if weights is None else weights.to(x)
    score = _auc_on(valid, fabric) if isinstance(valid, Part) else valid
    history: list[EpochRecord] = []
    kept = weights_of(network)
    if checkpoint is not None and checkpoint.exists():
        history, kept = restore(checkpoint, network, optimizer, method, settings)
    for epoch in range(len(history), settings.epochs):
        if finished(history, settings):
            break
        with _own_randomness(fabric, settings.seed, epoch):
            parts = _train_epoch(fabric, wrapped, optimizer, x, y, counts, epoch, settings)
        check_weights(network.parameters(), epoch)
        record = EpochRecord(epoch=epoch, parts=parts, valid_auc=score(network))
        if accept is not None and not accept(network):
            break
        if improves(record, history, settings, floor):
            kept = weights_of(network)
        history.append(record)
        on_epoch(record)
        last = epoch + 1 == settings.epochs or finished(history, settings)
        if checkpoint is not None and (last or (epoch + 1) % settings.checkpoint_every == 0):
            if fabric.is_global_zero:
                store(checkpoint, network, optimizer, history, kept, method, settings)
            fabric.barrier()
    network.load_state_dict(kept)
    return network.to(home), history


class _InParts(nn.Module):
    """An objective whose forward tells the loss and its parts: both in one pass, also wrapped."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(
        self, x: Tensor, y: Tensor, weights: Tensor | None, penalised: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.parts(x, y, weights, penalised)


def _auc_on(valid: Part, fabric: "Fabric") -> Score:
    """The AUC of a model on the validation part."""
    x, y = valid.x.to(fabric.device), valid.y.to(fabric.device)
    return lambda model: auc(model, x, y)


def check_row_weights(weights: Tensor | None, rows: int) -> None:
    """Refuse weights that are not one positive number for each row."""
    if weights is None:
        return
    if weights.shape != (rows,) or not bool(((weights > 0) & weights.isfinite()).all()):
        raise ValueError(
            f"weights must be one positive, finite number for each of the {rows} rows, got shape "
            f"{tuple(weights.shape)}: leave out rows that count for nothing."
        )


@contextmanager
def _own_randomness(fabric: "Fabric", seed: int, epoch: int) -> Iterator[None]:
    """Layers that draw, such as dropout, do so by seed, epoch and process; the caller's do not."""
    cuda = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(layer_seed(seed, epoch, fabric.global_rank))
        yield


def _train_epoch(
    fabric: "Fabric",
    objective: nn.Module,
    optimizer: Any,
    x: Tensor,
    y: Tensor,
    counts: Tensor | None,
    epoch: int,
    settings: FitSettings,
) -> dict[str, float]:
    """The mean of each part of the loss over one pass through the data, weights moved on."""

    def count(rows: Tensor | slice) -> float:
        return len(x[rows]) if counts is None else float(counts[rows].sum())

    whole = count(slice(None))
    batches = shuffled(len(x), settings.seed, epoch).to(x.device).split(settings.batch)
    totals: dict[str, Tensor] = {}
    for number, rows in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(epoch + number / len(batches), settings)
        mine = rows[fabric.global_rank :: fabric.world_size]
        # Processes average their slopes: a smaller share of a batch must count for less.
        # So must a batch of rows that count for little: the mean over batches is that of all rows.
        share = count(mine) * fabric.world_size / (whole / len(x) * len(rows))
        # A process without a row of its own still takes part, with one that counts for nothing.
        seen = mine if len(mine) else rows[:1]
        batch = AUGMENTATIONS[settings.augment](x[seen]) if settings.augment else x[seen]
        given = None if counts is None else counts[seen]
        total, parts = objective(
            batch, y[seen], given, risen_to(epoch + number / len(batches), settings)
        )
        optimizer.zero_grad()
        fabric.backward(total * share)
        optimizer.step()
        for name, part in parts.items():
            totals[name] = totals.get(name, torch.zeros_like(part)) + part * (count(mine) / whole)
    return {name: _summed(fabric, part) for name, part in totals.items()}


def _summed(fabric: "Fabric", value: Tensor) -> float:
    """The sum of one number over all processes."""
    total = fabric.all_reduce(value, reduce_op="sum")
    assert isinstance(total, Tensor)
    return float(total)


def select(candidates: Sequence[Candidate], threshold: float) -> Candidate | None:
    """The candidate of highest P@k among those with AUC >= threshold, None if there is none."""
    able = [candidate for candidate in candidates if candidate.auc >= threshold]
    return max(able, key=lambda candidate: candidate.precision, default=None)


def keeps_ranking(
    reference: nn.Module,
    valid: Part,
    *,
    k: int,
    explain: Explainer,
    least_precision: float,
    least_auc: float,
) -> Callable[[nn.Module], bool]:
    """For `accept`: whether a retrained model ranks as `reference` does, and still predicts."""
    labels = predicted(reference, valid.x)
    with torch.no_grad():
        before = explain(reference, valid.x, labels)

    def accept(model: nn.Module) -> bool:
        device = next(model.parameters()).device
        with torch.no_grad():
            after = explain(model, valid.x.to(device), labels.to(device)).to(before.device)
        alike = float(precision_at_k(before, after, k).mean())
        score = auc(model, valid.x.to(device), valid.y.to(device))
        return alike >= least_precision and score >= least_auc

    return accept
