import pytest
import torch
from scipy import stats

from r2et.core.rng import in_ball, noise_like, stream
from r2et.perturbations import L2Ball


def test_a_stream_depends_on_seed_and_purpose_only() -> None:
    def first(seed: int, *purpose: str) -> float:
        return torch.rand(1, generator=stream(seed, *purpose), dtype=torch.float64).item()

    torch.manual_seed(5)
    once = first(0, "adult", "attack")
    torch.manual_seed(6)
    torch.rand(3)
    assert first(0, "adult", "attack") == once
    others = [first(1, "adult", "attack"), first(0, "adult", "init"), first(0, "bank", "attack")]
    assert len({once, *others}) == 4


def test_a_stream_is_the_same_in_every_version() -> None:
    # Recorded results rest on these numbers: a change here changes every one of them.
    drawn = torch.rand(3, generator=stream(0, "adult", "attack"), dtype=torch.float64)
    assert drawn.tolist() == pytest.approx([0.479369261706, 0.915013682687, 0.789004305027])


def test_the_global_stream_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    x = torch.zeros(3, 4)
    noise_like(x, stream(0, "test"))
    in_ball(x, 1.0, stream(0, "test"))
    L2Ball(radius=1.0).offsets(x[0], 5, stream(0, "test"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_noise_is_standard_normal_and_the_same_in_every_format() -> None:
    double = noise_like(torch.zeros(40, 50, dtype=torch.float64), stream(0, "test"))
    single = noise_like(torch.zeros(40, 50), stream(0, "test"))
    assert stats.kstest(double.flatten(), stats.norm.cdf).pvalue > 0.01
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.equal(single, double.float())


def test_copies_of_noise_stand_in_front() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    blocks = noise_like(x, stream(0, "test"), copies=4)
    assert blocks.shape == (4, 2, 3)
    assert blocks.unique().numel() == blocks.numel()


@pytest.mark.parametrize("shape", [(3,), (1, 2, 2)])
def test_points_are_uniform_in_the_ball(shape: tuple[int, ...]) -> None:
    # The share of the ball's volume within distance r is (r / radius)^d, so that power of the
    # distance is uniform on 0..1; by symmetry each coordinate of the direction has mean zero.
    centre = (
        torch.arange(2000.0, dtype=torch.float64).view(-1, *(1,) * len(shape)).expand(-1, *shape)
    )
    radius = 2.5
    around = in_ball(centre, radius, stream(0, "test")) - centre
    moves = L2Ball(radius=radius).offsets(centre[0], 2000, stream(1, "test"))
    for found in (around, moves):
        assert found.shape == (2000, *shape)
        distance = found.flatten(1).norm(dim=-1)
        assert distance.max() <= radius * (1 + 1e-12)
        d = found[0].numel()
        assert stats.kstest((distance / radius) ** d, stats.uniform.cdf).pvalue > 0.01
        direction = found.flatten(1) / distance[:, None]
        # Each coordinate has variance 1/d: four standard errors.
        assert direction.mean(0).abs().max() < 4 / (2000 * d) ** 0.5


def test_the_surface_is_at_the_radius() -> None:
    moves = L2Ball(radius=0.7).offsets(
        torch.zeros(2, 3, dtype=torch.float64), 50, stream(0, "t"), surface=True
    )
    torch.testing.assert_close(moves.flatten(1).norm(dim=-1), torch.full((50,), 0.7).double())


def test_the_same_moves_in_every_format() -> None:
    double = L2Ball(radius=1.0).offsets(torch.zeros(5, dtype=torch.float64), 9, stream(0, "test"))
    single = L2Ball(radius=1.0).offsets(torch.zeros(5), 9, stream(0, "test"))
    assert torch.equal(single, double.float())
