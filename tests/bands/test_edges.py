from itertools import combinations, pairwise

import numpy as np
import pytest

from r2et.bands.edges import EDGE, Curve, cuts, edges_by_penalty, stable_edges
from refusals import refusal


def curve_of(seed: int = 0, values: int = 9, classes: int = 1) -> Curve:
    draw = np.random.default_rng(seed)
    return Curve(
        values=np.arange(20.0, 20 + values),
        people=draw.integers(1, 40, values).astype(float),
        score=draw.normal(size=(values, classes)).cumsum(0),
    )


def cost_of(
    curve: Curve, edges: tuple[float, ...], widths: tuple[float, ...], penalty: float
) -> float:
    """The definition, person by person: infinite for a band without people."""
    ends = (-np.inf, *edges, np.inf)
    total = 0.0
    for low, high in pairwise(ends):
        people = [
            row
            for value, count, row in zip(curve.values, curve.people, curve.score, strict=True)
            for _ in range(int(count))
            if low <= value < high
        ]
        if not people:
            return np.inf
        middle = np.mean(people, axis=0)
        total += sum(float(((row - middle) ** 2).sum()) for row in people)
    total /= curve.people.sum()
    for edge in edges:
        shares = [
            sum(
                count
                for value, count in zip(curve.values, curve.people, strict=True)
                if abs(value - edge) <= width
            )
            / curve.people.sum()
            for width in widths
        ]
        total += penalty * (sum(shares) / len(shares) + EDGE)
    return total


def means_of(curve: Curve, edges: tuple[float, ...]) -> list[float]:
    band = np.searchsorted(edges, curve.values, side="right")
    return [
        float(np.average(curve.score[band == each, 0], weights=curve.people[band == each]))
        for each in range(len(edges) + 1)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("penalty", [0.0, 0.05, 0.5, 50.0])
def test_no_other_set_of_edges_costs_less(penalty: float, classes: int, seed: int) -> None:
    curve, widths = curve_of(seed, classes=classes), (1.0, 2.0)
    places = cuts(curve).tolist()
    sets = [s for count in range(len(places) + 1) for s in combinations(places, count)]
    best = min(cost_of(curve, each, widths, penalty) for each in sets)
    found = tuple(stable_edges(curve, widths, penalty).tolist())
    assert cost_of(curve, found, widths, penalty) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("direction", [1, -1])
def test_no_other_set_with_rising_means_costs_less(direction: int, seed: int) -> None:
    curve, widths, penalty = curve_of(seed), (1.0,), 0.02
    places = cuts(curve).tolist()
    sets = [s for count in range(len(places) + 1) for s in combinations(places, count)]
    goes = [s for s in sets if (direction * np.diff(means_of(curve, s)) >= -1e-12).all()]
    best = min(cost_of(curve, each, widths, penalty) for each in goes)
    found = tuple(stable_edges(curve, widths, penalty, monotone=direction).tolist())
    assert (direction * np.diff(means_of(curve, found)) >= -1e-12).all()
    assert cost_of(curve, found, widths, penalty) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_given_edges_stay_and_the_others_are_the_best_beside_them(seed: int) -> None:
    curve, widths, penalty, given = curve_of(seed), (1.0,), 0.3, (22.5, 27.2)
    places = sorted({*cuts(curve).tolist(), *given})
    sets = [
        s
        for count in range(len(places) + 1)
        for s in combinations(places, count)
        if set(given) <= set(s)
    ]
    best = min(cost_of(curve, each, widths, penalty) for each in sets)
    found = tuple(stable_edges(curve, widths, penalty, given=given).tolist())
    assert set(given) <= set(found)
    assert cost_of(curve, found, widths, penalty) == pytest.approx(best, abs=1e-12)


def test_given_edges_beyond_all_values_are_kept_too() -> None:
    assert {5.0, 99.0} <= set(stable_edges(curve_of(), (1.0,), 0.1, given=(5.0, 99.0)).tolist())
    alone = Curve(values=np.array([3.0]), people=np.array([9.0]), score=np.zeros((1, 1)))
    assert stable_edges(alone, (1.0,), 0.1).tolist() == []
    assert stable_edges(alone, (1.0,), 0.1, given=(4.0, 2.0)).tolist() == [2.0, 4.0]


def test_bands_hold_enough_people() -> None:
    curve = curve_of(2)
    found = stable_edges(curve, (1.0,), 0.0, least_people=50)
    band = np.searchsorted(found, curve.values, side="right")
    assert min(curve.people[band == each].sum() for each in range(len(found) + 1)) >= 50
    assert len(found) > 0
    assert stable_edges(curve, (1.0,), 0.0, least_people=1e9).tolist() == []
    # Given edges leave no choice about the bands between them.
    assert stable_edges(curve, (1.0,), 0.0, least_people=1e9, given=(22.5,)).tolist() == [22.5]


def test_an_edge_may_be_asked_for() -> None:
    curve, widths = curve_of(1), (1.0,)
    assert stable_edges(curve, widths, 1e6).tolist() == []
    found = tuple(stable_edges(curve, widths, 1e6, least_edges=1).tolist())
    costs = {edge: cost_of(curve, (edge,), widths, 1e6) for edge in cuts(curve).tolist()}
    assert found == (min(costs, key=lambda edge: costs[edge]),)


def test_edges_keep_away_from_where_people_stand() -> None:
    # A score that steps at 40, where half of all people are, but may as well be cut at 43.
    values = np.arange(20.0, 61.0)
    people = np.where(values == 40, 400.0, 10.0)
    score = ((values >= 40).astype(float) - 0.5)[:, None]
    curve = Curve(values=values, people=people, score=score)
    assert stable_edges(curve, (2.0,), 0.001).tolist() == [39.5]
    flat = Curve(values=values, people=people, score=0.3 * ((values - 40) / 20)[:, None])
    for edge in stable_edges(flat, (2.0,), 0.1, least_edges=1):
        assert abs(edge - 40) > 2


def test_means_that_cannot_go_one_way_are_refused() -> None:
    curve = Curve(
        values=np.arange(4.0), people=np.ones(4), score=np.array([[0.0], [9.0], [1.0], [8.0]])
    )
    assert "go one way" in refusal(
        lambda: stable_edges(curve, (1.0,), 0.1, given=(0.5, 1.5, 2.5), monotone=1)
    )


@pytest.mark.parametrize(
    ("low", "high", "edge"),
    [(39, 40, 39.5), (0, 10, 5), (0, 1, 0.5), (1900, 4200, 3000), (0.0312, 0.0347, 0.033),
     (-10, -9, -9.5), (1e6, 3e6, 2e6), (-1, 1, 0)],
)  # fmt: skip
def test_edges_lie_at_numbers_that_people_use(low: float, high: float, edge: float) -> None:
    curve = Curve(values=np.array([low, high]), people=np.ones(2), score=np.zeros((2, 1)))
    assert cuts(curve).tolist() == [pytest.approx(edge, rel=1e-12)]


def test_places_are_never_on_a_value_and_never_too_many() -> None:
    draw = np.random.default_rng(0)
    values = np.unique(draw.lognormal(8, 2, 20_000))
    curve = Curve(values=values, people=np.ones(len(values)), score=np.zeros((len(values), 1)))
    places = cuts(curve, 100)
    assert 60 <= len(places) <= 100
    assert not np.isin(places, values).any()
    assert (np.diff(places) > 0).all()
    short = [f"{place:.6g}" for place in places]
    assert np.mean([len(word.rstrip("0").lstrip("0.")) <= 5 for word in short]) > 0.5


def test_edges_for_several_penalties_are_those_of_each() -> None:
    curve, penalties = curve_of(), (0.001, 0.01, 0.1, 1.0)
    several = edges_by_penalty(curve, (1.0, 2.0), penalties, given=(30.5,), least_people=20)
    for penalty, found in zip(penalties, several, strict=True):
        alone = stable_edges(curve, (1.0, 2.0), penalty, given=(30.5,), least_people=20)
        assert found.tolist() == alone.tolist()
    assert len({len(found) for found in several}) > 1


def test_the_share_of_people_who_can_cross_an_edge() -> None:
    curve, widths = curve_of(), (1.0, 2.5)
    edges = curve.cuts[::5]
    slow = [
        np.mean([curve.people[np.abs(curve.values - edge) <= width].sum() for width in widths])
        for edge in edges
    ]
    np.testing.assert_allclose(curve.crossing(edges, widths), np.array(slow) / curve.people.sum())
