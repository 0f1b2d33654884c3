"""Records a program with each recorder, and finds where their records differ."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determinism.trace.chunks import join
from determinism.trace.opening import open_trace
from determinism.trace.schema import Table
from determinism.types import NO_DIGEST
from tests.torch_runs import Row, recorded

RECORDERS = ("python", "native")
_CHOICE = "DETERMINISM_RECORDER"


def record_with(recorder: str, program: Callable[[], Any], folder: Path, **options: Any) -> str:
    """Record with one of the recorders and check that it was used; return the fingerprint of the result."""
    before = os.environ.get(_CHOICE)
    os.environ[_CHOICE] = recorder
    try:
        result = recorded(program, folder, **options)
    finally:
        os.environ.pop(_CHOICE)
        if before is not None:
            os.environ[_CHOICE] = before
    for process in open_trace(folder).processes:
        assert process.description.get("recorder", recorder) == recorder, process.description.get("recorder_reason")
    return result


def blind_spots(folder: Path) -> list[Any]:
    """Return the blind spots of all processes, except the one that only the Python recorder reports, for an unaudited PyTorch."""
    spots = [spot for process in open_trace(folder).processes for spot in process.description["blind_spots"]]
    return [spot for spot in spots if spot["id"] != "formulas-unaudited"]


def record_lines(folder: Path) -> list[str]:
    """Return every record of a trace as a line of text, with names in place of their numbers."""
    return [line for process in open_trace(folder).processes for line in _lines_of(process)]


def _lines_of(process: Any) -> list[str]:
    chunks = list(process.chunks())
    if not chunks:
        return []
    chunk = join(chunks)
    names = process.names
    found = []
    for at in range(chunk.rows):
        row = Row(process, chunk, at)
        lists = {group: _cells(chunk, group, at) for group in ("inputs", "input_digests", "outputs", "generators")}
        inputs = [
            (row.number - int(cells["producer"]) if cells["producer"] else None, int(cells["output"]),
             int(cells["access"]), names.text(Table.LAYOUT, int(cells["layout"])))
            for cells in lists["inputs"]
        ]  # fmt: skip
        digests = [(int(cells["position"]), cells["digest"].tobytes().hex()[:8]) for cells in lists["input_digests"]]
        outputs = [
            (names.text(Table.LAYOUT, int(cells["layout"])), _shown(cells["digest"].tobytes()))
            for cells in lists["outputs"]
        ]
        states = [cells["digest"].tobytes().hex()[:8] for cells in lists["generators"]]
        stack = [(Path(frame.file).name, frame.line) for frame in row.stack]
        forward_stack = [(Path(frame.file).name, frame.line) for frame in row.forward_stack]
        found.append(
            f"{row.number} {row.role.name} {row.op}({row.arguments}) thread={row.thread} step={row.step} "
            f"{row.phase.name} module={row.module} forward={row.forward} inputs={inputs} digests={digests} "
            f"outputs={outputs} states={states} stack={stack} forward_stack={forward_stack}"
        )
    return found


def _cells(chunk: Any, group: str, at: int) -> list[dict[str, Any]]:
    rows = chunk.children[group]
    return [
        {name: column[place] for name, column in rows.columns.items()}
        for place in range(int(rows.starts[at]), int(rows.starts[at + 1]))
    ]


def _shown(digest: bytes) -> str:
    return "none" if digest == NO_DIGEST else digest.hex()[:8]


def differences(first: list[str], second: list[str]) -> list[str]:
    """Return the lines that are in only one of two lists."""
    return list(difflib.unified_diff(first, second, "python", "native", n=0, lineterm=""))[2:]
