"""Affine forms, ranges and what follows from them for a ranking: each by hand or by enumeration."""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor

from closed_form import numbers
from r2et.certification import activations as known
from r2et.certification.activations import Activation, third_range
from r2et.certification.affine import AffineForm, Norm, Region, Symbols
from r2et.certification.affine import product as times
from r2et.certification.certificate import _pairs_to_keep
from r2et.certification.layers import OPERATIONS
from r2et.certification.propagate import BoundPropagator
from r2et.certification.search import RadiusSearch, _softmax_range, pair_margins
from r2et.core.ranking import order


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def symbols(norm: Norm = "l2", inputs: int = 2, low: float = 0.0, high: float = 0.0) -> Symbols:
    """The input's symbols and, for one example, one error between two bounds."""
    return Symbols(inputs=inputs, norm=norm, low=tensor(low)[:, None], high=tensor(high)[:, None],
                   most=99)  # fmt: skip


def form(centre: float = 0.0, *moves: float, rest: float = 0.0) -> AffineForm:
    """One number of one example: its moves are along two inputs and the error."""
    given = tensor(*(*moves, 0.0, 0.0, 0.0)[:3]).view(3, 1, 1)
    return AffineForm(tensor(centre)[None], given, tensor(rest)[None])


def ends(known_to: Symbols, one: AffineForm) -> tuple[float, float]:
    low, high = known_to.range(one)
    return low.item(), high.item()


def test_a_range_by_hand() -> None:
    # 1 + 3 u_1 + 4 u_2 + 2 e + rest of 1/2, e between -1 and 3: the ball reaches 5, the box 7; the
    # error takes off 2 and adds 6.
    one = form(1.0, 3.0, 4.0, 2.0, rest=0.5)
    assert ends(symbols(low=-1, high=3), one) == pytest.approx((1 - 5 - 2 - 0.5, 1 + 5 + 6 + 0.5))
    one = form(1.0, 3.0, 4.0, 2.0, rest=0.5)
    box = symbols("linf", low=-1, high=3)
    assert ends(box, one) == pytest.approx((1 - 7 - 2 - 0.5, 1 + 7 + 6 + 0.5))
    # A negative weight turns the error around.
    assert ends(symbols(low=-1, high=3), form(0.0, 0.0, 0.0, -2.0)) == pytest.approx((-6.0, 2.0))


@pytest.mark.parametrize(
    ("one", "other", "low", "high"),
    [
        # (3 u_1)(2 u_1) = 6 u_1^2 is between 0 and 6, (3 u_1)(2 u_2) within 3 of zero: u in a ball.
        ({"moves": (3.0,)}, {"moves": (2.0,)}, 0.0, 6.0),
        ({"moves": (3.0,)}, {"moves": (0.0, 2.0)}, -3.0, 3.0),
        # What moves meets a rest, on either side; two rests; a centre and a rest.
        ({"moves": (3.0,)}, {"rest": 2.0}, -6.0, 6.0),
        ({"rest": 2.0}, {"moves": (3.0,)}, -6.0, 6.0),
        ({"rest": 2.0}, {"rest": 5.0}, -10.0, 10.0),
        ({"centre": -4.0}, {"rest": 0.5}, -2.0, 2.0),
        ({"rest": 0.5}, {"centre": -4.0}, -2.0, 2.0),
        # Errors as far as they go: e between -1 and 3, so that |e| <= 3.
        ({"moves": (0.0, 0.0, 1.0)}, {"rest": 2.0}, -6.0, 6.0),
    ],
)
def test_a_product_by_hand(one: Any, other: Any, low: float, high: float) -> None:
    known_to = symbols(low=-1, high=3)
    ours, theirs = (
        form(each.get("centre", 0.0), *each.get("moves", ()), rest=each.get("rest", 0.0))
        for each in (one, other)
    )
    assert ends(known_to, times(known_to, ours, theirs)) == pytest.approx((low, high))


def test_a_product_in_a_box_may_take_all_of_both() -> None:
    # (u_1 + u_2)(u_1 - u_2) = u_1^2 - u_2^2 within 1, by the bound within 2 x 2.
    box = symbols("linf")
    found = ends(box, times(box, form(0.0, 1.0, 1.0), form(0.0, 1.0, -1.0)))
    assert found == pytest.approx((-4.0, 4.0))


def test_first_order_is_the_product_rule() -> None:
    known_to = symbols()
    found = times(known_to, form(2.0, 1.0, 5.0), form(3.0, 0.5, -1.0))
    assert found.moves.flatten().tolist() == [2 * 0.5 + 3 * 1, 2 * -1 + 3 * 5, 0.0]


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_no_member_of_two_forms_leaves_their_product(norm: Norm) -> None:
    draw = torch.Generator().manual_seed(0)
    for case in range(20):
        a, b = (form(*row[:4].tolist(), rest=abs(row[4])) for row in numbers(2, 5, seed=case))
        known_to = symbols(norm, low=-0.5, high=2.0)
        low, high = ends(known_to, times(known_to, a, b))
        u = torch.randn(4000, 2, generator=draw, dtype=torch.float64)
        u = u / u.norm(dim=1, keepdim=True) if norm == "l2" else u.sign()
        e = torch.where(torch.rand(4000, 1, generator=draw) < 0.5, -0.5, 2.0).double()
        r = 2 * torch.randint(0, 2, (4000, 2), generator=draw).double() - 1
        along = torch.cat([u, e], 1)
        ours, theirs = (
            each.centre.item() + along @ each.moves.flatten() + r[:, side] * each.rest.item()
            for side, each in enumerate((a, b))
        )
        reached = ours * theirs
        assert low <= reached.min() + 1e-12
        assert reached.max() <= high + 1e-12
        assert high - low <= 4 * (reached.max() - reached.min()), "no bound at all would hold, too"


def test_shares_of_a_softmax_are_those_of_the_corners() -> None:
    # Each share rises with its own logit and falls with the others: its extremes are at corners.
    low = numbers(6, 4)
    high = low + numbers(6, 4, seed=1).abs()
    hidden = torch.nn.functional.one_hot(torch.arange(6) % 4, 4).bool()
    least, most = _softmax_range(low, high, hidden)
    for row in range(6):
        corners = torch.stack(
            [torch.where(torch.tensor(pick), high[row], low[row])
             for pick in product([False, True], repeat=4)]
        )  # fmt: skip
        shares = corners.masked_fill(hidden[row], -torch.inf).softmax(-1)
        torch.testing.assert_close(least[row], shares.amin(0))
        torch.testing.assert_close(most[row], shares.amax(0))


def test_pairs_of_a_set_and_of_an_order() -> None:
    # k = 3 of 5, by rank: a set keeps each of the first three above both others; an order keeps
    # neighbours apart, and the third above both others.
    of_set, of_order = _pairs_to_keep(3, 5, torch.device("cpu"))
    assert of_set.nonzero().tolist() == [[i, j] for i in range(3) for j in (3, 4)]
    assert of_order.nonzero().tolist() == [[0, 1], [1, 2], [2, 3], [2, 4]]


@dataclass(frozen=True, eq=False)
class ByRanges(RadiusSearch):
    """What is said of a ranking if of each score only its range is known."""

    low: Tensor
    high: Tensor

    def margins(self, rows: Tensor, radius: Tensor, wanted: Tensor, relaxation: str) -> Tensor:
        k = self.task.k
        low, high = (each[rows].gather(1, self.ranked[rows]) for each in (self.low, self.high))
        return torch.where(wanted, low[:, :k, None] - high[:, None], -torch.inf)


@dataclass(frozen=True)
class OfK:
    k: int
    relaxations: tuple[str, ...] = ()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_certified_share_is_what_the_worst_scores_leave(k: int) -> None:
    # Scores anywhere within their ranges: the worst top k is met at some corner of all ranges.
    scores = numbers(120, 5).abs()
    half = 0.6 * numbers(120, 5, seed=1).abs() * scores.mean()
    low, high = (scores - half).clamp_min(0), scores + half
    ranked = order(scores)
    zero = scores.new_zeros(120)
    search = ByRanges(
        OfK(k),
        scores,
        zero.long(),
        scores,
        ranked,
        zero,
        low,
        high,  # type: ignore[arg-type]
    )
    found = search.precision(torch.arange(120), zero + 1)
    worst = []
    for row in range(120):
        top = set(ranked[row, :k].tolist())
        kept = [
            len(top & set(torch.where(torch.tensor(pick), high[row], low[row]).topk(k)[1].tolist()))
            for pick in product([False, True], repeat=5)
        ]
        worst.append(min(kept) / k)
    true = torch.tensor(worst, dtype=torch.float64)
    assert (found <= true + 1e-12).all(), "what is promised holds"
    assert (found == true).double().mean() > 0.75, "and little less is promised than holds"
    assert 0 < float(found.mean()) < 1


CURVED = {
    "softplus": lambda: known.softplus(2.0),
    "sigmoid": known.sigmoid,
    "tanh": known.tanh,
    "silu": known.silu,
    "gelu": known.gelu,
}


@pytest.mark.parametrize("name", CURVED)
def test_third_derivatives_stay_within_their_range(name: str) -> None:
    activation: Activation = CURVED[name]()
    starts = torch.linspace(-6, 5, 45, dtype=torch.float64)
    for width in (0.3, 1.7, 5.0):
        low, high = third_range(activation, starts, starts + width)
        t = torch.linspace(0, 1, 401, dtype=torch.float64)[:, None]
        values = activation.third(starts + t * width)
        assert (low <= values.amin(0) + 1e-12).all()
        assert (values.amax(0) <= high + 1e-12).all()


@pytest.mark.parametrize("name", CURVED)
def test_limits_are_those_of_the_whole_line(name: str) -> None:
    activation: Activation = CURVED[name]()
    z = torch.linspace(-9, 9, 60_001, dtype=torch.float64)
    fourth = activation.third(z).diff() / (z[1] - z[0])
    for values, limit in zip(
        (activation.curvature(z), activation.third(z), fourth), activation.limits, strict=True
    ):
        most = float(values.abs().max())
        assert most <= limit * (1 + 1e-9)
        assert limit <= 1.02 * most, "a limit far off would be safe and useless"


@pytest.mark.parametrize("name", CURVED)
def test_turns_are_where_the_slope_has_its_extremes(name: str) -> None:
    activation: Activation = CURVED[name]()
    z = torch.linspace(-5, 5, 20_000, dtype=torch.float64)
    bends = activation.curvature(z).sign()
    changes = [at for at, (one, other) in enumerate(pairwise(bends.tolist())) if one != other]
    found = [float(z[at]) for at in changes]
    assert found == pytest.approx(sorted(activation.turns), abs=1e-3)


def test_at_a_kink_both_sides_count() -> None:
    # Slopes of an interval that ends or begins at the kink: that of its other side may be meant.
    assert known.leaky(0.25).derivative(tensor(-1.0, 2.0)).tolist() == [0.25, 1.0]
    one = tensor(1.0)
    for low, high, z in ((-1.0, 0.0, -1.0), (0.0, 1.0, 1.0)):
        line = known.derivative_line(
            known.leaky(0.25), z * one, low * one, high * one, relaxation="flat"
        )
        assert (line.at + line.low).item() == pytest.approx(0.25)
        assert (line.at + line.high).item() == pytest.approx(1.0)


@pytest.mark.parametrize(("norm", "reach"), [("l2", 5.0), ("linf", 7.0)])
def test_the_least_gap_of_a_pair_by_hand(norm: Norm, reach: float) -> None:
    # g_0 = 20 + 3 u_1 with a rest of 1/2, g_1 = 2 - 4 u_2 with a rest of 1/4: g_0 - g_1 moves by
    # 3 u_1 + 4 u_2. Where the sign of g_1 is not known, g_0 + g_1 counts as well, and is larger.
    both = AffineForm(
        tensor(20.0, 2.0)[None],
        torch.tensor([[[3.0, 0.0]], [[0.0, -4.0]]], dtype=torch.float64),
        tensor(0.5, 0.25)[None],
    )
    none = torch.zeros(0, 1, dtype=torch.float64)
    known_to = Symbols(inputs=2, norm=norm, low=none, high=none, most=9)
    zero = torch.tensor([0])
    for side in (1.0, 0.0):
        found = pair_margins(
            both, known_to, zero, zero, torch.tensor([1]), tensor(1.0), tensor(side), tensor(1.0)
        )
        assert found.item() == pytest.approx(20 - 2 - reach - 0.75)


@dataclass(frozen=True)
class Known:
    """A task whose slopes are known to lie in given ranges."""

    form: AffineForm
    k: int = 1

    def gradients(self, *given: Any) -> tuple[AffineForm, Symbols]:
        none = torch.zeros(0, 1, dtype=torch.float64)
        return self.form, Symbols(inputs=0, norm="l2", low=none, high=none, most=9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gaps_of_absolute_slopes_by_their_ranges(sign: float) -> None:
    # Slopes 5 +- 1, 1 +- 2 and -2 +- 1, or all of them turned over: |g_0| is at least 4, |g_1| and
    # |g_2| at most 3 each.
    slopes = sign * tensor(5.0, 1.0, -2.0)[None]
    form = AffineForm(slopes, slopes.new_zeros(0, 1, 3), tensor(1.0, 2.0, 1.0)[None])
    row = torch.tensor([0])
    search = RadiusSearch(
        Known(form),
        slopes,
        row,
        slopes,
        torch.tensor([[0, 2, 1]]),
        tensor(0.0),  # type: ignore[arg-type]
    )
    wanted = torch.tensor([[[False, True, True]]])
    found = search.margins(row, tensor(1.0), wanted, "ranges")
    assert found.flatten().tolist() == pytest.approx([-torch.inf, 1.0, 1.0])


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_convolution_of_what_has_a_rest_adds_rests_up(norm: Norm) -> None:
    # Three numbers within 1 of zero, through a ReLU: each between 0 and 1. Of neighbours the one
    # minus the other is between -1 and 1, which a bound has to hold.
    x = torch.zeros(1, 1, 1, 3, dtype=torch.float64)
    region = Region(x=x, radius=tensor(1.0), norm=norm, followed=False)
    propagator = BoundPropagator.within(region, 0)
    bent = propagator.activate(propagator.input(), known.leaky(0.0))
    weight = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
    found = OPERATIONS[torch.ops.aten.convolution.default](
        propagator, bent, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    )
    low, high = propagator.symbols.range(found.form)
    # A ReLU is known by its chord, half a step either side and a quarter more: 3/4 for each number.
    assert low.flatten().tolist() == pytest.approx([-1.5, -1.5])
    assert high.flatten().tolist() == pytest.approx([1.5, 1.5])
