"""R2ET's idea carried to contributions: the top k lead by more than any admissible move takes away.

What a contribution of a number changes with that number is legitimate, so that the margin needed is
a local one. What was tried, and what failed, is told in docs/theory/contribution-gap.md.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from r2et.core.ranking import top_k_mask
from r2et.explainers import Explainer, Form, Shapley
from r2et.methods.method import BatchContext, Method, check_numbers

Move = Sequence[float]
"""What is added to the numbers of an encoded row, one number for each."""


def whole_moves(columns: int, steps: Mapping[int, Sequence[float]]) -> list[list[float]]:
    """Moves of rows of so many columns: all combinations of the steps of some, no step included.

    >>> whole_moves(3, {0: [-1.0, 1.0]})
    [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if not all(0 <= column < columns for column in steps):
        raise ValueError(
            f"steps are those of columns 0..{columns - 1}, got columns {sorted(steps)}."
        )
    offered = [[0.0, *map(float, steps.get(column, ()))] for column in range(columns)]
    return [list(move) for move in product(*offered) if any(move)]


def single_moves(columns: int, steps: Mapping[int, Sequence[float]]) -> list[list[float]]:
    """Moves of one column at a time: enough where what moves adds to the score on its own."""
    return [
        move for column, own in steps.items() for move in whole_moves(columns, {column: list(own)})
    ]


def corner_moves(columns: int, widths: Mapping[int, float]) -> list[list[float]]:
    """Moves of all columns that have a width at once, each as far as it may go, either way.

    >>> corner_moves(2, {1: 3.0})
    [[0.0, -3.0], [0.0, 3.0]]
    """
    steps = {column: (-width, width) for column, width in widths.items() if width}
    moves = whole_moves(columns, steps)
    return [move for move in moves if all(move[column] for column in steps)]


def worst_margin(contributions: Tensor, top: Tensor) -> Tensor:
    """The smallest lead of the `top` attributes over all others at any of M places: (B,).

    min over places of [the smallest of those in `top`, (B, n) booleans, less the largest of the
    others], `contributions` being (M, B, n).
    """
    low = contributions.masked_fill(~top, torch.inf).amin(-1)
    high = contributions.masked_fill(top, -torch.inf).amax(-1)
    worst: Tensor = (low - high).amin(0)
    return worst


def worst_separate_margin(contributions: Tensor, top: Tensor) -> Tensor:
    """The same where each attribute may be at the place that is worst for it: (B,).

    Of a score to which everything that moves adds on its own, and places that move one attribute
    each, it is the worst margin over all combinations of these moves, exactly.
    """
    low = contributions.amin(0).masked_fill(~top, torch.inf).amin(-1)
    high = contributions.amax(0).masked_fill(top, -torch.inf).amax(-1)
    return low - high


def ramp(margins: Tensor, room: float, temperature: float) -> Tensor:
    """Nearly 1 where a margin is below `room`, nearly 0 where it is above: like margins.

    sigmoid((room - margin) / temperature): a smooth count of broken decisions. A margin that is
    lost for good, or far larger than needed, asks for nothing.
    """
    return torch.sigmoid((room - margins) / temperature)


def contribution_margin(
    *,
    k: int,
    thickness: float = 0.1,
    room: float = 0.05,
    temperature: float = 0.15,
    moves: Sequence[Sequence[Move]] = (),
    separate: bool = False,
    groups: Sequence[int] | None = None,
    background: Sequence[Sequence[float]] | None = None,
    orders: int | None = None,
    form: Form = "against",
    share: float = 1.0,
    explain: Explainer | None = None,
) -> Method:
    """R2ET of contributions: L_cls + lambda mean over sets of ramp(worst margin within the set).

    lambda = `thickness`. The margin is that of the k-th of the top k at x over the largest of all
    others, at the worst move of a set: `moves` holds sets of moves, each a list of what is added to
    an encoded row, as `whole_moves` makes them; without one the margin is that at x. Predictions
    need not be kept. `separate` says that all that moves adds to the score on its own: moves of one
    attribute at a time, from `single_moves`, then stand for all their combinations.

    Contributions are those of `Shapley` to the predicted class: `groups` holds the attribute of
    each column, `background` the encoded rows of the reference, `orders` few random orders instead
    of all coalitions, `form` which contributions are reasons. `explain` is any other explanation
    in their place. A smaller `share` of each batch stands for all of it.
    """
    check_numbers(
        "R2ET of contributions",
        positive=("temperature", "share"),
        thickness=thickness,
        temperature=temperature,
        share=share,
    )
    if share > 1:
        raise ValueError(f"the share of a batch must be above 0 and at most 1, got {share}.")
    rows = None if background is None else torch.as_tensor(background, dtype=torch.float64)
    told = explain or Shapley(form=form, groups=groups, reference=rows, orders=orders)
    places, sets = _united(moves)
    margin_of = worst_separate_margin if separate else worst_margin

    def narrow(batch: BatchContext) -> Tensor:
        whole = len(batch.x)
        # Networks that lie together take turns: each has as many rows among the first ones.
        turn = getattr(batch.model, "in_turn", 1)
        few = min(whole, max(1, round(share * whole / turn)) * turn)
        x, y = batch.x[:few].detach(), batch.y[:few]
        at = torch.stack([x, *(x + move.view(x.shape[1:]) for move in _like(places, x))])
        phi = told(batch.model, at.flatten(0, 1), y.repeat(len(at))).unflatten(0, at.shape[:2])
        top = top_k_mask(phi[0].detach(), k)
        found = torch.stack([ramp(margin_of(phi[own], top), room, temperature) for own in sets])
        mean = found.mean(0)
        return torch.cat([mean * (whole / few), mean.new_zeros(whole - few)])

    penalties = (("margin", thickness, narrow),) if thickness else ()
    return Method(penalties=penalties, by_input=False)


def _united(moves: Sequence[Sequence[Move]]) -> tuple[Tensor, list[list[int]]]:
    """All different moves, and for each set the numbers of its own, 0 being no move at all."""
    known: dict[tuple[float, ...], int] = {}
    sets = []
    for own in moves or [[]]:
        chosen = [known.setdefault(tuple(map(float, move)), len(known) + 1) for move in own]
        sets.append([0, *chosen])
    if len({len(move) for move in known}) > 1:
        raise ValueError(
            "moves add one number to each column of an encoded row, got moves of different "
            f"lengths, {sorted({len(move) for move in known})}."
        )
    return torch.tensor(list(known), dtype=torch.float64), sets


def _like(places: Tensor, x: Tensor) -> Tensor:
    """The moves as numbers of examples like x, refused if they are of other ones: (M, d)."""
    columns = x[:1].numel()
    if len(places) and places.shape[1] != columns:
        raise ValueError(
            f"moves must add a number to each of the {columns} columns of an encoded row, got "
            f"{places.shape[1]}: build them with whole_moves({columns}, ...)."
        )
    return places.to(x)
