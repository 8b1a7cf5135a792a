"""Every mutation of `make mutants` still applies, and survivors are told from killed ones."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from refusals import refusal
from tools.mutants import ROOT, Mutation, Run, listed, mutated, passed

MUTATIONS = listed()


def test_there_are_enough_in_every_area() -> None:
    assert len(MUTATIONS) >= 150
    areas = {re.sub(r"src/r2et/(\w+)(\.py|/).*", r"\1", mutation.path) for mutation in MUTATIONS}
    assert areas == {
        *("actionable", "attacks", "auditing", "bands", "certification", "core", "evaluation"),
        *("experiments", "explainers", "methods", "metrics", "theory", "training", "trees"),
    }


@pytest.mark.parametrize("path", sorted({mutation.path for mutation in MUTATIONS}))
def test_every_mutation_still_applies(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for mutation in MUTATIONS:
        if mutation.path == path:
            changed = mutated(text, mutation)
            assert changed != text
            if path.endswith(".py"):
                compile(changed, path, "exec")


def test_no_mutation_is_listed_twice() -> None:
    each = [(mutation.path, mutation.was, mutation.now, mutation.at) for mutation in MUTATIONS]
    assert len(set(each)) == len(each)


@pytest.mark.parametrize("test", sorted({test for each in MUTATIONS for test in each.tests}))
def test_tests_that_should_notice_exist(test: str) -> None:
    file, *names = test.split("::")
    assert (ROOT / file).is_file()
    text = (ROOT / file).read_text(encoding="utf-8")
    assert all(f"def {name.partition('[')[0]}(" in text for name in names)


# --- the tool itself ---

ONE = Mutation(path="a.py", kind="sign", was="a - b", now="a + b", tests=("tests/test_a.py",))


def test_a_mutation_says_where_it_is() -> None:
    assert mutated("x = a - b\n", ONE) == "x = a + b\n"
    text = "x = a - b\ny = a - b\n"
    assert mutated(text, replace(ONE, at=2)) == "x = a - b\ny = a + b\n"
    assert "must have 'a - b' once, found 2 times" in refusal(lambda: mutated(text, ONE))
    assert "found 0 times: adapt" in refusal(lambda: mutated("x = b - a\n", ONE))
    assert "3 times or more, found 2" in refusal(lambda: mutated(text, replace(ONE, at=3)))


def test_lists_are_read_with_the_tests_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[[file]]\npath = "a.py"\ntests = ["tests/test_a.py"]\nmutations = [\n'
        "    { kind = 'sign', was = 'a - b', now = 'a + b' },\n"
        "    { kind = 'sign', was = 'c', now = '-c', at = 2, tests = ['t'], survives = 'why' },\n"
        "]\n"
    )
    first, second = listed(tmp_path)
    assert first == ONE
    assert (second.tests, second.at, second.survives) == (("t",), 2, "why")


def ended(codes: Sequence[int], survives: str = "") -> list[Run]:
    """Runs that are over, 0 survived and 1 killed, without any process."""
    found = []
    for code in codes:
        run = Run.__new__(Run)
        run.mutation = replace(ONE, survives="" if code else survives)
        run.tests, run.code, run.failed, run.seconds = ONE.tests, code, "tests/test_a.py::t", 1.0
        found.append(run)
    return found


def test_survivors_need_a_reason_and_must_be_few(capsys: pytest.CaptureFixture[str]) -> None:
    assert passed(ended([1] * 20))
    assert passed(ended([1] * 19 + [0], "the same number either way"))
    assert "SURVIVED (the same number either way)" in capsys.readouterr().out
    assert not passed(ended([1] * 19 + [0]))
    assert "SURVIVED (no reason given)" in capsys.readouterr().out
    assert not passed(ended([1] * 18 + [0, 0], "of several reasons"))
    assert "18  20  (90.0%)" in capsys.readouterr().out
