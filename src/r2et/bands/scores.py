"""Scores of cells: points of bands, trees of bands, and what each attribute adds to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from r2et.bands.attribute import Bands, one_hot
from r2et.bands.boosting import Ordered
from r2et.bands.contributions import (
    coalitions_of,
    contributions,
    each_once,
    margins,
    shapley_margins,
)
from r2et.bands.leaves import Leaves, leaves_of, mean_of
from r2et.core.arrays import Codes, Floats

CHECKED = 100  # cells in which what is read of trees is compared with what they say
MIXED_AT_ONCE = 4_000_000  # scores of mixtures of people and a reference that are held together


@dataclass(frozen=True, kw_only=True, eq=False)
class Grown:
    """Boosted trees and the number that they are shown for each band, (bands,) of each attribute.

    An attribute that they do not look at is shown as one number, (1,). Of several classes they
    speak of one, the `label`.
    """

    model: Ordered
    shown: tuple[Floats, ...]
    label: int | None = None

    def __call__(self, cells: Codes) -> Floats:
        """Log-odds of cells: (N, m) -> (N,)."""
        columns = zip(self.shown, cells.T, strict=True)
        rows = np.stack([own[codes if len(own) > 1 else 0 * codes] for own, codes in columns], 1)
        found = self.model.decision_function(rows)
        return found if self.label is None else found[:, self.label]

    def leaves(self) -> Leaves | None:
        """The mean of those of all models, None if one of them cannot be read."""
        order = self.model.order.tolist()
        columns = [self.shown[place] for place in order]
        read = [leaves_of(each, columns, order, label=self.label) for each in self.model.models]
        known = [each for each in read if each is not None]
        return mean_of(known) if len(known) == len(read) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Trees:
    """Boosted trees of the attributes `among`.

    `leaves` are theirs, if they can be read, and then say everything. If not, they are there as
    they were `grown`.
    """

    among: tuple[int, ...]
    leaves: Leaves | None
    grown: Grown | None = None

    @classmethod
    def of(cls, among: Sequence[int], grown: Grown) -> "Trees":
        """Trees with their leaves, which are taken only if they say the same."""
        leaves, counts = grown.leaves(), [len(own) for own in grown.shown]
        some = np.random.default_rng(0).integers(0, counts, (CHECKED, len(counts)))
        if leaves is not None and np.allclose(leaves(some), grown(some), atol=1e-9):
            return cls(among=tuple(among), leaves=leaves)
        return cls(among=tuple(among), leaves=None, grown=grown)

    def __call__(self, cells: Codes) -> Floats:
        """Log-odds of cells: (N, m) -> (N,)."""
        if self.leaves is not None:
            return self.leaves(cells)
        grown = self.grown
        assert grown is not None

        def said(different: Codes) -> Floats:
            rows = np.zeros((len(different), cells.shape[1]), dtype=different.dtype)
            rows[:, self.among] = different
            return grown(rows)

        return each_once(said, cells[:, self.among])

    def contributions(self, cells: Codes, references: Codes) -> Floats:
        """Shapley values, (D, N, m), each the mean over one of D references, (D, R, m)."""
        if self.leaves is not None:
            return self.leaves.contributions(cells, references)
        return np.stack([contributions(self, cells, each, self.among) for each in references])


@dataclass(frozen=True, kw_only=True, eq=False)
class StepScore:
    """Points of each band for the attributes that have them, and what `rest` says of all others.

    With `trees`, which look at all attributes at once, the score is the mean of both, in which
    these count as the `share` says.
    """

    points: Mapping[int, Floats]
    rest: Trees | None
    constant: float
    trees: Trees | None = None
    share: float = 0.5

    def __call__(self, cells: Codes) -> Floats:
        """Log-odds of cells: (N, m) -> (N,)."""
        said = np.full(len(cells), self.constant)
        for place, points in self.points.items():
            said += points[cells[:, place]]
        if self.rest is not None:
            said += self.rest(cells)
        if self.trees is not None:
            said = (1 - self.share) * said + self.share * self.trees(cells)
        return said

    def contributions(self, cells: Codes, reference: Codes) -> Floats:
        """Shapley values of the attributes against the cells of a reference: (N, m)."""
        found: Floats = self.contributions_of(cells, reference[None])[0]
        return found

    def contributions_of(self, cells: Codes, references: Codes) -> Floats:
        """The same against each of D references, (D, R, m): (D, N, m).

        They are known where points are; trees know those of their leaves.
        """
        found = np.zeros((len(references), *cells.shape))
        if self.rest is not None:
            found += self.rest.contributions(cells, references)
        for place, points in self.points.items():
            usual = points[references[:, :, place]].mean(1)
            found[:, :, place] += points[cells[:, place]] - usual[:, None]
        if self.trees is not None:
            found *= 1 - self.share
            found += self.share * self.trees.contributions(cells, references)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class CardScores:
    """Points of each band for each of several classes, (C, columns)."""

    bands: tuple[Bands, ...]
    points: Floats
    constant: Floats

    def __call__(self, cells: Codes) -> Floats:
        """A score for each class: (N, m) -> (N, C)."""
        found: Floats = self._added(cells).sum(1) + self.constant
        return found

    def _added(self, cells: Codes) -> Floats:
        """The points of each attribute: (N, m, C)."""
        found: Floats = self.points.T[one_hot(cells, self.bands)[0]]
        return found

    def contributions(self, cells: Codes, reference: Codes) -> Floats:
        """Shapley values of the margin of each class against a reference: (N, m, C).

        The scores of a mixture are sums over what a person and what a row of the reference gives.
        """
        coalitions = coalitions_of(cells.shape[1])
        members = coalitions.members.numpy().astype(np.float64)
        weights = coalitions.weights.numpy()
        outside = np.einsum("km,rmc->krc", 1 - members, self._added(reference)) + self.constant
        parts = []
        at_once = max(1, MIXED_AT_ONCE // outside.size)
        for first in range(0, len(cells), at_once):
            inside = np.einsum("km,nmc->nkc", members, self._added(cells[first : first + at_once]))
            mixed = inside[:, :, None] + outside
            said = margins(mixed.reshape(-1, mixed.shape[-1])).reshape(mixed.shape).mean(2)
            parts.append(np.einsum("nkc,km->nmc", said, weights))
        return np.concatenate(parts) if parts else np.zeros((*cells.shape, len(self.constant)))


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeScores:
    """Trees of all bands, some for each of several classes."""

    trees: tuple[Trees, ...]

    def __call__(self, cells: Codes) -> Floats:
        """A score for each class: (N, m) -> (N, C)."""
        return np.stack([each(cells) for each in self.trees], 1)

    def contributions(self, cells: Codes, reference: Codes) -> Floats:
        """Shapley values of the margin of each class against a reference: (N, m, C)."""
        return shapley_margins(self, cells, reference)
