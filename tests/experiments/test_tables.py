import csv
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from r2et.evaluation.decisions import Change, FeatureShare, TableDecision
from r2et.evaluation.results import (
    CHANGED,
    COLUMNS,
    MEASURES,
    STRONG,
    Evaluation,
    Result,
    result_from,
)
from r2et.experiments.tables import (
    BEST,
    CHOSEN,
    check_rows,
    comparisons,
    names_chosen,
    summarise,
    table_rows,
    why_missing,
)
from r2et.metrics import METRICS
from reproduction.contests import BEST_R2ET, BEST_RIVAL, contests
from reproduction.published import published_in

LABELS = {
    "linear": "Linear (control)",
    "vanilla": "Vanilla",
    "r2et": "R2ET",
    "r2et-noh": "R2ET\\H",
    "r2et-mm": "R2ET-mm",
    "steadfast": "Steadfast",
    "steadfast-quick": "Steadfast (quick)",
}


def made_row(
    method: str, seed: int, strong: float = 0.5, *, valid: float = 0.5, **measures: float
) -> Result:
    """A row as a run writes it, small enough to be checked by eye: 5 features, k = 2."""
    at_small = 1 - (1 - strong) / 2
    precision = {f"{name}_precision": strong for name in ("er", "mse", "strong", "applicant")}
    table = {
        "key": f"{method}-{seed}",
        "dataset": "adult",
        "data": "0123456789ab",
        "recipe": "tiny",
        "seed": seed,
        "method": method,
        "label": LABELS.get(method, method),
        "version": "0.1.0",
        "candidates": []
        if method == "linear"
        else [{"settings": {}, "auc": 0.9, "precision": valid}],
        "floor": 0.88,
        "selected_by": "strong",
        "passed": True,
        "chosen": None if method == "linear" else {"thickness": 0.1},
        "valid": {"settings": {}, "auc": 0.9, "precision": valid},
        "measures": {
            "clean_auc": 0.9,
            **precision,
            "er_thickness": 0.95,
            "saliency_norm": 3.0,
            "flippable": 0.1,
            "off_data_share": 0.2,
            "exchange_agreement": 0.92,
            "exchange_size": 0.81,
            "distinct_sets": 10.0,
            "class_overlap": 0.6,
            "strong_kappa": 0.1,
            "tie": 0.0,
            "er_changed": 0.0,
            "mse_changed": 0.0,
            "strong_changed": 0.0,
            "last_doubling": -0.01,
            **measures,
        },
        "intervals": {},
        "series": {
            "curve": {
                "epsilon": [0.0, 0.25, 1.0],
                "strong": [1.0, at_small, strong],
                "er": [1.0, at_small, strong],
            },
            "profile": {
                "median": [1.0, 0.8, 0.3, 0.2, 0.1],
                "low": [1.0, 0.7, 0.2, 0.1, 0.0],
                "high": [1.0, 0.9, 0.4, 0.3, 0.2],
            },
            "scatter": {
                "first_flip": [10, 50, 101],
                "thickness": [0.8, 0.9, 1.0],
                "never_flipped": 1 / 3,
                "last_step": 100,
                "correlation": {"thickness": 0.9, "gaussian_thickness": 0.5, "hessian_norm": -0.1},
            },
        },
        "change_buys": ["age: up by 5 years", "fixed: gender"],
        "alarms": ["random points do more damage for 7% of the examples."] if seed == 1 else [],
        "examples": 3,
        "features": 5,
        "k": 2,
        "seconds": 1.0,
    }
    row = result_from(Result, table, "a made row")
    return replace(row, decisions=(made_decision(7), made_decision(3)))


def with_valid(row: Result, **changes: float) -> Result:
    """The row, judged otherwise on validation data."""
    assert row.valid is not None
    return replace(row, valid=replace(row.valid, **changes))


def made_decision(row: int) -> TableDecision:
    return TableDecision(
        row=row,
        predicted=">50K",
        actual="<=50K",
        probability=(0.75, 0.625),
        cost=0.25,
        precision=0.5,
        values=(
            Change(name="age", before="39 years", after="41 years", moved=0.03),
            Change(name="gender", before="Female", after="Female", moved=0.0),
        ),
        before=(FeatureShare(name="age", share=0.4), FeatureShare(name="hours", share=0.2)),
        after=(
            FeatureShare(name="education: Masters", share=0.3),
            FeatureShare(name="age", share=0.2),
        ),
    )


def failed_row(method: str, seed: int) -> Result:
    """A row as a run writes it when no model of a method is above the AUC floor."""
    row = made_row(method, seed)
    head = {each.name for each in fields(Result)} - {each.name for each in fields(Evaluation)}
    kept: Any = {name: getattr(row, name) for name in head}
    return replace(Result(k=row.k, **kept), passed=False, chosen=None, valid=None)


def test_a_summary_is_the_mean_and_spread_over_the_seeds() -> None:
    rows = [made_row("vanilla", 0, 0.4), made_row("vanilla", 1, 0.6)]
    (summary,) = summarise(rows)
    mean = summary.means[STRONG]
    # Mean of 0.4 and 0.6 is 0.5; each is 0.1 away, hence sd = sqrt(2 * 0.01 / 1) = 0.1414.
    assert (mean.value, mean.sd, mean.count) == (
        pytest.approx(0.5),
        pytest.approx(0.02**0.5),
        2,
    )
    assert (summary.seeds, summary.failed) == ((0, 1), ())
    assert summary.chosen == {0: {"thickness": 0.1}, 1: {"thickness": 0.1}}


def test_methods_stand_in_the_order_of_their_first_row() -> None:
    rows = [made_row(name, seed) for seed in (0, 1) for name in ("vanilla", "r2et", "linear")]
    assert [each.method for each in summarise(rows)] == ["vanilla", "r2et", "linear"]


def test_a_failed_seed_is_named_and_not_filled() -> None:
    rows = [made_row("r2et", 0, 0.8), failed_row("r2et", 1), failed_row("r2et-mm", 0)]
    some, none = summarise(rows)
    assert (some.seeds, some.failed, some.means[STRONG].count) == ((0,), (1,), 1)
    assert some.means[STRONG].value == 0.8
    assert (none.seeds, none.failed, none.means, none.chosen) == ((), (0,), {}, {})


def test_a_measure_that_one_seed_lacks_has_no_mean() -> None:
    rows = [made_row("vanilla", 0), made_row("vanilla", 1)]
    del rows[1].measures["tie"]
    (summary,) = summarise(rows)
    assert "tie" not in summary.means
    assert STRONG in summary.means


def test_kappa_is_the_mean_over_the_seeds_with_individual_reasons() -> None:
    rows = [made_row("r2et", seed, strong_kappa=kappa) for seed, kappa in enumerate((0.1, 0.3, 9))]
    del rows[2].measures["strong_kappa"]
    (summary,) = summarise(rows)
    mean = summary.means["strong_kappa"]
    assert (mean.value, mean.count) == (pytest.approx(0.2), 2)
    assert summary.seeds_behind("strong_kappa") == "2 of 3"
    assert summary.seeds_behind(STRONG) == ""
    assert not summary.lacks(MEASURES["strong_kappa"])
    assert summarise(rows, ["strong_kappa", "strong_kappa"])[0].means == {"strong_kappa": mean}


def test_nobody_has_individual_reasons_or_nobody_looked() -> None:
    kappa = MEASURES["strong_kappa"]
    rows = [made_row("linear", seed) for seed in (0, 1)]
    for row in rows:
        del row.measures[kappa.key]
    assert summarise(rows)[0].lacks(kappa)
    del rows[1].measures["class_overlap"]
    (summary,) = summarise(rows)
    assert not summary.lacks(kappa)
    rows[0].measures[kappa.key] = 0.1
    assert kappa.key not in summarise(rows)[0].means, "the second row was not looked at"


def test_changed_predictions_are_those_of_the_worst_attack() -> None:
    row = made_row("vanilla", 0, **{"mse_changed": 0.03, "strong_changed": 0.01})
    assert row.numbers[CHANGED] == 0.03
    assert CHANGED not in failed_row("r2et", 0).numbers


def test_the_best_variant_is_chosen_on_validation_data() -> None:
    rows = [
        made_row("vanilla", 0, 0.99, valid=0.99),
        made_row("r2et", 0, 0.9, valid=0.6),
        made_row("r2et-mm", 0, 0.5, valid=0.7),  # worse on test data, and still the choice
        made_row("r2et", 1, 0.9, valid=0.8),
        failed_row("r2et-mm", 1),
        failed_row("r2et", 2),
        failed_row("r2et-mm", 2),
    ]
    assert BEST_R2ET.methods(rows) == {0: "r2et-mm", 1: "r2et"}
    best = BEST_R2ET.rows(rows)
    assert [(row.method, row.label) for row in best] == [(BEST, BEST_R2ET.label)] * 2
    assert [row.variant for row in best] == ["R2ET-mm", "R2ET"]
    assert [row.measures[STRONG] for row in best] == [0.5, 0.9]
    assert rows[2].method == "r2et-mm", "the given rows stay as they are"
    (summary,) = BEST_R2ET.summarise(rows)
    assert (summary.seeds, summary.failed) == ((0, 1), (2,))
    assert summary.means[STRONG].value == pytest.approx(0.7)


def test_of_equal_variants_the_more_accurate_then_the_first_is_chosen() -> None:
    rows = [made_row("r2et-noh", 0, valid=0.7), made_row("r2et", 0, valid=0.7)]
    assert BEST_R2ET.methods(rows) == CHOSEN.methods(rows) == {0: "r2et-noh"}
    rows[1] = with_valid(rows[1], auc=0.91)
    assert BEST_R2ET.methods(rows) == CHOSEN.methods(rows) == {0: "r2et"}
    rows[0] = with_valid(rows[0], precision=0.71)
    assert CHOSEN.methods(rows) == {0: "r2et-noh"}, "P@k comes before the AUC"


def rows_with_ours() -> list[Result]:
    """Ours is chosen on seed 0, R2ET on seed 1, and on seed 2 only ours has a model."""
    return [
        made_row("vanilla", 0, 0.3, valid=0.99),
        made_row("linear", 0, 1.0, valid=1.0),
        made_row("r2et", 0, 0.5, valid=0.6),
        made_row("steadfast", 0, 0.9, valid=0.8),
        made_row("vanilla", 1, 0.3, valid=0.99),
        made_row("r2et", 1, 0.6, valid=0.7),
        made_row("steadfast", 1, 0.8, valid=0.6),
        failed_row("r2et", 2),
        made_row("steadfast", 2, 0.7, valid=0.5),
    ]


def test_a_run_chooses_among_r2et_and_ours() -> None:
    rows = rows_with_ours()
    assert CHOSEN.methods(rows) == {0: "steadfast", 1: "r2et", 2: "steadfast"}
    chosen = CHOSEN.rows(rows)
    assert [(row.method, row.label) for row in chosen] == [(BEST, CHOSEN.label)] * 3
    assert [row.variant for row in chosen] == ["Steadfast", "R2ET", "Steadfast"]
    (summary,) = CHOSEN.summarise(rows)
    assert (summary.seeds, summary.failed) == ((0, 1, 2), ())
    assert summary.means[STRONG].value == pytest.approx((0.9 + 0.6 + 0.7) / 3)
    (best,) = (each for each in comparisons(rows, STRONG) if each.method == BEST)
    assert (best.label, best.count) == (CHOSEN.label, 2)
    assert best.difference == pytest.approx(0.45)
    line = table_rows(rows)[-1]
    assert (line["method"], line["label"]) == (BEST, CHOSEN.label)
    assert line["trained with"] == {"0": "Steadfast", "1": "R2ET", "2": "Steadfast"}
    assert names_chosen(rows) == "Steadfast on seeds 0 and 2; R2ET on seed 1"
    assert names_chosen(rows[:4]) == "Steadfast"
    assert names_chosen(rows[:2]) == ""


def test_ours_changes_nothing_in_the_tables_of_the_papers() -> None:
    rows = rows_with_ours()
    without = [row for row in rows if row.method != "steadfast"]
    assert BEST_R2ET.methods(rows) == BEST_R2ET.methods(without) == {0: "r2et", 1: "r2et"}
    assert BEST_R2ET.rows(rows) == BEST_R2ET.rows(without)
    assert BEST_R2ET.summarise(rows) == BEST_R2ET.summarise(without)
    assert BEST_RIVAL.methods(rows) == {0: "vanilla", 1: "vanilla"}, (
        "ours is no rival of the papers"
    )
    assert contests(rows, STRONG) == contests(without, STRONG)
    assert {each.count for each in contests(rows, STRONG)} == {1, 2}


def test_a_missing_model_is_put_down_to_its_cause() -> None:
    rows = [
        failed_row("r2et", 0),
        failed_row("r2et", 1),
        replace(failed_row("r2et", 2), floor=None),
    ]
    assert why_missing(rows, []) == ""
    assert why_missing(rows, [0, 1]) == "no model above the AUC floor on seeds 0 and 1"
    assert why_missing(rows, [1, 2]) == (
        "no model above the AUC floor on seed 1; "
        "no AUC to keep on seed 2, as Vanilla could not be trained"
    )


def test_without_variants_there_is_no_best() -> None:
    rows = [made_row("vanilla", 0), made_row("linear", 0)]
    assert BEST_R2ET.methods(rows) == {}
    assert BEST_R2ET.rows(rows) == CHOSEN.rows(rows) == []
    assert BEST_R2ET.summarise(rows) == CHOSEN.summarise(rows) == []


def test_comparisons_pair_the_seeds_that_both_passed() -> None:
    rows = [
        made_row("vanilla", 0, 0.40),
        made_row("vanilla", 1, 0.50),
        made_row("vanilla", 2, 0.30),
        made_row("r2et", 0, 0.60),
        made_row("r2et", 1, 0.80),
        failed_row("r2et", 2),
        made_row("linear", 2, 1.00),
    ]
    found = {each.method: each for each in comparisons(rows, STRONG)}
    assert list(found) == ["r2et", "linear", BEST]
    # Differences .2 and .3: mean .25, error .05, t = 5; with one degree of freedom the two-sided
    # p-value is 1 - 2/pi atan(5) = 0.12567.
    assert found["r2et"].difference == pytest.approx(0.25)
    assert found["r2et"].p_value == pytest.approx(0.12567, abs=1e-5)
    assert (found["r2et"].count, found[BEST].count) == (2, 2)
    assert (found["linear"].difference, found["linear"].p_value) == (pytest.approx(0.7), None)
    other = {each.method: each.difference for each in comparisons(rows, STRONG, against="r2et")}
    assert other["vanilla"] == pytest.approx(-0.25)


def test_a_comparison_without_pairs_says_nothing() -> None:
    (only,) = comparisons([failed_row("vanilla", 0), made_row("linear", 0)], STRONG)
    assert (only.difference, only.p_value, only.count) == (None, None, 0)
    without = comparisons([made_row("linear", 0)], STRONG)
    assert [each.count for each in without] == [0]


def test_published_numbers_are_those_of_the_file() -> None:
    text = (Path(__file__).parents[2] / "reproduction" / "published.csv").read_text(
        encoding="utf-8"
    )
    lines = [line for line in csv.DictReader(text.splitlines()) if line["table"] == "1"]
    assert len(lines) > 50
    for line in lines:
        where = (line["dataset"].lower(), line["method"], line["measure"], line["setting"])
        assert published_in("1", *where) == float(line["value"])
    assert published_in("1", "adult", "Vanilla", "P@k", "ERAttack") == 87.6
    assert published_in("1", "compas", "R2ET-mm\\H", "P@k", "ERAttack") == 95.3


@pytest.mark.parametrize(
    ("dataset", "label", "attack"),
    [("adult", "Vanilla", "x"), ("adult", BEST_R2ET.label, "ERAttack"), ("mine", "SP", "ERAttack")],
)
def test_what_was_not_published_is_none(dataset: str, label: str, attack: str) -> None:
    assert published_in("1", dataset, label, "P@k", attack) is None


def test_columns_show_measures_that_rows_hold() -> None:
    row = made_row("vanilla", 0)
    of_others = {"noise_precision", "within_class_auc", "accuracy"}
    of_others |= {"er_last_precision", "er_last_changed"}
    assert {column.key for column in COLUMNS} - of_others <= row.numbers.keys()


@pytest.mark.parametrize("key", MEASURES)
def test_a_measure_says_all_that_tables_need(key: str) -> None:
    measure = MEASURES[key]
    assert measure.key == key
    assert measure.line.endswith(".")
    if measure.metric:
        assert measure.better == METRICS[measure.metric].better
    if measure.group:
        assert measure in COLUMNS


def test_a_number_without_a_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="no measure 'clean_acu': did you mean 'clean_auc'"):
        replace(made_row("vanilla", 0), measures={"clean_acu": 0.9})


def test_values_are_written_as_their_column_asks() -> None:
    shown = {column.key: column.show(0.66666) for column in COLUMNS}
    assert shown["clean_auc"] == "0.6667"
    assert shown[STRONG] == "66.7"
    counts = next(column for column in COLUMNS if column.key == "distinct_sets")
    assert (counts.show(104.0), counts.show(24.5), counts.show_sd(1.0)) == ("104", "24.5", "1.0")


def test_table_rows_are_plain_values() -> None:
    rows = [
        made_row("vanilla", 0, 0.4),
        made_row("vanilla", 1, 0.5),
        made_row("r2et", 0, 0.8),
        failed_row("r2et", 1),
        failed_row("r2et-mm", 0),
    ]
    table = table_rows(rows)
    json.dumps(table, allow_nan=False)
    assert [line["method"] for line in table] == ["vanilla", "r2et", "r2et-mm", BEST]
    vanilla, some, none, best = table
    assert vanilla["measures"][STRONG]["mean"] == pytest.approx(0.45)
    assert vanilla["measures"][STRONG]["sd"] == pytest.approx(0.005**0.5)
    assert vanilla["against vanilla"] is None
    assert some["measures"][STRONG] == {"mean": 0.8, "sd": None, "count": 1}
    assert some["against vanilla"]["difference"] == pytest.approx(0.4)
    assert (none["measures"], none["failed"]) == ({}, [0])
    assert (best["seeds"], best["failed"]) == ([0], [1])


def test_rows_of_different_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        check_rows([])
    with pytest.raises(ValueError, match="two rows for method 'vanilla' and seed 0"):
        check_rows([made_row("vanilla", 0), made_row("vanilla", 0)])
    for name in ("dataset", "recipe"):
        with pytest.raises(ValueError, match=f"rows of one {name}"):
            check_rows([made_row("vanilla", 0), replace(made_row("vanilla", 1), **{name: "other"})])
