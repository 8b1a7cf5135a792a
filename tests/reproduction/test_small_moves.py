"""The study of reasons under small moves: what is compared like for like, and how it is told."""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from made_people import people

from r2et.bands.contributions import contributions
from r2et.evaluation.moves import Additive
from r2et.report.charts import file_of
from r2et.trees import descent, stabilize
from r2et.trees.stabilize import GRADES
from reproduction.reasons import models, rows
from reproduction.reasons.__main__ import main
from reproduction.reasons.frontier import dots, frontier, middle
from reproduction.reasons.guard import (
    COMPARED,
    GUARD,
    GUARDED,
    Guarded,
    GuardRow,
    guard_table,
    guarded,
    read_guard,
)
from reproduction.reasons.page import NEW, PAGE, PICTURE, page
from reproduction.reasons.repair import (
    PLAIN,
    REPAIRS,
    Repair,
    read_repairs,
    readings_told,
    repaired,
    repairs_table,
    repairs_told,
)
from reproduction.reasons.rows import (
    BOUNDS,
    ROWS,
    Bound,
    Row,
    bound_of,
    bounds_of,
    forget,
    like_for_like,
    measured,
    parts_of,
    read_bounds,
    read_rows,
)
from reproduction.reasons.tables import TABLES, Case

ROOT = Path(__file__).parents[2]


def a_row(model: str, split: int = 30, table: str = "compas", **changed: Any) -> Row:
    given: dict[str, Any] = {
        "auc": 0.8,
        "overlap": 0.4,
        "broken": {"±1": 0.2, "±2": 0.4},
        "kept": {"±1": 0.9, "±2": 0.8},
        "large": {"±1": 0.2, "±2": 0.4},
        "seconds": 1.0,
    }
    return Row(table=table, split=split, model=model, **given | changed)


def a_case(numbers: int = 400, **moves: float) -> Case:
    x, y = people(numbers)
    return Case(x=x, y=y, moves={"near": moves}, every=True)


# --- rows ---------------------------------------------------------------------------------------


def test_moves_stay_within_the_range_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    case = a_case(age=5.0, debts=3.0)
    seen = []

    def regression(x: pd.DataFrame, y: Any, case: Case) -> Additive:
        def terms(rows: pd.DataFrame) -> Any:
            seen.append(rows[["age", "debts"]])
            numbers = rows[["age", "hours", "debts"]].to_numpy(dtype=float)
            return np.concatenate([numbers * [1.0, 0.5, 9.0], numbers[:, :2]], 1)

        return Additive(terms=terms, constant=-120.0)

    monkeypatch.setitem(models.MODELS, "recorder", ("recorder", regression, None))
    row = measured("made", case, 30, "recorder")
    looked_at = pd.concat(seen)
    assert looked_at.debts.min() == case.x.debts.min() == 0
    assert looked_at.debts.max() == case.x.debts.max()
    assert looked_at.age.min() == case.x.age.min()
    assert set(row.broken) == set(row.kept) == set(row.large) == {"near"}


def test_no_split_tests_on_what_it_learns_from() -> None:
    test, learnt = parts_of("made", 101, 30)
    assert sorted([*test, *learnt]) == list(range(101))
    assert len(test) == 30
    assert parts_of("made", 101, 31)[0].tolist() != test.tolist()


def test_the_bound_counts_pairs_in_different_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the four who are judged, 30 and 32 meet at 31 if their jobs are the same: one pair of six.
    x = pd.DataFrame({"age": [30, 32, 32, 60], "job": ["cook", "cook", "clerk", "cook"]})
    case = Case(x=x, y=np.zeros(4), moves={"±1": {"age": 1.0}, "±0": {}}, every=True)
    monkeypatch.setattr(rows, "parts_of", lambda *_: (np.arange(4), np.arange(0)))
    bound = bound_of("made", case, 30)
    assert bound.most == {"±1": pytest.approx(5 / 6), "±0": 1.0}
    assert bound.attributes == 2


def test_means_are_over_splits_that_all_models_have() -> None:
    some = [a_row("lr", 30), a_row("lr", 31), a_row("stable", 31), a_row("stable", 32)]
    assert {(row.model, row.split) for row in like_for_like(some)} == {("lr", 31), ("stable", 31)}


def test_bounds_are_those_of_the_people_judged() -> None:
    bounds = [
        Bound(table=table, split=split, attributes=5, most={"±1": most, "±2": most})
        for table, split, most in [("compas", 30, 0.5), ("compas", 31, 1.0), ("german", 30, 1.0)]
    ]
    assert bounds_of([a_row("lr", 30)], bounds) == bounds[:1]
    text = page([a_row("lr", 30)], bounds, [])
    assert "Bound of 1 - O for 0 % broken: 50.00 % at ±1, 50.00 % at ±2." in text
    assert "3 of 5 attributes share 60.0 %" in text


def test_whole_numbers_of_compas_move_by_one_and_two(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["age", "sex", "race", "juv_fel_count", "juv_misd_count", "juv_other_count"]
    made = pd.DataFrame({name: [1, 2] for name in [*names, "priors_count", "c_charge_degree"]})
    monkeypatch.setattr(
        "reproduction.reasons.tables._csv", lambda _: made.assign(two_year_recid=[0, 1])
    )
    assert TABLES["compas"]().moves == {
        "±1": {"age": 1.0, "priors_count": 1.0},
        "±2": {"age": 2.0, "priors_count": 2.0},
    }


@pytest.mark.filterwarnings("ignore")  # a name that only newer versions of it have
def test_leaves_of_lightgbm_are_read() -> None:
    pytest.importorskip("lightgbm")
    case = a_case(900)
    model = models.light_gbm(case.x, case.y, case)
    x, reference = case.x[:15], case.x[20:26]
    both = pd.concat([x, reference], ignore_index=True)
    codes = [pd.factorize(both[name]) for name in both]
    cells = np.stack([index for index, _ in codes], 1)

    def score(some: np.ndarray) -> np.ndarray:
        pairs = zip(both, codes, some.T, strict=True)
        return model.score(pd.DataFrame({name: known[at] for name, (_, known), at in pairs}))

    slow = contributions(score, cells[:15], cells[15:])
    np.testing.assert_allclose(model.contributions(x, [reference])[0], slow, atol=1e-8)


# --- page ---------------------------------------------------------------------------------------


def test_the_committed_page_is_the_one_its_rows_make() -> None:
    own, bounds, guard, repairs = (
        read_rows(ROOT / ROWS),
        read_bounds(ROOT / BOUNDS),
        read_guard(ROOT / GUARD),
        read_repairs(ROOT / REPAIRS),
    )
    text = page(own, bounds, guard, repairs)
    assert (ROOT / PAGE).read_text("utf-8") == text, "run `make reasons`."
    if f"matplotlib=={mpl.__version__}" in (ROOT / "constraints.txt").read_text():
        drawn = file_of(lambda colours: frontier(own, bounds, colours))
        assert (ROOT / PICTURE).read_text("utf-8") == drawn, "run `make reasons`."


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"broken": {"±1": 0.1, "±2": 0.2}, "auc": 0.797, "overlap": 0.42}, "yes"),
        ({"broken": {"±1": 0.1, "±2": 0.21}}, "no: broken at ±2 (52.5 %)"),
        ({"broken": {"±1": 0.0, "±2": 0.0}, "auc": 0.795}, "no: AUC (-0.0050)"),
        ({"broken": {"±1": 0.0, "±2": 0.0}, "overlap": 0.44}, "no: O (+4.0)"),
    ],
)
def test_what_is_asked_beside_lightgbm(changed: dict[str, Any], verdict: str) -> None:
    text = page([a_row("lightgbm"), a_row("stable", **changed)], [], [])
    [line] = [line for line in text.splitlines() if line.startswith("| compas, ±1 / ±2 |")]
    assert line.endswith(f" | {verdict} |")
    # Splits of these two alone have a table of their own, and none of other splits counts there.
    own = NEW["compas"][0]
    new = [a_row("lightgbm", own), a_row("stable", own, **changed)]
    both = page([a_row("lightgbm"), a_row("stable"), a_row("lr"), *new], [], []).splitlines()
    first, second = (line for line in both if line.startswith("| compas, ±1 / ±2 |"))
    assert first == line
    assert second.endswith("| no: broken at ±1 (100.0 %), broken at ±2 (100.0 %) |")


def a_repair(grade: str, split: int = 55, **changed: Any) -> Repair:
    given: dict[str, Any] = {
        "auc": 0.8,
        "overlap": 0.4,
        "broken": {"±1": 0.2, "±2": 0.4},
        "kept": {"±1": 0.9, "±2": 0.8},
        "penalty": None,
        "edges": 0,
        "held": True,
        "worth": 1.0,
        "difference": None,
        "own": None,
        "seconds": 1.0,
    }
    return Repair(table="compas", split=split, model="hgb", grade=grade, **given | changed)


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"broken": {"±1": 0.1, "±2": 0.2}, "auc": 0.798, "overlap": 0.42}, "met"),
        ({"broken": {"±1": 0.1, "±2": 0.21}}, "missed"),
        ({"broken": {"±1": 0.0, "±2": 0.0}, "auc": 0.796}, "missed"),
        ({"broken": {"±1": 0.0, "±2": 0.0}, "overlap": 0.44}, "missed"),
    ],
)
def test_repairs_are_told_by_the_grade_that_held_rows_favour(
    changed: dict[str, Any], verdict: str
) -> None:
    others = [a_repair("bands", worth=0.1, held=False), a_repair("additive", worth=0.6)]
    rows = [a_repair(PLAIN), *others, a_repair("reading", worth=0.5, **changed)]
    # A split on which a grade is missing is left out.
    table = repairs_table([*rows, a_repair(PLAIN, 56), a_repair("reading", 56, auc=0.1)])
    best, *_, reading = table[2:]
    assert best.startswith("| compas | hgb | **best** | 55 | ")
    assert best.split("|")[4:] == reading.split("|")[4:]
    assert best.endswith(f"| {verdict} |")
    kept = "1 of 1 tables (compas)" if verdict == "met" else "0 of 1 tables ()"
    assert repairs_told(rows) == [f"- hgb: {kept}"]
    assert f"- hgb: {kept}" in page([a_row("stable")], [], [], rows)


def test_repairs_of_the_version_before_are_told_apart() -> None:
    rows = [a_repair(each, at) for each in (PLAIN, *GRADES) for at in (55, 71)]
    text = page([a_row("stable")], [], [], rows)
    now, before = text.split("### The version before")
    assert "| compas | hgb | **best** | 71 | " in now
    assert "| compas | hgb | **best** | 55 | " in before
    assert "The version before" not in page([a_row("stable")], [], [], rows[1::2])


def test_readings_say_how_far_they_are_from_people() -> None:
    rows = [a_repair(PLAIN, at) for at in (70, 71, 73)]
    rows += [a_repair(each, at, worth=0.9) for each in ("bands", "additive") for at in (70, 71)]
    rows += [a_repair(each, 73, worth=0.1) for each in ("bands", "additive")]
    rows += [a_repair("reading", at, worth=0.5, difference=at / 100, own=0.8) for at in (70, 71)]
    assert "Of the 2 best, 2 are readings" in readings_told(rows)
    rows.append(a_repair("reading", 73, worth=0.5, difference=2.0, own=0.1))
    said = readings_told(rows)
    assert "Of the 3 best, 2 are readings" in said
    assert "by 0.70 log-odds on average (0.70 to 0.71)" in said.replace("\n", " ")
    assert "80 % of the person's own reasons" in said
    assert repairs_table(rows)[2].startswith("| compas | hgb | **best** | 70-71, 73 | ")
    refits = [a_repair(each, worth=1 - len(each) / 10) for each in ("bands", "additive")]
    rows = [a_repair(PLAIN), *refits, a_repair("reading", difference=1.0, own=0.8)]
    assert readings_told(rows) == "None of the 1 best is a reading."


def test_a_repair_is_measured_beside_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"PENALTIES": (0.5,), "FEW": 100, "MOVES": 4, "PEOPLE": 50, "SEARCHED": 50}
    for name, value in (small | {"SEARCH_MOVES": 4, "SHARING": 50}).items():
        monkeypatch.setattr(stabilize, name, value)
    monkeypatch.setattr(descent, "LOOKS", 10)
    case = a_case(500, age=3.0)
    before, after = repaired("compas", case, 55, "hgb", [PLAIN, "reading"])
    assert (before.grade, before.edges, before.worth) == (PLAIN, 0, 1.0)
    assert after.auc == before.auc  # it predicts what it did
    assert after.broken["near"] < before.broken["near"]
    assert after.own is not None
    assert after.difference is not None


def test_models_as_good_in_everything_are_named() -> None:
    worse = {"±1": 0.2, "±2": 0.5}
    some = [
        a_row("lr"),
        a_row("hgb", overlap=0.41),
        a_row("lightgbm", broken=worse),
        a_row("ebm", auc=0.79),
        a_row("stable"),
    ]
    text = page(some, [], [])
    assert "on the splits of the tables below: logistic regression on compas.\n" in text
    assert "on the splits of the tables below: none.\n" in page([a_row("stable")], [], [])


def test_a_picture_shows_the_middle_width() -> None:
    three = {"±1": 0.1, "±2": 0.3, "±5": 0.9}
    assert middle(a_row("lr", broken=three)) == middle(a_row("lr")) == "±2"
    [dot] = dots([a_row("lr", 30, broken=three), a_row("lr", 31, broken=three | {"±2": 0.5})])
    assert (dot.broken, dot.individual) == (pytest.approx(40), pytest.approx(60))
    drawn = file_of(lambda colours: frontier([a_row("lr"), a_row("stable")], [], colours))
    assert "stable 40.0 and 60.0" in drawn


# --- guard --------------------------------------------------------------------------------------


def guard_rows(stable: float | None) -> list[GuardRow]:
    aucs = {"lr": 0.9, "hgb": 0.92} | ({} if stable is None else {"stable": stable})
    return [
        GuardRow(table="iris", split=30, model=name, rows=9, columns=4, auc=auc, seconds=1)
        for name, auc in aucs.items()
    ]


@pytest.mark.parametrize(
    ("stable", "said"), [(None, "not run |  |"), (0.91, "| yes |"), (0.9099, "| **no** |")]
)
def test_the_floor_is_asked_of_means(stable: float | None, said: str) -> None:
    line = guard_table(guard_rows(stable))[-1]
    assert "| 0.9000 | 0.9200 | 0.9100 |" in line
    assert said in line


@pytest.mark.parametrize("model", COMPARED)
def test_models_of_the_guard_take_words_numbers_and_several_classes(model: str) -> None:
    x, y = people(300, classes=3)
    row = guarded("made", Guarded(x=x, y=y), 30, model)
    assert 0.6 < row.auc < 1
    assert (row.rows, row.columns) == (210, 5)


def test_tables_of_scikit_learn_are_whole() -> None:
    for name in GUARDED.keys() - TABLES.keys():
        table = GUARDED[name]()
        assert len(table.x) == len(table.y) > 100
        assert not table.x.isna().any(axis=None)
        assert table.width is None
    assert len(GUARDED.keys() - TABLES.keys()) >= 4


def test_rows_that_are_there_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["--guard", "iris", "--splits", "30-31", "--models", "lr"]
    main(asked)
    first = GUARD.read_text("utf-8")
    assert capsys.readouterr().out.count("iris") == 2
    main(asked)
    assert GUARD.read_text("utf-8") == first
    assert capsys.readouterr().out == ""
    main([*asked[:3], "30-30", *asked[4:], "--again"])
    assert [row.split for row in read_guard()] == [31, 30]
    assert re.match(r"# What small moves do", PAGE.read_text("utf-8"))
    with pytest.raises(SystemExit):
        main(["iris"])


def test_what_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            f'{{"table": "{table}", "split": {split}, "model": "{model}"}}\n'
            for table in "ab"
            for split in (1, 2)
            for model in "xy"
        )
    )
    forget(path, ["a"], range(2, 3), ["x"])
    assert len(path.read_text().splitlines()) == 7
    assert '"a", "split": 2, "model": "x"' not in path.read_text()
