"""The rows of an audit, whatever they come as, encoded and scaled as its models take them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from r2et.auditing.classifiers import (
    Estimator,
    is_banded,
    is_estimator,
    network_of,
    table_by,
    table_for,
)
from r2et.auditing.column_names import check_inputs_named, named_columns, with_columns
from r2et.auditing.config import DataSettings
from r2et.auditing.csvs import CsvTable
from r2et.auditing.items import ItemSource
from r2et.auditing.models import Loaded
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Source, Table
from r2et.data.builtin import DATASETS, load, read_items
from r2et.data.dataset import Dataset, Split
from r2et.data.features import in_words
from r2et.data.schema import Schema
from r2et.trees.readers import is_fitted_model

Model = nn.Module | Loaded | Estimator
Data = Source | Split | Dataset | pd.DataFrame | str | Path


def models_of(model: Model | Mapping[str, Model]) -> dict[str, Loaded]:
    """Models given in Python by their names, each with what it says about itself."""
    given: dict[str, Any] = dict(model) if isinstance(model, Mapping) else {"model": model}
    if not given:
        raise ValueError("an audit needs one model or more, got none.")
    return {name: _loaded(name, each) for name, each in given.items()}


def _loaded(name: str, model: Any) -> Loaded:
    if isinstance(model, Loaded):
        return model
    if is_banded(model):
        return Loaded(name=name, model=model, classifier=model)
    if is_estimator(model):
        return Loaded(name=name, model=network_of(model), classifier=model)
    if is_fitted_model(model):
        return Loaded(name=name, model=model, classifier=model)
    return Loaded(name=name, model=model, columns=named_columns(model))


def usual_settings(source: Source) -> AuditSettings:
    """What is asked of the decisions of such rows unless somebody asks otherwise."""
    return source.usual if isinstance(source, ItemSource) else AuditSettings()


def source_for(
    data: Data, models: Sequence[Loaded], settings: DataSettings | None = None
) -> Source:
    """The rows to be audited as the models take them, whatever they come as."""
    if isinstance(data, str | Path | pd.DataFrame):
        return _read(data, models, settings or DataSettings())
    if settings is not None:
        raise ValueError(
            "settings of columns are for a CSV file or a pandas table: say it in the Table itself."
        )
    if isinstance(data, Dataset):
        data = data.split(0)
    if isinstance(data, Split):
        return Table.of_split(data) if data.dataset.tabular else ItemSource.of_split(data)
    if isinstance(data, Table):
        columns = with_columns(DataSettings(), [each.columns for each in models]).columns
        names = [feature.name for feature in data.columns.features]
        if columns:
            check_inputs_named(columns, names, names, data.name)
    return data


def _read(
    data: str | Path | pd.DataFrame, models: Sequence[Loaded], settings: DataSettings
) -> Source:
    """The rows of a table or the test part of a known data set, as the models take them.

    A folder of pictures or a file of networks is a data set of one's own: all of it, or the test
    part for models that were trained on it.
    """
    fitted = [each.classifier for each in models if each.classifier is not None]
    if fitted:
        return table_for(fitted, data, settings)
    trained = [each for each in models if "data" in each.recipe]
    if isinstance(data, pd.DataFrame):
        return _of_table(data, models, trained, settings)
    data = str(data)
    if data in DATASETS:
        split = _split(load(data), trained)
        if not split.dataset.tabular:
            _check_plain(settings, data)
            return ItemSource.of_split(split)
        _check_columns(settings, split)
        still = [name for name in settings.features if settings.of(name).immutable]
        subgroups = {name: _in_words(split, name) for name in settings.subgroups}
        return Table.of_split(split, immutable=still, subgroups=subgroups)
    if (found := read_items(Path(data))) is not None:
        _check_plain(settings, data)
        return (
            ItemSource.of_split(_split(found, trained)) if trained else ItemSource.of_dataset(found)
        )
    return _of_table(data, models, trained, settings)


def _of_table(
    data: str | pd.DataFrame,
    models: Sequence[Loaded],
    trained: Sequence[Loaded],
    settings: DataSettings,
) -> CsvTable:
    """A table of one's own, encoded as models of runs were trained, or as the settings say."""
    if not trained:
        return CsvTable.at(data, with_columns(settings, [each.columns for each in models]))
    first = trained[0].recipe
    for each in trained[1:]:
        if any(each.recipe.get(what) != first.get(what) for what in ("columns", "classes")):
            raise ValueError(
                "models audited side by side take the same inputs, but these encode rows "
                "differently: audit them one at a time."
            )
    try:
        schema, classes = (
            Schema.from_json(first["columns"]),
            [str(each) for each in first["classes"]],
        )
    except Exception as problem:  # of a file whose parts may be anything
        raise ValueError(
            f"{trained[0].name} does not say how the rows of a table become its inputs "
            f"({type(problem).__name__}: {problem}): train it again, by this version."
        ) from problem
    return table_by(schema, classes, data, settings)


def _check_plain(settings: DataSettings, data: str) -> None:
    if settings != DataSettings():
        raise ValueError(f"{data} has no columns to speak of: leave out --config and --target.")


def _split(dataset: Dataset, trained: Sequence[Loaded]) -> Split:
    """The split of a data set that the models were trained on."""
    for each in trained:
        if each.recipe["data"] != dataset.digest:
            raise ValueError(
                f"{each.name} was not trained on {dataset.name} as it is read here: give the data "
                "it was trained on."
            )
    seeds = {int(each.recipe.get("seed", 0)) for each in trained}
    if len(seeds) > 1:
        raise ValueError(
            "models audited side by side take the same inputs, but these were trained on different "
            f"splits ({', '.join(map(str, sorted(seeds)))}): audit them one at a time."
        )
    return dataset.split(seeds.pop() if seeds else 0)


def _check_columns(settings: DataSettings, split: Split) -> None:
    settings = replace(settings, target=None)
    settings.check_names(split.dataset.group_names, split.dataset.name)
    if settings.id or settings.drop or settings.groups or settings.fit_on:
        raise ValueError(
            f"{split.dataset.name} comes with the package and is read as it is: leave out id, "
            "drop, groups and fit_on."
        )


def _in_words(split: Split, group: str) -> "pd.Categorical[str]":
    """The value of an attribute in words for each row of the test part, in the order of values."""
    dataset = split.dataset
    numbers = [i for i, feature in enumerate(dataset.features) if feature.group == group]
    raw = dataset.x[split.test.rows][:, numbers].tolist()
    features = [dataset.features[i] for i in numbers]
    words = [in_words(list(zip(features, row, strict=True))) for row in raw]
    order = sorted(range(len(raw)), key=lambda i: [(value != value, value) for value in raw[i]])
    return pd.Categorical(words, categories=[*dict.fromkeys(words[i] for i in order)])
