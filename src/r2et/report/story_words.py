"""A comparison of the reasons of models in words and numbers."""

from collections.abc import Callable, Iterator

from r2et.experiments.reason_records import NAMES, Compared, Comparison
from r2et.report.pages import NBSP, percent

MEASURES = {
    "AUC": "How well the model tells the two outcomes apart: 1 is perfect, 0.5 is chance.",
    "broken, %": "Decisions for which some small move gives another reason and leaves the decision "
    "as it is. Less is better.",
    "proved, %": "Decisions whose reasons are proved to stay, whatever the moves. More is better.",
    "kept, %": "How much of the reasons stays in the worst move, on average (S).",
    "core": "How many of the reasons stay in every move, on average: these can be stated without "
    "reservation.",
    "all but one, %": "Decisions of which all reasons but one, or all, stay in every move.",
    "shared, %": "What two people of one outcome have in common anyway (O). Near 100 everybody is "
    "told the same: steady, but not personal.",
    "of all, %": "The same of any two people, whatever their outcome.",
    "kappa": "(S - O) / (1 - O): what stays beyond what people share. 1 is all of it; at 0 a move "
    "does as much as another person in one's place.",
}
"""What is told of each model, and what it says."""


def measures(row: Compared) -> dict[str, str]:
    """The numbers of a model by their names; "≥" marks a share that is a lower bound."""
    under = row.under
    least = "" if row.exact else "≥ "
    most = "" if row.exact else "≤ "
    values = (
        f"{row.auc:.4f}",
        f"{least}{100 * under.broken:.1f}",
        f"{100 * row.proved:.1f}",
        f"{most}{100 * under.kept:.1f}",
        f"{most}{under.core:.2f}",
        f"{most}{100 * under.all_but_one:.1f}",
        f"{100 * under.overlap:.1f}",
        f"{100 * under.overlap_of_all:.1f}",
        "none" if under.kappa is None else f"{most}{under.kappa:.2f}",
    )
    return dict(zip(MEASURES, values, strict=True))


def moves_in_words(found: Comparison) -> str:
    """How far each number moves: "age ±2, hours per week ±2"."""
    return ", ".join(f"{name} ±{by:g}" for name, by in found.widths.items())


def how_proved(found: Comparison) -> str:
    """How much is known of each model, and from what."""
    if found.every:
        return (
            f"Every move was looked at, {found.moves} for each person, so that for every model "
            "it is known exactly which decisions are broken, and the reasons of all others are "
            "proved to stay."
        )
    stable = next(row for row in found.rows if row.model == "stable")
    return (
        f"There are too many moves to look at: {found.moves} were drawn for each person. So many "
        "decisions are broken at least, and nothing is proved of a model by moves that happened "
        "to change nothing. What StableClassifier can say was looked at in full: "
        f"{percent(stable.proved)} of its decisions are certified, "
        f"{percent(stable.under.broken)} broken with a counter-example, "
        f"{percent(found.undetermined)} undetermined."
    )


def finding(found: Comparison) -> str:
    """What was found, in one sentence, with what is worse."""
    rows = {row.model: row for row in found.rows}
    ours, trees = rows["stable"], rows["trees"]
    least = "" if trees.exact else "at least "
    return (
        f"With {NAMES['trees']}, a small move ({moves_in_words(found)}) gives {least}"
        f"{percent(trees.under.broken)} of {found.decisions:,} people other reasons for the "
        f"same decision; with {NAMES['stable']} {percent(ours.under.broken)}, at an AUC of "
        f"{ours.auc:.4f} against {trees.auc:.4f}, and with {percent(ours.under.overlap)} of the "
        f"reasons shared by two people of one outcome against {percent(trees.under.overlap)}."
    )


def where_others_are_better(found: Comparison) -> str:
    """Which model is best where StableClassifier is not, in one sentence; empty if it always is."""
    judged: dict[str, Callable[[Compared], float]] = {
        "AUC": lambda row: round(row.auc, 4),
        "broken, %": lambda row: -round(row.under.broken, 3),
        "core": lambda row: round(row.under.core, 2),
        "shared, %": lambda row: -round(row.under.overlap, 3),
        "kappa": lambda row: round(row.under.kappa or 0.0, 2),
    }
    ours = next(row for row in found.rows if row.model == "stable")
    better = []
    for name, value in judged.items():
        best = max(found.rows, key=value)
        if value(best) > value(ours):
            said, of, _ = name.partition(", %")
            unit = f"{NBSP}%" if of else ""
            better.append(f"{said} ({NAMES[best.model]}, {measures(best)[name]}{unit})")
    seen = "" if found.every else " as far as the drawn moves show"
    return (
        f"Others are better than StableClassifier{seen} at: {'; '.join(better)}." if better else ""
    )


def explained(found: Comparison) -> Iterator[str]:
    """What the numbers of a terminal's table mean."""
    yield how_proved(found)
    yield (
        "Broken: some move gives other reasons and keeps the decision. Kept: the share of reasons "
        f"that stays in the worst of them; core: how many of {found.k} stay in all of them; all "
        f"but one: decisions of which {found.k - 1} or more do. Shared: what two people of one "
        "predicted class have in common anyway (of all: any two); kappa, (kept - shared) / "
        "(1 - shared), is what stays beyond that."
    )
    if better := where_others_are_better(found):
        yield better
