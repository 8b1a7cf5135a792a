"""Audits of slopes, which tables are asked for in these words."""

from typing import Any

import r2et
from r2et.auditing import Audit


def audit(*given: Any, **settings: Any) -> Audit:
    """What an audit of slopes finds."""
    found = r2et.audit(*given, explain="slopes", **settings)
    assert isinstance(found, Audit)
    return found
