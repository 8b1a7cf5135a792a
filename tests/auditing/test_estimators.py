"""Audits of models that people already have: trees, linear models, and any other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import r2et
from r2et.actionable.tables import TableMoves
from r2et.auditing.config import DataSettings
from r2et.auditing.estimators import Table, estimator_table, of_estimators
from r2et.auditing.reason_models import ReasonSubject
from r2et.auditing.reason_settings import ReasonSettings
from r2et.auditing.table_form import TableForm
from r2et.auditing.table_models import AskedTable, SumTable, TreeTable, asked_scores
from r2et.core.reasons import Question, Side
from r2et.evaluation.reasons import reason_verdicts

ROWS = 400


def people() -> tuple[pd.DataFrame, Any]:
    """Six columns of all kinds, two whole numbers that move, and labels."""
    draw = np.random.default_rng(5)
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 80, ROWS),
            "hours": draw.integers(0, 60, ROWS).astype(float),
            "income": draw.lognormal(3, 1, ROWS).round(2),
            "town": pd.Categorical(draw.choice(["u", "v", "w"], ROWS)),
            "member": draw.random(ROWS) < 0.4,
            "debt": draw.normal(size=ROWS).astype(np.float32),
        }
    )
    table.loc[::13, "hours"] = np.nan
    score = table["age"] / 20 + table["hours"].fillna(20) / 15 + 2 * (table["town"] == "u")
    score += table["member"] * table["debt"] + draw.normal(0, 0.5, ROWS)
    return table, (score > score.median()).astype(int).to_numpy()


NUMBERS, WORDS = ["age", "hours", "income", "debt"], ["town", "member"]


def encoder(*, scaled: bool = True) -> Any:
    """Numbers filled and perhaps scaled, words one-hot."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler()) if scaled else SimpleImputer()
    return make_column_transformer((numbers, NUMBERS), (OneHotEncoder(), WORDS))


def fitted() -> dict[str, Any]:
    """Models of all kinds on the same table."""
    x, y = people()
    forest = RandomForestClassifier(8, max_depth=4, random_state=0)
    half = HistGradientBoostingClassifier(max_iter=15, max_depth=3)
    half.fit(x, y)
    return {
        "hist": HistGradientBoostingClassifier(max_iter=20, max_depth=3).fit(x, y),
        "xgboost": xgboost.XGBClassifier(
            n_estimators=15, max_depth=3, enable_categorical=True, n_jobs=1
        ).fit(x, y),
        "lightgbm": lightgbm.LGBMClassifier(
            n_estimators=15, num_leaves=6, verbose=-1, n_jobs=1
        ).fit(x, y),
        "forest": make_pipeline(encoder(scaled=False), forest).fit(x, y),
        "boosted behind a scale": make_pipeline(
            encoder(), HistGradientBoostingClassifier(max_iter=10, max_depth=3)
        ).fit(x, y),
        "calibrated": CalibratedClassifierCV(FrozenEstimator(half), method="sigmoid").fit(x, y),
        "regression": make_pipeline(encoder(), LogisticRegression()).fit(x, y),
        "bayes": make_pipeline(encoder(), GaussianNB()).fit(x, y),
    }


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return fitted()


READ: dict[str, type] = {
    "hist": TreeTable,
    "xgboost": TreeTable,
    "lightgbm": TreeTable,
    "forest": TreeTable,
    "boosted behind a scale": TreeTable,
    "calibrated": TreeTable,
    "regression": SumTable,
    "bayes": AskedTable,
}


def subject_of(model: Any, **settings: Any) -> tuple[Table, ReasonSubject]:
    x, _ = people()
    table = estimator_table({"model": model}, x, DataSettings())
    chunk = next(iter(table.source.chunks(8)))
    asked = ReasonSettings(reference_rows=10, **settings)
    (found,) = of_estimators({"model": model}, table, x[:60])(table.source, chunk, asked)
    return table, found


@pytest.mark.parametrize("name", READ)
def test_each_kind_of_model_is_taken_for_what_it_is(name: str, models: Mapping[str, Any]) -> None:
    x, _ = people()
    table, found = subject_of(models[name])
    assert type(found.model) is READ[name]
    assert list(found.model.names) == list(x)  # the columns of the table, whatever came of them
    told = table.form.told(x)
    odds = found.odds(found.model.scores(told))[:, 1]
    np.testing.assert_allclose(
        1 / (1 + np.exp(-odds)), models[name].predict_proba(x)[:, 1], atol=2e-6
    )


@pytest.mark.parametrize(
    ("threshold", "side"),
    [
        (0.5, "against"),
        (0.3, "both"),
        *(
            pytest.param(threshold, side, marks=pytest.mark.slow)
            for threshold, side in [(0.5, "for"), (0.5, "both"), (0.3, "for"), (0.3, "against")]
        ),
    ],
)
@pytest.mark.parametrize("name", [name for name in READ if READ[name] is not AskedTable])
def test_verdicts_are_those_of_all_moves_of_a_model_that_is_only_asked(
    name: str, threshold: float, side: Side, models: Mapping[str, Any]
) -> None:
    # Six attributes have 64 coalitions, and two whole numbers 25 moves: all can be looked at.
    x, _ = people()
    table, found = subject_of(models[name], threshold=threshold)
    told = table.form.told(x)
    asked = AskedTable(
        chances=asked_scores(models[name], threshold, 2),
        form=table.form,
        reference=found.model.reference,  # type: ignore[attr-defined]
        classes=["0", "1"],
    )
    people_of = told[20:32].reset_index(drop=True)
    phi = found.model.contributions(people_of)
    if name != "forest":  # which is told in shares of the probability
        np.testing.assert_allclose(phi, asked.contributions(people_of), atol=2e-5)
        moves = TableMoves(width={"age": 2.0, "hours": 2.0}, whole=frozenset(("age", "hours")))
        question = Question(k=2, side=side)
        ours = reason_verdicts(found.model, people_of, moves, question)
        theirs = reason_verdicts(asked, people_of, moves, question)
        for one, other in zip(ours, theirs, strict=True):
            assert (one.verdict, one.reasons) == (other.verdict, other.reasons)
            assert set(one.core or ()) == set(other.core or ())
            if one.breaking is not None and other.breaking is not None:
                assert one.breaking.size == pytest.approx(other.breaking.size)


def test_a_proof_of_a_sum_holds_against_many_moves(models: Mapping[str, Any]) -> None:
    x, _ = people()
    table, found = subject_of(models["regression"])
    told = table.form.told(x)[:40]
    moves = TableMoves(width={"age": 3.0, "income": 4.0, "debt": 0.2}, whole=frozenset(["age"]))
    question = Question(k=2)
    verdicts = reason_verdicts(found.model, told, moves, question)
    assert {each.verdict for each in verdicts} == {"certified", "broken"}
    draw = np.random.default_rng(0)
    for row, verdict in zip(told.to_dict("records"), verdicts, strict=True):
        many = pd.DataFrame([row] * 300)
        if verdict.verdict == "certified":
            many["age"] += draw.integers(-3, 4, 300)
            many["income"] += draw.uniform(-4, 4, 300)
            many["debt"] += draw.uniform(-0.2, 0.2, 300)
        else:
            assert verdict.breaking is not None
            many = many[:1].assign(**verdict.breaking.values)
        first = pd.DataFrame([row])
        label = found.model.scores(first).argmax(1)[0]
        stays = found.model.scores(many).argmax(1) == label
        shown = -found.model.contributions(many)[:, :, label]
        names = np.array(found.model.names)[np.argsort(-shown, 1, kind="stable")[:, :2]]
        same = np.array([set(each) == set(verdict.reasons) for each in names])
        assert same[stays].all() if verdict.verdict == "certified" else not same[stays].any()


def test_three_lines_give_a_page(models: Mapping[str, Any]) -> None:
    x, _ = people()
    found = r2et.audit(models["xgboost"], x[:30], k=3, tolerance={"age": 1, "hours": 2})
    assert isinstance(found, r2et.ReasonAudit)
    assert sum(found.counts.values()) == 30
    assert found.counts["undetermined"] == 0
    assert found.page is not None
    assert "Do the reasons hold?" in found.page.read_text()


def test_an_array_is_audited_by_the_places_of_its_columns() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 4))
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int)
    model = HistGradientBoostingClassifier(max_iter=10).fit(x, y)
    found = r2et.audit(model, x[:20], k=2, tolerance=0.05)
    assert isinstance(found, r2et.ReasonAudit)
    assert found.data.attributes == ("x0", "x1", "x2", "x3")
    assert found.counts["undetermined"] == 0


class Contrary(HistGradientBoostingClassifier):
    """Trees that are not what it predicts by."""

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X)[:, ::-1]


def test_a_model_that_predicts_otherwise_is_asked_and_nothing_is_certified_unseen() -> None:
    x, y = people()
    model = Contrary(max_iter=10).fit(x, y)
    _, found = subject_of(model)
    assert isinstance(found.model, AskedTable)
    assert "asked, not read" in " ".join(found.notes)
    audit = r2et.audit(model, x[:3], k=2, tolerance={"debt": 0.01}, reference_rows=4)
    assert isinstance(audit, r2et.ReasonAudit)
    assert audit.counts["certified"] == 0  # a number that moves continuously is only searched


def test_several_classes_are_told_by_the_score_of_the_decided_one() -> None:
    x, y = people()
    y = y + (x["age"] > 60).to_numpy()
    model = lightgbm.LGBMClassifier(n_estimators=5, num_leaves=5, verbose=-1, n_jobs=1).fit(x, y)
    found = r2et.audit(model, x[:20], k=2, tolerance={"age": 1, "hours": 1})
    assert isinstance(found, r2et.ReasonAudit)
    assert found.data.classes == ("0", "1", "2")
    assert found.counts["undetermined"] == 0


def test_columns_are_typed_as_they_were() -> None:
    x, _ = people()
    form = TableForm.of(x)
    pd.testing.assert_frame_equal(form.typed(form.told(x)), x)


def test_files_of_other_libraries_are_audited_by_the_command(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from r2et.cli import app

    x, y = people()
    rows = x.drop(columns=["town", "member"]).astype(float)
    model = xgboost.XGBClassifier(n_estimators=10, max_depth=3, n_jobs=1).fit(rows, y)
    model.save_model(tmp_path / "model.json")
    rows[:15].assign(good=y[:15]).to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out"
    asked = ["audit", str(tmp_path / "rows.csv"), "--model", str(tmp_path / "model.json")]
    asked += ["--target", "good", "--width", "age=1", "-k", "2", "--out", str(out)]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output
    assert (out / "audit.html").exists()
    told = pd.read_csv(out / "decisions.csv")
    assert len(told) == 15
    assert told["probability"].to_numpy() == pytest.approx(
        model.predict_proba(rows[:15]).max(1), abs=1e-5
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.drop(columns="age"), "takes a column 'age'"),
        (lambda x: x.assign(other=1), "'other' that the model does not take"),
    ],
)
def test_other_columns_are_refused(change: Any, said: str, models: Mapping[str, Any]) -> None:
    x, _ = people()
    with pytest.raises(ValueError, match=said):
        r2et.audit(models["hist"], change(x[:5]), k=2)


def test_models_of_other_kinds_stand_by_themselves(models: Mapping[str, Any]) -> None:
    x, _ = people()
    with pytest.raises(ValueError, match="slopes are gradients of networks"):
        r2et.audit(models["hist"], x[:5], explain="slopes")
    both = r2et.audit({"a": models["hist"], "b": models["regression"]}, x[:6], k=2)
    assert isinstance(both, r2et.ReasonAudit)
    assert [each.name for each in both.models] == ["a", "b"]
