"""Data sets by name or path, as the commands and Python open them."""

from pathlib import Path

import pytest

from r2et.data import load, open_dataset, read_csv
from refusals import refusal


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "loans.csv"
    rows = (
        f"{number},{number},{number % 3},{'yes' if number % 2 else 'no'}" for number in range(30)
    )
    path.write_text("\n".join(["id,income,branch,default", *rows]), encoding="utf-8")
    return path


def test_a_name_is_the_data_set_of_that_name() -> None:
    assert open_dataset("compas").digest == load("compas").digest


def test_a_path_is_the_table_that_it_leads_to(table: Path) -> None:
    choices = {"target": "default", "drop": ["id"], "categories": ["branch"]}
    found = open_dataset(table, **choices)
    assert found.digest == read_csv(table, name="loans", **choices).digest
    assert found.name == "loans"
    assert list(found.group_names) == ["income", "branch"]


def test_what_is_neither_is_refused(table: Path) -> None:
    assert "did you mean 'adult'" in refusal(lambda: open_dataset("adlt"))
    assert "name the column of" in refusal(lambda: open_dataset(table))
