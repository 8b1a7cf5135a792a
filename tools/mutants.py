"""Whether the tests notice a wrong formula: `make mutants` (ARGS="--only thickness --jobs 2").

tools/mutations/*.toml lists small errors, each a piece of a source file and what stands in its
place. One after another is put into a copy of the repository, where the tests named for it run,
the quickest first, until one of them fails: then the error is killed. Prints by whom, or that it
SURVIVED and why that is no harm. Ends with 1 if fewer than 95 % are killed or a survivor has no
reason.

What is listed never touches the working tree: an interrupted run leaves nothing behind.
"""

import argparse
import compileall
import contextlib
import importlib
import json
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "tools" / "mutations"
COPIED = ("src", "tests", "reproduction", "docs", "examples", "tools", "benchmarks")
LEAST = 0.95  # of all mutations, to be killed
SECONDS, TIMES = 60.0, 10.0  # after so long, and so many times what the tests take, a run is ended
# What takes seconds to import and is never mutated: once for all runs, as far as it is there.
HEAVY = (
    *("torch", "torch.fx.experimental.proxy_tensor", "lightning_fabric", "captum.attr"),
    *("scipy.stats", "scipy.optimize", "sklearn.metrics", "sklearn.linear_model"),
    *("pandas", "pydantic", "matplotlib.figure", "rich.table", "hypothesis", "pytest"),
)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """An error in a source file: `was` becomes `now`, the `at`-th time that it occurs.

    `tests` are those that should notice, files or single tests. `survives` is the reason why none
    of them can.
    """

    path: str
    kind: str
    was: str
    now: str
    tests: tuple[str, ...]
    at: int | None = None
    survives: str = ""

    def __str__(self) -> str:
        """The error in one line."""
        was, now = (" ".join(text.split()) for text in (self.was, self.now))
        return f"{self.kind}: {was} -> {now}"


def listed(folder: Path = LISTS) -> list[Mutation]:
    """All mutations, in the order of the lists."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for file in tomllib.loads(path.read_text(encoding="utf-8"))["file"]:
            for each in file["mutations"]:
                tests = tuple(each.pop("tests", file["tests"]))
                found.append(Mutation(path=file["path"], tests=tests, **each))
    return found


def mutated(text: str, mutation: Mutation) -> str:
    """The text of a source file with the error in it, refused if it does not say where."""
    parts = text.split(mutation.was)
    times, at = len(parts) - 1, mutation.at
    if (at is None and times != 1) or (at is not None and not 1 <= at <= times):
        wanted = "once" if at is None else f"{at} times or more"
        raise ValueError(
            f"{mutation.path} must have {mutation.was!r} {wanted}, found {times} times: adapt the "
            "mutation to the file."
        )
    at = at or 1
    return mutation.was.join(parts[:at]) + mutation.now + mutation.was.join(parts[at:])


# --- a run of some tests in a copy ---------------------------------------------------------------


@contextlib.contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """Copies of the repository, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        found = [Path(folder) / str(number) for number in range(count)]
        for copy in found:
            for name in COPIED:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            for path in ROOT.iterdir():
                if path.is_file() and path.name != ".git":
                    shutil.copy2(path, copy / path.name)
            # Compiled files that are asked for by the source's hash: a time stamp of whole seconds
            # would not tell a mutated file from one of the same length just before.
            by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(copy / "src", quiet=1, invalidation_mode=by_hash)
        yield found


class Watch:
    """Remembers the first test that failed and how long each took; runs the quickest first."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.failed, self.known, self.seconds = "", seconds, dict[str, float]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Order the tests by what they took without a mutation."""
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A part of a test has ended."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        self._note(report)

    def pytest_collectreport(self, report: Any) -> None:
        """A file was read."""
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_tests(copy: Path, tests: Sequence[str], known: Mapping[str, float], report: Path) -> int:
    """What pytest says of some tests, in this process; `report` gets what a `Watch` saw."""
    import hypothesis
    import pytest
    import torch

    torch.set_num_threads(1)
    # The same examples every time, and no search for a smaller one: that there is one is enough.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants", phases=phases, derandomize=True, database=None, deadline=None
    )
    hypothesis.settings.load_profile("mutants")
    os.chdir(copy)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(copy / "src"), str(copy)])
    sys.path[:0] = [str(copy / "src"), str(copy)]
    watch = Watch(known)
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    # What was imported before cannot be rewritten by pytest any more, nor need it be.
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = int(pytest.main([*words, *tests], plugins=[watch]))
    origin = getattr(sys.modules.get("r2et"), "__file__", None) or str(copy / "src")
    if not str(Path(origin).resolve()).startswith(str(copy.resolve())):
        print(f"r2et was imported from {origin}, not from the copy.")
        return 99
    told = {"failed": watch.failed, "seconds": watch.seconds}
    report.write_text(json.dumps(told), encoding="utf-8")
    return code


@dataclass(kw_only=True)
class Run:
    """Tests at work in a copy: a process of their own, ended when it takes too long."""

    copy: Path
    most: float
    mutation: Mutation | None = None
    tests: Sequence[str] = ()
    """Those of the mutation unless given."""
    known: Mapping[str, float] = field(default_factory=dict)
    """What each test takes without a mutation."""
    pid: int = 0
    begun: float = field(default_factory=time.monotonic)
    failed: str = ""
    code: int | None = None
    seconds: float = 0.0
    tests_took: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin."""
        self.tests = self.tests or (self.mutation.tests if self.mutation else ())
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 98
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            said = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.dont_write_bytecode = self.mutation is not None
            self._report.unlink(missing_ok=True)
            code = run_tests(self.copy, self.tests, self.known, self._report)
        except BaseException:  # whatever it is, this process must not go on as its parent
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    @property
    def _log(self) -> Path:
        return self.copy / "said.txt"

    @property
    def _report(self) -> Path:
        return self.copy / "report.json"

    def ended(self) -> bool:
        """Whether it is over, by itself or for want of time."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() - self.begun > self.most
        if not done and not late:
            return False
        self.seconds = time.monotonic() - self.begun
        if not done:
            self.end()
            self.code, self.failed = 1, f"no end in {self.most:.0f} s"
            return True
        self.code = os.waitstatus_to_exitcode(status)
        if self._report.exists():
            told = json.loads(self._report.read_text(encoding="utf-8"))
            self.failed, self.tests_took = told["failed"], told["seconds"]
        if self.code < 0 and not self.failed:
            self.failed = f"signal {-self.code}"
        return True

    def end(self) -> None:
        """End it now, with all processes that it began."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    @property
    def killed(self) -> bool:
        """Whether a test failed; refused if none could be run."""
        if self.code not in (0, 1, 2) and not (self.code or 0) < 0:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{self.tests} did not run (code {self.code}):\n{text[-3000:]}")
        return self.code != 0


def judged(
    mutations: Sequence[Mutation],
    trees: Sequence[Path],
    clean: Mapping[tuple[str, ...], Run],
    show: Callable[[Run], None],
) -> list[Run]:
    """A run of each mutation, as many at a time as there are copies."""
    waiting, free, working = list(mutations), list(trees), list[Run]()
    done = []
    while waiting or working:
        while waiting and free:
            mutation, copy = waiting.pop(0), free.pop()
            text = (ROOT / mutation.path).read_text(encoding="utf-8")
            (copy / mutation.path).write_text(mutated(text, mutation), encoding="utf-8")
            before = clean[mutation.tests]
            most = SECONDS + TIMES * before.seconds
            working.append(Run(mutation=mutation, copy=copy, most=most, known=before.tests_took))
        for run in awaited(working):
            assert run.mutation is not None
            working.remove(run)
            show(run)
            shutil.copyfile(ROOT / run.mutation.path, run.copy / run.mutation.path)
            free.append(run.copy)
            done.append(run)
    return done


def awaited(working: Sequence[Run]) -> list[Run]:
    """Those runs that have ended, one at least; all are ended where waiting is interrupted."""
    try:
        while not (over := [run for run in working if run.ended()]):
            time.sleep(0.02)
    except BaseException:
        for run in working:
            run.end()
        raise
    return over


def clean_runs(mutations: Sequence[Mutation], copy: Path) -> dict[tuple[str, ...], Run]:
    """The tests of each mutation, run without it; refused if they do not pass then."""
    found: dict[tuple[str, ...], Run] = {}
    for tests in dict.fromkeys(mutation.tests for mutation in mutations):
        run = Run(tests=tests, copy=copy, most=3600.0)
        awaited([run])
        if run.killed:
            raise RuntimeError(f"without any mutation {run.failed} fails: mend it first.")
        found[tests] = run
    return found


# --- what is printed -----------------------------------------------------------------------------


def shortened(text: str, width: int) -> str:
    """The text, its end left out where there is no room."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def verdict(run: Run) -> str:
    """By whom a mutation was killed, or that it was not and why that is no harm."""
    assert run.mutation is not None
    if run.killed:
        late = "  (had a reason to survive: remove it)" if run.mutation.survives else ""
        return f"killed by {run.failed.rpartition('/')[2]}{late}"
    return f"SURVIVED ({run.mutation.survives or 'no reason given'})"


def print_run(run: Run) -> None:
    """One row of the table."""
    assert run.mutation is not None
    file = run.mutation.path.removeprefix("src/r2et/")
    what = f"{shortened(file, 34):34}  {shortened(str(run.mutation), 76):76}"
    print(f"{what}  {verdict(run)}  {run.seconds:.1f} s", flush=True)


def passed(runs: Sequence[Run]) -> bool:
    """Print totals by file and all survivors; whether enough were killed and the rest explained."""
    files: dict[str, list[Run]] = {}
    for run in runs:
        assert run.mutation is not None
        files.setdefault(run.mutation.path.removeprefix("src/r2et/"), []).append(run)
    print(f"\n{'file':44}  {'killed':>6}  of")
    for file, some in sorted(files.items()):
        print(f"{file:44}  {sum(run.killed for run in some):6}  {len(some)}")
    survivors = [run for run in runs if not run.killed]
    killed = len(runs) - len(survivors)
    print(f"{'all':44}  {killed:6}  {len(runs)}  ({killed / len(runs):.1%})")
    for run in survivors:
        print(f"{run.mutation.path}: {run.mutation}  {verdict(run)}")  # type: ignore[union-attr]
    explained = all(run.mutation and run.mutation.survives for run in survivors)
    return explained and killed >= LEAST * len(runs)


def main(words: Sequence[str] | None = None) -> int:
    """Try the mutations; 0 if enough of them are killed and all others explained."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], help="mutations whose file or text has one of these"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at once")
    given = parser.parse_args(words)
    chosen = [
        each for each in listed() if any(part in f"{each.path} {each}" for part in given.only)
    ]
    if not chosen or given.jobs < 1:
        parser.error(f"of {len(listed())} mutations none has {given.only!r}, or jobs < 1.")
    for mutation in chosen:
        mutated((ROOT / mutation.path).read_text(encoding="utf-8"), mutation)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an interrupt: what is open is shut
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with copies(given.jobs) as trees:
        begun = time.monotonic()
        clean = clean_runs(chosen, trees[0])
        took = sum(run.seconds for run in clean.values())
        print(f"{len(clean)} sets of tests pass without mutation in {took:.0f} s.", flush=True)
        runs = judged(chosen, trees, clean, show=print_run)
        good = passed(runs)
        print(f"{time.monotonic() - begun:.0f} s with {given.jobs} at a time.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
