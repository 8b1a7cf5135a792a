"""What every page is made with: one set of colours, one style sheet, one way to write numbers.

A page NAME is `templates/NAME.html`, which fills the blocks of `base.html`, with a style sheet and
a script of its name. It holds everything it shows, and its policy lets it ask nobody for anything.
"""

import base64
import hashlib
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["DARK", "LIGHT", "length_down", "length_up", "page_html", "percent", "share", "short"]

Colours = Mapping[str, str]

EVERYWHERE = {"red": "#d1242f", "orange": "#d98c00", "green": "#009e73", "pink": "#cc79a7"}
"""Colours that are readable on light and on dark pages."""
LIGHT: Colours = {
    **EVERYWHERE,
    "paper": "#ffffff",
    "panel": "#f6f8fa",
    "ink": "#1b2733",
    "muted": "#5d6b79",
    "rule": "#d3d9df",
    "open": "#b4bec8",
    "open-wash": "#eceff2",
    "accent": "#0072b2",
    "accent-wash": "#e8f2f9",
    "faint": "#7aaed0",
    "warn": "#c24f00",
    "warn-wash": "#fcefe5",
    "own": "#00795a",
    "own-wash": "#e5f3ee",
    "second": "#8a3ea8",
    "third": "#a06a00",
    "fourth": "#b3245f",
}
"""The colours of pages and charts, by what they are for; a wash is the ground of its colour."""
DARK: Colours = {
    **EVERYWHERE,
    "paper": "#11161c",
    "panel": "#1a2129",
    "ink": "#e4e9ee",
    "muted": "#9aa7b4",
    "rule": "#333e4a",
    "open": "#55626f",
    "open-wash": "#28313b",
    "accent": "#5db4ec",
    "accent-wash": "#16303f",
    "faint": "#3f7ca6",
    "warn": "#ff9a57",
    "warn-wash": "#3a2415",
    "own": "#45c79d",
    "own-wash": "#12322a",
    "second": "#cf95e8",
    "third": "#e0b050",
    "fourth": "#f58ab4",
}
PRINTED: Colours = {
    **LIGHT,
    "panel": "#ffffff",
    "ink": "#000000",
    "muted": "#444444",
    "rule": "#bbbbbb",
}
NOT_MEASURED = "not measured"
NBSP = "\u00a0"


def page_html(name: str, values: Mapping[str, object], like: str | None = None) -> str:
    """The page of a name, filled with the values, as one file that asks for no other.

    It looks `like` another page, where its own style sheet does not say otherwise.
    """
    sheets = ("base", *([like] if like else []), name)
    style = f"{_colour_sheet()}{''.join(_text(f'{each}.css') for each in sheets)}"
    script = _text(f"{name}.js")
    own = {"style": Markup(style), "script": Markup(script), "policy": _policy(style, script)}
    return _environment().get_template(f"{name}.html").render({**values, **own})


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda count: f"{count:,}",
        "share": share,
        "short": short,
        "down": length_down,
        "up": length_up,
        "percent": percent,
    }
    return environment


def _text(name: str) -> str:
    return (resources.files("r2et.report") / "templates" / name).read_text(encoding="utf-8")


def _colour_sheet() -> str:
    """The colours as variables of a style sheet, on screens, on dark ones, and on paper."""
    light, dark, printed = (
        f":root {{ {' '.join(f'--{name}: {value};' for name, value in colours.items())} }}\n"
        for colours in (LIGHT, DARK, PRINTED)
    )
    return f"{light}@media (prefers-color-scheme: dark) {{ {dark}}}\n@media print {{ {printed}}}\n"


def _policy(style: str, script: str) -> str:
    """What the browser may do with the page: run its one script, use its one style sheet."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def data_address(kind: str, content: bytes) -> str:
    """An address that holds what it leads to, so that a page asks nobody for it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def share(count: float, total: float) -> str:
    r"""A share in percent that never rounds a few to none or most to all.

    >>> share(62, 100), share(1, 5000), share(4999, 5000), share(0, 7), share(0, 0)
    ('62.0\xa0%', 'under 0.1\xa0%', 'over 99.9\xa0%', '0\xa0%', '–')
    """
    if not total:
        return "–"
    if count in (0, total):
        return f"100{NBSP}%" if count else f"0{NBSP}%"
    text = f"{100 * count / total:.1f}"
    return {"0.0": "under 0.1", "100.0": "over 99.9"}.get(text, text) + f"{NBSP}%"


def percent(value: float | None) -> str:
    r"""A share between 0 and 1 in percent; the page's script rounds alike.

    >>> percent(0.83125), percent(1.0), percent(None)
    ('83.1\xa0%', '100.0\xa0%', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{100 * value + 1e-9:.1f}{NBSP}%"


def _decimals(value: float) -> int:
    decimals, bound = 2, 1.0
    while abs(value) < bound and decimals < 12:
        bound, decimals = bound / 10, decimals + 1
    return decimals


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float | None) -> str:
    """A number with three digits that count.

    >>> short(0.70942), short(12.5), short(0.0000213), short(0)
    ('0.709', '12.5', '0.0000213', '0')
    """
    if value is None:
        return NOT_MEASURED
    value = float(f"{value:.3g}")
    return _fixed(value, _decimals(value)) if value else "0"


def length_down(value: float) -> str:
    """A proved length, never rounded up to more than was proved.

    >>> length_down(0.09999), length_down(0.57), length_down(0)
    ('0.0999', '0.57', '0')
    """
    scale = 10.0 ** _decimals(value)
    return _fixed(math.floor(value * scale + 1e-9) / scale, _decimals(value)) if value else "0"


def length_up(value: float) -> str:
    """The length of a change that was found, never rounded down to less than it took.

    >>> length_up(0.10001), length_up(0.57)
    ('0.101', '0.57')
    """
    scale = 10.0 ** _decimals(value)
    return _fixed(math.ceil(value * scale - 1e-9) / scale, _decimals(value)) if value else "0"
