"""The share of broken reasons is that of every move, and descent makes the sum smaller."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from r2et.bands import descent
from r2et.bands.descent import (
    EVERYBODY,
    Movable,
    People,
    Steps,
    Wish,
    _Asked,
    _Search,
    descend,
    standing,
)
from r2et.core.reasons import Side
from r2et.metrics.individuality import overlap

CUTS = np.array([1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
WIDTHS = (1, 2)


def problem(seed: int, rows: int = 60, still: int = 3) -> tuple[People, list[Movable], np.ndarray]:
    """Two numbers from 1 to 7 and three attributes that cannot move, against two references."""
    draw = np.random.default_rng(seed)
    values = draw.integers(1, 8, (rows, 2))
    judged = draw.permutation(rows)[:40]
    references = draw.integers(0, rows, (2, 5))
    numbers = []
    for place in range(2):
        own = values[:, place]
        segments = np.searchsorted(CUTS, own, side="right")
        reach = np.array(WIDTHS)[:, None]
        numbers.append(
            Movable(
                cuts=CUTS,
                segments=segments,
                people=segments[judged],
                low=np.searchsorted(CUTS, own[judged] - reach, side="right"),
                high=np.searchsorted(CUTS, own[judged] + reach, side="right"),
                reference=segments[references],
            )
        )
    people = People(
        base=draw.normal(size=rows),
        y=draw.integers(0, 2, rows).astype(float),
        weights=np.ones(rows),
        judged=judged,
        contributions=draw.normal(size=(2, 40, still)),
    )
    return people, numbers, values


def steps(seed: int) -> list[Steps]:
    draw = np.random.default_rng(100 + seed)
    return [
        Steps(edges=(1, 3), points=draw.normal(size=3)),
        Steps(edges=(0, 2, 5), points=draw.normal(size=4)),
    ]


def curve(number: Movable, own: Steps, values: np.ndarray) -> np.ndarray:
    return own.points[np.searchsorted(CUTS[list(own.edges)], values, side="right")]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(
    ("seed", "side", "threshold"),
    [(0, "against", 0.0), (1, "against", 0.7), (2, "for", 0.0), (3, "both", -0.5)],
)
def test_shares_are_those_of_every_move(seed: int, side: Side, threshold: float, k: int) -> None:
    people, numbers, values = problem(seed)
    own = steps(seed)
    found = standing(people, numbers, own, Wish(k=k, side=side, threshold=threshold))
    added = np.stack(
        [curve(n, s, values[:, i]) for i, (n, s) in enumerate(zip(numbers, own, strict=True))], 1
    )
    score = people.base + added.sum(1)
    loss = np.logaddexp(0, score) - people.y * score
    assert found.loss == pytest.approx(loss.mean())
    signs = np.where(score[people.judged] >= threshold, 1.0, -1.0)[:, None]
    broken, shared = np.zeros((2, 2)), []
    for draw in range(2):
        bands = [number.bands(each.edges) for number, each in zip(numbers, own, strict=True)]
        usual = np.array(
            [own[i].points[bands[i][numbers[i].reference[draw]]].mean() for i in range(2)]
        )

        def top(moved: np.ndarray, draw: int = draw, usual: np.ndarray = usual) -> np.ndarray:
            there = np.stack([curve(numbers[i], own[i], moved[:, i]) for i in range(2)], 1) - usual
            towards = signs * np.concatenate([people.contributions[draw], there], 1)
            spoken = {"against": -towards, "for": towards, "both": abs(towards)}[side]
            return np.sort(np.argsort(-spoken, 1, kind="stable")[:, :k], 1)

        here = values[people.judged]
        first = top(here)
        for at, width in enumerate(WIDTHS):
            changed = np.zeros(len(here), dtype=bool)
            for move in product(range(-width, width + 1), repeat=2):
                changed |= (top(here + np.array(move)) != first).any(1)
            broken[draw, at] = changed.mean()
        mask = torch.zeros(len(here), 5).scatter_(1, torch.from_numpy(first), 1.0)
        shared.append(overlap(mask, k, torch.from_numpy(signs[:, 0])))
    np.testing.assert_allclose(found.broken, broken.mean(0))
    assert found.overlap == pytest.approx(np.mean(shared))


@pytest.mark.parametrize("seed", range(4))
def test_descent_makes_the_sum_smaller_and_tells_it_exactly(seed: int) -> None:
    people, numbers, _ = problem(seed, rows=400)
    wish = Wish(k=2, broken=0.1)
    before = standing(people, numbers, steps(seed), wish)
    found, after = descend(people, numbers, steps(seed), wish)
    assert after.total < before.total
    assert standing(people, numbers, found, wish) == after


def test_what_is_asked_for_is_got() -> None:
    people, numbers, _ = problem(0, rows=400)
    free, calm = (
        descend(people, numbers, steps(0), Wish(k=2, broken=weight))[1] for weight in (0.0, 1.0)
    )
    assert np.mean(calm.broken) < np.mean(free.broken)
    assert calm.loss > free.loss
    many = descend(people, numbers, steps(0), Wish(k=2, broken=0.0, edge=1.0))[0]
    assert all(not each.edges for each in many)


def test_fixed_edges_stay_and_points_go_one_way() -> None:
    people, numbers, _ = problem(1, rows=400)
    rising = [replace(number, fixed=frozenset({2}), monotone=1) for number in numbers]
    first = [Steps(edges=(2,), points=np.array([0.0, 0.1]))] * 2
    found, _ = descend(people, rising, first, Wish(k=2))
    assert all(2 in each.edges for each in found)
    assert all((np.diff(each.points) >= 0).all() for each in found)


@pytest.mark.parametrize("direction", [1, -1])
def test_points_go_one_way_where_rows_go_the_other(direction: int) -> None:
    people, numbers, values = problem(4, rows=400)
    falling = replace(people, base=np.zeros(400), y=(direction * (values[:, 0] - 4) < 0) * 1.0)
    bound = [replace(number, monotone=direction) for number in numbers]
    first = [Steps(edges=(1, 3), points=direction * np.array([0.0, 0.1, 0.2]))] * 2
    found, _ = descend(falling, bound, first, Wish(k=2, broken=0.0))
    assert all((direction * np.diff(each.points) >= 0).all() for each in found)
    free, _ = descend(falling, numbers, first, Wish(k=2, broken=0.0))
    assert (direction * np.diff(free[0].points) < 0).any()


def test_bands_hold_enough_rows() -> None:
    people, numbers, _ = problem(2, rows=400)
    demanding = [replace(number, least=150.0) for number in numbers]
    first = [Steps(edges=(), points=np.zeros(1))] * 2
    found, _ = descend(people, demanding, first, Wish(k=2, broken=0.0, edge=0.0))
    for number, each in zip(demanding, found, strict=True):
        assert np.bincount(number.bands(each.edges)[number.segments]).min() >= 150


def test_a_limit_on_what_people_share_is_kept_if_it_can_be() -> None:
    people, numbers, _ = problem(3, rows=400)
    free = descend(people, numbers, steps(3), Wish(k=2, broken=0.5))[1]
    wish = Wish(k=2, broken=0.5, overlap=10.0, most_overlap=free.overlap - 0.02)
    assert descend(people, numbers, steps(3), wish)[1].overlap < free.overlap


# --- what is tried ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_some_people_are_judged_as_they_are_alone(seed: int) -> None:
    people, numbers, _ = problem(seed)
    part, wish = slice(seed % 3, None, 3), Wish(k=2)
    few = replace(people, judged=people.judged[part], contributions=people.contributions[:, part])
    own = [
        replace(each, people=each.people[part], low=each.low[:, part], high=each.high[:, part])
        for each in numbers
    ]
    whole = _Search(people, numbers, steps(seed), wish)
    alone = _Search(few, own, steps(seed), wish)
    for place in range(2):
        tried = Steps(edges=(0, 4), points=np.array([0.3, -0.2, 0.1]))
        [_, rivals] = whole._rivals(place, part)
        found = whole._judged(place, tried, _Asked(people=part, rivals=rivals))
        [all_of_few] = alone._rivals(place)
        asked = _Asked(people=EVERYBODY, rivals=all_of_few)
        expected = alone._judged(place, tried, asked)
        np.testing.assert_allclose(found[0], expected[0])
        assert found[1] == pytest.approx(expected[1])


def only(monkeypatch: pytest.MonkeyPatch, *kept: str) -> None:
    """Try nothing but some changes."""
    for name in {"settle", "jump", "drop", "shift", "add", "stretch", "nudge"} - {*kept}:
        monkeypatch.setattr(descent._Trial, name, lambda *_: 0)


def test_whole_sets_of_edges_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    people, numbers, values = problem(0, rows=400)
    people = replace(people, base=np.zeros(400), y=(values[:, 0] >= 4).astype(float))
    none = [Steps(edges=(), points=np.zeros(1)) for _ in numbers]
    only(monkeypatch, "jump")
    wish = Wish(k=2, broken=0.0)
    assert [each.edges for each in descend(people, numbers, none, wish)[0]] == [(), ()]
    offered = [replace(numbers[0], offers=((0, 5), (2,), (1, 4))), numbers[1]]
    found, _ = descend(people, offered, none, wish)
    assert [each.edges for each in found] == [(2,), ()]
    assert CUTS[2] == 3.5


def test_points_are_stretched_around_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    people, numbers, values = problem(0, rows=400)
    people = replace(people, base=np.full(400, -0.4), y=(values[:, 0] >= 4).astype(float))
    low = Steps(edges=(2,), points=np.array([0.3, 0.5]))
    none = Steps(edges=(), points=np.zeros(1))
    only(monkeypatch, "stretch")
    [found, _], reached = descend(people, numbers, [low, none], Wish(k=2, broken=0.0))
    share = float((values[:, 0] >= 4).mean())
    mean = (1 - share) * found.points[0] + share * found.points[1]
    assert mean == pytest.approx((1 - share) * 0.3 + share * 0.5)
    assert found.points[1] - found.points[0] > 0.2
    assert reached.loss < standing(people, numbers, [low, none], Wish(k=2)).loss
