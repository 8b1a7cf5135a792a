"""What a reader should know about how the numbers of an audit came about."""

from collections.abc import Iterator

from r2et.auditing.records import Preflight
from r2et.auditing.settings import LEAST_CHECKED, AuditSettings
from r2et.auditing.subject import Subject
from r2et.auditing.summary import MOST_SETS, MOST_SUBGROUPS, Tally
from r2et.auditing.tables import Source
from r2et.metrics.exchanges import doubt
from r2et.preflight.kinds import Finding


def preflight_of(finding: Finding, repaired: bool) -> Preflight:
    """A finding about a model, each part without the stop that the page sets."""
    cure = finding.cure.rstrip(".")
    return Preflight(
        problem=f"{finding.kind} ({finding.where}): {finding.problem.rstrip('.')}",
        effect=finding.effect.rstrip(".") + ("" if repaired else f" (cure: {cure})"),
        repair=cure if repaired else None,
    )


def notes_of(
    each: Subject,
    tally: Tally,
    source: Source,
    settings: AuditSettings,
    rows: int,
    most_drawn: int,
) -> Iterator[str]:
    """What a reader should know about how the numbers came about."""
    yield from source.notes
    if each.uncertified is not None:
        yield (
            f"No certificate could be given, so that no decision is called certified: "
            f"{each.uncertified}"
        )
    elif settings.radii == "none":
        yield (
            f"Radii were not sought{_of_table(source)}: each certified radius is the greatest "
            "audited length at which the reasons are proved to stay."
        )
    if source.columns.look is not None:
        yield (
            f"Of {len(source.columns.features):,} features {settings.k} are shown, and one that "
            "changes places breaks a decision: read the share of reasons kept beside the verdicts."
        )
    if source.columns.look is not None and tally.counts["broken"] > most_drawn:
        yield f"The first {most_drawn} broken decisions are drawn."
    if rows > settings.measured:
        yield (
            "Thickness, faithfulness and flippable predictions were measured on the first "
            f"{settings.measured:,} decisions{_and_exchanges(source)}."
        )
    yield from _about_exchanges(tally)
    if len(tally.subgroups) > MOST_SUBGROUPS:
        yield f"Only the {MOST_SUBGROUPS} largest of {len(tally.subgroups):,} subgroups are shown."
    if len(tally.sets) >= MOST_SETS:
        yield f"There are {MOST_SETS:,} different sets of reasons or more; no more were counted."
    if each.uncertified is None:
        yield _self_check(tally, settings)


def _self_check(tally: Tally, settings: AuditSettings) -> str:
    """What was done to catch a false proof, and what came of it."""
    if not settings.checked:
        return "Self-check: none, as asked for; no proof was put to the test."
    return (
        f"Self-check: {tally.checked:,} of the {tally.proved:,} decisions with a proved radius, "
        f"those proved furthest of each {settings.chunk:,} rows first ({100 * settings.checked:g} "
        f"%, at least {LEAST_CHECKED}), were attacked inside it: no reason was replaced."
    )


def _and_exchanges(source: Source) -> str:
    return ", and so was the exchange agreement" if source.columns.exchangeable else ""


def _about_exchanges(tally: Tally) -> Iterator[str]:
    """What slopes do not say about exchanges of categories, and of whom that is not known."""
    agreement, size = tally.means["exchange_agreement"], tally.means["exchange_size"]
    if agreement.count and (said := doubt(agreement.mean, size.mean)):
        yield said
    if without := tally.without_exchanges:
        yield (
            f"{without:,} of the decisions measured offer too few exchanges of categories to be "
            "ordered, or none that does anything: the exchange agreement is that of the others."
        )


def _of_table(source: Source) -> str:
    return " for a table of this size" if source.columns.look is None else ""
