"""The command line as a user meets it: what it prints, where, and how it refuses."""

import contextlib
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from made_results import row_of
from r2et import __version__
from r2et.attacks.comparison import compare_handling
from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import ATTACKS
from r2et.cli import COMMANDS, main
from r2et.core.settings import changed
from r2et.data import load
from r2et.evaluation.results import append_results
from r2et.experiments import attack_run as laboratory
from r2et.experiments.config import load_recipe
from r2et.explainers import EXPLAINERS
from r2et.models import MODELS
from r2et.training.checkpoint import save

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
    for label in ("Linear (control)", "Vanilla", "R2ET\\H", "Best by validation"):
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


def test_the_table_says_whose_slopes_say_nothing_about_exchanges(r2et, tmp_path: Path) -> None:
    rows = [row_of(method, 0, kept=0.9) for method in ("vanilla", "r2et", "r2et-noh")]
    rows = [replace(row, decisions=()) for row in rows]
    rows[1].measures["exchange_agreement"] = 0.11
    del rows[2].measures["exchange_agreement"]  # there were too few to order
    append_results(tmp_path / "results.jsonl", rows)
    code, shown, err = r2et("report", tmp_path)
    assert code == 0, err
    words = " ".join(shown.split())
    assert "R2ET: These gradients say nothing about exchanges of categories" in words
    assert words.count("These gradients") == 1
    controls = shown.split("What would expose a hollow number")[1].splitlines()
    of = {line.split()[0]: line for line in reversed(controls) if line.strip()}
    assert "0.92" in of["Vanilla"]
    assert "–" not in of["Vanilla"]
    assert "–" in of["R2ET\\H"]
    for row in rows:
        for name in [each for each in row.measures if "exchange" in each]:
            del row.measures[name]
        del row.measures["off_data_share"]
    (tmp_path / "results.jsonl").unlink()
    append_results(tmp_path / "results.jsonl", rows)
    code, shown, err = r2et("report", tmp_path)
    assert code == 0, err
    assert "xchange" not in shown


def test_the_table_says_where_reasons_are_the_same_for_all(r2et, tmp_path: Path) -> None:
    rows = [row_of(method, seed, kept=0.9) for seed in (0, 1) for method in ("vanilla", "r2et")]
    rows = [replace(row, decisions=()) for row in rows]
    del rows[0].measures["strong_kappa"]
    append_results(tmp_path / "results.jsonl", rows)
    _, shown, _ = r2et("report", tmp_path)
    assert "Vanilla: Kappa strong is of 1 of 2 seeds; no individual reasons on others." in shown
    del rows[2].measures["strong_kappa"]
    (tmp_path / "results.jsonl").unlink()
    append_results(tmp_path / "results.jsonl", rows)
    code, shown, err = r2et("report", tmp_path)
    assert code == 0, err
    assert "Vanilla: no individual reasons." in shown


def test_a_run_of_the_papers_says_where_their_numbers_are(r2et, tmp_path: Path) -> None:
    append_results(tmp_path / "results.jsonl", [row_of(name, 0) for name in ("vanilla", "r2et")])
    recipe = asdict(load_recipe("paper", "adult"))
    for datasets, told in ((recipe["datasets"], True), (["bank"], False)):
        (tmp_path / "recipe.json").write_text(json.dumps({**recipe, "datasets": datasets}))
        code, shown, err = r2et("report", tmp_path)
        assert code == 0, err
        beside = f"r2et reproduce table-1 --only adult --rows {tmp_path}"
        assert (beside in shown) == told
    code, shown, err = r2et(*beside.split()[1:])
    assert code == 0, err
    assert "87.6" in shown, "as published for Vanilla"


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
    assert {"adult", "bank", "compas", "mnist", "cifar10", "oct", "abide"} <= set(
        known["data sets"]
    )
    assert {"vanilla", "r2et", "r2et-noh", "r2et-mm", "r2et-mm-noh"} <= set(known["methods"])
    assert {"er", "mse", "strong"} <= set(known["attacks"])
    assert known["explainers"].keys() == EXPLAINERS.keys()
    assert all(line for entries in known.values() for line in entries.values())
    code, shown, _ = r2et("list")
    assert code == 0
    for entries in known.values():
        for name in entries:
            assert name in shown


def test_sweep_ends_with_what_there_is(r2et, tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    recipe.write_text('datasets = ["compas", "bank"]\n' + TINY.replace("gate = 0.5", "gate = -1.0"))
    words = ("sweep", recipe, "--out", out, "--only", "compas", "--jobs", "1")
    code, shown, err = r2et(*words)
    assert code == 0, err
    *failed, last = shown.splitlines()
    assert last == f"3 rows, of which 2 failed the gate: {out / 'results.jsonl'}"
    assert [line.split(" kept")[0] for line in failed] == [
        "compas, seed 0: no model of Vanilla, none",
        "compas, seed 0: no model of R2ET\\H, none",
    ]
    assert "3/3" in err or "5/5" in err
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert sorted(row["method"] for row in rows) == ["linear", "r2et-noh", "vanilla"]
    assert all(row["recipe"] == "tiny" for row in rows)
    # Given again, it does nothing, and says the same.
    before = (out / "results.jsonl").read_bytes()
    assert r2et(*words) == (0, shown, "")
    assert (out / "results.jsonl").read_bytes() == before


def test_a_vanilla_that_cannot_be_trained_is_told(r2et, tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    wild = TINY.replace("[fit]", "[fit]\nlearning_rate = 1e30")
    recipe.write_text('datasets = ["compas"]\n' + wild)
    code, shown, err = r2et("run", "compas", "--recipe", recipe, "--out", out, "--jobs", "1")
    assert (code, shown) == (2, "")
    assert "the Vanilla network of seed 0 could not be trained" in err
    code, shown, _ = r2et("sweep", recipe, "--out", out, "--jobs", "1")
    assert code == 0
    assert "compas, seed 0: no model of R2ET\\H, Vanilla could not be trained." in shown
    assert "3 rows, of which 2 failed the gate" in shown


def test_a_stopped_sweep_says_how_to_go_on(
    r2et, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    recipe = tmp_path / "tiny.toml"
    recipe.write_text('datasets = ["compas"]\n' + TINY)
    monkeypatch.setattr("r2et.experiments.execution.sweep", stopped)
    monkeypatch.setattr("r2et.experiments.execution.run", stopped)
    for words in (
        ("sweep", str(recipe), "--out", str(tmp_path / "a b"), "--jobs", "1"),
        ("run", "compas", "--out", str(tmp_path / "a b")),
    ):
        code, shown, err = r2et(*words)
        assert (code, shown) == (130, "")
        assert err == (
            f"r2et: stopped; what is finished is kept. To go on: {shlex.join(['r2et', *words])}\n"
        )


def all_ended(group: int) -> bool:
    """Whether no process of a group is left, nor will be in a few seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "how"), [("1", "Ctrl-C"), ("2", "Ctrl-C"), ("2", "kill")])
def test_a_sweep_stopped_by_hand_ends_its_processes(tmp_path: Path, jobs: str, how: str) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    recipe.write_text('datasets = ["compas"]\nseeds = 30\n' + TINY)
    words = ["sweep", str(recipe), "--out", str(out), "--jobs", jobs]
    code = "import sys; from r2et.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        results = out / "results.jsonl"
        while not (results.exists() and results.read_text()):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        if how == "kill":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        shown, err = process.communicate(timeout=60)
        assert all_ended(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert shown == ""
    assert f"To go on: r2et {shlex.join(words)}" in err
    assert "Traceback" not in err
    for line in results.read_text().splitlines():
        json.loads(line)


REFUSED = {
    "unknown data set": (("run", "adlt"), "did you mean 'adult'"),
    "unknown recipe": (("run", "adult", "--recipe", "papper"), "did you mean 'paper'"),
    "k too large": (("run", "compas", "-k", "16"), "k must lie in 1..15"),
    "k not positive": (("run", "compas", "-k", "0"), "k must lie in 1..15"),
    "no such file": (("run", "table.csv", "--target", "y"), "table.csv"),
    "no rows to report": (("report", "nowhere"), "no results.jsonl"),
    "sweep without recipe": (("sweep", "papper"), "did you mean 'paper'"),
    "sweep without data": (("sweep", "converged"), "names no data sets"),
    "sweep of other data": (("sweep", "paper", "--only", "adlt"), "did you mean 'adult'"),
    "unknown backend": (("sweep", "paper", "--backend", "dsak"), "did you mean 'dask'"),
    "no address": (("sweep", "paper", "--backend", "dask"), "address of a scheduler"),
    "address of nothing": (("sweep", "paper", "--address", "tcp://x:1"), "--backend dask"),
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


def test_a_table_whose_target_nobody_named_is_refused(r2et, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x,y\n1,a\n2,b\n", encoding="utf-8")
    for command in ("run", "attack"):
        code, shown, err = r2et(command, table)
        assert (code, shown) == (2, "")
        assert "name the column of" in err
        assert "--target" in err


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


def test_a_run_whose_report_would_have_gaps_is_refused(r2et, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY.replace("k = 4", 'k = 4\nattacks = ["mse", "strong"]'))
    code, _, err = r2et("run", "compas", "--recipe", recipe, "--out", tmp_path / "out")
    assert code == 2
    assert "leaves out er" in err
    assert "r2et sweep" in err
    # Without applicants there is a report, and no decision is told.
    recipe.write_text(TINY.replace("k = 4", 'k = 4\nattacks = ["er", "strong"]'))
    words = ("run", "compas", "--recipe", recipe, "--out", tmp_path / "out", "--jobs", "1")
    code, _, err = r2et(*words)
    assert code == 0, err
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


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


# --- r2et attack ------------------------------------------------------------------------------

MINE = """
from torch import nn
def network(): return nn.Sequential(nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 2))
def narrow(): return nn.Linear(7, 2)
def shapeless(): return nn.Unflatten(1, (4, 4))
class Ramp(nn.Linear):
    def forward(self, x): return super().forward(x) + (x - x.detach()).cumsum(1)[:, -2:] * 9
def ramp(): return Ramp(16, 2)
class Smoothed(nn.Linear):
    def forward(self, x): return (super().forward(x + 1) + super().forward(x - 1)).tanh()
def smoothed(): return Smoothed(16, 2)
def fails(): raise OSError("no such weights")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file as a run on compas leaves it."""
    dataset, plan = load("compas"), {"inputs": 16, "classes": 2, "hidden": [8]}
    model = MODELS["mlp"].build(**plan, generator=torch.Generator().manual_seed(0))
    notes = {"model": {"name": "mlp", **plan}, "dataset": "compas", "data": dataset.digest}
    return save(tmp_path_factory.mktemp("saved") / "m.safetensors", model, {**notes, "seed": 0})


@pytest.fixture
def attack(r2et, saved: Path):
    """The command on the saved model, as little of it as possible."""
    words = ("attack", "compas", "--model", saved, "--examples", "5", "-k", "4", "--eps", "0.4")
    return lambda *more: r2et(*words, *more)


def strictly(text: str) -> Any:
    """The JSON of a text, which may hold no NaN and no infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_attack_prints_the_curve_and_what_would_expose_it(attack) -> None:
    code, shown, err = attack("--rounds", "1", "--eps", "0.1")
    assert code == 0, err
    lines = shown.splitlines()
    assert lines[0] == (
        "compas: strong attack on the top 4 features of grad (of the probability), 5 test examples"
    )
    table = [line.split() for line in lines if line.startswith("  ") and line.strip()]
    assert [row[0] for row in table] == ["epsilon", "0.1", "0.4"]
    for row in table[1:]:
        assert all(0 <= float(each) <= 100 for each in row[1:])
    assert float(table[2][1]) <= float(table[1][1])
    for part in (
        "P@4: of the top 4 before",
        "Smallest epsilon that breaks an example: lower quartile",
        "P@4 at epsilon 0.4 by each search: random points",
        "At epsilon 0.4, doubling the effort from 1 to 2 rounds changes",
        "AUC 0.",
        "among the examples",
        "Off-data share",
        "Exchange agreement 0.",
        "Exchange size 0.",
    ):
        assert part in shown
    assert max(map(len, lines)) < 200
    assert "by an l2 distance of epsilon" in shown
    assert "by an linf distance of epsilon" in attack("--rounds", "1", "--perturbation", "linf")[1]


def test_attack_tells_the_same_as_json(attack, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "rows.jsonl"
    words = ("--rounds", "1", "--perturbation", "actionable", "--eps", "1.5", "--out", out)
    code, shown, err = attack(*words, "--json")
    assert code == 0, err
    told = strictly(shown)
    assert told["data"] == "compas"
    assert told["examples"] == 5
    assert [line["epsilon"] for line in told["curve"]] == [0.4, 1.5]
    assert told["settings"]["perturbation"] == "actionable"
    assert told["doubling"]["rounds"] == 1
    assert any("priors" in line for line in told["an epsilon of 1 buys"])
    rows = [strictly(line) for line in out.read_text().splitlines()]
    assert len(rows) == 5
    mean = sum(row["attacked"][-1]["P@k"] for row in rows) / 5
    assert mean == pytest.approx(told["curve"][-1]["P@k"])
    assert list(out.parent.iterdir()) == [out]
    code, shown, _ = attack(*words)
    assert code == 0
    assert "Only what a person could change" in shown
    assert "An epsilon of 1 buys\n  priors: up by 2\n" in shown
    assert shown.endswith(f"The attacked examples: {out}\n")


def test_attack_states_the_explainer_and_its_noise(attack) -> None:
    words = ("--explainer", "smooth-grad", "--project-one-hot", "--of", "margin")
    code, shown, err = attack(*words, "--seconds", "0.05", "--noise", "fresh", "--examples", "2")
    assert code == 0, err
    assert "smooth-grad (of the margin, one-hot projected, fresh noise), 2 test examples" in shown
    assert "P@4, fresh noise, %" in shown
    assert "without any attack" in shown
    code, shown, _ = attack(*words, "--examples", "2", "--json")
    assert code == 0
    told = strictly(shown)
    assert told["fresh noise without attack"] is None
    assert "P@k, fresh noise" not in told["curve"][0]


def test_attack_by_a_walk_with_a_handler(attack, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(ATTACKS["er"], budget=WalkBudget(steps=20, step=0.02))
    monkeypatch.setitem(ATTACKS, "er", short)
    code, shown, err = attack("--attack", "er", "--handling", "hedge", "--examples", "99999")
    assert code == 0, err
    tests = len(load("compas").split(0).test)
    assert "er attack with hedge on the top 4 features" in shown
    assert f"{tests:,} test examples" in shown
    assert "The attack alone broke " in shown
    assert "each search" not in shown
    assert "doubling" not in shown


def test_attack_on_a_network_of_ones_own(
    r2et, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attacked_here.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ("attack", "compas", "--examples", "3", "--seconds", "0.05", "--eps", "0.4")
    code, shown, err = r2et(*words, "--model", "attacked_here:network")
    assert code == 0, err
    assert "3 test examples" in shown
    assert "Preflight" not in shown
    code, shown, err = r2et(*words, "--model", "attacked_here:smoothed")
    assert "Preflight: fixed noise: The same weights are asked at 2 fixed shifts of x." in shown
    for factory, says in {
        "narrow": "give one that takes inputs (B, 16)",
        "shapeless": "two or more classes",
        "ramp": "cannot be explained (false gradient)",
        "fails": "OSError: no such weights",
        "netwrok": "no attribute 'netwrok'",
    }.items():
        code, shown, err = r2et(*words, "--model", f"attacked_here:{factory}")
        assert (code, shown) == (2, "")
        assert says in err
        assert err.count("\n") == 1


def test_handlings_are_compared_and_drawn(attack, tmp_path: Path, monkeypatch) -> None:
    short = partial(compare_handling, budget=WalkBudget(steps=3))
    monkeypatch.setattr(laboratory, "compare_handling", short)
    figure = tmp_path / "h.svg"
    code, shown, err = attack("--compare-handling", figure)
    assert code == 0, err
    assert figure.read_text().lstrip().startswith(("<svg", "<?xml"))
    for name in CONSTRAINT_HANDLING:
        assert f"  {name} " in shown  # not cut short
    assert "selected" in shown
    assert f"The figure: {figure}" in shown
    code, shown, _ = attack("--compare-handling", figure, "--json")
    assert code == 0
    assert {point["handler"] for point in strictly(shown)} == set(CONSTRAINT_HANDLING)
    code, _, err = attack("--compare-handling", figure, "--out", tmp_path / "rows")
    assert code == 2
    assert "takes no --out" in err


WRONGLY_ATTACKED = {
    "unknown attack": (("--attack", "stong"), "did you mean 'strong'"),
    "unknown explainer": (("--explainer", "gard"), "did you mean 'grad'"),
    "unknown quantity": (("--of", "margn"), "did you mean 'margin'"),
    "unknown noise": (("--noise", "fesh"), "did you mean 'fresh'"),
    "noise of no explainer": (("--noise", "fresh"), "only smooth-grad"),
    "unknown set": (("--perturbation", "actionble"), "did you mean 'actionable'"),
    "no file of rules": (("--perturbation", "own.toml"), "no file of rules"),
    "unknown handling": (("--attack", "er", "--handling", "hegde"), "did you mean 'hedge'"),
    "handling of strong": (("--handling", "hedge"), "takes no --handling"),
    "rounds of a walk": (("--attack", "mse", "--rounds", "2"), "takes no --rounds"),
    "radius zero": (("--eps", "0"), "positive and finite"),
    "negative radius": (("--eps", "-1"), "positive and finite"),
    "no time": (("--seconds", "0"), "positive number of seconds"),
    "k too large": (("-k", "16"), "k must lie in 1..15"),
    "no such model": (("--model", "nowhere.safetensors"), "there is no model file"),
    "no such module": (("--model", "nowhere_at_all:net"), "No module named"),
    "weights alone": (("--weights", "w.safetensors"), "module:factory"),
    "out is a folder": (("--out", "."), "cannot write"),
    "handling and rounds": (("--compare-handling", "h.svg", "--rounds", "1"), "takes no --rounds"),
}


@pytest.mark.parametrize(("words", "says"), WRONGLY_ATTACKED.values(), ids=WRONGLY_ATTACKED)
def test_a_mistaken_attack_is_one_sentence_before_any_work(
    r2et,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for work in ("attack_model", "compared_handling"):
        monkeypatch.setattr(
            f"r2et.experiments.attack_run.{work}", lambda *_: pytest.fail("it began to attack")
        )
    monkeypatch.setattr(laboratory, "fitted", lambda *_: pytest.fail("it began to train"))
    code, shown, err = r2et("attack", "compas", *words)
    assert (code, shown) == (2, "")
    assert says in err
    assert err.startswith("r2et: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_attack_refuses_a_model_of_other_data_and_a_place_that_is_none(
    r2et, attack, saved: Path, tmp_path: Path
) -> None:
    code, _, err = r2et("attack", "bank", "--model", saved)
    assert code == 2
    assert "trained on compas, not on bank" in err
    (tmp_path / "file").write_text("in the way")
    code, shown, err = attack("--out", tmp_path / "file" / "rows.jsonl")
    assert (code, shown) == (2, "")
    assert "cannot write" in err
    assert (tmp_path / "file").read_text() == "in the way"


def test_attack_on_a_table_of_ones_own(
    r2et, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path
) -> None:
    monkeypatch.setattr(laboratory, "load_recipe", lambda *_: load_recipe(str(recipe), "own"))
    table = tmp_path / "own.csv"
    lines = [f"{20 + n % 47},{n * 7 % 13},{'ab'[n % 3 > 0]},{'ny'[n % 4 > 1]}" for n in range(80)]
    table.write_text("age,balance,job,default\n" + "\n".join(lines) + "\n")
    rules = tmp_path / "rules.toml"
    rules.write_text("[age]\nfixed = true\n")
    words = ("attack", table, "-k", "2", "--seconds", "0.05", "--eps", "0.5")
    code, shown, err = r2et(*words, "--target", "default", "--perturbation", rules)
    assert code == 0, err
    assert shown.startswith("own: strong attack on the top 2 features")
    assert "fixed: age" in shown
    code, _, err = r2et(*words)
    assert code == 2
    assert "--target" in err


def test_help_and_version(r2et) -> None:
    for command in ((), *((name,) for name in COMMANDS)):
        code, shown, _ = r2et(*command, "--help")
        assert code == 0
        assert "Usage" in shown
        assert "\N{FACTORY}" not in shown  # what markdown makes of a word between colons
    code, shown, _ = r2et("--version")
    assert (code, shown.strip()) == (0, __version__)


# --- faults -----------------------------------------------------------------------------------


def broken(*_: object, **__: object) -> None:
    raise KeyError("a\nfault")


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("fault-*.log"))


def test_a_fault_is_one_sentence_a_log_and_exit_code_3(
    r2et, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("r2et.cli.list_names.known_names", broken)
    code, shown, err = r2et("list")
    assert (code, shown) == (3, "")
    assert "Traceback" not in err
    [line] = err.splitlines()
    [log] = logs(tmp_path / "state" / "r2et")
    assert line.startswith("r2et: a fault of this program (KeyError: ")
    assert str(log) in line
    text = log.read_text()
    assert "Traceback" in text
    assert "\nr2et list\n" in text
    code, _, err = r2et("--debug", "list")
    assert code == 3
    assert "Traceback" in err


def test_the_log_is_in_the_output_folder(
    r2et, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("r2et.evaluation.results.read_results", broken)
    code, _, err = r2et("report", tmp_path)
    [log] = logs(tmp_path)
    assert code == 3
    assert str(log) in err
    # A folder that cannot be made is no reason to lose the traceback.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "aside"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "aside").mkdir()
    r2et("report", tmp_path / "nowhere")
    assert len(logs(tmp_path / "aside")) == 1


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (PermissionError(13, "Permission denied", "/x"), "cannot use /x: Permission denied"),
        (MemoryError(), "not enough memory"),
        (ValueError("two\nlines \x1b[2J"), "r2et: two lines  [2J\n"),
    ],
)
def test_what_can_be_expected_ends_with_exit_code_2(
    r2et, monkeypatch: pytest.MonkeyPatch, problem: Exception, says: str
) -> None:
    def refused() -> None:
        raise problem

    monkeypatch.setattr("r2et.cli.list_names.known_names", refused)
    code, _, err = r2et("list")
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1
    code, _, err = r2et("--debug", "list")
    assert code == 2
    assert "Traceback" in err


DAMAGED = {
    "no seed": ({"seed": None}, "'seed' must be a whole number, got None"),
    "no measures": ({"measures": {}}, "damaged or of another version (KeyError 'clean_auc')"),
    "a word for measures": ({"measures": "x"}, "'measures' must be a table of which each is"),
    "an unknown measure": ({"measures": {"clean_acu": 1.0}}, "there is no measure 'clean_acu'"),
    "candidates gone": ({"candidates": [None]}, "'candidates' must be a list of which each is"),
    "of an earlier version": ({"recipe digest": "0"}, "written by an earlier version of r2et"),
}


@pytest.mark.parametrize(("changes", "says"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_rows_are_refused(
    r2et, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    rows = [changed(row_of(method, 0)) | changes for method in ("linear", "vanilla", "r2et")]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = r2et("report", tmp_path)
    assert code == 2
    assert says in err


@pytest.mark.slow
def test_the_wheel_works_when_installed_elsewhere(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
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
