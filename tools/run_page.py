"""Run the Python of pages of the documentation, page by page: run_page.py PAGE ..."""

import re
import sys
from pathlib import Path


def blocks_of(page: Path) -> list[str]:
    """The Python blocks of a page in their order, each at the lines it has there."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return ["\n" * text[: block.start(1)].count("\n") + block[1] for block in found]


def run(page: Path) -> dict[str, object]:
    """What the names of a page stand for after all of its blocks, run as one program."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        exec(compile(block, str(page), "exec"), names)
    return names


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(f"--- {given}", flush=True)
        run(Path(given))
