"""Numbers that a change of the code alone must leave, to the last digit."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "frozen"))

from keep import NUMBERS, machine, numbers

KEPT = json.loads(NUMBERS.read_text())
DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.slow
def test_what_is_frozen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    if machine() != KEPT["machine"]:
        pytest.skip(f"the last digits are those of {KEPT['machine']}, here is {machine()}")
    if "R2ET_DATA" not in os.environ:
        if not DATA.is_dir():
            pytest.skip("the pictures and networks are not on this machine")
        monkeypatch.setenv("R2ET_DATA", str(DATA))
    found = numbers()
    for part, values in found.items():
        assert values == KEPT[part], f"{part} changed"
    assert found.keys() | {"machine"} == KEPT.keys()
