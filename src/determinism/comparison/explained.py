"""Follows the divergences of all streams back to where they began: a receiver whose sender differs is not the origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from determinism.comparison.digest_search import DigestSearch
from determinism.comparison.process import ProcessComparison
from determinism.comparison.racing import Threads, as_other_batch, as_race_of_processes, yields_other_batch
from determinism.comparison.senders import SHARE_MEMORY, Found, Senders, place
from determinism.comparison.thread_saves import as_torn
from determinism.trace.reader import ProcessTrace
from determinism.types import Kind, Stream

_BATCH = "determinism::batch"
_HAVE_NO_STEPS = (Stream.WORKER, Stream.POOL)


class Explained:
    """Follows the divergences of all streams back to where they began."""

    def __init__(self, results: Sequence[ProcessComparison], search: DigestSearch) -> None:
        self._results = results
        self._search = search
        self._senders = Senders(results, search)

    def ways(self) -> list[list[Found]]:
        """For each stream that differs the way of its divergence: from itself to the origin, the earliest origin first."""
        ways = [self._way(found) for found in self._senders.found]
        return sorted(ways, key=lambda way: (*place(way[-1]), len(way)))

    def read_elsewhere(self, ways: Sequence[Sequence[Found]]) -> list[ProcessComparison]:
        """The streams in which nothing read what differs, and that others got it from."""
        found = [one for way in ways for one in way]
        shares = any(one.received.by_shared_memory for one in found)
        senders = [one.result for one in found if one.result.divergence is None]
        return senders + [result for result in self._results if shares and result.shared is not None]

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
        """The same, if a value was only read at another moment, or batches came in another order."""
        own = found.result
        if found.divergence.kind is not Kind.DATA or not found.received.pairs or own.stream not in SHARE_MEMORY:
            return None
        assert own.traces is not None
        if found.divergence.op == _BATCH:
            is_other = yields_other_batch(found.received, own.traces, self._search)
            return found._replace(divergence=as_other_batch(found.divergence)) if is_other else None
        told = Threads(self._others(own), self._search).told_apart(found.divergence, found.received)
        return None if told is None else found._replace(divergence=told)

    def _raced_for_memory(self, found: Found) -> Found:
        """The same, if it read memory that another process writes whenever it comes to it."""
        others = (other for other in self._results if other.part_of != found.result.part_of)
        if not found.received.by_shared_memory or not any(
            self._senders.writes_shared_memory(other) for other in others
        ):
            return found
        return found._replace(divergence=as_race_of_processes(found.divergence))

    def _read_back(self, found: Found) -> Found:
        """The same, if what it read may come from a checkpoint that a thread of its process saved."""
        if found.divergence.kind is not Kind.DATA or not found.received.pairs:
            return found
        own = [one for one in self._results if one.part_of == found.result.part_of and one.traces is not None]
        torn = as_torn(found.divergence, found.received, own, self._search)
        return found if torn is None else found._replace(divergence=torn)

    def _others(self, own: ProcessComparison) -> list[tuple[ProcessTrace, ProcessTrace]]:
        """The streams of other threads of the same process; a stream of several threads is one of them."""
        return [
            other.traces
            for other in self._results
            if other.part_of == own.part_of
            and other.stream in SHARE_MEMORY
            and other.traces is not None
            and not (other is own and own.stream is Stream.PROCESS)
        ]


def _with_step(found: Found, step: int | None) -> Found:
    """Workers and pools count no steps: what they did belongs to the step in which it was received."""
    if step is None or found.result.stream not in _HAVE_NO_STEPS:
        return found
    return found._replace(divergence=replace(found.divergence, step=step))
