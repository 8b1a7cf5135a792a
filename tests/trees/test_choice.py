"""Which penalty is chosen: limits first, then what still breaks, then what it costs."""

from dataclasses import replace

import pytest

from r2et.trees.stabilize import Measured, Tried, _chosen, _standard_error

BEFORE = Measured(auc=0.8, overlap=0.4, broken=(0.2, 0.4))


def tried(auc: float, overlap: float, *broken: float, own: float | None = None) -> Tried:
    measured = Measured(auc=auc, overlap=overlap, broken=broken, own=own)
    return Tried(penalty=0.1, widest=False, edges=3, measured=measured, within=False)


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        # What goes beyond a limit is not taken while something is within.
        ([tried(0.79, 0.4, 0.0, 0.0), tried(0.799, 0.4, 0.18, 0.36)], 1),
        ([tried(0.8, 0.44, 0.0, 0.0), tried(0.8, 0.41, 0.18, 0.36)], 1),
        ([tried(0.8, 0.4, 0.0, 0.0, own=0.5), tried(0.8, 0.4, 0.18, 0.36, own=0.8)], 1),
        # The width that fares worst counts.
        ([tried(0.8, 0.4, 0.0, 0.3), tried(0.8, 0.4, 0.1, 0.2)], 1),
        # A gain of accuracy is no loss, and of equals the one farther from its limits is taken.
        ([tried(0.81, 0.4, 0.1, 0.2), tried(0.798, 0.4, 0.1, 0.2)], 0),
        ([tried(0.8, 0.42, 0.1, 0.2), tried(0.8, 0.39, 0.1, 0.2)], 1),
        # Less that breaks is not worth coming near to a limit.
        ([tried(0.8, 0.428, 0.01, 0.02), tried(0.8, 0.41, 0.05, 0.1)], 1),
        # If nothing is within, what comes nearest.
        ([tried(0.7, 0.4, 0.0, 0.0), tried(0.796, 0.4, 0.1, 0.2)], 1),
    ],
)
def test_limits_come_first_then_what_breaks(trials: list[Tried], best: int) -> None:
    found = _chosen(BEFORE, trials, auc_loss=0.003, overlap_gain=0.03)
    assert [each.chosen for each in found] == [at == best for at in range(len(trials))]


def test_the_worth_of_a_trial_by_hand() -> None:
    # Half of what was broken is left, which may, and a third and two thirds of limits are used up.
    (found,) = _chosen(BEFORE, [tried(0.799, 0.42, 0.1, 0.2)], 0.003, 0.03)
    assert found.within
    assert found.worth == pytest.approx(1 + 0.25 * (1 + 1 / 3 + 2 / 3) / 3)


def test_a_margin_is_kept_to_the_limits() -> None:
    sure = tried(0.798, 0.42, 0.1, 0.2)
    for margins in ({"auc_margin": 0.0015}, {"overlap_margin": 0.015}):
        unsure = replace(tried(0.798, 0.42, 0.0, 0.0), **margins)
        found = _chosen(BEFORE, [unsure, sure], auc_loss=0.003, overlap_gain=0.03)
        assert [each.within for each in found] == [False, True]
        assert found[1].chosen


def test_a_standard_error_by_hand() -> None:
    # Deviations 1, 0 and -1: a variance of 1, and the mean of three.
    assert _standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / 3**0.5)
    assert _standard_error([1.0]) == 0
