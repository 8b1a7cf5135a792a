"""Explanations: which features mattered for the score of one class, (model, x, y) -> (B, n).

Every explainer can be differentiated by its input and by the model's weights, treats an example
in a batch exactly as alone, and changes nothing of the caller's model or tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, gradient_of
from r2et.core.coalitions import (
    MOST_EXACT,
    Coalitions,
    every_coalition,
    ordered_coalitions,
    single_coalitions,
)
from r2et.core.geometry import by_example, on_segment, one_of
from r2et.core.inputs import joined, packed
from r2et.core.naming import nearest
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.rng import noise_like, stream
from r2et.core.rows import RowTrace, is_row
from r2et.core.second_order import differentiated_twice

Quantity = Literal["probability", "logit", "margin", "loss"]
Form = Literal["absolute", "signed", "normalised", "against", "both"]
"""How scores are shown: `signed` is what speaks for the class, `against` its negative, `both` its
magnitude, each of the sum over a feature's columns; `absolute` and, as shares of their total,
`normalised` are sums of the columns' magnitudes, as in the papers."""
Function = Callable[[Tensor], Tensor]
Explainer = Callable[[nn.Module, Tensor, Tensor], Tensor]
Place = Callable[[Tensor, range], Tensor]
"""(x, some numbers) -> the places (m, B, ...) of these numbers that are derived from x."""

BYTES_AT_ONCE = 2**29
"""About the memory that an explainer may take at once, unless its `rows_at_once` are given."""
ORDERS = 64
"""How many orders of attributes contributions are averaged over where they are too many."""
FEW = 2**16  # numbers of all rows together that are not worth a look at the memory they take


def check_inputs(model: nn.Module, x: Tensor, y: Tensor | None = None) -> None:
    """Refuse inputs, labels and model outputs from which no explanation can follow."""
    if x.ndim < 2 or not x.is_floating_point():
        raise ValueError(
            f"x must be a batch of floating-point examples, got shape {tuple(x.shape)} of "
            f"{x.dtype}: give one row for each example."
        )
    if not torch.isfinite(x).all():
        row = int((~torch.isfinite(x.flatten(1))).any(-1).nonzero()[0])
        raise ValueError(f"x must be finite, but row {row} has a NaN or infinite value: clean it.")
    if y is not None:
        check_targets(y, len(x))
    with torch.no_grad(), eval_mode(model):
        logits = logits_of(model, x[:1])
    check_logits(logits)
    if y is not None:
        check_classes(y, logits.shape[1])


def check_targets(y: object, examples: int) -> None:
    """Refuse targets that are not one class number for each example."""
    if not isinstance(y, Tensor) or y.shape != (examples,) or y.dtype != torch.long:
        got = f"shape {tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"y must hold one class number, torch.long, for each of the {examples} examples, got "
            f"{got}: of several labels or shares of classes explain one class at a time."
        )


def check_classes(y: Tensor, classes: int) -> None:
    """Refuse numbers that no class has."""
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(
            f"y must hold class numbers 0..{classes - 1}, got {int(y.min())}..{int(y.max())}."
        )


def check_predicted(model: nn.Module, x: Tensor, y: Tensor, rows_at_once: int) -> None:
    """Refuse classes other than those the model predicts, where these are what is to be kept.

    What rounding alone could decide is not held against anyone.
    """
    other = 0
    for part, labels in zip(x.split(rows_at_once), y.split(rows_at_once), strict=True):
        with torch.no_grad(), eval_mode(model):
            logits = logits_of(model, part.detach())
        slack = torch.finfo(logits.dtype).eps ** 0.5 * logits.abs().amax(-1)
        other += int((logit(logits, labels) < logits.amax(-1) - slack).sum())
    if other:
        raise ValueError(
            f"y must be the class that the model predicts, which is kept, but {other} of {len(x)} "
            "rows are predicted otherwise: give predicted(model, x) instead of true labels."
        )


def two_logits(z: Tensor) -> Tensor:
    """A logit for each of two classes, [-z / 2, z / 2], of log-odds z, (B,) or (B, 1): (B, 2).

    Of all pairs with these log-odds the one that favours neither class: beside a constant 0 the
    logit of the first class would have no slope.
    """
    half = z.reshape(-1) / 2
    return torch.stack([-half, half], dim=-1)


def class_logits(outputs: Tensor) -> Tensor:
    """One logit for each class: the outputs, a single one read as log-odds of two classes: (B, C).

    A model with one output, (B, 1) or (B,), says how likely the second of two classes is.
    """
    single = isinstance(outputs, Tensor) and (outputs.ndim < 2 or outputs.shape[1:] == (1,))
    return two_logits(outputs) if single else outputs


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """What the model says of x, one logit for each class: (B, C)."""
    outputs = model(x)
    if isinstance(outputs, Tensor) and outputs.ndim < 2 and outputs.numel() != len(x):
        raise ValueError(
            f"the model must return a row of logits for each of {len(x)} examples, or the log-odds "
            f"of two classes, (B, 1) or (B,), got shape {tuple(outputs.shape)}."
        )
    return class_logits(outputs)


def check_logits(logits: object) -> None:
    """Refuse what a model returned if it is not one finite logit for each class."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
        got = (
            f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        )
        raise ValueError(
            f"the model must return one logit for each of two or more classes, (B, C), or the "
            f"log-odds of two, (B, 1) or (B,), got {got}: end it with a layer of such outputs."
        )
    if not torch.isfinite(logits).all():
        raise ValueError(
            "the model returned NaN or infinite logits: check its inputs, its weights and, in "
            "training, the learning rate."
        )


def log_odds(logits: Tensor, y: Tensor) -> Tensor:
    """Logarithm of p / (1 - p) for class y, exact however sure the model is: (B,)."""
    logits = class_logits(logits)
    if logits.shape[-1] == 2:
        # One product and one sum: two columns taken out would have to be put back in every slope.
        return (logits * _signs(logits, y)).sum(-1)
    return logit(logits, y) - _others(logits, y).logsumexp(-1)


def _signs(logits: Tensor, y: Tensor) -> Tensor:
    """1 for class y of two, -1 for the other: (B, 2)."""
    return torch.ones_like(logits).scatter_(-1, 1 - y[:, None], -1.0)


def logit(logits: Tensor, y: Tensor) -> Tensor:
    """Logit of class y: (B,)."""
    return class_logits(logits).gather(-1, y[:, None]).squeeze(-1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Logit of class y minus the largest other logit: (B,)."""
    logits = class_logits(logits)
    return logit(logits, y) - _others(logits, y).max(-1).values


def _others(logits: Tensor, y: Tensor) -> Tensor:
    """The logits with that of class y put last of all: (B, C)."""
    return logits.masked_fill(F.one_hot(y, logits.shape[-1]).bool(), -torch.inf)


SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "probability": log_odds,
    "logit": logit,
    "margin": margin,
    "loss": log_odds,
}
"""What is differentiated for each quantity: probability and loss are functions of the log-odds."""


def quantity_of(logits: Tensor, y: Tensor, of: Quantity) -> Tensor:
    """The explained quantity of class y itself: (B,)."""
    if of not in SCORES:
        raise ValueError(f"an explanation is of {' or '.join(SCORES)}, got {of!r}.")
    score = SCORES[of](logits, y)
    if of == "probability":
        return torch.sigmoid(score)
    return F.softplus(-score) if of == "loss" else score


def input_gradient_of(logits: Tensor, x: Tensor, y: Tensor, of: Quantity = "probability") -> Tensor:
    """Gradient by x of the explained quantity of class y, `logits` computed from x: like x.

    With p = sigmoid(m), m the log-odds, grad p = p (1 - p) grad m, and the cross-entropy -ln p has
    the gradient -(1 - p) grad m: the features' order is the same. The factors are taken apart
    because a softmax rounds 1 - p to zero for a sure model, and with it every feature to a tie.
    """
    if of not in SCORES:
        raise ValueError(f"an explanation is of {' or '.join(SCORES)}, got {of!r}.")
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        score = SCORES[of](logits, y)
        gradient = gradient_of(score, x, create_graph=recording)
    if of not in ("probability", "loss"):
        return gradient
    return _by_steepness(score, gradient, of)


def input_gradient_along(way: RowTrace, y: Tensor) -> Tensor:
    """Gradient of the probability of class y by what passed through a row of layers: (B, d).

    What `input_gradient_of` says, as a product of weights and slopes of kinks.
    """
    if way.logits.shape[-1] == 2:
        signs = _signs(way.logits, y)
        return _by_steepness((way.logits * signs).sum(-1), way.back(signs))
    shares = _others(way.logits, y).softmax(-1)
    slope = (-shares).scatter(-1, y[:, None], 1.0)
    return _by_steepness(log_odds(way.logits, y), way.back(slope))


def _by_steepness(score: Tensor, gradient: Tensor, of: Quantity = "probability") -> Tensor:
    """Gradient of the probability or the loss of a class, of that of its log-odds: like it."""
    steepness = torch.sigmoid(-score)
    if of == "probability":
        steepness = torch.sigmoid(score) * steepness
    # A floor with room below it: where even p (1 - p) underflows, the ranking is kept.
    steepness = steepness.clamp_min(torch.finfo(score.dtype).tiny ** 0.8)
    return by_example(steepness if of == "probability" else -steepness, gradient) * gradient


def input_gradient(model: nn.Module, x: Tensor, y: Tensor, of: Quantity = "probability") -> Tensor:
    """Gradient of the explained quantity of class y: like x. Differentiable iff the caller is."""
    x = x if torch.is_grad_enabled() and x.requires_grad else x.detach().requires_grad_()
    with differentiated_twice(), torch.enable_grad(), eval_mode(model):
        logits = logits_of(model, x)
    check_classes(y, logits.shape[-1])
    return input_gradient_of(logits, x, y, of)


def shaped(scores: Tensor, form: Form, groups: Sequence[int] | None) -> Tensor:
    """Raw scores in the chosen form, as totals of `groups` where given: (B, n).

    `groups` holds for each number of an example the feature that it counts for, -1 for none.
    """
    if form not in get_args(Form):
        raise ValueError(f"the form of an explanation is one of {get_args(Form)}, got {form!r}.")
    flat = scores.flatten(1)
    if form in ("absolute", "normalised"):
        flat = flat.abs()
    if groups is not None:
        flat = _totals(flat, tuple(groups))
    if form in ("against", "both"):
        flat = -flat if form == "against" else flat.abs()
    if form == "normalised":
        total = flat.sum(-1, keepdim=True)
        # An explanation of nothing but zeros stays so; it is counted as a tie, not divided by zero.
        flat = torch.where(total > 0, flat / torch.where(total > 0, total, 1.0), flat)
    return flat


def _totals(flat: Tensor, groups: tuple[int, ...]) -> Tensor:
    """The sum of each group's columns, those of group -1 left out: (B, n)."""
    if len(groups) != flat.shape[1]:
        raise ValueError(
            f"groups must name one group for each of {flat.shape[1]} columns, got {len(groups)}."
        )
    columns, index, count = _members(groups, flat.device)
    if columns is not None:
        flat = flat.index_select(1, columns)
    if index is None:
        return flat
    return flat.new_zeros(len(flat), count).index_add(1, index, flat)


@lru_cache(maxsize=32)
def _members(
    groups: tuple[int, ...], device: torch.device
) -> tuple[Tensor | None, Tensor | None, int]:
    """The columns that count, None for all; the group of each, None if each is its own; groups."""
    with torch.inference_mode(False):
        numbers = torch.tensor(groups, device=device)
        columns = (numbers >= 0).nonzero().squeeze(1)
        index = numbers[columns]
        count = int(index.max()) + 1 if len(index) else 0
        if not count:
            raise ValueError("groups must count some column for a feature, got none but -1.")
        own = len(index) == count and bool((index == torch.arange(count, device=device)).all())
        return None if len(columns) == len(groups) else columns, None if own else index, count


class _Recomputed(torch.autograd.Function):
    """A function of x and weights that is computed again when its gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, function: Function, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x, *weights)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            x = x if recording and x.requires_grad else x.detach().requires_grad_()
            # Where x hangs on the weights itself, that share of their gradient is the caller's to
            # add: nothing flows on through x while the weights' own share is computed.
            gate = x.view_as(x)
            shut = gate.register_hook(torch.zeros_like)
            x = gate.view_as(gate)
            values = ctx.function(x)
            if not values.requires_grad:  # a constant, such as the margin's gradient if linear
                return (None,) * (2 + len(weights))
            found = torch.autograd.grad(
                values, [x, *weights], flows, create_graph=recording, allow_unused=True
            )
            shut.remove()
        return (None, *found)


def _recomputed(function: Function, model: nn.Module, x: Tensor) -> Tensor:
    """function(x) whose graph is built only while it is being differentiated: like function(x)."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def again(x: Tensor) -> Tensor:
        now = [weight for weight in model.parameters() if weight.requires_grad]
        if len(now) != len(weights) or any(a is not b for a, b in zip(now, weights, strict=True)):
            raise RuntimeError(
                "the model's weights were exchanged or frozen before an explanation was "
                "differentiated: do it afterwards, or raise rows_at_once above all its rows."
            )
        return function(x)

    if torch.is_grad_enabled() and (x.requires_grad or weights):
        result: Tensor = _Recomputed.apply(again, x, *weights)  # type: ignore[no-untyped-call]
        return result
    with torch.no_grad():
        return function(x)


def mean_input_gradient(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    place: Place,
    points: int,
    *,
    of: Quantity,
    rows_at_once: int | None,
) -> Tensor:
    """Mean gradient over the places (m, B, ...) that `place(x, numbers)` derives from x: like x.

    No more than `rows_at_once` rows pass through the model together, also while differentiating;
    unless given, as many as keep within `BYTES_AT_ONCE` what one of them takes.
    """
    if points < 1 or (rows_at_once is not None and rows_at_once < 1):
        raise ValueError(
            f"points and rows_at_once must be at least 1, got {points} and {rows_at_once}."
        )
    if rows_at_once is None:
        work = partial(input_gradient, model, of=of)
        rows_at_once = _rows_within(model, x, y, len(x) * points, work)

    def total(part: Tensor, labels: Tensor, numbers: range) -> Tensor:
        if place is _itself:
            return input_gradient(model, part, labels, of)
        places = place(part, numbers)
        slopes = input_gradient(model, places.flatten(0, 1), labels.repeat(len(numbers)), of)
        return slopes.view_as(places).sum(0)

    if len(x) * points <= rows_at_once:
        found = total(x, y, range(points))
        return found if points == 1 else found / points
    turn = getattr(model, "in_turn", 1)  # rows that take turns among stacked networks stay together
    examples = min(len(x), max(turn, rows_at_once // turn * turn))
    together = max(1, rows_at_once // examples)
    sums = []
    for part, labels in zip(x.split(examples), y.split(examples), strict=True):
        so_far = torch.zeros_like(part)
        for first in range(0, points, together):
            numbers = range(first, min(first + together, points))
            work = partial(total, labels=labels, numbers=numbers)
            so_far = so_far + _recomputed(work, model, part)
        sums.append(so_far)
    return torch.cat(sums) / points


def _rows_within(
    model: nn.Module, x: Tensor, y: Tensor, rows: int, work: Callable[[Tensor, Tensor], Tensor]
) -> int:
    """How many of so many rows may be worked on at once, by what the first of them keeps."""
    if rows * x[:1].numel() <= FEW:
        return max(1, rows)
    turn = getattr(model, "in_turn", 1)
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    kept: list[list[Tensor]] = []

    def keep(saved: Tensor) -> list[Tensor]:
        kept.append([saved])  # held, so that no place is used twice
        return kept[-1]

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda held: held[0]):
        # Copies: a view would count as all the rows that it is a view of.
        few = x[:turn].detach().clone().requires_grad_()
        found = work(few, y[:turn].clone())
    storages = [saved.untyped_storage() for (saved,) in kept]
    sizes = {each.data_ptr(): each.nbytes() for each in (*storages, found.untyped_storage())}
    for held in kept:
        held.clear()  # of a graph that holds its own results nothing would ever be let go
    # Going back through all of it, a layer's own scratch paper takes up to some times as much.
    each = 4 * sum(size for place, size in sizes.items() if place not in own) / turn
    return max(1, int(BYTES_AT_ONCE / each))


@dataclass(frozen=True, kw_only=True)
class InputExplainer:
    """Scores for the features of the input, made of gradients: the choices that all offer.

    `of` is the quantity that is explained, `form` how its scores are shown. `groups` holds for each
    number of an example the feature that it counts for, -1 for none; `one_hot` the columns of each
    one-hot group, whose gradient is then freed from directions in which data cannot vary
    (`project_one_hot`). No more than `rows_at_once` rows pass through the model together.
    """

    explains_input: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    of: Quantity = "probability"
    form: Form = "absolute"
    groups: Sequence[int] | None = None
    one_hot: OneHot | None = None
    rows_at_once: int | None = None

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The scores of each example's features, for its class y: (B, n).

        Examples of several tensors, (model, (a, b), y), are taken as `Inputs.pack` joins them.
        """
        network, rows = joined(model, x), packed(x, model)
        check_targets(y, len(rows))
        place, points = self._places(rows)
        gradient = mean_input_gradient(
            network, rows, y, place, points, of=self.of, rows_at_once=self.rows_at_once
        )
        return self.scores(gradient, rows)

    def scores(self, gradient: Tensor, x: Tensor) -> Tensor:
        """What is made of the mean gradient, like x, and of x: (B, n)."""
        projected = project_one_hot(gradient, self.one_hot)
        return shaped(self._weighted(projected, x), self.form, self.groups)

    @property
    def follows_gradient(self) -> bool:
        """Whether it is made of the gradient of the probability at x alone, by `scores`."""
        return self.of == "probability" and not self.averages

    @property
    def plain(self) -> "Gradient":
        """The gradient with the same choices, which costs one of those that others average."""
        shared = {each.name: getattr(self, each.name) for each in fields(Gradient)}
        return Gradient(**shared)

    def _places(self, x: Tensor) -> tuple[Place, int]:
        """Where the gradient is taken, and at how many places of each example."""
        return _itself, 1

    def _weighted(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True, kw_only=True)
class Gradient(InputExplainer):
    """Grad: the gradient of the explained quantity, grad f_c(x): (B, n).

    With `one_hot`, c (sum of a group - 1) added to logits leaves the explanation of every real
    input as it was, and elsewhere that of a logit or of the margin between two classes. The
    probability of one of two classes keeps its direction there.
    """


@dataclass(frozen=True, kw_only=True)
class GradientTimesInput(InputExplainer):
    """Grad x Input: grad f_c(x) * x: (B, n).

    With `one_hot` the gradient is projected before it meets x, so that the promises of `Gradient`
    hold here too. The product itself is not centred.
    """

    def _weighted(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient * x


@dataclass(frozen=True, kw_only=True)
class SmoothGrad(InputExplainer):
    """SmoothGrad: mean over M of grad f_c(x + b), b ~ N(0, variance I): (B, n).

    M = `samples`. All examples of a call share its noise: one is explained alone as in company.

    Shared noise, without a `generator`, depends on `seed` only. The explanation is a fixed function
    of x, and an attack on it knows every b: it has these M slopes to move, not an expectation.

    Fresh noise is drawn from `generator` (on the CPU) on every call, and `seed` is ignored. An
    attack meets other noise at each step and can aim at the expectation alone. Two explanations of
    one x differ, so that some instability needs no attack, and the best of many attacked inputs was
    partly lucky with its noise: explain it once more before counting it.

    With `one_hot` the mean gradient is projected. Noise leaves the real inputs: c (sum of a group
    - 1) added to logits surely changes nothing only for a logit or the margin between two classes.
    """

    averages: ClassVar[bool] = True
    samples: int = 50
    variance: float = 0.5
    seed: int = 0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        """Refuse a mean of nothing and noise of no size."""
        if self.samples < 1 or self.variance < 0:
            raise ValueError(
                "SmoothGrad needs samples >= 1 and variance >= 0, got "
                f"{self.samples} and {self.variance}."
            )

    def _places(self, x: Tensor) -> tuple[Place, int]:
        source = self.generator
        source = stream(self.seed, "smooth-grad") if source is None else source
        noise = self.variance**0.5 * noise_like(one_of(x), source, copies=self.samples)
        return lambda part, m: part + noise[m.start : m.stop, None], self.samples


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(InputExplainer):
    """Integrated Gradients: (x - x0) * mean of grad f_c on the line from x0 to x: (B, n).

    x0 = `baseline`, one example's shape, zero unless given. The integral is the midpoint rule.

    With `one_hot` the mean gradient is projected before it meets x - x0. Where the groups of x0 sum
    to 1, they do so on the whole line to a real input: c (sum of a group - 1) added to logits then
    changes nothing, and the scores still add up to f(x) - f(x0). From another x0, such as zero, the
    scores no longer add up, and surely unchanged by c is only the explanation of a logit or of the
    margin between two classes.
    """

    averages: ClassVar[bool] = True
    points: int = 100
    baseline: Tensor | None = None

    def _start(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[1:]) if self.baseline is None else self.baseline.to(x)

    def _places(self, x: Tensor) -> tuple[Place, int]:
        start, points = self._start(x), self.points
        return lambda part, m: on_segment(start.expand_as(part), part, points, m), points

    def _weighted(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient * (x - self._start(x))


@dataclass(frozen=True, kw_only=True)
class Shapley:
    """Contributions of attributes to the score of a class, against a reference: (B, n).

    phi_a = sum over S without a of |S|! (n - |S| - 1)! / n! [s(x_{S + a}, r) - s(x_S, r)], the mean
    over the rows r of `reference`, zero unless given, where (x_S, r) takes the attributes in S from
    x and all others from r. They add up to s(x) - mean s(r). `of` is what s is: the margin unless
    given, which of two classes is the log-odds. `groups` holds the attribute of each column, each
    column its own unless given.

    Against real rows only such are asked for whose every attribute has a real value: what a model
    does between the categories of an attribute changes nothing. Zeros are no value of a category:
    of tables give some training rows, as `draw_reference` does.

    Exact up to 12 attributes. Beyond, and wherever `orders` is given, the mean over that many
    random orders, each beside its reverse, fixed by `seed`: again a fixed function of x, whose
    `standard_error` says how far it may be from the exact one. A model that says of itself that it
    is `additive`, and one of linear layers, needs no more than one score for each attribute.
    """

    explains_input: ClassVar[bool] = True
    of: Quantity = "margin"
    form: Form = "both"
    groups: Sequence[int] | None = None
    reference: Tensor | None = None
    orders: int | None = None
    seed: int = 0
    rows_at_once: int | None = None

    def __post_init__(self) -> None:
        """Refuse orders without their reverses, and no rows at once."""
        if self.orders is not None and (self.orders < 2 or self.orders % 2):
            raise ValueError(
                f"orders come with their reverses, so that their number is even, got {self.orders}."
            )
        if self.rows_at_once is not None and self.rows_at_once < 1:
            raise ValueError(f"rows_at_once must be at least 1, got {self.rows_at_once}.")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The contributions of each example's attributes to its class y, by `form`: (B, n)."""
        return shaped(self.contributions(model, x, y), self.form, None)

    def contributions(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Signed: they add up to the score less its mean on the reference: (B, n)."""
        network, rows = joined(model, x), packed(x, model)
        coalitions = self._coalitions(network, rows)
        scores = self._scores(network, rows, y, coalitions)
        found = scores @ coalitions.weights.to(scores)
        if coalitions is single_coalitions(found.shape[1]):
            _check_additive(found.sum(-1).detach(), (scores[:, -1] - scores[:, 0]).detach())
        return found

    def standard_error(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Of contributions by random orders, over these; zero where they are exact: (B, n)."""
        network, rows = joined(model, x), packed(x, model)
        coalitions = self._coalitions(network, rows)
        if coalitions.parts is None:
            return rows.new_zeros(len(rows), coalitions.members.shape[1])
        with torch.no_grad():
            scores = self._scores(network, rows, y, coalitions)
        parts = torch.einsum("bk,pkm->pbm", scores, coalitions.parts.to(scores))
        spread: Tensor = parts.std(0) / len(parts) ** 0.5
        return spread

    def asked(self, model: nn.Module, x: Tensor) -> tuple[Coalitions, tuple[int, ...], Tensor]:
        """What is scored of rows like x: coalitions, the attribute of each column, the reference.

        A column of attribute -1 is always the example's own. Contributions are the mean over the
        reference of the scores of all coalitions, times their weights.
        """
        return self._coalitions(model, x), self._attributes(x), self._references(x)

    def _coalitions(self, model: nn.Module, x: Tensor) -> Coalitions:
        attributes = max(self._attributes(x)) + 1
        if self.orders is not None:
            return ordered_coalitions(_orders(attributes, self.orders, self.seed))
        if _is_additive(model, x, self.of):
            return single_coalitions(attributes)
        if attributes <= MOST_EXACT:
            return every_coalition(attributes)
        return ordered_coalitions(_orders(attributes, ORDERS, self.seed))

    def _attributes(self, x: Tensor) -> tuple[int, ...]:
        """The attribute of each number of an example, -1 for those that always stay its own."""
        columns = x[:1].numel()
        groups = tuple(range(columns)) if self.groups is None else tuple(self.groups)
        known = set(groups) - {-1}
        if len(groups) != columns or known != set(range(len(known))) or not known:
            raise ValueError(
                f"groups must number the attribute of each of {columns} columns from 0 on, -1 for "
                f"none, got {len(groups)} numbers, {sorted(set(groups))[:5]} among them."
            )
        return groups

    def _references(self, x: Tensor) -> Tensor:
        """The rows that stand for those attributes that are not taken from x: (R, ...)."""
        if self.reference is None:
            return torch.zeros_like(x[:1])
        rows = self.reference.detach().to(x)
        rows = rows[None] if rows.ndim == x.ndim - 1 else rows
        if rows.shape[1:] != x.shape[1:] or not len(rows) or not rows.isfinite().all():
            raise ValueError(
                f"a reference must be finite rows like the examples, of shape {tuple(x.shape[1:])} "
                f"each, got {tuple(self.reference.shape)}: encode it as the examples are."
            )
        return rows

    def _scores(self, model: nn.Module, x: Tensor, y: Tensor, coalitions: Coalitions) -> Tensor:
        """What the model says of each coalition, the mean over the reference: (B, K)."""
        check_targets(y, len(x))
        references, groups = self._references(x), torch.tensor(self._attributes(x))
        taken = (coalitions.members[:, groups] | (groups < 0)).view(-1, *x.shape[1:]).to(x.device)

        def scored(part: Tensor, labels: Tensor, taken: Tensor, others: Tensor) -> Tensor:
            mixed = torch.where(taken[:, None, None], part, others[:, None])  # (K, R, b, ...)
            with eval_mode(model):
                logits = logits_of(model, mixed.flatten(0, 2))
            check_classes(labels, logits.shape[-1])
            score = quantity_of(logits, labels.repeat(len(taken) * len(others)), self.of)
            return score.view(mixed.shape[:3]).sum(1).T

        wanted = len(x) * len(taken) * len(references)
        at_once = self.rows_at_once
        if at_once is None:
            at_once = _rows_within(model, x, y, wanted, partial(_score, model, of=self.of))
        if wanted <= at_once:
            return scored(x, y, taken, references) / len(references)
        turn = getattr(model, "in_turn", 1)
        examples = min(len(x), max(turn, at_once // turn * turn))
        rows = max(1, min(len(references), at_once // examples))
        sets = max(1, at_once // (examples * rows))
        found = []
        for part, labels in zip(x.split(examples), y.split(examples), strict=True):
            totals = []
            for chosen in taken.split(sets):
                works = [
                    partial(scored, labels=labels, taken=chosen, others=others)
                    for others in references.split(rows)
                ]
                totals.append(torch.stack([_recomputed(w, model, part) for w in works]).sum(0))
            found.append(torch.cat(totals, 1))
        return torch.cat(found) / len(references)


@lru_cache(maxsize=16)
def _orders(attributes: int, count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Random orders of attributes, half of `count`: their reverses are the other half."""
    draw = stream(seed, "shapley", str(attributes))
    drawn = (torch.randperm(attributes, generator=draw) for _ in range(count // 2))
    return tuple(tuple(order.tolist()) for order in drawn)


def draw_reference(x: Tensor, y: Tensor | None = None, *, rows: int = 200, seed: int = 0) -> Tensor:
    """Some of the rows x, (N, ...), against which contributions are told: (rows, ...).

    With the classes y they are a sample in which each class has its share; rows of one class, such
    as those who were approved, are a reference of their own: give only these. The draw is part of
    what is told: another one of 20 rows changes the top 3 reasons of half of all people. Draw once,
    keep the rows with the model, and keep them when it is fitted again.
    """
    if not 1 <= rows <= len(x):
        raise ValueError(
            f"a reference is drawn of 1..{len(x)} rows, as many as there are, got {rows}."
        )
    draw = stream(seed, "reference")
    order = torch.randperm(len(x), generator=draw)
    if y is not None:
        check_targets(y, len(x))
        labels = y.cpu()[order]
        # The rank of each row within its class, as a share of it: the first rows by that share
        # hold each class as often as all rows do, to within one.
        rank = torch.zeros(len(x), dtype=torch.float64)
        for label in labels.unique():
            own = labels == label
            rank[own] = (torch.arange(int(own.sum())).double() + 0.5) / int(own.sum())
        order = order[rank.argsort(stable=True)]
    return x.detach()[order[:rows].to(x.device)].clone()


def _score(model: nn.Module, x: Tensor, y: Tensor, of: Quantity) -> Tensor:
    """The explained quantity of class y: (B,)."""
    with eval_mode(model):
        return quantity_of(logits_of(model, x), y, of)


def _is_additive(model: nn.Module, x: Tensor, of: Quantity) -> bool:
    """Whether a model is known to have a score that is a sum over attributes."""
    if of not in ("margin", "logit"):
        return False
    linear = type(model) is nn.Linear or (is_row(model, x) and len(list(model.children())) == 1)
    if not linear and not getattr(model, "additive", False):
        return False
    with torch.no_grad(), eval_mode(model):
        return of == "logit" or logits_of(model, x[:1]).shape[-1] == 2


def _check_additive(sums: Tensor, differences: Tensor) -> None:
    """Refuse contributions, one attribute at a time, that miss what all attributes do together."""
    size = differences.abs().amax().clamp_min(1)
    worst = float((sums - differences).abs().amax())
    if worst > float(torch.finfo(sums.dtype).eps ** 0.5 * size):
        raise ValueError(
            "the model says that it is additive, but moving its attributes one at a time misses "
            f"by {worst:.3g} what moving all does: take that word away, or give it groups in which "
            "nothing interacts."
        )


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Concepts: how strongly each neuron of a layer responds, whatever the class y: (B, n).

    `layer` is its name among the model's modules; of a layer with a map for each neuron, (B, n, H,
    W), the mean over the map.
    """

    explains_input: ClassVar[bool] = False
    layer: str = ""
    form: Form = "signed"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The responses of the layer's neurons to each example: (B, n)."""
        network, rows = joined(model, x), packed(x, model)
        check_targets(y, len(rows))
        part = self._layer_of(network)
        seen: list[Tensor] = []
        handle = part.register_forward_hook(lambda part, given, result: seen.append(result))
        try:
            with eval_mode(network):
                network(rows)
        finally:
            handle.remove()
        found = seen[0] if len(seen) == 1 else None
        if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != len(rows):
            raise ValueError(
                f"the layer {self.layer!r} must be used once and return one row of neurons for "
                "each example."
            )
        return shaped(found if found.ndim == 2 else found.flatten(2).mean(-1), self.form, None)

    def _layer_of(self, model: nn.Module) -> nn.Module:
        known = [name for name, _ in model.named_modules() if name]
        if self.layer not in known:
            raise ValueError(f"the model has no layer {self.layer!r}: {nearest(self.layer, known)}")
        return model.get_submodule(self.layer)


def made_of_gradient(explain: Explainer | None) -> InputExplainer | None:
    """The explainer, `gradient` unless given, if it follows the gradient, None if it takes more.

    Where the gradient of the probability is there already, its `scores` are all that is needed.
    """
    explain = gradient if explain is None else explain
    return explain if isinstance(explain, InputExplainer) and explain.follows_gradient else None


def of_quantity(explain: Explainer, of: Quantity) -> Explainer:
    """The same explainer of another quantity, where it offers the choice."""
    return replace(explain, of=of) if isinstance(explain, InputExplainer) else explain


def explains_input(explain: Explainer) -> bool:
    """Whether scores are those of features of the input, as everybody's are that do not deny it."""
    return getattr(explain, "explains_input", True)


def _itself(part: Tensor, numbers: range) -> Tensor:
    return part[None]


def predicted(model: nn.Module, x: Tensor) -> Tensor:
    """The class the model predicts for each example: (B,)."""
    with torch.no_grad(), eval_mode(model):
        return logits_of(model, x).argmax(-1)


def explained(model: nn.Module, explain: Explainer, x: Tensor, y: Tensor) -> Tensor:
    """Saliency without gradients, refused unless it is a finite row for each example: (B, n)."""
    with torch.no_grad(), eval_mode(model):
        saliency = explain(model, x, y).detach()
    if saliency.ndim != 2 or len(saliency) != len(x):
        raise ValueError(
            f"an explanation must have one row for each of the {len(x)} examples, got shape "
            f"{tuple(saliency.shape)}: let the explainer return (B, n)."
        )
    if not torch.isfinite(saliency).all():
        raise ValueError("the explanation has NaN or infinite values: check the model and x.")
    return saliency


gradient = Gradient()
"""The explanation wherever no other is asked for."""

EXPLAINERS: dict[str, InputExplainer | Shapley] = {
    "grad": gradient,
    "grad-x-input": GradientTimesInput(),
    "smooth-grad": SmoothGrad(),
    "integrated-gradients": IntegratedGradients(),
    "shapley": Shapley(),
}
"""Explanations by the features of the input; others by `dataclasses.replace` of an entry."""


def slopes() -> dict[str, InputExplainer]:
    """The entries of EXPLAINERS that need nothing but a model and a row: no reference."""
    return {name: each for name, each in EXPLAINERS.items() if not isinstance(each, Shapley)}


CONCEPTS: dict[str, Activations] = {"activations": Activations()}
"""Explanations by the neurons of a layer, which is to be named."""
