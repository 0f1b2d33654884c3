"""What is known of ops as one JSON document, `determinism.status/1`, described in docs/knowledge.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from determinism.errors import DeterminismError
from determinism.knowledge.framework import Mode
from determinism.knowledge.measurement import Audit, Measurement
from determinism.knowledge.query import OpStatus
from determinism.knowledge.status import Source, Status

SCHEMA = "determinism.status/1"


def status_document(answers: list[OpStatus], trouble: DeterminismError | None = None) -> str:
    """Write answers as JSON. Absent is null; keys are never missing.

    Args:
        answers: What `determinism.status` gave.
        trouble: Why there are none.
    """
    found = [] if trouble is None else [{"id": trouble.identifier, "message": trouble.message}]
    document = {"schema": SCHEMA, "trouble": found, "answers": [_answer(answer) for answer in answers]}
    return json.dumps(document, indent=2, ensure_ascii=True)


def _answer(answer: OpStatus) -> dict[str, Any]:
    op = answer.op
    return {
        "op": op.name,
        "names": list(op.names),
        "kernels": list(op.kernels),
        "alerts": list(op.alerts),
        "patches": list(op.patches),
        "summary": op.summary,
        "framework": answer.framework.identifier,
        "version": answer.version,
        "installed": answer.installed,
        "beyond_what_is_known": answer.is_beyond_what_is_known,
        "mode": _mode(answer.framework.mode(answer.version)),
        "statuses": [_status(status) for status in answer.statuses],
        "measured": [_measured(audit, found) for audit, found in answer.measured],
    }


def _measured(audit: Audit, found: Sequence[Measurement]) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(audit).items() if name != "measurements"}
    return {**facts, "measurements": [asdict(one) for one in found]}


def _mode(mode: Mode | None) -> dict[str, Any] | None:
    if mode is None:
        return None
    return {"how": mode.how, "note": mode.note, "sources": [_source(source) for source in mode.sources]}


def _status(status: Status) -> dict[str, Any]:
    return {
        "id": status.identifier,
        "framework": status.framework,
        "since": status.versions.since,
        "until": status.versions.until,
        "device": status.device,
        "direction": status.direction,
        "dtype": status.dtype,
        "condition": status.condition,
        "basis": status.basis,
        "default": status.default,
        "deterministic": status.deterministic,
        "solution": status.solution,
        "note": status.note,
        "sources": [_source(source) for source in status.sources],
    }


def _source(source: Source) -> dict[str, Any]:
    return {"kind": source.kind, "reference": source.reference, "date": source.date}
