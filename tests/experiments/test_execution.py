"""Sweeps: what was begun is finished, once, whoever computes it and however often it is killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import distributed
import pytest
import torch

from r2et.core.files import held, read_rows
from r2et.data import Dataset
from r2et.evaluation.results import Result, read_results
from r2et.experiments import execution as sweeps
from r2et.experiments.execution import Local, Progress, sweep
from r2et.experiments.runner import Source, Work, code_digest
from refusals import refusal
from sweeping import load_slice, timeless, tiny

TESTS = Path(__file__).parents[1]
Rows = list[Result]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """The folder and the rows of a sweep that nothing disturbed, not to be changed."""
    out = tmp_path_factory.mktemp("undisturbed")
    return out, sweep(tiny(), out, load=load_slice)


def assert_the_same(out: Path, rows: Rows) -> None:
    """Exactly these rows are in the folder, each once, and nothing half written."""
    found = read_results(out / "results.jsonl")
    assert len({row.key for row in found}) == len(found)
    assert timeless(found) == timeless(rows)
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]


# --- what is done -----------------------------------------------------------------------------


def test_there_is_a_row_for_each_data_set_seed_and_method(
    undisturbed: tuple[Path, Rows],
) -> None:
    out, rows = undisturbed
    assert [(row.dataset, row.seed, row.method) for row in rows] == [
        (dataset, 0, method)
        for dataset in ("left", "right")
        for method in ("linear", "vanilla", "r2et-noh")
    ]
    assert all(row.passed for row in rows)
    assert_the_same(out, rows)
    assert len(list(out.rglob("*.safetensors"))) == 2 * 3
    floors = {(row.dataset, row.seed): row.floor for row in rows}
    for row in rows:
        if row.method == "vanilla":
            expected = row.valid.auc - 0.5
            assert floors[row.dataset, row.seed] == pytest.approx(expected)


class Counting:
    """A runner that computes at once and remembers what."""

    here = True

    def __init__(self) -> None:
        self.inner, self.computed = Local(1), list[str]()

    def submit(self, name: str, unit: Callable[..., Any], *arguments: Any, urgent: bool) -> None:
        self.computed.append(unit.__name__)
        self.inner.submit(name, unit, *arguments, urgent=urgent)

    def next(self) -> tuple[str, Any]:
        return self.inner.next()


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    runner = Counting()
    monkeypatch.setattr(sweeps, "_runner", lambda *_: contextlib.nullcontext(runner))
    return runner


def test_the_same_sweep_twice_gives_the_same_rows_and_models(
    undisturbed: tuple[Path, Rows], counting: Counting, tmp_path: Path
) -> None:
    sweep(tiny(), tmp_path, load=load_slice)
    assert_the_same(tmp_path, undisturbed[1])
    assert counting.computed.count("train_unit") == 4
    assert counting.computed.count("measure_unit") == 6
    first, second = (
        {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.safetensors")}
        for out in (undisturbed[0], tmp_path)
    )
    assert first == second
    # A rerun does nothing at all.
    counting.computed.clear()
    seen: list[Progress] = []
    before = (tmp_path / "results.jsonl").read_bytes()
    rows = sweep(tiny(), tmp_path, load=load_slice, on_progress=seen.append)
    assert (counting.computed, seen) == ([], [])
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert timeless(rows) == timeless(undisturbed[1])


def test_two_processes_give_the_rows_of_one(undisturbed: tuple[Path, Rows], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    sweep(tiny(), tmp_path, load=load_slice, jobs=2)
    assert_the_same(tmp_path, undisturbed[1])
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_does_not_change_a_row(
    undisturbed: tuple[Path, Rows], tmp_path: Path
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        sweep(tiny(), tmp_path, load=load_slice, only=["left"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert_the_same(tmp_path, undisturbed[1][:3])


def test_data_are_loaded_and_split_once_for_all_units_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[str] = []
    splits: list[int] = []

    def counted(name: str) -> Dataset:
        loads.append(name)
        return load_slice(name)

    split_by = Dataset.split
    monkeypatch.setattr(
        Dataset, "split", lambda data, seed: splits.append(seed) or split_by(data, seed)
    )
    digest = load_slice("left").digest
    for seed in (0, 0, 1, 1):
        # As a worker gets them: no two are the same object.
        source = Source(load=counted, name="left")
        work = Work(source=source, data=digest, recipe=tiny(), seed=seed, code=code_digest())
        assert len(work.split().train) == 210
    assert (loads, splits) == (["left"], [0, 1])


@pytest.mark.slow
def test_data_of_ones_own_are_sent_to_each_process_once(
    undisturbed: tuple[Path, Rows], tmp_path: Path
) -> None:
    rows = sweeps.run(load_slice("left"), tiny(), seeds=1, out=tmp_path, jobs=2)
    assert timeless(rows) == timeless(undisturbed[1][:3])


def test_some_data_sets_and_seeds_can_be_asked_for(
    undisturbed: tuple[Path, Rows], counting: Counting, tmp_path: Path
) -> None:
    rows = sweep(tiny(), tmp_path, load=load_slice, only=["right"])
    assert timeless(rows) == timeless(undisturbed[1][3:])
    # The rest is added to what is there.
    counting.computed.clear()
    rows = sweep(tiny(), tmp_path, load=load_slice, only=["right"], seeds=2)
    assert [row.seed for row in rows] == [0, 0, 0, 1, 1, 1]
    assert timeless(rows[:3]) == timeless(undisturbed[1][3:])
    assert counting.computed.count("train_unit") == 2
    assert len(read_rows(tmp_path / "results.jsonl")) == 6


def test_measuring_begins_while_others_train() -> None:
    """A row that can be measured does not wait for models of other seeds."""
    order = []
    runner = Local(1)
    for name, urgent in (("train", False), ("train more", False), ("measure", True)):
        runner.submit(name, lambda: None, urgent=urgent)
        order.append(name)
    assert [runner.next()[0] for _ in order] == ["measure", "train", "train more"]


def test_retraining_waits_for_vanilla(counting: Counting, tmp_path: Path) -> None:
    recipe = tiny(schema="retrain", datasets=["left"], least_ranking=0.0)
    seen: list[Progress] = []
    rows = sweep(recipe, tmp_path, load=load_slice, on_progress=seen.append)
    assert [row.passed for row in rows] == [True] * 3
    trained = [each.what for each in seen if each.what.startswith("trained")]
    assert trained == ["trained Vanilla", "trained R2ET\\H"]


def test_settings_of_a_data_set_count_where_the_recipe_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        'line = "x"\ndatasets = ["left", "right"]\ngate = 1.0\nvalid_examples = 5\nhidden = [2]\n'
        "[fit]\nepochs = 1\nbatch = 200\n"
        '[evaluation]\nk = 2\nattacks = ["er"]\nexamples = 5\n[evaluation.er]\nsteps = 1\n'
        '[[methods]]\nname = "vanilla"\n[for.right]\nseeds = 2\n[for.right.evaluation]\nk = 3\n'
    )
    rows = sweep(str(file), tmp_path / "out", load=load_slice)
    found = [(row.dataset, row.seed, row.k) for row in rows if row.method == "vanilla"]
    assert found == [("left", 0, 2), ("right", 0, 3), ("right", 1, 3)]
    kept = [json.loads(path.read_text()) for path in (tmp_path / "out" / "recipes").iterdir()]
    assert sorted(each["evaluation"]["k"] for each in kept) == [2, 3]


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "choices", "says"),
    [
        ({"datasets": []}, {}, "names no data sets"),
        ({}, {"only": ["lift"]}, "did you mean 'left'"),
        ({}, {"seeds": 0}, "at least one seed"),
        ({}, {"jobs": 0}, "at least one process"),
        ({}, {"backend": "dusk"}, "did you mean 'dask'"),
        ({}, {"backend": "dask"}, "needs the address of a scheduler"),
        ({"evaluation": {"k": 16}}, {}, "k must lie in 1..15"),
    ],
)
def test_a_sweep_that_cannot_end_is_refused_before_it_begins(
    changes: dict[str, Any], choices: dict[str, Any], says: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert says in refusal(lambda: sweep(tiny(**changes), out, load=load_slice, **choices))
    assert not out.exists()


def test_a_worker_with_other_data_or_source_is_refused() -> None:
    source = lambda: load_slice("left")  # noqa: E731
    ours = Work(source=source, data=source().digest, recipe=tiny(), seed=0, code=code_digest())
    ours.split()
    assert "other rows of left" in refusal(replace(ours, data="0" * 12).split)
    assert "other source files" in refusal(replace(ours, code="0" * 12).split)


@pytest.mark.slow
def test_a_process_ended_from_outside_is_told_and_nothing_is_lost(
    undisturbed: tuple[Path, Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR", str(os.getpid()))
    message = refusal(lambda: sweep(tiny(), tmp_path, load=fatal, jobs=2, only=["left"]))
    assert "ended from outside" in message
    assert "what is finished is kept" in message
    sweep(tiny(), tmp_path, load=load_slice, only=["left"])
    assert_the_same(tmp_path, undisturbed[1][:3])


def fatal(name: str) -> Dataset:
    """A data set that ends the worker which asks for it, as a lack of memory would."""
    if os.environ.get("COORDINATOR") != str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
    return load_slice(name)


# --- one at a time ----------------------------------------------------------------------------


def started(out: Path, jobs: int = 1, seeds: int = 1) -> subprocess.Popen[str]:
    """A sweep as a process with a group of its own."""
    return subprocess.Popen(
        [sys.executable, str(TESTS / "sweeping.py"), str(out), str(jobs), str(seeds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ended(process: subprocess.Popen[str]) -> None:
    """End a process and all it started, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def test_a_second_sweep_on_a_folder_is_refused_until_the_first_ends(
    undisturbed: tuple[Path, Rows], tmp_path: Path
) -> None:
    first = started(tmp_path)
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("0/10")
        os.killpg(first.pid, signal.SIGSTOP)  # it holds the folder and goes no further
        assert f"is in use by process {first.pid} on " in refusal(
            lambda: sweep(tiny(), tmp_path, load=load_slice)
        )
    finally:
        ended(first)
    # The lock of a killed process holds nobody up.
    sweep(tiny(), tmp_path, load=load_slice)
    assert_the_same(tmp_path, undisturbed[1])


def test_a_run_and_a_sweep_hold_the_same_folder(tmp_path: Path) -> None:
    with held(tmp_path):
        for begin in (
            lambda: sweep(tiny(), tmp_path, load=load_slice),
            lambda: sweeps.run(load_slice("left"), tiny(), seeds=1, out=tmp_path),
        ):
            assert f"in use by process {os.getpid()} on" in refusal(begin)


# --- killed -----------------------------------------------------------------------------------


def killed_and_resumed(
    out: Path, kills: int, longest: float, jobs: int = 1, seeds: int = 1
) -> None:
    """Begin a sweep and kill it at a random moment, again and again; then let it end."""
    dice = random.Random(kills)
    landed = 0
    for _ in range(2 * kills):
        process = started(out, jobs, seeds)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # nothing was left to do
                break
            time.sleep(dice.uniform(0.0, longest))
            landed += process.poll() is None
        finally:
            ended(process)
        if landed == kills:
            break
    assert landed == kills, "the sweep ended too early to be killed so often"
    last = started(out, jobs, seeds)
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said


@pytest.mark.slow
def test_a_sweep_killed_three_times_ends_as_if_nothing_had_happened(
    undisturbed: tuple[Path, Rows], tmp_path: Path
) -> None:
    killed_and_resumed(tmp_path, kills=3, longest=0.8)
    assert_the_same(tmp_path, undisturbed[1])


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "jobs", "longest"), [(20, 1, 0.7), (5, 2, 8.0)])
def test_a_sweep_killed_often_ends_as_if_nothing_had_happened(
    kills: int, jobs: int, longest: float, tmp_path: Path
) -> None:
    rows = sweep(tiny(), tmp_path / "undisturbed", load=load_slice, seeds=3)
    killed_and_resumed(tmp_path / "killed", kills, longest, jobs, seeds=3)
    assert_the_same(tmp_path / "killed", rows)


# --- a cluster --------------------------------------------------------------------------------

DASK = str(Path(sys.executable).with_name("dask"))


def dask(*words: str) -> subprocess.Popen[str]:
    """A scheduler or worker as a process of its own, which finds the modules of the tests."""
    paths = [str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.Popen(
        [sys.executable, DASK, *words, "--no-dashboard"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
    )


@dataclass(kw_only=True)
class Workers:
    """A scheduler of dask on this machine, and its workers by their names."""

    address: str
    scheduler: subprocess.Popen[str]
    processes: dict[str, subprocess.Popen[str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Workers]:
    file = tmp_path / "scheduler.json"
    begun = [dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))]
    try:
        until = time.monotonic() + 60
        while not file.exists() or not file.read_text():
            assert begun[0].poll() is None
            assert time.monotonic() < until, "the scheduler did not start"
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        names = ("one", "two")
        words = ("worker", address, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
        begun += [
            dask(*words, "--name", name, "--local-directory", str(tmp_path / name))
            for name in names
        ]
        yield Workers(
            address=address,
            scheduler=begun[0],
            processes=dict(zip(names, begun[1:], strict=True)),
        )
    finally:
        for process in begun:
            ended(process)


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_in_mid_unit_loses_no_row(
    undisturbed: tuple[Path, Rows], cluster: Workers, tmp_path: Path
) -> None:
    busy: list[bool] = []
    with distributed.Client(cluster.address, timeout=60, set_as_default=False) as watching:
        watching.wait_for_workers(2, timeout=60)

        def kill(progress: Progress) -> None:
            if progress.done < 2 or busy:
                return
            names = {each["id"]: at for at, each in workers_of(watching).items()}
            at_work = {name: watching.processing()[at] for name, at in names.items()}
            if all(at_work.values()):
                busy.append(True)
                ended(cluster.processes["one"])

        out = tmp_path / "out"
        rows = sweep(
            tiny(),
            out,
            backend="dask",
            address=cluster.address,
            load=load_slice,
            on_progress=kill,
        )
        assert busy, "the worker was never killed"
        assert [each["id"] for each in workers_of(watching).values()] == ["two"]
    assert_the_same(out, undisturbed[1])
    assert timeless(rows) == timeless(undisturbed[1])


def workers_of(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return found


@pytest.mark.slow
def test_a_lost_scheduler_is_told_in_one_sentence(cluster: Workers, tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.done == 1:
            ended(cluster.scheduler)

    out = tmp_path / "out"
    message = refusal(
        lambda: sweep(
            tiny(), out, backend="dask", address=cluster.address, load=load_slice, on_progress=kill
        )
    )
    assert f"the dask scheduler at {cluster.address} was lost" in message
    # Whatever was done first, a unit or a row, is kept.
    units = list((out / "models").rglob("*.json"))
    assert len(units) + len(read_rows(out / "results.jsonl")) >= 1


def test_a_scheduler_that_does_not_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PATIENCE", 0.5)
    out = tmp_path / "out"
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        message = refusal(
            lambda address=address: sweep(
                tiny(), out, backend="dask", address=address, load=load_slice
            )
        )
        assert f"no dask scheduler answers at {address}" in message
    assert not out.exists()


def test_dask_is_needed_for_a_cluster_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    message = refusal(
        lambda: sweep(tiny(), tmp_path, backend="dask", address="tcp://x:1", load=load_slice)
    )
    assert "pip install 'r2et[cluster]'" in message
    sweep(tiny(methods=[{"name": "vanilla"}]), tmp_path, load=load_slice, only=["left"])
