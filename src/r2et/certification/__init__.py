"""Certificates: how far an input can move before its top-k features could possibly change."""

from r2et.certification.bisection import ContributionVerdicts, search_contributions
from r2et.certification.cells import CellVerdicts, search_cells
from r2et.certification.certificate import Certificate, certify
from r2et.certification.contributions import ContributionCertificate, certify_contributions
from r2et.certification.replay import RecordedModel, record

__all__ = [
    "CellVerdicts",
    "Certificate",
    "ContributionCertificate",
    "ContributionVerdicts",
    "RecordedModel",
    "certify",
    "certify_contributions",
    "record",
    "search_cells",
    "search_contributions",
]
