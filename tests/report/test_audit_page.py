import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_run_page import Outline

from made_audit import EPSILONS, TOLERANCE, Audit, made_audit, verdict_at
from r2et.auditing.records import Audit as AuditRecord
from r2et.report import audit_page
from r2et.report.pages import length_down, length_up

HOSTILE = "<script>alert(1)</script>"
LINES = "#list > li > details"
SECTIONS = ("#finding", "#audited", "#curves", "#measures", "#swaps", "#decisions", "#notes")


def audit_html(audit: Audit) -> str:
    """The page of the audit that an `audit.json` of this content holds."""
    return audit_page.audit_html(AuditRecord.from_json(audit))


def stops(audit: Audit) -> list[float]:
    """Where the slider of its page stops."""
    return audit_page.stops(AuditRecord.from_json(audit))


def words_of(audit: Audit) -> str:
    """What a reader of the page sees, with one space between all words and cells."""
    return " ".join(Outline(audit_html(audit).replace("><", "> <")).words.split())


def packed_in(text: str) -> dict[str, Any]:
    """What the page hands to its script."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    loaded: dict[str, Any] = json.loads(found[0])
    return loaded


def spoilt(audit: Audit, word: str) -> Audit:
    """The audit with `word` wherever data or users choose the words."""
    audit["data"]["name"] = audit["data"]["target"] = audit["data"]["unit_of_eps"] = word
    audit["data"]["classes"][0] = audit["version"] = audit["hashes"]["data"] = word
    model = audit["models"][0]
    model["name"] = model["notes"][0] = model["preflight"][0]["problem"] = word
    model["swaps"][0]["left"] = model["subgroups"][0]["value"] = word
    for decision in audit["decisions"]:
        decision["id"] = decision["prediction"] = decision["label"] = word
        decision["subgroup"] = {word: word}
        decision["weakest"] = [word, word]
        decision["reasons"][0] |= {"feature": word, "value": word}
        if decision["counter_example"] is not None:
            decision["counter_example"]["changes"][0]["feature"] = word
            decision["counter_example"]["reasons"][0]["feature"] = word
            decision["left"] = [word]
    return audit


def test_the_head_says_what_the_audit_says() -> None:
    audit = made_audit(5000)
    words, counts = words_of(audit), audit["models"][0]["counts"]
    shares = {name: f"{count / 50:.1f} %" for name, count in counts.items()}
    assert sum(counts.values()) == 5000
    assert (
        f"Of 5,000 decisions, {shares['certified']} keep their 8 reasons under any change up to "
        f"0.1 (proved); for {shares['broken']} we show a change that replaces a reason; "
        f"{shares['undetermined']} are undetermined."
    ) in words
    for sign, name in zip("✓✕?", ("certified", "broken", "undetermined"), strict=True):
        assert f"{sign} {counts[name]:,} {name}, {shares[name]}" in words
    for said in (
        "5,000 decisions of credit.csv, 24 input features, target “decision”",
        "outcomes: refused, granted",
        "The 8 features to which the probability of the predicted outcome responds most",
        "A change of length 0.1, over all inputs together",
        "A length of 1 is: the whole range of a number",
        "So 0.1 is 10 % of that",
        "Held fixed age, gender",
        "“strong” attack, seed 0, up to a length of 0.5",
        "my-net 01f2a3b4c5d6",
        "data 0123456789ab, settings ba9876543210",
        "2026-11-16 08:00:00 UTC, r2et 0.1.0",
    ):
        assert said in words


def test_every_measure_is_the_number_of_its_model() -> None:
    audit = made_audit(400, models=2)
    words = words_of(audit)
    first, second = audit["models"]
    at = EPSILONS.index(TOLERANCE)
    shown: dict[str, Callable[[Audit], str]] = {
        "AUC": lambda model: f"{model['auc']:.4f}",
        "Accuracy": lambda model: f"{100 * model['accuracy']:.1f} %",
        "Certified": lambda model: (
            f"{model['counts']['certified']} ({model['counts']['certified'] / 4:.1f} %)"
        ),
        "Reasons kept within 0.1": lambda model: (
            f"{100 * model['curve']['certified_precision'][at]:.1f} % to "
            f"{100 * model['curve']['attacked_precision'][at]:.1f} %"
        ),
        "Median certified length": lambda model: length_down(model["median_certified_radius"]),
        "Median broken length": lambda model: length_up(model["median_broken_radius"]),
        "Distinct sets": lambda model: str(model["distinct_sets"]),
        "Ties": lambda model: "0",
        "Flippable": lambda model: f"{100 * model['flippable']:.1f} %",
        "Off-data share": lambda model: "9.0 %",
        "Exchange agreement": lambda model: "0.921",
        "Exchange size": lambda model: "0.815",
        "Thickness, mean": lambda model: f"{model['thickness']['mean']:.3f}",
        "Flips without its reasons (DFFOT)": lambda model: "0.213",
    }
    for name, show in shown.items():
        assert f"{name} {show(first)} {show(second)}" in words
    for model in audit["models"]:
        for each in model["swaps"][:5]:
            assert f"{each['left']} {each['entered']} {each['count']}" in words
        for each in model["subgroups"]:
            certified = f"{100 * each['certified'] / each['rows']:.1f} %"
            assert f"{each['group']}: {each['value']} {each['rows']} {certified}" in words


def test_the_page_is_well_formed_and_asks_for_nothing_else() -> None:
    for models in (1, 3):
        text = audit_html(made_audit(60, models=models))
        outline = Outline(text)
        assert text.startswith("<!DOCTYPE html>")
        assert len(outline.ids) == len(set(outline.ids))
        assert {section[1:] for section in SECTIONS} <= {*outline.ids}
        assert outline.tags.count("figure") == 1 + models
        assert all(address.startswith(("#", "data:")) for address in outline.addresses)
        assert "@import" not in text
        assert "url(" not in text
        assert "innerHTML" not in text
        assert {*re.findall(r"https?://[^\s\"'<]+", text)} == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("word", [HOSTILE, "</script>", "<!--<script>", "a\u2028b & \"c\" 'd'"])
def test_words_from_data_are_only_words(word: str) -> None:
    text = audit_html(spoilt(made_audit(30), word))
    outline = Outline(text)
    assert outline.tags.count("script") == 2, "the page's own, and its data"
    if "<" in word:
        assert text.count(word) == (2 if word == "</script>" else 0)
    assert word in outline.words
    packed = packed_in(text)
    assert packed["names"][0] == packed["values"][0] == packed["classes"][0] == word


def test_the_script_gets_all_that_the_audit_tells() -> None:
    audit = made_audit(200, models=2)
    packed = packed_in(audit_html(audit))
    names, values = packed["names"], packed["values"]

    def reasons(flat: list[Any]) -> list[tuple[str, str, str]]:
        return [
            (names[name], values[value], "for" if sign == "+" else "against")
            for sign, name, value in zip(flat[0], flat[1::3], flat[2::3], strict=True)
        ]

    assert len(packed["row"]) == 400
    for i, decision in enumerate(audit["decisions"]):
        assert packed["row"][i] == decision["row"]
        assert packed["proved"][i] == decision["certified_radius"]
        assert packed["broken"][i] == decision["broken_radius"]
        assert packed["classes"][packed["prediction"][i]] == decision["prediction"]
        told = [(each["feature"], each["value"], each["direction"]) for each in decision["reasons"]]
        assert reasons(packed["reasons"][i]) == told
        counter = decision["counter_example"]
        assert (packed["counter"][i] is None) == (counter is None)
        if counter is not None:
            flat = packed["counter"][i][3]
            assert [names[name] for name in packed["counter"][i][2]] == decision["entered"]
            assert [
                {"feature": names[name], "before": values[before], "after": values[after]}
                for name, before, after in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            ] == counter["changes"]


def test_the_slider_stops_at_every_audited_length() -> None:
    for tolerance, epsilons in ((0.1, EPSILONS), (0.0123, (0.001, 0.02)), (3.0, (0.5,))):
        audit = made_audit(1)
        audit["settings"] |= {"tolerance": tolerance, "epsilons": list(epsilons)}
        audit["models"][0]["curve"]["epsilons"] = list(epsilons)
        found = stops(audit)
        assert {tolerance, *epsilons} <= {*found}
        assert found == sorted(found)
        assert 50 <= len(found) <= 110
        assert found[0] > 0


def test_without_an_attack_nothing_is_called_broken() -> None:
    audit = made_audit(40, attack=False)
    words = words_of(audit)
    assert "as nobody searched for changes that replace a reason" in words
    assert "No counter-examples were searched for" in words
    assert "at most stay" not in words
    assert "at most (found)" not in words
    assert "we show a change" not in words


def test_what_is_missing_is_said_to_be_missing() -> None:
    audit = made_audit(20)
    audit["data"]["target"] = None
    audit["settings"]["project_one_hot"], audit["data"]["immutable"] = False, []
    audit["models"][0] |= dict.fromkeys(
        ("auc", "accuracy", "thickness", "faithfulness", "flippable", "off_data_share"), None
    )
    audit["models"][0] |= dict.fromkeys(("exchange_agreement", "exchange_size"), None)
    audit["models"][0] |= {"preflight": [], "notes": [], "swaps": [], "subgroups": []}
    for decision in audit["decisions"]:
        decision |= {"id": None, "label": None, "subgroup": {}}
    words = words_of(audit)
    assert words.count("not measured") == 9
    for absent in ("In the data", "target “", "project_one_", "Held fixed", "To know beforehand"):
        assert absent not in words
    assert "No reason was seen to leave." in words


def test_exchanges_are_shown_where_there_are_categories_only() -> None:
    audit = made_audit(5)
    [model] = audit["models"]
    model["exchange_agreement"] = model["exchange_size"] = None
    assert "Exchange agreement not measured" in words_of(audit)
    model["off_data_share"] = None
    assert "xchange" not in words_of(audit)


def test_reasons_that_can_never_change_are_told_so() -> None:
    audit = made_audit(5)
    for decision in audit["decisions"]:
        decision |= {
            "certified_radius": None,
            "certified_order_radius": None,
            "unbounded": True,
            "broken_radius": None,
            "counter_example": None,
            "verdict": "certified",
        }
    audit["models"][0] |= {"median_certified_radius": None, "median_broken_radius": None}
    words = words_of(audit)
    assert "Median certified length any length" in words
    assert "Median broken length none found" in words
    assert "these reasons stay under changes of any length" in words


def test_no_decisions_make_a_page_too() -> None:
    words = words_of(made_audit(0))
    assert "No decision was audited" in words
    assert "This audit tells no single decisions." in words


def test_a_selection_of_decisions_is_called_one() -> None:
    audit = made_audit(60)
    assert "the first of each verdict" not in words_of(audit)
    audit["data"]["rows"] = 40_000
    assert "This page tells 60 of the 40,000 decisions, the first of each verdict" in words_of(
        audit
    )


def test_other_files_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an audit of schema r2et-audit/2, got None"):
        audit_html({})
    with pytest.raises(ValueError, match="at least one audited model"):
        audit_html(made_audit(1) | {"models": []})
    nothing = made_audit(1)
    nothing["settings"]["tolerance"] = 0
    with pytest.raises(ValueError, match="must be positive, got 0"):
        audit_html(nothing)


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of an audit; it must ask for nothing and complain about nothing."""
    contexts, troubles, asked = [], [], []

    def opening(audit: Audit, *, width: int = 1400, **settings: Any) -> Any:
        record = AuditRecord.from_json(audit)
        address = audit_page.write_audit_page(record, tmp_path / "audit.html").as_uri()
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: asked.append(request.url != address))
        page.goto(address)
        return page

    yield opening
    for context in contexts:
        context.close()
    assert troubles == []
    assert not any(asked)


def listed(page: Any) -> list[int]:
    """The rows in the list, in order."""
    return [
        int(re.findall(r"\d+", text)[0]) for text in page.locator("#list .who").all_inner_texts()
    ]


def shown_count(page: Any) -> int:
    return int(page.locator("#status").inner_text().split(" ")[0].replace(",", ""))


def chip_counts(page: Any) -> dict[str, int]:
    texts = page.locator(".chip").all_inner_texts()
    return {text.split()[1]: int(text.split()[2].replace(",", "")) for text in texts}


def slide(page: Any, audit: Audit, length: float) -> None:
    page.locator("#length-2").evaluate(
        "(slider, place) => { slider.value = place; slider.dispatchEvent(new Event('input')); }",
        stops(audit).index(length),
    )


def has_reason(decision: Audit, part: str) -> bool:
    return any(
        part in name
        for name in [*(each["feature"] for each in decision["reasons"]), *decision["entered"]]
    )


def test_filters_show_the_decisions_that_fit(opened: Opened) -> None:
    audit = made_audit(250)
    told = audit["decisions"]
    page = opened(audit)
    assert chip_counts(page) == audit["models"][0]["counts"]
    assert shown_count(page) == 250
    assert listed(page) == [*range(100)]
    page.get_by_role("button", name="Next 100").first.click()
    page.get_by_role("button", name="Next 100").first.click()
    assert listed(page) == [*range(200, 250)]
    assert page.get_by_role("button", name="Next 100").first.is_disabled()

    page.locator(".chip.certified input").uncheck()
    page.locator(".chip.undetermined input").uncheck()
    broken = [each["row"] for each in told if each["verdict"] == "broken"]
    assert listed(page) == broken[:100]
    assert chip_counts(page) == audit["models"][0]["counts"]
    page.locator(".chip.certified input").check()
    page.locator(".chip.undetermined input").check()

    page.locator("#prediction").select_option("granted")
    granted = [each for each in told if each["prediction"] == "granted"]
    assert shown_count(page) == len(granted)
    page.locator("#group").select_option("housing: own")
    owners = [each for each in granted if each["subgroup"]["housing"] == "own"]
    assert listed(page) == [each["row"] for each in owners]
    counts = Counter(each["verdict"] for each in owners)
    assert chip_counts(page) == {name: counts[name] for name in chip_counts(page)}
    page.locator("#search").fill("Savings")
    assert listed(page) == [each["row"] for each in owners if has_reason(each, "savings")]
    page.locator("#prediction").select_option("any")
    page.locator("#group").select_option("all")
    page.locator("#search").fill("17")
    ids = [each["row"] for each in told if each["row"] == 17 or "17" in str(each["id"])]
    assert shown_count(page) == len(ids)
    page.locator("#search").fill("no such reason")
    assert page.locator("#list").inner_text() == "No decision fits these filters."
    assert shown_count(page) == 0


def test_the_list_is_sorted_by_each_number(opened: Opened) -> None:
    audit = made_audit(90)
    page = opened(audit)

    def by(key: Callable[[Audit], float | None], falling: bool) -> list[int]:
        found = [each for each in audit["decisions"] if key(each) is not None]
        rest = [each for each in audit["decisions"] if key(each) is None]
        ordered = sorted(found, key=lambda each: key(each) or 0.0, reverse=falling)
        return [each["row"] for each in ordered + rest]

    keys: dict[str, Callable[[Audit], float | None]] = {
        "probability": lambda each: each["probability"],
        "proved": lambda each: float("inf") if each["unbounded"] else each["certified_radius"],
        "broken": lambda each: each["broken_radius"],
    }
    for name, key in keys.items():
        for falling in (False, True):
            page.locator("#sort").select_option(f"-{name}" if falling else name)
            assert listed(page) == by(key, falling), (name, falling)
    page.locator("#sort").select_option("row")
    assert listed(page) == [*range(90)]


def test_the_slider_judges_all_decisions_anew(opened: Opened) -> None:
    audit = made_audit(300)
    page = opened(audit)
    mark = page.locator("#curves .mark").first
    places = []
    for length in (0.05, 0.125, 0.25, 0.5, 0.005, TOLERANCE):
        slide(page, audit, length)
        counts = Counter(verdict_at(each, length) for each in audit["decisions"])
        assert chip_counts(page) == {name: counts[name] for name in chip_counts(page)}, length
        badges = page.locator("#list .badge").all_inner_texts()
        wanted = [verdict_at(each, length) for each in audit["decisions"][:100]]
        assert [badge.split()[-1] for badge in badges] == wanted
        said = page.locator(".at").inner_text().replace("\u00a0", " ")
        assert f"Within {length:g}: " in said
        assert f"{counts['certified'] / 3:.1f} % certified" in said or counts["certified"] == 300
        assert page.locator("#length-1").get_attribute("aria-valuetext").startswith(f"{length:g}")
        places.append(float(mark.get_attribute("x1").removesuffix("%")))
    assert places[4] < places[0] < places[5] < places[1] < places[2] < places[3]
    page.locator("#length-1").focus()
    page.keyboard.press("ArrowRight")
    following = stops(audit)[stops(audit).index(TOLERANCE) + 1]
    assert page.locator(".looked output").all_inner_texts() == [f"{following:g}"] * 2
    counts = Counter(verdict_at(each, following) for each in audit["decisions"])
    assert chip_counts(page) == {name: counts[name] for name in chip_counts(page)}
    page.get_by_role("button", name="Back to 0.1").first.click()
    assert chip_counts(page) == audit["models"][0]["counts"]


def test_the_slider_keeps_filters_and_what_is_open(opened: Opened) -> None:
    audit = made_audit(60)
    page = opened(audit)
    for name in ("certified", "undetermined"):
        page.locator(f".chip.{name} input").uncheck()
    slide(page, audit, 0.25)
    broken = [each["row"] for each in audit["decisions"] if verdict_at(each, 0.25) == "broken"]
    assert listed(page) == broken
    page.locator("#list summary").first.click()
    slide(page, audit, 0.5)
    assert page.locator(f"{LINES}[open]").count() == 1
    assert page.locator(f"{LINES}[open] .who").inner_text().startswith(f"Row {broken[0]}")


def test_a_decision_opens_from_the_keyboard(opened: Opened) -> None:
    audit = made_audit(60)
    decision = next(each for each in audit["decisions"] if each["counter_example"] is not None)
    counter = decision["counter_example"]
    page = opened(audit)
    summary = page.locator(f"{LINES} > summary").nth(decision["row"])
    summary.focus()
    page.keyboard.press("Enter")
    panel = page.locator(f"{LINES}[open] .panel")
    panel.wait_for()
    lists = panel.locator(".ranked")
    for place, reasons in enumerate((decision["reasons"], counter["reasons"])):
        texts = lists.nth(place).locator(".reason").all_inner_texts()
        assert texts == [f"{each['feature']} {each['value']}" for each in reasons]
        sides = lists.nth(place).locator(".side").all_inner_texts()
        assert [side.split()[0] for side in sides] == [each["direction"] for each in reasons]
    assert "✕ leaves" in lists.nth(0).locator("li").nth(7).inner_text()
    assert "✚ enters" in lists.nth(1).locator(".moved").inner_text()
    assert lists.nth(1).locator(".moved .reason").inner_text().startswith(decision["entered"][0])
    words = panel.inner_text().replace("\u00a0", " ")
    for said in (
        f"these reasons stay up to {length_down(decision['certified_radius'])}",
        f"stays up to {length_down(decision['certified_order_radius'])}",
        f"{decision['weakest'][0]} may be the first to give way, to {decision['weakest'][1]}",
        f"Length {length_up(decision['broken_radius'])}. "
        f"The prediction stays {decision['prediction']}: "
        f"{100 * decision['probability']:.1f} % → {100 * counter['probability']:.1f} %.",
    ):
        assert said in words
    changes = [f"{e['feature']}\t{e['before']} → {e['after']}" for e in counter["changes"]]
    assert panel.locator("tr", has_text="→").all_inner_texts()[:8] == changes[:8]
    panel.locator(".more summary").click()
    assert panel.locator("tr", has_text="→").all_inner_texts() == changes
    page.keyboard.press("Enter")
    summary.click()
    assert not panel.is_visible()


def test_each_model_has_its_own_decisions(opened: Opened) -> None:
    audit = made_audit(30, models=2)
    page = opened(audit)
    assert chip_counts(page) == audit["models"][0]["counts"]
    page.locator("#model").select_option("steady-net")
    assert chip_counts(page) == audit["models"][1]["counts"]
    assert listed(page) == [*range(30)]
    page.locator("#list summary").first.click()
    assert page.locator("#list .facts dd").first.inner_text() == "steady-net"


def test_hostile_words_stay_words_in_the_browser(opened: Opened) -> None:
    page = opened(spoilt(made_audit(30), HOSTILE))
    page.on("dialog", lambda dialog: pytest.fail("a script of the data ran"))
    page.locator("#list summary").first.click()
    assert page.locator("#list .reason").first.inner_text() == f"{HOSTILE} {HOSTILE}"
    assert page.locator("script").count() == 2
    page.locator("#group").select_option(f"{HOSTILE}: {HOSTILE}")
    page.locator("#search").fill(HOSTILE)
    assert shown_count(page) == 30


def test_five_thousand_decisions_are_soon_there(opened: Opened, tmp_path: Path) -> None:
    audit = made_audit(5000)
    page = opened(audit)
    assert (tmp_path / "audit.html").stat().st_size < 5_000_000
    started = time.perf_counter()
    page.reload()
    page.locator("#list summary line").first.wait_for(state="attached")
    assert shown_count(page) == 5000
    assert page.locator("#list > li").count() == 100
    assert time.perf_counter() - started < 3
    started = time.perf_counter()
    slide(page, audit, 0.25)
    counts = Counter(verdict_at(each, 0.25) for each in audit["decisions"])
    assert chip_counts(page) == {name: counts[name] for name in chip_counts(page)}
    assert time.perf_counter() - started < 3


def summaries_and_panels(page: Any) -> list[str]:
    """All that the first fifty decisions say, open or not, without spaces."""
    texts = page.locator(LINES).evaluate_all(
        "all => all.slice(0, 50).map(each => each.textContent)"
    )
    return ["".join(text.split()) for text in texts]


@pytest.mark.parametrize("settings", [{"models": 2}, {"attack": False}, {"k": 1}])
def test_without_javascript_the_page_says_the_same(opened: Opened, settings: Any) -> None:
    audit = made_audit(70, **settings)
    plain = opened(audit, java_script_enabled=False)
    for section in SECTIONS:
        assert plain.locator(section).is_visible()
    assert plain.locator("#curves img.chart").count() == 1 + len(audit["models"])
    for hidden in (".controls", ".pages", "#printing"):
        assert not any(each.is_visible() for each in plain.locator(hidden).all())
    assert "first 50 of" in plain.locator("#static").inner_text()
    assert plain.locator("#list > li").count() == 50
    plain.locator(f"{LINES} > summary").nth(3).click()
    plain.locator("#list .panel").nth(3).wait_for()
    lively = opened(audit)
    lively.emulate_media(media="print")
    lively.locator("#list .panel").nth(49).wait_for()
    assert not lively.locator("#static").is_visible()
    assert summaries_and_panels(lively) == summaries_and_panels(plain)


@pytest.mark.parametrize("scripted", [True, False])
def test_paper_is_white_and_shows_decisions_open(opened: Opened, scripted: bool) -> None:
    page = opened(made_audit(130), color_scheme="dark", java_script_enabled=scripted)
    page.emulate_media(media="print")
    page.locator("#list .panel").last.wait_for()
    panels = page.locator("#list .panel")
    assert panels.count() == (100 if scripted else 50)
    heights = panels.evaluate_all("all => all.map(each => each.getBoundingClientRect().height)")
    assert min(heights) > 100
    assert not any(each.is_visible() for each in page.locator(".controls, button").all())
    if scripted:
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(255, 255, 255)"
        page.emulate_media(media="screen", color_scheme="dark")
        page.locator(f"{LINES}[open]").first.wait_for(state="detached")
        assert page.evaluate(background) != "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scripted", [True, False])
def test_nothing_sticks_out_sideways(opened: Opened, width: int, scripted: bool) -> None:
    audit = made_audit(40, models=2)
    long = "a feature whose name is very long and_has_no_place_where_it_could_well_be_broken_at_all"
    page = opened(spoilt(audit, long), width=width, java_script_enabled=scripted)
    for place in range(4):
        page.locator(f"{LINES} > summary").nth(place).click()
    page.locator("#list .panel").nth(3).wait_for()
    assert page.locator("html").evaluate("page => page.scrollWidth") <= width


def test_a_page_without_decisions_or_attack_works(opened: Opened) -> None:
    page = opened(made_audit(0))
    assert page.locator("#finding").inner_text().startswith("No decision was audited")
    assert not page.locator(".controls").first.is_visible()
    audit = made_audit(20, attack=False)
    page = opened(audit)
    slide(page, audit, 0.5)
    assert chip_counts(page)["broken"] == 0
