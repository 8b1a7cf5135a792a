import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from r2et.attacks import EnsembleBudget, attack, attack_curve
from r2et.certification import certify, record
from r2et.certification.cells import CellVerdicts, search_cells
from r2et.certification.pieces import pieces_of
from r2et.core.cell_bounds import Cap, Decisions, Nodes, layers_within
from r2et.core.polyhedra import nearest_multipliers, proved_distance
from r2et.core.ranking import ties, top_k_mask
from r2et.explainers import Gradient, gradient, predicted
from r2et.perturbations import Box, L2Ball

SHAPES: list[tuple[tuple[int, ...], float]] = [
    ((4, 6, 2), 0.0),
    ((5, 7, 2), 0.01),
    ((4, 6, 2), 0.4),
    ((4, 5, 2), 1.7),
    ((4, 5, 2), -0.3),
    ((3, 4, 4, 2), 0.0),
    ((4, 4, 3, 2), 0.1),
    ((3, 4, 3, 2), 1.5),
    ((3, 3, 3, 2, 2), 0.05),
]


def network(sizes: Sequence[int], slope: float, seed: int = 0) -> nn.Sequential:
    """A network of Gaussian weights, in float64."""
    generator, layers = torch.Generator().manual_seed(seed), list[nn.Module]()
    for below, above in itertools.pairwise(sizes):
        layer = nn.Linear(below, above).double()
        with torch.no_grad():
            layer.weight.normal_(generator=generator)
            layer.bias.normal_(generator=generator).mul_(0.5)
        layers += [layer, nn.LeakyReLU(slope) if slope else nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval().requires_grad_(False)


def inputs(d: int, rows: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def least_distance(rows: np.ndarray, floors: np.ndarray) -> float:
    """min |w| with rows w >= floors, by Lawson and Hanson's problem LDP."""
    length = np.linalg.norm(rows, axis=1)
    length = np.where(length > 0, length, 1.0)
    matrix = np.vstack([(rows / length[:, None]).T, floors[None] / length])
    goal = np.zeros(len(matrix))
    goal[-1] = 1.0
    residual = matrix @ nnls(matrix, goal, maxiter=1000)[0] - goal
    if np.linalg.norm(residual) < 1e-9:
        return math.inf
    return float(np.linalg.norm(residual[:-1] / residual[-1]))


def every_cell(
    model: nn.Sequential, x: Tensor, k: int, scale: Tensor | None = None
) -> list[tuple[float, int]]:
    """Distance and number of displaced features of every cell on which x's class is predicted."""
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    bends = [getattr(layer, "negative_slope", 0.0) for layer in model if layer not in linear]
    weights = [layer.weight.detach().numpy() for layer in linear]
    biases = [layer.bias.detach().numpy() for layer in linear]
    clean, wide = x.numpy(), np.ones(len(x)) if scale is None else scale.numpy()
    y = int(model(x[None]).argmax())
    top = set(
        np.argsort(-np.abs(gradient(model, x[None], torch.tensor([y]))[0].detach().numpy()))[:k]
    )
    found = []
    for signs in itertools.product((1, -1), repeat=sum(len(each) for each in biases[:-1])):
        rows, floors, matrix, at, used = [], [], np.eye(len(clean)), clean, 0
        for weight, bias, bend in zip(weights[:-1], biases[:-1], bends, strict=True):
            sign = np.array(signs[used : used + len(bias)])
            used += len(bias)
            matrix, at = weight @ matrix, weight @ at + bias
            rows.append(sign[:, None] * matrix * wide)
            floors.append(-sign * at)
            slope = np.where(sign > 0, 1.0, bend)
            matrix, at = slope[:, None] * matrix, slope * at
        matrix, at = weights[-1] @ matrix, weights[-1] @ at + biases[-1]
        ahead = matrix[y] - matrix[1 - y]
        rows.append((ahead * wide)[None])
        floors.append(np.array([at[1 - y] - at[y]]))
        distance = least_distance(np.concatenate(rows), np.concatenate(floors))
        found.append((distance, len(top - set(np.argsort(-np.abs(ahead))[:k]))))
    return found


def moves(x: Tensor, radius: float, count: int = 400) -> Tensor:
    """Random places within the radius of each row, on its border as a rule: (count, B, d)."""
    generator = torch.Generator().manual_seed(5)
    way = torch.randn(count, *x.shape, generator=generator, dtype=torch.float64)
    share = torch.rand(count, 1, 1, generator=generator, dtype=torch.float64).pow(0.2)
    return x + radius * share * way / way.norm(dim=-1, keepdim=True)


def check_examples(model: nn.Module, x: Tensor, found: CellVerdicts, k: int) -> None:
    """What is broken is broken by the model itself, with the class kept, at the length told."""
    y = predicted(model, x)
    for row, verdict in enumerate(found.verdict):
        if verdict == "broken":
            there = found.x[row : row + 1]
            assert predicted(model, there).equal(y[row : row + 1])
            sets = [
                top_k_mask(gradient(model, each, y[row : row + 1]), k)
                for each in (x[row : row + 1], there)
            ]
            assert not torch.equal(*sets)
            assert (there - x[row]).norm() == pytest.approx(float(found.upper[row]), rel=1e-9)


@pytest.mark.parametrize(("sizes", "slope"), SHAPES)
def test_answers_are_those_of_all_cells(sizes: tuple[int, ...], slope: float) -> None:
    k, radius = 2, 1.2
    model, x = network(sizes, slope), inputs(sizes[0])
    nearest = search_cells(model, x, k=k, perturbation=L2Ball(radius=radius), goal="smallest")
    worst = search_cells(model, x, k=k, perturbation=L2Ball(radius=radius), goal="worst")
    some = search_cells(model, x, k=k, perturbation=L2Ball(radius=radius))
    clear = ~ties(gradient(model, x, predicted(model, x)), k)
    assert clear.sum() >= 6
    for row in clear.nonzero().flatten().tolist():
        cells = every_cell(model, x[row], k)
        least = min((distance for distance, gone in cells if gone), default=math.inf)
        most = max(gone for distance, gone in cells if distance <= radius)
        assert abs(least - radius) > 1e-3  # no decision at the very border
        expected = "broken" if least < radius else "certified"
        assert nearest.verdict[row] == worst.verdict[row] == some.verdict[row] == expected
        assert float(worst.precision[row]) == 1 - most / k == float(worst.least_precision[row])
        if expected == "broken":
            assert float(nearest.upper[row]) == pytest.approx(least, rel=1e-6, abs=1e-9)
            assert float(nearest.lower[row]) <= least * (1 + 1e-9)
            assert float(nearest.lower[row]) >= least * (1 - 2e-6)
        for found in (some, worst):
            assert float(found.lower[row]) <= min(least, radius) * (1 + 1e-9)
    for found in (nearest, worst, some):
        check_examples(model, x, found, k)


def test_certified_and_attacked_radii_lie_on_either_side() -> None:
    model, x, k = network((8, 16, 2), 0.01, seed=3), inputs(8, 12), 3
    ball = L2Ball(radius=1.0)
    exact = search_cells(model, x, k=k, perturbation=ball, goal="smallest")
    proved = certify(model, x, k=k)
    small = EnsembleBudget(rounds=2, starts=8, points=48, moves=16)
    curve = attack_curve(model, x, k=k, radii=(0.2, 0.5, 1.0), budget=small)
    assert (proved.radius.clamp_max(1.0) <= exact.upper * (1 + 1e-9)).all()
    assert (curve.smallest >= exact.lower * (1 - 1e-9)).all()
    worst = search_cells(model, x, k=k, perturbation=ball, goal="worst")
    assert (curve.precision[-1] >= worst.least_precision - 1e-9).all()
    assert all(worst.decided)


def test_no_random_move_breaks_what_is_certified() -> None:
    model, x, k = network((6, 8, 6, 2), 0.05, seed=4), inputs(6, 40), 2
    radius = 0.15
    found = search_cells(model, x, k=k, perturbation=L2Ball(radius=radius))
    y, places = predicted(model, x), moves(x, radius)
    before = top_k_mask(gradient(model, x, y), k)
    safe = torch.tensor([each == "certified" for each in found.verdict])
    assert safe.any()
    assert not safe.all()
    for place in places:
        same = (top_k_mask(gradient(model, place, y), k) == before).all(-1)
        assert (same | (predicted(model, place) != y) | ~safe).all()


def test_an_example_is_searched_alone_as_in_company() -> None:
    model, x = network((6, 10, 2), 0.1), inputs(6, 6)
    ball = L2Ball(radius=0.4)
    for goal in ("verdict", "smallest", "worst"):
        together = search_cells(model, x, k=2, perturbation=ball, goal=goal)
        for row in range(len(x)):
            alone = search_cells(model, x[row : row + 1], k=2, perturbation=ball, goal=goal)
            assert alone.verdict[0] == together.verdict[row]
            assert alone.nodes[0] == together.nodes[row]
            torch.testing.assert_close(alone.upper[0], together.upper[row])
            torch.testing.assert_close(alone.x[0], together.x[row])


def test_a_change_that_loses_the_prediction_breaks_nothing() -> None:
    # f = a + 2 relu(b) - 2: its slope is (1, 0) for b < 0 and (1, 2) for b > 0. From (2.5, -.2) the
    # other piece is .2 away with f > 0. From (-.5, -.2), class 0, f < 0 stays up to b = 1.25.
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 2.0]]))
        model[2].bias.copy_(torch.tensor([0.0, -2.0]))
    x = torch.tensor([[2.5, -0.2], [-0.5, -0.2]], dtype=torch.float64)
    found = search_cells(model, x, k=1, perturbation=L2Ball(radius=1.0), goal="smallest")
    torch.testing.assert_close(found.upper, torch.full((2,), 0.2).double(), rtol=1e-6, atol=0)
    with torch.no_grad():
        model[2].weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, -2.0]]))
        model[2].bias.copy_(torch.tensor([0.0, -0.1]))
    # f = a - 2 relu(b) - .1 is positive at (.2, -.2): the other piece is met at b = 0 with a > .1,
    # so it breaks; with a bias of -.25 class 0 is predicted and nothing about it is lost.
    x = torch.tensor([[0.2, -0.2]], dtype=torch.float64)
    found = search_cells(model, x, k=1, perturbation=L2Ball(radius=1.0), goal="smallest")
    torch.testing.assert_close(found.upper, torch.tensor([0.2]).double(), rtol=1e-6, atol=0)
    x = torch.tensor([[0.1 + 1e-3, -0.2]], dtype=torch.float64)
    # The class is kept on a > .1 + 2 b: the nearest such place is (.101, 0) still, inside by .001.
    found = search_cells(model, x, k=1, perturbation=L2Ball(radius=1.0), goal="smallest")
    torch.testing.assert_close(found.upper, torch.tensor([0.2]).double(), rtol=1e-6, atol=0)
    check_examples(model, x, found, 1)


def test_scaled_and_fixed_numbers() -> None:
    model, x = network((4, 6, 2), 0.1, seed=2), inputs(4, 6)
    scale = torch.tensor([0.5, 2.0, 1.0, 0.3], dtype=torch.float64)
    free = torch.tensor([True, False, True, True])
    ball = L2Ball(radius=2.0, scale=scale, free=free)
    found = search_cells(model, x, k=1, perturbation=ball, goal="smallest")
    for row in range(len(x)):
        cells = every_cell(model, x[row], 1, scale * free)
        least = min((distance for distance, gone in cells if gone), default=math.inf)
        assert (found.verdict[row] == "broken") == (least <= 2.0)
        if least <= 2.0:
            assert float(found.upper[row]) == pytest.approx(least, rel=1e-6)
            assert found.x[row, 1] == x[row, 1]
            assert float(ball.cost(found.x[row : row + 1], x[row : row + 1])) <= 2.0


def test_explanations_without_directions_of_one_hot_groups() -> None:
    model, x, groups = network((5, 8, 2), 0.05), inputs(5, 8), ((1, 2, 3),)
    found = search_cells(model, x, k=2, perturbation=L2Ball(radius=0.5), one_hot=groups)
    y, explain = predicted(model, x), Gradient(one_hot=groups)
    before = top_k_mask(explain(model, x, y), 2)
    broken = torch.tensor([each == "broken" for each in found.verdict])
    assert broken.any()
    after = top_k_mask(explain(model, found.x, y), 2)
    assert ((after != before).any(-1) == broken).all()
    for place in moves(x, 0.5, 200):
        same = (top_k_mask(explain(model, place, y), 2) == before).all(-1)
        assert (same | (predicted(model, place) != y) | broken).all()


def test_a_logit_of_three_classes() -> None:
    model, x = network((4, 6, 3), 0.0), inputs(4, 10)
    ball, y = L2Ball(radius=0.6), predicted(model, x)
    found = search_cells(model, x, k=1, perturbation=ball, of="logit")
    explain = Gradient(of="logit")
    before = top_k_mask(explain(model, x, y), 1)
    broken = torch.tensor([each == "broken" for each in found.verdict])
    changed = (top_k_mask(explain(model, found.x, y), 1) != before).any(-1)
    assert (changed == broken).all()
    assert predicted(model, found.x).equal(y)
    with pytest.raises(ValueError, match="only a logit"):
        search_cells(model, x, k=1, perturbation=ball)


def test_ties_are_neither_proved_nor_broken() -> None:
    # Features 0 and 1 weigh the same everywhere: with k = 1 the top is arbitrary.
    model = network((3, 5, 2), 0.1)
    with torch.no_grad():
        model[0].weight[:, 1] = model[0].weight[:, 0]
        model[0].weight[:, 2] = 0.0
    found = search_cells(model, inputs(3, 4), k=1, perturbation=L2Ball(radius=0.1))
    assert set(found.verdict) == {"undetermined"}
    assert set(found.decided_by) == {"tie"}
    assert (found.lower == 0).all()
    both = search_cells(model, inputs(3, 4), k=2, perturbation=L2Ball(radius=0.1))
    assert "undetermined" not in both.verdict


def test_a_cell_without_any_slope_is_a_tie() -> None:
    # Beyond the kink all slopes are zero, and no order of features is one.
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[0.0], [1.0]]))
        model[2].bias.copy_(torch.tensor([0.0, 0.5]))
    x = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    near = search_cells(model, x, k=1, perturbation=L2Ball(radius=0.8))
    far = search_cells(model, x, k=1, perturbation=L2Ball(radius=1.0))
    assert (near.verdict, far.verdict) == (("certified",), ("undetermined",))
    # The kink is 2 / sqrt(5) away.
    assert float(far.lower) == pytest.approx(2 / math.sqrt(5), rel=1e-9)
    assert far.decided_by == ("tie",)


def test_units_that_are_copies_of_one_another() -> None:
    # Each unit twice, once turned round: whole faces on which the signs of pairs contradict.
    model = network((4, 8, 2), 0.1, seed=6)
    with torch.no_grad():
        model[0].weight[4:] = -model[0].weight[:4]
        model[0].bias[4:] = -model[0].bias[:4]
    x = inputs(4, 6)
    found = search_cells(model, x, k=2, perturbation=L2Ball(radius=1.0), goal="smallest")
    check_examples(model, x, found, 2)
    y, nearest = predicted(model, x), torch.full((len(x),), math.inf).double()
    before = top_k_mask(gradient(model, x, y), 2)
    for place in moves(x, 1.0, 300):
        gone = (top_k_mask(gradient(model, place, y), 2) != before).any(-1)
        gone &= predicted(model, place) == y
        length = torch.where(gone, (place - x).norm(dim=-1), math.inf)
        nearest = torch.minimum(nearest, length)
    assert nearest.isfinite().any()
    assert (nearest >= found.lower).all()


def test_without_time_bounds_still_hold_and_attacks_count() -> None:
    model, x, k = network((6, 12, 2), 0.05, seed=8), inputs(6, 10), 2
    ball = L2Ball(radius=0.5)
    exact = search_cells(model, x, k=k, perturbation=ball, goal="smallest")
    idle = search_cells(model, x, k=k, perturbation=ball, goal="smallest", seconds=0.0)
    assert set(idle.verdict) == {"undetermined"}
    assert set(idle.decided_by) == {"budget"}
    assert (idle.lower > 0).any()
    assert (idle.lower <= exact.upper).all()
    assert (idle.least_precision <= exact.precision).all()
    found = attack(model, x, k=k, radius=0.5).x
    helped = search_cells(model, x, k=k, perturbation=ball, known=(found,), seconds=0.0)
    broken = torch.tensor([each == "broken" for each in exact.verdict])
    assert [each == "broken" for each in helped.verdict] == broken.tolist()
    assert {helped.decided_by[row] for row in broken.nonzero().flatten().tolist()} == {"attack"}
    outside = search_cells(model, x, k=k, perturbation=ball, known=(x + 5,), seconds=0.0)
    assert set(outside.verdict) == {"undetermined"}


def test_a_linear_model_keeps_its_reasons() -> None:
    model, x = nn.Sequential(nn.Linear(4, 2)).double(), inputs(4, 3)
    found = search_cells(model, x, k=2, perturbation=L2Ball(radius=100.0))
    assert set(found.verdict) == {"certified"}
    assert set(found.decided_by) == {"bound"}


def test_a_model_in_single_precision_is_searched_by_its_copy() -> None:
    model, x = network((5, 8, 2), 0.1).float(), inputs(5, 6).float()
    found = search_cells(model, x, k=2, perturbation=L2Ball(radius=0.5), goal="smallest")
    exact = search_cells(
        model.double(), x.double(), k=2, perturbation=L2Ball(radius=0.5), goal="smallest"
    )
    assert found.verdict == exact.verdict
    torch.testing.assert_close(found.upper, exact.upper)


class Skip(nn.Module):
    """A network with a way around its units."""

    def __init__(self) -> None:
        super().__init__()
        self.units, self.out, self.straight = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return self.out(torch.relu(self.units(x))) + self.straight(x)


class Squared(nn.Module):
    """A product of two numbers that move."""

    def __init__(self) -> None:
        super().__init__()
        self.units, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Units times themselves."""
        units = torch.relu(self.units(x))
        return self.out(units * units)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), "tanh"),
        (Skip(), "one after another"),
        (Squared(), "mul"),
    ],
    ids=["smooth", "around", "product"],
)
def test_other_networks_are_refused(model: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        search_cells(model.double(), inputs(3), k=1, perturbation=L2Ball(radius=0.1))


def test_what_runs_is_searched_not_what_a_model_looks_like() -> None:
    # A hook that turns the units round makes another network, whose cells are searched.
    model, x = network((4, 6, 2), 0.1), inputs(4, 6)
    plain = search_cells(model, x, k=1, perturbation=L2Ball(radius=0.6), goal="smallest")
    model[0].register_forward_hook(lambda module, given, out: -2 * out)
    hooked = search_cells(model, x, k=1, perturbation=L2Ball(radius=0.6), goal="smallest")
    check_examples(model, x, hooked, 1)
    assert not torch.equal(plain.upper, hooked.upper)
    model[2].register_full_backward_hook(lambda module, inner, outer: (3 * inner[0] ** 2,))
    with pytest.raises(ValueError, match=r"slope|gradient|recorded"):
        search_cells(model, x, k=1, perturbation=L2Ball(radius=0.6))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"perturbation": Box(radius=0.1)}, "L2Ball without bounds"),
        ({"perturbation": L2Ball(radius=0.1, bounds=(0.0, 1.0))}, "without bounds"),
        ({"perturbation": L2Ball(radius=0.1, scale=torch.ones(3))}, "shape"),
        ({"k": 4}, "k must lie"),
        ({"seconds": -1.0}, "seconds"),
        ({"y": torch.arange(8) % 2}, "predicts"),
    ],
)
def test_bad_input_is_refused(given: dict[str, object], why: str) -> None:
    chosen = {"k": 2, "perturbation": L2Ball(radius=0.1)} | given
    with pytest.raises(ValueError, match=why):
        search_cells(network((4, 5, 2), 0.0), inputs(4), **chosen)  # type: ignore[arg-type]


def test_reading_gives_the_weights() -> None:
    model, x = network((4, 5, 3, 2), 0.2), inputs(4)
    found = pieces_of(record(model, x).program, x)
    assert found.units == (5, 3)
    assert found.slopes == (0.2, 0.2)
    torch.testing.assert_close(found.weights[1], model[2].weight.detach())
    logits, met = found.pieces(x)
    torch.testing.assert_close(logits, model(x).detach())
    signal = torch.tensor([[1.0, -1.0]]).double().expand(len(x), 2)
    slope = torch.func.vmap(torch.func.grad(lambda one: (model(one) * signal[0]).sum()))(x)
    torch.testing.assert_close(found.slope(met, signal), slope.detach())


def test_nearest_points_of_polyhedra() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 6, 4, generator=generator, dtype=torch.float64)
    floors = torch.randn(300, 6, generator=generator, dtype=torch.float64)
    rows[100:200, 5] = -rows[100:200, 4]  # slabs, empty ones among them
    rows[200:, 3] = rows[200:, 2]  # the same row twice
    multipliers = nearest_multipliers(rows, floors)
    distance, way = proved_distance(rows, floors, multipliers)
    points = (multipliers[..., None] * rows).sum(1)
    for number in range(300):
        least = least_distance(rows[number].numpy(), floors[number].numpy())
        if math.isinf(least):
            assert float(distance[number]) > 1e3
            continue
        assert float(distance[number]) == pytest.approx(least, rel=1e-6, abs=1e-9)
        assert float(distance[number]) <= least * (1 + 1e-9)
        assert ((rows[number] @ points[number]) >= floors[number] - 1e-6).all()
        if least > 1e-6:
            torch.testing.assert_close(way[number] * least, points[number], rtol=1e-5, atol=1e-7)
    # Any multipliers prove a distance.
    guessed = torch.rand(300, 6, generator=generator, dtype=torch.float64)
    low, _ = proved_distance(rows, floors, guessed)
    assert (low <= distance * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_units_of_measurement_do_not_matter(size: float) -> None:
    # Inputs times s and weights over s: the same network, all lengths times s.
    model, x = network((5, 8, 2), 0.1), inputs(5, 6)
    plain = search_cells(model, x, k=2, perturbation=L2Ball(radius=0.8), goal="smallest")
    model[0].weight.data /= size
    scaled = search_cells(
        model, size * x, k=2, perturbation=L2Ball(radius=0.8 * size), goal="smallest"
    )
    assert scaled.verdict == plain.verdict
    torch.testing.assert_close(scaled.upper, size * plain.upper, rtol=1e-6, atol=0)


def test_slopes_are_those_of_the_network_to_the_last_bit() -> None:
    # 0.01 in single precision is another number, and a kept prediction was once lost by it.
    network_of = pieces_of(record(network((4, 6, 2), 0.01), inputs(4)).program, inputs(4))
    x, signal = inputs(4), torch.tensor([[1.0, -1.0]]).double().expand(8, 2)
    top = torch.arange(4).expand(8, 4)
    decisions = Decisions(
        network=network_of,
        x=x,
        scale=torch.ones(4).double(),
        project=torch.eye(4).double(),
        signal=signal,
        rivals=signal[:, None],
        top=top[:, :1],
        rest=top[:, 1:],
    )
    roots = Nodes.roots(decisions)
    (layer,), _ = layers_within(decisions, roots, Cap.of(roots, torch.full((8,), 0.5).double()))
    assert set(layer.here.unique().tolist()) == {0.01, 1.0}
    assert {*layer.least.unique().tolist(), *layer.most.unique().tolist()} == {0.01, 1.0}
