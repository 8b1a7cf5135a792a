"""Tables that are not what they look like: what an audit says of them, and what it refuses."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from r2et.auditing import Table, settings_of
from r2et.auditing.column_names import difference
from r2et.cli import main
from r2et.sklearn import NetworkClassifier
from refusals import refusal
from slopes import audit

BUILD = """
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def named():
    net = build()
    net.feature_names_in_ = ["income", "age", "debt", "years"]
    return net
"""
NAMES = ["income", "age", "debt", "years"]

Called = Callable[..., tuple[object, str]]


def people(count: int = 300) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 4)).round(3)
    odds = 2 * x[:, 0] - 0.2 * x[:, 1] - 1.2 * x[:, 2] + 0.1 * x[:, 3]
    default = np.where(odds + draw.logistic(size=count) > 0, "yes", "no")
    return pd.DataFrame(x, columns=NAMES).assign(default=default)


def net() -> nn.Sequential:
    table = people()
    x = torch.tensor(table[NAMES].to_numpy()).float()
    y = torch.tensor((table["default"] == "yes").to_numpy()).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(x), y).backward()
        optimizer.step()
    return made


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Called:
    """One audit by its command: exit code, and all that was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("doubts_models.py").write_text(BUILD)
    save_file(net().state_dict(), "net.safetensors")
    numbers = iter(range(100))

    def call(data: str, *words: str) -> tuple[object, str]:
        quick = ("--k", "2", "--attack", "none", "--rows", "40", "--radii", "none")
        quick += ("--checked", "0", "--explain", "slopes")
        out = ("--out", f"out {next(numbers)}")
        monkeypatch.setattr(sys, "argv", ["r2et", "audit", data, *words, *quick, *out])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        page = Path(out[1]) / "audit.html"
        if page.exists():  # all that the terminal says in notes stands on the page, too
            notes = json.loads((page.parent / "audit.json").read_text())["models"][0]["notes"]
            for note in notes:
                assert " ".join(note.split()) in " ".join(told.out.split())
                assert note.split("'")[0] in page.read_text(encoding="utf-8")
        return ended.value.code, " ".join((told.out + told.err).split())

    return call


PLAIN = ("--model", "doubts_models:build", "--weights", "net.safetensors", "--target", "default")


# --- the order of columns -----------------------------------------------------------------------


def test_without_column_names_the_order_is_said_to_be_assumed(called: Called) -> None:
    people().to_csv("people.csv", index=False)
    code, told = called("people.csv", *PLAIN)
    assert code == 0, told
    assert "the order it was trained on is assumed" in told
    assert "probably" not in told


def test_another_order_of_the_file_is_suspected(called: Called) -> None:
    people()[["debt", "income", "years", "age", "default"]].to_csv("mixed.csv", index=False)
    code, told = called("mixed.csv", *PLAIN)
    assert code == 0
    assert "probably trained on another order of the columns" in told
    # Outputs in another order than the sorted classes: worse than chance.
    Path("classes.toml").write_text('classes = ["yes", "no"]')
    people().to_csv("people.csv", index=False)
    code, told = called("people.csv", *PLAIN, "--config", "classes.toml")
    assert "worse than chance" in told


@pytest.mark.parametrize("by", ["attribute", "weights", "settings"])
def test_named_columns_are_found_by_name(by: str, called: Called) -> None:
    people().to_csv("people.csv", index=False)
    people()[["debt", "income", "years", "age", "default"]].to_csv("mixed.csv", index=False)
    people().drop(columns="age").assign(agee=1.0).to_csv("lacking.csv", index=False)
    people().assign(branch=1.5).to_csv("more.csv", index=False)
    words = list(PLAIN)
    if by == "attribute":
        words[1] = "doubts_models:named"
    if by == "weights":
        save_file(net().state_dict(), "net.safetensors", metadata={"columns": json.dumps(NAMES)})
    if by == "settings":
        Path("audit.toml").write_text(f"columns = {json.dumps(NAMES)}")
        words += ["--config", "audit.toml"]
    records = []
    for name in ("people.csv", "mixed.csv"):
        code, told = called(name, *words)
        assert code == 0, told
        assert "is assumed" not in told
        assert ("taken by their names" in told) == (name == "mixed.csv")
        record = json.loads(Path(f"out {len(records)}", "audit.json").read_text())
        records.append((record["models"][0]["auc"], record["models"][0]["counts"]))
        assert [each["name"] for each in record["data"]["features"]] == NAMES
    assert records[0] == records[1]
    code, told = called("lacking.csv", *words)
    assert code == 2
    assert "'age' is missing, 'agee' is too many" in told
    code, told = called("more.csv", *words)
    assert code == 2
    assert "'branch' is too many" in told


def test_names_that_contradict_one_another_are_refused(called: Called) -> None:
    people().to_csv("people.csv", index=False)
    other = json.dumps(NAMES[::-1])
    Path("audit.toml").write_text(f"columns = {other}")
    words = ["--model", "doubts_models:named", "--weights", "net.safetensors"]
    words += ["--target", "default"]
    code, told = called("people.csv", *words, "--config", "audit.toml")
    assert code == 2
    assert "name different columns: the same in another order" in told
    save_file(net().state_dict(), "net.safetensors", metadata={"columns": other})
    code, told = called("people.csv", *words)
    assert code == 2
    assert "give the weights of this network" in told
    save_file(net().state_dict(), "net.safetensors", metadata={"columns": "income"})
    code, told = called("people.csv", *words)
    assert code == 2
    assert "expected a JSON list" in told
    Path("audit.toml").write_text('columns = ["age", "age"]')
    code, told = called("people.csv", *PLAIN, "--config", "audit.toml")
    assert "one is named twice" in told


def test_inputs_in_memory_must_be_the_named_ones() -> None:
    model = net()
    model.feature_names_in_ = np.array(NAMES, dtype=object)  # type: ignore[assignment]
    x = torch.tensor(people(12)[NAMES].to_numpy())
    quick: dict[str, Any] = {"k": 2, "attack": "none", "measured": 0, "checked": 0}
    audit(model, Table(x=x, names=NAMES), **quick)
    said = refusal(lambda: audit(model, Table(x=x, names=NAMES[::-1]), **quick))
    assert "the same in another order, 'years' in the place of 'income'" in said
    said = refusal(lambda: audit(model, Table(x=x, names=["a", *NAMES[1:]]), **quick))
    assert "'income' is missing, 'a' is too many" in said
    mixed = people(40)[["age", "years", "debt", "income", "default"]]
    config = {"target": "default"}
    found = audit(model, mixed, config=settings_of(config, "here"), **quick)
    assert any("taken by their names" in note for note in found.models[0].notes)


def test_encoded_inputs_may_be_what_is_named(tmp_path: Path) -> None:
    table = people(60)[["income", "age"]].assign(job=["clerk", "smith", "pilot"] * 20)
    model = nn.Sequential(nn.Linear(5, 2))
    names = ["income", "age", "job: clerk", "job: pilot", "job: smith"]
    model.feature_names_in_ = names  # type: ignore[assignment]
    quick: dict[str, Any] = {"k": 2, "attack": "none", "measured": 0, "checked": 0}
    audit(model, table, **quick)
    names[2:] = reversed(names[2:])
    said = refusal(lambda: audit(model, table, **quick))
    assert "'job: clerk' in the place of 'job: smith'" in said


def test_differences_in_words() -> None:
    assert difference("abc", "cab") == "the same in another order, 'c' in the place of 'a'"
    many = difference("abcdefg", "")
    assert many == "'a', 'b', 'c', 'd', 'e' and 2 more are missing"


# --- identifiers, copies of the target ----------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.arange(300), "whole numbers, a different one in each row, in order"),
        (np.random.default_rng(1).permutation(300) + 5000, "hardly a gap"),
        (np.random.default_rng(1).choice(900_000, 300, False) + 100_000, "as many digits"),
    ],
)
def test_identifiers_are_named(values: Any, said: str, called: Called) -> None:
    table = people().assign(debt=values)
    table.to_csv("people.csv", index=False)
    code, told = called("people.csv", *PLAIN)
    assert code == 0, told
    assert f"Column 'debt' looks like an identifier ({'whole' if said[0] != 'w' else said}" in told
    assert said in told
    assert "name it by id or drop" in told


def test_what_is_no_identifier_is_not_named(called: Called) -> None:
    draw = np.random.default_rng(2)
    table = people().assign(age=draw.integers(18, 90, 300), debt=draw.integers(0, 50_000, 300))
    table.to_csv("people.csv", index=False)
    _, told = called("people.csv", *PLAIN)
    assert "looks like an identifier" not in told
    table.rename(columns={"debt": "debt no"}).to_csv("people.csv", index=False)
    _, told = called("people.csv", *PLAIN)
    assert "'debt no' looks like an identifier" in told


@pytest.mark.parametrize(
    "copy",
    [
        lambda y: (y == "yes").astype(int),
        lambda y: np.where(y == "yes", 7.0, 3.0),
        lambda y: (y == "yes") + np.random.default_rng(0).uniform(0, 0.9, len(y)),
        lambda y: np.where(y == "yes", np.arange(len(y)) % 3, 3 + np.arange(len(y)) % 4),
    ],
)
def test_copies_of_the_target_are_named(copy: Callable[[Any], Any], called: Called) -> None:
    table = people()
    table["years"] = copy(table["default"])
    table.to_csv("people.csv", index=False)
    code, told = called("people.csv", *PLAIN)
    assert code == 0, told
    assert "Column 'years' tells the target 'default' of every row" in told
    assert told.count("tells the target") == 1
    assert "drop it and train without it" in told


# --- fitted classifiers -------------------------------------------------------------------------


def jobs(count: int = 120) -> pd.DataFrame:
    words = np.array(["clerk", "smith", "pilot"])[np.arange(count) % 3]
    return people(count)[["income", "age", "default"]].assign(job=words)


def test_a_saved_classifier_names_what_training_never_showed(called: Called) -> None:
    table = jobs()
    fitted = NetworkClassifier(method="vanilla", k=2, epochs=1, random_state=0)
    fitted.fit(table.drop(columns="default"), table["default"])
    fitted.save("clf.safetensors")
    new = table[["job", "default", "age", "income"]].copy()
    new.loc[[3, 4, 5], "job"] = ["astronaut", "astronaut", None]
    new.loc[7, "age"] = None
    new.to_csv("new.csv", index=False)
    words = ("--model", "clf.safetensors", "--target", "default")
    code, told = called("new.csv", *words)
    assert code == 0, told
    assert "Column 'job' has 2 values that training never showed, in 3 rows" in told
    assert "'astronaut' 2 times, 'missing' 1 times" in told
    assert "Column 'age' has 1 missing values, where training had none" in told
    assert "taken by their names" in told
    table.to_csv("same.csv", index=False)
    code, told = called("same.csv", *words)
    assert code == 0
    assert "never showed" not in told
    table.assign(more=1.0).drop(columns="age").to_csv("other.csv", index=False)
    code, told = called("other.csv", *words)
    assert code == 2
    assert "'age' is missing, 'more' is too many" in told
    Path("drop.toml").write_text('drop = ["more"]')
    table.assign(more=1.0).to_csv("other.csv", index=False)
    code, told = called("other.csv", *words)
    assert code == 2
    code, told = called("other.csv", *words, "--config", "drop.toml")
    assert code == 0, told


def test_rows_that_come_once_are_not_lost_to_a_second_look() -> None:
    def blocks() -> Any:
        for block in torch.tensor(people(90)[NAMES].to_numpy()).split(30):
            yield block, torch.zeros(30, dtype=torch.long)

    found = audit(net(), Table(x=blocks(), names=NAMES), k=2, attack="none", chunk=45, measured=0)
    assert sum(found.counts.values()) == 90


def test_nothing_is_said_of_a_few_rows(tmp_path: Path) -> None:
    x: Tensor = torch.arange(40.0).double().view(10, 4)
    found = audit(net(), Table(x=x, names=NAMES), k=2, attack="none", measured=0, checked=0)
    assert not any("identifier" in note for note in found.models[0].notes)
