"""The self-check of an audit: proved decisions are attacked where the proof says nothing can be.

A proof is as good as the program that gives it. So a share of all decisions with a proof, those
proved furthest first, is attacked inside the proved radius, by the strong attack, by random points
and along the border. One success stops the audit: `Contradiction` tells it to the last digit, and
`replay` looks at it again.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2et import __version__
from r2et.attacks import strong_attack
from r2et.auditing.auditor import (
    DRAWN_AT_ONCE,
    INSIDE,
    Auditor,
    Evidence,
    Explained,
    made_ready,
)
from r2et.auditing.models import model_digest
from r2et.auditing.settings import AuditSettings
from r2et.auditing.tables import Chunk
from r2et.certification.certificate import certify
from r2et.core.files import write_text
from r2et.core.one_hot import project_one_hot
from r2et.core.ranking import order, precision_at_k
from r2et.core.rng import stream
from r2et.explainers import input_gradient
from r2et.perturbations import PERTURBATIONS, NormBall

FILE = "contradiction.json"
SCHEMA = "r2et-contradiction/1"
LEAST = 8  # proved decisions of the first chunk that are checked, if there are as many
FAR = (1.0, 10.0, 1000.0)  # longest audited lengths at which an unbounded proof is attacked
GROUPS = 2  # of decisions with radii near one another, attacked together at the least of them
POINTS = 32  # random ones of each decision: half inside, a quarter on the border, a quarter corners


class Contradiction(RuntimeError):
    """A change that was found where a proof says that there is none: a fault of this program.

    `record` tells it to the last digit, `path` is the file that holds it, None if there is no
    folder to keep it in.
    """

    def __init__(self, record: dict[str, Any], where: str, path: Path | None = None) -> None:
        self.record, self.where, self.path = record, where, path
        left, entered = record["left"][0], record["entered"][0]
        proved = record["proved radius"]
        kept = (
            "its .record tells it to the last digit, and out= would keep that in a file"
            if path is None
            else f"{path} tells it to the last digit and how to see it again"
        )
        super().__init__(
            f"row {record['row']} of {where}, model {record['model']}: a change of length "
            f"{record['distance']:.6g} replaces {left!r} by {entered!r}, where a proof says that "
            f"no change {'of any length' if proved is None else f'up to {proved:.6g}'} does: this "
            "is a fault of r2et, the audit stops and nothing it called certified can be relied on; "
            f"{kept}: please report it."
        )

    def kept_in(self, folder: Path) -> "Contradiction":
        """The same, now kept in a file of a folder."""
        text = json.dumps(self.record, indent=1, allow_nan=False, ensure_ascii=False)
        return Contradiction(self.record, self.where, write_text(folder / FILE, text))


def check(auditor: Auditor, evidence: Evidence, chunk: Chunk, where: str, first: bool) -> Tensor:
    """Which decisions were attacked inside their radii: (B,). A success is a `Contradiction`.

    Of the `first` chunk of an audit some are checked at least.
    """
    clean, lengths = evidence.clean, auditor.settings.epsilons
    seen = evidence.broken < INSIDE * evidence.certified
    left = precision_at_k(clean.slopes.abs(), evidence.broken_by.slopes.abs(), auditor.settings.k)
    for at, length in enumerate(lengths):
        promised = evidence.certified_precision[:, at] - 0.5 / auditor.settings.k
        seen |= (evidence.broken < INSIDE * length) & (left < promised)
    if seen.any():
        row = int(seen.nonzero()[0])
        promise = max(
            [float(evidence.certified[row])]
            + [
                length
                for at, length in enumerate(lengths)
                if evidence.certified_precision[row, at] > left[row]
            ]
        )
        raise _contradiction(auditor, clean, row, evidence.broken_by.x[row], promise, chunk, where)
    rows = chosen(evidence.certified, auditor.settings, chunk, LEAST if first else 0)
    _attack_inside(auditor, clean, rows, evidence.certified, chunk, where)
    return torch.zeros_like(seen).index_fill(0, rows, True)


def chosen(certified: Tensor, settings: AuditSettings, chunk: Chunk, least: int) -> Tensor:
    """The decisions that are checked, those proved furthest first, equals as drawn: (c,)."""
    proved = int((certified > 0).sum())
    count = max(math.ceil(settings.checked * proved), least) if settings.checked else 0
    drawn = torch.randperm(
        len(certified), generator=stream(settings.seed, "check", str(chunk.rows[0]))
    ).to(certified.device)
    furthest = drawn[certified[drawn].argsort(descending=True, stable=True)]
    return furthest[: min(count, proved)]


def _attack_inside(
    auditor: Auditor, clean: Explained, rows: Tensor, certified: Tensor, chunk: Chunk, where: str
) -> None:
    """Attack these decisions at their own lengths, the longest first."""
    longest = auditor.settings.epsilons[-1]
    bounded = certified[rows].isfinite()
    tasks = [(rows[bounded], certified[rows][bounded])]
    for far in FAR:
        endless = rows[~bounded]
        tasks.append((endless, torch.full_like(certified[endless], far * longest)))
    for which, lengths in tasks:
        if not len(which):
            continue
        ranked = lengths.argsort(descending=True)
        for part in ranked.chunk(GROUPS):
            _attack_group(auditor, clean, which[part], lengths[part], certified, chunk, where)


def _attack_group(
    auditor: Auditor,
    clean: Explained,
    rows: Tensor,
    lengths: Tensor,
    certified: Tensor,
    chunk: Chunk,
    where: str,
) -> None:
    """Attack decisions of similar radii together; a change that breaks one is a contradiction."""
    x, inside = clean.x[rows], lengths * (1 - 2 * (1 - INSIDE))
    found = [_strongest(auditor, clean, rows, float(inside.min()))]
    # The same way to the border of each decision's own region.
    found += [_to_length(auditor.region, place, x, inside) for place in found]
    found += _points(auditor, x, inside, chunk)
    tried = rows.repeat(len(found))
    cost, nearest = auditor.nearest_break(clean, tried, [torch.cat(found)])
    false = cost < INSIDE * certified[tried]
    if false.any():
        at = int(cost.where(false, torch.inf).argmin())
        row, promise = int(tried[at]), float(certified[tried[at]])
        raise _contradiction(auditor, clean, row, nearest[at], promise, chunk, where)


def _strongest(auditor: Auditor, clean: Explained, rows: Tensor, radius: float) -> Tensor:
    """The most damaging inputs that the strong attack finds within a length: (b, d)."""
    settings = auditor.settings
    drawn = auditor.columns.look is not None
    attack = partial(strong_attack, numbers_at_once=DRAWN_AT_ONCE) if drawn else strong_attack
    return attack(
        k=settings.k,
        explain=auditor.explain,
        radius=radius,
        threat=auditor.region,
        effort=replace(settings.effort, rounds=1),
        seed=settings.seed,
    )(auditor.subject.model, clean.x[rows], clean.y[rows]).x


def _to_length(region: NormBall, place: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
    """The inputs moved along their way from x until their cost is a length of their own: (b, d)."""
    cost = region.cost(place, x).clamp_min(torch.finfo(x.dtype).tiny)
    moved = x + (lengths / cost)[:, None] * (place - x)
    return region.confine(torch.where(place == x, x, moved), x)


def _points(auditor: Auditor, x: Tensor, lengths: Tensor, chunk: Chunk) -> list[Tensor]:
    """Random inputs within lengths of their own, on their border and in corners: (b, d) each."""
    count = POINTS if auditor.columns.look is None else POINTS // 8
    draw = stream(auditor.settings.seed, "check points", str(chunk.rows[0]))
    unit = auditor.region.at(1.0)
    inner, outer, corners = unit.offsets(x[0], count, draw).tensor_split(
        (count // 2, 3 * count // 4)
    )
    border = outer / unit.cost(outer, torch.zeros_like(outer))[:, None]
    # Corners of a box, and of as many features of a ball as chance has.
    corners = corners.sign() * auditor.reach
    if unit.norm != "linf":
        corners = torch.where(torch.rand(corners.shape, generator=draw).to(x) < 0.3, corners, 0.0)
        corners = corners / unit.cost(corners, torch.zeros_like(corners)).clamp_min(1)[:, None]
    moves = torch.cat([inner, border, corners])
    return [unit.confine(x + lengths[:, None] * move, x) for move in moves]


def _contradiction(
    auditor: Auditor,
    clean: Explained,
    row: int,
    changed: Tensor,
    promise: float,
    chunk: Chunk,
    where: str,
) -> Contradiction:
    settings, columns = auditor.settings, auditor.columns
    both = auditor.explained(torch.stack([clean.x[row], changed]), clean.y[row].expand(2))
    old, new = (each[: settings.k].tolist() for each in both.ranked)
    names = [feature.name for feature in columns.features]
    record = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": __version__,
        "torch": torch.__version__,
        "model": auditor.subject.name,
        "digest": auditor.subject.digest,
        "row": int(chunk.rows[row]),
        "id": chunk.ids[row],
        "class": int(clean.y[row]),
        "proved radius": None if math.isinf(promise) else promise,
        "distance": float(auditor.region.cost(changed[None], clean.x[row][None])),
        "reasons at x": [names[number] for number in old],
        "reasons at changed": [names[number] for number in new],
        "left": [names[number] for number in old if number not in new],
        "entered": [names[number] for number in new if number not in old],
        "names": names,
        "x": clean.x[row].tolist(),
        "changed": changed.tolist(),
        "reach": columns.reach.tolist(),
        "one-hot": None if auditor.one_hot is None else [list(each) for each in auditor.one_hot],
        "settings": json.loads(json.dumps(asdict(settings))),
        "reproduce": [
            "from r2et.auditing import load_model, replay",
            "model = load_model('MODEL').model  # what --model said, weights behind an @",
            f"print(replay('{FILE}', model))",
        ],
    }
    return Contradiction(record, where)


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
    if model_digest(model) != record["digest"]:
        raise ValueError(
            f"{path} is about a model with the fingerprint {record['digest']}, got one with "
            f"{model_digest(model)}: give the model that was audited."
        )
    settings = record["settings"]
    x = torch.tensor([record["x"], record["changed"]], dtype=torch.float64)
    y = torch.tensor([record["class"]] * 2)
    exact = made_ready(record["model"], model, x, settings["k"]).model
    one_hot = record["one-hot"]
    with torch.no_grad():
        slopes = project_one_hot(input_gradient(exact, x, y, settings["explained"]), one_hot)
    tops = order(slopes.abs())[:, : settings["k"]].tolist()
    reach = torch.tensor(record["reach"], dtype=torch.float64)
    region = PERTURBATIONS[settings["norm"]](scale=reach)
    distance = float(region.cost(x[1:], x[:1]))
    proved = certify(
        exact,
        x[:1],
        y[:1],
        k=settings["k"],
        of=settings["explained"],
        one_hot=one_hot,
        norm=settings["norm"],
        scale=reach,
        epsilons=(distance,),
    )
    radius = max(float(proved.radius), distance * bool(proved.precision[0, 0] == 1))
    before, after = (tuple(record["names"][number] for number in top) for top in tops)
    return Replayed(
        before=before,
        after=after,
        distance=distance,
        radius=radius,
        holds=set(before) != set(after) and distance < radius,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(f"cannot read {path}: give the {FILE} of an audit.") from problem
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no contradiction of an audit: give its {FILE}.")
    return found
