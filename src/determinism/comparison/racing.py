"""Recognizes threads that use one tensor at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import held_by_position
from determinism.comparison.kind import as_race, kind_of
from determinism.comparison.origins import DigestSearch
from determinism.comparison.records import Entry, Received, Root, entry_of, only_moves
from determinism.comparison.result import Divergence
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import Chunk
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import MOST_OVERLAPS, Table
from determinism.trace.views import JoinedStreams
from determinism.types import Kind, Level

_TURNS = (
    "Threads update the same tensor one after the other. Their order differs from run to run, and floating-point sums depend "
    "on it."
)
_PROCESSES_DETAIL = (
    "Processes share this memory without synchronization, and at least one writes to it. Which comes first differs from "
    "run to run, and an update can be lost."
)
_HANDED_OVER = (
    "Other threads produced the same tensors in both runs, but this op received a different one of them: the "
    "threads' results arrived in a different order."
)
_BATCHES = "Both runs loaded the same batches, in a different order."


def as_race_of_processes(divergence: Divergence) -> Divergence:
    """The same divergence, said to come from processes that race for memory that they share."""
    return replace(divergence, kind=Kind.MUTATION, inputs_equal=False, detail=_PROCESSES_DETAIL, shares_memory=True)


def writes_shared_memory(process: ProcessTrace) -> bool:
    """Whether an op of a process writes memory that processes share."""
    return next(_shared_writes(process), None) is not None


def wrote_otherwise(first: ProcessTrace, second: ProcessTrace) -> bool:
    """Whether a process wrote other values into memory that processes share in one run than in the other."""
    return any(mine != other for mine, other in zip_longest(_shared_writes(first), _shared_writes(second)))


def _shared_writes(process: ProcessTrace) -> Iterator[bytes]:
    """Digests of what ops of a process write into memory that processes share, in order."""
    numbers = range(len(process.names.texts(Table.LAYOUT)))
    layouts = {number: process.names.layout(number) for number in numbers}
    shared = {number: layout for number, layout in layouts.items() if layout is not None and layout.is_shared}
    for chunk in process.chunks() if shared else ():
        outputs = chunk.children["outputs"]
        rows = np.flatnonzero(np.isin(outputs.columns["layout"], list(shared)))
        ops = outputs.spread(chunk.columns["op"])
        for row in rows.tolist():
            if not only_moves(process.names.op(int(ops[row])), shared[int(outputs.columns["layout"][row])]):
                yield outputs.columns["digest"][row].tobytes()


def as_changed_by_threads(divergence: Divergence, root: Root, processes: Sequence[ProcessTrace]) -> Divergence:
    """The same divergence, said to come from threads if its op changes a tensor in place that another thread changes as well.

    They race if they were seen to overlap, or may have; where each took what the one before it had left, only their order
    varies.

    Of memory that came from outside of the stream, or that another thread may have written since, the record has a digest
    and no producer. So it is the same tensor if a thread took what another one had written. Where no thread takes the
    tensor twice, that it looks the same has to do. If anything else that the op got differs, that is reason enough.
    """
    group, first, second = root.group, root.first, root.second
    if divergence.kind is Kind.OP and first is not None and second is not None:
        # What an op got was equal, as it was digested before the op ran. Each run notes whether it changed meanwhile.
        seen = [overlaps(process, one) for process, one in zip(processes, (first, second), strict=True)]
        if any(seen):
            return as_race(divergence)
        # Of what an op only writes into there is no digest: what lay there may have differed.
        is_known = all(
            value.producer >= 0 or value.digest is not None for one in (first, second) for value in one.inputs
        )
        if is_known and None not in seen:
            return divergence
    if first is None or second is None or not all(_changes_its_first(one) for one in (first, second)):
        return divergence
    sides = zip(processes, (group.first, group.second), (group.pairing.first, group.pairing.second), strict=True)
    uses = [_uses_of(process, chunk, int(rows[root.position])) for process, chunk, rows in sides]
    given = [{value.digest for value in one.inputs[1:] if value.digest is not None} for one in (first, second)]
    if not (given[0] - given[1] <= uses[1].given and given[1] - given[0] <= uses[0].given):
        return divergence
    if any(one.takes_over for one in uses):
        if all(one.is_one_after_the_other for one in uses):
            return replace(divergence, kind=Kind.ORDER, inputs_equal=False, detail=_TURNS)
        return as_race(divergence)
    # Of values that came from outside more than once the op's own variation is the simpler reason.
    may_be_shared = not any(one.goes_on for one in uses) and any(one.is_taken_elsewhere for one in uses)
    return as_race(divergence) if may_be_shared and divergence.kind in (Kind.OP, Kind.DATA) else divergence


def overlaps(process: ProcessTrace, record: Entry) -> bool | None:
    """Whether another thread wrote what the op of a record used while it ran, or may have; None if the trace does not say.

    Of two ops that change one tensor at the same time only the one that ended later is sure to be noted: so it counts also for
    another one of a thread that changes a tensor that looks the same.
    """
    index, number = process.place(record.number) if isinstance(process, JoinedStreams) else (0, record.number)
    stream = process.streams[index] if isinstance(process, JoinedStreams) else process
    noted = stream.description.get("overlapped")
    if noted is None:
        return None
    if number in noted:
        return True
    if len(noted) >= MOST_OVERLAPS and number > noted[-1]:
        return None
    if not _changes_its_first(record):
        return False
    layout, shift, count = record.inputs[0].layout, record.number - number, stream.extent[0]
    others = (entry_of(process, *process.record(shift + other)) for other in noted if other < count)
    return any(_changes_its_first(other) and other.inputs[0].layout == layout for other in others)


def _changes_its_first(one: Entry) -> bool:
    """Whether an op writes into the memory of its first argument."""
    if OpSemantics.IN_PLACE not in one.op.semantics or not one.inputs:
        return False
    return any(made.layout == one.inputs[0].layout for made in one.outputs)


class _Uses(NamedTuple):
    """How threads change what looks like one tensor."""

    takes_over: bool
    """Whether a thread took what another one had written."""
    goes_on: bool
    """Whether the thread in question changed again what it had changed itself, without a write of another thread between."""
    is_taken_elsewhere: bool
    """Whether another thread changes such a tensor that came from outside."""
    given: set[bytes]
    """What else such changes took that came from outside."""
    is_one_after_the_other: bool
    """Whether each change took what one before it had left, and no two the same."""


def _uses_of(process: ProcessTrace, chunk: Chunk, row: int) -> _Uses:
    """How the thread of a record and the others change what looks like the tensor that the record changes."""
    thread = chunk.columns["thread"][row]
    layout = chunk.children["inputs"].columns["layout"][chunk.children["inputs"].starts[row]]
    ops = process.names.ops_that(OpSemantics.IN_PLACE)
    taken: dict[int, set[bytes]] = {}
    last: dict[int, bytes] = {}
    consumed: list[bytes | None] = []
    given: set[bytes] = set()
    written: dict[int, set[bytes]] = {}
    goes_on = takes_over = False
    for other in process.chunks():
        inputs, digests, outputs = (other.children[name] for name in ("inputs", "input_digests", "outputs"))
        rows = np.flatnonzero(np.isin(other.columns["op"], ops) & (inputs.counts > 0))
        rows = rows[inputs.columns["layout"][inputs.starts[rows]] == layout]
        for at in rows.tolist():
            who = int(other.columns["thread"][at])
            held = held_by_position(digests, at)
            given |= {digest for position, digest in held.items() if position}
            if inputs.columns["producer"][inputs.starts[at]]:
                goes_on |= who == thread
                consumed.append(last.get(who))
            else:
                # What it writes into without reading it has no digest.
                takes_over |= 0 not in held and who in last and who == thread
                taken.setdefault(who, set()).update({held[0]} if 0 in held else ())
                consumed.append(held.get(0))
            last[who] = outputs.columns["digest"][outputs.starts[at]].tobytes()
            written.setdefault(who, set()).add(last[who])
    takes_over |= any(
        held & what
        for who, held in taken.items()
        for whose, what in written.items()
        if who != whose and thread in (who, whose)
    )
    begins = set(consumed) - set().union(*written.values())
    takes_turns = None not in consumed and len(begins) <= 1 and len(set(consumed)) == len(consumed)
    return _Uses(takes_over, goes_on, any(who != thread for who in taken), given, takes_turns)


def changes_in_place(one: Entry) -> bool:
    """Whether an op writes into memory that it takes from outside, as its first argument."""
    if OpSemantics.IN_PLACE not in one.op.semantics or not one.inputs or one.inputs[0].producer >= 0:
        return False
    return any(made.layout == one.inputs[0].layout for made in one.outputs)


class Threads:
    """The streams of all threads of a process, in both runs."""

    def __init__(self, streams: Sequence[tuple[ProcessTrace, ProcessTrace]], search: DigestSearch) -> None:
        self._streams = streams
        self._search = search

    def made(self, digest: bytes, run: int) -> bool:
        """Whether one of them made a value in a run."""
        return any(self._search.has_made(traces[run], digest) for traces in self._streams)

    def told_apart(self, divergence: Divergence, received: Received) -> Divergence | None:
        """The same divergence, if both runs made both values of which each took another one; None if they did not.

        A tensor that is changed in place was read at another moment. Of tensors that nobody changes, another one was
        handed over, as by a queue.
        """
        pairs = [pair for pair in received.pairs if all(self.made(digest, run) for digest in pair for run in (0, 1))]
        if not pairs:
            return None
        if divergence.detail == _TURNS:
            return divergence
        if any(self._written(digest, run) for pair in pairs for digest in pair for run in (0, 1)):
            return as_race(divergence)
        return replace(divergence, kind=Kind.ORDER, detail=_HANDED_OVER)

    def _written(self, digest: bytes, run: int) -> bool:
        return any(self._search.has_written(traces[run], digest) for traces in self._streams)

    def looks_at_another_moment(self, root: Root, received: Received, made: Set[bytes]) -> bool:
        """Whether a thread took values at another moment in each run, and made nothing of them that others took.

        Args:
            root: What it did with the values first.
            received: The values: both runs made all of them.
            made: Digests of what came of them.
        """
        if not received.pairs or root.first is None or changes_in_place(root.first):
            return False
        if root.aspects.arguments or root.aspects.generators or kind_of(root, Level.OP) is not Kind.DATA:
            return False
        values = {digest for pair in received.pairs for digest in pair}
        if not all(self.made(digest, run) for digest in values for run in (0, 1)):
            return False
        return not any(self._search.has_taken(traces[0], new) for traces in self._streams for new in made - values)


def yields_other_batch(received: Received, own: tuple[ProcessTrace, ProcessTrace], search: DigestSearch) -> bool:
    """Whether a batch differs only because both runs yield the same batches in another order."""
    return any(search.has_made(own[1], mine) and search.has_made(own[0], other) for mine, other in received.pairs)


def as_other_batch(divergence: Divergence) -> Divergence:
    """The same divergence, said to come from the order of batches."""
    return replace(divergence, kind=Kind.ORDER, detail=_BATCHES)
