"""Verdicts on the reasons of tree ensembles, against all cells looked at one by one."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier

from r2et.actionable.tables import SLACK, TableMoves
from r2et.bands.verdicts import reachable
from r2et.core.reasons import Question, ReasonVerdict, shown_as
from r2et.trees import search
from r2et.trees.columns import over_cells
from r2et.trees.pipelines import taken_apart
from r2et.trees.readers import read_trees
from r2et.trees.search import TreeReasons

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it draws with warns
    import shap

WORDS = ("red", "green", "blue", "grey")
Models = dict[str, tuple[TreeReasons, pd.DataFrame]]


def table(rows: int = 300, *, words: bool = True, seed: int = 0) -> pd.DataFrame:
    """Whole numbers, numbers, one that is often equal, one that may be missing, and words."""
    generator = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "a": generator.integers(0, 30, rows).astype(float),
            "b": generator.normal(0, 1, rows).round(2),
            "c": generator.normal(0, 1, rows),
            "d": np.where(generator.random(rows) < 0.2, np.nan, generator.normal(0, 1, rows)),
            "unused": np.zeros(rows),
        }
    )
    if words:
        found["colour"] = pd.Categorical(generator.choice(WORDS, rows), categories=WORDS)
    return found


def answers(x: pd.DataFrame, classes: int = 2) -> Any:
    """What is to be learnt: an interaction of all columns, in equally large classes."""
    score = x.a / 10 + x.b * x.c + np.nan_to_num(x.d) * (x.a > 12) + 0.5 * np.sin(7 * x.b)
    if "colour" in x:
        score = score + x.colour.cat.codes % 2
    return pd.qcut(score, classes, labels=False).to_numpy()


def xgb(**settings: Any) -> Any:
    """A small XGBoost."""
    usual = {"n_estimators": 8, "max_depth": 3, "learning_rate": 0.5, "n_jobs": 1}
    return xgboost.XGBClassifier(**{**usual, **settings}, enable_categorical=True)


def reasons_of(model: Any, x: pd.DataFrame, reference: int = 6, chance: float = 0.5) -> TreeReasons:
    """What is asked of a model against the first rows."""
    parts, ensemble = taken_apart(model, x), read_trees(model)
    assert parts is not None
    assert ensemble is not None
    trees = over_cells(ensemble, parts, x)
    cut = chance if trees.scale == "probability" else math.log(chance / (1 - chance))
    return TreeReasons(
        trees=trees, against=trees.table.against(trees.cells(x.iloc[:reference])), cut=cut
    )


def brute(
    asked: TreeReasons, people: pd.DataFrame, moves: TableMoves, question: Question
) -> list[dict[str, Any]]:
    """Every cell that a move leads to, each evaluated as it is."""
    trees, found = asked.trees, []
    labels, members = question.labels(trees.names), question.members(trees.names)
    for row in range(len(people)):
        person = people.iloc[[row]]
        values = [own[0] for own in trees.values(person)]
        way = reachable(trees.attributes, values, moves)
        cells = np.array(list(product(*way)), dtype=np.intp)
        assert len(cells) < 40_000
        own = trees.cells(person)
        label = int(asked.decided(own)[0])
        before = dict(zip(trees.names, values, strict=True))

        def tops(cells: Any, label: int = label) -> Any:
            shown = shown_as(asked.contributions(cells)[:, :, label] @ members, question.side)
            return np.argsort(-shown, 1, kind="stable")[:, : question.k]

        top = tops(own)[0].tolist()
        kept = []
        for cell, now, there in zip(cells, asked.decided(cells), tops(cells), strict=True):
            moved = [at for at in range(len(cell)) if cell[at] != own[0, at]]
            after = {trees.names[at]: way[at][int(cell[at])] for at in moved}
            size = moves.size_of(before, after)
            if size <= 1 + SLACK and now == label:
                kept.append((size, set(there.tolist())))
        broken = [size for size, there in kept if there != set(top)]
        stay = set(top).intersection(*(there for _, there in kept))
        found.append(
            {
                "verdict": "broken" if broken else "certified",
                "reasons": tuple(labels[at] for at in top),
                "size": min(broken, default=None),
                "core": tuple(labels[at] for at in top if at in stay),
                "kept": min(len(there & set(top)) for _, there in kept) / question.k,
                "moves": len(cells),
            }
        )
    return found


def check_same(told: Sequence[ReasonVerdict], truth: Sequence[dict[str, Any]]) -> None:
    """Verdicts, smallest changes and what stays are those of all cells."""
    for ours, exact in zip(told, truth, strict=True):
        assert ours.verdict == exact["verdict"]
        assert ours.reasons == exact["reasons"]
        assert ours.core == exact["core"]
        assert ours.kept == pytest.approx(exact["kept"])
        assert ours.moves == exact["moves"]
        size = None if ours.breaking is None else ours.breaking.size
        assert size == (None if exact["size"] is None else pytest.approx(exact["size"], abs=1e-12))
        assert ours.unbroken == pytest.approx(1.0 if size is None else size)


@pytest.fixture(scope="module")
def models() -> Models:
    """Ensembles of several kinds, and the rows they learnt from."""
    x, plain = table(), table(words=False)
    filled = plain.fillna(0.0)
    forest = RandomForestClassifier(12, max_depth=4, random_state=0).fit(filled, answers(plain))
    light = lightgbm.LGBMClassifier(
        n_estimators=5, num_leaves=6, learning_rate=0.5, verbose=-1, n_jobs=1
    )
    return {
        "two": (reasons_of(xgb().fit(x, answers(x)), x), x),
        "chance .3": (reasons_of(xgb().fit(x, answers(x)), x, chance=0.3), x),
        "three": (reasons_of(xgb(n_estimators=4).fit(x, answers(x, 3)), x), x),
        "forest": (reasons_of(forest, filled, chance=0.5), filled),
        "light": (reasons_of(light.fit(x, answers(x, 3)), x), x),
    }


BOX = TableMoves(width={"a": 2.0, "b": 0.2, "c": 0.3, "d": 0.25})
MOVES = {
    "box": BOX,
    "l2": TableMoves(width={"a": 4.0, "b": 0.5, "c": 0.4, "d": 0.3}, norm="l2"),
    "one way": TableMoves(
        width={"a": 5.0, "b": 0.4, "c": 0.3}, only={"a": "up", "b": "down"}, bounds={"a": (0, 20)}
    ),
    "few": TableMoves(width={"c": 0.2}),
}
EXCHANGES = {
    "box": TableMoves(
        width={"a": 2.0, "c": 0.2}, exchange={"colour": 0.7}, words={"colour": WORDS}
    ),
    "l2": TableMoves(
        width={"a": 2.0, "b": 0.3}, exchange={"colour": 0.4}, words={"colour": WORDS}, norm="l2"
    ),
}
QUESTIONS = [
    Question(k=k, side=side, codes=codes)
    for side in ("for", "against", "both")
    for k, codes in ((1, {}), (3, {}), (2, {"a": "money", "c": "money"}))
]


@pytest.mark.parametrize("moves", [*MOVES, "exchange box", "exchange l2"])
@pytest.mark.parametrize("kind", ["two", "chance .3", "three", "forest", "light"])
def test_verdicts_are_those_of_all_cells(models: Models, kind: str, moves: str) -> None:
    asked, x = models[kind]
    if moves.startswith("exchange") and "colour" not in x:
        pytest.skip("no words")
    allowed = EXCHANGES[moves[9:]] if moves.startswith("exchange") else MOVES[moves]
    people = x.iloc[40:43]
    for question in QUESTIONS:
        truth = brute(asked, people, allowed, question)
        for most in (0, 100_000):
            told = asked.verdicts(people, allowed, question, enumerated=most)
            check_same(told, truth)
            by = {each.by for each in told if each.moves != 1}
            assert by <= ({"enumerated"} if most else {"bound", "attack"})


@pytest.mark.parametrize(("parts", "largest", "tried"), [(1, 1, 0), (30, 30, 100), (10**6, 1, 0)])
def test_how_tables_are_made_changes_nothing(
    models: Models, monkeypatch: pytest.MonkeyPatch, parts: int, largest: int, tried: int
) -> None:
    monkeypatch.setattr(search, "MOST_PARTS", parts)
    monkeypatch.setattr(search, "LARGEST_TREE", largest)
    monkeypatch.setattr(search, "TRIED", tried)
    for kind, question in product(("two", "three"), QUESTIONS[1::3]):
        asked, x = models[kind]
        people = x.iloc[60:64]
        told = asked.verdicts(people, BOX, question, enumerated=0)
        check_same(told, brute(asked, people, BOX, question))


# --- by the libraries themselves ----------------------------------------------------------------


def shapley(score: Callable[[pd.DataFrame], Any], row: pd.DataFrame, others: pd.DataFrame) -> Any:
    """Contributions by their definition, of what a model itself says of mixtures: (m,)."""
    m = row.shape[1]
    taken = np.array(list(product([False, True], repeat=m)))
    mixed = np.where(taken[:, None], row.to_numpy(), others.to_numpy())  # (2 ** m, R, m)
    said = score(pd.DataFrame(mixed.reshape(-1, m), columns=row.columns))
    means = said.reshape(len(taken), -1).mean(1)
    found = np.zeros(m)
    for own in range(m):
        for at in np.flatnonzero(~taken[:, own]):
            size = int(taken[at].sum())
            weight = math.factorial(size) * math.factorial(m - size - 1) / math.factorial(m)
            found[own] += weight * (means[at + (1 << (m - 1 - own))] - means[at])
    return found


@pytest.mark.parametrize("kind", ["xgboost", "forest"])
def test_what_breaks_does_so_in_the_library_itself(kind: str) -> None:
    x = table(words=False).fillna(0.0)
    y = answers(x)
    if kind == "forest":
        model = RandomForestClassifier(12, max_depth=4, random_state=0).fit(x, y)
    else:
        model = xgb().fit(x, y)
        explain = shap.TreeExplainer(model, x.iloc[:6], feature_perturbation="interventional")

    def contributions(row: pd.DataFrame) -> Any:
        if kind == "xgboost":
            return explain.shap_values(row)[0]
        # shap rounds what it compares otherwise than forests do: values here are next to thresholds
        return shapley(lambda rows: model.predict_proba(rows)[:, 1], row, x.iloc[:6])

    asked, people = reasons_of(model, x), x.iloc[50:80]
    told = asked.verdicts(people, BOX, Question(k=2), enumerated=0)
    broken = 0
    for at, each in enumerate(told):
        if each.breaking is None:
            continue
        broken += 1
        before = people.iloc[[at]]
        after = before.assign(**each.breaking.values)
        chances = model.predict_proba(pd.concat([before, after]))[:, 1]
        assert ((chances >= 0.5) == (each.decision == 1)).all()
        for row, reasons in ((before, each.reasons), (after, each.breaking.reasons)):
            shown = contributions(row) * (1 if each.decision == 1 else -1)
            assert set(x.columns[np.argsort(shown, kind="stable")[:2]]) == set(reasons)
        assert set(each.reasons) != set(each.breaking.reasons)
    assert broken >= 5


def test_random_moves_break_nothing_certified() -> None:
    x = table(600, words=False)
    asked = reasons_of(xgb(n_estimators=40, max_depth=4).fit(x, answers(x)), x, 20)
    moves = TableMoves(width={"a": 1.0, "b": 0.02, "c": 0.02, "d": 0.02})
    generator, question = np.random.default_rng(0), Question(k=2)
    people = x.iloc[100:160]
    told = asked.verdicts(people, moves, question, enumerated=0)
    certified = [at for at, each in enumerate(told) if each.verdict == "certified"]
    assert len(certified) > 10
    for at in certified:
        rows = people.iloc[np.full(2000, at)].reset_index(drop=True)
        for name, width in moves.width.items():
            by = generator.uniform(-width, width, len(rows))
            rows[name] += np.round(by) if name == "a" else by
        cells = asked.trees.cells(rows)
        label = int(asked.decided(asked.trees.cells(people.iloc[[at]]))[0])
        phi = asked.contributions(cells)[asked.decided(cells) == label][:, :, label]
        tops = np.sort(np.argsort(phi, 1, kind="stable")[:, :2], 1)
        assert {x.columns[place] for place in np.unique(tops)} == set(told[at].reasons)


# --- hard cases ---------------------------------------------------------------------------------


def test_attributes_that_say_nothing_are_told_in_their_order() -> None:
    generator = np.random.default_rng(0)
    x = pd.DataFrame(generator.normal(0, 1, (300, 14)), columns=[f"x{at}" for at in range(14)])
    seldom = np.array([0, 1, 2, 4, 5, 6, 8, 10, 12, 13])
    x.iloc[:, seldom] = 0.0
    model = xgb(n_estimators=20).fit(x, (x.x3 + x.x7 * x.x9 + x.x11 > 0).astype(int))
    asked = reasons_of(model, x, 1)
    moves = TableMoves(width=dict.fromkeys(x.columns, 0.1))
    for side in ("for", "against", "both"):
        question = Question(k=6, side=side)  # more than have something to say
        told = asked.verdicts(x.iloc[20:26], moves, question, enumerated=0)
        assert "undetermined" not in {each.verdict for each in told}
        check_same(told, brute(asked, x.iloc[20:26], moves, question))


def test_twins_are_told_in_their_order() -> None:
    x = table(words=False).fillna(0.0)[["a", "b"]]
    x = x.assign(c=x.b)  # the forest asks either, half of the time
    forest = RandomForestClassifier(10, max_depth=3, max_features=1, random_state=1)
    asked = reasons_of(forest.fit(x, (x.b > 0.2) ^ (x.a > 12)), x, 4)
    moves = TableMoves(width={"a": 3.0, "b": 0.3, "c": 0.3})
    for k, side in product((1, 2), ("for", "against", "both")):
        question = Question(k=k, side=side)
        told = asked.verdicts(x.iloc[10:20], moves, question, enumerated=0)
        check_same(told, brute(asked, x.iloc[10:20], moves, question))


def test_a_score_on_the_threshold_is_decided_as_the_row_itself_is() -> None:
    x = table(words=False).fillna(0.0)
    forest = RandomForestClassifier(4, max_depth=2, random_state=0).fit(x, answers(x))
    free = reasons_of(forest, x)
    scores = free.trees.table.scores(free.trees.cells(x.iloc[40:46]))[:, 0]
    for score in scores:
        asked = TreeReasons(trees=free.trees, against=free.against, cut=float(score))
        # At the threshold it is met.
        assert (asked.decided(free.trees.cells(x.iloc[40:46])) == (scores >= score)).all()
        question = Question(k=2, side="both")
        told = asked.verdicts(x.iloc[40:46], BOX, question, enumerated=0)
        check_same(told, brute(asked, x.iloc[40:46], BOX, question))


def test_values_on_thresholds_missing_huge_and_unknown_ones_are_judged(models: Models) -> None:
    asked, x = models["two"]
    edges = [edge for each in asked.trees.attributes[1:2] for edge in each.edges]  # type: ignore[union-attr]
    hard = x.iloc[[0] * 7].reset_index(drop=True)
    hard["b"] = [edges[0], np.nextafter(edges[0], -9.0), edges[-1], 1e300, -1e300, np.nan, 0.0]
    hard["c"] = [1e18, 0.0, -0.0, 5e-324, np.nan, np.nan, 1e-300]
    hard["d"] = np.nan
    hard["colour"] = pd.Categorical(["red", "violet", None, "blue", "violet", "red", "grey"])
    for moves, question in product((BOX, EXCHANGES["box"]), QUESTIONS[:6]):
        told = asked.verdicts(hard, moves, question, enumerated=0)
        check_same(told, brute(asked, hard, moves, question))


def test_contributions_of_any_size_are_told_apart() -> None:
    """Rounding is a share of what trees add, so that units do not matter."""
    x = table(words=False)
    usual = reasons_of(xgb().fit(x, answers(x)), x)
    told = usual.verdicts(x.iloc[40:60], BOX, Question(k=2), enumerated=0)
    for unit in (1e-12, 1e12):
        table_ = usual.trees.table
        groups = tuple(replace(each, value=unit * each.value) for each in table_.groups)
        leaves = replace(table_, groups=groups, constant=unit * table_.constant)
        trees = replace(usual.trees, table=leaves)
        asked = TreeReasons(trees=trees, against=leaves.against(trees.cells(x.iloc[:6])))
        again = asked.verdicts(x.iloc[40:60], BOX, Question(k=2), enumerated=0)
        assert [each.verdict for each in again] == [each.verdict for each in told]
        assert [each.core for each in again] == [each.core for each in told]


# --- limits -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide() -> tuple[TreeReasons, pd.DataFrame, TableMoves]:
    """An ensemble and moves that lead to very many cells."""
    generator = np.random.default_rng(0)
    x = pd.DataFrame(generator.normal(0, 1, (800, 8)), columns=list("abcdefgh"))
    y = (x.a * x.b + x.c * x.d + x.e + np.sin(3 * x.f) * x.g > 0).astype(int)
    asked = reasons_of(xgb(n_estimators=60, max_depth=4).fit(x, y), x, 20)
    return asked, x, TableMoves(width=dict.fromkeys(x.columns, 0.05))


def test_what_was_not_finished_says_so(wide: tuple[TreeReasons, pd.DataFrame, TableMoves]) -> None:
    asked, x, moves = wide
    people, question = x.iloc[:40], Question(k=3)
    full = asked.verdicts(people, moves, question, enumerated=0)
    assert "undetermined" not in {each.verdict for each in full}
    none = asked.verdicts(people, moves, question, enumerated=0, most_boxes=0)
    assert {"undetermined", "broken"} <= {each.verdict for each in none}
    for known, told in zip(full, none, strict=True):
        assert told.verdict in (known.verdict, "undetermined")
        assert told.unbroken is not None
        assert known.unbroken is not None
        assert told.unbroken <= known.unbroken + SLACK
        if told.core is not None:
            assert set(told.core) <= set(known.core or ())
            assert (told.kept or 0.0) <= (known.kept or 0.0)
        if told.breaking is not None:
            assert known.breaking is not None
            assert told.breaking.size >= known.breaking.size - SLACK


def test_no_time_leaves_single_changes(wide: tuple[TreeReasons, pd.DataFrame, TableMoves]) -> None:
    asked, x, moves = wide
    told = asked.verdicts(x.iloc[:40], moves, Question(k=3), enumerated=0, seconds=0.0)
    full = asked.verdicts(x.iloc[:40], moves, Question(k=3), enumerated=0)
    assert {each.verdict for each in told} == {"undetermined", "broken"}
    for known, each in zip(full, told, strict=True):
        assert each.verdict in (known.verdict, "undetermined")
        assert each.breaking is None or len(each.breaking.values) == 1


def test_names_that_are_not_there_are_refused(models: Models) -> None:
    asked, x = models["two"]
    with pytest.raises(ValueError, match="'colour', no number"):
        asked.verdicts(x.iloc[:1], TableMoves(width={"colour": 1.0}), Question(k=2))
    with pytest.raises(ValueError, match="k must lie in"):
        asked.verdicts(x.iloc[:1], BOX, Question(k=6))
