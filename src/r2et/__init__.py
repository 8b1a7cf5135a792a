"""Stable explanations: measure, attack and train the top-k features of a model's saliency."""

__version__ = "0.1.0"

from r2et.attacks import (
    AttackResult,
    Box,
    Budget,
    Curve,
    EnsembleBudget,
    applicant_threat,
    attack_curve,
    er_attack,
    mse_attack,
    strong_attack,
)
from r2et.auditing import Audit, Items, audit
from r2et.certification import Certificate, certify
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.ranking import precision_at_k
from r2et.data import (
    Collection,
    Dataset,
    from_frame,
    load,
    read_csv,
    read_folder,
    read_networks,
    read_picture,
)
from r2et.explainers import (
    activations,
    gradient,
    input_x_gradient,
    integrated_gradients,
    predicted,
    smooth_grad,
)
from r2et.methods import Method, Objective, r2et
from r2et.metrics.thickness import thickness
from r2et.preflight import repair, validate
from r2et.sklearn import StableClassifier
from r2et.training.trainer import FitSettings, fit

__all__ = [
    "AttackResult",
    "Audit",
    "Box",
    "Budget",
    "Certificate",
    "Collection",
    "Curve",
    "Dataset",
    "EnsembleBudget",
    "FitSettings",
    "Inputs",
    "Items",
    "Joined",
    "Method",
    "Objective",
    "Piece",
    "StableClassifier",
    "activations",
    "applicant_threat",
    "attack_curve",
    "audit",
    "certify",
    "er_attack",
    "fit",
    "from_frame",
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "load",
    "mse_attack",
    "precision_at_k",
    "predicted",
    "r2et",
    "read_csv",
    "read_folder",
    "read_networks",
    "read_picture",
    "repair",
    "smooth_grad",
    "strong_attack",
    "thickness",
    "validate",
]
