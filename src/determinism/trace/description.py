"""Reads the JSON documents of a trace, and refuses what this version cannot have written."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.spool_file import STOPS, read_spool
from determinism.types import Level, Stream

Document = dict[str, Any]
_Rule = Callable[[Any], bool]


def read_manifest(folder: Path) -> Document:
    """Read the manifest of a trace.

    Raises:
        TraceError: It is damaged, not ours, or newer than this version.
    """
    _require_plain_files(folder)
    _require_plain_files(folder / schema.PROCESSES_FOLDER)
    return _read(folder / schema.MANIFEST_FILE, _MANIFEST_RULES)


def read_description(folder: Path) -> Document:
    """Read what a process says about itself.

    Raises:
        TraceError: It is damaged, not ours, or newer than this version.
    """
    _require_plain_files(folder)
    return _read(folder / schema.PROCESS_FILE, _PROCESS_RULES)


def has_begun(folder: Path) -> bool:
    """Whether a process recorded anything; one that was killed in its first moment did not.

    Raises:
        TraceError: It did, and does not say what.
    """
    _require_plain_files(folder)
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


def _require_plain_files(folder: Path) -> None:
    """Refuse what cannot be read to its end: reading a FIFO waits forever, and a device or a file of holes fills the memory."""
    try:
        entries = [(Path(entry.path), entry.stat(follow_symlinks=False)) for entry in os.scandir(folder)]
    except OSError:
        # It is missing, or a file went away meanwhile: whoever reads it says so.
        return
    for path, status in entries:
        kind = next((name for name, is_kind in _NOT_PLAIN if is_kind(status.st_mode)), None)
        allocated = status.st_blocks * 512
        if kind is None and status.st_size >= _LARGE and allocated < status.st_size // _MOST_HOLES:
            kind = f"a file of {status.st_size:,} bytes of which only {allocated:,} are on the disk"
        if kind is None and path.suffix == ".json" and status.st_size >= _LARGE:
            kind = f"a JSON document of {status.st_size:,} bytes"
        if kind is not None:
            raise TraceError(
                "trace-damaged",
                f"{path} is {kind}, and a trace holds nothing of the kind. So the trace was changed or damaged, and was not read. "
                "Remove it, or record the run again.",
            )


_NOT_PLAIN = (
    ("a symbolic link", stat.S_ISLNK),
    ("a FIFO", stat.S_ISFIFO),
    ("a socket", stat.S_ISSOCK),
    ("a device", stat.S_ISCHR),
    ("a device", stat.S_ISBLK),
)
_LARGE = 1 << 30
_MOST_HOLES = 64
"""A file of which less than this share is on the disk is mostly holes; compressing file systems save less on a trace."""


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
    # A number of JSON may have more digits than a float can stand for.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and abs(value) < _MOST_SECONDS and math.isfinite(value))


_MOST_SECONDS = 1e12


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


def _is_one_of(values: Iterable[str]) -> _Rule:
    known = frozenset(values)
    # What JSON can hold may have no hash.
    return lambda value: isinstance(value, str) and value in known


def _is_environment(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(_is_facts(facts) for facts in value.values()))


_is_level, _is_stream, _is_stop = _is_one_of(Level), _is_one_of(Stream), _is_one_of(filter(None, STOPS))
_MANIFEST_RULES: dict[str, _Rule] = {
    "created": _is_duration,
    "complete": lambda value: value is None or isinstance(value, bool),
    "environment": _is_environment,
    "level": lambda value: value is None or _is_level(value),
    "command": _is_text_list,
    "exit_status": _is_count,
    "stopped_by": _is_text,
    "seconds": _is_duration,
    "steps": _is_count,
    "processes": _is_text_list,
    "blind_spots": _is_spots,
}
_PROCESS_RULES: dict[str, _Rule] = {
    "level": _is_level,
    "stream": lambda value: value is None or _is_stream(value),
    "started": _is_duration,
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
    "stopped_by": lambda value: value is None or _is_stop(value),
    "environment": _is_facts,
    "settings": _is_facts,
    "open_settings": _is_facts,
    "device_digests": _is_facts,
    "racy": _is_text_list,
    "blind_spots": _is_spots,
}
