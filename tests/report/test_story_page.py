"""The page of models beside one another."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from made_story import made_comparison
from r2et.experiments.reason_records import Comparison
from r2et.report.charts import Drawing, style
from r2et.report.pages import LIGHT, Colours
from r2et.report.reason_charts import before_after, broken_over_width, curves, frontier
from r2et.report.story_page import story_html
from r2et.report.story_words import finding, measures, where_others_are_better


def test_what_is_found_is_said_with_what_is_worse() -> None:
    found = made_comparison()
    text = finding(found)
    assert "54.0\u00a0%" in text
    assert "13.3\u00a0%" in text
    assert "0.8818 against 0.8852" in text
    better = where_others_are_better(found)
    assert "AUC (boosted trees, 0.8852)" in better
    assert "kappa" not in better


def test_drawn_moves_are_bounds() -> None:
    trees, stable = made_comparison(every=False).rows
    assert measures(trees)["broken, %"] == "≥ 54.0"
    assert measures(trees)["kept, %"] == "≤ 82.0"
    assert measures(stable)["broken, %"] == "13.3"
    page = story_html(made_comparison(every=False))
    assert "too many moves" in page
    assert "Every move" not in page


def test_words_of_the_table_are_escaped() -> None:
    found = made_comparison()
    page = story_html(replace(found, classes=("<script>no", "yes"), data="<b>"))
    assert "<script>no" not in page
    assert "<b>" not in page


def test_nothing_broken_is_said() -> None:
    page = story_html(replace(made_comparison(), person=None))
    assert "there is nothing to show" in page


@pytest.mark.parametrize("draw", [frontier, broken_over_width, curves])
def test_charts_have_words_for_those_who_cannot_see_them(
    draw: Callable[[Comparison, Colours], Drawing],
) -> None:
    found = made_comparison()
    with mpl.rc_context(style(LIGHT)):
        drawing = draw(found, LIGHT)
    told = {
        frontier: "boosted trees 54.0 and 52.6",
        broken_over_width: "StableClassifier 7.3, 13.3",
    }
    assert told.get(draw, "edges at 24.5; most people are at 40") in drawing.text


def test_the_chart_of_a_person_tells_both_sets_of_reasons() -> None:
    person = made_comparison().person
    assert person is not None
    text = before_after(person, "trees", LIGHT).text
    assert "age, job" in text
    assert "with hours 41: age, hours" in text


def test_names_of_markers_do_not_meet() -> None:
    found = made_comparison()
    axes = frontier(found, LIGHT).figure.axes[0]
    figure = axes.figure
    FigureCanvasAgg(figure)
    boxes = [each.get_window_extent() for each in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
