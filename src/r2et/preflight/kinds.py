"""What in a model breaks or falsifies explanations, kind by kind, and the cure of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from r2et.explainers import two_logits

Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing in a model that breaks or falsifies explanations, each field in one sentence.

    An "error" stops explanations or their derivatives, or makes them wrong; a "warning" limits
    what they can be used for. `repairable`: `repair` follows the `cure` by itself.
    """

    kind: str
    where: str
    problem: str
    effect: str
    cure: str
    severity: Severity
    repairable: bool

    @property
    def incurable(self) -> bool:
        """Whether it is an error that `repair` cannot cure."""
        return self.severity == "error" and not self.repairable


def in_words(finding: Finding) -> str:
    """What was found, where, and what follows from it: two or three sentences."""
    where = "" if finding.where == "outputs" else f" ({finding.where})"
    return f"{finding.kind}{where}: {finding.problem} {finding.effect}"


class Wrapped(nn.Module):
    """A model between two functions: after(model(before(x)))."""

    def __init__(
        self,
        model: nn.Module,
        *,
        before: Callable[[Tensor], Tensor] | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: Tensor) -> Tensor:
        """What comes out: like the model's answer, or as `after` makes it."""
        answer: Tensor = self.model(x if self.before is None else self.before(x))
        return answer if self.after is None else self.after(answer)


def log_probabilities(p: Tensor) -> Tensor:
    """Logits log p of all classes, or of the two of which p, (B,) or (B, 1), is the second: (B, C).

    Their softmax is p. A single p that rounds to 1 has no log-odds left, and no slope.
    """
    if p.ndim < 2 or p.shape[1] == 1:
        p = _of_both(p)
    p = p.clamp_min(torch.finfo(p.dtype).tiny)
    # The same value and slopes as log p, without a 1 / p^2 that overflows in the second.
    return (p / p.detach()).log() + p.detach().log()


def _of_both(p: Tensor) -> Tensor:
    """Both probabilities, where p is that of the second of two classes: (B, 2)."""
    return torch.stack([1 - p.reshape(-1), p.reshape(-1)], dim=-1)


def _with_log_odds(model: nn.Module, x: Tensor) -> nn.Module:
    hooked = any(part._forward_hooks for part in model.modules())
    if type(model) is nn.Sequential and type(model[-1]) is nn.Sigmoid and not hooked:
        model[-1] = nn.Identity()  # before the sigmoid nothing was rounded to 1
        return Wrapped(model, after=two_logits)
    return Wrapped(model, after=log_probabilities)


def writes(part: nn.Module) -> bool:
    """Whether a layer writes its results over its inputs."""
    script = isinstance(part, torch.jit.ScriptModule)
    return not script and getattr(part, "inplace", False) is True


def _out_of_place(model: nn.Module, x: Tensor) -> nn.Module:
    part: Any
    for part in filter(writes, model.modules()):
        part.inplace = False
    return model


def _uncompiled(model: nn.Module, x: Tensor) -> nn.Module:
    while "_orig_mod" in model._modules:
        model = model.get_submodule("_orig_mod")
    for part in list(model.modules()):
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None
        for name, child in list(part._modules.items()):
            if child is not None and "_orig_mod" in child._modules:
                part._modules[name] = _uncompiled(child, x)
    return model


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a kind of finding does to explanations, what to do, and how `repair` does it.

    `probabilities` of all classes are read off outputs that a repair turns into logits.
    """

    effect: str
    cure: str
    severity: Severity = "error"
    repair: Callable[[nn.Module, Tensor], nn.Module] | None = None
    probabilities: Callable[[Tensor], Tensor] | None = None


KINDS: dict[str, Kind] = {
    "model raises": Kind(
        effect="Nothing can be explained, or judged further.",
        cure="Make it work on this x, on one row of it, and on a deep copy of the model.",
    ),
    "unfit inputs": Kind(
        effect="A score has no gradient by such inputs.",
        cure="Give one row of real numbers for each example; of tokens, explain the embeddings.",
    ),
    "inference input": Kind(
        effect="Torch refuses to differentiate by it.",
        cure="Pass x.clone(), made outside of inference mode.",
    ),
    "inference weights": Kind(
        effect="Torch refuses to differentiate what they compute.",
        cure="Put clones, made outside of inference mode, in their place.",
        repair=lambda model, x: model,  # every copy is made of such clones
    ),
    "compiled": Kind(
        effect="Compiled code has no second derivative: training and attacking explanations "
        "raises.",
        cure="Use the module that was compiled, `_orig_mod`.",
        repair=_uncompiled,
    ),
    "scripted": Kind(
        effect="Its layers can be neither read nor exchanged, and what tracing fixed stays so.",
        cure="Use the module that was scripted or traced.",
        severity="warning",
    ),
    "in-place activation": Kind(
        effect="Differentiating raises where a derivative needs what they overwrite.",
        cure="Set inplace=False.",
        repair=_out_of_place,
    ),
    "recurrent on CUDA": Kind(
        effect="cuDNN has no second derivatives: training and attacking explanations raises.",
        cure="Call everything inside torch.backends.cudnn.flags(enabled=False).",
        severity="warning",
    ),
    "half precision": Kind(
        effect="Two or three digits are left of a saliency: features tie, and small steps of an "
        "attack are rounded away.",
        cure="Explain in float32 or float64, the model and x alike.",
        severity="warning",
    ),
    "narrow weights": Kind(
        effect="The model cannot be called.",
        cure="Convert the weights to the dtype of x, which loses no digit.",
        repair=lambda model, x: model.to(x.dtype),
    ),
    "mismatch": Kind(
        effect="The model cannot be called.",
        cure="Bring the model and x to one device and one dtype, a real one, the wider of the two.",
    ),
    "overwritten input": Kind(
        effect="Differentiating by x raises, and without it the caller's data change.",
        cure="Give the model a clone of x.",
        repair=lambda model, x: Wrapped(model, before=torch.clone),
    ),
    "wrong outputs": Kind(
        effect="There is no class whose score could be explained.",
        cure="Wrap the model in an nn.Module that returns nothing but its logits, (B, C), C >= 2.",
    ),
    "single output": Kind(
        effect="It is read as the log-odds of the second of two classes.",
        cure="Return two logits, [-z / 2, z / 2], if other programs are to read it so.",
        severity="warning",
        repair=lambda model, x: Wrapped(model, after=two_logits),
        probabilities=lambda z: two_logits(z).softmax(-1),
    ),
    "single probability": Kind(
        effect="Read as log-odds, as a single output is, it would never predict class 0.",
        cure="Return the log-odds from before the sigmoid, or [log(1 - p), log p].",
        repair=_with_log_odds,
        probabilities=_of_both,
    ),
    "not finite": Kind(
        effect="Explanations would not be finite either, or mean nothing.",
        cure="Check weights and the scale of x, mask classes by large numbers instead of inf, and "
        "keep roots, norms and logarithms away from zero.",
    ),
    "training mode": Kind(
        effect="Batch statistics mix the examples of a batch and dropout draws at random, so that "
        "a gradient explains nobody; explainers of this package switch to prediction mode.",
        cure="Call model.eval().",
        severity="warning",
        repair=lambda model, x: model.eval(),
    ),
    "random outputs": Kind(
        effect="So do two explanations, without any attack.",
        cure="Draw only in training mode, as in F.dropout(x, p, self.training).",
    ),
    "fixed noise": Kind(
        effect="Explanations are those of an average over noise, steadier than those of the "
        "network inside it: the noise, which is known, is what keeps them still.",
        cure="Explain the network without the noise, or call stable what is deployed: the average.",
        severity="warning",
    ),
    "mixed examples": Kind(
        effect="A gradient explains the batch, and changes with the company an example is in.",
        cure="Normalise by fixed statistics (track_running_stats=True), and fix no batch size.",
    ),
    "no gradient": Kind(
        effect="Every score of every explanation would be zero.",
        cure="Return what came before the argmax, round, detach, no_grad or numpy that cut it off, "
        "or scale x if units saturate.",
    ),
    "in-place operation": Kind(
        effect="A value that the derivative needs was overwritten.",
        cure="Write out of place what ends in _ (relu_, add_), +=, and assignments to parts.",
    ),
    "not differentiable": Kind(
        effect="Explanations cannot be computed, or cannot be trained and attacked.",
        cure="Replace that operation by one that torch differentiates twice.",
    ),
    "false gradient": Kind(
        effect="Explanations, or attacks and training on them, miss a part of what the model does.",
        cure="Find the part that is hidden: by detach, by no_grad, by rounding with a borrowed "
        "gradient, by a backward of one's own, by jumps.",
    ),
    "no curvature": Kind(
        effect="The derivative of a logit's explanation is exactly zero: attacks by gradients on "
        "it and exact curvature penalties do nothing, and of a probability of two classes they "
        "reach the scale but not the ranking.",
        cure="Use repair(model, x, smooth=rho), which rounds layers of nn.ReLU and nn.LeakyReLU; "
        "make other kinks such layers first.",
        severity="warning",
    ),
    "probabilities": Kind(
        effect="Their softmax q, never above e / (e + C - 1), is explained: for C = 2 a gradient "
        "is 2 q (1 - q) times that of p, in the same ranking, but averages over places "
        "(SmoothGrad, Integrated Gradients) and curvature are others, and for C > 2 so is the "
        "ranking, unless the other classes are equally likely.",
        cure="Return logits from before the softmax, or log p, which are logits too.",
        repair=lambda model, x: Wrapped(model, after=log_probabilities),
        probabilities=lambda p: p,
    ),
    "ties": Kind(
        effect="Features are then shown by their numbers, not by what the model does.",
        cure="Use float64 or scale x if units saturate; leave out what the model ignores.",
        severity="warning",
    ),
}


def finding(
    kind: str, problem: str, where: str = "outputs", severity: Severity | None = None
) -> Finding:
    """A finding of a kind: what the problem is, and where."""
    known = KINDS[kind]
    return Finding(
        kind=kind,
        where=where,
        problem=problem,
        effect=known.effect,
        cure=known.cure,
        severity=severity or known.severity,
        repairable=known.repair is not None,
    )
