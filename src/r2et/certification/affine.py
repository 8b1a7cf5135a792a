"""Affine forms: what each number of a network can be while its input moves within a region.

A number is c + sum_s a_s u_s + r: a centre, moves along symbols u that all numbers of the network
share, and a rest of its own. The first symbols are the input's: a vector in the unit ball (or cube)
for the whole region. The others are errors of single activations, each between two bounds. What two
numbers have in common is thus known, and is not counted twice in a difference of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l2", "linf"]

WIDE = 256
"""Numbers of an input above which lengths are followed as well."""
TINY = 1e-300
"""More than what an operation loses of numbers too small for float64."""


@dataclass(frozen=True, eq=False)
class AffineForm:
    """Numbers of shape (B, *S) in affine form: centre (B, *S), moves (M, B, *S), rest (B, *S).

    M may be smaller than the number of symbols there are: what was made before a symbol does not
    move with it. `reach` is how far the input's symbols carry each number, once it is known.
    `sphere` (B, *S) is of an input that is not followed by symbols: its numbers differ from the
    centre by sphere * u with u in the unit ball, which the first linear layer makes use of.
    `length` (B,) is how long the vector of what the rest stands for can be, if that is known: of
    large networks it grows by the norms of their layers, and so far less than what is said of each
    number does.
    """

    centre: Tensor
    moves: Tensor
    rest: Tensor
    reach: Tensor | None = None
    sphere: Tensor | None = None
    length: Tensor | None = None

    @classmethod
    def constant(cls, value: Tensor) -> "AffineForm":
        """Numbers that do not move."""
        return cls(value, value.new_zeros(0, *value.shape), torch.zeros_like(value))

    @property
    def is_constant(self) -> bool:
        """Whether nothing moves."""
        return not len(self.moves)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMap:
    """A linear function of each example: `apply` (N, *S) -> (N, *T), `absolute` with |weights|.

    `squared` has the squares of the weights, if they are known. `back` carries slopes the other
    way; derivatives of the functions do unless it is given. `rounding` is like `absolute`, with
    weights as large as the sums of absolute terms of which those of `apply` were computed. Each
    number is a sum of no more than `terms`, if that is known. `norm` gives an upper bound of the
    l2 norm; where it is not given it is one by the sums of rows and columns.
    """

    apply: Callable[[Tensor], Tensor]
    absolute: Callable[[Tensor], Tensor]
    squared: Callable[[Tensor], Tensor] | None = None
    back: "LinearMap | None" = None
    rounding: Callable[[Tensor], Tensor] | None = None
    terms: int | None = None
    norm: Callable[[], float] | None = None

    def stretch(self, x: Tensor, y: Tensor) -> float:
        """An upper bound of the l2 norm, for a map of numbers like x to numbers like y."""
        if self.norm is not None:
            return self.norm()
        # The root of the largest sum of a row times that of a column.
        rows = self.absolute(torch.ones_like(x[:1])).amax()
        columns = self.transposed(x.shape[1:]).absolute(torch.ones_like(y[:1])).amax()
        return (1 + 1e-9) * math.sqrt(float(rows) * float(columns))

    def widths(self, x: Tensor, y: Tensor) -> Tensor:
        """How far each number like y can be if x is anything in the unit ball: (1, *T)."""
        if self.squared is None:
            return torch.full_like(y[:1], self.stretch(x, y))
        return (1 + 1e-9) * self.squared(torch.ones_like(x[:1])).sqrt() + TINY

    @classmethod
    def matrix(cls, weight: Tensor, norm: Callable[[], float] | None = None) -> "LinearMap":
        """T @ weight, whose norm may be known."""
        size, square = weight.abs(), weight.square()
        there = LinearMap(
            apply=lambda t: t @ weight, absolute=lambda t: t @ size, squared=lambda t: t @ square
        )
        if weight.ndim < 2:
            return there
        back = LinearMap(
            apply=lambda t: t @ weight.mT,
            absolute=lambda t: t @ size.mT,
            squared=lambda t: t @ square.mT,
            norm=norm,
        )
        return replace(there, back=back, norm=norm)

    def transposed(self, shape: Sequence[int]) -> "LinearMap":
        """The map that carries slopes back, to numbers of `shape` for each example."""
        if self.back is not None or self is UNCHANGED:
            return self.back or self

        def back(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            def pulled(signal: Tensor) -> Tensor:
                start = signal.new_zeros(len(signal), *shape)
                with torch.enable_grad():
                    reached = function(start.requires_grad_())
                    (found,) = torch.autograd.grad(reached, start, signal)
                return found

            return pulled

        # Where each number is taken at most once, each gets no more than one signal back.
        terms = 1 if self.squared is self.apply else None
        return LinearMap(
            apply=back(self.apply),
            absolute=back(self.absolute),
            squared=None if self.squared is None else back(self.squared),
            back=self,
            terms=terms,
            norm=self.norm,
        )


UNCHANGED = LinearMap(apply=lambda t: t, absolute=lambda t: t, terms=1, norm=lambda: 1.0)
"""The map that leaves everything as it is."""


def positive(function: Callable[[Tensor], Tensor]) -> LinearMap:
    """A linear map without negative weights, such as a mean."""
    return LinearMap(apply=function, absolute=function)


def rearranged(function: Callable[[Tensor], Tensor]) -> LinearMap:
    """A map that gives some of the numbers, each at most once, in another place or shape."""
    return LinearMap(apply=function, absolute=function, squared=function, terms=1, norm=lambda: 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadraticError:
    """Errors known better than by two bounds: l_u w_u^2 / 2 <= error_u <= h_u w_u^2 / 2.

    w_u = `moves` (D, B, U) times the input's symbols; `low` and `high` are (U, B). `start` is the
    number of the first of the U symbols. An error may be beyond these bounds by `slack` (U, B),
    which is rounding.
    """

    start: int
    moves: Tensor
    low: Tensor
    high: Tensor
    slack: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class SwitchedError:
    """Errors known better than by two bounds: each depends on which side of a kink a number is.

    Error u is at least `low[0]` and at most `high[0]` where its number z_u is below the kink,
    `low[1]` and `high[1]` where it is above. z_u less the kink is `at` + `slopes` times the input's
    move (in the unit ball or cube) + something no larger than `slack`, and lies within `below` and
    `above`. All are (m, B), low and high (2, m, B), slopes (m, B, d). `start` is the number of the
    first of the m symbols.
    """

    start: int
    low: Tensor
    high: Tensor
    at: Tensor
    slopes: Tensor
    slack: Tensor
    below: Tensor
    above: Tensor


@dataclass(eq=False)
class Symbols:
    """The symbols of an analysis: `inputs` of them move together, the others between bounds.

    `low` and `high` hold the bounds of the others, (m, B). At most `most` symbols are kept; errors
    of activations beyond go into the rest of their number.
    """

    inputs: int
    norm: Norm
    low: Tensor
    high: Tensor
    most: int
    quadratics: list[QuadraticError] = field(default_factory=list)
    switches: list[SwitchedError] = field(default_factory=list)
    packed: bool = False
    """Whether each example has symbols of its own, for its widest errors and for no other."""

    @classmethod
    def none(cls, form: AffineForm) -> "Symbols":
        """No symbols, for forms like this one that do not move."""
        nothing = form.rest.new_zeros(0, len(form.rest))
        return cls(0, "l2", nothing, nothing.clone(), 0)

    def copy(self, packed: bool = False) -> "Symbols":
        """The same symbols, to which others may be added."""
        return replace(
            self,
            quadratics=list(self.quadratics),
            switches=list(self.switches),
            packed=self.packed or packed,
        )

    @property
    def count(self) -> int:
        """How many symbols there are."""
        return self.inputs + len(self.low)

    def ball(self, form: AffineForm) -> Tensor:
        """How far the input's symbols can carry numbers: (B, *S)."""
        if form.reach is None:
            own = form.moves[: self.inputs]
            box = self.norm == "linf"
            reach = own.abs().sum(0) if box else torch.linalg.vector_norm(own, dim=0)
            object.__setattr__(form, "reach", reach)  # known from now on, and nothing else changes
        assert form.reach is not None
        return form.reach

    def errors(self, moves: Tensor) -> tuple[Tensor, Tensor]:
        """How far down and up the other symbols can carry numbers: (B, *S) each."""
        own = moves[self.inputs :]
        if not len(own):
            nothing = moves.new_zeros(moves.shape[1:])
            return nothing, nothing
        low, high = self.low[: len(own)], self.high[: len(own)]
        # A number moves with an error by the middle of its range, and by half its width either way.
        middle = torch.einsum("mb...,mb->b...", own, (low + high) / 2)
        half = torch.einsum("mb...,mb->b...", own.abs(), (high - low) / 2)
        return middle - half, middle + half

    def size(self, form: AffineForm) -> Tensor:
        """An upper bound of every intermediate sum in a number's value, but for the rest."""
        if form.is_constant:
            return form.centre.abs()
        own = form.moves[self.inputs :]
        size = form.centre.abs() + math.sqrt(self.inputs) * self.ball(form)
        if len(own):
            reach = torch.maximum(-self.low[: len(own)], self.high[: len(own)])
            size += torch.einsum("mb...,mb->b...", own.abs(), reach)
        return size

    def range(self, form: AffineForm) -> tuple[Tensor, Tensor]:
        """Least and greatest value of each number, rounded outwards: (B, *S) each."""
        ball = self.ball(form)
        down, up = self.errors(form.moves)
        reach = form.centre.abs() + ball + torch.maximum(-down, up) + form.rest
        slack = (len(form.moves) + 16) * torch.finfo(ball.dtype).eps * reach + TINY
        low = form.centre - ball + down - form.rest - slack
        return low, form.centre + ball + up + form.rest + slack

    def with_errors(
        self, form: AffineForm, low: Tensor, high: Tensor, quadratic: QuadraticError | None = None
    ) -> AffineForm:
        """The form plus an error of each number between `low` <= 0 and `high` >= 0.

        Each error is a symbol of its own where there is room for them all, else part of the rest.
        """
        if self.packed:
            return self.with_widest(form, low, high)[0]
        batch, *shape = form.centre.shape
        units = form.centre[0].numel()
        if not self.inputs or self.count + units > self.most:
            middle, half = (low + high) / 2, (high - low) / 2
            slack = 4 * torch.finfo(middle.dtype).eps * (form.centre.abs() + half + middle.abs())
            return _wider(replace(form, centre=form.centre + middle), half + slack)
        if quadratic is not None:
            self.quadratics.append(replace(quadratic, start=self.count))
        before = self.count
        self.low = torch.cat([self.low, low.flatten(1).T])
        self.high = torch.cat([self.high, high.flatten(1).T])
        own = torch.eye(units, dtype=low.dtype, device=low.device)
        own = own.view(units, 1, *shape).expand(units, batch, *shape)
        return replace(form, moves=torch.cat([longer(form.moves, before), own]))

    def with_widest(self, form: AffineForm, low: Tensor, high: Tensor) -> tuple[AffineForm, Tensor]:
        """The form plus errors, the widest of each example as symbols of its own, and which.

        Which: the flat places of the numbers (m, B) whose errors the new symbols are. What is too
        narrow to matter, or finds no room, goes into the rest.
        """
        batch, *shape = form.centre.shape
        low, high = low.flatten(1), high.flatten(1)
        width = torch.maximum(high, -low)
        wide = width > 1e-9 * (form.centre.abs().flatten(1) + 1e-30)
        count = min(int(wide.sum(1).max()), self.most - self.count) if batch else 0
        which = torch.where(wide, width, -1.0).topk(max(count, 0), dim=1).indices
        kept = torch.zeros_like(wide).scatter(1, which, wide.gather(1, which))
        middle = torch.where(kept, 0.0, (low + high) / 2).view_as(form.centre)
        half = torch.where(kept, 0.0, (high - low) / 2).view_as(form.centre)
        slack = 4 * torch.finfo(low.dtype).eps * (form.centre.abs() + half + middle.abs())
        slack = torch.where((half > 0) | (middle != 0), slack, 0.0)
        found = _wider(replace(form, centre=form.centre + middle), half + slack)
        if not len(which.T):
            return found, which.T
        before = self.count
        chosen = kept.gather(1, which)
        self.low = torch.cat([self.low, torch.where(chosen, low.gather(1, which), 0.0).T])
        self.high = torch.cat([self.high, torch.where(chosen, high.gather(1, which), 0.0).T])
        own = low.new_zeros(len(which.T), batch, low.shape[1])
        own.scatter_(2, which.T[:, :, None], chosen.to(low).T[:, :, None])
        own = own.view(-1, batch, *shape)
        moves = torch.cat([longer(form.moves, before), own])
        return replace(found, moves=moves, reach=None), which.T

    def promoted(self, form: AffineForm) -> AffineForm:
        """The form with its rest as symbols where there is room for them."""
        if (
            not (self.inputs or self.packed)
            or form.is_constant
            or not (form.rest > 1e-9 * (form.centre.abs() + 1e-30)).any()
        ):
            return form
        bare = AffineForm(form.centre, form.moves, torch.zeros_like(form.rest))
        return self.with_errors(bare, -form.rest, form.rest)


def length(numbers: Tensor) -> Tensor:
    """How long the vector of each example's numbers is, rounded up: (B,)."""
    found: Tensor = torch.linalg.vector_norm(numbers.flatten(1), dim=1)
    return (1 + 1e-9) * found + TINY


def _wider(form: AffineForm, by: Tensor) -> AffineForm:
    """The form with more rest."""
    longer = None if form.length is None else (1 + 1e-15) * (form.length + length(by))
    return replace(form, rest=form.rest + by, length=longer)


def shorter(form: AffineForm) -> AffineForm:
    """The form with the less that length and rest say of one another."""
    if form.length is None:
        return form
    within = torch.minimum(form.length, length(form.rest))
    rest = torch.minimum(form.rest, within.view(-1, *(1,) * (form.rest.ndim - 1)))
    return replace(form, length=within, rest=rest)


def longer(moves: Tensor, count: int) -> Tensor:
    """Moves along `count` symbols, zero along those that are new: (count, B, *S)."""
    if len(moves) == count:
        return moves
    return torch.cat([moves, moves.new_zeros(count - len(moves), *moves.shape[1:])])


def total(forms: Sequence[AffineForm]) -> AffineForm:
    """The sum of forms of one shape."""
    if len(forms) == 1:
        return forms[0]
    count = max(len(form.moves) for form in forms)
    moves = [longer(form.moves, count) for form in forms]
    eps = torch.finfo(forms[0].centre.dtype).eps
    size = sum(
        form.centre.abs() + part.abs().sum(0) for form, part in zip(forms, moves, strict=True)
    )
    rest = sum(form.rest for form in forms)
    assert isinstance(size, Tensor)
    assert isinstance(rest, Tensor)
    doubt = 4 * len(forms) * eps * (size + rest) + TINY
    found = AffineForm(
        torch.stack([form.centre for form in forms]).sum(0), torch.stack(moves).sum(0), rest
    )
    if any(form.length is None for form in forms):
        return _wider(found, doubt)
    lengths = torch.stack([form.length for form in forms if form.length is not None]).sum(0)
    return shorter(_wider(replace(found, length=(1 + 1e-9) * lengths), doubt))


def mapped(
    symbols: Symbols, form: AffineForm, linear: LinearMap, offset: Tensor | None = None
) -> AffineForm:
    """A linear map of a form, plus an offset: forms of the map's own shape."""
    if linear is UNCHANGED:
        return form if offset is None else _shifted(form, offset)
    centre = linear.apply(form.centre)
    if form.sphere is not None:
        return _of_sphere(form, linear, centre, offset)
    inner, outer = form.centre[0].numel(), centre[0].numel()
    gamma = ((linear.terms or max(inner, outer)) + 16) * torch.finfo(centre.dtype).eps
    size = symbols.size(form)
    if linear.rounding is None:
        rest = linear.absolute(form.rest * (1 + 2 * gamma) + gamma * size + TINY) + TINY
    else:
        rest = linear.absolute(form.rest) + linear.rounding(2 * gamma * (form.rest + size) + TINY)
        rest = rest + TINY
    moves = form.moves
    if len(moves):
        moves = linear.apply(moves.flatten(0, 1)).unflatten(0, moves.shape[:2])
    else:
        moves = moves.new_zeros(0, *centre.shape)
    found = AffineForm(centre, moves, rest)
    if form.length is not None:
        # What the length says, and what is rounded: a sum of n terms by n eps / 2 of their sizes.
        doubt = linear.absolute(0.51 * gamma * size + TINY) + TINY
        if linear.rounding is not None:
            doubt = doubt + linear.rounding(4 * gamma * (form.rest + size) + TINY)
        far = form.length.view(-1, *(1,) * (centre.ndim - 1)) * linear.widths(form.rest, rest)
        long = (1 + 1e-9) * form.length * linear.stretch(form.rest, rest) + length(doubt)
        found = replace(found, rest=torch.minimum(rest, far + doubt), length=long)
        found = shorter(found)
    return found if offset is None else _shifted(found, offset)


def _shifted(form: AffineForm, offset: Tensor) -> AffineForm:
    """The form plus fixed numbers."""
    centre = form.centre + offset
    eps = torch.finfo(centre.dtype).eps
    doubt = 4 * eps * (centre.abs() + offset.abs() + form.centre.abs()) + TINY
    return _wider(replace(form, centre=centre, sphere=None), doubt)


def _of_sphere(
    form: AffineForm, linear: LinearMap, centre: Tensor, offset: Tensor | None
) -> AffineForm:
    """A linear map of the input: a weighted sum over a ball reaches as far as its weights' norm."""
    assert form.sphere is not None
    eps = (form.centre[0].numel() + centre[0].numel() + 16) * torch.finfo(centre.dtype).eps
    if linear.squared is None:
        rest = linear.absolute(form.sphere)
    else:
        rest = linear.squared(form.sphere.square()).sqrt()
    doubt = eps * linear.absolute(form.centre.abs() + TINY) + TINY
    long = None
    if form.length is not None:
        inner = form.length * linear.stretch(form.rest, rest)
        long = (1 + 1e-9) * inner + length(rest * eps + doubt)
    rest = rest * (1 + eps) + doubt
    if offset is not None:
        centre = centre + offset
        doubt = 4 * eps * (centre.abs() + offset.abs())
        rest, long = rest + doubt, None if long is None else long + length(doubt)
    sphere = rest if linear.squared is not None and linear.squared is linear.apply else None
    moves = form.moves.new_zeros(0, *centre.shape)
    return AffineForm(centre, moves, rest, sphere=sphere, length=long)


def scaled(symbols: Symbols, form: AffineForm, factor: Tensor) -> AffineForm:
    """A form times fixed numbers."""
    gamma = 8 * torch.finfo(factor.dtype).eps
    doubt = factor.abs() * (gamma * (form.rest + symbols.size(form)) + TINY) + TINY
    rest = factor.abs() * form.rest + doubt
    reach = None if form.reach is None else form.reach * factor.abs()
    long = None
    if form.length is not None:
        most = factor.abs().expand_as(rest).flatten(1).amax(1)
        long = (1 + 1e-9) * form.length * most + length(doubt)
    return shorter(AffineForm(form.centre * factor, form.moves * factor, rest, reach, length=long))


def product(symbols: Symbols, one: AffineForm, other: AffineForm) -> AffineForm:
    """Number by number, the product of two forms of one shape.

    What is of second order goes into the rest, but for the middle of its range: for vectors a and b
    and u in the unit ball, (a'u)(b'u) lies between (a'b - |a||b|) / 2 and (a'b + |a||b|) / 2.
    """
    if one.is_constant or other.is_constant:
        fixed, moving = (one, other) if one.is_constant else (other, one)
        found = scaled(symbols, moving, fixed.centre)
        size = symbols.size(moving) + moving.rest
        rest = found.rest + (1 + 1e-9) * size * fixed.rest + TINY
        if found.length is None or fixed.length is None:
            return replace(found, rest=rest, length=None)
        long = found.length + (1 + 1e-9) * fixed.length * size.flatten(1).amax(1) + TINY
        return shorter(replace(found, rest=rest, length=long))
    count = max(len(one.moves), len(other.moves))
    ours, theirs = longer(one.moves, count), longer(other.moves, count)
    centre = one.centre * other.centre
    moves = torch.addcmul(one.centre * theirs, other.centre, ours)
    balls = [symbols.ball(one), symbols.ball(other)]
    errors = [torch.maximum(-down, up) for down, up in map(symbols.errors, (ours, theirs))]
    far = [error + form.rest for error, form in zip(errors, (one, other), strict=True)]
    both = balls[0] * balls[1]
    if symbols.norm == "l2":
        own = slice(symbols.inputs)
        shift, half = (ours[own] * theirs[own]).sum(0) / 2, both / 2
        centre = centre + shift
    else:
        half = both
    rest = (
        half
        + balls[0] * far[1]
        + balls[1] * far[0]
        + far[0] * far[1]
        + one.centre.abs() * other.rest
        + other.centre.abs() * one.rest
    )
    gamma = (count + 32) * torch.finfo(centre.dtype).eps
    size = (symbols.size(one) + one.rest) * (symbols.size(other) + other.rest)
    return AffineForm(centre, moves, rest + gamma * (size + rest) + TINY)


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """All inputs within a distance of each x: x + radius * scale * u, u in the unit ball or cube.

    `radius` is (B,), `scale` like one example, or like x if each has its own: a feature of scale 0
    cannot change.
    """

    x: Tensor
    radius: Tensor
    norm: Norm = "l2"
    scale: Tensor | None = None
    followed: bool = True
    """Whether the input's numbers are symbols; if not, only the range of each number is known."""

    @cached_property
    def reach(self) -> Tensor:
        """How far each number can move: like x."""
        one = torch.ones_like(self.x[0]) if self.scale is None else self.scale.to(self.x)
        return self.radius.to(self.x).view(-1, *(1,) * (self.x.ndim - 1)) * one

    @cached_property
    def free(self) -> Tensor:
        """The numbers of the flattened input that can change."""
        one = self.x[0].numel()
        if self.scale is None:
            return torch.arange(one, device=self.x.device)
        return (self.scale != 0).view(-1, one).any(0).nonzero().squeeze(-1)

    def symbols(self, most: int) -> Symbols:
        """The symbols of an analysis that begins here."""
        none = self.x.new_zeros(0, len(self.x))
        count = len(self.free) if self.followed else 0
        return Symbols(inputs=count, norm=self.norm, low=none, high=none.clone(), most=most)

    def form(self) -> AffineForm:
        """The input itself."""
        if not self.followed:
            none, sphere = self.x.new_zeros(0, *self.x.shape), self.reach
            ball = self.norm == "l2"
            long = None
            if ball and sphere[0].numel() > WIDE:
                long = (1 + 1e-9) * sphere.abs().flatten(1).amax(1)
            return AffineForm(self.x, none, sphere, sphere=sphere if ball else None, length=long)
        flat, reach = self.x.flatten(1), self.reach.flatten(1)
        moves = flat.new_zeros(len(self.free), *flat.shape)
        number = torch.arange(len(self.free), device=flat.device)
        moves[number, :, self.free] = reach.T[self.free]
        return AffineForm(self.x, moves.view(-1, *self.x.shape), torch.zeros_like(self.x))
