"""One way through a network within a region: affine forms travel there and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from r2et.certification.activations import Activation, derivative_line, third_range, value_line
from r2et.certification.affine import (
    TINY,
    AffineForm,
    LinearMap,
    QuadraticError,
    Region,
    Symbols,
    mapped,
    product,
    scaled,
    total,
)

WIDEST, LARGEST = 256, 4_000_000
"""Numbers of an input, and weights by them, up to which a linear map of it is written out."""


@dataclass(frozen=True, eq=False)
class ActivationNode:
    """A signal on its way back meets the slope of an activation at the numbers of a form."""

    activation: Activation
    at: AffineForm


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

    def form(self, region: Region) -> AffineForm:
        """The numbers as they move with the input."""
        weights, terms = (each.reshape(len(each), -1) for each in (self.weights, self.terms))
        x, shape = region.x.flatten(1), (len(region.x), *self.weights.shape[1:])
        reach = region.reach.flatten(1)  # (B, d)
        centre = x @ weights + self.offset.flatten()
        size = (x.abs() + reach) @ terms + self.offset_terms.flatten()
        eps = torch.finfo(size.dtype).eps
        rest = (self.rounding + 2 * (len(weights) + 16) * eps) * size + (1 + size) * TINY
        if region.followed:
            moves = reach.T[region.free][:, :, None] * weights[region.free][:, None]
            return AffineForm(centre.view(shape), moves.view(-1, *shape), rest.view(shape))
        if region.norm == "l2":
            rest = rest + (reach.square() @ weights.square()).sqrt()
        else:
            rest = rest + reach @ weights.abs()
        return AffineForm(centre.view(shape), x.new_zeros(0, *shape), rest.view(shape))


@dataclass(frozen=True, eq=False)
class Value:
    """A number of the network that depends on the input: its place on the tape and its form.

    `shape` is that of one example's numbers. `folded`: the program sees the first dimension of
    these and that of the rows as one. `affine` is known of what is linear in a small input. `fixed`
    numbers do not depend on the input.
    """

    place: int
    shape: tuple[int, ...]
    made: Callable[[], AffineForm]
    folded: bool = False
    affine: Affine | None = None
    fixed: bool = False

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

    @classmethod
    def within(cls, region: Region, most: int) -> "BoundPropagator":
        """A passage that begins in a region."""
        return cls(region, region.symbols(most))

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
        return Value(0, tuple(x.shape[1:]), self.region.form, affine=affine)

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

    def put(self, form: AffineForm, *sources: tuple[Value, Sequence[Step]]) -> Value:
        """A new value, and how it came from others."""
        place = len(self.tape) + 1
        self.tape.append((place, [(each.place, steps) for each, steps in sources]))
        return Value(place, tuple(form.centre.shape[1:]), lambda: form)

    def linear(self, value: Value, linear: LinearMap, offset: Tensor | None = None) -> Value:
        """A linear map of a value, plus an offset."""
        return self.sum([(value, linear)], offset)

    def sum(self, values: Sequence[tuple[Value, LinearMap]], offset: Tensor | None = None) -> Value:
        """The sum of linear maps of several values, plus an offset."""
        affine = _sum(values, offset)
        if affine is not None:
            return self._of_input(affine)
        # The offset goes with the first, so that no form is made for it alone.
        forms = [
            mapped(self.symbols, value.form, linear, None if number else offset)
            for number, (value, linear) in enumerate(values)
        ]
        return self.put(total(forms), *((value, [(by, value.shape)]) for value, by in values))

    def _of_input(self, affine: Affine) -> Value:
        """A value that is linear in the input.

        On its way back a signal takes one map instead of all on the way: what cancels in it need
        not be bounded.
        """
        place, shape = len(self.tape) + 1, tuple(self.region.x.shape[1:])
        self.tape.append((place, [(0, [(affine.map(shape), shape)])]))
        outer = tuple(affine.weights.shape[1:])
        return Value(place, outer, lambda: affine.form(self.region), affine=affine)

    def times(self, one: Value, other: Value) -> Value:
        """The product of two values of one shape, number by number."""
        if one.form.centre.shape != other.form.centre.shape:
            raise ValueError(
                "a product of two parts of a network can be bounded for equal shapes only, got "
                f"{tuple(one.form.centre.shape)} and {tuple(other.form.centre.shape)}."
            )
        found = self._promoted(product(self.symbols, one.form, other.form), self.symbols)
        return self.put(found, (one, [(other.form, one.shape)]), (other, [(one.form, one.shape)]))

    def activate(self, value: Value, activation: Activation) -> Value:
        """An activation of each number."""
        form = value.form
        low, high = self.symbols.range(form)
        line = value_line(activation, form.centre, low, high)
        bent = scaled(self.symbols, form, line.rise)
        bent = replace(bent, centre=line.at)
        found = self.symbols.with_errors(bent, line.low, line.high)
        node = ActivationNode(activation, form)
        return replace(self.put(found, (value, [(node, value.shape)])), folded=value.folded)

    def back(self, signal: AffineForm, last: Value, relaxation: str) -> tuple[AffineForm, Symbols]:
        """The slope of signal'output by the input, as a form, and the symbols it is in.

        `relaxation` is how the derivatives of activations are bounded.
        """
        symbols = self.symbols.copy()
        signals: dict[int, list[AffineForm]] = {last.place: [signal]}
        shape = self.region.x.shape[1:]
        for place, edges in reversed(self.tape):
            if place not in signals:
                continue
            here = total(signals.pop(place))
            for source, steps in edges:
                found = here
                for step in reversed(steps):
                    found = self._pulled(found, step, symbols, relaxation)
                signals.setdefault(source, []).append(found)
        if 0 not in signals:
            return AffineForm.constant(self.region.x.new_zeros(len(self.region.x), *shape)), symbols
        return total(signals[0]), symbols

    def _pulled(
        self, signal: AffineForm, step: Step, symbols: Symbols, relaxation: str
    ) -> AffineForm:
        part, shape = step
        if isinstance(part, LinearMap):
            return mapped(symbols, signal, part.transposed(shape))
        if isinstance(part, AffineForm):
            return self._promoted(product(symbols, signal, part), symbols)
        low, high = symbols.range(part.at)
        line = derivative_line(part.activation, part.at.centre, low, high, relaxation)
        derivative = scaled(symbols, part.at, line.rise)
        derivative = replace(derivative, centre=line.at)
        quadratic = None
        if relaxation == "tangent" and self._straight(part.at) and not part.activation.kinks:
            least, most = third_range(part.activation, low, high)
            # The rest of z moves its error by no more than this beyond what its moves do.
            reach = (high - low) + part.at.rest
            slack = torch.maximum(-least, most).clamp_min(0) * reach * part.at.rest
            slack = slack + part.activation.off(high)[1]
            quadratic = QuadraticError(
                start=0,
                moves=part.at.moves.flatten(2),
                low=least.flatten(1).T,
                high=most.flatten(1).T,
                slack=slack.flatten(1).T,
            )
        derivative = symbols.with_errors(derivative, line.low, line.high, quadratic)
        return self._promoted(product(symbols, signal, derivative), symbols)

    def _straight(self, form: AffineForm) -> bool:
        """Whether numbers move with the input's symbols alone, but for rounding."""
        if not len(form.moves) == self.symbols.inputs > 0 or self.region.norm != "l2":
            return False
        return bool((form.rest <= 1e-9 * (1 + form.centre.abs())).all())

    def _promoted(self, form: AffineForm, symbols: Symbols) -> AffineForm:
        """The form with its rest as symbols where there is room for them."""
        if (
            not symbols.inputs
            or form.is_constant
            or not (form.rest > 1e-9 * (form.centre.abs() + 1e-30)).any()
        ):
            return form
        bare = AffineForm(form.centre, form.moves, torch.zeros_like(form.rest))
        return symbols.with_errors(bare, -form.rest, form.rest)


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
