import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from made_results import failed, row_of
from r2et.core.inputs import Piece
from r2et.data.dataset import RenderSpec
from r2et.evaluation.decisions import AttackedDecision, Both, DrawnDecision, drawn
from r2et.evaluation.results import Radii, Result, Series
from r2et.report.maps import (
    COLOURS,
    concept_map,
    decision_map,
    feature_name,
    picture_map,
    saliency_figure,
    states_of,
    strongest,
)
from r2et.report.run_page import headline, report_html
from reproduction.figures import as_file, saliency_figures

WILD = "<b>\"&'</b>"
KINDS = {
    "picture": (Piece(shape=(1, 6, 6)), 36),
    "colour": (Piece(shape=(3, 6, 6)), 36),
    "channels": (Piece(shape=(3, 6, 6)), 108),
    "flat": (Piece(shape=(6,)), 6),
    "network": (Piece(shape=(5, 5), symmetric=True), 10),
    "concept": (Piece(shape=(1, 6, 6)), 20),
}


def made(kind: str, *, pairs: bool = False, seed: int = 0, row: Any = 3) -> DrawnDecision:
    """A decision whose first feature stays, whose second leaves and whose third enters the top."""
    piece, features = KINDS[kind]
    draw = torch.Generator().manual_seed(seed)
    count = 2 if pairs else 1
    look = RenderSpec(
        kind=kind if kind in ("network", "concept") else "picture",
        piece=piece,
        count=count,
        low=0.0,
        high=1.0,
        name=lambda number: f"{WILD} {number}",
    )
    x = torch.rand(count * piece.size, generator=draw)
    before = torch.zeros(features)
    before[:3] = torch.tensor([1.0, 0.5, 0.1])
    after = torch.zeros(features)
    after[:3] = torch.tensor([0.8, 0.1, 0.4])
    other = x.clone()
    other[0] = 1 - x[0]
    about = AttackedDecision(
        row=row, predicted=WILD, probability=(0.9, 0.8), cost=5 / 255, precision=0.5
    )
    drawing = drawn(about, look, [x, other], [before, after], 2)
    return DrawnDecision(**vars(drawing), actual=WILD)


def pictures(svg: str) -> list[Image.Image]:
    found = re.findall(r"data:image/png;base64,([^\"]+)", svg)
    return [Image.open(io.BytesIO(base64.b64decode(each))) for each in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawing_is_well_formed_and_holds_all_it_shows(kind: str) -> None:
    svg = decision_map(made(kind))
    root = ElementTree.fromstring(svg)
    assert "style" not in svg.replace("font-style", "")
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert WILD not in svg
    desc = root.find("{*}desc")
    assert desc is not None
    assert desc.text is not None
    assert "1 are still among them afterwards, 1 are not: 50.0\u00a0% kept" in desc.text
    assert root.attrib["aria-label"].endswith(desc.text)
    assert {*COLOURS.values()} <= {*re.findall(r'stroke="(#\w+)"', svg)}
    assert "P@2 50.0\u00a0%" in svg
    assert svg == decision_map(made(kind))


def test_the_pictures_are_those_of_the_record() -> None:
    svg = picture_map(made("colour", pairs=True))
    found = pictures(svg)
    assert len(found) == 9  # two pictures and the saliency, each before, after and changed
    before, after, change = (np.asarray(each.convert("RGB")).astype(int) for each in found[:3])
    torch.manual_seed(0)
    assert (np.abs(after - before).max(-1) > 0).sum() == 1  # the one pixel that was changed
    times = int(re.findall(r"change × (\d+)", svg)[0])
    expected = (127.5 + times * (after - before) / 2).clip(0, 255)
    assert np.abs(change - expected).max() <= times  # bytes are rounded before they are enlarged
    assert "no change" in svg  # of the partner
    saliency = np.asarray(found[6].convert("L")).flatten()
    assert saliency.argmin() == 0  # the darkest pixel is the most salient one
    assert (saliency[3:] == 255).all()
    red, _, blue = (np.asarray(found[8].convert("RGB")).reshape(36, 3)[i] for i in (1, 0, 2))
    assert red[0] > red[2]  # fell: orange
    assert blue[2] > blue[1]  # rose: purple


def test_marks_stand_on_their_pixels() -> None:
    states = states_of(made("picture"))
    assert states == {"kept": [0], "lost": [1], "gained": [2]}
    channels = replace(made("channels"), top=Both(before=(0, 36 + 1), after=(72, 1)))
    assert {kind: len(found) for kind, found in states_of(channels).items()} == {
        "kept": 0,
        "lost": 2,
        "gained": 2,
    }
    decision_map(channels)  # pixels 0 and 1, whichever of their channels
    assert feature_name(channels, 72 + 7) == "row 2, column 2"
    assert feature_name(made("concept"), 4) == "neuron 5"
    assert feature_name(replace(made("network"), names={}), 4) == "node 2 \N{EN DASH} node 3"


def test_the_strongest_are_told_with_their_places() -> None:
    found = strongest(made("network"))
    assert [each["name"] for each in found["before"]] == [f"{WILD} 0", f"{WILD} 1"]
    assert [each["place"] for each in found["before"]] == [0, None]
    assert [each["place"] for each in found["after"]] == [0, None]
    assert found["before"][1]["share"] == pytest.approx(0.5, abs=1 / 255)
    bars = concept_map(made("concept"))
    assert re.findall(r"neuron (\d+)", bars) == ["1", "2", "3"]


@pytest.mark.parametrize("kind", ["picture", "network"])
def test_a_figure_shows_all_methods_side_by_side(kind: str) -> None:
    methods = {WILD: made(kind), **{f"method {i}": made(kind) for i in range(7)}}
    svg = as_file(saliency_figure(methods, name="figure-3"))
    ElementTree.fromstring(svg)
    assert WILD not in svg
    assert len(pictures(svg)) == 16 + 2 * (kind == "picture")
    assert svg.count("P@2 50.0\u00a0%") == 8
    assert len(svg) < 100_000


def test_the_figure_of_a_data_set_takes_the_first_example_of_the_first_seed() -> None:
    rows = [replace(each, dataset="mnist", recipe="paper") for each in rows_of("picture")]
    rows[1] = replace(rows[1], decisions=(made("picture", pairs=True, row=(9, 9)),))
    recipes = {"mnist": "paper", "cnp": "paper"}
    found = saliency_figures([rows[0], replace(rows[0], label="Other"), rows[1]], recipes)
    assert list(found) == ["mnist"]
    assert found["mnist"].count("P@2") == 2  # another example is left out
    assert saliency_figures(rows, {"adult": "paper"}) == {}
    assert saliency_figures(rows, {"mnist": "paper-k100"}) == {}, "rows of the other recipe"


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="of kind picture, network, concept, got 'text'"):
        decision_map(replace(made("picture"), kind="text"))
    with pytest.raises(ValueError, match="one told picture or network for each method"):
        saliency_figure({"Vanilla": made("concept")})
    with pytest.raises(ValueError, match="different ones"):
        saliency_figure({"Vanilla": made("picture"), "R2ET": made("picture", row=4)})


def rows_of(kind: str, **more: Any) -> list[Result]:
    """Rows as a run on pictures or networks writes them."""
    found = []
    for method in ("vanilla", "r2et"):
        row = row_of(method, 0, kept=0.5 if method == "vanilla" else 0.9)
        for name in ("applicant_precision", "off_data_share", "mse_precision", "mse_changed"):
            del row.measures[name]
        for name in ("exchange_agreement", "exchange_size", "without_exchanges"):
            del row.measures[name]
        row.measures.update({"noise_precision": 0.71, "er_last_precision": 0.45})
        row.measures["er_last_changed"] = 0.3
        curve = replace(row.series.curve, epsilon=(0.0, 5 / 255))
        row = replace(
            row,
            radii=Radii(attack=5 / 255, decision=1.0, flippable=1 / 255, norm="linf"),
            series=replace(row.series, curve=curve),
            decisions=tuple(made(kind, pairs=True, row=(3, number)) for number in range(2)),
            change_buys=(),
        )
        found.append(replace(row, **more))
    return found


def page_of(rows: list[Result]) -> str:
    return report_html(rows, recipe_line="", command="")


@pytest.mark.parametrize("kind", ["picture", "network", "concept"])
def test_a_report_shows_what_is_drawn(kind: str) -> None:
    page = page_of(rows_of(kind, stand_in=WILD))
    assert WILD not in page
    assert page.count('<div class="drawing">') == 4
    assert page.count("Stand-in data.") == 1
    assert "items 3 and 1 of the data" in page
    assert "P@8 noise" in page
    assert "71.0" in page
    assert "Changed, last" in page
    absent_words = ("actionable", "Off-data share", "One-hot", "scaled units", "a person could")
    for absent in (*absent_words, "xchange"):
        assert absent not in page.split("<style>")[0] + page.split("</style>")[1]
    thing = {"network": "no edge by more than 0.0196"}.get(kind, "no pixel by more than 5/255")
    assert thing in page
    assert ("Strongest edges before" in page) == (kind == "network")


def test_a_method_that_failed_does_not_change_the_words() -> None:
    rows = rows_of("picture")
    missed = replace(failed(row_of("at", 0)), radii=Radii())
    page = page_of([missed, *rows])
    assert "largest change 5/255" in page
    assert "Nothing measured" in page


def test_a_report_does_without_what_was_not_measured() -> None:
    rows = rows_of("picture")
    rows = [replace(row, series=Series(profile=row.series.profile), decisions=()) for row in rows]
    for row in rows:
        for name in [name for name in row.measures if name.startswith("strong")]:
            del row.measures[name]
    page = page_of(rows)
    assert "One picture with its doubt" in page
    assert "This run told no single decisions" in page
    assert "displaced on average 4.0 of the 8 reasons" in headline(rows).finding


def test_a_browser_draws_it(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page_of(rows_of("picture")), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    drawing = page.locator(".drawing").first
    assert drawing.is_visible()
    assert drawing.locator("image").count() == 9
    assert not problems
    page.close()
