"""A CSV file or a pandas table as the rows of an audit, in bounded memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
from torch import Tensor

from r2et.auditing.column_names import check_inputs_named, difference
from r2et.auditing.config import DataSettings
from r2et.auditing.encoding import (
    ADVICE,
    Subgrouping,
    columns_of,
    fitted,
    input_names,
    lengths_of,
    other_columns,
    recoded,
    subgrouping,
    surveyed_names,
    width_in_words,
    wishes_of,
)
from r2et.auditing.tables import Chunk, Columns
from r2et.data.cells import Missing, Survey
from r2et.data.encoder import values_in
from r2et.data.fitting import BLOCK, Target, surveyed, target_of, written_notes
from r2et.data.reader import Block, CsvReader, Reader, check_columns, reader_of
from r2et.data.schema import Schema


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvTable:
    """The rows of a table of text, encoded by what was learned of it, or of another, beforehand.

    `columns` tells inputs in original units, which may be others than those of the `schema`.
    """

    reader: Reader
    settings: DataSettings
    schema: Schema
    columns: Columns
    surveys: Mapping[str, Survey]
    """What the target and the columns of subgroups are like: more would fill the memory."""
    read_notes: tuple[str, ...]
    length: int
    assumed: bool = False
    """Whether nothing but the file says in which order the model takes its columns."""
    references: tuple[Tensor, ...] = ()
    """The rows that each audited model itself is told against, (R, d), if all of them have some."""

    @classmethod
    def at(
        cls, data: pd.DataFrame | str | Path, settings: DataSettings | None = None
    ) -> "CsvTable":
        """The file at a path, or a pandas table read as the file that it could be written to.

        It is read through once.
        """
        reader, settings = reader_of(data), settings or DataSettings()
        settings.check_names(reader.names, reader.name)
        other = None if settings.fit_on is None else CsvReader.at(settings.fit_on)
        if other is not None:
            settings.check_names(other.names, other.name)
        inputs = input_names(other or reader, settings)
        wishes, missing = wishes_of(settings, inputs), Missing.named(settings.missing_values)
        surveys = surveyed(other or reader, wishes, missing, ADVICE, target=settings.target)
        schema = fitted(inputs, surveys, wishes, settings)
        lengths = lengths_of(schema, surveys, settings, width_in_words(settings))
        if settings.columns:
            features = [each.name for each in schema.features]
            check_inputs_named(settings.columns, inputs, features, reader.name)
        table = cls(
            reader=reader,
            settings=settings,
            schema=schema,
            columns=columns_of(schema, settings, lengths),
            surveys={name: surveys[name] for name in surveyed_names(settings)},
            read_notes=(*written_notes(surveys.values()), *recoded(schema), *lengths.notes),
            length=surveys[inputs[0]].rows,
            assumed=not settings.columns,
        )
        if other is None:
            return table
        # Refused now, not after hours: whatever the other table does not know.
        rows = sum(len(chunk.rows) for chunk in table.chunks(BLOCK))
        if not rows:
            raise ValueError(f"{reader.name} has a header but no rows: add rows below it.")
        return replace(table, length=rows)

    def __post_init__(self) -> None:
        """Refuse a target and subgroups that are none."""
        _ = self.labels, self.subgroups

    @cached_property
    def labels(self) -> Target | None:
        """What the column of the labels says."""
        if self.target is None:
            return None
        as_words = self.settings.of(self.target).kind == "category"
        return target_of(self.surveys[self.target], as_words=as_words)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Those that the settings name, or else the labels."""
        return self.settings.classes or (self.labels.classes if self.labels else ()) or None

    @cached_property
    def subgroups(self) -> dict[str, Subgrouping]:
        """How each column of subgroups divides rows."""
        return {
            name: subgrouping(self.surveys[name], self.settings.of(name).name or name)
            for name in self.settings.subgroups
        }

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.reader.name).name

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the whole table."""
        return self.reader.digest

    @property
    def target(self) -> str | None:
        """The column of the labels."""
        return self.settings.target

    @property
    def subgroup_values(self) -> dict[str, tuple[str, ...]]:
        """The values of each name of subgroups in order."""
        return {each.name: each.values for each in self.subgroups.values()}

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know about how the file was read."""
        notes = list(self.read_notes)
        inputs = self.schema.columns
        stand = [name for name in self.reader.names if name in set(inputs)]
        if self.assumed:
            of = "the file's columns"
            if self.settings.fit_on is not None:
                of = f"the columns of {Path(self.settings.fit_on).name}"
            notes.append(
                f"The model carries no column names: that {of} stand in the order it was trained "
                "on is assumed; columns = [...] states the order."
            )
        elif stand != list(inputs):
            notes.append(
                "The file's columns stand in another order than the model's "
                f"({difference(inputs, stand)}): they were taken by their names."
            )
        if self.settings.fit_on is None and self.settings.scale in ("standard", "minmax"):
            notes.append(
                "The scale was fitted on the audited rows themselves; if the model was trained on "
                "others, name their table by fit_on or state the scale."
            )
        return notes

    @cached_property
    def _missing(self) -> Missing:
        return Missing.named(self.settings.missing_values)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows in order, at most `size` at a time."""
        check_columns(self.reader, [*other_columns(self.settings), *self.schema.columns])
        first = 0
        for block in self.reader.blocks(size):
            yield self._chunk(block, first)
            first += len(block.lines)

    def _chunk(self, block: Block, first: int) -> Chunk:
        rows = range(first, first + len(block.lines))
        ids = [""] * len(rows) if self.settings.id is None else block.columns[self.settings.id]
        values = values_in(self.schema, block, self._missing)
        return Chunk(
            rows=rows,
            x=self.schema.encode(values),
            values=values,
            labels=[self._label(block, row) for row in range(len(rows))],
            ids=[text.strip() or None for text in ids],
            subgroups=[
                {
                    each.name: each.of(block.columns[name][row], self._missing)
                    for name, each in self.subgroups.items()
                }
                for row in range(len(rows))
            ],
        )

    def _label(self, block: Block, row: int) -> str | None:
        """The class that the target of a row names, None if it is missing."""
        if self.labels is None:
            return None
        text = block.columns[self.labels.name][row].strip()
        if self._missing.holds(text):
            return None
        label = self.labels.label(text)
        if self.classes is not None and label not in self.classes:
            raise ValueError(
                f"{block.where(row, self.labels.name)}: {label!r} is none of the classes "
                f"{', '.join(self.classes)}: correct it, or name all classes by classes = [...]."
            )
        return label
