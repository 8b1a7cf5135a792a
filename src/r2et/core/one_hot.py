"""Directions in which data of one-hot groups cannot vary, and vectors without them."""

from collections import Counter
from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor

OneHot = Sequence[Sequence[int]]

NARROW = 128


def project_one_hot(gradient: Tensor, one_hot: OneHot | None) -> Tensor:
    """The gradient without its parts in directions in which the data cannot vary: like it.

    The columns of a one-hot group sum to 1 on every real input. c (sum - 1) added to a logit thus
    changes no prediction there, yet adds c to the slopes of the whole group: only their differences
    from the group's mean, returned here, mean anything. `one_hot` holds the column numbers of each
    group, in the flattened example; all other columns are returned as they are. The two slopes of
    a group of two are opposite numbers: absolute scores of such a group tie, up to `NARROW` columns
    exactly and beyond to rounding.

    >>> project_one_hot(torch.tensor([[5.0, 3.0, 1.0]]), [(0, 1)])
    tensor([[ 1., -1.,  1.]])
    """
    if not one_hot:
        return gradient
    groups = tuple(tuple(map(index, group)) for group in one_hot)
    flat = gradient.flatten(1)
    d = flat.shape[1]
    # One product is the cheapest by far, but its matrix grows with the square of d.
    if d <= NARROW:
        return (flat @ _projection(groups, d, flat.dtype, flat.device)).view_as(gradient)
    return _centred(flat, groups).view_as(gradient)


_PROJECTIONS: dict[tuple[object, ...], Tensor] = {}


def _projection(
    groups: tuple[tuple[int, ...], ...], d: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """P = I - sum over groups of 11'/m, m columns in the group: (d, d)."""
    key = (groups, d, dtype, device)
    if key in _PROJECTIONS:
        return _PROJECTIONS[key]
    # It outlives this call: made in inference mode, it could serve no derivative afterwards.
    with torch.inference_mode(False):
        found = _centred(torch.eye(d, dtype=dtype, device=device), groups)
    # While a model is exported tensors are stand-ins without numbers, and not to be kept.
    if type(found) is Tensor:
        if len(_PROJECTIONS) >= 32:
            _PROJECTIONS.clear()
        _PROJECTIONS[key] = found
    return found


def _centred(flat: Tensor, groups: tuple[tuple[int, ...], ...]) -> Tensor:
    """Each column minus the mean of its group, where it has one: (B, d)."""
    check_groups(groups, flat.shape[1])
    # Columns without a group share group 0, whose mean is zero by its size.
    group_of, sizes = [0] * flat.shape[1], [torch.inf]
    for number, group in enumerate(groups, start=1):
        sizes.append(len(group))
        for column in group:
            group_of[column] = number
    numbers = torch.tensor(group_of, device=flat.device)
    totals = flat.new_zeros(len(flat), len(sizes)).index_add(1, numbers, flat)
    means = totals / flat.new_tensor(sizes)
    return flat - means.index_select(1, numbers)


def check_groups(groups: OneHot, d: int) -> None:
    """Refuse one-hot groups that are not disjoint sets of the d columns."""
    columns = [column for group in groups for column in group]
    for number, group in enumerate(groups):
        if not len(group):
            raise ValueError(
                f"each one-hot group must name its columns, but group {number} is empty: "
                "leave it out."
            )
    if columns and not 0 <= min(columns) <= max(columns) < d:
        raise ValueError(
            f"one-hot groups must name columns 0..{d - 1}, got {min(columns)}..{max(columns)}."
        )
    for column, times in Counter(columns).most_common(1):
        if times > 1:
            raise ValueError(
                f"a column belongs to one one-hot group, but column {column} is named {times} "
                "times."
            )
