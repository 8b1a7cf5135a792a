"""Numbers of README and docs are those of committed rows."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from made_results import row_of
from r2et.evaluation.results import ER, STRONG, KeptCurve, Result, Series
from reproduction.claims import (
    GENERATED,
    claims_in,
    corrected,
    like,
    problems_of,
    tables_in,
    unmarked_tables,
)
from reproduction.page import keep_rows, kept_rows
from reproduction.reproduce import stripped

ROOT = Path(__file__).parents[2]
Rows = Sequence[Result]


def a_row(method: str, seed: int, strong: float, **measures: float) -> Result:
    row = row_of(method, seed, recipe="converged")
    curve = KeptCurve(epsilon=(0.0, 0.5, 1.0), strong=(1.0, (1 + strong) / 2, strong))
    given = row.measures | {STRONG: strong, ER: 0.9} | measures
    return replace(row, measures=given, series=Series(curve=curve))


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Three methods on seeds 5 and 6, P@8 under the strong attack 20 and 30, 60 and 90, 100."""
    found = [
        a_row("vanilla", 5, 0.2, clean_auc=0.88, strong_kappa=-0.5),
        a_row("vanilla", 6, 0.3, clean_auc=0.89, strong_kappa=-0.7),
        a_row("steadfast", 5, 0.6, clean_auc=0.879, strong_kappa=0.25),
        a_row("steadfast", 6, 0.9, clean_auc=0.888),
        a_row("linear", 5, 1.0),
        a_row("linear", 6, 1.0),
    ]
    del found[3].measures["strong_kappa"]
    return found


# Means of (20, 30) and (60, 90) are 25 and 75, their deviations 10 and 30 over the root of two.
# At 0.5 half of what is lost at 1 is lost: 62.5 and 87.5.
TABLE = """\
A run:

<!-- rows: recipe=converged dataset=adult seeds=5-6 -->

| method | AUC | P@8 strong, ε = 0.5 | P@8 strong, ε = 1 | Kappa strong |
|---|---|---|---|---|
| Linear (control) | {linear} | 100.0 | 100.0 ± 0.0 | no individual reasons |
| Vanilla | 0.8850 | 62.5 | 25.0 ± 7.1 | -0.60 |
| Steadfast | 0.8835 | 87.5 | **75.0 ± 21.2** | 0.25 (1 of 2) |
"""


def small(rows: str, heading: str, line: str) -> str:
    return f"<!-- rows: {rows} -->\n\n| | {heading} |\n|---|---|\n{line}"


def wrong(text: str, rows: Rows, page: str = "page.md") -> list[str]:
    return [str(each) for each in claims_in(page, text, rows) if each.said != each.due]


def linear_auc(rows: Rows) -> str:
    values = [row.measures["clean_auc"] for row in rows if row.method == "linear"]
    return f"{sum(values) / 2:.4f}"


def test_a_table_holds_cell_by_cell(rows: Rows) -> None:
    text = TABLE.format(linear=linear_auc(rows))
    assert wrong(text, rows) == []
    assert len(claims_in("page.md", text, rows)) == 12


@pytest.mark.parametrize(
    ("cell", "other", "said"),
    [
        ("25.0 ± 7.1", "25.1 ± 7.1", "P@8 strong, ε = 1 of Vanilla is 25.1 ± 7.1"),
        ("25.0 ± 7.1", "25 ± 7.1", "P@8 strong, ε = 1 of Vanilla is 25 ± 7.1"),
        ("62.5", "62.6", "P@8 strong, ε = 0.5 of Vanilla is 62.6, and the rows say 62.5."),
        ("0.25 (1 of 2)", "0.25", "Kappa strong of Steadfast is 0.25, and the rows say 0.25 (1 of"),
        ("no individual reasons", "", "is left out, and the rows say no individual reasons."),
    ],
)
def test_a_wrong_number_is_named_with_its_place(
    cell: str, other: str, said: str, rows: Rows
) -> None:
    right = TABLE.format(linear=linear_auc(rows))
    text = right.replace(f" {cell} ", f" {other} ")
    assert text != right
    (found,) = wrong(text, rows, "docs/some.md")
    line = next(n for n, each in enumerate(text.splitlines(), 1) if each not in right.splitlines())
    assert found.startswith(f"docs/some.md:{line}: ")
    assert said in found
    assert corrected(text, claims_in("docs/some.md", text, rows)) == right


def test_question_marks_are_filled_in(rows: Rows) -> None:
    right = TABLE.format(linear=linear_auc(rows))
    head, rule, body = right.partition("|---|---|---|---|---|\n")
    asked = re.sub(r"-?\d+\.\d+( \(1 of 2\))?", "?", body)
    asked = f"{head}{rule}{asked}"
    assert asked.count("?") > 10
    assert corrected(asked, claims_in("page.md", asked, rows)) == right


OURS = "converged adult steadfast"
PROSE = f"""\
It keeps 75.0<!--= {OURS} strong_precision --> % (sd 21<!--= {OURS} strong_precision sd -->),
+50<!--= {OURS} strong_precision minus=vanilla --> points more, at an AUC
.0015<!--= converged adult vanilla clean_auc minus=steadfast --> lower;
60<!--= {OURS} strong_precision seeds=5 --> on one split,
87.5<!--= {OURS} strong_precision at=0.5 --> at half the length, kappa on
1<!--= {OURS} strong_kappa count --> split,
p = .13<!--= {OURS} strong_precision minus=vanilla p -->.
"""


def test_numbers_in_prose_hold(rows: Rows) -> None:
    # Differences of the pairs are 40 and 60: t = 50 / (14.14 / sqrt(2)) = 5, one degree of freedom,
    # hence p = 1 - 2 atan(5) / pi = 0.1257.
    assert wrong(PROSE, rows) == []
    (found,) = wrong(PROSE.replace("+50<", "+51<"), rows)
    assert found == (
        "page.md:2: converged adult steadfast strong_precision minus=vanilla is +51, "
        "and the rows say +50."
    )
    asked = PROSE.replace("75.0<", "?<")
    assert corrected(asked, claims_in("page.md", asked, rows)) == PROSE


@pytest.mark.parametrize(
    ("said", "value", "due"),
    [
        ("0.88", 0.876, "0.88"),
        (".9", 0.876, ".9"),
        ("1,000", 2345.6, "2,346"),
        ("-0.1", -0.04, "0.0"),
        ("+0.1", -0.26, "-0.3"),
        ("−.1", -0.26, "−.3"),
        ("1.0e-3", 0.00012345, "1.2e-4"),
    ],
)
def test_a_number_is_written_as_the_one_before(said: str, value: float, due: str) -> None:
    assert like(said, value) == due


def test_lines_may_be_data_sets(rows: Rows) -> None:
    whole = [replace(row, recipe="paper") for row in rows]
    whole += [replace(row, dataset="bank") for row in whole if row.method != "steadfast"]
    text = """
<!-- rows: recipe=paper measure=er_precision -->

| | splits | AUC of Vanilla | Vanilla (published) | Steadfast |
|---|---|---|---|---|
| Adult | 2 | 0.8850 | 90.0 (87.6) | 90.0 |
| Bank | 2 | 0.8850 | 90.0 (83.0) | |
"""
    assert wrong(text, whole) == []
    (found,) = wrong(text.replace("(83.0)", "(83.1)"), whole)
    assert found.startswith(
        "page.md:7: Vanilla (published) of Bank is 90.0 (83.1), and the rows say "
    )


def test_the_best_by_validation_stands_beside_the_best_published() -> None:
    found = [row_of(method, 0) for method in ("vanilla", "sp", "r2et", "r2et-noh")]
    text = """
<!-- rows: recipe=paper measure=er_precision -->

| | Best R2ET by validation (published) | Best other by validation (published) |
|---|---|---|
| Adult | ? | ? |
"""
    best, other = claims_in("page.md", text, found)
    assert (best.due[-7:], other.due[-7:]) == (" (97.5)", " (97.4)")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("1<!--= converged adult steadfast strong_precision", "goes on in the next line"),
        ("1<!-- converged adult -->", "is no mark"),
        ("1<!--= converged adult steadfast -->", "is not read"),
        ("one<!--= converged adult steadfast strong_precision -->", "no number in front of it"),
        ("1<!--= converged adult steadfast strong -->", "no measure 'strong'"),
        ("1<!--= converged adult stedfast strong_precision -->", "no method 'stedfast'"),
        ("1<!--= converged bank vanilla strong_precision -->", "are not all there: keep those of"),
        ("1<!--= converged adult vanilla strong_precision seeds=5-7 -->", "are not all there"),
        ("1<!--= converged adult vanilla strong_precision at=0.3 -->", "choose of 0, 0.5, 1."),
        ("1<!--= converged adult linear strong_kappa -->", "have no mean of strong_kappa"),
        ("1<!--= converged adult vanilla clean_auc over=linear -->", "a mark has no 'over'"),
        ("1<!--= converged adult vanilla clean_auc seeds=five -->", "seeds='five' is not read"),
        (small("recipe=converged measure=auc", "SP", "| Adult | 1 |"), "no measure"),
        (small("recipe=converged measure=tie", "SP", "| Adlt | 1 |"), "'Adult'?"),
        (small("recipe=converged measure=tie", "SP", "| Adult |"), "fewer cells"),
        ("<!-- rows: recipe=converged dataset=adult -->", "has no table behind it"),
        ("<!-- not from rows: make bench -->", "has no table behind it"),
        ("<!-- not from rows: -->\n\n| a |\n|---|\n| 1 |", "is no mark"),
        ("<!-- rows: recipe=converged -->\n\n| a |\n|---|\n| 1 |", "is not read"),
        (
            small("recipe=converged dataset=adult", "ACU", "| SP | 1 |"),
            "'ACU' is no measure: did you mean 'AUC'?",
        ),
        (
            small("recipe=converged dataset=adult", "AUC", "| SP | 1 |"),
            "no method 'SP'",
        ),
    ],
)
def test_a_mark_that_is_about_nothing_is_refused(mark: str, said: str, rows: Rows) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        claims_in("docs/some.md", f"Text.\n\n{mark}\n", rows)
    assert re.match(r"docs/some\.md:\d: .*\.$", str(refusal.value))
    assert str(refusal.value).count("docs/some.md") == 1


def test_code_is_no_claim(rows: Rows) -> None:
    text = "Write `92<!--= nothing -->`.\n\n```\n<!-- rows: nothing -->\n| a | 1 |\n```\n"
    assert claims_in("page.md", text, rows) == []
    assert tables_in(text) == []


def test_tables_of_numbers_must_say_where_they_come_from() -> None:
    numbers = "| a | b |\n|---|---|\n| x | 92.5 ± 1 |\n| y | 3 |\n"
    words = "| a | b |\n|---|---|\n| x | 5 years, up only |\n| y | swap 2 |\n"
    assert unmarked_tables(f"Text:\n\n{numbers}\n{words}") == [3]
    assert unmarked_tables(f"<!-- not from rows: make strength -->\n\n{numbers}") == []
    assert unmarked_tables(f"<!-- not from rows: make strength -->\n\nText.\n\n{numbers}") == [5]


def test_kept_curves_can_be_kept_again(rows: Rows, tmp_path: Path) -> None:
    for row in rows:
        short = stripped(row)
        assert short.series.curve.strong == tuple(
            float(f"{v:.6g}") for v in row.series.curve.strong
        )
        assert stripped(short) == short
    keep_rows(rows, tmp_path)
    assert [row.key for row in kept_rows(tmp_path)] == [
        row.key for row in sorted(rows, key=lambda row: (row.seed, row.method != "linear"))
    ]


# --- this repository ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed() -> Rows:
    return kept_rows(ROOT / "docs" / "results")


def test_the_numbers_of_all_pages_are_those_of_the_rows(committed: Rows) -> None:
    assert problems_of(ROOT, committed) == [], "run `make claims`, then `make claims ARGS=--write`."


def test_the_written_page_answers_for_its_prose_only(rows: Rows, tmp_path: Path) -> None:
    page = tmp_path / GENERATED[0]
    page.parent.mkdir()
    (tmp_path / "README.md").write_text("Nothing.\n")
    text = f"<!-- Written by hand. -->\n\n{PROSE}\n| a | b |\n|---|---|\n| x | 1.5 |\n"
    page.write_text(text)
    assert problems_of(tmp_path, rows) == []
    page.write_text(text.replace("75.0<", "75.1<"))
    (told,) = problems_of(tmp_path, rows, write=True)
    assert told.startswith("docs/results.md:3: ")
    assert told.endswith("Its prose stands in reproduction/page.py.")
    assert "75.1<" in page.read_text(), "it is written from its rows, not by hand"


def test_numbers_are_written_into_all_other_pages(rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    readme = tmp_path / "README.md"
    right = TABLE.format(linear=linear_auc(rows))
    readme.write_text(right.replace("25.0 ± 7.1", "? ± ?"))
    (told,) = problems_of(tmp_path, rows, write=True)
    assert told.startswith("Written: README.md:8: ")
    assert readme.read_text() == right
    assert problems_of(tmp_path, rows) == []


@pytest.mark.parametrize("page", ["README.md", "docs/papers/in-brief.md"])
def test_what_looks_like_a_result_is_marked(page: str, committed: Rows) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(claims_in(page, text, committed)) >= 28
    code = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    prose = "\n".join(line for line in code.splitlines() if not line.startswith("|"))
    bare = re.sub(r"[\d.]+<!--=.*?-->|<!--.*?-->", "", prose)
    assert re.findall(r"(?<![\w.])(?:\d\d\.\d|0?\.\d{4})(?![\w.])", bare) == []
