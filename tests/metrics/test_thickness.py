import math
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from closed_form import Linear, Quadratic, numbers, tiny_mlp
from r2et.core.autograd import jacobian
from r2et.core.geometry import on_segment
from r2et.core.rng import in_ball, stream
from r2et.explainers import Gradient, GradientTimesInput, gradient
from r2et.metrics.thickness import (
    Variant,
    gaussian,
    ordered_share,
    pairwise_thickness,
    rank_weights,
    thickness,
    uniform_ball,
)
from r2et.theory.bounds import thickness_bounds, top_k_bounds

signed_logit = Gradient(of="logit", form="signed")
VARIANTS = get_args(Variant)
LINEAR_VARIANTS = tuple(variant for variant in VARIANTS if variant != "probability")


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.long)


def slow_point(variant: str, now: list[float], clean: list[float], k: int) -> float:
    """The integrand of each definition for one example, pair by pair, ranks counted from 1."""
    n = len(now)
    ranking = sorted(range(n), key=lambda feature: (-clean[feature], feature))

    def h(i: int, j: int) -> float:
        return now[ranking[i - 1]] - now[ranking[j - 1]]

    def top(size: int, gap: Callable[[int, int], float]) -> float:
        gaps = [gap(i, j) for i in range(1, size + 1) for j in range(size + 1, n + 1)]
        return sum(gaps) / (size * (n - size))

    if variant == "mean":
        return top(k, h)
    if variant == "probability":
        return top(k, lambda i, j: float(h(i, j) >= 0))
    if variant == "average-precision":
        return sum(top(size, h) for size in range(1, k + 1)) / k
    if variant == "dcg":
        return sum(
            h(i, j) / math.log(j - i + 1) for i in range(1, k + 1) for j in range(k + 1, n + 1)
        )
    assert variant == "facing"
    return sum(h(k - i + 1, k + i) for i in range(1, min(k, n - k) + 1))


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else (out,):
            # Expanded views take no memory of their own.
            if isinstance(part, Tensor):
                held = part.untyped_storage().nbytes() // part.element_size()
                self.numel = max(self.numel, held)
        return out


# --- closed forms ---


@pytest.mark.parametrize("variant", LINEAR_VARIANTS)
def test_a_linear_model_is_as_thick_as_its_gap(variant: Variant) -> None:
    # The saliency is w everywhere, so every integral is the gap of w itself.
    model, x = Linear(d=7), numbers(3, 7, seed=1)
    found = thickness(
        model,
        x,
        ones(3),
        gaussian(2.0),
        explain=signed_logit,
        k=3,
        variant=variant,
        generator=stream(0, "test"),
    )
    w = model.w.tolist()
    expected = torch.full((3,), slow_point(variant, w, w, 3), dtype=torch.float64)
    for part in (found.value, found.minimum, found.low, found.high):
        torch.testing.assert_close(part, expected)


def test_the_pairs_of_a_linear_model_never_swap() -> None:
    found = thickness(
        Linear(d=7),
        numbers(3, 7),
        ones(3),
        uniform_ball(10.0),
        explain=signed_logit,
        k=2,
        variant="probability",
        generator=stream(0, "test"),
    )
    assert found.value.tolist() == found.minimum.tolist() == [1.0] * 3


@pytest.mark.parametrize("points", [1, 2, 5])
def test_a_segment_of_a_quadratic_is_worth_its_middle(points: int) -> None:
    # I(x) = Ax + b is linear in x, so its mean over the segment is its value in the middle.
    model, x, neighbours = Quadratic(d=5), numbers(4, 5, seed=2), numbers(3, 4, 5, seed=3)
    found = pairwise_thickness(
        model, x, ones(4), neighbours, 1, 3, explain=signed_logit, points=points
    )
    middle = ((x + neighbours) / 2) @ model.A + model.b
    expected = middle[..., 1] - middle[..., 3]  # (S, B)
    torch.testing.assert_close(found.value, expected.mean(0))
    torch.testing.assert_close(found.minimum, expected.amin(0))
    assert (found.neighbours, found.points) == (3, points)


def test_a_crossing_on_the_way_is_met_where_it_lies() -> None:
    # f = (x1^2 - x2^2)/2 has the slopes x1 and -x2. From (1, 0) to (-3, 0) the first slope falls
    # from 1 to -3 and meets the second, 0, at t = 1/4.
    model = Quadratic(
        A=torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)), b=torch.zeros(2).double()
    )
    x, other = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[[-3.0, 0.0]]]).double()
    found = thickness(
        model, x, ones(1), other, explain=signed_logit, k=1, variant="probability", points=400
    )
    assert found.value.item() == pytest.approx(0.25)


@pytest.mark.parametrize("draw", [uniform_ball(0.7), gaussian(0.7)])
def test_the_interval_covers_the_mean_as_often_as_it_says(draw: Any) -> None:
    # The neighbours are symmetric around x and I is linear, so the mean thickness is h(x).
    model, x = Quadratic(d=4), numbers(1, 4).expand(2000, 4)
    found = thickness(
        model,
        x,
        ones(2000),
        draw,
        explain=signed_logit,
        k=2,
        samples=8,
        points=1,
        generator=stream(0, "test"),
    )
    ranked = (x[0] @ model.A + model.b).sort(descending=True).values
    truth = ranked[:2].mean() - ranked[2:].mean()
    covered = ((found.low <= truth) & (truth <= found.high)).double().mean().item()
    assert 0.93 < covered < 0.97
    assert found.value.mean().item() == pytest.approx(truth.item(), abs=0.05)
    assert (found.minimum <= found.value).all()


def test_a_lower_level_gives_a_narrower_interval() -> None:
    model, x = Quadratic(d=4), numbers(5, 4)
    both = [
        thickness(
            model,
            x,
            ones(5),
            uniform_ball(1.0),
            explain=signed_logit,
            k=2,
            generator=stream(0, "test"),
            level=level,
        )
        for level in (0.5, 0.95)
    ]
    torch.testing.assert_close(both[0].value, both[1].value)
    assert (both[0].high < both[1].high).all()
    assert (both[0].low > both[1].low).all()


# --- definitions ---


@pytest.mark.parametrize("variant", LINEAR_VARIANTS)
def test_rank_weights_match_the_sum_over_pairs(variant: Variant) -> None:
    for n in range(2, 9):
        for k in range(1, n):
            # The weight of a feature is the value of a saliency that is one there, else zero.
            clean = [float(n - feature) for feature in range(n)]
            slow = [
                slow_point(variant, [float(f == g) for g in range(n)], clean, k) for f in range(n)
            ]
            fast = rank_weights(variant, n, k)
            assert fast.dtype == torch.float64
            torch.testing.assert_close(fast, torch.tensor(slow, dtype=torch.float64))


def test_facing_pairs_can_be_fewer() -> None:
    assert rank_weights("facing", n=8, k=3, pairs=2).tolist() == [0, 1, 1, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_facing_is_k_times_the_mean_when_half_are_shown(k: int) -> None:
    # n = 2k: the k facing pairs meet every feature once, sum(top) - sum(rest) = k (mean - mean).
    torch.testing.assert_close(rank_weights("facing", 2 * k, k), k * rank_weights("mean", 2 * k, k))


def test_every_variant_is_the_gap_for_two_features() -> None:
    for variant in LINEAR_VARIANTS:
        scale = 1 / math.log(2) if variant == "dcg" else 1.0
        assert rank_weights(variant, 2, 1).tolist() == pytest.approx([scale, -scale])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_thickness_matches_its_definition(variant: Variant, k: int) -> None:
    # Three classes, since with two of them |slope| does not tell which class is explained.
    model, x, y = tiny_mlp(d=5, classes=3), 2 * numbers(3, 5), torch.tensor([0, 1, 2])
    neighbours, points = x + 3 * numbers(4, 3, 5, seed=1), 3
    found = thickness(
        model, x, y, neighbours, explain=gradient, k=k, variant=variant, points=points
    )
    slow = torch.zeros(4, 3, dtype=torch.float64)
    for b in range(3):
        clean = gradient(model, x[b : b + 1], y[b : b + 1])[0].tolist()
        for s in range(4):
            for m in range(points):
                t = (m + 0.5) / points
                place = (1 - t) * x[b : b + 1] + t * neighbours[s, b : b + 1]
                now = gradient(model, place, y[b : b + 1])[0].tolist()
                slow[s, b] += slow_point(variant, now, clean, k) / points
    torch.testing.assert_close(found.value, slow.mean(0))
    torch.testing.assert_close(found.minimum, slow.amin(0))
    low, high = stats.t.interval(0.95, 3, loc=slow.mean(0), scale=stats.sem(slow))
    torch.testing.assert_close(found.low, torch.from_numpy(low))
    torch.testing.assert_close(found.high, torch.from_numpy(high))
    if variant == "probability" and k == 2:
        assert (found.value < 1).any()


def test_pairs_in_order_are_counted_as_defined_also_with_ties() -> None:
    ranked = torch.randint(0, 4, (6, 9), generator=stream(0, "test")).double()
    for k in (1, 4, 8):
        slow = [
            sum(a >= b for a in row[:k] for b in row[k:]) / (k * (9 - k)) for row in ranked.tolist()
        ]
        assert ordered_share(ranked, k).tolist() == pytest.approx(slow)


def test_ties_are_ranked_by_feature_number() -> None:
    # w = (1, 1, 0): feature 0 is the top one, and feature 1, its equal, belongs to the rest.
    model = Linear(w=torch.tensor([1.0, 1.0, 0.0]).double())
    x = numbers(1, 3)
    found = thickness(model, x, ones(1), x[None], explain=signed_logit, k=1)
    assert found.value.item() == pytest.approx(0.5)


def test_pairwise_takes_one_pair_for_each_example() -> None:
    model, x, neighbours = tiny_mlp(), numbers(3, 6), numbers(2, 3, 6, seed=1)
    i, j = torch.tensor([0, 2, 5]), torch.tensor([1, 4, 0])
    found = pairwise_thickness(model, x, ones(3), neighbours, i, j, explain=gradient)
    for b in range(3):
        alone = pairwise_thickness(
            model,
            x[b : b + 1],
            ones(1),
            neighbours[:, b : b + 1],
            int(i[b]),
            int(j[b]),
            explain=gradient,
        )
        torch.testing.assert_close(found.value[b : b + 1], alone.value)
        torch.testing.assert_close(found.minimum[b : b + 1], alone.minimum)


def test_top_k_thickness_is_the_mean_of_pairwise_thicknesses() -> None:
    model, x, neighbours = tiny_mlp(d=4), numbers(1, 4), numbers(2, 1, 4, seed=1)
    ranking = gradient(model, x, ones(1)).argsort(descending=True)[0].tolist()
    pairwise = [
        pairwise_thickness(model, x, ones(1), neighbours, i, j, explain=gradient).value
        for i in ranking[:2]
        for j in ranking[2:]
    ]
    found = thickness(model, x, ones(1), neighbours, explain=gradient, k=2)
    torch.testing.assert_close(found.value, torch.stack(pairwise).mean(0))


def test_midpoints_lie_in_the_middle_of_their_parts() -> None:
    places = on_segment(torch.zeros(1, 1), torch.ones(1, 1), 4)
    assert places.flatten().tolist() == [0.125, 0.375, 0.625, 0.875]
    some = on_segment(torch.zeros(1, 1), torch.ones(1, 1), 4, range(1, 3))
    assert some.flatten().tolist() == [0.375, 0.625]


# --- bounds ---


def test_the_lower_bound_of_a_quadratic_is_attained() -> None:
    # The expansion is exact, and the minimum lies at delta* = -eps (A_i - A_j) / ||A_i - A_j||.
    model, x, radius = Quadratic(d=5), numbers(3, 5), 0.8
    bounds = thickness_bounds(
        model,
        x,
        ones(3),
        0,
        2,
        explain=signed_logit,
        radius=radius,
        generator=stream(0, "test"),
    )
    apart = (model.A[0] - model.A[2]).detach()
    worst = x - radius * apart / apart.norm()
    at_worst = pairwise_thickness(model, x, ones(3), worst[None], 0, 2, explain=signed_logit)
    torch.testing.assert_close(bounds.lower, at_worst.value)
    saliency = x @ model.A + model.b
    gap, steep = saliency[:, 0] - saliency[:, 2], model.A[0].norm() + model.A[2].norm()
    torch.testing.assert_close(bounds.upper, gap + radius * steep)
    drawn = pairwise_thickness(
        model,
        x,
        ones(3),
        uniform_ball(radius),
        0,
        2,
        explain=signed_logit,
        samples=200,
        points=1,
        generator=stream(1, "test"),
    )
    assert (bounds.lower <= drawn.minimum).all()
    assert (drawn.value <= bounds.upper).all()


def test_bounds_bracket_the_thickness_of_a_smooth_network() -> None:
    model, x, radius = tiny_mlp(), numbers(8, 6), 0.1
    common: dict[str, Any] = {"explain": signed_logit, "generator": stream(0, "test")}
    bounds = thickness_bounds(model, x, ones(8), 1, 4, radius=radius, samples=32, **common)
    found = pairwise_thickness(model, x, ones(8), uniform_ball(radius), 1, 4, samples=64, **common)
    assert (bounds.lower < found.value).all()
    assert (found.value < bounds.upper).all()


def test_the_lower_bound_errs_by_the_square_of_the_radius() -> None:
    model, x = tiny_mlp(), numbers(4, 6)
    errors = []
    for radius in (0.02, 0.01):
        options: dict[str, Any] = {"explain": signed_logit, "radius": radius}
        bounds = thickness_bounds(
            model, x, ones(4), 1, 4, generator=stream(0, "test"), samples=1, **options
        )
        slope = torch.stack(
            [
                torch.autograd.functional.jacobian(
                    lambda p: signed_logit(model, p[None], ones(1))[0], row, create_graph=False
                )
                for row in x
            ]
        )
        apart = slope[:, 1] - slope[:, 4]
        worst = x - radius * apart / apart.norm(dim=-1, keepdim=True)
        there = pairwise_thickness(
            model, x, ones(4), worst[None], 1, 4, explain=signed_logit, points=64
        )
        errors.append((there.value - bounds.lower).abs())
    torch.testing.assert_close(
        errors[0] / errors[1], torch.full((4,), 4.0).double(), rtol=0.1, atol=0
    )


def test_the_steepest_slope_is_sought_in_the_ball() -> None:
    model, x, y = tiny_mlp(), numbers(3, 6), ones(3)
    options: dict[str, Any] = {"explain": signed_logit, "radius": 1.0, "samples": 5}
    bounds = thickness_bounds(model, x, y, 1, 4, generator=stream(0, "test"), **options)
    generator = stream(0, "test")
    points = [x] + [in_ball(x, 1.0, generator) for _ in range(5)]
    # The derivative of feature i at the point of example b is row i of its own Hessian.
    norms = torch.stack(
        [jacobian(lambda p: signed_logit(model, p, y), at).norm(dim=-1) for at in points]
    )
    steepest = norms.amax(0)[:, 1] + norms.amax(0)[:, 4]
    saliency = signed_logit(model, x, y)
    torch.testing.assert_close(bounds.upper, saliency[:, 1] - saliency[:, 4] + steepest)
    assert (norms[0] < norms.amax(0)).any()


def test_top_k_bounds_are_the_mean_over_all_pairs() -> None:
    model, x, k = tiny_mlp(d=5), numbers(2, 5), 2
    options: dict[str, Any] = {"explain": gradient, "radius": 0.3, "samples": 4}
    fast = top_k_bounds(model, x, ones(2), k=k, generator=stream(0, "test"), **options)
    ranking = gradient(model, x, ones(2)).argsort(dim=-1, descending=True)
    slow = [
        thickness_bounds(
            model,
            x,
            ones(2),
            ranking[:, i],
            ranking[:, j],
            generator=stream(0, "test"),
            **options,
        )
        for i in range(k)
        for j in range(k, 5)
    ]
    torch.testing.assert_close(fast.lower, torch.stack([b.lower for b in slow]).mean(0))
    torch.testing.assert_close(fast.upper, torch.stack([b.upper for b in slow]).mean(0))


def test_bounds_say_what_they_rest_on() -> None:
    model, x = Quadratic(d=4), numbers(2, 4)
    options: dict[str, Any] = {"explain": signed_logit, "radius": 1.0}
    sampled = thickness_bounds(
        model, x, ones(2), 0, 1, samples=3, generator=stream(0, "test"), **options
    )
    assert "first-order" in sampled.assumption
    assert "from below by x and 3 sampled points" in sampled.assumption
    true = model.A.detach().norm(dim=-1)
    given = thickness_bounds(
        model, x, ones(2), 0, 1, lipschitz=(true[0].expand(2), true[1].expand(2)), **options
    )
    assert "given Lipschitz constants" in given.assumption
    torch.testing.assert_close(given.upper, sampled.upper)
    every = top_k_bounds(model, x, ones(2), k=2, lipschitz=true.expand(2, 4), **options)
    other = top_k_bounds(model, x, ones(2), k=2, generator=stream(0, "test"), **options)
    torch.testing.assert_close(every.upper, other.upper)


# --- promises ---


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("explain", [gradient, GradientTimesInput()])
def test_an_example_is_measured_alone(variant: Variant, explain: Any) -> None:
    model, x, y = tiny_mlp(), numbers(4, 6), torch.arange(4) % 2
    neighbours = x + numbers(3, 4, 6, seed=1)
    measure = partial(thickness, model, explain=explain, k=2, variant=variant, points=4)
    together = measure(x, y, neighbours)
    for b in range(4):
        one = slice(b, b + 1)
        alone = measure(x[one], y[one], neighbours[:, one])
        for name in ("value", "minimum", "low", "high"):
            torch.testing.assert_close(getattr(together, name)[one], getattr(alone, name))


@pytest.mark.parametrize("rows_at_once", [1, 5, 9, 64, 10_000])
def test_chunks_do_not_change_the_result(rows_at_once: int) -> None:
    model, x, y = tiny_mlp(), numbers(4, 6), torch.arange(4) % 2
    measure = partial(thickness, model, x, y, uniform_ball(2.0), explain=gradient, k=2, samples=5)
    whole = measure(points=7, generator=stream(0, "test"), rows_at_once=4 * 5 * 7)
    parts = measure(points=7, generator=stream(0, "test"), rows_at_once=rows_at_once)
    torch.testing.assert_close(parts.value, whole.value)
    torch.testing.assert_close(parts.low, whole.low)


def test_pictures_are_measured_like_rows() -> None:
    flat = tiny_mlp(d=6)
    model = nn.Sequential(nn.Flatten(), flat)
    x, neighbours = numbers(2, 6), numbers(3, 2, 6, seed=1)
    measure = partial(thickness, y=ones(2), explain=gradient, k=2)
    shaped = measure(model, x.view(2, 1, 2, 3), neighbourhood=neighbours.view(3, 2, 1, 2, 3))
    torch.testing.assert_close(shaped.value, measure(flat, x, neighbourhood=neighbours).value)


def test_a_seed_decides_the_neighbours() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    measure = partial(thickness, model, x, ones(3), gaussian(1.0), explain=gradient, k=2)
    first, again, other = (measure(generator=stream(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(first.value, again.value)
    assert not torch.equal(first.value, other.value)


def test_neighbours_lie_where_they_should() -> None:
    x = numbers(500, 3)
    apart = (uniform_ball(2.0)(x, stream(0, "test")) - x).norm(dim=-1)
    assert apart.max() <= 2.0 + 1e-12
    # In three dimensions a share of (1/2)^3 of the ball lies within half its radius.
    assert (apart < 1.0).double().mean().item() == pytest.approx(0.125, abs=0.05)
    spread = (gaussian(0.3)(x, stream(0, "test")) - x).std().item()
    assert spread == pytest.approx(0.3, abs=0.02)


def test_one_neighbour_leaves_the_interval_open() -> None:
    x = numbers(2, 6)
    found = thickness(tiny_mlp(), x, ones(2), (x + 1)[None], explain=gradient, k=2)
    assert found.neighbours == 1
    assert torch.equal(found.value, found.minimum)
    assert found.low.tolist() == [-math.inf] * 2
    assert found.high.tolist() == [math.inf] * 2


def test_nothing_of_the_caller_is_touched() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = numbers(3, 6).requires_grad_()
    kept = x.detach().clone()
    generator = stream(0, "test")
    found = thickness(
        model, x, ones(3), uniform_ball(1.0), explain=gradient, k=2, generator=generator
    )
    bounds = thickness_bounds(
        model, x, ones(3), 0, 1, explain=gradient, radius=1.0, samples=2, generator=generator
    )
    every = top_k_bounds(
        model, x, ones(3), explain=gradient, k=2, radius=1.0, samples=2, generator=generator
    )
    assert not any(
        part.requires_grad
        for part in (found.value, found.low, bounds.lower, bounds.upper, every.lower, every.upper)
    )
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert x.grad is None
    assert x.requires_grad
    assert torch.equal(x, kept)


def test_an_explainer_that_records_anyway_leaves_no_graph() -> None:
    def recording(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            return x * sum(weight.sum() for weight in model.parameters())

    model, x = tiny_mlp(), numbers(2, 6)
    assert recording(model, x, ones(2)).requires_grad
    found = thickness(model, x, ones(2), x[None], explain=recording, k=2)
    assert not found.value.requires_grad
    bounds = top_k_bounds(
        model, x, ones(2), explain=recording, k=2, radius=1.0, generator=stream(0, "test")
    )
    assert not bounds.lower.requires_grad


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_type_of_the_input_is_kept(variant: Variant) -> None:
    model, x = tiny_mlp().float(), numbers(2, 6).float()
    found = thickness(model, x, ones(2), (x + 1)[None], explain=gradient, k=2, variant=variant)
    assert found.value.dtype == found.low.dtype == torch.float32


@pytest.mark.parametrize("k", [50, 50_000])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pairs_are_never_formed(variant: Variant, k: int) -> None:
    n = 100_000
    model, x = Linear(w=torch.linspace(-1, 1, n).double()), numbers(2, n)
    with Largest() as largest:
        found = thickness(
            model,
            x,
            ones(2),
            uniform_ball(1.0),
            explain=signed_logit,
            k=k,
            variant=variant,
            samples=2,
            points=3,
            generator=stream(0, "test"),
            rows_at_once=4,
        )
    # Four rows at a time; all 2 x 2 x 3 rows together, or the k(n - k) pairs, would be more.
    assert largest.numel <= 4 * n
    if variant == "mean":
        # The means of two runs of evenly spaced numbers are half the range apart, just over 1.
        assert found.value.tolist() == pytest.approx([n / (n - 1)] * 2)
    if variant == "probability":
        assert found.value.tolist() == [1.0, 1.0]


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 6}, "k must lie in 1..5"),
        ({"k": 0}, "k must lie in 1..5"),
        ({"variant": "median"}, "variant is one of"),
        ({"pairs": 2}, "leave it out"),
        ({"variant": "facing", "pairs": 3}, "k' must lie in 1..2"),
        ({"points": 0}, "points and rows_at_once"),
        ({"rows_at_once": 0}, "points and rows_at_once"),
        ({"level": 1.0}, "level between 0 and 1"),
        ({"samples": 0}, "at least one sample"),
        ({"generator": None}, "takes a generator"),
        ({"y": ones(2)}, "one class number"),
        ({"y": ones(3) + 4}, "class numbers 0..1"),
        ({"x": numbers(3, 6) / 0}, "finite"),
        ({"neighbourhood": numbers(3, 6)}, r"attacked\[None\]"),
        ({"neighbourhood": numbers(0, 3, 6)}, r"shape \(S, 3, 6\)"),
        ({"explain": lambda model, x, y: x.sum(-1)}, "one row for each"),
        ({"explain": lambda model, x, y: x / 0}, "NaN or infinite"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "model": tiny_mlp(),
        "x": numbers(3, 6),
        "y": ones(3),
        "neighbourhood": uniform_ball(1.0),
        "explain": gradient,
        "k": 2,
        "generator": stream(0, "test"),
    }
    thickness(**good)
    with pytest.raises(ValueError, match=message):
        thickness(**{**good, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"i": 6}, "numbered 0..5"),
        ({"j": -1}, "numbered 0..5"),
        ({"i": torch.tensor([0, 1])}, "one whole number"),
        ({"i": torch.tensor(0.5)}, "one whole number"),
        ({"radius": -1.0}, "radius must be"),
        ({"generator": None}, "or the constants"),
        ({"samples": 0}, "or the constants"),
        ({"lipschitz": (torch.ones(2), torch.ones(3))}, "lipschitz must hold"),
        ({"lipschitz": (-torch.ones(3), torch.ones(3))}, "lipschitz must hold"),
    ],
)
def test_bad_bounds_are_refused(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "model": tiny_mlp(),
        "x": numbers(3, 6),
        "y": ones(3),
        "i": 0,
        "j": 1,
        "explain": gradient,
        "radius": 1.0,
        "generator": stream(0, "test"),
    }
    thickness_bounds(**good)
    with pytest.raises(ValueError, match=message):
        thickness_bounds(**{**good, **changes})


def test_counting_has_no_weights() -> None:
    with pytest.raises(ValueError, match="ordered_share"):
        rank_weights("probability", 4, 2)


def test_lengths_are_not_negative() -> None:
    for neighbourhood in (uniform_ball, gaussian):
        with pytest.raises(ValueError, match="at least 0"):
            neighbourhood(-1.0)
