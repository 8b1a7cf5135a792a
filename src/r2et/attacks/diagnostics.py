"""Whether the result of an attack may be trusted: has it converged, were its slopes masked?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from r2et.attacks.cells import by_cells, walks_cells
from r2et.attacks.ensemble import GRADIENT_MEMBERS, PAIRS_MEMBER, RANDOM_MEMBER
from r2et.attacks.radius import Curve
from r2et.attacks.search import AttackProblem, AttackResult, CandidateEvaluator, prediction
from r2et.core.autograd import eval_mode
from r2et.core.ranking import precision_at_k, ties
from r2et.explainers import log_odds

WORTH_AN_ALARM = 0.05  # share of the examples
FLAT = 0.25  # share of the examples broken at random that slopes leave intact, pair by pair
WORTH_NOTHING = 0.005  # P@k that a larger radius should at least take off a mean of under 0.995


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Mean P@k before and after the rounds of a strong attack were doubled."""

    rounds: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """How far doubling them changed the mean; it never raises it."""
        return self.after - self.before

    def __str__(self) -> str:
        """The statement in words."""
        return (
            f"doubling the effort from {self.rounds} to {2 * self.rounds} rounds changes the mean "
            f"P@k by {100 * self.change:+.1f} points, to {100 * self.after:.1f}"
        )


def last_doubling(attacked: AttackResult) -> Doubling | None:
    """What the second half of a strong attack's rounds added, None after fewer than two rounds.

    To learn what another doubling would change, attack with twice the rounds: a longer attack
    begins with the rounds of the shorter one.
    """
    rounds = (len(attacked.history) - 1) // 2
    if not rounds or not attacked.history.shape[1]:
        return None
    half, whole = (float(attacked.history[at].mean()) for at in (rounds, 2 * rounds))
    return Doubling(rounds=rounds, before=half, after=whole)


@dataclass(frozen=True, kw_only=True)
class Optimality:
    """How far an attack was from the lowest mean P@k there is, on some examples.

    `exact` is the mean of the lowest P@k at any admissible input, or of a bound below it where the
    search was not done; `finished` of `examples` it was.
    """

    attacked: float
    exact: float
    examples: int
    finished: int

    def __str__(self) -> str:
        """The statement in words."""
        apart = 100 * (self.attacked - self.exact)
        most = "" if self.finished == self.examples else "at most "
        return (
            f"{most}{apart:.1f} points from the lowest mean P@k there is, {100 * self.exact:.1f}, "
            f"by a search over cells that ended for {self.finished} of {self.examples} examples"
        )


def optimality(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    problem: AttackProblem,
    attacked: Tensor,
    *,
    examples: int = 50,
    nodes: int = 2000,
) -> Optimality | None:
    """How far inputs `attacked`, like x, are from the worst there is, by the first `examples`.

    None if unknown. It is known of rows of linear layers and (Leaky)ReLUs within an l2 ball, to
    bounds where a search over so many `nodes` does not end.
    """
    ball = problem.perturbation
    if not walks_cells(model, x, problem.explainer, ball) or problem.outputs is not prediction:
        return None
    # Bounds forbid inputs that the search would count.
    if not len(x) or not ball.radius or getattr(ball, "bounds", None) is not None:
        return None
    some = slice(examples)
    found = CandidateEvaluator(model, x[some], y[some], problem)
    _, least, done = by_cells(found, ball.radius, attacked[some], "worst", nodes)
    with torch.no_grad():
        after = problem.explainer(model, attacked[some], y[some])
    return Optimality(
        attacked=float(precision_at_k(found.before, after, problem.k).double().mean()),
        exact=float(least.double().mean()),
        examples=len(least),
        finished=int(done.sum()),
    )


def saturated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Whether a softmax in the dtype of x would round p (1 - p) away: (B,) booleans."""
    with torch.no_grad(), eval_mode(model):
        return torch.sigmoid(log_odds(model(x), y).abs()) == 1


def alarms(model: nn.Module, x: Tensor, y: Tensor, curve: Curve, k: int) -> list[str]:
    """Signs that slopes mislead the attack, so that P@k would fall further: sentences, or none."""
    found = [
        *_random_beats_slopes(curve.attacks[-1].members),
        *_slopes_are_flat(curve.attacks[-1].members),
        *_radius_is_wasted(curve, k),
        *_share_of(saturated(model, x, y), "the model is so sure that p (1 - p) rounds to zero"),
        *_share_of(ties(curve.before, k), "the k-th and the next score are equal"),
        *_share_of((curve.before == 0).all(-1), "all scores are zero"),
    ]
    doubling = last_doubling(curve.attacks[-1])
    if doubling is not None and curve.attacks[-1].members and doubling.change < -0.02:
        found.append(f"the attack has not converged: {doubling}.")
    return found


def _random_beats_slopes(members: Mapping[str, Tensor]) -> list[str]:
    guided = [members[name] for name in GRADIENT_MEMBERS if name in members]
    if not guided or RANDOM_MEMBER not in members:
        return []
    beaten = members[RANDOM_MEMBER] < torch.stack(guided).amin(0)
    return _share_of(beaten, "random points do more damage than every descent along a gradient")


def _slopes_are_flat(members: Mapping[str, Tensor]) -> list[str]:
    # A descent begins at random points: blind to kinks, it does as well as they do by themselves.
    if PAIRS_MEMBER not in members or RANDOM_MEMBER not in members:
        return []
    broken = members[RANDOM_MEMBER] < 1
    intact = broken & (members[PAIRS_MEMBER] == 1)
    if intact.sum() < FLAT * broken.sum():
        return []
    return _share_of(intact, "random points break what no gradient of a single pair leads to")


def _radius_is_wasted(curve: Curve, k: int) -> list[str]:
    least = max(0, 2 * k - curve.before.shape[1]) / k  # two sets of k among n features overlap
    means: Sequence[float] = curve.raw.double().mean(1).tolist() if curve.raw.numel() else []
    radii = curve.epsilons.tolist()
    return [
        f"a larger radius does not help: mean P@k {100 * now:.1f} at {radius:g}, but "
        f"{100 * then:.1f} already at {smaller:g}."
        for smaller, then, radius, now in zip(radii, means, radii[1:], means[1:], strict=False)
        if least + WORTH_NOTHING < then < 1 - WORTH_NOTHING and now > then - WORTH_NOTHING
    ]


def _share_of(flags: Tensor, what: str) -> list[str]:
    share = float(flags.double().mean()) if len(flags) else 0.0
    return [f"{what} for {share:.0%} of the examples."] if share >= WORTH_AN_ALARM else []
