"""Rows for fitted classifiers: encoded as the classifier encodes them, told in original units."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from r2et.auditing.config import DataSettings
from r2et.auditing.csvs import CsvTable, told_names
from r2et.auditing.encoding import (
    Encoding,
    labels_by_text,
    quarters,
    surveyed,
    writing_in,
    written_notes,
)
from r2et.auditing.reading import Absent, CsvFile, FrameText, Survey, TextTable, cells_of
from r2et.auditing.schema import difference
from r2et.auditing.tables import Columns, reach_of
from r2et.core.limits import content_of
from r2et.core.naming import nearest
from r2et.data import encoder as learnt
from r2et.data import frames
from r2et.data.dataset import MISSING, Feature, Scale, check_names
from r2et.data.writing import Writing
from r2et.sklearn import StableClassifier

Estimator = Any  # a StableClassifier, or a Pipeline, whose type scikit-learn does not tell
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class LearntEncoding(Encoding):
    """The encoding of a fitted classifier; `inputs` are the columns it takes, in order."""

    taught: learnt.Encoding
    names: tuple[str, ...]
    ways: Mapping[str, Writing] = field(default_factory=dict)
    """How the numbers of columns are written, where not plainly."""

    @property
    def inputs(self) -> Sequence[str]:
        """The columns that are inputs."""
        return self.names

    def encode(self, table: Mapping[str, Sequence[str]], where: frames.Where) -> Tensor:
        """Inputs of the model for some rows, given by column: (B, d) in float64."""
        cells = [
            self._words(table[name])
            if isinstance(column, learnt.Category)
            else self._numbers(name, table[name], where)
            for name, column in zip(self.names, self.taught.columns, strict=True)
        ]
        return self.taught.encode(cells)

    def _words(self, texts: Sequence[str]) -> NDArray[Any]:
        stripped = (text.strip() for text in texts)
        words = [MISSING if self.absent.holds(each) else frames.whole(each) for each in stripped]
        return np.array(words, dtype=object)

    def _numbers(self, name: str, texts: Sequence[str], where: frames.Where) -> Floats:
        cells = cells_of(texts, self.absent, self.ways.get(name))
        if cells.words.any():
            at = int(cells.words.argmax())
            way = self.ways.get(name)
            written = "" if way is None else f" written {way.words}"
            raise ValueError(
                f"{where(at, name)}: expected a number{written}, as the classifier was fitted on, "
                f"got {cells.texts[at]!r}: correct it."
            )
        return cells.numbers


def is_estimator(model: object) -> bool:
    """Whether a model is a classifier of this package, or a pipeline that ends in one."""
    return isinstance(model, StableClassifier | Pipeline)


def table_for(
    models: Sequence[Estimator], data: pd.DataFrame | str | Path, settings: DataSettings
) -> CsvTable:
    """The rows of a table as these fitted classifiers, which must agree on it, take them."""
    first = models[0]
    steps, classifier = _apart(first)
    for each in models[1:]:
        if (
            _apart(each)[1].encoding_ != classifier.encoding_
            or _apart(each)[1].classes_.tolist() != classifier.classes_.tolist()
            or _apart(each)[0] is not steps
        ):
            raise ValueError(
                "classifiers audited side by side take the same inputs, but these encode rows "
                "differently: audit them one at a time."
            )
    file: TextTable
    undo: Scale | None = None
    if steps is None:
        file = FrameText(frame=data) if isinstance(data, pd.DataFrame) else CsvFile.at(data)
        names = tuple(column.name for column in classifier.encoding_.columns)
    else:
        frame = data if isinstance(data, pd.DataFrame) else _read(data)
        file, names, undo = _transformed(steps, frame, settings)
    return _table(file, names, classifier, settings, undo)


def _read(path: str | Path) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content_of(path)))


def _apart(model: Estimator) -> tuple[Pipeline | None, StableClassifier]:
    """The steps before the classifier, None if there are none, and the classifier."""
    if isinstance(model, StableClassifier):
        steps, classifier = None, model
    else:
        steps, classifier = (model[:-1] if len(model) > 1 else None), model[-1]
    if not isinstance(classifier, StableClassifier):
        raise ValueError(
            f"a pipeline must end in a StableClassifier to be audited, got one that ends in a "
            f"{type(classifier).__name__}."
        )
    if not hasattr(classifier, "model_"):
        raise ValueError("the classifier is not fitted yet: call fit before the audit.")
    return steps, classifier


def networks_of(models: Mapping[str, Any]) -> dict[str, nn.Module]:
    """The network of each model: its own, or that of a fitted classifier."""
    return {
        name: _apart(each)[1].model_ if is_estimator(each) else each
        for name, each in models.items()
    }


def _transformed(
    steps: Pipeline, frame: pd.DataFrame, settings: DataSettings
) -> tuple[FrameText, tuple[str, ...], Scale | None]:
    """The table after the steps of a pipeline, the names of its inputs, and the way back."""
    told = told_names(settings)
    for name in told:
        if name not in frame.columns:
            raise ValueError(f"the table has no column {name!r}: {nearest(name, frame.columns)}")
    wanted = getattr(steps, "feature_names_in_", [n for n in frame.columns if str(n) not in told])
    if missing := [name for name in wanted if name not in frame.columns]:
        raise ValueError(
            f"the pipeline takes a column {missing[0]!r}, which the table lacks: "
            f"{nearest(str(missing[0]), [str(name) for name in frame.columns])}"
        )
    made = steps.transform(frame[list(wanted)])
    values = made.to_numpy() if hasattr(made, "to_numpy") else np.asarray(made)
    names = tuple(str(name) for name in steps.get_feature_names_out())
    both = pd.DataFrame(values, columns=list(names))
    for name in told:
        both[name] = frame[name].to_numpy()
    return FrameText(frame=both), names, _way_back(steps, values)


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
    file: TextTable,
    names: tuple[str, ...],
    classifier: StableClassifier,
    settings: DataSettings,
    undo: Scale | None,
) -> CsvTable:
    _check_settings(file, names, settings)
    absent = Absent.named(settings.missing_values)
    told = [name for name in told_names(settings) if name != settings.id]
    surveys = surveyed(file, [*dict.fromkeys((*told, *names))], absent)
    taught = classifier.encoding_
    ways = _ways(names, taught, surveys, settings)
    features, scale = _features(names, taught, settings, undo)
    lengths = [
        _length(settings.of(names[group]).per_eps, feature, float(width))
        for group, feature, width in zip(taught.groups, features, scale.width, strict=True)
    ]
    still = [
        feature.name
        for group, feature in zip(taught.groups, features, strict=True)
        if settings.of(names[group]).immutable
    ]
    numeric = torch.tensor([each.kind == "numeric" for each in features])
    encoding = LearntEncoding(
        codes=(),
        taught=taught,
        names=names,
        ways=ways,
        columns=Columns(
            features=features,
            scale=scale,
            reach=reach_of(features, still, torch.tensor(lengths, dtype=torch.float64)),
            baseline=torch.where(numeric, scale.apply(scale.fill), 0.0),
            unit_of_eps="the whole range of a number, from its least to its greatest value in "
            "training; the whole way from 0 to 1 of a column of 0 and 1",
        ),
        classes=tuple(frames.whole(str(each)) for each in classifier.classes_.tolist()),
        labels=_labels(settings, surveys),
        quarters=quarters(settings, surveys),
        absent=absent,
        notes=(*written_notes(ways, surveys), *_unseen(names, taught, surveys, absent)),
    )
    length = next(iter(surveys.values())).rows
    return CsvTable(
        file=file, settings=settings, encoding=encoding, length=length, digest=file.digest
    )


def _check_settings(file: TextTable, names: Sequence[str], settings: DataSettings) -> None:
    settings.check_names(file.names, file.name)
    plain = DataSettings()
    for what in ("scale", "eps", "fit_on", "missing"):
        if getattr(settings, what) != getattr(plain, what):
            raise ValueError(
                f"a fitted classifier encodes rows as in its training: leave out {what}."
            )
    if settings.columns and settings.columns != tuple(names):
        raise ValueError(
            "columns and the classifier name different inputs: "
            f"{difference(names, settings.columns)}; leave columns out."
        )
    other = {*told_names(settings), *settings.drop}
    given = [name for name in file.names if name in names or name not in other]
    if set(given) != set(names):
        raise ValueError(
            f"the classifier takes the columns that it was fitted on, but {file.name} has others: "
            f"{difference(names, given)}; correct the table, or name by drop, id, subgroups or "
            "target what is no input."
        )


def _ways(
    names: Sequence[str],
    taught: learnt.Encoding,
    surveys: Mapping[str, Survey],
    settings: DataSettings,
) -> dict[str, Writing]:
    """How numbers are written: as somebody says, as in training, or as the table shows."""
    absent, found = Absent.named(settings.missing_values), {}
    for name, column in zip(names, taught.columns, strict=True):
        if isinstance(column, learnt.Category):
            continue
        said = settings.of(name)
        way = column.writing
        if said.decimal or said.dates or way is None:
            way = writing_in(surveys[name], said, absent)
        if way is not None:
            found[name] = way
    return found


def _unseen(
    names: Sequence[str], taught: learnt.Encoding, surveys: Mapping[str, Survey], absent: Absent
) -> Iterator[str]:
    """A note for each column with values that training never showed."""
    for name, column in zip(names, taught.columns, strict=True):
        survey = surveys[name]
        if isinstance(column, learnt.Numeric):
            if survey.absent and not column.marked:
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
            word = MISSING if absent.holds(text) else frames.whole(text)
            if word not in column.labels:
                new[word] += count
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
                f"Column {name!r} has {len(new):,} value{'s' * (len(new) > 1)} that training never "
                f"showed, in {new.total():,} rows ({most}{more}): each was encoded as the average "
                "of the training rows; correct them, merge them with known ones, or train again."
            )


def _length(per_eps: float | None, feature: Feature, width: float) -> float:
    return 1.0 if per_eps is None or feature.kind != "numeric" else per_eps / width


def _labels(settings: DataSettings, surveys: Mapping[str, Survey]) -> dict[str, str]:
    if settings.target is None:
        return {}
    return labels_by_text(surveys[settings.target], Absent.named(settings.missing_values))


def _features(
    names: Sequence[str],
    taught: learnt.Encoding,
    settings: DataSettings,
    undo: Scale | None,
) -> tuple[tuple[Feature, ...], Scale]:
    """What the classifier's inputs mean, and the way from original units to them."""
    owner = {name: group for group, members in settings.groups.items() for name in members}
    features: list[Feature] = []
    ways: list[tuple[float, float, float]] = []
    for place, (name, column) in enumerate(zip(names, taught.columns, strict=True)):
        said = settings.of(name)
        shown = said.name or name
        for number, own in enumerate(column.features):
            feature = Feature(
                name=shown + own.removeprefix(column.name),
                group=owner.get(name, shown),
                kind="category",
                low=0.0,
                high=1.0,
            )
            way = (0.0, 0.0, 1.0)
            if isinstance(column, learnt.Category):
                if column.binary:
                    words = (column.labels[0], column.labels[1])
                    feature = replace(feature, kind="binary", words=words)
            elif number:
                feature = replace(feature, kind="binary", words=("given", MISSING))
            else:
                way = _way(column, undo, place)
                if name not in owner:
                    _, low, across = way
                    feature = replace(
                        feature, kind="numeric", low=low, high=low + across, unit=said.unit
                    )
            features.append(feature)
            ways.append(way)
    check_names(features)
    fill, shift, width = torch.tensor(ways, dtype=torch.float64).unbind(1)
    return tuple(features), Scale(fill=fill, shift=shift, width=width)


def _way(column: learnt.Numeric, undo: Scale | None, place: int) -> tuple[float, float, float]:
    """Fill, shift and width of a column of numbers, in the units before a pipeline's scale."""
    if undo is None:
        return column.fill, column.low, column.width
    shift, width = float(undo.shift[place]), float(undo.width[place])
    return column.fill * width + shift, column.low * width + shift, column.width * width
