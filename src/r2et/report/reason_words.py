"""What an audit of reasons found, in sentences."""

from collections.abc import Sequence

from r2et.auditing.reason_records import ReasonAudit, ReasonSummary
from r2et.report.pages import share, short


def finding(audit: ReasonAudit, model: ReasonSummary) -> str:
    """What the audit found of one model, in one sentence."""
    counts, total = model.counts, sum(model.counts.values())
    if not total:
        return "No decision was audited, so that nothing can be said."
    k = audit.settings.k or 1
    reasons = "reason" if k == 1 else f"{k} reasons"
    which = "declined decisions" if audit.settings.only == "declined" else "decisions"
    said = (
        f"Of {total:,} {which}, {share(counts['certified'], total)} keep their {reasons} whatever "
        f"the listed moves do (proved); for {share(counts['broken'], total)} we show a move that "
        "replaces one and leaves the decision as it is"
    )
    if counts["undetermined"]:
        said += f"; {share(counts['undetermined'], total)} are undetermined"
    if model.core is not None:
        said += f". On average {short(model.core)} of {k} can be stated without reservation"
    return f"{said}."


def summary_lines(audit: ReasonAudit) -> Sequence[str]:
    """What a terminal says of each model, beside its numbers."""
    found = []
    for model in audit.models:
        name = f"{model.name}: " if len(audit.models) > 1 else ""
        found.append(f"{name}{finding(audit, model)}")
        if audit.settings.protected:
            counts = [
                f"{each} {model.protected.get(each, 0):,}" for each in audit.settings.protected
            ]
            found.append(f"{name}Protected among the reasons: {', '.join(counts)}.")
        found += [f"{name}{note}" for note in model.notes]
    return found
