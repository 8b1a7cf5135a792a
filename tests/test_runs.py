import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from r2et.data import Dataset, load
from r2et.experiments.recipes import (
    Recipe,
    expand,
    load_recipe,
    nearest,
    recipe_from,
    recipe_names,
)
from r2et.experiments.runs import Progress, run
from r2et.files import read_rows
from r2et.objectives import METHODS
from refusals import refusal

TINY: dict[str, Any] = {
    "line": "as little as possible",
    "gate": 0.9,
    "valid_examples": 20,
    "hidden": [4],
    "fit": {"epochs": 1, "batch": 64},
    "evaluation": {
        "k": 4,
        "examples": 40,
        "decisions": 1,
        "epsilons": [0.5],
        "er": {"step": 0.2, "steps": 3},
        "strong": {"rounds": 1, "starts": 1, "steps": 1, "points": 3, "moves": 2, "pairs": 1},
    },
    "methods": [{"name": "vanilla"}, {"name": "r2et-noh", "thickness": [0.05, 0.1]}],
}
ROWS = [(0, "linear"), (0, "vanilla"), (0, "r2et-noh")]


def tiny(**changes: Any) -> Recipe:
    return recipe_from("tiny", {**TINY, **changes})


# --- recipes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("dataset", ["adult", "bank", "compas"])
def test_packaged_recipes_can_be_loaded(name: str, dataset: str) -> None:
    recipe = load_recipe(name, dataset)
    assert recipe.name == name
    assert recipe.line
    assert recipe.methods[0].name == "vanilla"
    assert recipe.evaluation.k < load(dataset).n
    assert {plan.name for plan in recipe.methods} <= METHODS.keys()


def test_there_are_the_recipes_that_are_spoken_of() -> None:
    assert {"converged", "paper"} <= set(recipe_names())


def test_a_recipe_is_filled_from_its_table() -> None:
    recipe = tiny(fit={"epochs": 7}, evaluation={"er": {"steps": 3}, "strong": {"points": 5}})
    assert recipe.fit.epochs == 7
    assert recipe.fit.batch == 1024  # what is not said has its default
    assert recipe.evaluation.er.steps == 3
    assert recipe.evaluation.er.radius == 1.0
    assert recipe.evaluation.strong.points == 5
    assert recipe.hidden == (4,)
    assert [plan.name for plan in recipe.methods] == ["vanilla", "r2et-noh"]
    assert recipe.methods[0].grid == ({},)
    assert recipe.methods[1].grid == ({"thickness": 0.05}, {"thickness": 0.1})
    hash((recipe.hidden, recipe.evaluation.epsilons, recipe.evaluation.strong.sharpness))


def test_a_grid_is_every_combination() -> None:
    grid = expand({"a": [1, 2], "b": "x", "c": [3, 4]})
    assert grid == tuple({"a": a, "b": "x", "c": c} for a in (1, 2) for c in (3, 4))
    assert expand({}) == ({},)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seads": 2}, ["recipe 'tiny'", "'seads'", "did you mean 'seeds'"]),
        ({"fit": {"epoch": 2}}, ["[fit]", "'epoch'", "did you mean 'epochs'"]),
        ({"evaluation": {"example": 2}}, ["[evaluation]", "did you mean 'examples'"]),
        ({"evaluation": {"er": {"setps": 2}}}, ["[evaluation.er]", "did you mean 'steps'"]),
        ({"evaluation": {"strong": {"point": 2}}}, ["[evaluation.strong]", "mean 'points'"]),
        ({"methods": [{"name": "vanila"}]}, ["'vanila'", "did you mean 'vanilla'"]),
        ({"methods": [{"thickness": 1.0}]}, ["unknown method"]),
        ({"methods": [*TINY["methods"], {"name": "r2et", "thicknes": 1}]}, ["'r2et'", "thicknes"]),
        ({"select_by": "stong"}, ["'stong'", "did you mean 'strong'"]),
        ({"activation": "leaky-rely"}, ["'leaky-rely'", "did you mean 'leaky-relu'"]),
        ({"fit": {"schedule": "cosin"}}, ["schedule", "'cosin'"]),
    ],
)
def test_a_misspelt_word_is_refused(changes: dict[str, Any], told: list[str]) -> None:
    message = refusal(lambda: tiny(**changes))
    for each in told:
        assert each in message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seeds": "two"}, "'seeds' must be a whole number, got 'two'"),
        ({"seeds": True}, "'seeds' must be a whole number, got True"),
        ({"seeds": 1.5}, "'seeds' must be a whole number, got 1.5"),
        ({"seeds": 0}, "seeds >= 1"),
        ({"gate": "low"}, "'gate' must be a number, got 'low'"),
        ({"line": 3}, "'line' must be a text, got 3"),
        ({"hidden": 32}, "'hidden' must be a list of which each is a whole number, got 32"),
        ({"hidden": [32, "x"]}, "'hidden' must be a list"),
        ({"hidden": [0]}, "layers of units"),
        ({"valid_examples": 1}, "valid_examples >= 2"),
        ({"fit": 3}, "[fit] of recipe 'tiny' must be a table"),
        ({"fit": {"epochs": "ten"}}, "'epochs' must be a whole number, got 'ten'"),
        ({"fit": {"epochs": 0}}, "epochs"),
        ({"fit": {"patience": "some"}}, "'patience' must be a whole number, got 'some'"),
        ({"evaluation": [1]}, "[evaluation] of recipe 'tiny' must be a table"),
        ({"evaluation": {"epsilons": 0.5}}, "'epsilons' must be a list of which each is a number"),
        ({"evaluation": {"examples": 0}}, "examples >= 2"),
        ({"evaluation": {"er": 7}}, "[evaluation.er] of recipe 'tiny' must be a table"),
        ({"evaluation": {"er": {"radius": -1.0}}}, "a budget needs radius >= 0"),
        ({"evaluation": {"strong": {"sharpness": ["x"]}}}, "'sharpness' must be a list"),
        ({"methods": "vanilla"}, "[[methods]]"),
        ({"methods": ["vanilla"]}, "[[methods]]"),
        ({"methods": []}, "must list 'vanilla' first"),
        ({"methods": [{"name": "r2et"}, {"name": "vanilla"}]}, "must list 'vanilla' first"),
        ({"methods": [{"name": "vanilla"}, {"name": "vanilla"}]}, "lists 'vanilla' twice"),
        ({"methods": [{"name": "vanilla"}, {"name": "r2et", "thickness": []}]}, "is empty"),
        ({"methods": [{"name": "vanilla", "thickness": 1.0}]}, "method 'vanilla'"),
    ],
)
def test_a_wrong_value_is_refused(changes: dict[str, Any], told: str) -> None:
    assert told in refusal(lambda: tiny(**changes))


def test_a_recipe_without_its_line_is_refused() -> None:
    table = {key: value for key, value in TINY.items() if key != "line"}
    message = refusal(lambda: recipe_from("tiny", table))
    assert "incomplete" in message
    assert "line" in message


def test_an_unknown_recipe_is_refused() -> None:
    message = refusal(lambda: load_recipe("convergd", "adult"))
    assert "unknown recipe 'convergd'" in message
    assert "did you mean 'converged'?" in message
    assert "paper" in message
    assert nearest("zzzzzz", ["alpha", "beta"]) == "Known: alpha, beta."


def test_a_recipe_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'line = "mine"\n[[methods]]\nname = "vanilla"\n'
        "[for.adult]\nseeds = 4\n[for.adult.fit]\nepochs = 3\n"
    )
    assert load_recipe(str(file), "bank").seeds == 1
    adult = load_recipe(str(file), "adult")
    assert (adult.name, adult.seeds, adult.fit.epochs) == ("mine", 4, 3)


@pytest.mark.parametrize("content", [b'line = "open', b"\xff\xfe", b"a = 1\na = 2\n", b"a = nul\n"])
def test_a_file_that_is_no_toml_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    assert "recipe 'mine' is not valid TOML" in refusal(lambda: load_recipe(str(file), "adult"))
    missing = str(tmp_path / "other.toml")
    assert missing in refusal(lambda: load_recipe(missing, "adult"))


def test_the_digest_changes_with_what_changes_a_row_only() -> None:
    recipe = tiny()
    same = [
        replace(recipe, seeds=9),
        replace(recipe, line="in other words"),
        tiny(methods=TINY["methods"][:1]),
        tiny(),
    ]
    assert {each.digest for each in same} == {recipe.digest}
    strong = replace(recipe.evaluation.strong, points=4)
    other = [
        replace(recipe, gate=0.5),
        replace(recipe, select_by="strong"),
        replace(recipe, valid_examples=21),
        replace(recipe, hidden=(5,)),
        replace(recipe, activation="tanh"),
        replace(recipe, fit=replace(recipe.fit, epochs=2)),
        replace(recipe, evaluation=replace(recipe.evaluation, k=5)),
        replace(recipe, evaluation=replace(recipe.evaluation, strong=strong)),
    ]
    digests = {each.digest for each in [recipe, *other]}
    assert len(digests) == len(other) + 1


# --- runs -------------------------------------------------------------------------------------


@cache
def compas() -> Dataset:
    whole = load("compas")
    return replace(whole, name="slice", x=whole.x[:300], y=whole.y[:300])


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a finished run, not to be changed, and its rows."""
    out = tmp_path_factory.mktemp("finished")
    return out, run(compas(), tiny(), seeds=1, out=out)


@pytest.fixture
def again(finished: tuple[Path, Any], tmp_path: Path) -> Iterator[Path]:
    """A copy of that folder."""
    out = tmp_path / "again"
    shutil.copytree(finished[0], out)
    yield out
    assert not list(out.rglob("*.tmp"))
    assert not list(out.rglob("*.checkpoint"))


def models(out: Path) -> dict[str, int]:
    """The models of a run and when each was written."""
    found = out.rglob("*.safetensors")
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in found}


def drop_rows(out: Path, *methods: str) -> None:
    """Take the rows of some methods out of the results."""
    file = out / "results.jsonl"
    kept = [row for row in read_rows(file) if row["method"] not in methods]
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))


def test_a_run_gives_a_row_for_each_method(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    out, rows = finished
    assert [(row["seed"], row["method"]) for row in rows] == ROWS
    assert sorted(rows, key=lambda row: row["key"]) == sorted(
        read_rows(out / "results.jsonl"), key=lambda row: row["key"]
    )
    assert len({row["key"] for row in rows}) == 3
    assert len(models(out)) == 3
    linear, vanilla, stable = rows
    for row in rows:
        assert row["passed"]
        assert (row["dataset"], row["recipe"], row["data"]) == ("slice", "tiny", compas().digest)
        assert row["floor"] == pytest.approx(vanilla["valid"]["auc"] - 0.9)
        assert row["examples"] == 40
        assert row["measures"]["strong precision@k"] <= row["measures"]["er precision@k"]
        json.dumps(row, allow_nan=False)
    assert linear["measures"]["strong precision@k"] == 1
    assert [row["label"] for row in rows] == ["Linear (control)", "Vanilla", "R2ET\\H"]
    assert [len(row["candidates"]) for row in rows] == [0, 1, 2]
    best = max(stable["candidates"], key=lambda candidate: candidate["precision"])
    assert stable["chosen"] == best["settings"]
    assert stable["valid"] == best
    assert vanilla["chosen"] == {}
    assert linear["chosen"] is None


def test_a_finished_run_is_not_done_again(
    finished: tuple[Path, list[dict[str, Any]]], again: Path
) -> None:
    written, results = models(again), (again / "results.jsonl").read_bytes()
    seen: list[Progress] = []
    assert run(compas(), tiny(), seeds=1, out=again, on_progress=seen.append) == finished[1]
    assert seen == []
    assert models(again) == written
    assert (again / "results.jsonl").read_bytes() == results


class Interrupted(Exception):
    """Stands for whatever ends a run early."""


@pytest.mark.parametrize("after", [1, 3, 4, 5])
def test_an_interrupted_run_goes_on(
    after: int, finished: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    def on_progress(progress: Progress) -> None:
        if progress.done == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(compas(), tiny(), seeds=1, out=tmp_path, on_progress=on_progress)
    measured = max(0, after - 3)
    early = read_rows(tmp_path / "results.jsonl")
    assert len(early) == measured
    written = models(tmp_path)
    assert len(written) == min(after, 3)
    seen: list[Progress] = []
    rows = run(compas(), tiny(), seeds=1, out=tmp_path, on_progress=seen.append)
    assert timeless(rows) == timeless(finished[1])
    assert len(read_rows(tmp_path / "results.jsonl")) == 3
    assert read_rows(tmp_path / "results.jsonl")[:measured] == early
    assert models(tmp_path).items() >= written.items()
    assert sum(each.what.startswith("measured") for each in seen) == 3 - measured


def test_progress_is_told(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(compas(), tiny(methods=TINY["methods"][:1]), seeds=1, out=tmp_path, on_progress=seen.append)
    assert [(each.done, each.total) for each in seen] == [(1, 3), (2, 3), (3, 3)]
    assert [each.what for each in seen] == [
        "trained Vanilla",
        "measured Linear (control)",
        "measured Vanilla",
    ]


def test_a_missing_row_is_measured_without_training(
    finished: tuple[Path, list[dict[str, Any]]], again: Path
) -> None:
    drop_rows(again, "r2et-noh")
    written = models(again)
    rows = run(compas(), tiny(), seeds=1, out=again)
    assert timeless(rows) == timeless(finished[1])
    assert rows[:2] == finished[1][:2]
    assert models(again) == written


def test_a_deleted_model_is_trained_again(
    finished: tuple[Path, list[dict[str, Any]]], again: Path
) -> None:
    drop_rows(again, "r2et-noh")
    written = models(again)
    lost = next(path for path in again.rglob("*.safetensors") if path.name.startswith("r2et-noh"))
    before = lost.read_bytes()
    lost.unlink()
    rows = run(compas(), tiny(), seeds=1, out=again)
    assert timeless(rows) == timeless(finished[1])
    assert lost.read_bytes() == before
    changed = {name for name, time in models(again).items() if written[name] != time}
    assert changed == {str(lost.relative_to(again))}


def test_a_damaged_model_is_refused_with_its_path(again: Path) -> None:
    drop_rows(again, "vanilla")
    file = next(path for path in again.rglob("*.safetensors") if path.name.startswith("vanilla"))
    file.write_bytes(file.read_bytes()[:100])
    assert str(file) in refusal(lambda: run(compas(), tiny(), seeds=1, out=again))


def test_a_row_cut_short_is_measured_again(
    finished: tuple[Path, list[dict[str, Any]]], again: Path
) -> None:
    results = again / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-200])
    rows = run(compas(), tiny(), seeds=1, out=again)
    assert timeless(rows) == timeless(finished[1])
    assert len(read_rows(results)) == 3


def test_more_seeds_extend_a_run(finished: tuple[Path, list[dict[str, Any]]], again: Path) -> None:
    written = models(again)
    seen: list[Progress] = []
    rows = run(compas(), tiny(), seeds=2, out=again, on_progress=seen.append)
    assert [(row["seed"], row["method"]) for row in rows] == [
        *ROWS,
        *((1, method) for _, method in ROWS),
    ]
    assert rows[:3] == finished[1]
    assert seen[-1].done == seen[-1].total == 6
    assert models(again).items() >= written.items()
    assert len(models(again)) == 6
    assert rows[4]["measures"] != rows[1]["measures"]
    assert run(compas(), tiny(), seeds=1, out=again) == finished[1]


def test_another_recipe_or_table_adds_rows_of_its_own(
    finished: tuple[Path, list[dict[str, Any]]], again: Path
) -> None:
    fewer = replace(compas(), x=compas().x[:290], y=compas().y[:290])
    other = tiny(fit={"epochs": 2, "batch": 64}, methods=TINY["methods"][:1])
    vanilla = tiny(methods=TINY["methods"][:1])
    for dataset, recipe, count in ((compas(), other, 5), (fewer, vanilla, 7)):
        rows = run(dataset, recipe, seeds=1, out=again)
        assert [row["method"] for row in rows] == ["linear", "vanilla"]
        assert len(read_rows(again / "results.jsonl")) == count
    # A method less is nothing new to do.
    assert run(compas(), vanilla, seeds=1, out=again) == finished[1][:2]
    assert len(read_rows(again / "results.jsonl")) == 7


def test_a_seed_without_an_able_model_says_so(tmp_path: Path) -> None:
    rows = run(compas(), tiny(gate=-1.0), seeds=1, out=tmp_path)
    assert [row["passed"] for row in rows] == [True, False, False]
    for row in rows[1:]:
        assert row["measures"] == {}
        assert row["chosen"] is None
        assert row["valid"] is None
        assert "decisions" not in row
        assert all(candidate["auc"] < row["floor"] for candidate in row["candidates"])
    assert len(rows[2]["candidates"]) == 2


def test_two_jobs_give_the_rows_of_one(
    finished: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    rows = run(compas(), tiny(), seeds=1, out=tmp_path, jobs=2)
    assert timeless(rows) == timeless(finished[1])
    assert len(read_rows(tmp_path / "results.jsonl")) == 3


def test_a_run_without_a_seed_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "at least one seed" in refusal(lambda: run(compas(), tiny(), seeds=0, out=tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    seen: list[Progress] = []
    message = refusal(
        lambda: run(
            compas(), tiny(), seeds=1, out=tmp_path / "file" / "run", on_progress=seen.append
        )
    )
    assert "cannot write" in message
    assert seen == []


def test_settings_for_one_data_set_replace_only_what_they_name(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'line = "x"\n[fit]\nepochs = 7\nlearning_rate = 0.5\n[for.bank.fit]\nepochs = 9\n'
        '[[methods]]\nname = "vanilla"\n'
    )
    assert load_recipe(str(path), "adult").fit.epochs == 7
    other = load_recipe(str(path), "bank").fit
    assert (other.epochs, other.learning_rate) == (9, 0.5)
