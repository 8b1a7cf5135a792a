"""What every page promises, whatever it shows."""

import base64
import hashlib
import re
from collections.abc import Callable

import pytest
from test_run_page import made_rows, page_of

from made_audit import made_audit
from made_story import made_comparison
from r2et.auditing.records import Audit
from r2et.report.audit_page import audit_html
from r2et.report.pages import length_down, length_up
from r2et.report.story_page import story_html

PAGES: dict[str, Callable[[], str]] = {
    "audit": lambda: audit_html(Audit.from_json(made_audit(3))),
    "run": lambda: page_of(made_rows()),
    "story": lambda: story_html(made_comparison()),
}
every_page = pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)


@every_page
def test_the_policy_admits_the_style_and_the_script_of_the_page(made: Callable[[], str]) -> None:
    text = made()
    for tag in ("style", "script"):
        [own] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in text
    assert "unsafe-inline" not in text


@every_page
def test_no_element_has_a_style_that_the_policy_forbids(made: Callable[[], str]) -> None:
    assert not re.findall(r"<[^>]* style=", made())


def test_lengths_are_rounded_to_the_safe_side() -> None:
    for value in (0.0999999, 0.1, 0.57, 1.2345, 12.0, 3e-7):
        assert float(length_down(value)) <= value + 1e-12
        assert float(length_up(value)) >= value - 1e-12
    assert length_down(0.0999999) == "0.0999"
