"""What contributions are made of: mixtures of an example with reference rows, and their scores.

A contribution is a weighted sum of scores of mixtures, each of which takes some attributes from the
example and all others from a reference row. While the example moves, so do those mixtures that hold
a moving column of it, all along the same symbols: what they have in common is known.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from r2et.certification import activations
from r2et.certification.affine import AffineForm, Region
from r2et.certification.layers import propagate
from r2et.certification.program import Program
from r2et.certification.propagate import BoundPropagator
from r2et.core.coalitions import Coalitions
from r2et.explainers import Quantity, quantity_of

MOST_KEYS = 2**31
"""Mixtures are told apart by one number, which is made small again before it gets larger."""
AT_ONCE = 4096
"""Mixtures that are bounded together: more do not fit next to the processor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """Of which mixtures contributions are made, by which weights: those of all examples.

    `taken` (K, d) says which columns each coalition takes from the example, `kinds` (R, m) numbers
    the different values that the reference rows have of each attribute.
    """

    coalitions: Coalitions
    groups: Tensor
    references: Tensor
    taken: Tensor
    kinds: Tensor

    @classmethod
    def of(cls, coalitions: Coalitions, groups: tuple[int, ...], references: Tensor) -> "Asked":
        """The same, each attribute's values numbered."""
        attribute = torch.tensor(groups)
        kinds = [
            references[:, attribute == each].unique(dim=0, return_inverse=True)[1]
            for each in range(coalitions.members.shape[1])
        ]
        return cls(
            coalitions=coalitions,
            groups=attribute,
            references=references,
            taken=coalitions.members[:, attribute] | (attribute < 0),
            kinds=torch.stack(kinds, 1),
        )

    @property
    def attributes(self) -> int:
        """How many contributions there are."""
        return self.coalitions.members.shape[1]

    @property
    def count(self) -> int:
        """How many mixtures of an example there are, equal ones among them."""
        return len(self.taken) * len(self.references)

    @property
    def load(self) -> float:
        """By how many roundings of the largest score a contribution may be off."""
        return float(self.coalitions.weights.abs().sum(0).max()) * (2 * self.count + 64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixtures:
    """The different mixtures of one example: contributions are their scores @ weights.

    `rows` are (U, d), the first of them the example itself; `own` (U, A) says which of the moving
    columns are the example's, `weights` are (U, m).
    """

    rows: Tensor
    own: Tensor
    weights: Tensor

    def at(self, columns: Tensor, values: Tensor) -> Tensor:
        """The mixtures of the example with other values (A,) in its moving columns: (U, d)."""
        rows = self.rows.clone()
        rows[:, columns] = torch.where(self.own, values, rows[:, columns])
        return rows


def mixtures(asked: Asked, x: Tensor, columns: Tensor) -> Mixtures:
    """The different mixtures of one example x (d,) of which `columns` (A,) may move.

    Two that are equal for every value of these columns are one, with the sum of their weights.
    """
    groups, members, references = asked.groups, asked.coalitions.members, asked.references
    moving = torch.zeros(len(x), dtype=torch.bool)
    moving[columns] = True
    differs = (references != x) | moving
    apart = torch.zeros(len(references), asked.attributes, dtype=torch.long)
    counted = groups >= 0
    apart.index_add_(1, groups[counted], differs[:, counted].long())
    codes = torch.where(apart > 0, 1 + asked.kinds, 0)  # (R, m), 0 for the example's own value
    # Of the example itself, and of nothing else, the key is 0: the least of all.
    key = torch.zeros(len(members), len(references), dtype=torch.long)
    for own, code in zip(members.T, codes.T, strict=True):
        key = key * (int(code.max()) + 1) + torch.where(own[:, None], 0, code)
        if int(key.max()) > MOST_KEYS:
            key = key.unique(return_inverse=True)[1]
    found, place = key.flatten().unique(return_inverse=True)
    number = torch.arange(place.numel())
    first = number.new_full((len(found),), place.numel())
    first = first.scatter_reduce(0, place, number, "amin")
    chosen = asked.taken[first // len(references)]
    each = asked.coalitions.weights.double() / len(references)
    weights = torch.zeros(len(found), asked.attributes, dtype=torch.float64)
    weights.index_add_(0, place, each.repeat_interleave(len(references), 0))
    return Mixtures(
        rows=torch.where(chosen, x, references[first % len(references)]),
        own=(chosen & moving)[:, columns],
        weights=weights,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreTask:
    """Of which network which quantity is scored, where `columns` (A,) of the input may move."""

    program: Program
    of: Quantity
    columns: Tensor

    def values(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of class y, (N,), and logits, (N, C)."""
        parts = [self.program(part) for part in rows.split(AT_ONCE)]
        logits = torch.cat(parts)
        return quantity_of(logits, y, self.of), logits

    def bounds(
        self, rows: Tensor, reach: Tensor, y: Tensor, decided: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores of class y as forms, and the most by which `decided` leads another class.

        `rows` and `reach` are (N, d). The forms are (2 + A, N): centre, moves and rest.
        """
        parts = [
            self._bounds(*part)
            for part in zip(
                *(each.split(AT_ONCE) for each in (rows, reach, y, decided)), strict=True
            )
        ]
        return torch.cat([forms for forms, _ in parts], 1), torch.cat([lead for _, lead in parts])

    def _bounds(
        self, rows: Tensor, reach: Tensor, y: Tensor, decided: Tensor
    ) -> tuple[Tensor, Tensor]:
        region = Region(x=rows, radius=rows.new_ones(len(rows)), norm="linf", scale=reach)
        propagator, logits = propagate(self.program, region, 0)
        score = _score(propagator, logits.form, y, self.of)
        found = rows.new_zeros(2 + len(self.columns), len(rows))
        found[0], found[-1] = score.centre.squeeze(1), score.rest.squeeze(1)
        if len(score.moves):
            places = torch.searchsorted(self.columns, region.free)
            found[1 + places] = score.moves.squeeze(-1)
        ahead = _ahead(logits.form, decided)
        most = propagator.symbols.range(ahead)[1]
        return found, most.masked_fill(_own(decided, most), torch.inf).amin(-1)


def _own(y: Tensor, like: Tensor) -> Tensor:
    """Which entry of each row is that of class y: (N, C) booleans."""
    return F.one_hot(y, like.shape[-1]).bool()


def _ahead(logits: AffineForm, y: Tensor) -> AffineForm:
    """The logit of class y less that of each class: (N, C)."""
    place = y[:, None]
    centre = logits.centre.gather(1, place)
    moves = logits.moves.gather(2, place.expand(len(logits.moves), -1, -1))
    rest = logits.rest.gather(1, place)
    sizes = [
        own.abs() + steps.abs().sum(0)
        for own, steps in ((centre, moves), (logits.centre, logits.moves))
    ]
    rounding = 8 * torch.finfo(centre.dtype).eps * (sizes[0] + sizes[1] + rest + logits.rest)
    return AffineForm(centre - logits.centre, moves - logits.moves, rest + logits.rest + rounding)


def _picked(form: AffineForm, place: Tensor) -> AffineForm:
    """One number of each row: (N, 1)."""
    place = place[:, None]
    return AffineForm(
        form.centre.gather(1, place),
        form.moves.gather(2, place.expand(len(form.moves), -1, -1)),
        form.rest.gather(1, place),
    )


def _score(propagator: BoundPropagator, logits: AffineForm, y: Tensor, of: Quantity) -> AffineForm:
    """The explained quantity of class y: (N, 1)."""
    if of == "logit":
        return _picked(logits, y)
    ahead = _ahead(logits, y)
    hidden = _own(y, ahead.centre)
    rival = ahead.centre.masked_fill(hidden, torch.inf).argmin(-1)
    found = _picked(ahead, rival)
    if logits.centre.shape[1] > 2:
        # The lead over the best of all others is that over the rival, less what another is above
        # it somewhere.
        above = propagator.symbols.range(_ahead(logits, rival))[0].neg()
        most = above.masked_fill(hidden | _own(rival, above), 0.0).amax(-1, keepdim=True)
        found = propagator.symbols.with_errors(found, -most.clamp_min(0.0), torch.zeros_like(most))
    if of == "margin":
        return found
    if of == "loss":
        found = AffineForm(-found.centre, -found.moves, found.rest)
    activation = activations.sigmoid() if of == "probability" else activations.softplus()
    return propagator.activate(propagator.put(found), activation).form
