"""Models by name or file, as the command line takes them; nothing is ever unpickled."""

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from r2et.auditing.column_names import columns_in, difference, named_columns
from r2et.auditing.pt2_reader import read_exported
from r2et.core.limits import check_bytes, content_of
from r2et.core.naming import briefly
from r2et.sklearn import NetworkClassifier
from r2et.training.checkpoint import load, read
from r2et.trees.readers import is_fitted_model, read_file

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".joblib", ".bin", ".ckpt")
SAVE = "save its weights by safetensors.torch.save_file and give --model module:factory --weights"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model, what it is called, and for one of this package its recipe or its classifier."""

    name: str
    model: Any
    recipe: dict[str, Any] = field(default_factory=dict)
    classifier: Any = None
    """A fitted classifier or pipeline, None for a bare network."""
    columns: tuple[str, ...] | None = None
    """The columns of a table that it takes, in order, None if nothing says so."""


def load_model(spec: str, weights: Path | None = None) -> Loaded:
    """The model that `spec` names: a file, or module:factory with its weights.

    `module:factory@weights.safetensors` says both in one word.
    """
    if "@" in spec and not Path(spec).exists():
        spec, _, file = spec.partition("@")
        if weights is not None:
            raise ValueError(f"weights are given twice, as {file} and as {weights}: leave one out.")
        weights = Path(file)
    if ":" in spec and not Path(spec).exists():
        model = made(spec)
        if not isinstance(model, nn.Module):
            if weights is not None:
                raise ValueError(f"{spec} returns a fitted model: leave out the weights {weights}.")
            return Loaded(name=spec, model=model, classifier=model)
        columns = named_columns(model)
        if weights is not None:
            _refuse_pickle(weights)
            load(weights, model)
            said = columns_in(weights)
            if columns is not None and said not in (None, columns):
                raise ValueError(
                    f"{weights} and {spec} name different columns: {difference(said, columns)}; "
                    "give the weights of this network."
                )
            return Loaded(name=weights.stem, model=model, columns=said or columns)
        return Loaded(name=spec, model=model, columns=columns)
    if weights is not None:
        raise needs_network(weights)
    return _from_file(Path(spec))


def needs_network(weights: Path) -> ValueError:
    """The refusal of weights that come alone."""
    return ValueError(
        f"the weights {weights} need the network they belong to: give it as --model module:factory."
    )


def _from_file(path: Path) -> Loaded:
    if not path.is_file():
        raise ValueError(f"there is no model file {path}: give one, or module:factory.")
    if path.suffix == ".pt2":
        return Loaded(name=path.stem, model=read_exported(path))
    if path.suffix in (".json", ".ubj", ".txt", ".skops"):
        found = _classifier_in(path)
        return Loaded(name=path.stem, model=found, classifier=found)
    _refuse_pickle(path)
    try:
        _, recipe = read(path)
    except ValueError as problem:
        if problem.__cause__ is None:
            raise
        raise ValueError(
            f"{path} is no model that can be read ({problem.__cause__}): give a .safetensors file "
            "of this package, an exported program .pt2, or module:factory."
        ) from problem
    if not recipe:
        raise ValueError(
            f"{path} holds weights without the network they belong to: give --model "
            f"module:factory --weights {path}."
        )
    if "estimator" in recipe:
        classifier = NetworkClassifier.load(path)
        return Loaded(name=path.stem, model=classifier.model_, classifier=classifier)
    model, _ = load(path)
    return Loaded(name=path.stem, model=model, recipe=recipe)


def _classifier_in(path: Path) -> Any:
    """A StableClassifier, the trees of another library, or what skops kept of scikit-learn."""
    if path.suffix == ".skops":
        return _kept_by_skops(path)
    if path.suffix == ".json" and b'"format"' in content_of(path)[:200]:
        from r2et import StableClassifier  # not needed, and not loaded, for others

        return StableClassifier.load(path)
    return read_file(path)


def _kept_by_skops(path: Path) -> Any:
    """A model of scikit-learn that skops wrote, refused if it holds types that are not known."""
    try:
        skops = importlib.import_module("skops.io")
    except ImportError:
        raise ValueError(
            f"{path} is read by skops, which is not installed: pip install skops."
        ) from None
    check_bytes(path.stat().st_size, str(path))
    try:
        return skops.load(path)
    except Exception as problem:  # of a file whose parts may be anything
        raise ValueError(
            f"{path} holds no model that skops would trust ({briefly(problem)}): save a model of "
            "scikit-learn's own parts, or load it yourself and give the model."
        ) from problem


def _refuse_pickle(path: Path) -> None:
    if path.suffix in PICKLES:
        raise ValueError(
            f"{path} is a pickle, which can run code when it is opened, and is not read: {SAVE}."
        )


def made(name: str) -> Any:
    """What `module:factory` returns; modules of the working folder are found, too."""
    module, _, factory = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), factory)()
    except Exception as problem:  # whatever the user's own code raises
        raise ValueError(
            f"{name} could not be called ({briefly(problem)}): give module:factory, a function "
            "without arguments that returns a model."
        ) from problem
    if not isinstance(found, nn.Module) and not is_fitted_model(found):
        raise ValueError(
            f"{name} returned {type(found).__name__}: let it return an nn.Module that gives one "
            "logit for each class, or a fitted model with predict_proba."
        )
    return found
