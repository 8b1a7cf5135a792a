"""The self-check of an audit: proved decisions are attacked where the proof says nothing can be.

A proof is as good as the program that gives it. So a share of all decisions with a proof, those
proved furthest first, is attacked inside the proved radius, by the strong attack, by random points
and along the border. One success stops the audit: `Contradiction` tells it to the last digit, and
`replay` looks at it again.
"""

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from r2et import __version__
from r2et.attacks.registry import attack
from r2et.auditing.auditor import INSIDE, Auditor, searched
from r2et.auditing.evidence import Evidence
from r2et.auditing.settings import LEAST_CHECKED, AuditSettings
from r2et.auditing.subject import made_ready, model_digest
from r2et.auditing.tables import Chunk
from r2et.certification.certificate import certify
from r2et.certification.replay import record as recorded_from
from r2et.core.files import write_text
from r2et.core.one_hot import project_one_hot
from r2et.core.ranking import order, precision_at_k
from r2et.core.records import from_json, to_json
from r2et.core.rng import stream
from r2et.explainers import input_gradient
from r2et.perturbations import PERTURBATIONS, NormBall

FILE = "contradiction.json"
SCHEMA: Literal["r2et-contradiction/2"] = "r2et-contradiction/2"
FAR = (1.0, 10.0, 1000.0)  # longest audited lengths at which an unbounded proof is attacked
GROUPS = 2  # of decisions with radii near one another, attacked together at the least of them
POINTS = 32  # random ones of each decision: half inside, a quarter on the border, a quarter corners


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """A change that replaces a reason where a proof says that none does, to the last digit.

    The content of `contradiction.json`. A `proved_radius` of None has no bound.
    """

    schema: Literal["r2et-contradiction/2"] = SCHEMA
    created: str
    version: str
    torch: str
    model: str
    digest: str
    row: int
    id: str | None
    predicted: int
    proved_radius: float | None
    distance: float
    reasons_at_x: tuple[str, ...]
    reasons_at_changed: tuple[str, ...]
    left: tuple[str, ...]
    entered: tuple[str, ...]
    names: tuple[str, ...]
    x: tuple[float, ...]
    changed: tuple[float, ...]
    reach: tuple[float, ...]
    one_hot: tuple[tuple[int, ...], ...] | None
    settings: AuditSettings
    reproduce: tuple[str, ...] = (
        "from r2et.auditing import load_model, replay",
        "model = load_model('MODEL').model  # what --model said, weights behind an @",
        f"print(replay('{FILE}', model))",
    )


class Contradiction(RuntimeError):
    """A change that was found where a proof says that there is none: a fault of this program.

    `record` tells it to the last digit, `path` is the file that holds it, None if there is no
    folder to keep it in.
    """

    def __init__(self, record: Refutation, where: str, path: Path | None = None) -> None:
        self.record, self.where, self.path = record, where, path
        proved = record.proved_radius
        kept = (
            "its .record tells it to the last digit, and out= would keep that in a file"
            if path is None
            else f"{path} tells it to the last digit and how to see it again"
        )
        super().__init__(
            f"row {record.row} of {where}, model {record.model}: a change of length "
            f"{record.distance:.6g} replaces {record.left[0]!r} by {record.entered[0]!r}, where a "
            f"proof says that no change "
            f"{'of any length' if proved is None else f'up to {proved:.6g}'} does: this is a fault "
            "of r2et, the audit stops and nothing it called certified can be relied on; "
            f"{kept}: please report it."
        )

    def kept_in(self, folder: Path) -> "Contradiction":
        """The same, now kept in a file of a folder."""
        text = json.dumps(to_json(self.record), indent=1, allow_nan=False, ensure_ascii=False)
        return Contradiction(self.record, self.where, write_text(folder / FILE, text))


def check(auditor: Auditor, evidence: Evidence, chunk: Chunk, where: str, first: bool) -> Tensor:
    """Which decisions were attacked inside their radii: (B,). A success is a `Contradiction`.

    Of the `first` chunk of an audit some are checked at least.
    """
    whole = SelfCheck(auditor=auditor, evidence=evidence, chunk=chunk, where=where)
    whole.hold_to_promises()
    rows = chosen(evidence.certified, auditor.settings, chunk, LEAST_CHECKED if first else 0)
    whole.attack_inside(rows)
    return torch.zeros_like(evidence.tie, dtype=torch.bool).index_fill(0, rows, True)


def chosen(certified: Tensor, settings: AuditSettings, chunk: Chunk, least: int) -> Tensor:
    """The decisions that are checked, those proved furthest first, equals as drawn: (c,)."""
    proved = int((certified > 0).sum())
    count = max(math.ceil(settings.checked * proved), least) if settings.checked else 0
    drawn = torch.randperm(
        len(certified), generator=stream(settings.seed, "check", str(chunk.rows[0]))
    ).to(certified.device)
    furthest = drawn[certified[drawn].argsort(descending=True, stable=True)]
    return furthest[: min(count, proved)]


@dataclass(frozen=True, kw_only=True, eq=False)
class SelfCheck:
    """Puts the proofs about the decisions of a chunk to the test; `where` they are from."""

    auditor: Auditor
    evidence: Evidence
    chunk: Chunk
    where: str

    def hold_to_promises(self) -> None:
        """Refuse a change that the audit itself found where a proof says that there is none."""
        evidence, settings = self.evidence, self.auditor.settings
        broken, kept = evidence.broken, evidence.certified_precision
        left = precision_at_k(
            evidence.clean.slopes.abs(), evidence.broken_by.slopes.abs(), settings.k
        )
        seen = broken < INSIDE * evidence.certified
        for at, length in enumerate(settings.epsilons):
            seen |= (broken < INSIDE * length) & (left < kept[:, at] - 0.5 / settings.k)
        if seen.any():
            row = int(seen.nonzero()[0])
            promised = [
                length for at, length in enumerate(settings.epsilons) if kept[row, at] > left[row]
            ]
            promise = max(float(evidence.certified[row]), *promised, 0.0)
            raise self.contradiction(row, evidence.broken_by.x[row], promise)

    def attack_inside(self, rows: Tensor) -> None:
        """Attack these decisions at their own lengths, the longest first."""
        certified = self.evidence.certified[rows]
        bounded = certified.isfinite()
        tasks = [(rows[bounded], certified[bounded])]
        for far in FAR:
            length = far * self.auditor.settings.epsilons[-1]
            tasks.append((rows[~bounded], torch.full_like(certified[~bounded], length)))
        for which, lengths in tasks:
            if len(which):
                for part in lengths.argsort(descending=True).chunk(GROUPS):
                    self._attack_group(which[part], lengths[part])

    def _attack_group(self, rows: Tensor, lengths: Tensor) -> None:
        """Attack decisions of similar radii together; a change that breaks one is refused."""
        auditor, clean, certified = self.auditor, self.evidence.clean, self.evidence.certified
        x, inside = clean.x[rows], lengths * (1 - 2 * (1 - INSIDE))
        strongest = self._strongest(rows, float(inside.min()))
        # The same way to the border of each decision's own region.
        found = [strongest, _to_length(auditor.region, strongest, x, inside)]
        found += self._points(x, inside)
        tried = rows.repeat(len(found))
        cost, nearest = auditor.nearest_break(clean, tried, [torch.cat(found)])
        false = cost < INSIDE * certified[tried]
        if false.any():
            at = int(cost.where(false, torch.inf).argmin())
            row = int(tried[at])
            raise self.contradiction(row, nearest[at], float(certified[row]))

    def _strongest(self, rows: Tensor, radius: float) -> Tensor:
        """The most damaging inputs that the strong attack finds within a length: (b, d)."""
        auditor, clean, settings = self.auditor, self.evidence.clean, self.auditor.settings
        return attack(
            auditor.subject.model,
            clean.x[rows],
            clean.y[rows],
            k=settings.k,
            explainer=auditor.explain,
            perturbation=auditor.region.at(radius),
            budget=replace(settings.budget, rounds=1),
            seed=settings.seed,
            rows_at_once=auditor.rows_at_once,
        ).x

    def _points(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Random inputs within lengths of their own, on the border and in corners: (b, d) each."""
        auditor, chunk = self.auditor, self.chunk
        count = POINTS if auditor.columns.tabular else POINTS // 8
        draw = stream(auditor.settings.seed, "check points", str(chunk.rows[0]))
        unit = auditor.region.at(1.0)
        inner, outer, corners = unit.offsets(x[0], count, draw).tensor_split(
            (count // 2, 3 * count // 4)
        )
        border = outer / unit.cost(outer, torch.zeros_like(outer))[:, None]
        # Corners of a box, and of as many features of a ball as chance has.
        corners = corners.sign() * auditor.reach
        if unit.norm != "linf":
            corners = torch.where(
                torch.rand(corners.shape, generator=draw).to(x) < 0.3, corners, 0.0
            )
            corners = corners / unit.cost(corners, torch.zeros_like(corners)).clamp_min(1)[:, None]
        moves = torch.cat([inner, border, corners])
        return [unit.confine(x + lengths[:, None] * move, x) for move in moves]

    def contradiction(self, row: int, changed: Tensor, promise: float) -> Contradiction:
        """A change of one decision that a promised radius excludes."""
        auditor, clean, chunk = self.auditor, self.evidence.clean, self.chunk
        k, columns = auditor.settings.k, auditor.columns
        both = auditor.explained(torch.stack([clean.x[row], changed]), clean.y[row].expand(2))
        names = tuple(feature.name for feature in columns.features)
        old, new = ([names[number] for number in each[:k].tolist()] for each in both.ranked)
        record = Refutation(
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            version=__version__,
            torch=torch.__version__,
            model=auditor.subject.name,
            digest=auditor.subject.digest,
            row=int(chunk.rows[row]),
            id=chunk.ids[row],
            predicted=int(clean.y[row]),
            proved_radius=None if math.isinf(promise) else promise,
            distance=float(auditor.region.cost(changed[None], clean.x[row][None])),
            reasons_at_x=tuple(old),
            reasons_at_changed=tuple(new),
            left=tuple(name for name in old if name not in new),
            entered=tuple(name for name in new if name not in old),
            names=names,
            x=tuple(clean.x[row].tolist()),
            changed=tuple(changed.tolist()),
            reach=tuple(columns.reach.tolist()),
            one_hot=auditor.one_hot,
            settings=auditor.settings,
        )
        return Contradiction(record, self.where)


def _to_length(region: NormBall, place: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
    """The inputs moved along their way from x until their cost is a length of their own: (b, d)."""
    cost = region.cost(place, x).clamp_min(torch.finfo(x.dtype).tiny)
    moved = x + (lengths / cost)[:, None] * (place - x)
    return region.confine(torch.where(place == x, x, moved), x)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A contradiction looked at again: reasons before and after, distance, radius proved now.

    It `holds` if a change within the radius that is proved now replaces a reason.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    distance: float
    radius: float
    holds: bool


def replay(path: str | Path, model: nn.Module) -> Replayed:
    """What becomes of a kept contradiction with the model it is about, by this version of r2et."""
    record = _read(Path(path))
    if model_digest(model) != record.digest:
        raise ValueError(
            f"{path} is about a model with the fingerprint {record.digest}, got one with "
            f"{model_digest(model)}: give the model that was audited."
        )
    settings = record.settings
    x = torch.tensor([record.x, record.changed], dtype=torch.float64)
    y = torch.tensor([record.predicted] * 2)
    exact = made_ready(record.model, model, x, settings.k).model
    one_hot = record.one_hot
    with torch.no_grad():
        slopes = project_one_hot(input_gradient(exact, x, y, settings.explained), one_hot)
    tops = order(slopes.abs())[:, : settings.k].tolist()
    reach = torch.tensor(record.reach, dtype=torch.float64)
    region = PERTURBATIONS[settings.norm](scale=reach)
    distance = float(region.cost(x[1:], x[:1]))
    proved = certify(
        exact,
        x[:1],
        y[:1],
        k=settings.k,
        of=settings.explained,
        one_hot=one_hot,
        perturbation=region,
        epsilons=(distance,),
    )
    radius = max(float(proved.radius), distance * bool(proved.precision[0, 0] == 1))
    if record.proved_radius is not None and radius < record.proved_radius:
        found = searched(
            recorded_from(exact, x[:1]),
            x[:1],
            y[:1],
            x[:1],
            settings,
            one_hot=one_hot,
            region=region.at(record.proved_radius),
        )
        radius = radius if found is None else max(radius, float(found.lower))
    before, after = (tuple(record.names[number] for number in top) for top in tops)
    return Replayed(
        before=before,
        after=after,
        distance=distance,
        radius=radius,
        holds=set(before) != set(after) and distance < radius,
    )


def _read(path: Path) -> Refutation:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(f"cannot read {path}: give the {FILE} of an audit.") from problem
    try:
        return from_json(Refutation, found)
    except ValueError as problem:
        raise ValueError(f"{path} is no contradiction of an audit: give its {FILE}.") from problem
