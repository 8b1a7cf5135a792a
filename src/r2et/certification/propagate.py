"""One way through a network within a region: affine forms travel there and back."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from r2et.certification.activations import Activation, slope_level, value_line
from r2et.certification.affine import (
    TINY,
    AffineForm,
    LinearMap,
    Region,
    Symbols,
    length,
    mapped,
    product,
    scaled,
    shorter,
    total,
)
from r2et.certification.pullback import (
    Open,
    Pulled,
    Relation,
    RelationStep,
    largest,
    opened,
    parts,
    pull,
)

WIDEST, LARGEST = 256, 4_000_000
"""Numbers of an input, and weights by them, up to which a linear map of it is written out."""
NARROW = 256
"""Numbers of a linear map of a larger input, up to which its symbols are those of these numbers."""
FEW, MOST_PULLED, PULLED = 64, 1024, 4_000_000
"""Up to how many numbers of a value are pulled back for their ranges alone, and for their kinks; of
large networks no more than these numbers times those of the largest value."""


class Hopeless(Exception):
    """So many kinks are within reach of all examples that nothing would be proved."""


@dataclass(frozen=True, eq=False)
class ActivationNode:
    """A signal on its way back meets the slope of an activation at the numbers of a form."""

    activation: Activation
    at: AffineForm
    switch: Open | None = None


Step = tuple[LinearMap | ActivationNode | AffineForm, tuple[int, ...]]
"""A part of the way from one value to the next, and the shape of what enters it."""


@dataclass(frozen=True, eq=False)
class Affine:
    """Numbers x W + c of the flattened input x: W (d, *S) and c (*S).

    `terms` (d, *S) and `offset_terms` (*S) bound the sums of absolute terms of which W and c were
    computed; by no more than `rounding` times these are they off.
    """

    weights: Tensor
    terms: Tensor
    offset: Tensor
    offset_terms: Tensor
    rounding: float = 0.0

    def through(self, linear: LinearMap) -> "Affine":
        """What a linear map makes of it."""
        weights = linear.apply(self.weights)
        most = max(self.weights[0].numel(), weights[0].numel())
        return Affine(
            weights,
            linear.absolute(self.terms),
            linear.apply(self.offset[None])[0],
            linear.absolute(self.offset_terms[None])[0],
            self.rounding + 2 * (most + 16) * torch.finfo(weights.dtype).eps,
        )

    def plus(self, other: "Affine") -> "Affine":
        """The sum of two."""
        return Affine(
            self.weights + other.weights,
            self.terms + other.terms,
            self.offset + other.offset,
            self.offset_terms + other.offset_terms,
            max(self.rounding, other.rounding) + 4 * torch.finfo(self.weights.dtype).eps,
        )

    def shifted(self, offset: Tensor) -> "Affine":
        """Plus an offset."""
        return replace(
            self, offset=self.offset + offset, offset_terms=self.offset_terms + offset.abs()
        )

    def map(self, shape: tuple[int, ...]) -> LinearMap:
        """X W for inputs x of a shape, for which signals come back as by W'."""
        d, outer = len(self.weights), self.weights.shape[1:]
        eps = torch.finfo(self.weights.dtype).eps
        # What `mapped` allows for the rounding of sums is made to cover that of the weights too.
        more = 1 + self.rounding / ((max(d, outer.numel()) + 16) * eps)

        def there(matrix: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda t: (t.reshape(len(t), -1) @ matrix).view(len(t), *outer)

        def back(matrix: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda t: (t.reshape(len(t), -1) @ matrix.mT).view(len(t), *shape)

        flat, size, terms = (
            each.reshape(d, -1) for each in (self.weights, self.weights.abs(), more * self.terms)
        )
        pulled = LinearMap(apply=back(flat), absolute=back(size), rounding=back(terms))
        return LinearMap(apply=there(flat), absolute=there(size), back=pulled)

    def doubt(self, region: Region) -> Tensor:
        """By how much numbers may be off by rounding: (B, *S)."""
        size = (region.x.abs() + region.reach).flatten(1) @ self.terms.reshape(len(self.terms), -1)
        size = size + self.offset_terms.flatten()
        more = self.rounding + 2 * (len(self.terms) + 16) * torch.finfo(size.dtype).eps
        return (more * size + (1 + size) * TINY).view(len(size), *self.terms.shape[1:])

    def form(self, region: Region) -> AffineForm:
        """The numbers as they move with the input."""
        weights = self.weights.reshape(len(self.weights), -1)
        x, shape = region.x.flatten(1), (len(region.x), *self.weights.shape[1:])
        reach = region.reach.flatten(1)  # (B, d)
        centre = x @ weights + self.offset.flatten()
        rest = self.doubt(region).reshape(len(x), -1)
        if region.followed:
            moves = reach.T[region.free][:, :, None] * weights[region.free][:, None]
            return AffineForm(centre.view(shape), moves.view(-1, *shape), rest.view(shape))
        if region.norm == "l2":
            rest = rest + (reach.square() @ weights.square()).sqrt()
        else:
            rest = rest + reach @ weights.abs()
        return AffineForm(centre.view(shape), x.new_zeros(0, *shape), rest.view(shape))


@dataclass(frozen=True, eq=False)
class Chain:
    """Linear maps of the input, one after another, and the form of what they make of x alone.

    Each map comes with the shape of what enters it.
    """

    steps: tuple[tuple[LinearMap, tuple[int, ...]], ...]
    plain: AffineForm

    def rows(self, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the numbers (h, d) by an input that moves by `reach` (d,), and their doubt.

        The doubt (h,) is by how much a number may be off by rounding for moves in the unit ball.
        """
        shape = self.plain.centre.shape[1:]
        rows = torch.eye(largest(shape), dtype=reach.dtype, device=reach.device).view(-1, *shape)
        size, most = rows, largest(shape)
        for linear, inner in reversed(self.steps):
            back = linear.transposed(inner)
            rows, size, most = back.apply(rows), back.absolute(size), max(most, largest(inner))
        eps = 2 * len(self.steps) * (most + 16) * torch.finfo(reach.dtype).eps
        return rows.flatten(1) * reach, eps * torch.linalg.vector_norm(
            size.flatten(1) * reach, dim=1
        )


@dataclass(frozen=True, eq=False)
class Value:
    """A number of the network that depends on the input: its place on the tape and its form.

    `shape` is that of one example's numbers. `folded`: the program sees the first dimension of
    these and that of the rows as one. `affine` is known of what is linear in a small input. `fixed`
    numbers do not depend on the input. `chain` is known of what maps, one after another, make of a
    large one. `normalised` makes a convolution with its channels times a factor, plus a shift.
    """

    place: int
    shape: tuple[int, ...]
    made: Callable[[], AffineForm]
    folded: bool = False
    affine: Affine | None = None
    fixed: bool = False
    chain: "Chain | None" = None
    normalised: "Callable[[Tensor, Tensor], Value] | None" = None

    @cached_property
    def form(self) -> AffineForm:
        """What the numbers can be, computed where it is asked for."""
        return self.made()

    @property
    def dims(self) -> int:
        """How many dimensions the program sees, that of the rows among them."""
        return 1 + len(self.shape) - self.folded


@dataclass(eq=False)
class BoundPropagator:
    """One way through a network within a region: forms forwards, a tape to go back by."""

    region: Region
    symbols: Symbols
    tape: list[tuple[int, list[tuple[int, Sequence[Step]]]]] = field(default_factory=list)
    relations: dict[int, Relation] | None = None
    """How values are made of others, for numbers to be pulled back to the input; None: none are."""
    narrow: int = 0
    """Of how many numbers, all that is used of a larger input, its symbols are; or 0."""
    seen: bool = False
    """Whether the form of the input was asked for."""
    lost: Tensor | None = None
    """Examples (B,) with so many kinks within reach that nothing would be proved."""
    products: bool = False
    """Whether values were multiplied with one another."""

    @classmethod
    def within(cls, region: Region, most: int, pulled: bool = False) -> "BoundPropagator":
        """A passage that begins in a region; `pulled`: numbers can be pulled back to the input."""
        return cls(region, region.symbols(most), relations={} if pulled else None)

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return len(self.region.x)

    def input(self) -> Value:
        """The input."""
        x, d = self.region.x, self.region.x[0].numel()
        affine = None
        if d <= WIDEST:
            own = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
            nothing = torch.zeros_like(x[0])
            affine = Affine(own, own, nothing, nothing)
        chain = None
        if affine is None and self.relations is None:
            at_x = replace(self.region, radius=torch.zeros_like(self.region.radius), followed=False)
            chain = Chain((), replace(at_x.form(), sphere=None))
        return Value(0, tuple(x.shape[1:]), self._input_form, affine=affine, chain=chain)

    def _input_form(self) -> AffineForm:
        """The input itself, whose symbols may be those of a linear map of it alone."""
        if self.narrow and self.region.followed:
            return replace(self.region, followed=False).form()
        self.seen = True
        return self.region.form()

    @property
    def activation_nodes(self) -> list[ActivationNode]:
        """The activations on the way."""
        steps = [step for _, edges in self.tape for _, steps in edges for step in steps]
        return [part for part, _ in steps if isinstance(part, ActivationNode)]

    def constant(self, numbers: Tensor) -> Value:
        """Numbers that do not depend on the input, for each example: (*S)."""
        found = self.put(AffineForm.constant(numbers.expand(self.rows, *numbers.shape)))
        found = replace(found, fixed=True)
        d = self.region.x[0].numel()
        if d > WIDEST or d * numbers.numel() > LARGEST:
            return found
        none = numbers.new_zeros(d, *numbers.shape)
        return replace(found, affine=Affine(none, none, numbers, numbers.abs()))

    def put(
        self,
        form: AffineForm,
        *sources: tuple[Value, Sequence[Step]],
        relation: Relation | None = None,
    ) -> Value:
        """A new value, and how it came from others; deviations too, unless it does not move."""
        place = len(self.tape) + 1
        self.tape.append((place, [(each.place, steps) for each, steps in sources]))
        if self.relations is not None:
            self.relations[place] = relation or Relation([], -form.rest, form.rest)
        return Value(place, tuple(form.centre.shape[1:]), lambda: form)

    def linear(self, value: Value, linear: LinearMap, offset: Tensor | None = None) -> Value:
        """A linear map of a value, plus an offset."""
        return self.sum([(value, linear)], offset)

    def sum(self, values: Sequence[tuple[Value, LinearMap]], offset: Tensor | None = None) -> Value:
        """The sum of linear maps of several values, plus an offset."""
        affine = _sum(values, offset)
        if affine is not None:
            return self._of_input(affine)
        if len(values) == 1 and values[0][0].chain is not None:
            return self._of_chain(*values[0], offset)
        # The offset goes with the first, so that no form is made for it alone.
        forms = [
            mapped(self.symbols, value.form, linear, None if number else offset)
            for number, (value, linear) in enumerate(values)
        ]
        found = total(forms)
        edges = [(value, [(by, value.shape)]) for value, by in values]
        return self.put(found, *edges, relation=self._linear_relation(found, values, offset))

    def _linear_relation(
        self, found: AffineForm, values: Sequence[tuple[Value, LinearMap]], offset: Tensor | None
    ) -> Relation | None:
        """That of a sum of linear maps: no error but rounding."""
        if self.relations is None:
            return None
        # Of the sums here, of those on the way back, and of the sum of several.
        doubt = (20 + 4 * len(values)) * (found.centre.abs() + found.rest)
        if offset is not None:
            doubt = doubt + 20 * offset.abs()
        for value, by in values:
            most = max(largest(found.centre.shape[1:]), largest(value.shape))
            terms = max(by.terms or most, by.transposed(value.shape).terms or most)
            size = value.form.centre.abs() + value.form.rest
            doubt = doubt + 4 * (terms + 16) * by.absolute(size)
        doubt = torch.finfo(doubt.dtype).eps * doubt + TINY
        edges = [(v.place, [backwards(by, v.shape)]) for v, by in values]
        return Relation(edges, -doubt, doubt)

    def _of_input(self, affine: Affine) -> Value:
        """A value that is linear in the input.

        On its way back a signal takes one map instead of all on the way: what cancels in it need
        not be bounded.
        """
        place, shape = len(self.tape) + 1, tuple(self.region.x.shape[1:])
        self.tape.append((place, [(0, [(affine.map(shape), shape)])]))
        outer = tuple(affine.weights.shape[1:])
        if self.relations is not None:
            doubt = 2 * affine.doubt(self.region)
            self.relations[place] = Relation(
                [(0, [backwards(affine.map(shape), shape)])], -doubt, doubt
            )
        return Value(place, outer, lambda: affine.form(self.region), affine=affine)

    def _of_chain(self, value: Value, linear: LinearMap, offset: Tensor | None) -> Value:
        """A linear map of what is a linear map of the input, whose form is made if asked for.

        Where it has few numbers, and nothing else of the input has been looked at, these numbers
        are all that the network knows of it: symbols of their directions take the place of the
        input's own.
        """
        assert value.chain is not None
        chain = Chain(
            (*value.chain.steps, (linear, value.shape)),
            mapped(Symbols.none(value.chain.plain), value.chain.plain, linear, offset),
        )
        shape = tuple(chain.plain.centre.shape[1:])
        place = len(self.tape) + 1
        self.tape.append((place, [(value.place, [(linear, value.shape)])]))
        made = Value(place, shape, lambda: mapped(self.symbols, value.form, linear, offset))
        region, count = self.region, largest(shape)
        fits = count <= min(NARROW, region.x[0].numel() // 2) and region.norm == "l2"
        common = region.scale is None or region.scale.ndim < region.x.ndim
        if not (fits and common) or self.narrow or self.seen or len(self.symbols.low):
            return replace(made, chain=chain)
        self.narrow = count
        if not region.followed:
            return made
        self.symbols.inputs = count
        return replace(made, made=lambda: self._narrow_form(chain))

    def _narrow_form(self, chain: Chain) -> AffineForm:
        """Numbers in symbols of their own directions: where weights are R = L Q', Q'u is in a ball.

        Q is orthonormal but for rounding, which stretches the ball, and R is L Q' but for a little,
        which goes into the rest.
        """
        plain, region = chain.plain, self.region
        one = torch.ones_like(region.x[0]) if region.scale is None else region.scale.to(region.x)
        rows, doubt = chain.rows(one.flatten())
        h, d = rows.shape
        directions, upper = torch.linalg.qr(rows.mT)
        weights = upper.mT  # (h, h)
        eps = torch.finfo(rows.dtype).eps
        off = directions.mT @ directions - torch.eye(h, dtype=rows.dtype, device=rows.device)
        stretch = 1 + 1e-9 * float(off.norm()) + float(off.norm()) + 4 * (d + h + 16) * h * eps
        lost = torch.linalg.vector_norm(rows - weights @ directions.mT, dim=1)
        lost = lost + 8 * (h + d + 16) * eps * math.sqrt(h) * weights.norm(dim=1)
        shape = (-1, *(1,) * (plain.centre.ndim - 1))
        radius = region.radius.to(region.x).view(shape)
        rest = plain.rest + (1 + 1e-9) * radius * (lost + doubt).view(plain.centre.shape[1:])
        moves = (stretch * weights).mT.reshape(h, 1, *plain.centre.shape[1:]) * radius
        return AffineForm(plain.centre, moves, rest + TINY)

    def times(self, one: Value, other: Value) -> Value:
        """The product of two values of one shape, number by number."""
        self.products = True
        if one.form.centre.shape != other.form.centre.shape:
            raise ValueError(
                "a product of two parts of a network can be bounded for equal shapes only, got "
                f"{tuple(one.form.centre.shape)} and {tuple(other.form.centre.shape)}."
            )
        found = self.symbols.promoted(product(self.symbols, one.form, other.form))
        edges = [(one, [(other.form, one.shape)]), (other, [(one.form, one.shape)])]
        return self.put(found, *edges, relation=self._product_relation(one, other))

    def _product_relation(self, one: Value, other: Value) -> Relation | None:
        """That of a product: of second order is the error."""
        if self.relations is None:
            return None
        ours, theirs = one.form, other.form
        size = (ours.centre.abs() + ours.rest) * (theirs.centre.abs() + theirs.rest)
        error = (1 + 1e-9) * ours.rest * theirs.rest
        error = error + 64 * torch.finfo(size.dtype).eps * size + TINY
        edges: list[tuple[int, Sequence[RelationStep]]] = [
            (one.place, [theirs.centre]),
            (other.place, [ours.centre]),
        ]
        return Relation(edges, -error, error)

    def pulled(self, place: int, weights: Tensor, rows: Tensor) -> Pulled:
        """Combinations (Q, *S) of a value's deviations, of the example `rows` (Q,) each."""
        assert self.relations is not None
        reach = self.region.reach.flatten(1)
        return pull(self.relations, reach, place, weights, rows)

    def _ranges(self, value: Value, low: Tensor, high: Tensor, which: Tensor) -> Pulled:
        """Numbers (Q, 2) of a value, each the example and the flat place, pulled back one by one.

        What is known of their ranges gets better in place.
        """
        centre, units = value.form.centre.flatten(1), largest(value.shape)
        found = []
        for part in parts(len(which), self.widest):
            rows, unit = which[part].unbind(1)
            weights = centre.new_zeros(len(rows), units)
            weights[torch.arange(len(rows), device=rows.device), unit] = 1.0
            found.append(self.pulled(value.place, weights.view(-1, *value.shape), rows))
            down, up = found[-1].range(self.region.norm)
            at = centre[rows, unit]
            slack = 4 * torch.finfo(at.dtype).eps * (at.abs() + torch.maximum(-down, up))
            low[rows, unit] = torch.maximum(low[rows, unit], at + down - slack)
            high[rows, unit] = torch.minimum(high[rows, unit], at + up + slack)
        pieces = [(each.slopes, each.low, each.high) for each in found]
        return Pulled(*(torch.cat(each) for each in zip(*pieces, strict=True)))

    @property
    def widest(self) -> int:
        """How many numbers the largest value on the way has."""
        assert self.relations is not None
        sizes = (each.low[0].numel() for each in self.relations.values())
        return max([self.region.x[0].numel(), *sizes])

    def range(self, value: Value) -> tuple[Tensor, Tensor]:
        """Least and greatest value of each number, by pulling them back if they are few."""
        low, high = self.symbols.range(value.form)
        if self.relations is None or largest(value.shape) > FEW:
            return low, high
        low, high = low.flatten(1).clone(), high.flatten(1).clone()
        self._ranges(value, low, high, torch.ones_like(low).nonzero())
        return low.view(-1, *value.shape), high.view(-1, *value.shape)

    def _switch(self, value: Value, activation: Activation) -> Value:
        """An activation of each number, each of which is pulled back where its kink is in reach."""
        form, (kink,) = value.form, activation.kinks
        low, high = (each.flatten(1).clone() for each in self.symbols.range(form))
        reached = (low <= kink) & (high >= kink)
        # Where very many are open nothing will be proved: the example is not worth the time.
        lost = reached.sum(1) > max(FEW, min(MOST_PULLED, PULLED // self.widest))
        reached &= ~lost[:, None]
        self.lost = lost if self.lost is None else self.lost | lost
        if bool(self.lost.all()):
            raise Hopeless
        which = reached.nonzero()
        open_ = None
        if len(which):
            pulled = self._ranges(value, low, high, which)
            open_ = opened(which, pulled, form.centre.flatten(1), low, high, kink)
        low, high = low.view_as(form.centre), high.view_as(form.centre)
        line = value_line(activation, form.centre, low, high)
        ends = torch.full_like(low, kink).clamp(low, high)
        reach = (activation.value(torch.stack([low, high, ends])) - line.at).abs().amax(0)
        eps = 16 * torch.finfo(reach.dtype).eps
        rest = reach + eps * (line.at.abs() + reach) + TINY
        long = None
        if form.length is not None:
            ends = form.centre.new_tensor([kink - 1.0, kink + 1.0])
            steep = float(activation.derivative(ends).abs().max())
            doubt = eps * (line.at.abs() + steep * form.centre.abs() + reach) + TINY
            long = (1 + 1e-9) * steep * form.length + length(doubt)
        moves = form.moves.new_zeros(0, *line.at.shape)
        found = shorter(AffineForm(line.at, moves, rest, length=long))
        doubt = eps * (line.rise.abs() * (form.centre.abs() + form.rest) + line.at.abs()) + TINY
        edges = [(value.place, [line.rise])]
        relation = Relation(edges, line.low - doubt, line.high + doubt)
        node = ActivationNode(activation, form, Open(low, high, open_))
        made = self.put(found, (value, [(node, value.shape)]), relation=relation)
        return replace(made, folded=value.folded)

    def _steep(self, value: Value, activation: Activation, low: Tensor, high: Tensor) -> Value:
        """An activation by how steep it can be: a vector of numbers grows by no more than that."""
        form = value.form
        level = slope_level(activation, form.centre, low, high)
        steep = torch.maximum((level.at + level.low).abs(), (level.at + level.high).abs())
        beyond = activation.beyond(low)
        at = torch.where(beyond, form.centre, activation.value(form.centre))
        off = torch.where(beyond, 0.0, 2 * activation.off(high)[0])
        eps = 16 * torch.finfo(at.dtype).eps
        doubt = eps * (at.abs() + steep * form.centre.abs()) + off + TINY
        rest = steep * form.rest * (1 + eps) + doubt
        assert form.length is not None
        long = (1 + 1e-9) * form.length * steep.flatten(1).amax(1) + length(doubt)
        found = shorter(AffineForm(at, form.moves, rest, length=long))
        node = ActivationNode(activation, form)
        return replace(self.put(found, (value, [(node, value.shape)])), folded=value.folded)

    def activate(self, value: Value, activation: Activation) -> Value:
        """An activation of each number."""
        form = value.form
        if self.relations is not None and len(activation.kinks) == 1:
            return self._switch(value, activation)
        low, high = self.symbols.range(form)
        if form.length is not None and self.relations is None:
            return self._steep(value, activation, low, high)
        line = value_line(activation, form.centre, low, high)
        bent = scaled(self.symbols, form, line.rise)
        bent = replace(bent, centre=line.at)
        found = self.symbols.with_errors(bent, line.low, line.high)
        node = ActivationNode(activation, form)
        relation = None
        if self.relations is not None:
            eps = 16 * torch.finfo(low.dtype).eps
            size = line.rise.abs() * (form.centre.abs() + form.rest) + line.at.abs()
            steps = [line.rise]
            doubt, shift = eps * size + TINY, found.centre - bent.centre
            low, high = line.low - shift - doubt, line.high - shift + doubt
            relation = Relation([(value.place, steps)], low, high)
        made = self.put(found, (value, [(node, value.shape)]), relation=relation)
        return replace(made, folded=value.folded)


def backwards(linear: LinearMap, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """What carries weights of a map's numbers back to those of `shape` that entered it."""
    return lambda weights: linear.transposed(shape).apply(weights)


def _sum(values: Sequence[tuple[Value, LinearMap]], offset: Tensor | None) -> Affine | None:
    """A sum of linear maps as one of the input, if it is and the map is not too large."""
    found = None
    for value, linear in values:
        if value.affine is None:
            return None
        part = value.affine.through(linear)
        if part.weights.numel() > LARGEST:
            return None
        found = part if found is None else found.plus(part)
    return found if offset is None or found is None else found.shifted(offset)
