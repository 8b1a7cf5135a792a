"""From one value per example or seed to a statement: AUC, means with intervals, paired tests."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from r2et.core.autograd import eval_mode
from r2et.explainers import check_inputs, log_odds, logits_of
from r2et.metrics.agreement import pearson, spearman

Values = Tensor | Sequence[float] | NDArray[np.floating]

ROWS_AT_ONCE = 4096
NUMBERS_AT_ONCE = 2**21


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean, its confidence interval, and the spread and number of the values behind it."""

    value: float
    low: float
    high: float
    sd: float
    count: int

    @property
    def spread(self) -> float | None:
        """The standard deviation, None where a single value has none to show."""
        return self.sd if self.count > 1 else None


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """Mean of first minus second, its t statistic and two-sided p-value, and how many pairs."""

    difference: float
    statistic: float
    p_value: float
    count: int


def auc(model: nn.Module, x: Tensor, labels: Tensor, *, rows_at_once: int = ROWS_AT_ONCE) -> float:
    """Area under the ROC curve of the model's answers against the true labels.

    With more than two classes, the plain mean of each class against the rest, over the classes
    that occur among the labels. Answers are compared as log-odds, which order examples as
    probabilities do but keep sure answers apart.
    """
    check_inputs(model, x, labels)
    found = labels.unique().tolist()
    if len(found) < 2:
        raise ValueError(
            f"an AUC takes examples of at least two classes, got labels {found} only: add others."
        )
    return auc_of(odds_of_classes(_logits(model, x, rows_at_once)).cpu(), labels.cpu())


def auc_of(scores: Tensor, labels: Tensor) -> float:
    """The same of scores (B, C), by each of which examples are ordered, and labels of two or more.

    Of two classes the scores of the second are taken.
    """
    from sklearn.metrics import roc_auc_score

    wanted = [1] if scores.shape[1] == 2 else labels.unique().tolist()
    by_class = scores.numpy().T
    areas = [float(roc_auc_score((labels == each).numpy(), by_class[each])) for each in wanted]
    return sum(areas) / len(areas)


def odds_of_classes(logits: Tensor) -> Tensor:
    """The log-odds of every class: (B, C)."""
    y = torch.arange(logits.shape[1], device=logits.device)
    return torch.stack([log_odds(logits, each.expand(len(logits))) for each in y], 1)


def accuracy(
    model: nn.Module, x: Tensor, labels: Tensor, *, rows_at_once: int = ROWS_AT_ONCE
) -> float:
    """Share of the examples whose true label the model gives the largest logit."""
    check_inputs(model, x, labels)
    logits = _logits(model, x, rows_at_once)
    return float((logits.argmax(-1) == labels.to(logits.device)).double().mean())


def _logits(model: nn.Module, x: Tensor, rows_at_once: int) -> Tensor:
    """The model's answers, a part of the examples at a time, refused unless finite: (B, C)."""
    together = min(rows_at_once, max(1, NUMBERS_AT_ONCE // max(1, x[0].numel())))
    with torch.no_grad(), eval_mode(model):
        logits = torch.cat([logits_of(model, part) for part in x.split(together)]).double()
    if not torch.isfinite(logits).all():
        raise ValueError("the model returned NaN or infinite logits: check its weights.")
    return logits


def auc_within(model: nn.Module, x: Tensor, labels: Tensor, of: Tensor) -> float:
    """Mean over groups of the AUC among their examples; groups of one label do not count.

    `of` names the group of each example, (B,). Of pairs grouped by the class of the first item, a
    model that only looks at the second one has one half.
    """
    found = []
    for group in of.unique().tolist():
        own = of == group
        if len(labels[own].unique()) > 1:
            found.append(auc(model, x[own], labels[own]))
    if not found:
        raise ValueError("an AUC within groups takes a group of two labels, got none: add others.")
    return sum(found) / len(found)


def mean_with_interval(values: Values, level: float = 0.95) -> Mean:
    """Mean of the values with its Student t interval at `level`.

    One value alone has an infinite interval, and zero as the spread seen so far.

    >>> mean_with_interval([1.0, 2.0, 3.0]).value
    2.0
    """
    from scipy import stats

    numbers = _numbers("values", values)
    count = len(numbers)
    if count < 1 or not 0 < level < 1:
        raise ValueError(
            f"a mean takes at least one value and a level between 0 and 1, got {count} values and "
            f"level {level}."
        )
    value = float(numbers.mean())
    if count == 1:
        return Mean(value=value, low=-np.inf, high=np.inf, sd=0.0, count=1)
    sd = float(numbers.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * sd / count**0.5
    return Mean(value=value, low=value - half, high=value + half, sd=sd, count=count)


def paired_test(first: Values, second: Values) -> PairedTest:
    """Two-sided t-test of whether paired values differ in the mean.

    Pairs without any difference give statistic 0 and p-value 1; pairs that all differ by exactly
    the same amount give an infinite statistic and p-value 0.
    """
    from scipy import stats

    ours, theirs = _pairs(first, second)
    differences = ours - theirs
    difference = float(differences.mean())
    if np.ptp(differences) == 0:
        statistic, p_value = (np.sign(difference) * np.inf, 0.0) if differences[0] else (0.0, 1.0)
    else:
        with warnings.catch_warnings():
            # Differences that are nearly the same have a huge statistic, which is no news.
            warnings.simplefilter("ignore", RuntimeWarning)
            statistic, p_value = stats.ttest_rel(ours, theirs)
    return PairedTest(
        difference=difference,
        statistic=float(statistic),
        p_value=float(p_value),
        count=len(differences),
    )


def correlation(a: Values, b: Values, kind: Literal["spearman", "pearson"] = "spearman") -> float:
    """Correlation of two lists of values, zero where one of them is constant."""
    measures = {"spearman": spearman, "pearson": pearson}
    if kind not in measures:
        raise ValueError(f"a correlation is {' or '.join(measures)}, got {kind!r}.")
    first, second = _pairs(a, b)
    return float(measures[kind](torch.from_numpy(first)[None], torch.from_numpy(second)[None]))


def _numbers(name: str, values: Values) -> NDArray[np.float64]:
    """The values as a plain row of float64 numbers."""
    plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    numbers = np.array(plain, dtype=np.float64)
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(
            f"{name} must be one row of finite numbers, got shape {numbers.shape} with "
            f"{int((~np.isfinite(numbers)).sum())} that are not finite."
        )
    return numbers


def _pairs(first: Values, second: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both lists as rows of one length, at least two."""
    ours, theirs = _numbers("the first values", first), _numbers("the second values", second)
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(
            f"paired values must be two or more on each side, got {len(ours)} and {len(theirs)}."
        )
    return ours, theirs


def share_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share, of which `count` of `total` were seen.

    >>> [round(each, 4) for each in share_interval(10, 100)]
    [0.0552, 0.1744]
    """
    from scipy import stats

    if not 0 <= count <= total or total < 1 or not 0 < level < 1:
        raise ValueError(
            f"a share takes a count of 0..total, total >= 1, and a level between 0 and 1, got "
            f"{count} of {total} at level {level}."
        )
    found = stats.binomtest(count, total).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def difference_interval(
    count: int, total: int, other: int, others: int, level: float = 0.95
) -> tuple[float, float]:
    """Newcombe's interval of the difference of two shares, count / total - other / others.

    The distances of both shares to the ends of Wilson's intervals, added up as lengths are
    (Newcombe 1998, method 10).
    """
    (low, high), (least, most) = (
        share_interval(count, total, level),
        share_interval(other, others, level),
    )
    first, second = count / total, other / others
    below = np.hypot(first - low, most - second)
    above = np.hypot(high - first, second - least)
    return float(first - second - below), float(first - second + above)
