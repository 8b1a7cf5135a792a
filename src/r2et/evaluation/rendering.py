"""Decisions about pictures and networks before and after an attack, as plain records to draw."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from r2et.attacks.search import AttackResult
from r2et.core.ranking import order
from r2et.data.dataset import RenderSpec, Split
from r2et.explainers import log_odds
from r2et.perturbations import PerturbationSet


def drawn(
    look: RenderSpec, examples: Sequence[Tensor], saliencies: Sequence[Tensor], k: int
) -> dict[str, Any]:
    """One example before and after a change, with both explanations, to be drawn.

    `examples` are its flat numbers in original units. In the record `pieces` holds the items,
    `saliency` the scores of all features as shares of the largest of both; all as bytes of one
    number each, base64: `bytes_of`. `top` lists the k most salient features, first to last; `names`
    says what those of a network are called.
    """
    width = look.high - look.low or 1.0
    parts = [((each.flatten() - look.low) / width).chunk(look.count) for each in examples]
    largest = max(0.0, *(float(each.max()) for each in saliencies)) or 1.0
    top = [order(each)[:k].tolist() for each in saliencies]
    named = sorted({*top[0], *top[1]}) if look.kind == "network" else []
    return {
        "kind": look.kind,
        "shape": list(look.piece.shape),
        "pieces": [
            {"before": bytes_of(was), "after": bytes_of(now)}
            for was, now in zip(*parts, strict=True)
        ],
        "saliency": {
            when: bytes_of(each / largest)
            for when, each in zip(("before", "after"), saliencies, strict=True)
        },
        "top": {"before": top[0], "after": top[1]},
        "names": {str(each): look.name(each) for each in named},
    }


def drawn_decisions(
    model: nn.Module,
    split: Split,
    y: Tensor,
    attacked: AttackResult,
    perturbation: PerturbationSet,
    count: int,
    k: int,
) -> list[dict[str, Any]]:
    """The first decisions attacked of the test part, `drawn` before and after."""
    count = min(count, len(attacked.x))
    x = split.test.x[:count].to(attacked.x)
    with torch.no_grad():
        sure = [torch.sigmoid(log_odds(model(each), y[:count])) for each in (x, attacked.x[:count])]
    look = RenderSpec.of(split.dataset, attacked.before.shape[-1])
    found = []
    for number in range(count):
        was, now = x[number : number + 1], attacked.x[number : number + 1]
        found.append(
            {
                "row": split.test.rows[number].tolist(),
                "predicted": split.classes[int(y[number])],
                "actual": split.classes[int(split.test.y[number])],
                "probability": [float(each[number]) for each in sure],
                "cost": float(perturbation.cost(now, was)),
                "precision": float(attacked.precision[number]),
                **drawn(
                    look,
                    [split.scale.undo(each[0].cpu()) for each in (was, now)],
                    [attacked.before[number].cpu(), attacked.after[number].cpu()],
                    k,
                ),
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
