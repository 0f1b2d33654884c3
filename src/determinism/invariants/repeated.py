"""Check repeated values: computations that a process makes twice (recomputation by activation checkpointing, and calls
with grad and under no_grad), and stored values (shards of parameters on other ranks, and tensors in files).

The former are spans of records between two marks, which exist if a run was recorded with its invariants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from determinism.comparison.records import Entry, Input, entry_of
from determinism.invariants.findings import (
    FILES,
    GRAD_MODE,
    RECOMPUTATION,
    SHARDS,
    InvariantFindings,
    Violation,
    rank_of,
    ranks_of,
)
from determinism.op_semantics import Op, OpSemantics
from determinism.trace.chunks import Chunk
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import (
    CALLED_OP,
    CHECKPOINTED_OP,
    GATHERED_OP,
    LOADED_OP,
    RECOMPUTED_OP,
    RETURNED_OP,
    SAVED_OP,
    Frame,
    Table,
)
from determinism.types import NO_DIGEST, Role, Stream

_MARKS = frozenset({CALLED_OP, CHECKPOINTED_OP, RECOMPUTED_OP, RETURNED_OP})
_MOST_CALLS = 1024
"""How many calls are kept with their inputs and outputs."""
_MOST_STEPS = 2
"""How many steps first forwards are kept for."""
_KEPT_STATISTICS = 2
"""Running statistics that normalisation writes besides its results; they come first among its outputs."""
_RESULTS_OF_NORMALISATION = 3


class SpanOp(NamedTuple):
    """One op of a span."""

    key: tuple[int, int]
    """Numbers of the op and of the innermost frame."""
    digests: tuple[bytes, ...]
    """Digests of its results in the span's own memory; memory from outside is not computed twice but changed twice."""
    is_copy: bool
    record: int


@dataclass
class _Span:
    """The records between two marks."""

    mark: str
    number: int
    """Number of the mark that began it."""
    step: int
    of: int
    """Number of the mark that began the span with which it must agree; -1 if none."""
    text: str
    stack: int
    ops: list[SpanOp] = field(default_factory=list)
    drawn_from: bytes | None = None
    """State of the generator that its first random op drew from."""
    key: tuple[object, ...] = ()
    """For a call, everything that its result depends on."""


class _Call(NamedTuple):
    span: _Span
    end: int
    outputs: tuple[bytes, ...]


def check_repeated(process: ProcessTrace, findings: InvariantFindings) -> None:
    """Compare the computations that a process made twice in its main stream, and add what violates this to the findings.

    Raises:
        TraceError: The trace is damaged.
    """
    if _MARKS.isdisjoint(process.names.texts(Table.OP)):
        return
    reader = _Reader(process, findings)
    for chunk in process.chunks():
        reader.add(chunk)


class _Reader:
    """Follows the spans of a process."""

    def __init__(self, process: ProcessTrace, findings: InvariantFindings) -> None:
        self._process = process
        self._findings = findings
        self._open: list[_Span] = []
        self._first: dict[int, _Span] = {}
        """First forwards of activation checkpoints, by the numbers of their marks."""
        self._calls: dict[tuple[object, ...], dict[str, _Call]] = {}
        """Calls by everything that their results depend on, and by grad mode."""
        self._reported: set[tuple[str, Frame | None]] = set()

    def add(self, chunk: Chunk) -> None:
        """Process the next records."""
        ops = self._process.names.texts(Table.OP)
        marks = {number: name for number, name in enumerate(ops) if name in _MARKS}
        numbers, roles = chunk.columns["op"], chunk.columns["role"]
        for row in range(chunk.rows):
            mark = marks.get(int(numbers[row]))
            if mark is not None:
                self._mark(mark, entry_of(self._process, chunk, row), int(chunk.columns["stack"][row]))
            elif self._open and roles[row] == Role.OP:
                self._op(chunk, row)

    def _mark(self, mark: str, entry: Entry, stack: int) -> None:
        of = entry.inputs[0].producer if entry.inputs and mark != CALLED_OP else -1
        if mark == RETURNED_OP:
            self._returned(of, entry)
            return
        if mark == CALLED_OP:
            # An earlier call that raised has no end mark.
            self._open = [span for span in self._open if span.mark != CALLED_OP]
        span = _Span(mark, entry.number, entry.step, of, entry.arguments, stack)
        if mark == CALLED_OP:
            held = tuple((str(one.layout), one.digest) for one in entry.inputs)
            span.key = (entry.arguments.partition(" ")[2], held, tuple(made.digest for made in entry.outputs))
        self._open.append(span)

    def _returned(self, number: int, entry: Entry) -> None:
        at = next((index for index, span in enumerate(self._open) if span.number == number), None)
        if at is None:
            return
        span = self._open[at]
        del self._open[at:]
        if span.mark == CHECKPOINTED_OP:
            self._first = {key: one for key, one in self._first.items() if one.step > span.step - _MOST_STEPS}
            self._first[span.number] = span
        elif span.mark == RECOMPUTED_OP:
            self._recomputed(span)
        else:
            self._called(_Call(span, entry.number, tuple(made.digest for made in entry.outputs)))

    def _op(self, chunk: Chunk, row: int) -> None:
        drawn = chunk.children["generators"]
        states = [drawn.columns["digest"][at].tobytes() for at in drawn.of(row)]
        op: SpanOp | None = None
        for span in reversed(self._open):
            if span.drawn_from is None and states:
                span.drawn_from = states[0]
            if span.mark == CALLED_OP:
                continue
            if op is None:
                op = _span_op(self._process, chunk, row, span.number)
            span.ops.append(op)
            if span.mark == RECOMPUTED_OP:
                # A nested recomputation is not part of the outer one.
                break

    def _recomputed(self, again: _Span) -> None:
        first = self._first.get(again.of)
        if first is None or not again.ops:
            return
        self._findings.compared[RECOMPUTATION] += 1
        op = first_recomputed_differently(first.ops, again.ops)
        if op is not None:
            self._report(RECOMPUTATION, again, op.record, self._frame(first.stack), "recomputation")

    def _called(self, call: _Call) -> None:
        mode = call.span.text.partition(" ")[0]
        known = self._calls.setdefault(call.span.key, {})
        other = known.get("no_grad" if mode == "grad" else "grad")
        known[mode] = call
        if len(self._calls) > _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        if other is None or other.span.drawn_from != call.span.drawn_from or not call.outputs:
            return
        self._findings.compared[GRAD_MODE] += 1
        if other.outputs != call.outputs:
            without, with_grad = (other, call) if mode == "grad" else (call, other)
            record = self._first_difference(without, with_grad)
            what = call.span.text.partition(" ")[2]
            self._report(GRAD_MODE, call.span, record, self._frame(call.span.stack), what)

    def _first_difference(self, call: _Call, other: _Call) -> int | None:
        """Return the first op of a call that the other call did not make, or whose result differs there."""
        for mine, theirs in zip(self._ops_of(call), self._ops_of(other), strict=False):
            if mine.key[0] != theirs.key[0] or mine.digests != theirs.digests:
                return mine.record
        return None

    def _ops_of(self, call: _Call) -> Iterator[SpanOp]:
        for number in range(call.span.number + 1, call.end):
            chunk, row = self._process.record(number)
            if chunk.columns["role"][row] == Role.OP:
                op = _span_op(self._process, chunk, row, call.span.number)
                if op.digests and any(digest != NO_DIGEST for digest in op.digests):
                    yield op

    def _frame(self, stack: int) -> Frame | None:
        frames = self._process.names.stack(stack)
        return frames[0] if frames else None

    def _report(self, invariant: str, span: _Span, record: int | None, asked_at: Frame | None, what: str) -> None:
        if (invariant, asked_at) in self._reported:
            return
        self._reported.add((invariant, asked_at))
        op: Op | None = None
        site = asked_at
        if record is not None:
            chunk, row = self._process.record(record)
            op = entry_of(self._process, chunk, row).op
            site = self._frame(int(chunk.columns["stack"][row])) or asked_at
        rank = rank_of(self._process)
        self._findings.violations.append(
            Violation(
                invariant, span.step, () if rank is None else (rank,), (), what, op=None if op is None else str(op),
                site=site, asked_at=asked_at, process=self._process.key,
            )
        )  # fmt: skip


def _span_op(process: ProcessTrace, chunk: Chunk, row: int, began: int) -> SpanOp:
    entry = entry_of(process, chunk, row)
    stack = int(chunk.columns["stack"][row])
    frames = process.names.stack_frames[stack] if stack >= 0 else ()
    key = (int(chunk.columns["op"][row]), frames[0] if frames else -1)
    digests = tuple(made.digest for made in entry.outputs)
    semantics = entry.op.semantics
    if OpSemantics.IN_PLACE in semantics and (not entry.inputs or entry.inputs[0].producer < began):
        digests = ()
    elif OpSemantics.TAKES_STATISTICS in semantics and len(digests) >= _KEPT_STATISTICS + _RESULTS_OF_NORMALISATION:
        digests = digests[_KEPT_STATISTICS:]
    return SpanOp(key, digests, OpSemantics.COPIES in semantics, entry.number)


def first_recomputed_differently(first: Sequence[SpanOp], again: Sequence[SpanOp]) -> SpanOp | None:
    """Return the first op of a recomputation that had a different result in the first forward, or was not in it.

    A recomputation may end early. Selective checkpointing omits ops whose results were kept, and autocast may copy
    weights again that had cached copies; so if the ops are not the same, copies do not count, and ops may be missing.
    """
    if [op.key for op in again] == [op.key for op in first[: len(again)]]:
        differing = next((op for op, known in zip(again, first, strict=False) if op.digests != known.digests), None)
        if differing is None or len(again) == len(first):
            return differing
    known = [op for op in first if not op.is_copy]
    at = 0
    for op in again:
        if op.is_copy:
            continue
        found = next(
            (
                index
                for index in range(at, len(known))
                if (known[index].key, known[index].digests) == (op.key, op.digests)
            ),
            None,
        )
        if found is None:
            return op
        at = found + 1
    return None


# Stored values: shards of parameters on other ranks, and tensors in files.


class _Marked(NamedTuple):
    """A record that marks stored values, and the site that requested them."""

    process: ProcessTrace
    entry: Entry
    said: dict[str, Any]
    """Arguments of the record."""
    site: Frame | None


def _marked(process: ProcessTrace, *ops: str) -> Iterator[_Marked]:
    """Yield the records of some ops, in order, skipping those with damaged arguments."""
    names = process.names.texts(Table.OP)
    wanted = {number for number, name in enumerate(names) if name in ops}
    if not wanted:
        return
    for chunk in process.chunks():
        for row, op in enumerate(chunk.columns["op"].tolist()):
            if op not in wanted:
                continue
            entry = entry_of(process, chunk, row)
            try:
                said = json.loads(entry.arguments)
            except (ValueError, RecursionError):
                continue
            stack = process.names.stack(int(chunk.columns["stack"][row]))
            if isinstance(said, dict):
                yield _Marked(process, entry, said, stack[0] if stack else None)


def check_shards(trace: Trace, findings: InvariantFindings) -> None:
    """Compare gathered parameters, with which modules computed, with the shards of all ranks, and add what violates this to the findings.

    Raises:
        TraceError: The trace is damaged.
    """
    ranks = ranks_of(trace)
    is_reported = False
    for gathered in zip(*(_marked(process, GATHERED_OP) for process in ranks.values()), strict=False):
        by_rank = dict(zip(ranks, gathered, strict=True))
        name = str(gathered[0].said.get("name"))
        if any(one.said.get("name") != name for one in gathered):
            return  # The ranks did not call the same modules.
        findings.compared[SHARDS] += 1
        wrong = [(rank, other) for rank, one in by_rank.items() for other in _other_values(rank, one, by_rank)]
        if wrong and not is_reported:
            is_reported = True
            ranks_apart = tuple(dict.fromkeys(rank for rank, _ in wrong))
            others = tuple(sorted({other for _, other in wrong}))
            mark = by_rank[ranks_apart[0]]
            findings.violations.append(
                Violation(SHARDS, mark.entry.step, ranks_apart, others, f"parameter {name}", site=mark.site)
            )


def _other_values(rank: int, one: _Marked, by_rank: dict[int, _Marked]) -> Iterator[int]:
    """Yield the ranks whose shard differs from the value that a rank gathered."""
    members = one.said.get("ranks")
    if not isinstance(members, list) or rank not in members:
        return
    for place, (member, part) in enumerate(zip(members, one.entry.inputs[1:], strict=False)):
        keeper = by_rank.get(member) if type(member) is int else None
        if keeper is None or keeper.said.get("ranks") != members:
            continue
        shard, theirs = keeper.entry.inputs[0], keeper.entry.inputs[1 + place]
        # With mixed precision the gathered values have another dtype, and must only agree across ranks.
        kept = shard if _form(shard) == _form(part) else theirs
        if part.digest != kept.digest and NO_DIGEST not in (part.digest, kept.digest):
            yield member


def _form(value: Input) -> tuple[Any, ...]:
    return () if value.layout is None else (value.layout.dtype, value.layout.shape)


def check_files(trace: Trace, findings: InvariantFindings) -> None:
    """Compare tensors loaded from files with those saved to them in the same run, and add what violates this to the findings.

    A file that the process itself saved must contain what it saved last; another file, what any process saved.

    Raises:
        TraceError: The trace is damaged.
    """
    if not any(LOADED_OP in process.names.texts(Table.OP) for process in trace.processes):
        return
    saved: dict[str, list[_Marked]] = {}
    for process in trace.processes:
        for mark in _marked(process, SAVED_OP):
            saved.setdefault(str(mark.said.get("file")), []).append(mark)
    reported: set[tuple[str, Frame | None]] = set()
    for process in trace.processes:
        for mark in _marked(process, LOADED_OP):
            file = str(mark.said.get("file"))
            candidates = _candidates(mark, saved.get(file, ()))
            if not candidates:
                continue
            findings.compared[FILES] += 1
            if any(_digests(mark) == _digests(candidate) for candidate in candidates):
                continue
            if (file, mark.site) not in reported:
                reported.add((file, mark.site))
                findings.violations.append(_wrong_file(file, mark, candidates[-1]))


def _candidates(loaded: _Marked, saved: Sequence[_Marked]) -> list[_Marked]:
    """Return the valid contents of a file: what the process saved last or its threads saved; else what others saved."""
    key = loaded.process.key
    own = [one for one in saved if one.process.key == key and one.entry.number < loaded.entry.number]
    threads = [
        one
        for one in saved
        if one.process.description.get("stream") == Stream.THREADS and one.process.description.get("part_of") == key
    ]
    return [*threads, *own[-1:]] or [one for one in saved if one.process.key != key]


def _digests(mark: _Marked) -> list[bytes | None]:
    return [one.digest for one in mark.entry.inputs]


def _wrong_file(file: str, loaded: _Marked, saved: _Marked) -> Violation:
    names, known = loaded.said.get("names"), _digests(saved)
    names = [str(name) for name in names] if isinstance(names, list) else []
    differing = [
        name
        for place, (name, digest) in enumerate(zip(names, _digests(loaded), strict=False))
        if place >= len(known) or digest != known[place]
    ]
    rank = rank_of(loaded.process)
    return Violation(
        FILES, loaded.entry.step, () if rank is None else (rank,), (), file, tuple(differing), site=loaded.site,
        asked_at=saved.site, process=loaded.process.key,
    )  # fmt: skip
