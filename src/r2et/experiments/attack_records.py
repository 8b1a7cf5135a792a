"""What one attack on one model is asked, and what it found: records that can be printed."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from r2et.actionable.sets import ActionableSet, what_it_buys
from r2et.attacks.diagnostics import Doubling, Optimality
from r2et.attacks.radius import Curve
from r2et.attacks.registry import ATTACKS
from r2et.core.naming import nearest
from r2et.explainers import EXPLAINERS, SCORES
from r2et.metrics.exchanges import MeanAgreement
from r2et.perturbations import PerturbationSet
from r2et.preflight.kinds import Finding, in_words

NOISE = ("shared", "fresh")
ACTIONABLE = "actionable"
CONTRIBUTIONS = "shapley"
"""The explainer of whole attributes of tables, against rows of a reference."""


def usual_choices(explainer: str) -> tuple[int, str]:
    """How many features are shown, and of which quantity, unless somebody asks otherwise.

    >>> usual_choices("grad"), usual_choices("shapley")
    ((8, 'probability'), (3, 'margin'))
    """
    return (3, "margin") if explainer == CONTRIBUTIONS else (8, "probability")


@dataclass(frozen=True, kw_only=True)
class AttackRunSettings:
    """What is attacked, by whom, and how hard."""

    attack: str = "strong"
    k: int = 8
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0)
    examples: int = 300
    explainer: str = "grad"
    of: str = "probability"
    project_one_hot: bool = False
    noise: str = "shared"
    perturbation: str = "l2"
    handling: str | None = None
    rounds: int | None = None
    seconds: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse names that nothing goes by, and numbers with which nothing can be attacked."""
        for kind, word, known in (
            ("attack", self.attack, ATTACKS),
            ("explainer", self.explainer, EXPLAINERS),
            ("quantity to explain", self.of, SCORES),
            ("noise", self.noise, NOISE),
        ):
            if word not in known:
                raise ValueError(f"unknown {kind} {word!r}: {nearest(word, known)}")
        if self.noise == "fresh" and self.explainer != "smooth-grad":
            raise ValueError(
                f"only smooth-grad draws noise, {self.explainer} does not: leave out the fresh "
                "noise or choose smooth-grad."
            )
        if self.project_one_hot and self.explainer == CONTRIBUTIONS:
            raise ValueError(
                "contributions are not made of gradients, so that there is nothing to project: "
                "leave out the projection."
            )
        if not self.epsilons or not all(0 < each < math.inf for each in self.epsilons):
            got = ", ".join(f"{each:g}" for each in self.epsilons) or "none"
            raise ValueError(f"the radii of an attack must be positive and finite, got {got}.")
        for name, count in (("examples", self.examples), ("rounds", self.rounds)):
            if count is not None and count < 1:
                raise ValueError(f"an attack needs {name} >= 1, got {count}.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(
                f"a time limit must be a positive number of seconds, got {self.seconds:g}."
            )


@dataclass(frozen=True, kw_only=True)
class AttackRun:
    """What an attack on the test part of a data set found."""

    settings: AttackRunSettings
    curve: Curve
    clean_auc: float
    """On the whole test part."""
    examples_auc: tuple[float, float] | None
    """On the attacked examples before and after, None if they are all of one class."""
    off_data_share: float
    exchanges: MeanAgreement | None
    """What gradients say about exchanges of categories, None without any or of contributions."""
    ties: float
    distinct_sets: int
    fresh: Sequence[float] | None
    """With fresh noise: mean P@k without any attack, then at each radius."""
    doubling: Doubling | None
    alarms: Sequence[str]
    perturbation: PerturbationSet
    preflight: Sequence[Finding] = ()
    """What a look at the model found before."""
    bound: Tensor | None = None
    """Of the MOO attack: the iterations Theorem 5.1 allows, from estimated constants: (B,)."""
    contributions: str | None = None
    """Of contributions: a sentence that says of what, and against which rows."""
    optimality: Optimality | None = None
    """At the largest radius, how far the attack is from the worst there is; None if unknown."""

    @property
    def examples(self) -> int:
        """How many were attacked: those asked for, or all that the test part has."""
        return self.curve.precision.shape[1]

    def table(self) -> list[dict[str, float]]:
        """A line for each radius: mean P@k, the share of examples broken, and what it is made of.

        P@k counts whatever breaks an example at an affordable cost. "P@k, attack alone" is without
        what the search for cheap changes and the attacks at other radii found.
        """
        lines = [
            {
                "epsilon": radius,
                "P@k": float(merged.mean()),
                "broken": float((merged < 1).double().mean()),
                "P@k, attack alone": float(alone.mean()),
            }
            for radius, merged, alone in zip(
                self.curve.epsilons.tolist(), self.curve.precision, self.curve.raw, strict=True
            )
        ]
        if self.fresh is not None:
            for line, precision in zip(lines, self.fresh[1:], strict=True):
                line["P@k, fresh noise"] = precision
        return lines

    def members(self) -> dict[str, float]:
        """Mean P@k that each search of an ensemble reached at the largest radius."""
        found = self.curve.attacks[-1].members
        return {name: float(each.mean()) for name, each in found.items() if name}

    def iterations(self) -> list[str]:
        """What the papers bound, the steps to the first displaced feature, as a sentence.

        Of walks only: an ensemble has none that could be counted.
        """
        found = self.curve.attacks[-1]
        if found.members:
            return []
        last = int(found.steps[-1])
        flipped = found.first_flip[found.first_flip <= last]
        if not len(flipped):
            return [f"The attack alone broke no example in {last} steps."]
        sentences = [
            f"The attack alone broke {len(flipped)} of {self.examples} examples, at step "
            f"{int(flipped.median())} in the median and by step {int(flipped.max())} all of them."
        ]
        if self.bound is not None:
            within = int((found.first_flip <= self.bound)[found.first_flip <= last].sum())
            sentences.append(
                f"Theorem 5.1 allows {float(self.bound.median()):,.0f} steps in the median, by "
                f"constants estimated from random points; {within} of the {len(flipped)} kept it."
            )
        return sentences

    def smallest(self) -> dict[str, float | None]:
        """Quartiles of the smallest breaking radius, None where it is beyond all radii."""
        return {
            name: value if (value := float(_quantile(self.curve.smallest, at))) < 1e300 else None
            for name, at in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75))
        }

    def record(self) -> dict[str, Any]:
        """Everything that was found, ready for JSON."""
        doubling, fresh = self.doubling, self.fresh
        both, exchanges = self.examples_auc, self.exchanges
        return {
            "settings": asdict(self.settings),
            "contributions": self.contributions,
            "examples": self.examples,
            "curve": self.table(),
            "smallest epsilon": self.smallest(),
            "fresh noise without attack": None if fresh is None else fresh[0],
            "members": self.members(),
            "iterations": self.iterations(),
            "doubling": doubling and {**asdict(doubling), "change": doubling.change},
            "optimality": self.optimality and asdict(self.optimality),
            "alarms": list(self.alarms),
            "preflight": [in_words(each) for each in self.preflight],
            "clean AUC": self.clean_auc,
            "examples' AUC": both and {"before": both[0], "after": both[1]},
            "off-data share": self.off_data_share,
            "exchange agreement": exchanges and exchanges.order,
            "exchange size": exchanges and exchanges.size,
            "without exchanges": exchanges and exchanges.without,
            "ties": self.ties,
            "distinct sets": self.distinct_sets,
            "an epsilon of 1 buys": what_it_buys(self.perturbation)
            if isinstance(self.perturbation, ActionableSet)
            else None,
        }


def _quantile(values: Tensor, at: float) -> Tensor:
    return values.sort().values[min(len(values) - 1, int(at * len(values)))]
