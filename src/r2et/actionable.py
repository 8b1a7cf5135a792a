"""Which inputs a person could have: only what a person can change, into values that exist.

A ball moves every column a little, into people of 0.3 Masters and 39.27 years. Here each change has
a price, stated in original units: years, euros, a change of job. Prices add up as lengths do, and
the radius says what may be spent. `docs/guides/actionable.md` defines all of it.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from r2et.core.geometry import unit
from r2et.core.limits import content_of, toml_of
from r2et.core.naming import nearest
from r2et.core.settings import settings_from
from r2et.data.dataset import Dataset, Split
from r2et.data.features import Feature, Scale, plain, with_unit
from r2et.perturbations import UNSAID, L2Ball

EVERY = "*"  # the name of the rule that speaks of all groups
OF_EVERY = ("fixed", "swap", "share")  # all that it may say
OF_NUMBERS = ("per_eps", "share", "whole", "low", "high")  # what only numbers have
SLACK = 1e-9  # squared prices that add up to the squared radius but for this are affordable
MARGIN = 1e-12  # more than float64 rounds while a length is computed
NEAR = 1 / 8  # a count so near to a whole number is taken for it
MOST_WHOLE = 1e6  # float32 inputs cannot tell whole numbers beyond from each other
LEAST_RADIUS = 1e-100  # squares of less vanish, and it buys nothing

Way = Literal["up", "down"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a person can do about one group of columns; what is not said has a default."""

    fixed: bool | None = None
    """Nothing: the columns never move. False if not said."""
    swap: float | None = None
    """Price of another category, or of the other value of a 0/1 column. 1 if not said."""
    per_eps: float | None = None
    """The change of a number, in original units, that has the price 1."""
    share: float | None = None
    """The same as a share of the scale's width, as a rule the training range. 1 if not said."""
    whole: bool | None = None
    """Numbers change by whole units only. If not said, they do if all in the data are whole."""
    low: float | None = None
    """The least value, in original units. That of the data if not said."""
    high: float | None = None
    """The greatest value, likewise."""
    only: Way | None = None
    """The one direction in which a number, or a column of 0 and 1, can change."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("fixed", "whole"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValueError(f"{name!r} must be true or false, got {getattr(self, name)!r}.")
        for name in ("swap", "per_eps", "share", "low", "high"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and abs(value) <= sys.float_info.max):
                raise ValueError(f"{name!r} must be a finite number, got {value!r}.")
            if value is not None and name not in ("low", "high") and not 1e-30 < value < 1e30:
                raise ValueError(f"{name!r} must lie above 0 and below 1e30, got {value!r}.")
        if self.only not in (None, "up", "down"):
            raise ValueError(f"'only' must be 'up' or 'down', got {self.only!r}.")
        if self.per_eps is not None and self.share is not None:
            raise ValueError("'per_eps' and 'share' say the same thing: give one of them.")


Rules = Mapping[str, Rule]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rule_names() -> list[str]:
    """The names of the rules that come with the package: those of their data sets."""
    folder = resources.files("r2et.data") / "rules"
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))


def read_rules(name: str | Path) -> dict[str, Rule]:
    """The rule of each group, by the name of an embedded data set or from a TOML file."""
    if str(name).endswith(".toml"):
        if not Path(name).is_file():
            raise ValueError(f"there is no file of rules {str(name)!r}: check the path.")
        content = content_of(name)
    elif str(name) in rule_names():
        content = (resources.files("r2et.data") / "rules" / f"{name}.toml").read_bytes()
    else:
        raise ValueError(f"unknown rules {str(name)!r}: {nearest(str(name), rule_names())}")
    table = toml_of(content, f"the file of rules {str(name)!r}")
    return {
        group: settings_from(Rule, settings, f"[{group}] of the rules {str(name)!r}")
        for group, settings in table.items()
    }


@dataclass(frozen=True, kw_only=True)
class Number:
    """A column of numbers that can change, by `per_eps` original units for the price 1.

    Its inputs are (value - shift) / width, the price of one `width` being `width / per_eps`. Where
    a column of `marks` is not 0 the value is missing.
    """

    name: str
    column: int
    per_eps: float
    shift: float
    width: float
    low: float
    high: float
    whole: bool = False
    only: Way | None = None
    marks: tuple[int, ...] = ()
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value out of several that can be changed for another at the price `swap`.

    Several columns of which one is 1 and the others are 0; or a single one, whose 0 and 1 mean the
    two `words`, and which may be bound to `only` one of its two changes.
    """

    name: str
    columns: tuple[int, ...]
    swap: float
    only: Way | None = None
    words: tuple[str, str] = ("0", "1")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Numbers:
    """The fields of N numbers below each other: (N, 1) each, one row for each column of inputs."""

    column: Tensor
    shift: Tensor
    width: Tensor
    low: Tensor
    high: Tensor
    per_eps: Tensor
    whole: Tensor
    up: Tensor
    down: Tensor
    mark: Tensor
    """The columns that mark missing values: (M,)."""
    marked: Tensor
    """Which numbers each of them marks: (N, M)."""

    def given(self, rows: Tensor) -> Tensor:
        """Whether a number is not marked as missing: (N, B) booleans."""
        return self.marked @ (rows[self.mark] != 0).double() == 0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Choices:
    """The values of C choices below each other: at most V of each, in K columns."""

    place: Tensor
    """Where `shown` finds each value: (V, C)."""
    single: Tensor
    """The columns that are a choice by themselves: (S,)."""
    column: Tensor
    """The columns of all choices: (K,)."""
    choice: Tensor
    """The choice of each such column: (K,)."""
    value: Tensor
    """The value that a 1 in it stands for: (K, 1)."""
    swap: Tensor
    """Prices: (C, 1)."""
    barred: Tensor
    """Minus infinity for values to which nothing can be changed, else zero: (V, C, 1)."""

    def shown(self, rows: Tensor, none: float) -> Tensor:
        """How much of each value there is, `none` for values that do not exist: (V, C, B)."""
        nowhere = rows.new_full((1, rows.shape[1]), none)
        places = torch.cat([rows, 1 - rows[self.single], nowhere])
        found = places.index_select(0, self.place.flatten())
        return found.view(*self.place.shape, -1)

    def valid(self, shown: Tensor) -> Tensor:
        """Whether there is one value and nothing of the others: (C, B) booleans."""
        return (shown.sign().square().sum(0) == 1) & (shown.amax(0) == 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Hull:
    """What holds for each column where smooth moves are followed: (d,) each."""

    low: Tensor
    high: Tensor
    square: Tensor
    """Squared price of a move by one, in scaled units."""
    up: Tensor
    down: Tensor
    movable: Tensor
    reachable: Tensor
    """Movable, and the radius buys a step or swap of it."""


Table = TypeVar("Table", _Numbers, _Choices, _Hull)


def _on(device: torch.device, table: Table) -> Table:
    """The same table on another device."""
    if table.__dict__[fields(table)[0].name].device == device:
        return table
    return type(table)(**{name: tensor.to(device) for name, tensor in table.__dict__.items()})


@dataclass(frozen=True, kw_only=True)
class ActionableSet:
    """Every input that a person could have for at most `radius`, all else as it was.

    Inputs are rows of `columns` scaled values, (B, d). Columns of no number and no choice never
    move; `fixed` names them for readers.
    """

    columns: int
    numbers: tuple[Number, ...] = ()
    choices: tuple[Choice, ...] = ()
    fixed: tuple[str, ...] = ()
    radius: float = UNSAID

    def __post_init__(self) -> None:
        """Refuse what is no such set: a radius, a price or a column that is none."""
        if not 0 <= self.radius < float("inf"):
            raise ValueError(
                f"the radius of an actionable set must be >= 0 and finite, got {self.radius}."
            )
        for name, price in (
            *((number.name, number.per_eps) for number in self.numbers),
            *((number.name, number.width) for number in self.numbers),
            *((choice.name, choice.swap) for choice in self.choices),
        ):
            if not 0 < price < float("inf"):
                raise ValueError(f"prices and widths must be above 0, got {price} for {name!r}.")
        used = [number.column for number in self.numbers]
        used += [column for choice in self.choices for column in choice.columns]
        if len(set(used)) < len(used) or not set(used) <= set(range(self.columns)):
            raise ValueError(
                f"numbers and choices must use different columns of 0..{self.columns - 1}, got "
                f"{sorted(used)}."
            )

    def at(self, radius: float) -> "ActionableSet":
        """The same prices with another radius to spend."""
        return replace(self, radius=radius)

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """Admissible inputs near `points`, which themselves if admissible: like points.

        Choices come first: each takes the value that it shows most of, the clean one among equals,
        and those that lean most are paid for while the radius lasts. Numbers share the rest.
        """
        self._check(points, centre)
        if self.radius < LEAST_RADIUS:
            return centre.clone()
        # Columns become rows: sums over few columns of many examples are fast that way.
        clean = centre.T.contiguous()
        asked = torch.where(points.isnan(), centre, points).T.contiguous()
        found, spent = clean.clone(), clean.new_zeros(len(centre), dtype=torch.float64)
        if self._affordable:
            choices = _on(points.device, self._within)
            found[choices.column], spent = _chosen(choices, asked, clean, self.radius)
        if self.numbers:
            numbers = _on(points.device, self._numbers)
            found[numbers.column] = _moved(numbers, asked, clean, self.radius, spent)
        return found.T.contiguous()

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points moved into the bounds and then into the ball of all prices: like points.

        Columns of 0 and 1 may lie between them; what is out of reach at this radius stays.
        """
        self._check(points, centre)
        hull = _on(points.device, self._hull)
        free = self._free(centre) & hull.reachable
        low = torch.minimum(hull.low.to(points.dtype), centre)
        high = torch.maximum(hull.high.to(points.dtype), centre)
        low = torch.where(free & ~hull.up, low, centre)
        high = torch.where(free & ~hull.down, high, centre)
        x = points.clamp(low, high)
        move = x - centre
        length = (move * hull.square.sqrt().to(points.dtype)).norm(dim=-1, keepdim=True)
        inside = self.radius * (1 - 8 * torch.finfo(points.dtype).eps)
        outside = length > inside
        shrunk = centre + move * (inside / torch.where(outside, length, 1.0))
        return torch.where(outside, shrunk, x).clamp(low, high)

    def steepest(self, slope: Tensor) -> Tensor:
        """The move of price one along which a loss with this slope rises fastest: like slope.

        Zero where the slope is, and in columns that are fixed or out of reach at this radius.
        """
        hull = _on(slope.device, self._hull)
        weight = hull.square.sqrt().to(slope.dtype)
        return unit(torch.where(hull.reachable, slope / weight, 0.0)) / weight

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        share: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Random moves, to be projected: (count, d).

        Numbers move by at most this `share` of the radius together, whole ones then rounded up or
        down by chance. Some choices are pushed all the way to a random value: a change of job has
        no small version, it only becomes rarer with `share`. Where the radius buys none of
        this, the moves are smooth ones in all columns, of which `relax` can make use.
        """
        if like.shape != (self.columns,):
            raise ValueError(
                f"this set is about rows of {self.columns} columns, got an example of shape "
                f"{tuple(like.shape)}: give inputs of the data that it was made for."
            )
        hull = self._hull
        numbers = [number for number in self.numbers if hull.reachable[number.column]]
        choices = self._affordable
        smooth = torch.tensor([number.column for number in numbers], dtype=torch.long)
        if not numbers and not choices:
            smooth = hull.movable.nonzero().flatten()
        moves = torch.zeros(count, self.columns, dtype=torch.float64)
        if len(smooth):
            weight = hull.square[smooth].sqrt()
            ball = L2Ball(radius=share * self.radius)
            drawn = ball.offsets(weight, count, generator, surface=surface)
            moves[:, smooth] = drawn / weight
        for number in numbers:
            if number.whole:
                move = moves[:, number.column]
                chance = torch.rand(count, generator=generator, dtype=torch.float64)
                units = (move * number.width + chance).floor()
                # Less than a unit stays what it was: `relax` can make use of it.
                moves[:, number.column] = torch.where(units == 0, move, units / number.width)
        if choices:
            _push(moves, choices, generator, share, self.radius, always=not numbers)
        return moves.to(like)

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """The price of all changes together, infinite if something moved that cannot: (B,)."""
        self._check(points, centre)
        hull, move = _on(points.device, self._hull), points.double() - centre.double()
        squares = move.square() * hull.square
        if self.numbers:
            numbers = _on(points.device, self._numbers)
            units = move.T[numbers.column] * numbers.width
            units = torch.where(numbers.whole, _settled(units, NEAR), units)
            squares[:, numbers.column] = (units / numbers.per_eps).square().T
        stuck = ((move != 0) & ~self._free(centre)).any(-1)
        return torch.where(stuck, torch.inf, squares.sum(-1).sqrt()).to(points.dtype)

    def longest_move(self, like: Tensor) -> float:
        """The radius, in which prices are told."""
        return self.radius

    def _check(self, points: Tensor, centre: Tensor) -> None:
        """Refuse rows of other columns."""
        if centre.ndim != 2 or centre.shape[1] != self.columns or points.shape != centre.shape:
            raise ValueError(
                f"this set is about rows of {self.columns} columns, got points of shape "
                f"{tuple(points.shape)} around {tuple(centre.shape)}: give inputs of the data that "
                f"it was made for."
            )

    def _free(self, centre: Tensor) -> Tensor:
        """The columns that can move in each row: (B, d) booleans.

        Neither a number that is missing nor a group that shows no valid category can.
        """
        rows = centre.T
        free = _on(centre.device, self._hull).movable[:, None].repeat(1, len(centre))
        if self.choices:
            choices = _on(centre.device, self._choices)
            valid = choices.valid(choices.shown(rows, none=0.0))
            free[choices.column] = valid[choices.choice]
        if self.numbers:
            numbers = _on(centre.device, self._numbers)
            free[numbers.column] = numbers.given(rows)
        return free.T

    @cached_property
    def _numbers(self) -> _Numbers:
        marks = sorted({mark for number in self.numbers for mark in number.marks})
        marked = [[float(mark in number.marks) for mark in marks] for number in self.numbers]
        return _Numbers(
            column=torch.tensor([number.column for number in self.numbers]),
            shift=_float64(number.shift for number in self.numbers),
            width=_float64(number.width for number in self.numbers),
            low=_float64(number.low for number in self.numbers),
            high=_float64(number.high for number in self.numbers),
            per_eps=_float64(number.per_eps for number in self.numbers),
            whole=torch.tensor([[number.whole] for number in self.numbers]),
            up=torch.tensor([[number.only == "up"] for number in self.numbers]),
            down=torch.tensor([[number.only == "down"] for number in self.numbers]),
            mark=torch.tensor(marks, dtype=torch.long),
            marked=torch.tensor(marked, dtype=torch.float64),
        )

    @cached_property
    def _affordable(self) -> list[Choice]:
        return [choice for choice in self.choices if self._hull.reachable[choice.columns[0]]]

    @cached_property
    def _choices(self) -> _Choices:
        return _side_by_side(self.choices, self.columns)

    @cached_property
    def _within(self) -> _Choices:
        return _side_by_side(self._affordable, self.columns)

    @cached_property
    def _hull(self) -> _Hull:
        zeros = torch.zeros(self.columns, dtype=torch.float64)
        hull = _Hull(
            low=zeros.clone(),
            high=zeros + 1,
            square=zeros + 1,
            up=zeros.bool(),
            down=zeros.bool(),
            movable=zeros.bool(),
            reachable=zeros.bool(),
        )
        for number in self.numbers:
            at = number.column
            hull.low[at] = (number.low - number.shift) / number.width
            hull.high[at] = (number.high - number.shift) / number.width
            hull.square[at] = (number.width / number.per_eps) ** 2
            hull.reachable[at] = self._buys(1 / number.per_eps if number.whole else 0.0)
            hull.up[at], hull.down[at] = number.only == "up", number.only == "down"
            hull.movable[at] = True
        for choice in self.choices:
            for at in choice.columns:
                # A swap moves two columns by one: each pays half of the square.
                hull.square[at] = choice.swap**2 / min(len(choice.columns), 2)
                hull.reachable[at] = self._buys(choice.swap)
                hull.up[at], hull.down[at] = choice.only == "up", choice.only == "down"
                hull.movable[at] = True
        return hull

    def _buys(self, price: float) -> bool:
        """Whether the radius pays for this alone; none pays for nothing."""
        return self.radius >= LEAST_RADIUS and (price / self.radius) ** 2 <= 1 + SLACK


def _float64(values: Iterable[float]) -> Tensor:
    """The values below each other: (N, 1)."""
    return torch.tensor(list(values), dtype=torch.float64)[:, None]


def _side_by_side(choices: Sequence[Choice], columns: int) -> _Choices:
    """The table of some choices among so many columns."""
    single = [choice.columns[0] for choice in choices if len(choice.columns) == 1]
    values = max(2, *(len(choice.columns) for choice in choices))
    place = torch.full((values, len(choices)), columns + len(single))
    barred = torch.zeros(values, len(choices), 1, dtype=torch.float64)
    seats: list[tuple[int, int, int]] = []
    for number, choice in enumerate(choices):
        if len(choice.columns) == 1:
            (column,) = choice.columns
            place[:2, number] = torch.tensor([columns + single.index(column), column])
            if choice.only is not None:
                barred[int(choice.only == "down"), number] = -torch.inf
            seats.append((column, number, 1))
        else:
            place[: len(choice.columns), number] = torch.tensor(choice.columns)
            seats += [(column, number, value) for value, column in enumerate(choice.columns)]
    column, of_choice, value = torch.tensor(seats).T
    return _Choices(
        place=place,
        single=torch.tensor(single, dtype=torch.long),
        column=column,
        choice=of_choice,
        value=value[:, None],
        swap=_float64(choice.swap for choice in choices),
        barred=barred,
    )


def _settled(values: Tensor, near: Tensor | float) -> Tensor:
    """The values, those `near` to a whole number replaced by it: like values."""
    whole = values.round()
    return torch.where((values - whole).abs() <= near, whole, values)


def _bought(wish: Tensor, price: Tensor, purse: Tensor) -> Tensor:
    """Which wishes above zero are granted while the purse (B,) lasts: (m, B) booleans.

    The strongest first, the first among equals; what is too dear is passed over.
    """
    granted = torch.zeros_like(wish, dtype=torch.bool)
    while wish.numel():
        wish = torch.where(price <= purse, wish, 0.0)
        strongest, place = wish.max(0, keepdim=True)
        if not (strongest > 0).any():
            break
        now = torch.zeros_like(granted).scatter(0, place, strongest > 0)
        purse = purse - (now * price).sum(0)
        granted, wish = granted | now, wish.masked_fill(now, 0.0)
    return granted


def _chosen(
    choices: _Choices, asked: Tensor, clean: Tensor, radius: float
) -> tuple[Tensor, Tensor]:
    """The columns of all choices after the swaps that are paid for, and their price.

    (K, B), and (B,) the sum of squared prices in squared radii.
    """
    before, shown = choices.shown(clean, none=0.0), choices.shown(asked, none=-torch.inf)
    own = torch.where(before == 1, shown, -torch.inf).amax(0)
    most, value = (shown + choices.barred.to(shown.dtype)).max(0)
    wish = torch.where((most > own) & choices.valid(before), most - own, 0.0)
    price = (choices.swap / radius).square()
    swapped = _bought(wish, price, price.new_full((clean.shape[1],), 1 + SLACK))
    turned = value[choices.choice] == choices.value
    columns = torch.where(swapped[choices.choice], turned.to(clean.dtype), clean[choices.column])
    return columns, (swapped * price).sum(0)


def _moved(numbers: _Numbers, asked: Tensor, clean: Tensor, radius: float, spent: Tensor) -> Tensor:
    """The columns of all numbers after the moves that can be paid for: (N, B).

    Of one squared radius `spent` is gone already: (B,). Changes in original units, whole ones
    counted from the clean value, shrink by one factor until they are affordable. Whole ones then
    drop their fractions, of which those above a half are rounded up while the radius lasts.
    """
    whole, given = numbers.whole, numbers.given(clean)
    x, clean = asked[numbers.column], clean[numbers.column]
    price = 1 / (numbers.per_eps * radius)
    start = _original(numbers, clean)
    start = torch.where(whole, _settled(start, _rounding(numbers, clean)), start)
    x = torch.where(whole, x, _bounded(numbers, x, clean))
    change = _original(numbers, x) - start
    least = torch.where(numbers.up, 0.0, (numbers.low - start).ceil().clamp(max=0.0))
    most = torch.where(numbers.down, 0.0, (numbers.high - start).floor().clamp(min=0.0))
    smooth = (x.double() - clean.double()) * numbers.width
    change = torch.where(whole, _settled(change.clamp(least, most), NEAR), smooth)
    change = torch.where(given, change, 0.0)

    left, need = 1 - spent, (change * price).square().sum(0)
    dear = need > (left + SLACK).clamp(min=0.0)
    shrink = torch.where(dear, (left.clamp(min=0.0) / need).sqrt(), 1.0)
    change = change * shrink

    steps = (change.abs() * (1 + MARGIN)).floor()
    rest = change.abs() - steps
    wish = torch.where(whole & (rest > 0.5), rest, 0.0)
    paid = (torch.where(whole, steps, change) * price).square().sum(0)
    more = _bought(wish, (2 * steps + 1) * price.square(), left + SLACK - paid)
    steps = (steps + more) * change.sign()
    found = _encoded(numbers, start, steps, x, clean)
    if whole.all():
        return found

    left = left - torch.where(whole, steps * price, 0.0).square().sum(0) - MARGIN
    room = left.clamp(min=0.0).sqrt() * (1 - MARGIN)
    length = torch.where(whole, 0.0, change * price).square().sum(0).sqrt()
    fit = torch.where(length > room, room * (1 - MARGIN) / length, 1.0)
    shrunk = _rounded_inwards(clean, change * fit / numbers.width)
    as_asked = (shrink == 1) & (fit == 1) & given
    return torch.where(whole, found, torch.where(as_asked, x, shrunk))


def _bounded(numbers: _Numbers, x: Tensor, clean: Tensor) -> Tensor:
    """Inputs within the bounds of their numbers, or between these and the clean ones: like x."""
    low, high = (
        ((bound - numbers.shift) / numbers.width).to(x.dtype)
        for bound in (numbers.low, numbers.high)
    )
    low = torch.where(numbers.up, clean, torch.minimum(low, clean))
    high = torch.where(numbers.down, clean, torch.maximum(high, clean))
    return x.clamp(low, high)


def _original(numbers: _Numbers, x: Tensor) -> Tensor:
    """Values in original units, in float64: like x."""
    return x.double() * numbers.width + numbers.shift


def _rounding(numbers: _Numbers, x: Tensor) -> Tensor:
    """How far from a whole number rounding may have taken its scaled value: like x."""
    # Whatever its type is now, it may have been float32 once, as the parts of a split are.
    eps = max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps)
    size = numbers.shift.abs() + numbers.width * x.abs().double()
    return (2 * eps * size).clamp(max=NEAR)


def _encoded(numbers: _Numbers, start: Tensor, steps: Tensor, x: Tensor, clean: Tensor) -> Tensor:
    """The inputs of values so many steps from `start`, x itself if it is one: like x."""
    off = (_original(numbers, x) - start - steps).abs()
    coded = ((start + steps - numbers.shift) / numbers.width).to(x.dtype)
    # A type too coarse for whole numbers of this size has no input for some of them.
    lost = (_original(numbers, coded) - start - steps).abs() > NEAR
    found = torch.where(off <= _rounding(numbers, x), x, torch.where(lost, clean, coded))
    return torch.where(steps == 0, clean, found)


def _rounded_inwards(clean: Tensor, move: Tensor) -> Tensor:
    """The sum of both, rounded so that it is no farther from `clean` than the move: like clean."""
    moved = (clean.double() + move).to(clean.dtype)
    beyond = (moved.double() - clean.double()).abs() > move.abs()
    return torch.where(beyond, torch.nextafter(moved, clean), moved)


def _push(
    moves: Tensor,
    choices: Sequence[Choice],
    generator: torch.Generator,
    share: float,
    radius: float,
    *,
    always: bool,
) -> None:
    """Add pushes towards random values to some choices of each move, in place.

    As many as the radius can pay for on average, but not fewer than one, times `share`. They lean
    by 0 to 2, a swap that was made before by 1: either may be kept by a projection. With `always`
    no move is without one.
    """
    drawn, lean, which = torch.rand(
        (3, len(moves), len(choices)), generator=generator, dtype=torch.float64
    )
    affordable = (radius / _float64(choice.swap for choice in choices)[:, 0]).square()
    likely = (share * affordable.clamp(min=1.0) / len(choices)).clamp(max=0.5)
    pushed = drawn < likely
    if always:
        pushed = pushed.scatter(-1, (drawn / likely).argmin(-1, keepdim=True), True)
    size = pushed * (1 + 2 * lean)
    for place, choice in enumerate(choices):
        if len(choice.columns) == 1:
            towards = torch.where(which[:, place] < 0.5, -0.5, 0.5)
            moves[:, choice.columns[0]] += size[:, place] * towards
        else:
            value = (which[:, place] * len(choice.columns)).long()
            column = torch.tensor(choice.columns)[value]
            moves[torch.arange(len(moves)), column] += size[:, place]


def actionable_set(
    data: Split | tuple[Dataset, Scale], rules: Rules | None = None, *, radius: float = UNSAID
) -> ActionableSet:
    """What a person could change for `radius`, by the rules of its groups.

    Groups without a rule follow that of "*", or the defaults that `Rule` states.
    """
    dataset, scale = (data.dataset, data.scale) if isinstance(data, Split) else data
    rules = {} if rules is None else rules
    _check_names(rules, dataset)
    _check_scale(dataset, scale)
    every = rules.get(EVERY, Rule())
    numbers: list[Number] = []
    choices: list[Choice] = []
    fixed: list[str] = []
    for group in dataset.group_names:
        rule = _completed(rules.get(group, Rule()), every)
        columns = [at for at, each in enumerate(dataset.features) if each.group == group]
        _check_rule(group, rules.get(group, Rule()), [dataset.features[at] for at in columns])
        more_numbers = _numbers_of(rule, columns, dataset, scale)
        more_choices = [] if more_numbers else _choices_of(rule, columns, dataset.features)
        if rule.fixed or not (more_numbers or more_choices):
            fixed.append(group)
        else:
            numbers += more_numbers
            choices += more_choices
    return ActionableSet(
        columns=dataset.n,
        numbers=tuple(numbers),
        choices=tuple(choices),
        fixed=tuple(fixed),
        radius=radius,
    )


def _completed(rule: Rule, every: Rule) -> Rule:
    """The rule, filled in from that of all groups where it says nothing."""
    said = {name: getattr(rule, name) for name in OF_EVERY}
    filled = {name: getattr(every, name) for name, value in said.items() if value is None}
    if rule.per_eps is not None:
        filled.pop("share")
    return replace(rule, **filled)


def _numbers_of(rule: Rule, columns: Sequence[int], dataset: Dataset, scale: Scale) -> list[Number]:
    """The numbers among the columns of one group; its 0/1 columns mark missing values."""
    marks = tuple(at for at in columns if dataset.features[at].kind == "binary")
    numbers: list[Number] = []
    for at in columns:
        feature, width = dataset.features[at], float(scale.width[at])
        if feature.kind != "numeric":
            continue
        values = dataset.x[:, at]
        values = values[~values.isnan()]
        low = feature.low if rule.low is None else float(rule.low)
        high = feature.high if rule.high is None else float(rule.high)
        if low > high:
            raise ValueError(
                f"the rule of {feature.group!r} leaves no value between low {low:g} and high "
                f"{high:g}: change one of them."
            )
        largest = max(abs(low), abs(high), abs(feature.low), abs(feature.high))
        if rule.whole and largest > MOST_WHOLE:
            raise ValueError(
                f"'whole' is for numbers up to {MOST_WHOLE:,.0f}, but {feature.group!r} goes to "
                f"{largest:,.0f}, where model inputs cannot show single units: say whole = false."
            )
        whole = bool((values == values.round()).all()) and largest <= MOST_WHOLE
        share = 1.0 if rule.share is None else float(rule.share)
        numbers.append(
            Number(
                name=feature.name,
                column=at,
                per_eps=share * width if rule.per_eps is None else float(rule.per_eps),
                shift=float(scale.shift[at]),
                width=width,
                low=low,
                high=high,
                whole=whole if rule.whole is None else rule.whole,
                only=rule.only,
                marks=marks,
                unit=feature.unit,
            )
        )
    return numbers


def _choices_of(rule: Rule, columns: Sequence[int], features: Sequence[Feature]) -> list[Choice]:
    """The choices among the columns of one group: its categories, and each 0/1 column."""
    swap = 1.0 if rule.swap is None else float(rule.swap)
    categories = tuple(at for at in columns if features[at].kind == "category")
    singles = [at for at in columns if features[at].kind == "binary"]
    choices = [
        Choice(
            name=features[at].name,
            columns=(at,),
            swap=swap,
            only=rule.only,
            words=features[at].words or ("0", "1"),
        )
        for at in singles
    ]
    if len(categories) > 1:
        choices.append(Choice(name=features[columns[0]].group, columns=categories, swap=swap))
    return choices


def _check_names(rules: Rules, dataset: Dataset) -> None:
    """Refuse rules of groups that do not exist, and a rule of all groups that says too much."""
    for name, rule in rules.items():
        if not isinstance(rule, Rule):
            raise ValueError(f"the rule of {name!r} must be a Rule, got {rule!r}.")
        if name != EVERY and name not in dataset.group_names:
            raise ValueError(
                f"the rules speak of {name!r}, of which the data {dataset.name!r} know nothing: "
                f"{nearest(name, dataset.group_names)}"
            )
    for field in fields(Rule):
        said = getattr(rules.get(EVERY, Rule()), field.name)
        if said is not None and field.name not in OF_EVERY:
            raise ValueError(
                f"the rule of all groups, {EVERY!r}, may state {', '.join(OF_EVERY)} but not "
                f"{field.name!r}: state it for each group."
            )


def _check_scale(dataset: Dataset, scale: Scale) -> None:
    """Refuse a scale of other data, or one that scales columns of 0 and 1."""
    if scale.width.shape != (dataset.n,) or scale.shift.shape != (dataset.n,):
        raise ValueError(
            f"the scale must hold {dataset.n} columns as the data do, got "
            f"{tuple(scale.width.shape)}: give the scale of these data."
        )
    for feature, shift, width in zip(
        dataset.features, scale.shift.tolist(), scale.width.tolist(), strict=True
    ):
        if feature.kind != "numeric" and (shift, width) != (0.0, 1.0):
            raise ValueError(
                f"columns of 0 and 1 must not be scaled, but {feature.name!r} is, by shift "
                f"{shift:g} and width {width:g}: leave them as they are."
            )


def _check_rule(group: str, rule: Rule, features: Sequence[Feature]) -> None:
    """Refuse settings that mean nothing for the columns of a group."""
    kinds = {feature.kind for feature in features}
    if "numeric" in kinds:
        if rule.swap is not None:
            raise ValueError(
                f"{group!r} holds numbers, which have no 'swap': state 'per_eps' instead."
            )
        return
    for name in OF_NUMBERS:
        if getattr(rule, name) is not None:
            raise ValueError(
                f"{group!r} holds no numbers, and {name!r} means nothing for it: state 'swap' or "
                f"'fixed'."
            )
    if rule.only is not None and "category" in kinds:
        raise ValueError(
            f"the categories of {group!r} have no order, and 'only' means nothing for them: state "
            f"'swap' or 'fixed'."
        )


def what_it_buys(perturbation: ActionableSet) -> list[str]:
    """What the radius buys, in words: a line for each change, then one for all that is fixed.

    >>> job = Choice(name="job", columns=(0, 1), swap=1.0)
    >>> age = Number(name="age", column=2, per_eps=5, shift=0, width=1, low=17, high=90, whole=True,
    ...     only="up", unit="years")
    >>> what_it_buys(ActionableSet(columns=4, numbers=(age,), choices=(job,), fixed=("race",)))
    ['age: up by 5 years', 'job: a change for 1', 'fixed: race']
    """
    reachable, lines = perturbation._hull.reachable.tolist(), []
    for number in perturbation.numbers:
        most = perturbation.radius * number.per_eps
        if number.whole:
            most = math.floor(most * (1 + SLACK))
        way = {"up": "up", "down": "down", None: "up or down"}[number.only]
        if reachable[number.column]:
            lines.append(f"{number.name}: {way} by {with_unit(most, number.unit)}")
        else:
            one = with_unit(1, number.unit)
            lines.append(f"{number.name}: out of reach, {one} costs {plain(1 / number.per_eps)}")
    for choice in perturbation.choices:
        first, last = choice.words if choice.only == "up" else choice.words[::-1]
        way = "" if choice.only is None else f" from {first!r} to {last!r}"
        if reachable[choice.columns[0]]:
            lines.append(f"{choice.name}: a change{way} for {plain(choice.swap)}")
        else:
            lines.append(f"{choice.name}: out of reach, a change{way} costs {plain(choice.swap)}")
    if perturbation.fixed:
        lines.append(f"fixed: {', '.join(perturbation.fixed)}")
    return lines
