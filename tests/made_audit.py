"""An audit as `audit.json` holds it: made-up credit decisions, the same ones each time."""

import random
from collections import Counter
from statistics import median
from typing import Any

Audit = dict[str, Any]

NUMBERS: dict[str, tuple[float, float, int, str]] = {  # least, greatest, decimals, unit
    "age": (19, 74, 0, "years"),
    "income": (900, 9800, 0, "€ a month"),
    "credit amount": (500, 48000, 0, "€"),
    "duration": (6, 84, 0, "months"),
    "share of income due": (2, 64, 1, "%"),
    "credit line used": (0, 100, 1, "%"),
    "late payments": (0, 9, 0, ""),
    "open accounts": (0, 14, 0, ""),
    "years in job": (0, 38, 0, "years"),
    "savings": (0, 30000, 0, "€"),
    "years at address": (0, 40, 0, "years"),
    "inquiries": (0, 8, 0, ""),
}
CATEGORIES = {
    "gender": ("female", "male"),
    "housing": ("rent", "own", "free"),
    "purpose": ("car", "repairs", "education", "business"),
    "job": ("unskilled", "skilled", "management"),
}
CLASSES = ("refused", "granted")
EPSILONS = (0.05, 0.1, 0.25, 0.5)
TOLERANCE = 0.1
SUBGROUPS = ("gender", "housing")
NAMES = ("my-net", "steady-net", "third-net", "fourth-net", "fifth-net")


DECIDED = {"certified": "bound", "broken": "attack", "undetermined": "unsearched"}


def verdict_at(decision: Audit, epsilon: float) -> str:
    """The verdict that the two radii of a decision give at a length."""
    proved, broken = decision["certified_radius"], decision["broken_radius"]
    if decision["unbounded"] or proved >= epsilon:
        return "certified"
    return "broken" if broken is not None and broken <= epsilon else "undetermined"


def made_audit(decisions: int = 120, *, models: int = 1, attack: bool = True, k: int = 8) -> Audit:
    """An audit of `decisions` rows by each of `models`, whose sums are those of its decisions."""
    told = [
        decision
        for model in range(models)
        for decision in _decisions(decisions, model, attack=attack, k=k)
    ]
    return {
        "schema": "r2et-audit/2",
        "created": "2026-11-16T08:00:00Z",
        "version": "0.1.0",
        "hashes": {
            "model": {name: f"{place}1f2a3b4c5d6"[:12] for place, name in _named(models)},
            "data": "0123456789ab",
            "settings": "ba9876543210",
        },
        "settings": {
            "k": k,
            "tolerance": TOLERANCE,
            "epsilons": list(EPSILONS),
            "norm": "l2",
            "explained": "probability",
            "attack": "strong" if attack else "none",
            "seed": 0,
            "project_one_hot": True,
        },
        "data": {
            "name": "credit.csv",
            "rows": decisions,
            "features": [
                {
                    "name": name,
                    "unit": unit,
                    "group": group,
                    "immutable": group in ("age", "gender"),
                }
                for name, unit, group in _features()
            ],
            "classes": list(CLASSES),
            "target": "decision",
            "kind": None,
            "immutable": ["age", "gender"],
            "unit_of_eps": "the whole range of a number, from its least to its greatest value; "
            "a category counts 1 when it is fully swapped",
        },
        "models": [
            _model(name, place, [each for each in told if each["model"] == place], attack=attack)
            for place, name in _named(models)
        ],
        "decisions": told,
    }


def _named(models: int) -> list[tuple[int, str]]:
    return list(enumerate(NAMES[:models]))


def _features() -> list[tuple[str, str, str]]:
    numbers = [(name, spec[3], name) for name, spec in NUMBERS.items()]
    columns = [(f"{name}: {each}", "", name) for name, all_ in CATEGORIES.items() for each in all_]
    return numbers + columns


def _decisions(count: int, model: int, *, attack: bool, k: int) -> list[Audit]:
    return [_decision(row, model, attack=attack, k=k) for row in range(count)]


def _decision(row: int, model: int, *, attack: bool, k: int) -> Audit:
    person, draw = random.Random(f"person {row}"), random.Random(f"model {model} row {row}")
    values = {name: _amount(person, name) for name in NUMBERS}
    chosen = {name: person.choice(each) for name, each in CATEGORIES.items()}
    ranked = _ranked(draw)
    unbounded = draw.random() < 0.01
    proved = round(draw.lognormvariate(-2.0 + 0.7 * model, 0.8), 4)
    shortest = round(proved * (1.05 + draw.expovariate(1.4)), 4)
    found = attack and not unbounded and shortest <= EPSILONS[-1]
    radius = shortest if found else None
    probability = round(0.5 + 0.499 * draw.random() ** 0.7, 4)
    prediction = CLASSES[draw.random() < 0.6]
    decision: Audit = {
        "row": row,
        "id": None if row % 10 == 9 else f"A-{1000 + 7 * row}",
        "model": model,
        "label": prediction if person.random() < 0.85 else CLASSES[prediction == CLASSES[0]],
        "prediction": prediction,
        "probability": probability,
        "certified_radius": None if unbounded else proved,
        "unbounded": unbounded,
        "certified_order_radius": None if unbounded else round(proved * draw.random() * 0.4, 4),
        "broken_radius": radius,
        "certified_precision": [
            1.0 if unbounded else _kept(proved, epsilon, k, fast=True) for epsilon in EPSILONS
        ],
        "attacked_precision": [
            1.0 if radius is None else _kept(radius, epsilon, k, fast=False) for epsilon in EPSILONS
        ]
        if attack
        else None,
        "weakest": [ranked[k - 1][0], ranked[k][0]],
        "reasons": _reasons(ranked[:k], values, chosen),
        "slopes": [score for _, score, _ in ranked[:k]],
        "left": [] if radius is None else [ranked[k - 1][0]],
        "entered": [] if radius is None else [ranked[k][0]],
        "log_odds": [0.0, 0.0],
        "subgroup": {name: chosen[name] for name in SUBGROUPS},
        "counter_example": None
        if radius is None
        else _counter_example(draw, radius, ranked, values, chosen, probability, k),
    }
    verdict = verdict_at(decision, TOLERANCE)
    return decision | {"verdict": verdict, "decided": DECIDED[verdict], "smallest": False}


def _amount(draw: random.Random, name: str) -> float:
    least, greatest, decimals, _ = NUMBERS[name]
    return round(least + (greatest - least) * float(draw.random() ** 1.5), decimals)


def _ranked(draw: random.Random) -> list[tuple[str, float, str]]:
    """All features with score and direction, the most important first."""
    scored = [
        (
            name,
            0.5 * 0.86 ** (7 * place % 24) * draw.lognormvariate(0, 0.25),
            draw.choice(("for", "for", "against")),
        )
        for place, (name, _, _) in enumerate(_features())
    ]
    return sorted(scored, key=lambda each: -each[1])


def _kept(radius: float, epsilon: float, k: int, *, fast: bool) -> float:
    """Share of k reasons kept: all below the radius, then fewer and fewer."""
    if epsilon < radius or (fast and epsilon == radius):
        return 1.0
    lost = 1 + int((epsilon / radius - 1) * (2 if fast else 1))
    return max(0, k - lost) / k


def _value(name: str, values: dict[str, float], chosen: dict[str, str]) -> str:
    if name in values:
        return f"{values[name]:g} {NUMBERS[name][3]}".strip()
    group, column = name.split(": ")
    return "yes" if chosen[group] == column else "no"


def _reasons(
    ranked: list[tuple[str, float, str]], values: dict[str, float], chosen: dict[str, str]
) -> list[Audit]:
    return [
        {
            "feature": name,
            "value": _value(name, values, chosen),
            "score": score,
            "direction": direction,
        }
        for name, score, direction in ranked
    ]


def _counter_example(
    draw: random.Random,
    radius: float,
    ranked: list[tuple[str, float, str]],
    values: dict[str, float],
    chosen: dict[str, str],
    probability: float,
    k: int,
) -> Audit:
    """The last reason gives its place to the next one; everything that may move, moves a little."""
    changes, moved = [], dict(values)
    for name, _, group in _features():
        if group in ("age", "gender"):
            continue
        share = radius * draw.uniform(-0.5, 0.5)
        if name in values:
            least, greatest, decimals, _ = NUMBERS[name]
            moved[name] = round(values[name] + share * (greatest - least), decimals + 1)
            after = _value(name, moved, chosen)
        else:
            after = f"{float(chosen[group] == name.split(': ')[1]) + share:.2f}"
        changes.append((abs(share), name, _value(name, values, chosen), after))
    left, entered = ranked[k - 1], ranked[k]
    order = [*ranked[: k - 1], (entered[0], left[1], entered[2])]
    return {
        "changed": len(changes),
        "changes": [
            {"feature": name, "before": before, "after": after}
            for _, name, before, after in sorted(changes, reverse=True)
        ],
        "probability": round(0.5 + (probability - 0.5) * draw.uniform(0.6, 1.0), 4),
        "reasons": _reasons(order, moved, chosen),
        "input": None,
    }


def _model(name: str, place: int, told: list[Audit], *, attack: bool) -> Audit:
    counts = Counter(each["verdict"] for each in told)
    swaps = Counter(
        (each["left"][0], each["entered"][0])
        for each in told
        if each["counter_example"] is not None
    )
    broken = [each["broken_radius"] for each in told if each["broken_radius"] is not None]
    proved = [float("inf") if each["unbounded"] else each["certified_radius"] for each in told]
    return {
        "name": name,
        "auc": 0.8843 - 0.0021 * place,
        "accuracy": 0.8127 - 0.003 * place,
        "counts": {each: counts[each] for each in ("certified", "broken", "undetermined")},
        "decided": dict(Counter(each["decided"] for each in told)),
        "smallest": 0,
        "curve": {
            "epsilons": list(EPSILONS),
            "certified_precision": _means([each["certified_precision"] for each in told]),
            "attacked_precision": _means([each["attacked_precision"] for each in told])
            if attack
            else None,
            "certified_share": [
                _share([verdict_at(each, epsilon) == "certified" for each in told])
                for epsilon in EPSILONS
            ],
            "unbroken_share": [
                _share([verdict_at(each, epsilon) != "broken" for each in told])
                for epsilon in EPSILONS
            ]
            if attack
            else None,
        },
        "median_certified_radius": median(proved) if told else None,
        "median_broken_radius": median(broken) if broken else None,
        "thickness": {"mean": 0.913 + 0.02 * place, "least": 0.641},
        "faithfulness": {"dffot": 0.213, "comp": 0.172, "suff": 0.061},
        "distinct_sets": len({frozenset(r["feature"] for r in each["reasons"]) for each in told}),
        "ties": 0,
        "flippable": 0.173 - 0.02 * place,
        "off_data_share": 0.09,
        "exchange_agreement": 0.921,
        "exchange_size": 0.815,
        "without_exchanges": 0,
        "swaps": [
            {"left": left, "entered": entered, "count": count}
            for (left, entered), count in swaps.most_common(20)
        ],
        "subgroups": [
            _subgroup(group, value, [e for e in told if e["subgroup"][group] == value], attack)
            for group in SUBGROUPS
            for value in CATEGORIES[group]
        ],
        "preflight": [
            {
                "problem": "batch normalisation in training mode",
                "effect": "one decision's reasons would depend on the others in its batch",
                "repair": "put into evaluation mode for this audit",
            }
        ]
        if place == 0
        else [],
        "notes": ["The search for counter-examples stopped at its time limit for 14 decisions."]
        if attack and place == 0
        else [],
    }


def _subgroup(group: str, value: str, told: list[Audit], attack: bool) -> Audit:
    counts = Counter(each["verdict"] for each in told)
    at = EPSILONS.index(TOLERANCE)
    return {
        "group": group,
        "value": value,
        "rows": len(told),
        **{each: counts[each] for each in ("certified", "broken", "undetermined")},
        "certified_precision": _mean([each["certified_precision"][at] for each in told]),
        "attacked_precision": _mean([each["attacked_precision"][at] for each in told])
        if attack
        else None,
    }


def _means(rows: list[list[float]]) -> list[float]:
    return [_mean(list(each)) for each in zip(*rows, strict=True)] if rows else [1.0] * 4


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def _share(hits: list[bool]) -> float:
    return sum(hits) / len(hits) if hits else 1.0
