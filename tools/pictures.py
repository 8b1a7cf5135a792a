"""Make the pictures of the documents again: python tools/pictures.py, or `make pictures`.

Parts of three pages as a browser shows them: the report that `make run` ends with, an audit of the
ordinary network of that run, and one of boosted trees. What runs/ holds of them is not done again.
"""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, ImageOps

ROOT = Path(__file__).parents[1]
RUN, AUDIT = ROOT / "runs" / "adult-first-look", ROOT / "runs" / "audit-adult"
BOOSTED = ROOT / "runs" / "audit-boosted"
SHOWN = ROOT / "docs" / "pictures"
WIDTH = 1100  # of the browser's window: the pages' text and tables at their usual size
MARGIN = 16
SHARPNESS = 2  # dots for each point, for screens that have them
COLOURS = 96  # are enough for words and bars, and a third of the bytes


def r2et(*words: str | Path) -> None:
    """Give a command of r2et, which tells of its progress."""
    subprocess.run([sys.executable, "-m", "r2et", *map(str, words)], check=True)


def run_page() -> Path:
    """The report of a first look at census data."""
    r2et("run", "adult", "--recipe", "first-look", "--out", RUN)
    return RUN / "report.html"


def audit_page() -> Path:
    """The page of an audit of that run's ordinary network."""
    (model,) = (RUN / "models" / "adult-seed-0").glob("vanilla-*.safetensors")
    r2et("audit", "adult", "--model", model, "--explain", "slopes", "--rows", "40", "--out", AUDIT)
    return AUDIT / "audit.html"


def closest_decision() -> int:
    """The place in the list of the broken decision whose proof ends closest to its break."""
    told = json.loads((AUDIT / "audit.json").read_text(encoding="utf-8"))["decisions"]
    broken = {
        place: each["certified_radius"] / each["broken_radius"]
        for place, each in enumerate(told)
        if each["verdict"] == "broken"
    }
    return max(broken, key=lambda place: broken[place])


def boosted_page() -> Path:
    """The page of an audit of boosted trees: a year or an hour more or less."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier

    from r2et import audit, load
    from r2et.data.frames import to_frame

    dataset = load("adult")
    rows, y = to_frame(dataset)
    rows = rows.astype(dict.fromkeys(rows.select_dtypes(exclude="number"), "category"))
    split, classes = dataset.split(0), np.array(dataset.classes)
    learnt, tested = split.train.rows.numpy(), split.test.rows.numpy()
    model = HistGradientBoostingClassifier(max_iter=100, random_state=0)
    model.fit(rows.iloc[learnt], classes[y[learnt]])
    audit(
        {"boosted trees": model},
        rows.iloc[tested],
        k=3,
        tolerance={"age": 1, "hours per week": 1},
        reference=rows.iloc[learnt],
        only="declined",
        rows=80,
        out=BOOSTED,
    )
    return BOOSTED / "audit.html"


def weightiest_change() -> int:
    """The place in the list of the broken decision whose least reason weighs most."""
    told = json.loads((BOOSTED / "audit.json").read_text(encoding="utf-8"))["decisions"]
    broken = {
        place: min(reason["contribution"] for reason in each["reasons"])
        for place, each in enumerate(told)
        if each["verdict"] == "broken"
    }
    return max(broken, key=lambda place: broken[place])


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        sys.exit(
            "pictures.py: pages are shown by chromium through playwright: install chromium, and "
            "the test requirements by `pip install -e '.[test]'`."
        )
    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started.new_page(
            viewport={"width": WIDTH, "height": 900}, device_scale_factor=SHARPNESS
        )
        started.close()


def keep(element: Any, name: str) -> None:
    """Write what a browser shows of an element of a page, in few colours, with an even margin."""
    element.scroll_into_view_if_needed()
    taken = Image.open(io.BytesIO(element.screenshot())).convert("RGB")
    paper = Image.new("RGB", taken.size, "white")
    taken = taken.crop(ImageChops.difference(taken, paper).getbbox())
    framed = ImageOps.expand(taken, border=SHARPNESS * MARGIN, fill="white")
    path = SHOWN / name
    framed.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = f"{framed.width} x {framed.height}, {path.stat().st_size:,} bytes"
    print(f"{path.relative_to(ROOT)}: {size}", flush=True)


def main() -> None:
    """Make every picture."""
    SHOWN.mkdir(exist_ok=True)
    with browser() as page:
        page.goto(run_page().as_uri())
        keep(page.locator("header"), "report.png")
        keep(page.locator("article.decision.shown"), "decision.png")
        page.goto(audit_page().as_uri())
        line = page.locator("#list > li").nth(closest_decision())
        line.locator("summary").first.click()
        line.locator(".panel").wait_for()
        keep(line, "audit.png")
        page.goto(boosted_page().as_uri())
        line = page.locator("#list > li").nth(weightiest_change())
        line.locator("summary").first.click()
        keep(line, "boosted.png")


if __name__ == "__main__":
    main()
