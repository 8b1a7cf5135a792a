"""A CSV file or a pandas table as the rows of an audit, in bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from r2et.auditing.config import DataSettings
from r2et.auditing.encoding import BLOCK, Encoding, fitted, input_names, surveyed
from r2et.auditing.reading import Absent, Block, CsvFile, FrameText, TextTable, place_of
from r2et.auditing.schema import check_inputs_named, difference
from r2et.auditing.tables import Chunk, Columns
from r2et.data.dataset import Scale


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvTable:
    """The rows of a table of text, encoded by what was learned of it, or of another, beforehand."""

    file: TextTable
    settings: DataSettings
    encoding: Encoding
    length: int
    digest: str
    assumed: bool = False
    """Whether nothing but the file says in which order the model takes its columns."""

    @classmethod
    def at(
        cls, path: str | Path, settings: DataSettings | None = None, scale: Scale | None = None
    ) -> "CsvTable":
        """The file at a path, read through once; a `scale` takes the place of the fitted one."""
        return cls.of(CsvFile.at(path), settings or DataSettings(), scale)

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, settings: DataSettings | None = None) -> "CsvTable":
        """A pandas table, read as the CSV file would be that it could be written to."""
        return cls.of(FrameText(frame=frame), settings or DataSettings())

    @classmethod
    def of(cls, file: TextTable, settings: DataSettings, scale: Scale | None = None) -> "CsvTable":
        """A table of text, read through once."""
        settings.check_names(file.names, file.name)
        assumed = not settings.columns and scale is None
        absent = Absent.named(settings.missing_values)
        own = surveyed(file, _surveyed_names(file, settings), absent)
        if settings.fit_on is None:
            encoding = fitted(file, settings, own)
        else:
            other = CsvFile.at(settings.fit_on)
            settings.check_names(other.names, str(settings.fit_on))
            surveys = surveyed(other, _surveyed_names(other, settings), absent)
            encoding = fitted(other, settings, surveys)
        if settings.columns:
            features = [each.name for code in encoding.codes for each in code.features]
            check_inputs_named(settings.columns, encoding.inputs, features, file.name)
        if scale is not None:
            encoding = replace(encoding, columns=replace(encoding.columns, scale=scale))
        length = next(iter(own.values())).rows
        table = cls(
            file=file,
            settings=settings,
            encoding=encoding,
            length=length,
            digest=file.digest,
            assumed=assumed,
        )
        if settings.fit_on is not None:
            for _ in table.chunks(BLOCK):
                pass  # refused now, not after hours: whatever the other table does not know
        return table

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.file.name).name

    @property
    def columns(self) -> Columns:
        """What the inputs mean."""
        return self.encoding.columns

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of the logits."""
        return self.encoding.classes

    @property
    def target(self) -> str | None:
        """The column of the labels."""
        return self.settings.target

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know about how the file was read."""
        notes = list(self.encoding.notes)
        inputs = self.encoding.inputs
        stand = [name for name in self.file.names if name in set(inputs)]
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
    def _places(self) -> dict[str, int]:
        names = [*told_names(self.settings), *self.encoding.inputs]
        return {name: place_of(self.file, name) for name in names}

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows in order, at most `size` at a time."""
        first = 0
        for block in self.file.blocks(size):
            yield self._chunk(block, first)
            first += len(block.rows)

    def _chunk(self, block: Block, first: int) -> Chunk:
        def where(row: int, column: str) -> str:
            return self.file.where(block.lines[row], column)

        table = {name: [row[place] for row in block.rows] for name, place in self._places.items()}
        settings, count, target = self.settings, len(block.rows), self.settings.target
        return Chunk(
            rows=range(first, first + count),
            x=self.encoding.encode(table, where),
            labels=[None] * count
            if target is None
            else [
                self.encoding.label(text, where(row, target))
                for row, text in enumerate(table[target])
            ],
            ids=[None] * count
            if settings.id is None
            else [text.strip() or None for text in table[settings.id]],
            subgroups=[
                {
                    self._named(name): self.encoding.subgroup(name, table[name][row])
                    for name in settings.subgroups
                }
                for row in range(count)
            ],
        )

    def _named(self, column: str) -> str:
        return self.settings.of(column).name or column


def told_names(settings: DataSettings) -> list[str]:
    """The columns that are read besides the inputs."""
    wanted = (settings.target, settings.id, *settings.subgroups)
    return [name for name in wanted if name is not None]


def _surveyed_names(file: TextTable, settings: DataSettings) -> list[str]:
    """The columns of which more must be known before the first row is encoded."""
    told = [name for name in told_names(settings) if name != settings.id]
    return [*dict.fromkeys((*told, *input_names(file, settings)))]
