"""Follows messages between processes and threads: which record sent what a divergence received.

A value that came in from outside is identified by its digests in both runs. If another stream made a value with exactly
these digests, that stream sent it, even if nothing else reads it there. The outputs of a collective are not the values
it was given, so any process that differs on its own and no later counts as the sender there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from determinism.comparison.divergence import DeadDifference, Divergence
from determinism.comparison.kind import (
    Threads,
    as_other_batch,
    as_race_of_processes,
    dead_difference,
    line_of,
    writes_shared_memory,
    wrote_other_values,
    yields_batches_in_other_order,
)
from determinism.comparison.processes import ProcessComparison
from determinism.comparison.records import NOTHING, DigestSearch, Received, shares_unwritten_memory
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import Frame
from determinism.types import Kind, Role, Stream

_SENDS_RATHER = (Stream.WORKER, Stream.THREADS, Stream.PROCESS, Stream.POOL)
"""If either of two streams may have sent a value to the other, the one listed first here did: a worker is given no
tensors, and a pool gets its tasks before it returns results."""
SHARE_MEMORY = (Stream.PROCESS, Stream.THREADS)
"""Streams of one process that share its memory."""


class Found(NamedTuple):
    """A divergence in one stream."""

    result: ProcessComparison
    divergence: Divergence
    received: Received


class Senders:
    """The streams that may have sent a value to another."""

    def __init__(self, results: Sequence[ProcessComparison], search: DigestSearch) -> None:
        self._results = results
        self._search = search
        self._writers: dict[int, bool] = {}
        for result in results:
            for pair in result.received.pairs | result.loaded:
                search.expect(pair)
        self.found = [Found(r, r.divergence, r.received) for r in results if r.divergence is not None]
        """The first divergence of each stream that has one."""

    def of(self, receiver: Found, way: list[Found]) -> Found | None:
        """Return the sender of what a divergence received; None if it is unknown."""
        senders = self._senders(receiver, receiver.received, way)
        if not senders and receiver.received.pairs:
            # It may have read parts of a tensor that was loaded as a whole.
            senders = self._senders(receiver, Received(receiver.result.loaded), way)
        if senders:
            return min(senders, key=lambda sender: (_rank(sender), *place(sender)))
        if receiver.received.by_shared_memory:
            shared = self._who_shared(way)
            if shared is not None or not self.writes_shared_memory(receiver.result):
                return shared or self._sender_by_shared_memory(way)
        return self._sender_by_collective(receiver, way) if receiver.received.by_collective else None

    def _senders(self, receiver: Found, received: Received, way: list[Found]) -> list[Found]:
        """Return the senders that made one of these values."""
        senders = []
        for result in self._results:
            # What a thread received may come from another one in the same stream.
            is_same = result is receiver.result and result.stream is Stream.THREADS
            if is_same or not any(result is passed.result for passed in way):
                sender = self._sent(result, received)
            else:
                # A stream that reads from a thread may have given that thread its initial values.
                sender = self._began(result, received) if result.has_order else None
            if sender is None or any(sender.divergence == passed.divergence for passed in way):
                continue
            if is_same or not (self._sent_back(sender, receiver) or _is_later_in_the_process(sender, receiver)):
                senders.append(sender)
        return senders

    def _who_shared(self, way: list[Found]) -> Found | None:
        """Return the earliest divergence that began in another process and was written into shared memory."""
        passed = {found.result.part_of for found in way}
        senders = [Found(result, result.shared, NOTHING) for result in self._results if result.shared is not None]
        # Reads are not followed to writes that come later; but different written values show that a process differs.
        senders += [
            found
            for found in self.found
            if not found.received.by_shared_memory and found.result.traces and wrote_other_values(*found.result.traces)
        ]
        others = [sender for sender in senders if sender.result.part_of not in passed]
        return min(others, key=lambda sender: place(sender), default=None)

    def _sender_by_shared_memory(self, way: list[Found]) -> Found | None:
        """Return the earliest divergence of a process that races with others for memory that it writes."""
        senders = [
            found
            for found in self.found
            if found.received.by_shared_memory
            and not any(found.result is passed.result for passed in way)
            and self.writes_shared_memory(found.result)
        ]
        return min(senders, key=lambda sender: place(sender), default=None)

    def _sent(self, sender: ProcessComparison, received: Received) -> Found | None:
        """Return the divergence that made one of these values, in a stream that may have sent it."""
        if not received.pairs:
            return None
        unread = self._began(sender, received)
        if unread is not None or not sender.has_order:
            return unread
        divergence = sender.divergence or sender.first_dead
        if divergence is None or not self._made(sender, received):
            return None
        return Found(sender, divergence, sender.received if sender.divergence is not None else NOTHING)

    def _began(self, sender: ProcessComparison, received: Received) -> Found | None:
        """Return the divergence that made one of these values, which, in a stream with an order, nothing there read."""
        if sender.made is None or sender.traces is None or not received.pairs:
            return None
        if sender.has_order and not self._made(sender, received):
            return None
        origin = sender.made.origin_of(received.pairs, sender.traces[0])
        return None if origin is None else Found(sender, *origin)

    def _made(self, sender: ProcessComparison, received: Received) -> bool:
        """Whether a stream made one of these values, but not both of its versions in both runs."""
        assert sender.traces is not None
        first, second = sender.traces
        uses = self._search.of
        return any(
            uses(first, mine).made
            and uses(second, other).made
            and not (uses(first, other).made and uses(second, mine).made)
            for mine, other in received.pairs
        )

    def _sent_back(self, sender: Found, receiver: Found) -> bool:
        """Whether the value may have gone the other way, and that is more likely."""
        return _rank(sender) >= _rank(receiver) and self._sent(receiver.result, sender.received) is not None

    def _sender_by_collective(self, receiver: Found, way: list[Found]) -> Found | None:
        """Return the earliest divergence of another process, preferably one that also matters there and was not only sent."""
        sent = [Found(result, result.sent, NOTHING) for result in self._results if result.sent is not None]
        for candidates in (self.found, sent):
            senders = [
                found
                for found in candidates
                if not found.received.by_collective
                and not any(found.result is passed.result for passed in way)
                and found.divergence.step <= receiver.divergence.step
                and found.result.stream is Stream.PROCESS
            ]
            if senders:
                return min(senders, key=lambda sender: place(sender))
        return None

    def writes_shared_memory(self, result: ProcessComparison) -> bool:
        """Whether a stream wrote, in either run, to memory that several processes share."""
        known = self._writers.get(id(result))
        if known is None:
            traces = result.traces or ()
            known = self._writers[id(result)] = any(writes_shared_memory(trace) for trace in traces)
        return known


def _is_later_in_the_process(sender: Found, receiver: Found) -> bool:
    """Whether a thread would have received a value before it was made; other processes count their own steps.

    So do threads that train on their own, while the other threads of their process make no steps.
    """
    is_same = sender.result.part_of == receiver.result.part_of
    return (
        is_same
        and {sender.result.stream, receiver.result.stream} <= set(SHARE_MEMORY)
        and _steps_by(sender) == _steps_by(receiver)
        and (sender.divergence.step > receiver.divergence.step)
    )


def _steps_by(found: Found) -> str | None:
    return None if found.result.traces is None else found.result.traces[0].steps_by


def _rank(found: Found) -> int:
    return _SENDS_RATHER.index(found.result.stream)


def place(found: Found) -> tuple[int, float, int]:
    """Return when a divergence happened, as a sort key: the first one explains the others."""
    return found.divergence.step, found.result.started, found.divergence.record


# Recognises a checkpoint that a thread saved while others changed it, by what was read back from it.

_DETAIL = (
    "In {runs} no thread produced what was read here, and a thread saves tensors at {file}:{line}: they changed while being "
    "written to disk."
)


def as_torn(
    divergence: Divergence,
    received: Received,
    streams: Sequence[ProcessComparison],
    search: DigestSearch,
) -> Divergence | None:
    """Attribute a divergence to a torn checkpoint that a thread saved, if it may have read one; else return None.

    An intact checkpoint holds only what some thread made. Only an experiment shows that the threads matter: other files
    also hold values that no thread made.

    Args:
        divergence: A divergence that got values from outside.
        received: These values.
        streams: All streams of its process.
        search: Looks for digests.
    """
    traces = [one.traces for one in streams if one.traces is not None]
    threads = [trace for one in streams if one.stream is Stream.THREADS for trace in one.traces or ()]
    saved_at = next((site for thread in threads if (site := _saves_at(thread))), None)
    if saved_at is None:
        return None
    unmade = {
        run
        for pair in received.pairs
        for run, digest in enumerate(pair)
        if not any(search.of(trace[run], digest).made for trace in traces)
    }
    if not unmade:
        return None
    runs = " and ".join(f"run {run + 1}" for run in sorted(unmade))
    detail = _DETAIL.format(runs=runs, file=saved_at.file.rpartition("/")[2], line=saved_at.line)
    return replace(divergence, saved_at=saved_at, detail=detail)


def _saves_at(stream: ProcessTrace) -> Frame | None:
    """Return the line at which a thread first saved a checkpoint."""
    for chunk in stream.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.CHECKPOINT)[:1]:
            return line_of(stream, chunk, int(row))
    return None


# Follows the divergences of all streams back to their origins: a receiver whose sender differs is not the origin.

_BATCH = "determinism::batch"
_HAVE_NO_STEPS = (Stream.WORKER, Stream.POOL)


@dataclass
class OriginTracer:
    """Follows the divergences of all streams back to their origins."""

    results: Sequence[ProcessComparison]
    """The comparison of each stream."""
    search: DigestSearch
    is_whole: Callable[[], bool] = lambda: True
    """Whether every process of both runs was recorded to its end."""

    def __post_init__(self) -> None:
        self._senders = Senders(self.results, self.search)

    def ways(self) -> list[list[Found]]:
        """Return the way of each diverging stream, from its divergence back to the origin; the earliest origin first."""
        ways = [self._way(found) for found in self._senders.found]
        ways.sort(key=lambda way: (*place(way[-1]), len(way)))
        if ways:
            ways[0][-1] = self._of_collective(ways[0][-1])
        return ways

    def dead(self, ways: Sequence[Sequence[Found]]) -> tuple[int, list[DeadDifference]]:
        """Return how many differences nothing read in any stream, and the first of each stream."""
        begun = [one for way in ways for one in way]
        shares = any(one.received.by_shared_memory for one in begun)
        count, first = 0, list[DeadDifference]()
        for result in self.results:
            own = [one.divergence for one in begun if one.result is result]
            if (own and result.divergence is None) or (shares and result.shared is not None):
                continue
            # Another thread read what nothing in this stream did.
            read = {dead_difference(one) for one in own if result.divergence and one.record < result.divergence.record}
            unread = [dead for dead in result.dead_first if dead not in read]
            count += result.dead_differences - (len(result.dead_first) - len(unread))
            first += unread
        return count, first

    def _way(self, found: Found) -> list[Found]:
        way = [found]
        while True:
            raced = self._raced(way[-1])
            if raced is not None:
                way[-1] = raced
                break
            sender = self._senders.of(way[-1], way)
            if sender is None:
                way[-1] = self._read_back(self._raced_for_memory(way[-1]))
                break
            way.append(sender)
        step = min((one.divergence.step for one in way if one.result.stream not in _HAVE_NO_STEPS), default=None)
        return [_with_step(one, step) for one in way]

    def _raced(self, found: Found) -> Found | None:
        """Attribute the divergence to timing if a value was only read at a different moment, or batches were reordered; else None."""
        own = found.result
        if found.divergence.kind is not Kind.DATA or not found.received.pairs or own.stream not in SHARE_MEMORY:
            return None
        assert own.traces is not None
        if found.divergence.op == _BATCH:
            is_other = yields_batches_in_other_order(found.received, own.traces, self.search)
            return found._replace(divergence=as_other_batch(found.divergence)) if is_other else None
        told = Threads(self._others(own), self.search).distinguished(found.divergence, found.received)
        return None if told is None else found._replace(divergence=told)

    def _raced_for_memory(self, found: Found) -> Found:
        """Attribute the divergence to a race if it read memory that another process writes at any time."""
        others = (other for other in self.results if other.part_of != found.result.part_of)
        if not found.received.by_shared_memory or not any(
            self._senders.writes_shared_memory(other) for other in others
        ):
            return found
        return found._replace(divergence=as_race_of_processes(found.divergence))

    def _read_back(self, found: Found) -> Found:
        """Attribute the divergence to a torn checkpoint if what it read may come from one that a thread of its process saved."""
        if found.divergence.kind is not Kind.DATA or not found.received.pairs:
            return found
        own = [one for one in self.results if one.part_of == found.result.part_of and one.traces is not None]
        torn = as_torn(found.divergence, found.received, own, self.search)
        return found if torn is None else found._replace(divergence=torn)

    def _of_collective(self, found: Found) -> Found:
        """Attribute the divergence to the collective that it came through, if every process gave that equal values."""
        own = found.result
        exchanged = own.exchanged
        if exchanged is None or found.divergence is not own.divergence or found.received.pairs:
            return found
        processes = [result for result in self.results if result.stream is Stream.PROCESS]
        for result in processes:
            if result.divergence is not None and result is not own and result.exchanged is None:
                return found
            if result.sent is not None and result.sent.step <= exchanged.step:
                return found
        if not self.is_whole() or any(
            shares_unwritten_memory(result.traces[0], exchanged.step)
            for result in processes
            if result.traces is not None
        ):
            return found
        return found._replace(divergence=exchanged)

    def _others(self, own: ProcessComparison) -> list[tuple[ProcessTrace, ProcessTrace]]:
        """Return the streams of other threads of the same process, including its own if that joins several threads."""
        return [
            other.traces
            for other in self.results
            if other.part_of == own.part_of
            and other.stream in SHARE_MEMORY
            and other.traces is not None
            and not (other is own and own.stream is Stream.PROCESS)
        ]


def _with_step(found: Found, step: int | None) -> Found:
    """Set the step of workers and pools, which count none, to the one in which their result was received."""
    if step is None or found.result.stream not in _HAVE_NO_STEPS:
        return found
    return found._replace(divergence=replace(found.divergence, step=step))
