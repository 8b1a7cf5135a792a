"""Certificates: how far an input can move before its top-k features could possibly change."""

from r2et.certification.certificate import Certificate, certify
from r2et.certification.replay import RecordedModel, record

__all__ = ["Certificate", "RecordedModel", "certify", "record"]
