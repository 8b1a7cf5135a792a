"""The reasons of people at home and after moves, and what the moves did to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from r2et.core.arrays import Floats
from r2et.metrics.individuality import kappa, overlap


@dataclass(frozen=True, kw_only=True)
class UnderMoves:
    """What moves did, the mean over references.

    `broken` is the share of decisions some move gives other reasons, `kept` (S) the share of
    reasons that stays in the worst move, `core` how many stay in every move, and `all_but_one` the
    share of decisions of which at least k - 1 do. `overlap` (O) is what two people of one predicted
    class share, `overlap_of_all` what any two do, and `kappa` (S - O) / (1 - O).
    """

    broken: float
    kept: float
    core: float
    all_but_one: float
    overlap: float
    overlap_of_all: float
    kappa: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Reasons:
    """The k reasons of N people at home and after M moves, told against each of D references.

    `among`, (D, 1 + M, N, m), says which columns are reasons, `stays`, (1 + M, N), where the
    decision is that at home, and `first`, (N,), whether that is for the second class.
    """

    among: NDArray[np.bool_]
    stays: NDArray[np.bool_]
    first: NDArray[np.bool_]
    k: int

    @property
    def same(self) -> Floats:
        """The share of the reasons at home that each move leaves: (D, 1 + M, N).

        All of them where it changes the decision: another decision has reasons of its own.
        """
        shared = (self.among & self.among[:, :1]).sum(-1) / self.k
        found: Floats = np.where(self.stays, shared, 1.0)
        return found

    def broken_within(self, sizes: Floats, limits: Sequence[float]) -> list[float]:
        """The share of decisions broken by moves up to each size, sizes being (M, N)."""
        breaks = self.same[:, 1:] < 1
        return [float((breaks & (sizes <= limit + 1e-9)).any(1).mean()) for limit in limits]

    def summary(self) -> UnderMoves:
        """What the moves did to all of them."""
        worst = self.same.min(1)
        lasting = (self.among | ~self.stays[..., None]).all(1) & self.among[:, 0]
        core = lasting.sum(-1)
        classes = torch.from_numpy(self.first.astype(int))
        tops = [torch.from_numpy(each[0].astype(float)) for each in self.among]
        within = float(np.mean([overlap(top, self.k, classes) or 0.0 for top in tops]))
        kept = float(worst.mean())
        return UnderMoves(
            broken=float((worst < 1).mean()),
            kept=kept,
            core=float(core.mean()),
            all_but_one=float((core >= self.k - 1).mean()),
            overlap=within,
            overlap_of_all=float(np.mean([overlap(top, self.k) or 0.0 for top in tops])),
            kappa=kappa(kept, within),
        )
