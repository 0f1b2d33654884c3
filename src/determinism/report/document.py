"""The JSON document of a comparison; `report.schema.json` beside this file is its published schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from determinism.comparison.course import Course
from determinism.comparison.dataflow import Dataflow, FlowNode
from determinism.comparison.divergence import DeadDifference, Divergence, Evidence, Visible
from determinism.comparison.result import Comparison, Missing, Recorded, RunSummary
from determinism.comparison.stack import part_of
from determinism.report.batch import batch_document
from determinism.report.cause_document import cause_document, fix_document
from determinism.report.report_file import write_report
from determinism.report.source_context import contexts
from determinism.report.told import first_sentence, story
from determinism.report.values_document import frame_document, output_document, values_document
from determinism.trace.names import Frame

SCHEMA = "determinism.report/1"
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")


def document(comparison: Comparison) -> dict[str, Any]:
    """Make the JSON document of a comparison.

    Every key is always there, what is absent is None. Floats that JSON cannot hold become None, and surrogates,
    which come from file names that are not valid UTF-8, become visible escapes, so that every JSON reader accepts it.
    """
    first = comparison.first_divergence
    visible = comparison.first_visible
    content = {
        "schema": SCHEMA,
        "verdict": comparison.verdict,
        "headline": first_sentence(comparison),
        "story": story(comparison),
        "trouble": [{"id": trouble.identifier, "message": trouble.message} for trouble in comparison.trouble],
        "runs": [_run(run) for run in comparison.runs],
        "recorded": _recorded(comparison.recorded),
        "first_divergence": None if first is None else _divergence(first),
        "divergences": [_short_divergence(divergence) for divergence in comparison.divergences],
        "first_visible": None if visible is None else _visible(visible),
        "absorbed": comparison.absorbed,
        "dead_differences": _dead_differences(comparison),
        "leftovers": [
            {
                "file": leftover.file,
                "changed_in": leftover.changed_in,
                "read_in": leftover.read_in,
                "change": leftover.change.value,
            }
            for leftover in comparison.leftovers
        ],
        "extra_runs": {"count": comparison.extra_runs, "racy": comparison.racy},
        "open_settings": [{"name": name, "why": why} for name, why in comparison.open_settings],
        "evidence": _evidence(comparison.evidence),
        "reproducer": None if comparison.evidence is None else comparison.evidence.reproducer,
        "causes": [cause_document(cause) for cause in comparison.causes],
        "fixes": [fix_document(fix) for fix in comparison.fixes],
        "experiments": [asdict(experiment) for experiment in comparison.experiments],
        "diagnosis": comparison.diagnosis,
        "varied": comparison.varied,
        "missing": None if comparison.missing is None else [_missing(missing) for missing in comparison.missing],
        "batch": None if comparison.batch is None else batch_document(comparison.batch),
        "values": None if comparison.values is None else values_document(comparison.values),
        "environment": [
            {"name": name, "part": part_of(name), "first": first_value, "second": second_value}
            for name, first_value, second_value in comparison.environment
        ],
        "sources": contexts(_places(comparison)),
        **_course(comparison.course),
        "dataflow": None if comparison.dataflow is None else _dataflow(comparison.dataflow),
    }
    return {key: _plain(value) for key, value in content.items()}


def write_document(path: Path, comparison: Comparison) -> None:
    """Write the JSON document of a comparison to a file.

    Raises:
        UsageError: The file cannot be written; what stood there before is unharmed.
    """
    write_report(path, json_text(document(comparison)), "--json")


def json_text(content: dict[str, Any]) -> str:
    """The JSON of a document."""
    return json.dumps(content, indent=1, allow_nan=False)


def _places(comparison: Comparison) -> Iterator[Frame | None]:
    """The places that a reader wants to see in context, the most important ones first."""
    first = comparison.first_divergence
    if first is not None:
        yield from (first.site, first.forward_site, *first.stack[:1])
    yield from (site for cause in comparison.causes for site in cause.sites)
    yield from (missing.site for missing in comparison.missing or ())


def _course(course: Course | None) -> dict[str, Any]:
    if course is None:
        return {"compared_runs": None, "divergence_by_step": None, "losses": None}
    return {
        "compared_runs": course.runs,
        "divergence_by_step": course.steps and [span._asdict() for span in course.steps],
        "losses": course.losses and [loss._asdict() for loss in course.losses],
    }


def _dataflow(found: Dataflow) -> dict[str, Any]:
    return {
        "nodes": [_flow_node(node) for node in found.nodes],
        "edges": [{"from": edge.source, "to": edge.target, "differs": edge.differs} for edge in found.edges],
        "left_out": found.left_out,
    }


def _flow_node(node: FlowNode) -> dict[str, Any]:
    return {
        "id": node.identifier,
        "distance": node.distance,
        "op": node.op,
        "module": node.module,
        "step": node.step,
        "phase": node.phase,
        "site": frame_document(node.site),
        "differs": node.differs,
        "outputs": [output._asdict() for output in node.outputs],
    }


def _run(run: RunSummary) -> dict[str, Any]:
    return {
        "command": run.command,
        "exit_status": run.exit_status,
        "stopped_by": run.stopped_by,
        "seconds": run.seconds,
        "trace": run.trace,
    }


def _recorded(recorded: Recorded) -> dict[str, Any]:
    return {
        "records": recorded.records,
        "steps": recorded.steps,
        "processes": recorded.processes,
        "blind_spots": [
            {
                "id": spot.identifier,
                "what": spot.what,
                "reason": spot.reason,
                "count": spot.count,
                "share": recorded.share(spot),
            }
            for spot in recorded.blind_spots
        ],
    }


def _divergence(divergence: Divergence) -> dict[str, Any]:
    return {
        **_short_divergence(divergence),
        "forward_site": frame_document(divergence.forward_site),
        "stack": [frame_document(frame) for frame in divergence.stack],
        "inputs_equal": divergence.inputs_equal,
        "outputs": [output_document(output) for output in divergence.outputs],
    }


def _short_divergence(divergence: Divergence) -> dict[str, Any]:
    return {
        "kind": divergence.kind,
        "process": divergence.process,
        "thread": divergence.thread,
        "step": divergence.step,
        "phase": divergence.phase,
        "op": divergence.op,
        "module": divergence.module,
        "site": frame_document(divergence.site),
        "received_from": divergence.received_from,
    }


def _evidence(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {"source": evidence.source, "folder": evidence.folder, "note": evidence.note}


def _missing(missing: Missing) -> dict[str, Any]:
    return {"id": missing.identifier, "site": frame_document(missing.site), "fix": missing.fix}


def _visible(visible: Visible) -> dict[str, Any]:
    return {"step": visible.step, "what": visible.what, "site": frame_document(visible.site)}


def _dead_differences(comparison: Comparison) -> dict[str, Any]:
    first = [_dead_difference(difference) for difference in comparison.dead_first]
    return {"count": comparison.dead_differences, "first": first}


def _dead_difference(difference: DeadDifference) -> dict[str, Any]:
    return {
        "step": difference.step,
        "phase": difference.phase,
        "op": difference.op,
        "site": frame_document(difference.site),
    }


def _plain(value: Any) -> Any:
    """Reduce a value to what JSON has; numbers may come from NumPy."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value]
