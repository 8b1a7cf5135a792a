import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from attacking import attacker
from closed_form import numbers
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import EXPLAINERS, Gradient, predicted, slopes
from r2et.methods import METHODS, Method
from r2et.models import MODELS
from r2et.sklearn import MODERATE, FeatureScore, NetworkClassifier, held_out
from r2et.training.checkpoint import load
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit
from refusals import refusal

BRIEF = NetworkClassifier(epochs=1, learning_rate=0.1, random_state=0)
QUICK = NetworkClassifier(method="steadfast-quick", epochs=2, random_state=0)


def quick(**parameters: Any) -> NetworkClassifier:
    return clone(QUICK).set_params(**parameters)


def people(count: int = 200, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """A table with numbers, words, truth values and missing cells, and a target they decide."""
    generator = np.random.default_rng(seed)
    age = generator.integers(18, 80, count).astype(float)
    income = generator.normal(30, 10, count)
    job = generator.choice(["clerk", "smith", "pilot"], count)
    owner = generator.choice([True, False], count)
    score = (age - 50) / 20 + (income - 30) / 10 + 2 * (job == "pilot") - owner
    income[generator.random(count) < 0.1] = np.nan
    table = pd.DataFrame({"age": age, "income": income, "job": job, "owner": owner})
    table.loc[generator.random(count) < 0.1, "job"] = None
    table.index = pd.Index([f"person {i}" for i in range(count)])
    return table, pd.Series(np.where(score > 0, "yes", "no"), index=table.index)


@cache
def trained() -> NetworkClassifier:
    X, y = people()
    fitted: NetworkClassifier = quick(k=3, epochs=8).fit(X, y)
    return fitted


def three_classes() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(150, 6, n_informative=4, n_classes=3, class_sep=2.0, random_state=0)
    return X, y


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


# --- scikit-learn's promises --------------------------------------------------------------------


@parametrize_with_checks([BRIEF])
def test_scikit_learn_accepts_it(estimator: NetworkClassifier, check: Callable[..., None]) -> None:
    check(estimator)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str) -> None:
    X, y = make_classification(200, 5, n_informative=3, class_sep=2.0, random_state=1)
    model = NetworkClassifier(method=method, k=2, epochs=2, random_state=0).fit(X, y)
    assert roc_auc_score(y, model.decision_function(X)) > 0.9
    assert model.k_ == 2


def test_three_classes_and_their_probabilities() -> None:
    X, y = three_classes()
    model = quick(epochs=5).fit(X, y)
    assert model.score(X, y) > 0.75
    probabilities = model.predict_proba(X)
    assert probabilities.shape == model.decision_function(X).shape == (150, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    logits = torch.from_numpy(model.decision_function(X))
    np.testing.assert_allclose(probabilities, logits.softmax(-1).numpy())


def test_log_odds_of_two_classes() -> None:
    X, _ = people()
    odds, probabilities = trained().decision_function(X), trained().predict_proba(X)
    np.testing.assert_allclose(probabilities[:, 1], 1 / (1 + np.exp(-odds)))
    assert trained().classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(trained().predict(X), np.where(odds > 0, "yes", "no"))


def test_it_works_in_pipelines_searches_and_calibration() -> None:
    X, y = make_classification(120, 5, class_sep=2.0, random_state=0)
    assert cross_val_score(make_pipeline(StandardScaler(), quick()), X, y, cv=2).min() > 0.7
    grid = {"k": [1, 2], "method_settings": [{"thickness": 0.1}, {"thickness": 0.5}]}
    search = GridSearchCV(quick(), grid, cv=2, scoring="roc_auc").fit(X, y)
    assert search.best_estimator_.k_ == search.best_params_["k"]
    calibrated = CalibratedClassifierCV(quick(), cv=2).fit(X, y)
    assert calibrated.predict_proba(X).shape == (120, 2)


def test_tables_go_through_cross_validation() -> None:
    X, y = people()
    assert cross_val_score(quick(epochs=8), X, y, cv=2, scoring="roc_auc").min() > 0.85


# --- tables -------------------------------------------------------------------------------------


def test_a_table_of_numbers_words_and_gaps() -> None:
    X, y = people()
    model = trained()
    assert model.feature_names_in_.tolist() == ["age", "income", "job", "owner"]
    assert model.n_features_in_ == 4
    assert model.get_feature_names_out().tolist() == [
        *("age", "income", "income: missing"),
        *("job: clerk", "job: pilot", "job: smith", "job: missing"),
        "owner: True",
    ]
    fresh, truth = people(seed=1)
    assert roc_auc_score(truth == "yes", model.decision_function(fresh)) > 0.9
    assert model.score(X, y) > 0.8


def test_an_unknown_word_is_the_average_of_the_known() -> None:
    X, _ = people()
    model = trained()
    job = [model.get_feature_names_out().tolist().index(f"job: {w}") for w in ("clerk", "missing")]
    row = model.encode(X.iloc[:1].assign(job="astronaut"))[0]
    shares = X["job"].fillna("missing").value_counts(normalize=True).sort_index()
    expected = [shares["clerk"], shares["pilot"], shares["smith"], shares["missing"]]
    assert row[job[0] : job[1] + 1].tolist() == pytest.approx(expected)


def test_columns_may_be_called_categories() -> None:
    X = np.column_stack([np.arange(40) % 4, np.arange(40) % 7])
    y = X[:, 0] == 2
    by_position = quick(categorical=[0], epochs=5).fit(X, y)
    assert by_position.get_feature_names_out().tolist() == [
        *("x0: 0", "x0: 1", "x0: 2", "x0: 3"),
        "x1",
    ]
    assert by_position.score(X, y) == 1
    named = pd.DataFrame(X, columns=["a", "b"])
    by_name = quick(categorical=["a"], epochs=5).fit(named, y)
    np.testing.assert_array_equal(by_name.predict_proba(named), by_position.predict_proba(X))
    words = [["red", 1.5], ["blue", np.nan], ["red", 2.5], ["blue", 3.5]] * 5
    mixed = quick(categorical=[0]).fit(words, [0, 1, 0, 1] * 5)
    assert mixed.get_feature_names_out().tolist() == ["x0: red", "x1", "x1: missing"]
    assert mixed.predict([["red", 1.5], ["green", np.nan]]).shape == (2,)
    as_objects = np.array(words, dtype=object)
    np.testing.assert_array_equal(mixed.predict_proba(as_objects), mixed.predict_proba(words))


def test_pandas_types_do_not_matter() -> None:
    X, y = people()
    as_nullable = X.convert_dtypes().assign(job=X["job"].astype("category"))
    other = quick(k=3, epochs=8).fit(as_nullable, y)
    np.testing.assert_array_equal(other.predict_proba(X), trained().predict_proba(X))
    np.testing.assert_array_equal(other.predict_proba(as_nullable), trained().predict_proba(X))


def test_a_row_is_answered_alone_as_in_company() -> None:
    X, _ = people()
    model, some = trained(), X.iloc[:6]
    rows = [some.iloc[i : i + 1] for i in range(6)]
    for answer in (
        model.predict_proba,
        model.explain,
        partial(model.stability, epsilon=0.5),
        partial(model.explain, by="column", explainer="smooth-grad"),
    ):
        together = np.asarray(answer(some))
        alone = np.concatenate([np.asarray(answer(row)) for row in rows])
        np.testing.assert_allclose(alone, together, rtol=1e-9, atol=1e-12)


# --- weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"class_weight": "balanced"}])
def test_a_weight_is_so_many_rows_whatever_their_order(settings: dict[str, Any]) -> None:
    X, y = people(60)
    times = np.random.default_rng(0).integers(0, 4, 60)
    weighted = quick(**settings).fit(X, y, sample_weight=times)
    places = np.random.default_rng(1).permutation(np.arange(60).repeat(times))
    repeated = quick(**settings).fit(X.iloc[places], y.iloc[places])
    assert same_weights(weighted.model_, repeated.model_)
    assert weighted.schema_ == repeated.schema_
    assert weighted.n_iter_ == repeated.n_iter_
    assert torch.equal(weighted.reference_, repeated.reference_)


def test_only_ratios_of_weights_matter() -> None:
    X, y = people(60)
    one, other, none = (quick().fit(X, y, sample_weight=w) for w in (np.ones(60), [4.0] * 60, None))
    assert same_weights(one.model_, none.model_)
    assert same_weights(one.model_, other.model_)


def test_a_class_without_weight_is_never_predicted() -> None:
    X, y = three_classes()
    for settings in ({}, {"class_weight": "balanced"}):
        model = quick(**settings).fit(X, y, sample_weight=(y != 1) * 1.0)
        assert model.classes_.tolist() == [0, 1, 2]
        assert 1 not in model.predict(X)
        assert not np.isnan(model.predict_proba(X)).any()


def test_class_weights_move_the_border() -> None:
    X, y = people()
    rare = np.flatnonzero((y == "yes").to_numpy())[:12]
    rows = np.concatenate([np.flatnonzero((y == "no").to_numpy()), rare])
    some, truth = X.iloc[rows], y.iloc[rows]
    plain, balanced, heavy = (
        quick(epochs=5, class_weight=weight).fit(some, truth)
        for weight in (None, "balanced", {"yes": 1000.0})
    )
    shares = [(model.predict(some) == "yes").mean() for model in (plain, balanced, heavy)]
    assert shares[0] < shares[1] < shares[2]
    # "balanced" gives each class half of all weight.
    counts = truth.value_counts()
    by_hand = {label: len(truth) / (2 * count) for label, count in counts.items()}
    again = quick(epochs=5, class_weight=by_hand).fit(some, truth)
    np.testing.assert_allclose(again.predict_proba(some), balanced.predict_proba(some), atol=1e-4)


def test_weights_of_a_fit_count_in_the_mean_over_its_batches() -> None:
    # At a learning rate of almost nothing every batch sees the starting weights.
    x, model = numbers(37, 5).float(), MODELS["mlp"].build(5, 2, generator=stream(0, "test"))
    y, weights = (x[:, 0] > 0).long(), torch.arange(1.0, 38.0)
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    mean = ((losses * weights).sum() / weights.sum()).item()
    train = Part(rows=torch.arange(37), x=x, y=y)
    settings = FitSettings(epochs=1, batch=16, learning_rate=1e-12)
    scored = []

    def score(model: nn.Module) -> float:
        scored.append(model)
        return 0.25

    _, (record,) = fit(model, train, score, Method(), settings, weights=weights)
    assert record.parts["classification"] == pytest.approx(mean, rel=1e-5)
    assert record.valid_auc == 0.25
    assert len(scored) == 1
    for wrong in (torch.ones(36), torch.zeros(37), weights * math.nan):
        message = refusal(partial(fit, model, train, score, Method(), settings, weights=wrong))
        assert "37 rows" in message


# --- randomness ---------------------------------------------------------------------------------


def test_a_seed_decides_everything() -> None:
    X, y = people(60)
    one, same, other = (quick(random_state=seed).fit(X, y) for seed in (1, 1, 2))
    assert same_weights(one.model_, same.model_)
    assert not same_weights(one.model_, other.model_)
    generator = np.random.RandomState(1)
    first, second = (quick(random_state=generator).fit(X, y) for _ in range(2))
    assert same_weights(one.model_, first.model_)
    assert not same_weights(first.model_, second.model_)


def test_without_a_seed_numpys_dice_decide() -> None:
    X, y = people(60)
    np.random.seed(3)
    one, other = (quick(random_state=None).fit(X, y) for _ in range(2))
    np.random.seed(3)
    again = quick(random_state=None).fit(X, y)
    assert same_weights(one.model_, again.model_)
    assert not same_weights(one.model_, other.model_)


def test_torchs_dice_are_left_alone() -> None:
    X, y = people(60)
    torch.manual_seed(4)
    dice = torch.get_rng_state()
    quick().fit(X, y)
    assert torch.equal(torch.get_rng_state(), dice)


# --- stopping early -----------------------------------------------------------------------------


def test_training_stops_when_the_rows_held_out_are_predicted_no_better() -> None:
    X, y = people(150)
    y = y.where(np.random.default_rng(0).random(150) < 0.7, "no")
    settings = {"early_stopping": True, "patience": 2, "schedule": "constant"}
    model = quick(**settings, epochs=25, validation_fraction=0.3).fit(X, y)
    best = model.n_iter_ - 2
    assert 0 < best < 23
    # The weights kept are those after the best epoch, which the last two were no better than.
    again = quick(**settings, epochs=best, validation_fraction=0.3).fit(X, y)
    assert again.n_iter_ == best
    assert same_weights(model.model_, again.model_)
    assert quick(**settings | {"early_stopping": False}, epochs=3).fit(X, y).n_iter_ == 3


def test_the_same_share_of_each_class_is_held_out() -> None:
    y = np.array([0] * 40 + [1] * 10 + [2])
    chosen = held_out(y, 0.3, seed=0)
    assert np.bincount(y[chosen], minlength=3).tolist() == [12, 3, 0]
    assert np.array_equal(chosen, held_out(y, 0.3, seed=0))
    assert not np.array_equal(chosen, held_out(y, 0.3, seed=1))
    assert held_out(np.array([0, 0, 1]), 0.01, seed=0).sum() == 1
    assert "two or more" in refusal(lambda: held_out(np.array([0, 1]), 0.5, seed=0))


# --- explanations -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slopes())
def test_an_explanation_is_that_of_the_network_on_encoded_rows(name: str) -> None:
    X, _ = people(20)
    model, x = trained(), trained().encode(X)
    y = predicted(model.model_, x)
    found = model.explain(X, explainer=name)
    assert found.columns.tolist() == model.get_feature_names_out().tolist()
    assert found.index.equals(X.index)
    expected = EXPLAINERS[name](model.model_, x, y).detach().numpy()
    np.testing.assert_array_equal(found.to_numpy(), expected)


def test_a_column_has_the_sum_of_its_features() -> None:
    X, _ = people(20)
    features, columns = trained().explain(X), trained().explain(X, by="column")
    assert columns.columns.tolist() == ["age", "income", "job", "owner"]
    jobs = [name for name in features.columns if name.startswith("job")]
    np.testing.assert_allclose(columns["job"], features[jobs].sum(axis=1))
    shares = trained().explain(X, by="column", form="normalised")
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_any_class_may_be_explained() -> None:
    X, y = three_classes()
    model = quick().fit(X, y)
    x = model.encode(X)
    for target in (1, np.full(150, 1)):
        found = model.explain(X, target=target, form="signed")
        ones = torch.ones(150, dtype=torch.long)
        expected = Gradient(form="signed")(model.model_, x, ones).detach()
        np.testing.assert_array_equal(found, expected.numpy())
    assert isinstance(found, np.ndarray)
    for wrong in (7, [1, 2]):
        assert "target" in refusal(partial(model.explain, X, target=wrong))


def test_an_explainer_of_ones_own() -> None:
    X, _ = people(20)
    own = trained().explain(X, explainer=Gradient(of="logit", form="signed"))
    assert (own.to_numpy() >= 0).all()
    grouped = trained().explain(X, by="column", explainer=Gradient(of="logit"))
    np.testing.assert_allclose(grouped["job"], own.filter(like="job").sum(axis=1))


def test_reasons_are_the_largest_scores_in_words() -> None:
    X, _ = people(20)
    scores = trained().explain(X)
    for row, reasons in zip(scores.itertuples(index=False), trained().reasons(X), strict=True):
        ranked = sorted(zip(row, scores.columns, strict=True), key=lambda pair: -pair[0])
        assert reasons == [FeatureScore(name, score) for score, name in ranked[:3]]
    assert [len(each) for each in trained().reasons(X, k=2, by="column")] == [2] * 20
    assert {each[0].feature for each in trained().reasons(X, 1, by="column")} <= set(X.columns)


def test_stability_is_what_the_strong_attack_leaves() -> None:
    X, _ = people(20)
    model, x = trained(), trained().encode(X)
    attack = attacker("strong", k=3, radius=0.5, budget=MODERATE)
    expected = attack(model.model_, x, predicted(model.model_, x)).precision.numpy()
    found = model.stability(X, epsilon=0.5)
    np.testing.assert_array_equal(found, expected)
    assert found.min() < 1
    np.testing.assert_array_equal(model.stability(X, epsilon=0.0), 1)
    columns = model.stability(X, epsilon=2.0, by="column", k=2)
    assert set(columns.tolist()) <= {0.0, 0.5, 1.0}


@pytest.mark.parametrize(("rows", "bends"), [(199, False), (200, True)])
def test_curves_take_a_hundred_rows_each(rows: int, bends: bool) -> None:
    X = numbers(rows, 2).numpy()
    model = quick(epochs=1).fit(np.column_stack([X, X[:, 0] > 0]), X[:, 1] > 0)
    assert (model.model_.curves is not None) == bends


def test_what_is_explained_by_one_feature_cannot_change() -> None:
    X = np.linspace(0, 1, 20)[:, None]
    model = quick().fit(X, X[:, 0] > 0.5)
    assert model.k_ == 1
    assert model.reasons(X[:1]) == [[FeatureScore("x0", model.explain(X[:1])[0, 0])]]
    np.testing.assert_array_equal(model.stability(X, epsilon=1.0), 1)


@pytest.mark.parametrize(("k", "held"), [(1, 1), (4, 4), (5, 4), (8, 4)])
def test_k_leaves_a_feature_to_hold_the_others_against(k: int, held: int) -> None:
    X, y = make_classification(60, 5, random_state=0)
    assert quick(k=k, epochs=1).fit(X, y).k_ == held


# --- the reference ------------------------------------------------------------------------------


def test_a_reference_stands_for_the_rows_of_the_training() -> None:
    X, y = people(300)
    model = quick(epochs=1).fit(X, y)
    assert model.reference_.shape == (200, len(model.get_feature_names_out()))
    encoded = {tuple(row): label for row, label in zip(model.encode(X).tolist(), y, strict=True)}
    labels = [encoded[tuple(row)] for row in model.reference_.tolist()]  # each is one of the rows
    assert len(set(map(tuple, model.reference_.tolist()))) == 200
    assert abs(labels.count("yes") - 200 * (y == "yes").mean()) <= 1
    few = quick(epochs=1).fit(X[:50], y[:50])
    assert sorted(few.reference_.tolist()) == sorted(few.encode(X[:50]).tolist())


def test_heavy_rows_are_often_in_the_reference() -> None:
    X, y = people(60)
    weights = np.where(np.arange(60) < 10, 5.0, 0.2)
    model = quick(epochs=1).fit(X, y, sample_weight=weights)
    heavy = model.encode(X[:10]).tolist()
    # Ten rows of 60 have a weight of 50 in 60; rows are picked at equal distances of weight.
    assert sum(row in heavy for row in model.reference_.tolist()) in range(165, 169)


def test_a_refit_keeps_the_reference(tmp_path: Path) -> None:
    X, y = people(120)
    X = X.assign(since=pd.Timestamp("2020-01-01") + pd.to_timedelta(X.age, unit="D"))
    old = quick(epochs=1).fit(X[:60], y[:60])
    new = quick(epochs=1, reference=old.reference_table()).fit(X[60:], y[60:])
    assert torch.equal(new.reference_, new.encode(old.reference_table()))
    assert old.encode(old.reference_table()).equal(old.reference_)
    assert old.encode(new.reference_table()).equal(old.reference_)
    again = NetworkClassifier.load(new.save(tmp_path / "new"))
    assert torch.equal(again.reference_, new.reference_)
    assert torch.equal(again.fit(X[60:], y[60:]).reference_, new.reference_)
    for wrong, told in ((X[:0], "0 sample"), (X[["age"]], "feature names")):
        with pytest.raises(ValueError, match=told):
            quick(reference=wrong).fit(X, y)
    arrays, labels = three_classes()
    first = quick(epochs=1).fit(arrays, labels)
    table = first.reference_table()
    assert torch.equal(
        quick(epochs=1, reference=table).fit(arrays, labels).reference_, first.reference_
    )


def test_files_of_earlier_versions_have_no_reference(tmp_path: Path) -> None:
    with safe_open(trained().save(tmp_path / "now"), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        notes = json.loads(file.metadata()["r2et"])
    about = notes["recipe"]["estimator"]
    about["format"] = 2
    del about["reference"], about["parameters"]["reference"]
    save_file(tensors, tmp_path / "old", metadata={"r2et": json.dumps(notes)})
    old = NetworkClassifier.load(tmp_path / "old")
    assert old.reference_ is None
    assert "keeps no reference" in refusal(old.reference_table)
    assert NetworkClassifier.load(old.save(tmp_path / "again")).reference_ is None


# --- files --------------------------------------------------------------------------------------


def classifiers() -> dict[str, Callable[[], NetworkClassifier]]:
    table, numeric = people(80), three_classes()
    balance = {"no": 1.0, "yes": 2.0}
    settings = {"method_settings": {"rho": 0.7}, "hidden": (5, 4), "activation": "relu"}
    return {
        "steadfast": trained,
        "three": lambda: quick().fit(*numeric),
        "softplus": lambda: quick(method="sp", **settings).fit(*numeric),
        "weights": lambda: quick(class_weight=balance, categorical=["job", "owner"]).fit(*table),
        "booleans": lambda: quick().fit(numeric[0], numeric[1] == 1),
        "floats": lambda: quick(k=np.int64(2)).fit(numeric[0].tolist(), numeric[1] * 1.0),
        "one": lambda: quick(method="r2et").fit(numeric[0][:, :1], numeric[1]),
    }


@pytest.mark.parametrize("name", classifiers())
def test_a_saved_classifier_answers_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = classifiers()[name]()
    X = people(50, seed=2)[0] if hasattr(model, "feature_names_in_") else three_classes()[0]
    X = X if X.shape[1] == model.n_features_in_ else X[:, : model.n_features_in_]
    path = model.save(tmp_path / "folder" / "model.safetensors")
    again = NetworkClassifier.load(str(path))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.explain(X), model.explain(X))
    assert again.get_params() == model.get_params()
    assert type(again.hidden) is tuple
    assert again.schema_ == model.schema_
    assert torch.equal(again.reference_, model.reference_)
    assert again.classes_.dtype == model.classes_.dtype
    assert (again.k_, again.n_iter_) == (model.k_, model.n_iter_)
    assert hasattr(again, "feature_names_in_") == hasattr(model, "feature_names_in_")
    assert again.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_what_was_trained_is_saved_whatever_was_set_since(tmp_path: Path) -> None:
    X, y = three_classes()
    model = quick(method="sp", hidden=(5,)).fit(X, y).set_params(method="vanilla", hidden=(9,))
    again = NetworkClassifier.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.hidden == (9,)
    assert "which model" in refusal(lambda: load(tmp_path / "model"))


def test_the_network_of_a_saved_classifier_can_be_loaded_by_itself(tmp_path: Path) -> None:
    model = trained()
    network, _ = load(model.save(tmp_path / "model"))
    x = model.encode(people(20)[0])
    assert torch.equal(network(x), model.model_(x))


def test_files_that_hold_no_classifier_are_refused(tmp_path: Path) -> None:
    good = trained().save(tmp_path / "good")
    content = good.read_bytes()

    def asked(data: bytes) -> str:
        (tmp_path / "bad").write_bytes(data)
        return refusal(lambda: NetworkClassifier.load(tmp_path / "bad"))

    assert "no checkpoint" in refusal(lambda: NetworkClassifier.load(tmp_path / "none"))
    for data in (b"", content[:100], content[:-100], b"PK" + content):
        assert "not a whole checkpoint" in asked(data)
    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    assert "no NetworkClassifier" in asked((tmp_path / "foreign").read_bytes())

    with safe_open(good, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        notes = json.loads(file.metadata()["r2et"])

    def changed(change: Callable[[dict[str, Any]], object]) -> str:
        told = json.loads(json.dumps(notes))
        change(told["recipe"]["estimator"])
        save_file(tensors, tmp_path / "changed", metadata={"r2et": json.dumps(told)})
        return asked((tmp_path / "changed").read_bytes())

    assert "no NetworkClassifier" in changed(lambda about: about.update(format=99))
    assert "missing or changed" in changed(lambda about: about.pop("columns"))
    assert "missing or changed" in changed(lambda about: about.update(columns=[{"name": "a"}]))
    assert "missing or changed" in changed(lambda about: about["parameters"].update(colour=1))
    assert "missing or changed" in changed(lambda about: about["plan"].update(method="none"))
    assert "architecture" in changed(lambda about: about["plan"]["network"].update(units=3))


def test_parameters_that_are_no_words_or_numbers_cannot_be_saved(tmp_path: Path) -> None:
    model = clone(trained()).set_params(random_state=np.random.RandomState(0))
    model = model.set_params(epochs=1).fit(*people(40))
    assert "random_state cannot be saved" in refusal(lambda: model.save(tmp_path / "model"))
    assert not (tmp_path / "model").exists()
    model.set_params(random_state=0).save(tmp_path / "model")


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"method": "steadfest"}, "did you mean 'steadfast'"),
        ({"method": 3}, "method"),
        ({"method_settings": {"thikness": 1.0}}, "did you mean 'thickness'"),
        ({"method_settings": {"thickness": -1.0}}, "thickness"),
        ({"k": 0}, "k must"),
        ({"k": 2.5}, "k must"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": -1}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"schedule": "linear"}, "schedule"),
        ({"activation": "gelu"}, "activation"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"patience": 0}, "patience"),
        ({"class_weight": "equal"}, "class_weight"),
        ({"class_weight": {"no": -1.0}}, "class_weight"),
        ({"hidden": (4, 0)}, "hidden"),
        ({"categorical": None}, "categorical"),
        ({"categorical": "job"}, "put it in a list"),
        ({"categorical": ["jobs"]}, "did you mean 'job'"),
        ({"categorical": [9]}, "0..3"),
        ({"categorical": ["owner"]}, "column 'job' must hold numbers"),
        ({"device": "toaster"}, "toaster"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
    ids=str,
)
def test_parameters_that_mean_nothing_are_refused(wrong: dict[str, Any], told: str) -> None:
    assert told in refusal(lambda: quick(**wrong).fit(*people(40)))


def test_tables_that_tell_nothing_are_refused() -> None:
    X, y = people(40)
    model = trained()
    assert "one class" in refusal(lambda: quick().fit(X, ["yes"] * 40))
    assert "0 sample(s)" in refusal(lambda: model.predict(X.iloc[:0]))
    assert "0 feature(s)" in refusal(lambda: quick().fit(X[[]], y))
    assert "inconsistent numbers" in refusal(lambda: quick().fit(X, y[:-1]))
    assert "column 'age'" in refusal(lambda: model.predict(X.assign(age="old")))
    assert "inf" in refusal(lambda: model.predict(X.assign(age=np.inf)))
    assert "continuous" in refusal(lambda: quick().fit(X, np.linspace(0, 1, 40)))
    for weights in (np.zeros(40), -np.ones(40), np.ones(39), np.ones((40, 2))):
        assert "sample_weight" in refusal(partial(quick().fit, X, y, sample_weight=weights))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(X.rename(columns={"age": "Age"}))
    for asked in (model.reasons, model.stability):
        assert "k must" in refusal(partial(asked, X, k=0))
    for wrong in ({"by": "row"}, {"explainer": "gradd"}, {"form": "squared"}):
        assert next(iter(wrong.values())) in refusal(partial(model.explain, X, **wrong))


def test_what_is_certified_no_attack_takes_away() -> None:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    classifier = NetworkClassifier(k=5, epochs=5, random_state=0).fit(X, y)
    rows = X[:20]
    found = classifier.certify(rows, epsilons=(0.05,))
    assert (found.radius > 0).any()
    left = classifier.stability(rows, epsilon=0.05)
    assert (left >= found.precision[:, 0].numpy() - 1e-12).all()
    with pytest.raises(ValueError, match="for 30 features, got 30"):
        classifier.certify(rows, k=30)
