"""For each decision of the user's own model, whether its reasons hold: what `r2et.audit` runs."""

from r2et.auditing.checking import Contradiction, Refutation, Replayed, replay
from r2et.auditing.config import DataSettings, FeatureSettings, read_settings, settings_of
from r2et.auditing.csvs import CsvTable
from r2et.auditing.decisions import Decision
from r2et.auditing.items import ItemSource
from r2et.auditing.models import Loaded, load_model
from r2et.auditing.reason_records import ReasonAudit, ReasonedDecision, ReasonSummary
from r2et.auditing.reason_settings import ReasonSettings
from r2et.auditing.records import SCHEMA, Audit, Summary
from r2et.auditing.run import run_audit
from r2et.auditing.settings import AuditSettings
from r2et.auditing.sources import source_for, usual_settings
from r2et.auditing.tables import Table
from r2et.auditing.walk import Progress
from r2et.core.records import to_json

__all__ = [
    "SCHEMA",
    "Audit",
    "AuditSettings",
    "Contradiction",
    "CsvTable",
    "DataSettings",
    "Decision",
    "FeatureSettings",
    "ItemSource",
    "Loaded",
    "Progress",
    "ReasonAudit",
    "ReasonSettings",
    "ReasonSummary",
    "ReasonedDecision",
    "Refutation",
    "Replayed",
    "Summary",
    "Table",
    "load_model",
    "read_settings",
    "replay",
    "run_audit",
    "settings_of",
    "source_for",
    "to_json",
    "usual_settings",
]
