"""How an attacker looks for inputs: projected descent, and a log of the best input so far."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from r2et.attacks.records import Attacked
from r2et.explainers import Explainer, log_odds
from r2et.ranking import facing_weights, top_k_mask

Bounds = tuple[Tensor | float, Tensor | float]


def one_of(x: Tensor) -> Tensor:
    """A tensor like one example of x, also where there is none; its numbers mean nothing."""
    return x.new_empty(x.shape[1:])


def unit(direction: Tensor) -> Tensor:
    """Each example's direction, scaled to length one (zero stays zero): like `direction`."""
    # One norm per example: a norm over the batch would let neighbours shorten each other's steps.
    # The largest entry is divided out first: squares of a saturated model's slopes underflow.
    flat = direction.flatten(1)
    largest = flat.abs().amax(-1, keepdim=True)
    flat = flat / torch.where(largest > 0, largest, 1.0)
    length = flat.norm(dim=-1, keepdim=True)
    return (flat / torch.where(length > 0, length, 1.0)).view_as(direction)


def clip(x: Tensor, centre: Tensor, radius: float, bounds: Bounds | None = None) -> Tensor:
    """The points x moved into the bounds and then into the l2 ball around `centre`: like x.

    Where the centre lies outside its bounds, its own value is the bound. The result is within
    both, exactly: shrinking towards the centre leaves no bound.
    """
    if bounds is not None:
        low, high = (torch.as_tensor(each, dtype=x.dtype, device=x.device) for each in bounds)
        low, high = torch.minimum(low, centre), torch.maximum(high, centre)
        x = x.clamp(low, high)
    move = (x - centre).flatten(1)
    length = move.norm(dim=-1, keepdim=True)
    # Shrunk by what rounding the sum below can add, so that it cannot leave the ball.
    eps = torch.finfo(x.dtype).eps
    far = centre.flatten(1).norm(dim=-1, keepdim=True)
    inside = (radius * (1 - 8 * eps) - eps * far).clamp_min(0)
    outside = length > inside
    shrunk = centre + (move * (inside / torch.where(outside, length, 1.0))).view_as(x)
    x = torch.where(outside.view(-1, *(1,) * (x.ndim - 1)), shrunk, x)
    return x if bounds is None else x.clamp(low, high)


def keeps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Whether the model still predicts y: (B,) booleans."""
    with torch.no_grad():
        labels: Tensor = model(x).argmax(-1)
    return labels == y


class BestSoFar:
    """The most damaging input seen for each example, judged on the attacked model itself.

    Lower P@k wins; among equals the smaller relative gap across the k-th place does. An example
    whose clean prediction is not y has none to keep, and stays as it was.
    """

    def __init__(self, model: nn.Module, explain: Explainer, x: Tensor, y: Tensor, k: int) -> None:
        self.model, self.explain, self.y, self.k = model, explain, y, k
        with torch.no_grad():
            self.before = explain(model, x, y)
        self.attacked = keeps(model, x, y)
        self.top, self.across = top_k_mask(self.before, k), facing_weights(self.before, k)
        self.x, self.after = x.clone(), self.before.clone()
        self.precision = torch.ones_like(self.before[:, 0])
        self.gap = torch.full_like(self.precision, torch.inf)
        self.clock, self.steps = 0, [0]
        self.history = [self.precision.clone()]
        self.first_flip = torch.full_like(y, torch.iinfo(torch.long).max)

    def offer(self, x: Tensor, saliency: Tensor | None = None) -> None:
        """Keep each input (B, ...) that is better than the best so far."""
        self.offer_all(x[None], None if saliency is None else saliency[None])

    def offer_all(self, places: Tensor, saliency: Tensor | None = None) -> None:
        """Keep, of several inputs for each example (S, B, ...), each that is the best so far."""
        copies = len(places)
        shape = (copies, len(self.y))
        rows, labels = places.flatten(0, 1), self.y.repeat(copies)
        with torch.no_grad():
            if saliency is None:
                saliency = self.explain(self.model, rows, labels).unflatten(0, shape)
            kept = self.attacked & keeps(self.model, rows, labels).view(shape)
            left = (self.top & top_k_mask(saliency, self.k)).sum(-1)
            size = saliency.abs().sum(-1)
            gap = (saliency * self.across).sum(-1) / torch.where(size > 0, size, 1.0)
            for number in range(copies):
                self._consider(
                    places[number],
                    saliency[number],
                    left[number].to(saliency.dtype) / self.k,
                    gap[number],
                    kept[number],
                )

    def _consider(
        self, x: Tensor, saliency: Tensor, precision: Tensor, gap: Tensor, kept: Tensor
    ) -> None:
        # Between kinks a (Leaky)ReLU network's gap changes by rounding only, which must not
        # decide: it differs with the company of an example.
        nearer = gap < self.gap - torch.finfo(gap.dtype).eps ** 0.75
        better = kept & ((precision < self.precision) | ((precision == self.precision) & nearer))
        self.x = torch.where(better.view(-1, *(1,) * (x.ndim - 1)), x, self.x)
        self.after = torch.where(better[:, None], saliency, self.after)
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

    def result(self) -> Attacked:
        """Everything found so far."""
        return Attacked(
            x=self.x,
            before=self.before,
            after=self.after,
            precision=self.precision,
            history=torch.stack(self.history),
            steps=torch.tensor(self.steps),
            first_flip=self.first_flip.clamp(max=self.clock + 1),
        )


def projected_descent(
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    start: Tensor,
    radius: float,
    lengths: Iterable[float],
    bounds: Bounds | None = None,
    allowed: Callable[[Tensor], Tensor] | None = None,
    watch: Callable[[int, Tensor], None] = lambda step, found: None,
) -> Tensor:
    """Inputs in the ball around x on which each example's loss is lower than at `start`: like x.

    Steps of the given lengths against the normalised slope. Where a step would leave what is
    `allowed`, (B,) booleans, that example halves its steps and tries again from where it was.
    """
    found = start
    pace = torch.ones_like(x.flatten(1)[:, :1]).view(-1, *(1,) * (x.ndim - 1))
    for step, length in enumerate(lengths, start=1):
        point = found.detach().requires_grad_()
        with torch.enable_grad():
            losses = loss(point).sum()
        if not losses.requires_grad:
            break  # the explanation is constant: there is no way down
        (downhill,) = torch.autograd.grad(losses, point, allow_unused=True, materialize_grads=True)
        moved = clip(found - pace * length * unit(downhill), x, radius, bounds)
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
