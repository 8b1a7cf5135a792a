"""Trees of all attributes beside points: which edges they see, and how much they count."""

from dataclasses import replace

import numpy as np
import pytest
from made_people import people

from r2et import StableBinner, StableClassifier
from r2et.bands import steps
from r2et.bands.attribute import NumberBands
from r2et.bands.scores import StepScore
from r2et.bands.steps import Found, Rows, with_trees
from r2et.core.arrays import Floats

EDGES = {0: (30.0, 50.0), 1: (35.5, 40.5)}
"""Of age and hours; four people in ten work 40 hours."""


@pytest.fixture(scope="module")
def rows() -> Rows:
    """People whose age may move by 1 and 2 and whose hours by 2; some hours are not known."""
    X, y = people(1500)
    X = X.assign(hours=X.hours.astype(float).where(X.index % 20 > 0))
    model = StableClassifier({"age": (1, 2), "hours": 2, "debts": 0})
    model.binner_ = StableBinner({"age": (1, 2), "hours": 2, "debts": 0})
    return model._rows(*model.binner_.begin(X, y))


@pytest.fixture(scope="module")
def found(rows: Rows) -> Found:
    """Bands of these edges, with points that say nothing."""
    bands = list(rows.bands)
    for place, edges in EDGES.items():
        own = bands[place]
        assert isinstance(own, NumberBands)
        bands[place] = replace(own, edges=edges)
    points = {place: np.zeros(each.count) for place, each in enumerate(bands)}
    score = StepScore(points=points, rest=None, constant=0.0)
    return Found(bands=bands, score=score, taught=None, reached=None)


def crossing(values: Floats, edge: float, width: float) -> float:
    """The share of numbers from which a move of at most a width, whole, leads over an edge."""
    moved = 0
    for value in values[~np.isnan(values)]:
        reached = [value + by for by in range(-int(width), int(width) + 1)]
        moved += min(reached) < edge <= max(reached)
    return moved / (~np.isnan(values)).sum()


@pytest.mark.parametrize("most", [0.0, 0.05, 0.1, 0.3, 0.5, 1.0])
def test_edges_are_hidden_that_more_people_can_cross(rows: Rows, found: Found, most: float) -> None:
    for place, edges in EDGES.items():
        told = steps._told_apart(rows, place, found.bands[place], most)
        shares = [crossing(rows.values[place], edge, 2) for edge in edges]
        assert (np.diff(told[: len(edges) + 1]) > 0).tolist() == [each <= most for each in shares]
        # What is no number keeps a place of its own.
        assert len(set(told[len(edges) + 1 :]) & set(told[: len(edges) + 1])) == 0


def test_who_stands_at_an_edge_can_cross_it(rows: Rows, found: Found) -> None:
    # 38 + 2 = 40 reaches the edge, 42 - 2 = 40 does not leave it: 38, 39, 40 and 41 cross.
    bands = replace(found.bands[1], edges=(40.0,))
    share = crossing(rows.values[1], 40.0, 2)
    assert share == pytest.approx(np.isin(rows.values[1], [38, 39, 40, 41]).sum()
                                  / (~np.isnan(rows.values[1])).sum())  # fmt: skip
    assert steps._told_apart(rows, 1, bands, share)[1] == 1
    assert steps._told_apart(rows, 1, bands, np.nextafter(share, 0))[1] == 0


def test_trees_of_many_rows_are_blind_to_crowded_edges(
    rows: Rows, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = with_trees(rows, found)
    assert few.share == 0.5
    monkeypatch.setattr(steps, "LARGE_ROWS", 1000)
    monkeypatch.setattr(steps, "FEW_MOVING", 1)
    many = with_trees(rows, found)
    assert many.share == steps.TREES_SHARE
    monkeypatch.setattr(steps, "NEAR", 1.0)
    seeing = with_trees(rows, found)
    cells = rows.within(found.bands)
    beside = cells.copy()
    beside[:, 1] = np.where(cells[:, 1] == 2, 1, cells[:, 1])
    # Points say nothing here, so that only trees can know of crossing 40.5 hours.
    np.testing.assert_array_equal(many(cells), many(beside))
    assert (seeing(cells) != seeing(beside)).any()
    assert many.trees is not None
    assert many.trees.leaves is not None


def test_trees_that_cannot_be_read_say_the_same(
    rows: Rows, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LARGE_ROWS", 1000)
    monkeypatch.setattr(steps, "FEW_MOVING", 1)
    read = with_trees(rows, found).trees
    monkeypatch.setattr("r2et.bands.scores.leaves_of", lambda *_, **__: None)
    unread = with_trees(rows, found).trees
    assert read is not None
    assert unread is not None
    assert (read.leaves is None, unread.leaves is None) == (False, True)
    assert unread.grown is not None
    assert len(unread.grown.model.models) == steps.MANY_TIMES
    cells = rows.within(found.bands)[:300]
    np.testing.assert_allclose(read(cells), unread(cells), atol=1e-9)
    references = cells[None, :5]
    np.testing.assert_allclose(
        read.contributions(cells[:4], references),
        unread.contributions(cells[:4], references),
        atol=1e-9,
    )


def test_the_share_of_trees_is_that_of_what_they_add(rows: Rows, found: Found) -> None:
    score = with_trees(rows, found)
    assert score.trees is not None
    draw = np.random.default_rng(0)
    points = {place: draw.normal(size=each.count) for place, each in enumerate(found.bands)}
    mixed = replace(score, points=points, constant=0.25, share=0.3)
    steps_alone = replace(mixed, trees=None)
    cells, reference = rows.within(found.bands)[:20], rows.within(found.bands)[20:30]
    np.testing.assert_allclose(
        mixed(cells), 0.7 * steps_alone(cells) + 0.3 * score.trees(cells), atol=1e-12
    )
    added = mixed.contributions(cells, reference)
    np.testing.assert_allclose(added.sum(1), mixed(cells) - mixed(reference).mean(), atol=1e-9)
