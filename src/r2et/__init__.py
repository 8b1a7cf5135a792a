"""Stable explanations: measure, attack and train the top-k features of a model's saliency.

Everything public is an attribute of this package and is imported when it is first asked for, so
that `import r2et` costs no more than `import torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2et.actionable.rules import actionable_set as actionable_set
    from r2et.actionable.tables import TableMoves as TableMoves
    from r2et.attacks.registry import attack as attack
    from r2et.attacks.registry import attack_curve as attack_curve
    from r2et.attacks.search import AttackResult as AttackResult
    from r2et.auditing import Audit as Audit
    from r2et.auditing import ItemSource as ItemSource
    from r2et.auditing import ReasonAudit as ReasonAudit
    from r2et.bands.binner import StableBinner as StableBinner
    from r2et.bands.classifier import StableClassifier as StableClassifier
    from r2et.bands.pipelines import band_verdicts as band_verdicts
    from r2et.certification import Certificate as Certificate
    from r2et.certification import certify as certify
    from r2et.core.inputs import Inputs as Inputs
    from r2et.core.inputs import Joined as Joined
    from r2et.core.inputs import Piece as Piece
    from r2et.core.ranking import precision_at_k as precision_at_k
    from r2et.data.builtin import load as load
    from r2et.data.dataset import Dataset as Dataset
    from r2et.data.frames import from_frame as from_frame
    from r2et.data.frames import read_csv as read_csv
    from r2et.data.graphs import read_graphs as read_graphs
    from r2et.data.images import read_folder as read_folder
    from r2et.data.images import read_image as read_image
    from r2et.explainers import predicted as predicted
    from r2et.methods import Method as Method
    from r2et.metrics.thickness import thickness as thickness
    from r2et.perturbations import Box as Box
    from r2et.perturbations import L2Ball as L2Ball
    from r2et.preflight import repair as repair
    from r2et.preflight import validate as validate
    from r2et.report.audit_page import audit as audit
    from r2et.report.comparing import compare as compare
    from r2et.sklearn import NetworkClassifier as NetworkClassifier
    from r2et.training.objective import Objective as Objective
    from r2et.training.settings import FitSettings as FitSettings
    from r2et.training.trainer import fit as fit
    from r2et.trees.stabilize import stabilize as stabilize

__version__ = "0.2.0"

WHERE = {
    "AttackResult": "attacks.search",
    "Audit": "auditing",
    "Box": "perturbations",
    "Certificate": "certification",
    "Dataset": "data.dataset",
    "FitSettings": "training.settings",
    "Inputs": "core.inputs",
    "ItemSource": "auditing",
    "Joined": "core.inputs",
    "L2Ball": "perturbations",
    "Method": "methods",
    "NetworkClassifier": "sklearn",
    "Objective": "training.objective",
    "Piece": "core.inputs",
    "ReasonAudit": "auditing",
    "TableMoves": "actionable.tables",
    "StableBinner": "bands.binner",
    "StableClassifier": "bands.classifier",
    "actionable_set": "actionable.rules",
    "attack": "attacks.registry",
    "attack_curve": "attacks.registry",
    "audit": "report.audit_page",
    "band_verdicts": "bands.pipelines",
    "certify": "certification",
    "compare": "report.comparing",
    "fit": "training.trainer",
    "from_frame": "data.frames",
    "load": "data.builtin",
    "precision_at_k": "core.ranking",
    "predicted": "explainers",
    "read_csv": "data.frames",
    "read_folder": "data.images",
    "read_graphs": "data.graphs",
    "read_image": "data.images",
    "repair": "preflight",
    "stabilize": "trees.stabilize",
    "thickness": "metrics.thickness",
    "validate": "preflight",
}
"""The module that each public name is defined in or comes from."""


PARTS = (
    "actionable",
    "attacks",
    "auditing",
    "bands",
    "certification",
    "data",
    "evaluation",
    "experiments",
    "explainers",
    "integrations",
    "methods",
    "metrics",
    "models",
    "perturbations",
    "preflight",
    "report",
    "sklearn",
    "theory",
    "training",
    "trees",
)
"""The parts of the package that are attributes of it, too: `r2et.explainers.EXPLAINERS`."""

__all__ = list(WHERE)  # the names are the keys of one table


def __getattr__(name: str) -> Any:
    """What a public name stands for, imported now."""
    if name in WHERE:
        found = getattr(import_module(f"r2et.{WHERE[name]}"), name)
        globals()[name] = found
        return found
    if name in PARTS:
        return import_module(f"r2et.{name}")
    raise AttributeError(f"module 'r2et' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *WHERE, *PARTS})
