"""Traces for tests, written record by record without a framework."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from determinism.comparison.columns import Canonical
from determinism.op_semantics import semantics_of
from determinism.trace.chunks import Chunk, join
from determinism.trace.files import create_trace, write_manifest
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import END_OP, PROCESSES_FOLDER, STEP_OP, Layout, Meaning, Table
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST, Access, Phase, Role


class Ref(NamedTuple):
    """An output of an earlier record, read through a view; `record` -1 is external."""

    record: int
    output: int = 0
    layout: Layout | None = None
    access: Access = Access.READ
    digest: str | None = None
    """Its content, if that was digested."""


def layout(
    *shape: int,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    elements: int | None = None,
    dtype: str = "float32",
) -> Layout:
    """Return a view, by default contiguous, of a storage with `elements` elements (by default as many as the view needs)."""
    found = list(strides) if strides is not None else []
    if strides is None:
        step = 1
        for size in reversed(shape):
            found.insert(0, step)
            step *= max(1, size)
    extent = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, found, strict=True))
    width = {
        "bool": 1,
        "uint8": 1,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "int64": 8,
        "float64": 8,
        "complex64": 8,
    }[dtype]
    count = extent if elements is None else elements
    return Layout(dtype, tuple(shape), tuple(found), offset, "cpu", count * width)


def digest_of(text: str) -> bytes:
    """Return 16 bytes that represent a value."""
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


class TraceBuilder:
    """Writes the trace of a run with one or more processes."""

    def __init__(
        self,
        folder: Path,
        *,
        key: str = "main",
        is_first: bool = True,
        command: Sequence[str] = ("program",),
        **description: Any,
    ) -> None:
        self._folder = folder
        self._command = list(command)
        self._created = time.time()
        self._step = 0
        self._others: list[TraceBuilder] = []
        self.thread = 0
        """Number of the thread that makes the records, unless given for a record."""
        if is_first:
            create_trace(folder, created=self._created, command=self._command, cwd="/work", level="op")
        own = folder / PROCESSES_FOLDER / key
        own.mkdir(parents=True)
        self._writer = ProcessWriter(own, description={"level": "op", "steps_by": "determinism.step", **description})
        self._names: dict[tuple[Table, str], int] = {}

    def beside(self, key: str, **description: Any) -> TraceBuilder:
        """Add another process or stream to the same run; it is closed with this one."""
        self._others.append(TraceBuilder(self._folder, key=key, is_first=False, **description))
        return self._others[-1]

    def _name(self, table: Table, text: str | None) -> int:
        if text is None:
            return -1
        key = (table, text)
        if key not in self._names:
            self._names[key] = self._writer.name(table, text)
        return self._names[key]

    def _op(self, name: str) -> int:
        key = (Table.OP, name)
        if key not in self._names:
            self._names[key] = self._writer.op(name, semantics_of(name))
        return self._names[key]

    def _layout(self, view: Layout | None) -> int:
        return self._name(
            Table.LAYOUT,
            json.dumps(["value"] if view is None else [*view[:-1], *(["shared"] if view.is_shared else [])]),
        )

    def _stack(self, site: tuple[str, int] | None) -> int:
        if site is None:
            return -1
        file, line = Path(site[0]), site[1]
        code = file.read_text(encoding="utf-8").splitlines()[line - 1].strip() if file.is_file() else f"line {line}"
        frame = self._name(Table.FRAME, json.dumps([site[0], line, "train", code]))
        return self._name(Table.STACK, json.dumps([frame]))

    def add(
        self,
        op: str,
        inputs: Sequence[Ref | int] = (),
        outputs: Sequence[str | None] = ("value",),
        *,
        layouts: Sequence[Layout | None] | None = None,
        role: Role = Role.OP,
        phase: Phase = Phase.FORWARD,
        module: str | None = None,
        site: tuple[str, int] | None = ("/work/train.py", 1),
        arguments: str | None = None,
        generators: Sequence[str] = (),
        thread: int | None = None,
    ) -> int:
        """Append a record and return its number.

        Args:
            op: The name of the op.
            inputs: Its inputs; a plain number means the first output of that record, read in full.
            outputs: A text that represents the bytes of each output; None for uninitialized bytes.
            layouts: The layout of each output; by default four contiguous elements.
            role: The role of the record.
            phase: The phase of the program.
            module: The path of the module.
            site: The file and line.
            arguments: The arguments as text.
            generators: Texts that represent generator states.
            thread: The number of the thread; by default `self.thread`.
        """
        views = list(layouts) if layouts is not None else [layout(4)] * len(outputs)
        edges: list[int] = []
        digests: list[int | bytes] = []
        for position, given in enumerate(inputs):
            ref = given if isinstance(given, Ref) else Ref(given)
            edges += (ref.record, ref.output, int(ref.access), self._layout(ref.layout or layout(4)))
            if ref.digest is not None:
                digests += (position, digest_of(ref.digest))
        made: list[int | bytes] = []
        for text, view in zip(outputs, views, strict=True):
            made += (self._layout(view), NO_DIGEST if text is None else digest_of(text))
        cells = (
            self.thread if thread is None else thread, self._step, phase, role, self._op(op), self._name(Table.MODULE, module),
            self._stack(site), -1, -1, self._name(Table.ARGUMENTS, arguments),
        )  # fmt: skip
        return self._writer.append(cells, edges, digests, made, [digest_of(state) for state in generators])

    def number(self, meaning: Meaning, value: float, record: int = -1, *, producer: int = -1) -> None:
        """Store a number for the current step."""
        own = record if record >= 0 else max(0, self._writer.num_records - 1)
        self._writer.number(meaning, own, (producer, 0) if producer >= 0 else (), value, self._step)

    def values(self, record: int, *values: float, output: int = 0) -> None:
        """Store elements of a float32 output."""
        self._writer.values(record, output, struct.pack(f"<{len(values)}f", *values))

    def step(self, held: dict[str, Ref | int] | None = None, name: str = STEP_OP) -> int:
        """End a step, at which the named parameters hold the given outputs."""
        text = json.dumps([["parameter", parameter] for parameter in held or {}])
        refs = list((held or {}).values())
        number = self.add(name, refs, (), role=Role.STATE, phase=Phase.OTHER, site=None, arguments=text)
        self._step += 1
        self._writer.boundary()
        return number

    def close(self, *, exit_status: int | None = 0) -> Path:
        """Close the processes and the run."""
        for other in self._others:
            other.close(exit_status=exit_status)
        self.step(name=END_OP)
        self._writer.describe(records=self._writer.num_records, steps=self._step - 1)
        self._writer.close()
        facts = {
            "created": self._created,
            "command": self._command,
            "cwd": "/work",
            "exit_status": exit_status,
            "stopped_by": None,
        }
        write_manifest(self._folder, {**facts, "seconds": 0.1, "complete": True})
        return self._folder


def process_of(folder: Path) -> ProcessTrace:
    """Return the only process of a trace."""
    (process,) = open_trace(folder).processes
    return process


def chunk_of(process: ProcessTrace) -> Chunk:
    """Return all records of a process."""
    return join(list(process.chunks()))


def opened(first: Path, second: Path) -> tuple[ProcessTrace, ProcessTrace, Chunk, Chunk, Canonical]:
    """Return both processes, all their records, and their shared numbers."""
    processes = (process_of(first), process_of(second))
    chunks = [chunk_of(process) for process in processes]
    return (*processes, *chunks, Canonical(*processes))
