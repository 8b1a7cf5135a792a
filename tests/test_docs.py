"""What the documents say exists, exists."""

import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from r2et.attacks import ATTACKS
from r2et.certification.layers import OPERATIONS
from r2et.data.builtin import DATASETS
from r2et.experiments.config import load_recipe
from r2et.explainers import EXPLAINERS
from r2et.methods import METHODS
from r2et.metrics import METRICS
from r2et.perturbations import PERTURBATIONS

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

from run_page import blocks_of, run  # noqa: E402

MAP = (ROOT / "docs" / "papers" / "map.md").read_text(encoding="utf-8")
ROWS = [line for line in MAP.splitlines() if line.startswith("|") and "::" in line]


def test_the_map_has_rows() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS)
def test_every_function_and_test_of_the_map_exists(row: str) -> None:
    code, proof = re.findall(r"`([^`]+)`", row)[-2:]
    module, _, name = f"r2et.{code}".rpartition(".")
    assert hasattr(import_module(module), name), f"{code} does not exist"
    file, _, test = proof.partition("::")
    assert f"def {test}(" in _test_file(file).read_text(encoding="utf-8")


def _test_file(name: str) -> Path:
    (path,) = (ROOT / "tests").rglob(name)
    return path


def test_local_links_of_the_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


STARTS = sorted((ROOT / "docs" / "start").glob("*.md"))
PAGES = [*STARTS, *sorted((ROOT / "docs" / "howto").glob("*.md"))]
REGISTRIES = (ATTACKS, DATASETS, EXPLAINERS, METHODS, METRICS, OPERATIONS, PERTURBATIONS)


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, marks=pytest.mark.slow) for page in STARTS),  # `make wheel` runs them
        *PAGES[len(STARTS) :],
        ROOT / "docs" / "guides" / "bands.md",
        ROOT / "docs" / "guides" / "contributions.md",
        ROOT / "docs" / "guides" / "stable-classifier.md",
        ROOT / "docs" / "guides" / "training.md",
        pytest.param(ROOT / "docs" / "guides" / "trees.md", marks=pytest.mark.slow),
    ],
    ids=lambda p: p.stem,
)
def test_the_python_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [dict(each) for each in REGISTRIES]
    assert blocks_of(page)
    try:
        run(page)
    finally:
        for registry, before in zip(REGISTRIES, kept, strict=True):
            registry.clear()
            registry.update(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert str(page.relative_to(ROOT / "docs")) in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_example_of_a_credit_officer_goes_from_a_file_to_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ROOT.parent / "shared" / "data" / "tables" / "uci_credit.csv.xz"
    if not whole.exists():
        pytest.skip("default of credit card clients is not beside the project")
    sample = pd.read_csv(whole).drop(columns="ID").sample(1500, random_state=0)
    sample.to_csv(tmp_path / "loans.csv", index=False)
    given = ["credit_officer.py", str(tmp_path / "loans.csv"), "Default", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", given)
    runpy.run_path(str(ROOT / "examples" / "credit_officer.py"))
    told = capsys.readouterr().out
    assert re.search(r"{'certified': \d+, 'broken': \d+, 'undetermined': 0}", told)
    assert "but:" in told
    assert (tmp_path / "out" / "audit.html").exists()


def test_the_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.sub(r"<!--.*?-->", "", readme).split()) <= 940


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    trees, classifier, own_loop = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    exec(compile(trees, "README.md", "exec"), {})
    assert "'undetermined': 0" in capsys.readouterr().out
    exec(compile(classifier, "README.md", "exec"), {})
    accuracy, reasons, share = capsys.readouterr().out.splitlines()
    assert float(accuracy) > 0.9
    assert reasons.count("(usual: ") == 3
    assert 0.3 < float(share) <= 1
    exec(compile(own_loop, "README.md", "exec"), {})
    share, radius = re.findall(r"0\.\d+|1\.", capsys.readouterr().out)
    assert 0.5 < float(share) <= 1
    assert 0 < float(radius) < 0.5


def test_the_example_of_the_attack_laboratory_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guides" / "attacks.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "attacks.md", "exec"), {})
    *curve, smallest = map(float, re.findall(r"\d+\.\d*", capsys.readouterr().out))
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] < 1
    assert 0 < smallest < 0.5


def test_the_example_of_the_page_on_pictures_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guides" / "images-and-graphs.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "pictures-and-networks.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["torch.Size([4, 784])", "True"]


def test_a_picture_of_full_size_is_explained_attacked_and_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = runpy.run_path(str(ROOT / "examples" / "full_size.py"))
    script["main"]([], size=(48, 96))
    told = capsys.readouterr().out
    assert "a drawn picture: (1, 48, 96)" in told
    assert len(re.findall(r"P@\d+ of \d+ is [01]\.\d+ after 10 steps", told)) == 2


def test_the_recipe_of_the_page_on_sweeps_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    file = tmp_path / "mine.toml"
    file.write_text(example, encoding="utf-8")
    recipe = load_recipe(str(file), "compas")
    assert recipe.datasets == ("adult", "compas")
    assert (recipe.least_steps, load_recipe(str(file), "adult").least_steps) == (6, 1)
    assert recipe.explainer.settings == {"samples": 20}
    assert len(recipe.methods[2].grid) == 4
