import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from closed_form import Quadratic, numbers
from r2et.core.rng import noise_like, stream
from r2et.explainers import Gradient, explained
from r2et.theory.guarantees import (
    RiskBound,
    chromatic_bound,
    chromatic_of_independent_features,
    cover_of_weights,
    draws_needed,
    excess_risk,
    failure_probability,
    pair_risks,
    printed_ramp_failure,
    ramp,
    ramp_bound,
    risk_bound,
)
from refusals import refusal

signed_logit = Gradient(of="logit", form="signed")


def phi(z: float, u: float) -> float:
    """Eq. 51, case by case."""
    if z < 0:
        return 1.0
    return 1 - z / u if z < u else 0.0


def slow_risk(
    now: list[float], clean: list[float], k: int, loss: Callable[[float], float]
) -> float:
    """Eqs. 50 and 53 for one draw, pair by pair, over i <= k < j of the clean ranking."""
    n = len(now)
    ranking = sorted(range(n), key=lambda feature: (-clean[feature], feature))
    losses = [loss(now[i] - now[j]) for i in ranking[:k] for j in ranking[k:]]
    assert len(losses) == k * (n - k)
    return sum(losses) / len(losses)


class Toy:
    """A model of independent Gaussian scores under D, and so of a risk known by hand.

    The explanation of a quadratic with a diagonal A is A x + b. For x' = x + s z, z standard
    normal, score i is normal of mean (A x + b)_i and deviation s A_ii, independent of the others,
    and the pair i, j is out of order with probability Phi(-(mean_i - mean_j) / s_ij), where
    s_ij^2 = s^2 (A_ii^2 + A_jj^2). The true risk of Eq. 49 is the mean over the pairs.
    """

    def __init__(self, scores: list[float], k: int, sd: float) -> None:
        n = len(scores)
        bend = torch.linspace(1.0, 2.0, n).double()
        self.model = Quadratic(A=bend.diag(), b=torch.tensor(scores).double())
        self.x, self.k, self.sd = torch.zeros(1, n).double(), k, sd
        self.clean = torch.tensor([scores]).double()
        spread = sd * (bend[:k, None].square() + bend[k:].square()).sqrt()
        gaps = self.clean[0, :k, None] - self.clean[0, k:]
        self.true = float(stats.norm.cdf(-(gaps / spread).numpy()).mean())

    def explained(self, draws: int, generator: torch.Generator) -> Tensor:
        """The explanation at that many draws from D: (S, 1, n)."""
        at = self.x + self.sd * noise_like(self.x, generator, draws)[:, 0]
        ones = torch.ones(draws, dtype=torch.long)
        return explained(self.model, signed_logit, at, ones)[:, None]


# --- against the formulas ---


def test_the_ramp_is_that_of_the_paper() -> None:
    for u in (0.3, 1.0, 5.0):
        gaps = torch.tensor([-2.0, -1e-9, 0.0, 0.1, 0.3, 0.7, 1.0, 4.9, 5.0, 9.0]).double()
        assert ramp(gaps, u).tolist() == pytest.approx([phi(z, u) for z in gaps.tolist()])
    assert ramp(torch.tensor([-1.0, 0.0, 1.0]), 0.0).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("margin", [0.0, 0.4, 2.0])
def test_risks_match_their_definitions(k: int, margin: float) -> None:
    saliency, clean = numbers(4, 3, 6), numbers(3, 6, seed=1)
    saliency[0, 0, :2] = clean[0, :2] = 0.5  # a tie
    found = pair_risks(saliency, clean, k=k, margin=margin)
    losses: dict[str, Callable[[float], float]] = {
        "flipped": lambda z: float(z < 0),
        "ramp": lambda z: phi(z, margin) if margin else float(z < 0),
        "thin": lambda z: float(z < margin),
    }
    for name, loss in losses.items():
        slow = [
            [slow_risk(row.tolist(), clean[b].tolist(), k, loss) for b, row in enumerate(draw)]
            for draw in saliency
        ]
        torch.testing.assert_close(getattr(found, name), torch.tensor(slow).double())


def test_each_risk_is_at_most_the_next() -> None:
    # 1[z < 0] <= phi_u(z) <= 1[z < u]: the step from Eq. 50 to Eq. 53 to R_{0,1,u}.
    found = pair_risks(numbers(50, 2, 9), numbers(2, 9, seed=1), k=4, margin=0.8)
    assert (found.flipped <= found.ramp).all()
    assert (found.ramp <= found.thin).all()
    assert (found.flipped < found.thin).any()


def test_equal_scores_are_in_order_and_a_lead_of_the_margin_is_enough() -> None:
    # Top feature 0 of the clean x. At the draw its gaps are 0, 1/2 and 1: none below zero (Eq. 50),
    # two below the margin of 1, and phi = 1, 1/2 and 0.
    clean = torch.tensor([[9.0, 3.0, 2.0, 1.0]])
    draw = torch.tensor([[[1.0, 1.0, 0.5, 0.0]]])
    found = pair_risks(draw, clean, k=1, margin=1.0)
    assert found.flipped.item() == 0
    assert found.thin.item() == pytest.approx(2 / 3)
    assert found.ramp.item() == pytest.approx(1.5 / 3)


@pytest.mark.parametrize("log_cover", [0.0, 2.5])
def test_the_bound_solves_the_papers_inequality(log_cover: float) -> None:
    # Pr <= exp(-2 m eps^2 / chi) N with chi <= 1 + m, for the S m pairs of S draws. The eps at
    # which the right side is 1 - confidence, found by halving an interval.
    draws, k, n, confidence = 7, 2, 6, 0.9
    m = k * (n - k)

    def right_side(eps: float) -> float:
        return math.exp(-2 * draws * m * eps**2 / (1 + m)) * math.exp(log_cover)

    low, high = 0.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if right_side(middle) < 1 - confidence else (middle, high)
    clean, saliency = numbers(3, n), numbers(3, n) + 0.1 * numbers(draws, 3, n, seed=1)
    bound = risk_bound(saliency, clean, k=k, confidence=confidence, margin=0.2, log_cover=log_cover)
    assert bound.excess == pytest.approx(low)
    assert bound.chromatic == chromatic_bound(m) == 1 + m
    setting: dict[str, Any] = {"draws": draws, "pairs": m, "log_cover": log_cover}
    assert failure_probability(bound.excess, **setting) == pytest.approx(1 - confidence)
    thin = []
    for b in range(3):
        rows = [draw[b].tolist() for draw in saliency]
        risks = [slow_risk(row, clean[b].tolist(), k, lambda z: float(z < 0.2)) for row in rows]
        thin.append(sum(risks) / draws)
    assert bound.value.tolist() == pytest.approx([min(1.0, risk + low) for risk in thin])
    assert bound.mean == pytest.approx(min(1.0, sum(thin) / 3 + low))


def test_with_m_colours_the_bound_is_hoeffdings() -> None:
    # The S risks of whole draws are independent and between 0 and 1, hence
    # eps = sqrt(ln(1 / (1 - confidence)) / (2 S)), whatever the pairs.
    for k, n in ((1, 2), (2, 9), (5, 10)):
        m = k * (n - k)
        found = excess_risk(0.95, draws=40, pairs=m, chromatic=m)
        assert found == pytest.approx(math.sqrt(math.log(20) / 80))
        assert excess_risk(0.95, draws=40, pairs=m) == pytest.approx(found * math.sqrt((m + 1) / m))


def test_one_draw_says_nothing_whatever_the_pairs() -> None:
    # The paper's own case, S = 1, of unknown dependence: at eps = 1 the right side is still
    # exp(-2 m / (1 + m)) > exp(-2) = 0.135.
    for m in (1, 10, 160, 10**6):
        assert failure_probability(1.0, draws=1, pairs=m) > math.exp(-2)
        assert excess_risk(0.95, draws=1, pairs=m) > 1
    clean = torch.tensor([[9.0, 5.0, 1.0, 0.0]]).double()
    bound = risk_bound(clean[None], clean, k=2)
    assert bound.risks.thin.tolist() == [0.0]
    assert bound.value.tolist() == [1.0]
    assert bound.vacuous.tolist() == [True]
    assert "The bound is vacuous: it allows every pair" in bound.explained()
    # Of four such pairs in order, 1400 draws leave room for little else.
    many = risk_bound(clean.expand(1400, 1, 4), clean, k=2)
    assert many.vacuous.tolist() == [False]
    assert "vacuous" not in many.explained()


def test_so_many_draws_are_needed_and_no_fewer() -> None:
    for excess in (0.01, 0.05, 0.3):
        setting: dict[str, Any] = {"pairs": 12, "chromatic": 6, "log_cover": 1.5}
        needed = draws_needed(excess, 0.99, **setting)
        assert excess_risk(0.99, draws=needed, **setting) <= excess
        assert excess_risk(0.99, draws=needed - 1, **setting) > excess
    assert draws_needed(2.0, 0.5, pairs=1) == 1


@pytest.mark.parametrize(("k", "n"), [(1, 2), (1, 7), (3, 5), (4, 8), (6, 8)])
def test_colours_of_independent_features_share_no_feature(k: int, n: int) -> None:
    colours = chromatic_of_independent_features(k, n)
    classes: dict[int, list[int]] = {}
    for i in range(k):
        for j in range(n - k):
            classes.setdefault((i + j) % colours, []).extend([i, k + j])
    assert len(classes) == colours
    assert all(len(features) == len(set(features)) for features in classes.values())


def test_a_cover_covers() -> None:
    # Weights in a disc of radius R, no score moving more than they do. The squares of a grid of
    # step sqrt(2) r lie within r of their middles: those in reach of the disc cover it, and there
    # are no more of them than (1 + 2 R / r)^2.
    reach, margin = 3.0, 0.8
    r = margin / 4
    step = math.sqrt(2) * r
    side = math.ceil((reach + r) / step)
    centres = [
        (a * step, b * step)
        for a in range(-side, side + 1)
        for b in range(-side, side + 1)
        if math.hypot(a * step, b * step) <= reach + r
    ]
    drawn = numbers(500, 2)
    inside = reach * drawn / drawn.norm(dim=-1, keepdim=True) * torch.linspace(0, 1, 500)[:, None]
    apart = torch.cdist(inside, torch.tensor(centres).double())
    assert apart.amin(-1).max() <= r
    found = cover_of_weights(parameters=2, reach=reach, margin=margin)
    assert math.exp(found) == pytest.approx((1 + 2 * reach / r) ** 2)
    assert len(centres) <= math.exp(found)


# --- where the true risk is known ---


def test_the_toys_risk_is_the_share_of_its_draws() -> None:
    toy = Toy([1.5, 1.0, 0.3, 0.0, -0.4], k=2, sd=0.5)
    risks = pair_risks(toy.explained(40_000, stream(0, "toy")), toy.clean, k=2)
    assert risks.flipped.mean().item() == pytest.approx(toy.true, abs=0.005)
    assert 0.1 < toy.true < 0.3


@pytest.mark.parametrize("confidence", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("case", ["from 20 draws", "from one draw", "one pair"])
def test_the_bound_holds_as_often_as_promised(confidence: float, case: str) -> None:
    # 4,000 times the theorem: draw, bound, compare with the risk known by hand. From 20 draws
    # with nothing known of the pairs; from one draw, as in the paper, with the colours of
    # independent features, 144 / 12 = 12 pairs of each; for one pair, where the bound is tightest.
    times = 4000
    if case == "one pair":
        toy, draws, colours = Toy([0.1, 0.0], k=1, sd=0.3), 50, 1
    else:
        toy = Toy([0.6] * 12 + [0.0] * 12, k=12, sd=0.3)
        draws, colours = (20, 145) if case == "from 20 draws" else (1, 12)
        assert colours in (chromatic_bound(144), chromatic_of_independent_features(12, 24))
    n = toy.clean.shape[1]
    saliency = toy.explained(draws * times, stream(0, "theorem")).view(draws, times, n)
    bound = risk_bound(
        saliency, toy.clean.expand(times, n), k=toy.k, confidence=confidence, chromatic=colours
    )
    held = (toy.true < bound.risks.thin + bound.excess).double().mean().item()
    assert held >= confidence
    assert not bound.vacuous.any()
    # What is seen alone does not hold so often, so that the test can fail.
    assert (toy.true < bound.risks.thin).double().mean().item() < 0.6


def test_too_few_colours_break_the_promise() -> None:
    # All top scores are one and the same normal number of mean 0.1, all others zero: the 25 pairs
    # are in order or out of order together, with probability Phi(-0.1), and need 25 colours.
    times, true = 4000, float(stats.norm.cdf(-0.1))
    shared = 0.1 + noise_like(torch.zeros(20, times, 1).double(), stream(0, "shared"))
    saliency = torch.cat([shared.expand(-1, -1, 5), torch.zeros(20, times, 5).double()], -1)
    clean = torch.tensor([0.1] * 5 + [0.0] * 5).double().expand(times, 10)
    held = {
        colours: (true < bound.risks.thin + bound.excess).double().mean().item()
        for colours in (1, 25)
        for bound in [risk_bound(saliency, clean, k=5, confidence=0.9, chromatic=colours)]
    }
    assert held[1] < 0.8
    assert held[25] >= 0.9


# --- Lemma A.11 ---


def test_lemma_a11_as_printed_is_its_formula() -> None:
    for eps, m, chi in ((0.1, 7, 3), (0.5, 160, 161), (1.0, 1, 1)):
        found = printed_ramp_failure(eps, pairs=m, chromatic=chi)
        assert found == pytest.approx(2 * math.exp(-2 * m * eps**2 / chi))
    # "In the worst case it approximates 2 exp(-2 eps^2)", the paper's comment on chi = 1 + m.
    assert printed_ramp_failure(0.5, pairs=10**6) == pytest.approx(2 * math.exp(-0.5), rel=1e-5)


def test_lemma_a11_fails_for_one_pair_with_the_empirical_risk_at_x() -> None:
    # The smallest case: two features, k = 1, the one pair its own graph of chromatic number 1. At x
    # it leads by u, and at all x' of D it is behind: R_true = 1, Eq. 53 gives 0, and what is to
    # happen with a probability of 0.27 at most, R_true >= 0 + 1, is certain.
    clean, away = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    at_x = pair_risks(clean[None], clean, k=1, margin=1.0).ramp.item()
    true = pair_risks(away[None], clean, k=1, margin=1.0).ramp.item()
    assert (at_x, true) == (0.0, 1.0)
    assert printed_ramp_failure(true - at_x, pairs=1, chromatic=1) == pytest.approx(
        0.2707, abs=1e-4
    )


def parities(bits: int) -> Tensor:
    """Scores of D's 2^bits equally likely draws: a top score of 1, the others by parities: (S, n).

    Score j is 2 or 0 as the bits chosen by the binary digits of j = 1, 2, ... have an odd sum: any
    two of them are independent, three may not be.
    """
    places = torch.arange(2**bits)
    odd = [[bin(place & mask).count("1") % 2 for mask in places[1:].tolist()] for place in places]
    return torch.cat([torch.ones(2**bits, 1), 2 * torch.tensor(odd)], -1).double()


@pytest.mark.parametrize(("bits", "one_sided", "printed"), [(2, False, True), (3, False, False)])
def test_lemma_a11_fails_where_pairs_are_independent_two_by_two_only(
    bits: int, one_sided: bool, printed: bool
) -> None:
    # m = 2^bits - 1 pairs (1, j), each out of order in half of the draws, no two of them linked:
    # chi = 1. R_true = 1/2, and with probability 2^-bits no pair is out of order, the true risk
    # exceeding the empirical by 1/2. The lemma allows 2 exp(-m / 2): 0.446 >= 1/4 for three pairs,
    # but 0.060 < 1/8 for seven; the form without its factor 2 fails for three.
    drawn, m = parities(bits), 2**bits - 1
    clean = torch.cat([torch.ones(1), torch.zeros(m)]).double()[None]
    wrong = drawn[:, 1:] > drawn[:, :1]
    for i in range(m):
        assert wrong[:, i].double().mean() == 0.5
        for j in range(i):
            assert (wrong[:, i] & wrong[:, j]).double().mean() == 0.25
    risks = pair_risks(drawn[:, None], clean, k=1, margin=1.0).ramp[:, 0]
    true = risks.mean().item()
    assert true == pytest.approx(0.5)
    happens = (risks + 0.5 <= true + 1e-12).double().mean().item()
    assert happens == 2.0**-bits
    settings: dict[str, Any] = {"pairs": m, "chromatic": 1}
    assert (happens <= printed_ramp_failure(0.5, **settings)) is printed
    assert (happens <= failure_probability(0.5, draws=1, **settings)) is one_sided
    # Pairs that depend together need colours of their own: exp(-1/2) allows it.
    assert happens <= failure_probability(0.5, draws=1, pairs=m, chromatic=m)


@pytest.mark.parametrize("confidence", [0.6, 0.9])
def test_lemma_a11_as_it_holds_does_so_as_often_as_promised(confidence: float) -> None:
    # The true ramp risk of the toy: for a gap z normal of mean g and deviation s, with a = -g / s
    # and b = (u - g) / s, E phi_u(z) = Phi(b) - E[z; 0 < z < u] / u, where the last mean is
    # g (Phi(b) - Phi(a)) - s (density(b) - density(a)).
    toy, times, u = Toy([0.6] * 12 + [0.0] * 12, k=12, sd=0.3), 2000, 0.5
    bend = torch.linspace(1.0, 2.0, 24).double()
    s = (0.3 * (bend[:12, None].square() + bend[12:].square()).sqrt()).numpy()
    a, b = -0.6 / s, (u - 0.6) / s
    inner = 0.6 * (stats.norm.cdf(b) - stats.norm.cdf(a))
    inner = inner - s * (stats.norm.pdf(b) - stats.norm.pdf(a))
    true = float((stats.norm.cdf(b) - inner / u).mean())
    drawn = toy.explained(20 * times, stream(0, "ramp"))
    seen = pair_risks(drawn, toy.clean, k=12, margin=u).ramp.mean().item()
    assert seen == pytest.approx(true, abs=0.002)
    for draws, colours in ((20, 145), (1, chromatic_of_independent_features(12, 24))):
        some = drawn[: draws * times].view(draws, times, 24)
        settings: dict[str, Any] = {"k": 12, "margin": u, "chromatic": colours}
        clean = toy.clean.expand(times, 24)
        bound = ramp_bound(some, clean, confidence=confidence, **settings)
        assert (true < bound).double().mean() >= confidence
        assert bound.median() < 0.8
        # What is seen alone does not hold so often.
        alone = pair_risks(some, clean, k=12, margin=u).ramp.mean(0)
        assert (true < alone).double().mean() < confidence
        eps = math.sqrt(colours * math.log(1 / (1 - confidence)) / (2 * draws * 144))
        torch.testing.assert_close(bound, (alone + eps).clamp(max=1))


def test_the_bound_can_be_nearly_reached() -> None:
    # One pair of risk 1/2, many draws: the empirical risk is a binomial share, and the true risk
    # exceeds it by eps with a probability near the tail of the normal law, within Hoeffding's
    # bound but no more than a few times below it. No smaller exponent would do.
    draws, eps = 400, 0.05
    tail = float(stats.binom.cdf(draws * (0.5 - eps), draws, 0.5))
    promised = failure_probability(eps, draws=draws, pairs=1, chromatic=1)
    assert promised == pytest.approx(math.exp(-2))
    assert promised / 6 < tail <= promised


def test_for_explanations_chosen_after_the_draws_the_cover_pays() -> None:
    # F: the scores of the toy, each moved by at most r at any x', as one likes. Chosen after the
    # draws: those of the top are lifted by r at the draws, and lowered by r everywhere else, those
    # of the rest the other way. With r = u / 4 a single ball covers F, ln N = 0, and the risk with
    # margin u still bounds the true one; that without a margin does not.
    toy, times, margin = Toy([0.6] * 12 + [0.0] * 12, k=12, sd=0.3), 1000, 0.8
    shift = margin / 4
    chromatic = chromatic_of_independent_features(12, 24)
    worst = Toy([0.6 - shift] * 12 + [shift] * 12, k=12, sd=0.3).true
    drawn = toy.explained(8 * times, stream(0, "chosen")).view(8, times, 24)
    flattering = drawn + shift * torch.tensor([1.0] * 12 + [-1.0] * 12).double()
    common: dict[str, Any] = {"k": 12, "confidence": 0.8, "chromatic": chromatic}
    clean = toy.clean.expand(times, 24)
    with_margin = risk_bound(flattering, clean, margin=margin, **common)
    without = risk_bound(flattering, clean, **common)
    assert (worst < with_margin.risks.thin + with_margin.excess).double().mean() >= 0.8
    assert (worst < without.risks.thin + without.excess).double().mean() < 0.1


def test_the_clean_example_is_no_draw() -> None:
    # Read literally, Eq. 50 takes the empirical risk at x. Its pairs are in order there by
    # definition, however large the true risk: the event of probability 9 % happens always.
    toy = Toy([0.01] * 5 + [0.0] * 5, k=5, sd=1.0)
    at_x = pair_risks(toy.clean[None], toy.clean, k=5).flipped.item()
    assert at_x == 0
    eps = 0.49
    assert toy.true > at_x + eps
    claimed = failure_probability(
        eps, draws=1, pairs=25, chromatic=chromatic_of_independent_features(5, 10)
    )
    assert claimed < 0.1


# --- the record ---


def good(**changes: Any) -> RiskBound:
    saliency, clean = numbers(30, 4, 6), numbers(4, 6, seed=1)
    return risk_bound(
        **{"saliency": saliency, "reference": clean, "k": 2, "margin": 0.1, **changes}
    )


def test_the_record_carries_its_ingredients() -> None:
    bound = good(confidence=0.9, chromatic=4, log_cover=1.0)
    assert (bound.confidence, bound.margin, bound.draws, bound.pairs) == (0.9, 0.1, 30, 8)
    assert (bound.chromatic, bound.log_cover) == (4, 1.0)
    torch.testing.assert_close(bound.value, (bound.risks.thin + bound.excess).clamp(max=1))
    with pytest.raises(FrozenInstanceError):
        bound.excess = 0.0  # type: ignore[misc]


def test_assumptions_say_what_was_assumed() -> None:
    plain, special = good(), good(chromatic=4, log_cover=1.0)
    for bound in (plain, special):
        assert all(line.endswith(".") and "\n" not in line for line in bound.assumptions)
        assert bound.explained().splitlines()[-len(bound.assumptions) :] == list(bound.assumptions)
        said = bound.explained()
        assert "The 30 draws are independent" in said
        assert "an attacker who chooses the input is not bound" in said
        assert "4 bounds to hold at once" in said
        assert f"at most {bound.mean:.1%} of the 8 pairs" in said
    assert "fixed before the draws" in plain.explained()
    assert "Nothing is assumed of how the pairs" in plain.explained()
    assert "exp(1) of them, come within 0.025" in special.explained()
    assert "for the caller to know" in special.explained()
    alone = risk_bound(numbers(9, 1, 6), numbers(1, 6), k=2)
    assert "at once" not in alone.explained()
    assert "less than" not in alone.explained()


def test_an_example_is_bounded_alone() -> None:
    saliency, clean = numbers(30, 4, 6), numbers(4, 6, seed=1)
    together = risk_bound(saliency, clean, k=2, margin=0.1)
    for b in range(4):
        alone = risk_bound(saliency[:, b : b + 1], clean[b : b + 1], k=2, margin=0.1)
        assert torch.equal(alone.value, together.value[b : b + 1])


def test_single_precision_scores_are_counted_as_they_are() -> None:
    saliency, clean = numbers(30, 4, 6).float(), numbers(4, 6, seed=1).float()
    single = risk_bound(saliency.requires_grad_(), clean, k=2, margin=0.1)
    double = risk_bound(saliency.double(), clean.double(), k=2, margin=0.1)
    assert torch.equal(single.value, double.value)
    assert single.value.dtype == torch.float64
    assert not single.value.requires_grad


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 6}, "k must lie in 1..5"),
        ({"margin": -0.1}, "a margin must be a finite number of at least 0"),
        ({"margin": math.inf}, "a margin must be a finite number of at least 0"),
        ({"confidence": 1.0}, "a confidence must lie between 0 and 1"),
        ({"confidence": 95.0}, "give 0.95"),
        ({"chromatic": 0}, "the chromatic number of 8 pairs must be a whole number in 1..9"),
        ({"chromatic": 10}, "leave it out where the dependence is not known"),
        ({"chromatic": 2.5}, "got 2.5"),
        ({"log_cover": -1.0}, "0 is one model"),
        ({"log_cover": math.nan}, "the logarithm of a covering number"),
        ({"saliency": numbers(4, 6)}, "(S, B, n)"),
        ({"saliency": numbers(30, 3, 6)}, "got (30, 3, 6) and (4, 6)"),
        ({"saliency": numbers(0, 4, 6)}, "at least one draw"),
        ({"saliency": numbers(30, 4, 6) / 0}, "NaN or infinite"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(lambda: good(**changes))


def test_bad_numbers_are_refused() -> None:
    for call, message in (
        (partial(failure_probability, -0.1, draws=1, pairs=1), "an excess must be"),
        (partial(failure_probability, 0.1, draws=0, pairs=1), "draws must be a whole number"),
        (partial(excess_risk, 0.95, draws=1, pairs=True), "pairs must be a whole number"),
        (partial(excess_risk, 0.0, draws=1, pairs=1), "a confidence must lie"),
        (partial(draws_needed, 0.0, 0.95, pairs=1), "an excess to reach must be"),
        (partial(chromatic_bound, 0), "pairs must be a whole number"),
        (partial(chromatic_of_independent_features, 3, 3), "k must lie in 1..2"),
        (partial(cover_of_weights, parameters=0, reach=1.0, margin=1.0), "parameters must be"),
        (partial(cover_of_weights, parameters=1, reach=-1.0, margin=1.0), "a cover takes"),
        (partial(cover_of_weights, parameters=1, reach=1.0, margin=0.0), "a cover takes"),
        (partial(ramp, torch.zeros(1), -1.0), "a margin must be"),
    ):
        assert message in refusal(call)
