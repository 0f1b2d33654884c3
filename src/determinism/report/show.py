"""Shows the content of a trace without comparing it: `determinism show`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from determinism.errors import exit_phrase, legible
from determinism.knowledge.settings import Remaining, Setting, table
from determinism.redaction import redacted
from determinism.report.entries import counted, frame_text, stop_phrase
from determinism.trace.files import stored_bytes
from determinism.trace.opening import name_of, part_names
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import INTERRUPT, Table
from determinism.types import NO_DIGEST, Phase, Role

_MOST_OPS = 12


def render_trace(trace: Trace, console: Console) -> None:
    """Print the run, and for each process its steps, phases and most frequent ops.

    Raises:
        TraceError: The trace cannot be read.
    """
    manifest = trace.manifest
    console.print(Text(f"trace        {legible(name_of(trace.folder))}"))
    if parts := part_names(trace.folder):
        console.print(Text(f"parts        {legible(', '.join(parts))}"))
    console.print(Text(f"command      {legible(shlex.join(redacted(manifest.get('command') or [])))}"))
    console.print(Text(f"ended        {legible(_ending(manifest))}"))
    if not trace.processes:
        console.print("No process recorded anything.")
    for process in trace.processes:
        _render_process(process, console)


def _ending(manifest: dict[str, Any]) -> str:
    if not manifest.get("complete"):
        return "not known: it is still running, or its recording was ended from outside"
    status, stopped_by = manifest.get("exit_status"), manifest.get("stopped_by")
    known = [exit_phrase(status) if status is not None else "", stop_phrase(str(stopped_by)) if stopped_by else ""]
    parts = [part for part in known if part] or ["at the end of the recorded block"]
    return f"{', '.join(parts)}, after {manifest.get('seconds') or 0:.1f} s"


_WHY_STOPPED = {
    "disk-full": "the disk was full",
    "max-disk": "the limit of --max-disk was reached",
    INTERRUPT: "SIGINT (Ctrl-C) ended it",
}


def _completeness(process: ProcessTrace) -> str | None:
    """Say why the trace lacks records; None if it is complete."""
    if process.stopped_by is not None:
        return _WHY_STOPPED.get(process.stopped_by)
    if process.truncated:
        return "its files are truncated or damaged"
    return None if process.description.get("ended") else "the process was killed; everything before that is here"


def _render_process(process: ProcessTrace, console: Console) -> None:
    _, steps = process.extent
    records = 0
    size = sum(map(stored_bytes, process.folder.iterdir()))
    phases: Counter[int] = Counter()
    ops: Counter[int] = Counter()
    for chunk in process.chunks():
        records += chunk.rows
        for counter, name in ((phases, "phase"), (ops, "op")):
            values, counts = np.unique(chunk.columns[name], return_counts=True)
            counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    description = process.description
    console.print()
    console.print(
        Text(
            f"process      {legible(process.key)}, {legible(str(description.get('framework')))}, level {description.get('level')}"
        )
    )
    each = f" ({size / records:.1f} per record)" if records else ""
    console.print(Text(f"records      {records:,} in {steps:,} steps, {size:,} bytes{each}"))
    counted = legible(process.steps_by or "") or ("batches" if steps else "nothing")
    console.print(Text(f"steps by     {counted}"))
    if process.num_removed:
        removed = f"ops before step {process.first_step:,} were removed to stay within --max-disk"
        console.print(Text(f"kept         the newest: {removed}"))
    elif description.get("from_step"):
        console.print(
            Text(f"kept         ops from step {description['from_step']:,} on, and a ledger of the steps before it")
        )
    lack = _completeness(process)
    if lack is not None:
        console.print(Text(f"complete     no: {lack}"))
    console.print(
        Text("phases       " + (", ".join(f"{Phase(p).label} {n:,}" for p, n in sorted(phases.items())) or "none"))
    )
    for spot in description.get("blind_spots") or []:
        console.print(Text(legible(f"blind spot   {spot['what']}: {spot['reason']} ({spot['count']})")))
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    grid.add_column("count", justify="right", header_style="dim")
    grid.add_column("op", header_style="dim")
    for number, count in ops.most_common(_MOST_OPS):
        grid.add_row(f"{count:,}", Text(legible(process.names.text(Table.OP, number) or "?")))
    if ops:
        console.print(grid)
    if len(ops) > _MOST_OPS:
        console.print(Text(f"and {len(ops) - _MOST_OPS} more ops"))


def render_records(trace: Trace, console: Console, *, step: int | None, limit: int | None) -> None:
    """Print single records, one line each.

    Args:
        trace: What to show.
        console: Where to print.
        step: The only step to show; None for all.
        limit: The most records per process; None for no limit.

    Raises:
        TraceError: The trace cannot be read.
    """
    for process in trace.processes:
        console.print(Text(f"process {legible(process.key)}"))
        lines = _record_lines(process, step)
        shown = 0
        for line in islice(lines, limit):
            shown += 1
            console.print(Text(legible(line, console.encoding)), soft_wrap=True)
        if next(lines, None) is not None:
            more = "more" if step is not None else f"{process.extent[0] - shown:,} more"
            console.print(Text(f"    … and {more}; --records N lists more"))
        if not shown:
            steps = f" of step {step}; it has {counted(process.extent[1], 'step')}, counted from 0"
            console.print(Text(f"no records{'' if step is None else steps}"))


def _record_lines(process: ProcessTrace, step: int | None) -> Iterator[str]:
    names = process.names
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        for row in range(chunk.rows):
            columns = {name: int(cells[row]) for name, cells in chunk.columns.items()}
            if step is not None and columns["step"] != step:
                continue
            stack = names.stack(columns["stack"])
            digests = outputs.digests_of(row)
            role = Role(columns["role"])
            yield "  ".join(
                [
                    f"{chunk.first + row:>8} step {columns['step']} {Phase(columns['phase']).label:<10}",
                    (names.text(Table.OP, columns["op"]) or "?")
                    + ("" if role is Role.OP else f" [{role.name.lower()}]"),
                    names.text(Table.MODULE, columns["module"]) or "",
                    " ".join("-" if digest == NO_DIGEST else digest.hex()[:12] for digest in digests),
                    frame_text(stack[0]) if stack else "",
                ]
            )


# The findings of `determinism doctor`, as text.

_GAP = "  "


class Inspected(Protocol):
    """The findings to show."""

    @property
    def interpreter(self) -> str: ...  # noqa: D102
    @property
    def python(self) -> str: ...  # noqa: D102
    @property
    def frameworks(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def failures(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def settings(self) -> Sequence[Setting]: ...  # noqa: D102
    @property
    def remaining(self) -> Sequence[Remaining]: ...  # noqa: D102
    @property
    def recorders(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def missing(self) -> Sequence[Setting]: ...  # noqa: D102
    @property
    def in_code(self) -> Sequence[str]: ...  # noqa: D102


def story(inspection: Inspected) -> str:
    """Write the verdict, the table of settings, and the lines to add."""
    versions = ", ".join(f"{name} {version}" for name, version in inspection.frameworks.items()) or "no framework"
    lines = [
        f"{_verdict(inspection)}: Python {inspection.python} with {versions}",
        f"{_GAP}{inspection.interpreter}",
        "",
    ]
    lines += [f"{name} is installed but cannot be imported: {reason}" for name, reason in inspection.failures.items()]
    lines.append(table(inspection.settings, inspection.remaining))
    if inspection.in_code:
        lines += ["", "The program makes settings itself:", *(f"{_GAP}{legible(line)}" for line in inspection.in_code)]
    if inspection.recorders:
        lines += ["", *(f"Recorder of {name}: {which}" for name, which in inspection.recorders.items())]
    if inspection.missing:
        lines += ["", "To apply all of them, without changing the program:"]
        lines += [f"{_GAP}determinism run --seed 1 -- COMMAND"]
        lines += ["or, in the program, with the variables that Python reads at startup already set:"]
        lines += [f"{_GAP}determinism.enable(seed=1)", "or one by one:"]
        lines += [f"{_GAP}{line}" for line in dict.fromkeys(one.line for one in inspection.missing if one.line)]
    return "\n".join(lines)


def _verdict(inspection: Inspected) -> str:
    count = len(inspection.missing)
    if count:
        return f"{count} setting{'s are' if count > 1 else ' is'} missing"
    return "Frameworks cannot be imported" if inspection.failures else "Nothing is missing"
