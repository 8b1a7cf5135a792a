import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from captum.attr import (
    Attribution,
    DeepLift,
    FeatureAblation,
    GradientShap,
    InputXGradient,
    KernelShap,
    NoiseTunnel,
    Saliency,
)
from captum.metrics import sensitivity_max
from torch import Tensor, nn

from attacking import attacker
from closed_form import Linear, Quadratic, conv_net, mixing_mlp, numbers, tiny_mlp
from r2et.attacks.ensemble import EnsembleBudget
from r2et.explainers import (
    Explainer,
    Gradient,
    GradientTimesInput,
    IntegratedGradients,
    Quantity,
    gradient,
    predicted,
)
from r2et.integrations.captum import as_captum, captum_explainer
from r2et.integrations.quantus import from_quantus, quantus_explain_func
from refusals import refusal

NO_SLOPES = EnsembleBudget(rounds=2, starts=0, pairs=0, points=32, moves=8)
BRIEF = EnsembleBudget(rounds=1, starts=4, steps=5, points=16, moves=4, pairs=4)


def examples(count: int = 5, d: int = 6) -> tuple[Tensor, Tensor]:
    return numbers(count, d, seed=3), torch.arange(count) % 2


# --- Captum's attributions as explainers --------------------------------------------------------


@pytest.mark.parametrize("of", ["logit", "probability", "margin", "loss"])
@pytest.mark.parametrize(
    ("theirs", "settings", "ours"),
    [
        (Saliency, {}, gradient),
        (InputXGradient, {}, GradientTimesInput()),
        (
            attr.IntegratedGradients,
            {"n_steps": 30, "method": "riemann_middle"},
            IntegratedGradients(points=30),
        ),
    ],
    ids=["gradient", "input_x_gradient", "integrated_gradients"],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_what_both_have_is_equal(
    theirs: Any, settings: dict[str, Any], ours: Any, of: Quantity, classes: int
) -> None:
    model, (x, y) = tiny_mlp(classes=classes), examples()
    with torch.no_grad():
        found = captum_explainer(theirs, of=of, **settings)(model, x, y)
        expected = replace(ours, of=of)(model, x, y)
    # Captum takes the steps of a line in single precision.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_ablation_of_a_linear_model_by_hand() -> None:
    # Without feature i the logit w'x is lower by w_i x_i.
    model, (x, _) = Linear(6), examples()
    ones = torch.ones(5, dtype=torch.long)
    with torch.no_grad():
        signed = captum_explainer(FeatureAblation, form="signed")(model, x, ones)
        torch.testing.assert_close(signed, x * model.w)
        columns = captum_explainer(FeatureAblation, groups=[0, 0, 1, 1, 1, 2])(model, x, ones)
    parts = (x * model.w).abs()
    by_hand = [parts[:, :2].sum(1), parts[:, 2:5].sum(1), parts[:, 5]]
    torch.testing.assert_close(columns, torch.stack(by_hand, dim=1))


def test_pictures_are_explained_as_one_row_each() -> None:
    model, x = conv_net(), numbers(3, 1, 6, 6)
    with torch.no_grad():
        found = captum_explainer(Saliency)(model, x, torch.arange(3))
    assert found.shape == (3, 36)
    torch.testing.assert_close(found, Gradient(of="logit")(model, x, torch.arange(3)).detach())


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
def test_attributions_that_hook_layers_leave_the_model_as_it_was() -> None:
    model, (x, y) = tiny_mlp(), examples()
    with torch.no_grad():
        before = model(x)
        found = captum_explainer(DeepLift, form="signed")(model, x, y)
        # DeepLift's scores add up to the difference from its baseline, zero.
        gained = model(x) - model(torch.zeros_like(x))
    torch.testing.assert_close(found.sum(-1), gained.gather(1, y[:, None]).squeeze(1))
    assert torch.equal(model(x), before)
    assert not any(part._forward_hooks or part._backward_hooks for part in model.modules())


@pytest.mark.filterwarnings("ignore:You are providing multiple inputs")
@pytest.mark.parametrize(
    "drawing",
    [
        captum_explainer(lambda model: NoiseTunnel(Saliency(model)), nt_samples=4),
        captum_explainer(GradientShap, baselines=torch.zeros(1, 6, dtype=torch.float64)),
        captum_explainer(KernelShap, n_samples=20),
    ],
    ids=["NoiseTunnel", "GradientShap", "KernelShap"],
)
def test_those_that_draw_do_so_by_their_seed_alone(drawing: Explainer) -> None:
    model, (x, y) = tiny_mlp(), examples(2)
    torch.manual_seed(1)
    np.random.seed(1)
    dice, others = torch.get_rng_state(), np.random.get_state()[1].copy()
    with torch.no_grad():
        first, second = drawing(model, x, y), drawing(model, x, y)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), dice)
    assert np.array_equal(np.random.get_state()[1], others)


def test_another_seed_draws_other_noise() -> None:
    model, (x, y) = tiny_mlp(), examples(2)
    with torch.no_grad():
        one, other = (
            captum_explainer(lambda model: NoiseTunnel(Saliency(model)), seed=seed)(model, x, y)
            for seed in (0, 1)
        )
    assert not torch.allclose(one, other)


def test_nothing_of_the_callers_is_changed() -> None:
    model, (x, y) = mixing_mlp(), examples()
    before, weights = x.clone(), [weight.clone() for weight in model.parameters()]
    with torch.no_grad():
        together = captum_explainer(Saliency)(model, x, y)
        alone = [captum_explainer(Saliency)(model, x[i : i + 1], y[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))
    assert model.training
    assert model[1].training
    assert torch.equal(x, before)
    assert not x.requires_grad
    for weight, was in zip(model.parameters(), weights, strict=True):
        assert weight.grad is None
        assert torch.equal(weight, was)


def test_an_attribution_built_for_the_model_explains_it_and_no_other() -> None:
    model, (x, y) = tiny_mlp(), examples()
    with torch.no_grad():
        built = captum_explainer(Saliency(model))
        torch.testing.assert_close(built(model, x, y), captum_explainer(Saliency)(model, x, y))
        nested = captum_explainer(NoiseTunnel(Saliency(model)), nt_samples=2)
        assert nested(model, x, y).shape == x.shape
        for bound in (built, nested, captum_explainer(Saliency(tiny_mlp(seed=1)), of="margin")):
            message = refusal(partial(bound, tiny_mlp(seed=1), x, y))
            assert "built for one model" in message


def test_results_that_are_no_explanation_are_refused() -> None:
    model, (x, y) = tiny_mlp(), examples()
    explain = captum_explainer(attr.IntegratedGradients, return_convergence_delta=True)
    assert "gave tuple" in refusal(lambda: explain(model, x, y))
    wrong: Any = "odds"
    assert "'odds'" in refusal(lambda: captum_explainer(Saliency, of=wrong)(model, x, y))


# --- slopes of what has none --------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [Saliency, InputXGradient, attr.IntegratedGradients])
def test_whoever_differentiates_is_refused_in_a_sentence(theirs: Any) -> None:
    model, (x, y) = tiny_mlp(), examples()
    for start in (x, x.clone().requires_grad_()):
        scores = captum_explainer(theirs)(model, start, y)
        with pytest.raises(RuntimeError, match=f"{theirs.__name__} cannot be differentiated"):
            scores.sum().backward()
    with pytest.raises(RuntimeError, match="guide"):
        attacker("er", k=2, explainer=captum_explainer(theirs))(model, x, predicted(model, x))


def test_a_guide_lends_its_slope_and_not_its_values() -> None:
    model, (x, y) = Quadratic(6), examples()
    x.requires_grad_()
    explain = captum_explainer(FeatureAblation, form="signed", guide=gradient)
    scores = explain(model, x, y)
    with torch.no_grad():
        torch.testing.assert_close(
            scores.detach(), captum_explainer(FeatureAblation, form="signed")(model, x, y)
        )
    places = [x, *model.parameters()]
    mine = torch.autograd.grad(scores[:, 1].sum(), places)
    theirs = torch.autograd.grad(gradient(model, x, y)[:, 1].sum(), places)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_attacks_are_judged_by_captums_numbers() -> None:
    model, (x, _) = tiny_mlp(seed=2), examples(8)
    y = predicted(model, x)
    plain = captum_explainer(attr.IntegratedGradients, n_steps=10)
    guided = captum_explainer(attr.IntegratedGradients, n_steps=10, guide=gradient)
    blind = attacker("strong", k=2, explainer=plain, radius=1.0, budget=NO_SLOPES)(model, x, y)
    seeing = attacker("strong", k=2, explainer=guided, radius=1.0, budget=BRIEF)(model, x, y)
    for found in (blind, seeing):
        assert found.flipped.any()
        with torch.no_grad():
            torch.testing.assert_close(found.after, plain(model, found.x, y))
        assert ((found.x - x).norm(dim=1) <= 1).all()
        assert torch.equal(predicted(model, found.x), y)


# --- our explainers as Captum's attributions ----------------------------------------------------


def test_our_explainers_answer_as_captums_do() -> None:
    model, (x, y) = tiny_mlp(classes=3), examples()
    ours = as_captum(Gradient(of="logit"), model)
    theirs = Saliency(model)
    assert isinstance(ours, Attribution)
    assert not ours.has_convergence_delta()
    place = x.clone().requires_grad_()
    for target in (y, y.tolist(), 2):
        torch.testing.assert_close(ours.attribute(x, target), theirs.attribute(place, target))
    torch.testing.assert_close(
        ours.attribute(x), Gradient(of="logit")(model, x, predicted(model, x))
    )
    (only,) = ours.attribute((x,), target=y)
    torch.testing.assert_close(only, ours.attribute(x, y))
    pictures = numbers(2, 1, 6, 6)
    assert as_captum(gradient, conv_net()).attribute(pictures, 0).shape == pictures.shape
    grouped = as_captum(Gradient(groups=[0, 0, 0, 1, 1, 1]), model)
    assert grouped.attribute(x, y).shape == (5, 2)


def test_our_explainers_work_inside_captum() -> None:
    model, (x, _) = Linear(6), examples()
    ours = as_captum(Gradient(of="logit"), model)
    ones = torch.ones(5, dtype=torch.long)
    # The slope of a linear model is w everywhere: noise changes nothing, moves change nothing.
    tunnel = NoiseTunnel(ours).attribute(x, nt_samples=3, target=ones)
    torch.testing.assert_close(tunnel, model.w.abs().expand(5, -1))
    moved = sensitivity_max(ours.attribute, x, target=ones, n_perturb_samples=2)
    torch.testing.assert_close(moved, torch.zeros_like(moved))


def test_what_our_explainers_cannot_take_is_refused() -> None:
    model, (x, y) = tiny_mlp(), examples()
    ours = as_captum(gradient, model)
    assert "one tensor" in refusal(lambda: ours.attribute((x, x), y))
    assert "one tensor" in refusal(lambda: ours.attribute(x, y, additional_forward_args=1))
    assert "target" in refusal(lambda: ours.attribute(x, [0, 1]))


# --- Quantus ------------------------------------------------------------------------------------


def test_an_explain_func_gives_what_our_explainer_gives() -> None:
    model, (x, y) = tiny_mlp(), examples()
    explain = quantus_explain_func(gradient)
    expected = gradient(model, x, y).detach().numpy()
    np.testing.assert_allclose(explain(model, x.numpy(), y.numpy()), expected)
    np.testing.assert_allclose(explain(model, x.numpy(), y.numpy(), device="cpu"), expected)
    signed = explain(model=model, inputs=x.numpy(), targets=y.numpy(), form="signed")
    np.testing.assert_allclose(np.abs(signed), expected)
    rounded = explain(model, x.float().numpy(), y.numpy())
    np.testing.assert_allclose(rounded, expected, rtol=1e-4)
    with pytest.raises(TypeError, match="colour"):
        explain(model, x.numpy(), y.numpy(), colour="red")


@pytest.fixture
def quantus() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("quantus", reason="Quantus is optional and not installed.")


def test_complexity_by_quantus_is_the_entropy_by_hand(quantus: Any) -> None:
    model, (x, y) = tiny_mlp(), examples()
    measure = from_quantus(quantus.Complexity(disable_warnings=True))
    shares = Gradient(form="normalised")(model, x, y).detach()
    by_hand = -(shares * shares.log()).sum(-1)
    torch.testing.assert_close(measure(model, x, y), by_hand, rtol=1e-5, atol=1e-6)
    whole = from_quantus(quantus.Complexity(disable_warnings=True), batch_size=2)
    torch.testing.assert_close(whole(model, x, y), by_hand, rtol=1e-5, atol=1e-6)


def test_quantus_finds_the_slope_of_a_linear_model_insensitive(quantus: Any) -> None:
    model, (x, _) = Linear(6), examples()
    metric = quantus.MaxSensitivity(nr_samples=3, disable_warnings=True)
    measure = from_quantus(metric, Gradient(of="logit"))
    found = measure(model, x, torch.ones(5, dtype=torch.long))
    torch.testing.assert_close(found, torch.zeros_like(found))
    bent = from_quantus(metric)(tiny_mlp(), x, torch.ones(5, dtype=torch.long))
    assert (bent > 0).all()


def test_quantus_may_be_asked_about_a_model_in_training_mode(quantus: Any) -> None:
    model, (x, y) = mixing_mlp(), examples()
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=5, subset_size=2, disable_warnings=True, return_aggregate=False
    )
    assert from_quantus(metric)(model, x, y).shape == (5,)
    assert model.training
    assert model[1].training


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("FaithfulnessEstimate", {"features_in_step": 1}),
        ("MonotonicityCorrelation", {"nr_samples": 3, "features_in_step": 1}),
        ("AvgSensitivity", {"nr_samples": 3}),
        ("LocalLipschitzEstimate", {"nr_samples": 3}),
        ("RelativeInputStability", {"nr_samples": 3}),
        ("Sparseness", {}),
        ("EffectiveComplexity", {}),
        ("Consistency", {}),
    ],
)
def test_rows_of_a_table_are_welcome(quantus: Any, name: str, settings: dict[str, Any]) -> None:
    model, (x, y) = tiny_mlp(), examples()
    metric = getattr(quantus, name)(disable_warnings=True, return_aggregate=False, **settings)
    found = from_quantus(metric)(model, x, y)
    assert found.shape == (5,)
    assert found.dtype == x.dtype
    assert found.isfinite().all()


def test_metrics_that_are_no_measure_are_refused(quantus: Any) -> None:
    model, (x, y) = tiny_mlp(), examples()
    whole = quantus.Complexity(return_aggregate=True, disable_warnings=True)
    assert "return_aggregate=False" in refusal(lambda: from_quantus(whole))
    curve = quantus.PixelFlipping(features_in_step=2, disable_warnings=True)
    assert "single numbers" in refusal(lambda: from_quantus(curve)(model, x, y))


# --- without them -------------------------------------------------------------------------------


def test_a_missing_package_is_named_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = tiny_mlp(), examples()
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "quantus", None)
    asked = [
        lambda: captum_explainer(Saliency)(model, x, y),
        lambda: as_captum(gradient, model),
        lambda: from_quantus(nn.Identity()),
    ]
    for ask, package in zip(asked, ["captum", "captum", "quantus"], strict=True):
        with pytest.raises(ImportError, match=f"pip install {package}"):
            ask()
    assert quantus_explain_func(gradient)(model, x, y).shape == (5, 6)
