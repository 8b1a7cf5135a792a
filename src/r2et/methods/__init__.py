"""Training methods as data: what each adds to the loss, by name."""

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
from r2et.methods.contribution_loss import (
    contribution_margin,
    corner_moves,
    single_moves,
    whole_moves,
)
from r2et.methods.margins import mean_margin, unit_length
from r2et.methods.method import BatchContext, Method, MethodEntry, Penalty
from r2et.methods.steadfast_loss import steadfast
from r2et.methods.widening import r2et

__all__ = [
    "METHODS",
    "BatchContext",
    "Method",
    "MethodEntry",
    "Penalty",
    "contribution_margin",
    "corner_moves",
    "mean_margin",
    "r2et",
    "single_moves",
    "steadfast",
    "unit_length",
    "whole_moves",
]


def _vanilla(*, k: int) -> Method:
    """Cross-entropy alone, whatever k."""
    return Method()


METHODS: dict[str, MethodEntry] = {
    "vanilla": MethodEntry(function=_vanilla, label="Vanilla", line="cross-entropy alone"),
    "wd": MethodEntry(
        function=weight_decay,
        label="WD",
        line="weights that shrink at every step",
        weights=("rate",),
    ),
    "sp": MethodEntry(
        function=softplus,
        label="SP",
        line="softplus in place of every ReLU or LeakyReLU",
    ),
    "est-h": MethodEntry(
        function=estimated_hessian,
        label="Est-H",
        line="less curvature, estimated by a finite difference",
        weights=("curvature",),
    ),
    "exact-h": MethodEntry(
        function=exact_hessian,
        label="Exact-H",
        line="less curvature, the exact norm of the Hessian",
        weights=("curvature",),
    ),
    "ssr": MethodEntry(
        function=spectral,
        label="SSR",
        line="less curvature, the Hessian's eigenvalue of largest magnitude",
        weights=("curvature",),
    ),
    "at": MethodEntry(
        function=adversarial,
        label="AT",
        line="inputs moved to where the top k lead by less",
    ),
    "r2et": MethodEntry(
        function=r2et,
        presets={"curvature": 0.1},
        label="R2ET",
        line="wider gaps between the top k and all others, and less curvature",
        family="r2et",
        weights=("thickness", "curvature"),
    ),
    "r2et-noh": MethodEntry(
        function=r2et,
        label="R2ET\\H",
        line="wider gaps between the top k and all others",
        family="r2et",
        weights=("thickness", "curvature"),
    ),
    "r2et-mm": MethodEntry(
        function=r2et,
        presets={"curvature": 0.1, "pairs": "facing"},
        label="R2ET-mm",
        line="wider gaps of the pairs facing each other at place k, and less curvature",
        family="r2et",
        weights=("thickness", "curvature"),
    ),
    "r2et-mm-noh": MethodEntry(
        function=r2et,
        presets={"pairs": "facing"},
        label="R2ET-mm\\H",
        line="wider gaps of the pairs facing each other at place k",
        family="r2et",
        weights=("thickness", "curvature"),
    ),
    "cl": MethodEntry(
        function=certified_ratio,
        label="CL",
        line="a higher ratio of gap to curvature for the pairs facing each other at place k",
        weights=("ratio",),
    ),
    "thickness": MethodEntry(
        function=thick,
        label="Thickness",
        line="the gaps themselves on the way to random neighbours, which R2ET stands in for",
        weights=("thickness",),
    ),
    "steadfast": MethodEntry(
        function=steadfast,
        label="Steadfast",
        line="ours: the top k hold at an attacked neighbour, in a network that can hold them",
        family="ours",
        weights=("thickness", "variation"),
        model="structured",
    ),
    "steadfast-any": MethodEntry(
        function=r2et,
        presets={"pairs": "facing", "gap": "normalised", "radius": 0.5, "norm": "l2"},
        label="Steadfast (any network)",
        line="ours for networks of any kind: the top k hold at an attacked neighbour",
        family="ours",
        weights=("thickness", "curvature"),
    ),
    "steadfast-quick": MethodEntry(
        function=steadfast,
        presets={"steps": 0},
        label="Steadfast (quick)",
        line="ours without the attack: the top k hold at x, in a network that can hold them",
        family="ours",
        weights=("thickness", "variation"),
        model="structured",
    ),
    "r2et-contributions": MethodEntry(
        function=contribution_margin,
        label="R2ET-contributions",
        line="the top k contributions lead by more than the worst admissible move takes away",
        family="ours",
        weights=("thickness",),
    ),
}
