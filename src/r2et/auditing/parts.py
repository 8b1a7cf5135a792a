"""What every audit tells besides: of its model, what traded places, and fingerprints."""

from dataclasses import dataclass

from r2et.preflight.kinds import Finding

MOST_SWAPS = 20
MOST_SUBGROUPS = 60


@dataclass(frozen=True, kw_only=True)
class Swap:
    """How often one reason gave way to another feature."""

    left: str
    entered: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was found about a model before the audit, and how it was repaired, None if it was not.

    Each is a sentence without its stop.
    """

    problem: str
    effect: str
    repair: str | None


def preflight_of(finding: Finding) -> Preflight:
    """A finding about a model, each part without the stop that the page sets."""
    cure = finding.cure.rstrip(".")
    return Preflight(
        problem=f"{finding.kind} ({finding.where}): {finding.problem.rstrip('.')}",
        effect=finding.effect.rstrip(".") + ("" if finding.repairable else f" (cure: {cure})"),
        repair=cure if finding.repairable else None,
    )


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """Twelve hexadecimal digits of each model by its name, of the data and of the settings."""

    model: dict[str, str]
    data: str
    settings: str
