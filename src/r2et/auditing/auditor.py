"""What is found out about each decision of a model: what is proved, and what an attack breaks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from r2et.attacks.radius import PAIRS, WALK
from r2et.attacks.registry import attack_curve
from r2et.auditing.decisions import MeasureInput, measured
from r2et.auditing.evidence import Evidence, Explained, Subject
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Columns
from r2et.certification.cells import CellVerdicts, Misread, has_cells, search_cells
from r2et.certification.certificate import Certificate, certify
from r2et.certification.replay import RecordedModel
from r2et.core.cell_search import Goal
from r2et.core.one_hot import OneHot, project_one_hot
from r2et.core.ranking import order, precision_at_k, ties, top_k_mask
from r2et.core.reasons import Decided
from r2et.explainers import Explainer, Gradient, input_gradient, shaped
from r2et.perturbations import PERTURBATIONS, NormBall

MANY = 20_000  # rows beyond which radii are not sought unless asked for
BEYOND = (0.0, 1e-9, 1e-6, 1e-4)  # of the way to a broken input, where it is tried again
MARGIN = 1e-10  # of a score by which a new reason must lead, more than any rounding
INSIDE = 1 - 1e-7  # of a proved radius: nearer to its border, rounding has a say
DRAWN_AT_ONCE = 2**18  # numbers of pictures and networks in one search, whose layers are large
LEAST_TOGETHER = 16  # of them that are explained at once


class Auditor:
    """Finds out about the decisions of one model, some rows at a time."""

    def __init__(self, subject: Subject, columns: Columns, settings: AuditSettings) -> None:
        self.subject, self.columns, self.settings = subject, columns, settings
        self.one_hot = columns.one_hot if settings.project_one_hot else None
        self.reach = columns.reach.to(subject.device)
        self.region = PERTURBATIONS[settings.norm](scale=self.reach, bounds=columns.bounds)

    def evidence(self, x: Tensor, costly: int) -> Evidence:
        """What there is to know about the decisions on x, costly measures of so many of them."""
        settings, x = self.settings, x.to(self.subject.device)
        clean = self.explained(x)
        certified, order_radius, kept, weakest = self._certified(clean)
        broken, attacked, by, worst = self._attacked(clean, certified)
        first = (certified >= settings.tolerance, broken <= settings.tolerance)
        certified, broken, by, reasons = self._searched(clean, certified, broken, by)
        lengths = kept.new_tensor(settings.epsilons)
        kept = torch.where(certified[:, None] >= lengths, 1.0, kept)
        if attacked is not None:
            attacked = self._left(clean, by, broken, attacked)
            kept, attacked = self._closed(clean, kept, attacked, by)
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
            decided=_decided(certified, broken, settings.tolerance, first, reasons),
            worst=by if self.columns.tabular else worst,
            measures=measured(self._to_measure(clean), costly),
        )

    def explained(self, x: Tensor, y: Tensor | None = None) -> Explained:
        """The inputs with what is to be said about class y, the predicted one unless given."""
        # As it is deployed: what it answers while slopes are taken is not asked.
        logits = self.subject.logits(x)
        y = logits.argmax(-1) if y is None else y
        with torch.no_grad():
            slopes = input_gradient(self.subject.model, x, y, self.settings.explained)
            slopes = self._by_feature(project_one_hot(slopes, self.one_hot))
        return Explained(x=x, y=y, logits=logits, slopes=slopes, ranked=order(slopes.abs()))

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
        if self.columns.tabular:
            return explain
        together = max(LEAST_TOGETHER, 2 * DRAWN_AT_ONCE // len(self.reach))
        return replace(explain, groups=self.columns.counts or None, rows_at_once=together)

    @property
    def rows_at_once(self) -> int | None:
        """How many pictures or networks one search takes at once; None: what an attack takes."""
        if self.columns.tabular:
            return None
        return max(1, DRAWN_AT_ONCE // (max(self.settings.budget.starts, 1) * len(self.reach)))

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
        plain = self.columns.tabular
        curve = attack_curve(
            self.subject.model,
            clean.x[rows],
            clean.y[rows],
            k=settings.k,
            radii=settings.epsilons,
            explainer=self.explain,
            perturbation=self.region,
            budget=settings.budget,
            pairs=PAIRS if plain else 0,
            walk=WALK if plain else 0,
            seed=settings.seed,
            rows_at_once=self.rows_at_once,
        )
        broken[rows], nearest = self._confirmed(clean, rows, [curve.nearest, *curve.x])
        left[rows] = curve.precision.T
        by = self.explained(clean.x.index_copy(0, rows, nearest), clean.y)
        if plain:
            return broken, left, by, by
        at = curve.x[settings.epsilons.index(settings.tolerance)]
        worst = self.explained(clean.x.index_copy(0, rows, at), clean.y)
        return broken, left, by, worst

    def _left(self, clean: Explained, by: Explained, broken: Tensor, left: Tensor) -> Tensor:
        """The share of the reasons that stays at each length, as far as inputs are known: (B, E).

        One and the same input speaks for a broken decision everywhere.
        """
        kept = precision_at_k(clean.slopes.abs(), by.slopes.abs(), self.settings.k)
        within = broken[:, None] <= broken.new_tensor(self.settings.epsilons)
        return torch.where(within, torch.minimum(left, kept[:, None]), 1.0)

    def _searched(
        self, clean: Explained, certified: Tensor, broken: Tensor, by: Explained
    ) -> tuple[Tensor, Tensor, Explained, list[Decided]]:
        """Proved and broken lengths, and the inputs of these, after a search over activation cells.

        Decisions that are not proved up to the tolerance are searched: those that an attack broke,
        too, as the smallest change is worth knowing. Last comes why each that is open is so.
        """
        settings = self.settings
        reasons: list[Decided] = ["unsearched"] * len(certified)
        rows = (certified < settings.tolerance).nonzero().squeeze(1)
        found = self._by_cells(clean, rows, by, settings.tolerance, "smallest")
        if found is None:
            return certified, broken, by, reasons
        shortest, nearest = self._confirmed(clean, rows, [by.x[rows], found.x.to(clean.x)])
        certified = certified.index_copy(0, rows, torch.maximum(certified[rows], found.lower))
        broken = broken.index_copy(0, rows, torch.minimum(broken[rows], shortest))
        for row, why in zip(rows.tolist(), found.decided_by, strict=True):
            reasons[row] = "tie" if why == "tie" else "budget"
        by = self.explained(by.x.index_copy(0, rows, nearest), clean.y)
        return certified, broken, by, reasons

    def _closed(
        self, clean: Explained, kept: Tensor, left: Tensor, by: Explained
    ) -> tuple[Tensor, Tensor]:
        """What is proved to stay and what is known to be left, nearer to one another: (B, E) each.

        At each length the cells are searched for the input that displaces most reasons.
        """
        kept, left = kept.clone(), left.clone()
        lengths = self.settings.epsilons
        for at, length in enumerate(lengths):
            rows = (kept[:, at] < left[:, at] - 0.5 / self.settings.k).nonzero().squeeze(1)
            found = self._by_cells(clean, rows, by, length, "worst", 1 / len(lengths))
            if found is not None:
                kept[rows, at] = torch.maximum(kept[rows, at], found.least_precision)
                left[rows, at] = torch.minimum(left[rows, at], found.precision)
        # What stays within a length stays within any shorter one.
        return kept.flip(1).cummax(1).values.flip(1), left.cummin(1).values

    def _by_cells(
        self,
        clean: Explained,
        rows: Tensor,
        by: Explained,
        length: float,
        goal: Goal,
        share: float = 1.0,
    ) -> CellVerdicts | None:
        """What a search over the cells within a length says of some rows, if there is one."""
        settings, columns = self.settings, self.columns
        asked = settings.attack != "none" and settings.radii == "all" and settings.search > 0
        if not (asked and len(rows) and columns.tabular and not columns.counts):
            return None
        return searched(
            self.subject.recorded,
            clean.x[rows],
            clean.y[rows],
            by.x[rows],
            replace(settings, search=share * settings.search),
            one_hot=self.one_hot,
            region=self.region.at(length),
            goal=goal,
        )

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
                better = sure & gone & (seen.predicted == y) & (cost < shortest)
                shortest = torch.where(better, cost, shortest)
                nearest = torch.where(better[:, None], at, nearest)
        return shortest, nearest

    def _to_measure(self, clean: Explained) -> MeasureInput:
        return MeasureInput(
            model=self.subject.model,
            x=clean.x,
            y=clean.y,
            slopes=clean.slopes,
            columns=self.columns,
            perturbation=self.region.at(self.settings.tolerance),
            explain=self.explain,
            k=self.settings.k,
            seed=self.settings.seed,
        )


def searched(
    model: RecordedModel | None,
    x: Tensor,
    y: Tensor,
    known: Tensor,
    settings: AuditSettings,
    *,
    one_hot: OneHot | None,
    region: NormBall,
    goal: Goal = "smallest",
) -> CellVerdicts | None:
    """What all activation cells within a region say of decisions, as `search_cells` has it.

    `known` are inputs that an attack found. None of models without cells, and where what was read
    of one is not what it computes: then nothing is said.
    """
    if model is None or not has_cells(model, x, settings.explained, region):
        return None
    try:
        return search_cells(
            model,
            x,
            y,
            k=settings.k,
            perturbation=region,
            goal=goal,
            of=settings.explained,
            one_hot=one_hot,
            known=[known],
            seconds=settings.search * len(x),
        )
    except Misread:
        return None


def _decided(
    certified: Tensor,
    broken: Tensor,
    tolerance: float,
    first: tuple[Tensor, Tensor],
    reasons: Sequence[Decided],
) -> tuple[Decided, ...]:
    """What decided each decision, or why it is open; `first` are those decided without a search."""
    found: list[Decided] = []
    by_bound, by_attack = (each.tolist() for each in first)
    proved, refuted = (certified >= tolerance).tolist(), (broken <= tolerance).tolist()
    for row, why in enumerate(reasons):
        if proved[row]:
            found.append("bound" if by_bound[row] else "cells")
        elif refuted[row]:
            found.append("attack" if by_attack[row] else "cells")
        else:
            found.append(why)
    return tuple(found)
