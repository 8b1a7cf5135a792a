"""Training methods as data, and the objective that any training loop can minimise."""

from functools import partial

from r2et.objectives.family import r2et
from r2et.objectives.gaps import mean_gap, unit_length
from r2et.objectives.method import Look, Loss, Method, MethodEntry, Objective, Penalty

__all__ = [
    "METHODS",
    "Look",
    "Loss",
    "Method",
    "MethodEntry",
    "Objective",
    "Penalty",
    "mean_gap",
    "r2et",
    "unit_length",
]


def _vanilla(*, k: int) -> Method:
    """Cross-entropy alone, whatever k."""
    return Method()


METHODS: dict[str, MethodEntry] = {
    "vanilla": MethodEntry(build=_vanilla, label="Vanilla", line="cross-entropy alone"),
    "r2et": MethodEntry(
        build=partial(r2et, curvature=0.1),
        label="R2ET",
        line="wider gaps between the top k and all others, and less curvature",
        weights=("thickness", "curvature"),
        ranks=True,
    ),
    "r2et-noh": MethodEntry(
        build=r2et,
        label="R2ET\\H",
        line="wider gaps between the top k and all others",
        weights=("thickness", "curvature"),
        ranks=True,
    ),
    "r2et-mm": MethodEntry(
        build=partial(r2et, curvature=0.1, pairs="facing"),
        label="R2ET-mm",
        line="wider gaps of the pairs facing each other at place k, and less curvature",
        weights=("thickness", "curvature"),
        ranks=True,
    ),
    "r2et-mm-noh": MethodEntry(
        build=partial(r2et, pairs="facing"),
        label="R2ET-mm\\H",
        line="wider gaps of the pairs facing each other at place k",
        weights=("thickness", "curvature"),
        ranks=True,
    ),
}
