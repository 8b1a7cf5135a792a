"""How the columns of a file become the inputs of a model: fixed once, for every block alike.

A column is read as `r2et.data.frames` reads it, by the same functions; only what they need to know
of a whole column is learned here block by block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from r2et.auditing.config import DataSettings, FeatureSettings
from r2et.auditing.reading import (
    MOST_TEXTS,
    Absent,
    Cells,
    Survey,
    TextTable,
    cells_of,
    place_of,
)
from r2et.auditing.tables import AS_GIVEN, Columns, reach_of
from r2et.data import frames
from r2et.data.dataset import MISSING, Feature, Scale, check_names, numeric_columns, with_unit
from r2et.data.writing import Writing, writing_of

BLOCK = 4096
SUBGROUP_NUMBERS = 12  # of a column of more different numbers the quarters are its subgroups


@dataclass(frozen=True, kw_only=True)
class Code:
    """How the cells of one column become numbers, one for each of its features.

    Without a `lookup` they are the numbers themselves, a second one marking the missing.
    """

    column: str
    features: tuple[Feature, ...]
    lookup: Mapping[str, tuple[float, ...]] | None = None
    filled: bool = False
    writing: Writing | None = None

    def numbers(self, cells: Cells, where: frames.Where) -> NDArray[np.float64]:
        """The cells as numbers, NaN for a missing one that is to be filled: (B, features)."""
        if self.lookup is None:
            if cells.words.any():
                at = int(cells.words.argmax())
                raise ValueError(
                    f"{where(at, self.column)}: expected a number as in the rest of the column, "
                    f"got {cells.texts[at]!r}: correct it or say kind = 'category'."
                )
            marked = len(self.features) > 1
            if cells.missing.any() and not marked and not self.filled:
                at = int(cells.missing.argmax())
                raise ValueError(
                    f"{where(at, self.column)}: the value is missing, which the table the encoding "
                    "was fitted on never shows: fill it in, or say missing = 'median'."
                )
            columns = [cells.numbers, cells.missing.astype(np.float64)]
            return np.stack(columns[: len(self.features)], axis=1)
        found = []
        for at, (text, gone) in enumerate(zip(cells.texts, cells.missing.tolist(), strict=True)):
            numbers = self.lookup.get(MISSING if gone else text.strip())
            if numbers is None:
                raise ValueError(
                    f"{where(at, self.column)}: got {text.strip() or 'nothing'!r}, which the table "
                    "the encoding was fitted on never shows: merge it with another value, or fit "
                    "on a table that has it."
                )
            found.append(numbers)
        return np.array(found, dtype=np.float64).reshape(len(cells.texts), len(self.features))


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """All that turns the rows of a file into inputs, labels and subgroups."""

    codes: tuple[Code, ...]
    columns: Columns
    classes: tuple[str, ...] | None
    labels: Mapping[str, str]
    quarters: Mapping[str, tuple[float, ...]]
    absent: Absent
    notes: tuple[str, ...]
    writings: Mapping[str, Writing] = field(default_factory=dict)

    @property
    def inputs(self) -> Sequence[str]:
        """The columns that are inputs."""
        return [code.column for code in self.codes]

    def encode(self, table: Mapping[str, Sequence[str]], where: frames.Where) -> Tensor:
        """Inputs of the model for some rows, given by column: (B, d) in float64."""
        parts = [
            code.numbers(cells_of(table[code.column], self.absent, code.writing), where)
            for code in self.codes
        ]
        return self.columns.scale.apply(torch.from_numpy(np.concatenate(parts, axis=1)))

    def label(self, text: str, where: str) -> str | None:
        """The class that a cell of the target names, None if it is missing."""
        text = text.strip()
        if self.absent.holds(text):
            return None
        label = self.labels.get(text, frames.whole(text))
        if self.classes is not None and label not in self.classes:
            raise ValueError(
                f"{where}: {label!r} is none of the classes {', '.join(self.classes)}: correct it, "
                "or name all classes by classes = [...]."
            )
        return label

    def subgroup(self, column: str, text: str) -> str:
        """The subgroup of a column that a cell is in."""
        text = text.strip()
        if self.absent.holds(text):
            return MISSING
        edges, writing = self.quarters.get(column), self.writings.get(column)
        plain = float(text) if frames.NUMBER.fullmatch(text) else None
        number = plain if writing is None else writing.number(text)
        if edges is None or number is None:
            return frames.whole(text)
        place = int(np.searchsorted(edges, number, side="left"))
        shown = [f"{edge:g}" for edge in edges]
        if place == 0:
            return f"up to {shown[0]}"
        if place == len(edges):
            return f"above {shown[-1]}"
        return f"above {shown[place - 1]} to {shown[place]}"


def surveyed(file: TextTable, names: Sequence[str], absent: Absent) -> dict[str, Survey]:
    """What some columns of a file are like."""
    places = {name: place_of(file, name) for name in names}
    found = {name: Survey(name) for name in names}
    for block in file.blocks(BLOCK):
        for name, place in places.items():
            cells = cells_of([row[place] for row in block.rows], absent)
            found[name].see(cells, block.lines)
    if not next(iter(found.values())).rows:
        raise ValueError(f"{file.name} has a header but no rows: add rows below it.")
    return found


def writing_in(survey: Survey, said: FeatureSettings, absent: Absent) -> Writing | None:
    """The way in which the numbers of a surveyed column are written, None if plainly."""
    if said.kind == "category" or not (survey.words or said.decimal == "," or said.dates):
        return None
    key = f"[features.{survey.name!r}]".replace("'", '"')
    return writing_of(
        survey.name,
        [text for text in survey.seen if not absent.holds(text)],
        decimal=said.decimal,
        order=said.dates,
        sure=said.kind == "numeric",
        cure=f"say decimal = '.' or ',', or dates = 'day first' or 'month first', in {key}, or "
        "kind = 'category'",
    )


def rewritten(
    file: TextTable, surveys: Mapping[str, Survey], settings: DataSettings
) -> dict[str, Survey]:
    """The surveys, once more of those columns whose numbers are not written plainly."""
    absent = Absent.named(settings.missing_values)
    ways = {
        name: way
        for name, survey in surveys.items()
        if name != settings.target
        and (way := writing_in(survey, settings.of(name), absent)) is not None
    }
    if not ways:
        return dict(surveys)
    again = {name: Survey(name, way) for name, way in ways.items()}
    for block in file.blocks(BLOCK):
        for name, survey in again.items():
            place = place_of(file, name)
            cells = cells_of([row[place] for row in block.rows], absent, survey.writing)
            survey.see(cells, block.lines)
    return {**surveys, **again}


def written_notes(ways: Mapping[str, Writing], surveys: Mapping[str, Survey]) -> list[str]:
    """A note for each column whose numbers are not written plainly."""
    return [note for name, way in ways.items() for note in way.notes(name, surveys[name].seen)]


def input_names(file: TextTable, settings: DataSettings) -> list[str]:
    """The columns that are inputs: all but the target, the identifier and those left out.

    In the order of the settings' columns, where these are the same, else in that of the file.
    """
    out = {settings.target, settings.id, *settings.drop}
    names = [name for name in file.names if name not in out]
    if not names:
        raise ValueError(f"{file.name} has no column left as an input: drop fewer.")
    return list(settings.columns) if set(settings.columns) == set(names) else names


def fitted(file: TextTable, settings: DataSettings, surveys: Mapping[str, Survey]) -> Encoding:
    """The encoding of a surveyed file."""
    surveys = rewritten(file, surveys, settings)
    ways = {name: each.writing for name, each in surveys.items() if each.writing is not None}
    inputs = input_names(file, settings)
    codes = tuple(_code(file, surveys[name], settings) for name in inputs)
    features = tuple(feature for code in codes for feature in code.features)
    check_names(features)
    scale = _scale(codes, surveys, settings)
    lengths, unit, notes = _lengths(codes, surveys, settings, scale)
    still = [
        feature.name
        for code in codes
        for feature in code.features
        if settings.of(code.column).immutable
    ]
    numeric = torch.tensor([each.kind == "numeric" for each in features])
    classes, labels = _classes(file, settings, surveys)
    return Encoding(
        codes=codes,
        columns=Columns(
            features=features,
            scale=scale,
            reach=reach_of(features, still, lengths),
            baseline=torch.where(numeric, scale.apply(scale.fill), 0.0),
            unit_of_eps=unit,
        ),
        classes=classes,
        labels=labels,
        quarters=quarters(settings, surveys),
        absent=Absent.named(settings.missing_values),
        notes=(*written_notes(ways, surveys), *_recoded(codes, surveys), *notes),
        writings=ways,
    )


def _code(file: TextTable, survey: Survey, settings: DataSettings) -> Code:
    """How one column becomes numbers."""
    said, name = settings.of(survey.name), survey.name
    group = next((each for each, members in settings.groups.items() if name in members), None)
    sure = said.kind == "numeric" or group is not None
    as_words = said.kind == "category"
    if survey.absent and settings.missing == "refuse":
        raise ValueError(
            f"{file.where(survey.first_absent, name)}: the value is missing: fill it in, "
            " or say missing = 'mark' or 'median'."
        )
    if not as_words:
        _check_numbers(file, survey, sure)
    values = None if survey.texts is None or survey.writing else set(_numbers(survey))
    two = values is not None and len(values) == 2
    if not as_words and not survey.words and survey.count and (sure or not two):
        marks = [np.nan] if survey.absent and settings.missing == "mark" else []
        ends = torch.tensor([survey.low, survey.high, *marks], dtype=torch.float64)
        unit = said.unit or ("" if survey.writing is None else survey.writing.measure)
        features = [feature for feature, _ in numeric_columns(name, ends, unit)]
        if group is not None:
            features = [replace(each, kind="category", group=group) for each in features[:1]]
        filled = bool(survey.absent) or settings.missing == "median"
        return Code(
            column=name,
            features=_renamed(features, name, said.name),
            filled=filled,
            writing=survey.writing,
        )
    return _worded(file, survey, settings, as_words)


def _numbers(survey: Survey) -> list[float]:
    assert survey.texts is not None
    return [float(text) for text in survey.texts if frames.NUMBER.fullmatch(text)]


def _check_numbers(file: TextTable, survey: Survey, sure: bool) -> None:
    """Refuse a word among numbers, and infinite numbers, as `frames` does."""
    known = survey.count + survey.words
    tells = survey.count >= max(frames.NUMBERS_THAT_TELL, frames.SHARE_THAT_TELLS * known)
    if survey.first_word is not None and (sure or tells or survey.writing is not None):
        line, text = survey.first_word
        raise ValueError(
            f"{file.where(line, survey.name)}: expected a number as in the rest of the column, "
            f"got {text!r}: correct it or say kind = 'category'."
        )
    if survey.first_infinite is not None and survey.first_word is None:
        line, text = survey.first_infinite
        raise ValueError(
            f"{file.where(line, survey.name)}: expected a finite number, got {text!r}, beyond "
            f"{frames.LARGEST:g}: correct it or leave it empty."
        )


def _worded(file: TextTable, survey: Survey, settings: DataSettings, as_words: bool) -> Code:
    """A column of words, by the columns that `frames` makes of one row for each cell."""
    name, said = survey.name, settings.of(survey.name)
    if survey.texts is None:
        raise ValueError(
            f"column {name!r} of {file.name} has more than {MOST_TEXTS:,} different words: "
            f"{frames.GROUP}, as the model was trained."
        )
    frames.check_categories(name, len(survey.texts), f"{frames.GROUP}, as the model was trained")
    absent = Absent.named(settings.missing_values)
    texts = [text for text in survey.texts if not absent.holds(text)]
    counts = [survey.texts[text] for text in texts]
    codes = np.repeat([*range(len(texts)), -1], [*counts, survey.absent])
    cells = frames.Cells(name=name, texts=tuple(texts), codes=codes)
    reading = frames.Reading(
        target="",
        categories=frozenset({name} if as_words else ()),
        numeric=frozenset(),
        drop=frozenset(),
        units={},
    )
    columns = frames.columns_of(cells, reading, lambda row, column: file.where(None, column))
    firsts = [*np.cumsum([0, *counts])[: len(texts)].tolist()]
    lookup = {
        text: tuple(float(values[at]) for _, values in columns)
        for text, at in zip(texts, firsts, strict=True)
    }
    if survey.absent:
        lookup[MISSING] = tuple(float(values[-1]) for _, values in columns)
    features = [
        replace(each, words=None) if each.words == ("0", "1") else each for each, _ in columns
    ]
    return Code(column=name, features=_renamed(features, name, said.name), lookup=lookup)


def _renamed(features: Sequence[Feature], old: str, new: str | None) -> tuple[Feature, ...]:
    """The features of a column under the name it has for the reader."""
    if new is None:
        return tuple(features)
    return tuple(
        replace(
            each,
            name=new + each.name.removeprefix(old),
            group=new if each.group == old else each.group,
        )
        for each in features
    )


def _recoded(codes: Sequence[Code], surveys: Mapping[str, Survey]) -> list[str]:
    """A note for each column of two numbers other than 0 and 1."""
    notes = []
    for code in codes:
        if code.lookup is None or len(code.features) > 1 or surveys[code.column].words:
            continue
        ends = sorted({*_numbers(surveys[code.column])})
        if len(ends) == 2 and ends != [0.0, 1.0]:
            notes.append(
                f"Column {code.column!r} has two values, {ends[0]:g} and {ends[1]:g}, and was read "
                "as 0 and 1; say kind = 'numeric' if the model takes them as they are."
            )
    return notes


def _scale(codes: Sequence[Code], surveys: Mapping[str, Survey], settings: DataSettings) -> Scale:
    fill, shift, width = [], [], []
    for code in codes:
        survey = surveys[code.column]
        for place, feature in enumerate(code.features):
            number = code.lookup is None and place == 0
            middle = survey.quantile(0.5) if number else 0.0
            fill.append(middle)
            if number and feature.kind == "numeric":
                low, across = _scaled_by(survey, settings, middle)
            else:
                low, across = 0.0, 1.0
            shift.append(low)
            width.append(across)
    return Scale(
        fill=torch.tensor(fill, dtype=torch.float64),
        shift=torch.tensor(shift, dtype=torch.float64),
        width=torch.tensor(width, dtype=torch.float64),
    )


def _scaled_by(survey: Survey, settings: DataSettings, fill: float) -> tuple[float, float]:
    """Shift and width of a column of numbers."""
    if not isinstance(settings.scale, str):
        pair: tuple[float, float] = settings.scale.get(survey.name, (0.0, 1.0))
        return float(pair[0]), float(pair[1])
    if settings.scale == "none":
        return 0.0, 1.0
    mean, deviation = survey.deviation(fill)
    low, across = (
        (mean, deviation)
        if settings.scale == "standard"
        else (survey.low, survey.high - survey.low)
    )
    if not across > 0:
        raise ValueError(
            f"a scale needs columns that vary, but {survey.name!r} has only {survey.low:g}: fit it "
            "on the training table by fit_on, or state it in [scale]."
        )
    return float(low), float(across)


def _lengths(
    codes: Sequence[Code], surveys: Mapping[str, Survey], settings: DataSettings, scale: Scale
) -> tuple[Tensor, str, list[str]]:
    """What a length of 1 is for each input (d,), the same in words, and notes."""
    by = settings.eps or ("standard" if settings.scale == "none" else "scaled")
    lengths, notes, said = [], [], []
    for code in codes:
        survey = surveys[code.column]
        own = settings.of(code.column).per_eps
        for place, feature in enumerate(code.features):
            if code.lookup is not None or place or feature.kind != "numeric":
                lengths.append(1.0)
                continue
            width = float(scale.width[len(lengths)])
            _, deviation = survey.deviation(float(scale.fill[len(lengths)]))
            measure = {"scaled": width, "standard": deviation, "range": survey.high - survey.low}
            length = measure[by] if own is None else own
            if not length > 0:
                notes.append(
                    f"Column {code.column!r} has one value only: for it a length of 1 is one of "
                    "its own unit; per_eps can say otherwise."
                )
                length = 1.0
            lengths.append(length / width)
            if own is not None:
                said.append(f"{with_unit(own, feature.unit)} of {feature.name}")
    words = {
        "standard": "one standard deviation of a number",
        "range": "the whole range of a number, from its least to its greatest value",
        "scaled": _width_in_words(settings),
    }[by]
    own_words = f", but {' and '.join(said)}" if said else ""
    return (
        torch.tensor(lengths, dtype=torch.float64),
        f"{words}{own_words}; the whole way from 0 to 1 of a column of 0 and 1",
        notes,
    )


def _width_in_words(settings: DataSettings) -> str:
    if not isinstance(settings.scale, str):
        return "the width that the settings state for a number"
    return {
        "none": AS_GIVEN,
        "standard": "one standard deviation of a number",
        "minmax": "the whole range of a number, from its least to its greatest value",
    }[settings.scale]


def _classes(
    file: TextTable, settings: DataSettings, surveys: Mapping[str, Survey]
) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """The names of the classes, and the one that each text of the target stands for."""
    if settings.target is None:
        return settings.classes or None, {}
    survey = surveys[settings.target]
    as_words = settings.of(settings.target).kind == "category"
    labels = labels_by_text(survey, Absent.named(settings.missing_values), as_words)
    if len(labels) > frames.MOST_NUMERIC_CLASSES or survey.texts is None:
        raise ValueError(
            f"the target {settings.target!r} of {file.name} has more than "
            f"{frames.MOST_NUMERIC_CLASSES} values: it looks like a quantity to be estimated; cut "
            "it into classes first."
        )
    cells = frames.Cells(name=settings.target, texts=tuple(labels), codes=np.arange(len(labels)))
    _, ranked = frames.coded(cells, list(labels.values()))
    return settings.classes or tuple(ranked) or None, labels


def labels_by_text(survey: Survey, absent: Absent, as_words: bool = False) -> dict[str, str]:
    """What each text of a target is called; equal numbers are called the same."""
    texts = tuple(text for text in survey.texts or () if not absent.holds(text))
    cells = frames.Cells(name=survey.name, texts=texts, codes=np.arange(len(texts)))
    return dict(zip(texts, frames.labels_of(cells, as_words), strict=True))


def quarters(settings: DataSettings, surveys: Mapping[str, Survey]) -> dict[str, tuple[float, ...]]:
    """The quartiles of each subgroup column that holds many numbers."""
    found = {}
    for name in settings.subgroups:
        survey = surveys[name]
        many = survey.texts is None or len(survey.texts) > SUBGROUP_NUMBERS
        if many and not survey.words and survey.count:
            found[name] = tuple(sorted({survey.quantile(at) for at in (0.25, 0.5, 0.75)}))
        elif many:
            raise ValueError(
                f"subgroups names {name!r}, which has more than {SUBGROUP_NUMBERS} different "
                "words: merge them, or leave it out."
            )
    return found
