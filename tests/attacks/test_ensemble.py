"""The strong attack and whether it may be trusted: its parts, its effort, its alarms."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacking import attacker
from closed_form import Linear, numbers, tiny_mlp
from r2et.attacks.cells import CELLS_MEMBER, row_pieces
from r2et.attacks.diagnostics import alarms, last_doubling, optimality, saturated
from r2et.attacks.ensemble import (
    CELLS,
    GRADIENT_MEMBERS,
    PAIRS_MEMBER,
    RANDOM_MEMBER,
    EnsembleBudget,
    _guides,
    _plain,
)
from r2et.attacks.radius import Curve
from r2et.attacks.registry import attack_curve
from r2et.attacks.search import AttackProblem, AttackResult, weighted_goal
from r2et.certification.cells import search_cells
from r2et.core.ranking import precision_at_k
from r2et.data import load
from r2et.explainers import Gradient, IntegratedGradients, SmoothGrad, gradient, log_odds, predicted
from r2et.metrics.sensitivity import off_data_share
from r2et.perturbations import L2Ball
from trained import adult_network

ALIKE = EnsembleBudget()  # of networks with and without cells that could be walked
LITTLE = EnsembleBudget(
    rounds=4, starts=4, steps=6, points=16, moves=6, pairs=3, sharpness=(4.0, 8.0)
)
K = 2


def leaky_case(classes: int = 2) -> tuple[nn.Sequential, Tensor, Tensor]:
    model = tiny_mlp(d=8, hidden=12, classes=classes, activation=nn.LeakyReLU)
    x = 0.5 * numbers(9, 8)
    return model, x, predicted(model, x)


# --- random goals -----------------------------------------------------------------------------


def test_a_weighted_goal_matches_its_definition() -> None:
    before, after, k = numbers(4, 7).abs(), numbers(4, 7, seed=1).abs(), 3
    weights = numbers(4, 7, seed=2).abs()
    ranked = before.argsort(dim=-1, descending=True)
    weights[1, ranked[1, 1]] = 0.0
    weights[2, ranked[2, :k]] = 0.0  # a side without weights counts evenly
    weights[3] = 0.0
    goal = weighted_goal(before, k, weights)(after)
    for row in range(4):
        sides = []
        for side in (ranked[row, :k].tolist(), ranked[row, k:].tolist()):
            own = [float(weights[row, i]) for i in side]
            own = own if sum(own) > 0 else [1.0] * len(side)
            pairs = zip(own, side, strict=True)
            sides.append(sum(w * float(after[row, i]) for w, i in pairs) / sum(own))
        assert float(goal[row]) == pytest.approx(sides[0] - sides[1], abs=1e-12)
    torch.testing.assert_close(weighted_goal(before, k, 5 * weights)(after), goal)


# --- rounds, members, time --------------------------------------------------------------------


def test_a_longer_attack_begins_with_the_rounds_of_a_shorter_one() -> None:
    model, x, y = leaky_case()
    short, long = (
        attacker("strong", k=K, radius=0.5, budget=replace(LITTLE, rounds=rounds))(model, x, y)
        for rounds in (2, 4)
    )
    assert short.history.shape == (3, 9)
    assert long.history.shape == (5, 9)
    assert torch.equal(long.history[:3], short.history)
    assert long.steps.tolist() == [0, 1, 2, 3, 4]
    other = attacker("strong", k=K, radius=0.5, budget=LITTLE, seed=1)(model, x, y)
    assert (other.x != long.x).any()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("radius", [0.2, 1.0])
def test_the_ensemble_is_as_good_as_its_best_member(classes: int, radius: float) -> None:
    model, x, y = leaky_case(classes)
    found = attacker("strong", k=K, radius=radius, budget=replace(LITTLE, cells=CELLS))(model, x, y)
    assert found.flipped.any()
    members = {*GRADIENT_MEMBERS, RANDOM_MEMBER, "differences", "random moves"}
    # Of three classes the slope of a probability changes within cells, too.
    assert set(found.members) == members | ({CELLS_MEMBER} if classes == 2 else set())
    assert all((each >= found.precision).all() for each in found.members.values())
    assert torch.equal(torch.stack(list(found.members.values())).amin(0), found.precision)
    assert (predicted(model, found.x) == y).all()
    assert torch.equal(
        found.precision, precision_at_k(found.before, gradient(model, found.x, y), K)
    )


def test_members_of_batches_are_joined() -> None:
    model, x, y = leaky_case()
    whole = attacker("strong", k=K, budget=LITTLE)(model, x, y)
    parts = attacker("strong", k=K, budget=LITTLE, rows_at_once=2)(model, x, y)
    assert whole.members.keys() == parts.members.keys()
    for name, each in whole.members.items():
        assert torch.equal(parts.members[name], each)


def assert_valid(found: AttackResult, model: nn.Module, x: Tensor, y: Tensor) -> None:
    assert (predicted(model, found.x) == y).all()
    assert ((found.x - x).norm(dim=-1) <= 1).all()
    assert torch.equal(found.history[-1], found.precision)
    assert found.history.shape == (len(found.steps), len(x))
    for row, flip in enumerate(found.first_flip.tolist()):
        fallen = found.steps[found.history[:, row] < 1].tolist()
        assert flip == (fallen[0] if fallen else int(found.steps[-1]) + 1)
    assert all((each >= found.precision).all() for each in found.members.values())


def test_an_attack_ends_soon_after_its_time() -> None:
    model, x, y = leaky_case()
    begun = time.monotonic()
    effort = EnsembleBudget(rounds=100_000, starts=4, steps=4, points=8, moves=4)
    found = attacker("strong", k=K, budget=effort, seconds=0.3)(model, x, y)
    assert time.monotonic() - begun < 10
    assert 2 <= len(found.history) < 10_000
    assert_valid(found, model, x, y)
    none = attacker("strong", k=K, budget=LITTLE, seconds=0.0)(model, x, y)
    assert len(none.history) == 2
    assert torch.equal(none.x, x)
    assert all((each == 1).all() for each in none.members.values())
    assert_valid(none, model, x, y)


def test_time_enough_changes_nothing() -> None:
    model, x, y = leaky_case()
    free, limited = (
        attacker("strong", k=K, budget=LITTLE, seconds=seconds)(model, x, y)
        for seconds in (None, 1e9)
    )
    for name in ("x", "after", "precision", "history", "steps", "first_flip"):
        assert torch.equal(getattr(free, name), getattr(limited, name)), name
    assert len(free.history) == 5


def test_batches_that_ran_out_of_time_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    # By this clock each look takes a second, until the first batch of two is out of its ten:
    # the other one then has the time for all rounds.
    looks = iter(range(10**6))
    for module in ("ensemble", "registry"):
        monkeypatch.setattr(
            f"r2et.attacks.{module}.time", SimpleNamespace(monotonic=lambda: min(next(looks), 12))
        )
    model, x, y = leaky_case()
    attack = attacker("strong", k=K, radius=0.05, budget=LITTLE, seconds=20.0, rows_at_once=5)
    found = attack(model, x, y)
    assert len(found.history) == 5
    assert not found.flipped[:5].all()
    assert_valid(found, model, x, y)
    assert (found.history[2:, :5] == found.history[2, :5]).all()
    whole = attacker("strong", k=K, radius=0.05, budget=LITTLE)(model, x, y)
    assert torch.equal(found.history[:, 5:], whole.history[:, 5:])
    assert torch.equal(found.history[:2, :5], whole.history[:2, :5])


@pytest.mark.parametrize(
    "wrong", [{"rounds": -1}, {"points": -1}, {"sharpness": (0.0,)}, {"sharpness": (float("inf"),)}]
)
def test_an_effort_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="budget of a strong attack"):
        EnsembleBudget(**wrong)


# --- what guides the descents -----------------------------------------------------------------


def test_the_logit_takes_its_turn_with_three_classes() -> None:
    for classes, expected in ((2, {"margin"}), (3, {"margin", "logit"})):
        model, x, _ = leaky_case(classes)
        guides = _guides(model, Gradient(of="probability"), x, [4.0, 8.0], False)
        assert {look.of for _, look in guides} == expected
        plain = {look.of for _, look in _guides(model, gradient_of_p, x, [4.0], True)}
        assert plain == {"probability"}


gradient_of_p = Gradient(of="probability")


def test_a_linear_model_of_many_classes_is_attacked_though_its_margins_have_no_slope() -> None:
    # The gradient of a margin is w_y - w_c, another one for each runner-up c, and flat between.
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 5).double()).requires_grad_(False)
    model[1].weight.copy_(numbers(5, 8, seed=1))
    x = 0.5 * numbers(9, 8)
    found = attacker("strong", k=K, radius=1.0, budget=LITTLE)(model, x, predicted(model, x))
    assert found.flipped.any()


def test_a_mean_of_gradients_is_followed_by_the_plain_one_in_turn() -> None:
    model, x, _ = leaky_case()
    groups = [(0, 1, 2), (3, 4)]
    explain = SmoothGrad(samples=3, seed=4, one_hot=groups, form="signed", of="logit")
    for scaled, of in ((True, "logit"), (False, "margin")):
        guides = _guides(model, explain, x, [4.0, 8.0], scaled)
        assert {type(look) for _, look in guides} == {SmoothGrad, Gradient}
        assert len({id(network) for network, _ in guides}) == 2
        assert all(network is not model for network, _ in guides)
        for _, look in guides:
            assert look.one_hot is groups
            assert look.form == "signed"
            assert look.of == of
            assert not isinstance(look, SmoothGrad) or look.samples == 3
    assert _plain(gradient) == _plain(Gradient(of="logit")) == ()
    assert _plain(lambda model, x, y: x) == ()
    assert _plain(IntegratedGradients()) == (gradient,)


def test_a_model_without_kinks_guides_itself() -> None:
    model, x = tiny_mlp(), numbers(3, 6)
    assert [network for network, _ in _guides(model, gradient, x, [4.0, 8.0], True)] == [model]


# --- kinks that no layer shows ----------------------------------------------------------------


class InForward(nn.Module):
    """The same network with its LeakyReLU in `forward`, where no layer can be exchanged."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers[2](F.leaky_relu(self.layers[0](x)))
        return scores


@pytest.mark.parametrize("of", ["probability", "logit"])
def test_kinks_in_forward_are_attacked_and_reported(of: str) -> None:
    # No smooth copy can be made, and between kinks all slopes of gaps are zero. Differences and
    # random points still break it, and the alarm tells that slopes did not.
    layers = tiny_mlp(d=12, hidden=24, activation=nn.LeakyReLU)
    x, k, explain = numbers(40, 12, seed=3), 3, Gradient(of=of)
    y, flat = predicted(layers, x), "no gradient of a single pair leads to"
    curves = [
        attack_curve(
            model,
            x,
            y,
            k=k,
            radii=[0.5, 1.0],
            explainer=explain,
            budget=EnsembleBudget(rounds=2),
        )
        for model in (layers, InForward(layers))
    ]
    seen, hidden = curves
    members = hidden.attacks[-1].members
    assert (members[PAIRS_MEMBER] == 1).all()
    assert members["differences"].mean() < 0.7
    assert members[RANDOM_MEMBER].mean() < 0.5
    assert hidden.smallest.isfinite().double().mean() > 0.9
    assert any(flat in each for each in alarms(InForward(layers), x, y, hidden, k))
    assert not any(flat in each for each in alarms(layers, x, y, seen, k))
    assert seen.precision[-1].mean() < hidden.precision[-1].mean()


# --- on a trained network ---------------------------------------------------------------------


trained_network = partial(adult_network, rows=8000, epochs=40, least_auc=0.87, examples=40)


@cache
def strong_precision() -> Tensor:
    """P@8 of these examples under the strong attack as it comes, within 0.5."""
    return attacker("strong", k=8, radius=0.5)(*trained_network()).precision


def best_of_random_points(
    model: nn.Module, x: Tensor, y: Tensor, *, k: int, radius: float, points: int
) -> Tensor:
    """Lowest P@k over random points on the sphere that keep the prediction, plainly: (B,)."""
    found = torch.ones(len(x), dtype=x.dtype)
    for seed in range(points // 2000):
        direction = numbers(2000, x.shape[1], seed=seed)
        offsets = radius * direction / direction.norm(dim=-1, keepdim=True)
        for row in range(len(x)):
            there, labels = x[row] + offsets, y[row].expand(2000)
            with torch.no_grad():
                after = gradient(model, there, labels)
                before = gradient(model, x[row : row + 1], y[row : row + 1]).expand_as(after)
            kept = predicted(model, there) == y[row]
            if kept.any():
                found[row] = min(found[row], precision_at_k(before, after, k)[kept].min())
    return found


@pytest.mark.slow
def test_the_strong_attack_beats_20000_random_points_and_the_papers_attack() -> None:
    # Measured: ERAttack 67, random points 42, strong 33.
    model, x, y = trained_network()
    mean = strong_precision().mean()
    random = best_of_random_points(model, x, y, k=8, radius=0.5, points=20_000)
    assert (strong_precision() <= random).double().mean() >= 0.95
    assert mean < random.mean() - 0.03
    er = attacker("er", k=8, radius=0.5, step=0.01, steps=60)(model, x, y).precision
    assert random.mean() < er.mean()
    assert mean < er.mean() - 0.25


class NullDirection(nn.Module):
    """A network whose margin gains 16 (sum of a one-hot group - 1), zero on every real input."""

    def __init__(self, network: nn.Module, group: list[int]) -> None:
        super().__init__()
        self.network, self.group = network, group

    def forward(self, x: Tensor) -> Tensor:
        extra = 16 * (x[:, self.group].sum(-1) - 1)
        scores: Tensor = self.network(x) + torch.stack([torch.zeros_like(extra), extra], dim=-1)
        return scores


@pytest.mark.slow
def test_a_null_direction_buys_a_plain_explanation_stability_and_a_projected_one_none() -> None:
    # Measured: plain 33 -> 97, projected 35 -> 35, off-data share .10 -> .95. Projected
    # explanations of the margin are equal everywhere. Off the data the predictions to be kept are
    # not, hence the attacks differ a little; with those of the untouched network
    # kept by both, they do not.
    model, x, y = trained_network()
    split = load("adult").split(0)
    groups = split.dataset.structure.one_hot
    names = [split.dataset.features[columns[0]].group for columns in groups]
    education = groups[names.index("education")]
    moved = NullDirection(model, education)
    whole = split.test.x.double()
    with torch.no_grad():
        torch.testing.assert_close(moved(whole), model(whole), rtol=0, atol=1e-12)
    assert torch.equal(predicted(moved, whole), predicted(model, whole))

    plain = attacker("strong", k=8, radius=0.5)(moved, x, y).precision
    assert plain.mean() > strong_precision().mean() + 0.25

    def share(network: nn.Module) -> float:
        slope = Gradient(of="margin", form="signed")(network, x, y).detach()
        return float(off_data_share(slope, groups).mean())

    assert share(model) < 0.2
    assert share(moved) > 0.5

    free = Gradient(one_hot=groups)
    before, after = (
        attacker("strong", k=8, radius=0.5, explainer=free, budget=ALIKE)(network, x, y)
        for network in (model, moved)
    )
    torch.testing.assert_close(after.before, before.before, rtol=0, atol=1e-12)
    assert abs(float(after.precision.mean() - before.precision.mean())) <= 0.02

    def untouched(network: nn.Module, at: Tensor) -> tuple[Tensor]:
        return (model(at),)

    on_margin = Gradient(one_hot=groups, of="margin")
    one, other = (
        attacker(
            "strong",
            k=8,
            radius=0.5,
            explainer=on_margin,
            outputs=untouched,
            budget=EnsembleBudget(rounds=1),
        )(network, x, y).precision
        for network in (model, moved)
    )
    assert (one == other).double().mean() >= 0.95
    assert abs(float(one.mean() - other.mean())) <= 0.005


# --- diagnosis --------------------------------------------------------------------------------


def made_up(
    history: list[list[float]], members: Mapping[str, Tensor] | None = None, n: int = 4
) -> AttackResult:
    """A record with this history, one row of P@k for each round, and nothing of interest else."""
    told = torch.tensor(history, dtype=torch.float64)
    scores = torch.arange(n, dtype=torch.float64).expand(told.shape[1], n)
    return AttackResult(
        x=scores,
        before=scores,
        after=scores,
        precision=told[-1],
        history=told,
        steps=torch.arange(len(told)),
        first_flip=torch.ones(told.shape[1], dtype=torch.long),
        members=members or {},
    )


def curve_of(attacks: list[AttackResult], before: Tensor | None = None) -> Curve:
    """A curve of these attacks at radii 1, 2, ... and nothing of interest else."""
    last = attacks[-1]
    raw = torch.stack([each.precision for each in attacks])
    return Curve(
        epsilons=torch.arange(1.0, len(attacks) + 1),
        x=torch.stack([each.x for each in attacks]),
        before=last.before if before is None else before,
        after=torch.stack([each.after for each in attacks]),
        precision=raw.cummin(0).values,
        raw=raw,
        smallest=torch.ones(raw.shape[1]),
        nearest=last.x,
        attacks=attacks,
    )


def test_the_last_doubling_compares_half_the_rounds_with_all() -> None:
    found = last_doubling(made_up([[1, 1], [0.75, 0.75], [0.5, 0.75], [0.5, 0.5], [0.25, 0.5]]))
    assert found is not None
    assert (found.rounds, found.before, found.after) == (2, 0.625, 0.375)
    assert found.change == -0.25
    assert "from 2 to 4 rounds" in str(found)
    assert "-25.0 points, to 37.5" in str(found)
    odd = last_doubling(made_up([[1.0], [0.75], [0.5], [0.25]]))  # 3 rounds: 1 against 2
    assert odd is not None
    assert (odd.rounds, odd.before, odd.after) == (1, 0.75, 0.5)
    assert last_doubling(made_up([[1.0], [0.5]])) is None
    assert last_doubling(made_up([[1.0]])) is None
    assert last_doubling(made_up([[], [], []])) is None


def flagged(attacks: list[AttackResult], *, before: Tensor | None = None, k: int = 2) -> list[str]:
    """The alarms of made-up attacks on a model of which nothing is to be said."""
    model, x = Linear(), numbers(len(attacks[-1].precision), 4)
    return alarms(model, x, predicted(model, x), curve_of(attacks, before), k)


def members(random: list[float], pairs: list[float], descent: list[float]) -> dict[str, Tensor]:
    told = {RANDOM_MEMBER: random, PAIRS_MEMBER: pairs, GRADIENT_MEMBERS[0]: descent}
    return {name: torch.tensor(each, dtype=torch.float64) for name, each in told.items()}


def test_an_attack_like_any_other_raises_no_alarm() -> None:
    good = members([1.0, 0.5], [1.0, 0.5], [0.5, 0.5])
    assert flagged([made_up([[1, 1], [1, 0.5]]), made_up([[1, 1], [0.5, 0.5]], good)]) == []
    assert flagged([made_up([[1, 1], [1, 1]]), made_up([[1, 1], [1, 1]], good)]) == []
    assert flagged([made_up([[], []])]) == []


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (members([0.5, 1.0], [1.0, 1.0], [1.0, 1.0]), "more damage than every descent"),
        (members([0.5, 0.5], [1.0, 0.5], [0.5, 0.5]), "no gradient of a single pair leads to"),
    ],
)
def test_random_points_that_beat_slopes_raise_an_alarm(
    told: dict[str, Tensor], expected: str
) -> None:
    found = flagged([made_up([[1, 1], [0.5, 0.5]], told)])
    assert any(expected in each and "50%" in each for each in found)


def test_a_larger_radius_that_does_not_help_raises_an_alarm() -> None:
    first, same, worse = (made_up([[1, 1], [end, end]]) for end in (0.5, 0.5, 0.75))
    for second in (same, worse):
        (found,) = flagged([first, second])
        assert "larger radius does not help" in found
        assert "at 2" in found
        assert "already at 1" in found
    nothing = made_up([[1, 1], [0, 0]])
    assert flagged([nothing, nothing]) == []  # no lower P@k to be had
    # Of 4 features two sets of 3 share 2 at least.
    third = made_up([[1, 1], [2 / 3, 2 / 3]])
    assert flagged([third, third], k=3) == []
    assert flagged([third, third], k=2) != []


def test_an_attack_that_still_improves_raises_an_alarm() -> None:
    told = members([0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    falling = [[1, 1], [1, 1], [0.5, 0.5]]
    (found,) = flagged([made_up(falling, told)])
    assert "not converged" in found
    assert flagged([made_up(falling)]) == []  # of a single attack steps are no rounds
    assert flagged([made_up([[1, 1], [0.5, 0.5], [0.5, 0.5]], told)]) == []


def test_ties_and_zeros_raise_an_alarm() -> None:
    attack = made_up([[1.0] * 4, [0.5] * 4])
    tied = attack.before.clone()
    tied[0] = torch.tensor([5.0, 1.0, 1.0, 0.0])
    (found,) = flagged([attack], before=tied)
    assert "25%" in found
    assert "next score are equal" in found
    zero = attack.before.clone()
    zero[:2] = 0.0
    found_both = flagged([attack], before=zero)
    assert any("all scores are zero for 50%" in each for each in found_both)
    rare = attack.before.repeat(10, 1)
    rare[0] = 0.0
    assert flagged([made_up([[1.0] * 40, [0.5] * 40])], before=rare) == []  # 1 of 40


class Scaled(nn.Module):
    """The same decisions, a thousand times as sure."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = 1000 * self.network(x)
        return scores


def test_saturation_is_seen_and_reported() -> None:
    double, x, y = leaky_case()
    model, x = double.float(), x.float()
    scaled = Scaled(model)
    assert not saturated(model, x, y).any()
    # sigmoid(m) is 1 in float32 from m of about 17 on.
    with torch.no_grad():
        margins = log_odds(scaled(x), y)
    assert (margins > 20).double().mean() > 0.8
    assert torch.equal(saturated(scaled, x, y), (1 - torch.sigmoid(margins)) == 0)
    told = {}
    for name, network in (("plain", model), ("scaled", scaled)):
        curve = attack_curve(network, x, y, k=K, radii=[0.5, 1.0], budget=LITTLE)
        told[name] = [each for each in alarms(network, x, y, curve, K) if "rounds to zero" in each]
        assert not (curve.before == 0).all(-1).any()  # the ranking is kept all the same
        assert (curve.precision[-1] < 1).any()
    assert told["plain"] == []
    assert len(told["scaled"]) == 1


# --- cells ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("budget", [None, 12])
def test_cells_reach_the_worst_there_is(dtype: torch.dtype, budget: int | None) -> None:
    model, x, y = leaky_case()
    wide = dict.fromkeys(("starts", "points", "moves", "pairs"), 0)
    effort = EnsembleBudget(rounds=1, cells=2000 if budget is None else budget, **wide)
    exact = search_cells(model, x, k=K, perturbation=L2Ball(radius=0.6), goal="worst")
    assert all(exact.decided)
    found = attacker("strong", k=K, radius=0.6, budget=effort)(model.to(dtype), x.to(dtype), y)
    assert (found.precision >= exact.precision - 1e-6).all()
    assert (predicted(model, found.x) == y).all()
    assert set(found.members) >= {CELLS_MEMBER}
    if budget is None:
        torch.testing.assert_close(found.precision.double(), exact.precision)


def test_the_smallest_change_is_the_exact_one() -> None:
    model, x, y = leaky_case()
    curve = attack_curve(model, x, y, k=K, radii=(0.3, 1.0), budget=replace(LITTLE, cells=CELLS))
    exact = search_cells(model, x, k=K, perturbation=L2Ball(radius=1.0), goal="smallest")
    torch.testing.assert_close(curve.smallest, exact.upper, rtol=1e-5, atol=0)
    assert (curve.smallest >= exact.lower).all()


def test_how_far_an_attack_is_from_the_worst_there_is() -> None:
    model, x, y = leaky_case()
    problem = AttackProblem(k=K, explainer=gradient, perturbation=L2Ball(radius=0.6))
    exact = search_cells(model, x, k=K, perturbation=L2Ball(radius=0.6), goal="worst")
    idle, best = (optimality(model, x, y, problem, each) for each in (x, exact.x))
    assert idle is not None
    assert best is not None
    assert idle.attacked == 1
    assert idle.exact == best.exact == best.attacked == float(exact.precision.mean())
    assert (best.finished, best.examples) == (len(x), len(x))
    assert str(best).startswith("0.0 points from the lowest mean P@k there is")
    brief = optimality(model, x, y, problem, x, nodes=1)
    assert brief is not None
    assert brief.finished < len(x)
    assert brief.exact <= best.exact
    assert str(brief).startswith("at most ")
    smooth = tiny_mlp(d=8, hidden=12, activation=nn.Softplus)
    assert optimality(smooth, x, predicted(smooth, x), problem, x) is None


def test_cells_of_rows_with_kinks_at_either_end() -> None:
    # Kinks on the input itself, two layers in a row without one, and two kinks in a row.
    layers = (nn.ReLU(), nn.Linear(4, 5), nn.Linear(5, 6), nn.LeakyReLU(0.2), nn.ReLU())
    model = nn.Sequential(*layers, nn.Linear(6, 2)).double()
    x = numbers(20, 4)
    network = row_pieces(model)
    torch.testing.assert_close(network.pieces(x)[0], model(x))
    assert network.units == (4, 6, 6)
    y = predicted(model, x)
    signal = F.one_hot(y, 2).double() - F.one_hot(1 - y, 2).double()
    slope = network.slope(network.pieces(x)[1], signal)
    torch.testing.assert_close(slope.abs(), Gradient(of="margin")(model, x, y))
