"""Training methods as data, and the objective that any training loop can minimise."""

from functools import partial

from r2et.methods.baselines import (
    adversarial,
    certified_ratio,
    estimated_hessian,
    exact_hessian,
    softplus,
    spectral,
    thick,
    weight_decay,
)
from r2et.methods.family import r2et
from r2et.methods.gaps import mean_gap, unit_length
from r2et.methods.method import BatchContext, Loss, Method, MethodEntry, Objective, Penalty
from r2et.methods.steadfast import steadfast

__all__ = [
    "METHODS",
    "BatchContext",
    "Loss",
    "Method",
    "MethodEntry",
    "Objective",
    "Penalty",
    "mean_gap",
    "r2et",
    "steadfast",
    "unit_length",
]


def _vanilla(*, k: int) -> Method:
    """Cross-entropy alone, whatever k."""
    return Method()


METHODS: dict[str, MethodEntry] = {
    "vanilla": MethodEntry(build=_vanilla, label="Vanilla", line="cross-entropy alone"),
    "wd": MethodEntry(
        build=weight_decay,
        label="WD",
        line="weights that shrink at every step",
        weights=("rate",),
    ),
    "sp": MethodEntry(
        build=softplus,
        label="SP",
        line="softplus in place of every ReLU or LeakyReLU",
    ),
    "est-h": MethodEntry(
        build=estimated_hessian,
        label="Est-H",
        line="less curvature, estimated by a finite difference",
        weights=("curvature",),
    ),
    "exact-h": MethodEntry(
        build=exact_hessian,
        label="Exact-H",
        line="less curvature, the exact norm of the Hessian",
        weights=("curvature",),
    ),
    "ssr": MethodEntry(
        build=spectral,
        label="SSR",
        line="less curvature, the Hessian's eigenvalue of largest magnitude",
        weights=("curvature",),
    ),
    "at": MethodEntry(
        build=adversarial,
        label="AT",
        line="inputs moved to where the top k lead by less",
        ranks=True,
    ),
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
    "cl": MethodEntry(
        build=certified_ratio,
        label="CL",
        line="a higher ratio of gap to curvature for the pairs facing each other at place k",
        weights=("ratio",),
        ranks=True,
    ),
    "thickness": MethodEntry(
        build=thick,
        label="Thickness",
        line="the gaps themselves on the way to random neighbours, which R2ET stands in for",
        weights=("thickness",),
        ranks=True,
    ),
    "steadfast": MethodEntry(
        build=steadfast,
        label="Steadfast",
        line="ours: the top k hold at an attacked neighbour, in a network that can hold them",
        weights=("thickness", "variation"),
        model="structured",
        ranks=True,
    ),
    "steadfast-any": MethodEntry(
        build=partial(r2et, pairs="facing", gap="normalised", radius=0.5, norm="l2"),
        label="Steadfast (any network)",
        line="ours for networks of any kind: the top k hold at an attacked neighbour",
        weights=("thickness", "curvature"),
        ranks=True,
    ),
    "steadfast-quick": MethodEntry(
        build=partial(steadfast, steps=0),
        label="Steadfast (quick)",
        line="ours without the attack: the top k hold at x, in a network that can hold them",
        weights=("thickness", "variation"),
        model="structured",
        ranks=True,
    ),
}
