"""Proofs about contributions of attributes: which reasons no move within a box can change.

The gap of two contributions is a weighted sum of scores of mixtures. Bounds of these move along the
same symbols, so that the gap is one more form of them, in which what is common cancels before
anything is made larger. A box in which that does not suffice is split in two, again and again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor, nn

from r2et.certification.affine import TINY
from r2et.certification.mixtures import AT_ONCE, Asked, Mixtures, ScoreTask, mixtures
from r2et.certification.replay import (
    EQUAL,
    POINTS,
    RecordedModel,
    check_call,
    check_kept,
    record,
    replay,
)
from r2et.core.autograd import eval_mode
from r2et.core.ranking import check_k, order
from r2et.explainers import Quantity, Shapley, class_logits, shaped
from r2et.perturbations import Box

Ranges = tuple[Tensor, Tensor]
"""The least and the greatest value of each column of each example: (B, d) each."""
EXAMPLES_AT_ONCE, MIXTURES_AT_ONCE = 16, 2**19
OF: dict[Quantity, str] = {
    "margin": "several classes",
    "logit": "several classes",
    "probability": "two classes",
    "loss": "two classes",
}
"""What contributions can be bounded of, and of how many classes."""
LOOKED_AT = 16
"""Places inside of what is kept at which the model itself is asked once more."""
CLOSE = 1e-6
"""Of log-odds, within which a decision may be another where a model is used in lower precision."""
CLEAR = 1e-12
"""By how much of the largest contribution two must differ at a point to be told apart."""
WHOLE = 1e-6
"""By how much of a unit a range may miss a whole number that was meant."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ContributionCertificate:
    """What no move within the box of each decision can do to its reasons, while it is kept.

    `top` (B, k) are the reasons, the first of all first. `kept` (B,): no other set of reasons is
    possible. `core` (B, k): this reason stays, whatever becomes of the others. `precision` (B,) is
    the share of reasons that stay in every single move at least. `broken` (B,): an admissible move
    was found that gives other reasons; `breaking` (B, d) is where it leads, NaN where there is
    none. What is neither kept nor broken is undetermined. `boxes` (B,) counts the parts that each
    box was split into.

    The proof is about the recorded program in the arithmetic of real numbers. `noise` (B,) is by
    how much the gap of two contributions was measured to be off at x, and no closer gap counts.
    """

    top: Tensor
    kept: Tensor
    core: Tensor
    precision: Tensor
    broken: Tensor
    breaking: Tensor
    boxes: Tensor
    noise: Tensor


def certify_contributions(
    model: nn.Module | RecordedModel,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    explainer: Shapley,
    perturbation: Box | Ranges,
    unit: Tensor | None = None,
    threshold: float = 0.0,
    boxes: int = 64,
) -> ContributionCertificate:
    """Which of the top k contributions of each x, (B, d), no move within its box can displace.

    The box is a `Box` with its radius, scale, free columns and bounds, or the least and greatest
    value of each column, (B, d) each. It is continuous, but for the columns that have a `unit`
    (d,) above 0: they move by whole multiples of it. Moves count that keep the decision: the
    class of two whose log-odds are on its side of `threshold` (those of the second class, at
    least), or the largest logit of several. y is the explained class, the decided one unless
    given. Reasons are ranked by the form of the explainer: signed, against or both.

    The model is recorded and compared with its recording first, as by `certify`; `record` does so
    once for several calls. Each box is split into no more than `boxes` parts.
    """
    given = model.given if isinstance(model, RecordedModel) else model
    check_call(given, x.to(model.dtype) if isinstance(model, RecordedModel) else x, y)
    low, high = checked_box(perturbation, x)
    check_choices(explainer, x, unit, threshold, boxes)
    recorded = model if isinstance(model, RecordedModel) else record(model, x)
    with torch.inference_mode(False), torch.no_grad(), eval_mode(given):
        search = BoxSearch.of(recorded, x, y, k, explainer, (low, high), unit, threshold, boxes)
        replay(recorded, search.x)
        parts = [search.certified(part) for part in torch.arange(len(x)).split(search.at_once)]
        names = [each.name for each in fields(ContributionCertificate)]
        found = ContributionCertificate(
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        )
        search.check_inside(found.kept, found.top)
    return found


def never_decided(
    recorded: RecordedModel, low: Tensor, high: Tensor, y: Tensor, threshold: float = 0.0
) -> Tensor:
    """Whether class y is decided nowhere between `low` and `high`, (B, d) each: (B,) booleans.

    What is not known to be so is False. Of two classes the second is decided where its log-odds
    are `threshold` or more, of several the one of the largest logit.
    """
    low, high = low.double(), high.double()
    middle, eps = (low + high) / 2, torch.finfo(torch.float64).eps
    reach = torch.where(high > low, (high - low) / 2 + 8 * eps * (low.abs() + high.abs()), 0.0)
    columns = (reach > 0).any(0).nonzero().squeeze(1)
    with torch.inference_mode(False), torch.no_grad():
        if len(columns):
            task = ScoreTask(program=recorded.program, of="margin", columns=columns)
            _, leads = task.bounds(middle, reach, y, y)
        else:
            logits = class_logits(recorded.program(middle))
            own = logits.gather(1, y[:, None])
            leads = (own - logits).scatter(1, y[:, None], torch.inf).amin(1)
    limit = torch.where(y == 1, threshold, -threshold)
    return leads < limit - CLOSE


def checked_box(perturbation: Box | Ranges, x: Tensor) -> Ranges:
    """The least and greatest value of each column; what is no box around x is refused."""
    here = x.detach().double()
    if isinstance(perturbation, tuple) and len(perturbation) == 2:
        low, high = (torch.as_tensor(each, dtype=torch.float64) for each in perturbation)
    elif type(perturbation) is Box:
        reach = torch.full_like(here[0], perturbation.radius)
        for each in (perturbation.scale, perturbation.free):
            if each is not None and each.shape != here[0].shape:
                raise ValueError(
                    f"scale and free of a box must hold one entry for each of {here.shape[1]} "
                    f"columns, got shape {tuple(each.shape)}."
                )
            reach = reach if each is None else reach * each.double()
        low, high = here - reach, here + reach
        if perturbation.bounds is not None:
            least, most = (torch.as_tensor(b, dtype=torch.float64) for b in perturbation.bounds)
            low = torch.maximum(low, torch.minimum(least, here))
            high = torch.minimum(high, torch.maximum(most, here))
    else:
        raise ValueError(
            "contributions are certified within a Box, or within the least and greatest value of "
            f"each column, a pair of tensors, got {type(perturbation).__name__}."
        )
    if low.shape != here.shape or high.shape != here.shape:
        raise ValueError(
            f"a range must hold one number for each of {tuple(here.shape)} values, got "
            f"{tuple(low.shape)} and {tuple(high.shape)}."
        )
    if not bool(((low <= here) & (here <= high)).all()) or not (high - low).isfinite().all():
        raise ValueError(
            "a box must be finite and hold its x, but some column begins above x, ends below it, "
            "or is NaN: check the ranges."
        )
    return low, high


def check_choices(
    explainer: object, x: Tensor, unit: Tensor | None, threshold: float, boxes: int
) -> None:
    """Refuse what contributions are not certified of."""
    if not isinstance(explainer, Shapley) or x.ndim != 2:
        raise ValueError(
            "contributions are certified of a Shapley explainer and rows (B, d), got "
            f"{type(explainer).__name__} and {tuple(x.shape)}."
        )
    if x.device.type != "cpu":
        raise ValueError(f"contributions are certified on the CPU, got x on {x.device}.")
    if explainer.of not in OF:
        raise ValueError(f"contributions are of {' or '.join(OF)}, got {explainer.of!r}.")
    shaped(x.new_zeros(1, 1), explainer.form, None)
    if unit is not None and not (unit.shape == x.shape[1:] and bool((unit >= 0).all())):
        raise ValueError(
            f"unit must hold a number >= 0 for each of {x.shape[1]} columns, 0 for those that move "
            f"continuously, got shape {tuple(unit.shape)}."
        )
    if not abs(threshold) < torch.inf or boxes < 1:
        raise ValueError(
            f"threshold must be finite and boxes at least 1, got {threshold} and {boxes}."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """One example: its mixtures, the reasons told, and what a move must not change.

    `weights` (U, m) are those of its mixtures, of what reasons are ranked by. The decision is kept
    while the decided class leads every other by `limit`.
    """

    x: Tensor
    y: Tensor
    decided: Tensor
    limit: float
    mixtures: Mixtures
    weights: Tensor
    top: Tensor
    noise: float
    doubt: float


def kept(surely: Tensor) -> tuple[Tensor, Tensor]:
    """Which reasons stay (..., k), and how many at least (...), if some are `surely` above others.

    `surely` (..., k, m) says so of each reason and each attribute.
    """
    k, m = surely.shape[-2:]
    # A reason stays if all but k - 1 others are surely below it. And no more can leave than enter:
    # another may enter unless all reasons are surely above it.
    stays = surely.sum(-1) >= m - k
    shut = surely.all(-2).sum(-1).clamp_max(m - k)
    return stays, torch.maximum(stays.sum(-1), k - (m - k - shut))


@dataclass(eq=False)
class Part:
    """A part of a box, from `low` to `high` (A,) in units of each column, and what is known of it.

    `forms` (2 + A, U) bound the scores of all mixtures; `stale` (U,) are those that are not yet
    computed for this part. `surely` (k, m): this reason is above that attribute everywhere in it.
    `left`: the decision is another one everywhere in it. By `gap` a reason is above another
    attribute at least, of the pairs that are not sure. `column` is where to split it next, and
    `corner` (A,) where it is most likely to fail.
    """

    low: Tensor
    high: Tensor
    forms: Tensor
    stale: Tensor
    surely: Tensor
    left: bool = False
    gap: float = -torch.inf
    column: int = -1
    corner: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def middle(self) -> Tensor:
        """Its middle: (A,)."""
        return (self.low + self.high) / 2

    def kept(self) -> tuple[Tensor, int]:
        """Which reasons surely stay everywhere (k,), and how many stay in every single move."""
        stays, count = kept(torch.ones_like(self.surely) if self.left else self.surely)
        return stays, int(count)


@dataclass(eq=False)
class Progress:
    """What is known of one example: all parts of its box, and what single points have shown.

    `lost` (k,): at some point this reason is not told, or is as strong as the next, so that
    nothing can be proved of it. `least` is to how many of them a point leaves a place.
    `breaking` (d,) is where fewest are told, `told` of them.
    """

    leaves: list[Part]
    lost: Tensor
    least: int
    told: int
    breaking: Tensor | None = None

    def open_leaves(self) -> list[Part]:
        """The parts of which a closer look could still show something."""
        return [leaf for leaf in self.leaves if leaf.column >= 0 and not self._closed(leaf)]

    def _closed(self, leaf: Part) -> bool:
        stays, count = leaf.kept()
        return bool((stays | self.lost).all()) and count >= self.least


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxSearch:
    """All that is asked of some examples.

    `low` and `high` (B, A) are each `box` in units of the `columns` that move, `unit` (A,); `whole`
    (A,) are those that move by whole units.
    """

    recorded: RecordedModel
    explainer: Shapley
    asked: Asked
    task: ScoreTask
    x: Tensor
    y: Tensor
    decided: Tensor
    limit: Tensor
    doubt: Tensor
    told: Tensor
    ranked: Tensor
    box: Ranges
    low: Tensor
    high: Tensor
    unit: Tensor
    whole: Tensor
    k: int
    boxes: int

    @classmethod
    def of(
        cls,
        recorded: RecordedModel,
        x: Tensor,
        y: Tensor | None,
        k: int,
        explainer: Shapley,
        box: Ranges,
        unit: Tensor | None,
        threshold: float,
        boxes: int,
    ) -> "BoxSearch":
        """The search for some examples, given as to `certify_contributions`."""
        given = x.detach().to(recorded.dtype)
        coalitions, groups, references = explainer.asked(recorded.given, given)
        # The reference as it is where the model is used, rounded to the precision of that.
        explainer = replace(explainer, reference=references.double())
        asked = Asked.of(coalitions, groups, references.double())
        check_k(k, asked.attributes)
        exact = x.detach().double()
        logits = recorded.program(exact)
        classes = logits.shape[1]
        if classes > 2 and (threshold or OF[explainer.of] == "two classes"):
            raise ValueError(
                f"of {classes} classes contributions to the margin or the logit are certified, "
                f"without a threshold, got {explainer.of!r} and {threshold:g}."
            )
        decided = logits.argmax(-1)
        if classes == 2:
            decided = (logits[:, 1] - logits[:, 0] >= threshold).long()
        labels = decided if y is None else y
        as_used = class_logits(recorded.given(given)).double()
        told = explainer.contributions(recorded.given, given, labels)
        low, high = box
        columns = (high > low).any(0).nonzero().squeeze(1)
        units = torch.zeros_like(exact[0]) if unit is None else unit.double()
        whole = units[columns] > 0
        size = torch.where(whole, units[columns], 1.0)
        begin, end = ((each - exact)[:, columns] / size for each in (low, high))
        return cls(
            recorded=recorded,
            explainer=explainer,
            asked=asked,
            task=ScoreTask(program=recorded.program, of=explainer.of, columns=columns),
            x=exact,
            y=labels,
            decided=decided,
            limit=torch.where(decided == 1, threshold, -threshold).double(),
            doubt=2 * (as_used - logits).abs().amax(-1),
            told=told.double(),
            ranked=order(shaped(told, explainer.form, None)),
            box=box,
            low=torch.where(whole, (begin - WHOLE).ceil(), begin),
            high=torch.where(whole, (end + WHOLE).floor(), end),
            unit=size,
            whole=whole,
            k=k,
            boxes=boxes,
        )

    @property
    def at_once(self) -> int:
        """How many examples keep their mixtures within some hundred megabytes."""
        return max(1, min(EXAMPLES_AT_ONCE, MIXTURES_AT_ONCE // self.asked.count))

    def certified(self, rows: Tensor) -> ContributionCertificate:
        """The certificate of some of the examples."""
        decisions = [self.decision(row) for row in rows.tolist()]
        progress = [
            self.begun(decision, row)
            for decision, row in zip(decisions, rows.tolist(), strict=True)
        ]
        work = [
            (decision, found, found.leaves)
            for decision, found in zip(decisions, progress, strict=True)
        ]
        while work:
            self.bound([(decision, leaf) for decision, _, leaves in work for leaf in leaves])
            for decision, found, leaves in work:
                self.look(decision, found, leaves)
            split = [(decision, found, self.split(decision, found)) for decision, found, _ in work]
            work = [each for each in split if each[2]]
        return self._joined(rows, decisions, progress)

    def decision(self, row: int) -> Decision:
        """One of the examples, refused if the explainer tells something else of it."""
        x, y = self.x[row], self.y[row]
        parts = mixtures(self.asked, x, self.task.columns)
        here = self.task.values(parts.rows, y.expand(len(parts.rows)))[0] @ parts.weights
        off = float((here - self.told[row]).abs().max())
        if self.recorded.dtype == torch.float64 and off > EQUAL * (1 + float(here.abs().max())):
            raise ValueError(
                f"the explainer says something else than the Shapley values of row {row}, by "
                f"{off:.3g}: what is certified would not be what is told."
            )
        return Decision(
            x=x,
            y=y,
            decided=self.decided[row],
            limit=float(self.limit[row]),
            mixtures=parts,
            weights=-parts.weights if self.explainer.form == "against" else parts.weights,
            top=self.ranked[row, : self.k],
            noise=2 * off,
            doubt=float(self.doubt[row]),
        )

    def begun(self, decision: Decision, row: int) -> Progress:
        """What is known of one example at first: nothing of the whole of its box."""
        count = len(decision.weights)
        root = Part(
            low=self.low[row],
            high=self.high[row],
            forms=self.x.new_zeros(2 + len(self.unit), count),
            stale=torch.ones(count, dtype=torch.bool),
            surely=torch.zeros(self.k, self.asked.attributes, dtype=torch.bool),
        )
        return Progress([root], torch.zeros(self.k, dtype=torch.bool), self.k, self.k)

    # --- bounds ---------------------------------------------------------------------------------

    def bound(self, leaves: Sequence[tuple[Decision, Part]]) -> None:
        """Bound the scores of all mixtures in each of the parts, and judge the parts by them."""
        for some in _together(leaves):
            rows, reach = zip(*(self._region(*each) for each in some), strict=True)
            counts = [len(each) for each in rows]
            repeats = torch.tensor(counts)
            y, decided = (
                torch.stack(each).repeat_interleave(repeats)
                for each in zip(*((one.y, one.decided) for one, _ in some), strict=True)
            )
            forms, leads = self.task.bounds(torch.cat(rows), torch.cat(reach), y, decided)
            found = zip(some, forms.split(counts, 1), leads.split(counts), strict=True)
            for (decision, leaf), form, lead in found:
                # The first mixture is the example itself, which moves with every column.
                leaf.left = float(lead[0]) < decision.limit - decision.doubt
                leaf.forms[:, leaf.stale] = form
                if not leaf.left:
                    self._judge(decision, leaf)

    def _region(self, decision: Decision, leaf: Part) -> Ranges:
        """Middle and reach of the mixtures that are not yet computed: (N, d) each."""
        columns, own = self.task.columns, decision.mixtures.own[leaf.stale]
        half = (leaf.high - leaf.low) / 2 * self.unit
        far = torch.maximum(leaf.low.abs(), leaf.high.abs()) * self.unit
        # Wider by what the ends may be off, as they and an example that is encoded are rounded.
        half = half + 8 * torch.finfo(half.dtype).eps * (decision.x[columns].abs() + far)
        values = decision.x[columns] + leaf.middle * self.unit
        rows = decision.mixtures.at(columns, values)[leaf.stale]
        reach = torch.zeros_like(rows)
        reach[:, columns] = torch.where(own, half, 0.0)
        return rows, reach

    def _judge(self, decision: Decision, leaf: Part) -> None:
        """Find which reasons are surely above which attributes, and where to look next."""
        top, weights, centre = decision.top, decision.weights, leaf.forms[0] @ decision.weights
        moves = leaf.forms[1:-1] @ weights  # (A, m)
        signs, sides = torch.ones_like(centre[top, None]), [1.0]
        if self._by_size:
            # |a| - |b| is the lesser of s a - b and s a + b at least, for either sign s.
            signs, sides = torch.where(centre[top, None] < 0, -1.0, 1.0), [1.0, -1.0]
        size = leaf.forms.abs().sum(0).max()
        slack = 4 * self.asked.load * torch.finfo(size.dtype).eps * size + TINY
        found = []
        for side in sides:
            rest = sum(
                torch.einsum(
                    "u,ukm->km", part, (signs * each[:, top, None] - side * each[:, None]).abs()
                )
                for part, each in zip(
                    leaf.forms[-1].split(AT_ONCE), weights.split(AT_ONCE), strict=True
                )
            )
            reach = (signs * moves[:, top, None] - side * moves[:, None]).abs().sum(0)
            found.append(signs * centre[top, None] - side * centre - reach - rest - slack)
        least = torch.stack(found).amin(0).nan_to_num(nan=-torch.inf)
        least[range(len(top)), top] = -torch.inf
        # What is sure of a larger part is sure of this one.
        leaf.surely = leaf.surely | (least > decision.noise)
        # The pair that fails by most tells which column to split, and at which corner to look.
        least[:, top] = torch.inf
        least[leaf.surely] = torch.inf
        leaf.gap = float(least.min())
        one, other = divmod(int(least.argmin()), len(centre))
        side = -1.0 if self._by_size and float(centre[other]) < 0 else 1.0
        pair = signs[one] * weights[:, top[one]] - side * weights[:, other]
        leaf.corner = torch.where(leaf.forms[1:-1] @ pair > 0, leaf.low, leaf.high)
        matters = torch.where(leaf.high > leaf.low, leaf.forms[1:-1].abs() @ pair.abs(), -1.0)
        leaf.column = int(matters.argmax()) if (leaf.high > leaf.low).any() else -1

    @property
    def _by_size(self) -> bool:
        return self.explainer.form not in ("signed", "against")

    # --- single points --------------------------------------------------------------------------

    def look(self, decision: Decision, found: Progress, leaves: Sequence[Part]) -> None:
        """See what is told at some points of those parts that are not decided yet."""
        doubtful = [leaf for leaf in leaves if leaf.kept()[1] < self.k]
        places = [place for leaf in doubtful for place in (leaf.corner, self._middle(leaf))]
        if not places:
            return
        parts, columns = decision.mixtures, self.task.columns
        values = [decision.x[columns] + place * self.unit for place in places]
        seen = [
            self.task.values(parts.at(columns, each), decision.y.expand(len(parts.rows)))
            for each in values
        ]
        phi = torch.stack([scores @ decision.weights for scores, _ in seen])
        phi = phi.abs() if self._by_size else phi
        own = torch.stack([logits[0] for _, logits in seen])
        lead = (own[:, decision.decided, None] - own).index_fill(1, decision.decided, torch.inf)
        stays = lead.amin(1) > decision.limit + decision.doubt
        if not bool(stays.any()):
            return
        phi, at = phi[stays], torch.stack(values)[stays]
        gaps = phi[:, decision.top, None] - phi[:, None]  # (P, k, m)
        margin = decision.noise + CLEAR * phi.abs().amax()
        safe, count = kept(gaps > margin)
        found.lost = found.lost | ~safe.all(0)
        found.least = min(found.least, int(count.min()))
        told = ((gaps < -margin).sum(-1) < self.k).sum(-1)
        worst = int(told.argmin())
        if int(told[worst]) < found.told:
            found.told = int(told[worst])
            found.breaking = decision.x.index_copy(0, columns, at[worst])

    def _middle(self, leaf: Part) -> Tensor:
        return torch.where(self.whole, leaf.middle.floor(), leaf.middle)

    def split(self, decision: Decision, found: Progress) -> list[Part]:
        """Halve the parts that are still open, as far as the number of parts allows."""
        chosen = found.open_leaves()[: self.boxes - len(found.leaves)]
        halves = [half for leaf in chosen for half in self.halves(decision, leaf)]
        found.leaves = [leaf for leaf in found.leaves if leaf not in chosen] + halves
        return halves

    def halves(self, decision: Decision, leaf: Part) -> list[Part]:
        """The two halves of a part along its column; both hold the border of a continuous one."""
        at, middle = leaf.column, self._middle(leaf)[leaf.column]
        below, above = leaf.high.clone(), leaf.low.clone()
        below[at], above[at] = middle, middle + float(self.whole[at])
        stale = decision.mixtures.own[:, at]
        return [
            replace(leaf, low=low, high=high, forms=leaf.forms.clone(), stale=stale)
            for low, high in ((leaf.low, below), (above, leaf.high))
        ]

    def confirmed(self, row: int, breaking: Tensor) -> bool:
        """Whether the model itself, as it is used, tells other reasons there and decides alike."""
        if bool(breaking.isnan().any()):
            return False
        at, given = breaking[None].to(self.recorded.dtype), self.recorded.given
        scores = self.explainer(given, at, self.y[row : row + 1])
        told = set(order(scores)[0, : self.k].tolist())
        if told == set(self.ranked[row, : self.k].tolist()):
            return False
        return bool(self.decides_alike(class_logits(given(at)).double(), row))

    def decides_alike(self, logits: Tensor, row: int) -> Tensor:
        """Whether logits (N, C) mean the same decision as those of an example: (N,)."""
        decided = int(self.decided[row])
        if logits.shape[1] == 2:
            threshold = float(self.limit[row]) * (1 if decided else -1)
            return (logits[:, 1] - logits[:, 0] >= threshold) == bool(decided)
        return logits.argmax(-1) == decided

    # --- results --------------------------------------------------------------------------------

    def _joined(
        self, rows: Tensor, decisions: Sequence[Decision], progress: Sequence[Progress]
    ) -> ContributionCertificate:
        kept = [[leaf.kept() for leaf in found.leaves] for found in progress]
        least = torch.tensor([min(count for _, count in each) for each in kept])
        nowhere = torch.full_like(self.x[0], torch.nan)
        places = [nowhere if found.breaking is None else found.breaking for found in progress]
        # A corner that was found by its distance from x may be off the box by a rounding.
        breaking = torch.stack(places).clamp(*(each[rows] for each in self.box))
        broken = torch.tensor(
            [self.confirmed(*each) for each in zip(rows.tolist(), breaking, strict=True)]
        )
        return ContributionCertificate(
            top=self.ranked[rows, : self.k],
            kept=least == self.k,
            core=torch.stack([torch.stack([stays for stays, _ in each]).all(0) for each in kept]),
            precision=least.double() / self.k,
            broken=broken,
            breaking=torch.where(broken[:, None], breaking, nowhere),
            boxes=torch.tensor([len(found.leaves) for found in progress]),
            noise=torch.tensor([each.noise for each in decisions], dtype=torch.float64),
        )

    def check_inside(self, kept: Tensor, top: Tensor) -> None:
        """Compare program and model once more, at mixtures and at places inside of what is kept."""
        draw = torch.Generator().manual_seed(0)
        rows = torch.randint(len(self.x), (POINTS,), generator=draw)
        if bool(kept.any()):
            which = kept.nonzero().squeeze(1)
            rows = which[torch.randint(len(which), (POINTS,), generator=draw)]
        share = torch.rand(POINTS, len(self.unit), generator=draw, dtype=torch.float64)
        share[::2] = share[::2].round()
        moves = torch.lerp(self.low[rows], self.high[rows], share)
        moves = torch.where(self.whole, moves.round(), moves) * self.unit
        places = self.x[rows].index_add(1, self.task.columns, moves)
        sets = torch.randint(len(self.asked.taken), (POINTS,), generator=draw)
        others = torch.randint(len(self.asked.references), (POINTS,), generator=draw)
        mixed = torch.where(self.asked.taken[sets], places, self.asked.references[others])
        replay(self.recorded, torch.cat([places, mixed]))
        if not bool(kept.any()):
            return
        logits = self.recorded.program(places)
        alike = torch.cat(
            [
                self.decides_alike(one[None], row)
                for one, row in zip(logits, rows.tolist(), strict=True)
            ]
        )
        places, rows = places[alike][:LOOKED_AT], rows[alike][:LOOKED_AT]
        scores = self.explainer(self.recorded.exact, places, self.y[rows])
        check_kept(places, rows, scores, [set(each) for each in top.tolist()])


def _together(
    leaves: Sequence[tuple[Decision, Part]],
) -> Iterator[list[tuple[Decision, Part]]]:
    """The parts in order, as many at once as have few enough mixtures to compute."""
    some: list[tuple[Decision, Part]] = []
    count = 0
    for decision, leaf in leaves:
        more = int(leaf.stale.sum())
        if some and count + more > AT_ONCE:
            yield some
            some, count = [], 0
        some.append((decision, leaf))
        count += more
    if some:
        yield some
