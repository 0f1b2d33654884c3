"""Causes and fixes as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from determinism.comparison.findings import Cause, Fix


def cause_document(cause: Cause) -> dict[str, Any]:
    """A cause, with what shows it."""
    return {
        "id": cause.identifier,
        "title": cause.title,
        "status": cause.status,
        "evidence": cause.evidence,
        "experiments": [asdict(experiment) for experiment in cause.experiments],
        "sites": [site._asdict() for site in cause.sites],
    }


def fix_document(fix: Fix) -> dict[str, Any]:
    """A fix, or what was tried as one."""
    variables = fix.environment
    return {
        "id": fix.identifier,
        "title": fix.title,
        "code": fix.code,
        "env": None if variables is None else [{"name": name, "value": value} for name, value in variables],
        "verified": fix.verified,
        "runs": fix.runs,
        "step_time_ratio": fix.step_time_ratio,
    }
