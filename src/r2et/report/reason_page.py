"""The page of an audit of reasons: which statements stand, and what breaks the others."""

import hashlib
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from r2et.auditing.reason_records import ReasonAudit, ReasonedDecision, ReasonSummary
from r2et.core.files import write_text
from r2et.report.charts import broken_within, html_of
from r2et.report.pages import NOT_MEASURED, page_html, percent, share, short
from r2et.report.reason_words import finding

TOLD = 300
"""Decisions that the page tells in full."""
VERDICTS = ("certified", "undetermined", "broken")
BY = {
    "enumerated": "every move was looked at",
    "closed form": "what moves can do was computed exactly",
    "bound": "what moves can do was bounded",
    "attack": "a search found the change",
}
SIDES = {
    "for": "speak most for the decision",
    "against": "speak most against the decision",
    "both": "count most, for or against the decision",
}


HEADINGS = {
    "for": "What speaks most for",
    "against": "What speaks most against",
    "both": "What counts most for or against",
}


def write_reason_page(audit: ReasonAudit, path: Path | None = None) -> Path:
    """The path, that in the folder of the audit unless given, now holding its page."""
    path = path or audit.page
    if path is None:
        raise ValueError("this audit has no folder for its page: audit with out=, or give a path.")
    return write_text(path, reason_html(audit))


def shown_page(audit: ReasonAudit) -> Path:
    """Where the page of an audit is that is kept in no folder: one file for each audit."""
    html = reason_html(audit)
    name = hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:12]
    return write_text(_pages() / f"audit-{name}.html", html)


@cache
def _pages() -> Path:
    """A folder of this process that nobody else may read: pages tell of people."""
    return Path(tempfile.mkdtemp(prefix="r2et-pages-"))


def reason_html(audit: ReasonAudit) -> str:
    """The audit as a page that asks for no other file, readable also without JavaScript."""
    if not audit.models:
        raise ValueError("an audit page takes at least one audited model, got none.")
    settings, models = audit.settings, audit.models
    k = settings.k or 1
    values = {
        "audit": audit,
        "settings": settings,
        "data": audit.data,
        "models": models,
        "verdicts": VERDICTS,
        "version": audit.version,
        "sentences": [finding(audit, model) for model in models],
        "k": k,
        "side": SIDES[settings.side or "against"],
        "heading": HEADINGS[settings.side or "against"],
        "measures": measures(audit),
        "chart": html_of(partial(broken_within, models)) if audit.data.moves else "",
        "protected": [
            {"model": model.name, "name": name, "count": model.protected.get(name, 0)}
            for model in models
            for name in settings.protected
        ],
        "largest_swap": max((each.count for model in models for each in model.swaps), default=1),
        "decisions": [told(audit, each) for each in audit.decisions[:TOLD]],
        "decision_count": len(audit.decisions),
        "audited": [sum(model.counts.values()) for model in models],
    }
    return page_html("reasons", values, like="audit")


def measures(audit: ReasonAudit) -> list[dict[str, Any]]:
    """Everything measured of the models: its name, what it says, and its value for each model."""
    settings, models = audit.settings, audit.models
    k = settings.k or 1

    def of(
        name: str, show: Callable[[Any], str], missing: str = NOT_MEASURED
    ) -> Callable[[ReasonSummary], str]:
        def text(model: ReasonSummary) -> str:
            value = getattr(model, name)
            return missing if value is None else show(value)

        return text

    def counted(verdict: str) -> Callable[[ReasonSummary], str]:
        def text(model: ReasonSummary) -> str:
            total = sum(model.counts.values())
            return f"{model.counts[verdict]:,} ({share(model.counts[verdict], total)})"

        return text

    def kappas(model: ReasonSummary) -> str:
        if model.kappa is not None:
            return f"{model.kappa:.2f}"
        return NOT_MEASURED if model.kept is None else "no individual reasons"

    def decided(model: ReasonSummary) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in model.by.items()) or "nothing"

    table: list[tuple[str, str, Callable[[ReasonSummary], str]]] = [
        ("AUC", "How well the model tells the classes apart among the audited rows: 1 is perfect, "
         "0.5 is chance.", of("auc", lambda value: f"{value:.4f}")),
        ("Accuracy", "Share of decisions that agree with the data.", of("accuracy", percent)),
        ("Certified", "No listed move replaces a reason while the decision stays.",
         counted("certified")),
        ("Undetermined", "Neither proved nor refuted.", counted("undetermined")),
        ("Broken", "A move that replaces a reason is shown.", counted("broken")),
        ("Decided by", "; ".join(f"{name}: {says}" for name, says in BY.items()) + ".", decided),
        ("Reasons kept (S)", "Mean share of the reasons that stay in the worst move.",
         of("kept", percent)),
        ("Shared (O)", "What two people of one outcome have in common anyway. Near 100 % "
         "everybody is told the same: steady, but not personal.", of("overlap", percent)),
        ("Shared by any two", "The same of any two people.", of("overlap_of_all", percent)),
        ("Kappa", "(S - O) / (1 - O): what stays beyond what people share. 1 is all of it; at 0 a "
         "move does as much as another person in one's place.", kappas),
        ("Core", f"How many of {k} reasons stay in every move, on average: these can be stated "
         "without reservation.", of("core", short)),
        (f"At least {k - 1} of {k}", "Share of decisions in which all reasons but one stay in "
         "every move.", of("all_but_one", percent)),
        ("Distinct sets", "How many different sets of reasons there are.",
         of("distinct_sets", lambda count: f"{count:,}")),
        ("Median size", "Middle size of the smallest changes found: 1 is as far as anything may "
         "move.", of("median_size", short, "none found")),
    ]  # fmt: skip
    return [
        {"name": name, "says": says, "values": [show(model) for model in models]}
        for name, says, show in table
        if not (k == 1 and name.startswith("At least"))
    ]


def told(audit: ReasonAudit, decision: ReasonedDecision) -> dict[str, Any]:
    """One decision in the words of the page."""
    most = max((abs(each.contribution) for each in decision.reasons), default=0.0) or 1.0
    then = decision.then or ()
    return {
        "decision": decision,
        "model": audit.models[decision.model].name,
        "says": _says(decision),
        "reasons": [
            {
                "code": each.code,
                "attribute": "" if each.attribute == each.code else each.attribute,
                "value": each.value,
                "usual": each.usual,
                "contribution": f"{each.contribution:+.2f}",
                "length": round(100 * abs(each.contribution) / most),
                "direction": "for" if each.contribution > 0 else "against",
                "stands": _stands(decision, each.code),
                "leaves": bool(then) and each.code not in then,
            }
            for each in decision.reasons
        ],
        "then": [
            {"code": code, "enters": code not in [each.code for each in decision.reasons]}
            for code in then
        ],
        "words": [
            {"name": name, "before": before, "after": after}
            for name, (before, after) in decision.words.items()
        ],
        "first": ", ".join(each.code for each in decision.reasons),
    }


def _stands(decision: ReasonedDecision, code: str) -> str:
    if decision.core is None:
        return "unknown"
    return "stands" if code in decision.core else "may leave"


def _says(decision: ReasonedDecision) -> str:
    looked = "" if decision.moves is None else f" ({decision.moves:,} moves)"
    if decision.verdict == "certified":
        return f"Proved: no move replaces a reason; {BY[decision.by or 'enumerated']}{looked}."
    if decision.verdict == "broken":
        typed = typed_change(decision)
        return f"With {typed} instead, the decision is the same and a reason is another."
    return f"Open{looked}: no such move was found, and nothing proves that there is none."


def typed_change(decision: ReasonedDecision) -> str:
    """The change that breaks a decision, as a person would type it: "age 33, job clerk"."""
    return ", ".join(
        f"{name} {value}" if isinstance(value, str) else f"{name} {value:.17g}"
        for name, value in (decision.change or {}).items()
    )
