"""Coalitions of attributes, and what Shapley values make of the scores of each.

A Shapley value is a weighted sum of the scores of coalitions: sets of attributes that are taken
from one row, all others being taken from a reference. Which sets and which weights is all that an
exact computation, one by random orders and one of an additive score differ in.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import factorial

import torch
from torch import Tensor

MOST_EXACT = 12
"""The number of attributes up to which all 2^m coalitions are worth their cost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Coalitions:
    """Sets of m attributes and their weights: contributions are the scores of the sets @ weights.

    `members`, (K, m) booleans, says which attributes are in each set; `weights` are (K, m). Of
    contributions that are an average `parts`, (P, K, m), are the weights of what is averaged:
    their spread tells how far the average may be from what it estimates.
    """

    members: Tensor
    weights: Tensor
    parts: Tensor | None = None


@lru_cache(maxsize=16)
def every_coalition(m: int) -> Coalitions:
    """All 2^m of them, weighted as the Shapley value is defined.

    phi_a = sum over S without a of |S|! (m - |S| - 1)! / m! [v(S + a) - v(S)].
    """
    numbers = torch.arange(2**m)
    members = (numbers[:, None] >> torch.arange(m)) % 2 == 1
    size = members.sum(1).tolist()
    # A set that holds a is S + a of the definition, one that does not is S.
    joined = [factorial(s - 1) * factorial(m - s) / factorial(m) if s else 0.0 for s in size]
    alone = [factorial(s) * factorial(m - s - 1) / factorial(m) if s < m else 0.0 for s in size]
    sizes = torch.tensor([joined, alone], dtype=torch.float64)
    weights = torch.where(members, sizes[0, :, None], -sizes[1, :, None])
    return Coalitions(members=members, weights=weights)


@lru_cache(maxsize=16)
def ordered_coalitions(orders: tuple[tuple[int, ...], ...]) -> Coalitions:
    """The beginnings of orders of the attributes, each order beside its reverse: their average.

    In an order each attribute counts by what it adds to those before it, so that contributions of
    every order, and their mean, add up to the whole difference exactly. Together with its reverse
    an order is exact for scores in which no more than two attributes interact.
    """
    forward = torch.tensor(orders)
    places = torch.stack([forward, forward.flip(-1)], 1).argsort(-1)  # (P, 2, m)
    m = places.shape[-1]
    # begun[p, o, t, a]: whether attribute a is among the first t of the order.
    begun = places[:, :, None, :] < torch.arange(m + 1)[:, None]
    members, index = begun.view(-1, m).unique(dim=0, return_inverse=True)
    index = index.view(begun.shape[:3])
    parts = torch.zeros(len(places), len(members), m, dtype=torch.float64)
    attribute = torch.arange(m).expand_as(places)
    pair = torch.arange(len(places))[:, None, None].expand_as(places)
    half = torch.full(places.shape, 0.5, dtype=torch.float64)
    parts.index_put_((pair, index.gather(2, places + 1), attribute), half, accumulate=True)
    parts.index_put_((pair, index.gather(2, places), attribute), -half, accumulate=True)
    return Coalitions(members=members, weights=parts.mean(0), parts=parts)


@lru_cache(maxsize=16)
def single_coalitions(m: int) -> Coalitions:
    """Nobody, each attribute alone and, without weight, all of them.

    That is what a score without interactions needs, and what shows whether it has none: alone,
    they then add up to all.
    """
    members = torch.cat([torch.eye(m + 1, m).roll(1, 0), torch.ones(1, m)]).bool()
    weights = torch.cat([-torch.ones(1, m), torch.eye(m), torch.zeros(1, m)]).double()
    return Coalitions(members=members, weights=weights)
