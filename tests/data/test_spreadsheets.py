"""Rows of an audit in a spreadsheet: nothing in them is run, and all come back as they were."""

import csv
import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from r2et.auditing import Progress, Table
from r2et.auditing.exports import FORMULA, cell, escaped
from r2et.auditing.store import FILE
from refusals import refusal
from slopes import audit

FORMULAS = ("=1+1", "+x", "-x", "@sum", "\tx", "\rx", " =1", "'=1", "''=1", "\uff1d1", "=\n1")
FINE = ("", "x", "a=b", "-5", "+1.5", "-1e5", "'tis", "[1]", "x\n=1")


def unescaped(text: str) -> str:
    """What `escaped` was given: an apostrophe before a formula is none of its."""
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert escaped(text) == f"'{text}"
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", FINE)
def test_other_text_and_numbers_stay(text: str) -> None:
    assert escaped(text) == text == unescaped(text)


@example("\x85@")
@given(st.text(alphabet="'=+-@ \t\r\n1ex", max_size=6) | st.text(max_size=8))
def test_every_text_comes_back(text: str) -> None:
    assert unescaped(escaped(text)) == text
    try:
        float(text)
    except ValueError:
        assert not escaped(text).startswith(("\t", "\r", "\n"))
        assert not escaped(text).lstrip().startswith(("=", "+", "-", "@"))


def test_only_text_is_escaped() -> None:
    row = (-0.5, -3, "-3", "-x", ["=1"], None, False)
    assert [*map(cell, row)] == ["-0.5", "-3", "-3", "'-x", '["=1"]', "", "false"]


def hostile() -> Table:
    """Decisions whose classes, names and subgroups are formulas."""
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Table(
        x=x,
        names=["=cmd", "+b", "c"],
        y=(x[:, 0] > 0).long(),
        classes=("=no()", "@yes"),
        ids=[FORMULAS[number % len(FORMULAS)] for number in range(12)],
        subgroups={"=group": ["=one", "'=one", "-two", "-2"] * 3},
    )


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)).double()


SETTINGS: dict[str, Any] = {"k": 1, "attack": "none", "radii": "none", "epsilons": (0.1,)}


def test_an_audit_writes_no_formulas_and_reads_its_own_rows(tmp_path: Path) -> None:
    found = audit(net(), hostile(), out=tmp_path / "csv", **SETTINGS)
    with (tmp_path / "csv" / "decisions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for name, text in row.items():
            assert not name.startswith(("=", "+", "-", "@"))
            if text.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(text)
    assert {row["id"] for row in rows} == {f"'{text}" for text in FORMULAS}
    # What is said of the whole is said of the texts themselves.
    [model] = found.models
    assert {each.value for each in model.subgroups} == {"=one", "'=one", "-two", "-2"}
    assert model.auc is not None
    told = json.loads((tmp_path / "csv" / "audit.json").read_text())["decisions"]
    assert {each["id"] for each in told} == set(FORMULAS)


def test_parquet_is_exact(tmp_path: Path) -> None:
    audit(net(), hostile(), out=tmp_path, format="parquet", **SETTINGS)
    frame = pd.read_parquet(tmp_path / "decisions.parquet")
    assert set(frame["id"]) == set(FORMULAS)
    assert set(frame["prediction"]) <= {"=no()", "@yes"}
    assert set(frame["subgroup =group"]) == {"=one", "'=one", "-two", "-2"}
    assert frame["log-odds of @yes"].dtype == float


def test_what_was_changed_since_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = partial(audit, net(), hostile(), out=out, chunk=4, **SETTINGS)

    def stop(progress: Progress) -> None:
        if progress.done == 8:
            raise KeyboardInterrupt

    for change in (
        "UPDATE decisions SET record = replace(record, '0.', '1.') WHERE chunk = 1 AND place = 2",
        "DELETE FROM decisions WHERE chunk = 1 AND place = 3",
        "INSERT INTO decisions SELECT 7, place, in_full, record FROM decisions WHERE chunk = 1",
        "DELETE FROM chunks WHERE number = 0",
        "UPDATE decisions SET record = 3",
        "DROP TABLE chunks",
    ):
        with pytest.raises(KeyboardInterrupt):
            run(on_progress=stop)
        with closing(sqlite3.connect(out / FILE)) as opened, opened:
            opened.execute(change)
        message = refusal(run)
        assert f"{FILE} was changed since the audit wrote it" in message
        (out / FILE).unlink()
    run()
    record = out / "audit.json"
    record.write_text(record.read_text().replace("0.", "1.", 1))
    message = refusal(run)
    assert "audit.json" in message
    assert "changed" in message


def test_long_names_are_read_back() -> None:
    names = [letter * 100_000 for letter in "abc"]
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = audit(net(), Table(x=x, names=names), **(SETTINGS | {"k": 2}))
    assert sum(found.counts.values()) == 4
