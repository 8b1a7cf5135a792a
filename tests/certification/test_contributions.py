"""Proofs about contributions: against closed forms, enumeration and the explainer itself."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closed_form import Linear, numbers, tiny_mlp
from r2et import certification
from r2et.certification import ContributionCertificate, certify_contributions, record
from r2et.certification.affine import Region
from r2et.certification.contributions import kept, never_decided
from r2et.certification.layers import propagate
from r2et.certification.mixtures import Asked, ScoreTask, mixtures
from r2et.core.autograd import eval_mode
from r2et.core.ranking import order
from r2et.explainers import Quantity, Shapley, class_logits
from r2et.perturbations import Box, L2Ball
from refusals import refusal
from traps import TRAPS, trap

GROUPS = (0, 1, 2, 2, 3)
"""Two numbers, a category of two values, and a number."""
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Softplus, nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid)


def people(count: int, seed: int) -> Tensor:
    """Rows of GROUPS: numbers, and one 1 in the columns of the category."""
    x = numbers(count, 5, seed=seed)
    x[:, 2:4] = torch.eye(2, dtype=torch.float64)[(x[:, 2] > 0).long()]
    return x


def shares(count: int, columns: int, seed: int) -> Tensor:
    """Places of a unit box: its corners, a grid and some at random, (N, A)."""
    steps = torch.linspace(0, 1, 5 if columns < 3 else 3).tolist()
    grid = torch.tensor(list(product(steps, repeat=columns)))
    draw = torch.Generator().manual_seed(seed)
    return torch.cat([grid, torch.rand(count, columns, generator=draw)]).double()


def decisions(model: nn.Module, x: Tensor, threshold: float) -> Tensor:
    """What is decided: (B,)."""
    with eval_mode(model):  # as it is certified: in training, dropout draws decisions
        logits = class_logits(model(x)).detach()
    return (
        (logits[:, 1] - logits[:, 0] >= threshold).long()
        if logits.shape[1] == 2
        else logits.argmax(-1)
    )


def told(model: nn.Module, explainer: Shapley, x: Tensor, y: Tensor, k: int) -> Tensor:
    """Which attributes are told: (B, m) booleans."""
    scores = explainer(model, x, y).detach()
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, order(scores)[:, :k], True)


def check(
    found: ContributionCertificate,
    model: nn.Module,
    explainer: Shapley,
    x: Tensor,
    y: Tensor,
    low: Tensor,
    high: Tensor,
    places: Tensor,
    threshold: float = 0.0,
) -> Tensor:
    """Fail if a place breaks what was proved; the share told at the worst place: (B,)."""
    k, first = found.top.shape[1], decisions(model, x, threshold)
    worst = torch.ones(len(x), dtype=torch.float64)
    for share in places:
        at = low + (high - low) * share
        now = told(model, explainer, at, y, k).gather(1, found.top)
        same = decisions(model, at, threshold) == first
        assert bool((now | ~found.core | ~same[:, None]).all())
        worst = torch.where(same, torch.minimum(worst, now.double().mean(1)), worst)
    assert bool((worst >= found.precision).all())
    assert torch.equal(found.kept, found.precision == 1)
    assert bool((found.core.double().mean(1) <= found.precision).all())
    assert not bool((found.kept & found.broken).any())
    for row in found.broken.nonzero().flatten().tolist():
        at = found.breaking[row : row + 1]
        assert bool(((at >= low[row]) & (at <= high[row])).all())
        assert not told(model, explainer, at, y[row : row + 1], k)[0, found.top[row]].all()
        assert decisions(model, at, threshold) == first[row]
    return worst


# --- against enumeration -------------------------------------------------------------------------


def network(seed: int) -> nn.Module:
    """A random network of one or two hidden layers, of two or three classes or one output."""
    activation = ACTIVATIONS[seed % len(ACTIVATIONS)]
    outputs = (2, 1, 3)[seed % 3]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(5, 8), activation()]
        if seed % 2:
            layers += [nn.Linear(8, 6), activation()]
        made = nn.Sequential(*layers, nn.Linear(layers[-2].out_features, outputs)).double()
        for weight in made.parameters():
            weight.data *= 2.0
    return made


def asked(seed: int, classes: int) -> tuple[Shapley, int]:
    """An explainer and k."""
    of: Quantity = ("margin", "logit", "probability", "loss")[
        seed % 4 if classes == 2 else seed % 2
    ]
    form = ("signed", "against", "both")[seed // 3 % 3]
    explainer = Shapley(
        of=of, form=form, groups=GROUPS, reference=people(1 + seed % 3, 50 + seed),
        orders=4 if seed % 5 == 0 else None,
    )  # fmt: skip
    return explainer, 1 + seed % 3


def broken_or_kept(seed: int, rows: int, count: int) -> tuple[int, int]:
    """How many of some decisions of a network are proved, and how many no place breaks."""
    model, x = network(seed), people(rows, seed)
    classes = class_logits(model(x)).shape[1]
    explainer, k = asked(seed, classes)
    threshold = 0.3 * (seed % 4) if classes == 2 else 0.0
    moving = torch.zeros(5, dtype=torch.bool)
    moving[[0, 1, 4][: 1 + seed % 3]] = True
    width = (0.02, 0.1, 0.4)[seed // 2 % 3]
    low = torch.where(moving, x - width * (1 + numbers(rows, 5, seed=1).abs()), x)
    high = torch.where(moving, x + width, x)
    y = decisions(model, x, threshold)
    found = certify_contributions(
        model, x, k=k, explainer=explainer, perturbation=(low, high), threshold=threshold, boxes=16
    )
    places = torch.zeros(len(p := shares(count, int(moving.sum()), seed)), 5, dtype=torch.float64)
    places[:, moving] = p
    worst = check(found, model, explainer, x, y, low, high, places, threshold)
    return int(found.kept.sum()), int((worst == 1).sum())


def test_no_move_breaks_what_was_proved() -> None:
    found = [broken_or_kept(seed, 10, 20) for seed in range(21)]
    proved, stable = (sum(each) for each in zip(*found, strict=True))
    assert stable > 80
    assert proved > 0.85 * stable


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_move_of_more_networks_breaks_what_was_proved(part: int) -> None:
    for seed in range(100 + 40 * part, 140 + 40 * part):
        broken_or_kept(seed, 20, 300)


@pytest.mark.parametrize("form", ["signed", "against", "both", "absolute", "normalised"])
def test_whole_numbers_are_decided_exactly(form: Any) -> None:
    model, x = tiny_mlp(5, 8, activation=nn.LeakyReLU, seed=3), people(20, 5)
    explainer = Shapley(form=form, groups=GROUPS, reference=people(3, 9))
    unit = torch.tensor([0.11, 0.07, 0, 0, 0], dtype=torch.float64)
    y = decisions(model, x, 0.0)
    found = certify_contributions(
        model, x, k=2, explainer=explainer, perturbation=Box(radius=3.0, scale=unit), unit=unit
    )
    steps = torch.tensor(list(product(range(-3, 4), repeat=2))).double()
    worst = torch.ones(len(x), dtype=torch.float64)
    for step in steps:
        at = x.clone()
        at[:, :2] += step * unit[:2]
        now = told(model, explainer, at, y, 2).gather(1, found.top).double().mean(1)
        worst = torch.where(decisions(model, at, 0.0) == y, torch.minimum(worst, now), worst)
    assert torch.equal(found.kept, worst == 1)
    assert torch.equal(found.broken, worst < 1)
    assert torch.equal(found.precision, worst)
    assert 3 < int(found.kept.sum()) < 18
    moves = ((found.breaking - x)[:, :2] / unit[:2])[found.broken]
    torch.testing.assert_close(moves, moves.round(), atol=1e-9, rtol=0)


# --- against closed forms ------------------------------------------------------------------------


def test_linear_scores_are_decided_by_their_own_ranges() -> None:
    # phi_a = w_a (x_a - mean r_a): a moves phi_a by |w_a| t_a at most, independently of others.
    x, reference = numbers(200, 5, seed=1), numbers(4, 5, seed=2)
    model, half = Linear(5, seed=3, b=100.0), torch.tensor([0.1, 0.3, 0.0, 0.2, 0.0]).double()
    found = certify_contributions(
        model, x, k=2, explainer=Shapley(form="signed", reference=reference),
        perturbation=Box(radius=1.0, scale=half), boxes=1,
    )  # fmt: skip
    phi = model.w.detach() * (x - reference.mean(0))
    reach = model.w.detach().abs() * half
    ranked = phi.argsort(1, descending=True)
    least, most = (phi - reach).gather(1, ranked[:, :2]), (phi + reach).gather(1, ranked[:, 2:])
    stable = least.amin(1) > most.amax(1)
    assert torch.equal(found.kept, stable)
    assert torch.equal(found.broken, ~stable)
    torch.testing.assert_close(found.top, ranked[:, :2])
    assert 50 < int(stable.sum()) < 150


class Curves(nn.Module):
    """Log-odds sum_a softplus(c_a x_a) + 50: each term rises or falls with its own column."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, -2.0, 3.0, -0.5]).double())

    def terms(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x * self.c)

    def forward(self, x: Tensor) -> Tensor:
        return self.terms(x).sum(1, keepdim=True) + 50


@pytest.mark.parametrize("form", ["against", "both"])
def test_additive_scores_are_decided_by_their_curves(form: Any) -> None:
    # phi_a = f_a(x_a) - mean f_a(r_a) with f_a monotone: its range is that of the ends.
    model, x, reference = Curves(), numbers(100, 4, seed=4), numbers(6, 4, seed=5)
    half = torch.tensor([0.5, 0.2, 0.3, 0.0]).double()
    found = certify_contributions(
        model, x, k=2, explainer=Shapley(form=form, reference=reference),
        perturbation=Box(radius=1.0, scale=half), boxes=256,
    )  # fmt: skip
    with torch.no_grad():
        ends = torch.stack([model.terms(x + side * half) for side in (-1, 0, 1)])
        phi = -(ends - model.terms(reference).mean(0))  # against
    if form == "both":
        through_zero = torch.where(phi.amin(0) * phi.amax(0) < 0, 0.0, phi[1])
        phi = torch.cat([phi, through_zero[None]]).abs()
    ranked = phi[1].argsort(1, descending=True)
    least = phi.amin(0).gather(1, ranked[:, :2]).amin(1)
    most = phi.amax(0).gather(1, ranked[:, 2:]).amax(1)
    clear = (least - most).abs() > 1e-3  # closer ones would take more parts
    assert torch.equal(found.kept[clear], (least > most)[clear])
    assert torch.equal(found.broken[clear], (least < most)[clear])
    assert int(clear.sum()) > 90


def test_moves_that_change_the_decision_do_not_count() -> None:
    # Log-odds x_0 + x_1 - 1 against 0: phi = (x_0, x_1). From (1.2, 1) the first is told until
    # x_0 <= 1, where the log-odds are 1: the decision is kept there at a threshold of 0, not 1.1.
    model = Linear(2, w=torch.ones(2, dtype=torch.float64), b=-1.0)
    x = torch.tensor([[1.2, 1.0]], dtype=torch.float64)
    box = Box(radius=0.4, free=torch.tensor([True, False]))
    for threshold, stays in ((0.0, False), (1.1, True), (1.19, True)):
        found = certify_contributions(
            model, x, k=1, explainer=Shapley(form="signed"), perturbation=box, threshold=threshold
        )
        assert bool(found.kept) is stays
        assert bool(found.broken) is not stays
    declined = certify_contributions(
        model, x, k=1, explainer=Shapley(form="against"), perturbation=box, threshold=1.5
    )
    # Declined, -(x_0 + x_1 - 1) is explained, and against it speaks what was for it.
    assert declined.top.tolist() == [[0]]
    assert bool(declined.broken)


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [GROUPS, (0, -1, 1, 1, 2)])
@pytest.mark.parametrize("orders", [None, 4])
def test_mixtures_add_up_to_what_the_explainer_says(
    groups: tuple[int, ...], orders: int | None
) -> None:
    model, x = tiny_mlp(5, seed=1), people(4, 1)
    # Reference rows that share a value with the example, and all of them, also where it moves.
    reference = torch.cat([people(4, 2), x[:1], x[:1]])
    reference[0, 0], reference[5, 1] = x[0, 0], 0.5
    explainer = Shapley(groups=groups, reference=reference, orders=orders)
    columns = torch.tensor([0, 4])
    parts = Asked.of(*explainer.asked(model, x))
    for row in x:
        mixed = mixtures(parts, row, columns)
        assert len(mixed.rows) < parts.count
        assert torch.equal(mixed.rows[0], row)
        assert bool(mixed.own[0].all())
        moved = row.clone()
        moved[columns] = numbers(2, seed=7)
        logits = model(mixed.at(columns, moved[columns]))
        y = torch.ones(1, dtype=torch.long)
        expected = explainer.contributions(model, moved[None], y)[0]
        torch.testing.assert_close((logits[:, 1] - logits[:, 0]) @ mixed.weights, expected)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus])
@pytest.mark.parametrize(
    ("of", "classes"),
    [("margin", 2), ("margin", 4), ("logit", 3), ("probability", 2), ("loss", 2)],
)
def test_scores_lie_within_their_forms(
    of: Quantity, classes: int, activation: type[nn.Module]
) -> None:
    model, rows = tiny_mlp(4, 8, classes, activation, seed=5), 2 * numbers(60, 4, seed=1)
    reach = torch.zeros_like(rows)
    reach[:40, 1], reach[20:, 3] = 0.8, 1.2
    y, decided = torch.arange(60) % classes, torch.arange(60) // 2 % classes
    task = ScoreTask(program=record(model, rows).program, of=of, columns=torch.tensor([1, 3]))
    forms, leads = task.bounds(rows, reach, y, decided)
    scores = []
    for seed in range(40):
        u = numbers(60, 4, seed=seed).clamp(-1, 1)
        score, logits = task.values(rows + u * reach, y)
        scores.append(score)
        line = forms[0] + (forms[1:-1] * u[:, [1, 3]].T).sum(0)
        assert bool(((score - line).abs() <= forms[-1]).all())
        own = torch.nn.functional.one_hot(decided, classes).bool()
        lead = (logits.gather(1, decided[:, None]) - logits).masked_fill(own, torch.inf)
        assert bool((lead.amin(1) <= leads).all())
    seen = torch.stack(scores)
    assert float((forms[-1] / (seen.amax(0) - seen.amin(0))).median()) < 1


def test_many_attributes_have_mixtures_of_their_own() -> None:
    # The numbers that tell mixtures apart are made small again on the way.
    x, reference = numbers(1, 40, seed=1), numbers(9, 40, seed=2)
    explainer = Shapley(reference=reference, orders=2)
    parts = Asked.of(*explainer.asked(tiny_mlp(40), x))
    mixed = mixtures(parts, x[0], torch.tensor([3]))
    assert len(mixed.rows) == len(mixed.rows.unique(dim=0))
    assert len(mixed.rows) == parts.count - len(reference) + 1


def test_a_region_may_have_a_scale_for_each_row() -> None:
    model, x = tiny_mlp(4, activation=nn.Softplus), numbers(3, 4)
    scale = numbers(3, 4, seed=2).abs() * torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 1]])
    program, radius = record(model, x).program, x.new_full((1,), 0.7)
    together = propagate(program, Region(x=x, radius=radius.expand(3), norm="linf", scale=scale), 0)
    whole = together[0].symbols.range(together[1].form)
    for row in range(3):
        region = Region(x=x[row : row + 1], radius=radius, norm="linf", scale=scale[row])
        propagator, logits = propagate(program, region, 0)
        for one, every in zip(propagator.symbols.range(logits.form), whole, strict=True):
            torch.testing.assert_close(one[0], every[row])


def test_kept_is_what_every_order_that_is_possible_keeps() -> None:
    # Four attributes, the first two told: all orders in which what is sure holds are looked at.
    draw = torch.Generator().manual_seed(0)
    for _ in range(60):
        values = torch.rand(6, 4, generator=draw).sort(0).values[::5]  # low and high
        low, high = values.unbind()
        surely = low[:2, None] > high
        stays, count = kept(surely)
        worlds = low + (high - low) * torch.rand(400, 4, generator=draw)
        among = worlds.argsort(1, descending=True)[:, :2]
        now = torch.stack([(among == each).any(1) for each in range(2)], 1)
        assert bool((now | ~stays).all())
        assert int(now.sum(1).min()) >= int(count)


def test_alone_as_in_a_batch() -> None:
    model, x = tiny_mlp(5, 8, activation=nn.ReLU, seed=2), people(17, 3)
    explainer = Shapley(form="against", groups=GROUPS, reference=people(4, 8))
    half = torch.tensor([0.3, 0.2, 0, 0, 0.1]).double()
    choices: dict[str, Any] = {"k": 2, "explainer": explainer}
    recorded = record(model, x)
    together = certify_contributions(
        recorded, x, perturbation=Box(radius=1.0, scale=half), **choices
    )
    for row in (0, 5, 16):
        own = x[row : row + 1]
        alone = certify_contributions(
            recorded, own, perturbation=(own - half, own + half), **choices
        )
        for name, each in vars(alone).items():
            torch.testing.assert_close(
                each[0], getattr(together, name)[row], equal_nan=True, atol=1e-9, rtol=1e-9
            )
    assert 0 < int(together.kept.sum()) < 17


def test_mixtures_in_several_goes_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tiny_mlp(5, 8, activation=nn.ReLU, seed=2), people(6, 3)
    explainer = Shapley(form="both", groups=GROUPS, reference=people(4, 8))
    choices: dict[str, Any] = {"k": 2, "explainer": explainer, "perturbation": Box(radius=0.3)}
    recorded = record(model, x)
    at_once = certify_contributions(recorded, x, **choices)
    for module in (certification.mixtures, certification.contributions):
        monkeypatch.setattr(module, "AT_ONCE", 7)
    monkeypatch.setattr(certification.contributions, "MIXTURES_AT_ONCE", 100)
    in_parts = certify_contributions(recorded, x, **choices)
    for name, each in vars(at_once).items():
        torch.testing.assert_close(
            each, getattr(in_parts, name), equal_nan=True, atol=1e-9, rtol=1e-9
        )


def test_more_parts_prove_no_less_and_bounds_of_a_box_count() -> None:
    model, x = tiny_mlp(5, 8, activation=nn.ReLU, seed=2), people(20, 3)
    explainer = Shapley(form="both", groups=GROUPS, reference=people(4, 8))
    wide = Box(radius=0.3, free=torch.tensor([True, True, False, False, False]))
    recorded = record(model, x)
    few, many = (
        certify_contributions(recorded, x, k=2, explainer=explainer, perturbation=wide, boxes=boxes)
        for boxes in (1, 16)
    )
    assert bool((many.precision >= few.precision).all())
    assert int(many.kept.sum()) > int(few.kept.sum())
    assert int(few.boxes.max()) == 1
    held = certify_contributions(
        recorded,
        x,
        k=2,
        explainer=explainer,
        perturbation=replace(wide, bounds=(x[:, :1], x[:, :1])),
    )
    assert int(held.kept.sum()) > int(many.kept.sum())


def test_what_cannot_move_is_kept_unless_tied() -> None:
    x = torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 1.0]]).double()
    model = Linear(3, w=torch.ones(3, dtype=torch.float64))
    still = Box(radius=1.0, scale=torch.zeros(3, dtype=torch.float64))
    found = certify_contributions(
        model, x, k=2, explainer=Shapley(form="signed"), perturbation=still
    )
    assert found.kept.tolist() == [True, False]
    assert found.core.tolist() == [[True, True], [True, False]]
    assert not found.broken.any()


def test_rounding_of_the_model_counts() -> None:
    model, x = tiny_mlp(5, 8, seed=2).float(), people(10, 3).float()
    explainer = Shapley(form="signed", groups=GROUPS, reference=people(4, 8))
    found = certify_contributions(model, x, k=2, explainer=explainer, perturbation=Box(radius=0.01))
    assert bool((found.noise > 1e-9).all())
    assert bool(found.kept.any())


# --- refusals ------------------------------------------------------------------------------------


class Flattering(Shapley):
    """Says something else than what it is asked for."""

    def contributions(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return super().contributions(model, x, y).abs()


def test_what_is_told_must_be_what_is_proved() -> None:
    model, x = tiny_mlp(5), people(3, 1)
    message = refusal(
        lambda: certify_contributions(
            model, x, k=1, explainer=Flattering(groups=GROUPS), perturbation=Box(radius=0.1)
        )
    )
    assert "something else than the Shapley values" in message


@pytest.mark.parametrize("name", ["x times the number of rows", "less the mean of the rows"])
def test_a_model_that_is_not_what_it_looks_like_is_refused(name: str) -> None:
    case = trap(name)
    refusal(
        lambda: certify_contributions(
            case.model, case.x, k=2, explainer=Shapley(), perturbation=Box(radius=0.1)
        )
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_trap_is_refused_or_keeps_what_was_proved() -> None:
    explainer, certified = Shapley(form="signed", of="logit"), 0
    for name, made in TRAPS.items():
        if made.slow or len(made.shape) > 1:
            continue
        case = trap(name)
        model, x, y = case.model, case.x, case.settings.get("y")
        with made.around():
            try:
                found = certify_contributions(
                    model, x, y, k=2, explainer=explainer, perturbation=Box(radius=0.1), boxes=4
                )
            except ValueError:
                continue
            assert not made.refuse, name
            certified += 1
            labels = decisions(model, x, 0.0) if y is None else y
            for seed in range(20):
                at = (x.double() + 0.1 * numbers(*x.shape, seed=seed).clamp(-1, 1)).to(x.dtype)
                same = decisions(model, at, 0.0) == decisions(model, x, 0.0)
                now = told(model, explainer, at, labels, 2).gather(1, found.top)
                assert bool((now | ~found.core | ~same[:, None]).all()), name
    assert certified > 50


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k": 4}, "k must lie in 1..3"),
        ({"k": 0}, "k must lie in 1..3"),
        ({"perturbation": L2Ball(radius=1.0)}, "within a Box"),
        ({"perturbation": Box(radius=1.0, scale=torch.ones(4))}, "each of 5 columns"),
        ({"perturbation": (torch.zeros(5), torch.ones(5))}, "a range must hold"),
        ({"perturbation": (torch.full((2, 5), torch.nan), torch.ones(2, 5))}, "is NaN"),
        ({"perturbation": (torch.full((2, 5), 5.0), torch.full((2, 5), 9.0))}, "hold its x"),
        ({"perturbation": (-torch.full((2, 5), torch.inf), torch.ones(2, 5))}, "must be finite"),
        ({"explainer": Shapley(groups=GROUPS, form="sideways")}, "the form of an explanation"),
        ({"explainer": Shapley(groups=GROUPS, of="luck")}, "contributions are of margin"),
        ({"explainer": tiny_mlp}, "a Shapley explainer"),
        ({"unit": -torch.ones(5)}, "unit must hold"),
        ({"unit": torch.ones(4)}, "unit must hold"),
        ({"threshold": torch.nan}, "threshold must be finite"),
        ({"boxes": 0}, "boxes at least 1"),
    ],
)
def test_what_means_nothing_is_refused(changed: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {
        "k": 2, "explainer": Shapley(groups=GROUPS), "perturbation": Box(radius=0.1),
    }  # fmt: skip
    model, x = tiny_mlp(5), people(2, 1)
    assert said in refusal(lambda: certify_contributions(model, x, **(usual | changed)))


@pytest.mark.parametrize("changed", [{"of": "probability"}, {"threshold": 1.0}])
def test_several_classes_have_no_threshold_and_no_log_odds(changed: dict[str, Any]) -> None:
    explainer = Shapley(of=changed.get("of", "margin"))
    message = refusal(
        lambda: certify_contributions(
            tiny_mlp(5, classes=3), people(2, 1), k=2, explainer=explainer,
            perturbation=Box(radius=0.1), threshold=changed.get("threshold", 0.0),
        )
    )  # fmt: skip
    assert "of 3 classes" in message


def test_a_class_that_is_decided_nowhere_is_known_to_be() -> None:
    # Log-odds 2 x - 1 of the second class: it is decided from x = .5 on, at a threshold of 1 from
    # x = 1 on.
    model = nn.Linear(1, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.copy_(torch.tensor([0.5, -0.5]))
    low, high = (
        torch.tensor([[0.0], [0.2], [0.6], [0.3]]),
        torch.tensor([[0.4], [0.6], [0.9], [0.3]]),
    )
    recorded = record(model, low.double())
    for y, threshold, expected in (
        (1, 0.0, [True, False, False, True]),
        (0, 0.0, [False, False, True, False]),
        (1, 1.0, [True, True, True, True]),
        (0, 1.0, [False, False, False, False]),
    ):
        found = never_decided(recorded, low, high, torch.full((4,), y), threshold)
        assert found.tolist() == expected
