"""`r2et reasons`: models of one table beside one another, and the page of the study."""

import re
from pathlib import Path

import pytest
from made_people import people
from typer.testing import CliRunner

from r2et.cli import app
from r2et.experiments.reasons import compare
from refusals import refusal
from reproduction.reasons import PAGE, ROWS, page, read_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(tmp_path: Path) -> str:
    x, y = people(900)
    path = tmp_path / "people.csv"
    x.assign(granted=["yes" if each else "no" for each in y]).to_csv(path, index=False)
    return str(path)


@pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
def test_a_table_of_one_s_own(table: str) -> None:
    told = CliRunner().invoke(
        app,
        ["reasons", table, "--target", "granted", "--width", "age=1", "--width", "hours=1",
         "--decisions", "20"],
        env={"COLUMNS": "200"},
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    for name in ("logistic regression", "an ordinary network", "boosted trees", "StableClassifier"):
        assert name in told.output
    assert "every move was looked at" in told.output
    shares = re.search(r"exactly: ([\d.]+) % certified, ([\d.]+) % broken", told.output)
    assert shares is not None
    assert sum(map(float, shares.groups())) == pytest.approx(100, abs=0.2)
    assert "Row" in told.output


def test_what_makes_no_sense_is_refused(table: str) -> None:
    assert "needs a target" in refusal(lambda: compare(table))
    assert "age" in refusal(lambda: compare(table, target="granted", width=["agge=1"]))
    assert "> 0" in refusal(lambda: compare(table, target="granted", width=["age=much"]))
    assert "k must lie" in refusal(lambda: compare(table, target="granted", k=9))


def test_the_page_is_that_of_the_rows() -> None:
    assert (ROOT / PAGE).read_text("utf-8") == page(read_rows(ROOT / ROWS))
