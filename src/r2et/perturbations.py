"""Which inputs an attacker may use: those near a clean one, in some norm and within bounds.

A set has a radius of its own. Another norm is another record: a subclass of `NormBall` that says
how long a move is and which move raises a score fastest, and an entry of PERTURBATIONS.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from r2et.core.geometry import by_example, one_of, unit

Bounds = tuple[Tensor | float, Tensor | float]


class Unsaid(float):
    """A radius that nobody chose: it gives way to one that somebody did."""


UNSAID = Unsaid(1.0)


class PerturbationSet(Protocol):
    """The inputs admissible around a clean one, within a radius.

    Rows of `points` belong to the rows of `centre`, the clean inputs. Searches follow slopes
    within a smooth hull (`relax`, `steepest`); what is returned has passed `project`.
    """

    @property
    def radius(self) -> float:
        """What all changes of one input may cost together."""

    def at(self, radius: float) -> Self:
        """The same set at another radius."""

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """Admissible inputs near `points`, which themselves if admissible: like points."""

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """Nearby points of the smooth hull of all admissible inputs: like points."""

    def steepest(self, gradient: Tensor) -> Tensor:
        """The move of cost one along which a loss with this gradient rises fastest: like it."""

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        share: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Random moves of at most this `share` of the radius, to be projected: (count, ...).

        Shared by all examples: one meets the same moves alone as in company. `like` is shaped as
        one example; with `surface` all moves cost as much as they may.
        """

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """The length of each move, the radius at which `points` become affordable: (B,)."""

    def longest_move(self, like: Tensor) -> float:
        """The l2 length of the longest move of one example shaped `like`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormBall(ABC):
    """Every input within `radius` in a norm and within `bounds`, low and high.

    x + radius * scale * u with u in the norm's unit ball. `scale`, shaped like one example, is what
    a length of 1 is for each number, 1 unless given. Only the numbers that are `free`, booleans
    shaped likewise, and of a scale above 0 may change. Bounds are left only by inputs that begin
    outside.
    """

    norm: ClassVar[str]
    """Its name, as in PERTURBATIONS."""

    radius: float = UNSAID
    bounds: Bounds | None = None
    scale: Tensor | None = None
    free: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a ball that is none."""
        if not 0 <= self.radius < float("inf"):
            raise ValueError(
                f"the radius of an {self.norm} ball must be >= 0 and finite, got {self.radius}."
            )
        if self.scale is not None and not bool((self.scale >= 0).all()):
            raise ValueError("the scale of a ball must hold numbers >= 0 only.")

    def at(self, radius: float) -> Self:
        """The same scale and bounds around a ball of another radius."""
        return replace(self, radius=radius)

    def movable(self, like: Tensor) -> Tensor | None:
        """Which numbers of an example shaped `like` may change, None if all may: like `like`."""
        masks = [self.free, None if self.scale is None else self.scale > 0]
        given = [mask.to(like.device).view(like.shape) for mask in masks if mask is not None]
        return torch.stack(given).all(0) if given else None

    def confine(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points within the bounds, however far, movable numbers only: like points."""
        mask = self.movable(one_of(centre))
        points = points if mask is None else torch.where(mask, points, centre)
        return points if self.bounds is None else points.clamp(*_around(centre, self.bounds))

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points moved into the bounds and then into the ball: like points.

        Where the centre lies outside its bounds, its own value is the bound. The result is within
        both, exactly: coming nearer to the centre leaves no bound.
        """
        points = self._shrunk(self.confine(points, centre), centre)
        return points if self.bounds is None else points.clamp(*_around(centre, self.bounds))

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """The same as `project`: slopes can be followed in the ball itself."""
        return self.project(points, centre)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The move of length one that raises most, zero where the gradient is: like it."""
        mask = self.movable(one_of(gradient))
        gradient = gradient if mask is None else torch.where(mask, gradient, 0.0)
        if self.scale is None:
            return self._steepest(gradient)
        scale = self.scale.to(gradient).view(gradient.shape[1:])
        return scale * self._steepest(gradient * scale)

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        share: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Random moves of the movable numbers in the ball, or on its surface: (count, ...)."""
        mask = self.movable(like)
        numbers = like.numel() if mask is None else int(mask.sum())
        drawn = share * self.radius * self._drawn(count, numbers, generator, surface)
        drawn = drawn.to(device=like.device, dtype=like.dtype)
        moves = like.new_zeros(count, *like.shape)
        moves[:, torch.ones_like(like, dtype=torch.bool) if mask is None else mask] = drawn
        return moves if self.scale is None else moves * self.scale.to(like).view(like.shape)

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """Length of the move from `centre` to `points`: (B,)."""
        return self._length(self._measured(points - centre))

    def longest_move(self, like: Tensor) -> float:
        """The radius: what it is in the measure of a number of scale 1."""
        return float(self.radius)

    def _measured(self, move: Tensor) -> Tensor:
        """How far each number moved in its own scale, none of scale 0 at all: (B, d)."""
        flat = move.flatten(1)
        if self.scale is None:
            return flat
        scale = self.scale.to(flat).flatten()
        return torch.where(scale > 0, flat / torch.where(scale > 0, scale, 1.0), 0.0)

    def _shrunk(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points, on their way back to the centre as far as the ball's border: like points."""
        move = self._measured(points - centre)
        length = self._length(move)[:, None]
        # Shrunk by what rounding the sum below can add, and a scale twice, so that it cannot leave
        # the ball.
        eps = torch.finfo(points.dtype).eps
        far = (1 if self.scale is None else 2) * self._length(self._measured(centre))[:, None]
        inside = (self.radius * (1 - 8 * eps) - eps * far).clamp_min(0)
        outside = length > inside
        length = torch.where(outside, length, 1.0)
        if self.scale is None:
            back = move * (inside / length)
        else:
            back = self.scale.to(points).flatten() * move * inside / length
        back = back.view_as(points)
        return torch.where(by_example(outside, points), centre + back, points)

    @abstractmethod
    def _length(self, moves: Tensor) -> Tensor:
        """The norm of each row (B, d): (B,)."""

    @abstractmethod
    def _steepest(self, gradient: Tensor) -> Tensor:
        """The move of norm one along which each gradient rises fastest: like it."""

    def _drawn(self, count: int, numbers: int, generator: torch.Generator, surface: bool) -> Tensor:
        """Random points of the unit ball, or of its surface, in float64: (count, numbers)."""
        drawn = torch.randn((count, numbers), generator=generator, dtype=torch.float64)
        drawn = drawn / self._length(drawn)[:, None]
        if surface:
            return drawn
        uniform = torch.rand((count, 1), generator=generator, dtype=torch.float64)
        return drawn * uniform.pow(1 / numbers)


class L2Ball(NormBall):
    """Every input whose changes are of an l2 length of at most `radius`; else as `NormBall`."""

    norm = "l2"

    def _length(self, moves: Tensor) -> Tensor:
        length: Tensor = moves.norm(dim=-1)
        return length

    def _steepest(self, gradient: Tensor) -> Tensor:
        return unit(gradient)


class Box(NormBall):
    """Every input no number of which changes by more than `radius`; else as `NormBall`.

    The l-infinity ball. Moves on its surface lead to its corners.
    """

    norm = "linf"

    def longest_move(self, like: Tensor) -> float:
        """The way from the centre to a corner."""
        mask = self.movable(like)
        if self.scale is not None and mask is not None:
            return float(self.radius * self.scale.view(like.shape)[mask].norm())
        return float(self.radius * (like.numel() if mask is None else int(mask.sum())) ** 0.5)

    def _length(self, moves: Tensor) -> Tensor:
        return moves.abs().amax(-1)

    def _steepest(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def _shrunk(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points with every number moved back as far as it must by itself: like points."""
        reach = self.radius if self.scale is None else self.radius * self.scale.to(points)
        eps = torch.finfo(points.dtype).eps
        inside = (reach * (1 - 4 * eps) - eps * centre.abs()).clamp_min(0)
        return points.clamp(centre - inside, centre + inside)

    def _drawn(self, count: int, numbers: int, generator: torch.Generator, surface: bool) -> Tensor:
        drawn = torch.rand((count, numbers), generator=generator, dtype=torch.float64) * 2 - 1
        return drawn.sign() if surface else drawn


PERTURBATIONS: dict[str, type[NormBall]] = {"l2": L2Ball, "linf": Box}


def agreed(perturbation: PerturbationSet, radius: float | None) -> PerturbationSet:
    """The set at the radius that was chosen, by its own or by `radius`; 1 if by neither.

    Two that differ are refused: whichever was taken, the other would be ignored without a word.
    """
    if radius is None:
        return perturbation.at(float(perturbation.radius))
    if not isinstance(perturbation.radius, Unsaid) and perturbation.radius != radius:
        raise ValueError(
            f"an attack has one radius, but its perturbation set says {perturbation.radius:g} and "
            f"the attack {radius:g}: say it once."
        )
    return perturbation.at(radius)


def _around(centre: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Low and high for each number; where the centre lies outside, its own value is the bound."""
    # In its own format from the start: by way of single precision 0.6 becomes more than 0.6.
    low, high = (
        torch.as_tensor(bound, dtype=centre.dtype, device=centre.device) for bound in bounds
    )
    return torch.minimum(low, centre), torch.maximum(high, centre)
