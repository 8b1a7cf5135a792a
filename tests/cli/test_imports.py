"""What importing the package, and asking the command line for help, does not import."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import r2et

HEAVY = {
    "distributed",
    "jinja2",
    "joblib",
    "lightning_fabric",
    "matplotlib",
    "pandas",
    "scipy.stats",
    "sklearn",
    "torch",
}
CODE = """
import json, runpy, sys
sys.argv = ["r2et", *sys.argv[1:]]
try:
    import r2et
    if sys.argv[1:]:
        runpy.run_module("r2et", run_name="__main__")
except SystemExit as ended:
    print(ended.code, file=sys.stderr)
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported(*words: str, cwd: Path | None = None) -> tuple[set[str], str]:
    """The modules that a process has imported at its end, and what it said before."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words], capture_output=True, text=True, cwd=cwd
    )
    *said, modules = done.stderr.splitlines()
    return set(json.loads(modules)), "\n".join(said)


@pytest.mark.parametrize("words", [(), ("--help",), ("audit", "--help"), ("--version",)])
def test_nothing_heavy_is_imported_before_it_is_needed(words: tuple[str, ...]) -> None:
    assert not imported(*words)[0] & HEAVY


def test_a_part_imports_no_more_than_it_needs() -> None:
    code = (
        "import json, sys, r2et.attacks, r2et.certification, r2et.data, r2et.experiments.execution;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout)) & (HEAVY - {"torch"})


@pytest.mark.parametrize(
    "words",
    [
        ("audit", "missing.csv", "--model", "x.pt2"),
        ("run", "missing.csv", "--target", "y"),
        ("attack", "missing.csv", "--target", "y"),
        ("sweep", "missing.toml"),
    ],
)
def test_a_file_that_is_not_there_is_refused_at_once(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    modules, said = imported(*words, cwd=tmp_path)
    assert not modules & HEAVY
    assert said.startswith("r2et: there is no ")
    assert "missing" in said
    assert said.endswith("\n2")


def test_every_public_name_is_there_and_typed() -> None:
    source = ast.parse(Path(r2et.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in source.body if isinstance(node, ast.If)]
    typed = {
        name.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert typed == {name: f"r2et.{where}" for name, where in r2et.WHERE.items()}
    for name in r2et.__all__:
        assert getattr(r2et, name) is getattr(import_module(typed[name]), name)
    for name in r2et.PARTS:
        assert getattr(r2et, name) is import_module(f"r2et.{name}")
    assert {*r2et.__all__, *r2et.PARTS} <= {*dir(r2et)}
    with pytest.raises(AttributeError, match="no attribute 'adutt'"):
        _ = r2et.adutt
