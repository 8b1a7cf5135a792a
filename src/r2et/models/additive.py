"""A network whose explanations can hardly change: what may vary stands apart from what may not."""

import math
from collections.abc import Sequence
from operator import index
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.core.one_hot import check_groups, project_one_hot
from r2et.models.linear import undrawn


class OneFeatureUnits(nn.Module):
    """Units that each see one feature alone: (B, F) -> (B, F units).

    z = w x_i + b, `units` of them for each feature i, their weights (F, units). Weights with one
    more dimension, the first, are those of G networks, whose rows then lie together: (G B, F) ->
    (G B, F units).
    """

    piecewise_linear = True

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, units))
        self.bias = nn.Parameter(torch.empty(features, units))

    def forward(self, x: Tensor) -> Tensor:
        """Each feature as its own units see it."""
        *networks, features, units = self.weight.shape
        rows = x.view(*networks, -1, features, 1)
        seen = torch.addcmul(self.bias.unsqueeze(-3), rows, self.weight.unsqueeze(-3))
        return seen.view(*x.shape[:-1], features * units)

    def extra_repr(self) -> str:
        """How many features are seen, and by how many units each."""
        *_, features, units = self.weight.shape
        return f"{features} x {units}"


class AdditiveNet(nn.Module):
    r"""A linear path, curves of single numeric features, and a few smooth units on everything.

    s(x) = A Px + sum_i c_i(x_i) + V softplus(W Px + b; rho). A change of x turns the gradient of a
    curve in its own entry only, and that of the smooth units by no more than `variation` in all:
    softplus' lies in [0, 1]. P centres the columns of each one-hot group, which changes nothing
    on real rows (they sum to 1) but leaves the gradient no part in directions in which data cannot
    vary. Of two classes there is one score, the log-odds; of more, one logit for each.
    """

    def __init__(
        self,
        inputs: int,
        classes: int = 2,
        *,
        numeric: Sequence[int],
        one_hot: Sequence[Sequence[int]],
        curves: int = 8,
        units: int = 8,
        sharpness: float = 3.0,
    ) -> None:
        super().__init__()
        self.numeric = [index(column) for column in numeric]
        self.one_hot = [[index(column) for column in group] for group in one_hot]
        _check_sizes(classes, curves, units, sharpness)
        _check_columns(inputs, self.numeric, self.one_hot)
        outputs = 1 if classes == 2 else classes
        self.linear = undrawn(inputs, outputs)
        seen = len(self.numeric)
        self.curves = (
            nn.Sequential(
                OneFeatureUnits(seen, curves), nn.LeakyReLU(0.01), undrawn(seen * curves, outputs)
            )
            if seen
            else None
        )
        self.mixing = undrawn(inputs, units)
        self.bend = nn.Softplus(beta=sharpness)
        self.share = undrawn(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One logit for each class: (B, C)."""
        centred = project_one_hot(x, self.one_hot)
        scores: Tensor = self.linear(centred) + self.share(self.bend(self.mixing(centred)))
        if self.curves is not None:
            scores = scores + self.curves(x.index_select(1, self._columns(x)))
        return scores * scores.new_tensor([-0.5, 0.5]) if self._one_score else scores

    def log_odds_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the log-odds of class y by x, written out: like x.

        P[A'f + W'(softplus'(WPx + b) * V'f)] and the slopes of the curves c_i'f, where f is the
        gradient of the log-odds by the scores. Differentiated, it costs about half of what two
        derivatives of the logits do.
        """
        networks = self.mixing.weight.shape[:-2]

        def apart(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (*networks, -1)) if networks else rows

        flow = None if self._one_score else apart(self._flow(x, y))
        before: Tensor = self.mixing(project_one_hot(x, self.one_hot))
        turned = _steepness(self.bend, apart(before)) * _pulled(flow, self.share.weight)
        through = turned @ self.mixing.weight + _pulled(flow, self.linear.weight)
        gradient = project_one_hot(through.view_as(x), self.one_hot)
        if self.curves is not None:
            layers = cast(tuple[OneFeatureUnits, nn.Module, nn.Linear], tuple(self.curves))
            (units, kink, heights), columns = layers, self._columns(x)
            before = units(x.index_select(1, columns))
            risen = _pulled(flow, heights.weight) * units.weight.flatten(-2).unsqueeze(-2)
            curved = apart(_steepness(kink, before)) * risen
            of_columns = curved.view(len(x), len(columns), -1).sum(-1)
            gradient = gradient.index_add(1, columns, of_columns)
        return gradient if flow is not None else gradient * (2 * y - 1)[:, None]

    def plain(self) -> "Branches":
        """The same function of x, written out in linear layers and activations."""
        with torch.no_grad():
            inputs = self.linear.weight.shape[-1]
            paths: list[nn.Module] = [
                _layer(project_one_hot(self.linear.weight, self.one_hot), self.linear.bias),
                nn.Sequential(
                    _layer(project_one_hot(self.mixing.weight, self.one_hot), self.mixing.bias),
                    self.bend,
                    self.share,
                ),
            ]
            if self.curves is not None:
                layers = cast(tuple[OneFeatureUnits, nn.Module, nn.Linear], tuple(self.curves))
                (units, kink, heights) = layers
                features, per_feature = units.weight.shape
                spread = units.weight.new_zeros(features, per_feature, inputs)
                spread[range(features), :, self.numeric] = units.weight
                paths.append(nn.Sequential(_layer(spread.flatten(0, 1), units.bias), kink, heights))
            half = self.linear.weight.new_tensor([[-0.5], [0.5]])
            last = _layer(half, half.new_zeros(2)) if self._one_score else nn.Identity()
            return Branches(paths, last)

    @property
    def _one_score(self) -> bool:
        return self.share.weight.shape[-2] == 1

    def _flow(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the log-odds of class y by the scores: (B, C)."""
        own = F.one_hot(y, self.share.weight.shape[-2])
        others = AdditiveNet.forward(self, x).masked_fill(own.bool(), -torch.inf)
        return own - others.softmax(-1)

    def _columns(self, x: Tensor) -> Tensor:
        return torch.tensor(self.numeric, device=x.device)

    def variation(self) -> Tensor:
        """How far the smooth units can turn the gradient: sum_iu |(WP)_ui| |V_u|, a scalar.

        |V_u| is the largest difference between the weights of two scores. Of a stack: (G,).
        """
        weight, share = self.mixing.weight, self.share.weight
        centred = project_one_hot(weight.flatten(0, -2), self.one_hot).view_as(weight)
        reach = share.squeeze(-2).abs() if self._one_score else share.amax(-2) - share.amin(-2)
        total: Tensor = (centred.abs() * reach[..., None]).sum((-2, -1))
        return total


class Branches(nn.Module):
    """Networks side by side, their outputs added, and what is made of the sum."""

    def __init__(self, paths: Sequence[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.paths, self.last = nn.ModuleList(paths), last

    def forward(self, x: Tensor) -> Tensor:
        """What the last layer makes of the sum of all branches."""
        first, *others = self.paths
        added = first(x)
        for path in others:
            added = added + path(x)
        found: Tensor = self.last(added)
        return found


def _layer(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear layer of given weights."""
    layer = undrawn(weight.shape[1], weight.shape[0]).to(weight)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias.flatten())
    return layer


def _pulled(flow: Tensor | None, weight: Tensor) -> Tensor:
    """What flows back through a linear layer, (..., B, in); for a flow of ones (..., 1, in)."""
    return weight if flow is None else flow @ weight


def _steepness(activation: nn.Module, z: Tensor) -> Tensor:
    """Derivative of an activation at each number: like z. Differentiable iff the caller records."""
    if type(activation) is nn.Softplus:
        return torch.sigmoid(activation.beta * z)
    if type(activation) is nn.LeakyReLU:
        return torch.full_like(z, activation.negative_slope).masked_fill_(z > 0, 1.0)
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        z = z if z.requires_grad else z.detach().requires_grad_()
        (found,) = torch.autograd.grad(activation(z).sum(), z, create_graph=recording)
    return found


def _check_sizes(classes: int, curves: int, units: int, sharpness: float) -> None:
    """Refuse a network that tells nothing apart or has parts of no size."""
    if classes < 2:
        raise ValueError(f"a structured network tells two or more classes apart, got {classes}.")
    if min(curves, units) < 1 or not 0 < sharpness < math.inf:
        raise ValueError(
            "a structured network needs curves and units of at least 1 and a finite sharpness > 0, "
            f"got {curves}, {units} and {sharpness}."
        )


def _check_columns(inputs: int, numeric: Sequence[int], one_hot: Sequence[Sequence[int]]) -> None:
    """Refuse columns that do not exist or are named twice."""
    check_groups(one_hot, inputs)
    if numeric and not 0 <= min(numeric) <= max(numeric) < inputs:
        raise ValueError(
            f"numeric columns must be among 0..{inputs - 1}, got {min(numeric)}..{max(numeric)}."
        )
    if len(set(numeric)) < len(numeric):
        raise ValueError(f"numeric columns must be named once each, got {list(numeric)}.")
    if both := set(numeric) & {column for group in one_hot for column in group}:
        raise ValueError(
            f"a column is numeric or belongs to a one-hot group, but {sorted(both)} are both: "
            "leave them out of one."
        )
