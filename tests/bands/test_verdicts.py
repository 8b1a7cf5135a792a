"""Verdicts by cells against every single move, reasons by their definition."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from r2et import StableBinner
from r2et.bands.pipelines import band_verdicts
from r2et.core.reasons import ReasonVerdict
from refusals import refusal

WIDTH = {"age": 2.0, "hours": 3.0}
K = 2


def people(rows: int = 600, seed: int = 0, classes: int = 2) -> tuple[pd.DataFrame, Any]:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 60, rows),
            "hours": np.where(draw.random(rows) < 0.4, 40, draw.integers(20, 60, rows)),
            "job": draw.choice(["clerk", "cook", "smith"], rows),
            "home": draw.choice(["owned", "rented"], rows),
        }
    )
    score = (
        0.1 * (table.age - 38)
        + 0.05 * (table.hours - 40) * np.where(table.job == "cook", 2, 1)
        + 1.2 * (table.home == "owned")
    )
    noisy = score + draw.logistic(size=rows)
    return table, np.digitize(noisy, [0.3] if classes == 2 else [-0.5, 1.0])


def piped(model: Any, classes: int = 2, **settings: Any) -> Pipeline:
    X, y = people(classes=classes)
    binner = StableBinner({"age": 2, "hours": 2}, penalty=0.003, least_edges=1, **settings)
    return make_pipeline(binner, model).fit(X, y)


def log_odds(pipe: Pipeline, X: pd.DataFrame) -> Any:
    """Scores for each class: half the log-odds for two."""
    if hasattr(pipe, "decision_function"):
        found = pipe.decision_function(X)
        return found if found.ndim == 2 else np.stack([-found / 2, found / 2], 1)
    shares = np.log(np.clip(pipe.predict_proba(X), 1e-12, None))
    if shares.shape[1] > 2:
        return shares
    odds = shares[:, 1] - shares[:, 0]
    return np.stack([-odds / 2, odds / 2], 1)


def contributions(
    pipe: Pipeline, rows: pd.DataFrame, reference: pd.DataFrame, label: int, sign: int
) -> Any:
    """Of each row by the definition: all orders, all rows of the reference, raw rows: (B, m)."""
    names = list(rows.columns)
    orders = list(permutations(range(len(names))))
    mixed, steps = [], []
    for at, row in enumerate(rows.to_numpy(dtype=object)):
        for other in reference.to_numpy(dtype=object):
            for order in orders:
                now = other.copy()
                mixed.append(now.copy())
                for place in order:
                    now[place] = row[place]
                    mixed.append(now.copy())
                    steps.append((len(mixed) - 1, at, place))
    scores = log_odds(pipe, pd.DataFrame(mixed, columns=names).astype(reference.dtypes))
    margin = scores[:, label] - np.delete(scores, label, axis=1).max(1)
    phi = np.zeros((len(rows), len(names)))
    for number, at, place in steps:
        phi[at, place] += sign * (margin[number] - margin[number - 1])
    return phi / (len(orders) * len(reference))


def told(
    pipe: Pipeline, rows: pd.DataFrame, reference: pd.DataFrame, label: int, sign: int
) -> list[tuple[str, ...]]:
    """The top k of each row."""
    names = list(rows.columns)
    ranked = [
        sorted(range(len(names)), key=lambda p, own=own: (-own[p], p))
        for own in contributions(pipe, rows, reference, label, sign).round(10)
    ]
    return [tuple(names[place] for place in each[:K]) for each in ranked]


def by_every_move(
    pipe: Pipeline, row: pd.Series, reference: pd.DataFrame, cut: float = 0.0
) -> tuple[str, tuple[str, ...], set[str], float | None]:
    """Verdict, reasons, core and the size of the smallest change, move by move."""
    steps = [(0, 0), *product(range(-2, 3), range(-3, 4))]
    moved = pd.DataFrame([row] * len(steps)).astype(reference.dtypes).reset_index(drop=True)
    moved["age"] += [age for age, _ in steps]
    moved["hours"] += [hours for _, hours in steps]
    every = log_odds(pipe, moved)
    if every.shape[1] == 2:
        every = every + np.array([cut, -cut]) / 2
    labels = every.argmax(1)
    reasons = told(pipe, moved, reference, int(labels[0]), -1)
    kept = [at for at in range(len(steps)) if labels[at] == labels[0]]
    core = set(reasons[0]).intersection(*(reasons[at] for at in kept))
    sizes = [
        max(abs(steps[at][0]) / 2, abs(steps[at][1]) / 3)
        for at in kept
        if set(reasons[at]) != set(reasons[0])
    ]
    return ("broken" if sizes else "certified", reasons[0], core, min(sizes, default=None))


MODELS: dict[str, Any] = {
    "scorecard": LogisticRegression(),
    "forest": RandomForestClassifier(10, min_samples_leaf=5, random_state=0),
    "boosted": HistGradientBoostingClassifier(max_iter=15, random_state=0),
}


@pytest.mark.parametrize("encode", ["onehot", "ordinal"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_move_says_the_same(model: Any, encode: str) -> None:
    pipe = piped(model, encode=encode)
    X, _ = people(9, seed=3)
    reference, _ = people(2, seed=4)
    found = band_verdicts(pipe, X, reference=reference, k=K, width=WIDTH)
    for place, each in enumerate(found):
        verdict, reasons, core, size = by_every_move(pipe, X.iloc[place], reference)
        assert each.verdict == verdict
        assert set(each.reasons) == set(reasons)
        assert set(each.core or ()) == core
        assert (each.breaking is None) == (size is None)
        if each.breaking is not None:
            assert each.breaking.size == pytest.approx(size)
    assert {each.verdict for each in found} == {"certified", "broken"}


def test_several_classes_are_told_by_their_margin() -> None:
    pipe = piped(MODELS["forest"], classes=3)
    X, _ = people(5, seed=3)
    reference, _ = people(2, seed=4)
    for place, each in enumerate(band_verdicts(pipe, X, reference=reference, k=K, width=WIDTH)):
        verdict, reasons, _, _ = by_every_move(pipe, X.iloc[place], reference)
        assert (each.verdict, set(each.reasons)) == (verdict, set(reasons))


def test_a_threshold_moves_what_is_decided() -> None:
    pipe = piped(MODELS["scorecard"])
    X, _ = people(200, seed=3)
    reference, _ = people(5, seed=4)
    for threshold in (0.2, 0.5, 0.8):
        found = band_verdicts(pipe, X, reference=reference, k=K, threshold=threshold, width={})
        expected = (pipe.predict_proba(X)[:, 1] >= threshold).astype(int)
        assert [each.decision for each in found] == expected.tolist()
    few = X.iloc[:4]
    cut = float(np.log(0.8 / 0.2))
    for place, each in enumerate(
        band_verdicts(pipe, few, reference=reference.iloc[:2], k=K, threshold=0.8, width=WIDTH)
    ):
        verdict, _, _, _ = by_every_move(pipe, few.iloc[place], reference.iloc[:2], cut)
        assert each.verdict == verdict


class AtTheThreshold(ClassifierMixin, BaseEstimator):
    """Says one half of everybody."""

    def fit(self, X: Any, y: Any) -> "AtTheThreshold":
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X: Any) -> Any:
        """Log-odds zero."""
        return np.zeros(len(X))

    def predict(self, X: Any) -> Any:
        """The second class."""
        return np.full(len(X), self.classes_[1])


def test_a_probability_at_the_threshold_is_enough() -> None:
    found = band_verdicts(piped(AtTheThreshold()), people(3)[0], reference=people(2)[0], k=K)
    assert [each.decision for each in found] == [1, 1, 1]


def replayed(
    pipe: Pipeline, X: pd.DataFrame, reference: pd.DataFrame, found: list[ReasonVerdict]
) -> int:
    """How many printed counter-examples give the printed reasons when typed back."""
    count = 0
    for place, each in enumerate(found):
        if each.breaking is None:
            continue
        typed = X.iloc[[place]].copy()
        for name, value in each.breaking.values.items():
            assert abs(value - typed[name].iloc[0]) <= WIDTH[name]
            assert value == round(value)
            typed[name] = value
        (again,) = band_verdicts(pipe, typed, reference=reference, k=K, width={})
        assert again.decision == each.decision
        assert again.reasons == each.breaking.reasons
        assert set(again.reasons) != set(each.reasons)
        count += 1
    return count


def test_attributes_of_one_code_are_told_together() -> None:
    pipe = piped(MODELS["forest"])
    X, _ = people(40, seed=3)
    reference, _ = people(3, seed=4)
    codes = {"age": "life", "home": "life"}
    found = band_verdicts(pipe, X, reference=reference, k=1, width=WIDTH, codes=codes)
    apart = band_verdicts(pipe, X, reference=reference, k=1, width=WIDTH)
    assert {each.reasons[0] for each in found} <= {"life", "hours", "job"}
    assert any("life" in each.reasons for each in found)
    assert [each.reasons for each in found] != [each.reasons for each in apart]
    # By hand: contributions of the definition, summed, and ranked.
    for place, each in enumerate(found[:8]):
        row = X.iloc[[place]]
        label = int(log_odds(pipe, row).argmax())
        (phi,) = contributions(pipe, row, reference, label, -1)
        by_code = {"life": phi[0] + phi[3], "hours": phi[1], "job": phi[2]}
        assert each.reasons == (max(by_code, key=lambda code: by_code[code]),)


def test_counter_examples_break_when_typed_back() -> None:
    pipe = piped(MODELS["boosted"])
    X, _ = people(150, seed=5)
    reference, _ = people(20, seed=4)
    found = band_verdicts(pipe, X, reference=reference, k=K, width=WIDTH)
    assert replayed(pipe, X, reference, found) == sum(e.verdict == "broken" for e in found) > 5


def test_numbers_that_are_not_whole_move_continuously() -> None:
    X, y = people()
    X = X.assign(age=X.age + 0.37)
    pipe = make_pipeline(
        StableBinner({"age": 2}, edges={"age": [30.0]}, penalty=1e6), MODELS["scorecard"]
    )
    pipe.fit(X, y)
    rows = X.iloc[:3].assign(age=[29.0, 30.0, 31.5])
    found = band_verdicts(pipe, rows, reference=X.iloc[:5], k=K, width={"age": 1.0})
    assert [each.moves for each in found] == [2, 2, 1]
    found = band_verdicts(pipe, rows, reference=X.iloc[:5], k=K, width={"age": 0.999})
    assert [each.moves for each in found] == [1, 2, 1]


def test_a_move_that_leads_onto_an_edge_by_the_same_arithmetic_is_one() -> None:
    # 29.7 + 0.3 is 30, though 30 - 29.7 is more than 0.3.
    assert 29.7 + 0.3 == 30.0
    assert 30.0 - 29.7 > 0.3
    X, y = people()
    X = X.assign(age=X.age + 0.37)
    binner = StableBinner(edges={"age": [30.0]}, penalty=1e6)
    pipe = make_pipeline(binner, MODELS["scorecard"]).fit(X, y)
    rows = X.iloc[:1].assign(age=[29.7])
    (found,) = band_verdicts(pipe, rows, reference=X.iloc[:5], k=K, width={"age": 0.3})
    assert found.moves == 2


class Votes(LogisticRegression):
    """A model whose margins are not its log-odds."""

    def decision_function(self, X: Any) -> Any:
        """Four times the log-odds."""
        return 4 * super().decision_function(X)

    def predict_proba(self, X: Any) -> Any:
        """What the log-odds say."""
        second = 1 / (1 + np.exp(-super().decision_function(X)))
        return np.stack([1 - second, second], 1)


def test_a_threshold_is_one_of_probabilities_whatever_margins_a_model_has() -> None:
    pipe, (X, _) = piped(Votes()), people(200, seed=3)
    found = band_verdicts(pipe, X, reference=X.iloc[:5], k=K, threshold=0.7, width={})
    expected = (pipe.predict_proba(X)[:, 1] >= 0.7).astype(int)
    assert [each.decision for each in found] == expected.tolist()
    assert "probabilities" in refusal(
        lambda: band_verdicts(piped(AtTheThreshold()), X, reference=X, k=K, threshold=0.7)
    )


def test_missing_and_special_values_stay_and_nothing_moves_there() -> None:
    X, y = people()
    X = X.astype({"age": float, "hours": float})
    X.loc[:40, "age"] = np.nan
    X.loc[30:90, "hours"] = 61
    binner = StableBinner(special={"hours": [61]}, edges={"hours": [60.5]}, penalty=1e6)
    pipe = make_pipeline(binner, MODELS["scorecard"]).fit(X, y)
    rows = X.iloc[[35, 200]].assign(hours=[61.0, 60.0])  # the first without an age

    def cells(width: float) -> list[int]:
        moves = {"age": 99.0, "hours": width}
        found = band_verdicts(pipe, rows, reference=X.iloc[100:110], k=K, width=moves)
        return [each.moves for each in found]

    assert cells(1.0) == [1, 1]  # 61 hours would mean something else
    assert cells(2.0) == [1, 2]


def test_too_many_cells_are_not_pretended_to_be_known() -> None:
    pipe = piped(MODELS["scorecard"])
    X, _ = people(20, seed=5)
    found = band_verdicts(pipe, X, reference=X, k=K, width=WIDTH, most_cells=1)
    known = band_verdicts(pipe, X, reference=X, k=K, width=WIDTH)
    assert {each.verdict for each in found} >= {"undetermined"}
    for each, whole in zip(found, known, strict=True):
        assert each.reasons == whole.reasons
        assert each.moves == whole.moves
        if each.verdict == "undetermined":
            assert each.core is None
            assert each.kept is None


def test_a_decision_is_judged_alone_as_in_company() -> None:
    pipe = piped(MODELS["forest"])
    X, _ = people(8, seed=5)
    reference, _ = people(3, seed=4)
    together = band_verdicts(pipe, X, reference=reference, k=K, width=WIDTH)
    alone = [
        band_verdicts(pipe, X.iloc[[row]], reference=reference, k=K, width=WIDTH)[0]
        for row in range(8)
    ]
    assert alone == together


def test_frames_between_the_steps_are_no_obstacle() -> None:
    X, y = people()
    binner = StableBinner(penalty=0.003).set_output(transform="pandas")
    pipe = make_pipeline(binner, LogisticRegression()).fit(X, y)
    assert len(band_verdicts(pipe, X.iloc[:4], reference=X.iloc[:5], k=K)) == 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"k": 4}, "1..3"),
        ({"side": "beside"}, "'for', 'against' or 'both'"),
        ({"threshold": 1.0}, "between 0 and 1"),
        ({"width": {"agee": 1}}, "'age'"),
        ({"width": {"job": 1}}, "no number"),
        ({"width": {"age": -1}}, ">= 0"),
        ({"codes": {"jobb": "work"}}, "'job'"),
        ({"codes": {"job": "age", "home": "age"}, "k": 2}, "1..1"),
    ],
)
def test_bad_requests_are_refused(settings: dict[str, Any], says: str) -> None:
    pipe, (X, _) = piped(MODELS["scorecard"]), people(5)
    asked: dict[str, Any] = {"k": K, **settings}
    assert says in refusal(lambda: band_verdicts(pipe, X, reference=X, **asked))


def test_a_model_without_bands_is_refused() -> None:
    X, y = people()
    numbers = X[["age", "hours"]]
    model = make_pipeline(LogisticRegression()).fit(numbers, y)
    assert "begins with a StableBinner" in refusal(
        lambda: band_verdicts(model, numbers, reference=numbers)
    )
