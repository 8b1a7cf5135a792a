"""Models made ready for an audit of reasons: what they are told against, and in which words."""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from r2et.auditing.config import DataSettings
from r2et.auditing.csvs import CsvTable
from r2et.auditing.doubts import doubts, doubts_of_order, sample_of
from r2et.auditing.parts import preflight_of
from r2et.auditing.reason_models import (
    BandedTable,
    NetworkTable,
    ReasonSubject,
    SubjectOf,
    TableCode,
)
from r2et.auditing.reason_settings import FAVOURABLE, ReasonSettings
from r2et.auditing.subject import PROBED, Ready, as_taken_by, model_digest, plain_network
from r2et.auditing.tables import Chunk, Source
from r2et.bands.attribute import NumberBands, WordBands
from r2et.bands.binner import StableBinner
from r2et.bands.classifier import StableClassifier
from r2et.bands.pipelines import pipeline_model
from r2et.bands.telling import usual_in_words
from r2et.certification.contributions import certify_contributions
from r2et.certification.replay import RecordedModel, record
from r2et.core.naming import briefly, nearest
from r2et.core.reasons import Question
from r2et.core.rng import stream
from r2et.data.builtin import DATASETS, load
from r2et.data.cells import word_in
from r2et.data.frames import to_frame
from r2et.data.reader import FrameReader, reader_of
from r2et.explainers import Shapley

Floats = NDArray[np.float64]
Reference = Tensor | pd.DataFrame | str | Path | None

K, THRESHOLD = 3, 0.5
LEAST_REFERENCE, ASKED = 20, 51_200
"""Rows of a reference, at least, and mixed rows that a network is asked about for one row."""
MOST_DOUBTED = 20  # rows by which the standard error of contributions is told


# --- networks -----------------------------------------------------------------------------------


def of_networks(models: Mapping[str, nn.Module], reference: Reference = None) -> SubjectOf:
    """How networks are made ready for rows that some source encodes for them."""

    def subjects(source: Source, sample: Chunk, settings: ReasonSettings) -> list[ReasonSubject]:
        code = TableCode(columns=source.columns)
        known = _references(source, sample, reference, len(models))
        return [
            _network(name, model, source, sample, settings, code, people, said)
            for (name, model), (people, said) in zip(models.items(), known, strict=True)
        ]

    return subjects


def _network(
    name: str,
    model: nn.Module,
    source: Source,
    sample: Chunk,
    settings: ReasonSettings,
    code: TableCode,
    people: Tensor,
    said: str,
) -> ReasonSubject:
    ready = plain_network(name, model, sample.x)
    with torch.no_grad():
        count = ready.model(sample.x[:1].double().to(ready.device)).shape[1]
    classes = source.classes or tuple(map(str, range(max(count, 2))))
    if len(classes) != max(count, 2):
        raise ValueError(
            f"the model {name} answers for {count} classes, but {len(classes)} are known "
            f"({', '.join(classes)}): name them all by classes, in the order of its outputs."
        )
    threshold = THRESHOLD if settings.threshold is None else settings.threshold
    table = NetworkTable(
        model=ready.model,
        code=code,
        reference=people.to(ready.device),
        classes=classes,
        threshold=threshold,
    )
    if said == FAVOURABLE:
        place = classes.index(settings.favourable) if settings.favourable else len(classes) - 1
        table = replace(table, reference=_decided_for(table, place))
        said = f"rows that are decided for {classes[place]!r}"
    drawn = _drawn(table, settings)
    recorded, unproved = _recorded(ready, sample.x)
    table = replace(table, reference=drawn, recorded=recorded)
    frame = code.frame(drawn.cpu())
    return ReasonSubject(
        name=name,
        model=table,
        digest=model_digest(model),
        frame=lambda chunk: code.frame(chunk.x),
        words={each: words for each in code.names if (words := _words(code, each))},
        units={each: code.unit(each) for each in code.numbers},
        usual={
            each: usual_in_words(frame[each].to_numpy(), code.unit(each)) for each in code.names
        },
        reference_said=f"{len(drawn):,} {said}",
        reference_digest=hashlib.sha256(drawn.cpu().numpy().tobytes()).hexdigest()[:12],
        threshold=threshold,
        preflight=tuple(preflight_of(each) for each in ready.findings),
        notes=(
            *_doubted(source, sample, classes, table),
            *_orders(table, code, sample),
            *([] if unproved is None else [f"Nothing can be proved by bounds: {unproved}"]),
        ),
    )


def _recorded(ready: Ready, x: Tensor) -> tuple[RecordedModel | None, str | None]:
    """What a model runs at rows like x; or None, and why no bounds are known for it."""
    x = x[:PROBED].double().to(ready.device)
    explain = Shapley(reference=x[:1])
    try:
        recorded = record(ready.deployed, as_taken_by(ready.deployed, x), ready.model)
        certify_contributions(recorded, x[:1], k=1, explainer=explain, perturbation=(x[:1], x[:1]))
    except ValueError as problem:
        return None, str(problem)
    except Exception as problem:  # something in a model that nobody thought of
        return None, briefly(problem)
    return recorded, None


def _words(code: TableCode, name: str) -> tuple[str, ...]:
    return () if name in code.numbers else code.words(name)


def _references(
    source: Source, sample: Chunk, given: Reference, models: int
) -> list[tuple[Tensor, str]]:
    """Rows for each model to draw its reference from: its own if none are given and it has some."""
    own = source.references if given is None and isinstance(source, CsvTable) else ()
    if len(own) == models:
        return [(each, "rows of its training") for each in own]
    return [_reference(source, sample, given)] * models


def _reference(source: Source, sample: Chunk, given: Reference) -> tuple[Tensor, str]:
    """Rows of inputs to draw a reference from, and what they are in words."""
    if isinstance(given, Tensor):
        if given.ndim != 2 or given.shape[1] != sample.x.shape[1]:
            raise ValueError(
                f"a reference must be rows of {sample.x.shape[1]} inputs, got shape "
                f"{tuple(given.shape)}: encode it as the audited rows are."
            )
        return given.double(), "rows that were given"
    if isinstance(given, str) and given == FAVOURABLE:
        return sample.x.double(), FAVOURABLE
    if given is not None:
        if not isinstance(source, CsvTable):
            raise ValueError(
                "a reference from a table is for audited rows from a table: give inputs instead."
            )
        other = replace(source, reader=reader_of(given))
        named = given.name if isinstance(given, Path) else str(given)
        said = "rows that were given" if isinstance(given, pd.DataFrame) else f"rows of {named}"
        return torch.cat([chunk.x for chunk in other.chunks(4096)]).double(), said
    trained = getattr(source, "reference", None)
    if trained is not None:
        return trained.double(), "rows of the training part"
    return sample.x.double(), "of the audited rows themselves"


def _decided_for(table: NetworkTable, place: int) -> Tensor:
    scores = table.scores(table.code.frame(table.reference.cpu()))
    chosen = torch.from_numpy(scores.argmax(1) == place)
    if not chosen.any():
        raise ValueError(
            f"no row is decided for {table.classes[place]!r}, so that there is no favourable "
            "reference: name rows by reference."
        )
    return table.reference[chosen.to(table.reference.device)]


def _drawn(table: NetworkTable, settings: ReasonSettings) -> Tensor:
    """As many rows of a reference as are asked for and worth their cost, drawn once."""
    rows = table.reference
    worth = max(LEAST_REFERENCE, ASKED // len(table.coalitions.members))
    count = min(settings.reference_rows, worth, len(rows))
    order = torch.randperm(len(rows), generator=stream(settings.seed, "reference"))
    return rows[order[:count].to(rows.device)]


def _doubted(
    source: Source, sample: Chunk, classes: Sequence[str], table: NetworkTable
) -> list[str]:
    """What should make a reader doubt the rows, or their order."""
    seen = sample_of(source, sample, classes)
    assumed = isinstance(source, CsvTable) and source.assumed

    def logits(x: Tensor) -> Tensor:
        with torch.no_grad():
            return table._logits(x.double()).cpu()

    return [
        *doubts(seen, source.columns, source.target),
        *doubts_of_order(seen, source.columns, logits, assumed),
    ]


def _orders(table: NetworkTable, code: TableCode, sample: Chunk) -> list[str]:
    """Of contributions by random orders, how many these are and how far they may be off."""
    rows = code.frame(sample.x[:MOST_DOUBTED])
    error = table.standard_error(rows)
    if error is None or table.coalitions.parts is None:
        return []
    size = np.abs(table.contributions(rows)).mean()
    return [
        f"Of {len(table.names)} attributes not all mixtures can be looked at: contributions are "
        f"means over {2 * len(table.coalitions.parts)} orders of the attributes, always the same, "
        f"with a standard error of {error.mean():.2g} on average where contributions are "
        f"{size:.2g}; verdicts are about these means."
    ]


# --- behind bands -------------------------------------------------------------------------------


def banded_source(models: Mapping[str, Any], data: Any, settings: DataSettings) -> CsvTable:
    """The rows of a table as models behind bands take them: each column as it is."""
    first = next(iter(models.values()))
    binner = _binner(first)
    names = [each.name for each in binner.attributes_]
    for name, each in models.items():
        other = [(type(own), own.name) for own in _binner(each).attributes_]
        if other != [(type(own), own.name) for own in binner.attributes_]:
            raise ValueError(
                f"models audited side by side take the same columns, but {name} takes others: "
                "audit them one at a time."
            )
    known = isinstance(data, str) and data in DATASETS
    called = str(data)
    if known:
        data, settings = _known_table(called, settings)
    reader = FrameReader(frame=data, name=called) if known else reader_of(data)
    settings.check_names(reader.names, reader.name)
    for name in names:
        if name not in reader.names:
            raise ValueError(
                f"the model takes a column {name!r}, which {reader.name} lacks: "
                f"{nearest(name, reader.names)}"
            )
    beside = {settings.target, settings.id, *settings.drop, *settings.subgroups}
    if others := [name for name in reader.names if name not in names and name not in beside]:
        raise ValueError(
            f"{reader.name} has a column {others[0]!r} that the model does not take: name it by "
            "target, id, subgroups or drop."
        )
    only_groups = [name for name in settings.subgroups if name not in names]
    features = dict(settings.features)
    for each in binner.attributes_:
        kind = "category" if isinstance(each, WordBands) else "numeric"
        features[each.name] = replace(settings.of(each.name), kind=kind, name=None)
    classes = tuple(word_in(str(label)) for label in binner.classes_.tolist())
    found = CsvTable.at(
        data,
        replace(
            settings,
            columns=tuple(names),
            drop=(*settings.drop, *only_groups),
            features=features,
            classes=classes,
        ),
    )
    return replace(found, reader=reader)


def _known_table(name: str, settings: DataSettings) -> tuple[pd.DataFrame, DataSettings]:
    """The test rows of a table that comes with the package."""
    dataset = load(name)
    rows, y = to_frame(dataset)
    target = dataset.target or "target"
    split = dataset.split(0).test.rows.numpy()
    rows = rows.assign(**{target: np.array(dataset.classes, dtype=object)[y]})
    return rows.iloc[split].reset_index(drop=True), replace(settings, target=target)


def _binner(model: Any) -> StableBinner:
    found: StableBinner = (
        model.binner_ if isinstance(model, StableClassifier) else model.steps[0][1]
    )
    return found


def of_banded(models: Mapping[str, Any], reference: Reference = None) -> SubjectOf:
    """How models behind bands are made ready."""

    def subjects(source: Source, sample: Chunk, settings: ReasonSettings) -> list[ReasonSubject]:
        assert isinstance(source, CsvTable)
        columns = source.schema.columns

        def frame(chunk: Chunk) -> pd.DataFrame:
            assert chunk.values is not None
            return pd.DataFrame(dict(zip(columns, chunk.values, strict=True)))

        return [
            _banded(name, model, frame, sample, settings, reference)
            for name, model in models.items()
        ]

    return subjects


def _banded(
    name: str,
    model: Any,
    frame: Callable[[Chunk], pd.DataFrame],
    sample: Chunk,
    settings: ReasonSettings,
    reference: Reference,
) -> ReasonSubject:
    if reference is not None and not isinstance(reference, pd.DataFrame):
        raise ValueError(
            "the reference of a model behind bands is a table of its columns, or its own: give a "
            "pandas table, or leave it out."
        )
    binner, own, said = _binner(model), Question(k=K), "rows that were given"
    if isinstance(model, StableClassifier):
        threshold = model.threshold if settings.threshold is None else settings.threshold
        own = Question(k=model.k_, side=model.side, codes=model.codes or {})
        against = model.reference_ if reference is None else reference
        said = said if reference is not None else "rows that are part of the model"
        other = copy.copy(model)
        other.threshold = threshold
        cells = other.cell_model(against)
    else:
        threshold = THRESHOLD if settings.threshold is None else settings.threshold
        rows = frame(sample)
        order = torch.randperm(len(rows), generator=stream(settings.seed, "reference"))
        drawn = rows.iloc[order[: settings.reference_rows].numpy()]
        against = drawn if reference is None else reference
        said = said if reference is not None else "of the audited rows themselves"
        cells = pipeline_model(model, against, threshold)
    units = {each.name: each.unit for each in binner.attributes_ if isinstance(each, NumberBands)}
    values = dict(
        zip((each.name for each in binner.attributes_), binner.values(against), strict=True)
    )
    digest = hashlib.sha256(repr([own.tolist() for own in values.values()]).encode()).hexdigest()
    return ReasonSubject(
        name=name,
        model=BandedTable(binner=binner, model=cells, reference=against),
        digest=_digest(model, binner),
        frame=frame,
        words={
            each.name: each.labels for each in binner.attributes_ if isinstance(each, WordBands)
        },
        units=units,
        usual={each: usual_in_words(own, units.get(each, "")) for each, own in values.items()},
        reference_said=f"{len(against):,} {said}",
        reference_digest=digest[:12],
        threshold=threshold,
        widths={name: max(each) for name, each in binner.widths_.items()},
        own=own,
    )


def _digest(model: Any, binner: StableBinner) -> str:
    """Twelve hexadecimal digits that change with bands, settings, or kind of a model."""
    told = repr((type(model).__name__, binner.attributes_, binner.classes_.tolist()))
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:12]
