"""scikit-learn's view of all this: a classifier of tables whose explanations stay put.

How the columns of a table are encoded is told in `r2et.data.schema`. Equal rows of one class
count as one row with the sum of their weights: a row of weight 2 is exactly two rows, one of weight
0 none, and the order in which rows are given does not matter.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state, check_X_y
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.registry import attack
from r2et.bands.table import spread_rows
from r2et.certification.certificate import Certificate, certify
from r2et.core.autograd import eval_mode
from r2et.core.limits import check_bytes
from r2et.core.naming import nearest
from r2et.core.ranking import order
from r2et.core.rng import stream
from r2et.data.cells import Floats
from r2et.data.dataset import Part
from r2et.data.encoder import holds_words, numbers_of, values_of, words_of, written_as
from r2et.data.fitting import learnt
from r2et.data.schema import Attribute, Category, Numeric, Schema, Values
from r2et.data.writing import ORIGIN, Writing
from r2et.explainers import (
    Explainer,
    Form,
    draw_reference,
    log_odds,
    logits_of,
    predicted,
    shaped,
    slopes,
)
from r2et.methods import METHODS, Method
from r2et.models import ACTIVATIONS, bounded, build
from r2et.preflight.checks import PROBES
from r2et.preflight.kinds import in_words
from r2et.preflight.validation import cleared
from r2et.training.checkpoint import load_into, read, save
from r2et.training.settings import SCHEDULES, FitSettings
from r2et.training.trainer import Score
from r2et.training.trainer import fit as train

if TYPE_CHECKING:
    from lightning_fabric import Fabric

By = Literal["feature", "column"]
Codes = NDArray[np.intp]

FORMAT = 3  # of saved classifiers
FORMATS = (1, 2, FORMAT)  # that can be read
LEAST_STEPS = 30  # of an epoch: small tables are gone through several times
LEAST_BATCH = 32
ROWS_OF_A_CURVE = 100  # different ones, for each numeric feature: fewer bend a curve by chance
ROWS_AT_ONCE = 65_536
REFERENCE = 200  # rows that contributions are told against
MODERATE = EnsembleBudget(rounds=2, starts=16, steps=15, points=48, moves=24)


# --- rows and their weights ---------------------------------------------------------------------


def row_weights(sample_weight: Any, rows: int) -> Floats:
    """One weight for each row, 1 unless given: (N,)."""
    if sample_weight is None:
        return np.ones(rows)
    weights: Floats = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if weights.shape != (rows,):
        raise ValueError(
            f"sample_weight must hold one number for each of the {rows} rows, got shape "
            f"{weights.shape}."
        )
    if weights.min() < 0 or not weights.any():
        raise ValueError(
            "sample_weight must hold numbers >= 0, at least one non-zero weight among them, got "
            f"{weights.min():g} to {weights.max():g}."
        )
    return weights


def merged(columns: Sequence[Values], y: Codes, weights: Floats) -> tuple[Codes, Floats]:
    """The number of one row of each kind, kinds in an order of their own, and their weights.

    Rows are of one kind if all their cells and their class are equal; rows of weight 0 are none.
    A row of weight 2 is thus exactly two rows, and the order in which rows are given is forgotten.
    """
    counted = np.flatnonzero(weights)
    keys = [y[counted], *(_sortable(own[counted]) for own in columns)]
    ranked = np.lexsort(keys)
    new = np.zeros(len(ranked), dtype=bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[ranked[1:]] != key[ranked[:-1]]
    firsts = np.flatnonzero(new)
    totals: Floats = np.add.reduceat(weights[counted][ranked], firsts)
    return counted[ranked[firsts]], totals


def _sortable(cells: Values) -> Values:
    """Numbers that are equal where cells are, in an order that cells alone decide: (N,)."""
    if cells.dtype == object:
        return pd.factorize(cells, sort=True)[0]
    # Infinite numbers are refused, so that missing ones may stand in their place.
    return np.where(np.isnan(cells), np.inf, cells)


def held_out(y: Codes, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows judge the epochs, the same share of each class that has two or more: (N,)."""
    chosen = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        own = np.flatnonzero(y == label)
        count = min(max(round(share * len(own)), 1), len(own) - 1)
        shuffled = torch.randperm(len(own), generator=stream(seed, "held out", str(label)))
        chosen[own[shuffled[:count].numpy()]] = True
    if not chosen.any():
        raise ValueError(
            "early stopping needs a class with two or more different rows, got none: add rows or "
            "set early_stopping=False."
        )
    return chosen


def reference_rows(y: Codes, weights: Floats, seed: int) -> Codes:
    """Numbers of 200 rows that stand for all, or all of fewer rows, each class by its weight.

    Of rows that count differently a heavy one may be there several times.
    """
    if (weights != weights[0]).any():
        return spread_rows(y, weights, REFERENCE, seed)
    numbers = torch.arange(len(y))
    rows = min(REFERENCE, len(y))
    drawn: Codes = draw_reference(numbers, torch.from_numpy(y), rows=rows, seed=seed).numpy()
    return drawn


def by_log_loss(x: Tensor, y: Tensor, weights: Tensor) -> Score:
    """A score of models: minus the mean log-loss on these rows."""

    def score(model: nn.Module) -> float:
        device = next(model.parameters()).device
        with torch.no_grad(), eval_mode(model):
            losses = F.cross_entropy(
                logits_of(model, x.to(device)), y.to(device), reduction="none"
            ).cpu()
        return -float((losses * weights).sum() / weights.sum())

    return score


def not_judged(model: nn.Module) -> float:
    """The score of an epoch that nobody asks about."""
    return math.nan


# --- the classifier -----------------------------------------------------------------------------


class FeatureScore(NamedTuple):
    """A feature, or a column of the table, and how much it mattered."""

    feature: str
    score: float


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of tables whose top-k explanations stay put.

    `method` names the training method (an entry of METHODS) and `method_settings` its own settings.
    The `k` features that matter most are held; a table of no more than k features holds all but
    one. `hidden` and `activation` shape the network of methods that train a plain one. The network
    of Steadfast bends in single numeric features where there are 100 different rows for each.

    Training takes `epochs` passes in steps of `batch_size` rows at most: small tables take smaller
    steps and are gone through several times, so that an epoch has at least 30. With
    `early_stopping` a `validation_fraction` of the rows is held out, and training ends after
    `patience` epochs without a smaller log-loss on them. Training is in single precision on
    `device`, a GPU if there is one unless given; the result is in double precision on the CPU.

    `class_weight` is None, "balanced" or a weight for each label. `categorical` lists columns of
    categories by name or position; "infer" takes the columns of a DataFrame that hold text, truth
    values or pandas' categories, but not numbers written with decimal commas, signs or as dates.
    How columns are encoded is told in `r2et.data.schema`. With `max_categories` a column keeps as
    many of its most frequent values, and all others are "other"; without it, one of more than 500
    values is refused.

    Contributions are told against 200 of the rows, drawn once and part of the classifier.
    `reference` gives them instead, rows of a table like X, such as `reference_table()` of the
    classifier that this one replaces.

    Fitted, it has `model_` (the network on encoded rows), `schema_`, `classes_`, `k_`, `n_iter_`,
    `reference_` (encoded rows; None in files of earlier versions), `n_features_in_` and, if columns
    had names, `feature_names_in_`.

    >>> X = pd.DataFrame({"age": [20, 30, 40, 50], "job": ["none", "clerk", "clerk", "none"]})
    >>> model = NetworkClassifier(epochs=5, random_state=0).fit(X, ["no", "no", "yes", "yes"])
    >>> model.get_feature_names_out().tolist()
    ['age', 'job: none']
    """

    method: str = "steadfast"
    method_settings: Mapping[str, Any] | None = None
    k: int = 8
    epochs: int = 30
    batch_size: int = 1024
    learning_rate: float = 0.02
    schedule: str = "cosine"
    hidden: Sequence[int] = (32,)
    activation: str = "leaky-relu"
    early_stopping: bool = False
    validation_fraction: float = 0.15
    patience: int = 5
    class_weight: Mapping[Any, float] | str | None = None
    categorical: Sequence[str | int] | str = "infer"
    max_categories: int | None = None
    reference: Any = None
    random_state: int | np.random.RandomState | None = None
    device: str | None = None

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: missing values are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # --- training -------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """This classifier, trained on the rows of X, each counted `sample_weight` times."""
        self._check_parameters()
        table, labels = self._training_table(X, y)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        weights = row_weights(sample_weight, len(table))
        if len(np.unique(codes[weights > 0])) < 2:
            raise ValueError(
                "the target must show at least two classes in rows that count, got one class: "
                f"{self.classes_[codes[weights > 0][0]]!r}."
            )
        words, ways = self._read_as(table)
        columns = [
            words_of(table.iloc[:, place])
            if words[place]
            else numbers_of(name, table.iloc[:, place], ways[place])
            for place, name in enumerate(self._column_names())
        ]
        rows, totals = merged(columns, codes, weights)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self._learn([own[rows] for own in columns], ways, codes[rows], totals, seed)
        return self

    def _learn(
        self,
        columns: list[Values],
        ways: Sequence[Writing | None],
        y: Codes,
        weights: Floats,
        seed: int,
    ) -> None:
        """Train on rows that all differ, and on their weights."""
        judging = np.zeros(len(y), dtype=bool)
        if self.early_stopping:
            judging = held_out(y, self.validation_fraction, seed)
        self.schema_ = learnt(
            self._column_names(),
            [own[~judging] for own in columns],
            weights[~judging],
            ways,
            self.max_categories,
        )
        if self.reference is None:
            chosen = reference_rows(y, weights, seed)
            self._refer_to([own[chosen] for own in columns])
        else:
            self._refer_to(values_of(self.schema_, self._new_table(self.reference)))
        self.k_ = int(max(1, min(self.k, len(self.schema_.features) - 1)))
        self._plan = self._built_as(rows=int((~judging).sum()))
        x, labels = self.schema_.encode(columns).float(), torch.from_numpy(y)
        counted = weights * self._class_weights(y, weights)
        counts = torch.from_numpy(counted / counted.mean()).float()
        judges, taught = torch.from_numpy(judging), torch.from_numpy(~judging) & (counts > 0)
        # An epoch takes some steps at least, and each some rows: a small table is repeated.
        batch = min(self.batch_size, max(int(taught.sum()) // LEAST_STEPS, LEAST_BATCH))
        rows = taught.nonzero().squeeze(1)
        rows = rows.repeat(math.ceil(LEAST_STEPS * batch / len(rows)))
        model, history = train(
            build(self._plan["network"], stream(seed, "estimator", "init")),
            Part(rows=rows, x=x[rows], y=labels[rows]),
            by_log_loss(x[judges], labels[judges], counts[judges])
            if self.early_stopping
            else not_judged,
            method_of(self._plan),
            FitSettings(
                epochs=self.epochs,
                batch=batch,
                learning_rate=self.learning_rate,
                schedule=self.schedule,
                patience=self.patience if self.early_stopping else None,
                seed=seed,
            ),
            weights=counts[rows],
            fabric=fabric_on(self.device),
        )
        self.model_ = model.double().eval()
        self.n_iter_ = len(history)

    def _refer_to(self, cells: list[Values] | None) -> None:
        """Keep the cells, column by column, of the rows that contributions are told against."""
        self._usual = cells
        self.reference_ = None if cells is None else self.schema_.encode(cells)

    def _built_as(self, rows: int) -> dict[str, Any]:
        """What the network and the method are built from, kept for `save`."""
        if METHODS[self.method].model == "structured":
            curved = self.schema_.curved
            enough = rows >= ROWS_OF_A_CURVE * len(curved)
            shape = {"numeric": curved if enough else [], "one_hot": self.schema_.one_hot}
        else:
            shape = {"hidden": [int(size) for size in self.hidden], "activation": self.activation}
        return {
            "method": self.method,
            "settings": dict(self.method_settings or {}),
            "k": self.k_,
            "network": {
                "name": METHODS[self.method].model,
                "inputs": len(self.schema_.features),
                "classes": len(self.classes_),
                **shape,
            },
        }

    def _class_weights(self, y: Codes, weights: Floats) -> Floats:
        """What each row's weight is multiplied by, for its class: (N,)."""
        if self.class_weight is None:
            return np.ones(len(y))
        if isinstance(self.class_weight, str):
            balanced: Floats = weights.sum() / len(self.classes_) / np.bincount(y, weights)[y]
            return balanced
        named = compute_class_weight(
            dict(self.class_weight), classes=self.classes_, y=self.classes_[y]
        )
        found: Floats = named[y]
        if not (np.isfinite(found).all() and found.min() >= 0 and found.any()):
            raise ValueError(
                "class_weight must hold finite numbers >= 0, not all of them zero, got "
                f"{self.class_weight}."
            )
        return found

    def _check_parameters(self) -> None:
        """Refuse parameters that mean nothing."""
        _check_choice("method", self.method, METHODS)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("activation", self.activation, ACTIVATIONS)
        for name in ("k", "epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")
        if self.max_categories is not None and (
            not isinstance(self.max_categories, int | np.integer) or self.max_categories < 1
        ):
            raise ValueError(
                f"max_categories must be None or a whole number >= 1, got {self.max_categories!r}."
            )
        if not all(isinstance(size, int | np.integer) and size > 0 for size in self.hidden):
            raise ValueError(f"hidden must list whole numbers >= 1, got {self.hidden!r}.")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate!r}.")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}."
            )
        if isinstance(self.class_weight, str) and self.class_weight != "balanced":
            raise ValueError(
                "class_weight must be None, 'balanced' or a weight for each label, got "
                f"{self.class_weight!r}."
            )
        if self.categorical is None or (
            isinstance(self.categorical, str) and self.categorical != "infer"
        ):
            raise ValueError(
                "categorical must be 'infer' or a list of names or positions, got "
                f"{self.categorical!r}: put it in a list."
            )

    # --- tables ---------------------------------------------------------------------------------

    def _training_table(self, X: Any, y: Any) -> tuple[pd.DataFrame, Values]:
        """X as a table and y as a row of labels, refused as scikit-learn refuses them."""
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, y, skip_check_array=True)
            _, labels = check_X_y(np.broadcast_to(0.0, X.shape), y, estimator=self)
            return X, labels
        mixed = not isinstance(self.categorical, str) and len(self.categorical) > 0
        values, labels = validate_data(self, _cells_apart(X, mixed), y, **_admitting(mixed))
        return pd.DataFrame(values), labels

    def _new_table(self, X: Any) -> pd.DataFrame:
        """X as a table of the columns seen in `fit`, refused as scikit-learn refuses it."""
        check_is_fitted(self)
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=False, skip_check_array=True)
            check_array(np.broadcast_to(0.0, X.shape), estimator=self)
            return X
        mixed = any(isinstance(each, Category) for each in self.schema_.attributes)
        values = validate_data(self, _cells_apart(X, mixed), reset=False, **_admitting(mixed))
        return pd.DataFrame(values)

    def _column_names(self) -> list[str]:
        """Names of the columns of the table, "x0", "x1" ... where they had none."""
        if hasattr(self, "feature_names_in_"):
            return list(self.feature_names_in_)
        return [f"x{place}" for place in range(self.n_features_in_)]

    def _read_as(self, table: pd.DataFrame) -> tuple[list[bool], list[Writing | None]]:
        """Whether each column of a training table is one of categories, and how it is written."""
        words, names = self._holds_words(table), self._column_names()
        inferred = isinstance(self.categorical, str)
        ways = [
            written_as(name, table.iloc[:, place]) if inferred or not words[place] else None
            for place, name in enumerate(names)
        ]
        return [each and way is None for each, way in zip(words, ways, strict=True)], ways

    def _holds_words(self, table: pd.DataFrame) -> list[bool]:
        """Whether each column of a training table is one of categories."""
        names = self._column_names()
        if isinstance(self.categorical, str):
            return [holds_words(table.iloc[:, place]) for place in range(len(names))]
        places = set()
        for column in self.categorical:
            if isinstance(column, str):
                if column not in names:
                    raise ValueError(
                        f"categorical must name columns, but there is no {column!r}: "
                        f"{nearest(column, names)}"
                    )
                places.add(names.index(column))
            elif isinstance(column, int | np.integer) and 0 <= column < len(names):
                places.add(int(column))
            else:
                raise ValueError(
                    f"categorical must hold names, or positions 0..{len(names) - 1}, got "
                    f"{column!r}."
                )
        return [place in places for place in range(len(names))]

    def encode(self, X: Any) -> Tensor:
        """The rows of X as `model_` sees them: (N, n) in float64."""
        table = self._new_table(X)
        return self.schema_.encode(values_of(self.schema_, table))

    def reference_table(self) -> pd.DataFrame:
        """The rows of `reference_` as a table like X, to be kept when fitted again."""
        check_is_fitted(self)
        if self._usual is None:
            raise ValueError(
                "a classifier of an earlier version keeps no reference: fit it again, or give "
                "rows of its training yourself."
            )
        named = hasattr(self, "feature_names_in_")
        return pd.DataFrame(
            {
                name if named else place: _cells(attribute, own)
                for place, (name, attribute, own) in enumerate(
                    zip(self._column_names(), self.schema_.attributes, self._usual, strict=True)
                )
            }
        )

    def get_feature_names_out(self, input_features: Any = None) -> Values:
        """Names of the encoded features, in the order in which `explain` scores them: (n,)."""
        check_is_fitted(self)
        return np.array(self._names("feature"), dtype=object)

    # --- answers --------------------------------------------------------------------------------

    def _logits(self, X: Any) -> Tensor:
        x = self.encode(X)
        with torch.no_grad():
            return torch.cat([self.model_(part) for part in x.split(ROWS_AT_ONCE)])

    def decision_function(self, X: Any) -> Floats:
        """Log-odds of the second of two classes (N,); of more classes a logit for each (N, C)."""
        logits = self._logits(X)
        if len(self.classes_) == 2:
            logits = log_odds(logits, torch.ones(len(logits), dtype=torch.long))
        return _array(logits)

    def predict_proba(self, X: Any) -> Floats:
        """Probability of each class: (N, C)."""
        return _array(self._logits(X).softmax(-1))

    def predict(self, X: Any) -> Values:
        """The most probable class of each row: (N,)."""
        places = self._logits(X).argmax(-1).numpy()
        found: Values = self.classes_[places]
        return found

    # --- explanations ---------------------------------------------------------------------------

    def explain(
        self,
        X: Any,
        *,
        by: By = "feature",
        target: Any = None,
        explainer: str | Explainer = "grad",
        form: Form = "absolute",
    ) -> Any:
        """How much each feature mattered for each row: (N, n), a DataFrame if X is one.

        Features are those of `get_feature_names_out`, or with by="column" the columns of the table,
        each with the sum over its features. Explained is the predicted class or `target`, a label
        for all rows or one for each, by an entry of EXPLAINERS or any function like them.
        """
        scores = _array(self._scores(X, by, target, explainer, form))
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(scores, index=X.index, columns=self._names(by))
        return scores

    def reasons(
        self,
        X: Any,
        k: int | None = None,
        *,
        by: By = "feature",
        target: Any = None,
        explainer: str | Explainer = "grad",
    ) -> list[list[FeatureScore]]:
        """For each row the k features, or columns, that mattered most, the first of all first."""
        scores, names = self._scores(X, by, target, explainer, "absolute"), self._names(by)
        ranked = order(scores)[:, : self._shown(k)]
        return [
            [FeatureScore(names[place], row[place]) for place in places]
            for row, places in zip(scores.tolist(), ranked.tolist(), strict=True)
        ]

    def stability(
        self,
        X: Any,
        epsilon: float = 0.1,
        *,
        k: int | None = None,
        by: By = "feature",
        explainer: str | Explainer = "grad",
        budget: EnsembleBudget = MODERATE,
        seed: int = 0,
    ) -> Floats:
        """For each row the share of its top k that a strong attack leaves in place: (N,).

        The attack changes encoded rows, numbers scaled to [0, 1] and categories 0 or 1, by no more
        than `epsilon` in l2 and keeps the prediction. What it finds is an upper bound: a better
        attack may leave less. A model whose explanations would be false is refused.
        """
        x = self.encode(X)
        shown = min(self._shown(k), len(self._names(by)) - 1)
        if not shown:
            return np.ones(len(x))
        _, found = cleared(self.model_, x[:PROBES])
        for each in found:
            warnings.warn(in_words(each), UserWarning, stacklevel=2)
        explained = self._explainer(by, explainer, "absolute")
        attacked = attack(
            self.model_,
            x,
            k=shown,
            radius=epsilon,
            explainer=explained,
            budget=budget,
            seed=seed,
        )
        return _array(attacked.precision)

    def certify(
        self, X: Any, epsilons: Sequence[float] = (), *, k: int | None = None
    ) -> Certificate:
        """Proved radii, and proved shares at `epsilons`, that any attack leaves of each top k.

        The other side of `stability`: what is certified no attack on encoded rows can take away.
        """
        return certify(self.model_, self.encode(X), k=self._shown(k), epsilons=epsilons)

    def _scores(
        self, X: Any, by: By, target: Any, explainer: str | Explainer, form: Form
    ) -> Tensor:
        """How much each feature mattered for each row: (N, n)."""
        explained, x = self._explainer(by, explainer, form), self.encode(X)
        with torch.no_grad():
            return explained(self.model_, x, self._explained_class(x, target))

    def _shown(self, k: int | None) -> int:
        """How many features are asked for, as many as were held unless told."""
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, got {k}.")
        return self.k_ if k is None else k

    def _names(self, by: By) -> list[str]:
        if by == "column":
            return self._column_names()
        return [feature.name for feature in self.schema_.features]

    def _explainer(self, by: By, explainer: str | Explainer, form: Form) -> Explainer:
        """The explainer of features, or of whole columns, in the form asked for."""
        _check_choice("by", by, ("feature", "column"))
        groups = self.schema_.groups if by == "column" else None
        if isinstance(explainer, str):
            _check_choice("explainer", explainer, slopes())
            return replace(slopes()[explainer], form=form, groups=groups)
        return lambda model, x, y: shaped(explainer(model, x, y), form, groups)

    def _explained_class(self, x: Tensor, target: Any) -> Tensor:
        """The number of the class to be explained for each row: (N,)."""
        if target is None:
            return predicted(self.model_, x)
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        labels = np.asarray(target)
        if labels.shape not in ((), (len(x),)) or not set(labels.ravel().tolist()) <= set(places):
            raise ValueError(
                f"target must be a class or one for each of the {len(x)} rows, of "
                f"{list(places)}, got {target!r}."
            )
        codes = [places[label] for label in labels.ravel().tolist()]
        return torch.tensor(codes).expand(len(x))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """The path, now holding the fitted classifier: weights as safetensors, the rest as JSON."""
        check_is_fitted(self)
        parameters = {**self.get_params(), "reference": None}  # what was given is what is kept
        cells = None if self._usual is None else [own.tolist() for own in self._usual]
        about = {
            "format": FORMAT,
            "parameters": {name: _to_json(name, each) for name, each in parameters.items()},
            "reference": {"given": self.reference is not None, "cells": cells},
            "plan": {**self._plan, "settings": _to_json("method_settings", self._plan["settings"])},
            "columns": self.schema_.to_json(),
            "named": hasattr(self, "feature_names_in_"),
            "classes": _to_json("classes_", self.classes_.tolist()),
            "kind": self.classes_.dtype.str,
            "n_iter": self.n_iter_,
        }
        # A network that its method has changed cannot be built by its plan alone.
        alone = {} if method_of(self._plan).prepare else {"model": self._plan["network"]}
        return save(Path(path), self.model_, {**alone, "estimator": about})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The classifier that `save` put there, which answers bit for bit as before.

        Nothing is unpickled, so that a file of doubtful origin cannot run code.
        """
        tensors, recipe = read(Path(path))
        about = recipe.get("estimator")
        if not isinstance(about, Mapping) or about.get("format") not in FORMATS:
            raise ValueError(
                f"{path} holds no NetworkClassifier that this version can read: give a file that "
                "save() wrote."
            )
        try:
            return cls._restored(about, tensors, path)
        except Exception as problem:  # of a file whose parts may be anything
            raise ValueError(
                f"{path} holds a NetworkClassifier with parts missing or changed "
                f"({type(problem).__name__}: {problem}): restore it from a copy or train again."
            ) from problem

    @classmethod
    def _restored(
        cls, about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: str | Path
    ) -> Self:
        found = cls(**{name: _from_json(each) for name, each in about["parameters"].items()})
        found._plan = {**about["plan"], "settings": _from_json(about["plan"]["settings"])}
        found.schema_ = Schema.from_json(about["columns"])
        classes, kind = _from_json(about["classes"]), np.dtype(about["kind"])
        check_bytes(len(classes) * kind.itemsize, f"the classes of {path}")
        found.classes_ = np.array(classes, dtype=kind)
        found.k_, found.n_iter_ = found._plan["k"], about["n_iter"]
        found.n_features_in_ = len(found.schema_.columns)
        if about["named"]:
            found.feature_names_in_ = np.array(found.schema_.columns, dtype=object)
        found._restore_reference(about.get("reference", {"given": False, "cells": None}))
        with bounded([each.numel() for each in tensors.values()]):
            network = build(found._plan["network"], stream(0, "unused")).double()
        prepare = method_of(found._plan).prepare
        found.model_ = (prepare(network) if prepare else network).eval()
        load_into(found.model_, tensors, path)
        return found

    def _restore_reference(self, saved: Mapping[str, Any]) -> None:
        if saved["cells"] is None:
            self._refer_to(None)
            return
        rows = max(map(len, saved["cells"]))
        check_bytes(8 * rows * len(self.schema_.features), "the reference of a saved classifier")
        self._refer_to(
            [
                np.array(own, dtype=np.float64 if isinstance(each, Numeric) else object)
                for each, own in zip(self.schema_.attributes, saved["cells"], strict=True)
            ]
        )
        if saved["given"]:
            self.reference = self.reference_table()


# --- small parts --------------------------------------------------------------------------------


def method_of(plan: Mapping[str, Any]) -> Method:
    """A training method by its plan; with one feature only, nothing can outrank anything."""
    name, settings = plan["method"], plan["settings"]
    method = METHODS[name].build(k=plan["k"], **settings)
    return method if plan["network"]["inputs"] > 1 else replace(method, penalties=(), perturb=None)


def fabric_on(device: str | None) -> "Fabric":
    """Where training takes place: on the device named, or on a GPU if there is one."""
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if device is None:
        return Fabric(accelerator="auto", devices=1)
    try:
        place = torch.device(device)
        chosen = 1 if place.index is None or place.type == "cpu" else [place.index]
        return Fabric(accelerator=place.type, devices=chosen)
    except (RuntimeError, ValueError, MisconfigurationException) as problem:
        reason = str(problem).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}") from problem


def _check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    if value not in list(known):
        raise ValueError(
            f"{name} must be a known name, got {value!r}: {nearest(str(value), known)}"
        )


def _cells_apart(X: Any, mixed: bool) -> Any:
    """X so that numbers and words in one array keep their types."""
    return np.array(X, dtype=object) if mixed and not hasattr(X, "dtype") else X


def _admitting(mixed: bool) -> dict[str, Any]:
    """What scikit-learn's checks of an array admit."""
    return {"dtype": None if mixed else "numeric", "ensure_all_finite": "allow-nan"}


def _cells(attribute: Attribute, values: Values) -> Any:
    """The cells of a column as a table holds them: dates are dates again."""
    written = attribute.writing if isinstance(attribute, Numeric) else None
    if written is None or written.order is None:
        return values
    return pd.Timestamp(ORIGIN) + pd.to_timedelta(values, unit="D")


def _array(values: Tensor) -> Floats:
    found: Floats = values.numpy()
    return found


def _to_json(name: str, value: Any) -> Any:
    """A parameter as JSON can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        pairs = value.items()
        return {"mapping": [[_to_json(name, key), _to_json(name, each)] for key, each in pairs]}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(name, each) for each in value]}
    if isinstance(value, list | np.ndarray):
        return [_to_json(name, each) for each in value]
    raise ValueError(
        f"{name} cannot be saved, since it holds {value!r}: set it to numbers or words first."
    )


def _from_json(value: Any) -> Any:
    """The parameter that `_to_json` was given."""
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if isinstance(value, Mapping):
        if "tuple" in value:
            return tuple(_from_json(each) for each in value["tuple"])
        return {_from_json(key): _from_json(each) for key, each in value["mapping"]}
    return value
