"""Models of tables as audits of reasons take them: networks, and what stands behind bands."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from r2et.actionable.tables import SLACK, TableMoves, combinations
from r2et.auditing.parts import Preflight
from r2et.auditing.reason_settings import ReasonSettings
from r2et.auditing.tables import Chunk, Columns, Source
from r2et.bands.binner import StableBinner
from r2et.bands.verdicts import CellModel, cell_verdicts
from r2et.certification.bisection import ContributionVerdicts, search_contributions
from r2et.certification.contributions import (
    ContributionCertificate,
    certify_contributions,
    never_decided,
)
from r2et.certification.replay import RecordedModel
from r2et.core.coalitions import MOST_EXACT, Coalitions
from r2et.core.reasons import Question, ReasonVerdict, decided_by
from r2et.data.features import in_words
from r2et.evaluation.reasons import Proof, TableModel
from r2et.explainers import Form, Shapley, class_logits

Floats = NDArray[np.float64]

ORDERS = 16
"""Orders of attributes, where these are too many for all mixtures."""
MOST_EXCHANGES = 64  # of words, each of which is proved by itself
NUMBERS_AT_ONCE = 1_000_000  # of mixed rows that a network is asked about together: few megabytes
DIGITS, SINGLE_DIGITS = 12, 6
"""Of a number that is told, if inputs are in double or in single precision: what is left is the
rounding of a scale there and back."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TableCode:
    """Inputs of a network as rows of attributes, numbers and words, and back.

    `known` says which inputs each word met so far stands for.
    """

    columns: Columns
    known: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The column of each attribute that is a number, its marks of missing values aside."""
        features = self.columns.features
        return {
            name: places[0]
            for name, places in self.columns.groups.items()
            if features[places[0]].kind == "numeric"
            and all(features[place].kind == "binary" for place in places[1:])
        }

    @property
    def names(self) -> list[str]:
        """The attributes."""
        return list(self.columns.groups)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The attribute of each input."""
        places = {name: at for at, name in enumerate(self.names)}
        return tuple(places[feature.group] for feature in self.columns.features)

    def unit(self, name: str) -> str:
        """What a number counts."""
        return self.columns.features[self.columns.groups[name][0]].unit

    def words(self, name: str) -> tuple[str, ...]:
        """All values that an attribute of words can have."""
        places = self.columns.groups[name]
        features = [self.columns.features[place] for place in places]
        if len(places) > 1 and all(feature.kind == "category" for feature in features):
            rows = np.eye(len(places))
        elif len(places) == 1:
            rows = np.array([[0.0], [1.0]])
        else:
            return ()
        scale = self.columns.scale
        known = self.known.setdefault(name, {})
        found = []
        for row in rows:
            word = in_words(list(zip(features, row.tolist(), strict=True)))
            raw = torch.from_numpy(row)
            known.setdefault(word, (raw - scale.shift[places]) / scale.width[places])
            found.append(word)
        return tuple(found)

    def frame(self, x: Tensor) -> pd.DataFrame:
        """The attributes of rows of inputs, (N, d): numbers with NaN, and words."""
        raw = self.columns.scale.undo(x.double())
        single = bool((x.float().double() == x.double()).all())
        found: dict[str, Any] = {}
        for name, places in self.columns.groups.items():
            if name in self.numbers:
                own = raw[:, places[0]].tolist()
                values = np.array([_told(each, single) for each in own])
                marked = (raw[:, places[1:]].round() == 1).any(1).numpy()
                found[name] = np.where(marked, np.nan, values)
            else:
                found[name] = self._in_words(name, places, x, raw)
        return pd.DataFrame(found)

    def _in_words(self, name: str, places: list[int], x: Tensor, raw: Tensor) -> Any:
        features = [self.columns.features[place] for place in places]
        known = self.known.setdefault(name, {})
        rows, index = raw[:, places].unique(dim=0, return_inverse=True)
        words = []
        for number, row in enumerate(rows.tolist()):
            own = x[int((index == number).nonzero()[0]), places].double()
            bare = word = in_words(list(zip(features, row, strict=True)))
            count = 1
            while word in known and not torch.equal(known[word], own):
                count += 1  # mixtures that read alike
                word = f"{bare} ({count})"
            known[word] = own
            words.append(word)
        return np.array(words, dtype=object)[index.numpy()]

    def inputs(self, rows: pd.DataFrame) -> Tensor:
        """Rows of attributes as the network takes them: (N, d) in float64."""
        x = torch.zeros(len(rows), len(self.columns.features), dtype=torch.float64)
        for name, places in self.columns.groups.items():
            x[:, places] = self.block(name, rows[name].to_numpy())
        return x

    def block(self, name: str, values: NDArray[Any]) -> Tensor:
        """What values of one attribute are as inputs: (N, columns)."""
        places, scale = self.columns.groups[name], self.columns.scale
        if name not in self.numbers:
            self.words(name)
            known = self.known[name]
            codes, words = pd.factorize(values)
            for word in words:
                if word not in known:
                    raise ValueError(
                        f"{name!r} cannot be {word!r}: its values are {', '.join(map(str, known))}."
                    )
            return torch.stack([known[word] for word in words])[torch.from_numpy(codes)]
        numbers = torch.from_numpy(np.asarray(values, dtype=np.float64).copy())
        absent = numbers.isnan()
        filled = torch.where(absent, scale.fill[places[0]].double(), numbers)
        own = (filled - scale.shift[places[0]]) / scale.width[places[0]]
        marks = [absent.double()] * (len(places) - 1)
        return torch.stack([own, *marks], 1)


def _told(value: float, single: bool) -> float:
    """A number without what a scale there and back adds to it."""
    return float(f"{value:.{SINGLE_DIGITS if single else DIGITS}g}")


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkTable:
    """A network in float64 and rows of attributes, told against `reference`, (R, d) inputs."""

    model: nn.Module
    code: TableCode
    reference: Tensor
    classes: Sequence[str]
    threshold: float = 0.5
    recorded: RecordedModel | None = None
    """What the network runs, if bounds are known for all of it."""

    @property
    def names(self) -> Sequence[str]:
        """The attributes."""
        return self.code.names

    @cached_property
    def explainer(self) -> Shapley:
        """What gives the contributions, signed."""
        many = len(self.names) > MOST_EXACT
        return Shapley(
            form="signed",
            groups=self.code.groups,
            reference=self.reference,
            orders=ORDERS if many else None,
        )

    @cached_property
    def coalitions(self) -> Coalitions:
        """The sets of attributes whose scores contributions are made of."""
        return self.explainer.asked(self.model, self.reference[:1])[0]

    def scores(self, rows: pd.DataFrame) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        return self._scored(self.code.inputs(rows))

    def _scored(self, x: Tensor) -> Floats:
        with torch.no_grad():
            logits = torch.cat([self._logits(part) for part in x.split(self._at_once)])
        if logits.shape[1] == 2:
            half = (logits[:, 1] - logits[:, 0] - _log_odds(self.threshold)) / 2
            logits = torch.stack([-half, half], 1)
        found: Floats = logits.cpu().numpy()
        return found

    @property
    def _at_once(self) -> int:
        return max(1, NUMBERS_AT_ONCE // max(1, len(self.code.columns.features)))

    def _logits(self, x: Tensor) -> Tensor:
        logits = class_logits(self.model(x.to(self.reference.device)))
        if not logits.isfinite().all():
            raise ValueError(
                "the model returned NaN or infinite logits, of an audited row or of a mixture with "
                "the reference: check its weights, and how inputs are scaled."
            )
        return logits

    def _margins(self, x: Tensor) -> Tensor:
        """The score of each class less the largest of the others: (N, C)."""
        logits = self._logits(x)
        if logits.shape[1] == 2:
            odds = logits[:, 1] - logits[:, 0]
            return torch.stack([-odds, odds], 1)
        first = logits.topk(2, 1)
        own = torch.arange(logits.shape[1], device=logits.device) == first.indices[:, :1]
        return logits - torch.where(own, first.values[:, 1:], first.values[:, :1])

    def contributions(self, rows: pd.DataFrame) -> Floats:
        """What each attribute adds to the margin of each class: (N, m, C)."""
        with torch.no_grad():
            found = self._contributions(self.code.inputs(rows))
        numbers: Floats = found.cpu().numpy()
        return numbers

    def _contributions(self, x: Tensor) -> Tensor:
        members, weights = self.coalitions.members, self.coalitions.weights
        at_once = max(1, self._at_once // (len(members) * len(self.reference)))
        parts = [
            torch.einsum("nkc,km->nmc", self._mixed(part, members), weights.to(x))
            for part in x.split(at_once)
        ]
        return torch.cat(parts)

    def _mixed(self, x: Tensor, members: Tensor) -> Tensor:
        """The mean margin over the reference where each set of attributes is a row's: (N, K, C)."""
        x = x.to(self.reference)
        taken = members[:, torch.tensor(self.code.groups)].to(x.device)  # (K, d)
        found = []
        at_once = max(1, self._at_once // (len(x) * len(self.reference)))
        for some in taken.split(at_once):
            mixed = torch.where(some[:, None], x[:, None, None], self.reference)  # (n, k, R, d)
            margins = self._margins(mixed.flatten(0, 2))
            found.append(margins.view(*mixed.shape[:3], -1).mean(2))
        return torch.cat(found, 1)

    def product(
        self, row: pd.DataFrame, axes: Mapping[str, Sequence[Any]]
    ) -> tuple[Floats, Floats]:
        """Scores, (N, C), and contributions, (N, m, C), of all combinations, the last axis fastest.

        A set of attributes is asked for once with all that those of its members become that move:
        what the others become is not its business.
        """
        x, places = self.code.inputs(row), self.code.columns.groups
        blocks = {name: self.code.block(name, np.array(own)) for name, own in axes.items()}
        shape = [len(own) for own in axes.values()]
        members, weights = self.coalitions.members, self.coalitions.weights.to(x)
        moving = torch.tensor([self.names.index(name) for name in axes], dtype=torch.long)
        moved = members[:, moving]  # (K, q)
        phi = x.new_zeros(*shape, len(self.names), len(self.classes))
        with torch.no_grad():
            for inside in product((False, True), repeat=len(axes)):
                own = (moved == torch.tensor(inside, dtype=torch.bool)).all(1)
                if not own.any():
                    continue
                chosen = [name for name, within in zip(axes, inside, strict=True) if within]
                rows = _placed(x, [(places[name], blocks[name]) for name in chosen])
                scored = torch.cat(
                    [
                        self._mixed(part, members[own])
                        for part in rows.split(max(1, self._at_once // len(self.reference)))
                    ]
                ).cpu()
                added = torch.einsum("nkc,km->nmc", scored, weights[own])
                sizes = [n if within else 1 for n, within in zip(shape, inside, strict=True)]
                phi += added.view(*sizes, *added.shape[1:])
        everything = _placed(x, [(places[name], blocks[name]) for name in axes])
        found: Floats = phi.flatten(0, len(shape) - 1).numpy() if shape else phi[None].numpy()
        return self._scored(everything), found

    def slopes(self, rows: pd.DataFrame, weights: Floats, labels: Sequence[int]) -> pd.DataFrame:
        """Slopes by each number of what attributes, weighted (N, m), add to a class (N,)."""
        x = self.code.inputs(rows)
        scale, found = self.code.columns.scale, []
        for at, label in enumerate(labels):
            one = x[at : at + 1].requires_grad_()
            phi = self._contributions(one)[0, :, label]
            (slope,) = torch.autograd.grad(phi @ torch.from_numpy(weights[at]).to(phi), one)
            found.append((slope[0] / scale.width.to(slope)).cpu())
        slopes = torch.stack(found).numpy()
        return pd.DataFrame({name: slopes[:, at] for name, at in self.code.numbers.items()})

    def proved(
        self, people: pd.DataFrame, moves: TableMoves, question: Question
    ) -> list[Proof | None]:
        """What bounds prove of each decision; None where words may be too many, or codes sums."""
        if not self._provable(question):
            return [None] * len(people)
        found = []
        for row in range(len(people)):
            person = people[row : row + 1].reset_index(drop=True)
            found.append(self._proved(person, moves, question))
        return found

    def searched(
        self, person: pd.DataFrame, moves: TableMoves, question: Question, seconds: float
    ) -> Proof | None:
        """What a search of about so many seconds proves of one decision."""
        return self._proved(person, moves, question, seconds) if self._provable(question) else None

    def _provable(self, question: Question) -> bool:
        return self.recorded is not None and len(question.labels(self.names)) == len(self.names)

    def _proved(
        self,
        person: pd.DataFrame,
        moves: TableMoves,
        question: Question,
        seconds: float | None = None,
    ) -> Proof | None:
        """What is proved of one decision, whatever words become; by a search within `seconds`."""
        row = {name: person[name].iloc[0] for name in self.names}
        words = {name: moves.steps(name, row[name]) or {} for name in moves.exchange}
        affordable = moves.sizes(words) <= 1 + SLACK
        if affordable.sum() > MOST_EXCHANGES:
            return None
        chosen = [
            values for values, can in zip(combinations(words), affordable, strict=True) if can
        ]
        variants = pd.concat([person.assign(**values) for values in chosen], ignore_index=True)
        decided = decided_by(self.scores(variants))
        box = self._box(variants, moves, row)
        # Words with which no move keeps the decision do not count; those that may not, all do.
        other = np.flatnonzero(decided != decided[0])
        label = torch.full((len(other),), int(decided[0]))
        low, high = (each[other] for each in box[:2])
        if len(other) and not bool(self._never(low, high, label).all()):
            return None
        same = np.flatnonzero(decided == decided[0])
        chosen = [chosen[at] for at in same]
        certificate = self._certified(variants.iloc[same], box, question, same, seconds)
        tops = [set(each) for each in certificate.top.tolist()]
        if any(top != tops[0] for top in tops):
            return None
        core = set(tops[0])
        for top, stays in zip(certificate.top.tolist(), certificate.core.tolist(), strict=True):
            core &= {place for place, kept in zip(top, stays, strict=True) if kept}
        least = float(certificate.precision.min())
        broken = certificate.broken.nonzero().flatten().tolist()
        hint = None
        if broken:
            there = self.code.frame(certificate.breaking[broken[0]][None])
            numbers = {name: float(there[name].iloc[0]) for name in moves.width}
            hint = {**chosen[broken[0]], **numbers}
        return Proof(core=tuple(core), kept=int(least * question.k + 1e-6), hint=hint)

    def _never(self, low: Tensor, high: Tensor, label: Tensor) -> Tensor:
        assert self.recorded is not None
        return never_decided(self.recorded, low, high, label, _log_odds(self.threshold))

    def _box(
        self, rows: pd.DataFrame, moves: TableMoves, own: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Least and greatest inputs of rows whose numbers move as a person's do, and steps."""
        x = self.code.inputs(rows)
        low, high, unit = x.clone(), x.clone(), torch.zeros_like(x[0])
        width, shift = (getattr(self.code.columns.scale, name) for name in ("width", "shift"))
        for name in moves.width:
            at, value = self.code.numbers[name], float(own[name])
            if math.isfinite(value):
                least, most = moves.span(name, value)
                low[:, at] = (least - shift[at]) / width[at]
                high[:, at] = (most - shift[at]) / width[at]
                if name in moves.whole and value == round(value):
                    unit[at] = 1 / width[at]
        return torch.minimum(low, x), torch.maximum(high, x), unit

    def _certified(
        self,
        rows: pd.DataFrame,
        box: tuple[Tensor, Tensor, Tensor],
        question: Question,
        places: Any,
        seconds: float | None,
    ) -> ContributionCertificate | ContributionVerdicts:
        """The certificate of rows, those of some places of a box, or what a search finds."""
        assert self.recorded is not None
        low, high, unit = box
        form: Form = "signed" if question.side == "for" else question.side
        proved: Callable[..., ContributionCertificate | ContributionVerdicts]
        proved = certify_contributions
        if seconds is not None:
            proved = partial(search_contributions, seconds=seconds)
        return proved(
            self.recorded,
            self.code.inputs(rows),
            k=question.k,
            explainer=replace(self.explainer, form=form),
            perturbation=(low[places], high[places]),
            unit=unit,
            threshold=_log_odds(self.threshold),
        )

    def standard_error(self, rows: pd.DataFrame) -> Floats | None:
        """Of contributions that are means over random orders: (N, m, C); None if they are exact."""
        parts = self.coalitions.parts
        if parts is None:
            return None
        with torch.no_grad():
            scores = self._mixed(self.code.inputs(rows), self.coalitions.members)
        spread = torch.einsum("nkc,pkm->pnmc", scores, parts.to(scores)).std(0)
        found: Floats = (spread / len(parts) ** 0.5).cpu().numpy()
        return found


def _placed(x: Tensor, blocks: Sequence[tuple[list[int], Tensor]]) -> Tensor:
    """The row x, (1, d), with every combination of blocks of columns, the last one fastest."""
    for places, values in blocks:
        count = len(values)
        x = x.repeat_interleave(count, 0)
        x[:, places] = values.repeat(len(x) // count, 1)
    return x


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


@dataclass(frozen=True, kw_only=True, eq=False)
class BandedTable:
    """What a model says of the bands of a binner: its verdicts are exact."""

    binner: StableBinner
    model: CellModel
    reference: pd.DataFrame

    @property
    def names(self) -> Sequence[str]:
        """The attributes."""
        return [each.name for each in self.binner.attributes_]

    @property
    def classes(self) -> Sequence[str]:
        """What the outcomes are called."""
        return [str(label) for label in self.binner.classes_.tolist()]

    def scores(self, rows: pd.DataFrame) -> Floats:
        """A score for each class, the largest of which is decided: (N, C)."""
        return self.model.score(self.binner.codes(rows))

    def contributions(self, rows: pd.DataFrame) -> Floats:
        """What each attribute adds to the margin of each class: (N, m, C)."""
        return self.model.contributions(self.binner.codes(rows))

    def verdicts(
        self, people: pd.DataFrame, moves: TableMoves, question: Question
    ) -> list[ReasonVerdict]:
        """The verdict on each decision, by all cells that moves lead to."""
        return cell_verdicts(
            self.binner,
            self.model,
            people,
            k=question.k,
            side=question.side,
            width=moves,
            codes=question.codes,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReasonSubject:
    """A model ready for an audit.

    `frame` gives the rows of a chunk as it takes them; `words` are the values of attributes of
    words, `usual` what is usual in its reference. `own` is what it says of itself: how many reasons
    of which side it tells, by which codes; `widths` is how far numbers move by what it was made
    for.
    """

    name: str
    model: TableModel
    digest: str
    frame: Callable[[Chunk], pd.DataFrame]
    words: Mapping[str, tuple[str, ...]]
    units: Mapping[str, str]
    usual: Mapping[str, str]
    reference_said: str
    reference_digest: str
    threshold: float
    widths: Mapping[str, float] | None = None
    own: Question = field(default_factory=Question)
    preflight: tuple[Preflight, ...] = ()
    notes: tuple[str, ...] = ()

    def question(self, settings: ReasonSettings) -> Question:
        """What is asked of its reasons."""
        declined = settings.only == "declined"
        return Question(
            k=self._k(settings),
            side=settings.side or ("for" if declined else self.own.side),
            codes=settings.codes or self.own.codes,
        )

    def _k(self, settings: ReasonSettings) -> int:
        """How many reasons: of few attributes all but one, unless more are asked for."""
        if settings.k is not None:
            return settings.k
        codes = settings.codes or self.own.codes
        return max(1, min(self.own.k, len({codes.get(n, n) for n in self.model.names}) - 1))

    def odds(self, scores: Floats) -> Floats:
        """The log-odds of each class, of scores of which the largest is decided: (N, C)."""
        if scores.shape[1] == 2:
            odds = scores[:, 1] - scores[:, 0] + math.log(self.threshold / (1 - self.threshold))
            return np.stack([-odds, odds], 1)
        logs = scores - np.logaddexp.reduce(scores, 1, keepdims=True)
        found: Floats = logs - np.log1p(-np.minimum(np.exp(logs), 1 - 1e-12))
        return found


SubjectOf = Callable[[Source, Chunk, ReasonSettings], list[ReasonSubject]]
