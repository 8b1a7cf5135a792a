"""How an attacker looks for inputs: what is asked, goals, projected descent, the best so far."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from r2et.core.autograd import eval_mode, piecewise_linear
from r2et.core.geometry import by_example, repeated
from r2et.core.inputs import joined, packed
from r2et.core.ranking import facing_weights, margin_weights, top_k_mask
from r2et.core.rng import noise_like, stream
from r2et.core.second_order import torch_layers
from r2et.explainers import (
    Explainer,
    InputExplainer,
    check_inputs,
    check_predicted,
    log_odds,
    logits_of,
)
from r2et.perturbations import PerturbationSet

Outputs = Callable[[nn.Module, Tensor], Sequence[Tensor]]
Goal = Callable[[Tensor], Tensor]
"""(saliency of x') -> what an attacker lowers, one number for each example."""


def prediction(model: nn.Module, x: Tensor) -> Sequence[Tensor]:
    """The logits whose class an attack has to keep: those the model returns, (B, C)."""
    return (logits_of(model, x),)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackProblem:
    """What is attacked: the top k of an explanation, by admissible inputs that keep the outputs."""

    k: int
    explainer: Explainer
    perturbation: PerturbationSet
    outputs: Outputs = prediction
    """The predictions whose classes must stay."""
    seed: int = 0
    until: float = math.inf
    """No new search is begun after this time of `time.monotonic`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackResult:
    """Attacked inputs with what they did to the explanations, one row for each example."""

    x: Tensor
    """The most damaging input found that keeps the prediction: like the clean x."""
    before: Tensor
    """Explanation of the clean input: (B, n)."""
    after: Tensor
    """Explanation of the attacked input: (B, n)."""
    precision: Tensor
    """P@k between the two: (B,)."""
    history: Tensor
    """Lowest P@k so far at each recorded step: (T, B)."""
    steps: Tensor
    """The step numbers of `history`: (T,)."""
    first_flip: Tensor
    """First recorded step at which a top-k feature was gone, last step + 1 if none: (B,)."""
    members: Mapping[str, Tensor] = field(default_factory=dict)
    """The lowest P@k that each search of an ensemble reached by itself: (B,) each."""
    last: Tensor | None = None
    """Where a walk ended, which may have lost the prediction: like the clean x. None of others."""
    outcome: Tensor | None = None
    """How a multi-objective attack ended, an `Outcome` for each example: (B,). None of others."""

    @property
    def flipped(self) -> Tensor:
        """Whether any top-k feature was displaced: (B,) booleans."""
        return self.precision < 1


# --- what is lowered -----------------------------------------------------------------------------


def ranking_goal(before: Tensor, k: int) -> Goal:
    """Mean gap h(x', i, j) over the pairs of a clean top-k feature i and any other j: ERAttack."""
    weights = margin_weights(before, k)
    return lambda saliency: (saliency * weights).sum(-1)


def weighted_goal(before: Tensor, k: int, weights: Tensor) -> Goal:
    """Mean of the clean top k minus mean of the rest, weighted: some pairs count more than others.

    `weights` (B, n) are not negative; a side on which all are zero counts evenly.
    """
    top = top_k_mask(before, k)

    def shares(side: Tensor) -> Tensor:
        chosen = torch.where(side, weights.to(before), 0.0)
        total = chosen.sum(-1, keepdim=True)
        chosen = torch.where(total > 0, chosen, side.to(before))
        return chosen / chosen.sum(-1, keepdim=True)

    sides = shares(top) - shares(~top)
    return lambda saliency: (saliency * sides).sum(-1)


def distance_goal(before: Tensor) -> Goal:
    """Minus the squared distance to the clean explanation, -||I(x) - I(x')||^2: MSE attack."""
    return lambda saliency: -(saliency - before).square().sum(-1)


def relative(goal: Goal) -> Goal:
    """A goal on the explanation scaled to length one, so that shrinking all gaps does not help."""

    def scaled(saliency: Tensor) -> Tensor:
        length = saliency.norm(dim=-1, keepdim=True)
        return goal(saliency / torch.where(length > 0, length, 1.0))

    return scaled


# --- what is asked of a model, and what is found --------------------------------------------------


def keeps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Whether the model still predicts y: (B,) booleans."""
    with torch.no_grad():
        return logits_of(model, x).argmax(-1) == y


def classes_changed(outputs: Outputs, model: nn.Module, x: Tensor, moved: Tensor) -> Tensor:
    """Whether any output is of another class at `moved` than at x: (B,) booleans."""
    with torch.no_grad(), eval_mode(model):
        both = zip(outputs(model, x), outputs(model, moved), strict=True)
        return torch.stack([was.argmax(-1) != now.argmax(-1) for was, now in both]).any(0)


def ready(
    model: nn.Module, x: Tensor | Sequence[Tensor], y: Tensor, rows_at_once: int
) -> tuple[nn.Module, Tensor]:
    """A model of one tensor and the examples as such, refused unless y is what it predicts."""
    model, rows = joined(model, x), packed(x, model).detach()
    check_inputs(model, rows, y)
    check_predicted(model, rows, y, rows_at_once)
    return model, rows


def check_slopes(explain: Explainer, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Refuse an explanation without a slope by x that changes with x all the same.

    A walk along its slope would stay where it is, and the explanation would look stable. That of a
    linear model changes nowhere, but for the runner-up of several classes: between kinks, gradients
    of piecewise linear logits have no slope to find, and zeros say so elsewhere.
    """
    if not len(x) or (isinstance(explain, InputExplainer) and piecewise_linear(model)):
        return
    with torch.enable_grad(), torch_layers():
        point = x.detach().requires_grad_()
        saliency = explain(model, point, y)
        if saliency.requires_grad:
            (gradient,) = torch.autograd.grad(saliency.sum(), point, allow_unused=True)
            if gradient is not None:
                return
    with torch.no_grad():
        moved = x + (1 + x.abs()) * noise_like(x, stream(0, "slopes"))
        # Scores of a probability shrink together where the model is sure: only their ratios tell.
        before, after = (
            each / torch.where((total := each.abs().sum(-1, keepdim=True)) > 0, total, 1.0)
            for each in (saliency, explain(model, moved, y))
        )
        if (after - before).abs().max() <= torch.finfo(before.dtype).eps ** 0.5:
            return
    raise ValueError(
        "this attack follows the gradient of an explanation, but the explainer gives scores "
        "without a graph to x: use one of r2et.explainers, or search without gradients by "
        "attack(..., budget=EnsembleBudget(starts=0, pairs=0))."
    )


def picked(values: Tensor, chosen: Tensor) -> Tensor:
    """For each example the copy chosen for it: (S, B, ...) -> (B, ...)."""
    return values[chosen, torch.arange(len(chosen), device=chosen.device)]


class CandidateEvaluator:
    """What an input does to the explanation of its example, on the attacked model itself.

    Whatever is judged is made admissible first, so that nothing else can come back. All `outputs`
    must keep the classes they have at the clean x; an example whose clean prediction rounding makes
    another than y has none to keep.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, problem: AttackProblem) -> None:
        self.model, self.centre, self.y = model, x, y
        self.k, self.explain = problem.k, problem.explainer
        self.perturbation, self.outputs = problem.perturbation, problem.outputs
        with torch.no_grad():
            self.before = self.explain(model, x, y)
            self.classes = [logits.argmax(-1) for logits in self.outputs(model, x)]
        self.attacked = keeps(model, x, y)
        self.top = top_k_mask(self.before, self.k)
        self.x, self.after = x.clone(), self.before.clone()
        self.begin()

    def begin(self) -> None:
        """Set what else is remembered to its value before anything was offered."""

    def keeps(self, rows: Tensor) -> Tensor:
        """Whether all outputs are of their clean classes, for copies of the examples: (S x B,)."""
        copies = len(rows) // max(len(self.y), 1)
        with torch.no_grad():
            now = [logits.argmax(-1) for logits in self.outputs(self.model, rows)]
        same = [each == was.repeat(copies) for each, was in zip(now, self.classes, strict=True)]
        return torch.stack(same).all(0)

    def judged(
        self, places: Tensor, saliency: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Admissible inputs for places (S, B, ...), their scores, and which count: (S, B)."""
        shape = places.shape[:2]
        given = places.flatten(0, 1)
        with torch.no_grad():
            rows = self.perturbation.project(given, repeated(self.centre, len(places)))
            if saliency is None or not torch.equal(rows, given):
                labels = self.y.repeat(len(places))
                saliency = self.explain(self.model, rows, labels).unflatten(0, shape)
            return rows.view_as(places), saliency, self.attacked & self.keeps(rows).view(shape)

    def take(self, better: Tensor, x: Tensor, saliency: Tensor) -> None:
        """Replace input and scores where they are better, (B,) booleans."""
        self.x = torch.where(by_example(better, x), x, self.x)
        self.after = torch.where(better[:, None], saliency, self.after)


class BestSoFar(CandidateEvaluator):
    """The most damaging input seen for each example.

    Lower P@k wins; among equals the smaller relative gap across the k-th place does. `member` names
    the search now at work: what each reaches is noted.
    """

    def begin(self) -> None:
        """No input offered, no feature displaced."""
        self.across = facing_weights(self.before, self.k)
        self.precision = torch.ones_like(self.before[:, 0])
        self.gap = torch.full_like(self.precision, torch.inf)
        self.member, self.reached = "", dict[str, Tensor]()
        self.clock, self.steps = 0, [0]
        self.history = [self.precision.clone()]
        self.first_flip = torch.full_like(self.y, torch.iinfo(torch.long).max)

    def offer(self, x: Tensor, saliency: Tensor | None = None) -> None:
        """Keep each input (B, ...) that is better than the best so far."""
        self.offer_all(x[None], None if saliency is None else saliency[None])

    def offer_all(self, places: Tensor, saliency: Tensor | None = None) -> None:
        """Keep, of several inputs for each example (S, B, ...), each that is the best so far."""
        if not len(places):
            return
        places, saliency, kept = self.judged(places, saliency)
        with torch.no_grad():
            left = (self.top & top_k_mask(saliency, self.k)).sum(-1).masked_fill(~kept, self.k + 1)
            size = saliency.abs().sum(-1)
            gap = (saliency * self.across).sum(-1) / torch.where(size > 0, size, 1.0)
            # Between kinks a (Leaky)ReLU network's gap changes by rounding only, which must not
            # decide: it differs with the company of an example.
            grain = torch.finfo(gap.dtype).eps ** 0.75
            gap = gap.div(grain).round().mul(grain)
            first = left == left.amin(0)
            chosen = gap.masked_fill(~first, torch.inf).argmin(0)
            self._consider(*(picked(each, chosen) for each in (places, saliency, left, gap)))

    def _consider(self, x: Tensor, saliency: Tensor, left: Tensor, gap: Tensor) -> None:
        precision = left.to(saliency.dtype) / self.k
        if self.member:
            so_far = self.reached.get(self.member, torch.ones_like(precision))
            self.reached[self.member] = torch.minimum(so_far, precision)
        nearer = (precision == self.precision) & (gap < self.gap)
        better = (precision < self.precision) | nearer
        self.take(better, x, saliency)
        self.precision = torch.where(better, precision, self.precision)
        self.gap = torch.where(better, gap, self.gap)

    def tick(self, steps: int) -> None:
        """Note P@k after `steps` more steps."""
        if steps:
            self.clock += steps
            self.steps.append(self.clock)
            self.history.append(self.precision.clone())
        now = (self.precision < 1) & (self.first_flip > self.clock)
        self.first_flip = torch.where(now, self.clock, self.first_flip)

    def result(self) -> AttackResult:
        """Everything found so far."""
        return AttackResult(
            x=self.x,
            before=self.before,
            after=self.after,
            precision=self.precision,
            history=torch.stack(self.history),
            steps=torch.tensor(self.steps),
            first_flip=self.first_flip.clamp(max=self.clock + 1),
            members=self.reached,
        )


def projected_descent(
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    start: Tensor,
    perturbation: PerturbationSet,
    lengths: Iterable[float],
    allowed: Callable[[Tensor], Tensor] | None = None,
    watch: Callable[[int, Tensor], None] = lambda step, found: None,
    blind: Callable[[], None] = lambda: None,
) -> Tensor:
    """Points of the set's hull around x where each example's loss is lower than at `start`.

    Steps of the given costs against the slope. Where a step would leave what is
    `allowed`, (B,) booleans, that example halves its steps and tries again from where it was.
    Where the loss has no slope at all, `blind` is called and the walk ends.
    """
    found = start
    pace = by_example(torch.ones_like(x.flatten(1)[:, :1]), x)
    for step, length in enumerate(lengths, start=1):
        point = found.detach().requires_grad_()
        with torch.enable_grad():
            losses = loss(point).sum()
        downhill = None
        if losses.requires_grad:
            (downhill,) = torch.autograd.grad(losses, point, allow_unused=True)
        if downhill is None:
            blind()
            break  # the explanation is constant: there is no way down
        moved = perturbation.relax(found - pace * length * perturbation.steepest(downhill), x)
        if allowed is not None:
            free = allowed(moved).view_as(pace)
            moved = torch.where(free, moved, found)
            pace = torch.where(free, (pace * 1.5).clamp(max=1.0), pace / 2)
        found = moved
        watch(step, found)
    return found


def margin_loss(model: nn.Module, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Log-odds of class y: lowering it flips the prediction."""
    return lambda x: log_odds(model(x), y)
