import copy
import pickle
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from attending import Attends
from closed_form import (
    DropoutInForward,
    Linear,
    Quadratic,
    conv_net,
    mixing_mlp,
    numbers,
    tiny_mlp,
)
from r2et.core.autograd import eval_mode
from r2et.core.ranking import order, precision_at_k
from r2et.explainers import (
    EXPLAINERS,
    Gradient,
    GradientTimesInput,
    check_inputs,
    gradient,
    predicted,
    two_logits,
)
from r2et.preflight.checks import PROBES, Case, _recurrent
from r2et.preflight.kinds import KINDS, Finding, Severity, log_probabilities
from r2et.preflight.validation import Repaired, repair, validate
from refusals import refusal

X = numbers(6, 6, seed=3)


def drawn(build: Callable[[], nn.Module]) -> nn.Module:
    """The same weights each time, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double()


class Computes(nn.Module):
    """A network of two layers whose forward is a function of them and x."""

    def __init__(self, function: Callable[[Any, Tensor], Any], classes: int = 2) -> None:
        super().__init__()
        self.function = function
        layers = tiny_mlp(classes=classes)
        self.first, self.last = layers[0], layers[-1]

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def row(*layers: nn.Module) -> nn.Sequential:
    """Layers between a first and a last linear one."""
    return nn.Sequential(nn.Linear(6, 6), *layers, nn.Linear(6, 2))


def in_row(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: drawn(lambda: row(*(layer() for layer in layers)))


def ending(end: Callable[[Tensor], Any], classes: int = 2) -> Callable[[], nn.Module]:
    """A smooth network whose logits go through a last function."""
    return lambda: Computes(lambda m, x: end(m.last(torch.tanh(m.first(x)))), classes)


def between(middle: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network whose hidden layer goes through a function."""
    return lambda: Computes(lambda m, x: m.last(middle(torch.tanh(m.first(x)))))


def behind(start: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network whose input goes through a function first."""
    return lambda: Computes(lambda m, x: m.last(torch.tanh(m.first(start(x)))))


def written(x: Tensor) -> Tensor:
    x[:, 0] *= 2
    return x


def sawtooth(width: float) -> Callable[[], nn.Module]:
    """A network plus teeth of some width, whose slope outweighs that of the network."""

    def toothed(m: Any, x: Tensor) -> Tensor:
        u = x @ torch.arange(50, 350, 50).to(x) / width
        tooth = width * (u - u.floor())
        scores: Tensor = m.last(torch.tanh(m.first(x))) + torch.stack([-tooth, tooth], -1)
        return scores

    return lambda: Computes(toothed)


class Smoothed(nn.Module):
    """A network asked at fixed places around x."""

    def __init__(self, mix: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.mix = tiny_mlp(), mix
        self.register_buffer("noise", 0.5 * numbers(8, 6, seed=3))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.net, x, self.noise)


def smoothed(mix: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Smoothed(mix)


def near_half() -> nn.Module:
    """One logit that lies in 0..1 for every x."""
    model = single()
    with torch.no_grad():
        model[-1].weight.mul_(0.01)
        model[-1].bias.fill_(0.5)
    return nn.Sequential(model, nn.Flatten(0))


def recurrent() -> nn.Module:
    class Last(nn.Module):
        def forward(self, found: Any) -> Tensor:
            states: Tensor = found[0][:, -1]
            return states

    return drawn(
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.LSTM(3, 4, batch_first=True), Last(), nn.Linear(4, 2)
        )
    )


def compiled(part: nn.Module) -> nn.Module:
    return torch.compile(part, backend="aot_eager")  # type: ignore[return-value]


def compiled_in_place() -> nn.Module:
    model = ending(lambda z: z)()
    model.compile(backend="aot_eager")
    return model


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = torch.jit.script(tiny_mlp())
    return model


def inferred() -> nn.Module:
    with torch.inference_mode():
        return mixing_mlp().eval()


class BatchMean(nn.Module):
    """Normalisation written by hand, of the batch at prediction time too."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Rounded(torch.autograd.Function):
    """A rounding with the slope of no rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Tensor:
        return flows[0]


class SilentCube(torch.autograd.Function):
    """A cube whose slope is right but says that it does not depend on x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return flows[0] * 3 * x.detach() ** 2


def softmax(raw: Tensor) -> Tensor:
    return raw.softmax(-1)


def sigmoid_answers(raw: Tensor) -> Tensor:
    return two_logits(raw).softmax(-1)


def both(p: Tensor) -> Tensor:
    return torch.stack([1 - p.reshape(-1), p.reshape(-1)], dim=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Broken:
    """A model, all kinds of findings it must yield, and how its answers are probabilities."""

    build: Callable[[], nn.Module]
    kinds: tuple[str, ...]
    where: str = "outputs"
    severity: Severity = "error"
    probabilities: Callable[[Tensor], Tensor] = softmax
    x: Tensor = field(default_factory=lambda: X)

    def answers(self, x: Tensor) -> Tensor:
        """Probabilities of the model as it was given, at prediction time, in float64."""
        model = copy.deepcopy(getattr(self.build(), "_orig_mod", self.build())).eval().double()
        with torch.no_grad():
            return self.probabilities(model(x.double().clone()))


single = partial(tiny_mlp, classes=1)
attention = partial(nn.MultiheadAttention, 3, 1, batch_first=True)
encoder = partial(
    nn.TransformerEncoderLayer, 3, 1, 8, dropout=0.0, activation="gelu", batch_first=True
)
REPAIRABLE: dict[str, Broken] = {
    "in-place at the input": Broken(
        build=lambda: drawn(lambda: nn.Sequential(nn.ELU(inplace=True), row(nn.Tanh()))),
        kinds=("in-place activation",),
        where="0",
    ),
    "in-place behind tanh": Broken(
        build=in_row(nn.Tanh, partial(nn.ReLU, inplace=True)),
        kinds=("in-place activation",),
        where="2",
    ),
    "in-place without harm": Broken(
        build=in_row(*[partial(nn.SiLU, inplace=True)] * 6),
        kinds=("in-place activation",),
        where="1, 2, 3, 4, 2 more",
        severity="warning",
    ),
    "input overwritten by +=": Broken(
        build=behind(lambda x: x.add_(1)), kinds=("overwritten input",), where="x"
    ),
    "input overwritten in part": Broken(
        build=behind(written), kinds=("overwritten input",), where="x"
    ),
    "compiled": Broken(build=lambda: compiled(tiny_mlp()), kinds=("compiled",), where="the model"),
    "compiled in part": Broken(
        build=lambda: nn.Sequential(compiled(tiny_mlp(classes=6)), nn.Tanh(), tiny_mlp()),
        kinds=("compiled",),
        where="0",
    ),
    "compiled in place": Broken(build=compiled_in_place, kinds=("compiled",), where="the model"),
    "training mode": Broken(
        build=mixing_mlp, kinds=("training mode",), where="1, 3", severity="warning"
    ),
    "training mode by hand": Broken(
        build=DropoutInForward, kinds=("training mode",), where="the model", severity="warning"
    ),
    "inference mode": Broken(
        build=inferred, kinds=("inference weights",), where="0.weight, 0.bias, 1.weight, 1.bias"
    ),
    "one logit": Broken(
        build=single,
        kinds=("single output",),
        severity="warning",
        probabilities=sigmoid_answers,
    ),
    "one logit, no column": Broken(
        build=ending(lambda z: z.squeeze(), 1),
        kinds=("single output",),
        severity="warning",
        probabilities=sigmoid_answers,
    ),
    "one logit near zero": Broken(
        build=near_half,
        kinds=("single output",),
        severity="warning",
        probabilities=sigmoid_answers,
    ),
    "one probability": Broken(
        build=ending(torch.sigmoid, 1), kinds=("single probability",), probabilities=both
    ),
    "one probability, no column": Broken(
        build=ending(lambda z: z.sigmoid()[:, 0], 1),
        kinds=("single probability",),
        probabilities=both,
    ),
    "sigmoid layer": Broken(
        build=lambda: nn.Sequential(*single(), nn.Sigmoid()),
        kinds=("single probability",),
        probabilities=both,
    ),
    "softmax": Broken(
        build=ending(lambda z: z.softmax(-1)),
        kinds=("probabilities",),
        probabilities=lambda p: p,
    ),
    "softmax layer, 3 classes": Broken(
        build=lambda: nn.Sequential(*tiny_mlp(classes=3), nn.Softmax(dim=1)),
        kinds=("probabilities",),
        probabilities=lambda p: p,
    ),
    "half precision weights": Broken(
        build=lambda: tiny_mlp().half(), kinds=("narrow weights",), where="weights"
    ),
}
# Two faults and more are repaired one after the other.
REPAIRABLE["all at once"] = Broken(
    build=lambda: compiled(
        nn.Sequential(
            nn.ELU(inplace=True),
            drawn(lambda: Attends(attention())),
            mixing_mlp(2, 1),
            nn.Sigmoid(),
        )
    ),
    kinds=(
        "compiled",
        "in-place activation",
        "single probability",
        "training mode",
    ),
    where="the model",
    probabilities=both,
)

UNREPAIRABLE: dict[str, Broken] = {
    "in-place by hand": Broken(build=between(torch.relu_), kinds=("in-place operation",)),
    "ReLU": Broken(
        build=partial(tiny_mlp, activation=nn.ReLU),
        kinds=("no curvature",),
        where="1",
        severity="warning",
    ),
    "ReLU by hand": Broken(
        build=lambda: Computes(lambda m, x: m.last(F.relu(m.first(x)))),
        kinds=("no curvature",),
        severity="warning",
    ),
    "scripted": Broken(build=scripted, kinds=("scripted",), where="the model", severity="warning"),
    "own batch normalisation": Broken(build=in_row(BatchMean, nn.Tanh), kinds=("mixed examples",)),
    "batch normalisation without memory": Broken(
        build=lambda: in_row(
            partial(nn.BatchNorm1d, 6, track_running_stats=False), nn.Tanh
        )().eval(),
        kinds=("mixed examples",),
    ),
    "inference x": Broken(
        build=tiny_mlp,
        kinds=("inference input",),
        where="x",
        x=torch.inference_mode()(lambda: X.clone())(),
    ),
    "argmax": Broken(build=ending(lambda z: z.argmax(-1)), kinds=("no gradient",)),
    "one-hot": Broken(
        build=ending(lambda z: F.one_hot(z.argmax(-1), 2).double()), kinds=("no gradient",)
    ),
    "round": Broken(build=ending(torch.round), kinds=("no gradient",)),
    "detach": Broken(build=ending(lambda z: z.detach()), kinds=("no gradient",)),
    "detached input": Broken(build=behind(lambda x: x.detach()), kinds=("no gradient",)),
    "no_grad": Broken(build=ending(torch.no_grad()(torch.tanh)), kinds=("no gradient",)),
    "numpy": Broken(
        build=behind(lambda x: torch.from_numpy(x.detach().numpy())), kinds=("no gradient",)
    ),
    "numpy that asks first": Broken(
        build=behind(lambda x: torch.from_numpy(x.numpy())), kinds=("not differentiable",)
    ),
    "detached in part": Broken(
        build=behind(lambda x: x + torch.sin(x).detach()), kinds=("false gradient",)
    ),
    "sawtooth": Broken(build=sawtooth(1e-3), kinds=("false gradient",)),
    "wide sawtooth": Broken(build=sawtooth(0.1), kinds=("false gradient",)),
    "noise in one pass": Broken(
        build=smoothed(lambda net, x, b: net(x + b[:, None]).mean(0)),
        kinds=("fixed noise",),
        severity="warning",
    ),
    "noise in turn": Broken(
        build=smoothed(lambda net, x, b: sum(net(x + each) for each in b) / len(b)),
        kinds=("fixed noise",),
        severity="warning",
    ),
    "noise row by row": Broken(
        build=smoothed(
            lambda net, x, b: net((x[:, None] + b).flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1)
        ),
        kinds=("fixed noise",),
        severity="warning",
    ),
    "noise of numpy": Broken(
        build=smoothed(
            lambda net, x, b: sum(
                net(x + torch.from_numpy(np.random.RandomState(seed).randn(6))) for seed in range(4)
            )
        ),
        kinds=("fixed noise",),
        severity="warning",
    ),
    "noise by a seed": Broken(
        build=smoothed(lambda net, x, b: net(x + numbers(6)) + net(x + numbers(6, seed=1))),
        kinds=("fixed noise",),
        severity="warning",
    ),
    "rounded with a borrowed slope": Broken(build=behind(Rounded.apply), kinds=("false gradient",)),
    "second derivative denied": Broken(
        build=lambda: Computes(lambda m, x: m.last(SilentCube.apply(m.first(x)))),
        kinds=("false gradient",),
    ),
    "distances": Broken(
        build=lambda: Computes(lambda m, x: torch.cdist(m.first(x), m.last.weight)),
        kinds=("not differentiable",),
    ),
    "pictures of scores": Broken(build=ending(lambda z: z[:, :, None]), kinds=("wrong outputs",)),
    "one row for all": Broken(build=ending(lambda z: z.mean(0)), kinds=("wrong outputs",)),
    "tuple": Broken(build=ending(lambda z: (z, z)), kinds=("wrong outputs",)),
    "dict": Broken(build=ending(lambda z: {"logits": z}), kinds=("wrong outputs",)),
    "complex": Broken(build=ending(lambda z: z + 1j), kinds=("no gradient",)),
    "NaN": Broken(build=ending(lambda z: z * torch.nan), kinds=("not finite",)),
    "masked class": Broken(
        build=ending(lambda z: torch.cat([z, -torch.inf * torch.ones_like(z)], -1)),
        kinds=("not finite",),
    ),
    "root at zero": Broken(build=between(lambda h: (h - h).sqrt() + h), kinds=("not finite",)),
    "dropout that never ends": Broken(
        build=between(lambda h: F.dropout(h, 0.5, training=True)), kinds=("random outputs",)
    ),
    "weights wider than x": Broken(
        build=tiny_mlp, kinds=("mismatch",), where="weights", x=X.float()
    ),
    "complex weights": Broken(
        build=lambda: nn.Linear(6, 2, dtype=torch.complex128), kinds=("mismatch",), where="weights"
    ),
    "weights elsewhere": Broken(
        build=lambda: tiny_mlp().to("meta"), kinds=("mismatch",), where="weights"
    ),
    "half precision": Broken(
        build=lambda: tiny_mlp().to(torch.bfloat16),
        kinds=("half precision",),
        where="weights",
        severity="warning",
        x=X.to(torch.bfloat16),
    ),
    "saturated": Broken(
        build=lambda: tiny_mlp().float(),
        kinds=("ties",),
        where="explanations",
        severity="warning",
        x=100 * X.float(),
    ),
    "ignored features": Broken(
        build=behind(lambda x: x * torch.tensor([1.0, 1, 1, 1, 0, 0]).to(x)),
        kinds=("ties",),
        where="explanations",
        severity="warning",
    ),
    "another width": Broken(build=partial(tiny_mlp, d=5), kinds=("model raises",)),
    "a batch of its own": Broken(build=behind(lambda x: x.view(6, 6)), kinds=("mixed examples",)),
    "whole numbers": Broken(
        build=tiny_mlp, kinds=("unfit inputs",), where="x", x=torch.ones(4, 6, dtype=torch.long)
    ),
    "no rows": Broken(build=tiny_mlp, kinds=("unfit inputs",), where="x", x=X[:0]),
    "a NaN in x": Broken(build=tiny_mlp, kinds=("unfit inputs",), where="x", x=X / (X - X)),
}
CLEAN: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "tanh": (tiny_mlp, X),
    "one example": (tiny_mlp, X[:1]),
    "float32": (lambda: tiny_mlp().float(), X.float()),
    "prediction mode": (lambda: mixing_mlp().eval(), X),
    "own class in training mode": (ending(lambda z: z), X),
    "dropout of nothing": (in_row(partial(nn.Dropout, 0.0), nn.Tanh), X),
    "linear": (partial(Linear, 6), X),
    "quadratic": (partial(Quadratic, 6), X),
    "log-probabilities": (ending(lambda z: z.log_softmax(-1)), X),
    "pictures": (partial(conv_net, pool=nn.AvgPool2d), numbers(3, 1, 6, 6)),
    "recurrent": (recurrent, X),
    "frozen": (lambda: tiny_mlp().requires_grad_(False), X),
    "sigmoid inside": (partial(tiny_mlp, activation=nn.Sigmoid), X),
    "softplus": (partial(tiny_mlp, activation=nn.Softplus, classes=4), X),
    "attention function": (lambda: drawn(lambda: Attends(None)), X),
    "attention layer": (lambda: drawn(lambda: Attends(attention())).eval(), X),
    "encoder layer": (lambda: drawn(lambda: Attends(encoder())).eval(), X),
    "centred": (behind(lambda x: x - torch.arange(6).to(x)), X),
    "one network twice": (lambda: Smoothed(lambda net, x, b: net(x) + net(2 * x)), X),
    "waves": (behind(lambda x: x + torch.sin(40 * x)), X),
    "float32 inside": (behind(lambda x: torch.sin(x.float()).to(x)), X),
}


@cache
def found_in(case: Broken) -> tuple[Finding, ...]:
    return tuple(validate(case.build(), case.x))


@cache
def cured(case: Broken) -> Repaired:
    return repair(case.build(), case.x)


every_repairable = pytest.mark.parametrize("case", REPAIRABLE.values(), ids=REPAIRABLE)
every_broken = pytest.mark.parametrize(
    "case", [*REPAIRABLE.values(), *UNREPAIRABLE.values()], ids=[*REPAIRABLE, *UNREPAIRABLE]
)


def kinds(findings: Any) -> tuple[str, ...]:
    return tuple(finding.kind for finding in findings)


# --- what is found ---


@every_broken
def test_what_is_broken_is_found_and_nothing_else(case: Broken) -> None:
    found = found_in(case)
    assert kinds(found) == case.kinds
    assert (found[0].where, found[0].severity) == (case.where, case.severity)
    assert [each.repairable for each in found] == [case in REPAIRABLE.values()] * len(found)


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_in_a_sound_model(name: str) -> None:
    build, x = CLEAN[name]
    assert validate(build(), x) == []
    assert validate(build(), x, k=2) == []


def test_every_kind_is_tested_here() -> None:
    tested = {
        kind for case in [*REPAIRABLE.values(), *UNREPAIRABLE.values()] for kind in case.kinds
    }
    assert tested | {"recurrent on CUDA"} == KINDS.keys()


@every_broken
def test_findings_are_plain_sentences(case: Broken) -> None:
    for found in found_in(case):
        assert found.severity in get_args(Severity)
        for sentence in (found.problem, found.effect, found.cure):
            assert sentence.endswith(".")
            assert ". " not in sentence
            assert "\n" not in sentence


def test_recurrent_layers_are_named_on_cuda_only() -> None:
    class OnCuda(Tensor):
        is_cuda = True

    model = recurrent()
    case = Case(model=model, given=model, x=X.as_subclass(OnCuda), k=None)
    found = _recurrent(case)
    assert found is not None
    assert (found.kind, found.where) == ("recurrent on CUDA", "1")
    assert _recurrent(Case(model=model, given=model, x=X, k=None)) is None


def test_a_fault_behind_a_repaired_one_is_found() -> None:
    one = ending(lambda z: torch.from_numpy(z.numpy()), 1)()
    assert kinds(validate(one, X)) == ("single output", "not differentiable")
    repaired = repair(one, X)
    assert kinds(repaired.left) == ("not differentiable",)
    assert len(repaired.done) == 1


def test_ties_are_counted_at_k() -> None:
    # Of six features the last two are ignored: places 5 and 6 tie, and no others.
    case = UNREPAIRABLE["ignored features"]
    assert "40%" in validate(case.build(), X)[0].problem
    assert validate(case.build(), X, k=4) == []
    (found,) = validate(case.build(), X, k=5)
    assert "100% of explanations have a tie at place k = 5" in found.problem


def test_ties_of_a_picture_are_counted_without_pairs() -> None:
    wide = drawn(lambda: nn.Sequential(nn.Linear(20_000, 2), nn.Tanh()))
    assert validate(wide, numbers(2, 20_000)) == []


# --- what is repaired ---


@every_repairable
def test_what_is_repairable_is_repaired(case: Broken) -> None:
    repaired = cured(case)
    assert repaired.left == ()
    assert repaired.fidelity is None
    assert [line.split(" at ")[0] for line in repaired.done] == list(case.kinds)
    check_inputs(repaired.model, case.x, predicted(repaired.model, case.x))


@every_repairable
def test_repaired_models_answer_as_before(case: Broken) -> None:
    answers = copy.deepcopy(cured(case).model).eval()(case.x).softmax(-1)
    torch.testing.assert_close(answers, case.answers(case.x))


@every_repairable
def test_repaired_models_can_be_differentiated_twice(case: Broken) -> None:
    model, x = cured(case).model, case.x[:1].clone().requires_grad_()
    with eval_mode(model):
        assert gradgradcheck(model, x)
    y = predicted(model, x)
    assert gradcheck(lambda x: Gradient(form="signed")(model, x, y), x)


@every_repairable
def test_repaired_models_can_be_trained_on_explanations(case: Broken) -> None:
    model = cured(case).model
    saliency = gradient(model, case.x, predicted(model, case.x))
    weights = [*model.parameters()]
    slopes = torch.autograd.grad(saliency.sum(), weights, allow_unused=True)
    assert sum(slope is not None and bool(slope.any()) for slope in slopes) > len(weights) / 2


@every_repairable
def test_repaired_models_can_be_stored(case: Broken) -> None:
    model = copy.deepcopy(cured(case).model).eval()
    if not any(isinstance(part, Computes) for part in model.modules()):
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(again(case.x), model(case.x))


@pytest.mark.parametrize("case", UNREPAIRABLE.values(), ids=UNREPAIRABLE)
def test_what_cannot_be_repaired_is_left(case: Broken) -> None:
    repaired = cured(case)
    assert kinds(repaired.left) == case.kinds
    assert repaired.done == ()


class Residual(nn.Module):
    """A residual network whose in-place activation changes what is added to it."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 2)
        self.act = nn.ELU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        scores: Tensor = self.last(h + self.act(h))
        return scores


def test_a_repair_that_changes_a_prediction_is_left_out() -> None:
    model, x = drawn(Residual), numbers(400, 6)
    given = model(x)
    plain = copy.deepcopy(model)
    plain.act.inplace = False
    changed = int((plain(x).argmax(-1) != given.argmax(-1)).sum())
    assert changed > 3
    repaired = repair(model, x)
    assert torch.equal(repaired.model(x), given)
    assert repaired.done == ()
    (left,) = repaired.left
    assert (left.kind, left.where, left.repairable) == ("in-place activation", "act", False)
    assert f"changes {changed} of 400 predictions" in left.problem
    assert "left out" in left.problem


def test_other_repairs_are_kept_where_one_is_left_out() -> None:
    x = numbers(50, 6)
    model = nn.Sequential(drawn(Residual), nn.Dropout(), nn.Softmax(-1)).double().train()
    repaired = repair(model, x)
    assert [each.split(" at ")[0] for each in repaired.done] == ["probabilities", "training mode"]
    assert kinds(repaired.left) == ("in-place activation",)
    with torch.no_grad():
        torch.testing.assert_close(repaired.model(x).softmax(-1), model.eval()(x))


def test_a_repair_that_changes_logits_and_no_prediction_is_left_out() -> None:
    model, x = drawn(Residual), numbers(50, 6)
    with torch.no_grad():
        model.last.bias[1] += 100  # one class for all
        given = model(x)
        repaired = repair(model, x)
        assert "changes 0 of 50 predictions and outputs by up to" in repaired.left[0].problem
        assert torch.equal(repaired.model(x), given)


@pytest.mark.parametrize("name", CLEAN)
def test_a_sound_model_comes_back_as_a_copy(name: str) -> None:
    build, x = CLEAN[name]
    model = build()
    repaired = repair(model, x)
    assert repaired.model is not model
    assert (repaired.done, repaired.left) == ((), ())
    assert torch.equal(repaired.model(x), model(x))


class OnPictures(nn.Module):
    """A convolutional network whose outputs, but not whose slopes, have something added."""

    def __init__(self, hidden: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64, 2),
        )  # fmt: skip
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs + self.hidden(outputs).detach()


@pytest.mark.parametrize(
    ("hidden", "expected"), [(torch.zeros_like, False), (lambda z: torch.sin(9 * z), True)]
)
def test_on_a_flat_ground_slopes_are_judged_beside_its_kinks(
    hidden: Callable[[Tensor], Tensor], expected: bool
) -> None:
    # All four places of a pool see the same shade: any step chooses among them on either side.
    x = torch.zeros(16, 1, 8, 8, dtype=torch.float64)
    x[:, :, 3:5, 3:5] = numbers(16, 1, 2, 2, seed=1).abs()
    found = kinds(validate(drawn(lambda: OnPictures(hidden)), x, k=5))
    assert ("false gradient" in found) == expected


def test_before_a_sigmoid_layer_no_slope_is_lost() -> None:
    # In float32 a sigmoid rounds to 1 beyond 17: 1 - p = 0 has no logarithm, z has lost nothing.
    sure = tiny_mlp(classes=1).float()
    with torch.no_grad():
        sure[-1].bias.fill_(30.0)
    x = X.float()
    layer = repair(nn.Sequential(*sure, nn.Sigmoid()), x)
    assert layer.left == ()
    assert gradient(layer.model, x, torch.ones(6, dtype=torch.long)).ne(0).all()
    function = repair(nn.Sequential(sure, Ends(torch.sigmoid)), x)
    assert kinds(function.left) == ("no gradient",)


def test_hooks_see_what_they_saw_before() -> None:
    # A hook that halves p: the sigmoid before it must stay.
    model = nn.Sequential(*single(), nn.Sigmoid())
    model.register_forward_hook(lambda part, x, p: p / 2)
    repaired = repair(model, X)
    assert repaired.left == ()
    torch.testing.assert_close(repaired.model(X).softmax(-1), both(model(X)))


class Locked(nn.Module):
    """A layer whose writing in place cannot be switched off."""

    @property
    def inplace(self) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


def test_a_cure_that_fails_is_a_finding() -> None:
    model = drawn(lambda: row(Locked()))
    assert kinds(validate(model, X)) == ("model raises",)
    assert kinds(repair(model, X).left) == ("model raises",)


class Ends(nn.Module):
    """A last function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_logarithms_of_a_softmax_keep_the_slopes_of_sure_predictions() -> None:
    # The small probability is e^-80 in float32 too: only beyond e^-87 nothing is left of it. The
    # slope of its logarithm is 1 / p, whose own, 1 / p^2, would be infinite.
    network = tiny_mlp().float()
    with torch.no_grad():
        network[-1].bias.copy_(torch.tensor([0.0, 80.0]))
    repaired = repair(nn.Sequential(network, Ends(softmax)), X.float())
    assert repaired.left == ()
    x, y = X.float().requires_grad_(), torch.ones(6, dtype=torch.long)
    slopes = [Gradient(of="margin")(model, x, y) for model in (repaired.model, network)]
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(*(torch.autograd.grad(slope.sum(), x)[0] for slope in slopes))


def test_one_logit_or_probability_becomes_two_logits() -> None:
    # softmax [0, z] = [1 - s, s] with s = sigmoid(z), and so is that of [log(1 - s), log s].
    z = numbers(5)
    expected = torch.stack([torch.sigmoid(-z), torch.sigmoid(z)], dim=-1)
    for column in (z, z[:, None]):
        torch.testing.assert_close(two_logits(column).softmax(-1), expected)
        torch.testing.assert_close(log_probabilities(column.sigmoid()).softmax(-1), expected)
    torch.testing.assert_close(log_probabilities(expected).softmax(-1), expected)
    assert log_probabilities(torch.tensor([[0.0, 1.0]])).isfinite().all()


# --- smoothing ---


def test_kinks_are_rounded_only_if_asked() -> None:
    model = tiny_mlp(activation=nn.ReLU, hidden=20)
    plain, smooth = repair(model, X), repair(model, X, k=2, smooth=5.0)
    assert kinds(plain.left) == ("no curvature",)
    assert plain.fidelity is None
    assert (smooth.left, len(smooth.done)) == ((), 1)
    assert gradgradcheck(smooth.model, X[:2].clone().requires_grad_())
    y, fidelity = predicted(model, X), smooth.fidelity
    assert fidelity is not None
    before, after = model(X).softmax(-1), smooth.model(X).softmax(-1)
    assert fidelity.largest_change == pytest.approx((before - after).abs().max().item())
    assert fidelity.same_predictions == (before.argmax(-1) == after.argmax(-1)).double().mean()
    kept = precision_at_k(gradient(model, X, y), gradient(smooth.model, X, y), 2)
    assert fidelity.overlap == pytest.approx(kept.mean().item())
    assert 0 < fidelity.largest_change < 0.5


def test_a_sharper_rounding_is_more_faithful() -> None:
    model = tiny_mlp(activation=nn.LeakyReLU, hidden=20)
    changes = []
    for sharpness in (1.0, 10.0, 1e4):
        fidelity = repair(model, X, smooth=sharpness).fidelity
        assert fidelity is not None
        assert fidelity.overlap is None
        changes.append(fidelity.largest_change)
    assert changes == sorted(changes, reverse=True)
    assert changes[-1] < 1e-4
    assert fidelity.same_predictions == 1


def test_smoothing_comes_on_top_of_repairs() -> None:
    model = nn.Sequential(
        *tiny_mlp(d=6, classes=6), nn.ReLU(inplace=True), nn.Linear(6, 1), nn.Sigmoid()
    ).double()
    repaired = repair(model, X, smooth=50.0)
    assert repaired.left == ()
    assert [line.split(" at ")[0].split(":")[0] for line in repaired.done] == [
        "in-place activation",
        "single probability",
        "no curvature",
    ]
    assert repaired.fidelity is not None


def test_where_nothing_can_be_rounded_nothing_is() -> None:
    for model in (tiny_mlp(), UNREPAIRABLE["ReLU by hand"].build()):
        repaired = repair(model, X, smooth=5.0)
        assert (repaired.done, repaired.fidelity) == ((), None)


def test_no_fidelity_is_claimed_while_an_error_is_left() -> None:
    model = nn.Sequential(tiny_mlp(activation=nn.ReLU), Ends(torch.round))
    repaired = repair(model, X, smooth=5.0)
    assert kinds(repaired.left) == ("no gradient",)
    assert repaired.fidelity is None


# --- probabilities taken for logits ---


def taken_twice(classes: int) -> tuple[nn.Sequential, nn.Sequential]:
    """A model of logits and the same one with a softmax at its end."""
    logits = tiny_mlp(classes=classes, hidden=20)
    with torch.no_grad():
        logits[-1].weight.mul_(5)
    return logits, nn.Sequential(*logits, nn.Softmax(-1))


def same_ranking(one: Tensor, other: Tensor) -> bool:
    return torch.equal(order(one), order(other))


def test_two_probabilities_taken_for_logits_keep_the_ranking_of_a_gradient() -> None:
    # q = softmax(p) has log-odds p - (1 - p): grad q = q (1 - q) grad(2p - 1) = 2 q (1 - q) grad p.
    right, wrong = taken_twice(classes=2)
    y = predicted(right, X)
    assert torch.equal(predicted(wrong, X), y)
    q = wrong(X).softmax(-1).gather(-1, y[:, None]).detach()
    assert q.max() <= torch.e / (torch.e + 1)
    for explain in (gradient, GradientTimesInput()):
        true, false = explain(right, X, y).detach(), explain(wrong, X, y).detach()
        torch.testing.assert_close(false, 2 * q * (1 - q) * true)
        assert same_ranking(false, true)


@pytest.mark.parametrize("name", ["smooth-grad", "integrated-gradients"])
def test_two_probabilities_taken_for_logits_change_the_ranking_of_averages(name: str) -> None:
    # The factor 2 q (1 - q) weighs the places over which is averaged, from 0.39 to 0.5.
    right, wrong = taken_twice(classes=2)
    x = numbers(200, 6, seed=8)
    y = predicted(right, x)
    assert not same_ranking(EXPLAINERS[name](wrong, x, y), EXPLAINERS[name](right, x, y))
    repaired = repair(wrong, x).model
    torch.testing.assert_close(EXPLAINERS[name](repaired, x, y), EXPLAINERS[name](right, x, y))


def test_two_probabilities_taken_for_logits_have_other_curvature() -> None:
    # The second derivative gains a term in grad p grad p': no multiple of that of p.
    right, wrong = taken_twice(classes=2)
    y, x = predicted(right, X), X.clone().requires_grad_()
    true, false = (
        torch.autograd.grad(Gradient(form="signed")(model, x, y).sum(), x)[0]
        for model in (right, wrong)
    )
    ratios = false / true
    assert (ratios.amax(-1) / ratios.amin(-1) - 1).abs().max() > 0.01


def test_more_probabilities_taken_for_logits_change_the_ranking() -> None:
    right, wrong = taken_twice(classes=3)
    x = numbers(200, 6, seed=8)
    y = predicted(right, x)
    assert not same_ranking(gradient(wrong, x, y), gradient(right, x, y))
    repaired = repair(wrong, x).model
    torch.testing.assert_close(gradient(repaired, x, y), gradient(right, x, y))


def test_among_equally_likely_others_the_ranking_stays() -> None:
    # grad log-odds of q = grad p_y - mean of the others' = (1 + 1 / (C - 1)) grad p_y if these
    # are equal, as they sum to 1 - p_y: the ranking stays, here for C = 3.
    right, _ = taken_twice(classes=3)
    with torch.no_grad():
        right[-1].weight[2] = right[-1].weight[1]
        right[-1].bias[2] = right[-1].bias[1]
    y = torch.zeros(6, dtype=torch.long)
    wrong = nn.Sequential(*right, nn.Softmax(-1))
    q = wrong(X).softmax(-1)[:, :1].detach()
    true, false = gradient(right, X, y).detach(), gradient(wrong, X, y).detach()
    torch.testing.assert_close(false, 1.5 * q * (1 - q) * true)


def test_a_probability_beside_zero_would_never_predict_the_first_class() -> None:
    p = torch.tensor([0.01, 0.2, 0.9])
    assert two_logits(p).argmax(-1).tolist() == [1, 1, 1]
    assert log_probabilities(p).argmax(-1).tolist() == [0, 0, 1]


# --- nothing of the caller's is changed ---


def everything(model: nn.Module) -> Any:
    """State, modes, flags, hooks and identities of a model, and everyone's random streams."""
    return (
        [(name, id(value), value.data_ptr()) for name, value in model.named_parameters()],
        [str(value) for value in model.state_dict().values()],
        [(id(part), part.training, getattr(part, "inplace", None)) for part in model.modules()],
        [(weight.requires_grad, weight.grad) for weight in model.parameters()],
        [(id(part._forward_hooks), len(part._forward_hooks)) for part in model.modules()],
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # type: ignore[index]
        torch.is_grad_enabled(),
    )


@every_broken
def test_nothing_of_the_callers_is_changed(case: Broken) -> None:
    model = case.build()
    next(iter(model.parameters())).requires_grad_(False)
    if "scripted" not in case.kinds:
        model.register_forward_hook(lambda part, x, found: None)
    x = case.x.clone()
    before = everything(model)
    if case in REPAIRABLE.values():
        weights = set(map(id, repair(model, x).model.parameters()))
        assert weights.isdisjoint(map(id, model.parameters()))
    else:
        validate(model, x)
    assert everything(model) == before
    assert torch.equal(x, case.x)
    assert not x.requires_grad


def test_streams_of_python_and_numpy_go_on_as_if_nothing_was_drawn() -> None:
    def noisy(h: Tensor) -> Tensor:
        return h + random.random() + np.random.rand()

    model = between(noisy)()
    before = everything(model)
    assert kinds(validate(model, X)) == ("random outputs",)
    assert everything(model) == before


def test_running_statistics_are_those_of_the_caller() -> None:
    model = mixing_mlp()
    repaired = repair(model, X).model
    for name, value in repaired.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_mode_makes_no_difference(mode: Callable[[], Any]) -> None:
    case = REPAIRABLE["all at once"]
    model = case.build()
    with mode():
        assert kinds(validate(model, X)) == case.kinds
        repaired = repair(model, X, smooth=5.0)
    with eval_mode(repaired.model):
        assert gradgradcheck(repaired.model, X[:2].clone().requires_grad_())


class Keeps(nn.Module):
    """A model that keeps its last answer, which cannot be copied with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.answer = tiny_mlp(activation=nn.ReLU), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.answer = self.layers(x)
        return self.answer


def test_models_that_keep_their_answers_can_be_copied() -> None:
    model = Keeps()
    answer = model(X)
    repaired = repair(model, X, smooth=5.0)
    assert model.answer is answer
    assert repaired.left == ()
    assert repaired.fidelity is not None


class Unique(nn.Module):
    """A model that cannot be copied."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is only one. Of me\nat least")


def test_a_model_that_cannot_be_copied_is_left_alone() -> None:
    model = Unique()
    repaired = repair(model, X, smooth=5.0)
    assert repaired.model is model
    (found,) = repaired.left
    assert found.problem == "Copying raises RuntimeError: there is only one."


# --- how much is looked at ---


def test_few_examples_are_looked_at() -> None:
    rows = []

    def counted(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x

    validate(behind(counted)(), numbers(1000, 6))
    assert max(rows) == PROBES
    assert len(rows) < 60


# --- refusals ---


def test_settings_without_a_meaning_are_refused() -> None:
    assert "choose another k" in refusal(lambda: validate(tiny_mlp(), X, k=6))
    assert "choose another k" in refusal(lambda: repair(tiny_mlp(), X, k=0))
    for smooth in (0.0, -1.0, torch.inf, torch.nan):
        assert "positive sharpness" in refusal(lambda s=smooth: repair(tiny_mlp(), X, smooth=s))
    with pytest.raises(TypeError, match=r"nn\.Module.*got function and Tensor"):
        validate(predicted, X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got Sequential and list"):
        repair(tiny_mlp(), [[1.0]])  # type: ignore[arg-type]


def test_a_finding_is_a_record() -> None:
    (found,) = validate(single(), X)
    assert isinstance(found, Finding)
    assert found == validate(single(), X)[0]
    with pytest.raises(AttributeError):
        found.kind = "another"  # type: ignore[misc]
