"""Training on Lightning Fabric: fit, resume, select, save, load."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from r2et.core.archives import check_tensors
from r2et.core.files import write_aside
from r2et.core.limits import json_of
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.data.dataset import Part
from r2et.explainers import Explainer, check_inputs, predicted
from r2et.methods import Method
from r2et.metrics.statistics import auc
from r2et.models import MODELS
from r2et.models.building import bounded, build
from r2et.training.objective import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
    on_epoch: OnEpoch = ignore,
) -> tuple[nn.Module, list[EpochRecord]]:
    """The model trained (a changed one if the method prepares it) and the record of each epoch.

    An epoch is judged by its AUC on the part `valid`, or by any score of a model, the higher the
    better, in its place. A row of `train` counts as often as its `weights` (N,) say, once unless
    given: only their ratios matter, and all must be positive.

    Training stops early after `patience` epochs without a better validation AUC, keeping the best
    epoch's weights, or at the first epoch whose model `accept` refuses, keeping the last accepted.
    With a `checkpoint` file an interrupted fit goes on where it was and ends at the same weights.
    """
    from lightning_fabric import Fabric

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
    kept = _weights(network)
    if checkpoint is not None and checkpoint.exists():
        history, kept = _restore(checkpoint, network, optimizer, method, settings)
    for epoch in range(len(history), settings.epochs):
        if finished(history, settings):
            break
        with _own_randomness(fabric, settings.seed, epoch):
            parts = _train_epoch(fabric, wrapped, optimizer, x, y, counts, epoch, settings)
        check_weights(network.parameters(), epoch)
        record = EpochRecord(epoch=epoch, parts=parts, valid_auc=score(network))
        if accept is not None and not accept(network):
            break
        if improves(record, history, settings):
            kept = _weights(network)
        history.append(record)
        on_epoch(record)
        last = epoch + 1 == settings.epochs or finished(history, settings)
        if checkpoint is not None and (last or (epoch + 1) % settings.checkpoint_every == 0):
            if fabric.is_global_zero:
                _store(checkpoint, network, optimizer, history, kept, method, settings)
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


def _best(history: Sequence[EpochRecord]) -> float:
    return max((record.valid_auc for record in history), default=-math.inf)


def improves(record: EpochRecord, history: Sequence[EpochRecord], settings: FitSettings) -> bool:
    """Whether an epoch's weights are to be kept: with patience, only the best so far are."""
    return settings.patience is None or record.valid_auc > _best(history)


def finished(history: Sequence[EpochRecord], settings: FitSettings) -> bool:
    """Whether the validation AUC has not improved for `patience` epochs."""
    if settings.patience is None or len(history) <= settings.patience:
        return False
    return _best(history[-settings.patience :]) <= _best(history[: -settings.patience])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _store(
    path: Path,
    model: nn.Module,
    optimizer: Any,
    history: Sequence[EpochRecord],
    kept: Mapping[str, Tensor],
    method: Method,
    settings: FitSettings,
) -> None:
    """Write everything from which the fit goes on: weights, optimiser state, history."""
    tensors = {f"model.{name}": value for name, value in _weights(model).items()}
    tensors |= {f"kept.{name}": value for name, value in kept.items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value.clone() for name, value in state.items()}
    notes = {"history": [asdict(record) for record in history], "plan": _plan(method, settings)}
    _write_tensors(path, tensors, notes)


def _plan(method: Method, settings: FitSettings) -> dict[str, Any]:
    """What can be told of a fit, to recognise its checkpoint by."""
    penalties = [[name, weight] for name, weight, _ in method.penalties]
    return {**asdict(settings), "penalties": penalties, "weight_decay": method.weight_decay}


def _restore(
    path: Path, model: nn.Module, optimizer: Any, method: Method, settings: FitSettings
) -> tuple[list[EpochRecord], dict[str, Tensor]]:
    """The history and kept weights of an interrupted fit, model and optimiser set to its state."""
    tensors, notes = _read_tensors(path)
    if notes.get("plan") != _plan(method, settings):
        raise ValueError(
            f"{path} was written by a fit with other settings: delete it or choose another folder."
        )
    _load_into(model, _below("model.", tensors), path)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _below("optimizer.", tensors).items():
        number, field = name.split(".", 1)
        state.setdefault(int(number), {})[field] = value
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
    device = next(model.parameters()).device
    kept = {name: value.to(device) for name, value in _below("kept.", tensors).items()}
    return [EpochRecord(**record) for record in notes["history"]], kept


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"r2et": json.dumps(notes, sort_keys=True)}

    def write(aside: Path) -> None:
        try:
            save_file(whole, aside, metadata=metadata)
        except SafetensorError as problem:
            raise OSError(str(problem)) from problem

    write_aside(path, write)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint and the notes beside them; nothing is unpickled."""
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}: check the path.")
    check_tensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            notes = json_of((file.metadata() or {}).get("r2et", "{}"), "what it says of itself")
            if not (isinstance(notes, dict) and isinstance(notes.get("recipe", {}), dict)):
                raise ValueError("what it says of itself is no recipe")
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as problem:
        raise ValueError(
            f"{path} is not a whole checkpoint ({problem}): it was cut short or is another kind of "
            "file; train again or restore it from a copy."
        ) from problem


def _load_into(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Give the model the stored weights, refusing those of another architecture."""
    mine = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise ValueError(
                f"{path} holds weights of another architecture: {name} is "
                f"{theirs.get(name, 'missing')} in the file, but the network has "
                f"{mine.get(name, 'none')}; give the weights of this network."
            )
    model.load_state_dict(dict(tensors))


def save(path: Path, model: nn.Module, recipe: Mapping[str, Any]) -> Path:
    """The path, now holding the weights as safetensors with the recipe in its header.

    `recipe["model"]` is a plan that `models.building.build` can rebuild it by.
    """
    _write_tensors(path, _weights(model), {"recipe": dict(recipe)})
    return path


def recipe_of(path: Path) -> dict[str, Any]:
    """The recipe in the header of a saved model, empty if it has none."""
    _, notes = _read_tensors(path)
    recipe: dict[str, Any] = notes.get("recipe", {})
    return recipe


def sizes_in(path: Path) -> list[int]:
    """How many numbers each tensor of a saved model has."""
    tensors, _ = _read_tensors(path)
    return [value.numel() for value in tensors.values()]


def load(path: Path, model: nn.Module | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """A saved model and its recipe; `model` receives the weights, or one is built by the recipe."""
    tensors, notes = _read_tensors(path)
    recipe = notes.get("recipe", {})
    if model is None:
        plan = recipe.get("model", {})
        if not isinstance(plan, dict) or plan.get("name") not in list(MODELS):
            raise ValueError(f"{path} does not say which model it holds: give load() the model.")
        model = _built(plan, tensors, path)
    _load_into(model, tensors, path)
    return model, recipe


def _built(plan: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> nn.Module:
    """The network of a file's plan, refused if the plan asks for more than its weights fill."""
    try:
        with bounded([value.numel() for value in tensors.values()]):
            model = build(plan, stream(0, "unused"))
        return model.to(next(iter(tensors.values())).dtype)
    except Exception as problem:  # of whatever else than sizes the plan holds
        raise ValueError(
            f"{path} holds a plan of its network by which none can be built ({problem}): restore "
            "it from a copy or train again."
        ) from problem


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A trained model as seen on validation data, and the settings that made it."""

    settings: dict[str, Any]
    auc: float
    precision: float


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
