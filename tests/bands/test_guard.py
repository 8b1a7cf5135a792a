"""What the guard keeps of several attempts."""

from dataclasses import replace

from r2et.bands.guard import Attempt, least_auc, more_individual, with_kept

LINES = Attempt(
    teacher="lines", weight=0.1, interactions=False, auc=0.85, trees_auc=0.845, lines_auc=0.85,
    broken=(0.01,), overlap=0.33, kept=False,
)  # fmt: skip
TREES = replace(LINES, teacher="trees", auc=0.847, overlap=0.25)


def test_trees_are_taken_where_people_share_clearly_less_and_accuracy_is_kept() -> None:
    assert least_auc(TREES, 0.004) == 0.85 - 0.004
    assert more_individual([LINES], TREES, 0.004) == [TREES]
    assert more_individual([LINES], replace(TREES, auc=0.8459), 0.004) == [LINES]
    assert more_individual([LINES], replace(TREES, overlap=0.32), 0.004) == [LINES]
    assert more_individual([LINES], replace(TREES, overlap=None), 0.004) == [LINES]
    assert more_individual([replace(LINES, overlap=None)], TREES, 0.004)[0].teacher == "lines"


def test_the_last_attempt_is_kept_if_it_is_enough() -> None:
    low = replace(LINES, auc=0.8)
    kept = with_kept([low, LINES], 0.004)
    assert [each.kept for each in kept] == [False, True]
    worse = with_kept([replace(low, auc=0.81), replace(low, auc=0.8105)], 0.004)
    assert [each.kept for each in worse] == [True, False]  # about as good, and more stable
