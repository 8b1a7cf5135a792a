"""The report: one self-contained page that shows what a run found, and what would undo it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from r2et.core.files import write_text
from r2et.evaluation.decisions import DecisionRecord, TableDecision
from r2et.evaluation.results import COLUMNS, STRONG, Measure, Result
from r2et.experiments.tables import (
    BEST,
    CHOSEN,
    EXCHANGES,
    LINEAR,
    SELECTED_BY,
    VANILLA,
    Comparison,
    check_rows,
    columns_of,
    exchange_doubts,
    is_ours,
    is_steady,
    is_variant,
    main_table,
    names_chosen,
    paired,
    passed_rows,
    seed_list,
    why_missing,
)
from r2et.report import charts
from r2et.report.maps import decision_map, states_of, strongest
from r2et.report.pages import page_html, percent

__all__ = ["Headline", "headline", "report_html", "write_report"]

HEADLINE_RADIUS = 0.25
"""The length of change that the headline speaks of: where reasons can be steady and personal."""
CHANCE = 0.05
LESS_INDIVIDUAL = 0.8  # of Vanilla's distinct sets
MORE_FLIPPABLE = 0.01
CHANGED_THING = {"picture": "pixel", "concept": "pixel", "network": "edge"}
WEAKER = (STRONG, "er_precision", "mse_precision")


@dataclass(frozen=True, kw_only=True)
class Strip:
    """How many of the k reasons of one kind of model were displaced, and its clean AUC."""

    kind: str
    label: str
    displaced: float
    auc: float

    def fills(self, k: int) -> list[int]:
        """For each of the k reasons, in percent, how much of it was kept.

        >>> Strip(kind="", label="", displaced=1.25, auc=0.9).fills(3)
        [100, 75, 0]
        """
        kept = k - self.displaced
        return [round(100 * min(1.0, max(0.0, kept - place))) for place in range(k)]


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What the rows show, in sentences, and the numbers behind them."""

    finding: str
    caveats: tuple[str, ...]
    strips: tuple[Strip, ...]
    radius: float | None
    k: int | None


def headline(rows: Sequence[Result]) -> Headline:
    """The finding of a run over the seeds that both Vanilla and a steady method passed.

    It claims no more than the rows show: also that nothing was gained, or that nothing can be said.
    """
    vanilla = {row.seed: row for row in passed_rows(rows, VANILLA)}
    best = {row.seed: row for row in CHOSEN.rows(rows)}
    seeds = sorted(vanilla.keys() & best.keys())
    if not seeds:
        return _nothing_to_compare(rows, vanilla, best)
    k = vanilla[seeds[0]].k
    radius = _headline_radius([*vanilla.values(), *best.values()])
    budget = budget_text(vanilla[seeds[0]], radius)
    before = [_displaced(vanilla[seed], radius) for seed in seeds]
    after = [_displaced(best[seed], radius) for seed in seeds]
    aucs = [fmean([of[seed].numbers["clean_auc"] for seed in seeds]) for of in (vanilla, best)]
    gain = round(fmean(before), 1) - round(fmean(after), 1)
    first = (
        f"A small change to the input ({budget})"
        f"{_unchanged([of[seed] for of in (vanilla, best) for seed in seeds])} displaced on "
        f"average {fmean(before):.1f} of the {k} reasons that an ordinary network gives."
    )
    # A network that turned out no steadier is not called steady.
    name = "steady network" if gain > 0 else "chosen network"
    verdict = "" if gain > 0 else " was no steadier: it" if gain == 0 else " was less steady: it"
    second = (
        f"The {name}, {_trained_with([best[seed] for seed in seeds])},{verdict} lost "
        f"{fmean(after):.1f}, at an AUC of {aucs[1]:.4f} against {aucs[0]:.4f}."
    )
    strips = [
        Strip(kind="vanilla", label="Ordinary network", displaced=fmean(before), auc=aucs[0]),
        Strip(kind="best", label=name.capitalize(), displaced=fmean(after), auc=aucs[1]),
    ]
    control = [row for row in passed_rows(rows, LINEAR) if row.seed in seeds]
    if control:
        lost = fmean([_displaced(row, radius) for row in control])
        auc = fmean([row.numbers["clean_auc"] for row in control])
        strips.append(Strip(kind="linear", label="Linear control", displaced=lost, auc=auc))
    return Headline(
        finding=f"{first} {second}",
        caveats=tuple(
            _chance(before, after, seeds)
            + _hollow([vanilla[seed] for seed in seeds], [best[seed] for seed in seeds], name)
            + _control(strips, name)
            + _untried(rows, seeds)
        ),
        strips=tuple(strips),
        radius=radius,
        k=k,
    )


def _nothing_to_compare(
    rows: Sequence[Result], vanilla: Mapping[int, Result], best: Mapping[int, Result]
) -> Headline:
    if not any(is_steady(row.method) for row in rows):
        finding = "These results hold no network trained to be steady, so that nothing is compared."
    elif not best:
        finding = (
            "No network trained to be steady kept the accuracy asked for on any seed, so that "
            "there is no gain to report."
        )
    elif not vanilla:
        finding = "These results hold no ordinary network, so that nothing is compared."
    else:
        finding = (
            "No seed has both an ordinary network and one trained to be steady, so that nothing "
            "is compared."
        )
    return Headline(finding=finding, caveats=(), strips=(), radius=None, k=None)


def _trained_with(best: Sequence[Result]) -> str:
    """How the chosen networks were trained, most frequent method first."""
    labels = [row.variant for row in best]
    found = sorted(dict.fromkeys(labels), key=labels.count, reverse=True)
    if len(found) == 1:
        return f"trained with {found[0]} and chosen on validation data"
    listed = f"{', '.join(found[:-1])} or {found[-1]}"
    return f"trained with {listed} and chosen on the validation data of each seed"


def _headline_radius(rows: Sequence[Result]) -> float:
    """The radius nearest to the headline's that all curves hold, without them that of attacks."""
    if not all(row.series.curve.epsilon for row in rows):
        return attack_radius(rows[0])
    shared = set.intersection(*({*row.series.curve.epsilon} for row in rows)) - {0.0}
    return float(min(sorted(shared), key=lambda radius: abs(radius - HEADLINE_RADIUS)))


def _displaced(row: Result, radius: float) -> float:
    """How many of the k reasons the strong attack displaces within the radius, on average."""
    curve = row.series.curve
    if radius in curve.epsilon:
        return row.k * (1 - curve.strong[curve.epsilon.index(radius)])
    return row.k * (1 - next(row.measures[key] for key in WEAKER if key in row.measures))


def attack_radius(row: Result) -> float:
    """What an attack may spend at most."""
    return row.radii.attack


def budget_text(row: Result, radius: float) -> str:
    """What a change may amount to, in words: its length, or the most that one number changes."""
    if not is_cube(row):
        return f"length at most {radius:g} in scaled units"
    kind = of_kind(row)
    return f"no {CHANGED_THING.get(kind, 'number')} by more than {size_text(kind, radius)}"


def size_text(kind: str, size: float) -> str:
    """The change of a single number in words, of pictures in steps of 8 bits.

    >>> size_text("picture", 5 / 255), size_text("network", 0.02)
    ('5/255', '0.02')
    """
    return f"{255 * size:.3g}/255" if kind in ("picture", "concept") else f"{size:.3g}"


def is_cube(row: Result) -> bool:
    """Whether every number of an input could change by itself, as much as all the others."""
    return row.radii.norm == "linf"


def of_kind(row: Result) -> str:
    """What is explained: a "table", or one of the kinds that are drawn."""
    found = next((each.kind for each in row.decisions), "")
    # Rows that tell of no decision still know that they are of no table.
    return found or ("picture" if is_cube(row) else "table")


def _unchanged(rows: Sequence[Result]) -> str:
    changed = max(row.numbers.get("strong_changed", math.inf) for row in rows)
    return ", which left every predicted class as it was," if changed == 0 else ""


def _chance(before: Sequence[float], after: Sequence[float], seeds: Sequence[int]) -> list[str]:
    _, p_value = paired(after, before)
    if p_value is None:
        return ["One seed only: a single run cannot tell merit from luck."]
    if p_value < CHANCE:
        return [f"Paired over {len(seeds)} seeds, the difference has {p_text(p_value)}."]
    return [
        f"Paired over {len(seeds)} seeds, the difference is not clear of chance "
        f"({p_text(p_value)})."
    ]


def _hollow(vanilla: Sequence[Result], best: Sequence[Result], name: str) -> list[str]:
    """What else changed with the steadiness, if it is enough to mention."""

    def both(measure: str) -> list[float]:
        return [fmean([row.numbers[measure] for row in of]) for of in (vanilla, best)]

    (many, few), (before, after) = both("distinct_sets"), both("flippable")
    said = []
    if few < LESS_INDIVIDUAL * many:
        said.append(
            f"The {name}'s reasons are less individual: {_sets(few)} of reasons over the attacked "
            f"decisions, against {many:.0f}."
        )
    if after > before + MORE_FLIPPABLE:
        said.append(
            f"More of the {name}'s decisions can be turned over by a very small change: "
            f"{percent(after)}, against {percent(before)}."
        )
    return said


def _sets(count: float) -> str:
    return f"{count:.0f} distinct set{'' if f'{count:.0f}' == '1' else 's'}"


def _control(strips: Sequence[Strip], name: str) -> list[str]:
    """What the linear control says about the worth of stability alone."""
    linear = next((strip for strip in strips if strip.kind == "linear"), None)
    if linear is None:
        return []
    lost = "none" if linear.displaced < 0.05 else f"{linear.displaced:.1f}"
    lead = strips[1].auc - linear.auc
    return [
        f"The linear control, steady by construction, loses {lost} at an AUC of {linear.auc:.4f}: "
        + (
            f"the {name} must justify itself by being more accurate, here by {lead:.4f}."
            if lead > 0
            else f"here it is at least as accurate as the {name}."
        )
    ]


def _untried(rows: Sequence[Result], seeds: Sequence[int]) -> list[str]:
    missing = sorted({row.seed for row in rows} - {*seeds})
    if not missing:
        return []
    return [f"Left out, for want of two networks to compare: {seed_list(missing)}."]


def write_report(
    rows: Sequence[Result],
    path: Path,
    *,
    recipe_line: str,
    command: str,
    source: str = "",
) -> Path:
    """The path, now holding the report of these rows."""
    return write_text(
        path,
        report_html(
            rows,
            recipe_line=recipe_line,
            command=command,
            source=source,
        ),
    )


def report_html(
    rows: Sequence[Result],
    *,
    recipe_line: str,
    command: str,
    source: str = "",
) -> str:
    """The report of the rows of one run as a page that asks for no other file.

    `source` is the citation and licence of the data, `command` what a reader types to repeat it.
    """
    check_rows(rows)
    measured = passed_rows(rows)
    if not measured:
        raise ValueError("a report takes at least one measured model, got failed rows only.")
    first = measured[0]
    seeds = sorted({row.seed for row in rows})
    told = told_seed(rows)
    columns = columns_of(measured)
    values = {
        "dataset": first.dataset,
        "recipe": first.recipe,
        "recipe_line": recipe_line,
        "command": command,
        "source": source,
        "headline": headline(rows),
        "kind": of_kind(first),
        "cube": is_cube(first),
        "budget": budget_text(first, attack_radius(first)),
        "radius": attack_radius(first),
        "flippable": size_text(of_kind(first), first.radii.flippable),
        "stand_ins": list(dict.fromkeys(row.stand_in for row in rows if row.stand_in)),
        "has_linear": any(row.method == LINEAR for row in rows),
        "k": first.k,
        "features": first.features,
        "examples": sorted({row.examples for row in measured}),
        "radii": first.radii,
        "steps": first.series.scatter.last_step or None,
        "seeds": seeds,
        "seed_list": seed_list(seeds),
        "version": ", ".join(sorted({row.version for row in rows})),
        "digest": ", ".join(sorted({row.data for row in rows})),
        "selected_by": SELECTED_BY[first.selected_by],
        "columns": columns,
        "groups": _groups(columns),
        "strong": STRONG,
        "table": table_lines(rows, columns),
        "has_r2et": any(is_variant(row.method) for row in rows),
        "has_ours": any(is_ours(row.method) for row in rows),
        "ours_chosen": charts.is_ours_throughout(rows),
        "choices": choices(rows),
        "figures": [
            {"chart": charts.html_of(partial(draw, rows)), **words}
            for draw, words in FIGURES
            if all(charts.can_draw(draw, row) for row in measured)
        ],
        "told_seed": told,
        "buys": first.change_buys,
        "preflight": alarm_lines(measured, "preflight"),
        "alarms": alarm_lines(measured),
        "doubts": exchange_doubts(measured),
        "exchanged": any(column.key == EXCHANGES for column in columns),
        "without": max(row.numbers.get("without_exchanges", 0.0) for row in measured),
        "doubled": last_doublings(measured),
        "decisions": decisions(rows, told),
        "shown_methods": decision_methods(rows, told),
    }
    return page_html("run", values)


def alarm_lines(rows: Sequence[Result], kind: str = "alarms") -> list[str]:
    """Every alarm, or finding of the kind "preflight", with the networks it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for alarm in getattr(row, kind):
            about.setdefault(alarm, []).append(f"{row.label}, seed {row.seed}")
    return [f"{'; '.join(networks)}: {alarm}" for alarm, networks in about.items()]


def last_doublings(rows: Sequence[Result]) -> str:
    """How much the last doubling of the strong attack's effort took off P@k, over all networks."""
    taken = [0.0 - 100 * row.measures.get("last_doubling", 0.0) for row in rows]
    return f"{min(taken):.1f} to {max(taken):.1f} points" if max(taken) > 0 else ""


def _groups(columns: Sequence[Measure]) -> list[tuple[str, int]]:
    """The group headings of the main table and how many columns each spans."""
    # The strong attack has a second column, its difference to Vanilla.
    names = [column.group for column in columns for _ in range(1 + (column.key == STRONG))]
    return [(name, names.count(name)) for name in dict.fromkeys(names)]


def table_lines(
    rows: Sequence[Result], columns: Sequence[Measure] = COLUMNS
) -> list[dict[str, Any]]:
    """The main table as text: a line for each method and one for those chosen on each seed."""
    return [
        {
            "method": line.method,
            "label": line.label,
            "kind": "own" if is_ours(line.method) else "other",
            "note": names_chosen(rows) if line.method == BEST else "",
            "seeds": len(line.seeds),
            "failed": why_missing(rows, line.failed),
            "cells": [
                {
                    "mean": None if mean is None else column.show(mean.value),
                    "sd": column.show_sd(mean.sd) if mean is not None and mean.count > 1 else "",
                    "behind": line.seeds_behind(column.key),
                    "none": column.none if line.lacks(column) else "",
                }
                for column in columns
                for mean in [line.means.get(column.key)]
            ],
            "test": _test_text(line.against_vanilla),
        }
        for line in main_table(rows)
    ]


def _test_text(test: Comparison | None) -> dict[str, str]:
    """Difference to Vanilla in points of P@k and its p-value, as text."""
    if test is None or test.difference is None:
        return {"difference": "", "p": ""}
    return {
        "difference": f"{100 * test.difference:+.1f}".replace("-", "−"),
        "p": "" if test.p_value is None else p_text(test.p_value),
    }


def p_text(value: float) -> str:
    """A p-value as text, never as zero.

    >>> p_text(0.0312), p_text(0.00002)
    ('p = 0.031', 'p < 0.001')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def choices(rows: Sequence[Result]) -> list[dict[str, Any]]:
    """For each method and seed what was chosen among, what was chosen, and how it validated."""
    best = CHOSEN.methods(rows)
    return [
        {
            "label": row.label,
            "seed": row.seed,
            "passed": row.passed,
            "best": best.get(row.seed) == row.method,
            "tried": len(row.candidates),
            "settings": ", ".join(f"{name} {value}" for name, value in (row.chosen or {}).items()),
            "floor": "" if row.floor is None else f"{row.floor:.4f}",
            "auc": f"{row.valid.auc:.4f}" if row.valid else "",
            "precision": f"{100 * row.valid.precision:.1f}" if row.valid else "",
            "nearest": max((f"{each.auc:.4f}" for each in row.candidates), default=""),
        }
        for row in rows
    ]


def told_seed(rows: Sequence[Result]) -> int | None:
    """The first seed whose decisions can be told for Vanilla and the chosen method, else any."""
    with_decisions = [row for row in passed_rows(rows) if row.decisions]
    seeds = sorted({row.seed for row in with_decisions})
    best = CHOSEN.methods(rows)
    vanilla = {row.seed for row in with_decisions if row.method == VANILLA}
    both = [seed for seed in seeds if seed in vanilla and seed in best]
    return next(iter([*both, *seeds]), None)


def decision_methods(rows: Sequence[Result], seed: int | None) -> list[dict[str, Any]]:
    """The methods whose decisions are told: Vanilla, the chosen one, then the others."""
    best = CHOSEN.methods(rows)
    found = [row for row in passed_rows(rows) if row.seed == seed and row.decisions]
    chosen = best.get(seed) if seed is not None else None
    places = {VANILLA: 0, chosen: 1, LINEAR: 3}
    return [
        {
            "method": row.method,
            "label": row.label,
            "chosen": row.method == chosen,
            "ours": is_ours(row.method),
        }
        for row in sorted(found, key=lambda row: places.get(row.method, 2))
    ]


def decisions(rows: Sequence[Result], seed: int | None) -> list[dict[str, Any]]:
    """Each told decision with what every method made of it."""
    order = [each["method"] for each in decision_methods(rows, seed)]
    cube = any(map(is_cube, rows))
    by_method = {
        row.method: {_row_of(each): each for each in row.decisions}
        for row in passed_rows(rows)
        if row.seed == seed and row.method in order
    }
    numbers = list(dict.fromkeys(number for method in order for number in by_method[method]))
    return [
        {
            "row": number,
            "actual": next(
                by_method[method][number].actual for method in order if number in by_method[method]
            ),
            "panels": [
                {"method": method, **panel(by_method[method][number], cube)}
                for method in order
                if number in by_method[method]
            ],
        }
        for number in numbers
    ]


def _row_of(decision: DecisionRecord) -> str:
    """Which row, or which two rows, of the data a decision is about, in words."""
    row = decision.row
    return " and ".join(map(str, row)) if isinstance(row, tuple) else str(row)


def panel(decision: DecisionRecord, cube: bool) -> dict[str, Any]:
    """What one method made of one decision, ready to be set: values or a drawing, and reasons."""
    was, now = decision.probability
    told = {
        "predicted": decision.predicted,
        "probability": [percent(was), percent(now)],
        "precision": f"{100 * decision.precision:.1f}",
    }
    if isinstance(decision, TableDecision):
        found = _reasons(decision)
        return told | {
            "unchanged": True,
            "cost": f"{decision.cost:.2f}",
            "drawing": None,
            "kept": sum(each["place"] is not None for each in found["before"]),
            "k": len(found["before"]),
            "reasons": _moves(found, "of all scores"),
            "values": [
                {**vars(value), "is_moved": value.before != value.after}
                for value in decision.values
            ],
        }
    edges = decision.kind == "network"
    return told | {
        "unchanged": now > 0.5,
        "cost": size_text(decision.kind, decision.cost) if cube else f"{decision.cost:.3g}",
        "drawing": Markup(decision_map(decision)),
        "kept": len(states_of(decision)["kept"]),
        "k": len(decision.top.before),
        "pair": len(decision.pieces) > 1,
        "reasons": _moves(strongest(decision), "of the largest score") if edges else None,
    }


def _reasons(decision: TableDecision) -> dict[str, list[dict[str, Any]]]:
    """The reasons "before" and "after" as `strongest` has them, each with its other place."""
    lists = {"before": decision.before, "after": decision.after}
    places = {
        when: {reason.name: place for place, reason in enumerate(reasons)}
        for when, reasons in lists.items()
    }
    return {
        when: [{**vars(reason), "place": places[other].get(reason.name)} for reason in lists[when]]
        for when, other in (("before", "after"), ("after", "before"))
    }


def _moves(found: Mapping[str, Sequence[Mapping[str, Any]]], of: str) -> dict[str, Any]:
    """Two lists of reasons ready to be set side by side, and the lines between them."""
    largest = max((each["share"] for both in found.values() for each in both), default=0.0)
    before, after = (
        [
            {
                "name": each["name"],
                "share": f"{percent(each['share'])} {of}",
                "length": round(100 * each["share"] / largest) if largest else 0,
                "moved": each["place"] is None,
                "climbed": 0 if each["place"] is None else each["place"] - place,
            }
            for place, each in enumerate(found[when])
        ]
        for when in ("before", "after")
    )
    shown = len(before)
    # Lines to places below those shown run out of the picture.
    lines = [(place, each["place"]) for place, each in enumerate(found["before"])]
    lines += [
        (each["place"], place)
        for place, each in enumerate(found["after"])
        if each["place"] is not None and each["place"] >= shown
    ]
    entries = [place for place, each in enumerate(after) if each["moved"]]
    return {"k": shown, "before": before, "after": after, "lines": lines, "entries": entries}


FIGURES = (
    (
        charts.curve,
        {
            "heading": "How fast the reasons go",
            "read": "Each line is a method; it falls as the attacker may change the input more. "
            "Solid is the strong attack, dashed the weaker ERAttack; a band spans the lowest and "
            "highest seed.",
            "doubt": "A dashed line far above its solid one is a number that rests on a weak "
            "attack. The strong attack is itself only an upper bound. The linear control stays at "
            "100 without having learned to be stable.",
        },
    ),
    (
        charts.scatter,
        {
            "heading": "Does thickness foretell the first flip?",
            "read": "Each dot is a decision: how well its top reasons stay ahead on the way to the "
            "attacked input, against how long ERAttack needs to displace the first of them. "
            "Decisions it never moved stand apart in the grey strip; their place inside it means "
            "nothing. Dots are those of the first seed, correlations the mean over seeds.",
            "doubt": "If thickness meant nothing, its correlation would be no stronger than that "
            "of the Hessian norm. Thickness is measured on the attack's own way, so that some "
            "agreement is built in.",
        },
    ),
    (
        charts.profile,
        {
            "heading": "Where the gap is",
            "read": "Scores in falling order, as shares of the largest. A network trained to keep "
            "its reasons should open a step at the grey bar, between the last shown reason and the "
            "first hidden one.",
            "doubt": "A step can be bought by making all gradients larger: that is why shares are "
            "drawn, and why the table gives the sum of |I| and the flippable predictions.",
        },
    ),
    (
        charts.plane,
        {
            "heading": "What stability costs",
            "read": "Each dot is a method and a seed. Up is steadier, right is more accurate; the "
            "upper right corner is the aim.",
            "doubt": "Anyone can be steady by giving up accuracy, or by explaining everybody "
            "alike. Compare methods at equal AUC, against the linear control, and look at the "
            "distinct sets in the table.",
        },
    ),
)
