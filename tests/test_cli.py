"""The command line as a user meets it: what it prints, where, and how it refuses."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from r2et.cli import main
from r2et.data import load

TINY = """
line = "a tiny recipe for tests"
gate = 0.5
select_by = "er"
valid_examples = 20
[fit]
epochs = 1
batch = 512
[evaluation]
k = 4
examples = 30
decisions = 2
epsilons = [0.25]
record_every = 1
[evaluation.er]
steps = 3
step = 0.1
[evaluation.strong]
rounds = 2
starts = 1
steps = 2
points = 4
moves = 2
pairs = 1
sharpness = [4.0]
[[methods]]
name = "vanilla"
[[methods]]
name = "r2et-noh"
thickness = [0.1]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str | Path
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    monkeypatch.setattr(sys, "argv", ["r2et", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err


@pytest.fixture
def r2et(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    return lambda *words: call(monkeypatch, capsys, *words)


def test_run_prints_a_table_and_writes_everything(r2et, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("run", "compas", "--recipe", recipe, "--out", out, "--jobs", "1")
    code, shown, _ = r2et(*words)
    assert code == 0
    for label in ("Linear (control)", "Vanilla", "R2ET\\H", "Best R2ET by validation"):
        assert label in shown
    assert str(out / "report.html") in shown.replace("\n", "")
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows] == ["linear", "vanilla", "r2et-noh"]
    assert json.loads((out / "recipe.json").read_text())["evaluation"]["k"] == 4
    assert list((out / "models").rglob("*.safetensors"))

    # A second call finds everything done, and prints the rows as JSON and nothing else.
    code, shown, _ = r2et(*words, "--json")
    assert code == 0
    lines = json.loads(shown)
    assert [line["method"] for line in lines] == ["linear", "vanilla", "r2et-noh", "best"]
    assert len((out / "results.jsonl").read_text().splitlines()) == 3

    # The report is made again from the rows alone, after the models are gone.
    for model in (out / "models").rglob("*.safetensors"):
        model.unlink()
    (out / "report.html").unlink()
    code, shown, _ = r2et("report", out, "--json")
    assert code == 0
    assert json.loads(shown) == lines
    assert (out / "report.html").stat().st_size > 10_000


def test_more_seeds_add_rows_to_those_there(r2et, recipe: Path, tmp_path: Path) -> None:
    words = ("run", "compas", "--recipe", recipe, "--out", tmp_path / "out", "--jobs", "1")
    r2et(*words, "--json")
    first = (tmp_path / "out" / "results.jsonl").read_text()
    code, shown, _ = r2et(*words, "--seeds", "2", "--json")
    assert code == 0
    assert (tmp_path / "out" / "results.jsonl").read_text().startswith(first)
    assert all(line["seeds"] == [0, 1] for line in json.loads(shown))
    for asked, seeds in ((("--skip", "1"), [1]), (("--seeds", "1"), [0])):
        code, shown, _ = r2et("report", tmp_path / "out", *asked, "--json")
        assert code == 0
        assert all(line["seeds"] == seeds for line in json.loads(shown))
    code, _, err = r2et("report", tmp_path / "out", "--skip", "2")
    assert code == 2
    assert "no seed left" in err


def test_a_table_of_ones_own(r2et, recipe: Path, tmp_path: Path) -> None:
    dataset = load("compas")
    table = tmp_path / "own.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "age group", "priors", "stay", "sex", "verdict"])
        columns = {feature.name: number for number, feature in enumerate(dataset.features)}
        rows = zip(dataset.x[:600].tolist(), dataset.y[:600].tolist(), strict=True)
        for number, (values, label) in enumerate(rows):
            young = "young" if values[columns["age group: under 25"]] else "older"
            old = "old" if values[columns["age group: over 45"]] else young
            sex = "m" if values[columns["sex"]] else "f"
            counts = [values[columns["priors"]], values[columns["length of stay"]]]
            writer.writerow([f"id-{number}", old, *counts, sex, label])
    words = ("run", table, "--target", "verdict", "-k", "2", "--recipe", recipe, "--json")
    code, _, err = r2et(*words, "--out", tmp_path / "out", "--jobs", "1")
    assert code == 2
    assert "'id'" in err  # a word of its own in every row: an identifier
    code, shown, err = r2et(*words, "--drop", "id", "--out", tmp_path / "out", "--jobs", "1")
    assert code == 0, err
    assert json.loads(shown)[0]["method"] == "linear"


def test_list_names_everything_once(r2et) -> None:
    code, shown, _ = r2et("list", "--json")
    assert code == 0
    known = json.loads(shown)
    assert {"adult", "bank", "compas"} == set(known["data sets"])
    assert {"vanilla", "r2et", "r2et-noh", "r2et-mm", "r2et-mm-noh"} <= set(known["methods"])
    assert {"er", "mse", "strong"} <= set(known["attacks"])
    assert all(line for entries in known.values() for line in entries.values())
    code, shown, _ = r2et("list")
    assert code == 0
    for entries in known.values():
        for name in entries:
            assert name in shown


REFUSED = {
    "unknown data set": (("run", "adlt"), "did you mean 'adult'"),
    "unknown recipe": (("run", "adult", "--recipe", "papper"), "did you mean 'paper'"),
    "k too large": (("run", "compas", "-k", "16"), "k must lie in 1..15"),
    "k not positive": (("run", "compas", "-k", "0"), "k must lie in 1..15"),
    "no target named": (("run", "table.csv"), "--target"),
    "no such file": (("run", "table.csv", "--target", "y"), "table.csv"),
    "no rows to report": (("report", "nowhere"), "no results.jsonl"),
}


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    r2et, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown, err = r2et(*words)
    assert code == 2
    assert shown == ""
    assert says in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_misspelt_keys_are_refused_before_anything_is_trained(r2et, tmp_path: Path) -> None:
    for wrong, says in {
        "gat = 0.1\n": "did you mean 'gate'",
        "[fit]\nepoch = 3\n": "did you mean 'epochs'",
        "[evaluation.strong]\nround = 1\n": "did you mean 'rounds'",
        '[[methods]]\nname = "r2ett"\n': "did you mean 'r2et'",
        '[[methods]]\nname = "r2et"\nthicknes = 1.0\n': "thicknes",
        "gate = \n": "not valid TOML",
    }.items():
        path = tmp_path / "wrong.toml"
        base = 'line = "x"\n'
        vanilla = '[[methods]]\nname = "vanilla"\n'
        path.write_text(base + (vanilla + wrong if wrong.startswith("[[") else wrong + vanilla))
        code, _, err = r2et("run", "compas", "--recipe", path, "--out", tmp_path / "out")
        assert code == 2
        assert says in err
        assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_refused(r2et, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = r2et("run", "compas", "--recipe", recipe, "--out", tmp_path / "file" / "out")
    assert code == 2
    assert "cannot write" in err


def test_a_missing_target_column_names_the_nearest(r2et, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("age,income\n30,low\n40,high\n")
    code, _, err = r2et("run", table, "--target", "incom")
    assert code == 2
    assert "income" in err


def test_help_and_version(r2et) -> None:
    for words in (("--help",), ("run", "--help"), ("report", "--help"), ("list", "--help")):
        code, shown, _ = r2et(*words)
        assert code == 0
        assert "Usage" in shown
    code, shown, _ = r2et("--version")
    assert (code, shown.strip()) == (0, "0.1.0")


@pytest.mark.slow
def test_the_wheel_works_when_installed_elsewhere(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, root]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "place"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", place, wheel]
    subprocess.run(install, check=True, capture_output=True)
    script = (
        "import r2et, sys; from r2et.cli import main; print(r2et.__file__);"
        "sys.argv = ['r2et', 'list']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place)},
    )
    assert done.stdout.startswith(str(place))
    assert "48,842 rows" in done.stdout


def test_examples_run(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    table = tmp_path / "own.csv"
    generator = torch.Generator().manual_seed(0)
    lines = ["age,balance,job,default"]
    for age, balance, noise in torch.rand(400, 3, generator=generator).tolist():
        job = ("clerk", "farmer", "nurse")[int(3 * noise)]
        lines.append(f"{20 + int(50 * age)},{balance:.3f},{job},{int(age + noise > 1)}")
    table.write_text("\n".join(lines) + "\n")
    for words in (["own_loop.py"], ["own_table.py", str(table), "default"]):
        done = subprocess.run(
            [sys.executable, str(root / "examples" / words[0]), *words[1:]],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "%" in done.stdout
