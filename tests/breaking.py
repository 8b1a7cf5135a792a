"""Certificates put to the test: a model is certified, then attacked inside what was certified.

Nothing here knows how certificates are made. The true explanation is always that of the caller's
own model, by ordinary autograd, in the precision that the model was given in.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog, nnls
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from r2et.certification import Certificate, certify
from r2et.perturbations import PERTURBATIONS

EPSILONS = (0.03, 0.3)
FAR = 1e3
"""Beyond this a claim counts as one without an end, which is followed about so far."""
INSIDE = 1 - 1e-7
# What rounding may do to a slope, as a share of the largest there and of the largest at x.
ROUNDING = {
    torch.float64: (1e-9, 1e-13),
    torch.float32: (1e-3, 1e-4),
    torch.bfloat16: (0.1, 0.1),
    torch.float16: (0.05, 0.05),
}
STEPS = 6
VERDICTS = ("certified", "nothing", "refused", "raised", "broken")


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A model, a call, and what may come of it.

    `places` are inputs that a builder knows to be worth a look, beside those that an attack finds.
    A model that is handed over in `training` mode is certified as it predicts, after `eval()`.
    """

    name: str
    model: nn.Module
    x: Tensor
    settings: Mapping[str, Any]
    refuse: bool = False
    training: bool = False
    places: Tensor | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case: certified, nothing (no radius), refused, raised or broken, and why."""

    case: str
    verdict: str
    points: int = 0
    told: str = ""
    parts: tuple[str, ...] = ()
    seconds: float = 0.0
    ratio: float = math.nan
    """The certified radius as a share of the exact one, where that is known."""

    @property
    def fault(self) -> bool:
        """Whether certification did what it must never do."""
        return self.verdict in ("broken", "raised")


class Broken(Exception):
    """A certificate does not hold: the message says where."""


def judge(case: Case, *, points: int, seed: int = 0) -> Outcome:
    """What comes of certifying a case and attacking it at about so many points."""
    with case.around(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        outcome, found = _certified(case)
        outcome = replace(outcome, parts=case.parts, seconds=time.perf_counter() - start)
        if found is None:
            return outcome
        if case.training:
            case.model.eval()
        if not _says_anything(found):
            return replace(outcome, verdict="nothing", told="no radius above zero")
        if case.refuse:
            return replace(outcome, verdict="broken", told="certified what must be refused")
        return _attacked(case, found, outcome, points, seed)


def _certified(case: Case) -> tuple[Outcome, Certificate | None]:
    before = case.x.detach().clone()
    try:
        asked: dict[str, Any] = {"epsilons": EPSILONS} | dict(case.settings)
        ball = PERTURBATIONS[asked.pop("norm", "l2")](scale=asked.pop("scale", None))
        found = certify(case.model, case.x, perturbation=ball, **asked)
    except ValueError as refusal:
        verdict = "refused" if in_one_sentence(str(refusal)) else "raised"
        return Outcome(case=case.name, verdict=verdict, told=str(refusal)), None
    except Exception as fault:  # whatever comes instead of a refusal is what is looked for
        told = f"{type(fault).__name__}: {fault}"
        return Outcome(case=case.name, verdict="raised", told=told), None
    outcome = Outcome(case=case.name, verdict="certified")
    if not torch.equal(before, case.x.detach()):
        return replace(outcome, verdict="broken", told="the caller's inputs were changed"), None
    if found.radius.isnan().any() or found.order_radius.isnan().any():
        return replace(outcome, verdict="broken", told="a radius is not a number"), None
    return outcome, found


def in_one_sentence(told: str) -> bool:
    """Whether a refusal is one sentence: a single line that ends as a sentence does."""
    return bool(told) and "\n" not in told and told.endswith(".")


def _says_anything(found: Certificate) -> bool:
    claims = (found.radius, found.order_radius, found.precision)
    return any(bool((each > 0).any()) for each in claims)


def _attacked(case: Case, found: Certificate, outcome: Outcome, points: int, seed: int) -> Outcome:
    attack, ratio = None, math.nan
    try:
        attack = Attack.on(case, found, seed)
        attack.run(points)
        if has_cells(case):
            ratio = attack.by_cells()
    except Broken as where:
        seen = attack.points if attack else 0
        return replace(outcome, verdict="broken", told=str(where), points=seen)
    return replace(outcome, points=attack.points, ratio=ratio)


def true_slope(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Mapping[str, Any],
    *,
    create_graph: bool = False,
) -> Tensor:
    """The signed slope of the explained score by ordinary autograd, flattened: (N, n)."""
    with torch.enable_grad():
        score = score_of(model(x), y, settings.get("of", "probability")).sum()
        if not score.requires_grad:
            return torch.zeros_like(x).flatten(1)
        (slope,) = torch.autograd.grad(score, x, create_graph=create_graph, allow_unused=True)
    slope = torch.zeros_like(x) if slope is None else slope
    return _centred(slope.flatten(1), settings.get("one_hot"))


def score_of(logits: Tensor, y: Tensor, of: str) -> Tensor:
    """The explained score; for the probability its log-odds, which rank slopes alike: (N,)."""
    if logits.shape[1] == 1:
        return logits[:, 0] * (2 * y - 1)
    own = logits.gather(1, y[:, None]).squeeze(1)
    if of == "logit":
        return own
    others = logits.scatter(1, y[:, None], -torch.inf)
    return own - (others.amax(1) if of == "margin" else others.logsumexp(1))


def _centred(slope: Tensor, one_hot: Any) -> Tensor:
    """The slope without the mean of each one-hot group."""
    if not one_hot:
        return slope
    columns = list(slope.unbind(1))
    for group in one_hot:
        mean = sum(columns[i] for i in group) / len(group)
        for i in group:
            columns[i] = columns[i] - mean
    return torch.stack(columns, 1)


@dataclass(eq=False)
class Attack:
    """A search for an input at which one of the claims of a certificate does not hold.

    Inputs are x + scale * e; a claim of a radius covers all e up to that size. Each place that is
    looked at is held against every claim that covers it.
    """

    case: Case
    found: Certificate
    y: Tensor
    clean: Tensor
    generator: torch.Generator
    points: int = 0
    differentiable: bool = True
    _tolerance: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._tolerance = ROUNDING[self.case.x.dtype]

    @classmethod
    def on(cls, case: Case, found: Certificate, seed: int) -> "Attack":
        """An attack on a certificate of something that is a function of each example alone."""
        logits, y = _labels(case)
        attack = cls(case, found, y, torch.empty(0), torch.Generator().manual_seed(seed))
        attack.clean = attack._slope(case.x, y).double()
        attack._check_function(logits)
        attack._check_top()
        return attack

    def run(self, points: int) -> None:
        """Look at about so many places, more than half of them chosen by earlier ones."""
        self._at_places()
        rows, limit = self._targets(points * 3 // 10)
        self._look(rows, self._starts(limit))
        for search, share in ((self._descend, 4), (self._climb, 2), (self._to_kinks, 1)):
            search(*self._targets(points * share // 10 // STEPS))

    def by_cells(self) -> float:
        """The least share that a certified radius is of the exact one, found cell by cell."""
        ratios = [math.nan]
        for row in (self.found.radius > 0).nonzero().flatten().tolist():
            place = nearest_break(self, row)
            if place is None:
                continue
            self._look(torch.tensor([row]), place[None])
            ratios.append(float(self.found.radius[row] / self.size(place[None])[0]))
        return float(np.nanmax(ratios)) if len(ratios) > 1 else math.nan

    def _targets(self, count: int) -> tuple[Tensor, Tensor]:
        """Rows with something claimed of them, and how far each is to be looked at: (N,) each.

        Sets count three times; a claim without an end is followed to a length of any magnitude.
        """
        found = self.found
        ends = torch.tensor(found.epsilons, dtype=torch.float64) * (found.precision > 0)
        sets = found.radius[:, None].expand(-1, 3)
        reach = torch.cat([sets, found.order_radius[:, None], ends], 1)
        row, claim = (reach > 0).nonzero(as_tuple=True)
        drawn = torch.randint(len(row), (max(count, 1),), generator=self.generator)
        limit = reach[row[drawn], claim[drawn]]
        chance = torch.rand(len(drawn), generator=self.generator, dtype=torch.float64)
        return row[drawn], torch.where(limit < FAR, limit, 10 ** (4 * chance - 1))

    @property
    def scale(self) -> Tensor:
        """What each feature is measured in: like one example."""
        scale = self.case.settings.get("scale")
        return torch.ones_like(self.case.x[0]) if scale is None else scale.to(self.case.x)

    def size(self, e: Tensor) -> Tensor:
        """How far a move goes in the certificate's norm: (N,)."""
        flat = e.flatten(1)
        box = self.case.settings.get("norm", "l2") == "linf"
        return flat.abs().amax(1) if box else flat.norm(dim=1)

    def _slope(self, x: Tensor, y: Tensor) -> Tensor:
        try:
            at = x.detach().clone().requires_grad_()
            return true_slope(self.case.model, at, y, self.case.settings).detach()
        except Exception as fault:
            raise Broken(
                f"certified, but the explanation raises {type(fault).__name__}: {fault}"
            ) from None

    def _check_function(self, logits: Tensor) -> None:
        """Whether one row has one answer: again, alone, in another company, without a graph."""
        case, y = self.case, self.y
        with torch.no_grad():
            self._same(case.model(case.x), logits, "predictions without a graph differ")
        backwards = self._slope(case.x.flip(0), y.flip(0)).flip(0)
        alone = torch.cat([self._slope(case.x[[i]], y[[i]]) for i in range(len(y))])
        many = self._slope(case.x.repeat(5, *(1,) * (case.x.ndim - 1)), y.repeat(5))
        self._same(self._slope(case.x, y), self.clean, "another explanation at the second call")
        self._same(backwards, self.clean, "another explanation in another order")
        self._same(alone, self.clean, "another explanation alone than in company")
        self._same(many[: len(y)], self.clean, "another explanation in a larger batch")

    def _same(self, one: Tensor, other: Tensor, told: str) -> None:
        one, other = one.detach().double(), other.detach().double()
        allowed = 1e3 * max(self._tolerance) * other.abs().amax(1, keepdim=True)
        if not bool(((one - other).abs() <= allowed + 1e-300).all()):
            raise Broken(told)

    def _check_top(self) -> None:
        """Whether the features said to be on top are, at x and as the model is deployed."""
        ahead = self.clean.abs()
        lead, slack = _lead(ahead, self.found.top), self._slack(ahead, ahead)
        if self.case.x.dtype != torch.float64:
            slack = torch.where(lead == 0, -1.0, slack)
        wrong = (self.found.radius > 0) & ~(lead >= -slack)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise Broken(f"row {row}: its own top k is another, by {float(-lead[row]):.3g}")

    def _slack(self, ahead: Tensor, clean: Tensor) -> Tensor:
        here, before = self._tolerance
        return torch.maximum(here * ahead.amax(1), before * clean.amax(1))

    def _starts(self, limit: Tensor) -> Tensor:
        """Moves of all kinds of directions and lengths within the limits: (N, ...)."""
        shape, count = self.case.x.shape[1:], len(limit)
        normal = self._normal(count, *shape)
        kind = torch.randint(0, 4, (count,), generator=self.generator)
        kind = kind.view(-1, *(1,) * len(shape))
        chance = torch.rand(normal.shape, generator=self.generator, dtype=torch.float64)
        few = normal * (chance < 2 / normal[0].numel())
        move = torch.where(kind == 0, normal.sign(), torch.where(kind == 1, few, normal))
        move = torch.where(kind == 2, 2 * chance - 1, move)
        return self._resized(move, self._lengths(limit))

    def _lengths(self, limit: Tensor) -> Tensor:
        """On the border, just within it and deep inside: (N,)."""
        chance = torch.rand(2, len(limit), generator=self.generator, dtype=torch.float64)
        inner = torch.where(chance[0] < 0.7, chance[1] ** 0.1, 10 ** (-3 * chance[1]))
        return limit * torch.where(chance[0] < 0.35, 1.0, inner) * INSIDE

    def _resized(self, move: Tensor, length: Tensor) -> Tensor:
        size = self.size(move).clamp_min(1e-300)
        return move * (length / size).view(-1, *(1,) * (move.ndim - 1))

    def _within(self, move: Tensor, limit: Tensor) -> Tensor:
        """The nearest move of a size within the limit."""
        limit = limit * INSIDE
        if self.case.settings.get("norm", "l2") == "linf":
            reach = limit.view(-1, *(1,) * (move.ndim - 1))
            return torch.maximum(torch.minimum(move, reach), -reach)
        return self._resized(move, torch.minimum(self.size(move), limit))

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def _place(self, rows: Tensor, e: Tensor) -> Tensor:
        return self.case.x[rows] + (self.scale * e).to(self.case.x)

    def _look(self, rows: Tensor, e: Tensor) -> Tensor:
        """The lead of the certified top over the rest at each place, held against the claims."""
        place = self._place(rows, e)
        slope = self._slope(place, self.y[rows]).double()
        self.points += len(rows)
        scale = self.scale.double()
        gone = (place.double() - self.case.x[rows].double()) / torch.where(scale > 0, scale, 1.0)
        self._hold(rows, self.size(gone), slope.abs())
        return _lead(slope.abs(), self.found.top[rows]).nan_to_num(nan=-torch.inf)

    def _hold(self, rows: Tensor, size: Tensor, ahead: Tensor) -> None:
        found, top = self.found, self.found.top[rows]
        slack = self._slack(ahead, self.clean.abs()[rows])
        lead = _lead(ahead, top)
        ranked = ahead.gather(1, top)
        steps = torch.cat([ranked[:, :-1] - ranked[:, 1:], lead[:, None]], 1)
        ordered = steps.amin(1)
        self._claim("set", rows, size, found.radius[rows], lead, -slack)
        self._claim("order", rows, size, found.order_radius[rows], ordered, -slack)
        # A feature has left for certain if k others are clearly above it.
        above = ahead[:, None] > ranked[:, :, None] + slack[:, None, None]
        stayed = (above.sum(-1) < top.shape[1]).double().mean(1)
        stayed = torch.where(ahead.isnan().any(1), torch.nan, stayed)
        for column, epsilon in enumerate(found.epsilons):
            promised = found.precision[rows, column]
            reach = torch.where(promised > 0, epsilon, 0.0)
            self._claim(f"P@k at {epsilon:g}", rows, size, reach, stayed, promised - 1e-9)

    def _claim(
        self, what: str, rows: Tensor, size: Tensor, reach: Tensor, value: Tensor, least: Tensor
    ) -> None:
        wrong = (reach > 0) & (size <= reach) & ~(value >= least)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            raise Broken(
                f"row {int(rows[at])}: the {what} certified within {float(reach[at]):.4g} does not "
                f"hold at {float(size[at]):.4g} ({float(value[at]):.3g}, promised "
                f"{float(least[at]):.3g})"
            )

    def _at_places(self) -> None:
        if self.case.places is None:
            return
        scale = self.scale.double()
        gone = self.case.places.double() - self.case.x.double()
        e = torch.where(scale > 0, gone / torch.where(scale > 0, scale, 1.0), 0.0)
        self._look(torch.arange(len(e)), e)

    def _descend(self, rows: Tensor, limit: Tensor) -> None:
        """Steps down the gap of a pair: the weakest one told, or a random one."""
        e, pairs = self._starts(limit), self._pairs(rows)
        for step in range(STEPS):
            downhill = self._downhill(rows, e, pairs)
            e = self._within(e - self._resized(downhill, limit * 0.7**step), limit)
            self._look(rows, e)

    def _pairs(self, rows: Tensor) -> Tensor:
        """A feature of the top and one of the rest for each row: (N, 2)."""
        n, (_, k) = self.clean.shape[1], self.found.top.shape
        chance = torch.rand(len(rows), n, generator=self.generator, dtype=torch.float64)
        top = self.found.top[rows]
        within = top.gather(1, chance[:, :k].argmax(1, keepdim=True))
        outside = chance.scatter(1, top, -1.0).argmax(1, keepdim=True)
        drawn = torch.cat([within, outside], 1)
        weakest = self.found.weakest[rows]
        return torch.where((torch.arange(len(rows)) % 3 == 0)[:, None], drawn, weakest)

    def _downhill(self, rows: Tensor, e: Tensor, pairs: Tensor) -> Tensor:
        """Where the gap of the pairs grows most; at random where that cannot be told."""
        anyhow = self._normal(*e.shape)
        if not self.differentiable:
            return anyhow
        at = self._place(rows, e).detach().requires_grad_()
        try:
            slope = true_slope(
                self.case.model, at, self.y[rows], self.case.settings, create_graph=True
            )
            ours, theirs = slope.gather(1, pairs).unbind(1)
            gap = ours * self.clean[rows].gather(1, pairs[:, :1])[:, 0].sign() - theirs.abs()
            (rise,) = torch.autograd.grad(gap.sum(), at, allow_unused=True)
        except Exception:  # no second derivative: the model's own affair
            rise = None
        if rise is None:
            self.differentiable = False
            return anyhow
        rise = rise.double() * self.scale.double()
        if self.case.settings.get("norm", "l2") == "linf":
            rise = rise.sign()
        dead = ~rise.isfinite().flatten(1).all(1) | (rise.flatten(1).abs().amax(1) == 0)
        return torch.where(dead.view(-1, *(1,) * (rise.ndim - 1)), anyhow, rise)

    def _climb(self, rows: Tensor, limit: Tensor) -> None:
        """Random steps, kept where the lead gets no larger: needs no derivative of slopes."""
        e = self._starts(limit)
        best = torch.full((len(rows),), torch.inf, dtype=torch.float64)
        for step in range(STEPS):
            chance = torch.rand(len(rows), generator=self.generator, dtype=torch.float64)
            move = self._resized(self._normal(*e.shape), limit * 10**-chance)
            move = move if step else torch.zeros_like(e)
            tried = self._within(e + move, limit)
            lead = self._look(rows, tried)
            better = lead <= best
            best = torch.where(better, lead, best)
            e = torch.where(better.view(-1, *(1,) * (e.ndim - 1)), tried, e)

    def _to_kinks(self, rows: Tensor, limit: Tensor) -> None:
        """Onto, just before and just behind places where a number of the network is zero."""
        e = self._starts(limit)
        for step in range(STEPS):
            aim = (0.0, 1e-6, -1e-6, 1e-2, -1e-2, 0.0)[step % 6]
            e = self._within(e + self._towards(rows, e, aim), limit)
            self._look(rows, e)

    def _towards(self, rows: Tensor, e: Tensor, aim: float) -> Tensor:
        """The shortest step that brings a random number before an activation to `aim`."""
        at = self._place(rows, e).detach().requires_grad_()
        try:
            with torch.enable_grad(), _Listening() as heard:
                self.case.model(at)
            inner = torch.cat([each.reshape(len(rows), -1) for each in heard.met], 1)
            unit = torch.randint(inner.shape[1], (len(rows), 1), generator=self.generator)
            z = inner.gather(1, unit)[:, 0]
            (rise,) = torch.autograd.grad(z.sum(), at)
        except Exception:  # nothing was heard, or nothing that can be differentiated
            return self._resized(self._normal(*e.shape), self.size(e) / 10)
        rise = rise.double() * self.scale.double()
        square = rise.flatten(1).square().sum(1)
        length = torch.where(square > 0, (aim - z.detach().double()) / square, 0.0)
        step = rise * length.view(-1, *(1,) * (rise.ndim - 1))
        return step.nan_to_num(0.0, 0.0, 0.0)


class _Listening(TorchFunctionMode):
    """Keeps what enters activations."""

    BENDING = ("relu", "softplus", "sigmoid", "tanh", "silu", "gelu", "elu", "clamp", "abs", "max",
               "where", "threshold", "sign", "round", "floor")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.met: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if any(each in name for each in self.BENDING) and args:
            entering = args[0]
            if isinstance(entering, Tensor) and entering.grad_fn is not None:
                self.met.append(entering.clone())
        return func(*args, **(kwargs or {}))


def _labels(case: Case) -> tuple[Tensor, Tensor]:
    """The model's logits, and the explained classes: those given, else those it predicts."""
    try:
        with torch.enable_grad():
            logits = case.model(case.x.detach().clone().requires_grad_()).detach()
        if not (isinstance(logits, Tensor) and logits.ndim == 2):
            raise TypeError("not one row of logits for each example")
    except Exception as fault:
        raise Broken(f"certified, but the model raises {type(fault).__name__}: {fault}") from None
    given = case.settings.get("y")
    if given is not None:
        return logits, given
    return logits, logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()


def _lead(ahead: Tensor, top: Tensor) -> Tensor:
    """By how much the last of the top leads the first of the rest: (N,)."""
    rest = ahead.scatter(1, top, -torch.inf).amax(1)
    lead = ahead.gather(1, top).amin(1) - rest
    return torch.where(ahead.isnan().any(1), torch.nan, lead)


def has_cells(case: Case) -> bool:
    """Whether all slopes are known cell by cell: a single hidden layer of a few (Leaky)ReLUs."""
    model = case.model
    if type(model) is not nn.Sequential or [type(each) for each in model][::2] != [nn.Linear] * 2:
        return False
    if type(model[1]) not in (nn.ReLU, nn.LeakyReLU) or model[0].out_features > 8:
        return False
    return bool(model[2].out_features == 2 and not case.settings.get("one_hot"))


def nearest_break(attack: Attack, row: int) -> Tensor | None:
    """The shortest move into a cell of another top k; None if there is no such cell.

    In a cell each hidden number keeps its sign, and all slopes are constant. How near a cell comes
    is a least-distance problem with linear constraints.
    """
    first, bend, last = attack.case.model
    below = getattr(bend, "negative_slope", 0.0)
    weight, scale = first.weight.detach().double(), attack.scale.double()
    at = weight @ attack.case.x[row].double() + first.bias.detach().double()
    if attack.case.settings.get("of") == "logit":
        out = last.weight.detach().double()[attack.y[row]]
    else:
        out = (last.weight[1] - last.weight[0]).detach().double()
    best: Tensor | None = None
    box = attack.case.settings.get("norm", "l2") == "linf"
    for signs in product((1.0, -1.0), repeat=len(at)):
        side = torch.tensor(signs, dtype=torch.float64)
        slope = (out * torch.where(side > 0, 1.0, below)) @ weight
        lead = _lead(slope.abs()[None], attack.found.top[row : row + 1])
        if float(lead) >= -1e-6 * float(slope.abs().max()):
            continue
        # A little beyond the edge of the cell, to be inside for certain.
        place = _shortest((side[:, None] * weight * scale).numpy(), (1e-9 - side * at).numpy(), box)
        if place is not None and (best is None or _norm(place, box) < _norm(best, box)):
            best = place
    return best


def _norm(e: Tensor, box: bool) -> float:
    return float(e.abs().max() if box else e.norm())


def _shortest(G: np.ndarray[Any, Any], h: np.ndarray[Any, Any], box: bool) -> Tensor | None:
    """The shortest e with G e >= h, None if there is none [Lawson and Hanson 1974, ch. 23]."""
    n = G.shape[1]
    if box:
        sides = np.block([[np.eye(n), -np.ones((n, 1))], [-np.eye(n), -np.ones((n, 1))]])
        bound = np.vstack([np.hstack([-G, np.zeros((len(G), 1))]), sides])
        answer = linprog(
            np.r_[np.zeros(n), 1.0], bound, np.r_[-h, np.zeros(2 * n)], bounds=(None, None)
        )
        return torch.from_numpy(answer.x[:n].copy()) if answer.status == 0 else None
    E = np.vstack([G.T, h])
    target = np.r_[np.zeros(n), 1.0]
    weights, left = nnls(E, target)
    if left < 1e-9:
        return None
    rest = E @ weights - target
    e = -rest[:n] / rest[n]
    return torch.from_numpy(e) if (G @ e >= h - 5e-10).all() else None


def counted(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How often each verdict was reached."""
    counts = dict.fromkeys(VERDICTS, 0)
    for outcome in outcomes:
        counts[outcome.verdict] += 1
    return counts
