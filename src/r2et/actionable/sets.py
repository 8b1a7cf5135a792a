"""Which inputs a person could have: only what a person can change, into values that exist.

A ball moves every column a little, into people of 0.3 Masters and 39.27 years. Here each change has
a price, stated in original units: years, euros, a change of job. Prices add up as lengths do, and
the radius says what may be spent. `docs/guides/actionable.md` defines all of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from r2et.actionable.tables import Way as Way
from r2et.core.geometry import unit
from r2et.data.features import change_in_words, plain
from r2et.perturbations import UNSAID, L2Ball

SLACK = 1e-9  # squared prices that add up to the squared radius but for this are affordable
MARGIN = 1e-12  # more than float64 rounds while a length is computed
NEAR = 1 / 8  # a count so near to a whole number is taken for it
LEAST_RADIUS = 1e-100  # squares of less vanish, and it buys nothing


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
        low, high = _limits(hull.low, hull.high, hull.up | ~free, hull.down | ~free, centre)
        x = points.clamp(low, high)
        move = x - centre
        length = (move * hull.square.sqrt().to(points.dtype)).norm(dim=-1, keepdim=True)
        inside = self.radius * (1 - 8 * torch.finfo(points.dtype).eps)
        outside = length > inside
        shrunk = centre + move * (inside / torch.where(outside, length, 1.0))
        return torch.where(outside, shrunk, x).clamp(low, high)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The move of price one along which a loss with this gradient rises fastest: like it.

        Zero where the gradient is, and in columns that are fixed or out of reach at this radius.
        """
        hull = _on(gradient.device, self._hull)
        weight = hull.square.sqrt().to(gradient.dtype)
        return unit(torch.where(hull.reachable, gradient / weight, 0.0)) / weight

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
        amounts = {
            name: _float64(getattr(number, name) for number in self.numbers)
            for name in ("shift", "width", "low", "high", "per_eps")
        }
        return _Numbers(
            **amounts,
            column=torch.tensor([number.column for number in self.numbers]),
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
    low, high = ((end - numbers.shift) / numbers.width for end in (numbers.low, numbers.high))
    x = torch.where(whole, x, x.clamp(*_limits(low, high, numbers.up, numbers.down, clean)))
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


def _limits(
    low: Tensor, high: Tensor, only_up: Tensor, only_down: Tensor, clean: Tensor
) -> tuple[Tensor, Tensor]:
    """The least and the greatest input, the clean one among them: like clean each."""
    least = torch.where(only_up, clean, torch.minimum(low.to(clean.dtype), clean))
    return least, torch.where(only_down, clean, torch.maximum(high.to(clean.dtype), clean))


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
            lines.append(f"{number.name}: {way} by {change_in_words(most, number.unit)}")
        else:
            one = change_in_words(1, number.unit)
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
