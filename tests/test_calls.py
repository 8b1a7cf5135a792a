"""Calls answer what was asked: plain losses, attention, radii, one output, targets of one class."""

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_attack_contracts import every_attack, small
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import r2et
from attacking import attacker
from attending import Attends
from closed_form import Linear, numbers, tiny_mlp
from r2et.actionable import ActionableSet, Number
from r2et.attacks.comparison import compare_handling
from r2et.attacks.ensemble import EnsembleBudget
from r2et.attacks.pgd import WalkBudget, flippable
from r2et.attacks.registry import ATTACKS, attack_curve
from r2et.core.autograd import eval_mode
from r2et.core.rng import stream
from r2et.evaluation.protocol import (
    EvaluationSettings,
)
from r2et.explainers import EXPLAINERS, SCORES, Gradient, gradient, input_gradient, predicted
from r2et.methods import METHODS
from r2et.methods import r2et as trained
from r2et.metrics import METRICS, Case
from r2et.metrics.faithfulness import dffot
from r2et.metrics.statistics import accuracy, auc
from r2et.models import structured
from r2et.perturbations import PERTURBATIONS, Box, L2Ball, PerturbationSet
from r2et.theory.complexity import estimated_constants
from r2et.training.objective import Objective
from refusals import refusal

LITTLE = EnsembleBudget(rounds=1, starts=2, steps=2, points=4, moves=2, pairs=2, sharpness=(4.0,))


def drawn(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double()


# --- a loss is a number ---


def case() -> tuple[nn.Module, Tensor, Tensor]:
    return tiny_mlp(), numbers(12, 6), torch.arange(12) % 2


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_is_a_plain_scalar(method: str) -> None:
    model, x, y = case()
    if METHODS[method].model == "structured":
        model = structured(6, 2, numeric=range(6), one_hot=(), generator=stream(0, "s")).double()
    if method == "sp":
        model = tiny_mlp(activation=nn.ReLU)
    objective = Objective(model, METHODS[method].build(k=2), draw=torch.cos)
    loss = objective(x, y)
    assert type(loss) is Tensor
    assert loss.shape == ()
    assert (loss / 2 + loss.detach()).item() == pytest.approx(1.5 * loss.item())
    told = objective.parts(x, y)
    torch.testing.assert_close(told.total, loss)
    assert told.parts["classification"].item() > 0
    (loss / 2 + 0 * x.sum()).backward()
    halves = [weight.grad.clone() for weight in objective.parameters() if weight.grad is not None]
    objective.zero_grad()
    objective(x, y).backward()
    wholes = [weight.grad for weight in objective.parameters() if weight.grad is not None]
    assert len(halves) == len(wholes) > 0
    torch.testing.assert_close([2 * half for half in halves], wholes)


def test_a_gradient_scaler_takes_it() -> None:
    model, x, y = case()
    twin = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu")
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin)]
    for _ in range(3):
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss = Objective(each, trained(k=2, curvature=0.1))(x, y)
            if each is model:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_lightning_module_returns_it(tmp_path: Any) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.objective = r2et.Objective(tiny_mlp(), r2et.methods.r2et(k=2, curvature=0.1))

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            loss: Tensor = self.objective(*batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor], number: int) -> None:
            # Under Lightning's no_grad: explanations are computed all the same.
            for name, part in self.objective.parts(*batch).parts.items():
                self.log(name, part)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.objective.parameters(), lr=0.1)

    _, x, y = case()
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    task, twin = Task(), Objective(tiny_mlp(), trained(k=2, curvature=0.1))
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        inference_mode=False,
        gradient_clip_val=10.0,
        default_root_dir=tmp_path,
    )
    trainer.fit(task, rows, rows)
    assert trainer.callback_metrics.keys() == {"loss", "classification", "margin", "curvature"}
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        for a, b in zip(x.split(4), y.split(4), strict=True):
            optimizer.zero_grad()
            twin(a, b).backward()
            optimizer.step()
    torch.testing.assert_close(list(task.parameters()), list(twin.parameters()))


# --- targets and penalties from which nothing can be learnt ---

TARGETS: dict[str, Callable[[Tensor], Any]] = {
    "multi-hot": lambda y: F.one_hot(y, 2),
    "shares": lambda y: F.one_hot(y, 2).double(),
    "floats": lambda y: y.double(),
    "a column": lambda y: y[:, None],
    "too few": lambda y: y[:3],
    "booleans": lambda y: y.bool(),
    "a list": lambda y: y.tolist(),
}


@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
def test_targets_that_are_no_classes_are_refused(targets: Callable[[Tensor], Any]) -> None:
    model, x, _ = case()
    y = targets(predicted(model, x))
    calls: dict[str, Callable[[], object]] = {
        **{
            name: partial(Objective(model, METHODS[name].build(k=2)), x, y)
            for name in ("vanilla", "at", "r2et")
        },
        **{name: partial(explain, model, x, y) for name, explain in EXPLAINERS.items()},
        **{name: partial(small(name), model, x, y) for name in ATTACKS},
        "flip": partial(flippable, model, x, y),
        "case": partial(Case.of, model, gradient, x, x, y, 2),
        "auc": partial(auc, model, x, y),
        "thickness": partial(
            r2et.thickness, model, x, y, x[None], explain=gradient, k=2, variant="mean"
        ),
    }
    for name, call in calls.items():
        assert "one class number, torch.long" in refusal(call), name


@pytest.mark.parametrize("label", [-1, 2, 7])
@pytest.mark.parametrize("outputs", [1, 2])
def test_classes_that_do_not_exist_are_refused(label: int, outputs: int) -> None:
    model, x = tiny_mlp(classes=outputs), numbers(4, 6)
    y = torch.tensor([0, 1, 0, label])
    for explain in EXPLAINERS.values():
        assert "class numbers 0..1" in refusal(partial(explain, model, x, y))
    for method in ("vanilla", "r2et"):
        objective = Objective(model, METHODS[method].build(k=2))
        assert "class numbers 0..1" in refusal(partial(objective, x, y))


def without_graph(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return gradient(model, x, y).detach()


def without_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return gradient(model, x, y).detach() * x  # a graph, as Captum's InputXGradient has, to x only


@pytest.mark.parametrize("explain", [without_graph, without_weights])
@pytest.mark.parametrize(
    "method", ["r2et", "r2et, beside", "thickness", "est-h"], ids=lambda name: name
)
def test_a_penalty_without_a_graph_is_refused(explain: Any, method: str) -> None:
    model, x, y = case()
    build = METHODS[method.split(",")[0]].build
    choices: dict[str, Any] = {"radius": 0.1} if "beside" in method else {}
    if method == "est-h":
        choices["bend"] = "explanation"
    objective = Objective(model, build(k=2, explain=explain, **choices))
    told = refusal(lambda: objective(x, y))
    assert "no graph" in told
    assert any(name in told for name in ("margin", "curvature"))
    with torch.no_grad():  # to be looked at, it may be
        assert objective(x, y).isfinite()


def test_a_penalty_may_have_a_weight_of_nothing_or_a_frozen_model() -> None:
    model, x, y = case()
    objective = Objective(model.requires_grad_(False), trained(k=2, explain=without_graph))
    assert objective(x, y).isfinite()


def test_inputs_attacked_in_training_need_a_slope() -> None:
    model, x, y = case()
    objective = Objective(model, METHODS["at"].build(k=2, explain=without_graph))
    assert "without a graph" in refusal(lambda: objective(x, y))


@every_attack
def test_an_explanation_without_a_slope_is_not_called_stable(name: str) -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(6, 6)
    attack = small(name, explainer=without_graph)
    assert "without a graph" in refusal(lambda: attack(model, x, predicted(model, x)))


class Gated(nn.Module):
    """Logits whose gradient by x is a gate that changes with x, cut off from its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(6, 6).double(), nn.Linear(6, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x * torch.sigmoid(self.gate(x)).detach())
        return found


@every_attack
def test_a_model_that_cuts_its_gradient_off_is_not_called_stable(name: str) -> None:
    torch.manual_seed(0)
    model, x = Gated(), numbers(6, 6)
    attack = small(name, explainer=Gradient(of="logit"))
    assert "without a graph" in refusal(lambda: attack(model, x, predicted(model, x)))


@every_attack
def test_a_constant_explanation_is_stable(name: str) -> None:
    model, x = Linear(d=6).requires_grad_(False), numbers(6, 6)
    for explain in (without_graph, Gradient(of="logit")):
        found = small(name, explainer=explain)(model, x, predicted(model, x))
        assert (found.precision == 1).all()


def test_what_follows_no_slope_needs_none() -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(6, 6)
    effort = EnsembleBudget(rounds=1, starts=0, pairs=0)
    attack = attacker("strong", k=2, explainer=without_graph, radius=2.0, budget=effort)
    assert attack(model, x, predicted(model, x)).flipped.any()


# --- radii ---


def applicant(**choices: Any) -> ActionableSet:
    numbers_of = tuple(
        Number(name=str(at), column=at, per_eps=1.0, shift=0.0, width=1.0, low=-9.0, high=9.0)
        for at in range(6)
    )
    return ActionableSet(columns=6, numbers=numbers_of, choices=(), fixed=(), **choices)


KINDS: dict[str, Callable[..., PerturbationSet]] = {
    **PERTURBATIONS,
    "l2, scaled": partial(L2Ball, scale=torch.ones(6).double()),
    "linf, scaled": partial(Box, scale=torch.ones(6).double()),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def effortless(name: str, **choices: Any) -> Any:
    """An attack that says nothing of radii, but by its choices."""
    less: dict[str, dict[str, Any]] = {
        "er": {"step": 1.0, "steps": 5},
        "mse": {"step": 1.0, "steps": 5},
        "moo": {"iterations": 2, "pairs": 4},
        "armijo": {"iterations": 2, "pairs": 4},
        "sqp": {"iterations": 2, "pairs": 4},
        "strong": {"budget": LITTLE},
    }
    return attacker(name, k=2, **{**less[name], **choices})


@every_attack
@every_kind
@pytest.mark.parametrize("radius", [1 / 255, 3.0])
def test_the_radius_of_a_threat_is_used(name: str, kind: Any, radius: float) -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(6, 6)
    y, threat = predicted(model, x), kind(radius=radius)
    found = effortless(name, perturbation=threat)(model, x, y)
    places = [found.x] if found.last is None else [found.x, found.last]
    moved = torch.stack([threat.cost(each, x) for each in places])
    assert (moved <= radius).all()
    if name not in ("moo", "armijo", "sqp"):  # which go no further than the first flip, if any
        assert (moved > 0.5 * radius).any()


@every_attack
def test_one_radius_is_enough_and_two_are_refused(name: str) -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6)
    y = predicted(model, x)

    for kind in (Box, KINDS["l2, scaled"]):
        threats = (kind(), kind(radius=0.3))
        one, other = (
            effortless(name, perturbation=each, radius=0.3)(model, x, y) for each in threats
        )
        alone = effortless(name, perturbation=kind(radius=0.3))(model, x, y)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.x, alone.x)
        small, large = (
            effortless(name, perturbation=kind(radius=each), radius=1.0) for each in (1 / 255, 2.0)
        )
        told = refusal(lambda small=small: small(model, x, y))
        assert "its perturbation set says 0.00392157 and the attack 1: say it once" in told
        assert "one radius" in refusal(lambda large=large: large(model, x, y))


def test_the_other_calls_with_a_radius_agree_on_it_too() -> None:
    model, x = tiny_mlp(), numbers(4, 6)
    y, small_cube = predicted(model, x), Box(radius=1e-6)
    assert not flippable(model, x, y, perturbation=small_cube).any()
    assert "one radius" in refusal(
        lambda: flippable(model, x, y, radius=1.0, perturbation=small_cube)
    )
    for own, radii in ((small_cube, [0.1, 0.2]), (applicant(radius=1.0), [0.1])):
        assert "one radius" in refusal(
            lambda own=own, radii=radii: attack_curve(
                model, x, y, k=2, radii=radii, method="er", perturbation=own
            )
        )
    assert "one radius" in refusal(
        lambda: estimated_constants(model, x, y, k=2, radius=1.0, perturbation=small_cube)
    )
    compared = partial(compare_handling, model, x, y, k=2, step_sizes=[0.1], goals=["er"])
    points = compared(budget=WalkBudget(steps=2), perturbation=small_cube)
    assert all(point.precision == 1 for point in points)


def test_an_applicant_has_one_radius_too() -> None:
    model, x = tiny_mlp(activation=nn.LeakyReLU), numbers(4, 6)
    y = predicted(model, x)
    for name in ATTACKS:
        threat = applicant(radius=0.01)
        found = effortless(name, perturbation=threat)(model, x, y)
        assert (threat.cost(found.x, x) <= 0.01 * (1 + 1e-9)).all()
    assert "one radius" in refusal(
        lambda: attacker("strong", k=2, radius=1.0, perturbation=applicant(radius=0.01))(
            model, x, y
        )
    )


def test_a_radius_nobody_chose_is_an_ordinary_number() -> None:
    assert repr(EvaluationSettings().er) == "Walk(radius=1.0, step=0.001, steps=1000)"
    assert L2Ball().radius == 1.0
    assert copy.deepcopy(L2Ball()).radius + 1 == 2


# --- labels where predictions are meant ---


def test_true_labels_are_refused_where_predictions_are_kept() -> None:
    model, x = tiny_mlp(), numbers(30, 6)
    y = predicted(model, x)
    labels = y.clone()
    labels[:7] = 1 - labels[:7]
    calls: dict[str, Callable[[], object]] = {
        "flip": lambda: flippable(model, x, labels, radius=1.0),
        "handlers": lambda: compare_handling(model, x, labels, k=2),
        "constants": lambda: estimated_constants(model, x, labels, k=2),
        "case": lambda: Case.of(model, gradient, x, x, labels, 2),
        "dffot": lambda: dffot(model, x, labels, gradient(model, x, labels).detach()),
    }
    for name, call in calls.items():
        assert "7 of 30 rows are predicted otherwise" in refusal(call), name


# --- one output ---


class Squeezed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x).squeeze(-1)
        return scores


class Doubled(nn.Module):
    """The same as two logits: what one output is to be read as."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x)
        return torch.cat([-z / 2, z / 2], -1)


@pytest.fixture(params=["column", "no column"])
def one_output(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """A network with one output, the same with two, examples and their predictions."""
    model = tiny_mlp(classes=1, seed=3)
    x = numbers(10, 6)
    one = Squeezed(model) if request.param == "no column" else model
    y = (model(x)[:, 0] > 0).long()
    assert len(y.unique()) == 2
    return one, Doubled(model), x, y


def test_one_output_is_explained_as_log_odds(one_output: Any) -> None:
    one, two, x, y = one_output
    assert torch.equal(predicted(one, x), y)
    p = torch.sigmoid(one(x).reshape(-1).detach())
    for of in SCORES:
        for explain in EXPLAINERS.values():
            for labels in (y, 1 - y):
                found = replace(explain, of=of)(one, x, labels)
                torch.testing.assert_close(found, replace(explain, of=of)(two, x, labels))
                assert (found.amax(-1) > 1e-6).all()
    at = x.clone().requires_grad_()
    (by_hand,) = torch.autograd.grad(one(at).sum(), at)
    signed = input_gradient(one, x, torch.ones_like(y))
    torch.testing.assert_close(signed, (p * (1 - p))[:, None] * by_hand)
    torch.testing.assert_close(input_gradient(one, x, torch.zeros_like(y)), -signed)


@every_attack
def test_one_output_is_attacked_as_log_odds(name: str, one_output: Any) -> None:
    one, two, x, y = one_output
    found, same = (small(name, radius=2.0)(model, x, y) for model in (one, two))
    torch.testing.assert_close(found.x, same.x)
    assert torch.equal(predicted(one, found.x), y)
    assert torch.equal(found.precision, same.precision)
    assert found.flipped.any()


@pytest.mark.parametrize(
    "name", ["vanilla", "r2et", "est-h", "exact-h", "ssr", "at", "cl", "thickness"]
)
def test_one_output_is_trained_as_log_odds(name: str, one_output: Any) -> None:
    one, two, x, _ = one_output
    labels = torch.arange(len(x)) % 2
    losses = []
    for model in (one, two):
        model.zero_grad()
        loss = Objective(model, METHODS[name].build(k=2), draw=torch.cos)(x, labels)
        loss.backward()
        losses.append([loss, *(weight.grad.clone() for weight in model.parameters())])
    torch.testing.assert_close(losses[0], losses[1])
    if name == "vanilla":
        z = one(x).reshape(-1)
        torch.testing.assert_close(
            losses[0][0], F.binary_cross_entropy_with_logits(z, labels.double())
        )


def test_one_output_is_measured_as_log_odds(one_output: Any) -> None:
    one, two, x, y = one_output
    labels = torch.arange(len(x)) % 2
    assert accuracy(one, x, y) == 1
    assert auc(one, x, labels) == auc(two, x, labels)
    cases = [
        Case.of(model, gradient, x, x + 0.3 * numbers(10, 6, seed=1), y, 2) for model in (one, two)
    ]
    for name, metric in METRICS.items():
        one_by_one, two_by_two = (metric.measure(each) for each in cases)
        torch.testing.assert_close(one_by_one, two_by_two, equal_nan=True, msg=name)


def test_captum_and_quantus_read_one_output_as_log_odds(one_output: Any) -> None:
    captum = pytest.importorskip("captum.attr")
    one, two, x, y = one_output
    from r2et.integrations.captum import captum_explainer

    for of in SCORES:
        explain = captum_explainer(captum.Saliency, of=of)
        with torch.no_grad():
            torch.testing.assert_close(explain(one, x, y), explain(two, x, y))


def test_a_model_that_answers_for_no_example_is_refused() -> None:
    model, x = tiny_mlp(), numbers(5, 6)
    model.register_forward_hook(lambda part, given, result: result.mean(0))
    assert "row of logits for each" in refusal(lambda: small("er")(model, x, torch.zeros(5).long()))
    objective = Objective(model, METHODS["vanilla"].build(k=2))
    assert "row of logits for each" in refusal(lambda: objective(x, torch.zeros(5).long()))


# --- attention ---


def encoder_layer(**choices: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(3, 1, 8, batch_first=True, activation="gelu", **choices)


ATTENDING: dict[str, Callable[[], nn.Module]] = {
    "function": lambda: Attends(None),
    "layer": lambda: Attends(nn.MultiheadAttention(3, 1, batch_first=True)),
    "encoder layer": lambda: Attends(encoder_layer()),
    "encoder layer, fast": lambda: Attends(encoder_layer()).eval(),
    "encoder": lambda: Attends(
        nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False)
    ).eval(),
    "frozen": lambda: Attends(encoder_layer()).eval().requires_grad_(False),
}
every_attending = pytest.mark.parametrize("build", ATTENDING.values(), ids=ATTENDING)


def kernels() -> tuple[bool, ...]:
    """Which kernels torch may take for attention."""
    cuda = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


@every_attending
def test_attention_can_be_explained_trained_and_attacked(build: Callable[[], nn.Module]) -> None:
    model, x = drawn(build), numbers(6, 6)
    y, before = predicted(model, x), kernels()
    at = x.clone().requires_grad_()
    for explain in (gradient, r2et.explainers.IntegratedGradients(points=3, rows_at_once=4)):
        saliency = explain(model, at, y)
        (twice,) = torch.autograd.grad(saliency.sum(), at)
        assert twice.abs().max() > 0
        step = 1e-6 * numbers(6, 6, seed=2)
        with torch.no_grad():
            change = (explain(model, x + step, y) - explain(model, x - step, y)).sum() / 2
        torch.testing.assert_close((twice * step).sum(), change, rtol=1e-5, atol=1e-12)
    weights = [each for each in model.parameters() if each.requires_grad]
    if weights:
        for method in (trained(k=2, curvature=0.1), METHODS["exact-h"].build(k=2)):
            Objective(model, method)(x, y).backward()
            assert any(each.grad is not None and each.grad.any() for each in weights)
    for attack in (effortless("er"), effortless("strong"), effortless("moo")):
        found = attack(model, x, y)
        assert (found.x != x).any()
    assert r2et.validate(model.eval(), x) == []
    assert kernels() == before


def test_attention_can_be_fitted() -> None:
    model, part = drawn(ATTENDING["encoder layer"]), numbers(32, 6)
    rows = r2et.data.Part(x=part, y=torch.arange(32) % 2, rows=torch.arange(32))
    settings = r2et.FitSettings(epochs=1, batch=16)
    before = kernels()
    _, history = r2et.fit(model, rows, rows, trained(k=2, curvature=0.1), settings)
    assert history[0].parts["curvature"] > 0
    assert kernels() == before


@pytest.mark.parametrize("chosen", list(SDPBackend.__members__.values())[2:4], ids=str)
def test_the_callers_kernels_come_back(chosen: SDPBackend) -> None:
    model, x = drawn(ATTENDING["function"]), numbers(3, 6)
    y = predicted(model, x)
    with sdpa_kernel(chosen):
        before = kernels()
        gradient(model, x, y)
        Objective(model, trained(k=2))(x, y)
        assert kernels() == before
        model.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("on purpose")))
        for call in (
            lambda: gradient(model, x, y),
            lambda: Objective(model, trained(k=2))(x, y),
            lambda: effortless("er")(model, x, y),
        ):
            with pytest.raises(RuntimeError, match="on purpose"):
                call()
            assert kernels() == before


def test_calls_within_calls_and_in_threads_leave_the_kernels() -> None:
    # Torch has one choice for the whole process: of two calls that overlap, neither may take the
    # other's choice away, nor put it back as if it were the caller's.
    model, before = nn.Linear(1, 1), kernels()
    only_plain = (False, False, True, False)
    with eval_mode(model):
        with eval_mode(model):
            assert kernels() == only_plain
        assert kernels() == only_plain
    assert kernels() == before
    entered, left = threading.Event(), threading.Event()

    def longer() -> None:
        with eval_mode(model):
            entered.set()
            left.wait(10)
            seen.append(kernels())

    seen = list[tuple[bool, ...]]()
    thread = threading.Thread(target=longer)
    with eval_mode(model):
        thread.start()
        entered.wait(10)
    left.set()
    thread.join(10)
    assert seen == [only_plain]
    assert kernels() == before


def test_threads_explain_attention_together() -> None:
    model, x = drawn(ATTENDING["layer"]), numbers(4, 6)
    y, before = predicted(model, x), kernels()
    expected = gradient(model, x, y).detach()
    problems = list[BaseException]()

    def work() -> None:
        try:
            for _ in range(20):
                at = x.clone().requires_grad_()
                saliency = gradient(model, at, y)
                torch.autograd.grad(saliency.sum(), at)
                torch.testing.assert_close(saliency.detach(), expected)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert kernels() == before
