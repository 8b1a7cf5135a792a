"""The page of a comparison of models: what small moves do to the reasons people are given."""

from functools import partial
from pathlib import Path

from r2et import __version__
from r2et.core.files import write_text
from r2et.data.features import plain
from r2et.experiments.reason_records import NAMES, BeforeAfter, Comparison
from r2et.report.charts import html_of
from r2et.report.pages import page_html
from r2et.report.reason_charts import before_after, broken_over_width, curves, frontier
from r2et.report.story_words import (
    MEASURES,
    finding,
    how_proved,
    measures,
    moves_in_words,
    where_others_are_better,
)


def write_story(found: Comparison, path: Path) -> Path:
    """The path, now holding the page of a comparison."""
    return write_text(path, story_html(found))


def story_html(found: Comparison) -> str:
    """The comparison as a page that asks for no other file, readable without JavaScript."""
    numbers = [measures(row) for row in found.rows]
    person = found.person
    values = {
        "found": found,
        "version": __version__,
        "finding": finding(found),
        "proof": how_proved(found),
        "better": where_others_are_better(found),
        "moves": moves_in_words(found),
        "models": [NAMES[row.model] for row in found.rows],
        "measures": [
            {"name": name, "says": says, "values": [each[name] for each in numbers]}
            for name, says in MEASURES.items()
            if not (found.k == 1 and name.startswith("all but one"))
        ],
        "frontier": html_of(partial(frontier, found)),
        "widths": html_of(partial(broken_over_width, found)),
        "curves": html_of(partial(curves, found)),
        "people": []
        if person is None
        else [html_of(partial(before_after, person, model)) for model in person.said],
        "person": _told(person),
    }
    return page_html("story", values, like="audit")


def _told(person: BeforeAfter | None) -> dict[str, object] | None:
    """One person in the words of the page."""
    if person is None:
        return None
    before, after = person.said["trees"]
    ours = [set(each.reasons) for each in person.said["stable"]]
    return {
        "row": person.row,
        "values": person.values,
        "move": [
            f"{name} {plain(now)} instead of {plain(before)}"
            for name, (before, now) in person.move.items()
        ],
        "decision": before.decision,
        "left": [name for name in before.reasons if name not in after.reasons],
        "entered": [name for name in after.reasons if name not in before.reasons],
        "ours": "gives the same reasons, whatever the move"
        if person.steady
        else "gives the same reasons then"
        if ours[0] == ours[1]
        else "gives other reasons, too",
    }
