"""Files of weights: models with the recipe they were trained by, and fits to go on with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from r2et.core.archives import check_tensors
from r2et.core.files import write_bytes
from r2et.core.limits import json_of
from r2et.core.rng import stream
from r2et.methods.method import Method
from r2et.models import MODELS, bounded, build
from r2et.training.settings import EpochRecord, FitSettings


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model and what else it keeps, copied, by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def store(
    path: Path,
    model: nn.Module,
    optimizer: Any,
    history: Sequence[EpochRecord],
    kept: Mapping[str, Tensor],
    method: Method,
    settings: FitSettings,
) -> None:
    """Write everything from which the fit goes on: weights, optimiser state, history."""
    tensors = {f"model.{name}": value for name, value in weights_of(model).items()}
    tensors |= {f"kept.{name}": value for name, value in kept.items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value.clone() for name, value in state.items()}
    notes = {"history": [asdict(record) for record in history], "plan": _plan(method, settings)}
    write_bytes(path, _packed(tensors, notes))


def _plan(method: Method, settings: FitSettings) -> dict[str, Any]:
    """What can be told of a fit, to recognise its checkpoint by."""
    penalties = [[name, weight] for name, weight, _ in method.penalties]
    return {**asdict(settings), "penalties": penalties, "weight_decay": method.weight_decay}


def restore(
    path: Path, model: nn.Module, optimizer: Any, method: Method, settings: FitSettings
) -> tuple[list[EpochRecord], dict[str, Tensor]]:
    """The history and kept weights of an interrupted fit, model and optimiser set to its state."""
    tensors, notes = _read_tensors(path)
    if notes.get("plan") != _plan(method, settings):
        raise ValueError(
            f"{path} was written by a fit with other settings: delete it or choose another folder."
        )
    load_into(model, _below("model.", tensors), path)
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


def _packed(tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> bytes:
    """Tensors and the notes beside them as the content of a safetensors file."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content: bytes = save_bytes(on_cpu, {"r2et": json.dumps(notes, sort_keys=True)})
    return content


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


def load_into(model: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
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
    return write_bytes(path, to_bytes(model, recipe))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a saved model and the recipe in its header, empty if it has none."""
    tensors, notes = _read_tensors(path)
    return tensors, notes.get("recipe", {})


def load(path: Path, model: nn.Module | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """A saved model and its recipe; `model` receives the weights, or one is built by the recipe."""
    tensors, recipe = read(path)
    return _filled(tensors, recipe, str(path), model), recipe


def to_bytes(model: nn.Module, recipe: Mapping[str, Any]) -> bytes:
    """What `save` would write, for another process to take or to keep."""
    return _packed(weights_of(model), {"recipe": dict(recipe)})


def from_bytes(content: bytes) -> nn.Module:
    """The model of such bytes, built by their recipe."""
    length = int.from_bytes(content[:8], "little")
    header = json_of(content[8 : 8 + length], "the header of a model")
    recipe = json_of(header["__metadata__"]["r2et"], "the recipe of a model")["recipe"]
    return _filled(load_bytes(content), recipe, "a model of another process", None)


def _filled(
    tensors: Mapping[str, Tensor], recipe: Mapping[str, Any], path: str, model: nn.Module | None
) -> nn.Module:
    """The model with these weights, built by the recipe unless given."""
    if model is None:
        plan = recipe.get("model", {})
        if not isinstance(plan, dict) or plan.get("name") not in list(MODELS):
            raise ValueError(f"{path} does not say which model it holds: give load() the model.")
        model = _built(plan, tensors, path)
    load_into(model, tensors, path)
    return model


def _built(plan: Mapping[str, Any], tensors: Mapping[str, Tensor], path: str) -> nn.Module:
    """The network of a file's plan, refused if the plan asks for more than its weights fill."""
    try:
        with bounded([value.numel() for value in tensors.values()]):
            model = build(plan, stream(0, "unused"))
        # Counters of batches are whole numbers, and may come first.
        return model.to(next(each.dtype for each in tensors.values() if each.is_floating_point()))
    except Exception as problem:  # of whatever else than sizes the plan holds
        raise ValueError(
            f"{path} holds a plan of its network by which none can be built ({problem}): restore "
            "it from a copy or train again."
        ) from problem
