import base64
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_tables import failed_row, made_decision, made_row, with_valid

from made_results import description
from r2et.attacks.comparison import HandlingPoint, marked
from r2et.evaluation.decisions import FeatureShare, TableDecision
from r2et.evaluation.results import COLUMNS, Radii
from r2et.report import charts
from r2et.report.run_page import headline, report_html, table_lines, write_report

HOSTILE = "<script>alert(1)</script>"
DRAWN = [
    charts.curve,
    charts.scatter,
    charts.profile,
    charts.plane,
]
METHODS = {"linear": 1.0, "vanilla": 0.3, "r2et": 0.7, "r2et-mm": 0.6}
OURS = {"steadfast": 0.9, "steadfast-quick": 0.8}


def drawn_by(draw: Callable[..., charts.Drawing], *given: Any) -> str:
    """A chart as a file of its own."""
    return charts.file_of(partial(draw, *given))


def made_rows(seeds: int = 2, **strong: float) -> list[dict[str, Any]]:
    """A run in which R2ET is the better one, unless told otherwise by strong P@k."""
    found = METHODS | strong
    return [
        made_row(
            method,
            seed,
            min(1.0, value + 0.01 * seed),
            valid=value,
            **{"clean_auc": 0.87 if method == "linear" else 0.88},
        )
        for seed in range(seeds)
        for method, value in found.items()
    ]


def with_first(decision: TableDecision, *, reason: str, value: str, after: str) -> TableDecision:
    """The decision with other words in its first reason and its first value."""
    reasons, values = decision.before, decision.values
    return replace(
        decision,
        before=(replace(reasons[0], name=reason), *reasons[1:]),
        values=(replace(values[0], name=value, after=after), *values[1:]),
    )


def page_of(rows: list[dict[str, Any]], **words: str) -> str:
    given = {
        "recipe_line": "short",
        "command": "r2et run adult",
    }
    return report_html(rows, **(given | words))


class Outline(HTMLParser):
    """Checks that tags nest, and keeps ids, addresses, scripts and visible words."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input", "source"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} has {name}"
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "srcset", "data"):
                self.addresses.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words += data


def test_the_page_is_well_formed_and_holds_every_section() -> None:
    text = page_of(made_rows())
    outline = Outline(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(outline.ids) == len(set(outline.ids))
    assert {"finding", "results", "figures", "decisions", "notes", "provenance"} <= {*outline.ids}
    assert outline.tags.count("figure") == 4
    for words in (
        "not picked",
        "upper bound",
        "linear control",
        "The off-data share tells",
        "Overlapping balls",
        "0123456789ab",
        "r2et run adult",
        "3 test decisions",
    ):
        assert words in outline.words


def test_gradients_that_say_nothing_about_exchanges_are_called_so() -> None:
    rows = made_rows()
    assert "Exchanges agree" in Outline(page_of(rows)).words
    assert "say nothing about exchanges" not in page_of(rows)
    for row in rows:
        if row.method == "r2et":
            row.measures.update({"exchange_agreement": 0.08, "without_exchanges": 0.25})
    words = Outline(page_of(rows)).words
    assert "R2ET: These gradients say nothing about exchanges of categories" in words
    assert "Vanilla: These gradients" not in words
    assert "left out: up to 25.0\u00a0%" in words


def test_rows_from_before_exchanges_were_measured_show_a_dash() -> None:
    rows = made_rows()
    for row in rows:
        for name in ("exchange_agreement", "exchange_size"):
            del row.measures[name]
    words = Outline(page_of(rows)).words
    assert "Exchanges agree" in words
    assert "Exchange size" not in words
    for row in rows:
        del row.measures["off_data_share"]
    assert "xchange" not in Outline(page_of(rows)).words


def test_kappa_says_on_how_many_seeds_reasons_are_individual() -> None:
    rows = made_rows()
    for row in rows:
        if row.method == "linear" or (row.method, row.seed) == ("vanilla", 0):
            del row.measures["strong_kappa"]
    number = [column.key for column in COLUMNS].index("strong_kappa")
    cells = {line["method"]: line["cells"][number] for line in table_lines(rows)}
    assert (cells["vanilla"]["mean"], cells["vanilla"]["behind"]) == ("0.10", "1 of 2")
    assert (cells["linear"]["mean"], cells["linear"]["none"]) == (None, "no individual reasons")
    text = page_of(rows)
    assert text.count("no individual reasons</span>") == 1
    assert text.count("1 of 2 seeds</span>") == 1


def test_the_page_asks_for_nothing_else() -> None:
    text = page_of(made_rows(), source="doi 10.1000/1")
    outline = Outline(text)
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_words_from_data_are_only_words() -> None:
    rows = made_rows(seeds=1)
    rows = [
        replace(
            row,
            label=f"{row.label} {HOSTILE} $x_1$ \" '",
            chosen={HOSTILE: HOSTILE},
            data=HOSTILE,
            dataset=HOSTILE,
            recipe=HOSTILE,
            version=HOSTILE,
        )
        for row in rows
    ]
    told = with_first(made_decision(7), reason=HOSTILE, value=HOSTILE, after=f'"{HOSTILE}')
    told = replace(told, predicted=HOSTILE, actual=HOSTILE)
    rows = [replace(row, decisions=(told, made_decision(3))) for row in rows]
    hostile = dict.fromkeys(("recipe_line", "command", "source"), HOSTILE)
    text = page_of(rows, **hostile)
    outline = Outline(text)
    assert outline.tags.count("script") == 1, "the page's own"
    assert HOSTILE not in text
    assert HOSTILE in outline.words
    assert "$x_1$" in outline.words, "no mathematics is read out of names"


@pytest.mark.parametrize("draw", DRAWN)
def test_a_figure_is_text_that_never_changes(draw: Callable[..., charts.Drawing]) -> None:
    rows = made_rows()
    rows[1] = replace(rows[1], label=f"{HOSTILE} $\\frac{{$ & \" '")
    first = drawn_by(draw, rows)
    assert first == drawn_by(draw, rows)
    root = ElementTree.fromstring(first)
    words = ["".join(each.itertext()) for each in root.iter()]
    assert "script" not in {each.tag.split("}")[-1] for each in root.iter()}
    assert any("Vanilla" in each or HOSTILE in each for each in words)
    assert root[0].tag.endswith("title")
    assert root[0].text
    assert description(first)


def test_figures_follow_the_page_in_light_and_dark() -> None:
    found = Outline(page_of(made_rows()))
    pictures = [each for each in found.addresses if each.startswith("data:image/svg+xml")]
    assert len(pictures) == 8, "four, each in two colourings"
    for address, colours, others in zip(
        pictures, 4 * (charts.DARK, charts.LIGHT), 4 * (charts.LIGHT, charts.DARK), strict=True
    ):
        text = base64.b64decode(address.partition(",")[2]).decode()
        assert colours["accent"] in text
        assert not {*re.findall(r"#[0-9a-f]{6}", text)} & {
            each for name, each in others.items() if each != colours[name]
        }
    style = page_of(made_rows())
    for name in ("ink", "muted", "rule", "accent", "warn", "own"):
        assert f"--{name}: {charts.LIGHT[name]};" in style
        assert f"--{name}: {charts.DARK[name]};" in style


def test_decisions_that_never_flipped_stand_apart() -> None:
    assert "never: 33 %" in drawn_by(charts.scatter, made_rows())


def test_a_method_chosen_on_every_seed_is_drawn_once() -> None:
    for rows, name in ((made_rows(), "R2ET"), (made_rows(**OURS), "Steadfast")):
        labels = [each.label for each in charts.methods_shown(rows)]
        assert (labels.count(name), labels.count(f"{name} (chosen)")) == (0, 1)
    rows = made_rows()
    rows[-1] = with_valid(rows[-1], precision=1.0)
    labels = [each.label for each in charts.methods_shown(rows)]
    assert {"R2ET", "R2ET-mm", "Best by validation"} <= {*labels}


@pytest.mark.parametrize("ours", [0.9, 0.5])
def test_ours_is_told_apart_from_r2et(ours: float) -> None:
    shown = {each.method: each for each in charts.methods_shown(made_rows(steadfast=ours))}
    own = shown["best" if ours == 0.9 else "steadfast"]
    assert own.label == ("Steadfast (chosen)" if ours == 0.9 else "Steadfast")
    others = [each.colour for each in shown.values() if each is not own]
    assert own.colour == "own"
    assert own.colour not in others
    drawn = drawn_by(charts.curve, made_rows(steadfast=ours))
    assert charts.LIGHT["own"] in drawn
    assert own.label in drawn


def test_both_of_ours_are_drawn_each_in_its_own_way() -> None:
    shown = {each.method: each for each in charts.methods_shown(made_rows(**OURS))}
    quick, chosen = shown["steadfast-quick"], shown["best"]
    assert (quick.label, chosen.label) == ("Steadfast (quick)", "Steadfast (chosen)")
    assert (quick.width, quick.marker) != (chosen.width, chosen.marker)


@pytest.mark.parametrize("draw", DRAWN)
def test_figures_are_drawn_without_the_shown_pair(draw: Callable[..., charts.Drawing]) -> None:
    ElementTree.fromstring(drawn_by(draw, [made_row("linear", 0, 1.0)]))
    ElementTree.fromstring(drawn_by(draw, [made_row("vanilla", 0), failed_row("r2et", 0)]))


def made_points(**sensitivity: float) -> list[HandlingPoint]:
    """Each handling at two step sizes and for both goals, the longer steps more damaging."""
    return marked(
        [
            HandlingPoint(
                goal=goal,
                handler=name,
                step=step,
                precision=0.9 - step,
                sensitivity=changed,
                kept_precision=0.95,
            )
            for goal in ("er", "mse")
            for name, changed in sensitivity.items()
            for step in (0.1, 0.2)
        ]
    )


def test_handlings_are_drawn_with_front_and_star() -> None:
    points = made_points(gda=0.01, rejection=0.0, unconstrained=0.4)
    drawn = drawn_by(charts.constraint_handling, points)
    assert drawn == drawn_by(charts.constraint_handling, points)
    root = ElementTree.fromstring(drawn)
    words = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("gda", "rejection", "unconstrained", "selected", "≤ 2 % changed"):
        assert word in words
    assert [each for each in words if "reasons kept" in each] == [
        "ERAttack: reasons kept in the top k, %",
        "MSE attack: reasons kept in the top k, %",
    ]
    assert (
        description(drawn).count(
            "selected is rejection with steps of 0.2, 70.0 percent kept and 0.0 percent"
        )
        == 2
    )
    stars = re.findall(r"<use[^>]*fill-opacity: 0; stroke: #d1242f", drawn)
    assert len(stars) == 3, "one in each panel, and one that says what a star is"
    assert charts.LIGHT["accent"] in drawn


def test_the_front_of_handlings_is_a_line_through_its_points() -> None:
    # Each of the first three is better than the others in one way; the last is beaten by two.
    places = [(0.9, 0.0), (0.7, 0.1), (0.5, 0.3), (0.8, 0.5)]
    points = [
        replace(made_points(hedge=0.0)[0], precision=precision, sensitivity=sensitivity)
        for precision, sensitivity in places
    ]
    drawn = " ".join(drawn_by(charts.constraint_handling, marked(points)).split())
    place = r"([\d.]+ [\d.]+)"
    (line,) = re.findall(rf'd="M {place} L {place} L {place} " clip-path[^>]*#d1242f', drawn)
    dots = re.findall(r'<use[^>]* x="([\d.]+)" y="([\d.]+)" style="fill: #009e73', drawn)
    in_panel = sorted(" ".join(each) for each in dots if float(each[0]) < 295)
    assert len(in_panel) == 4
    assert {*line} < {*in_panel}
    ((x, y),) = re.findall(r'<use[^>]* x="([\d.]+)" y="([\d.]+)" style="fill-opacity', drawn)[:1]
    assert f"{x} {y}" == line[0], "the star is at the only point of few changes"


def test_handlings_at_one_place_stand_side_by_side() -> None:
    def dots(drawn: str, colour: str) -> set[tuple[str, str]]:
        found = re.findall(r'<use[^>]*x="([\d.]+)" y="([\d.]+)"[^>]*' + re.escape(colour), drawn)
        return set(found)

    def places(**sensitivity: float) -> list[set[tuple[str, str]]]:
        drawn = drawn_by(charts.constraint_handling, made_points(**sensitivity))
        return [dots(drawn, f"fill: {colour}") for colour in ("#009e73", "#cc79a7")]

    hedge, qp = places(hedge=0.0, qp=0.0)
    assert len(hedge) == len(qp) == 5, "two step sizes for two goals, and the one in the margin"
    assert not hedge & qp
    assert {y for _, y in hedge} & {y for _, y in qp}


def test_nothing_is_selected_where_all_predictions_change() -> None:
    drawn = drawn_by(charts.constraint_handling, made_points(unconstrained=0.5))
    assert "ERAttack: none is selected. MSE attack: none is selected." in drawn
    assert "nothing to show" in drawn_by(charts.constraint_handling, [])


def test_a_handling_may_have_any_name() -> None:
    points = made_points(**{HOSTILE: 0.1, "$x_1$": 0.2, "gda": 0.3})
    drawn = drawn_by(charts.constraint_handling, points)
    root = ElementTree.fromstring(drawn)
    assert "script" not in {each.tag.split("}")[-1] for each in root.iter()}
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert HOSTILE in words
    assert "$x_1$" in words
    many = drawn_by(
        charts.constraint_handling, made_points(**{f"own {n}": n / 100 for n in range(12)})
    )
    assert "own 11" in many


def test_the_headline_says_what_was_gained() -> None:
    # At 0.25 half of what is lost at 1 is lost: of k = 2 reasons 0.70 and 0.69 of Vanilla's,
    # 0.30 and 0.29 of the best variant's.
    found = headline(made_rows())
    assert found.radius == 0.25
    assert [strip.displaced for strip in found.strips[:2]] == [
        pytest.approx(0.695),
        pytest.approx(0.295),
    ]
    assert "displaced on average 0.7 of the 2 reasons" in found.finding
    assert (
        "The steady network, trained with R2ET and chosen on validation data, lost 0.3, at an AUC "
        "of 0.8800 against 0.8800." in found.finding
    )
    assert [strip.label for strip in found.strips[:2]] == ["Ordinary network", "Steady network"]
    assert "left every predicted class as it was" in found.finding
    assert any("p < 0.001" in each for each in found.caveats)


def test_the_headline_names_the_method_that_was_chosen() -> None:
    # Ours loses half of 0.1 and of 0.09 at 0.25, hence 0.10 and 0.09 of k = 2 reasons.
    found = headline(made_rows(**OURS))
    assert "The steady network, trained with Steadfast and chosen" in found.finding
    assert found.strips[1].displaced == pytest.approx(0.095)
    assert "R2ET" not in " ".join([found.finding, *found.caveats, found.strips[1].label])
    rows = made_rows(seeds=3, **OURS)
    rows = [
        with_valid(row, precision=1.0) if row.seed == 2 and row.method == "r2et" else row
        for row in rows
    ]
    assert (
        "trained with Steadfast or R2ET and chosen on the validation data of each seed, lost"
        in headline(rows).finding
    )
    words = " ".join(Outline(page_of(rows)).words.split())
    assert "Best by validation Steadfast on seeds 0 and 1; R2ET on seed 2" in words


def test_the_page_speaks_of_the_methods_it_shows() -> None:
    told = {
        name: page_of(rows)
        for name, rows in {
            "r2et": made_rows(),
            "both": made_rows(**OURS),
            "ours": [row for row in made_rows(**OURS) if not row.method.startswith("r2et")],
        }.items()
    }
    assert {name for name, page in told.items() if "our own method" in page} == {"both", "ours"}
    assert {name for name, page in told.items() if "R2ET also widens" in page} == {"r2et", "both"}
    assert "R2ET" not in Outline(told["ours"]).words
    assert '<body class="ours">' in told["both"]
    assert "<body>" in told["r2et"]


@pytest.mark.parametrize(
    ("strong", "words"), [(0.3, "was no steadier"), (0.1, "was less steady: it lost 0.9")]
)
def test_the_headline_says_what_was_not_gained(strong: float, words: str) -> None:
    found = headline(made_rows(**{"r2et": strong, "r2et-mm": strong - 0.1}))
    assert words in found.finding
    assert "steady network" not in found.finding
    assert found.strips[1].label == "Chosen network"
    assert words in page_of(made_rows(**{"r2et": strong, "r2et-mm": strong - 0.1}))


def test_the_headline_names_what_speaks_against_it() -> None:
    rows = made_rows(seeds=1)
    for row in rows:
        if row.method == "r2et":
            row.measures.update({"distinct_sets": 1.0, "flippable": 0.5, "strong_changed": 0.1})
        if row.method == "linear":
            row.measures["clean_auc"] = 0.95
    found = headline(rows)
    assert "every predicted class" not in found.finding
    said = " ".join(found.caveats)
    assert "One seed only" in said
    assert "1 distinct set of reasons over the attacked decisions, against 10" in said
    assert "50.0\u00a0%, against 10.0\u00a0%" in said
    assert "at least as accurate as the steady network" in said


def test_a_difference_within_chance_is_called_so() -> None:
    rows = [
        made_row(method, seed, strong)
        for method, both in {"vanilla": (0.3, 0.5), "r2et": (0.6, 0.52)}.items()
        for seed, strong in enumerate(both)
    ]
    assert any("not clear of chance" in each for each in headline(rows).caveats)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([made_row("vanilla", 0)], "no network trained to be steady"),
        ([made_row("vanilla", 0), failed_row("r2et", 0)], "kept the accuracy asked for"),
        ([made_row("r2et", 0)], "no ordinary network"),
        ([made_row("vanilla", 0), made_row("r2et", 1)], "No seed has both"),
    ],
)
def test_the_headline_claims_nothing_without_a_pair(rows: list[dict[str, Any]], words: str) -> None:
    assert words in headline(rows).finding
    assert words in Outline(page_of(rows)).words


def test_failed_gates_are_shown_as_such() -> None:
    rows = [*made_rows(), failed_row("r2et-noh", 0), failed_row("r2et-noh", 1)]
    rows[-3] = failed_row("r2et-mm", 1)
    words = " ".join(Outline(page_of(rows)).words.split())
    assert "Nothing measured: no model above the AUC floor on seeds 0 and 1." in words
    assert "R2ET-mm ✕ no model above the AUC floor on seed 1" in words
    assert "none above the floor" in words
    assert "could not be trained" not in words


def test_a_seed_whose_vanilla_was_not_trained_is_told() -> None:
    rows = made_rows(**OURS)
    rows += [replace(failed_row(method, 2), floor=None) for method in (*METHODS, *OURS)]
    words = " ".join(Outline(page_of(rows)).words.split())
    assert "no AUC to keep on seed 2, as Vanilla could not be trained" in words
    assert "no floor: Vanilla could not be trained" in words
    assert "Left out, for want of two networks to compare: seed 2." in words
    assert "AUC floor on seed" not in words


def test_a_page_without_decisions_says_so() -> None:
    rows = [replace(row, decisions=()) for row in made_rows()]
    assert "told no single decisions" in Outline(page_of(rows)).words


def test_rows_without_any_measure_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one measured model"):
        page_of([failed_row("r2et", 0)])
    with pytest.raises(ValueError, match="at least one row"):
        page_of([])


def test_a_report_is_written_as_one_small_file(tmp_path: Path) -> None:
    rows = []
    for seed in range(5):
        for method in ("linear", "vanilla", "r2et-noh", "r2et-mm-noh", "r2et", "r2et-mm"):
            row = made_row(method, seed)
            scatter = replace(
                row.series.scatter,
                first_flip=tuple(10 * (number % 100) for number in range(400)),
                thickness=tuple(0.9 + number / 4000 for number in range(400)),
            )
            sides = {
                side: tuple(
                    FeatureShare(name=f"a long name: {side} {n}", share=0.1) for n in range(8)
                )
                for side in ("before", "after")
            }
            decisions = [
                replace(made_decision(number), values=8 * made_decision(0).values, **sides)
                for number in range(6)
            ]
            series = replace(row.series, scatter=scatter)
            rows.append(replace(row, series=series, decisions=tuple(decisions)))
    path = write_report(
        rows,
        tmp_path / "out" / "report.html",
        recipe_line="short",
        command="r2et run adult",
    )
    assert path == tmp_path / "out" / "report.html"
    assert path.stat().st_size < 1_500_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = made_rows()
    long = "a feature whose name is very long and_has_no_place_where_it_could_well_be_broken"
    told = with_first(made_decision(7), reason=long, value="age", after=6 * "0.123 Private + ")
    rows = [replace(row, decisions=(told, made_decision(3))) for row in rows]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_of(rows, command="r2et run " + 200 * "x"), encoding="utf-8")
    return path.as_uri()


SECTIONS = ("#finding", "#results", "#figures", "#decisions", "#notes", "#provenance")


def test_a_browser_shows_the_page_and_switches_decisions(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(address)
    assert all(page.locator(section).is_visible() for section in SECTIONS)

    def shown() -> list[tuple[str, str]]:
        panels = page.locator("article.decision .panel:visible")
        return [
            (
                panel.evaluate("panel => panel.closest('article').dataset.decision"),
                panel.get_attribute("data-method"),
            )
            for panel in panels.all()
        ]

    assert shown() == [("0", "vanilla"), ("0", "r2et")]
    page.get_by_role("button", name="2", exact=True).click()
    assert shown() == [("1", "vanilla"), ("1", "r2et")]
    page.select_option("#beside", "linear")
    assert shown() == [("1", "vanilla"), ("1", "linear")]
    page.emulate_media(media="print")
    assert len(shown()) == 8, "2 decisions of 4 methods"
    assert not page.locator(".controls").is_visible()
    assert troubles == []
    assert asked == [address]
    page.close()


@pytest.mark.parametrize("chosen", ["r2et", "steadfast", "steadfast-quick"])
def test_names_stay_inside_their_figure(browser: Any, tmp_path: Path, chosen: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(made_rows(**OURS | {chosen: 0.95})), encoding="utf-8")
    # The policy of the page would forbid the styles of a chart that is made a part of it.
    page = browser.new_page(viewport={"width": 390, "height": 844}, bypass_csp=True)
    page.goto(path.as_uri())
    over = page.evaluate(
        """[...document.querySelectorAll("img.chart")].flatMap(image => {
            const frame = image.parentElement.appendChild(document.createElement("div"));
            const bytes = Uint8Array.from(atob(image.src.split(",")[1]), each => each.charCodeAt());
            frame.innerHTML = new TextDecoder().decode(bytes);
            const edge = frame.querySelector("svg").getBoundingClientRect().right;
            const words = [...frame.querySelectorAll("text")];
            const found = words.map(text => text.getBoundingClientRect().right - edge);
            frame.remove();
            return found;
        })"""
    )
    assert len(over) > 40
    assert max(over) <= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone_needs_no_sideways_scrolling(browser: Any, address: str, scheme: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto(address)
    for number in (1, 2):
        page.get_by_role("button", name=str(number), exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#results .scroll").first
    assert box.evaluate("box => box.scrollWidth > box.clientWidth"), "the table scrolls by itself"
    page.close()


def test_everything_is_readable_without_javascript(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(address)
    assert all(page.locator(section).is_visible() for section in SECTIONS)
    assert page.locator(".panel:visible").count() == 8
    assert not page.locator(".controls").is_visible()
    context.close()


def test_alarms_and_what_a_change_buys_are_told() -> None:
    radii = Radii(attack=1.0, decision=1.0, flippable=0.1)
    rows = [replace(made_row("vanilla", seed), radii=radii) for seed in (0, 1)]
    text = page_of(rows)
    assert "Signs that an attack may have been blind" in text
    assert "Vanilla, seed 1: random points do more damage for 7% of the examples." in text
    assert "that buys: age: up by 5 years; fixed: gender." in text
    assert "took 1.0 to 1.0 points off the mean" in text
    assert "may have been blind" not in page_of(rows[:1])
