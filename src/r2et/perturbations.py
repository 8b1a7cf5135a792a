"""Which inputs an attacker may use: a ball of changed numbers, with bounds."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from r2et.core.rng import ball_offsets

Bounds = tuple[Tensor | float, Tensor | float]


class Unsaid(float):
    """A radius that nobody chose: it gives way to one that somebody did."""


UNSAID = Unsaid(1.0)


class PerturbationSet(Protocol):
    """The inputs admissible around a clean one, at a given radius.

    Rows of `points` belong to the rows of `centre`, the clean inputs. Searches follow slopes
    within a smooth hull (`relax`, `steepest`); what is returned has passed `project`.
    """

    @property
    def radius(self) -> float:
        """What all changes of one input may cost together."""

    def at(self, radius: float) -> "PerturbationSet":
        """The same threat at another radius."""

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """Admissible inputs near `points`, which themselves if admissible: like points."""

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """Nearby points of the smooth hull of all admissible inputs: like points."""

    def steepest(self, slope: Tensor) -> Tensor:
        """The move of cost one along which a loss with this slope rises fastest: like slope."""

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        reach: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Random moves of at most `reach` radii, to be projected: (count, ...).

        Shared by all examples: one meets the same moves alone as in company. `like` is shaped as
        one example; with `surface` all moves cost as much as they may.
        """

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """The radius at which `points` become affordable: (B,)."""

    def length(self, like: Tensor) -> float:
        """The l2 length of the longest move of one example shaped `like`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class L2Ball:
    """Every input within the l2 ball of `radius` and within `bounds`, low and high.

    Only the numbers that are `free`, booleans shaped like one example, may change, all unless
    given.
    """

    radius: float = UNSAID
    bounds: Bounds | None = None
    free: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a ball that is none."""
        if not 0 <= self.radius < float("inf"):
            raise ValueError(f"the radius of a ball must be >= 0 and finite, got {self.radius}.")

    def at(self, radius: float) -> "L2Ball":
        """The same bounds around a ball of another radius."""
        return replace(self, radius=radius)

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points moved into the bounds and the ball: like points."""
        points = points if self.free is None else _only(self.free, points, centre)
        return clip(points, centre, self.radius, self.bounds)

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """The same as `project`: slopes can be followed in the ball itself."""
        return self.project(points, centre)

    def steepest(self, slope: Tensor) -> Tensor:
        """The slope scaled to length one, zero where it is zero: like slope."""
        return unit(slope if self.free is None else _only(self.free, slope))

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        reach: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Moves uniform in the ball of free numbers, or on its surface: (count, ...)."""
        if self.free is None:
            return ball_offsets(like, reach * self.radius, count, generator, surface=surface)
        free = self.free.to(like.device).view(like.shape)
        moves = like.new_zeros(count, *like.shape)
        moves[:, free] = ball_offsets(
            like[free], reach * self.radius, count, generator, surface=surface
        )
        return moves

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """Length of the move from `centre` to `points`: (B,)."""
        length: Tensor = (points - centre).flatten(1).norm(dim=-1)
        return length

    def length(self, like: Tensor) -> float:
        """The radius."""
        return self.radius


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """Every input no number of which changes by more than `radius`, and within `bounds`.

    The l-infinity ball. `free` as in `L2Ball`.
    """

    radius: float = UNSAID
    bounds: Bounds | None = None
    free: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a cube that is none."""
        if not 0 <= self.radius < float("inf"):
            raise ValueError(f"the radius of a cube must be >= 0 and finite, got {self.radius}.")

    def at(self, radius: float) -> "Box":
        """The same bounds around a cube of another radius."""
        return replace(self, radius=radius)

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points moved into the bounds and the cube: like points."""
        points = points if self.free is None else _only(self.free, points, centre)
        low, high = _bounds_around(centre, self.bounds)
        # Shrunk by what rounding the sums can add, so that they cannot leave the cube.
        eps = torch.finfo(points.dtype).eps
        inside = (self.radius * (1 - 4 * eps) - eps * centre.abs()).clamp_min(0)
        return points.clamp(
            torch.maximum(low, centre - inside), torch.minimum(high, centre + inside)
        )

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """The same as `project`: slopes can be followed in the cube itself."""
        return self.project(points, centre)

    def steepest(self, slope: Tensor) -> Tensor:
        """The signs of the slope: like slope."""
        return (slope if self.free is None else _only(self.free, slope)).sign()

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        reach: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Moves uniform in the cube of `reach` radii, or to its corners: (count, ...)."""
        drawn = torch.rand((count, *like.shape), generator=generator, dtype=torch.float64) * 2 - 1
        moves = reach * self.radius * (drawn.sign() if surface else drawn)
        moves = moves.to(device=like.device, dtype=like.dtype)
        return moves if self.free is None else _only(self.free, moves)

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """The largest change of one number: (B,)."""
        return (points - centre).abs().flatten(1).amax(-1)

    def length(self, like: Tensor) -> float:
        """The way from the centre to a corner."""
        count = like.numel() if self.free is None else int(self.free.sum())
        return float(self.radius * count**0.5)


def agreed(threat: PerturbationSet, radius: float) -> PerturbationSet:
    """The threat at the radius that was chosen, by its own or by `radius`; 1 if by neither.

    Two that differ are refused: whichever was taken, the other would be ignored without a word.
    """
    if isinstance(radius, Unsaid):
        return threat.at(float(threat.radius))
    if not isinstance(threat.radius, Unsaid) and threat.radius != radius:
        raise ValueError(
            f"an attack has one radius, but its threat says {threat.radius:g} and the attack "
            f"{radius:g}: say it once."
        )
    return threat.at(radius)


def _only(free: Tensor, points: Tensor, centre: Tensor | None = None) -> Tensor:
    """The points where numbers are free, elsewhere the centre, or zero without one: like points."""
    mask = free.to(points.device).view(points.shape[1:])
    return torch.where(mask, points, points.new_zeros(()) if centre is None else centre)


def _bounds_around(centre: Tensor, bounds: Bounds | None) -> tuple[Tensor, Tensor]:
    """Low and high for each number; where the centre lies outside, its own value is the bound."""
    low, high = (-torch.inf, torch.inf) if bounds is None else bounds
    # In its own format from the start: by way of single precision 0.6 becomes more than 0.6.
    least, most = (
        torch.as_tensor(each, dtype=centre.dtype, device=centre.device) for each in (low, high)
    )
    return torch.minimum(least, centre), torch.maximum(most, centre)


def one_of(x: Tensor) -> Tensor:
    """A tensor like one example of x, also where there is none; its numbers mean nothing."""
    return x.new_empty(x.shape[1:])


def unit(direction: Tensor) -> Tensor:
    """Each example's direction, scaled to length one (zero stays zero): like `direction`."""
    # One norm per example: a norm over the batch would let neighbours shorten each other's steps.
    # The largest entry is divided out first: squares of a saturated model's slopes underflow.
    flat = direction.flatten(1)
    largest = flat.abs().amax(-1, keepdim=True)
    flat = flat / torch.where(largest > 0, largest, 1.0)
    length = flat.norm(dim=-1, keepdim=True)
    return (flat / torch.where(length > 0, length, 1.0)).view_as(direction)


def clip(x: Tensor, centre: Tensor, radius: float, bounds: Bounds | None = None) -> Tensor:
    """The points x moved into the bounds and then into the l2 ball around `centre`: like x.

    Where the centre lies outside its bounds, its own value is the bound. The result is within
    both, exactly: shrinking towards the centre leaves no bound.
    """
    if bounds is not None:
        low, high = _bounds_around(centre, bounds)
        x = x.clamp(low, high)
    move = (x - centre).flatten(1)
    length = move.norm(dim=-1, keepdim=True)
    # Shrunk by what rounding the sum below can add, so that it cannot leave the ball.
    eps = torch.finfo(x.dtype).eps
    far = centre.flatten(1).norm(dim=-1, keepdim=True)
    inside = (radius * (1 - 8 * eps) - eps * far).clamp_min(0)
    outside = length > inside
    shrunk = centre + (move * (inside / torch.where(outside, length, 1.0))).view_as(x)
    x = torch.where(outside.view(-1, *(1,) * (x.ndim - 1)), shrunk, x)
    return x if bounds is None else x.clamp(low, high)
