import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget
from r2et.core.files import read_rows
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.core.settings import changed
from r2et.data import Dataset, load
from r2et.evaluation.protocol import (
    EvaluationSettings,
)
from r2et.evaluation.results import Result, read_results
from r2et.experiments import runner as runs
from r2et.experiments.config import (
    ExplainerPlan,
    MethodPlan,
    Recipe,
    expand,
    load_recipe,
    nearest,
    recipe_from,
    recipe_names,
)
from r2et.experiments.execution import Progress, run
from r2et.experiments.runner import (
    Work,
    code_digest,
    fitted,
    judged,
    network_plan,
    together,
    train_unit,
    trained,
    unit_print,
)
from r2et.explainers import gradient
from r2et.methods import METHODS, Method, MethodEntry
from r2et.metrics.statistics import auc
from r2et.models import build
from r2et.models.smoothing import with_softplus
from r2et.training import checkpoint
from r2et.training.settings import Candidate
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


OF_OTHERS = {
    "first-look", "pictures", "networks", "paper-k10", "paper-k30", "paper-k100", "paper-each-step",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*recipe_names()} - OF_OTHERS))
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


def test_a_first_look_tries_every_method_with_settings_of_the_whole_run() -> None:
    brief, whole = (load_recipe(name, "adult") for name in ("first-look", "converged"))
    assert [plan.name for plan in brief.methods] == [plan.name for plan in whole.methods]
    for few, all_of_them in zip(brief.methods, whole.methods, strict=True):
        assert all(settings in all_of_them.grid for settings in few.grid)
    assert (brief.fit, brief.gate, brief.seeds) == (whole.fit, whole.gate, whole.seeds)
    assert brief.evaluation.strong == whole.evaluation.strong


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
        ({"schema": "retrian"}, ["'retrian'", "did you mean 'retrain'"]),
        ({"explainer": {"name": "smoothgrad"}}, ["[explainer]", "did you mean 'smooth-grad'"]),
        ({"explainer": {"name": "smooth-grad", "sample": 3}}, ["mean 'samples'"]),
        ({"explainer": {"of": "margn"}}, ["[explainer]", "'margn'"]),
        ({"evaluation": {"attacks": ["er", "stong"]}}, ["'stong'", "did you mean 'strong'"]),
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
        ({"evaluation": {"attacks": []}}, "one or more attacks"),
        ({"evaluation": {"attacks": ["er", "er"]}}, "each named once"),
        ({"evaluation": {"project_one_hot": 1}}, "'project_one_hot' must be true or false, got 1"),
        ({"evaluation": {"project_one_hot": True, "attacks": ["er"]}}, "about the strong attack"),
        ({"datasets": "adult"}, "'datasets' must be a list of which each is a text"),
        ({"datasets": ["adult", "adult"]}, "names each data set once"),
        ({"retrain_epochs": 0}, "retrain_epochs >= 1"),
        ({"least_ranking": 1.5}, "least_ranking in 0..1"),
        ({"explainer": "grad"}, "[explainer] of recipe 'tiny' must be a table"),
        ({"explainer": {"samples": 3}}, "the explainer 'grad' has no setting 'samples'"),
        ({"explainer": {"one_hot": [1]}}, "the explainer 'grad' has no setting 'one_hot'"),
        ({"explainer": {"name": "smooth-grad", "samples": "x"}}, "must be a whole number"),
        ({"explainer": {"name": "smooth-grad", "samples": 0}}, "samples >= 1"),
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


def another_network(**changes: Any) -> MethodEntry:
    """A method that cannot go on from Vanilla's network."""
    build = lambda *, k: Method(**changes)  # noqa: E731
    return MethodEntry(function=build, label="Other", line="x")


def test_a_method_with_another_network_cannot_go_on_from_vanillas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(METHODS, "other", another_network(prepare=lambda model: model))
    monkeypatch.setitem(METHODS, "wide", replace(another_network(), model="structured"))
    for name in ("other", "wide"):
        methods = [{"name": "vanilla"}, {"name": name}]
        assert tiny(methods=methods).methods[1].name == name
        message = refusal(lambda methods=methods: tiny(methods=methods, schema="retrain"))
        assert "Other trains another network than Vanilla's" in message
    softer = [{"name": "vanilla"}, {"name": "sp", "rho": 1.0}]
    assert tiny(methods=softer, schema="retrain").methods[1].name == "sp"


def test_what_a_recipe_does_not_say_is_as_it_was() -> None:
    recipe = tiny()
    assert (recipe.datasets, recipe.schema) == ((), "scratch")
    assert recipe.explainer.build() == gradient
    assert EvaluationSettings().attacks == ("er", "mse", "strong", "applicant")
    assert not EvaluationSettings().project_one_hot
    chosen = tiny(explainer={"name": "smooth-grad", "samples": 3, "variance": 1})
    assert chosen.explainer.settings == {"samples": 3, "variance": 1}


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
        replace(recipe, datasets=("adult",)),
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
        replace(recipe, evaluation=replace(recipe.evaluation, attacks=("er",))),
        replace(recipe, schema="retrain"),
        replace(recipe, explainer=ExplainerPlan(name="grad-x-input")),
        replace(recipe, explainer=ExplainerPlan(settings={"of": "margin"})),
    ]
    digests = {each.digest for each in [recipe, *other]}
    assert len(digests) == len(other) + 1


# --- runs -------------------------------------------------------------------------------------


@cache
def compas() -> Dataset:
    whole = load("compas")
    return replace(whole, name="slice", x=whole.x[:300], y=whole.y[:300])


def timeless(rows: list[Result]) -> list[Result]:
    return [replace(row, seconds=0.0) for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
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


def test_a_run_gives_a_row_for_each_method(finished: tuple[Path, list[Result]]) -> None:
    out, rows = finished
    assert [(row.seed, row.method) for row in rows] == ROWS
    assert sorted(rows, key=lambda row: row.key) == sorted(
        read_results(out / "results.jsonl"), key=lambda row: row.key
    )
    assert len({row.key for row in rows}) == 3
    assert len(models(out)) == 3
    linear, vanilla, stable = rows
    for row in rows:
        assert row.passed
        assert (row.dataset, row.recipe, row.data) == ("slice", "tiny", compas().digest)
        assert row.floor == pytest.approx(vanilla.valid.auc - 0.9)
        assert row.examples == 40
        assert row.measures["strong_precision"] <= row.measures["er_precision"]
        json.dumps(changed(row), allow_nan=False)
    assert linear.measures["strong_precision"] == 1
    assert [row.label for row in rows] == ["Linear (control)", "Vanilla", "R2ET\\H"]
    assert [len(row.candidates) for row in rows] == [0, 1, 2]
    best = max(stable.candidates, key=lambda candidate: candidate.precision)
    assert stable.chosen == best.settings
    assert stable.valid == best
    assert vanilla.chosen == {}
    assert linear.chosen is None


def test_a_finished_run_is_not_done_again(finished: tuple[Path, list[Result]], again: Path) -> None:
    written, results = models(again), (again / "results.jsonl").read_bytes()
    seen: list[Progress] = []
    assert run(compas(), tiny(), seeds=1, out=again, on_progress=seen.append) == finished[1]
    assert seen == []
    assert models(again) == written
    assert (again / "results.jsonl").read_bytes() == results


class Interrupted(Exception):
    """Stands for whatever ends a run early."""


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_an_interrupted_run_goes_on(
    after: int, finished: tuple[Path, list[Result]], tmp_path: Path
) -> None:
    done: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        done.append(progress)
        if progress.done == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(compas(), tiny(), seeds=1, out=tmp_path, on_progress=on_progress)
    measured = sum(each.what.startswith("measured") for each in done)
    early = read_rows(tmp_path / "results.jsonl")
    assert len(early) == measured
    written = models(tmp_path)
    seen: list[Progress] = []
    rows = run(compas(), tiny(), seeds=1, out=tmp_path, on_progress=seen.append)
    assert timeless(rows) == timeless(finished[1])
    assert len(read_rows(tmp_path / "results.jsonl")) == 3
    assert read_rows(tmp_path / "results.jsonl")[:measured] == early
    assert models(tmp_path).items() >= written.items()
    assert sum(each.what.startswith("measured") for each in seen) == 3 - measured
    if after < 5:
        assert seen[-1].done == seen[-1].total == 5 - after


def test_progress_is_told_and_rows_come_before_further_models(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(compas(), tiny(), seeds=1, out=tmp_path, on_progress=seen.append)
    assert [(each.done, each.total) for each in seen] == [(done, 5) for done in range(6)]
    assert [each.what for each in seen] == [
        "beginning",
        "trained Vanilla",
        "measured Linear (control)",
        "measured Vanilla",
        "trained R2ET\\H",
        "measured R2ET\\H",
    ]


def test_a_missing_row_is_measured_without_training(
    finished: tuple[Path, list[Result]], again: Path
) -> None:
    drop_rows(again, "r2et-noh")
    written = models(again)
    rows = run(compas(), tiny(), seeds=1, out=again)
    assert timeless(rows) == timeless(finished[1])
    assert rows[:2] == finished[1][:2]
    assert models(again) == written


def test_the_whole_unit_of_a_deleted_model_is_trained_again(
    finished: tuple[Path, list[Result]], again: Path
) -> None:
    drop_rows(again, "r2et-noh")
    written = models(again)
    unit = [path for path in again.rglob("*.safetensors") if path.name.startswith("r2et-noh")]
    before = [path.read_bytes() for path in unit]
    unit[0].unlink()
    rows = run(compas(), tiny(), seeds=1, out=again)
    assert timeless(rows) == timeless(finished[1])
    assert [path.read_bytes() for path in unit] == before
    changed = {name for name, time in models(again).items() if written[name] != time}
    assert changed == {str(path.relative_to(again)) for path in unit}


def test_a_damaged_model_is_refused_with_its_path(again: Path) -> None:
    drop_rows(again, "vanilla")
    file = next(path for path in again.rglob("*.safetensors") if path.name.startswith("vanilla"))
    file.write_bytes(file.read_bytes()[:100])
    assert str(file) in refusal(lambda: run(compas(), tiny(), seeds=1, out=again))


def test_a_row_cut_short_is_measured_again(
    finished: tuple[Path, list[Result]], again: Path
) -> None:
    results = again / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-200])
    rows = run(compas(), tiny(), seeds=1, out=again)
    assert timeless(rows) == timeless(finished[1])
    assert len(read_rows(results)) == 3


def test_more_seeds_extend_a_run(finished: tuple[Path, list[Result]], again: Path) -> None:
    written = models(again)
    seen: list[Progress] = []
    rows = run(compas(), tiny(), seeds=2, out=again, on_progress=seen.append)
    assert [(row.seed, row.method) for row in rows] == [
        *ROWS,
        *((1, method) for _, method in ROWS),
    ]
    assert rows[:3] == finished[1]
    assert seen[-1].done == seen[-1].total == 5
    assert models(again).items() >= written.items()
    assert len(models(again)) == 6
    assert rows[4].measures != rows[1].measures
    assert run(compas(), tiny(), seeds=1, out=again) == finished[1]


def test_another_recipe_or_table_adds_rows_of_its_own(
    finished: tuple[Path, list[Result]], again: Path
) -> None:
    fewer = replace(compas(), x=compas().x[:290], y=compas().y[:290])
    other = tiny(fit={"epochs": 2, "batch": 64}, methods=TINY["methods"][:1])
    vanilla = tiny(methods=TINY["methods"][:1])
    for dataset, recipe, count in ((compas(), other, 5), (fewer, vanilla, 7)):
        rows = run(dataset, recipe, seeds=1, out=again)
        assert [row.method for row in rows] == ["linear", "vanilla"]
        assert len(read_rows(again / "results.jsonl")) == count
    # A method less is nothing new to do.
    assert run(compas(), vanilla, seeds=1, out=again) == finished[1][:2]
    assert len(read_rows(again / "results.jsonl")) == 7


def test_a_seed_without_an_able_model_says_so(tmp_path: Path) -> None:
    rows = run(compas(), tiny(gate=-1.0), seeds=1, out=tmp_path)
    assert [row.passed for row in rows] == [True, False, False]
    for row in rows[1:]:
        assert row.measures == {}
        assert row.chosen is None
        assert row.valid is None
        assert row.decisions == ()
        assert all(candidate.auc < row.floor for candidate in row.candidates)
    assert len(rows[2].candidates) == 2


def test_a_run_without_a_seed_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "at least one seed" in refusal(lambda: run(compas(), tiny(), seeds=0, out=tmp_path))
    skipped = refusal(lambda: run(compas(), tiny(), seeds=2, skip=2, out=tmp_path))
    assert "of 2 seeds at most 1 can be left out at the start, got 2" in skipped
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


# --- models -----------------------------------------------------------------------------------


def marked(recipe: Recipe, dataset: Dataset | None = None) -> str:
    return unit_print(dataset or compas(), recipe, recipe.methods[1])


def test_a_model_is_told_apart_by_what_trains_and_judges_it_only() -> None:
    recipe = tiny()
    evaluation, fit = recipe.evaluation, recipe.fit
    same = [
        replace(recipe, name="other", line="x", seeds=4, gate=0.1, datasets=("adult",)),
        replace(recipe, explainer=ExplainerPlan(name="grad-x-input")),
        replace(recipe, fit=replace(fit, seed=3, checkpoint_every=1)),
        replace(recipe, retrain_epochs=3, least_ranking=0.5),
        replace(
            recipe,
            evaluation=replace(
                evaluation,
                attacks=("er",),
                examples=7,
                epsilons=(),
                decisions=0,
                strong=replace(evaluation.strong, rounds=3),
            ),
        ),
    ]
    assert {marked(each) for each in same} == {marked(recipe)}
    retraining = replace(recipe, schema="retrain")
    strong = replace(recipe, select_by="strong")
    deeper = replace(evaluation, strong=replace(evaluation.strong, rounds=3))
    other = [
        retraining,
        replace(retraining, gate=0.1),
        replace(retraining, retrain_epochs=3),
        replace(retraining, least_ranking=0.5),
        strong,
        replace(strong, evaluation=deeper),
        replace(recipe, valid_examples=21),
        replace(recipe, hidden=(5,)),
        replace(recipe, activation="tanh"),
        replace(recipe, least_steps=2),
        replace(recipe, fit=replace(fit, epochs=2)),
        replace(recipe, evaluation=replace(evaluation, k=5)),
        replace(recipe, evaluation=replace(evaluation, er=replace(evaluation.er, steps=4))),
        tiny(methods=[{"name": "vanilla"}, {"name": "r2et-noh", "thickness": [0.05]}]),
        tiny(methods=[{"name": "vanilla"}, {"name": "r2et-mm-noh", "thickness": [0.05, 0.1]}]),
    ]
    assert len({marked(each) for each in [recipe, *other]}) == len(other) + 1
    fewer = replace(compas(), x=compas().x[:290], y=compas().y[:290])
    assert marked(recipe, fewer) != marked(recipe)


def test_vanilla_is_the_same_model_whether_others_go_on_from_it_or_not() -> None:
    (vanilla, _), both = tiny().methods, (tiny(), tiny(schema="retrain"))
    assert len({unit_print(compas(), recipe, vanilla) for recipe in both}) == 1


def test_another_explainer_is_measured_on_the_same_models(
    finished: tuple[Path, list[Result]], again: Path
) -> None:
    written = models(again)
    other = tiny(explainer={"name": "grad-x-input", "of": "margin"})
    seen: list[Progress] = []
    rows = run(compas(), replace(other, name="other"), seeds=1, out=again, on_progress=seen.append)
    assert models(again) == written
    assert [each.what.split()[0] for each in seen] == ["beginning", *["measured"] * 3]
    for row, before in zip(rows, finished[1], strict=True):
        assert row.key != before.key
        assert (row.explainer, row.explainer_settings) == ("grad-x-input", {"of": "margin"})
        assert (before.explainer, before.explainer_settings) == ("grad", {})
        for name in ("candidates", "floor", "chosen", "valid"):
            assert getattr(row, name) == getattr(before, name)
        assert row.measures["clean_auc"] == before.measures["clean_auc"]
    assert rows[1].measures["saliency_norm"] != finished[1][1].measures["saliency_norm"]


def test_a_row_says_where_it_comes_from(finished: tuple[Path, list[Result]]) -> None:
    for row in finished[1]:
        assert row.recipe_digest == tiny().digest
        assert row.schema == "scratch"
        assert row.k == 4
        assert row.code == code_digest()
        assert len(row.code) == 12
        assert row.failures == ()
        assert row.seconds > 0
    kept = json.loads((finished[0] / "recipes" / f"tiny-{tiny().digest}.json").read_text())
    assert kept["fit"]["epochs"] == 1
    assert json.loads((finished[0] / "recipe.json").read_text()) == kept


def test_a_saved_model_is_built_again_as_it_was(finished: tuple[Path, Any]) -> None:
    split = compas().split(0)
    model, plan, epochs = fitted(split, tiny(), "vanilla", {})
    (file,) = (finished[0] / "models").rglob("vanilla-*.safetensors")
    loaded, header = checkpoint.load(file)
    assert header["model"] == plan == network_plan(compas(), tiny(), "vanilla")
    assert header["epochs"] == epochs == 1
    assert (header["seed"], header["method"], header["data"]) == (0, "vanilla", compas().digest)
    torch.testing.assert_close(loaded(split.test.x), model(split.test.x))


def test_a_network_is_planned_from_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "wide", replace(another_network(), model="structured"))
    assert network_plan(compas(), tiny(), "wide") == {
        "name": "structured",
        "inputs": 16,
        "classes": 2,
        "numeric": [9, 10, 11, 12, 13],
        "one_hot": [[0, 1, 2], [3, 4, 5, 6]],
    }


@pytest.mark.parametrize("name", METHODS)
def test_the_unit_of_every_method_gives_models_that_can_be_built_again(name: str) -> None:
    entry, split = METHODS[name], compas().split(0)
    grid = expand({entry.weights[0]: [0.01, 0.02]}) if entry.weights else ({},)
    recipe = tiny(fit={"epochs": 1, "batch": 64})
    work = Work(source=compas, data=compas().digest, recipe=recipe, seed=0, code=code_digest())
    plan = MethodPlan(name=name, grid=grid)
    outcomes = train_unit(work, plan, None)
    assert [each.settings for each in outcomes] == list(grid)
    assert [each.problem for each in outcomes] == [None] * len(grid)
    for settings, outcome in zip(grid, outcomes, strict=True):
        assert outcome.model is not None
        assert outcome.candidate is not None
        model = checkpoint.from_bytes(outcome.model)
        again, _, _ = fitted(split, recipe, name, settings)
        torch.testing.assert_close(model(split.test.x), again(split.test.x), rtol=1e-3, atol=1e-4)
        score = auc(model.double(), split.valid.x.double(), split.valid.y)
        assert outcome.candidate.auc == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("rho", [0.5, 0.7, 2.0])
def test_a_softplus_network_is_built_again_with_its_sharpness(rho: float) -> None:
    recipe, split = tiny(hidden=[5, 3]), compas().split(0)
    plan = network_plan(compas(), recipe, "sp")
    smooth = with_softplus(runs.network(split, plan), rho)
    method = METHODS["sp"].build(k=2, rho=rho)
    kept, told = runs.rebuildable(smooth, plan, method, split.valid.x)
    again = build(told, stream(0, "other"))
    again.load_state_dict(kept.state_dict())
    assert torch.equal(again(split.test.x), smooth(split.test.x))


def test_a_network_of_smooth_poolings_is_built_again_with_their_sharpness() -> None:
    plan = {"name": "siamese-cnn", "classes": 2, "pieces": [[1, 28, 28]] * 2}
    method = METHODS["steadfast-any"].build(k=2, softplus=3.0, pooling=5.0)
    assert method.prepare is not None
    smooth = method.prepare(build(plan, stream(0, "test")))
    x = torch.rand(3, 2 * 784, generator=stream(1, "test"))
    kept, told = runs.rebuildable(smooth, plan, method, x)
    assert told == {**plan, "softplus": 3.0, "pooling": 5.0}
    again = build(told, stream(0, "other"))
    again.load_state_dict(kept.state_dict())
    assert torch.equal(again(x), smooth(x))


def test_a_network_that_could_not_be_built_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare(model: nn.Module) -> nn.Module:
        return nn.Sequential(*list(model)[:1], nn.Tanh(), *list(model)[2:])  # type: ignore[call-overload]

    monkeypatch.setitem(METHODS, "other", another_network(prepare=prepare))
    recipe = tiny()
    work = Work(source=compas, data=compas().digest, recipe=recipe, seed=0, code=code_digest())
    plan = MethodPlan(name="other")
    assert "cannot be built again" in refusal(lambda: train_unit(work, plan, None))


# --- many at once -----------------------------------------------------------------------------

GRID = expand({"thickness": [0.05, 0.1], "curvature": [0.0, 0.01], "gap": ["plain", "normalised"]})


def test_settings_that_differ_in_weights_are_trained_together() -> None:
    stacks = together(MethodPlan(name="r2et", grid=GRID), k=4)
    assert sorted(place for places in stacks for place in places) == list(range(8))
    assert len(stacks) == 4
    for places in stacks:
        alike = [GRID[place] for place in places]
        assert len({each["gap"] for each in alike}) == 1
        assert len({each["curvature"] > 0 for each in alike}) == 1  # zero leaves a penalty out
        assert [each["thickness"] for each in alike] == [0.05, 0.1]


@pytest.mark.parametrize("schema", ["scratch", "retrain"])
def test_a_network_is_trained_together_with_others_as_alone(schema: str) -> None:
    recipe, split = tiny(schema=schema, least_ranking=0.1, fit={"epochs": 2}), compas().split(0)
    grid = expand({"thickness": [0.05, 0.2], "curvature": 0.05})
    plan = MethodPlan(name="r2et", grid=grid)
    start = None
    if schema == "retrain":
        work = Work(source=compas, data=compas().digest, recipe=recipe, seed=0, code=code_digest())
        (start,) = train_unit(work, recipe.methods[0], None)
    found = trained(split, recipe, plan, start)
    assert len(found) == 2
    assert not same_weights(found[0].model, found[1].model)
    for settings, each in zip(grid, found, strict=True):
        (lonely,) = trained(split, recipe, replace(plan, grid=(settings,)), start)
        assert each.problem is None
        assert len(each.history) == len(lonely.history) > 0
        for name, weight in each.model.state_dict().items():
            torch.testing.assert_close(weight, lonely.model.state_dict()[name], rtol=0, atol=1e-4)


def numbers_of(judgement: Candidate) -> dict[str, float]:
    return {name: value for name, value in asdict(judgement).items() if name != "settings"}


@pytest.mark.parametrize("attack", ["er", "mse", "strong"])
def test_a_model_is_judged_together_with_others_as_alone(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = load("compas").split(0)
    recipe = tiny(select_by=attack, valid_examples=25, fit={"epochs": 3, "batch": 512})
    models = [
        fitted(split, recipe, "r2et-noh", {"thickness": weight})[0] for weight in (0.0, 0.1, 0.3)
    ]
    # Units of other sharpness are others, which no stack can hold beside them.
    models.insert(1, fitted(split, recipe, "sp", {"rho": 2.0})[0])
    models.append(fitted(split, recipe, "sp", {"rho": 0.5})[0])
    alone = [numbers_of(judged([model], split, recipe)[0]) for model in models]

    def together_as(expected: list[dict[str, float]]) -> bool:
        found = [numbers_of(each) for each in judged(models, split, recipe)]
        return found == [pytest.approx(each, abs=1e-9) for each in expected]

    assert len({tuple(each.values()) for each in alone}) == 5
    assert together_as(alone)
    # The same where an attack takes few rows at a time, which three networks do not divide.
    for budget in (WalkBudget, EnsembleBudget):
        monkeypatch.setattr(budget, "rows_at_once", lambda *_: 7)
    assert together_as(alone)
    assert judged([], split, recipe) == []


def test_no_more_rows_are_judged_than_an_attack_takes_at_once() -> None:
    # So many starts, and the attack takes 32 rows at once: a batch that it split by itself would
    # be cut between the networks of a stack.
    split = load("compas").split(0)
    effort = {"rounds": 1, "starts": 2000, "steps": 0, "points": 8, "moves": 2, "pairs": 1}
    recipe = tiny(select_by="strong", valid_examples=40, evaluation={"k": 4, "strong": effort})
    assert recipe.evaluation.strong.rows_at_once(split.valid.x.shape[1]) == 32
    models = [fitted(split, recipe, "vanilla", {})[0]] * 3
    (alone,) = judged(models[:1], split, recipe)
    found = [numbers_of(each) for each in judged(models, split, recipe)]
    assert found == [pytest.approx(numbers_of(alone), abs=1e-9)] * 3


# --- settings without a model -----------------------------------------------------------------

EXPLODING = [{"name": "vanilla"}, {"name": "r2et-noh", "thickness": [0.05, 1e39]}]


def test_a_setting_that_diverges_is_a_failed_candidate(tmp_path: Path) -> None:
    recipe = tiny(methods=EXPLODING)
    rows = run(compas(), recipe, seeds=1, out=tmp_path)
    last = rows[-1]
    assert last.passed
    assert last.chosen == {"thickness": 0.05}
    assert [each.settings for each in last.candidates] == [{"thickness": 0.05}]
    (failure,) = last.failures
    assert failure.settings == {"thickness": 1e39}
    assert "learning rate" in failure.problem
    assert len(models(tmp_path)) == 2
    # It is remembered as failed: its row alone is done again, nothing is trained.
    drop_rows(tmp_path, "r2et-noh")
    seen: list[Progress] = []
    assert timeless(run(compas(), recipe, seeds=1, out=tmp_path, on_progress=seen.append)) == (
        timeless(rows)
    )
    assert seen[-1].total == 1


def test_a_method_whose_settings_all_diverge_fails_its_gate(tmp_path: Path) -> None:
    methods = [{"name": "vanilla"}, {"name": "r2et-noh", "thickness": 1e39}]
    row = run(compas(), tiny(methods=methods), seeds=1, out=tmp_path)[-1]
    assert not row.passed
    assert (row.candidates, row.measures, len(row.failures)) == ((), {}, 1)


@pytest.mark.parametrize("schema", ["scratch", "retrain"])
def test_without_vanilla_there_is_nothing_to_keep(schema: str, tmp_path: Path) -> None:
    # Other seeds and data sets go on: only the rows that hang on this model say so.
    wild = tiny(fit={"epochs": 3, "learning_rate": 1e30}, schema=schema)
    rows = run(compas(), wild, seeds=1, out=tmp_path)
    assert [row.passed for row in rows] == [True, False, False]
    assert [row.floor for row in rows] == [None] * 3
    assert rows[0].measures["strong_precision"] == 1
    assert "learning rate" in rows[1].failures[0].problem
    assert len(rows[2].failures) == 2
    if schema == "retrain":
        assert rows[2].failures[0].problem.startswith("there is no Vanilla model to go on")
    seen: list[Progress] = []
    assert run(compas(), wild, seeds=1, out=tmp_path, on_progress=seen.append) == rows
    assert seen == []


# --- retraining -------------------------------------------------------------------------------


def test_retraining_goes_on_from_vanilla_and_keeps_its_ranking(tmp_path: Path) -> None:
    recipe = tiny(
        schema="retrain", retrain_epochs=3, fit={"epochs": 5, "batch": 64}, least_ranking=0.6
    )
    rows = run(compas(), recipe, seeds=1, out=tmp_path)
    assert all(row.schema == "retrain" for row in rows)
    split = compas().split(0)
    found = {path: checkpoint.load(path) for path in tmp_path.rglob("*.safetensors")}
    vanilla = next(model for model, header in found.values() if header["method"] == "vanilla")
    begun = fitted(split, recipe, "vanilla", {})[0]
    assert same_weights(vanilla, begun)  # trained from scratch, for five epochs
    retrained = [(model, header) for model, header in found.values() if model is not vanilla]
    assert len(retrained) == 2
    x = split.valid.x
    labels = vanilla(x).argmax(-1)
    before = gradient(vanilla, x, labels).detach()
    for model, header in retrained:
        assert header["schema"] == "retrain"
        assert 1 <= header["epochs"] <= 3
        assert not same_weights(model, vanilla)
        after = gradient(model, x, labels).detach()
        assert precision_at_k(before, after, 4).mean() >= 0.6
        assert distance(model, vanilla) < distance(runs.network(split, header["model"]), vanilla)
    assert [asdict(each) for each in rows[2].candidates] == [
        header["candidate"] for _, header in in_grid_order(retrained)
    ]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5


def in_grid_order(found: list[Any]) -> list[Any]:
    return sorted(found, key=lambda each: each[1]["candidate"]["settings"]["thickness"])


def test_a_method_is_given_vanillas_ranking_only_if_it_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, list[bool]] = {"ranking": [], "plain": []}

    def entry(name: str, ranks: bool) -> MethodEntry:
        def ranking(*, k: int, reference: nn.Module | None = None) -> Method:
            given[name].append(reference is not None)
            return Method()

        def plain(*, k: int) -> Method:
            given[name].append(False)
            return Method()

        return MethodEntry(function=ranking if ranks else plain, label=name, line="x")

    for name, ranks in (("ranking", True), ("plain", False)):
        monkeypatch.setitem(METHODS, name, entry(name, ranks))
        monkeypatch.setitem(runs.LABELS, name, name)
    methods = [{"name": "vanilla"}, {"name": "ranking"}, {"name": "plain"}]
    run(compas(), tiny(schema="retrain", methods=methods), seeds=1, out=tmp_path)
    assert given["ranking"][-1]
    assert not any(given["plain"])


def test_a_model_that_lost_vanillas_ranking_at_once_is_none(tmp_path: Path) -> None:
    # Large steps on a trained network: the ranking of no example is kept exactly.
    recipe = tiny(schema="retrain", least_ranking=1.0, fit={"epochs": 3, "batch": 16})
    row = run(compas(), recipe, seeds=1, out=tmp_path)[-1]
    assert not row.passed
    assert row.measures == {}
    assert [each.problem for each in row.failures] == [
        "no epoch of retraining kept both Vanilla's explanations and its AUC."
    ] * 2


def test_a_unit_is_that_of_its_content() -> None:
    assert unit_print(compas(), tiny(), MethodPlan(name="vanilla")) == unit_print(
        compas(), tiny(), tiny().methods[0]
    )
