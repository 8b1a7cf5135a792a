"""Verdicts on reasons of any model of tables, against every move and the definition."""

from dataclasses import dataclass
from itertools import combinations as combinations_of
from itertools import product
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from r2et.actionable.tables import TableMoves, combinations
from r2et.core.reasons import Question, ReasonVerdict
from r2et.evaluation.reasons import _Inquiry, reason_verdicts, typed_number
from refusals import refusal

NAMES = ("age", "hours", "job", "debts")
WORDS = ("clerk", "cook", "smith")
REFERENCE = [(30.0, 40.0, "clerk", 1.0), (55.0, 20.0, "smith", 0.0)]


EFFECT = {"clerk": 0.0, "cook": 0.7, "smith": -0.5}

Columns = dict[str, Any]


def columns_of(rows: pd.DataFrame) -> Columns:
    """Rows as arrays, jobs by what they do."""
    numbers = {name: rows[name].to_numpy(dtype=float) for name in NAMES if name != "job"}
    return {**numbers, "job": rows["job"].map(EFFECT).to_numpy(dtype=float)}


def odds(rows: pd.DataFrame) -> Any:
    """Log-odds with kinks and two interactions: (N,)."""
    return odds_of(**columns_of(rows))


def odds_of(age: Any, hours: Any, job: Any, debts: Any) -> Any:
    bent = np.maximum(age - 40, 0) * 0.11 + 0.02 * age
    return bent - 0.06 * np.abs(hours - 38) + job * (1 + 0.04 * (hours - 40)) - 0.5 * debts + 0.3


@dataclass
class Plain:
    """A model by its log-odds, contributions by the definition: all sets, every reference."""

    threshold: float = 0.0
    names: tuple[str, ...] = NAMES
    classes: tuple[str, ...] = ("no", "yes")

    def scores(self, rows: pd.DataFrame) -> Any:
        """Half of the log-odds for each side."""
        half = (odds(rows) - self.threshold) / 2
        return np.stack([-half, half], 1)

    def contributions(self, rows: pd.DataFrame) -> Any:
        """Of both classes: (N, 4, 2)."""
        own, m = columns_of(rows), len(NAMES)
        phi = np.zeros((len(rows), m))
        for other in REFERENCE:
            there = columns_of(pd.DataFrame([other], columns=list(NAMES)))
            value = {
                some: odds_of(
                    **{n: own[n] if n in some else there[n] + 0 * own["age"] for n in NAMES}
                )
                for size in range(m + 1)
                for some in combinations_of(NAMES, size)
            }
            for place, name in enumerate(NAMES):
                for some in value:
                    if name not in some:
                        joined = tuple(n for n in NAMES if n in some or n == name)
                        weight = factorial(len(some)) * factorial(m - len(some) - 1) / factorial(m)
                        phi[:, place] += weight * (value[joined] - value[some])
        phi /= len(REFERENCE)
        return np.stack([-phi, phi], 2)


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(20, 60, rows).astype(float),
            "hours": draw.integers(20, 60, rows).astype(float),
            "job": draw.choice(WORDS, rows),
            "debts": draw.integers(0, 3, rows).astype(float),
        }
    )


MOVES = TableMoves(
    width={"age": 2, "hours": 1},
    whole=frozenset({"age", "hours"}),
    only={"age": "up"},
    exchange={"job": 0.6},
    words={"job": WORDS},
)


def slowly(model: Plain, row: pd.DataFrame, k: int, side: int) -> tuple[Any, ...]:
    """Verdict, reasons, core, least kept and smallest size, move by move."""
    own = row.iloc[0]
    cells = [
        {"age": own.age + a, "hours": own.hours + h, "job": job}
        for a, h, job in product((0, 1, 2), (-1, 0, 1), WORDS)
    ]
    rows = pd.concat([row, *(row.assign(**cell) for cell in cells)], ignore_index=True)
    decided = model.scores(rows)[:, 1] >= model.scores(rows)[:, 0]
    label = int(decided[0])
    phi = side * model.contributions(rows)[:, :, label]
    told = [frozenset(np.argsort(-each, kind="stable")[:k].tolist()) for each in phi.round(12)]
    kept = [at for at in range(len(rows)) if decided[at] == decided[0]]
    sizes = [
        max(abs(rows.age[at] - own.age) / 2, abs(rows.hours[at] - own.hours),
            0.6 * (rows.job[at] != own.job))
        for at in kept
        if told[at] != told[0]
    ]  # fmt: skip
    core = frozenset.intersection(*(told[at] for at in kept))
    least = min(len(told[at] & told[0]) for at in kept) / k
    names = {NAMES[at] for at in told[0]}
    verdict = "broken" if sizes else "certified"
    return verdict, names, {NAMES[at] for at in core & told[0]}, least, min(sizes, default=None)


@pytest.mark.parametrize(("side", "sign"), [("against", -1), ("for", 1)])
def test_every_move_says_the_same(side: Any, sign: int) -> None:
    model, rows = Plain(), people(12, seed=1)
    found = reason_verdicts(model, rows, MOVES, Question(k=2, side=side))
    for at, each in enumerate(found):
        verdict, reasons, core, kept, size = slowly(model, rows[at : at + 1], 2, sign)
        assert (each.verdict, each.by) == (verdict, "enumerated")
        assert set(each.reasons) == reasons
        assert set(each.core or ()) == core
        assert each.kept == pytest.approx(kept)
        assert each.moves == 27
        assert (each.breaking is None) == (size is None)
        if each.breaking is not None:
            assert each.breaking.size == pytest.approx(size)
    assert {each.verdict for each in found} == {"certified", "broken"}


def test_moves_that_cost_too_much_together_do_not_count() -> None:
    model, rows = Plain(), people(20, seed=6)
    whole = frozenset({"age", "hours"})
    round_ = TableMoves(width={"age": 4, "hours": 4}, whole=whole, norm="l2")
    steps = [(a, h) for a in range(-4, 5) for h in range(-4, 5) if a * a + h * h <= 16]
    for at, each in enumerate(reason_verdicts(model, rows, round_, Question(k=2))):
        own = rows.iloc[at]
        moved = pd.concat(
            [rows[at : at + 1].assign(age=own.age + a, hours=own.hours + h) for a, h in steps],
            ignore_index=True,
        )
        every = reason_verdicts(model, moved, TableMoves(), Question(k=2))
        told = [set(one.reasons) for one in every if one.decision == each.decision]
        assert each.moves == len(steps)
        assert set(each.core or ()) == set(each.reasons).intersection(*told)
        assert (each.verdict == "certified") == all(one == set(each.reasons) for one in told)


def test_what_is_typed_beyond_reach_is_no_move() -> None:
    moves = TableMoves(width={"age": 2, "hours": 1}, norm="l2")
    typed = _Inquiry(model=Plain(), moves=moves, question=Question(k=2))._typed(
        {"age": 30.0, "hours": 40.0}
    )
    assert typed({"age": 31.0}) == {"age": 31.0}
    assert typed({"age": 31.9, "hours": 40.9}) == {}


def replayed(model: Plain, rows: pd.DataFrame, found: list[ReasonVerdict], k: int) -> int:
    """How many counter-examples, typed in, give the reasons that are printed beside them."""
    count = 0
    for at, each in enumerate(found):
        if each.breaking is not None:
            typed = rows[at : at + 1].assign(**each.breaking.values)
            (again,) = reason_verdicts(model, typed, TableMoves(), Question(k=k))
            assert (again.decision, again.reasons) == (each.decision, each.breaking.reasons)
            assert set(again.reasons) != set(each.reasons)
            count += 1
    return count


def test_a_search_finds_what_is_there_and_never_more() -> None:
    model, rows = Plain(), people(12, seed=1)
    every = reason_verdicts(model, rows, MOVES, Question(k=2))
    found = reason_verdicts(model, rows, MOVES, Question(k=2), most_moves=1)
    for known, each in zip(every, found, strict=True):
        assert each.verdict in ("broken", "undetermined")
        assert known.verdict == "broken" or each.verdict == "undetermined"
        if each.breaking is not None:
            assert each.by == "attack"
            assert each.breaking.size >= (known.breaking.size if known.breaking else 2) - 1e-9
    broken = sum(each.verdict == "broken" for each in every)
    assert sum(each.verdict == "broken" for each in found) == broken
    assert replayed(model, rows, found, 2) == broken > 3
    quiet = reason_verdicts(model, rows, MOVES, Question(k=2), most_moves=1, attack=False)
    assert {each.verdict for each in quiet} == {"undetermined"}


@pytest.mark.parametrize("norm", ["box", "l2"])
def test_numbers_that_move_continuously_are_typed_with_few_digits(norm: Any) -> None:
    model, rows = Plain(), people(10, seed=1)
    moves = TableMoves(width={"age": 6, "hours": 4}, norm=norm)
    found = reason_verdicts(model, rows, moves, Question(k=2))
    assert replayed(model, rows, found, 2) > 2
    for at, each in enumerate(found):
        assert each.moves is None
        if each.breaking is not None:
            row = {str(name): value for name, value in rows.iloc[at].items()}
            assert moves.size_of(row, each.breaking.values) == pytest.approx(each.breaking.size)
            assert each.breaking.size <= 1 + 1e-9
            assert all(len(f"{value:.12g}") <= 7 for value in each.breaking.values.values())


def test_a_threshold_moves_what_is_decided() -> None:
    rows = people(30, seed=2)
    for threshold in (-0.5, 0.5):
        found = reason_verdicts(Plain(threshold), rows, TableMoves(), Question(k=2))
        expected = np.where(odds(rows) >= threshold, "yes", "no").tolist()
        assert [each.decision for each in found] == expected
        assert all(each.verdict == "certified" and each.moves == 1 for each in found)


def test_attributes_of_one_code_are_told_together() -> None:
    model, rows = Plain(), people(8, seed=3)
    question = Question(k=1, codes={"age": "life", "debts": "life"})
    for at, each in enumerate(reason_verdicts(model, rows, TableMoves(), question)):
        label = int(each.decision == "yes")
        phi = -model.contributions(rows[at : at + 1])[0, :, label]
        sums = {"life": phi[0] + phi[3], "hours": phi[1], "job": phi[2]}
        assert each.reasons == (max(sums, key=lambda name: sums[name]),)


def test_a_decision_is_judged_alone_as_in_company() -> None:
    model, rows = Plain(), people(5, seed=4)
    for moves in (MOVES, TableMoves(width={"age": 1.5})):
        together = reason_verdicts(model, rows, moves, Question(k=2))
        alone = [
            reason_verdicts(model, rows[at : at + 1], moves, Question(k=2))[0] for at in range(5)
        ]
        assert alone == together


def test_moves_are_what_they_say() -> None:
    row = {"age": 30.0, "hours": 40.0, "job": "cook"}
    axes = MOVES.axes(row)
    assert axes is not None
    assert list(axes["age"]) == [30.0, 31.0, 32.0]
    assert axes["job"] == {"cook": 0.0, "clerk": 0.6, "smith": 0.6}
    sizes = MOVES.sizes(axes)
    for values, size in zip(combinations(axes), sizes, strict=True):
        assert MOVES.size_of(row, values) == pytest.approx(size)
    assert MOVES.size({"age": 0.5, "job": 0.6}) == 0.6
    both = TableMoves(exchange={"a": 0.6, "b": 0.6}, words={"a": ("x", "y"), "b": ("x", "y")})
    assert both.size({"a": 0.6, "b": 0.6}) == pytest.approx(1.2)
    two = both.axes({"a": "x", "b": "x"})
    assert two is not None
    assert both.sizes(two).tolist() == pytest.approx([0.0, 0.6, 0.6, 1.2])
    assert TableMoves(width={"a": 1}, norm="l2").size({"a": 0.6, "b": 0.8}) == pytest.approx(1)
    assert MOVES.axes({**row, "age": float("nan")}) is not None  # what is missing stays
    assert TableMoves(width={"age": 2}).axes(row) is None
    bounded = TableMoves(width={"age": 5}, whole=frozenset({"age"}), bounds={"age": (28, 31)})
    assert sorted((bounded.axes(row) or {})["age"]) == [28, 29, 30, 31]
    assert bounded.reaches("age", 30.0, 31.0)
    assert not bounded.reaches("age", 30.0, 32.0)


def test_numbers_are_typed_within_reach() -> None:
    moves = TableMoves(width={"age": 2, "rate": 0.01}, whole=frozenset({"age"}))
    assert typed_number(30.0, 31.4, moves, "age") == 31.0
    assert typed_number(30.0, 33.0, moves, "age") == 32.0
    assert typed_number(0.5, 0.5012345678, moves, "rate") == 0.50123
    assert typed_number(0.5, 0.51, moves, "rate") == 0.51


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"width": {"age": -1}}, ">= 0"),
        ({"exchange": {"job": 0}, "words": {"job": WORDS}}, "> 0"),
        ({"exchange": {"job": 1}}, "words are not said"),
        ({"only": {"age": "sideways"}}, "'up' or 'down'"),
        ({"width": {"job": 1}, "exchange": {"job": 1}, "words": {"job": WORDS}}, "a number or"),
        ({"norm": "l1"}, "'box' or 'l2'"),
    ],
)
def test_what_is_no_set_of_moves_is_refused(settings: dict[str, Any], says: str) -> None:
    assert says in refusal(lambda: TableMoves(**settings))


def test_questions_that_cannot_be_asked_are_refused() -> None:
    rows = people(2)
    assert "1..3" in refusal(lambda: reason_verdicts(Plain(), rows, MOVES, Question(k=4)))
    assert "'job'" in refusal(
        lambda: reason_verdicts(Plain(), rows, MOVES, Question(codes={"jobb": "x"}))
    )
    assert "'for', 'against'" in refusal(lambda: Question(side="beside"))  # type: ignore[arg-type]
