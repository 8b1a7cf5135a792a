"""The gaps of single pairs as objectives: their values, their slopes, and merits to first order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from r2et.attacks._socp import Descent, times, tr_moo
from r2et.attacks.searches import BestSoFar, Outputs, check_slopes
from r2et.core.autograd import jacobian
from r2et.core.ranking import order
from r2et.explainers import Explainer
from r2et.models.smoothing import softened

Scale = Literal["relative", "plain"]
CHI_AT_ONCE = 8192  # problems of one objective each


@dataclass(frozen=True, kw_only=True)
class Region:
    """The settings of Algorithm 2 (P A.4), all lengths in radii of the threat.

    f = eps [(p - p0) / drift, (x - x0) / radius] with p the class probabilities: ||f|| <= eps keeps
    both limits of Eq. 27 by the one number eps = `tolerance` of Eq. 28. Gaps are measured by it
    too, in units of what the steepest falls over a radius at the clean input: probabilities near
    one make all gaps small, but not their unit. No gap falls by more than eps in one iteration, and
    none is pursued that falls by less than eps over a radius. Delta starts at `reach`.
    """

    tolerance: float = 0.2
    drift: float = 0.3
    criticality: float = 0.05
    eta: float = 0.1
    gamma: float = 0.5
    reach: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings with which no step could be taken or none refused."""
        positive = min(self.tolerance, self.drift, self.reach) > 0
        shares = all(0 < each < 1 for each in (self.eta, self.gamma))
        if not (positive and shares and 0 < self.criticality <= 1):
            raise ValueError(
                "a region needs tolerance, drift and reach > 0, eta and gamma between 0 and 1, and "
                f"criticality > 0 and <= 1, got {self}."
            )

    @property
    def least(self) -> float:
        """The fall of a merit within a radius below which an objective is spent."""
        return self.criticality * self.tolerance


@dataclass(frozen=True, kw_only=True, eq=False)
class Linearised:
    """The merits phi_l = ||f|| + |h_l - t_l| around an input, to first order, moves in radii."""

    level: Tensor
    """h_l - t_l, for all l the same eps - ||f||: (B,)."""
    slopes: Tensor
    """Gradients g_l of the gaps: (B, m, d)."""
    fixed: Tensor
    """The first part of f, eps (p - p0) / drift: (B, C)."""
    drifts: Tensor
    """Its derivative: (B, C, d)."""
    away: Tensor
    """The way from the clean input; the second part of f is eps times it: (B, d)."""
    tolerance: float
    """eps."""

    def of(self, rows: Tensor) -> "Linearised":
        """The same of some examples only."""
        return replace(
            self,
            level=self.level[rows],
            slopes=self.slopes[rows],
            fixed=self.fixed[rows],
            drifts=self.drifts[rows],
            away=self.away[rows],
        )

    def promised(self, move: Tensor) -> Tensor:
        """By how much a move lowers each linearised merit: (B, m)."""
        changed = self.fixed + times(self.drifts, move), self.tolerance * (self.away + move)
        residual: Tensor = torch.cat(changed, -1).norm(dim=-1, keepdim=True)
        distance = (self.level[:, None] + times(self.slopes, move)).abs()
        return self.tolerance - residual - distance

    def only(self, free: Tensor) -> "Linearised":
        """The same where only `free` inputs (B, d) change the gaps and the probabilities."""
        kept = free[:, None]
        return replace(
            self, slopes=self.slopes.where(kept, 0.0), drifts=self.drifts.where(kept, 0.0)
        )

    def descent(self, reach: Tensor, active: Tensor | None = None) -> Descent:
        """TR-MOO of the active objectives (B, m) within `reach` (B,)."""
        known = torch.cat([self.slopes, self.drifts, self.away[:, None]], 1)
        if known.shape[1] < known.shape[2]:
            # To leave the space of all gradients and the way back changes no gap and helps nothing.
            basis, _ = torch.linalg.qr(known.mT)
            inside = replace(
                self,
                slopes=self.slopes @ basis,
                drifts=self.drifts @ basis,
                away=times(basis.mT, self.away),
            ).descent(reach, active)
            return replace(inside, step=times(basis, inside.step))
        straight = torch.eye(known.shape[2]).to(known).expand(len(known), -1, -1)
        return tr_moo(
            self.level[:, None].expand(self.slopes.shape[:2]),
            self.slopes,
            torch.cat([self.fixed, self.tolerance * self.away], -1),
            torch.cat([self.drifts, self.tolerance * straight], 1),
            reach,
            active,
        )

    def chi(self, wanted: Tensor | None = None) -> Tensor:
        """The largest fall of each linearised merit alone within a radius [Eq. 12]: (B, m).

        Infinite for objectives that are not `wanted` (B, m).
        """
        found = torch.full_like(self.slopes[..., 0], torch.inf)
        if wanted is None:
            wanted = torch.ones_like(found, dtype=torch.bool)
        shared = replace(self, slopes=self.slopes[:, :1])
        for some in wanted.nonzero().split(CHI_AT_ONCE):
            rows, goals = some.T
            alone = replace(shared.of(rows), slopes=self.slopes[rows, goals][:, None])
            best = alone.descent(torch.ones_like(alone.level))
            found[rows, goals] = self.tolerance - best.value
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaps:
    """The m smallest clean gaps of each example, as functions of the input."""

    model: nn.Module
    guide: nn.Module
    """The network whose explanation is followed: the model or a smooth copy."""
    explain: Explainer
    outputs: Outputs
    scale: Scale
    radius: float
    y: Tensor
    centre: Tensor
    unit: Tensor
    """The fall of the steepest gap over a radius at the clean input, what gaps count in: (B, 1)."""
    clean: Tensor
    """Probabilities of all outputs at the clean input: (B, C)."""
    classes: Tensor
    """Their classes: (B, S)."""
    features: Tensor
    """The features that occur in the pairs: (B, F)."""
    above: Tensor
    """Places in `features` of the pairs' top-k features: (B, m)."""
    below: Tensor
    """Places in `features` of their others: (B, m)."""

    @staticmethod
    def around(best: BestSoFar, pairs: int, scale: Scale, guide: float | None) -> "Gaps":
        """The gaps of the `pairs` pairs nearest to changing places."""
        if scale not in get_args(Scale) or pairs < 1 or not (guide is None or guide > 0):
            raise ValueError(
                f"gaps need a scale of {get_args(Scale)}, pairs >= 1 and a guide > 0 or None, got "
                f"{scale!r}, {pairs} and {guide}."
            )
        soft = None if guide is None else softened(best.model, guide)
        with torch.no_grad():
            logits = best.outputs(best.model, best.centre)
        features, above, below = thinnest_pairs(best.before, best.k, pairs)
        gaps = Gaps(
            model=best.model,
            guide=best.model if soft is None else soft,
            explain=best.explain,
            outputs=best.outputs,
            scale=scale,
            radius=best.threat.radius,
            y=best.y,
            centre=best.centre,
            unit=torch.ones_like(best.before[:, :1]),
            clean=_probabilities(logits),
            classes=_classes(logits),
            features=features,
            above=above,
            below=below,
        )
        _, slopes = gaps.values_and_slopes(best.centre)
        if not slopes.any():
            check_slopes(best.explain, gaps.guide, best.centre, best.y)
        steepest = gaps.paired(slopes).norm(dim=-1).amax(-1, keepdim=True).to(gaps.unit)
        with torch.no_grad():
            size = gaps.scores(best.centre).abs().amax(-1, keepdim=True)
        # Slopes that are nothing but rounding shall not become the measure of all gaps.
        grain = torch.finfo(size.dtype).eps ** 0.75 * size
        return replace(gaps, unit=_or_one(torch.maximum(steepest, grain)))

    def of(self, rows: Tensor) -> "Gaps":
        """The same of some examples only."""
        return replace(
            self,
            y=self.y[rows],
            centre=self.centre[rows],
            unit=self.unit[rows],
            clean=self.clean[rows],
            classes=self.classes[rows],
            features=self.features[rows],
            above=self.above[rows],
            below=self.below[rows],
        )

    def scores(self, x: Tensor) -> Tensor:
        """The explanation of the features in question, in its unit: (B, F)."""
        saliency = self.explain(self.guide, x, self.y)
        if self.scale == "relative":
            saliency = saliency / _or_one(saliency.abs().mean(-1, keepdim=True))
        return saliency.gather(-1, self.features) / self.unit

    def values(self, x: Tensor) -> Tensor:
        """The gaps h_l: (B, m)."""
        with torch.no_grad():
            scores = self.scores(x).double()
        return scores.gather(-1, self.above) - scores.gather(-1, self.below)

    def values_and_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gaps (B, m) and the gradients by a move in radii of all F scores: (B, F, d)."""
        with torch.no_grad():
            slopes = self.radius * jacobian(self.scores, x).double()
        return self.values(x), slopes

    def paired(self, slopes: Tensor) -> Tensor:
        """The gradients of the gaps from those of the scores: (B, m, d)."""
        picked = [
            slopes.gather(1, each[..., None].expand(-1, -1, slopes.shape[-1]))
            for each in (self.above, self.below)
        ]
        return picked[0] - picked[1]

    def way(self, start: Tensor, end: Tensor) -> Tensor:
        """The way from one input to another in radii: (B, d)."""
        return (end - start).flatten(1).double() / (self.radius or 1.0)

    def kept(self, x: Tensor) -> Tensor:
        """Whether all outputs are of their clean classes: (B,) booleans."""
        with torch.no_grad():
            classes = _classes(self.outputs(self.model, x))
        return (classes == self.classes).all(-1)

    def residual(self, x: Tensor, region: Region) -> Tensor:
        """What must not change, f = eps [(p - p0) / drift, (x - x0) / radius]: (B, C + d)."""
        with torch.no_grad():
            drift = _probabilities(self.outputs(self.model, x)) - self.clean
        away = self.way(self.centre, x)
        return region.tolerance * torch.cat([drift.double() / region.drift, away], -1)

    def merits(self, x: Tensor, targets: Tensor, region: Region) -> Tensor:
        """phi_l = ||f|| + |h_l - t_l| [Eq. 11], t = `targets` (B, m): (B, m)."""
        fixed: Tensor = self.residual(x, region).norm(dim=-1, keepdim=True)
        return fixed + (self.values(x) - targets).abs()

    def linearised(self, x: Tensor, region: Region) -> tuple[Tensor, Linearised]:
        """The gaps (B, m), and the merits around x whose targets make them all eps."""
        values, slopes = self.values_and_slopes(x)
        with torch.no_grad():
            drifts = jacobian(lambda point: _probabilities(self.outputs(self.model, point)), x)
        residual = self.residual(x, region)
        return values, Linearised(
            level=region.tolerance - residual.norm(dim=-1),
            slopes=self.paired(slopes),
            fixed=residual[:, : drifts.shape[1]],
            drifts=self.radius * region.tolerance / region.drift * drifts.double(),
            away=self.way(self.centre, x),
            tolerance=region.tolerance,
        )


def thinnest_pairs(saliency: Tensor, k: int, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """The features (B, F) of the smallest gaps, and where in them each pair's stand: twice (B, m).

    At most `pairs` of the k (n - k) pairs. A pair a places above the k-th and b places below it has
    a * b - 1 others of no larger gap within, so that F <= 2 pairs.
    """
    ranked = order(saliency)
    n = saliency.shape[-1]
    tops, others = min(k, pairs), min(n - k, pairs)
    features = ranked[:, k - tops : k + others]
    scores = saliency.gather(-1, features)
    # Nearest pairs first, so that of equal gaps those are taken: no matter how many are equal.
    gaps = scores[:, :tops].flip(-1)[:, :, None] - scores[:, None, tops:]
    chosen = gaps.flatten(1).argsort(dim=-1, stable=True)[:, :pairs]
    return features, tops - 1 - chosen // others, tops + chosen % others


def _or_one(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, 1.0)


def _probabilities(logits: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.softmax(-1) for each in logits], -1)


def _classes(logits: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.argmax(-1) for each in logits], -1)
