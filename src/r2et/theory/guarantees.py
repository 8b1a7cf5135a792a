"""How often chance breaks the order near x: the statistical guarantee (P Theorem 5.2, A.5).

For x' drawn from a distribution D around x, the true risk is the mean share of the m = k(n - k)
pairs, of a top-k feature of x and another feature, that are out of order at x'. Seen on S draws,
it is bounded with a chosen confidence. The bound speaks of chance, not of an attacker who chooses
x'. It is the paper's, read as follows.

- Eqs. 49-53 sum j over 1..n; the pairs are those with j > k, of which there are m.
- Eqs. 50 and 53 take the empirical risk at x, while the probability is over x' ~ D. At a fixed x
  nothing is random, and the pairs of x are in order there by definition. The empirical risk is
  therefore that of independent draws from D; the paper's m pairs of a single x are S = 1.
- "D preserves the salient features" cannot mean that they stay on top, or the true risk were zero:
  it means that the pairs are those of the clean x at every draw.
- Lemma A.11 and Theorem A.12 have a factor 2, Theorem 5.2 has none. One side needs none [Janson
  2004; Usunier et al. 2005].
- The chromatic number is bounded by 1 + the largest degree. The paper puts this at 1 + m, the
  default here; a graph of m nodes has degrees of m - 1 at most, so that m is enough, with which
  the bound is that of Hoeffding for the S draws.
- A dependency graph must make the pairs of one colour independent all together; that no two of
  them depend on each other, as the paper says, is not enough. Seven pairs of which any two are
  independent break Lemma A.11, and three of them the theorem's form without the factor 2.
- The covering number is of no stated norm and has the radius eps u / 8. Through phi_u such a cover
  would leave eps / 2 to the concentration, and the exponent would be a quarter of that stated. The
  stated exponent is right nevertheless, and for the larger radius u / 4, in the largest difference
  of any score at any x' of D: let c be a centre within u / 4 of I, z the gap of a pair. Where
  z_I < 0, z_c < u / 2; where z_c < u / 2, z_I < u. Hence the true risk of I is at most the true
  share of z_c < u / 2, whose empirical share is at most the empirical risk of I with margin u, and
  the concentration is needed for the centres only.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from r2et.core.naming import counted
from r2et.core.ranking import check_k, order


@dataclass(frozen=True, kw_only=True, eq=False)
class PairRisks:
    """Share of the pairs of each draw that are at fault, in three ways, each at most the next."""

    flipped: Tensor
    """Out of order, z < 0 [Eq. 50]."""
    ramp: Tensor
    """Mean phi_u(z) [Eq. 53]."""
    thin: Tensor
    """Ahead by less than the margin, z < u: the R_{0,1,u} of Theorem 5.2."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskBound:
    """At most this share of pairs is out of order on average over D, and what that rests on."""

    value: Tensor
    """thin + excess, at most 1: (B,)."""
    risks: PairRisks
    """The empirical risks, means over the draws: (B,) each."""
    excess: float
    """By how much, but for the failure probability, the true risk can exceed the empirical."""
    confidence: float
    margin: float
    draws: int
    pairs: int
    chromatic: int
    log_cover: float
    assumptions: tuple[str, ...]

    @property
    def vacuous(self) -> Tensor:
        """Whether the bound allows every pair to be out of order, and so says nothing: (B,)."""
        return self.value >= 1

    @property
    def mean(self) -> float:
        """Bound of the mean risk of all examples, of the same confidence."""
        return min(1.0, float(self.risks.thin.mean()) + self.excess)

    def explained(self) -> str:
        """The bound, its ingredients and its assumptions in plain sentences, one on each line."""
        examples, silent = len(self.value), int(self.vacuous.sum())
        whose = "" if examples == 1 else f" and over {examples} examples"
        seen = f"{float(self.risks.flipped.mean()):.1%} of pairs that were seen out of order"
        if self.margin > 0:
            thin = f"{float(self.risks.thin.mean()):.1%} that led by less than {self.margin:g}"
            seen = f"{thin}, among them {seen}"
        lines = [
            f"With confidence {self.confidence:.4g}, at most {self.mean:.1%} of the {self.pairs} "
            f"pairs of a top feature and another are out of order, on average over the draws' "
            f"distribution{whose}.",
            f"That is {seen}, and {self.excess:.1%} for what {counted(self.draws, 'draw')} cannot "
            f"show (chromatic number {self.chromatic}, logarithm of the covering number "
            f"{self.log_cover:.4g}).",
        ]
        if examples > 1:
            lines.append(
                f"Example by example the bound lies between {float(self.value.min()):.1%} and "
                f"{float(self.value.max()):.1%}."
            )
        if silent:
            of_whom = "" if examples == 1 else f" for {silent} of {examples} examples"
            enough = draws_needed(
                0.05,
                self.confidence,
                pairs=self.pairs,
                chromatic=self.chromatic,
                log_cover=self.log_cover,
            )
            lines.append(
                f"The bound is vacuous{of_whom}: it allows every pair to be out of order; from "
                f"{counted(enough, 'draw')} on, no more than 5.0% are added to what was seen."
            )
        return "\n".join([*lines, *self.assumptions])


def ramp(gap: Tensor, margin: float) -> Tensor:
    """Loss of a gap z, phi_u(z) = 1 below 0, 1 - z/u up to u, 0 from u on  [Eq. 51]: like `gap`.

    u = `margin`. Without a margin it is the 0-1 loss of Eq. 50, for which equal scores are in
    order.

    >>> ramp(torch.tensor([-1.0, 0.0, 0.5, 2.0]), margin=2.0)
    tensor([1.0000, 1.0000, 0.7500, 0.0000])
    """
    _check_margin(margin)
    if margin == 0:
        return (gap < 0).to(gap.dtype)
    return (1 - gap / margin).clamp(0, 1)


def pair_risks(saliency: Tensor, reference: Tensor, *, k: int, margin: float = 0.0) -> PairRisks:
    """Risks of the pairs at each draw  [Eqs. 50 and 53, R_{0,1,u}]: (S, B) each, in float64.

    `saliency` (S, B, n) is the explanation at S draws, `reference` (B, n) that of the clean x,
    whose top k set the pairs, and u = `margin`. The pairs are met one top feature at a time.
    """
    _check_draws(saliency, reference)
    _check_margin(margin)
    n = reference.shape[-1]
    check_k(k, n)
    ranked = saliency.detach().double().gather(-1, order(reference).expand_as(saliency))
    flipped, ramped, thin = (torch.zeros_like(ranked[..., 0]) for _ in range(3))
    for i in range(k):
        gap = ranked[..., i : i + 1] - ranked[..., k:]
        flipped += (gap < 0).sum(-1)
        ramped += ramp(gap, margin).sum(-1)
        thin += (gap < margin).sum(-1)
    pairs = k * (n - k)
    return PairRisks(flipped=flipped / pairs, ramp=ramped / pairs, thin=thin / pairs)


def chromatic_bound(pairs: int) -> int:
    """Colours that are enough however the pairs depend on one another, 1 + m  [Lemma A.11]."""
    _check_counts(pairs=pairs)
    return 1 + pairs


def chromatic_of_independent_features(k: int, n: int) -> int:
    """Colours that are enough where the scores of all features are independent under D.

    Then two pairs depend on each other only through a feature they share. Pair (i, j) takes the
    colour i + j modulo max(k, n - k), so that no colour meets a feature twice. Additive models
    have such explanations where D draws the features one by one.
    """
    check_k(k, n)
    return max(k, n - k)


def cover_of_weights(*, parameters: int, reach: float, margin: float) -> float:
    """Logarithm of a covering number for Theorem 5.2: ln N <= p ln(1 + 2 R / r), with r = u / 4.

    For weights w in a ball of radius W in p = `parameters` dimensions, where no score at any x' of
    D moves by more than a constant times the change of w: R = `reach` is that constant times W.
    """
    _check_counts(parameters=parameters)
    _check_margin(margin)
    if not (0 <= reach < math.inf and margin > 0):
        raise ValueError(
            f"a cover takes a finite reach of at least 0 and a margin above 0, got {reach} and "
            f"{margin}."
        )
    return parameters * math.log1p(2 * reach / (margin / 4))


def failure_probability(
    excess: float, *, draws: int, pairs: int, chromatic: int | None = None, log_cover: float = 0.0
) -> float:
    """Probability, at most, that the true risk exceeds the empirical one by `excess`.

    exp(-2 S m eps^2 / chi) N  [Theorem 5.2], eps = `excess`, S = `draws`, m = `pairs`, chi =
    `chromatic`, by default `chromatic_bound`, and N = exp(`log_cover`).

    >>> round(failure_probability(0.1, draws=200, pairs=10, chromatic=10), 4)
    0.0183
    """
    colours = _check_setting(draws, pairs, chromatic, log_cover)
    if not 0 <= excess < math.inf:
        raise ValueError(f"an excess must be a finite number of at least 0, got {excess}.")
    return math.exp(min(0.0, log_cover - 2 * draws * pairs * excess**2 / colours))


def printed_ramp_failure(excess: float, *, pairs: int, chromatic: int | None = None) -> float:
    """The right side of Lemma A.11 as printed, 2 exp(-2 m eps^2 / chi)  [Eq. 54].

    eps = `excess`, m = `pairs`, chi = `chromatic`, by default `chromatic_bound`. It is to bound the
    probability that the true ramp risk [Eq. 52] exceeds that of Eq. 53 by eps, and does not, with
    Eq. 53 taken at x or with a graph that links pairs two by two. `ramp_bound` is what holds.
    """
    colours = _check_setting(1, pairs, chromatic, 0.0)
    return 2 * math.exp(-2 * pairs * excess**2 / colours)


def ramp_bound(
    saliency: Tensor,
    reference: Tensor,
    *,
    k: int,
    margin: float,
    confidence: float = 0.95,
    chromatic: int | None = None,
) -> Tensor:
    """Bound of the true ramp risk [Eq. 52] of each example, Lemma A.11 as it holds: (B,).

    Mean phi_u over the pairs and the S draws plus `excess_risk`: phi_u lies between 0 and 1 as the
    0-1 loss does. `saliency` (S, B, n) is the explanation at S independent draws of D, and the
    pairs of one of the `chromatic` colours are independent all together. One side needs no
    factor 2.
    """
    pairs = k * (reference.shape[-1] - k)
    seen = pair_risks(saliency, reference, k=k, margin=margin).ramp.mean(0)
    excess = excess_risk(confidence, draws=len(saliency), pairs=pairs, chromatic=chromatic)
    return (seen + excess).clamp(max=1.0)


def excess_risk(
    confidence: float,
    *,
    draws: int,
    pairs: int,
    chromatic: int | None = None,
    log_cover: float = 0.0,
) -> float:
    """By how much, but for a probability of 1 - `confidence`, the true risk exceeds the empirical.

    eps = sqrt(chi (ln N + ln 1 / (1 - confidence)) / (2 S m)), which solves `failure_probability`.
    From one draw, and whatever the pairs, it is more than 1 for a confidence above 1 - exp(-2),
    unless some pairs are known to be independent.
    """
    colours = _check_setting(draws, pairs, chromatic, log_cover)
    _check_confidence(confidence)
    return math.sqrt(colours * _exponent_needed(confidence, log_cover) / (2 * draws * pairs))


def draws_needed(
    excess: float,
    confidence: float,
    *,
    pairs: int,
    chromatic: int | None = None,
    log_cover: float = 0.0,
) -> int:
    """The fewest draws that leave an excess risk of at most `excess`.

    >>> draws_needed(0.05, 0.95, pairs=160)
    603
    """
    colours = _check_setting(1, pairs, chromatic, log_cover)
    _check_confidence(confidence)
    if not 0 < excess < math.inf:
        raise ValueError(f"an excess to reach must be a finite number above 0, got {excess}.")
    needed = colours * _exponent_needed(confidence, log_cover) / (2 * pairs * excess**2)
    return max(1, math.ceil(needed))


def risk_bound(
    saliency: Tensor,
    reference: Tensor,
    *,
    k: int,
    confidence: float = 0.95,
    margin: float = 0.0,
    chromatic: int | None = None,
    log_cover: float = 0.0,
) -> RiskBound:
    """Bound of the true risk of each example  [Eq. 49, Theorem 5.2]: (B,).

    R_true <= R_{0,1,u} + eps but for a probability of 1 - `confidence`: the empirical risk of
    `pair_risks` with u = `margin`, and eps of `excess_risk`. `saliency` (S, B, n) is the
    explanation at S independent draws from D, `reference` (B, n) that of the clean x.

    For one model that was there before the draws, `log_cover` is 0 and the margin need not be
    more than 0. Otherwise `log_cover` is ln N(F, u / 4), for instance by
    `cover_of_weights`, or the logarithm of the number of models.

    >>> clean = torch.tensor([[3.0, 2.0, 1.0]])
    >>> bound = risk_bound(clean.expand(1000, 1, 3), clean, k=1)
    >>> round(bound.mean, 4)
    0.0474
    """
    each = pair_risks(saliency, reference, k=k, margin=margin)
    draws, examples, n = saliency.shape
    pairs = k * (n - k)
    colours = _check_setting(draws, pairs, chromatic, log_cover)
    risks = PairRisks(flipped=each.flipped.mean(0), ramp=each.ramp.mean(0), thin=each.thin.mean(0))
    excess = excess_risk(
        confidence, draws=draws, pairs=pairs, chromatic=colours, log_cover=log_cover
    )
    return RiskBound(
        value=(risks.thin + excess).clamp(max=1.0),
        risks=risks,
        excess=excess,
        confidence=confidence,
        margin=margin,
        draws=draws,
        pairs=pairs,
        chromatic=colours,
        log_cover=log_cover,
        assumptions=_assumptions(
            draws=draws,
            pairs=pairs,
            examples=examples,
            confidence=confidence,
            margin=margin,
            worst_case=colours >= pairs,
            log_cover=log_cover,
        ),
    )


def _assumptions(
    *,
    draws: int,
    pairs: int,
    examples: int,
    confidence: float,
    margin: float,
    worst_case: bool,
    log_cover: float,
) -> tuple[str, ...]:
    """What a bound rests on and what it does not say, a sentence each."""
    drawn = (
        "The draw comes from the distribution of which the bound speaks, and x itself is none."
        if draws == 1
        else f"The {draws} draws are independent and come from the distribution of which the bound "
        "speaks; x itself is none of them."
    )
    chosen = (
        "Model, explanation, k and margin were fixed before the draws."
        if log_cover == 0
        else "The draws may have chosen the explanation from a family, but not its pairs, k and "
        f"margin: explanations, exp({log_cover:.4g}) of them, come within {margin / 4:g} of each "
        "member, at every feature and every possible draw."
    )
    dependence = (
        "Nothing is assumed of how the pairs of one draw depend on one another."
        if worst_case
        else "Pairs of one colour are independent of one another, all together, within a draw; "
        "this is for the caller to know, the draws do not show it."
    )
    alone = (
        ()
        if examples == 1
        else (
            "The confidence is that of each example by itself, and of their mean; for all "
            f"{examples} bounds to hold at once, ask for a confidence of "
            f"{1 - (1 - confidence) / examples:.6g}.",
        )
    )
    return (
        drawn,
        chosen,
        dependence,
        *alone,
        "The pairs are those of the clean top k with all other features, whatever is on top at a "
        "draw, and equal scores count as in order.",
        "The bound is of a mean over pairs and over chance: that any of the pairs is out of order "
        f"can be {pairs} times as likely, and an attacker who chooses the input is not bound.",
    )


def _exponent_needed(confidence: float, log_cover: float) -> float:
    """What the exponent must reach, ln (N / (1 - confidence))."""
    return log_cover - math.log1p(-confidence)


def _check_draws(saliency: Tensor, reference: Tensor) -> None:
    """Refuse explanations that are not those of some draws for each of some examples."""
    if (
        reference.ndim != 2
        or saliency.ndim != 3
        or saliency.shape[1:] != reference.shape
        or not saliency.numel()
    ):
        raise ValueError(
            "risks take explanations of at least one draw, (S, B, n), and those of the clean "
            f"examples, (B, n), got {tuple(saliency.shape)} and {tuple(reference.shape)}."
        )
    if not (torch.isfinite(saliency).all() and torch.isfinite(reference).all()):
        raise ValueError("the explanations have NaN or infinite values: check the model and x.")


def _check_margin(margin: float) -> None:
    if not 0 <= margin < math.inf:
        raise ValueError(f"a margin must be a finite number of at least 0, got {margin}.")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(
            f"a confidence must lie between 0 and 1, both excluded, got {confidence}: give 0.95."
        )


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}.")


def _check_setting(draws: int, pairs: int, chromatic: int | None, log_cover: float) -> int:
    """Refuse numbers of which no bound follows; the chromatic number, the worst unless given."""
    _check_counts(draws=draws, pairs=pairs)
    worst = chromatic_bound(pairs)
    colours = worst if chromatic is None else chromatic
    if isinstance(colours, bool) or not isinstance(colours, int) or not 1 <= colours <= worst:
        raise ValueError(
            f"the chromatic number of {counted(pairs, 'pair')} must be a whole number in "
            f"1..{worst}, got {colours!r}: leave it out where the dependence is not known."
        )
    if not 0 <= log_cover < math.inf:
        raise ValueError(
            "the logarithm of a covering number must be a finite number of at least 0, got "
            f"{log_cover}: 0 is one model."
        )
    return colours
