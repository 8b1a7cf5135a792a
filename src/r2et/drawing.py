"""Decisions about pictures and networks before and after an attack, as plain records to draw."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from r2et.attacks.records import Attacked
from r2et.attacks.threats import Threat
from r2et.data.collection import Collection
from r2et.data.dataset import Split
from r2et.explainers import log_odds
from r2et.ranking import order


def drawn_decisions(
    model: nn.Module,
    split: Split,
    y: Tensor,
    attacked: Attacked,
    threat: Threat,
    count: int,
    k: int,
) -> list[dict[str, Any]]:
    """The first decisions of the test part with their saliency before and after an attack.

    Of each example `pieces` holds the items before and after, `saliency` the scores of all features
    as shares of the largest of both; all as bytes of one number each, base64: `bytes_of`. `top`
    lists the k most salient features, first to last; `names` says what those of a network are
    called. `kind` is "picture", "network" or, for explanations by neurons, "concept".
    """
    dataset = split.dataset
    assert isinstance(dataset, Collection)
    x = split.test.x[:count].to(attacked.x)
    count = len(x)
    with torch.no_grad():
        sure = [torch.sigmoid(log_odds(model(each), y[:count])) for each in (x, attacked.x[:count])]
    features = attacked.before.shape[-1]
    kind = "picture" if features == dataset.n else "concept"
    kind = "network" if dataset.piece.symmetric and kind == "picture" else kind
    low, high = dataset.bounds or (float(dataset.items.min()), float(dataset.items.max()))

    def pieces(row: Tensor) -> list[Tensor]:
        raw = split.scale.undo(row.cpu())
        parts = raw.flatten().chunk(2 if dataset.pairs else 1)
        return [(part - low) / (high - low) for part in parts]

    found = []
    for number in range(count):
        before, after = attacked.before[number].cpu(), attacked.after[number].cpu()
        largest = float(torch.maximum(before.max(), after.max()))
        top = {"before": order(before)[:k].tolist(), "after": order(after)[:k].tolist()}
        named = sorted({*top["before"], *top["after"]}) if kind == "network" else []
        found.append(
            {
                "kind": kind,
                "row": split.test.rows[number].tolist(),
                "predicted": dataset.classes[int(y[number])],
                "actual": dataset.classes[int(split.test.y[number])],
                "probability": [float(each[number]) for each in sure],
                "cost": float(threat.cost(attacked.x[number : number + 1], x[number : number + 1])),
                "precision": float(attacked.precision[number]),
                "shape": list(dataset.piece.shape),
                "pieces": [
                    {"before": bytes_of(was), "after": bytes_of(now)}
                    for was, now in zip(pieces(x[number]), pieces(attacked.x[number]), strict=True)
                ],
                "saliency": {
                    "before": bytes_of(before / (largest or 1.0)),
                    "after": bytes_of(after / (largest or 1.0)),
                },
                "top": top,
                "names": {str(each): dataset.feature_name(each) for each in named},
            }
        )
    return found


def bytes_of(shares: Tensor | Sequence[float]) -> str:
    """Numbers in [0, 1] as one byte each, 0 to 255, in base64."""
    values = torch.as_tensor(shares, dtype=torch.float64).clamp(0, 1)
    return base64.b64encode((values * 255).round().to(torch.uint8).numpy().tobytes()).decode()


def numbers_of(encoded: str) -> Tensor:
    """The numbers in [0, 1] that `bytes_of` wrote, to 1/255: (N,)."""
    return torch.frombuffer(bytearray(base64.b64decode(encoded)), dtype=torch.uint8) / 255
