"""Sweeps: a recipe over data sets, seeds and methods, spread over processes or machines.

One process, the coordinator, writes; all others compute units and send back what they found. It
may be killed at any moment: what is on disk is whole, and a rerun does what is missing.
"""

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch

from r2et.core.files import clear_aside, held, write_bytes, write_text
from r2et.core.naming import nearest
from r2et.core.ranking import check_k
from r2et.core.settings import settings_from
from r2et.data.builtin import DATASETS
from r2et.data.builtin import load as load_embedded
from r2et.data.dataset import Dataset
from r2et.evaluation.results import Result, append_results, read_results
from r2et.experiments.config import VANILLA, MethodPlan, Recipe, load_recipe
from r2et.experiments.runner import (
    LINEAR,
    Outcome,
    Source,
    Work,
    alone,
    code_digest,
    controls,
    fingerprint,
    follows_vanilla,
    label_of,
    measure_unit,
    row_head,
    row_key,
    train_unit,
    unit_print,
)
from r2et.training.checkpoint import load as load_model
from r2et.training.trainer import select

BACKENDS = ("joblib", "dask")
RETRIES = 2  # of a unit that fails on a cluster, where a worker may be out of memory or of space
PATIENCE = 10  # seconds until a scheduler must have answered
WORKERS_WITHIN = 60  # seconds until a cluster must have a first worker


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How much of a sweep is done, and what was done last."""

    done: int
    total: int
    what: str


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One data set of a sweep: the data, the recipe, and which seeds.

    They are the numbers below `seeds` without the first `skip` of them. Other processes get the
    data from the `source`; without one, each is sent them when it starts.
    """

    dataset: Dataset
    recipe: Recipe
    seeds: int
    skip: int = 0
    source: Source | None = None


def sweep(
    recipe: Recipe | str,
    out: Path,
    *,
    backend: str = "joblib",
    address: str | None = None,
    jobs: int = 1,
    seeds: int | None = None,
    only: Sequence[str] | None = None,
    load: Callable[[str], Dataset] = load_embedded,
    on_progress: OnProgress = lambda progress: None,
) -> list[Result]:
    """The rows of a recipe on all its data sets, a row for each data set, seed and method.

    A recipe given by its name or TOML file may have settings of its own for a data set. All rows
    are also kept in out/results.jsonl, all models in out/models; what is there already is not done
    again. `only` leaves out the other data sets. Units run in `jobs` processes, or on the workers
    of the dask scheduler at `address`, which need nothing of the folder. `load` gives the data set
    of a name, on the workers, too.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: {nearest(backend, BACKENDS)}")
    plans = _plans(recipe, seeds, only, load)
    with _runner(backend, address, jobs) as runner:
        return _carry_out(plans, out, runner, on_progress)


def run(
    dataset: Dataset,
    recipe: Recipe,
    *,
    seeds: int,
    skip: int = 0,
    out: Path,
    jobs: int = 1,
    on_progress: OnProgress = lambda progress: None,
) -> list[Result]:
    """The rows of a recipe on one data set, a row for each seed and method, kept as by `sweep`.

    The seeds are 0 to `seeds` - 1 without the first `skip`, such as those a method was tuned on.
    """
    plan = Plan(dataset=dataset, recipe=recipe, seeds=seeds, skip=skip)
    with Local(jobs, [dataset]) as runner:
        return _carry_out([plan], out, runner, on_progress)


def _plans(
    recipe: Recipe | str,
    seeds: int | None,
    only: Sequence[str] | None,
    load: Callable[[str], Dataset],
) -> list[Plan]:
    """What is to be done for each data set, all of it refused before any of it begins."""
    whole = load_recipe(recipe, "") if isinstance(recipe, str) else recipe
    if not whole.datasets:
        raise ValueError(
            f"recipe {whole.name!r} names no data sets to sweep over: give it a line such as "
            f"datasets = [{', '.join(map(json.dumps, DATASETS))}]."
        )
    for name in only or ():
        if name not in whole.datasets:
            known = nearest(name, whole.datasets)
            raise ValueError(f"recipe {whole.name!r} has no data set {name!r}: {known}")
    plans = []
    for name in whole.datasets:
        if only is None or name in only:
            own = load_recipe(recipe, name) if isinstance(recipe, str) else recipe
            source = Source(load=load, name=name)
            number = own.seeds if seeds is None else seeds
            plans.append(Plan(dataset=source(), source=source, recipe=own, seeds=number))
    return plans


# --- who computes -------------------------------------------------------------------------------


class Runner(Protocol):
    """Computes units somewhere; of those that wait, urgent ones begin first."""

    @property
    def here(self) -> bool:
        """Whether that is this very process."""

    def submit(self, name: str, unit: Callable[..., Any], *arguments: Any, urgent: bool) -> None:
        """Take on unit(*arguments)."""

    def next(self) -> tuple[str, Any]:
        """The name and result of a unit, as soon as one is finished."""


def _runner(backend: str, address: str | None, jobs: int) -> "Local | Cluster":
    return Local(jobs) if backend == "joblib" else Cluster(address)


_SENT: dict[str, Dataset] = {}


def receive(datasets: Sequence[Dataset]) -> None:
    """Take what a process is sent when it starts."""
    _SENT.update((each.digest, each) for each in datasets)


def received(digest: str) -> Dataset:
    """One of the data sets that this process was sent."""
    return _SENT[digest]


class Local:
    """Processes of this machine, each `sent` some data, or this very process if it is one only."""

    def __init__(self, jobs: int, sent: Sequence[Dataset] = ()) -> None:
        if jobs < 1:
            raise ValueError(f"a sweep needs at least one process, got {jobs}.")
        self.jobs, self.here, self.sent = jobs, jobs == 1, sent
        self.waiting: list[tuple[bool, int, str, Callable[..., Any], tuple[Any, ...]]] = []
        self.running: dict[Future[Any], str] = {}
        self.numbers = count()
        self.threads = torch.get_num_threads()
        self.executor: Any = None

    def __enter__(self) -> "Local":
        """Begin; no process is started before there is a unit."""
        return self

    def __exit__(self, *failure: object) -> None:
        """End; after a failure nobody waits for what is still being computed."""
        torch.set_num_threads(self.threads)
        if self.executor is not None:
            self.executor.shutdown(wait=True, kill_workers=True)

    def submit(self, name: str, unit: Callable[..., Any], *arguments: Any, urgent: bool) -> None:
        """Take on unit(*arguments)."""
        heapq.heappush(self.waiting, (not urgent, next(self.numbers), name, unit, arguments))

    def next(self) -> tuple[str, Any]:
        """The name and result of a unit, as soon as one is finished."""
        if self.here:
            _, _, name, unit, arguments = heapq.heappop(self.waiting)
            return name, alone(unit, *arguments)
        if self.executor is None:
            from joblib.externals.loky import ProcessPoolExecutor

            self.executor = ProcessPoolExecutor(
                max_workers=self.jobs, initializer=receive, initargs=(self.sent,)
            )
        try:
            # No more than can run: what becomes urgent meanwhile need not queue behind the rest.
            while self.waiting and len(self.running) < self.jobs:
                _, _, name, unit, arguments = heapq.heappop(self.waiting)
                self.running[self.executor.submit(alone, unit, *arguments)] = name
            finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
            future = finished.pop()
            return self.running.pop(future), future.result()
        except BrokenProcessPool as problem:
            raise ValueError(
                "a process of the sweep was ended from outside, perhaps for want of memory: start "
                "again, with fewer jobs; what is finished is kept."
            ) from problem


class Cluster:
    """The workers of a dask scheduler, which share nothing with this process."""

    here = False

    def __init__(self, address: str | None) -> None:
        if address is None:
            raise ValueError("the dask backend needs the address of a scheduler: tcp://HOST:8786.")
        try:
            import distributed
        except ImportError as problem:
            raise ValueError(
                "the dask backend needs the package distributed: pip install 'r2et[cluster]'."
            ) from problem
        try:
            self.client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as problem:
            raise ValueError(
                f"no dask scheduler answers at {address}: start one with `dask scheduler`, or "
                "correct the address."
            ) from problem
        self.address, self.lost = address, distributed.KilledWorker
        self.done = distributed.as_completed(loop=self.client.loop)
        self.names: dict[Any, str] = {}
        try:
            self.client.wait_for_workers(1, timeout=WORKERS_WITHIN)
        except (OSError, TimeoutError) as problem:
            self.client.close()
            raise ValueError(
                f"the dask scheduler at {address} has no workers: start some with "
                f"`dask worker {address} --nthreads 1`."
            ) from problem

    def __enter__(self) -> "Cluster":
        """Begin; the client is connected already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """End; workers are told to drop what nobody waits for any more."""
        self.done.clear()
        self.client.close()

    def submit(self, name: str, unit: Callable[..., Any], *arguments: Any, urgent: bool) -> None:
        """Take on unit(*arguments)."""
        future = self.client.submit(
            alone, unit, *arguments, pure=False, retries=RETRIES, priority=int(urgent)
        )
        self.names[future.key] = name
        self.done.add(future)

    def next(self) -> tuple[str, Any]:
        """The name and result of a unit, as soon as one is finished."""
        try:
            future = next(self.done)
            return self.names.pop(future.key), future.result()
        except self.lost as problem:
            raise ValueError(
                "a unit ended several dask workers in turn, perhaps for want of memory: give them "
                "more and start again; what is finished is kept."
            ) from problem
        except CancelledError as problem:
            raise ValueError(
                f"the dask scheduler at {self.address} was lost: start it and the sweep again; "
                "what is finished is kept."
            ) from problem


# --- what is kept -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The models trained together: a method's whole grid on one data set and seed.

    The unit `vanilla` comes first where they go on from its model or keep an AUC beside it.
    """

    plan: Plan
    seed: int
    method: MethodPlan
    folder: Path
    mark: str
    vanilla: "Unit | None" = None

    @property
    def name(self) -> str:
        """What the unit is told apart by."""
        return f"train {self.folder.name} {self.method.name} {self.mark}"

    @property
    def needs(self) -> list["Unit"]:
        """The units that must be finished before."""
        return [] if self.vanilla is None else [self.vanilla]

    @property
    def record(self) -> Path:
        """The file that says what became of each setting; it is written last."""
        return self.folder / f"{self.method.name}-{self.mark}.json"

    def path(self, settings: Mapping[str, Any]) -> Path:
        """The file of the model with these settings."""
        own = fingerprint(self.mark, settings)
        return self.folder / f"{self.method.name}-{own}.safetensors"


def unit_of(plan: Plan, seed: int, method: MethodPlan, out: Path) -> Unit:
    """The unit of a method and seed in an output folder."""
    follows = follows_vanilla(plan.recipe, method.name)
    return Unit(
        plan=plan,
        seed=seed,
        method=method,
        folder=out / "models" / f"{plan.dataset.name}-seed-{seed}",
        mark=unit_print(plan.dataset, plan.recipe, method),
        vanilla=unit_of(plan, seed, plan.recipe.methods[0], out) if follows else None,
    )


def keep_unit(unit: Unit, outcomes: Sequence[Outcome]) -> None:
    """Write the models of a unit, and then the record by which it counts as finished."""
    record = []
    for each in outcomes:
        if each.model is not None:
            write_bytes(unit.path(each.settings), each.model)
        values = asdict(each)
        del values["model"]
        record.append(values)
    write_text(unit.record, json.dumps(record, indent=1, allow_nan=False) + "\n")


def kept_unit(unit: Unit) -> list[Outcome] | None:
    """What became of the settings of a unit, None if any of it is missing.

    The models themselves stay on disk.
    """
    try:
        record = json.loads(unit.record.read_text(encoding="utf-8"))
        outcomes = [settings_from(Outcome, each, str(unit.record)) for each in record]
    except (OSError, ValueError, TypeError):
        return None
    models = (unit.path(each.settings) for each in outcomes if each.candidate is not None)
    return outcomes if all(path.is_file() for path in models) else None


def model_bytes(unit: Unit, settings: Mapping[str, Any]) -> bytes:
    """The model of a unit with these settings; a damaged file is refused with its path."""
    path = unit.path(settings)
    load_model(path)
    return path.read_bytes()


# --- what depends on what -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A row to be measured: it needs Vanilla's unit for the floor, and that of its own method."""

    plan: Plan
    seed: int
    method: MethodPlan
    key: str
    vanilla: Unit
    own: Unit | None

    @property
    def name(self) -> str:
        """What the row is told apart by."""
        return f"measure {self.key}"

    @property
    def needs(self) -> list[Unit]:
        """The units that must be finished before."""
        return [self.vanilla, *([] if self.own is None else [self.own])]


def _measurements(plan: Plan, out: Path) -> Iterator[Measurement]:
    """All rows of one data set, seed by seed, the linear control first."""
    for seed in range(plan.skip, plan.seeds):
        vanilla = unit_of(plan, seed, plan.recipe.methods[0], out)
        for method in (*controls(plan.recipe), *plan.recipe.methods):
            if method.name in (LINEAR, VANILLA):
                own = None if method.name == LINEAR else vanilla
            else:
                own = unit_of(plan, seed, method, out)
            key = row_key(plan.dataset, plan.recipe, seed, method)
            yield Measurement(
                plan=plan, seed=seed, method=method, key=key, vanilla=vanilla, own=own
            )


def _carry_out(
    plans: Sequence[Plan], out: Path, runner: Runner, on_progress: OnProgress
) -> list[Result]:
    """The rows of all plans, after whatever is missing in the folder has been done."""
    for plan in plans:
        check_k(plan.recipe.evaluation.k, plan.dataset.n)
        if plan.seeds < 1:
            raise ValueError(f"a sweep needs at least one seed, got {plan.seeds}.")
        if not 0 <= plan.skip < plan.seeds:
            raise ValueError(
                f"of {plan.seeds} seeds at most {plan.seeds - 1} can be left out at the start, got "
                f"{plan.skip}: ask for more seeds or skip fewer."
            )
    wanted = [each for plan in plans for each in _measurements(plan, out)]
    with held(out):
        _prepare(plans, wanted, out)
        rows = {row.key: row for row in read_results(out / "results.jsonl")}
        missing = [each for each in wanted if each.key not in rows]
        units = {unit.name: unit for each in missing for unit in each.needs}
        kept = {name: outcomes for name, unit in units.items() if (outcomes := kept_unit(unit))}
        untrained = [unit for name, unit in units.items() if name not in kept]
        state = State(
            results=out / "results.jsonl",
            runner=runner,
            on_progress=on_progress,
            total=len(untrained) + len(missing),
            finished=kept,
            rows=rows,
        )
        state.work_through([*untrained, *missing])
    return [rows[each.key] for each in wanted]


def _prepare(plans: Sequence[Plan], wanted: Iterable[Measurement], out: Path) -> None:
    """Take away what a killed sweep left half written, and put the recipes beside the results."""
    for folder in {out, out / "recipes", *(each.vanilla.folder for each in wanted)}:
        clear_aside(folder)
    append_results(out / "results.jsonl", [])
    for plan in plans:
        told = json.dumps(asdict(plan.recipe), indent=1) + "\n"
        write_text(out / "recipes" / f"{plan.recipe.name}-{plan.recipe.digest}.json", told)
    write_text(out / "recipe.json", json.dumps(asdict(plans[0].recipe), indent=1) + "\n")


@dataclass(kw_only=True)
class State:
    """How far a sweep is, and what takes it further.

    A unit or a row that can be told without computing anything is final at once.
    """

    results: Path
    runner: Runner
    on_progress: OnProgress
    total: int
    finished: dict[str, list[Outcome]]
    rows: dict[str, Result]
    done: int = 0
    under_way: int = 0

    def work_through(self, steps: Sequence[Unit | Measurement]) -> None:
        """Train and measure, each as soon as what it needs is there, rows before more models."""
        if steps:
            self._tell("beginning", more=0)
        known = {each.name: each for each in steps}
        waiting = dict(known)
        while waiting or self.under_way:
            for name, each in list(waiting.items()):
                if all(unit.name in self.finished for unit in each.needs):
                    del waiting[name]
                    if isinstance(each, Unit):
                        self._train(each)
                    else:
                        self._measure(each)
            if self.under_way:
                name, result = self.runner.next()
                self.under_way -= 1
                each = known[name]
                if isinstance(each, Unit):
                    self._trained(each, result)
                else:
                    self._measured(result)

    def _train(self, unit: Unit) -> None:
        start = None
        if unit.vanilla is not None:
            (start,) = self.finished[unit.vanilla.name]
            if start.candidate is None:
                problem = f"there is no Vanilla model to go on from: {start.problem}"
                grid = unit.method.grid
                self._trained(unit, [Outcome(settings=each, problem=problem) for each in grid])
                return
            start = replace(start, model=model_bytes(unit.vanilla, start.settings))
        self._submit(unit, train_unit, unit.method, start, urgent=unit.method.name == VANILLA)

    def _trained(self, unit: Unit, outcomes: Sequence[Outcome]) -> None:
        keep_unit(unit, outcomes)
        # A model is read again where it is needed, so that long sweeps do not pile them up.
        self.finished[unit.name] = [replace(each, model=None) for each in outcomes]
        self._tell(f"trained {label_of(unit.method.name)}")

    def _measure(self, row: Measurement) -> None:
        plan, (vanilla,) = row.plan, self.finished[row.vanilla.name]
        # Without a Vanilla model there is no floor, and nothing to keep above it.
        floor = None if vanilla.candidate is None else vanilla.candidate.auc - plan.recipe.gate
        outcomes = [] if row.own is None else self.finished[row.own.name]
        candidates = [each.candidate for each in outcomes if each.candidate is not None]
        chosen = select(candidates, math.inf if floor is None else floor)
        head = row_head(plan.dataset, plan.recipe, row.seed, row.method, outcomes, floor, chosen)
        if row.own is None:
            self._submit(row, measure_unit, head, None, urgent=True)
        elif chosen is None:
            self._measured(head)
        else:
            model = model_bytes(row.own, chosen.settings)
            self._submit(row, measure_unit, head, model, urgent=True)

    def _measured(self, row: Result) -> None:
        append_results(self.results, [row])
        self.rows[row.key] = row
        self._tell(f"measured {row.label}")

    def _submit(
        self,
        step: Unit | Measurement,
        compute: Callable[..., Any],
        *arguments: Any,
        urgent: bool,
    ) -> None:
        dataset, recipe = step.plan.dataset, step.plan.recipe
        sent = Source(load=received, name=dataset.digest)
        source = partial(_itself, dataset) if self.runner.here else step.plan.source or sent
        work = Work(
            source=source, data=dataset.digest, recipe=recipe, seed=step.seed, code=code_digest()
        )
        self.runner.submit(step.name, compute, work, *arguments, urgent=urgent)
        self.under_way += 1

    def _tell(self, what: str, more: int = 1) -> None:
        self.done += more
        self.on_progress(Progress(done=self.done, total=self.total, what=what))


def _itself(dataset: Dataset) -> Dataset:
    return dataset
