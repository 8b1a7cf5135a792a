"""Complete search for contributions: certified, or broken by a verified input, or what is open.

Best-first bisection of the box of each decision. Bounds close parts of it, in which the reasons
stay or the decision does not; the part that fails by most is halved next, along the column that
moves its bound most. What a bound leaves open is looked at by single points, which may break.
"""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from r2et.certification.contributions import (
    WHOLE,
    BoxSearch,
    Decision,
    Part,
    Progress,
    Ranges,
    check_choices,
    checked_box,
)
from r2et.certification.mixtures import AT_ONCE
from r2et.certification.replay import RecordedModel, check_call, record, replay
from r2et.core.autograd import eval_mode
from r2et.core.ranking import order
from r2et.explainers import Shapley, class_logits
from r2et.perturbations import Box

HALVED = 4
"""Parts of one decision that are halved together: more, and it is hardly best-first."""
AFTER_TIE = 64
"""Parts that are still looked at once two reasons are level, as nothing can be proved then."""
THIN = 2.0**-40
"""Of the width of a box: a part that is as thin is not halved again."""
HELD = 2**24
"""Numbers of bounds that the open parts of one decision hold; what is beyond is bounded again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ContributionVerdicts:
    """What a complete search found about the reasons of each decision within its box.

    `verdict` is "certified", "broken" or "undetermined", and `decided_by` what decided it: "bound",
    "parts" or "attack"; of what is undetermined the reason, "budget" or "tie": two attributes are
    level somewhere, as far as can be told.

    `x` (B, d) breaks, as the model itself says, or is the clean input where nothing does. `proved`
    (B,) is the share of the box in which no move breaks, 1 of what is certified. `top` (B, k) are
    the reasons in order; those of `core` (B, k) stay in every move, and the share `precision` (B,)
    does at least. `parts` (B,) counts the parts that were bounded.
    """

    verdict: tuple[str, ...]
    decided_by: tuple[str, ...]
    x: Tensor
    proved: Tensor
    top: Tensor
    core: Tensor
    precision: Tensor
    parts: Tensor

    @property
    def decided(self) -> Tensor:
        """Which decisions are certified or broken: (B,) booleans."""
        return torch.tensor([each != "undetermined" for each in self.verdict], dtype=torch.bool)

    @property
    def broken(self) -> Tensor:
        """Which decisions are broken: (B,) booleans."""
        return torch.tensor([each == "broken" for each in self.verdict], dtype=torch.bool)

    @property
    def breaking(self) -> Tensor:
        """What breaks, NaN where nothing does: (B, d)."""
        return torch.where(self.broken[:, None], self.x, torch.nan)


def search_contributions(
    model: nn.Module | RecordedModel,
    x: Tensor,
    y: Tensor | None = None,
    *,
    k: int,
    explainer: Shapley,
    perturbation: Box | Ranges,
    unit: Tensor | None = None,
    threshold: float = 0.0,
    known: Sequence[Tensor] = (),
    parts: int = 4096,
    seconds: float = math.inf,
) -> ContributionVerdicts:
    """Proof or counter-example for the top k contributions of each x, (B, d), decision kept.

    All but the last three are as `certify_contributions` takes them: every column moves
    continuously, unless it has a `unit` and moves by whole multiples of it. `known` are inputs,
    like x each, that an attack found: they are verified first. No more than `parts` parts of each
    box are bounded, and after about `seconds` for all decisions what is known by then comes back,
    and all of it holds.

    The proof is about the model in the arithmetic of real numbers. Counter-examples are within the
    box, and the model itself, in float64 and as it is used, gives other reasons there.
    """
    given = model.given if isinstance(model, RecordedModel) else model
    check_call(given, x.to(model.dtype) if isinstance(model, RecordedModel) else x, y)
    if not seconds >= 0 or parts < 0:
        raise ValueError(
            f"a search takes a number of seconds >= 0 and of parts >= 0, got {seconds} and {parts}."
        )
    if any(each.shape != x.shape for each in known):
        raise ValueError(f"known inputs must have the shape of x, {tuple(x.shape)}, each.")
    box = checked_box(perturbation, x)
    check_choices(explainer, x, unit, threshold, 1)
    begun = time.monotonic()
    recorded = model if isinstance(model, RecordedModel) else record(model, x)
    with torch.inference_mode(False), torch.no_grad(), eval_mode(given):
        search = BoxSearch.of(recorded, x, y, k, explainer, box, unit, threshold, 1)
        replay(recorded, search.x)
        pieces, cases = torch.arange(len(x)).split(search.at_once), list[_Case]()
        for number, rows in enumerate(pieces, start=1):
            some = [_begun(search, row, known) for row in rows.tolist()]
            _bisect(search, some, parts, begun + seconds * number / len(pieces))
            for case in some:
                case.forget()
            cases += some
        found = _verdicts(search, cases)
        certified = torch.tensor([each == "certified" for each in found.verdict])
        search.check_inside(certified, found.top)
    return found


@dataclass(eq=False)
class _Case:
    """The search of one decision: parts that are `waiting`, the one that fails by most first.

    `thin` parts are open, but too thin to be halved. `proved` is the share of the parts that are
    closed, `seen` counts all, and `tied` is how many were seen when two reasons were level first.
    """

    row: int
    decision: Decision
    found: Progress
    root: Part
    waiting: list[tuple[float, int, Part]] = field(default_factory=list)
    thin: list[Part] = field(default_factory=list)
    proved: float = 0.0
    seen: int = 0
    held: int = 0
    tied: int | None = None
    breaking: Tensor | None = None
    attacked: bool = False

    def over(self, parts: int) -> bool:
        """Whether nothing is left to be done, or allowed to."""
        if self.breaking is not None or self.seen >= parts:
            return True
        if self.tied is not None and self.seen - self.tied >= AFTER_TIE:
            return True
        return self.seen > 0 and (not self.waiting or self.seen + 2 > parts)

    def forget(self) -> None:
        """Let go of the bounds, of which only what they say is needed."""
        for part in self.open_parts():
            part.forms = part.forms[:, :0]

    def open_parts(self) -> list[Part]:
        """The parts of which nothing is known, or not enough."""
        waiting = [part for _, _, part in self.waiting]
        return waiting + self.thin if self.seen else [self.root]


def _begun(search: BoxSearch, row: int, known: Sequence[Tensor]) -> _Case:
    """The search of one decision, after what an attack found was verified."""
    decision = search.decision(row)
    found = search.begun(decision, row)
    case = _Case(row, decision, found, found.leaves[0])
    for each in known:
        place = each[row].detach().double()
        if case.breaking is None and _verified(search, row, place):
            case.breaking, case.attacked = place, True
    return case


def _bisect(search: BoxSearch, cases: Sequence[_Case], parts: int, until: float) -> None:
    """Halve the parts of some decisions until all are decided, or the parts or the time are out."""
    left = [case for case in cases if not case.over(parts)]
    while left:
        for some in _together(left):
            if time.monotonic() >= until:
                return
            chosen = [(case, _next(search, case, parts)) for case in some]
            search.bound([(case.decision, part) for case, own in chosen for part in own])
            for case, own in chosen:
                _judge(search, case, own)
        left = [case for case in left if not case.over(parts)]


def _together(cases: Sequence[_Case]) -> Iterator[list[_Case]]:
    """The decisions in order, as many at once as have few enough mixtures to bound together."""
    some, count = list[_Case](), 0
    for case in cases:
        # Of the mixtures about half hold the column that is halved, in either half.
        more = len(case.decision.weights) * HALVED
        if some and count + more > AT_ONCE:
            yield some
            some, count = [], 0
        some.append(case)
        count += more
    if some:
        yield some


def _next(search: BoxSearch, case: _Case, parts: int) -> list[Part]:
    """The halves of the parts that fail by most: those to be bounded next."""
    if not case.seen:
        return [case.root]
    halves = list[Part]()
    while case.waiting and len(halves) < 2 * HALVED and case.seen + len(halves) + 2 <= parts:
        _, _, part = heapq.heappop(case.waiting)
        if _too_thin(search, case, part):
            case.thin.append(part)
            part.forms = part.forms[:, :0]
            continue
        forgotten = not part.forms.shape[1]
        if forgotten:
            part.forms = case.root.forms.new_zeros(case.root.forms.shape)
        else:
            case.held -= part.forms.numel()
        own = search.halves(case.decision, part)
        for half in own if forgotten else ():
            half.stale = torch.ones_like(half.stale)
        halves += own
    return halves


def _too_thin(search: BoxSearch, case: _Case, part: Part) -> bool:
    at = part.column
    if at < 0:
        return True
    if bool(search.whole[at]):
        return False
    width, whole = ((each.high - each.low)[at] for each in (part, case.root))
    return bool(width <= THIN * whole)


def _judge(search: BoxSearch, case: _Case, parts: Sequence[Part]) -> None:
    """Close the parts that are proved, and look at points of the others."""
    search.look(case.decision, case.found, parts)
    for part in parts:
        case.seen += 1
        if part.kept()[1] == search.k:
            case.proved += _share(search, case, part)
            continue
        if case.held + part.forms.numel() <= HELD or part is case.root:
            case.held += part.forms.numel()
        else:
            part.forms = part.forms[:, :0]
        heapq.heappush(case.waiting, (part.gap, case.seen, part))
    place = case.found.breaking
    if place is not None:
        # A corner that was found by its distance from x may be off the box by a rounding.
        place = place.clamp(*(each[case.row] for each in search.box))
        if _verified(search, case.row, place):
            case.breaking = place
        case.found.breaking, case.found.told = None, search.k
    if case.tied is None and bool(case.found.lost.any()):
        case.tied = case.seen


def _share(search: BoxSearch, case: _Case, part: Part) -> float:
    """Which share of its box a part is, by lengths of columns, or by numbers of whole units."""
    own, every = (each.high - each.low + search.whole.double() for each in (part, case.root))
    return float(torch.where(every > 0, own / every, 1.0).prod())


def _verified(search: BoxSearch, row: int, place: Tensor) -> bool:
    """Whether a place of the box breaks, by the model in float64 and as it is used."""
    low, high = (each[row] for each in search.box)
    if not bool(((place >= low) & (place <= high)).all()):
        return False
    steps = ((place - search.x[row])[search.task.columns] / search.unit)[search.whole]
    if bool(((steps - steps.round()).abs() > WHOLE).any()) or not search.confirmed(row, place):
        return False
    exact, at = search.recorded.exact, place[None]
    told = order(search.explainer(exact, at, search.y[row : row + 1]))[0, : search.k]
    same = set(told.tolist()) == set(search.ranked[row, : search.k].tolist())
    return not same and bool(search.decides_alike(class_logits(exact(at)), row))


def _verdicts(search: BoxSearch, cases: Sequence[_Case]) -> ContributionVerdicts:
    """What a search knows when it ends."""
    verdict, decided_by, core, least = list[str](), list[str](), list[Tensor](), list[int]()
    for case in cases:
        rest = [part.kept() for part in case.open_parts()]
        if case.breaking is not None:
            verdict.append("broken")
            decided_by.append("attack" if case.attacked else "parts")
        elif rest:
            tied = case.tied is not None or (case.seen > 0 and not case.waiting)
            verdict.append("undetermined")
            decided_by.append("tie" if tied else "budget")
        else:
            verdict.append("certified")
            decided_by.append("bound" if case.seen <= 1 else "parts")
        every = torch.ones(search.k, dtype=torch.bool)
        core.append(torch.stack([every, *(stays for stays, _ in rest)]).all(0))
        least.append(min((count for _, count in rest), default=search.k))
    certified = torch.tensor([each == "certified" for each in verdict])
    proved = torch.tensor([min(case.proved, 1.0) for case in cases], dtype=torch.float64)
    here = search.x[[case.row for case in cases]]
    places = [
        own if case.breaking is None else case.breaking
        for case, own in zip(cases, here, strict=True)
    ]
    return ContributionVerdicts(
        verdict=tuple(verdict),
        decided_by=tuple(decided_by),
        x=torch.stack(places),
        proved=torch.where(certified, 1.0, proved),
        top=search.ranked[:, : search.k],
        core=torch.stack(core),
        precision=torch.tensor(least).double() / search.k,
        parts=torch.tensor([case.seen for case in cases]),
    )
