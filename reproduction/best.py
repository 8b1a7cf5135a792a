"""The best published number of a data set beside the best of ours, and what stands against it."""

from collections.abc import Sequence
from dataclasses import replace

from r2et.data.builtin import DATASETS
from r2et.evaluation.results import ER, MEASURES, STRONG, Result
from r2et.experiments.tables import LINEAR, Choice, MethodSummary, is_steady
from r2et.metrics.individuality import SAME_FOR_ALL
from reproduction.papers import NONE, Grid, rows_of
from reproduction.published import published_in, published_labels

INDIVIDUAL = 0.9
"""People of one class who share at most so much of their reasons have reasons of their own."""
ALIKE = "no individual reasons"
BESIDE = (STRONG, "class_overlap", "strong_kappa", "distinct_sets")
BEST_OF_OURS = Choice(label="best of R2ET and ours", among=is_steady)
BEST_OF_ALL = Choice(label="best of all", among=lambda method: method != LINEAR)


def best_published(dataset: str) -> tuple[str, float] | None:
    """The method with the highest P@k under ERAttack in Table 1, and that number as a share.

    >>> best_published("mnist")
    ('R2ET', 0.857)
    """
    found = [
        (label, round(value / 100, 6))
        for label in published_labels("1", dataset)
        if (value := published_in("1", dataset, label, "P@k", "ERAttack")) is not None
    ]
    return max(found, key=lambda each: each[1], default=None)


def lowest_accepted(dataset: str) -> float | None:
    """The lowest clean AUC of a method that the paper accepts."""
    return published_in("text", dataset, "all others", "cAUC", "lowest accepted")


def individual(rows: Sequence[Result]) -> list[Result]:
    """The rows whose people of one class do not share nearly all of their reasons.

    By what validation data show of the model; rows that do not tell are left out.
    """
    return [
        row
        for row in rows
        if row.valid is not None
        and row.valid.overlap is not None
        and row.valid.overlap <= INDIVIDUAL
    ]


def best_grid(rows: Sequence[Result], dataset: str, recipes: Sequence[str], title: str) -> Grid:
    """The best by validation data of R2ET and ours in each recipe, and its best individual model.

    The latter may be of any method: where only one list for everybody is that stable, it is what
    remains.
    """
    published, floor = best_published(dataset), lowest_accepted(dataset)
    lines, values = [], []
    for recipe in recipes:
        own = rows_of(rows, recipe, dataset)
        for what, some, choice in (
            ("R2ET and ours", own, BEST_OF_OURS),
            ("individual, any method", individual(own), BEST_OF_ALL),
        ):
            for summary in choice.summarise(some, ["clean_auc", ER, *BESIDE]):
                shown = replace(summary, failed=_failed(own, summary))
                lines.append(_line(recipe, what, shown, published, floor))
                values.append(
                    {
                        "recipe": recipe,
                        "among": what,
                        "means": {key: mean.value for key, mean in summary.means.items()},
                        "seeds": list(summary.seeds),
                    }
                )
    best = NONE if published is None else f"{100 * published[1]:.1f} ({published[0]})"
    least = NONE if floor is None else f"{floor:.2f}"
    return Grid(
        title=title,
        headings=(
            "recipe",
            "among",
            "models",
            "AUC",
            "P@k ERAttack ours",
            "reached",
            *(MEASURES[key].heading for key in BESIDE),
            "seeds",
        ),
        lines=tuple(lines),
        values={"published": published, "lowest accepted AUC": floor, "ours": values},
        notes=(
            f"Published best: {best}; lowest clean AUC that the paper accepts: {least}.",
            f"Individual: people of one predicted class share at most {100 * INDIVIDUAL:.0f} % of "
            "their reasons, on validation data. Rows made before that was measured are not among "
            f"them. {ALIKE.capitalize()}: more than {100 * SAME_FOR_ALL:.0f} % is shared.",
            _budget(dataset),
        ),
    )


def _reached(
    summary: MethodSummary, published: tuple[str, float] | None, floor: float | None
) -> str:
    """Whether the published best is reached, and whether with the AUC that the paper asks for.

    Compared in as many places as are published: one of P@k in percent, two of the AUC.
    """
    kept, auc = (summary.means.get(key) for key in (ER, "clean_auc"))
    if published is None or kept is None:
        return NONE
    if round(kept.value, 3) < published[1]:
        return "no"
    enough = floor is None or auc is None or round(auc.value, 2) >= floor
    return "yes" if enough else f"yes, at an AUC below {floor:.2f}"


def _budget(dataset: str) -> str:
    """How the papers' budget is read on a data set."""
    if dataset in DATASETS and DATASETS[dataset].kind != "table":
        return (
            "The papers bound each step of the attack; here the whole change is bounded, by the "
            "number in the settings."
        )
    return "The papers' attack and budget: an l2 length of 1 in total, 1000 steps of .001."


def _failed(own: Sequence[Result], summary: MethodSummary) -> tuple[int, ...]:
    """The seeds on which nothing could be chosen."""
    return tuple(sorted({row.seed for row in own} - {*summary.seeds}))


def _line(
    recipe: str,
    what: str,
    summary: MethodSummary,
    published: tuple[str, float] | None,
    floor: float | None,
) -> tuple[str, ...]:
    names = list(summary.trained_with.values())
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    told = ", ".join(f"{name} ({count})" for name, count in counts.items())
    cells = [recipe, what, told]
    for key in ("clean_auc", ER):
        mean = summary.means.get(key)
        cells.append(NONE if mean is None else MEASURES[key].show(mean.value))
    cells.append(_reached(summary, published, floor))
    for key in BESIDE:
        mean = summary.means.get(key)
        shared = summary.means.get("class_overlap")
        if mean is not None:
            cells.append(MEASURES[key].show(mean.value))
        elif key == "strong_kappa" and shared is not None:
            cells.append(ALIKE)
        else:
            cells.append(NONE)
    missed = f", none on {len(summary.failed)}" if summary.failed else ""
    return (*cells, f"{len(summary.seeds)}{missed}")
