"""Curves instead of points: P@k at several radii, and the cheapest change that breaks each example.

What is found at one radius counts at every radius that affords it, so P@k never rises with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from r2et.attacks.cells import by_cells, walks_cells
from r2et.attacks.pairs import approach_nearest
from r2et.attacks.search import AttackResult, CandidateEvaluator, picked
from r2et.core.geometry import by_example, one_of, repeated
from r2et.core.ranking import precision_at_k, top_k_mask
from r2et.core.rng import stream
from r2et.models.smoothing import softened

NUMBERS_AT_ONCE = 2**20
PAIRS, WALK = 12, 60
NODES = 1000  # sets of cells looked at
HALVINGS = 14  # of the way from a clean input to a broken one
SHARPNESS = 8.0  # of the smooth copy that guides Newton's method on a network with kinks


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """What an attack reached at each of E rising radii, for each of B examples."""

    epsilons: Tensor
    """The radii: (E,)."""
    x: Tensor
    """The most damaging input found that each radius affords: (E, B, ...)."""
    before: Tensor
    """Explanation of the clean input: (B, n)."""
    after: Tensor
    """Explanation of the attacked input: (E, B, n)."""
    precision: Tensor
    """P@k between the two, never rising with the radius: (E, B)."""
    raw: Tensor
    """P@k that the attack at this very radius reached by itself: (E, B)."""
    smallest: Tensor
    """The smallest radius found to break the example, infinity if none was: (B,)."""
    nearest: Tensor
    """The input that breaks it there, the clean one if none does: like x."""
    attacks: Sequence[AttackResult]
    """The attack at each radius."""


def most_damaging(
    found: Sequence[tuple[Tensor, Tensor, Tensor]], before: Tensor, x: Tensor, k: int, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of inputs with scores and costs the affordable one of lowest P@k, its scores, its P@k."""
    best, after, precision = x, before, precision_at_k(before, before, k)
    for place, saliency, cost in found:
        reached = precision_at_k(before, saliency, k)
        better = (cost <= radius) & (reached < precision)
        best = torch.where(by_example(better, x), place, best)
        after = torch.where(better[:, None], saliency, after)
        precision = torch.where(better, reached, precision)
    return best, after, precision


class Cheapest(CandidateEvaluator):
    """For each example the cheapest input seen that displaces a top-k feature."""

    def begin(self) -> None:
        """No input offered, none affordable."""
        self.cost = torch.full_like(self.before[:, 0], torch.inf)

    def offer_all(self, places: Tensor) -> None:
        """Keep, of several inputs for each example (S, B, ...), each that is the cheapest."""
        places, saliency, kept = self.judged(places)
        gone = (self.top & ~top_k_mask(saliency, self.k)).any(-1)
        cost = self.perturbation.cost(places.flatten(0, 1), repeated(self.centre, len(places)))
        lowest, chosen = cost.view(kept.shape).masked_fill(~(kept & gone), torch.inf).min(0)
        self.take(lowest < self.cost, picked(places, chosen), picked(saliency, chosen))
        self.cost = torch.minimum(lowest, self.cost)

    def seek(
        self, found: Sequence[Tensor], pairs: int, walk: int, seed: int, *, cells: bool = True
    ) -> None:
        """Begin with the inputs found, and look for cheaper ones, with `cells` among them, too."""
        if not len(self.y):
            return
        for place in found:
            self.offer_all(place[None])
        if pairs:
            smooth = softened(self.model, SHARPNESS)
            for guide in [self.model] if smooth is None else [self.model, smooth]:
                self._approach(guide, pairs)
        self._halve()
        if walk:
            self._walk(walk, stream(seed, "border"))
            self._halve()
        cells = cells and bool(pairs)
        if cells and walks_cells(self.model, self.centre, self.explain, self.perturbation):
            self._search_cells()

    def _search_cells(self) -> None:
        """The search over cells below what was found, as far as the set's own radius without."""
        longest = torch.where(self.cost.isfinite(), self.cost, self.perturbation.radius).amax()
        if not longest > 0:
            return
        found, _, _ = by_cells(self, float(longest), self.x, "smallest", NODES)
        self.offer_all(found[None])

    def _approach(self, guide: nn.Module, pairs: int) -> None:
        """Newton's method on the gaps of the nearest pairs, some examples at a time."""
        together = max(1, NUMBERS_AT_ONCE // (pairs * one_of(self.centre).numel()))
        begins = range(0, len(self.y), together)
        offered: list[list[Tensor]] = []
        for begin in begins:
            x, y = self.centre[begin : begin + together], self.y[begin : begin + together]
            before, places = self.before[begin : begin + together], list[Tensor]()
            approach_nearest(
                guide, self.explain, x, y, before, self.k, self.perturbation, pairs, places.append
            )
            offered.append(places)
        for parts in zip(*offered, strict=True):
            self.offer_all(torch.cat(parts, dim=1))

    def _halve(self) -> None:
        """Halve the way from each clean input to the one that breaks it."""
        end = self.x
        intact = torch.zeros_like(self.cost)
        broken = torch.ones_like(self.cost)
        for _ in range(HALVINGS):
            middle = (intact + broken) / 2
            share = by_example(middle, end)
            before = self.cost
            self.offer_all(torch.lerp(self.centre, end, share)[None])
            breaks = self.cost < before
            broken = torch.where(breaks, middle, broken)
            intact = torch.where(breaks, intact, middle)

    def _walk(self, steps: int, generator: torch.Generator, copies: int = 8) -> None:
        """Random moves along the border, each a little nearer to the clean input."""
        unit_ball = self.perturbation.at(1.0)
        for step in range(steps):
            nearer = 0.1 * 0.5 ** (4 * step / steps)
            moves = unit_ball.offsets(one_of(self.x), copies, generator, surface=True)
            length = torch.where(self.cost.isfinite(), self.cost, 0.0)
            aside = 2 * nearer * by_example(length, self.x) * moves[:, None]
            self.offer_all(self.centre + (1 - nearer) * (self.x - self.centre) + aside)
