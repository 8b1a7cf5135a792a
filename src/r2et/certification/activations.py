"""Activations with all that a sound bound needs to know of them: derivatives, turns and limits."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[[Tensor], Tensor]

POINTS = 16
WIDE = 1e3


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A function of one number and its first three derivatives.

    `turns` are all places where the first derivative has an extremum. `limits` are upper bounds of
    the absolute second, third and fourth derivative on the whole line. A function of straight
    pieces has its `kinks` instead, and no curvature anywhere else. `straight` = (place, by how much
    the value, by how much the slope): beyond this place the function that runs is replaced by a
    line, and is off what is written here by no more than that.
    """

    value: Function
    derivative: Function
    curvature: Function
    third: Function
    turns: tuple[float, ...] = ()
    limits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    kinks: tuple[float, ...] = ()
    straight: tuple[float, float, float] = (math.inf, 0.0, 0.0)

    def off(self, high: Tensor) -> tuple[Tensor, Tensor]:
        """By how much value and slope may be off for numbers up to `high`: like high each."""
        place, of_value, of_derivative = self.straight
        beyond = high >= place - 1e-9 * min(abs(place), 1e300)
        value, derivative = (torch.where(beyond, by, 0.0) for by in (of_value, of_derivative))
        return value.to(high), derivative.to(high)

    def beyond(self, low: Tensor) -> Tensor:
        """Where numbers from `low` upwards are surely beyond the place: the line that runs is z."""
        place = self.straight[0]
        return low > place + 1e-9 * min(abs(place), 1e300)


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A function on an interval: at + rise (z - z0) + an error between low and high, like z."""

    at: Tensor
    rise: Tensor
    low: Tensor
    high: Tensor


def value_line(activation: Activation, z: Tensor, low: Tensor, high: Tensor) -> Line:
    """The activation around z for numbers between `low` and `high`: its chord and what is left."""
    rise = _chord(activation.value, low, high, activation.derivative(z))
    line = _line(activation.value, activation.limits[0], activation.kinks, rise, z, low, high)
    return _widened(line, activation.off(high)[0])


def _chord(function: Function, low: Tensor, high: Tensor, tangent: Tensor) -> Tensor:
    """How a function rises from `low` to `high`; as its tangent does where the two are one."""
    wide = high - low
    rise = (function(high) - function(low)) / torch.where(wide > 0, wide, 1.0)
    return torch.where(wide > 0, rise, tangent)


def _widened(line: Line, by: Tensor) -> Line:
    """The line with more room for errors."""
    return replace(line, low=line.low - by, high=line.high + by)


def derivative_line(
    activation: Activation, z: Tensor, low: Tensor, high: Tensor, relaxation: str
) -> Line:
    """The derivative of the activation around z for numbers between `low` and `high`.

    "tangent": along its slope at z; "secant": along its chord; "flat": level, which is best for
    intervals that are wide, and all there is for functions of straight pieces.
    """
    return _widened(_derivative_line(activation, z, low, high, relaxation), activation.off(high)[1])


def _derivative_line(
    activation: Activation, z: Tensor, low: Tensor, high: Tensor, relaxation: str
) -> Line:
    if relaxation == "flat" or activation.kinks:
        return _level(activation, z, low, high)
    wide = high - low
    rise = activation.curvature(z)
    if relaxation == "secant":
        rise = _chord(activation.derivative, low, high, rise)
    line = _line(activation.derivative, activation.limits[1], (), rise, z, low, high)
    level = _level(activation, z, low, high)
    # Between few points far apart anything may happen: there only what is known of the turns helps.
    far = wide > WIDE
    return Line(
        at=line.at,
        rise=torch.where(far, 0.0, line.rise),
        low=torch.where(far, level.low, line.low),
        high=torch.where(far, level.high, line.high),
    )


def slope_level(activation: Activation, z: Tensor, low: Tensor, high: Tensor) -> Line:
    """The derivative between `low` and `high` as one level: what runs, exact where it is a line."""
    level = _level(activation, z, low, high)
    level = _widened(level, activation.off(high)[1])
    beyond = activation.beyond(low)
    return Line(
        at=torch.where(beyond, 1.0, level.at),
        rise=level.rise,
        low=torch.where(beyond, 0.0, level.low),
        high=torch.where(beyond, 0.0, level.high),
    )


def third_range(activation: Activation, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest third derivative between `low` and `high`."""
    most, steepest = activation.limits[1], activation.limits[2]
    values = activation.third(_places(low, high))
    # Between two neighbouring points a function moves by no more than half their distance allows.
    slack = steepest * (high - low) / (2 * POINTS)
    return (values.amin(0) - slack).clamp_min(-most), (values.amax(0) + slack).clamp_max(most)


def _places(low: Tensor, high: Tensor) -> Tensor:
    """Equally spaced points from `low` to `high`: (points + 1, *low.shape)."""
    t = torch.linspace(0, 1, POINTS + 1, dtype=low.dtype, device=low.device)
    return torch.lerp(low, high, t.view(-1, *(1,) * low.ndim))


def _line(
    function: Function,
    curvature_limit: float,
    kinks: tuple[float, ...],
    rise: Tensor,
    z: Tensor,
    low: Tensor,
    high: Tensor,
) -> Line:
    at = function(z)
    if kinks:
        inside = [torch.full_like(z, kink).clamp(low, high) for kink in kinks]
        places, slack = torch.stack([low, high, *inside]), torch.zeros_like(z)
    else:
        places = _places(low, high)
        # A chord between neighbours h apart misses a function by at most h^2 / 8 max|f''|.
        slack = curvature_limit * ((high - low) / POINTS).square() / 8
    error = function(places) - at - rise * (places - z)
    rounding = 16 * torch.finfo(z.dtype).eps * (at.abs() + rise.abs() * (high - low) + 1e-300)
    return Line(
        at=at,
        rise=rise,
        low=(error.amin(0) - slack - rounding).clamp_max(0),
        high=(error.amax(0) + slack + rounding).clamp_min(0),
    )


def _level(activation: Activation, z: Tensor, low: Tensor, high: Tensor) -> Line:
    at = activation.derivative(z)
    turns = [torch.full_like(z, turn).clamp(low, high) for turn in activation.turns]
    reached = activation.derivative(torch.stack([low, high, *turns]))
    if activation.kinks:
        # At a kink any slope between those of its two sides may be meant.
        beside = [
            torch.where(
                (low <= kink) & (kink <= high),
                activation.derivative(torch.full_like(z, kink + side)),
                at,
            )
            for kink in activation.kinks
            for side in (-1e-9, 1e-9)
        ]
        reached = torch.cat([reached, torch.stack(beside)])
    rounding = 16 * torch.finfo(z.dtype).eps * (reached.abs().amax(0) + at.abs())
    return Line(
        at=at,
        rise=torch.zeros_like(at),
        low=(reached.amin(0) - at - rounding).clamp_max(0),
        high=(reached.amax(0) - at + rounding).clamp_min(0),
    )


def leaky(negative_slope: float = 0.0) -> Activation:
    """ReLU, or LeakyReLU of a negative slope."""
    return Activation(
        value=lambda z: F.leaky_relu(z, negative_slope),
        derivative=lambda z: torch.where(z > 0, 1.0, torch.full_like(z, negative_slope)),
        curvature=torch.zeros_like,
        third=torch.zeros_like,
        kinks=(0.0,),
    )


def _sigmoid_derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sigmoid and its first three derivatives."""
    s, rest = torch.sigmoid(z), torch.sigmoid(-z)
    first = s * rest
    tilt = rest - s
    return s, first, first * tilt, first * (1 - 6 * first)


# Of the logistic function: greatest absolute first to fourth derivative, rounded up.
_SIGMOID = (0.25, 0.0962251, 0.125, 0.1301)


def softplus(beta: float = 1.0, threshold: float = 20.0) -> Activation:
    """The activation ln(1 + e^{beta z}) / beta, and z itself where beta z exceeds the threshold."""
    left = math.exp(-max(threshold, -700.0))
    return Activation(
        value=lambda z: torch.logaddexp(beta * z, torch.zeros_like(z)) / beta,
        derivative=lambda z: torch.sigmoid(beta * z),
        curvature=lambda z: beta * _sigmoid_derivatives(beta * z)[1],
        third=lambda z: beta**2 * _sigmoid_derivatives(beta * z)[2],
        limits=(beta * _SIGMOID[0], beta**2 * _SIGMOID[1], beta**3 * _SIGMOID[2]),
        straight=(
            threshold / beta,
            1.000001 * math.log1p(left) / beta,
            1.000001 * left / (1 + left),
        ),
    )


def sigmoid() -> Activation:
    """1 / (1 + e^{-z})."""
    return Activation(
        value=torch.sigmoid,
        derivative=lambda z: _sigmoid_derivatives(z)[1],
        curvature=lambda z: _sigmoid_derivatives(z)[2],
        third=lambda z: _sigmoid_derivatives(z)[3],
        turns=(0.0,),
        limits=(_SIGMOID[1], _SIGMOID[2], _SIGMOID[3]),
    )


def tanh() -> Activation:
    """2 sigmoid(2z) - 1."""
    return Activation(
        value=torch.tanh,
        derivative=lambda z: 4 * _sigmoid_derivatives(2 * z)[1],
        curvature=lambda z: 8 * _sigmoid_derivatives(2 * z)[2],
        third=lambda z: 16 * _sigmoid_derivatives(2 * z)[3],
        turns=(0.0,),
        limits=(8 * _SIGMOID[1], 16 * _SIGMOID[2], 32 * _SIGMOID[3]),
    )


def silu() -> Activation:
    """Z sigmoid(z)."""
    return Activation(
        value=F.silu,
        derivative=lambda z: _product_rule(z, 1),
        curvature=lambda z: _product_rule(z, 2),
        third=lambda z: _product_rule(z, 3),
        turns=(-2.399357280520468, 2.399357280520468),
        limits=(0.5, 0.3085, 0.5001),
    )


def _product_rule(z: Tensor, times: int) -> Tensor:
    """(z s(z))^(m) = m s^(m-1)(z) + z s^(m)(z)."""
    derivatives = _sigmoid_derivatives(z)
    return times * derivatives[times - 1] + z * derivatives[times]


def gelu() -> Activation:
    """Z Phi(z), Phi the normal distribution function."""
    root = math.sqrt(2)

    def density(z: Tensor) -> Tensor:
        return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)

    return Activation(
        value=lambda z: z * torch.erfc(-z / root) / 2,
        derivative=lambda z: torch.erfc(-z / root) / 2 + z * density(z),
        curvature=lambda z: density(z) * (2 - z.square()),
        third=lambda z: density(z) * z * (z.square() - 4),
        turns=(-root, root),
        limits=(0.7979, 0.7821, 1.5958),
    )


def square() -> Activation:
    """z^2: the slope is a line, so that nothing is left to bound."""
    return Activation(
        value=torch.square,
        derivative=lambda z: 2 * z,
        curvature=lambda z: torch.full_like(z, 2.0),
        third=torch.zeros_like,
        limits=(2.0, 0.0, 0.0),
    )
