"""The way back through a network: the slope of its output as a form, bound by bound."""

from dataclasses import replace

import torch

from r2et.certification.activations import derivative_line, slope_level, third_range
from r2et.certification.affine import (
    TINY,
    AffineForm,
    LinearMap,
    QuadraticError,
    Symbols,
    length,
    mapped,
    product,
    scaled,
    shorter,
    total,
)
from r2et.certification.propagate import BoundPropagator, Step, Value
from r2et.certification.switches import switched


def back(
    propagator: BoundPropagator, signal: AffineForm, last: Value, relaxation: str
) -> tuple[AffineForm, Symbols]:
    """The slope of signal'output by the input, as a form, and the symbols it is in.

    `relaxation` is how the derivatives of activations are bounded.
    """
    if propagator.relations is None and last.form.length is not None:
        signal = replace(signal, length=length(signal.rest))
    symbols = propagator.symbols.copy(packed=propagator.relations is not None)
    signals: dict[int, list[AffineForm]] = {last.place: [signal]}
    for place, edges in reversed(propagator.tape):
        if place not in signals:
            continue
        here = total(signals.pop(place))
        for source, steps in edges:
            found = here
            for step in reversed(steps):
                found = _pulled(found, step, symbols, relaxation)
            signals.setdefault(source, []).append(found)
    if 0 not in signals:
        return AffineForm.constant(torch.zeros_like(propagator.region.x)), symbols
    return total(signals[0]), symbols


def _pulled(signal: AffineForm, step: Step, symbols: Symbols, relaxation: str) -> AffineForm:
    part, shape = step
    if isinstance(part, LinearMap):
        return mapped(symbols, signal, part.transposed(shape))
    if isinstance(part, AffineForm):
        return symbols.promoted(product(symbols, signal, part))
    if part.switch is not None:
        return switched(symbols, signal, part.activation, part.switch)
    low, high = symbols.range(part.at)
    if signal.length is not None and part.at.length is not None:
        line = slope_level(part.activation, part.at.centre, low, high)
        # By how much it turns: where it has no kinks, no faster than its second derivative says.
        rest = torch.maximum(-line.low, line.high)
        long = length(rest)
        if not part.activation.kinks:
            doubt = 16 * torch.finfo(rest.dtype).eps * line.at.abs()
            off = 2 * part.activation.off(high)[1]
            doubt = doubt + torch.where(part.activation.beyond(low), 0.0, off) + TINY
            long = torch.minimum(
                long, part.activation.limits[0] * part.at.length * (1 + 1e-9) + length(doubt)
            )
        turned = AffineForm(line.at, part.at.moves, rest, length=long)
        return product(symbols, signal, shorter(turned))
    line = derivative_line(part.activation, part.at.centre, low, high, relaxation)
    derivative = scaled(symbols, part.at, line.rise)
    derivative = replace(derivative, centre=line.at)
    quadratic = None
    if relaxation == "tangent" and _straight(part.at, symbols) and not part.activation.kinks:
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
    return symbols.promoted(product(symbols, signal, derivative))


def _straight(form: AffineForm, symbols: Symbols) -> bool:
    """Whether numbers move with the input's symbols alone, but for rounding."""
    if not len(form.moves) == symbols.inputs > 0 or symbols.norm != "l2":
        return False
    return bool((form.rest <= 1e-9 * (1 + form.centre.abs())).all())
