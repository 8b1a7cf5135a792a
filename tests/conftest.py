"""Settings and fixtures shared by all tests."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# Small tensors gain nothing from a second thread, and lose much on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
