"""What is asked of each decision of an audit."""

import math
from dataclasses import dataclass

from r2et.attacks.ensemble import CELLS, EnsembleBudget
from r2et.certification.affine import Norm
from r2et.core.naming import nearest
from r2et.explainers import SCORES, Quantity
from r2et.perturbations import PERTURBATIONS

ATTACKS = ("strong", "none")
LEAST_CHECKED = 8  # proved decisions of the first chunk that are checked, if there are as many
RADII = ("auto", "all", "none")


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What is asked of each decision.

    `tolerance` is the length at which a verdict is given, `epsilons` those of the curves, `budget`
    what the strong attack may spend at each. `radii` are sought for "all" decisions, for "none",
    where a certificate at each of `epsilons` must do, or for those of tables up to 20,000 rows
    ("auto"). `measured` rows, the first ones, get the measures that cost most: thickness,
    faithfulness, flippable predictions and exchange agreement.
    `chunk` rows are audited at a time, and what is found out about them is kept: 256 unless given,
    2048 without an attack. `rows` leaves out all but the first ones. `checked` is the share of the
    decisions with a proof that are attacked inside their radii, those proved furthest first
    (`r2et.auditing.checking`). `search` is how many seconds a decision, on average, the search over
    activation cells may take that follows where neither proof nor attack decides, and that proves
    the smallest changes, and as long again for the curves, where radii are sought; 0 leaves it out.
    `project_one_hot` leaves out the directions in which one-hot columns cannot vary.
    """

    k: int = 8
    tolerance: float = 0.1
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5)
    norm: Norm = "l2"
    explained: Quantity = "probability"
    project_one_hot: bool = False
    attack: str = "strong"
    budget: EnsembleBudget = EnsembleBudget(rounds=2, starts=16, points=64, moves=24, cells=CELLS)  # noqa: RUF009 - frozen
    radii: str = "auto"
    rows: int | None = None
    measured: int = 1000
    chunk: int | None = None
    checked: float = 0.1
    search: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be asked, and look at the tolerance, too."""
        for what, word, known in (
            ("attack", self.attack, ATTACKS),
            ("radii", self.radii, RADII),
            ("norm", self.norm, PERTURBATIONS),
            ("explained quantity", self.explained, tuple(SCORES)),
        ):
            if word not in known:
                raise ValueError(f"unknown {what} {word!r}: {nearest(str(word), known)}")
        for length in (self.tolerance, *self.epsilons):
            if not 0 < length < math.inf:
                raise ValueError(
                    f"the tolerance and the epsilons of an audit must be positive, got {length:g}."
                )
        if self.chunk is None:
            object.__setattr__(self, "chunk", 256 if self.attack != "none" else 2048)
        counts = (self.chunk or 0, self.measured, 1 if self.rows is None else self.rows)
        if counts[0] < 1 or counts[1] < 0 or counts[2] < 1:
            raise ValueError(
                f"an audit needs chunk >= 1, measured >= 0 and rows >= 1, got {counts}."
            )
        if not 0 <= self.search < math.inf:
            raise ValueError(
                f"search is a number of seconds a decision, 0 or more, got {self.search:g}."
            )
        if not 0 <= self.checked <= 1:
            raise ValueError(
                f"checked is a share of the proved decisions, 0 to 1, got {self.checked:g}."
            )
        # The curve shows the tolerance, too.
        lengths = tuple(sorted({*map(float, self.epsilons), float(self.tolerance)}))
        object.__setattr__(self, "epsilons", lengths)
