"""The page of an audit of reasons: what it promises, and in a browser."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import r2et
from r2et.auditing import ReasonAudit
from r2et.auditing.tables import Table
from r2et.report.reason_page import measures, typed_change, write_reason_page
from refusals import refusal


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> ReasonAudit:
    """Two networks of four numbers, some of whose decisions break."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 9, (40, 4), generator=draw).double()
    networks = {}
    for name, seed in (("one", 1), ("two", 2)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks[name] = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    rows = Table(
        x=x,
        names=["age", "hours", "debts", "rent"],
        subgroups={"half": ["first"] * 20 + ["second"] * 20},
        y=torch.arange(40) % 2,
        classes=("no", "yes"),
        name="people",
    )
    found = r2et.audit(
        networks,
        rows,
        k=2,
        tolerance={"age": 2, "hours": 1},
        reference_rows=6,
        protected=["rent"],
        out=tmp_path_factory.mktemp("audit"),
    )
    assert isinstance(found, ReasonAudit)
    assert found.counts["broken"] > 2
    assert found.counts["certified"] > 2
    return found


def test_the_policy_admits_nothing_but_its_own(audit: ReasonAudit) -> None:
    assert audit.page is not None
    text = audit.page.read_text(encoding="utf-8")
    for tag in ("style", "script"):
        [own] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in text
    assert "unsafe-inline" not in text
    assert not re.findall(r"<[^>]* style=", text)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)


def test_the_page_tells_all_that_was_found(audit: ReasonAudit) -> None:
    assert audit.page is not None
    text = audit.page.read_text(encoding="utf-8")
    for said in ("age: up or down by 2, in whole steps", "⚑ rent", "95&nbsp;% interval"):
        assert said in text
    for each in audit.decisions:
        assert f"Row {each.row}" in text
        if each.verdict == "broken":
            assert f"With {typed_change(each)} instead" in text
    shown = {each["name"]: each["values"] for each in measures(audit)}
    assert len(shown["Kappa"]) == 2
    broken = [f"{model.counts['broken']} (" for model in audit.models]
    assert all(shown["Broken"][at].startswith(broken[at]) for at in (0, 1))


def test_a_page_needs_a_place(audit: ReasonAudit, tmp_path: Path) -> None:
    from dataclasses import replace

    homeless = replace(audit, folder=None)
    assert "no folder" in refusal(lambda: write_reason_page(homeless))
    assert write_reason_page(homeless, tmp_path / "page.html").exists()


def test_decisions_are_filtered_in_a_browser(audit: ReasonAudit, browser: Any) -> None:
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda told: problems.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.goto(f"file://{audit.page}")

    def shown() -> list[str]:
        return page.locator("#list > li:visible").evaluate_all(
            "each => each.map(item => item.dataset.verdict + item.dataset.model)"
        )

    assert set(shown()) <= {"certified0", "broken0", "undetermined0"}
    assert len(shown()) == 40
    page.uncheck("input.verdict[value=certified]")
    assert set(shown()) == {"broken0"}
    page.select_option("#model", "1")
    assert set(shown()) == {"broken1"}
    row = next(each.row for each in audit.decisions if (each.model, each.verdict) == (1, "broken"))
    page.fill("#search", f"Row {row} ")
    page.locator("#list > li:visible summary").first.click()
    assert page.locator("#list > li:visible .panel").first.is_visible()
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert problems == []
    page.close()
