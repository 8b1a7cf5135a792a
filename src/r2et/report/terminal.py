"""What was found as tables and sentences for a terminal."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from r2et.actionable.sets import ActionableSet, what_it_buys
from r2et.attacks.comparison import TOLERABLE, HandlingPoint
from r2et.auditing.reason_records import ReasonAudit
from r2et.auditing.records import Audit
from r2et.core.naming import counted
from r2et.data.dataset import Split
from r2et.evaluation.results import CONTROLS, ER, MEASURES, STRONG, Measure, Result
from r2et.experiments.attack_records import AttackRun, AttackRunSettings
from r2et.experiments.tables import (
    CHOSEN,
    EXCHANGES,
    MethodSummary,
    columns_of,
    comparisons,
    exchange_doubts,
    main_table,
    names_chosen,
    why_missing,
)
from r2et.metrics.exchanges import doubt
from r2et.preflight.kinds import in_words
from r2et.report.reason_words import summary_lines


def print_run(rows: Sequence[Result], console: Console) -> None:
    """Print the measures, then what would expose them as hollow, then the paired tests."""
    if not console.is_terminal:
        console.width = 120
    lines = main_table(rows)
    k, seeds = rows[0].k, len({row.seed for row in rows})
    told = f"{rows[0].dataset}, recipe {rows[0].recipe}, {counted(seeds, 'seed')}"
    spread = ", mean ± sd over seeds" if seeds > 1 else ""
    columns = columns_of(rows)
    measured = [column for column in columns if column.group != CONTROLS]
    console.print(_table(f"{told}, top {k}{spread}", lines, measured))
    controls = [column for column in columns if column.group == CONTROLS]
    console.print(_table(f"{CONTROLS}:", lines, controls))
    for said in _missing(lines, controls):
        console.print(Text(said))
    for said in exchange_doubts(rows):
        console.print(Text(said), style="bold red")
    if chosen := names_chosen(rows):
        console.print(Text(f"{CHOSEN.label}: {chosen}."))
    for line in lines:
        if line.failed:
            console.print(Text(f"{line.label}: {why_missing(rows, line.failed)}."))
    for measure, name in ((ER, "ERAttack"), (STRONG, "strong attack")):
        console.print(f"P@{k} under the {name} minus Vanilla's, paired over seeds:", style="bold")
        for each in comparisons(rows, measure):
            if each.difference is not None:
                p = "one seed" if each.p_value is None else f"p = {each.p_value:.2g}"
                console.print(Text(f"  {each.label:<24} {100 * each.difference:+6.1f} points, {p}"))


def _table(title: str, lines: Sequence[MethodSummary], columns: Sequence[Measure]) -> Table:
    """A table of some columns."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right")
    for line in lines:
        cells = [_cell(line, column) for column in columns]
        if not line.seeds:
            cells = ["no model", *[""] * (len(columns) - 1)]
        table.add_row(Text(line.label), *map(Text, cells))
    return table


def _cell(line: MethodSummary, column: Measure) -> str:
    mean = line.means.get(column.key)
    if mean is None:
        return "–" if column.key == EXCHANGES or line.lacks(column) else ""
    spread = "" if mean.spread is None else f" ± {column.show_sd(mean.spread)}"
    return f"{column.show(mean.value)}{spread}"


def _missing(lines: Sequence[MethodSummary], columns: Sequence[Measure]) -> list[str]:
    """A sentence for each method and measure of which some seeds had nothing."""
    found = []
    for column in columns:
        for line in lines:
            if line.lacks(column):
                found.append(f"{line.label}: {column.none}.")
            elif behind := line.seeds_behind(column.key):
                found.append(
                    f"{line.label}: {column.heading} is of {behind} seeds; {column.none} on others."
                )
    return found


def print_findings(findings: AttackRun, name: str, console: Console) -> None:
    """Print what an attack found as a table and sentences."""
    settings, lines = findings.settings, findings.table()
    k = settings.k
    kept = "" if settings.handling is None else f" with {settings.handling}"
    console.print(
        f"{name}: {settings.attack} attack{kept} on the top {k} features of "
        f"{_explained(settings)}, {counted(findings.examples, 'test example')}",
        style="bold",
    )
    console.print(_allowed(findings))
    table = Table(box=SIMPLE_HEAD)
    headings = {heading: heading.replace("P@k", f"P@{k}") for heading in lines[0]}
    for heading, shown in headings.items():
        table.add_column(shown if heading == "epsilon" else f"{shown}, %", justify="right")
    for line in lines:
        table.add_row(*(f"{v:g}" if h == "epsilon" else f"{100 * v:.1f}" for h, v in line.items()))
    console.print(table)
    console.print(
        f"P@{k}: of the top {k} before, the mean share that is in the top {k} after. Broken: "
        "examples that lost one or more.\n"
        "Attack alone: without what the search for the smallest change and other radii found.\n"
    )
    for sentence in _findings_in_words(findings):
        console.print(sentence)
    if isinstance(findings.perturbation, ActionableSet):
        console.print("\nAn epsilon of 1 buys")
        for bought in what_it_buys(findings.perturbation):
            console.print(f"  {bought}")
    if findings.alarms or findings.preflight:
        console.print()
    for finding in findings.preflight:
        console.print(f"Preflight: {in_words(finding)}", style="bold red")
    for alarm in findings.alarms:
        console.print(f"Alarm: {alarm}", style="bold red")


def _explained(settings: AttackRunSettings) -> str:
    """The explainer in words: "grad (of the probability, one-hot projected)"."""
    choices = [f"of the {settings.of}"]
    if settings.project_one_hot:
        choices.append("one-hot projected")
    if settings.explainer == "smooth-grad":
        choices.append(f"{settings.noise} noise")
    return f"{settings.explainer} ({', '.join(choices)})"


def _allowed(findings: AttackRun) -> str:
    """Which inputs the attack may use, and what an epsilon measures."""
    if isinstance(findings.perturbation, ActionableSet):
        return "Only what a person could change, at a price of epsilon; predictions stay."
    distance = f"an {findings.settings.perturbation} distance of epsilon in scaled units"
    return f"Every column may move, by {distance}; predictions stay."


def _findings_in_words(findings: AttackRun) -> Iterator[str]:
    """What would expose a curve as hollow, a sentence each."""
    settings = findings.settings
    k, largest = settings.k, max(settings.epsilons)
    quartiles = ", ".join(
        f"{which} {f'above {largest:g}' if value is None else f'{value:.3g}'}"
        for which, value in findings.smallest().items()
    )
    yield f"Smallest epsilon that breaks an example: {quartiles}."
    if findings.fresh is not None:
        yield (
            f"The attack knew its noise. With noise drawn anew, P@{k} is "
            f"{100 * findings.fresh[0]:.1f} % without any attack."
        )
    if members := findings.members():
        reached = "; ".join(f"{name} {100 * value:.1f}" for name, value in members.items())
        yield f"P@{k} at epsilon {largest:g} by each search: {reached}."
    if findings.doubling is not None:
        yield f"At epsilon {largest:g}, {findings.doubling}."
    if findings.optimality is not None:
        yield f"At epsilon {largest:g} the attack is {findings.optimality}."
    yield from findings.iterations()
    auc = f"AUC {findings.clean_auc:.4f} on the whole test part"
    if findings.examples_auc is not None:
        before, after = findings.examples_auc
        auc += f"; on the examples {before:.4f} before and {after:.4f} after the attack"
    yield f"{auc}."
    yield (
        f"{counted(findings.distinct_sets, 'distinct top-k set')} among the examples; the k-th and "
        f"the next score are equal for {100 * findings.ties:.1f} %."
    )
    yield (
        f"Off-data share {100 * findings.off_data_share:.1f} %: the part of the gradients along "
        "which one-hot columns cannot vary."
    )
    if (exchanges := findings.exchanges) is not None:
        left_out = f"; {counted(exchanges.without, 'example')} with too few of them left out"
        yield (
            f"Exchange agreement {exchanges.order:.2f}: {_said(EXCHANGES)}"
            f"{left_out * bool(exchanges.without)}."
        )
        yield f"Exchange size {exchanges.size:.2f}: {_said('exchange_size')}."
        if said := doubt(exchanges.order, exchanges.size):
            yield said


def _said(measure: str) -> str:
    """What a measure says, as the second half of a sentence."""
    line = MEASURES[measure].line.removesuffix(".")
    return f"{line[0].lower()}{line[1:]}"


def print_handling(
    points: Sequence[HandlingPoint], settings: AttackRunSettings, split: Split, console: Console
) -> None:
    """Print P@k and changed predictions of every constraint handling and step size."""
    k, attacked = settings.k, min(settings.examples, len(split.test))
    console.print(
        f"{split.dataset.name}: ways to keep predictions while the top {k} features of "
        f"{_explained(settings)} are attacked, epsilon {max(settings.epsilons):g}, "
        f"{counted(attacked, 'test example')}",
        style="bold",
    )
    table = Table(box=SIMPLE_HEAD)
    for heading in ("goal", "handling", "step", f"P@{k}, %", "changed, %", f"P@{k} kept, %", ""):
        words = heading in ("goal", "handling", "")
        table.add_column(heading, justify="left" if words else "right", no_wrap=True)
    for goal, handling in dict.fromkeys((point.goal, point.handler) for point in points):
        own = [point for point in points if (point.goal, point.handler) == (goal, handling)]
        for number, point in enumerate(own):
            table.add_row(
                goal if number == 0 else "",
                handling if number == 0 else "",
                f"{point.step:g}",
                f"{100 * point.precision:.1f}",
                f"{100 * point.sensitivity:.1f}",
                f"{100 * point.kept_precision:.1f}",
                "selected" if point.selected else "front" if point.on_front else "",
            )
    console.print(table)
    console.print(
        f"P@{k} and changed predictions of the last input of each walk; kept: P@{k} of the best "
        "input on the way that changes none.\n"
        "Front: no other is as good in both and better in one. Selected: the lowest "
        f"P@{k} with at most {100 * TOLERABLE:g} % changed."
    )


def print_reasons(found: ReasonAudit, console: Console) -> None:
    """Print the verdicts on the reasons of each model's decisions, and where everything is."""
    k = found.settings.k or 1
    console.print(f"{found.data.name}: do the {k} reasons of each decision hold?", style="bold")
    for line in found.data.moves:
        console.print(f"  {line}")
    table = Table(box=SIMPLE_HEAD)
    table.add_column("model")
    for heading in ("certified", "broken", "undetermined", "kept, %", "shared, %", "kappa"):
        table.add_column(heading, justify="right")
    for each in found.models:
        shares = ("-" if v is None else f"{100 * v:.1f}" for v in (each.kept, each.overlap))
        told = "-" if each.kappa is None else f"{each.kappa:.2f}"
        table.add_row(Text(each.name), *(f"{n:,}" for n in each.counts.values()), *shares, told)
    console.print(table)
    for line in summary_lines(found):
        console.print(line)
    _print_rows(found.folder, console)


def print_audit(found: Audit, console: Console) -> None:
    """Print the verdicts on each model's decisions, and where everything is."""
    console.print(
        f"{found.data.name}: do the {found.settings.k} reasons of each of "
        f"{counted(found.data.rows, 'decision')} hold under changes up to "
        f"{found.settings.tolerance:g}?",
        style="bold",
    )
    table = Table(box=SIMPLE_HEAD)
    table.add_column("model")
    for heading in ("certified", "broken", "undetermined"):
        table.add_column(heading, justify="right")
    exchanged = any(
        known is not None
        for each in found.models
        for known in (each.off_data_share, each.exchange_agreement)
    )
    if exchanged:
        table.add_column("exchanges agree", justify="right")
    for each in found.models:
        counts = [f"{count:,}" for count in each.counts.values()]
        agree = each.exchange_agreement
        counts += ["not measured" if agree is None else f"{agree:.2f}"] * exchanged
        table.add_row(Text(each.name), *counts)
    console.print(table)
    if exchanged:
        console.print(f"Exchanges agree: {_said(EXCHANGES)}.")
    for each in found.models:
        for note in each.notes:
            console.print(f"{each.name}: {note}" if len(found.models) > 1 else note)
    _print_rows(found.folder, console)


def _print_rows(folder: Path | None, console: Console) -> None:
    """Print where the row of each decision is."""
    assert folder is not None
    rows = "decisions.parquet" if not (folder / "decisions.csv").exists() else "decisions.csv"
    console.print(f"Every decision: {folder / rows}")
