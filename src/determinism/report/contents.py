"""Tells what a trace holds, without comparing it."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from determinism.report.legible import legible
from determinism.report.places import frame_text
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import Table
from determinism.types import NO_DIGEST, Phase, Role

_MOST_OPS = 12


def render_trace(trace: Trace, console: Console) -> None:
    """Print the run, and per process its steps, phases and most frequent ops.

    Raises:
        TraceError: The trace cannot be read.
    """
    manifest = trace.manifest
    console.print(Text(f"trace        {legible(str(trace.folder))}"))
    console.print(Text(f"command      {legible(' '.join(map(str, manifest.get('command', []))))}"))
    ended = manifest.get("stopped_by") or manifest.get("exit_status")
    console.print(Text(f"ended        {'not known' if ended is None else ended}, after {manifest.get('seconds') or 0:.1f} s"))
    if not trace.processes:
        console.print("No process recorded anything.")
    for process in trace.processes:
        _render_process(process, console)


def _render_process(process: ProcessTrace, console: Console) -> None:
    records, steps = process.extent
    size = sum(file.stat().st_size for file in process.folder.iterdir())
    phases: Counter[int] = Counter()
    ops: Counter[int] = Counter()
    for chunk in process.chunks():
        for counter, name in ((phases, "phase"), (ops, "op")):
            values, counts = np.unique(chunk.columns[name], return_counts=True)
            counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    description = process.description
    console.print()
    console.print(Text(f"process      {legible(process.key)}, {description.get('framework')}, level {description.get('level')}"))
    console.print(Text(f"records      {records:,} in {steps:,} steps, {size:,} bytes ({size / max(records, 1):.1f} per record)"))
    counted = process.steps_by or ("batches" if steps else "nothing")
    console.print(Text(f"steps by     {counted}"))
    if process.truncated or not description.get("ended"):
        console.print(Text("complete     no: the process ended before it could finish its trace"))
    console.print(Text("phases       " + ", ".join(f"{Phase(p).label} {n:,}" for p, n in sorted(phases.items()))))
    for spot in description.get("blind_spots", []):
        console.print(Text(legible(f"blind spot   {spot['what']}: {spot['reason']} ({spot['count']})")))
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    grid.add_column("count", justify="right")
    grid.add_column("op")
    for number, count in ops.most_common(_MOST_OPS):
        grid.add_row(f"{count:,}", Text(legible(process.names.text(Table.OP, number) or "?")))
    console.print(grid)
    if len(ops) > _MOST_OPS:
        console.print(Text(f"and {len(ops) - _MOST_OPS} more ops"))


def render_records(trace: Trace, console: Console, *, step: int | None, limit: int | None) -> None:
    """Print single records, one line each.

    Args:
        trace: What to show.
        console: Where to print.
        step: Only this step.
        limit: At most so many per process.

    Raises:
        TraceError: The trace cannot be read.
    """
    for process in trace.processes:
        console.print(Text(f"process {legible(process.key)}"))
        for line in islice(_record_lines(process, step), limit):
            console.print(Text(legible(line)), soft_wrap=True)


def _record_lines(process: ProcessTrace, step: int | None) -> Any:
    names = process.names
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        for row in range(chunk.rows):
            columns = {name: int(cells[row]) for name, cells in chunk.columns.items()}
            if step is not None and columns["step"] != step:
                continue
            stack = names.stack(columns["stack"])
            digests = [outputs.columns["digest"][at].tobytes() for at in range(outputs.starts[row], outputs.starts[row + 1])]
            role = Role(columns["role"])
            yield "  ".join(
                [
                    f"{chunk.first + row:>8} step {columns['step']} {Phase(columns['phase']).label:<10}",
                    (names.text(Table.OP, columns["op"]) or "?") + ("" if role is Role.OP else f" [{role.name.lower()}]"),
                    names.text(Table.MODULE, columns["module"]) or "",
                    " ".join("-" if digest == NO_DIGEST else digest.hex()[:12] for digest in digests),
                    frame_text(stack[0]) if stack else "",
                ]
            )
