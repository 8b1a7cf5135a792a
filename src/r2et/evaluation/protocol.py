"""What is measured: the settings of an evaluation."""

import math
from dataclasses import dataclass, field

import torch

from r2et.attacks.constraint_handling import CONSTRAINT_HANDLING
from r2et.attacks.ensemble import EnsembleBudget
from r2et.core.naming import nearest
from r2et.perturbations import PERTURBATIONS

EVALUATED = ("er", "mse", "strong")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
APPLICANT = "applicant"


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How far attacks go, and the steps of ERAttack and the MSE attack on their way."""

    radius: float = 1.0
    step: float = 1e-3
    steps: int = 1000

    def __post_init__(self) -> None:
        """Refuse a walk that leads nowhere."""
        if not (0 <= self.radius < math.inf and self.step > 0 and self.steps >= 0):
            raise ValueError(
                f"a budget needs radius >= 0, step > 0 and steps >= 0, got {self.radius}, "
                f"{self.step}, {self.steps}."
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is attacked and how hard.

    `attacks` are those run, of EVALUATED and "applicant", changes that a person could make.
    `examples` of the test part are attacked, the first ones after the split's shuffle; `decisions`
    of them are told in full, changed as a person could for `decision_radius`. `small_radius` is
    where flippable predictions are counted; `epsilons` are the radii of the curve, besides that of
    `er`. `project_one_hot` has the strong attack also aimed at the explanation without the
    directions in which one-hot columns cannot vary.
    """

    k: int = 8
    attacks: tuple[str, ...] = (*EVALUATED, APPLICANT)
    project_one_hot: bool = False
    examples: int = 300
    decisions: int = 6
    decision_radius: float = 1.0
    small_radius: float = 0.1
    epsilons: tuple[float, ...] = (0.1, 0.25, 0.5)
    record_every: int = 10
    er: Walk = field(default_factory=Walk)
    strong: EnsembleBudget = field(default_factory=EnsembleBudget)
    norm: str = "l2"
    """Of an attack's budget: "l2", or "linf" for the largest change of one number."""
    handler: str = "unconstrained"
    """What ERAttack and the MSE attack do about predictions, an entry of
    CONSTRAINT_HANDLING."""
    singles: bool = False
    """Whether, of a pair, each item's own class must be kept, too."""
    noise: int = 0
    """Random inputs as far away as the budget allows, for the row that no attack was needed for."""
    probes: int | None = None
    """Random directions to estimate the Hessian norm from, exact without."""
    neighbours: int = 8
    """Random inputs that the Gaussian thickness is the mean over; each costs 8 explanations."""
    shares: bool = False
    """Whether features are removed by shares of them all, not one more each time."""
    manipulated: float = 1.0
    """An explanation counts as manipulated where P@k is smaller than this."""
    dtype: str = "float64"
    """The numbers computed with; large networks are twice as fast in "float32"."""

    def __post_init__(self) -> None:
        """Refuse settings under which nothing can be measured."""
        for word, words in (
            (self.norm, PERTURBATIONS),
            (self.handler, CONSTRAINT_HANDLING),
            (self.dtype, DTYPES),
        ):
            if word not in words:
                raise ValueError(f"an evaluation asks for {word!r}: {nearest(word, words)}")
        counts = (self.examples, self.decisions, self.record_every, self.neighbours)
        if any(count < least for count, least in zip(counts, (2, 0, 1, 1), strict=True)):
            raise ValueError(
                "an evaluation needs examples >= 2, decisions >= 0, record_every >= 1 and "
                f"neighbours >= 1, got {', '.join(map(str, counts))}."
            )
        radii = (self.decision_radius, self.small_radius, *self.epsilons)
        if not all(0 < radius < math.inf for radius in radii):
            raise ValueError(f"the radii of an evaluation must be positive, got {radii}.")
        known = (*EVALUATED, APPLICANT)
        for name in self.attacks:
            if name not in known:
                raise ValueError(f"an evaluation has no attack {name!r}: {nearest(name, known)}")
        if not self.attacks or len(set(self.attacks)) < len(self.attacks):
            raise ValueError(
                f"an evaluation needs one or more attacks, each named once, got {self.attacks}."
            )
        if self.project_one_hot and "strong" not in self.attacks:
            raise ValueError(
                "an evaluation with project_one_hot is about the strong attack: name it, too."
            )
