"""What the settings of an audit make of the columns of a table: scales, lengths and subgroups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from r2et.auditing.config import DataSettings
from r2et.auditing.tables import AS_GIVEN, Columns, in_order, reach_of
from r2et.data.cells import Missing, Survey, number_in, word_in
from r2et.data.features import MISSING, with_unit
from r2et.data.fitting import GROUP, Advice, Gaps, Wish, attribute_of
from r2et.data.reader import Reader
from r2et.data.schema import Attribute, Category, Numeric, Schema
from r2et.data.writing import Writing

SUBGROUP_NUMBERS = 12  # of a column of more different numbers the quarters are its subgroups
LENGTH_IN_WORDS = {
    "standard": "one standard deviation of a number",
    "range": "the whole range of a number, from its least to its greatest value",
}
ADVICE = Advice(
    category="say kind = 'category'",
    writing="say decimal = '.' or ',', or dates = 'day first' or 'month first', in "
    "[features.{name}], or kind = 'category'",
    many=f"{GROUP}, as the model was trained",
)


def other_columns(settings: DataSettings) -> list[str]:
    """The columns that are read besides the inputs."""
    return [*surveyed_names(settings), *([settings.id] if settings.id is not None else [])]


def surveyed_names(settings: DataSettings) -> list[str]:
    """The columns besides the inputs of which more must be known before a row is read."""
    return [*([settings.target] if settings.target is not None else []), *settings.subgroups]


def input_names(reader: Reader, settings: DataSettings) -> list[str]:
    """The columns that are inputs: all but the target, the identifier and those left out.

    In the order of the settings' columns, where these are the same, else in that of the file.
    """
    out = {settings.target, settings.id, *settings.drop}
    names = [name for name in reader.names if name not in out]
    if not names:
        raise ValueError(f"{reader.name} has no column left as an input: drop fewer.")
    return list(settings.columns) if set(settings.columns) == set(names) else names


def wishes_of(settings: DataSettings, inputs: Sequence[str]) -> dict[str, Wish]:
    """What the settings say of the columns of which more must be known before a row is encoded."""
    return {name: _wish(settings, name) for name in (*surveyed_names(settings), *inputs)}


def _wish(settings: DataSettings, name: str) -> Wish:
    said = settings.of(name)
    group = next((each for each, members in settings.groups.items() if name in members), "")
    return Wish(
        kind=said.kind,
        unit=said.unit,
        shown=said.name or "",
        group=group,
        decimal=said.decimal,
        dates=said.dates,
    )


# --- scales and lengths -------------------------------------------------------------------------


def fitted(
    inputs: Sequence[str],
    surveys: Mapping[str, Survey],
    wishes: Mapping[str, Wish],
    settings: DataSettings,
) -> Schema:
    """How the inputs of a surveyed table are encoded."""
    gaps = cast(Gaps, settings.missing)
    found = (
        attribute_of(surveys[name], _of_few_rows(wishes[name], surveys[name]), ADVICE, gaps)
        for name in inputs
    )
    return Schema(tuple(_scaled(each, surveys[each.name], settings) for each in found))


def _of_few_rows(wish: Wish, survey: Survey) -> Wish:
    """The wish, that a single number is one in a column where the audited rows may be few."""
    single = not survey.words and len(survey.different or ()) == 1
    return replace(wish, kind="numeric") if single and wish.kind is None else wish


def _scaled(attribute: Attribute, survey: Survey, settings: DataSettings) -> Attribute:
    if isinstance(attribute, Category):
        return attribute
    attribute = replace(attribute, fill=survey.quantile(0.5))
    if attribute.group:
        return attribute
    shift, width = _scaled_by(survey, settings, attribute.fill)
    return replace(attribute, shift=shift, width=width)


def _scaled_by(survey: Survey, settings: DataSettings, fill: float) -> tuple[float, float]:
    """Shift and width of a column of numbers."""
    if not isinstance(settings.scale, str):
        pair: tuple[float, float] = settings.scale.get(survey.name, (0.0, 1.0))
        return float(pair[0]), float(pair[1])
    if settings.scale == "none":
        return 0.0, 1.0
    low, across = (
        survey.deviation(fill)
        if settings.scale == "standard"
        else (survey.low, survey.high - survey.low)
    )
    if not across > 0:
        raise ValueError(
            f"a scale needs columns that vary, but {survey.name!r} has only {survey.low:g}: fit it "
            "on the training table by fit_on, or state it in [scale]."
        )
    return low, across


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths:
    """What a length of 1 is for each input (d,), the same in words, and notes."""

    values: Tensor
    unit: str
    notes: tuple[str, ...]


def lengths_of(
    schema: Schema, surveys: Mapping[str, Survey], settings: DataSettings, of_scale: str
) -> Lengths:
    """What a length of 1 is, `of_scale` being the width of a number's scale in words."""
    by = settings.eps or ("standard" if settings.scale == "none" else "scaled")
    lengths, notes, said = [], [], []
    for each in schema.attributes:
        if isinstance(each, Category) or each.group:
            lengths += [1.0] * len(each.features)
            continue
        own = settings.of(each.name).per_eps
        length = _measure(each, surveys[each.name], by) if own is None else own
        if not length > 0:
            notes.append(
                f"Column {each.name!r} has one value only: for it a length of 1 is one of its own "
                "unit; per_eps can say otherwise."
            )
            length = 1.0
        lengths += [length / each.width, 1.0][: len(each.features)]
        if own is not None:
            feature = each.features[0]
            said.append(f"{with_unit(own, feature.unit)} of {feature.name}")
    words = of_scale if by == "scaled" else LENGTH_IN_WORDS[by]
    own_words = f", but {' and '.join(said)}" if said else ""
    return Lengths(
        values=torch.tensor(lengths, dtype=torch.float64),
        unit=f"{words}{own_words}; the whole way from 0 to 1 of a column of 0 and 1",
        notes=tuple(notes),
    )


def _measure(attribute: Numeric, survey: Survey, by: str) -> float:
    if by == "scaled":
        return attribute.width
    return survey.high - survey.low if by == "range" else survey.deviation(attribute.fill)[1]


def width_in_words(settings: DataSettings) -> str:
    """What the width of a number's scale is."""
    if not isinstance(settings.scale, str):
        return "the width that the settings state for a number"
    return {
        "none": AS_GIVEN,
        "standard": LENGTH_IN_WORDS["standard"],
        "minmax": LENGTH_IN_WORDS["range"],
    }[settings.scale]


def columns_of(schema: Schema, settings: DataSettings, lengths: Lengths) -> Columns:
    """What the inputs mean, in the units of a schema."""
    features, scale = schema.features, schema.scale
    still = [
        feature.name
        for each in schema.attributes
        for feature in each.features
        if settings.of(each.name).immutable
    ]
    numeric = torch.tensor([each.kind == "numeric" for each in features])
    return Columns(
        features=features,
        scale=scale,
        reach=reach_of(features, still, lengths.values),
        baseline=torch.where(numeric, scale.apply(scale.fill), 0.0),
        unit_of_eps=lengths.unit,
    )


def recoded(schema: Schema) -> list[str]:
    """A note for each column of two numbers other than 0 and 1."""
    return [
        f"Column {each.name!r} has two values, {float(each.labels[0]):g} and "
        f"{float(each.labels[1]):g}, and was read as 0 and 1; say kind = 'numeric' if the model "
        "takes them as they are."
        for each in schema.attributes
        if isinstance(each, Category)
        and each.binary
        and each.as_numbers
        and each.labels != ("0", "1")
    ]


# --- subgroups ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Subgrouping:
    """How the cells of a column divide rows: by their words, or by `edges` between numbers.

    `values` are the subgroups in order, those between edges first.
    """

    name: str
    values: tuple[str, ...]
    edges: tuple[float, ...] = ()
    writing: Writing | None = None

    def of(self, text: str, missing: Missing) -> str:
        """The subgroup that a cell is in."""
        text = text.strip()
        if missing.holds(text):
            return MISSING
        number = number_in(text, self.writing) if self.edges else None
        if number is None:
            return word_in(text)
        return self.values[int(np.searchsorted(self.edges, number, side="left"))]


def subgrouping(survey: Survey, shown: str) -> Subgrouping:
    """How a surveyed column divides rows: a column of many numbers by its quartiles."""
    absent = (MISSING,) if survey.absent else ()
    if survey.texts is not None and len(survey.texts) <= SUBGROUP_NUMBERS:
        words = in_order({word_in(text) for text in survey.seen} - {MISSING})
        return Subgrouping(name=shown, values=(*words, *absent))
    if survey.words or not survey.count:
        raise ValueError(
            f"subgroups names {survey.name!r}, which has more than {SUBGROUP_NUMBERS} different "
            "words: merge them, or leave it out."
        )
    edges = tuple(sorted({survey.quantile(at) for at in (0.25, 0.5, 0.75)}))
    quarters = (
        f"up to {edges[0]:g}",
        *(f"above {low:g} to {high:g}" for low, high in pairwise(edges)),
        f"above {edges[-1]:g}",
    )
    return Subgrouping(name=shown, values=(*quarters, *absent), edges=edges, writing=survey.writing)
