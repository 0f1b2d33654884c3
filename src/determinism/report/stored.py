"""Reads the JSON document of an earlier comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from determinism.comparison.result import FileChange
from determinism.comparison.stack import Part
from determinism.errors import UsageError
from determinism.report.document import SCHEMA, SCHEMA_FILE
from determinism.report.schema_check import first_fault

_FIRST_KEYS = frozenset(
    {
        "schema", "verdict", "trouble", "runs", "recorded", "first_divergence", "divergences", "first_visible", "absorbed",
        "dead_differences", "leftovers", "extra_runs", "open_settings", "causes", "fixes", "missing", "environment",
    }
)  # fmt: skip
"""What every document holds; all other keys were added later."""


def read_document(path: Path) -> dict[str, Any]:
    """Read a document that `--json` wrote; keys that were added to the format since are filled in.

    Raises:
        UsageError: It cannot be read, or is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise UsageError(
            "report-unreadable",
            f"{path} cannot be read ({error.strerror or error}). Give the file that `--json` wrote.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise _foreign(path, f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise _foreign(path, "it is JSON, but no object")
    schema = found.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("determinism.report/"):
            raise UsageError(
                "report-newer",
                f"{path} is a {schema!r}, and this version reads {SCHEMA!r}. Use the version of determinism that wrote it.",
            )
        raise _foreign(path, f"it does not say that it is a {SCHEMA!r}")
    form = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    added = {key: _nothing(described) for key, described in form["properties"].items() if key not in _FIRST_KEYS}
    content = {**added, **found}
    _fill_in(content)
    fault = first_fault(content, form)
    if fault is not None:
        raise _foreign(path, fault)
    return content


def _nothing(described: dict[str, Any]) -> Any:
    """What stands for a key that was not known yet when a document was written."""
    return {"array": [], "string": ""}.get(str(described.get("type")))


def _fill_in(content: dict[str, Any]) -> None:
    """Give a document of an earlier version the keys that were added to what it holds."""
    first = content.get("first_divergence")
    outputs = first.get("outputs") if isinstance(first, dict) else None
    for found, later in (
        (content.get("environment"), {"part": Part.OTHER}),
        (outputs, {"max_relative": None, "elements_sampled": None}),
        (content.get("leftovers"), {"change": FileChange.UNSEEN}),
    ):
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict):
                one.update({key: value for key, value in later.items() if key not in one})


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _foreign(path: Path, fault: str) -> UsageError:
    return UsageError(
        "report-foreign", f"{path} is no report: {fault}. Give the file that `determinism check --json` wrote."
    )
