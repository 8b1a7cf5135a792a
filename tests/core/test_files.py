import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2et.core import files
from r2et.core.files import append_rows, clear_aside, held, read_rows, write_aside, write_text
from refusals import refusal


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- whole files ------------------------------------------------------------------------------


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "page.html"
    assert write_text(path, "ä€\n") == path
    assert path.read_bytes() == "ä€\n".encode()
    assert write_text(path, "shorter").read_text() == "shorter"
    assert names(path.parent) == ["page.html"]


def test_a_file_can_be_read_by_whom_the_user_allows(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        path = write_text(tmp_path / "page.html", "text")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    def write(aside: Path) -> None:
        aside.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    message = refusal(lambda: write_aside(tmp_path / "page.html", write))
    assert "page.html: No space left on device" in message
    assert names(tmp_path) == []


@pytest.mark.parametrize("problem", [RuntimeError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", ["old", None])
def test_a_failed_write_leaves_what_was_there(
    problem: BaseException, old: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    if old is not None:
        path.write_text(old)

    def half(aside: Path) -> None:
        assert aside.parent == tmp_path
        aside.write_text("half")
        raise problem

    with pytest.raises(type(problem)):
        write_aside(path, half)
    assert names(tmp_path) == ([] if old is None else ["page.html"])
    assert old is None or path.read_text() == old


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = write_text(tmp_path / "page.html", "old")
    seen = []

    def slowly(aside: Path) -> None:
        aside.write_text("ne")
        seen.append(path.read_text())
        aside.write_text("new")
        seen.append(path.read_text())

    write_aside(path, slowly)
    assert seen == ["old", "old"]
    assert path.read_text() == "new"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "page.html"
    for write in (
        lambda: write_text(path, "text"),
        lambda: append_rows(path, [{"a": 1}]),
        lambda: write_text(path.parent / "deeper" / "page.html", "text"),
    ):
        message = refusal(write)
        assert "cannot write" in message
        assert str(path.parent) in message
        assert "choose a folder" in message
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_folder_of_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for write in (write_text, append_rows):
        content = "text" if write is write_text else [{"a": 1}]
        assert "cannot write" in refusal(
            lambda write=write, content=content: write(tmp_path / "results", content)
        )
    assert names(tmp_path) == ["results"]
    assert names(tmp_path / "results") == []


# --- rows -------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, width=64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=5))
def test_rows_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        append_rows(path, rows[:2])
        append_rows(path, rows[2:])
        assert read_rows(path) == rows


def test_nothing_is_read_where_nothing_is(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "results.jsonl") == []
    append_rows(tmp_path / "results.jsonl", [])
    assert read_rows(tmp_path / "results.jsonl") == []


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), object()])
def test_a_row_that_is_no_json_leaves_the_file_alone(wrong: object, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_rows(path, [{"a": 1}])
    with pytest.raises((ValueError, TypeError), match=r"JSON"):
        append_rows(path, [{"a": 2}, {"a": wrong}])
    assert read_rows(path) == [{"a": 1}]


WHOLE = '{"a": 1, "text": "x y"}\n'


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_line_cut_short_anywhere_costs_itself_only(cut: int, tmp_path: Path) -> None:
    # Cut before the newline only, the row is whole.
    path = tmp_path / "results.jsonl"
    append_rows(path, [{"before": 1}])
    with path.open("a") as file:
        file.write(WHOLE[:cut])
    kept = [json.loads(WHOLE)] if cut == len(WHOLE) - 1 else []
    assert read_rows(path) == [{"before": 1}, *kept]
    append_rows(path, [{"after": 1}])
    assert read_rows(path) == [{"before": 1}, *kept, {"after": 1}]
    append_rows(path, [{"last": 1}])
    assert read_rows(path) == [{"before": 1}, *kept, {"after": 1}, {"last": 1}]


def test_lines_that_are_no_rows_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('\n17\n[1]\n"text"\nnull\n{"a": 1}\nnonsense\n\n{"a": 2}\n')
    assert read_rows(path) == [{"a": 1}, {"a": 2}]


def test_rows_that_several_processes_append_are_all_there(tmp_path: Path) -> None:
    # The module is loaded without the rest of its package, which needs no torch.
    path, script = tmp_path / "results.jsonl", tmp_path / "script.py"
    script.write_text(
        "import sys, types\n"
        "from pathlib import Path\n"
        "package = sys.modules['r2et'] = types.ModuleType('r2et')\n"
        "package.__path__ = [str(Path(sys.argv[1]).parents[1])]\n"
        "from r2et.core import files\n"
        "sys.stdin.read()\n"
        "for number in range(50):\n"
        "    row = {'who': int(sys.argv[3]), 'number': number, 'text': 'x' * 40 * (number % 5)}\n"
        "    files.append_rows(Path(sys.argv[2]), [row])\n"
    )
    assert files.__file__ is not None
    running = [
        subprocess.Popen(
            [sys.executable, script, files.__file__, path, str(who)], stdin=subprocess.PIPE
        )
        for who in range(4)
    ]
    for process in running:  # all start together
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    found = sorted((row["who"], row["number"], len(row["text"])) for row in read_rows(path))
    assert found == [(who, n, 40 * (n % 5)) for who in range(4) for n in range(50)]
    # A line of another process may be seen unfinished, which costs an empty line and no more.
    assert len([line for line in path.read_text().splitlines() if line]) == 200


def test_appending_reaches_the_disk_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "results.jsonl"
    append_rows(path, [{"a": 1}])
    assert synced == [len('{"a": 1}\n')] == [path.stat().st_size]


def test_a_file_reaches_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append((os.fstat(handle).st_size, path.exists()))
        real(handle)

    path = tmp_path / "page.html"
    monkeypatch.setattr(os, "fsync", fsync)
    write_text(path, "four")
    assert seen == [(4, False)]


# --- one process at a time --------------------------------------------------------------------

ALONE = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location('files', sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
"""
HOLD = (
    ALONE
    + """
with files.held(Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""
)


def test_a_held_folder_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with held(out):
        message = refusal(lambda: held(out).__enter__())
        assert f"{out} is in use by process {os.getpid()} on " in message
        assert "choose another folder" in message
    with pytest.raises(RuntimeError, match="whatever"), held(out):
        raise RuntimeError("whatever")
    with held(out):
        pass
    assert names(out) == [".lock"]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(files.__file__), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        message = refusal(lambda: held(tmp_path).__enter__())
        assert f"in use by process {process.pid} on" in message
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert (tmp_path / ".holder").exists()  # it could not tidy up
    with held(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / ".holder").read_text()


def test_a_holder_that_has_not_told_its_name_yet_is_another_process(tmp_path: Path) -> None:
    with held(tmp_path):
        (tmp_path / ".holder").unlink()
        assert "in use by another process" in refusal(lambda: held(tmp_path).__enter__())


def test_a_folder_that_cannot_be_made_cannot_be_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot write" in refusal(lambda: held(tmp_path / "file" / "out").__enter__())


def test_only_what_was_left_half_written_is_cleared(tmp_path: Path) -> None:
    asides: list[Path] = []

    def write(aside: Path) -> None:
        asides.append(aside)

    write_aside(tmp_path / "page.html", write)
    asides[0].write_text("half")  # as a process that was killed at this moment leaves it
    others = [".lock", "notes.tmp", ".notes.tmp", ".page.0123.tmp"]
    for name in others:
        (tmp_path / name).write_text("mine")
    clear_aside(tmp_path)
    assert names(tmp_path) == sorted([*others, "page.html"])
    clear_aside(tmp_path / "nowhere")
