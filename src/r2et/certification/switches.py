"""Kinks within reach: slopes of straight pieces, and which of them can be met together.

Within a region most numbers before a ReLU keep their sign and its slope is known. Of those that do
not, the *open* ones, the slope is one of two, and it is known which by the side of the kink the
number is on, which the input decides: not all of them can be at their worst at once.
"""

import torch
from torch import Tensor

from r2et.certification.activations import Activation
from r2et.certification.affine import TINY, AffineForm, SwitchedError, Symbols
from r2et.certification.pullback import MORE, Open

STEPS = 12
BESIDE = 1e-9


def switched(
    symbols: Symbols, signal: AffineForm, activation: Activation, switch: Open
) -> AffineForm:
    """A signal times the slope of an activation: its middle, and an error where it is open."""
    (kink,) = activation.kinks
    both = switch.low.new_tensor([kink - BESIDE, kink + BESIDE])
    below, above = activation.derivative(both).unbind()
    is_below, is_above = switch.high < kink - BESIDE, switch.low > kink + BESIDE
    is_open = ~(is_below | is_above)
    middle = (below + above) / 2
    slope = torch.where(is_below, below, torch.where(is_above, above, middle))
    down, up = symbols.range(signal)
    eps = 8 * torch.finfo(slope.dtype).eps
    doubt = eps * (symbols.size(signal) + signal.rest) * slope.abs() + TINY
    found = AffineForm(
        signal.centre * slope, signal.moves * slope, signal.rest * slope.abs() + doubt
    )
    # (slope - middle) signal: least and greatest with the slope below the kink, and above it.
    sides = torch.stack([(below - middle) * torch.stack([down, up]),
                         (above - middle) * torch.stack([down, up])])  # fmt: skip
    room = eps * sides.abs().amax((0, 1)) + TINY
    least, most = sides.amin(1) - room, sides.amax(1) + room
    least, most = (torch.where(is_open, each, 0.0) for each in (least, most))
    low, high = least.amin(0).clamp_max(0), most.amax(0).clamp_min(0)
    before = symbols.count
    found, places = symbols.with_widest(found, low, high)
    if switch.numbers is None or not len(places):
        return found
    of_place = switch.numbers.number.gather(1, places.T)  # (B, m)
    met = of_place >= 0
    met &= is_open.flatten(1).gather(1, places.T)
    at = of_place.clamp_min(0)

    def chosen(t: Tensor) -> Tensor:
        return torch.where(met, t[at], 0.0).T

    slopes = torch.where(met[:, :, None], switch.numbers.slopes[at], 0.0).transpose(0, 1)
    ends = (switch.low - kink, switch.high - kink)
    lows, highs = (
        torch.stack([each.flatten(1).gather(1, places.T).T for each in side.unbind()])
        for side in (least, most)
    )
    # What is not met has no number of its own: its error is what its two bounds say.
    symbols.switches.append(
        SwitchedError(
            start=before,
            low=lows,
            high=highs,
            at=chosen(switch.numbers.at),
            slopes=slopes,
            slack=torch.where(met.T, chosen(switch.numbers.slack), torch.inf),
            below=ends[0].flatten(1).gather(1, places.T).T,
            above=ends[1].flatten(1).gather(1, places.T).T,
        )
    )
    return found


class Linked:
    """What combinations of errors gain from which numbers can be beyond their kinks together.

    For an error e of a number z, weighted by a: a e >= a0 + b t with t = [z > 0]. Alone t is
    anything from 0 to 1; but t <= 1 + z / -below and t >= z / above as well, where z is linear in
    the input. With shares s in 0..1 of the second bound the least sum over the ball is one more
    bound, concave in s: every s is valid and the best is sought by some steps uphill.
    """

    def __init__(self, symbols: Symbols, box: bool) -> None:
        blocks = symbols.switches
        self.columns = torch.cat(
            [
                torch.arange(each.start, each.start + each.at.shape[0], device=each.at.device)
                for each in blocks
            ]
        )
        self.low, self.high = (
            torch.cat([getattr(each, name) for each in blocks], 1).permute(2, 1, 0)
            for name in ("low", "high")
        )  # (B, m, 2)
        self.at, self.slack, self.below, self.above = (
            torch.cat([getattr(each, name) for each in blocks]).T
            for name in ("at", "slack", "below", "above")
        )  # (B, m)
        self.slopes = torch.cat([each.slopes for each in blocks]).transpose(0, 1)  # (B, m, d)
        self.box = box
        self.gram = None if box else self.slopes @ self.slopes.mT
        self.reach = self.slopes.norm(dim=-1)

    def gain(self, errors: Tensor, at: Tensor, wanted: Tensor) -> Tensor:
        """By how much the least sum of weighted errors lies above that of each alone: (P,).

        `errors` (P, M) weighs all symbols, `at` (P,) is the example. Those that cannot gain as much
        as `wanted` (P,) are not looked at.
        """
        a = errors[:, self.columns]
        low, high = self.low[at], self.high[at]
        side = torch.where(a[..., None] > 0, low, high)
        rise = a * (side[..., 1] - side[..., 0])
        # Where it rises with t, t >= z / above counts, where it falls t <= 1 + z / -below.
        per = torch.where(rise > 0, rise / self.above[at].clamp_min(TINY),
                          rise / (-self.below[at]).clamp_min(TINY))  # fmt: skip
        value = per * self.at[at] - per.abs() * self.slack[at]
        usable = (value > 0) & per.isfinite() & value.isfinite() & (per.abs() < 1e200)
        per = torch.where(usable, per, 0.0)
        value = torch.where(usable, value, 0.0)
        best = value.new_zeros(len(value))
        asked = (value.sum(1) > wanted).nonzero().squeeze(-1)
        for part in asked.split(2048):
            best[part] = self._climbed(per[part], value[part], at[part], wanted[part])
        return best

    def _climbed(self, per: Tensor, value: Tensor, at: Tensor, wanted: Tensor) -> Tensor:
        share = (value > 0).to(value)
        best = value.new_zeros(len(value))
        size = per.abs() * self.reach[at]
        for _ in range(STEPS):
            reach, pull = self._reach(per, share, size, at)
            sure = (share * value).sum(1) * (1 - 1e-9) - reach
            best = torch.maximum(best, sure)
            if bool((best > wanted).all()):
                break
            uphill = value - pull
            step = reach.clamp_min(1e-300)[:, None] / size.square().clamp_min(1e-300)
            share = (share + step * uphill).clamp(0, 1).masked_fill(value <= 0, 0.0)
        return best

    def _reach(self, per: Tensor, share: Tensor, size: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """How far the combination moves with the input, and the slope of that by the shares."""
        weights = per * share
        if self.gram is None:
            combined = torch.einsum("pm,pmd->pd", weights, self.slopes[at])
            reach = combined.abs().sum(1)
            pull = per * torch.einsum("pmd,pd->pm", self.slopes[at], combined.sign())
            return MORE * reach + 1e-13 * (size * share).sum(1), pull
        pulled = torch.einsum("pmn,pm->pn", self.gram[at], weights)
        # What the sums of the Gram matrix may be off by.
        terms = self.slopes.shape[2] + 2 * self.slopes.shape[1] + 64
        room = terms * torch.finfo(size.dtype).eps * (size * share).sum(1).square()
        squared = (pulled * weights).sum(1)
        reach = (squared.clamp_min(0) + room).sqrt() * MORE + TINY
        return reach, per * pulled / reach[:, None]
