"""The JSON document of a comparison; `report.schema.json` beside this file is its published schema."""

from __future__ import annotations

import json
import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from determinism.comparison.result import (
    Comparison,
    DeadDifference,
    Divergence,
    Missing,
    OutputDifference,
    Recorded,
    RunSummary,
)
from determinism.errors import UsageError
from determinism.trace.files import write_json
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
        "trouble": [{"id": trouble.identifier, "message": trouble.message} for trouble in comparison.trouble],
        "runs": [_run(run) for run in comparison.runs],
        "recorded": _recorded(comparison.recorded),
        "first_divergence": None if first is None else _divergence(first),
        "divergences": [_short_divergence(divergence) for divergence in comparison.divergences],
        "first_visible": None if visible is None else {"step": visible.step, "what": visible.what},
        "absorbed": comparison.absorbed,
        "dead_differences": {
            "count": comparison.dead_differences,
            "first": [_dead_difference(difference) for difference in comparison.dead_first],
        },
        "leftovers": [
            {"file": leftover.file, "changed_in": leftover.changed_in, "read_in": leftover.read_in}
            for leftover in comparison.leftovers
        ],
        "extra_runs": {"count": comparison.extra_runs, "racy": comparison.racy},
        "open_settings": [{"name": name, "why": why} for name, why in comparison.open_settings],
        "causes": [],
        "fixes": [],
        "missing": None if comparison.missing is None else [_missing(missing) for missing in comparison.missing],
        "environment": [
            {"name": name, "first": first_value, "second": second_value}
            for name, first_value, second_value in comparison.environment
        ],
    }
    return {key: _plain(value) for key, value in content.items()}


def write_document(path: Path, comparison: Comparison) -> None:
    """Write the JSON document of a comparison to a file.

    Raises:
        UsageError: The file cannot be written; what stood there before is unharmed.
    """
    content = document(comparison)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            # Replacing a link, a device or a pipe would destroy it: `--json /dev/null` as root.
            path.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
        else:
            write_json(path, content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "report-unwritable",
            f"The report cannot be written to {path} ({reason}), so no JSON document was made. "
            "Give --json a file in a folder that exists and that you may write to.",
        ) from None


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
        "forward_site": _frame(divergence.forward_site),
        "stack": [_frame(frame) for frame in divergence.stack],
        "inputs_equal": divergence.inputs_equal,
        "outputs": [_output(output) for output in divergence.outputs],
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
        "site": _frame(divergence.site),
        "received_from": divergence.received_from,
    }


def _output(output: OutputDifference) -> dict[str, Any]:
    return {
        "dtype": output.dtype,
        "shape": output.shape,
        "device": output.device,
        "elements": output.elements,
        "elements_different": output.elements_different,
        "max_ulp": output.max_ulp,
        "max_abs": output.max_abs,
        "repeats": output.repeats,
        "distinct": output.distinct,
    }


def _missing(missing: Missing) -> dict[str, Any]:
    return {"id": missing.identifier, "site": _frame(missing.site), "fix": missing.fix}


def _dead_difference(difference: DeadDifference) -> dict[str, Any]:
    return {
        "step": difference.step,
        "phase": difference.phase,
        "op": difference.op,
        "site": _frame(difference.site),
    }


def _frame(frame: Frame | None) -> dict[str, Any] | None:
    return None if frame is None else frame._asdict()


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
