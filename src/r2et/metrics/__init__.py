"""Measures of an explained and attacked batch, one value per example. Metrics never run attacks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

from torch import Tensor, nn

from r2et.core import ranking
from r2et.core.inputs import joined, packed
from r2et.core.one_hot import OneHot
from r2et.explainers import Explainer, check_inputs, check_predicted, explained
from r2et.metrics import agreement, exchanges, faithfulness, sensitivity, thickness

__all__ = ["METRICS", "Case", "Metric"]

ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """Examples with their attacked forms and both saliencies: all that a metric may look at.

    `sizes`, `baseline` and `groups` say what removing features means, as in `faithfulness`;
    `probes`, from how many random directions the Hessian norm is estimated, exact without;
    `categories`, which columns are the values of one attribute, as in `exchanges`.
    """

    model: nn.Module
    explain: Explainer
    x: Tensor
    attacked: Tensor
    y: Tensor
    k: int
    before: Tensor
    after: Tensor
    sizes: tuple[int, ...] | None = None
    baseline: float | Tensor = 0.0
    groups: tuple[int, ...] | None = None
    probes: int | None = None
    categories: OneHot = ()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        explain: Explainer,
        x: Tensor,
        attacked: Tensor,
        y: Tensor,
        k: int,
        *,
        sizes: tuple[int, ...] | None = None,
        baseline: float | Tensor = 0.0,
        groups: tuple[int, ...] | None = None,
        probes: int | None = None,
        categories: OneHot = (),
    ) -> Self:
        """A case whose saliencies `before` and `after` (B, n) are computed here, once.

        `y` is the class that the model predicts for the clean x; both saliencies explain it.
        """
        model, x, attacked = joined(model, x), packed(x, model), packed(attacked, model)
        if attacked.shape != x.shape:
            raise ValueError(
                f"x and its attacked form must have one shape, got {tuple(x.shape)} and "
                f"{tuple(attacked.shape)}."
            )
        x, attacked = x.detach(), attacked.detach()
        check_inputs(model, x, y)
        check_inputs(model, attacked, y)
        check_predicted(model, x, y, ROWS_AT_ONCE)
        before = explained(model, explain, x, y)
        ranking.check_k(k, before.shape[-1])
        return cls(
            model=model,
            explain=explain,
            x=x,
            attacked=attacked,
            y=y,
            k=k,
            before=before,
            after=explained(model, explain, attacked, y),
            sizes=sizes,
            baseline=baseline,
            groups=groups,
            probes=probes,
            categories=categories,
        )

    @cached_property
    def flips(self) -> Tensor:
        """The share of top features whose removal flips the class, infinity if none does: (B,)."""
        return _without(faithfulness.flipping_share)(self)

    @cached_property
    def exchanges(self) -> exchanges.Agreement:
        """What gradients say about exchanges of categories, against what these do."""
        return exchanges.exchange_agreement(
            self.model, self.x, self.y, self.categories, explain=self.explain
        )


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measure of a case, (B,): its label, what it needs, what is better, and one line on it.

    The label is what tables call it. It needs an attacked input, "removal" of explained features of
    the input, "exchanges" of categories, or nothing but the model.
    """

    label: str
    measure: Callable[[Case], Tensor]
    needs: Literal["attack", "model", "removal", "exchanges"]
    better: Literal["higher", "lower", "none"]
    line: str


def _compared(measure: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Case], Tensor]:
    """A measure of the saliencies before and after the attack."""
    return lambda case: measure(case.before, case.after)


def _without(measure: Callable[..., Tensor]) -> Callable[[Case], Tensor]:
    """A measure of what becomes of the answer when features are removed."""
    return lambda case: measure(
        case.model,
        case.x,
        case.y,
        case.before,
        baseline=case.baseline,
        sizes=case.sizes,
        groups=case.groups,
    )


def _thickness(case: Case) -> Tensor:
    return thickness.thickness(
        case.model,
        case.x,
        case.y,
        case.attacked[None],
        explain=case.explain,
        k=case.k,
        variant="probability",
    ).value


METRICS: dict[str, Metric] = {
    "precision@k": Metric(
        label="P@k",
        measure=lambda case: agreement.precision_at_k(case.before, case.after, case.k),
        needs="attack",
        better="higher",
        line="Share of the top k features that stay in the top k.",
    ),
    "pearson": Metric(
        label="Pearson",
        measure=_compared(agreement.pearson),
        needs="attack",
        better="higher",
        line="Correlation of the saliencies before and after the attack.",
    ),
    "mse": Metric(
        label="MSE",
        measure=_compared(agreement.mse),
        needs="attack",
        better="lower",
        line="Mean squared difference of the saliencies before and after the attack.",
    ),
    "kendall": Metric(
        label="Kendall",
        measure=_compared(agreement.kendall),
        needs="attack",
        better="higher",
        line="Kendall's tau-b of the rankings before and after the attack.",
    ),
    "spearman": Metric(
        label="Spearman",
        measure=_compared(agreement.spearman),
        needs="attack",
        better="higher",
        line="Spearman's correlation of the rankings before and after the attack.",
    ),
    "sen": Metric(
        label="Sen",
        measure=lambda case: sensitivity.changed_prediction(case.model, case.x, case.attacked),
        needs="attack",
        better="lower",
        line="Whether the attack changes the predicted class.",
    ),
    "dffot": Metric(
        label="DFFOT",
        measure=lambda case: case.flips.clamp(max=1),
        needs="removal",
        better="lower",
        line="Smallest share of top features whose removal changes the predicted class.",
    ),
    "comp": Metric(
        label="COMP",
        measure=_without(faithfulness.comp),
        needs="removal",
        better="higher",
        line="Mean change of the predicted probability when top features are removed.",
    ),
    "suff": Metric(
        label="SUFF",
        measure=_without(faithfulness.suff),
        needs="removal",
        better="lower",
        line="Mean change of the predicted probability when only top features are left.",
    ),
    "hessian norm": Metric(
        label="Hessian norm",
        measure=lambda case: sensitivity.curvature(
            case.model, case.x, case.y, case.explain, probes=case.probes
        ),
        needs="model",
        better="lower",
        line="Frobenius norm of the derivative of the explanation at the clean input.",
    ),
    "saliency norm": Metric(
        label="Sum |I|",
        measure=lambda case: case.before.abs().sum(-1),
        needs="model",
        better="none",
        line="Sum of absolute scores: shows gaps that grew only because all gradients did.",
    ),
    "tie": Metric(
        label="Ties",
        measure=lambda case: ranking.ties(case.before, case.k).to(case.before.dtype),
        needs="model",
        better="lower",
        line="Whether the k-th and the next feature are equal, so that the top k is arbitrary.",
    ),
    "thickness": Metric(
        label="Thickness",
        measure=_thickness,
        needs="attack",
        better="higher",
        line="Share of top-k pairs still in order on the way to the attacked input.",
    ),
    "exchange agreement": Metric(
        label="Exchanges agree",
        measure=lambda case: case.exchanges.order,
        needs="exchanges",
        better="higher",
        line="How well gradients order the exchanges of categories that a person could make.",
    ),
    "exchange size": Metric(
        label="Exchange size",
        measure=lambda case: case.exchanges.size,
        needs="exchanges",
        better="higher",
        line="What gradients say exchanges of categories do and what they do, smaller over larger.",
    ),
}
