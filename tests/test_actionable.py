"""Realistic threats: what an applicant cannot change never changes, and what is bought is paid."""

import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacking import attacker
from closed_form import numbers
from r2et.actionable import (
    ActionableSet,
    Choice,
    Number,
    Rule,
    actionable_set,
    read_rules,
    rule_names,
    what_it_buys,
)
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import flippable
from r2et.core.ranking import precision_at_k
from r2et.core.rng import stream
from r2et.data import Dataset, Scale, Split, from_frame, load
from r2et.data.builtin import DATASETS
from r2et.data.schema import Category, Numeric, Schema
from r2et.data.structure import TableStructure
from r2et.explainers import gradient, predicted
from r2et.perturbations import PerturbationSet
from refusals import refusal

ROOT = Path(__file__).parents[1]
TABLES = [name for name, entry in DATASETS.items() if entry.kind == "table"]
DTYPES = [torch.float32, torch.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
embedded = pytest.mark.parametrize("name", TABLES)
some_worlds = pytest.mark.parametrize("seed", range(40))
FLOAT32 = Fraction(torch.finfo(torch.float32).eps)


@cache
def split_of(name: str, scaling: Any = "minmax") -> Split:
    return load(name).split(0, scaling=scaling)


# --- the definition once more, in fractions and loops


def said(rules: dict[str, Rule], group: str, name: str, default: Any) -> Any:
    """What the rules say of a group, by themselves or for all groups."""
    own, every = (getattr(rules.get(each, Rule()), name) for each in (group, "*"))
    return next((each for each in (own, every) if each is not None), default)


def is_whole(rules: dict[str, Rule], dataset: Dataset, column: int) -> bool:
    feature = dataset.features[column]
    values = [value for value in dataset.x[:, column].tolist() if value == value]
    default = all(value == int(value) and abs(value) <= 10**6 for value in values)
    return bool(said(rules, feature.group, "whole", default))


def price_of_one(rules: dict[str, Rule], dataset: Dataset, scale: Scale, column: int) -> Fraction:
    """The price of a change by one original unit."""
    group, width = dataset.features[column].group, scale.width[column].item()
    own = rules.get(group, Rule())
    share = said(rules, group, "share", 1.0)
    per_eps = share * width if own.per_eps is None else own.per_eps
    return 1 / Fraction(per_eps)


def one_hot(values: list[float]) -> bool:
    return sorted(values) == [0.0] * (len(values) - 1) + [1.0]


def complaints(
    point: Tensor,
    centre: Tensor,
    dataset: Dataset,
    scale: Scale,
    rules: dict[str, Rule],
    radius: float,
) -> Iterator[str]:
    """Everything that makes a point inadmissible around a centre: rows (d,), no number rounded."""
    p, c = point.tolist(), centre.tolist()
    rounding = 4 * max(Fraction(torch.finfo(point.dtype).eps), FLOAT32)
    steps = swaps = smooth = Fraction(0)
    for group in dataset.group_names:
        columns = [at for at, each in enumerate(dataset.features) if each.group == group]
        kinds = {at: dataset.features[at].kind for at in columns}
        changed = [at for at in columns if p[at] != c[at]]
        if not changed:
            continue
        only = said(rules, group, "only", None)
        if said(rules, group, "fixed", False):
            yield f"{group} is fixed"
        elif kinds[columns[0]] == "category":
            if not one_hot([c[at] for at in columns]):
                yield f"{group} showed no category, and has another now"
            if not one_hot([p[at] for at in columns]):
                yield f"{group} shows no category"
            swaps += Fraction(said(rules, group, "swap", 1.0)) ** 2
        elif kinds[columns[0]] == "binary":
            if {c[columns[0]], p[columns[0]]} != {0.0, 1.0}:
                yield f"{group} is neither 0 nor 1"
            if only is not None and (only == "up") != (p[columns[0]] > c[columns[0]]):
                yield f"{group} went the wrong way"
            swaps += Fraction(said(rules, group, "swap", 1.0)) ** 2
        else:
            column, marks = columns[0], columns[1:]
            if changed != [column] or any(c[mark] != 0 for mark in marks):
                yield f"{group} is missing, or its mark has moved"
            if only is not None and (only == "up") != (p[column] > c[column]):
                yield f"{group} went the wrong way"
            shift, width = (
                Fraction(scale.shift[column].item()),
                Fraction(scale.width[column].item()),
            )
            was, now = (shift + width * Fraction(each[column]) for each in (c, p))
            own, feature = rules.get(group, Rule()), dataset.features[column]
            low = feature.low if own.low is None else own.low
            high = feature.high if own.high is None else own.high
            price = price_of_one(rules, dataset, scale, column)
            if is_whole(rules, dataset, column):
                off = min(
                    rounding * (abs(shift) + abs(width * Fraction(p[column])) + abs(was)),
                    Fraction(1, 4),
                )
                count = round(now - was)
                if count == 0 or abs(now - was - count) > off:
                    yield f"{group} changed by {float(now - was)}, not by whole units"
                if abs(was - round(was)) < off / 8 and abs(now - round(now)) > off:
                    yield f"{group} was {float(was)} and is {float(now)}"
                if not min(Fraction(low), was) - off <= now <= max(Fraction(high), was) + off:
                    yield f"{group} left its bounds {low}..{high}: {float(now)}"
                steps += (count * price) ** 2
            else:
                low, high = (
                    torch.tensor((each - float(shift)) / float(width), dtype=torch.float64)
                    .to(point.dtype)
                    .item()
                    for each in (low, high)
                )
                if not min(low, c[column]) <= p[column] <= max(high, c[column]):
                    yield f"{group} left its bounds"
                smooth += ((now - was) * price) ** 2
    limit = Fraction(radius) ** 2
    if steps + swaps > limit * (1 + Fraction(1001, 10**12)):
        yield f"steps and swaps cost {float(steps + swaps) ** 0.5}, the radius is {radius}"
    if smooth and steps + swaps + smooth > limit:
        yield f"all costs {float(steps + swaps + smooth) ** 0.5}, the radius is {radius}"


# --- worlds drawn at random


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """Some data, a scale, rules of what can change, clean rows and points around them."""

    dataset: Dataset
    scale: Scale
    rules: dict[str, Rule]
    threat: ActionableSet
    centre: Tensor
    points: Tensor

    def complaints(self, found: Tensor, centre: Tensor | None = None) -> list[str]:
        centre = self.centre if centre is None else centre
        return [
            complaint
            for point, clean in zip(found, centre, strict=True)
            for complaint in complaints(
                point, clean, self.dataset, self.scale, self.rules, self.threat.radius
            )
        ]


def drawn_column(draw: random.Random, name: str, rows: int) -> tuple[Numeric | Category, Any]:
    kind = draw.choice(["whole", "whole", "real", "gaps", "binary", "category", "category"])
    if kind == "category":
        values = [f"v{each}" for each in range(draw.randint(2, 5))]
        codes = np.array([draw.randrange(len(values)) for _ in range(rows)])
        category = Category(name=name, labels=tuple(values))
        return category, category.of_places(codes)
    if kind == "binary":
        codes = np.array([draw.randint(0, 1) for _ in range(rows)])
        category = Category(name=name, labels=("no", "yes"), binary=True)
        return category, category.of_places(codes)
    size = draw.choice([1, 5, 100, 30_000])
    numbers = np.array([draw.uniform(-size, size) for _ in range(rows)])
    if kind == "whole" or (kind == "gaps" and draw.random() < 0.5):
        numbers = numbers.round() + 0.0
    if kind == "gaps":
        numbers[0] = math.nan
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    number = Numeric(name=name, low=low, high=high, marked=kind == "gaps")
    return number, number.raw(numbers)


def drawn_rule(draw: random.Random, kind: str, low: float, high: float) -> Rule:
    def maybe(value: Any, chance: float = 0.4) -> Any:
        return value if draw.random() < chance else None

    fixed, only = maybe(draw.random() < 0.5, 0.2), maybe(draw.choice(["up", "down"]), 0.3)
    swap = maybe(draw.choice([0.1, 0.5, 1.0, 1.0, 2.0, draw.uniform(0.1, 3)]), 0.7)
    if kind == "category":
        return Rule(fixed=fixed, swap=swap)
    if kind == "binary":
        return Rule(fixed=fixed, swap=swap, only=only)
    rule = Rule(fixed=fixed, only=only, whole=maybe(draw.random() < 0.5, 0.5))
    if draw.random() < 0.7:
        choices = [1, 2, 5, 0.3, (high - low + 1) / 4, draw.uniform(0.1, 20)]
        rule = replace(rule, per_eps=draw.choice(choices))
    elif draw.random() < 0.5:
        rule = replace(rule, share=draw.uniform(0.01, 1))
    if draw.random() < 0.3:
        middle = draw.uniform(low, high)
        rule = replace(
            rule, low=middle - draw.choice([0, 1, 7.5]), high=middle + draw.uniform(0, 9)
        )
    return rule


def drawn_row(draw: random.Random, dataset: Dataset, scale: Scale, tidy: bool) -> list[float]:
    """A row of model inputs; an untidy one may show what no data would."""
    row: list[float] = []
    for group in dataset.group_names:
        columns = [at for at, each in enumerate(dataset.features) if each.group == group]
        feature = dataset.features[columns[0]]
        if feature.kind == "category":
            shown = draw.randrange(len(columns))
            values = [float(each == shown) for each in range(len(columns))]
            if not tidy and draw.random() < 0.15:
                values = [draw.choice([0.0, 1.0, 0.5, 1e-9, -1.0]) for _ in columns]
        elif feature.kind == "binary":
            values = [float(draw.randint(0, 1))]
            if not tidy and draw.random() < 0.15:
                values = [draw.choice([0.3, 1e-9, -1.0])]
        else:
            value = draw.choice(
                [draw.uniform(feature.low, feature.high), feature.low, feature.high]
            )
            if draw.random() < 0.8:
                value = float(round(value))
            if not tidy and draw.random() < 0.1:
                value += draw.choice([-1, 1]) * draw.choice([0.5, 10, 1000])
            values = [(value - scale.shift[columns[0]].item()) / scale.width[columns[0]].item()]
            values += [float(draw.random() < 0.2) for _ in columns[1:]]
        row += values
    return row


def drawn_point(draw: random.Random, world: World, row: list[float]) -> list[float]:
    """A point around a clean row: near, far, another row, a mix of rows, or beyond all numbers."""
    how = draw.choice(["near", "far", "row", "row", "mix", "infinite", "same"])
    other = drawn_row(draw, world.dataset, world.scale, tidy=True)
    if how == "row":
        return other
    if how == "mix":
        return [draw.choice(pair) for pair in zip(row, other, strict=True)]
    if how == "infinite":
        odd = [math.inf, -math.inf, math.nan, 1e30, -1e30]
        return [draw.choice([value, draw.choice(odd)]) for value in row]
    spread = {"near": 0.1, "far": draw.choice([0.5, 2.0, 1e4]), "same": 0.0}[how]
    return [value + draw.gauss(0, 1) * spread for value in row]


def world_of(seed: int, dtype: torch.dtype = torch.float64, rows: int = 3) -> World:
    draw = random.Random(seed)
    drawn = [drawn_column(draw, f"g{group}", rows=6) for group in range(draw.randint(1, 5))]
    schema = Schema(tuple(attribute for attribute, _ in drawn))
    dataset = Dataset(
        name="drawn",
        x=torch.from_numpy(np.concatenate([values for _, values in drawn], axis=1)),
        y=torch.tensor([0, 1] * 3),
        structure=TableStructure(features=schema.features),
        classes=("no", "yes"),
        target="y",
        source="",
    )
    numeric = [each.kind == "numeric" for each in dataset.features]
    spans = [each.high - each.low for each in dataset.features]
    width = [
        draw.choice([span, span / 4, draw.uniform(0.2, 50)]) or 1.0 if number else 1.0
        for span, number in zip(spans, numeric, strict=True)
    ]
    shift = [
        draw.choice([0.0, each.low, draw.uniform(each.low, each.high)]) if number else 0.0
        for each, number in zip(dataset.features, numeric, strict=True)
    ]
    scale = Scale(
        fill=torch.zeros(dataset.n).double(),
        shift=torch.tensor(shift, dtype=torch.float64),
        width=torch.tensor(width, dtype=torch.float64),
    )
    rules: dict[str, Rule] = {}
    for group in dataset.group_names:
        feature = next(each for each in dataset.features if each.group == group)
        if draw.random() < 0.8:
            rules[group] = drawn_rule(draw, feature.kind, feature.low, feature.high)
    if draw.random() < 0.3:
        rules["*"] = Rule(swap=draw.uniform(0.2, 2), share=draw.uniform(0.01, 1))
    radius = draw.choice([0.0, 0.3, 0.5, 1.0, 1.0, 1.0, 2**0.5, 2.0, draw.uniform(0, 4), 1e-3, 50])
    threat = actionable_set((dataset, scale), rules, radius=radius)
    centre = [drawn_row(draw, dataset, scale, tidy=False) for _ in range(rows)]
    # Evaluations are in float64, on rows that were float32 before.
    once = draw.choice(DTYPES)
    clean = torch.tensor(centre, dtype=torch.float64).to(once).to(dtype)
    world = World(
        dataset=dataset, scale=scale, rules=rules, threat=threat, centre=clean, points=clean
    )
    points = [drawn_point(draw, world, row) for row in clean.tolist()]
    return replace(world, points=torch.tensor(points, dtype=torch.float64).to(dtype))


def check_projection(seed: int, dtype: torch.dtype) -> None:
    world = world_of(seed, dtype)
    threat, centre, points = world.threat, world.centre, world.points
    given_points, given_centre = points.clone(), centre.clone()
    found = threat.project(points, centre)
    assert torch.equal(centre, given_centre)
    assert torch.equal(points.nan_to_num(7.0), given_points.nan_to_num(7.0))
    assert found.dtype == dtype
    assert found.shape == points.shape
    assert world.complaints(found) == []
    assert torch.equal(threat.project(found, centre), found)
    cost = threat.cost(found, centre)
    assert (cost <= threat.radius * (1 + 1e-6)).all()
    assert torch.equal(cost > 0, (found != centre).any(-1))


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**9), dtype=st.sampled_from(DTYPES))
def test_whatever_is_projected_is_admissible(seed: int, dtype: torch.dtype) -> None:
    check_projection(seed, dtype)


@pytest.mark.slow
@settings(max_examples=12_000, deadline=None)
@given(seed=st.integers(0, 10**9), dtype=st.sampled_from(DTYPES))
def test_whatever_is_projected_is_admissible_in_thousands_of_worlds(
    seed: int, dtype: torch.dtype
) -> None:
    check_projection(seed, dtype)


# --- the projection


def slow_projection(threat: ActionableSet, point: list[float], centre: list[float]) -> list[float]:
    """The rule of `docs/guides/actionable.md` for one row, in loops."""
    found, purse, spent = list(centre), threat.radius**2, 0.0
    wishes = []
    for choice in threat.choices:
        before, shown = ([row[at] for at in choice.columns] for row in (centre, point))
        values = [[float(at == other) for other in choice.columns] for at in choice.columns]
        if len(choice.columns) == 1:
            before, shown, values = [1 - before[0], *before], [1 - shown[0], *shown], [[0.0], [1.0]]
        if one_hot(before):
            was = before.index(1.0)
            barred = {"up": 0, "down": 1, None: None}[choice.only]
            open_to = [value for value in range(len(shown)) if value != barred or value == was]
            best = max(open_to, key=lambda value: shown[value])
            if shown[best] > shown[was]:
                wishes.append((shown[best] - shown[was], choice, values[best]))
    for _, choice, value in sorted(wishes, key=lambda wish: -wish[0]):
        if spent + choice.swap**2 <= purse * (1 + 1e-9):
            spent += choice.swap**2
            for at, each in zip(choice.columns, value, strict=True):
                found[at] = each
    changes = []
    for number in threat.numbers:
        was = centre[number.column] * number.width + number.shift
        near = 2**-22 * (abs(number.shift) + number.width * abs(centre[number.column]))
        if number.whole and abs(was - round(was)) <= min(near, 1 / 8):
            was = round(was)
        low = was if number.only == "up" else min(number.low, was)
        high = was if number.only == "down" else max(number.high, was)
        now = min(max(point[number.column] * number.width + number.shift, low), high)
        change = 0.0 if any(centre[mark] for mark in number.marks) else now - was
        if number.whole:
            change = min(max(change, math.ceil(low - was)), math.floor(high - was))
            change = round(change) if abs(change - round(change)) <= 1 / 8 else change
        changes.append((number, was, change))
    need = sum((change / number.per_eps) ** 2 for number, _, change in changes)
    shrink = 1.0
    if need > purse - spent + 1e-9 * purse:
        shrink = (max(purse - spent, 0) / need) ** 0.5
    steps = {}
    smooth = 0.0
    for number, _, change in changes:
        if number.whole:
            steps[number.column] = math.floor(abs(change * shrink) + 1e-9)
            spent += (steps[number.column] / number.per_eps) ** 2
        else:
            smooth += (change * shrink / number.per_eps) ** 2
    rests = [
        (abs(change * shrink) - steps[number.column], number)
        for number, _, change in changes
        if number.whole
    ]
    for rest, number in sorted(rests, key=lambda each: -each[0]):
        more = (2 * steps[number.column] + 1) / number.per_eps**2
        if rest > 1 / 2 and spent + smooth + more <= purse * (1 + 1e-9):
            spent += more
            steps[number.column] += 1
    fit = 1.0 if smooth <= purse - spent else (max(purse - spent, 0) / smooth) ** 0.5
    for number, was, change in changes:
        now = was + change * shrink * fit
        if number.whole:
            now = was + math.copysign(steps[number.column], change)
        if now != was:
            found[number.column] = (now - number.shift) / number.width
    return found


@pytest.mark.parametrize("seed", range(200))
def test_the_projection_follows_its_rule(seed: int) -> None:
    world = world_of(seed)
    points = torch.where(world.points.isfinite(), world.points, world.centre)
    found = world.threat.project(points, world.centre)
    slow = [
        slow_projection(world.threat, point, clean)
        for point, clean in zip(points.tolist(), world.centre.tolist(), strict=True)
    ]
    # A whole number that is one but for the rounding of float32 is left as it is.
    fast, slowly = (world.scale.undo(each) for each in (found, torch.tensor(slow).double()))
    size = 1 + world.scale.shift.abs() + fast.abs()
    assert ((fast - slowly).abs() <= 2**-21 * size).all()


@some_worlds
def test_a_projection_is_nearer_than_the_clean_row(seed: int) -> None:
    # A swap to a value of which the point shows more is a step towards it, and so are all moves.
    world = world_of(seed, rows=20)
    threat = world.threat
    points = torch.where(world.points.abs() < 1e6, world.points, world.centre)
    found = threat.project(points, world.centre)
    weight = weights(threat)
    weight = torch.where(weight.isfinite(), weight, 1.0)
    after, before = (((points - each) * weight).norm(dim=-1) for each in (found, world.centre))
    moved = (found != world.centre).any(-1)
    assert (after[moved] < before[moved]).all()


def weights(threat: ActionableSet) -> Tensor:
    """The price of a move by one in each column, infinite where none can: (d,)."""
    weight = torch.full((threat.columns,), torch.inf, dtype=torch.float64)
    for number in threat.numbers:
        weight[number.column] = number.width / number.per_eps
    for choice in threat.choices:
        for column in choice.columns:
            weight[column] = choice.swap / (2**0.5 if len(choice.columns) > 1 else 1)
    return weight


def bought_at_random(
    draw: random.Random, threat: ActionableSet, centre: list[float]
) -> list[float]:
    """Another admissible row, put together change by change."""
    row, spent, purse = list(centre), 0.0, threat.radius**2
    changes = [*threat.numbers, *threat.choices]
    draw.shuffle(changes)
    for change in changes:
        if isinstance(change, Choice):
            old = [centre[at] for at in change.columns]
            if len(old) > 1 and one_hot(old):
                new = draw.sample(old, len(old))
            elif len(old) == 1 and old[0] in (0.0, 1.0) and change.only is None:
                new = [1 - old[0]]
            else:
                continue
            if new != old and spent + change.swap**2 <= purse:
                spent += change.swap**2
                for at, value in zip(change.columns, new, strict=True):
                    row[at] = value
            continue
        was = centre[change.column] * change.width + change.shift
        if any(centre[mark] for mark in change.marks):
            continue
        up, down = max(change.high - was, 0.0), min(change.low - was, 0.0)
        least, most = (0.0 if change.only == "up" else down), (0.0 if change.only == "down" else up)
        if change.whole:
            was = round(was) if abs(was - round(was)) < 1e-2 else was
            move = draw.choice([-3, -2, -1, 1, 2, 3])
        else:
            move = draw.uniform(least, most) * draw.random() ** 3
        if (
            move
            and least <= move <= most
            and spent + (move / change.per_eps) ** 2 <= purse * (1 - 1e-6)
        ):
            spent += (move / change.per_eps) ** 2
            row[change.column] = (was + move - change.shift) / change.width
    return row


@both_dtypes
@pytest.mark.parametrize("seed", range(60))
def test_admissible_points_come_back_bit_by_bit(seed: int, dtype: torch.dtype) -> None:
    world = world_of(seed, dtype, rows=10)
    draw = random.Random(seed)
    rows = [bought_at_random(draw, world.threat, row) for row in world.centre.tolist()]
    points = torch.tensor(rows, dtype=torch.float64).to(dtype)
    # Rounding to float32 may take a smooth move over the edge: of those nothing is promised.
    fine = torch.tensor(
        [not world.complaints(p[None], c[None]) for p, c in zip(points, world.centre, strict=True)]
    )
    assert fine.float().mean() > 0.8
    assert torch.equal(world.threat.project(points, world.centre)[fine], points[fine])


def test_admissible_points_of_many_kinds_were_tried() -> None:
    # Without this the test above could pass because nothing was ever bought.
    moved = {"whole": 0, "smooth": 0, "swap": 0, "flip": 0}
    for seed in range(60):
        world, draw = world_of(seed, rows=10), random.Random(seed)
        for row in world.centre.tolist():
            new = bought_at_random(draw, world.threat, row)
            for number in world.threat.numbers:
                moved["whole" if number.whole else "smooth"] += (
                    new[number.column] != row[number.column]
                )
            for choice in world.threat.choices:
                kind = "swap" if len(choice.columns) > 1 else "flip"
                moved[kind] += any(new[at] != row[at] for at in choice.columns)
    assert min(moved.values()) > 30, moved


JOB = Choice(name="job", columns=(0, 1, 2), swap=1.0)
LOAN = Choice(name="loan", columns=(3,), swap=1.0, words=("no", "yes"))
AGE = Number(
    name="age", column=4, per_eps=5, shift=17, width=73, low=17, high=90, whole=True, unit="years"
)
DEBT = Number(name="debt", column=5, per_eps=100, shift=0, width=1000, low=0, high=2000)
BOTH = ActionableSet(columns=7, choices=(JOB, LOAN), numbers=(AGE, DEBT), fixed=("race",))
CLEAN = torch.tensor([[1.0, 0.0, 0.0, 0.0, (39 - 17) / 73, 0.5, 1.0]], dtype=torch.float64)


def with_changes(**changes: float) -> Tensor:
    """The clean row with a job (0, 1, 2), a loan, an age and a debt of one's own."""
    row = CLEAN.clone()
    if "job" in changes:
        row[0, :3] = torch.eye(3).double()[int(changes["job"])]
    row[0, 3] = changes.get("loan", 0.0)
    row[0, 4] = (changes.get("age", 39.0) - 17) / 73
    row[0, 5] = changes.get("debt", 500.0) / 1000
    return row


@both_dtypes
@pytest.mark.parametrize(
    ("radius", "changes", "affordable"),
    [
        (1.0, {"job": 2}, True),
        (1.0, {"loan": 1}, True),
        (1.0, {"age": 44}, True),
        (1.0, {"age": 34}, True),
        (1.0, {"debt": 599.9}, True),
        (1.0, {"age": 42, "debt": 579.9}, True),  # 0.6 and 0.8
        (2**0.5, {"job": 1, "loan": 1}, True),
        (3**0.5, {"job": 1, "loan": 1, "age": 44}, True),
        (0.2, {"age": 40}, True),
        (1.0, {"job": 1, "age": 40}, False),
        (1.0, {"age": 45}, False),
        (0.999, {"job": 2}, False),
        (1 - 1e-6, {"job": 2}, False),
        (1 - 1e-6, {"age": 44}, False),
        (2**0.5 * (1 - 1e-6), {"job": 1, "loan": 1}, False),
        (1.4, {"job": 1, "loan": 1}, False),
        (0.199, {"age": 40}, False),
        (1.0, {"age": 42, "debt": 581}, False),
    ],
)
def test_stated_prices_decide_and_not_their_rounding(
    radius: float, changes: dict[str, float], affordable: bool, dtype: torch.dtype
) -> None:
    point, centre = with_changes(**changes).to(dtype), CLEAN.to(dtype)
    assert torch.equal(BOTH.at(radius).project(point, centre), point) == affordable
    assert (BOTH.cost(point, centre).item() <= radius * (1 + 1e-7)) == affordable


def test_the_slack_for_stated_prices_is_not_for_sale() -> None:
    # 0.6 for three years and 0.8 (1 + 1e-10) for a debt: affordable in sum but for a tiny bit.
    point = with_changes(age=42, debt=500 + 80 * (1 + 1e-10))
    found = BOTH.project(point, CLEAN)
    spent = [Fraction(3, 5), (Fraction(found[0, 5].item()) - Fraction(1, 2)) * 10]
    assert 1 - Fraction(1, 10**11) < sum(each**2 for each in spent) <= 1
    assert torch.equal(found[0, :5], point[0, :5])
    point = with_changes(job=1, debt=500.001)
    assert torch.equal(BOTH.project(point, CLEAN), with_changes(job=1))


def test_prices_add_up_as_lengths_do() -> None:
    point = with_changes(job=1, loan=1, age=42, debt=580)
    # 1 for the job, 1 for the loan, 3/5 for three years, 80/100 for the debt.
    assert BOTH.cost(point, CLEAN).item() == pytest.approx((1 + 1 + 0.36 + 0.64) ** 0.5)
    assert BOTH.cost(CLEAN, CLEAN).item() == 0
    assert BOTH.at(0.0).cost(point, CLEAN).item() == BOTH.cost(point, CLEAN).item()
    point[0, 6] = 0.9
    assert BOTH.cost(point, CLEAN).item() == torch.inf


@pytest.mark.parametrize(
    ("point", "found"),
    [
        ({"age": 39.4}, {"age": 39}),
        ({"age": 39.6}, {"age": 40}),
        ({"age": 1000}, {"age": 44}),
        ({"age": -1000}, {"age": 34}),
        ({"age": 49, "debt": 700}, {"age": 42, "debt": 500 + 50 * 2**0.5}),
        ({"job": 1, "loan": 1}, {"job": 1}),
        ({"job": 1, "age": 44, "debt": 600}, {"job": 1}),
    ],
)
def test_what_is_too_dear_is_cut(point: dict[str, float], found: dict[str, float]) -> None:
    # Ten years and 200 euros cost 2 each: both shrink to 1/sqrt(8), 3.54 years and 71 euros, and a
    # fourth year, 0.64 with the 0.5 of the debt, would be too much.
    torch.testing.assert_close(
        BOTH.project(with_changes(**point), CLEAN), with_changes(**found), rtol=1e-9, atol=1e-9
    )


def test_the_swap_that_leans_most_is_paid_first() -> None:
    shown = torch.tensor([[0.4, 0.5, 0.1, 0.8, CLEAN[0, 4], 0.5, 1.0]]).double()
    assert torch.equal(BOTH.project(shown, CLEAN), with_changes(loan=1))
    shown[0, 1] = 1.2
    assert torch.equal(BOTH.project(shown, CLEAN), with_changes(job=1))
    assert torch.equal(BOTH.at(1.5).project(shown, CLEAN), with_changes(job=1, loan=1))


def test_a_swap_out_of_reach_does_not_stand_in_the_way_of_others() -> None:
    dear = replace(BOTH, choices=(replace(JOB, swap=1.2), LOAN), radius=1.5)
    shown = torch.tensor([[0.0, 9.0, 0.0, 1.0, (44 - 17) / 73, 0.5, 1.0]]).double()
    # 1.2 and 1 are too much together; sqrt(1.5^2 - 1.2^2) = 0.9 is left, for four years and a half.
    assert torch.equal(dear.project(shown, CLEAN), with_changes(job=1, age=43))
    assert torch.equal(dear.at(1.0).project(shown, CLEAN), with_changes(loan=1))


def test_ties_go_to_the_clean_value() -> None:
    shown = torch.tensor([[0.5, 0.5, 0.5, 0.5, CLEAN[0, 4], 0.5, 1.0]]).double()
    assert torch.equal(BOTH.project(shown, CLEAN), CLEAN)


@both_dtypes
def test_what_is_not_understood_stays_as_it_is(dtype: torch.dtype) -> None:
    marked = replace(BOTH, numbers=(replace(AGE, marks=(6,)), replace(DEBT, marks=(6,))))
    odd = CLEAN.clone()
    odd[0, :4] = torch.tensor([0.6, 0.4, 0.0, 0.3])
    odd, point = odd.to(dtype), (odd + torch.tensor([-3.0, 3.0, 3, 3, 3, 3, 3])).to(dtype)
    assert torch.equal(marked.project(point, odd), odd)
    assert torch.equal(marked.relax(point, odd), odd)
    assert (BOTH.project(point, odd)[0, 4:6] != odd[0, 4:6]).any()
    odd[0, 6] = 0.0
    assert (marked.project(point, odd)[0, 4:6] != odd[0, 4:6]).any()


@pytest.mark.parametrize("only", ["up", "down"])
@pytest.mark.parametrize("loan", [0.0, 1.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_way_only(only: Any, loan: float, sign: float) -> None:
    one_way = replace(
        BOTH,
        choices=(JOB, replace(LOAN, only=only)),
        numbers=(replace(AGE, only=only), replace(DEBT, only=only)),
    )
    clean = with_changes(loan=loan)
    point = clean + 0.6 * sign * torch.tensor([0, 0, 0, 1, 1, 1, 0])
    room = float(loan != (sign > 0))  # a loan that is there cannot be taken up
    for threat, free in ((BOTH, 1.0), (one_way, float((sign > 0) == (only == "up")))):
        for move in (threat.at(2.0).project, threat.at(2.0).relax):
            way = (move(point, clean) - clean)[0, 3:6].sign()
            assert way.tolist() == [sign * free * room, sign * free, sign * free]


def test_bounds_are_those_of_the_data_the_rule_or_the_row_itself() -> None:
    threat = replace(BOTH, numbers=(replace(AGE, high=41), replace(DEBT, high=540.0)), radius=9.0)
    for clean, age, debt in ((with_changes(), 41, 540), (with_changes(age=60, debt=700), 60, 700)):
        found = threat.project(clean + 5, clean)
        torch.testing.assert_close(found[:, 4:6], with_changes(age=age, debt=debt)[:, 4:6])
        relaxed = threat.relax(clean + 5, clean)
        torch.testing.assert_close(relaxed[:, 4:6], with_changes(age=age, debt=debt)[:, 4:6])


def test_a_number_that_is_not_whole_moves_by_whole_units_all_the_same() -> None:
    clean = with_changes(age=39.5)
    found = BOTH.project(with_changes(age=42.3), clean)
    torch.testing.assert_close(found, with_changes(age=42.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scaling", ["minmax", "standard"])
def test_the_inputs_of_another_person_are_admissible_bit_by_bit(scaling: Any) -> None:
    # All ages and balances of the data, as neighbours of one another, in the float32 of a split and
    # in the float64 of an evaluation, which takes its rows from there.
    split = split_of("bank", scaling)
    threat = actionable_set(split, {}, radius=2.0)
    x = split.test.x[:500]
    for dtype in DTYPES:
        centre, point = x.to(dtype), x.to(dtype).clone()
        point[:, :2] = x.roll(1, 0)[:, :2].to(dtype)
        near = threat.cost(point, centre) < 2
        assert near.float().mean() > 0.6
        assert torch.equal(threat.project(point, centre)[near], point[near])
        raw = split.scale.undo(
            threat.project(point + 0.01 * numbers(500, 18).to(dtype), centre).double()
        )
        assert (raw[:, :2] - raw[:, :2].round()).abs().max() < 0.03


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_coarse_types_stay_admissible(dtype: torch.dtype) -> None:
    centre = CLEAN.repeat(50, 1).to(dtype)
    found = BOTH.at(2.0).project(centre + numbers(50, 7).to(dtype), centre)
    assert found.dtype == dtype
    assert (found != centre).any(-1).float().mean() > 0.5
    assert (found[:, :3].sum(-1) == 1).all()
    assert (BOTH.cost(found, centre) <= 2).all()
    assert torch.equal(BOTH.at(2.0).project(found, centre), found)


def test_numbers_too_large_for_their_type_stay() -> None:
    # In float32 there is nothing between 10 million and 10 million and one.
    large = replace(AGE, column=0, shift=0.0, width=1.0, low=0, high=1e9)
    threat = ActionableSet(columns=1, numbers=(large,), radius=1.0)
    centre = torch.tensor([[1e8]])
    assert torch.equal(threat.project(centre + 8, centre), centre)
    assert threat.project(centre.double() + 8, centre.double()).item() == 1e8 + 5


@some_worlds
def test_a_row_is_projected_alone(seed: int) -> None:
    world = world_of(seed, rows=9)
    for move in (world.threat.project, world.threat.relax, world.threat.cost):
        alone = [move(p[None], c[None]) for p, c in zip(world.points, world.centre, strict=True)]
        torch.testing.assert_close(
            torch.cat(alone), move(world.points, world.centre), rtol=0, atol=1e-12, equal_nan=True
        )


@pytest.mark.parametrize("radius", [0.0, 1e-200])
def test_without_a_radius_nothing_moves(radius: float) -> None:
    threat, point = BOTH.at(radius), CLEAN + numbers(1, 7)
    for move in (threat.project, threat.relax):
        assert torch.equal(move(point, CLEAN), CLEAN)
    assert (threat.steepest(point) == 0).all()
    assert threat.offsets(CLEAN[0], 3, stream(0)).isfinite().all()


def test_a_huge_radius_buys_everything() -> None:
    point = with_changes(job=2, loan=1, age=90, debt=2000)
    assert torch.equal(BOTH.at(1e300).project(point, CLEAN), point)


def test_nothing_that_can_change_is_no_problem() -> None:
    threat = ActionableSet(columns=2, fixed=("all",))
    x = numbers(3, 2)
    assert torch.equal(threat.project(x + 1, x), x)
    assert torch.equal(threat.relax(x + 1, x), x)
    assert (threat.steepest(x) == 0).all()
    assert (threat.offsets(x[0], 4, stream(0)) == 0).all()
    assert threat.cost(x, x).tolist() == [0, 0, 0]


def test_no_rows_are_no_problem() -> None:
    none = CLEAN[:0]
    for move in (BOTH.project, BOTH.relax, BOTH.cost):
        assert len(move(none, none)) == 0


# --- the smooth hull


@both_dtypes
@some_worlds
def test_relaxed_points_lie_in_the_hull(seed: int, dtype: torch.dtype) -> None:
    world = world_of(seed, dtype, rows=20)
    threat, centre = world.threat, world.centre.double()
    points = torch.where(world.points.isfinite(), world.points, world.centre)
    relaxed = threat.relax(points, world.centre)
    assert relaxed.dtype == dtype
    relaxed = relaxed.double()
    move, weight = relaxed - centre, weights(threat)
    assert (move[:, weight.isinf()] == 0).all()
    known = torch.where(weight.isinf(), 0.0, weight)
    rounding = 2 * torch.finfo(dtype).eps * (known * centre).norm(dim=-1)
    assert ((known * move).norm(dim=-1) <= threat.radius * (1 + 1e-6) + rounding).all()
    for choice in threat.choices:
        for column in choice.columns:
            moved = move[:, column] != 0
            assert relaxed[moved, column].clamp(0, 1).equal(relaxed[moved, column])
            assert not moved.any() or choice.swap <= threat.radius * (1 + 1e-9)
    for number in threat.numbers:
        raw, was = (
            (each[:, number.column] * number.width + number.shift) for each in (relaxed, centre)
        )
        slack = 1e-6 * (1 + was.abs() + abs(number.shift) + abs(number.width))
        low = was if number.only == "up" else was.clamp(max=number.low)
        high = was if number.only == "down" else was.clamp(min=number.high)
        assert (raw >= low - slack).all()
        assert (raw <= high + slack).all()
        assert not (
            number.whole and 1 / number.per_eps > threat.radius * 1.001 and (raw != was).any()
        )


@both_dtypes
@some_worlds
def test_the_hull_holds_every_admissible_point_and_what_lies_between(
    seed: int, dtype: torch.dtype
) -> None:
    world = world_of(seed, dtype, rows=20)
    found = world.threat.project(world.points, world.centre)
    other = world.threat.project(world.points.roll(1, 0), world.centre)
    for point in (found, (found + other) / 2, 0.1 * found + 0.9 * world.centre):
        torch.testing.assert_close(
            world.threat.relax(point, world.centre), point, rtol=1e-5, atol=1e-5
        )


def test_points_within_the_hull_are_not_moved_at_all() -> None:
    point = CLEAN + 0.1 * torch.tensor([[-1.0, 1, 0, 1, 0.1, 0.01, 0]])
    assert torch.equal(BOTH.relax(point, CLEAN), point)
    assert not torch.equal(BOTH.at(0.1).relax(point, CLEAN), point)


@some_worlds
def test_the_steepest_move_is_the_steepest(seed: int) -> None:
    threat, slope = world_of(seed).threat, numbers(4, world_of(seed).dataset.n, seed=seed)
    step, weight = threat.steepest(slope), weights(threat)
    reachable = weight.isfinite()
    for number in threat.numbers:
        reachable[number.column] &= not number.whole or threat.radius * number.per_eps >= 1
    for choice in threat.choices:
        reachable[list(choice.columns)] &= choice.swap <= threat.radius
    reachable &= threat.radius > 0
    assert (step[:, ~reachable] == 0).all()
    if not reachable.any():
        return
    weight = weight[reachable]
    torch.testing.assert_close((step[:, reachable] * weight).norm(dim=-1), torch.ones(4).double())
    others = numbers(300, len(weight), seed=seed + 1)
    others = others / (others * weight).norm(dim=-1, keepdim=True)
    rise = (slope * step).sum(-1)
    assert (rise + 1e-9 >= (slope[:, reachable] @ others.T).amax(-1)).all()


def test_the_steepest_moves_of_many_columns_were_tried() -> None:
    assert (
        sum(
            int((world_of(seed).threat.steepest(numbers(1, world_of(seed).dataset.n)) != 0).sum())
            for seed in range(40)
        )
        > 60
    )


def test_a_slope_of_zero_or_nearly_zero_is_no_problem() -> None:
    assert (BOTH.steepest(torch.zeros(2, 7)) == 0).all()
    slope = numbers(2, 7)
    torch.testing.assert_close(BOTH.steepest(1e-200 * slope), BOTH.steepest(slope))


# --- random moves


def test_random_moves_depend_on_the_generator_only() -> None:
    one, same, other = (BOTH.offsets(CLEAN[0], 5, stream(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.shape == (5, 7)
    assert BOTH.offsets(CLEAN[0].float(), 5, stream(0)).dtype == torch.float32
    torch.testing.assert_close(BOTH.offsets(CLEAN[0].float(), 5, stream(0)), one.float())


def shares(threat: ActionableSet, start: Tensor = CLEAN, **how: Any) -> dict[str, float]:
    """How often a random move from `start` changes what, once projected."""
    offsets = threat.offsets(CLEAN[0], 4000, stream(3), **how)
    found = threat.project(start + offsets, CLEAN.repeat(4000, 1))
    moved = found != CLEAN
    named = {
        "job": moved[:, :3].any(-1),
        "loan": moved[:, 3],
        "age": moved[:, 4],
        "debt": moved[:, 5],
        "race": moved[:, 6],
        "job and loan": moved[:, :3].any(-1) & moved[:, 3],
        "anything": moved.any(-1),
    }
    return {name: each.double().mean().item() for name, each in named.items()}


@pytest.mark.parametrize("surface", [False, True])
def test_random_moves_reach_everything_that_is_affordable(surface: bool) -> None:
    share = shares(BOTH, surface=surface)
    assert min(share[name] for name in ("job", "loan", "age", "debt")) > 0.15
    assert share["anything"] > 0.9
    assert share["race"] == share["job and loan"] == 0
    assert shares(BOTH.at(2.0), surface=surface)["job and loan"] > 0.05
    small = shares(BOTH.at(0.9), surface=surface)
    assert small["job"] == small["loan"] == 0
    assert min(small["age"], small["debt"]) > 0.5


def test_with_less_reach_swaps_and_years_become_rarer_but_stay_possible() -> None:
    far, near = shares(BOTH, share=1.0, surface=True), shares(BOTH, share=0.05, surface=True)
    for name in ("job", "loan", "age"):
        assert 0.005 < near[name] < far[name] / 2
    # Smooth moves become shorter instead.
    offsets = BOTH.offsets(CLEAN[0], 400, stream(0), share=0.05, surface=True)
    assert offsets[:, 5].abs().max() <= 0.05 * 100 / 1000
    assert shares(BOTH, share=0.05)["debt"] > 0.9


def test_smooth_moves_cost_what_they_may() -> None:
    smooth = replace(BOTH, choices=(), numbers=(replace(AGE, whole=False), DEBT))
    for reach in (1.0, 0.3):
        surface = smooth.at(2.0).offsets(CLEAN[0], 200, stream(0), share=reach, surface=True)
        torch.testing.assert_close(
            smooth.cost(CLEAN + surface, CLEAN.repeat(200, 1)),
            torch.full((200,), 2 * reach).double(),
        )
        within = smooth.at(2.0).offsets(CLEAN[0], 200, stream(0), share=reach)
        cost = smooth.cost(CLEAN + within, CLEAN.repeat(200, 1))
        assert (cost <= 2 * reach * (1 + 1e-9)).all()
        assert cost.std() > 0.1 * reach


def test_a_swap_can_be_taken_back_or_exchanged_by_a_random_move() -> None:
    share = shares(BOTH, start=with_changes(job=1), surface=True)
    assert 0.6 < share["job"] < 0.95
    # A loan is pushed up in a quarter of all moves, and leans more than the job in half of these.
    assert 0.08 < share["loan"] < 0.17
    offsets = BOTH.offsets(CLEAN[0], 4000, stream(3))
    found = BOTH.project(with_changes(job=1) + offsets, CLEAN.repeat(4000, 1))
    assert (found[:, 2] == 1).any()


def test_as_many_choices_are_pushed_as_can_be_paid_for() -> None:
    flags = tuple(Choice(name=f"flag {at}", columns=(at,), swap=1.0) for at in range(20))
    threat = ActionableSet(columns=21, choices=flags, numbers=(replace(AGE, column=20),))
    for radius, reach, many in ((1.0, 1.0, 1), (1.2, 0.5, 0.72), (2.0, 1.0, 4), (9.0, 1.0, 10)):
        offsets = threat.at(radius).offsets(torch.zeros(21), 4000, stream(0), share=reach)
        assert (offsets[:, :20] != 0).double().sum(-1).mean().item() == pytest.approx(many, rel=0.1)


def test_whole_numbers_alone_always_have_a_direction() -> None:
    threat = ActionableSet(columns=7, numbers=(AGE,), radius=0.2)
    offsets = threat.offsets(CLEAN[0], 300, stream(0), share=0.1)
    assert (offsets[:, 4] != 0).all()
    years = offsets[:, 4].abs() * 73
    assert 0 < (years > 0.999).double().mean() < 0.2


def test_where_only_choices_can_change_no_move_is_without_one() -> None:
    threat = replace(BOTH, numbers=())
    offsets = threat.offsets(CLEAN[0], 300, stream(0), share=0.01)
    assert (offsets != 0).any(-1).all()


def test_a_radius_that_buys_nothing_still_gives_the_hull_a_direction() -> None:
    threat = replace(BOTH, numbers=(AGE,))
    offsets = threat.at(0.01).offsets(CLEAN[0], 5, stream(0), surface=True)
    assert (offsets[:, :5] != 0).all()
    assert (threat.relax(CLEAN + offsets, CLEAN.repeat(5, 1)) != CLEAN).any(-1).all()


# --- rules, and threats made of them


def text_rules(tmp_path: Path, text: str) -> dict[str, Rule]:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return read_rules(path)


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    text = """
    ["*"]
    swap = 2.0
    share = 0.1
    [age]
    per_eps = 5
    only = "up"
    low = 18
    [gender]
    fixed = true
    """
    rules = text_rules(tmp_path, text)
    assert rules == {
        "*": Rule(swap=2.0, share=0.1),
        "age": Rule(per_eps=5, only="up", low=18),
        "gender": Rule(fixed=True),
    }
    split = split_of("adult")
    threat = actionable_set(split, rules, radius=3.0)
    age, hours = threat.numbers
    assert (age.per_eps, age.only, age.low, age.high, age.whole) == (5, "up", 18, 90, True)
    width = split.scale.width[1].item()
    assert (hours.per_eps, hours.low, hours.high) == (pytest.approx(0.1 * width), 1, 99)
    assert {choice.swap for choice in threat.choices} == {2.0}
    assert [choice.name for choice in threat.choices][-1] == "race"
    assert threat.fixed == ("gender",)
    assert threat.radius == 3


def test_without_rules_the_defaults_hold() -> None:
    split = split_of("compas", "standard")
    threat = actionable_set(split)
    assert threat == actionable_set((split.dataset, split.scale), {}, radius=1.0)
    assert threat.fixed == ()
    assert {choice.swap for choice in threat.choices} == {1.0}
    for number in threat.numbers:
        # One radius is one scaled unit, as in a ball.
        assert number.per_eps == number.width == split.scale.width[number.column].item()
        assert number.whole
        assert (number.low, number.high) == (
            split.dataset.features[number.column].low,
            split.dataset.features[number.column].high,
        )


def test_a_group_can_be_freed_where_all_are_fixed() -> None:
    split = split_of("adult")
    rules = {"*": Rule(fixed=True), "occupation": Rule(fixed=False), "age": Rule(fixed=True)}
    threat = actionable_set(split, rules)
    assert [choice.name for choice in threat.choices] == ["occupation"]
    assert threat.numbers == ()
    assert len(threat.fixed) == 7


def table(**columns: list[Any]) -> tuple[Dataset, Scale]:
    """A small table read as a user's own."""
    dataset = from_frame(pd.DataFrame(columns), target="y")
    ones = torch.ones(dataset.n, dtype=torch.float64)
    return dataset, Scale(fill=ones, shift=0 * ones, width=ones)


def test_missing_numbers_have_a_mark_that_never_moves() -> None:
    data = table(income=[10.0, None, 12.5, 30.0], job=["a", "b", "a", "b"], y=[0, 1, 0, 1])
    threat = actionable_set(data, {"income": Rule(per_eps=5)})
    (income,) = threat.numbers
    assert (income.column, income.marks, income.whole) == (0, (1,), False)
    assert [choice.columns for choice in threat.choices] == [(2,)]
    centre = torch.tensor([[12.5, 0.0, 1.0], [12.5, 1.0, 1.0]])
    found = threat.project(centre + torch.tensor([1.0, 1.0, 0.0]), centre)
    assert found.tolist() == [[13.5, 0.0, 1.0], [12.5, 1.0, 1.0]]


def test_whether_numbers_are_whole_is_seen_in_the_data() -> None:
    data = table(
        age=[20, 31, 45, 60], rate=[0.5, 1.0, 2.0, 3.0], sales=[1, 5, 7, 2_000_000], y=[0, 1, 0, 1]
    )
    whole = {number.name: number.whole for number in actionable_set(data).numbers}
    assert whole == {"age": True, "rate": False, "sales": False}
    rules = {"rate": Rule(whole=True), "age": Rule(whole=False)}
    whole = {number.name: number.whole for number in actionable_set(data, rules).numbers}
    assert whole == {"age": False, "rate": True, "sales": False}
    assert "sales" in refusal(lambda: actionable_set(data, {"sales": Rule(whole=True)}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[age]\nper_epz = 5", ["[age]", "'per_epz'", "'per_eps'"]),
        ("[age]\nper_eps = 'five'", ["[age]", "per_eps", "number", "'five'"]),
        ("[age]\nper_eps = true", ["[age]", "per_eps", "number", "True"]),
        ("[age]\nper_eps = 0", ["[age]", "per_eps", "above 0"]),
        ("[age]\nper_eps = nan", ["[age]", "per_eps", "finite"]),
        ("[job]\nswap = -1.0", ["[job]", "swap", "above 0"]),
        ("[job]\nswap = inf", ["[job]", "swap", "finite"]),
        ("[age]\nlow = 'a'", ["[age]", "low", "number"]),
        ("[age]\nfixed = 1", ["[age]", "fixed", "true or false"]),
        ("[age]\nwhole = 'yes'", ["[age]", "whole", "true or false"]),
        ("[age]\nonly = 'upwards'", ["[age]", "only", "'up' or 'down'", "'upwards'"]),
        ("[age]\nonly = 1", ["[age]", "only", "'up' or 'down'"]),
        ("[age]\nper_eps = 5\nshare = 0.1", ["[age]", "per_eps", "share", "one of them"]),
        ("age = 5", ["[age]", "table", "5"]),
        ("[age", ["own.toml", "TOML"]),
    ],
)
def test_rules_that_make_no_sense_are_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refusal(partial(text_rules, tmp_path, text))
    for word in words:
        assert word in message


def test_rules_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    assert "did you mean 'adult'" in refusal(partial(read_rules, "adlt"))
    assert "nowhere.toml" in refusal(partial(read_rules, tmp_path / "nowhere.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "TOML" in refusal(partial(read_rules, tmp_path / "bytes.toml"))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"aeg": Rule()}, ["'aeg'", "adult", "did you mean 'age'"]),
        ({"age": Rule(swap=1.0)}, ["'age'", "swap", "per_eps"]),
        ({"age": Rule(low=50, high=40)}, ["'age'", "50", "40"]),
        ({"age": Rule(low=95)}, ["'age'", "95", "90"]),
        ({"gender": Rule(per_eps=1)}, ["'gender'", "per_eps", "swap"]),
        ({"gender": Rule(share=1)}, ["'gender'", "share", "swap"]),
        ({"education": Rule(whole=True)}, ["'education'", "whole", "swap"]),
        ({"education": Rule(only="up")}, ["'education'", "only", "order"]),
        ({"*": Rule(only="up")}, ["'*'", "only"]),
        ({"*": Rule(per_eps=5)}, ["'*'", "per_eps"]),
        ({"age": {"per_eps": 5}}, ["'age'", "Rule"]),
    ],
)
def test_rules_that_do_not_fit_the_data_are_refused(rules: Any, words: list[str]) -> None:
    split = split_of("adult")
    message = refusal(partial(actionable_set, split, rules))
    for word in words:
        assert word in message


def test_scales_of_other_data_are_refused() -> None:
    adult, bank = split_of("adult"), split_of("bank")
    assert "28" in refusal(lambda: actionable_set((adult.dataset, bank.scale)))
    width = adult.scale.width.clone()
    width[-1] = 2.0
    assert "'gender'" in refusal(
        lambda: actionable_set((adult.dataset, replace(adult.scale, width=width)))
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda: replace(BOTH, radius=-1.0), "radius"),
        (lambda: BOTH.at(math.inf), "radius"),
        (lambda: replace(BOTH, choices=(replace(JOB, swap=0.0),)), "'job'"),
        (lambda: replace(BOTH, numbers=(replace(AGE, per_eps=0.0),)), "'age'"),
        (lambda: replace(BOTH, numbers=(replace(AGE, width=-1.0),)), "'age'"),
        (lambda: replace(BOTH, numbers=(replace(AGE, column=7),)), "0..6"),
        (lambda: replace(BOTH, numbers=(replace(AGE, column=1),)), "different columns"),
        (lambda: BOTH.project(CLEAN[:, :6], CLEAN[:, :6]), "7 columns"),
        (lambda: BOTH.relax(CLEAN[None], CLEAN[None]), "7 columns"),
        (lambda: BOTH.cost(CLEAN, CLEAN.repeat(2, 1)), "7 columns"),
        (lambda: BOTH.offsets(CLEAN, 3, stream(0)), "7 columns"),
    ],
)
def test_what_is_no_threat_is_refused(change: Callable[[], object], word: str) -> None:
    assert word in refusal(change)


# --- the rules that come with the package


def test_every_embedded_data_set_has_rules() -> None:
    assert rule_names() == sorted(TABLES)


@embedded
def test_the_rules_of_a_data_set_speak_of_each_of_its_groups(name: str) -> None:
    dataset = load(name)
    assert sorted(read_rules(name)) == sorted(dataset.group_names)
    content = (ROOT / f"src/r2et/data/rules/{name}.toml").read_text()
    paragraphs = content.split("\n\n")[1:]
    assert all(part.startswith(("#", "[")) for part in paragraphs)
    assert sum(part.startswith("#") for part in paragraphs) >= 3


@embedded
@both_dtypes
def test_every_person_of_the_data_is_admissible_and_can_do_all_that_is_for_sale(
    name: str, dtype: torch.dtype
) -> None:
    split = split_of(name)
    threat = actionable_set(split, read_rules(name))
    x = split.test.x.to(dtype)
    assert torch.equal(threat.project(x, x), x)
    assert (threat.cost(x, x) == 0).all()
    for choice in threat.choices:
        point = x.clone()
        columns = list(choice.columns)
        point[:, columns] = 1 - x[:, columns] if len(columns) == 1 else x[:, columns].roll(1, -1)
        bought = (threat.at(choice.swap).project(point, x) == point).all(-1)
        stuck = {"up": x[:, columns[0]] == 1, "down": x[:, columns[0]] == 0}.get(str(choice.only))
        assert torch.equal(bought, torch.ones(len(x)).bool() if stuck is None else ~stuck)
    for number in threat.numbers:
        point = x.clone()
        point[:, number.column] += 1.2 / number.width
        found, was = (split.scale.undo(each.double()) for each in (threat.project(point, x), x))
        units = (found - was)[:, number.column].round()
        assert torch.equal(units, (was[:, number.column].round() < number.high).double())


def test_the_rules_of_adult_in_words() -> None:
    threat = actionable_set(split_of("adult"), read_rules("adult"))
    assert what_it_buys(threat) == [
        "age: up by 5 years",
        "hours per week: up or down by 10 hours",
        "work class: a change for 1",
        "education: out of reach, a change costs 2",
        "marital status: out of reach, a change costs 2",
        "occupation: a change for 1",
        "fixed: race, gender",
    ]
    assert what_it_buys(threat.at(0.1))[:2] == [
        "age: out of reach, 1 year costs 0.2",
        "hours per week: up or down by 1 hour",
    ]


def test_words_for_choices_of_one_way() -> None:
    threat = actionable_set(split_of("bank"), read_rules("bank"), radius=2.0)
    assert "default: a change from 'no' to 'yes' for 2" in what_it_buys(threat)
    down = replace(
        BOTH, choices=(replace(LOAN, only="down"),), numbers=(replace(DEBT, only="down"),)
    )
    assert what_it_buys(down) == [
        "debt: down by 100",
        "loan: a change from 'yes' to 'no' for 1",
        "fixed: race",
    ]


def test_the_example_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guides" / "actionable.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "threat-models.md", "exec"), {})
    assert capsys.readouterr().out


@embedded
def test_the_document_tells_the_rules_that_are_shipped(name: str) -> None:
    page = (ROOT / "docs" / "guides" / "actionable.md").read_text(encoding="utf-8")
    section = page.split(f"### {name}\n")[1].split("\n#")[0]
    rows = {row.split("|")[1].strip(): row for row in section.splitlines() if row.startswith("|")}
    rules = read_rules(name)
    assert [row for row in rows if row not in ("group", "---")] == list(rules)
    for group, rule in rules.items():
        words = ["fixed"] if rule.fixed else []
        words += [f"swap {rule.swap:g}"] if rule.swap else []
        words += [f"{rule.per_eps:,g}"] if rule.per_eps else []
        words += [f"{rule.only} only"] if rule.only else []
        words += ["whole"] if rule.whole else []
        told = rows[group].split("|")[2]
        assert all(word in told for word in words)
        assert len(told.split(", ")) == len(words)


def test_the_rules_of_the_document_can_be_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "actionable.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    rules = text_rules(tmp_path, example)
    assert list(rules) == ["*", "age", "income", "job", "sex"]
    data = table(
        age=[20, 31, 45, 60, 70, 80],
        income=[0.5, 1.0, 2.0, 3.0, 4.0, 5.0],
        job=["a", "b", "c"] * 2,
        sex=["f", "m", "m"] * 2,
        y=[0, 1] * 3,
    )
    assert what_it_buys(actionable_set(data, rules, radius=2.0)) == [
        "age: up by 10",
        "income: up or down by 400",
        "job: a change for 1.5",
        "fixed: sex",
    ]


# --- attacks

EFFORT = EnsembleBudget(rounds=1, starts=2, steps=8, points=60, moves=40, pairs=4, sharpness=(4.0,))


def adult_case(rows: int = 60, dtype: torch.dtype = torch.float64) -> Any:
    """A random network on census data, the rules of census data, and some people."""
    split = split_of("adult")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(28, 24), nn.LeakyReLU(), nn.Linear(24, 2))
    model = model.to(dtype)
    x = split.test.x[:rows].to(dtype)
    return split, model, x, predicted(model, x)


def assert_bought(
    split: Split, rules: dict[str, Rule], found: Tensor, x: Tensor, radius: float
) -> None:
    """Refuse attacked inputs that no applicant could have."""
    bad = [
        complaint
        for point, clean in zip(found, x, strict=True)
        for complaint in complaints(point, clean, split.dataset, split.scale, rules, radius)
    ]
    assert bad == []


@both_dtypes
@pytest.mark.parametrize("kind", ["er", "mse", "sqp", "strong"])
def test_attacks_return_people_who_could_exist(kind: str, dtype: torch.dtype) -> None:
    split, model, x, y = adult_case(dtype=dtype)
    rules = read_rules("adult")
    threat: PerturbationSet = actionable_set(split, rules)
    budget = {"radius": 1.0, "step": 0.1, "steps": 25}
    attack = {
        "er": attacker("er", k=8, **budget, perturbation=threat),
        "mse": attacker("mse", k=8, **budget, perturbation=threat),
        "sqp": attacker("sqp", k=8, radius=1.0, perturbation=threat),
        "strong": attacker("strong", k=8, budget=EFFORT, perturbation=threat),
    }[kind]
    found = attack(model, x, y)
    assert found.x.dtype == dtype
    assert (predicted(model, found.x) == y).all()
    assert_bought(split, rules, found.x, x, 1.0)
    assert found.flipped.any()
    assert (found.x[found.flipped] != x[found.flipped]).any(-1).all()
    fixed = [at for at, each in enumerate(split.dataset.features) if each.group in threat.fixed]  # type: ignore[attr-defined]
    assert torch.equal(found.x[:, fixed], x[:, fixed])
    if kind == "strong":
        swapped = (found.x[:, 2:] != x[:, 2:]).any(-1)
        assert (swapped & found.flipped).any()


def everything_for_one(split: Split, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """All that a radius of 1 buys on census data, and whose it is: (B, d), (B,) booleans.

    One swap of employer or occupation; or up to five years and ten hours, a quarter of an ellipse
    on either side. No swap leaves anything for a year or an hour.
    """
    groups = [each.group for each in split.dataset.features]
    for group in ("work class", "occupation"):
        columns = [at for at, each in enumerate(groups) if each == group]
        for value in columns:
            other = x.clone()
            other[:, columns] = 0.0
            other[:, value] = 1.0
            yield other, torch.ones(len(x), dtype=torch.bool)
    raw = split.scale.undo(x)[:, :2].round()
    for years in range(6):
        for hours in range(-10, 11):
            if 4 * years**2 + hours**2 <= 100:
                moved = raw + torch.tensor([years, hours])
                lived = (moved[:, 0] <= 90) & (moved[:, 1] >= 1) & (moved[:, 1] <= 99)
                changed = (moved - split.scale.shift[:2]) / split.scale.width[:2]
                yield torch.cat([changed, x[:, 2:]], dim=1), lived


def test_no_attack_beats_the_list_of_all_inputs_and_the_strong_one_equals_it() -> None:
    split, model, x, y = adult_case()
    threat = actionable_set(split, read_rules("adult"))
    before, worst = gradient(model, x, y).detach(), torch.ones(len(x)).double()
    for other, theirs in everything_for_one(split, x):
        fine = theirs & (predicted(model, other) == y)
        precision = precision_at_k(before, gradient(model, other, y).detach(), 8)
        worst = torch.where(fine, torch.minimum(worst, precision), worst)
    strong = attacker("strong", k=8, budget=EFFORT, perturbation=threat)(model, x, y).precision
    er = attacker("er", k=8, step=0.1, steps=25, perturbation=threat)(model, x, y).precision
    assert (strong >= worst - 1e-12).all()
    assert (er >= worst - 1e-12).all()
    assert worst.mean() < 0.8
    assert (strong <= worst + 1e-12).double().mean() > 0.9


def test_more_radius_breaks_more() -> None:
    split, model, x, y = adult_case()
    threat = actionable_set(split, read_rules("adult"))
    broken = [
        attacker("strong", k=8, radius=radius, budget=EFFORT, perturbation=threat)(model, x, y)
        for radius in (0.1, 1.0, 2.0)
    ]
    precision = [found.precision.mean().item() for found in broken]
    assert precision[0] > precision[1] > precision[2]
    moved = [found.x != x for found in broken]
    assert [bool(each[:, 2:].any()) for each in moved] == [False, True, True]
    assert (moved[2][:, :2].any(-1) & moved[2][:, 2:].any(-1)).any()
    assert_bought(split, read_rules("adult"), broken[2].x, x, 2.0)


def test_predictions_can_be_flipped_by_people_who_could_exist() -> None:
    split, model, x, y = adult_case(rows=300)
    threat = actionable_set(split, read_rules("adult"))
    flipped = [
        flippable(model, x, y, radius=radius, perturbation=threat) for radius in (0.1, 1.0, 3.0)
    ]
    shares = [each.double().mean().item() for each in flipped]
    assert shares[0] <= shares[1] < shares[2]
