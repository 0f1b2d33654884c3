"""Reads the JSON documents of a trace, and refuses what this version cannot have written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.spool_file import read_spool
from determinism.types import Level, Stream

Document = dict[str, Any]
_Rule = Callable[[Any], bool]


def read_manifest(folder: Path) -> Document:
    """Read the manifest of a trace.

    Raises:
        TraceError: It is damaged, not ours, or newer than this version.
    """
    return _read(folder / schema.MANIFEST_FILE, _MANIFEST_RULES)


def read_description(folder: Path) -> Document:
    """Read what a process says about itself.

    Raises:
        TraceError: It is damaged, not ours, or newer than this version.
    """
    return _read(folder / schema.PROCESS_FILE, _PROCESS_RULES)


def has_begun(folder: Path) -> bool:
    """Whether a process recorded anything; one that was killed in its first moment did not.

    Raises:
        TraceError: It did, and does not say what.
    """
    if (folder / schema.PROCESS_FILE).exists():
        return True
    records = folder / schema.RECORDS_FILE
    content = read_spool(folder / schema.SPOOL_FILE)
    if (content is not None and content.num_records) or (records.exists() and records.stat().st_size):
        raise TraceError(
            "trace-damaged",
            f"{folder} holds records but no {schema.PROCESS_FILE}, so this trace is not whole. Record the run again.",
        )
    return False


def _read(path: Path, rules: dict[str, _Rule]) -> Document:
    try:
        document: Document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = f"is empty or cut: {error}" if isinstance(error, ValueError) else f"cannot be read: {error}"
        raise TraceError(
            "trace-damaged", f"{path} {reason}. So this trace is not whole. Record the run again."
        ) from None
    _check_format(document, path)
    for key, is_valid in rules.items():
        if not is_valid(document.get(key)):
            shown = repr(document.get(key))
            raise TraceError(
                "trace-damaged",
                f"{path} says {key!r} is {shown[:60]}, which is not what this tool writes. So the trace was changed or "
                "damaged. Record the run again.",
            )
    return document


def _check_format(document: Any, path: Path) -> None:
    if not isinstance(document, dict):
        found = {list: "a list", str: "a string", type(None): "null"}.get(type(document), "a number")
        raise TraceError(
            "trace-foreign",
            f"{path} holds {found} instead of a JSON object, so {path.parent} is not a trace of this tool. Give the folder "
            "that `determinism record -o` wrote.",
        )
    text = document.get("format", "")
    name, _, version = str(text).partition("/")
    if name != "determinism.trace" or not (version.isascii() and version.isdigit() and len(version) < 10):
        raise TraceError(
            "trace-foreign",
            f"{path} names the format {str(text)[:60]!r}, so {path.parent} is not a trace of this tool. Give the folder that "
            "`determinism record -o` wrote.",
        )
    if int(version) > schema.VERSION:
        raise TraceError(
            "trace-newer",
            f"{path} has the format {text!r}, and this version reads up to {schema.FORMAT!r}. Update `determinism` to read "
            "this trace.",
        )


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**63)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_duration(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _is_text_list(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _is_facts(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(item, str) for item in value.values()))


def _is_spots(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(
            isinstance(spot, dict)
            and all(isinstance(spot.get(key), str) for key in ("id", "what", "reason"))
            and isinstance(spot.get("count"), int)
            for spot in value
        )
    )


_MANIFEST_RULES: dict[str, _Rule] = {
    "command": _is_text_list,
    "exit_status": _is_count,
    "stopped_by": _is_text,
    "seconds": _is_duration,
    "steps": _is_count,
    "processes": _is_text_list,
    "blind_spots": _is_spots,
}
_PROCESS_RULES: dict[str, _Rule] = {
    "level": lambda value: value in set(Level),
    "stream": lambda value: value is None or value in set(Stream),
    "part_of": _is_text,
    "threads": _is_text_list,
    "threads_made_at": _is_text_list,
    "framework": _is_text,
    "steps_by": _is_text,
    "records": _is_count,
    "steps": _is_count,
    "step_seconds": _is_duration,
    "world_size": _is_count,
    "values": lambda value: value is None or (_is_count(value) and value > 0),
    "stopped_by": _is_text,
    "environment": _is_facts,
    "settings": _is_facts,
    "open_settings": _is_facts,
    "device_digests": _is_facts,
    "racy": _is_text_list,
    "blind_spots": _is_spots,
}
