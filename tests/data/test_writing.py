"""Numbers as people write them, and columns of very many words, through every reader."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from r2et.auditing import CsvTable, load_model, settings_of
from r2et.auditing.sources import source_for
from r2et.cli import main
from r2et.data import from_frame, read_csv
from r2et.data.writing import Writing, writing_of
from r2et.sklearn import NetworkClassifier
from refusals import refusal
from slopes import audit

CURE = "say which"


def found(texts: list[str], **named: Any) -> tuple[Writing | None, list[float | None]]:
    way = writing_of("c", texts, cure=CURE, **named)
    return way, [] if way is None else [way.number(text) for text in texts]


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["12,5", "3", "-4,75"], [12.5, 3, -4.75]),
        (["1,234.50", "5,678", "12"], [1234.5, 5678, 12]),
        (["1.234,50 €", "€ 3", "4"], [1234.5, 3, 4]),
        (["$12", "$13.50", "-$4", "$-5", "$1,000"], [12, 13.5, -4, -5, 1000]),
        (["12%", "13 %", "\N{MINUS SIGN}4.5%"], [12, 13, -4.5]),
        (["1 234", "12", "3\N{NO-BREAK SPACE}456\N{NO-BREAK SPACE}789"], [1234, 12, 3456789]),
        (["1'234.5", "2", "CHF 3"], [1234.5, 2, 3]),
        (["0,123", "0,456", "1,234"], [0.123, 0.456, 1.234]),  # no thousands begin with a zero
        (["2000-01-02", "2000-02-01", "1999-12-31 12:00"], [1, 31, -0.5]),
        (["2000-01-01T00:00:00Z", "2000-01-01T02:00:00+02:00", "2000-01-02"], [0, 0, 1]),
        (["2000/01/02", "2000/1/3", "2000/01/04"], [1, 2, 3]),
        (["31/01/2000", "01/02/2000", "02/02/2000"], [30, 31, 32]),
        (["01/31/2000", "02/01/2000", "02/02/2000"], [30, 31, 32]),
        (["31.1.2000", "1.2.2000", "2.2.2000"], [30, 31, 32]),
        (["01.02.2000", "02.02.2000", "03.02.2000"], [31, 32, 33]),
    ],
)
def test_numbers_are_read_as_they_are_written(texts: list[str], numbers: list[float]) -> None:
    assert found(texts)[1] == numbers


@pytest.mark.parametrize(
    "texts",
    [
        ["a", "b", "c"],
        ["1", "2.5", "3e4"],  # plain ones need no way of writing
        ["1", "2", "A", "3"],
        ["192.168.0.1", "10.0.0.1", "1.1.1.1"],
        ["1,2,3", "4,5,6", "7,8,9"],
        ["+49 123", "0800 123", "12 34"],
        ["20-30", "30-40", "40-50"],
        ["2000-13-01", "2000-02-30", "2000-01-32"],
        ["\N{ARABIC-INDIC DIGIT THREE}", "\N{ARABIC-INDIC DIGIT FOUR},5", "1,5"],
        ["12,5", "13,5"],  # two values are two words
        ["1" * 100 + ",5", "2" * 100 + ",5", "3" * 100 + ",5"],
        [".", ",", "%"],
    ],
)
def test_words_stay_words(texts: list[str]) -> None:
    assert found(texts)[0] is None


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["1,234", "5,678", "12"], "'1,234', which may mean 1234 or 1.234, and no cell tells"),
        (["$1.234", "$5.678", "$2"], "'1.234', which may mean 1.234 or 1234"),
        (["12,5", "1,234.5", "3"], "two kinds, '12,5' with a decimal comma and '1,234.5'"),
        (["12,5", "12.5", "3"], "two kinds"),
        (["12%", "13", "4.5%"], "different signs, '%' and none"),
        (["$1", "€2", "3"], "different signs, '$' and '€'"),
        (["01/02/2020", "03/04/2021", "05/06/2020"], "whether the day or the month comes first"),
    ],
)
def test_what_no_cell_decides_is_refused(texts: list[str], said: str) -> None:
    problem = refusal(lambda: found(texts))
    assert said in problem
    assert CURE in problem


def test_what_somebody_says_decides() -> None:
    assert found(["1,234", "12"], decimal=",")[1] == [1.234, 12]
    assert found(["1,234", "5,678", "12"], decimal=".")[1] == [1234, 5678, 12]
    assert found(["01/02/2000", "03/01/2000"], order="month first")[1] == [1, 60]
    assert found(["1.234", "2.345"], decimal=",")[1] == [1234, 2345]
    assert found(["12,5", "13,5"], sure=True)[1] == [12.5, 13.5]


def test_the_note_shows_the_cell_that_could_be_mistaken() -> None:
    [note] = Writing(decimal=",").notes("c", ["12,5", "1.234", "3"])
    assert note == ("Column 'c' is written with a decimal comma, and was read so: '1.234' as 1234.")
    [note] = Writing(order="day first").notes("c", ["02.01.2000"])
    assert note.endswith("as dates, the day first, and was read so: '02.01.2000' as 1 days since "
                         "2000-01-01.")  # fmt: skip


# --- through the readers ------------------------------------------------------------------------


def loans(count: int = 60) -> pd.DataFrame:
    """Six columns that nobody wrote for a program; `plain` holds the numbers meant."""
    draw = np.random.default_rng(0)
    plain = plain_loans(count)
    day = pd.Timestamp("2000-01-01")
    return pd.DataFrame(
        {
            "income": [f"{value:.2f}".replace(".", ",") for value in plain["income"]],
            "debt": [f"${value:,.2f}" for value in plain["debt"]],
            "rate": [f"{value:g}%" for value in plain["rate"]],
            "since": [
                (day + pd.Timedelta(days=value)).strftime("%d.%m.%Y") for value in plain["since"]
            ],
            "job": np.array(["clerk", "smith", "pilot"])[draw.integers(0, 3, count)],
            "default": np.where(plain["income"] > 50, "no", "yes"),
        }
    )


def plain_loans(count: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "income": draw.normal(50, 10, count).round(2),
            "debt": draw.uniform(0, 9000, count).round(2),
            "rate": draw.uniform(0, 20, count).round(1),
            "since": draw.integers(0, 5000, count).astype(float),
        }
    )


NUMBERS = ["income", "debt", "rate", "since"]
READ = (
    "Column 'income' is written with a decimal comma, and was read so:",
    "Column 'debt' is written with a decimal point and $, and was read so:",
    "Column 'rate' is written with a decimal point and %, and was read so:",
    "Column 'since' is written as dates, the day first, and was read so:",
)


SLOPES = ("--explain", "slopes", "--attack", "none", "--checked", "0")


@pytest.mark.parametrize(("separator", "options"), [(",", ()), (";", ()), (",", SLOPES)])
def test_the_command_reads_numbers_as_people_write_them(
    separator: str,
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("writing_models.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Linear(7, 2).double()\n"
    )
    loans().to_csv("loans.csv", index=False, sep=separator)
    Path("audit.toml").write_text(
        'target = "default"\nscale = "standard"\nsubgroups = ["income"]\n'
    )
    words = "r2et audit loans.csv --model writing_models:build --config audit.toml --k 3 --rows 10"
    monkeypatch.setattr(sys, "argv", [*words.split(), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    told = " ".join(capsys.readouterr().out.split())
    assert ended.value.code in (0, None)
    page = Path("runs/audit-loans/audit.html").read_text(encoding="utf-8")
    for line in READ:
        assert line in told
        assert line.split("'")[2] in page
    record = json.loads(Path("runs/audit-loans/audit.json").read_text())
    if options == SLOPES:
        units = {each["name"]: each["unit"] for each in record["data"]["features"]}
        assert (units["rate"], units["debt"]) == ("%", "$")
        assert units["since"] == "days since 2000-01-01"
    else:
        _, debt, rate, since = record["data"]["moves"]
        assert (debt[-2:], rate[-2:]) == (" $", " %")
        assert re.fullmatch("since: up or down by [0-9]+ days, in whole steps", since)
    assert {each["value"][:5] for each in record["models"][0]["subgroups"]} <= {"up to", "above"}


def test_all_readers_find_the_numbers_that_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "loans.csv"
    loans().to_csv(path, index=False)
    meant = torch.tensor(plain_loans().to_numpy())
    table = CsvTable.at(path, settings_of({"target": "default"}, "here"))
    [chunk] = table.chunks(100)
    torch.testing.assert_close(chunk.x[:, :4], meant)
    for dataset in (read_csv(path, target="default"), from_frame(loans(), target="default")):
        torch.testing.assert_close(dataset.x[:, :4].double(), meant, rtol=1e-6, atol=1e-3)
        for line in READ:
            assert line in dataset.source
    # Trained on one file and audited on another, of which no cell alone tells how it is written.
    few = tmp_path / "few.csv"
    part = loans().assign(income=["1,234", "2,345", "3,456"] * 20)
    part.to_csv(few, index=False)
    settings = {"target": "default", "fit_on": str(path)}
    [chunk] = CsvTable.at(few, settings_of(settings, "here")).chunks(100)
    assert chunk.x[:3, 0].tolist() == [1.234, 2.345, 3.456]
    said = refusal(lambda: CsvTable.at(few, settings_of({"target": "default"}, "here")))
    assert "decimal = '.' or ','" in said
    assert '[features."income"]' in said
    stated = {"target": "default", "features": {"income": {"decimal": "."}}}
    [chunk] = CsvTable.at(few, settings_of(stated, "here")).chunks(100)
    assert chunk.x[:3, 0].tolist() == [1234, 2345, 3456]
    words = {"target": "default", "features": {"income": {"kind": "category"}}}
    assert CsvTable.at(few, settings_of(words, "here")).columns.features[0].name == "income: 1,234"
    assert "decimal is one of '.' and ',', got ';'" in refusal(
        lambda: settings_of({"features": {"income": {"decimal": ";"}}}, "here")
    )


def test_a_misprint_among_written_numbers_is_named(tmp_path: Path) -> None:
    table = loans()
    table.loc[40, "income"] = "much"
    path = tmp_path / "loans.csv"
    table.to_csv(path, index=False)
    said = refusal(lambda: CsvTable.at(path, settings_of({"target": "default"}, "here")))
    assert "line 42, column 'income': expected a number" in said
    assert "got 'much'" in said
    assert "got 'much'" in refusal(lambda: from_frame(table, target="default"))
    later = refusal(
        lambda: NetworkClassifier(epochs=1).fit(table.drop(columns="default"), table["default"])
    )
    assert "'income' is written with a decimal comma, got 'much' in row 40" in later


def test_the_classifier_reads_written_numbers_and_dates(tmp_path: Path) -> None:
    texts, plain = loans(), plain_loans()
    X, y = texts.drop(columns="default"), texts["default"]
    quick: dict[str, Any] = {"method": "vanilla", "k": 2, "epochs": 1, "random_state": 0}
    fitted = NetworkClassifier(**quick).fit(X, y)
    as_numbers = plain.assign(job=texts["job"])
    as_dates = as_numbers.assign(since=pd.to_datetime(texts["since"], dayfirst=True))
    as_dates.loc[3, "since"] = pd.NaT
    meant = NetworkClassifier(**quick).fit(as_numbers, y)
    torch.testing.assert_close(fitted.encode(X), meant.encode(as_numbers))
    dated = NetworkClassifier(**quick).fit(as_dates, y)
    assert "since: missing" in dated.get_feature_names_out()
    assert "must hold dates" in refusal(lambda: dated.predict(as_numbers))
    assert "datetime64" in refusal(lambda: meant.predict(as_dates))
    # Saved and audited, it reads a file as it read its training table, and says so.
    X.to_csv(tmp_path / "new.csv", index=False)
    again = load_model(str(fitted.save(tmp_path / "clf.safetensors")))
    source = source_for(str(tmp_path / "new.csv"), [again], settings_of({}, "here"))
    torch.testing.assert_close(next(source.chunks(100)).x, fitted.encode(X))
    for line in READ:
        assert any(note.startswith(line) for note in source.notes), line
    # One that was trained on plain numbers reads written ones, too.
    source = source_for(
        str(tmp_path / "new.csv"),
        [load_model(str(meant.save(tmp_path / "plain.safetensors")))],
        settings_of({}, "here"),
    )
    torch.testing.assert_close(next(source.chunks(100)).x, fitted.encode(X))
    found = audit(dated, as_dates, k=2, attack="none", measured=0, checked=0, rows=5)
    assert sum(found.counts.values()) == 5
    # Three figures without decimals are read as in training.
    new = X.assign(income="1,234")
    assert float(fitted.encode(new)[0, 0]) == pytest.approx(
        float(meant.encode(as_numbers.assign(income=1.234))[0, 0])
    )
    said = refusal(lambda: fitted.predict(X.assign(income="12.5")))
    assert "'income' is written with a decimal comma, got '12.5' in row 0" in said
    either = X.assign(income=["1,234", "2,345", "7"] * 20)
    unclear = refusal(lambda: NetworkClassifier(epochs=1).fit(either, y))
    assert "list it in categorical" in unclear
    words = NetworkClassifier(categorical=["income", "debt", "rate", "since", "job"], **quick)
    assert "income: " in words.fit(X[:40].assign(income="1,5"), y[:40]).schema_.features[0].name


def test_a_file_is_encoded_as_the_classifier_encodes_its_table(tmp_path: Path) -> None:
    # Spaces, words for what is missing, and numbers among words mean the same in both.
    table = pd.DataFrame(
        {
            "job": ["clerk", " smith", "?", "smith ", "", "NA"] * 5,
            "grade": ["1", "2.0", "x", None, "01", "2"] * 5,
            "age": [20.0, 30.0, None, 40.5, 50.0, 60.0] * 5,
        }
    )
    fitted = NetworkClassifier(method="vanilla", k=2, epochs=1, random_state=0)
    fitted.fit(table, ["no", "yes"] * 15)
    assert fitted.get_feature_names_out().tolist() == [
        *("job: clerk", "job: smith", "job: missing"),
        *("grade: 01", "grade: 1", "grade: 2", "grade: x", "grade: missing"),
        *("age", "age: missing"),
    ]
    table.to_csv(tmp_path / "t.csv", index=False)
    loaded = load_model(str(fitted.save(tmp_path / "clf.safetensors")))
    source = source_for(str(tmp_path / "t.csv"), [loaded], settings_of({}, "here"))
    torch.testing.assert_close(next(source.chunks(100)).x, fitted.encode(table), rtol=0, atol=0)
    assert not source.notes


# --- very many words ----------------------------------------------------------------------------


def codes(rows: int, values: int) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    numbers = np.minimum(draw.geometric(0.01, rows), draw.integers(1, values + 1, rows))
    numbers[:values] = np.arange(values)
    table = pd.DataFrame({"a": draw.normal(size=rows), "zip": [f"z{it}" for it in numbers]})
    return table.assign(y=np.where(table["a"] + draw.normal(size=rows) > 0, "yes", "no"))


def test_ten_thousand_words_end_in_seconds_with_advice(tmp_path: Path) -> None:
    table, path = codes(30_000, 10_000), tmp_path / "codes.csv"
    table.to_csv(path, index=False)
    began = time.perf_counter()
    said = refusal(lambda: NetworkClassifier().fit(table[["a", "zip"]], table["y"]))
    assert "'zip' has 10,000 different values" in said
    assert "set max_categories=50" in said
    kinds = {"target": "y", "features": {"zip": {"kind": "category"}}}
    for call in (
        lambda: CsvTable.at(path, settings_of(kinds, "here")),
        lambda: audit(nn.Linear(9, 2), table, config=settings_of(kinds, "here")),
        lambda: from_frame(table, target="y", categories=["zip"]),
        lambda: read_csv(path, target="y", categories=["zip"]),
    ):
        said = refusal(call)
        assert "'zip' has 10,000 different values" in said
        assert "keep the most frequent and call the rest 'other'" in said
    more = codes(30_000, 12_000)
    said = refusal(lambda: CsvTable.at(more, settings_of(kinds, "here")))
    assert "more than 10,000 different words" in said
    assert "keep the most frequent" in said
    assert time.perf_counter() - began < 60  # seconds on a machine of one's own, minutes nowhere


def test_rare_words_are_joined_if_asked_for(tmp_path: Path) -> None:
    table = codes(3000, 1000)
    fitted = NetworkClassifier(method="vanilla", k=2, epochs=1, max_categories=20, random_state=0)
    fitted.fit(table[["a", "zip"]], table["y"])
    column = fitted.schema_.attributes[1]
    frequent = table["zip"].value_counts()
    assert {*column.labels} - {"other"} <= {*frequent[frequent >= frequent.iloc[20]].index}
    assert (len(column.labels), column.grouped) == (21, True)
    assert sum(column.shares) == pytest.approx(1)
    new = table[["a", "zip"]][:4].assign(zip=[column.labels[1], "z999", "never seen", None])
    encoded = fitted.encode(new)[:, 1:]
    assert encoded[0].nonzero().squeeze().tolist() == 1
    other = column.labels.index("other")
    for row in encoded[1:3]:
        assert row.nonzero().squeeze().tolist() == other
    again = load_model(str(fitted.save(tmp_path / "clf.safetensors")))
    assert again.classifier is not None
    assert again.classifier.schema_ == fitted.schema_
    table.to_csv(tmp_path / "t.csv", index=False)
    source = source_for(str(tmp_path / "t.csv"), [again], settings_of({"target": "y"}, "here"))
    assert any("20 most frequent of training and count as 'other'" in each for each in source.notes)
    kept = NetworkClassifier(method="vanilla", k=2, epochs=1, max_categories=5000, random_state=0)
    kept.fit(table[["a", "zip"]][:600], table["y"][:600])
    assert not kept.schema_.attributes[1].grouped
    assert "max_categories must be" in refusal(
        lambda: NetworkClassifier(max_categories=0).fit(table[["a"]], table["y"])
    )
