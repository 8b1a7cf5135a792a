"""What every perturbation set promises, over every entry of the table and a newcomer's own norm."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from closed_form import numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget
from r2et.attacks.registry import attack
from r2et.core.rng import stream
from r2et.explainers import predicted
from r2et.perturbations import PERTURBATIONS, Box, L2Ball, NormBall
from refusals import refusal


class L1Ball(NormBall):
    """All that a norm of one's own takes: a length, and the move that raises a score fastest."""

    norm = "l1"

    def _length(self, moves: Tensor) -> Tensor:
        return moves.abs().sum(-1)

    def _steepest(self, slope: Tensor) -> Tensor:
        flat = slope.flatten(1)
        largest = flat.abs().argmax(-1, keepdim=True)
        return (
            torch.zeros_like(flat)
            .scatter(1, largest, flat.gather(1, largest).sign())
            .view_as(slope)
        )


Kind = type[NormBall]
NORMS: dict[str, Kind] = {**PERTURBATIONS, "l1": L1Ball}
DUAL = {"l1": math.inf, "l2": 2, "linf": 1}
every_norm = pytest.mark.parametrize("kind", NORMS.values(), ids=NORMS)
FREE = torch.tensor([True, False, True, True, False])
SCALE = torch.tensor([1.0, 0.0, 3.0, 0.5, 2.0], dtype=torch.float64)
masks = pytest.mark.parametrize("free", [None, FREE], ids=["all", "some"])


def moves_of(points: Tensor, centre: Tensor) -> list[list[Fraction]]:
    """How far each number moved, by fractions that round nothing."""
    rows = zip(points.flatten(1).tolist(), centre.flatten(1).tolist(), strict=True)
    return [[Fraction(a) - Fraction(b) for a, b in zip(*row, strict=True)] for row in rows]


def inside(kind: Kind, points: Tensor, centre: Tensor, radius: float) -> bool:
    limit, rows = Fraction(radius), moves_of(points, centre)
    if kind is Box:
        return all(abs(move) <= limit for row in rows for move in row)
    if kind is L1Ball:
        return all(sum(map(abs, row)) <= limit for row in rows)
    return all(sum(move**2 for move in row) <= limit**2 for row in rows)


def test_every_norm_goes_by_its_name() -> None:
    assert all(kind.norm == name for name, kind in PERTURBATIONS.items())


@every_norm
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_projected_is_admissible(kind: Kind, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    # Steps of 1e-3: squares of the smallest numbers underflow, and with them a length.
    number = st.integers(-3000, 3000).map(lambda thousandths: thousandths / 1000)
    rows = st.lists(st.lists(number, min_size=5, max_size=5), min_size=1, max_size=3)
    centre = torch.tensor(data.draw(rows), dtype=dtype)
    points = centre + data.draw(st.sampled_from([1e-3, 1.0, 50.0])) * torch.tensor(
        data.draw(st.lists(st.lists(number, min_size=5, max_size=5), min_size=1, max_size=1))
    ).to(dtype)
    radius = data.draw(st.sampled_from([0.0, 1e-9, 5 / 255, 0.7, 4.0]))
    bounds = data.draw(st.sampled_from([None, (-0.6, 0.6), (torch.zeros(5), 2.0)]))
    free = data.draw(st.sampled_from([None, FREE]))
    ball = kind(radius=radius, bounds=bounds, free=free)
    found = ball.project(points, centre)
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert inside(kind, found, centre, radius)
    # Where the clean number lies outside its bounds, it goes no further.
    given = (-torch.inf, torch.inf) if bounds is None else bounds
    low, high = (torch.as_tensor(each, dtype=dtype) for each in given)
    assert (found >= torch.minimum(low, centre)).all()
    assert (found <= torch.maximum(high, centre)).all()
    if free is not None:
        assert torch.equal(found[:, ~free], centre[:, ~free])
    again = ball.project(found, centre)
    if kind is Box:
        assert torch.equal(again, found)
    torch.testing.assert_close(again, found)
    assert torch.equal(ball.relax(points, centre), found)
    # A point well inside is left where it is.
    near = centre + 0.3 * (found - centre)
    if bounds is None and radius >= 5 / 255:
        assert torch.equal(ball.project(near, centre), near)


def test_a_cube_is_shareed_to_its_sides() -> None:
    centre = torch.tensor([[0.5, 0.95, -0.5, 2.0]], dtype=torch.float64)
    far = centre + torch.tensor([[9.0, 9.0, 0.05, -9.0]], dtype=torch.float64)
    found = Box(radius=0.1, bounds=(0.0, 1.0)).project(far, centre)
    # To its side, to a bound before that, free within a bound that was broken, back from another.
    expected = torch.tensor([[0.6, 1.0, -0.45, 1.9]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@every_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bounds_are_met_in_the_format_of_the_input(kind: Kind, dtype: torch.dtype) -> None:
    # Neither is a number of single precision; by way of it 0.6 would become more.
    centre = torch.zeros(1, 2, dtype=dtype)
    for bounds in ((-0.7, 0.6), tuple(torch.tensor([-0.7, 0.6], dtype=torch.float64))):
        far = torch.tensor([[-9.0, 9.0]], dtype=dtype)
        found = kind(radius=3.0, bounds=bounds).project(far, centre)
        assert found.tolist() == torch.tensor([[-0.7, 0.6]], dtype=dtype).tolist()


@every_norm
@masks
def test_the_steepest_move_is_the_best_of_cost_one(kind: Kind, free: Tensor | None) -> None:
    ball = kind(radius=1.0, free=free)
    slope = numbers(6, 5)
    slope[1, 0], slope[2] = 0.0, 0.0
    move = ball.steepest(slope)
    counted = slope if free is None else slope * free
    shareed = (move * slope).sum(-1)
    dual = torch.linalg.vector_norm(counted, DUAL[kind.norm], dim=-1)
    torch.testing.assert_close(shareed, dual)
    cost = ball.cost(move, torch.zeros_like(move))
    torch.testing.assert_close(cost, (counted != 0).any(-1).double())
    others = ball.offsets(slope[0], 500, stream(0, "test"), surface=True)
    assert (others @ slope.T <= dual + 1e-12).all()
    if free is not None:
        assert not move[:, ~free].any()
    if kind is not Box:
        tiny = ball.steepest(slope * 1e-200)  # squares of such slopes underflow
        torch.testing.assert_close(tiny, move)


@every_norm
@masks
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_random_moves_cost_what_they_may(kind: Kind, free: Tensor | None, share: float) -> None:
    ball, like = kind(radius=0.5, free=free), torch.empty(5, dtype=torch.float64)
    on = ball.offsets(like, 400, stream(0, "test"), share=share, surface=True)
    within = ball.offsets(like, 400, stream(0, "test"), share=share)
    assert on.shape == within.shape == (400, 5)
    nothing = torch.zeros_like(on)
    torch.testing.assert_close(ball.cost(on, nothing), torch.full((400,), share / 2).double())
    assert (ball.cost(within, nothing) <= share / 2).all()
    counted = torch.ones(5, dtype=torch.bool) if free is None else free
    assert on[:, counted].all()
    assert not on[:, ~counted].any()
    assert not within[:, ~counted].any()
    if kind is Box:
        assert set(on[:, counted].abs().unique().tolist()) == {share / 2}
        assert len(on.unique(dim=0)) == 2 ** int(counted.sum())  # every corner
        drawn = within[:, counted].flatten() / share + 0.5
    else:
        # The length of a uniform point of a ball of m dimensions, to the power m, is uniform.
        drawn = (2 * ball.cost(within, nothing) / share).pow(int(counted.sum()))
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 0.01
    assert on.mean(0).abs().max() < 0.1 * share
    # Projecting changes none of them: a random start is where it was drawn.
    centre = numbers(1, 5).expand(400, 5)
    torch.testing.assert_close(ball.project(centre + share * on, centre), centre + share * on)


def test_costs_and_lengths_by_hand() -> None:
    centre = torch.tensor([[0.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    points = torch.tensor([[3.0, -3.0], [2.0, 1.5]], dtype=torch.float64)
    assert Box().cost(points, centre).tolist() == [4.0, 0.5]
    assert L2Ball().cost(points, centre).tolist() == [5.0, 0.5]
    like = torch.empty(2, 3)
    assert Box(radius=0.5).longest_move(like) == pytest.approx(0.5 * math.sqrt(6))
    some = Box(radius=0.5, free=torch.tensor([[True, False, True], [True, True, False]]))
    assert some.longest_move(like) == 1.0
    assert L2Ball(radius=0.5, free=some.free).longest_move(like) == 0.5
    smaller = some.at(0.25)
    assert (smaller.radius, smaller.free) == (0.25, some.free)
    bounded = Box(bounds=(0.0, 1.0)).at(2.0)
    assert (bounded.radius, bounded.bounds) == (2.0, (0.0, 1.0))


@pytest.mark.parametrize("radius", [-1.0, float("inf"), float("nan")])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    told = refusal(lambda: Box(radius=radius))
    assert told == f"the radius of an linf ball must be >= 0 and finite, got {radius}."
    assert "the radius of an l2 ball must be" in refusal(lambda: L2Ball(radius=radius))
    assert "numbers >= 0" in refusal(lambda: L2Ball(scale=torch.tensor([1.0, -1.0])))


@every_norm
def test_each_number_is_measured_in_its_own_scale(kind: Kind) -> None:
    ball = kind(radius=0.7, scale=SCALE)
    draw = torch.Generator().manual_seed(0)
    centre = torch.randn(200, 5, generator=draw, dtype=torch.float64) * 10
    points = centre + torch.randn(200, 5, generator=draw, dtype=torch.float64)
    found = ball.project(points, centre)
    assert (ball.cost(found, centre) <= 0.7).all()
    assert torch.equal(found[:, 1], centre[:, 1])
    torch.testing.assert_close(ball.project(found, centre), found)
    # What is measured in units of the scale lies in the plain ball, all of it but the fixed number.
    free = SCALE > 0
    plain = kind(radius=0.7).cost(((found - centre) / SCALE)[:, free], torch.zeros(200, 4))
    torch.testing.assert_close(plain, ball.cost(found, centre))
    moves = ball.offsets(centre[0], 100, stream(0, "moves"), surface=True)
    zero = torch.zeros_like(moves)
    torch.testing.assert_close(ball.cost(moves, zero), torch.full_like(moves[:, 0], 0.7))
    within = ball.offsets(centre[0], 100, stream(0, "moves"), share=0.5)
    assert (ball.cost(within, torch.zeros_like(within)) <= 0.35 + 1e-12).all()
    # No other move of length one rises faster than the steepest.
    slope = torch.randn(200, 5, generator=draw, dtype=torch.float64)
    steepest = ball.steepest(slope)
    torch.testing.assert_close(ball.cost(steepest, zero[:1]), torch.ones(200).double())
    others = ball.at(1.0).offsets(centre[0], 200, stream(0, "others"), surface=True)
    assert ((slope * steepest).sum(-1)[:, None] >= slope @ others.T - 1e-12).all()
    # Without a radius only what may not move at all is held back.
    assert torch.equal(ball.confine(points, centre), torch.where(free, points, centre))


def test_bounds_are_left_only_by_what_begins_outside() -> None:
    scale = torch.ones(2, dtype=torch.float64)
    ball = Box(radius=1.0, scale=scale, bounds=(0 * scale, scale))
    centre = torch.tensor([[0.9, -0.5]], dtype=torch.float64)
    moved = ball.project(centre + torch.tensor([[5.0, -5.0]]), centre)
    assert moved.tolist() == [[1.0, -0.5]]


@every_norm
def test_any_norm_can_be_attacked(kind: Kind) -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(8, 6)
    y, ball = predicted(model, x), kind(radius=0.8, bounds=(-2.0, 2.0))
    effort = EnsembleBudget(rounds=2, starts=4, steps=4, points=8, moves=4, pairs=3)
    for found in (
        attack(model, x, y, k=2, perturbation=ball, budget=effort),
        attack(
            model, x, y, k=2, method="er", perturbation=ball, budget=WalkBudget(step=0.1, steps=9)
        ),
    ):
        assert found.flipped.any()
        assert inside(kind, found.x, x, 0.8)
        assert torch.equal(predicted(model, found.x), y)
