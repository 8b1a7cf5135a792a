"""Edges by descent: what is judged is what a slow transcription of the definitions says."""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from r2et.bands.values import BandValues
from r2et.core.rng import stream
from r2et.trees import descent
from r2et.trees.descent import Aim, Judge, People, Seen, left_to_wish, proposals, settled
from r2et.trees.explained import explained
from r2et.trees.reading import Told

AIM = Aim(k=2, side="against", overlap_gain=0.1)
EDGES = {"age": (35.0, 50.0), "debt": (0.1,)}


def _case(rows: int = 300) -> tuple[Any, pd.DataFrame, People]:
    """Trees, the rows they were grown on, and people of whom some values are missing."""
    draw = np.random.default_rng(3)
    x = pd.DataFrame(
        {
            "town": pd.Categorical(draw.choice(["u", "v", "w"], rows)),
            "age": draw.integers(20, 65, rows).astype(float),
            "debt": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(0, 1, rows).round(2)),
            "rooms": draw.integers(1, 6, rows),
        }
    )
    score = 0.08 * (x["age"] - 40) * (1 + x["town"].eq("u")) - x["debt"].fillna(1.0)
    y = (score + draw.logistic(0, 0.5, rows) > 0).astype(int)
    trees = explained(HistGradientBoostingClassifier(max_iter=15, random_state=0).fit(x, y), x)
    people = x[:40].reset_index(drop=True)
    near = people[:30]
    moved = tuple(
        pd.concat(
            [near.assign(age=near["age"] + by, debt=near["debt"] - by / 20) for by in (-w, w)],
            ignore_index=True,
        )
        for w in (1.0, 4.0)
    )
    references = [x[50:60], x[70:80]]
    return trees, x, People(rows=people, count=30, moved=moved, references=references)


def _known(x: pd.DataFrame) -> dict[str, Any]:
    return {name: np.sort(x[name].dropna().to_numpy(float)) for name in EDGES}


def _slow(trees: Any, x: pd.DataFrame, people: People) -> tuple[Seen, float, float]:
    """What people see through the bands, person by person, by the definitions."""
    bands = BandValues(EDGES).fit(x)
    plain, read = Told(trees=trees), Told(trees=trees, reading=bands)

    def top(told: Told, rows: pd.DataFrame, signs: Any) -> list[list[frozenset[int]]]:
        phi = told.contributions(rows, people.references) * signs[None, :, None]
        return [[frozenset(np.argsort(one, kind="stable")[:2]) for one in each] for each in phi]

    score = plain.score(people.rows)
    signs = np.where(score >= 0, 1.0, -1.0)
    home = top(read, people.rows, signs)
    broken = []
    for rows in people.moved:
        times = len(rows) // people.count
        again = np.tile(signs[: people.count], times)
        there = top(read, rows, again)
        stays = (plain.score(rows) >= 0) == (again > 0)
        found = [
            any(
                stays[at] and there[draw][at] != home[draw][person]
                for at in range(person, len(rows), people.count)
            )
            for draw in range(2)
            for person in range(people.count)
        ]
        broken.append(float(np.mean(found)))
    shares = []
    for own in home:
        common: dict[int, list[float]] = {}
        for one, two in combinations(range(len(own)), 2):
            if signs[one] == signs[two]:
                for each in (one, two):
                    common.setdefault(each, []).append(len(own[one] & own[two]) / 2)
        shares.append(np.mean([np.mean(each) for each in common.values()]))
    alone = top(plain, people.rows, signs)
    pairs = [zip(one, two, strict=True) for one, two in zip(alone, home, strict=True)]
    kept = np.mean([len(a & b) / 2 for each in pairs for a, b in each])
    apart = plain.score(bands.transform(people.rows)) - score
    seen = Seen(broken=tuple(broken), overlap=float(np.mean(shares)))
    return seen, float(kept), float((apart**2).mean() / score.var())


def test_what_people_see_is_what_the_definitions_say() -> None:
    trees, x, people = _case()
    now, own, distance = Judge(trees, _known(x), people, AIM).read(EDGES)
    slow, slow_own, slow_distance = _slow(trees, x, people)
    assert now.broken == pytest.approx(slow.broken)
    assert now.overlap == pytest.approx(slow.overlap)
    assert (own, distance) == pytest.approx((slow_own, slow_distance))
    assert 0 < own < 1
    assert max(now.broken) > 0


def test_each_so_manieth_is_judged_as_if_there_were_no_others() -> None:
    trees, x, people = _case()
    fewer = People(
        rows=people.rows[::4].reset_index(drop=True),
        count=8,
        moved=tuple(
            pd.concat([each[:30][::4], each[30:][::4]], ignore_index=True) for each in people.moved
        ),
        references=people.references,
    )
    found = Judge(trees, _known(x), people.some(4), AIM).read(EDGES)
    assert found == Judge(trees, _known(x), fewer, AIM).read(EDGES)


def test_what_is_left_to_wish_by_hand() -> None:
    before = Seen(broken=(0.2, 0.4), overlap=0.3)
    # Twice what may stay broken, and nothing of the limit on O; in the mean over widths, too.
    plain = 2 + 0.25 * 1 + 0.25 * 2
    assert left_to_wish(AIM, before, before, 1.0, 0.0) == pytest.approx(plain)
    # A half and a quarter of what was broken, half of the limit on O, and a distance of .2.
    now = Seen(broken=(0.1, 0.1), overlap=0.35)
    kept = 1 + 0.25 * 0.75 + 0.25 * 0.75
    assert left_to_wish(AIM, before, now, 0.9, 0.2) == pytest.approx(kept + 0.2)
    # Beyond the limit by half of it, and a tenth too few of the reasons are people's own.
    far = Seen(broken=(0.1, 0.1), overlap=0.45)
    wish = 1.5 + 0.25 * 1.25 + 0.25 * 0.75 + 0.4
    assert left_to_wish(AIM, before, far, 0.7, 0.0) == pytest.approx(wish)


def test_proposals_drop_shift_and_add_edges() -> None:
    cuts = np.arange(0.5, 12)
    found = list(proposals((2.5, 9.5), cuts, stream(0, "test")))
    assert (2.5,) in found
    assert (9.5,) in found
    for by in (-2, -1, 1, 2):
        assert (2.5 + by, 9.5) in found
    assert (2.5, 9.5) not in found
    assert all(tuple(sorted(set(each))) == each for each in found)
    assert any(len(each) == 3 for each in found)
    assert list(proposals((), np.array([]), stream(0, "test"))) == []


def test_a_descent_ends_below_all_it_could_begin_with() -> None:
    trees, x, people = _case()
    known = _known(x)
    cuts = {"age": np.arange(21.5, 64), "debt": np.arange(-2, 2, 0.11)}
    starts = [EDGES, {"age": (30.5, 41.5, 55.5), "debt": ()}, {"age": (40.5,), "debt": (0.16,)}]
    found = settled(trees, known, people, cuts, starts, AIM, least=10, seed=1)
    judge = Judge(trees, known, people, AIM)
    assert judge(found) < min(judge(each) for each in starts)
    assert found == settled(trees, known, people, cuts, starts, AIM, least=10, seed=1)
    for name, edges in found.items():
        assert np.histogram(known[name], [-99, *edges, 99])[0].min() >= 10


def test_numbers_without_a_place_for_edges_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trees, x, people = _case()
    monkeypatch.setattr(descent, "LOOKS", 5)
    none = {"age": (), "debt": ()}
    cuts = {name: np.array([]) for name in none}
    assert settled(trees, _known(x), people, cuts, [none], AIM) == none


def test_draws_of_proposals_follow_the_generator() -> None:
    cuts = np.arange(0.5, 40)
    one, two = (list(proposals((9.5,), cuts, torch.Generator().manual_seed(s))) for s in (1, 2))
    assert one != two
