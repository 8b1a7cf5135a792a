"""A model made ready for an audit: examined, repaired, in float64, recorded for certificates."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from r2et.auditing.evidence import Subject
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Columns
from r2et.certification.certificate import certify
from r2et.certification.replay import RecordedModel, record
from r2et.core.autograd import eval_mode
from r2et.core.exact import exact_copy
from r2et.core.naming import briefly
from r2et.core.ranking import check_k
from r2et.core.rng import stream
from r2et.explainers import check_inputs
from r2et.models.smoothing import softened
from r2et.perturbations import PERTURBATIONS
from r2et.preflight.kinds import Finding
from r2et.preflight.validation import examined, refuse_incurable

PROBED = 64  # rows by which a model is examined before the audit


def subject(
    name: str,
    model: nn.Module,
    x: Tensor,
    columns: Columns,
    settings: AuditSettings,
    classes: tuple[str, ...] | None,
) -> Subject:
    """The model made ready for an audit on rows like x, refused if it cannot be explained."""
    check_k(settings.k, len(columns.features))
    x = x[:PROBED].double()
    digest = model_digest(model)
    looked_at = x if columns.tabular else _moved(x, columns, settings)
    ready = made_ready(name, model, x, settings.k, looked_at)
    exact, x = ready.model, x.to(ready.device)
    with torch.no_grad():
        count = exact(x[:1]).shape[1]
    if classes is not None and len(classes) != count:
        raise ValueError(
            f"the model {name} answers for {count} classes, but {len(classes)} are known "
            f"({', '.join(classes)}): name them all by classes, in the order of its outputs."
        )
    recorded, uncertified = _recorded(ready, x, columns, settings)
    return Subject(
        name=name,
        model=exact,
        digest=digest,
        classes=classes or tuple(map(str, range(count))),
        findings=ready.findings,
        recorded=recorded,
        uncertified=uncertified,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Ready:
    """A model as it is explained, where it computes, and what was found and cured before.

    `deployed` is the same model in the precision it is used in.
    """

    model: nn.Module
    deployed: nn.Module
    device: torch.device
    findings: tuple[Finding, ...]


def made_ready(
    name: str, model: nn.Module, x: Tensor, k: int, looked_at: Tensor | None = None
) -> Ready:
    """The model as it is explained on rows like x, examined by `looked_at`, x itself unless given.

    Refused if it cannot be explained.
    """
    _check_width(name, model, x)
    model, stripped = _without_softmax(model)
    own = as_taken_by(model, x if looked_at is None else looked_at)
    repaired, found = examined(model, own, k=k)
    findings = [each for each in found if _matters(each, model)]
    refuse_incurable(findings, f"the model {name}")
    model = repaired if any(each.repairable for each in findings) else model
    return Ready(
        model=_exact(name, model, x.to(own.device)),
        deployed=model,
        device=own.device,
        findings=(*stripped, *findings),
    )


def plain_network(name: str, model: nn.Module, x: Tensor) -> Ready:
    """The model as it answers for rows like x, in float64, where only its answers are asked for.

    Refused if a row is answered otherwise alone than in company, or otherwise a second time.
    """
    x = x[:PROBED].double()
    _check_width(name, model, x)
    model, stripped = _without_softmax(model)
    own = as_taken_by(model, x)
    exact = _exact(name, model, x.to(own.device))
    x = x.to(own.device)
    with torch.no_grad():
        together, again = exact(x), exact(x)
        alone = torch.cat([exact(row[None]) for row in x])
    if not together.isfinite().all():
        row = int((~together.isfinite()).any(-1).nonzero()[0])
        raise ValueError(
            f"the model {name} returned NaN or infinite logits for row {row}: check its weights, "
            "and how inputs are scaled."
        )
    slack = 1e-6 * (1 + together.abs().amax())
    for other, how in ((again, "a second time"), (alone, "alone than in company")):
        if not ((together - other).abs() <= slack).all():
            raise ValueError(
                f"the model {name} answers otherwise {how}, so that no reason of it is settled: "
                "take random parts and mixtures of rows out of it, such as dropout or batch "
                "statistics."
            )
    return Ready(model=exact, deployed=model, device=own.device, findings=tuple(stripped))


def _moved(x: Tensor, columns: Columns, settings: AuditSettings) -> Tensor:
    """Neighbours of pictures: on a ground all of one shade, every pooling layer has a kink."""
    kind = PERTURBATIONS[settings.norm]
    region = kind(radius=settings.tolerance, scale=columns.reach, bounds=columns.bounds)
    moves = region.offsets(x[0], len(x), stream(settings.seed, "preflight"))
    return region.project(x + moves, x)


def _matters(finding: Finding, model: nn.Module) -> bool:
    """Whether a finding says something about an audit, whose attack follows smooth copies."""
    return finding.kind != "no curvature" or softened(model, 1.0) is None


def as_taken_by(model: nn.Module, x: Tensor) -> Tensor:
    """The inputs in the type and on the device of the model's weights."""
    weights = [*model.parameters(), *model.buffers()]
    return next((x.to(each) for each in weights if each.is_floating_point()), x)


def _check_width(name: str, model: nn.Module, x: Tensor) -> None:
    """Refuse a model whose first layer takes another number of inputs."""
    first = next((part for part in model.modules() if isinstance(part, nn.Linear)), None)
    wanted, given = None if first is None else first.in_features, x.shape[1]
    try:
        with torch.no_grad(), eval_mode(model):
            model(as_taken_by(model, x[:1]))
    except Exception as problem:  # whatever the user's own model raises
        expected = "" if wanted in (None, given) else f"expected {wanted} inputs, got {given}; "
        raise ValueError(
            f"the model {name} fails on a row of {given} inputs: {expected}{briefly(problem)}; "
            "check which columns the table has and how they are encoded."
        ) from problem


def _without_softmax(model: nn.Module) -> tuple[nn.Module, list[Finding]]:
    """The model without a softmax at its end, whose slopes a certificate could not follow."""
    if type(model) is not nn.Sequential or not len(model):
        return model, []
    if not isinstance(model[-1], nn.Softmax | nn.LogSoftmax):
        return model, []
    done = Finding(
        kind="probabilities",
        where=str(len(model) - 1),
        problem=f"The model ends with a {type(model[-1]).__name__}.",
        effect="It returns probabilities instead of logits.",
        cure="The logits before it were audited, which have the same probabilities.",
        severity="error",
        repairable=True,
    )
    return model[:-1], [done]


def _exact(name: str, model: nn.Module, x: Tensor) -> nn.Module:
    """A copy in float64 and at prediction time."""
    try:
        exact = exact_copy(model)
        check_inputs(exact, x)
    except ValueError:
        raise
    except Exception as problem:  # whatever the user's own model raises
        raise ValueError(
            f"the model {name} cannot compute in float64, as an audit does ({briefly(problem)}): "
            "take casts to other types out of it."
        ) from problem
    return exact


def _recorded(
    ready: Ready, x: Tensor, columns: Columns, settings: AuditSettings
) -> tuple[RecordedModel | None, str | None]:
    """What a model runs at rows like x; or None, and why no certificate is known for it."""
    if columns.counts:
        return None, (
            "certificates are about every number of an input by itself, and here several make one "
            "feature (the channels of a pixel), or some are not explained (another item)."
        )
    try:
        recorded = record(ready.deployed, as_taken_by(ready.deployed, x), ready.model)
        certify(
            recorded,
            x[:2],
            k=settings.k,
            of=settings.explained,
            perturbation=PERTURBATIONS[settings.norm](scale=columns.reach.to(x.device)),
            epsilons=(settings.tolerance,),
            radii=False,
        )
    except ValueError as problem:
        return None, str(problem)
    except Exception as problem:  # something in a model that nobody thought of
        return None, briefly(problem)
    return recorded, None


def model_digest(model: nn.Module) -> str:
    """Twelve hexadecimal digits that change with any layer or weight."""
    found = hashlib.sha256(repr(model).encode("utf-8", "replace"))
    if (code := getattr(model, "code", None)) is not None:
        found.update(str(code).encode())  # of a graph, which its repr does not show
    for name, value in sorted(model.state_dict().items()):
        found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        found.update(value.detach().double().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]
