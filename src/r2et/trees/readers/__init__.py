"""Readers: models that people already have as one form of trees, checked against what they say."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from r2et.core.arrays import Floats
from r2et.core.limits import content_of, json_of
from r2et.trees.form import UNSEEN, Column, Ensemble
from r2et.trees.readers import cat, lgbm, scikit, xgb
from r2et.trees.readers.parts import Admitted, RefusedError, telling, unseen_word

PROBES = 200
"""Rows on which an ensemble is compared with the model that it was read from."""
MISSING_SHARE = 0.1
SINGLE, DOUBLE = 1e-5, 1e-9
"""How far probabilities may differ from those of libraries that add in single, double precision."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How models of one kind are read, and what such a model says of rows itself.

    `chances` gives its own probabilities of rows as trees see them, which may differ by
    `tolerance`; `admitted` tells what rows it takes.
    """

    read: Callable[[Any], Ensemble]
    chances: Callable[[Any, Ensemble, Floats], Floats]
    admitted: Callable[[Any], Admitted]
    tolerance: float


# --- models -------------------------------------------------------------------------------------


def read_trees(model: Any) -> Ensemble | None:
    """The trees of a model, None if it is none whose trees are known.

    Refused is a model that says something else than its trees do.
    """
    reader = reader_of(model)
    if reader is None:
        return None
    kind = type(model).__name__
    with telling(f"the trees of the {kind} cannot be read", "its library may keep them otherwise"):
        ensemble = reader.read(model)
        rows = probes(ensemble, reader.admitted(model), np.random.default_rng(0))
        worst = difference(ensemble, model, rows)
    if not worst <= reader.tolerance:
        raise RefusedError(
            f"the trees of the {kind} give probabilities that differ by {worst:.1e} from those it "
            "gives itself: they are not all that it predicts by, so explain it as any other model."
        )
    return ensemble


def reader_of(model: Any) -> Reader | None:
    """The reader of a model's class, None if there is none or if predictions are made otherwise."""
    changed = set(getattr(model, "__dict__", {}))
    for kind in type(model).__mro__:
        found = READERS.get(f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}")
        if found is not None:
            return None if changed & {"predict", "predict_proba", "decision_function"} else found
        changed |= set(vars(kind))
    return None


def is_fitted_model(model: object) -> bool:
    """Whether a model is one of a library of classifiers, or trees that were read from a file."""
    known = isinstance(model, Ensemble) or hasattr(model, "predict_proba")
    return known or reader_of(model) is not None


def agrees(ensemble: Ensemble, model: Any, numbers: Floats) -> bool:
    """Whether an ensemble gives the probabilities that the model does which it was read from."""
    reader = reader_of(model)
    return reader is not None and difference(ensemble, model, numbers) <= reader.tolerance


def difference(ensemble: Ensemble, model: Any, numbers: Floats) -> float:
    """The largest difference of probabilities between an ensemble and the model it was read from.

    `numbers` are rows as trees see them, (N, columns).
    """
    reader = reader_of(model)
    if reader is None:
        raise TypeError(f"models of {', '.join(READERS)} are read, got a {type(model).__name__}.")
    own = reader.chances(model, ensemble, numbers)
    return float(np.abs(ensemble.probabilities(numbers) - own).max(initial=0.0))


def probes(
    ensemble: Ensemble, admitted: Admitted, generator: np.random.Generator, rows: int = PROBES
) -> Floats:
    """Rows next to thresholds, with words, and missing and unknown ones: (rows, columns)."""
    asked: dict[int, list[Floats]] = {}
    for tree in ensemble.trees:
        for feature in np.unique(tree.feature[tree.feature >= 0]).tolist():
            asked.setdefault(feature, []).append(tree.threshold[tree.feature == feature])
    parts = [
        _probed(column, np.concatenate(asked.get(at, [np.zeros(1)])), admitted, generator, rows)
        for at, column in enumerate(ensemble.columns)
    ]
    return np.stack(parts, 1) if parts else np.zeros((rows, 0))


def _probed(
    column: Column,
    thresholds: Floats,
    admitted: Admitted,
    generator: np.random.Generator,
    rows: int,
) -> Floats:
    """Values of one column: (rows,)."""
    if column.words is None:
        found = _beside(generator.choice(thresholds, rows), generator)
        found = found.clip(-admitted.largest, admitted.largest)
    else:
        places = [float(place) for place in range(len(column.words))]
        if admitted.unseen and unseen_word(column.words) is not None:
            places.append(UNSEEN)
        found = generator.choice(places, rows) if places else np.full(rows, np.nan)
    missing = generator.random(rows) < MISSING_SHARE
    return np.where(missing & admitted.missing, np.nan, found)


def _beside(numbers: Floats, generator: np.random.Generator) -> Floats:
    """Numbers, or those right beside them, in double or in single precision: (N,)."""
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
        several = np.stack(
            [
                numbers,
                np.nextafter(numbers, -np.inf),
                np.nextafter(numbers, np.inf),
                single,
                np.nextafter(single, np.float32(-np.inf)),
                np.nextafter(single, np.float32(np.inf)),
            ]
        )
    found: Floats = generator.permuted(several, axis=0)[0]
    return found


READERS: dict[str, Reader] = {
    "sklearn.HistGradientBoostingClassifier": Reader(
        read=scikit.hist_ensemble,
        chances=scikit.chances,
        admitted=scikit.admitted_by_hist,
        tolerance=DOUBLE,
    ),
    "sklearn.GradientBoostingClassifier": Reader(
        read=scikit.boosted_ensemble,
        chances=scikit.chances,
        admitted=scikit.admitted,
        tolerance=DOUBLE,
    ),
    "sklearn.RandomForestClassifier": Reader(
        read=scikit.forest_ensemble,
        chances=scikit.chances,
        admitted=scikit.admitted,
        tolerance=DOUBLE,
    ),
    "sklearn.ExtraTreesClassifier": Reader(
        read=scikit.forest_ensemble,
        chances=scikit.chances,
        admitted=scikit.admitted,
        tolerance=DOUBLE,
    ),
    "sklearn.DecisionTreeClassifier": Reader(
        read=scikit.tree_ensemble,
        chances=scikit.chances,
        admitted=scikit.admitted,
        tolerance=DOUBLE,
    ),
    "xgboost.XGBClassifier": Reader(
        read=xgb.classifier_ensemble,
        chances=xgb.classifier_chances,
        admitted=xgb.admitted,
        tolerance=SINGLE,
    ),
    "xgboost.Booster": Reader(
        read=xgb.booster_ensemble,
        chances=xgb.booster_chances,
        admitted=xgb.admitted,
        tolerance=SINGLE,
    ),
    "lightgbm.LGBMClassifier": Reader(
        read=lgbm.classifier_ensemble,
        chances=lgbm.classifier_chances,
        admitted=lgbm.admitted,
        tolerance=DOUBLE,
    ),
    "lightgbm.Booster": Reader(
        read=lgbm.booster_ensemble,
        chances=lgbm.booster_chances,
        admitted=lgbm.admitted,
        tolerance=DOUBLE,
    ),
    "catboost.CatBoostClassifier": Reader(
        read=cat.model_ensemble,
        chances=cat.chances,
        admitted=cat.admitted,
        tolerance=DOUBLE,
    ),
    "catboost.CatBoost": Reader(
        read=cat.model_ensemble,
        chances=cat.chances,
        admitted=cat.admitted,
        tolerance=DOUBLE,
    ),
}
"""How models are read, by the library and the class that they are of."""


# --- files --------------------------------------------------------------------------------------


def read_file(path: str | Path) -> Ensemble:
    """The trees of a file that XGBoost, LightGBM or CatBoost wrote, told by its content.

    Nothing of it is run. Refused in one sentence is any other file, and one that is damaged.
    """
    content = content_of(path)
    for start, hint in FOREIGN.items():
        if content.startswith(start):
            raise RefusedError(f"{path} is {hint}.")
    with telling(f"{path} is damaged, or of a form that is not known", "save the model again"):
        if content.startswith(lgbm.FIRST_LINE.encode()):
            return lgbm.text_ensemble(content.decode())
        if not content.lstrip().startswith(b"{"):
            raise RefusedError(f"{path} {UNKNOWN}")
        if content[:2] in BINARY:
            return xgb.document_ensemble(xgb.ubj_of(content))
        document = json_of(content, str(path))
        for key, read in DOCUMENTS.items():
            if key in document:
                return read(document)
    raise RefusedError(f"{path} {UNKNOWN}")


UNKNOWN = (
    "is no model of trees that is known: give a .json or .ubj file of XGBoost, a text file of "
    "LightGBM, or a .json file of CatBoost."
)
FOREIGN: dict[bytes, str] = {
    b"\x80": "a pickle, which may run anything: load it yourself, and give the model",
    b"PK\x03\x04": "an archive: take out the model, or give the model itself",
    b"CBM1": "CatBoost's own format: save the model with format='json'",
    b"binf": "XGBoost's old binary format: save the model as .json or .ubj",
}
"""How files begin that hold models in other ways, and what to do with them."""
BINARY = {b"{" + letter for letter in (*xgb.NUMBERS, b"#", b"$")}
"""How a table of UBJSON begins."""
DOCUMENTS: dict[str, Callable[[Any], Ensemble]] = {
    "learner": xgb.document_ensemble,
    "oblivious_trees": cat.document_ensemble,
    "trees": cat.document_ensemble,
}
"""How documents of JSON are read, by a name that only they have."""
