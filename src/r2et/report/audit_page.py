"""An audit and its page: one self-contained file that shows which reasons of a model hold."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from r2et.attacks.ensemble import EnsembleBudget
from r2et.auditing.classifiers import is_banded, is_estimator
from r2et.auditing.config import DataSettings, read_settings
from r2et.auditing.csvs import CsvTable
from r2et.auditing.decisions import Decision, Slope
from r2et.auditing.estimators import estimator_table, of_estimators
from r2et.auditing.items import ItemSource
from r2et.auditing.reason_models import SubjectOf
from r2et.auditing.reason_records import ReasonAudit
from r2et.auditing.reason_run import run_reasons
from r2et.auditing.reason_settings import ReasonSettings, with_columns
from r2et.auditing.reason_subjects import (
    Reference,
    banded_source,
    of_banded,
    of_networks,
)
from r2et.auditing.records import Audit, Summary
from r2et.auditing.run import run_audit
from r2et.auditing.settings import AuditSettings
from r2et.auditing.sources import Data, Model, models_of, source_for, usual_settings
from r2et.auditing.tables import Source
from r2et.auditing.walk import Progress, ignore
from r2et.certification.affine import Norm
from r2et.core.files import write_text
from r2et.core.reasons import Side
from r2et.explainers import Quantity
from r2et.report.charts import FRAME, html_of, kept_within, verdicts_within
from r2et.report.maps import decision_map
from r2et.report.pages import (
    NOT_MEASURED,
    length_down,
    length_up,
    page_html,
    percent,
    share,
    short,
)
from r2et.report.reason_page import shown_page, write_reason_page
from r2et.trees.readers import is_fitted_model

__all__ = ["audit", "audit_html", "write_audit_page"]

VERDICTS = ("certified", "undetermined", "broken")
BY = {"bound": "bounds", "cells": "search over cells", "attack": "attack"}
DECIDED = {
    "bound": "decided by bounds",
    "cells": "decided by a search over all activation cells",
    "attack": "decided by an attack",
    "budget": "open: the search over activation cells ran out of time",
    "tie": "open: two features tie where it would be decided",
    "unsearched": "open: no activation cells were searched",
}
"""What decided a decision, or why it is open."""
TOLD = 50
"""Decisions that are readable in full without JavaScript."""


Explain = Literal["contributions", "slopes"]

OF_SLOPES = (
    "epsilons",
    "norm",
    "explained",
    "project_one_hot",
    "budget",
    "rounds",
    "radii",
    "measured",
    "checked",
)
OF_CONTRIBUTIONS = (
    "side",
    "threshold",
    "exchange",
    "immutable",
    "only",
    "favourable",
    "codes",
    "protected",
    "reference",
    "reference_rows",
    "most_moves",
)
"""Settings that only one kind of explanation has."""


def audit(
    model: Model | Mapping[str, Model],
    data: Data,
    *,
    explain: Explain | None = None,
    k: int | None = None,
    tolerance: float | Mapping[str, float] | None = None,
    side: Side | None = None,
    threshold: float | None = None,
    exchange: Mapping[str, float] | None = None,
    immutable: Sequence[str] | None = None,
    only: str | None = None,
    favourable: str | None = None,
    codes: Mapping[str, str] | None = None,
    protected: Sequence[str] | None = None,
    reference: Reference = None,
    reference_rows: int | None = None,
    most_moves: int | None = None,
    epsilons: Sequence[float] | None = None,
    norm: Norm | None = None,
    explained: Quantity | None = None,
    project_one_hot: bool | None = None,
    attack: str = "strong",
    budget: EnsembleBudget | None = None,
    rounds: int | None = None,
    radii: str | None = None,
    rows: int | None = None,
    measured: int | None = None,
    chunk: int | None = None,
    checked: float | None = None,
    search: float | None = None,
    seed: int = 0,
    config: DataSettings | str | Path | None = None,
    out: str | Path | None = None,
    format: str = "csv",
    on_progress: Callable[[Progress], None] = ignore,
) -> Audit | ReasonAudit:
    """Which reasons of a model, or of several by name, hold under small changes.

    Of tables reasons are contributions of attributes unless `explain` says "slopes"; of pictures
    and networks they are slopes. `tolerance` is what may change: of contributions so many standard
    deviations of each number, or widths by name in original units, `ReasonSettings` saying the
    rest; of slopes the length of a change, `AuditSettings` saying the rest, `rounds` those of its
    budget.

    A model is an `nn.Module`, a fitted `NetworkClassifier`, a pipeline that ends in one, or what
    `load_model` gives; for contributions also a `StableClassifier`, a pipeline that begins with a
    `StableBinner`, boosted trees and forests of scikit-learn, XGBoost, LightGBM and CatBoost, alone
    or at the end of a pipeline, and anything else with `predict_proba`.

    `data` are the rows: a `Table` of inputs as the model takes them, the test part of a `Split`, or
    a pandas table or the path of a CSV file, about whose columns `config` speaks. Pictures,
    networks and pairs of them are an `ItemSource`, a `Dataset`, whose split of seed 0 is taken, or
    the path of one's own; the name of a known data set is its test part. The rows that
    contributions are told against are those of the model, `reference`, the training part of a
    split, or drawn from the audited rows; "favourable" takes those decided so.

    With a folder `out` every row is kept there as soon as it is audited, in bounded memory, a
    killed audit goes on when called again, and the page of a finished one is there, too. Of slopes,
    a change found inside a proved radius stops it with a `Contradiction`.
    """
    asked: dict[str, Any] = {
        "k": k,
        "attack": attack,
        "rows": rows,
        "chunk": chunk,
        "seed": seed,
        "side": side,
        "threshold": threshold,
        "exchange": exchange,
        "immutable": immutable,
        "only": only,
        "favourable": favourable,
        "codes": codes,
        "protected": protected,
        "reference": reference,
        "reference_rows": reference_rows,
        "most_moves": most_moves,
        "epsilons": epsilons,
        "norm": norm,
        "explained": explained,
        "project_one_hot": project_one_hot,
        "budget": budget,
        "rounds": rounds,
        "radii": radii,
        "measured": measured,
        "checked": checked,
        "search": search,
    }
    known = {name: value for name, value in asked.items() if value is not None}
    models = models_of(model)
    columns = read_settings(config) if isinstance(config, str | Path) else config
    keep: dict[str, Any] = {"out": out, "format": format, "on_progress": on_progress}
    banded = [each.name for each in models.values() if is_banded(each.classifier)]
    if banded:
        if len(banded) < len(models) or explain == "slopes":
            raise ValueError(
                "models behind bands are audited by their contributions, and beside their like "
                "only: audit the others by themselves."
            )
        _refuse(known, OF_SLOPES, "slopes", "contributions")
        behind = {name: each.classifier for name, each in models.items()}
        table = banded_source(behind, data, columns or DataSettings())
        return _of_contributions(
            table, of_banded(behind, known.pop("reference", None)), known, tolerance, columns, keep
        )
    fitted = {
        name: each.classifier
        for name, each in models.items()
        if is_fitted_model(each.classifier) and not is_estimator(each.classifier)
    }
    if fitted:
        if explain == "slopes":
            raise ValueError(
                f"slopes are gradients of networks, and {next(iter(fitted))!r} is none: leave out "
                "explain, and its contributions are audited."
            )
        if len(fitted) < len(models):
            raise ValueError(
                "models of other libraries are audited by their contributions, and beside their "
                "like only: audit the others by themselves."
            )
        _refuse(known, OF_SLOPES, "slopes", "contributions")
        rows_of = estimator_table(fitted, data, columns or DataSettings())
        subjects = of_estimators(fitted, rows_of, known.pop("reference", None))
        return _of_contributions(rows_of.source, subjects, known, tolerance, columns, keep)
    source = source_for(data, list(models.values()), columns)
    networks = {name: each.model for name, each in models.items()}
    if isinstance(source, ItemSource):
        if explain == "contributions":
            raise ValueError(
                "contributions are those of the attributes of tables: of pictures and networks ask "
                "for slopes."
            )
        networks = {name: source.prepared(each) for name, each in networks.items()}
    elif explain != "slopes":
        _refuse(known, OF_SLOPES, "slopes", "contributions")
        subjects = of_networks(networks, known.pop("reference", None))
        return _of_contributions(source, subjects, known, tolerance, columns, keep)
    _refuse(known, OF_CONTRIBUTIONS, "contributions", "slopes")
    if isinstance(tolerance, Mapping):
        raise ValueError(
            "the tolerance of slopes is one length, got widths by name: give a number."
        )
    usual = vars(source.usual) if isinstance(source, ItemSource) else {}
    if tolerance is not None:
        known["tolerance"] = tolerance
    if (times := known.pop("rounds", None)) is not None:
        spent = known.get("budget") or usual_settings(source).budget
        known["budget"] = replace(spent, rounds=times)
    settings = AuditSettings(**{**usual, **known})
    found = run_audit(networks, source, settings, **keep)
    if found.folder is not None:
        write_audit_page(found)
    return found


def _refuse(known: Mapping[str, Any], others: Sequence[str], theirs: str, ours: str) -> None:
    for name in others:
        if name in known:
            raise ValueError(
                f"{name} is a setting of {theirs}, but {ours} are audited here: leave it out, or "
                f"say explain = {theirs!r} where that is possible."
            )


def _of_contributions(
    source: Source,
    subjects: SubjectOf,
    known: Mapping[str, Any],
    tolerance: float | Mapping[str, float] | None,
    columns: DataSettings | None,
    keep: Mapping[str, Any],
) -> ReasonAudit:
    """An audit of contributions, with its page."""
    plain: dict[str, Callable[[Any], Any]] = {
        "immutable": tuple,
        "protected": tuple,
        "codes": dict,
        "exchange": partial(_numbers, "exchange"),
    }
    asked = {name: plain.get(name, _same)(value) for name, value in known.items()}
    width = _numbers("tolerance", tolerance) if isinstance(tolerance, Mapping) else tolerance
    settings = ReasonSettings(width=width, **asked)
    if columns is not None:
        settings = with_columns(settings, columns.features, _attributes(source))
    found = run_reasons(source, subjects, settings, **keep)
    if found.folder is None:
        return replace(found, shown=shown_page)
    write_reason_page(found)
    return found


def _same(value: Any) -> Any:
    return value


def _numbers(what: str, given: Mapping[str, Any]) -> dict[str, float]:
    """What is given for each attribute as a number, refused where it is none."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{what} of {name!r} must be a number, got {value!r}.")
    return {str(name): float(value) for name, value in given.items()}


def _attributes(source: Source) -> dict[str, str]:
    """The attribute that a column of a table belongs to, by the name of the column."""
    found = {name: name for name in source.columns.groups}
    if isinstance(source, CsvTable):
        found |= {each.name: each.features[0].group for each in source.schema.attributes}
    return found


def write_audit_page(audit: Audit, path: Path | None = None) -> Path:
    """The path, that in the folder of the audit unless given, now holding its page."""
    path = path or audit.page
    if path is None:
        raise ValueError("this audit has no folder for its page: audit with out=, or give a path.")
    return write_text(path, audit_html(audit))


def audit_html(audit: Audit) -> str:
    """The audit as a page that asks for no other file, readable also without JavaScript."""
    if not audit.models:
        raise ValueError("an audit page takes at least one audited model, got none.")
    settings, models, decisions = audit.settings, audit.models, audit.decisions
    longest = _longest(audit)
    frame = {side: 100 * place for side, place in FRAME.items()}
    of_first = sum(each.model == 0 for each in decisions)
    values = {
        "audit": audit,
        "settings": settings,
        "data": audit.data,
        "models": models,
        "verdicts": VERDICTS,
        "version": audit.version,
        "sentences": [finding(audit, model) for model in models],
        "k": settings.k,
        "reasons": reasons_text(settings.k),
        "tolerance": settings.tolerance,
        "attacked": settings.attack != "none",
        "searched": _searched(settings),
        "kept_chart": html_of(partial(kept_within, [model.curve for model in models], longest)),
        "verdict_charts": [
            html_of(partial(verdicts_within, model.curve, longest)) for model in models
        ],
        "longest": longest,
        "frame": frame,
        "at": frame["left"] + (frame["right"] - frame["left"]) * settings.tolerance / longest,
        "markers": "●■◆▲",
        "stops": stops(audit),
        "measures": measures(audit),
        "curve_rows": list(_curve_rows(models)),
        "largest_swap": max((each.count for model in models for each in model.swaps), default=1),
        "decisions": [told(audit, each) for each in decisions[:TOLD]],
        "decision_count": len(decisions),
        "kind": audit.data.kind or "",
        "box": settings.norm == "linf",
        "drawings": {
            number: Markup(decision_map(each.drawing))
            for number, each in enumerate(decisions)
            if each.drawing
        },
        "told_count": TOLD,
        "complete": of_first == audit.data.rows,
        "of_first": of_first,
        "packed": Markup(packed(audit)),
    }
    return page_html("audit", values)


def reasons_text(k: int) -> str:
    """The k reasons in words: "8 reasons", or "one reason"."""
    return "one reason" if k == 1 else f"{k} reasons"


def finding(audit: Audit, model: Summary) -> str:
    """What the audit found of one model, in one sentence."""
    counts, total = model.counts, sum(model.counts.values())
    if not total:
        return "No decision was audited, so that nothing can be said."
    settings = audit.settings
    decisions = "the one decision" if total == 1 else f"{total:,} decisions"
    said = (
        f"Of {decisions}, {share(counts['certified'], total)} keep their "
        f"{reasons_text(settings.k)} under any change up to {settings.tolerance:g} (proved); "
    )
    if settings.attack == "none":
        return (
            f"{said}the other {share(counts['undetermined'], total)} are undetermined, as nobody "
            "searched for changes that replace a reason."
        )
    said += (
        f"for {share(counts['broken'], total)} we show a change that replaces a reason; "
        f"{share(counts['undetermined'], total)} are undetermined."
    )
    curve = model.curve
    if not audit.data.kind or curve.attacked_precision is None:
        return said
    left = curve.attacked_precision[curve.epsilons.index(settings.tolerance)]
    return f"{said} The most damaging changes found left {percent(left)} of the reasons on average."


def stops(audit: Audit) -> list[float]:
    """The lengths at which the slider stops: an even scale, and every length that was audited."""
    longest = _longest(audit)
    step = 10.0 ** math.floor(math.log10(longest / 100))
    step *= next(factor for factor in (1, 2, 5, 10) if longest / (factor * step) <= 100)
    even = (round(place * step, 10) for place in range(1, int(longest / step) + 1))
    settings = audit.settings
    return sorted({*even, *settings.epsilons, settings.tolerance} - {0})


def _longest(audit: Audit) -> float:
    """The greatest length on any scale of the page."""
    settings = audit.settings
    curves = (length for model in audit.models for length in model.curve.epsilons)
    return float(max([*settings.epsilons, settings.tolerance, *curves]))


def _curve_rows(models: Sequence[Summary]) -> Iterable[dict[str, Any]]:
    """The numbers of the figures: a row for each length, four numbers for each model."""
    names = ("certified_precision", "attacked_precision", "certified_share", "unbroken_share")
    for length in sorted({each for model in models for each in model.curve.epsilons}):
        cells = []
        for model in models:
            curve = model.curve
            at = curve.epsilons.index(length) if length in curve.epsilons else None
            for name in names:
                shares = getattr(curve, name)
                cells.append("–" if at is None or shares is None else percent(shares[at]))
        yield {"length": f"{length:g}", "cells": cells}


def measures(audit: Audit) -> list[dict[str, Any]]:
    """Everything measured of the models: its name, what it says, and its value for each model."""
    settings, models = audit.settings, audit.models
    tolerance = settings.tolerance

    def kept(model: Summary) -> str:
        curve = model.curve
        at = curve.epsilons.index(tolerance)
        least = percent(curve.certified_precision[at])
        if curve.attacked_precision is None:
            return f"at least {least}"
        return f"{least} to {percent(curve.attacked_precision[at])}"

    def counted(verdict: str) -> Callable[[Summary], str]:
        def show(model: Summary) -> str:
            count, total = model.counts[verdict], sum(model.counts.values())
            return f"{count:,} ({share(count, total)})" if total else "0"

        return show

    def of(
        name: str,
        show: Callable[[Any], str] = short,
        *,
        part: str = "",
        missing: str = NOT_MEASURED,
    ) -> Callable[[Summary], str]:
        def text(model: Summary) -> str:
            value = getattr(model, name)
            value = getattr(value, part) if part and value is not None else value
            if value is None:
                return missing if sum(model.counts.values()) else NOT_MEASURED
            return show(value)

        return text

    def exact(value: float) -> str:
        return f"{value:.4f}"

    table: list[tuple[str, str, Callable[[Summary], str]]] = [
        ("AUC", "How well the model tells the classes apart: 1 is perfect, 0.5 is chance.",
         of("auc", exact)),
        ("Accuracy", "Share of decisions that agree with the data.", of("accuracy", percent)),
        ("Certified", f"Proved: no change up to {tolerance:g} replaces a reason.",
         counted("certified")),
        ("Undetermined", "Neither proved nor refuted.", counted("undetermined")),
        ("Decided by", "What the verdicts rest on: bounds of all changes, a search over all "
         "activation cells within reach, or a change that an attack found.", _decided),
        ("Smallest changes proved", "Broken decisions of which the change shown is the shortest "
         "that there is.", _smallest),
        ("Broken", f"A change up to {tolerance:g} that replaces a reason is shown.",
         counted("broken")),
        (f"Reasons kept within {tolerance:g}", "Mean share of the reasons that stay, in the worst "
         "case: at least what is proved, at most what the search left.", kept),
        ("Median certified length", "Half of the decisions are proved up to this length or more.",
         of("median_certified_radius", length_down, missing="any length")),
        ("Median broken length", "Middle length of the shortest changes found that replace a "
         "reason.", of("median_broken_radius", length_up,
                       missing="none found" if settings.attack != "none" else NOT_MEASURED)),
        ("Distinct sets", "How many different sets of reasons the decisions have. One means that "
         "everybody is told the same: steady, but not personal.",
         of("distinct_sets", lambda count: f"{count:,}")),
        ("Ties", "Decisions whose last reason has the same score as the next feature, so that the "
         "set is arbitrary.", of("ties", lambda count: f"{count:,}")),
        ("Flippable", "Share of decisions whose outcome itself turns over under a small change: "
         "there the reasons are the lesser worry.", of("flippable", percent)),
        ("Off-data share", "Share of the model's gradient in directions in which real data cannot "
         "vary. Steadiness that comes from there is worth nothing.",
         of("off_data_share", percent)),
        *_exchanges(models, of),
        ("Thickness, mean", "How clearly the reasons lead over the other features around a "
         "decision: 1 is always, 0 never.", of("thickness", part="mean")),
        ("Thickness, least", "The same for the decision that leads least.",
         of("thickness", part="least")),
        ("Flips without its reasons (DFFOT)", "Share of features to take away, most important "
         "first, until the outcome changes. Lower: the reasons matter more.",
         of("faithfulness", part="dffot")),
        ("Loss without the reasons (COMP)", "How far the probability moves when the most important "
         "features are taken away. Higher: the reasons matter more.",
         of("faithfulness", part="comp")),
        ("Loss with the reasons alone (SUFF)", "How far it moves when only they are left. Lower: "
         "the reasons suffice.", of("faithfulness", part="suff")),
    ]  # fmt: skip
    return [
        {"name": name, "says": says, "values": [show(model) for model in models]}
        for name, says, show in table
    ]


def _decided(model: Summary) -> str:
    """What decided how many decisions."""
    known = [(each, model.decided.get(each, 0)) for each in BY]
    return ", ".join(f"{BY[each]} {count:,}" for each, count in known if count) or NOT_MEASURED


def _smallest(model: Summary) -> str:
    """Of how many broken decisions the shortest change is known."""
    broken = model.counts["broken"]
    return f"{model.smallest:,} of {broken:,}" if broken else NOT_MEASURED


def _exchanges(
    models: Sequence[Summary], of: Callable[..., Callable[[Summary], str]]
) -> list[tuple[str, str, Callable[[Summary], str]]]:
    """What gradients say about exchanges of categories, where the data have any."""
    known = (each for model in models for each in (model.off_data_share, model.exchange_agreement))
    if all(each is None for each in known):
        return []
    return [
        ("Exchange agreement", "How far the gradients order the exchanges of categories that a "
         "person could make as the score does: 1 is the same order. Near 0 the reasons say nothing "
         "about them, however steady.", of("exchange_agreement")),
        ("Exchange size", "What the gradients say that exchanges do against what these do, the "
         "smaller over the larger: 1 is equal.", of("exchange_size")),
    ]  # fmt: skip


def told(audit: Audit, decision: Decision) -> dict[str, Any]:
    """One decision in the words of the page, which its script repeats for all the others."""
    settings = audit.settings
    counter = decision.counter_example
    proved, broken = decision.certified_radius, decision.broken_radius
    shown = decision.reasons + (counter.reasons if counter else ())
    largest = max((abs(each.score) for each in shown), default=0.0) or 1.0
    longest = _longest(audit)
    return {
        **vars(decision),
        "counter": counter,
        "says": _says(settings, decision),
        "facts": list(_facts(audit, decision)),
        "first": ", ".join(each.feature for each in decision.reasons[:3]),
        "proved": "any length" if decision.unbounded else length_down(proved or 0),
        "broken": "–" if broken is None else length_up(broken),
        "proved_width": 100 if decision.unbounded else _part(proved or 0, longest),
        "broken_from": 100 if broken is None else _part(broken, longest),
        "mark": _part(settings.tolerance, longest),
        "kept": [_kept_text(value, settings.k) for value in decision.certified_precision],
        "at_most": [_kept_text(value, settings.k) for value in decision.attacked_precision or []],
        "before": [_reason(each, largest, decision.left) for each in decision.reasons],
        "after": [_reason(each, largest, decision.entered) for each in counter.reasons]
        if counter
        else [],
    }


def _part(length: float, longest: float) -> float:
    return round(min(100.0, 100 * length / longest), 1)


def _kept_text(value: float, k: int) -> str:
    return f"{round(value * k, 2):g}"


def _reason(reason: Slope, largest: float, moved: Sequence[str]) -> dict[str, Any]:
    return {
        **vars(reason),
        "score": short(abs(reason.score)),
        "length": round(100 * abs(reason.score) / largest),
        "moved": reason.feature in moved,
    }


def _says(settings: AuditSettings, decision: Decision) -> str:
    """The verdict of a decision at the tolerance, with what it rests on."""
    within, broken = f"{settings.tolerance:g}", decision.broken_radius
    if decision.verdict == "certified":
        return f"Proved: no change up to {within} replaces a reason."
    if decision.verdict == "broken":
        shortest = ", and no shorter one does (proved)" if decision.smallest else ""
        return f"A change of length {length_up(broken or 0)} replaces a reason{shortest}."
    proved = length_down(decision.certified_radius or 0)
    return f"Open at {within}: proved only up to {proved}, and {_search(settings, broken)}."


def _search(settings: AuditSettings, broken: float | None) -> str:
    if broken is not None:
        return f"the shortest change found that replaces a reason has length {length_up(broken)}"
    if settings.attack == "none":
        return "nobody searched for a change that replaces a reason"
    return f"no change up to {_searched(settings):g} that replaces a reason was found"


def _searched(settings: AuditSettings) -> float:
    """The greatest length up to which counter-examples were searched for."""
    return float(max(settings.epsilons, default=settings.tolerance))


def _facts(audit: Audit, decision: Decision) -> Iterable[tuple[str, str]]:
    if len(audit.models) > 1:
        yield "Model", audit.models[decision.model].name
    yield "Predicted", f"{decision.prediction}, {percent(decision.probability)}"
    if decision.label is not None:
        yield "In the data", str(decision.label)
    if decision.subgroup:
        yield "Group", ", ".join(f"{name}: {it}" for name, it in decision.subgroup.items())
    if decision.unbounded:
        yield "Proved", "these reasons stay under changes of any length"
    else:
        yield "Proved", f"these reasons stay up to {length_down(decision.certified_radius or 0)}"
    if decision.certified_order_radius is not None:
        yield "Their order", f"stays up to {length_down(decision.certified_order_radius)}"
    yield "Search", _search(audit.settings, decision.broken_radius)
    yield f"At {audit.settings.tolerance:g}", DECIDED[decision.decided]
    if decision.weakest:
        shown, other = decision.weakest
        yield "Weakest pair", f"{shown} may be the first to give way, to {other}"


class Numbered(dict[Any, int]):
    """Words and their numbers, given out as the words come along."""

    def __missing__(self, word: Any) -> int:
        return self.setdefault(word, len(self))


def packed(audit: Audit) -> str:
    """The decisions as compact JSON that cannot end the script element it stands in.

    A column for each field; names and values are numbers of entries in lists of words.
    """
    settings, decisions = audit.settings, audit.decisions
    names, values, classes, groups = Numbered(), Numbered(), Numbered(), Numbered()
    decided = Numbered()

    def column(name: str) -> list[Any]:
        return [getattr(each, name) for each in decisions]

    def kept(shares: Sequence[float] | None) -> list[float] | None:
        return None if shares is None else [round(value * settings.k, 2) for value in shares]

    def flat(reasons: Sequence[Slope]) -> list[Any]:
        found: list[Any] = ["".join("-+"[each.direction == "for"] for each in reasons)]
        for each in reasons:
            score = float(f"{abs(each.score):.3g}")
            found += [names[each.feature], values[each.value], score]
        return found

    def counter(decision: Decision) -> list[Any] | None:
        if (example := decision.counter_example) is None:
            return None
        changes: list[int] = []
        for each in example.changes:
            changes += [names[each.feature], values[each.before], values[each.after]]
        return [
            example.probability,
            [names[name] for name in decision.left],
            [names[name] for name in decision.entered],
            changes,
            flat(example.reasons),
        ]

    columns = {
        "row": column("row"),
        "id": column("id"),
        "model": column("model"),
        "verdict": [VERDICTS.index(verdict) for verdict in column("verdict")],
        "prediction": [classes[word] for word in column("prediction")],
        "label": [None if word is None else classes[word] for word in column("label")],
        "probability": column("probability"),
        "subgroup": [[groups[it] for it in each.items()] for each in column("subgroup")],
        "unbounded": [int(each) for each in column("unbounded")],
        "proved": column("certified_radius"),
        "order": column("certified_order_radius"),
        "broken": column("broken_radius"),
        "kept": [kept(each) for each in column("certified_precision")],
        "atMost": [kept(each) for each in column("attacked_precision")],
        "decided": [decided[each] for each in column("decided")],
        "smallest": [int(each) for each in column("smallest")],
        "weakest": [[names[name] for name in each] for each in column("weakest")],
        "reasons": [flat(each) for each in column("reasons")],
        "counter": [counter(each) for each in decisions],
    }
    whole = {
        "k": settings.k,
        "tolerance": settings.tolerance,
        "epsilons": settings.epsilons,
        "attacked": settings.attack != "none",
        "searched": _searched(settings),
        "stops": stops(audit),
        "longest": _longest(audit),
        "rows": audit.data.rows,
        "models": [model.name for model in audit.models],
        "names": list(names),
        "values": list(values),
        "classes": list(classes),
        "groups": list(groups),
        "ways": [DECIDED[each] for each in decided],
        **columns,
    }
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate({ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})
