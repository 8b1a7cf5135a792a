"""A made-up comparison of two models."""

from dataclasses import replace

from r2et.evaluation.moved import UnderMoves
from r2et.experiments.reason_records import BeforeAfter, Compared, Comparison, NumberCurve, Spoken


def made_comparison(*, every: bool = True) -> Comparison:
    """Boosted trees and StableClassifier on 150 made-up decisions."""
    under = UnderMoves(
        broken=0.54,
        kept=0.82,
        core=2.34,
        all_but_one=0.893,
        overlap=0.474,
        overlap_of_all=0.414,
        kappa=0.66,
    )
    trees = Compared(
        model="trees",
        auc=0.8852,
        under=under,
        within=(0.47, 0.54),
        proved=0.46 if every else 0.0,
        exact=every,
    )
    stable = Compared(
        model="stable",
        auc=0.8818,
        under=replace(under, broken=0.133, kept=0.953, core=2.86, overlap=0.55, kappa=0.9),
        within=(0.073, 0.133),
        proved=0.867,
        exact=True,
    )
    before = Spoken(
        decision="no", adds={"age": -1.0, "job": -0.2, "hours": -0.1}, reasons=("age", "job")
    )
    after = Spoken(
        decision="no", adds={"age": -1.0, "job": -0.2, "hours": -0.3}, reasons=("age", "hours")
    )
    return Comparison(
        data="people",
        classes=("no", "yes"),
        k=2,
        learnt=1000,
        rows=(trees, stable),
        widths={"age": 2.0, "hours": 2.0},
        limits=(0.5, 1.0),
        decisions=150,
        moves=25 if every else 250,
        every=every,
        undetermined=0.0,
        most=0.99,
        lot=1 / 3,
        curves=(
            NumberCurve(
                name="age",
                values=(20.0, 30.0, 40.0),
                people=(0.2, 0.3, 0.5),
                edges=(24.5,),
                adds={"trees": (-1.0, 0.0, 1.0), "stable": (-1.0, 0.5, 0.5)},
            ),
        ),
        person=BeforeAfter(
            row=3,
            steady=True,
            values={"age": "30", "job": "clerk", "hours": "40"},
            move={"hours": (40.0, 41.0)},
            said={"trees": (before, after), "stable": (before, before)},
        ),
        told=(),
        notes=("a note",),
    )
