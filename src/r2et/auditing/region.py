"""Where an input may move in an audit: the same region for certificates and for attacks."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from r2et.certification.affine import Norm
from r2et.core.rng import ball_offsets
from r2et.perturbations import UNSAID, unit


@dataclass(frozen=True, kw_only=True, eq=False)
class Surroundings:
    """Every input within a distance of a clean one, a threat to attack it by.

    x + radius * reach * u with u in the unit ball of `norm` "l2", or in the unit cube for "box".
    `reach` (d,) is what a length of 1 is for each feature; one of reach 0 never changes. `bounds`,
    low and high (d,), are left only by inputs that begin outside.
    """

    radius: float = UNSAID
    norm: Norm = "l2"
    reach: Tensor
    bounds: tuple[Tensor, Tensor] | None = None

    def at(self, radius: float) -> "Surroundings":
        """The same surroundings up to another distance."""
        return replace(self, radius=radius)

    def project(self, points: Tensor, centre: Tensor) -> Tensor:
        """The points moved into the region: like points."""
        reach = self.reach.to(points)
        move = self._lengths(points, centre)
        far = self._lengths(centre, torch.zeros_like(centre))
        # Shrunk by what rounding the sum below can add, so that it cannot leave the region.
        eps = torch.finfo(points.dtype).eps
        if self.norm == "l2":
            length, far = move.norm(dim=-1, keepdim=True), far.norm(dim=-1, keepdim=True)
        else:
            length, far = move.abs(), far.abs()
        inside = (self.radius * (1 - 8 * eps) - 2 * eps * far).clamp_min(0)
        outside = length > inside
        shrunk = centre + reach * move * inside / torch.where(outside, length, 1.0)
        found = torch.where(outside, shrunk, torch.where(reach > 0, points, centre))
        if self.bounds is None:
            return found
        low, high = (each.to(points) for each in self.bounds)
        # Every number only comes nearer to the centre: the region is not left again.
        return found.clamp(torch.minimum(low, centre), torch.maximum(high, centre))

    def relax(self, points: Tensor, centre: Tensor) -> Tensor:
        """The same as `project`: slopes can be followed in the region itself."""
        return self.project(points, centre)

    def steepest(self, slope: Tensor) -> Tensor:
        """The move of length one along which a loss with this slope rises fastest: like slope."""
        reach = self.reach.to(slope)
        return reach * (unit(slope * reach) if self.norm == "l2" else (slope * reach).sign())

    def offsets(
        self,
        like: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        reach: float = 1.0,
        surface: bool = False,
    ) -> Tensor:
        """Moves uniform in the region of `reach` radii, or on its surface: (count, d)."""
        free = self.reach.to(like.device).nonzero().squeeze(-1)
        if self.norm == "l2":
            moves = ball_offsets(like[free], reach * self.radius, count, generator, surface=surface)
        else:
            drawn = 2 * torch.rand(count, len(free), generator=generator, dtype=torch.float64) - 1
            if surface:
                drawn = drawn / drawn.abs().amax(-1, keepdim=True)
            moves = (reach * self.radius * drawn).to(like)
        offsets = like.new_zeros(count, *like.shape)
        offsets[:, free] = moves * self.reach.to(like)[free]
        return offsets

    def cost(self, points: Tensor, centre: Tensor) -> Tensor:
        """Length of the move from `centre` to `points`: (B,)."""
        move = self._lengths(points, centre)
        length: Tensor = move.norm(dim=-1) if self.norm == "l2" else move.abs().amax(-1)
        return length

    def length(self, like: Tensor) -> float:
        """The way to the farthest point, in the measure of a feature of reach 1."""
        return self.radius if self.norm == "l2" else self.radius * float(self.reach.norm())

    def _lengths(self, points: Tensor, centre: Tensor) -> Tensor:
        """How far each feature moved in its own measure, those that never change not at all."""
        reach = self.reach.to(points)
        return torch.where(reach > 0, (points - centre) / torch.where(reach > 0, reach, 1.0), 0.0)
