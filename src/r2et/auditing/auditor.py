"""What is found out about each decision of a model: what is proved, and what an attack breaks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from r2et.attacks.pgd import flippable
from r2et.attacks.radius import PAIRS, WALK
from r2et.attacks.registry import attack_curve
from r2et.auditing.models import model_digest
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Columns
from r2et.certification.certificate import Certificate, certify
from r2et.certification.replay import RecordedModel, record
from r2et.core.autograd import eval_mode
from r2et.core.exact import exact_copy
from r2et.core.naming import briefly
from r2et.core.one_hot import project_one_hot
from r2et.core.ranking import check_k, order, precision_at_k, ties, top_k_mask
from r2et.core.rng import stream
from r2et.explainers import (
    Explainer,
    Gradient,
    check_inputs,
    input_gradient,
    log_odds,
    predicted,
    shaped,
)
from r2et.metrics.exchanges import exchange_agreement
from r2et.metrics.faithfulness import comp, dffot, shares_of, suff
from r2et.metrics.sensitivity import off_data_share
from r2et.metrics.thickness import thickness
from r2et.models.smoothing import softened
from r2et.perturbations import PERTURBATIONS
from r2et.preflight.kinds import Finding
from r2et.preflight.validation import repair, validate

MANY = 20_000  # rows beyond which radii are not sought unless asked for
PROBED = 64  # rows by which a model is examined before the audit
BEYOND = (0.0, 1e-9, 1e-6, 1e-4)  # of the way to a broken input, where it is tried again
MARGIN = 1e-10  # of a score by which a new reason must lead, more than any rounding
INSIDE = 1 - 1e-7  # of a proved radius: nearer to its border, rounding has a say
DRAWN_AT_ONCE = 2**18  # numbers of pictures and networks in one search, whose layers are large
LEAST_TOGETHER = 16  # of them that are explained at once
AROUND = 8  # neighbours, and points on the way to each, of which thickness is the mean


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model as it is audited: repaired where it had to be, in float64, at prediction time."""

    name: str
    model: nn.Module
    digest: str
    classes: tuple[str, ...]
    findings: tuple[tuple[Finding, bool], ...]
    """What was found before the audit, and whether it was repaired."""
    recorded: RecordedModel | None
    """What it runs, as it is deployed and in float64, None if no certificate can be given."""
    uncertified: str | None
    """Why none can."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained:
    """Inputs with their classes, log-odds of all classes (B, C), and signed slopes (B, n)."""

    x: Tensor
    y: Tensor
    log_odds: Tensor
    slopes: Tensor
    ranked: Tensor

    @property
    def probability(self) -> Tensor:
        """Of the class that is explained: (B,)."""
        return torch.sigmoid(self.log_odds.gather(1, self.y[:, None]).squeeze(1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What was found out about B decisions, for each of E lengths where it depends on them."""

    clean: Explained
    tie: Tensor
    certified: Tensor
    """Radius within which the reasons are proved to stay, infinity if everywhere: (B,)."""
    order: Tensor
    """The same for their order, NaN where it was not sought: (B,)."""
    certified_precision: Tensor
    """(B, E)."""
    weakest: Tensor
    """The shown feature and the one that may replace it: (B, 2)."""
    broken: Tensor
    """Length of the shortest change found that replaces a reason, infinity if none was: (B,)."""
    attacked_precision: Tensor | None
    """(B, E), None without an attack."""
    broken_by: Explained
    """The inputs of those changes, the clean ones where there is none."""
    worst: Explained
    """The most damaging inputs found within the tolerance, where decisions are drawn."""
    measures: dict[str, Tensor]
    """By the fields of `Decision`; the costly ones of the first rows of the audit only."""


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
    looked_at = x if columns.look is None else _moved(x, columns, settings)
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
    findings: tuple[tuple[Finding, bool], ...]


def made_ready(
    name: str, model: nn.Module, x: Tensor, k: int, looked_at: Tensor | None = None
) -> Ready:
    """The model as it is explained on rows like x, examined by `looked_at`, x itself unless given.

    Refused if it cannot be explained.
    """
    _check_width(name, model, x)
    model, stripped = _without_softmax(model)
    own = _as_taken_by(model, x if looked_at is None else looked_at)
    findings = [each for each in validate(model, own, k=k) if _matters(each, model)]
    serious = [each for each in findings if each.severity == "error" and not each.repairable]
    if serious:
        raise ValueError(
            f"the model {name} cannot be explained ({serious[0].kind}): {serious[0].problem} "
            f"{serious[0].cure}"
        )
    cured = any(each.repairable for each in findings)
    model = repair(model, own).model if cured else model
    return Ready(
        model=_exact(name, model, x.to(own.device)),
        deployed=model,
        device=own.device,
        findings=(*stripped, *((each, each.repairable) for each in findings)),
    )


def _moved(x: Tensor, columns: Columns, settings: AuditSettings) -> Tensor:
    """Neighbours of pictures: on a ground all of one shade, every pooling layer has a kink."""
    kind = PERTURBATIONS[settings.norm]
    region = kind(radius=settings.tolerance, scale=columns.reach, bounds=columns.bounds)
    moves = region.offsets(x[0], len(x), stream(settings.seed, "preflight"))
    return region.project(x + moves, x)


def _matters(finding: Finding, model: nn.Module) -> bool:
    """Whether a finding says something about an audit, whose attack follows smooth copies."""
    return finding.kind != "no curvature" or softened(model, 1.0) is None


def _as_taken_by(model: nn.Module, x: Tensor) -> Tensor:
    """The inputs in the type and on the device of the model's weights."""
    weights = [*model.parameters(), *model.buffers()]
    return next((x.to(each) for each in weights if each.is_floating_point()), x)


def _check_width(name: str, model: nn.Module, x: Tensor) -> None:
    """Refuse a model whose first layer takes another number of inputs."""
    first = next((part for part in model.modules() if isinstance(part, nn.Linear)), None)
    wanted, given = None if first is None else first.in_features, x.shape[1]
    try:
        with torch.no_grad(), eval_mode(model):
            model(_as_taken_by(model, x[:1]))
    except Exception as problem:  # whatever the user's own model raises
        expected = "" if wanted in (None, given) else f"expected {wanted} inputs, got {given}; "
        raise ValueError(
            f"the model {name} fails on a row of {given} inputs: {expected}{briefly(problem)}; "
            "check which columns the table has and how they are encoded."
        ) from problem


def _without_softmax(model: nn.Module) -> tuple[nn.Module, list[tuple[Finding, bool]]]:
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
    return model[:-1], [(done, True)]


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
        recorded = record(ready.deployed, _as_taken_by(ready.deployed, x))
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


class Auditor:
    """Finds out about the decisions of one model, some rows at a time."""

    def __init__(self, subject: Subject, columns: Columns, settings: AuditSettings) -> None:
        self.subject, self.columns, self.settings = subject, columns, settings
        self.one_hot = columns.one_hot if settings.project_one_hot else None
        weights = subject.model.parameters()
        self.device = next((each.device for each in weights), torch.device("cpu"))
        self.reach = columns.reach.to(self.device)
        self.region = PERTURBATIONS[settings.norm](scale=self.reach, bounds=columns.bounds)

    def evidence(self, x: Tensor, measured: int) -> Evidence:
        """What there is to know about the decisions on x; costly measures of the first rows."""
        settings, model, x = self.settings, self.subject.model, x.to(self.device)
        clean = self.explained(x, predicted(model, x))
        certified, order_radius, kept, weakest = self._certified(clean)
        broken, attacked, by, worst = self._attacked(clean, certified)
        # On the very border of a proof rounding has a say, and a change that was seen says more.
        # Further inside, the proof would be a fault: `r2et.auditing.checking` stops there.
        at_border = (broken < certified) & (broken >= INSIDE * certified)
        certified = torch.where(at_border, INSIDE * broken, certified)
        order_radius = torch.where(at_border, order_radius.clamp(max=certified), order_radius)
        if attacked is not None:
            kept = torch.where(at_border[:, None], torch.minimum(kept, attacked), kept)
        return Evidence(
            clean=clean,
            tie=ties(clean.slopes.abs(), settings.k),
            certified=certified,
            order=order_radius,
            certified_precision=kept,
            weakest=weakest,
            broken=broken,
            attacked_precision=attacked,
            broken_by=by,
            worst=worst,
            measures=self._off_data_share(clean) | self._measures(clean, measured),
        )

    def explained(self, x: Tensor, y: Tensor) -> Explained:
        """The inputs with what is to be said about them."""
        model = self.subject.model
        with torch.no_grad():
            logits = model(x)
            slopes = project_one_hot(
                input_gradient(model, x, y, self.settings.explained), self.one_hot
            )
            slopes = self._by_feature(slopes)
        odds = [log_odds(logits, torch.full_like(y, each)) for each in range(logits.shape[1])]
        return Explained(
            x=x, y=y, log_odds=torch.stack(odds, 1), slopes=slopes, ranked=order(slopes.abs())
        )

    def _by_feature(self, slopes: Tensor) -> Tensor:
        """Slopes of features: the sum of sizes over all inputs of one, with the sign of the sum."""
        counts = self.columns.counts
        if not counts:
            return slopes
        size, side = shaped(slopes, "absolute", counts), shaped(slopes, "signed", counts)
        return torch.where(side < 0, -size, size)

    @property
    def explain(self) -> Explainer:
        """How decisions are explained while they are attacked."""
        explain = Gradient(of=self.settings.explained, one_hot=self.one_hot)
        if self.columns.look is None:
            return explain
        together = max(LEAST_TOGETHER, 2 * DRAWN_AT_ONCE // len(self.reach))
        return replace(explain, groups=self.columns.counts or None, rows_at_once=together)

    @property
    def rows_at_once(self) -> int | None:
        """How many pictures or networks one search takes at once; None: what an attack takes."""
        if self.columns.look is None:
            return None
        return max(1, DRAWN_AT_ONCE // (max(self.settings.effort.starts, 1) * len(self.reach)))

    def _certified(self, clean: Explained) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Radius, that of the order, precision at each length and weakest pair, all proved."""
        settings, k = self.settings, self.settings.k
        radius = torch.zeros_like(clean.slopes[:, 0])
        order_radius = torch.full_like(radius, torch.nan)
        weakest = clean.ranked[:, [k - 1, k]]
        kept = radius.new_zeros(len(radius), len(settings.epsilons))
        recorded = self.subject.recorded
        if recorded is None:
            return radius, order_radius, kept, weakest

        def proved(rows: Tensor, epsilons: Sequence[float], radii: bool) -> Certificate:
            return certify(
                recorded,
                clean.x[rows],
                clean.y[rows],
                k=k,
                of=settings.explained,
                one_hot=self.one_hot,
                perturbation=self.region,
                epsilons=epsilons,
                radii=radii,
            )

        everyone = torch.arange(len(radius), device=radius.device)
        if settings.radii == "all":
            found = proved(everyone, (), True)
            radius, order_radius, weakest = found.radius, found.order_radius, found.weakest
        kept = self._precisions(radius, lambda rows, length: proved(rows, (length,), False))
        for at, length in enumerate(settings.epsilons):
            radius = torch.where(kept[:, at] == 1, radius.clamp_min(length), radius)
        return radius, order_radius, kept, weakest

    def _precisions(self, radius: Tensor, proved: Callable[[Tensor, float], Certificate]) -> Tensor:
        """The share of the reasons proved to stay at each length, given a radius: (B, E).

        What stays within a length stays within any shorter one. So the tolerance is looked at
        first, and other lengths only for the decisions it leaves open.
        """
        lengths = self.settings.epsilons
        first = lengths.index(self.settings.tolerance)
        unknown = radius.new_full((len(radius), len(lengths)), torch.nan)
        kept = unknown.masked_fill(radius[:, None] >= radius.new_tensor(lengths), 1.0)
        for at in (first, *range(first - 1, -1, -1), *range(first + 1, len(lengths))):
            if at > first:  # nothing is left to prove where a shorter length left nothing
                kept[:, at] = torch.where(kept[:, at - 1] == 0, 0.0, kept[:, at])
            if at < first:
                kept[:, at] = torch.where(kept[:, at + 1] == 1, 1.0, kept[:, at])
            open_rows = kept[:, at].isnan().nonzero().squeeze(1)
            if len(open_rows):
                kept[open_rows, at] = proved(open_rows, lengths[at]).precision[:, 0]
        return kept.flip(1).cummax(1).values.flip(1)

    def _attacked(
        self, clean: Explained, certified: Tensor
    ) -> tuple[Tensor, Tensor | None, Explained, Explained]:
        """The shortest change found that breaks each decision, and what each length leaves.

        With the inputs of these changes, and the most damaging ones within the tolerance.
        """
        settings = self.settings
        broken = torch.full_like(certified, torch.inf)
        if settings.attack == "none":
            return broken, None, clean, clean
        left = certified.new_ones(len(certified), len(settings.epsilons))
        # Where the longest change is proved to do nothing, there is nothing to look for.
        rows = (certified < settings.epsilons[-1]).nonzero().squeeze(1)
        if not len(rows):
            return broken, left, clean, clean
        # Of many features single pairs are too few, and walks along the border too long.
        plain = self.columns.look is None
        curve = attack_curve(
            self.subject.model,
            clean.x[rows],
            clean.y[rows],
            k=settings.k,
            radii=settings.epsilons,
            explainer=self.explain,
            perturbation=self.region,
            budget=settings.effort,
            pairs=PAIRS if plain else 0,
            walk=WALK if plain else 0,
            seed=settings.seed,
            rows_at_once=self.rows_at_once,
        )
        broken[rows], nearest = self._confirmed(clean, rows, [curve.nearest, *curve.x])
        left[rows] = curve.precision.T
        by = self.explained(clean.x.index_copy(0, rows, nearest), clean.y)
        # One and the same input speaks for a broken decision everywhere.
        kept = precision_at_k(clean.slopes.abs(), by.slopes.abs(), settings.k)
        within = broken[:, None] <= broken.new_tensor(settings.epsilons)
        left = torch.where(within, torch.minimum(left, kept[:, None]), 1.0)
        if plain:
            return broken, left, by, by
        at = curve.x[settings.epsilons.index(settings.tolerance)]
        worst = self.explained(clean.x.index_copy(0, rows, at), clean.y)
        return broken, left, by, worst

    def _confirmed(
        self, clean: Explained, rows: Tensor, found: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What `nearest_break` finds up to the longest length; beyond it nobody searched."""
        shortest, nearest = self.nearest_break(clean, rows, found)
        beyond = shortest > self.settings.epsilons[-1]
        unchanged = clean.x[rows]
        nearest = torch.where(beyond[:, None], unchanged, nearest)
        return shortest.masked_fill(beyond, torch.inf), nearest

    def nearest_break(
        self, clean: Explained, rows: Tensor, found: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Of inputs found for some rows, the nearest that surely breaks each: (b,), (b, d).

        An input on the very border breaks or not as the company in its batch has it rounded. So
        each is tried again, and a little further out, and must replace a reason by a margin.
        """
        x, y, k = clean.x[rows], clean.y[rows], self.settings.k
        shown = top_k_mask(clean.slopes[rows].abs(), k)
        shortest, nearest = torch.full_like(x[:, 0], torch.inf), x.clone()
        for place in found:
            for further in BEYOND:
                at = self.region.confine(x + (1 + further) * (place - x), x)
                seen = self.explained(at, y)
                ranked = seen.slopes.abs().gather(1, seen.ranked)
                sure = ranked[:, k - 1] - ranked[:, k] > MARGIN * ranked[:, k - 1]
                gone = (shown & ~top_k_mask(seen.slopes.abs(), k)).any(-1)
                cost = self.region.cost(at, x)
                better = sure & gone & (predicted(self.subject.model, at) == y) & (cost < shortest)
                shortest = torch.where(better, cost, shortest)
                nearest = torch.where(better[:, None], at, nearest)
        return shortest, nearest

    def _off_data_share(self, clean: Explained) -> dict[str, Tensor]:
        if not self.columns.one_hot:
            return {}
        with torch.no_grad():
            margins = input_gradient(self.subject.model, clean.x, clean.y, "margin")
        return {"off_data_share": off_data_share(margins, self.columns.one_hot)}

    def _measures(self, clean: Explained, count: int) -> dict[str, Tensor]:
        """Measures of the first rows that would take too long for all of them: (count,) each."""
        if not count:
            return {}
        settings, model = self.settings, self.subject.model
        x, y, saliency = clean.x[:count], clean.y[:count], clean.slopes[:count].abs()
        region = self.region.at(settings.tolerance)
        moves = region.offsets(x[0], AROUND, stream(settings.seed, "thickness"))
        thick = thickness(
            model,
            x,
            y,
            torch.stack([region.confine(x + move, x) for move in moves]),
            explain=self.explain,
            k=settings.k,
            variant="probability",
            points=AROUND,
        )
        faithful = {
            name: measure(
                model,
                x,
                y,
                saliency,
                baseline=self.columns.baseline.to(x),
                sizes=None if self.columns.look is None else shares_of(saliency.shape[1]),
                groups=self.columns.counts or None,
            )
            for name, measure in (("dffot", dffot), ("comp", comp), ("suff", suff))
        }
        return {
            "thickness": thick.value,
            **faithful,
            "flippable": flippable(model, x, y, perturbation=region).double(),
            **self._exchanges(x, y),
        }

    def _exchanges(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """What slopes say about exchanges of categories, those that are held fixed included."""
        groups = self.columns.exchangeable
        if not groups:
            return {}
        off, on = (self.columns.scale.apply(torch.full_like(x[0], value)) for value in (0.0, 1.0))
        found = exchange_agreement(self.subject.model, x, y, groups, off=off, on=on)
        return {"exchange_agreement": found.order, "exchange_size": found.size}
