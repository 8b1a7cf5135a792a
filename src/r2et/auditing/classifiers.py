"""Rows for fitted classifiers: encoded as the classifier encodes them, told in original units."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from r2et.auditing.column_names import difference
from r2et.auditing.config import DataSettings
from r2et.auditing.csvs import CsvTable
from r2et.auditing.encoding import (
    ADVICE,
    LENGTH_IN_WORDS,
    columns_of,
    lengths_of,
    other_columns,
    surveyed_names,
    wishes_of,
)
from r2et.bands.binner import StableBinner
from r2et.bands.classifier import StableClassifier
from r2et.core.limits import content_of
from r2et.core.naming import counted, nearest
from r2et.data.cells import Missing, Survey, word_in
from r2et.data.features import Scale
from r2et.data.fitting import Wish, surveyed, written_notes
from r2et.data.reader import FrameReader, Reader, reader_of
from r2et.data.schema import Attribute, Category, Numeric, Schema
from r2et.sklearn import NetworkClassifier

IN_TRAINING = f"{LENGTH_IN_WORDS['range']} in training"

Estimator = Any  # a NetworkClassifier, or a Pipeline, whose type scikit-learn does not tell


def is_estimator(model: object) -> bool:
    """Whether a model is a network's classifier, or a pipeline that ends in one."""
    last = model.steps[-1][1] if isinstance(model, Pipeline) else model
    return isinstance(last, NetworkClassifier)


def is_banded(model: object) -> bool:
    """Whether a model sees bands only: a StableClassifier, or a pipeline that begins with bands."""
    if isinstance(model, Pipeline):
        return isinstance(model.steps[0][1], StableBinner)
    return isinstance(model, StableClassifier)


def table_for(
    models: Sequence[Estimator], data: pd.DataFrame | str | Path, settings: DataSettings
) -> CsvTable:
    """The rows of a table as these fitted classifiers, which must agree on it, take them."""
    first = models[0]
    steps, classifier = _apart(first)
    for each in models[1:]:
        if (
            _apart(each)[1].schema_ != classifier.schema_
            or _apart(each)[1].classes_.tolist() != classifier.classes_.tolist()
            or _apart(each)[0] is not steps
        ):
            raise ValueError(
                "classifiers audited side by side take the same inputs, but these encode rows "
                "differently: audit them one at a time."
            )
    if steps is None:
        table = table_by(classifier.schema_, _classes(classifier), data, settings)
    else:
        frame = data if isinstance(data, pd.DataFrame) else _read(data)
        reader, names, undo = _transformed(steps, frame, settings)
        table = _table(reader, names, classifier.schema_, _classes(classifier), settings, undo)
    return replace(table, references=_references(models))


def _references(models: Sequence[Estimator]) -> tuple[Tensor, ...]:
    """The rows that each classifier is told against, none if one of an earlier version has none."""
    kept = [getattr(_apart(each)[1], "reference_", None) for each in models]
    known = tuple(each for each in kept if each is not None)
    return known if len(known) == len(models) else ()


def table_by(
    schema: Schema, classes: Sequence[str], data: pd.DataFrame | str | Path, settings: DataSettings
) -> CsvTable:
    """The rows of a table as models that were trained by this schema take them."""
    return _table(reader_of(data), schema.columns, schema, classes, settings, None)


def _classes(classifier: NetworkClassifier) -> list[str]:
    return [word_in(str(each)) for each in classifier.classes_.tolist()]


def _read(path: str | Path) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content_of(path)))


def _apart(model: Estimator) -> tuple[Pipeline | None, NetworkClassifier]:
    """The steps before the classifier, None if there are none, and the classifier."""
    if isinstance(model, NetworkClassifier):
        steps, classifier = None, model
    else:
        steps, classifier = (model[:-1] if len(model) > 1 else None), model[-1]
    if not hasattr(classifier, "model_"):
        raise ValueError("the classifier is not fitted yet: call fit before the audit.")
    return steps, classifier


def network_of(model: Estimator) -> nn.Module:
    """The network of a fitted classifier, or of that at the end of a pipeline."""
    found: nn.Module = _apart(model)[1].model_
    return found


def _transformed(
    steps: Pipeline, frame: pd.DataFrame, settings: DataSettings
) -> tuple[FrameReader, tuple[str, ...], Scale | None]:
    """The table after the steps of a pipeline, the names of its inputs, and the way back."""
    others = other_columns(settings)
    for name in others:
        if name not in frame.columns:
            raise ValueError(f"the table has no column {name!r}: {nearest(name, frame.columns)}")
    wanted = getattr(steps, "feature_names_in_", [n for n in frame.columns if str(n) not in others])
    if missing := [name for name in wanted if name not in frame.columns]:
        raise ValueError(
            f"the pipeline takes a column {missing[0]!r}, which the table lacks: "
            f"{nearest(str(missing[0]), [str(name) for name in frame.columns])}"
        )
    made = steps.transform(frame[list(wanted)])
    values = made.to_numpy() if hasattr(made, "to_numpy") else np.asarray(made)
    names = tuple(str(name) for name in steps.get_feature_names_out())
    both = pd.DataFrame(values, columns=list(names))
    for name in others:
        both[name] = frame[name].to_numpy()
    return FrameReader(frame=both), names, _way_back(steps, values)


def _way_back(steps: Pipeline, values: NDArray[Any]) -> Scale | None:
    """The scale that leads back to original units, None if the steps are more than a scale."""
    if not hasattr(steps, "inverse_transform"):
        return None
    try:
        zero = np.zeros((1, values.shape[1]))
        shift, end = steps.inverse_transform(zero)[0], steps.inverse_transform(zero + 1)[0]
        some = values[:64].astype(np.float64)
        straight = np.allclose(steps.inverse_transform(some), some * (end - shift) + shift)
    except (ValueError, TypeError, NotImplementedError):
        return None
    if not straight or not (end - shift > 0).all():
        return None
    shift, width = torch.from_numpy(shift).double(), torch.from_numpy(end - shift).double()
    return Scale(fill=torch.zeros_like(shift), shift=shift, width=width)


def _table(
    reader: Reader,
    names: tuple[str, ...],
    trained: Schema,
    classes: Sequence[str],
    settings: DataSettings,
    undo: Scale | None,
) -> CsvTable:
    _check_settings(reader, names, settings)
    wishes = wishes_of(settings, names)
    taught = [
        _shown(each, name, wishes[name])
        for name, each in zip(names, trained.attributes, strict=True)
    ]
    # Words are those of the training, whatever they look like.
    of_words = [each.name for each in taught if isinstance(each, Category)]
    wishes |= {name: replace(wishes[name], kind="category") for name in of_words}
    surveys = surveyed(
        reader,
        wishes,
        Missing.named(settings.missing_values),
        ADVICE,
        target=settings.target,
        # Numbers are written as somebody says, as in training, or as the table shows.
        writings={
            each.name: each.writing
            for each in taught
            if isinstance(each, Numeric)
            and each.writing is not None
            and not (wishes[each.name].decimal or wishes[each.name].dates)
        },
    )
    schema = Schema(
        tuple(
            replace(each, writing=surveys[each.name].writing) if isinstance(each, Numeric) else each
            for each in taught
        )
    )
    shown = schema if undo is None else _undone(schema, undo)
    lengths = lengths_of(shown, surveys, replace(settings, eps="scaled"), IN_TRAINING)
    inputs = [surveys[name] for name in names]
    return CsvTable(
        reader=reader,
        settings=replace(settings, classes=tuple(classes)),
        schema=schema,
        columns=columns_of(shown, settings, lengths),
        surveys={name: surveys[name] for name in surveyed_names(settings)},
        read_notes=(*written_notes(inputs), *_unseen(schema, surveys)),
        length=inputs[0].rows,
    )


def _shown(attribute: Attribute, name: str, wish: Wish) -> Attribute:
    """An attribute under the name of a column, as readers are to be told of it."""
    named = replace(attribute, name=name, shown=wish.shown, group=wish.group)
    return replace(named, unit=wish.unit) if isinstance(named, Numeric) else named


def _undone(schema: Schema, undo: Scale) -> Schema:
    """The same columns in the units before a pipeline's scale."""
    found: list[Attribute] = []
    for place, each in enumerate(schema.attributes):
        if isinstance(each, Numeric):
            shift, width = float(undo.shift[place]), float(undo.width[place])
            low, across = each.shift * width + shift, each.width * width
            fill = each.fill * width + shift
            each = replace(each, fill=fill, shift=low, width=across, low=low, high=low + across)
        found.append(each)
    return Schema(tuple(found))


def _check_settings(reader: Reader, names: Sequence[str], settings: DataSettings) -> None:
    settings.check_names(reader.names, reader.name)
    plain = DataSettings()
    for what in ("scale", "eps", "fit_on", "missing"):
        if getattr(settings, what) != getattr(plain, what):
            raise ValueError(f"a trained model encodes rows as in its training: leave out {what}.")
    if settings.columns and settings.columns != tuple(names):
        raise ValueError(
            "columns and the model name different inputs: "
            f"{difference(names, settings.columns)}; leave columns out."
        )
    other = {*other_columns(settings), *settings.drop}
    given = [name for name in reader.names if name in names or name not in other]
    if set(given) != set(names):
        raise ValueError(
            "the model takes the columns that it was trained on, but "
            f"{reader.name} has others: {difference(names, given)}; correct the table, or name by "
            "drop, id, subgroups or target what is no input."
        )


def _unseen(schema: Schema, surveys: Mapping[str, Survey]) -> Iterator[str]:
    """A note for each column with values that training never showed, refused if it has none."""
    for column in schema.attributes:
        name, survey = column.name, surveys[column.name]
        if isinstance(column, Numeric):
            if survey.absent and not column.marked:
                if not column.fills:
                    raise ValueError(
                        f"{survey.first_absent}: the value is missing, which training never "
                        "showed: fill it in, or remove the row."
                    )
                yield (
                    f"Column {name!r} has {survey.absent:,} missing values, where training had "
                    f"none: they were filled by its median, {column.fill:g}."
                )
            continue
        if survey.texts is None:
            yield f"Column {name!r} has too many different values to tell which are new."
            continue
        new = Counter[str]()
        for text, count in survey.texts.items():
            word = column.word(text, survey.missing)
            if word not in column.labels:
                new[word] += count
        if new and not (column.shares or column.grouped):
            raise ValueError(
                f"column {name!r} holds {next(iter(new))!r}, which training never showed: merge it "
                "with another value, or train again."
            )
        if new and column.grouped:
            yield (
                f"Column {name!r}: {new.total():,} rows hold values that are not among the "
                f"{len(column.labels) - 1:,} most frequent of training and count as 'other', as "
                "they did there."
            )
        elif new:
            most = ", ".join(f"{word!r} {count:,} times" for word, count in new.most_common(5))
            more = f" and {len(new) - 5:,} others" if len(new) > 5 else ""
            yield (
                f"Column {name!r} has {counted(len(new), 'value')} that training never "
                f"showed, in {new.total():,} rows ({most}{more}): each was encoded as the average "
                "of the training rows; correct them, merge them with known ones, or train again."
            )
