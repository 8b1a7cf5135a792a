"""`r2et reasons`: models of one table beside one another."""

from pathlib import Path

import pandas as pd
import pytest
from made_people import people
from typer.testing import CliRunner

from r2et.cli import app
from r2et.experiments import reasons
from r2et.experiments.reason_records import Comparison
from r2et.experiments.reasons import compare
from refusals import refusal


@pytest.fixture
def table(tmp_path: Path) -> str:
    x, y = people(900)
    path = tmp_path / "people.csv"
    x.assign(granted=["yes" if each else "no" for each in y]).to_csv(path, index=False)
    return str(path)


@pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
def test_a_table_of_one_s_own(table: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(
        app,
        ["reasons", table, "--target", "granted", "--width", "age=1", "--width", "hours=1",
         "--decisions", "20", "--out", str(tmp_path / "out")],
        env={"COLUMNS": "200"},
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    page = (tmp_path / "out" / "reasons.html").read_text(encoding="utf-8")
    for name in ("logistic regression", "an ordinary network", "boosted trees", "StableClassifier"):
        assert name in told.output
        assert name in page
    assert "Every move was looked at" in told.output
    assert "Row" in told.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
def test_drawn_moves_prove_nothing_and_verdicts_do(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> Comparison:
        return compare(
            table, target="granted", width=["age=2", "hours=2"], decisions=40, network=False
        )

    every = found()
    monkeypatch.setattr(reasons, "MOST_MOVES", 20)  # of 25
    monkeypatch.setattr(reasons, "FEW_MOVES", 5)
    drawn = found()
    assert every.every
    assert not drawn.every
    assert every.limits == drawn.limits == (0.5, 1.0)
    for known, seen in zip(every.rows, drawn.rows, strict=True):
        assert known.exact
        assert known.proved == pytest.approx(1 - known.under.broken)
        assert known.within[-1] == known.under.broken
        assert known.within[0] <= known.within[1]
        if seen.model == "stable":  # verdicts on cells are what every single move says
            assert seen == known
        else:
            assert not seen.exact
            assert seen.proved == 0
            assert seen.under.broken <= known.under.broken
    person = every.person
    assert person is not None
    before, after = person.said["trees"]
    assert before.decision == after.decision
    assert set(before.reasons) != set(after.reasons)
    assert before.reasons == tuple(sorted(before.adds, key=lambda name: before.adds[name])[:3])
    assert all(abs(now - then) <= 2 for then, now in person.move.values())


@pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
def test_what_was_filled_is_said(table: str) -> None:
    frame = pd.read_csv(table)
    frame.loc[::10, "debts"] = None
    frame.to_csv(table, index=False)
    found = compare(table, target="granted", width=["age=1"], decisions=5, network=False)
    assert any(note.startswith("90 missing numbers") for note in found.notes)


def test_what_makes_no_sense_is_refused(table: str) -> None:
    assert "needs a target" in refusal(lambda: compare(table))
    assert "age" in refusal(lambda: compare(table, target="granted", width=["agge=1"]))
    assert "> 0" in refusal(lambda: compare(table, target="granted", width=["age=much"]))
    assert "k must lie" in refusal(lambda: compare(table, target="granted", k=9))
