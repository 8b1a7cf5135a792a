"""Whether gradients say what the exchange of one category for another does to the score."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.core.one_hot import OneHot, check_groups
from r2et.core.rng import stream
from r2et.explainers import (
    SCORES,
    Explainer,
    SmoothGrad,
    check_inputs,
    check_logits,
    input_gradient,
)
from r2et.metrics.agreement import spearman

LEAST_AGREEMENT = 0.5
"""Below this mean agreement gradients are said to tell nothing about exchanges.

Half way between gradients that order exchanges as the score does (1) and gradients that know
nothing of them (0). Ordinary networks reach .63 (Bank) to .96, those trained for stability .79 and
more, and tents over all categories .13 at most (docs/guides/attacks.md).
"""
LEAST_SIZE = 1 / 3
"""Below this mean size likewise: the gradients say three times what exchanges do, or a third of it.

Ranks alone miss a tent over a single attribute, which keeps the order within it and that of all
others. Ordinary and trained networks reach .56 and more, tents that hold the top k .02 at most.
"""
LEAST_EXCHANGES = 3  # of two, any order agrees with the true one half of the time
MOST_EXCHANGES = 256  # of one person: a category of 10,000 values would cost 10,000 answers each
NUMBERS_AT_ONCE = 2**21
ROUNDING = 2**12  # times the precision of a number: what is closer together is a tie
NEAR = 1e-3  # of the way from 0 to 1, within which a column counts as 0 or 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """What gradients say about the exchanges of each person, against what these do: (B,) each.

    NaN where there is nothing to compare.
    """

    order: Tensor
    """Rank correlation, -1 to 1."""
    size: Tensor
    """The smaller of both root mean squares over the larger, 0 to 1."""

    def mean(self) -> "MeanAgreement | None":
        """Both over the people of whom there is something to compare, None if there are none."""
        known = ~self.order.isnan()
        if not known.any():
            return None
        return MeanAgreement(
            order=float(self.order[known].double().mean()),
            size=float(self.size[known].double().mean()),
            without=int((~known).sum()),
        )


@dataclass(frozen=True, kw_only=True)
class MeanAgreement:
    """Mean order and size, and how many people were left out for want of something to compare."""

    order: float
    size: float
    without: int


def exchange_agreement(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    groups: OneHot,
    *,
    explain: Explainer | None = None,
    off: Tensor | None = None,
    on: Tensor | None = None,
    most: int = MOST_EXCHANGES,
    numbers_at_once: int = NUMBERS_AT_ONCE,
) -> Agreement:
    """How well gradients tell what the exchanges of categories that a person could make would do.

    An exchange gives one attribute another of its values, all else as it is. The gradients say that
    it moves the margin of class y by that of the new column minus that of the old one; the truth is
    the margin afterwards minus the margin before. The `order` is Spearman's correlation of the two
    over all exchanges of a person, ties sharing their mean rank: 1 if the gradients order exchanges
    as the score does, about 0 if they say nothing about them. Gradients are those at x, with
    SmoothGrad as `explain` their means.

    `groups` hold the columns of each attribute, all 0 but for one 1; a column by itself has two
    values, 0 and 1. `off` and `on` (d,) are what 0 and 1 are in inputs, where these are scaled. A
    group that shows no value, or a mixture of several, offers no exchange. Of more than `most`
    exchanges a fixed sample is taken, the same for everybody.

    NaN where there is nothing to compare: for a person with fewer than `LEAST_EXCHANGES` exchanges,
    or one whose exchanges all do the same and are said to. Where only the gradients or only the
    score tell them apart, the order is 0. What differs by no more than rounding is a tie.

    >>> x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    >>> exchange_agreement(nn.Linear(4, 2), x, torch.tensor([1]), [(0, 1, 2, 3)]).order
    tensor([1.])
    """
    check_inputs(model, x, y)
    order, size = x.new_full((2, len(x)), torch.nan)
    if not groups:
        return Agreement(order=order, size=size)
    if x.ndim != 2:
        raise ValueError(
            f"categories are exchanged in rows of columns, (B, d), got shape {tuple(x.shape)}."
        )
    check_groups(groups, x.shape[1])
    if most < LEAST_EXCHANGES or numbers_at_once < 1:
        raise ValueError(
            f"an agreement takes {LEAST_EXCHANGES} exchanges or more and numbers_at_once >= 1, "
            f"got {most} and {numbers_at_once}."
        )
    x = x.detach()
    off = x.new_zeros(x.shape[1]) if off is None else off.to(x)
    on = x.new_ones(x.shape[1]) if on is None else on.to(x)
    rows_at_once = max(1, numbers_at_once // x.shape[1])
    offered = _offered(x, groups, off, on, most)
    said, said_of = _said(_slopes(model, x, y, explain, rows_at_once) * (on - off), groups, offered)
    done, done_of = _done(model, x, y, offered, off, on, rows_at_once)
    counts = offered.possible.sum(1)
    for count in counts.unique().tolist():
        if count < LEAST_EXCHANGES:
            continue
        rows = counts == count
        which = offered.possible[rows]
        first, second = (each[rows][which].view(-1, count) for each in (said, done))
        places = _places(first, said_of[rows]), _places(second, done_of[rows])
        nothing = (places[0].amax(1) == 0) & (places[1].amax(1) == 0)
        order[rows] = spearman(*places).to(x).masked_fill(nothing, torch.nan)
        size[rows] = _match(first, second).masked_fill(nothing, torch.nan)
    return Agreement(order=order, size=size)


def doubt(agreement: float, size: float) -> str:
    """One sentence if the mean agreement and size are too low to believe gradients, else none.

    >>> doubt(0.91, 0.8)
    ''
    """
    if agreement < LEAST_AGREEMENT:
        return (
            "These gradients say nothing about exchanges of categories: they order them as the "
            f"score does by {agreement:.2f} only, where 1 is the same order, 0 none, and "
            f"{LEAST_AGREEMENT:g} the least that is believed."
        )
    if size < LEAST_SIZE:
        return (
            "These gradients say nothing about exchanges of categories: what they say an exchange "
            f"does and what it does differ in size by a factor of {1 / max(size, 1e-3):.0f} or so, "
            f"where {1 / LEAST_SIZE:.0f} is the most that is believed."
        )
    return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Exchanges:
    """What each of B people could exchange: E values to be had, those of all groups in a row."""

    columns: Tensor
    """The column of each value: (E,)."""
    alone: Tensor
    """Whether it is a 0/1 column by itself, which is turned over: (E,)."""
    held: Tensor
    """The column of the value that a person has instead: (B, E)."""
    turned_off: Tensor
    """Whether the exchange sets the column itself to 0, as only one by itself can be: (B, E)."""
    possible: Tensor
    """Whether the person can make the exchange: (B, E)."""


def _offered(x: Tensor, groups: OneHot, off: Tensor, on: Tensor, most: int) -> _Exchanges:
    """The exchanges of each person, in the order of the groups."""
    values = (x - off) / (on - off)
    whole = values.round()
    valid = ((values - whole).abs() < NEAR) & (whole >= 0) & (whole <= 1)
    columns, alone, held, possible = [], [], [], []
    for group in groups:
        numbers = torch.tensor(list(group), device=x.device)
        single = len(group) == 1
        shown = valid[:, numbers].all(1) & (single | (whole[:, numbers].sum(1) == 1))
        own = numbers[whole[:, numbers].argmax(1)]
        columns.append(numbers)
        alone.append(torch.full_like(numbers, single, dtype=torch.bool))
        held.append(own[:, None].expand(-1, len(group)))
        possible.append(shown[:, None] & (single | (numbers != own[:, None])))
    kept = _sample([len(group) for group in groups], most).to(x.device)
    column, by_itself = torch.cat(columns)[kept], torch.cat(alone)[kept]
    return _Exchanges(
        columns=column,
        alone=by_itself,
        held=torch.cat(held, 1)[:, kept],
        turned_off=by_itself & (whole[:, column] == 1),
        possible=torch.cat(possible, 1)[:, kept],
    )


def _sample(sizes: Sequence[int], most: int) -> Tensor:
    """Which values are looked at: all, or `most`, as many of each group as there are: (E,).

    Drawn once and for all, so that everybody is asked for the same ones.
    """
    drawn = [torch.randperm(size, generator=stream(0, "exchanges")) for size in sizes]
    return torch.cat(drawn).argsort(stable=True)[:most].sort().values


def _slopes(
    model: nn.Module, x: Tensor, y: Tensor, explain: Explainer | None, rows_at_once: int
) -> Tensor:
    """The signed gradients of the margin that an explanation ranks: (B, d)."""
    if not isinstance(explain, SmoothGrad):
        parts = zip(x.split(rows_at_once), y.split(rows_at_once), strict=True)
        with torch.no_grad():
            return torch.cat(
                [input_gradient(model, part, labels, "margin") for part, labels in parts]
            )
    together = explain.rows_at_once or rows_at_once
    signed = replace(explain, of="margin", form="signed", groups=None, rows_at_once=together)
    with torch.no_grad():
        return signed(model, x, y)


def _said(slopes: Tensor, groups: OneHot, offered: _Exchanges) -> tuple[Tensor, Tensor]:
    """By how much the gradients say that each exchange moves the margin: (B, E), and their size."""
    new, old = slopes[:, offered.columns], slopes.gather(1, offered.held)
    turned = torch.where(offered.turned_off, -new, new)
    columns = [number for group in groups for number in group]
    return torch.where(offered.alone, turned, new - old), slopes[:, columns].abs().amax(1)


def _done(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    offered: _Exchanges,
    off: Tensor,
    on: Tensor,
    rows_at_once: int,
) -> tuple[Tensor, Tensor]:
    """By how much each exchange moves the margin: (B, E), and the size of the logits: (B,)."""

    def answers(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), eval_mode(model):
            logits = model(rows)
        check_logits(logits)
        return SCORES["margin"](logits, labels), logits.abs().amax(1)

    whole = zip(x.split(rows_at_once), y.split(rows_at_once), strict=True)
    parts = [answers(*part) for part in whole]
    before, size = (torch.cat(each) for each in zip(*parts, strict=True))
    done = torch.zeros_like(offered.possible, dtype=before.dtype)
    for part in offered.possible.nonzero().split(rows_at_once):
        people, which = part.unbind(1)
        old, new = offered.held[people, which], offered.columns[which]
        rows, each = x[people], torch.arange(len(part), device=x.device)
        rows[each, old] = off[old]
        rows[each, new] = torch.where(offered.turned_off[people, which], off[new], on[new])
        after, large = answers(rows, y[people])
        done[people, which] = after - before[people]
        size = size.scatter_reduce(0, people, large, "amax")
    return done, size


def _places(values: Tensor, size: Tensor) -> Tensor:
    """Places of the values in rising order, one for all that only rounding tells apart: (B, E).

    `size` (B,) is that of the numbers they are differences of.
    """
    ordered, order = values.double().sort(dim=1)
    near = ROUNDING * torch.finfo(values.dtype).eps * size.double()[:, None]
    places = F.pad((ordered.diff(dim=1) > near).cumsum(1), (1, 0)).double()
    return torch.empty_like(places).scatter_(1, order, places)


def _match(first: Tensor, second: Tensor) -> Tensor:
    """The smaller of two lengths over the larger: (B,), zero where one alone is zero."""
    lengths = torch.stack([first.norm(dim=1), second.norm(dim=1)])
    largest = lengths.amax(0)
    return lengths.amin(0) / torch.where(largest > 0, largest, 1.0)
