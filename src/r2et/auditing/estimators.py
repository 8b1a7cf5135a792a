"""Fitted models of any library made ready for an audit of reasons: rows, reference, form."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from r2et.auditing.config import DataSettings
from r2et.auditing.csvs import CsvTable
from r2et.auditing.reason_models import ReasonSubject, SubjectOf
from r2et.auditing.reason_settings import FAVOURABLE, ReasonSettings
from r2et.auditing.table_form import TableForm, table_of
from r2et.auditing.table_models import (
    AskedTable,
    SumTable,
    TreeTable,
    asked_scores,
    orders_said,
    reference_worth,
)
from r2et.auditing.tables import Chunk, Source
from r2et.bands.telling import usual_in_words
from r2et.core.naming import briefly
from r2et.core.reasons import Question, decided_by
from r2et.core.rng import stream
from r2et.data.cells import word_in
from r2et.evaluation.reasons import TableModel
from r2et.trees.cells import CellTrees
from r2et.trees.form import Ensemble
from r2et.trees.models import LinearSum, columns_taken, ensemble_model, known_model
from r2et.trees.readers import read_trees, reader_of
from r2et.trees.reading import Reading

THRESHOLD = 0.5
LIKE = 1e-4
"""How far the probabilities of a form may differ from those that the model gives itself."""
COMPARED = 200  # rows on which they are compared
LEARNT_FROM = 100_000  # rows by which columns are known


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A user's rows: as models take them, how they are typed, and as rows of an audit."""

    rows: pd.DataFrame
    form: TableForm
    source: CsvTable


def estimator_table(models: Mapping[str, Any], data: Any, settings: DataSettings) -> Table:
    """The rows of a table as these models, which must take the same columns, do."""
    first = next(iter(models.values()))
    named, count = _inputs(first)
    rows = table_of(data, named)
    settings.check_names([str(name) for name in rows], _called(data))
    beside = [settings.target, settings.id, *settings.drop]
    only_groups = [name for name in settings.subgroups if named is not None and name not in named]
    there = [str(name) for name in rows if name not in {*beside, *only_groups}]
    names = columns_taken(named, count, there)
    for name, each in models.items():
        if columns_taken(*_inputs(each), there) != names:
            raise ValueError(
                f"models audited side by side take the same columns, but {name} takes others: "
                "audit them one at a time."
            )
    if others := [name for name in there if name not in names]:
        raise ValueError(
            f"{_called(data)} has a column {others[0]!r} that the model does not take: name it by "
            "target, id, subgroups or drop."
        )
    taken = rows[names]
    bare = not isinstance(data, pd.DataFrame | str | Path) or _takes_arrays(first)
    form = TableForm.of(taken, bare=bare)
    told = pd.concat([form.told(taken), rows[[n for n in rows if n not in names]]], axis=1)
    features = dict(settings.features)
    for name in names:
        kind = "category" if name in form.words else "numeric"
        features[name] = replace(settings.of(name), kind=kind, name=None)
    classes = settings.classes or tuple(_words(_classes(first)))
    source = CsvTable.at(
        told,
        replace(
            settings,
            columns=tuple(names),
            drop=(*settings.drop, *only_groups),
            features=features,
            classes=classes,
            missing="mark",
        ),
    )
    source = replace(source, reader=replace(source.reader, name=_called(data)))  # type: ignore[type-var]
    return Table(rows=taken, form=form, source=source)


def _called(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else "the table"


def _inputs(model: Any) -> tuple[list[str] | None, int | None]:
    """The columns that a model names, and how many it takes, None where it does not say."""
    if isinstance(model, Ensemble):
        return [each.name for each in model.columns], len(model.columns)
    if isinstance(model, Reading):
        return model.names, len(model.names)
    first = model.steps[0][1] if hasattr(model, "steps") else model
    for each in (model, first):
        names = getattr(each, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names], len(names)
    if reader_of(model) is not None and not hasattr(model, "n_features_in_"):
        ensemble = read_trees(model)
        assert ensemble is not None
        return [each.name for each in ensemble.columns], len(ensemble.columns)
    count = getattr(model, "n_features_in_", None)
    return None, None if count is None else int(count)


def _takes_arrays(model: Any) -> bool:
    """Whether a model of scikit-learn was fitted on an array: it wonders about names."""
    module = type(model).__module__.partition(".")[0]
    return module == "sklearn" and _inputs(model)[0] is None


def _classes(model: Any) -> list[Any]:
    if isinstance(model, Ensemble):
        return list(model.classes)
    if (known := getattr(model, "classes_", None)) is not None:
        return list(np.asarray(known).tolist())
    ensemble = read_trees(model) if reader_of(model) is not None else None
    return [0, 1] if ensemble is None else list(ensemble.classes)


def _words(classes: Sequence[Any]) -> list[str]:
    return [word_in(str(each)) for each in classes]


# --- subjects -----------------------------------------------------------------------------------


def of_estimators(models: Mapping[str, Any], table: Table, reference: Any = None) -> SubjectOf:
    """How fitted models are made ready."""

    def subjects(source: Source, sample: Chunk, settings: ReasonSettings) -> list[ReasonSubject]:
        return [_subject(name, model, table, settings, reference) for name, model in models.items()]

    return subjects


def _subject(
    name: str, model: Any, table: Table, settings: ReasonSettings, reference: Any
) -> ReasonSubject:
    form = table.form
    threshold = THRESHOLD if settings.threshold is None else settings.threshold
    classes = list(table.source.classes or ())
    if len(classes) != len(_classes(model)):
        raise ValueError(
            f"the model {name} answers for {len(_classes(model))} classes, but {len(classes)} are "
            f"known ({', '.join(classes)}): name them all by classes, in their order."
        )
    with _quiet():
        known, why = _known(model, table, classes)

        def against(rows: pd.DataFrame) -> TableModel:
            if isinstance(known, CellTrees):
                return TreeTable(trees=known, reference=rows, classes=classes, threshold=threshold)
            if isinstance(known, LinearSum):
                return SumTable(
                    model=known, form=form, reference=rows, classes=classes, threshold=threshold
                )
            chances = asked_scores(model, threshold, len(classes))
            return AskedTable(chances=chances, form=form, reference=rows, classes=classes)

        if reference is None and isinstance(model, Reading):
            reference = model.reference
        said, pool = _pool(table, reference)
        if isinstance(reference, str) and reference == FAVOURABLE:
            place = classes.index(settings.favourable) if settings.favourable else len(classes) - 1
            said = f"rows that are decided for {classes[place]!r}"
            pool = _decided_for(against(pool[:1]), pool, place)
        worth = len(pool) if known is not None else reference_worth(len(form.kinds))
        count = min(settings.reference_rows, worth, len(pool))
        order = torch.randperm(len(pool), generator=stream(settings.seed, "reference"))
        drawn = pool.iloc[order[:count].numpy()].reset_index(drop=True)
        made = against(drawn)
    columns = table.source.schema.columns
    numbers = [each for each in form.kinds if each not in form.words]

    def frame(chunk: Chunk) -> pd.DataFrame:
        assert chunk.values is not None
        return pd.DataFrame(dict(zip(columns, chunk.values, strict=True)))

    subject = ReasonSubject(
        name=name,
        model=made,
        digest=_digest(model, made, form.told(table.rows[:COMPARED])),
        frame=frame,
        words={each: tuple(known_words) for each, known_words in form.words.items()},
        units={each: table.source.settings.of(each).unit for each in numbers},
        usual={
            each: usual_in_words(drawn[each].to_numpy(), table.source.settings.of(each).unit)
            for each in form.kinds
        },
        reference_said=f"{len(drawn):,} {said}",
        reference_digest=hashlib.sha256(drawn.to_csv().encode()).hexdigest()[:12],
        threshold=threshold,
        notes=tuple(_notes(known, why, made)),
    )
    if not isinstance(model, Reading):
        return subject
    said = _beside(model, table.rows[:COMPARED], subject.question(settings))
    return replace(subject, notes=(*subject.notes, said))


def _pool(table: Table, reference: Any) -> tuple[str, pd.DataFrame]:
    """What rows to draw a reference from are called, and these."""
    if reference is None or (isinstance(reference, str) and reference == FAVOURABLE):
        return "of the audited rows themselves", table.form.told(table.rows)
    rows = table_of(reference, list(table.form.kinds))
    missing = [name for name in table.form.kinds if name not in rows]
    if missing:
        raise ValueError(
            f"a reference has the columns of the model, but {missing[0]!r} is not there: give rows "
            "of the same table."
        )
    return "rows that were given", table.form.told(rows)


def _decided_for(model: TableModel, rows: pd.DataFrame, place: int) -> pd.DataFrame:
    chosen = decided_by(model.scores(rows)) == place
    if not chosen.any():
        raise ValueError(
            f"no row is decided for {model.classes[place]!r}, so that there is no favourable "
            "reference: name rows by reference."
        )
    return rows.iloc[np.flatnonzero(chosen)].reset_index(drop=True)


def _known(
    model: Any, table: Table, classes: Sequence[str]
) -> tuple[CellTrees | LinearSum | None, str | None]:
    """The form of a model, and if it has none that is known, why."""
    rows = table.rows[:LEARNT_FROM]
    if isinstance(model, Ensemble):
        return ensemble_model(model, rows), None
    if isinstance(model, Reading):
        worst = _apart_from(model.cells, model, table.form, rows, classes)
        if not worst <= LIKE:
            raise ValueError(
                f"the model of this reading gives probabilities that differ by {worst:.1e} from "
                "those it had when its bands were made: make the reading again."
            )
        return model.cells, None
    kind = type(model).__name__
    try:
        if hasattr(model, "predict_proba"):
            found = known_model(model, rows)
        else:
            ensemble = read_trees(model)
            found = None if ensemble is None else ensemble_model(ensemble, rows)
            return found, None
    except ValueError as problem:
        return None, str(problem)
    except Exception as problem:  # something in a model that nobody thought of
        return None, briefly(problem)
    if found is None:
        return None, f"the form of a {kind} is not known."
    worst = _apart_from(found, model, table.form, rows, classes)
    if not worst <= LIKE:
        return None, (
            f"what is known of the {kind} gives probabilities that differ by {worst:.1e} from its "
            "own."
        )
    return found, None


def _apart_from(
    found: CellTrees | LinearSum,
    model: Any,
    form: TableForm,
    rows: pd.DataFrame,
    classes: Sequence[str],
) -> float:
    """The largest difference of the probabilities of a form from those that the model gives."""
    some = rows[:COMPARED]
    theirs = np.asarray(model.predict_proba(form.given(form.told(some))))
    return float(np.abs(_probabilities(found, form, some, classes) - theirs).max(initial=0.0))


def _probabilities(
    found: CellTrees | LinearSum, form: TableForm, rows: pd.DataFrame, classes: Sequence[str]
) -> Any:
    told = form.told(rows)
    made: TreeTable | SumTable
    if isinstance(found, CellTrees):
        made = TreeTable(trees=found, reference=told, classes=classes)
        if found.scale == "probability":
            own = found.scores(found.cells(told))
            return np.concatenate([1 - own, own], 1) if own.shape[1] == 1 else own
    else:
        made = SumTable(model=found, form=form, reference=told, classes=classes)
    scores = made.scores(told)
    raised = np.exp(scores - scores.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def _notes(known: CellTrees | LinearSum | None, why: str | None, made: TableModel) -> Iterator[str]:
    """What a reader must know of how a model was explained."""
    if isinstance(known, CellTrees):
        if known.scale == "probability":
            yield (
                "Trees of this model vote for probabilities: contributions are shares of the "
                "probability, not log-odds."
            )
        return
    if known is not None:
        return
    yield (
        f"This model is asked, not read ({why}) Verdicts are exact where all moves are looked at; "
        "elsewhere a search may break reasons, but nothing is certified."
    )
    said = orders_said(len(made.names))
    if said is not None:
        yield said


def _beside(model: Reading, rows: pd.DataFrame, question: Question) -> str:
    """How far the scores and reasons of bands are from people's own."""
    beside = model.beside(rows, question.k, question.side)
    apart = float((beside["band's score"] - beside["score"]).abs().mean())
    pairs = zip(beside["reasons"], beside["band's reasons"], strict=True)
    shared = float(np.mean([len(set(own) & set(band)) / len(own) for own, band in pairs]))
    return (
        "The model decides as it is; its reasons are those of the median person of each band, "
        f"whose score differs from the person's own by {apart:.2f} log-odds on average. "
        f"{shared:.0%} of people's own reasons are among them (first {len(beside)} rows)."
    )


def _digest(model: Any, made: TableModel, rows: pd.DataFrame) -> str:
    """Twelve hexadecimal digits that change with what a model says."""
    digits = " ".join(f"{value:.5e}" for value in made.scores(rows).ravel())
    told = repr((type(model).__name__, list(made.names), list(made.classes), digits))
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:12]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of a model that is shown rows which it was not fitted on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
